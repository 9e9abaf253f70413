#!/usr/bin/env bash
# lintian.sh [bookworm|trixie] - has lintian judge target/packages, in a bare system of that release: installing lintian
# here would upgrade packages of this machine. Fails at an error or a warning. Status 3: it cannot run here.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
suite=${1:-bookworm}
. scripts/bare.sh
compgen -G 'target/packages/*.deb' >/dev/null || skip "there are no packages: make packages"

root=$(mktemp -d "${TMPDIR:-/tmp}/skein-lintian.XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
bare_root lintian "$root" lintian
cp target/packages/*.deb "$root/tmp/"
# Packages of no distribution close no bug of one. Hints below warnings are shown, and do not fail. Lintian of Debian 12
# fails at overridden ones, too, so what it prints counts.
chroot "$root" /bin/sh -c 'lintian --version && lintian --allow-root --fail-on none --display-info --show-overrides \
  --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs /tmp/*.deb' | tee "$root/tmp/said"
found=$(grep -cE '^[EW]: ' "$root/tmp/said" || true)
echo "lintian in $suite: $found errors and warnings"
[ "$found" = 0 ]
