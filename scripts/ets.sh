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
rate=4
command -v python3 >/dev/null || { echo "ets: skipped: no python3 for the wire" >&2; exit 3; }
if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  # The wire between the machine's two NICs takes what one sends at its rate, and holds next to nothing, so that NICs
  # wait as for a real one.
  exec env EMULATED_SECONDS=600 python3 - "$rate" scripts/emulated.sh "$PWD/scripts/ets.sh" "$skein" <<'WIRE'
import os, socket, subprocess, sys, threading, time

def carry(source, target, bytes_per_s):
    due = time.monotonic()
    while data := source.recv(1024):
        target.sendall(data)
        due = max(due + len(data) / bytes_per_s, time.monotonic() - 0.01)
        time.sleep(max(0, due - time.monotonic()))

bytes_per_s = int(sys.argv[1]) * 125000
pairs = [socket.socketpair() for _ in "ab"]
ends, nics = [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
for nic in nics:
    nic.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
for way in (ends, ends[::-1]):
    threading.Thread(target=carry, args=(*way, bytes_per_s), daemon=True).start()
of_nic = "-netdev stream,id={0},addr.type=fd,addr.str={1} -device virtio-net-pci,netdev={0},mac=52:54:00:00:00:0{0} "
os.environ["EMULATED_QEMU"] = "".join(of_nic.format(host, nic.fileno()) for host, nic in zip("ab", nics))
sys.exit(subprocess.run(sys.argv[2:], pass_fds=[nic.fileno() for nic in nics]).returncode)
WIRE
fi

. scripts/two-hosts.sh

add_hosts
for host in a b; do
  nic=$(grep -l "52:54:00:00:00:0$host" /sys/class/net/*/address)
  nic=${nic#/sys/class/net/} nic=${nic%/address}
  ip link set "$nic" netns $host name nic0
  # What waits in the NIC's ring is beyond ETS. This kernel's virtio_net has no byte queue limits (BQL) and fills its
  # ring of 256 packets, so the ring is made short: it holds as little as with BQL. Packets are small, as the wire is
  # slow.
  # Connections have as much waiting before it as on a link of 1 Gb/s.
  on $host python3 -c "
import array, fcntl, socket, struct
rings = array.array('B', struct.pack('9I', 0x11, 0, 0, 0, 0, 256, 0, 0, 32))  # ETHTOOL_SRINGPARAM
fcntl.ioctl(socket.socket(), 0x8946, struct.pack('16sP', b'nic0', rings.buffer_info()[0]))  # SIOCETHTOOL
"
  ip -n $host link set nic0 mtu 576
  # The 5 ms that fq_codel lets packets wait are some 4 packets of this wire: it is to mark packets, not to drop them.
  on $host sysctl -qw net.ipv4.tcp_min_tso_segs=40 net.ipv4.tcp_ecn=1
done
add_address nic0 10.7.0
queues() { on a tc qdisc show dev nic0 | cut -d ' ' -f 1-4; }
qos() { on a "$skein" net qos "$@"; }
# sent KIND - the bytes that the NIC has sent of "migrations" or "others".
sent() { qos show --json | tr -d ' \n' | grep -o "\"$1_bytes\":[0-9]*" | grep -o '[0-9]*$'; }
# measure NAME - measures for 15 s how much of each went; sets $own and $others, in kb/s.
measure() {
  local before=("$(sent migrations)" "$(sent others)") begin end
  begin=$(date +%s%N)
  sleep 15
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
case $(queues) in *'qdisc ets'*) ;; *) fail "no ETS: $(queues)" ;; esac
on b iperf3 -s >/dev/null &
on b socat -u UNIX-LISTEN:to.t OPEN:/dev/null &
join_hosts 10.7.0.2 to -- nic0
ip netns exec a iperf3 -c 10.7.0.2 -P 8 -t 600 >/dev/null &
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
