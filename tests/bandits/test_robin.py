"""ROBIN at work: both drivers, the paper's pseudocode on the same draws, a deployment by hand."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import replace as changed
from functools import cache
from typing import Any

import numpy as np
import pytest
from oracle import huang_2023 as oracle
from problems import ordinary_cases
from test_drivers import same

import fastfed
from fastfed import InputError
from fastfed._kernels import linalg
from fastfed._random import LAPLACE, RANGE, ROTATION, SeededNoise
from fastfed.environments import FixedSet, HardInstance, NoDiversity, RewardDistribution, Sphere
from fastfed.privacy.certificate import SIMULATION
from fastfed.protocols.protocol import Broadcast, Report
from fastfed.protocols.serverless import LocalEstimate, Model, PhasePlan
from fastfed.simulation import dispatch, phases
from fastfed.simulation.experiment import Experiment, make_experiment

SEED = 11
BETA = 0.01
BUDGET = {"epsilon": 300.0, "delta": 0.01, "diversity": 0.2}
ENVIRONMENTS: dict[str, Any] = {
    "sphere": Sphere(dimension=3, actions=6),
    "hard instance": HardInstance(dimension=6),
    "no diversity": NoDiversity(),
    "fixed set": FixedSet(dimension=5, actions=9),
}
# Rounds and keys. Phases end with rounds 2, 6, 14, 30 and 62.
PROBLEMS: dict[str, dict[str, Any]] = {
    "ends with a phase": {"horizon": 30},
    "ends inside a phase": {"horizon": 21},
    "one round after a phase": {"horizon": 31},
    "one round before its end": {"horizon": 29},
    "ends with the initial phases": {"horizon": 6},
    "one greedy round": {"horizon": 7},
    "one round": {"horizon": 1, "initial_phases": 1},
    "U = 1": {"horizon": 31, "initial_phases": 1},
    "U = 3": {"horizon": 31, "initial_phases": 3},
    "U beyond T": {"horizon": 31, "initial_phases": 9},
    "printed budget": {"horizon": 31, "calibration": "printed"},
    "little noise": {"horizon": 31, "epsilon": 1e6},
    "radius as printed": {"horizon": 31, "concentration_multiplier": 1.0},
    "many bins": {"horizon": 31, "concentration_multiplier": 1e-6},
    "not private": {"horizon": 31, "private": False},
    "memory, sharing": {"horizon": 31, "memory": True},
    "memory, alone": {"horizon": 31, "memory": True, "epsilon": 1.0},
    "clipped": {"horizon": 31, "clip": True},
    "one silo": {"horizon": 31, "silos": 1},
    "another radius": {"horizon": 31, "radius": "lemma-c4", "radius_multiplier": 0.2},
}
# Every problem on the sphere, and two of them in every environment.
EVERYWHERE = pytest.mark.parametrize(
    ("name", "environment"),
    ordinary_cases(
        [(name, environment) for name in PROBLEMS for environment in ENVIRONMENTS],
        lambda name, environment: environment == "sphere" or name in ("U = 3", "many bins"),
    ),
)


def experiment(environment: Any, **given: Any) -> Experiment:
    """One robin curve, a checkpoint in every round; four silos unless ``given`` says otherwise."""
    make = made_once if isinstance(environment, Hashable) else made_once.__wrapped__
    return make(environment, tuple(sorted(given.items())))


@cache
def made_once(environment: Any, given: tuple[tuple[str, Any], ...]) -> Experiment:
    keys = {"initial_phases": 2, "concentration_multiplier": 3e-4, "failure_probability": BETA}
    keys |= dict(given)
    sizes = {"horizon": keys.pop("horizon"), "silos": keys.pop("silos", 4)}
    if keys.get("private", True):
        keys = BUDGET | keys
    table = {"label": "robin", "algorithm": "robin", **keys}
    return make_experiment(
        name="robin", environment=environment, curves=[table], seed=SEED,
        checkpoints=sizes["horizon"], **sizes,
    )  # fmt: skip


def plan_of(e: Experiment) -> PhasePlan:
    plan = e.curves[0].system.plan
    assert isinstance(plan, PhasePlan)
    return plan


def fast(e: Experiment, **keys: Any) -> Any:
    opened = e.environment.open(e.seed, 0, e.silos)
    return phases.run(opened, plan_of(e), e.checkpoints, record=True, **keys)


def readable(e: Experiment, **keys: Any) -> Any:
    opened = e.environment.open(e.seed, 0, e.silos)
    return phases.run_steps(opened, plan_of(e), e.checkpoints, **keys)


def local(e: Experiment) -> Any:
    """What the same keys play under local-linucb."""
    keys = e.curves[0].keys
    shared = ("clip", "radius", "radius_multiplier", "failure_probability", "regularizer")
    table = {"label": "local", "algorithm": "local-linucb", **{key: keys[key] for key in shared}}
    other = make_experiment(
        name="local", environment=e.environment, curves=[table], seed=e.seed,
        checkpoints=e.horizon, horizon=e.horizon, silos=e.silos,
    )  # fmt: skip
    opened = e.environment.open(e.seed, 0, e.silos)
    plan = other.curves[0].system.plan
    (played,) = dispatch.run(opened, [plan], other.checkpoints, record=True)
    return played


# -- Both drivers ----------------------------------------------------------------------------------


@EVERYWHERE
def test_the_two_drivers_agree_bit_for_bit(name, environment):
    e = experiment(ENVIRONMENTS[environment], **PROBLEMS[name])
    plan, played = plan_of(e), fast(e)
    same(played, readable(e))
    # What was sent by when, counted from the schedule alone.
    shares = name not in ("U beyond T", "memory, alone")
    asked = PROBLEMS[name].get("initial_phases", 2)
    released = oracle.releasing_phases(e.horizon, asked) if shares else []
    ends = np.array([oracle.last_round(p) for p in released])
    counts = [np.sum(ends <= t) for t in range(1, e.horizon + 1)]
    np.testing.assert_array_equal(played.synchronisations, counts)
    bits = 64 * e.facts.dimension * e.silos
    np.testing.assert_array_equal(played.bits_up, np.multiply(counts, bits))
    np.testing.assert_array_equal(played.bits_down, played.bits_up)
    assert plan.releasing == tuple(released)
    assert played.total.shape == (e.facts.dimension,)
    assert played.total.any() == bool(released)
    # Nothing but LinUCB of one's own before the first model.
    alone, first = local(e), min([e.horizon, *ends])
    np.testing.assert_array_equal(played.actions[:, :first], alone.actions[:, :first])
    np.testing.assert_array_equal(played.rewards[:, :first], alone.rewards[:, :first])


def test_the_problems_are_what_they_are_called():
    bins, moved = set(), 0
    for name, keys in PROBLEMS.items():
        e = experiment(ENVIRONMENTS["sphere"], **keys)
        played, alone = fast(e), local(e)
        bins |= {(name, mean.bins) for mean in plan_of(e).means}
        moved += not np.array_equal(played.actions, alone.actions)
    assert {b for n, b in bins if n == "radius as printed"} == {1}
    assert min(b for n, b in bins if n == "many bins") > 100
    assert len({b for n, b in bins if n == "one round after a phase"}) > 1
    # All but the four where no greedy round is played.
    assert moved == len(PROBLEMS) - 4


@pytest.mark.parametrize("keys", [{}, {"private": False}, {"epsilon": 1e6}])
@pytest.mark.parametrize("dimension", [1, 2, 7, 8, 9])
def test_they_agree_in_every_dimension(dimension, keys):
    """Vectors are padded to a power of two."""
    e = experiment(Sphere(dimension=dimension, actions=5), horizon=31, **keys)
    assert all(m.padded == oracle.padded(dimension) for m in plan_of(e).means)
    same(fast(e), readable(e))


@pytest.mark.parametrize("clip", [True, False])
def test_rewards_are_clipped_where_asked(clip):
    law = RewardDistribution("gaussian", 0.5)
    e = experiment(Sphere(dimension=3, actions=5, reward=law), horizon=31, clip=clip)
    played = fast(e)
    outside = np.sum((played.rewards < 0.0) | (played.rewards > 1.0))
    assert outside > 10
    # In greedy phases too.
    assert np.sum(played.rewards[:, 6:] > 1.0) > 0
    assert played.events["clipped_rewards"] == (outside if clip else 0)
    same(played, readable(e))


def test_features_are_clipped_where_asked():
    def drawn(seed: int, replicate: int, silo: int, round: int) -> Any:
        draw = np.random.default_rng((seed, silo, round))
        return 3.0 + draw.normal(size=(4, 3)), draw.uniform(size=4)

    environment = fastfed.environments.Python(function=drawn, dimension=3, actions=4)
    clipped = []
    for clip in (True, False):
        e = experiment(environment, horizon=24, silos=3, clip=clip)
        played = fast(e)
        same(played, readable(e))
        clipped.append(played.events["clipped_features"])
    assert clipped == [3 * 24, 0]


@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_they_agree_on_a_pool(recorded, sampling):
    environment = fastfed.environments.Replay.from_arrays(*recorded, sampling=sampling)
    e = experiment(environment, horizon=24, silos=3)
    same(fast(e), readable(e))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize(
    ("threads", "rounds_per_call"), [(1, 1), (1, 7), (2, None), (2, 7), (3, 5)]
)
def test_threads_and_calls_change_nothing(environment, threads, rounds_per_call):
    for name in ("one round after a phase", "U = 1", "not private", "U beyond T"):
        e = experiment(ENVIRONMENTS[environment], **PROBLEMS[name])
        same(fast(e), fast(e, threads=threads, rounds_per_call=rounds_per_call))


@pytest.mark.parametrize("environment", ["sphere", "fixed set"])
@pytest.mark.parametrize("last", [1, 5, 6, 7, 14, 20, 30, 31])
def test_a_run_that_stops_early_is_the_beginning_of_the_whole(environment, last):
    e = experiment(ENVIRONMENTS[environment], horizon=31)
    whole = fast(e)
    for played in (fast(e, last=last), readable(e, last=last), fast(e, last=last, threads=2)):
        np.testing.assert_array_equal(played.actions[:, :last], whole.actions[:, :last])
        np.testing.assert_array_equal(played.rewards[:, :last], whole.rewards[:, :last])
        assert not played.actions[:, last:].any() and not played.rewards[:, last:].any()
        for counted in ("group_regret", "synchronisations", "bits_up", "bits_down"):
            at = getattr(played, counted), getattr(whole, counted)
            np.testing.assert_array_equal(at[0][:last], at[1][:last])
    assert np.array_equal(fast(e, last=last).total, readable(e, last=last).total)


def test_progress_hears_of_every_round_once():
    e = experiment(ENVIRONMENTS["sphere"], horizon=31)
    for last, play in ((31, fast), (31, readable), (9, fast), (9, readable)):
        heard: list[int] = []
        play(e, last=last, progress=heard.append)
        assert sum(heard) == last
    opened = e.environment.open(e.seed, 0, e.silos)
    heard = []
    dispatch.run(opened, [plan_of(e)] * 2, e.checkpoints, progress=heard.append)
    assert sum(heard) == 2 * 31


def test_few_checkpoints_see_what_was_released_by_then():
    e = experiment(ENVIRONMENTS["sphere"], horizon=31)
    opened, whole = e.environment.open(e.seed, 0, e.silos), fast(e)
    for rounds in ([31], [14, 31], [5, 6, 13, 30, 31]):
        at = np.array(rounds)
        for play in (phases.run, phases.run_steps):
            played = play(opened, plan_of(e), at)
            for counted in ("group_regret", "synchronisations", "bits_up", "bits_down"):
                np.testing.assert_array_equal(
                    getattr(played, counted), getattr(whole, counted)[at - 1]
                )
        assert not dispatch.together(plan_of(e))


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"radius": "lemma-c2", "radius_multiplier": 0.3, "failure_probability": 0.2},
        {"radius": "lemma-c4"},
        {"radius": "published-code"},
        {"regularizer": 3.0},
    ],
)
def test_where_no_model_is_made_it_is_local_linucb(environment, clip, keys):
    """With initial phases beyond T, and as Proposition C.3 has them, which lie there."""
    given = {"horizon": 45, "clip": clip, **keys}
    for initial in ({"initial_phases": 6}, {"initial_phases": "printed", "margin": 7.0}):
        e = experiment(ENVIRONMENTS[environment], **given, **initial)
        ours, theirs = fast(e), local(e)
        for name in (
            *("actions", "rewards", "group_regret", "synchronisations", "bits_up", "bits_down"),
            "events",
        ):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert not ours.bits_up.any()
    assert not isinstance(e.environment, Sphere) or len(np.unique(ours.actions)) > 1


@pytest.mark.parametrize("driver", [fast, readable])
def test_a_phase_on_a_fixed_set_is_one_choice(driver):
    """All silos play the best action of the model, all phase long, and the next model's then."""
    e = experiment(ENVIRONMENTS["fixed set"], horizon=500, epsilon=30.0, silos=3)
    played = driver(e)
    features, _ = e.environment.open(e.seed, 0, e.silos).round(0, 1)
    chosen = []
    for phase in range(3, 9):
        first, last = oracle.last_round(phase - 1), min(oracle.last_round(phase), 500)
        rounds = played.actions[:, first:last]
        assert (rounds == rounds[0, 0]).all()
        chosen.append(rounds[0, 0])
        model = fast(e, last=first).total
        assert np.argmax(features @ model) == chosen[-1]
    assert len(set(chosen)) > 2


def test_on_one_coordinate_the_model_is_half_empty():
    """Silos that see one coordinate send the mean of what they saw of it, and 0 of the other."""
    e = experiment(NoDiversity(), horizon=31, private=False, silos=3)
    played = fast(e)
    x = np.array([1.0, -1.0])[played.actions[:, 14:30]]
    sent = np.mean(x * played.rewards[:, 14:30], axis=1)
    np.testing.assert_allclose(played.total, [sent[0] / 3, (sent[1] + sent[2]) / 3], rtol=1e-12)


# -- The paper's pseudocode ------------------------------------------------------------------------


def mechanism(e: Experiment, **wrong: Any) -> oracle.Mechanism | None:
    """R_0 of the paper with the product's draws; all but an exact eps' is the oracle's own."""
    plan, keys = plan_of(e), e.curves[0].keys
    if not keys["private"]:
        return None
    M, d, P = plan.silos, plan.dimension, oracle.number_of_phases(e.horizon)
    d2, beta, source = oracle.padded(d), keys["failure_probability"], SeededNoise(e.seed, 0)
    c1 = oracle.concentration_c1(M, P, d, beta, keys["diversity"])

    def drawn(purpose: int):
        return lambda p: source.uniforms(purpose, p - plan.initial + 1, d2)

    if keys["calibration"] == "printed":
        budget = oracle.printed_budget(keys["epsilon"], keys["delta"], P, d2)
        each = budget.epsilon_coordinate
    else:
        each = plan.means[0].epsilon_coordinate if plan.means else 1.0
    made = oracle.Mechanism(
        epsilon_coordinate=each,
        radius=lambda p: oracle.rotated_radius(
            oracle.concentration_radius(c1, p, keys["concentration_multiplier"]),
            d2, M, oracle.call_beta(beta, P),
        ),
        bound=np.sqrt(d2),
        signs=lambda p: np.where(drawn(ROTATION)(p) < 0.5, -1.0, 1.0),
        laplace=lambda p: oracle.laplace_from_uniform(drawn(LAPLACE)(p)),
        uniforms=drawn(RANGE),
    )  # fmt: skip
    return changed(made, **wrong)


def follow(e: Experiment, played: Any, **other: Any) -> oracle.Replay:
    plan, clip = plan_of(e), plan_of(e).local.clip
    opened, r = e.environment.open(e.seed, 0, e.silos), plan.local.radius
    # The paper's lambda is 1; of one silo, so that a round is a row.
    assert set(plan.local.regularizer) == {1.0} and plan.local.rows_per_round == 1

    def radius(t: int, i: int, regular: np.ndarray) -> float:
        inside = 1.0 + t / (plan.dimension * r.log_lambda[0])
        width = r.scale * np.sqrt(r.base + plan.dimension * np.log(inside))
        return r.multiplier * (r.offset[0] + width)

    def contexts(t: int, i: int) -> np.ndarray:
        x = opened.round(i, t)[0].astype(float)
        # A norm of float32 may be a rounding above 1.
        return x if clip is None else x / np.maximum(1.0, np.linalg.norm(x, axis=1))[:, None]

    rewards = played.rewards if clip is None else np.clip(played.rewards, clip.low, clip.high)
    given: dict[str, Any] = {
        "initial_phases": plan.initial if plan.releasing else None,
        "mechanism": mechanism(e),
    }
    return oracle.replay(
        contexts=contexts,
        means=lambda t, i: opened.round(i, t)[1],
        actions=played.actions,
        rewards=rewards,
        radius=radius,
        **(given | other),
    )


def in_the_paper(environment: str, keys: dict[str, Any]) -> Experiment:
    """A radius that is fixed in advance, as the oracle's LinUCB has it."""
    more = {"radius": "lemma-c2", "radius_multiplier": 0.5, **keys}
    return experiment(ENVIRONMENTS[environment], **more)


@EVERYWHERE
def test_it_plays_the_papers_pseudocode(name, environment):
    e = in_the_paper(environment, PROBLEMS[name])
    played = fast(e)
    truth = follow(e, played)
    # Actions are chosen by features that are not clipped.
    assert truth.worst_gap < (1e-9 if plan_of(e).local.clip is None else 1e-6)
    # Nearer than this, rounding may choose another rank: the problem needs another seed.
    assert truth.nearest_rank > 2.0
    np.testing.assert_allclose(played.group_regret, truth.group_regret, rtol=1e-9, atol=1e-9)
    assert truth.released == list(plan_of(e).releasing)
    assert 8 * truth.bytes_up == played.bits_up[-1]
    assert 8 * truth.bytes_down == played.bits_down[-1]
    for phase, model in zip(truth.released, truth.globals, strict=True):
        seen = fast(e, last=oracle.last_round(phase)).total
        np.testing.assert_allclose(seen, model, rtol=1e-9, atol=1e-9 * np.abs(model).max())
        np.testing.assert_array_equal(seen, readable(e, last=oracle.last_round(phase)).total)
    assert truth.released == [] or np.array_equal(seen, played.total)


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("dimension", [1, 2, 7, 9])
def test_dimensions_in_the_paper(dimension, private):
    more = {"radius": "lemma-c2", "private": private}
    e = experiment(Sphere(dimension=dimension, actions=5), horizon=31, **more)
    played = fast(e)
    truth = follow(e, played)
    assert truth.worst_gap < 1e-9 and truth.nearest_rank > 2.0
    np.testing.assert_allclose(played.total, truth.globals[-1], rtol=1e-9, atol=1e-9)


def test_a_wrong_replay_is_noticed():
    e = in_the_paper("sphere", {"horizon": 31})
    played = fast(e)
    models = np.array(follow(e, played).globals)
    plain = mechanism(e)
    assert plain is not None and plain.uniforms is not None
    uniforms = plain.uniforms
    others: list[dict[str, Any]] = [
        {"first_estimate": "phase"},
        {"initial_phases": 1},
        {"mechanism": None},
        {"mechanism": mechanism(e, epsilon_coordinate=1.001 * plain.epsilon_coordinate)},
        {"mechanism": mechanism(e, radius=lambda p: 1.001 * plain.radius(p))},
        {"mechanism": mechanism(e, signs=lambda p: -plain.signs(p))},
        {"mechanism": mechanism(e, uniforms=lambda p: uniforms(p)[::-1])},
        {"mechanism": mechanism(e, laplace=lambda p: plain.laplace(p)[::-1])},
    ]  # fmt: skip
    for other in others:
        wrong = np.array(follow(e, played, **other).globals)
        assert wrong.shape != models.shape or np.abs(wrong - models).max() > 1e-6
    for i, t in ((1, 2), (0, 8), (3, 30)):
        spoilt = played.actions.copy()
        spoilt[i, t] = (spoilt[i, t] + 1) % 6
        assert follow(e, changed(played, actions=spoilt)).worst_gap > 1e-6


def test_estimates_are_least_squares_of_the_lowest_norm():
    """Of every rank up to d, and of nothing."""
    draw = np.random.default_rng(20)
    for d in (1, 2, 3, 6):
        rows, expected = [], []
        for rank in range(d + 1):
            x = draw.normal(size=(40, rank)) @ draw.normal(size=(rank, d))
            y = draw.normal(size=40)
            estimate, nearest = oracle.least_squares(x, y)
            assert nearest > 3.0
            expected.append(estimate)
            rows.append(np.concatenate([x.T @ y, (x.T @ x)[np.tril_indices(d)]]))
            # Fitted on what was seen, and nothing beside it.
            np.testing.assert_allclose(x @ estimate, x @ np.linalg.pinv(x) @ y, atol=1e-9)
        found = linalg.least_squares(np.array(rows), d)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-9)
        assert not found[0].any()


# -- Deployed --------------------------------------------------------------------------------------


def deployed(**given: Any) -> Any:
    """A system of make_system: two silos, two dimensions, releases after phases 1, 2 and 3."""
    keys = {"silos": 2, "horizon": 17, "dimension": 2, "initial_phases": 1}
    keys |= {"concentration_multiplier": 0.01} | given
    if keys.get("private", True):
        keys = BUDGET | keys
    return fastfed.make_system("robin", **keys)


def rounds(clients: list[Any], count: int) -> None:
    """Rounds of made-up features and rewards."""
    for _ in range(count):
        for client in clients:
            t = 10 * client.index + client.round
            a = client.select(np.array([[np.cos(t), np.sin(t)], [0.6, 0.6]]))
            client.observe((t + a) % 3 / 2)


def estimates_of(phase: int, values: Any = ((0.3, 0.1), (0.2, 0.4))) -> list[LocalEstimate]:
    return [LocalEstimate(phase, np.array(v, float), i) for i, v in enumerate(values)]


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("name", ["one round after a phase", "not private", "clipped", "one silo"])
def test_clients_with_seeded_noise_are_the_step_driver(name, environment):
    e = in_the_paper(environment, PROBLEMS[name])
    plan, played, truth = plan_of(e), fast(e), follow(e, fast(e))
    opened = e.environment.open(e.seed, 0, e.silos)
    clients = [fastfed.parties.Client(plan, i) for i in range(e.silos)]
    server, models, sent = fastfed.parties.Averager(plan, SeededNoise(SEED)), [], []
    for t in range(1, e.horizon + 1):
        for i, client in enumerate(clients):
            features, means = opened.round(i, t)
            a = client.select(features)
            assert a == played.actions[i, t - 1]
            client.observe(opened.reward(i, t, means[a]))
            assert client.greedy == (t > 6)
        if clients[0].due:
            assert all(client.due for client in clients)
            made = [client.estimate() for client in clients]
            assert all(client.reported and not client.due for client in clients)
            sent.append(np.array([estimate.values for estimate in made]))
            # The order of arrival is the network's.
            model = server.combine(made[::-1])
            assert model.phase == plan.phase_of(t) + 1 == made[0].phase + 1
            for client in clients:
                client.adopt(model)
                np.testing.assert_array_equal(client.theta, model.values)
                assert not client.reported
            models.append(model.values)
        assert server.releases == played.synchronisations[t - 1]
    np.testing.assert_array_equal(models[-1], played.total)
    for ours, theirs in zip(sent, truth.estimates, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9)
    assert sum(client.clipped_rewards for client in clients) == played.events["clipped_rewards"]
    assert made[0].nbytes * 8 * e.silos * len(sent) == played.bits_up[-1]


@pytest.mark.parametrize("keys", [{}, {"calibration": "printed"}, {"silos": 1}])
def test_noise_of_the_operating_system(keys):
    """From end to end: a model is the mean of what was sent and noise of the plan's size.

    The range is the whole ball, so that nothing is cut. Laplace noise exceeds 40 of its scales
    once in 10^17.
    """
    system = deployed(concentration_multiplier=1.0, **keys)
    plan, noises = system.plan, []
    assert [m.bins for m in plan.means] == [1, 1, 1]
    for _ in range(2):
        server = fastfed.parties.Averager(plan)
        clients = [fastfed.parties.Client(plan, i) for i in range(plan.silos)]
        found = []
        for count in (2, 4, 8, 3):
            rounds(clients, count)
            if not clients[0].due:
                break
            sent = [client.estimate() for client in clients]
            assert max(np.linalg.norm(s.values) for s in sent) < 2.0
            model = server.combine(sent)
            found.append(model.values - np.mean([s.values for s in sent], axis=0))
            for client in clients:
                client.adopt(model)
        assert clients[0].round == 17 and server.releases == len(found) == 3
        noises.append(np.array(found))
    scale = plan.means[0].noise_stds["mean"] / np.sqrt(2.0)
    assert (np.abs(noises) <= 40.0 * np.sqrt(2.0) * scale).all()
    assert (np.abs(noises).max(axis=2) > 1e-6 * scale).all()
    assert (noises[0] != noises[1]).all()


def test_noise_has_the_plans_variance():
    """1 500 releases about nothing, by seed; of seeds wrong once in 10^4.

    A squared Laplace variable has mean 2 and variance 20, in units of the scale.
    """
    plan = deployed(concentration_multiplier=1.0).plan
    plan = changed(plan, means=(plan.means[0],) * len(plan.means))
    drawn = []
    for seed in range(1500):
        server = fastfed.parties.Averager(plan, SeededNoise(seed))
        drawn.append(server.combine(estimates_of(1, np.zeros((2, 2)))).values)
    squares = np.square(np.array(drawn) / plan.means[0].noise_stds["mean"])
    # Both coordinates are sums and differences of the same two draws: half of the 3 000 count.
    assert abs(squares.mean() - 1.0) < 4.0 * np.sqrt(5.0 / 1500)
    assert abs(np.corrcoef(np.array(drawn).T)[0, 1]) < 0.2


def test_certificate_of_the_deployment():
    for system in (deployed(), deployed(calibration="printed"), deployed(initial_phases=9)):
        ours, simulated = system.deployed_certificate, system.certificate
        assert SIMULATION in simulated.caveats and SIMULATION not in ours.caveats
        assert not any("simulation" in caveat for caveat in ours.caveats)
        assert (ours.status, ours.exact) == (simulated.status, simulated.exact)
        assert any(caveat.startswith("deployment: ") for caveat in ours.caveats)


# -- Misuse is one clear sentence ------------------------------------------------------------------


def test_a_client_asks_for_what_is_due():
    clients = [fastfed.parties.Client(deployed().plan, i) for i in range(2)]
    client = clients[0]
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 0"):
        client.estimate()
    with pytest.raises(InputError, match="silo 0 waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))
    rounds(clients, 1)
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 1"):
        client.estimate()
    rounds(clients, 1)
    assert client.due and not client.greedy
    with pytest.raises(InputError, match="before round 3"):
        client.select(np.eye(2))
    with pytest.raises(InputError, match="waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))
    first, learned = client.estimate(), client.theta
    assert first.phase == 1 and first.silo == 0 and not client.due
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 2"):
        client.estimate()
    with pytest.raises(InputError, match="before round 3"):
        client.select(np.eye(2))
    for wrong, message in (
        (Model(1, np.zeros(2)), "silo 0 waits for the model of phase 2, got the model of phase 1"),
        (Model(3, np.zeros(2)), "silo 0 waits for the model of phase 2, got the model of phase 3"),
        (Model(2, np.zeros(3)), "model must hold 2 finite numbers"),
        (Model(2, np.zeros((1, 2))), "model must hold 2 finite numbers"),
        (Model(2, np.array([0.0, np.nan])), "model must hold 2 finite numbers"),
        (Model(2, np.array([np.inf, 0.0])), "model must hold 2 finite numbers"),
        (Broadcast(1, 2, np.zeros(5)), "model must be a Model, got Broadcast"),
        (first, "model must be a Model, got LocalEstimate"),
        (None, "model must be a Model, got NoneType"),
        (np.zeros(2), "model must be a Model, got ndarray"),
    ):
        with pytest.raises(InputError, match=message) as error:
            client.adopt(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert client.reported and not client.greedy
        np.testing.assert_array_equal(client.theta, learned)
    client.adopt(Model(2, np.array([0.0, 1.0])))
    assert client.greedy and not client.reported
    assert client.select(np.eye(2)) == 1
    with pytest.raises(InputError, match="waits for no model, got the model of phase 2"):
        client.adopt(Model(2, np.zeros(2)))


def test_a_client_sends_estimates_and_takes_models():
    client = fastfed.parties.Client(deployed().plan)
    with pytest.raises(InputError, match=r"sends estimates: use estimate\(\)"):
        client.report()
    with pytest.raises(InputError, match=r"adopts models: use adopt\(model\)"):
        client.receive(Broadcast(1, 2, np.zeros(5)))
    with pytest.raises(InputError, match="ask is for plans with a trigger"):
        client.ask()
    with pytest.raises(InputError, match="served is for plans whose users send"):
        client.served()
    with pytest.raises(InputError, match="observe needs a select before it"):
        client.observe(1.0)
    client.select(np.eye(2))
    with pytest.raises(InputError, match="reward must be finite, got nan"):
        client.observe(np.nan)
    assert client.round == 0
    with pytest.raises(InputError, match="index must be an integer >= 0 and <= 1, got 2"):
        fastfed.parties.Client(deployed().plan, 2)


def test_the_plan_ends():
    plan = deployed(horizon=14).plan
    clients, server = (
        [fastfed.parties.Client(plan, i) for i in range(2)],
        fastfed.parties.Averager(plan),
    )
    for count in (2, 4):
        rounds(clients, count)
        model = server.combine([client.estimate() for client in clients])
        for client in clients:
            client.adopt(model)
    rounds(clients, 8)
    # Phase 3 ends with T: nobody would play its model.
    assert not clients[0].due
    with pytest.raises(InputError, match="silo 0 has no estimate due after round 14"):
        clients[0].estimate()
    with pytest.raises(InputError, match="the plan ends after round 14"):
        clients[0].select(np.eye(2))
    with pytest.raises(InputError, match="the plan has 2 releases, got estimates for one more"):
        server.combine(estimates_of(3))
    assert server.releases == 2


@pytest.mark.parametrize("private", [True, False])
def test_the_server_takes_one_estimate_of_every_silo(private):
    plan = deployed(private=private).plan
    server, good = fastfed.parties.Averager(plan), estimates_of(1)
    wide = LocalEstimate(1, np.zeros(3), 1)
    for wrong, message in (
        ([], r"one of each of the 2 silos, got silos \[\]"),
        (good[:1], r"one of each of the 2 silos, got silos \[0\]"),
        ([good[1], good[1]], r"one of each of the 2 silos, got silos \[1, 1\]"),
        ([*good, good[0]], r"one of each of the 2 silos, got silos \[0, 0, 1\]"),
        ([good[0], LocalEstimate(1, np.zeros(2), 2)], r"got silos \[0, 2\]"),
        ([good[0], LocalEstimate(1, np.zeros(2), -1)], r"got silos \[-1, 0\]"),
        (estimates_of(2), "estimate of silo 0 must be of phase 1, got phase 2"),
        ([good[0], estimates_of(0)[1]], "estimate of silo 1 must be of phase 1, got phase 0"),
        ([good[0], wide], r"estimate of silo 1 must have shape \(2,\), got \(3,\)"),
        ([good[0], LocalEstimate(1, np.zeros((1, 2)), 1)], r"shape \(2,\), got \(1, 2\)"),
        ([good[0], LocalEstimate(1, np.float64(0), 1)], r"shape \(2,\), got \(\)"),
    ):
        with pytest.raises(InputError, match=message) as error:
            server.combine(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
        assert server.releases == 0
    # No draw of the first release was used: the source would refuse it now.
    assert server.combine(good).phase == 2
    with pytest.raises(InputError, match="must be of phase 2, got phase 1"):
        server.combine(good)
    assert server.releases == 1


@pytest.mark.parametrize("private", [True, False])
def test_messages_of_another_kind_are_refused(private):
    server, good = fastfed.parties.Averager(deployed(private=private).plan), estimates_of(1)
    for wrong in (
        [Broadcast(1, 2, np.zeros(5))] * 2,
        [Report(1, 2, np.zeros(5), i) for i in range(2)],
        [good[0], Report(1, 2, np.zeros(5), 1)],
        [good[0], Model(1, np.zeros(2))],
        [good[0], None],
        [np.zeros(2), np.zeros(2)],
    ):
        with pytest.raises(InputError, match="estimate") as error:
            server.combine(wrong)  # type: ignore[arg-type]
        assert type(wrong[-1]).__name__ in str(error.value) and "\n" not in str(error.value)
    assert server.releases == 0


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    "values", [(np.nan, 1.0), (0.5, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)]
)
def test_what_is_not_finite_counts_as_nothing_and_raises_nothing(values, private):
    plan, models = deployed(private=private).plan, []
    for one in (values, (0.0, 0.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server = fastfed.parties.Averager(plan, SeededNoise(2))
            models.append(server.combine(estimates_of(1, (one, (0.2, 0.4)))).values)
            everybody = server.combine(estimates_of(2, (one, one))).values
        assert np.isfinite(everybody).all() and everybody.any() == private
        assert server.releases == 2
    np.testing.assert_array_equal(*models)
    assert private or np.array_equal(models[0], [0.1, 0.2])


@pytest.mark.parametrize("huge", [1e300, 1.7e308])
def test_huge_estimates_are_cut(huge):
    """One of them moves the model no more than any other could, and it overflows nowhere."""
    plan = deployed(silos=3, concentration_multiplier=1.0).plan
    for signs in ((1, 1), (1, -1)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            server = fastfed.parties.Averager(plan, SeededNoise(2))
            far = server.combine(
                estimates_of(1, (np.multiply(signs, huge), (0.2, 0.4), (0.2, 0.4)))
            ).values
        other = fastfed.parties.Averager(plan, SeededNoise(2))
        near = other.combine(estimates_of(1, ((0, 0), (0.2, 0.4), (0.2, 0.4)))).values
        # Each of two rotated coordinates is within 2 r' = 2 sqrt 2 of the middle.
        assert np.linalg.norm(far - near) <= 2 * np.sqrt(2) * np.sqrt(2) / 3 * (1 + 1e-12)


def test_messages_do_not_change_once_made():
    given = np.array([0.3, 0.1])
    sent, model = LocalEstimate(1, given, 0), Model(2, given)
    given[0] = 9.0
    assert sent.values[0] == model.values[0] == 0.3
    for message in (sent, model):
        with pytest.raises(ValueError, match="read-only"):
            message.values[0] = 1.0


class Failing(SeededNoise):
    """A source that gives every draw at the second time of asking."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked: set[tuple[int, int]] = set()

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        if (purpose, release) not in self.asked:
            self.asked.add((purpose, release))
            raise OSError("no entropy")
        return super().uniforms(purpose, release, count)


def test_a_source_that_fails_once_changes_nothing():
    plan, models = deployed().plan, []
    for noise in (SeededNoise(4), Failing(4)):
        server = fastfed.parties.Averager(plan, noise)
        for phase in (1, 2, 3):
            for _ in range(4):
                try:
                    models.append(server.combine(estimates_of(phase)).values)
                    break
                except OSError:
                    assert server.releases == phase - 1
    np.testing.assert_array_equal(models[:3], models[3:])


def test_one_source_of_noise_serves_one_server():
    noise, plan = fastfed.parties.SystemNoise(), deployed().plan
    fastfed.parties.Averager(plan, noise).combine(estimates_of(1))
    other = fastfed.parties.Averager(plan, noise)
    with pytest.raises(InputError, match="drawn already; use one SystemNoise for each system"):
        other.combine(estimates_of(1))
    assert other.releases == 0


def test_plans_are_for_those_who_can_play_them():
    system = deployed()
    for made in (
        fastfed.parties.Silo,
        fastfed.parties.Server,
        fastfed.parties.Shuffler,
        lambda p: fastfed.parties.User(p, 1),
    ):
        with pytest.raises(
            InputError, match=r"got PhasePlan: it is in phases, for Client\(plan, index\)"
        ):
            made(system.plan)
    alone = fastfed.make_system("local-linucb", horizon=9, dimension=2)
    for made in (fastfed.parties.Client, fastfed.parties.Averager):
        for wrong, name in ((alone.plan, "Plan"), (system, "System"), (None, "NoneType")):
            with pytest.raises(InputError, match=f"plan must be a PhasePlan, .*got {name}"):
                made(wrong)


def test_a_plan_that_was_taken_apart_releases_nothing():
    """Means that do not fit the protocol would leave a model without noise."""
    plan = deployed().plan
    alone = deployed(initial_phases=99).plan
    fewer = changed(plan, means=plan.means[:-1])
    for broken in (changed(plan, means=()), fewer, changed(alone, initial=1)):
        for make in (fastfed.parties.Averager, fastfed.parties.Client):
            with pytest.raises(InputError, match="private means"):
                make(broken)
