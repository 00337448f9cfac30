"""Smaller bonuses under a ledger, and the regret bound of batches that differ."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import problems
import pytest
import twins
from oracle import schedules as oracle
from test_schedules import both, checked, direct_of, ends_of, experiment_of

import fastfed
from fastfed._kernels import aggregation, linalg
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import allowance, direct_regret_bound
from fastfed.protocols.plan import Plan
from fastfed.simulation import compiled
from fastfed.simulation.systems import ALGORITHMS


def lower(d: int, seed: int, spread: float) -> np.ndarray:
    """W of a V whose eigenvalues lie far apart."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    v = q * np.exp(rng.uniform(-spread, spread, size=d)) @ q.T
    return np.ascontiguousarray(np.linalg.inv(np.linalg.cholesky((v + v.T) / 2.0)))


# ---- the charge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 10, 31])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_the_charge_of_a_round_bounds_the_worst_row(d: int, spread: float) -> None:
    """q lies between the largest eigenvalue of V^-1 and d^(1/8) times it."""
    for seed in range(5):
        w = lower(d, seed, spread)
        largest = float(np.linalg.eigvalsh(w.T @ w)[-1])
        scaled = np.ascontiguousarray(w * math.sqrt(0.1 / largest))
        # With beta = 0, gamma = 1 and m = 0 the charge is q itself.
        q = linalg.missing_bonus(scaled, 0.0, 1.0, 0.0)
        assert 0.1 * (1.0 - 1e-12) <= q <= 0.1 * d**0.125 * (1.0 + 1e-8)
        assert linalg.missing_bonus(scaled, 1.0, 0.0, 0.0) == pytest.approx(math.sqrt(q))
        # The worst row of the ball, found by eigenvectors, and random ones.
        rng = np.random.default_rng(seed)
        rows = np.vstack([np.linalg.eigh(scaled.T @ scaled)[1].T, rng.normal(size=(50, d))])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        for beta, gamma, m in ((0.3, 0.2, 0.0), (0.1, 3.0, 0.5), (1.0, 0.0, 0.9)):
            widths = beta * np.linalg.norm(rows @ scaled.T, axis=1)
            widths += gamma * np.linalg.norm(rows @ scaled.T @ scaled, axis=1)
            charge = linalg.missing_bonus(scaled, beta, gamma, m)
            assert (np.minimum(1.0, (1.0 - m) * widths) <= charge * (1.0 + 1e-12)).all()
        assert linalg.missing_bonus(scaled, 1e9, 1e9, 0.5) == 1.0
        assert linalg.missing_bonus(scaled, 1.0, 1.0, 1.0) == 0.0


@pytest.mark.parametrize("d", [1, 2, 5, 17])
def test_kernels_and_twins(d: int) -> None:
    for seed in range(10):
        w = lower(d, seed, 3.0)
        for arguments in ((0.1, 0.2, 0.3), (1e-9, 1e-3, 0.0), (2.0, 5.0, 1.0)):
            assert linalg.missing_bonus(w, *arguments) == twins.missing_bonus(w, *arguments)
        rng = np.random.default_rng(seed)
        rows, weights = rng.normal(size=(7, d)), rng.normal(size=seed % 7 + 1)
        np.testing.assert_array_equal(
            aggregation.weighted_sum(rows, weights), twins.weighted_sum(rows, weights)
        )


# ---- allowances and bounds -----------------------------------------------------------------------


def system_of(algorithm: str = "fedlinucb", **keys: Any) -> Any:
    sizes = {k: keys.pop(k, v) for k, v in {"silos": 2, "horizon": 500, "dimension": 2}.items()}
    if algorithm == "private-fedlinucb":
        keys = {"epsilon": 50.0, "delta": 1e-2, **keys}
    return ALGORITHMS.choose(algorithm).make(keys, ProblemSpec(**sizes))


SYSTEMS: list[dict[str, Any]] = [
    {"batch_size": 4},
    {"batch_size": 7, "dimension": 3},
    {"batch_size": "growing", "batch_ratio": 1.3},
    {"batch_size": "growing", "horizon": 20_000, "silos": 10},
    {"release_rounds": (1, 2, 400)},
    {"release_rounds": (500,)},
    {"release_rounds": (100, 110, 120, 125, 130, 140)},
    {"algorithm": "private-fedlinucb", "batch_size": 5, "protocol": "central"},
    {"algorithm": "private-fedlinucb", "batch_size": "growing", "release": "factorised",
     "protocol": "central", "horizon": 20_000, "silos": 10},
]  # fmt: skip


@pytest.mark.parametrize("keys", SYSTEMS)
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_allowances_are_shares_of_the_bound_by_then(keys: dict[str, Any], share: float) -> None:
    system = system_of(**keys, bonus=0.5, ledger=share)
    plan, ends = system.plan, ends_of(system.plan)
    assert len(plan.allowance) == plan.releases + 1
    assert (np.diff(plan.allowance) >= 0.0).all()
    stops = [*ends, plan.horizon]
    for k in range(plan.releases + 1):
        bound = oracle.regret_bound(
            ends=ends, horizon=plan.horizon, silos=plan.silos, d=plan.dimension,
            direct=direct_of(plan), until=stops[k], unequal=bool(plan.release_rounds),
        )  # fmt: skip
        least = min(plan.silos * stops[k], bound)
        assert plan.allowance[k] == pytest.approx(share * least, rel=1e-12)


@pytest.mark.parametrize("keys", SYSTEMS)
def test_the_bound_pays_for_the_ledger(keys: dict[str, Any]) -> None:
    full = system_of(**keys)
    less = system_of(**keys, bonus=0.5, ledger=0.25)
    before = direct_regret_bound(full.plan, full.theory)
    after = direct_regret_bound(less.plan, less.theory)
    assert before is not None and after is not None
    assert after == before + less.plan.allowance[-1]
    assert before < after <= 1.25 * before * (1.0 + 1e-12)
    plan = full.plan
    whole = oracle.regret_bound(
        ends=ends_of(plan), horizon=plan.horizon, silos=plan.silos, d=plan.dimension,
        direct=direct_of(plan), unequal=bool(plan.release_rounds),
    )  # fmt: skip
    assert before == pytest.approx(whole, rel=1e-12)


def equal_batches(plan: Plan, full: np.ndarray) -> float:
    """The bound for equal batches, operation by operation as it was before others were known."""
    radius = plan.radius
    d, c = plan.dimension, radius.anchor
    alone = plan.batch_size == 0
    batch = plan.batch_size or 1
    rows = (1 if alone else plan.silos) * batch
    starts = np.arange(0, plan.horizon, batch)
    entry = np.minimum(starts // batch, len(radius.error_bound) - 1)
    n = np.maximum(full[entry] - c, 0.0)
    gamma = n + c + radius.error_bound[entry]
    seen = rows * (starts // batch) / d

    def beta(f: float) -> np.ndarray:
        width: np.ndarray = radius.scale * np.sqrt(
            f * (radius.base + d * np.log(f * (2.0 * n + c + seen) / c))
        )
        return width

    worst = beta(1.0) + gamma / math.sqrt(c)
    lowered = math.sqrt(2.0) * (beta(2.0) + gamma / np.sqrt(n + c))
    worst = np.where(radius.floor[entry] > 0.0, np.maximum(worst, lowered), worst)
    lengths = np.minimum(batch, plan.horizon - starts) * (rows // batch)
    growth = d * math.log1p(float(lengths.sum()) / (d * c))
    bad = 0.0 if alone else rows * growth / math.log(2.0)
    good = 2.0 * math.sqrt(2.0 * growth * float((lengths * worst**2).sum()))
    return float((plan.silos if alone else 1) * (bad + radius.multiplier * good))


@pytest.mark.parametrize("batch", [1, 3, 7, 25, 499, 500])
@pytest.mark.parametrize("algorithm", ["fedlinucb", "private-fedlinucb", "local-linucb"])
def test_equal_batches_have_the_bound_that_they_had(algorithm: str, batch: int) -> None:
    for multiplier in (1.0, 1.7):
        keys = {"radius_multiplier": multiplier}
        if algorithm != "local-linucb":
            keys["batch_size"] = batch
        system = system_of(algorithm, dimension=3, silos=4, **keys)
        found = direct_regret_bound(system.plan, system.theory)
        assert found == equal_batches(system.plan, system.theory.regularizer)


def test_a_silo_alone_below_a_regularizer_of_one_has_bad_rounds() -> None:
    """A row may then more than double det A, so that step 4 of the proof does not cover it."""
    for regularizer, least in ((1.0, False), (0.5, True)):
        system = system_of("local-linucb", dimension=3, silos=4, regularizer=regularizer)
        c = system.plan.radius.anchor
        assert c == regularizer
        found = direct_regret_bound(system.plan, system.theory)
        without = equal_batches(system.plan, system.theory.regularizer)
        bad = 4 * 3 * math.log1p(500 / (3 * c)) / math.log(2.0)
        assert found == pytest.approx(without + (bad if least else 0.0), rel=1e-12)


def test_rewards_that_differ_by_more_than_one_cost_more_in_bad_batches() -> None:
    spec = {"silos": 2, "horizon": 300, "dimension": 2, "reward_scale": 0.7}
    entry = ALGORITHMS.choose("fedlinucb")
    keys = {"batch_size": 5, "clip": False}
    narrow = entry.make(keys, ProblemSpec(**spec, reward_range=(-0.5, 0.5)))
    wide = entry.make(keys, ProblemSpec(**spec, reward_range=(-0.7, 0.7)))
    assert narrow.theory.proven and wide.theory.proven
    assert wide.theory.most_regret == pytest.approx(1.4)
    low = direct_regret_bound(narrow.plan, narrow.theory)
    high = direct_regret_bound(wide.plan, wide.theory)
    assert low is not None and high is not None
    rows = 600.0
    bad = 10.0 * 2.0 * math.log1p(rows / (2.0 * narrow.plan.radius.anchor)) / math.log(2.0)
    assert high - low == pytest.approx(0.4 * bad, rel=1e-9)
    with pytest.raises(InputError, match=r"interval of length 1, .* the length is 1\.4"):
        entry.make({**keys, "bonus": 0.5}, ProblemSpec(**spec, reward_range=(-0.7, 0.7)))


# ---- runs ----------------------------------------------------------------------------------------


#: Shares of the bound are such that no charge is equal to an allowance.
RUNS: list[tuple[dict[str, Any], float, float]] = [
    ({"protocol": "none", "horizon": 150, "batch_size": "growing", "batch_ratio": 1.3}, 0.0, 0.317),
    ({"protocol": "none", "horizon": 150, "batch_size": 6}, 0.3, 1.013),
    ({"protocol": "central", "horizon": 120, "batch_size": "growing", "release": "factorised",
      "epsilon": 300.0}, 0.3, 0.517),
    ({"protocol": "silo-ldp", "horizon": 100, "release_rounds": [1, 5, 50, 60]}, 0.5, 5.03),
    ({"protocol": "shuffle-vector", "horizon": 60, "batch_size": "growing", "release": "flat",
      "epsilon": 200.0}, 0.2, 0.513),
    ({"protocol": "linucb-jdp", "silos": 1, "horizon": 150, "batch_size": 7,
      "epsilon": 300.0}, 0.3, 0.717),
    ({"protocol": "silo-ldp", "horizon": 80, "batch_size": "growing", "reward_centre": 0.5,
      "epsilon": 200.0}, 0.1, 0.613),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "bonus", "share"), RUNS)
@pytest.mark.parametrize("multiplier", [1.0, 1.5])
def test_regret_is_at_most_the_first_terms_and_the_ledger(
    keys: dict[str, Any], bonus: float, share: float, multiplier: float
) -> None:
    """The oracle knows theta*: each batch is charged at least what it misses."""
    sizes = {"silos": 2, "dimension": 2, "actions": 6, **keys}
    e, played, truth = checked(sizes, bonus=bonus, ledger=share, radius_multiplier=multiplier)
    plan, system = e.curves[0].system.plan, e.curves[0].system
    assert bonus in truth.bonuses
    # On the events of the proof, which these runs keep.
    assert truth.nearest_width >= -1e-9
    spent = 0.0
    for k, (m, charged) in enumerate(zip(truth.bonuses, truth.charged, strict=True)):
        assert m in (bonus, 1.0)
        assert charged == 0.0 or m == bonus
        # x* may be a row of norm 1 and the rounding of float32.
        assert truth.missing[k] <= charged * (1.0 + 1e-6)
        spent += charged
        assert spent <= plan.allowance[k] or charged == 0.0
    assert truth.regret[-1] <= sum(truth.terms) + spent
    bound = direct_regret_bound(plan, system.theory)
    assert bound is not None and played.group_regret[-1] <= bound
    assert spent <= plan.allowance[-1] <= bound


@pytest.mark.parametrize("bonus", [0.0, 0.4])
@pytest.mark.parametrize(
    "keys",
    [{"protocol": "none", "batch_size": 4}, {"protocol": "silo-ldp", "batch_size": "growing"},
     {"protocol": "central", "batch_size": 4, "release": "factorised"},
     {"protocol": "linucb-sdp-vec", "silos": 1, "batch_size": "growing"}],
)  # fmt: skip
def test_a_tiny_ledger_is_no_ledger(keys: dict[str, Any], bonus: float) -> None:
    """Nothing is ever allowed: bit for bit the run of bonus 1; of a large one, another run."""
    sizes = {"silos": 2, "dimension": 3, "actions": 6, "horizon": 60, **keys}
    runs = []
    for ledger in ({}, {"bonus": bonus, "ledger": 1e-12}, {"bonus": bonus, "ledger": 1e3}):
        fast, readable = both(experiment_of(sizes, **ledger))
        np.testing.assert_array_equal(fast.actions, readable.actions)
        runs.append(fast)
    np.testing.assert_array_equal(runs[0].actions, runs[1].actions)
    np.testing.assert_array_equal(runs[0].group_regret, runs[1].group_regret)
    np.testing.assert_array_equal(runs[0].total, runs[1].total)
    assert (runs[0].actions != runs[2].actions).any()


def test_less_exploration_pays_where_it_should() -> None:
    """Privacy noise makes bonuses large: with less of them regret is lower, within the ledger."""
    regrets = []
    for keys in ({}, {"bonus": 0.3, "ledger": 1.0}):
        e = experiment_of(
            {"protocol": "central", "silos": 10, "dimension": 4, "actions": 30, "horizon": 2000,
             "batch_size": "growing", "release": "factorised", "epsilon": 3.0}, **keys,
        )  # fmt: skip
        found = []
        for replicate in range(3):
            opened = e.environment.open(e.seed, replicate, e.silos)
            (played,) = compiled.run(opened, [e.curves[0].system.plan], np.array([2000]))
            found.append(played.group_regret[-1])
        regrets.append(float(np.mean(found)))
    assert regrets[1] < 0.8 * regrets[0]


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [("none", {"batch_ratio": 1.02}), ("none", {"batch_ratio": 1.02, "bonus": 0.3, "ledger": 0.1}),
     ("central", {"batch_ratio": 1.02, "release": "factorised", "epsilon": 300.0})],
)  # fmt: skip
def test_the_bound_of_growing_batches_holds_where_it_says_something(
    protocol: str, keys: dict[str, Any]
) -> None:
    horizon = 200_000
    e = experiment_of(
        {"silos": 10, "dimension": 2, "actions": 5, "horizon": horizon, "protocol": protocol,
         "batch_size": "growing", **keys}
    )  # fmt: skip
    system = e.curves[0].system
    bound = direct_regret_bound(system.plan, system.theory)
    assert bound is not None and bound < 10 * horizon
    opened = e.environment.open(0, 0, 10)
    (played,) = compiled.run(opened, [system.plan], np.array([horizon]))
    assert played.group_regret[-1] < bound


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "keys", "says"),
    [
        ("fedlinucb", {"batch_size": 5, "bonus": 1.1}, r"bonus must be >= 0 and <= 1, got 1\.1"),
        ("fedlinucb", {"batch_size": 5, "bonus": -0.1}, r"bonus must be >= 0 and <= 1, got -0\.1"),
        ("fedlinucb", {"batch_size": 5, "bonus": 0.5, "ledger": 0.0}, "ledger must be > 0"),
        ("fedlinucb", {"batch_size": 5, "ledger": 2.0}, "ledger needs a bonus below 1"),
        ("fedlinucb", {"batch_size": 5, "bonus": 0.5, "lazy": False}, "needs radius"),
        ("fedlinucb", {"batch_size": 5, "bonus": 0.5, "radius": "lemma-c2"}, "needs radius"),
        ("fedlinucb", {"batch_size": 5, "bonus": 0.5, "score": "thompson"}, "score"),
        ("linucb", {"bonus": 0.5}, "bonus below 1 needs batches"),
        ("local-linucb", {"bonus": 0.5}, "needs radius"),
        ("feducb", {"schedule": "private-determinant", "radius": "direct", "lazy": True,
                    "bonus": 0.5, "epsilon": 1.0, "delta": 1e-3}, 'bonus below 1 needs schedule'),
    ],
)  # fmt: skip
def test_bonuses_that_no_proof_is_about_are_refused(
    algorithm: str, keys: dict[str, Any], says: str
) -> None:
    silos = 1 if algorithm == "linucb" else 2
    with pytest.raises(InputError, match=says):
        ALGORITHMS.choose(algorithm).make(keys, ProblemSpec(silos=silos, horizon=40, dimension=2))


def test_allowances_are_for_plans_of_the_proof_alone() -> None:
    system = system_of(batch_size=5)
    for change in ({"lazy": False}, {"batch_size": 0}, {"policy": "random"}):
        with pytest.raises(InputError, match="bonus below 1 needs batches"):
            allowance(replace(system.plan, **change), system.theory, 1.0)


def test_a_public_system_takes_the_keys() -> None:
    assert problems.curve("none", bonus=0.5)["algorithm"] == "fedlinucb"
    world = {"kind": "sphere", "dimension": 3, "actions": 5}
    result = fastfed.simulate(
        world, "fedlinucb", horizon=40, silos=2, batch_size="growing", bonus=[1.0, 0.5], seed=1
    )
    assert len(result.curves) == 2
