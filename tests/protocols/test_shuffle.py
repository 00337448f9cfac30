"""Tests of the shuffle protocols: shuffler, bits, counts, message sizes, and the published
constants."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import problems
import pytest
from scipy import stats

import fastfed
from fastfed import InputError
from fastfed._kernels import linalg
from fastfed._random import SeededNoise, SystemNoise
from fastfed.bandits.silo import Silo
from fastfed.environments import RewardDistribution, Sphere
from fastfed.experiments import figure, figure_spec
from fastfed.parties import Shuffler
from fastfed.protocols.protocol import Counts, Report, Shuffled, ShuffledBits
from fastfed.protocols.server import Server
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import experiment_from_spec, make_experiment
from fastfed.simulation.systems import make_system

FALSE_ALARM = 1e-5


def vector_system(**keys):
    """Make a small system of shuffled vector sums."""
    sizes = {"silos": 2, "horizon": 12, "dimension": 2, "batch_size": 3, "epsilon": 4.0,
             "delta": 0.01, "protocol": "shuffle-vector", "release": "tree"}  # fmt: skip
    return make_system("private-fedlinucb", **{**sizes, **keys})


def reports_of(plan, noise, rounds=3):
    """Return one report of every silo after a batch of made-up rounds."""
    rng = np.random.default_rng(0)
    reports = []
    for i in range(plan.silos):
        silo = Silo(plan, i, noise)
        for _ in range(rounds):
            x = rng.normal(size=(1, plan.dimension))
            silo.select(x / np.linalg.norm(x))
            silo.observe(float(rng.uniform()))
        reports.append(silo.report())
    return reports


# ---- the shuffler -------------------------------------------------------------------------------


def test_shuffled_reports_do_not_name_their_sender():
    plan = vector_system(protocol="shuffle-amplified").plan
    reports = reports_of(plan, SeededNoise(1))
    shuffled = Shuffler(plan, SeededNoise(1)).shuffle(reports)
    assert [type(message) for message in shuffled] == [Shuffled, Shuffled]
    assert not any(hasattr(message, "silo") for message in shuffled)
    assert {message.values.tobytes() for message in shuffled} == {
        report.values.tobytes() for report in reports
    }


@pytest.mark.parametrize("noise", [None, SeededNoise(3)])
def test_every_order_of_messages_is_equally_likely(noise):
    plan = vector_system(protocol="shuffle-amplified", silos=3, horizon=2400 * 3).plan
    size = plan.statistic_size
    counts: dict[tuple, int] = {}
    shuffler = Shuffler(plan, noise)
    for release in range(1, 2401):
        reports = [Report(release, 2, np.full(size, float(i)), i) for i in range(3)]
        # The order of arrival must not matter.
        shuffled = shuffler.shuffle(reports[::-1])
        order = tuple(int(message.values[0]) for message in shuffled)
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_the_server_sees_only_the_sum_of_counts():
    """The reason: a silo's count has only the noise of this silo's users, which is too little."""
    plan = vector_system().plan
    noise = SeededNoise(1)
    reports = reports_of(plan, noise)
    assert all(type(report) is Counts for report in reports)
    (shuffled,) = Shuffler(plan, noise).shuffle(reports)
    assert type(shuffled) is Shuffled
    assert np.array_equal(shuffled.values, sum(report.values for report in reports))
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        Server(plan, noise).combine(reports)
    with pytest.raises(InputError, match="must pass on 1 messages"):
        Server(plan, noise).combine([shuffled, shuffled])


def test_bits_are_shuffled_per_label():
    plan = vector_system(messages="individual").plan
    noise = SeededNoise(5)
    reports = reports_of(plan, noise)
    (mixed,) = Shuffler(plan, noise).shuffle(reports)
    assert isinstance(mixed, ShuffledBits)
    assert mixed.bits.shape[1] == sum(report.bits.shape[1] for report in reports)
    ones = sum(report.bits.sum(axis=1, dtype=int) for report in reports)
    assert np.array_equal(mixed.bits.sum(axis=1, dtype=int), ones)
    straight = np.concatenate([report.bits for report in reports], axis=1)
    assert not np.array_equal(mixed.bits, straight)


def test_the_shuffler_needs_complete_batches():
    """Check missing and repeated messages, with which the noise would be less than certified."""
    plan = vector_system().plan
    first_count, second_count = (Counts(1, 2, np.full(5, float(i)), i) for i in range(2))
    shuffler = Shuffler(plan)
    for sent, message in (
        ([], r"one message of each of the 2 silos, got silos \[\]"),
        ([first_count], r"got silos \[0\]"),
        ([first_count, first_count], r"got silos \[0, 0\]"),
        ([first_count, Counts(2, 2, np.zeros(5), 1)], "of release 1, got release 2"),
        ([first_count, Report(1, 2, np.zeros(5), 1)], "takes Counts messages, got Report"),
        ([first_count, Counts(1, 1, np.zeros(2), 1)], "must have dimension 2, got 1"),
        ([first_count, None], "takes Counts messages, got NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            shuffler.shuffle(sent)
    assert shuffler.release == 0
    assert len(shuffler.shuffle([second_count, first_count])) == 1
    with pytest.raises(InputError, match="of release 2, got release 1"):
        shuffler.shuffle([first_count, second_count])  # this would show one release with two noises


class FailsEverySecondDraw:
    """A noise source in which every second draw fails before it draws."""

    def __init__(self, noise):
        self.noise, self.calls = noise, 0

    def __getattr__(self, name):
        """Return a method of the source that fails at every second call."""

        def draw(*key):
            """Draw as the source does; every second call fails."""
            self.calls += 1
            if self.calls % 2:
                raise OSError("no entropy")
            return getattr(self.noise, name)(*key)

        return draw


def until_it_works(act, *arguments):
    """Repeat the call until it raises no OSError and return its result."""
    for _ in range(200):
        try:
            return act(*arguments)
        except OSError:
            continue
    raise AssertionError("never worked")


@pytest.mark.parametrize(
    ("protocol", "keys"),
    [
        ("silo-ldp", {}),
        ("silo-ldp-prefix", {}),
        ("silo-ldp", {"release": "toeplitz"}),
        ("central", {}),
        ("central", {"release": "toeplitz"}),
        ("shuffle-amplified", {}),
        ("shuffle-vector", {}),
    ],
)
def test_steps_can_be_repeated_after_a_noise_source_failed(protocol, keys):
    """Check that repeated draws count no user twice and give every node the same noise."""
    plan = vector_system(protocol=protocol, **keys).plan
    totals = []
    for noise in (SeededNoise(4), FailsEverySecondDraw(SeededNoise(4))):
        silos = [Silo(plan, i, noise) for i in range(2)]
        shuffler, server = Shuffler(plan, noise), Server(plan, noise)
        for _ in range(12):
            for silo in silos:
                silo.select(np.eye(2))
                until_it_works(silo.observe, 2.0)
            if silos[0].due:
                sent = [until_it_works(silo.report) for silo in silos]
                if plan.protocol.shuffled:
                    sent = until_it_works(shuffler.shuffle, sent)
                broadcast = until_it_works(server.combine, sent)
                for silo in silos:
                    silo.receive(broadcast)
        totals.append((broadcast.values, [each_silo.clipped_rewards for each_silo in silos]))
    assert np.array_equal(totals[0][0], totals[1][0])
    assert totals[0][1] == totals[1][1]


def test_the_server_refuses_unshuffled_messages():
    plan = vector_system(protocol="shuffle-amplified").plan
    server, noise = Server(plan), SeededNoise(1)
    sent = reports_of(plan, noise)
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        server.combine(sent)
    shuffled = Shuffler(plan, noise).shuffle(sent)
    with pytest.raises(InputError, match="must pass on 2 messages"):
        server.combine(shuffled[:1])
    assert server.release == 0
    assert server.combine(shuffled).release == 1


# ---- bits and counts ----------------------------------------------------------------------------


def first_node(plan, seed, rounds):
    """Return the first node (s,) of a plan over the same made-up data, with seeded noise."""
    noise = SeededNoise(seed)
    shuffled = Shuffler(plan, noise).shuffle(reports_of(plan, noise, rounds))
    return Server(plan, noise).combine(shuffled).values


def test_individual_and_aggregate_noise_have_the_same_distribution():
    """Compare every entry by chi-square and the mean with the true sum.

    The published constants add few bits to a message, so that rounding and every noise bit are
    visible.
    """
    keys = {"epsilon": 6.0, "delta": 0.05, "calibration": "published-code", "clip": True}
    plans = [
        vector_system(messages=messages, **keys).plan for messages in ("individual", "aggregate")
    ]
    n = 1200
    individual, aggregate = (
        np.array([first_node(plan, 10_000 * k + i, 3) for i in range(n)])
        for k, plan in enumerate(plans)
    )
    stds = individual.std(axis=0)
    true_sum = np.zeros(plans[0].statistic_size)
    rng = np.random.default_rng(0)
    for _ in range(2 * 3):
        x = rng.normal(size=2)
        linalg.accumulate(true_sum, x / np.linalg.norm(x), float(rng.uniform()))
    for sample in (individual, aggregate):
        assert np.abs(sample.mean(axis=0) - true_sum).max() < 5 * stds.max() / math.sqrt(n)
    for entry in range(individual.shape[1]):
        edges = np.quantile(
            np.concatenate([individual[:, entry], aggregate[:, entry]]), np.linspace(0, 1, 13)
        )
        edges = np.unique(edges)
        edges[0], edges[-1] = -np.inf, np.inf
        table = [
            np.histogram(each_sample[:, entry], edges)[0] for each_sample in (individual, aggregate)
        ]
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_simulations_with_individual_bits_agree_up_to_noise():
    keys = {"horizon": 60, "silos": 2, "seed": 3, "replicates": 2, "batch_size": 6,
            "epsilon": 50.0, "delta": 0.05, "protocol": "shuffle-vector", "checkpoints": 60,
            "radius_multiplier": 0.01}  # fmt: skip
    environment = {"kind": "sphere", "dimension": 3, "actions": 12}
    results = [
        fastfed.simulate(environment, "private-fedlinucb", messages=messages, driver=driver, **keys)
        for messages, driver in (
            ("individual", "compiled"),
            ("individual", "step"),
            ("aggregate", "compiled"),
        )
    ]
    bits, step_bits, counts = (result.curves[0].group_regret for result in results)
    assert np.array_equal(bits, step_bits)
    assert not np.array_equal(bits, counts)
    assert np.array_equal(bits[:, :6], counts[:, :6])  # before the first release there is no noise


def test_error_about_too_many_bits_names_an_alternative():
    with pytest.raises(InputError, match='"aggregate" draws the number of ones'):
        vector_system(horizon=100_000, batch_size=1000, messages="individual")
    with pytest.raises(InputError, match="needs clip = true"):
        vector_system(clip=False, messages="individual")


def test_rewards_are_not_clipped_if_clip_is_false():
    """Check that the published code counts beyond 0..2 g: a reward of 3 must not become 1."""
    plan = vector_system(clip=False, calibration="published-code", epsilon=50.0).plan
    noise = SeededNoise(0)
    silos = [Silo(plan, i, noise) for i in range(2)]
    for silo in silos:
        for _ in range(3):
            silo.select(np.array([[1.0, 0.0]]))
            silo.observe(3.0)
    shuffled = Shuffler(plan, noise).shuffle([each_silo.report() for each_silo in silos])
    bias = Server(plan, noise).combine(shuffled).values[0]
    std = math.sqrt(0.1875 * 6 * plan.encoding.noise_bits[0]) / plan.encoding.precision[0]
    assert abs(bias - 18.0) < 6 * std + 1.0


def test_results_with_bits_do_not_depend_on_threads_or_call_lengths():
    sizes = dict(problems.corners())["plain, shuffle-vector, eager"]
    curve = problems.curve("shuffle-vector", batch_size=sizes["batch_size"], lazy=False)
    e = make_experiment(
        name="bits", environment=Sphere(dimension=4, actions=9), curves=[curve], horizon=40,
        silos=3, seed=7, checkpoints=5,
    )  # fmt: skip
    environment, plan = e.environment.open(7, 0, 3), e.curves[0].system.plan
    (outcome,) = compiled.run(environment, [plan], e.checkpoints, record=True)
    (threaded_outcome,) = compiled.run(
        environment, [plan], e.checkpoints, record=True, threads=3, rounds_per_call=7
    )
    assert np.array_equal(outcome.actions, threaded_outcome.actions) and np.array_equal(
        outcome.total, threaded_outcome.total
    )


def test_a_deployment_with_system_noise_makes_all_releases():
    system = vector_system(horizon=6)
    plan = system.plan
    silos, shuffler, server = [Silo(plan, i) for i in range(2)], Shuffler(plan), Server(plan)
    for _ in range(6):
        for silo in silos:
            silo.select(np.eye(2))
            silo.observe(1.0)
        if silos[0].due:
            broadcast = server.combine(
                shuffler.shuffle([each_silo.report() for each_silo in silos])
            )
            for silo in silos:
                silo.receive(broadcast)
    assert server.release == 2
    assert not any("simulation" in caveat for caveat in system.deployed_certificate.caveats)


def test_system_noise_draws_the_bits_of_a_node_once():
    noise = SystemNoise()
    noise.binomials(0, 1, 3, 100)
    with pytest.raises(InputError, match="drawn already"):
        noise.binomials(0, 1, 3, 100)


# ---- message sizes ------------------------------------------------------------------------------


def test_bits_sent_equal_the_bits_of_the_messages():
    """Compare the plan's counts with the sizes of real messages."""
    plan = vector_system(messages="individual", horizon=15).plan
    noise = SeededNoise(2)
    silos, bits_sent, label_bits = (
        [Silo(plan, i, noise) for i in range(2)],
        0,
        3,
    )  # 5 labels: 3 bits
    shuffler, server = Shuffler(plan, noise), Server(plan, noise)
    for _ in range(1, 16):
        for silo in silos:
            silo.select(np.eye(2))
            silo.observe(0.5)
        if silos[0].due:
            messages = [each_silo.report() for each_silo in silos]
            bits_sent += sum(message.bits.size * (1 + label_bits) for message in messages)
            broadcast = server.combine(shuffler.shuffle(messages))
            for silo in silos:
                silo.receive(broadcast)
        assert plan.bits_up_of(server.release) == bits_sent
    assert plan.releases == server.release == 5
    assert plan.bits_down_of(5) == 5 * 2 * 5 * 64


def test_plain_sums_send_eight_bytes_per_entry():
    system = make_system(
        "private-fedlinucb", silos=3, horizon=20, dimension=2, batch_size=6, epsilon=1, delta=0.1
    )
    for sent in (system.plan.bits_up_of, system.plan.bits_down_of):
        assert [sent(k) for k in range(4)] == [k * 3 * 5 * 64 for k in range(4)]


# ---- the published constants --------------------------------------------------------------------


@cache
def experiment_of(name):
    """Return the experiment of a figure."""
    return experiment_from_spec(figure_spec(figure(name)))


def system_of_figure(name, label):
    """Return the system of a figure's curve."""
    return next(curve.system for curve in experiment_of(name).curves if curve.label == label)


def test_published_constants_of_figure_2a():
    system = system_of_figure("zc24-fig2a", "SDP, epsilon = 0.001")
    assert system.plan.noise_std.bias == pytest.approx(5528, abs=0.5)
    N, M, d, s = 9, 100, 10, system.plan.noise_std.bias
    regularizer = math.sqrt(M * N) * s * (math.sqrt(N + math.log(100)) + math.sqrt(d))
    assert system.theory.regularizer == pytest.approx(regularizer)


def test_published_constants_of_figure_2b():
    system = system_of_figure("zc24-fig2b", "SDP")
    g, b = system.plan.encoding.precision, system.plan.encoding.noise_bits
    points = [100 * 25 * 2**j for j in range(9)]
    assert g == tuple(max(math.ceil(2 * math.sqrt(n)), 10) for n in points)
    stds = [math.sqrt(0.1875 * n * b[j]) / g[j] for j, n in enumerate(points)]
    assert np.round(stds).tolist() == [15.0] * 9
    # The regularizer uses another number than the noise.
    s = math.sqrt(9 * math.log(10)) * math.log(9 * 100 / 0.1) / 0.2
    assert round(s) == 207
    regularizer = 3.0 * s * (math.sqrt(9 + math.log(100)) + math.sqrt(10))
    assert system.theory.regularizer == pytest.approx(regularizer)


def test_gaussian_rewards_are_not_clipped_in_the_printed_figures():
    for name in ("zc24-fig2a", "zc24-fig2b"):
        e = experiment_of(name)
        assert e.facts.reward == RewardDistribution("gaussian", 0.5)
        assert all(c.system.plan.clip is None for c in e.curves if c.algorithm != "random")


def test_exact_figures_show_the_effect_of_shuffling():
    sdp = system_of_figure("zc24-fig2a-exact", "SDP, epsilon = 0.001")
    ldp = system_of_figure("zc24-fig2a-exact", "LDP, epsilon = 0.001")
    assert sdp.plan.noise_std == ldp.plan.noise_std
    assert sdp.certificate.status == "proven"
    vector = system_of_figure("zc24-fig2b-exact", "SDP")
    assert vector.certificate.status == "proven"
    assert vector.certificate.exact.epsilon == pytest.approx(0.2, rel=1e-3)
    assert vector.certificate.exact.epsilon <= 0.2


# ---- the random policy --------------------------------------------------------------------------


def test_the_random_policy_chooses_all_actions_equally_often():
    curve = {"label": "random", "algorithm": "random"}
    e = make_experiment(
        name="r", environment=Sphere(dimension=3, actions=7), curves=[curve], horizon=700, silos=3
    )
    environment, plans = (
        e.environment.open(0, 0, 3),
        [each_curve.system.plan for each_curve in e.curves],
    )
    (outcome,) = compiled.run(environment, plans, e.checkpoints, record=True)
    (step_outcome,) = server.run_steps(environment, plans, e.checkpoints)
    assert np.array_equal(outcome.actions, step_outcome.actions)
    assert np.array_equal(outcome.group_regret, step_outcome.group_regret)
    assert stats.chisquare(np.bincount(outcome.actions.ravel(), minlength=7)).pvalue > FALSE_ALARM
    assert outcome.bits_up[-1] == outcome.bits_down[-1] == outcome.synchronisations[-1] == 0


@pytest.mark.parametrize("key", [{"batch_size": 5}, {"lazy": True}, {"radius_multiplier": 0.1}])
def test_the_random_policy_refuses_keys_without_effect(key):
    with pytest.raises(InputError, match="has no meaning for random"):
        make_system("random", silos=1, horizon=5, dimension=2, **key)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"protocol": "silo-ldp", "messages": "individual"}, "messages belongs to protocol"),
        ({"protocol": "central", "honest_fraction": 0.5}, "honest_fraction belongs to protocol"),
        ({"layout": "goe2"}, 'layout must be "iid"'),
        ({"vector_scale": 2.0}, 'belongs to calibration "published-code"'),
        ({"honest_fraction": 0.0}, "honest_fraction must be > 0"),
        ({"messages": "some"}, "messages must be one of"),
    ],
)
def test_protocols_refuse_keys_without_effect(keys, message):
    with pytest.raises(InputError, match=message):
        vector_system(**keys)


def test_limits_of_vector_sums():
    keys = {"dimension": 2, "users": 4, "epsilon": 2.0, "delta": 0.01}
    tiny_bound = fastfed.parties.VectorSum(bound=1e-100, seed=1, **keys)
    assert np.isfinite(tiny_bound.sum(np.ones((4, 2)))).all()
    seeded = fastfed.parties.VectorSum(seed=1, **keys)
    with pytest.raises(InputError, match="user must be given if the noise is seeded"):
        seeded.randomize([1.0, 0.0])
    first = seeded.randomize([1.0, 0.0], user=0)
    assert not np.array_equal(first, seeded.randomize([1.0, 0.0], user=1))
    bits = np.array([seeded.randomize([1.0, 0.0], user=i) for i in range(4)])
    seeded.analyze(seeded.shuffle(bits))
    assert not np.array_equal(first, seeded.randomize([1.0, 0.0], user=0))
    for call, message in (
        (lambda: seeded.randomize([1.0, 0.0], user=4), "user must be an integer >= 0 and <= 3"),
        (lambda: seeded.analyze(np.full((2, 4 * seeded.message_bits), 7.5)), "bits must be 0 or 1"),
        (
            lambda: fastfed.parties.VectorSum(dimension=2, users=10**9, noise_bits=2**40),
            "2\\^62 or more",
        ),
    ):
        with pytest.raises(InputError, match=message):
            call()
    many_users = fastfed.parties.VectorSum(dimension=2, users=1000, noise_bits=10**6)
    with pytest.raises(InputError, match='"aggregate" draws the number of ones'):
        many_users.sum(np.zeros((1000, 2)), messages="individual")
