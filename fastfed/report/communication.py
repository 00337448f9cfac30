"""What regret costs in communication: regret against the bytes sent so far."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from fastfed.report import canvas
from fastfed.report.figure import dress_regret
from fastfed.report.source import Source
from fastfed.report.table import sent

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes


def sends(source: Source) -> bool:
    """Whether any curve sends anything, so that there is something to draw."""
    return any(curve.bytes_sent > 0 for curve in source.results.curves)


def draw_communication(source: Source, kinds: Collection[str] = canvas.KINDS) -> dict[str, bytes]:
    """The picture by its kinds, as ``render`` gives it. Needs matplotlib, and a curve that sends.

    A line begins with its curve's first synchronisation in any replicate; between two of them
    regret grows while nothing is sent. Both are means over replicates. Curves that send nothing
    stand in the legend only.
    """

    def plot(axes: Axes) -> list[tuple[Artist, str]]:
        from matplotlib.lines import Line2D

        curves = source.results.curves
        entries: list[tuple[Artist, str]] = []
        for curve, style in zip(curves, canvas.line_styles(curves), strict=True):
            by = np.array(curve.bytes_curve, np.float64)
            begun = by > 0
            mean, spread = canvas.regret(source, curve)
            if begun.any():
                line = canvas.draw_line(axes, by[begun], mean[begun], spread[begun], style)
                axes.plot(by[-1:], mean[-1:], marker="o", markersize=4, color=style["color"])
                entries.append((line, f"{curve.label}:  {sent(curve.bytes_sent)}"))
            else:
                nothing = Line2D([], [], linewidth=1.8, **style)
                entries.append((nothing, f"{curve.label}:  sends nothing"))
        axes.set_xlabel("sent so far, up and down, all silos together")
        axes.set_xscale("log")
        canvas.log_axis(axes.xaxis)
        axes.xaxis.set_major_formatter(lambda value, _: sent(value))
        dress_regret(axes, source)
        return entries

    small = [*canvas.small_print(source), "a dot is the last round"]
    return canvas.render(source, plot, small, "curve: sent in one replicate, on average", kinds)
