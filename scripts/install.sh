#!/usr/bin/env bash
# install.sh install|uninstall [controller] - installs or removes skein, or skein-controller, with its systemd units,
# man pages and completions, below $DESTDIR$PREFIX. Hosts need no skein-controller.
#
#   PREFIX   default /usr; /usr/local works, too
#   DESTDIR  the staging tree of a package; only files are touched then
#   BINARY   a program to install as it is; default: the one in target/release, stripped. What is stripped goes to
#            $DESTDIR/usr/lib/debug, where debuggers and the program's own backtraces look for it.
#
# Neither command starts, stops or enables anything, or touches /etc/skein and /var/lib/skein. A running agent stays the
# program that it is until it is restarted.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr}
destdir=${DESTDIR:-}
case ${2-} in
  '') name=skein service=skein-agent ;;
  controller) name=skein-controller service=skein-controller ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
binary=${BINARY:-target/release/$name}
die() { echo "install: $*" >&2; exit 1; }
case $prefix in /*) ;; *) die "PREFIX is '$prefix', and has to begin with a /" ;; esac

root=${destdir%/}${prefix%/}
debug=${destdir%/}/usr/lib/debug${prefix%/}/bin/$name.debug
program=$root/bin/$name
units=$root/lib/systemd/system
# The user that the controller runs as.
users=$root/lib/sysusers.d/skein-controller.conf
man=$root/share/man/man1
bash=$root/share/bash-completion/completions/$name
zsh=$root/share/zsh/vendor-completions/_$name
fish=$root/share/fish/vendor_completions.d/$name.fish
# The pages of the program: skein-controller's names begin like those of skein.
pages() { find "$man" -name "$name.1" -o -name "$name-*.1" ! -name "${1:-none}"; }
[ "$name" = skein-controller ] && others= || others='skein-controller*'
# has_systemd - whether files go to this host's own systemd, and not to a staging tree.
has_systemd() { [ -z "$destdir" ] && [ -d /run/systemd/system ]; }

# put MODE DESTINATION - writes standard input to a file in one step: an agent that is started again meanwhile finds the
# old or the new file.
put() {
  mkdir -p "${2%/*}"
  cat >"$2.new"
  chmod "$1" "$2.new"
  mv -f "$2.new" "$2"
}

# put_stripped - installs the program without its debug information and symbols, which are most of its size, and puts
# these where debuggers find them.
put_stripped() {
  command -v objcopy >/dev/null || die "there is no objcopy: install binutils, or give the program as it is with BINARY"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  objcopy --only-keep-debug --compress-debug-sections "$binary" "$work/$name.debug"
  objcopy --strip-all --add-gnu-debuglink="$work/$name.debug" "$binary" "$work/$name"
  put 644 "$debug" <"$work/$name.debug"
  put 755 "$program" <"$work/$name"
}

case ${1-} in
  install)
    # The prefix is written into the unit, where other characters have a meaning for systemd (and for sed before it).
    case $prefix in
      *[!A-Za-z0-9/._+-]*)
        die "PREFIX is '$prefix': give one of letters, digits and / . _ + - (DESTDIR may be anything)"
        ;;
    esac
    [ -x "$binary" ] || die "there is no $binary: run 'make build' first"
    if [ -n "${BINARY-}" ]; then
      rm -f "$debug"
      put 755 "$program" <"$binary"
    else
      put_stripped
    fi
    [ "$name" = skein ] && services="$service skein-net-qos" || services=$service
    for unit in $services; do
      sed "s#/usr/bin/skein#${prefix%/}/bin/skein#" "systemd/$unit.service" | put 644 "$units/$unit.service"
    done
    [ "$name" != skein ] || put 644 "$units/skeinidle.slice" <systemd/skeinidle.slice
    [ "$name" != skein-controller ] || put 644 "$users" <systemd/skein-controller.sysusers
    mkdir -p "$man"
    pages "$others" | xargs -r rm -f
    "$binary" man --out "$man"
    pages "$others" | xargs -r chmod 644
    "$binary" completions bash | put 644 "$bash"
    "$binary" completions zsh | put 644 "$zsh"
    "$binary" completions fish | put 644 "$fish"
    if has_systemd; then
      [ "$name" != skein-controller ] || systemd-sysusers "$users"
      systemctl daemon-reload
      echo "installed $program;" \
        "'systemctl enable --now $service' starts it, 'systemctl restart $service'" \
        "replaces one that runs (guests go on)"
    else
      echo "installed below $root"
    fi
    ;;
  uninstall)
    if has_systemd && systemctl is-active --quiet "$service"; then
      die "$service runs: 'systemctl disable --now $service' first (guests go on)"
    fi
    rm -f "$program" "$debug" "$units/$service.service" "$bash" "$zsh" "$fish"
    [ "$name" != skein ] || rm -f "$units/skeinidle.slice" "$units/skein-net-qos.service"
    # The user stays, as its files do.
    [ "$name" != skein-controller ] || rm -f "$users"
    [ ! -d "$man" ] || pages "$others" | xargs -r rm -f
    ! has_systemd || systemctl daemon-reload
    echo "uninstalled; /etc/skein and /var/lib/skein are left"
    ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
