#!/usr/bin/env bash
# qemu.sh VERSION - provides QEMU 10 or 7.2 as target/qemu-VERSION/qemu-system-x86_64 and …/qemu-img.
#
# Skein is tested with both. The system's own QEMU is used if it is of that version. Otherwise Debian's packages are
# unpacked below target/, with every library that they need. Nothing is installed, and apt's own sources and state stay
# as they are. The sources are this machine's entries with another suite, so that its mirrors, proxies and keys work.
#
# Ends with a sentence that begins with "qemu-VERSION:". Its status is 0 if that QEMU exists, 3 if it is not available
# here.
set -euo pipefail
export LC_ALL=C

version=${1-}
case $version in 10 | 7.2) ;; *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."
out=$PWD/target/qemu-$version
skip() { echo "qemu-$version: skipped: $*" >&2; exit 3; }

# version_of PROGRAM - prints what a QEMU says of its version over QMP, for which it has to start: e.g. 10.0.2.
version_of() {
  printf '%s\n' '{"execute":"qmp_capabilities"}' '{"execute":"query-version"}' '{"execute":"quit"}' |
    timeout 20 "$1" -machine none -nodefaults -display none -qmp stdio 2>&1 |
    sed -n 's/.*"return".*"micro": \([0-9]*\), "minor": \([0-9]*\), "major": \([0-9]*\).*/\3.\2.\1/p' | head -n 1
}
fits() { case $(version_of "$1") in "$version".*) ;; *) false ;; esac; }
ready() { fits "$out/qemu-system-x86_64" && "$out/qemu-img" --version >/dev/null; }

if [ -x "$out/qemu-system-x86_64" ] && ready; then
  echo "qemu-$version: $(version_of "$out/qemu-system-x86_64") in ${out#"$PWD"/}, as before"
  exit
fi

rm -rf "$out"
mkdir -p "$out"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/skein-qemu.XXXXXX")
done=
trap 'rm -rf "$tmp"; [ -n "$done" ] || rm -rf "$out"' EXIT

if system=$(command -v qemu-system-x86_64) && fits "$system"; then
  ln -s "$system" "$out/qemu-system-x86_64"
  ln -s "$(command -v qemu-img || echo /usr/bin/qemu-img)" "$out/qemu-img"
  ready || skip "the system's QEMU is $(version_of "$system"), but qemu-img is missing: apt-get install qemu-utils"
  done=1
  echo "qemu-$version: the system's own, $(version_of "$system")"
  exit
fi

# ---- the suite that has the version ----
# shellcheck source=/dev/null
. /etc/os-release
case "${ID-}-${VERSION_CODENAME-}-$version" in
  debian-bookworm-10) suites="bookworm bookworm-backports" release=bookworm-backports ;;
  debian-trixie-7.2) suites=bookworm release=bookworm ;;
  *) skip "no source of it is known for ${PRETTY_NAME:-this system}" ;;
esac
command -v apt-get dpkg-deb >/dev/null || skip "it takes apt-get and dpkg-deb"

# ---- this machine's sources of its own suite, with $suites instead, in both of apt's formats ----
mkdir -p "$tmp"/{parts,lists/partial,archives/partial,etc}
shopt -s nullglob
for file in /etc/apt/sources.list.d/*.sources; do
  awk -v own="$VERSION_CODENAME" -v suites="$suites" '
    function flush() { if (wanted && !disabled) print stanza "\n"; stanza = ""; wanted = disabled = 0 }
    /^#/ { next }
    /^[ \t]*$/ { flush(); next }
    { low = tolower($0) }
    low ~ /^enabled:[ \t]*(no|false|off|0)/ { disabled = 1 }
    low ~ /^types:/ { $0 = "Types: deb" }
    low ~ /^suites:/ {
      n = split($0, words)
      for (i = 2; i <= n; i++) if (words[i] == own) wanted = 1
      $0 = "Suites: " suites
    }
    { stanza = stanza $0 "\n" }
    END { flush() }' "$file"
done >"$tmp/parts/skein.sources"
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -r "$file" ] || continue
  for suite in $suites; do
    own="deb[[:space:]]+((\[[^]]*\][[:space:]]+)?[^[:space:]]+)[[:space:]]+${VERSION_CODENAME}"
    sed -nE "s!^[[:space:]]*$own[[:space:]]!deb \1 $suite !p" "$file" |
      grep -v '^deb \(\[.*\] \)\?cdrom:' || true
  done
done >"$tmp/parts/skein.list"
grep -q . "$tmp"/parts/* || skip "apt has no source of $VERSION_CODENAME to derive $release from"

# ---- the packages that are needed, as if nothing were installed: so the answer is the same on all machines ----
: >"$tmp/status"
apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$tmp/parts"
  -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts="$tmp/etc"
  -o Dir::State="$tmp" -o Dir::State::lists="$tmp/lists" -o Dir::State::status="$tmp/status"
  -o Dir::State::extended_states="$tmp/extended" -o Dir::Cache="$tmp" -o Dir::Cache::archives="$tmp/archives"
  -o APT::Architecture=amd64 -o APT::Install-Recommends=false -o APT::Sandbox::User="$(id -un)"
  -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Debug::NoLocking=true)
echo "qemu-$version: fetching Debian's packages of $release (about 50 MB, 150 MB unpacked)"
{ timeout 300 "${apt[@]}" update >"$tmp/log" 2>&1 && grep -q . "$tmp"/lists/*_Packages*; } ||
  skip "apt cannot read $release: $(grep -m 1 '^[EW]:' "$tmp/log" || tail -n 1 "$tmp/log")"
timeout 900 "${apt[@]}" install -y --download-only -t "$release" qemu-system-x86 qemu-utils >"$tmp/log" 2>&1 ||
  skip "apt cannot fetch it: $(grep -m 1 '^E:' "$tmp/log" || tail -n 1 "$tmp/log")"

# The C library stays the system's: a program's loader and its libc belong together, and newer ones run older programs.
for deb in "$tmp"/archives/*.deb; do
  case ${deb##*/} in libc6_* | libc-bin_* | libgcc-s1_* | libstdc++6_* | gcc-*-base_*) continue ;; esac
  dpkg-deb -x "$deb" "$out/root"
done

# Besides QEMU_MODULE_DIR, QEMU looks for modules in a built-in directory, which has those of the system's own QEMU.
# It aborts if it finds one of another build, so these copies look in a directory that does not exist.
sed -i 's#/usr/lib/x86_64-linux-gnu/qemu\x00#/usr/lib/x86_64-linux-gnu/none\x00#' \
  "$out/root/usr/bin/qemu-system-x86_64" "$out/root/usr/bin/qemu-img"

# ---- wrappers ----
# The library path is meant for QEMU only. What QEMU starts (a shell for exec:) would get it too, but no user here does
# that.
for program in qemu-system-x86_64 qemu-img; do
  firmware=
  # shellcheck disable=SC2016 # expanded in the wrapper
  [ $program = qemu-img ] ||
    firmware=' -L "$root/usr/share/qemu" -L "$root/usr/share/seabios" -L "$root/usr/lib/ipxe/qemu"'
  cat >"$out/$program" <<WRAPPER
#!/bin/sh
here=\$(readlink -f "\$0")
root=\${here%/*}/root
lib=x86_64-linux-gnu
export LD_LIBRARY_PATH="\$root/usr/lib/\$lib:\$root/lib/\$lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
export QEMU_MODULE_DIR="\$root/usr/lib/\$lib/qemu"
exec "\$root/usr/bin/$program"$firmware "\$@"
WRAPPER
  chmod 755 "$out/$program"
done
ready || skip "what was unpacked does not start: $("$out/qemu-system-x86_64" --version 2>&1 | head -n 1)"
done=1
echo "qemu-$version: $(version_of "$out/qemu-system-x86_64") in ${out#"$PWD"/}"
