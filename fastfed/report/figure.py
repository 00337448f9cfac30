"""The figure of an experiment: regret against rounds, one line per curve, PNG and SVG."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed.report.privacy_words import privacy_words
from fastfed.report.source import Source, spaced
from fastfed.results.results import CurveResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

#: Paul Tol's "bright" scheme: told apart with any colour vision.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#BBBBBB")
#: After the colours are used up once, lines are told apart by their dashes.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
NOT_PRIVATE = "#000000"
NOT_PRIVATE_DASHES = ((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-")

Y_LABELS = {
    "cumulative": "group regret",
    "time-average": "time-averaged group regret",
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    # The same results give the same bytes: ids in the SVG come from this, not from chance.
    "svg.hashsalt": "fastfed",
}


def draw(source: Source) -> dict[str, bytes]:
    """The picture as {"png": ..., "svg": ...}. Needs matplotlib, and at least one curve.

    Lines are means over replicates, bands two standard errors to either side. Nothing global is
    touched: no pyplot, no backend, and the style only while drawing.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        curves = source.results.curves
        figure = Figure(figsize=(6.4, 4.2 + 0.2 * len(curves)), layout="constrained")
        axes = figure.add_subplot()
        lines = [
            _line(axes, source, curve, style)
            for curve, style in zip(curves, line_styles(curves), strict=True)
        ]
        _dress(axes, source)
        legend = figure.legend(
            lines,
            [_legend_entry(curve) for curve in curves],
            title="curve: privacy as (ε, δ)",
            loc="outside lower center",
            alignment="left",
            frameon=False,
            handlelength=3.2,
            labelspacing=0.35,
        )
        legend.get_title().set(fontsize=8, color="#444444")
        title = figure.suptitle(_wrapped([source.title], 62), fontsize=12, ha="left")
        # The title begins where the axes do, which only the layout knows.
        figure.draw_without_rendering()
        title.set_x(axes.get_position().x0)
        pictures = {}
        for kind in ("png", "svg"):
            file = io.BytesIO()
            figure.savefig(
                file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
            )
            pictures[kind] = file.getvalue()
    return pictures


def line_styles(curves: tuple[CurveResult, ...]) -> list[dict[str, Any]]:
    """Colour and dashes of every curve; what is not private is black, so that it stands apart."""
    styles = []
    private = other = 0
    for curve in curves:
        if curve.certificate["claimed"] is None:
            dashes: Any = NOT_PRIVATE_DASHES[other % len(NOT_PRIVATE_DASHES)]
            styles.append({"color": NOT_PRIVATE, "linestyle": dashes})
            other += 1
        else:
            dashes = DASHES[private // len(COLOURS) % len(DASHES)]
            styles.append({"color": COLOURS[private % len(COLOURS)], "linestyle": dashes})
            private += 1
    return styles


def _line(axes: Axes, source: Source, curve: CurveResult, style: dict[str, Any]) -> Line2D:
    divisor = curve.rounds if _y(source) == "time-average" else np.ones(len(curve.rounds))
    mean, spread = curve.mean / divisor, 2.0 * curve.stderr / divisor
    (line,) = axes.plot(curve.rounds, mean, linewidth=1.8, **style)
    if len(curve.replicates) > 1:
        axes.fill_between(
            curve.rounds, mean - spread, mean + spread, color=style["color"], alpha=0.2, linewidth=0
        )
    return line


def _legend_entry(curve: CurveResult) -> str:
    return _wrapped([f"{curve.label}:  {privacy_words(curve.certificate).short}"], 88)


def _dress(axes: Axes, source: Source) -> None:
    band = "" if source.replicates == "1 replicate" else ", band: ± 2 standard errors"
    small = [source.setting, f"{source.replicates}{band}", *source.notes]
    axes.set_title(_wrapped(small, 92), loc="left", fontsize=8, color="#444444", linespacing=1.35)
    axes.set_xlabel("round")
    axes.set_ylabel(Y_LABELS[_y(source)])
    axes.set_xlim(0, source.results.horizon)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: spaced(value))
    axes.yaxis.set_major_formatter(lambda value, _: spaced(value) if value >= 1e4 else f"{value:g}")


def _wrapped(texts: Iterable[str], width: int) -> str:
    """Texts in lines of at most ``width`` characters; a "$" would start a formula."""
    lines = [line for text in texts for line in textwrap.wrap(text, width)]
    return "\n".join(lines).replace("$", r"\$")


def _y(source: Source) -> str:
    return str(source.results.figure.get("y", "cumulative"))
