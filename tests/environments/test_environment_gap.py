"""The gap environment: the laws of its draws, by tests that would detect other laws.

Statistical tests fail below p = 1e-6 (seeds are fixed); each says how many p-values it looks at.
"""

import numpy as np
import pytest
from scipy import stats

import fastfed
from fastfed._kernels import rng
from fastfed._random import CONTEXT, INSTANCE, PERMUTATION
from fastfed.environments import Gap, RewardDistribution, environment_from_spec

RARE = 1e-6


def rounds(gap, count, replicate=0, silo=0, seed=0):
    """Return (features (count, K, d), means (count, K)) of the first rounds of a silo."""
    opened_environment = gap.open(seed, replicate, 2)
    played = [opened_environment.round(silo, t) for t in range(1, count + 1)]
    return np.array([x for x, _ in played], float), np.array([mean for _, mean in played])


def ball(gap, x, mean, seed=0, replicate=0):
    """Return b (n, d - 1) of x = m theta* + sqrt(1 - m^2) b, in a basis orthogonal to theta*."""
    d = gap.dimension
    q, _ = np.linalg.qr(np.column_stack([gap.theta(seed, replicate), np.eye(d)[:, : d - 1]]))
    return (x @ q[:, 1:] / np.sqrt(1 - mean[..., None] ** 2)).reshape(-1, d - 1)


def uniform_p(values):
    """Return the p-value of the Kolmogorov-Smirnov test for uniform values."""
    return stats.kstest(values, "uniform").pvalue


def coordinate_p(points):
    """Return the least p-value of the coordinates of points (n, d) uniform on the sphere."""
    d = points.shape[1]
    law = stats.beta(0.5, (d - 1) / 2)
    squares = [stats.kstest(points[:, j] ** 2, law.cdf).pvalue for j in range(d)]
    positive = [stats.binomtest(int((points[:, j] > 0).sum()), len(points)) for j in range(d)]
    return min(*squares, *(test.pvalue for test in positive))


@pytest.mark.parametrize(
    ("dimension", "actions", "gap"),
    [(1, 1, 0.1), (1, 70, 0.3), (2, 3, 0.1), (5, 33, 0.05), (10, 100, 0.1), (33, 64, 0.6)],
)
def test_a_round_is_the_formula_of_its_keyed_draws(dimension, actions, gap):
    """Compare in float64 with the formula; float32 is accurate to about 1e-7."""
    environment = Gap(dimension=dimension, actions=actions, gap=gap)
    theta = environment.theta(7, 3)
    x, mean = environment.open(7, 3, 4).round(2, 9)
    assert x.dtype == np.float32 and x.shape == (actions, dimension)
    v = rng.random_u32(7, INSTANCE, 3, 2, 9, actions) / 2.0**32
    best = rng.uniform_int(7, PERMUTATION, 3, 2, 9, actions)
    m = np.where(np.arange(actions) == best, 0.7, 0.6 - gap) + 0.1 * v
    normals = rng.normals_f32(7, CONTEXT, 3, 2, 9, actions * (dimension + 1)).astype(float)
    g, h = np.split(normals.reshape(dimension + 1, actions).T, [dimension], axis=1)
    across = g - np.outer(g @ theta, theta)
    b = across / np.sqrt((g**2).sum(axis=1, keepdims=True) + h**2)
    expected = np.outer(m, theta) + np.sqrt(1 - m[:, None] ** 2) * b * (dimension > 1)
    np.testing.assert_allclose(x, expected, atol=2e-6)
    np.testing.assert_allclose(mean, m, atol=2e-6)
    # Regret is exact: the means are those of the rounded features.
    np.testing.assert_allclose(mean, x.astype(float) @ theta, rtol=0, atol=1e-15)
    assert mean.argmax() == best


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.3, 0.6])
def test_means_are_uniform_in_their_intervals(gap):
    """Compute two p-values for each gap."""
    _, mean = rounds(Gap(dimension=4, actions=10, gap=gap), 1000)
    assert (mean >= 0).all()
    mean.sort(axis=1)
    best, others = (mean[:, -1] - 0.7) / 0.1, (mean[:, :-1].ravel() - (0.6 - gap)) / 0.1
    for scaled in (best, others):
        assert scaled.min() > -2e-5 and scaled.max() < 1 + 2e-5
        assert uniform_p(scaled) > RARE
    assert (mean[:, -1] - mean[:, -2]).min() > gap - 2e-6


@pytest.mark.parametrize("actions", [2, 7, 100])
def test_the_best_action_is_uniform_over_positions(actions):
    """Compute two p-values: of the best action's position, and of its change."""
    _, mean = rounds(Gap(dimension=2, actions=actions), 4000)
    place = mean.argmax(axis=1)
    assert stats.chisquare(np.bincount(place, minlength=actions)).pvalue > RARE
    step = (place[1:] - place[:-1]) % actions
    assert stats.chisquare(np.bincount(step, minlength=actions)).pvalue > RARE


@pytest.mark.parametrize("dimension", [2, 3, 4, 10, 40])
def test_the_orthogonal_part_is_uniform_in_the_ball(dimension):
    """Check that rho^(d - 1) and the direction are uniform, and independent of rho and m.

    With one further coordinate of the sphere instead of two, rho would have another law:
    rho^2 ~ Beta((d - 1)/2, 1/2) and not Beta((d - 1)/2, 1).
    """
    world, n = Gap(dimension=dimension, actions=40), dimension - 1
    x, mean = rounds(world, 200)
    b = ball(world, x, mean)
    rho = np.linalg.norm(b, axis=1)
    assert uniform_p(rho**n) > RARE
    assert stats.kstest(rho**2, stats.beta(n / 2, 0.5).cdf).pvalue < RARE
    assert stats.spearmanr(rho, mean.ravel()).pvalue > RARE
    first = b[:, 0] / rho
    if n == 1:
        assert uniform_p((1 + b[:, 0]) / 2) > RARE
    else:
        assert coordinate_p(b / rho[:, None]) > RARE
        assert stats.spearmanr(first, rho).pvalue > RARE
        # Pairs: five standard errors, below 1e-6 for each entry.
        covariance = b.T @ b / len(b)
        bound = 5 * np.sqrt(3 / ((n + 2) * (n + 4)) / len(b))
        assert np.abs(covariance - np.eye(n) / (n + 2)).max() < bound
    assert stats.spearmanr(first, mean.ravel()).pvalue > RARE


@pytest.mark.parametrize("dimension", [2, 3, 10])
def test_theta_is_uniform_on_the_sphere(dimension):
    """Compute 2 d p-values over replicates."""
    environment = Gap(dimension=dimension)
    theta = np.array([environment.theta(5, replicate) for replicate in range(2000)])
    np.testing.assert_allclose(np.linalg.norm(theta, axis=1), 1.0, rtol=1e-14)
    assert coordinate_p(theta) > RARE


def test_rounds_silos_replicates_and_seeds_differ_and_repeat():
    def draw(seed=0, replicate=0, silo=0, t=1):
        return Gap(dimension=3, actions=6).open(seed, replicate, 2).round(silo, t)

    reference = draw()
    for one, again in zip(reference, draw(), strict=True):
        assert one.tobytes() == again.tobytes()
    for change in ({"seed": 1}, {"replicate": 1}, {"silo": 1}, {"t": 2}):
        for one, other in zip(reference, draw(**change), strict=True):
            assert (one != other).all()


def test_rounds_silos_and_replicates_are_independent():
    """Compute nine p-values: of m, rho and the best position, each between neighbouring keys.

    Round t of one key goes with round t of the next silo or replicate, or with round t + 1.
    """
    environment = Gap(dimension=3, actions=20)

    def numbers(silo, replicate, skip):
        """Return (means, radii, place of the best action) in 300 rounds."""
        x, mean = rounds(environment, 301, replicate, silo)
        rho = np.linalg.norm(ball(environment, x, mean, replicate=replicate), axis=1).reshape(
            mean.shape
        )
        place = mean.argmax(axis=1)
        # Hide the best action's mean, which would make the means depend on its place.
        mean[np.arange(len(place)), place] = 0.55
        return mean[skip : 300 + skip], rho[skip : 300 + skip], place[skip : 300 + skip]

    base = numbers(0, 0, 0)
    for other in (numbers(1, 0, 0), numbers(0, 1, 0), numbers(0, 0, 1)):
        for one, two in zip(base, other, strict=True):
            assert stats.spearmanr(one.ravel(), two.ravel()).pvalue > RARE


def test_a_single_action_has_the_law_of_the_best_one():
    _, mean = rounds(Gap(dimension=3, actions=1), 500)
    assert uniform_p((mean.ravel() - 0.7) / 0.1) > RARE


def test_one_dimension_has_no_orthogonal_part():
    environment = Gap(dimension=1, actions=5)
    assert {environment.theta(0, replicate)[0] for replicate in range(40)} == {-1.0, 1.0}
    for replicate in range(8):
        x, mean = rounds(environment, 3, replicate)
        np.testing.assert_array_equal(x[..., 0] * environment.theta(0, replicate)[0], mean)


@pytest.mark.parametrize(("dimension", "actions", "count"), [(2, 20_000, 5), (6000, 300, 4)])
def test_no_feature_has_a_norm_above_one(dimension, actions, count):
    """Use dimensions in which most points have a norm near 1, which rounding could exceed."""
    x, mean = rounds(Gap(dimension=dimension, actions=actions), count)
    norms = np.array([[np.sqrt((row * row).cumsum()[-1]) for row in rows] for rows in x])
    assert norms.max() <= 1.0
    assert norms.max() > 1 - 1e-5
    assert np.abs(mean - x @ Gap(dimension=dimension).theta(0, 0)).max() < 1e-12


def test_rewards_have_the_mean_of_the_law():
    """Compute two p-values."""
    ones = [Gap(gap=0.3).open(0, 0, 1).reward(0, t, 0.35) for t in range(1, 5001)]
    assert set(ones) == {0.0, 1.0}
    assert stats.binomtest(int(sum(ones)), len(ones), 0.35).pvalue > RARE
    opened_environment = Gap(reward=RewardDistribution("gaussian", 0.5)).open(0, 0, 1)
    draws = [opened_environment.reward(0, t, 0.35) for t in range(1, 5001)]
    assert stats.kstest(draws, stats.norm(0.35, 0.5).cdf).pvalue > RARE
    assert Gap(reward=RewardDistribution("none")).open(0, 0, 1).reward(0, 1, 0.35) == 0.35


def test_facts_and_description():
    facts = Gap(dimension=4, actions=9).facts(3, 100)
    assert (facts.dimension, facts.actions, facts.reward_range) == (4, 9, (0.0, 1.0))
    assert facts.linear and facts.features_bounded and facts.reward.kind == "bernoulli"
    assert Gap(reward=RewardDistribution("gaussian", 0.5)).facts(3, 100).reward_range is None
    assert Gap(gap=0.1).describe() != Gap(gap=0.2).describe()
    environment = environment_from_spec(
        {"kind": "gap", "dimension": 4, "gap": 0.2, "reward": {"kind": "none"}}
    )
    assert environment == Gap(dimension=4, gap=0.2, reward=RewardDistribution("none"))


def test_both_drivers_agree_and_a_curve_may_set_its_gap():
    keys = {"silos": 2, "horizon": 60, "curves": [
        {"label": "a", "algorithm": "fedlinucb", "batch_size": 5, "gap": [0.1, 0.4]}
    ]}  # fmt: skip
    fast = fastfed.simulate({"kind": "gap", "dimension": 3, "actions": 7}, **keys)
    step = fastfed.simulate({"kind": "gap", "dimension": 3, "actions": 7}, driver="step", **keys)
    for one, other in zip(fast.curves, step.curves, strict=True):
        np.testing.assert_array_equal(one.group_regret, other.group_regret)
    small, large = (curve.group_regret for curve in fast.curves)
    # A wrong action costs between gap and gap + 0.2.
    assert 0 < large[0, -1] <= 2 * 60 * 0.6 and (small != large).any()


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"dimension": 0}, "dimension must be an integer >= 1 .*, got 0"),
        ({"actions": 0}, "actions must be an integer >= 1 .*, got 0"),
        ({"gap": 0.0}, r"gap must be > 0 and <= 0\.6, got 0\.0"),
        ({"gap": 0.61}, r"gap must be > 0 and <= 0\.6, got 0\.61"),
        ({"gap": "wide"}, "gap must be a number"),
    ],
)
def test_bad_keys_are_refused(keys, sentence):
    with pytest.raises(fastfed.InputError, match=sentence):
        Gap(**keys)
