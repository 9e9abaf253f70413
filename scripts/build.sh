#!/usr/bin/env bash
# build.sh [lab|guest|controller] - builds skein; with "lab": also skein-lab and the guest's program; with "guest": only
# the guest's program; with "controller": only skein-controller. With EXACT=1 skein and skein-lab have HiGHS in
# them, with ETCD=1 skein-controller has etcd's client in it, which takes protoc to build.
#
# The same sources and compilers are to give the same programs wherever the tree and cargo's own directory lie: programs
# and debug information name sources below /usr/src/skein and /usr/src/cargo.
#
#   target/release/skein              the program
#   target/release/skein-controller   the program of a cluster's controller, which hosts do not need
#   target/release/skein-lab          the program of the lab, which is not installed
#   target/guest/guest/skein-workload the guest's first process: static, since its initramfs has no libraries
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh

cargo_home=$(readlink -m "${CARGO_HOME:-$HOME/.cargo}")
# Rust's sources, and those of C, whose messages have their files' names.
rust_paths="--remap-path-prefix=$cargo_home=/usr/src/cargo --remap-path-prefix=$PWD=/usr/src/skein"
c_paths="-ffile-prefix-map=$cargo_home=/usr/src/cargo -ffile-prefix-map=$PWD=/usr/src/skein"
export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }$rust_paths"
export CFLAGS="${CFLAGS:+$CFLAGS }$c_paths" CXXFLAGS="${CXXFLAGS:+$CXXFLAGS }$c_paths"

case ${1-} in
  '' | lab | guest) ;;
  controller) exec cargo build --locked --release -p skein-controller ${ETCD:+--features etcd} ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
[ "${1-}" = guest ] || cargo build --locked --release -p skein ${EXACT:+--features exact}
[ "${1-}" != lab ] || cargo build --locked --release -p skein-lab ${EXACT:+--features exact}
[ -z "${1-}" ] || RUSTFLAGS="$RUSTFLAGS -C target-feature=+crt-static" \
  cargo build --locked --profile guest -p skein-workload --target-dir target/guest
