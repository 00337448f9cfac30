"""Reproduction of the papers' figures: selection, prediction, runs, and one page over them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fastfed._validate import InputError
from fastfed.experiments import Figure, figure_ids, with_panels
from fastfed.experiments.specs import sized_experiment
from fastfed.reporting.figure import Source, read_source
from fastfed.reporting.page import FORMATS, PAGE, write_overview, write_report
from fastfed.reporting.table import Row, rows_left_out
from fastfed.results.results import Results
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import Layout, Resources, RunBatch, check_threads, predict_seconds
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.run import layout_for, left_to_run, run_by

#: Stands for every figure.
ALL = "all"


def reproduce(
    figures: str | Iterable[str],
    output: str | Path,
    *,
    quick: bool = False,
    full: bool = False,
    data: str | Path | None = None,
    replicates: int | None = None,
    seed: int | None = None,
    changes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    memory_limit: int | str | None = None,
    on_figure: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Results]:
    """Reproduce figures of the papers, and write their reports.

    Each figure, and each further panel of it, gets a folder of its own in ``output``, with results
    and report; ``output/report.html`` is one page over all of them. The same call again resumes:
    it simulates what is missing and repeats nothing.

    Parameters
    ----------
    figures : str or iterable of str
        Ids of figures, as `fastfed list figures` prints them, or "all": every figure that needs
        no data and does not take a day, some at smaller sizes.
    output : str or Path
        Output folder.
    quick : bool
        A first look: two replicates, a tenth of the horizon.
    full : bool
        The sizes that the paper printed, where the figure's own are smaller.
    data : str or Path, optional
        Learning-to-rank file or folder, for figures that need one.
    replicates, seed : int, optional
        Replace those of the figures.
    changes : mapping, optional
        Values by key, in every figure, such as {"horizon": 500, "curve.epsilon": 2.0}. Claims
        about another experiment are then not judged.
    threads, engine, scheduler, memory_limit
        As in `fastfed.run`.
    on_figure : callable, optional
        Called with the id of each figure before it is simulated.
    progress : callable, optional
        Called from any thread with the number of agent-rounds simulated since the last call.

    Returns
    -------
    dict of str to Results
        By id, in the order in which the figures were simulated.

    Raises
    ------
    InputError
        For an unknown figure or value, before anything is simulated.

    Examples
    --------
    >>> import tempfile, fastfed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     results_by_figure = fastfed.reproduce("h23-hard", folder, quick=True)
    >>> list(results_by_figure)
    ['h23-hard']
    """
    names = [figures] if isinstance(figures, str) else list(figures)
    size = size_of_call(names, quick=quick, full=full)
    chosen, left_out = select(names, data, size)
    # All are checked before the first is simulated: bad input then costs no time.
    ready = [(f, sized_experiment(f, data, size, replicates, seed, changes)) for f in chosen]
    resources = Resources(threads, engine, scheduler, memory_limit)
    folder = Path(output)
    results_by_figure: dict[str, Results] = {}
    for figure, experiment in ready:
        if on_figure is not None:
            on_figure(figure.id)
        own = folder / figure.id
        layout = prepare(experiment, own, resources)
        results_by_figure[figure.id] = simulate_missing(
            layout, experiment, own, resources, progress=progress
        ).results
        write_figure(own)
    if ready:
        rows = [row for each in left_out.values() for row in each]
        write_overview(folder, rows if ALL in names else None)
    return results_by_figure


def size_of_call(names: Sequence[str], *, quick: bool, full: bool) -> str | None:
    """The size of figures that a call asks for: "quick", "full", "all", or None for their own."""
    if quick and full:
        raise InputError("quick and full exclude each other")
    return "quick" if quick else "full" if full else ALL if ALL in names else None


def select(
    names: Sequence[str], data: str | Path | None, size: str | None
) -> tuple[list[Figure], dict[str, list[Row]]]:
    """The figures to simulate, and the rows of those that "all" leaves out, by id."""
    if ALL not in names:
        return with_panels(names), {}
    everything = with_panels(figure_ids())
    reasons = {figure.id: why_left_out(figure, data, size) for figure in everything}
    left_out = {
        figure.id: rows_left_out(figure.id, figure.spec["figure"], reasons[figure.id])
        for figure in everything
        if reasons[figure.id]
    }
    return [figure for figure in everything if figure.id not in left_out], left_out


def why_left_out(figure: Figure, data: str | Path | None, size: str | None) -> str:
    """The reason why "all" leaves a figure out; empty if it does not."""
    if figure.needs_data and data is None:
        return "it needs learning-to-rank files, --data PATH"
    return figure.long if size == ALL else ""


@dataclass(frozen=True)
class PlannedFigure:
    """A figure, and what is left to simulate of it."""

    figure: Figure
    experiment: Experiment
    missing: int  # curve replicates
    agent_rounds: int
    seconds: float
    memory: int = 0  # bytes

    def unchanged(self, folder: Path) -> bool:
        """Report whether a folder holds all results, and the report of this very [figure]."""
        if self.missing or not (folder / PAGE).exists():
            return False
        # A table comes back from the store as JSON has it.
        figure: Any = msgspec.json.decode(msgspec.json.encode(self.experiment.figure))
        return bool(read_source(folder).results.figure == figure)


def plan_figures(
    ready: Sequence[tuple[Figure, Experiment]],
    folder: Path,
    resources: Resources,
    on_predict: Callable[[], None] | None = None,
) -> list[PlannedFigure]:
    """Predict what is left of each figure: agent-rounds, seconds and memory.

    ``on_predict`` is called before a few rounds of each figure are timed. Raises InputError,
    before anything is simulated, where a folder holds another experiment, and where a figure does
    not fit into memory.
    """
    layouts = [
        layout_for(experiment, folder / figure.id, resources) for figure, experiment in ready
    ]
    left = [left_to_run(experiment, folder / figure.id) for figure, experiment in ready]
    if any(left) and on_predict is not None:
        on_predict()
    return [
        PlannedFigure(
            figure,
            experiment,
            sum(len(b.positions) for b in batches),
            sum(experiment.agent_rounds(b.positions) for b in batches),
            predict_seconds(experiment, batches, check_threads(resources.threads)),
            layout.bytes,
        )
        for (figure, experiment), batches, layout in zip(ready, left, layouts, strict=True)
    ]


def prepare(experiment: Experiment, folder: Path, resources: Resources) -> Layout:
    """The division of an experiment's runs, for `simulate_missing`; nothing is written.

    Raises InputError where the folder cannot be written, or holds another experiment, and where
    the runs do not fit into memory.
    """
    check_writable(folder)
    return layout_for(experiment, folder, resources)


def simulate_missing(
    layout: Layout,
    experiment: Experiment,
    folder: Path,
    resources: Resources,
    *,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Source:
    """Simulate what a folder lacks of an experiment, and read its source; no report is written."""
    run_by(layout, experiment, folder, resources, on_start=on_start, progress=progress)
    return read_source(folder, experiment.replicates)


def write_figure(folder: Path) -> None:
    """Write the report of a figure's folder, with pictures."""
    # With replicates that an earlier call simulated beyond these.
    write_report(read_source(folder), folder, FORMATS)


def check_writable(folder: Path) -> None:
    """Raise InputError, before hours of work, where an output folder cannot be written."""
    for path in (folder, folder / FILE):
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise InputError(f"cannot write to {path}: permission denied")
