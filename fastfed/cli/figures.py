"""Figures one after another for `fastfed reproduce`: predictions, progress, claims."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import rich_click as click

from fastfed._memory import format_size
from fastfed.cli.execution import (
    KEPT,
    NO_MATPLOTLIB,
    failures,
    say_overview,
    simulate,
    simulate_silently,
)
from fastfed.cli.lazy import RunFailed, Stopped
from fastfed.cli.output import duration, print_table, say
from fastfed.experiments import Figure
from fastfed.experiments.reproduction import PlannedFigure, plan_figures, write_figure
from fastfed.reporting.claims import judge
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import has_matplotlib
from fastfed.reporting.sections import Drawn
from fastfed.reporting.source import Source, spaced
from fastfed.reporting.table import Row, counts, rows_left_out, rows_of, table_lines
from fastfed.simulation.dispatch import Resources
from fastfed.simulation.experiment import Experiment

HEADINGS = ("figure", "rounds", "replicates", "left", "agent-rounds", "predicted", "memory")
STOPPED = "stopped before it was played; the same command continues"
#: Columns of text where a terminal does not say how wide it is.
WIDTH = 100


def predict(
    ready: Sequence[tuple[Figure, Experiment]], folder: Path, resources: Resources
) -> list[PlannedFigure]:
    """Predict what is left of each figure, and print it."""
    plan = plan_figures(
        ready,
        folder,
        resources,
        lambda: say(f"predicting: a few rounds of each of {len(ready)} figures"),
    )
    print_plan(plan)
    return plan


def print_plan(plan: Sequence[PlannedFigure]) -> None:
    """Print a row for each figure, and one for all of them."""
    rows = [
        (
            p.figure.id,
            spaced(p.experiment.horizon),
            str(p.experiment.replicates),
            str(p.missing),
            spaced(p.agent_rounds),
            duration(p.seconds) if p.missing else "-",
            format_size(p.memory) if p.missing else "-",
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
            format_size(max(p.memory for p in plan)) if total else "-",
        )
    )
    print_table(HEADINGS, rows, range(1, len(HEADINGS)))


def simulate_several(
    plan: Sequence[PlannedFigure],
    folder: Path,
    resources: Resources,
    left_out: Sequence[Row],
) -> None:
    """Simulate figures one after another, write the page over all, and print their claims.

    If one fails the others are still simulated; RunFailed names it at the end.
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
            drawn.update(simulate_figure(each, folder / name, resources))
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
    print_claims(say_overview(folder, [*left_out, *not_played], drawn))
    effort = f"{duration(time.monotonic() - began)}, processor time {duration(time.process_time())}"
    say(f"played in {effort}{_memory()}")
    if not has_matplotlib():
        say(NO_MATPLOTLIB)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plan)} figures failed: {', '.join(failed)}")


def simulate_figure(each: PlannedFigure, folder: Path, resources: Resources) -> dict[str, Drawn]:
    """Simulate what is left of a figure and write its report; its pictures, for the overview.

    Nothing is drawn, and nothing returned, where the report of the same results is there already.
    """
    same = each.unchanged(folder)
    simulate_silently(each.experiment, folder, resources)
    if same:
        return {}
    with failures(folder):
        return write_figure(folder)


def how_far(plan: Sequence[PlannedFigure], done: int, elapsed: float) -> str:
    """Text of the running total: figures done, time taken, and time left at this speed."""
    before = sum(p.seconds for p in plan[:done])
    left = sum(p.seconds for p in plan[done:])
    # Time beyond the prediction is mostly drawing, which is the same for every figure; a prediction
    # that was too long was too long by a factor.
    extra = elapsed - before
    left = left + extra / done * (len(plan) - done) if extra > 0.0 else left * elapsed / before
    return f"{done} of {len(plan)} figures in {duration(elapsed)}, about {duration(left)} left"


def print_claims(rows: Sequence[Row]) -> None:
    """Print the table of claims, in the width of the terminal."""
    width = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else None
    for depth, text in table_lines(rows):
        before, after = ("", "  ", " " * 14)[depth], ("  ", " " * 14, " " * 16)[depth]
        if width is None or not text:
            click.echo(f"{before}{text}".rstrip())
        else:
            click.echo(textwrap.fill(text, width, initial_indent=before, subsequent_indent=after))


def _rows(plan: Iterable[PlannedFigure], reason: str) -> list[Row]:
    return [row for p in plan for row in rows_left_out(p.figure.id, p.experiment.figure, reason)]


def _memory() -> str:
    """Text of the most memory that this process had, where the system counts it."""
    try:
        import resource
    except ImportError:
        return ""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", at most {most / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB of memory"


def simulate_each(
    ready: list[tuple[Figure, Experiment]], folder: Path, resources: Resources
) -> None:
    """Simulate figures one after another, and print the table of each."""
    try:
        for position, (figure, experiment) in enumerate(ready):
            if position:
                click.echo()
            source = simulate(experiment, folder / figure.id, resources)
            for line in claims_of(figure.paper, source):
                click.echo(line)
    except RunFailed:
        # Figures that were finished before get their page too.
        say_overview(folder)
        raise
    say_overview(folder)


def claims_of(paper: str, source: Source) -> list[str]:
    """Lines with a paper's claims about a figure, and their verdicts where they can be judged."""
    claims = judge(source.results)
    lines = [f"{paper}: {s.says} ({s.verdict})" for s in claims]
    says = source.results.figure.get("says")
    if says is not None and says not in [s.says for s in claims]:
        lines.append(f"{paper}: {says}")
    return lines
