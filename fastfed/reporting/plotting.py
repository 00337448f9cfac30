"""Plotting that all pictures of a report share: colours, type, layout, and their files."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed.reporting.figure import Source
from fastfed.reporting.text import is_private
from fastfed.results.results import CurveResult

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Paul Tol's "bright" scheme, for any colour vision.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
#: Dashes of the curves beyond the number of colours.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
NOT_PRIVATE = "#000000"
NOT_PRIVATE_DASHES = ((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-")

Y_LABELS = {
    "cumulative": "group regret",
    "time-average": "time-averaged group regret",
    "per-silo": "regret per silo",
}
#: Style of axes alone; a notebook keeps its own type and size.
AXES_STYLE: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
}
STYLE: dict[Any, Any] = {
    **AXES_STYLE,
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "legend.fontsize": 8.5,
    # Ids in the SVG are derived from this, so equal results give equal bytes.
    "svg.hashsalt": "fastfed",
}

#: An axis shorter than this, in powers of ten, is labelled between the powers too.
SHORT = 2.0

#: Draws every curve into the axes and returns its legend entry (artist, text).
Plot = Callable[["Axes"], Sequence[tuple["Artist", str]]]


@dataclass(frozen=True)
class Format:
    """Size of a picture, and the characters that fit into its lines."""

    width: float  # inches
    height: float  # inches, beside the lines of the legend
    title: int | None  # None: no title, the page names the picture
    small: int
    entry: int
    legend: Any  # place, as matplotlib names it


ALONE = Format(width=6.4, height=4.2, title=62, small=92, entry=88, legend="outside lower center")
#: Type of the same size in a smaller picture, readable on a phone.
IN_PAGE = Format(width=4.8, height=3.1, title=None, small=0, entry=60, legend="outside lower left")
PAGE = "page.svg"
KINDS = ("png", "svg", PAGE)


def render(
    source: Source, plot: Plot, small: Iterable[str], legend_title: str, kinds: Collection[str]
) -> dict[str, bytes]:
    """Draw a picture in each of ``kinds``: "png", "svg", and "page.svg" for the report page.

    It has title, small print, axes, and a legend below. Global state is left alone: no pyplot, no
    backend, and the style is set only while drawing.
    """
    import matplotlib

    small = list(small)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        pictures = {}
        for form, wanted in ((ALONE, ("png", "svg")), (IN_PAGE, (PAGE,))):
            chosen = [kind for kind in wanted if kind in kinds]
            if chosen:
                figure = _figure(source, plot, small, legend_title, form)
                pictures.update({kind: _saved(figure, kind.split(".")[-1]) for kind in chosen})
        return pictures


def _figure(
    source: Source, plot: Plot, small: Iterable[str], legend_title: str, form: Format
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    handles, entries = zip(*plot(axes), strict=True)
    texts = [wrapped([entry], form.entry) for entry in entries]
    lines = sum(text.count("\n") + 1 for text in texts)
    figure.set_size_inches(form.width, form.height + 0.2 * lines)
    legend = figure.legend(
        handles,
        texts,
        title=legend_title,
        loc=form.legend,
        alignment="left",
        frameon=False,
        handlelength=3.2,
        labelspacing=0.35,
    )
    legend.get_title().set(fontsize=8, color="#444444")
    if form.title is not None:
        axes.set_title(
            wrapped(small, form.small), loc="left", fontsize=8, color="#444444", linespacing=1.35
        )
        title = figure.suptitle(wrapped([source.title], form.title), fontsize=12, ha="left")
    figure.draw_without_rendering()
    if form.title is not None:
        # The title begins where the axes do, which only the layout knows.
        title.set_x(axes.get_position().x0)
    # Laid out once, for all kinds.
    figure.set_layout_engine("none")
    return figure


def _saved(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return file.getvalue()


def line_styles(curves: tuple[CurveResult, ...]) -> list[dict[str, Any]]:
    """Colour and dashes of every curve; curves without privacy are black."""
    styles = []
    private = other = 0
    for curve in curves:
        if not is_private(curve.certificate):
            dashes: Any = NOT_PRIVATE_DASHES[other % len(NOT_PRIVATE_DASHES)]
            styles.append({"color": NOT_PRIVATE, "linestyle": dashes})
            other += 1
        else:
            dashes = DASHES[private // len(COLOURS) % len(DASHES)]
            styles.append({"color": COLOURS[private % len(COLOURS)], "linestyle": dashes})
            private += 1
    return styles


def draw_line(
    axes: Axes, x: np.ndarray, mean: np.ndarray, spread: np.ndarray, style: dict[str, Any]
) -> Artist:
    """Draw a mean with its band; without a band where the spread is unknown."""
    (line,) = axes.plot(x, mean, linewidth=1.8, **style)
    if np.isfinite(spread).all():
        axes.fill_between(
            x, mean - spread, mean + spread, color=style["color"], alpha=0.2, linewidth=0
        )
    handle: Artist = line
    return handle


def log_axis(axis: Axis) -> None:
    """Set the ticks of a logarithmic axis, once everything is drawn."""
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    short = math.log10(high / low) < SHORT
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if short else (1.0,)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def small_print(source: Source) -> list[str]:
    """Lines under the title: problem size, replicates, bands and notes."""
    band = "" if source.replicates == "1 replicate" else ", band: ± 2 standard errors"
    return [source.setting, f"{source.replicates}{band}", *source.notes]


def wrapped(texts: Iterable[str], width: int) -> str:
    """Wrap texts into lines of at most ``width`` characters, with "$" escaped for matplotlib."""
    lines = [line for text in texts for line in textwrap.wrap(text, width)]
    return "\n".join(lines).replace("$", r"\$")
