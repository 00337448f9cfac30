"""Roots have the bits of SciPy's, after the same calls of the function."""

import math
import random
import struct

import pytest
from scipy.optimize import brentq as scipys

from fastfed._roots import brentq


def functions():
    """Yield functions of one variable: smooth, steep, flat and with jumps."""
    draw = random.Random(1)
    for _ in range(300):
        a, b, c = draw.uniform(-3, 3), math.exp(draw.uniform(-8, 8)), draw.uniform(-2, 2)
        yield from (
            lambda x, a=a: (x - a) ** 3,
            lambda x, a=a, b=b: math.tanh(b * (x - a)),
            lambda x, a=a, b=b, c=c: math.expm1(b * (x - a) / 9.0) + c * (x - a) ** 5,
            lambda x, a=a: -math.inf if x < a else 1.0,
            lambda x, a=a, b=b: math.copysign(abs(x - a) ** 0.1, x - a) * b * 1e-160,
            lambda x, a=a: math.copysign(1.0, x - a) if x != a else 0.0,
        )


def test_roots_and_calls_are_those_of_scipy():
    draw = random.Random(2)
    for function in functions():
        low, high = draw.uniform(-40, -3), draw.uniform(3, 40)
        if draw.random() < 0.3:
            low, high = high, low
        options = draw.choice(
            [{}, {"xtol": 1e-300, "rtol": 1e-15, "maxiter": 2000}, {"xtol": 1e-3}, {"rtol": 1e-7}]
        )
        own_calls, scipy_calls = [], []
        results = []
        for solve, calls in ((brentq, own_calls), (scipys, scipy_calls)):

            def counted(x, calls=calls, function=function):
                """Record the bits of x, and return the value of the function."""
                calls.append(struct.pack("d", x))
                return function(x)

            try:
                results.append(struct.pack("d", solve(counted, low, high, **options)))
            except (RuntimeError, ValueError, OverflowError) as error:
                results.append(type(error))
        assert results[0] == results[1]
        assert own_calls == scipy_calls


def test_a_root_at_an_end_is_returned():
    assert brentq(lambda x: x, 0.0, 1.0) == 0.0
    assert brentq(lambda x: x - 1.0, 0.0, 1.0) == 1.0


@pytest.mark.parametrize(
    ("function", "maxiter", "error", "words"),
    [
        (lambda x: x * x + 1.0, 100, ValueError, "different signs"),
        (lambda x: math.nan, 100, ValueError, "NaN"),
        (lambda x: x - 0.3, 1, RuntimeError, "after 1 iterations"),
    ],
)
def test_functions_without_a_root_raise_errors(function, maxiter, error, words):
    with pytest.raises(error, match=words):
        brentq(function, -1.0, 1.0, maxiter=maxiter)
