"""Tests of smaller bonuses under a regret allowance (key ``ledger``), and of bounds for unequal
batches.

A bonus below 1 explores less. The rounds in which this happens are charged to an allowance, which
is a share of the regret bound.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import problems
import pytest
import twins
from oracle import schedules as oracle
from test_schedules import (
    check_against_oracle,
    direct_radius,
    experiment_of,
    release_rounds,
    run_both,
)

import fastfed
from fastfed._kernels import aggregation, linalg
from fastfed._validate import InputError
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import allowance, direct_regret_bound
from fastfed.protocols.plan import Plan
from fastfed.simulation import compiled
from fastfed.simulation.systems import ALGORITHMS


def ill_conditioned_factor(d: int, seed: int, spread: float) -> np.ndarray:
    """Return the factor W of a V whose eigenvalues are far apart."""
    rng = np.random.default_rng(seed)
    q, _ = np.linalg.qr(rng.normal(size=(d, d)))
    v = q * np.exp(rng.uniform(-spread, spread, size=d)) @ q.T
    return np.ascontiguousarray(np.linalg.inv(np.linalg.cholesky((v + v.T) / 2.0)))


# ---- the charge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 3, 10, 31])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_charge_of_a_round_bounds_every_missing_bonus(d: int, spread: float) -> None:
    """Check that q lies between the largest eigenvalue of V^-1 and d^(1/8) times this
    eigenvalue."""
    for seed in range(5):
        w = ill_conditioned_factor(d, seed, spread)
        largest = float(np.linalg.eigvalsh(w.T @ w)[-1])
        scaled = np.ascontiguousarray(w * math.sqrt(0.1 / largest))
        # With beta = 0, gamma = 1 and m = 0 the charge is q itself.
        q = linalg.missing_bonus(scaled, 0.0, 1.0, 0.0)
        assert 0.1 * (1.0 - 1e-12) <= q <= 0.1 * d**0.125 * (1.0 + 1e-8)
        assert linalg.missing_bonus(scaled, 1.0, 0.0, 0.0) == pytest.approx(math.sqrt(q))
        # Check the worst rows of the unit ball, which are eigenvectors, and random rows.
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
def test_kernels_equal_their_python_twins(d: int) -> None:
    for seed in range(10):
        w = ill_conditioned_factor(d, seed, 3.0)
        for arguments in ((0.1, 0.2, 0.3), (1e-9, 1e-3, 0.0), (2.0, 5.0, 1.0)):
            assert linalg.missing_bonus(w, *arguments) == twins.missing_bonus(w, *arguments)
        rng = np.random.default_rng(seed)
        rows, weights = rng.normal(size=(7, d)), rng.normal(size=seed % 7 + 1)
        np.testing.assert_array_equal(
            aggregation.weighted_sum(rows, weights), twins.weighted_sum(rows, weights)
        )


# ---- allowances and bounds -----------------------------------------------------------------------


def system_of(algorithm: str = "fedlinucb", **keys: Any) -> Any:
    """Make a system of two silos, 500 rounds and dimension 2; ``keys`` override these sizes."""
    sizes = {
        key: keys.pop(key, value)
        for key, value in {"silos": 2, "horizon": 500, "dimension": 2}.items()
    }
    if algorithm == "private-fedlinucb":
        keys = {"epsilon": 50.0, "delta": 1e-2, **keys}
    return ALGORITHMS.choose(algorithm).make(keys, ProblemSpec(**sizes))


SYSTEM_KEYS: list[dict[str, Any]] = [
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


@pytest.mark.parametrize("keys", SYSTEM_KEYS)
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_allowances_are_shares_of_the_regret_bound(keys: dict[str, Any], share: float) -> None:
    system = system_of(**keys, bonus=0.5, ledger=share)
    plan, given_rounds = system.plan, release_rounds(system.plan)
    assert len(plan.allowance) == plan.releases + 1
    assert (np.diff(plan.allowance) >= 0.0).all()
    stops = [*given_rounds, plan.horizon]
    for k in range(plan.releases + 1):
        bound = oracle.regret_bound(
            ends=given_rounds, horizon=plan.horizon, silos=plan.silos, d=plan.dimension,
            direct=direct_radius(plan), until=stops[k], unequal=bool(plan.release_rounds),
        )  # fmt: skip
        max_regret = min(plan.silos * stops[k], bound)
        assert plan.allowance[k] == pytest.approx(share * max_regret, rel=1e-12)


@pytest.mark.parametrize("keys", SYSTEM_KEYS)
def test_regret_bound_includes_the_allowance(keys: dict[str, Any]) -> None:
    full_bonus = system_of(**keys)
    smaller_bonus = system_of(**keys, bonus=0.5, ledger=0.25)
    before = direct_regret_bound(full_bonus.plan, full_bonus.theory)
    after = direct_regret_bound(smaller_bonus.plan, smaller_bonus.theory)
    assert before is not None and after is not None
    assert after == before + smaller_bonus.plan.allowance[-1]
    assert before < after <= 1.25 * before * (1.0 + 1e-12)
    plan = full_bonus.plan
    oracle_bound = oracle.regret_bound(
        ends=release_rounds(plan), horizon=plan.horizon, silos=plan.silos, d=plan.dimension,
        direct=direct_radius(plan), unequal=bool(plan.release_rounds),
    )  # fmt: skip
    assert before == pytest.approx(oracle_bound, rel=1e-12)


def bound_of_equal_batches(plan: Plan, full: np.ndarray) -> float:
    """Return the regret bound for equal batches, computed in the order of the original formula."""
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

    width_bound = beta(1.0) + gamma / math.sqrt(c)
    width_bound_at_lower_lambda = math.sqrt(2.0) * (beta(2.0) + gamma / np.sqrt(n + c))
    width_bound = np.where(
        radius.floor[entry] > 0.0, np.maximum(width_bound, width_bound_at_lower_lambda), width_bound
    )
    lengths = np.minimum(batch, plan.horizon - starts) * (rows // batch)
    growth = d * math.log1p(float(lengths.sum()) / (d * c))
    bad = 0.0 if alone else rows * growth / math.log(2.0)
    good = 2.0 * math.sqrt(2.0 * growth * float((lengths * width_bound**2).sum()))
    return float((plan.silos if alone else 1) * (bad + radius.multiplier * good))


@pytest.mark.parametrize("batch", [1, 3, 7, 25, 499, 500])
@pytest.mark.parametrize("algorithm", ["fedlinucb", "private-fedlinucb", "local-linucb"])
def test_bound_of_equal_batches_follows_its_formula(algorithm: str, batch: int) -> None:
    for multiplier in (1.0, 1.7):
        keys = {"radius_multiplier": multiplier}
        if algorithm != "local-linucb":
            keys["batch_size"] = batch
        system = system_of(algorithm, dimension=3, silos=4, **keys)
        bound = direct_regret_bound(system.plan, system.theory)
        assert bound == bound_of_equal_batches(system.plan, system.theory.regularizer)


def test_bound_of_local_linucb_adds_bad_rounds_for_small_regularizers() -> None:
    """Check this because one row may then more than double det V, which step 4 of the proof
    excludes."""
    for regularizer, has_bad_rounds in ((1.0, False), (0.5, True)):
        system = system_of("local-linucb", dimension=3, silos=4, regularizer=regularizer)
        c = system.plan.radius.anchor
        assert c == regularizer
        bound = direct_regret_bound(system.plan, system.theory)
        bound_without_bad_rounds = bound_of_equal_batches(system.plan, system.theory.regularizer)
        bad = 4 * 3 * math.log1p(500 / (3 * c)) / math.log(2.0)
        assert bound == pytest.approx(
            bound_without_bad_rounds + (bad if has_bad_rounds else 0.0), rel=1e-12
        )


def test_bound_of_bad_batches_grows_with_the_reward_range() -> None:
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


#: Keys, bonus and share of the bound. The shares are chosen so that no charge equals an allowance.
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
def test_regret_is_at_most_the_terms_of_the_proof_and_the_charges(
    keys: dict[str, Any], bonus: float, share: float, multiplier: float
) -> None:
    """Check with the oracle, which knows theta*, that each batch is charged at least its missing
    bonus."""
    sizes = {"silos": 2, "dimension": 2, "actions": 6, **keys}
    e, outcome, replayed = check_against_oracle(
        sizes, bonus=bonus, ledger=share, radius_multiplier=multiplier
    )
    plan, system = e.curves[0].system.plan, e.curves[0].system
    assert bonus in replayed.bonuses
    # These runs keep the events on which the proof holds.
    assert replayed.nearest_width >= -1e-9
    spent = 0.0
    for batch, (multiplier_of_batch, charge) in enumerate(
        zip(replayed.bonuses, replayed.charged, strict=True)
    ):
        assert multiplier_of_batch in (bonus, 1.0)
        assert charge == 0.0 or multiplier_of_batch == bonus
        # x* may have norm 1 plus rounding to float32.
        assert replayed.missing[batch] <= charge * (1.0 + 1e-6)
        spent += charge
        assert spent <= plan.allowance[batch] or charge == 0.0
    assert replayed.regret[-1] <= sum(replayed.terms) + spent
    bound = direct_regret_bound(plan, system.theory)
    assert bound is not None and outcome.group_regret[-1] <= bound
    assert spent <= plan.allowance[-1] <= bound


@pytest.mark.parametrize("bonus", [0.0, 0.4])
@pytest.mark.parametrize(
    "keys",
    [{"protocol": "none", "batch_size": 4}, {"protocol": "silo-ldp", "batch_size": "growing"},
     {"protocol": "central", "batch_size": 4, "release": "factorised"},
     {"protocol": "linucb-sdp-vec", "silos": 1, "batch_size": "growing"}],
)  # fmt: skip
def test_a_tiny_allowance_never_changes_the_run(keys: dict[str, Any], bonus: float) -> None:
    """Check that the run equals the run with bonus 1 bit for bit, and that a large allowance
    changes it."""
    sizes = {"silos": 2, "dimension": 3, "actions": 6, "horizon": 60, **keys}
    runs = []
    for ledger_keys in ({}, {"bonus": bonus, "ledger": 1e-12}, {"bonus": bonus, "ledger": 1e3}):
        compiled_outcome, step_outcome = run_both(experiment_of(sizes, **ledger_keys))
        np.testing.assert_array_equal(compiled_outcome.actions, step_outcome.actions)
        runs.append(compiled_outcome)
    np.testing.assert_array_equal(runs[0].actions, runs[1].actions)
    np.testing.assert_array_equal(runs[0].group_regret, runs[1].group_regret)
    np.testing.assert_array_equal(runs[0].total, runs[1].total)
    assert (runs[0].actions != runs[2].actions).any()


def test_smaller_bonuses_lower_the_regret_under_strong_noise() -> None:
    """Check this where privacy noise makes the bonuses large."""
    regrets = []
    for keys in ({}, {"bonus": 0.3, "ledger": 1.0}):
        e = experiment_of(
            {"protocol": "central", "silos": 10, "dimension": 4, "actions": 30, "horizon": 2000,
             "batch_size": "growing", "release": "factorised", "epsilon": 3.0}, **keys,
        )  # fmt: skip
        final_regrets = []
        for replicate in range(3):
            environment = e.environment.open(e.seed, replicate, e.silos)
            (outcome,) = compiled.run(environment, [e.curves[0].system.plan], np.array([2000]))
            final_regrets.append(outcome.group_regret[-1])
        regrets.append(float(np.mean(final_regrets)))
    assert regrets[1] < 0.8 * regrets[0]


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [("none", {"batch_ratio": 1.02}), ("none", {"batch_ratio": 1.02, "bonus": 0.3, "ledger": 0.1}),
     ("central", {"batch_ratio": 1.02, "release": "factorised", "epsilon": 300.0})],
)  # fmt: skip
def test_bound_of_growing_batches_holds_where_it_is_not_trivial(
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
    environment = e.environment.open(0, 0, 10)
    (outcome,) = compiled.run(environment, [system.plan], np.array([horizon]))
    assert outcome.group_regret[-1] < bound


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "keys", "message"),
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
def test_bonuses_without_a_proof_are_refused(
    algorithm: str, keys: dict[str, Any], message: str
) -> None:
    silos = 1 if algorithm == "linucb" else 2
    with pytest.raises(InputError, match=message):
        ALGORITHMS.choose(algorithm).make(keys, ProblemSpec(silos=silos, horizon=40, dimension=2))


def test_allowances_need_a_plan_that_the_proof_covers() -> None:
    system = system_of(batch_size=5)
    for changes in ({"lazy": False}, {"batch_size": 0}, {"policy": "random"}):
        with pytest.raises(InputError, match="bonus below 1 needs batches"):
            allowance(replace(system.plan, **changes), system.theory, 1.0)


def test_a_system_without_privacy_accepts_bonus() -> None:
    assert problems.curve("none", bonus=0.5)["algorithm"] == "fedlinucb"
    environment = {"kind": "sphere", "dimension": 3, "actions": 5}
    result = fastfed.simulate(
        environment,
        "fedlinucb",
        horizon=40,
        silos=2,
        batch_size="growing",
        bonus=[1.0, 0.5],
        seed=1,
    )
    assert len(result.curves) == 2
