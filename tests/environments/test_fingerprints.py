"""Digests of users' functions: they follow the contents, and agree between processes."""

import hashlib
import inspect
import subprocess
import sys
from functools import partial

import numba
import numpy as np
import pytest

from fastfed.environments.python import fingerprint

MANY = np.arange(3000.0)
OTHER = np.where(MANY == 1500.0, -1.0, MANY)  # NumPy's repr leaves out this element
NEAR = np.array([0.1]), np.array([0.1 + 1e-15])  # NumPy's repr rounds both to 0.1


class Holder:
    def __init__(self, held):
        self.held = held

    def __call__(self, seed, replicate, silo, round):
        return self.held

    def method(self, seed, replicate, silo, round):
        return self.held


class Silent(Holder):
    def __repr__(self):
        return "Silent()"


def closing_over(value):
    """Return a function whose closure holds a value."""

    def function(seed, replicate, silo, round):
        return value

    return function


WAYS = {
    "closure": closing_over,
    "list": lambda value: closing_over([1, {"key": value}]),
    "function": lambda value: closing_over(closing_over(value)),
    "partial": lambda value: closing_over(partial(closing_over, value)),
    "object": lambda value: closing_over(Holder(value)),
    "object that says nothing": lambda value: closing_over(Silent(value)),
    "method": lambda value: closing_over(Holder(value).method),
    "callable": Holder,
    "itself partial": lambda value: partial(closing_over, value),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("one", "other"), [(MANY, OTHER), NEAR, (1, 2)])
def test_contents_decide_the_digest(way, one, other):
    digest = fingerprint(WAYS[way](one), None)
    again = one.copy() if isinstance(one, np.ndarray) else one
    assert digest == fingerprint(WAYS[way](again), None)
    assert digest != fingerprint(WAYS[way](other), None)


@pytest.mark.parametrize("value", [1, 2.5, "a", None, (1, [2, {"b": 3}]), np.float64(0.5)])
def test_digests_in_existing_stores_do_not_change(value):
    """Compare with digests of version 0.1, made from the repr of the closure's values."""
    function = closing_over(value)
    parts = [inspect.getsource(function), [value], None, {}]
    text = "\n".join(map(repr, parts))
    assert fingerprint(function, None) == hashlib.sha256(text.encode()).hexdigest()


def test_a_list_that_contains_itself_has_a_digest():
    held = [1]
    held.append(held)
    assert fingerprint(closing_over(held), None) == fingerprint(closing_over(held), None)


def everything():
    """Return digests of functions that hold objects of many kinds."""
    held = [
        np.random.default_rng(1),
        numba.njit(lambda x: x),
        np.sin,
        object(),
        int,
        hashlib,
        set("abcdef"),
    ]
    digests = [fingerprint(closing_over(value), None) for value in held]
    return [*digests, fingerprint(partial(closing_over, 1), None)]


def test_another_process_computes_the_same_digests():
    command = "import test_fingerprints as t; print(*t.everything())"
    result = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {command}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == everything()
