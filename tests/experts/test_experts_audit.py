"""Audits of systems of experts: what is played, its exact law, and the faults that are caught."""

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

ALARM = 1e-6  # of each statistical test here, before its seed was fixed
PRINTED = "fault-fed-svt-printed-threshold"
BOARD, BARE = "private-dartboard", "fault-private-dartboard-bare-coin"
QUARTER = "fault-fed-dp-ope-stoch-quarter-of-the-noise"


# -- Verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("fed-svt", 600),
        pytest.param(PRINTED, 3000, marks=pytest.mark.slow),
        (BOARD, 600),
        (BARE, 600),
        ("fed-dp-ope-stoch", 600),
        (QUARTER, 1500),
    ],
)
def test_verdicts(name: str, trials: int) -> None:
    found = registry.run_audit(name, trials, 1)
    assert (found.name, found.trials) == (name, trials)
    assert (found.claimed_epsilon, found.delta) == (1.0, 0.0)
    assert found.verdict == ("caught" if name in registry.FAULTY else "pass"), found


def test_the_same_losses_pass_without_the_fault() -> None:
    case = replace(SWITCHING[PRINTED], printed=False)
    assert audits.audit_switching(case, "x", 300, 1).verdict == "pass"
    assert VERTICES["fed-dp-ope-stoch"] == replace(VERTICES[QUARTER], fault=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("fed-svt", 0.0, 1.0),
        (PRINTED, 1.0, 4.0),
        (BOARD, 0.1, 1.0),
        (BARE, 1.0, 9.0),
        ("fed-dp-ope-stoch", 0.1, 1.0),
        (QUARTER, 1.0, 3.0),
    ],
)
def test_bounds_of_the_default_runs(name: str, low: float, high: float, seed: int) -> None:
    assert low < registry.run_audit(name, None, seed).epsilon_lower_bound < high


def test_names() -> None:
    assert set(audits.AUDITS) == {"fed-svt", "fed-dp-ope-stoch", PRINTED, QUARTER, BOARD, BARE}
    assert set(registry.AUDITS) == set(registry.TRIALS) >= registry.FAULTY
    assert {PRINTED, QUARTER, BARE} <= registry.FAULTY
    # No system hides a mechanism of its name.
    assert not set(audits.AUDITS) & set(mechanisms.AUDITS)


@pytest.mark.parametrize("name", sorted(audits.AUDITS))
def test_an_audit_is_a_function_of_its_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []

    def keep(name: str, first: np.ndarray, second: np.ndarray, **claim: float) -> None:
        seen.append([*first, *second])

    monkeypatch.setattr(audits, "audit", keep)
    for seed in (4, 4, 5):
        audits.AUDITS[name](60, seed)
    assert seen[0] == seen[1] != seen[2] and len(seen[0]) == 120
    # The worlds are runs of their own.
    assert seen[0][:60] != seen[0][60:]


@pytest.mark.parametrize(
    ("trials", "seed", "message"),
    [(1, 0, "trials must be an integer >= 2"), (10, -1, "seed must be an integer")],
)
def test_bad_input_is_one_clear_sentence(trials: int, seed: int, message: str) -> None:
    for audit in audits.AUDITS.values():
        with pytest.raises(InputError, match=message):
            audit(trials, seed)


# -- The two worlds --------------------------------------------------------------------------------


def differ_in_one_loss(first: np.ndarray, second: np.ndarray) -> bool:
    inside = all(((t >= 0.0) & (t <= 1.0)).all() for t in (first, second))
    return inside and int((first != second).any(axis=2).sum()) == 1


@pytest.mark.parametrize("name", sorted(SWITCHING | BOARDS))
def test_worlds_of_switching_differ_in_one_loss(name: str) -> None:
    case = (SWITCHING | BOARDS)[name]
    assert differ_in_one_loss(case.losses(0), case.losses(1))
    assert case.losses(0).shape == (case.horizon, case.plan().silos, case.experts)


def test_worlds_of_vertices_differ_in_one_loss_that_the_root_takes() -> None:
    plan, rounds = Vertices(horizon=16).plan(), set()
    phase = plan.phases[-1]
    for run in range(50):
        noise = SeededNoise(1, run)
        tables = [audits.table_of(plan, noise, world) for world in (0, 1)]
        assert differ_in_one_loss(*tables)
        (at,) = np.flatnonzero((tables[0] != tables[1]).any(axis=(1, 2)))
        order = noise.sample(0, phase.number, len(phase.samples))
        assert at + 1 in np.array(phase.samples)[order[: phase.batch]]
        rounds.add(int(at))
    assert len(rounds) == len(phase.samples) and len(plan.phases) == 2


# -- The statistic's law ---------------------------------------------------------------------------


def sequences(experts: int, rounds: int, changes: int) -> list[tuple[int, ...]]:
    """All sequences of experts that are changed at most so often, each once."""
    found = []
    for n in range(changes + 1):
        for at in combinations(range(1, rounds), n):
            lengths = np.diff([0, *at, rounds])
            for names in product(range(experts), repeat=n + 1):
                if all(a != b for a, b in pairwise(names)):
                    found.append(tuple(np.repeat(names, lengths).tolist()))
    return found


@pytest.mark.parametrize("switches", [1, 2, 3])
def test_law_of_what_is_played_is_the_oracle_s(switches: int) -> None:
    """Random losses; hidden switches are in both, found by enumeration there."""
    case = Switching(3, switches, threshold=0.8, quiet=3, horizon=5, first=((0.0,) * 3,) * 2)
    plan = case.plan()
    losses = np.random.default_rng(7).random((5, 1, 3))
    noise = plan.noise
    full = oracle.svt_law(
        losses.transpose(1, 0, 2), N=1, L=plan.threshold, kappa=switches, eta=noise.eta,
        threshold_scale=noise.threshold_scale, query_scale=noise.query_scale,
    )  # fmt: skip
    expected, law = oracle.expert_law(full), audits.switching_law(plan, losses)
    assert expected.keys() == set(sequences(3, 5, switches))
    for experts, p in expected.items():
        assert law(experts) == pytest.approx(np.log(p), abs=1e-9)


def fits(counts: np.ndarray, law: np.ndarray) -> bool:
    """Pooled, so that at least 5 runs are expected of each."""
    n, rare = counts.sum(), law * counts.sum() < 5.0
    law = np.append(law[~rare], law[rare].sum())
    counts = np.append(counts[~rare], counts[rare].sum())
    if law[-1] * n < 5.0:
        law[-2] += law[-1]
        counts[-2] += counts[-1]
        law, counts = law[:-1], counts[:-1]
    return bool(stats.chisquare(counts, n * law / law.sum()).pvalue > ALARM)


@pytest.mark.parametrize("world", [0, 1])
def test_parties_play_by_that_law(world: int) -> None:
    case = Switching(2, 2, threshold=0.5, quiet=2, horizon=5, first=((1.0, 0.0), (0.0, 1.0)))
    plan, losses, n = case.plan(), case.losses(world), 1500
    outcomes = sequences(2, 5, 2)
    logs = [audits.switching_law(plan, losses)(o) for o in outcomes]
    assert np.exp(logs).sum() == pytest.approx(1.0, rel=1e-10)
    at = {o: i for i, o in enumerate(outcomes)}
    runs = [at[audits.chosen(plan, SeededNoise(2, i), losses)] for i in range(n)]
    counts = np.bincount(runs, minlength=len(outcomes))
    assert fits(counts, np.exp(logs))
    other = [audits.switching_law(plan, case.losses(1 - world))(o) for o in outcomes]
    assert not fits(counts, np.exp(other))


@pytest.mark.parametrize(("world", "horizon"), [(0, 8), (1, 16)])
def test_leaves_of_the_tree_have_their_law(world: int, horizon: int) -> None:
    """Pairs of experts are independent draws of the root's law, also after another phase."""
    plan, n = Vertices(horizon=horizon).plan(), 800
    phase, p = plan.phases[-1], np.exp(audits.leaf_law(plan, world))
    assert phase.trees == 1 and phase.offset == (0 if horizon == 8 else 2)
    counts = np.zeros((2, 2))
    for i in range(n):
        noise = SeededNoise(3, i)
        *_, a, b = audits.chosen(plan, noise, audits.table_of(plan, noise, world))
        counts[a, b] += 1
    assert fits(counts.ravel(), np.outer(p, p).ravel())
    other = np.exp(audits.leaf_law(plan, 1 - world))
    assert not fits(counts.ravel(), np.outer(other, other).ravel())


@pytest.mark.parametrize(("name", "least"), [(BOARD, 0.5), (BARE, 0.5)])
def test_no_ratio_of_the_dartboard_is_above_the_claim(name: str, least: float) -> None:
    """All that can be played: by the law here, and by the oracle's."""
    case = BOARDS[name]
    board, d, tables = case.plan().noise, case.experts, [case.losses(w) for w in (0, 1)]
    first, second = (audits.board_law(case.plan(), table) for table in tables)
    outcomes = list(product(range(d), repeat=case.horizon))
    seen = [o for o in outcomes if sum(a != b for a, b in pairwise(o)) <= case.switches]
    ratios = [abs(second(o) - first(o)) for o in seen]
    assert least < max(ratios) <= 1.0 + 1e-9
    assert sum(np.exp(first(o)) for o in seen) == pytest.approx(1.0, rel=1e-9)
    eta = -np.expm1(-board.rate)
    game = {"eta": eta, "p": board.chance, "K": board.switches, "N": 1}
    law = asi.experts_of(asi.dartboard_law(tables[1].transpose(1, 0, 2), **game))
    assert [np.exp(second(o)) for o in seen] == pytest.approx([law[o] for o in seen])


@pytest.mark.parametrize(("name", "least"), [("fed-svt", 0.6), (PRINTED, 0.49)])
def test_no_ratio_of_switching_is_above_the_claim(name: str, least: float) -> None:
    """All that can be played, under the claimed noise; the shifted losses tell half of it."""
    case = SWITCHING[name]
    plan = case.plan()
    first, second = (audits.switching_law(plan, case.losses(world)) for world in (0, 1))
    outcomes = sequences(case.experts, case.horizon, case.switches)
    ratios = [abs(second(o) - first(o)) for o in outcomes]
    assert least < max(ratios) <= 1.0 + 1e-9
    assert sum(np.exp(first(o)) for o in outcomes) == pytest.approx(1.0, rel=1e-9)


def test_no_ratio_of_vertices_is_above_the_claim() -> None:
    plan = Vertices().plan()
    ratios = audits.leaf_law(plan, 1) - audits.leaf_law(plan, 0)
    leaves = sum(leaf.tree == 1 for leaf in plan.phases[-1].leaves)
    assert 0.5 < leaves * np.abs(ratios).max() <= 1.0
    # Four times less noise, of the fault, is a loss above the claim.
    few = replace(plan.phases[-1], scales=tuple(s / 4 for s in plan.phases[-1].scales))
    root = plan.silos * few.batch
    scores = [(v + (root - 1) * audits.others(plan)) / root for v in audits.VICTIM]
    law = [audits.NoisyArgmin(few.scales[0] / plan.silos).log_probabilities(s) for s in scores]
    assert leaves * np.abs(law[1] - law[0]).max() > 2.0


# -- The faults ------------------------------------------------------------------------------------


def test_faults_are_what_they_say() -> None:
    case = SWITCHING[PRINTED]
    limits: dict[str, Callable[[], float]] = {
        kind: lambda plan=plan: float(ExpertServer(plan, SeededNoise(1))._decider._limit)  # type: ignore[misc,attr-defined]
        for kind, plan in (("claimed", case.plan()), ("played", case.played()))
    }
    assert limits["played"]() == case.threshold != limits["claimed"]()
    assert replace(case, printed=False).played() == case.plan()
    wrong, right = VERTICES[QUARTER].played(), VERTICES[QUARTER].plan()
    assert [[4 * s for s in p.scales] for p in wrong.phases] == [
        list(p.scales) for p in right.phases
    ]
    assert Vertices().played() == Vertices().plan() == right
