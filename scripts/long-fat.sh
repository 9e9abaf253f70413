#!/usr/bin/env bash
# long-fat.sh [SKEIN] - sends data over two paths of which one or both are long, in an emulated machine
# (scripts/emulated.sh), as delay and loss take a kernel's module.
# With 50 ms and 0.1 % of loss on one path both have to carry at least 0.8 of what the other carries alone; with 50 ms
# on both they have to carry 0.9 of what the links have. SKEIN is the program; without it target/release/skein.
# LONG_FAT_MBIT (12) is each link's rate: the machine is slow.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
rate=${LONG_FAT_MBIT:-12}
[ -n "${SKEIN_OWN_KERNEL-}" ] ||
  exec env EMULATED_SECONDS=1800 scripts/emulated.sh env LONG_FAT_MBIT="$rate" "$PWD/scripts/long-fat.sh" "$skein"
. scripts/two-hosts.sh

# Enough for connections to find their rate: 45 s of a link.
bytes=$((rate * 125000 * 45))
head -c "$bytes" /dev/urandom >data

# try NAME QUEUE... - makes a path for each queue, a line of netem's options, and sends data from a to b. Sets $kbit.
try() {
  local name=$1 nth=0 queue host nics=()
  shift
  add_hosts
  for queue; do
    ip link add "m$nth" netns a type veth peer name "m$nth" netns b
    for host in a b; do
      # Packets are lost one by one, not as the bursts that a NIC cuts up.
      ip -n $host link set "m$nth" gso_max_segs 1
      # shellcheck disable=SC2086
      on $host tc qdisc add dev "m$nth" root netem rate "${rate}mbit" limit 2000 $queue
    done
    add_address "m$nth" "10.6.$nth"
    nics+=("m$nth")
    nth=$((nth + 1))
  done
  on b socat -u UNIX-LISTEN:to.t CREATE:to.out &
  join_hosts 10.6.0.2 to -- "${nics[@]}"
  local begin end sent=()
  begin=$(date +%s%N)
  on a socat -u OPEN:data UNIX-CONNECT:to.s
  while [ "$(stat -c %s to.out 2>/dev/null || echo 0)" -lt "$bytes" ]; do sleep 0.02; done
  end=$(date +%s%N)
  cmp data to.out
  for nic in "${nics[@]}"; do sent+=("$(on a cat "/sys/class/net/$nic/statistics/tx_bytes")"); done
  kbit=$((bytes * 8000000 / (end - begin)))
  echo "$name: $kbit kb/s; sent by path: ${sent[*]} bytes"
  remove_hosts
}

# at_least SHARE OF - fails unless $kbit is at least that share of OF, in per cent.
at_least() { [ $((kbit * 100)) -ge $(($1 * $2)) ] || fail "less than $1 % of $2 kb/s"; }

long='delay 25ms'
try 'the clean path alone' ''
alone=$kbit
try '50 ms and 0.1 % of loss beside the clean path' '' "$long loss 0.1%"
at_least 80 "$alone"
try '50 ms on both' "$long" "$long"
at_least 90 $((2000 * rate))
exit "$failed"
