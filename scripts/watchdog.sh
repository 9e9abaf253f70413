#!/usr/bin/env bash
# watchdog.sh [TEST…] - tries agents with a hardware watchdog that resets the machine: each test of
# crates/cli/tests/lab_watchdog.rs, or those whose names are given, in an emulated machine of its own
# (scripts/emulated.sh) with QEMU's i6300esb, and again with the TCO of its ICH9, for iTCO_wdt; DEVICES='i6300esb' names
# those to be tried. Takes an hour. The machine's clock counts its instructions, so that this one may be busy.
#
# A test that says that it passed has to end. A test that says for how long the machine has lived on since something
# must not end, and is judged here: the machine is reset by its watchdog, within the time that is promised.
set -euo pipefail
export LC_ALL=C CARGO_TERM_COLOR=never
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
. scripts/env.sh

# The features of scripts/test.sh, so that nothing is compiled twice.
features=(--workspace --features skein/fault-points,skein-controller/etcd)
cargo build -q "${features[@]}" --bin skein-controller
program=$(cargo test "${features[@]}" --test lab_watchdog --no-run 2>&1 |
  sed -n 's/^ *Executable .*lab_watchdog.rs (\(.*\))$/\1/p')
[ -x "$program" ] || { echo "watchdog: the tests cannot be built" >&2; exit 1; }
mkdir -p target/test
SKEIN_QEMU=${SKEIN_QEMU:-$PWD/target/qemu-10/qemu-system-x86_64}
[ -x "$SKEIN_QEMU" ] || { echo "watchdog: skipped: scripts/qemu.sh unpacks a QEMU" >&2; exit 3; }
export SKEIN_QEMU EMULATED_SHIFT=0 EMULATED_SECONDS=${EMULATED_SECONDS:-3600}

failed=0
fail() { echo "watchdog: $1: FAILED: $2; see target/test/$1.log" >&2; failed=1; }

# ran TEST DEVICE - runs a test. Sets `ended` to whether the test ended well, `reset` to whether the watchdog acted, and
# `lived` to the last milliseconds that the test has said.
ran() {
  local log=target/test/$1-$2.log status=0 device
  case $2 in
    i6300esb) device='-device i6300esb' ;;
    tco) device='-global ICH9-LPC.noreboot=false' ;;
    *) echo "watchdog: no device is called $2" >&2; exit 2 ;;
  esac
  echo "watchdog: $1, $2"
  EMULATED_QEMU="$device -trace watchdog_perform_action" \
    scripts/emulated.sh "$program" --exact "$1" --nocapture >"$log" 2>&1 || status=$?
  [ "$status" != 3 ] || { tail -n 1 "$log" >&2; exit 3; }
  grep '^watchdog: ' "$log" | grep -v ': lives ' || true
  ended=no reset=no
  if [ "$status" = 0 ] && grep -q '^watchdog: .*: passed$' "$log"; then ended=yes; fi
  if grep -q '^watchdog_perform_action' "$log"; then reset=yes; fi
  lived=$(sed -n 's/^watchdog: lives \([0-9]*\) ms$/\1/p' "$log" | tail -n 1)
}

# judge TEST DEVICE - runs a test and says what came of it.
judge() {
  local from to=
  # In milliseconds: the soonest that the last word may have come before the reset, and the latest.
  case $1 in
    a_host_whose_agent_is_killed_is_reset) from=4500 to=10100 ;;
    a_host_that_is_cut_off_is_reset) from=15000 to=25100 ;;
  esac
  ran "$1" "$2"
  if [ -z "$to" ]; then
    [ "$ended" = yes ] || fail "$1-$2" "the machine was reset, or the test failed"
  elif [ "$reset" = no ] || [ -z "$lived" ]; then
    fail "$1-$2" "the watchdog did not reset the machine"
  elif [ "$lived" -lt "$from" ] || [ "$lived" -gt "$to" ]; then
    fail "$1-$2" "the machine lived for $lived ms, and is promised to live for $from to $to"
  else
    echo "watchdog: reset after $lived ms"
  fi
}

read -ra devices <<<"${DEVICES:-i6300esb tco}"
for test in $("$program" --list | sed -n 's/: test$//p'); do
  if [ $# -gt 0 ] && [[ " $* " != *" $test "* ]]; then continue; fi
  for device in "${devices[@]}"; do judge "$test" "$device"; done
done
[ "$failed" = 0 ] && echo "watchdog: all is well"
exit "$failed"
