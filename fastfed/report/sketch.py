"""A figure in plain characters, for terminals without pictures."""

from __future__ import annotations

import numpy as np

from fastfed.report.source import Source, spaced

MARKS = "abcdefghijklmnopqrstuvwxyz"


def sketch(source: Source, width: int = 60, height: int = 12) -> str:
    """Mean group regret of every curve against rounds; each curve is a letter."""
    curves = source.results.curves[: len(MARKS)]
    if not curves:
        return ""
    top = max(float(c.mean.max()) for c in curves) or 1.0
    canvas = [[" "] * width for _ in range(height)]
    columns = np.linspace(0.0, source.results.horizon, width)
    for mark, curve in zip(MARKS, curves, strict=False):
        heights = np.interp(columns, [0, *curve.rounds], [0.0, *curve.mean]) / top
        for column, level in enumerate(heights):
            row = canvas[height - 1 - min(height - 1, int(level * height))]
            # Where curves meet, the one drawn first stays.
            row[column] = mark if row[column] == " " else row[column]
    axis = f"{top:.4g}"
    lines = [f"{axis if i == 0 else '':>10} |{''.join(row)}" for i, row in enumerate(canvas)]
    rounds = f"round {spaced(source.results.horizon)}"
    lines += [f"{'0':>10} +{'-' * width}", f"{rounds:>{12 + width}}"]
    names = "   ".join(f"{mark} {c.label}" for mark, c in zip(MARKS, curves, strict=False))
    lines.append(f"{'':12}{names}")
    return "\n".join(line.rstrip() for line in ["group regret", *lines]) + "\n"
