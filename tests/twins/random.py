"""Keyed streams: Philox4x32-10 (Salmon et al. 2011), normals by Box-Muller, single draws."""

from __future__ import annotations

import numpy as np

Array = np.ndarray

# ---- Philox4x32-10 (Salmon et al. 2011) ---------------------------------------------------------

_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_MASK = (1 << 64) - 1


def philox_block(counter: Array, key: tuple[int, int]) -> Array:
    """Apply the bare generator: counters (4, ...) and a key of two words to words (4, ...)."""
    c0, c1, c2, c3 = np.asarray(counter, dtype=np.uint64)
    for i in range(10):
        k0, k1 = (np.uint64((k + i * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True))
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (second >> 32) ^ c1 ^ k0, (first >> 32) ^ c3 ^ k1
        c1, c3 = second & _LOW, first & _LOW
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def _mix64(z: int) -> int:
    """Apply splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def stream_key(seed: int, purpose: int) -> tuple[int, int]:
    """Return the Philox key of all streams of a seed and a purpose."""
    golden = 0x9E3779B97F4A7C15
    key = _mix64((_mix64((seed + golden) & _MASK) + purpose * golden) & _MASK)
    return key & 0xFFFFFFFF, key >> 32


def _blocks(seed: int, purpose: int, replicate: int, silo: int, index: int, blocks: Array) -> Array:
    """Return words (4, len(blocks)) of the numbered blocks of one stream."""
    counter = np.empty((4, len(blocks)), np.uint64)
    counter[0] = blocks
    counter[1:] = np.array([index, silo, replicate], np.uint64)[:, None]
    return philox_block(counter, stream_key(seed, purpose))


def philox(seed: int, purpose: int, replicate: int, silo: int, index: int, block: int) -> Array:
    """Return the four 32-bit words of one block of a stream."""
    return _blocks(seed, purpose, replicate, silo, index, np.array([block]))[:, 0]


# ---- normals by Box-Muller ----------------------------------------------------------------------

_LANES = 16
_F = np.float32


def _log_f32(x: Array) -> Array:
    """Return ln x of float32 in (0, 1]: the exponent by bits, then 2 atanh((m - 1) / (m + 1))."""
    # m in [sqrt(1/2), sqrt(2)): subtracting the pattern of sqrt(1/2) moves the cut.
    cut = np.uint32(0x3F3504F3)
    shifted = x.view(np.uint32) - cut
    e = shifted.view(np.int32) >> 23
    m = ((shifted & np.uint32(0x007FFFFF)) + cut).view(_F)
    s = (m - _F(1)) / (m + _F(1))
    z = s * s
    p = z * (z * (z * (_F(1) / _F(7)) + _F(1) / _F(5)) + _F(1) / _F(3)) + _F(1)
    return e.astype(_F) * _F(0.69314718056) + _F(2) * (s * p)


def _sincos_f32(w: Array) -> tuple[Array, Array]:
    """Return sin and cos of 2 pi w / 2^32 in float32, by quadrant and Taylor series."""
    turned = w + np.uint32(0x20000000)
    quadrant = turned >> 30
    remainder = (turned & np.uint32(0x3FFFFFFF)).astype(np.int32) - np.int32(0x20000000)
    a = remainder.astype(_F) * _F(1.4629180792671596e-09)
    z = a * a
    s = z * (z * (z * (_F(-1) / _F(5040)) + _F(1) / _F(120)) + _F(-1) / _F(6)) + _F(1)
    c = z * (z * (z * (_F(1) / _F(40320)) + _F(-1) / _F(720)) + _F(1) / _F(24)) + _F(-0.5)
    return _turn(quadrant, a * s, z * c + _F(1))


def _turn(quadrant: Array, s: Array, c: Array) -> tuple[Array, Array]:
    """Return (sine, cosine) of an angle from those of its remainder in the quadrant."""
    odd = (quadrant & 1) != 0
    sine, cosine = np.where(odd, c, s), np.where(odd, s, c)
    return (
        np.where((quadrant & 2) != 0, -sine, sine),
        np.where(((quadrant + 1) & 2) != 0, -cosine, cosine),
    )


def _rotate(v: Array, k: int) -> Array:
    """Rotate 32-bit words to the left by k bits."""
    return (v << k) | (v >> (32 - k))


def _xoshiro(state: Array, steps: int) -> Array:
    """Return words (steps, lanes) of xoshiro128++ (Blackman and Vigna 2021); state (4, lanes)."""
    s0, s1, s2, s3 = state
    words = np.empty((steps, state.shape[1]), np.uint32)
    for i in range(steps):
        words[i] = _rotate(s0 + s3, 7) + s0
        t = s1 << 9
        s2 = s2 ^ s0
        s3 = s3 ^ s1
        s1 = s1 ^ s2
        s0 = s0 ^ s3
        s2 = s2 ^ t
        s3 = _rotate(s3, 11)
    return words


def normals_f32(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> Array:
    """Return n standard normals in float32, from sixteen lanes of xoshiro."""
    groups = -(-n // (2 * _LANES))
    state = _blocks(seed, purpose, replicate, silo, index, np.arange(_LANES))
    words = _xoshiro(state, 2 * groups).reshape(groups, 2, _LANES)
    a, b = words[:, 0], words[:, 1]
    u = ((a >> 8).astype(_F) + _F(0.5)) * _F(2.0**-24)
    r = np.sqrt(_F(-2) * _log_f32(u))
    sine, cosine = _sincos_f32(b)
    return np.stack([r * cosine, r * sine], axis=1).reshape(-1)[:n]


def _log_f64(x: Array) -> Array:
    """Return ln x of finite float64 x > 0."""
    cut = np.uint64(0x3FE6A09E667F3BCD)
    shifted = x.view(np.uint64) - cut
    e = shifted.view(np.int64) >> 52
    m = ((shifted & np.uint64(0x000FFFFFFFFFFFFF)) + cut).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = np.full_like(z, 1.0 / 21.0)
    for k in range(19, 0, -2):
        p = p * z + 1.0 / k
    return e.astype(np.float64) * 0.6931471805599453 + 2.0 * (s * p)


_SINE = (-1307674368000, 6227020800, -39916800, 362880, -5040, 120, -6, 1)
_COSINE = (-87178291200, 479001600, -3628800, 40320, -720, 24, -2, 1)


def _sincos_f64(w: Array) -> tuple[Array, Array]:
    """Return sin and cos of 2 pi w / 2^53."""
    turned = w + np.uint64(1 << 50)
    quadrant = turned >> np.uint64(51)
    remainder = (turned & np.uint64((1 << 51) - 1)).astype(np.float64)
    a = (remainder - 2.0**50) * 6.975736996017264e-16
    z = a * a
    s = np.full_like(z, 1.0 / 355687428096000.0)
    for factorial in _SINE:
        s = s * z + 1.0 / factorial
    c = np.full_like(z, 1.0 / 20922789888000.0)
    for factorial in _COSINE:
        c = c * z + 1.0 / factorial
    return _turn(quadrant.astype(np.int64), s * a, c)


def _unit_f64(a: Array) -> Array:
    """Return (a + 1/2) 2^-53 of 53-bit integers."""
    return (a.astype(np.float64) + 0.5) * 2.0**-53


def _bits53(high: Array, low: Array) -> Array:
    """Return the upper 53 of the 64 bits of two words."""
    return ((high.astype(np.uint64) << np.uint64(32)) | low) >> np.uint64(11)


def normals_from_bits(a: Array, b: Array) -> Array:
    """Return standard normals (2 n,) from two arrays (n,) of 53-bit integers."""
    r = np.sqrt(-2.0 * _log_f64(_unit_f64(a)))
    sine, cosine = _sincos_f64(b)
    return np.concatenate([r * cosine, r * sine])


def ideal_normals(words: Array) -> tuple[Array, int]:
    """Return normals (n,) from words (n,), and how many uniforms of radii are near 0 or 1."""
    half = len(words) // 2
    r = np.sqrt(-2.0 * _log_of_words(words[:half]))
    sine, cosine = _sincos_f64(words[half:] >> np.uint64(11))
    return np.concatenate([r * cosine, r * sine]), _at_the_ends(words[:half])


def ideal_laplace(words: Array) -> tuple[Array, int]:
    """Return Laplace draws (n,) from a sign and 63 bits, and how many uniforms are near 0 or 1."""
    uniform_bits = words << np.uint64(1)
    size = -_log_of_words(uniform_bits)
    return np.where(words >> np.uint64(63) > 0, size, -size), _at_the_ends(uniform_bits)


def _log_of_words(words: Array) -> Array:
    """Return ln(word * 2^-64) of each word; the result for a word 0 is never used."""
    return _log_f64(words.astype(np.float64) * 2.0**-64)


def _at_the_ends(words: Array) -> int:
    """Return how many words are within 2^44 of 0 or 2^64, where 64 bits do not suffice."""
    return int((words + np.uint64(1 << 44) < np.uint64(1 << 45)).sum())


def normals_f64(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> Array:
    """Return n standard normals in float64, with all random bits from Philox."""
    blocks = -(-((n + 1) // 2) // _LANES) * _LANES
    w = _blocks(seed, purpose, replicate, silo, index, np.arange(blocks))
    return normals_from_bits(_bits53(w[0], w[1]), _bits53(w[2], w[3]))[:n]


# ---- single draws -------------------------------------------------------------------------------


def uniform(seed: int, purpose: int, replicate: int, silo: int, index: int) -> float:
    """Return a uniform of 53 bits, never 0."""
    w = philox(seed, purpose, replicate, silo, index, 0)
    return float(_unit_f64(_bits53(w[:1], w[1:2]))[0])


class _Words:
    """Draw uniform integers from one stream by Lemire's multiply-and-reject."""

    def __init__(self, seed: int, purpose: int, replicate: int, silo: int, index: int) -> None:
        self.stream = seed, purpose, replicate, silo, index
        self.block = 0

    def uniform_int(self, n: int) -> int:
        """Return an integer in [0, n); words left over in an accepted block are not used again."""
        threshold = (2**32 - n) % n
        while True:
            words = philox(*self.stream, self.block)
            self.block += 1
            for word in words:
                product = int(word) * n
                if product & 0xFFFFFFFF >= threshold:
                    return product >> 32


def uniform_int(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> int:
    """Return a uniform integer in [0, n)."""
    return _Words(seed, purpose, replicate, silo, index).uniform_int(n)


def permutation(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> Array:
    """Return a uniform permutation of 0..n-1 (Fisher-Yates, from the end)."""
    words = _Words(seed, purpose, replicate, silo, index)
    order = np.arange(n, dtype=np.int64)
    for i in range(n - 1, 0, -1):
        j = words.uniform_int(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def log(x: float) -> float:
    """Return ln x of a finite x > 0."""
    return float(_log_f64(np.array([x]))[0])


def random_u32(seed: int, purpose: int, replicate: int, silo: int, index: int, n: int) -> Array:
    """Return n uniform words of 32 bits from the lanes of ``normals_f32``."""
    state = _blocks(seed, purpose, replicate, silo, index, np.arange(_LANES))
    return _xoshiro(state, -(-n // _LANES)).reshape(-1)[:n]
