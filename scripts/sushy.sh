#!/usr/bin/env bash
# sushy.sh - provides OpenStack's emulator of a Redfish management controller as target/sushy/bin/sushy-emulator.
#
# What switches hosts off and on is tried with a server that is not ours. sushy-tools comes from PyPI into an
# environment of its own below target/: nothing is installed.
#
# Ends with a sentence that begins with "sushy:". Its status is 0 if the emulator exists, 3 if it is not available here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
version=2.2.0
out=$PWD/target/sushy
skip() { echo "sushy: skipped: $*" >&2; exit 3; }

if [ -e "$out/complete-$version" ]; then
  echo "sushy: sushy-tools $version in ${out#"$PWD"/}, as before"
  exit
fi
rm -rf "$out"
done=
log=$(mktemp "${TMPDIR:-/tmp}/skein-sushy.XXXXXX")
trap 'rm -f "$log"; [ -n "$done" ] || rm -rf "$out"' EXIT
if ! python3 -m venv "$out" >"$log" 2>&1; then
  # Debian has ensurepip in a package of its own; pip itself may be there all the same.
  rm -rf "$out"
  python3 -m venv --without-pip "$out" >"$log" 2>&1 || skip "python3 makes no environment: $(tail -n 1 "$log")"
fi
pip=(python3 -m pip --python "$out/bin/python")
[ ! -x "$out/bin/pip" ] || pip=("$out/bin/pip")
timeout 300 "${pip[@]}" --quiet --disable-pip-version-check install "sushy-tools==$version" >"$log" 2>&1 ||
  skip "pip cannot fetch sushy-tools: $(tail -n 1 "$log")"
[ -x "$out/bin/sushy-emulator" ] || skip "sushy-tools $version has no sushy-emulator"
touch "$out/complete-$version"
done=1
echo "sushy: sushy-tools $version in ${out#"$PWD"/}"
