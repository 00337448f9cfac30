"""Reproduction of the papers' figures: selection, cost prediction, runs and an overview report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fastfed._validate import InputError, with_example
from fastfed.experiments import Figure, figure_ids, with_panels
from fastfed.experiments.specs import sized_experiment
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import PAGE, write_overview, write_report
from fastfed.reporting.plot_files import FORMATS
from fastfed.reporting.table import Row, rows_left_out
from fastfed.results.results import Results
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import Layout, Resources, check_threads, predict_seconds
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.run import layout_for, left_to_run, run

#: The name that selects every figure.
ALL = "all"


@with_example('fastfed.reproduce(["zc24-fig3a"], "out")')
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
    """Reproduce figures of the papers and write their reports.

    Each figure and each of its further panels gets a folder in ``output`` with results and a
    report. ``output/report.html`` is an overview of all of them. Repeating the call resumes: it
    simulates only missing replicates.

    Parameters
    ----------
    figures : str or iterable of str
        Ids of figures, as printed by `fastfed list figures`, or "all" for all figures except those
        that need ``data``, if it is not given. Without ``quick`` and ``full``, "all" also omits
        figures that take more than a day, and simulates some others at smaller sizes.
    output : str or Path
        Output folder.
    quick : bool
        Run short versions: two replicates and a tenth of the horizon.
    full : bool
        Use the paper's sizes where the figure's default sizes are smaller.
    data : str or Path, optional
        Learning-to-rank file or folder, for figures that need one.
    replicates, seed : int, optional
        Replace the values in the figures' specs.
    changes : mapping, optional
        Values that replace keys in every figure, such as {"horizon": 500, "curve.epsilon": 2.0}.
        Claims about the unchanged experiment are then not judged.
    threads, engine, scheduler, memory_limit
        As in `fastfed.run`.
    on_figure : callable, optional
        Called with the id of each figure before it is simulated.
    progress : callable, optional
        Called with the number of agent-rounds simulated since the last call, from any thread.

    Returns
    -------
    dict of str to Results
        Results by figure id, in the order of simulation.

    Raises
    ------
    InputError
        If a figure is unknown or a value is invalid; nothing is simulated in this case.

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
    # All figures are checked before the first is simulated, so that bad input costs no time.
    experiments = [(f, sized_experiment(f, data, size, replicates, seed, changes)) for f in chosen]
    resources = Resources(threads, engine, scheduler, memory_limit)
    folder = Path(output)
    results_by_figure: dict[str, Results] = {}
    for figure, experiment in experiments:
        if on_figure is not None:
            on_figure(figure.id)
        figure_folder = folder / figure.id
        layout = prepare(experiment, figure_folder, resources)
        run(experiment, figure_folder, resources, layout=layout, progress=progress)
        results_by_figure[figure.id] = read_source(figure_folder, experiment.replicates).results
        # The report includes all stored replicates, also those of earlier calls.
        write_report(read_source(figure_folder), figure_folder, FORMATS)
    if experiments:
        rows = [row for figure_rows in left_out.values() for row in figure_rows]
        write_overview(folder, rows if ALL in names else None)
    return results_by_figure


def size_of_call(names: Sequence[str], *, quick: bool, full: bool) -> str | None:
    """Return the requested size: "quick", "full", "all", or None for the default sizes."""
    if quick and full:
        raise InputError("quick and full exclude each other")
    return "quick" if quick else "full" if full else ALL if ALL in names else None


def select(
    names: Sequence[str], data: str | Path | None, size: str | None
) -> tuple[list[Figure], dict[str, list[Row]]]:
    """Return (the figures to simulate, the rows of the overview's table for omitted figures).

    ``names`` are ids of figures. Each selected figure is followed by its other panels. The name
    "all" selects all figures except those that need data files, if ``data`` is None, and those that
    take too long, if ``size`` is "all". The second result has the rows of these omitted figures, by
    figure id.
    """
    if ALL not in names:
        return with_panels(names), {}
    everything = with_panels(figure_ids())
    reasons = {figure.id: reason_left_out(figure, data, size) for figure in everything}
    left_out = {
        figure.id: rows_left_out(figure.id, figure.spec["figure"], reasons[figure.id])
        for figure in everything
        if reasons[figure.id]
    }
    return [figure for figure in everything if figure.id not in left_out], left_out


def reason_left_out(figure: Figure, data: str | Path | None, size: str | None) -> str:
    """Return the reason why "all" omits a figure; empty if it does not."""
    if figure.needs_data and data is None:
        return "it needs learning-to-rank files, --data PATH"
    return figure.long if size == ALL else ""


@dataclass(frozen=True)
class PlannedFigure:
    """A figure and the predicted cost of its missing replicates."""

    figure: Figure
    experiment: Experiment
    missing: int  # curve replicates
    agent_rounds: int
    seconds: float
    memory: int = 0  # bytes

    def unchanged(self, folder: Path) -> bool:
        """Return True if reproducing the figure would change nothing in its folder.

        This is so if all results are there, and a report that was written for the same [figure]
        table.
        """
        if self.missing or not (folder / PAGE).exists():
            return False
        # The store returns tables converted to JSON types.
        figure: Any = msgspec.json.decode(msgspec.json.encode(self.experiment.figure))
        return bool(read_source(folder).results.figure == figure)


def plan_figures(
    figures: Sequence[tuple[Figure, Experiment]],
    folder: Path,
    resources: Resources,
    on_predict: Callable[[], None] | None = None,
) -> list[PlannedFigure]:
    """Predict the remaining agent-rounds, seconds and memory of each figure.

    ``on_predict`` is called before a few rounds of each figure are timed. Raises InputError, before
    anything is simulated, if a folder holds a different experiment or a figure does not fit into
    memory.
    """
    layouts = [
        layout_for(experiment, folder / figure.id, resources) for figure, experiment in figures
    ]
    missing_batches = [
        left_to_run(experiment, folder / figure.id) for figure, experiment in figures
    ]
    if any(missing_batches) and on_predict is not None:
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
        for (figure, experiment), batches, layout in zip(
            figures, missing_batches, layouts, strict=True
        )
    ]


def prepare(experiment: Experiment, folder: Path, resources: Resources) -> Layout:
    """Return the layout of an experiment's runs, for `run`; nothing is written.

    Raises InputError if the folder is not writable or holds a different experiment, or if the runs
    do not fit into memory.
    """
    check_writable(folder)
    return layout_for(experiment, folder, resources)


def check_writable(folder: Path) -> None:
    """Raise InputError if an output folder is not writable, before hours of simulation."""
    for path in (folder, folder / FILE):
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise InputError(f"cannot write to {path}: permission denied")
