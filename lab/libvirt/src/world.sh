#!/bin/sh
# PID 1 of one libvirt host: `world.sh NAME ROOT UUID`, run by `unshare` in new mount, UTS, IPC and
# PID namespaces inside the network namespace of a lab host. Everything that it writes is in memory, and
# everything that it starts dies with it.
#
# What it says, on standard output:
#   pid N       its process id as the caller sees it
#   skip WHY    this machine cannot hold such a world
#   ready       the daemon has been started
set -eu
NAME=$1 ROOT=$2 HOST_UUID=$3
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
read -r pid _ </proc/self/stat                  # the caller's /proc is still mounted here
echo "pid $pid"
need() { why=$("$@" 2>&1) || { echo "skip" $why; exit 0; }; }

need hostname "$NAME"                           # travels in the migration cookie
need mount -t proc proc /proc
mount -t tmpfs -o mode=755 skein-run /run
mkdir /run/upper /run/work
overlay() {
    mkdir -p "/run/upper$1" "/run/work$1"
    need mount -t overlay -o "lowerdir=$2,upperdir=/run/upper$1,workdir=/run/work$1" overlay "$1"
}
overlay /usr "$ROOT/usr:/usr"
overlay /etc "$ROOT/etc:/etc"
overlay /var /var
# Guests and settings of a libvirt that the machine itself may have are none of ours.
for d in /etc/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt; do
    mkdir -p $d; mount -t tmpfs -o mode=755 skein-libvirt $d
done

# A /dev of our own. libvirt moves each mount below /dev into QEMU's own /dev and back; stacked mounts there, as
# containers have them, make it fail with "Unable to move /dev/pts mount": so one of each, and nothing below.
mkdir /run/dev; mount -t tmpfs -o mode=755 skein-dev /run/dev
(
    cd /run/dev
    mknod -m 666 null c 1 3; mknod -m 666 zero c 1 5; mknod -m 666 full c 1 7
    mknod -m 666 random c 1 8; mknod -m 666 urandom c 1 9; mknod -m 666 tty c 5 0
    mkdir pts shm net; mknod -m 666 net/tun c 10 200; ln -s pts/ptmx ptmx
    ln -s /proc/self/fd fd; ln -s fd/0 stdin; ln -s fd/1 stdout; ln -s fd/2 stderr
)
unmount_below() {
    awk -v d="$1" '$2 == d || index($2, d "/") == 1 {print $2}' /proc/mounts | sort -r |
        while read -r m; do umount -l "$m" || :; done
}
unmount_below /dev
mount --move /run/dev /dev; rmdir /run/dev
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /dev/pts
mount -t tmpfs -o mode=1777 skein-shm /dev/shm
unmount_below /sys/fs/cgroup                    # both daemons would make groups of the same names

ip link set lo up
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$NAME" >/etc/hosts    # else libvirt asks DNS for its own name

# The group libvirt-qemu is looked up even when qemu.conf names another.
getent group kvm >/dev/null || echo 'kvm:x:109:' >>/etc/group
getent group libvirt-qemu >/dev/null || echo 'libvirt-qemu:x:64055:libvirt-qemu' >>/etc/group
getent group libvirt >/dev/null || echo 'libvirt:x:64050:' >>/etc/group
getent passwd libvirt-qemu >/dev/null ||
    echo "libvirt-qemu:x:64055:$(getent group kvm | cut -d: -f3):QEMU:/var/lib/libvirt:/usr/sbin/nologin" >>/etc/passwd
mkdir -p /etc/libvirt/qemu /var/lib/libvirt/qemu /var/lib/libvirt/boot /var/lib/libvirt/images \
    /var/log/libvirt/qemu /var/cache/libvirt/qemu /run/libvirt

# A libvirtd loads every driver that it finds; it needs QEMU's only.
find /usr/lib -path '*/libvirt/connection-driver/*.so' ! -name '*_qemu.so' -delete
cat >/etc/libvirt/libvirtd.conf <<C
host_uuid = "$HOST_UUID"
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "libvirt"
unix_sock_rw_perms = "0770"
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
C
cat >/etc/libvirt/qemu.conf <<C
user = "libvirt-qemu"
group = "kvm"
security_driver = "none"
stdio_handler = "file"
cgroup_controllers = [ ]
C
# Where the tunnel's sockets live, as docs/libvirt.md has it.
install -d -m 0755 /run/skein
install -d -m 0700 /run/skein/control
install -d -m 1770 -o root -g kvm /run/skein/migration
install -d -m 0755 -o libvirt-qemu -g kvm /run/guest    # QEMU's ends of a guest's channels

libvirtd >/run/libvirtd.out 2>&1 </dev/null &
echo ready
exec >/dev/null 2>&1 </dev/null
while :; do wait || :; sleep 1; done            # takes in what is orphaned: QEMUs, which make themselves daemons
