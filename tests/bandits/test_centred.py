"""Centred rewards with a public intercept: sensitivity, ||theta* - theta0||, and noise bounds."""

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
#: Where a value stays, its last bits may move.
ROUNDED = 1e-14

#: Arguments of `centred_sensitivity`: each of its branches, and noises of a stream of its own.
CASES: list[dict[str, Any]] = [
    {},
    {"kappa": 3.0},
    {"kappa": 4.0, "covariance_std": 0.82},
    {"kappa": 1.5, "layout": "iid", "covariance_std": 1.3},
    {"kappa": 2.0, "layout": "goe1", "covariance_std": 1.4, "reward_range": (-0.2, 0.8)},
    {"kappa": 40.0, "layout": "iid", "covariance_std": 3.0},  # t at its end
    {"covariance_std": 0.4, "cross_std": 0.3, "bias_std": 2.0},  # contexts move it most
    {"constant_bias_std": 0.1, "reward_range": (-0.9, 0.1)},
    {"kappa": 2.5, "reward_range": (0.0, 1.0), "feature_bound": 0.3, "cross_std": 0.7},
    {"kappa": 7.0, "constant_bias_std": 5.0, "cross_std": 9.0, "layout": "goe1"},
]


def release_of(case: dict[str, Any]) -> Release:
    """What the case means, entry by entry."""
    layout, s = case.get("layout", "goe2"), case.get("covariance_std", 1.0)
    off, diagonal = layout_stds(layout, s)
    bias = case.get("bias_std", 1.0)
    return Release(
        kappa=case.get("kappa", 1.0),
        rewards=case.get("reward_range", (-0.5, 0.5)),
        feature_bound=case.get("feature_bound", HALF),
        bias=bias,
        constant_bias=case.get("constant_bias_std", bias),
        off_diagonal=off,
        diagonal=diagonal,
        cross=case.get("cross_std", off),
    )


# ---- sensitivity ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("count", [10**5, pytest.param(10**7, marks=pytest.mark.slow)])
def test_no_random_pair_is_further_apart(case: dict[str, Any], count: int) -> None:
    found = {
        relation: centred_sensitivity(relation, **case) for relation in ("replace", "zero-out")
    }
    for k in (1, 2, 4) if count < 10**6 else (2,):
        rng = np.random.default_rng(count + k)
        replaced, gone = oracle.largest_of_random(release_of(case), count, k, rng)
        assert replaced <= found["replace"] * (1.0 + 1e-12)
        assert gone <= found["zero-out"] * (1.0 + 1e-12)
        if k == 2:
            assert replaced >= found["replace"] * (1.0 - 100.0 / count)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("k", [2, 3])
def test_a_search_reaches_the_sensitivity_and_no_more(case: dict[str, Any], k: int) -> None:
    for relation in ("replace", "zero-out"):
        exact = centred_sensitivity(relation, **case)
        rng = np.random.default_rng(k)
        found = oracle.largest_found(release_of(case), k, rng, 11, relation == "replace")
        assert exact * (1.0 - 1e-6) <= found <= exact * (1.0 + 1e-12)


def test_all_arguments_at_random() -> None:
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
        found, gone = oracle.largest_of_random(release_of(case), 20_000, 2, rng)
        assert 0.995 * exact <= found <= exact * (1.0 + 1e-12), case
        assert gone <= centred_sensitivity("zero-out", **case) * (1.0 + 1e-12), case


def test_worked_by_hand() -> None:
    """kappa = 3, all stds 1: A = 1/2, B = 1/6, C = 1/12, G = 1/8; both corners give 121/144."""
    assert centred_sensitivity("replace", kappa=3.0) == pytest.approx(11.0 / 12.0, rel=1e-14)
    # |u| = 1, r = 1/2: (1/2 + 1/2) / 4 + 1/4 + 1/8.
    assert centred_sensitivity("zero-out") == pytest.approx(math.sqrt(0.625), rel=1e-14)


def test_without_an_intercept_it_is_the_sensitivity_of_free_rows() -> None:
    """The constant's row left out and unit features: `user_sensitivity` with |y| <= 1."""
    for layout, relation in itertools.product(("iid", "goe1", "goe2"), ("replace", "zero-out")):
        for b, s in ((1.0, 1.0), (1.0, 0.7), (2.0, 0.3), (0.2, 3.0), (1.0, math.inf)):
            found = centred_sensitivity(
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
            assert found == pytest.approx(exact, rel=1e-14)


def test_a_large_kappa_leaves_the_constant_out() -> None:
    for relation in ("replace", "zero-out"):
        limit = centred_sensitivity(relation, constant_bias_std=math.inf, cross_std=math.inf)
        found = [centred_sensitivity(relation, kappa=10.0**j) for j in (0, 1, 3, 6, 12, 300)]
        assert (np.diff(found) <= ROUNDED).all()
        assert found[0] > 1.01 * limit
        assert found[-3] == pytest.approx(limit, rel=1e-5)
        assert found[-1] == pytest.approx(limit, rel=1e-14)


def test_monotone_in_everything() -> None:
    base = {"bias_std": 1.0, "constant_bias_std": 1.0, "covariance_std": 1.0, "cross_std": 1.0}
    steps = np.geomspace(0.05, 20.0, 60)
    for relation in ("replace", "zero-out"):
        for name in base:
            found = [centred_sensitivity(relation, **{**base, name: float(s)}) for s in steps]
            assert (np.diff(found) <= ROUNDED).all(), name
        grown = [centred_sensitivity(relation, kappa=float(k)) for k in 1.0 + steps]
        assert (np.diff(grown) <= ROUNDED).all()
        wider = [centred_sensitivity(relation, feature_bound=float(f)) for f in steps[:30] / 2.0]
        assert (np.diff(wider) > 0.0).all()
        wider = [centred_sensitivity(relation, reward_range=(-0.1, float(h))) for h in steps]
        assert (np.diff(wider) >= -ROUNDED).all()


def test_scales_with_the_noise_and_survives_extreme_ones() -> None:
    one = centred_sensitivity("replace", kappa=2.0)
    for factor in (1e-150, 1e-6, 7.0, 1e150):
        found = centred_sensitivity("replace", kappa=2.0, bias_std=factor, covariance_std=factor)
        assert found * factor == pytest.approx(one, rel=1e-13)
    assert centred_sensitivity("replace", bias_std=math.inf, covariance_std=math.inf) == 0.0
    # One stream is all that is left: |u r - u' r'| = 1 / sqrt 2 and |r - r'| / sqrt 2 at r' = -r.
    loud = centred_sensitivity("replace", covariance_std=math.inf)
    assert loud == pytest.approx(1.0, rel=1e-14)


def test_zero_out_is_weaker_where_zero_is_a_reward() -> None:
    """A user who is gone is the record (0, r0), which is one of those that replacement allows."""
    for case in CASES:
        low, high = case.get("reward_range", (-0.5, 0.5))
        assert low <= 0.0 <= high
        weaker = centred_sensitivity("zero-out", **case)
        assert weaker <= centred_sensitivity("replace", **case)


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
def test_bad_arguments_of_the_sensitivity(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        centred_sensitivity(**{"relation": "replace", **arguments})


def test_the_table_of_the_page() -> None:
    """Noise of a coordinate at mu = 1 and b = o, and at the best ratio."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "centred.md").read_text("utf-8")
    head, *table = [line for line in page.splitlines() if line.startswith("| ")]
    kappas = [float(k) for k in re.findall(r"[0-9]+", head)]
    lines = re.findall(r"^\| (.+?) \| (.+) \|$", "\n".join(table), re.MULTILINE)
    assert len(lines) == 4

    def price(kappa: float, tau: float, ratio: float) -> float:
        mu = centred_sensitivity("replace", kappa=kappa, covariance_std=ratio)
        return math.hypot(1.0, ratio * tau) * mu

    for declared, cells in lines:
        ends = [float(p) for p in re.findall(r"[0-9.]+", declared)] or [0.0, 1.0]
        for kappa, cell in zip(kappas, cells.split(" | "), strict=True):
            tau = centred_norm(kappa, 0.5, (ends[0], ends[-1])).tau
            best = min(price(kappa, tau, r) for r in np.geomspace(0.3, 3.0, 200))
            assert cell == f"{price(kappa, tau, 1.0):.3f} ({best:.3f})"
    free = math.hypot(1.0, 0.7) * user_sensitivity("replace", "goe2", cov_std=0.7)
    assert f"have {free:.3f}." in page


# ---- ||theta* - theta0|| -------------------------------------------------------------------------

NORMS: list[tuple[float, float, tuple[float, float]]] = [
    *itertools.product((1.0, 1.5, 2.0, 4.0, 50.0), (0.5, 0.3, 0.8), ((0.0, 1.0),)),
    (1.0, 0.5, (0.5, 0.5)),
    (4.0, 0.3, (0.3, 0.3)),
    (4.0, 0.5, (0.3, 0.7)),
    (3.0, 0.4, (0.3, 0.45)),
    (9.0, 0.5, (0.45, 0.8)),
    (2.0, 0.7, (0.1, 0.2)),
]


@pytest.mark.parametrize(("kappa", "centre", "rates"), NORMS)
def test_the_norm_is_the_largest_that_bounded_means_allow(
    kappa: float, centre: float, rates: tuple[float, float]
) -> None:
    """Random theta*, 10^5, and the covariance of N Delta of a few of them, entry by entry."""
    found = centred_norm(kappa, centre, rates)
    rng = np.random.default_rng(1)
    deltas = oracle.random_deltas(kappa, centre, rates, 3, 100_000, rng)
    norms = np.linalg.norm(deltas, axis=1)
    assert 0.9999 * found.tau <= norms.max() <= found.tau * (1.0 + 1e-12)
    unit = Release(kappa=kappa, bias=0.0, constant_bias=0.0)
    largest = 0.0
    chosen = [*deltas[:300], *deltas[np.argsort(norms)[-100:]]]
    steepest = np.argmax(np.linalg.norm(deltas[:, :-1], axis=1))
    for delta in [*chosen, deltas[steepest]]:
        values = np.linalg.eigvalsh(oracle.error_covariance(delta, unit))
        assert values[-2] <= found.tau**2 * (1.0 + 1e-12)
        largest = max(largest, float(values[-1]))
    whole = found.tau**2 + found.along
    assert 0.999 * whole <= largest <= whole * (1.0 + 1e-12)


def test_the_norm_in_closed_form() -> None:
    for kappa in (1.0, 1.7, 2.0, 3.0, 40.0):
        assert centred_norm(kappa).tau == pytest.approx(math.sqrt(kappa / 2.0), rel=1e-14)
        for r0 in (0.1, 0.5, 0.7):
            free, told = centred_norm(kappa, r0), centred_norm(kappa, r0, (r0, r0))
            assert free.tau == pytest.approx(math.sqrt(2.0 * kappa) * max(r0, 1.0 - r0))
            assert told.tau == pytest.approx(math.sqrt(2.0) * min(r0, 1.0 - r0))
            assert told.along == pytest.approx(told.tau**2)
            # From kappa = 2 on nothing is left along a direction.
            assert kappa < 2.0 or free.along == pytest.approx(0.0, abs=1e-14)
        # A base rate within 1 / (1 + kappa) of 1/2 is as good as one that is known.
        reach = 1.0 / (1.0 + kappa)
        near = centred_norm(kappa, 0.5, (0.5 - reach, 0.5 + reach))
        assert near.tau == pytest.approx(HALF, rel=1e-14)
        assert near.along == pytest.approx(0.5, rel=1e-13)
        if reach < 0.5:
            further = centred_norm(kappa, 0.5, (0.499 - reach, 0.5)).tau
            assert further > HALF * (1.0 + 1e-4)
    assert centred_norm(1.0).along == pytest.approx(0.5)


def test_the_norm_in_other_units_and_wider_intervals() -> None:
    """Rewards in [-3, 1] are four times those in [0, 1]; half the features need twice theta."""
    for kappa, rates in ((1.0, (0.0, 1.0)), (3.0, (0.4, 0.6))):
        one = centred_norm(kappa, 0.25, rates)
        moved = tuple(-3.0 + 4.0 * p for p in rates)
        four = centred_norm(kappa, -2.0, moved, (-3.0, 1.0))
        assert four.tau == pytest.approx(4.0 * one.tau)
        assert four.along == pytest.approx(16.0 * one.along)
    flat = centred_norm(2.0, 0.5, (0.5, 0.5), feature_bound=0.5 * HALF)
    assert flat.tau == pytest.approx(2.0 * HALF)
    wider = [centred_norm(4.0, 0.5, (0.5 - w, 0.5 + w)).tau for w in np.linspace(0.0, 0.5, 40)]
    assert (np.diff(wider) >= -ROUNDED).all()


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
def test_bad_arguments_of_the_norm(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        centred_norm(**arguments)


# ---- the noise's bounds --------------------------------------------------------------------------


def law_of(release: Release, variances: tuple[float, ...] = (0.0, 1.0)) -> NoiseDistribution:
    node = NoiseStd(release.bias, release.off_diagonal, release.diagonal)
    return NoiseDistribution(node, 1.0, np.array(variances), public_constant=True)


@pytest.mark.parametrize("probability", [0.2, 0.01])
@pytest.mark.parametrize(
    ("kappa", "rates"),
    [(1.0, (0.0, 1.0)), (3.0, (0.0, 1.0)), (3.0, (0.25, 0.75)), (4.0, (0.5, 0.5))],
)
def test_the_error_stays_below_its_bound_and_reaches_it(
    kappa: float, rates: tuple[float, float], probability: float
) -> None:
    """||N Delta - h|| of 40 000 drawn matrices for every worst Delta: a false alarm once in 10^6.

    At the worst of them the bound is nearly the quantile.
    """
    norm, release = (
        centred_norm(kappa, 0.5, rates),
        Release(kappa=kappa, bias=0.8, constant_bias=0.8),
    )
    bound = law_of(release).errors(4, probability, norm.tau, norm.along)[1]
    size = law_of(release).operator_norms(4, probability)[1]
    rng, count, worst = np.random.default_rng(3), 40_000, 0
    direction = np.array([0.6, -0.48, 0.64])
    for p in {*rates, 0.5}:
        a = direction * min(p, 1.0 - p) / release.feature_bound
        delta = np.append(a, (p - 0.5) / release.constant)
        found, norms = oracle.draw_errors(delta, release, count, rng)
        worst = max(worst, int((found > bound).sum()))
        assert (norms > size).sum() <= stats.binom.isf(FALSE_ALARM, count, probability)
    assert worst <= stats.binom.isf(FALSE_ALARM, count, probability)
    # The last entry has less noise than the bound counts with, which costs little.
    assert worst >= stats.binom.isf(1.0 - FALSE_ALARM, count, 0.3 * probability)


def test_bounds_hold_together_over_releases() -> None:
    """A prefix of three leaves: N and h are their sums, and the union is over all of them."""
    release, count = Release(kappa=3.0), 20_000
    norm = centred_norm(3.0)
    bounds = law_of(release, (0.0, 1.0, 2.0, 3.0)).errors(3, 0.1, norm.tau, norm.along)
    rng = np.random.default_rng(8)
    delta = np.array([0.0, 0.0, norm.tau])
    covariance = np.linalg.cholesky(oracle.error_covariance(delta, release))
    steps = rng.normal(size=(count, 3, 3)) @ covariance.T
    found = np.linalg.norm(np.cumsum(steps, axis=1), axis=2)
    exceeded = int((found > bounds[1:]).any(axis=1).sum())
    assert exceeded <= stats.binom.isf(FALSE_ALARM, count, 0.1)


def test_a_smaller_tau_is_caught() -> None:
    """The bound for a quarter less of tau fails more often than it says."""
    release, count = Release(kappa=4.0), 40_000
    delta = np.array([0.0, 0.0, 0.0, math.sqrt(2.0)])
    found, _ = oracle.draw_errors(delta, release, count, np.random.default_rng(4))
    bound = law_of(release).errors(4, 0.01, 0.75 * math.sqrt(2.0), 0.0)[1]
    assert (found > bound).sum() > stats.binom.isf(FALSE_ALARM, count, 0.01)


@pytest.mark.parametrize("remainder", [False, True])
def test_with_tau_one_no_bit_is_another(remainder: bool) -> None:
    """errors() as it was before tau, number for number."""
    variances = np.array([0.0, 1.0, 1.0, 2.0])
    rest = Remainder(variances * 0.01, variances * 0.02, 0.001) if remainder else None
    for d, b, o in ((1, 1.0, 1.0), (10, 2.3, 0.7 * 2.3), (57, 0.37, 0.91)):
        law = NoiseDistribution(NoiseStd(b, o, o), 7.0, variances, remainder=rest)
        for p in (0.2, 0.0025):
            gaussian, rounding = law._shares(p)
            was = norm_quantile(d, b**2 + o**2, o**2, gaussian) * law.scales
            if rest is not None:
                was = was + (d + math.sqrt(d)) * rest.coupling
                was = was + _subgaussian_norm_quantile(d, 2.0, 1.0, rounding) * rest.rounding
            assert law.errors(d, p).tolist() == was.tolist()
            assert law.errors(d, p, 1.0, 1.0).tolist() == was.tolist()


@pytest.mark.parametrize("tau", [0.4, 1.0, 1.7])
def test_the_quantile_is_exact_where_all_of_n_is_noise(tau: float) -> None:
    """Whole GOE matrices have the covariance of the proof: two-sided, once in 5 x 10^5."""
    count, rng = 40_000, np.random.default_rng(6)
    a = rng.normal(size=(count, 3, 3)) * math.sqrt(0.5)
    n, h = a + a.transpose(0, 2, 1), rng.normal(size=(count, 3)) * 0.7
    found = np.linalg.norm(n @ (tau * np.array([0.6, -0.48, 0.64])) - h, axis=1)
    law = NoiseDistribution(NoiseStd(0.7, 1.0, math.sqrt(2.0)), 1.0, np.array([0.0, 1.0]))
    for probability in (0.2, 0.01):
        exceeded = int((found > law.errors(3, probability, tau)[1]).sum())
        assert exceeded <= stats.binom.isf(FALSE_ALARM, count, probability)
        assert exceeded >= stats.binom.isf(1.0 - FALSE_ALARM, count, probability)


@pytest.mark.parametrize("tau", [0.4, 1.0, 1.7])
def test_the_coupling_enters_as_it_can_at_worst(tau: float) -> None:
    """|e| = 1 in every entry, all of one sign, and theta along the diagonal."""
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
    rest = Remainder(np.array([0.0, 0.1]), np.array([0.0, 0.2]), 0.001)
    for law in (
        law_of(Release()),
        NoiseDistribution(NoiseStd(1.0, 1.0, 1.0), 1.0, np.array([0.0, 1.0]), remainder=rest),
    ):
        for along in (None, 0.0, 0.3):
            found = [law.errors(6, 0.05, t, along)[1] for t in np.linspace(0.0, 3.0, 30)]
            assert (np.diff(found) > 0.0).all()
        found = [law.errors(6, 0.05, 1.2, a)[1] for a in np.linspace(0.0, 1.44, 20)]
        assert (np.diff(found) > 0.0).all()
        assert found[-1] == pytest.approx(law.errors(6, 0.05, 1.2)[1], rel=1e-12)


def test_bits_with_another_tau() -> None:
    """Entries of N and h are a Gaussian, the largest coupling and roundings chosen to hurt."""
    tau, d, count = 1.7, 3, 20_000
    rng = np.random.default_rng(9)
    theta = tau * np.array([0.6, -0.48, 0.64])
    steps, scale, apart = 40, 0.5, 0.2
    rest = Remainder(np.array([0.0, apart]), np.array([0.0, scale * math.sqrt(steps)]), 1e-4)
    law = NoiseDistribution(NoiseStd(1.0, 0.8, 0.8), 1.0, np.array([0.0, 1.0]), remainder=rest)

    def matrices(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = np.tril_indices(d)
        lower = np.zeros((count, d, d))
        lower[:, rows, columns] = entries[:, d:]
        return lower + np.tril(lower, -1).transpose(0, 2, 1), entries[:, :d]

    s = d + d * (d + 1) // 2
    stds = np.append(np.ones(d), np.full(s - d, 0.8))
    total = rng.normal(size=(count, s)) * stds
    for _ in range(steps):
        # +-scale, on the side that lengthens N theta - h where a coin allows it: centred.
        total += rng.choice([-scale, scale], size=(count, s))
    n, h = matrices(total)
    error = (n @ theta) - h
    # The coupling pushes every entry away from 0 along the error.
    push_n = np.einsum("ni,j->nij", np.sign(error), np.sign(theta))
    push_n = np.sign(push_n + push_n.transpose(0, 2, 1))
    error = error + apart * (push_n @ theta + np.sign(error))
    bound = law.errors(d, 0.1, tau)[1]
    found = np.linalg.norm(error, axis=1)
    assert (found > bound).sum() <= stats.binom.isf(FALSE_ALARM, count, 0.1)
    assert (found > law.errors(d, 0.1, 0.4)[1] / 1.5).sum() > 0.1 * count


def test_a_public_constant_is_no_whole_goe_matrix() -> None:
    """The factor 2 of domination is paid: the bound is that for half the probability."""
    node = NoiseStd(1.0, 1.0, math.sqrt(2.0))
    whole = NoiseDistribution(node, 1.0, np.array([0.0, 1.0]))
    less = law_of(Release())
    assert whole.exact_goe
    assert not less.exact_goe
    found = less.operator_norms(5, 0.02)
    assert found.tolist() == whole.operator_norms(5, 0.01).tolist()
    assert less.vector_norms(5, 0.02).tolist() == whole.vector_norms(5, 0.02).tolist()


# ---- the confidence width ------------------------------------------------------------------------

ALPHA = 0.2


@pytest.mark.parametrize(
    ("kappa", "centre", "rates"),
    [(3.0, 0.5, (0.0, 1.0)), (3.0, 0.5, (0.25, 0.75)), (1.5, 0.3, (0.3, 0.3))],
)
def test_the_confidence_width_holds(
    kappa: float, centre: float, rates: tuple[float, float]
) -> None:
    """300 runs of lazy play by what was released: events and inequality of docs/centred.md.

    By definition, from theta* and the raw sums; the width has tau and the bounds on the noise.
    """
    norm = centred_norm(kappa, centre, rates)
    release = Release(kappa=kappa, rewards=(-centre, 1.0 - centre), bias=0.5, constant_bias=0.5,
                      off_diagonal=0.5, diagonal=HALF, cross=0.5)  # fmt: skip
    batches, d, runs = 6, 3, 300
    law = law_of(release, tuple(np.arange(batches + 1.0)))
    n = law.operator_norms(d, ALPHA / 4.0)
    error = law.errors(d, ALPHA / 4.0, norm.tau, norm.along)
    rng = np.random.default_rng(12)
    deltas = oracle.random_deltas(kappa, centre, rates, d - 1, runs, rng)
    deltas[0] = 0.0  # and the worst two
    deltas[1:3] = np.array([0.0, 0.0, (rates[0] - centre) / release.constant])
    seen = [
        oracle.play(release, delta, centre, n, error, norm.tau, ALPHA, batches, 12, rng)
        for delta in deltas
    ]
    noise, far, broken, tight = (np.array(part) for part in zip(*seen, strict=True))
    allowed = stats.binom.isf(FALSE_ALARM, runs, ALPHA / 4.0)
    assert noise.sum() <= allowed
    assert far.sum() <= allowed
    assert not broken[~(noise | far)].any()
    # lambda Delta and the noise alone come near to gamma somewhere.
    assert tight.max() > 0.5
