"""FedUCB without a server: both drivers bit for bit, the paper's pseudocode by forced replay, peers
by hand.

The oracle's network carries the messages of the peers that are played by hand, so that neither
arrivals nor bytes rest on the package's own.
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
from test_feducb_oracle import same, symmetric, uneven

import fastfed
from fastfed import InputError
from fastfed._random import InterleavedNoise, SeededNoise
from fastfed.bandits.peer import Message
from fastfed.environments import Replay, Sphere
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT
from fastfed.protocols.serverless import Graph, Network, Part, PeerPlan, Request
from fastfed.reporting.figure import read_source
from fastfed.reporting.page import page
from fastfed.reporting.table import as_csv, as_text, sent
from fastfed.reporting.text import spec_text
from fastfed.simulation import compiled, dispatch, peers
from fastfed.simulation.driver import Outcome
from fastfed.simulation.experiment import Experiment, experiment_from_spec, make_experiment

# -- Problems --------------------------------------------------------------------------------------

OPEN = {"private": False}
NOISY = {"epsilon": 5.0, "delta": 0.01}  # the noise is most of V
SHARP = {"epsilon": 2e4, "delta": 0.01}  # the data are
FIXED = {"schedule": "fixed"}
QUIET = {"schedule": "private-determinant"}
EAGER = {"lazy": False}
DIRECT = {"radius": "direct"}

SIZES = {"silos": 4, "horizon": 19, "dimension": 3, "actions": 5}
#: A triangle with a tail: its diameter is 3, and at gamma = 1 its cliques are of sizes 3 and 2.
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


def grid() -> dict[str, dict[str, Any]]:
    """Every graph with every gamma, under two of the rules in turn."""
    rules = itertools.cycle(RULES)
    return {
        f"{graph}, {gamma}, {rule}": {**GRAPHS[graph], **GAMMAS[gamma], **RULES[rule]}
        for graph, gamma, _ in itertools.product(GRAPHS, GAMMAS, range(2))
        for rule in [next(rules)]
    }


ONE = {"silos": 1, "dimension": 1, "actions": 1}
CORNERS: dict[str, dict[str, Any]] = {
    # Where the text below looks closer.
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
    # 3 uses of estimator 0 and 4 of estimator 1.
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
CASES = {**grid(), **CORNERS}


def experiment(environment: Any = None, seed: int = 7, **case: Any) -> Experiment:
    sizes = {key: case.pop(key, value) for key, value in SIZES.items()}
    if environment is None:
        environment = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    curve = {"label": "peers", "algorithm": "feducb-decentralized", **case}
    return make_experiment(
        name="peers", environment=environment, horizon=sizes["horizon"], silos=sizes["silos"],
        curves=[curve], seed=seed, checkpoints=sizes["horizon"],
    )  # fmt: skip


def adjacency(graph: Graph) -> np.ndarray:
    full = np.zeros((graph.silos, graph.silos), dtype=int)
    for i, j in graph.edges:
        full[i, j] = full[j, i] = 1
    return full


def plan_of(e: Experiment) -> PeerPlan:
    plan = e.curves[0].system.plan
    assert isinstance(plan, PeerPlan)
    return plan


def fast(e: Experiment, plan: PeerPlan | None = None, at: Any = None, **keys: Any) -> Outcome:
    opened = e.environment.open(e.seed, 0, e.silos)
    at = e.checkpoints if at is None else np.array(at)
    return peers.run(opened, plan or plan_of(e), at, record=True, **keys)


def readable(e: Experiment, plan: PeerPlan | None = None, at: Any = None, **keys: Any) -> Outcome:
    opened = e.environment.open(e.seed, 0, e.silos)
    at = e.checkpoints if at is None else np.array(at)
    return peers.run_steps(opened, plan or plan_of(e), at, **keys)


@cache
def case_of(name: str) -> tuple[Experiment, Outcome]:
    e = experiment(**CASES[name])
    return e, fast(e)


def with_parts(plan: PeerPlan, change: Callable[[Part], dict[str, Any]]) -> PeerPlan:
    """The same plan, with changes of the plan of every part."""
    changed = [
        dataclasses.replace(part, plan=dataclasses.replace(part.plan, **change(part)))
        for part in plan.parts
    ]
    return dataclasses.replace(plan, parts=tuple(changed))


# -- The two drivers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_two_drivers_agree_bit_for_bit(name):
    e, outcome = case_of(name)
    same(outcome, readable(e))


def test_the_cases_are_what_they_are_called():
    def last(name):
        return int(case_of(name)[1].synchronisations[-1])

    plans = {name: plan_of(case_of(name)[0]) for name in CASES}
    for name in grid():
        plan = plans[name]
        wanted = {"one hop": 1, "two hops": 2, "diameter": plan.graph.diameter, "beyond": 5}
        assert plan.gamma == wanted[name.split(", ")[1]]
        if "beyond" in name:
            assert plan.gamma > plan.graph.diameter
    # Several cliques of several sizes, also with several estimators; parts of unequal lengths.
    sizes = {name: sorted(map(len, plan.graph.cliques(plan.gamma))) for name, plan in plans.items()}
    assert sizes["two cliques"] == [2, 3] and sizes["two cliques, two estimators"] == [1, 3]
    assert sizes["two cliques, noisy"] == [2, 2] and sizes["three estimators"] == [4]
    halves = {part.plan.horizon for part in plans["two cliques, two estimators"].parts}
    assert halves == {9, 10}
    # Whoever fires in a use plays one more: synchronised in every second use of each part.
    assert last("every use") == 2 * (19 // 2)
    assert last("every use, noisy") == 2 * (10 // 2 + 9 // 2)
    assert last("one use each") == last("one round") == last("never") == last("never, quiet") == 0
    # 8 rounds of 5 estimators: three of them are used twice.
    assert last("less than two uses") == 8 and last("less than two uses, asked") == 3
    # Two cliques fill the batch of estimator 1.
    assert last("a batch that one estimator never fills") == 2
    assert last("a batch that one estimator never fills, direct") == 1
    adaptive = [plan.parts[0].plan.trigger for plan in plans.values()]
    assert {t.kind for t in adaptive if t} == {DETERMINANT, PRIVATE_DETERMINANT}
    # Every rule is played on several graphs, and fires on most of them.
    for rule in RULES:
        mine = [last(name) for name in grid() if name.endswith(f", {rule}")]
        assert len(mine) >= 4 and sum(k > 0 for k in mine) > len(mine) / 2, rule


@pytest.mark.parametrize(("threads", "calls"), [(1, 1), (1, 7), (2, 7), (3, 7)])
@pytest.mark.parametrize("name", ["two cliques", "direct, quiet", "direct, eager"])
def test_threads_and_calls_change_nothing(name, threads, calls):
    e, outcome = case_of(name)
    same(outcome, fast(e, threads=threads, rounds_per_call=calls))


def test_long_chunks_are_played_alike_in_calls_of_any_length():
    """A rule fires inside of a chunk longer than 16 uses: one begun 129 uses into a span."""
    case = {**SHARP, **QUIET, **EAGER, "silos": 3, "dimension": 2, "actions": 3, "graph": "line"}
    e = experiment(**case, gamma=1, horizon=220, communication=1400.0)
    outcome = fast(e)
    assert np.flatnonzero(outcome.synchronisations)[0] > 145
    same(outcome, readable(e))
    for threads, calls in ((1, 1), (2, 70), (1, 220)):
        same(outcome, fast(e, threads=threads, rounds_per_call=calls))


@pytest.mark.parametrize("at", [[1], [2, 3], [1, 5, 6, 18], [19], [4, 8, 12, 16, 19]])
@pytest.mark.parametrize(
    "name", ["three estimators", "further than needed", "every use, noisy", "never"]
)
def test_sparse_checkpoints_show_what_dense_ones_do(name, at):
    """Before some estimator's first use, too, and while messages are on their way."""
    e, dense = case_of(name)
    sparse = fast(e, at=at)
    same(sparse, readable(e, at=at))
    for counted in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(
            getattr(sparse, counted), getattr(dense, counted)[np.array(at) - 1]
        )
    np.testing.assert_array_equal(sparse.total, dense.total)


@pytest.mark.parametrize("last", [1, 2, 10, 18])
@pytest.mark.parametrize("name", ["three estimators", "direct, quiet"])
def test_a_play_that_ends_early_ends_alike(name, last):
    e, whole = case_of(name)
    part, other, until = fast(e, last=last), readable(e, last=last), slice(0, last)
    for field in ("group_regret", "synchronisations", "bits_up", "bits_down"):
        np.testing.assert_array_equal(getattr(part, field)[until], getattr(other, field)[until])
        np.testing.assert_array_equal(getattr(part, field)[until], getattr(whole, field)[until])
    np.testing.assert_array_equal(part.total, other.total)
    np.testing.assert_array_equal(part.actions, other.actions)
    np.testing.assert_array_equal(part.actions[:, :last], whole.actions[:, :last])
    assert not part.actions[:, last:].any()


@pytest.mark.parametrize("rule", ["open, eager", "quiet", "fixed"])
@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_they_agree_on_a_pool(recorded, sampling, rule):
    """Orders of records are those of the silo's own name, and of the round of the whole play."""
    pool = Replay.from_arrays(*recorded, sampling=sampling)
    e = experiment(pool, silos=3, horizon=24, **RULES[rule], graph="line", gamma=1)
    outcome = fast(e)
    assert outcome.synchronisations[-1] >= 2
    same(outcome, readable(e))


@pytest.mark.parametrize("rule", ["open, eager", "quiet", "sharp, eager"])
def test_silos_that_fire_in_different_rounds(rule):
    """Features and numbers of actions differ by silo; features and rewards have to be clipped."""
    e = experiment(uneven(), **RULES[rule], horizon=34, graph="line", gamma=1)
    outcome = fast(e)
    same(outcome, readable(e))
    heard = by_hand(e)
    assert 2 <= len(heard.requests) < len(heard.broadcasts)
    outside = (outcome.rewards < 0.0) | (outcome.rewards > 1.0)
    assert outcome.events["clipped_rewards"] == outside.sum() > 20
    # Silo 2 has features of length 1.1, silo 3 of 1.5.
    assert outcome.events["clipped_features"] == 2 * e.horizon


@pytest.mark.parametrize("schedule", ["determinant", "private-determinant", "fixed"])
def test_they_agree_where_the_noisy_v_is_indefinite(schedule):
    more = {"batch_size": 3} if schedule == "fixed" else {"communication": 1e-3}
    e = experiment(**NOISY, **more, schedule=schedule, rho_min=0.1, graph="line", gamma=2)
    outcome = fast(e)
    assert 0 < outcome.events["indefinite"] <= outcome.synchronisations[-1]
    assert np.isfinite(outcome.total).all()
    same(outcome, readable(e))


def test_replicates_differ_and_agree():
    e = experiment(**RULES["quiet"], graph="line", gamma=2)
    opened = [e.environment.open(e.seed, r, e.silos) for r in range(2)]
    played = [peers.run(o, plan_of(e), e.checkpoints, record=True) for o in opened]
    for one, environment in zip(played, opened, strict=True):
        same(one, dispatch.run_steps(environment, plan_of(e), e.checkpoints))
    assert (played[0].synchronisations != played[1].synchronisations).any()


def test_the_common_door_plays_peers_beside_others():
    central = make_experiment(
        name="x", environment=Sphere(dimension=3, actions=5), horizon=19, silos=4, seed=7,
        curves=[{"label": "x", "algorithm": "local-linucb"}], checkpoints=19,
    ).curves[0].system.plan  # fmt: skip
    e, outcome = case_of("two cliques, two estimators")
    told: list[int] = []
    plans = [plan_of(e), central, plan_of(e)]
    opened = e.environment.open(e.seed, 0, e.silos)
    played = dispatch.run(opened, plans, e.checkpoints, record=True, progress=told.append)
    same(played[0], outcome)
    same(played[2], outcome)
    assert not dispatch.together(plan_of(e)) and dispatch.together(central)
    # In rounds of all silos, each once for every plan, though parts are played in turn.
    assert sum(told) == 3 * 19 and min(told) >= 0
    counted: list[int] = []
    fast(e, rounds_per_call=4, progress=counted.append)
    assert sum(counted) == 19 and len(counted) > 5


# -- Peers by hand ---------------------------------------------------------------------------------

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])


def play_on(
    crowd: list[fastfed.parties.Peer], network: Network[Message], rounds: int
) -> list[Message]:
    """Rounds of all of them in lockstep; everything that was sent."""
    sent_by_all = []
    for _ in range(rounds):
        for i, message in network.deliver():
            crowd[i].receive(message)
        for peer in crowd:
            actions = np.resize(ACTIONS, (3, peer.plan.dimension)) / 2.0
            peer.observe(float(peer.select(actions) == 1))
        for i, peer in enumerate(crowd):
            for message in peer.outbox():
                sent_by_all.append(message)
                network.broadcast(i, message)
    return sent_by_all


@dataclasses.dataclass
class Heard:
    """What peers said and knew, their messages carried by the oracle's network."""

    requests: list[tuple[int, int, int]]  # (round, silo, estimator), as the oracle lists them
    broadcasts: list[tuple[int, int, int]]
    used: dict[tuple[int, int], tuple[int, np.ndarray]]  # release and total by (round, silo)
    bytes_by: np.ndarray  # (T,)
    actions: np.ndarray
    totals: list[np.ndarray]  # of every part, in the end


def by_hand(e: Experiment) -> Heard:
    plan, opened, noise = plan_of(e), e.environment.open(e.seed, 0, e.silos), SeededNoise(e.seed, 0)
    everyone = [fastfed.parties.Peer(plan, i, noise) for i in range(plan.silos)]
    network = oracle.Network(adjacency(plan.graph), plan.gamma)
    inside: dict[int, Message] = {}
    heard = Heard([], [], {}, np.zeros(e.horizon), np.zeros((e.silos, e.horizon), np.int32), [])

    def envelope(message: Message, t: int) -> oracle.Message:
        if isinstance(message, Request):
            heard.requests.append((t, message.silo, message.estimator))
            made: oracle.Message = oracle.Request(message.silo, message.estimator, message.round)
            assert message.round == t
        else:
            heard.broadcasts.append((t, message.silo, message.estimator))
            pair = message.report.covariance, message.report.bias
            made = oracle.Statistics(message.silo, message.estimator, t, pair)
        inside[id(made)] = message
        return made

    for t in range(1, e.horizon + 1):
        for i, letter in network.deliver():
            everyone[i].receive(inside[id(letter)])
        for i, peer in enumerate(everyone):
            mine = peer.estimators[t % plan.gamma]
            heard.used[t, i] = mine.silo.release, np.array(mine.total)
            features, means = opened.round(i, t)
            a = peer.select(features)
            peer.observe(opened.reward(i, t, means[a]))
            heard.actions[i, t - 1] = a
        for i, peer in enumerate(everyone):
            for message in peer.outbox():
                assert message.silo == i
                network.broadcast(i, envelope(message, t))
        heard.bytes_by[t - 1] = network.bytes_sent
    for _ in range(plan.gamma):
        for i, letter in network.deliver():
            everyone[i].receive(inside[id(letter)])
    for part in plan.parts:
        known = [everyone[i].estimators[part.estimator].total for i in part.clique]
        for other in known:
            np.testing.assert_array_equal(other, known[0])
        heard.totals.append(known[0])
    return heard


# -- The oracle ------------------------------------------------------------------------------------


def the_paper_knows(case: dict[str, Any]) -> bool:
    return case.get("radius") != "direct" and case.get("schedule") != "private-determinant"


#: Schedules and radii of the paper, and the fixed schedule.
OF_THE_PAPER = [name for name, case in CASES.items() if the_paper_knows(case)]


@dataclasses.dataclass
class Law:
    """The constants of a curve by the oracle's own formulas."""

    rho_min: float
    rho_max: float
    kappa: float
    batch_size: int | None
    threshold: float | None


def law_of(e: Experiment) -> Law:
    keys, plan = e.curves[0].keys, plan_of(e)
    M, T, d, gamma = e.silos, e.horizon, e.facts.dimension, plan.gamma
    alpha, uses = keys["failure_probability"], -(-T // gamma)
    B = 1 if keys["communication"] == "MT" else keys["batch_size"]
    if not keys["private"]:
        low = keys["rho_min"] or 1.0
        high, kappa = low, 0.0
    else:
        # n of every tree, and ln(2 gamma n M / alpha).
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
        return Law(low, high, kappa, B, None)
    # Line 3.6 divides by 1 + L^2 = 2 what the package divides once and for all.
    D = 2.0 * keys["communication"] if keys["communication"] != "log-T" else (
        oracle.decentralised_threshold(T=T, gamma=gamma, d=d, L=1.0, rho_min=low, rho_max=high)
    )  # fmt: skip
    return Law(low, high, kappa, None, D)


def node_noise(e: Experiment) -> Callable[[int, int, int], np.ndarray]:
    """Noise of node n of silo i's estimator g, (d + 1, d + 1); its last entry is never used."""
    plan, d, source = plan_of(e), e.facts.dimension, SeededNoise(e.seed, 0)
    std = plan.parts[0].plan.noise_std

    def noise(i: int, g: int, n: int) -> np.ndarray:
        z = source.node(i, (n - 1) * plan.gamma + g + 1, d)
        full = np.zeros((d + 1, d + 1))
        full[:d, :d] = symmetric(z[d:], std.off_diagonal, std.diagonal)
        full[:d, d] = full[d, :d] = std.bias * z[:d]
        return full

    return noise


def follow(e: Experiment, outcome: Outcome, **changes: Any) -> oracle.DecentralisedReplay:
    """Algorithm 3 along what was played; ``changes`` of its arguments."""
    plan, keys, law = plan_of(e), e.curves[0].keys, law_of(e)
    opened = e.environment.open(e.seed, 0, e.silos)
    size = {i: len(clique) for clique in plan.graph.cliques(plan.gamma) for i in clique}
    # Orders of events that the bound is taken for: see below.
    alpha = 2.0 * np.exp(-plan.parts[0].plan.radius.base / 2.0)

    def radius(t: int, i: int, v: np.ndarray) -> float:
        return keys["radius_multiplier"] * oracle.beta(
            v, sigma=0.5, alpha=alpha, norm=1.0, M=size[i],
            rho_min=law.rho_min, rho_max=law.rho_max, kappa=law.kappa,
        )  # fmt: skip

    arguments: dict[str, Any] = {
        "contexts": lambda t, i: opened.round(i, t)[0].astype(float),
        "means": lambda t, i: opened.round(i, t)[1],
        "actions": outcome.actions,
        "rewards": outcome.rewards,
        "adjacency": adjacency(plan.graph),
        "gamma": plan.gamma,
        "cliques": plan.graph.cliques(plan.gamma),
        "rho_min": law.rho_min,
        "rho_max": law.rho_max,
        "radius": radius,
        "L": 1.0,
        "schedule": "determinant" if law.batch_size is None else "fixed",
        "threshold": law.threshold,
        "batch_size": law.batch_size,
        "noise": node_noise(e) if keys["private"] else None,
        "clip": (1.0, 0.0, 1.0),
        "lazy": keys["lazy"],
        "count": "clique",
    }
    return oracle.replay_decentralised(**arguments | changes)


def synchronisations_of(plan: PeerPlan, truth: oracle.DecentralisedReplay) -> np.ndarray:
    """How many parts had synchronised how often by each round: reports of a clique's first."""
    by = np.zeros(plan.horizon, np.int64)
    firsts = {clique[0] for clique in plan.graph.cliques(plan.gamma)}
    for t, i, _ in truth.broadcasts:
        by[t - 1] += i in firsts
    return by.cumsum()


def noticed(e: Experiment, wrong: Outcome, **changes: Any) -> bool:
    """Whether the replay sees that this is not what was to be played."""
    truth = follow(e, wrong, **changes)
    counts = synchronisations_of(plan_of(e), truth)
    return (
        truth.worst_gap > 1e-6
        or not np.array_equal(counts, wrong.synchronisations)
        or 8.0 * truth.bytes_sent != wrong.bits_up[-1]
    )


def packed(plan: Plan, entry: int, total: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """(S, s) less the regularizer, which the package keeps out of its sums."""
    d = plan.dimension
    w = total[0] - plan.regularizer[entry] * np.eye(d)
    return np.concatenate([total[1], w[np.tril_indices(d)]])


def check(e: Experiment, outcome: Outcome) -> oracle.DecentralisedReplay:
    plan, truth, heard = plan_of(e), follow(e, outcome), by_hand(e)
    law = law_of(e)
    # Nearer than this rounding may move a request: the problem needs another seed.
    assert truth.nearest_trigger > 1e-9
    assert truth.worst_gap < 1e-9
    np.testing.assert_array_equal(heard.actions, outcome.actions)
    assert heard.requests == truth.requests
    assert heard.broadcasts == truth.broadcasts
    np.testing.assert_array_equal(outcome.synchronisations, synchronisations_of(plan, truth))
    np.testing.assert_allclose(outcome.group_regret, truth.group_regret, rtol=1e-8, atol=1e-8)
    # Every hop of every message, by every round.
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * heard.bytes_by)
    assert outcome.bits_up[-1] == 8.0 * truth.bytes_sent
    assert not outcome.bits_down.any()
    # The sums that every silo chose by in every round.
    off = []
    for t, i, total in truth.history:
        part = plan.of_silo[i][t % plan.gamma].plan
        release, values = heard.used[t, i]
        wanted = packed(part, part.entry(release), total)
        off.append(np.abs(values - wanted).max() / max(1.0, np.abs(total[0]).max()))
    assert len(off) == e.silos * e.horizon and max(off) < 1e-8
    np.testing.assert_array_equal(outcome.total, heard.totals)
    # And those that were on their way when the last round was played: by definition.
    noise = node_noise(e) if e.curves[0].keys["private"] else None
    for part, found in zip(plan.parts, outcome.total, strict=True):
        np.testing.assert_allclose(
            found, total_by_definition(e, part, outcome, truth.broadcasts, noise),
            rtol=0, atol=1e-8 * max(1.0, np.abs(found).max()),
        )  # fmt: skip
        count = len(part.clique)
        start, later = part.plan.regularizer[0], part.plan.regularizer[-1]
        assert start == pytest.approx(count * law.rho_min, rel=1e-12)
        assert later == pytest.approx(count * (law.rho_min + law.rho_max) / 2, rel=1e-12)
    return truth


def total_by_definition(
    e: Experiment,
    part: Part,
    outcome: Outcome,
    broadcasts: list[tuple[int, int, int]],
    noise: Callable[[int, int, int], np.ndarray] | None,
) -> np.ndarray:
    """All data up to the last report of the clique, and the noise of each member's prefix."""
    d, g, opened = e.facts.dimension, part.estimator, e.environment.open(e.seed, 0, e.silos)
    z = np.zeros((d + 1, d + 1))
    for i in part.clique:
        reported = [t for t, silo, estimator in broadcasts if (silo, estimator) == (i, g)]
        for t in range(1, max(reported, default=0) + 1):
            if t % plan_of(e).gamma == g:
                x = opened.round(i, t)[0][outcome.actions[i, t - 1]].astype(float)
                point = oracle.clipped(x, outcome.rewards[i, t - 1], (1.0, 0.0, 1.0))
                z += np.outer(point, point)
        if noise is not None:
            for node in oracle.tree_nodes(len(reported)):
                z += noise(i, g, node)
    return np.concatenate([z[:d, d], z[:d, :d][np.tril_indices(d)]])


@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_every_case_plays_the_papers_pseudocode(name):
    e, outcome = case_of(name)
    assert outcome.events["indefinite"] == 0
    check(e, outcome)


def test_several_ask_in_one_round_and_some_too_late():
    e, outcome = case_of("every use")
    truth = check(e, outcome)
    asked = [t for t, _, _ in truth.requests]
    assert asked.count(1) == 5 and len(truth.requests) == 5 * 10
    # T is odd: what is asked for in the last round is never reported.
    assert asked.count(19) == 5 and max(t for t, _, _ in truth.broadcasts) == 18
    # One use each: all ask, nobody reports, and 24 bytes travel over every edge.
    e, outcome = case_of("one use each")
    truth = check(e, outcome)
    assert len(truth.requests) == 4 * 6 and truth.broadcasts == []
    assert outcome.bits_up[0] == 8 * 24 * 4 * 3


def test_not_all_of_a_clique_ask():
    """On the uneven problem some silo's trigger is always the last; the others follow it."""
    e = experiment(uneven(), **OPEN, **EAGER, communication=2.0, horizon=34, graph="line", gamma=2)
    truth = check(e, fast(e))
    assert 2 <= len(truth.requests) < len(truth.broadcasts)
    assert 1 < len({i for _, i, _ in truth.requests}) < 4


# -- The comparison can fail -----------------------------------------------------------------------


def spoiled(e: Experiment, change: Callable[[Part, PeerPlan], dict[str, Any]]) -> Outcome:
    plan = plan_of(e)
    return fast(e, with_parts(plan, lambda part: change(part, plan)))


def rule(part: Part, **changes: Any) -> dict[str, Any]:
    return {"trigger": dataclasses.replace(part.plan.trigger, **changes)}


@pytest.mark.parametrize("name", ["two cliques", "two cliques, two estimators", "log-T"])
def test_a_forgotten_delay_is_noticed(name):
    e, _ = case_of(name)
    assert noticed(e, spoiled(e, lambda part, plan: rule(part, delay=0)))
    assert noticed(e, spoiled(e, lambda part, plan: rule(part, delay=2)))


@pytest.mark.parametrize(
    "name", ["two cliques", "two cliques, two estimators", "log-T", "two cliques, noisy"]
)
def test_a_threshold_that_is_not_halved_is_noticed(name):
    e, _ = case_of(name)
    found = plan_of(e).parts[0].plan.trigger.threshold
    assert 2.0 * found == pytest.approx(law_of(e).threshold, rel=1e-12)
    assert noticed(e, spoiled(e, lambda part, plan: rule(part, threshold=2.0 * found)))


@pytest.mark.parametrize("name", ["two cliques", "two cliques, noisy"])
def test_all_silos_where_the_clique_is_meant_are_noticed(name):
    """In the start of V and in what the trigger adds to it: the pseudocode's M."""
    e, outcome = case_of(name)
    assert noticed(e, outcome, count="silos")

    def start(part: Part, plan: PeerPlan) -> dict[str, Any]:
        r, times = part.plan.regularizer, plan.silos / len(part.clique)
        return {"regularizer": np.array([times * r[0], r[1]])}

    def extra(part: Part, plan: PeerPlan) -> dict[str, Any]:
        return rule(part, extra=part.plan.trigger.extra * plan.silos / len(part.clique))

    # Without noise the trigger adds nothing; with it, it adds more than V starts from.
    assert noticed(e, spoiled(e, start if name == "two cliques" else extra))


def test_a_wrong_action_is_noticed():
    e, outcome = case_of("log-T")
    wrong = outcome.actions.copy()
    wrong[1, 20] = (wrong[1, 20] + 1) % 5
    assert follow(e, dataclasses.replace(outcome, actions=wrong)).worst_gap > 1e-6


@pytest.mark.parametrize(
    "key",
    [
        lambda self, node: node,  # all estimators of a silo share their noise
        lambda self, node: (node - 1) * self.stride + 1,
        lambda self, node: node * self.stride + self.phase + 1,
    ],
)
def test_noise_under_other_keys_is_noticed(key, monkeypatch):
    e, _ = case_of("every use, noisy")
    monkeypatch.setattr(InterleavedNoise, "_key", key)
    wrong = readable(e)
    broadcasts = follow(e, wrong).broadcasts
    found = [
        np.abs(total - total_by_definition(e, part, wrong, broadcasts, node_noise(e))).max()
        for part, total in zip(plan_of(e).parts, wrong.total, strict=True)
    ]
    assert max(found) > 1e-3


def test_no_two_draws_share_a_key():
    """Nodes of every silo and estimator, and rounds: each asked for once, under its own name."""

    class Watched(SeededNoise):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.drawn: list[tuple[int, int]] = []
            self.rounds: list[tuple[int, int]] = []

        def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
            self.drawn.append((silo, node))
            return super().node(silo, node, dimension)

        def trigger(self, silo: int, round: int, dimension: int) -> np.ndarray:
            self.rounds.append((silo, round))
            return super().trigger(silo, round, dimension)

    e, _ = case_of("every use, quiet")
    plan = plan_of(e)
    source = Watched(e.seed)
    crowd = [fastfed.parties.Peer(plan, i, source) for i in range(plan.silos)]
    play_on(crowd, Network(plan.graph, plan.gamma), e.horizon)
    for keys in (source.drawn, source.rounds):
        assert len(keys) == len(set(keys)) > 30
    assert {silo for silo, _ in source.drawn} == set(range(4))
    # gamma = 3: every residue belongs to one estimator.
    assert {(node - 1) % 3 for _, node in source.drawn} == {0, 1, 2}
    assert {round % 3 for _, round in source.rounds} == {0, 1, 2}


# -- The rule by definition ------------------------------------------------------------------------


def growth(plan: Plan, s: np.ndarray, grown: np.ndarray, noise: np.ndarray) -> float:
    assert plan.trigger is not None
    wide = s + grown + noise + plan.trigger.extra * np.eye(plan.dimension)
    if np.linalg.eigvalsh(wide)[0] <= 0.0:
        return -np.inf
    return float(np.linalg.slogdet(wide)[1] - np.linalg.slogdet(s)[1])


def fired_by_definition(e: Experiment, outcome: Outcome) -> list[tuple[int, int, int]]:
    """(round, silo, estimator) of every request, from the actions, the rule and the noises alone.

    Line 3.6 for the determinant, equation (10) of zhou-chowdhury-2024 for the private one: the
    noise of prefix n in a tree of single uses, begun anew after every synchronisation.
    """
    plan, opened = plan_of(e), e.environment.open(e.seed, 0, e.silos)
    source, d = SeededNoise(e.seed, 0), e.facts.dimension
    private = bool(e.curves[0].keys["private"])
    found: list[tuple[int, int, int]] = []
    for part in plan.parts:
        made, g = part.plan, part.estimator
        rounds = [t for t in range(1, e.horizon + 1) if t % plan.gamma == g]
        last, due = 0, None
        reports: list[int] = []
        s = made.regularizer[0] * np.eye(d)
        for use, t in enumerate(rounds, start=1):
            fires = False
            for i in part.clique if due is None else ():
                own = np.zeros((d, d))
                for r in rounds[last:use]:
                    x = opened.round(i, r)[0][outcome.actions[i, r - 1]].astype(float)
                    x = x / max(1.0, float(np.linalg.norm(x)))
                    own += np.outer(x, x)
                noise = np.zeros((d, d))
                if made.trigger.kind == PRIVATE_DETERMINANT:
                    for node in oracle.tree_nodes(use - last):
                        z = source.trigger(i, rounds[last + node - 1], d)
                        noise += symmetric(z, *made.trigger.std)
                value, bar = growth(made, s, own, noise), made.trigger.threshold / (use - last)
                assert abs(value - bar) > 1e-9 * max(1.0, abs(bar))
                if value > bar:
                    found.append((t, i, g))
                    fires = True
            if fires:
                due = use + 1
            elif due == use:
                reports.append(t)
                last, due = use, None
                total = total_by_definition(
                    e, part, outcome, [(r, i, g) for r in reports for i in part.clique],
                    node_noise(e) if private else None,
                )  # fmt: skip
                s = symmetric(total[d:], 1.0, 1.0)
                s = s + made.regularizer[made.entry(len(reports))] * np.eye(d)
    return sorted(found)


@pytest.mark.parametrize(
    "name",
    [
        "every use, quiet",
        "one of everything, quiet",
        *[name for name in grid() if name.endswith("quiet") or name.endswith("quiet, eager")],
    ],
)
def test_the_private_rule_by_definition(name):
    e, outcome = case_of(name)
    assert outcome.events["indefinite"] == 0
    heard = by_hand(e)
    np.testing.assert_array_equal(heard.actions, outcome.actions)
    assert sorted(heard.requests) == fired_by_definition(e, outcome)
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * heard.bytes_by)
    for part, found in zip(plan_of(e).parts, outcome.total, strict=True):
        wanted = total_by_definition(e, part, outcome, heard.broadcasts, node_noise(e))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8 * max(1.0, np.abs(found).max()))


# -- Against the centralised system ----------------------------------------------------------------


def centralised(e: Experiment, **changes: Any) -> Plan:
    """The plan of feducb for the same keys."""
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
def test_on_the_complete_graph_a_fixed_schedule_is_the_centralised_one(case):
    e = experiment(**case, graph="complete", gamma=1)
    opened = e.environment.open(e.seed, 0, e.silos)
    (central,) = compiled.run(opened, [centralised(e)], e.checkpoints, record=True)
    spread = fast(e)
    assert central.synchronisations[-1] >= 4
    for field in ("group_regret", "synchronisations", "events", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(spread, field), getattr(central, field))
    np.testing.assert_array_equal(spread.total, central.total[None])
    # A report crosses M (M - 1) edges, where a server is sent M and sends M.
    np.testing.assert_array_equal(spread.bits_up, 3 * central.bits_up)


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
def test_on_the_complete_graph_a_trigger_is_the_centralised_one_a_round_late(case):
    e = experiment(**case, graph="complete", gamma=1)
    (part,) = plan_of(e).parts
    plan = centralised(e)
    late = dataclasses.replace(plan, trigger=dataclasses.replace(plan.trigger, delay=1))
    # The same numbers, but for that round.
    assert late.trigger == part.plan.trigger
    np.testing.assert_array_equal(late.regularizer, part.plan.regularizer)
    np.testing.assert_array_equal(late.radius.offset, part.plan.radius.offset)
    assert late.radius.base == part.plan.radius.base and late.noise_std == part.plan.noise_std
    opened = e.environment.open(e.seed, 0, e.silos)
    (same_day, a_day_late) = (
        compiled.run(opened, [p], e.checkpoints, record=True)[0] for p in (plan, late)
    )
    spread = fast(e)
    for field in ("group_regret", "synchronisations", "events", "actions", "rewards"):
        np.testing.assert_array_equal(getattr(spread, field), getattr(a_day_late, field))
    np.testing.assert_array_equal(spread.total, a_day_late.total[None])
    # Until the centralised one first synchronises, and in the round after it, nothing differs but
    # what is known in that round.
    first = int(np.flatnonzero(same_day.synchronisations)[0])
    assert np.flatnonzero(spread.synchronisations)[0] == first + 1
    np.testing.assert_array_equal(spread.actions[:, : first + 1], same_day.actions[:, : first + 1])
    # And always a round later than the rule says on its own history.
    fired = sorted({t for t, _, _ in fired_by_definition(e, spread)})
    assert fired[0] == first + 1
    met = (np.flatnonzero(np.diff(spread.synchronisations, prepend=0)) + 1).tolist()
    assert [t + 1 for t in fired if t < e.horizon] == met and len(met) >= 2


def test_log_t_on_the_complete_graph_has_half_the_threshold():
    e = experiment(**OPEN, graph="complete", gamma=1)
    ours = plan_of(e).parts[0].plan.trigger.threshold
    assert centralised(e).trigger.threshold == pytest.approx(2.0 * ours, rel=1e-12)


@pytest.mark.parametrize("rule", ["open", "open, eager", "log-T"])
def test_each_part_is_a_federation_of_its_own(recorded, rule):
    """The part's plan, played by its silos alone on its rounds alone: names and turns are no more
    than names and turns."""
    contexts, rewards = recorded
    for gamma in (1, 2):
        e = experiment(
            Replay.from_arrays(contexts, rewards, sampling="in-order"), silos=3, horizon=23,
            **RULES[rule], graph="line", gamma=gamma,
        )  # fmt: skip
        outcome, regret = fast(e), 0.0
        for part, total in zip(plan_of(e).parts, outcome.total, strict=True):
            rounds = [t - 1 for t in range(1, 24) if t % gamma == part.estimator]
            rows = np.ix_(part.clique, rounds)
            alone = Replay.from_arrays(contexts[rows], rewards[rows], sampling="in-order")
            opened = alone.open(99, 0, len(part.clique))
            at = np.arange(1, len(rounds) + 1)
            (played,) = compiled.run(opened, [part.plan], at, record=True)
            np.testing.assert_array_equal(played.actions, outcome.actions[rows])
            np.testing.assert_array_equal(played.total, total)
            regret += played.group_regret[-1]
        assert regret == pytest.approx(outcome.group_regret[-1], rel=1e-12)


# -- What it guarantees ----------------------------------------------------------------------------


def system(silos: int = 4, horizon: int = 40, dimension: int = 2, **keys: Any) -> Any:
    return fastfed.make_system(
        "feducb-decentralized", silos=silos, horizon=horizon, dimension=dimension, **keys
    )


def linear(**keys: Any) -> Any:
    """The system where the environment is known to be what the proofs ask for."""
    return experiment(**{"horizon": 20, "dimension": 2, **keys}).curves[0].system


BUDGET = {"epsilon": 1.0, "delta": 1e-5}
STEADY = {**BUDGET, **FIXED, "batch_size": 2}


@pytest.mark.parametrize("graph", [{}, {"graph": "line", "gamma": 1}, {"graph": "ring"}])
@pytest.mark.parametrize("radius", ["proposition-2", "direct"])
@pytest.mark.parametrize("schedule", [{**FIXED, "batch_size": 2}, QUIET], ids=["fixed", "quiet"])
def test_schedules_that_read_no_raw_data_are_proven_at_the_budget(graph, radius, schedule):
    stated = system(**BUDGET, **graph, **schedule, radius=radius).certificate
    assert stated.status == "proven" and stated.unit == "user"
    assert stated.exact.epsilon == pytest.approx(1.0, rel=1e-6) and stated.exact.epsilon <= 1.0
    assert (stated.claimed.epsilon, stated.exact.delta) == (1.0, 1e-5)
    assert any("handed on" in c and "read" in c for c in stated.caveats)


def test_the_determinant_schedule_has_no_epsilon():
    stated = system(**BUDGET, graph="line").certificate
    assert stated.status == "none" and stated.exact is None and stated.claimed is not None
    assert any("no finite epsilon" in c for c in stated.caveats)
    assert any("handed on 3 hops" in c for c in stated.caveats)
    # What would hold if the rounds were fixed is said to assume that.
    assert {a.status for a in stated.also} == {"conditional"}
    for side in stated.also:
        assert [c.text for c in side.conditions if not c.holds] == [
            "synchronisation rounds do not depend on data"
        ]
    # In every round is no schedule that data decide.
    assert system(**BUDGET, communication="MT").certificate.status == "proven"


def test_eager_play_is_proven_for_realised_pairs_only():
    stated = system(**STEADY, **EAGER, graph="line").certificate
    assert stated.status == "unproven" and stated.exact is None
    assert [(a.unit, a.status) for a in stated.also] == [("item", "proven")]
    one = system(**BUDGET, **FIXED, **EAGER, batch_size=1, graph="line").certificate
    assert one.status == "proven"


def test_without_privacy_nothing_is_said_of_readers():
    stated = system(private=False, graph="line").certificate
    assert stated.status == "none" and stated.claimed is None
    assert not any("read" in c for c in stated.caveats)


def test_one_trees_noise_pays_for_all_estimators():
    """A user takes part in one of them: the noise is that of T / gamma rounds."""
    for gamma, rounds in ((1, 40), (2, 20), (3, 14), (40, 1)):
        spread = system(**BUDGET, **FIXED, batch_size=1, gamma=gamma)
        central = fastfed.make_system(
            "feducb", silos=4, horizon=rounds, dimension=2, **BUDGET, **FIXED, batch_size=1
        )
        assert spread.plan.parts[0].plan.noise_std == central.plan.noise_std
    stds = {part.plan.noise_std for part in system(**STEADY, gamma=3).plan.parts}
    assert len(stds) == 1


def test_all_readers_are_named_truly():
    """One clique has no others, and a message that goes no further than its neighbours one hop."""
    for keys, others in (
        ({}, False),
        ({"graph": "ring"}, False),
        ({"graph": "line", "gamma": 1}, True),
    ):
        said = " ".join(system(**STEADY, **keys).certificate.caveats)
        assert ("silos of other cliques" in said) is others
        assert "1 hops" not in said


@pytest.mark.parametrize("schedule", [{**FIXED, "batch_size": 2}, {}])
def test_the_certificate_names_the_algorithm_that_was_played(schedule):
    assert "Algorithm 3" in system(**BUDGET, **schedule).certificate.source
    assert "Algorithm 1" not in system(**BUDGET, **schedule).certificate.source


SHARES = [
    ({"graph": "complete"}, 1),
    ({"graph": "complete", "gamma": 3}, 3),
    ({"graph": "line", "gamma": 1}, 2),
    ({"graph": "line", "gamma": 2}, 4),
    ({"graph": "star", "gamma": 1}, 3),
]


@pytest.mark.parametrize(("keys", "parts"), SHARES)
@pytest.mark.parametrize("lazy", [True, False])
def test_the_direct_radius_shares_the_failure_probability_over_parts(keys, parts, lazy):
    made = linear(**STEADY, **DIRECT, **keys, lazy=lazy)
    assert len(made.plan.parts) == parts and made.theory.proven
    for part in made.plan.parts:
        # Half of it for the rewards; eager play takes the bound once for each silo's own order.
        orders = 1 if lazy else len(part.clique)
        base = 2.0 * np.log(orders * parts / (0.01 / 2.0))
        assert part.plan.radius.base == pytest.approx(base, rel=1e-12)


@pytest.mark.parametrize(("keys", "parts"), SHARES)
@pytest.mark.parametrize("lazy", [True, False])
def test_proposition_2_is_taken_once_for_every_order_of_events(keys, parts, lazy):
    """Every clique has an order of its own in every estimator, and eager silos one each: a bound
    that is said to be proven holds for all of them together."""
    made = linear(**STEADY, **keys, lazy=lazy)
    assert len(made.plan.parts) == parts
    orders = parts if lazy else 4 * made.plan.gamma
    wanted, proven = 2.0 * np.log(2.0 * orders / 0.01), made.theory.proven
    for base in [part.plan.radius.base for part in made.plan.parts]:
        assert base >= wanted * (1.0 - 1e-12) or not proven


# -- Keys ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "says"),
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
def test_bad_keys_are_one_clear_sentence(keys, says):
    with pytest.raises(InputError, match=says) as error:
        experiment(**{**OPEN, **keys})
    # One line, and it ends with the curve's label, but where there is no curve to speak of.
    assert "\n" not in str(error.value)
    assert str(error.value).endswith('(curve "peers")') or keys == {"graph": []}


def test_errors_about_batches_say_what_is_so():
    """There is no "theorem" here, and a batch is counted in uses of an estimator."""
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


def curves_of(graph: str) -> list[tuple[str, int, int]]:
    e = experiment_from_spec(tomllib.loads(SPEC.format(graph)))
    plans = [curve.system.plan for curve in e.curves]
    return [
        (curve.label, len(plan.graph.edges), plan.gamma)
        for curve, plan in zip(e.curves, plans, strict=True)
        if isinstance(plan, PeerPlan)
    ]


def test_lists_of_graphs_and_lists_of_edges():
    assert curves_of('"ring"') == [("x", 4, 2)]
    assert curves_of('["ring", "line"]') == [("x, graph = ring", 4, 2), ("x, graph = line", 3, 3)]
    assert curves_of("[[0, 1], [1, 2], [2, 3]]") == [("x", 3, 3)]
    edges = "[[3, 0], [0, 2], [1, 0]]"
    assert curves_of(f'["complete", {edges}]') == [
        ("x, graph = complete", 6, 1),
        ("x, graph = [[3, 0], [0, 2], [1, 0]]", 3, 2),
    ]
    # In any order and direction, and twice, it is the same graph.
    one = experiment(**OPEN, graph=[[0, 1], [1, 2], [2, 3]])
    other = experiment(**OPEN, graph=[[3, 2], [1, 0], [2, 1], [1, 2]])
    assert plan_of(one).graph == plan_of(other).graph == Graph.named("line", 4)


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
def test_edges_from_python(graph):
    results = fastfed.simulate(
        {"kind": "sphere", "dimension": 2, "actions": 3}, "feducb-decentralized",
        horizon=6, silos=4, private=False, communication=0.5, graph=graph,
    )  # fmt: skip
    assert len(results.curves) == 1


def test_other_keys_sweep_as_everywhere():
    e = experiment(**OPEN, graph="line", gamma=[1, 2], communication=[1.0, "log-T"])
    assert [plan.gamma for plan in (c.system.plan for c in e.curves)] == [1, 1, 2, 2]
    assert e.curves[0].label == "peers, gamma = 1, communication = 1.0"
    # A sweep over sizes: the default gamma follows the graph.
    sized = experiment(**OPEN, graph="ring", silos=4)
    wider = make_experiment(
        name="x", environment=Sphere(dimension=3, actions=5), horizon=29, silos=4,
        curves=[{**OPEN, "label": "x", "algorithm": "feducb-decentralized", "graph": "ring",
                 "silos": [4, 8]}],
    )  # fmt: skip
    assert plan_of(sized).gamma == 2
    assert [c.system.plan.gamma for c in wider.curves] == [2, 4]


# -- Measured --------------------------------------------------------------------------------------


class Counting(Network[Message]):
    """Adds up what every hand-on carries, message by message."""

    counted = 0

    def _forward(self, flight, silos):
        type(self).counted += sum(
            flight.message.nbytes * len(self.graph.neighbours[i]) for i in silos
        )
        super()._forward(flight, silos)


@pytest.mark.parametrize("name", ["every use", "further than needed", "direct, quiet, eager"])
def test_bytes_are_those_that_the_network_passed_on(name, monkeypatch):
    """By every checkpoint; ``by_hand`` and the oracle count them once more."""
    e, outcome = case_of(name)
    monkeypatch.setattr(peers, "Network", Counting)
    Counting.counted, passed = 0, []
    played = readable(e, progress=lambda rounds: passed.append(Counting.counted))
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * np.array(passed))
    np.testing.assert_array_equal(outcome.bits_up, 8.0 * by_hand(e).bytes_by)
    same(played, outcome)
    assert outcome.bits_up[-1] > 0


def test_a_message_by_hand():
    """A star with gamma = 2: over an edge to the centre, from there over every one of the four,
    and from its ends, which hear of it last, no further."""
    case = {**SHARP, **FIXED, "batch_size": 1, "graph": "star", "silos": 5, "gamma": 2}
    e = experiment(**case, horizon=3)
    outcome, report = fast(e), 8 * (3 + 6)
    first = 4 + 4 * 1  # the centre to four ends, each end to the centre
    second = 4 * 1 + 4 * 4  # ends hand on the centre's, the centre the ends'
    assert outcome.bits_up.tolist() == [
        8 * report * first,
        8 * report * (2 * first + second),
        8 * report * (3 * first + 2 * second),
    ]


def the_spec() -> dict[str, Any]:
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


def test_results_json_and_page_show_what_was_sent(tmp_path):
    e = experiment_from_spec(the_spec())
    results = fastfed.run(e, tmp_path / "out", threads=2)
    counts = []
    for replicate in range(2):
        opened = e.environment.open(e.seed, replicate, 5)
        for curve in e.curves[:2]:
            counts.append(dispatch.run_steps(opened, curve.system.plan, e.checkpoints))
    for position, label in enumerate(("asking", "steady")):
        found, played = results[label], counts[position::2]
        np.testing.assert_array_equal(found.bits_up_counts, [o.bits_up for o in played])
        np.testing.assert_array_equal(
            found.synchronisation_counts, [o.synchronisations for o in played]
        )
        np.testing.assert_array_equal(found.group_regret, [o.group_regret for o in played])
        listed = json.loads(json.dumps(results.to_builtins()))["curves"][position]
        means = np.mean([o.bits_up for o in played], axis=0) / 8.0
        assert listed["bytes_curve"] == means.tolist() and listed["bits_down"] == 0
        assert listed["bytes_up"] == means[-1] > 0
    assert "theorem-2" in results["asking"].bounds and not results["steady"].bounds
    source = read_source(tmp_path / "out")
    html, text = page(source), as_text(source)
    for label in ("asking", "steady"):
        assert sent(results[label].bytes_sent) in text and sent(results[label].bytes_sent) in html
    assert str(results["steady"].bytes_up) in as_csv(source)
    assert "handed on 2 hops" in html
    # And the spec on the page has the edges as they were given.
    assert tomllib.loads(spec_text(source.identity, 2, {}))["curve"][0]["graph"] == TAIL


def test_a_run_goes_on_where_it_was_stopped(tmp_path):
    e = experiment_from_spec(the_spec())
    fastfed.run(e.with_options(1), tmp_path / "grown")
    grown = fastfed.run(e, tmp_path / "grown")
    straight = fastfed.simulate(
        the_spec()["environment"], curves=the_spec()["curve"], threads=1, driver="step",
        **{k: v for k, v in the_spec().items() if k not in ("environment", "curve")},
    )  # fmt: skip
    for label in ("asking", "steady", "server"):
        np.testing.assert_array_equal(grown[label].group_regret, straight[label].group_regret)
        np.testing.assert_array_equal(grown[label].bits_up_counts, straight[label].bits_up_counts)


def test_the_line_of_theorem_2_is_that_of_its_proof():
    """D of the proof is what line 3.6 divides by 1 + L^2; cliques and gamma are the graph's."""
    assert not experiment(**CASES["two cliques"]).curves[0].system.bounds_at(np.array([1]))
    e = experiment(**{**CASES["two cliques"], **EAGER})
    law, keys = law_of(e), e.curves[0].keys
    found = e.curves[0].system.bounds_at(np.array([1, 19]))["theorem-2"]
    for T, value in zip((1, 19), found, strict=True):
        shape = {"T": T, "d": 3}
        grown = oracle.log_growth(T, 3, 1.0, law.rho_min, law.rho_max, 1)
        bar = oracle.beta_bar(
            sigma=0.5, alpha=keys["failure_probability"], norm=1.0, M=5, L=1.0, kappa=law.kappa,
            rho_min=law.rho_min, rho_max=law.rho_max, **shape,
        )  # fmt: skip
        wanted = oracle.theorem_2_two_terms(
            law.threshold, bar, sizes=[3, 2], gamma=1, grown=grown, **shape
        )
        assert value == pytest.approx(wanted, rel=1e-12)
