"""Leaf kernels against their NumPy twins: `pytest benches` prints the ratio of each pair."""

import numpy as np
import pytest

from fastfed import kernels
from fastfed._kernels import implementation

SIZES = [(10, 100), (57, 120), (135, 120)]


@pytest.fixture(params=SIZES, ids=lambda s: f"d{s[0]}-k{s[1]}")
def problem(request):
    d, k = request.param
    draw = np.random.default_rng(0)
    actions = draw.normal(size=(k, d)) / np.sqrt(d)
    v = actions.T @ actions + 5.0 * np.eye(d)
    return {
        "d": d,
        "actions": actions.astype(np.float32),
        "factor": kernels.inverse_factor(v),
        "inverse": np.linalg.inv(v),
        "theta": draw.normal(size=d) / d,
        "v": v,
        "x": actions[0].copy(),
    }


both = pytest.mark.parametrize("use_native", [True, False], ids=["native", "numpy"])


@both
def test_ucb_argmax(benchmark, problem, use_native):
    benchmark.group = f"ucb_argmax d={problem['d']}"
    benchmark(
        kernels.ucb_argmax,
        problem["actions"],
        problem["factor"],
        problem["theta"],
        2.0,
        use_native=use_native,
    )


@both
def test_rank_one_update(benchmark, problem, use_native):
    benchmark.group = f"rank_one_update d={problem['d']}"
    gram, bias = problem["v"].copy(), np.zeros(problem["d"])
    benchmark(kernels.rank_one_update, gram, bias, problem["x"], 1.0, use_native=use_native)


@both
def test_sherman_morrison(benchmark, problem, use_native):
    benchmark.group = f"sherman_morrison d={problem['d']}"
    inverse = problem["inverse"].copy()
    benchmark(kernels.sherman_morrison, inverse, problem["x"], use_native=use_native)


@both
def test_inverse_factor(benchmark, problem, use_native):
    benchmark.group = f"inverse_factor d={problem['d']}"
    benchmark(kernels.inverse_factor, problem["v"], use_native=use_native)


@both
def test_shuffle_bits(benchmark, use_native):
    benchmark.group = "shuffle_bits 65 x 100"
    bits = kernels.encode_bits(np.arange(65), 100)
    benchmark(kernels.shuffle_bits, bits, 1, use_native=use_native)


@both
def test_round_point(benchmark, use_native):
    """One data point at one tree node, d = 10."""
    benchmark.group = "round_point s = 65"
    draw = np.random.default_rng(0)
    point, words = draw.uniform(-1, 1, 65), draw.integers(0, 2**32, 65, dtype=np.uint32)
    run = implementation(use_native)
    benchmark(run.round_point, point, 100.0, True, words, np.zeros(65))


@both
def test_binomials(benchmark, use_native):
    """The noise of one silo at one node, d = 10."""
    benchmark.group = "binomials 65 x Bin(10^6, 1/4)"
    benchmark(implementation(use_native).binomials, 1, 8, 0, 0, 1, 10**6, 65)
