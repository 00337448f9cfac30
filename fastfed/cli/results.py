"""`fastfed results` and `fastfed report`: what an output folder holds."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_results, say

folder_argument = click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")


@click.command()
@folder_argument
@json_option
@click.option("--csv", "as_csv", is_flag=True, help="CSV on standard output, one row per curve.")
def results(folder: Path, as_json: bool, as_csv: bool) -> None:
    """Results of an output folder: table, JSON or CSV.

    A folder that is still being played shows what is finished.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    from fastfed.report import table
    from fastfed.report.source import read_source
    from fastfed.report.statements import judge

    source = read_source(folder)
    if as_json:
        statements = [s.to_builtins() for s in judge(source.results)]
        print_json({**source.results.to_builtins(), "statements": statements})
    elif as_csv:
        click.echo(table.as_csv(source), nl=False)
    else:
        print_results(source)


@click.command()
@folder_argument
def report(folder: Path) -> None:
    """Write page, pictures and tables of an output folder again.

    Nothing is played: everything comes from DIR/results.sqlite. Where DIR holds several
    experiments in folders of their own, as `reproduce` leaves them, each gets its report, and
    DIR/report.html is one page over all of them.
    """
    from fastfed.cli.play import NO_MATPLOTLIB
    from fastfed.report.source import read_all
    from fastfed.report.write import has_matplotlib, write_overview, write_report

    sources, left_out = read_all(folder)
    for each, source in sources.items():
        for path in write_report(source, each):
            click.echo(path)
    for reason in left_out:
        say(f"left out: {reason}")
    if (overview := write_overview(folder)) is not None:
        page, _ = overview
        click.echo(page)
    if not has_matplotlib():
        say(NO_MATPLOTLIB)


COMMANDS = {"results": results, "report": report}
