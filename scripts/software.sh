#!/usr/bin/env bash
# software.sh - makes target/guest/software.cpio: what a guest unpacks and builds to have real content in its memory.
#
# The sources are one crate of crates.io, pinned by version and SHA-256: the C library that Skein's cryptography comes
# from. What builds them are this machine's own C compiler, linker and busybox, with the libraries and headers that they
# need, at their own places. The archive is a cpio that is put behind the initramfs (docs/guest.md); /software/run in it
# does the work.
#
# Ends with a sentence that begins with "software:"; status 0 if it is there, 3 if it cannot be had here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
. scripts/env.sh

crate=aws-lc-sys version=0.47.0
sha256=8bfbe32ac36b3c428696ce315464181bc4029d689fd58e3f2a4e58c252242f52
# The directories that are built, and the one file that includes all others of its own.
parts="asn1 evp_extra pem cipher_extra"
whole=aws-lc/crypto/fipsmodule/bcm.c
flags="-g -Iaws-lc/include -Iinclude -Igenerated-include"

out=target/guest/software.cpio
skip() { echo "software: skipped: $*" >&2; exit 3; }
for program in cargo cc as ld ar busybox cpio ldd sha256sum; do
  command -v $program >/dev/null || skip "$program is not installed"
done

# What it is made of: with the same, it is there already.
recipe=$({ cat "$0"; cc --version; ld --version; busybox; } 2>&1 | sha256sum)
if [ -s $out ] && [ "$(cat $out.recipe 2>/dev/null)" = "$recipe" ]; then
  echo "software: $out, as before"
  exit
fi
mkdir -p target/guest
tmp=$(mktemp -d "${TMPDIR:-/tmp}/skein-software.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# ---- the sources ----
archive=
find_archive() {
  local file
  for file in "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/*/"$crate-$version.crate"; do
    if [ -f "$file" ] && echo "$sha256  $file" | sha256sum --check --status; then archive=$file; fi
  done
}
find_archive
if [ -z "$archive" ]; then
  mkdir -p "$tmp/fetch/src"
  : >"$tmp/fetch/src/lib.rs"
  printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n%s = "=%s"\n[workspace]\n' \
    $crate $version >"$tmp/fetch/Cargo.toml"
  cargo fetch --quiet --manifest-path "$tmp/fetch/Cargo.toml" || skip "cargo cannot fetch $crate $version"
  find_archive
fi
[ -n "$archive" ] || skip "$crate $version is not what it was: its SHA-256 should be $sha256"
tar -xzf "$archive" -C "$tmp"
sources=$tmp/$crate-$version

# ---- the tools: programs with their libraries, and the headers that these sources use ----
root=$tmp/root
bring() {
  local file
  for file; do
    [ -e "$root$file" ] || { mkdir -p "$root${file%/*}" && cp -L "$file" "$root$file"; }
  done
}
bring_program() {
  local path
  path=$(command -v "$1") || skip "$1 is not installed"
  # The compiler looks for its parts from where it really lies.
  bring "$path" "$(readlink -f "$path")"
  # shellcheck disable=SC2046 # a list of paths without blanks
  bring $(ldd "$path" 2>/dev/null | grep -o '/[^ )]*' | sort -u)
}
compiler=$(cc -print-prog-name=cc1)
[ -x "$compiler" ] || skip "this machine's C compiler is not GCC"
for program in cc as ar "$compiler" busybox; do bring_program "$program"; done
files=$(cd "$sources" && echo $whole && for part in $parts; do printf '%s\n' aws-lc/crypto/"$part"/*.c; done)
# shellcheck disable=SC2086 # lists of words
headers=$(cd "$sources" && cc $flags -M $files | tr ' ' '\n' | grep '^/' | sort -u)
# shellcheck disable=SC2086
bring $headers

# ---- what the guest does ----
mkdir -p "$root/software" "$root/tmp"
cp "$archive" "$root/software/sources.tar.gz"
echo "$files" >"$root/software/files"
cat >"$root/software/run" <<RUN
#!$(command -v busybox) sh
# Unpacks the sources here, compiles them with a job for each CPU, and makes a library of them.
set -eu
export PATH=/usr/bin:/bin TMPDIR=/tmp
busybox() { $(command -v busybox) "\$@"; }
busybox tar -xzf /software/sources.tar.gz
cd $crate-$version
busybox mkdir objects
busybox cat >compile <<'ONE'
#!$(command -v busybox) sh
$(command -v cc) $flags -c "\$1" -o "objects/\$(echo "\$1" | $(command -v busybox) tr / _).o"
ONE
busybox chmod +x compile
busybox xargs -n 1 -P "\$(busybox nproc)" ./compile </software/files
$(command -v ar) rcs libcrypto.a objects/*.o
RUN
chmod +x "$root/software/run"

(cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0) >"$tmp/software.cpio"
mv "$tmp/software.cpio" $out
echo "$recipe" >$out.recipe
echo "software: $(du -m $out | cut -f 1) MiB in $out"
