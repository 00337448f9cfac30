"""Audits of the mechanisms in this package, run on their own code, and of faults planted in them.

The Gaussian ones simulate a worst pair of neighbouring datasets (all records the same but that of
a leaf which moves the most of the release) through the leaf functions that silos and servers use,
with keyed noise, and look at the log likelihood ratio of everything released.
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

BUDGET = Budget(1.0, 0.01)
RELEASES = 400  # of the tree
STEPS = 40  # of the releases whose noise is shared between all steps, audited on every step

_D = 2  # a worst pair needs no more dimensions
_CHUNK = 1000  # runs held in memory at a time
_COS, _SIN = math.cos(math.pi / 12.0), math.sin(math.pi / 12.0)

#: Features of the changed leaf in the two datasets, both with reward 1, where the joint sensitivity
#: under replacement is attained (see sensitivity._replacement).
WORST_PAIR: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "iid": ((_COS, -_SIN), (-_SIN, _COS)),
    "goe1": ((1.0, 0.0), (-0.5, math.sqrt(0.75))),
    "goe2": ((1.0, 0.0), (-1.0, 0.0)),
}


def _changed(mechanism: GaussianRelease) -> int:
    """Leaf, from 1, in which the two datasets differ: a worst one."""
    return honaker_worst_leaf(mechanism.releases) if mechanism.release == "honaker" else 1


def _leaves(mechanism: GaussianRelease, world: int) -> np.ndarray:
    """Batch statistics (releases, s) of dataset 0 or 1; all leaves but one are the same."""
    features = np.full((mechanism.releases, _D), math.sqrt(0.5))
    features[_changed(mechanism) - 1] = WORST_PAIR[mechanism.layout][world]
    leaves = np.zeros((mechanism.releases, _D + _D * (_D + 1) // 2))
    for leaf, x in zip(leaves, features, strict=True):
        linalg.accumulate(leaf, x, 1.0)
    return leaves


def _node_sums(leaves: np.ndarray) -> np.ndarray:
    """Raw p-sums (releases, s) in the order of release."""
    sums = np.zeros((len(leaves).bit_length(), leaves.shape[1]))
    found = np.empty_like(leaves)
    for k, leaf in enumerate(leaves, start=1):
        level = aggregation.node_level(k)
        aggregation.psum(sums, leaf, level)
        found[k - 1] = sums[level]
    return found


def _precision(mechanism: GaussianRelease) -> np.ndarray:
    """One over the noise variance of each packed entry of a statistic, (s,)."""
    bias, off, on = mechanism.stds
    rows, columns = np.tril_indices(_D)
    stds = np.concatenate([np.full(_D, bias), np.where(rows == columns, on, off)])
    result: np.ndarray = stds**-2.0
    return result


def _noisy(
    mechanism: GaussianRelease, raw: np.ndarray, keys: list[tuple[int, int]], seed: int, run: int
) -> np.ndarray:
    """Rows of raw (n, s), each plus the noise of its (silo, node) key; a run is a replicate."""
    noise, parts = SeededNoise(seed, run), mechanism.stds
    out = np.empty_like(raw)
    for i, (silo, node) in enumerate(keys):
        out[i] = aggregation.add_noise(raw[i], noise.node(silo, node, _D), _D, *parts)
    return out


def _by_chunks(trials: int, simulate: Callable[[range], np.ndarray]) -> np.ndarray:
    """Concatenate the results of all runs, computed so many at a time."""
    return np.concatenate(
        [simulate(range(at, min(trials, at + _CHUNK))) for at in range(0, trials, _CHUNK)]
    )


def _side_by_side(runs: list[np.ndarray]) -> np.ndarray:
    """Rows (n, runs s) of runs of (n, s); sums of rows go entry by entry, so they do all runs."""
    rows: np.ndarray = np.ascontiguousarray(np.stack(runs, axis=1))
    return rows.reshape(len(rows), -1)


def _project(rows: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """<output, direction> of each run, (runs,), from rows side by side."""
    n, s = direction.shape
    result: np.ndarray = np.einsum("nrs,ns->r", rows.reshape(n, -1, s), direction)
    return result


def _ratio_weights(covariance: np.ndarray, changed: int = 1) -> np.ndarray:
    """Weights with which the outputs' sum is the likelihood ratio.

    All outputs from number `changed` on change alike and none before.
    """
    result: np.ndarray = np.linalg.solve(covariance, np.arange(1, len(covariance) + 1) >= changed)
    return result


# ---- what is released, as statistics of many runs -----------------------------------------------


def node_statistics(tree: GaussianTree, trials: int, seed: int, world: int) -> np.ndarray:
    """Log likelihood ratio (trials,), up to a constant, of all released nodes of the tree.

    <output, change> / variance, summed over both streams and the nodes that leaf 1 is in; all else
    that is released has one distribution in both worlds. Worlds are told apart by the silo of their
    noise.
    """
    touched = list(touches(1, tree.releases))
    at = [node - 1 for node in touched]
    sums = [_node_sums(_leaves(tree, w))[at] for w in (0, 1)]
    direction = (sums[1] - sums[0]) * _precision(tree)
    keys = [(world, node) for node in touched]

    def simulate(runs: range) -> np.ndarray:
        nodes = [_noisy(tree, sums[world], keys, seed, run) for run in runs]
        return _project(_side_by_side(nodes), direction)

    return _by_chunks(trials, simulate)


def prefix_statistics(
    tree: GaussianTree, trials: int, seed: int, world: int, *, redrawn: bool = False
) -> np.ndarray:
    """Log likelihood ratio of the protocol that sends prefix sums, from some prefixes.

    They are those of one or two nodes; looking at some only is post-processing, so a bound from
    them is one for all. redrawn: the fault of drawing a node's noise again for every prefix it is
    used in.
    """
    prefixes = [k for k in range(1, tree.releases + 1) if k.bit_count() <= 2]
    blocks = [prefix_nodes(k) for k in prefixes]
    shared = [[len(set(a) & set(b)) for b in blocks] for a in blocks]
    covariance = np.diag(np.diag(shared)) if redrawn else np.array(shared)
    sums = [_node_sums(_leaves(tree, w)) for w in (0, 1)]
    change = (sums[1][0] - sums[0][0]) * _precision(tree)
    direction = _ratio_weights(covariance)[:, None] * change
    # A node's noise has the silo number `world`; redrawn, one more for each prefix.
    used = [
        [(world + 2 * k * redrawn, node) for node in nodes]
        for k, nodes in zip(prefixes, blocks, strict=True)
    ]
    keys = list(dict.fromkeys(key for part in used for key in part))
    row = {key: i for i, key in enumerate(keys)}
    raw = sums[world][[node - 1 for _, node in keys]]

    def simulate(runs: range) -> np.ndarray:
        nodes = _side_by_side([_noisy(tree, raw, keys, seed, run) for run in runs])
        levels = np.zeros((tree.depth, nodes.shape[1]))
        out = np.empty((len(prefixes), nodes.shape[1]))
        for i, k in enumerate(prefixes):
            for key in used[i]:
                levels[aggregation.node_level(key[1])] = nodes[row[key]]
            out[i] = aggregation.prefix(levels, k)
        return _project(out, direction)

    return _by_chunks(trials, simulate)


def release_statistics(release: GaussianRelease, trials: int, seed: int, world: int) -> np.ndarray:
    """Log likelihood ratio of Honaker's tree and square-root Toeplitz noise, from all prefixes."""
    steps, changed = release.releases, _changed(release)
    leaves = [_leaves(release, w) for w in (0, 1)]
    change = (leaves[1] - leaves[0])[changed - 1] * _precision(release)
    if release.release == "honaker":
        raw = np.concatenate([_ending_here(leaves[world], k) for k in range(1, steps + 1)])
        mix = np.zeros((steps, len(raw)))
        for k in range(1, steps + 1):
            for node, c in honaker_coefficients(k).items():
                mix[k - 1, node_number(*node) - 1] = c
    else:
        raw, mix = np.zeros_like(leaves[world]), toeplitz_factor(steps)
    direction = _ratio_weights(mix @ mix.T, changed)[:, None] * change
    keys = [(world, number) for number in range(1, len(raw) + 1)]
    prefixes = np.cumsum(leaves[world], axis=0)

    def simulate(runs: range) -> np.ndarray:
        rows = _side_by_side([_noisy(release, raw, keys, seed, run) for run in runs])
        if release.release == "honaker":
            out = _honaker_prefixes(rows, steps)
        else:
            noise = [toeplitz_prefix_noise(rows[:k]) for k in range(1, steps + 1)]
            out = np.array(noise) + np.tile(prefixes, len(runs))
        return _project(out, direction)

    return _by_chunks(trials, simulate)


def _ending_here(leaves: np.ndarray, k: int) -> np.ndarray:
    """Raw sums (levels, s) of the nodes that Honaker's tree releases at step k."""
    return np.array([leaves[end - (1 << h) : end].sum(axis=0) for end, h in nodes_at(k)])


def _honaker_prefixes(nodes: np.ndarray, steps: int) -> np.ndarray:
    """Noisy prefixes of Honaker's estimator from noisy nodes."""
    estimates = np.zeros((steps.bit_length(), nodes.shape[1]))
    out = np.empty((steps, nodes.shape[1]))
    for k in range(1, steps + 1):
        first = node_count(k - 1)
        honaker_combine(estimates, nodes[first : node_count(k)])
        out[k - 1] = aggregation.prefix(estimates, k)
    return out


# ---- audits -------------------------------------------------------------------------------------


def _exact() -> GaussianTree:
    """The exactly calibrated tree."""
    return calibrate_tree(BUDGET, RELEASES)


def _scaled(factor: float) -> GaussianTree:
    """The exactly calibrated tree with its noise multiplied by a fault."""
    tree = _exact()
    return msgspec.structs.replace(tree, noise_std=factor * tree.noise_std)


def _natural_log() -> GaussianTree:
    """kappa = 1 + ln(K) instead of 1 + floor(log2(K))."""
    return _scaled(math.sqrt((1.0 + math.log(RELEASES)) / _exact().depth))


def _no_kappa() -> GaussianTree:
    """Calibrated as if a record entered one node."""
    return _scaled(_exact().depth ** -0.5)


def _no_bias() -> GaussianTree:
    """Calibrated for the covariance stream alone, whose sensitivity under goe2 is 1 and not 2."""
    alone = user_sensitivity("replace", "goe2", bias_std=math.inf)
    return _scaled(alone / user_sensitivity("replace", "goe2"))


def _gaussian(
    name: str, statistics: Callable[[int, int, int], np.ndarray], trials: int, seed: int
) -> AuditResult:
    """Audit by statistics(trials, seed, world)."""
    trials = integer("trials", trials, at_least=2, at_most=2**32 - 1)
    first, second = (statistics(trials, check_seed(seed), world) for world in (0, 1))
    return audit(name, first, second, claimed_epsilon=BUDGET.epsilon, delta=BUDGET.delta)


def _tree(
    name: str, tree: Callable[[], GaussianTree], statistics: Callable[..., np.ndarray]
) -> tuple[str, Audit]:
    """Audit of a tree."""

    def run(trials: int, seed: int) -> AuditResult:
        return _gaussian(name, partial(statistics, tree()), trials, seed)

    return name, run


def _continual(name: str) -> tuple[str, Audit]:
    """Audit of a continual release."""

    def run(trials: int, seed: int) -> AuditResult:
        release = calibrate_release(name, BUDGET, STEPS)
        return _gaussian(name, partial(release_statistics, release), trials, seed)

    return name, run


def _laplace(name: str, trials: int, seed: int) -> AuditResult:
    """Audit one number, 0 or the sensitivity; the output increases with the likelihood ratio."""
    mechanism = Laplace(sensitivity=1.0, epsilon=1.0)
    draw = np.random.default_rng(check_seed(seed))

    def simulate(value: float, n: int) -> np.ndarray:
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
    """Audit two candidates whose costs move against each other.

    One is rare enough to tell much and frequent enough to be counted.
    """
    mechanism = Exponential(1.0)
    draw = np.random.default_rng(check_seed(seed))
    worlds = np.array([[6.0, 0.0], [5.0, 1.0]])
    logs = [mechanism.log_probabilities(costs) for costs in worlds]

    def simulate(world: int, n: int) -> np.ndarray:
        uniforms = open_uniforms(draw, (n, 2))
        if gumbel:
            chosen = [mechanism.choose_gumbel(worlds[world], u) for u in uniforms]
        else:
            chosen = [mechanism.choose(worlds[world], u) for u in uniforms[:, 0]]
        result: np.ndarray = (logs[1] - logs[0])[chosen]
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
    """Audit queries a little below the threshold that all move up by 1.

    "None above" hangs on the threshold's noise alone. Without that noise the cost grows with the
    number of queries.
    """
    a, b = minimal_scales(1.0, common_shift=True)
    claimed = AboveThreshold(a, b, common_shift=True)
    mechanism = (
        claimed if threshold_noise else msgspec.structs.replace(claimed, threshold_scale=1e-9)
    )
    draw = np.random.default_rng(check_seed(seed))
    count = 30
    worlds = [np.full(count, -3.0), np.full(count, -2.0)]
    logs = [claimed.log_crossing_probabilities(queries, 0.0) for queries in worlds]

    def simulate(world: int, n: int) -> np.ndarray:
        uniforms = open_uniforms(draw, (n, count + 1))
        found = [mechanism.first_above(worlds[world], 0.0, u) for u in uniforms]
        result: np.ndarray = (logs[1] - logs[0])[[count if k is None else k for k in found]]
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=claimed.epsilon,
        delta=0.0,
        trials=trials,
    )


# A value moves from one end to the other beside others at both, so that all costs change.
_ENDS = (-1e3, 1e3)
_OTHERS = np.repeat(_ENDS, 2)
# Ratios that are equal but for rounding are made equal: their last bits depend on those of the
# released numbers, which the claims, being about real numbers, leave out.
_DIGITS = 9


def _private_range(name: str, trials: int, seed: int) -> AuditResult:
    """Audit two midpoints, each the cheaper one in one of the datasets."""
    draw = np.random.default_rng(check_seed(seed))
    radius, bound = 1.0, 2.0
    worlds = [np.append(_OTHERS, end) for end in _ENDS]
    (midpoints, first), (_, second) = (range_distribution(x, 1.0, radius, bound) for x in worlds)

    def simulate(world: int, n: int) -> np.ndarray:
        low = [
            private_range(worlds[world], 1.0, radius, bound, u)[0] for u in open_uniforms(draw, n)
        ]
        chosen = np.abs(np.array(low)[:, None] + 2.0 * radius - midpoints).argmin(axis=1)
        result: np.ndarray = (second - first)[chosen]
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
    """Compute ln of the density of the winsorized mean of values at each y, but for a constant."""
    midpoints, logs = range_distribution(values, epsilon / 2.0, radius, bound)
    low = midpoints - 2.0 * radius
    means = np.clip(values, low[:, None], low[:, None] + 4.0 * radius).mean(axis=1)
    scale = 8.0 * radius / (len(values) * epsilon)
    result: np.ndarray = np.logaddexp.reduce(logs - np.abs(y[..., None] - means) / scale, axis=-1)
    return result


def _winsorized_1d(name: str, trials: int, seed: int) -> AuditResult:
    """Audit the winsorized mean of numbers, one of which moves from end to end."""
    draw = np.random.default_rng(check_seed(seed))
    radius, bound = 1.0, 2.0
    worlds = [np.append(_OTHERS, end) for end in _ENDS]

    def simulate(world: int, n: int) -> np.ndarray:
        uniforms = open_uniforms(draw, (n, 2))
        y = np.array([winsorized_mean_1d(worlds[world], 1.0, radius, bound, *u) for u in uniforms])
        logs = [_log_density(x, 1.0, radius, bound, y) for x in worlds]
        result: np.ndarray = np.round(logs[1] - logs[0], _DIGITS)
        return result

    return audit(
        name,
        partial(simulate, 0),
        partial(simulate, 1),
        claimed_epsilon=1.0,
        delta=0.0,
        trials=trials,
    )


def _winsorized(name: str, d: int, noise: float, trials: int, seed: int) -> AuditResult:
    """Audit a vector, large in every rotated coordinate, that becomes its opposite.

    d: a power of two. noise: a fault, multiplies the Laplace noise.
    """
    draw = np.random.default_rng(check_seed(seed))
    silos = len(_OTHERS) + 1
    mechanism = calibrate_winsorized(
        BUDGET,
        silos=silos,
        dimension=d,
        radius=0.04,  # two bins
        bound=1.0,
        releases=1,
        concentration_failure=0.01,
    )
    worlds = [np.zeros((silos, d)) for _ in _ENDS]
    for x, end in zip(worlds, _ENDS, strict=True):
        x[:, 0] = np.append(_OTHERS, end)

    def simulate(world: int, n: int) -> np.ndarray:
        signs = 2.0 * draw.integers(2, size=(n, d)) - 1.0
        uniforms = open_uniforms(draw, (n, 2, d))
        uniforms[:, 1] = np.exp(log_cdf(noise * laplace_quantile(uniforms[:, 1])))
        means = [
            mechanism.apply(worlds[world], flips, *u)
            for flips, u in zip(signs, uniforms, strict=True)
        ]
        # Rotated back, and every coordinate in the direction in which the vector was moved.
        y = hadamard(signs * means) / math.sqrt(d) * signs[:, :1]
        given = mechanism.rotated_radius, mechanism.rotated_bound, y
        columns = [x[:, 0] / math.sqrt(d) for x in worlds]
        logs = [_log_density(c, mechanism.epsilon_coordinate, *given) for c in columns]
        result: np.ndarray = np.round((logs[1] - logs[0]).sum(axis=1), _DIGITS)
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
    """Audit a statistic plus Gaussian noise by one addition of doubles, of the claimed variance.

    The two records are of no special kind: they are told apart by the doubles that are never
    released. The statistic is 1 if the second record can have given the release, less 1 if the
    first can.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    draw, d = np.random.default_rng(check_seed(seed)), 6
    records = np.zeros((2, d + d * (d + 1) // 2))
    for record in records:
        x = draw.normal(size=d)
        linalg.accumulate(record, x / np.linalg.norm(x), 1.0)
    tree = calibrate_tree(BUDGET, 1)
    bias, off, on = tree.stds
    rows, columns = np.tril_indices(d)
    stds = np.concatenate([np.full(d, bias), np.where(rows == columns, on, off)])

    def simulate(world: int, n: int) -> np.ndarray:
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
    _tree("gaussian-tree", _exact, node_statistics),
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
    _tree("gaussian-tree-prefix", _exact, prefix_statistics),
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
    _tree("fault-kappa-forgotten", _no_kappa, node_statistics),
    _tree("fault-bias-forgotten", _no_bias, node_statistics),
    _tree("fault-noise-redrawn", _exact, partial(prefix_statistics, redrawn=True)),
    (
        "fault-bare-threshold",
        partial(_sparse_vector, "fault-bare-threshold", False),
    ),
    (
        # One dimension, where the fewest runs tell.
        "fault-winsorized-half-noise",
        partial(_winsorized, "fault-winsorized-half-noise", 1, 0.5),
    ),
    ("fault-float-noise", partial(_float_noise, "fault-float-noise")),
    *experts.AUDITS.items(),
]

#: Name -> audit(trials, seed), with `trials` independent runs on each of two neighbouring datasets.
#: The claim is (1, 0.01) for Gaussian noise and for means of vectors, (1, 0) for the others.
AUDITS: dict[str, Audit] = dict(_LIST)

#: The audits that must end with "caught": the published code's noise, and the planted faults.
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

#: Runs on each dataset that make every verdict all but certain, within seconds. The natural
#: logarithm's true epsilon is 1.18, which takes many runs to tell from 1; audits of prefixes draw
#: noise for many nodes a run.
TRIALS: dict[str, int] = {
    **dict.fromkeys(AUDITS, 20_000),
    **dict.fromkeys(("gaussian-tree-prefix", "fault-noise-redrawn", "honaker", "toeplitz"), 10_000),
    **dict.fromkeys(("winsorized-mean", "fault-winsorized-half-noise"), 8000),
    "fault-natural-log": 200_000,
    "fault-float-noise": 4000,
    **experts.TRIALS,
}
