"""The figure of an experiment: regret against rounds, one line per curve, bounds beside them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fastfed.report import canvas
from fastfed.report.lines import draw_lines, off_picture
from fastfed.report.privacy_words import privacy_words
from fastfed.report.source import Source, spaced

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


def draw(source: Source, kinds: Collection[str] = canvas.KINDS) -> dict[str, bytes]:
    """The picture by its kinds, as ``render`` gives it. Needs matplotlib, and at least one curve.

    Lines are means over replicates, bands two standard errors to either side.
    """

    def plot(axes: Axes) -> list[tuple[Artist, str]]:
        curves = source.results.curves
        entries = []
        for curve, style in zip(curves, canvas.line_styles(curves), strict=True):
            line = canvas.draw_line(axes, curve.rounds, *canvas.regret(source, curve), style)
            entries.append((line, f"{curve.label}:  {privacy_words(curve.certificate).short}"))
        axes.set_xlabel("round")
        axes.set_xlim(0, source.results.horizon)
        axes.xaxis.set_major_formatter(lambda value, _: spaced(value))
        entries += draw_lines(axes, source)
        dress_regret(axes, source)
        return entries

    small = [*canvas.small_print(source), *off_picture(source)]
    return canvas.render(source, plot, small, "curve: privacy as (ε, δ)", kinds)


def dress_regret(axes: Axes, source: Source) -> None:
    """The y axis of pictures of regret."""
    axes.set_ylabel(canvas.Y_LABELS[canvas.y_axis(source)])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: spaced(value) if value >= 1e4 else f"{value:g}")
