"""Tests of Gaussian noise on every user's data point, with and without a shuffler (Lemma B.4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from oracle.chowdhury_zhou_2022 import (
    amp_conditions,
    amp_inverted_noise_std,
    amp_local_budget,
    amp_noise_std,
    amp_returning_noise_std,
    amp_returning_noise_std_printed,
    amp_true_budget,
    composed_epsilon,
    gaussian_delta,
    joint_sensitivity,
    ldp_noise_std,
    per_batch_budget,
    published,
    published_sensitivity,
    shuffled_budget,
    shuffling_condition,
    tight_noise_std,
)

from fastfed._validate import InputError
from fastfed.privacy import Budget, Condition, epsilon_of, mu_of, user_sensitivity
from fastfed.privacy.certificate import ClaimCondition
from fastfed.privacy.mechanisms.local_gaussian import (
    LocalGaussian,
    budget_per_batch,
    calibrate_local_gaussian,
    shuffled,
    shuffled_epsilon,
    shuffled_mu,
)


def with_scaled_noise(points: LocalGaussian, factor: float) -> LocalGaussian:
    """Return the mechanism with its noise multiplied by the factor."""
    return msgspec.structs.replace(points, noise_std=factor * points.noise_std)


def claim_condition(points: LocalGaussian) -> Condition:
    """Return the condition that states the claim."""
    condition = points.conditions()[-1]
    assert type(condition) is ClaimCondition
    return condition


# ---- the lemma -----------------------------------------------------------------------------------


def test_lemma_equals_the_oracles_lemma() -> None:
    rng = np.random.default_rng(20220716)
    for _ in range(200):
        e0, n = float(rng.uniform(0, 6)), int(10 ** rng.uniform(0, 7))
        d0, inner = 10 ** rng.uniform(-12, -1), 10 ** rng.uniform(-12, 0)
        shuffled_budget_ = shuffled(e0, d0, n, inner)
        assert shuffled_budget_[:2] == pytest.approx(shuffled_budget(e0, d0, n, inner), rel=1e-12)
        assert shuffled_budget_.holds == shuffling_condition(e0, n, inner)


@pytest.mark.parametrize(
    ("users", "epsilon", "delta", "expected"),
    [
        (1000, 0.02, 1e-3, (0.0938, 3.43e-3)),
        (1000, 0.05, 0.1, (0.312, 0.334)),
        (10_000, 0.02, 1e-3, (0.114, 3.1e-3)),
    ],
)
def test_constants_that_the_theorems_o_notation_hides(
    users: int, epsilon: float, delta: float, expected: tuple[float, float]
) -> None:
    true_budget = shuffled(*amp_local_budget(epsilon, delta, users), users, delta / 2)
    assert true_budget.holds
    assert true_budget[:2] == pytest.approx(expected, rel=0.011)
    assert true_budget[:2] == pytest.approx(amp_true_budget(epsilon, delta, users), rel=1e-12)


def test_lemma_at_the_limits_of_its_condition() -> None:
    assert not shuffled(0.0, 1e-9, 59, 0.05).holds
    assert shuffled(0.0, 1e-9, 60, 0.05) == (0.0, pytest.approx(0.05 + 3 * 60e-9), True)
    assert shuffled(1.0, 0.0, 161, 0.05).delta == 0.05
    assert shuffled(5000.0, 1e-9, 1000, 0.05) == (math.inf, math.inf, False)
    assert shuffled(700.0, 0.5, 1, 1e-300).delta > 1e300


@pytest.mark.parametrize(
    ("mu", "delta", "users"), [(0.02, 1e-3, 10_000), (0.15, 1e-5, 1000), (0.9, 1e-6, 10**6)]
)
def test_smallest_epsilon_agrees_with_a_search(mu: float, delta: float, users: int) -> None:
    """Compare with a fine grid over the free parameters of the lemma."""
    epsilon_found = shuffled_epsilon(mu, delta, users)
    best = math.inf
    for delta_share in np.linspace(0.02, 0.99, 60):
        max_e0 = math.log(users / (16 * math.log(2 / (delta_share * delta))))
        for e0 in max_e0 * np.geomspace(1e-3, 1, 700)[:-1]:
            epsilon, total_delta = shuffled_budget(
                e0, gaussian_delta(e0, mu), users, delta_share * delta
            )
            if total_delta <= delta:
                best = min(best, epsilon)
                break
    assert epsilon_found <= best <= 1.012 * epsilon_found


def test_lemma_and_its_inverse_agree() -> None:
    """Include cases in which the condition leaves only one inner delta."""
    cases = itertools.product((1e-6, 0.02, 0.5, 3.0), (1e-9, 1e-5, 0.1), (200, 10**4, 10**7))
    proven_count = 0
    for epsilon, delta, users in cases:
        mu = shuffled_mu(epsilon, delta, users)
        if mu == 0.0:
            assert users <= 16 * math.log(2 / delta)
            continue
        proven_count += 1
        assert shuffled_epsilon(mu * (1 - 1e-6), delta, users) <= epsilon
        assert shuffled_epsilon(mu * (1 + 1e-6), delta, users) > min(epsilon, 1.3)
    assert proven_count > 25


def test_inverse_is_at_least_as_good_as_the_oracles() -> None:
    cases = [  # users, epsilon, delta, std by the lemma, std by local privacy
        (1000, 0.02, 1e-3, 151, 118),
        (10_000, 0.02, 1e-3, 58.8, 118),
        (1000, 0.2, 1e-5, 26.6, 32.6),
        (1000, 1.0, 1e-5, 7.07, 7.46),
        (500, 1.0, 1e-5, 11.9, 7.46),
        (1000, 1.0, 0.1, 3.16, 2.17),
    ]
    for users, epsilon, delta, lemma, local in cases:
        std = 2.0 / shuffled_mu(epsilon, delta, users)
        oracle = amp_inverted_noise_std(epsilon, delta, users)
        assert oracle is not None
        assert oracle == pytest.approx(lemma, rel=5e-3)
        assert 0.99 * oracle < std <= oracle * (1 + 1e-9)
        budget = Budget(epsilon, delta)
        local_mechanism = calibrate_local_gaussian(budget, users)
        assert local_mechanism.noise_std == pytest.approx(local, rel=5e-3)
        assert local_mechanism.noise_std == pytest.approx(tight_noise_std(epsilon, delta), rel=1e-7)
        shuffled_mechanism = calibrate_local_gaussian(budget, users, shuffled=True)
        assert shuffled_mechanism.noise_std == pytest.approx(
            min(std, local_mechanism.noise_std), rel=1e-9
        )
        reason = "by Lemma B.4" if lemma < local else "by local privacy alone; Lemma B.4 "
        assert f"({reason}" in claim_condition(shuffled_mechanism).text


# ---- exact calibration ---------------------------------------------------------------------------


@pytest.mark.parametrize("through_shuffler", [False, True])
def test_exact_calibration_uses_the_whole_budget(through_shuffler: bool) -> None:
    cases = itertools.product(
        (1e-9, 0.02, 1.0, 40.0, 1e13), (1e-300, 1e-6, 0.1), (20, 10**4, 10**8)
    )
    for i, (epsilon, delta, users) in enumerate(cases):
        budget = Budget(epsilon, delta, ("replace", "zero-out")[i % 2])
        points = calibrate_local_gaussian(
            budget,
            users,
            returning=(1, 30, 1, 1, 7)[i % 5],
            shuffled=through_shuffler,
            layout=("iid", "goe1", "goe2")[i % 3],
            covariance_ratio=(1.0, 0.5)[i % 2],
        )
        assert points.exact() <= epsilon
        assert claim_condition(points).holds
        assert with_scaled_noise(points, 0.99).exact() > epsilon
        # With the lemma, its condition may leave part of the budget unused.
        if not through_shuffler:
            assert points.exact() == pytest.approx(epsilon, rel=1e-6, abs=1e-10)


def test_a_shuffler_never_increases_the_noise() -> None:
    for users, epsilon, delta in itertools.product((20, 10**4), (0.05, 5.0), (1e-6, 0.1)):
        local_mechanism = calibrate_local_gaussian(Budget(epsilon, delta), users)
        shuffled_mechanism = calibrate_local_gaussian(Budget(epsilon, delta), users, shuffled=True)
        assert shuffled_mechanism.noise_std <= local_mechanism.noise_std
        assert shuffled_mechanism.exact() <= shuffled_mechanism.ldp()
        assert local_mechanism.exact() == local_mechanism.ldp()


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 10.0])
def test_a_shuffler_does_not_help_batches_of_twenty_users(epsilon: float) -> None:
    points = calibrate_local_gaussian(Budget(epsilon, 0.1), 20, shuffled=True)
    assert points.noise_std == calibrate_local_gaussian(Budget(epsilon, 0.1), 20).noise_std
    assert points.amplified() == math.inf
    assert with_scaled_noise(points, 1000.0).amplified() == math.inf
    assert "Lemma B.4 proves nothing for batches of 20)" in claim_condition(points).text


def test_epsilon_falls_with_the_noise() -> None:
    points = calibrate_local_gaussian(Budget(0.2, 1e-6), 10**5, shuffled=True, returning=3)
    mechanisms = [
        with_scaled_noise(points, factor) for factor in (0.02, 0.3, 0.5, 0.8, 1.0, 1.001, 2.0, 30.0)
    ]
    for values in (
        [mechanism.exact() for mechanism in mechanisms],
        [mechanism.ldp() for mechanism in mechanisms],
        [mechanism.amplified() for mechanism in mechanisms[1:]],
        [-mechanism.noise_stds["covariance"] for mechanism in mechanisms],
    ):
        assert all(a > b for a, b in itertools.pairwise(values))
    assert mechanisms[0].amplified() == math.inf
    assert points.exact(1e-8) > points.exact() > points.exact(1e-4)
    assert points.exact(0.0) == math.inf


def test_zero_out_is_weaker_locally_and_equal_in_the_lemma() -> None:
    points = calibrate_local_gaussian(Budget(0.2, 1e-6), 10**5, shuffled=True)
    assert points.ldp(relation="zero-out") < points.ldp()
    # The other messages hide a user's message only as well as any two data points are similar.
    assert points.amplified(relation="zero-out") == points.amplified()
    zero_out = calibrate_local_gaussian(Budget(0.2, 1e-6, "zero-out"), 10**5, shuffled=True)
    assert zero_out.noise_std == points.noise_std
    assert zero_out.exact() == points.exact() < zero_out.ldp()
    assert zero_out.amplified() == shuffled_epsilon(2.0 / zero_out.noise_std, 1e-6, 10**5)


def test_both_streams_are_accounted_jointly() -> None:
    points = calibrate_local_gaussian(Budget(1.0, 1e-5), 50, layout="iid", covariance_ratio=0.5)
    joint = user_sensitivity("replace", "iid", cov_std=0.5)
    assert points.noise_std == pytest.approx(joint / mu_of(1.0, 1e-5), rel=1e-12)
    assert points.mu() == pytest.approx(joint / points.noise_std, rel=1e-12)
    s = points.noise_std
    assert points.stds == pytest.approx((s, s / 2, s / 2))
    assert points.noise_stds == dict(
        zip(("bias", "covariance", "covariance_diagonal"), points.stds, strict=True)
    )


# ---- returning users -----------------------------------------------------------------------------


def test_noise_grows_with_the_root_of_participations() -> None:
    budget = Budget(0.5, 1e-6)
    single = calibrate_local_gaussian(budget, 20)
    for count in (2, 9, 1000):
        points = calibrate_local_gaussian(budget, 20, returning=count)
        assert points.noise_std == pytest.approx(math.sqrt(count) * single.noise_std, rel=1e-12)
        assert points.noise_std == pytest.approx(tight_noise_std(0.5, 1e-6, count), rel=1e-5)
        assert points.mu() == pytest.approx(single.mu(), rel=1e-12)
        condition = points.conditions()[-2]
        assert type(condition) is Condition
        assert condition.holds
        assert f"takes part in at most {count} batches, once in each" in condition.text
    assert len(single.conditions()) == 1
    # If the lemma decides, other messages must be trusted; local privacy needs no trust.
    amplified = calibrate_local_gaussian(Budget(0.02, 1e-3), 10_000, shuffled=True)
    assert amplified.exact() < amplified.ldp()
    assert "none tells the server" in amplified.conditions()[0].text
    # Participations are at most the number of batches.
    assert calibrate_local_gaussian(budget, 20, returning=1000, batches=9).returning == 9
    assert calibrate_local_gaussian(budget, 20, returning=1000, batches=0) == single


@pytest.mark.parametrize("count", [2, 60])
def test_lemma_over_several_batches_is_a_valid_composition(count: int) -> None:
    points = calibrate_local_gaussian(Budget(0.5, 1e-6), 10**6, shuffled=True, returning=count)
    assert points.exact() == points.amplified() < points.ldp()
    mu = points.mu() / math.sqrt(count)
    basic_composition = count * shuffled_epsilon(mu, 1e-6 / count, 10**6)
    candidates = [basic_composition]
    for delta_share in (0.25, 0.5, 0.75):
        epsilon_per_batch = shuffled_epsilon(mu, (1 - delta_share) * 1e-6 / count, 10**6)
        candidates.append(composed_epsilon(epsilon_per_batch, count, delta_share * 1e-6))
    assert points.amplified() == pytest.approx(min(candidates), rel=1e-9)
    assert (min(candidates) == basic_composition) == (count == 2)
    # Compared with a single batch, only the constants are better.
    single = msgspec.structs.replace(points, returning=1)
    assert single.amplified() < points.amplified() < count * shuffled_epsilon(mu, 1e-9, 10**6)


# ---- the paper's formulas ------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 1000])
@pytest.mark.parametrize(("epsilon", "delta", "users"), [(0.2, 0.1, 20), (0.02, 1e-3, 1000)])
def test_noise_of_the_theorems_follows_their_formulas(
    epsilon: float, delta: float, users: int, count: int
) -> None:
    budget = Budget(epsilon, delta)
    batch_budget = (epsilon, delta) if count == 1 else per_batch_budget(epsilon, delta, count)
    assert budget_per_batch(budget, count) == pytest.approx(batch_budget, rel=1e-14)
    local = calibrate_local_gaussian(budget, users, calibration="theorem", returning=count)
    assert local.noise_std == pytest.approx(ldp_noise_std(*batch_budget), rel=1e-12)
    shuffled_mechanism = calibrate_local_gaussian(
        budget, users, calibration="theorem", returning=count, shuffled=True
    )
    assert shuffled_mechanism.noise_std == pytest.approx(
        amp_noise_std(*batch_budget, users), rel=1e-12
    )
    assert (shuffled_mechanism.layout, shuffled_mechanism.covariance_ratio) == ("iid", 1.0)
    text, conditions = (
        claim_condition(shuffled_mechanism).text,
        amp_conditions(*batch_budget, users),
    )
    verbs = ["holds" if conditions[name] else "fails" for name in ("theorem", "lemma")]
    first, second = text.split("Theorem B.1's condition")[1].split("; Lemma B.4's")
    assert first.endswith(verbs[0])
    assert second.rstrip(")").endswith(verbs[1])
    assert f"epsilon0 = {amp_local_budget(*batch_budget, users)[0]:.3g} <= " in second
    assert ("at one batch's budget" in text) == (count > 1)
    assert conditions["lemma"] == (users == 1000)


def test_theorem_e_3_is_used_with_its_corrected_logarithm() -> None:
    points = calibrate_local_gaussian(
        Budget(0.2, 0.1), 20, calibration="theorem", returning=1000, shuffled=True
    )
    assert points.noise_std == pytest.approx(11_846.6, abs=0.05)
    assert points.noise_std == pytest.approx(amp_returning_noise_std(0.2, 0.1, 20, 1000))
    printed = amp_returning_noise_std_printed(0.2, 0.1, 20, 20_000)
    missing = math.sqrt(math.log(4000 / 0.1) / math.log(2 / 0.1))
    assert points.noise_std == pytest.approx(printed * missing, rel=1e-12)


def test_true_epsilon_of_the_theorems_noise() -> None:
    for epsilon, true in ((1.0, 0.281), (5.0, 1.92)):
        points = calibrate_local_gaussian(Budget(epsilon, 1e-3), 1, calibration="theorem")
        assert points.exact() == pytest.approx(true, rel=5e-3)
        verb = "holds" if epsilon <= 1 else "fails"
        assert f"Proposition F.1's condition, epsilon <= 1, {verb})" in claim_condition(points).text
    for users, epsilon, delta, true in (
        (20, 0.2, 0.1, 0.0),
        (20, 1.0, 0.1, 0.143),
        (20, 10.0, 0.1, 11.7),
        (10_000, 0.02, 1e-3, 0.119),
    ):
        points = calibrate_local_gaussian(
            Budget(epsilon, delta), users, calibration="theorem", shuffled=True
        )
        assert points.ldp() == pytest.approx(true, rel=5e-3)
        assert claim_condition(points).holds == (points.exact() <= epsilon)
    # With 10 000 users, the theorem's noise exceeds its budget if the constant in O is 1.
    assert points.exact() == points.amplified() < points.ldp()
    assert points.exact() == pytest.approx(2.12 * 0.02, rel=0.01)


@pytest.mark.parametrize(
    ("through_shuffler", "system", "truth"),
    [
        (False, "linucb-ldp", {0.2: 0.140, 1.0: 3.59, 10.0: 210.0}),
        (True, "linucb-sdp-amp", {0.2: 1.70, 1.0: 26.4, 10.0: 2000.0}),
    ],
)
def test_published_noise_and_its_true_epsilon(
    through_shuffler: bool, system: str, truth: dict[float, float]
) -> None:
    for epsilon, true in truth.items():
        points = calibrate_local_gaussian(
            Budget(epsilon, 0.1), 20, calibration="published-code", shuffled=through_shuffler
        )
        s = published(system, T=20_000, d=5, epsilon=epsilon, delta=0.1).noise_std
        assert points.layout == "goe1"
        assert points.stds == pytest.approx((s / math.sqrt(2), s / 2 / math.sqrt(2), s / 2))
        # Published instances change by less than sqrt(12.5), the worst points of norm sqrt(2).
        assert points.mu() == pytest.approx(math.sqrt(12.5) / s, rel=1e-12)
        published_epsilon = epsilon_of(published_sensitivity("goe1") / s, 0.1)
        if true < 2000:
            assert published_epsilon == pytest.approx(true, rel=5e-3)
        else:
            assert published_epsilon > true
        assert published_epsilon < points.exact() < 1.08 * published_epsilon
        assert points.exact() == points.ldp()
        text = claim_condition(points).text
        assert "no theorem states these constants" in text
        assert ("Lemma B.4's condition at the local epsilon" in text) == through_shuffler
        assert text.endswith("= -1.08, fails)") == through_shuffler
        assert claim_condition(points).holds == (not through_shuffler and epsilon == 0.2)


def test_noise_of_the_figures_with_exact_noise() -> None:
    for epsilon, std in ((0.2, 32.6), (1.0, 7.46), (10.0, 1.00)):
        points = calibrate_local_gaussian(Budget(epsilon, 1e-5), 20)
        assert points.noise_std == pytest.approx(std, rel=5e-3)
        assert points.layout == "goe2"


# ---- guarantees under other trust models ---------------------------------------------------------


def test_guarantees_under_other_trust_models() -> None:
    budget = Budget(0.02, 1e-3)
    shuffled_mechanism = calibrate_local_gaussian(budget, 10_000, shuffled=True)
    ((model, source, epsilon, conditions),) = shuffled_mechanism.sides()
    assert conditions == ()
    assert model == "local: nobody but the user is trusted"
    assert "Remark 3.4" in source
    assert epsilon == shuffled_mechanism.ldp() > 2.5 * shuffled_mechanism.exact()
    local_mechanism = calibrate_local_gaussian(budget, 10_000)
    ((model, source, epsilon, conditions),) = local_mechanism.sides()
    assert ["noisy message" in condition.text for condition in conditions] == [True]
    assert model == "shuffle: with a trusted shuffler of each batch in between"
    assert "Corollary B.3" in source
    assert epsilon == local_mechanism.amplified() < 0.5 * local_mechanism.ldp()
    for users in (1, 20, 1000):
        assert calibrate_local_gaussian(budget, users).sides() == []


def test_amplified_epsilon_is_below_every_split_of_the_lemma() -> None:
    """Check Corollary B.3 for several splits of the local guarantee."""
    points = calibrate_local_gaussian(Budget(1.0, 1e-5), 10**5, layout="iid")
    mu = joint_sensitivity("iid") / points.noise_std
    for e0 in (1.1, 1.3, 1.5):
        epsilon, delta = shuffled_budget(e0, gaussian_delta(e0, mu), 10**5, 1e-6)
        assert shuffling_condition(e0, 10**5, 1e-6)
        assert points.amplified(delta) < epsilon


# ---- errors --------------------------------------------------------------------------------------

BUDGET = Budget(1.0, 1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_local_gaussian(Budget(1, 0), 20), "delta must be > 0 and < 1, got 0.0"),
        (lambda: calibrate_local_gaussian(Budget(1, 0.1, unit="silo"), 20), "unit must be one of"),
        (lambda: calibrate_local_gaussian(BUDGET, 0), "batch_size must be an integer >= 1, got 0"),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, returning=0),
            "returning must be an integer >= 1",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, batches=-1),
            "batches must be an integer >= 0",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, shuffled=1),  # type: ignore[arg-type]
            "shuffled must be true or false, got 1",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, calibration="tight"),
            "calibration must be one of",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, calibration="published-code", returning=2),
            'returning must be 1 when calibration is "published-code", got 2',
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20, calibration="theorem", layout="goe2"),
            'layout must be "iid" when calibration is "theorem", got "goe2"',
        ),
        (
            lambda: calibrate_local_gaussian(
                BUDGET, 20, calibration="theorem", covariance_ratio=0.5
            ),
            "covariance_ratio must be 1",
        ),
        (
            lambda: calibrate_local_gaussian(
                BUDGET, 20, calibration="published-code", covariance_ratio=0.7
            ),
            "covariance_ratio must be 1",
        ),
        (
            lambda: with_scaled_noise(calibrate_local_gaussian(BUDGET, 20), 0.0),
            "noise_std must be > 0, got 0.0",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20).exact(relation="add"),
            "relation must be one of",
        ),
        (
            lambda: calibrate_local_gaussian(BUDGET, 20).amplified(relation="x"),
            "relation must be one of",
        ),
        (lambda: shuffled(-1.0, 0.1, 20, 0.5), "epsilon0 must be >= 0, got -1.0"),
        (lambda: shuffled(1.0, 0.1, 20, 0.0), "inner_delta must be > 0 and <= 1, got 0.0"),
        (lambda: shuffled(1.0, 0.1, 0, 0.5), "users must be an integer >= 1, got 0"),
    ],
)
def test_errors_name_the_bad_argument(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)
