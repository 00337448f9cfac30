"""Auditing: a lower bound on epsilon from runs of a mechanism on two neighbouring datasets.

A mechanism that is (epsilon, delta)-private has P(S) <= e^epsilon Q(S) + delta for every event S,
P and Q being its distributions on the two datasets, either way round. So an event that was fixed
before it was counted, with confidence bounds on both of its probabilities, bounds epsilon from
below. An audit can catch a fault; it proves no privacy.

`audit` takes runs, `audit_function` makes them with any function from data to its output.

Source: Jagielski et al. 2020, Section 4; Clopper & Pearson 1934.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fastfed._display import Displayed
from fastfed._random import check_seed
from fastfed._validate import InputError, array, choice, integer, number, show
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


# ---- A mechanism of one's own: any function from data to its output ------------------------------

#: Runs that the direction of the default statistic is estimated from, for each one audited.
_FIT = 0.25


def audit_function(
    mechanism: Callable[..., Any],
    data: Any,
    neighbour: Any,
    *,
    epsilon: float,
    delta: float,
    statistic: Callable[[Any], float] | None = None,
    trials: int = 10_000,
    seed: int = 1,
    confidence: float = CONFIDENCE,
    name: str | None = None,
) -> AuditResult:
    """Audit the claim that a mechanism is (epsilon, delta)-private, by runs on two datasets.

    The mechanism is run `trials` times on each of two neighbouring datasets. On the first half of
    the runs an event is chosen that tells them apart, on the other half it is counted, once: the
    lower bound on the true epsilon holds with the stated confidence, whatever the mechanism is.

    Parameters
    ----------
    mechanism : callable
        ``mechanism(data)``, or ``mechanism(data, rng)`` with a NumPy generator, from which its
        noise should then come; returns a number or an array of one shape. Runs must be independent.
    data, neighbour : object
        Two datasets that are neighbours under the relation that is claimed; handed to the
        mechanism as they are. The bound is about this pair, so take the worst one.
    epsilon, delta : float
        The claim: epsilon >= 0, delta in [0, 1).
    statistic : callable, optional
        From one output to a number; the best is the log likelihood ratio of the two datasets.
        Default: the output's projection on the difference of the mean outputs, each entry divided
        by its variance, which trials / 4 runs of their own estimate. That is the log likelihood
        ratio of Gaussian noise, and blind to what leaves the means as they are.
    trials : int
        Runs on each dataset, >= 2. The bound is at most about ln(trials / 8).
    seed : int
        Of the generator that a mechanism of two arguments gets.
    confidence : float
        In (0, 1).
    name : str, optional
        Of the result; by default the function's own.

    Returns
    -------
    AuditResult
        verdict "caught" if the lower bound is above the claim; "pass" proves no privacy.

    Raises
    ------
    InputError
        For values out of range, and outputs or statistics that are not finite numbers, or arrays of
        more than one shape.

    Notes
    -----
    Source: Jagielski et al. 2020, Section 4; Clopper and Pearson 1934.

    Examples
    --------
    A sum of numbers in [0, 1] with Laplace noise of scale 1/2, which is 2-private and not 1:

    >>> import numpy as np
    >>> import fastfed
    >>> def noisy_sum(data, rng):
    ...     return np.sum(data) + rng.laplace(scale=0.5)
    >>> found = fastfed.audit(noisy_sum, [0.0, 0.3], [1.0, 0.3], epsilon=1.0, delta=0.0)
    >>> found.verdict, 1.0 < found.epsilon_lower_bound <= 2.0
    ('caught', True)
    """
    if not callable(mechanism):
        raise InputError(f"mechanism must be a function of the data, got {show(mechanism)}")
    if statistic is not None and not callable(statistic):
        raise InputError(f"statistic must be a function of one output, got {show(statistic)}")
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    draw = np.random.default_rng(check_seed(seed))
    takes_draws = _takes_draws(mechanism)

    def run(dataset: Any) -> Any:
        """Run the mechanism once, with the generator if it takes one."""
        return mechanism(dataset, draw) if takes_draws else mechanism(dataset)

    called = name if name is not None else getattr(mechanism, "__name__", "mechanism")
    if statistic is None:
        first, second = _projected(run, data, neighbour, trials)
    else:
        first, second = (
            array("statistic", [_number(statistic(run(each))) for _ in range(trials)])
            for each in (data, neighbour)
        )
    return audit(called, first, second, claimed_epsilon=epsilon, delta=delta, confidence=confidence)


def _projected(
    run: Callable[[Any], Any], data: Any, neighbour: Any, trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics of both datasets, projected on the difference of the mean outputs."""
    fit = max(2, int(trials * _FIT))
    # The direction is chosen by runs that are not counted again.
    fitted = [_outputs(run, data, fit, None)]
    size = fitted[0].shape[1]
    fitted.append(_outputs(run, neighbour, fit, size))
    moved = fitted[1].mean(axis=0) - fitted[0].mean(axis=0)
    variance = (fitted[0].var(axis=0) + fitted[1].var(axis=0)) / 2.0
    certain = (variance == 0.0) & (moved != 0.0)
    if certain.any():
        # What has no noise and differs tells everything.
        direction = np.where(certain, np.sign(moved), 0.0)
    else:
        direction = moved / np.where(variance > 0.0, variance, 1.0)
    first, second = (_outputs(run, each, trials, size) @ direction for each in (data, neighbour))
    return first, second


def _takes_draws(mechanism: Callable[..., Any]) -> bool:
    """Return True if a second argument is required."""
    try:
        parameters = inspect.signature(mechanism).parameters.values()
    except (TypeError, ValueError):  # a compiled function may not say
        return False
    asked = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(asked) == 2


def _number(value: Any) -> float:
    """Convert a statistic to a float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"statistic must return a number, got {show(value)}") from None


def _outputs(run: Callable[[Any], Any], dataset: Any, count: int, size: int | None) -> np.ndarray:
    """Outputs (count, e), flattened."""
    rows = []
    for _ in range(count):
        row = array("the mechanism's output", run(dataset)).ravel()
        if size is not None and len(row) != size:
            raise InputError(f"outputs must have one size, got {size} numbers and {len(row)}")
        size = len(row)
        rows.append(row)
    return np.array(rows)
