"""Public doors to the compiled leaf kernels: validated, arrays in, arrays out.

A positive definite V (d, d) enters as its inverse factor W = L^{-1} with V = L L', lower
triangular, so that V^{-1} = W'W and ||x||_{V^-1} = ||W x||: ``factor = inverse_factor(V)``.

Inputs may be read-only and of any strides and real dtype; they are converted to float64 where
they must be. Arguments updated in place must be writable C-contiguous float64 arrays. Every
function takes ``use_native``: False runs the NumPy twin of the same kernel instead.

To see that a matrix is an inverse factor takes longer than to use it. Whoever holds one that
inverse_factor made and factor_update has kept says ``trusted=True``: type and shape of factor and
theta are checked then, their values are not.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fastfed._kernels import implementation
from fastfed._random import SHUFFLE, check_seed
from fastfed._validate import InputError, array, choice, integer, number, show
from fastfed.privacy.sensitivity import layout_stds

__all__ = [
    "inverse_factor",
    "encode_bits",
    "factor_update",
    "normals",
    "rank_one_update",
    "sherman_morrison",
    "shuffle_bits",
    "tree_noise",
    "ucb_argmax",
    "ucb_scores",
]

_WORD = 2**32 - 1  # parts of a key are 32-bit words


def _target(
    name: str, value: object, shape: tuple[int | None, ...], finite: bool = True
) -> np.ndarray:
    """An array to be updated in place: never converted, so it must be ready as it is."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{name} must be a float64 array, for it is updated in place, got {kind}")
    if not (value.flags.c_contiguous and value.flags.aligned and value.flags.writeable):
        raise InputError(
            f"{name} must be writable and C-contiguous, for it is updated in place, got "
            f"writeable {value.flags.writeable}, strides {value.strides} for shape {value.shape}"
        )
    return array(name, value, shape=shape) if finite else _held(name, value, shape)


def _vector(name: str, value: object, d: int, *targets: np.ndarray) -> np.ndarray:
    """A finite vector (d,), copied where it is a part of what is about to change."""
    checked = _held(name, value, (d,))
    if checked is not value or not np.isfinite(checked).all():
        checked = array(name, value, shape=(d,))
    return checked.copy() if any(np.may_share_memory(checked, t) for t in targets) else checked


def _square(name: str, value: np.ndarray) -> int:
    if value.shape[0] != value.shape[1] or not value.shape[0]:
        raise InputError(f"{name} must have shape (d, d) with d >= 1, got {value.shape}")
    return value.shape[0]


def _symmetric(name: str, value: np.ndarray) -> None:
    # A matrix that came out of a general inversion is symmetric to rounding only.
    difference = np.abs(value - value.T)
    if difference.max() > 1e-8 * np.abs(value).max():
        i, j = (int(k) for k in np.unravel_index(difference.argmax(), difference.shape))
        raise InputError(
            f"{name} must be symmetric, got {value[i, j]} at ({i}, {j}) "
            f"and {value[j, i]} at ({j}, {i})"
        )


def _actions(value: object, dimension: int) -> np.ndarray:
    """Actions (K, d), K >= 1. Float32 and float64 arrays of any strides stay where they are."""
    ready = (
        isinstance(value, np.ndarray)
        and value.dtype in (np.float32, np.float64)
        and value.flags.aligned
    )
    if ready:  # the ordinary case, and the one in which time counts
        given = np.asarray(value)
        fits = given.ndim == 2 and given.shape[1] == dimension and len(given) > 0
        if fits and np.isfinite(given).all():
            return given
    kind = value.dtype if ready else np.float64  # type: ignore[attr-defined]
    checked = array("actions", value, shape=(None, dimension), dtype=kind)
    if not len(checked):
        raise InputError(f"actions must hold at least one action, got shape {checked.shape}")
    return checked


def _radius(name: str, value: object) -> float:
    if type(value) is float and 0.0 <= value < np.inf:
        return value
    return number(name, value, at_least=0)


def _held(name: str, value: object, shape: tuple[int | None, ...]) -> np.ndarray:
    """What a caller vouches for: an array that the kernels can read as it is."""
    if (
        type(value) is np.ndarray
        and value.dtype == np.float64
        and value.flags.c_contiguous
        and value.flags.aligned
        and value.ndim == len(shape)
        and all(n is None or n == m for n, m in zip(shape, value.shape, strict=True))
    ):
        return value
    return array(name, value, shape=shape, finite=False)


def rank_one_update(
    gram: np.ndarray, bias: np.ndarray, x: object, y: float, *, use_native: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """gram += x x' and bias += x y, in place; returns (gram, bias).

    gram: (d, d). bias: (d,). x: (d,). y: a number. One row of ridge regression's sufficient
    statistics (Abbasi-Yadkori et al. 2011, Section 3). A symmetric gram stays exactly symmetric.

    Raises InputError for a gram or bias that cannot be updated in place, for shapes that do not
    agree and for values that are not finite; both are then unchanged.
    """
    gram = _target("gram", gram, (None, None))
    d = _square("gram", gram)
    bias = _target("bias", bias, (d,))
    if np.may_share_memory(gram, bias):
        raise InputError("gram and bias must not share memory")
    features = _vector("x", x, d, gram, bias)
    implementation(use_native).rank_one(gram, bias, features, number("y", y))
    return gram, bias


def sherman_morrison(inverse: np.ndarray, x: object, *, use_native: bool = True) -> np.ndarray:
    """V^{-1} becomes (V + x x')^{-1}, in place; returns it.

    inverse: V^{-1} (d, d), symmetric and positive definite. x: (d,). O(d^2). Over 10^5
    updates of V = lambda I, lambda >= 1e-3, the relative error stays below 1e-12; for a smaller
    lambda the inverse factor keeps more digits.
    Source: Sherman & Morrison 1950.

    Raises InputError for an inverse that cannot be updated in place, is not symmetric (1e-8,
    relative) or has x' inverse x < 0, and for values that are not finite; it is then unchanged.
    """
    inverse = _target("inverse", inverse, (None, None))
    d = _square("inverse", inverse)
    _symmetric("inverse", inverse)
    features = _vector("x", x, d, inverse)
    with np.errstate(over="ignore", invalid="ignore"):
        form = float(features @ inverse @ features)
    if not 0.0 <= form < np.inf:
        raise InputError(
            f"inverse must be positive definite and of finite scale, got x' inverse x = {form}"
        )
    implementation(use_native).sherman_morrison(inverse, features)
    return inverse


def inverse_factor(V: object, *, use_native: bool = True) -> np.ndarray:
    """W = L^{-1} (d, d), lower triangular, of V = L L' (d, d), symmetric and positive definite.

    A Cholesky factorisation and a triangular inversion without BLAS or LAPACK, so that the bits
    depend on V alone. Raises InputError for a V that is not symmetric (1e-8, relative; the lower
    triangle is used) or not numerically positive definite.
    """
    matrix = array("V", V, ndim=2)
    d = _square("V", matrix)
    _symmetric("V", matrix)
    packed = np.ascontiguousarray(matrix[np.tril_indices(d)])
    factor = implementation(use_native).factor(packed, d)
    if factor is None:
        raise InputError(
            f"V must be positive definite, got a matrix with smallest eigenvalue "
            f"{np.linalg.eigvalsh(matrix)[0]:g}"
        )
    result: np.ndarray = factor
    return result


def _triangular(w: np.ndarray) -> None:
    """A factor (d, d), or each of a stack (m, d, d)."""
    i = np.arange(w.shape[-1])
    if (w * (i[:, None] < i)).any() or not w.diagonal(axis1=-2, axis2=-1).min() > 0.0:
        raise InputError(
            "factor must be lower triangular with a positive diagonal, as inverse_factor(V) gives, "
            f"got {show(w.tolist())}"
        )


def factor_update(
    factor: np.ndarray,
    theta: np.ndarray,
    x: object,
    y: float,
    *,
    trusted: bool = False,
    use_native: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """One row of ridge regression: V += x x', theta becomes its estimate with the row (x, y).

    factor: W (d, d) of V, from inverse_factor. theta: (d,), V^{-1} u for the bias u before the
    row and V^{-1} (u + x y) after it; zeros, to begin with. x: (d,). y: a number. Both are
    updated in place and returned; O(d^2), and W stays a factor of a positive definite V. trusted:
    see the module. The source is recursive least squares, on the factor.

    Raises InputError for arrays that cannot be updated in place, shapes that do not agree, values
    that are not finite, a factor that is not lower triangular with a positive diagonal, and an x
    whose ||x||_{V^-1} is above 1e75; nothing has changed then.
    """
    w = _target("factor", factor, (None, None), finite=not trusted)
    d = _square("factor", w)
    if not trusted:
        _triangular(w)
    estimate = _target("theta", theta, (d,), finite=not trusted)
    if np.may_share_memory(w, estimate):
        raise InputError("factor and theta must not share memory")
    features, reward = _vector("x", x, d, w, estimate), number("y", y)
    with np.errstate(over="ignore", invalid="ignore"):
        z = w @ features
        square = float(z @ z)
    if not square <= 1e150:  # its square enters the update
        raise InputError(
            f"x must have a width ||x||_{{V^-1}} of at most 1e75, got {math.sqrt(square):g}"
        )
    implementation(use_native).observe(w, estimate, features, reward)
    return w, estimate


def _score_inputs(
    actions: object,
    factor: object,
    theta: object,
    radius: object,
    second_radius: object,
    trusted: bool,
    stacks: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    if not isinstance(factor, np.ndarray):
        factor = array("factor", factor)
    models = factor.shape[:-2] if stacks and factor.ndim == 3 else ()
    shape: tuple[int | None, ...] = (*models, None, None)
    w = _held("factor", factor, shape) if trusted else array("factor", factor, shape=shape)
    if 0 in models:
        raise InputError(f"factor must hold at least one model, got shape {w.shape}")
    d = _square("factor", w[0] if models else w)
    if not trusted:
        _triangular(w)
    shape = (*models, d)
    return (
        _actions(actions, d),
        w,
        _held("theta", theta, shape) if trusted else array("theta", theta, shape=shape),
        _radius("radius", radius),
        _radius("second_radius", second_radius),
    )


def ucb_scores(
    actions: object,
    factor: object,
    theta: object,
    radius: float,
    *,
    second_radius: float = 0.0,
    trusted: bool = False,
    use_native: bool = True,
) -> np.ndarray:
    """Upper confidence bounds <x, theta> + radius ||x||_{V^-1} + second_radius ||V^{-1} x||, (K,).

    actions: (K, d), float32 or float64. factor: W (d, d) of V, from inverse_factor. theta: (d,).
    A stack of models, factor (m, d, d) and theta (m, d), gives the scores of all actions under
    each of them, (m, K). radius, second_radius: >= 0. trusted: see the module. An action's score
    has the same bits whatever K and the strides are. Source: Abbasi-Yadkori et al. 2011, Section 3;
    the second bonus is 0 in the papers.

    Raises InputError for shapes that do not agree, values that are not finite, a factor that is
    not lower triangular with a positive diagonal, no actions, or a negative radius.
    """
    x, w, estimate, *radii = _score_inputs(
        actions, factor, theta, radius, second_radius, trusted, stacks=True
    )
    run = implementation(use_native).scores
    result: np.ndarray
    if w.ndim == 2:
        result = run(x, w, estimate, *radii)
        return result
    result = np.empty((len(w), len(x)))
    for row, model, of in zip(result, w, estimate, strict=True):
        row[:] = run(x, model, of, *radii)
    return result


def ucb_argmax(
    actions: object,
    factor: object,
    theta: object,
    radius: float,
    *,
    second_radius: float = 0.0,
    trusted: bool = False,
    use_native: bool = True,
) -> int:
    """Index of the largest of ucb_scores, ties to the lowest index.

    Takes and raises what ucb_scores does. Most actions are dismissed by float32 scores with a
    proven error bound; the answer is that of the float64 scores.
    """
    checked = _score_inputs(actions, factor, theta, radius, second_radius, trusted)
    return int(implementation(use_native).select(*checked)[0])


def tree_noise(
    seed: int,
    release: int,
    dimension: int,
    noise_std: float,
    *,
    of: Literal["node", "prefix"] = "prefix",
    layout: str = "goe2",
    replicate: int = 0,
    silo: int = 0,
    use_native: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Noise of the p-sum tree at a release: (bias (d,), covariance (d, d), exactly symmetric).

    release: k >= 1. of "node": the noise of the one node released at k; "prefix": of the sum of
    the nodes whose leaves are 1..k, one for each set bit of k. noise_std: >= 0, of each bias entry
    and of the layout's underlying matrix ("iid", "goe1", "goe2"; see
    fastfed.privacy.layout_stds), in the units of the sums. replicate, silo: whose tree.

    Noise is a function of (seed, replicate, silo, node), so a node has the same noise in every
    prefix it is part of. It is what a simulation with this seed draws; whoever knows the seed
    can remove it, so nothing real is protected by it: that is TreeRelease.
    Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2. Raises InputError for bad input.
    """
    seed = check_seed(seed)
    k = integer("release", release, at_least=1, at_most=_WORD)
    d = integer("dimension", dimension, at_least=1)
    std = number("noise_std", noise_std, at_least=0)
    choice("of", of, ("node", "prefix"))
    off_diagonal, diagonal = layout_stds(layout, std)
    replicate = integer("replicate", replicate, at_least=0, at_most=_WORD)
    silo = integer("silo", silo, at_least=0, at_most=_WORD)
    run = implementation(use_native)

    def node(number: int) -> np.ndarray:
        drawn = run.node_normals(seed, replicate, silo, number, d)
        noise: np.ndarray = run.add_noise(
            np.zeros_like(drawn), drawn, d, std, off_diagonal, diagonal
        )
        return noise

    if of == "node":
        values = node(k)
    else:
        nodes = np.zeros((k.bit_length(), d + d * (d + 1) // 2))
        end = k
        while end:
            # Release `end` closes the node of its lowest set bit; the rest is the prefix before.
            nodes[run.node_level(end)] = node(end)
            end &= end - 1
        values = run.prefix(nodes, k)
    covariance = np.zeros((d, d))
    covariance[np.tril_indices(d)] = values[d:]
    return values[:d].copy(), covariance + np.tril(covariance, -1).T


def encode_bits(ones: object, length: int, *, use_native: bool = True) -> np.ndarray:
    """Messages of `length` bits, ones first: (entries, length) of uint8 from their numbers of ones.

    ones: (entries,) integers in [0, length]. Before shuffling, the order within a message says
    nothing. Source: zhou-chowdhury-2024, Algorithm 7, line 7. Raises InputError for bad input.
    """
    length = integer("length", length, at_least=0, at_most=2**31)
    counts = np.asarray(ones)
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise InputError(f"ones must be a vector of integers, got {show(ones)}")
    if len(counts) and not (counts.min() >= 0 and counts.max() <= length):
        raise InputError(f"ones must lie in [0, {length}], got {counts.min()} to {counts.max()}")
    bits: np.ndarray = implementation(use_native).encode_bits(counts.astype(np.int64), length)
    return bits


def shuffle_bits(
    bits: np.ndarray,
    seed: int,
    *,
    release: int = 1,
    replicate: int = 0,
    use_native: bool = True,
) -> np.ndarray:
    """Permute the bits of every label in place, each label by itself, and return them.

    bits: (labels, n) or (n,) of uint8, n < 2^32, writable and C-contiguous. Every row gets a
    uniform permutation keyed by (seed, replicate, release, row): for simulations, since whoever
    knows the seed can undo it. A deployment uses `Shuffler`. Source: zhou-chowdhury-2024,
    Section 5.2. Raises InputError for bad input.
    """
    if not isinstance(bits, np.ndarray) or bits.dtype != np.uint8 or bits.ndim not in (1, 2):
        raise InputError(f"bits must be a uint8 array of one or two dimensions, got {show(bits)}")
    if not (bits.flags.c_contiguous and bits.flags.writeable):
        raise InputError(
            "bits must be writable and C-contiguous, for they are permuted in place, got "
            f"writeable {bits.flags.writeable}, strides {bits.strides} for shape {bits.shape}"
        )
    key = check_seed(seed), SHUFFLE, integer("replicate", replicate, at_least=0, at_most=_WORD)
    release = integer("release", release, at_least=0, at_most=_WORD)
    rows = bits if bits.ndim == 2 else bits[None]
    for label, row in enumerate(rows if bits.size else ()):
        implementation(use_native).shuffle_bits(*key, label + 1, release, row)
    return bits


def normals(
    seed: int,
    count: int,
    *,
    purpose: int = 0,
    replicate: int = 0,
    silo: int = 0,
    index: int = 0,
    dtype: Literal["float32", "float64"] = "float64",
    use_native: bool = True,
) -> np.ndarray:
    """Standard normals (count,) of the stream (seed, purpose, replicate, silo, index).

    The same key gives the same bits on every processor and from both implementations. purpose 0
    is the caller's own; 1 to 128 are the streams of simulations (fastfed._random), here to be
    recomputed. float64: 53 random bits an entry, all from Philox4x32-10 (Salmon et al. 2011).
    float32: 24 bits, xoshiro128++ lanes started by Philox; for contexts, not for privacy noise.

    seed in [0, 2^63), the other parts of the key in [0, 2^32); InputError otherwise.
    """
    count = integer("count", count, at_least=0, at_most=_WORD)
    choice("dtype", dtype, ("float32", "float64"))
    key = (
        check_seed(seed),
        integer("purpose", purpose, at_least=0, at_most=_WORD),
        integer("replicate", replicate, at_least=0, at_most=_WORD),
        integer("silo", silo, at_least=0, at_most=_WORD),
        integer("index", index, at_least=0, at_most=_WORD),
    )
    run = implementation(use_native)
    draw = run.normals_f32 if dtype == "float32" else run.normals_f64
    result: np.ndarray = draw(*key, count)
    return result
