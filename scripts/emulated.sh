#!/usr/bin/env bash
# emulated.sh COMMAND... - runs a command as root in a machine of its own: Debian's kernel under QEMU without KVM, with
# this machine's files (writes to them stay in that machine's memory) and control groups of version 2. It is for tests
# that change settings of the whole kernel, and for machines that have control groups of version 1:
#
#   cargo test --release -p skein --test lab_room --no-run      # says where the program is
#   scripts/emulated.sh target/release/deps/lab_room-0123456789abcdef --test-threads=1 --nocapture
#
# EMULATED_MIB (3072) is the machine's memory, EMULATED_SECONDS (1800) the time that the command has, and EMULATED_QEMU
# further arguments of QEMU, as '-device i6300esb' for a watchdog, whose reset ends the machine. With EMULATED_SHIFT=N
# an instruction takes 2^N ns of the machine's time, so that the machine is as quick by its own clock however busy this
# one is. Kernel and busybox are Debian's packages, kept below target/emulated. Ends with the command's status, or with
# 3 if no such machine is available here.
set -euo pipefail
export LC_ALL=C

[ $# -gt 0 ] || { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
cd "$(dirname "$0")/.."
work=$PWD/target/emulated
skip() { echo "emulated: skipped: $*" >&2; exit 3; }
qemu=${SKEIN_QEMU:-$(command -v qemu-system-x86_64 || echo "$PWD/target/qemu-10/qemu-system-x86_64")}
[ -x "$qemu" ] || skip "no qemu-system-x86_64; scripts/qemu.sh unpacks one"
mkdir -p "$work"

if [ ! -e "$work/initrd" ] || [ scripts/emulated.sh -nt "$work/initrd" ]; then
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | grep -o 'linux-image-[0-9][^ ]*-amd64' | head -n 1)
  [ -n "$package" ] || skip "apt knows no linux-image-amd64"
  rm -rf "$work/unpacked" "$work/root"
  mkdir -p "$work/unpacked" "$work/root"/{bin,proc,sys,dev,low,up,new,modules}
  (cd "$work" && apt-get -qq download "$package" busybox-static) || skip "apt cannot download $package"
  for deb in "$work"/*.deb; do dpkg-deb -x "$deb" "$work/unpacked"; done
  rm -f "$work"/*.deb
  cp "$work/unpacked/bin/busybox" "$work/root/bin/busybox" 2>/dev/null ||
    cp "$work/unpacked/usr/bin/busybox" "$work/root/bin/busybox"
  cp "$work"/unpacked/boot/vmlinuz-* "$work/kernel"

  # Each module comes after those that it needs. The compressed modules of newer kernels are unpacked.
  find "$work/unpacked" -name '*.ko.xz' -exec unxz {} +
  added=' '
  add() {
    local name=${1//-/_} file need
    case $added in *" $name "*) return ;; esac
    # A module without a file is built in.
    file=$(find "$work/unpacked" -name "${name//_/[-_]}.ko" | head -n 1)
    [ -n "$file" ] || return 0
    added+="$name "
    for need in $(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr ',' ' '); do add "$need"; done
    cp "$file" "$work/root/modules/$name.ko"
    echo "$name.ko" >>"$work/root/modules/order"
  }
  # Options stand behind the module's name.
  with() { sed -i "s/^$1\.ko$/& $2/" "$work/root/modules/order"; }
  for module in virtio_pci 9pnet_virtio 9p overlay veth bridge tun ifb sch_tbf sch_htb sch_netem sch_fq sch_ingress \
    cls_u32 cls_matchall cls_flower act_mirred bonding 8021q macvlan dummy sch_ets sch_mqprio virtio_net igb \
    crc32c_generic openvswitch team team_mode_activebackup team_mode_broadcast team_mode_loadbalance team_mode_random \
    team_mode_roundrobin i6300esb lpc_ich iTCO_wdt crc32_generic rdma_rxe ib_uverbs rdma_ucm; do
    add "$module"
  done
  with i6300esb nowayout=1; with iTCO_wdt nowayout=1; with bonding max_bonds=0; with dummy numdummies=0

  cat >"$work/root/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
while read -r module; do $b insmod /modules/$module; done </modules/order
$b mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,ro,msize=524288 host /low
$b mount -t tmpfs -o size=50% tmpfs /up; $b mkdir /up/upper /up/work
$b mount -t overlay -o lowerdir=/low,upperdir=/up/upper,workdir=/up/work overlay /new
for dir in proc sys dev; do $b mount --move /$dir /new/$dir; done
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs tmpfs /new/dev/shm; $b mount -t devpts devpts /new/dev/pts; $b mount -t tmpfs tmpfs /new/run
$b mkdir -m 1777 /new/run/tmp
$b mount -t cgroup2 cgroup2 /new/sys/fs/cgroup
$b ip link set lo up
$b chroot /new /bin/bash "$($b sed -n 's/.*run=\([^ ]*\).*/\1/p' /new/proc/cmdline)"
echo "emulated: status $?"
$b poweroff -f
INIT
  chmod +x "$work/root/init"
  (cd "$work/root" && find . | ./bin/busybox cpio -o -H newc 2>/dev/null | gzip) >"$work/initrd.new"
  mv "$work/initrd.new" "$work/initrd"
  rm -rf "$work/unpacked"
fi

run=$(mktemp "$work/run.XXXXXX")
trap 'rm -f "$run" "$run.log"' EXIT
{
  echo "export PATH=/usr/sbin:/usr/bin:/sbin:/bin:\$PATH HOME=/root TMPDIR=/run/tmp SKEIN_OWN_KERNEL=1"
  printf 'export SKEIN_QEMU=%q\ncd %q\n' "$qemu" "$PWD"
  printf '%q ' "$@"
  echo
} >"$run"
accel='-accel tcg,thread=multi'
[ -z "${EMULATED_SHIFT-}" ] || accel="-accel tcg,thread=single -icount shift=$EMULATED_SHIFT,sleep=on"
# shellcheck disable=SC2086
timeout "${EMULATED_SECONDS:-1800}" "$qemu" \
  -machine q35 $accel -cpu max -smp 2 -m "${EMULATED_MIB:-3072}" \
  -nodefaults -display none -serial stdio -no-reboot -kernel "$work/kernel" -initrd "$work/initrd" \
  -append "console=ttyS0 quiet panic=1 run=$run" \
  -fsdev local,id=host,path=/,security_model=none,multidevs=remap,readonly=on \
  -device virtio-9p-pci,fsdev=host,mount_tag=host ${EMULATED_QEMU:-} </dev/null 2>&1 |
  sed -u 's/\r$//' | tee "$run.log" || true
status=$(sed -n 's/^emulated: status \([0-9]*\)$/\1/p' "$run.log" | tail -n 1)
exit "${status:-1}"
