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
[ -n "${BOND_INSIDE-}" ] || exec env EMULATED_SECONDS=1800 scripts/emulated.sh env BOND_INSIDE=1 "$PWD/$0" "$skein"

# Each member's rate in Mb/s: the machine is slow. The bytes that are sent in each direction.
rate=${BOND_RATE:-16} bytes=${BOND_BYTES:-64000000}
dir=$(mktemp -d)
cd "$dir"
head -c "$bytes" /dev/urandom >data
"$skein" ca --dir ca init --name bonds >/dev/null
for host in a b; do "$skein" ca --dir ca issue "$host" >/dev/null; done
on() { ip netns exec "$@"; }
sent() { on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }
declare -A lacp=([802.3ad]='lacp_rate fast')
failed=0

# try MODE HASH - makes the bonds, and sends both ways.
try() {
  local mode=$1 hash=$2 host nic number=1
  for host in a b; do ip netns add $host; ip -n $host link set lo up; done
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
    ip -n $host addr add 10.5.0.$number/24 dev bond0
    ip -n $host link set bond0 up
    number=2
  done
  for _ in $(seq 100); do on a ping -c 1 -W 1 10.5.0.2 >/dev/null 2>&1 && break; sleep 0.2; done
  sleep 4
  on b "$skein" agent --tunnels-only --identity ca/hosts/b --listen '[::]:7070' --nic bond0 --allow "$dir/*.t" \
    >b.log 2>&1 &
  local agent=$!
  sleep 2
  on b socat -u UNIX-LISTEN:forth.t,fork CREATE:forth.out &
  on b socat -u OPEN:data UNIX-LISTEN:back.t &
  on a "$skein" tunnel --identity ca/hosts/a --to 10.5.0.2:7070 --nic bond0 \
    -L "$dir/forth.s=$dir/forth.t" -L "$dir/back.s=$dir/back.t" >a.log 2>&1 &
  local tunnel=$!
  for _ in $(seq 150); do grep -q '^ready' a.log && break; sleep 0.2; done
  # The path's further connections come by and by.
  sleep 3
  local before=("$(sent a m0)" "$(sent a m1)" "$(sent b m0)" "$(sent b m1)")
  on a socat -u OPEN:data UNIX-CONNECT:forth.s
  on a socat -u UNIX-CONNECT:back.s CREATE:back.out
  sleep 2
  local after=("$(sent a m0)" "$(sent a m1)" "$(sent b m0)" "$(sent b m1)")
  local forth=("$((after[0] - before[0]))" "$((after[1] - before[1]))")
  local back=("$((after[2] - before[2]))" "$((after[3] - before[3]))")
  cmp data forth.out; cmp data back.out
  kill "$tunnel" "$agent"; wait "$tunnel" "$agent" 2>/dev/null || true
  echo "$mode $hash: a to b ${forth[*]}, b to a ${back[*]} bytes; $(grep -o 'bond0 (.*' a.log | head -n 1)"
  for way in "${forth[*]}" "${back[*]}"; do
    # shellcheck disable=SC2086
    set -- $way
    local most=$(($1 > $2 ? $1 : $2)) least=$(($1 > $2 ? $2 : $1))
    case $mode-$hash in
      802.3ad-layer3+4 | balance-xor-layer3+4)
        [ $((least * 10)) -ge $((most * 9)) ] || { echo "FAILED: members are not even"; failed=1; } ;;
      *) [ $((least * 10)) -le "$most" ] || { echo "FAILED: more than one member carries it"; failed=1; } ;;
    esac
  done
  ip netns pids a | xargs -r kill 2>/dev/null || true
  ip netns pids b | xargs -r kill 2>/dev/null || true
  ip netns del a; ip netns del b
  rm -f ./*.s ./*.t ./*.out
}

for case in 'balance-xor layer3+4' '802.3ad layer3+4' 'balance-xor layer2' 'active-backup layer2'; do
  # shellcheck disable=SC2086
  try $case
done
exit "$failed"
