"""Elements of a page. Plain text becomes safe the moment it enters one."""

from __future__ import annotations

import html
from collections.abc import Iterable

#: Elements without content, which have no end tag.
VOID = ("hr", "link", "meta")


class Html(str):
    """Text that is HTML already; every other text is escaped."""


def element(tag: str, /, *content: str | Iterable[str], **attributes: str | None) -> Html:
    """<tag>content</tag>, with texts escaped; lists are flattened.

    ``class_`` stands for class, ``aria_label`` for aria-label; an attribute of None is left out,
    one of "" stands alone.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + (f'="{html.escape(value)}"' if value else "")
        for key, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(*content)}</{tag}>")


def join(*content: str | Iterable[str]) -> Html:
    """Texts and elements one after the other."""
    parts: list[str] = []
    for part in content:
        if isinstance(part, Html):
            parts.append(part)
        elif isinstance(part, str):
            parts.append(html.escape(part))
        else:
            parts.extend(join(p) for p in part)
    return Html("".join(parts))


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    label: str,
    numbers: Iterable[int] = (),
    class_: str | None = None,
) -> Html:
    """A table that scrolls inside its box; the first cell of each row names the row.

    ``numbers`` are the columns set flush right; ``label`` is what a screen reader calls it.
    """
    right = set(numbers)

    def cell(position: int, content: str, head: bool) -> Html:
        side = "number" if position in right else None
        if head:
            return element("th", content, scope="col", class_=side)
        if position == 0:
            return element("th", content, scope="row", class_=side)
        return element("td", content, class_=side)

    head = element("tr", [cell(i, h, True) for i, h in enumerate(headings)])
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
    """Names with what they are; several texts under one name stand below each other."""
    rows: list[str] = []
    for name, texts in pairs:
        found = [texts] if isinstance(texts, str) else list(texts)
        if found:
            rows.append(element("dt", name))
            rows += [element("dd", text) for text in found]
    return element("dl", rows)


def details(summary: str | Html, *content: str | Iterable[str], open_: bool = False) -> Html:
    """What is shown when asked for, and on paper."""
    return element("details", element("summary", summary), *content, open_="" if open_ else None)


def _lines(elements: Iterable[Html]) -> list[Html]:
    return [Html(f"{e}\n") for e in elements]
