"""Check composition: stated values, orders of bounds, and independent optimisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import optimize

from fastfed._validate import InputError
from fastfed.privacy import Guarantee, compose, delta_of, epsilon_of, mu_of
from fastfed.privacy.accounting import gdp as c
from fastfed.privacy.mechanisms.laplace import Exponential


def as_pair(guarantee: Guarantee) -> tuple[float, float]:
    """Return (epsilon, delta) of a guarantee."""
    return guarantee.epsilon, guarantee.delta


def test_advanced_composition_has_the_stated_value() -> None:
    """Check twenty selections with the printed parameter, besides a test of epsilon / 2."""
    total = c.advanced(Guarantee(0.06015912800670484, 0.0), 20, 1e-6)
    assert total.epsilon + 0.5 == pytest.approx(1.9888175322018793, rel=1e-6)
    assert total.delta == 1e-6


@pytest.mark.parametrize(
    ("phases", "epsilon", "delta", "total"), [(2, 5.0, 0.1, 5.06), (10, 10.0, 0.1, 14.0)]
)
def test_advanced_composition_exceeds_a_published_division(
    phases: int, epsilon: float, delta: float, total: float
) -> None:
    """Check epsilon0 = epsilon / sqrt(6 P ln(2/delta)), which suffices for small budgets only.

    The formula is from huang-2023-robin.
    """
    epsilon_0 = epsilon / math.sqrt(6 * phases * math.log(2 / delta))
    guarantee = c.advanced(Guarantee(epsilon_0, delta / (2 * phases)), phases, delta / 2)
    assert guarantee.epsilon == pytest.approx(total, abs=0.05) and guarantee.epsilon > epsilon
    assert guarantee.delta == pytest.approx(delta)
    epsilon_0 = 1.0 / math.sqrt(6 * phases * math.log(2 / delta))
    assert c.advanced(Guarantee(epsilon_0, delta / (2 * phases)), phases, delta / 2).epsilon < 1.0


def test_advanced_composition_holds_for_the_division_of_phases() -> None:
    epsilon_0 = 1.0 / math.sqrt(6 * 10 * math.log(2 / 0.001))
    assert epsilon_0 == pytest.approx(0.04682651046219294, rel=1e-9)
    guarantee = c.advanced(Guarantee(epsilon_0, 5e-5), 10, 0.0005)
    assert guarantee.delta == pytest.approx(0.001) and guarantee.epsilon < 1.0


def test_advanced_composition_bounds_randomised_response() -> None:
    """Check that the exact delta of k randomised responses at the composed epsilon is at most the
    slack."""
    for e, k, slack in ((0.1, 50, 1e-3), (0.5, 20, 1e-2), (0.02, 400, 1e-5)):
        total = c.advanced(Guarantee(e, 0.0), k, slack).epsilon
        truths = np.arange(k + 1)
        loss = e * (2 * truths - k)
        log_p = [math.lgamma(k + 1) - math.lgamma(j + 1) - math.lgamma(k - j + 1) for j in truths]
        p = np.exp(np.array(log_p) + truths * e - k * math.log1p(math.exp(e)))
        delta = float(np.sum(p * np.maximum(0.0, -np.expm1(total - loss))))
        assert delta <= slack


def test_gaussian_composition_is_exact() -> None:
    mus = [0.3, 0.4, 1.2]
    assert as_pair(c.gaussian(mus, 1e-5)) == (epsilon_of(compose(mus), 1e-5), 1e-5)
    assert c.gaussian([mu_of(2.0, 1e-5) / 3] * 9, 1e-5).epsilon == pytest.approx(2.0, rel=1e-8)
    assert as_pair(c.gaussian([], 1e-5)) == (0.0, 1e-5)


# ---- zCDP ---------------------------------------------------------------------------------------


def renyi(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """Return the Renyi divergence of order alpha of p from q."""
    return float(np.log(np.sum(p**alpha * q ** (1 - alpha))) / (alpha - 1))


@pytest.mark.parametrize("eta", [0.05, 0.5, 1.0, 3.0])
def test_rho_of_bounded_range_covers_the_exponential_mechanism(eta: float) -> None:
    """Check two candidates whose costs move apart by 2 sensitivities, over all gaps."""
    rho, worst = c.rho_of_bounded_range(eta), 0.0
    mechanism = Exponential(eta)
    for gap in np.linspace(-12 / eta, 12 / eta, 121):
        p = mechanism.probabilities([gap, 0.0])
        q = mechanism.probabilities([gap + 1.0, -1.0])
        worst = max(worst, *(renyi(p, q, alpha) / alpha for alpha in (1.001, 1.5, 2.0, 4.0, 16.0)))
    assert worst <= rho * (1 + 1e-9)
    if eta <= 0.5:
        assert worst == pytest.approx(rho, rel=0.02)


def test_zcdp_division_of_selections_has_the_stated_value() -> None:
    """Check eta for 20 selections within (epsilon / 2, delta) = (0.5, 1e-6)."""
    rho = c.rho_of_epsilon(0.5, 1e-6)
    eta = math.sqrt(8 * rho / 20)
    assert eta == pytest.approx(0.04216085463601084, rel=1e-6)
    total = 20 * c.rho_of_bounded_range(eta)
    assert c.classic_epsilon_of_rho(total, 1e-6) == pytest.approx(0.5, rel=1e-12)
    assert c.epsilon_of_rho(total, 1e-6) < 0.45


def test_rho_of_epsilon_inverts_the_classic_formula() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        epsilon, delta = 10 ** rng.uniform(-9, 3), 10 ** rng.uniform(-100, -0.1)
        rho = c.rho_of_epsilon(epsilon, delta)
        assert c.classic_epsilon_of_rho(rho, delta) == pytest.approx(epsilon, rel=1e-10)


def log_delta(alpha: np.ndarray, epsilon: float, rho: float) -> np.ndarray:
    """Return the logarithm of the expression that is minimised, written independently."""
    exponent = (alpha - 1) * (alpha * rho - epsilon)
    result: np.ndarray = exponent + alpha * np.log1p(-1 / alpha) - np.log(alpha - 1)
    return result


@pytest.mark.parametrize(
    ("rho", "epsilon"), [(0.1, 2.0), (1.0, 5.0), (0.001, 0.1), (3.0, 40.0), (0.5, 0.0)]
)
def test_delta_of_rho_equals_a_minimisation(rho: float, epsilon: float) -> None:
    start = float(np.log((epsilon + 1) / (2 * rho)))
    minimum = optimize.minimize_scalar(
        lambda u: float(log_delta(np.float64(1 + math.exp(u)), epsilon, rho)),
        bounds=(start - 12, start + 4),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert c.delta_of_rho(epsilon, rho) == pytest.approx(min(1.0, math.exp(minimum.fun)), rel=1e-8)


@pytest.mark.filterwarnings("ignore:epsilon is 0, because delta")
def test_conversions_of_rho_are_ordered_and_inverse() -> None:
    """Check: true epsilon of a Gaussian <= tighter formula <= classic formula."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        rho, delta = 10 ** rng.uniform(-12, 3), 10 ** rng.uniform(-150, -0.01)
        tight = c.epsilon_of_rho(rho, delta)
        true = epsilon_of(math.sqrt(2 * rho), delta)
        assert true <= tight * (1 + 1e-12) and tight <= c.classic_epsilon_of_rho(rho, delta)
        assert c.delta_of_rho(tight, rho) <= delta
        if tight > 0:
            assert c.delta_of_rho(tight * (1 - 1e-6), rho) > delta
            assert delta_of(tight, math.sqrt(2 * rho)) <= delta


def test_epsilon_of_rho_agrees_with_dp_accounting() -> None:
    rdp = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    for rho, delta in ((0.1, 1e-6), (1.0, 1e-5), (0.01, 1e-3)):
        tight = c.epsilon_of_rho(rho, delta)
        orders = 1.0 + np.exp(np.linspace(-3, 8, 4000))
        library_epsilon, _ = rdp.compute_epsilon(orders, orders * rho, delta)
        assert tight == pytest.approx(library_epsilon, rel=1e-4)


def test_epsilon_without_mechanisms_is_zero() -> None:
    assert c.epsilon_of_rho(0.0, 1e-6) == c.classic_epsilon_of_rho(0.0, 1e-6) == 0.0
    assert c.delta_of_rho(1.0, 0.0) == 0.0
    assert as_pair(c.advanced(Guarantee(1, 0.1), 0, 1e-6)) == (0.0, 1e-6)
    assert c.epsilon_of_rho(1e-10, 0.5) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: c.advanced(Guarantee(1, 0), 2, 0.0), "slack must be > 0 and < 1, got 0.0"),
        (lambda: c.advanced(Guarantee(1, 0), -1, 0.1), "count must be an integer >= 0, got -1"),
        (lambda: c.advanced(Guarantee(1, 0.1), 10, 0.1), "delta must be >= 0 and < 1"),
        (lambda: c.gaussian([-1.0], 0.1), "mu must be >= 0, got -1"),
        (lambda: c.rho_of_bounded_range(math.nan), "eta must be >= 0, got nan"),
        (lambda: c.epsilon_of_rho(0.1, 0.0), "delta must be > 0 and < 1, got 0.0"),
        (lambda: c.delta_of_rho(-1, 0.1), "epsilon must be >= 0, got -1"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("members", [1, 2, 20, 500])
def test_epsilon_of_a_group_is_proportional_for_pure_mechanisms(members: int) -> None:
    group_epsilon = c.group_epsilon(lambda delta: 0.25, members, 0.0)
    assert group_epsilon == pytest.approx(0.25 * members) and group_epsilon >= 0.25 * members


@pytest.mark.parametrize("members", [2, 5, 20])
@pytest.mark.parametrize("mu", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_of_a_group_is_at_least_the_true_one(members: int, mu: float, delta: float) -> None:
    """Check a Gaussian mechanism, for which n changed records change the mean n times as much."""
    group_epsilon = c.group_epsilon(
        lambda own_delta: epsilon_of(mu, own_delta) if own_delta else math.inf, members, delta
    )
    true_epsilon = epsilon_of(members * mu, delta)
    assert group_epsilon >= true_epsilon
    if members * mu <= 1.0:
        assert group_epsilon <= 8.0 * true_epsilon  # and the bound is not far from the true epsilon


def test_epsilon_of_a_group_of_one_is_that_of_the_record() -> None:
    assert c.group_epsilon(lambda delta: 1.0 if delta else 3.0, 1, 1e-6) == 1.0
    with pytest.raises(InputError, match="members must be an integer >= 1, got 0"):
        c.group_epsilon(lambda delta: 1.0, 0, 0.0)
