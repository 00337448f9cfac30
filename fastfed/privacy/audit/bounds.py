"""Auditing: a lower bound on epsilon from runs of a mechanism on two neighbouring datasets.

A mechanism that is (epsilon, delta)-private has P(S) <= e^epsilon Q(S) + delta for every event S,
P and Q being its distributions on the two datasets, either way round. So an event that was fixed
before it was counted, with confidence bounds on both of its probabilities, bounds epsilon from
below. An audit can catch a fault; it proves no privacy.
Source: Jagielski et al. 2020, Section 4; Clopper & Pearson 1934.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fastfed._display import Displayed
from fastfed._validate import InputError, array, choice, integer, number
from fastfed.privacy.accounting.gdp import epsilon_of

VERDICTS = ("pass", "caught")
CONFIDENCE = 0.95

#: Statistics (n,) of n independent runs, or a function of n that makes them.
Runs = np.ndarray | Callable[[int], np.ndarray]

_CANDIDATES = 1000  # thresholds tried on the first half
# The event is chosen by its bound at a tail this much smaller than the result's. Otherwise rare
# events win by luck: the bounds found then scatter half as much again, about the same mean.
_CHOICE_TAIL = 1.0 / 500.0


class AuditResult(Displayed, msgspec.Struct, frozen=True):
    """Result of an audit.

    Parameters
    ----------
    name : str
        Of the audit.
    delta, claimed_epsilon : float
        The claim.
    epsilon_lower_bound : float
        The mechanism's true epsilon at delta is at least this, with probability `confidence` over
        the audit's own runs.
    confidence : float
        In (0, 1).
    trials : int
        Runs on each of the two datasets.
    verdict : {"pass", "caught"}
        "caught" if the bound is above the claim, else "pass", which says no more than that these
        runs did not refute it.

    Raises
    ------
    InputError
        For values out of range, and for a verdict that does not follow from them.
    """

    name: str
    delta: float
    claimed_epsilon: float
    epsilon_lower_bound: float
    confidence: float
    trials: int
    verdict: str

    def __post_init__(self) -> None:
        """Check all fields and the verdict."""
        number("delta", self.delta, at_least=0, below=1)
        claimed = number("claimed_epsilon", self.claimed_epsilon, at_least=0)
        bound = number("epsilon_lower_bound", self.epsilon_lower_bound, at_least=0)
        number("confidence", self.confidence, above=0, below=1)
        integer("trials", self.trials, at_least=1)
        choice("verdict", self.verdict, VERDICTS)
        if (self.verdict == "caught") != (bound > claimed):
            raise InputError(
                f'verdict must be "caught" exactly when {bound:g} is above the claimed '
                f'{claimed:g}, got "{self.verdict}"'
            )

    def to_builtins(self) -> dict[str, Any]:
        """Convert to a dict of strings and numbers, with the keys of the JSON output."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        return result


class EstimatedMu(msgspec.Struct, frozen=True):
    """Estimate of a Gaussian mechanism's mu, with a confidence interval [low, high]."""

    mu: float
    low: float
    high: float
    confidence: float


def epsilon_lower_bound(
    true_positives: int,
    false_positives: int,
    trials: int,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """Lower bound on epsilon from one event: ln((low(TP) - delta) / up(FP)), at least 0.

    Parameters
    ----------
    true_positives, false_positives : int
        Number of independent runs on either dataset that showed the event, which must have been
        chosen without looking at them.
    trials : int
        Runs on each dataset.
    delta : float
        In [0, 1).
    confidence : float
        low and up are one-sided Clopper-Pearson bounds at (1 - confidence) / 2 each, so both hold
        with this probability.

    Returns
    -------
    float
        >= 0.

    Raises
    ------
    InputError
        For values out of range.
    """
    trials = integer("trials", trials, at_least=1)
    tp = integer("true_positives", true_positives, at_least=0, at_most=trials)
    fp = integer("false_positives", false_positives, at_least=0, at_most=trials)
    delta = number("delta", delta, at_least=0, below=1)
    confidence = number("confidence", confidence, above=0, below=1)
    return float(_bounds(np.array([tp]), np.array([fp]), trials, delta, confidence)[0])


def audit(
    name: str,
    first: Runs,
    second: Runs,
    *,
    claimed_epsilon: float,
    delta: float,
    trials: int | None = None,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Audit a claim by the statistics of runs on the first and on the second dataset.

    On the first half of the runs an event is chosen, of the form statistic >= t or statistic <= t
    and in either role (P against Q, Q against P); on the other half it is counted, once, so the
    bound has the stated confidence whatever was chosen.

    Parameters
    ----------
    name : str
        Of the result.
    first, second : ndarray (n,) or callable
        Statistics of runs that are independent of one another, or functions of n that make them.
        The best statistic is the log likelihood ratio of the two datasets, or anything that
        increases with it.
    claimed_epsilon, delta : float
        The claim.
    trials : int, optional
        n, where first and second are functions.
    confidence : float
        In (0, 1).

    Returns
    -------
    AuditResult

    Raises
    ------
    InputError
        For statistics that are not finite or not equally many, and for fewer than 2 runs.
    """
    p, q = _runs("first", first, trials), _runs("second", second, trials)
    n = len(p)
    if n != len(q) or n < 2:
        raise InputError(f"first and second must hold equally many runs, >= 2, got {n}, {len(q)}")
    delta = number("delta", delta, at_least=0, below=1)
    confidence = number("confidence", confidence, above=0, below=1)
    half = n // 2
    swap, below, threshold = _choose(p[:half], q[:half], delta, confidence)
    hits = [
        int(np.count_nonzero(runs <= threshold if below else runs >= threshold))
        for runs in (p[half:], q[half:])
    ]
    tp, fp = reversed(hits) if swap else hits
    bound = epsilon_lower_bound(tp, fp, n - half, delta, confidence)
    return judged(
        name, bound, n, claimed_epsilon=claimed_epsilon, delta=delta, confidence=confidence
    )


def estimated_mu(
    first: np.ndarray, second: np.ndarray, confidence: float = CONFIDENCE
) -> EstimatedMu:
    """Estimate mu = |difference of means| / standard deviation of a Gaussian statistic.

    The statistic must be Gaussian on both datasets with one variance, as the log likelihood ratio
    of a Gaussian mechanism is. For large epsilon, where the events that tell the datasets apart
    are too rare to be counted. The interval is the large-sample one, of variance
    1/n + 1/m + mu^2 / (2 (n + m - 2)).
    """
    from scipy.special import ndtri

    p, q = _runs("first", first, None), _runs("second", second, None)
    confidence = number("confidence", confidence, above=0, below=1)
    n, m = len(p), len(q)
    if min(n, m) < 2:
        raise InputError(f"first and second must hold at least 2 runs each, got {n}, {m}")
    squares = float(np.sum((p - p.mean()) ** 2) + np.sum((q - q.mean()) ** 2))
    if squares == 0.0:
        raise InputError("first and second must vary over the runs, got constants")
    freedom = n + m - 2
    mu = abs(float(p.mean() - q.mean())) / math.sqrt(squares / freedom)
    error = math.sqrt(1.0 / n + 1.0 / m + mu * mu / (2.0 * freedom))
    reach = -float(ndtri((1.0 - confidence) / 2.0)) * error
    return EstimatedMu(mu, max(0.0, mu - reach), mu + reach, confidence)


def gaussian_audit(
    name: str,
    first: np.ndarray,
    second: np.ndarray,
    *,
    claimed_epsilon: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Audit a Gaussian mechanism by `estimated_mu`: the bound is the epsilon of the lower end.

    Much stronger than `audit`, and good for no other noise: the bound rests on the statistic being
    Gaussian with one variance on both datasets.
    """
    low = estimated_mu(first, second, confidence).low
    return judged(
        name,
        epsilon_of(low, delta),
        min(len(first), len(second)),
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        confidence=confidence,
    )


def judged(
    name: str,
    bound: float,
    trials: int,
    *,
    claimed_epsilon: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Make the result of an audit that found this lower bound on epsilon."""
    claimed = number("claimed_epsilon", claimed_epsilon, at_least=0)
    verdict = "caught" if bound > claimed else "pass"
    return AuditResult(name, delta, claimed, bound, confidence, trials, verdict)


def _runs(name: str, given: Runs, trials: int | None) -> np.ndarray:
    """Statistics (n,), as given or made by the given function."""
    if not callable(given):
        return array(name, given, ndim=1)
    if trials is None:
        raise InputError(f"trials must be given when {name} is a function, got None")
    count = integer("trials", trials, at_least=2)
    return array(name, given(count), shape=(count,))


def _choose(
    p: np.ndarray, q: np.ndarray, delta: float, confidence: float
) -> tuple[bool, bool, float]:
    """Choose (roles swapped, event is <= rather than >=, threshold) with the largest bound.

    The bound of the other half at a stricter confidence, so that rare events do not win by luck.
    """
    confidence = 1.0 - (1.0 - confidence) * _CHOICE_TAIL
    p, q = np.sort(p), np.sort(q)
    pool = np.unique(np.concatenate([p, q]))
    at = np.unique(np.linspace(0, len(pool) - 1, _CANDIDATES).round().astype(int))
    thresholds = pool[at]
    best: tuple[float, bool, bool, float] = (-1.0, False, False, float(thresholds[0]))
    for below in (False, True):
        counts = [
            np.searchsorted(runs, thresholds, side="right")
            if below
            else len(runs) - np.searchsorted(runs, thresholds, side="left")
            for runs in (p, q)
        ]
        for swap in (False, True):
            tp, fp = reversed(counts) if swap else counts
            found = _bounds(tp, fp, len(p), delta, confidence)
            i = int(found.argmax())
            best = max(best, (float(found[i]), swap, below, float(thresholds[i])))
    return best[1:]


def _bounds(
    tp: np.ndarray, fp: np.ndarray, trials: int, delta: float, confidence: float
) -> np.ndarray:
    """Compute `epsilon_lower_bound` entry by entry."""
    from scipy.special import betaincinv

    tail = (1.0 - confidence) / 2.0
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(tp > 0, betaincinv(np.maximum(tp, 1), trials - tp + 1, tail), 0.0)
        some = np.minimum(fp, trials - 1)
        up = np.where(fp < trials, betaincinv(some + 1, trials - some, 1.0 - tail), 1.0)
        bound = np.log(np.maximum(low - delta, 0.0)) - np.log(up)
    result: np.ndarray = np.maximum(bound, 0.0)
    return result


def open_uniforms(draw: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Draw uniforms in (0, 1) for audits: multiples of 2^-53, and half of one instead of 0."""
    result: np.ndarray = np.maximum(draw.random(shape), 2.0**-54)
    return result
