"""Exact Gaussian accounting and per-record sensitivities."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.privacy import Budget
from fastfed.privacy.accounting.gdp import compose, delta_of, epsilon_of, mu_of
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds, sum_sensitivity, user_sensitivity

DELTAS = [  # epsilon, mu, delta
    (1, 0.5, 0.006829594983114591),
    (0.2, 1, 0.322376349989183),
    (5, 2, 0.032281984750072865),
    (0, 0.3, 0.11923538474048499),
    (0.001, 0.001, 8.33571321251791e-05),
]
# Computed with 400 decimal digits.
TINY_DELTAS = [
    (1, 0.08, 3.8865887968580339e-38),
    (1, 0.05, 1.1290332270977223e-91),
    (10, 0.5, 9.8551206108501659e-89),
    (3, 0.1, 7.3048061017546759e-200),
    (0.5, 0.014, 5.9617926460712052e-283),
]
MUS = [  # epsilon, delta, mu
    (0.2, 0.1, 0.43496674233024296),
    (0.2, 0.01, 0.16520959606874883),
    (0.2, 0.001, 0.10102844624053965),
    (1, 0.1, 0.9209139666132834),
    (1, 0.01, 0.5325166485029509),
    (1, 0.001, 0.388401248306584),
    (5, 0.1, 2.3527110157249047),
    (5, 0.01, 1.7562982383795136),
    (5, 0.001, 1.4496066142364603),
]
JOINT = [  # relation, layout, joint sensitivity at both standard deviations 1
    ("zero-out", "iid", 1.4142135623730951),
    ("zero-out", "goe1", 1.4142135623730951),
    ("zero-out", "goe2", 1.224744871391589),
    ("replace", "iid", 2.1213203435596424),
    ("replace", "goe1", 2.1213203435596424),
    ("replace", "goe2", 2.0),
]
SPLIT = [  # covariance std / bias std, bias std of a 9-level tree at (1, 0.01), goe2, replacement
    (0.5, 14.084066706805393),
    (1.0, 11.267253365444313),
    (2.0, 11.267253365444313),
]


@pytest.mark.parametrize(("epsilon", "mu", "delta"), DELTAS)
def test_delta_matches_reference(epsilon: float, mu: float, delta: float) -> None:
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-11)


@pytest.mark.parametrize(("epsilon", "mu", "delta"), TINY_DELTAS)
def test_delta_keeps_its_relative_accuracy_when_tiny(
    epsilon: float, mu: float, delta: float
) -> None:
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-11, abs=0)
    assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-9)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "delta", "mu"), MUS)
def test_mu_and_epsilon_match_reference(epsilon: float, delta: float, mu: float) -> None:
    assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-9)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-8)


def test_limits_of_delta_mu_and_epsilon() -> None:
    assert delta_of(1.0, 0.0) == 0.0
    assert delta_of(0.0, 0.0) == 0.0
    assert epsilon_of(0.0, 0.0) == 0.0
    assert epsilon_of(1.0, 0.0) == math.inf
    assert mu_of(1.0, 0.0) == 0.0
    # epsilon = 0 is total variation, 2 Phi(mu/2) - 1 = erf(mu / (2 sqrt 2)).
    for mu in (1e-12, 1e-3, 0.5, 3.0, 12.0):
        assert delta_of(0.0, mu) == pytest.approx(math.erf(mu / math.sqrt(8)), rel=1e-13)
    assert mu_of(0.0, 0.1) == pytest.approx(0.2513, abs=5e-5)
    assert epsilon_of(0.2513, 0.1) == 0.0
    assert epsilon_of(0.2514, 0.1) > 0.0
    assert delta_of(0.0, 1e6) == 1.0
    assert delta_of(1e-6, 1e-320) == 0.0
    assert epsilon_of(1e200, 0.5) == math.inf


def test_the_two_branches_meet_at_mu_one() -> None:
    for epsilon in (0.0, 0.3, 1.0, 10.0, 30.0):
        below, above = delta_of(epsilon, 1.0 - 1e-13), delta_of(epsilon, 1.0)
        assert below == pytest.approx(above, rel=1e-9, abs=0)


def test_mu_uses_the_whole_budget() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        epsilon = float(10 ** rng.uniform(-9, 3))
        delta = float(10 ** rng.uniform(-200, -0.01))
        mu = mu_of(epsilon, delta)
        assert delta_of(epsilon, mu) <= delta
        assert epsilon_of(mu, delta) <= epsilon
        assert delta_of(epsilon, mu * (1 + 1e-6)) > delta


def test_epsilon_agrees_with_dp_accounting() -> None:
    mechanism = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    rng = np.random.default_rng(20)
    checked = 0
    for _ in range(200):
        mu = float(10 ** rng.uniform(-1.5, 1.0))
        # Where delta is between about 1e-12 and 1/2, so that the other library has digits left.
        epsilon = mu * mu / 2 + mu * float(rng.uniform(0, 6.5))
        library_loss = mechanism.GaussianPrivacyLoss(standard_deviation=1.0 / mu)
        delta = library_loss.get_delta_for_epsilon(epsilon)
        assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-7, abs=1e-14)
        if delta > 1e-6:
            assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
            checked += 1
    assert checked > 100


def test_compose() -> None:
    assert compose([]) == 0.0
    assert compose([3.0, 4.0]) == pytest.approx(5.0)
    assert compose([0.5] * 9) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: delta_of(-1, 1), "epsilon must be >= 0, got -1"),
        (lambda: delta_of(1, -1), "mu must be >= 0, got -1"),
        (lambda: delta_of(math.nan, 1), "epsilon must be >= 0, got nan"),
        (lambda: epsilon_of(1, 1.0), "delta must be >= 0 and < 1, got 1.0"),
        (lambda: mu_of(1, -0.1), "delta must be >= 0 and < 1, got -0.1"),
        (lambda: compose([1, -2]), "mu must be >= 0, got -2"),
        (lambda: Budget(-1, 0.1), "epsilon must be > 0, got -1"),
        (lambda: Budget(0, 0.1), "epsilon must be > 0, got 0"),
        (lambda: Budget(1, 1), "delta must be >= 0 and < 1, got 1"),
        (lambda: Budget(1, 0.1, "replaced"), 'did you mean "replace"?'),
        (lambda: Budget(1, 0.1, unit="client"), "unit must be one of"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_budgets_of_equal_value_are_equal() -> None:
    assert Budget(1, 0) == Budget(1.0, 0.0)
    assert isinstance(Budget(1, 0).epsilon, float)


# -- Sensitivity -----------------------------------------------------------------------------------


def weighted_change(
    layout: str,
    bias_std: float,
    cov_std: float,
    x: np.ndarray,
    y: np.ndarray,
    x2: np.ndarray,
    y2: np.ndarray,
) -> np.ndarray:
    """Return squared change, entry by entry over its own standard deviation; x is (..., d)."""
    off_std, diagonal_std = layout_stds(layout, cov_std)
    bias = x * y[..., None] - x2 * y2[..., None]
    cov = x[..., :, None] * x[..., None, :] - x2[..., :, None] * x2[..., None, :]
    upper = np.triu(cov / np.where(np.eye(x.shape[-1]), diagonal_std, off_std))
    total: np.ndarray = (bias**2).sum(-1) / bias_std**2 + (upper**2).sum((-2, -1))
    return total


def searched(relation: str, layout: str, d: int, bias_std: float, cov_std: float) -> float:
    """Return a lower bound on the squared sensitivity, by random search.

    The best 40 of many random pairs of records are improved by random steps. The steps shrink from
    1 to 10^-4, which leaves an error of 10^-11 or less at a maximum.
    """
    rng, size = np.random.default_rng(d), 2 * (d + 1)

    def split(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return two records (x, y, x2, y2) that satisfy the bounds, from free parameters."""
        z = z.reshape((*z.shape[:-1], 2, d + 1))
        x = z[..., :d] / np.maximum(1.0, np.linalg.norm(z[..., :d], axis=-1, keepdims=True))
        y = np.clip(z[..., d], -1, 1)
        if relation == "zero-out":
            x = x * np.array([[1.0], [0.0]])
        return x[..., 0, :], y[..., 0], x[..., 1, :], y[..., 1]

    def value(z: np.ndarray) -> np.ndarray:
        """Return the squared change by the two records with these parameters."""
        return weighted_change(layout, bias_std, cov_std, *split(z))

    starts = rng.normal(size=(20_000, size))
    best = starts[np.argsort(value(starts))[-40:]]
    for step in np.geomspace(1.0, 1e-4, 60):
        tries = best[:, None] + step * rng.normal(size=(len(best), 50, size))
        tries[:, 0] = best
        best = tries[np.arange(len(best)), value(tries).argmax(axis=1)]
    return float(value(best).max())


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("d", "bias_std", "cov_std"),
    [
        (1, 1.0, 1.0),
        pytest.param(1, 1.0, 0.3, marks=pytest.mark.slow),
        (1, 3.0, 0.5),
        pytest.param(2, 1.0, 1.0, marks=pytest.mark.slow),
        (2, 1.0, 0.4),
        (2, 0.4, 1.0),
        pytest.param(3, 1.0, 1.0, marks=pytest.mark.slow),
        pytest.param(3, 2.0, 1.1, marks=pytest.mark.slow),
    ],
)
def test_sensitivity_is_the_maximum_of_a_search(
    relation: str, layout: str, d: int, bias_std: float, cov_std: float
) -> None:
    claimed = user_sensitivity(relation, layout, d, bias_std, cov_std) ** 2
    actual = searched(relation, layout, d, bias_std, cov_std)
    assert actual <= claimed * (1 + 1e-9), "a record moves the sums further than claimed"
    assert actual >= claimed * (1 - 1e-4), "the claimed sensitivity is not attained"


@pytest.mark.parametrize(("relation", "layout", "joint"), JOINT)
def test_joint_sensitivity_matches_reference(relation: str, layout: str, joint: float) -> None:
    assert user_sensitivity(relation, layout) == pytest.approx(joint, rel=1e-12)
    assert user_sensitivity(relation, layout, dimension=57) == user_sensitivity(relation, layout)
    assert user_sensitivity(relation, layout, dimension=1) <= joint * (1 + 1e-12)


@pytest.mark.parametrize(("ratio", "bias_std"), SPLIT)
def test_split_of_the_noise_between_streams(ratio: float, bias_std: float) -> None:
    joint = user_sensitivity("replace", "goe2", bias_std=1.0, cov_std=ratio)
    assert 3.0 * joint / mu_of(1, 0.01) == pytest.approx(bias_std, rel=1e-9)


def test_sensitivity_of_one_stream() -> None:
    assert user_sensitivity("replace", "iid", cov_std=math.inf) == pytest.approx(2.0)
    assert user_sensitivity("replace", "iid", bias_std=math.inf) == pytest.approx(math.sqrt(2))
    assert user_sensitivity("replace", "goe2", bias_std=math.inf) == pytest.approx(1.0)
    assert user_sensitivity("zero-out", "goe1", bias_std=math.inf) == pytest.approx(1.0)
    assert user_sensitivity("replace", "goe1", bias_std=math.inf, cov_std=math.inf) == 0.0
    assert user_sensitivity("replace", "iid", 1) == pytest.approx(2.0)
    assert sum_sensitivity("replace") == 2.0
    assert sum_sensitivity("zero-out") == 1.0


def test_sensitivity_scales_with_the_noise_at_any_size() -> None:
    for scale in (1e-200, 1.0, 1e200):
        mu = user_sensitivity("replace", "iid", bias_std=scale, cov_std=scale)
        assert mu * scale == pytest.approx(math.sqrt(4.5), rel=1e-12)


def test_layout_stds_are_those_of_the_matrices() -> None:
    rng = np.random.default_rng(3)
    a = 2.5 * rng.normal(size=(40_000, 2, 2))
    upper = np.triu(a)
    noise_matrices = {
        "iid": upper + np.swapaxes(np.triu(a, 1), 1, 2),
        "goe1": (a + np.swapaxes(a, 1, 2)) / 2,
        "goe2": (a + np.swapaxes(a, 1, 2)) / math.sqrt(2),
    }
    for layout, matrices in noise_matrices.items():
        off_std, diagonal_std = layout_stds(layout, 2.5)
        # Standard error of a standard deviation here is 0.35 %: six of them.
        assert matrices[:, 0, 1].std() == pytest.approx(off_std, rel=0.022)
        assert matrices[:, 0, 0].std() == pytest.approx(diagonal_std, rel=0.022)


def test_sensitivity_errors_name_the_bad_argument() -> None:
    with pytest.raises(InputError, match="layout must be one of"):
        user_sensitivity("replace", "goe3")
    with pytest.raises(InputError, match="bias_std must be > 0, got 0"):
        user_sensitivity("replace", "iid", bias_std=0)
    with pytest.raises(InputError, match="dimension must be an integer >= 1, got 0"):
        user_sensitivity("replace", "iid", 0)
    with pytest.raises(InputError, match="relation must be one of"):
        sum_sensitivity("add-remove")


def test_a_warning_names_swapped_arguments_of_epsilon() -> None:
    with pytest.warns(UserWarning, match=r"epsilon is 0, because delta = 0.24 is above mu = 1e-06"):
        assert epsilon_of(1e-6, 0.24) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert epsilon_of(0.24, 0.24) == epsilon_of(0.0, 0.24) == 0.0
        assert epsilon_of(0.24, 1e-6) > 0.0
