"""Audits of the mechanisms in this package, run on their real code, and of planted faults.

Audits of Gaussian mechanisms simulate a worst pair of neighbouring datasets, called world 0 and
world 1. They differ in one record of the leaf (batch) with the largest effect. The audits call the
same functions as silos and servers, with noise from a seed, and compute the log likelihood ratio of
everything released.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import SeededNoise, check_seed
from fastfed._validate import integer
from fastfed.privacy.audit import experts
from fastfed.privacy.audit.bounds import AuditResult, audit, open_uniforms
from fastfed.privacy.audit.low_bits import reachable
from fastfed.privacy.mechanisms.laplace import (
    Exponential,
    Laplace,
    laplace_quantile,
    log_cdf,
    private_range,
    range_distribution,
    winsorized_mean_1d,
)
from fastfed.privacy.mechanisms.sparse_vector import AboveThreshold, minimal_scales
from fastfed.privacy.mechanisms.winsorized import calibrate_winsorized, hadamard
from fastfed.privacy.releases.gaussian_release import (
    GaussianRelease,
    GaussianTree,
    calibrate_release,
    calibrate_tree,
)
from fastfed.privacy.releases.prefix_sums import (
    honaker_coefficients,
    honaker_combine,
    honaker_worst_leaf,
    node_count,
    node_number,
    nodes_at,
    prefix_nodes,
    toeplitz_factor,
    toeplitz_prefix_noise,
    touches,
)
from fastfed.privacy.sensitivity import Budget, user_sensitivity

Audit = Callable[[int, int], AuditResult]

#: The claim that most audits of this module test.
BUDGET = Budget(1.0, 0.01)
RELEASES = 400  # number of releases of the tree
STEPS = 40  # number of releases with Honaker's or Toeplitz noise, all of which are audited

_DIMENSION = 2  # d; a worst pair of records needs no more dimensions
_RUNS_AT_ONCE = 1000  # number of runs in memory at a time
_COS, _SIN = math.cos(math.pi / 12.0), math.sin(math.pi / 12.0)

#: For each layout, the features of the record that differs, in the two datasets. Its reward is 1.
#: The pair attains the joint sensitivity under replacement (see sensitivity._replacement).
WORST_PAIR: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "iid": ((_COS, -_SIN), (-_SIN, _COS)),
    "goe1": ((1.0, 0.0), (-0.5, math.sqrt(0.75))),
    "goe2": ((1.0, 0.0), (-1.0, 0.0)),
}


def _changed_leaf(mechanism: GaussianRelease) -> int:
    """Return the number, from 1, of the leaf in which the two datasets differ.

    It is a leaf with the largest effect on all releases.
    """
    return honaker_worst_leaf(mechanism.releases) if mechanism.release == "honaker" else 1


def _leaves(mechanism: GaussianRelease, world: int) -> np.ndarray:
    """Return the sums (releases, s) of all leaves (batches) of dataset ``world``, which is 0 or 1.

    Each leaf has one record. The datasets differ in one leaf.
    """
    features = np.full((mechanism.releases, _DIMENSION), math.sqrt(0.5))
    features[_changed_leaf(mechanism) - 1] = WORST_PAIR[mechanism.layout][world]
    leaves = np.zeros((mechanism.releases, _DIMENSION + _DIMENSION * (_DIMENSION + 1) // 2))
    for leaf, x in zip(leaves, features, strict=True):
        linalg.accumulate(leaf, x, 1.0)
    return leaves


def _node_sums(leaves: np.ndarray) -> np.ndarray:
    """Return the sums (releases, s) of the tree's nodes without noise, in the order of release.

    ``leaves`` (releases, s) holds the sums of the leaves.
    """
    sums = np.zeros((len(leaves).bit_length(), leaves.shape[1]))
    released_sums = np.empty_like(leaves)
    for k, leaf in enumerate(leaves, start=1):
        level = aggregation.node_level(k)
        aggregation.psum(sums, leaf, level)
        released_sums[k - 1] = sums[level]
    return released_sums


def _precision(mechanism: GaussianRelease) -> np.ndarray:
    """Return 1 / noise variance of each of the s entries of one noisy node of the mechanism, (s,).

    A node is the sum of its records' statistics. A statistic consists of x y (called bias) and then
    the lower triangle of x x'.
    """
    bias, off_diagonal, diagonal = mechanism.stds
    rows, columns = np.tril_indices(_DIMENSION)
    stds = np.concatenate(
        [np.full(_DIMENSION, bias), np.where(rows == columns, diagonal, off_diagonal)]
    )
    result: np.ndarray = stds**-2.0
    return result


def _add_noise(
    mechanism: GaussianRelease, raw: np.ndarray, keys: list[tuple[int, int]], seed: int, run: int
) -> np.ndarray:
    """Return the rows of ``raw`` (n, s) with noise. Row i gets the noise of ``keys[i]``.

    A key is a pair (silo, node). The noise of each run is independent of all other runs.
    """
    noise, stds = SeededNoise(seed, run), mechanism.stds
    noisy_rows = np.empty_like(raw)
    for i, (silo, node) in enumerate(keys):
        noisy_rows[i] = aggregation.add_noise(
            raw[i], noise.node(silo, node, _DIMENSION), _DIMENSION, *stds
        )
    return noisy_rows


def _by_chunks(trials: int, simulate: Callable[[range], np.ndarray]) -> np.ndarray:
    """Return the statistics (trials,) of all runs, which ``simulate`` computes chunk by chunk."""
    return np.concatenate(
        [
            simulate(range(start, min(trials, start + _RUNS_AT_ONCE)))
            for start in range(0, trials, _RUNS_AT_ONCE)
        ]
    )


def _side_by_side(runs: list[np.ndarray]) -> np.ndarray:
    """Return the outputs (n, s) of several runs as one array (n, runs * s).

    An operation on rows then applies to all runs at once.
    """
    stacked: np.ndarray = np.ascontiguousarray(np.stack(runs, axis=1))
    return stacked.reshape(len(stacked), -1)


def _project(rows: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Return the inner products (runs,) of the runs' outputs with ``direction`` (n, s).

    ``rows`` (n, runs * s) is the result of `_side_by_side`.
    """
    n, s = direction.shape
    result: np.ndarray = np.einsum("nrs,ns->r", rows.reshape(n, -1, s), direction)
    return result


def _likelihood_weights(covariance: np.ndarray, changed: int = 1) -> np.ndarray:
    """Return weights for which the weighted sum of Gaussian outputs is a log likelihood ratio.

    The outputs are the successive prefix sums of a release, with this covariance. The means of
    output number ``changed``, counted from 1, and of all later outputs differ by the same amount
    between the two datasets. Earlier means do not differ.
    """
    result: np.ndarray = np.linalg.solve(covariance, np.arange(1, len(covariance) + 1) >= changed)
    return result


# ---- statistics of everything released, for many runs -------------------------------------------


def node_statistics(tree: GaussianTree, trials: int, seed: int, world: int) -> np.ndarray:
    """Return the log likelihood ratio of all released tree nodes in each run on one dataset.

    ``world`` (0 or 1) is the dataset. The result (trials,) is correct up to a constant. It is
    <output, change> / variance, summed over all entries of the nodes that contain leaf 1. All other
    nodes have the same distribution on both datasets. The noise on dataset 0 and on dataset 1 has
    different silo numbers, so it is independent.
    """
    touched_nodes = list(touches(1, tree.releases))
    indices = [node - 1 for node in touched_nodes]
    sums = [_node_sums(_leaves(tree, w))[indices] for w in (0, 1)]
    direction = (sums[1] - sums[0]) * _precision(tree)
    keys = [(world, node) for node in touched_nodes]

    def simulate(runs: range) -> np.ndarray:
        """Return the log likelihood ratios of these runs, up to a constant."""
        nodes = [_add_noise(tree, sums[world], keys, seed, run) for run in runs]
        return _project(_side_by_side(nodes), direction)

    return _by_chunks(trials, simulate)


def prefix_statistics(
    tree: GaussianTree, trials: int, seed: int, world: int, *, redrawn: bool = False
) -> np.ndarray:
    """Return the log likelihood ratio of noisy prefix sums in each run on one dataset, (trials,).

    ``world`` (0 or 1) is the dataset. The ratio uses only the prefix sums that add one or two tree
    nodes. To ignore the other prefix sums is post-processing. So a lower bound on epsilon that an
    audit finds from these prefix sums also holds for the release of all prefix sums. ``redrawn``
    plants a fault: a node's noise is drawn again for every prefix sum that uses the node.
    """
    prefixes = [k for k in range(1, tree.releases + 1) if k.bit_count() <= 2]
    blocks = [prefix_nodes(k) for k in prefixes]
    # The covariance of two prefixes is the number of nodes that they have in common.
    shared = [[len(set(a) & set(b)) for b in blocks] for a in blocks]
    covariance = np.diag(np.diag(shared)) if redrawn else np.array(shared)
    # Every prefix contains leaf 1, the leaf that differs. So the means of all prefix sums differ
    # by the same vector between the two datasets.
    sums = [_node_sums(_leaves(tree, w)) for w in (0, 1)]
    change = (sums[1][0] - sums[0][0]) * _precision(tree)
    direction = _likelihood_weights(covariance)[:, None] * change
    # A node's noise has the silo number ``world``; if redrawn, a different one for each prefix.
    keys_by_prefix = [
        [(world + 2 * k * redrawn, node) for node in nodes]
        for k, nodes in zip(prefixes, blocks, strict=True)
    ]
    keys = list(dict.fromkeys(key for prefix_keys in keys_by_prefix for key in prefix_keys))
    key_index = {key: i for i, key in enumerate(keys)}
    raw = sums[world][[node - 1 for _, node in keys]]

    def simulate(runs: range) -> np.ndarray:
        """Return the released prefixes of these runs, projected on the direction of the change."""
        nodes = _side_by_side([_add_noise(tree, raw, keys, seed, run) for run in runs])
        levels = np.zeros((tree.depth, nodes.shape[1]))
        prefix_rows = np.empty((len(prefixes), nodes.shape[1]))
        for i, k in enumerate(prefixes):
            for key in keys_by_prefix[i]:
                levels[aggregation.node_level(key[1])] = nodes[key_index[key]]
            prefix_rows[i] = aggregation.prefix(levels, k)
        return _project(prefix_rows, direction)

    return _by_chunks(trials, simulate)


def release_statistics(release: GaussianRelease, trials: int, seed: int, world: int) -> np.ndarray:
    """Return the log likelihood ratio of all prefix sums in each run on one dataset, (trials,).

    ``world`` (0 or 1) is the dataset. The type of the release is "honaker" or "toeplitz".
    """
    steps, changed = release.releases, _changed_leaf(release)
    leaves = [_leaves(release, w) for w in (0, 1)]
    change = (leaves[1] - leaves[0])[changed - 1] * _precision(release)
    # Noise is added to each row of `raw_rows`. For "honaker" these rows are the sums of all nodes.
    # For "toeplitz" they are zero, and the prefix sums are added after the noise is combined.
    if release.release == "honaker":
        raw_rows = np.concatenate(
            [_completed_node_sums(leaves[world], k) for k in range(1, steps + 1)]
        )
        noise_coefficients = np.zeros((steps, len(raw_rows)))
        for k in range(1, steps + 1):
            for node, c in honaker_coefficients(k).items():
                noise_coefficients[k - 1, node_number(*node) - 1] = c
    else:
        raw_rows, noise_coefficients = np.zeros_like(leaves[world]), toeplitz_factor(steps)
    direction = (
        _likelihood_weights(noise_coefficients @ noise_coefficients.T, changed)[:, None] * change
    )
    keys = [(world, number) for number in range(1, len(raw_rows) + 1)]
    prefixes = np.cumsum(leaves[world], axis=0)

    def simulate(runs: range) -> np.ndarray:
        """Return the released prefixes of these runs, projected on the direction of the change."""
        noisy_rows = _side_by_side([_add_noise(release, raw_rows, keys, seed, run) for run in runs])
        if release.release == "honaker":
            prefix_rows = _honaker_prefixes(noisy_rows, steps)
        else:
            noise = [toeplitz_prefix_noise(noisy_rows[:k]) for k in range(1, steps + 1)]
            prefix_rows = np.array(noise) + np.tile(prefixes, len(runs))
        return _project(prefix_rows, direction)

    return _by_chunks(trials, simulate)


def _completed_node_sums(leaves: np.ndarray, k: int) -> np.ndarray:
    """Return the sums (levels, s), without noise, of the tree's nodes that leaf k completes."""
    return np.array([leaves[end - (1 << h) : end].sum(axis=0) for end, h in nodes_at(k)])


def _honaker_prefixes(nodes: np.ndarray, steps: int) -> np.ndarray:
    """Return the noisy prefix sums (steps, s) of Honaker's estimator.

    ``nodes`` (n, s) are the noisy sums of all nodes, in the order of their completion.
    """
    estimates = np.zeros((steps.bit_length(), nodes.shape[1]))
    prefix_rows = np.empty((steps, nodes.shape[1]))
    for k in range(1, steps + 1):
        first = node_count(k - 1)
        honaker_combine(estimates, nodes[first : node_count(k)])
        prefix_rows[k - 1] = aggregation.prefix(estimates, k)
    return prefix_rows


# ---- audits -------------------------------------------------------------------------------------


def _exact_tree() -> GaussianTree:
    """Return the tree with the least noise that meets `BUDGET`."""
    return calibrate_tree(BUDGET, RELEASES)


def _faulty_tree(factor: float) -> GaussianTree:
    """Plant a fault: return the exactly calibrated tree with its noise multiplied by ``factor``."""
    tree = _exact_tree()
    return msgspec.structs.replace(tree, noise_std=factor * tree.noise_std)


def _natural_log() -> GaussianTree:
    """Plant a fault: return the tree calibrated with kappa = 1 + ln(K), not 1 + floor(log2(K)).

    kappa is the number of nodes that contain one leaf.
    """
    return _faulty_tree(math.sqrt((1.0 + math.log(RELEASES)) / _exact_tree().depth))


def _without_kappa() -> GaussianTree:
    """Plant a fault: return the tree calibrated as if a record entered one node only."""
    return _faulty_tree(_exact_tree().depth ** -0.5)


def _without_bias() -> GaussianTree:
    """Plant a fault: return the tree calibrated for the sum of x x' alone.

    In layout goe2 the sum of x x' has sensitivity 1. But together the two released sums, of x y
    (called bias) and of x x', have sensitivity 2.
    """
    covariance_sensitivity = user_sensitivity("replace", "goe2", bias_std=math.inf)
    return _faulty_tree(covariance_sensitivity / user_sensitivity("replace", "goe2"))


def _gaussian(
    name: str, statistics: Callable[[int, int, int], np.ndarray], trials: int, seed: int
) -> AuditResult:
    """Audit the claim `BUDGET` by statistics of runs on two datasets.

    ``statistics(trials, seed, world)`` returns the statistics (trials,) of dataset 0 or 1.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**32 - 1)
    first_statistics, second_statistics = (
        statistics(trials, check_seed(seed), world) for world in (0, 1)
    )
    return audit(
        name,
        first_statistics,
        second_statistics,
        claimed_epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
    )


def _tree(
    name: str, tree: Callable[[], GaussianTree], statistics: Callable[..., np.ndarray]
) -> tuple[str, Audit]:
    """Return the tuple (name, audit) for the tree that ``tree()`` returns."""

    def run(trials: int, seed: int) -> AuditResult:
        """Audit the tree by ``statistics``, such as `node_statistics`."""
        return _gaussian(name, partial(statistics, tree()), trials, seed)

    return name, run


def _continual(name: str) -> tuple[str, Audit]:
    """Return the tuple (name, audit) for the release type ``name``, "honaker" or "toeplitz"."""

    def run(trials: int, seed: int) -> AuditResult:
        """Audit the release, with the least noise that meets `BUDGET`."""
        release = calibrate_release(name, BUDGET, STEPS)
        return _gaussian(name, partial(release_statistics, release), trials, seed)

    return name, run


def _laplace(name: str, trials: int, seed: int) -> AuditResult:
    """Audit the Laplace mechanism on a number that is 0 or the sensitivity.

    The statistic is the output itself: the likelihood ratio is an increasing function of it.
    """
    mechanism = Laplace(sensitivity=1.0, epsilon=1.0)
    draw = np.random.default_rng(check_seed(seed))

    def simulate(value: float, n: int) -> np.ndarray:
        """Return n independent releases of the number ``value``."""
        return mechanism.release(np.full(n, value), open_uniforms(draw, n))

    return audit(
        name,
        partial(simulate, 0.0),
        partial(simulate, mechanism.sensitivity),
        claimed_epsilon=mechanism.epsilon,
        delta=0.0,
        trials=trials,
    )


def _exponential(name: str, gumbel: bool, trials: int, seed: int) -> AuditResult:
    """Audit the exponential mechanism on two candidates whose costs change in opposite directions.

    One candidate is rare enough for a large likelihood ratio and frequent enough to be counted.
    ``gumbel`` selects the implementation by the Gumbel-max trick.
    """
    mechanism = Exponential(1.0)
    draw = np.random.default_rng(check_seed(seed))
    costs_by_world = np.array([[6.0, 0.0], [5.0, 1.0]])
    log_probabilities = [mechanism.log_probabilities(costs) for costs in costs_by_world]

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of n choices on dataset ``world`` (0 or 1)."""
        uniforms = open_uniforms(draw, (n, 2))
        if gumbel:
            chosen = [mechanism.choose_gumbel(costs_by_world[world], u) for u in uniforms]
        else:
            chosen = [mechanism.choose(costs_by_world[world], u) for u in uniforms[:, 0]]
        result: np.ndarray = (log_probabilities[1] - log_probabilities[0])[chosen]
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=mechanism.eta,
        delta=0.0,
        trials=trials,
    )


def _sparse_vector(name: str, threshold_noise: bool, trials: int, seed: int) -> AuditResult:
    """Audit `AboveThreshold` on equal queries, all of which increase by 1 between the datasets.

    The queries are slightly below the threshold on both datasets. The statistic is the log
    likelihood ratio of the first crossing. With ``threshold_noise`` False a fault is planted:
    without noise on the threshold, epsilon grows with the number of queries.
    """
    threshold_scale, query_scale = minimal_scales(1.0, common_shift=True)
    claimed = AboveThreshold(threshold_scale, query_scale, common_shift=True)
    mechanism = (
        claimed if threshold_noise else msgspec.structs.replace(claimed, threshold_scale=1e-9)
    )
    draw = np.random.default_rng(check_seed(seed))
    count = 30
    queries_by_world = [np.full(count, -3.0), np.full(count, -2.0)]
    log_probabilities = [
        claimed.log_crossing_probabilities(queries, 0.0) for queries in queries_by_world
    ]

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of the first crossings of n runs on one dataset.

        ``world`` (0 or 1) is the dataset.
        """
        uniforms = open_uniforms(draw, (n, count + 1))
        crossings = [mechanism.first_above(queries_by_world[world], 0.0, u) for u in uniforms]
        result: np.ndarray = (log_probabilities[1] - log_probabilities[0])[
            [count if k is None else k for k in crossings]
        ]
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=claimed.epsilon,
        delta=0.0,
        trials=trials,
    )


# The datasets of `_private_range` and of the winsorized means: one value is at the lower end on
# dataset 0, and at the upper end on dataset 1. The other values are at both ends, so that the cost
# of every range changes.
_END_VALUES = (-1e3, 1e3)
_OTHER_VALUES = np.repeat(_END_VALUES, 2)
# Likelihood ratios are rounded to this number of digits. Their last bits depend on the last bits of
# released numbers, which the claims (about real numbers) do not cover.
_DIGITS = 9


def _private_range(name: str, trials: int, seed: int) -> AuditResult:
    """Audit `private_range` on two datasets, on which different ranges are the most probable."""
    draw = np.random.default_rng(check_seed(seed))
    radius, bound = 1.0, 2.0
    values_by_world = [np.append(_OTHER_VALUES, end) for end in _END_VALUES]
    (midpoints, log_probabilities_0), (_, log_probabilities_1) = (
        range_distribution(x, 1.0, radius, bound) for x in values_by_world
    )

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of n private ranges on dataset ``world`` (0 or 1)."""
        lower_ends = [
            private_range(values_by_world[world], 1.0, radius, bound, u)[0]
            for u in open_uniforms(draw, n)
        ]
        # A range has width 4 * radius, so its midpoint is 2 * radius above its lower end.
        chosen_midpoints = np.array(lower_ends)[:, None] + 2.0 * radius
        chosen = np.abs(chosen_midpoints - midpoints).argmin(axis=1)
        result: np.ndarray = (log_probabilities_1 - log_probabilities_0)[chosen]
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=1.0,
        delta=0.0,
        trials=trials,
    )


def _log_density(
    values: np.ndarray, epsilon: float, radius: float, bound: float, y: np.ndarray
) -> np.ndarray:
    """Return the log density of the private winsorized mean of ``values`` at each y.

    It is correct up to a constant. The density is a mixture of Laplace densities over the private
    ranges. ``epsilon``, ``radius`` and ``bound`` are the arguments of `winsorized_mean_1d`.
    """
    midpoints, log_probabilities = range_distribution(values, epsilon / 2.0, radius, bound)
    low = midpoints - 2.0 * radius
    means = np.clip(values, low[:, None], low[:, None] + 4.0 * radius).mean(axis=1)
    scale = 8.0 * radius / (len(values) * epsilon)
    result: np.ndarray = np.logaddexp.reduce(
        log_probabilities - np.abs(y[..., None] - means) / scale, axis=-1
    )
    return result


def _winsorized_1d(name: str, trials: int, seed: int) -> AuditResult:
    """Audit `winsorized_mean_1d` if one of the numbers moves from one end to the other."""
    draw = np.random.default_rng(check_seed(seed))
    radius, bound = 1.0, 2.0
    values_by_world = [np.append(_OTHER_VALUES, end) for end in _END_VALUES]

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of n private means on dataset ``world`` (0 or 1)."""
        uniforms = open_uniforms(draw, (n, 2))
        y = np.array(
            [winsorized_mean_1d(values_by_world[world], 1.0, radius, bound, *u) for u in uniforms]
        )
        log_densities = [_log_density(x, 1.0, radius, bound, y) for x in values_by_world]
        result: np.ndarray = np.round(log_densities[1] - log_densities[0], _DIGITS)
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=1.0,
        delta=0.0,
        trials=trials,
    )


def _winsorized(name: str, d: int, noise_factor: float, trials: int, seed: int) -> AuditResult:
    """Audit the winsorized mean of vectors if one vector is replaced by its negative.

    Only the first coordinate of each vector is not 0. The random rotation of the mechanism spreads
    it over all coordinates, so the replacement changes every rotated coordinate. ``d``, the
    dimension, is a power of two. ``noise_factor`` multiplies the Laplace noise: a factor below 1 is
    a planted fault.
    """
    draw = np.random.default_rng(check_seed(seed))
    silos = len(_OTHER_VALUES) + 1
    mechanism = calibrate_winsorized(
        BUDGET,
        silos=silos,
        dimension=d,
        radius=0.04,  # gives two bins: two possible ranges of a rotated coordinate
        bound=1.0,
        releases=1,
        concentration_failure=0.01,
    )
    values_by_world = [np.zeros((silos, d)) for _ in _END_VALUES]
    for x, end in zip(values_by_world, _END_VALUES, strict=True):
        x[:, 0] = np.append(_OTHER_VALUES, end)

    def simulate(world: int, n: int) -> np.ndarray:
        """Return the log-likelihood ratios of n private mean vectors on dataset ``world``."""
        signs = 2.0 * draw.integers(2, size=(n, d)) - 1.0
        uniforms = open_uniforms(draw, (n, 2, d))
        # Change the uniforms so that they give Laplace noise multiplied by ``noise_factor``.
        uniforms[:, 1] = np.exp(log_cdf(noise_factor * laplace_quantile(uniforms[:, 1])))
        means = [
            mechanism.apply(values_by_world[world], flips, *u)
            for flips, u in zip(signs, uniforms, strict=True)
        ]
        # The mechanism rotates its mean back. Rotate the mean once more, to get the private mean of
        # each rotated coordinate. A vector v e_1 has the value v signs[0] / sqrt(d) in every
        # rotated coordinate. Multiply by signs[0], so that the distribution of y is the same in
        # every coordinate and for all signs.
        y = hadamard(signs * means) / math.sqrt(d) * signs[:, :1]
        radius_bound_y = mechanism.rotated_radius, mechanism.rotated_bound, y
        columns = [x[:, 0] / math.sqrt(d) for x in values_by_world]
        log_densities = [
            _log_density(c, mechanism.epsilon_coordinate, *radius_bound_y) for c in columns
        ]
        result: np.ndarray = np.round((log_densities[1] - log_densities[0]).sum(axis=1), _DIGITS)
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        trials=trials,
    )


def _float_noise(name: str, trials: int, seed: int) -> AuditResult:
    """Audit a sum with Gaussian noise of the claimed variance, added in float64: a planted fault.

    The two records are drawn at random. For each record, some doubles cannot be the result of
    adding noise to it in float64. If such a double is released, the record is excluded. The
    statistic is 1 if only the second record can lead to all released doubles, -1 if only the first
    can, and else 0.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    draw, d = np.random.default_rng(check_seed(seed)), 6
    records = np.zeros((2, d + d * (d + 1) // 2))
    for record in records:
        x = draw.normal(size=d)
        linalg.accumulate(record, x / np.linalg.norm(x), 1.0)
    tree = calibrate_tree(BUDGET, 1)
    bias, off_diagonal, diagonal = tree.stds
    rows, columns = np.tril_indices(d)
    stds = np.concatenate([np.full(d, bias), np.where(rows == columns, diagonal, off_diagonal)])

    def simulate(world: int, n: int) -> np.ndarray:
        """Return 1 where only the second record can give a release, -1 where only the first can."""
        released = records[world] + stds * draw.normal(size=(n, len(stds)))
        possible = [reachable(released, record, stds).all(axis=1) for record in records]
        result: np.ndarray = possible[1].astype(float) - possible[0]
        return result

    return audit(
        name,
        _by_chunks(trials, lambda runs: simulate(0, len(runs))),
        _by_chunks(trials, lambda runs: simulate(1, len(runs))),
        claimed_epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
    )


_LIST: list[tuple[str, Audit]] = [
    _tree("gaussian-tree", _exact_tree, node_statistics),
    _tree(
        "gaussian-tree-theorem",
        partial(calibrate_tree, BUDGET, RELEASES, "theorem"),
        node_statistics,
    ),
    _tree(
        "gaussian-tree-published-code",
        partial(calibrate_tree, BUDGET, RELEASES, "published-code"),
        node_statistics,
    ),
    _tree("gaussian-tree-prefix", _exact_tree, prefix_statistics),
    _continual("honaker"),
    _continual("toeplitz"),
    ("laplace", partial(_laplace, "laplace")),
    ("exponential", partial(_exponential, "exponential", False)),
    ("exponential-gumbel", partial(_exponential, "exponential-gumbel", True)),
    ("sparse-vector", partial(_sparse_vector, "sparse-vector", True)),
    ("private-range", partial(_private_range, "private-range")),
    ("winsorized-mean-1d", partial(_winsorized_1d, "winsorized-mean-1d")),
    ("winsorized-mean", partial(_winsorized, "winsorized-mean", 2, 1.0)),
    # Planted faults.
    _tree("fault-natural-log", _natural_log, node_statistics),
    _tree("fault-kappa-forgotten", _without_kappa, node_statistics),
    _tree("fault-bias-forgotten", _without_bias, node_statistics),
    _tree("fault-noise-redrawn", _exact_tree, partial(prefix_statistics, redrawn=True)),
    ("fault-bare-threshold", partial(_sparse_vector, "fault-bare-threshold", False)),
    (
        # One dimension needs the fewest runs.
        "fault-winsorized-half-noise",
        partial(_winsorized, "fault-winsorized-half-noise", 1, 0.5),
    ),
    ("fault-float-noise", partial(_float_noise, "fault-float-noise")),
    *experts.AUDITS.items(),
]

#: Name -> audit(trials, seed), with ``trials`` independent runs on each of two neighbouring
#: datasets. The claim is (1, 0.01) for Gaussian noise and means of vectors, else (1, 0).
AUDITS: dict[str, Audit] = dict(_LIST)

#: The audits that must end with "caught": the noise of the published code, and planted faults.
FAULTY = frozenset(
    {
        "gaussian-tree-published-code",
        "fault-natural-log",
        "fault-kappa-forgotten",
        "fault-bias-forgotten",
        "fault-noise-redrawn",
        "fault-bare-threshold",
        "fault-winsorized-half-noise",
        "fault-float-noise",
        *experts.FAULTY,
    }
)

#: Number of runs on each dataset for which every verdict is nearly certain, within seconds. The
#: true epsilon of the natural logarithm is 1.18, which takes many runs to distinguish from 1.
#: Audits of prefixes draw noise for many nodes per run.
TRIALS: dict[str, int] = {
    **dict.fromkeys(AUDITS, 20_000),
    **dict.fromkeys(("gaussian-tree-prefix", "fault-noise-redrawn", "honaker", "toeplitz"), 10_000),
    **dict.fromkeys(("winsorized-mean", "fault-winsorized-half-noise"), 8000),
    "fault-natural-log": 200_000,
    "fault-float-noise": 4000,
    **experts.TRIALS,
}
