"""Time ROBIN: rounds of a federation in phases, and the server's work between phases."""

from __future__ import annotations

import numpy as np
import pytest

from fastfed._kernels import linalg
from fastfed.environments import Sphere
from fastfed.privacy.mechanisms.winsorized import calibrate_winsorized
from fastfed.privacy.sensitivity import Budget
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment

SILOS, ROUNDS = 100, 510
ROBIN = {"label": "a", "algorithm": "robin", "initial_phases": 5}
PRIVATE = {"epsilon": 4.0, "delta": 1e-5, "diversity": 0.0039, "concentration_multiplier": 1e-5}


@pytest.mark.parametrize("keys", [{"private": False}, PRIVATE], ids=["plain", "private"])
def test_phases(benchmark, keys):
    """Run 100 clients and 510 rounds: five initial phases and three greedy phases."""
    e = make_experiment(
        name="bench",
        environment=Sphere(5, 20),
        curves=[{**ROBIN, **keys}],
        horizon=ROUNDS,
        silos=SILOS,
    )
    environment_run, plans = e.environment.open(0, 0, SILOS), [c.system.plan for c in e.curves]
    benchmark(dispatch.run, environment_run, plans, e.checkpoints)


@pytest.mark.parametrize("dimension", [5, 57])
def test_least_squares(benchmark, dimension):
    """Compute one least-squares estimate from a statistic of full rank."""
    rows = np.random.default_rng(0).normal(size=(10 * dimension, dimension))
    gram = (rows.T @ rows)[np.tril_indices(dimension)]
    statistic = np.concatenate([rows.sum(axis=0), gram])[None]
    benchmark(linalg.least_squares, statistic, dimension)


@pytest.mark.parametrize("silos", [50, 3200])
def test_winsorized_mean(benchmark, silos):
    """Compute one private mean of estimates in eight rotated coordinates."""
    mean = calibrate_winsorized(
        Budget(4.0, 1e-5, "replace", "silo"),
        silos=silos,
        dimension=5,
        radius=0.01,
        bound=1.0,
        releases=5,
        concentration_failure=1e-4,
    )
    rng = np.random.default_rng(0)
    vectors, signs = rng.normal(0.3, 0.02, size=(silos, 5)), np.ones(8)
    benchmark(mean.apply, vectors, signs, rng.uniform(size=8), rng.uniform(size=8))
