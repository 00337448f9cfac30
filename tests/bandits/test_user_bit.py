"""One flipped bit from each user: the channel, accounts, both drivers, the oracle, the radius."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import problems
import pytest
from oracle import user_bit as oracle

from fastfed._random import SeededNoise, SystemNoise
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.environments import FixedSet, RewardDistribution, Sphere
from fastfed.parties import Server, Silo
from fastfed.privacy.account import accounted, verify
from fastfed.privacy.mechanisms.user_bit import (
    FLIP_UNITS,
    UserBits,
    bit_scale,
    bit_values,
    calibrate_bits,
    epsilon_of,
    flips_of,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.protocols.randomizer import user_bit
from fastfed.simulation import compiled, server
from fastfed.simulation.audit import run_audit
from fastfed.simulation.experiment import make_experiment
from fastfed.simulation.systems import ALGORITHMS

SPEC = ProblemSpec(silos=3, horizon=40, dimension=3)
BITS: dict[str, Any] = {"protocol": "user-bit", "protects": "reward", "epsilon": 1.0}


def system(spec: ProblemSpec = SPEC, **keys: Any) -> Any:
    """Return a system whose users send bits."""
    return ALGORITHMS.choose("private-fedlinucb").make({"batch_size": 5, **BITS, **keys}, spec)


def experiment(environment: Any, silos: int, horizon: int, **keys: Any) -> Any:
    """Return an experiment of one curve whose users send bits."""
    curve = {"label": "bits", "algorithm": "private-fedlinucb", **BITS, **keys}
    return make_experiment(
        name="bits", environment=environment, curves=[curve], horizon=horizon, silos=silos,
        seed=7, checkpoints=5,
    )  # fmt: skip


def outcome_of(e: Any, replicate: int = 0) -> tuple[Any, Any]:
    """Return the outcome of the compiled driver, and the opened environment."""
    environment = e.environment.open(e.seed, replicate, e.silos)
    (outcome,) = compiled.run(environment, [e.curves[0].system.plan], e.checkpoints, record=True)
    return outcome, environment


# ---- the channel and its account -----------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.2, 1.0, math.pi, 10.0, 30.0, 36.0])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_the_flip_probability_is_the_smallest_that_meets_epsilon(
    epsilon: float, count: int
) -> None:
    flips = flips_of(epsilon, count)
    with localcontext() as context:
        context.prec = 60

        def loss(n: int) -> Decimal:
            """Return the privacy loss of `count` bits that are flipped with probability n /
            FLIP_UNITS."""
            return count * (Decimal(FLIP_UNITS - n) / n).ln()

        assert loss(flips) <= Decimal(epsilon) < loss(flips - 1)
        assert loss(flips) <= Decimal(epsilon_of(flips, count)) <= Decimal(epsilon)


def test_the_limits_of_epsilon_of_one_bit() -> None:
    assert flips_of(50.0) == flips_of(1e50) == 1
    assert epsilon_of(1) == pytest.approx(53 * math.log(2.0), rel=1e-12)
    assert 0.0 < epsilon_of(flips_of(1e-14)) <= 1e-14
    with pytest.raises(InputError, match="epsilon of one bit must be at least 1e-15"):
        flips_of(1e-17)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_the_channel_has_ratio_e_to_epsilon_and_no_more(epsilon: float) -> None:
    """Count the draws of both 53-bit integers exactly, for every reward on a grid."""
    flips = flips_of(epsilon)
    rewards = [0.0, 0.1, 0.5, 0.9, 1.0]
    table = oracle.channel(flips / FLIP_UNITS, rewards)
    worst = max(
        math.log(table[i, b] / table[j, b]) for i in range(5) for j in range(5) for b in (0, 1)
    )
    assert worst == pytest.approx(epsilon_of(flips), rel=1e-12)
    assert worst <= epsilon * (1.0 + 1e-12)


def test_a_bit_changes_exactly_where_its_integers_reach_the_thresholds() -> None:
    plan = system().plan
    half = FLIP_UNITS // 2

    def words(rounding: int, flip: int) -> np.ndarray:
        """Return the random words of two numbers of 53 bits."""
        numbers = [n << 11 for n in (rounding, flip)]
        return np.array([w for n in numbers for w in (n & 0xFFFFFFFF, n >> 32)], np.uint32)

    keep = FLIP_UNITS - 1
    assert user_bit(plan, 0.5, words(half - 1, keep)) == 1
    assert user_bit(plan, 0.5, words(half, keep)) == 0
    assert user_bit(plan, 0.0, words(0, keep)) == 0
    assert user_bit(plan, 1.0, words(FLIP_UNITS - 1, keep)) == 1
    assert user_bit(plan, 1.0, words(0, plan.flips - 1)) == 0
    assert user_bit(plan, 1.0, words(0, plan.flips)) == 1


def test_bits_have_the_law_of_the_channel_and_are_unbiased() -> None:
    plan = system(epsilon=0.7).plan
    noise, n = SeededNoise(3, 0), 40_000
    for reward in (0.0, 0.3, 1.0):
        words = noise.random_u32(0, round(10 * reward) + 1, 4 * n).reshape(n, 4)
        bits = np.array([user_bit(plan, reward, w) for w in words])
        one = oracle.channel(plan.flips / FLIP_UNITS, [reward])[0, 1]
        assert abs(bits.mean() - one) < 4.5 * math.sqrt(one * (1.0 - one) / n)
    low, high = bit_values(plan.flips, 0.0, 1.0)
    for reward in (0.0, 0.3, 1.0):
        zero, one = oracle.channel(plan.flips / FLIP_UNITS, [reward])[0]
        assert zero * low + one * high == pytest.approx(reward, abs=1e-12)
    assert high - low == pytest.approx(2.0 * bit_scale(plan.flips, 0.0, 1.0), rel=1e-14)
    for sent, value in ((0, low), (1, high)):
        assert value == pytest.approx(oracle.debiased(sent, plan.flips / FLIP_UNITS), rel=1e-12)


def test_other_ranges_are_scaled() -> None:
    flips = flips_of(1.0)
    zero, one = bit_values(flips, 0.0, 1.0)
    assert bit_values(flips, -2.0, 3.0) == pytest.approx((5.0 * zero - 2.0, 5.0 * one - 2.0))
    assert bit_scale(flips, -2.0, 3.0) == pytest.approx(5.0 * bit_scale(flips, 0.0, 1.0))


@pytest.mark.parametrize("count", [1, 2, 5, 10])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_bits_of_one_user_compose_exactly(count: int, delta: float) -> None:
    """The account is at least the enumerated epsilon, within 0.1 %, and at most the sum."""
    flips = flips_of(0.3)
    q = flips / FLIP_UNITS
    epsilon = UserBits(flips, Budget(1.0, delta, unit="reward"), count).exact()
    assert 0.0 <= epsilon <= epsilon_of(flips, count)
    assert oracle.delta_binomial(q, count, epsilon) <= delta * (1.0 + 1e-9)
    assert oracle.delta_binomial(q, count, epsilon * (1.0 - 1e-3)) > delta
    for value in (0.0, 0.1, epsilon):
        assert oracle.delta_binomial(q, count, value) == pytest.approx(
            oracle.delta_by_enumeration(q, count, value), rel=1e-9, abs=1e-15
        )


@pytest.mark.parametrize(("delta", "count"), [(0.0, 1), (0.0, 7), (1e-6, 1), (1e-6, 40)])
def test_the_budget_is_used_and_never_exceeded(delta: float, count: int) -> None:
    mechanism = calibrate_bits(Budget(1.0, delta, unit="reward"), count)
    assert 1.0 - 1e-6 <= mechanism.exact() <= 1.0
    assert all(condition.holds for condition in mechanism.conditions())
    if delta and count > 1:
        assert mechanism.flips < flips_of(1.0, count)


@pytest.mark.parametrize("epsilon", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("delta", [1e-300, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_extreme_budgets_are_not_exceeded(epsilon: float, delta: float, count: int) -> None:
    budget = Budget(epsilon, delta, unit="reward")
    assert calibrate_bits(budget, count).exact() <= epsilon


def test_another_unit_or_relation_is_refused() -> None:
    with pytest.raises(InputError, match="unit"):
        calibrate_bits(Budget(1.0, 0.0))
    with pytest.raises(InputError, match="relation"):
        calibrate_bits(Budget(1.0, 0.0, "zero-out", "reward"))


# ---- the certificate -----------------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [True, False])
def test_the_certificate_of_bits_has_delta_0_and_trusts_no_party(lazy: bool) -> None:
    deployment = system(lazy=lazy)
    certificate = deployment.certificate
    assert certificate.status == "proven"
    assert (certificate.unit, certificate.relation) == ("reward", "replace")
    assert certificate.model == "local: nobody is trusted"
    assert certificate.exact.delta == 0.0
    assert 1.0 - 1e-12 <= certificate.exact.epsilon <= 1.0
    for assumption in ("contexts, and thus", "each user's own device"):
        assert any(assumption in condition.text for condition in certificate.conditions)
    assert not any("float64" in caveat for caveat in certificate.caveats)
    assert not any("simulation" in caveat for caveat in deployment.deployed_certificate.caveats)
    assert not certificate.also
    assert deployment.theory.proven
    assert deployment.plan.radius.scale == bit_scale(deployment.plan.flips, 0.0, 1.0)


def test_returning_users_share_the_budget() -> None:
    three = system(returning=3)
    assert three.certificate.exact.epsilon <= 1.0
    assert three.plan.flips == flips_of(1.0, 3)
    # 8 batches of 5 rounds; with 42 rounds, users of the incomplete batch send bits, too.
    assert system(returning="every-batch").plan.flips == flips_of(1.0, 8)
    longer = replace(SPEC, horizon=42)
    assert system(longer, returning="every-batch").plan.flips == flips_of(1.0, 9)


def test_a_plan_without_releases_still_accounts_for_its_bits() -> None:
    plan = system(batch_size=40).plan
    assert accounted(replace(plan, batch_size=0)) == accounted(plan) != (0.0,)


@pytest.mark.parametrize(
    "change",
    [
        {"flips": flips_of(1.1)},
        {"flips": 0},
        {"flips": FLIP_UNITS // 2},
        {"flips": -1},
        {"clip": None},
        {"protocol": PROTOCOLS["none"]},
        {"protocol": PROTOCOLS["central"]},
        {"protocol": replace(PROTOCOLS["user-bit"], model="nobody at all")},
        {"protocol": replace(PROTOCOLS["user-bit"], senders="users")},
        {"release": "toeplitz"},
    ],
    ids=str,
)
def test_planted_faults_are_refused(change: dict[str, Any]) -> None:
    plan = system().plan
    verify(plan)
    with pytest.raises(InputError):
        verify(replace(plan, **change))


def test_plans_of_other_protocols_refuse_flips() -> None:
    other = ALGORITHMS.choose("private-fedlinucb").make(
        {"epsilon": 1.0, "delta": 1e-5, "batch_size": 5}, SPEC
    )
    with pytest.raises(InputError, match="flips"):
        verify(replace(other.plan, flips=flips_of(1.0)))


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"protects": "user"}, 'needs protects = "reward"'),
        ({"clip": False}, "needs clip = true"),
        ({"release": "tree"}, None),
        ({"release": "toeplitz"}, "release has no meaning"),
        ({"layout": "goe2"}, "layout has no meaning"),
        ({"covariance_ratio": 1.0}, "covariance_ratio has no meaning"),
        ({"saturation": 5.0}, "saturation"),
        ({"reward_centre": 0.5}, "reward_centre has no meaning"),
        ({"share": {"until": 10}}, "share has no meaning"),
        ({"calibration": "theorem"}, "calibration has no meaning"),
        ({"relation": "zero-out"}, "relation has no meaning"),
        ({"noise_draws": "sum"}, "noise_draws"),
        ({"messages": "individual"}, "messages belongs to"),
        ({"delay": {"kind": "geometric", "mean": 3.0}}, "delay needs protocol"),
        ({"epsilon": None, "silo_epsilon": (1.0, 1.0, 2.0)}, "silo_epsilon needs protocol"),
        ({"epsilon": None}, "epsilon is required"),
        ({"epsilon": 1e-20}, "epsilon of one bit"),
        ({"delta": -0.1}, "delta"),
    ],
)  # fmt: skip
def test_keys_without_meaning_are_refused(keys: dict[str, Any], text: str | None) -> None:
    if text is None:
        assert system(**keys).plan.release == "tree"
        return
    with pytest.raises(InputError, match=text):
        system(**keys)


# ---- drivers and oracle --------------------------------------------------------------------------

CORNERS = {
    name.partition(",")[0] + (" lazy" if sizes["lazy"] else " eager"): sizes
    for name, sizes in problems.corners()
    if sizes["protocol"] == "none"
} | {
    "growing": {"silos": 2, "horizon": 41, "dimension": 3, "actions": 5, "lazy": True,
                "batch_size": "growing"},
    "explicit": {"silos": 2, "horizon": 30, "dimension": 3, "actions": 5, "lazy": False,
                 "release_rounds": [1, 2, 9, 10, 24]},
    "one silo": {"silos": 1, "horizon": 30, "dimension": 4, "actions": 7, "lazy": True,
                 "batch_size": 4},
}  # fmt: skip


def corner(sizes: dict[str, Any], environment: Any = Sphere, **keys: Any) -> Any:
    """Return the experiment of a corner case."""
    world = environment(dimension=sizes["dimension"], actions=sizes["actions"])
    table = problems.curve_keys(sizes) | keys
    return experiment(world, sizes["silos"], sizes["horizon"], **table)


@pytest.mark.parametrize(
    ("name", "environment"),
    [*((name, Sphere) for name in ("growing", "explicit", "one silo")),
     *((name, FixedSet) for name in CORNERS)],
)  # fmt: skip
def test_the_two_drivers_agree_and_use_bits(name: str, environment: Any) -> None:
    e = corner(CORNERS[name], environment)
    fast, world = outcome_of(e)
    (steps,) = server.run_steps(world, [e.curves[0].system.plan], e.checkpoints)
    np.testing.assert_array_equal(fast.actions, steps.actions)
    np.testing.assert_array_equal(fast.rewards, steps.rewards)
    np.testing.assert_array_equal(fast.total, steps.total)
    np.testing.assert_array_equal(fast.group_regret, steps.group_regret)
    assert fast.events == steps.events
    # With rewards in place of bits, the sums would differ.
    without = replace(e.curves[0].system.plan, flips=0, privacy=None, protocol=PROTOCOLS["none"])
    (other,) = compiled.run(world, [without], e.checkpoints)
    if e.curves[0].system.plan.releases:
        d = CORNERS[name]["dimension"]
        assert not np.allclose(fast.total[:d], other.total[:d])


def replay_and_outcome(e: Any, replicate: int = 0, **more: Any) -> tuple[Any, Any]:
    """Return the oracle's replay of a run of the compiled driver, and the run's outcome."""
    outcome, world = outcome_of(e, replicate)
    plan: Plan = e.curves[0].system.plan
    noise = SeededNoise(e.seed, replicate)

    def draws(t: int, silo: int) -> tuple[float, float]:
        """Return the two uniforms of a user, for rounding and for flipping."""
        up, flip = noise.random_u32(silo, t, 4).view(np.uint64) >> np.uint64(11)
        return float(up) / FLIP_UNITS, float(flip) / FLIP_UNITS

    result = oracle.replay(
        contexts=lambda t, i: world.round(i, t)[0].astype(float),
        actions=outcome.actions,
        rewards=outcome.rewards,
        draws=draws,
        q=plan.flips / FLIP_UNITS,
        ends=[int(n) for n in plan.ends],
        lazy=plan.lazy,
        **{"alpha": 0.01, **more},
    )
    return result, outcome


@pytest.mark.parametrize("name", CORNERS)
@pytest.mark.parametrize("epsilon", [0.3, 4.0])
def test_the_oracle_repeats_every_choice(name: str, epsilon: float) -> None:
    e = corner(CORNERS[name], epsilon=epsilon, sieve=1.0)
    result, outcome = replay_and_outcome(e)
    d = CORNERS[name]["dimension"]
    assert result.worst_gap <= 1e-9
    size = 1.0 + np.abs(outcome.total).max()
    np.testing.assert_allclose(outcome.total[:d], result.u, atol=1e-9 * size)
    lower = result.v[np.tril_indices(d)]
    np.testing.assert_allclose(outcome.total[d:], lower, atol=1e-9 * size)


def test_the_oracle_detects_choices_of_another_flip_probability() -> None:
    """A replay with another flip probability finds choices that are not the best."""
    e = corner(CORNERS["plain lazy"], epsilon=2.0, sieve=1.0)
    outcome, _ = outcome_of(e)
    plan = e.curves[0].system.plan
    wrong = replace(plan, flips=flips_of(0.5))
    world = e.environment.open(e.seed, 0, e.silos)
    (other,) = compiled.run(world, [replace(wrong, privacy=None)], e.checkpoints, record=True)
    assert not np.array_equal(outcome.actions, other.actions)
    assert replay_and_outcome(e)[0].worst_gap <= 1e-9


def by_trigger(environment: Any, silos: int, horizon: int, **keys: Any) -> Any:
    """Return an experiment of feducb whose users send bits; silos share when V has grown."""
    curve = {"label": "trigger", "algorithm": "feducb", "protects": "reward", "radius": "direct"}
    curve |= {"epsilon": 1.0, **keys}
    return make_experiment(
        name="bits", environment=environment, curves=[curve], horizon=horizon, silos=silos,
        seed=7, checkpoints=5,
    )  # fmt: skip


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("threshold", [0.3, 2.0])
@pytest.mark.parametrize(("silos", "environment"), [(1, Sphere), (3, Sphere), (3, FixedSet)])
def test_a_trigger_on_bits_follows_the_oracle_in_both_drivers(
    lazy: bool, threshold: float, silos: int, environment: Any
) -> None:
    e = by_trigger(
        environment(dimension=3, actions=5), silos, 40, lazy=lazy, communication=threshold
    )
    assert e.curves[0].system.certificate.status == "proven"
    result, outcome = replay_and_outcome(e, threshold=threshold)
    (steps,) = server.run_steps(
        e.environment.open(e.seed, 0, silos), [e.curves[0].system.plan], e.checkpoints
    )
    np.testing.assert_array_equal(outcome.actions, steps.actions)
    np.testing.assert_array_equal(outcome.total, steps.total)
    assert result.worst_gap <= 1e-9
    assert outcome.synchronisations[-1] == len(result.shared_after) > 1
    size = 1.0 + np.abs(outcome.total).max()
    np.testing.assert_allclose(outcome.total[:3], result.u, atol=1e-9 * size)
    assert outcome.events == steps.events


def test_a_trigger_on_bits_reads_no_raw_data() -> None:
    system = by_trigger(Sphere(dimension=3, actions=5), 3, 40).curves[0].system
    texts = [condition.text for condition in system.certificate.conditions]
    assert system.certificate.exact.delta == 0.0 and system.certificate.unit == "reward"
    assert any("rounds depend on public contexts and on bits" in text for text in texts)
    without = replace(system.plan, flips=0, protocol=PROTOCOLS["none"])
    with pytest.raises(InputError):
        verify(without)
    for keys, text in (
        ({"radius": "proposition-2"}, 'needs radius = "direct"'),
        ({"schedule": "private-determinant"}, 'needs schedule "determinant" or "fixed"'),
        ({"relation": "zero-out"}, "relation has no meaning"),
        ({"returning": 2}, "returning has no meaning"),
        ({"private": False, "epsilon": None}, "private has no meaning|private = true"),
        ({"clip": False}, "needs clip = true"),
        ({"algorithm": "feducb-decentralized"}, "needs a server"),
    ):
        with pytest.raises(InputError, match=text):
            by_trigger(Sphere(dimension=3, actions=5), 3, 40, **keys)


def covered(runs: int, **more: Any) -> int:
    """Return in how many runs theta is in every confidence set; alpha is 1/4."""
    sphere = Sphere(dimension=2, actions=4, reward=RewardDistribution())
    e = experiment(sphere, 1, 40, batch_size=4, epsilon=0.8, sieve=1.0, failure_probability=0.25)
    return sum(
        replay_and_outcome(e, r, theta=sphere.theta(e.seed, r), alpha=0.25, **more)[0].covered
        for r in range(runs)
    )


def test_confidence_sets_hold() -> None:
    """The sets hold in 3/4 of the runs at least; with the scale of raw rewards, many fail."""
    assert covered(200) >= 150
    assert covered(100, scale=0.25) < 75


@pytest.mark.slow
def test_confidence_sets_hold_in_a_thousand_runs() -> None:
    assert covered(1000) >= 750


# ---- parties -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_parties_use_bits_only(epsilon: float) -> None:
    """A silo's report is made of x times the two values of a bit, with the system's generator."""
    plan = system(ProblemSpec(silos=1, horizon=10, dimension=2), epsilon=epsilon).plan
    silo, hub = Silo(plan, 0, SystemNoise()), Server(plan)
    for _ in range(5):
        silo.select([[1.0, 0.0]])
        silo.observe(0.4)
    report = silo.report()
    ones = (report.bias[0] - 5 * plan.bit_values[0]) / (plan.bit_values[1] - plan.bit_values[0])
    assert abs(ones - round(ones)) < 1e-9 and 0 <= round(ones) <= 5
    assert report.covariance[0, 0] == 5.0 and report.bias[1] == 0.0
    silo.receive(hub.combine([report]))


@pytest.mark.parametrize(("name", "verdict"), [
    ("user-bit", "pass"), ("fault-user-bit-half-of-the-flips", "caught"),
])  # fmt: skip
def test_an_audit_of_what_a_silo_sends_finds_the_epsilon_of_the_flips(
    name: str, verdict: str
) -> None:
    result = run_audit(name)
    assert result.verdict == verdict
    # The bound is close to the true epsilon, which is the claimed one without the fault.
    true = (
        1.0
        if verdict == "pass"
        else math.log((FLIP_UNITS - flips_of(1.0) // 2) / (flips_of(1.0) // 2))
    )
    assert 0.95 * true <= result.epsilon_lower_bound <= true
