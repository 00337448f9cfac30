"""FedUCB as a system: certificates, theory and keys."""

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
QUIET = {**PRIVATE, "schedule": "private-determinant"}
BATCH = {**FIXED, "batch_size": 7}


def make(setting: ProblemSpec = SETTING, **keys: Any) -> System:
    return ALGORITHMS["feducb"].make(keys, setting)


def found(system: System, start: str) -> bool:
    """Whether the condition of theory or certificate that starts so holds."""
    conditions = (*system.theory.conditions, *system.certificate.conditions)
    (holds,) = [c.holds for c in conditions if c.text.startswith(start)]
    return holds


def epsilon_by_hand(mu: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8, solved for epsilon."""

    def excess(e: float) -> float:
        spent = norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu)
        return float(spent) - delta

    return 0.0 if excess(0.0) <= 0 else float(brentq(excess, 0.0, 200.0, xtol=1e-13))


def mu_by_hand(epsilon: float, delta: float) -> float:
    """The ratio that just gives the budget."""
    return float(brentq(lambda mu: epsilon_by_hand(mu, delta) - epsilon, 1e-6, 10.0, xtol=1e-13))


# -- Certificates ----------------------------------------------------------------------------------

SCHEDULE = "synchronisation rounds do not depend on data"
NOISY_SCHEDULE = "synchronisation rounds depend on data through noisy sums alone"


@pytest.mark.parametrize("calibration", ["exact", "theorem"])
@pytest.mark.parametrize("lazy", [True, False])
def test_a_schedule_by_raw_data_has_no_finite_epsilon(lazy, calibration):
    system = make(**PRIVATE, lazy=lazy, calibration=calibration)
    c = system.certificate
    assert system.plan.trigger.kind == DETERMINANT
    assert (c.status, c.exact) == ("none", None)
    assert (c.claimed.epsilon, c.claimed.delta) == (1.0, 1e-4)
    assert not found(system, SCHEDULE)
    assert any(t.startswith("no finite epsilon holds for the run") for t in c.caveats)
    assert "dubey-pentland-2020, Algorithm 1" in c.source
    # What would hold if the rounds were fixed says that it supposes so, each time.
    assert [s.unit for s in c.also] == (["user", "user"] if lazy else ["item"])
    for side in c.also:
        assert side.status == "conditional"
        assert side.exact.epsilon <= 1.0
        assert side.caveats == ()
        assert [c.text for c in side.conditions if not c.holds] == [SCHEDULE]
    text = str(c)
    assert "status      none" in text and "exact       none" in text


def test_the_caveat_names_an_audit_that_there_is():
    """The certificate sends its reader to `fastfed audit feducb-schedule`."""
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
    assert found(system, SCHEDULE) and all(condition.holds for condition in c.conditions)
    # One user in each of the nodes over a leaf: 2 s^-1 a node, or sqrt(3/2) s^-1 for zero-out.
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
def test_the_printed_noise_is_far_more_than_its_budget(epsilon, delta, true):
    """n = 400, nine nodes of the ten that are paid for."""
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


def test_an_eager_silo_is_proven_for_items_only():
    system = make(**BATCH, lazy=False)
    c = system.certificate
    assert (c.status, c.exact) == ("unproven", None)
    (side,) = c.also
    assert (side.unit, side.status, side.caveats) == ("item", "proven", ())
    assert 1.0 - 1e-9 < side.exact.epsilon <= 1.0
    assert any("raw data of a user choose the next actions" in t for t in c.caveats)
    # In batches of one there is no next action of the batch.
    assert make(**FIXED, batch_size=1, lazy=False).certificate.status == "proven"


@pytest.mark.parametrize("relation", ["replace", "zero-out"])
@pytest.mark.parametrize("budget", [(0.1, 1e-8), (50.0, 1e-3)])
@pytest.mark.parametrize("horizon", [1, 7, 8, 100])
def test_a_private_schedule_is_paid_from_the_same_budget(horizon, budget, relation):
    epsilon, delta = budget
    setting = ProblemSpec(silos=3, horizon=horizon, dimension=4)
    system = make(
        setting, schedule="private-determinant", epsilon=epsilon, delta=delta, relation=relation
    )
    c, rule = system.certificate, system.plan.trigger
    assert rule.kind == PRIVATE_DETERMINANT and rule.extra == 0.0
    assert c.status == "proven" and found(system, NOISY_SCHEDULE)
    assert 1.0 - 1e-9 < c.exact.epsilon / epsilon <= 1.0
    assert "zhou-chowdhury-2024, Appendix D.2" in c.source
    # Both trees at once: of what is sent, and of what the schedule reads, leaf by round.
    sums = user_sensitivity(relation, "goe2") / system.plan.noise_std.bias
    read = user_sensitivity(relation, "goe2", bias_std=math.inf) / rule.std[0]
    nodes = math.sqrt(depth(horizon))
    mu = compose([nodes * sums, nodes * read])
    assert sums == pytest.approx(read)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    # And without the package: 2 and 1 for replacement, sqrt(3/2) and sqrt(1/2) for zero-out.
    square, other = (4.0, 1.0) if relation == "replace" else (1.5, 0.5)
    by_hand = depth(horizon) * (
        square / system.plan.noise_std.bias**2 + other / c.noise_std["schedule"] ** 2
    )
    assert epsilon_by_hand(math.sqrt(by_hand), delta) == pytest.approx(epsilon, rel=1e-8)
    assert rule.std == (c.noise_std["schedule"], math.sqrt(2.0) * c.noise_std["schedule"])


def test_the_schedule_costs_noise():
    """Half of mu^2 goes to it, so that the sums carry sqrt 2 of the noise."""
    ratio = make(**QUIET).plan.noise_std.bias / make(**FIXED, batch_size=1).plan.noise_std.bias
    assert ratio == pytest.approx(math.sqrt(2.0))


def test_an_eager_private_schedule_is_proven_for_items_only():
    c = make(**QUIET, lazy=False).certificate
    assert (c.status, c.exact) == ("unproven", None)
    (side,) = c.also
    assert (side.unit, side.status, side.caveats) == ("item", "proven", ())
    assert 1.0 - 1e-9 < side.exact.epsilon <= 1.0


@pytest.mark.parametrize("lazy", [True, False])
def test_every_round_is_a_fixed_schedule(lazy):
    system = make(**PRIVATE, communication="MT", lazy=lazy)
    assert system.plan.trigger is None and system.plan.batch_size == 1
    assert system.certificate.status == "proven" and found(system, SCHEDULE)
    assert system.certificate.exact.epsilon == pytest.approx(1.0, rel=1e-9)
    same = make(**FIXED, batch_size=1, lazy=lazy)
    assert same.plan.noise_std == system.plan.noise_std
    assert same.certificate == system.certificate


@pytest.mark.parametrize("schedule", ["determinant", "fixed"])
def test_without_privacy_nothing_is_claimed(schedule):
    more = {"batch_size": 5} if schedule == "fixed" else {}
    system = make(private=False, schedule=schedule, **more)
    c = system.certificate
    assert (c.status, c.exact, c.claimed, c.also) == ("none", None, None, ())
    assert c.caveats[0] == "no privacy"
    assert system.plan.noise_std.parts == (0.0, 0.0, 0.0)
    assert system.plan.protocol.id == "none"


@pytest.mark.parametrize(
    ("change", "start"),
    [
        ({"multiplicity": 2}, "no record is served twice"),
        ({"features_bounded": False}, "feature norms <= 1"),
        ({"reward_range": None}, "rewards bounded by 1"),
    ],
)
def test_what_the_run_does_not_keep_is_unproven(change, start):
    setting = ProblemSpec(silos=3, horizon=100, dimension=4, **change)
    for keys, status in ((BATCH, "unproven"), (QUIET, "unproven"), (PRIVATE, "none")):
        system = make(setting, **keys, clip=False)
        c = system.certificate
        assert (c.status, c.exact) == (status, None)
        assert not found(system, start)
        failed = [c.text for c in c.also[0].conditions if not c.holds]
        assert c.also[0].status == "conditional" and c.also[0].exact is not None
        assert len(failed) == (2 if keys is PRIVATE else 1)
    if "multiplicity" not in change:
        assert make(setting, **BATCH).certificate.status == "proven"


# -- Regularizer, radius and trigger ---------------------------------------------------------------

BOUNDED = "every silo's regularizer lies between"
BIASED = "kappa exceeds the bias noise"
ORDERED = "one order of rounds holds for all silos"
OWN_ORDER = "each silo's own order of events"


def shown_radius(system: System, v: np.ndarray) -> float:
    log_det = float(np.linalg.slogdet(v)[1])
    return system.plan.radius.of(0, 1.0, log_det, len(v))


def definite(d: int, least: float, seed: int) -> np.ndarray:
    """A symmetric matrix with all eigenvalues >= least."""
    square = np.random.default_rng(seed).normal(size=(d, d))
    return square @ square.T * least + least * np.eye(d)


LAWS = [
    # keys, orders that the radius counts, releases
    ({**BATCH}, 1, 14),
    ({**BATCH, "lazy": False}, 3, 14),
    ({**BATCH, "calibration": "theorem", "lazy": False}, 1, 14),
    ({**BATCH, "calibration": "theorem", "failure_probability": 0.2}, 1, 14),
    ({**FIXED, "batch_size": 1, "lazy": False}, 1, 100),
    ({**PRIVATE}, 1, 100),
    ({**PRIVATE, "calibration": "theorem", "communication": "M1.5"}, 1, 100),
    ({**PRIVATE, "lazy": False, "communication": 3}, 3, 100),
    ({**QUIET}, 1, 100),
    ({**QUIET, "lazy": False, "failure_probability": 1e-6}, 3, 100),
    ({**QUIET, "rho_min": 900.0}, 1, 100),
    ({**PRIVATE, "rho_min": 7.5, "communication": "M1.5"}, 1, 100),
    ({"private": False}, 1, 100),
    ({"private": False, "rho_min": 0.25, "lazy": False, "communication": "M1.5"}, 3, 100),
]


@pytest.mark.parametrize(("keys", "orders", "releases"), LAWS)
def test_the_formulas_of_the_paper(keys, orders, releases):
    """rho_min, rho_max, kappa, beta and D, from the oracle and a budget solved by hand."""
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
        law = oracle.prefix_nodes(releases), d, releases, m, alpha
        low = keys.get("rho_min", oracle.lambda_from_noise(std, *law))
        high = 3 * low
        kappa = oracle.kappa_from_noise(std, law[0], low, *law[1:])
    if private:
        expected = (std, std, math.sqrt(2.0) * std)
        assert plan.noise_std.parts == pytest.approx(expected, rel=1e-8)
    assert plan.regularizer == pytest.approx(m * np.array([low, (low + high) / 2]), rel=1e-8)
    for seed in range(3):
        v = definite(d, m * low, seed)
        beta = oracle.beta(
            v, sigma=0.5, alpha=alpha / orders, norm=1.0, M=m, rho_min=low, rho_max=high,
            kappa=kappa,
        )  # fmt: skip
        assert shown_radius(system, v) == pytest.approx(beta, rel=1e-8)
    if keys.get("schedule") == "fixed":
        assert plan.trigger is None
        return
    named = keys.get("communication", "log-T")
    if isinstance(named, str):
        sizes = {"T": t, "M": m, "d": d, "L": 1.0}
        named = oracle.threshold(named, **sizes, rho_min=low, rho_max=high)
    assert plan.trigger.threshold == pytest.approx(named, rel=1e-8)
    spread = 0.0 if keys.get("schedule") else m * (high - low)
    assert plan.trigger.extra == pytest.approx(spread, rel=1e-8)
    assert plan.trigger.delay == 0


@pytest.mark.parametrize("communication", ["log-T", "M1.5", 300.0])
@pytest.mark.parametrize("calibration", ["exact", "theorem"])
@pytest.mark.parametrize("private", [True, False])
def test_a_batch_size_as_often_as_proposition_1_counts(private, calibration, communication):
    """B = ceil(T / ceil(n)), n at Lambda of T releases; the noise is that of T // B."""
    t, m, d = 2000, 5, 3
    setting = ProblemSpec(silos=m, horizon=t, dimension=d)
    budget = {"epsilon": 4.0, "delta": 1e-3} if private else {"private": False}
    keys = {"schedule": "fixed", "batch_size": "theorem", "calibration": calibration, **budget}
    keys["communication"] = communication
    system = make(setting, **keys)
    low = high = 1.0
    if private and calibration == "theorem":
        low = oracle.big_lambda(4.0, 1e-3, oracle.levels(t), 1.0, d, t, m, 0.01)
    elif private:
        std = math.sqrt(11) * 2.0 / mu_by_hand(4.0, 1e-3)
        low = oracle.lambda_from_noise(std, oracle.prefix_nodes(t), d, t, m, 0.01)
    high = 3 * low if private else low
    sizes = {"T": t, "d": d, "L": 1.0, "rho_min": low, "rho_max": high}
    bar = communication
    if isinstance(communication, str):
        bar = oracle.threshold(communication, M=m, **sizes)
    n = math.ceil(oracle.proposition_1(bar, **sizes)["appendix"])
    assert system.plan.batch_size == -(-t // n)
    assert 1 < system.plan.batch_size < t
    again = make(setting, **{**keys, "batch_size": system.plan.batch_size})
    assert again.plan.noise_std == system.plan.noise_std
    assert (again.plan.regularizer == system.plan.regularizer).all()


def test_printed_kappa_is_a_bound_at_large_delta_only():
    """It lacks delta: the condition says which, and the exact one always holds."""
    flips = set()
    setting = ProblemSpec(silos=100, horizon=100_000, dimension=10)
    for delta in (0.1, 0.01, 1e-3, 1e-5, 1e-8):
        keys = {"epsilon": 1.0, "delta": delta, "lazy": True}
        system = make(setting, **keys, calibration="theorem")
        n = 100_000
        levels = oracle.levels(n)
        low = oracle.big_lambda(1.0, delta, levels, 1.0, 10, n, 100, 0.01)
        std = oracle.node_noise_std(1.0, delta, levels, 1.0)
        proven = oracle.kappa_from_noise(std, oracle.prefix_nodes(n), low, 10, n, 100, 0.01)
        printed = oracle.kappa_printed(1.0, levels, 1.0, 10, n, 100, 0.01)
        assert found(system, BIASED) == (printed >= proven)
        assert found(system, BOUNDED)
        assert system.theory.proven == (printed >= proven)
        flips.add(found(system, BIASED))
        assert found(make(setting, **keys), BIASED)
    assert flips == {True, False}
    missing = " ".join(system.certificate.caveats)
    assert "the regret bound is unproven here" in missing and BIASED in missing


def test_kappa_at_a_small_delta_is_unproven():
    assert not found(make(epsilon=1.0, delta=1e-5, calibration="theorem"), BIASED)


@pytest.mark.parametrize("keys", [BATCH, PRIVATE, QUIET], ids=lambda k: k.get("schedule", "raw"))
def test_a_given_rho_min_must_carry_the_noise(keys):
    bound = float(make(**keys).theory.lambda_min[0]) / 3
    std = make(**keys).plan.noise_std.bias
    n = 14 if keys is BATCH else 100
    expected = oracle.lambda_from_noise(std, oracle.prefix_nodes(n), 4, n, 3, 0.01)
    assert bound == pytest.approx(expected, rel=1e-12)
    for factor, holds in ((0.999, False), (1.001, True), (5.0, True)):
        system = make(**keys, rho_min=factor * bound)
        assert found(system, BOUNDED) is holds
        assert found(system, BIASED)  # kappa is that of the given rho_min
        assert system.theory.proven is holds
        assert system.theory.lambda_min[0] == pytest.approx(3 * factor * bound)
        # Privacy is untouched.
        assert system.certificate.status == make(**keys).certificate.status
    printed = make(**{**BATCH, "calibration": "theorem"})
    less = make(
        **{**BATCH, "calibration": "theorem"}, rho_min=float(printed.theory.lambda_min[0]) / 50
    )
    assert found(printed, BOUNDED) and not found(less, BOUNDED)


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        (BATCH, True),
        ({**BATCH, "lazy": False}, True),  # once for each silo
        ({**BATCH, "lazy": False, "calibration": "theorem"}, False),  # printed: once
        ({**BATCH, "calibration": "theorem"}, True),
        ({**FIXED, "batch_size": 1, "lazy": False, "calibration": "theorem"}, True),
        (PRIVATE, True),
        ({**PRIVATE, "lazy": False}, False),
        ({**PRIVATE, "lazy": False, "communication": "MT"}, True),
        ({**PRIVATE, "lazy": False, "calibration": "theorem"}, False),
        (QUIET, True),
        ({**QUIET, "lazy": False}, False),
        ({"private": False}, True),
        ({"private": False, "lazy": False}, False),
        ({"private": False, "schedule": "fixed", "batch_size": 5, "lazy": False}, True),
    ],
)
def test_orders_of_events(keys, holds):
    assert found(make(**keys), ORDERED) is holds


def test_other_conditions_of_the_regret_bound():
    assert make(**BATCH).theory.proven
    multiplied = make(**BATCH, radius_multiplier=0.5)
    assert not found(multiplied, "the radius is that of Proposition 2 at least")
    assert found(make(**BATCH, radius_multiplier=2.0), "the radius is that of Proposition 2")
    bent = make(ProblemSpec(silos=3, horizon=100, dimension=4, linear=False), **BATCH)
    assert not found(bent, "the expected reward is <x, theta*>")
    moved = make(ProblemSpec(silos=3, horizon=100, dimension=4, reward_range=None), **BATCH)
    assert not found(moved, "rewards are bounded, and clipping")
    for system in (multiplied, bent, moved):
        assert not system.theory.proven
        assert any("the regret bound is unproven" in t for t in system.certificate.caveats)
        assert system.certificate.status == "proven"


@pytest.mark.parametrize("schedule", ["fixed", "private-determinant"])
@pytest.mark.parametrize("lazy", [True, False])
def test_the_direct_radius(schedule, lazy):
    more = {"batch_size": 7} if schedule == "fixed" else {}
    system = make(**PRIVATE, schedule=schedule, radius="direct", lazy=lazy, **more)
    theory, plan = system.theory, system.plan
    assert plan.radius.direct
    eager_by_data = schedule != "fixed" and not lazy
    assert theory.proven is not eager_by_data
    own = [c.holds for c in theory.conditions if c.text.startswith(OWN_ORDER)]
    assert own == ([False] if eager_by_data else [])
    # alpha / 2 for rewards, once for each silo that has an order of its own.
    assert plan.radius.base == pytest.approx(2 * math.log((1 if lazy else 3) / 0.005))
    # The schedule's noise is not in the sums, and the one release stands for all.
    assert len(plan.regularizer) == (15 if schedule == "fixed" else 2)
    assert (system.certificate.status == "proven") is lazy


def test_the_direct_radius_of_a_private_schedule_covers_every_release():
    """As of a fixed schedule with the same noise in all T releases, where it is largest."""
    budget = {"epsilon": 1.0, "delta": 1e-4, "radius": "direct"}
    quiet = make(**budget, schedule="private-determinant").plan
    every = make(**budget, schedule="fixed", batch_size=1).plan
    scale = quiet.noise_std.bias / every.noise_std.bias
    largest = every.radius.error_bound.max()
    assert quiet.radius.error_bound[1] == pytest.approx(scale * largest, rel=1e-9)
    assert quiet.radius.error_bound[0] == 0.0
    assert quiet.entry(57) == 1


@pytest.mark.parametrize("schedule", ["determinant", "private-determinant"])
def test_confidence_sets_cover_in_a_whole_run(schedule):
    """theta* inside the last confidence set of 60 runs, failure probability 0.2."""
    from fastfed.simulation import compiled

    sphere = Sphere(dimension=3, actions=5)
    setting = problem_spec(sphere.facts(2, 60), 2, 60)
    keys = {"epsilon": 50.0, "delta": 1e-3, "failure_probability": 0.2, "communication": 4.0}
    plan = make(setting, schedule=schedule, **keys).plan
    outside, often = 0, set()
    for replicate in range(60):
        opened = sphere.open(0, replicate, 2)
        (played,) = compiled.run(opened, [plan], np.array([60]))
        v = np.zeros((3, 3))
        v[np.tril_indices(3)] = played.total[3:]
        v = v + np.tril(v, -1).T + plan.regularizer[1] * np.eye(3)
        error = sphere.theta(0, replicate) - np.linalg.solve(v, played.total[:3])
        radius = plan.radius.of(1, 1.0, float(np.linalg.slogdet(v)[1]), 3)
        outside += error @ v @ error > radius**2
        often.add(int(played.synchronisations[0]))
    assert outside <= 0.2 * 60
    assert min(often) > 0


# -- Keys ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({**PRIVATE, "schedule": "adaptive"}, 'schedule must be one of "determinant", "fixed", '),
        ({**PRIVATE, "communication": "MlogT"}, 'communication must be one of "log-T", "M1.5", '),
        ({**PRIVATE, "communication": 0}, "communication must be > 0, got 0"),
        ({**PRIVATE, "communication": -2.5}, "communication must be > 0, got -2.5"),
        ({**PRIVATE, "communication": float("inf")}, "communication must be > 0, got inf"),
        ({**PRIVATE, "rho_min": 0.0}, "rho_min must be > 0, got 0.0"),
        ({**PRIVATE, "regularizer": 1.0}, "regularizer has no meaning for feducb"),
        ({**PRIVATE, "regularizer": "from-noise"}, "it follows from rho_min"),
        ({**QUIET, "communication": "MT"}, '"MT" is every round: it needs no private-determinant'),
        ({**PRIVATE, "batch_size": 5}, 'batch_size belongs to schedule "fixed", got "determinant"'),
        ({**QUIET, "batch_size": "theorem"}, 'belongs to schedule "fixed", got "private-determina'),
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
        ({**QUIET, "calibration": "theorem"}, 'schedule "private-determinant" needs calibration'),
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
        ({**FIXED, "batch_size": "theorm"}, 'batch_size must be one of "theorem", "growing", got'),
        ({**PRIVATE, "comunication": "MT"}, 'unknown key "comunication" for feducb; did you mean'),
        ({**PRIVATE, "protocol": "central"}, 'unknown key "protocol" for feducb'),
        ({"private": "no"}, "private must be true or false, got 'no'"),
        ({**PRIVATE, "epsilon": "one"}, "epsilon must be a number, got '"),
    ],
)
def test_bad_keys_are_one_clear_sentence(keys, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        make(**keys)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"), [("relation", "swap"), ("calibration", "published-code")]
)
def test_a_bad_choice_is_refused_without_privacy_too(key, value):
    with pytest.raises(InputError, match=f"{key} must be one of"):
        make(private=False, **{key: value})


def test_every_round_and_a_batch_size_exclude_each_other():
    with pytest.raises(InputError, match="batch_size"):
        make(**FIXED, batch_size=10, communication="MT")


def test_good_keys():
    """What the sentences allow: a whole number, "MT" with the direct radius, every default."""
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
