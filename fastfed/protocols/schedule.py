"""When silos release: batches of rounds, rounds of which nothing leaves a silo, and triggers."""

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

#: The most batches of a growing schedule.
MOST_GROWING = 1 << 20


@dataclass(frozen=True)
class Schedule:
    """Fixed rounds of synchronisation: after every ``batch_size`` rounds, or after ``rounds``.

    Parameters
    ----------
    horizon : int
        T.
    batch_size : int
        Rounds of a batch, of the longest one where they differ; 0 never synchronises.
    rounds : tuple of int
        Where batches differ: the rounds after which they end, increasing.
    """

    horizon: int
    batch_size: int
    rounds: tuple[int, ...] = ()

    @staticmethod
    def at(rounds: tuple[int, ...], horizon: int) -> Schedule:
        """Schedule of batches that end after these rounds."""
        check_rounds(rounds, horizon)
        longest = max(b - a for a, b in zip((0, *rounds), rounds, strict=False))
        return Schedule(horizon, longest, rounds)

    @staticmethod
    def growing(horizon: int, first: int, ratio: float) -> Schedule:
        """Batches of ``first`` rounds, then each ``ratio`` times as long as the one before.

        Lengths are rounded to whole rounds. The last batch ends at the horizon at the latest; what
        would be cut off is never sent.
        """
        rounds, end, length = [], 0, float(first)
        while (end := end + round(length)) <= horizon:
            rounds.append(end)
            if len(rounds) > MOST_GROWING:
                raise InputError(
                    f"growing batches must be at most {MOST_GROWING}: batch_ratio {ratio:g} makes "
                    "more, a larger one makes fewer"
                )
            length = max(length * ratio, length)
        return Schedule.at(tuple(rounds), horizon) if rounds else Schedule(horizon, horizon + 1)

    @property
    def ends(self) -> np.ndarray:
        """Rounds after which silos synchronise, (K,) int64."""
        if self.rounds:
            return np.array(self.rounds, np.int64)
        return np.arange(1, self.releases + 1, dtype=np.int64) * self.batch_size

    @property
    def releases(self) -> int:
        """K, the number of synchronisations; a short last batch is never sent."""
        if self.rounds:
            return len(self.rounds)
        return self.horizon // self.batch_size if self.batch_size else 0

    @property
    def every_round(self) -> bool:
        """True if silos synchronise after every round, also the last ones."""
        return self.releases == self.horizon

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rounds of each batch, (K,)."""
        return tuple(int(n) for n in np.diff(self.ends, prepend=0))


def check_rounds(rounds: tuple[int, ...], horizon: int) -> None:
    """Raise InputError unless rounds increase from 1 to the horizon at most."""
    if any(b <= a for a, b in zip((0, *rounds), rounds, strict=False)) or rounds[-1:] > (horizon,):
        raise InputError(
            f"release_rounds must increase from 1 to the horizon ({horizon}) at most, "
            f"got {str(rounds)[:60]}"
        )


@dataclass(frozen=True)
class OwnRounds:
    """Rounds of which nothing leaves a silo, after and between shared ones (docs/own-rounds.md).

    Parameters
    ----------
    until : int
        The last round that may be shared, after which there is the last release.
    scale2 : float
        R^2, the variance of rewards' noise in a silo's posterior.
    prior : float
        The precision that others' sums have at least.
    spreads : tuple of float
        Delta^2 (1 + 1/(M - 1)) for each deviation Delta of a silo on the grid.
    ridges : tuple of tuple of float
        By release, from none on: variance of the released noise for each of the deviations, so
        large that the covariance is definite.
    bonus : float
        Factor on ||x||_{V^-1} in the score.
    fraction : float, default 1
        p, the share of the rounds up to ``until`` that are shared.
    secret : bool, default False
        True where a coin of probability p decides of each user, and nobody outside of the silo
        learns how it fell; else round t is shared if floor(t p) > floor((t - 1) p).
    bound : tuple of float, optional
        Of rule "min-of-bounds": (m, R, b, S) of the silo's own radius m (R sqrt(b + ln det V) + S).
        None for a posterior; the numbers of that are then not used.
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

    @property
    def mixed(self) -> bool:
        """True if own rounds come between shared ones, not only after them."""
        return self.fraction < 1.0

    @property
    def coin(self) -> float:
        """Probability with which a secret coin lets a user enter; 1 where there is none."""
        return self.fraction if self.secret else 1.0

    @cached_property
    def rule(self) -> np.ndarray:
        """1 for each round up to ``until`` that is shared for certain, (until,) uint8."""
        # A sum of p's would drift: 0.1 * 30 is 3.0000000000000004.
        whole = np.floor(np.arange(self.until + 1) * self.fraction + 1e-9)
        return (whole[1:] > whole[:-1]).astype(np.uint8)

    @property
    def threshold(self) -> int:
        """A coin's 64 bits are below it with probability p, rounded down."""
        return int(self.fraction * 2.0**64)

    def shares(self, round: int, bits: int = 0) -> bool:
        """True if a round up to ``until`` is shared; bits: 64 uniform ones, of a secret coin."""
        return bits < self.threshold if self.secret else bool(self.rule[round - 1])

    def model(self, release: int) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
        """Numbers of the posterior after so many releases, as the kernels take them."""
        return self.scale2, self.prior, self.spreads, self.ridges[release]


# ---- Triggers: data decide when to synchronise, by the determinant rule and a private one --------

# The same numbers stand in src/ff_trigger.h.
DETERMINANT, PRIVATE_DETERMINANT = 1, 2


@dataclass(frozen=True)
class Trigger:
    """A silo asks for a synchronisation when the determinant of what it knows has grown enough.

    In a round, n rounds after the last synchronisation and this one counted:
    kind DETERMINANT: ln det(S + Q + extra I) - ln det S >= threshold / n (dubey-pentland-2020,
    Algorithm 1, line 12, the matrix inside the determinant). PRIVATE_DETERMINANT: ln det(S + Q + N)
    - ln det S > threshold / n (zhou-chowdhury-2024, equation (10)), N the noise of prefix n in a
    tree whose leaves are single rounds and which begins anew after every synchronisation.
    S: V of what is synchronised; Q: sum of x x' of the silo's batch; ``std``: of N's nodes, off
    and on the diagonal. ``delay``: rounds still played after the one in which it fires.
    """

    kind: int
    threshold: float
    extra: float = 0.0
    std: tuple[float, float] = (0.0, 0.0)
    delay: int = 0

    def updates(self, dimension: int) -> bool:
        """True if data points update a factor, instead of a determinant anew in every round.

        The same number but for rounding, and less work in high dimensions.
        """
        return self.kind == DETERMINANT and dimension > driver.RECOMPUTE_MAX

    def levels(self, horizon: int) -> int:
        """Nodes of N that a round can be part of."""
        return horizon.bit_length() if self.kind == PRIVATE_DETERMINANT else 0


class Clock:
    """One silo's view of a trigger, round by round."""

    def __init__(
        self,
        trigger: Trigger,
        dimension: int,
        horizon: int,
        silo: int,
        noise: NoiseSource,
        fixed_point: tuple[float, float],
    ) -> None:
        """fixed_point: the unit of records, and the factor on exact noise that pays for it."""
        self.trigger, self.dimension, self.silo, self.noise = trigger, dimension, silo, noise
        #: What the rule compares with the threshold, after the last round that was observed.
        self.value = 0.0
        self._size = statistic_size(dimension)
        self._nodes = np.zeros((trigger.levels(horizon), self._size))
        self._ideal: IdealSource | None = None
        if trigger.kind == PRIVATE_DETERMINANT and is_exact(noise):
            self._ideal = noise
            self._unit, larger = fixed_point
            off_diagonal, diagonal = trigger.std
            rows, columns = np.tril_indices(dimension)
            std = np.where(rows == columns, diagonal, off_diagonal)
            self._std = std * larger
            self._drawn_nodes: list[Normals | None] = [None] * trigger.levels(horizon)
        self._wide = np.zeros((dimension, dimension)) if trigger.updates(dimension) else None

    def restart(self, w: np.ndarray, total: np.ndarray, ridge: float) -> None:
        """A synchronisation has just made S = total + ridge I, of factor ``w``."""
        self._total, self._ridge, self._rounds = total, ridge + self.trigger.extra, 0
        self._batch = np.zeros(self._size)
        self._before = linalg.log_det(w)
        if self._wide is not None:
            self._growth, factor = self._grown(total.copy())
            if factor is not None:
                self._wide[:] = factor

    def observe(self, x: np.ndarray, round: int) -> bool:
        """Take in the features of a round; whether the silo asks for a synchronisation."""
        private = self.trigger.kind == PRIVATE_DETERMINANT
        # Whatever can fail, a noise source, comes before anything has changed.
        drawn = self._drawn(round) if private else None
        self._rounds += 1
        if self._wide is not None:
            self._growth += linalg.log(linalg.observe(self._wide, None, x, 0.0))
        else:
            aggregation.add(self._batch, self._point(x))
            self._growth, _ = self._grown(self._seen(drawn))
        self.value = self._growth * self._rounds
        bar = self.trigger.threshold / self._rounds
        return self._growth > bar if private else self._growth >= bar

    def _grown(self, v: np.ndarray) -> tuple[float, np.ndarray | None]:
        """Growth of ln det of v + ridge I, and its factor."""
        d = self.dimension
        v[d:][np.cumsum(np.arange(1, d + 1)) - 1] += self._ridge
        w = linalg.factor(v[d:], d)
        # A matrix that is not positive definite has not grown.
        return (-np.inf, None) if w is None else (linalg.log_det(w) - self._before, w)

    def _point(self, x: np.ndarray) -> np.ndarray:
        """x x' as a statistic."""
        point = np.zeros(self._size)
        linalg.accumulate(point, x, 0.0)
        return exact.quantise(point, self._unit) if self._ideal is not None else point

    def _drawn(self, round: int) -> np.ndarray | Normals:
        if self._ideal is not None:
            return self._ideal.ideal_trigger(self.silo, round, self.dimension)
        drawn = self.noise.trigger(self.silo, round, self.dimension)
        return array("noise", drawn, shape=(self._size - self.dimension,))

    def _seen(self, drawn: np.ndarray | Normals | None) -> np.ndarray:
        """S + Q, with the noise of this round's prefix where the rule is private."""
        v = self._total.copy()
        if drawn is None:
            aggregation.add(v, self._batch)
            return v
        d, level = self.dimension, aggregation.node_level(self._rounds)
        values = drawn.values if isinstance(drawn, Normals) else drawn
        self._nodes[level, d:] = values
        prefix = aggregation.prefix(self._nodes, self._rounds)
        if not isinstance(drawn, Normals):
            aggregation.add(v, self._batch)
            return aggregation.add_noise(v, prefix, d, 0.0, *self.trigger.std)
        self._drawn_nodes[level] = drawn
        parts = [
            (node.interval, Fraction(1))
            for j, node in enumerate(self._drawn_nodes)
            if node is not None and self._rounds >> j & 1
        ]
        # Sums of as many draws, each below 64 unless its uniform begins with 2^11 zeros.
        error = len(parts) * (ERROR + len(parts) * 2.0**-46)
        batch, noise = self._batch[d:].copy(), prefix[d:].copy()
        v[d:] += exact.noisy(batch, self._std, noise, error, exact.combined(parts))
        return v
