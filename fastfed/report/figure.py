"""The figure of an experiment: regret against rounds, one line per curve, bounds beside them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from fastfed.report import canvas
from fastfed.report.lines import draw_lines, off_picture
from fastfed.report.privacy_words import privacy_words
from fastfed.report.source import Source, spaced
from fastfed.results.results import CurveResult

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

LEGEND = "curve: privacy as (ε, δ)"


def draw(source: Source, kinds: Collection[str] = canvas.KINDS) -> dict[str, bytes]:
    """The picture by its kinds, as ``render`` gives it. Needs matplotlib, and at least one curve.

    Lines are means over replicates, bands two standard errors to either side.
    """

    def plot(axes: Axes) -> list[tuple[Artist, str]]:
        entries = draw_regret(axes, source, canvas.line_styles(source.results.curves))
        axes.set_xlim(0, source.results.horizon)
        return entries

    small = [*canvas.small_print(source), *off_picture(source)]
    return canvas.render(source, plot, small, LEGEND, kinds)


def draw_regret(
    axes: Axes, source: Source, styles: Sequence[dict[str, Any]]
) -> list[tuple[Artist, str]]:
    """Draw regret and its bounds against rounds into axes; one legend entry each."""
    entries = []
    for curve, style in zip(source.results.curves, styles, strict=True):
        line = canvas.draw_line(axes, curve.rounds, *canvas.regret(source, curve), style)
        entries.append((line, legend_entry(curve)))
    dress_rounds(axes)
    entries += draw_lines(axes, source)
    dress_regret(axes, source)
    return entries


def legend_entry(curve: CurveResult) -> str:
    """A curve and its privacy."""
    return f"{curve.label}:  {privacy_words(curve.certificate).short}"


def dress_rounds(axes: Axes) -> None:
    """The x axis of pictures against rounds."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_formatter(lambda value, _: spaced(value))


def dress_regret(axes: Axes, source: Source) -> None:
    """The y axis of pictures of regret."""
    axes.set_ylabel(canvas.Y_LABELS[canvas.y_axis(source)])
    dress_amount(axes)


def dress_amount(axes: Axes) -> None:
    """A y axis of amounts: from 0 on, where it is linear."""
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: spaced(value) if value >= 1e4 else f"{value:g}")
