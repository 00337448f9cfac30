"""Runs of an experiment for `fastfed run` and `fastfed reproduce`: estimate, progress, report."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import rich_click as click

from fastfed._kernels import environments
from fastfed._validate import InputError
from fastfed.cli.lazy import RunFailed, Stopped
from fastfed.cli.output import (
    Heard,
    duration,
    print_results,
    progress,
    say,
)
from fastfed.experiments.reproduction import prepare, simulate_missing
from fastfed.reporting.page import has_matplotlib, write_overview, write_report
from fastfed.reporting.pictures import ascii_plot
from fastfed.reporting.sections import Drawn
from fastfed.reporting.source import Source, spaced
from fastfed.reporting.table import Row
from fastfed.results.files import FULL
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import Resources, RunBatch, predict_seconds
from fastfed.simulation.engines.base import EngineError
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.memory import OutOfMemory

KEPT = "what was played is kept, and the same command continues"
NO_MATPLOTLIB = 'no figure drawn: matplotlib is missing; pip install "fastfed[figures]"'


def simulate(
    experiment: Experiment,
    folder: Path,
    resources: Resources,
) -> Source:
    """Simulate what a folder lacks, print the table, and write the report."""

    def on_start(batches: list[RunBatch], threads: int) -> None:
        say(announce(experiment, batches, threads))

    source = simulate_silently(experiment, folder, resources, on_start)
    with failures(folder):
        written = write_report(source, folder)
    print_results(source)
    click.echo("\n" + ascii_plot(source))
    say(f"{folder}: {', '.join(path.name for path in written)}")
    if not has_matplotlib():
        say(NO_MATPLOTLIB)
    return source


def simulate_silently(
    experiment: Experiment,
    folder: Path,
    resources: Resources,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
) -> Source:
    """Simulate what a folder lacks with a progress bar alone; no report is written.

    ``on_start`` is called with the batches of runs that are left and the number of threads.
    """
    layout = prepare(experiment, folder, resources)
    if layout.reduced:
        say(f"{experiment.name}: {layout.reduced}")
    with ExitStack() as stack:
        heard: Heard | None = None

        def start(batches: list[RunBatch], threads: int) -> None:
            nonlocal heard
            if on_start is not None:
                on_start(batches, threads)
            left = sum(experiment.agent_rounds(b.positions) for b in batches)
            if left:
                heard = stack.enter_context(progress(left))

        def on_progress(agent_rounds: int) -> None:
            if heard is not None:
                heard(agent_rounds)

        with failures(folder):
            return simulate_missing(
                layout, experiment, folder, resources, on_start=start, progress=on_progress
            )


def say_overview(
    folder: Path,
    not_played: Sequence[Row] | None = None,
    drawn: Mapping[str, Drawn] | None = None,
) -> list[Row]:
    """Write the page over all experiments in a folder, if any; the rows of their claims."""
    if not any(folder.glob(f"*/{FILE}")):
        return []
    overview = write_overview(folder, not_played, drawn)
    if overview is None:
        return []
    path, rows = overview
    say(f"all of them on one page: {path}")
    return rows


def announce(experiment: Experiment, batches: list[RunBatch], threads: int) -> str:
    """Sentence about the work that is left and the time that it will take."""
    expected = len(experiment.curves) * experiment.replicates
    missing = sum(len(b.positions) for b in batches)
    if not missing:
        return f"{experiment.name}: nothing left to play"
    share = f"{missing} of {expected}" if missing < expected else f"{missing}"
    left = sum(experiment.agent_rounds(b.positions) for b in batches)
    work = f"{experiment.name}: {share} curve replicates, {spaced(left)} agent-rounds"
    if not threads:
        return f"{work}; the cluster has no workers yet: waiting for them"
    return (
        f"{work} on {threads} thread{'s' if threads > 1 else ''}, "
        f"about {duration(predict_seconds(experiment, batches, threads))}"
    )


@contextmanager
def failures(folder: Path) -> Iterator[None]:
    """Turn failures of a run into RunFailed or Stopped, with a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(f"interrupted: {KEPT}") from None
    except environments.SimulationError as error:
        raise RunFailed(f"{error}; {KEPT}") from None
    except sqlite3.Error as error:
        raise RunFailed(f"{folder / FILE} cannot be written ({error}); {KEPT}") from None
    except OSError as error:
        if error.errno not in FULL:
            raise
        path = error.filename or folder
        raise RunFailed(f"{path} cannot be written ({error.strerror}); {KEPT}") from None
    except EngineError as error:
        raise RunFailed(f"{error}; {KEPT}") from None
    except MemoryError as error:
        known = isinstance(error, OutOfMemory)
        why = str(error) if known else "out of memory: fewer threads or silos need less"
        raise RunFailed(f"{why}; {KEPT}" if (folder / FILE).exists() else why) from None
    except Exception as error:
        notes = [
            n for n in getattr(error, "__notes__", ()) if n.startswith(environments.IN_FUNCTION)
        ]
        if not notes or isinstance(error, InputError):
            raise
        raise RunFailed(f"{notes[0]}: {type(error).__name__}: {error}; {KEPT}") from None
