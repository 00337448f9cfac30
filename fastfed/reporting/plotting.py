"""Charts drawn by matplotlib: picture files, and a user's axes."""

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
from fastfed.reporting.charts import BESIDE, LEADING, Chart, Dot, Line, apart, end_text, fit
from fastfed.reporting.figure import Source
from fastfed.reporting.panels import OTHERS
from fastfed.reporting.text import wrapped

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

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
    # Text stays text, and the type is embedded where a format can hold it.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
    # Ids in the SVG are derived from this, so equal results give equal bytes.
    "svg.hashsalt": "fastfed",
}
#: Type of a picture in a column of a paper.
SMALL: dict[Any, Any] = {"font.size": 8.0, "legend.fontsize": 7.0, "axes.linewidth": 0.6}

#: A logarithmic axis shorter than this, in powers of ten, has ticks between the powers too.
SHORT = 2.0
#: An entry of a legend: what is drawn, and its text.
Entry = tuple["Artist", str]


@dataclass(frozen=True)
class Format:
    """Size of a picture, and the characters that fit into its lines."""

    width: float  # inches
    height: float  # inches of one row of axes, beside the lines of the legend
    title: int | None  # None: no title, the page or the paper names the picture
    small: int
    entry: int
    legend: Any  # place, as matplotlib names it
    columns: int = 1
    style: Mapping[Any, Any] = field(default_factory=dict)


ALONE = Format(6.4, 4.2, 62, 92, 88, "outside lower center", columns=2)
#: One column of a two-column paper, the narrowest in use: 3.15 inches, 8 cm.
COLUMN = Format(3.15, 2.2, None, 0, 46, "outside lower left", style=SMALL)
KINDS = ("png", "svg")
#: Kinds for papers, one column wide; the last is input to TeX.
PAPER = ("pdf", TEX := "pgf")


def render(
    source: Source,
    shown: Sequence[Chart],
    small: Iterable[str],
    legend_title: str | None,
    kinds: Collection[str],
) -> dict[str, bytes]:
    """Draw charts side by side into a picture of each of ``kinds``: "png", "svg", "pdf", "pgf".

    A picture has title, small print, axes, and a legend below; one for a paper has axes alone, and
    a legend only where lines have no names at their ends. Global state is left alone: no pyplot,
    no backend, and the style is set only while drawing.
    """
    import matplotlib

    small = list(small)
    named = all(chart.ends and _names_fit(chart, COLUMN) for chart in shown)
    pictures: dict[str, bytes] = {}
    for form, wanted in ((ALONE, KINDS), (COLUMN, PAPER)):
        chosen = [kind for kind in wanted if kind in kinds]
        if not chosen:
            continue
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update({**STYLE, **form.style})
            title = legend_title if form is ALONE or not named else None
            for tex in (False, True):
                if of := [kind for kind in chosen if (kind == TEX) == tex]:
                    figure = _figure(source, shown, small, title, form, tex=tex)
                    pictures.update({kind: _saved(figure, kind) for kind in of})
    return pictures


def _figure(
    source: Source,
    shown: Sequence[Chart],
    small: Sequence[str],
    legend_title: str | None,
    form: Format,
    *,
    tex: bool,
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    columns = min(form.columns, len(shown))
    rows = math.ceil(len(shown) / columns)
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(len(shown))]
    entries: dict[str, Artist] = {}
    for i, (axes, chart) in enumerate(zip(every, shown, strict=True)):
        for handle, text in draw_chart(axes, chart):
            entries.setdefault(text, handle)
        # Panels name an axis once.
        if i % columns:
            axes.set_ylabel("")
        if i + columns < len(every):
            axes.set_xlabel("")
        elif columns > 1:
            axes.set_xlabel(fitted([chart.x.label], 30))
        if chart.title and (form.title is None or len(shown) > 1):
            axes.set_title(fitted([chart.title], 34), fontsize="medium", loc="left")
    height = _row_height(shown[0].y.rows) if shown[0].y.rows else form.height
    if len(shown) > 1 and form.columns > 1:
        height *= 0.66
    lines = 0
    if legend_title is not None:
        texts = [fitted([entry], form.entry) for entry in entries]
        lines = sum(text.count("\n") + 1 for text in texts)
        head = legend_title
        if form.title is not None and len(shown) > 1:
            head = "\n".join([fitted(small, form.small), "", legend_title])
            lines += head.count("\n")
        legend = figure.legend(
            list(entries.values()),
            texts,
            title=head,
            loc=form.legend,
            alignment="left",
            frameon=False,
            handlelength=3.2,
            labelspacing=0.35,
        )
        legend.get_title().set(fontsize=8, color="#444444", multialignment="left")
    figure.set_size_inches(form.width, height * rows + 0.2 * lines)
    title = None
    if form.title is not None:
        if len(shown) == 1:
            text = fitted(small, form.small)
            every[0].set_title(text, loc="left", fontsize=8, color="#444444", linespacing=1.35)
        title = figure.suptitle(fitted([source.title], form.title), fontsize=12, ha="left")
    # In several panels with a legend below there is no room for names beside lines.
    crowded = len(shown) > 1 and legend_title is not None
    names = [
        _write_ends(axes, chart) if not crowded and _names_fit(chart, form) else []
        for axes, chart in zip(every, shown, strict=True)
    ]
    for axes in every:
        if columns > 1 and axes.get_xscale() == "linear":
            axes.locator_params(axis="x", nbins=4)
    figure.draw_without_rendering()
    if title is not None:
        # The title begins where the axes do, which only the layout knows.
        title.set_x(every[0].get_position().x0)
    # Laid out once, for all kinds.
    figure.set_layout_engine("none")
    for axes, written in zip(every, names, strict=True):
        _spread_ends(axes, written)
    if tex:
        # Only now: the layout measures texts as they are read, in a wider type than TeX's.
        _to_tex(figure)
    return figure


def _row_height(rows: Sequence[str]) -> float:
    """Inches of a picture of rows."""
    return 0.6 + (0.08 + 0.14 * max(row.count("\n") + 1 for row in rows)) * len(rows)


def _names_fit(chart: Chart, form: Format) -> bool:
    # Some of the height is below the axes.
    size = 0.833 * form.style.get("font.size", STYLE["font.size"])
    return fit([end_text(end) for end in chart.ends], size, 72.0 * form.height - 5.0 * size)


def fitted(texts: Iterable[str], width: int) -> str:
    """Texts in lines of at most ``width`` characters, in which matplotlib finds no formulas."""
    return _escaped("\n".join(wrapped(texts, width)))


def _escaped(text: str) -> str:
    return text.replace("$", r"\$")


# ---- A chart in axes -----------------------------------------------------------------------------


def draw_chart(axes: Axes, chart: Chart) -> list[Entry]:
    """Draw a chart into axes of its own; what stands in a legend."""
    from matplotlib.ticker import FuncFormatter

    axes.set(xscale="log" if chart.x.log else "linear", yscale="log" if chart.y.log else "linear")
    areas = [
        (axes.fill_between(area.x, area.low, area.high, color=OTHERS, alpha=0.25, linewidth=0),
         area.text)
        for area in chart.areas
    ]  # fmt: skip
    entries: list[Entry] = [(draw_line(axes, line), line.text) for line in chart.lines]
    for dot in chart.dots:
        _draw_dot(axes, dot)
    axes.set_xlim(chart.x.low, chart.x.high)
    axes.set_ylim(chart.y.low, chart.y.high)
    for axis, of in ((axes.xaxis, chart.x), (axes.yaxis, chart.y)):
        axis.set_label_text(of.label)
        if of.rows:
            _name_rows(axes, of.rows)
            continue
        if of.log:
            log_axis(axis, whole=of.whole)
        axis.set_major_formatter(FuncFormatter(partial(_tick, of.text)))
    if not chart.x.log:
        axes.locator_params(axis="x", nbins=5, integer=chart.x.whole)
    return [*entries, *areas]


def _tick(text: Callable[[float], str], value: float, _: int | None) -> str:
    return text(value)


def _name_rows(axes: Axes, rows: Sequence[str]) -> None:
    from matplotlib.ticker import FixedFormatter

    axes.set_yticks(range(len(rows)))
    axes.yaxis.set_major_formatter(FixedFormatter([_escaped(row) for row in rows]))
    axes.grid(visible=False, axis="y")


def draw_line(axes: Axes, line: Line) -> Artist:
    """Draw a line with its band; without a band where the spread is unknown."""
    look: dict[str, Any] = {"linewidth": 1.8}
    if line.bound:
        look = {"linewidth": 1.0, "zorder": 1.5}  # below every curve
    (drawn,) = axes.plot(line.x, line.y, **look, **line.style)
    colour = line.style["color"]
    if line.spread is not None and len(line.x) and np.isfinite(line.spread).all():
        low, high = line.y - line.spread, line.y + line.spread
        axes.fill_between(line.x, low, high, color=colour, alpha=0.2, linewidth=0)
    single = np.isfinite(line.y).sum() == 1  # which no line shows
    if len(line.x) and (line.dot or single):
        last = np.flatnonzero(np.isfinite(line.y))[-1:]
        axes.plot(line.x[last], line.y[last], marker="o", markersize=4, color=colour, clip_on=False)
    handle: Artist = drawn
    return handle


def _draw_dot(axes: Axes, dot: Dot) -> None:
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
    """Set the ticks of a logarithmic axis, once everything is drawn; ``whole``: whole numbers."""
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
    """Write names beside the ends of lines, each with its place on the y axis in pixels."""
    written = []
    for end in chart.ends:
        y = max(min(end.y, chart.y.high), chart.y.low)
        note = axes.annotate(
            _escaped(end_text(end)),
            xy=(end.x, y),
            xytext=(BESIDE, 0.0),
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
        written.append((note, y))
    return written


def _spread_ends(axes: Axes, written: Sequence[tuple[Any, float]]) -> None:
    """Move names apart that would overlap, once the axes have their place."""
    if not written:
        return
    per_point = axes.figure.dpi / 72.0
    heights = [float(axes.transData.transform((note.xy[0], y))[1]) for note, y in written]
    sizes = [
        note.get_fontsize() * (note.get_text().count("\n") + 1) * LEADING * per_point
        for note, _ in written
    ]
    places = apart(heights, sizes, axes.get_window_extent().y1)
    for (note, _), at, now in zip(written, heights, places, strict=True):
        note.set_position((BESIDE, (now - at) / per_point))


# ---- Files ---------------------------------------------------------------------------------------

#: What TeX reads as a command, or has in no text font. "^" and "%" are matplotlib's to escape.
_TEX = {
    "\\$": r"\$", "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "&": r"\&",
    "_": r"\_", "~": r"\textasciitilde{}", "ε": r"$\varepsilon$", "δ": r"$\delta$",
    "α": r"$\alpha$", "ρ": r"$\rho$",
}  # fmt: skip
_IN_TEX = re.compile(r"\\\$|[\\{}#&_~εδαρ]")


def _to_tex(figure: Figure) -> None:
    """Turn every text of a figure into TeX; "$" is escaped already."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def in_tex(text: str) -> str:
        return _IN_TEX.sub(lambda found: _TEX[found[0]], text)

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(formatter := axis.get_major_formatter(), FixedFormatter):
                formatter.seq = [in_tex(text) for text in formatter.seq]
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(in_tex(text.get_text()))


def _saved(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None, "Producer": None}}
    keys: dict[str, Any] = {"metadata": undated[kind]} if kind in undated else {}
    try:
        figure.savefig(file, format=kind, dpi=150, **keys)
    except (OSError, RuntimeError) as error:
        if kind != "pgf":
            raise
        what = str(error).split(";")[0].split("\n")[0]
        raise InputError(
            f"format pgf needs LaTeX ({what}): install TeX Live with xelatex, or take pdf"
        ) from None
    return file.getvalue()
