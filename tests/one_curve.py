"""Experiments of one curve with three silos, and both drivers, for tests of keys of curves."""

from __future__ import annotations

import numpy as np

from fastfed.environments import Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment

SILOS, HORIZON, SEED = 3, 60, 11
SAME = ("actions", "rewards", "group_regret", "total", "synchronisations", "bits_up", "bits_down")


def experiment(keys, environment=None, **sizes):
    """Return an experiment of one curve; ``sizes`` replace HORIZON, SILOS and SEED."""
    return make_experiment(
        name="one curve",
        environment=environment or Sphere(dimension=4, actions=6),
        curves=[{"label": "curve", **keys}],
        **({"horizon": HORIZON, "silos": SILOS, "seed": SEED, "checkpoints": HORIZON} | sizes),
    )


def step(e):
    """Return the outcome of the step driver."""
    environment = e.environment.open(e.seed, 0, e.silos)
    return server.run_one(environment, e.curves[0].system.plan, e.checkpoints)


def fast(e, **options):
    """Return the outcome of the compiled driver."""
    environment = e.environment.open(e.seed, 0, e.silos)
    plans = [curve.system.plan for curve in e.curves]
    return compiled.run(environment, plans, e.checkpoints, record=True, **options)[0]


def assert_same_bits(a, b, names=SAME):
    """Check that two outcomes have the same bits."""
    for name in names:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    assert a.events == b.events
