"""Batches of any lengths, factors, shuffles without a tree, centred rewards and the sieve.

Both drivers and the parties play the same; the oracle, which builds every sum from its definition,
replays them on the same draws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import problems
import pytest
from oracle import schedules as oracle
from test_drivers import assert_same_bits
from test_oracle_match import oracle_noise

import fastfed
from fastfed._random import SeededNoise
from fastfed.environments import FixedSet, Sphere
from fastfed.protocols.plan import Plan
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.serverless import PeerPlan
from fastfed.simulation import compiled, peers, server
from fastfed.simulation.experiment import make_experiment

SEED = 3


def experiment_of(sizes: dict[str, Any], **keys: Any) -> Any:
    """Return the experiment of a case."""
    table = problems.curve(sizes["protocol"], **problems.curve_keys(sizes), **keys)
    centred = "reward_centre" in table
    sphere = Sphere(sizes["dimension"], sizes["actions"], intercept=3.0 if centred else 1.0)
    return make_experiment(
        name="schedules", environment=sphere, curves=[table], horizon=sizes["horizon"],
        silos=sizes["silos"], seed=SEED, checkpoints=sizes["horizon"],
    )  # fmt: skip


def with_limit(e: Any, limit: float) -> Any:
    """Return the experiment whose first curve knows a larger bound on all mean rewards.

    With the usual bound, all scores of small problems lie above it, and the sieve's slack says
    nothing.
    """
    system = e.curves[0].system
    plan = replace(system.plan, reward_limit=limit)
    curve = replace(e.curves[0], system=replace(system, plan=plan))
    return replace(e, curves=(curve, *e.curves[1:]))


CASES = dict(problems.schedules())
#: The compiled driver draws the noise of all messages at once; one by one they have other bits.
COMPILED = [name for name in CASES if "individual" not in name]


def results_of_both_drivers(e: Any) -> Any:
    """Return the results of both drivers."""
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    if isinstance(plan, PeerPlan):
        return (
            peers.run(opened_environment, plan, e.checkpoints, record=True),
            peers.run_steps(opened_environment, plan, e.checkpoints),
        )
    (fast,) = compiled.run(opened_environment, [plan], e.checkpoints, record=True)
    return fast, server.run_one(opened_environment, plan, e.checkpoints)


@pytest.mark.parametrize(
    "name", problems.ordinary_cases(COMPILED, lambda n: "explicit" not in n or "feducb" in n)
)
def test_the_two_drivers_agree_bit_for_bit(name: str) -> None:
    e = experiment_of(CASES[name])
    fast, readable = results_of_both_drivers(e)
    assert_same_bits(fast, readable)
    plan = e.curves[0].system.plan
    if isinstance(plan, Plan) and plan.batch_size:
        assert fast.synchronisations[-1] == plan.releases
        release_of_round = [plan.due(t) for t in range(1, plan.horizon + 1)]
        np.testing.assert_array_equal(fast.synchronisations, release_of_round)
        assert [plan.bits_up_of(k) for k in release_of_round] == list(fast.bits_up)


@pytest.mark.parametrize("rounds_per_call", [1, 5])
@pytest.mark.parametrize(
    "name", ["growing, silo-ldp, factorised, lazy", "growing, shuffle-vector, flat, lazy",
             "explicit, linucb-jdp, factorised, lazy", "sieve wide, silo-ldp, growing"],
)  # fmt: skip
def test_threads_and_calls_change_nothing(name: str, rounds_per_call: int) -> None:
    e = experiment_of(CASES[name])
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    plans = [e.curves[0].system.plan]
    (one_thread,) = compiled.run(opened_environment, plans, e.checkpoints, record=True)
    (two_threads,) = compiled.run(
        opened_environment,
        plans,
        e.checkpoints,
        record=True,
        threads=2,
        rounds_per_call=rounds_per_call,
    )
    assert_same_bits(one_thread, two_threads)


def test_curves_of_different_schedules_simulated_together_equal_each_alone() -> None:
    """The compiled driver simulates all curves in one call and stops at every curve's releases."""
    keys = {"epsilon": 20.0, "delta": 0.01}
    private = {"algorithm": "private-fedlinucb", **keys}
    curves = [
        {"algorithm": "fedlinucb", "batch_size": 7},
        {"algorithm": "fedlinucb", "batch_size": "growing", "batch_ratio": 1.5},
        {**private, "release_rounds": [2, 3, 31], "release": "factorised"},
        {**private, "release_rounds": [43], "protocol": "central"},
        {**private, "batch_size": "growing", "protocol": "shuffle-vector", "release": "flat"},
        {**private, "batch_size": "growing", "bonus": 0.2, "protocol": "central"},
    ]
    curves = [{"label": str(i), **table} for i, table in enumerate(curves)]
    world = {"kind": "sphere", "dimension": 3, "actions": 6}
    sizes = {"horizon": 43, "silos": 3, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(world, curves=curves, **sizes)
    step = fastfed.simulate(world, curves=curves, driver="step", **sizes)
    for curve in curves:
        alone = fastfed.simulate(world, curves=[curve], **sizes).curves[0]
        np.testing.assert_array_equal(alone.group_regret, together[curve["label"]].group_regret)
        np.testing.assert_array_equal(alone.group_regret, step[curve["label"]].group_regret)


def test_batch_size_and_the_same_release_rounds_give_equal_runs() -> None:
    """Compare `batch_size` with the same release rounds as a list, up to rounding."""
    for protocol in ("none", "silo-ldp", "silo-ldp-prefix", "central", "shuffle-amplified"):
        base = {"silos": 2, "horizon": 29, "dimension": 3, "actions": 5, "protocol": protocol}
        if protocol != "none":  # the default of rounds that are spelled out has less noise
            base["release"] = "tree"
        runs = []
        for keys in ({"batch_size": 4}, {"release_rounds": list(range(4, 29, 4))}):
            e = experiment_of({**base, **keys})
            outcome, _ = results_of_both_drivers(e)
            runs.append((outcome, e.curves[0].system.plan))
        (by_size, plan), (by_rounds, plan_by_rounds) = runs
        np.testing.assert_array_equal(by_size.actions, by_rounds.actions)
        np.testing.assert_array_equal(by_size.total, by_rounds.total)
        np.testing.assert_array_equal(by_size.bits_up, by_rounds.bits_up)
        assert plan.noise_std == plan_by_rounds.noise_std and plan_by_rounds.batch_size == 4
        np.testing.assert_array_equal(plan.radius.error_bound, plan_by_rounds.radius.error_bound)


# ---- the oracle ----------------------------------------------------------------------------------


def direct_of(plan: Plan) -> oracle.Direct:
    """Return the direct radius of a plan, for the oracle."""
    r = plan.radius
    return oracle.Direct(
        full=lambda k: plan.regularizer[plan.entry(k)],
        floor=lambda k: r.floor[plan.entry(k)],
        error=lambda k: r.error_bound[plan.entry(k)],
        anchor=r.anchor, base=r.base, scale=r.scale, tau=r.tau, multiplier=r.multiplier,
    )  # fmt: skip


def sieve_of(plan: Plan) -> oracle.Sieve | None:
    """Return the sieve of a plan, for the oracle; None if the largest bound is chosen."""
    if plan.ranking == 1.0:
        return None
    return oracle.Sieve(plan.ranking, plan.reward_limit, plan.sieve_growth)


def ends_of(plan: Plan) -> list[int]:
    """Return the release rounds by the definition of the keys: as given, or multiples of B."""
    if plan.release_rounds:
        return list(plan.release_rounds)
    return list(range(plan.batch_size, plan.horizon + 1, plan.batch_size))


def noise_of(plan: Plan, seed: int) -> dict[str, Any]:
    """Return the oracle's arguments for the draws of a plan."""
    protocol, source = plan.protocol, SeededNoise(seed, 0)
    if protocol.noise_by == "none":
        return {}
    if plan.encoding is not None:
        ends, size, e = [0, *ends_of(plan)], plan.statistic_size, plan.encoding

        def encoding_index(k: int) -> int:
            """Return the number of the encoding of release k."""
            return k - 1 if plan.release_rounds else 0

        def centred(i: int, k: int) -> np.ndarray:
            """Return the centred binomial noise of release k at silo i."""
            trials = (ends[k] - ends[k - 1]) * e.noise_bits[encoding_index(k)]
            return source.binomials(i, k, size, trials)

        return {"bits": oracle.Bits(
            steps=lambda k: e.steps(encoding_index(k)),
            uniforms=lambda i, t: source.random_u32(i, t, size) * 2.0**-32,
            centred=centred,
        )}  # fmt: skip
    draw = oracle_noise(plan, seed)
    givers = [plan.silos] if protocol.noise_by == "server" else list(range(plan.silos))
    if plan.release == "factorised":
        assert plan.factor is not None
        matrix = plan.factor.matrix
        noise = lambda k: oracle.factorised(matrix, givers, draw, k)  # noqa: E731
    elif protocol.senders == "users":
        lengths = np.diff([0, *ends_of(plan)])
        scales = np.sqrt(lengths / lengths.max())
        noise = lambda k: oracle.batches(scales, givers, draw, k)  # noqa: E731
    else:
        assert plan.release == "tree"
        noise = lambda k: oracle.tree(givers, draw, k)  # noqa: E731
    public = plan.clip is not None and plan.clip.constant > 0.0
    return {"noise": noise, "public": public}


def oracle_replay(e: Any, outcome: Any, **changes: Any) -> oracle.Replay:
    """Replay a recorded run by the oracle, with some of its arguments changed."""
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    clip = plan.clip
    arguments = {
        "contexts": lambda t, i: opened_environment.round(i, t)[0].astype(float),
        "means": lambda t, i: opened_environment.round(i, t)[1],
        "actions": outcome.actions,
        "rewards": outcome.rewards,
        "ends": ends_of(plan),
        "lazy": plan.lazy,
        "direct": direct_of(plan),
        "feature": clip.feature,
        "constant": clip.constant,
        "centre": clip.centre,
        "sieve": sieve_of(plan),
        **noise_of(plan, e.seed),
    }
    return oracle.replay(**{**arguments, **changes})


def checked(
    sizes: dict[str, Any], limit: float | None = None, **keys: Any
) -> tuple[Any, Any, oracle.Replay]:
    """Run a case, check that a replay agrees, and return (experiment, outcome, replay)."""
    e = experiment_of(sizes, **keys)
    if limit is not None:
        e = with_limit(e, limit)
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.run(opened_environment, [plan], e.checkpoints, record=True)
    assert outcome.events["indefinite"] == 0
    replayed = oracle_replay(e, outcome)
    # Closer to the floor, rounding may choose a different lambda; choose another seed then.
    assert replayed.nearest_floor > 1e-12
    assert replayed.worst_gap < 1e-8
    np.testing.assert_allclose(outcome.group_regret, replayed.regret, rtol=1e-8, atol=1e-8)
    if replayed.totals:
        u, w = replayed.totals[-1]
        d, scale = len(u), max(1.0, float(np.abs(w).max()))
        np.testing.assert_allclose(outcome.total[:d], u, atol=1e-8 * scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], atol=1e-8 * scale)
    assert len(replayed.totals) == plan.releases
    return e, outcome, replayed


#: What the oracle replays: a server, a direct radius, noise by tree, factor, batch or bits.
REPLAYED = [
    name for name in COMPILED
    if not any(word in name for word in ("toeplitz", "honaker", "lemma", "feducb", "unclipped"))
    and not ("shuffle-vector" in name and "flat" not in name)
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        REPLAYED, lambda n: not n.startswith("growing") or "eager" in n or "sieve" in n
    ),
)
def test_every_case_agrees_with_the_replay_by_definition(name: str) -> None:
    checked(CASES[name])
    checked(CASES[name], 10.0)


def largest_difference(faults: dict[str, Any], names: list[str]) -> float:
    """Return how much a replay with a planted fault differs, at most, over these cases."""
    worst = 0.0
    for name in names:
        e, outcome, replayed = checked(CASES[name])
        altered = oracle_replay(e, outcome, **faults)
        worst = max(worst, altered.worst_gap)
        for sums, altered_sums in zip(replayed.totals, altered.totals, strict=False):
            worst = max(worst, float(np.abs(sums[1] - altered_sums[1]).max() > 1e-6))
            worst = max(worst, float(np.abs(sums[0] - altered_sums[0]).max() > 1e-6))
    return worst


@pytest.mark.parametrize("lazy", ["lazy", "eager"])
def test_the_replay_detects_a_wrong_schedule_or_centre(lazy: str) -> None:
    names = [f"growing, silo-ldp, factorised, {lazy}"]
    assert largest_difference({"ends": [1, 2, 3]}, names) > 1e-6
    centred = ["centred, silo-ldp, tree"]
    assert largest_difference({"centre": 0.0}, centred) > 1e-6
    assert largest_difference({"constant": 0.0}, centred) > 1e-6
    assert largest_difference({"public": False}, centred) > 1e-6


def test_noise_of_a_second_release_by_hand() -> None:
    """Compute without the oracle what the total of a factorised release holds beside the data."""
    e = experiment_of({**CASES["explicit, central, factorised, lazy"], "horizon": 9,
                       "release_rounds": [1, 6]})  # fmt: skip
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.run(opened_environment, [plan], e.checkpoints, record=True)
    x = np.array(
        [
            opened_environment.round(i, t + 1)[0][outcome.actions[i, t]]
            for t in range(6)
            for i in range(2)
        ],
        dtype=float,
    )
    noise, b = oracle_noise(plan, e.seed), plan.factor.matrix
    added = b[1, 0] * noise(2, 1)[1] + b[1, 1] * noise(2, 2)[1]
    # Records have norm 1 but for clipping to it.
    d = plan.dimension
    np.testing.assert_allclose(outcome.total[d:], (x.T @ x + added)[np.tril_indices(d)], atol=1e-5)
    assert abs(b[1, 0]) > 0.1 and np.abs(added).max() > 0.1


# ---- parties -------------------------------------------------------------------------------------


PARTIES = [
    name for name in CASES
    if ("feducb-decentralized" not in name and "lazy" in name) or "centred" in name
]  # fmt: skip


def deploy(plan: Plan, environment: Any, noise: Any) -> tuple[np.ndarray, Any]:
    """Run the parties step by step; return actions (M, T) and the last broadcast."""
    silos = [fastfed.parties.Silo(plan, i, noise) for i in range(plan.silos)]
    server, shuffler = fastfed.parties.Server(plan, noise), fastfed.parties.Shuffler(plan, noise)
    actions = np.zeros((plan.silos, plan.horizon), np.int64)
    messages: list[Any] = []
    broadcast = None
    for t in range(1, plan.horizon + 1):
        for i, silo in enumerate(silos):
            features, means = environment.round(i, t)
            a = actions[i, t - 1] = silo.select(features)
            y = environment.reward(i, t, means[a])
            if silo.acts_only:
                if t <= plan.end(plan.releases):
                    messages.append(fastfed.parties.User(plan, t, noise).message(features[a], y))
                silo.served()
            else:
                silo.observe(y)
        if silos[0].due:
            sent = messages or [silo.report() for silo in silos]
            broadcast = server.combine(
                shuffler.shuffle(sent) if plan.protocol.shuffled else sent[::-1]
            )
            for silo in silos:
                silo.receive(broadcast)
            messages = []
    assert server.release == plan.releases
    return actions, broadcast


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        PARTIES, lambda n: n.startswith(("explicit", "centred", "one", "to ", "sieve"))
    ),
)
def test_parties_with_seeded_noise_equal_both_drivers(name: str) -> None:
    e = experiment_of(CASES[name])
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    played = server.run_one(opened_environment, plan, e.checkpoints)
    actions, broadcast = deploy(plan, opened_environment, SeededNoise(SEED))
    np.testing.assert_array_equal(actions, played.actions)
    if broadcast is not None:
        np.testing.assert_array_equal(broadcast.values, played.total)


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        PARTIES, lambda n: n.startswith(("explicit", "centred")) and "sdp-vec, ind" not in n
    ),
)
def test_parties_with_the_noise_of_the_operating_system(name: str) -> None:
    """Check that the last release is the data plus new noise of the plan's size.

    Within nine standard deviations: wrong less than once in 10^16.
    """
    e = experiment_of(CASES[name])
    plan = e.curves[0].system.plan
    opened_environment = e.environment.open(e.seed, 0, e.silos)
    collected = []
    for _ in range(2):
        actions, broadcast = deploy(plan, opened_environment, None)
        if broadcast is None:
            return
        d, plain = plan.dimension, np.zeros(plan.statistic_size)
        for t in range(1, plan.end(plan.releases) + 1):
            for i in range(plan.silos):
                features, means = opened_environment.round(i, t)
                x = np.array(features[actions[i, t - 1]], dtype=float)
                y = opened_environment.reward(i, t, means[actions[i, t - 1]])
                if plan.clip is not None:
                    y, _, _ = plan.clip.apply(x, y)
                plain += np.append(x * y, np.outer(x, x)[np.tril_indices(d)])
        collected.append(broadcast.values - plain)
    std = spread_of(plan)
    assert (np.abs(collected) <= 9.0 * std + 1e-5).all()
    noisy = std > 0.0
    equal_noise = collected[0][noisy] == collected[1][noisy]
    if plan.encoding:
        # Counts of bits may be equal in some entries, but not in all.
        assert not noisy.any() or not equal_noise.all()
    else:
        assert not equal_noise.any()
    assert noisy[:-1].all() or plan.protocol.noise_by == "none"
    assert noisy[-1] != (plan.public_constant or plan.protocol.noise_by == "none")


def spread_of(plan: Plan) -> np.ndarray:
    """Return upper bounds on the standard deviations of the last release's noise, (s,)."""
    d, k, k_range = plan.dimension, plan.releases, range(1, plan.releases + 1)
    size = plan.statistic_size
    if plan.protocol.noise_by == "none":
        return np.zeros(size)
    if plan.encoding is not None:
        squares = np.zeros(size)
        for j in k_range:
            e = plan.encoding_at(j)
            noise_bits = plan.silos * plan.points_of(j) * plan.encoding.noise_bits[e]
            users = plan.silos * plan.points_of(j)
            squares += (0.1875 * noise_bits + users / 4.0) / plan.encoding.each(e, d) ** 2
        return np.sqrt(squares)
    bias, off_diagonal, diagonal = plan.noise_std.parts
    rows, columns = np.tril_indices(d)
    std = np.append(np.full(d, bias), np.where(rows == columns, diagonal, off_diagonal))
    noises = plan.silos if plan.protocol.noise_by == "silos" else 1
    if plan.factor is not None:
        factor = float((plan.factor.matrix[k - 1] ** 2).sum())
    elif plan.protocol.noise_by == "users":
        factor = plan.end(k) / plan.batch_size
    else:
        factor = k
    std = std * np.sqrt(noises * factor)
    if plan.public_constant:
        std[-1] = 0.0
    return std


# ---- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("first", [1, 3, 40])
@pytest.mark.parametrize("ratio", [1.0, 1.1, 2.0, 1e6])
def test_growing_batches(horizon: int, first: int, ratio: float) -> None:
    schedule = Schedule.growing(horizon, first, ratio)
    if first > horizon:
        assert schedule.releases == 0 and list(schedule.ends) == []
        return
    lengths = list(schedule.lengths)
    assert lengths[0] == first and sum(lengths) == schedule.ends[-1] <= horizon
    exact = float(first)
    for n in lengths:
        assert n == round(exact)
        exact *= ratio
    # The next would end beyond the horizon.
    assert schedule.ends[-1] + round(exact) > horizon
    assert schedule.batch_size == max(lengths)
    plan = fastfed.make_system(
        "fedlinucb", silos=2, horizon=horizon, dimension=2, batch_size="growing",
        batch_first=first, batch_ratio=ratio,
    ).plan  # fmt: skip
    assert plan.release_rounds == tuple(schedule.ends) and plan.releases == schedule.releases
    assert [plan.end(k) for k in range(schedule.releases + 1)] == [0, *schedule.ends]
    assert all(
        plan.due(t) == sum(n <= t for n in schedule.ends) for t in range(min(horizon, 300) + 1)
    )


@pytest.mark.parametrize("rounds", [(1, 2), (1, 2, 3, 4, 5, 6)])
def test_rounds_that_stop_before_the_horizon_leave_raw_data(rounds: tuple[int, ...]) -> None:
    """Use batches of one round and an unsent rest, from which eager silos learn."""
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=6, dimension=2, release_rounds=rounds,
        epsilon=1.0, delta=1e-3, lazy=False,
    )  # fmt: skip
    everything = len(rounds) == 6
    condition = next(c for c in system.certificate.conditions if c.text.startswith("actions dep"))
    assert condition.holds == everything
    lazy = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=6, dimension=2, release_rounds=rounds,
        epsilon=1.0, delta=1e-3,
    )  # fmt: skip
    assert (lazy.plan.radius.base == system.plan.radius.base) == everything
    public = fastfed.make_system("linucb", horizon=6, dimension=2, release_rounds=rounds)
    assert (public.plan.batch_size == 0) == everything


def test_all_rounds_of_a_batch_choose_the_same_action_of_a_fixed_set() -> None:
    table = problems.curve("linucb", batch_size="growing", batch_ratio=1.4)
    e = make_experiment(
        name="x", environment=FixedSet(dimension=3, actions=7), curves=[table], horizon=300,
        silos=1, seed=1, checkpoints=5,
    )  # fmt: skip
    fast, readable = results_of_both_drivers(e)
    assert_same_bits(fast, readable)
    ends = e.curves[0].system.plan.release_rounds
    for start, stop in zip((0, *ends), (*ends, 300), strict=True):
        assert len(set(fast.actions[0, start:stop])) <= 1
    assert len(set(fast.actions[0])) > 2
