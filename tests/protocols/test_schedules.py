"""Tests of schedules: batches of any lengths, factorised releases, shuffles, centred rewards,
allowances.

Both drivers and the parties give the same results. The oracle computes every sum from its
definition and replays the runs on the same draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import problems
import pytest
from oracle import schedules as oracle
from test_drivers import same
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


def experiment_of(sizes: dict[str, Any], **extra_keys: Any) -> Any:
    """Return an experiment with one curve from a problem (see problems.py)."""
    curve = problems.curve(sizes["protocol"], **problems.keys_of(sizes), **extra_keys)
    centred = "reward_centre" in curve
    sphere = Sphere(sizes["dimension"], sizes["actions"], intercept=3.0 if centred else 1.0)
    return make_experiment(
        name="schedules", environment=sphere, curves=[curve], horizon=sizes["horizon"],
        silos=sizes["silos"], seed=SEED, checkpoints=sizes["horizon"],
    )  # fmt: skip


CASES = dict(problems.schedules())
#: The compiled driver draws the noise of all messages of a batch together; individual messages have
#: different bits.
COMPILED = [name for name in CASES if "individual" not in name]


def run_both(e: Any) -> Any:
    """Return the outcomes of the compiled driver and of the step driver."""
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    if isinstance(plan, PeerPlan):
        return (
            peers.run(environment, plan, e.checkpoints, record=True),
            peers.run_steps(environment, plan, e.checkpoints),
        )
    (compiled_outcome,) = compiled.run(environment, [plan], e.checkpoints, record=True)
    return compiled_outcome, server.run_one(environment, plan, e.checkpoints)


@pytest.mark.parametrize(
    "name", problems.ordinary_cases(COMPILED, lambda n: "explicit" not in n or "feducb" in n)
)
def test_both_drivers_agree_bit_for_bit(name: str) -> None:
    e = experiment_of(CASES[name])
    compiled_outcome, step_outcome = run_both(e)
    same(compiled_outcome, step_outcome)
    plan = e.curves[0].system.plan
    if isinstance(plan, Plan) and plan.batch_size:
        assert compiled_outcome.synchronisations[-1] == plan.releases
        releases_by_round = [plan.due(t) for t in range(1, plan.horizon + 1)]
        np.testing.assert_array_equal(compiled_outcome.synchronisations, releases_by_round)
        assert [plan.bits_up_of(k) for k in releases_by_round] == list(compiled_outcome.bits_up)


@pytest.mark.parametrize("rounds_per_call", [1, 5])
@pytest.mark.parametrize(
    "name", ["growing, silo-ldp, factorised, lazy", "growing, shuffle-vector, flat, lazy",
             "explicit, linucb-jdp, factorised, lazy", "ledger, silo-ldp, growing, 0.3"],
)  # fmt: skip
def test_results_do_not_depend_on_threads_or_call_lengths(name: str, rounds_per_call: int) -> None:
    e = experiment_of(CASES[name])
    environment = e.environment.open(e.seed, 0, e.silos)
    plans = [e.curves[0].system.plan]
    (outcome,) = compiled.run(environment, plans, e.checkpoints, record=True)
    (threaded_outcome,) = compiled.run(
        environment, plans, e.checkpoints, record=True, threads=2, rounds_per_call=rounds_per_call
    )
    same(outcome, threaded_outcome)


def test_curves_with_different_schedules_can_be_simulated_together() -> None:
    """Check that each call of the compiled driver ends at the next release of any curve."""
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
    curves = [{"label": str(i), **keys_} for i, keys_ in enumerate(curves)]
    environment = {"kind": "sphere", "dimension": 3, "actions": 6}
    sizes = {"horizon": 43, "silos": 3, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(environment, curves=curves, **sizes)
    step_results = fastfed.simulate(environment, curves=curves, driver="step", **sizes)
    for curve in curves:
        alone = fastfed.simulate(environment, curves=[curve], **sizes).curves[0]
        np.testing.assert_array_equal(alone.group_regret, together[curve["label"]].group_regret)
        np.testing.assert_array_equal(alone.group_regret, step_results[curve["label"]].group_regret)


def test_equal_batches_by_size_and_by_rounds_give_equal_runs() -> None:
    """Compare ``batch_size`` with the same schedule given as ``release_rounds``."""
    for protocol in ("none", "silo-ldp", "silo-ldp-prefix", "central", "shuffle-amplified"):
        sizes = {"silos": 2, "horizon": 29, "dimension": 3, "actions": 5, "protocol": protocol}
        if protocol != "none":  # the default release for release_rounds has less noise
            sizes["release"] = "tree"
        runs = []
        for keys in ({"batch_size": 4}, {"release_rounds": list(range(4, 29, 4))}):
            e = experiment_of({**sizes, **keys})
            outcome, _ = run_both(e)
            runs.append((outcome, e.curves[0].system.plan))
        (by_size, plan), (by_rounds, plan_by_rounds) = runs
        np.testing.assert_array_equal(by_size.actions, by_rounds.actions)
        np.testing.assert_array_equal(by_size.total, by_rounds.total)
        np.testing.assert_array_equal(by_size.bits_up, by_rounds.bits_up)
        assert plan.noise_std == plan_by_rounds.noise_std and plan_by_rounds.batch_size == 4
        np.testing.assert_array_equal(plan.radius.error_bound, plan_by_rounds.radius.error_bound)


# ---- the oracle ----------------------------------------------------------------------------------


def direct_radius(plan: Plan) -> oracle.Direct:
    """Return the plan's direct radius in the oracle's form."""
    radius = plan.radius
    return oracle.Direct(
        full=lambda k: plan.regularizer[plan.entry(k)],
        floor=lambda k: radius.floor[plan.entry(k)],
        error=lambda k: radius.error_bound[plan.entry(k)],
        anchor=radius.anchor, base=radius.base, scale=radius.scale, tau=radius.tau,
        multiplier=radius.multiplier,
    )  # fmt: skip


def release_rounds(plan: Plan) -> list[int]:
    """Return the release rounds from the keys: as given, or multiples of B."""
    if plan.release_rounds:
        return list(plan.release_rounds)
    return list(range(plan.batch_size, plan.horizon + 1, plan.batch_size))


def oracle_noise_arguments(plan: Plan, seed: int) -> dict[str, Any]:
    """Return the oracle's arguments for the plan's noise draws."""
    protocol, source = plan.protocol, SeededNoise(seed, 0)
    if protocol.noise_by == "none":
        return {}
    if plan.encoding is not None:
        ends, size, encoding = [0, *release_rounds(plan)], plan.statistic_size, plan.encoding

        def encoding_index(k: int) -> int:
            return k - 1 if plan.release_rounds else 0

        def centred(i: int, k: int) -> np.ndarray:
            trials = (ends[k] - ends[k - 1]) * encoding.noise_bits[encoding_index(k)]
            return source.binomials(i, k, size, trials)

        return {"bits": oracle.Bits(
            steps=lambda k: encoding.steps(encoding_index(k)),
            uniforms=lambda i, t: source.random_u32(i, t, size) * 2.0**-32,
            centred=centred,
        )}  # fmt: skip
    draw = oracle_noise(plan, seed)
    noise_silos = [plan.silos] if protocol.noise_by == "server" else list(range(plan.silos))
    if plan.release == "factorised":
        assert plan.factor is not None
        matrix = plan.factor.matrix
        noise_of_release = lambda k: oracle.factorised(matrix, noise_silos, draw, k)  # noqa: E731
    elif protocol.senders == "users":
        lengths = np.diff([0, *release_rounds(plan)])
        scales = np.sqrt(lengths / lengths.max())
        noise_of_release = lambda k: oracle.batches(scales, noise_silos, draw, k)  # noqa: E731
    else:
        assert plan.release == "tree"
        noise_of_release = lambda k: oracle.tree(noise_silos, draw, k)  # noqa: E731
    public = plan.clip is not None and plan.clip.constant > 0.0
    return {"noise": noise_of_release, "public": public}


def replay_run(e: Any, outcome: Any, **changes: Any) -> oracle.Replay:
    """Replay the recorded actions and rewards with the oracle.

    ``changes`` replace arguments of the oracle.
    """
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    clip = plan.clip
    arguments = {
        "contexts": lambda t, i: environment.round(i, t)[0].astype(float),
        "means": lambda t, i: environment.round(i, t)[1],
        "actions": outcome.actions,
        "rewards": outcome.rewards,
        "ends": release_rounds(plan),
        "lazy": plan.lazy,
        "direct": direct_radius(plan),
        "feature": clip.feature,
        "constant": clip.constant,
        "centre": clip.centre,
        "ledger": oracle.Ledger(plan.bonus, list(plan.allowance)) if plan.bonus < 1.0 else None,
        **oracle_noise_arguments(plan, e.seed),
    }
    return oracle.replay(**{**arguments, **changes})


def check_against_oracle(
    sizes: dict[str, Any], **extra_keys: Any
) -> tuple[Any, Any, oracle.Replay]:
    """Run the compiled driver and compare its outcome with the oracle's replay."""
    e = experiment_of(sizes, **extra_keys)
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.run(environment, [plan], e.checkpoints, record=True)
    assert outcome.events["indefinite"] == 0
    replayed = replay_run(e, outcome)
    # Closer than this, rounding could change lambda or the bonus; choose another seed then.
    assert replayed.nearest_floor > 1e-12 and replayed.nearest_allowance > 1e-8
    assert replayed.worst_gap < 1e-8
    np.testing.assert_allclose(outcome.group_regret, replayed.regret, rtol=1e-8, atol=1e-8)
    if replayed.totals:
        u, w = replayed.totals[-1]
        d, scale = len(u), max(1.0, float(np.abs(w).max()))
        np.testing.assert_allclose(outcome.total[:d], u, atol=1e-8 * scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], atol=1e-8 * scale)
    assert len(replayed.totals) == plan.releases
    return e, outcome, replayed


#: Cases that the oracle covers: a server, a direct radius, and noise by tree, factor, batch or
#: bits.
ORACLE_CASES = [
    name for name in COMPILED
    if not any(word in name for word in ("toeplitz", "honaker", "lemma", "feducb", "unclipped"))
    and not ("shuffle-vector" in name and "flat" not in name)
]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        ORACLE_CASES, lambda n: not n.startswith("growing") or "eager" in n or "ledger" in n
    ),
)
def test_runs_follow_the_oracles_definitions(name: str) -> None:
    check_against_oracle(CASES[name])


def worst_deviation(changes: dict[str, Any], names: list[str]) -> float:
    """Return the largest deviation that the changed oracle finds in these cases."""
    deviation = 0.0
    for name in names:
        e, outcome, replayed = check_against_oracle(CASES[name])
        altered = replay_run(e, outcome, **changes)
        deviation = max(deviation, altered.worst_gap)
        for sums, altered_sums in zip(replayed.totals, altered.totals, strict=False):
            deviation = max(deviation, float(np.abs(sums[1] - altered_sums[1]).max() > 1e-6))
            deviation = max(deviation, float(np.abs(sums[0] - altered_sums[0]).max() > 1e-6))
    return deviation


@pytest.mark.parametrize("lazy", ["lazy", "eager"])
def test_replay_detects_a_wrong_schedule_or_centre(lazy: str) -> None:
    names = [f"growing, silo-ldp, factorised, {lazy}"]
    assert worst_deviation({"ends": [1, 2, 3]}, names) > 1e-6
    centred_names = ["centred, silo-ldp, tree"]
    assert worst_deviation({"centre": 0.0}, centred_names) > 1e-6
    assert worst_deviation({"constant": 0.0}, centred_names) > 1e-6
    assert worst_deviation({"public": False}, centred_names) > 1e-6


def test_noise_of_a_factorised_release_by_hand() -> None:
    """Compute the noise of the second release without the oracle."""
    e = experiment_of({**CASES["explicit, central, factorised, lazy"], "horizon": 9,
                       "release_rounds": [1, 6]})  # fmt: skip
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.run(environment, [plan], e.checkpoints, record=True)
    x = np.array(
        [environment.round(i, t + 1)[0][outcome.actions[i, t]] for t in range(6) for i in range(2)],
        dtype=float,
    )
    noise, b = oracle_noise(plan, e.seed), plan.factor.matrix
    added = b[1, 0] * noise(2, 1)[1] + b[1, 1] * noise(2, 2)[1]
    # Records have norm 1 up to rounding.
    d = plan.dimension
    np.testing.assert_allclose(outcome.total[d:], (x.T @ x + added)[np.tril_indices(d)], atol=1e-5)
    assert abs(b[1, 0]) > 0.1 and np.abs(added).max() > 0.1


# ---- parties -------------------------------------------------------------------------------------


PARTY_CASES = [
    name for name in CASES
    if ("feducb-decentralized" not in name and "lazy" in name) or "centred" in name
]  # fmt: skip


def run_parties(plan: Plan, environment: Any, noise: Any) -> tuple[np.ndarray, Any]:
    """Run a federation of parties; return actions (M, T) and the last broadcast."""
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
            reports_ = messages or [silo.report() for silo in silos]
            broadcast = server.combine(
                shuffler.shuffle(reports_) if plan.protocol.shuffled else reports_[::-1]
            )
            for silo in silos:
                silo.receive(broadcast)
            messages = []
    assert server.release == plan.releases
    return actions, broadcast


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        PARTY_CASES, lambda n: n.startswith(("explicit", "centred", "one", "to ", "ledger"))
    ),
)
def test_parties_with_seeded_noise_equal_both_drivers(name: str) -> None:
    e = experiment_of(CASES[name])
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    outcome = server.run_one(environment, plan, e.checkpoints)
    actions, broadcast = run_parties(plan, environment, SeededNoise(SEED))
    np.testing.assert_array_equal(actions, outcome.actions)
    if broadcast is not None:
        np.testing.assert_array_equal(broadcast.values, outcome.total)


@pytest.mark.parametrize(
    "name",
    problems.ordinary_cases(
        PARTY_CASES, lambda n: n.startswith(("explicit", "centred")) and "sdp-vec, ind" not in n
    ),
)
def test_deployed_noise_has_the_plans_size(name: str) -> None:
    """Check that the last release is the data plus noise of the plan's size, new in each run.

    The limit of nine standard deviations is exceeded with probability 10^-16.
    """
    e = experiment_of(CASES[name])
    plan = e.curves[0].system.plan
    environment = e.environment.open(e.seed, 0, e.silos)
    noise_per_run = []
    for _ in range(2):
        actions, broadcast = run_parties(plan, environment, None)
        if broadcast is None:
            return
        d, plain_sums = plan.dimension, np.zeros(plan.statistic_size)
        for t in range(1, plan.end(plan.releases) + 1):
            for i in range(plan.silos):
                features, means = environment.round(i, t)
                x = np.array(features[actions[i, t - 1]], dtype=float)
                y = environment.reward(i, t, means[actions[i, t - 1]])
                if plan.clip is not None:
                    y, _, _ = plan.clip.apply(x, y)
                plain_sums += np.append(x * y, np.outer(x, x)[np.tril_indices(d)])
        noise_per_run.append(broadcast.values - plain_sums)
    std = noise_stds(plan)
    assert (np.abs(noise_per_run) <= 9.0 * std + 1e-5).all()
    noisy = std > 0.0
    equal_entries = noise_per_run[0][noisy] == noise_per_run[1][noisy]
    # Counts of bits can be equal in some entries.
    assert not (equal_entries.all() and noisy.any() if plan.encoding else equal_entries.any())
    assert noisy[:-1].all() or plan.protocol.noise_by == "none"
    assert noisy[-1] != (plan.public_constant or plan.protocol.noise_by == "none")


def noise_stds(plan: Plan) -> np.ndarray:
    """Return the standard deviations (s,) of the last release's noise, or slightly more."""
    d, k, k_range = plan.dimension, plan.releases, range(1, plan.releases + 1)
    size = plan.statistic_size
    if plan.protocol.noise_by == "none":
        return np.zeros(size)
    if plan.encoding is not None:
        squares = np.zeros(size)
        for j in k_range:
            e = plan.encoding_at(j)
            ones = plan.silos * plan.points_of(j) * plan.encoding.noise_bits[e]
            users = plan.silos * plan.points_of(j)
            squares += (0.1875 * ones + users / 4.0) / plan.encoding.each(e, d) ** 2
        return np.sqrt(squares)
    bias, off, diagonal = plan.noise_std.parts
    rows, columns = np.tril_indices(d)
    stds = np.append(np.full(d, bias), np.where(rows == columns, diagonal, off))
    noise_count = plan.silos if plan.protocol.noise_by == "silos" else 1
    if plan.factor is not None:
        factor = float((plan.factor.matrix[k - 1] ** 2).sum())
    elif plan.protocol.noise_by == "users":
        factor = plan.end(k) / plan.batch_size
    else:
        factor = k
    stds = stds * np.sqrt(noise_count * factor)
    if plan.public_constant:
        stds[-1] = 0.0
    return stds


# ---- growing batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("horizon", [1, 2, 7, 100, 10_000])
@pytest.mark.parametrize("first", [1, 3, 40])
@pytest.mark.parametrize("ratio", [1.0, 1.1, 2.0, 1e6])
def test_growing_batches_follow_their_ratio(horizon: int, first: int, ratio: float) -> None:
    schedule = Schedule.growing(horizon, first, ratio)
    if first > horizon:
        assert schedule.releases == 0 and list(schedule.ends) == []
        return
    lengths = list(schedule.lengths)
    assert lengths[0] == first and sum(lengths) == schedule.ends[-1] <= horizon
    exact = float(first)
    for length in lengths:
        assert length == round(exact)
        exact *= ratio
    # The next batch would end beyond the horizon.
    assert schedule.ends[-1] + round(exact) > horizon
    assert schedule.batch_size == max(lengths)
    plan = fastfed.make_system(
        "fedlinucb", silos=2, horizon=horizon, dimension=2, batch_size="growing",
        batch_first=first, batch_ratio=ratio,
    ).plan  # fmt: skip
    assert plan.release_rounds == tuple(schedule.ends) and plan.releases == schedule.releases
    assert [plan.end(k) for k in range(schedule.releases + 1)] == [0, *schedule.ends]
    assert all(
        plan.due(t) == sum(length <= t for length in schedule.ends)
        for t in range(min(horizon, 300) + 1)
    )


@pytest.mark.parametrize("rounds", [(1, 2), (1, 2, 3, 4, 5, 6)])
def test_eager_play_after_the_last_release_uses_raw_data(rounds: tuple[int, ...]) -> None:
    """Check that batches of one round are private for eager play only if every round is
    released."""
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=6, dimension=2, release_rounds=rounds,
        epsilon=1.0, delta=1e-3, lazy=False,
    )  # fmt: skip
    all_released = len(rounds) == 6
    condition = next(c for c in system.certificate.conditions if c.text.startswith("actions dep"))
    assert condition.holds == all_released
    lazy = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=6, dimension=2, release_rounds=rounds,
        epsilon=1.0, delta=1e-3,
    )  # fmt: skip
    assert (lazy.plan.radius.base == system.plan.radius.base) == all_released
    public = fastfed.make_system("linucb", horizon=6, dimension=2, release_rounds=rounds)
    assert (public.plan.batch_size == 0) == all_released


def test_each_batch_on_a_fixed_set_has_one_action() -> None:
    curve = problems.curve("linucb", batch_size="growing", batch_ratio=1.4)
    e = make_experiment(
        name="x", environment=FixedSet(dimension=3, actions=7), curves=[curve], horizon=300,
        silos=1, seed=1, checkpoints=5,
    )  # fmt: skip
    compiled_outcome, step_outcome = run_both(e)
    same(compiled_outcome, step_outcome)
    ends = e.curves[0].system.plan.release_rounds
    for start, stop in zip((0, *ends), (*ends, 300), strict=True):
        assert len(set(compiled_outcome.actions[0, start:stop])) <= 1
    assert len(set(compiled_outcome.actions[0])) > 2
