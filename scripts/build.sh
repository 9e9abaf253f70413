#!/usr/bin/env bash
# build.sh [guest] - builds skein and the guest's program (with "guest": that only). With EXACT=1 skein has HiGHS in it.
#
#   target/release/skein              the program
#   target/guest/guest/skein-workload what runs as the guest's first process: static, since its initramfs has no libraries
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/env.sh

[ "${1-}" = guest ] || cargo build --locked --release -p skein ${EXACT:+--features exact}
RUSTFLAGS="-C target-feature=+crt-static" \
  cargo build --locked --profile guest -p skein-workload --target-dir target/guest
