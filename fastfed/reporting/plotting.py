"""Plotting that all pictures of a report share: colours, type, layout, and their files."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError
from fastfed.reporting.figure import Source
from fastfed.reporting.text import is_private
from fastfed.results.results import CurveResult

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

#: Paul Tol's "bright" scheme, for any colour vision, the pale ones last.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44", "#BBBBBB")
#: Dashes of the curves beyond the number of colours.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
NOT_PRIVATE = "#000000"
NOT_PRIVATE_DASHES = (
    *((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-"),
    *((0, (12, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)), (0, (12, 2, 3, 2))),
)

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
    # Text stays text, and the type is embedded where a format can hold it.
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "pgf.rcfonts": False,
    # Ids in the SVG are derived from this, so equal results give equal bytes.
    "svg.hashsalt": "fastfed",
}
#: Type of a picture in a column of a paper.
SMALL: dict[Any, Any] = {"font.size": 8.0, "legend.fontsize": 7.0, "axes.linewidth": 0.6}

#: An axis shorter than this, in powers of ten, is labelled between the powers too.
SHORT = 2.0

#: An entry of a legend: what is drawn, and its text.
Entry = tuple["Artist", str]


@dataclass(frozen=True)
class Part:
    """What is drawn into one axes.

    ``draw`` draws it and returns its legend; ``ends`` are the names to write at the right end of
    lines, with the places of these ends.
    """

    title: str
    draw: Callable[[Axes], Sequence[Entry]]
    ends: tuple[tuple[str, float, float, str], ...] = ()  # name, x, y, colour


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
#: Type of the same size in a smaller picture, readable on a phone; one picture for each panel.
IN_PAGE = Format(4.8, 3.1, None, 0, 60, "outside lower left")
#: One column of a two-column paper, the narrowest in use: 3.15 inches, 8 cm.
COLUMN = Format(3.15, 2.2, None, 0, 46, "outside lower left", style=SMALL)
PAGE = "page.svg"
KINDS = ("png", "svg", PAGE)
#: Kinds for papers, one column wide; the last is input to TeX.
PAPER = ("pdf", TEX := "pgf")


def render(
    source: Source,
    parts: Sequence[Part],
    small: Iterable[str],
    legend_title: str | None,
    kinds: Collection[str],
    *,
    height: float | None = None,
) -> dict[str, bytes]:
    """Draw a picture in each of ``kinds``: "png", "svg", "pdf", "pgf", and those of the page.

    The picture alone has title, small print, axes, and a legend below; that for a paper has axes
    alone. The page has one picture for each of ``parts``: "page.svg", "2.page.svg", and so on.
    Where lines have names at their ends, page and paper have no legend. ``height``: inches of a
    row, in place of the formats' own. Global state is left alone: no pyplot, no backend, and the
    style is set only while drawing.
    """
    import matplotlib

    small = list(small)
    named = all(part.ends for part in parts)
    pictures: dict[str, bytes] = {}
    for form, wanted in ((ALONE, ("png", "svg")), (COLUMN, PAPER), (IN_PAGE, (PAGE,))):
        chosen = [kind for kind in wanted if kind in kinds]
        if not chosen:
            continue
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update({**STYLE, **form.style})
            title = legend_title if form is ALONE or not named else None
            if form is IN_PAGE:
                limits = _limits(parts)
                for number, part in enumerate(parts):
                    figure = _figure(source, [part], small, title, form, height, limits)
                    name = f"{number + 1}.{PAGE}" if number else PAGE
                    pictures[name] = _saved(figure, "svg")
                continue
            for tex in (False, True):
                if of := [kind for kind in chosen if (kind == TEX) == tex]:
                    figure = _figure(source, parts, small, title, form, height, tex=tex)
                    pictures.update({kind: _saved(figure, kind) for kind in of})
    return pictures


def _figure(
    source: Source,
    parts: Sequence[Part],
    small: Sequence[str],
    legend_title: str | None,
    form: Format,
    height: float | None,
    limits: tuple[float, float] | None = None,
    *,
    tex: bool = False,
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    columns = min(form.columns, len(parts))
    rows = math.ceil(len(parts) / columns)
    every = [figure.add_subplot(rows, columns, i + 1) for i in range(len(parts))]
    entries: dict[str, Artist] = {}
    for axes, part in zip(every, parts, strict=True):
        for handle, text in part.draw(axes):
            entries.setdefault(text, handle)
    _share(every, columns)
    if limits is not None:
        every[0].set_ylim(limits)
    for axes in every:
        if axes.get_yscale() == "log":
            log_axis(axes.yaxis)
    for axes, part in zip(every, parts, strict=True):
        if part.title and (form.title is None or len(parts) > 1):
            axes.set_title(wrapped([part.title], 34), fontsize="medium", loc="left")
    height = form.height if height is None else height
    if len(parts) > 1 and form.columns > 1:
        height *= 0.66
    lines = 0
    if legend_title is not None:
        texts = [wrapped([entry], form.entry) for entry in entries]
        lines = sum(text.count("\n") + 1 for text in texts)
        head = legend_title
        if form.title is not None and len(parts) > 1:
            head = "\n".join([wrapped(small, form.small), "", legend_title])
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
        if len(parts) == 1:
            text = wrapped(small, form.small)
            every[0].set_title(text, loc="left", fontsize=8, color="#444444", linespacing=1.35)
        title = figure.suptitle(wrapped([source.title], form.title), fontsize=12, ha="left")
    # In several panels with a legend below there is no room for names beside lines.
    crowded = len(parts) > 1 and legend_title is not None
    ends = [() if crowded else part.ends for part in parts]
    names = [_write_ends(axes, of) for axes, of in zip(every, ends, strict=True)]
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
        _escape(figure)
    return figure


def _limits(parts: Sequence[Part]) -> tuple[float, float] | None:
    """Limits of the y axis that several panels share in pictures of their own."""
    if len(parts) == 1:
        return None
    from matplotlib.figure import Figure

    figure = Figure()
    every = [figure.add_subplot(1, len(parts), i + 1) for i in range(len(parts))]
    for axes, part in zip(every, parts, strict=True):
        part.draw(axes)
    _share(every, len(parts))
    low, high = every[0].get_ylim()
    return low, high


def _share(every: Sequence[Axes], columns: int) -> None:
    """Give panels one y axis, and each name of an axis once."""
    if len(every) == 1:
        return
    low = min(axes.get_ylim()[0] for axes in every)
    high = max(axes.get_ylim()[1] for axes in every)
    for i, axes in enumerate(every):
        axes.set_ylim(low, high)
        if i % columns:
            axes.set_ylabel("")
        if i + columns < len(every):
            axes.set_xlabel("")


#: Points between the end of a line and its name, and characters in a line of a name.
BESIDE, NAME = 9.0, 20


def _write_ends(
    axes: Axes, ends: Sequence[tuple[str, float, float, str]]
) -> list[tuple[Any, float]]:
    """Write names beside the ends of lines, each with its place on the y axis in pixels."""
    written = []
    top = axes.get_ylim()[1]
    for name, x, y, colour in ends:
        note = axes.annotate(
            wrapped([name.replace(" = ", "\u00a0=\u00a0")], NAME),
            xy=(x, min(y, top)),
            xytext=(BESIDE, 0.0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            linespacing=1.0,
            annotation_clip=False,
            arrowprops={
                **{"arrowstyle": "-", "color": colour, "linewidth": 0.9},
                **{"shrinkA": 0.0, "shrinkB": 0.0, "relpos": (0.0, 0.5)},
            },
        )
        written.append((note, min(y, top)))
    return written


def _spread_ends(axes: Axes, written: Sequence[tuple[Any, float]]) -> None:
    """Move names apart that would overlap, each as little as the others allow."""
    if not written:
        return
    figure = axes.figure
    per_point = figure.dpi / 72.0
    box = axes.get_window_extent()
    places = []
    for note, y in written:
        at = float(axes.transData.transform((note.xy[0], y))[1])
        size = note.get_fontsize() * (note.get_text().count("\n") + 1) * 1.15 * per_point
        places.append([at, at, size, note])
    places.sort(key=lambda place: place[0])
    for before, place in pairwise(places):
        place[1] = max(place[1], before[1] + (before[2] + place[2]) / 2.0)
    ceiling = max(box.y1, places[-1][0])
    for place in reversed(places):
        place[1] = min(place[1], ceiling - place[2] / 2.0 if place is places[-1] else ceiling)
        ceiling = place[1] - place[2] / 2.0
        if (at := places.index(place)) > 0:
            ceiling -= places[at - 1][2] / 2.0
    for at, now, _, note in places:
        note.set_position((BESIDE, (now - at) / per_point))


#: What TeX reads as a command, or has in no text font. "^" and "%" are matplotlib's to escape.
_TEX = {
    "\\$": r"\$", "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "#": r"\#", "&": r"\&",
    "_": r"\_", "~": r"\textasciitilde{}", "ε": r"$\varepsilon$", "δ": r"$\delta$",
    "α": r"$\alpha$", "ρ": r"$\rho$",
}  # fmt: skip
_IN_TEX = re.compile(r"\\\$|[\\{}#&_~εδαρ]")


def _escape(figure: Figure) -> None:
    """Turn every text of a figure into TeX; "$" is escaped already."""
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter

    def escaped(text: str) -> str:
        return _IN_TEX.sub(lambda found: _TEX[found[0]], text)

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(formatter := axis.get_major_formatter(), FixedFormatter):
                formatter.seq = [escaped(text) for text in formatter.seq]
    for text in figure.findobj(Text):
        if isinstance(text, Text):
            text.set_text(escaped(text.get_text()))


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
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if decades < 1.0:
        axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    else:
        subs = (1.0, 2.0, 5.0) if decades < SHORT else (1.0,)
        axis.set_major_locator(LogLocator(10, subs=subs))
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
