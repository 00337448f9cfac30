"""Pictures of an experiment: regret, communication, plots in a user's axes, and plain text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError, boolean, choice, nearest, show
from fastfed.reporting import plotting
from fastfed.reporting.figure import (
    COLOUR,
    SYNCHRONISATIONS,
    Source,
    ceiling,
    draw_bounds,
    in_memory,
    off_picture,
    regret,
    spaced,
    visible_bounds,
    y_axis,
)
from fastfed.reporting.panels import (
    BEST,
    MOST_DRAWN,
    OTHERS,
    Panel,
    curve_styles,
    least_regret,
    panels,
    symbols,
)
from fastfed.reporting.table import sent
from fastfed.reporting.text import is_private, privacy_text
from fastfed.results.results import CurveResult, Results, standard_error

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- Regret against rounds: one line per curve, bounds beside them -------------------------------

LEGEND = "curve: privacy as (ε, δ)"


def draw(source: Source, kinds: Collection[str] = plotting.KINDS) -> dict[str, bytes]:
    """Draw regret against rounds; the picture by kind, as ``render`` returns it.

    Needs matplotlib, and at least one curve. Lines are means over replicates, bands two standard
    errors to either side.
    """
    shown = panels(source)
    top = ceiling(source)
    texts = legend_texts(shown)

    def part(panel: Panel) -> plotting.Part:
        own = replace(source, results=replace(source.results, curves=panel.curves))

        def plot(axes: Axes) -> list[tuple[Artist, str]]:
            log = str(source.results.figure.get("log", ""))
            axes.set(**{f"{axis}scale": "log" for axis in log})
            others = _draw_range(axes, source, panel.others)
            entries = [
                (line, texts.get(text, text)) for line, text in draw_regret(axes, own, panel.styles)
            ]
            first = min(int(curve.rounds[0]) for curve in panel.curves)
            axes.set_xlim(first if "x" in log else 0, source.results.horizon)
            if "x" in log:
                plotting.log_axis(axes.xaxis)
            if "y" in log:
                axes.set_ylim(bottom=0.8 * least(own))
                plotting.log_axis(axes.yaxis)
            return [*entries, *others]

        ends = []
        for curve, name, style in zip(panel.curves, panel.names, panel.styles, strict=True):
            last = float(regret(source, curve)[0][-1])
            ends.append((name, float(curve.rounds[-1]), last, style["color"]))
        for line in visible_bounds(own, top):
            last = float(line.values[-1]) if np.isfinite(line.values[-1]) else np.inf
            ends.append((line.label, float(line.rounds[-1]), last, COLOUR))
        return plotting.Part(panel.title, plot, tuple(ends))

    small = [*plotting.small_print(source), *off_picture(source)]
    return plotting.render(source, [part(panel) for panel in shown], small, LEGEND, kinds)


def legend_texts(shown: Sequence[Panel]) -> dict[str, str]:
    """Entries of a legend over several panels, by those of the curves: what looks alike is one."""
    if len(shown) == 1:
        return {}
    alike: dict[tuple[str, str], list[CurveResult]] = {}
    for panel in shown:
        for curve, style, look in zip(panel.curves, panel.styles, panel.looks, strict=True):
            members = alike.setdefault((look, str(style)), [])
            if curve not in members:
                members.append(curve)
    texts = {}
    for (look, _), members in alike.items():
        privacy = dict.fromkeys(privacy_text(c.certificate).short for c in members)
        text = f"{look}:  {' | '.join(privacy)}"
        texts.update({legend_entry(curve): text for curve in members})
    return texts


def least(source: Source) -> float:
    """Least mean above 0 at any checkpoint: a band may reach below it, and to 0."""
    means = np.concatenate([regret(source, curve)[0] for curve in source.results.curves])
    above = means[means > 0.0]
    return float(above.min()) if len(above) else 1.0


def _draw_range(
    axes: Axes, source: Source, curves: Sequence[CurveResult]
) -> list[tuple[Artist, str]]:
    """Draw from the least to the largest mean of curves, in grey."""
    if not curves:
        return []
    means = np.array([regret(source, curve)[0] for curve in curves])
    area = axes.fill_between(
        curves[0].rounds,
        means.min(axis=0),
        means.max(axis=0),
        color=OTHERS,
        alpha=0.25,
        linewidth=0,
    )
    return [(area, f"all {spaced(len(curves))} curves, from the least to the largest mean")]


def draw_regret(
    axes: Axes, source: Source, styles: Sequence[dict[str, Any]]
) -> list[tuple[Artist, str]]:
    """Draw regret and its bounds against rounds into axes; one legend entry each."""
    entries = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        line = plotting.draw_line(axes, curve.rounds, *regret(source, curve), style)
        entries.append((line, legend_entry(curve)))
    format_round_axis(axes)
    entries += draw_bounds(axes, source)
    format_regret_axis(axes, source)
    return entries


def legend_entry(curve: CurveResult) -> str:
    """Text of a curve in the legend: label and privacy."""
    return f"{symbols(curve.label)}:  {privacy_text(curve.certificate).short}"


def format_round_axis(axes: Axes) -> None:
    """Label the x axis of a picture against rounds."""
    axes.set_xlabel("round")
    if axes.get_xscale() == "linear":
        axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda value, _: spaced(value))


def format_regret_axis(axes: Axes, source: Source) -> None:
    """Label the y axis of a picture of regret."""
    axes.set_ylabel(plotting.Y_LABELS[y_axis(source)])
    format_amount_axis(axes)


def format_amount_axis(axes: Axes) -> None:
    """Format a y axis of amounts; a linear one begins at 0."""
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: spaced(value) if value >= 1e4 else f"{value:g}")


# ---- Regret against the bytes sent so far --------------------------------------------------------


def sends(source: Source) -> bool:
    """Return True if any curve sends anything."""
    return any(curve.bytes_sent > 0 for curve in source.results.curves)


def draw_communication(source: Source, kinds: Collection[str] = plotting.KINDS) -> dict[str, bytes]:
    """Draw regret against bytes sent; the picture by kind, as ``render`` returns it.

    Needs matplotlib, and a curve that sends. A line begins with its curve's first synchronisation
    in any replicate; between two of them regret grows while nothing is sent. Both are means over
    replicates. Curves that send nothing stand in the legend only.
    """

    def part(panel: Panel) -> plotting.Part:
        def plot(axes: Axes) -> list[tuple[Artist, str]]:
            return _draw_sent(axes, source, panel)

        return plotting.Part(panel.title, plot)

    parts = [part(panel) for panel in panels(source)]
    small = [*plotting.small_print(source), "a dot is the last round"]
    title = "curve: sent in one replicate, on average"
    return plotting.render(source, parts, small, title, kinds)


def _draw_sent(axes: Axes, source: Source, panel: Panel) -> list[tuple[Artist, str]]:
    from matplotlib.lines import Line2D

    entries: list[tuple[Artist, str]] = []
    for curve, style in zip(panel.curves, panel.styles, strict=True):
        by = np.array(curve.bytes_curve, np.float64)
        begun = by > 0
        mean, spread = regret(source, curve)
        label = symbols(curve.label)
        if begun.any():
            line = plotting.draw_line(axes, by[begun], mean[begun], spread[begun], style)
            axes.plot(by[-1:], mean[-1:], marker="o", markersize=4, color=style["color"])
            entries.append((line, f"{label}:  {sent(curve.bytes_sent)}"))
        else:
            nothing = Line2D([], [], linewidth=1.8, **style)
            entries.append((nothing, f"{label}:  sends nothing"))
    axes.set_xlabel("sent so far, up and down, all silos together")
    axes.set_xscale("log")
    plotting.log_axis(axes.xaxis)
    axes.xaxis.set_major_formatter(lambda value, _: sent(value))
    logarithmic = "y" in str(source.results.figure.get("log", ""))
    if logarithmic:
        axes.set_yscale("log")
    format_regret_axis(axes, source)
    if logarithmic:
        own = replace(source, results=replace(source.results, curves=panel.curves))
        axes.set_ylim(bottom=0.8 * least(own))
        plotting.log_axis(axes.yaxis)
    return entries


# ---- Regret at the last round: a dot for each curve ----------------------------------------------

#: Curves from which on a picture of dots says more than the ends of lines, and most that it holds.
DOTS = (6, MOST_DRAWN)
#: Characters in a line beside a dot.
ROW = 30
#: Largest over smallest regret from which on its axis is logarithmic.
WIDE = 20.0


def draw_final(source: Source, kinds: Collection[str] = plotting.KINDS) -> dict[str, bytes]:
    """Draw regret at the last round, a dot for each curve; as ``render`` returns it.

    Bars are two standard errors to either side. Empty where there are too few curves for it, or too
    many.
    """
    curves = source.results.curves
    if not DOTS[0] <= len(curves) <= DOTS[1]:
        return {}

    labels = [symbols(curve.label).replace(" = ", "\u00a0=\u00a0") for curve in curves]
    names = [plotting.wrapped([label], ROW) for label in labels]

    def plot(axes: Axes) -> list[tuple[Artist, str]]:
        from matplotlib.ticker import FixedFormatter

        finals = [tuple(float(v[-1]) for v in regret(source, curve)) for curve in curves]
        means = [mean for mean, _ in finals]
        for row, (style, (mean, spread)) in enumerate(
            zip(curve_styles(source), finals, strict=True)
        ):
            axes.errorbar(
                mean,
                row,
                xerr=spread if np.isfinite(spread) else None,
                marker="o" if style["linestyle"] == "-" else "D",
                markersize=5,
                color=style["color"],
                markerfacecolor=style["color"] if style["linestyle"] == "-" else "none",
                linewidth=1.4,
            )
        axes.set_yticks(range(len(curves)))
        axes.yaxis.set_major_formatter(FixedFormatter(names))
        axes.set_ylim(len(curves) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(f"{plotting.Y_LABELS[y_axis(source)]}, last round")
        if min(means) > 0.0 and max(means) / min(means) > WIDE:
            axes.set_xscale("log")
            plotting.log_axis(axes.xaxis)
        else:
            axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(
            lambda value, _: spaced(value) if value >= 1e4 else f"{value:g}"
        )
        return []

    height = 0.6 + (0.08 + 0.14 * max(name.count("\n") + 1 for name in names)) * len(curves)
    small = plotting.small_print(source)
    return plotting.render(source, [plotting.Part("", plot)], small, None, kinds, height=height)


# ---- ASCII plot for terminals --------------------------------------------------------------------

MARKS = "abcdefghijklmnopqrstuvwxyz"


def ascii_plot(source: Source, width: int = 60, height: int = 12) -> str:
    """Plot the mean regret of every curve against rounds in characters; each curve is a letter."""
    curves, few = source.results.curves, ""
    if len(curves) > len(MARKS):
        few = f", the {BEST} curves of least regret among {spaced(len(curves))}"
        curves = least_regret(curves)
    if not curves:
        return ""
    means = [regret(source, curve)[0] for curve in curves]
    top = max(float(mean.max()) for mean in means) or 1.0
    grid = [[" "] * width for _ in range(height)]
    columns = np.linspace(0.0, source.results.horizon, width)
    for mark, curve, mean in zip(MARKS, curves, means, strict=False):
        heights = np.interp(columns, [0, *curve.rounds], [0.0, *mean]) / top
        for column, level in enumerate(heights):
            row = grid[height - 1 - min(height - 1, int(level * height))]
            # Where curves meet, the one drawn first stays.
            row[column] = mark if row[column] == " " else row[column]
    axis = f"{top:.4g}"
    lines = [f"{axis if i == 0 else '':>10} |{''.join(row)}" for i, row in enumerate(grid)]
    rounds = f"round {spaced(source.results.horizon)}"
    lines += [f"{'0':>10} +{'-' * width}", f"{rounds:>{12 + width}}"]
    names = "   ".join(f"{mark} {c.label}" for mark, c in zip(MARKS, curves, strict=False))
    lines.append(f"{'':12}{names}")
    title = f"{plotting.Y_LABELS[y_axis(source)]}{few}"
    return "\n".join(line.rstrip() for line in [title, *lines]) + "\n"


# ---- Plots in a user's axes, as ``Results.plot`` draws them --------------------------------------

NO_MATPLOTLIB = 'plot needs matplotlib, which is not installed: pip install "fastfed[figures]"'
#: What the report calls an axis of regret.
REGRETS = {
    "group_regret": "cumulative",
    "per_silo_regret": "per-silo",
    "time_average_regret": "time-average",
}


def _counted(name: str) -> Callable[[CurveResult], np.ndarray]:
    return lambda curve: curve.counts[name]


def _both_ways(unit: str) -> Callable[[CurveResult], np.ndarray]:
    return lambda curve: curve.counts[f"{unit}_up"] + curve.counts[f"{unit}_down"]


#: What was counted so far, (R, C), and what the y axis calls it.
COUNTS: dict[str, tuple[str, Callable[[CurveResult], np.ndarray]]] = {
    "synchronisations": ("synchronisations so far", _counted("synchronisations")),
    "bits": ("bits sent so far, up and down", _both_ways("bits")),
    "bits_up": ("bits sent so far, up", _counted("bits_up")),
    "bits_down": ("bits sent so far, down", _counted("bits_down")),
    "bytes": ("sent so far, up and down", _both_ways("bytes")),
    "bytes_up": ("sent so far, up", _counted("bytes_up")),
    "bytes_down": ("sent so far, down", _counted("bytes_down")),
}
METRICS = (*REGRETS, *COUNTS)
LOGS = ("", "x", "y", "xy")
#: Characters in a line of a legend that stands among the curves.
INSIDE = 48


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
    choice("log", log, LOGS)
    if boolean("bounds", bounds) and metric in COUNTS:
        raise InputError(f'bounds are of regret: metric must be one of regret, got "{metric}"')
    labels = _labels(results, curves)
    source = in_memory(_asked(results, labels, metric, bounds))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(NO_MATPLOTLIB) from None
    figure, axes = _new_axes() if ax is None else (None, ax)
    styles = dict(zip((c.label for c in results.curves), _styles(axes, results), strict=True))
    lines = _draw(axes, source, metric, log, [styles[label] for label in labels])
    if figure is not None:
        form = plotting.ALONE
        figure.set_size_inches(form.width, form.height + 0.2 * lines)
        axes.set_title(plotting.wrapped([source.title], form.title or 0), loc="left")
    return axes


def _labels(results: Results, curves: Iterable[str] | None) -> list[str]:
    known = [c.label for c in results.curves]
    if not known:
        raise InputError("results must hold a curve to draw one, got none")
    if curves is None:
        return known
    if isinstance(curves, str):
        raise InputError(f"curves must be a list of labels, got {show(curves)}")
    wanted = list(curves)
    for label in wanted:
        if label not in known:
            raise InputError(f"unknown curve {show(label)} in curves{nearest(str(label), known)}")
    if not wanted:
        raise InputError("curves must hold a label, got none")
    return [label for label in known if label in wanted]


def _asked(results: Results, labels: list[str], metric: str | None, bounds: bool) -> Results:
    """The results with what is to be drawn, as a figure of a spec would ask for it."""
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
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context(plotting.AXES_STYLE):
        figure, axes = pyplot.subplots(layout="constrained")
    return figure, axes


def _styles(axes: Axes, results: Results) -> list[dict[str, Any]]:
    """Those of the report, after as many as there are lines of each kind in the axes."""
    colours = [c for line in axes.get_lines() if isinstance(c := line.get_color(), str)]
    private = [c for c in results.curves if is_private(c.certificate)][:1]
    other = [c for c in results.curves if not is_private(c.certificate)][:1]
    before = [*private * sum(c in plotting.COLOURS for c in colours),
              *other * colours.count(plotting.NOT_PRIVATE)]  # fmt: skip
    return plotting.line_styles((*before, *results.curves))[len(before) :]


def _draw(
    axes: Axes, source: Source, metric: str | None, log: str, styles: list[dict[str, Any]]
) -> int:
    """Draw into axes; the lines of text of their legend."""
    from matplotlib.lines import Line2D

    # What was drawn before keeps its place.
    reach = max([source.results.horizon, *(axes.get_xlim()[1:] if axes.has_data() else ())])
    axes.set_autoscaley_on(True)
    axes.set(**{f"{axis}scale": "log" for axis in log})
    if metric in COUNTS:
        entries = _draw_counts(axes, source, metric, styles)
    else:
        entries = draw_regret(axes, source, styles)
        nothing = Line2D([], [], linestyle="none")
        entries += [(nothing, note) for note in off_picture(source)]
    if axes.get_xscale() == "linear":
        axes.set_xlim(0, reach)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            plotting.log_axis(axis)
    return _legend(axes, entries)


def _draw_counts(
    axes: Axes, source: Source, metric: str, styles: list[dict[str, Any]]
) -> list[tuple[Artist, str]]:
    from matplotlib.ticker import EngFormatter

    name, counts = COUNTS[metric]
    entries = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        values = counts(curve)
        spread = 2.0 * standard_error(values)
        line = plotting.draw_line(axes, curve.rounds, values.mean(axis=0), spread, style)
        entries.append((line, legend_entry(curve)))
    format_round_axis(axes)
    axes.set_ylabel(name)
    format_amount_axis(axes)
    if metric.startswith("bytes"):
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
    return entries


def _legend(axes: Axes, entries: list[tuple[Artist, str]]) -> int:
    """One legend over these entries and whatever had a label before; the lines of its text.

    Below the axes, as in the report, where a layout makes room for it.
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    below = isinstance(axes.figure.get_layout_engine(), ConstrainedLayoutEngine)
    old = axes.get_legend_handles_labels()
    for artist, text in entries:
        wrapped = plotting.wrapped([text], plotting.ALONE.entry if below else INSIDE)
        # What begins with "_" gets no entry.
        artist.set_label(f" {wrapped}" if wrapped.startswith("_") else wrapped)
    texts = [*old[1], *(str(artist.get_label()) for artist, _ in entries)]
    place: dict[str, Any] = {"loc": "best"}
    if below:
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.17), "frameon": False}
    axes.legend(
        [*old[0], *(artist for artist, _ in entries)],
        texts,
        title=LEGEND,
        alignment="left",
        fontsize="small",
        title_fontsize="small",
        handlelength=3.2,
        **place,
    )
    return sum(text.count("\n") + 1 for text in texts)
