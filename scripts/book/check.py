#!/usr/bin/env python3
"""check.py SITE - every link of a built site leads somewhere, and nothing is loaded from elsewhere.

Reads each page of SITE: links, images, scripts and styles lead to files of the site, anchors to an element with that
id. Pages may link to other sites; they may not load from them. Each page can be reached from index.html, and the
index of the search is there. Prints what is wrong; the status is 1 if anything is.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("object", "data")}


class Document(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.again = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                if value in self.ids:
                    self.again.append((self.getpos()[0], value))
                self.ids.add(value)
            elif value and ((tag, name) == ("a", "href") or (tag, name) in LOADS):
                self.links.append((self.getpos()[0], value, (tag, name) in LOADS))


def main():
    site = Path(sys.argv[1]).resolve()
    documents = {file: Document(file.read_text()) for file in sorted(site.rglob("*.html"))}
    wrong, reached, count = [], {site / "index.html"}, 0
    for file, document in documents.items():
        for line, target, loads in document.links:
            count += 1
            where = f"{file.relative_to(site)}:{line}"
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if loads and parts.scheme != "data":
                    wrong.append(f"{where}: {target} is loaded from another site")
                continue
            there = file if not parts.path else (file.parent / unquote(parts.path)).resolve()
            if not there.is_file() or site not in there.parents:
                wrong.append(f"{where}: the link to {target} is dead")
                continue
            reached.add(there)
            wanted = unquote(parts.fragment)
            if wanted and there in documents and wanted not in documents[there].ids:
                wrong.append(f"{where}: the link to {target} is dead: there is no #{wanted}")
        wrong += [f"{file.relative_to(site)}:{line}: a second element has the id {of}" for line, of in document.again]
    if not reached > {site / "index.html"} or not list(site.glob("searchindex*.js")):
        wrong.append("the site has no pages, or no search")
    # mdBook's list of chapters is a script, which each page loads, and a page of its own for browsers without.
    wrong += [f"{file.relative_to(site)}: no page leads to it" for file in documents
              if file not in reached and file.name != "toc.html"]
    print("\n".join(wrong) or f"check: {count} links of {len(documents)} pages lead somewhere")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
