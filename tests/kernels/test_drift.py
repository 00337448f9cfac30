"""Drift of rank-one updates: 10^5 of them against one fresh factorisation of the same sums.

Between two synchronisations the drivers update the factor once a round; this bounds what that
costs in accuracy. Errors are relative, in the 2-norm, and the bounds stated here leave a factor of
ten or more above what was seen.
"""

from __future__ import annotations

import numpy as np
import pytest

from fastfed import kernels
from fastfed._kernels import linalg

UPDATES = 100_000


def rows(d: int, spread: float) -> np.ndarray:
    """Unit vectors (UPDATES, d); spread > 1 makes V ill-conditioned, axes of many sizes."""
    x = np.random.default_rng(d).normal(size=(UPDATES, d)) * np.logspace(0, -np.log10(spread), d)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected, 2) / np.linalg.norm(expected, 2))


# d, spread of the axes, regularizer
CASES = [
    (1, 1.0, 1.0),
    (5, 1.0, 1.0),
    (10, 1.0, 1e-3),
    (10, 1.0, 1e-8),
    (10, 1e3, 1.0),
    (57, 1.0, 1.0),
]


@pytest.mark.parametrize(("d", "spread", "regularizer"), CASES)
def test_drift(d, spread, regularizer):
    x = rows(d, spread)
    y = x @ np.random.default_rng(1).normal(size=d) + np.random.default_rng(2).normal(size=UPDATES)
    w = kernels.inverse_factor(regularizer * np.eye(d))
    estimate, updated = np.zeros(d), np.eye(d) / regularizer
    followed = linalg.log_det(w)  # as eager silos do it, see Estimate.log_det
    for row, reward in zip(x, y, strict=True):
        followed += linalg.log(linalg.observe(w, estimate, row, reward))
        linalg.sherman_morrison(updated, row)

    v = regularizer * np.eye(d) + x.T @ x
    fresh = kernels.inverse_factor(v)
    truth = linalg.solve(fresh, x.T @ y)
    errors = (
        relative(w, fresh),
        float(np.linalg.norm(estimate - truth) / np.linalg.norm(truth)),
        relative(updated, fresh.T @ fresh),
    )
    assert errors[0] < 1e-12 and errors[1] < 1e-12, errors
    # Sherman-Morrison subtracts from 1/lambda what is nearly 1/lambda: its weakness, not W's.
    assert errors[2] < (1e-12 if regularizer >= 1e-3 else 1e-10), errors
    assert not np.triu(w, 1).any() and np.array_equal(updated, updated.T)
    # What decides an action: widths of fresh directions, of which none is negative or lost.
    probe = np.eye(d)
    ucb = kernels.ucb_scores(probe, w, np.zeros(d), 1.0)
    np.testing.assert_allclose(ucb, kernels.ucb_scores(probe, fresh, np.zeros(d), 1.0), rtol=1e-11)
    assert linalg.log_det(w) == pytest.approx(linalg.log_det(fresh), rel=1e-10)
    assert followed == pytest.approx(linalg.log_det(fresh), abs=1e-8)
