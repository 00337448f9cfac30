"""When silos release: batches of rounds, and rounds of which nothing leaves a silo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fastfed._validate import InputError


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
