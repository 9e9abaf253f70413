#!/usr/bin/env bash
# mutants.sh [NAME…] - plants each mistake of scripts/mutants/, or those named, and reports whether quick tests find it.
#
# A mistake is a patch. Its first line says what it does, and its second names the crates whose tests are to find it.
# These are the tests that need nothing but the code: `--lib`, and test files that are not lab_*. The first test that
# fails is named. Everything happens in a copy of the tree below target/mutants/ (or MUTANTS_DIR; runs at the same time
# need one each), one mistake at a time. Before that, the tests have to pass without any mistake.
#
#   found      a test fails, or does not end within MUTANT_SECONDS (600)
#   SURVIVED   no test fails
#   no fit     the code has changed and the patch must, too: `patch` or the compiler refuses it
#
# Ends with 0 if all were found. The last line is "N found, N survived, N that do not fit".
set -euo pipefail
export LC_ALL=C CARGO_TERM_COLOR=never
cd "$(dirname "$0")/.."
. scripts/env.sh
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac

root=${MUTANTS_DIR:-$PWD/target/mutants} seconds=${MUTANT_SECONDS:-600}
tree=$root/tree
# The builds are separate from those of the tree itself, which must never contain a mistake. A mistake that was found
# must leave no seed behind that finds the next.
export CARGO_TARGET_DIR=$root/target PROPTEST_DISABLE_FAILURE_PERSISTENCE=1

patches=()
for name in "$@"; do patches+=("scripts/mutants/$name.patch"); done
[ $# != 0 ] || patches=(scripts/mutants/*.patch)
for patch in "${patches[@]}"; do
  [ -r "$patch" ] || { echo "mutants: there is no $patch" >&2; exit 2; }
done

for tool in git patch; do
  command -v "$tool" >/dev/null || { echo "mutants: $tool is missing: apt-get install $tool" >&2; exit 2; }
done

declare -A directory
for manifest in crates/*/Cargo.toml sim/Cargo.toml; do
  directory[$(sed -n '/^\[package\]/,/^\[/s/^name = "\(.*\)"/\1/p' "$manifest")]=${manifest%/Cargo.toml}
done

rm -rf "$tree"
mkdir -p "$tree"
# Copies the files that are tracked, or new and not ignored, as they are now. Their times are kept, so that what was
# built before is still new enough.
git ls-files -z --cached --others --exclude-standard -- . ':!:scripts/mutants' |
  while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
  tar --null --files-from=- --create | tar --extract --directory "$tree"
# What was built of these files may contain a mistake of this run or an earlier one, so they are built again.
touch "$root/changed"
sed -n 's|^+++ b/||p' scripts/mutants/*.patch >>"$root/changed"
sort -u -o "$root/changed" "$root/changed"
while IFS= read -r file; do [ ! -e "$tree/$file" ] || touch "$tree/$file"; done <"$root/changed"

# crates PATCH - prints the crates whose tests are to find it.
crates() { sed -n '2s/^Tests: //p' "$1"; }

# targets CRATE - prints the targets that cargo is to build and run.
targets() {
  local file name
  [ ! -e "$tree/${directory[$1]}/src/lib.rs" ] || echo --lib
  for file in "$tree/${directory[$1]}"/tests/*.rs; do
    name=$(basename "$file" .rs)
    case $name in lab_* | '*') ;; *) echo "--test=$name" ;; esac
  done
}

# quick LOG CRATE - runs its quick tests until one fails. 0: they pass; 1: one fails; 2: they do not build; 3: they do
# not end.
quick() {
  local log=$1 crate=$2 status target
  for target in $(targets "$crate"); do
    # The build is a step of its own: a test that does not build finds nothing.
    (cd "$tree" && cargo test --locked --quiet -p "$crate" "$target" --no-run) >"$log" 2>&1 </dev/null || return 2
    status=0
    (cd "$tree" && timeout -k 20 "$seconds" cargo test --locked --quiet -p "$crate" "$target") \
      >"$log" 2>&1 </dev/null ||
      status=$?
    case $status in 0) ;; 124 | 137) return 3 ;; *) return 1 ;; esac
  done
}

# which_failed LOG - prints the first test that failed.
which_failed() { sed -n 's/^---- \(.*\) stdout ----$/\1/p' "$1" | sed -n 1p; }

needed=$(for patch in "${patches[@]}"; do crates "$patch" | tr ' ' '\n'; done | sort -u)
[ -n "$needed" ] || { echo "mutants: no patch says whose tests are to find it" >&2; exit 2; }
for crate in $needed; do
  [ -n "${directory[$crate]-}" ] || { echo "mutants: there is no crate $crate" >&2; exit 2; }
  printf '%-40s ' "$crate, as it is"
  begin=$SECONDS
  if ! quick "$root/log" "$crate"; then
    echo "fails"
    tail -n 40 "$root/log" >&2
    echo "mutants: the tests of $crate fail without any mistake: mend that first" >&2
    exit 2
  fi
  printf 'passes   %4d s\n' $((SECONDS - begin))
done

found=0 survived=0 unfit=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch) begin=$SECONDS verdict=SURVIVED detail=$(sed -n 1p "$patch")
  printf '%-40s ' "$name"
  file=$(sed -n 's|^+++ b/||p' "$patch")
  cp -p "$tree/$file" "$root/original" 2>/dev/null || file=
  if [ -z "$file" ] || [ -z "$(crates "$patch")" ] ||
    ! patch --directory="$tree" --strip=1 --fuzz=0 --no-backup-if-mismatch --reject-file=- \
      <"$patch" >"$root/log" 2>&1; then
    verdict="no fit" detail="the code has changed: make the patch anew ($(tail -n 1 "$root/log"))"
  else
    for crate in $(crates "$patch"); do
      status=0
      quick "$root/log" "$crate" || status=$?
      case $status in
        0) continue ;;
        1) verdict=found detail="$crate: $(which_failed "$root/log")" ;;
        2) verdict="no fit" detail="it does not build: $(grep -m 1 '^error' "$root/log")" ;;
        3) verdict=found detail="$crate: its tests do not end" ;;
      esac
      break
    done
  fi
  if [ -n "$file" ]; then
    # The file gets another time than before, so that cargo builds it again.
    cp "$root/original" "$tree/$file"
  fi
  case $verdict in
    found) found=$((found + 1)) ;;
    SURVIVED) survived=$((survived + 1)) ;;
    *) unfit=$((unfit + 1)) ;;
  esac
  printf '%-8s %4d s  %s\n' "$verdict" $((SECONDS - begin)) "$detail"
done
echo "$found found, $survived survived, $unfit that do not fit"
[ "$survived$unfit" = 00 ]
