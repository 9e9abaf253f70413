#!/usr/bin/env bash
# own-ets.sh [SKEIN] - has a NIC make a share itself (`skein net qos`), by a kernel's DCB, in an emulated machine
# (scripts/emulated.sh), with a NIC that is a kernel module (scripts/own-ets.c): what is set is read back by dcb(8),
# packets of migrations' priority go to their class, all is undone exactly, and what is not Skein's is left alone. SKEIN
# is the program; without it target/release/skein. Takes gcc and make; Debian's headers are kept below target/own-ets.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
work=$PWD/target/own-ets
skip() { echo "own-ets: skipped: $*" >&2; exit 3; }

if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  command -v gcc make dcb python3 >/dev/null || skip "gcc, make, dcb or python3 is missing"
  # The first machine unpacks its kernel.
  [ target/emulated/initrd -nt scripts/emulated.sh ] || scripts/emulated.sh true >/dev/null || exit $?
  version=$(grep -ao 'vermagic=[^ ]*' target/emulated/root/modules/virtio_net.ko | cut -d = -f 2)
  kbuild=linux-kbuild-$(echo "$version" | cut -d . -f 1-2)
  mkdir -p "$work"
  if [ ! -e "$work/$version" ]; then
    rm -rf "${work:?}"/*
    (cd "$work" && apt-get -qq download "linux-headers-$version" "linux-headers-${version%-*}-common" "$kbuild") ||
      skip "apt cannot download the headers of $version"
    for deb in "$work"/*.deb; do dpkg-deb -x "$deb" "$work/unpacked"; done
    rm -f "$work"/*.deb
    # The headers say where they are when they are installed.
    sed -i "s|/usr/src/|$work/unpacked&|" "$work/unpacked/usr/src/linux-headers-$version/Makefile"
    touch "$work/$version"
  fi
  mkdir -p "$work/module"
  cp scripts/own-ets.c "$work/module/own_ets.c"
  echo 'obj-m := own_ets.o' >"$work/module/Makefile"
  make -C "$work/unpacked/usr/src/linux-headers-$version" M="$work/module" CC=gcc modules >"$work/make.log" 2>&1 ||
    { tail -n 20 "$work/make.log" >&2; exit 1; }
  EMULATED_SECONDS=600 scripts/emulated.sh "$PWD/scripts/own-ets.sh" "$skein"
  exit
fi

failed=0
fail() { echo "FAILED: $*"; failed=1; }
# says WORDS COMMAND... - the command has to say the words.
says() {
  local words=$1 said
  shift
  said=$("$@" 2>&1) || true
  case $said in *"$words"*) echo "$said" ;; *) fail "$* says '$said', not '$words'" ;; esac
}
qos() { "$skein" net qos "$@"; }
# What dcb(8), tc(8) and the queues say of the NIC.
state() { dcb -s ets show dev ets0; tc qdisc show dev ets0; cat /sys/class/net/ets0/queues/tx-*/traffic_class; }
parameter() { printf %s "$2" >"/sys/module/own_ets/parameters/$1"; }
# sent PRIORITY - sends 50 packets of this priority, and says how many each of the first two classes was given.
sent() {
  parameter sent 0,0,0,0,0,0,0,0
  python3 -c "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, $1)
for n in range(50): s.sendto(b'x', ('10.9.0.2', 1000 + n))
"
  cut -d , -f 1,2 /sys/module/own_ets/parameters/sent
}

/sbin/insmod "$work/module/own_ets.ko"
ip addr add 10.9.0.1/24 dev ets0
sysctl -qw net.ipv6.conf.ets0.disable_ipv6=1
ip link set ets0 up
ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev ets0
was=$(state)
echo "$was"
[ "$(sent 5)" = 50,0 ] || fail "without a share one class has all: $(sent 5)"

says "at least 90 % for migrations (the NIC's own ets, by the priority 5)" qos apply --share 90 ets0
says 'tc-bw 0:10 1:90' dcb ets show dev ets0 tc-bw
says '5:1 6:0' dcb ets show dev ets0 prio-tc
says 'willing off' dcb ets show dev ets0 willing
says '"scheduler": "nic"' qos show --json
[ "$(sent 5)" = 0,50 ] || fail "packets of migrations go elsewhere: $(sent 5)"
[ "$(sent 0)" = 50,0 ] || fail "packets of others go elsewhere: $(sent 0)"
says 'at least 70 %' qos apply --share 70 ets0
says 'tc-bw 0:30 1:70' dcb ets show dev ets0 tc-bw
# With a rate the kernel's queues have the share, and the NIC none.
says 'htb, 1 Gbit/s in all' qos apply --rate 1Gbit/s ets0
says 'tc-bw 0:100 1:0' dcb ets show dev ets0 tc-bw
says "the NIC's own ets" qos apply --own-ets ets0
says 'ets0: as before the share' qos remove
[ "$(state)" = "$was" ] || fail "other settings than before: $(state)"
ls /run/skein/net-qos/*.json 2>/dev/null && fail "a record is left"

# What the driver refuses, ignores or makes something else of: the kernel has the share, and the NIC is as before.
for fault in '1 refuses the settings' '2 made something else' ; do
  parameter fault "${fault%% *}"
  says "${fault#* }" qos apply ets0
  says 'at least 50 % for migrations (ets' qos show
  says "${fault#* }" qos apply --own-ets ets0
  qos remove >/dev/null
  [ "$(state)" = "$was" ] || fail "other settings than before, with the fault $fault: $(state)"
done
# A driver that does not take its own settings back: said, kept in mind, and undone later.
parameter fault 3
says 'does NOT have its ETS of before' qos apply ets0
parameter fault 0
says 'somebody else has set the ETS' qos apply ets0
says 'left alone, and the share is forgotten' qos remove
dcb ets set dev ets0 willing on tc-tsa all:strict 0:ets tc-bw all:0 0:100
[ "$(state)" = "$was" ] || fail "dcb(8) does not bring back what was: $(state)"

# A command that is killed at some moment leaves what the next one knows.
for pause in 0.0 0.05 0.1 0.15 0.2 0.3 0.4 0.5 0.7 1; do
  timeout -s KILL "$pause" "$skein" net qos apply ets0 >/dev/null 2>&1 || true
  qos show | grep ets0
  qos remove >/dev/null
  [ "$(state)" = "$was" ] || fail "other settings than before, killed after $pause s: $(state)"
done

# What is not Skein's to set.
parameter mode 10
says 'its firmware has DCB in hand' qos apply ets0
parameter mode 5
says 'dcb dcbx set dev ets0 host ieee' qos apply ets0
parameter mode 9
parameter driver bnxt_en
says '(bnxt_en)' qos apply ets0
parameter driver ice
says '--own-ets does it anyway' qos apply ets0
parameter driver ixgbe
dcb pfc set dev ets0 prio-pfc 3:on
says 'the priority 3 is paused (PFC)' qos apply ets0
dcb pfc set dev ets0 prio-pfc all:off
dcb app add dev ets0 dscp-prio 26:4
says "entry gives the priority 4" qos apply ets0
dcb app flush dev ets0
dcb ets set dev ets0 prio-tc 0:0 1:1 2:0 3:0 4:0 5:0 6:0 7:0
says 'shares (ETS)' qos apply ets0
dcb ets set dev ets0 prio-tc all:0
qos remove >/dev/null
[ "$(state)" = "$was" ] || fail "other settings than before, in the end: $(state)"
# Somebody sets the NIC after the share was made.
qos apply ets0 >/dev/null
dcb ets set dev ets0 tc-bw 0:60 1:40
says 'somebody else has set' qos show
says 'somebody else has set the ETS' qos apply ets0
says 'left alone' qos remove
says 'tc-bw 0:60 1:40' dcb ets show dev ets0 tc-bw
says 'no NIC had a share' qos remove
exit "$failed"
