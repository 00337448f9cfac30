"""The noisy argmin: which of many scores is the least after Laplace noise, and nothing else.

Let neighbouring datasets change every score by at most D, and all noise be of scale b.
1. P(i) <= e^(2 D/b) P'(i). Fix the noises of all candidates but i. Candidate i is chosen if its
   noise is below a limit, the least other noisy score minus its own score. On the other dataset
   that limit is lower by at most 2 D: the least other score by D, and its own score higher by D. A
   shift of one Laplace noise by 2 D costs e^(2 D/b).
2. If no score moves against another one (all changes are >= 0, or all are <= 0), the limit moves by
   D at most: D/b. This is the case of counts (Dwork & Roth 2014, Claim 3.9), and not of losses.
3. The factor 2 is needed. The difference of two noises exceeds g b, g >= 0, with probability
   (1 + g/2) e^-g / 2; two candidates that far apart, moving to g - 2 D/b, have the log ratio
   2 D/b + ln((2 + g - 2 D/b) / (2 + g)) for the worse one, which tends to 2 D/b with g.
4. Noises that are sums, one part of scale b from each of m clients: with the parts of all clients
   but one given, the choice is the argmin of other scores plus that one's noise, so 1 to 2 hold for
   each value of the given parts, and for their mean. For delta = 0 nothing is gained by the sum:
   its tail is a polynomial times e^(-x/b), so the ratio of 3 still tends to e^(2 D/b).
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._validate import InputError, array, boolean, number
from fastfed.privacy.laplace import log_cdf
from fastfed.privacy.sparse_vector import _quadrature


class NoisyArgmin(msgspec.Struct, frozen=True):
    """Index of the least of d scores plus Laplace noise of one scale each ("report noisy min").

    scale: > 0, in the units of the scores. sensitivity: > 0, the most that neighbouring datasets
    change any score. monotone: neighbouring datasets change all scores in one direction.

    Guarantee: (epsilon, 0), epsilon = 2 sensitivity/scale, or sensitivity/scale if monotone, for
    the unit and relation that the sensitivity is of, and no less in the worst case of two or more
    candidates. The proof stands at the top of this module, also for noises that are sums.
    Source: Dwork & Roth 2014, Section 3.3.
    """

    scale: float
    sensitivity: float = 1.0
    monotone: bool = False

    def __post_init__(self) -> None:
        number("scale", self.scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("monotone", self.monotone)

    @property
    def epsilon(self) -> float:
        """What one choice costs."""
        return (1.0 if self.monotone else 2.0) * self.sensitivity / self.scale

    def choose(self, scores: object, noise: object) -> int:
        """Index of the least of scores (d,) + scale noise; noise: (d,) standard Laplace
        (`laplace.laplace_quantile`), none used again. Of equal ones the first."""
        values = _scores(scores)
        return int(np.argmin(values + self.scale * array("noise", noise, shape=values.shape)))

    def log_probabilities(self, scores: object) -> np.ndarray:
        """ln P(i) (d,), also where P(i) itself underflows.

        One integral over the least noisy score for each candidate, by Gauss-Legendre; relative
        accuracy of P(i) about 1e-12. Takes O(d^2), about a second for d = 100.
        """
        values = _scores(scores) / self.scale
        values = values - values.min()
        if len(values) == 1:
            return np.zeros(1)
        r, log_weights = _quadrature(np.unique(values), 1.0, 1.0, len(values))
        gaps = r[:, None] - values
        above = log_cdf(-gaps)
        # Candidate i's own noise is at r, all others are above.
        logs = log_weights[:, None] - np.abs(gaps) - math.log(2.0)
        logs += above.sum(axis=1, keepdims=True) - above
        top = logs.max(axis=0)
        result: np.ndarray = top + np.log(np.exp(logs - top).sum(axis=0))
        return result

    def probabilities(self, scores: object) -> np.ndarray:
        """P(i) (d,)."""
        result: np.ndarray = np.exp(self.log_probabilities(scores))
        return result

    def two_candidates(self, gap: float) -> float:
        """ln(P'(i)/P(i)) of the worse of two candidates whose scores are `gap` apart under P and
        move as far towards each other as neighbouring datasets allow under P'.

        Increases with the gap, to epsilon: the guarantee is not attained, but is the supremum.
        """
        here = number("gap", gap)
        moved = (1.0 if self.monotone else 2.0) * self.sensitivity
        return _log_tail((here - moved) / self.scale) - _log_tail(here / self.scale)


def _scores(scores: object) -> np.ndarray:
    values = array("scores", scores, ndim=1)
    if not len(values):
        raise InputError("scores must hold at least one candidate, got shape (0,)")
    return values


def _log_tail(g: float) -> float:
    """ln P(difference of two standard Laplace noises > g)."""
    tail = math.log1p(abs(g) / 2.0) - abs(g) - math.log(2.0)
    return tail if g >= 0.0 else math.log1p(-math.exp(tail))
