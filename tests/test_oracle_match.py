"""The product against the paper's pseudocode, by forced replay on the same draws."""

import numpy as np
import problems
import pytest
from oracle.zhou_chowdhury_2024 import replay

from fastfed._random import SeededNoise
from fastfed.environments import Replay, RewardLaw, Sphere
from fastfed.simulation import compiled
from fastfed.simulation.experiment import make_experiment


def oracle_noise(plan, seed):
    """The draws of the product's noise source, as the oracle asks for them."""
    source = SeededNoise(seed, 0)
    d, std = plan.dimension, plan.noise_std

    def noise(silo, node):
        z = source.node(silo, node, d)
        covariance = np.zeros((d, d))
        covariance[np.tril_indices(d)] = z[d:] * std.off_diagonal
        diagonal = z[d:][np.cumsum(np.arange(1, d + 1)) - 1] * std.diagonal
        np.fill_diagonal(covariance, diagonal)
        return z[:d] * std.bias, covariance + np.tril(covariance, -1).T

    return noise


def oracle_bits(plan, seed):
    """The draws of the shuffle protocols, as the oracle asks for them."""
    source = SeededNoise(seed, 0)
    size, encoding = plan.statistic_size, plan.encoding

    def level_of(k):
        return (k & -k).bit_length() - 1

    def uniforms(silo, t, k):
        # One word for each entry and node that holds the point, lowest node first.
        leaf = (t - 1) // plan.batch_size + 1
        nodes = [r for r in range(1, plan.releases + 1) if r - (r & -r) < leaf <= r]
        words = source.words(silo, t, size * len(nodes)).reshape(-1, size)
        return words[nodes.index(k)] * 2.0**-32

    def centred_noise(silo, k):
        trials = plan.points(level_of(k)) * encoding.noise_bits[level_of(k)]
        return source.binomials(silo, k, size, trials)

    given = {"order": lambda k: source.permutation(k, plan.silos)}
    if encoding is not None:
        given |= {
            "encoding": lambda level: (encoding.precision[level], encoding.noise_bits[level]),
            "uniforms": uniforms,
            "centred_noise": centred_noise,
        }
    return given


def oracle_replay(experiment, outcome):
    plan = experiment.curves[0].system.plan
    opened = experiment.environment.open(experiment.seed, 0, experiment.silos)
    noise = oracle_noise(plan, experiment.seed)
    clip = plan.clip

    def radius(t, k):
        rows = plan.silos if plan.batch_size else 1
        counted = k * plan.batch_size if plan.lazy else t
        r = plan.radius
        inside = 1.0 + rows * counted / (plan.dimension * r.log_lambda[k])
        return r.multiplier * (
            r.offset[k] + r.scale * np.sqrt(r.base + plan.dimension * np.log(inside))
        )

    return replay(
        contexts=lambda t, i: opened.round(i, t)[0].astype(float),
        means=lambda t, i: opened.round(i, t)[1],
        actions=outcome.actions,
        rewards=outcome.rewards,
        batch_size=plan.batch_size or None,
        protocol="local" if not plan.batch_size else plan.protocol.id,
        lazy=plan.lazy,
        regularizer=lambda k: plan.regularizer[k],
        radius=radius,
        noise=noise,
        server_noise=lambda k: noise(plan.silos, k),
        clip=None if clip is None else (clip.feature, clip.low, clip.high),
        gamma=plan.second_bonus,
        **(oracle_bits(plan, experiment.seed) if plan.protocol.shuffled else {}),
    )


def check(environment, sizes, **more):
    table = problems.curve(
        sizes["protocol"], batch_size=sizes["batch_size"], lazy=sizes["lazy"], **more
    )
    e = make_experiment(
        name="oracle", environment=environment, curves=[table], horizon=sizes["horizon"],
        silos=sizes["silos"], seed=3, checkpoints=sizes["horizon"],
    )  # fmt: skip
    opened = environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.play(opened, [e.curves[0].system.plan], e.checkpoints, record=True)
    assert outcome.indefinite == 0
    truth = oracle_replay(e, outcome)
    assert truth.worst_gap < 1e-9
    np.testing.assert_allclose(outcome.group_regret, truth.group_regret, rtol=1e-8, atol=1e-8)
    if truth.totals:
        w, u = truth.totals[-1]
        d = e.facts.dimension
        scale = max(1.0, np.abs(w).max())
        np.testing.assert_allclose(outcome.total[:d], u, atol=1e-8 * scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], atol=1e-8 * scale)
    return e, outcome


@pytest.mark.parametrize(
    "sizes", [s for _, s in problems.corners()], ids=[n for n, _ in problems.corners()]
)
def test_every_corner_plays_the_papers_pseudocode(sizes):
    check(Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)


@pytest.mark.parametrize("lazy", [True, False])
def test_published_code_settings_unclipped(lazy):
    sizes = {"silos": 4, "horizon": 60, "batch_size": 5, "lazy": lazy, "protocol": "silo-ldp"}
    sphere = Sphere(dimension=5, actions=12, reward=RewardLaw("gaussian", 0.5))
    check(sphere, sizes, radius="published-code", calibration="published-code", clip=False)


@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "central"])
def test_rewards_outside_the_unit_interval_are_clipped_as_the_oracle_clips(protocol, recorded):
    contexts, rewards = recorded
    sizes = {"silos": 3, "horizon": 24, "batch_size": 5, "lazy": False, "protocol": protocol}
    _, outcome = check(Replay.from_arrays(contexts, 3.0 * rewards - 1.0), sizes)
    assert outcome.clipped_rewards > 0


def test_a_wrong_replay_is_noticed():
    """The comparison can fail: one changed action, one changed reward."""
    sizes = {"silos": 2, "horizon": 20, "batch_size": 5, "lazy": False, "protocol": "silo-ldp"}
    e, outcome = check(Sphere(dimension=3, actions=6), sizes)
    assert outcome.actions is not None and outcome.rewards is not None
    outcome.actions[1, 10] = (outcome.actions[1, 10] + 1) % 6
    assert oracle_replay(e, outcome).worst_gap > 1e-6
