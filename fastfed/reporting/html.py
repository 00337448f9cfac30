"""HTML elements, the style sheet of reports, and samples of lines."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from fastfed.reporting.figure import BOUND_COLOUR as BOUND
from fastfed.reporting.panels import COLOURS, NOT_PRIVATE_COLOUR, RANGE_COLOUR

# ---- The style sheet of reports: system fonts, light and dark, narrow screens, print -------------

CSS = """
:root {
  color-scheme: light dark;
  --text: #1d2126; --quiet: #5a626c; --page: #fbfaf8; --card: #ffffff; --line: #dcdad4;
  --accent: #24527a; --good: #1b6b34; --good-back: #e3f2e6; --bad: #a3262a; --bad-back: #fbe7e5;
  --open: #7a5300; --open-back: #faf0d7; --none: #4d5560; --none-back: #ebedf0;
  --grid: #dddddd; --bound: #777777; --range: #999999;
  --c1: #4477aa; --c2: #ee6677; --c3: #228833; --c4: #aa3377; --c5: #2aa6d6; --c6: #b5a020;
  --c7: #9a9a9a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --text: #e4e3e0; --quiet: #a3a8ae; --page: #17191c; --card: #1f2226; --line: #383c42;
    --accent: #8fbfe8; --good: #8fd6a3; --good-back: #1c3324; --bad: #f2a29c; --bad-back: #3d2121;
    --open: #ecc779; --open-back: #382d14; --none: #b6bcc4; --none-back: #2c3036;
    --grid: #3a3f46; --bound: #9aa0a8; --range: #80868e;
    --c1: #77aadd; --c2: #ff8895; --c3: #55bb66; --c4: #dd77b0; --c5: #66ccee; --c6: #d8c95e;
    --c7: #bbbbbb;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; padding: 3rem 1.5rem 5rem; max-width: 76rem;
  background: var(--page); color: var(--text);
  font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: break-word;
}
h1, h2, h3, h4 { line-height: 1.25; text-wrap: balance; }
h1, h2.title {
  font-family: "Iowan Old Style", "Palatino Linotype", Palatino, "Source Serif 4", Georgia, serif;
  font-weight: 600; letter-spacing: -0.01em;
}
h1 { font-size: 2.1rem; margin: 0 0 0.4rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 0.8rem; }
h2.title { font-size: 1.75rem; margin: 0 0 0.3rem; }
h3 { font-size: 1.15rem; margin: 2.4rem 0 0.7rem; }
h4 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p { margin: 0.5rem 0; max-width: 44rem; }
a { color: var(--accent); text-underline-offset: 0.15em; }
.uncovered { border-left: 0.25rem solid currentColor; padding-left: 0.75rem; }
.quiet { color: var(--quiet); font-size: 0.9em; font-weight: 400; }
.keep { white-space: nowrap; }
.answer { max-width: 60rem; }
.above { color: var(--quiet); font-size: 0.85rem; margin: 0 0 0.35rem; }
section.experiment { margin-top: 4.5rem; padding-top: 2.5rem; border-top: 1px solid var(--line); }

.pictures {
  display: grid; gap: 1rem 1.5rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
}
figure { margin: 0.4rem 0; min-width: 0; max-width: 36rem; }
figure .card {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 0.8rem;
}
figure .card > svg {
  display: block; width: 100%; height: auto; font-family: system-ui, sans-serif;
}
figure .card svg text { fill: var(--text); }
figure .card svg * { stroke-linejoin: round; stroke-linecap: butt; }
ul.legend { list-style: none; padding: 0; margin: 0.5rem 0 0; font-size: 0.85rem; }
ul.legend > li { display: flex; align-items: center; }
ul.legend span { min-width: 0; overflow-wrap: anywhere; }
figcaption, .caption {
  color: var(--quiet); font-size: 0.9rem; margin: 0.5rem 0 1.6rem; max-width: 44rem;
}
.tag {
  color: var(--quiet); border: 1px solid var(--line); border-radius: 4px; padding: 0 0.35em;
  font-size: 0.78em; white-space: nowrap;
}

.scroll {
  overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--card);
  margin: 0.8rem 0;
}
.scroll:focus-visible, summary:focus-visible, a:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px;
}
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.9rem; }
th, td { padding: 0.5rem 0.85rem; text-align: left; vertical-align: top; }
thead th {
  color: var(--quiet); font-weight: 600; font-size: 0.82rem;
  border-bottom: 1px solid var(--line);
}
tbody tr + tr > * { border-top: 1px solid var(--line); }
tbody th { font-weight: 600; }
tbody th { overflow-wrap: anywhere; }
thead th { overflow-wrap: normal; vertical-align: bottom; }
.number { white-space: nowrap; }
tbody th { min-width: 9rem; }
.wide tbody th { min-width: 11rem; font-weight: 400; }
tbody th a { font-weight: 600; }
.conditions tbody th { width: 50%; }
.failing { color: var(--bad); }
.number { text-align: right; }
td, .number, .pairs { font-variant-numeric: tabular-nums; }
svg.key { vertical-align: middle; margin-right: 0.6rem; flex: none; }

.sweep th, .sweep td { white-space: nowrap; }
.sweep tbody th { min-width: 0; }
.search input {
  font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 0.3rem 0.6rem; width: min(100%, 24rem);
}
.sweep thead button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
.sweep thead button::after { content: " ↕"; opacity: 0.5; }
.sweep th[aria-sort="ascending"] button::after { content: " ↑"; opacity: 1; }
.sweep th[aria-sort="descending"] button::after { content: " ↓"; opacity: 1; }
.heat { width: fit-content; max-width: 100%; }
.heat table { width: auto; }
.heat th, .heat td { padding: 0.35rem 0.7rem; text-align: right; white-space: nowrap; }
.heat tbody th { min-width: 0; }
.heat td { background: color-mix(in srgb, var(--accent) var(--share, 0%), var(--card)); }

.mark {
  display: inline-block; padding: 0.05em 0.65em; border-radius: 99px; font-size: 0.95em;
  font-weight: 600; white-space: nowrap;
}
.holds, .proven { color: var(--good); background: var(--good-back); }
.fails { color: var(--bad); background: var(--bad-back); }
.undecided, .unproven, .conditional { color: var(--open); background: var(--open-back); }
.none, .not-judged, .not-played { color: var(--none); background: var(--none-back); }
ul { padding-left: 1.2rem; margin: 0.5rem 0; }
ul.statements { list-style: none; padding: 0; }
ul.statements > li {
  display: grid; grid-template-columns: 7.5rem 1fr; gap: 0.2rem 0.5rem; align-items: baseline;
  padding: 0.7rem 0; border-top: 1px solid var(--line);
}
ul.statements > li:last-child { border-bottom: 1px solid var(--line); }
ul.pairs {
  list-style: none; padding: 0; margin: 0.25rem 0 0; color: var(--quiet); font-size: 0.9rem;
}

details {
  border: 1px solid var(--line); border-radius: 10px; background: var(--card); margin: 0.6rem 0;
  padding: 0 1rem;
}
summary { cursor: pointer; padding: 0.6rem 0; font-weight: 600; }
summary .quiet { font-weight: 400; }
details[open] > summary { border-bottom: 1px solid var(--line); margin-bottom: 0.8rem; }
details > .scroll { margin: 0 0 1rem; }
dl {
  display: grid; grid-template-columns: 9rem minmax(0, 1fr); gap: 0.3rem 1rem;
  margin: 0.6rem 0 1rem; font-size: 0.92rem;
}
dt { color: var(--quiet); grid-column: 1; }
dd { margin: 0; grid-column: 2; }
pre {
  overflow-x: auto; margin: 0 0 1rem;
  font: 0.85rem/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace;
}
footer { margin-top: 4rem; padding-top: 1rem; border-top: 1px solid var(--line); }

@media (min-width: 80rem) {
  /* A table that is wider than the text uses the room at both sides. */
  .sweep.scroll {
    width: max-content; min-width: 100%; max-width: calc(100vw - 4rem);
    position: relative; left: 50%; transform: translateX(-50%);
  }
}
@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.65rem; }
  h2.title { font-size: 1.45rem; }
  figure .card { margin-inline: -1rem; border-radius: 0; border-inline: 0; padding: 0.4rem; }
  ul.statements > li { grid-template-columns: 1fr; }
  th, td { padding: 0.45rem 0.65rem; }
  dl { grid-template-columns: 6.5rem minmax(0, 1fr); gap: 0.3rem 0.6rem; }
  thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table, tbody, tbody tr, tbody th, tbody td { display: block; width: 100%; min-width: 0; }
  tbody tr { padding: 0.5rem 0; }
  tbody tr + tr { border-top: 1px solid var(--line); }
  tbody tr + tr > * { border-top: 0; }
  tbody th, .wide tbody th, .conditions tbody th {
    min-width: 0; width: 100%; padding-block: 0.2rem;
  }
  tbody td, .number {
    display: grid; grid-template-columns: 7.5rem minmax(0, 1fr); gap: 0 0.6rem; text-align: left;
    padding-block: 0.12rem; white-space: normal;
  }
  tbody td::before { content: attr(data-label); color: var(--quiet); }
  tbody td > * { min-width: 0; justify-self: start; }
  .heat thead { display: table-header-group; position: static; clip-path: none; }
  .heat table { display: table; width: auto; }
  .heat tbody { display: table-row-group; }
  .heat tbody tr { display: table-row; }
  .heat tbody th, .heat tbody td { display: table-cell; width: auto; padding: 0.3rem 0.5rem; }
  .heat tbody td::before { content: none; }
  .sweep tbody tr[hidden] { display: none; }
}
@page { margin: 16mm 14mm; }
@media print {
  :root {
    color-scheme: light;
    --text: #000; --quiet: #444; --page: #fff; --card: #fff; --line: #bbb; --accent: #000;
    --good: #0c4a20; --bad: #7a1216; --open: #553a00; --none: #333;
    --good-back: #fff; --bad-back: #fff; --open-back: #fff; --none-back: #fff;
    --grid: #ddd; --bound: #777; --range: #999;
    --c1: #4477aa; --c2: #ee6677; --c3: #228833; --c4: #aa3377; --c5: #2aa6d6; --c6: #b5a020;
    --c7: #9a9a9a;
  }
  html { font-size: 9.5pt; }
  body { padding: 0; max-width: none; }
  section.experiment { break-before: page; margin-top: 0; padding-top: 0; border-top: 0; }
  .mark { border: 1px solid currentColor; }
  h1, h2, h3, h4, summary { break-after: avoid; }
  figure, tr, ul.statements > li { break-inside: avoid; }
  figure { max-width: 15cm; }
  figure .card { border: 0; padding: 0; }
  .scroll { overflow: visible; border-radius: 0; border-width: 1px 0; }
  th, td { padding: 0.25rem 0.4rem; white-space: normal; }
  summary { list-style: none; }
  .search { display: none; }
  tbody th, .wide tbody th { min-width: 0; }
  details { border: 0; padding: 0; }
  details::details-content { content-visibility: visible; block-size: auto; }
  pre { white-space: pre-wrap; columns: 2; font-size: 0.75rem; }
}
"""


# ---- Elements. Plain text is escaped when it becomes part of an element --------------------------

#: Elements without content, which have no end tag.
VOID = ("hr", "link", "meta")


class Html(str):
    """Text that is already HTML. Functions of this module escape any other text."""


def element(tag: str, /, *content: str | Iterable[str], **attributes: str | None) -> Html:
    """Return <tag>content</tag>, with text escaped and lists flattened.

    Write ``class_`` for the attribute class and ``aria_label`` for aria-label. An attribute whose
    value is None is left out; an attribute whose value is "" is written without a value.
    """
    attribute_text = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + (f'="{_escaped(value)}"' if value else "")
        for key, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{attribute_text}>")
    return Html(f"<{tag}{attribute_text}>{join(*content)}</{tag}>")


#: Characters that HTML does not allow, each with its replacement.
_CONTROLS = {code: "\ufffd" for code in (*range(32), 0xFFFE, 0xFFFF) if chr(code) not in "\t\n\r"}


def _escaped(text: str) -> str:
    """Return text with special characters escaped, and characters replaced that HTML forbids."""
    return html.escape(text.translate(_CONTROLS))


def join(*content: str | Iterable[str]) -> Html:
    """Return texts and elements as one piece of HTML, in order; lists are flattened."""
    parts: list[str] = []
    for part in content:
        if isinstance(part, Html):
            parts.append(part)
        elif isinstance(part, str):
            parts.append(_escaped(part))
        else:
            parts.extend(join(p) for p in part)
    return Html("".join(parts))


#: The text of a guarantee (epsilon, delta). No line may break inside it, as at the hyphen of 1e-06.
PAIR = re.compile(r"\([\d.e+-]+, [\d.e+-]+\)")


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    label: str,
    numbers: Iterable[int] = (),
    class_: str | None = None,
) -> Html:
    """Return a table in a box that scrolls; the first cell of each row is the heading of the row.

    On narrow screens a row becomes a block, with the heading of the column before each cell.
    Columns ``numbers`` are aligned to the right. ``label`` is the name for screen readers.
    """
    right, names = set(numbers), list(headings)

    def cell(position: int, content: str, head: bool) -> Html:
        """Return the cell at a position in its row; ``head`` if it is in the row of headings."""
        alignment = "number" if position in right else None
        if head:
            return element("th", content, scope="col", class_=alignment)
        if position == 0:
            return element("th", content, scope="row", class_=alignment)
        # On a narrow screen, CSS shows a cell as a grid of two columns: heading and content. So the
        # content must be one element.
        inner = element("div", content, class_="keep" if PAIR.fullmatch(str(content)) else None)
        return element("td", inner, class_=alignment, data_label=str(names[position]))

    head = element("tr", [cell(i, h, True) for i, h in enumerate(names)])
    body = [element("tr", [cell(i, c, False) for i, c in enumerate(row)]) for row in rows]
    return element(
        "div",
        element("table", element("thead", head), "\n", element("tbody", *_lines(body))),
        class_=f"scroll {class_}" if class_ else "scroll",
        role="region",
        aria_label=label,
        tabindex="0",
    )


def definitions(pairs: Iterable[tuple[str, str | Iterable[str]]]) -> Html:
    """Return a list of names with their texts; names without texts are left out."""
    rows: list[str] = []
    for name, texts in pairs:
        entries = [texts] if isinstance(texts, str) else list(texts)
        if entries:
            rows.append(element("dt", name))
            rows += [element("dd", text) for text in entries]
    return element("dl", rows)


def details(summary: str | Html, *content: str | Iterable[str], open_: bool = False) -> Html:
    """Return content that can be unfolded, and that is unfolded in print."""
    return element("details", element("summary", summary), *content, open_="" if open_ else None)


def _lines(elements: Iterable[Html]) -> list[Html]:
    """Return elements with a line break after each."""
    return [Html(f"{e}\n") for e in elements]


# ---- Colours of charts in a report, and samples of lines -----------------------------------------

#: Width and height of the sample of a line, and thickness of the line, in CSS pixels.
KEY = (28, 8, 2.5)


#: Maps the colour of a curve or bound to its CSS variable, which suits light and dark themes.
VARIABLES = {
    NOT_PRIVATE_COLOUR: "var(--text)",
    BOUND: "var(--bound)",
    RANGE_COLOUR: "var(--range)",
    **{colour: f"var(--c{i + 1})" for i, colour in enumerate(COLOURS)},
}


def stroke(style: dict[str, Any], width: float, dashes: float | None = None) -> str:
    """Return the CSS of a line with the colour and the dashes of ``style``.

    The lengths of dashes in ``style`` are multiples of ``dashes``, by default of ``width``.
    """
    text = f"fill: none; stroke: {VARIABLES[style['color']]}; stroke-width: {width:g}"
    if style["linestyle"] == "-":
        return text
    pattern = " ".join(f"{(dashes or width) * length:g}" for length in style["linestyle"][1])
    return f"{text}; stroke-dasharray: {pattern}"


def key(style: dict[str, Any]) -> Html:
    """Return a sample of a curve's line, which is put before the label of the curve."""
    width, height, thickness = KEY
    middle = f"{height / 2:g}"
    line_style = stroke(style, thickness, dashes=1.8)
    line = element("line", x1="0", y1=middle, x2=f"{width}", y2=middle, style=line_style)
    return element(
        "svg",
        line,
        class_="key",
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        height=str(height),
        aria_hidden="true",
    )
