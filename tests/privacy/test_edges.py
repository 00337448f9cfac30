"""Tests of inequalities at their limits: bounds times 1 +- 10^-6 and decisions near ties.

A slightly wrong account, ledger, cap, deadline or rounding gives correct results far from its
limit. Each test here fails if its inequality is moved.
"""

from __future__ import annotations

import hashlib
import math
import ssl
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from scipy import stats
from test_account import CASES, _private, brute_joint
from test_deployment_network import certificates
from test_drivers import assert_same_bits, experiment, outcomes_of_both_drivers
from test_exact import Stream
from test_own_rounds import system

import fastfed
from fastfed import InputError
from fastfed._sampling import ERROR, Laplaces, Normals
from fastfed.bandits.problem import ProblemSpec
from fastfed.deployment.guard import EXCEEDS_CAP_PROBABILITY, Alarm, Cap, check_records
from fastfed.deployment.ledger import Charge, Ledger, OverBudget, epsilon_of_charges
from fastfed.deployment.shell import Dialer, listening
from fastfed.deployment.store import Conflict, MemoryStore, SqliteStore, Store, Write, chained
from fastfed.deployment.wire import Refused
from fastfed.environments import FixedSet, RewardDistribution
from fastfed.privacy import exact
from fastfed.privacy.account import GaussianSums, event_epsilon, recovered_layout, sealed
from fastfed.privacy.accounting import binomial
from fastfed.privacy.accounting.gdp import (
    delta_of,
    delta_of_rho,
    epsilon_of,
    epsilon_of_rho,
    gaussian_epsilon,
    mu_of,
    sampled_delta,
)
from fastfed.privacy.mechanisms.secure_sum import _Account
from fastfed.privacy.releases.gaussian_release import calibrate_privatizer
from fastfed.privacy.sensitivity import Budget, joint_sensitivity, stds_of_layout
from fastfed.protocols.account import bounds
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.release import fixed_point
from fastfed.protocols.schedule import PRIVATE_DETERMINANT, Clock, Trigger
from fastfed.simulation.systems import ALGORITHMS

CLOSE = 1e-6

# ---- accounts ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:epsilon is 0, because delta")
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-9, 1e-3, 0.3])
def test_epsilon_is_rounded_up(delta: float) -> None:
    """Check that the reported epsilon satisfies delta and that a slightly smaller epsilon does
    not."""
    for mu in np.geomspace(1e-3, 60.0, 80).tolist():
        epsilon = epsilon_of(mu, delta)
        assert delta_of(epsilon, mu) <= delta, (mu, delta)
        if epsilon > 0.0:
            assert delta_of(epsilon * (1.0 - CLOSE), mu) > delta, (mu, delta)
        rho = epsilon_of_rho(mu * mu / 2.0, delta)
        assert delta_of_rho(rho, mu * mu / 2.0) <= delta
        if rho > 0.0:
            assert delta_of_rho(rho * (1.0 - CLOSE), mu * mu / 2.0) > delta
        smallest_mu = mu_of(mu, delta)
        assert delta_of(mu, smallest_mu) <= delta < delta_of(mu, smallest_mu * (1.0 + CLOSE))


@pytest.mark.parametrize("off_diagonal", [1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.2, math.sqrt(2.0), 1.5, 4.0])
@pytest.mark.parametrize("factor", [1.0 - CLOSE, 1.0, 1.0 + CLOSE])
def test_noise_between_layouts_is_accounted_as_the_weaker_layout(
    off_diagonal: float, ratio: float, factor: float
) -> None:
    """Check that two standard deviations that fit no layout are never overestimated."""
    diagonal = off_diagonal * ratio * factor
    layout, std = recovered_layout(off_diagonal, diagonal)
    weaker = (std, std) if layout == "iid" else (std, std * math.sqrt(2.0))
    assert weaker[0] <= off_diagonal * (1.0 + 1e-11) and weaker[1] <= diagonal * (1.0 + 1e-11)
    for relation in ("replace", "zero-out"):
        budget = Budget(1.0, 1e-3, relation)
        event = GaussianSums(
            budget=budget, release="flat", releases=1, stds=(2.0, off_diagonal, diagonal)
        )
        true_epsilon = gaussian_epsilon(brute_joint((2.0, off_diagonal, diagonal), relation), 1e-3)
        assert event_epsilon(event) >= true_epsilon * (1.0 - 1e-9)


@pytest.mark.parametrize("layout", ["iid", "goe2"])
@pytest.mark.parametrize("share", [0.5, 1.0 - CLOSE, 1.0, 1.0 + CLOSE, 2.0])
def test_amplification_lemma_uses_the_smaller_noise(layout: str, share: float) -> None:
    """Check that with less noise on x x' than on x y, both count as having the smaller noise."""
    plan = CASES["shuffle-amplified by the lemma"].make().plan
    bias, root = plan.noise_std.bias, 1.0 if layout == "iid" else math.sqrt(2.0)

    def account(bias_std: float, gram_std: float) -> float:
        """Return the exact epsilon for these standard deviations."""
        off_std, diagonal_std = stds_of_layout(layout, gram_std / root)
        actual = sealed(replace(plan, noise_std=NoiseStd(bias_std, off_std, diagonal_std)))
        return actual.privacy.exact[0]

    expected_epsilon = account(min(1.0, share) * bias, share * bias)
    assert account(bias, share * bias) == pytest.approx(expected_epsilon, rel=1e-9)
    if share < 1.0:
        assert expected_epsilon > account(bias, bias)


@pytest.mark.parametrize(("releases", "uses", "squares"), [(7, 1, 1), (7, 3, 3), (3, 7, 3)])
def test_a_user_counts_in_each_of_their_batches(releases: int, uses: int, squares: int) -> None:
    """Check that noise of single batches counts min(participations, releases) batches."""
    budget = Budget(1.0, 1e-3)
    event = GaussianSums(budget=budget, release="flat", releases=releases, stds=(2.0, 2.0, 2.0),
                         max_participations=uses)  # fmt: skip
    assert event.squares == squares
    assert event.mu() == pytest.approx(math.sqrt(squares) * brute_joint((2.0,) * 3, "replace"))
    tree_event = GaussianSums(
        budget=budget, release="tree", releases=releases, stds=(2.0, 2.0, 2.0)
    )
    assert tree_event.squares == releases.bit_length()


@pytest.mark.parametrize("coins", [40, 60, 400, 10**5, 10**9])
def test_account_of_a_secure_sum_divides_delta_between_tails_and_gaussian(coins: int) -> None:
    """Check that the account takes the least epsilon of all ways to divide delta.

    One part of delta is for the tails, and the rest for the Gaussian part.
    """
    for count in (1, 28):
        account = _Account("replace", 1.0, 1, count, 2, (1.0, 1.0), 1.0)
        for delta in (1e-9, 1e-3, 0.05):
            epsilons = [math.inf]
            for share in binomial.TAIL_SHARES:
                tail_delta = delta * share
                std = binomial.std_of_coins(coins, 1, -math.expm1(math.log1p(-tail_delta) / count))
                if std > 0.0:
                    # Outside the tails the noise is Gaussian, and (delta - tail_delta) / (1 -
                    # tail_delta) remains.
                    mu = joint_sensitivity("replace", "iid", 2, std, std)
                    epsilons.append(gaussian_epsilon(mu, (delta - tail_delta) / (1.0 - tail_delta)))
            assert account.epsilon((coins,) * 3, delta) == pytest.approx(min(epsilons), rel=1e-9)


@pytest.mark.parametrize("coins", [40, 400, 10**5, 10**9, 10**18])
def test_std_of_coins_equals_the_lemma(coins: int) -> None:
    """Compare with sqrt(n)/2 - sqrt(ln(1/tail)/2) - V/sqrt(n), rounded down by at most three
    units."""
    root = math.sqrt(coins)
    for tail in (1e-300, 1e-30, 1e-6, 1e-2, 0.4):
        for reach in (0, 1, 5, coins // 8):
            lemma = root / 2.0 - math.sqrt(math.log(1.0 / tail) / 2.0) - reach / root
            std = binomial.std_of_coins(coins, reach, tail)
            assert max(0.0, lemma - 3.0 / root) * (1.0 - 1e-9) <= std <= max(0.0, lemma)


@pytest.mark.parametrize("coins", [40, 42, 100, 400])
def test_lemma_holds_for_few_coins(coins: int) -> None:
    """Compare the exact privacy profile of Bin(n, 1/2) with a Gaussian profile plus the tail."""
    ones = np.arange(coins + 1)
    mass = stats.binom.pmf(ones, coins, 0.5)
    for shift in (1, 2):
        shifted_mass = np.concatenate([np.zeros(shift), mass])
        padded_mass = np.concatenate([mass, np.zeros(shift)])
        for tail in (1e-6, 1e-4, 1e-2, 0.1):
            std = binomial.std_of_coins(coins, shift, tail)
            if not std:
                continue
            for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
                true_delta = max(
                    np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
                    for p, q in ((padded_mass, shifted_mass), (shifted_mass, padded_mass))
                )
                assert true_delta <= tail + (1.0 - tail) * delta_of(epsilon, shift / std) + 1e-15


@pytest.mark.parametrize("side", ["low", "high"])
def test_rewards_that_may_leave_their_bounds_are_not_proven(side: str) -> None:
    """Check that, without clipping, the account needs rewards in [-1, 1] on both sides."""
    for limit, status in ((1.0, "proven"), (1.0 + CLOSE, "unproven")):
        low, high = (-limit, 1.0) if side == "low" else (-1.0, limit)
        problem = ProblemSpec(silos=3, horizon=35, dimension=3, reward_range=(low, high))
        keys = {"epsilon": 1.0, "delta": 1e-3, "batch_size": 5, "clip": False}
        system = ALGORITHMS.choose("private-fedlinucb").make(keys, problem)
        assert system.plan.clip is None and system.certificate.status == status


# ---- the ledger ----------------------------------------------------------------------------------


def charge(release: int, mu: float, failure: float = 0.0, pure: float = 0.0) -> Charge:
    """Return a charge to data set "d" of plan "plan"."""
    return Charge("d", b"plan", release, mu * mu, failure, b"", pure)


@pytest.mark.parametrize("delta", [1e-9, 1e-3])
@pytest.mark.parametrize(("failure", "pure"), [(0.0, 0.0), (1e-10, 0.0), (0.0, 0.7)])
def test_the_ledger_stops_at_its_ceiling(delta: float, failure: float, pure: float) -> None:
    """Check that spending up to the ceiling is allowed and 10^-6 more is refused."""
    charges = [charge(1, 0.3, failure, pure), charge(2, 0.4, failure, pure)]
    spent = epsilon_of_charges(charges, delta)
    for factor, allowed in ((1.0 + CLOSE, True), (1.0, True), (1.0 - CLOSE, False)):
        ledger = Ledger(":memory:")
        ledger.set_ceiling("d", spent * factor, delta)
        ledger.charge(charges[0])
        assert ledger.allows(charges[1]) == allowed
        if allowed:
            ledger.charge(charges[1])
        else:
            with pytest.raises(OverBudget):
                ledger.charge(charges[1])
            assert ledger.charges("d") == charges[:1]


def test_a_ceiling_cannot_be_set_below_the_spent_budget() -> None:
    """Set the ceiling slightly above and slightly below the spent epsilon."""
    ledger = Ledger(":memory:")
    ledger.set_ceiling("d", 5.0, 1e-6)
    ledger.charge(charge(1, 0.5))
    spent = ledger.epsilon("d")
    with pytest.raises(InputError, match="what was spent"):
        ledger.set_ceiling("d", spent * (1.0 - CLOSE), 1e-6)
    ledger.set_ceiling("d", spent * (1.0 + CLOSE), 1e-6)
    assert not ledger.allows(charge(2, 0.01)) and ledger.allows(charge(1, 9.0))


def test_charges_compose_as_gaussian_mechanisms() -> None:
    """Check three rules.

    Squares of mu add up. Deltas of tails are subtracted from delta. Pure charges are added to
    epsilon where this is smaller.
    """
    for delta in (1e-12, 1e-6, 1e-2):
        mus, tail_delta = [0.1, 0.5, 0.25], delta / 7.0
        expected = gaussian_epsilon(math.hypot(*mus), delta - 3.0 * tail_delta)
        composed = epsilon_of_charges(
            [charge(k, mu, tail_delta) for k, mu in enumerate(mus)], delta
        )
        assert expected <= composed <= expected * (1.0 + 1e-9)
        assert epsilon_of_charges([charge(1, 0.5, delta)], delta) == math.inf
        with_pure_charge = epsilon_of_charges([charge(1, 0.5), charge(2, 9.0, pure=0.01)], delta)
        expected_with_pure = 0.01 + gaussian_epsilon(0.5, delta)
        assert expected_with_pure <= with_pure_charge <= expected_with_pure * (1.0 + 1e-9)
    assert epsilon_of_charges([charge(1, 0.0)], 1e-6) == 0.0


def test_the_hash_chain_has_its_documented_format() -> None:
    """Compare with SHA-256 of the previous hash and of each part after its length in 8 bytes."""
    write = Write("kind", "key", b"value")
    parts = (b"kind", b"key", b"value")
    text = bytes(32) + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert chained(bytes(32), write) == hashlib.sha256(text).digest()


@pytest.mark.parametrize("make_store", [MemoryStore, lambda: SqliteStore(":memory:")])
def test_a_key_of_the_store_has_one_value(make_store: Callable[[], Store]) -> None:
    """Check that repeating a write changes nothing and that a different value is refused."""
    store, write = make_store(), Write("kind", "key", b"1")
    assert store.write(write) and not store.write(write)
    with pytest.raises(Conflict, match="kind key is already stored with different content"):
        store.write(Write("kind", "key", b"2"))
    assert store.write(Write("kind", "other", b"2")) and store.write(Write("another", "key", b"2"))
    assert [each_write.value for each_write in store.writes()] == [b"1", b"2", b"2"]


def test_account_of_a_coin_refuses_parameters_out_of_range() -> None:
    """Check p in (0, 1] and zeta >= 1/2, as in the proof."""
    assert sampled_delta(1.0, 1.0, 0.5, 1.0) == pytest.approx(delta_of(1.0, 1.0), rel=1e-9)
    for p, zeta in ((0.0, 0.5), (1.0 + CLOSE, 0.5), (0.5, 0.5 * (1.0 - CLOSE))):
        with pytest.raises(InputError):
            sampled_delta(1.0, p, zeta, 1.0)


def test_a_schedule_without_a_release_needs_no_noise() -> None:
    """Check that zero releases have noise 0, and that one release uses the whole budget."""
    budget = Budget(1.0, 1e-3)
    assert calibrate_privatizer(budget, 0).noise_std == 0.0
    one_release = calibrate_privatizer(budget, 1)
    assert one_release.exact() == pytest.approx(1.0, rel=CLOSE) and one_release.exact() <= 1.0


# ---- decisions near ties -------------------------------------------------------------------------


def laplace_300_bits(draws: Laplaces, index: int) -> Fraction:
    """Return the draw with 300 bits."""
    return sum(draws.interval(index, 300)) / 2


def test_least_decides_constructed_ties_exactly() -> None:
    """Use scores whose noisy values are equal in float64; the exact real numbers must decide."""
    float64_errors = 0
    for seed in range(200):
        draws = Laplaces(6, Stream(seed))
        for scale in (0.3, 1.0, 7.5):
            values = 5.0 - scale * draws.values
            exact_scores = [
                Fraction(float(value)) + Fraction(scale) * laplace_300_bits(draws, j)
                for j, value in enumerate(values)
            ]
            best = min(range(6), key=exact_scores.__getitem__)
            assert exact.least(values, scale, draws) == best
            float64_errors += int((values + scale * draws.values).argmin()) != best
    assert float64_errors > 100, "float64 decides these, so they are no ties"


def test_above_decides_constructed_ties_exactly() -> None:
    """Use a query that differs from the threshold by less than float64 can show."""
    float64_errors = 0
    for seed in range(300):
        query_noise, threshold_noise = (
            Laplaces(1, Stream(2 * seed)),
            Laplaces(1, Stream(2 * seed + 1)),
        )
        scale, threshold_scale, limit = 2.0, 0.7, 11.0
        noise_difference = scale * float(query_noise.values[0]) - threshold_scale * float(
            threshold_noise.values[0]
        )
        value = limit - noise_difference
        exact_difference = (
            Fraction(value) - Fraction(limit) + Fraction(scale) * laplace_300_bits(query_noise, 0)
        )
        exact_difference -= Fraction(threshold_scale) * laplace_300_bits(threshold_noise, 0)
        assert exact.above(value, scale, query_noise, limit, threshold_scale, threshold_noise) == (
            exact_difference > 0
        )
        float64_difference = (
            value
            - limit
            + scale * query_noise.values[0]
            - threshold_scale * threshold_noise.values[0]
        )
        float64_errors += (float64_difference > 0.0) != (exact_difference > 0)
    assert float64_errors > 30, "float64 decides these, so they are no ties"


class NearNormals(Normals):
    """Normals of shape (n,) that differ from their float64 values by ``off``, less than
    ``ERROR``."""

    def __init__(self, values: np.ndarray, off: float) -> None:
        self.values, self._off = values, Fraction(off)

    def interval(self, index: int, bits: int) -> tuple[Fraction, Fraction]:
        """Return the exact draw."""
        exact_draw = Fraction(float(self.values[index])) + self._off
        return exact_draw, exact_draw


class GivenTriggerNoise:
    """A noise source whose trigger noise is given, round by round."""

    def __init__(self, draws: list[NearNormals]) -> None:
        self._draws = draws

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> NearNormals:
        """Return the noise of a round."""
        return self._draws[round - 1]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_noise_of_the_private_schedule_is_rounded_exactly(
    rounds: int, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use noise halfway between two grid points, up to a difference that float64 does not show."""
    monkeypatch.setattr("fastfed.protocols.schedule.is_exact", lambda source: True)
    # For std 1 the grid step is 2^-14. The sum of the nodes' float64 values is slightly on one side
    # of the midpoint of two grid points. The exact noise is on the other side, within `ERROR`.
    float64_value = 2.0**-15 / rounds.bit_count() - sign * 0.4 * ERROR
    draws = [NearNormals(np.array([float64_value]), sign * 0.9 * ERROR) for _ in range(rounds)]
    clock = Clock(
        Trigger(PRIVATE_DETERMINANT, 1.0, std=(1.0, 1.0)),
        1,
        8,
        0,
        GivenTriggerNoise(draws),
        (1.0, 1.0),
    )
    clock.restart(np.ones((1, 1)), np.zeros(2), 1.0)
    for round in range(1, rounds):
        clock._rounds += 1
        clock._noisy_sum(draws[round - 1])
    clock._rounds += 1
    rounded_noise = clock._noisy_sum(draws[rounds - 1])[1]
    assert rounded_noise == (2.0**-14 if sign > 0 else 0.0)


# ---- the cap on reports, checks of raw sums, the alarm -------------------------------------------


@pytest.mark.parametrize("layout", ["goe1", "goe2", "iid"])
def test_the_cap_rarely_clips_noise(layout: str) -> None:
    """Check with chi distributions that noise alone exceeds each bound with probability BEYOND / 2
    at most."""
    plan = _private("silo-ldp", layout=layout, clip=True).make().plan
    d, matrix_entries = plan.dimension, plan.statistic_size - plan.dimension
    for release in range(1, plan.releases + 1):
        noise_bounds, all_bounds = (
            Cap(plan, 1e-12).bounds(release, 0),
            Cap(plan, 1.0).bounds(release, 0),
        )
        assert (
            stats.chi.sf(noise_bounds[0] / plan.noise_std.bias, d) <= EXCEEDS_CAP_PROBABILITY / 2.0
        )
        # Off-diagonal entries count twice in the norm; this is the largest standard deviation of a
        # term.
        largest_std = max(plan.noise_std.diagonal, math.sqrt(2.0) * plan.noise_std.off_diagonal)
        assert (
            stats.chi.sf(noise_bounds[1] / largest_std, matrix_entries)
            <= EXCEEDS_CAP_PROBABILITY / 2.0
        )
        records = plan.end(release) - plan.end(release & (release - 1))
        feature, reward = bounds(plan)
        assert all_bounds[0] - noise_bounds[0] == pytest.approx(records * feature * reward)
        assert all_bounds[1] - noise_bounds[1] == pytest.approx(records * feature**2)


def test_a_report_is_scaled_only_beyond_its_bound() -> None:
    """Use norms of the bound times 1 - 10^-6 and 1 + 10^-6."""
    plan = _private("silo-ldp", clip=True).make().plan
    d, cap = plan.dimension, Cap(plan, 0.5)
    first, second = cap.bounds(2, 0)
    for factor, scaled in ((1.0 - CLOSE, False), (1.0 + CLOSE, True)):
        values = np.zeros(plan.statistic_size)
        values[0] = factor * first
        assert cap.cap_report(values, 2, 0)[1] == scaled
        values[0], values[d + 1] = 0.0, factor * second / math.sqrt(2.0)
        assert cap.cap_report(values, 2, 0)[1] == scaled


def test_raw_sums_cannot_exceed_the_number_of_records() -> None:
    """Check that a trace of n records is accepted and slightly more refused, and likewise for sums
    of x y."""
    plan = _private("central", clip=True).make().plan
    unit, record_count = fixed_point(plan)[0], plan.end(2)
    d = plan.dimension

    def raw_sums(gram: float, bias: float) -> np.ndarray:
        """Return a statistic with these two entries, rounded to the grid."""
        values = np.zeros(plan.statistic_size)
        values[d], values[0] = gram, bias
        return np.round(values / unit) * unit

    check_records(plan, raw_sums(record_count, record_count), 2, "it")
    for gram, bias in (
        (record_count * (1.0 + CLOSE), record_count),
        (record_count, record_count * (1.0 + CLOSE)),
        (0.25 * record_count, 0.5 * record_count * (1.0 + CLOSE)),
    ):
        with pytest.raises(Refused, match="more of x"):
            check_records(plan, raw_sums(gram, bias), 2, "it")
    check_records(plan, raw_sums(0.25 * record_count, 0.5 * record_count * (1.0 - CLOSE)), 2, "it")


def test_alarm_threshold_has_its_false_alarm_probability() -> None:
    """Check the threshold for a sum of 2 d squares at the probability of each test."""
    plan = _private("silo-ldp", clip=True).make().plan
    alarm = Alarm(plan, 1e-3)
    false_alarm_probability = 1e-3 / (plan.silos * plan.releases)
    assert stats.chi2.sf(alarm.threshold, 2 * plan.dimension) <= false_alarm_probability
    log_inverse = math.log(1.0 / false_alarm_probability)
    numbers = 2 * plan.dimension
    expected = numbers + 2.0 * math.sqrt(numbers * log_inverse) + 2.0 * log_inverse
    assert alarm.threshold == pytest.approx(expected, rel=CLOSE)


def test_alarm_score_is_weighted_least_squares() -> None:
    """Compare the score with weighted least squares of the silo and the rest, by normal
    equations."""
    plan, rng = _private("silo-ldp", clip=True).make().plan, np.random.default_rng(1)
    d, std = plan.dimension, plan.noise_std
    sums = {i: rng.normal(size=plan.statistic_size) for i in range(plan.silos)}
    matrix_noise = max(std.diagonal**2, 2.0 * std.off_diagonal**2) * plan.radius.tau**2
    noise = std.bias**2 + matrix_noise
    for fit in Alarm(plan).fits(1, {1: sums}):
        other_silos = sum(values_of_silo for i, values_of_silo in sums.items() if i != fit.silo)
        normal_matrix, normal_vector, sum_of_squares = np.zeros((d, d)), np.zeros(d), 0.0
        for values, silos in ((sums[fit.silo], 1), (other_silos, plan.silos - 1)):
            gram = np.zeros((d, d))
            gram[np.tril_indices(d)] = values[d:]
            gram += np.tril(gram, -1).T
            # Clipped rewards are in [0, 1], so each row has a variance proxy of 1/4. The number of
            # rows is that of the batch, or the number that the trace shows if more people came.
            row_count = np.trace(gram) + 8.0 * math.sqrt(d * silos) * std.diagonal
            variance = 0.25 * max(silos * plan.end(1), row_count) + silos * noise
            normal_matrix += gram.T @ gram / variance
            normal_vector += gram.T @ values[:d] / variance
            sum_of_squares += values[:d] @ values[:d] / variance
        expected = sum_of_squares - normal_vector @ np.linalg.solve(normal_matrix, normal_vector)
        assert fit.score == pytest.approx(expected, rel=CLOSE)


# ---- screening -----------------------------------------------------------------------------------


#: Dimension, actions, regularizer and radius multiplier of problems whose scores nearly tie.
CLOSE_RACES = [
    (2, 58, 0.368, 0.021), (2, 58, 0.018, 0.0201), (2, 59, 0.443, 0.0149),
    (2, 61, 1.034, 0.146), (4, 33, 0.0418, 0.273), (5, 31, 3.31, 0.0405), (5, 49, 0.0528, 0.0172),
]  # fmt: skip


@pytest.mark.parametrize(("d", "actions", "regularizer", "multiplier"), CLOSE_RACES)
def test_cached_candidates_are_dropped_in_time(
    d: int, actions: int, regularizer: float, multiplier: float
) -> None:
    """Check that both drivers choose the same actions, though the bound on other scores grows with
    each row."""
    sizes = {"silos": 2, "horizon": 400, "batch_size": 400, "lazy": False, "protocol": "none"}
    keys = {"regularizer": regularizer, "radius_multiplier": multiplier}
    for reward in (RewardDistribution("bernoulli"), RewardDistribution("gaussian", 0.5)):
        environment = FixedSet(dimension=d, actions=actions, reward=reward)
        (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
            experiment(environment, sizes, **keys)
        )
        assert_same_bits(compiled_outcome, step_outcome)


# ---- deadlines -----------------------------------------------------------------------------------


def test_a_reward_at_its_deadline_is_in_time() -> None:
    """Check that the deadline itself counts and the next float64 after it does not."""
    for steps_late, reason in ((0, ""), (1, "late")):
        small_federation = federation.Federation(federation.deployed())
        calendar = small_federation.plan.document.calendar
        silo = small_federation.processes["silo0"]
        small_federation.now = calendar.start + 1.0
        name = silo.decide(federation.ROWS).id
        small_federation.now += calendar.reward_deadline
        for _ in range(steps_late):
            small_federation.now = math.nextafter(small_federation.now, math.inf)
        silo.reward(name, 0.5)
        assert silo.party.ended[name].why == reason


def test_a_set_is_opened_at_the_end_of_the_grace_period() -> None:
    """Check that the set of two of three silos is not opened earlier."""
    for early, opened in ((True, False), (False, True)):
        small_federation = federation.Federation(federation.deployed())
        absent_silo = small_federation.processes.pop("silo2")
        absent_silo.tick()
        small_federation.settle()
        hub = small_federation.processes["hub"].party
        small_federation.now = (
            hub.deployed.document.calendar.start + 1e5
        )  # silos have had time to report
        hub_settled = hub._silos_could_join(small_federation.now)
        assert hub_settled
        close = small_federation.plan.document.calendar.closes[0]
        federation.served(small_federation, 1, ["silo0", "silo1"])
        small_federation.settle()
        end_of_grace = close + federation.GRACE
        small_federation.now = math.nextafter(end_of_grace, 0.0) if early else end_of_grace
        step = hub._open_next_set(1, small_federation.now)
        assert bool(step.writes) == opened


def test_a_period_ends_at_its_close() -> None:
    """Check that an event at the closing time belongs to the next leaf."""
    calendar = federation.deployed().document.calendar
    for number, close in enumerate(calendar.closes, start=1):
        assert calendar.period(math.nextafter(close, 0.0)) == number
        assert calendar.period(close) == number + 1
        assert calendar.closed(close) == number


# ---- who may do what -----------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"release": "tree"}])
def test_local_rounds_are_chosen_one_by_one(keys: dict[str, str]) -> None:
    """Check that no batch of choices is allowed, since the model changes with each user of the
    silo."""
    plan = system(**keys).plan
    assert plan.lazy and plan.trigger is None and plan.own is not None
    silo = fastfed.parties.Silo(plan, 0)
    with pytest.raises(InputError, match="select_many needs a model that changes with releases"):
        silo.select_many(np.eye(plan.dimension)[None])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """Return the TLS version of a handshake in memory; raise SSLError if it fails."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    endpoints = (
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = set(endpoints)
    for _ in range(10):
        for endpoint in endpoints:
            try:
                endpoint.do_handshake()
                waiting.discard(endpoint)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return endpoints[0].version()


def test_hub_and_silo_require_tls_1_3(tmp_path) -> None:
    """Check that a hub refuses clients with TLS 1.2 and a silo refuses such hubs."""
    pytest.importorskip("uvicorn")
    ca, cert, key = certificates(tmp_path)
    processes = federation.Federation(federation.deployed()).processes
    config = listening(processes["hub"], "127.0.0.1", 8443, cert, key)
    silo_context = Dialer(processes["silo0"], "https://127.0.0.1:8443", ca)._context
    hub_context = config.http.args[0].context
    assert hub_context is not None and silo_context is not None
    assert handshake(hub_context, silo_context) == "TLSv1.3"
    old_client = ssl.create_default_context(cafile=ca)
    old_client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(hub_context, old_client)
    weak_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    weak_server.load_cert_chain(cert, key)
    assert handshake(weak_server, silo_context) == "TLSv1.3"
    weak_server.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(weak_server, old_client) == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        handshake(weak_server, silo_context)
