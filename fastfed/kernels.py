"""Compiled kernels as plain functions with checked arguments: arrays in, arrays out.

A positive definite V (d, d) enters as its inverse factor W = L^{-1} with V = L L', lower
triangular, so that V^{-1} = W'W and ||x||_{V^-1} = ||W x||: ``factor = inverse_factor(V)``.

Inputs may be read-only and of any strides and real dtype; they are converted to float64 if need
be. Arguments updated in place must be writable C-contiguous float64 arrays. All functions raise
InputError for bad input.

Checking that a matrix is an inverse factor takes longer than using it. ``trusted=True`` leaves out
the check of the values, but not of type and shape, of factor and theta; use it for a factor that
comes from inverse_factor and was changed by factor_update only.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fastfed._kernels import aggregation, linalg, rng
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
    """Return an array to be updated in place, which is never converted; InputError if unfit."""
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise InputError(f"{name} must be a float64 array, for it is updated in place, got {kind}")
    if not (value.flags.c_contiguous and value.flags.aligned and value.flags.writeable):
        raise InputError(
            f"{name} must be writable and C-contiguous, for it is updated in place, got "
            f"writeable {value.flags.writeable}, strides {value.strides} for shape {value.shape}"
        )
    return array(name, value, shape=shape) if finite else _trusted(name, value, shape)


def _vector(name: str, value: object, d: int, *targets: np.ndarray) -> np.ndarray:
    """Return a finite vector (d,), copied if it shares memory with a target of the update."""
    checked = _trusted(name, value, (d,))
    if checked is not value or not np.isfinite(checked).all():
        checked = array(name, value, shape=(d,))
    return checked.copy() if any(np.may_share_memory(checked, t) for t in targets) else checked


def _square(name: str, value: np.ndarray) -> int:
    """Return d of a matrix (d, d)."""
    if value.shape[0] != value.shape[1] or not value.shape[0]:
        raise InputError(f"{name} must have shape (d, d) with d >= 1, got {value.shape}")
    return value.shape[0]


def _symmetric(name: str, value: np.ndarray) -> None:
    """Raise InputError unless a matrix is symmetric to 1e-8, relative."""
    # The result of a general inversion is symmetric up to rounding only.
    difference = np.abs(value - value.T)
    if difference.max() > 1e-8 * np.abs(value).max():
        i, j = (int(k) for k in np.unravel_index(difference.argmax(), difference.shape))
        raise InputError(
            f"{name} must be symmetric, got {value[i, j]} at ({i}, {j}) "
            f"and {value[j, i]} at ({j}, {i})"
        )


def _actions(value: object, dimension: int) -> np.ndarray:
    """Return actions (K, d), K >= 1; float32 and float64 arrays of any strides are not copied."""
    ready = (
        isinstance(value, np.ndarray)
        and value.dtype in (np.float32, np.float64)
        and value.flags.aligned
    )
    if ready:  # the common case, which must be fast
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
    """Return a radius >= 0."""
    if type(value) is float and 0.0 <= value < np.inf:
        return value
    return number(name, value, at_least=0)


def _trusted(name: str, value: object, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a float64 array of a shape, without a check of its values."""
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
    gram: np.ndarray, bias: np.ndarray, x: object, y: float
) -> tuple[np.ndarray, np.ndarray]:
    """Add one row to the sufficient statistics of ridge regression, in place.

    gram += x x' and bias += x y. A symmetric gram stays exactly symmetric.

    Parameters
    ----------
    gram : ndarray, shape (d, d)
        Updated in place.
    bias : ndarray, shape (d,)
        Updated in place.
    x : array_like, shape (d,)
        Features.
    y : float
        Reward.

    Returns
    -------
    gram, bias : ndarray
        The arguments.

    Raises
    ------
    InputError
        For a gram or bias that cannot be updated in place, shapes that do not agree and values
        that are not finite; both are then unchanged.

    Notes
    -----
    Source: Abbasi-Yadkori et al. 2011, Section 3.
    """
    gram = _target("gram", gram, (None, None))
    d = _square("gram", gram)
    bias = _target("bias", bias, (d,))
    if np.may_share_memory(gram, bias):
        raise InputError("gram and bias must not share memory")
    features = _vector("x", x, d, gram, bias)
    linalg.rank_one(gram, bias, features, number("y", y))
    return gram, bias


def sherman_morrison(inverse: np.ndarray, x: object) -> np.ndarray:
    """Update V^{-1} to (V + x x')^{-1} in place, in O(d^2).

    Over 10^5 updates of V = lambda I, lambda >= 1e-3, the relative error stays below 1e-12; for a
    smaller lambda the inverse factor keeps more digits.

    Parameters
    ----------
    inverse : ndarray, shape (d, d)
        V^{-1}, symmetric and positive definite, updated in place.
    x : array_like, shape (d,)
        Features.

    Returns
    -------
    ndarray
        The argument inverse.

    Raises
    ------
    InputError
        For an inverse that cannot be updated in place, is not symmetric (1e-8, relative) or has
        x' inverse x < 0, and for values that are not finite; it is then unchanged.

    Notes
    -----
    Source: Sherman and Morrison 1950.
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
    linalg.sherman_morrison(inverse, features)
    return inverse


def inverse_factor(V: object) -> np.ndarray:
    """Compute the inverse W = L^{-1} of the Cholesky factor of V = L L'.

    Neither BLAS nor LAPACK is used, so that the bits depend on V alone.

    Parameters
    ----------
    V : array_like, shape (d, d)
        Symmetric and positive definite; the lower triangle is used.

    Returns
    -------
    ndarray, shape (d, d)
        W, lower triangular.

    Raises
    ------
    InputError
        For a V that is not symmetric (1e-8, relative) or not numerically positive definite.
    """
    matrix = array("V", V, ndim=2)
    d = _square("V", matrix)
    _symmetric("V", matrix)
    packed = np.ascontiguousarray(matrix[np.tril_indices(d)])
    factor = linalg.factor(packed, d)
    if factor is None:
        raise InputError(
            f"V must be positive definite, got a matrix with smallest eigenvalue "
            f"{np.linalg.eigvalsh(matrix)[0]:g}"
        )
    result: np.ndarray = factor
    return result


def _triangular(w: np.ndarray) -> None:
    """Raise InputError unless w, (d, d) or a stack (m, d, d), holds inverse factors."""
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
) -> tuple[np.ndarray, np.ndarray]:
    """Add one row (x, y) to a ridge regression, in place and in O(d^2).

    This is recursive least squares on the factor: V += x x', and W stays a factor of a positive
    definite V.

    Parameters
    ----------
    factor : ndarray, shape (d, d)
        W of V, from inverse_factor; updated in place.
    theta : ndarray, shape (d,)
        The estimate: V^{-1} u for the bias u before the row, and V^{-1} (u + x y) after it; zeros
        at first. Updated in place.
    x : array_like, shape (d,)
        Features.
    y : float
        Reward.
    trusted : bool
        Leave out the check of values, see the module.

    Returns
    -------
    factor, theta : ndarray
        The arguments.

    Raises
    ------
    InputError
        For arrays that cannot be updated in place, shapes that do not agree, values that are not
        finite, a factor that is not lower triangular with a positive diagonal, and an x whose
        ||x||_{V^-1} is above 1e75; nothing has changed then.
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
    linalg.observe(w, estimate, features, reward)
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
    """Check the arguments of the scores: actions, factor, theta and both radii."""
    if not isinstance(factor, np.ndarray):
        factor = array("factor", factor)
    models = factor.shape[:-2] if stacks and factor.ndim == 3 else ()
    shape: tuple[int | None, ...] = (*models, None, None)
    w = _trusted("factor", factor, shape) if trusted else array("factor", factor, shape=shape)
    if 0 in models:
        raise InputError(f"factor must hold at least one model, got shape {w.shape}")
    d = _square("factor", w[0] if models else w)
    if not trusted:
        _triangular(w)
    shape = (*models, d)
    return (
        _actions(actions, d),
        w,
        _trusted("theta", theta, shape) if trusted else array("theta", theta, shape=shape),
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
) -> np.ndarray:
    """Compute UCB scores <x, theta> + radius ||x||_{V^-1} + second_radius ||V^{-1} x||.

    An action's score has the same bits for all K and strides.

    Parameters
    ----------
    actions : array_like, shape (K, d)
        Features; float32 and float64 arrays are not copied.
    factor : array_like, shape (d, d) or (m, d, d)
        W of V, from inverse_factor, or a stack of m models.
    theta : array_like, shape (d,) or (m, d)
        Estimate of each model.
    radius, second_radius : float
        Radii of the two bonuses, >= 0.
    trusted : bool
        Leave out the check of values, see the module.

    Returns
    -------
    ndarray, shape (K,) or (m, K)
        Scores of all actions, under each model.

    Raises
    ------
    InputError
        For shapes that do not agree, values that are not finite, a factor that is not lower
        triangular with a positive diagonal, no actions, or a negative radius.

    Notes
    -----
    Source: Abbasi-Yadkori et al. 2011, Section 3; the second bonus is 0 in the papers.
    """
    x, w, estimate, *radii = _score_inputs(
        actions, factor, theta, radius, second_radius, trusted, stacks=True
    )
    run = linalg.scores
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
) -> int:
    """Return the index of the largest of ucb_scores; ties go to the lowest index.

    Screening by float32 scores with a proven error bound discards most actions; the answer is that
    of the float64 scores.

    Parameters
    ----------
    actions, factor, theta, radius, second_radius, trusted
        See ``ucb_scores``; one model only.

    Returns
    -------
    int
        The index.

    Raises
    ------
    InputError
        As ``ucb_scores``.
    """
    checked = _score_inputs(actions, factor, theta, radius, second_radius, trusted)
    return int(linalg.select(*checked)[0])


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
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the noise of the binary tree (p-sum) mechanism at a release, as a simulation does.

    Noise is a function of (seed, replicate, silo, node), so a node has the same noise in every
    prefix that it is part of. Who knows the seed can remove it, so it protects nothing; use
    TreeRelease for real data.

    Parameters
    ----------
    seed : int
        Seed of the simulation, in [0, 2^63).
    release : int
        k >= 1.
    dimension : int
        d.
    noise_std : float
        Standard deviation, >= 0, of each bias entry and of the layout's underlying matrix, in the
        units of the sums.
    of : {"prefix", "node"}
        "node": the noise of the one node released at k. "prefix": that of the sum of the nodes
        whose leaves are 1..k, one for each set bit of k.
    layout : {"iid", "goe1", "goe2"}
        Layout of the covariance noise, see fastfed.privacy.layout_stds.
    replicate, silo : int
        Coordinates of the tree.

    Returns
    -------
    bias : ndarray, shape (d,)
        Noise of the bias.
    covariance : ndarray, shape (d, d)
        Noise of the covariance, exactly symmetric.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2.
    """
    seed = check_seed(seed)
    k = integer("release", release, at_least=1, at_most=_WORD)
    d = integer("dimension", dimension, at_least=1)
    std = number("noise_std", noise_std, at_least=0)
    choice("of", of, ("node", "prefix"))
    off_diagonal, diagonal = layout_stds(layout, std)
    replicate = integer("replicate", replicate, at_least=0, at_most=_WORD)
    silo = integer("silo", silo, at_least=0, at_most=_WORD)

    def node(number: int) -> np.ndarray:
        drawn = rng.node_normals(seed, replicate, silo, number, d)
        noise: np.ndarray = aggregation.add_noise(
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
            nodes[aggregation.node_level(end)] = node(end)
            end &= end - 1
        values = aggregation.prefix(nodes, k)
    covariance = np.zeros((d, d))
    covariance[np.tril_indices(d)] = values[d:]
    return values[:d].copy(), covariance + np.tril(covariance, -1).T


def encode_bits(ones: object, length: int) -> np.ndarray:
    """Encode numbers as messages of ``length`` bits with so many ones, ones first.

    Messages are shuffled afterwards, so the order of their bits carries no information.

    Parameters
    ----------
    ones : array_like of int, shape (entries,)
        Number of ones of each message, in [0, length].
    length : int
        Bits of a message.

    Returns
    -------
    ndarray of uint8, shape (entries, length)
        The bits.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Source: zhou-chowdhury-2024, Algorithm 7, line 7.
    """
    length = integer("length", length, at_least=0, at_most=2**31)
    counts = np.asarray(ones)
    if counts.ndim != 1 or counts.dtype.kind not in "iu":
        raise InputError(f"ones must be a vector of integers, got {show(ones)}")
    if len(counts) and not (counts.min() >= 0 and counts.max() <= length):
        raise InputError(f"ones must lie in [0, {length}], got {counts.min()} to {counts.max()}")
    bits: np.ndarray = aggregation.encode_bits(counts.astype(np.int64), length)
    return bits


def shuffle_bits(
    bits: np.ndarray,
    seed: int,
    *,
    release: int = 1,
    replicate: int = 0,
) -> np.ndarray:
    """Permute the bits of every label in place, each label by itself.

    Every row gets a uniform permutation, a function of (seed, replicate, release, row). For
    simulations, since who knows the seed can undo it; a deployment uses `fastfed.parties.Shuffler`.

    Parameters
    ----------
    bits : ndarray of uint8, shape (labels, n) or (n,)
        Writable and C-contiguous, n < 2^32; permuted in place.
    seed : int
        Seed of the simulation, in [0, 2^63).
    release, replicate : int
        Coordinates of the permutations.

    Returns
    -------
    ndarray
        The argument bits.

    Raises
    ------
    InputError
        For an array that cannot be permuted in place, and values out of range.

    Notes
    -----
    Source: zhou-chowdhury-2024, Section 5.2.
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
        rng.shuffle_bits(*key, label + 1, release, row)
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
) -> np.ndarray:
    """Draw standard normals of the stream (seed, purpose, replicate, silo, index).

    The same key gives the same bits on every processor.

    Parameters
    ----------
    seed : int
        Seed in [0, 2^63).
    count : int
        Number of draws.
    purpose : int
        0 for your own streams; 1 to 128 are those of simulations (fastfed._random), so that they
        can be recomputed.
    replicate, silo, index : int
        Further coordinates of the stream, in [0, 2^32).
    dtype : {"float64", "float32"}
        float64: 53 random bits an entry, all from Philox4x32-10 (Salmon et al. 2011). float32: 24
        bits, xoshiro128++ lanes started by Philox; for contexts, not for privacy noise.

    Returns
    -------
    ndarray, shape (count,)
        The draws.

    Raises
    ------
    InputError
        For values out of range.
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
    draw = rng.normals_f32 if dtype == "float32" else rng.normals_f64
    result: np.ndarray = draw(*key, count)
    return result
