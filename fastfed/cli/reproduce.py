"""`fastfed reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fastfed.cli.errors import RunFailed
from fastfed.cli.options import overrides, playing_options
from fastfed.cli.output import say

if TYPE_CHECKING:
    from fastfed.report.source import Source


@click.command()
@click.argument("name", metavar="FIGURE")
@playing_options
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="PATH",
    help="Learning-to-rank file or folder, for figures that play over one.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="The sizes the paper printed, where ours are smaller.")
def reproduce(
    name: str,
    folder: Path,
    replicates: int | None,
    threads: int | None,
    engine: str,
    scheduler: str | None,
    seed: int | None,
    quick: bool,
    data: Path | None,
    full: bool,
) -> None:
    """Play a figure of a paper, or all of them.

    FIGURE is an id of `fastfed list figures`, or "all". Each figure, and each further panel of
    it, gets its own folder in DIR, and DIR/report.html is one page over all of them.
    """
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    from fastfed import experiments
    from fastfed.cli.play import play, say_overview
    from fastfed.report.keys import check_figure

    names = experiments.figure_ids() if name == "all" else [name]
    chosen = experiments.with_panels(names)
    if name == "all" and data is None:
        for figure in [f for f in chosen if f.needs_data]:
            say(f"skipped {figure.id}: it needs learning-to-rank files, --data PATH")
        chosen = [f for f in chosen if not f.needs_data]
    elif data is not None and not any(f.needs_data for f in chosen):
        say(f"{name} makes its own data: --data is not used")
    planned = []
    # All are checked before the first is played: bad input then costs no time.
    for figure in chosen:
        spec = experiments.figure_spec(figure, data, full)
        spec.update(overrides(spec, replicates, seed, quick))
        experiment = experiments.figure_experiment(figure, spec)
        check_figure(experiment.figure, list(experiment.bound_names), experiment.bound_names)
        planned.append((figure, experiment))
    try:
        for position, (figure, experiment) in enumerate(planned):
            if position:
                click.echo()
            source = play(experiment, folder / figure.id, threads, engine, scheduler)
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
