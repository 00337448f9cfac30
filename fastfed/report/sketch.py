"""A figure in plain characters, for terminals without pictures."""

from __future__ import annotations

import numpy as np

from fastfed.report import canvas
from fastfed.report.source import Source, spaced

MARKS = "abcdefghijklmnopqrstuvwxyz"


def sketch(source: Source, width: int = 60, height: int = 12) -> str:
    """Mean regret of every curve against rounds, as its figure has it; each curve is a letter."""
    curves = source.results.curves[: len(MARKS)]
    if not curves:
        return ""
    means = [canvas.regret(source, curve)[0] for curve in curves]
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
    title = canvas.Y_LABELS[canvas.y_axis(source)]
    return "\n".join(line.rstrip() for line in [title, *lines]) + "\n"
