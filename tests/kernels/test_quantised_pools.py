"""Check which queries of a pool are stored in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest
from test_bonus_cache import Rows
from test_drivers import experiment

from fastfed._kernels import environments, linalg
from fastfed.environments.pool import Pool
from fastfed.simulation import compiled

needs_i16 = pytest.mark.skipif(
    not linalg.has_screen_i16(), reason="this processor does without 16-bit products"
)


def test_replicates_of_a_pool_share_quantised_actions():
    """Check also that a pool which is too large has no quantised actions."""
    rng = np.random.default_rng(6)
    rows, starts = rng.normal(size=(60, 4)), np.array([0, 20, 60])
    pool = Pool.from_rows(rows, np.full(60, 0.5), starts, np.array([0, 2]))
    assert pool.quantised is pool.quantised
    assert (pool.quantised is None) == (environments.QuantisedActions(starts, 4).size == 0)


@needs_i16
@pytest.mark.parametrize("threads", [1, 2])
def test_queries_are_quantised_when_they_occur_again(threads):
    """Check that a query which occurs once is not quantised, and that all others are."""
    rng, d = np.random.default_rng(7), 8
    rows, sizes = rng.normal(size=(400, d)), [4] * 100
    environment = Rows((rows / np.linalg.norm(rows, axis=1).max()).astype(np.float32), sizes, 2)
    keys = {"silos": 2, "horizon": 60, "batch_size": 10, "epsilon": 1.0, "delta": 1e-6}
    built_experiment = experiment(environment, keys | {"protocol": "silo-ldp"})
    problem, plans = environment.open(7, 0, 2), [built_experiment.curves[0].system.plan]
    compiled.run(problem, plans, built_experiment.checkpoints, threads=threads)
    occurrences = np.bincount(
        [problem.query(silo, t) for silo in (0, 1) for t in range(1, 61)], minlength=100
    )
    assert ((environment.pool(2).quantised.made == 1) == (occurrences > 1)).all() and (
        occurrences == 1
    ).any()
