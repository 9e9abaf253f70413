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
# Packages of no distribution close no bug of one. Hints below warnings are shown, and do not fail.
chroot "$root" /bin/sh -c 'lintian --version && lintian --allow-root --fail-on error,warning --display-info \
  --show-overrides --tag-display-limit 0 --suppress-tags initial-upload-closes-no-bugs /tmp/*.deb'
