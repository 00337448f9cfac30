"""FedUCB without a server (``feducb-decentralized``), tested in three ways.

The compiled and the step driver agree bit for bit. A recorded run satisfies the paper's pseudocode,
which the oracle replays with the actions of the run. Peers that a test steps one by one give the
same results as the drivers.

The messages of these peers travel over the oracle's network. So arrival times and byte counts are
checked against code that is not the package's.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tomllib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracle import dubey_pentland_2020 as oracle
from test_feducb_oracle import same, symmetric_matrix, uneven_environment

import fastfed
from fastfed import InputError
from fastfed._random import InterleavedNoise, SeededNoise
from fastfed.bandits.peer import Message
from fastfed.environments import Replay, Sphere
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT
from fastfed.protocols.serverless import Graph, Network, Part, PeerPlan, Request
from fastfed.reporting.charts import charts_of
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import page
from fastfed.reporting.table import as_csv, as_text, sent
from fastfed.reporting.text import spec_text
from fastfed.simulation import compiled, dispatch, peers
from fastfed.simulation.driver import Outcome
from fastfed.simulation.experiment import Experiment, experiment_from_spec, make_experiment

# -- Problems --------------------------------------------------------------------------------------

OPEN = {"private": False}
NOISY = {"epsilon": 5.0, "delta": 0.01}  # noise dominates V
SHARP = {"epsilon": 2e4, "delta": 0.01}  # data dominate V
FIXED = {"schedule": "fixed"}
QUIET = {"schedule": "private-determinant"}  # the trigger adds noise
EAGER = {"lazy": False}  # silos also act on their own newest data
DIRECT = {"radius": "direct"}

SIZES = {"silos": 4, "horizon": 19, "dimension": 3, "actions": 5}
#: A triangle with a path of two edges attached. The diameter is 3; at gamma = 1 the cliques have 3
#: and 2 silos.
TAIL = [[1, 0], [1, 2], [2, 0], [2, 3], [4, 3]]
GRAPHS: dict[str, dict[str, Any]] = {
    "complete": {"graph": "complete"},
    "star": {"graph": "star", "silos": 5},
    "ring": {"graph": "ring", "silos": 5},
    "line": {"graph": "line"},
    "random": {"graph": "random", "graph_seed": 3, "silos": 5},
    "edges": {"graph": TAIL, "silos": 5},
}
GAMMAS: dict[str, dict[str, Any]] = {
    "one hop": {"gamma": 1},
    "two hops": {"gamma": 2},
    "diameter": {},
    "beyond": {"gamma": 5},
}
RULES: dict[str, dict[str, Any]] = {
    "open": {**OPEN, "communication": 1.0},
    "log-T": {**OPEN, **EAGER},
    "fixed": {**NOISY, **FIXED, "batch_size": 2},
    "noisy": {**NOISY, "communication": 6.0},
    "quiet": {**SHARP, **QUIET, "communication": 0.5},
    "sharp, eager": {**SHARP, **EAGER, "communication": 4.0},
    "fixed, eager": {**SHARP, **FIXED, **EAGER, "batch_size": 3},
    "quiet, eager": {**SHARP, **QUIET, **EAGER, "communication": 0.3},
    "open, eager": {**OPEN, **EAGER, "communication": 0.4},
    "MT": {**SHARP, "communication": "MT"},
}


def graph_cases() -> dict[str, dict[str, Any]]:
    """Return every graph with every gamma, each under two schedules taken in turn."""
    rule_names = itertools.cycle(RULES)
    return {
        f"{graph}, {gamma}, {rule}": {**GRAPHS[graph], **GAMMAS[gamma], **RULES[rule]}
        for graph, gamma, _ in itertools.product(GRAPHS, GAMMAS, range(2))
        for rule in [next(rule_names)]
    }


ONE = {"silos": 1, "dimension": 1, "actions": 1}
CORNERS: dict[str, dict[str, Any]] = {
    # Tests below inspect these cases in detail.
    "two cliques": {**GRAPHS["edges"], **RULES["open"], "gamma": 1},
    "two cliques, two estimators": {**GRAPHS["line"], **RULES["open"], "gamma": 2},
    "three estimators": {**GRAPHS["line"], **RULES["open"]},
    "two cliques, noisy": {**GRAPHS["line"], **RULES["sharp, eager"], "gamma": 1},
    "log-T": {**GRAPHS["line"], **RULES["log-T"], "gamma": 2, "horizon": 40},
    "further than needed": {**GRAPHS["random"], **RULES["fixed"], "gamma": 5},
    "T a multiple of gamma": {**GRAPHS["ring"], **RULES["open"], "gamma": 3, "horizon": 30},
    "less than two uses": {**RULES["MT"], "graph": "line", "gamma": 5, "horizon": 8},
    "less than two uses, asked": {
        **OPEN, "communication": 1e-9, "graph": "line", "gamma": 5, "horizon": 8,
    },
    "one use each": {**SHARP, "communication": 1e-9, "gamma": 6, "horizon": 6},
    "one round": {**OPEN, "communication": 1e-9, "horizon": 1},
    "every use": {**OPEN, **EAGER, "communication": 1e-9, **GRAPHS["edges"], "gamma": 1},
    "every use, noisy": {**NOISY, "communication": 1e-9, "graph": "line", "gamma": 2},
    "every use, quiet": {**SHARP, **QUIET, "communication": 1e-9, "graph": "line"},
    "never": {**OPEN, **EAGER, "communication": 1e6, "graph": "line"},
    "never, quiet": {**NOISY, **QUIET, "communication": 1e6, "graph": "star"},
    "one of everything": {**ONE, **OPEN, "communication": 0.5},
    "one of everything, noisy": {**ONE, **NOISY, "communication": 2.0, "gamma": 3},
    "one of everything, fixed": {**ONE, **SHARP, **FIXED, **EAGER, "batch_size": 2},
    "one of everything, quiet": {**ONE, **SHARP, **QUIET, "communication": 0.5, "gamma": 2},
    "one of everything, direct": {**ONE, **SHARP, **QUIET, **DIRECT, "communication": 0.5},
    "one silo": {**SHARP, **EAGER, "silos": 1, "communication": 4.0, "gamma": 2},
    "one action": {**OPEN, "actions": 1, "communication": 1.0, "graph": "line", "gamma": 2},
    "two silos": {**SHARP, "silos": 2, "communication": 4.0, "graph": "ring"},
    "more features than a vector": {
        **OPEN, **EAGER, "silos": 3, "horizon": 17, "dimension": 19, "actions": 37,
        "communication": 3.0, "graph": "line",
    },
    # Estimator 0 is used in 3 rounds, estimator 1 in 4.
    "a batch that one estimator never fills": {
        **SHARP, **FIXED, "batch_size": 4, "horizon": 7, "gamma": 2, "graph": "line",
    },
    "a batch that one estimator never fills, direct": {
        **SHARP, **FIXED, **DIRECT, "batch_size": 4, "horizon": 7, "gamma": 2, "silos": 2,
    },
    "a batch of all uses": {**NOISY, **FIXED, **EAGER, "batch_size": 10, "gamma": 2},
    "theorem": {**NOISY, "communication": 4.0, "calibration": "theorem", "graph": "line"},
    "theorem, fixed": {
        **SHARP, **FIXED, **EAGER, "batch_size": 2, "calibration": "theorem", "graph": "star",
    },
    "zero-out": {**SHARP, "communication": 3.0, "relation": "zero-out", "graph": "ring"},
    "lambda": {**OPEN, "communication": 2.0, "rho_min": 0.05, "graph": "line", "gamma": 1},
    "half a radius": {
        **SHARP, "communication": 4.0, "radius_multiplier": 0.5, "graph": "line", "gamma": 2,
    },
    "direct": {**NOISY, **FIXED, **DIRECT, "batch_size": 3},
    "direct, eager": {**SHARP, **FIXED, **DIRECT, **EAGER, "batch_size": 2, **GRAPHS["star"]},
    "direct, quiet": {
        **SHARP, **QUIET, **DIRECT, "communication": 0.5, **GRAPHS["edges"], "gamma": 1,
    },
    "direct, quiet, eager": {
        **NOISY, **QUIET, **DIRECT, **EAGER, "communication": 0.05, "graph": "line", "gamma": 2,
    },
}  # fmt: skip
CASES = {**graph_cases(), **CORNERS}


def experiment(environment: Any = None, seed: int = 7, **case: Any) -> Experiment:
    """Return an experiment with one curve; sizes that ``case`` leaves out come from SIZES."""
    sizes = {key: case.pop(key, value) for key, value in SIZES.items()}
    if environment is None:
        environment = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    curve = {"label": "peers", "algorithm": "feducb-decentralized", **case}
    return make_experiment(
        name="peers", environment=environment, horizon=sizes["horizon"], silos=sizes["silos"],
        curves=[curve], seed=seed, checkpoints=sizes["horizon"],
    )  # fmt: skip


def adjacency(graph: Graph) -> np.ndarray:
    """Return the (M, M) adjacency matrix of the graph."""
    matrix = np.zeros((graph.silos, graph.silos), dtype=int)
    for i, j in graph.edges:
        matrix[i, j] = matrix[j, i] = 1
    return matrix


def plan_of(e: Experiment) -> PeerPlan:
    """Return the plan of the experiment's only curve."""
    plan = e.curves[0].system.plan
    assert isinstance(plan, PeerPlan)
    return plan


def run_compiled(
    e: Experiment, plan: PeerPlan | None = None, at: Any = None, **keys: Any
) -> Outcome:
    """Run replicate 0 with the compiled driver and record actions and rewards."""
    environment = e.environment.open(e.seed, 0, e.silos)
    at = e.checkpoints if at is None else np.array(at)
    return peers.run(environment, plan or plan_of(e), at, record=True, **keys)


def run_readable(
    e: Experiment, plan: PeerPlan | None = None, at: Any = None, **keys: Any
) -> Outcome:
    """Run replicate 0 with the step driver, which is written in Python."""
    environment = e.environment.open(e.seed, 0, e.silos)
    at = e.checkpoints if at is None else np.array(at)
    return peers.run_steps(environment, plan or plan_of(e), at, **keys)


@cache
def run_case(name: str) -> tuple[Experiment, Outcome]:
    """Return the experiment of this case and the outcome of its compiled run."""
    e = experiment(**CASES[name])
    return e, run_compiled(e)


def with_parts(plan: PeerPlan, change: Callable[[Part], dict[str, Any]]) -> PeerPlan:
    """Return the plan with the changes that ``change`` returns for the plan of each part."""
    new_parts = [
        dataclasses.replace(part, plan=dataclasses.replace(part.plan, **change(part)))
        for part in plan.parts
    ]
    return dataclasses.replace(plan, parts=tuple(new_parts))


# -- The two drivers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_both_drivers_agree_bit_for_bit(name):
    e, outcome = run_case(name)
    same(outcome, run_readable(e))


def test_each_case_shows_what_its_name_says():
    def syncs(name):
        """Return the number of synchronisations in the run of a case."""
        return int(run_case(name)[1].synchronisations[-1])

    plans = {name: plan_of(run_case(name)[0]) for name in CASES}
    for name in graph_cases():
        plan = plans[name]
        gamma_of = {"one hop": 1, "two hops": 2, "diameter": plan.graph.diameter, "beyond": 5}
        assert plan.gamma == gamma_of[name.split(", ")[1]]
        if "beyond" in name:
            assert plan.gamma > plan.graph.diameter
    # Some cases have cliques of different sizes, also with several estimators. Some have parts of
    # different lengths.
    clique_sizes = {
        name: sorted(map(len, plan.graph.cliques(plan.gamma))) for name, plan in plans.items()
    }
    assert clique_sizes["two cliques"] == [2, 3] and clique_sizes[
        "two cliques, two estimators"
    ] == [1, 3]
    assert clique_sizes["two cliques, noisy"] == [2, 2] and clique_sizes["three estimators"] == [4]
    part_horizons = {part.plan.horizon for part in plans["two cliques, two estimators"].parts}
    assert part_horizons == {9, 10}
    # A silo that requests in one use of an estimator reports after the next use. So each part
    # synchronises in every second use.
    assert syncs("every use") == 2 * (19 // 2)
    assert syncs("every use, noisy") == 2 * (10 // 2 + 9 // 2)
    assert (
        syncs("one use each") == syncs("one round") == syncs("never") == syncs("never, quiet") == 0
    )
    # 8 rounds are divided among 5 estimators: three of the estimators are used twice.
    assert syncs("less than two uses") == 8 and syncs("less than two uses, asked") == 3
    # Only estimator 1 fills a batch, once in each of its two cliques.
    assert syncs("a batch that one estimator never fills") == 2
    assert syncs("a batch that one estimator never fills, direct") == 1
    triggers = [plan.parts[0].plan.trigger for plan in plans.values()]
    assert {trigger.kind for trigger in triggers if trigger} == {DETERMINANT, PRIVATE_DETERMINANT}
    # Every schedule runs on several graphs and synchronises on most of them.
    for rule in RULES:
        counts = [syncs(name) for name in graph_cases() if name.endswith(f", {rule}")]
        assert len(counts) >= 4 and sum(count > 0 for count in counts) > len(counts) / 2, rule


@pytest.mark.parametrize(("threads", "rounds_per_call"), [(1, 1), (1, 7), (2, 7), (3, 7)])
@pytest.mark.parametrize("name", ["two cliques", "direct, quiet", "direct, eager"])
def test_results_do_not_depend_on_threads_or_call_lengths(name, threads, rounds_per_call):
    e, outcome = run_case(name)
    same(outcome, run_compiled(e, threads=threads, rounds_per_call=rounds_per_call))


def test_results_of_long_chunks_do_not_depend_on_call_lengths():
    """Let a silo request a synchronisation only after about 150 rounds.

    The driver simulates rounds in chunks, which grow to more than 16 rounds by then.
    """
    case = {**SHARP, **QUIET, **EAGER, "silos": 3, "dimension": 2, "actions": 3, "graph": "line"}
    e = experiment(**case, gamma=1, horizon=220, communication=1400.0)
    outcome = run_compiled(e)
    assert np.flatnonzero(outcome.synchronisations)[0] > 145
    same(outcome, run_readable(e))
    for threads, rounds_per_call in ((1, 1), (2, 70), (1, 220)):
        same(outcome, run_compiled(e, threads=threads, rounds_per_call=rounds_per_call))


@pytest.mark.parametrize("at", [[1], [2, 3], [1, 5, 6, 18], [19], [4, 8, 12, 16, 19]])
@pytest.mark.parametrize(
    "name", ["three estimators", "further than needed", "every use, noisy", "never"]
)
def test_sparse_checkpoints_show_the_same_values_as_dense_checkpoints(name, at):
    """Stop also before an estimator's first use and while messages are under way."""
    e, dense = run_case(name)
    sparse = run_compiled(e, at=at)
    same(sparse, run_readable(e, at=at))
    for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(
            getattr(sparse, field), getattr(dense, field)[np.array(at) - 1]
        )
    np.testing.assert_array_equal(sparse.total, dense.total)


@pytest.mark.parametrize("last", [1, 2, 10, 18])
@pytest.mark.parametrize("name", ["three estimators", "direct, quiet"])
def test_both_drivers_agree_on_a_run_that_ends_early(name, last):
    e, full_run = run_case(name)
    compiled, stepped, span = run_compiled(e, last=last), run_readable(e, last=last), slice(0, last)
    for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(getattr(compiled, field)[span], getattr(stepped, field)[span])
        np.testing.assert_array_equal(
            getattr(compiled, field)[span], getattr(full_run, field)[span]
        )
    np.testing.assert_array_equal(compiled.total, stepped.total)
    np.testing.assert_array_equal(compiled.actions, stepped.actions)
    np.testing.assert_array_equal(compiled.actions[:, :last], full_run.actions[:, :last])
    assert not compiled.actions[:, last:].any()


@pytest.mark.parametrize("rule", ["open, eager", "quiet", "fixed"])
@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_both_drivers_agree_on_a_replayed_pool(recorded, sampling, rule):
    """Check that the order of records depends on the silo's number and the round of the whole
    run."""
    pool = Replay.from_arrays(*recorded, sampling=sampling)
    e = experiment(pool, silos=3, horizon=24, **RULES[rule], graph="line", gamma=1)
    outcome = run_compiled(e)
    assert outcome.synchronisations[-1] >= 2
    same(outcome, run_readable(e))


@pytest.mark.parametrize("rule", ["open, eager", "quiet", "sharp, eager"])
def test_both_drivers_agree_when_silos_request_in_different_rounds(rule):
    """Use silos with different features and numbers of actions; features and rewards are
    clipped."""
    e = experiment(uneven_environment(), **RULES[rule], horizon=34, graph="line", gamma=1)
    outcome = run_compiled(e)
    same(outcome, run_readable(e))
    peer_run = run_peers(e)
    assert 2 <= len(peer_run.requests) < len(peer_run.broadcasts)
    outside = (outcome.rewards < 0.0) | (outcome.rewards > 1.0)
    assert outcome.events["clipped_rewards"] == outside.sum() > 20
    # Features of silo 2 have norm 1.1, features of silo 3 have norm 1.5.
    assert outcome.events["clipped_features"] == 2 * e.horizon


@pytest.mark.parametrize("schedule", ["determinant", "private-determinant", "fixed"])
def test_both_drivers_agree_when_the_noisy_v_is_indefinite(schedule):
    schedule_keys = {"batch_size": 3} if schedule == "fixed" else {"communication": 1e-3}
    e = experiment(**NOISY, **schedule_keys, schedule=schedule, rho_min=0.1, graph="line", gamma=2)
    outcome = run_compiled(e)
    assert 0 < outcome.events["indefinite"] <= outcome.synchronisations[-1]
    assert np.isfinite(outcome.total).all()
    same(outcome, run_readable(e))


def test_both_drivers_agree_on_replicates_that_differ():
    e = experiment(**RULES["quiet"], graph="line", gamma=2)
    environments = [e.environment.open(e.seed, replicate, e.silos) for replicate in range(2)]
    outcomes = [
        peers.run(opened, plan_of(e), e.checkpoints, record=True) for opened in environments
    ]
    for outcome, environment in zip(outcomes, environments, strict=True):
        same(outcome, dispatch.run_steps(environment, plan_of(e), e.checkpoints))
    assert (outcomes[0].synchronisations != outcomes[1].synchronisations).any()


def test_dispatch_runs_peers_together_with_other_plans():
    central = make_experiment(
        name="x", environment=Sphere(dimension=3, actions=5), horizon=19, silos=4, seed=7,
        curves=[{"label": "x", "algorithm": "local-linucb"}], checkpoints=19,
    ).curves[0].system.plan  # fmt: skip
    e, outcome = run_case("two cliques, two estimators")
    reported_rounds: list[int] = []
    plans = [plan_of(e), central, plan_of(e)]
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    outcomes = dispatch.run(
        opened_environment, plans, e.checkpoints, record=True, progress=reported_rounds.append
    )
    same(outcomes[0], outcome)
    same(outcomes[2], outcome)
    assert not dispatch.runs_together(plan_of(e)) and dispatch.runs_together(central)
    # Progress counts each round of each plan once, although the parts of a plan run one after the
    # other.
    assert sum(reported_rounds) == 3 * 19 and min(reported_rounds) >= 0
    rounds_per_report: list[int] = []
    run_compiled(e, rounds_per_call=4, progress=rounds_per_report.append)
    assert sum(rounds_per_report) == 19 and len(rounds_per_report) > 5


# -- Peers stepped by the test ---------------------------------------------------------------------

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])


def step_peers(
    all_peers: list[fastfed.parties.Peer], network: Network[Message], rounds: int
) -> list[Message]:
    """Play rounds with all peers in lockstep and return every message that they sent."""
    sent_by_all = []
    for _ in range(rounds):
        for i, message in network.deliver():
            all_peers[i].receive(message)
        for peer in all_peers:
            actions = np.resize(ACTIONS, (3, peer.plan.dimension)) / 2.0
            peer.observe(float(peer.select(actions) == 1))
        for i, peer in enumerate(all_peers):
            for message in peer.outbox():
                sent_by_all.append(message)
                network.broadcast(i, message)
    return sent_by_all


@dataclasses.dataclass
class PeerRun:
    """What peers sent, chose and knew in a run whose messages the oracle's network carried."""

    requests: list[tuple[int, int, int]]  # (round, silo, estimator), in the oracle's order
    broadcasts: list[tuple[int, int, int]]
    used: dict[tuple[int, int], tuple[int, np.ndarray]]  # (round, silo) -> (release number, sums)
    bytes_by: np.ndarray  # (T,)
    actions: np.ndarray
    totals: list[np.ndarray]  # the final sums of each part


def run_peers(e: Experiment) -> PeerRun:
    """Run the experiment with ``Peer`` objects and the oracle's network."""
    plan, opened, noise = plan_of(e), e.environment.open(e.seed, 0, e.silos), SeededNoise(e.seed, 0)
    all_peers = [fastfed.parties.Peer(plan, i, noise) for i in range(plan.silos)]
    network = oracle.Network(adjacency(plan.graph), plan.gamma)
    message_in: dict[int, Message] = {}
    run = PeerRun([], [], {}, np.zeros(e.horizon), np.zeros((e.silos, e.horizon), np.int32), [])

    def oracle_message(message: Message, t: int) -> oracle.Message:
        """Return a message as the oracle's, and note it."""
        if isinstance(message, Request):
            run.requests.append((t, message.silo, message.estimator))
            envelope: oracle.Message = oracle.Request(
                message.silo, message.estimator, message.round
            )
            assert message.round == t
        else:
            run.broadcasts.append((t, message.silo, message.estimator))
            sums = message.report.covariance, message.report.bias
            envelope = oracle.Statistics(message.silo, message.estimator, t, sums)
        message_in[id(envelope)] = message
        return envelope

    for t in range(1, e.horizon + 1):
        for i, arrived in network.deliver():
            all_peers[i].receive(message_in[id(arrived)])
        for i, peer in enumerate(all_peers):
            estimator = peer.estimators[t % plan.gamma]
            run.used[t, i] = estimator.silo.release, np.array(estimator.total)
            features, means = opened.round(i, t)
            a = peer.select(features)
            peer.observe(opened.reward(i, t, means[a]))
            run.actions[i, t - 1] = a
        for i, peer in enumerate(all_peers):
            for message in peer.outbox():
                assert message.silo == i
                network.broadcast(i, oracle_message(message, t))
        run.bytes_by[t - 1] = network.bytes_sent
    for _ in range(plan.gamma):
        for i, arrived in network.deliver():
            all_peers[i].receive(message_in[id(arrived)])
    for part in plan.parts:
        member_totals = [all_peers[i].estimators[part.estimator].total for i in part.clique]
        for total in member_totals:
            np.testing.assert_array_equal(total, member_totals[0])
        run.totals.append(member_totals[0])
    return run


# -- The oracle ------------------------------------------------------------------------------------


def in_paper(case: dict[str, Any]) -> bool:
    """Return whether the paper has this case's radius and schedule."""
    return case.get("radius") != "direct" and case.get("schedule") != "private-determinant"


#: Cases with a schedule and radius of the paper, or with the fixed schedule.
PAPER_CASES = [name for name, case in CASES.items() if in_paper(case)]


@dataclasses.dataclass
class Constants:
    """The constants of a curve, computed with the oracle's formulas."""

    rho_min: float
    rho_max: float
    kappa: float
    batch_size: int | None
    threshold: float | None


def constants_of(e: Experiment) -> Constants:
    """Compute the constants of the experiment's curve with the oracle's formulas."""
    keys, plan = e.curves[0].keys, plan_of(e)
    M, T, d, gamma = e.silos, e.horizon, e.facts.dimension, plan.gamma
    alpha, uses = keys["failure_probability"], -(-T // gamma)
    B = 1 if keys["communication"] == "MT" else keys["batch_size"]
    if not keys["private"]:
        low = keys["rho_min"] or 1.0
        high, kappa = low, 0.0
    else:
        # n is the number of leaves of each tree. The union bound takes ln(2 gamma n M / alpha).
        n = max(1, uses // (B or 1))
        m, p, union = oracle.levels(n), oracle.prefix_nodes(n), gamma * n
        std = plan.parts[0].plan.noise_std.off_diagonal
        if keys["calibration"] == "theorem":
            assert std == pytest.approx(
                oracle.node_noise_std(keys["epsilon"], keys["delta"], m, 1.0), rel=1e-12
            )
            low = oracle.big_lambda(keys["epsilon"], keys["delta"], m, 1.0, d, union, M, alpha)
            kappa = oracle.kappa_printed(keys["epsilon"], m, 1.0, d, union, M, alpha)
        else:
            low = oracle.lambda_from_noise(std, p, d, union, M, alpha)
            kappa = oracle.kappa_from_noise(std, p, low, d, union, M, alpha)
        high = 3.0 * low
    if B is not None:
        return Constants(low, high, kappa, B, None)
    # Line 3.6 divides by 1 + L^2 = 2 in every round; the package divides the threshold once.
    D = 2.0 * keys["communication"] if keys["communication"] != "log-T" else (
        oracle.decentralised_threshold(T=T, gamma=gamma, d=d, L=1.0, rho_min=low, rho_max=high)
    )  # fmt: skip
    return Constants(low, high, kappa, None, D)


def node_noise(e: Experiment) -> Callable[[int, int, int], np.ndarray]:
    """Return a function of (silo, estimator, tree node) that draws the node's noise.

    The noise has shape (d + 1, d + 1); its last entry is never used.
    """
    plan, d, source = plan_of(e), e.facts.dimension, SeededNoise(e.seed, 0)
    std = plan.parts[0].plan.noise_std

    def noise(i: int, g: int, n: int) -> np.ndarray:
        """Return the noise matrix of node n of estimator g at silo i."""
        z = source.node(i, (n - 1) * plan.gamma + g + 1, d)
        matrix = np.zeros((d + 1, d + 1))
        matrix[:d, :d] = symmetric_matrix(z[d:], std.off_diagonal, std.diagonal)
        matrix[:d, d] = matrix[d, :d] = std.bias * z[:d]
        return matrix

    return noise


def replay(e: Experiment, outcome: Outcome, **changes: Any) -> oracle.DecentralisedReplay:
    """Replay Algorithm 3 with the recorded actions and rewards.

    ``changes`` replace arguments of ``oracle.replay_decentralised``.
    """
    plan, keys, constants = plan_of(e), e.curves[0].keys, constants_of(e)
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    clique_size = {i: len(clique) for clique in plan.graph.cliques(plan.gamma) for i in clique}
    # The plan's radius already holds a union over orders of events; recover alpha from it.
    alpha = 2.0 * np.exp(-plan.parts[0].plan.radius.base / 2.0)

    def radius(t: int, i: int, v: np.ndarray) -> float:
        """Return the radius of silo i in round t for its matrix v."""
        return keys["radius_multiplier"] * oracle.beta(
            v, sigma=0.5, alpha=alpha, norm=1.0, M=clique_size[i],
            rho_min=constants.rho_min, rho_max=constants.rho_max, kappa=constants.kappa,
        )  # fmt: skip

    arguments: dict[str, Any] = {
        "contexts": lambda t, i: opened_environment.round(i, t)[0].astype(float),
        "means": lambda t, i: opened_environment.round(i, t)[1],
        "actions": outcome.actions,
        "rewards": outcome.rewards,
        "adjacency": adjacency(plan.graph),
        "gamma": plan.gamma,
        "cliques": plan.graph.cliques(plan.gamma),
        "rho_min": constants.rho_min,
        "rho_max": constants.rho_max,
        "radius": radius,
        "L": 1.0,
        "schedule": "determinant" if constants.batch_size is None else "fixed",
        "threshold": constants.threshold,
        "batch_size": constants.batch_size,
        "noise": node_noise(e) if keys["private"] else None,
        "clip": (1.0, 0.0, 1.0),
        "lazy": keys["lazy"],
        "count": "clique",
    }
    return oracle.replay_decentralised(**arguments | changes)


def synchronisations_of(plan: PeerPlan, replayed: oracle.DecentralisedReplay) -> np.ndarray:
    """Return the number of synchronisations of all parts by each round.

    One report of the first silo of each clique counts as one synchronisation.
    """
    counts = np.zeros(plan.horizon, np.int64)
    first_silos = {clique[0] for clique in plan.graph.cliques(plan.gamma)}
    for t, i, _ in replayed.broadcasts:
        counts[t - 1] += i in first_silos
    return counts.cumsum()


def replay_disagrees(e: Experiment, outcome: Outcome, **changes: Any) -> bool:
    """Return whether the oracle's replay finds that this outcome breaks the pseudocode."""
    replayed = replay(e, outcome, **changes)
    counts = synchronisations_of(plan_of(e), replayed)
    return (
        replayed.worst_gap > 1e-6
        or not np.array_equal(counts, outcome.synchronisations)
        or 8.0 * replayed.bytes_sent != outcome.bits_up[-1]
    )


def packed_sums(plan: Plan, entry: int, sums: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Pack (S, s) as the package does: without the regularizer, which its sums do not hold."""
    d = plan.dimension
    w = sums[0] - plan.regularizer[entry] * np.eye(d)
    return np.concatenate([sums[1], w[np.tril_indices(d)]])


def check_against_paper(e: Experiment, outcome: Outcome) -> oracle.DecentralisedReplay:
    """Compare the outcome with the replayed pseudocode and with a run of peers."""
    plan, replayed, peer_run = plan_of(e), replay(e, outcome), run_peers(e)
    constants = constants_of(e)
    # Closer to the threshold, rounding could move a request; choose another seed then.
    assert replayed.nearest_trigger > 1e-9
    assert replayed.worst_gap < 1e-9
    np.testing.assert_array_equal(peer_run.actions, outcome.actions)
    assert peer_run.requests == replayed.requests
    assert peer_run.broadcasts == replayed.broadcasts
    np.testing.assert_array_equal(outcome.synchronisations, synchronisations_of(plan, replayed))
    np.testing.assert_allclose(outcome.group_regret, replayed.group_regret, rtol=1e-8, atol=1e-8)
    # Bytes count every hop of every message up to each round.
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * peer_run.bytes_by)
    assert outcome.bits_up[-1] == 8.0 * replayed.bytes_sent
    assert not outcome.bits_down.any()
    # Compare the sums that each silo used for its choice in each round.
    errors = []
    for t, i, total in replayed.history:
        part = plan.of_silo[i][t % plan.gamma].plan
        release, sums = peer_run.used[t, i]
        expected = packed_sums(part, part.entry(release), total)
        errors.append(np.abs(sums - expected).max() / max(1.0, np.abs(total[0]).max()))
    assert len(errors) == e.silos * e.horizon and max(errors) < 1e-8
    np.testing.assert_array_equal(outcome.total, peer_run.totals)
    # Compare the final sums with their definition; some were still under way after the last round.
    noise = node_noise(e) if e.curves[0].keys["private"] else None
    for part, actual in zip(plan.parts, outcome.total, strict=True):
        np.testing.assert_allclose(
            actual, total_by_definition(e, part, outcome, replayed.broadcasts, noise),
            rtol=0, atol=1e-8 * max(1.0, np.abs(actual).max()),
        )  # fmt: skip
        count = len(part.clique)
        start, later = part.plan.regularizer[0], part.plan.regularizer[-1]
        assert start == pytest.approx(count * constants.rho_min, rel=1e-12)
        assert later == pytest.approx(
            count * (constants.rho_min + constants.rho_max) / 2, rel=1e-12
        )
    return replayed


def total_by_definition(
    e: Experiment,
    part: Part,
    outcome: Outcome,
    broadcasts: list[tuple[int, int, int]],
    noise: Callable[[int, int, int], np.ndarray] | None,
) -> np.ndarray:
    """Sum the clique's data up to its last report, plus the noise of each member's tree prefix."""
    d, g, opened_environment = (
        e.facts.dimension,
        part.estimator,
        e.environment.open(e.seed, 0, e.silos),
    )
    sums = np.zeros((d + 1, d + 1))
    for i in part.clique:
        reported = [t for t, silo, estimator in broadcasts if (silo, estimator) == (i, g)]
        for t in range(1, max(reported, default=0) + 1):
            if t % plan_of(e).gamma == g:
                x = opened_environment.round(i, t)[0][outcome.actions[i, t - 1]].astype(float)
                point = oracle.clipped(x, outcome.rewards[i, t - 1], (1.0, 0.0, 1.0))
                sums += np.outer(point, point)
        if noise is not None:
            for node in oracle.tree_nodes(len(reported)):
                sums += noise(i, g, node)
    return np.concatenate([sums[:d, d], sums[:d, :d][np.tril_indices(d)]])


@pytest.mark.parametrize("name", PAPER_CASES)
def test_runs_follow_the_papers_pseudocode(name):
    e, outcome = run_case(name)
    assert outcome.events["indefinite"] == 0
    check_against_paper(e, outcome)


def test_silos_can_request_in_the_same_round_and_too_late_for_a_report():
    e, outcome = run_case("every use")
    replayed = check_against_paper(e, outcome)
    request_rounds = [t for t, _, _ in replayed.requests]
    assert request_rounds.count(1) == 5 and len(replayed.requests) == 5 * 10
    # T is odd: a request in the last round is never answered by a report.
    assert request_rounds.count(19) == 5 and max(t for t, _, _ in replayed.broadcasts) == 18
    # Each estimator is used once: all silos request, no silo reports. A request of 24 bytes crosses
    # every edge.
    e, outcome = run_case("one use each")
    replayed = check_against_paper(e, outcome)
    assert len(replayed.requests) == 4 * 6 and replayed.broadcasts == []
    assert outcome.bits_up[0] == 8 * 24 * 4 * 3


def test_a_single_request_makes_the_whole_clique_report():
    """Check that silos report after another silo's request, since some triggers always fire
    late."""
    e = experiment(
        uneven_environment(), **OPEN, **EAGER, communication=2.0, horizon=34, graph="line", gamma=2
    )
    replayed = check_against_paper(e, run_compiled(e))
    assert 2 <= len(replayed.requests) < len(replayed.broadcasts)
    assert 1 < len({i for _, i, _ in replayed.requests}) < 4


# -- The comparisons detect planted faults ---------------------------------------------------------


def run_changed(e: Experiment, change: Callable[[Part, PeerPlan], dict[str, Any]]) -> Outcome:
    """Run the plan with the changes that ``change`` returns for the plan of each part."""
    plan = plan_of(e)
    return run_compiled(e, with_parts(plan, lambda part: change(part, plan)))


def changed_trigger(part: Part, **changes: Any) -> dict[str, Any]:
    """Return the part's trigger with these fields replaced."""
    return {"trigger": dataclasses.replace(part.plan.trigger, **changes)}


@pytest.mark.parametrize("name", ["two cliques", "two cliques, two estimators", "log-T"])
def test_replay_detects_a_wrong_delay(name):
    e, _ = run_case(name)
    assert replay_disagrees(e, run_changed(e, lambda part, plan: changed_trigger(part, delay=0)))
    assert replay_disagrees(e, run_changed(e, lambda part, plan: changed_trigger(part, delay=2)))


@pytest.mark.parametrize(
    "name", ["two cliques", "two cliques, two estimators", "log-T", "two cliques, noisy"]
)
def test_replay_detects_a_threshold_that_is_not_halved(name):
    e, _ = run_case(name)
    threshold = plan_of(e).parts[0].plan.trigger.threshold
    assert 2.0 * threshold == pytest.approx(constants_of(e).threshold, rel=1e-12)
    assert replay_disagrees(
        e, run_changed(e, lambda part, plan: changed_trigger(part, threshold=2.0 * threshold))
    )


@pytest.mark.parametrize("name", ["two cliques", "two cliques, noisy"])
def test_replay_detects_counts_of_all_silos_in_place_of_the_clique(name):
    """Plant the pseudocode's M in the initial V and in the matrix that the trigger adds to V."""
    e, outcome = run_case(name)
    assert replay_disagrees(e, outcome, count="silos")

    def start(part: Part, plan: PeerPlan) -> dict[str, Any]:
        """Return the regularizer for the number of all silos, a planted fault."""
        r, ratio = part.plan.regularizer, plan.silos / len(part.clique)
        return {"regularizer": np.array([ratio * r[0], r[1]])}

    def extra(part: Part, plan: PeerPlan) -> dict[str, Any]:
        """Return the trigger with the matrix for the number of all silos, a planted fault."""
        return changed_trigger(part, extra=part.plan.trigger.extra * plan.silos / len(part.clique))

    # Without noise the trigger adds nothing. With noise it adds more than the initial V.
    assert replay_disagrees(e, run_changed(e, start if name == "two cliques" else extra))


def test_replay_detects_a_wrong_action():
    e, outcome = run_case("log-T")
    wrong_actions = outcome.actions.copy()
    wrong_actions[1, 20] = (wrong_actions[1, 20] + 1) % 5
    assert replay(e, dataclasses.replace(outcome, actions=wrong_actions)).worst_gap > 1e-6


@pytest.mark.parametrize(
    "wrong_key",
    [
        lambda self, node: node,  # the estimators of a silo share their noise
        lambda self, node: (node - 1) * self.stride + 1,
        lambda self, node: node * self.stride + self.phase + 1,
    ],
)
def test_comparison_detects_noise_drawn_under_wrong_keys(wrong_key, monkeypatch):
    e, _ = run_case("every use, noisy")
    monkeypatch.setattr(InterleavedNoise, "_key", wrong_key)
    wrong_outcome = run_readable(e)
    broadcasts = replay(e, wrong_outcome).broadcasts
    errors = [
        np.abs(total - total_by_definition(e, part, wrong_outcome, broadcasts, node_noise(e))).max()
        for part, total in zip(plan_of(e).parts, wrong_outcome.total, strict=True)
    ]
    assert max(errors) > 1e-3


def test_no_two_draws_share_a_key():
    """Check that each tree node and each trigger round of a silo draws noise once, under one
    key."""

    class RecordingNoise(SeededNoise):
        """Seeded noise that records which draws were made."""

        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.drawn: list[tuple[int, int]] = []
            self.rounds: list[tuple[int, int]] = []

        def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
            """Record the silo and node, and draw the noise."""
            self.drawn.append((silo, node))
            return super().node(silo, node, dimension)

        def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
            """Record the silo and round, and draw the noise."""
            self.rounds.append((silo, round))
            return super().trigger(silo, round, dimension)

    e, _ = run_case("every use, quiet")
    plan = plan_of(e)
    source = RecordingNoise(e.seed)
    all_peers = [fastfed.parties.Peer(plan, i, source) for i in range(plan.silos)]
    step_peers(all_peers, Network(plan.graph, plan.gamma), e.horizon)
    for keys in (source.drawn, source.rounds):
        assert len(keys) == len(set(keys)) > 30
    assert {silo for silo, _ in source.drawn} == set(range(4))
    # gamma = 3: each residue belongs to one estimator.
    assert {(node - 1) % 3 for _, node in source.drawn} == {0, 1, 2}
    assert {round % 3 for _, round in source.rounds} == {0, 1, 2}


# -- The triggers by definition --------------------------------------------------------------------


def log_det_growth(plan: Plan, v: np.ndarray, added: np.ndarray, noise: np.ndarray) -> float:
    """Return how much ``grown``, noise and the trigger's extra matrix raise log det V.

    Return -inf if the resulting matrix is not positive definite.
    """
    assert plan.trigger is not None
    v_new = v + added + noise + plan.trigger.extra * np.eye(plan.dimension)
    if np.linalg.eigvalsh(v_new)[0] <= 0.0:
        return -np.inf
    return float(np.linalg.slogdet(v_new)[1] - np.linalg.slogdet(v)[1])


def requests_by_definition(e: Experiment, outcome: Outcome) -> list[tuple[int, int, int]]:
    """Return (round, silo, estimator) of every request, computed from actions, trigger and noise.

    The determinant trigger is line 3.6; the private one is equation (10) of zhou-chowdhury-2024.
    Its noise is that of prefix n in a tree over single uses, which begins again after each
    synchronisation.
    """
    plan, opened_environment = plan_of(e), e.environment.open(e.seed, 0, e.silos)
    source, d = SeededNoise(e.seed, 0), e.facts.dimension
    private = bool(e.curves[0].keys["private"])
    requests: list[tuple[int, int, int]] = []
    for part in plan.parts:
        part_plan, g = part.plan, part.estimator
        rounds = [t for t in range(1, e.horizon + 1) if t % plan.gamma == g]
        last_report_use, report_use = 0, None
        reports: list[int] = []
        v = part_plan.regularizer[0] * np.eye(d)
        for use, t in enumerate(rounds, start=1):
            fires = False
            for i in part.clique if report_use is None else ():
                gram = np.zeros((d, d))
                for r in rounds[last_report_use:use]:
                    x = opened_environment.round(i, r)[0][outcome.actions[i, r - 1]].astype(float)
                    x = x / max(1.0, float(np.linalg.norm(x)))
                    gram += np.outer(x, x)
                noise = np.zeros((d, d))
                if part_plan.trigger.kind == PRIVATE_DETERMINANT:
                    for node in oracle.tree_nodes(use - last_report_use):
                        z = source.trigger(i, rounds[last_report_use + node - 1], d)
                        noise += symmetric_matrix(z, *part_plan.trigger.std)
                growth, threshold = (
                    log_det_growth(part_plan, v, gram, noise),
                    part_plan.trigger.threshold / (use - last_report_use),
                )
                assert abs(growth - threshold) > 1e-9 * max(1.0, abs(threshold))
                if growth > threshold:
                    requests.append((t, i, g))
                    fires = True
            if fires:
                report_use = use + 1
            elif report_use == use:
                reports.append(t)
                last_report_use, report_use = use, None
                total = total_by_definition(
                    e, part, outcome, [(r, i, g) for r in reports for i in part.clique],
                    node_noise(e) if private else None,
                )  # fmt: skip
                v = symmetric_matrix(total[d:], 1.0, 1.0)
                v = v + part_plan.regularizer[part_plan.entry(len(reports))] * np.eye(d)
    return sorted(requests)


@pytest.mark.parametrize(
    "name",
    [
        "every use, quiet",
        "one of everything, quiet",
        *[
            name
            for name in graph_cases()
            if name.endswith("quiet") or name.endswith("quiet, eager")
        ],
    ],
)
def test_private_trigger_fires_as_defined(name):
    e, outcome = run_case(name)
    assert outcome.events["indefinite"] == 0
    peer_run = run_peers(e)
    np.testing.assert_array_equal(peer_run.actions, outcome.actions)
    assert sorted(peer_run.requests) == requests_by_definition(e, outcome)
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * peer_run.bytes_by)
    for part, total in zip(plan_of(e).parts, outcome.total, strict=True):
        expected = total_by_definition(e, part, outcome, peer_run.broadcasts, node_noise(e))
        np.testing.assert_allclose(
            total, expected, rtol=0, atol=1e-8 * max(1.0, np.abs(total).max())
        )


# -- Compared with the centralised system ----------------------------------------------------------


def centralised_plan(e: Experiment, **changes: Any) -> Plan:
    """Return the plan of ``feducb`` for the same keys."""
    keys = {k: v for k, v in e.curves[0].keys.items() if k not in ("graph", "graph_seed", "gamma")}
    setting = {"horizon": e.horizon, "silos": e.silos, "dimension": e.facts.dimension}
    plan = fastfed.make_system("feducb", **setting, **{**keys, **changes}).plan
    assert isinstance(plan, Plan)
    return plan


@pytest.mark.parametrize(
    "case",
    [
        {**NOISY, **FIXED, "batch_size": 3},
        {**SHARP, **FIXED, **EAGER, "batch_size": 4},
        {**OPEN, **FIXED, **EAGER, "batch_size": 4},
        {**NOISY, **FIXED, "batch_size": 3, "calibration": "theorem"},
        {**SHARP, **FIXED, **DIRECT, "batch_size": 4},
        {**SHARP, "communication": "MT"},
    ],
    ids=["lazy", "eager", "open", "theorem", "direct", "MT"],
)
def test_fixed_schedule_on_the_complete_graph_equals_the_centralised_schedule(case):
    e = experiment(**case, graph="complete", gamma=1)
    environment = e.environment.open(e.seed, 0, e.silos)
    (central,) = compiled.run(environment, [centralised_plan(e)], e.checkpoints, record=True)
    decentralised = run_compiled(e)
    assert central.synchronisations[-1] >= 4
    for field in ("group_regret", "synchronisations", "events", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(decentralised, field), getattr(central, field))
    np.testing.assert_array_equal(decentralised.total, central.total[None])
    # A report crosses M (M - 1) edges. A server receives M reports and sends M totals.
    np.testing.assert_array_equal(decentralised.bits_up, 3 * central.bits_up)


@pytest.mark.parametrize(
    "case",
    [
        {**OPEN, "communication": 1.0},
        {**OPEN, **EAGER, "communication": 1.0},
        {**SHARP, "communication": 4.0},
        {**SHARP, **QUIET, "communication": 0.5},
        {**SHARP, **QUIET, **DIRECT, **EAGER, "communication": 0.5},
    ],
    ids=["open", "eager", "noisy", "quiet", "direct"],
)
def test_trigger_on_the_complete_graph_acts_one_round_after_the_centralised_trigger(case):
    """Compare with a server whose trigger has a delay of one round."""
    e = experiment(**case, graph="complete", gamma=1)
    (part,) = plan_of(e).parts
    plan = centralised_plan(e)
    delayed_plan = dataclasses.replace(plan, trigger=dataclasses.replace(plan.trigger, delay=1))
    # Apart from the delay, the plans hold the same numbers.
    assert delayed_plan.trigger == part.plan.trigger
    np.testing.assert_array_equal(delayed_plan.regularizer, part.plan.regularizer)
    np.testing.assert_array_equal(delayed_plan.radius.offset, part.plan.radius.offset)
    assert (
        delayed_plan.radius.base == part.plan.radius.base
        and delayed_plan.noise_std == part.plan.noise_std
    )
    environment = e.environment.open(e.seed, 0, e.silos)
    (undelayed, delayed) = (
        compiled.run(environment, [p], e.checkpoints, record=True)[0] for p in (plan, delayed_plan)
    )
    decentralised = run_compiled(e)
    for field in ("group_regret", "synchronisations", "events", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(decentralised, field), getattr(delayed, field))
    np.testing.assert_array_equal(decentralised.total, delayed.total[None])
    # Up to one round after the first centralised synchronisation, all runs act on the same data.
    first = int(np.flatnonzero(undelayed.synchronisations)[0])
    assert np.flatnonzero(decentralised.synchronisations)[0] == first + 1
    np.testing.assert_array_equal(
        decentralised.actions[:, : first + 1], undelayed.actions[:, : first + 1]
    )
    # Every later synchronisation, too, comes one round after the request.
    request_rounds = sorted({t for t, _, _ in requests_by_definition(e, decentralised)})
    assert request_rounds[0] == first + 1
    synchronised_rounds = (
        np.flatnonzero(np.diff(decentralised.synchronisations, prepend=0)) + 1
    ).tolist()
    assert [t + 1 for t in request_rounds if t < e.horizon] == synchronised_rounds and len(
        synchronised_rounds
    ) >= 2


def test_log_t_threshold_on_the_complete_graph_is_half_the_centralised_threshold():
    e = experiment(**OPEN, graph="complete", gamma=1)
    threshold = plan_of(e).parts[0].plan.trigger.threshold
    assert centralised_plan(e).trigger.threshold == pytest.approx(2.0 * threshold, rel=1e-12)


@pytest.mark.parametrize("rule", ["open", "open, eager", "log-T"])
def test_each_part_equals_a_federation_that_runs_alone(recorded, rule):
    """Run each part's plan with only its silos and its rounds, under other numbers."""
    contexts, rewards = recorded
    for gamma in (1, 2):
        e = experiment(
            Replay.from_arrays(contexts, rewards, sampling="in-order"), silos=3, horizon=23,
            **RULES[rule], graph="line", gamma=gamma,
        )  # fmt: skip
        outcome, regret = run_compiled(e), 0.0
        for part, total in zip(plan_of(e).parts, outcome.total, strict=True):
            rounds = [t - 1 for t in range(1, 24) if t % gamma == part.estimator]
            silos_and_rounds = np.ix_(part.clique, rounds)
            records = Replay.from_arrays(
                contexts[silos_and_rounds], rewards[silos_and_rounds], sampling="in-order"
            )
            environment = records.open(99, 0, len(part.clique))
            at = np.arange(1, len(rounds) + 1)
            (part_outcome,) = compiled.run(environment, [part.plan], at, record=True)
            np.testing.assert_array_equal(part_outcome.actions, outcome.actions[silos_and_rounds])
            np.testing.assert_array_equal(part_outcome.total, total)
            regret += part_outcome.group_regret[-1]
        assert regret == pytest.approx(outcome.group_regret[-1], rel=1e-12)


# -- Privacy guarantees ----------------------------------------------------------------------------


def system(silos: int = 4, horizon: int = 40, dimension: int = 2, **keys: Any) -> Any:
    """Make a decentralised system without an environment."""
    return fastfed.make_system(
        "feducb-decentralized", silos=silos, horizon=horizon, dimension=dimension, **keys
    )


def bounded_system(**keys: Any) -> Any:
    """Make the system for an environment that is known to satisfy the proofs' assumptions."""
    return experiment(**{"horizon": 20, "dimension": 2, **keys}).curves[0].system


BUDGET = {"epsilon": 1.0, "delta": 1e-5}
STEADY = {**BUDGET, **FIXED, "batch_size": 2}


@pytest.mark.parametrize("graph", [{}, {"graph": "line", "gamma": 1}, {"graph": "ring"}])
@pytest.mark.parametrize("radius", ["proposition-2", "direct"])
@pytest.mark.parametrize("schedule", [{**FIXED, "batch_size": 2}, QUIET], ids=["fixed", "quiet"])
def test_certificate_proves_the_budget_for_schedules_that_read_no_raw_data(graph, radius, schedule):
    certificate = system(**BUDGET, **graph, **schedule, radius=radius).certificate
    assert certificate.status == "proven" and certificate.unit == "user"
    assert (
        certificate.exact.epsilon == pytest.approx(1.0, rel=1e-6)
        and certificate.exact.epsilon <= 1.0
    )
    assert (certificate.claimed.epsilon, certificate.exact.delta) == (1.0, 1e-5)
    assert any("handed on" in c and "read" in c for c in certificate.caveats)


def test_certificate_gives_the_determinant_schedule_no_epsilon():
    certificate = system(**BUDGET, graph="line").certificate
    assert (
        certificate.status == "none"
        and certificate.exact is None
        and certificate.claimed is not None
    )
    assert any("no finite epsilon" in c for c in certificate.caveats)
    assert any("handed on 3 hops" in c for c in certificate.caveats)
    # Claims for fixed rounds say that they assume fixed rounds.
    assert {a.status for a in certificate.also} == {"conditional"}
    for claim in certificate.also:
        assert [c.text for c in claim.conditions if not c.holds] == [
            "synchronisation rounds do not depend on data"
        ]
    # A schedule that synchronises in every round does not depend on data.
    assert system(**BUDGET, communication="MT").certificate.status == "proven"


def test_certificate_of_eager_play_proves_only_item_privacy():
    """Check that eager play is proven private for one (action, reward) pair, not for one user."""
    certificate = system(**STEADY, **EAGER, graph="line").certificate
    assert certificate.status == "unproven" and certificate.exact is None
    assert [(claim.unit, claim.status) for claim in certificate.also] == [("item", "proven")]
    batch_of_one = system(**BUDGET, **FIXED, **EAGER, batch_size=1, graph="line").certificate
    assert batch_of_one.status == "proven"


def test_certificate_without_privacy_names_no_readers():
    certificate = system(private=False, graph="line").certificate
    assert certificate.status == "none" and certificate.claimed is None
    assert not any("read" in c for c in certificate.caveats)


def test_noise_of_one_tree_suffices_for_all_estimators():
    """Check that the noise is calibrated to T / gamma rounds: a user's data enter one estimator."""
    for gamma, rounds in ((1, 40), (2, 20), (3, 14), (40, 1)):
        decentralised = system(**BUDGET, **FIXED, batch_size=1, gamma=gamma)
        central = fastfed.make_system(
            "feducb", silos=4, horizon=rounds, dimension=2, **BUDGET, **FIXED, batch_size=1
        )
        assert decentralised.plan.parts[0].plan.noise_std == central.plan.noise_std
    stds = {part.plan.noise_std for part in system(**STEADY, gamma=3).plan.parts}
    assert len(stds) == 1


def test_certificate_names_all_readers_of_the_messages():
    """Check the caveats where one clique holds all silos and where messages travel one hop."""
    for keys, has_other_cliques in (
        ({}, False),
        ({"graph": "ring"}, False),
        ({"graph": "line", "gamma": 1}, True),
    ):
        caveats = " ".join(system(**STEADY, **keys).certificate.caveats)
        assert ("silos of other cliques" in caveats) is has_other_cliques
        assert "1 hops" not in caveats


@pytest.mark.parametrize("schedule", [{**FIXED, "batch_size": 2}, {}])
def test_certificate_names_the_algorithm_that_ran(schedule):
    assert "Algorithm 3" in system(**BUDGET, **schedule).certificate.source
    assert "Algorithm 1" not in system(**BUDGET, **schedule).certificate.source


SHARES = [
    ({"graph": "complete"}, 1),
    ({"graph": "complete", "gamma": 3}, 3),
    ({"graph": "line", "gamma": 1}, 2),
    ({"graph": "line", "gamma": 2}, 4),
    ({"graph": "star", "gamma": 1}, 3),
]


@pytest.mark.parametrize(("keys", "part_count"), SHARES)
@pytest.mark.parametrize("lazy", [True, False])
def test_direct_radius_divides_the_failure_probability_among_parts(keys, part_count, lazy):
    parts_system = bounded_system(**STEADY, **DIRECT, **keys, lazy=lazy)
    assert len(parts_system.plan.parts) == part_count and parts_system.theory.proven
    for part in parts_system.plan.parts:
        # Half of the failure probability covers the rewards. Eager silos each have an order of
        # events; the bound is taken once for each order.
        orders = 1 if lazy else len(part.clique)
        base = 2.0 * np.log(orders * part_count / (0.01 / 2.0))
        assert part.plan.radius.base == pytest.approx(base, rel=1e-12)


@pytest.mark.parametrize(("keys", "part_count"), SHARES)
@pytest.mark.parametrize("lazy", [True, False])
def test_proposition_2_holds_for_all_orders_of_events_together(keys, part_count, lazy):
    """Check the union bound over orders of events.

    Each clique has one order of events per estimator, and each eager silo has one. A bound that
    claims to be proven holds for all orders together.
    """
    parts_system = bounded_system(**STEADY, **keys, lazy=lazy)
    assert len(parts_system.plan.parts) == part_count
    orders = part_count if lazy else 4 * parts_system.plan.gamma
    smallest_base, proven = 2.0 * np.log(2.0 * orders / 0.01), parts_system.theory.proven
    for base in [part.plan.radius.base for part in parts_system.plan.parts]:
        assert base >= smallest_base * (1.0 - 1e-12) or not proven


# -- Keys ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"graph": "rings"}, 'graph must be one of .*; did you mean "ring"'),
        ({"graph": 5}, "graph must be"),
        ({"graph": [[0, 1], [1, 1], [1, 2], [2, 3]]}, "edges must join two different silos"),
        ({"graph": [[0, 1], [1, 4]]}, "a silo of edges must be an integer >= 0 and <= 3, got 4"),
        ({"graph": [[0, -1]]}, "a silo of edges must be an integer >= 0 and <= 3, got -1"),
        ({"graph": [[0, 1], [2, 3]]}, "graph must be connected, got no path between silos 0 and 2"),
        ({"graph": [[0, 1, 2]]}, "graph"),
        ({"graph": [["a", "b"]]}, "graph"),
        ({"graph": [[0, 1.5]]}, "graph"),
        ({"graph": []}, "graph must not be an empty list"),
        ({"graph": "random", "graph_seed": -1}, "graph_seed must be an integer >= 0"),
        ({"gamma": 0}, "gamma must be an integer >= 1, got 0"),
        ({"gamma": 20}, r"gamma must be <= horizon \(19\), got 20"),
        ({"gamma": 1.5}, "gamma must be an integer"),
        ({"gama": 2}, 'unknown key "gama".*; did you mean "gamma"'),
        ({"graph": "line", "horizon": 2}, r"gamma must be <= horizon \(2\), got 3"),
        ({**FIXED, "batch_size": "theorem"}, 'batch_size "theorem" belongs to feducb'),
        ({"batch_size": 3}, 'batch_size belongs to schedule "fixed"'),
        ({"communication": "M1.5"}, '"log-T", "MT" or a number without a server, got "M1.5"'),
        ({"communication": "MT", **QUIET, "private": True, **NOISY}, "it needs no private-determ"),
        ({"communication": 0.0}, "communication must be > 0"),
        ({"silos": 2001}, "silos must be <= 2000 without a server, got 2001"),
        ({"regularizer": 1.0}, "regularizer has no meaning"),
        ({**NOISY, **DIRECT, "private": True}, 'radius "direct" needs schedule'),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value),
)
def test_errors_about_bad_keys_are_one_sentence(keys, message):
    with pytest.raises(InputError, match=message) as error:
        experiment(**{**OPEN, **keys})
    # The message is one line. It ends with the curve's label, unless no curve was built.
    assert "\n" not in str(error.value)
    assert str(error.value).endswith('(curve "peers")') or keys == {"graph": []}


def test_errors_about_batches_name_no_theorem_and_no_horizon():
    """Check that batches have no "theorem" here and are counted in uses of an estimator."""
    with pytest.raises(InputError, match="batch_size is required") as error:
        experiment(**OPEN, **FIXED)
    assert "theorem" not in str(error.value)
    with pytest.raises(InputError, match="batch_size must be <=") as error:
        experiment(**OPEN, **FIXED, batch_size=12, graph="line")
    assert "horizon (7)" not in str(error.value)


SPEC = """
name = "peers"
horizon = 30
silos = 4
environment = {{ kind = "sphere", dimension = 3, actions = 5 }}
[[curve]]
label = "x"
algorithm = "feducb-decentralized"
private = false
graph = {}
"""


def graphs_of_spec(graph: str) -> list[tuple[str, int, int]]:
    """Return (label, number of edges, gamma) of each curve of SPEC with this graph."""
    e = experiment_from_spec(tomllib.loads(SPEC.format(graph)))
    plans = [curve.system.plan for curve in e.curves]
    return [
        (curve.label, len(plan.graph.edges), plan.gamma)
        for curve, plan in zip(e.curves, plans, strict=True)
        if isinstance(plan, PeerPlan)
    ]


def test_spec_accepts_lists_of_graphs_and_lists_of_edges():
    assert graphs_of_spec('"ring"') == [("x", 4, 2)]
    assert graphs_of_spec('["ring", "line"]') == [
        ("x, graph = ring", 4, 2),
        ("x, graph = line", 3, 3),
    ]
    assert graphs_of_spec("[[0, 1], [1, 2], [2, 3]]") == [("x", 3, 3)]
    edges = "[[3, 0], [0, 2], [1, 0]]"
    assert graphs_of_spec(f'["complete", {edges}]') == [
        ("x, graph = complete", 6, 1),
        ("x, graph = [[3, 0], [0, 2], [1, 0]]", 3, 2),
    ]
    # Order, direction and repetition of edges do not matter.
    sorted_edges = experiment(**OPEN, graph=[[0, 1], [1, 2], [2, 3]])
    shuffled_edges = experiment(**OPEN, graph=[[3, 2], [1, 0], [2, 1], [1, 2]])
    assert plan_of(sorted_edges).graph == plan_of(shuffled_edges).graph == Graph.named("line", 4)


@pytest.mark.parametrize(
    "graph",
    [
        [[0, 1], [1, 2], [2, 3]],
        ((0, 1), (1, 2), (2, 3)),
        [(0, 1), (1, 2), (2, 3)],
        Graph.named("line", 4).edges,
        list(Graph.named("line", 4).edges),
    ],
    ids=["lists", "tuples", "list of tuples", "edges", "list of edges"],
)
def test_simulate_accepts_edges_as_python_sequences(graph):
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 3}, "feducb-decentralized",
        horizon=6, silos=4, private=False, communication=0.5, graph=graph,
    )  # fmt: skip
    assert len(results.curves) == 1


def test_other_keys_can_be_swept():
    e = experiment(**OPEN, graph="line", gamma=[1, 2], communication=[1.0, "log-T"])
    assert [plan.gamma for plan in (c.system.plan for c in e.curves)] == [1, 1, 2, 2]
    assert e.curves[0].label == "peers, gamma = 1, communication = 1.0"
    # In a sweep over silos, the default gamma follows the graph.
    single = experiment(**OPEN, graph="ring", silos=4)
    sweep = make_experiment(
        name="x", environment=Sphere(dimension=3, actions=5), horizon=29, silos=4,
        curves=[{**OPEN, "label": "x", "algorithm": "feducb-decentralized", "graph": "ring",
                 "silos": [4, 8]}],
    )  # fmt: skip
    assert plan_of(single).gamma == 2
    assert [c.system.plan.gamma for c in sweep.curves] == [2, 4]


# -- Bytes and results -----------------------------------------------------------------------------


class CountingNetwork(Network[Message]):
    """A network that adds up the bytes of every message on every edge."""

    byte_count = 0

    def _forward(self, flight, silos):
        """Forward a message, and count the bytes on all links."""
        type(self).byte_count += sum(
            flight.message.nbytes * len(self.graph.neighbours[i]) for i in silos
        )
        super()._forward(flight, silos)


@pytest.mark.parametrize("name", ["every use", "further than needed", "direct, quiet, eager"])
def test_reported_bytes_equal_the_bytes_on_all_edges(name, monkeypatch):
    """Compare the counts at each checkpoint; ``run_peers`` and the oracle count bytes
    independently."""
    e, outcome = run_case(name)
    monkeypatch.setattr(peers, "Network", CountingNetwork)
    CountingNetwork.byte_count, bytes_by_round = 0, []
    step_outcome = run_readable(
        e, progress=lambda rounds: bytes_by_round.append(CountingNetwork.byte_count)
    )
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * np.array(bytes_by_round))
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * run_peers(e).bytes_by)
    same(step_outcome, outcome)
    assert outcome.bits_up[-1] > 0


def test_byte_counts_of_a_star_equal_counts_by_hand():
    """Count the edges that a message crosses in a star with gamma = 2.

    In the first hop, each end sends to the centre and the centre to its four ends. In the second
    hop, the centre forwards to all ends and each end back to the centre. The ends do not forward
    further.
    """
    case = {**SHARP, **FIXED, "batch_size": 1, "graph": "star", "silos": 5, "gamma": 2}
    e = experiment(**case, horizon=3)
    outcome, report_bytes = run_compiled(e), 8 * (3 + 6)
    first_hop_edges = 4 + 4 * 1  # the centre to four ends, each end to the centre
    second_hop_edges = 4 * 1 + 4 * 4  # each end forwards one message, the centre forwards four
    assert outcome.bits_up.tolist() == [
        8 * report_bytes * first_hop_edges,
        8 * report_bytes * (2 * first_hop_edges + second_hop_edges),
        8 * report_bytes * (3 * first_hop_edges + 2 * second_hop_edges),
    ]


def small_spec() -> dict[str, Any]:
    """Return a spec with two decentralised curves and one centralised curve."""
    return {
        "name": "peers",
        "horizon": 40,
        "silos": 5,
        "replicates": 2,
        "seed": 4,
        "checkpoints": 5,
        "environment": {"kind": "sphere", "dimension": 3, "actions": 5},
        "curve": [
            {"label": "asking", "algorithm": "feducb-decentralized", "graph": TAIL, "gamma": 2,
             **RULES["open, eager"]},
            {"label": "steady", "algorithm": "feducb-decentralized", "graph": "star", **STEADY},
            {"label": "server", "algorithm": "feducb", **STEADY},
        ],
    }  # fmt: skip


def test_results_json_and_report_show_the_bytes_sent(tmp_path):
    e = experiment_from_spec(small_spec())
    results = fastfed.run(e, tmp_path / "out", threads=2)
    all_outcomes = []
    for replicate in range(2):
        environment = e.environment.open(e.seed, replicate, 5)
        for curve in e.curves[:2]:
            all_outcomes.append(dispatch.run_steps(environment, curve.system.plan, e.checkpoints))
    for position, label in enumerate(("asking", "steady")):
        curve_results, outcomes = results[label], all_outcomes[position::2]
        np.testing.assert_array_equal(
            curve_results.bits_up_counts, [outcome.bits_up for outcome in outcomes]
        )
        np.testing.assert_array_equal(
            curve_results.synchronisation_counts, [outcome.synchronisations for outcome in outcomes]
        )
        np.testing.assert_array_equal(
            curve_results.group_regret, [outcome.group_regret for outcome in outcomes]
        )
        json_curve = json.loads(json.dumps(results.to_builtins()))["curves"][position]
        mean_bytes = np.mean([outcome.bits_up for outcome in outcomes], axis=0) / 8.0
        assert json_curve["bytes_curve"] == mean_bytes.tolist() and json_curve["bits_down"] == 0
        assert json_curve["bytes_up"] == mean_bytes[-1] > 0
    assert "theorem-2" in results["asking"].bounds and not results["steady"].bounds
    source = read_source(tmp_path / "out")
    html, text = page(source, charts_of(source)), as_text(source)
    for label in ("asking", "steady"):
        assert sent(results[label].bytes_sent) in text and sent(results[label].bytes_sent) in html
    assert str(results["steady"].bytes_up) in as_csv(source)
    assert "handed on 2 hops" in html
    # The spec in the report lists the edges as they were given.
    assert tomllib.loads(spec_text(source.identity, 2, {}))["curve"][0]["graph"] == TAIL


def test_more_replicates_extend_a_stored_run(tmp_path):
    e = experiment_from_spec(small_spec())
    fastfed.run(e.with_options(1), tmp_path / "grown")
    extended = fastfed.run(e, tmp_path / "grown")
    direct = fastfed.simulate(
        small_spec()["environment"], curves=small_spec()["curve"], threads=1, driver="step",
        **{k: v for k, v in small_spec().items() if k not in ("environment", "curve")},
    )  # fmt: skip
    for label in ("asking", "steady", "server"):
        np.testing.assert_array_equal(extended[label].group_regret, direct[label].group_regret)
        np.testing.assert_array_equal(extended[label].bits_up_counts, direct[label].bits_up_counts)


def test_theorem_2_bound_follows_its_proof():
    """Check the bound with the D of the proof, which line 3.6 divides by 1 + L^2.

    Cliques and gamma are taken from the graph.
    """
    assert not experiment(**CASES["two cliques"]).curves[0].system.bounds_at(np.array([1]))
    e = experiment(**{**CASES["two cliques"], **EAGER})
    constants, keys = constants_of(e), e.curves[0].keys
    bound_values = e.curves[0].system.bounds_at(np.array([1, 19]))["theorem-2"]
    for T, value in zip((1, 19), bound_values, strict=True):
        sizes = {"T": T, "d": 3}
        grown = oracle.log_growth(T, 3, 1.0, constants.rho_min, constants.rho_max, 1)
        beta_bar = oracle.beta_bar(
            sigma=0.5, alpha=keys["failure_probability"], norm=1.0, M=5, L=1.0,
            kappa=constants.kappa, rho_min=constants.rho_min, rho_max=constants.rho_max, **sizes,
        )  # fmt: skip
        expected = oracle.theorem_2_two_terms(
            constants.threshold, beta_bar, sizes=[3, 2], gamma=1, grown=grown, **sizes
        )
        assert value == pytest.approx(expected, rel=1e-12)
