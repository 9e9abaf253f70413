#!/usr/bin/env bash
# packages.sh [DIRECTORY] - makes Debian packages of what scripts/build.sh left in target/release, in target/packages or
# another directory, which is emptied before: skein (agent and commands), skein-controller, skein-lab.
#
#   skein_VERSION_amd64.deb ...   the packages
#   skein.cdx.json ...            what each program is made of (CycloneDX)
#   RELEASE-NOTES.md              the newest section of CHANGELOG.md
#   SHA256SUMS                    of all of these
#
#   PACKAGE_VERSION      default: the version in Cargo.toml, and between releases the commit's time and name behind it
#   PACKAGE_MAINTAINER   default: no person, at an address that takes no mail
#   SOURCE_DATE_EPOCH    default: the commit's time
#   ETCD, EXACT          as for the build; only for what is said of the programs
#
# The same programs and settings give the same bytes, wherever and by whomever they are packed. A package goes where the
# C library is at least as new as here: of Debian 12 to Debian 12, 13 and Ubuntu 24.04. Nothing is installed here.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
cd "$(dirname "$0")/.."
. scripts/env.sh
case ${1-} in -*) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac
die() { echo "packages: $*" >&2; exit 1; }

for tool in dpkg-deb:dpkg dpkg-shlibdeps:dpkg-dev objcopy:binutils python3:python3 xz:xz-utils; do
  command -v "${tool%:*}" >/dev/null || die "there is no ${tool%:*}: install ${tool#*:}"
done
out=${1:-target/packages}
workload=target/guest/guest/skein-workload
for program in target/release/{skein,skein-controller,skein-lab} "$workload"; do
  [ -x "$program" ] || die "there is no $program: run 'make build lab controller' first"
done

# ---- version and time ----
commit=$(git rev-parse HEAD 2>/dev/null) || commit=
if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
  # Without git it is the day of the newest release.
  day=$(sed -nE 's/^## [0-9].* - ([0-9]{4}-[0-9]{2}-[0-9]{2})$/\1/p' CHANGELOG.md | head -n 1)
  SOURCE_DATE_EPOCH=$([ -n "$commit" ] && git log -1 --format=%ct || date -d "${day:-1970-01-01}" +%s)
fi
export SOURCE_DATE_EPOCH
version=${PACKAGE_VERSION-}
if [ -z "$version" ]; then
  version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
  # A commit behind a release sorts behind it, and before the next.
  if [ -n "$commit" ] && ! git tag --points-at HEAD | grep -qx "v$version"; then
    version+=+$(date -d "@$SOURCE_DATE_EPOCH" +%Y%m%d%H%M).g${commit:0:8}
  fi
  version+=-1
fi
maintainer=${PACKAGE_MAINTAINER:-Skein <skein@skein.invalid>}

work=$(mktemp -d "${TMPDIR:-/tmp}/skein-packages.XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"
out=$(realpath "$out")

# ---- what is in each package ----
DESTDIR=$work/skein PREFIX=/usr BINARY='' scripts/install.sh install >/dev/null
DESTDIR=$work/skein-controller PREFIX=/usr BINARY='' scripts/install.sh install controller >/dev/null
# The lab looks for the guest's program and for skein beside its own program.
lab=$work/skein-lab/usr/lib/skein-lab
mkdir -p "$lab/guest/guest" "$work/skein-lab/usr/bin" "$work/skein-lab/usr/share/man/man1"
objcopy --strip-all target/release/skein-lab "$lab/skein-lab"
objcopy --strip-all "$workload" "$lab/guest/guest/skein-workload"
# Programs keep the modes that a build gave them.
chmod 755 "$lab/skein-lab" "$lab/guest/guest/skein-workload"
ln -s ../../bin/skein "$lab/skein"
ln -s ../lib/skein-lab/skein-lab "$work/skein-lab/usr/bin/skein-lab"
target/release/skein-lab man --out "$work/skein-lab/usr/share/man/man1"
completion() {
  mkdir -p "$work/skein-lab/usr/share/${2%/*}"
  target/release/skein-lab completions "$1" >"$work/skein-lab/usr/share/$2"
}
completion bash bash-completion/completions/skein-lab
completion zsh zsh/vendor-completions/_skein-lab
completion fish fish/vendor_completions.d/skein-lab.fish

# libraries PROGRAM... - prints the dependencies on packages with libraries.
libraries() {
  local found
  mkdir -p "$work/debian"
  printf 'Source: skein\n\nPackage: skein\nArchitecture: any\n' >"$work/debian/control"
  found=$(cd "$work" && dpkg-shlibdeps -O "${@/#/-e}" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
  [ -n "$found" ] || die "dpkg-shlibdeps finds no libraries of $*"
  # dpkg does not know of these relocations, which older C libraries refuse (crates/cli/build.rs).
  if readelf --dynamic --wide "$@" | grep -q '(RELR)'; then
    found=$(sed -E 's/\blibc6 \(>= 2\.(2|3[0-5])[0-9.]*\)/libc6 (>= 2.36)/' <<<"$found")
  fi
  echo "$found"
}

# document NAME - adds what each package has below /usr/share/doc, and packs its manual pages.
document() {
  local doc=$work/$1/usr/share/doc/$1
  mkdir -p "$doc"
  # A checkout's modes are those of whoever made it.
  install -m 644 packages/copyright "$doc/copyright"
  install -m 644 CHANGELOG.md "$doc/changelog"
  printf '%s (%s) unstable; urgency=medium\n\n  * %s\n\n -- %s  %s\n' "$1" "$version" \
    "What changed is told in changelog.gz beside this file." "$maintainer" \
    "$(date -d "@$SOURCE_DATE_EPOCH" -R)" >"$doc/changelog.Debian"
  install -m 644 "$out/$1.cdx.json" "$doc/sbom.cdx.json"
  gzip -9n "$doc"/{changelog,changelog.Debian,sbom.cdx.json}
  if [ "$1" = skein ]; then
    install -D -m 644 -t "$doc/examples" contrib/prometheus/skein-alerts.yml contrib/grafana/skein.json
  fi
  find "$work/$1/usr/share/man" -name '*.1' -exec gzip -9n {} +
  if [ -e "packages/$1/lintian-overrides" ]; then
    install -D -m 644 "packages/$1/lintian-overrides" "$work/$1/usr/share/lintian/overrides/$1"
  fi
}

# installed_size DIRECTORY - prints the KiB of what a package installs, as dpkg-gencontrol reckons it: a directory or a
# link counts as one, since its size depends on the file system.
installed_size() {
  find "$1" -mindepth 1 -path "$1/DEBIAN" -prune -o -type f -printf '%s\n' -o -printf '1\n' |
    awk '{ kib += int(($1 + 1023) / 1024) } END { print kib }'
}

# pack NAME PROGRAM... - makes a package of its staging tree; PROGRAM is what needs libraries.
pack() {
  local name=$1 root=$work/$1 file
  shift
  # What only debuggers read is five times the rest. Compilers' names are of no use, either.
  rm -rf "$root/usr/lib/debug"
  for file; do objcopy --remove-section .comment "$root/$file"; done
  document "$name"
  mkdir "$root/DEBIAN"
  for file in packages/"$name"/{postinst,prerm,postrm}; do
    [ ! -e "$file" ] || install -m 755 "$file" "$root/DEBIAN/"
  done
  if [ -e "packages/$name/needrestart.conf" ]; then
    install -D -m 644 "packages/$name/needrestart.conf" "$root/etc/needrestart/conf.d/skein.conf"
  fi
  # What is in /etc is the host's once it is installed: dpkg asks before it replaces what was changed.
  [ ! -d "$root/etc" ] || (cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
  (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
  sed -e "s/@VERSION@/$version/; s/@MAINTAINER@/$maintainer/; s/@LIBRARIES@/$(libraries "${@/#/$root/}")/" \
    -e "s/@SIZE@/$(installed_size "$root")/" "packages/$name/control" >"$root/DEBIAN/control"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  # With one thread the packed bytes do not depend on the machine.
  DPKG_DEB_THREADS_MAX=1 dpkg-deb --root-owner-group -Zxz --build "$root" \
    "$out/${name}_${version}_amd64.deb" >/dev/null
}

scripts/sbom.py skein "$version" ${EXACT:+skein/exact} >"$out/skein.cdx.json"
scripts/sbom.py skein-controller "$version" ${ETCD:+skein-controller/etcd} >"$out/skein-controller.cdx.json"
scripts/sbom.py skein-lab "$version" ${EXACT:+skein-lab/exact} >"$out/skein-lab.cdx.json"
pack skein usr/bin/skein
pack skein-controller usr/bin/skein-controller
pack skein-lab usr/lib/skein-lab/skein-lab

# ---- notes and checksums ----
# The newest section that has anything in it; its heading gets the version if it has none yet.
awk -v version="$version" '
  /^## / { if (text ~ /[^[:space:]]/) exit; heading = $0; text = ""; next }
  heading { text = text $0 "\n" }
  END {
    sub(/^## Unreleased$/, "## " version, heading)
    sub(/^## /, "# Skein ", heading)
    printf "%s\n%s", heading, text
  }
' CHANGELOG.md >"$out/RELEASE-NOTES.md"
(cd "$out" && sha256sum -- *.deb *.cdx.json RELEASE-NOTES.md >SHA256SUMS && cat SHA256SUMS)
