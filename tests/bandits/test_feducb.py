"""Tests of FedUCB as a system: certificates, theory and keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from oracle import dubey_pentland_2020 as oracle
from scipy.optimize import brentq
from scipy.stats import norm

import fastfed
from fastfed import InputError
from fastfed.bandits import ALGORITHMS
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import System
from fastfed.cli import cli
from fastfed.environments import Sphere
from fastfed.privacy import compose, epsilon_of, user_sensitivity
from fastfed.privacy.releases.prefix_sums import depth
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT
from fastfed.simulation.systems import problem_spec

SETTING = ProblemSpec(silos=3, horizon=100, dimension=4)
PRIVATE = {"epsilon": 1.0, "delta": 1e-4}
FIXED = {**PRIVATE, "schedule": "fixed"}
PRIVATE_TRIGGER = {**PRIVATE, "schedule": "private-determinant"}
BATCH = {**FIXED, "batch_size": 7}


def make(problem: ProblemSpec = SETTING, **keys: Any) -> System:
    """Make the system with these keys."""
    return ALGORITHMS["feducb"].make(keys, problem)


def condition_holds(system: System, start: str) -> bool:
    """Return whether the condition that begins with ``start`` holds."""
    conditions = (*system.theory.conditions, *system.certificate.conditions)
    (holds,) = [c.holds for c in conditions if c.text.startswith(start)]
    return holds


def epsilon_by_hand(mu: float, delta: float) -> float:
    """Solve Theorem 8 of Balle and Wang (2018) for epsilon."""

    def excess(e: float) -> float:
        """Return delta at e of Gaussian DP with mu, minus the allowed delta."""
        spent = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
        return float(spent) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 200.0, xtol=1e-13))


def mu_by_hand(epsilon: float, delta: float) -> float:
    """Return the mu that uses exactly this budget."""
    return float(brentq(lambda mu: epsilon_by_hand(mu, delta) - epsilon, 1e-6, 10.0, xtol=1e-13))


# -- Certificates ----------------------------------------------------------------------------------

SCHEDULE = "synchronisation rounds do not depend on data"
NOISY_SCHEDULE = "synchronisation rounds depend on data through noisy sums alone"


@pytest.mark.parametrize("calibration", ["exact", "theorem"])
@pytest.mark.parametrize("lazy", [True, False])
def test_schedules_by_raw_data_have_no_finite_epsilon(lazy, calibration):
    system = make(**PRIVATE, lazy=lazy, calibration=calibration)
    c = system.certificate
    assert system.plan.trigger.kind == DETERMINANT
    assert (c.status, c.exact) == ("none", None)
    assert (c.claimed.epsilon, c.claimed.delta) == (1.0, 1e-4)
    assert not condition_holds(system, SCHEDULE)
    assert any(t.startswith("no finite epsilon holds for the run") for t in c.caveats)
    assert "dubey-pentland-2020, Algorithm 1" in c.source
    # Claims for fixed rounds say that they assume fixed rounds.
    assert [s.unit for s in c.also] == (["user", "user"] if lazy else ["item"])
    for side in c.also:
        assert side.status == "conditional"
        assert side.exact.epsilon <= 1.0
        assert side.caveats == ()
        assert [c.text for c in side.conditions if not c.holds] == [SCHEDULE]
    text = str(c)
    assert "status      none" in text and "exact       none" in text


def test_caveat_names_an_existing_audit():
    """Check the reference to `fastfed audit feducb-schedule`."""
    (caveat,) = [t for t in make(**PRIVATE).certificate.caveats if "audit" in t]
    name = caveat.split("`fastfed audit ")[1].split("`")[0]
    result = CliRunner().invoke(cli, ["audit", name, "--trials", "0"])
    assert "audit must be one of" not in result.output


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("budget", [(0.1, 1e-8), (5.0, 0.1), (50.0, 1e-3)])
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_fixed_batches_are_proven_and_spend_the_budget(batch_size, budget, relation):
    epsilon, delta = budget
    system = make(
        schedule="fixed", batch_size=batch_size, epsilon=epsilon, delta=delta, relation=relation
    )
    c = system.certificate
    assert c.status == "proven" and c.relation == relation and c.unit == "user"
    assert c.exact.delta == delta
    assert 1.0 - 1e-9 < c.exact.epsilon / epsilon <= 1.0
    assert condition_holds(system, SCHEDULE) and all(condition.holds for condition in c.conditions)
    # A user is in each node above a leaf: 2 s^-1 per node, or sqrt(3/2) s^-1 for zero-out.
    nodes = (100 // batch_size).bit_length()
    mu = math.sqrt(nodes * (4.0 if relation == "replace" else 1.5)) / c.noise_std["bias"]
    assert epsilon_by_hand(mu, delta) == pytest.approx(epsilon, rel=1e-8)
    diagonal = c.noise_std["covariance_diagonal"]
    assert diagonal == pytest.approx(math.sqrt(2.0) * c.noise_std["covariance"])
    assert c.noise_std["covariance"] == c.noise_std["bias"] == system.plan.noise_std.bias


@pytest.mark.parametrize(
    ("epsilon", "delta", "true"),
    [
        *((1.0, 0.1, 0.0), (1.0, 1e-3, 0.046), (1.0, 1e-6, 0.057)),
        *((5.0, 0.1, 0.15), (5.0, 1e-3, 0.34), (5.0, 1e-6, 0.32)),
    ],
)
def test_printed_noise_is_far_more_than_the_budget_needs(epsilon, delta, true):
    """Check n = 400, where only nine of ten counted nodes exist."""
    setting = ProblemSpec(silos=2, horizon=400, dimension=3)
    system = make(
        setting, schedule="fixed", batch_size=1, epsilon=epsilon, delta=delta,
        calibration="theorem",
    )  # fmt: skip
    c, std = system.certificate, system.plan.noise_std.bias
    assert c.status == "proven"
    assert c.exact.epsilon == pytest.approx(true, abs=0.005 if true >= 0.1 else 0.0005)
    assert std == pytest.approx(4 * math.sqrt(10) * 2 * math.log(2 / delta) / epsilon)
    by_hand = epsilon_by_hand(math.sqrt(9) * 2 / std, delta)
    assert c.exact.epsilon == pytest.approx(by_hand, rel=1e-8, abs=1e-12)
    assert "Algorithm 2" in c.source


def test_certificate_of_eager_play_proves_only_item_privacy():
    system = make(**BATCH, lazy=False)
    c = system.certificate
    assert (c.status, c.exact) == ("unproven", None)
    (side,) = c.also
    assert (side.unit, side.status, side.caveats) == ("item", "proven", ())
    assert 1.0 - 1e-9 < side.exact.epsilon <= 1.0
    assert any("raw data of a user choose the next actions" in t for t in c.caveats)
    # With batches of one, no later action of the batch exists.
    assert make(**FIXED, batch_size=1, lazy=False).certificate.status == "proven"


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("budget", [(0.1, 1e-8), (50.0, 1e-3)])
@pytest.mark.parametrize("horizon", [1, 7, 8, 100])
def test_budget_covers_both_sums_and_private_schedule(horizon, budget, relation):
    epsilon, delta = budget
    setting = ProblemSpec(silos=3, horizon=horizon, dimension=4)
    system = make(
        setting, schedule="private-determinant", epsilon=epsilon, delta=delta, relation=relation
    )
    c, rule = system.certificate, system.plan.trigger
    assert rule.kind == PRIVATE_DETERMINANT and rule.extra == 0.0
    assert c.status == "proven" and condition_holds(system, NOISY_SCHEDULE)
    assert 1.0 - 1e-9 < c.exact.epsilon / epsilon <= 1.0
    assert "zhou-chowdhury-2024, Appendix D.2" in c.source
    # Both trees together, with one leaf per round: that of the sums and that of the schedule.
    sum_sensitivity = user_sensitivity(relation, "goe2") / system.plan.noise_std.bias
    schedule_sensitivity = user_sensitivity(relation, "goe2", bias_std=math.inf) / rule.std[0]
    nodes = math.sqrt(depth(horizon))
    mu = compose([nodes * sum_sensitivity, nodes * schedule_sensitivity])
    assert sum_sensitivity == pytest.approx(schedule_sensitivity)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    # Without functions of the package: 2 and 1 for replace, sqrt(3/2) and sqrt(1/2) for zero-out.
    square, other = (4.0, 1.0) if relation == "replace" else (1.5, 0.5)
    by_hand = depth(horizon) * (
        square / system.plan.noise_std.bias**2 + other / c.noise_std["schedule"] ** 2
    )
    assert epsilon_by_hand(math.sqrt(by_hand), delta) == pytest.approx(epsilon, rel=1e-8)
    assert rule.std == (c.noise_std["schedule"], math.sqrt(2.0) * c.noise_std["schedule"])


def test_a_private_schedule_increases_the_noise_of_the_sums():
    """Check the factor sqrt 2, since the schedule takes half of mu^2."""
    ratio = (
        make(**PRIVATE_TRIGGER).plan.noise_std.bias
        / make(**FIXED, batch_size=1).plan.noise_std.bias
    )
    assert ratio == pytest.approx(math.sqrt(2.0))


def test_eager_play_with_a_private_schedule_proves_only_item_privacy():
    c = make(**PRIVATE_TRIGGER, lazy=False).certificate
    assert (c.status, c.exact) == ("unproven", None)
    (side,) = c.also
    assert (side.unit, side.status, side.caveats) == ("item", "proven", ())
    assert 1.0 - 1e-9 < side.exact.epsilon <= 1.0


@pytest.mark.parametrize("lazy", [True, False])
def test_communication_in_every_round_is_a_fixed_schedule(lazy):
    system = make(**PRIVATE, communication="MT", lazy=lazy)
    assert system.plan.trigger is None and system.plan.batch_size == 1
    assert system.certificate.status == "proven" and condition_holds(system, SCHEDULE)
    assert system.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)
    batches_of_one = make(**FIXED, batch_size=1, lazy=lazy)
    assert batches_of_one.plan.noise_std == system.plan.noise_std
    assert batches_of_one.certificate == system.certificate


@pytest.mark.parametrize("schedule", ["determinant", "fixed"])
def test_certificate_without_privacy_has_status_none(schedule):
    extra_keys = {"batch_size": 5} if schedule == "fixed" else {}
    system = make(private=False, schedule=schedule, **extra_keys)
    c = system.certificate
    assert (c.status, c.exact, c.claimed, c.also) == ("none", None, None, ())
    assert c.caveats[0] == "no privacy"
    assert system.plan.noise_std.parts == (0.0, 0.0, 0.0)
    assert system.plan.protocol.id == "none"


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        ({"multiplicity": 2}, "no record is served twice"),
        ({"features_bounded": False}, "feature norms <= 1"),
        ({"reward_range": None}, "rewards bounded by 1"),
    ],
)
def test_certificate_is_unproven_if_an_assumption_fails(changes, start):
    problem = ProblemSpec(silos=3, horizon=100, dimension=4, **changes)
    for keys, status in ((BATCH, "unproven"), (PRIVATE_TRIGGER, "unproven"), (PRIVATE, "none")):
        system = make(problem, **keys, clip=False)
        c = system.certificate
        assert (c.status, c.exact) == (status, None)
        assert not condition_holds(system, start)
        failed = [c.text for c in c.also[0].conditions if not c.holds]
        assert c.also[0].status == "conditional" and c.also[0].exact is not None
        assert len(failed) == (2 if keys is PRIVATE else 1)
    if "multiplicity" not in changes:
        assert make(problem, **BATCH).certificate.status == "proven"


# -- Regularizer, radius and trigger ---------------------------------------------------------------

BOUNDED = "every silo's regularizer lies between"
BIASED = "kappa exceeds the bias noise"
ORDERED = "one order of rounds holds for all silos"
OWN_ORDER = "each silo's own order of events"


def radius_at(system: System, v: np.ndarray) -> float:
    """Return the plan's radius for this V."""
    log_det = float(np.linalg.slogdet(v)[1])
    return system.plan.radius.of(0, 1.0, log_det, len(v))


def definite_matrix(d: int, least: float, seed: int) -> np.ndarray:
    """Return a symmetric matrix with all eigenvalues at least ``least``."""
    square = np.random.default_rng(seed).normal(size=(d, d))
    return square @ square.T * least + least * np.eye(d)


FORMULA_CASES = [
    # keys, orders that the radius counts, releases
    ({**BATCH}, 1, 14),
    ({**BATCH, "lazy": False}, 3, 14),
    ({**BATCH, "calibration": "theorem", "lazy": False}, 1, 14),
    ({**BATCH, "calibration": "theorem", "failure_probability": 0.2}, 1, 14),
    ({**FIXED, "batch_size": 1, "lazy": False}, 1, 100),
    ({**PRIVATE}, 1, 100),
    ({**PRIVATE, "calibration": "theorem", "communication": "M1.5"}, 1, 100),
    ({**PRIVATE, "lazy": False, "communication": 3}, 3, 100),
    ({**PRIVATE_TRIGGER}, 1, 100),
    ({**PRIVATE_TRIGGER, "lazy": False, "failure_probability": 1e-6}, 3, 100),
    ({**PRIVATE_TRIGGER, "rho_min": 900.0}, 1, 100),
    ({**PRIVATE, "rho_min": 7.5, "communication": "M1.5"}, 1, 100),
    ({"private": False}, 1, 100),
    ({"private": False, "rho_min": 0.25, "lazy": False, "communication": "M1.5"}, 3, 100),
]


@pytest.mark.parametrize(("keys", "orders", "releases"), FORMULA_CASES)
def test_constants_follow_the_formulas_of_the_paper(keys, orders, releases):
    """Check rho_min, rho_max, kappa, beta and D with the oracle and a budget solved by hand."""
    system = make(**keys)
    plan, m, d, t = system.plan, 3, 4, 100
    alpha = keys.get("failure_probability", 0.01)
    private = keys.get("private", True)
    if not private:
        low = high = keys.get("rho_min", 1.0)
        kappa = 0.0
    elif keys.get("calibration") == "theorem":
        levels = oracle.levels(releases)
        std = oracle.node_noise_std(1.0, 1e-4, levels, 1.0)
        low = oracle.big_lambda(1.0, 1e-4, levels, 1.0, d, releases, m, alpha)
        high = 3 * low
        kappa = oracle.kappa_printed(1.0, levels, 1.0, d, releases, m, alpha)
    else:
        share = 2.0 if keys.get("schedule") == "private-determinant" else 1.0
        std = math.sqrt(share * releases.bit_length()) * 2.0 / mu_by_hand(1.0, 1e-4)
        own_sizes = oracle.prefix_nodes(releases), d, releases, m, alpha
        low = keys.get("rho_min", oracle.lambda_from_noise(std, *own_sizes))
        high = 3 * low
        kappa = oracle.kappa_from_noise(std, own_sizes[0], low, *own_sizes[1:])
    if private:
        expected = (std, std, math.sqrt(2.0) * std)
        assert plan.noise_std.parts == pytest.approx(expected, rel=1e-8)
    assert plan.regularizer == pytest.approx(m * np.array([low, (low + high) / 2]), rel=1e-8)
    for seed in range(3):
        v = definite_matrix(d, m * low, seed)
        beta = oracle.beta(
            v, sigma=0.5, alpha=alpha / orders, norm=1.0, M=m, rho_min=low, rho_max=high,
            kappa=kappa,
        )  # fmt: skip
        assert radius_at(system, v) == pytest.approx(beta, rel=1e-8)
    if keys.get("schedule") == "fixed":
        assert plan.trigger is None
        return
    communication = keys.get("communication", "log-T")
    if isinstance(communication, str):
        sizes = {"T": t, "M": m, "d": d, "L": 1.0}
        communication = oracle.threshold(communication, **sizes, rho_min=low, rho_max=high)
    assert plan.trigger.threshold == pytest.approx(communication, rel=1e-8)
    extra = 0.0 if keys.get("schedule") else m * (high - low)
    assert plan.trigger.extra == pytest.approx(extra, rel=1e-8)
    assert plan.trigger.delay == 0


@pytest.mark.parametrize("communication", ["log-T", "M1.5", 300.0])
@pytest.mark.parametrize("calibration", ["exact", "theorem"])
@pytest.mark.parametrize("private", [True, False])
def test_batch_size_follows_proposition_1(private, calibration, communication):
    """Check B = ceil(T / ceil(n)) with n at Lambda of T releases; the noise is that of T // B
    releases."""
    t, m, d = 2000, 5, 3
    problem = ProblemSpec(silos=m, horizon=t, dimension=d)
    budget = {"epsilon": 4.0, "delta": 1e-3} if private else {"private": False}
    keys = {"schedule": "fixed", "batch_size": "theorem", "calibration": calibration, **budget}
    keys["communication"] = communication
    system = make(problem, **keys)
    low = high = 1.0
    if private and calibration == "theorem":
        low = oracle.big_lambda(4.0, 1e-3, oracle.levels(t), 1.0, d, t, m, 0.01)
    elif private:
        std = math.sqrt(11) * 2.0 / mu_by_hand(4.0, 1e-3)
        low = oracle.lambda_from_noise(std, oracle.prefix_nodes(t), d, t, m, 0.01)
    high = 3 * low if private else low
    sizes = {"T": t, "d": d, "L": 1.0, "rho_min": low, "rho_max": high}
    threshold = communication
    if isinstance(communication, str):
        threshold = oracle.threshold(communication, M=m, **sizes)
    n = math.ceil(oracle.proposition_1(threshold, **sizes)["appendix"])
    assert system.plan.batch_size == -(-t // n)
    assert 1 < system.plan.batch_size < t
    same_system = make(problem, **{**keys, "batch_size": system.plan.batch_size})
    assert same_system.plan.noise_std == system.plan.noise_std
    assert (same_system.plan.regularizer == system.plan.regularizer).all()


def test_printed_kappa_is_a_bound_only_for_large_delta():
    """Check that the condition says where it holds; the exact kappa always holds."""
    outcomes = set()
    problem = ProblemSpec(silos=100, horizon=100_000, dimension=10)
    for delta in (0.1, 0.01, 1e-3, 1e-5, 1e-8):
        keys = {"epsilon": 1.0, "delta": delta, "lazy": True}
        system = make(problem, **keys, calibration="theorem")
        n = 100_000
        levels = oracle.levels(n)
        low = oracle.big_lambda(1.0, delta, levels, 1.0, 10, n, 100, 0.01)
        std = oracle.node_noise_std(1.0, delta, levels, 1.0)
        proven = oracle.kappa_from_noise(std, oracle.prefix_nodes(n), low, 10, n, 100, 0.01)
        printed = oracle.kappa_printed(1.0, levels, 1.0, 10, n, 100, 0.01)
        assert condition_holds(system, BIASED) == (printed >= proven)
        assert condition_holds(system, BOUNDED)
        assert system.theory.proven == (printed >= proven)
        outcomes.add(condition_holds(system, BIASED))
        assert condition_holds(make(problem, **keys), BIASED)
    assert outcomes == {True, False}
    missing = " ".join(system.certificate.caveats)
    assert "the regret bound is unproven here" in missing and BIASED in missing


def test_printed_kappa_at_a_small_delta_is_unproven():
    assert not condition_holds(make(epsilon=1.0, delta=1e-5, calibration="theorem"), BIASED)


@pytest.mark.parametrize(
    "keys", [BATCH, PRIVATE, PRIVATE_TRIGGER], ids=lambda k: k.get("schedule", "raw")
)
def test_a_given_rho_min_must_exceed_the_noise(keys):
    bound = float(make(**keys).theory.lambda_min[0]) / 3
    std = make(**keys).plan.noise_std.bias
    n = 14 if keys is BATCH else 100
    expected = oracle.lambda_from_noise(std, oracle.prefix_nodes(n), 4, n, 3, 0.01)
    assert bound == pytest.approx(expected, rel=1e-12)
    for factor, holds in ((0.999, False), (1.001, True), (5.0, True)):
        system = make(**keys, rho_min=factor * bound)
        assert condition_holds(system, BOUNDED) is holds
        assert condition_holds(system, BIASED)  # kappa follows from the given rho_min
        assert system.theory.proven is holds
        assert system.theory.lambda_min[0] == pytest.approx(3 * factor * bound)
        # Privacy does not change.
        assert system.certificate.status == make(**keys).certificate.status
    printed_system = make(**{**BATCH, "calibration": "theorem"})
    small_rho_min = make(
        **{**BATCH, "calibration": "theorem"},
        rho_min=float(printed_system.theory.lambda_min[0]) / 50,
    )
    assert condition_holds(printed_system, BOUNDED) and not condition_holds(small_rho_min, BOUNDED)


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        (BATCH, True),
        ({**BATCH, "lazy": False}, True),  # one order per silo
        (
            {**BATCH, "lazy": False, "calibration": "theorem"},
            False,
        ),  # the printed radius counts one order
        ({**BATCH, "calibration": "theorem"}, True),
        ({**FIXED, "batch_size": 1, "lazy": False, "calibration": "theorem"}, True),
        (PRIVATE, True),
        ({**PRIVATE, "lazy": False}, False),
        ({**PRIVATE, "lazy": False, "communication": "MT"}, True),
        ({**PRIVATE, "lazy": False, "calibration": "theorem"}, False),
        (PRIVATE_TRIGGER, True),
        ({**PRIVATE_TRIGGER, "lazy": False}, False),
        ({"private": False}, True),
        ({"private": False, "lazy": False}, False),
        ({"private": False, "schedule": "fixed", "batch_size": 5, "lazy": False}, True),
    ],
)
def test_condition_on_orders_of_events(keys, holds):
    assert condition_holds(make(**keys), ORDERED) is holds


def test_other_conditions_of_the_regret_bound():
    assert make(**BATCH).theory.proven
    smaller_radius = make(**BATCH, radius_multiplier=0.5)
    assert not condition_holds(smaller_radius, "the radius is that of Proposition 2 at least")
    assert condition_holds(
        make(**BATCH, radius_multiplier=2.0), "the radius is that of Proposition 2"
    )
    nonlinear = make(ProblemSpec(silos=3, horizon=100, dimension=4, linear=False), **BATCH)
    assert not condition_holds(nonlinear, "the expected reward is <x, theta*>")
    unbounded = make(ProblemSpec(silos=3, horizon=100, dimension=4, reward_range=None), **BATCH)
    assert not condition_holds(unbounded, "rewards are bounded, and clipping")
    for system in (smaller_radius, nonlinear, unbounded):
        assert not system.theory.proven
        assert any("the regret bound is unproven" in t for t in system.certificate.caveats)
        assert system.certificate.status == "proven"


@pytest.mark.parametrize("schedule", ["fixed", "private-determinant"])
@pytest.mark.parametrize("lazy", [True, False])
def test_direct_radius_is_proven_except_for_eager_play_by_data(schedule, lazy):
    extra_keys = {"batch_size": 7} if schedule == "fixed" else {}
    system = make(**PRIVATE, schedule=schedule, radius="direct", lazy=lazy, **extra_keys)
    theory, plan = system.theory, system.plan
    assert plan.radius.direct
    eager_by_data = schedule != "fixed" and not lazy
    assert theory.proven is not eager_by_data
    own_order_conditions = [c.holds for c in theory.conditions if c.text.startswith(OWN_ORDER)]
    assert own_order_conditions == ([False] if eager_by_data else [])
    # Rewards take alpha / 2, once for each silo with its own order of events.
    assert plan.radius.base == pytest.approx(2 * math.log((1 if lazy else 3) / 0.005))
    # The schedule's noise is not in the sums, and one entry covers all releases.
    assert len(plan.regularizer) == (15 if schedule == "fixed" else 2)
    assert (system.certificate.status == "proven") is lazy


def test_direct_radius_of_a_private_schedule_covers_every_release():
    """Compare with a fixed schedule with the same noise in all T releases, where it is largest."""
    budget = {"epsilon": 1.0, "delta": 1e-4, "radius": "direct"}
    private_schedule = make(**budget, schedule="private-determinant").plan
    every_round = make(**budget, schedule="fixed", batch_size=1).plan
    scale = private_schedule.noise_std.bias / every_round.noise_std.bias
    largest = every_round.radius.error_bound.max()
    assert private_schedule.radius.error_bound[1] == pytest.approx(scale * largest, rel=1e-9)
    assert private_schedule.radius.error_bound[0] == 0.0
    assert private_schedule.entry(57) == 1


@pytest.mark.parametrize("schedule", ["determinant", "private-determinant"])
def test_the_last_confidence_set_of_a_run_contains_theta(schedule):
    """Check the last confidence set of 60 runs; at most 20 %, its failure probability, may fail."""
    from fastfed.simulation import compiled

    sphere = Sphere(dimension=3, actions=5)
    problem = problem_spec(sphere.facts(2, 60), 2, 60)
    keys = {"epsilon": 50.0, "delta": 1e-3, "failure_probability": 0.2, "communication": 4.0}
    plan = make(problem, schedule=schedule, **keys).plan
    outside_count, sync_counts = 0, set()
    for replicate in range(60):
        environment = sphere.open(0, replicate, 2)
        (outcome,) = compiled.run(environment, [plan], np.array([60]))
        v = np.zeros((3, 3))
        v[np.tril_indices(3)] = outcome.total[3:]
        v = v + np.tril(v, -1).T + plan.regularizer[1] * np.eye(3)
        error = sphere.theta(0, replicate) - np.linalg.solve(v, outcome.total[:3])
        radius = plan.radius.of(1, 1.0, float(np.linalg.slogdet(v)[1]), 3)
        outside_count += error @ v @ error > radius**2
        sync_counts.add(int(outcome.synchronisations[0]))
    assert outside_count <= 0.2 * 60
    assert min(sync_counts) > 0


# -- Keys ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({**PRIVATE, "schedule": "adaptive"}, 'schedule must be one of "determinant", "fixed", '),
        ({**PRIVATE, "communication": "MlogT"}, 'communication must be one of "log-T", "M1.5", '),
        ({**PRIVATE, "communication": 0}, "communication must be > 0, got 0"),
        ({**PRIVATE, "communication": -2.5}, "communication must be > 0, got -2.5"),
        ({**PRIVATE, "communication": float("inf")}, "communication must be > 0, got inf"),
        ({**PRIVATE, "rho_min": 0.0}, "rho_min must be > 0, got 0.0"),
        ({**PRIVATE, "regularizer": 1.0}, "regularizer has no meaning for feducb"),
        ({**PRIVATE, "regularizer": "from-noise"}, "it follows from rho_min"),
        (
            {**PRIVATE_TRIGGER, "communication": "MT"},
            '"MT" is every round: it needs no private-determinant',
        ),
        ({**PRIVATE, "batch_size": 5}, 'batch_size belongs to schedule "fixed", got "determinant"'),
        (
            {**PRIVATE_TRIGGER, "batch_size": "theorem"},
            'belongs to schedule "fixed", got "private-determina',
        ),
        ({"private": False, "epsilon": 1.0}, "epsilon has no meaning where private = false"),
        ({"private": False, "delta": 0.1}, "delta has no meaning where private = false"),
        ({"private": False, "radius": "direct"}, 'radius "direct" needs private = true'),
        (
            {"private": False, "schedule": "private-determinant"},
            'schedule "private-determinant" needs private = true',
        ),
        ({"delta": 0.1}, "epsilon is required, or private = false"),
        ({"epsilon": 1.0}, "delta is required, or private = false"),
        ({"epsilon": 0.0, "delta": 0.1}, "epsilon must be > 0, got 0.0"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta must be > 0 and < 1, got 0.0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta must be > 0 and < 1, got 1.0"),
        ({**PRIVATE, "relation": "swap"}, 'relation must be one of "replace", "zero-out", got '),
        ({**PRIVATE, "calibration": "published-code"}, 'calibration must be one of "exact", "the'),
        (
            {**PRIVATE_TRIGGER, "calibration": "theorem"},
            'schedule "private-determinant" needs calibration',
        ),
        (
            {**BATCH, "calibration": "theorem", "radius": "direct"},
            'radius "direct" needs calibration "exact"',
        ),
        (
            {**PRIVATE, "radius": "direct"},
            'radius "direct" needs schedule "fixed" or "private-determinant"',
        ),
        (
            {**BATCH, "radius": "direct", "rho_min": 2.0},
            'rho_min belongs to radius "proposition-2", got radius "direct"',
        ),
        ({**PRIVATE, "radius": "lemma-c2"}, 'radius must be one of "proposition-2", "direct", got'),
        ({**PRIVATE, "radius_multiplier": 0.0}, "radius_multiplier must be > 0, got 0.0"),
        ({**PRIVATE, "failure_probability": 1.0}, "failure_probability must be "),
        ({**FIXED, "batch_ratio": 0.5}, "batch_ratio must be >= 1, got 0.5"),
        ({**FIXED, "batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({**FIXED, "batch_size": 101}, r"batch_size must be <= horizon \(100\), got 101"),
        (
            {**FIXED, "batch_size": "theorm"},
            'batch_size must be an integer or one of "theorem", "growing", got',
        ),
        ({**PRIVATE, "comunication": "MT"}, 'unknown key "comunication" for feducb; did you mean'),
        ({**PRIVATE, "protocol": "central"}, 'unknown key "protocol" for feducb'),
        ({"private": "no"}, "private must be true or false, got 'no'"),
        ({**PRIVATE, "epsilon": "one"}, "epsilon must be a number, got '"),
    ],
)
def test_errors_about_bad_keys_are_one_sentence(keys, message):
    with pytest.raises(InputError, match=message) as error:
        make(**keys)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"), [("relation", "swap"), ("calibration", "published-code")]
)
def test_bad_choices_are_refused_also_without_privacy(key, value):
    with pytest.raises(InputError, match=f"{key} must be one of"):
        make(private=False, **{key: value})


def test_communication_in_every_round_excludes_a_batch_size():
    with pytest.raises(InputError, match="batch_size"):
        make(**FIXED, batch_size=10, communication="MT")


def test_valid_combinations_of_keys():
    """Check an integer, "MT" with the direct radius, and the defaults."""
    assert make(**PRIVATE, communication=3).plan.trigger.threshold == 3.0
    assert make(**PRIVATE, communication="MT", radius="direct").plan.radius.direct
    assert make(**PRIVATE, communication="MT", schedule="fixed").plan.batch_size == 1
    assert make(private=False, communication="MT", schedule="fixed").plan.batch_size == 1
    assert make(**FIXED, communication="MT", batch_size=1).plan.batch_size == 1
    system = make(private=False)
    assert (system.plan.lazy, system.plan.trigger.kind) == (True, DETERMINANT)
    assert system.plan.clip == fastfed.make_system(
        "feducb", silos=3, horizon=100, dimension=4, private=False
    ).plan.clip  # fmt: skip
    assert system.plan.clip.feature == 1.0
    assert make(private=False, clip=False).plan.clip is None
