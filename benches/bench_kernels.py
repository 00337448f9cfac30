"""Compare kernels with their NumPy twins; `pytest benches` prints the ratio of each pair."""

import numpy as np
import pytest
import twins
from twins import compiled

from fastfed import kernels

SIZES = [(10, 100), (57, 120), (135, 120)]


@pytest.fixture(params=SIZES, ids=lambda s: f"d{s[0]}-k{s[1]}")
def problem(request):
    d, k = request.param
    rng = np.random.default_rng(0)
    actions = rng.normal(size=(k, d)) / np.sqrt(d)
    v = actions.T @ actions + 5.0 * np.eye(d)
    return {
        "d": d,
        "actions": actions.astype(np.float32),
        "factor": kernels.inverse_factor(v),
        "inverse": np.linalg.inv(v),
        "theta": rng.normal(size=d) / d,
        "v": v,
        "x": actions[0].copy(),
    }


@pytest.fixture(params=["compiled", "numpy"])
def implementation(request, monkeypatch):
    """Return the module with the functions to time: compiled kernels or their NumPy twins."""
    if request.param == "compiled":
        return compiled
    twins.stand_in(monkeypatch)
    return twins


def test_ucb_argmax(benchmark, problem, implementation):
    benchmark.group = f"ucb_argmax d={problem['d']}"
    benchmark(
        kernels.ucb_argmax,
        problem["actions"],
        problem["factor"],
        problem["theta"],
        2.0,
    )


def test_rank_one_update(benchmark, problem, implementation):
    benchmark.group = f"rank_one_update d={problem['d']}"
    gram, bias = problem["v"].copy(), np.zeros(problem["d"])
    benchmark(kernels.rank_one_update, gram, bias, problem["x"], 1.0)


def test_sherman_morrison(benchmark, problem, implementation):
    benchmark.group = f"sherman_morrison d={problem['d']}"
    inverse = problem["inverse"].copy()
    benchmark(kernels.sherman_morrison, inverse, problem["x"])


def test_inverse_factor(benchmark, problem, implementation):
    benchmark.group = f"inverse_factor d={problem['d']}"
    benchmark(kernels.inverse_factor, problem["v"])


def test_shuffle_bits(benchmark, implementation):
    benchmark.group = "shuffle_bits 65 x 100"
    bits = kernels.encode_bits(np.arange(65), 100)
    benchmark(kernels.shuffle_bits, bits, 1)


def test_round_point(benchmark, implementation):
    """Round one data point at random, d = 10."""
    benchmark.group = "round_point s = 65"
    rng = np.random.default_rng(0)
    point, words = rng.uniform(-1, 1, 65), rng.integers(0, 2**32, 65, dtype=np.uint32)
    benchmark(implementation.round_point, point, 100.0, True, words, np.zeros(65))


def test_binomials(benchmark, implementation):
    """Draw the noise of one silo at one tree node, d = 10."""
    benchmark.group = "binomials 65 x Bin(10^6, 1/4)"
    benchmark(implementation.binomials, 1, 8, 0, 0, 1, 10**6, 65)
