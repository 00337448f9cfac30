"""Leaf kernels against their NumPy twins: `pytest benches` prints the ratio of each pair."""

import numpy as np
import pytest

from fastfed import kernels

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
