#!/usr/bin/env bash
# install.sh install|uninstall - installs or removes the program, its systemd units, man pages and completions, below
# $DESTDIR$PREFIX.
#
#   PREFIX   default /usr; /usr/local works, too
#   DESTDIR  the staging tree of a package; only files are touched then
#   BINARY   a program to install as it is; default: target/release/skein, stripped. What is stripped goes to
#            $DESTDIR/usr/lib/debug, where debuggers and the program's own backtraces look for it.
#
# Neither command starts, stops or enables anything, or touches /etc/skein and /var/lib/skein. A running agent stays the
# program that it is until it is restarted.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr}
destdir=${DESTDIR:-}
binary=${BINARY:-target/release/skein}
die() { echo "install: $*" >&2; exit 1; }
case $prefix in /*) ;; *) die "PREFIX is '$prefix', and has to begin with a /" ;; esac

root=${destdir%/}${prefix%/}
debug=${destdir%/}/usr/lib/debug${prefix%/}/bin/skein.debug
program=$root/bin/skein
units=$root/lib/systemd/system
man=$root/share/man/man1
bash=$root/share/bash-completion/completions/skein
zsh=$root/share/zsh/vendor-completions/_skein
fish=$root/share/fish/vendor_completions.d/skein.fish
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
  objcopy --only-keep-debug --compress-debug-sections "$binary" "$work/skein.debug"
  objcopy --strip-all --add-gnu-debuglink="$work/skein.debug" "$binary" "$work/skein"
  put 644 "$debug" <"$work/skein.debug"
  put 755 "$program" <"$work/skein"
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
    sed "s#/usr/bin/skein#${prefix%/}/bin/skein#" systemd/skein-agent.service | put 644 "$units/skein-agent.service"
    put 644 "$units/skeinidle.slice" <systemd/skeinidle.slice
    mkdir -p "$man"
    rm -f "$man"/skein.1 "$man"/skein-*.1
    "$binary" man --out "$man"
    chmod 644 "$man"/skein.1 "$man"/skein-*.1
    "$binary" completions bash | put 644 "$bash"
    "$binary" completions zsh | put 644 "$zsh"
    "$binary" completions fish | put 644 "$fish"
    if has_systemd; then
      systemctl daemon-reload
      echo "installed $program;" \
        "'systemctl enable --now skein-agent' starts the agent, 'systemctl restart skein-agent'" \
        "replaces one that runs (guests go on)"
    else
      echo "installed below $root"
    fi
    ;;
  uninstall)
    if has_systemd && systemctl is-active --quiet skein-agent; then
      die "the agent runs: 'systemctl disable --now skein-agent' first (its guests go on)"
    fi
    rm -f "$program" "$debug" "$units/skein-agent.service" "$units/skeinidle.slice" \
      "$man"/skein.1 "$man"/skein-*.1 \
      "$bash" "$zsh" "$fish"
    ! has_systemd || systemctl daemon-reload
    echo "uninstalled; /etc/skein and /var/lib/skein are left"
    ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
