#!/usr/bin/env bash
# build.sh [lab|guest|controller] - builds skein; with "lab": also skein-lab and the guest's program; with "guest": only
# the guest's program; with "controller": only skein-controller. With EXACT=1 skein and skein-lab have HiGHS in
# them, with ETCD=1 skein-controller has etcd's client in it, which takes protoc to build.
#
#   target/release/skein              the program
#   target/release/skein-controller   the program of a cluster's controller, which hosts do not need
#   target/release/skein-lab          the program of the lab, which is not installed
#   target/guest/guest/skein-workload the guest's first process: static, since its initramfs has no libraries
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh

case ${1-} in
  '' | lab | guest) ;;
  controller) exec cargo build --locked --release -p skein-controller ${ETCD:+--features etcd} ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
[ "${1-}" = guest ] || cargo build --locked --release -p skein ${EXACT:+--features exact}
[ "${1-}" != lab ] || cargo build --locked --release -p skein-lab ${EXACT:+--features exact}
[ -z "${1-}" ] || RUSTFLAGS="-C target-feature=+crt-static" \
  cargo build --locked --profile guest -p skein-workload --target-dir target/guest
