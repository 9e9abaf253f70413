#!/usr/bin/env bash
# siw.sh - builds soft-iWARP (siw) for the kernel of scripts/emulated.sh: Debian's kernels have it switched off. Prints
# the module's path. Kernel headers and sources are Debian's packages, kept below target/emulated. Ends with 3 if they
# or a compiler cannot be had. For scripts/rdma.sh with DEVICE=siw.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skip() { echo "siw: skipped: $*" >&2; exit 3; }
[ target/emulated/initrd -nt scripts/emulated.sh ] || scripts/emulated.sh true >/dev/null || exit $?
release=$(strings -n 12 target/emulated/kernel | sed -nE 's/^([0-9]+\.[0-9]+\.[^ ]+-amd64) .*/\1/p' | sed -n 1p)
[ -n "$release" ] || skip "no kernel"
work=$PWD/target/emulated/siw-$release
module=$work/siw.ko
if [ ! -e "$module" ]; then
  version=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$release")
  rm -rf "$work"
  mkdir -p "$work/root"
  for package in "linux-headers-$release" "linux-headers-${release%-amd64}-common" "linux-kbuild-${release%-amd64}" \
    "linux-kbuild-$version" "linux-source-$version"; do
    # The package of kbuild has its name by Debian's release.
    (cd "$work" && apt-get -qq download "$package" 2>/dev/null) ||
      [[ $package = linux-kbuild-* ]] || skip "apt cannot download $package"
  done
  for deb in "$work"/linux-headers-*.deb "$work"/linux-kbuild-*.deb; do dpkg-deb -x "$deb" "$work/root"; done
  dpkg-deb --fsys-tarfile "$work"/linux-source-*.deb | tar -xO "./usr/src/linux-source-$version.tar.xz" |
    tar -xJ -C "$work" --wildcards "linux-source-$version/drivers/infiniband/sw/siw/*"
  rm -f "$work"/*.deb
  sources=$work/root/usr/src/linux-headers-$release
  sed -i "s#/usr/src/#$work/root/usr/src/#" "$sources/Makefile"
  siw=$work/linux-source-$version/drivers/infiniband/sw/siw
  make -s -C "$sources" M="$siw" CONFIG_RDMA_SIW=m modules >"$work/make.log" 2>&1 ||
    skip "siw does not compile; see $work/make.log"
  strip --strip-debug -o "$module" "$siw/siw.ko"
  rm -rf "$work/root" "$work/linux-source-$version"
fi
echo "$module"
