"""The private shrinking dartboard and limited updates: pseudocode, exact laws, account, bounds."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import cache
from itertools import product
from math import comb, exp, log, sqrt
from typing import Any

import numpy as np
import pytest
from oracle import asi_2022 as oracle
from oracle import gao_2024
from pytest import approx

import fastfed
from fastfed._random import CHOICE, QUERY, SeededNoise
from fastfed._sampling import Uniforms
from fastfed._validate import InputError
from fastfed.environments import (
    LowerBoundLosses,
    NearRealizableLosses,
    ObliviousLosses,
    RealizableLosses,
    StochasticLosses,
)
from fastfed.experts import ALGORITHMS, ProblemSpec, System, limited_updates, private_dartboard
from fastfed.experts.limited_updates import Last
from fastfed.experts.private_dartboard import Dart
from fastfed.privacy import exact
from fastfed.privacy.mechanisms.laplace import Exponential
from fastfed.privacy.mechanisms.seldom import (
    Dartboard,
    calibrate_choices,
    calibrate_dartboard,
    coin_epsilon,
    simple_epsilon,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.simulation import experts
from fastfed.simulation.experiment import Experiment, make_experiment

BOARD, LIMITED = "private-dartboard", "limited-updates"
NEAR = 1e-9


def table(m: int, T: int, d: int) -> ObliviousLosses:
    losses = np.random.default_rng((m, T, d)).random((m, T, d))
    losses[:, :, -1] *= 0.5
    return ObliviousLosses(losses=losses)


#: Environment, silos, horizon, keys.
PROBLEMS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    f"{name}, N = {N}": (made, m, T, {"epsilon": 8.0, "phase_length": N, **more})
    for N, (name, made, m, T, more) in product(
        (1, 7),
        (
            ("one client", StochasticLosses(experts=3), 1, 90, {}),
            ("a table", table(4, 61, 5), 4, 61, {"delta": 1e-3}),
            ("two experts", RealizableLosses(experts=2), 3, 100, {"switch_probability": 0.3}),
            ("spent", table(2, 80, 4), 2, 80, {"switches": 2, "switch_probability": 0.5}),
            ("never kept", table(2, 50, 3), 2, 50, {"switch_probability": 1.0}),
            ("much noise", NearRealizableLosses(experts=4, optimal_loss=3), 3, 70,
             {"epsilon": 0.1}),
            ("ties", LowerBoundLosses(experts=3), 3, 60, {"epsilon": 30.0}),
            ("free", table(2, 60, 4), 2, 60, {"epsilon": 1e6}),
        ),
    )
}  # fmt: skip
PROBLEMS |= {
    "one decision": (table(2, 30, 3), 2, 30, {"epsilon": 3.0, "phase_length": 30}),
    "none": (table(2, 1, 3), 2, 1, {"epsilon": 3.0}),
}
LIMITS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    "one client": (StochasticLosses(experts=4), 1, 100, {"epsilon": 1.0}),
    "a power of two": (table(3, 64, 5), 3, 64, {"epsilon": 5.0, "delta": 1e-4}),
    "one less": (table(3, 63, 5), 3, 63, {"epsilon": 5.0}),
    "coins": (LowerBoundLosses(experts=3), 4, 40, {"epsilon": 2.0}),
    "one round": (table(2, 1, 3), 2, 1, {"epsilon": 1.0}),
    "the best one changes": (
        ObliviousLosses(losses=np.array([[[0.0, 1.0]] * 15 + [[0.9, 0.5]] * 25])),
        1,
        40,
        {"epsilon": 50.0},
    ),
}


@cache
def experiment(algorithm: str, name: str) -> Experiment:
    environment, silos, horizon, keys = (PROBLEMS if algorithm == BOARD else LIMITS)[name]
    return make_experiment(
        name="experts", environment=environment, curves=[{"algorithm": algorithm, **keys}],
        horizon=horizon, silos=silos, seed=5, checkpoints=horizon,
    )  # fmt: skip


def rows(e: Experiment) -> np.ndarray:
    """All losses (m, T, d)."""
    losses = e.environment.open(e.seed, 0, e.silos).losses
    return np.array([[losses.row(i, t) for t in range(1, e.horizon + 1)] for i in range(e.silos)])


def uniform(e: Experiment, purpose: int, release: int) -> float:
    return float(SeededNoise(e.seed, 0).uniforms(purpose, release, 1)[0])


def played(e: Experiment, play: Any, **keys: Any) -> tuple[np.ndarray, Any]:
    """Experts (T,), and the outcome of one driver's run."""
    x: list[int] = []
    original = experts.Ledger.played

    def noted(self: Any, first: int, last: int, here: np.ndarray, row: Any) -> None:
        assert here.max() == here.sum() == 1.0
        x.extend([int(here.argmax())] * (last - first + 1))
        original(self, first, last, here, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts.Ledger, "played", noted)
        opened = e.environment.open(e.seed, 0, e.silos)
        outcome = play(opened, e.curves[0].system.plan, e.checkpoints, **keys)
    return np.array(x), outcome


def truth(algorithm: str, e: Experiment) -> oracle.Run:
    plan, keys = e.curves[0].system.plan, e.curves[0].keys
    at = plan.asking_rounds(e.horizon).tolist()
    release = {t: n for n, t in enumerate(at, start=1)} | {1: 0}
    draw = {"uniform": lambda t: uniform(e, CHOICE, release[t])}
    if algorithm == LIMITED:
        assert at == [2**i for i in range(1, e.horizon.bit_length())]
        epsilon = keys["epsilon"] if not keys.get("delta") else plan.noise.eta
        return oracle.limited_updates(rows(e), epsilon=epsilon, **draw)
    assert at == gao_2024.decisions(e.horizon, keys["phase_length"])
    board = plan.noise
    return oracle.dartboard(
        rows(e), eta=1.0 - exp(-board.rate), p=board.chance, K=board.switches,
        N=keys["phase_length"], coin=lambda t: uniform(e, QUERY, release[t]), **draw,
    )  # fmt: skip


def check(algorithm: str, name: str) -> oracle.Run:
    """Both drivers play the oracle's experts, on the same draws, and have equal bits."""
    e = experiment(algorithm, name)
    run = truth(algorithm, e)
    assert run.margin > NEAR
    losses, plan = rows(e), e.curves[0].system.plan
    outcomes = []
    for play, keys in (
        (experts.run_steps, {}), (experts.run, {"threads": 1}), (experts.run, {"threads": 2})
    ):  # fmt: skip
        x, outcome = played(e, play, **keys)
        np.testing.assert_array_equal(x, run.x)
        outcomes.append(outcome)
    first = outcomes[0]
    for other in outcomes[1:]:
        for counted in ("group_regret", "synchronisations", "bits_up", "bits_down", "total"):
            np.testing.assert_array_equal(getattr(first, counted), getattr(other, counted))
        assert other.events == first.events
    at = plan.asking_rounds(e.horizon)
    made = np.array([int((at <= t).sum()) for t in e.checkpoints])
    np.testing.assert_array_equal(first.synchronisations, made)
    np.testing.assert_array_equal(first.bits_up, 64.0 * e.silos * e.facts.dimension * made)
    np.testing.assert_array_equal(first.bits_down, 64.0 * e.silos * (made + 1))
    if algorithm == BOARD:
        spent = int(len(run.draws) == plan.noise.switches)
        assert first.events == {"switches": len(run.draws), "switches_spent": spent}
    else:
        assert first.events == {"switches": int(np.count_nonzero(np.diff(run.x)))}
    if not isinstance(e.environment, StochasticLosses):
        lost = np.cumsum(losses.sum(axis=0)[np.arange(e.horizon), run.x])
        best = np.cumsum(losses.sum(axis=0), axis=0).min(axis=1)
        np.testing.assert_allclose(first.group_regret, (lost - best)[e.checkpoints - 1], atol=1e-9)
    return run


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_drivers_play_the_dartboard(name):
    check(BOARD, name)


@pytest.mark.parametrize("name", LIMITS)
def test_both_drivers_play_limited_updates(name):
    check(LIMITED, name)


def test_the_problems_are_what_they_are_called():
    """Runs that keep, draw the same and another, spend all; no decision and one."""
    runs = {name: truth(BOARD, experiment(BOARD, name)) for name in PROBLEMS}
    plans = {name: experiment(BOARD, name).curves[0].system.plan for name in PROBLEMS}
    assert len(runs["spent, N = 1"].draws) == plans["spent, N = 1"].noise.switches == 2
    assert len(runs["spent, N = 1"].coins) < plans["spent, N = 1"].exchanges
    assert runs["never kept, N = 1"].coins == runs["never kept, N = 1"].draws
    assert not runs["none"].coins and plans["none"].noise.switches == 0
    assert len(runs["one decision"].coins) == 1
    same = [run.x[t - 1] == run.x[t - 2] for run in runs.values() for t in run.draws if t > 1]
    assert any(same) and not all(same)
    assert any(0 < len(run.draws) < len(run.coins) for run in runs.values())
    changes = [np.count_nonzero(np.diff(truth(LIMITED, experiment(LIMITED, n)).x)) for n in LIMITS]
    assert min(changes) == 0 and max(changes) >= 2


def _one_more(self: Any, total: np.ndarray) -> Any:
    """A draw is not counted."""
    made = DECIDE(self, total)
    self.switches = min(self.switches, self.plan.noise.switches - 1)
    return made


DECIDE, LAST = Dart.decide, Last.decide
FAULTS = {
    "the loss before counts again": (
        BOARD, Dart, "decide", lambda self, total: DECIDE(self, _summed(self, total)),
        "a table, N = 1",
    ),
    "the coin of p forgotten": (
        BOARD, Dartboard, "keeps", lambda self, s: exp(-self.rate * s), "two experts, N = 1"
    ),
    "the coin of the loss forgotten": (
        BOARD, Dartboard, "keeps", lambda self, s: 1.0 - self.chance, "free, N = 1"
    ),
    "drawn by twice the rate": (
        BOARD, Dartboard, "choices", property(lambda self: Exponential(4.0 * self.rate)),
        "never kept, N = 1",
    ),
    "more draws than K": (BOARD, Dart, "decide", _one_more, "spent, N = 1"),
    "losses of all rounds": (
        LIMITED, Last, "decide", lambda self, total: LAST(self, _summed(self, total)),
        "the best one changes",
    ),
}  # fmt: skip


def _summed(self: Any, total: np.ndarray) -> np.ndarray:
    self.held = self.__dict__.get("held", np.zeros_like(total)) + total
    return self.held


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    algorithm, owner, name, wrong, problem = FAULTS[fault]
    check(algorithm, problem)
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        check(algorithm, problem)


# -- Exact laws of small games ---------------------------------------------------------------------


def game(seed: int, m: int, T: int, d: int) -> np.ndarray:
    return np.round(np.random.default_rng((seed, m, T, d)).random((m, T, d)), 2)


@pytest.mark.parametrize(
    ("eta", "p", "N", "m"), [(0.3, 0.2, 1, 1), (0.1, 0.01, 2, 3), (0.5, 1.0, 1, 2)]
)
def test_the_expert_of_a_round_has_the_law_of_hedge(eta, p, N, m):
    """While draws are left, at every round: what the regret bound rests on."""
    losses = game(1, m, 5, 3)
    law = oracle.experts_of(oracle.dartboard_law(losses, eta=eta, p=p, K=10, N=N))
    assert sum(law.values()) == approx(1.0)
    laws, _ = gao_2024.hedge(losses, N=N, eta=-m * log(1 - eta))
    at = [1, *gao_2024.decisions(5, N)]
    for n, t in enumerate(at):
        found = [sum(c for x, c in law.items() if x[n] == y) for y in range(3)]
        np.testing.assert_allclose(found, laws[t - 1], rtol=1e-10)


def neighbours(T: int, m: int, d: int) -> Any:
    """Losses, and the same with one loss replaced: all of 0 and 1 at one client."""
    for seed, t in product(range(2), range(T)):
        losses = game(seed, m, T, d) if seed else np.zeros((m, T, d))
        for here, there in product(product((0.0, 1.0), repeat=d), repeat=2):
            one, two = losses.copy(), losses.copy()
            one[0, t], two[0, t] = here, there
            yield one, two


@pytest.mark.parametrize(
    ("eta", "p", "K", "N", "m"),
    [(0.3, 0.2, 1, 1, 1), (0.3, 0.2, 2, 1, 1), (0.4, 0.9, 2, 1, 1), (0.4, 1.0, 2, 1, 1),
     (0.05, 0.02, 2, 1, 2), (0.3, 0.5, 1, 2, 2)],
)  # fmt: skip
def test_the_account_covers_the_exact_law(eta, p, K, N, m):
    """Every pair of neighbours at 3 rounds: pure, and at some deltas; the coin's part is needed."""
    rate = -log(1 - eta)
    proven = Dartboard(
        budget=Budget(1.0, 0.0), switches=K, chance=p, rate=rate, source=""
    )  # fmt: skip
    assert proven.exact() == approx(oracle.proven_epsilon(eta=eta, p=p, K=K), rel=1e-12)
    deltas = (1e-3, 1e-2)
    at = [proven.exact(delta) for delta in deltas]
    worst, sticks = 0.0, [0.0, 0.0]
    for one, two in neighbours(3 if N == 1 else 5, m, 2):
        laws = [oracle.dartboard_law(z, eta=eta, p=p, K=K, N=N) for z in (one, two)]
        worst = max(worst, gao_2024.log_ratio(*laws))
        for i, epsilon in enumerate(at):
            sticks[i] = max(sticks[i], oracle.hockey_stick(*laws, epsilon))
    assert worst <= proven.exact() + 1e-12
    # Small p: without the coin, draws alone would claim too little.
    if p < 0.1:
        assert worst > 2 * rate * K
    for stick, delta in zip(sticks, deltas, strict=True):
        assert stick <= delta


@pytest.mark.parametrize(("eta", "p", "K"), [(0.2, 0.05, 1), (0.2, 0.05, 4), (0.05, 0.3, 6)])
def test_the_pure_account_is_attained(eta, p, K):
    """One run: expert 1 is played and has lost nothing, expert 0 all; the loss of the last round
    is (0, 1) or (1, 0), and from then on expert 0 is drawn in every round, K times."""
    before = 400
    ratio = log((1 - (1 - p) * (1 - eta)) / (1 - (1 - p)))  # a draw, after losing 1 or 0
    for _ in range(K):
        # Weights of 0 by those of 1, of either loss.
        odds = [(1 - eta) ** (before + change) for change in (-1.0, 1.0)]
        laws = [o / (1 + o) for o in odds]
        ratio += log(laws[0] / laws[1])
    assert ratio == approx(oracle.proven_epsilon(eta=eta, p=p, K=K), rel=1e-6)


def test_the_coin_is_what_its_two_sides_cost():
    for rate, p in [(0.1, 0.2), (1.0, 0.3), (0.3, 0.01), (0.5, 0.9)]:
        stays = [(1 - p) * exp(-rate * s) for s in (0.0, 1.0)]
        sides = log(stays[0] / stays[1]), log((1 - stays[1]) / (1 - stays[0]))
        assert coin_epsilon(rate, p) == approx(max(sides), rel=1e-12)
    assert coin_epsilon(0.5, 1.0) == 0.0


def test_the_order_of_the_account():
    """About eta/p + 2 eta K for small eta; eta/p + 4 eta K is above it."""
    for eta, p in [(0.01, 0.1), (0.001, 0.05), (0.1, 0.3)]:
        for K in (1, 20, 400):
            assert oracle.proven_epsilon(eta=eta, p=p, K=K) <= 1.06 * eta / p + 4 * eta * K


# -- Calibration -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("epsilon", "K", "p"), [(1.0, 50, 0.02), (0.1, 1, 0.5), (20.0, 300, 1.0)])
def test_the_rate_is_the_largest(epsilon, delta, K, p):
    made = calibrate_dartboard(Budget(epsilon, delta), switches=K, chance=p)
    assert (1.0 - 1e-5) * epsilon <= made.exact() <= epsilon
    assert made.exact() <= simple_epsilon(made.rate, p, K, delta) + 1e-12
    half = calibrate_dartboard(Budget(epsilon, delta), switches=K, chance=p, at_most=made.rate / 2)
    assert half.rate == made.rate / 2 and half.exact() < 0.7 * epsilon


def test_fresh_choices():
    pure = calibrate_choices(Budget(0.7, 0.0), choices=9)
    assert (pure.eta, pure.exact()) == (0.7, 0.7)
    loose = calibrate_choices(Budget(0.7, 1e-2), choices=9)
    assert loose.eta > 0.7 and 0.69 < loose.exact() <= 0.7
    assert calibrate_choices(Budget(0.7, 0.0), choices=0).exact() == 0.0
    # The pair that attains it: two experts that change places.
    law = [exp(-0.35 * s) for s in (0.0, 1.0)]
    worst = log(law[0] / law[1]) * 2
    assert worst == approx(0.7)


# -- Systems ---------------------------------------------------------------------------------------

SPEC = ProblemSpec(silos=3, horizon=400, experts=5, iid=True)


def make(algorithm: str, spec: ProblemSpec = SPEC, **keys: Any) -> System:
    return ALGORITHMS[algorithm].make({"epsilon": 1.0, **keys}, spec)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("algorithm", [BOARD, LIMITED])
def test_certificates(algorithm, delta):
    found = make(algorithm, delta=delta).certificate
    assert (found.status, found.unit, found.relation) == ("proven", "user", "replace")
    assert found.claimed == found.exact or found.exact.epsilon <= found.claimed.epsilon
    assert found.exact.delta == delta and not found.also
    assert all(c.holds for c in found.conditions)
    assert found.exact.epsilon > 0.9
    # A record behind three losses.
    many = make(algorithm, dataclasses.replace(SPEC, multiplicity=3), delta=delta).certificate
    assert many.exact.epsilon > 2.0 * found.exact.epsilon
    assert [c.holds for c in many.conditions].count(False) == 1
    assert many.also[0].exact == found.exact
    deployed = make(algorithm).deployed_certificate
    assert not any("simulation" in c for c in deployed.caveats)
    assert any("decisions are exact" in c for c in deployed.caveats)


def test_keys_of_the_dartboard():
    plan = make(BOARD, switch_probability=0.25, switches=7).plan
    assert (plan.noise.chance, plan.noise.switches) == (0.25, 7)
    plan = make(BOARD, epsilon=1e6).plan
    assert plan.noise.rate == approx(sqrt(8 * log(5) / 400) / 3)
    # K is never more than there are coins.
    assert make(BOARD, switches=10**6).plan.noise.switches == 399
    # Privacy is not of m or N: the coin and the draws alone.
    one, other = (
        make(BOARD, dataclasses.replace(SPEC, silos=m), phase_length=N, epsilon=0.01,
             switch_probability=0.1, switches=10).plan.noise
        for m, N in ((1, 1), (2, 3))
    )  # fmt: skip
    assert one.rate == other.rate


@pytest.mark.parametrize(
    ("algorithm", "keys", "text"),
    [
        (BOARD, {"epsilon": 0.0}, "epsilon must be >= 1e-09"),
        (BOARD, {"delta": 1.0}, "delta must be >= 0 and < 1"),
        (BOARD, {"phase_length": 401}, r"phase_length must be <= horizon \(400\), got 401"),
        (BOARD, {"switch_probability": 0.0}, "switch_probability must be >= 1e-09"),
        (BOARD, {"switch_probability": 1.5}, "switch_probability must be .*got 1.5"),
        (BOARD, {"switch_probability": "prove"}, 'did you mean "proven"'),
        (BOARD, {"switches": 0}, "switches must be an integer >= 1"),
        (BOARD, {"threshold": 1.0}, 'unknown key "threshold" for private-dartboard'),
        (LIMITED, {"epsilon": -1.0}, "epsilon must be >= 1e-09"),
        (LIMITED, {"phase_length": 3}, 'unknown key "phase_length" for limited-updates'),
    ],
)
def test_what_is_refused(algorithm, keys, text):
    with pytest.raises(InputError, match=text):
        make(algorithm, **keys)


@pytest.mark.parametrize("algorithm", [BOARD, LIMITED])
def test_losses_must_be_linear(algorithm):
    with pytest.raises(InputError, match="needs linear losses"):
        make(algorithm, dataclasses.replace(SPEC, linear=False))


def test_a_plan_with_other_numbers_is_refused():
    plan = make(BOARD).plan
    import msgspec

    louder = msgspec.structs.replace(plan.noise, rate=2.0 * plan.noise.rate)
    with pytest.raises(InputError, match="the plan is not the one that was certified"):
        fastfed.parties.ExpertServer(dataclasses.replace(plan, noise=louder))


# -- Bounds ----------------------------------------------------------------------------------------


def test_the_tail_is_binomial():
    for K, n, q in [(0, 5, 0.2), (3, 9, 0.4), (9, 9, 0.4), (20, 9, 0.4), (12, 40, 0.05)]:
        tail = sum(comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(K + 1, n + 1))
        assert float(private_dartboard.exceeded(K, n, q)) == approx(tail, rel=1e-9, abs=1e-15)


def test_the_least_bound_is_least():
    """No p and K on a coarse grid of ours have a much smaller bound."""
    chosen = make(BOARD, epsilon=0.5)
    least = chosen.bounds_at(np.array([400]))["proven"][0]
    others = [
        make(BOARD, epsilon=0.5, switch_probability=p, switches=K).bounds_at(np.array([400]))
        for p in (0.003, 0.01, 0.03, 0.1, 0.3)
        for K in (2, 4, 8, 16, 32, 64)
    ]
    assert min(o["proven"][0] for o in others) >= least - 1.0 - 0.01 * least


@pytest.mark.parametrize(
    ("algorithm", "environment", "silos", "keys"),
    [
        (BOARD, StochasticLosses(experts=5, gap=0.4), 4, {"epsilon": 4.0}),
        (BOARD, RealizableLosses(experts=10), 4, {"epsilon": 4.0, "delta": 1e-4}),
        (BOARD, table(8, 600, 5), 8, {"epsilon": 8.0, "phase_length": 5}),
        (LIMITED, StochasticLosses(experts=5, gap=0.4), 4, {"epsilon": 1.0}),
        (LIMITED, StochasticLosses(experts=9, mean=0.3), 1, {"epsilon": 3.0}),
    ],
)
def test_mean_regret_is_below_the_bound(algorithm, environment, silos, keys):
    results = fastfed.simulate(
        environment,
        algorithm,
        silos=silos,
        horizon=600,
        replicates=8,
        seed=2,
        checkpoints=8,
        **keys,
    )
    curve = results.curves[0]
    regret = np.asarray(curve.group_regret)
    e = make_experiment(
        name="b", environment=environment, curves=[{"algorithm": algorithm, **keys}], horizon=600,
        silos=silos, seed=2, checkpoints=8,
    )  # fmt: skip
    bounds = e.curves[0].system.bounds_at(e.checkpoints)
    proven = np.array(bounds["proven"])
    spread = regret.std(axis=0, ddof=1) / sqrt(8)
    assert (regret.mean(axis=0) <= proven + 4 * spread).all()
    assert proven[-1] < silos * 600  # it says something


def test_limited_updates_bound_by_hand():
    """T = 3, m = 2: round 1, and rounds 2 and 3 from two losses."""
    each = (2 * log(4) / 5.0 + sqrt(2 * log(4) / 2)) / 2
    assert limited_updates.limited_regret(3, 2, 4, 5.0) == approx(2 + 4 * min(each, 1.0))
    assert limited_updates.limited_regret(1, 2, 4, 5.0) == 2.0


# -- Exact decisions -------------------------------------------------------------------------------


def forced(u: Fraction) -> Any:
    """Entropy of a uniform with these digits."""

    class Digits:
        def __call__(self, count: int) -> bytes:
            words = int(u * 2**64)
            return int(words).to_bytes(8, "little")[:count]

        def further(self, index: int, start: int, count: int) -> bytes:
            scaled = int(u * 2 ** (start + 8 * count))
            return (scaled % 2 ** (8 * count)).to_bytes(count, "big")

    return Digits()


@pytest.mark.parametrize(
    ("chance", "cost", "rate"),
    [(0.25, 3.0, 0.1), (0.001, 0.0, 2.0), (0.5, 40.0, 1.0), (0.9, 7.5, 0.03)],
)
def test_coins_are_exact_next_to_their_edge(chance, cost, rate):
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 120
        x = Fraction(rate) * Fraction(cost)
        edge = (1 - Fraction(chance)) * Fraction((-Decimal(x.numerator) / x.denominator).exp())
    for bits in (40, 60, 90, 200):
        step = Fraction(1, 2**bits)
        for u, stays in ((edge - step, True), (edge + step, False)):
            if 0 < u < 1:
                assert exact.kept(chance, cost, rate, Uniforms(1, forced(u))) is stays


def test_coins_of_chance_one_never_keep():
    assert not exact.kept(1.0, 0.0, 1.0, Uniforms(1, forced(Fraction(1, 2**63))))


@pytest.mark.parametrize(("algorithm", "N"), [(BOARD, 1), (BOARD, 2), (LIMITED, 1)])
def test_deployed_parties_play_the_law(algorithm, N):
    """Servers without a seed: frequencies of what is played in 5 rounds, by chi-square."""
    losses = game(3, 2, 5, 2)
    keys = (
        {"phase_length": N, "switch_probability": 0.3, "switches": 2} if algorithm == BOARD else {}
    )
    system = make(algorithm, ProblemSpec(silos=2, horizon=5, experts=2), epsilon=4.0, **keys)
    plan, runs = system.plan, 800
    if algorithm == BOARD:
        board = plan.noise
        law = oracle.experts_of(
            oracle.dartboard_law(losses, eta=1 - exp(-board.rate), p=0.3, K=board.switches, N=N)
        )
    else:
        law = {}
        for x in product(range(2), repeat=3):
            chance = 0.5
            for t, y in zip((2, 4), x[1:], strict=True):
                w = np.exp(-2.0 * oracle.since(losses, t // 2, t))
                chance *= float(w[y] / w.sum())
            law[x] = chance
    counts = dict.fromkeys(law, 0)
    for _ in range(runs):
        server = fastfed.parties.ExpertServer(plan)
        x = [server.start().expert]
        clients = [fastfed.parties.ExpertClient(plan, i) for i in range(2)]
        for client in clients:
            client.receive(server._started)
        for t in range(5):
            if clients[0].due:
                choice = server.combine([client.report() for client in clients])
                x.append(choice.expert)
                for client in clients:
                    client.receive(choice)
            for i, client in enumerate(clients):
                client.observe(losses[i, t])
        counts[tuple(x)] += 1
    expected = np.array([runs * law[o] for o in law])
    seen = np.array([counts[o] for o in law])
    few = expected < 8
    pairs = [(seen[few].sum(), expected[few].sum())] if expected[few].sum() > 8 else []
    pairs += list(zip(seen[~few], expected[~few], strict=True))
    square = sum((a - b) ** 2 / b for a, b in pairs)
    n = len(pairs)
    assert n >= 4 and square < n + 5.5 * sqrt(2 * n) + 12, (square, n)
