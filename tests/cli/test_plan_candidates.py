"""Candidates of `plan`: batches, releases, centred rewards, sieves, secure sums, local rounds."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from problems import ordinary_cases

import fastfed
from fastfed._system import account
from fastfed.advice import plan
from fastfed.advice.answer import verdict_text
from fastfed.advice.planner import MAX_WASTED_RATIO
from fastfed.advice.successive_halving import (
    Contender,
    Size,
    SuccessiveHalving,
    _extended,
    release_cost,
    scaled_environment,
    scaled_plan,
)
from fastfed.advice.systems import (
    ALGORITHMS,
    LESS,
    SIEVES,
    TRUST,
    Growing,
    Question,
    Recipe,
    Variant,
    batches_to_try,
    build_candidates,
    neighbours,
    noise_count,
    recipes,
    shared_rounds,
)
from fastfed.bandits.linucb import Acting
from fastfed.bandits.system import SIEVE
from fastfed.cli import cli
from fastfed.environments import Rotated, Sphere
from fastfed.simulation import dispatch
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.systems import problem_spec

ASK: dict[str, Any] = {
    "silos": 8, "horizon": 300, "dimension": 3, "actions": 5, "epsilon": 2.0, "delta": 1e-5,
    "seconds": 0.1,
}  # fmt: skip
ROTATED = {"kind": "rotated", "dimension": 3, "actions": 5, "rotation": 0.8}
STEPS = Growing(5, 1.4)


def question(silos: int = 8, horizon: int = 300, **changes: Any) -> Question:
    """Return a question to the planner with these changes."""
    kappa = changes.pop("intercept", 1.0)
    facts = Sphere(dimension=3, actions=5, intercept=kappa).facts(silos, horizon)
    problem: Any = problem_spec(facts, silos, horizon)
    return Question(problem, changes.pop("epsilon", 2.0), 1e-5, "replace", 1.0, **changes)


# ---- which candidates there are ------------------------------------------------------------------


def kinds(recipes: list[Recipe]) -> set[tuple[str, str, bool]]:
    """Return (protocol, release, whether batches grow) of each candidate."""
    return {(protocol, release, isinstance(b, Growing)) for protocol, release, b, _ in recipes}


@pytest.mark.parametrize("trust", TRUST)
def test_the_default_of_a_curve_is_a_candidate(trust: str) -> None:
    protects = "reward" if trust == "user-bit" else "user"
    for sizes in ({}, {"silos": 300, "horizon": 2000}, {"epsilon": 0.1}):
        problem = question(**sizes, protects=protects)
        keys = problem.private(TRUST[trust][1][0][0])
        plan = ALGORITHMS["private-fedlinucb"].make(keys, problem.problem).plan
        actual, failed = build_candidates(problem, trust, recipes(problem, trust))
        assert not failed
        same_rounds = [c for c in actual if c.plan.release_rounds == plan.release_rounds]
        assert any(
            (c.plan.release, c.plan.factor) == (plan.release, plan.factor) for c in same_rounds
        )


def test_every_trust_model_has_its_releases() -> None:
    problem = question()
    assert kinds(recipes(problem, "central")) == {
        ("central", "factorised", True), ("central", "toeplitz", False),
        ("central", "honaker", False), ("central", "tree", False),
    }  # fmt: skip
    assert kinds(recipes(problem, "shuffle")) == {
        ("shuffle-vector", "flat", True), ("shuffle-vector", "tree", False),
        ("shuffle-amplified", "tree", False),
    }  # fmt: skip
    assert kinds(recipes(problem, "secure-sum")) == {
        ("secure-sum", "factorised", True), ("secure-sum", "toeplitz", False),
    }  # fmt: skip
    assert all(v.sieve == SIEVE and not v.centred for *_, v in recipes(problem, "central"))
    assert problem.sieves
    low = Question(problem.problem, 1.0, 1e-5, "replace", 0.5)
    assert not low.sieves
    assert {
        one.plan.ranking for one in build_candidates(low, "central", recipes(low, "central"))[0]
    } == {1.0}


def test_rewards_are_centred_where_an_intercept_is_declared() -> None:
    central = {**ASK, "trust": "central"}
    plain = plan(**central)
    assert not any(c.centred or "reward_centre" in c.keys for c in plain.candidates)
    assert "--intercept" in plain.left_out["reward_centre"]
    for declared in (
        plan(**central, intercept=2.0),
        plan(
            **{**central, "actions": 100, "dimension": None},
            environment={"kind": "sphere", "dimension": 3, "actions": 5, "intercept": 2.0},
        ),
    ):
        assert all(c.centred and c.keys["reward_centre"] == 0.5 for c in declared.candidates)
        assert declared.environment["intercept"] == 2.0
        assert declared.baseline("alone").keys["reward_centre"] == 0.5
        assert "reward_centre" not in declared.left_out
        noise = {c.label: c.noise_std for c in plain.candidates}
        for c in declared.candidates:
            plain_label = c.label.replace(", centred", "")
            assert plain_label not in noise or c.noise_std < 0.8 * noise[plain_label]


def test_rounds_are_local_only_where_silos_may_differ() -> None:
    alike, differ = question(), question(differ=True)
    for trust in ("silo-ldp", "secure-sum", "central"):
        assert all(v.until is None for *_, v in recipes(alike, trust))
        until = {v.until for *_, v in recipes(differ, trust)} - {None}
        assert until == set(shared_rounds(300)) == {6, 9, 30}
    # With a shuffler nobody trusts a silo with its users' data.
    assert all(v.until is None for *_, v in recipes(differ, "shuffle"))
    assert shared_rounds(10) == []


def test_few_releases_are_factorised() -> None:
    for horizon in (2, 300, 10_000, 1_000_000):
        for batches in batches_to_try(horizon, "central", "factorised"):
            assert isinstance(batches, Growing) and batches.first <= max(1, horizon // 8)
    candidate = question(horizon=100_000).make("central", "central", "factorised", Growing(1, 1.1))
    assert candidate.plan.releases < 120
    assert [b for *_, b, _ in recipes(question(horizon=2), "central")]


def test_neighbours_of_a_candidate_differ_in_one_key() -> None:
    problem = question(horizon=3000)
    best = problem.make("central", "central", "factorised", Growing(9, 1.2), Variant(0.1))
    actual = neighbours(problem, best)
    assert {b for *_, b, _ in actual} == {
        Growing(9, 1.2), Growing(3, 1.2), Growing(27, 1.2), Growing(9, 1.1),
    }  # fmt: skip
    assert ("central", "toeplitz", Growing(9, 1.2), Variant(0.1)) in actual
    own = problem.make("central", "central", "factorised", Growing(3, 1.2), Variant(until=100))
    assert {v.until for *_, v in neighbours(problem, own)} == {50, 100, 200}
    flat = problem.make("shuffle", "shuffle-vector", "flat", Growing(9, 1.4))
    assert all(isinstance(b, Growing) and b.ratio >= 1.25 for *_, b, _ in neighbours(problem, flat))


# ---- rankings, their bound and their guarantee ---------------------------------------------------


def test_a_ranking_changes_neither_noise_nor_guarantee_nor_bound() -> None:
    problem = question(epsilon=50.0)
    candidate = problem.make("central", "central", "factorised", STEPS)
    assert (candidate.plan.ranking, candidate.plan.sieve_growth, "sieve" in candidate.keys) == (
        SIEVE,
        1.0,
        False,
    )
    for factor in (0.0, *SIEVES):
        less, sieved = candidate.with_sieve(factor), problem.make(
            "central", "central", "factorised", STEPS, Variant(factor)
        )  # fmt: skip
        assert less.label == sieved.label == candidate.label + f", sieve {factor:g}"
        assert less.keys == sieved.keys == {**candidate.keys, "sieve": factor}
        # The keys of `less` make the same plan.
        assert (less.plan.ranking, less.plan.widths) == (sieved.plan.ranking, sieved.plan.widths)
        assert less.plan.ranking == factor and less.plan.widths == candidate.plan.widths
        np.testing.assert_array_equal(less.plan.factor.matrix, sieved.plan.factor.matrix)
        assert less.system.certificate == sieved.system.certificate == candidate.system.certificate
        # The accounts, computed again from the numbers of the plans, agree.
        assert account(less.plan, problem.problem) == account(sieved.plan, problem.problem)
        assert less.bound == sieved.bound == candidate.bound is not None


def test_all_rankings_of_the_best_are_simulated() -> None:
    verdicts = plan(**{**ASK, "trust": "central"})
    assert {c.bonus for c in verdicts.candidates if c.regret} == {SIEVE, *SIEVES}
    assert {c.keys.get("sieve") for c in verdicts.candidates if c.regret} == {None, *SIEVES}
    less = verdicts.baseline(LESS)
    assert less.keys["sieve"] == min(SIEVES) and "sieve" not in verdicts.baseline("alone").keys


# ---- how they are simulated ----------------------------------------------------------------------


def regrets(plan: Any, environment: Any, replicates: int) -> np.ndarray:
    """Return the final regret for each silo of each replicate."""
    marks = np.array([plan.horizon])
    opened_environment = (environment.open(7, r, plan.silos) for r in range(replicates))
    actual = [
        dispatch.run(e, [plan], marks)[0].group_regret[0] / plan.silos for e in opened_environment
    ]
    return np.array(actual)


@pytest.mark.parametrize(
    ("protocol", "release", "variant"),
    ordinary_cases(
        [
            ("silo-ldp", "factorised", Variant()),
            ("central", "toeplitz", Variant(0.1)),
            ("shuffle-vector", "flat", Variant()),
            ("secure-sum", "factorised", Variant(0.1, True)),
            ("central", "factorised", Variant(centred=True)),
        ],
        lambda protocol, release, variant: protocol in ("silo-ldp", "secure-sum"),
    ),
)
def test_few_silos_stand_for_many(protocol: str, release: str, variant: Variant) -> None:
    kappa = 2.0 if variant.centred else 1.0
    problem = question(60, 600, intercept=kappa)
    candidate = problem.make("x", protocol, release, STEPS, variant)
    environment = Sphere(dimension=3, actions=5, intercept=kappa)
    whole = regrets(candidate.plan, environment, 24)
    few = regrets(
        scaled_plan(candidate.plan, candidate.node, 10), scaled_environment(environment, 6.0), 24
    )
    summed = regrets(scaled_plan(candidate.plan, candidate.node, 60), environment, 24)
    for scaled_regrets in (few, summed):
        spread = math.hypot(*(v.std(ddof=1) / math.sqrt(24) for v in (whole, scaled_regrets)))
        assert abs(whole.mean() - scaled_regrets.mean()) < 4.0 * spread + 0.05 * whole.mean()


@pytest.mark.parametrize("multiplier", [1.0, 1.5])
def test_the_slack_of_few_silos_is_that_of_all(multiplier: float) -> None:
    """Check that s = C / g is unchanged: C and g are both divided by sqrt(q)."""
    problem = question(60)
    problem = dataclasses.replace(problem, radius_multiplier=multiplier)
    candidate = problem.make("x", "central", "factorised", STEPS, Variant(0.1))
    few = scaled_plan(candidate.plan, candidate.node, 10)
    assert few.ranking == 0.1 and few.sieve_growth == 1.0
    assert few.widths == pytest.approx([c / math.sqrt(6.0) for c in candidate.plan.widths])
    rng = np.random.default_rng(0)
    for k in range(candidate.plan.releases + 1):
        rows = 60.0 * (candidate.plan.end(k) if k else 0)
        gram = rows / 3.0 * np.eye(3) + np.diag(rng.uniform(0.0, 0.2, size=3)) * rows
        total = np.append(rng.normal(size=3) * rows / 10.0, gram[np.tril_indices(3)])
        slacks = []
        for scaled, times in ((candidate.plan, 1.0), (few, 6.0)):
            silo = Acting(scaled)
            silo._refresh(total / times, k)
            slacks.append(silo._slack)
        assert slacks[1] == pytest.approx(slacks[0], rel=1e-9)


def test_scaling_keeps_the_centre_and_removes_the_clip_limits() -> None:
    candidate = question(60, intercept=2.0).make(
        "x", "central", "factorised", STEPS, Variant(centred=True)
    )
    clip = scaled_plan(candidate.plan, candidate.node, 10).clip
    assert clip is not None and candidate.plan.clip is not None
    assert (clip.centre, clip.constant) == (0.5, candidate.plan.clip.constant)
    assert (clip.low, clip.high) == (-math.inf, math.inf)


def test_plans_with_local_rounds_are_not_scaled() -> None:
    candidate = question().make("x", "silo-ldp", "factorised", Growing(3, 1.2), Variant(until=30))
    assert scaled_plan(candidate.plan, candidate.node, 8) is candidate.plan
    assert candidate.keys["share"] == {"until": 30} and candidate.label.endswith(
        ", shared until 30"
    )
    # The sieve bounds the regret of local rounds, too.
    assert (
        candidate.bound is not None
        and candidate.bound > candidate.with_sieve(0.1).plan.own.sieve_width
    )


def test_noise_of_shares_is_counted_once() -> None:
    problem = question(silos=30)
    # Toeplitz factors do not depend on the noise; factors that saturate do.
    masked = problem.make("secure-sum", "secure-sum", "toeplitz", STEPS)
    central = problem.make("central", "central", "toeplitz", STEPS)
    local = problem.make("silo-ldp", "silo-ldp", "toeplitz", STEPS)
    assert (noise_count(masked.plan), noise_count(local.plan)) == (1, 30)
    # The sum has the noise of all 30 shares, although the noise of 20 would be enough.
    assert masked.noise_std == pytest.approx(central.noise_std * math.sqrt(30 / 20), rel=0.02)
    assert local.noise_std == pytest.approx(central.noise_std * math.sqrt(30), rel=1e-6)
    flat = problem.make("shuffle", "shuffle-vector", "flat", STEPS)
    node = max(flat.system.certificate.noise_std.values())
    assert flat.noise_std == pytest.approx(node * math.sqrt(flat.plan.releases))


def test_a_stage_that_does_not_fit_has_fewer_replicates() -> None:
    halving = SuccessiveHalving(Sphere(dimension=3, actions=5), 100, 1000, 5, 0, 1)
    candidate = question(silos=100, horizon=1000).make("x", "central", "factorised", STEPS)
    contenders = [Contender("a", candidate.plan, candidate.node)]
    tight, usual = (halving.size(contenders, 1e-3, 6, fewest) for fewest in (2, None))
    assert (tight.silos, tight.replicates, usual.replicates) == (4, 2, 6)
    assert halving.size(contenders, 0.2, 6, 2).replicates == 6


def test_a_stage_that_never_fits_has_fewer_rounds() -> None:
    halving = SuccessiveHalving(Sphere(dimension=3, actions=5), 100, 20_000, 5, 0, 1)
    candidate = question(silos=100, horizon=20_000).make("x", "central", "factorised", STEPS)
    contenders = [Contender(str(i), candidate.plan, candidate.node) for i in range(20)]
    whole = 4 * 20_000 * halving.pass_cost(contenders)
    sizes = [halving.size(contenders, share * whole, 2, 1) for share in (1e-6, 0.2, 0.5, 2.1)]
    assert [(size.silos, size.replicates) for size in sizes] == [(4, 1), (4, 1), (4, 1), (4, 2)]
    rounds = [size.rounds for size in sizes]
    assert rounds == sorted(rounds)
    assert rounds[0] in halving.marks and 1250 <= rounds[0] <= 1600
    assert 0.4 * 20_000 <= rounds[2] <= 0.55 * 20_000
    assert rounds[3] == 20_000
    short = SuccessiveHalving(Sphere(dimension=3, actions=5), 100, 200, 5, 0, 1)
    assert short.rounds_for(1e-9) == 200


@pytest.mark.parametrize("seconds", [2.0, 5.0, 20.0])
def test_a_search_takes_the_time_that_was_requested(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Add up the nominal seconds of the simulations of a search; their regrets are made up."""
    spent = 0.0
    rng = np.random.default_rng(0)

    def finals(
        halving: SuccessiveHalving, going: Sequence[Contender], size: Size, bits: bool = False
    ) -> np.ndarray:
        """Add the cost; return regrets, smaller with sharing than without."""
        nonlocal spent
        releases = sum(release_cost(one.plan) for one in going) * size.rounds / halving.horizon
        spent += size.replicates * (size.silos * size.rounds * halving.pass_cost(going) + releases)
        regret = [100.0 if one.node is None else 10.0 for one in going]
        return np.array(regret) + rng.normal(size=(size.replicates, len(going)))

    monkeypatch.setattr(SuccessiveHalving, "finals", finals)
    answer = plan(
        silos=100, horizon=20_000, dimension=10, epsilon=1.0, delta=1e-5, seconds=seconds,
        trust=["silo-ldp", "central"],
    )  # fmt: skip
    assert all(verdict.helps for verdict in answer.verdicts)
    # A tenth is reserved for break-even points (unused here), and some for building systems.
    assert 0.6 * seconds <= spent + 0.01 * len(answer.candidates) <= 1.1 * seconds


def test_candidates_that_noise_rules_out_are_not_simulated() -> None:
    answer = plan(**{**ASK, "epsilon": 30.0, "horizon": 3000, "trust": "central"})
    reasons = [c.remark for c in answer.candidates if "expected to waste" in c.remark]
    assert reasons
    for candidate in answer.candidates:
        assert (candidate.regret is None) == bool(candidate.remark)
    problem = question(epsilon=30.0, horizon=3000)
    losses = {
        candidate.label: candidate.expected_loss
        for candidate in build_candidates(problem, "central", recipes(problem, "central"))[0]
    }
    best = min(losses, key=lambda label: losses[label])
    assert answer[best].regret is not None
    for candidate in answer.candidates:
        if "expected to waste" in candidate.remark and candidate.label in losses:
            assert losses[candidate.label] > MAX_WASTED_RATIO * losses[best]


def test_many_equal_batches_have_buffered_noise() -> None:
    problem = question(horizon=8000)
    actual = [(r, b) for _, r, b, _ in recipes(problem, "central") if isinstance(b, int)]
    assert {b for r, b in actual if r == "buffered"} == {2}
    assert {b for r, b in actual if r == "toeplitz"} == {8, 32, 128}
    buffered = problem.make("central", "central", "buffered", 2)
    toeplitz = problem.make("central", "central", "toeplitz", 2)
    assert toeplitz.noise_std < buffered.noise_std < 1.005 * toeplitz.noise_std
    assert [(r, b) for _, r, b, _ in neighbours(problem, buffered)] == [
        ("buffered", 1),
        ("buffered", 4),
    ]
    shorter = problem.make("central", "central", "toeplitz", 8)
    variants = [(r, b) for _, r, b, _ in neighbours(problem, shorter)]
    assert variants == [("buffered", 4), ("toeplitz", 16), ("factorised", 8)]


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_falling_pace_of_regret_is_extrapolated(power: float) -> None:
    marks = np.arange(50, 10_001, 50)
    curve = np.cumsum(np.arange(1.0, 10_001.0) ** -power)[marks - 1]
    at = 19  # round 1 000
    truth = float(curve[-1])
    assert _extended(curve, marks, at, 10_000, 0) == pytest.approx(truth, rel=0.05)
    late = _extended(curve, marks, at, 10_000)
    assert late == pytest.approx(truth, rel=1e-6) if power == 0.0 else late > 1.2 * truth
    # With few local rounds nothing is known about a falling pace: the last pace is used.
    assert _extended(curve, marks, at, 10_000, 600) == late


def test_only_learners_of_their_silo_have_a_falling_pace() -> None:
    problem = question(differ=True)
    own = problem.make("x", "central", "factorised", Growing(3, 1.2), Variant(until=30)).plan
    candidate = problem.make("x", "central", "factorised", Growing(3, 1.2)).plan
    alone = fastfed.make_system("local-linucb", silos=8, horizon=300, dimension=3).plan
    sizes = (8, 300, 5, 0, 1)
    differ = SuccessiveHalving(Rotated(dimension=3, actions=5), *sizes)
    assert [differ.learns_since(plan) for plan in (own, candidate, alone)] == [30, None, 0]
    alike = SuccessiveHalving(Sphere(dimension=3, actions=5), *sizes)
    # If all silos have one model, sharing it learns as long as learning alone does.
    assert [alike.learns_since(plan) for plan in (own, candidate, alone)] == [0] * 3


# ---- secure sums ---------------------------------------------------------------------------------


def test_a_secure_sum_names_trusted_parties_and_its_fallback_epsilon() -> None:
    verdicts = plan(**{**ASK, "trust": ["secure-sum", "central"]}, colluders=3)
    verdict = verdicts.verdicts[0]
    assert "neither the server nor 3 of the 8 silos are trusted" in verdict.trusted
    assert verdicts.colluders == 3
    best = verdicts[verdict.best]
    assert best.keys["colluders"] == 3
    own = {k: v for k, v in best.keys.items() if k != "algorithm"}
    system = fastfed.make_system(best.keys["algorithm"], silos=8, horizon=300, dimension=3, **own)
    known = [c.exact.epsilon for c in system.certificate.also if c.exact is not None]
    assert best.fallback_epsilon == max(known) > 2.0
    assert f"if all other silos collude, its epsilon is {max(known):.3g}" in verdict.sentence
    assert all(c.fallback_epsilon is None for c in verdicts.candidates if c.trust == "central")
    assert "collude" not in verdicts.verdicts[1].sentence
    usual = plan(**{**ASK, "trust": "secure-sum", "seconds": 0.01})
    assert usual.colluders == 2 and "colluders" not in usual.candidates[0].keys


def test_more_colluders_need_more_noise() -> None:
    few, many = (
        question(colluders=t).make("secure-sum", "secure-sum", "toeplitz", STEPS).noise_std
        for t in (0, 6)
    )
    assert many == pytest.approx(2.0 * few, rel=0.01)


# ---- silos that differ ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def advice_for_unlike_silos() -> fastfed.advice.Advice:
    """Return the advice for silos whose theta differ."""
    return plan(
        environment=ROTATED, silos=20, horizon=600, epsilon=8.0, delta=1e-5, seconds=2.0,
        trust=["shuffle", "central"],
    )  # fmt: skip


def test_silos_that_differ_share_first_and_then_learn_alone(
    advice_for_unlike_silos: fastfed.advice.Advice,
) -> None:
    shuffle, central = advice_for_unlike_silos.verdicts
    best = advice_for_unlike_silos[central.best]
    assert best.share_until is not None and best.keys["share"] == {"until": best.share_until}
    one_model = min(
        c.regret.mean
        for c in advice_for_unlike_silos.candidates
        if c.regret and c.share_until is None
    )
    assert best.regret is not None and best.regret.mean < one_model
    assert not shuffle.helps and shuffle.sentence.startswith("do not share under this trust model")
    assert "nor would one model for all without privacy help" in shuffle.sentence
    assert "share" not in advice_for_unlike_silos.left_out
    # What is recommended is what `fastfed run` plays.
    experiment = experiment_from_spec(tomllib.loads(advice_for_unlike_silos.spec_text()))
    assert experiment.curves[1].system.plan.share_until == best.share_until
    assert experiment.curves[0].system.plan.share_until == 0


def test_unproven_candidates_are_compared_with_the_best_local_agent(
    advice_for_unlike_silos: fastfed.advice.Advice,
) -> None:
    for verdict in advice_for_unlike_silos.verdicts:
        # Nothing is proven where silos differ, so a local agent may explore as little as it likes.
        assert advice_for_unlike_silos[verdict.best].bound is None
        names = ("alone", LESS)
        best = min(names, key=lambda name: advice_for_unlike_silos.baseline(name).regret.mean)
        assert verdict.alone == best == LESS
        mean, stderr = verdict.against_alone
        ours = advice_for_unlike_silos[verdict.best].regret
        assert ours is not None
        assert mean == pytest.approx(ours.mean - advice_for_unlike_silos.baseline(LESS).regret.mean)
        assert verdict.helps == (mean < -2.0 * stderr)
        assert "(which explores less)" in verdict.sentence
    assert Rotated(**{k: v for k, v in ROTATED.items() if k != "kind"}).facts(20, 600).linear is (
        False
    )  # fmt: skip


def test_the_better_of_both_local_baselines_is_compared() -> None:
    """Check the verdict: both baselines have one proven bound, so sharing must beat the better."""
    verdicts = plan(**{**ASK, "epsilon": 8.0, "trust": "central", "seconds": 1.0})
    (verdict,) = verdicts.verdicts
    ours = verdicts[verdict.best].regret
    assert ours is not None and verdict.helps
    means = {name: verdicts.baseline(name).regret.mean for name in ("alone", LESS)}
    assert verdict.alone == min(means, key=lambda name: means[name])
    regrets = {b.name: b.regret for b in verdicts.baselines} | {verdict.best: ours}
    text = verdict_text(
        verdict, regrets, budget=(8.0, 1e-5), searched=True, differ=False, fallback=None
    )
    assert text.startswith(f"share by {verdict.best}: regret")
    assert "if regret must have a proven bound" not in text


def test_unequal_silos_are_noted(tmp_path: Path) -> None:
    def notes_for(sizes: list[int]) -> tuple[str, ...]:
        """Return the notes of a plan for silos of these sizes."""
        rows = [f"{20 + i % 50},{i % 2},{silo}" for silo, n in enumerate(sizes) for i in range(n)]
        path = tmp_path / f"{len(rows)}.csv"
        path.write_text("\n".join(["age,ill,site", *rows]) + "\n")
        table = {
            "kind": "classification", "data": str(path), "label": "ill", "silo": "site",
            "dimension": 3, "ranges": {"age": [0, 120]},
        }  # fmt: skip
        return plan(
            environment=table, horizon=20, epsilon=1.0, delta=1e-5, trust="central", seconds=0.01
        ).notes

    assert (
        "silos hold from 25 to 60 records, and each is simulated for 20 rounds"
        in (notes_for([25, 60, 30])[1])
    )
    assert len(notes_for([30, 30, 30])) == 1


# ---- the command ---------------------------------------------------------------------------------

ARGS = [
    "--silos", 8, "--horizon", 300, "--dimension", 3, "--delta", 1e-5, "--actions", 5,
    "--seconds", 0.05, "--epsilon", 0.2,
]  # fmt: skip


def test_the_verdict_is_the_first_line_of_its_trust_model() -> None:
    trusts = ("silo-ldp", "secure-sum", "central")
    named = [word for trust in trusts for word in ("--trust", trust)]
    result = CliRunner().invoke(cli, ["plan", *map(str, ARGS), "--colluders", "1", *named])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    for trust in trusts:
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{trust}: "))
        assert lines[at + 1].startswith("=> do not share under this trust model at (0.2, 1e-05)")
        assert "it would pay from about epsilon" in lines[at + 1]
    assert "neither the server nor 1 of the 8 silos are trusted" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--colluders", 8], "colluders must be below the number of silos (8), got 8"),
        (["--colluders", -1], "colluders must be an integer >= 0"),
        (["--colluders", 1, "--trust", "central"], 'colluders belongs to trust "secure-sum"'),
        (["--intercept", 0.5], "intercept must be >= 1"),
    ],
)
def test_bad_input_is_one_sentence(args: list[object], message: str) -> None:
    result = CliRunner().invoke(cli, ["plan", *map(str, [*ARGS, *args])])
    assert result.exit_code == 2, result.output
    (line,) = [text for text in result.stderr.splitlines() if text.startswith("error: ")]
    assert message in line and result.stdout == ""


def test_an_environment_has_its_own_intercept(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text('[environment]\nkind = "sphere"\n')
    args = ["--silos", 8, "--horizon", 30, "--epsilon", 1, "--delta", 1e-5, "--intercept", 2]
    result = CliRunner().invoke(cli, ["plan", *map(str, args), "--environment", str(path)])
    assert result.exit_code == 2 and "--intercept belongs to the sphere" in result.stderr
    with pytest.raises(fastfed.InputError, match="intercept belongs to the sphere"):
        plan(environment=path, silos=8, horizon=30, epsilon=1.0, delta=1e-5, intercept=2.0)


def test_json_has_the_new_keys() -> None:
    args = [*ARGS, "--trust", "secure-sum", "--intercept", 2, "--json"]
    result = json.loads(CliRunner().invoke(cli, ["plan", *map(str, args)]).stdout)
    first = result["candidates"][0]
    assert first["centred"] is True and first["batches"] and first["releases"] > 0
    assert first["share_until"] is None and first["fallback_epsilon"] > 0.2
    assert result["colluders"] == 2 and result["verdicts"][0]["alone"] in ("alone", LESS)
    assert first["bonus"] in (SIEVE, *SIEVES)


def test_labels_are_unique() -> None:
    verdicts = plan(**{**ASK, "trust": ["silo-ldp", "central"]})
    labels = [c.label for c in verdicts.candidates]
    assert len(set(labels)) == len(labels) > 15
