"""Tests of a deployed single agent: users who send their own messages, a shuffler, the agent and
its server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_shuffle import until_it_works

import fastfed
from fastfed import InputError
from fastfed._random import SeededNoise, SystemNoise
from fastfed.bandits.system import System
from fastfed.environments import FixedSet, RewardDistribution, Sphere
from fastfed.privacy.certificate import SIMULATION_CAVEAT
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Bits, Counts, Report, Shuffled, ShuffledBits
from fastfed.simulation import compiled
from fastfed.simulation.server import run_one

ACTIONS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])
USER_SYSTEMS: list[tuple[str, dict[str, Any]]] = [
    ("linucb-ldp", {}),
    ("linucb-ldp", {"batch_size": 5}),
    ("linucb-ldp", {"batch_size": 5, "mechanism": "vector-sum"}),
    ("linucb-sdp-amp", {"batch_size": 5}),
    ("linucb-sdp-vec", {"batch_size": 5}),
]
TRUSTED_AGENTS: list[tuple[str, dict[str, Any]]] = [
    ("linucb", {"batch_size": 5}),
    ("linucb-jdp", {}),
    ("linucb-jdp", {"batch_size": 5}),
    ("linucb-jdp", {"batch_size": 5, "release": "toeplitz"}),
    ("linucb-jdp", {"batch_size": 5, "release": "honaker"}),
    ("linucb-jdp", {"calibration": "published-code", "radius": "published-code"}),
]


def make_deployed_system(algorithm: str, **keys: Any) -> System:
    """Make a system with one agent."""
    budget = {} if algorithm == "linucb" else {"epsilon": 20.0, "delta": 0.01}
    return fastfed.make_system(
        algorithm, **{"horizon": 23, "dimension": 2, "radius_multiplier": 0.1, **budget, **keys}
    )


def plan_of(algorithm: str, **keys: Any) -> Plan:
    """Return the plan of a system with one agent."""
    plan = make_deployed_system(algorithm, **keys).plan
    assert isinstance(plan, Plan)
    return plan


def messages_of(plan: Plan, users: Any, noise: Any = None) -> list[Report | Bits]:
    """Return messages of these users, each about one made-up data point."""
    messages = []
    for number in users:
        x = np.array([np.cos(number), np.sin(number)])
        messages.append(fastfed.parties.User(plan, number, noise).message(x, number % 3 / 2))
    return messages


# -- Deployments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "keys"), USER_SYSTEMS)
@pytest.mark.parametrize("make_environment", [Sphere, FixedSet])
def test_users_with_seeded_noise_equal_the_step_driver(algorithm, keys, make_environment):
    environment = make_environment(
        dimension=3, actions=6, reward=RewardDistribution("gaussian", 0.3)
    ).open(3, 0, 1)
    system = make_deployed_system(algorithm, dimension=3, **keys)
    plan = system.plan
    outcome = run_one(environment, plan, np.arange(1, 24))
    noise = SeededNoise(3)
    agent, server = fastfed.parties.Silo(plan, 0, noise), fastfed.parties.Server(plan, noise)
    shuffler, messages, clipped_count = fastfed.parties.Shuffler(plan, noise), [], 0
    assert agent.acts_only
    for t in range(1, 24):
        features, means = environment.round(0, t)
        a = agent.select(features)
        assert a == outcome.actions[0, t - 1]
        if t <= plan.releases * plan.batch_size:
            user = fastfed.parties.User(plan, t, noise)
            assert (user.release - 1, user.place) == divmod(t - 1, plan.batch_size)
            message = user.message(features[a], environment.reward(0, t, means[a]))
            assert (message.release, message.silo) == (user.release, user.place)
            messages.append(message)
            clipped_count += user.clipped_reward
        agent.served()
        if agent.due:
            # Messages may arrive in any order.
            arrived = messages[::-1]
            broadcast = server.combine(
                shuffler.shuffle(arrived) if plan.protocol.shuffled else arrived
            )
            agent.receive(broadcast)
            messages = []
        assert server.release == agent.release == outcome.synchronisations[t - 1]
    np.testing.assert_array_equal(broadcast.values, outcome.total)
    assert clipped_count == outcome.events["clipped_rewards"] > 0
    assert agent.indefinite == outcome.events["indefinite"]
    assert len(messages) == 0


@pytest.mark.parametrize(("algorithm", "keys"), TRUSTED_AGENTS)
def test_a_trusted_agent_with_seeded_noise_equals_both_drivers(algorithm, keys):
    environment = Sphere(dimension=3, actions=6).open(3, 0, 1)
    plan = plan_of(algorithm, dimension=3, **keys)
    step_outcome = run_one(environment, plan, np.arange(1, 24))
    (compiled_outcome,) = compiled.run(environment, [plan], np.arange(1, 24), record=True)
    np.testing.assert_array_equal(step_outcome.total, compiled_outcome.total)
    noise = SeededNoise(3)
    agent, server = fastfed.parties.Silo(plan, 0, noise), fastfed.parties.Server(plan, noise)
    for t in range(1, 24):
        features, means = environment.round(0, t)
        a = agent.select(features)
        assert a == step_outcome.actions[0, t - 1] == compiled_outcome.actions[0, t - 1]
        agent.observe(environment.reward(0, t, means[a]))
        if agent.due:
            broadcast = server.combine([agent.report()])
            agent.receive(broadcast)
    np.testing.assert_array_equal(broadcast.values, step_outcome.total)


def test_linucb_without_batches_sends_nothing():
    agent = fastfed.parties.Silo(plan_of("linucb"))
    for _ in range(23):
        a = agent.select(ACTIONS)
        agent.observe(float(a == 1))
        assert not agent.due
    assert a == 1 and agent.theta[1] > agent.theta[0]


def noise_bound(plan: Plan) -> np.ndarray:
    """Return an upper bound on the noise std of every entry in the last release."""
    if plan.encoding is None:
        bias, off_diagonal, diagonal = plan.noise_std.parts
        batch_std = np.array([bias, bias, diagonal, off_diagonal, diagonal])
    else:
        noise_bits, users = plan.batch_size * plan.encoding.noise_bits[0], plan.batch_size
        batch_std = np.sqrt(0.1875 * noise_bits + users / 4) / plan.encoding.each(0, 2)
    # A release adds at most one such noise per batch; nested draws add one more.
    return batch_std * np.sqrt(plan.releases + 1)


@pytest.mark.parametrize(("algorithm", "keys"), USER_SYSTEMS + TRUSTED_AGENTS)
def test_deployed_noise_has_the_plans_size(algorithm, keys):
    """Check that the last release is the data plus noise of the plan's size.

    The limit of eight standard deviations is exceeded with probability 10^-13.
    """
    noise_per_run = []
    for _ in range(2):
        system = make_deployed_system(algorithm, horizon=42, **keys)
        plan = system.plan
        agent, server = fastfed.parties.Silo(plan), fastfed.parties.Server(plan)
        shuffler, messages, plain_sums = fastfed.parties.Shuffler(plan), [], np.zeros(5)
        for t in range(1, 43):
            x = ACTIONS[agent.select(ACTIONS)]
            y = float(x[1] > 0.9)
            if t <= plan.releases * plan.batch_size:
                plain_sums += [*(x * y), x[0] * x[0], x[0] * x[1], x[1] * x[1]]
                if agent.acts_only:
                    messages.append(fastfed.parties.User(plan, t).message(x, y))
            if agent.acts_only:
                agent.served()
            else:
                agent.observe(y)
            if agent.due:
                all_messages = messages or [agent.report()]
                broadcast = server.combine(
                    shuffler.shuffle(all_messages) if plan.protocol.shuffled else all_messages
                )
                agent.receive(broadcast)
                messages = []
        assert broadcast.release == agent.release == plan.releases
        noise_per_run.append(broadcast.values - plain_sums)
        assert (np.abs(noise_per_run[-1]) <= 8.0 * noise_bound(plan) + 1e-12).all()
    if algorithm != "linucb":
        assert (np.abs(noise_per_run) > 1e-9).any(axis=1).all()
        assert (noise_per_run[0] != noise_per_run[1]).any()
    assert SIMULATION_CAVEAT not in system.deployed_certificate.caveats
    assert (SIMULATION_CAVEAT in system.certificate.caveats) == (algorithm != "linucb")
    assert system.deployed_certificate.status == system.certificate.status


@pytest.mark.parametrize(("algorithm", "keys"), USER_SYSTEMS)
def test_noise_of_users_has_the_plans_variance(algorithm, keys):
    """Compare 1500 entries of noise, from messages about zeros, with the variance.

    Draws are seeded; a correct plan fails for one seed in 10^4.
    """
    plan = plan_of(algorithm, horizon=300, **keys)
    rounds = range(1, plan.releases * plan.batch_size + 1)
    messages = [
        fastfed.parties.User(plan, t, SeededNoise(8)).message(np.zeros(2), 0.0) for t in rounds
    ]
    if isinstance(messages[0], Bits):
        ones = np.array([single_message.bits.sum(axis=1) for single_message in messages])
        g, b = plan.encoding.each(0, 2), plan.encoding.noise_bits[0]
        # A user with a zero sends g ones among 2 g bits, and Bin(b, 1/4) ones among noise bits.
        draws, variance = (ones - g - b / 4).T, np.full(5, 0.1875 * b)
    elif isinstance(messages[0], Counts):
        b = plan.encoding.noise_bits[0]
        draws, variance = (
            np.array([single_message.values for single_message in messages]).T,
            np.full(5, 0.1875 * b),
        )
    else:
        draws = np.array([single_message.values for single_message in messages]).T
        bias, off_diagonal, diagonal = plan.user_std.parts
        variance = np.square([bias, bias, diagonal, off_diagonal, diagonal])
    # The square of a standard normal has variance 2; each limit is 5 standard deviations.
    scaled = np.square(draws) / variance[:, None]
    assert abs(scaled.mean() - 1.0) < 5 * np.sqrt(2.0 / scaled.size)
    assert (np.abs(scaled.mean(axis=1) - 1.0) < 5 * np.sqrt(2.0 / len(messages))).all()


class FailsOncePerDraw(SeededNoise):
    """A noise source in which the first request for each draw fails."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.requested: set[tuple[Any, ...]] = set()

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; methods that draw fail at the first request for each key."""
        attribute = super().__getattribute__(name)
        if name not in ("node", "random_u32", "point_binomials", "permutation", "shuffle_bits"):
            return attribute

        def draw(*key: Any) -> Any:
            """Draw as the source does; the first draw for each key fails."""
            draw_key = (name, *(part for part in key if isinstance(part, int)))
            if draw_key not in self.requested:
                self.requested.add(draw_key)
                raise OSError("no entropy")
            return attribute(*key)

        return draw


@pytest.mark.parametrize(("algorithm", "keys"), USER_SYSTEMS)
def test_steps_can_be_repeated_after_a_noise_source_failed(algorithm, keys):
    """Let users, shuffler and server retry; the results must not change."""
    plan, totals = plan_of(algorithm, **keys), []
    for noise in (SeededNoise(4), FailsOncePerDraw(4)):
        agent, server = fastfed.parties.Silo(plan, 0, noise), fastfed.parties.Server(plan, noise)
        shuffler, messages = fastfed.parties.Shuffler(plan, noise), []
        for t in range(1, 11):
            x = ACTIONS[agent.select(ACTIONS)]
            messages.append(until_it_works(fastfed.parties.User(plan, t, noise).message, x, 2.0))
            agent.served()
            if agent.due:
                if plan.protocol.shuffled:
                    messages = until_it_works(shuffler.shuffle, messages)
                broadcast = until_it_works(server.combine, messages)
                agent.receive(broadcast)
                messages = []
        assert broadcast.release == 10 // plan.batch_size
        totals.append(broadcast.values)
    np.testing.assert_array_equal(*totals)


# -- Messages --------------------------------------------------------------------------------------


def test_a_users_message_is_their_point_plus_noise():
    plan = plan_of("linucb-sdp-amp", batch_size=5)
    user = fastfed.parties.User(plan, 7, SeededNoise(1))
    message = user.message([3.0, 4.0], -2.0)
    assert isinstance(message, Report)
    assert user.clipped_feature and user.clipped_reward
    z = SeededNoise(1).node(0, 7, 2)
    bias, off_diagonal, diagonal = plan.user_std.parts
    noise = z * [bias, bias, diagonal, off_diagonal, diagonal]
    # x = (0.6, 0.8) and y = 0.
    np.testing.assert_allclose(
        message.values, noise + np.array([0.0, 0.0, 0.36, 0.48, 0.64]), rtol=1e-12
    )
    assert plan.user_std.times(np.sqrt(5)).parts == pytest.approx(plan.noise_std.parts)
    # Another user has different noise.
    assert not np.array_equal(
        fastfed.parties.User(plan, 8, SeededNoise(1)).message([3.0, 4.0], -2.0).values,
        message.values,
    )


def test_both_streams_are_shuffled_in_different_orders():
    """Check that a shuffled message has x y of one user and x x' of another (Algorithm 3)."""
    plan = plan_of("linucb-sdp-amp", batch_size=5)
    sent = messages_of(plan, range(1, 6), SeededNoise(2))
    passed = fastfed.parties.Shuffler(plan, SeededNoise(2)).shuffle(sent[::-1])
    assert [type(m) for m in passed] == [Shuffled] * 5
    order, other = ([m.values[part].tobytes() for m in passed] for part in (np.s_[:2], np.s_[2:]))
    first = [m.values[:2].tobytes() for m in sent]
    second = [m.values[2:].tobytes() for m in sent]
    places = [first.index(b) for b in order], [second.index(b) for b in other]
    assert [sorted(p) for p in places] == [list(range(5))] * 2
    assert places[0] != places[1] and list(range(5)) not in places
    # For any order the sum is the same up to rounding.
    total = fastfed.parties.Server(plan).combine(passed).values
    np.testing.assert_allclose(total, np.sum([m.values for m in sent], axis=0), rtol=1e-12)


def test_system_noise_shuffles_each_batch_in_a_new_order():
    plan = plan_of("linucb-sdp-amp", horizon=400, batch_size=8)
    shuffler, orders = fastfed.parties.Shuffler(plan), set()
    for release in range(1, 51):
        sent = [
            Report(release, 2, np.concatenate([np.full(2, i), np.full(3, 10.0 + i)]), i)
            for i in range(8)
        ]
        passed = shuffler.shuffle(sent)
        orders |= {tuple(m.values[0] for m in passed), tuple(m.values[2] - 10.0 for m in passed)}
    # Among 100 of 40 320 orders, two coincide in one of eight runs, four with probability 10^-6.
    assert len(orders) > 96


@pytest.mark.parametrize("keys", [{}, {"mechanism": "vector-sum"}])
def test_servers_without_a_shuffler_accept_users_messages(keys):
    plan = plan_of("linucb-ldp", batch_size=3, **keys)
    sent = messages_of(plan, range(1, 4), SeededNoise(5))
    totals = [fastfed.parties.Server(plan).combine(s).values for s in (sent, sent[::-1])]
    np.testing.assert_array_equal(*totals)
    if not keys:
        np.testing.assert_allclose(totals[0], np.sum([m.values for m in sent], axis=0), rtol=1e-12)


def test_bits_of_a_batch_are_shuffled_per_label():
    plan = plan_of("linucb-sdp-vec", batch_size=3)
    sent = messages_of(plan, range(1, 4), SeededNoise(5))
    (mixed,) = fastfed.parties.Shuffler(plan, SeededNoise(5)).shuffle(sent)
    assert type(mixed) is ShuffledBits
    straight = np.concatenate([m.bits for m in sent], axis=1)
    np.testing.assert_array_equal(
        mixed.bits.sum(axis=1, dtype=int), straight.sum(axis=1, dtype=int)
    )
    assert not np.array_equal(mixed.bits, straight)
    assert plan.bits_up_of(1) == straight.size * (1 + 3)  # five labels: 3 bits


# -- Errors ----------------------------------------------------------------------------------------


def test_agents_whose_users_send_refuse_observe_and_report():
    plan = plan_of("linucb-ldp", batch_size=2, horizon=6)
    agent, server = fastfed.parties.Silo(plan), fastfed.parties.Server(plan)
    with pytest.raises(InputError, match="served needs a select before it"):
        agent.served()
    agent.select(ACTIONS)
    with pytest.raises(InputError, match="observe would show the agent a reward that only"):
        agent.observe(1.0)
    agent.served()
    with pytest.raises(InputError, match="the agent reports nothing"):
        agent.report()
    with pytest.raises(InputError, match="served needs a select before it"):
        agent.served()
    assert not agent.due
    agent.select(ACTIONS)
    agent.served()
    assert agent.due
    with pytest.raises(InputError, match="release 1 before round 3"):
        agent.select(ACTIONS)
    with pytest.raises(InputError, match="the agent reports nothing"):
        agent.report()
    broadcast = server.combine(messages_of(plan, (1, 2)))
    agent.receive(broadcast)
    assert not agent.due and agent.release == 1
    with pytest.raises(InputError, match="release 1"):
        agent.receive(broadcast)
    agent.select(ACTIONS)
    agent.served()
    # The second batch has not ended, so its sum comes too early.
    early = server.combine(messages_of(plan, (3, 4)))
    with pytest.raises(InputError, match="waits for release 1, got release 2"):
        agent.receive(early)
    agent.select(ACTIONS)
    agent.served()
    agent.receive(early)
    assert agent.release == 2


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [("linucb", {}), ("linucb", {"batch_size": 2}), ("linucb-jdp", {"batch_size": 2})],
)
def test_agents_that_observe_rewards_refuse_served(algorithm, keys):
    agent = fastfed.parties.Silo(plan_of(algorithm, **keys))
    assert not agent.acts_only
    agent.select(ACTIONS)
    with pytest.raises(InputError, match="served is for plans whose users send messages"):
        agent.served()
    agent.observe(1.0)
    assert agent.round == 1


def test_errors_of_a_user():
    plan = plan_of("linucb-ldp", batch_size=5)
    user = fastfed.parties.User(plan, 3)
    for x, y, message in (
        ([1.0, 0.0, 0.0], 1.0, r"x must have shape \(2,?\), got \(3,\)"),
        ([1.0, np.nan], 1.0, "x must be finite, got nan"),
        ([1.0, 0.0], np.inf, "reward must be finite, got inf"),
        ([1.0, 0.0], "good", "reward must be a number"),
    ):
        with pytest.raises(InputError, match=message):
            user.message(x, y)
    # The refused calls did not send a message.
    assert user.message([1.0, 0.0], 1.0).release == 1
    with pytest.raises(InputError, match="user 3 has already made a message"):
        user.message([1.0, 0.0], 1.0)
    for number in (0, -1, 24, 2.5):
        with pytest.raises(InputError, match=f"number must be .*got {number}"):
            fastfed.parties.User(plan, number)


@pytest.mark.parametrize("algorithm", ["linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec"])
def test_users_of_an_unfinished_last_batch_are_refused(algorithm):
    """Use 23 rounds in batches of 5: users 21, 22 and 23 have no release."""
    plan = plan_of(algorithm, batch_size=5)
    assert fastfed.parties.User(plan, 20).release == plan.releases == 4
    for number in (21, 23):
        with pytest.raises(InputError, match=f"number must be .*<= 20, got {number}"):
            fastfed.parties.User(plan, number)


def test_one_noise_source_serves_each_user_once():
    noise, plan = SystemNoise(), plan_of("linucb-ldp", batch_size=5)
    fastfed.parties.User(plan, 3, noise).message([1.0, 0.0], 1.0)
    with pytest.raises(InputError, match="drawn already"):
        fastfed.parties.User(plan, 3, noise).message([0.0, 1.0], 0.0)


@pytest.mark.parametrize("algorithm", ["linucb-sdp-amp", "linucb-sdp-vec"])
def test_the_shuffler_needs_complete_batches(algorithm):
    """Check missing and repeated messages, with which the noise would be less than certified."""
    plan = plan_of(algorithm, batch_size=3)
    shuffler = fastfed.parties.Shuffler(plan)
    sent, later = messages_of(plan, range(1, 4)), messages_of(plan, range(4, 7))
    for wrong_messages, message in (
        (sent[:2], r"one message of each of the 3 users, got users \[0, 1\]"),
        ([*sent, sent[1]], r"of each of the 3 users, got users \[0, 1, 1, 2\]"),
        ([sent[0], sent[0], sent[2]], r"of each of the 3 users, got users \[0, 0, 2\]"),
        (later, "must be of release 1, got release 2"),
        ([*sent[:2], later[2]], "must be of release 1, got release 2"),
        ([], "one message of each of the 3 users"),
        ([*sent[:2], None], "messages, got NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            shuffler.shuffle(wrong_messages)
    assert shuffler.release == 0
    shuffler.shuffle(sent)
    with pytest.raises(InputError, match="must be of release 2, got release 1"):
        shuffler.shuffle(sent)
    other_plan = plan_of(algorithm, batch_size=3, dimension=3)
    x = np.zeros(3)
    foreign = [fastfed.parties.User(other_plan, t).message(x, 0.0) for t in range(4, 7)]
    with pytest.raises(InputError, match="must have dimension 2, got 3"):
        shuffler.shuffle(foreign)
    assert shuffler.release == 1


@pytest.mark.parametrize("algorithm", ["linucb-sdp-amp", "linucb-sdp-vec"])
def test_the_server_refuses_unshuffled_messages(algorithm):
    plan = plan_of(algorithm, batch_size=3)
    server, sent = fastfed.parties.Server(plan), messages_of(plan, range(1, 4))
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        server.combine(sent)
    passed = fastfed.parties.Shuffler(plan).shuffle(sent)
    with pytest.raises(InputError, match="the shuffler must pass on"):
        server.combine([*passed, passed[0]])
    assert server.release == 0
    assert server.combine(passed).release == 1
    with pytest.raises(InputError, match="must be of release 2, got release 1"):
        server.combine(passed)


@pytest.mark.parametrize("keys", [{}, {"mechanism": "vector-sum"}])
def test_the_server_needs_complete_batches(keys):
    plan = plan_of("linucb-ldp", batch_size=3, **keys)
    server, sent = fastfed.parties.Server(plan), messages_of(plan, range(1, 4))
    for wrong_messages, message in (
        (sent[:2], r"one report of each of the 3 users, got users \[0, 1\]"),
        ([*sent, sent[1]], "one report of each of the 3 users"),
        (messages_of(plan, range(4, 7)), "must be of release 1, got release 2"),
    ):
        with pytest.raises(InputError, match=message):
            server.combine(wrong_messages)
    assert server.release == 0
    assert server.combine(sent).release == 1


def test_messages_of_other_types_are_refused():
    bits, sums = (
        plan_of("linucb-ldp", batch_size=1, mechanism=m) for m in ("vector-sum", "gaussian")
    )
    (counted,), (added,) = messages_of(bits, [1]), messages_of(sums, [1])
    with pytest.raises(InputError, match="one report of each"):
        fastfed.parties.Server(bits).combine([added])
    with pytest.raises(InputError, match="one report of each"):
        fastfed.parties.Server(sums).combine([counted])
    mixing = plan_of("linucb-sdp-vec", batch_size=1)
    with pytest.raises(InputError, match="takes Bits messages, got Report"):
        fastfed.parties.Shuffler(mixing).shuffle([added])
    assert fastfed.parties.Server(bits).combine([counted]).release == 1


@pytest.mark.parametrize("algorithm", ["linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec"])
def test_deployments_refuse_aggregate_messages(algorithm):
    message = f'messages must be "individual" in a deployment of {algorithm}, got .aggregate.'
    with pytest.raises(InputError, match=message):
        make_deployed_system(algorithm, batch_size=5, messages="aggregate")
    assert plan_of(algorithm, batch_size=5).individual
    assert plan_of(algorithm, batch_size=5, messages="individual").individual


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("linucb-jdp", {"batch_size": 5}),
        ("linucb", {}),
        ("private-fedlinucb", {"silos": 2, "batch_size": 5}),
        ("fedlinucb", {"silos": 1, "batch_size": 5}),
    ],
)
def test_plans_whose_users_do_not_send_have_no_user(algorithm, keys):
    budget = {"epsilon": 1.0, "delta": 0.01} if "linucb-" in algorithm or "-f" in algorithm else {}
    if algorithm == "fedlinucb":
        budget = {}
    system = fastfed.make_system(algorithm, horizon=23, dimension=2, **keys, **budget)
    protocol = system.plan.protocol.id
    with pytest.raises(InputError, match=f'senders are users.*got protocol "{protocol}"'):
        fastfed.parties.User(system.plan, 1)


def test_users_need_a_plan():
    system = make_deployed_system("linucb-ldp")
    with pytest.raises(InputError, match=r"plan must be a Plan, such as system\.plan, got System"):
        fastfed.parties.User(system, 1)  # type: ignore[arg-type]
    peers = fastfed.make_system(
        "feducb-decentralized", silos=2, horizon=9, dimension=2, graph="complete", private=False
    )
    with pytest.raises(InputError, match="got PeerPlan: it has no server"):
        fastfed.parties.User(peers.plan, 1)
