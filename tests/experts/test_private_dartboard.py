"""Tests of the private shrinking dartboard and of limited updates: pseudocode, exact distributions,
account and bounds."""

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
MIN_MARGIN = 1e-9


def random_table(m: int, T: int, d: int) -> ObliviousLosses:
    """Return losses (m, T, d) drawn in advance; the last expert is better."""
    losses = np.random.default_rng((m, T, d)).random((m, T, d))
    losses[:, :, -1] *= 0.5
    return ObliviousLosses(losses=losses)


#: Name -> (environment, silos, horizon, keys).
PROBLEMS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    f"{name}, N = {N}": (losses, m, T, {"epsilon": 8.0, "phase_length": N, **more})
    for N, (name, losses, m, T, more) in product(
        (1, 7),
        (
            ("one client", StochasticLosses(experts=3), 1, 90, {}),
            ("a table", random_table(4, 61, 5), 4, 61, {"delta": 1e-3}),
            ("two experts", RealizableLosses(experts=2), 3, 100, {"switch_probability": 0.3}),
            ("spent", random_table(2, 80, 4), 2, 80, {"switches": 2, "switch_probability": 0.5}),
            ("never kept", random_table(2, 50, 3), 2, 50, {"switch_probability": 1.0}),
            ("much noise", NearRealizableLosses(experts=4, optimal_loss=3), 3, 70,
             {"epsilon": 0.1}),
            ("ties", LowerBoundLosses(experts=3), 3, 60, {"epsilon": 30.0}),
            ("free", random_table(2, 60, 4), 2, 60, {"epsilon": 1e6}),
        ),
    )
}  # fmt: skip
PROBLEMS |= {
    "one decision": (random_table(2, 30, 3), 2, 30, {"epsilon": 3.0, "phase_length": 30}),
    "none": (random_table(2, 1, 3), 2, 1, {"epsilon": 3.0}),
}
LIMITED_PROBLEMS: dict[str, tuple[Any, int, int, dict[str, Any]]] = {
    "one client": (StochasticLosses(experts=4), 1, 100, {"epsilon": 1.0}),
    "a power of two": (random_table(3, 64, 5), 3, 64, {"epsilon": 5.0, "delta": 1e-4}),
    "one less": (random_table(3, 63, 5), 3, 63, {"epsilon": 5.0}),
    "coins": (LowerBoundLosses(experts=3), 4, 40, {"epsilon": 2.0}),
    "one round": (random_table(2, 1, 3), 2, 1, {"epsilon": 1.0}),
    "the best one changes": (
        ObliviousLosses(losses=np.array([[[0.0, 1.0]] * 15 + [[0.9, 0.5]] * 25])),
        1,
        40,
        {"epsilon": 50.0},
    ),
}


@cache
def experiment(algorithm: str, name: str) -> Experiment:
    """Return the experiment of one problem."""
    environment, silos, horizon, keys = (PROBLEMS if algorithm == BOARD else LIMITED_PROBLEMS)[name]
    return make_experiment(
        name="experts", environment=environment, curves=[{"algorithm": algorithm, **keys}],
        horizon=horizon, silos=silos, seed=5, checkpoints=horizon,
    )  # fmt: skip


def all_losses(e: Experiment) -> np.ndarray:
    """Return all losses (m, T, d)."""
    losses = e.environment.open(e.seed, 0, e.silos).losses
    return np.array([[losses.row(i, t) for t in range(1, e.horizon + 1)] for i in range(e.silos)])


def uniform_draw(e: Experiment, purpose: int, release: int) -> float:
    """Return the package's uniform draw under this key."""
    return float(SeededNoise(e.seed, 0).uniforms(purpose, release, 1)[0])


def run_and_record(e: Experiment, driver: Any, **keys: Any) -> tuple[np.ndarray, Any]:
    """Run one driver; return the chosen experts (T,) and the outcome."""
    x: list[int] = []
    original = experts.Ledger.played

    def record(self: Any, first: int, last: int, weights: np.ndarray, row: Any) -> None:
        """Record the expert of each round, then call the original method."""
        assert weights.max() == weights.sum() == 1.0
        x.extend([int(weights.argmax())] * (last - first + 1))
        original(self, first, last, weights, row)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts.Ledger, "played", record)
        environment = e.environment.open(e.seed, 0, e.silos)
        outcome = driver(environment, e.curves[0].system.plan, e.checkpoints, **keys)
    return np.array(x), outcome


def oracle_run(algorithm: str, e: Experiment) -> oracle.Run:
    """Run the oracle on the package's draws."""
    plan, keys = e.curves[0].system.plan, e.curves[0].keys
    decision_rounds = plan.asking_rounds(e.horizon).tolist()
    release = {t: n for n, t in enumerate(decision_rounds, start=1)} | {1: 0}
    draws = {"uniform": lambda t: uniform_draw(e, CHOICE, release[t])}
    if algorithm == LIMITED:
        assert decision_rounds == [2**i for i in range(1, e.horizon.bit_length())]
        epsilon = keys["epsilon"] if not keys.get("delta") else plan.noise.eta
        return oracle.limited_updates(all_losses(e), epsilon=epsilon, **draws)
    assert decision_rounds == gao_2024.decisions(e.horizon, keys["phase_length"])
    board = plan.noise
    return oracle.dartboard(
        all_losses(e), eta=1.0 - exp(-board.rate), p=board.chance, K=board.switches,
        N=keys["phase_length"], coin=lambda t: uniform_draw(e, QUERY, release[t]), **draws,
    )  # fmt: skip


def check_run(algorithm: str, name: str) -> oracle.Run:
    """Check that both drivers choose the oracle's experts and have equal bits; return the oracle's
    run."""
    e = experiment(algorithm, name)
    oracle_result = oracle_run(algorithm, e)
    assert oracle_result.margin > MIN_MARGIN
    losses, plan = all_losses(e), e.curves[0].system.plan
    outcomes = []
    for driver, keys in (
        (experts.run_steps, {}), (experts.run, {"threads": 1}), (experts.run, {"threads": 2})
    ):  # fmt: skip
        x, outcome = run_and_record(e, driver, **keys)
        np.testing.assert_array_equal(x, oracle_result.x)
        outcomes.append(outcome)
    step_outcome = outcomes[0]
    for compiled_outcome in outcomes[1:]:
        for field in ("group_regret", "synchronisations", "bits_up", "bits_down", "total"):
            np.testing.assert_array_equal(
                getattr(step_outcome, field), getattr(compiled_outcome, field)
            )
        assert compiled_outcome.events == step_outcome.events
    decision_rounds = plan.asking_rounds(e.horizon)
    releases_by_checkpoint = np.array([int((decision_rounds <= t).sum()) for t in e.checkpoints])
    np.testing.assert_array_equal(step_outcome.synchronisations, releases_by_checkpoint)
    np.testing.assert_array_equal(
        step_outcome.bits_up, 64.0 * e.silos * e.facts.dimension * releases_by_checkpoint
    )
    np.testing.assert_array_equal(
        step_outcome.bits_down, 64.0 * e.silos * (releases_by_checkpoint + 1)
    )
    if algorithm == BOARD:
        spent = int(len(oracle_result.draws) == plan.noise.switches)
        assert step_outcome.events == {
            "switches": len(oracle_result.draws),
            "switches_spent": spent,
        }
    else:
        assert step_outcome.events == {"switches": int(np.count_nonzero(np.diff(oracle_result.x)))}
    if not isinstance(e.environment, StochasticLosses):
        total_loss = np.cumsum(losses.sum(axis=0)[np.arange(e.horizon), oracle_result.x])
        best_loss = np.cumsum(losses.sum(axis=0), axis=0).min(axis=1)
        np.testing.assert_allclose(
            step_outcome.group_regret, (total_loss - best_loss)[e.checkpoints - 1], atol=1e-9
        )
    return oracle_result


@pytest.mark.parametrize("name", PROBLEMS)
def test_both_drivers_follow_the_dartboard(name):
    check_run(BOARD, name)


@pytest.mark.parametrize("name", LIMITED_PROBLEMS)
def test_both_drivers_follow_limited_updates(name):
    check_run(LIMITED, name)


def test_each_problem_shows_what_its_name_says():
    """Check that experts are kept, drawn again and changed, that draws run out, and the numbers of
    decisions."""
    runs = {name: oracle_run(BOARD, experiment(BOARD, name)) for name in PROBLEMS}
    plans = {name: experiment(BOARD, name).curves[0].system.plan for name in PROBLEMS}
    assert len(runs["spent, N = 1"].draws) == plans["spent, N = 1"].noise.switches == 2
    assert len(runs["spent, N = 1"].coins) < plans["spent, N = 1"].exchanges
    assert runs["never kept, N = 1"].coins == runs["never kept, N = 1"].draws
    assert not runs["none"].coins and plans["none"].noise.switches == 0
    assert len(runs["one decision"].coins) == 1
    keeps_expert = [
        run.x[t - 1] == run.x[t - 2] for run in runs.values() for t in run.draws if t > 1
    ]
    assert any(keeps_expert) and not all(keeps_expert)
    assert any(0 < len(run.draws) < len(run.coins) for run in runs.values())
    changes = [
        np.count_nonzero(np.diff(oracle_run(LIMITED, experiment(LIMITED, n)).x))
        for n in LIMITED_PROBLEMS
    ]
    assert min(changes) == 0 and max(changes) >= 2


def _uncounted_draw(self: Any, total: np.ndarray) -> Any:
    """Decide, but keep the count of draws below its limit, as if the last were not counted."""
    choice = DECIDE(self, total)
    self.switches = min(self.switches, self.plan.noise.switches - 1)
    return choice


DECIDE, LAST = Dart.decide, Last.decide
FAULTS = {
    "the loss before counts again": (
        BOARD, Dart, "decide", lambda self, total: DECIDE(self, _summed_losses(self, total)),
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
    "more draws than K": (BOARD, Dart, "decide", _uncounted_draw, "spent, N = 1"),
    "losses of all rounds": (
        LIMITED, Last, "decide", lambda self, total: LAST(self, _summed_losses(self, total)),
        "the best one changes",
    ),
}  # fmt: skip


def _summed_losses(self: Any, total: np.ndarray) -> np.ndarray:
    """Return the sum of all losses so far."""
    self.held = self.__dict__.get("held", np.zeros_like(total)) + total
    return self.held


@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_detects_planted_faults(fault, monkeypatch):
    algorithm, owner, name, faulty, problem = FAULTS[fault]
    check_run(algorithm, problem)
    monkeypatch.setattr(owner, name, faulty)
    with pytest.raises(AssertionError):
        check_run(algorithm, problem)


# -- Exact distributions of small games ------------------------------------------------------------


def random_losses(seed: int, m: int, T: int, d: int) -> np.ndarray:
    """Return random losses (m, T, d) with two decimals."""
    return np.round(np.random.default_rng((seed, m, T, d)).random((m, T, d)), 2)


@pytest.mark.parametrize(
    ("eta", "p", "N", "m"), [(0.3, 0.2, 1, 1), (0.1, 0.01, 2, 3), (0.5, 1.0, 1, 2)]
)
def test_experts_of_the_dartboard_have_the_distribution_of_hedge(eta, p, N, m):
    """Check every round while draws remain; the regret bound depends on it."""
    losses = random_losses(1, m, 5, 3)
    distribution = oracle.experts_of(oracle.dartboard_law(losses, eta=eta, p=p, K=10, N=N))
    assert sum(distribution.values()) == approx(1.0)
    hedge_distributions, _ = gao_2024.hedge(losses, N=N, eta=-m * log(1 - eta))
    decision_rounds = [1, *gao_2024.decisions(5, N)]
    for n, t in enumerate(decision_rounds):
        marginals = [
            sum(probability for x, probability in distribution.items() if x[n] == expert)
            for expert in range(3)
        ]
        np.testing.assert_allclose(marginals, hedge_distributions[t - 1], rtol=1e-10)


def neighbouring_losses(T: int, m: int, d: int) -> Any:
    """Yield pairs of losses that differ in one loss of one client, whose entries are 0 or 1."""
    for seed, t in product(range(2), range(T)):
        losses = random_losses(seed, m, T, d) if seed else np.zeros((m, T, d))
        for first_loss, second_loss in product(product((0.0, 1.0), repeat=d), repeat=2):
            first, second = losses.copy(), losses.copy()
            first[0, t], second[0, t] = first_loss, second_loss
            yield first, second


@pytest.mark.parametrize(
    ("eta", "p", "K", "N", "m"),
    [(0.3, 0.2, 1, 1, 1), (0.3, 0.2, 2, 1, 1), (0.4, 0.9, 2, 1, 1), (0.4, 1.0, 2, 1, 1),
     (0.05, 0.02, 2, 1, 2), (0.3, 0.5, 1, 2, 2)],
)  # fmt: skip
def test_account_covers_the_exact_distribution(eta, p, K, N, m):
    """Compare every pair of neighbours with the pure account and with the account at some
    deltas."""
    rate = -log(1 - eta)
    mechanism = Dartboard(
        budget=Budget(1.0, 0.0), switches=K, chance=p, rate=rate, source=""
    )  # fmt: skip
    assert mechanism.exact() == approx(oracle.proven_epsilon(eta=eta, p=p, K=K), rel=1e-12)
    deltas = (1e-3, 1e-2)
    epsilons = [mechanism.exact(delta) for delta in deltas]
    max_log_ratio, divergences = 0.0, [0.0, 0.0]
    for first, second in neighbouring_losses(3 if N == 1 else 5, m, 2):
        distributions = [
            oracle.dartboard_law(losses, eta=eta, p=p, K=K, N=N) for losses in (first, second)
        ]
        max_log_ratio = max(max_log_ratio, gao_2024.log_ratio(*distributions))
        for i, epsilon in enumerate(epsilons):
            divergences[i] = max(divergences[i], oracle.hockey_stick(*distributions, epsilon))
    assert max_log_ratio <= mechanism.exact() + 1e-12
    # For small p, an account of the draws without the coin would be too small.
    if p < 0.1:
        assert max_log_ratio > 2 * rate * K
    for divergence, delta in zip(divergences, deltas, strict=True):
        assert divergence <= delta


@pytest.mark.parametrize(("eta", "p", "K"), [(0.2, 0.05, 1), (0.2, 0.05, 4), (0.05, 0.3, 6)])
def test_pure_account_is_attained(eta, p, K):
    """Construct a run that attains the pure account.

    The current expert 1 has lost nothing, expert 0 has lost in every round. The loss of the last
    round is (0, 1) or (1, 0). After it, expert 0 is drawn in every round, K times.
    """
    rounds_before = 400
    ratio = log(
        (1 - (1 - p) * (1 - eta)) / (1 - (1 - p))
    )  # log ratio of a draw after a loss of 1 or 0
    for _ in range(K):
        # Odds of expert 0 to expert 1 under either loss.
        odds = [(1 - eta) ** (rounds_before + change) for change in (-1.0, 1.0)]
        probabilities = [odds_ / (1 + odds_) for odds_ in odds]
        ratio += log(probabilities[0] / probabilities[1])
    assert ratio == approx(oracle.proven_epsilon(eta=eta, p=p, K=K), rel=1e-6)


def test_epsilon_of_the_coin_is_the_larger_of_both_outcomes():
    for rate, p in [(0.1, 0.2), (1.0, 0.3), (0.3, 0.01), (0.5, 0.9)]:
        stay_probabilities = [(1 - p) * exp(-rate * s) for s in (0.0, 1.0)]
        log_ratios = (
            log(stay_probabilities[0] / stay_probabilities[1]),
            log((1 - stay_probabilities[1]) / (1 - stay_probabilities[0])),
        )
        assert coin_epsilon(rate, p) == approx(max(log_ratios), rel=1e-12)
    assert coin_epsilon(0.5, 1.0) == 0.0


def test_account_has_the_expected_order():
    """Epsilon is about eta/p + 2 eta K for small eta, and below eta/p + 4 eta K."""
    for eta, p in [(0.01, 0.1), (0.001, 0.05), (0.1, 0.3)]:
        for K in (1, 20, 400):
            assert oracle.proven_epsilon(eta=eta, p=p, K=K) <= 1.06 * eta / p + 4 * eta * K


# -- Calibration -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("epsilon", "K", "p"), [(1.0, 50, 0.02), (0.1, 1, 0.5), (20.0, 300, 1.0)])
def test_calibration_finds_the_largest_rate(epsilon, delta, K, p):
    mechanism = calibrate_dartboard(Budget(epsilon, delta), switches=K, chance=p)
    assert (1.0 - 1e-5) * epsilon <= mechanism.exact() <= epsilon
    assert mechanism.exact() <= simple_epsilon(mechanism.rate, p, K, delta) + 1e-12
    half_rate = calibrate_dartboard(
        Budget(epsilon, delta), switches=K, chance=p, at_most=mechanism.rate / 2
    )
    assert half_rate.rate == mechanism.rate / 2 and half_rate.exact() < 0.7 * epsilon


def test_calibration_of_fresh_choices():
    pure = calibrate_choices(Budget(0.7, 0.0), choices=9)
    assert (pure.eta, pure.exact()) == (0.7, 0.7)
    approximate = calibrate_choices(Budget(0.7, 1e-2), choices=9)
    assert approximate.eta > 0.7 and 0.69 < approximate.exact() <= 0.7
    assert calibrate_choices(Budget(0.7, 0.0), choices=0).exact() == 0.0
    # Two experts that exchange their losses attain the account.
    weights = [exp(-0.35 * s) for s in (0.0, 1.0)]
    max_log_ratio = log(weights[0] / weights[1]) * 2
    assert max_log_ratio == approx(0.7)


# -- Systems ---------------------------------------------------------------------------------------

SPEC = ProblemSpec(silos=3, horizon=400, experts=5, iid=True)


def make(algorithm: str, spec: ProblemSpec = SPEC, **keys: Any) -> System:
    """Make the system with epsilon 1 unless ``keys`` say otherwise."""
    return ALGORITHMS[algorithm].make({"epsilon": 1.0, **keys}, spec)


@pytest.mark.parametrize("delta", [0.0, 1e-5])
@pytest.mark.parametrize("algorithm", [BOARD, LIMITED])
def test_certificates_give_the_exact_epsilon(algorithm, delta):
    certificate = make(algorithm, delta=delta).certificate
    assert (certificate.status, certificate.unit, certificate.relation) == (
        "proven",
        "user",
        "replace",
    )
    assert (
        certificate.claimed == certificate.exact
        or certificate.exact.epsilon <= certificate.claimed.epsilon
    )
    assert certificate.exact.delta == delta and not certificate.also
    assert all(condition.holds for condition in certificate.conditions)
    assert certificate.exact.epsilon > 0.9
    # One record that causes three losses.
    certificate_of_three = make(
        algorithm, dataclasses.replace(SPEC, multiplicity=3), delta=delta
    ).certificate
    assert certificate_of_three.exact.epsilon > 2.0 * certificate.exact.epsilon
    assert [condition.holds for condition in certificate_of_three.conditions].count(False) == 1
    assert certificate_of_three.also[0].exact == certificate.exact
    deployed = make(algorithm).deployed_certificate
    assert not any("simulation" in condition for condition in deployed.caveats)
    assert any("decisions are exact" in condition for condition in deployed.caveats)


def test_keys_determine_the_dartboard():
    plan = make(BOARD, switch_probability=0.25, switches=7).plan
    assert (plan.noise.chance, plan.noise.switches) == (0.25, 7)
    plan = make(BOARD, epsilon=1e6).plan
    assert plan.noise.rate == approx(sqrt(8 * log(5) / 400) / 3)
    # K is at most the number of coins.
    assert make(BOARD, switches=10**6).plan.noise.switches == 399
    # Privacy depends on the coin and the draws, not on m or N.
    first_noise, second_noise = (
        make(BOARD, dataclasses.replace(SPEC, silos=m), phase_length=N, epsilon=0.01,
             switch_probability=0.1, switches=10).plan.noise
        for m, N in ((1, 1), (2, 3))
    )  # fmt: skip
    assert first_noise.rate == second_noise.rate


@pytest.mark.parametrize(
    ("algorithm", "keys", "message"),
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
def test_errors_about_bad_keys(algorithm, keys, message):
    with pytest.raises(InputError, match=message):
        make(algorithm, **keys)


@pytest.mark.parametrize("algorithm", [BOARD, LIMITED])
def test_losses_must_be_linear(algorithm):
    with pytest.raises(InputError, match="needs linear losses"):
        make(algorithm, dataclasses.replace(SPEC, linear=False))


def test_plans_with_another_rate_are_refused():
    plan = make(BOARD).plan
    import msgspec

    larger_rate = msgspec.structs.replace(plan.noise, rate=2.0 * plan.noise.rate)
    with pytest.raises(InputError, match="the plan is not the one that was certified"):
        fastfed.parties.ExpertServer(dataclasses.replace(plan, noise=larger_rate))


# -- Bounds ----------------------------------------------------------------------------------------


def test_probability_of_too_many_draws_is_a_binomial_tail():
    for K, n, q in [(0, 5, 0.2), (3, 9, 0.4), (9, 9, 0.4), (20, 9, 0.4), (12, 40, 0.05)]:
        tail = sum(comb(n, k) * q**k * (1 - q) ** (n - k) for k in range(K + 1, n + 1))
        assert float(private_dartboard.probability_of_more_draws(K, n, q)) == approx(
            tail, rel=1e-9, abs=1e-15
        )


def test_default_keys_nearly_minimise_the_bound():
    """Check that no p and K on a coarse grid give a much smaller bound."""
    default_system = make(BOARD, epsilon=0.5)
    default_bound = default_system.bounds_at(np.array([400]))["proven"][0]
    grid_bounds = [
        make(BOARD, epsilon=0.5, switch_probability=p, switches=K).bounds_at(np.array([400]))
        for p in (0.003, 0.01, 0.03, 0.1, 0.3)
        for K in (2, 4, 8, 16, 32, 64)
    ]
    assert (
        min(bounds["proven"][0] for bounds in grid_bounds)
        >= default_bound - 1.0 - 0.01 * default_bound
    )


@pytest.mark.parametrize(
    ("algorithm", "environment", "silos", "keys"),
    [
        (BOARD, StochasticLosses(experts=5, gap=0.4), 4, {"epsilon": 4.0}),
        (BOARD, RealizableLosses(experts=10), 4, {"epsilon": 4.0, "delta": 1e-4}),
        (BOARD, random_table(8, 600, 5), 8, {"epsilon": 8.0, "phase_length": 5}),
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
    standard_error = regret.std(axis=0, ddof=1) / sqrt(8)
    assert (regret.mean(axis=0) <= proven + 4 * standard_error).all()
    assert proven[-1] < silos * 600  # the bound is not trivial


def test_bound_of_the_dartboard_by_hand():
    """Check m = 3 and N = 2: a block loses at most 6, and hedge's bound has its square."""
    spec = dataclasses.replace(SPEC, silos=3)
    plan = make(BOARD, spec, phase_length=2).plan
    d, rate = spec.experts, plan.noise.rate
    hedge = log(d) / rate + rate * 5 * 36 / 8
    assert private_dartboard.regret_bound(1e9, 5, plan, spec, 0.0) == approx(hedge)
    assert private_dartboard.regret_bound(1e9, 5, plan, spec, 0.1) == approx(hedge + 3e8)
    assert private_dartboard.regret_bound(2.0, 5, plan, spec, 0.1) == 6.0


def test_bound_of_limited_updates_by_hand():
    """Check T = 3 and m = 2: round 1, and rounds 2 and 3 with a choice from two losses."""
    regret_of_round = (2 * log(4) / 5.0 + sqrt(2 * log(4) / 2)) / 2
    assert limited_updates.limited_regret(3, 2, 4, 5.0) == approx(2 + 4 * min(regret_of_round, 1.0))
    assert limited_updates.limited_regret(1, 2, 4, 5.0) == 2.0


# -- Exact decisions -------------------------------------------------------------------------------


def fixed_digits(u: Fraction) -> Any:
    """Return an entropy source of a uniform with these digits."""

    class Digits:
        """A source of random bytes: the binary digits of u."""

        def __call__(self, count: int) -> bytes:
            """Return the first digits of u as bytes of a word."""
            words = int(u * 2**64)
            return int(words).to_bytes(8, "little")[:count]

        def further(self, index: int, start: int, count: int) -> bytes:
            """Return `count` bytes of digits of u after the first `start` digits."""
            scaled = int(u * 2 ** (start + 8 * count))
            return (scaled % 2 ** (8 * count)).to_bytes(count, "big")

    return Digits()


@pytest.mark.parametrize(
    ("chance", "cost", "rate"),
    [(0.25, 3.0, 0.1), (0.001, 0.0, 2.0), (0.5, 40.0, 1.0), (0.9, 7.5, 0.03)],
)
def test_coins_are_decided_exactly_next_to_their_threshold(chance, cost, rate):
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 120
        exponent = Fraction(rate) * Fraction(cost)
        threshold = (1 - Fraction(chance)) * Fraction(
            (-Decimal(exponent.numerator) / exponent.denominator).exp()
        )
    for bits in (40, 60, 90, 200):
        step = Fraction(1, 2**bits)
        for u, is_kept in ((threshold - step, True), (threshold + step, False)):
            if 0 < u < 1:
                assert exact.kept(chance, cost, rate, Uniforms(1, fixed_digits(u))) is is_kept


def test_coins_with_switch_probability_one_never_keep_the_expert():
    assert not exact.kept(1.0, 0.0, 1.0, Uniforms(1, fixed_digits(Fraction(1, 2**63))))


@pytest.mark.parametrize(("algorithm", "N"), [(BOARD, 1), (BOARD, 2), (LIMITED, 1)])
def test_deployed_parties_have_the_exact_distribution(algorithm, N):
    """Compare the frequencies of chosen experts in 5 rounds by a chi-square test, without a
    seed."""
    losses = random_losses(3, 2, 5, 2)
    keys = (
        {"phase_length": N, "switch_probability": 0.3, "switches": 2} if algorithm == BOARD else {}
    )
    system = make(algorithm, ProblemSpec(silos=2, horizon=5, experts=2), epsilon=4.0, **keys)
    plan, runs = system.plan, 800
    if algorithm == BOARD:
        board = plan.noise
        distribution = oracle.experts_of(
            oracle.dartboard_law(losses, eta=1 - exp(-board.rate), p=0.3, K=board.switches, N=N)
        )
    else:
        distribution = {}
        for x in product(range(2), repeat=3):
            probability = 0.5
            for t, y in zip((2, 4), x[1:], strict=True):
                w = np.exp(-2.0 * oracle.since(losses, t // 2, t))
                probability *= float(w[y] / w.sum())
            distribution[x] = probability
    counts = dict.fromkeys(distribution, 0)
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
    expected = np.array([runs * distribution[sequence] for sequence in distribution])
    observed = np.array([counts[sequence] for sequence in distribution])
    is_rare = expected < 8
    pairs = (
        [(observed[is_rare].sum(), expected[is_rare].sum())] if expected[is_rare].sum() > 8 else []
    )
    pairs += list(zip(observed[~is_rare], expected[~is_rare], strict=True))
    statistic = sum((a - b) ** 2 / b for a, b in pairs)
    n = len(pairs)
    # A chi-square variable with n - 1 degrees of freedom exceeds this limit once in 10^6.
    assert n >= 4 and statistic < n + 5.5 * sqrt(2 * n) + 12, (statistic, n)
