"""Tests of centred rewards with a public intercept: sensitivity, ||theta* - theta0||, and noise
bounds."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import centred as oracle
from oracle.centred import Release
from scipy import stats

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import (
    NoiseDistribution,
    Remainder,
    _subgaussian_norm_quantile,
    norm_quantile,
)
from fastfed.bandits.problem import centred_norm
from fastfed.privacy import centred_sensitivity, layout_stds, user_sensitivity
from fastfed.protocols.plan import NoiseStd

FALSE_ALARM = 1e-6
HALF = math.sqrt(0.5)
#: Tolerance for values that are equal up to rounding.
ROUNDING = 1e-14

#: Arguments of `centred_sensitivity` that reach each of its branches, also with separate noise per
#: stream.
CASES: list[dict[str, Any]] = [
    {},
    {"kappa": 3.0},
    {"kappa": 4.0, "covariance_std": 0.82},
    {"kappa": 1.5, "layout": "iid", "covariance_std": 1.3},
    {"kappa": 2.0, "layout": "goe1", "covariance_std": 1.4, "reward_range": (-0.2, 0.8)},
    {"kappa": 40.0, "layout": "iid", "covariance_std": 3.0},  # t at the end of its interval
    {"covariance_std": 0.4, "cross_std": 0.3, "bias_std": 2.0},  # contexts have the largest effect
    {"constant_bias_std": 0.1, "reward_range": (-0.9, 0.1)},
    {"kappa": 2.5, "reward_range": (0.0, 1.0), "feature_bound": 0.3, "cross_std": 0.7},
    {"kappa": 7.0, "constant_bias_std": 5.0, "cross_std": 9.0, "layout": "goe1"},
]


def release_of(case: dict[str, Any]) -> Release:
    """Return the case as the oracle's release, entry by entry."""
    layout, s = case.get("layout", "goe2"), case.get("covariance_std", 1.0)
    off_diagonal, diagonal = layout_stds(layout, s)
    bias = case.get("bias_std", 1.0)
    return Release(
        kappa=case.get("kappa", 1.0),
        rewards=case.get("reward_range", (-0.5, 0.5)),
        feature_bound=case.get("feature_bound", HALF),
        bias=bias,
        constant_bias=case.get("constant_bias_std", bias),
        off_diagonal=off_diagonal,
        diagonal=diagonal,
        cross=case.get("cross_std", off_diagonal),
    )


# ---- sensitivity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("count", [10**5, pytest.param(10**7, marks=pytest.mark.slow)])
def test_no_random_pair_exceeds_the_sensitivity(case: dict[str, Any], count: int) -> None:
    sensitivities = {
        relation: centred_sensitivity(relation, **case) for relation in ("replace", "zero-out")
    }
    for k in (1, 2, 4) if count < 10**6 else (2,):
        rng = np.random.default_rng(count + k)
        max_replace, max_zero_out = oracle.largest_of_random(release_of(case), count, k, rng)
        assert max_replace <= sensitivities["replace"] * (1.0 + 1e-12)
        assert max_zero_out <= sensitivities["zero-out"] * (1.0 + 1e-12)
        if k == 2:
            assert max_replace >= sensitivities["replace"] * (1.0 - 100.0 / count)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_a_search_attains_the_sensitivity(case: dict[str, Any], k: int) -> None:
    for relation in ("replace", "zero-out"):
        exact = centred_sensitivity(relation, **case)
        rng = np.random.default_rng(k)
        largest = oracle.largest_found(release_of(case), k, rng, 11, relation == "replace")
        assert exact * (1.0 - 1e-6) <= largest <= exact * (1.0 + 1e-12)


def test_sensitivity_of_random_arguments_is_attained() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        low, high = sorted(rng.uniform(-1.0, 1.0, 2))
        case = {
            "layout": str(rng.choice(["iid", "goe1", "goe2"])),
            "kappa": float(rng.uniform(1.0, 6.0)),
            "reward_range": (low, high),
            "feature_bound": float(rng.uniform(0.2, 1.0)),
            **{
                name: float(10 ** rng.uniform(-0.7, 0.7))
                for name in ("bias_std", "constant_bias_std", "covariance_std", "cross_std")
            },
        }
        exact = centred_sensitivity("replace", **case)
        max_replace, max_zero_out = oracle.largest_of_random(release_of(case), 20_000, 2, rng)
        assert 0.995 * exact <= max_replace <= exact * (1.0 + 1e-12), case
        assert max_zero_out <= centred_sensitivity("zero-out", **case) * (1.0 + 1e-12), case


def test_sensitivity_equals_values_by_hand() -> None:
    """Check kappa = 3 with all stds 1: A = 1/2, B = 1/6, C = 1/12, G = 1/8; both corners give
    121/144."""
    assert centred_sensitivity("replace", kappa=3.0) == pytest.approx(11.0 / 12.0, rel=1e-14)
    # |u| = 1, r = 1/2: (1/2 + 1/2) / 4 + 1/4 + 1/8.
    assert centred_sensitivity("zero-out") == pytest.approx(math.sqrt(0.625), rel=1e-14)


def test_without_an_intercept_the_sensitivity_equals_user_sensitivity() -> None:
    """Leave out the constant's row and use unit features; compare with |y| <= 1."""
    for layout, relation in itertools.product(("iid", "goe1", "goe2"), ("replace", "zero-out")):
        for b, s in ((1.0, 1.0), (1.0, 0.7), (2.0, 0.3), (0.2, 3.0), (1.0, math.inf)):
            sensitivity = centred_sensitivity(
                relation,
                layout,
                reward_range=(-1.0, 1.0),
                feature_bound=1.0,
                bias_std=b,
                constant_bias_std=math.inf,
                covariance_std=s,
                cross_std=math.inf,
            )
            exact = user_sensitivity(relation, layout, bias_std=b, cov_std=s)
            assert sensitivity == pytest.approx(exact, rel=1e-14)


def test_a_large_kappa_removes_the_effect_of_the_constant() -> None:
    for relation in ("replace", "zero-out"):
        limit = centred_sensitivity(relation, constant_bias_std=math.inf, cross_std=math.inf)
        sensitivities = [
            centred_sensitivity(relation, kappa=10.0**j) for j in (0, 1, 3, 6, 12, 300)
        ]
        assert (np.diff(sensitivities) <= ROUNDING).all()
        assert sensitivities[0] > 1.01 * limit
        assert sensitivities[-3] == pytest.approx(limit, rel=1e-5)
        assert sensitivities[-1] == pytest.approx(limit, rel=1e-14)


def test_sensitivity_is_monotone_in_every_argument() -> None:
    base = {"bias_std": 1.0, "constant_bias_std": 1.0, "covariance_std": 1.0, "cross_std": 1.0}
    steps = np.geomspace(0.05, 20.0, 60)
    for relation in ("replace", "zero-out"):
        for name in base:
            by_std = [centred_sensitivity(relation, **{**base, name: float(std)}) for std in steps]
            assert (np.diff(by_std) <= ROUNDING).all(), name
        by_kappa = [centred_sensitivity(relation, kappa=float(kappa)) for kappa in 1.0 + steps]
        assert (np.diff(by_kappa) <= ROUNDING).all()
        by_bound = [
            centred_sensitivity(relation, feature_bound=float(bound)) for bound in steps[:30] / 2.0
        ]
        assert (np.diff(by_bound) > 0.0).all()
        by_bound = [
            centred_sensitivity(relation, reward_range=(-0.1, float(high))) for high in steps
        ]
        assert (np.diff(by_bound) >= -ROUNDING).all()


def test_sensitivity_scales_with_the_noise_over_extreme_ranges() -> None:
    unit_sensitivity = centred_sensitivity("replace", kappa=2.0)
    for factor in (1e-150, 1e-6, 7.0, 1e150):
        sensitivity = centred_sensitivity(
            "replace", kappa=2.0, bias_std=factor, covariance_std=factor
        )
        assert sensitivity * factor == pytest.approx(unit_sensitivity, rel=1e-13)
    assert centred_sensitivity("replace", bias_std=math.inf, covariance_std=math.inf) == 0.0
    # Only one stream remains: |u r - u' r'| = 1 / sqrt 2 and |r - r'| / sqrt 2 at r' = -r.
    without_covariance = centred_sensitivity("replace", covariance_std=math.inf)
    assert without_covariance == pytest.approx(1.0, rel=1e-14)


def test_zero_out_is_weaker_if_zero_is_a_reward() -> None:
    """The reason: an absent user is the record (0, r0), which replacement allows."""
    for case in CASES:
        low, high = case.get("reward_range", (-0.5, 0.5))
        assert low <= 0.0 <= high
        zero_out = centred_sensitivity("zero-out", **case)
        assert zero_out <= centred_sensitivity("replace", **case)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"relation": "add"}, "relation must be one of"),
        ({"layout": "goe"}, "layout must be one of"),
        ({"kappa": 0.9}, "kappa must be >= 1, got 0.9"),
        ({"kappa": math.inf}, "kappa must be >= 1, got inf"),
        ({"reward_range": (0.5, -0.5)}, "low <= high"),
        ({"reward_range": (0.5,)}, "shape"),
        ({"reward_range": (0.0, math.nan)}, "finite"),
        ({"feature_bound": 1.5}, "feature_bound must be > 0 and <= 1, got 1.5"),
        ({"bias_std": 0.0}, "bias_std must be > 0"),
        ({"constant_bias_std": -1.0}, "constant_bias_std must be > 0"),
        ({"covariance_std": math.nan}, "covariance_std must be > 0"),
        ({"cross_std": 0.0}, "cross_std must be > 0"),
    ],
)
def test_errors_name_the_bad_argument_of_the_sensitivity(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        centred_sensitivity(**{"relation": "replace", **arguments})


def test_table_of_the_documentation_is_correct() -> None:
    """Check the noise of a coordinate at mu = 1, for b = o and for the best ratio."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "centred.md").read_text("utf-8")
    header, *table = [line for line in page.splitlines() if line.startswith("| ")]
    kappas = [float(k) for k in re.findall(r"[0-9]+", header)]
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", "\n".join(table), re.MULTILINE)
    assert len(lines) == 4

    def noise_of(kappa: float, tau: float, ratio: float) -> float:
        """Return mu times the error hypot(1, ratio tau), which the table compares."""
        mu = centred_sensitivity("replace", kappa=kappa, covariance_std=ratio)
        return math.hypot(1.0, ratio * tau) * mu

    for declared, cells in lines:
        interval_ends = [float(p) for p in re.findall(r"[0-9.]+", declared)] or [0.0, 1.0]
        for kappa, cell in zip(kappas, cells.split(" | "), strict=True):
            tau = centred_norm(kappa, 0.5, (interval_ends[0], interval_ends[-1])).tau
            best = min(noise_of(kappa, tau, r) for r in np.geomspace(0.3, 3.0, 200))
            assert cell == f"{noise_of(kappa, tau, 1.0):.3f} ({best:.3f})"
    without_intercept = math.hypot(1.0, 0.7) * user_sensitivity("replace", "goe2", cov_std=0.7)
    assert f"the product is {without_intercept:.3f}." in page


# ---- ||theta* - theta0|| -------------------------------------------------------------------------

NORM_CASES: list[tuple[float, float, tuple[float, float]]] = [
    *itertools.product((1.0, 1.5, 2.0, 4.0, 50.0), (0.5, 0.3, 0.8), ((0.0, 1.0),)),
    (1.0, 0.5, (0.5, 0.5)),
    (4.0, 0.3, (0.3, 0.3)),
    (4.0, 0.5, (0.3, 0.7)),
    (3.0, 0.4, (0.3, 0.45)),
    (9.0, 0.5, (0.45, 0.8)),
    (2.0, 0.7, (0.1, 0.2)),
]


@pytest.mark.parametrize(("kappa", "centre", "rates"), NORM_CASES)
def test_norm_is_the_largest_that_bounded_means_allow(
    kappa: float, centre: float, rates: tuple[float, float]
) -> None:
    """Compare with 10^5 random theta* and with the covariance of N Delta for some of them."""
    norm = centred_norm(kappa, centre, rates)
    rng = np.random.default_rng(1)
    deltas = oracle.random_deltas(kappa, centre, rates, 3, 100_000, rng)
    norms = np.linalg.norm(deltas, axis=1)
    assert 0.9999 * norm.tau <= norms.max() <= norm.tau * (1.0 + 1e-12)
    unit = Release(kappa=kappa, bias=0.0, constant_bias=0.0)
    largest = 0.0
    chosen_deltas = [*deltas[:300], *deltas[np.argsort(norms)[-100:]]]
    steepest = np.argmax(np.linalg.norm(deltas[:, :-1], axis=1))
    for delta in [*chosen_deltas, deltas[steepest]]:
        values = np.linalg.eigvalsh(oracle.error_covariance(delta, unit))
        assert values[-2] <= norm.tau**2 * (1.0 + 1e-12)
        largest = max(largest, float(values[-1]))
    max_eigenvalue = norm.tau**2 + norm.along
    assert 0.999 * max_eigenvalue <= largest <= max_eigenvalue * (1.0 + 1e-12)


def test_norm_has_its_closed_form() -> None:
    for kappa in (1.0, 1.7, 2.0, 3.0, 40.0):
        assert centred_norm(kappa).tau == pytest.approx(math.sqrt(kappa / 2.0), rel=1e-14)
        for r0 in (0.1, 0.5, 0.7):
            unknown_rate, known_rate = centred_norm(kappa, r0), centred_norm(kappa, r0, (r0, r0))
            assert unknown_rate.tau == pytest.approx(math.sqrt(2.0 * kappa) * max(r0, 1.0 - r0))
            assert known_rate.tau == pytest.approx(math.sqrt(2.0) * min(r0, 1.0 - r0))
            assert known_rate.along == pytest.approx(known_rate.tau**2)
            # From kappa = 2 on there is no additional variance along a direction.
            assert kappa < 2.0 or unknown_rate.along == pytest.approx(0.0, abs=1e-14)
        # A base rate within 1 / (1 + kappa) of 1/2 is as good as a known base rate.
        half_width = 1.0 / (1.0 + kappa)
        near = centred_norm(kappa, 0.5, (0.5 - half_width, 0.5 + half_width))
        assert near.tau == pytest.approx(HALF, rel=1e-14)
        assert near.along == pytest.approx(0.5, rel=1e-13)
        if half_width < 0.5:
            slightly_wider = centred_norm(kappa, 0.5, (0.499 - half_width, 0.5)).tau
            assert slightly_wider > HALF * (1.0 + 1e-4)
    assert centred_norm(1.0).along == pytest.approx(0.5)


def test_norm_scales_with_units_and_grows_with_the_interval() -> None:
    """Check that rewards in [-3, 1] give four times the norm; half the features need twice
    theta."""
    for kappa, rates in ((1.0, (0.0, 1.0)), (3.0, (0.4, 0.6))):
        unit_norm = centred_norm(kappa, 0.25, rates)
        scaled_rates = tuple(-3.0 + 4.0 * p for p in rates)
        scaled_norm = centred_norm(kappa, -2.0, scaled_rates, (-3.0, 1.0))
        assert scaled_norm.tau == pytest.approx(4.0 * unit_norm.tau)
        assert scaled_norm.along == pytest.approx(16.0 * unit_norm.along)
    short_features = centred_norm(2.0, 0.5, (0.5, 0.5), feature_bound=0.5 * HALF)
    assert short_features.tau == pytest.approx(2.0 * HALF)
    norms_by_width = [
        centred_norm(4.0, 0.5, (0.5 - width, 0.5 + width)).tau
        for width in np.linspace(0.0, 0.5, 40)
    ]
    assert (np.diff(norms_by_width) >= -ROUNDING).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kappa": 0.5}, "kappa must be >= 1"),
        ({"centre": 0.0}, "centre must be > 0 and < 1, got 0.0"),
        ({"centre": 1.0}, "centre must be > 0 and < 1"),
        ({"reward_range": (1.0, 1.0)}, "low < high"),
        ({"reward_range": (1.0, 0.0)}, "low <= high"),
        ({"base_rates": (0.6, 0.4)}, "low <= high"),
        ({"base_rates": (-0.1, 0.4)}, "base_rates must be inside reward_range"),
        ({"base_rates": (0.4, 1.1)}, "base_rates must be inside reward_range"),
        ({"base_rates": 0.5}, "shape"),
        ({"feature_bound": 0.0}, "feature_bound must be > 0"),
    ],
)
def test_errors_name_the_bad_argument_of_the_norm(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        centred_norm(**arguments)


# ---- bounds on the noise -------------------------------------------------------------------------


def noise_distribution(
    release: Release, variances: tuple[float, ...] = (0.0, 1.0)
) -> NoiseDistribution:
    """Return the noise distribution of a release with a public constant."""
    node = NoiseStd(release.bias, release.off_diagonal, release.diagonal)
    return NoiseDistribution(node, 1.0, np.array(variances), public_constant=True)


@pytest.mark.parametrize("probability", [0.2, 0.01])
@pytest.mark.parametrize(
    ("kappa", "rates"),
    [(1.0, (0.0, 1.0)), (3.0, (0.0, 1.0)), (3.0, (0.25, 0.75)), (4.0, (0.5, 0.5))],
)
def test_error_stays_below_its_bound_and_nearly_attains_it(
    kappa: float, rates: tuple[float, float], probability: float
) -> None:
    """Draw ||N Delta - h|| of 40 000 matrices for every worst Delta.

    A correct bound fails once in 10^6. At the worst Delta, the bound is nearly the quantile.
    """
    norm, release = (
        centred_norm(kappa, 0.5, rates),
        Release(kappa=kappa, bias=0.8, constant_bias=0.8),
    )
    bound = noise_distribution(release).errors(4, probability, norm.tau, norm.along)[1]
    norm_bound = noise_distribution(release).operator_norms(4, probability)[1]
    rng, count, max_exceeded = np.random.default_rng(3), 40_000, 0
    direction = np.array([0.6, -0.48, 0.64])
    for p in {*rates, 0.5}:
        a = direction * min(p, 1.0 - p) / release.feature_bound
        delta = np.append(a, (p - 0.5) / release.constant)
        errors, norms = oracle.draw_errors(delta, release, count, rng)
        max_exceeded = max(max_exceeded, int((errors > bound).sum()))
        assert (norms > norm_bound).sum() <= stats.binom.isf(FALSE_ALARM, count, probability)
    assert max_exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
    # The bound assumes slightly more noise for the last entry, which costs little.
    assert max_exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, 0.3 * probability)


def test_bounds_hold_jointly_over_releases() -> None:
    """Check prefixes of three leaves, whose N and h are sums, with a union bound over all
    prefixes."""
    release, count = Release(kappa=3.0), 20_000
    norm = centred_norm(3.0)
    bounds = noise_distribution(release, (0.0, 1.0, 2.0, 3.0)).errors(3, 0.1, norm.tau, norm.along)
    rng = np.random.default_rng(8)
    delta = np.array([0.0, 0.0, norm.tau])
    covariance = np.linalg.cholesky(oracle.error_covariance(delta, release))
    steps = rng.normal(size=(count, 3, 3)) @ covariance.T
    errors = np.linalg.norm(np.cumsum(steps, axis=1), axis=2)
    exceeded = int((errors > bounds[1:]).any(axis=1).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, 0.1)


def test_a_bound_for_a_smaller_tau_fails() -> None:
    """Reduce tau by a quarter; the bound then fails more often than its probability."""
    release, count = Release(kappa=4.0), 40_000
    delta = np.array([0.0, 0.0, 0.0, math.sqrt(2.0)])
    errors, _ = oracle.draw_errors(delta, release, count, np.random.default_rng(4))
    bound = noise_distribution(release).errors(4, 0.01, 0.75 * math.sqrt(2.0), 0.0)[1]
    assert (errors > bound).sum() > stats.binom.isf(FALSE_ALARM, count, 0.01)


@pytest.mark.parametrize("remainder", [False, True])
def test_errors_with_tau_one_have_the_bits_of_the_original_formula(remainder: bool) -> None:
    """Compare errors() with the formula without tau, number for number."""
    variances = np.array([0.0, 1.0, 1.0, 2.0])
    remaining_part = Remainder(variances * 0.01, variances * 0.02, 0.001) if remainder else None
    for d, b, o in ((1, 1.0, 1.0), (10, 2.3, 0.7 * 2.3), (57, 0.37, 0.91)):
        distribution = NoiseDistribution(
            NoiseStd(b, o, o), 7.0, variances, remainder=remaining_part
        )
        for p in (0.2, 0.0025):
            gaussian, rounding = distribution._split_probability(p)
            expected = norm_quantile(d, b**2 + o**2, o**2, gaussian) * distribution.scales
            if remaining_part is not None:
                expected = expected + (d + math.sqrt(d)) * remaining_part.coupling
                expected = (
                    expected
                    + _subgaussian_norm_quantile(d, 2.0, 1.0, rounding) * remaining_part.rounding
                )
            assert distribution.errors(d, p).tolist() == expected.tolist()
            assert distribution.errors(d, p, 1.0, 1.0).tolist() == expected.tolist()


@pytest.mark.parametrize("tau", [0.4, 1.0, 1.7])
def test_quantile_is_exact_for_full_goe_matrices(tau: float) -> None:
    """Draw full GOE matrices, which have the covariance of the proof.

    The two-sided test fails once in 5 x 10^5.
    """
    count, rng = 40_000, np.random.default_rng(6)
    gaussian = rng.normal(size=(count, 3, 3)) * math.sqrt(0.5)
    n, h = gaussian + gaussian.transpose(0, 2, 1), rng.normal(size=(count, 3)) * 0.7
    errors = np.linalg.norm(n @ (tau * np.array([0.6, -0.48, 0.64])) - h, axis=1)
    distribution = NoiseDistribution(NoiseStd(0.7, 1.0, math.sqrt(2.0)), 1.0, np.array([0.0, 1.0]))
    for probability in (0.2, 0.01):
        exceeded = int((errors > distribution.errors(3, probability, tau)[1]).sum())
        assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
        assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, probability)


@pytest.mark.parametrize("tau", [0.4, 1.0, 1.7])
def test_coupling_enters_the_bound_at_its_worst_case(tau: float) -> None:
    """Use |e| = 1 in every entry with equal signs, and theta along the diagonal."""
    d = 4
    theta = np.full(d, tau / math.sqrt(d))
    worst = float(np.linalg.norm(np.ones((d, d)) @ theta + np.ones(d)))
    node, variances = NoiseStd(1.0, 1.0, 1.0), np.array([0.0, 1.0])
    bounds = [
        NoiseDistribution(
            node, 1.0, variances, remainder=Remainder(apart * variances, variances, 1e-4)
        ).errors(d, 0.1, tau)[1]
        for apart in (0.0, 1.0)
    ]
    assert bounds[1] - bounds[0] == pytest.approx(worst, rel=1e-12)


def test_errors_grow_with_tau() -> None:
    remainder = Remainder(np.array([0.0, 0.1]), np.array([0.0, 0.2]), 0.001)
    for distribution in (
        noise_distribution(Release()),
        NoiseDistribution(NoiseStd(1.0, 1.0, 1.0), 1.0, np.array([0.0, 1.0]), remainder=remainder),
    ):
        for along in (None, 0.0, 0.3):
            errors = [
                distribution.errors(6, 0.05, tau, along)[1] for tau in np.linspace(0.0, 3.0, 30)
            ]
            assert (np.diff(errors) > 0.0).all()
        errors = [
            distribution.errors(6, 0.05, 1.2, along_)[1] for along_ in np.linspace(0.0, 1.44, 20)
        ]
        assert (np.diff(errors) > 0.0).all()
        assert errors[-1] == pytest.approx(distribution.errors(6, 0.05, 1.2)[1], rel=1e-12)


def test_bound_for_bits_holds_with_another_tau() -> None:
    """Choose entries of N and h as a Gaussian plus the worst coupling and rounding."""
    tau, d, count = 1.7, 3, 20_000
    rng = np.random.default_rng(9)
    theta = tau * np.array([0.6, -0.48, 0.64])
    steps, scale, coupling = 40, 0.5, 0.2
    remainder = Remainder(
        np.array([0.0, coupling]), np.array([0.0, scale * math.sqrt(steps)]), 1e-4
    )
    distribution = NoiseDistribution(
        NoiseStd(1.0, 0.8, 0.8), 1.0, np.array([0.0, 1.0]), remainder=remainder
    )

    def matrices(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (covariances (count, d, d), biases (count, d)) of packed statistics."""
        rows, columns = np.tril_indices(d)
        lower = np.zeros((count, d, d))
        lower[:, rows, columns] = entries[:, d:]
        return lower + np.tril(lower, -1).transpose(0, 2, 1), entries[:, :d]

    s = d + d * (d + 1) // 2
    stds = np.append(np.ones(d), np.full(s - d, 0.8))
    total = rng.normal(size=(count, s)) * stds
    for _ in range(steps):
        # Random signs of size scale; their mean is zero.
        total += rng.choice([-scale, scale], size=(count, s))
    n, h = matrices(total)
    error = (n @ theta) - h
    # The coupling moves every entry away from 0 in the direction of the error.
    push_n = np.einsum("ni,j->nij", np.sign(error), np.sign(theta))
    push_n = np.sign(push_n + push_n.transpose(0, 2, 1))
    error = error + coupling * (push_n @ theta + np.sign(error))
    bound = distribution.errors(d, 0.1, tau)[1]
    norms = np.linalg.norm(error, axis=1)
    assert (norms > bound).sum() <= stats.binom.isf(FALSE_ALARM, count, 0.1)
    assert (norms > distribution.errors(d, 0.1, 0.4)[1] / 1.5).sum() > 0.1 * count


def test_a_public_constant_doubles_the_failure_probability() -> None:
    """Check that the bound is that of a full GOE matrix for half the probability."""
    node = NoiseStd(1.0, 1.0, math.sqrt(2.0))
    full_goe = NoiseDistribution(node, 1.0, np.array([0.0, 1.0]))
    with_constant = noise_distribution(Release())
    assert full_goe.exact_goe
    assert not with_constant.exact_goe
    norms = with_constant.operator_norms(5, 0.02)
    assert norms.tolist() == full_goe.operator_norms(5, 0.01).tolist()
    assert with_constant.vector_norms(5, 0.02).tolist() == full_goe.vector_norms(5, 0.02).tolist()


# ---- the confidence width ------------------------------------------------------------------------

ALPHA = 0.2


@pytest.mark.parametrize(
    ("kappa", "centre", "rates"),
    [(3.0, 0.5, (0.0, 1.0)), (3.0, 0.5, (0.25, 0.75)), (1.5, 0.3, (0.3, 0.3))],
)
def test_confidence_width_holds_in_simulations(
    kappa: float, centre: float, rates: tuple[float, float]
) -> None:
    """Check the events and the inequality of docs/centred.md in 300 runs of lazy play.

    Everything is computed from theta* and the raw sums; the width uses tau and the noise bounds.
    """
    norm = centred_norm(kappa, centre, rates)
    release = Release(kappa=kappa, rewards=(-centre, 1.0 - centre), bias=0.5, constant_bias=0.5,
                      off_diagonal=0.5, diagonal=HALF, cross=0.5)  # fmt: skip
    batches, d, runs = 6, 3, 300
    distribution = noise_distribution(release, tuple(np.arange(batches + 1.0)))
    norm_bounds = distribution.operator_norms(d, ALPHA / 4.0)
    error_bounds = distribution.errors(d, ALPHA / 4.0, norm.tau, norm.along)
    rng = np.random.default_rng(12)
    deltas = oracle.random_deltas(kappa, centre, rates, d - 1, runs, rng)
    deltas[0] = 0.0  # the zero vector and the two worst vectors
    deltas[1:3] = np.array([0.0, 0.0, (rates[0] - centre) / release.constant])
    results = [
        oracle.play(
            release, delta, centre, norm_bounds, error_bounds, norm.tau, ALPHA, batches, 12, rng
        )
        for delta in deltas
    ]
    noise_failed, reward_failed, inequality_failed, width_ratio = (
        np.array(part) for part in zip(*results, strict=True)
    )
    allowed_failures = stats.binom.isf(FALSE_ALARM, runs, ALPHA / 4.0)
    assert noise_failed.sum() <= allowed_failures
    assert reward_failed.sum() <= allowed_failures
    assert not inequality_failed[~(noise_failed | reward_failed)].any()
    # Somewhere lambda Delta and the noise alone nearly attain gamma.
    assert width_ratio.max() > 0.5
