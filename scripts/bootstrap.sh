#!/usr/bin/env bash
# bootstrap.sh build|packages|check|demo|test|bench - installs what a target of the Makefile needs and is missing here.
#
# Installs only from the distribution (apt; Debian 12 and 13 are tested, Ubuntu should work), and prints what it will
# install before it does. An existing Rust that is new enough is used as it is. Run as root, or with sudo available.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
. scripts/env.sh

goal=${1-}
case $goal in
  build | packages | check | demo | test | bench) ;;
  *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
die() { echo "bootstrap: $*" >&2; exit 1; }

[ "$(uname -sm)" = "Linux x86_64" ] || die "Skein is built and tried on Linux on x86-64 only; this is $(uname -sm)"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# ---- what is missing: each command, and Debian's package that has it ----
packages=()
lacks() {
  case " ${packages[*]-} " in *" $1 "*) ;; *) packages+=("$1") ;; esac
}
needs() { command -v "$1" >/dev/null || lacks "$2"; }

needs cc gcc
needs make make
# The guest's program is linked statically.
[ -e "$(cc -print-file-name=libc.a 2>/dev/null)" ] || lacks libc6-dev
[ -e /etc/ssl/certs/ca-certificates.crt ] || lacks ca-certificates
# lab - whether guests are run.
lab() { case $goal in build | packages | check) false ;; esac; }
if lab; then
  needs qemu-system-x86_64 qemu-system-x86
  needs qemu-img qemu-utils
  needs ip iproute2
  needs tc iproute2
  needs ping iputils-ping
  # The distributions' kernels and their modules are packed with one of these.
  needs xz xz-utils
  needs zstd zstd
fi
if [ "$goal" = packages ]; then
  needs dpkg-shlibdeps dpkg-dev
  needs objcopy binutils
  needs python3 python3
  needs xz xz-utils
fi
if [ "$goal" = test ] || [ "$goal" = bench ]; then
  needs iperf3 iperf3
  needs socat socat
  needs ssh openssh-client
  needs sshd openssh-server
fi
if [ "$goal" = bench ]; then
  # The tools with which a guest unpacks and builds its software.
  needs busybox busybox-static
  needs cpio cpio
fi
if [ "$goal" = test ]; then
  # For guests with UEFI and a TPM.
  [ -e /usr/share/OVMF/OVMF_CODE_4M.fd ] || lacks ovmf
  needs swtpm swtpm
  # For the migration network.
  needs nft nftables
  # For RDMA over providers that need no device.
  ldconfig -p | grep 'libfabric\.so\.1' >/dev/null || lacks libfabric1
  # And with the kernel's RDMA in software, in emulated machines (scripts/rdma.sh).
  compgen -G '/usr/lib/*/libibverbs/librxe-rdmav*.so' >/dev/null || lacks ibverbs-providers
  needs rdma iproute2
  # For the controller's page, in a browser. Debian 12's node is too old for that.
  needs chromium chromium
  [ "$(. /etc/os-release && echo "${VERSION_CODENAME-}")" = bookworm ] || { needs node nodejs; needs npm npm; }
  # For hosts with a systemd of their own, from this machine's files: a megabyte or two.
  needs systemd-nspawn systemd-container
fi
if [ "$goal" = test ] || [ "$goal" = check ]; then
  # pip fetches the program that finds spelling mistakes (scripts/typos.sh).
  python3 -m pip --version >/dev/null 2>&1 || lacks python3-pip
fi
if [ "$goal" = test ] || [ "$goal" = check ] || [ -n "${ETCD-}" ]; then
  # For a controller whose store is in etcd (ETCD=1). etcd's messages are compiled from descriptions; those of
  # protobuf's own types are in the library's package.
  needs protoc protobuf-compiler
  [ -e /usr/include/google/protobuf/descriptor.proto ] || lacks libprotobuf-dev
fi
if [ "$goal" = test ] || [ "$goal" = check ] || [ -n "${EXACT-}" ]; then
  # HiGHS, which proves placements in the tests or in skein itself, is built from source. Its bindings are made with
  # libclang.
  needs c++ g++
  needs cmake cmake
  ldconfig -p | grep -E 'libclang(-[0-9]+)?\.so' >/dev/null || lacks libclang1
fi

# checks - whether sources are also checked, and not only built.
checks() { [ "$goal" = test ] || [ "$goal" = check ]; }
rust() { find_rust && { ! checks || { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; }; }

if ! rust || [ ${#packages[@]} != 0 ]; then
  command -v apt-get >/dev/null ||
    die "this system has no apt; install yourself: ${packages[*]-}$(rust || echo " Rust >= $rust_min")"
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    die "run 'scripts/bootstrap.sh $goal' as root first: ${packages[*]-} are to be installed$(
      rust || echo ", and Rust >= $rust_min")"
  echo "bootstrap: reading the distribution's package lists"
  as_root apt-get -q -o DPkg::Lock::Timeout=120 update </dev/null >/dev/null || die "'apt-get update' failed, see above"
fi

# ---- Rust, where the distribution has one that is new enough ----
# A Rust that is newer than the release's own is called rustc-web by Debian, and rustc-1.NN by Ubuntu.
family() {
  case $1 in
    rustc-web) echo rustc-web cargo-web rustfmt-web rust-web-clippy ;;
    rustc-*) echo "$1 cargo-${1#rustc-} rustfmt-${1#rustc-} rust-${1#rustc-}-clippy" ;;
    rustc) echo rustc cargo rustfmt rust-clippy ;;
  esac
}
rustup=
names=
if rust; then
  :
elif find_rust; then # without rustfmt or clippy
  owner=$(dpkg -S "$(readlink -f "$(command -v rustc)")" 2>/dev/null | cut -d: -f1) || true
  names=$(family "$owner")
  [ -n "$names" ] || rustup=1
else
  candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: \([0-9.]*\).*/\1/p'; }
  enough() { [ -n "$1" ] && [ "$(printf '%s\n' "$rust_min" "$1" | sort -V | head -n 1)" = "$rust_min" ]; }
  newest=$(apt-cache pkgnames rustc-1. | sed -n 's/^rustc-\(1\.[0-9]*\)$/\1/p' | sort -V | tail -n 1)
  if enough "$(candidate rustc-web)"; then
    names=$(family rustc-web)
  elif enough "$(candidate rustc)"; then
    names=$(family rustc)
  elif enough "$newest"; then
    names=$(family "rustc-$newest")
  elif [ -n "$(candidate rustup)" ]; then
    rustup=1
    command -v rustup >/dev/null || lacks rustup
  else
    die "Rust >= $rust_min is needed, and this distribution has none: install it from https://rustup.rs"
  fi
fi
for name in $names; do
  case $goal-$name in
    test-* | check-* | *-rustc* | *-cargo*) dpkg -s "$name" >/dev/null 2>&1 || lacks "$name" ;;
  esac
done

# ---- install ----
if [ ${#packages[@]} != 0 ]; then
  echo "bootstrap: installing ${packages[*]}"
  sshd=
  if [[ " ${packages[*]} " == *" openssh-server "* ]]; then
    # Only its program is needed, to compare with tunnels through ssh. No port is to be open from now on.
    sshd=1
    ! command -v systemctl >/dev/null || as_root systemctl mask --quiet ssh.service ssh.socket
  fi
  log=$(mktemp)
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 \
    install -y --no-install-recommends --no-remove "${packages[@]}" </dev/null >"$log" 2>&1 || {
    cat "$log" >&2
    die "'apt-get install ${packages[*]}' failed, see above"
  }
  rm -f "$log"
  if [ -n "$sshd" ] && command -v systemctl >/dev/null; then
    as_root systemctl unmask --quiet ssh.service ssh.socket
    as_root systemctl disable --quiet ssh.service ssh.socket 2>/dev/null
  fi
fi
if [ -n "$rustup" ] && find_rust; then
  echo "bootstrap: adding rustfmt and clippy with rustup"
  rustup component add rustfmt clippy
elif [ -n "$rustup" ]; then
  echo "bootstrap: installing Rust's stable toolchain with rustup, for $(id -un)"
  rustup toolchain install stable --no-self-update --profile minimal --component rustfmt --component clippy
  rustup default stable
fi

hash -r
rust || die "Rust >= $rust_min is still missing, or its rustfmt and clippy are"
echo "bootstrap: all there for 'make $goal' ($(rustc --version | cut -d' ' -f1,2), $(cc --version | head -n 1)$(
  ! lab ||
    qemu-system-x86_64 --version | sed -n '1s/QEMU emulator version \([^ ]*\).*/, QEMU \1/p'))"
