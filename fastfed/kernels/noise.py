"""Keyed noise and messages for simulations: trees, normals, bits."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from fastfed._kernels import aggregation, checked, rng
from fastfed._random import MAX_DIMENSION, SHUFFLE, check_seed
from fastfed._validate import InputError, axes, choice, integer, number, show, unmasked

_WORD = 2**32 - 1  # the parts of a key are 32-bit words


def tree_noise(
    seed: int,
    release: ArrayLike,
    dimension: int,
    noise_std: float,
    *,
    of: Literal["node", "prefix"] = "prefix",
    layout: str = "goe2",
    replicate: int = 0,
    silo: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the noise of releases of the binary tree (p-sum) mechanism, as a simulation draws it.

    Noise is a function of (seed, replicate, silo, node), so a node has the same noise in every
    prefix that it is part of. Anyone who knows the seed can remove the noise, so it protects
    nothing; use TreeRelease for real data.

    Parameters
    ----------
    seed : int
        Seed of the simulation, in [0, 2^63).
    release : int or array_like of int, shape (n,)
        Number k >= 1 of a release, or several numbers.
    dimension : int
        d, at most 2^15.
    noise_std : float
        Standard deviation, >= 0, of the noise of each bias entry, and of each entry of the matrix
        from which ``layout`` makes the covariance noise; in the units of the sums.
    of : {"prefix", "node"}
        "node": the noise of the node released at k. "prefix": the noise of the sum of the nodes
        that cover leaves 1..k, one for each set bit of k.
    layout : {"iid", "goe1", "goe2"}
        How the symmetric covariance noise is made from a matrix of independent entries, see
        fastfed.privacy.layout_stds.
    replicate, silo : int
        Numbers that identify the tree.

    Returns
    -------
    bias : ndarray, shape (d,) or (n, d)
        Noise of the bias.
    covariance : ndarray, shape (d, d) or (n, d, d)
        Noise of the covariance, exactly symmetric.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2.
    """
    from fastfed.privacy.sensitivity import layout_stds  # slow to import, and only needed here

    seed = check_seed(seed)
    release = unmasked("release", release)
    is_array = axes("release", release) == 1
    if is_array:
        releases = _releases(release)
    else:
        releases = np.array([integer("release", release, at_least=1, at_most=_WORD)])
    d = integer("dimension", dimension, at_least=1, at_most=MAX_DIMENSION)
    std = number("noise_std", noise_std, at_least=0)
    choice("of", of, ("node", "prefix"))
    stds = std, *layout_stds(layout, std)
    replicate = integer("replicate", replicate, at_least=0, at_most=_WORD)
    silo = integer("silo", silo, at_least=0, at_most=_WORD)
    noise: tuple[np.ndarray, np.ndarray] = checked.tree(
        seed, releases, d, *stds, of == "prefix", replicate, silo
    )
    return noise if is_array else (noise[0][0], noise[1][0])


def _releases(value: ArrayLike) -> np.ndarray:
    """Return the numbers of releases as int64 (n,), after checking that each is in [1, 2^32)."""
    releases = np.asarray(value)
    if releases.dtype.kind not in "iu" and len(releases):
        raise InputError(f"release must hold integers, got {show(value)}")
    if len(releases) and not (releases.min() >= 1 and releases.max() <= _WORD):
        raise InputError(
            f"release must lie in [1, {_WORD}], got {releases.min()} to {releases.max()}"
        )
    return releases.astype(np.int64)


def encode_bits(ones: ArrayLike, length: int) -> np.ndarray:
    """Encode each number as a message of ``length`` bits: that number of ones, then zeros.

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
    axes("ones", ones)
    counts = np.asarray(unmasked("ones", ones))
    if counts.ndim != 1 or (counts.dtype.kind not in "iu" and len(counts)):
        raise InputError(f"ones must be a vector of integers, got {show(ones)}")
    if len(counts) and not (counts.min() >= 0 and counts.max() <= length):
        raise InputError(f"ones must lie in [0, {length}], got {counts.min()} to {counts.max()}")
    bits: np.ndarray = aggregation.encode_bits(counts.astype(np.int64), length)
    return bits


def shuffle_bits(
    bits: np.ndarray, seed: int, *, release: int = 1, replicate: int = 0
) -> np.ndarray:
    """Permute the bits of every row in place, independently of other rows.

    A row holds the n bits of one label, which names an entry of a statistic. The row's uniformly
    random permutation is a function of (seed, replicate, release, row). This is for simulations:
    anyone who knows the seed can undo it. Deployments use `fastfed.parties.Shuffler`.

    Parameters
    ----------
    bits : ndarray of uint8, shape (labels, n) or (n,)
        Writable and C-contiguous, n < 2^32; permuted in place.
    seed : int
        Seed of the simulation, in [0, 2^63).
    release, replicate : int
        Numbers that select the permutations.

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
            "bits must be writable and C-contiguous, because they are permuted in place, got "
            f"writeable {bits.flags.writeable}, strides {bits.strides} for shape {bits.shape}"
        )
    if bits.size and bits.max() > 1:
        raise InputError(f"bits must be 0 or 1, got {bits.max()}")
    key = check_seed(seed), SHUFFLE, integer("replicate", replicate, at_least=0, at_most=_WORD)
    release = integer("release", release, at_least=0, at_most=_WORD)
    rows = bits if bits.ndim == 2 else bits[None]
    for i, row in enumerate(rows if bits.size else ()):
        rng.shuffle_bits(*key, i + 1, release, row)
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
        0 for your own streams. Simulations use 1 to 128 (fastfed._random); pass one of these
        to recompute their streams.
    replicate, silo, index : int
        Further coordinates of the stream, in [0, 2^32).
    dtype : {"float64", "float32"}
        float64: 53 random bits for each entry, all from Philox4x32-10 (Salmon et al. 2011).
        float32: 24 bits from xoshiro128++ started by Philox; for contexts, not for privacy
        noise.

    Returns
    -------
    ndarray, shape (count,)
        The draws.

    Raises
    ------
    InputError
        For values out of range.
    """
    single = choice("dtype", dtype, ("float32", "float64")) == "float32"
    compiled: np.ndarray | None = checked.gaussians(
        seed, count, purpose, replicate, silo, index, single
    )
    if compiled is not None:
        return compiled
    count = integer("count", count, at_least=0, at_most=_WORD)
    key = (
        check_seed(seed),
        integer("purpose", purpose, at_least=0, at_most=_WORD),
        integer("replicate", replicate, at_least=0, at_most=_WORD),
        integer("silo", silo, at_least=0, at_most=_WORD),
        integer("index", index, at_least=0, at_most=_WORD),
    )
    draw = rng.normals_f32 if single else rng.normals_f64
    result: np.ndarray = draw(*key, count)
    return result
