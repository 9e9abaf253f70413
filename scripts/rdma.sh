#!/usr/bin/env bash
# rdma.sh [SKEIN] - sends data between two emulated machines (scripts/emulated.sh) whose NICs do RDMA in software
# (soft-RoCE, rdma_rxe), over two rails: `skein tunnel` has to use RDMA on both, by libfabric, and agents move a guest's
# RAM so. What arrives has to be what was sent, also when one rail or both break off in the middle. SKEIN is the
# program; without it target/release/skein. It is about what holds, and not about speed: the machines are slow, and want
# one that is not busy. DEVICE=siw is soft-iWARP (scripts/siw.sh) instead of soft-RoCE.
#
# The machine a runs the test, and tells b over a third link what to do. What both say is in target/rdma. TRIES names
# what is tried; each has machines of its own, as rxe of Linux 6.1 sets no connection up on a NIC that was down before.
# A try in which RDMA did not begin in time, as on a busy machine, says nothing: it is made so often (ATTEMPTS, 3). Ends
# with 4 if one never said anything, and no other failed. RDMA is the option that the tunnel and the agent get: "--rdma
# auto", or nothing if SKEIN has no such option; all is tried over TCP then. FABRIC are variables for libfabric.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
work=$PWD/target/rdma
device=${DEVICE-rxe}
# The status of a try in which RDMA did not begin in time.
is_late=4
skip() { echo "rdma: skipped: $*" >&2; exit 3; }

if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  [ -x "$skein" ] || skip "no program $skein"
  for program in rdma socat; do command -v $program >/dev/null || skip "no $program"; done
  [ -n "$(ldconfig -p | sed -n '/libfabric\.so\.1/p')" ] || skip "no libfabric1"
  # What libibverbs needs for the device.
  compgen -G "/usr/lib/*/libibverbs/lib$device-rdmav*.so" >/dev/null || skip "no ibverbs-providers"
  # The first machine unpacks its kernel.
  [ target/emulated/initrd -nt scripts/emulated.sh ] || scripts/emulated.sh true >/dev/null || exit $?
  module=
  if [ "$device" = siw ]; then module=$(scripts/siw.sh) || exit $?; fi
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
  tries=${TRIES-both-rails one-is-cut-at-b one-is-cut-at-a both-are-cut guest-sealed guest-one-sided \
guest-one-rail-cut guest-both-rails-cut}

  run=$(mktemp -d "$work/run.XXXXXX")
  # Emulated machines read this machine's files slowly, and a program with its symbols is long.
  if strip -o "$run/skein" "$skein" 2>/dev/null; then skein=$run/skein; fi
  # stop HOST - ends a machine, if it runs.
  stop() { [ ! -e "$run/$1.pid" ] || kill "$(cat "$run/$1.pid")" 2>/dev/null || true; }
  trap 'stop a; stop b; wait; rm -rf "$run"' EXIT
  (cd "$run" && "$skein" ca --dir ca init --name rdma && for host in a b; do "$skein" ca --dir ca issue $host; done) \
    >/dev/null
  head -c 50000000 /dev/urandom >"$run/data"
  # machine HOST TRY - runs a machine. Sockets, which b makes, join its NICs with the other's. A frame of 9000 bytes
  # holds a packet of RDMA with 4096.
  machine() {
    local nic arguments="-pidfile $run/$1.pid" server=off
    [ "$1" = a ] || server=on
    for nic in 0 1 2; do
      arguments+=" -netdev stream,id=n$nic,server=$server,addr.type=unix,addr.path=$run/link$nic"
      arguments+=" -device virtio-net-pci,netdev=n$nic,mac=52:54:00:00:0$nic:0$1,host_mtu=9000"
    done
    EMULATED_MIB=1536 EMULATED_SECONDS=1200 EMULATED_QEMU=$arguments scripts/emulated.sh env "RDMA=$RDMA" \
      "FABRIC=${FABRIC-}" "DEVICE=$device" "MODULE=$module" "TRY=$2" \
      "$PWD/scripts/rdma.sh" "$skein" "$1" "$run/ca/hosts" "$run/data"
  }
  # pair TRY - runs both machines.
  pair() {
    local status=0
    rm -f "$run"/link*
    machine b "$1" >"$work/b.log" 2>&1 &
    for _ in $(seq 100); do [ ! -S "$run/link2" ] || break; sleep 0.1; done
    machine a "$1" 2>&1 | tee "$work/a.log" || status=$?
    [ $status = 0 ] || { echo "the machine b:"; tail -n 20 "$work/b.log"; }
    stop b
    wait
    return $status
  }
  failed=0 silent=0
  for try in $tries; do
    for _ in $(seq "${ATTEMPTS:-3}"); do
      status=0
      echo "$try"
      pair "$try" || status=$?
      [ $status = $is_late ] || break
    done
    case $status in 0) ;; "$is_late") silent=1 ;; *) failed=1 ;; esac
  done
  [ $failed = 0 ] || exit 1
  [ $silent = 0 ] || exit $is_late
  exit 0
fi

host=$2 identities=$3 data=$4
wrong=0 late=0 other=0
fail() { echo "FAILED: $*"; wrong=1; }
# differs WORDS... - says that what arrived is not what was sent.
differs() { fail "$@"; other=1; }
# late WORDS... - says that RDMA did not begin in time, so that the rest says nothing.
late() { echo "LATE: $*"; late=1; }
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
[ -z "$MODULE" ] || "${work%/*}/emulated/root/bin/busybox" insmod "$MODULE"
for rail in 0 1; do rdma link add $device$rail type $device netdev eth$rail; done
say "$device is up on $host"
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

# carried RAIL - how many packets of RDMA the rail has sent from here. siw does not count: all that its NIC has sent.
carried() {
  local counter=/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts
  if [ -e "$counter" ]; then cat "$counter"; else echo $(($(cat "/sys/class/net/eth$1/statistics/tx_bytes") / 4096)); fi
}

# ---- libfabric alone ----
for rail in 0 1; do
  pingpong=(timeout 60 env FI_UNIVERSE_SIZE=16 "$work/usr/bin/fi_pingpong" -p 'verbs;ofi_rxm' -e rdm -d "$device$rail"
    -c -I 20 -S 65536)
  before=$(carried $rail)
  on b bash -c "$(printf '%q ' "${pingpong[@]}") >pingpong.log 2>&1 </dev/null &"
  sleep 1
  "${pingpong[@]}" "10.7.$rail.2" >pingpong.log || { fail "nothing passes rail $rail"; on b cat pingpong.log; }
  say "fi_pingpong, rail $rail: $(tail -n 1 pingpong.log | tr -s ' '); $(($(carried $rail) - before)) packets of RDMA"
done

# ---- Skein ----
# shellcheck disable=SC2206
options=(--nic eth0 --nic eth1 $RDMA)
# So many packets of RDMA each rail sends at least before anything is cut. One has 4096 bytes at most.
some=100

# tried HOW NAME ARGUMENTS... - tries something, if it is wanted.
tried() {
  local how=$1
  name=$2
  shift 2
  [ "$TRY" != "$name" ] || "$how" "$@"
}
# begin HOST OPTIONS... - has an agent run on a host.
begin() {
  local at=$1 command
  shift
  # shellcheck disable=SC2086
  command=$(printf '%q ' env $FABRIC "$skein" agent --identity "$identities/$at" "${options[@]}" "$@")
  on "$at" bash -c "$command >agent.log 2>&1 </dev/null & echo \$! >agent.pid"
  eventually 60 on "$at" grep -q ^ready agent.log || fail "$name: the agent of $at does not start"
}
# end HOST - ends its agent, which has to be there still.
end() {
  # shellcheck disable=SC2016 # expanded there
  on "$1" bash -c 'kill $(cat agent.pid) && timeout 30 tail --pid=$(cat agent.pid) -f /dev/null' ||
    fail "$name: the agent of $1 has died, or does not end"
}
# count - remembers what the rails have sent by RDMA so far; packets - what each has sent since.
count() { before=("$(carried 0)" "$(carried 1)"); }
packets() { echo "$(($(carried 0) - before[0])) $(($(carried 1) - before[1]))"; }
# each_sent NUMBER - whether each rail has sent so many since.
each_sent() {
  local sent
  # shellcheck disable=SC2207
  sent=($(packets))
  [ "${sent[0]}" -ge "$1" ] && [ "${sent[1]}" -ge "$1" ]
}
# break_off COMMAND... - runs the command, which breaks something off. From before that until `still` b writes down five
# times a second, behind its clock, how long to.out is and how much has come by the rails' NICs.
break_off() {
  # shellcheck disable=SC2016 # expanded on b
  on b bash -c 'while sleep 0.2; do
      read -r clock _ </proc/uptime
      read -r one </sys/class/net/eth0/statistics/rx_bytes; read -r two </sys/class/net/eth1/statistics/rx_bytes
      echo "$clock $(stat -c %s to.out || echo 0) $((one + two))"
    done >watch.log 2>/dev/null </dev/null & echo $! >watch.pid'
  when=$(on b awk '{ print $1 }' /proc/uptime)
  "$@"
}
# still COLUMN BYTES - for how many seconds at most no more than so many bytes came between two looks.
still() {
  # shellcheck disable=SC2016 # expanded on b
  on b bash -c 'kill $(cat watch.pid); cat watch.log' | awk -v column="$1" -v few="$2" -v moved="$when" '
    NR > 1 && $1 > moved && $column - had > few { if ($1 - moved > most) most = $1 - moved; moved = $1 }
    { had = $column }
    END { printf "%.1f", most }'
}
# narrow, wide - what a sends by a rail has little room, or all.
narrow() {
  local rail
  for rail in 0 1; do tc qdisc replace dev eth$rail root tbf rate 4mbit burst 20kb latency 100ms; done
}
wide() {
  local rail
  for rail in 0 1; do tc qdisc del dev eth$rail root 2>/dev/null || true; done
}
both_down() {
  ip link set eth0 down; ip link set eth1 down
  sleep 5
  ip link set eth0 up; ip link set eth1 up
}
# logs FILES... - what a has to say if the try failed, and the agent of b.
logs() {
  local file
  local often=' stalls: \| moves again \|is composed of is not known now'
  for file in "$@"; do echo "a's $file:"; sed "/$often/d" "$file" | tail -n 60; done
  echo "b's agent.log:"
  on b sed "/$often/d" agent.log | tail -n 60
}

# ---- tunnels ----
# state - what the tunnel says of itself: its last whole line.
state() { tail -n 2 tunnel.json | grep -m 1 '}$'; }
# of RAIL FIELD - a number that the tunnel tells of a rail's path; "-" if there is no such path.
of() {
  local said
  said=$(state | grep -o "{\"nic\":\"eth$1\"[^{}]*" | grep -o "\"$2\":[0-9]*" | sed 's/.*://') || true
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
# rails_are_back - whether each rail's path carries data again, over TCP or RDMA.
rails_are_back() { [ "$(over 0)" != nothing ] && [ "$(over 1)" != nothing ]; }
usual='tcp tcp'
[ -z "$RDMA" ] || usual='rdma rdma'

# try [COMMAND...] - sends the data by a new tunnel: the first tenth, by which the rails come to use RDMA, then
# the rest, and runs the command when a quarter of that was sent.
bytes=20000000
try() {
  local since socat tunnel sent still=''
  begin b --tunnels-only --allow '/run/rdma/*.t'
  rm -f to.s agent.log
  : >tunnel.json
  # shellcheck disable=SC2086
  env $FABRIC "$skein" tunnel --json --identity "$identities/a" --to 10.7.0.2:7070 "${options[@]}" \
    -L "$PWD/to.s=$PWD/to.t" >tunnel.json 2>tunnel.log &
  tunnel=$!
  # shellcheck disable=SC2016
  on b bash -c 'rm -f to.*; { socat -u UNIX-LISTEN:to.t CREATE:to.out; touch to.done; } >/dev/null 2>&1 </dev/null &'
  eventually 20 on b test -S to.t || fail "$name: nobody listens on b"
  eventually 60 rails_are tcp tcp || fail "$name: the rails are $(over 0) and $(over 1) at first, not tcp"
  {
    head -c $((bytes / 10))
    read -r -u 4
    head -c $((bytes / 4))
    echo >&3
    cat
  } <sent | timeout 200 socat -u STDIN UNIX-CONNECT:to.s &
  socat=$!
  # shellcheck disable=SC2086
  eventually 120 rails_are $usual || late "$name: the rails are $(over 0) and $(over 1), not $usual"
  say "$name: the rails are $(over 0) and $(over 1)"
  count
  since=$SECONDS
  # What is to be cut must not be over before.
  [ $# = 0 ] || narrow
  echo >&4
  read -rt 100 -u 3 || late "$name: little is sent"
  if [ $# -gt 0 ]; then
    [ -z "$RDMA" ] || eventually 30 each_sent $some ||
      late "$name: before the cut rails sent $(packets) packets of RDMA"
    break_off "$@"
    wide
    [ "$(on b stat -c %s to.out)" -lt $((bytes * 3 / 4)) ] || late "$name: the cut came too late"
  fi
  wait $socat || fail "$name: the tunnel does not take all"
  eventually 100 on b test -e to.done || fail "$name: not all arrives"
  [ "$(sha256sum <sent)" = "$(on b bash -c 'sha256sum <to.out')" ] ||
    differs "$name: other data arrived"
  [ $# = 0 ] || still="; stood still for $(still 2 0) s at most since the cut"
  [ "${1-}" != both_down ] || eventually 60 rails_are_back ||
    fail "$name: the rails are $(over 0) and $(over 1) in the end"
  sent=$(packets)
  say "$name: took $((SECONDS - since)) s; the rails are $(over 0) and $(over 1), and have sent $sent packets" \
    "of RDMA$still"
  if [ $# = 0 ] && [ -n "$RDMA" ]; then
    # Both rails have their part, a tenth at least.
    each_sent $((bytes / 4096 / 10)) || late "$name: too little goes over a rail by RDMA"
    # shellcheck disable=SC2086
    rails_are $usual || late "$name: the rails are $(over 0) and $(over 1) in the end"
  fi
  kill $tunnel || fail "$name: the tunnel has died"
  end b
  timeout 20 tail --pid=$tunnel -f /dev/null || { fail "$name: the tunnel does not end"; kill -KILL $tunnel; }
  wait $tunnel 2>/dev/null || true
  [ $((wrong + late)) = 0 ] || logs tunnel.log
}

# Says that a quarter was taken, and that the rest may go.
head -c $bytes "$data" >sent
mkfifo quarter rest
exec 3<>quarter 4<>rest
tried try both-rails
# Here nothing tells a of it.
tried try one-is-cut-at-b on b ip link set eth1 down
tried try one-is-cut-at-a ip link set eth0 down
tried try both-are-cut both_down

# ---- guests ----
# A guest that boots nothing, and whose RAM has the data: it is there in seconds. Its firmware uses the first MiB, and
# the last 16.
export SKEIN_SOCKET=/run/rdma/skein/agent.sock
for at in a b; do
  printf '[[host]]\nname = "%s"\naddress = ["10.7.0.%s", "10.7.1.%s"]\n' $at ${number[$at]} ${number[$at]}
done >hosts.toml
on b bash -c "echo $(printf %q "$(cat hosts.toml)") >hosts.toml"
cat >v.toml <<VM
name = "v"
memory = "80 MiB"
accel = "tcg"
[qemu]
args = ["-device", "loader,file=$data,addr=0x1000000,force-raw=on",
  "-qmp", "unix:/run/rdma/v.qmp,server=on,wait=off"]
VM
# A file, and not this shell's lines: b runs it, too.
cat >ram.sh <<'RAM'
rm -f ram; : >said
{ printf '%s\n' '{"execute":"qmp_capabilities"}' '{"execute":"pmemsave","arguments":{"val":16777216,"size":'$1',
  "filename":"/run/rdma/ram"}}'
  for _ in $(seq 300); do [ "$(grep -c '"return"\|"error"' said)" -lt 2 ] || break; sleep 0.1; done
} | socat -t 1 - UNIX-CONNECT:v.qmp >said
cmp ram "$2" || { cat said; exit 1; }
RAM
on b bash -c "echo $(printf %q "$(cat ram.sh)") >ram.sh"

# has_rails HOST - whether the agent has opened both of the host's rails.
has_rails() { [ "$(on "$1" grep -c 'RDMA at .* by verbs' agent.log)" = 2 ]; }
# by_nics - whether NICs have written into the guest's RAM.
by_nics() { "$skein" migration show v 2>/dev/null | grep -q 'by NICs'; }
# guest PLAINTEXT [COMMAND...] - moves the guest from a to b, and runs the command in the middle. The migration is slow
# until RDMA is used, so that the guest is not there before.
guest() {
  local plaintext=$1 at move since sent status=0 still=''
  shift
  rm -f tunnel.log
  for at in a b; do
    on $at rm -rf state skein v.qmp
    begin $at --rdma-plaintext "$plaintext" --state /run/rdma/state --run /run/rdma/skein --hosts /run/rdma/hosts.toml \
      --qemu "$SKEIN_QEMU"
    [ -z "$RDMA" ] || eventually 120 has_rails $at || late "$name: $at has no rails"
  done
  "$skein" vm start v.toml >start.log 2>&1 || { fail "$name: the guest does not start"; cat start.log; }
  say "$name: the guest runs"
  # Agents ask each other and their QEMUs much at first.
  eventually 120 "$skein" migrate v --to b --check >check.log 2>&1 || { fail "$name: it cannot move"; cat check.log; }
  count
  since=$SECONDS
  "$skein" migrate v --to b --transport multichannel ${RDMA:+--rate 8Mbit/s} --json >migrate.json 2>migrate.log &
  move=$!
  if [ -n "$RDMA" ]; then
    eventually 120 each_sent $some || late "$name: the rails send $(packets) packets of RDMA only"
    # iWARP's writes are said to be done before they are there: no guest's RAM is written so.
    [ "$plaintext" = deny ] || [ "$device" = siw ] ||
      eventually 120 by_nics || late "$name: NICs write nothing into the guest's RAM"
    [ "$device" != siw ] || ! by_nics || fail "$name: NICs of iWARP write into the guest's RAM"
    say "$name: the rails have sent $(packets) packets of RDMA after $((SECONDS - since)) s"
  fi
  if [ $# -gt 0 ]; then
    break_off "$@"
    kill -0 $move || late "$name: the cut came too late"
  fi
  [ -z "$RDMA" ] || "$skein" migration limit v none >limit.log || cat limit.log
  wait $move || { status=$?; fail "$name: the migration ended with $status"; }
  [ $# = 0 ] || still="; stood still for $(still 3 20000) s at most since the cut"
  sent=$(packets)
  say "$name: took $((SECONDS - since)) s; the rails have sent $sent packets of RDMA$still"
  "$skein" migration show v | grep 'downtime\|placement\|sent \|as it is\|by NICs\|RDMA' || true
  on b bash ram.sh "$(stat -c %s "$data")" "$data" || differs "$name: the guest has other data at b"
  say "$name: b has the guest's RAM as it was"
  on b env SKEIN_SOCKET=$SKEIN_SOCKET "$skein" vm stop v --timeout 1 --force >stop.log ||
    { fail "$name: the guest is not at b"; cat stop.log; }
  end a
  end b
  [ $((wrong + late)) = 0 ] || logs migrate.log agent.log
}
tried guest guest-sealed deny
tried guest guest-one-sided allow
tried guest guest-one-rail-cut allow on b ip link set eth1 down
tried guest guest-both-rails-cut allow both_down
# What is broken is no matter of time.
broken=$({ cat ./*.log; on b bash -c 'cat *.log'; } 2>/dev/null |
  grep -m 3 'panicked at\|says what makes no sense\|cannot be loaded' || true)
[ -z "$broken" ] || { echo "FAILED: $broken"; other=1; }
# Other data is wrong, whether or not RDMA began; what else was not as wanted may come of that.
[ $other = 0 ] || exit 1
[ $late = 0 ] || exit $is_late
[ $wrong = 0 ] || exit 1
