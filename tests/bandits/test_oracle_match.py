"""The product against the paper's pseudocode, by forced replay on the same draws."""

import dataclasses

import numpy as np
import problems
import pytest
from oracle.zhou_chowdhury_2024 import Direct, replay

from fastfed._random import SeededNoise
from fastfed.environments import Replay, RewardDistribution, Sphere
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
        words = source.random_u32(silo, t, size * len(nodes)).reshape(-1, size)
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


def oracle_replay(experiment, outcome, change=lambda direct: direct):
    plan = experiment.curves[0].system.plan
    opened = experiment.environment.open(experiment.seed, 0, experiment.silos)
    noise = oracle_noise(plan, experiment.seed)
    clip = plan.clip
    protocol = "local" if not plan.batch_size else plan.protocol.id
    release = str(plan.release)
    if plan.secure is not None:
        # Nodes of a tree with the noise of all shares, drawn as a trusted server would.
        assert np.isin(plan.factor.matrix, (0.0, 1.0)).all()
        protocol, release = "central", "tree"

    r = plan.radius

    def radius(t, k):
        rows = plan.silos if plan.batch_size else 1
        counted = k * plan.batch_size if plan.lazy else t
        inside = 1.0 + rows * counted / (plan.dimension * r.log_lambda[k])
        return r.multiplier * (
            r.offset[k] + r.scale * np.sqrt(r.base + plan.dimension * np.log(inside))
        )

    if r.direct:
        direct = Direct(
            full=lambda k: plan.regularizer[k],
            floor=lambda k: r.floor[k],
            error=lambda k: r.error_bound[k],
            anchor=r.anchor,
            base=r.base,
            scale=r.scale,
            multiplier=r.multiplier,
        )
        rule = {"direct": change(direct)}
    else:
        rule = {"regularizer": lambda k: plan.regularizer[k], "radius": radius}

    return replay(
        contexts=lambda t, i: opened.round(i, t)[0].astype(float),
        means=lambda t, i: opened.round(i, t)[1],
        actions=outcome.actions,
        rewards=outcome.rewards,
        batch_size=plan.batch_size or None,
        protocol=protocol,
        lazy=plan.lazy,
        noise=noise,
        server_noise=lambda k: noise(plan.silos, k),
        clip=None if clip is None else (clip.feature, clip.low, clip.high),
        release=release,
        **rule,
        **(oracle_bits(plan, experiment.seed) if plan.protocol.shuffled else {}),
    )


def check(environment, sizes, **more):
    # The papers' algorithms choose the largest bound.
    more = {"sieve": 1.0, **more}
    table = problems.curve(sizes["protocol"], **problems.keys_of(sizes), **more)
    e = make_experiment(
        name="oracle", environment=environment, curves=[table], horizon=sizes["horizon"],
        silos=sizes["silos"], seed=3, checkpoints=sizes["horizon"],
    )  # fmt: skip
    opened = environment.open(e.seed, 0, e.silos)
    (outcome,) = compiled.run(opened, [e.curves[0].system.plan], e.checkpoints, record=True)
    assert outcome.events["indefinite"] == 0
    truth = oracle_replay(e, outcome)
    # Nearer than this, rounding may choose another lambda: the problem needs another seed.
    assert truth.nearest_floor > 1e-12
    assert truth.worst_gap < 1e-9
    np.testing.assert_allclose(outcome.group_regret, truth.group_regret, rtol=1e-8, atol=1e-8)
    if truth.totals:
        w, u = truth.totals[-1]
        d = e.facts.dimension
        scale = max(1.0, np.abs(w).max())
        np.testing.assert_allclose(outcome.total[:d], u, atol=1e-8 * scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], atol=1e-8 * scale)
    return e, outcome, truth


@pytest.mark.parametrize(
    "sizes", [s for _, s in problems.corners()], ids=[n for n, _ in problems.corners()]
)
def test_every_corner_plays_the_papers_pseudocode(sizes):
    check(Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)


# The proven radii of the paper, whose regularizer and radius are fixed before the first round.
OF_THE_PAPER = [
    *("plain, none, eager", "plain, local", "plain, silo-ldp, lazy", "plain, silo-ldp, eager"),
    *("short last batch, central, eager", "one of everything, silo-ldp, lazy"),
    *("2^k + 1 releases, silo-ldp, honaker, eager", "low noise, central, toeplitz, lazy"),
]


@pytest.mark.parametrize("radius", ["lemma-c2", "lemma-c4"])
@pytest.mark.parametrize("name", OF_THE_PAPER)
def test_corners_with_the_radii_of_the_paper(name, radius):
    sizes = dict(problems.corners())[name]
    environment = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    e, _, truth = check(environment, sizes, radius=radius)
    assert not e.curves[0].system.plan.radius.direct
    assert truth.nearest_floor == np.inf


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
def test_scaled_direct_radius(protocol, release):
    sizes = dict(problems.corners())["plain, silo-ldp, eager"] | {"protocol": protocol}
    e, _, _ = check(Sphere(dimension=4, actions=9), sizes, release=release, radius_multiplier=0.1)
    assert e.curves[0].system.plan.radius.multiplier == 0.1


@pytest.mark.parametrize("release", ["honaker", "toeplitz"])
@pytest.mark.parametrize("lazy", ["lazy", "eager"])
def test_the_direct_radius_lowers_lambda_step_by_step(release, lazy):
    """The comparison sees lambda at full, at 0, and at eighths between."""
    corners = dict(problems.corners())
    eighths = set()
    for problem in ("2^k releases, silo-ldp", "low noise, central"):
        sizes = corners[f"{problem}, {release}, {lazy}"]
        e, _, truth = check(Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)
        full = e.curves[0].system.plan.regularizer
        eighths |= {round(8 * lam / full[k]) for k, lam in enumerate(truth.regularizers)}
    assert {0, 8} < eighths
    assert len(eighths) >= 4


@pytest.mark.parametrize("lazy", [True, False])
def test_published_code_settings_unclipped(lazy):
    sizes = {"silos": 4, "horizon": 60, "batch_size": 5, "lazy": lazy, "protocol": "silo-ldp"}
    sphere = Sphere(dimension=5, actions=12, reward=RewardDistribution("gaussian", 0.5))
    check(sphere, sizes, radius="published-code", calibration="published-code", clip=False)


@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "central"])
def test_rewards_outside_the_unit_interval_are_clipped_as_the_oracle_clips(protocol, recorded):
    contexts, rewards = recorded
    sizes = {"silos": 3, "horizon": 24, "batch_size": 5, "lazy": False, "protocol": protocol}
    _, outcome, _ = check(Replay.from_arrays(contexts, 3.0 * rewards - 1.0), sizes)
    assert outcome.events["clipped_rewards"] > 0


def test_a_wrong_replay_is_noticed():
    """The comparison can fail: one changed action."""
    sizes = {"silos": 2, "horizon": 20, "batch_size": 5, "lazy": False, "protocol": "silo-ldp"}
    e, outcome, _ = check(Sphere(dimension=3, actions=6), sizes)
    assert outcome.actions is not None and outcome.rewards is not None
    outcome.actions[1, 10] = (outcome.actions[1, 10] + 1) % 6
    assert oracle_replay(e, outcome).worst_gap > 1e-6


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda d: {"floor": lambda k: 0.0}, id="lambda full"),
        pytest.param(lambda d: {"floor": lambda k: 0.9 * d.floor(k)}, id="floor", marks=SLOW),
        pytest.param(lambda d: {"full": lambda k: 1.05 * d.full(k)}, id="full", marks=SLOW),
        pytest.param(lambda d: {"error": lambda k: 0.9 * d.error(k)}, id="error"),
        pytest.param(lambda d: {"anchor": 1.2 * d.anchor}, id="anchor", marks=SLOW),
        pytest.param(lambda d: {"base": 0.95 * d.base}, id="base", marks=SLOW),
        pytest.param(lambda d: {"scale": 0.95 * d.scale}, id="scale", marks=SLOW),
    ],
)
def test_a_wrong_direct_radius_is_noticed(wrong):
    """By some of eight corners: one alone may have no near choice to spoil."""
    gaps = []
    for name, sizes in problems.releases():
        if name.startswith("low noise"):
            e, outcome, _ = check(Sphere(dimension=4, actions=9), sizes)
            altered = oracle_replay(
                e, outcome, lambda direct: dataclasses.replace(direct, **wrong(direct))
            )
            gaps.append(altered.worst_gap)
    assert max(gaps) > 1e-6


@pytest.mark.parametrize(
    ("release", "weights"), [("honaker", [1 / 3, 1 / 3, 2 / 3]), ("toeplitz", [1 / 2, 1])]
)
def test_the_noise_of_a_second_release_by_hand(release, weights):
    """Without the oracle: what the product's total holds beside the data."""
    sizes = dict(problems.corners())[f"2^k releases, central, {release}, lazy"] | {"horizon": 6}
    e, outcome, _ = check(Sphere(dimension=3, actions=4), sizes)
    rounds = e.environment.open(e.seed, 0, 2)
    x = np.array(
        [rounds.round(i, t + 1)[0][outcome.actions[i, t]] for t in range(6) for i in range(2)],
        dtype=float,
    )
    noise = oracle_noise(e.curves[0].system.plan, e.seed)
    added = sum(v * noise(2, number)[1] for number, v in enumerate(weights, start=1))
    np.testing.assert_allclose(outcome.total[3:], (x.T @ x + added)[np.tril_indices(3)], atol=1e-6)
    assert np.abs(added).max() > 0.1
