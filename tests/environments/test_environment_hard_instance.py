"""The lower bounds' instance: the laws of its draws, by tests that would detect other laws.

Statistical tests fail below p = 1e-6 (seeds are fixed); each says how many p-values it looks at.
"""

import numpy as np
import pytest
from scipy import stats
from test_drivers import assert_same_bits, outcomes_of_both_drivers

import fastfed
from fastfed._kernels import rng
from fastfed._random import CONTEXT, PERMUTATION
from fastfed.environments import HardInstance, RewardDistribution, environment_from_spec
from fastfed.simulation.experiment import make_experiment

RARE = 1e-6
FIRST = 5463142506141194


def rounds(world, count, replicate=0, silo=0, seed=0):
    """Return (block (n,), z (n, 2), means (n, 2)) of the first rounds of a silo.

    z are the two nonzero features of the context.
    """
    opened_environment = world.open(seed, replicate, 2)
    played = [opened_environment.round(silo, t) for t in range(1, count + 1)]
    x, mean = (np.array(part, float) for part in zip(*played, strict=True))
    assert (x[:, 1] == 0).all() and (mean[:, 1] == 0).all()
    blocks = x[:, 0].reshape(count, -1, 2)
    block = np.abs(blocks).sum(axis=2).argmax(axis=1)
    z = blocks[np.arange(count), block]
    assert (np.count_nonzero(blocks, axis=(1, 2)) == np.count_nonzero(z, axis=1)).all()
    return block, z, mean


def radial_p(z):
    """Return the p-value of norms r: 1 - exp(-r^2/2) is uniform up to 1 - exp(-1/2)."""
    return stats.kstest(-np.expm1(-(z**2).sum(axis=1) / 2) / -np.expm1(-0.5), "uniform").pvalue


def angular_p(z):
    """Return the p-value of the Kolmogorov-Smirnov test for uniform angles."""
    return stats.kstest(np.arctan2(z[:, 1], z[:, 0]), "uniform", (-np.pi, 2 * np.pi)).pvalue


def z_of(radius, angle):
    """Return z (n, 2) in float32, from the 53-bit integers of its radius and angle."""
    normals = rng.normals_from_bits(radius, angle).reshape(2, -1).T
    return np.float32(normals * (1 - 2.0**-23))


@pytest.mark.parametrize("dimension", [2, 4, 10, 254])
def test_a_round_is_the_formula_of_its_keyed_draws(dimension):
    """Compare bit for bit with the formula, computed from the words of the streams."""
    environment = HardInstance(dimension)
    opened, theta = environment.open(7, 3, 4), environment.theta(7, 3)
    for t in range(1, 30):
        x, mean = opened.round(2, t)
        assert x.dtype == np.float32 and x.shape == (2, dimension)
        block = rng.uniform_int(7, PERMUTATION, 3, 2, t, dimension // 2)
        w = [int(word) for word in rng.philox(7, CONTEXT, 3, 2, t, 0)]
        unit = (((w[0] << 32 | w[1]) >> 11) + 0.5) / 2.0**53
        bits = [FIRST + int(unit * (2**53 - FIRST)), (w[2] << 32 | w[3]) >> 11]
        expected = np.zeros((2, dimension), np.float32)
        expected[0, 2 * block : 2 * block + 2] = z_of(*np.array(bits, np.uint64).reshape(2, 1))
        np.testing.assert_array_equal(x, expected)
        # Regret is exact: the means are those of the rounded features.
        np.testing.assert_allclose(mean, x.astype(float) @ theta, rtol=0, atol=1e-15)


def test_the_disc_ends_where_box_muller_s_radius_is_one():
    """Check that FIRST is the first integer inside the disc, at every angle in float32."""
    assert FIRST - 1 < 2**53 * np.exp(-0.5) < FIRST + 1
    angle = np.random.default_rng(0).integers(0, 2**53, size=200_000, dtype=np.uint64)
    edge = z_of(np.full(len(angle), FIRST, np.uint64), angle).astype(float)
    norms = np.sqrt((edge**2).sum(axis=1))
    assert norms.min() > 1 - 2.0**-22 and norms.max() < 1.0
    centre = z_of(np.array([2**53 - 1], np.uint64), angle[:1])
    assert np.abs(centre).max() < 2e-8


@pytest.mark.parametrize("dimension", [2, 8])
def test_z_is_a_truncated_gaussian(dimension):
    """Compute five p-values, which would detect uniform or untruncated points."""
    block, z, _ = rounds(HardInstance(dimension), 20_000)
    assert radial_p(z) > RARE and angular_p(z) > RARE
    assert stats.kstest((z**2).sum(axis=1), "uniform").pvalue < RARE
    norm = np.sqrt((z**2).sum(axis=1))
    assert norm.max() < 1.0
    # Norm and angle are independent, as are z and block.
    assert stats.spearmanr(norm, np.arctan2(z[:, 1], z[:, 0])).pvalue > RARE
    if dimension > 2:
        assert stats.spearmanr(norm, block).pvalue > RARE
        assert stats.kruskal(*(z[block == s, 0] for s in range(dimension // 2))).pvalue > RARE


@pytest.mark.parametrize("dimension", [4, 10, 40])
def test_the_block_is_uniform(dimension):
    """Compute two p-values: of the block, and of its change between rounds."""
    block, _, _ = rounds(HardInstance(dimension), 5000)
    count = dimension // 2
    assert stats.chisquare(np.bincount(block, minlength=count)).pvalue > RARE
    step = (block[1:] - block[:-1]) % count
    assert stats.chisquare(np.bincount(step, minlength=count)).pvalue > RARE


@pytest.mark.parametrize(("dimension", "radius"), [(2, None), (6, 0.2), (8, None)])
def test_theta_is_uniform_on_a_circle_in_every_block(dimension, radius):
    """Compute a p-value for each block and for each pair of neighbouring blocks."""
    environment = HardInstance(dimension, radius)
    theta = np.array([environment.theta(5, replicate) for replicate in range(2000)])
    blocks = theta.reshape(2000, -1, 2)
    length = 1 / np.sqrt(dimension) if radius is None else radius
    np.testing.assert_allclose(np.linalg.norm(blocks, axis=2), length, rtol=1e-14)
    assert np.linalg.norm(theta, axis=1).max() <= np.sqrt(0.5) * (1 + 1e-14)
    for s in range(dimension // 2):
        assert angular_p(blocks[:, s]) > RARE
        if s:
            turned = blocks[:, s] * [1, 1] @ [1, 1j] * np.conj(blocks[:, s - 1] @ [1, 1j])
            assert angular_p(np.column_stack([turned.real, turned.imag])) > RARE


def test_expected_rewards_stay_inside_their_range():
    environment = HardInstance(2, reward=RewardDistribution("none"))
    low, high = environment.facts(1, 10).reward_range
    _, _, mean = rounds(environment, 20_000)
    assert low <= mean.min() < 0.99 * low and 0.99 * high < mean.max() <= high


def test_rounds_silos_replicates_and_seeds_differ_and_repeat():
    def draw(seed=0, replicate=0, silo=0, t=1):
        """Return the first action and its mean."""
        x, mean = HardInstance(2).open(seed, replicate, 2).round(silo, t)
        return x[0], mean[0]

    reference = draw()
    for one, again in zip(reference, draw(), strict=True):
        assert one.tobytes() == again.tobytes()
    for change in ({"seed": 1}, {"replicate": 1}, {"silo": 1}, {"t": 2}):
        for one, other in zip(reference, draw(**change), strict=True):
            assert (one != other).all()


def test_rounds_silos_and_replicates_are_independent():
    """Compute twelve p-values: of block, norm and angle, each between neighbouring keys.

    Round t of one key goes with round t of the next silo or replicate, or with round t + 1.
    """
    environment = HardInstance(20)

    def numbers(silo, replicate, skip):
        """Return (block, squared length, angle) in 4000 rounds."""
        block, z, _ = rounds(environment, 4001, replicate, silo)
        z, block = z[skip : 4000 + skip], block[skip : 4000 + skip]
        return block, (z**2).sum(axis=1), np.arctan2(z[:, 1], z[:, 0])

    base = numbers(0, 0, 0)
    for other in (numbers(1, 0, 0), numbers(0, 1, 0), numbers(0, 0, 1)):
        for one, two in zip(base, other, strict=True):
            assert stats.spearmanr(one, two).pvalue > RARE
        same_block = int((base[0] == other[0]).sum())
        assert stats.binomtest(same_block, 4000, 0.1).pvalue > RARE


def test_contexts_are_independent_of_theta():
    """Check that the sign of the expected reward is a fair coin, by one p-value."""
    environment = HardInstance(4)
    actual = np.concatenate(
        [rounds(environment, 50, replicate)[2][:, 0] for replicate in range(100)]
    )
    assert stats.binomtest(int((actual > 0).sum()), len(actual)).pvalue > RARE


def test_rewards_have_the_mean_of_the_law():
    """Compute one p-value; the environment's reward std is 1."""
    opened_environment = HardInstance().open(0, 0, 1)
    draws = [opened_environment.reward(0, t, -0.35) for t in range(1, 5001)]
    assert stats.kstest(draws, stats.norm(-0.35, 1.0).cdf).pvalue > RARE
    assert (
        HardInstance(reward=RewardDistribution("none")).open(0, 0, 1).reward(0, 1, -0.35) == -0.35
    )


@pytest.mark.parametrize(
    "reward", [RewardDistribution("gaussian", 1.0), RewardDistribution("none")]
)
@pytest.mark.parametrize("dimension", [2, 6])
def test_both_drivers_agree(dimension, reward):
    e = make_experiment(
        name="hard",
        environment=HardInstance(dimension, reward=reward),
        curves=[
            {"label": "a", "algorithm": "fedlinucb", "batch_size": 5, "lazy": False},
            {"label": "b", "algorithm": "local-linucb"},
            {"label": "c", "algorithm": "random"},
        ],
        horizon=60,
        silos=3,
        checkpoints=5,
    )
    fast, readable = outcomes_of_both_drivers(e)
    for one, other in zip(fast, readable, strict=True):
        assert_same_bits(one, other)
        assert one.group_regret[-1] > 0


def test_a_learner_beats_random_actions_without_noise():
    """Check regret without noise; optimism still tries actions with negative rewards."""
    keys = {"silos": 1, "horizon": 2000, "replicates": 3}
    environment = HardInstance(4, reward=RewardDistribution("none"))
    (learnt,) = fastfed.simulate(environment, "local-linucb", clip=False, **keys).curves
    (chance,) = fastfed.simulate(environment, "random", **keys).curves
    assert (learnt.group_regret[:, -1] < 0.4 * chance.group_regret[:, -1]).all()


def test_facts_description_and_spec():
    facts = HardInstance(4).facts(3, 100)
    assert (facts.dimension, facts.actions, facts.reward_range) == (4, 2, None)
    assert facts.linear and facts.features_bounded and facts.multiplicity == 1
    assert facts.reward == RewardDistribution("gaussian", 1.0)
    quiet = HardInstance(4, 0.3, RewardDistribution("none")).facts(3, 100)
    assert quiet.reward_range == (-0.3, 0.3)
    assert HardInstance(4).natural_silos() is None
    assert HardInstance(4, 0.1).describe() != HardInstance(4, 0.2).describe()
    assert HardInstance(4).describe() == {
        "kind": "hard-instance",
        "dimension": 4,
        "radius": None,
        "reward": {"kind": "gaussian", "std": 1.0},
    }
    for table, law in (
        ({}, RewardDistribution("gaussian", 1.0)),
        ({"reward": {}}, RewardDistribution("gaussian", 1.0)),
        ({"reward": {"kind": "gaussian"}}, RewardDistribution("gaussian", 1.0)),
        ({"reward": {"std": 0.2}}, RewardDistribution("gaussian", 0.2)),
        ({"reward": {"kind": "none"}}, RewardDistribution("none")),
    ):
        environment = environment_from_spec({"kind": "hard-instance", "radius": 0.25, **table})
        assert environment == fastfed.environments.HardInstance(radius=0.25, reward=law)
    # In other environments a Gaussian law without a std has std 0.5.
    assert (
        environment_from_spec({"kind": "sphere", "reward": {"kind": "gaussian"}}).reward.std == 0.5
    )


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"dimension": 0}, "dimension must be an integer >= 2 .*, got 0"),
        ({"dimension": 7}, "dimension must be even, got 7"),
        ({"radius": 0.0}, "radius must be > 0 and <= 0.35355.*, got 0.0"),
        ({"dimension": 4, "radius": 0.51}, r"radius must be > 0 and <= 0\.5, got 0\.51"),
        ({"radius": "wide"}, "radius must be a number"),
        ({"reward": {"kind": "bernoulli"}}, "expected rewards may be negative"),
        ({"reward": {"kind": "none", "std": 1.0}}, 'reward.std needs reward.kind = "gaussian"'),
        ({"actions": 3}, 'unknown key "actions" for environment "hard-instance"'),
    ],
)
def test_bad_keys_are_refused(keys, sentence):
    with pytest.raises(fastfed.InputError, match=sentence):
        environment_from_spec({"kind": "hard-instance", **keys})
