"""Compare the package with the paper's pseudocode, by replaying the same choices on the same
draws."""

import dataclasses

import numpy as np
import problems
import pytest
from oracle import user_bit
from oracle.zhou_chowdhury_2024 import Direct, replay

from fastfed._random import SeededNoise
from fastfed.environments import Replay, RewardDistribution, Sphere
from fastfed.simulation import compiled
from fastfed.simulation.experiment import make_experiment


def oracle_noise(plan, seed):
    """Return the draws of the package's noise source in the form that the oracle needs."""
    source = SeededNoise(seed, 0)
    d, std = plan.dimension, plan.noise_std

    def noise(silo, node):
        """Return the noise (bias, covariance) of a node at a silo."""
        z = source.node(silo, node, d)
        covariance = np.zeros((d, d))
        covariance[np.tril_indices(d)] = z[d:] * std.off_diagonal
        diagonal = z[d:][np.cumsum(np.arange(1, d + 1)) - 1] * std.diagonal
        np.fill_diagonal(covariance, diagonal)
        return z[:d] * std.bias, covariance + np.tril(covariance, -1).T

    return noise


def oracle_bits(plan, seed):
    """Return the draws of the shuffle protocols in the form that the oracle needs."""
    source = SeededNoise(seed, 0)
    size, encoding = plan.statistic_size, plan.encoding

    def level_of(k):
        """Return the level of the node that release k completes."""
        return (k & -k).bit_length() - 1

    def uniforms(silo, t, k):
        """Return the uniforms that round the point of round t for node k."""
        # One word for each entry and each node that contains the point, lowest node first.
        leaf = (t - 1) // plan.batch_size + 1
        nodes = [r for r in range(1, plan.releases + 1) if r - (r & -r) < leaf <= r]
        words = source.random_u32(silo, t, size * len(nodes)).reshape(-1, size)
        return words[nodes.index(k)] * 2.0**-32

    def centred_noise(silo, k):
        """Return the centred binomial noise of node k."""
        trials = plan.points(level_of(k)) * encoding.noise_bits[level_of(k)]
        return source.binomials(silo, k, size, trials)

    arguments = {"order": lambda k: source.permutation(k, plan.silos)}
    if encoding is not None:
        arguments |= {
            "encoding": lambda level: (encoding.precision[level], encoding.noise_bits[level]),
            "uniforms": uniforms,
            "centred_noise": centred_noise,
        }
    return arguments


def debiased_bits(plan, seed, rewards):
    """Return the debiased bits that the users of rewards (M, T) send."""
    source, q = SeededNoise(seed, 0), plan.flips / 2**53

    def debiased(silo, t, reward):
        """Return the debiased bit of a user's reward."""
        uniforms = (source.random_u32(silo, t, 4).view(np.uint64) >> np.uint64(11)) / 2.0**53
        return user_bit.debiased(user_bit.bit(reward, *uniforms, q), q)

    return np.array(
        [[debiased(i, t + 1, y) for t, y in enumerate(row)] for i, row in enumerate(rewards)]
    )


def oracle_replay(experiment, outcome, change=lambda direct: direct):
    """Replay a recorded run by the paper's pseudocode, on the same draws; `change` may alter the
    direct radius."""
    plan = experiment.curves[0].system.plan
    environment = experiment.environment.open(experiment.seed, 0, experiment.silos)
    noise = oracle_noise(plan, experiment.seed)
    clip = plan.clip
    protocol = "local" if not plan.batch_size else plan.protocol.id
    release = str(plan.release)
    if plan.secure is not None:
        # Nodes of a tree have the noise of all shares, drawn as by a trusted server.
        assert np.isin(plan.factor.matrix, (0.0, 1.0)).all()
        protocol, release = "central", "tree"

    rewards = outcome.rewards
    if protocol == "user-bit":
        # Sums of debiased bits, without noise: they are not clipped to the range of rewards.
        protocol, clip = "none", dataclasses.replace(clip, low=-np.inf, high=np.inf)
        rewards = debiased_bits(plan, experiment.seed, rewards)

    plan_radius = plan.radius

    def radius(t, k):
        """Return the radius in round t after k releases."""
        rows = plan.silos if plan.batch_size else 1
        counted = k * plan.batch_size if plan.lazy else t
        log_argument = 1.0 + rows * counted / (plan.dimension * plan_radius.log_lambda[k])
        return plan_radius.multiplier * (
            plan_radius.offset[k]
            + plan_radius.scale * np.sqrt(plan_radius.base + plan.dimension * np.log(log_argument))
        )

    if plan_radius.direct:
        direct = Direct(
            full=lambda k: plan.regularizer[k],
            floor=lambda k: plan_radius.floor[k],
            error=lambda k: plan_radius.error_bound[k],
            anchor=plan_radius.anchor,
            base=plan_radius.base,
            scale=plan_radius.scale,
            multiplier=plan_radius.multiplier,
        )
        radius_arguments = {"direct": change(direct)}
    else:
        radius_arguments = {"regularizer": lambda k: plan.regularizer[k], "radius": radius}

    return replay(
        contexts=lambda t, i: environment.round(i, t)[0].astype(float),
        means=lambda t, i: environment.round(i, t)[1],
        actions=outcome.actions,
        rewards=rewards,
        batch_size=plan.batch_size or None,
        protocol=protocol,
        lazy=plan.lazy,
        noise=noise,
        server_noise=lambda k: noise(plan.silos, k),
        clip=None if clip is None else (clip.feature, clip.low, clip.high),
        release=release,
        **radius_arguments,
        **(oracle_bits(plan, experiment.seed) if plan.protocol.shuffled else {}),
    )


def check_against_oracle(environment, sizes, **changes):
    """Run a curve and replay it; check that regret, choices and totals agree."""
    # The papers' algorithms choose the largest bound.
    changes = {"sieve": 1.0, **changes}
    table = problems.curve(sizes["protocol"], **problems.curve_keys(sizes), **changes)
    experiment = make_experiment(
        name="oracle", environment=environment, curves=[table], horizon=sizes["horizon"],
        silos=sizes["silos"], seed=3, checkpoints=sizes["horizon"],
    )  # fmt: skip
    opened_environment = environment.open(experiment.seed, 0, experiment.silos)
    (outcome,) = compiled.run(
        opened_environment, [experiment.curves[0].system.plan], experiment.checkpoints, record=True
    )
    assert outcome.events["indefinite"] == 0
    oracle_outcome = oracle_replay(experiment, outcome)
    # At a smaller distance rounding may choose another lambda; then the problem needs another seed.
    assert oracle_outcome.nearest_floor > 1e-12
    assert oracle_outcome.worst_gap < 1e-9
    np.testing.assert_allclose(
        outcome.group_regret, oracle_outcome.group_regret, rtol=1e-8, atol=1e-8
    )
    if oracle_outcome.totals:
        w, u = oracle_outcome.totals[-1]
        d = experiment.facts.dimension
        scale = max(1.0, np.abs(w).max())
        np.testing.assert_allclose(outcome.total[:d], u, atol=1e-8 * scale)
        np.testing.assert_allclose(outcome.total[d:], w[np.tril_indices(d)], atol=1e-8 * scale)
    return experiment, outcome, oracle_outcome


@pytest.mark.parametrize(
    "sizes", [s for _, s in problems.corners()], ids=[n for n, _ in problems.corners()]
)
def test_every_corner_agrees_with_the_papers_pseudocode(sizes):
    check_against_oracle(Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes)


# The paper's proven radii, whose regularizer and radius are fixed before the first round.
PAPER_CORNERS = [
    *("plain, none, eager", "plain, local", "plain, silo-ldp, lazy", "plain, silo-ldp, eager"),
    *("short last batch, central, eager", "one of everything, silo-ldp, lazy"),
    *("2^k + 1 releases, silo-ldp, honaker, eager", "low noise, central, toeplitz, lazy"),
]


@pytest.mark.parametrize("radius", ["lemma-c2", "lemma-c4"])
@pytest.mark.parametrize("name", PAPER_CORNERS)
def test_corners_with_radii_of_the_paper_agree_with_the_oracle(name, radius):
    sizes = dict(problems.corners())[name]
    environment = Sphere(dimension=sizes["dimension"], actions=sizes["actions"])
    experiment, _, oracle_outcome = check_against_oracle(environment, sizes, radius=radius)
    assert not experiment.curves[0].system.plan.radius.direct
    assert oracle_outcome.nearest_floor == np.inf


@pytest.mark.parametrize("protocol", ["silo-ldp", "central"])
@pytest.mark.parametrize("release", ["tree", "honaker", "toeplitz"])
def test_scaled_direct_radius_agrees_with_the_oracle(protocol, release):
    sizes = dict(problems.corners())["plain, silo-ldp, eager"] | {"protocol": protocol}
    experiment, _, _ = check_against_oracle(
        Sphere(dimension=4, actions=9), sizes, release=release, radius_multiplier=0.1
    )
    assert experiment.curves[0].system.plan.radius.multiplier == 0.1


@pytest.mark.parametrize("release", ["honaker", "toeplitz"])
@pytest.mark.parametrize("lazy", ["lazy", "eager"])
def test_direct_radius_lowers_lambda_in_steps(release, lazy):
    """Check that the comparison covers lambda at its full value, at 0, and at eighths between."""
    corners = dict(problems.corners())
    eighths = set()
    for problem in ("2^k releases, silo-ldp", "low noise, central"):
        sizes = corners[f"{problem}, {release}, {lazy}"]
        experiment, _, oracle_outcome = check_against_oracle(
            Sphere(dimension=sizes["dimension"], actions=sizes["actions"]), sizes
        )
        regularizer = experiment.curves[0].system.plan.regularizer
        eighths |= {
            round(8 * lam / regularizer[k]) for k, lam in enumerate(oracle_outcome.regularizers)
        }
    assert {0, 8} < eighths
    assert len(eighths) >= 4


@pytest.mark.parametrize("lazy", [True, False])
def test_unclipped_settings_of_the_published_code_agree_with_the_oracle(lazy):
    sizes = {"silos": 4, "horizon": 60, "batch_size": 5, "lazy": lazy, "protocol": "silo-ldp"}
    sphere = Sphere(dimension=5, actions=12, reward=RewardDistribution("gaussian", 0.5))
    check_against_oracle(
        sphere, sizes, radius="published-code", calibration="published-code", clip=False
    )


@pytest.mark.parametrize("protocol", ["none", "silo-ldp", "central"])
def test_rewards_outside_the_unit_interval_are_clipped_as_by_the_oracle(protocol, recorded):
    contexts, rewards = recorded
    sizes = {"silos": 3, "horizon": 24, "batch_size": 5, "lazy": False, "protocol": protocol}
    _, outcome, _ = check_against_oracle(Replay.from_arrays(contexts, 3.0 * rewards - 1.0), sizes)
    assert outcome.events["clipped_rewards"] > 0


def test_comparison_detects_a_changed_action():
    """Check that the comparison can fail."""
    sizes = {"silos": 2, "horizon": 20, "batch_size": 5, "lazy": False, "protocol": "silo-ldp"}
    experiment, outcome, _ = check_against_oracle(Sphere(dimension=3, actions=6), sizes)
    assert outcome.actions is not None and outcome.rewards is not None
    outcome.actions[1, 10] = (outcome.actions[1, 10] + 1) % 6
    assert oracle_replay(experiment, outcome).worst_gap > 1e-6


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
def test_comparison_detects_a_wrong_direct_radius(wrong):
    """Check that the largest gap of eight corners is large.

    A single corner may have no close choice.
    """
    gaps = []
    for name, sizes in problems.releases():
        if name.startswith("low noise"):
            experiment, outcome, _ = check_against_oracle(Sphere(dimension=4, actions=9), sizes)
            altered = oracle_replay(
                experiment, outcome, lambda direct: dataclasses.replace(direct, **wrong(direct))
            )
            gaps.append(altered.worst_gap)
    assert max(gaps) > 1e-6


@pytest.mark.parametrize(
    ("release", "weights"), [("honaker", [1 / 3, 1 / 3, 2 / 3]), ("toeplitz", [1 / 2, 1])]
)
def test_noise_of_a_second_release_equals_calculation_by_hand(release, weights):
    """Calculate without the oracle what the package's total contains besides the data."""
    sizes = dict(problems.corners())[f"2^k releases, central, {release}, lazy"] | {"horizon": 6}
    experiment, outcome, _ = check_against_oracle(Sphere(dimension=3, actions=4), sizes)
    environment = experiment.environment.open(experiment.seed, 0, 2)
    x = np.array(
        [environment.round(i, t + 1)[0][outcome.actions[i, t]] for t in range(6) for i in range(2)],
        dtype=float,
    )
    noise = oracle_noise(experiment.curves[0].system.plan, experiment.seed)
    noise_sum = sum(weight * noise(2, number)[1] for number, weight in enumerate(weights, start=1))
    np.testing.assert_allclose(
        outcome.total[3:], (x.T @ x + noise_sum)[np.tril_indices(3)], atol=1e-6
    )
    assert np.abs(noise_sum).max() > 0.1
