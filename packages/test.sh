#!/usr/bin/env bash
# test.sh - what has to hold of the packages in /root/before and /root/new, on a system made for this by
# scripts/packages-test.sh: it installs and purges them.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
passed=0

# holds WORDS... -- COMMAND... - says that something holds, or ends the test.
holds() {
  local words=()
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  if ! "$@" >/root/out 2>&1; then
    echo "FAILED: ${words[*]}: $*"
    tail -n 20 /root/out
    journalctl --no-pager --quiet --lines=40 --unit=skein-agent --unit=skein-controller || true
    [ ! -s /root/log ] || tail -n 20 /root/log
    echo "$passed passed, 1 failed"
    exit 1
  fi
  echo "ok: ${words[*]}"
  passed=$((passed + 1))
}
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND"; echo "$passed passed, 1 failed"' ERR
no() { ! "$@"; }
# soon COMMAND... - tries for 60 s.
soon() {
  for _ in $(seq 300); do
    if "$@"; then return; fi
    sleep 0.2
  done
  return 1
}

# refused TEXT NAME - whether the removal of a package is refused, with these words.
refused() {
  if apt-get remove -y "$2" >/root/log 2>&1; then return 1; fi
  grep -q "$1" /root/log
}

# put VERSION NAME - installs a package of "before" or "new", without a network; its output is in /root/log.
put() {
  apt-get install -y --no-install-recommends --allow-downgrades "/root/$1/$2"_*.deb >/root/log 2>&1
}
version_is() { [ "$(dpkg-query -Wf '${Version}' "$2")" = "$(dpkg-deb -f "/root/$1/$2"_*.deb Version)" ]; }
active() { systemctl --quiet is-active "$1"; }
main() { systemctl show --value --property MainPID "$1"; }
# is_of VERSION NAME UNIT - whether a unit's process is the program of that version's package.
is_of() {
  local sum
  sum=$(dpkg-deb --fsys-tarfile "/root/$1/$2"_*.deb | tar -xO "./usr/bin/$2" | sha256sum)
  [ "$(sha256sum <"/proc/$(main "$3")/exe")" = "$sum" ]
}

# ---- nothing is started or enabled ----
holds "skein is installed with nothing but what it depends on" -- put before skein
holds "its agent is not enabled" -- no systemctl --quiet is-enabled skein-agent
holds "its agent does not run" -- no active skein-agent
holds "it says its version" -- skein --version
holds "its manual pages are there" -- man -w skein skein-migrate
for file in bash-completion/completions/skein zsh/vendor-completions/_skein fish/vendor_completions.d/skein.fish; do
  holds "completion $file is there" -- test -s "/usr/share/$file"
done
holds "its units are right" -- systemd-analyze verify skein-agent.service skein-net-qos.service skeinidle.slice
holds "an upgrade without a running agent" -- put new skein
holds "starts none" -- no active skein-agent
needrestart=/etc/needrestart/conf.d/skein.conf
# left_alone UNIT - whether needrestart, which reads its settings like this, lets a unit alone.
left_alone() {
  perl -we 'our %nrconf = (override_rc => { qr(^dbus) => 0 }); local $/; eval <STDIN>; die $@ if $@;
    exit !grep { $ARGV[0] =~ /$_/ && !$nrconf{override_rc}{$_} } keys %{$nrconf{override_rc}}' "$1" <$needrestart
}
holds "needrestart lets the agent alone" -- left_alone skein-agent.service
holds "and nothing else" -- no left_alone skein-controller.service
conffiles() { dpkg-query -Wf '${Conffiles}\n' "$1" | awk 'NF { print $1 }'; }
holds "by a file that its administrator may change" -- test "$(conffiles skein)" = $needrestart
holds "and a rollback" -- put before skein
holds "starts none, either" -- no active skein-agent

# ---- a guest under upgrade, rollback, removal and purge ----
skein ca init --name packages >/dev/null
skein ca issue hosta --out /etc/skein/identity >/dev/null
# The agent keeps apart what is in one subnet, below /proc/sys/net, which its sandbox leaves open.
for nic in nic1 nic2; do
  ip link add $nic type veth peer name $nic-peer
  ip address add "10.77.0.${nic#nic}/24" dev $nic
  ip link set $nic-peer up
  ip link set $nic up
done
holds "the agent starts" -- systemctl enable --now skein-agent
holds "and keeps NICs of one subnet apart" -- soon grep -q '[12]' /proc/sys/net/ipv4/conf/nic1/arp_ignore
closed() { systemd-analyze security --offline=true --no-pager --threshold="$2" "$1.service"; }
holds "its unit is closed" -- closed skein-agent 46
# The guest is 24 bytes of real mode: for each byte on its serial line it sends that byte, and how many have come so
# far. So an answer shows that it runs, and that its memory is what it was. It sleeps until the timer's next tick.
#   xor bx,bx; again: sti; hlt; mov dx,0x3fd; in al,dx; test al,1; jz again
#   mov dl,0xf8; in al,dx; out dx,al; inc bx; mov al,bl; add al,'0'; out dx,al; jmp again
printf '\x31\xdb\xfb\xf4\xba\xfd\x03\xec\xa8\x01\x74\xf6\xb2\xf8\xec\xee\x43\x88\xd8\x04\x30\xee\xeb\xea' >/root/disk
truncate -s 510 /root/disk
printf '\x55\xaa' >>/root/disk
truncate -s 1M /root/disk
cat >/root/g1.toml <<'VM'
name = "g1"
memory = "64 MiB"
accel = "tcg"
[[disk]]
path = "/root/disk"
format = "raw"
VM
holds "a guest starts" -- skein vm start /root/g1.toml
pid=$(grep -l '^qemu-system' /proc/[0-9]*/comm | cut -d/ -f3)
begun=$(cut -d' ' -f22 "/proc/$pid/stat")
count=0
asks() {
  count=$((count + 1))
  # A digit, or what follows it in ASCII.
  local said
  said=$(printf %b "\\$(printf %03o $((48 + count)))")
  [[ "$(printf x | skein vm console g1 2>&1)" == *"x$said"* ]]
}
# Its BIOS takes what comes before it has booted, and says nothing.
booted() { [[ "$(printf x | skein vm console g1 2>&1)" == *x1* ]]; }
holds "the guest answers" -- soon booted
count=1
same() { [ "$(cut -d' ' -f22 "/proc/$pid/stat" 2>/dev/null)" = "$begun" ]; }
# goes_on AFTER... - the guest is the same process, and answers with all that it remembers.
goes_on() {
  holds "after $*: the guest is the same process" -- same
  holds "after $*: the guest answers, and remembers" -- asks
}
goes_on nothing

before=$(main skein-agent)
holds "an upgrade under the guest" -- put new skein
holds "says that it restarts the agent" -- grep -q 'the agent was restarted; guests run on' /root/log
holds "restarts the agent" -- test "$(main skein-agent)" != "$before"
holds "as the new program" -- is_of new skein skein-agent
goes_on "the upgrade"
holds "a rollback under the guest" -- put before skein
holds "restarts the agent as the program of before" -- is_of before skein skein-agent
goes_on "the rollback"
holds "the same package once more" -- apt-get install -y --reinstall /root/before/skein_*.deb
goes_on "the reinstallation"

systemctl stop skein-agent
holds "an upgrade while the agent is stopped" -- put new skein
holds "leaves it stopped" -- no active skein-agent
holds "and the guest runs" -- same
systemctl start skein-agent
goes_on "the start"
state() { find /var/lib/skein /etc/skein -type f ! -path '*/term' | sort; }

# The version before does not know an option.
echo 'SKEIN_AGENT_OPTIONS=--of-another-version' >/etc/default/skein-agent
holds "a rollback to a version that does not know an option" -- put before skein
holds "says that the agent did not start" -- grep -q 'the agent did not start' /root/log
holds "and systemd has given it up" -- systemctl --quiet is-failed skein-agent
rm /etc/default/skein-agent
holds "the newer version once more" -- put new skein
holds "starts it again" -- active skein-agent
holds "and says so" -- grep -q 'the agent, which .* could not start, was started' /root/log
goes_on "the option"

# Metrics have a variable of their own, which takes nothing from the options.
printf '%s\n' 'SKEIN_AGENT_OPTIONS="--incoming 2"' 'SKEIN_AGENT_METRICS=--metrics /run/skein/metrics.sock' \
  >/etc/default/skein-agent
systemctl restart skein-agent
arguments() { tr '\0' ' ' <"/proc/$(main skein-agent)/cmdline"; }
holds "the agent has its options and its metrics" -- \
  test "$(arguments)" = "/usr/bin/skein agent --incoming 2 --metrics /run/skein/metrics.sock "
holds "and serves them" -- test -S /run/skein/metrics.sock
rm /etc/default/skein-agent
systemctl restart skein-agent
goes_on "the metrics"

# A file stands for the device: what counts is that the agent has it open.
mkdir -p /run/systemd/system/skein-agent.service.d
printf '[Service]\nExecStart=\nExecStart=/bin/sh -c "exec 9>/dev/watchdog9; exec /usr/bin/skein agent"\n' \
  >/run/systemd/system/skein-agent.service.d/armed.conf
systemctl daemon-reload
systemctl restart skein-agent
before=$(main skein-agent)
holds "with an armed watchdog an upgrade" -- put before skein
holds "leaves the agent as it is" -- test "$(main skein-agent)" = "$before"
holds "and says so" -- grep -q "this host's watchdog is armed" /root/log
holds "and a removal is refused" -- refused "not removed: this host's watchdog is armed" skein
holds "and leaves the agent as it is" -- test "$(main skein-agent)" = "$before"
rm -r /run/systemd/system/skein-agent.service.d /dev/watchdog9
systemctl daemon-reload
systemctl restart skein-agent
goes_on "the watchdog"
holds "the package is whole again" -- put new skein

for address in '["192.0.2.1:7443"]' "['192.0.2.1:7443']" $'[\n  # the first\n  "192.0.2.1:7443",\n]'; do
  printf 'controllers = %s\n' "$address" >/etc/skein/controllers.toml
  holds "in a cluster a removal with guests is refused ($address)" -- \
    refused "not removed: this host is in a cluster" skein
  holds "and the agent runs" -- active skein-agent
done
# No cluster stands against what follows.
printf '# "192.0.2.1:7443"\ncontrollers = []\n' >/etc/skein/controllers.toml

kept=$(state)
holds "skein is removed under the guest" -- apt-get remove -y skein
holds "the guest is the same process" -- same
holds "what the agent keeps is there" -- test "$(state)" = "$kept"
holds "skein is installed again" -- put new skein
holds "which starts nothing" -- no active skein-agent
systemctl start skein-agent
goes_on "the removal"
holds "skein is purged under the guest" -- apt-get purge -y skein
holds "the guest is the same process" -- same
holds "what the agent keeps is there" -- test "$(state)" = "$kept"
holds "skein is installed again" -- put new skein
systemctl start skein-agent
goes_on "the purge"

skein vm stop g1 --force --timeout 0 >/dev/null
holds "the guest has ended" -- soon no same
holds "skein is purged, with a VM that is off" -- apt-get purge -y skein
holds "what the agent keeps is there" -- test "$(state)" = "$kept"
put new skein
systemctl start skein-agent
holds "the VM is known" -- skein vm show g1
skein vm forget g1 >/dev/null
holds "skein is purged, without a VM" -- apt-get purge -y skein
holds "nothing of the host is left" -- test ! -e /var/lib/skein -a ! -e /run/skein -a ! -e /etc/skein/identity
holds "the CA is left" -- test -s /etc/skein/ca/ca.key
holds "no unit is enabled" -- test ! -L /etc/systemd/system/multi-user.target.wants/skein-agent.service
rm -r /etc/skein

# ---- a controller, with the store of the version before ----
holds "skein-controller is installed" -- put before skein-controller
holds "it is not enabled" -- no systemctl --quiet is-enabled skein-controller
holds "its units are right" -- systemd-analyze verify skein-controller.service
holds "and closed" -- closed skein-controller 20
skein-controller init --name packages --controller ctl --address 127.0.0.1 --listen 127.0.0.1:7443 >/dev/null
holds "the controller starts, with what root made" -- systemctl enable --now skein-controller
holds "as its own user" -- test "$(stat -c %U "/proc/$(main skein-controller)")" = skein-controller
holds "its store is its own" -- test "$(stat -c %U:%a /var/lib/skein-controller/controller.db)" = skein-controller:600
holds "the CA's key is root's, and its group's to read" -- \
  test "$(stat -c %U:%G:%a /etc/skein/ca/ca.key)" = root:skein-controller:640
ticket() { skein-controller ticket --host "$1" >/dev/null 2>&1; }
# backup - prints the cluster's name and the hosts that have tickets, as the controller has them.
backup() {
  rm -f /root/backup
  skein-controller backup /root/backup >/dev/null && grep -Eo 'cluster[^,]*' /root/backup | head -n 1
}
holds "it leads, and makes tickets" -- soon ticket hosta
cluster=$(backup)
holds "it tells what it knows" -- test -n "$cluster"
holds "an upgrade of the running controller" -- put new skein-controller
holds "restarts it as the new program" -- is_of new skein-controller skein-controller
holds "which leads with the store of before" -- soon ticket hostb
holds "of the same cluster" -- test "$(backup)" = "$cluster"
holds "a rollback" -- put before skein-controller
holds "restarts it as the program of before" -- is_of before skein-controller skein-controller
holds "which leads with the store of the newer one" -- soon ticket hostc
holds "of the same cluster" -- test "$(backup)" = "$cluster"

# As `make install-controller` had it before the controller had a user: all is root's, and closed to others.
systemctl stop skein-controller
chown -R root:root /etc/skein /var/lib/skein-controller
chmod 700 /etc/skein /etc/skein/ca
chmod 600 /etc/skein/ca/ca.key
holds "an upgrade of one that is stopped" -- put new skein-controller
holds "leaves it stopped" -- no active skein-controller
holds "it starts with what was root's" -- systemctl start skein-controller
holds "and leads" -- soon ticket hostd
cluster=$(backup)
systemctl stop skein-controller
mkdir /var/lib/skein-controller/damaged
mv /var/lib/skein-controller/controller.db* /var/lib/skein-controller/damaged/
skein-controller restore /root/backup >/dev/null
holds "it starts with what root restored" -- systemctl start skein-controller
holds "and leads" -- soon ticket hoste
holds "of the same cluster" -- test "$(backup)" = "$cluster"

# Another user's program is to reach the socket.
echo 'metrics = "/run/skein-controller/metrics.sock"' | cat - /etc/skein/controller.toml >/root/controller.toml
cat /root/controller.toml >/etc/skein/controller.toml
systemctl restart skein-controller
holds "it serves metrics at a unix socket" -- soon test -S /run/skein-controller/metrics.sock
holds "which anybody on this host may read" -- \
  test "$(stat -c %a /run/skein-controller /run/skein-controller/metrics.sock | xargs)" = "755 666"
# The version before does not know an option.
mkdir -p /run/systemd/system/skein-controller.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/skein-controller run --of-another-version\n' \
  >/run/systemd/system/skein-controller.service.d/option.conf
holds "a rollback to a version that does not know an option" -- put before skein-controller
holds "and systemd has given it up" -- systemctl --quiet is-failed skein-controller
rm -r /run/systemd/system/skein-controller.service.d
holds "the newer version once more" -- put new skein-controller
holds "starts it again" -- active skein-controller
holds "and it leads" -- soon ticket hostf

holds "skein-controller is removed" -- apt-get remove -y skein-controller
holds "its store is there" -- test -s /var/lib/skein-controller/controller.db
holds "and its identity" -- test -s /etc/skein/controller/admin.token
holds "it is purged" -- apt-get purge -y skein-controller
holds "its store was moved" -- test -s /var/backups/skein-controller.1/controller.db -a ! -e /var/lib/skein-controller
holds "its identity is gone" -- test ! -e /etc/skein/controller -a ! -e /etc/skein/controller.toml
holds "the CA is root's again" -- test "$(stat -c %U:%G /etc/skein/ca/ca.key)" = root:root

# ---- the laboratory ----
holds "skein-lab is installed, with skein" -- apt-get install -y --no-install-recommends /root/new/skein{,-lab}_*.deb
holds "it makes two hosts" -- skein-lab up --nics 2
holds "and shows them" -- skein-lab status
holds "and removes them" -- skein-lab down
holds "all is purged" -- apt-get purge -y skein-lab skein
holds "no file of ours is left" -- test -z "$(find /usr /etc/systemd -name '*skein*' ! -path '/usr/share/doc/*')"
holds "and none of needrestart's" -- test ! -e $needrestart
echo "$passed passed, 0 failed"
