#!/usr/bin/env bash
# test.sh [TIER…] - runs all tests, or the tiers named. Prints a line for each tier with its time, and the log of each
# that failed.
#
#   tidy             the house's rules: circles, arrows, links, spelling, dependencies (tidy/src/lib.rs)
#   fmt clippy doc   the sources
#   unit             unit and property tests, doc tests, and integration tests that need nothing but the code
#   lab_NAME         tests/lab_NAME of some crate: needs root, network namespaces, QEMU; one test at a time
#
# All programs are built first, once, with the same features. Then tiers run side by side, as many as the cores allow.
# A line "// Cores: 0.4" in a file says how many cores its tier keeps busy; the default is one. Tiers that only compile
# run on what the cores have left.
#
# A line "// Timeout: 900 s" says how long a tier may take alone; the default is 300 s. Beside others it has twice that.
# A tier with a line "// QEMU: 7.2 10" runs once with each of these (scripts/qemu.sh), others run with the system's.
# A line "// Program: NAME" says that the tier needs that program of another package. Logs are in target/test/.
# The last line is "N passed, N failed": the tests of all tiers, and one for each tier that has no count of its own.
set -euo pipefail
export LC_ALL=C CARGO_TERM_COLOR=never
cd "$(dirname "$0")/.."
. scripts/env.sh
mkdir -p target/test
# Everything is built only once, so builds are not incremental, which would take as much room again. Lines in
# backtraces take 2 GB in all programs, and a panic names its line without.
[ -z "${CI-}" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
# room - says how much room is left for what is built and tried: a full disk fails many tiers at once, in odd ways.
room() { df -P -BM target | awk 'NR == 2 { printf "room: %d MB left of %d\n", $4, $2 }'; }

case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac

# The integration tests: their names, and the package and file of each.
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

# The features with which everything is built, so that nothing is compiled twice. Points where a test halts an agent do
# nothing unless the environment names one.
features=(--workspace --features skein/fault-points,skein-controller/etcd)

passed=0 failed=0 bad=()
hundredths=$(($(nproc) * 100))

# said NAME KEY PATTERN - prints what the file of a test says in a line "// KEY: PATTERN".
said() { sed -nE "s#^//!? ?$2: ($3)\.?\$#\1#p" "${file[$1]}" | head -n 1; }

# ---- the tiers that run, by process: their names, when they began, the seconds that they have, and the hundredths of a
# core that they use ----
declare -A name_of=() begin_of=() limit_of=() use_of=()
used=0

# start NAME SECONDS HUNDREDTHS COMMAND… - begins a tier.
start() {
  local name=$1 seconds=$2 use=$3
  shift 3
  # The tier has no input to wait for. If it ignores the end of its time, it is killed.
  timeout -k 20 "$seconds" "$@" </dev/null >"target/test/$name.log" 2>&1 &
  name_of[$!]=$name begin_of[$!]=$SECONDS limit_of[$!]=$seconds use_of[$!]=$use
  used=$((used + use))
}

# counted LOG WHAT - prints how many tests of a log "passed" or "failed".
counted() { sed -n "s/^test result: .* \([0-9]*\) $2; .*/\1/p" "$1" | awk '{n += $1} END {print n + 0}'; }

# finish PID STATUS - prints how a tier ended.
finish() {
  local name=${name_of[$1]} took=$((SECONDS - begin_of[$1])) seconds=${limit_of[$1]} status=$2 ok no log
  log=target/test/$name.log
  used=$((used - use_of[$1]))
  unset "name_of[$1]" "begin_of[$1]" "limit_of[$1]" "use_of[$1]"
  ok=$(counted "$log" passed) no=$(counted "$log" failed)
  if [ "$status" != 0 ]; then
    [ "$no" != 0 ] || no=1
    bad+=("$name")
  elif ! grep -q '^test result: ' "$log"; then
    ok=1
  fi
  passed=$((passed + ok)) failed=$((failed + no))
  if [ "$status" = 0 ]; then
    printf '%-24s ok      %4d s  %d passed\n' "$name" $took "$ok"
    # Shows which tests could not run here.
    grep -ho 'skipped: .*' "$log" | sed 's/^/    /' || true
  else
    printf '%-24s FAILED  %4d s  %d passed, %d failed%s\n' "$name" $took "$ok" "$no" \
      "$([ "$status" != 124 ] && [ "$status" != 137 ] || echo " (out of time after $seconds s)")"
    tail -n 400 "$log" | awk '{print "    " $0}'
  fi
}

# next - waits until a tier has ended, and prints how. (`wait -n` of older shells misses one that has ended already.)
next() {
  local pid status
  while :; do
    for pid in "${!name_of[@]}"; do
      if ! kill -0 "$pid" 2>/dev/null; then
        status=0
        wait "$pid" || status=$?
        finish "$pid" $status
        return
      fi
    done
    sleep 0.2
  done
}

# tier NAME SECONDS COMMAND… - runs a tier from beginning to end. Fails if the tier does.
tier() {
  local before=$failed
  start "$1" "$2" 0 "${@:3}"
  next
  [ "$failed" = "$before" ]
}

# If this script is stopped, it ends what it started.
trap '[ ${#name_of[@]} = 0 ] || kill "${!name_of[@]}" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---- the tiers that are wanted ----
[ $# != 0 ] || set -- tidy fmt clippy doc unit "${lab[@]}"
want=" $* " select=() wanted=() programs=()
for name; do
  case $name in
    fmt | clippy | doc) ;;
    tidy) select+=(--test tidy) ;;
    unit) select+=(--lib --bins "${quick[@]}") ;;
    lab_*)
      [ -n "${package[$name]-}" ] || { echo "test: there is no tier $name" >&2; exit 2; }
      select+=(--test "$name") wanted+=("$name")
      program=$(said "$name" Program '[a-z-]+')
      [ -z "$program" ] || programs+=(--bin "$program")
      ;;
    *) echo "test: there is no tier $name; there are: tidy fmt clippy doc unit ${lab[*]-}" >&2; exit 2 ;;
  esac
done
wants() { case $want in *" $1 "*) ;; *) false ;; esac; }

# Prints only the files' names; `make fmt` formats them.
if wants fmt; then tier fmt 60 cargo fmt --all -- --check -l || true; fi

# ---- one build ----
build() {
  local program='.*"manifest_path":"([^"]*)/Cargo.toml","target":\{"kind":\["([a-z-]+)"[^}]*"name":"([^"]+)"[^}]*\},'
  program+='"profile":\{[^}]*"test":true\}.*"executable":"([^"]+)".*'
  [ $# = 0 ] || cargo build --locked "${features[@]}" "$@"
  # Of cargo's messages for programs, those that name a test's program are kept. The messages for people go to the log.
  cargo test --locked "${features[@]}" --no-run "${select[@]}" --message-format json-render-diagnostics |
    sed -nE "s#$program#\2 \3 \1 \4#p" >target/test/programs
}
if [ ${#select[@]} != 0 ]; then
  # The build runs in a copy of this shell, with its functions.
  export -f build
  tier build 2400 bash -euo pipefail -c "$(declare -p features select); build \"\$@\"" build "${programs[@]}" ||
    select=()
fi

# program_of NAME - prints the directory and the program of a test.
program_of() { sed -n "s/^test $1 //p" target/test/programs; }
export -f program_of

# units - runs all programs of the unit tier, one after the other. Each runs in the directory of its package, as under
# cargo.
units() {
  local kind name dir program status=0
  while read -r kind name dir program; do
    case $kind-$name in test-lab_* | test-tidy) continue ;; esac
    echo "     Running $name ($program)"
    env -C "$dir" CARGO_MANIFEST_DIR="$dir" "$program" </dev/null || status=$?
  done <target/test/programs
  return $status
}
export -f units

# begin NAME VERSION SECONDS HUNDREDTHS - begins a tier of the lab, with a version of QEMU or with the system's.
begin() {
  local name=$1 version=$2 tier=$1 dir program qemu=()
  if [ -n "$version" ]; then
    tier=$name-qemu-$version
    qemu=(SKEIN_QEMU="$PWD/target/qemu-$version/qemu-system-x86_64")
    if [ ! -x "${qemu[0]#*=}" ]; then
      printf '%-24s skipped: QEMU %s cannot be had here\n' "$tier" "$version"
      return
    fi
  fi
  read -r dir program < <(program_of "$name")
  # The program was built as the calling user, and runs as root.
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n -E)
  start "$tier" "$3" "$4" "${root[@]}" env -C "$dir" CARGO_MANIFEST_DIR="$dir" "${qemu[@]}" \
    "$program" --test-threads=1 --nocapture
}

room

# ---- side by side ----
# Lines "SECONDS HUNDREDTHS TIER VERSION". Tiers that may take longest come first, so that none of them is left at the
# end.
lines=()
for name in "${wanted[@]}"; do
  [ ${#select[@]} != 0 ] || break
  seconds=$(said "$name" Timeout '[0-9]+ s')
  cores=$(said "$name" Cores '[0-9.]+')
  use=$(awk -v cores="${cores:-1}" 'BEGIN {printf "%d", cores * 100}')
  versions=$(said "$name" QEMU '[0-9. ]+')
  for version in ${versions:-none}; do
    lines+=("$(sed 's/ s$//' <<<"${seconds:-300}") $use $name ${version/none/}")
  done
done
[ ${#lines[@]} = 0 ] || mapfile -t lines < <(printf '%s\n' "${lines[@]}" | sort -s -k1,1nr -k2,2nr)

# Tiers that only compile get the CPU that the others leave. They run one after the other, since cargo allows one build
# at a time. On a busy machine the others leave little, so their deadline is close to that of the whole run.
compiling=()
if wants clippy; then compiling+=(clippy); fi
if wants doc; then compiling+=(doc); fi
if wants unit && [ ${#select[@]} != 0 ]; then compiling+=(unit-doc); fi
compiles=
compile() {
  local idle=(chrt --idle 0)
  case $1 in
    clippy)
      start clippy 4800 0 "${idle[@]}" cargo clippy --locked --workspace --all-targets \
        --features skein/fault-points,skein/exact,skein-lab/exact,skein-controller/etcd -- -D warnings
      ;;
    # The documents are built without the features that only tests have.
    doc) RUSTDOCFLAGS="-D warnings" start doc 4800 0 "${idle[@]}" \
      cargo doc --locked --workspace --no-deps --document-private-items ;;
    unit-doc) start unit-doc 4800 0 "${idle[@]}" cargo test --locked "${features[@]}" --doc ;;
  esac
  compiles=$!
}

if wants tidy && [ ${#select[@]} != 0 ]; then
  # Spelling is checked where the program for it is available. The book's sources are made: that fails if a request of
  # the API has no role, or a page links to a file that is not there.
  # shellcheck disable=SC2016 # expanded by the inner shell
  start tidy 300 0 bash -c '{ scripts/typos.sh || [ $? = 3 ]; } &&
    { ! command -v python3 >/dev/null || python3 scripts/book/stage.py target/book-src; } &&
    read -r dir program < <(program_of tidy) && cd "$dir" && RUST_BACKTRACE=0 "$program"'
fi
if wants unit && [ ${#select[@]} != 0 ]; then start unit 1800 100 bash -c units; fi
while :; do
  if [ -z "$compiles" ] && [ ${#compiling[@]} != 0 ]; then
    compile "${compiling[0]}"
    compiling=("${compiling[@]:1}")
  fi
  left=()
  for line in "${lines[@]}"; do
    read -r seconds use name version <<<"$line"
    # A tier that needs more cores than there are gets all of them.
    [ "$use" -le "$hundredths" ] || use=$hundredths
    if [ $((used + use)) -le "$hundredths" ]; then
      begin "$name" "$version" $((2 * seconds)) "$use"
    else
      left+=("$line")
    fi
  done
  lines=("${left[@]}")
  [ ${#name_of[@]} != 0 ] || break
  next
  [ -z "$compiles" ] || [ -n "${name_of[$compiles]-}" ] || compiles=
done

room
# Prints the failed assertions once more, as the logs above may be long.
for name in "${bad[@]}"; do
  echo "failed: $name (target/test/$name.log)"
  { grep -hA 3 'panicked at' "target/test/$name.log" || tail -n 3 "target/test/$name.log"; } |
    head -n 20 | cut -c 1-600 | sed 's/^/    /'
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
