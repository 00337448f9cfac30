"""Counts over replicates: means that stay whole where all replicates agree."""

from __future__ import annotations

import numpy as np

#: float64 counts exactly up to here.
COUNTED = 2.0**53


def whole_bytes(bits: np.ndarray) -> np.ndarray:
    """Whole bytes that hold so many bits."""
    return np.ceil(bits / 8.0)


def means(counts: np.ndarray) -> list[float]:
    """Mean over replicates of counts (R, C), (C,): an int where all of them counted the same, a
    float otherwise and beyond 2^53."""
    first, mean = counts[0], counts.mean(axis=0)
    agree = (counts == first).all(axis=0)
    # The mean of equal counts may round.
    return [
        (int(count) if count <= COUNTED else float(count)) if same else float(average)
        for count, average, same in zip(first, mean, agree, strict=True)
    ]
