#!/usr/bin/env python3
"""stage.py OUT [BASE] - copies docs/ to OUT as mdBook wants it, run from the project's root.

A link that leaves docs/ would be dead in the site. So what it leads to is given a place in it: a document becomes a
page (PAGES), a source file a page that shows it below files/, a folder a list of its files. With BASE, the address of
the repository's files (https://HOST/OWNER/NAME/blob/main), sources are linked there instead.
"""

import html
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

import rest_api

# Documents outside docs/ that are pages of the book, and their names there.
PAGES = {
    "README.md": "project/about.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
FENCE = re.compile(r"^\s*(```|~~~)")
# `[text](target)`, also where the text goes on from the line before; not within `code`.
LINK = re.compile(r"(`[^`\n]*`)|\]\(([^)\s]+)\)")


def place(path):
    """The place in the book of a file of the tree, with `/` between folders; None: it has none."""
    if path.startswith("docs/"):
        path = path.removeprefix("docs/")
        # mdBook makes index.html of README.md, and does not follow with the links to it.
        return re.sub(r"(^|/)README\.md$", r"\1index.md", path)
    return PAGES.get(path)


class Stage:
    def __init__(self, out, base):
        self.out, self.base, self.shown = out, base, set()
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                               capture_output=True, text=True, check=False)
        listed = names.stdout.split("\0") if names.returncode == 0 else (str(p) for p in Path(".").rglob("*"))
        self.tree = {name for name in listed if name and not name.startswith("target/") and Path(name).is_file()}

    def page(self, path):
        """Copies a document, with its links."""
        text = Path(path).read_text()
        if path == "docs/rest-api.md":
            text += rest_api.reference(Path("crates/controller"))
        lines, code = [], None
        for line in text.split("\n"):
            fence = FENCE.match(line)
            if fence and code in (None, fence[1]):
                code = None if code else fence[1]
            elif not code:
                line = LINK.sub(lambda found: self.link(path, found), line)
            lines.append(line)
        self.write(place(path), "\n".join(lines))

    def link(self, path, found):
        target = found[2]
        if found[1] or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|#", target):
            return found[0]
        file, sign, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        if wanted == "docs":
            wanted = "docs/README.md"
        # mdBook makes no page of its list of pages: that is shown as sources are.
        there = None if wanted == "docs/SUMMARY.md" else place(wanted)
        if there is None:
            if self.base:
                return f"]({self.base}/{wanted}{sign}{anchor})"
            there = self.show(wanted)
        here = posixpath.dirname(place(path))
        return f"]({posixpath.relpath(there, here or '.')}{sign}{anchor})"

    def show(self, path):
        """Makes the page of a source file or a folder, and returns its place."""
        # mdBook takes `.md` within a name for a page's end, too.
        there = f"files/{path.replace('.md', '-md')}.html"
        if path in self.shown:
            return there
        self.shown.add(path)
        if path in self.tree:
            lines = Path(path).read_text().splitlines()
            body = "".join(f'<span id="L{n}">{html.escape(line)}\n</span>' for n, line in enumerate(lines, 1))
            body = f"<pre>{body}</pre>"
        else:
            inside = sorted(name for name in self.tree if posixpath.dirname(name) == path)
            if not inside:
                sys.exit(f"stage.py: {path} is linked, and is not there")
            items = (f'<li><a href="{posixpath.relpath(self.show(name), posixpath.dirname(there))}">'
                     f"{html.escape(posixpath.basename(name))}</a></li>" for name in inside)
            body = f"<ul>{''.join(items)}</ul>"
        up = posixpath.relpath("index.html", posixpath.dirname(there))
        self.write(there, f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{html.escape(path)}</title>
<style>
:root {{ color-scheme: light dark; font-family: sans-serif; }}
pre {{ font: 0.85rem/1.4 monospace; overflow-x: auto; }}
span:target {{ background: Mark; color: MarkText; }}
</style></head>
<body><p><a href="{up}">Skein</a> / {html.escape(path)}</p>
{body}
</body></html>
""")
        return there

    def write(self, there, text):
        file = self.out / there
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def main():
    out, base = Path(sys.argv[1]), (sys.argv[2].rstrip("/") if len(sys.argv) > 2 else "")
    shutil.rmtree(out, ignore_errors=True)
    stage = Stage(out, base)
    for path in sorted(stage.tree):
        if path in PAGES or (path.startswith("docs/") and path.endswith(".md")):
            stage.page(path)
        elif path.startswith("docs/"):
            (out / place(path)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, out / place(path))


if __name__ == "__main__":
    main()
