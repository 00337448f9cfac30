"""`fastfed run` and `fastfed reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.output import run_options, say

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


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="FIGURE...")
@run_options
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH",
    help="Learning-to-rank file or folder, for figures that need one.",
)  # fmt: skip
@click.option(
    "--full", is_flag=True, help="The sizes that the paper printed, where ours are smaller."
)
@click.option(
    "--dry-run", is_flag=True,
    help="Print what is left, how long it will take and how much memory; simulate nothing.",
)  # fmt: skip
def reproduce(
    names: tuple[str, ...],
    folder: Path,
    replicates: int | None,
    resources: Resources,
    seed: int | None,
    quick: bool,
    data: Path | None,
    full: bool,
    dry_run: bool,
) -> None:
    """Reproduce figures of the papers, or all of them.

    FIGURE is an id of `fastfed list figures`, or "all". Each figure, and each further panel of
    it, gets its own folder in DIR, and DIR/report.html is one page over all of them. "all" first
    says how long each will take, simulates long ones at smaller sizes, and ends with a table of the
    papers' claims: holds, fails, unproven, and why.
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    from fastfed.cli.execution import predict, simulate_each, simulate_several
    from fastfed.experiments.reproduction import ALL, select, size_of_call
    from fastfed.experiments.specs import sized_experiment

    everything = ALL in names
    size = size_of_call(names, quick=quick, full=full)
    chosen, left_out = select(names, data, size)
    for name, rows in left_out.items():
        say(f"skipped {name}: {rows[0].statement.why}")
    if not everything and data is not None and not any(f.needs_data for f in chosen):
        say(f"{', '.join(names)}: --data is not used, the data are made")
    # All are checked before the first is simulated: bad input then costs no time.
    ready = [(f, sized_experiment(f, data, size, replicates, seed)) for f in chosen]
    if everything or dry_run:
        plan = predict(ready, folder, resources)
        if not dry_run:
            simulate_several(
                plan, folder, resources, [row for each in left_out.values() for row in each]
            )
    else:
        simulate_each(ready, folder, resources)


COMMANDS = {"run": run, "reproduce": reproduce}
