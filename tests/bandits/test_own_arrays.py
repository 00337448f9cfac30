"""Check that numbers of a plan cannot be changed after its certificate was made."""

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


def make_plan(**keys):
    """Return a plan with these keys changed."""
    sizes = {"silos": 3, "horizon": 40, "dimension": 3, "batch_size": 5}
    budget = {"epsilon": 1.0, "delta": 1e-6, "protocol": "central"}
    return fastfed.make_system("private-fedlinucb", **(sizes | budget | keys)).plan


def arrays_of(plan):
    """Yield all arrays that a plan, its radius and its factor have or calculate."""
    for part in (plan, plan.radius, plan.factor):
        for name in dir(part):
            if not name.startswith("_") and isinstance(array := getattr(part, name), np.ndarray):
                yield array


def lasting_arrays(plan):
    """Return the arrays that are the same object at every access, so that a change would last."""
    first, second = list(arrays_of(plan)), list(arrays_of(plan))
    return [
        first_array
        for first_array, second_array in zip(first, second, strict=True)
        if first_array is second_array and first_array.size
    ]


@pytest.mark.parametrize("keys", RELEASES, ids=str)
@pytest.mark.parametrize("copy_function", [copy.copy, copy.deepcopy, dataclasses.replace])
def test_arrays_of_a_plan_are_read_only(keys, copy_function):
    plan = make_plan(**keys)
    all_arrays = lasting_arrays(plan) + lasting_arrays(copy_function(plan))
    assert len(all_arrays) >= 12
    for array in all_arrays:
        with pytest.raises(ValueError, match="read-only"):
            array += 1.0
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True


@pytest.mark.parametrize("keys", RELEASES, ids=str)
def test_unpickled_plans_have_read_only_arrays(keys):
    plan = make_plan(**keys)
    _ = list(arrays_of(plan))
    unpickled = pickle.loads(pickle.dumps(plan))
    for array in lasting_arrays(unpickled):
        with pytest.raises(ValueError, match="cannot set WRITEABLE"):
            array.flags.writeable = True
    np.testing.assert_array_equal(unpickled.coefficients, plan.coefficients)


def test_plans_copy_the_arrays_that_they_are_made_of():
    plan, given_array = make_plan(), np.ones(9)
    changed = dataclasses.replace(plan, regularizer=given_array)
    given_array[:] = 0.0
    assert changed.regularizer.tolist() == [1.0] * 9


def test_coefficients_of_a_silo_cannot_be_changed():
    """A changed array once made a deployed silo release sums without noise."""
    plan = make_plan(release="toeplitz", protocol="silo-ldp")
    silo = Silo(plan, 0, SystemNoise())
    with pytest.raises(ValueError, match="read-only"):
        plan.coefficients[:] /= 1e9
    assert silo.plan.coefficients[0] == 1.0


def test_frozen_copies_of_empty_arrays_keep_their_shape():
    assert frozen([]).shape == (0,) and frozen(np.zeros((0, 3))).shape == (0, 3)
