#!/usr/bin/env bash
# ovs-team.sh [SKEIN] - looks at a bridge of Open vSwitch with a bond, and at teams, in an emulated machine
# (scripts/emulated.sh) with four NICs, as both take a kernel's modules: `skein net show` has to see through them to the
# NICs, and to say what they are. SKEIN is the program; without it target/release/skein.
# Takes Debian's openvswitch-switch and libteam-utils. With RECORD=1 it also prints what `skein doctor --evidence`
# writes, each file behind a line with its name, as crates/network/tests/recordings has them.
set -euo pipefail
export LC_ALL=C
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2 ;; esac
cd "$(dirname "$0")/.."
skein=$(realpath "${1:-target/release/skein}")
if [ -z "${SKEIN_OWN_KERNEL-}" ]; then
  for program in ovs-vswitchd teamd; do
    command -v $program >/dev/null || { echo "ovs-team: skipped: no $program" >&2; exit 3; }
  done
  nics=
  for nic in 0 1 2 3; do
    nics+=" -netdev hubport,id=n$nic,hubid=$((nic % 2)) -device pcie-root-port,id=r$nic,chassis=$nic,slot=$nic"
    nics+=" -device igb,netdev=n$nic,bus=r$nic"
  done
  EMULATED_QEMU=$nics exec scripts/emulated.sh env RECORD="${RECORD-}" "$PWD/scripts/ovs-team.sh" "$skein"
fi
work=$(mktemp -d)
cd "$work"
failed=0
fail() { echo "FAILED: $*"; failed=1; }

# look NAME LINE... - looks at the host, where each LINE has to be, whatever the space within it.
look() {
  local name=$1 line
  shift
  "$skein" net show | tee "$name.txt" | tr -s ' ' >"$name.squeezed"
  for line in "$@"; do
    grep -qxF -- "$line" "$name.squeezed" || { fail "$name: no line '$line'"; cat "$name.txt"; }
  done
  "$skein" doctor --evidence "$name.json" >/dev/null
  if [ -n "${RECORD-}" ]; then echo "recorded $name.json"; base64 -w 200 "$name.json"; echo "recorded"; fi
}

# agreed N - waits until somebody answers the LACP on N NICs.
agreed() {
  for _ in $(seq 100); do
    [ "$(ovs-vsctl find interface lacp_current=true | grep -c ^name)" != "$1" ] || return 0
    sleep 0.2
  done
  fail "LACP is not answered on $1 NICs"
}

# The other end of eth0 and eth1: a bond by LACP.
ip netns add peer
ip -n peer link add bond0 type bond mode 802.3ad lacp_rate fast miimon 100 xmit_hash_policy layer3+4
for nic in eth2 eth3; do
  ip link set $nic netns peer
  ip -n peer link set $nic master bond0
  ip -n peer link set $nic up
done
ip -n peer link set bond0 up
ip -n peer addr add 10.5.0.2/24 dev bond0

mkdir -p /run/openvswitch
ovsdb-tool create conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server conf.db --remote=punix:/run/openvswitch/db.sock --pidfile --detach --log-file="$work/db.log"
ovs-vsctl --no-wait init
ovs-vswitchd unix:/run/openvswitch/db.sock --pidfile --detach --log-file="$work/switch.log" 2>/dev/null
for nic in eth0 eth1; do ip link set $nic up; done
ovs-vsctl --timeout=60 add-br br-ex \
  -- add-bond br-ex bond0 eth0 eth1 bond_mode=balance-tcp lacp=active other_config:lacp-time=fast \
  -- add-br br-int -- add-port br-int mig0 tag=7 -- set interface mig0 type=internal \
  -- add-port br-int to-ex -- set interface to-ex type=patch options:peer=to-int \
  -- add-port br-ex to-int -- set interface to-int type=patch options:peer=to-ex
ip addr add 10.5.0.1/24 dev br-ex
ip addr add 10.7.0.1/24 dev mig0
ip netns add guest
ip link add tap0 type veth peer name guest0 netns guest
ip -n guest link set guest0 up
ip link set tap0 addrgenmode none
ovs-vsctl --timeout=60 add-port br-int tap0 tag=7
for nic in br-ex mig0 tap0; do ip link set $nic up; done
agreed 2
ping -c 3 10.5.0.2 >/dev/null || fail 'nothing passes'
look open-vswitch 'mig0: up, Open vSwitch br-int, VLAN 7, 2 Gb/s, MTU 1500' \
  ' leads to bond0 (bond balance-tcp, LACP with 2 members), by br-int > br-ex' \
  ' leads to bond0 (bond balance-tcp, LACP with 2 members)' ' eth0: up, igb, 1 Gb/s, MTU 1500'

# The other end goes: LACP has nobody any more.
ip netns del peer
agreed 0
look open-vswitch-alone \
  ' leads to bond0 (bond balance-tcp, LACP that NOBODY ANSWERS: it carries NOTHING), by br-int > br-ex'
ovs-vsctl --timeout=60 del-br br-int -- del-br br-ex
ovs-appctl exit
for _ in $(seq 100); do [ -e /sys/class/net/ovs-system ] || break; sleep 0.1; done

ip netns del guest
for nic in d0 d1; do ip link add $nic type dummy; done
for nic in eth0 eth1; do ip link set $nic down; done
team() {
  echo "$1" >team.json
  teamd -d -U -f team.json 2>/dev/null
}
team '{"device":"team0","runner":{"name":"loadbalance","tx_hash":["ip","l4"]},"ports":{"eth0":{},"eth1":{}}}'
team '{"device":"team1","runner":{"name":"activebackup"},"ports":{"d0":{"prio":9},"d1":{}}}'
ip addr add 10.8.0.1/24 dev team0
for nic in team0 team1; do ip link set $nic up; done
sleep 4
look team 'team0: up, team loadbalance by ip, l4, 2 Gb/s, MTU 1500' ' in the team active' \
  'team1: up, team activebackup, speed not known, MTU 1500' ' in the team waits'
teamd -k -t team0 || true
cat ./*.txt
exit "$failed"
