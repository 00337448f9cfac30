"""When silos synchronise: fixed batches of rounds, local rounds, and data-dependent triggers."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from fastfed._kernels import aggregation, driver, linalg
from fastfed._random import IdealSource, NoiseSource, is_exact
from fastfed._sampling import ERROR, Normals
from fastfed._validate import InputError, array
from fastfed.privacy import exact
from fastfed.protocols.protocol import statistic_size

#: Largest number of batches of a growing schedule.
MAX_GROWING = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """Synchronisation at fixed times: after every ``batch_size`` rounds, or after ``rounds``.

    Parameters
    ----------
    horizon : int
        T, the number of rounds.
    batch_size : int
        Number of rounds in a batch, or in the longest batch if batches differ in length. With 0,
        silos never synchronise.
    rounds : tuple of int
        The last round of each batch, increasing, if batch lengths differ; else empty.
    """

    horizon: int
    batch_size: int
    rounds: tuple[int, ...] = ()

    @staticmethod
    def at(rounds: tuple[int, ...], horizon: int) -> Schedule:
        """Return the schedule whose batches end after ``rounds``."""
        check_rounds(rounds, horizon)
        longest = max(b - a for a, b in zip((0, *rounds), rounds, strict=False))
        return Schedule(horizon, longest, rounds)

    @staticmethod
    def growing(horizon: int, first: int, ratio: float) -> Schedule:
        """Return a schedule of growing batches, each ``ratio`` times as long as the previous one.

        The first batch has ``first`` rounds. Lengths are rounded to whole rounds. Data from rounds
        after the last complete batch are never sent.
        """
        rounds, end, length = [], 0, float(first)
        while (end := end + round(length)) <= horizon:
            rounds.append(end)
            if len(rounds) > MAX_GROWING:
                raise InputError(
                    f"a growing schedule must have at most {MAX_GROWING} batches, and batch_ratio "
                    f"{ratio:g} makes more; choose a larger batch_ratio"
                )
            length = max(length * ratio, length)
        return Schedule.at(tuple(rounds), horizon) if rounds else Schedule(horizon, horizon + 1)

    @property
    def ends(self) -> np.ndarray:
        """Return the rounds after which silos synchronise, (K,) int64."""
        if self.rounds:
            return np.array(self.rounds, np.int64)
        return np.arange(1, self.releases + 1, dtype=np.int64) * self.batch_size

    @property
    def releases(self) -> int:
        """Return K, the number of synchronisations. An incomplete last batch does not count."""
        if self.rounds:
            return len(self.rounds)
        return self.horizon // self.batch_size if self.batch_size else 0

    @property
    def every_round(self) -> bool:
        """Return True if silos synchronise after every round up to the horizon."""
        return self.releases == self.horizon

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the number of rounds in each batch, a tuple of length K."""
        return tuple(int(n) for n in np.diff(self.ends, prepend=0))


def check_rounds(rounds: tuple[int, ...], horizon: int) -> None:
    """Raise InputError unless ``rounds`` are strictly increasing and lie in 1..horizon."""
    if any(b <= a for a, b in zip((0, *rounds), rounds, strict=False)) or rounds[-1:] > (horizon,):
        raise InputError(
            f"release_rounds must increase and lie between 1 and the horizon ({horizon}), "
            f"got {str(rounds)[:60]}"
        )


def by_rate(rate: float, rounds: int) -> np.ndarray:
    """Return an array (rounds,): 1 for a fraction ``rate`` of the rounds, evenly spread, else 0.

    The entry of round t is 1 if floor(t rate) > floor((t - 1) rate).
    """
    # The small constant covers rounding: 0.29 * 100 is 28.999999999999996.
    counts = np.floor(np.arange(rounds + 1) * rate + 1e-9)
    return (counts[1:] > counts[:-1]).astype(np.uint8)


@dataclass(frozen=True)
class OwnRounds:
    """Local rounds, whose data never leave a silo, after and between shared rounds.

    In a local round a silo combines its local data with the released sums, by a Bayesian posterior
    or by taking the smaller of two confidence bounds; see docs/own-rounds.md.

    Parameters
    ----------
    until : int
        The last round that may be shared. The last release comes after this round.
    scale2 : float
        R^2, the variance of reward noise in a silo's posterior.
    prior : float
        Lower bound on the precision of the prior that the other silos' sums give.
    spreads : tuple of float
        Delta^2 (1 + 1/(M - 1)) for each Delta on a grid, with M silos. Delta is the prior standard
        deviation of a silo's theta around the theta of the other silos.
    ridges : tuple of tuple of float
        Entry k (k = 0, 1, ...) holds, for each Delta, the noise variance after k releases, or a
        larger value if the covariance would otherwise not be positive definite.
    bonus : float
        Factor on ||x||_{V^-1} in the score.
    fraction : float, default 1
        p, the fraction of the rounds up to ``until`` that are shared.
    secret : bool, default False
        If true, a coin with probability p decides for each user whether the round is shared, and
        only the silo knows the result. If false, round t is shared if
        floor(t p) > floor((t - 1) p).
    bound : tuple of float, optional
        (m, R, b, S) of the silo's local radius m (R sqrt(b + ln det V) + S), where V is I plus the
        sum of x x' over all rounds of the silo. For rule "min-of-bounds" and for a sieve.
    sieve_width : float, default 0
        W, the largest local radius, if the posterior ranks only the actions that pass a sieve. The
        sieve's slack is W divided by the local radius. With 0, the posterior ranks all actions.
    """

    until: int
    scale2: float
    prior: float
    spreads: tuple[float, ...]
    ridges: tuple[tuple[float, ...], ...]
    bonus: float
    fraction: float = 1.0
    secret: bool = False
    bound: tuple[float, float, float, float] | None = None
    sieve_width: float = 0.0

    @property
    def posterior(self) -> bool:
        """Return True if local rounds rank actions by a posterior (rule "gls")."""
        return bool(self.spreads)

    @property
    def mixed(self) -> bool:
        """Return True if there are local rounds up to round ``until``, not only after it."""
        return self.fraction < 1.0

    @property
    def coin(self) -> float:
        """Return the probability that the secret coin shares a user's round; 1 without a coin."""
        return self.fraction if self.secret else 1.0

    @cached_property
    def rule(self) -> np.ndarray:
        """Return an array (until,) with 1 for each round that the public rule shares, else 0."""
        return by_rate(self.fraction, self.until)

    @property
    def threshold(self) -> int:
        """Return an integer; a uniform 64-bit integer is below it with probability `fraction`."""
        return int(self.fraction * 2.0**64)

    def shares(self, round: int, bits: int = 0) -> bool:
        """Return True if ``round`` is shared, for a round up to ``until``.

        With a secret coin it is shared if ``bits``, a uniform 64-bit integer, is below `threshold`.
        Otherwise ``bits`` is not used.
        """
        return bits < self.threshold if self.secret else bool(self.rule[round - 1])

    def model(self, release: int) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
        """Return the posterior's parameters after ``release`` releases, as the kernels take them.

        The result is ``scale2`` (variance of reward noise), ``prior`` (least precision of the
        prior), ``spreads`` (candidate prior variances) and entry ``release`` of ``ridges`` (noise
        variances).
        """
        return self.scale2, self.prior, self.spreads, self.ridges[release]


# ---- Triggers: synchronise when ln det V has grown enough, from raw or from noisy sums -----------

# Kinds of triggers; src/ff_trigger.h has the same numbers.
DETERMINANT, PRIVATE_DETERMINANT = 1, 2


@dataclass(frozen=True)
class Trigger:
    """A rule by which a silo requests a synchronisation: its determinant has grown enough.

    Let n be the number of rounds since the last synchronisation, the current round included; S the
    matrix V of the synchronised data; Q the sum of x x' over the silo's batch. The trigger fires if

    - kind DETERMINANT: ln det(S + Q + extra I) - ln det S >= threshold / n (dubey-pentland-2020,
      Algorithm 1 line 12, with the extra term inside the determinant);
    - kind PRIVATE_DETERMINANT: ln det(S + Q + N) - ln det S > threshold / n (zhou-chowdhury-2024,
      equation (10)). N is the noise of prefix n in a tree whose leaves are single rounds; every
      synchronisation starts a new tree.

    ``std`` holds the noise of N's nodes, off and on the diagonal. ``delay`` is the number of rounds
    between the round in which the trigger fires and the synchronisation.
    """

    kind: int
    threshold: float
    extra: float = 0.0
    std: tuple[float, float] = (0.0, 0.0)
    delay: int = 0

    def updates(self, dimension: int) -> bool:
        """Return True if each round updates ln det by a rank-one update.

        Otherwise each round computes ln det again. Both give the same value up to rounding; the
        update is faster in high dimensions.
        """
        return self.kind == DETERMINANT and dimension > driver.RECOMPUTE_MAX

    def levels(self, horizon: int) -> int:
        """Return the number of levels of the noise tree; 0 for a trigger without noise."""
        return horizon.bit_length() if self.kind == PRIVATE_DETERMINANT else 0


class Clock:
    """State of one silo's trigger.

    Call `observe` in each round, and `restart` after each synchronisation.
    """

    def __init__(
        self,
        trigger: Trigger,
        dimension: int,
        horizon: int,
        silo: int,
        noise: NoiseSource,
        fixed_point: tuple[float, float],
    ) -> None:
        """Store the arguments; ``fixed_point`` is the result of `protocols.release.fixed_point`."""
        self.trigger, self.dimension, self.silo, self.noise = trigger, dimension, silo, noise
        #: n times the growth of ln det after the last observed round, with n and the matrices of
        #: `Trigger`, which compares this product with the threshold.
        self.value = 0.0
        self._size = statistic_size(dimension)
        self._nodes = np.zeros((trigger.levels(horizon), self._size))
        self._ideal: IdealSource | None = None
        if trigger.kind == PRIVATE_DETERMINANT and is_exact(noise):
            self._ideal = noise
            self._unit, noise_factor = fixed_point
            off_diagonal, diagonal = trigger.std
            rows, columns = np.tril_indices(dimension)
            std = np.where(rows == columns, diagonal, off_diagonal)
            self._std = std * noise_factor
            self._drawn_nodes: list[Normals | None] = [None] * trigger.levels(horizon)
        # The factor of the matrix S + Q + extra I of `Trigger`, if rounds update it by rank-one
        # updates; else None.
        self._factor = np.zeros((dimension, dimension)) if trigger.updates(dimension) else None

    def restart(self, w: np.ndarray, total: np.ndarray, ridge: float) -> None:
        """Start a new batch after a synchronisation.

        ``total`` (s,) is the synchronised statistic. S is its covariance part plus ridge I, and
        ``w`` is the factor of S.
        """
        self._total, self._ridge, self._rounds = total, ridge + self.trigger.extra, 0
        self._batch = np.zeros(self._size)
        self._synced_log_det = linalg.log_det(w)
        if self._factor is not None:
            self._growth, factor = self._log_det_growth(total.copy())
            if factor is not None:
                self._factor[:] = factor

    def observe(self, x: np.ndarray, round: int) -> bool:
        """Add the features x (d,) of a round; return True if the silo asks for synchronisation."""
        private = self.trigger.kind == PRIVATE_DETERMINANT
        # Draw first: if the noise source fails, the state is unchanged.
        noise_draw = self._draw_noise(round) if private else None
        self._rounds += 1
        if self._factor is not None:
            self._growth += linalg.log(linalg.observe(self._factor, None, x, 0.0))
        else:
            aggregation.add(self._batch, self._point(x))
            self._growth, _ = self._log_det_growth(self._noisy_sum(noise_draw))
        self.value = self._growth * self._rounds
        # The papers differ in whether equality fires, see `Trigger`.
        required_growth = self.trigger.threshold / self._rounds
        return self._growth > required_growth if private else self._growth >= required_growth

    def _log_det_growth(self, v: np.ndarray) -> tuple[float, np.ndarray | None]:
        """Return the growth of ln det since the synchronisation, and the factor of the new matrix.

        The new matrix is the covariance part of v (s,) plus a multiple of I, the ridge plus the
        trigger's ``extra``. It is computed in place, so v changes. If the matrix is not positive
        definite, return (-inf, None).
        """
        d = self.dimension
        v[d:][np.cumsum(np.arange(1, d + 1)) - 1] += self._ridge  # the diagonal entries
        w = linalg.factor(v[d:], d)
        # Noise can make the matrix indefinite. The trigger must not fire then.
        return (-np.inf, None) if w is None else (linalg.log_det(w) - self._synced_log_det, w)

    def _point(self, x: np.ndarray) -> np.ndarray:
        """Return x x' as a statistic (s,), in fixed point if the noise is exact."""
        point = np.zeros(self._size)
        linalg.accumulate(point, x, 0.0)
        return exact.quantise(point, self._unit) if self._ideal is not None else point

    def _draw_noise(self, round: int) -> np.ndarray | Normals:
        """Return the standard normals of the tree node that this round completes."""
        if self._ideal is not None:
            return self._ideal.ideal_trigger(self.silo, round, self.dimension)
        normals = self.noise.trigger(self.silo, round, self.dimension)
        return array("noise", normals, shape=(self._size - self.dimension,))

    def _noisy_sum(self, noise_draw: np.ndarray | Normals | None) -> np.ndarray:
        """Return the synchronised sum plus the sum of the silo's batch, (s,), plus noise if any.

        ``noise_draw`` holds the standard normals of this round's tree node; None adds no noise. The
        first d entries, those of x y, are only those of the synchronised sum: the batch has zeros
        there, and gets no noise there.
        """
        v = self._total.copy()
        if noise_draw is None:
            aggregation.add(v, self._batch)
            return v
        d, level = self.dimension, aggregation.node_level(self._rounds)
        values = noise_draw.values if isinstance(noise_draw, Normals) else noise_draw
        self._nodes[level, d:] = values
        prefix = aggregation.prefix(self._nodes, self._rounds)
        if not isinstance(noise_draw, Normals):
            aggregation.add(v, self._batch)
            return aggregation.add_noise(v, prefix, d, 0.0, *self.trigger.std)
        self._drawn_nodes[level] = noise_draw
        parts = [
            (node.interval, Fraction(1))
            for j, node in enumerate(self._drawn_nodes)
            if node is not None and self._rounds >> j & 1
        ]
        # Bound on the error of a sum of len(parts) draws. Each draw is below 64 in absolute value,
        # unless its uniform number starts with 2^11 zero bits.
        error = len(parts) * (ERROR + len(parts) * 2.0**-46)
        batch, noise = self._batch[d:].copy(), prefix[d:].copy()
        v[d:] += exact.noisy(batch, self._std, noise, error, exact.combined(parts))
        return v
