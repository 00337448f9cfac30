"""Experts: compiled losses, and whole federations on them."""

from __future__ import annotations

import numpy as np
import pytest

from fastfed._kernels import losses as loss_kernels
from fastfed._kernels import rng
from fastfed.environments import RealizableLosses, StochasticLosses
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import make_experiment


def played(environment, silos, horizon, **curve):
    e = make_experiment(
        name="bench",
        environment=environment,
        curves=[{"label": "a", **curve}],
        horizon=horizon,
        silos=silos,
    )
    return e.environment.open(0, 0, silos), [e.curves[0].system.plan], e.checkpoints


@pytest.mark.parametrize("experts", [10, 1000])
def test_sums_of_losses(benchmark, experts):
    """What every expert loses at 100 clients in 100 rounds."""
    chance = np.full(experts, loss_kernels.CHANCES // 2, np.uint32)
    losses = loss_kernels.Coins(0, 0, 100, chance)
    benchmark(losses.sums, np.array([0, 100]))


@pytest.mark.parametrize("quadratic", [False, True], ids=["linear", "quadratic"])
def test_gradients(benchmark, quadratic):
    """Sums of 64 gradients of each of 100 clients, d = 100."""
    chance = np.full(100, loss_kernels.CHANCES // 2, np.uint32)
    losses = loss_kernels.Coins(0, 0, 100, chance, quadratic=quadratic)
    rounds = np.tile(np.arange(1, 65), (100, 1))
    benchmark(losses.gradients, rounds, np.full(100, 0.01))


def test_laplace_noise(benchmark):
    """One leaf's noise of 100 clients, d = 1000."""
    benchmark(rng.laplace_rows, 0, 16, 0, 100, 1, 1000)


def test_fed_svt(benchmark):
    """100 clients, 1000 experts, an exchange a round: 1000 decisions."""
    environment = RealizableLosses(experts=1000)
    benchmark(dispatch.run, *played(environment, 100, 1001, algorithm="fed-svt", epsilon=1.0))


@pytest.mark.parametrize("noise", ["local", "central"])
def test_fed_dp_ope_stoch(benchmark, noise):
    """100 clients, 100 experts, 12 phases."""
    curve = {"algorithm": "fed-dp-ope-stoch", "epsilon": 1.0, "noise": noise, "batch": "largest"}
    benchmark(dispatch.run, *played(StochasticLosses(experts=100), 100, 4095, **curve))
