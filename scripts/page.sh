#!/usr/bin/env bash
# page.sh check|browser [ARGUMENTS...] - the controller's page (crates/controller/page): tests its functions, and that
# its types are those of the API's document and its bundle that of its sources; or runs its flows in a real browser,
# with the arguments of browser/run.mjs.
#
# Takes node 20.11 or newer and npm, which fetches what package-lock.json names; the browser is Debian's chromium. Ends
# with 3 where these cannot be had.
set -euo pipefail
export LC_ALL=C
case ${1-} in check | browser) ;; *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac
cd "$(dirname "$0")/../crates/controller/page"
skip() { echo "page: skipped: $*" >&2; exit 3; }

command -v node >/dev/null || skip "no node"
command -v npm >/dev/null || skip "no npm"
node --input-type=module -e 'process.exit(import.meta.dirname ? 0 : 1)' 2>/dev/null ||
  skip "node $(node --version) is older than 20.11"
# What is there stays, as long as it is what the lock file names.
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
  timeout 300 npm ci --no-audit --no-fund --loglevel=error >&2 || skip "npm cannot fetch what the page is built with"
  touch node_modules/.package-lock.json
fi

case $1 in
  check)
    npm run --silent check
    npm test --silent
    new=$(mktemp -d)
    trap 'rm -rf "$new"' EXIT
    cp src/api.d.ts "$new/api.d.ts"
    npm run --silent types >/dev/null
    cmp -s src/api.d.ts "$new/api.d.ts" || {
      cp "$new/api.d.ts" src/api.d.ts
      echo "page: src/api.d.ts is not of crates/controller/openapi.json: run npm run types there" >&2
      exit 1
    }
    node build.mjs --out "$new/dist"
    diff -rq dist "$new/dist" || {
      echo "page: dist is not the bundle of src: run npm run build there, and commit both" >&2
      exit 1
    }
    ;;
  browser)
    command -v chromium >/dev/null || skip "no chromium"
    shift
    node browser/run.mjs "$@"
    ;;
esac
