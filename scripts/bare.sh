# shellcheck shell=bash
# bare.sh - what the scripts share that try packages on bare systems of a distribution. To be sourced in the project's
# root by a script that has $suite. Needs root and mmdebstrap. Nothing of this machine's /usr is in these systems.

# skip WORDS... - ends the script, as it cannot run here.
skip() { echo "${0##*/}: skipped: $*" >&2; exit 3; }

[ "$(id -u)" = 0 ] || skip "it takes root"
command -v mmdebstrap >/dev/null || skip "there is no mmdebstrap: apt-get install mmdebstrap"

# bare_root NAME DIRECTORY PACKAGES... - unpacks a bare system with these packages into a directory. It is made once,
# and kept as target/bare/SUITE-NAME.tar.
bare_root() {
  local tar=target/bare/$suite-$1.tar own options=() line packages=${*:3}
  own=$(lsb_release -cs 2>/dev/null || sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  mkdir -p target/bare
  if [ ! -s "$tar" ] || [ "$(cat "$tar.packages" 2>/dev/null)" != "$packages" ]; then
    # What apt was told here of networks and clocks holds for these systems, too.
    while IFS= read -r line; do options+=("--aptopt=$line"); done < <(
      cat /etc/apt/apt.conf /etc/apt/apt.conf.d/* 2>/dev/null |
        sed -nE 's/^\s*(Acquire::(Check-|[Hh]ttps?::|Retries).*);$/\1/p')
    # The system's own mirror, with the other release's name; without one mmdebstrap knows its own.
    if [ -e /etc/apt/sources.list.d/debian.sources ]; then
      grep -v '^#' /etc/apt/sources.list.d/debian.sources | sed -E "s/\b$own\b/$suite/g" >"$tar.sources"
      options+=("$tar.sources")
    fi
    echo "making a bare $suite with ${packages:-nothing more}"
    env -u LANG mmdebstrap --mode=root --variant=minbase ${packages:+--include="${packages// /,}"} \
      "$suite" "$tar.part.tar" "${options[@]}" >"$tar.log" 2>&1 ||
      skip "mmdebstrap makes no $suite: $(grep -m 1 '^E:' "$tar.log" || tail -n 1 "$tar.log")"
    mv "$tar.part.tar" "$tar"
    echo "$packages" >"$tar.packages"
  fi
  mkdir -p "$2"
  tar -xf "$tar" -C "$2" --numeric-owner --xattrs
}
