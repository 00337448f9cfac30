"""The law of noise made of bits: its coupling to normals, and what prefixes of a tree hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fastfed._kernels import aggregation
from fastfed._kernels import rng as rng_kernels
from fastfed.bandits import noise_distributions as module
from fastfed.bandits.noise_distributions import NoiseDistribution, bit_distribution, coupling
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.sensitivity import Budget

FALSE_ALARM = 1e-6
NOISE, ROUNDING = 5, 6  # streams of this test's own seeds


def worst(trials: int, inside: float) -> float:
    """sup |X - N/4 - sigma Z| over the Z of two-sided probability `inside`, value by value."""
    k = np.arange(trials + 1)
    law = stats.binom(trials, 0.25)
    # X = k for Z in (x[k - 1], x[k]]: the supremum is at an end.
    left = np.where(law.cdf(k - 1) < 0.5, stats.norm.ppf(law.cdf(k - 1)), -math.inf)
    left = np.where(law.cdf(k - 1) < 0.5, left, stats.norm.isf(law.sf(k - 1)))
    right = np.append(left[1:], math.inf)
    reach = float(stats.norm.isf(0.5 * (1.0 - inside)))
    left, right = np.maximum(left, -reach), np.minimum(right, reach)
    kept = left < right
    sigma, centred = math.sqrt(0.1875 * trials), k - 0.25 * trials
    ends = np.maximum(np.abs(centred - sigma * left), np.abs(centred - sigma * right))
    return float(ends[kept].max())


@pytest.mark.parametrize("trials", [1, 2, 3, 7, 40, 333, 1000, 20_000, 100_000])
@pytest.mark.parametrize("probability", [0.1, 1e-3, 1e-7, 1e-12])
def test_the_bound_is_above_every_difference(trials, probability):
    """Enumerated: all Z but for an event of `probability`; and not far above it."""
    bound = coupling(trials, probability)
    assert worst(trials, 1.0 - probability) <= bound
    reach = float(stats.norm.isf(0.5 * probability)) + 1.0
    exact = worst(trials, 1.0 - 2.0 * float(stats.norm.sf(reach)))
    assert bound <= exact + 2.5 + 0.011 * math.sqrt(0.1875 * trials)


@pytest.mark.parametrize("trials", [40, 1000, 100_000])
def test_the_bound_holds_from_normal_to_bits(trials):
    """Z drawn, X = F^-1(Phi(Z)): more exceedances than this once in 10^6."""
    z = np.random.default_rng(trials).normal(size=200_000)
    law, k = stats.binom(trials, 0.25), np.arange(trials + 1)
    # The least k with P(X <= k) >= Phi(z), each half from its own tail.
    x = np.where(
        z < 0.0,
        np.searchsorted(law.cdf(k), stats.norm.cdf(z)),
        np.searchsorted(-law.sf(k), -stats.norm.sf(z)),
    )
    difference = np.abs(x - 0.25 * trials - math.sqrt(0.1875 * trials) * z)
    for probability in (0.05, 1e-3, 1e-5):
        exceeded = int((difference > coupling(trials, probability)).sum())
        assert exceeded <= stats.binom.isf(FALSE_ALARM, len(z), probability)


@pytest.mark.parametrize("trials", [40, 1000, 100_000])
def test_the_bound_holds_from_bits_to_normal(trials):
    """The package's own draws of X, each with a Z uniform on its quantiles: Z is normal, and near.

    False alarms: below 10^-6 for the law of Z, and none for the distance (10^-9 for a draw).
    """
    rng, count = np.random.default_rng(3), 50_000
    centred = rng_kernels.binomials(17, NOISE, 0, 0, trials, trials, count)
    x = np.rint(centred + 0.25 * trials)
    law = stats.binom(trials, 0.25)
    low, high = law.cdf(x - 1), law.cdf(x)
    z = stats.norm.ppf(low + (high - low) * rng.uniform(size=count))
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
    difference = np.abs(centred - math.sqrt(0.1875 * trials) * z)
    assert difference.max() <= coupling(trials, 1e-9)


def test_the_bound_is_finite_and_grows_as_the_probability_falls():
    for trials in (*range(1, 60), 100, 1000, 10**6, 10**9, 10**12):
        found = [coupling(trials, p) for p in (0.5, 1e-2, 1e-6, 1e-12, 1e-38)]
        assert np.isfinite(found).all()
        # SciPy before 1.17 has five digits of the incomplete beta function for the most bits.
        assert (np.diff(found) >= -1e-5 * found[0]).all()
        # In units of the noise it is small where bits are many.
        assert trials < 10**6 or found[2] < 0.011 * math.sqrt(0.1875 * trials)
    assert coupling(0, 0.1) == 0.0


def tree_of(g: tuple[int, ...], b: tuple[int, ...], points: int, d: int) -> BinomialTree:
    releases = 2 ** len(g) - 1
    return BinomialTree(releases, points, d, g, b, "exact", Budget(1.0, 1e-3), "test")


def prefix_noises(tree: BinomialTree, replicate: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise of prefixes 1..K (K, s) as the leaf functions make it, and its rounding alone.

    Points are chosen in view of the noise so far: where an entry's rounding errors sum up to more
    than 0, its next value has a fraction of a half, and else of 0.3.
    """
    s, entries = tree.coordinates, np.zeros((tree.releases + 1, 2, tree.coordinates))
    for k in range(1, tree.releases + 1):
        j = aggregation.node_level(k)
        noise = rng_kernels.binomials(23, NOISE, replicate, 0, k, tree.trials(j), s)
        rounding = np.zeros(s)
        for i in range(4):  # a quarter of the node's points at a time
            n = tree.users(j) // 4
            half = rounding + entries[k - 1, 0] > 0.0
            point = np.where(half, 0.5, 0.3) / tree.g[j]
            words = rng_kernels.random_u32(23, ROUNDING, replicate, i, k, n * s).reshape(n, s)
            sums = np.zeros(s)
            aggregation.round_points(np.tile(point, (n, 1)), tree.g[j], True, words, sums)
            rounding += sums - n * point * tree.g[j]
        below = entries[k - (k & -k)]
        entries[k, 0] = below[0] + (noise + rounding) / tree.g[j]
        entries[k, 1] = below[1] + rounding / tree.g[j]
    return entries[1:, 0], entries[1:, 1]


@pytest.fixture(scope="module")
def simulated() -> tuple[BinomialTree, NoiseDistribution, np.ndarray, np.ndarray]:
    """A coarse tree, so that rounding shows, whose levels differ in noise: 1 000 runs."""
    tree = tree_of((12, 16, 40), (30, 24, 40), 8, 3)
    runs = [prefix_noises(tree, r) for r in range(1000)]
    noise, rounding = (np.array(part) for part in zip(*runs, strict=True))
    return tree, bit_distribution(tree, 0.002), noise, rounding


def test_prefixes_have_the_stated_variances(simulated):
    """Entries are independent: 9 000 draws a prefix, bounds a false alarm once in 10^6."""
    tree, law, noise, rounding = simulated
    assert law.remainder is not None
    slack = 5.5 * math.sqrt(2.0 / noise[:, 0].size)
    for k in range(1, tree.releases + 1):
        bits = np.square(noise[:, k - 1] - rounding[:, k - 1]).mean()
        stated = law.node.bias**2 * law.variances[k]
        assert abs(bits / stated - 1.0) <= slack
        held = [j for j in range(tree.depth) if k >> j & 1]
        assert stated == pytest.approx(sum(tree.noise_std(j) ** 2 for j in held))
        # The rounding's scale is its standard deviation were all fractions a half.
        whole = np.square(rounding[:, k - 1]).mean() / law.remainder.rounding[k] ** 2
        assert 0.8 <= whole <= 1.0 + slack


def test_the_rounding_is_sub_gaussian_with_its_scale(simulated):
    """E exp(u r) <= exp(u^2 scale^2 / 2) along random directions, and so P(r > t)."""
    tree, law, _, rounding = simulated
    assert law.remainder is not None
    rng = np.random.default_rng(0)
    for k in range(1, tree.releases + 1):
        u = rng.normal(size=(tree.coordinates, 40))
        u /= np.linalg.norm(u, axis=0)
        along = rounding[:, k - 1] @ u / law.remainder.rounding[k]
        for t in (2.0, 3.0):
            # 40 directions, each a binomial of 1 000: a false alarm once in 10^6.
            allowed = stats.binom.isf(FALSE_ALARM / 40, len(along), math.exp(-0.5 * t * t))
            assert (along > t).sum(axis=0).max() <= allowed


def test_norms_stay_below_their_bounds(simulated):
    """Together over all releases, 1 000 runs at probability 0.1; theta is fixed beforehand."""
    tree, law, noise, _ = simulated
    d, theta = tree.dimension, np.array([0.6, -0.48, 0.64])
    h, lower = noise[..., :d], np.zeros((*noise.shape[:2], d, d))
    rows, columns = np.tril_indices(d)
    lower[..., rows, columns] = noise[..., d:]
    matrix = lower + np.tril(lower, -1).swapaxes(-1, -2)
    found = {
        "operator_norms": np.abs(np.linalg.eigvalsh(matrix)).max(axis=-1),
        "vector_norms": np.linalg.norm(h, axis=-1),
        "errors": np.linalg.norm(matrix @ theta - h, axis=-1),
    }
    allowed = stats.binom.isf(FALSE_ALARM, len(noise), 0.1)
    for name, norms in found.items():
        bound = getattr(law, name)(d, 0.1)[1:]
        assert (norms > bound).any(axis=1).sum() <= allowed
        # So few bits cost a lot of coupling; yet 2.5 times less would be seen to fail.
        assert (norms > bound / 2.5).any(axis=1).sum() > allowed


def test_more_bits_than_can_be_compared_are_sub_gaussian_as_a_whole(monkeypatch):
    tree = tree_of((12, 16), (30, 24), 8, 3)
    coupled = bit_distribution(tree, 0.002)
    monkeypatch.setattr(module, "MAX_COUPLED_BITS", 100)
    law = bit_distribution(tree, 0.002)
    assert law.remainder is not None
    assert law.remainder.probability == 0.0
    assert not law.none
    for name in ("operator_norms", "vector_norms", "errors"):
        whole, parts = getattr(law, name)(3, 0.1), getattr(coupled, name)(3, 0.1)
        assert np.isfinite(whole).all()
        assert (whole[1:] > 0.5 * parts[1:]).all()
        assert whole[0] == 0.0
    # One bit of mean 1/4: their moment generating function stays below the stated one.
    u = np.linspace(-30.0, 30.0, 2001)
    one = np.logaddexp(math.log(0.75) - 0.25 * u, math.log(0.25) + 0.75 * u)
    assert (one <= 0.5 * module.BIT_SCALE_SQUARED * u * u + 1e-12).all()


def test_nothing_released_is_no_noise():
    tree = BinomialTree(0, 8, 3, (), (), "exact", Budget(1.0, 1e-3), "test")
    law = bit_distribution(tree, 0.002)
    assert law.none
    assert law.errors(3, 0.1).tolist() == [0.0]


def test_a_coupling_that_takes_all_probability_is_refused():
    law = bit_distribution(tree_of((12,), (30,), 8, 3), 0.05)
    with pytest.raises(ValueError, match="takes the whole failure probability"):
        law.errors(3, 0.05)
