"""The runs of `fastfed run` and `fastfed reproduce`: prediction, progress, report and errors."""

from __future__ import annotations

import math
import shutil
import sqlite3
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import rich_click as click

from fastfed import _signals
from fastfed._kernels import environments
from fastfed._memory import format_size
from fastfed._validate import InputError
from fastfed.cli import RunFailed, Stopped
from fastfed.cli.output import (
    RESUMABLE_TEXT,
    OnProgress,
    duration,
    print_results,
    print_table,
    progress,
    say,
)
from fastfed.experiments import Figure
from fastfed.experiments.reproduction import PlannedFigure, plan_figures, prepare
from fastfed.reporting.charts import ascii_plot
from fastfed.reporting.figure import Source, read_source
from fastfed.reporting.page import PAGE, write_overview, write_report
from fastfed.reporting.plot_files import (
    ALL_FORMATS,
    FORMATS,
    check_formats,
    formats_in,
    has_matplotlib,
    has_plots,
    out_of_date,
)
from fastfed.reporting.table import Row, counts, rows_left_out, rows_of, table_lines
from fastfed.reporting.text import spaced
from fastfed.results.files import DISK_ERROR_NUMBERS
from fastfed.results.store import FILE, Store, StoreLocked
from fastfed.simulation.dispatch import OutOfMemory, Resources, RunBatch, predict_seconds
from fastfed.simulation.engines import EngineError
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.run import run

#: Warning about a cluster without TLS, to which anybody can connect.
OPEN_CLUSTER_WARNING = (
    "{} is not encrypted: whoever reaches its port can run any code on every machine of the "
    "cluster, including this machine, and can read what is sent; docs/clusters.md shows tls://"
)
NO_MATPLOTLIB = (
    "no picture file written: matplotlib is missing or cannot be loaded; "
    'pip install "fastfed[figures]"'
)


def simulate(
    experiment: Experiment, folder: Path, resources: Resources, formats: Collection[str] = ()
) -> Source:
    """Simulate the replicates that a folder lacks, write the report, and print the table.

    ``formats`` are formats of figure files to write, in addition to those that the folder has.
    Return the results and settings of the folder.
    """

    check_formats(formats)

    def on_start(batches: list[RunBatch], threads: int) -> None:
        if resources.scheduler is not None and not resources.scheduler.startswith("tls://"):
            say(OPEN_CLUSTER_WARNING.format(resources.scheduler))
        say(work_text(experiment, batches, threads, resources.engine))

    simulate_silently(experiment, folder, resources, on_start)
    with failures(folder):
        source = read_source(folder, experiment.replicates)
        all_formats = {*formats, *formats_in(folder)}
        written_paths = write_report(
            source, folder, [kind for kind in ALL_FORMATS if kind in all_formats]
        )
        stale_files = out_of_date(source, folder)
        stored_count = stored_replicates(folder)
    print_results(source)
    click.echo("\n" + ascii_plot(source))
    say(f"{folder}: {', '.join(path.name for path in written_paths)}")
    if not all_formats:
        say(f"pictures are in {PAGE}; as files: fastfed report {folder}")
    elif not has_plots(written_paths):
        say(NO_MATPLOTLIB)
    # The folder may hold more replicates than this run requested.
    shown_count = max((len(curve.replicates) for curve in source.results.curves), default=0)
    if stored_count > shown_count:
        say(
            f"shown: {shown_count} of {stored_count} stored replicates; "
            f"--replicates {stored_count} shows all"
        )
    if stale_files:
        say(f"of earlier results: {', '.join(stale_files)}")
    return source


def stored_replicates(folder: Path) -> int:
    """Return the number of replicates in an output folder, of the curve that has most."""
    with Store.open_existing(folder) as store:
        return max(Counter(position for position, _ in store.done()).values(), default=0)


def simulate_silently(
    experiment: Experiment,
    folder: Path,
    resources: Resources,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
) -> None:
    """Simulate the replicates that a folder lacks, and show only the progress.

    ``on_start`` is called with the remaining batches of runs and the number of threads. No report
    is written.
    """
    layout = prepare(experiment, folder, resources)
    if layout.reduced:
        say(f"{experiment.name}: {layout.reduced}")
    with ExitStack() as stack:
        on_progress: OnProgress | None = None

        def start(batches: list[RunBatch], threads: int) -> None:
            """Call ``on_start``, and show progress if rounds remain."""
            nonlocal on_progress
            if on_start is not None:
                on_start(batches, threads)
            remaining_rounds = sum(experiment.agent_rounds(b.positions) for b in batches)
            if remaining_rounds:
                on_progress = stack.enter_context(progress(remaining_rounds))

        def advance(agent_rounds: int) -> None:
            if on_progress is not None:
                on_progress(agent_rounds)

        with failures(folder):
            run(experiment, folder, resources, layout=layout, on_start=start, progress=advance)


def say_overview(folder: Path, not_simulated: Sequence[Row] | None = None) -> list[Row]:
    """Write the page about all experiments in the subfolders of a folder, and print its path.

    ``not_simulated`` are the rows about figures that were not simulated. Return the rows of the
    claims, for `print_claims`. Without experiments, nothing is written, and there are no rows.
    """
    if not any(folder.glob(f"*/{FILE}")):
        return []
    overview = write_overview(folder, not_simulated)
    if overview is None:
        return []
    path, rows = overview
    say(f"all of them on one page: {path}")
    return rows


def work_text(
    experiment: Experiment, batches: list[RunBatch], threads: int, engine: str = "local"
) -> str:
    """Return a text about the remaining work of an experiment, with the predicted time."""
    total_count = len(experiment.curves) * len(experiment.replicate_numbers)
    missing_count = sum(len(b.positions) for b in batches)
    if not missing_count:
        return f"{experiment.name}: nothing left to run"
    count_text = (
        f"{missing_count} of {total_count}" if missing_count < total_count else f"{missing_count}"
    )
    remaining_rounds = sum(experiment.agent_rounds(b.positions) for b in batches)
    work = (
        f"{experiment.name}: {count_text} curve replicates, {spaced(remaining_rounds)} agent-rounds"
    )
    if not threads:
        return f"{work}; the cluster has no workers yet: waiting for them"
    measured_seconds = None
    if engine != "local":
        from fastfed.simulation.engines.processes import time_kinds

        measured_seconds = time_kinds(experiment, dict.fromkeys(b.positions for b in batches))
    seconds = predict_seconds(experiment, batches, threads, measured_seconds)
    time_text = f"about {duration(seconds)}" if math.isfinite(seconds) else "for an unknown time"
    return f"{work} on {threads} thread{'s' if threads > 1 else ''}, {time_text}"


@contextmanager
def failures(folder: Path) -> Iterator[None]:
    """Convert exceptions of the `with` block, which simulates, to RunFailed or Stopped.

    The new exception has one sentence as its message.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        _signals.announce_end()
        raise Stopped(f"interrupted: {RESUMABLE_TEXT}", _signals.exit_code(error)) from None
    except environments.SimulationError as error:
        raise RunFailed(f"{error}; {RESUMABLE_TEXT}") from None
    except StoreLocked as error:
        raise RunFailed(str(error)) from None
    except sqlite3.Error as error:
        raise RunFailed(f"{folder / FILE} cannot be written ({error}); {RESUMABLE_TEXT}") from None
    except OSError as error:
        if error.errno not in DISK_ERROR_NUMBERS:
            raise
        path = error.filename or folder
        raise RunFailed(f"{path} cannot be written ({error.strerror}); {RESUMABLE_TEXT}") from None
    except EngineError as error:
        raise RunFailed(f"{error}; {RESUMABLE_TEXT}") from None
    except MemoryError as error:
        has_message = isinstance(error, OutOfMemory)
        reason = str(error) if has_message else "out of memory: fewer threads or silos need less"
        raise RunFailed(
            f"{reason}; {RESUMABLE_TEXT}" if (folder / FILE).exists() else reason
        ) from None
    except BaseException as error:  # even SystemExit, which a function of the user may raise
        notes = [
            n for n in getattr(error, "__notes__", ()) if n.startswith(environments.IN_FUNCTION)
        ]
        if not notes:
            raise
        if isinstance(error, InputError):
            raise InputError(f"{notes[0]}: {error}") from None
        raise RunFailed(f"{notes[0]}: {type(error).__name__}: {error}; {RESUMABLE_TEXT}") from None


# ---- Figures one after another for `fastfed reproduce`: predictions, progress, claims ------------


HEADINGS = ("figure", "rounds", "replicates", "left", "agent-rounds", "predicted", "memory")
STOPPED_BEFORE_TEXT = "stopped before it was run; the same command continues"
#: Width of text in characters if the width of the terminal is unknown.
DEFAULT_WIDTH = 100


def predict(
    figures: Sequence[tuple[Figure, Experiment]], folder: Path, resources: Resources
) -> list[PlannedFigure]:
    """Predict the remaining work of each figure, and print it."""
    plan = plan_figures(
        figures,
        folder,
        resources,
        lambda: say(f"predicting: a few rounds of each figure, {len(figures)} in all"),
    )
    print_plan(plan)
    return plan


def print_plan(plan: Sequence[PlannedFigure]) -> None:
    """Print a table of predictions: a row for each figure, and a row for all figures."""
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
    plan: Sequence[PlannedFigure], folder: Path, resources: Resources, left_out: Sequence[Row]
) -> None:
    """Simulate figures one after another, write a report on all of them, and print their claims.

    ``left_out`` are the rows about claims of other figures, which are not simulated; the report and
    the printed claims contain them too.

    If a figure fails, the others are still simulated, and RunFailed is raised at the end.
    """
    began = time.monotonic()
    failed: dict[str, str] = {}
    for number, planned_figure in enumerate(plan):
        name = planned_figure.figure.id
        if planned_figure.missing:
            say(f"{name}: {number + 1} of {len(plan)}, about {duration(planned_figure.seconds)}")
        start = time.monotonic()
        try:
            source = simulate_figure(planned_figure, folder / name, resources)
        except (Stopped, KeyboardInterrupt) as error:
            _signals.announce_end()
            say(f"interrupted: writing the report on finished figures into {folder}")
            waiting = [p for p in plan[number:] if not (folder / p.figure.id).exists()]
            say_overview(folder, [*left_out, *_rows_not_simulated(waiting, STOPPED_BEFORE_TEXT)])
            code = error.code if isinstance(error, Stopped) else _signals.exit_code(error)
            raise Stopped(f"interrupted: {RESUMABLE_TEXT}", code) from None
        except RunFailed as error:
            # The other figures are still simulated.
            failed[name] = error.message
            say(f"{name}: failed: {error.message}")
            continue
        time_text = (
            duration(time.monotonic() - start) if planned_figure.missing else "nothing left to run"
        )
        say(f"{name}: {time_text}; {counts(rows_of(name, source))}")
        if number + 1 < len(plan):
            say(elapsed_and_left(plan, number + 1, time.monotonic() - began))
    without_results = [
        p for p in plan if p.figure.id in failed and not (folder / p.figure.id).exists()
    ]
    failed_rows = [
        row for p in without_results for row in _rows_not_simulated([p], failed[p.figure.id])
    ]
    print_claims(say_overview(folder, [*left_out, *failed_rows]))
    effort = f"{duration(time.monotonic() - began)}, processor time {duration(time.process_time())}"
    say(f"ran in {effort}{_peak_memory_text()}")
    if not has_matplotlib():
        say(NO_MATPLOTLIB)
    if failed:
        raise RunFailed(f"{len(failed)} of {len(plan)} figures failed: {', '.join(failed)}")


def simulate_figure(planned_figure: PlannedFigure, folder: Path, resources: Resources) -> Source:
    """Simulate the missing replicates of a figure. Write its report if the report is out of date.

    Return the source with all stored replicates, also those of earlier runs.
    """
    up_to_date = planned_figure.unchanged(folder)
    simulate_silently(planned_figure.experiment, folder, resources)
    with failures(folder):
        source = read_source(folder)
        if not up_to_date:
            write_report(source, folder, FORMATS)
    return source


def elapsed_and_left(plan: Sequence[PlannedFigure], figures_done: int, elapsed: float) -> str:
    """Return a text with the number of finished figures, the elapsed time and the time left."""
    predicted_so_far = sum(p.seconds for p in plan[:figures_done])
    remaining = sum(p.seconds for p in plan[figures_done:])
    # If the finished figures took longer than predicted, the extra time was mostly for charts, and
    # is about the same for each figure. If they took less time, scale the other predictions by the
    # same factor.
    extra = elapsed - predicted_so_far
    remaining = (
        remaining + extra / figures_done * (len(plan) - figures_done)
        if extra > 0.0
        else remaining * elapsed / predicted_so_far
    )
    return (
        f"{figures_done} of {len(plan)} figures in {duration(elapsed)}, "
        f"about {duration(remaining)} left"
    )


def print_claims(rows: Sequence[Row]) -> None:
    """Print the table of claims, wrapped to the width of the terminal."""
    width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if sys.stdout.isatty() else None
    # Papers and figures have depth 0, claims depth 1, and details of a claim depth 2.
    for depth, text in table_lines(rows):
        indent, further_indent = ("", "  ", " " * 14)[depth], ("  ", " " * 14, " " * 16)[depth]
        if width is None or not text:
            click.echo(f"{indent}{text}".rstrip())
        else:
            click.echo(
                textwrap.fill(text, width, initial_indent=indent, subsequent_indent=further_indent)
            )


def _rows_not_simulated(plan: Iterable[PlannedFigure], reason: str) -> list[Row]:
    """Return rows for the table of claims about figures that were not simulated."""
    return [row for p in plan for row in rows_left_out(p.figure.id, p.experiment.figure, reason)]


def _peak_memory_text() -> str:
    """Return the peak memory of this process as text, or "" if the system does not report it."""
    try:
        import resource
    except ImportError:
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", at most {peak / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB of memory"


def simulate_each(
    figures: list[tuple[Figure, Experiment]], folder: Path, resources: Resources
) -> None:
    """Simulate figures one after another, and print the table of each."""
    try:
        for position, (figure, experiment) in enumerate(figures):
            if position:
                click.echo()
            source = simulate(experiment, folder / figure.id, resources, FORMATS)
            for line in claims_of(figure.paper, source):
                click.echo(line)
    except RunFailed:
        # Write the page about the figures that were finished before the failure.
        say_overview(folder)
        raise
    say_overview(folder)


def claims_of(paper: str, source: Source) -> list[str]:
    """Return a line with the verdict for each claim that a paper makes about a figure."""
    lines = [f"{paper}: {s.says} ({s.verdict})" for s in source.claims]
    claim_text = source.results.figure.get("says")
    if claim_text is not None and claim_text not in [s.says for s in source.claims]:
        lines.append(f"{paper}: {claim_text} (a summary; not judged separately)")
    return lines
