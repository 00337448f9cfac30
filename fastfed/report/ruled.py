"""Tables for terminals, by rich."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from rich import box
from rich.table import Table
from rich.text import Text


def ruled(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table with a rule under its headings; the columns ``right`` are set flush right."""
    # Text, not markup: a label may hold brackets.
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=title and Text(title),
        caption=caption and Text(caption),
        title_justify="left",
        caption_justify="left",
    )
    for i, heading in enumerate(headings):
        justify: Literal["right", "left"] = "right" if i in right else "left"
        table.add_column(heading, justify=justify, no_wrap=i in right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
