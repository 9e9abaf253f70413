#!/usr/bin/env bash
# packages-test.sh [bookworm|trixie] - tries the packages in target/packages on a bare system of that release, whose
# pid 1 is systemd: install, upgrade, rollback, removal and purge under a guest that runs (QEMU without KVM), and of a
# controller with the store of the version before (packages/test.sh says what holds).
#
#   BEFORE   a directory with packages of the version before. Without it the packages are the same programs with other
#            bytes and a lower version.
#
# The system is a container by systemd-nspawn, without a network. It has the packages that ours depend on or recommend,
# and no others of ours. Nothing is left of it. Ends with "N passed, 0 failed"; status 3: it cannot run here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
case ${1-bookworm} in
  bookworm | trixie) suite=${1:-bookworm} ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
. scripts/bare.sh
command -v systemd-nspawn >/dev/null || skip "there is no systemd-nspawn: apt-get install systemd-container"
compgen -G 'target/packages/*.deb' >/dev/null || skip "there are no packages: make packages"

work=$(mktemp -d "${TMPDIR:-/tmp}/skein-packages-test.XXXXXX")
name=${work##*/}
root=$work/root
init='' nspawn='' cgroups=()
tidy_up() {
  # With pid 1 all ends that runs in the system.
  [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true
  if [ -n "$nspawn" ]; then
    [ -n "$init" ] || kill "$nspawn" 2>/dev/null || true
    wait "$nspawn" 2>/dev/null || true
  fi
  local cgroup
  for cgroup in "${cgroups[@]}"; do
    for _ in $(seq 50); do
      find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$cgroup" ] || break
      sleep 0.2
    done
  done
  rm -rf --one-file-system "$work"
}
trap tidy_up EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

# needed FIELD PACKAGE - prints the first choice of each package that a package of ours names in a field.
needed() {
  dpkg-deb --field target/packages/"$2"_*.deb "$1" | tr ',' '\n' | sed -E 's/[|(].*//; s/ //g; /^skein/d; /^$/d'
}
mapfile -t packages < <({
  printf '%s\n' systemd systemd-sysv dbus man-db
  for of in skein skein-controller; do needed Depends $of; needed Recommends $of; done
  needed Depends skein-lab
} | sort -u)
bare_root systemd "$root" "${packages[@]}"

# ---- the packages, and those of the version before ----
mkdir -p "$root/root/new" "$root/root/before"
cp target/packages/*.deb "$root/root/new/"
(cd target/packages && sha256sum --check --quiet SHA256SUMS)
if [ -n "${BEFORE-}" ]; then
  cp "$BEFORE"/*.deb "$root/root/before/"
else
  for deb in target/packages/*.deb; do
    dpkg-deb -R "$deb" "$work/package"
    for program in "$work"/package/usr/bin/* "$work"/package/usr/lib/skein-lab/skein-lab; do
      [ ! -f "$program" ] || [ -L "$program" ] || printf 'as before' >>"$program"
    done
    sed -i 's/^Version: .*/Version: 0.0.1-1/' "$work/package/DEBIAN/control"
    (cd "$work/package" && find usr -type f -print0 | xargs -0 md5sum) >"$work/package/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Zgzip -b "$work/package" "$root/root/before/" >/dev/null
    rm -rf "$work/package"
  done
fi
cp packages/test.sh "$root/root/"
# With a machine-id it is no first boot, which would enable units.
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"

# ---- boot ----
options=(--machine="$name" --directory="$root" --private-network --capability=all --quiet --console=pipe)
if [ ! -d /run/systemd/system ]; then
  # Without a systemd here that would give it control groups, the system takes them itself, below some of its own.
  options+=(--keep-unit --register=no)
  export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1
  for hierarchy in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    [ -e "$hierarchy/cgroup.procs" ] || continue
    mkdir "$hierarchy/$name"
    cgroups+=("$hierarchy/$name")
  done
fi
(
  for cgroup in "${cgroups[@]}"; do echo 0 >"$cgroup/cgroup.procs"; done
  exec systemd-nspawn "${options[@]}" --boot -- systemd.log_target=journal
) </dev/null >"$work/boot.log" 2>&1 &
nspawn=$!
inside() { nsenter --all --target "$init" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"; }
for _ in $(seq 600); do
  kill -0 "$nspawn" 2>/dev/null || break
  if [ -z "$init" ]; then
    for pid in $(cat "/proc/$nspawn/task/$nspawn/children" 2>/dev/null); do
      [ "$(sed -n 's/^NSpid:.*\t//p' "/proc/$pid/status" 2>/dev/null)" != 1 ] ||
        [ "$(cat "/proc/$pid/comm")" != systemd ] || init=$pid
    done
  else
    state=$(inside systemctl is-system-running 2>/dev/null || true)
    case $state in running | degraded) break ;; esac
  fi
  sleep 0.1
done
case ${state-} in
  running | degraded) ;;
  *) skip "no system with systemd boots here: $(tail -n 3 "$work/boot.log" | tr '\n' ' ')" ;;
esac

echo "$(sed -n 's/^PRETTY_NAME="\(.*\)"$/\1/p' "$root/etc/os-release")," \
  "$(inside systemctl --version | sed -n '1s/^\(systemd [0-9]*\).*/\1/p')," \
  "$(inside qemu-system-x86_64 --version | sed -n '1s/^QEMU emulator version \([^ ]*\).*/QEMU \1/p')"
inside bash /root/test.sh </dev/null
