"""Budgets of their own for silos: noise, law and certificate of each."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed.environments import Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import make_system

KEYS = {"silos": 3, "horizon": 60, "dimension": 3, "batch_size": 6, "delta": 1e-4}


def system(**keys):
    return make_system("private-fedlinucb", **{**KEYS, **keys})


@pytest.mark.parametrize("protocol", ["silo-ldp", "silo-ldp-prefix"])
def test_each_silo_has_the_noise_of_its_budget(protocol):
    own = system(protocol=protocol, silo_epsilon=[0.5, 2.0, 0.5])
    alone = {e: system(protocol=protocol, epsilon=e) for e in (0.5, 2.0)}
    for silo, epsilon in enumerate((0.5, 2.0, 0.5)):
        std = own.plan.noise_std.times(own.plan.noise_scale[silo])
        assert std.parts == pytest.approx(alone[epsilon].plan.noise_std.parts)
    # The law adds up variances: one radius between those of the two budgets.
    bounds = [s.plan.radius.error_bound[-1] for s in (alone[2.0], own, alone[0.5])]
    assert bounds[0] < bounds[1] < bounds[2]
    shares = sum(alone[e].plan.noise_std.bias ** 2 for e in (0.5, 2.0, 0.5)) / 3
    expected = bounds[0] * math.sqrt(shares) / alone[2.0].plan.noise_std.bias
    assert bounds[1] == pytest.approx(expected)


def test_the_certificate_names_every_budget():
    certificate = system(silo_epsilon=[0.5, 2.0, 0.5]).certificate
    assert certificate.claimed.epsilon == 2.0
    assert certificate.exact.epsilon == pytest.approx(2.0)
    named = {s.model.split("; ")[-1]: s for s in certificate.also if "users of silo" in s.model}
    assert named["users of silos 0, 2"].exact.epsilon == pytest.approx(0.5)
    assert named["users of silo 1"].exact.epsilon == pytest.approx(2.0)


@pytest.mark.parametrize("release", ["tree", "toeplitz", "honaker"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_two_drivers_agree(release, lazy):
    curve = {
        "label": "own", "algorithm": "private-fedlinucb", "silo_epsilon": [5.0, 50.0, 500.0],
        "delta": 1e-3, "batch_size": 6, "release": release, "lazy": lazy,
    }  # fmt: skip
    e = make_experiment(
        name="own", environment=Sphere(dimension=3, actions=5), curves=[curve], horizon=40, silos=3
    )
    opened, plans = e.environment.open(0, 0, 3), [c.system.plan for c in e.curves]
    (one,) = compiled.run(opened, plans, e.checkpoints, record=True)
    (other,) = server.run_steps(opened, plans, e.checkpoints)
    assert np.array_equal(one.total, other.total)
    assert np.array_equal(one.actions, other.actions)


def test_a_list_of_budgets_is_no_sweep():
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 3}, "private-fedlinucb", silos=2, horizon=20,
        batch_size=5, silo_epsilon=[1.0, 3.0], delta=1e-3,
    )  # fmt: skip
    assert len(results.curves) == 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"silo_epsilon": [1.0, 2.0]}, "one number for each of 3 silos, got 2"),
        ({"silo_epsilon": [1.0, 2.0, 0.0]}, "silo_epsilon must be > 0"),
        ({"silo_epsilon": [1.0] * 3, "epsilon": 1.0}, "either epsilon or silo_epsilon"),
        ({"silo_epsilon": [1.0] * 3, "protocol": "central"}, "where each silo adds its own noise"),
    ],
)
def test_bad_budgets(keys, message):
    with pytest.raises(InputError, match=message):
        system(**keys)
