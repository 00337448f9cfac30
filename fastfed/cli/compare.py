"""`fastfed compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.options import json_option
from fastfed.cli.output import print_json, print_table

if TYPE_CHECKING:
    from fastfed.report.compare import Comparison

folder_type = click.Path(path_type=Path)


@click.command()
@click.argument("a", type=folder_type, metavar="DIR_A")
@click.argument("b", type=folder_type, metavar="DIR_B")
@json_option
def compare(a: Path, b: Path, as_json: bool) -> None:
    """What differs between two output folders, curve by curve.

    Curves are matched by label: final group regret, B - A with its standard error, privacy,
    synchronisations and bytes where they differ, and the keys that differ. Runs over the same
    rounds are compared replicate by replicate. Folders of several experiments are compared by
    name.
    """
    from fastfed.report.compare import compare_folders

    found = compare_folders(a, b)
    if as_json:
        print_json(found.to_builtins())
        return
    click.echo(f"A: {a}\nB: {b}")
    for comparison in found.comparisons:
        click.echo()
        _print(comparison)
    for side, names in (("A", found.only_in_a), ("B", found.only_in_b)):
        if names:
            click.echo(f"\nonly in {side}: {', '.join(names)}")


def _print(comparison: Comparison) -> None:
    from fastfed.report.compare import shown
    from fastfed.report.privacy_words import privacy_words
    from fastfed.report.table import plus_minus, sent, times

    a, b = comparison.a, comparison.b
    click.secho(comparison.name, bold=True)
    click.echo(f"A: {a.setting}, {a.replicates}\nB: {b.setting}, {b.replicates}")
    click.echo(_how(comparison))
    if comparison.curves:
        click.echo()
        print_table(
            ("curve", "A", "B", "B - A", "B's regret is"),
            [
                (
                    pair.label,
                    plus_minus(*pair.a.final().values()),
                    plus_minus(*pair.b.final().values()),
                    plus_minus(pair.mean, pair.stderr),
                    pair.verdict,
                )
                for pair in comparison.curves
            ],
            right=(1, 2, 3),
        )
    _listed(
        ("privacy", "A", "B"),
        [
            (p.label, privacy_words(p.a.certificate).short, privacy_words(p.b.certificate).short)
            for p in comparison.curves
            if not p.same_privacy
        ],
    )
    _listed(
        ("synchronised", "A", "B"),
        [
            (p.label, times(p.a.synchronisations), times(p.b.synchronisations))
            for p in comparison.curves
            if p.a.synchronisations != p.b.synchronisations
        ],
    )
    _listed(
        ("sent", "A", "B"),
        [
            (p.label, sent(p.a.bytes_sent), sent(p.b.bytes_sent))
            for p in comparison.curves
            if p.a.bytes_sent != p.b.bytes_sent
        ],
    )
    _listed(("key", "A", "B"), [(d.key, shown(d.a), shown(d.b)) for d in comparison.spec])
    for side, labels in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if labels:
            click.echo(f"\nonly in {side}: {'; '.join(labels)}")


def _how(comparison: Comparison) -> str:
    """How the differences were taken."""
    if comparison.paired:
        return "paired, replicate by replicate: same environment, seed, silos and horizon"
    return f"not paired, for they differ in {', '.join(comparison.unequal)}"


def _listed(headings: tuple[str, ...], rows: list[tuple[str, str, str]]) -> None:
    if rows:
        click.echo()
        print_table(headings, rows)


COMMANDS = {"compare": compare}
