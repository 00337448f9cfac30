"""Every link, picture and anchor of a site leads somewhere in it; nothing is loaded from elsewhere.

python scripts/site/links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: What a page loads by itself. Links that a reader follows may lead anywhere.
LOADS = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[tuple[str, bool]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.targets.append((given["href"], False))
        if tag in LOADS and LOADS[tag] in given and given.get("rel") != "canonical":
            self.targets.append((given[LOADS[tag]], True))


def broken(site: Path) -> tuple[int, list[str]]:
    """The number of pages, and a line for every target that is not there."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        for target, loaded in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if loaded and url.scheme != "data":
                    lines.append(f"{path.relative_to(site.resolve())}: loads {target}")
                continue
            # Only the page of what is not found has links from the site's top.
            start = site.resolve() if url.path.startswith("/") else path.parent
            found = (start / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if found.is_dir():
                found /= "index.html"
            if not found.exists():
                lines.append(f"{path.relative_to(site.resolve())}: no file for {target}")
            elif (
                url.fragment
                and not loaded
                and found in pages
                and (unquote(url.fragment) not in pages[found].anchors)
            ):
                lines.append(f"{path.relative_to(site.resolve())}: no anchor for {target}")
    return len(pages), lines


if __name__ == "__main__":
    count, lines = broken(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{count} pages, {len(lines)} broken links")
    sys.exit(bool(lines))
