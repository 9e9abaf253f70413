#!/usr/bin/env bash
# test.sh [TIER…] - all tests, or the tiers named, a line each with its time, and the log of what failed.
#
#   tidy             the house's rules: circles, arrows, links, spelling, dependencies… (tidy/src/lib.rs)
#   fmt clippy doc   the sources
#   unit             unit and property tests, doc tests, and integration tests that need nothing but the code
#   lab_NAME         tests/lab_NAME of some crate: needs root, network namespaces, QEMU; one test at a time
#
# A tier has ten minutes, unless its file says otherwise in a line "// Timeout: 900 s". With a line "// QEMU: 7.2 10" it
# runs once with each of these (scripts/qemu.sh), else with the system's; "// Features: NAME" builds it with features of
# its package; "// Program: NAME" builds that package's program first. Logs lie in target/test/.
# The last line is "N passed, N failed": the tests of all tiers, and one for each tier that has no count of its own.
set -euo pipefail
export LC_ALL=C CARGO_TERM_COLOR=never
cd "$(dirname "$0")/.."
. scripts/env.sh
mkdir -p target/test
# What is built once is not built in increments, which take as much room again.
[ -z "${CI-}" ] || export CARGO_INCREMENTAL=0

case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac

# Integration tests: their names, and which package and file each is of.
declare -A package file
names=()
for path in {crates,lab}/*/tests/*.rs {crates,lab}/*/tests/*/main.rs sim/tests/*.rs; do
  [ -e "$path" ] || continue
  name=${path##*/tests/}
  name=${name%.rs} name=${name%/main}
  dir=${path%%/tests/*}
  [ -z "${package[$name]-}" ] || { echo "test: two tests are called $name: $path and ${file[$name]}" >&2; exit 1; }
  package[$name]=$(sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/\1/p' "$dir/Cargo.toml")
  file[$name]=$path
  names+=("$name")
done
quick=()
lab=()
for name in "${names[@]}"; do
  case $name in lab_*) lab+=("$name") ;; *) quick+=(--test "$name") ;; esac
done

passed=0 failed=0 bad=()

# tier NAME SECONDS COMMAND…
tier() {
  local name=$1 seconds=$2 log=target/test/$1.log begin=$SECONDS status=0 ok no
  shift 2
  printf '%-24s ' "$name"
  # No input to wait for; and whoever ignores the end of its time is killed.
  timeout -k 20 "$seconds" "$@" </dev/null >"$log" 2>&1 || status=$?
  ok=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
  no=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
  if [ $status != 0 ]; then
    [ "$no" != 0 ] || no=1
    bad+=("$name")
  elif ! grep -q '^test result: ' "$log"; then
    ok=1
  fi
  passed=$((passed + ok)) failed=$((failed + no))
  if [ $status = 0 ]; then
    printf 'ok      %4d s  %d passed\n' $((SECONDS - begin)) "$ok"
    # A test that could not run here says so; that is no secret.
    grep -ho 'skipped: .*' "$log" | sed 's/^/    /' || true
  else
    printf 'FAILED  %4d s  %d passed, %d failed%s\n' $((SECONDS - begin)) "$ok" "$no" \
      "$([ $status != 124 ] && [ $status != 137 ] || echo " (out of time after $seconds s)")"
    tail -n 400 "$log" | awk '{print "    " $0}'
  fi
}

tier_of() {
  case $1 in
    tidy)
      # Spelling is checked where the program for it can be had.
      # shellcheck disable=SC2016 # expanded by the inner shell
      tier tidy 300 bash -c '{ scripts/typos.sh || [ $? = 3 ]; } &&
        RUST_BACKTRACE=0 cargo test --locked -p skein-tidy --test tidy'
      ;;
    # The files only; `make fmt` does the rest.
    fmt) tier fmt 60 cargo fmt --all -- --check -l ;;
    clippy)
      tier clippy 1200 cargo clippy --locked --workspace --all-targets --features skein/fault-points,skein/exact -- \
        -D warnings
      ;;
    doc) RUSTDOCFLAGS="-D warnings" tier doc 600 cargo doc --locked --workspace --no-deps --document-private-items ;;
    unit)
      tier unit 1200 cargo test --locked --workspace --no-fail-fast --lib --bins "${quick[@]}"
      tier unit-doc 600 cargo test --locked --workspace --doc
      ;;
    lab_*)
      [ -n "${package[$1]-}" ] || { echo "test: there is no tier $1" >&2; exit 2; }
      local seconds
      seconds=$(sed -nE 's#^//!? ?Timeout: ([0-9]+) s\.?$#\1#p' "${file[$1]}" | head -n 1)
      # Built as who calls, run as root.
      local runner=()
      [ "$(id -u)" = 0 ] || runner=(env CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="sudo -n -E")
      local features
      features=$(sed -nE 's#^//!? ?Features: ([a-z0-9, -]+)$#\1#p' "${file[$1]}" | head -n 1)
      local command=("${runner[@]}" cargo test --locked -p "${package[$1]}" --features "$features" --test "$1" --
        --test-threads=1 --nocapture)
      local program
      program=$(sed -nE 's#^//!? ?Program: ([a-z-]+)$#\1#p' "${file[$1]}" | head -n 1)
      [ -z "$program" ] || command=(sh -c 'cargo build --locked -p "$0" && exec "$@"' "$program" "${command[@]}")
      local versions version qemu
      versions=$(sed -nE 's#^//!? ?QEMU: ([0-9. ]+)$#\1#p' "${file[$1]}" | head -n 1)
      [ -n "$versions" ] || tier "$1" "${seconds:-600}" "${command[@]}"
      for version in $versions; do
        qemu=$PWD/target/qemu-$version/qemu-system-x86_64
        if [ -x "$qemu" ]; then
          SKEIN_QEMU=$qemu tier "$1-qemu-$version" "${seconds:-600}" "${command[@]}"
        else
          printf '%-24s skipped: QEMU %s cannot be had here\n' "$1-qemu-$version" "$version"
        fi
      done
      ;;
    *) echo "test: there is no tier $1; there are: tidy fmt clippy doc unit ${lab[*]-}" >&2; exit 2 ;;
  esac
}

[ $# != 0 ] || set -- tidy fmt clippy doc unit "${lab[@]}"
for name; do tier_of "$name"; done

# What was asserted, once more: the logs above may be long.
for name in "${bad[@]}"; do
  echo "failed: $name (target/test/$name.log)"
  { grep -hA 3 'panicked at' "target/test/$name.log" || tail -n 3 "target/test/$name.log"; } |
    head -n 20 | cut -c 1-600 | sed 's/^/    /'
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
