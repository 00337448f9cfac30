"""Amplification by a secret coin: the bound against integrals of the three worlds."""

import math

import numpy as np
import pytest
from oracle import sampled_gaussian as oracle
from scipy import stats

from fastfed._validate import InputError
from fastfed.privacy.accounting.gdp import (
    delta_of,
    epsilon_of,
    mu_of,
    sampled_delta,
    sampled_epsilon,
    sampled_mu,
)

#: Of x y and x x' in layout goe2: absence moves sqrt(1.5), replacement 2.
USUAL = math.sqrt(1.5) / 2.0
#: Error of the oracle's sum, relative.
ERROR = 2e-3


def test_the_oracle_is_the_gaussian_mechanism_without_a_coin():
    for epsilon, mu in ((0.0, 0.5), (1.0, 0.4), (1.0, 2.0), (4.0, 1.5)):
        a, b = oracle.placed(mu / 2, mu / 2, math.pi)
        assert oracle.divergence(epsilon, 1.0, a, b) == pytest.approx(
            delta_of(epsilon, mu), rel=ERROR
        )


def test_the_oracle_on_a_line_is_an_integral():
    """a = 0: the record's x adds nothing. Then only N(0) and N(b) are there."""
    p, m, epsilon = 0.4, 1.1, 0.3
    x = np.linspace(-10, 12, 400001)
    one = stats.norm.pdf(x)
    other = (1 - p) * one + p * stats.norm.pdf(x - m)
    exact = np.maximum(one - math.exp(epsilon) * other, 0).sum() * (x[1] - x[0])
    found = oracle.divergence(epsilon, p, np.zeros(2), np.array([0.6 * m, 0.8 * m]))
    assert found == pytest.approx(exact, rel=ERROR)


CASES = [
    (1.0, 0.5, USUAL, 0.7),
    (1.0, 0.9, USUAL, 0.5),
    (1.0, 0.1, USUAL, 3.0),
    (0.2, 0.3, 1.0, 0.6),
    (3.0, 0.5, 0.5, 2.0),
    (5.0, 0.7, 0.8, 2.5),
    (0.5, 0.5, 1.5, 0.8),
]
ORDINARY = CASES[::3]


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in ORDINARY else pytest.mark.slow) for c in CASES]
)
def test_no_pair_of_records_exceeds_the_bound(case):
    bound = sampled_delta(*case)
    found = oracle.largest(*case)
    assert found <= bound * (1 + ERROR)
    # How far it is from the least: advanced joint convexity forgets where absence lies.
    assert found > 0.02 * bound


@pytest.mark.slow
def test_no_random_pair_of_records_exceeds_the_bound():
    draw = np.random.default_rng(4)
    worst = 0.0
    for _ in range(300):
        epsilon, p = draw.choice([0.1, 1.0, 2.5]), draw.uniform(0.05, 1.0)
        a, b = oracle.placed(*draw.uniform(0.05, 3.0, 2), draw.uniform(0.0, math.pi))
        mu = float(np.linalg.norm(a - b))
        zeta = max(0.5, float(max(np.linalg.norm(a), np.linalg.norm(b))) / mu)
        found = oracle.divergence(epsilon, p, a, b, step=0.04)
        bound = sampled_delta(epsilon, p, zeta, mu)
        assert found <= bound * (1 + ERROR) + 1e-12
        worst = max(worst, found / bound)
    assert worst > 0.9


def test_what_is_below_the_bound_is_exceeded():
    """Accounts that leave something out, and a pair of records that exceeds each."""
    epsilon, p, zeta, mu = 0.1, 0.5, USUAL, 0.8
    inner = math.log(1 + (math.exp(epsilon) - 1) / p)
    found = oracle.largest(epsilon, p, zeta, mu)
    # As if x and x' were as near as absence; as if the coin thinned each record's delta twice.
    assert found > p * delta_of(inner, zeta * mu) * (1 + ERROR)
    assert found > p * p * delta_of(epsilon, mu) * (1 + ERROR)
    # As if the coin made the record p times as large.
    assert oracle.largest(3.0, 0.5, USUAL, 2.0) > delta_of(3.0, 0.5 * 2.0) * (1 + ERROR)


def test_limits():
    for epsilon, mu in ((0.0, 0.7), (0.3, 0.5), (1.0, 2.0), (50.0, 9.0)):
        for zeta in (0.5, 1.0, 2.0):
            assert sampled_delta(epsilon, 1.0, zeta, mu) == delta_of(epsilon, mu)
            deltas = [sampled_delta(epsilon, p, zeta, mu) for p in (0.01, 0.1, 0.5, 0.9, 1.0)]
            assert deltas == sorted(deltas)
            for p, found in zip((0.01, 0.1, 0.5, 0.9, 1.0), deltas, strict=True):
                assert found <= p * delta_of(epsilon, mu)
    assert sampled_delta(1.0, 0.3, 0.6, 0.0) == 0.0
    # Large numbers stay numbers.
    assert sampled_delta(800.0, 0.5, 0.7, 30.0) > 0.0
    assert sampled_delta(1e-12, 0.5, 0.7, 1e-3) == pytest.approx(
        0.5 * delta_of(0.0, 1e-3), rel=1e-6
    )
    # Continuous where the formula of the inner epsilon changes.
    below, above = (sampled_delta(e, 0.4, 0.7, 1.3) for e in (1.0 - 1e-12, 1.0))
    assert below == pytest.approx(above, rel=1e-9)


@pytest.mark.parametrize("zeta", [0.5, USUAL, 1.0, 1.7])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.8, 1.0])
def test_roots_keep_the_bound_and_nearly_attain_it(p, zeta):
    for epsilon, delta in ((0.1, 1e-6), (1.0, 1e-3), (5.0, 1e-5), (20.0, 1e-12)):
        mu = sampled_mu(epsilon, delta, p, zeta)
        assert mu >= mu_of(epsilon, delta)
        assert sampled_delta(epsilon, p, zeta, mu) <= delta
        assert sampled_delta(epsilon, p, zeta, mu * (1 + 1e-9)) > delta or p == 1.0
        back = sampled_epsilon(delta, p, zeta, mu)
        assert sampled_delta(back, p, zeta, mu) <= delta
        assert back <= epsilon * (1 + 1e-9)
        assert back <= epsilon_of(mu, delta)
        if zeta <= 1.0:
            assert back == pytest.approx(epsilon, rel=1e-6)


def test_what_a_coin_keeps_of_the_signal():
    """p mu(p) / mu(1), the ratio of signal to noise at the same guarantee, to two digits."""
    kept = {
        (1.0, 1e-3): {0.7: 0.89, 0.5: 0.79, 0.3: 0.65},
        (5.0, 1e-5): {0.7: 0.77, 0.5: 0.60, 0.3: 0.40},
    }
    for budget, rows in kept.items():
        for p, expected in rows.items():
            found = p * sampled_mu(*budget, p, USUAL) / mu_of(*budget)
            assert found == pytest.approx(expected, abs=0.006)


def test_ends():
    assert sampled_epsilon(0.4, 0.4, 0.7, 100.0) == 0.0
    assert sampled_mu(1.0, 0.4, 0.4, 0.7) == math.inf
    assert sampled_epsilon(0.0, 0.4, 0.7, 1.0) == math.inf
    assert sampled_epsilon(0.0, 0.4, 0.7, 0.0) == 0.0
    assert sampled_mu(1.0, 0.0, 0.4, 0.7) == 0.0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((-1.0, 0.5, 0.7, 1.0), "epsilon must be >= 0"),
        ((1.0, 0.0, 0.7, 1.0), "p must be > 0 and <= 1, got 0"),
        ((1.0, 1.1, 0.7, 1.0), "p must be > 0 and <= 1, got 1.1"),
        ((1.0, 0.5, 0.4, 1.0), "zeta must be >= 0.5, got 0.4"),
        ((1.0, 0.5, 0.7, -1.0), "mu must be >= 0"),
    ],
)
def test_bad_values(values, says):
    with pytest.raises(InputError, match=says):
        sampled_delta(*values)
    with pytest.raises(InputError, match="delta must be >= 0 and < 1"):
        sampled_epsilon(1.0, 0.5, 0.7, 1.0)
    with pytest.raises(InputError, match="delta must be >= 0 and < 1"):
        sampled_mu(1.0, -0.1, 0.5, 0.7)
