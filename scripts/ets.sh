#!/usr/bin/env bash
# ets.sh [SKEIN] - gives migrations a share of a NIC by the kernel's ETS (`skein net qos`), in an emulated machine
# (scripts/emulated.sh), as ETS takes a kernel's module and a NIC that waits for its wire. Beside 8 foreign connections
# a migration's data has to have at least 88 % with a share of 90 %, from a second on; each has all when alone; the
# queues are the kernel's own again in the end. SKEIN is the program; without it target/release/skein.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")

# The rate of the wire in Mb/s: the machine is slow.
rate=16
if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  command -v python3 >/dev/null || { echo "ets: skipped: no python3 for the wire" >&2; exit 3; }
  wire=$(mktemp -d)
  # The wire between the machine's two NICs: takes what one sends at its rate, so that NICs wait as for a real one.
  python3 - "$wire" "$rate" <<'WIRE' &
import os, socket, sys, threading, time

def listen(name):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(sys.argv[1], name + ".new"))
    listener.listen()
    os.rename(os.path.join(sys.argv[1], name + ".new"), os.path.join(sys.argv[1], name))
    return listener

def carry(source, target, bytes_per_s):
    due = time.monotonic()
    while data := source.recv(4096):
        target.sendall(data)
        due = max(due + len(data) / bytes_per_s, time.monotonic() - 0.01)
        time.sleep(max(0, due - time.monotonic()))

ends = [listener.accept()[0] for listener in [listen("a"), listen("b")]]
for end in ends:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
bytes_per_s = int(sys.argv[2]) * 125000
ways = [threading.Thread(target=carry, args=(*way, bytes_per_s)) for way in (ends, ends[::-1])]
for way in ways:
    way.start()
for way in ways:
    way.join()
WIRE
  python=$!
  trap 'kill $python 2>/dev/null || true; rm -rf "$wire"' EXIT
  for _ in $(seq 100); do [ ! -e "$wire/b" ] || break; sleep 0.1; done
  nics=
  for host in a b; do
    nics+=" -netdev stream,id=$host,server=off,addr.type=unix,addr.path=$wire/$host"
    nics+=" -device virtio-net-pci,netdev=$host,mac=52:54:00:00:00:0$host"
  done
  status=0
  EMULATED_SECONDS=1200 EMULATED_QEMU=$nics scripts/emulated.sh "$PWD/scripts/ets.sh" "$skein" || status=$?
  exit "$status"
fi

. scripts/two-hosts.sh

add_hosts
for host in a b; do
  nic=$(grep -l "52:54:00:00:00:0$host" /sys/class/net/*/address)
  nic=${nic#/sys/class/net/} nic=${nic%/address}
  ip link set "$nic" netns $host name nic0
done
add_address nic0 10.7.0
queues() { on a tc qdisc show dev nic0 | cut -d ' ' -f 1-4; }
qos() { on a "$skein" net qos "$@"; }
# sent KIND - the bytes that the NIC has sent of "migrations" or "others".
sent() { qos show --json | tr -d ' \n' | grep -o "\"$1_bytes\":[0-9]*" | grep -o '[0-9]*$'; }
# measure NAME - measures for 8 s how much of each went; sets $own and $others, in kb/s.
measure() {
  local before=("$(sent migrations)" "$(sent others)") begin end
  begin=$(date +%s%N)
  sleep 8
  local after=("$(sent migrations)" "$(sent others)")
  end=$(date +%s%N)
  own=$(((after[0] - before[0]) * 8000000 / (end - begin)))
  others=$(((after[1] - before[1]) * 8000000 / (end - begin)))
  echo "$1: $own kb/s of migrations, $others kb/s of others"
}
at_least() { [ "$1" -ge "$2" ] || fail "$1 is less than $2"; }

was=$(queues)
qos apply --share 90 nic0
qos show
on a tc qdisc show dev nic0 | grep -q 'qdisc ets' || fail "no ETS"
on b iperf3 -s >/dev/null &
on b socat -u UNIX-LISTEN:to.t OPEN:/dev/null &
join_hosts 10.7.0.2 to -- nic0
on a iperf3 -c 10.7.0.2 -P 8 -t 600 >/dev/null &
foreign=$!
sleep 5
measure 'others alone'
at_least "$others" $((rate * 850))
on a socat -u OPEN:/dev/urandom UNIX-CONNECT:to.s &
before=$(sent migrations)
until [ "$(sent migrations)" -gt $((before + 500000)) ]; do sleep 0.1; done
sleep 1
measure 'both'
at_least $((own * 100)) $(((own + others) * 88))
at_least $((own + others)) $((rate * 850))
kill $foreign
sleep 3
measure 'migrations alone'
at_least "$own" $((rate * 850))
qos remove
[ "$(queues)" = "$was" ] || fail "other queues than before: $(queues)"
remove_hosts
exit "$failed"
