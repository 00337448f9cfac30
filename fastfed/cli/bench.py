"""`fastfed bench`."""

from __future__ import annotations

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_table, say

#: Keys of a row, and their headings in the table.
COLUMNS = {
    "name": "instance",
    "microseconds_per_agent_round": "us/agent-round",
    "limit_microseconds": "limit",
    "share_of_limit": "share",
    "reference_microseconds_per_agent_round": "reference",
    "ratio": "ratio",
    "ratio_without_data": "ratio without data",
    "threads": "threads",
}


@click.command()
@click.argument("names", nargs=-1, metavar="[INSTANCE]...")
@json_option
def bench(names: tuple[str, ...], as_json: bool) -> None:
    """Speed of the compiled driver against the papers' style.

    Microseconds per agent-round, of the instances whose name starts with one of those given, or of
    all. The limit is what the arithmetic alone would take on one core of 2.4 GHz with AVX-512, the
    share how much of the time that is. The reference is a plain loop in NumPy, timed in the same
    run; "ratio without data" leaves out its making of the contexts. It stands in the repository's
    benches/: elsewhere than in a checkout there is no ratio.
    """
    from fastfed.simulation.bench import run_bench

    say("timing both drivers, one instance after the other")
    rows = run_bench(*names)
    if as_json:
        print_json(rows)
        return
    if all(row["ratio"] is None for row in rows):
        say("no ratios: the reference stands in the repository's benches/, and this is no checkout")
    for row in rows:
        share = row["share_of_limit"]
        row["share_of_limit"] = None if share is None else f"{share:.0%}".replace("%", " %")
    cells = [[_cell(row[key]) for key in COLUMNS] for row in rows]
    print_table(list(COLUMNS.values()), cells, right=range(1, len(COLUMNS)))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:#.3g}".rstrip(".") if isinstance(value, float) else str(value)


COMMANDS = {"bench": bench}
