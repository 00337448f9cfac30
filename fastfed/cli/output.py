"""Printing: JSON and tables to standard output, everything else to standard error."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from fastfed.report.source import Source

#: Terminals narrower than this do without what can be worked out from the rest, ...
WIDE = 100
#: ... and those narrower than this without what only table.txt need say.
WIDER = 120


def print_json(value: Any) -> None:
    """JSON alone on standard output; what is not finite becomes null."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def say(message: str) -> None:
    """A message beside the results."""
    click.echo(message, err=True)


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()
) -> None:
    """A table: ruled on a terminal, plain columns elsewhere."""
    rows = [tuple(row) for row in rows]
    right = tuple(right)
    if not sys.stdout.isatty():
        widths = [max(len(row[i]) for row in [headings, *rows]) for i in range(len(headings))]
        for row in [headings, *rows]:
            cells = [
                cell.rjust(width) if i in right else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            click.echo("  ".join(cells).rstrip())
        return
    from rich.console import Console

    from fastfed.report.ruled import ruled

    Console().print(ruled(headings, rows, right))


def print_results(source: Source) -> None:
    """The table of an experiment with title and remarks."""
    from fastfed.report import table

    if not sys.stdout.isatty():
        click.echo(table.as_text(source), nl=False)
        return
    click.secho(source.title, bold=True)
    click.echo(f"{source.setting}, {source.replicates}")
    for note in source.about_records:
        click.echo(note)
    least = {table.PER_SILO: WIDE, table.SYNCHRONISED: WIDER}
    width = shutil.get_terminal_size().columns
    columns = [i for i, h in enumerate(table.HEADINGS) if width >= least.get(h, 0)]
    print_table(
        [table.HEADINGS[i] for i in columns],
        [[row[i] for i in columns] for row in table.table_rows(source)],
        [at for at, i in enumerate(columns) if i in table.RIGHT],
    )
    for line in [*table.remarks(source), *table.statement_lines(source)]:
        click.echo(line)
