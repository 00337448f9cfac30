"""The step driver and the compiled driver give the same results, bit for bit."""

import numpy as np
import problems
import pytest

import fastfed
from fastfed._random import SeededNoise
from fastfed.environments import FixedSet, Replay, Sphere
from fastfed.simulation import compiled, server
from fastfed.simulation.experiment import make_experiment


def experiment(environment, sizes, **more):
    """Return an experiment of one curve from a problem (see problems.py)."""
    table = problems.curve(sizes["protocol"], **problems.curve_keys(sizes), **more)
    return make_experiment(
        name="drivers",
        environment=environment,
        curves=[table],
        horizon=sizes["horizon"],
        silos=sizes["silos"],
        seed=7,
        checkpoints=5,
    )


def assert_same_bits(a, b):
    """Check that two outcomes are equal in every bit."""
    np.testing.assert_array_equal(a.actions, b.actions)
    np.testing.assert_array_equal(a.rewards, b.rewards)
    np.testing.assert_array_equal(a.group_regret, b.group_regret)
    np.testing.assert_array_equal(a.total, b.total)
    np.testing.assert_array_equal(a.synchronisations, b.synchronisations)
    np.testing.assert_array_equal(a.bits_up, b.bits_up)
    np.testing.assert_array_equal(a.bits_down, b.bits_down)
    assert a.events == b.events


def outcomes_of_both_drivers(e, **keys):
    """Return the outcomes of all curves by the compiled driver and by the step driver."""
    environment = e.environment.open(e.seed, 0, e.silos)
    plans = [curve.system.plan for curve in e.curves]
    compiled_outcomes = compiled.run(environment, plans, e.checkpoints, record=True, **keys)
    return compiled_outcomes, server.run_steps(environment, plans, e.checkpoints)


@pytest.mark.parametrize(
    "sizes", [s for _, s in problems.corners()], ids=[n for n, _ in problems.corners()]
)
def test_the_two_drivers_agree_bit_for_bit(sizes):
    sphere = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(sphere, sizes))
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("radius", ["direct", "lemma-c2"])
@pytest.mark.parametrize("regularizer", [1e-3, 2.0])
def test_drivers_agree_where_the_noisy_v_is_indefinite(regularizer, radius):
    """With a regularizer far below the noise, both drivers shift V and count the shifts."""
    sizes = {"silos": 3, "horizon": 60, "batch_size": 4, "lazy": True, "protocol": "silo-ldp"}
    keys = {"regularizer": regularizer, "epsilon": 1.0, "radius": radius}
    e = experiment(Sphere(dimension=6, actions=8), sizes, **keys)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert compiled_outcome.events["indefinite"] > 0
    assert np.isfinite(compiled_outcome.total).all()
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize(
    "sizes",
    [s for n, s in problems.releases() if n.startswith("low noise")],
    ids=[n for n, _ in problems.releases() if n.startswith("low noise")],
)
def test_drivers_agree_where_lambda_falls_to_zero(sizes):
    """The noisy sum is above the floor without lambda, so lambda is 0 and V is the noisy sum."""
    e = experiment(Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)
    plan = e.curves[0].system.plan
    assert plan.radius.direct and plan.radius.floor[-1] > 0.0
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    v = np.zeros((plan.dimension, plan.dimension))
    v[np.tril_indices(plan.dimension)] = compiled_outcome.total[plan.dimension :]
    assert np.linalg.eigvalsh(v)[0] > plan.radius.floor[-1]
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("lazy", [True, False])
def test_drivers_agree_where_the_direct_radius_is_scaled(lazy):
    """The multiplier scales both bonuses; epsilon is such that the second bonus matters, too."""
    sizes = {"silos": 2, "horizon": 60, "batch_size": 3, "lazy": lazy, "protocol": "silo-ldp"}
    e = experiment(Sphere(dimension=4, actions=30), sizes, epsilon=2.0, radius_multiplier=0.05)
    radius = e.curves[0].system.plan.radius
    assert radius.direct and radius.multiplier == 0.05
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("release", ["honaker", "toeplitz", "buffered"])
def test_drivers_agree_where_lambda_falls_partly(release):
    """At the last release, which the last rounds use, lambda is neither 0 nor the full value."""
    keys = {"batch_size": 5, "lazy": False, "protocol": "silo-ldp", "release": release}
    sizes = {"silos": 2, "horizon": 24, **keys}
    e = experiment(Sphere(dimension=3, actions=5), sizes, epsilon=5.0)
    plan = e.curves[0].system.plan
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    v = np.zeros((3, 3))
    v[np.tril_indices(3)] = compiled_outcome.total[3:]
    floor, full = plan.radius.floor[-1], plan.regularizer[-1]
    assert floor - full * 7 / 8 < np.linalg.eigvalsh(v)[0] < floor
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 20.0, 1000.0])
@pytest.mark.parametrize("keys", [{}, {"regularizer": 1e-3}, {"radius": "published-code"}])
def test_drivers_agree_on_releases_in_every_round_at_d_5(protocol, epsilon, keys):
    """At d = 5 the compiled driver computes a model in one pass if it guesses lambda nearly."""
    sizes = {"silos": 2, "horizon": 150, "batch_size": 1, "lazy": True, "protocol": protocol}
    for actions in (1, 30):
        e = experiment(Sphere(dimension=5, actions=actions), sizes, epsilon=epsilon, **keys)
        (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
        assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("release", ["toeplitz", "factorised"])
@pytest.mark.parametrize("releases", [1, 7, 8, 9, 16, 21, 43])
def test_drivers_agree_on_noise_shared_by_prefix_sums(release, releases, protocol):
    """The compiled driver sums draws for eight prefixes at a time; the last group is smaller."""
    sizes = {"silos": 2, "horizon": 2 * releases, "batch_size": 2, "lazy": True}
    sizes |= {"protocol": protocol, "release": release}
    e = experiment(Sphere(dimension=3, actions=4), sizes, epsilon=100.0)
    assert e.curves[0].system.plan.releases == releases
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("radius", ["direct", "published-code"])
def test_drivers_agree_where_some_batches_have_a_single_round(radius):
    """In a batch of several rounds a silo learns from its local rounds; in one round it cannot."""
    ends = [t for t in range(1, 60) if t % 8 in {1, 2, 4, 7}]
    sizes = {"silos": 3, "horizon": 64, "lazy": False, "protocol": "silo-ldp"}
    keys = {"release_rounds": ends, "radius": radius, "epsilon": 1000.0}
    e = experiment(Sphere(dimension=3, actions=300), sizes, **keys)
    assert e.curves[0].system.plan.release_rounds == tuple(ends)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(e)
    assert_same_bits(compiled_outcome, step_outcome)


def test_drivers_agree_on_clipped_gaussian_rewards():
    sizes = {"silos": 2, "horizon": 30, "batch_size": 5, "lazy": False, "protocol": "central"}
    sphere = Sphere(
        dimension=3, actions=4, reward=fastfed.environments.RewardDistribution("gaussian", 0.5)
    )
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(sphere, sizes))
    assert compiled_outcome.events["clipped_rewards"] > 0
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("sampling", ["in-order", "without-replacement", "with-replacement"])
def test_drivers_agree_on_a_pool_of_recorded_rounds(recorded, sampling):
    sizes = {"silos": 3, "horizon": 24, "batch_size": 5, "lazy": False, "protocol": "silo-ldp"}
    replay = Replay.from_arrays(*recorded, sampling=sampling)
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(experiment(replay, sizes))
    assert_same_bits(compiled_outcome, step_outcome)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rounds_per_call", [1, 7, None])
def test_threads_and_rounds_per_call_change_no_result(threads, rounds_per_call):
    sizes = dict(problems.corners())["plain, silo-ldp, eager"]
    e = experiment(Sphere(dimension=4, actions=9), sizes)
    environment = e.environment.open(e.seed, 0, e.silos)
    plans = [curve.system.plan for curve in e.curves]
    (one_thread,) = compiled.run(environment, plans, e.checkpoints, record=True)
    (several_threads,) = compiled.run(
        environment,
        plans,
        e.checkpoints,
        record=True,
        threads=threads,
        rounds_per_call=rounds_per_call,
    )
    assert_same_bits(one_thread, several_threads)


def test_curves_simulated_together_equal_curves_simulated_alone():
    environment = Sphere(dimension=4, actions=9)
    curves = [
        problems.curve(protocol, batch_size=batch_size, lazy=lazy)
        for protocol, batch_size, lazy in (
            ("none", 7, True), ("silo-ldp", 5, False), ("central", 1, True),
        )
    ]  # fmt: skip
    keys = {"horizon": 43, "silos": 3, "seed": 3, "replicates": 2, "checkpoints": 9}
    together = fastfed.simulate(environment, curves=curves, threads=2, **keys)
    for curve in curves:
        alone = fastfed.simulate(environment, curves=[curve], threads=1, **keys)
        np.testing.assert_array_equal(
            alone.curves[0].group_regret, together[curve["label"]].group_regret
        )


def test_simulate_gives_equal_regret_with_both_drivers():
    keys = {"horizon": 30, "silos": 3, "replicates": 2, "seed": 11, "batch_size": 4,
            "epsilon": [5.0, 50.0], "delta": 1e-3}  # fmt: skip
    environment = {"kind": "sphere", "dimension": 3, "actions": 6}
    compiled_results = fastfed.simulate(environment, "private-fedlinucb", **keys)
    step_results = fastfed.simulate(environment, "private-fedlinucb", driver="step", **keys)
    for compiled_curve, step_curve in zip(
        compiled_results.curves, step_results.curves, strict=True
    ):
        np.testing.assert_array_equal(compiled_curve.group_regret, step_curve.group_regret)


def test_a_seed_repeats_its_results_and_another_seed_does_not():
    def regret(seed):
        """Return the regret of a run with this seed."""
        results = fastfed.simulate({"kind": "sphere", "dimension": 3, "actions": 6}, "fedlinucb",
                             horizon=30, silos=2, batch_size=5, seed=seed)  # fmt: skip
        return results.curves[0].group_regret

    np.testing.assert_array_equal(regret(1), regret(1))
    assert (regret(1) != regret(2)).any()


def test_silo_and_server_with_system_noise_learn_and_reuse_node_noise():
    """Use the public parties as deployed: noise of the operating system, prefix protocol."""
    system = fastfed.make_system(
        "private-fedlinucb", silos=2, horizon=40, dimension=2, protocol="silo-ldp-prefix",
        batch_size=5, epsilon=50.0, delta=1e-3,
    )  # fmt: skip
    silos = [fastfed.parties.Silo(system.plan, i) for i in range(2)]
    server = fastfed.parties.Server(system.plan)
    actions = np.array([[1.0, 0.0], [0.0, 1.0]])
    for _ in range(40):
        for silo in silos:
            action = silo.select(actions)
            silo.observe(float(action == 1))
        if silos[0].due:
            broadcast = server.combine([s.report() for s in reversed(silos)])
            for silo in silos:
                silo.receive(broadcast)
    assert broadcast.release == 8
    assert broadcast.covariance.shape == (2, 2)
    assert not broadcast.values.flags.writeable
    assert "simulation" not in " ".join(system.deployed_certificate.caveats)


def test_misuse_of_a_silo_gives_one_clear_sentence():
    system = fastfed.make_system("fedlinucb", silos=2, horizon=10, dimension=2, batch_size=5)
    silo = fastfed.parties.Silo(system.plan, 0, SeededNoise(0))
    with pytest.raises(fastfed.InputError, match="observe needs a select"):
        silo.observe(1.0)
    silo.select([[1.0, 0.0]])
    with pytest.raises(fastfed.InputError, match="select was called twice"):
        silo.select([[1.0, 0.0]])
    with pytest.raises(fastfed.InputError, match="reward must be finite"):
        silo.observe(float("nan"))
    silo.observe(1.0)
    with pytest.raises(fastfed.InputError, match="no report due"):
        silo.report()
    with pytest.raises(
        fastfed.InputError, match=r"actions must be finite, got nan at index \(0, 1\)"
    ):
        silo.select([[1.0, float("nan")]])
    with pytest.raises(fastfed.InputError, match=r"actions must have shape \(any, 2\)"):
        silo.select([[1.0, 0.0, 0.0]])
    for _ in range(4):
        silo.select([[1.0, 0.0]])
        silo.observe(1.0)
    with pytest.raises(fastfed.InputError, match="must report and receive release 1"):
        silo.select([[1.0, 0.0]])
    report = silo.report()
    server = fastfed.parties.Server(system.plan)
    with pytest.raises(fastfed.InputError, match="one report of each of the 2 silos"):
        server.combine([report])


@pytest.mark.parametrize("batches", [{"batch_size": 1}, {"release_rounds": [1, 2, 9, 10, 24]}])
def test_drivers_agree_on_a_fixed_set_in_batches_of_one_round(batches):
    """Silos then share one W, from which each makes its model of the set."""
    sizes = {"silos": 3, "horizon": 30, "protocol": "none", "lazy": False, **batches}
    (compiled_outcome,), (step_outcome,) = outcomes_of_both_drivers(
        experiment(FixedSet(dimension=3, actions=5), sizes)
    )
    assert_same_bits(compiled_outcome, step_outcome)
