"""`fastfed reproduce`: one figure, or all of them."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import rich_click as click

from fastfed._memory import shown
from fastfed.cli.lazy import RunFailed, Stopped
from fastfed.cli.output import duration, playing_options, print_table, say
from fastfed.cli.run import KEPT, NO_MATPLOTLIB, failures, play, play_silently, say_overview
from fastfed.experiments import Figure
from fastfed.experiments.reproduction import (
    ALL,
    PlannedFigure,
    plan_figures,
    select,
    size_of_call,
    write_figure,
)
from fastfed.experiments.specs import sized_experiment
from fastfed.reporting.claims import judge
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import has_matplotlib
from fastfed.reporting.sections import Drawn
from fastfed.reporting.source import Source, spaced
from fastfed.reporting.table import Row, counts, lines, rows_not_played, rows_of
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.passes import Resources

# Playing several figures for `reproduce all`: what it will take, how far it is, what came out.


HEADINGS = ("figure", "rounds", "replicates", "left", "agent-rounds", "predicted", "memory")
STOPPED = "stopped before it was played; the same command continues"
#: Columns of text where a terminal does not say how wide it is.
WIDTH = 100


def print_plan(plan: Sequence[PlannedFigure]) -> None:
    """A row for each figure, and one for all of them."""
    rows = [
        (
            p.figure.id,
            spaced(p.experiment.horizon),
            str(p.experiment.replicates),
            str(p.missing),
            spaced(p.agent_rounds),
            duration(p.seconds) if p.missing else "-",
            shown(p.memory) if p.missing else "-",
        )
        for p in plan
    ]
    total = sum(p.seconds for p in plan)
    rows.append(
        (
            "all",
            "",
            "",
            str(sum(p.missing for p in plan)),
            spaced(sum(p.agent_rounds for p in plan)),
            duration(total) if total else "-",
            shown(max(p.memory for p in plan)) if total else "-",
        )
    )
    print_table(HEADINGS, rows, range(1, len(HEADINGS)))


def play_several(
    plan: Sequence[PlannedFigure],
    folder: Path,
    resources: Resources,
    left_out: Sequence[Row],
) -> None:
    """Play figures one after another, then write the page over all and print their statements.

    One that fails does not keep the others from being played; RunFailed names it at the end.
    """
    began = time.monotonic()
    drawn: dict[str, Drawn] = {}
    failed: dict[str, str] = {}
    for number, each in enumerate(plan):
        name = each.figure.id
        if each.missing:
            say(f"{name}: {number + 1} of {len(plan)}, about {duration(each.seconds)}")
        start = time.monotonic()
        try:
            drawn.update(played(each, folder / name, resources))
        except (Stopped, KeyboardInterrupt):
            say(f"interrupted: writing the page over what was played into {folder}")
            waiting = [p for p in plan[number:] if not (folder / p.figure.id).exists()]
            say_overview(folder, [*left_out, *_rows(waiting, STOPPED)], drawn)
            raise Stopped(f"interrupted: {KEPT}") from None
        except RunFailed as error:
            failed[name] = error.message
            say(f"{name}: failed: {error.message}")
            continue
        took = duration(time.monotonic() - start) if each.missing else "nothing left to play"
        say(f"{name}: {took}; {counts(rows_of(name, read_source(folder / name)))}")
        if number + 1 < len(plan):
            say(how_far(plan, number + 1, time.monotonic() - began))
    unplayed = [p for p in plan if p.figure.id in failed and not (folder / p.figure.id).exists()]
    not_played = [row for p in unplayed for row in _rows([p], failed[p.figure.id])]
    print_statements(say_overview(folder, [*left_out, *not_played], drawn))
    effort = f"{duration(time.monotonic() - began)}, processor time {duration(time.process_time())}"
    say(f"played in {effort}{_memory()}")
    if not has_matplotlib():
        say(NO_MATPLOTLIB)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plan)} figures failed: {', '.join(failed)}")


def played(each: PlannedFigure, folder: Path, resources: Resources) -> dict[str, Drawn]:
    """Play what is left of a figure and write its report, with the pictures for the overview.

    Nothing is drawn, and nothing returned, where the report of the same results is there already.
    """
    same = each.unchanged(folder)
    play_silently(each.experiment, folder, resources)
    if same:
        return {}
    with failures(folder):
        return write_figure(folder)


def how_far(plan: Sequence[PlannedFigure], done: int, elapsed: float) -> str:
    """The running total: how many, since when, and how long at the speed so far."""
    before = sum(p.seconds for p in plan[:done])
    left = sum(p.seconds for p in plan[done:])
    # What is beyond the prediction is mostly drawing, which every figure takes alike; a prediction
    # that was too long was so by a factor.
    extra = elapsed - before
    left = left + extra / done * (len(plan) - done) if extra > 0.0 else left * elapsed / before
    return f"{done} of {len(plan)} figures in {duration(elapsed)}, about {duration(left)} left"


def print_statements(rows: Sequence[Row]) -> None:
    """The statement table, in the width of the terminal."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else None
    for depth, text in lines(rows):
        before, after = ("", "  ", " " * 14)[depth], ("  ", " " * 14, " " * 16)[depth]
        if width is None or not text:
            click.echo(f"{before}{text}".rstrip())
        else:
            click.echo(textwrap.fill(text, width, initial_indent=before, subsequent_indent=after))


def _rows(plan: Iterable[PlannedFigure], reason: str) -> list[Row]:
    return [row for p in plan for row in rows_not_played(p.figure.id, p.experiment.figure, reason)]


def _memory() -> str:
    """The most memory that this process had, where the system counts it."""
    try:
        import resource
    except ImportError:
        return ""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", at most {most / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB of memory"


# ---- `fastfed reproduce` -------------------------------------------------------------------------


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
    everything = ALL in names
    size = size_of_call(names, quick=quick, full=full)
    chosen, left_out = select(names, data, size)
    for name, rows in left_out.items():
        say(f"skipped {name}: {rows[0].statement.why}")
    if not everything and data is not None and not any(f.needs_data for f in chosen):
        say(f"{', '.join(names)}: --data is not used, the data are made")
    # All are checked before the first is played: bad input then costs no time.
    ready = [(f, sized_experiment(f, data, size, replicates, seed)) for f in chosen]
    if everything or dry_run:
        plan = plan_figures(
            ready,
            folder,
            resources,
            lambda: say(f"predicting: a few rounds of each of {len(ready)} figures"),
        )
        print_plan(plan)
        if not dry_run:
            play_several(
                plan, folder, resources, [row for each in left_out.values() for row in each]
            )
    else:
        play_each(ready, folder, resources)


def play_each(ready: list[tuple[Figure, Experiment]], folder: Path, resources: Resources) -> None:
    """Play figures one after another, each with its table."""
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
    statements = judge(source.results)
    lines = [f"{paper}: {s.says} ({s.verdict})" for s in statements]
    says = source.results.figure.get("says")
    if says is not None and says not in [s.says for s in statements]:
        lines.append(f"{paper}: {says}")
    return lines


COMMANDS = {"reproduce": reproduce}
