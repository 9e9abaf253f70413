#!/usr/bin/env bash
# rdma.sh [SKEIN] - sends data between two emulated machines (scripts/emulated.sh) whose NICs do RDMA in software
# (soft-RoCE, rdma_rxe), over two rails: `skein tunnel` has to use RDMA on both, by libfabric, and what arrives has to
# be what was sent, also when one rail or both break off in the middle. SKEIN is the program; without it
# target/release/skein. It is about what holds, and not about speed: the machines are slow, and want one that is not
# busy.
#
# The machine a runs the test, and tells b over a third link what to do. What both say is in target/rdma. TRIES names
# what is tried. RDMA is the option that the tunnel and the agent get: "--rdma auto", or nothing if SKEIN has no such
# option; all is tried over TCP then. FABRIC are variables for libfabric.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
work=$PWD/target/rdma
skip() { echo "rdma: skipped: $*" >&2; exit 3; }

if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  [ -x "$skein" ] || skip "no program $skein"
  for program in rdma socat; do command -v $program >/dev/null || skip "no $program"; done
  [ -n "$(ldconfig -p | sed -n '/libfabric\.so\.1/p')" ] || skip "no libfabric1"
  # What libibverbs needs for rxe.
  compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' >/dev/null || skip "no ibverbs-providers"
  # The first machine unpacks its kernel.
  [ target/emulated/initrd -nt scripts/emulated.sh ] || scripts/emulated.sh true >/dev/null || exit $?
  mkdir -p "$work"
  if [ ! -x "$work/usr/bin/fi_pingpong" ]; then
    (cd "$work" && apt-get -qq download libfabric-bin 2>/dev/null) || skip "apt cannot download libfabric-bin"
    dpkg-deb -x "$work"/libfabric-bin_*.deb "$work"
    rm -f "$work"/*.deb
  fi
  if [ -z "${RDMA+set}" ]; then
    options=$("$skein" tunnel --help)
    case $options in *' --rdma '*) RDMA='--rdma auto' ;; *) RDMA= ;; esac
  fi
  # libfabric makes queues for 256 peers, which are larger than rxe has them.
  settings=("RDMA=$RDMA" "FABRIC=${FABRIC-FI_UNIVERSE_SIZE=16}"
    "TRIES=${TRIES-both-rails one-is-cut-at-b one-is-cut-at-a both-are-cut}")

  run=$(mktemp -d "$work/run.XXXXXX")
  # stop HOST - ends a machine, if it runs.
  stop() { [ ! -e "$run/$1.pid" ] || kill "$(cat "$run/$1.pid")" 2>/dev/null || true; }
  trap 'stop a; stop b; wait; rm -rf "$run"' EXIT
  (cd "$run" && "$skein" ca --dir ca init --name rdma && for host in a b; do "$skein" ca --dir ca issue $host; done) \
    >/dev/null
  # machine HOST - runs a machine. Sockets, which b makes, join its NICs with the other's. A frame of 9000 bytes holds a
  # packet of RDMA with 4096.
  machine() {
    local nic arguments="-pidfile $run/$1.pid" server=off
    [ "$1" = a ] || server=on
    for nic in 0 1 2; do
      arguments+=" -netdev stream,id=n$nic,server=$server,addr.type=unix,addr.path=$run/link$nic"
      arguments+=" -device virtio-net-pci,netdev=n$nic,mac=52:54:00:00:0$nic:0$1,host_mtu=9000"
    done
    EMULATED_MIB=1536 EMULATED_SECONDS=1200 EMULATED_QEMU=$arguments \
      scripts/emulated.sh env "${settings[@]}" "$PWD/scripts/rdma.sh" "$skein" "$1" "$run/ca/hosts"
  }
  machine b >"$work/b.log" 2>&1 &
  for _ in $(seq 100); do [ ! -S "$run/link2" ] || break; sleep 0.1; done
  status=0
  machine a 2>&1 | tee "$work/a.log" || status=$?
  [ $status = 0 ] || { echo "the machine b:"; tail -n 20 "$work/b.log"; }
  exit $status
fi

host=$2 identities=$3
failed=0
fail() { echo "FAILED: $*"; failed=1; }
# say WORDS... - says something, behind the seconds that this machine has run.
say() { echo "$(cut -d ' ' -f 1 /proc/uptime): $*"; }
mkdir /run/rdma
cd /run/rdma
ulimit -l unlimited

# eth0 and eth1 are the rails, and a's addresses end in 1, b's in 2.
declare -A number=([a]=1 [b]=2)
for nic in 0 1 2; do
  ip addr add "10.7.$nic.${number[$host]}/24" dev eth$nic
  ip link set eth$nic up
done
for rail in 0 1; do rdma link add rxe$rail type rxe netdev eth$rail; done
say "rxe is up on $host"
if [ "$host" = b ]; then
  # Runs what a says, until the machine is stopped.
  socat -t 600 TCP-LISTEN:7000,fork,reuseaddr EXEC:/bin/bash,nofork
  exit
fi

# on HOST COMMAND... - runs a command on a host. What b leaves running must not hold on to its output.
on() {
  local host=$1 said
  shift
  if [ "$host" = a ]; then "$@"; return; fi
  said=$({ echo 'cd /run/rdma; ulimit -l unlimited'; printf '%q ' "$@"; printf '\necho "status $?"\n'; } |
    socat -t 600 - TCP:10.7.2.2:7000,connect-timeout=5)
  sed '$d' <<<"$said"
  return "${said##*status }"
}
# eventually SECONDS COMMAND... - whether the command succeeds within this time.
eventually() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.3; done
}
eventually 60 on b true 2>/dev/null || { echo "b does not come"; exit 1; }
say "both machines are there"

# carried RAIL - how many packets of RDMA the rail has sent from here.
carried() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }

# ---- libfabric alone ----
for rail in 0 1; do
  pingpong=(timeout 60 env FI_UNIVERSE_SIZE=16 "$work/usr/bin/fi_pingpong" -p 'verbs;ofi_rxm' -e rdm -d "rxe$rail"
    -c -I 50 -S 65536)
  before=$(carried $rail)
  on b bash -c "$(printf '%q ' "${pingpong[@]}") >pingpong.log 2>&1 </dev/null &"
  sleep 1
  "${pingpong[@]}" "10.7.$rail.2" >pingpong.log || { fail "nothing passes rail $rail"; on b cat pingpong.log; }
  say "fi_pingpong, rail $rail: $(tail -n 1 pingpong.log | tr -s ' '); $(($(carried $rail) - before)) packets of RDMA"
done

# ---- Skein ----
# state - what the tunnel says of itself: its last whole line.
state() { tail -n 2 tunnel.json | grep -m 1 '}$'; }
# of RAIL FIELD - a number that the tunnel tells of a rail's path; "-" if there is no such path.
of() {
  local said
  said=$(state | grep -o "{\"nic\":\"eth$1\"[^{}]*" | grep -o "\"$2\":[0-9]*" | cut -d : -f 2) || true
  echo "${said:--}"
}
# over RAIL - by what the rail's connections go: rdma, tcp, both, or nothing.
over() {
  local all some
  all=$(of "$1" data_connections) some=$(of "$1" rdma_connections)
  case $all:$some in
    -:* | 0:*) echo nothing ;;
    *:- | *:0) echo tcp ;;
    *) if [ "$all" = "$some" ]; then echo rdma; else echo both; fi ;;
  esac
}
rails_are() { [ "$(over 0) $(over 1)" = "$*" ]; }

usual='tcp tcp'
[ -z "$RDMA" ] || usual='rdma rdma'
# shellcheck disable=SC2206
options=(--nic eth0 --nic eth1 $RDMA)
# shellcheck disable=SC2086
agent="$(printf '%q ' env $FABRIC "$skein" agent --tunnels-only --identity "$identities/b" "${options[@]}" \
  --allow '/run/rdma/*.t') >agent.log 2>&1 </dev/null & echo \$! >agent.pid"

# join - starts b's agent and the tunnel, and waits until the rails are as they should be.
join() {
  on b bash -c "$agent"
  eventually 30 on b grep -q ^ready agent.log || fail "$name: the agent does not start"
  rm -f to.s
  : >tunnel.json
  # shellcheck disable=SC2086
  env $FABRIC "$skein" tunnel --json --identity "$identities/a" --to 10.7.0.2:7070 "${options[@]}" \
    -L "$PWD/to.s=$PWD/to.t" >tunnel.json 2>tunnel.log &
  tunnel=$!
  # shellcheck disable=SC2086
  eventually 60 rails_are $usual || fail "$name: the rails are $(over 0) and $(over 1), not $usual"
}

# part - ends both, which have to be there still.
part() {
  # shellcheck disable=SC2016 # expanded on b
  local end='kill $(cat agent.pid) && timeout 20 tail --pid=$(cat agent.pid) -f /dev/null'
  kill $tunnel || fail "$name: the tunnel has died"
  on b bash -c "$end" || fail "$name: the agent has died, or does not end"
  timeout 20 tail --pid=$tunnel -f /dev/null || { fail "$name: the tunnel does not end"; kill -KILL $tunnel; }
  wait $tunnel 2>/dev/null || true
}

# try NAME [COMMAND...] - sends the data by a new tunnel. The command is run when a quarter was sent.
bytes=20000000
try() {
  local before since rail socat packets=() had=$failed
  name=$1
  shift
  case " $TRIES " in *" $name "*) ;; *) return 0 ;; esac
  join
  say "$name: the rails are $(over 0) and $(over 1)"
  before=("$(carried 0)" "$(carried 1)")
  # shellcheck disable=SC2016
  on b bash -c 'rm -f to.*; { socat -u UNIX-LISTEN:to.t CREATE:to.out; touch to.done; } >/dev/null 2>&1 </dev/null &'
  eventually 10 on b test -S to.t || fail "$name: nobody listens on b"
  since=$SECONDS
  { head -c $((bytes / 4)); echo >&3; cat; } <data | timeout 150 socat -u STDIN UNIX-CONNECT:to.s &
  socat=$!
  read -rt 100 -u 3 || fail "$name: little is sent"
  "$@"
  wait $socat || fail "$name: the tunnel does not take all"
  eventually 60 on b test -e to.done || fail "$name: not all arrives"
  [ "$(sha256sum <data)" = "$(on b bash -c 'sha256sum <to.out')" ] || fail "$name: other data arrived"
  for rail in 0 1; do packets+=($(($(carried $rail) - before[rail]))); done
  say "$name: took $((SECONDS - since)) s; the rails are $(over 0) and $(over 1), and have sent ${packets[*]} packets" \
    "of RDMA"
  if [ $# = 0 ] && [ -n "$RDMA" ]; then
    # Both rails have their part, a tenth at least; a packet has 4096 bytes at most.
    for rail in 0 1; do
      [ "${packets[rail]}" -ge $((bytes / 4096 / 10)) ] || fail "$name: too little goes over rail $rail by RDMA"
    done
    # shellcheck disable=SC2086
    rails_are $usual || fail "$name: the rails are $(over 0) and $(over 1) in the end"
  fi
  part
  [ "$failed" = 0 ] || { echo "the tunnel:"; cat tunnel.log; echo "the agent:"; on b cat agent.log; }
  failed=$((failed | had))
}

head -c "$bytes" /dev/urandom >data
# Says that a quarter was taken.
mkfifo quarter
exec 3<>quarter
both_cut() {
  ip link set eth0 down; ip link set eth1 down
  sleep 5
  ip link set eth0 up; ip link set eth1 up
}
try both-rails
# Here nothing tells a of it.
try one-is-cut-at-b on b ip link set eth1 down
on b ip link set eth1 up
try one-is-cut-at-a ip link set eth0 down
ip link set eth0 up
try both-are-cut both_cut
# What guests do goes here: a guest without a kernel, with QEMU's `-device loader,file=data,addr=0x1000000`, is there in
# seconds, and pmemsave says what the target has.
exit "$failed"
