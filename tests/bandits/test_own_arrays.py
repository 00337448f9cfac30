"""Numbers that are executed cannot be changed after they were accounted for."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import fastfed
from fastfed._random import SystemNoise
from fastfed._validate import frozen
from fastfed.bandits.silo import Silo

RELEASES = (
    {"release": "toeplitz"},
    {"release": "buffered"},
    {"release": "factorised"},
    {"batch_size": "growing", "protocol": "shuffle-vector"},
    {"protocol": "secure-sum"},
)


def plan_of(**keys):
    sizes = {"silos": 3, "horizon": 40, "dimension": 3, "batch_size": 5}
    budget = {"epsilon": 1.0, "delta": 1e-6, "protocol": "central"}
    return fastfed.make_system("private-fedlinucb", **(sizes | budget | keys)).plan


def arrays(plan):
    """All arrays that a plan, its radius and its factor hold, or compute from their fields."""
    for part in (plan, plan.radius, plan.factor):
        for name in dir(part):
            if not name.startswith("_") and isinstance(each := getattr(part, name), np.ndarray):
                yield each


def kept(plan):
    """Those that are the same object whenever they are read, so that a change would last."""
    first, second = list(arrays(plan)), list(arrays(plan))
    return [a for a, b in zip(first, second, strict=True) if a is b and a.size]


@pytest.mark.parametrize("keys", RELEASES, ids=str)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_no_array_of_a_plan_can_be_written(keys, copied):
    plan = plan_of(**keys)
    found = kept(plan) + kept(copied(plan))
    assert len(found) >= 12
    for each in found:
        with pytest.raises(ValueError, match="read-only"):
            each += 1.0
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            each.flags.writeable = True


@pytest.mark.parametrize("keys", RELEASES, ids=str)
def test_a_pickled_plan_has_arrays_of_its_own(keys):
    plan = plan_of(**keys)
    _ = list(arrays(plan))
    again = pickle.loads(pickle.dumps(plan))
    for each in kept(again):
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            each.flags.writeable = True
    np.testing.assert_array_equal(again.coefficients, plan.coefficients)


def test_a_plan_does_not_follow_the_array_that_it_was_made_of():
    plan, mine = plan_of(), np.ones(9)
    changed = dataclasses.replace(plan, regularizer=mine)
    mine[:] = 0.0
    assert changed.regularizer.tolist() == [1.0] * 9


def test_coefficients_of_a_silo_stay_what_was_certified():
    """The break: a silo whose noise is the operating system's released sums without noise."""
    plan = plan_of(release="toeplitz", protocol="silo-ldp")
    silo = Silo(plan, 0, SystemNoise())
    with pytest.raises(ValueError, match="read-only"):
        plan.coefficients[:] /= 1e9
    assert silo.plan.coefficients[0] == 1.0


def test_a_frozen_copy_of_nothing():
    assert frozen([]).shape == (0,) and frozen(np.zeros((0, 3))).shape == (0, 3)
