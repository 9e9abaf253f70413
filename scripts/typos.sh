#!/usr/bin/env bash
# typos.sh - provides typos, which finds spelling mistakes in sources, as target/typos/typos.
#
# typos is one program in a package of PyPI, pinned by version and SHA-256, which pip fetches. Nothing is installed.
#
# Ends with a sentence that begins with "typos:". Its status is 0 if the program exists, 3 if it is not available here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

version=1.52.0
sha256=418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6
out=target/typos/typos
skip() { echo "typos: skipped: $*" >&2; exit 3; }
ready() { [ -x $out ] && [ "$($out --version 2>/dev/null)" = "typos-cli $version" ]; }

if ready; then
  echo "typos: $version in $out, as before"
  exit
fi
command -v python3 >/dev/null && python3 -m pip --version >/dev/null 2>&1 ||
  skip "it takes Python's pip to fetch it: apt-get install python3-pip"

tmp=$(mktemp -d "${TMPDIR:-/tmp}/skein-typos.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "typos==$version --hash=sha256:$sha256" >"$tmp/requirements"
timeout 120 python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
  --dest "$tmp" --requirement "$tmp/requirements" >"$tmp/log" 2>&1 ||
  skip "pip cannot fetch it: $(grep -m 1 '^ERROR:' "$tmp/log" || tail -n 1 "$tmp/log")"
mkdir -p target/typos
python3 - "$tmp"/*.whl "$tmp/typos" <<'UNPACK'
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
program = next(name for name in wheel.namelist() if name.endswith(".data/scripts/typos"))
open(sys.argv[2], "wb").write(wheel.read(program))
UNPACK
chmod 755 "$tmp/typos"
mv "$tmp/typos" $out
ready || skip "what was unpacked does not start: $($out --version 2>&1 | head -n 1)"
echo "typos: $version in $out"
