"""10^5 rank-one updates stay close to one fresh factorisation of the same sums.

Between two synchronisations the drivers update the factor once a round; these tests bound the loss
of accuracy. Errors are relative, in the 2-norm. The bounds are at least ten times the measured
errors.
"""

from __future__ import annotations

import numpy as np
import pytest

from fastfed import kernels
from fastfed._kernels import linalg

UPDATES = 100_000


def rows(d: int, spread: float) -> np.ndarray:
    """Return unit vectors (UPDATES, d); spread > 1 makes V ill-conditioned."""
    x = np.random.default_rng(d).normal(size=(UPDATES, d)) * np.logspace(0, -np.log10(spread), d)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def relative_error(array: np.ndarray, expected: np.ndarray) -> float:
    """Return the error in spectral norm, relative to the expected matrix."""
    return float(np.linalg.norm(array - expected, 2) / np.linalg.norm(expected, 2))


# (d, spread of the axes, regularizer)
CASES = [
    (1, 1.0, 1.0),
    (5, 1.0, 1.0),
    (10, 1.0, 1e-3),
    (10, 1.0, 1e-8),
    (10, 1e3, 1.0),
    (57, 1.0, 1.0),
]


@pytest.mark.parametrize(("d", "spread", "regularizer"), CASES)
def test_many_updates_stay_close_to_a_fresh_factor(d, spread, regularizer):
    x = rows(d, spread)
    y = x @ np.random.default_rng(1).normal(size=d) + np.random.default_rng(2).normal(size=UPDATES)
    w = kernels.inverse_factor(regularizer * np.eye(d))
    estimate, updated_inverse = np.zeros(d), np.eye(d) / regularizer
    updated_log_det = linalg.log_det(w)  # updated as by eager silos, see Estimate.log_det
    for x_row, reward in zip(x, y, strict=True):
        updated_log_det += linalg.log(linalg.observe(w, estimate, x_row, reward))
        linalg.sherman_morrison(updated_inverse, x_row)

    v = regularizer * np.eye(d) + x.T @ x
    fresh_factor = kernels.inverse_factor(v)
    true_estimate = linalg.solve(fresh_factor, x.T @ y)
    errors = (
        relative_error(w, fresh_factor),
        float(np.linalg.norm(estimate - true_estimate) / np.linalg.norm(true_estimate)),
        relative_error(updated_inverse, fresh_factor.T @ fresh_factor),
    )
    assert errors[0] < 1e-12 and errors[1] < 1e-12, errors
    # Sherman-Morrison subtracts nearly equal numbers near 1/lambda; updates of W do not.
    assert errors[2] < (1e-12 if regularizer >= 1e-3 else 1e-10), errors
    assert not np.triu(w, 1).any() and np.array_equal(updated_inverse, updated_inverse.T)
    # Choices depend on the widths of new directions. They must be accurate too.
    unit_vectors = np.eye(d)
    ucb = kernels.ucb_scores(unit_vectors, w, np.zeros(d), 1.0)
    np.testing.assert_allclose(
        ucb, kernels.ucb_scores(unit_vectors, fresh_factor, np.zeros(d), 1.0), rtol=1e-11
    )
    assert linalg.log_det(w) == pytest.approx(linalg.log_det(fresh_factor), rel=1e-10)
    assert updated_log_det == pytest.approx(linalg.log_det(fresh_factor), abs=1e-8)
