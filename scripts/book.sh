#!/usr/bin/env bash
# book.sh - makes one static site of docs/: target/book/index.html, which needs no server and nothing from elsewhere.
#
# A page of the REST API is made from the controller's OpenAPI document. What docs/ links to elsewhere in the tree comes
# into the site, too; with BOOK_REPOSITORY=https://HOST/OWNER/NAME/blob/main sources are linked there instead. At last
# all links of the site are followed: one that leads nowhere is a failure.
#
# Status 3: mdBook is not available here (scripts/mdbook.sh).
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."
command -v python3 >/dev/null || { echo "book: skipped: it takes python3: apt-get install python3" >&2; exit 3; }
scripts/mdbook.sh
python3 scripts/book/stage.py target/book-src "${BOOK_REPOSITORY-}"
log=$(target/mdbook/bin/mdbook build 2>&1) || { echo "$log" >&2; exit 1; }
# A warning is of a page that is not as it was meant, as by `<` for a tag.
if grep -E '^ *(WARN|ERROR)' <<<"$log"; then
  echo "book: mend what mdBook warns of; the pages are in target/book-src" >&2
  exit 1
fi
# It is for a server at whose root the site is, and loads nothing from a disk.
rm target/book/404.html
python3 scripts/book/check.py target/book
echo "book: target/book/index.html"
