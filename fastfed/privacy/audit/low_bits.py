"""The low-bits attack: exclude records that cannot have led to a released floating-point value.

In theory noise is continuous. A computer adds doubles: it releases fl(c + fl(sigma z)), where c is
the contribution of a record, z the random draw, and fl rounds to a double. Some doubles are not the
result for any z, and which doubles these are depends on c. An attacker who sees the released value
and knows sigma tests every candidate record. Records for which no z gives the released value are
excluded. If a release rounds c + sigma Z to the same grid for all records, the attack excludes no
record. Source: Mironov 2012.

The attack does not rely on a model of the sampler. Each test is first tried on releases of records
that the attacker chose, and is used only if it never excluded the released record.
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

#: Number of doubles to test on either side of a computed quotient or difference, which may differ
#: from the exact one by one place.
_NEIGHBOURS = 4
#: Number of draws of a sampler to test on either side of the draw that is nearest to a number.
_NEIGHBOUR_DRAWS = 8
#: Number of entries tested at a time: after a few entries most candidates are excluded.
_ENTRIES_AT_ONCE = 8
#: If all draws of the noise are multiples of a step, the step can be distinguished from rounding if
#: it is at least this number times the spacing of doubles.
_MIN_STEP_ULPS = 16.0
#: Largest number of candidates for which `grid_test` learns the grid of each candidate's releases.
_FEW_CANDIDATES = 8

#: A function image(released (e,), contributions (n, e), scales (e,)) -> bool array (n, e). It is
#: True where some noise of this scale, added to the contribution, gives the released value.
Image = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: A test of n candidate records: released values (e,) -> bool array (n,), True for records that
#: remain possible.
Test = Callable[[np.ndarray], np.ndarray]


def reachable(released: object, contribution: object, scale: object) -> np.ndarray:
    """Return, for each entry, whether some noise leads from the contribution to the released value.

    The entry is True if some double z has fl(contribution + fl(scale z)) == released, where fl is
    rounding to float64.

    Parameters
    ----------
    released, contribution, scale : array_like of float64
        The released values, the record's contributions, and the factors of the noise (> 0). Their
        shapes must broadcast.

    Returns
    -------
    ndarray of bool
        True if such a z exists, even if the sampler of the noise never draws this z. If the value
        was released with this contribution, the entry is always True.

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
    m = array("released", released)
    c = array("contribution", contribution)
    s = array("scale", scale)
    if not (s > 0.0).all():
        raise InputError(f"scale must be > 0, got {s.min():g}")
    return _reachable(*np.broadcast_arrays(m, c, s))


def _neighbours(values: np.ndarray, count: int) -> np.ndarray:
    """Return the doubles up to ``count`` places away from each value, along a new last axis."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    result: np.ndarray = (bits[..., None] + np.arange(-count, count + 1)).view(np.float64)
    return result


def _reachable(m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return `reachable` for released values m, contributions c and scales s of equal shapes."""
    with np.errstate(invalid="ignore", over="ignore"):
        # Is there a product y = fl(s z) for which c + y rounds to m? Test the doubles y nearest to
        # m - c. If doubles are much denser near m - c than near m, then c + y rounds to m for at
        # least three neighbouring y, and one of any three neighbouring doubles is a product.
        # Otherwise c + y rounds to m only for a few y, and all of these are tested.
        y = _neighbours(m - c, _NEIGHBOURS)
        rounds_to_m = c[..., None] + y == m[..., None]
        z = _neighbours(y / s[..., None], 2)
        is_product = (s[..., None, None] * z == y[..., None]).any(axis=-1)
    # For m == c there is always z = 0.
    result: np.ndarray = (rounds_to_m & is_product).any(axis=-1) | (m == c)
    return result


def normals(m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Return True where c + s z rounds to m for some double z: the `Image` of Gaussian noise."""
    return _reachable(*np.broadcast_arrays(m, c, s))


@dataclass(frozen=True)
class LaplaceDraws:
    """A sampler of Laplace noise that uses ``bits`` random bits, so that most doubles are no draw.

    ``quantile`` maps the random number k = 0 .. 2^bits - 1 (as a double) to the sampler's draw,
    which is the quantile of the Laplace distribution at (k + 1/2) / 2^bits.
    """

    bits: int
    quantile: Callable[[np.ndarray], np.ndarray]

    def near(self, z: np.ndarray) -> np.ndarray:
        """Return the sampler's draw nearest to each z, and its neighbours, along a new last axis.

        There are `_NEIGHBOUR_DRAWS` neighbours on either side.
        """
        # Compute the random number k of the nearest draw. Count k from the nearer tail, where the
        # cdf is accurate.
        tail_index = np.floor(0.5 * np.exp(-np.abs(z)) * 2.0**self.bits)
        last = 2.0**self.bits - 1.0
        nearest = np.where(z < 0.0, tail_index, last - tail_index)
        indices = nearest[..., None] + np.arange(-_NEIGHBOUR_DRAWS, _NEIGHBOUR_DRAWS + 1)
        return self.quantile(np.clip(indices, 0.0, last))

    def image(self, m: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Return True where c + s z rounds to m for some draw z of this sampler (see `Image`).

        m are released values, c contributions and s scales, of shapes that broadcast.
        """
        m, c, s = np.broadcast_arrays(m, c, s)
        draws = self.near((m - c) / s)
        result: np.ndarray = (c[..., None] + s[..., None] * draws == m[..., None]).any(axis=-1)
        return result


def _from_bits(k: np.ndarray) -> np.ndarray:
    """Return the Laplace draws that the deployed sampler computes from 53-bit numbers k."""
    flat = np.ascontiguousarray(k.ravel().astype(np.uint64))
    return rng.laplace_from_bits(flat).reshape(k.shape)


#: Samplers of Laplace noise: the sampler of deployments, which uses the operating system's
#: generator, and the samplers of private means and of the server, with 52 and 53 random bits.
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
        Name of the release.
    contributions : ndarray (n, v, e)
        For each of n candidate records: the e released sums without noise, if this record is the
        true one. Everything else in the sums is known to the attacker. If the sums depend on a
        secret with v possible values, there are v variants; otherwise v = 1.
    scales : ndarray (e,)
        The factors of the noise.
    send : callable
        Maps a record's index to the released values (e,). It is called once for each message.
    image : callable
        Tests from which contributions the noise can reach a released value, see `Image`.
    explained : callable, optional
        A test of this release that replaces ``image``, for releases that are more than one
        addition, see `Test`.
    """

    name: str
    contributions: np.ndarray
    scales: np.ndarray
    send: Callable[[int], np.ndarray]
    image: Image = normals
    explained: Test | None = None

    @property
    def candidates(self) -> int:
        """Return n, the number of candidate records."""
        return len(self.contributions)


def float_noise_test(channel: Channel) -> Test:
    """Return the test that excludes records from which no noise gives the released doubles.

    It assumes that a release is one addition of doubles, contribution + noise, unless the channel
    has a special test (``channel.explained``).
    """
    if channel.explained is not None:
        return channel.explained

    def test(released: np.ndarray) -> np.ndarray:
        """Return for each candidate record whether it can lead to the released doubles.

        A record is possible if one of its variants is possible. A variant holds the record's
        contributions for one value of a secret (see `Channel`).
        """
        n, variants, entries = channel.contributions.shape
        rows = channel.contributions.reshape(n * variants, entries)
        remaining = np.arange(n * variants)
        for start in range(0, entries, _ENTRIES_AT_ONCE):
            columns = slice(start, start + _ENTRIES_AT_ONCE)
            possible_entries = channel.image(
                released[columns], rows[remaining, columns], channel.scales[columns]
            )
            remaining = remaining[possible_entries.all(axis=1)]
        possible = np.zeros(n, dtype=bool)
        possible[remaining // variants] = True
        return possible

    return test


def rotated_mean_test(
    means: np.ndarray, signs: np.ndarray, scale: float, draws: LaplaceDraws
) -> Test:
    """Return the test of a private mean that is computed in rotated coordinates.

    The test excludes a record if no combination of rotation and noise gives the released mean. A
    rotation is given by one of the v rows of ``signs`` (v, d), where d is a power of two. ``means``
    (n, v, d) holds the mean without noise for each candidate record, in the coordinates of each
    rotation. The release is mean + ``scale`` times ``draws``, rotated back. The test undoes the
    rotation up to rounding, rotates every draw near the result back, and compares all bits with the
    release.
    """
    d = means.shape[-1]
    root = np.sqrt(d)

    def test(released: np.ndarray) -> np.ndarray:
        """Return for each candidate record whether it can lead to the released mean."""
        # The released mean in the coordinates of each rotation (v, d), up to rounding.
        approximate = hadamard(released * signs) / root
        # 3.5 spacings of doubles are five standard deviations of the rounding error. `sound_tests`
        # checks that this suffices.
        tolerance = 3.5 * np.spacing(max(np.abs(released).max(), np.abs(approximate).max()))
        values = means[..., None] + scale * draws.near((approximate - means) / scale)
        is_close = np.abs(values - approximate[None, :, :, None]) <= tolerance
        # `near` returns a limited number of draws. If the first or the last of them is still close,
        # further close draws may be missing: do not exclude this record.
        undecided = (is_close[..., 0] | is_close[..., -1]).any(axis=2)
        possible: np.ndarray = undecided.any(axis=1)
        rows, owners = [], []
        decided = is_close.any(axis=3).all(axis=2) & ~undecided
        # Rotate all combinations of close values back, one value for each coordinate.
        for i, variant in zip(*np.nonzero(decided), strict=True):
            close_values = [values[i, variant, j][is_close[i, variant, j]] for j in range(d)]
            grid = np.meshgrid(*close_values, indexing="ij")
            combinations = np.stack(grid, axis=-1).reshape(-1, d)
            rows.append(hadamard(combinations) / root * signs[variant])
            owners.append(np.full(len(combinations), i))
        if rows:
            is_released = (np.concatenate(rows) == released).all(axis=1)
            possible[np.concatenate(owners)[is_released]] = True
        return possible

    return test


def _candidate_steps(channel: Channel) -> list[np.ndarray]:
    """Return steps to try: arrays (e,) with one step for each of the e released values.

    The attacker tries whether the noise in each value is always a multiple of the value's step. The
    steps are powers of two, and powers of two times the scales of the noise.
    """
    ones = np.ones_like(channel.scales)
    return [unit * 2.0**k for k in range(0, -50, -1) for unit in (ones, channel.scales)]


def _on_step(released: np.ndarray, rows: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return True where ``released`` - ``rows`` is a multiple of ``step``, up to rounding."""
    difference = released - rows
    distance = np.abs(difference - step * np.rint(difference / step))
    result: np.ndarray = distance <= 2.0 * np.spacing(np.maximum(np.abs(released), np.abs(rows)))
    return result


def learn_step(channel: Channel, seen_releases: list[tuple[int, np.ndarray]]) -> np.ndarray | None:
    """Return a step (e,) of which the noise in all given releases is a multiple.

    The step is the first such step of `_candidate_steps` that is informative, that is, at least
    `_MIN_STEP_ULPS` times the distance of neighbouring doubles. Return None if there is none.
    ``seen_releases`` are pairs (index of the true record, released values (e,)).
    """
    # Contributions of the true records, (number of releases, variants, e).
    rows = np.array([channel.contributions[i] for i, _ in seen_releases])
    released = np.array([values for _, values in seen_releases])[:, None, :]
    spacing = np.spacing(np.abs(released).max())
    for step in _candidate_steps(channel):
        informative = step.min() >= _MIN_STEP_ULPS * spacing
        on_grid: np.ndarray = np.all(_on_step(released, rows, step), axis=2)
        if informative and on_grid.any(axis=1).all():
            return step
    return None


def residue_test(channel: Channel, step: np.ndarray) -> Test:
    """Return the test that excludes records for which the noise would be no multiple of ``step``.

    The noise is the released value minus the record's contribution. ``step`` (e,) has one step for
    each of the e released values.
    """

    def test(released: np.ndarray) -> np.ndarray:
        """Return for each record whether release minus contribution is a multiple of the step.

        One variant of the record's contributions (see `Channel`) is enough.
        """
        on_grid: np.ndarray = np.all(_on_step(released, channel.contributions, step), axis=2)
        return np.asarray(on_grid.any(axis=1))

    return test


def lowest_bit(values: np.ndarray) -> np.ndarray:
    """Return, for each double, the exponent of its lowest bit that is 1. It is 2048 for 0."""
    mantissa, exponent = np.frexp(values)
    integer_mantissa = np.abs(mantissa * 2.0**53).astype(np.int64)
    last_bit = np.frexp((integer_mantissa & -integer_mantissa).astype(np.float64))[1] - 1
    result: np.ndarray = np.where(values == 0.0, 2048, exponent - 53 + last_bit)
    return result


def grid_test(channel: Channel, trials: int) -> Test:
    """Return the test of releases that are rounded to a grid that depends on the record.

    The grid of each candidate record is learned from ``trials`` releases of this record. The test
    excludes records whose grid is too coarse for the released values.
    """
    finest = np.array(
        [
            np.min([lowest_bit(channel.send(i)) for _ in range(trials)], axis=0)
            for i in range(channel.candidates)
        ]
    )

    def test(released: np.ndarray) -> np.ndarray:
        """Return for each record whether the released values are on the grid of this record."""
        return np.asarray(np.all(lowest_bit(released) >= finest, axis=1))

    return test


class LowBits(msgspec.Struct, frozen=True):
    """The result of the low-bits attack on a channel.

    Parameters
    ----------
    kind : str
        Name of the release.
    messages : int
        Number of attacked releases. The true record of each is drawn at random.
    candidates : int
        Number of records tested for each release, including the true record.
    tests, unsound : tuple of str
        Names of the tests that were used, and of the tests that were not used because they excluded
        the true record of a release that the attacker made.
    wrongly_excluded : int
        Number of attacked releases whose true record was excluded; a sound test never does this.
    decoded : int
        Number of attacked releases for which only the true record remained possible.
    excluded : float
        Fraction of the false candidate records that were excluded.
    seconds : float
        Run time in seconds.
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
    """Return the tests by name that never excluded the true record, and the names of the others.

    Tests are tried on ``trials`` releases of known records, which anyone with the code can make.
    The generator ``draw`` chooses these records. The first half of the releases also serves to
    learn the step of the noise, for `residue_test`.
    """
    known_releases = [
        (int(i), channel.send(int(i))) for i in draw.integers(channel.candidates, size=trials)
    ]
    step_releases = known_releases[: max(1, trials // 2)]
    tests: dict[str, Test] = {"float-noise": float_noise_test(channel)}
    step = learn_step(channel, step_releases)
    if step is not None:
        tests["residue"] = residue_test(channel, step)
    if channel.candidates <= _FEW_CANDIDATES:
        tests["grid"] = grid_test(channel, trials)
    sound = {
        name: test
        for name, test in tests.items()
        if all(test(values)[i] for i, values in known_releases)
    }
    return sound, tuple(name for name in tests if name not in sound)


def attack(channel: Channel, messages: int, *, trials: int = 40, seed: int = 1) -> LowBits:
    """Attack releases of a channel, and count the records that the released doubles exclude.

    Parameters
    ----------
    channel : Channel
        The release, and the candidate records.
    messages : int
        Number of attacked releases; the record of each is drawn uniformly from the candidates.
    trials : int
        Number of releases of known records on which tests are tried first.
    seed : int
        Seed of the choice of records. The noise comes from the channel.

    Returns
    -------
    LowBits
        The result.
    """
    messages = integer("messages", messages, at_least=1)
    trials = integer("trials", trials, at_least=1)
    draw = np.random.default_rng(integer("seed", seed, at_least=0))
    start_time = time.perf_counter()
    sound, unsound = sound_tests(channel, trials, draw)
    wrongly_excluded = decoded = excluded = 0
    for i in draw.integers(channel.candidates, size=messages):
        released = channel.send(int(i))
        # True for records that no test has excluded.
        possible = np.ones(channel.candidates, dtype=bool)
        for test in sound.values():
            possible &= test(released)
        wrongly_excluded += not possible[i]
        decoded += bool(possible[i]) and int(possible.sum()) == 1
        excluded += int(np.count_nonzero(~possible)) - (not possible[i])
    false_candidates = max(1, messages * (channel.candidates - 1))
    return LowBits(
        kind=channel.name,
        messages=messages,
        candidates=channel.candidates,
        tests=tuple(sound),
        unsound=unsound,
        wrongly_excluded=int(wrongly_excluded),
        decoded=int(decoded),
        excluded=number("excluded", excluded / false_candidates),
        seconds=time.perf_counter() - start_time,
    )
