"""Tests of the distribution of noise from bits: its coupling to normals, and the noise of tree
prefixes."""

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
NOISE, ROUNDING = 5, 6  # random streams that only this test uses


def largest_difference(trials: int, probability: float) -> float:
    """Return sup |X - N/4 - sigma Z| over Z in a two-sided interval of this probability."""
    k = np.arange(trials + 1)
    distribution = stats.binom(trials, 0.25)
    # X = k for Z in (x[k - 1], x[k]], so that the supremum is at an end.
    left = np.where(
        distribution.cdf(k - 1) < 0.5, stats.norm.ppf(distribution.cdf(k - 1)), -math.inf
    )
    left = np.where(distribution.cdf(k - 1) < 0.5, left, stats.norm.isf(distribution.sf(k - 1)))
    right = np.append(left[1:], math.inf)
    half_width = float(stats.norm.isf(0.5 * (1.0 - probability)))
    left, right = np.maximum(left, -half_width), np.minimum(right, half_width)
    is_inside = left < right
    sigma, centred = math.sqrt(0.1875 * trials), k - 0.25 * trials
    end_differences = np.maximum(np.abs(centred - sigma * left), np.abs(centred - sigma * right))
    return float(end_differences[is_inside].max())


@pytest.mark.parametrize("trials", [1, 2, 3, 7, 40, 333, 1000, 20_000, 100_000])
@pytest.mark.parametrize("probability", [0.1, 1e-3, 1e-7, 1e-12])
def test_coupling_bound_is_above_every_difference(trials, probability):
    """Enumerate all Z except an event of ``probability``; the bound must also be tight."""
    bound = coupling(trials, probability)
    assert largest_difference(trials, 1.0 - probability) <= bound
    half_width = float(stats.norm.isf(0.5 * probability)) + 1.0
    exact = largest_difference(trials, 1.0 - 2.0 * float(stats.norm.sf(half_width)))
    assert bound <= exact + 2.5 + 0.011 * math.sqrt(0.1875 * trials)


@pytest.mark.parametrize("trials", [40, 1000, 100_000])
def test_coupling_bound_holds_for_bits_from_normals(trials):
    """Draw Z and set X = F^-1(Phi(Z)); a correct bound fails this test once in 10^6."""
    z = np.random.default_rng(trials).normal(size=200_000)
    distribution, k = stats.binom(trials, 0.25), np.arange(trials + 1)
    # The smallest k with P(X <= k) >= Phi(z), computed from the nearer tail.
    x = np.where(
        z < 0.0,
        np.searchsorted(distribution.cdf(k), stats.norm.cdf(z)),
        np.searchsorted(-distribution.sf(k), -stats.norm.sf(z)),
    )
    difference = np.abs(x - 0.25 * trials - math.sqrt(0.1875 * trials) * z)
    for probability in (0.05, 1e-3, 1e-5):
        exceeded = int((difference > coupling(trials, probability)).sum())
        assert exceeded <= stats.binom.isf(FALSE_ALARM, len(z), probability)


@pytest.mark.parametrize("trials", [40, 1000, 100_000])
def test_coupling_bound_holds_for_normals_from_bits(trials):
    """Take the package's draws X, each with a Z uniform on its quantiles; Z is normal and close.

    False alarms are below 10^-6 for the distribution of Z and 10^-9 per draw for the distance.
    """
    rng, count = np.random.default_rng(3), 50_000
    centred = rng_kernels.binomials(17, NOISE, 0, 0, trials, trials, count)
    x = np.rint(centred + 0.25 * trials)
    distribution = stats.binom(trials, 0.25)
    low, high = distribution.cdf(x - 1), distribution.cdf(x)
    z = stats.norm.ppf(low + (high - low) * rng.uniform(size=count))
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
    difference = np.abs(centred - math.sqrt(0.1875 * trials) * z)
    assert difference.max() <= coupling(trials, 1e-9)


def test_coupling_bound_is_finite_and_monotone():
    for trials in (*range(1, 60), 100, 1000, 10**6, 10**9, 10**12):
        bounds = [coupling(trials, p) for p in (0.5, 1e-2, 1e-6, 1e-12, 1e-38)]
        assert np.isfinite(bounds).all()
        # SciPy before 1.17 computes the incomplete beta function to five digits for the largest
        # counts.
        assert (np.diff(bounds) >= -1e-5 * bounds[0]).all()
        # For many bits the bound is small in units of the noise.
        assert trials < 10**6 or bounds[2] < 0.011 * math.sqrt(0.1875 * trials)
    assert coupling(0, 0.1) == 0.0


def tree_of(g: tuple[int, ...], b: tuple[int, ...], points: int, d: int) -> BinomialTree:
    """Return a binomial tree with these levels and bits."""
    releases = 2 ** len(g) - 1
    return BinomialTree(releases, points, d, g, b, "exact", Budget(1.0, 1e-3), "test")


def prefix_noises(tree: BinomialTree, replicate: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise of prefixes 1..K (K, s) and its rounding part.

    The points depend on the noise so far. An entry whose summed rounding error is positive gets a
    fraction of 0.5, other entries a fraction of 0.3.
    """
    s, entries = tree.coordinates, np.zeros((tree.releases + 1, 2, tree.coordinates))
    for k in range(1, tree.releases + 1):
        j = aggregation.node_level(k)
        noise = rng_kernels.binomials(23, NOISE, replicate, 0, k, tree.trials(j), s)
        rounding = np.zeros(s)
        for i in range(4):  # a quarter of the node's points at a time
            n = tree.users(j) // 4
            has_positive_error = rounding + entries[k - 1, 0] > 0.0
            point = np.where(has_positive_error, 0.5, 0.3) / tree.g[j]
            words = rng_kernels.random_u32(23, ROUNDING, replicate, i, k, n * s).reshape(n, s)
            sums = np.zeros(s)
            aggregation.round_points(np.tile(point, (n, 1)), tree.g[j], True, words, sums)
            rounding += sums - n * point * tree.g[j]
        earlier_prefix = entries[k - (k & -k)]
        entries[k, 0] = earlier_prefix[0] + (noise + rounding) / tree.g[j]
        entries[k, 1] = earlier_prefix[1] + rounding / tree.g[j]
    return entries[1:, 0], entries[1:, 1]


@pytest.fixture(scope="module")
def simulated() -> tuple[BinomialTree, NoiseDistribution, np.ndarray, np.ndarray]:
    """Simulate 1000 runs of a coarse tree, where rounding is visible and levels differ in noise."""
    tree = tree_of((12, 16, 40), (30, 24, 40), 8, 3)
    runs = [prefix_noises(tree, r) for r in range(1000)]
    noise, rounding = (np.array(part) for part in zip(*runs, strict=True))
    return tree, bit_distribution(tree, 0.002), noise, rounding


def test_noise_of_prefixes_has_the_stated_variances(simulated):
    """Use 9000 independent draws per prefix; a correct law fails once in 10^6."""
    tree, distribution, noise, rounding = simulated
    assert distribution.remainder is not None
    slack = 5.5 * math.sqrt(2.0 / noise[:, 0].size)
    for k in range(1, tree.releases + 1):
        bits = np.square(noise[:, k - 1] - rounding[:, k - 1]).mean()
        variance = distribution.node.bias**2 * distribution.variances[k]
        assert abs(bits / variance - 1.0) <= slack
        levels = [j for j in range(tree.depth) if k >> j & 1]
        assert variance == pytest.approx(sum(tree.noise_std(j) ** 2 for j in levels))
        # The scale of the rounding is its standard deviation if all fractions are 0.5.
        ratio = np.square(rounding[:, k - 1]).mean() / distribution.remainder.rounding[k] ** 2
        assert 0.8 <= ratio <= 1.0 + slack


def test_rounding_is_sub_gaussian_with_its_scale(simulated):
    """Check the tail P(r > t) that follows from E exp(u r) <= exp(u^2 scale^2 / 2)."""
    tree, distribution, _, rounding = simulated
    assert distribution.remainder is not None
    rng = np.random.default_rng(0)
    for k in range(1, tree.releases + 1):
        u = rng.normal(size=(tree.coordinates, 40))
        u /= np.linalg.norm(u, axis=0)
        projections = rounding[:, k - 1] @ u / distribution.remainder.rounding[k]
        for t in (2.0, 3.0):
            # 40 directions, each a binomial count of 1000 runs: a false alarm once in 10^6.
            allowed = stats.binom.isf(FALSE_ALARM / 40, len(projections), math.exp(-0.5 * t * t))
            assert (projections > t).sum(axis=0).max() <= allowed


def test_norms_of_the_noise_stay_below_their_bounds(simulated):
    """Check all releases together in 1000 runs at probability 0.1, for a fixed theta."""
    tree, distribution, noise, _ = simulated
    d, theta = tree.dimension, np.array([0.6, -0.48, 0.64])
    h, lower = noise[..., :d], np.zeros((*noise.shape[:2], d, d))
    rows, columns = np.tril_indices(d)
    lower[..., rows, columns] = noise[..., d:]
    matrix = lower + np.tril(lower, -1).swapaxes(-1, -2)
    norms_by_name = {
        "operator_norms": np.abs(np.linalg.eigvalsh(matrix)).max(axis=-1),
        "vector_norms": np.linalg.norm(h, axis=-1),
        "errors": np.linalg.norm(matrix @ theta - h, axis=-1),
    }
    allowed = stats.binom.isf(FALSE_ALARM, len(noise), 0.1)
    for name, norms in norms_by_name.items():
        bound = getattr(distribution, name)(d, 0.1)[1:]
        assert (norms > bound).any(axis=1).sum() <= allowed
        # With few bits the coupling is expensive. Yet a bound 2.5 times smaller would fail visibly.
        assert (norms > bound / 2.5).any(axis=1).sum() > allowed


def test_noise_of_very_many_bits_is_bounded_as_sub_gaussian(monkeypatch):
    tree = tree_of((12, 16), (30, 24), 8, 3)
    coupled = bit_distribution(tree, 0.002)
    monkeypatch.setattr(module, "MAX_COUPLED_BITS", 100)
    distribution = bit_distribution(tree, 0.002)
    assert distribution.remainder is not None
    assert distribution.remainder.probability == 0.0
    assert not distribution.none
    for name in ("operator_norms", "vector_norms", "errors"):
        sub_gaussian_bounds, coupled_bounds = (
            getattr(distribution, name)(3, 0.1),
            getattr(coupled, name)(3, 0.1),
        )
        assert np.isfinite(sub_gaussian_bounds).all()
        assert (sub_gaussian_bounds[1:] > 0.5 * coupled_bounds[1:]).all()
        assert sub_gaussian_bounds[0] == 0.0
    # For one bit of mean 1/4, the moment generating function is below the stated bound.
    u = np.linspace(-30.0, 30.0, 2001)
    log_mgf = np.logaddexp(math.log(0.75) - 0.25 * u, math.log(0.25) + 0.75 * u)
    assert (log_mgf <= 0.5 * module.BIT_SCALE_SQUARED * u * u + 1e-12).all()


def test_a_tree_without_releases_has_no_noise():
    tree = BinomialTree(0, 8, 3, (), (), "exact", Budget(1.0, 1e-3), "test")
    distribution = bit_distribution(tree, 0.002)
    assert distribution.none
    assert distribution.errors(3, 0.1).tolist() == [0.0]


def test_a_coupling_that_uses_the_whole_probability_is_refused():
    distribution = bit_distribution(tree_of((12,), (30,), 8, 3), 0.05)
    with pytest.raises(ValueError, match="takes the whole failure probability"):
        distribution.errors(3, 0.05)
