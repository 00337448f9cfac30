"""Inequalities at their edge: bounds times 1 +- 10^-6, and decisions that are made near ties.

An account, a ledger, a cap, a deadline or a rounding that is wrong by a little is right far from
its edge. Each test here fails where its inequality is moved.
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
from test_drivers import both, experiment, same
from test_exact import Stream
from test_own_rounds import system

import fastfed
from fastfed import InputError
from fastfed._kernels import linalg
from fastfed._sampling import ERROR, Laplaces, Normals
from fastfed.bandits.problem import ProblemSpec
from fastfed.deployment.guard import BEYOND, Alarm, Cap, check_records
from fastfed.deployment.ledger import (
    Charge,
    Conflict,
    Ledger,
    MemoryStore,
    OverBudget,
    SqliteStore,
    Store,
    Write,
    chained,
    together,
)
from fastfed.deployment.shell import Dialer, listening
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


@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-9, 1e-3, 0.3])
def test_epsilon_is_rounded_up(delta: float) -> None:
    """The delta of the epsilon that is stated is delta at most, and no epsilon is much smaller."""
    for mu in np.geomspace(1e-3, 60.0, 80).tolist():
        epsilon = epsilon_of(mu, delta)
        assert delta_of(epsilon, mu) <= delta, (mu, delta)
        if epsilon > 0.0:
            assert delta_of(epsilon * (1.0 - CLOSE), mu) > delta, (mu, delta)
        rho = epsilon_of_rho(mu * mu / 2.0, delta)
        assert delta_of_rho(rho, mu * mu / 2.0) <= delta
        if rho > 0.0:
            assert delta_of_rho(rho * (1.0 - CLOSE), mu * mu / 2.0) > delta
        least = mu_of(mu, delta)
        assert delta_of(mu, least) <= delta < delta_of(mu, least * (1.0 + CLOSE))


@pytest.mark.parametrize("off", [1.0, 3.0])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 1.2, math.sqrt(2.0), 1.5, 4.0])
@pytest.mark.parametrize("moved", [1.0 - CLOSE, 1.0, 1.0 + CLOSE])
def test_noise_of_no_layout_is_accounted_as_the_weaker_one(
    off: float, ratio: float, moved: float
) -> None:
    """Of two standard deviations that fit no layout the account takes neither for more than is."""
    on = off * ratio * moved
    layout, std = recovered_layout(off, on)
    weaker = (std, std) if layout == "iid" else (std, std * math.sqrt(2.0))
    assert weaker[0] <= off * (1.0 + 1e-11) and weaker[1] <= on * (1.0 + 1e-11)
    for relation in ("replace", "zero-out"):
        budget = Budget(1.0, 1e-3, relation)
        found = GaussianSums(budget=budget, release="flat", releases=1, stds=(2.0, off, on))
        true = gaussian_epsilon(brute_joint((2.0, off, on), relation), 1e-3)
        assert event_epsilon(found) >= true * (1.0 - 1e-9)


@pytest.mark.parametrize("layout", ["iid", "goe2"])
@pytest.mark.parametrize("share", [0.5, 1.0 - CLOSE, 1.0, 1.0 + CLOSE, 2.0])
def test_the_lemma_is_about_the_stream_of_less_noise(layout: str, share: float) -> None:
    """Where x x' has less noise than x y, for what a record moves, both count as having that."""
    plan = CASES["shuffle-amplified by the lemma"].make().plan
    bias, root = plan.noise_std.bias, 1.0 if layout == "iid" else math.sqrt(2.0)

    def account(first: float, second: float) -> float:
        off, on = stds_of_layout(layout, second / root)
        found = sealed(replace(plan, noise_std=NoiseStd(first, off, on)))
        return found.privacy.exact[0]

    same = account(min(1.0, share) * bias, share * bias)
    assert account(bias, share * bias) == pytest.approx(same, rel=1e-9)
    if share < 1.0:
        assert same > account(bias, bias)


@pytest.mark.parametrize(("releases", "uses", "squares"), [(7, 1, 1), (7, 3, 3), (3, 7, 3)])
def test_batches_of_one_user_are_counted_as_often_as_there_are(
    releases: int, uses: int, squares: int
) -> None:
    """Noise of single batches: a user is in as many as they take part in, and as there are."""
    budget = Budget(1.0, 1e-3)
    found = GaussianSums(budget=budget, release="flat", releases=releases, stds=(2.0, 2.0, 2.0),
                         max_participations=uses)  # fmt: skip
    assert found.squares == squares
    assert found.mu() == pytest.approx(math.sqrt(squares) * brute_joint((2.0,) * 3, "replace"))
    tree = GaussianSums(budget=budget, release="tree", releases=releases, stds=(2.0, 2.0, 2.0))
    assert tree.squares == releases.bit_length()


@pytest.mark.parametrize("coins", [40, 60, 400, 10**5, 10**9])
def test_a_secure_sum_pays_for_its_tails(coins: int) -> None:
    """Delta is what is told, and of what is left: no share of it counts twice."""
    for count in (1, 28):
        account = _Account("replace", 1.0, 1, count, 2, (1.0, 1.0), 1.0)
        for delta in (1e-9, 1e-3, 0.05):
            found = [math.inf]
            for share in binomial.TAIL_SHARES:
                told = delta * share
                std = binomial.effective_std(coins, 1, -math.expm1(math.log1p(-told) / count))
                if std > 0.0:
                    # Gaussian noise where nothing is told: (delta - told) / (1 - told) is left.
                    mu = joint_sensitivity("replace", "iid", 2, std, std)
                    found.append(gaussian_epsilon(mu, (delta - told) / (1.0 - told)))
            assert account.epsilon((coins,) * 3, delta) == pytest.approx(min(found), rel=1e-9)


@pytest.mark.parametrize("coins", [40, 400, 10**5, 10**9, 10**18])
def test_coins_are_as_good_as_the_lemma_says(coins: int) -> None:
    """sqrt(n)/2 - sqrt(ln(1/tail)/2) - V/sqrt(n), rounded down by at most three units."""
    root = math.sqrt(coins)
    for tail in (1e-300, 1e-30, 1e-6, 1e-2, 0.4):
        for reach in (0, 1, 5, coins // 8):
            lemma = root / 2.0 - math.sqrt(math.log(1.0 / tail) / 2.0) - reach / root
            found = binomial.std_of_coins(coins, reach, tail)
            assert max(0.0, lemma - 3.0 / root) * (1.0 - 1e-9) <= found <= max(0.0, lemma)


@pytest.mark.parametrize("coins", [40, 42, 100, 400])
def test_few_coins_hide_what_the_lemma_says(coins: int) -> None:
    """The privacy profile of Bin(n, 1/2), exactly: no more than a Gaussian's and the tail."""
    ones = np.arange(coins + 1)
    mass = stats.binom.pmf(ones, coins, 0.5)
    for shift in (1, 2):
        moved = np.concatenate([np.zeros(shift), mass])
        still = np.concatenate([mass, np.zeros(shift)])
        for tail in (1e-6, 1e-4, 1e-2, 0.1):
            std = binomial.std_of_coins(coins, shift, tail)
            if not std:
                continue
            for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
                true = max(
                    np.maximum(a - math.exp(epsilon) * b, 0.0).sum()
                    for a, b in ((still, moved), (moved, still))
                )
                assert true <= tail + (1.0 - tail) * delta_of(epsilon, shift / std) + 1e-15


@pytest.mark.parametrize("side", ["low", "high"])
def test_rewards_that_may_leave_their_bounds_are_not_proven(side: str) -> None:
    """Without clipping the account rests on rewards in [-1, 1], from below as from above."""
    for beyond, status in ((1.0, "proven"), (1.0 + CLOSE, "unproven")):
        low, high = (-beyond, 1.0) if side == "low" else (-1.0, beyond)
        problem = ProblemSpec(silos=3, horizon=35, dimension=3, reward_range=(low, high))
        keys = {"epsilon": 1.0, "delta": 1e-3, "batch_size": 5, "clip": False}
        system = ALGORITHMS.choose("private-fedlinucb").make(keys, problem)
        assert system.plan.clip is None and system.certificate.status == status


# ---- the ledger ----------------------------------------------------------------------------------


def charge(release: int, mu: float, told: float = 0.0, pure: float = 0.0) -> Charge:
    return Charge("d", b"plan", release, mu * mu, told, b"", pure)


@pytest.mark.parametrize("delta", [1e-9, 1e-3])
@pytest.mark.parametrize(("told", "pure"), [(0.0, 0.0), (1e-10, 0.0), (0.0, 0.7)])
def test_a_ceiling_is_where_it_is_set(delta: float, told: float, pure: float) -> None:
    """Spending the ceiling but for a millionth is allowed, a millionth more is not."""
    charges = [charge(1, 0.3, told, pure), charge(2, 0.4, told, pure)]
    spent = together(charges, delta)
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


def test_what_is_spent_cannot_be_forgotten() -> None:
    """A ceiling may be set to what is spent, and not to a millionth less."""
    ledger = Ledger(":memory:")
    ledger.set_ceiling("d", 5.0, 1e-6)
    ledger.charge(charge(1, 0.5))
    spent = ledger.epsilon("d")
    with pytest.raises(InputError, match="what was spent"):
        ledger.set_ceiling("d", spent * (1.0 - CLOSE), 1e-6)
    ledger.set_ceiling("d", spent * (1.0 + CLOSE), 1e-6)
    assert not ledger.allows(charge(2, 0.01)) and ledger.allows(charge(1, 9.0))


def test_charges_add_up_as_gaussians_do() -> None:
    """Squares add up; what is told is taken off delta; pure charges are added where it is less."""
    for delta in (1e-12, 1e-6, 1e-2):
        mus, told = [0.1, 0.5, 0.25], delta / 7.0
        whole = gaussian_epsilon(math.hypot(*mus), delta - 3.0 * told)
        found = together([charge(k, mu, told) for k, mu in enumerate(mus)], delta)
        assert whole <= found <= whole * (1.0 + 1e-9)
        assert together([charge(1, 0.5, delta)], delta) == math.inf
        one = together([charge(1, 0.5), charge(2, 9.0, pure=0.01)], delta)
        wanted = 0.01 + gaussian_epsilon(0.5, delta)
        assert wanted <= one <= wanted * (1.0 + 1e-9)
    assert together([charge(1, 0.0)], 1e-6) == 0.0


def test_the_chain_of_writes_is_what_stored_files_have() -> None:
    """SHA-256 of the one before, and of each part after its length in 8 bytes."""
    write = Write("kind", "key", b"value")
    parts = (b"kind", b"key", b"value")
    text = bytes(32) + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert chained(bytes(32), write) == hashlib.sha256(text).digest()


@pytest.mark.parametrize("make", [MemoryStore, lambda: SqliteStore(":memory:")])
def test_a_key_has_one_value(make: Callable[[], Store]) -> None:
    """The same write again changes nothing, another value under its key is refused."""
    store, write = make(), Write("kind", "key", b"1")
    assert store.write(write) and not store.write(write)
    with pytest.raises(Conflict, match="kind key is there with another content"):
        store.write(Write("kind", "key", b"2"))
    assert store.write(Write("kind", "other", b"2")) and store.write(Write("another", "key", b"2"))
    assert [one.value for one in store.writes()] == [b"1", b"2", b"2"]


def test_a_coin_has_an_account_in_its_range_alone() -> None:
    """p in (0, 1] and zeta from 1/2 on, as the proof has them."""
    assert sampled_delta(1.0, 1.0, 0.5, 1.0) == pytest.approx(delta_of(1.0, 1.0), rel=1e-9)
    for p, zeta in ((0.0, 0.5), (1.0 + CLOSE, 0.5), (0.5, 0.5 * (1.0 - CLOSE))):
        with pytest.raises(InputError):
            sampled_delta(1.0, p, zeta, 1.0)


def test_a_schedule_without_a_release_needs_no_noise() -> None:
    """No release costs nothing, one has the noise of one node."""
    budget = Budget(1.0, 1e-3)
    assert calibrate_privatizer(budget, 0).noise_std == 0.0
    one = calibrate_privatizer(budget, 1)
    assert one.exact() == pytest.approx(1.0, rel=CLOSE) and one.exact() <= 1.0


# ---- decisions near ties -------------------------------------------------------------------------


def laplace_between(draws: Laplaces, index: int) -> Fraction:
    """The draw, to 300 bits."""
    return sum(draws.interval(index, 300)) / 2


def test_the_least_score_of_made_ties() -> None:
    """Scores whose noisy values are equal in float64: the real numbers decide."""
    wrong = 0
    for seed in range(200):
        draws = Laplaces(6, Stream(seed))
        for scale in (0.3, 1.0, 7.5):
            values = 5.0 - scale * draws.values
            true = [
                Fraction(float(v)) + Fraction(scale) * laplace_between(draws, j)
                for j, v in enumerate(values)
            ]
            best = min(range(6), key=true.__getitem__)
            assert exact.least(values, scale, draws) == best
            wrong += int((values + scale * draws.values).argmin()) != best
    assert wrong > 100, "float64 decides these, so they are no ties"


def test_a_comparison_of_made_ties() -> None:
    """A query that is the threshold but for what float64 cannot tell."""
    wrong = 0
    for seed in range(300):
        mine, theirs = Laplaces(1, Stream(2 * seed)), Laplaces(1, Stream(2 * seed + 1))
        scale, other, limit = 2.0, 0.7, 11.0
        lead = scale * float(mine.values[0]) - other * float(theirs.values[0])
        value = limit - lead
        true = Fraction(value) - Fraction(limit) + Fraction(scale) * laplace_between(mine, 0)
        true -= Fraction(other) * laplace_between(theirs, 0)
        assert exact.above(value, scale, mine, limit, other, theirs) == (true > 0)
        about = value - limit + scale * mine.values[0] - other * theirs.values[0]
        wrong += (about > 0.0) != (true > 0)
    assert wrong > 30, "float64 decides these, so they are no ties"


class Near(Normals):
    """Normals (n,) that are ``off`` from their float64 values, by less than `ERROR`."""

    def __init__(self, values: np.ndarray, off: float) -> None:
        self.values, self._off = values, Fraction(off)

    def interval(self, index: int, bits: int) -> tuple[Fraction, Fraction]:
        """The draw itself."""
        true = Fraction(float(self.values[index])) + self._off
        return true, true


class Drawn:
    """A source of the system whose trigger noise is given, round by round."""

    def __init__(self, draws: list[Near]) -> None:
        self._draws = draws

    def ideal_trigger(self, silo: int, round: int, dimension: int) -> Near:
        """The noise of a round."""
        return self._draws[round - 1]


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_private_schedule_rounds_as_real_numbers_do(
    rounds: int, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise in the middle of two grid points, but for what its float64 value does not tell."""
    monkeypatch.setattr("fastfed.protocols.schedule.is_exact", lambda source: True)
    # Of std 1 the grid is 2^-14. The float64 values of all nodes are a little to one side of the
    # middle of two of its points, the noise is to the other, and within `ERROR` of them.
    half = 2.0**-15 / rounds.bit_count() - sign * 0.4 * ERROR
    draws = [Near(np.array([half]), sign * 0.9 * ERROR) for _ in range(rounds)]
    clock = Clock(
        Trigger(PRIVATE_DETERMINANT, 1.0, std=(1.0, 1.0)), 1, 8, 0, Drawn(draws), (1.0, 1.0)
    )
    clock.restart(np.ones((1, 1)), np.zeros(2), 1.0)
    for round in range(1, rounds):
        clock._rounds += 1
        clock._noisy_sum(draws[round - 1])
    clock._rounds += 1
    seen = clock._noisy_sum(draws[rounds - 1])[1]
    assert seen == (2.0**-14 if sign > 0 else 0.0)


# ---- the cap, the door, the alarm ----------------------------------------------------------------


@pytest.mark.parametrize("layout", ["goe1", "goe2", "iid"])
def test_the_cap_leaves_room_for_the_noise(layout: str) -> None:
    """Of noise alone, norms are within the bounds but for half of `BEYOND` each: by chi squares."""
    plan = _private("silo-ldp", layout=layout, clip=True).make().plan
    d, m = plan.dimension, plan.statistic_size - plan.dimension
    for release in range(1, plan.releases + 1):
        least, most = Cap(plan, 1e-12).bounds(release, 0), Cap(plan, 1.0).bounds(release, 0)
        assert stats.chi.sf(least[0] / plan.noise_std.bias, d) <= BEYOND / 2.0
        # Entries off the diagonal count twice: each has a standard deviation of this at most.
        own = max(plan.noise_std.diagonal, math.sqrt(2.0) * plan.noise_std.off_diagonal)
        assert stats.chi.sf(least[1] / own, m) <= BEYOND / 2.0
        records = plan.end(release) - plan.end(release & (release - 1))
        feature, reward = bounds(plan)
        assert most[0] - least[0] == pytest.approx(records * feature * reward)
        assert most[1] - least[1] == pytest.approx(records * feature**2)


def test_a_report_is_scaled_beyond_its_bound_alone() -> None:
    """Norms of the bound, times 1 - 10^-6 and 1 + 10^-6."""
    plan = _private("silo-ldp", clip=True).make().plan
    d, cap = plan.dimension, Cap(plan, 0.5)
    first, second = cap.bounds(2, 0)
    for factor, scaled in ((1.0 - CLOSE, False), (1.0 + CLOSE, True)):
        values = np.zeros(plan.statistic_size)
        values[0] = factor * first
        assert cap.held(values, 2, 0)[1] == scaled
        values[0], values[d + 1] = 0.0, factor * second / math.sqrt(2.0)
        assert cap.held(values, 2, 0)[1] == scaled


def test_raw_sums_of_as_many_records_as_there_are() -> None:
    """A trace of n records is taken, of a little more it is not; so are sums of x y."""
    plan = _private("central", clip=True).make().plan
    unit, most = fixed_point(plan)[0], plan.end(2)
    d = plan.dimension

    def sums(gram: float, bias: float) -> np.ndarray:
        values = np.zeros(plan.statistic_size)
        values[d], values[0] = gram, bias
        return np.round(values / unit) * unit

    check_records(plan, sums(most, most), 2, "it")
    for gram, bias in ((most * (1.0 + CLOSE), most), (most, most * (1.0 + CLOSE)),
                       (0.25 * most, 0.5 * most * (1.0 + CLOSE))):  # fmt: skip
        with pytest.raises(Refused, match="more of x"):
            check_records(plan, sums(gram, bias), 2, "it")
    check_records(plan, sums(0.25 * most, 0.5 * most * (1.0 - CLOSE)), 2, "it")


def test_an_alarm_is_beyond_its_threshold() -> None:
    """The score's bound is that of 2 d numbers, at the chance that is left to each test."""
    plan = _private("silo-ldp", clip=True).make().plan
    alarm = Alarm(plan, 1e-3)
    each = 1e-3 / (plan.silos * plan.releases)
    assert stats.chi2.sf(alarm.threshold, 2 * plan.dimension) <= each
    t = math.log(1.0 / each)
    numbers = 2 * plan.dimension
    wanted = numbers + 2.0 * math.sqrt(numbers * t) + 2.0 * t
    assert alarm.threshold == pytest.approx(wanted, rel=CLOSE)


def test_an_alarm_weighs_each_side_by_its_own_noise() -> None:
    """Of two sides of rows and noises of their own, the least squares, by normal equations."""
    plan, draw = _private("silo-ldp", clip=True).make().plan, np.random.default_rng(1)
    d, std = plan.dimension, plan.noise_std
    sums = {i: draw.normal(size=plan.statistic_size) for i in range(plan.silos)}
    hidden = max(std.diagonal**2, 2.0 * std.off_diagonal**2) * plan.radius.tau**2
    noise = std.bias**2 + hidden
    for fit in Alarm(plan).fits(1, {1: sums}):
        rest = sum(v for i, v in sums.items() if i != fit.silo)
        left, right, whole = np.zeros((d, d)), np.zeros(d), 0.0
        for values, silos in ((sums[fit.silo], 1), (rest, plan.silos - 1)):
            gram = np.zeros((d, d))
            gram[np.tril_indices(d)] = values[d:]
            gram += np.tril(gram, -1).T
            # Clipped rewards are in [0, 1]: a variance proxy of 1/4 for each of the batch's rows,
            # or of as many as the trace shows, where more people came.
            seen = np.trace(gram) + 8.0 * math.sqrt(d * silos) * std.diagonal
            variance = 0.25 * max(silos * plan.end(1), seen) + silos * noise
            left += gram.T @ gram / variance
            right += gram.T @ values[:d] / variance
            whole += values[:d] @ values[:d] / variance
        wanted = whole - right @ np.linalg.solve(left, right)
        assert fit.score == pytest.approx(wanted, rel=CLOSE)


# ---- screening -----------------------------------------------------------------------------------


@pytest.mark.skipif(not linalg.has_screen_i16(), reason="needs screening in 16 bits")
@pytest.mark.parametrize("d", [7, 32, 57])
@pytest.mark.parametrize("where", ["theta", "actions", "both"])
def test_screening_in_16_bits_keeps_the_best_of_made_ties(d: int, where: str) -> None:
    """Actions that differ by less than 16 bits tell, of theta, of themselves, or of both."""
    draw, told = np.random.default_rng(d), 0
    for _ in range(200):
        apart = 10.0 ** draw.uniform(-6.0, -4.0)
        theta = np.eye(d)[0] if where == "actions" else 1.0 + apart * draw.normal(size=d)
        if where == "theta":
            # Sums of some of theta's numbers: 16 bits hold these actions without rounding.
            near = np.array([draw.permutation(d) < 4 for _ in range(8)], dtype=float)
        else:
            near = draw.normal(size=(8, d))
            near *= ((1.0 + apart * draw.normal(size=8)) / (near @ theta))[:, None]
        others = 0.1 * draw.normal(size=(60, d)) / d
        actions = np.asfortranarray(np.concatenate([near, others]), dtype=np.float32)
        found = linalg.screen_i16(actions, np.eye(d), theta, 0.0)
        if found is not None:
            told += 1
            assert int(np.argmax(linalg.scores(actions, np.eye(d), theta, 0.0, 0.0))) in found
    assert told > 50


#: Dimension, actions, regularizer and factor on the radius of sets whose scores nearly tie.
CLOSE_RACES = [
    (2, 58, 0.368, 0.021), (2, 58, 0.018, 0.0201), (2, 59, 0.443, 0.0149),
    (2, 61, 1.034, 0.146), (4, 33, 0.0418, 0.273), (5, 31, 3.31, 0.0405), (5, 49, 0.0528, 0.0172),
]  # fmt: skip


@pytest.mark.parametrize(("d", "actions", "regularizer", "multiplier"), CLOSE_RACES)
def test_candidates_are_given_up_in_time(
    d: int, actions: int, regularizer: float, multiplier: float
) -> None:
    """The bound on other scores grows with every data point: both drivers choose alike."""
    sizes = {"silos": 2, "horizon": 400, "batch_size": 400, "lazy": False, "protocol": "none"}
    keys = {"regularizer": regularizer, "radius_multiplier": multiplier}
    for reward in (RewardDistribution("bernoulli"), RewardDistribution("gaussian", 0.5)):
        world = FixedSet(dimension=d, actions=actions, reward=reward)
        (fast,), (readable,) = both(experiment(world, sizes, **keys))
        same(fast, readable)


# ---- deadlines -----------------------------------------------------------------------------------


def test_a_reward_at_its_deadline_is_in_time() -> None:
    """The deadline itself counts, the next float64 after it does not."""
    for after, why in ((0, ""), (1, "late")):
        made = federation.Federation(federation.deployed())
        calendar = made.plan.document.calendar
        silo = made.processes["silo0"]
        made.now = calendar.start + 1.0
        name = silo.decide(federation.ROWS).id
        made.now += calendar.reward_deadline
        for _ in range(after):
            made.now = math.nextafter(made.now, math.inf)
        silo.reward(name, 0.5)
        assert silo.party.ended[name].why == why


def test_the_grace_period_is_over_when_it_ends() -> None:
    """A set of two of three silos is opened at the end of the grace period, and not before."""
    for early, opened in ((True, False), (False, True)):
        made = federation.Federation(federation.deployed())
        away = made.processes.pop("silo2")
        away.tick()
        made.settle()
        hub = made.processes["hub"].party
        made.now = hub.deployed.document.calendar.start + 1e5  # silos have had the time to be heard
        hub_settled = hub._settled(made.now)
        assert hub_settled
        close = made.plan.document.calendar.closes[0]
        federation.served(made, 1, ["silo0", "silo1"])
        made.settle()
        end = close + federation.GRACE
        made.now = math.nextafter(end, 0.0) if early else end
        step = hub._opening(1, made.now)
        assert bool(step.writes) == opened


def test_a_period_ends_at_its_close() -> None:
    """What becomes known at the close enters the next leaf."""
    calendar = federation.deployed().document.calendar
    for number, close in enumerate(calendar.closes, start=1):
        assert calendar.period(math.nextafter(close, 0.0)) == number
        assert calendar.period(close) == number + 1
        assert calendar.closed(close) == number


# ---- who may do what -----------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [{}, {"release": "tree"}])
def test_own_rounds_are_chosen_one_by_one(keys: dict[str, str]) -> None:
    """Their model changes with each user of the silo, so no batch of choices is given ahead."""
    plan = system(**keys).plan
    assert plan.lazy and plan.trigger is None and plan.own is not None
    silo = fastfed.parties.Silo(plan, 0)
    with pytest.raises(InputError, match="select_many needs a model that changes with releases"):
        silo.select_many(np.eye(plan.dimension)[None])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> str | None:
    """The version that both agree on, in memory; raises SSLError where there is none."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = set(ends)
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                waiting.discard(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return ends[0].version()


def test_tls_is_1_3_or_nothing(tmp_path) -> None:
    """A hub takes no client of TLS 1.2, and a silo no hub of it."""
    pytest.importorskip("uvicorn")
    ca, cert, key = certificates(tmp_path)
    processes = federation.Federation(federation.deployed()).processes
    config = listening(processes["hub"], "127.0.0.1", 8443, cert, key)
    client = Dialer(processes["silo0"], "https://127.0.0.1:8443", ca)._context
    secured = config.http.args[0].context
    assert secured is not None and client is not None
    assert handshake(secured, client) == "TLSv1.3"
    old = ssl.create_default_context(cafile=ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(secured, old)
    weak = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    weak.load_cert_chain(cert, key)
    assert handshake(weak, client) == "TLSv1.3"
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(weak, old) == "TLSv1.2"
    with pytest.raises(ssl.SSLError):
        handshake(weak, client)
