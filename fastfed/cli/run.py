"""`fastfed run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.options import load_spec, overrides, playing_options

if TYPE_CHECKING:
    from fastfed.simulation.resources import Resources


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@playing_options
def run(
    spec: Path,
    folder: Path,
    replicates: int | None,
    resources: Resources,
    seed: int | None,
    quick: bool,
) -> None:
    """Play the experiment of a spec, or what is missing of it.

    Every replicate of a curve is kept as soon as it is played, in DIR/results.sqlite. The same
    command again finishes what is missing and repeats nothing. Beside it stand report.html,
    one page with everything, the table (table.txt, table.csv), the privacy certificates
    (certificates.txt) and the pictures of regret against rounds and against bytes sent
    (figure.png and .svg, communication.png and .svg).
    """
    from fastfed._validate import InputError
    from fastfed.cli.play import play
    from fastfed.experiments import figure_ids
    from fastfed.simulation.experiment import read_toml

    if str(spec) in figure_ids() and not spec.exists():
        raise InputError(f"{spec}: no such file; for the figure, `fastfed reproduce {spec}`")
    changed = overrides(read_toml(spec), replicates, seed, quick)
    play(load_spec(spec, changed), folder, resources)


COMMANDS = {"run": run}
