"""`fastfed run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.output import run_options

if TYPE_CHECKING:
    from fastfed.simulation.dispatch import Resources


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), metavar="SPEC.toml")
@run_options
def run(
    spec: Path,
    folder: Path,
    replicates: int | None,
    resources: Resources,
    seed: int | None,
    quick: bool,
) -> None:
    """Run the experiment of a spec, or what is missing of it.

    Every replicate of a curve is kept as soon as it is simulated, in DIR/results.sqlite. The same
    command again finishes what is missing and repeats nothing. Beside it stand report.html,
    one page with everything, the table (table.txt, table.csv), the privacy certificates
    (certificates.txt) and the pictures of regret against rounds and against bytes sent
    (figure.png and .svg, communication.png and .svg).
    """
    from fastfed.cli.execution import simulate
    from fastfed.experiments.specs import load_spec

    experiment = load_spec(spec, replicates=replicates, seed=seed, quick=quick)
    simulate(experiment, folder, resources)


COMMANDS = {"run": run}
