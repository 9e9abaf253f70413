#!/bin/sh
# The guest's QEMU. QEMU before 9.0 loses an emulated CPU's writes during a migration unless RAM is no multiple of 64
# pages (see `odd_ram` of the lab's guests), and libvirt only knows whole MiB: so RAM gets 8 KiB more here.
qemu=/usr/bin/qemu-system-x86_64
case " $* " in
*" -m "*) case $($qemu --version) in *" version "[0-8].*) odd=yes ;; esac ;;
esac
for argument do
    case ${odd+$option} in
    -m)
        case $argument in
        size=*k) kib=${argument#size=} kib=${kib%k} ;;
        *) kib=$((argument * 1024)) ;;
        esac
        argument=size=$((kib + 8))k
        ;;
    -object)
        case $argument in *'"size":'*)
            before=${argument%%'"size":'*} after=${argument#*'"size":'}
            size=${after%%[!0-9]*}
            argument=$before'"size":'$((size + 8192))${after#"$size"}
            ;;
        esac
        ;;
    esac
    option=$argument
    set -- "$@" "$argument"
    shift
done
exec $qemu "$@"
