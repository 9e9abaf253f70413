#!/usr/bin/env bash
# ten-minutes.sh - does what docs/ten-minutes.md says, block by block as it is written, and tells how long each took.
#
# Takes the programs in target/release, and does not build them. What the page installs and writes goes to a view of
# this machine's files that only this script has, and is gone with it. Needs root, QEMU, and overlayfs.
set -euo pipefail
cd "$(dirname "$0")/.."
page=$PWD/docs/ten-minutes.md
if [ "${1-}" != inside ]; then
  [ $# = 0 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
  exec unshare --mount --propagation private "$0" inside
fi

view=$(mktemp -d)
trap 'target/release/skein-lab down >/dev/null 2>&1 || true' EXIT
mount -t tmpfs none "$view"
for dir in usr etc var/lib srv; do
  mkdir -p "$view/$dir/upper" "$view/$dir/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$view/$dir/upper,workdir=$view/$dir/work" "/$dir"
done

# One shell runs all blocks, as a reader's does. A block that builds is left out.
{
  echo 'set -e; took() { echo "--- $1: $((($(date +%s%N) - begin) / 1000000)) ms"; begin=$(date +%s%N); }'
  echo 'begin=$(date +%s%N); first=$begin'
  awk '
    /^## / { title = substr($0, 4) }
    /^<!-- builds -->/ { builds = 1 }
    /^```sh/ { inside = 1; next }
    /^```/ && inside { inside = 0; if (!builds) printf "took \"%s\"\n", title; builds = 0; next }
    inside && !builds { print }
  ' "$page"
  echo 'begin=$first; took "all of it"'
} >"$view/blocks"
bash "$view/blocks"
