"""The shuffle protocols: shuffler, bits, counts, what travels, and the published constants."""

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
    sizes = {"silos": 2, "horizon": 12, "dimension": 2, "batch_size": 3, "epsilon": 4.0,
             "delta": 0.01, "protocol": "shuffle-vector", "release": "tree"}  # fmt: skip
    return make_system("private-fedlinucb", **{**sizes, **keys})


def reports(plan, noise, rounds=3):
    """One report of every silo after a batch of made-up rounds."""
    draw = np.random.default_rng(0)
    made = []
    for i in range(plan.silos):
        silo = Silo(plan, i, noise)
        for _ in range(rounds):
            x = draw.normal(size=(1, plan.dimension))
            silo.select(x / np.linalg.norm(x))
            silo.observe(float(draw.uniform()))
        made.append(silo.report())
    return made


# ---- the shuffler -------------------------------------------------------------------------------


def test_a_shuffled_report_does_not_say_who_sent_it():
    plan = vector_system(protocol="shuffle-amplified").plan
    sent = reports(plan, SeededNoise(1))
    passed = Shuffler(plan, SeededNoise(1)).shuffle(sent)
    assert [type(m) for m in passed] == [Shuffled, Shuffled]
    assert not any(hasattr(m, "silo") for m in passed)
    assert {m.values.tobytes() for m in passed} == {r.values.tobytes() for r in sent}


@pytest.mark.parametrize("noise", [None, SeededNoise(3)])
def test_every_order_is_equally_likely_and_none_is_kept(noise):
    plan = vector_system(protocol="shuffle-amplified", silos=3, horizon=2400 * 3).plan
    size = plan.statistic_size
    counts: dict[tuple, int] = {}
    shuffler = Shuffler(plan, noise)
    for release in range(1, 2401):
        sent = [Report(release, 2, np.full(size, float(i)), i) for i in range(3)]
        # The order of arrival is not to matter.
        passed = shuffler.shuffle(sent[::-1])
        order = tuple(int(m.values[0]) for m in passed)
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM


def test_of_counts_the_server_sees_the_sum_alone():
    """A silo's count carries the noise of its own users only, which hides nothing in particular."""
    plan = vector_system().plan
    noise = SeededNoise(1)
    sent = reports(plan, noise)
    assert all(type(r) is Counts for r in sent)
    (passed,) = Shuffler(plan, noise).shuffle(sent)
    assert type(passed) is Shuffled
    assert np.array_equal(passed.values, sum(r.values for r in sent))
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        Server(plan, noise).combine(sent)
    with pytest.raises(InputError, match="must pass on 1 messages"):
        Server(plan, noise).combine([passed, passed])


def test_bits_are_permuted_under_their_own_label():
    plan = vector_system(messages="individual").plan
    noise = SeededNoise(5)
    sent = reports(plan, noise)
    (mixed,) = Shuffler(plan, noise).shuffle(sent)
    assert isinstance(mixed, ShuffledBits)
    assert mixed.bits.shape[1] == sum(r.bits.shape[1] for r in sent)
    ones = sum(r.bits.sum(axis=1, dtype=int) for r in sent)
    assert np.array_equal(mixed.bits.sum(axis=1, dtype=int), ones)
    straight = np.concatenate([r.bits for r in sent], axis=1)
    assert not np.array_equal(mixed.bits, straight)


def test_the_shuffler_refuses_what_it_cannot_mix():
    """With a message missing or sent twice there would be less noise than the certificate says."""
    plan = vector_system().plan
    one, two = (Counts(1, 2, np.full(5, float(i)), i) for i in range(2))
    shuffler = Shuffler(plan)
    for sent, message in (
        ([], r"one message of each of the 2 silos, got silos \[\]"),
        ([one], r"got silos \[0\]"),
        ([one, one], r"got silos \[0, 0\]"),
        ([one, Counts(2, 2, np.zeros(5), 1)], "of release 1, got release 2"),
        ([one, Report(1, 2, np.zeros(5), 1)], "takes Counts messages, got Report"),
        ([one, Counts(1, 1, np.zeros(2), 1)], "must have dimension 2, got 1"),
        ([one, None], "takes Counts messages, got NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            shuffler.shuffle(sent)
    assert shuffler.release == 0
    assert len(shuffler.shuffle([two, one])) == 1
    with pytest.raises(InputError, match="of release 2, got release 1"):
        shuffler.shuffle([one, two])  # a second look at other noise of one release


class Failing:
    """A source that fails at every second draw, before it draws."""

    def __init__(self, noise):
        self.noise, self.calls = noise, 0

    def __getattr__(self, name):
        def draw(*key):
            self.calls += 1
            if self.calls % 2:
                raise OSError("no entropy")
            return getattr(self.noise, name)(*key)

        return draw


def until_it_works(act, *given):
    for _ in range(200):
        try:
            return act(*given)
        except OSError:
            continue
    raise AssertionError("never worked")


@pytest.mark.parametrize(
    ("protocol", "more"),
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
def test_a_source_that_fails_once_changes_nothing(protocol, more):
    """Nobody is counted twice, and no node gets other noise, when a draw has to be repeated."""
    plan = vector_system(protocol=protocol, **more).plan
    totals = []
    for noise in (SeededNoise(4), Failing(SeededNoise(4))):
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
        totals.append((broadcast.values, [s.clipped_rewards for s in silos]))
    assert np.array_equal(totals[0][0], totals[1][0])
    assert totals[0][1] == totals[1][1]


def test_the_server_of_a_shuffle_protocol_takes_nothing_unshuffled():
    plan = vector_system(protocol="shuffle-amplified").plan
    server, noise = Server(plan), SeededNoise(1)
    sent = reports(plan, noise)
    with pytest.raises(InputError, match="needs messages from a Shuffler"):
        server.combine(sent)
    passed = Shuffler(plan, noise).shuffle(sent)
    with pytest.raises(InputError, match="must pass on 2 messages"):
        server.combine(passed[:1])
    assert server.release == 0
    assert server.combine(passed).release == 1


# ---- bits and counts ----------------------------------------------------------------------------


def node_of(plan, seed, rounds):
    """The first node of a plan over the same made-up data, noise by seed: (s,)."""
    noise = SeededNoise(seed)
    passed = Shuffler(plan, noise).shuffle(reports(plan, noise, rounds))
    return Server(plan, noise).combine(passed).values


def test_messages_and_aggregate_have_one_law():
    """Chi-square of the two samples in every entry, and the mean is the true sum.

    The published constants add a few bits to a message, so rounding and every bit of noise show.
    """
    keys = {"epsilon": 6.0, "delta": 0.05, "calibration": "published-code", "clip": True}
    plans = [vector_system(messages=m, **keys).plan for m in ("individual", "aggregate")]
    n = 1200
    one, other = (
        np.array([node_of(plan, 10_000 * k + i, 3) for i in range(n)])
        for k, plan in enumerate(plans)
    )
    spread = one.std(axis=0)
    truth = np.zeros(plans[0].statistic_size)
    draw = np.random.default_rng(0)
    for _ in range(2 * 3):
        x = draw.normal(size=2)
        linalg.accumulate(truth, x / np.linalg.norm(x), float(draw.uniform()))
    for sample in (one, other):
        assert np.abs(sample.mean(axis=0) - truth).max() < 5 * spread.max() / math.sqrt(n)
    for entry in range(one.shape[1]):
        edges = np.quantile(np.concatenate([one[:, entry], other[:, entry]]), np.linspace(0, 1, 13))
        edges = np.unique(edges)
        edges[0], edges[-1] = -np.inf, np.inf
        table = [np.histogram(s[:, entry], edges)[0] for s in (one, other)]
        assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


def test_individual_bits_play_through_and_learn_the_same():
    keys = {"horizon": 60, "silos": 2, "seed": 3, "replicates": 2, "batch_size": 6,
            "epsilon": 50.0, "delta": 0.05, "protocol": "shuffle-vector", "checkpoints": 60,
            "radius_multiplier": 0.01}  # fmt: skip
    environment = {"kind": "sphere", "dimension": 3, "actions": 12}
    drawn = [
        fastfed.simulate(environment, "private-fedlinucb", messages=m, driver=d, **keys)
        for m, d in (("individual", "compiled"), ("individual", "step"), ("aggregate", "compiled"))
    ]
    bits, readable, counts = (r.curves[0].group_regret for r in drawn)
    assert np.array_equal(bits, readable)
    assert not np.array_equal(bits, counts)
    assert np.array_equal(bits[:, :6], counts[:, :6])  # before the first release all is the same


def test_bits_that_would_not_fit_are_refused_with_the_way_out():
    with pytest.raises(InputError, match='"aggregate" draws the number of ones'):
        vector_system(horizon=100_000, batch_size=1000, messages="individual")
    with pytest.raises(InputError, match="needs clip = true"):
        vector_system(clip=False, messages="individual")


def test_what_is_not_clipped_is_not_cut_off():
    """The published code counts beyond 0..2 g; a reward of 3 must not become one of 1."""
    plan = vector_system(clip=False, calibration="published-code", epsilon=50.0).plan
    noise = SeededNoise(0)
    silos = [Silo(plan, i, noise) for i in range(2)]
    for silo in silos:
        for _ in range(3):
            silo.select(np.array([[1.0, 0.0]]))
            silo.observe(3.0)
    passed = Shuffler(plan, noise).shuffle([s.report() for s in silos])
    bias = Server(plan, noise).combine(passed).values[0]
    std = math.sqrt(0.1875 * 6 * plan.encoding.noise_bits[0]) / plan.encoding.precision[0]
    assert abs(bias - 18.0) < 6 * std + 1.0


def test_threads_and_calls_change_nothing_for_bits():
    sizes = dict(problems.corners())["plain, shuffle-vector, eager"]
    table = problems.curve("shuffle-vector", batch_size=sizes["batch_size"], lazy=False)
    e = make_experiment(
        name="bits", environment=Sphere(dimension=4, actions=9), curves=[table], horizon=40,
        silos=3, seed=7, checkpoints=5,
    )  # fmt: skip
    opened, plan = e.environment.open(7, 0, 3), e.curves[0].system.plan
    (one,) = compiled.run(opened, [plan], e.checkpoints, record=True)
    (many,) = compiled.run(opened, [plan], e.checkpoints, record=True, threads=3, rounds_per_call=7)
    assert np.array_equal(one.actions, many.actions) and np.array_equal(one.total, many.total)


def test_a_deployment_with_noise_of_the_operating_system():
    system = vector_system(horizon=6)
    plan = system.plan
    silos, shuffler, server = [Silo(plan, i) for i in range(2)], Shuffler(plan), Server(plan)
    for _ in range(6):
        for silo in silos:
            silo.select(np.eye(2))
            silo.observe(1.0)
        if silos[0].due:
            broadcast = server.combine(shuffler.shuffle([s.report() for s in silos]))
            for silo in silos:
                silo.receive(broadcast)
    assert server.release == 2
    assert not any("simulation" in c for c in system.deployed_certificate.caveats)


def test_noise_bits_of_a_node_are_handed_out_once():
    noise = SystemNoise()
    noise.binomials(0, 1, 3, 100)
    with pytest.raises(InputError, match="drawn already"):
        noise.binomials(0, 1, 3, 100)


# ---- what travels -------------------------------------------------------------------------------


def test_bits_sent_equal_the_bits_of_the_messages():
    """Counted by the plan, and added up over messages really made."""
    plan = vector_system(messages="individual", horizon=15).plan
    noise = SeededNoise(2)
    silos, sent, label = [Silo(plan, i, noise) for i in range(2)], 0, 3  # 5 labels: 3 bits
    shuffler, server = Shuffler(plan, noise), Server(plan, noise)
    for _ in range(1, 16):
        for silo in silos:
            silo.select(np.eye(2))
            silo.observe(0.5)
        if silos[0].due:
            made = [s.report() for s in silos]
            sent += sum(m.bits.size * (1 + label) for m in made)
            broadcast = server.combine(shuffler.shuffle(made))
            for silo in silos:
                silo.receive(broadcast)
        assert plan.bits_up_of(server.release) == sent
    assert plan.releases == server.release == 5
    assert plan.bits_down_of(5) == 5 * 2 * 5 * 64


def test_plain_sums_send_eight_bytes_an_entry():
    system = make_system(
        "private-fedlinucb", silos=3, horizon=20, dimension=2, batch_size=6, epsilon=1, delta=0.1
    )
    for sent in (system.plan.bits_up_of, system.plan.bits_down_of):
        assert [sent(k) for k in range(4)] == [k * 3 * 5 * 64 for k in range(4)]


# ---- the published constants --------------------------------------------------------------------


@cache
def experiment_of(name):
    return experiment_from_spec(figure_spec(figure(name)))


def plan_of(name, label):
    return next(c.system for c in experiment_of(name).curves if c.label == label)


def test_published_constants_of_figure_2a():
    system = plan_of("zc24-fig2a", "SDP, epsilon = 0.001")
    assert system.plan.noise_std.bias == pytest.approx(5528, abs=0.5)
    N, M, d, s = 9, 100, 10, system.plan.noise_std.bias
    regularizer = math.sqrt(M * N) * s * (math.sqrt(N + math.log(100)) + math.sqrt(d))
    assert system.theory.regularizer == pytest.approx(regularizer)


def test_published_constants_of_figure_2b():
    system = plan_of("zc24-fig2b", "SDP")
    g, b = system.plan.encoding.precision, system.plan.encoding.noise_bits
    points = [100 * 25 * 2**j for j in range(9)]
    assert g == tuple(max(math.ceil(2 * math.sqrt(n)), 10) for n in points)
    stds = [math.sqrt(0.1875 * n * b[j]) / g[j] for j, n in enumerate(points)]
    assert np.round(stds).tolist() == [15.0] * 9
    # Its regularizer is made of another number than the noise.
    s = math.sqrt(9 * math.log(10)) * math.log(9 * 100 / 0.1) / 0.2
    assert round(s) == 207
    regularizer = 3.0 * s * (math.sqrt(9 + math.log(100)) + math.sqrt(10))
    assert system.theory.regularizer == pytest.approx(regularizer)


def test_gaussian_rewards_are_not_clipped_in_the_printed_figures():
    for name in ("zc24-fig2a", "zc24-fig2b"):
        e = experiment_of(name)
        assert e.facts.reward == RewardDistribution("gaussian", 0.5)
        assert all(c.system.plan.clip is None for c in e.curves if c.algorithm != "random")


def test_exact_figures_say_what_shuffling_is_worth():
    sdp = plan_of("zc24-fig2a-exact", "SDP, epsilon = 0.001")
    ldp = plan_of("zc24-fig2a-exact", "LDP, epsilon = 0.001")
    assert sdp.plan.noise_std == ldp.plan.noise_std
    assert sdp.certificate.status == "proven"
    vector = plan_of("zc24-fig2b-exact", "SDP")
    assert vector.certificate.status == "proven"
    assert vector.certificate.exact.epsilon == pytest.approx(0.2, rel=1e-3)
    assert vector.certificate.exact.epsilon <= 0.2


# ---- the random policy --------------------------------------------------------------------------


def test_the_random_policy_plays_each_action_alike():
    table = {"label": "random", "algorithm": "random"}
    e = make_experiment(
        name="r", environment=Sphere(dimension=3, actions=7), curves=[table], horizon=700, silos=3
    )
    opened, plans = e.environment.open(0, 0, 3), [c.system.plan for c in e.curves]
    (one,) = compiled.run(opened, plans, e.checkpoints, record=True)
    (other,) = server.run_steps(opened, plans, e.checkpoints)
    assert np.array_equal(one.actions, other.actions)
    assert np.array_equal(one.group_regret, other.group_regret)
    assert stats.chisquare(np.bincount(one.actions.ravel(), minlength=7)).pvalue > FALSE_ALARM
    assert one.bits_up[-1] == one.bits_down[-1] == one.synchronisations[-1] == 0


@pytest.mark.parametrize("key", [{"batch_size": 5}, {"lazy": True}, {"radius_multiplier": 0.1}])
def test_the_random_policy_refuses_keys_that_would_say_nothing(key):
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
def test_keys_of_bits_where_they_say_nothing(keys, message):
    with pytest.raises(InputError, match=message):
        vector_system(**keys)


def test_vector_sum_at_its_edges():
    keys = {"dimension": 2, "users": 4, "epsilon": 2.0, "delta": 0.01}
    tiny = fastfed.parties.VectorSum(bound=1e-100, seed=1, **keys)
    assert np.isfinite(tiny.sum(np.ones((4, 2)))).all()
    seeded = fastfed.parties.VectorSum(seed=1, **keys)
    with pytest.raises(InputError, match="user must be given if the noise is seeded"):
        seeded.randomize([1.0, 0.0])
    first = seeded.randomize([1.0, 0.0], user=0)
    assert not np.array_equal(first, seeded.randomize([1.0, 0.0], user=1))
    bits = np.array([seeded.randomize([1.0, 0.0], user=i) for i in range(4)])
    seeded.analyze(seeded.shuffle(bits))
    assert not np.array_equal(first, seeded.randomize([1.0, 0.0], user=0))
    for bad, message in (
        (lambda: seeded.randomize([1.0, 0.0], user=4), "user must be an integer >= 0 and <= 3"),
        (lambda: seeded.analyze(np.full((2, 4 * seeded.message_bits), 7.5)), "bits must be 0 or 1"),
        (
            lambda: fastfed.parties.VectorSum(dimension=2, users=10**9, noise_bits=2**40),
            "2\\^62 or more",
        ),
    ):
        with pytest.raises(InputError, match=message):
            bad()
    many = fastfed.parties.VectorSum(dimension=2, users=1000, noise_bits=10**6)
    with pytest.raises(InputError, match='"aggregate" draws the number of ones'):
        many.sum(np.zeros((1000, 2)), messages="individual")
