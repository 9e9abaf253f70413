#!/usr/bin/env bash
# bond.sh [SKEIN] - sends data over bonds of two members between two agents, in an emulated machine
# (scripts/emulated.sh), as bonding takes a kernel's module: for each mode and hash it says how much each member sent in
# either direction.
# Where connections' ports decide (802.3ad and balance-xor by layer3+4), members have to be within 10 % of each other;
# else one member has to carry all. SKEIN is the program; without it target/release/skein.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
[ -n "${SKEIN_OWN_KERNEL-}" ] || exec env EMULATED_SECONDS=1800 scripts/emulated.sh "$PWD/scripts/bond.sh" "$skein"
. scripts/two-hosts.sh

# Each member's rate in Mb/s: the machine is slow. The bytes that are sent in each direction.
rate=16 bytes=64000000
head -c "$bytes" /dev/urandom >data
sent() { on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }
declare -A lacp=([802.3ad]='lacp_rate fast')

# try MODE HASH - makes the bonds, and sends both ways.
try() {
  local mode=$1 hash=$2 host nic
  add_hosts
  for nic in m0 m1; do
    ip link add $nic netns a type veth peer name $nic netns b
    for host in a b; do
      on $host tc qdisc add dev $nic root tbf rate "${rate}mbit" burst 20k latency 200ms
    done
  done
  for host in a b; do
    # shellcheck disable=SC2086
    ip -n $host link add bond0 type bond mode "$mode" xmit_hash_policy "$hash" miimon 100 ${lacp[$mode]-}
    for nic in m0 m1; do ip -n $host link set $nic master bond0; ip -n $host link set $nic up; done
  done
  add_address bond0 10.5.0
  for _ in $(seq 100); do on a ping -c 1 -W 1 10.5.0.2 >/dev/null 2>&1 && break; sleep 0.2; done
  sleep 4
  on b socat -u UNIX-LISTEN:forth.t,fork CREATE:forth.out &
  on b socat -u OPEN:data UNIX-LISTEN:back.t &
  join_hosts 10.5.0.2 forth back -- bond0
  local before=("$(sent a m0)" "$(sent a m1)" "$(sent b m0)" "$(sent b m1)")
  local begin=$SECONDS
  on a socat -u OPEN:data UNIX-CONNECT:forth.s
  on a socat -u UNIX-CONNECT:back.s CREATE:back.out
  local took=$((SECONDS - begin))
  sleep 2
  local after=("$(sent a m0)" "$(sent a m1)" "$(sent b m0)" "$(sent b m1)")
  local forth=("$((after[0] - before[0]))" "$((after[1] - before[1]))")
  local back=("$((after[2] - before[2]))" "$((after[3] - before[3]))")
  cmp data forth.out; cmp data back.out
  echo "$mode $hash: a to b ${forth[*]}, b to a ${back[*]} bytes, in $took s; $(grep -o 'bond0 (.*' a.log | head -n 1)"
  for way in "${forth[*]}" "${back[*]}"; do
    # shellcheck disable=SC2086
    set -- $way
    local most=$(($1 > $2 ? $1 : $2)) least=$(($1 > $2 ? $2 : $1))
    case $mode-$hash in
      802.3ad-layer3+4 | balance-xor-layer3+4)
        [ $((least * 10)) -ge $((most * 9)) ] || fail 'members are not even' ;;
      *) [ $((least * 10)) -le "$most" ] || fail 'more than one member carries it' ;;
    esac
  done
  remove_hosts
}

for case in 'balance-xor layer3+4' '802.3ad layer3+4' 'balance-xor layer2' 'active-backup layer2'; do
  # shellcheck disable=SC2086
  try $case
done
exit "$failed"
