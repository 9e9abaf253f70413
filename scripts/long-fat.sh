#!/usr/bin/env bash
# long-fat.sh [SKEIN] - sends data over two paths of 100 Mb/s of which one or both are long, in an emulated machine
# (scripts/emulated.sh), as delay and loss take a kernel's module. The machine's clock counts instructions, so that how
# busy this machine is changes nothing.
# With 50 ms and 0.1 % of loss on one path both have to carry at least 0.8 of what the other carries alone; with 50 ms
# on both they have to carry 0.9 of what the links have. SKEIN is the program; without it target/release/skein.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
[ -n "${LONG_FAT_INSIDE-}" ] ||
  exec env EMULATED_SECONDS=3600 EMULATED_SHIFT=0 scripts/emulated.sh env LONG_FAT_INSIDE=1 "$PWD/$0" "$skein"

# Each link's rate in Mb/s, and the bytes that are sent: enough for connections to find their rate.
rate=100 bytes=${LONG_FAT_BYTES:-150000000}
dir=$(mktemp -d)
cd "$dir"
head -c "$bytes" /dev/urandom >data
"$skein" ca --dir ca init --name long >/dev/null
for host in a b; do "$skein" ca --dir ca issue "$host" >/dev/null; done
on() { ip netns exec "$@"; }
failed=0

# try NAME QUEUE... - makes a path for each queue, a line of netem's options, and sends data from a to b. Sets $mbit.
try() {
  local name=$1 nth=0 queue host number nics=()
  shift
  for host in a b; do ip netns add $host; ip -n $host link set lo up; done
  for queue; do
    ip link add "m$nth" netns a type veth peer name "m$nth" netns b
    number=1
    for host in a b; do
      # Packets are lost one by one, not as the bursts that a NIC cuts up.
      ip -n $host link set "m$nth" gso_max_segs 1
      # shellcheck disable=SC2086
      on $host tc qdisc add dev "m$nth" root netem rate ${rate}mbit limit 2000 $queue
      ip -n $host addr add "10.6.$nth.$number/24" dev "m$nth"
      ip -n $host link set "m$nth" up
      number=2
    done
    nics+=(--nic "m$nth")
    nth=$((nth + 1))
  done
  on b "$skein" agent --tunnels-only --identity ca/hosts/b --listen '[::]:7070' "${nics[@]}" --allow "$dir/*.t" \
    >b.log 2>&1 &
  local agent=$!
  sleep 2
  on b socat -u UNIX-LISTEN:to.t CREATE:out &
  on a "$skein" tunnel --identity ca/hosts/a --to 10.6.0.2:7070 "${nics[@]}" -L "$dir/from.s=$dir/to.t" >a.log 2>&1 &
  local tunnel=$!
  for _ in $(seq 150); do grep -q '^ready' a.log && break; sleep 0.2; done
  # A path's further connections come by and by.
  sleep 3
  local begin end sent=()
  begin=$(date +%s%N)
  on a socat -u OPEN:data UNIX-CONNECT:from.s
  while [ "$(stat -c %s out 2>/dev/null || echo 0)" -lt "$bytes" ]; do sleep 0.02; done
  end=$(date +%s%N)
  cmp data out
  for ((nth = 0; nth < $#; nth++)); do sent+=("$(on a cat "/sys/class/net/m$nth/statistics/tx_bytes")"); done
  mbit=$((bytes * 8000 / (end - begin)))
  echo "$name: $mbit Mb/s; sent by path: ${sent[*]} bytes"
  kill "$tunnel" "$agent"; wait "$tunnel" "$agent" 2>/dev/null || true
  for host in a b; do ip netns pids $host | xargs -r kill 2>/dev/null || true; done
  ip netns del a; ip netns del b
  rm -f ./*.s ./*.t out
}

# at_least SHARE OF - fails unless $mbit is at least that share of OF, in per cent.
at_least() {
  [ $((mbit * 100)) -ge $(($1 * $2)) ] || { echo "FAILED: less than $1 % of $2 Mb/s"; failed=1; }
}

long='delay 25ms'
try 'the clean path alone' ''
alone=$mbit
try '50 ms and 0.1 % of loss beside the clean path' '' "$long loss 0.1%"
at_least 80 "$alone"
try '50 ms on both' "$long" "$long"
at_least 90 $((2 * rate))
exit "$failed"
