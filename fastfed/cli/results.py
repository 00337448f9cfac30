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

    source = read_source(folder)
    if as_json:
        print_json(source.results.to_builtins())
    elif as_csv:
        click.echo(table.as_csv(source), nl=False)
    else:
        print_results(source)


@click.command()
@folder_argument
def report(folder: Path) -> None:
    """Draw figure, tables and certificates of an output folder again.

    Nothing is played: everything comes from DIR/results.sqlite.
    """
    from fastfed.cli.play import NO_MATPLOTLIB
    from fastfed.report.source import read_source
    from fastfed.report.write import has_matplotlib, write_report

    source = read_source(folder)
    for path in write_report(source, folder):
        click.echo(path)
    if not has_matplotlib():
        say(NO_MATPLOTLIB)


COMMANDS = {"results": results, "report": report}
