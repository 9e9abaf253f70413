#!/usr/bin/env bash
# mdbook.sh - provides mdBook, which makes a site of docs/, as target/mdbook/bin/mdbook.
#
# mdBook is built from crates.io with the versions that its own lock file names, without its web server: that takes
# minutes, once. Nothing is installed.
#
# Ends with a sentence that begins with "mdbook:". Its status is 0 if the program exists, 3 if it is not available here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
. scripts/env.sh

version=0.5.4
out=target/mdbook/bin/mdbook
skip() { echo "mdbook: skipped: $*" >&2; exit 3; }
ready() { [ -x $out ] && [ "$($out --version 2>/dev/null)" = "mdbook v$version" ]; }

if ready; then
  echo "mdbook: $version in $out, as before"
  exit
fi
find_rust || skip "there is no Rust >= $rust_min to build it: run 'make build' first"
mkdir -p target/mdbook
log=target/mdbook/build.log
echo "mdbook: building $version, in some minutes; $log tells how far it is"
begin=$SECONDS
nice -n 10 cargo install --locked mdbook --version $version --no-default-features --features search --force \
  --root target/mdbook >$log 2>&1 || skip "cargo cannot build it: $(grep -m 1 '^error' $log || tail -n 1 $log)"
ready || skip "what was built does not start: $($out --version 2>&1 | head -n 1)"
echo "mdbook: $version in $out, built in $((SECONDS - begin)) s"
