"""Draw charts with matplotlib, into files and into axes of users."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError
from fastfed.reporting.charts import (
    LINE_HEIGHT,
    NAME_DISTANCE,
    Chart,
    Dot,
    Line,
    end_text,
    move_apart,
    texts_fit,
)
from fastfed.reporting.panels import RANGE_COLOUR
from fastfed.reporting.text import wrapped

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Style of axes. It does not set fonts and sizes, which a notebook chooses.
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
    # Write text as text, not as paths, and embed fonts if the format allows it.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
    # A fixed salt for ids in the SVG, so that equal results give equal bytes.
    "svg.hashsalt": "fastfed",
}
#: Style of a plot in a column of a paper.
SMALL: dict[Any, Any] = {"font.size": 8.0, "legend.fontsize": 7.0, "axes.linewidth": 0.6}

#: Titles of legends of regret, and of bytes sent.
LEGEND = "curve: privacy as (ε, δ)"
LEGEND_SENT = "curve: sent in one replicate, on average"
#: A logarithmic axis over fewer powers of ten than this also has ticks between the powers.
SHORT = 2.0
#: An entry of a legend: the drawn artist and its text.
Entry = tuple["Artist", str]


@dataclass(frozen=True)
class Format:
    """Size of a plot, and the numbers of characters that fit into its lines of text."""

    width: float  # inches
    height: float  # inches of one row of axes, without the legend
    title: int | None  # characters in a line of the title; None for no title
    small: int  # characters in a line of small print
    entry: int  # characters in a line of the legend
    legend: Any  # location of the legend, as in matplotlib
    columns: int = 1
    style: Mapping[Any, Any] = field(default_factory=dict)


ALONE = Format(6.4, 4.2, 62, 92, 88, "outside lower center", columns=2)
#: One column of a two-column paper, the narrowest in use: 3.15 inches, 8 cm.
COLUMN = Format(3.15, 2.2, None, 0, 46, "outside lower left", style=SMALL)
KINDS = ("png", "svg")
#: Kinds for papers, one column wide; the last is input to TeX.
PAPER = ("pdf", TEX := "pgf")


def render(
    heading: str,
    shown: Sequence[Chart],
    small: Sequence[str],
    legend_title: str | None,
    kinds: Collection[str],
) -> dict[str, bytes]:
    """Draw charts side by side; return the content of the plot file of each kind.

    Plots of kinds "png" and "svg" have title, small print, axes, and a legend below. Plots for
    papers ("pdf" and "pgf") have only axes, with names at the ends of lines. If these names do not
    fit or are missing, plots for papers also have a legend. Global state of matplotlib does not
    change: no pyplot, no backend, and the style is set only while drawing.

    Parameters
    ----------
    heading : str
        Title of the plot.
    shown : sequence of Chart
        The charts.
    small : sequence of str
        Lines of small print.
    legend_title : str or None
        Title of the legend; None for no legend.
    kinds : collection of str
        "png", "svg", "pdf" or "pgf".

    Returns
    -------
    dict of str to bytes
        The content of the file of each kind.
    """
    import matplotlib

    names_at_ends = all(chart.ends and _names_fit(chart, COLUMN) for chart in shown)
    contents: dict[str, bytes] = {}
    for format, file_kinds in ((ALONE, KINDS), (COLUMN, PAPER)):
        chosen = [kind for kind in file_kinds if kind in kinds]
        if not chosen:
            continue
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update({**STYLE, **format.style})
            title = legend_title if format is ALONE or not names_at_ends else None
            for tex in (False, True):
                if figure_kinds := [kind for kind in chosen if (kind == TEX) == tex]:
                    figure = _figure(heading, shown, small, title, format, tex=tex)
                    contents.update({kind: _saved(figure, kind) for kind in figure_kinds})
    return contents


def _figure(
    heading: str,
    shown: Sequence[Chart],
    small: Sequence[str],
    legend_title: str | None,
    format: Format,
    *,
    tex: bool,
) -> Figure:
    """Return a figure with charts, title, small print and legend, laid out for a format.

    `render` explains the other arguments. With ``tex`` the texts are converted to TeX.
    """
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    columns = min(format.columns, len(shown))
    rows = math.ceil(len(shown) / columns)
    all_axes = [figure.add_subplot(rows, columns, i + 1) for i in range(len(shown))]
    entries: dict[str, Artist] = {}
    for i, (axes, chart) in enumerate(zip(all_axes, shown, strict=True)):
        for handle, text in draw_chart(axes, chart):
            entries.setdefault(text, handle)
        # Label only the outer axes.
        if i % columns:
            axes.set_ylabel("")
        if i + columns < len(all_axes):
            axes.set_xlabel("")
        elif columns > 1:
            axes.set_xlabel(fitted([chart.x.label], 30))
        if chart.title and (format.title is None or len(shown) > 1):
            axes.set_title(fitted([chart.title], 34), fontsize="medium", loc="left")
    height = _row_height(shown[0].y.rows) if shown[0].y.rows else format.height
    if len(shown) > 1 and format.columns > 1:
        height *= 0.66
    lines = 0
    if legend_title is not None:
        texts = [fitted([entry], format.entry) for entry in entries]
        lines = sum(text.count("\n") + 1 for text in texts)
        head = legend_title
        if format.title is not None and len(shown) > 1:
            head = "\n".join([fitted(small, format.small), "", legend_title])
            lines += head.count("\n")
        legend = figure.legend(
            list(entries.values()),
            texts,
            title=head,
            loc=format.legend,
            alignment="left",
            frameon=False,
            handlelength=3.2,
            labelspacing=0.35,
        )
        legend.get_title().set(fontsize=8, color="#444444", multialignment="left")
    figure.set_size_inches(format.width, height * rows + 0.2 * lines)
    title = None
    if format.title is not None:
        if len(shown) == 1:
            text = fitted(small, format.small)
            all_axes[0].set_title(text, loc="left", fontsize=8, color="#444444", linespacing=1.35)
        title = figure.suptitle(fitted([heading], format.title), fontsize=12, ha="left")
    # Several panels with a legend leave no room for names beside lines.
    crowded = len(shown) > 1 and legend_title is not None
    names = [
        _write_ends(axes, chart) if not crowded and _names_fit(chart, format) else []
        for axes, chart in zip(all_axes, shown, strict=True)
    ]
    for axes in all_axes:
        if columns > 1 and axes.get_xscale() == "linear":
            axes.locator_params(axis="x", nbins=4)
    figure.draw_without_rendering()
    if title is not None:
        # Align the title with the axes, whose position is known only after the layout.
        title.set_x(all_axes[0].get_position().x0)
    # Keep this layout for all kinds of files.
    figure.set_layout_engine("none")
    for axes, notes in zip(all_axes, names, strict=True):
        _spread_ends(axes, notes)
    if tex:
        # Convert after the layout, which would measure TeX commands instead of the text.
        _to_tex(figure)
    return figure


def _row_height(rows: Sequence[str]) -> float:
    """Return the height in inches of a plot with these names of rows."""
    return 0.6 + (0.08 + 0.14 * max(row.count("\n") + 1 for row in rows)) * len(rows)


def _names_fit(chart: Chart, format: Format) -> bool:
    """Return True if the names at the ends of lines fit into the height of the plot."""
    # The x axis takes some of the height.
    size = 0.833 * format.style.get("font.size", STYLE["font.size"])
    return texts_fit([end_text(end) for end in chart.ends], size, 72.0 * format.height - 5.0 * size)


def fitted(texts: Iterable[str], width: int) -> str:
    """Return texts in lines of at most ``width`` characters, escaped for matplotlib."""
    return _escaped("\n".join(wrapped(texts, width)))


def _escaped(text: str) -> str:
    """Escape "$", which would begin a formula."""
    return text.replace("$", r"\$")


# ---- A chart in axes -----------------------------------------------------------------------------


def draw_chart(axes: Axes, chart: Chart) -> list[Entry]:
    """Draw a chart into empty axes; return the legend entries."""
    from matplotlib.ticker import FuncFormatter

    axes.set(xscale="log" if chart.x.log else "linear", yscale="log" if chart.y.log else "linear")
    areas = [
        (axes.fill_between(area.x, area.low, area.high,
                           color=RANGE_COLOUR, alpha=0.25, linewidth=0), area.text)
        for area in chart.areas
    ]  # fmt: skip
    entries: list[Entry] = [(draw_line(axes, line), line.text) for line in chart.lines]
    for dot in chart.dots:
        _draw_dot(axes, dot)
    axes.set_xlim(chart.x.low, chart.x.high)
    axes.set_ylim(chart.y.low, chart.y.high)
    for axis, settings in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
        axis.set_label_text(settings.label)
        if settings.rows:
            _name_rows(axes, settings.rows)
            continue
        if settings.log:
            log_axis(axis, whole=settings.whole)
        axis.set_major_formatter(FuncFormatter(partial(_tick, settings.text)))
    if not chart.x.log:
        axes.locator_params(axis="x", nbins=5, integer=chart.x.whole)
    return [*entries, *areas]


def _tick(text: Callable[[float], str], value: float, _: int | None) -> str:
    """Format a tick for FuncFormatter, which also passes a position."""
    return text(value)


def _name_rows(axes: Axes, rows: Sequence[str]) -> None:
    """Label the y axis with the names of rows instead of numbers."""
    from matplotlib.ticker import FixedFormatter

    axes.set_yticks(range(len(rows)))
    axes.yaxis.set_major_formatter(FixedFormatter([_escaped(row) for row in rows]))
    axes.grid(visible=False, axis="y")


def draw_line(axes: Axes, line: Line) -> Artist:
    """Draw a line, and its band if the spread is known; return the artist of the line."""
    options: dict[str, Any] = {"linewidth": 1.8}
    if line.bound:
        options = {"linewidth": 1.0, "zorder": 1.5}  # below every curve
    (artist,) = axes.plot(line.x, line.y, **options, **line.style)
    colour = line.style["color"]
    if line.spread is not None and len(line.x) and np.isfinite(line.spread).all():
        low, high = line.y - line.spread, line.y + line.spread
        axes.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
    single = np.isfinite(line.y).sum() == 1  # a line would not show a single point
    if len(line.x) and (line.dot or single):
        last = np.flatnonzero(np.isfinite(line.y))[-1:]
        axes.plot(line.x[last], line.y[last], marker="o", markersize=4, color=colour, clip_on=False)
    handle: Artist = artist
    return handle


def _draw_dot(axes: Axes, dot: Dot) -> None:
    """Draw a curve's final value as a dot with its error bar."""
    axes.errorbar(
        dot.x,
        dot.row,
        xerr=dot.spread if math.isfinite(dot.spread) else None,
        marker="o" if dot.filled else "D",
        markersize=5,
        color=dot.colour,
        markerfacecolor=dot.colour if dot.filled else "none",
        linewidth=1.4,
    )


def log_axis(axis: Axis, *, whole: bool = False) -> None:
    """Set the ticks of a logarithmic axis; call it after everything is drawn.

    If ``whole``, ticks are only at whole numbers.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if decades < 1.0:
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10], integer=whole))
    else:
        subs = (1.0, 2.0, 5.0) if decades < SHORT else (1.0,)
        axis.set_major_locator(LogLocator(10, subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


# ---- Names at the ends of lines ------------------------------------------------------------------


def _write_ends(axes: Axes, chart: Chart) -> list[tuple[Any, float]]:
    """Write names beside the ends of lines; return each annotation and its height on the y axis."""
    notes = []
    for end in chart.ends:
        y = max(min(end.y, chart.y.high), chart.y.low)
        note = axes.annotate(
            _escaped(end_text(end)),
            xy=(end.x, y),
            xytext=(NAME_DISTANCE, 0.0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            linespacing=1.0,
            annotation_clip=False,
            arrowprops={
                **{"arrowstyle": "-", "color": end.colour, "linewidth": 0.9},
                **{"shrinkA": 0.0, "shrinkB": 0.0, "relpos": (0.0, 0.5)},
            },
        )
        notes.append((note, y))
    return notes


def _spread_ends(axes: Axes, notes: Sequence[tuple[Any, float]]) -> None:
    """Move names vertically that would overlap; call it after the layout of the axes."""
    if not notes:
        return
    per_point = axes.figure.dpi / 72.0
    heights = [float(axes.transData.transform((note.xy[0], y))[1]) for note, y in notes]
    sizes = [
        note.get_fontsize() * (note.get_text().count("\n") + 1) * LINE_HEIGHT * per_point
        for note, _ in notes
    ]
    moved = move_apart(heights, sizes, axes.get_window_extent().y1)
    for (note, _), old_height, new_height in zip(notes, heights, moved, strict=True):
        note.set_position((NAME_DISTANCE, (new_height - old_height) / per_point))


# ---- Files ---------------------------------------------------------------------------------------

#: Characters that TeX reads as commands or lacks in text fonts. matplotlib escapes "^" and "%".
_TEX = {
    "\\$": r"\$", "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "&": r"\&",
    "_": r"\_", "~": r"\textasciitilde{}", "ε": r"$\varepsilon$", "δ": r"$\delta$",
    "α": r"$\alpha$", "ρ": r"$\rho$",
}  # fmt: skip
_IN_TEX = re.compile(r"\\\$|[\\{}#&_~εδαρ]")


def _to_tex(figure: Figure) -> None:
    """Convert all texts of a figure to TeX; "$" is already escaped."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def in_tex(text: str) -> str:
        """Replace the characters that have a meaning in TeX."""
        return _IN_TEX.sub(lambda match: _TEX[match[0]], text)

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(formatter := axis.get_major_formatter(), FixedFormatter):
                formatter.seq = [in_tex(text) for text in formatter.seq]
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(in_tex(text.get_text()))


def _saved(figure: Figure, kind: str) -> bytes:
    """Return the figure as the bytes of a plot file of this kind, without dates.

    Raises InputError if the kind is "pgf" and LaTeX is missing.
    """
    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}}
    keys: dict[str, Any] = {"metadata": undated[kind]} if kind in undated else {}
    try:
        figure.savefig(file, format=kind, dpi=150, **keys)
    except (OSError, RuntimeError) as error:
        if kind != "pgf":
            raise
        reason = str(error).split(";")[0].split("\n")[0]
        raise InputError(
            f"format pgf needs LaTeX ({reason}): install TeX Live with xelatex, or use pdf"
        ) from None
    return file.getvalue()
