"""Draw curves of results into axes of matplotlib, for `Results.plot`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError, boolean, choice, nearest_label, show
from fastfed.reporting import plotting
from fastfed.reporting.charts import Y_LABELS, Line, amount_text, legend_entry, regret_lines
from fastfed.reporting.figure import (
    LOG_KEYS,
    SYNCHRONISATIONS,
    Source,
    bounds_above_plot,
    ceiling,
    in_memory,
    y_axis,
)
from fastfed.reporting.panels import COLOURS, NOT_PRIVATE_COLOUR, line_styles
from fastfed.reporting.text import is_private, spaced
from fastfed.results.results import Results, standard_error

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NO_MATPLOTLIB = 'plot needs matplotlib, which is not installed: pip install "fastfed[figures]"'
#: Metrics of regret, each with its value of ``y`` in the [figure] of a spec.
REGRETS = {
    "group_regret": "cumulative",
    "per_silo_regret": "per-silo",
    "time_average_regret": "time-average",
}


#: Metrics of counts: the label of the y axis, and the names of the counts that are added up.
COUNTS = {
    "synchronisations": ("synchronisations so far", ("synchronisations",)),
    "bits": ("bits sent so far, up and down", ("bits_up", "bits_down")),
    "bits_up": ("bits sent so far, up", ("bits_up",)),
    "bits_down": ("bits sent so far, down", ("bits_down",)),
    "bytes": ("sent so far, up and down", ("bytes_up", "bytes_down")),
    "bytes_up": ("sent so far, up", ("bytes_up",)),
    "bytes_down": ("sent so far, down", ("bytes_down",)),
}
METRICS = (*REGRETS, *COUNTS)
#: Characters in a line of a legend inside the axes.
INSIDE_CHARACTERS = 48


def plot(
    results: Results,
    ax: Axes | None = None,
    *,
    metric: str | None = None,
    bounds: bool = False,
    log: str = "",
    curves: Iterable[str] | None = None,
) -> Axes:
    """Draw curves of results into axes; see `Results.plot`."""
    if metric is not None:
        choice("metric", metric, METRICS)
    choice("log", log, LOG_KEYS)
    if boolean("bounds", bounds) and metric in COUNTS:
        raise InputError(f'bounds need a metric of regret, got metric "{metric}"')
    if ax is not None and not hasattr(ax, "get_lines"):
        raise InputError(
            f"ax must be axes of matplotlib, got {show(ax)}; to save a plot: "
            "results.plot().figure.savefig(path)"
        )
    labels = _labels(results, curves)
    source = in_memory(_selected(results, labels, metric, bounds))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    figure, axes = _new_axes() if ax is None else (None, ax)
    styles = dict(zip((c.label for c in results.curves), _styles(axes, results), strict=True))
    legend_lines = _draw(axes, source, metric, log, [styles[label] for label in labels])
    if figure is not None:
        format = plotting.ALONE
        figure.set_size_inches(format.width, format.height + 0.2 * legend_lines)
        axes.set_title(plotting.fitted([source.title], format.title or 0), loc="left")
    return axes


def _labels(results: Results, curves: Iterable[str] | None) -> list[str]:
    """Return the labels of the requested ``curves`` in the order of the results; all if None."""
    all_labels = [c.label for c in results.curves]
    if not all_labels:
        raise InputError("results must have a curve to draw, got none")
    if curves is None:
        return all_labels
    if isinstance(curves, str):
        raise InputError(f"curves must be a list of labels, got {show(curves)}")
    requested = list(curves)
    for label in requested:
        if label not in all_labels:
            raise InputError(
                f"unknown curve {show(label)} in curves{nearest_label(label, all_labels)}"
            )
    if not requested:
        raise InputError("curves must have at least one label, got none")
    return [label for label in all_labels if label in requested]


def _selected(results: Results, labels: list[str], metric: str | None, bounds: bool) -> Results:
    """Return results with only the curves ``labels``, and with changed settings of the figure.

    With ``bounds``, the settings keep the figure's lines of bounds; without such lines, they get
    a line for every bound of every curve.
    """
    chosen = tuple(c for c in results.curves if c.label in labels)
    figure = {k: v for k, v in results.figure.items() if k != "line"}
    if metric in REGRETS:
        figure["y"] = REGRETS[metric]
    if bounds:
        figure["line"] = results.figure.get("line") or [
            {"label": f"{curve.label}: {name}", "curve": curve.label, "bound": name}
            for curve in chosen
            for name in curve.bounds
            if not name.startswith(SYNCHRONISATIONS)
        ]
    return replace(results, curves=chosen, figure=figure)


def _new_axes() -> tuple[Figure, Axes]:
    """Create a figure of pyplot; return the figure and its axes."""
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context(plotting.AXES_STYLE):
        figure, axes = pyplot.subplots(layout="constrained")
    return figure, axes


def _styles(axes: Axes, results: Results) -> list[dict[str, Any]]:
    """Return colour and dashes of every curve, as in the report.

    Styles have a fixed order. If the axes already have lines, the order continues after the styles
    of these lines.
    """
    colours = [c for line in axes.get_lines() if isinstance(c := line.get_color(), str)]
    private = [c for c in results.curves if is_private(c.certificate)][:1]
    not_private = [c for c in results.curves if not is_private(c.certificate)][:1]
    # Style one more curve for each existing line, then drop the styles of these curves.
    existing = [*private * sum(c in COLOURS for c in colours),
                *not_private * colours.count(NOT_PRIVATE_COLOUR)]  # fmt: skip
    return line_styles((*existing, *results.curves))[len(existing) :]


def _draw(
    axes: Axes, source: Source, metric: str | None, log: str, styles: list[dict[str, Any]]
) -> int:
    """Draw the curves of ``source`` and a legend; return the legend's number of lines of text."""
    from matplotlib.lines import Line2D

    # The x axis must also contain everything that was drawn before.
    last_round = max([source.results.horizon, *(axes.get_xlim()[1:] if axes.has_data() else ())])
    axes.set_autoscaley_on(True)
    axes.set(**{f"{axis}scale": "log" for axis in log})
    if metric in COUNTS:
        entries = _draw_counts(axes, source, metric, styles)
    else:
        entries = _draw_regret(axes, source, styles)
        invisible = Line2D([], [], linestyle="none")
        entries += [(invisible, note) for note in bounds_above_plot(source)]
    if axes.get_xscale() == "linear":
        axes.set_xlim(0, last_round)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            plotting.log_axis(axis)
    return _legend(axes, entries)


def _draw_regret(
    axes: Axes, source: Source, styles: Sequence[dict[str, Any]]
) -> list[tuple[Artist, str]]:
    """Draw regret, and bounds up to the height `ceiling`; return the legend entries."""
    limit = ceiling(source)
    lines = regret_lines(source, styles, limit)
    entries = [(plotting.draw_line(axes, line), line.text) for line in lines if not line.bound]
    top = axes.get_ylim()[1]
    for line in lines:
        if line.bound:
            entries.append((plotting.draw_line(axes, line), line.text))
            top = max(top, min(limit, 1.05 * float(np.nanmax(line.y))))
    axes.set_ylim(top=top)
    _format_axes(axes, Y_LABELS[y_axis(source)], min(float(np.nanmin(line.y)) for line in lines))
    return entries


def _draw_counts(
    axes: Axes, source: Source, metric: str, styles: Sequence[dict[str, Any]]
) -> list[tuple[Artist, str]]:
    """Draw the counts of a metric in `COUNTS` against rounds; return the legend entries."""
    from matplotlib.ticker import EngFormatter

    label, names = COUNTS[metric]
    entries = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        values = np.sum([curve.counts[name] for name in names], axis=0)
        two_errors = 2.0 * standard_error(values)
        text = legend_entry(curve)
        line = Line(text, curve.rounds, values.mean(axis=0), style, two_errors)
        entries.append((plotting.draw_line(axes, line), text))
    _format_axes(axes, label)
    if metric.startswith("bytes"):
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    return entries


def _format_axes(axes: Axes, label: str, least: float = 0.0) -> None:
    """Set labels, limits and tick formats of axes of amounts against rounds.

    A linear y axis begins at 0, or below ``least`` if ``least`` is negative.
    """
    axes.set(xlabel="round", ylabel=label)
    if axes.get_xscale() == "linear":
        axes.locator_params(axis="x", nbins=5)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=1.05 * min(least, 0.0))
    axes.xaxis.set_major_formatter(lambda value, _: spaced(value))
    axes.yaxis.set_major_formatter(lambda value, _: amount_text(value))


def _legend(axes: Axes, entries: list[tuple[Artist, str]]) -> int:
    """Draw one legend with the existing and the new entries; return its number of lines of text.

    The legend is below the axes, as in the report, if the layout makes room for it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    below = isinstance(axes.figure.get_layout_engine(), ConstrainedLayoutEngine)
    existing = axes.get_legend_handles_labels()
    for artist, text in entries:
        wrapped = plotting.fitted([text], plotting.ALONE.entry if below else INSIDE_CHARACTERS)
        # matplotlib gives no entry to labels that begin with "_".
        artist.set_label(f" {wrapped}" if wrapped.startswith("_") else wrapped)
    texts = [*existing[1], *(str(artist.get_label()) for artist, _ in entries)]
    place: dict[str, Any] = {"loc": "best"}
    if below:
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.17), "frameon": False}
    axes.legend(
        [*existing[0], *(artist for artist, _ in entries)],
        texts,
        title=plotting.LEGEND,
        alignment="left",
        fontsize="small",
        title_fontsize="small",
        handlelength=3.2,
        **place,
    )
    return sum(text.count("\n") + 1 for text in texts)
