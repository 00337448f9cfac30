"""`fastfed reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.errors import RunFailed
from fastfed.cli.options import overrides, playing_options
from fastfed.cli.output import say

if TYPE_CHECKING:
    from fastfed.experiments import Figure
    from fastfed.report.source import Source
    from fastfed.report.statement_table import Row
    from fastfed.simulation.experiment import Experiment
    from fastfed.simulation.resources import Resources

ALL = "all"


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="FIGURE...")
@playing_options
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH",
    help="Learning-to-rank file or folder, for figures that play over one.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="The sizes the paper printed, where ours are smaller.")
@click.option(
    "--dry-run", is_flag=True,
    help="Say what is left, how long it will take and how much memory; play nothing.",
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
    """Play figures of the papers, or all of them.

    FIGURE is an id of `fastfed list figures`, or "all". Each figure, and each further panel of
    it, gets its own folder in DIR, and DIR/report.html is one page over all of them. "all" first
    says how long each will take, plays long ones in smaller sizes, and ends with a table of what
    the papers say: holds, fails, unproven, and why.
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    from fastfed import experiments
    from fastfed.cli.several import planned, play_several, print_plan
    from fastfed.report.statement_table import rows_not_played

    everything = ALL in names
    size = "quick" if quick else "full" if full else ALL if everything else None
    chosen = experiments.with_panels(experiments.figure_ids() if everything else names)
    left_out: list[Row] = []
    if everything:
        reasons = {f.id: why_left_out(f, data, size) for f in chosen}
        for figure in chosen:
            if reason := reasons[figure.id]:
                say(f"skipped {figure.id}: {reason}")
                left_out += rows_not_played(figure.id, figure.spec["figure"], reason)
        chosen = [f for f in chosen if not reasons[f.id]]
    elif data is not None and not any(f.needs_data for f in chosen):
        say(f"{', '.join(names)}: --data is not used, the data are made")
    # All are checked before the first is played: bad input then costs no time.
    ready = [(f, experiment_of(f, data, size, replicates, seed)) for f in chosen]
    if everything or dry_run:
        plan = planned(ready, folder, resources)
        print_plan(plan)
        if not dry_run:
            play_several(plan, folder, resources, left_out)
    else:
        play_each(ready, folder, resources)


def why_left_out(figure: Figure, data: Path | None, size: str | None) -> str:
    """Why `all` does not play a figure; empty if it does."""
    if figure.needs_data and data is None:
        return "it needs learning-to-rank files, --data PATH"
    return figure.long if size == ALL else ""


def experiment_of(
    figure: Figure, data: Path | None, size: str | None, replicates: int | None, seed: int | None
) -> Experiment:
    """The experiment of a figure in a size; ``replicates`` and ``seed`` replace the spec's."""
    from fastfed import experiments
    from fastfed.report.keys import check_figure

    spec = experiments.figure_spec(figure, data, size)
    spec.update(overrides(spec, replicates, seed, size == "quick"))
    if size == "quick":
        spec.update(spec["figure"].get("quick", {}))
    if replicates is not None:
        spec["replicates"] = replicates
    experiment = experiments.figure_experiment(figure, spec)
    check_figure(experiment.figure, list(experiment.bound_names), experiment.bound_names)
    return experiment


def play_each(ready: list[tuple[Figure, Experiment]], folder: Path, resources: Resources) -> None:
    """Play figures one after another, each with its table."""
    from fastfed.cli.play import play, say_overview

    try:
        for position, (figure, experiment) in enumerate(ready):
            if position:
                click.echo()
            source = play(experiment, folder / figure.id, resources)
            for line in said(figure.paper, source):
                click.echo(line)
    except RunFailed:
        # What was played before has its page too.
        say_overview(folder)
        raise
    say_overview(folder)


def said(paper: str, source: Source) -> list[str]:
    """What the paper says of a figure, with the verdict where it can be judged."""
    from fastfed.report.statements import judge

    statements = judge(source.results)
    lines = [f"{paper}: {s.says} ({s.verdict})" for s in statements]
    says = source.results.figure.get("says")
    if says is not None and says not in [s.says for s in statements]:
        lines.append(f"{paper}: {says}")
    return lines


COMMANDS = {"reproduce": reproduce}
