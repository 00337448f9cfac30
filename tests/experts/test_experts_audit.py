"""Tests of audits of expert systems: distributions of the chosen experts, and planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from oracle import asi_2022 as asi
from oracle import gao_2024 as oracle
from scipy import stats

from fastfed._random import SeededNoise
from fastfed._validate import InputError
from fastfed.experts.parties import ExpertServer
from fastfed.privacy.audit import mechanisms as mechanisms
from fastfed.simulation import audit as registry
from fastfed.simulation.audit import experts as audits
from fastfed.simulation.audit.experts import BOARDS, SWITCHING, VERTICES, Switching, Vertices

FALSE_ALARM = 1e-6  # false-alarm probability of each statistical test, set before the seeds
PRINTED = "fault-fed-svt-printed-threshold"
BOARD, BARE_COIN = "private-dartboard", "fault-private-dartboard-bare-coin"
QUARTER_NOISE = "fault-fed-dp-ope-stoch-quarter-of-the-noise"


# -- Verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("fed-svt", 600),
        pytest.param(PRINTED, 3000, marks=pytest.mark.slow),
        (BOARD, 600),
        (BARE_COIN, 600),
        ("fed-dp-ope-stoch", 600),
        (QUARTER_NOISE, 1500),
    ],
)
def test_audits_give_their_verdicts(name: str, trials: int) -> None:
    result = registry.run_audit(name, trials, 1)
    assert (result.name, result.trials) == (name, trials)
    assert (result.claimed_epsilon, result.delta) == (1.0, 0.0)
    assert result.verdict == ("caught" if name in registry.FAULTY else "pass"), result


def test_audits_pass_with_the_same_losses_without_the_fault() -> None:
    case = replace(SWITCHING[PRINTED], printed=False)
    assert audits.audit_switching(case, "x", 300, 1).verdict == "pass"
    assert VERTICES["fed-dp-ope-stoch"] == replace(VERTICES[QUARTER_NOISE], fault=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("fed-svt", 0.0, 1.0),
        (PRINTED, 1.0, 4.0),
        (BOARD, 0.1, 1.0),
        (BARE_COIN, 1.0, 9.0),
        ("fed-dp-ope-stoch", 0.1, 1.0),
        (QUARTER_NOISE, 1.0, 3.0),
    ],
)
def test_lower_bounds_of_the_default_runs(name: str, low: float, high: float, seed: int) -> None:
    assert low < registry.run_audit(name, None, seed).epsilon_lower_bound < high


def test_names_of_audits() -> None:
    assert set(audits.AUDITS) == {
        "fed-svt",
        "fed-dp-ope-stoch",
        PRINTED,
        QUARTER_NOISE,
        BOARD,
        BARE_COIN,
    }
    assert set(registry.AUDITS) == set(registry.TRIALS) >= registry.FAULTY
    assert {PRINTED, QUARTER_NOISE, BARE_COIN} <= registry.FAULTY
    # No audit of a system has the name of an audit of a mechanism.
    assert not set(audits.AUDITS) & set(mechanisms.AUDITS)


@pytest.mark.parametrize("name", sorted(audits.AUDITS))
def test_results_of_an_audit_depend_only_on_its_seed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics: list[list[float]] = []

    def record(name: str, first: np.ndarray, second: np.ndarray, **claim: float) -> None:
        """Record the statistics of both data sets."""
        statistics.append([*first, *second])

    monkeypatch.setattr(audits, "audit", record)
    for seed in (4, 4, 5):
        audits.AUDITS[name](60, seed)
    assert statistics[0] == statistics[1] != statistics[2] and len(statistics[0]) == 120
    # The two data sets have separate runs.
    assert statistics[0][:60] != statistics[0][60:]


@pytest.mark.parametrize(
    ("trials", "seed", "message"),
    [(1, 0, "trials must be an integer >= 2"), (10, -1, "seed must be an integer")],
)
def test_errors_name_the_bad_argument(trials: int, seed: int, message: str) -> None:
    for audit in audits.AUDITS.values():
        with pytest.raises(InputError, match=message):
            audit(trials, seed)


# -- The two data sets -----------------------------------------------------------------------------


def differ_in_one_loss(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether the tables lie in [0, 1] and differ in exactly one loss."""
    in_range = all(((table >= 0.0) & (table <= 1.0)).all() for table in (first, second))
    return in_range and int((first != second).any(axis=2).sum()) == 1


@pytest.mark.parametrize("name", sorted(SWITCHING | BOARDS))
def test_data_sets_of_switching_differ_in_one_loss(name: str) -> None:
    case = (SWITCHING | BOARDS)[name]
    assert differ_in_one_loss(case.losses(0), case.losses(1))
    assert case.losses(0).shape == (case.horizon, case.plan().silos, case.experts)


def test_data_sets_of_vertices_differ_in_a_loss_of_the_root() -> None:
    plan, changed_rounds = Vertices(horizon=16).plan(), set()
    phase = plan.phases[-1]
    for run in range(50):
        noise = SeededNoise(1, run)
        tables = [audits.losses_of_run(plan, noise, data_set) for data_set in (0, 1)]
        assert differ_in_one_loss(*tables)
        (round_index,) = np.flatnonzero((tables[0] != tables[1]).any(axis=(1, 2)))
        order = noise.sample(0, phase.number, len(phase.samples))
        assert round_index + 1 in np.array(phase.samples)[order[: phase.batch]]
        changed_rounds.add(int(round_index))
    assert len(changed_rounds) == len(phase.samples) and len(plan.phases) == 2


# -- The distribution of the statistic -------------------------------------------------------------


def sequences(experts: int, rounds: int, changes: int) -> list[tuple[int, ...]]:
    """Return all sequences of experts with at most ``changes`` changes, each once."""
    all_sequences = []
    for n in range(changes + 1):
        for change_rounds in combinations(range(1, rounds), n):
            lengths = np.diff([0, *change_rounds, rounds])
            for names in product(range(experts), repeat=n + 1):
                if all(a != b for a, b in pairwise(names)):
                    all_sequences.append(tuple(np.repeat(names, lengths).tolist()))
    return all_sequences


@pytest.mark.parametrize("switches", [1, 2, 3])
def test_distribution_of_chosen_experts_equals_the_oracles(switches: int) -> None:
    """Use random losses; the oracle enumerates hidden switches."""
    case = Switching(3, switches, threshold=0.8, quiet=3, horizon=5, first=((0.0,) * 3,) * 2)
    plan = case.plan()
    losses = np.random.default_rng(7).random((5, 1, 3))
    noise = plan.noise
    distribution = oracle.svt_law(
        losses.transpose(1, 0, 2), N=1, L=plan.threshold, kappa=switches, eta=noise.eta,
        threshold_scale=noise.threshold_scale, query_scale=noise.query_scale,
    )  # fmt: skip
    expected, log_probability = oracle.expert_law(distribution), audits.switching_law(plan, losses)
    assert expected.keys() == set(sequences(3, 5, switches))
    for experts, p in expected.items():
        assert log_probability(experts) == pytest.approx(np.log(p), abs=1e-9)


def is_consistent(counts: np.ndarray, probabilities: np.ndarray) -> bool:
    """Test counts against a distribution, pooling outcomes with fewer than 5 expected runs."""
    n, is_rare = counts.sum(), probabilities * counts.sum() < 5.0
    probabilities = np.append(probabilities[~is_rare], probabilities[is_rare].sum())
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    if probabilities[-1] * n < 5.0:
        probabilities[-2] += probabilities[-1]
        counts[-2] += counts[-1]
        probabilities, counts = probabilities[:-1], counts[:-1]
    return bool(
        stats.chisquare(counts, n * probabilities / probabilities.sum()).pvalue > FALSE_ALARM
    )


@pytest.mark.parametrize("world", [0, 1])
def test_parties_have_the_computed_distribution(world: int) -> None:
    case = Switching(2, 2, threshold=0.5, quiet=2, horizon=5, first=((1.0, 0.0), (0.0, 1.0)))
    plan, losses, n = case.plan(), case.losses(world), 1500
    outcomes = sequences(2, 5, 2)
    logs = [audits.switching_law(plan, losses)(outcome) for outcome in outcomes]
    assert np.exp(logs).sum() == pytest.approx(1.0, rel=1e-10)
    index_of = {outcome: i for i, outcome in enumerate(outcomes)}
    runs = [index_of[audits.chosen_experts(plan, SeededNoise(2, i), losses)] for i in range(n)]
    counts = np.bincount(runs, minlength=len(outcomes))
    assert is_consistent(counts, np.exp(logs))
    other_logs = [
        audits.switching_law(plan, case.losses(1 - world))(outcome) for outcome in outcomes
    ]
    assert not is_consistent(counts, np.exp(other_logs))


@pytest.mark.parametrize(("world", "horizon"), [(0, 8), (1, 16)])
def test_leaves_of_the_tree_have_the_computed_distribution(world: int, horizon: int) -> None:
    """Check that pairs of experts are independent draws from the root's distribution."""
    plan, n = Vertices(horizon=horizon).plan(), 800
    phase, probabilities = plan.phases[-1], np.exp(audits.leaf_law(plan, world))
    assert phase.trees == 1 and phase.offset == (0 if horizon == 8 else 2)
    counts = np.zeros((2, 2))
    for i in range(n):
        noise = SeededNoise(3, i)
        *_, a, b = audits.chosen_experts(plan, noise, audits.losses_of_run(plan, noise, world))
        counts[a, b] += 1
    assert is_consistent(counts.ravel(), np.outer(probabilities, probabilities).ravel())
    other_probabilities = np.exp(audits.leaf_law(plan, 1 - world))
    assert not is_consistent(
        counts.ravel(), np.outer(other_probabilities, other_probabilities).ravel()
    )


@pytest.mark.parametrize(("name", "min_of_max_ratio"), [(BOARD, 0.5), (BARE_COIN, 0.5)])
def test_no_probability_ratio_of_the_dartboard_exceeds_the_claim(
    name: str, min_of_max_ratio: float
) -> None:
    """Check all outcomes, with the audit's distribution and with the oracle's."""
    case = BOARDS[name]
    board, d, tables = case.plan().noise, case.experts, [case.losses(w) for w in (0, 1)]
    first, second = (audits.board_law(case.plan(), table) for table in tables)
    outcomes = list(product(range(d), repeat=case.horizon))
    possible_outcomes = [
        outcome
        for outcome in outcomes
        if sum(a != b for a, b in pairwise(outcome)) <= case.switches
    ]
    ratios = [abs(second(outcome) - first(outcome)) for outcome in possible_outcomes]
    assert min_of_max_ratio < max(ratios) <= 1.0 + 1e-9
    assert sum(np.exp(first(outcome)) for outcome in possible_outcomes) == pytest.approx(
        1.0, rel=1e-9
    )
    eta = -np.expm1(-board.rate)
    game = {"eta": eta, "p": board.chance, "K": board.switches, "N": 1}
    distribution = asi.experts_of(asi.dartboard_law(tables[1].transpose(1, 0, 2), **game))
    assert [np.exp(second(outcome)) for outcome in possible_outcomes] == pytest.approx(
        [distribution[outcome] for outcome in possible_outcomes]
    )


@pytest.mark.parametrize(("name", "min_of_max_ratio"), [("fed-svt", 0.6), (PRINTED, 0.49)])
def test_no_probability_ratio_of_switching_exceeds_the_claim(
    name: str, min_of_max_ratio: float
) -> None:
    """Check all outcomes under the claimed noise; the shifted losses use half of the claim."""
    case = SWITCHING[name]
    plan = case.plan()
    first, second = (audits.switching_law(plan, case.losses(world)) for world in (0, 1))
    outcomes = sequences(case.experts, case.horizon, case.switches)
    ratios = [abs(second(outcome) - first(outcome)) for outcome in outcomes]
    assert min_of_max_ratio < max(ratios) <= 1.0 + 1e-9
    assert sum(np.exp(first(outcome)) for outcome in outcomes) == pytest.approx(1.0, rel=1e-9)


def test_no_probability_ratio_of_vertices_exceeds_the_claim() -> None:
    plan = Vertices().plan()
    ratios = audits.leaf_law(plan, 1) - audits.leaf_law(plan, 0)
    leaves = sum(leaf.tree == 1 for leaf in plan.phases[-1].leaves)
    assert 0.5 < leaves * np.abs(ratios).max() <= 1.0
    # With the fault's quarter of the noise, the loss exceeds the claim.
    phase_with_fault = replace(
        plan.phases[-1], scales=tuple(score / 4 for score in plan.phases[-1].scales)
    )
    root = plan.silos * phase_with_fault.batch
    scores = [(v + (root - 1) * audits.losses_of_others(plan)) / root for v in audits.VICTIM]
    log_probabilities = [
        audits.NoisyArgmin(phase_with_fault.scales[0] / plan.silos).log_probabilities(score)
        for score in scores
    ]
    assert leaves * np.abs(log_probabilities[1] - log_probabilities[0]).max() > 2.0


# -- The faults ------------------------------------------------------------------------------------


def test_planted_faults_change_what_their_names_say() -> None:
    case = SWITCHING[PRINTED]
    limits: dict[str, Callable[[], float]] = {
        kind: lambda plan=plan: float(ExpertServer(plan, SeededNoise(1))._decider._limit)  # type: ignore[misc,attr-defined]
        for kind, plan in (("claimed", case.plan()), ("played", case.simulated_plan()))
    }
    assert limits["played"]() == case.threshold != limits["claimed"]()
    assert replace(case, printed=False).simulated_plan() == case.plan()
    wrong, right = VERTICES[QUARTER_NOISE].simulated_plan(), VERTICES[QUARTER_NOISE].plan()
    assert [[4 * s for s in p.scales] for p in wrong.phases] == [
        list(p.scales) for p in right.phases
    ]
    assert Vertices().simulated_plan() == Vertices().plan() == right
