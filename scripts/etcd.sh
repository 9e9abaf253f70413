#!/usr/bin/env bash
# etcd.sh - provides etcd as target/etcd/etcd.
#
# The controller's store is tried with a real etcd. The system's own program is used if there is one. Otherwise the
# distribution's package is unpacked below target/: nothing is installed, since the package would start a service.
#
# Ends with a sentence that begins with "etcd:". Its status is 0 if etcd exists, 3 if it is not available here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
out=$PWD/target/etcd
skip() { echo "etcd: skipped: $*" >&2; exit 3; }

# version_of PROGRAM - prints the version, e.g. 3.4.23.
version_of() { timeout 20 "$1" --version 2>/dev/null | sed -n 's/^etcd Version: //p'; }

if [ -n "$(version_of "$out/etcd")" ]; then
  echo "etcd: $(version_of "$out/etcd") in ${out#"$PWD"/}, as before"
  exit
fi

rm -rf "$out"
mkdir -p "$out"
done=
tmp=$(mktemp -d "${TMPDIR:-/tmp}/skein-etcd.XXXXXX")
trap 'rm -rf "$tmp"; [ -n "$done" ] || rm -rf "$out"' EXIT

if system=$(command -v etcd) && [ -n "$(version_of "$system")" ]; then
  ln -s "$system" "$out/etcd"
  done=1
  echo "etcd: the system's own, $(version_of "$system")"
  exit
fi

command -v apt-get dpkg-deb >/dev/null || skip "it takes apt-get and dpkg-deb"
echo "etcd: fetching the distribution's package (about 10 MB, 40 MB unpacked)"
# apt's user for downloads may write here, too.
chmod 755 "$tmp"
(cd "$tmp" && timeout 300 apt-get -q -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 \
  -o Acquire::http::Timeout=30 download etcd-server >log 2>&1) ||
  skip "apt cannot fetch etcd-server: $(grep -m 1 '^E:' "$tmp/log" || tail -n 1 "$tmp/log")"
dpkg-deb -x "$tmp"/etcd-server_*.deb "$out/root"
ln -s root/usr/bin/etcd "$out/etcd"
[ -n "$(version_of "$out/etcd")" ] || skip "what was unpacked does not start: $("$out/etcd" --version 2>&1 | head -n 1)"
done=1
echo "etcd: $(version_of "$out/etcd") in ${out#"$PWD"/}"
