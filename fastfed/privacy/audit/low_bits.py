"""The low-bits attack: which records cannot have given a released floating-point value.

Noise is continuous on paper. A computer adds one double to another, fl(c + fl(sigma z)), and leaves
out doubles that no z reaches; which ones, depends on the record's contribution c. An attacker who
sees the released value and knows sigma tests every candidate record, and excludes those for which
no value of the noise gives the released one. A release that rounds c + sigma Z to one grid for all
records excludes nobody. Source: Mironov 2012.

The attack does not rely on a model of the sampler. Each test is first tried on releases of records
that the attacker chose, and kept only if it never excluded the record that was released.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from fastfed._kernels import rng
from fastfed._random import BELOW_ONE
from fastfed._validate import InputError, array, integer, number
from fastfed.privacy.mechanisms.laplace import laplace_quantile
from fastfed.privacy.mechanisms.winsorized import hadamard

#: Doubles looked at on either side of a quotient or difference, which are off by one at most.
_NEAR = 4
#: Draws of a sampler looked at on either side of the one that its inverse names.
_DRAWS = 8
#: Entries tested at a time: after a few of them most candidates are excluded already.
_AT_ONCE = 8
#: A step is told from rounding if it has so many times the spacing of the doubles there.
_STEPS = 16.0
#: Candidates at most whose own releases are looked at one by one.
_FEW = 8

#: image(released (e,), contributions (n, e), scales (e,)): whether some noise gives each, (n, e).
Image = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: A test: which candidates (n,) a release (e,) leaves possible.
Test = Callable[[np.ndarray], np.ndarray]


def reachable(released: object, contribution: object, scale: object) -> np.ndarray:
    """Test entry by entry if any double z has fl(contribution + fl(scale z)) == released.

    Parameters
    ----------
    released, contribution, scale : array_like of float64
        The released values, the record's contributions, and the factors of the noise (> 0); shapes
        that broadcast.

    Returns
    -------
    ndarray of bool
        True if the release can be explained. It may be True although a sampler never draws that z,
        never False although it can.

    Raises
    ------
    InputError
        For values that are not finite, and for a scale that is not above 0.

    Examples
    --------
    >>> m = 0.3 + 1.7 * 0.25
    >>> bool(reachable(m, 0.3, 1.7))
    True
    """
    m = array("released", np.asarray(released, dtype=np.float64))
    c = array("contribution", np.asarray(contribution, dtype=np.float64))
    s = array("scale", np.asarray(scale, dtype=np.float64))
    if not (s > 0.0).all():
        raise InputError(f"scale must be > 0, got {s.min():g}")
    return _reachable(*np.broadcast_arrays(m, c, s))


def _neighbours(values: np.ndarray, count: int) -> np.ndarray:
    """The doubles up to so many places away, in one more axis."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    result: np.ndarray = (bits[..., None] + np.arange(-count, count + 1)).view(np.float64)
    return result


def _reachable(m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Compute `reachable` of arrays of one shape."""
    with np.errstate(invalid="ignore", over="ignore"):
        # If doubles about m - c lie closer than those about m, these are all inside of what is
        # rounded to m, and one of any three is reached; otherwise there is no other to look at.
        y = _neighbours(m - c, _NEAR)
        kept = c[..., None] + y == m[..., None]
        z = _neighbours(y / s[..., None], 2)
        hit = (s[..., None, None] * z == y[..., None]).any(axis=-1)
    result: np.ndarray = (kept & hit).any(axis=-1) | (m == c)
    return result


def normals(m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The image of Gaussian noise: any double can be a draw."""
    return _reachable(*np.broadcast_arrays(m, c, s))


@dataclass(frozen=True)
class LaplaceDraws:
    """Laplace noise from so many random bits, which are few: most doubles are no draw.

    quantile: of numbers k = 0 .. 2^bits - 1 as doubles, the draw at (k + 1/2) / 2^bits.
    """

    bits: int
    quantile: Callable[[np.ndarray], np.ndarray]

    def near(self, z: np.ndarray) -> np.ndarray:
        """The draws nearest to z, in one more axis."""
        # From the nearer tail, where the cdf is exact.
        tail = np.floor(0.5 * np.exp(-np.abs(z)) * 2.0**self.bits)
        last = 2.0**self.bits - 1.0
        nearest = np.where(z < 0.0, tail, last - tail)
        at = nearest[..., None] + np.arange(-_DRAWS, _DRAWS + 1)
        return self.quantile(np.clip(at, 0.0, last))

    def image(self, m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Test if a draw gives fl(c + fl(s z)) == m."""
        m, c, s = np.broadcast_arrays(m, c, s)
        drawn = self.near((m - c) / s)
        result: np.ndarray = (c[..., None] + s[..., None] * drawn == m[..., None]).any(axis=-1)
        return result


def _from_bits(k: np.ndarray) -> np.ndarray:
    """Laplace draws of the operating system's sampler at numbers of 53 bits."""
    flat = np.ascontiguousarray(k.ravel().astype(np.uint64))
    return rng.laplace_from_bits(flat).reshape(k.shape)


#: The operating system's Laplace noise, and that of means, from uniforms of 52 and of 53 bits.
SYSTEM_LAPLACE = LaplaceDraws(53, _from_bits)
MEAN_LAPLACE = LaplaceDraws(52, lambda k: laplace_quantile((k + 0.5) * 2.0**-52))
SERVER_LAPLACE = LaplaceDraws(
    53, lambda k: laplace_quantile(np.minimum((k + 0.5) * 2.0**-53, BELOW_ONE))
)


@dataclass(frozen=True)
class Channel:
    """A release under attack, as the attacker knows it.

    Parameters
    ----------
    name : str
        Of the release.
    contributions : ndarray (n, v, e)
        The sums that each of n candidate records leads to in each of e released entries, with
        everything else that the attacker knows, in v ways if that depends on a secret.
    scales : ndarray (e,)
        The factors of the noise.
    send : callable
        From a record's index to the released values (e,); called once for each message.
    image : callable
        The values that the noise reaches.
    explained : callable, optional
        A test of its own, for releases that are more than one addition.
    """

    name: str
    contributions: np.ndarray
    scales: np.ndarray
    send: Callable[[int], np.ndarray]
    image: Image = normals
    explained: Test | None = None

    @property
    def candidates(self) -> int:
        """Number n of candidate records."""
        return len(self.contributions)


def float_noise_test(channel: Channel) -> Test:
    """Excludes candidates from which no noise leads to the release by one addition of doubles."""
    if channel.explained is not None:
        return channel.explained

    def test(released: np.ndarray) -> np.ndarray:
        n, ways, entries = channel.contributions.shape
        rows = channel.contributions.reshape(n * ways, entries)
        left = np.arange(n * ways)
        for at in range(0, entries, _AT_ONCE):
            part = slice(at, at + _AT_ONCE)
            found = channel.image(released[part], rows[left, part], channel.scales[part])
            left = left[found.all(axis=1)]
        possible = np.zeros(n, dtype=bool)
        possible[left // ways] = True
        return possible

    return test


def rotated_mean_test(
    means: np.ndarray, signs: np.ndarray, scale: float, draws: LaplaceDraws
) -> Test:
    """Excludes candidates from which no signs and no noise lead to a mean in rotated coordinates.

    means: (n, v, d), each candidate's mean in the coordinates that each of v rows of signs (v, d)
    rotates to, d a power of two. Released is the rotation back of means + scale draws: it is undone
    but for rounding, and every draw that comes near is rotated back and compared bit for bit.
    """
    d = means.shape[-1]
    root = np.sqrt(d)

    def test(released: np.ndarray) -> np.ndarray:
        about = hadamard(released * signs) / root
        # Five standard deviations of what rounding moves; attack() checks that it is enough.
        window = 3.5 * np.spacing(max(np.abs(released).max(), np.abs(about).max()))
        values = means[..., None] + scale * draws.near((about - means) / scale)
        close = np.abs(values - about[None, :, :, None]) <= window
        # More draws than were looked at may come as near: then nothing is excluded.
        many = (close[..., 0] | close[..., -1]).any(axis=2)
        possible: np.ndarray = many.any(axis=1)
        rows, owners = [], []
        for i, way in zip(*np.nonzero(close.any(axis=3).all(axis=2) & ~many), strict=True):
            lists = [values[i, way, j][close[i, way, j]] for j in range(d)]
            made = np.stack(np.meshgrid(*lists, indexing="ij"), axis=-1).reshape(-1, d)
            rows.append(hadamard(made) / root * signs[way])
            owners.append(np.full(len(made), i))
        if rows:
            same = (np.concatenate(rows) == released).all(axis=1)
            possible[np.concatenate(owners)[same]] = True
        return possible

    return test


def _steps(channel: Channel) -> list[np.ndarray]:
    """Grids that a sampler's steps may be on, (e,) each: powers of two, and of the scale's."""
    ones = np.ones_like(channel.scales)
    return [unit * 2.0**k for k in range(0, -50, -1) for unit in (ones, channel.scales)]


def _on_step(released: np.ndarray, rows: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Test if released - rows is a multiple of the step, but for the rounding of both."""
    apart = released - rows
    off = np.abs(apart - step * np.rint(apart / step))
    result: np.ndarray = off <= 2.0 * np.spacing(np.maximum(np.abs(released), np.abs(rows)))
    return result


def learn_step(channel: Channel, seen: list[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """Find the coarsest grid (e,) that the noise of all releases seen lies on; None if on none.

    Only grids that are coarser than doubles are there tell anything.
    """
    rows = np.array([channel.contributions[i] for i, _ in seen])  # (t, v, e)
    released = np.array([values for _, values in seen])[:, None, :]
    spacing = np.spacing(np.abs(released).max())
    for step in _steps(channel):
        informative = step.min() >= _STEPS * spacing
        on: np.ndarray = np.all(_on_step(released, rows, step), axis=2)
        if informative and on.any(axis=1).all():
            return step
    return None


def residue_test(channel: Channel, step: np.ndarray) -> Test:
    """Excludes candidates whose distance from the release is no multiple of the noise's step."""

    def test(released: np.ndarray) -> np.ndarray:
        on: np.ndarray = np.all(_on_step(released, channel.contributions, step), axis=2)
        return np.asarray(on.any(axis=1))

    return test


def lowest_bit(values: np.ndarray) -> np.ndarray:
    """The exponent of the last 1 of every double; of 0 one above all."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    last = np.frexp((whole & -whole).astype(np.float64))[1] - 1
    result: np.ndarray = np.where(values == 0.0, 2048, exponent - 53 + last)
    return result


def grid_test(channel: Channel, trials: int) -> Test:
    """Excludes candidates whose releases were never seen on so fine a grid, in so many of each.

    For releases rounded to a grid that the record itself decides.
    """
    finest = np.array(
        [
            np.min([lowest_bit(channel.send(i)) for _ in range(trials)], axis=0)
            for i in range(channel.candidates)
        ]
    )

    def test(released: np.ndarray) -> np.ndarray:
        return np.asarray(np.all(lowest_bit(released) >= finest, axis=1))

    return test


class LowBits(msgspec.Struct, frozen=True):
    """Result of the attack.

    Parameters
    ----------
    kind : str
        The release.
    messages : int
        Releases attacked, one record each.
    candidates : int
        Records tested for each, the true one among them.
    tests, unsound : tuple of str
        Tests that were sound on releases of known records, and those that were not and were left
        out.
    wrongly_excluded : int
        Messages whose true record was excluded, which a sound test never does.
    decoded : int
        Messages with exactly one candidate left, the true one.
    excluded : float
        Share of false candidates that were excluded.
    seconds : float
        Time taken.
    """

    kind: str
    messages: int
    candidates: int
    tests: tuple[str, ...]
    unsound: tuple[str, ...]
    wrongly_excluded: int
    decoded: int
    excluded: float
    seconds: float


def sound_tests(
    channel: Channel, trials: int, draw: np.random.Generator
) -> tuple[dict[str, Test], tuple[str, ...]]:
    """Select the tests that never excluded the true record in so many releases; name the others.

    The attacker runs the release on records of their own choice, as anyone can who has the code.
    """
    seen = [(int(i), channel.send(int(i))) for i in draw.integers(channel.candidates, size=trials)]
    learnt = seen[: max(1, trials // 2)]
    found: dict[str, Test] = {"float-noise": float_noise_test(channel)}
    step = learn_step(channel, learnt)
    if step is not None:
        found["residue"] = residue_test(channel, step)
    if channel.candidates <= _FEW:
        found["grid"] = grid_test(channel, trials)
    sound = {
        name: test for name, test in found.items() if all(test(values)[i] for i, values in seen)
    }
    return sound, tuple(name for name in found if name not in sound)


def attack(channel: Channel, messages: int, *, trials: int = 40, seed: int = 1) -> LowBits:
    """Attack so many releases of a channel.

    Parameters
    ----------
    channel : Channel
        The release, and the candidate records.
    messages : int
        Releases attacked; the record of each is drawn uniformly from the candidates.
    trials : int
        Releases of known records on which tests are tried first.
    seed : int
        Of the choice of records. The noise is the channel's own.

    Returns
    -------
    LowBits
    """
    messages = integer("messages", messages, at_least=1)
    trials = integer("trials", trials, at_least=1)
    draw = np.random.default_rng(integer("seed", seed, at_least=0))
    began = time.perf_counter()
    sound, unsound = sound_tests(channel, trials, draw)
    wrong = decoded = excluded = 0
    for i in draw.integers(channel.candidates, size=messages):
        released = channel.send(int(i))
        possible = np.ones(channel.candidates, dtype=bool)
        for test in sound.values():
            possible &= test(released)
        wrong += not possible[i]
        decoded += bool(possible[i]) and int(possible.sum()) == 1
        excluded += int(np.count_nonzero(~possible)) - (not possible[i])
    false = max(1, messages * (channel.candidates - 1))
    return LowBits(
        kind=channel.name,
        messages=messages,
        candidates=channel.candidates,
        tests=tuple(sound),
        unsound=unsound,
        wrongly_excluded=int(wrong),
        decoded=int(decoded),
        excluded=number("excluded", excluded / false),
        seconds=time.perf_counter() - began,
    )
