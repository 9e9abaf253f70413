#!/usr/bin/env bash
# promtool.sh - provides Prometheus' promtool as target/promtool/promtool.
#
# Alert rules and every query of the dashboard are checked with it. The system's own program is used if there is one.
# Otherwise the distribution's package is unpacked below target/: nothing is installed, since Debian 12 has promtool in
# the package of the server, which would be started.
#
# Ends with a sentence that begins with "promtool:". Its status is 0 if promtool exists, 3 if it is not available here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
out=$PWD/target/promtool
skip() { echo "promtool: skipped: $*" >&2; exit 3; }

# version_of PROGRAM - prints the version, e.g. 2.42.0.
version_of() { timeout 20 "$1" --version 2>&1 | sed -n 's/^promtool, version \([^ ]*\).*/\1/p'; }

if [ -n "$(version_of "$out/promtool" 2>/dev/null)" ]; then
  echo "promtool: $(version_of "$out/promtool") in ${out#"$PWD"/}, as before"
  exit
fi

rm -rf "$out"
mkdir -p "$out"
done=
tmp=$(mktemp -d "${TMPDIR:-/tmp}/skein-promtool.XXXXXX")
trap 'rm -rf "$tmp"; [ -n "$done" ] || rm -rf "$out"' EXIT

if system=$(command -v promtool) && [ -n "$(version_of "$system")" ]; then
  ln -s "$system" "$out/promtool"
  done=1
  echo "promtool: the system's own, $(version_of "$system")"
  exit
fi

command -v apt-get dpkg-deb >/dev/null || skip "it takes apt-get and dpkg-deb"
# apt's user for downloads may write here, too.
chmod 755 "$tmp"
fetched=
# Debian 13 has a package of its own, Debian 12 the server's.
for package in promtool prometheus; do
  echo "promtool: fetching the distribution's package $package (about 20 MB, 100 MB unpacked)"
  if (cd "$tmp" && timeout 300 apt-get -q -o APT::Sandbox::User="$(id -un)" -o Acquire::Retries=2 \
    -o Acquire::http::Timeout=30 download "$package" >log 2>&1); then
    fetched=1
    break
  fi
done
[ -n "$fetched" ] || skip "apt cannot fetch it: $(grep -m 1 '^E:' "$tmp/log" || tail -n 1 "$tmp/log")"
dpkg-deb -x "$tmp"/*.deb "$tmp/root"
[ -x "$tmp/root/usr/bin/promtool" ] || skip "the package has no promtool"
mv "$tmp/root/usr/bin/promtool" "$out/promtool"
[ -n "$(version_of "$out/promtool")" ] ||
  skip "what was unpacked does not start: $("$out/promtool" --version 2>&1 | head -n 1)"
done=1
echo "promtool: $(version_of "$out/promtool") in ${out#"$PWD"/}"
