"""Check that links, images and anchors of a site exist, and that it loads nothing from elsewhere.

python scripts/site/links.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Elements and attributes by which a page loads files. Links may lead to other sites.
LOADS = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}


class Page(HTMLParser):
    """The anchors of a page, and its targets: (address, True if the page loads it)."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.targets: list[tuple[str, bool]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.targets.append((attributes["href"], False))
        if tag in LOADS and LOADS[tag] in attributes and attributes.get("rel") != "canonical":
            self.targets.append((attributes[LOADS[tag]], True))


def broken(site: Path) -> tuple[int, list[str]]:
    """Return the number of pages, and a line for each missing or external target."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    lines = []
    for path, page in pages.items():
        for target, loaded in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if loaded and url.scheme != "data":
                    lines.append(f"{path.relative_to(site.resolve())}: loads {target}")
                continue
            # Only the page 404.html has links from the root of the site.
            start = site.resolve() if url.path.startswith("/") else path.parent
            file = (start / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if file.is_dir():
                file /= "index.html"
            if not file.exists():
                lines.append(f"{path.relative_to(site.resolve())}: no file for {target}")
            elif (
                url.fragment
                and not loaded
                and file in pages
                and (unquote(url.fragment) not in pages[file].anchors)
            ):
                lines.append(f"{path.relative_to(site.resolve())}: no anchor for {target}")
    return len(pages), lines


if __name__ == "__main__":
    count, lines = broken(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    print(f"{count} pages, {len(lines)} broken links")
    sys.exit(bool(lines))
