# shellcheck shell=bash
# two-hosts.sh - what the scripts share that send data between two hosts in an emulated machine: the hosts `a` and `b`
# are network namespaces with identities of one cluster, an agent runs on b, a tunnel leads there from a. To be sourced
# in a script that has $skein; changes to a directory of its own, $dir.

dir=$(mktemp -d)
cd "$dir" || exit 1
"$skein" ca --dir ca init --name two-hosts >/dev/null
for host in a b; do "$skein" ca --dir ca issue $host >/dev/null; done

# on HOST COMMAND... - runs a command on a host.
on() { ip netns exec "$@"; }

add_hosts() {
  local host
  for host in a b; do ip netns add $host; ip -n $host link set lo up; done
}

# Ends what runs on the hosts, and removes them.
remove_hosts() {
  local host
  for host in a b; do
    ip netns pids $host | xargs -r kill 2>/dev/null || true
    ip netns del $host
  done
  wait
  rm -f "$dir"/*.s "$dir"/*.t "$dir"/*.out
}

# add_address NIC NETWORK - gives a NIC of both hosts an address, NETWORK.1 and NETWORK.2, and switches the NIC on.
add_address() {
  local host number=1
  for host in a b; do
    ip -n $host addr add "$2.$number/24" dev "$1"
    ip -n $host link set "$1" up
    number=2
  done
}

# join_hosts ADDRESS_OF_B STREAM... -- NIC... - starts b's agent and the tunnel, over these NICs. A connection to the
# socket STREAM.s reaches STREAM.t. Returns when all connections of all paths are there.
join_hosts() {
  local address=$1 streams=() nics=()
  shift
  while [ "$1" != -- ]; do streams+=(-L "$dir/$1.s=$dir/$1.t"); shift; done
  shift
  for nic; do nics+=(--nic "$nic"); done
  on b "$skein" agent --tunnels-only --identity ca/hosts/b --listen '[::]:7070' "${nics[@]}" --allow "$dir/*.t" \
    >b.log 2>&1 &
  sleep 2
  on a "$skein" tunnel --identity ca/hosts/a --to "$address:7070" "${nics[@]}" "${streams[@]}" >a.log 2>&1 &
  for _ in $(seq 150); do ! grep -q '^ready' a.log || break; sleep 0.2; done
  # A path's further connections come by and by.
  sleep 3
}

# fail WORDS... - says what did not hold; the script has to end with `exit "$failed"`.
failed=0
fail() { echo "FAILED: $*"; failed=1; }
