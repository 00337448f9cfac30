"""Drawings inside a page: the pictures of matplotlib made to live there, and keys of lines."""

from __future__ import annotations

import re
from typing import Any

from fastfed.report.canvas import NOT_PRIVATE
from fastfed.report.html import Html, element

#: Length and height of a line in a table, in CSS pixels.
KEY = (28, 8)


def inline(svg: bytes, prefix: str, label: str) -> Html:
    """A picture as an element that scales, called ``label`` by screen readers.

    ``prefix`` goes before its ids: pages hold several pictures, and ids must differ. Its style
    sheet is dropped, for inside a page it would hold for the whole page.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style\b.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}-", text)
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height)="[^"]*"', "", opening)
    # The label is escaped as an attribute by building an element around nothing.
    named = element("svg", role="img", aria_label=label).removesuffix("></svg>")
    return Html(f"{named}{opening.removeprefix('<svg')}>{rest.strip()}")


def key(style: dict[str, Any]) -> Html:
    """The line of a curve as it is drawn, to stand before its label."""
    width, height = KEY
    dashes = style["linestyle"]
    pattern = None if dashes == "-" else " ".join(f"{1.8 * d:g}" for d in dashes[1])
    line = element(
        "line",
        x1="0",
        y1=f"{height / 2:g}",
        x2=f"{width}",
        y2=f"{height / 2:g}",
        # Black would not be seen on a dark page.
        stroke="currentColor" if style["color"] == NOT_PRIVATE else style["color"],
        stroke_width="2.5",
        stroke_dasharray=pattern,
    )
    return element(
        "svg",
        line,
        class_="key",
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        height=str(height),
        aria_hidden="true",
    )
