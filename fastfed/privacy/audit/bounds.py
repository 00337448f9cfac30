"""Auditing: a lower bound on epsilon from runs of a mechanism on two neighbouring datasets.

Let P and Q be the distributions of a mechanism's output on two neighbouring datasets, in either
order. If the mechanism is (epsilon, delta)-private, then P(S) <= e^epsilon Q(S) + delta for every
event S. So confidence bounds on P(S) and Q(S) give a lower bound on epsilon, if S was chosen before
it was counted. An audit can detect a fault; it cannot prove privacy.

`audit` evaluates given runs. `audit_function` runs any function from data to its output.

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

#: Statistics (n,) of n independent runs (one number for each run), or a function that returns them
#: for a given n.
Runs = np.ndarray | Callable[[int], np.ndarray]

_CANDIDATE_COUNT = 1000  # number of thresholds tried on the first half
# An event is chosen by the bound that it gives on epsilon. This bound is computed with the final
# tail probability times this factor. With factor 1 rare events would win by chance: the final
# bounds would scatter 1.5 times as much, with about the same mean.
_CHOICE_TAIL = 1.0 / 500.0


class AuditResult(Displayed, msgspec.Struct, frozen=True):
    """The result of an audit.

    Parameters
    ----------
    name : str
        Name of the audit.
    delta, claimed_epsilon : float
        The claim that the mechanism is (claimed_epsilon, delta)-private.
    epsilon_lower_bound : float
        Lower bound on the mechanism's true epsilon at delta. It holds with probability
        ``confidence`` over the runs of the audit.
    confidence : float
        The confidence level of the bound, in (0, 1).
    trials : int
        Number of runs on each of the two datasets.
    verdict : {"pass", "caught"}
        "caught" if the bound is above the claim. "pass" means only that these runs did not refute
        the claim.
    largest_bound : float, optional
        The largest bound that this number of runs can give, if all runs on one dataset and none on
        the other show the event. None if the audit does not count events.

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
    largest_bound: float | None = None

    def __post_init__(self) -> None:
        """Check all fields, and that the verdict follows from them."""
        number("delta", self.delta, at_least=0, below=1)
        claimed = number("claimed_epsilon", self.claimed_epsilon, at_least=0)
        bound = number("epsilon_lower_bound", self.epsilon_lower_bound, at_least=0)
        number("confidence", self.confidence, above=0, below=1)
        integer("trials", self.trials, at_least=1)
        choice("verdict", self.verdict, VERDICTS)
        if self.largest_bound is not None:
            number("largest_bound", self.largest_bound, at_least=bound)
        if (self.verdict == "caught") != (bound > claimed):
            raise InputError(
                f'verdict must be "caught" exactly when {bound:g} is above the claimed '
                f'{claimed:g}, got "{self.verdict}"'
            )

    @property
    def can_refute(self) -> bool:
        """False if no outcome of this number of runs could have refuted the claim."""
        return self.largest_bound is None or self.largest_bound > self.claimed_epsilon

    def to_builtins(self) -> dict[str, Any]:
        """Return the result as a dict of strings and numbers, with the keys of the JSON output."""
        result: dict[str, Any] = msgspec.to_builtins(self)
        return result


class EstimatedMu(msgspec.Struct, frozen=True):
    """An estimate of a Gaussian mechanism's GDP parameter mu, with an interval [low, high].

    The interval has the confidence level ``confidence``.
    """

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
    """Compute a lower bound on epsilon from the counts of one event on two neighbouring datasets.

    The bound is max(0, ln((low - delta) / high)), where low is a lower bound on the event's
    probability on the first dataset, and high is an upper bound on its probability on the second.

    Parameters
    ----------
    true_positives, false_positives : int
        Number of independent runs on the first and on the second dataset in which the event
        occurred. The event must have been chosen without looking at these runs.
    trials : int
        Number of runs on each dataset.
    delta : float
        In [0, 1).
    confidence : float
        In (0, 1). low and high are one-sided Clopper-Pearson bounds, each of which fails with
        probability at most (1 - confidence) / 2. So both hold with probability ``confidence`` or
        more.

    Returns
    -------
    float
        The lower bound, >= 0.

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
    """Audit the claim of a mechanism, from one number for each run on two neighbouring datasets.

    The numbers are the runs' statistics. The first half of the runs chooses an event, statistic
    >= t or statistic <= t, and the dataset that should make it more likely. Only this event is
    counted in the second half, so the bound has the stated confidence, whichever event was chosen.

    Parameters
    ----------
    name : str
        Name of the result.
    first, second : ndarray (n,) or callable
        Statistics of independent runs on the first and on the second dataset, or functions that
        return them for n. The best statistic is the log likelihood ratio of the two datasets, or
        any increasing function of it.
    claimed_epsilon, delta : float
        The claim that the mechanism is (claimed_epsilon, delta)-private.
    trials : int, optional
        n, required if first and second are functions.
    confidence : float
        Confidence level of the lower bound, in (0, 1).

    Returns
    -------
    AuditResult
        The lower bound and the verdict.

    Raises
    ------
    InputError
        For statistics that are not finite or differ in number, and for fewer than 2 runs.
    """
    p, q = _statistics_of("first", first, trials), _statistics_of("second", second, trials)
    n = len(p)
    if n != len(q) or n < 2:
        raise InputError(
            f"first and second must have the same number of runs, >= 2, got {n}, {len(q)}"
        )
    delta = number("delta", delta, at_least=0, below=1)
    confidence = number("confidence", confidence, above=0, below=1)
    half_runs = n // 2
    swap, below, threshold = _choose(p[:half_runs], q[:half_runs], delta, confidence)
    hits = [
        int(np.count_nonzero(runs <= threshold if below else runs >= threshold))
        for runs in (p[half_runs:], q[half_runs:])
    ]
    tp, fp = reversed(hits) if swap else hits
    bound = epsilon_lower_bound(tp, fp, n - half_runs, delta, confidence)
    return judged(
        name,
        bound,
        n,
        claimed_epsilon=claimed_epsilon,
        delta=delta,
        confidence=confidence,
        largest_bound=largest_bound(n - half_runs, delta, confidence),
    )


def largest_bound(trials: int, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return the largest lower bound on epsilon that ``trials`` runs on each dataset can give.

    An event then occurs in all runs on one dataset, and in no run on the other.
    """
    return epsilon_lower_bound(trials, 0, trials, delta, confidence)


def estimated_mu(
    first: np.ndarray, second: np.ndarray, confidence: float = CONFIDENCE
) -> EstimatedMu:
    """Estimate a Gaussian mechanism's mu from statistics of runs on two neighbouring datasets.

    mu is the absolute difference of the statistic's means on the two datasets, divided by its
    standard deviation. ``first`` (n,) and ``second`` (m,) hold the statistic of each run. It must
    be Gaussian on both datasets with the same variance, like the log likelihood ratio of a Gaussian
    mechanism. Use this estimate for large epsilon, where events that distinguish the datasets are
    too rare to be counted. The confidence interval is a large-sample interval of variance
    1/n + 1/m + mu^2 / (2 (n + m - 2)).
    """
    from scipy.special import ndtri

    p, q = _statistics_of("first", first, None), _statistics_of("second", second, None)
    confidence = number("confidence", confidence, above=0, below=1)
    n, m = len(p), len(q)
    if min(n, m) < 2:
        raise InputError(f"first and second must hold at least 2 runs each, got {n}, {m}")
    sum_of_squares = float(np.sum((p - p.mean()) ** 2) + np.sum((q - q.mean()) ** 2))
    if sum_of_squares == 0.0:
        raise InputError("first and second must vary over the runs, got constants")
    degrees_of_freedom = n + m - 2
    mu = abs(float(p.mean() - q.mean())) / math.sqrt(sum_of_squares / degrees_of_freedom)
    standard_error = math.sqrt(1.0 / n + 1.0 / m + mu * mu / (2.0 * degrees_of_freedom))
    half_width = -float(ndtri((1.0 - confidence) / 2.0)) * standard_error
    return EstimatedMu(mu, max(0.0, mu - half_width), mu + half_width, confidence)


def gaussian_audit(
    name: str,
    first: np.ndarray,
    second: np.ndarray,
    *,
    claimed_epsilon: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Audit a Gaussian mechanism by its estimated GDP parameter mu.

    The lower bound is the epsilon of the low end of the interval of `estimated_mu`. It is much
    larger than the bound of `audit`, but valid for Gaussian noise only: the statistic must be
    Gaussian with the same variance on both datasets.
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
    largest_bound: float | None = None,
) -> AuditResult:
    """Return the `AuditResult` for a lower bound on epsilon.

    The verdict is "caught" if ``bound`` is above ``claimed_epsilon``, else "pass".
    ``largest_bound`` is the largest bound that ``trials`` runs could give; None if the audit counts
    no events.
    """
    claimed = number("claimed_epsilon", claimed_epsilon, at_least=0)
    verdict = "caught" if bound > claimed else "pass"
    return AuditResult(name, delta, claimed, bound, confidence, trials, verdict, largest_bound)


def _statistics_of(name: str, runs: Runs, trials: int | None) -> np.ndarray:
    """Return the statistics (n,) of n runs: the array ``runs``, or the result of ``runs(trials)``.

    ``name`` is the argument's name in messages.
    """
    if not callable(runs):
        return array(name, runs, ndim=1)
    if trials is None:
        raise InputError(f"trials must be given when {name} is a function, got None")
    count = integer("trials", trials, at_least=2)
    return array(name, runs(count), shape=(count,))


def _choose(
    p: np.ndarray, q: np.ndarray, delta: float, confidence: float
) -> tuple[bool, bool, float]:
    """Choose the event for which statistics p and q (n,) give the largest bound on epsilon.

    p are the statistics on the first dataset, q those on the second. Return (swap, below,
    threshold). The event is statistic <= threshold if ``below``, else statistic >= threshold. If
    ``swap`` is true, it is more probable on the second dataset. The bound is computed at a higher
    confidence level than ``confidence``, so that rare events do not win by chance.
    """
    confidence = 1.0 - (1.0 - confidence) * _CHOICE_TAIL
    p, q = np.sort(p), np.sort(q)
    pool = np.unique(np.concatenate([p, q]))
    candidate_indices = np.unique(
        np.linspace(0, len(pool) - 1, _CANDIDATE_COUNT).round().astype(int)
    )
    thresholds = pool[candidate_indices]
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
            bounds = _bounds(tp, fp, len(p), delta, confidence)
            i = int(bounds.argmax())
            best = max(best, (float(bounds[i]), swap, below, float(thresholds[i])))
    return best[1:]


def _bounds(
    tp: np.ndarray, fp: np.ndarray, trials: int, delta: float, confidence: float
) -> np.ndarray:
    """Return `epsilon_lower_bound` for arrays of counts of true and of false positives."""
    from scipy.special import betaincinv

    tail = (1.0 - confidence) / 2.0
    with np.errstate(invalid="ignore", divide="ignore"):
        low = np.where(tp > 0, betaincinv(np.maximum(tp, 1), trials - tp + 1, tail), 0.0)
        fp_below_trials = np.minimum(fp, trials - 1)
        high = np.where(
            fp < trials, betaincinv(fp_below_trials + 1, trials - fp_below_trials, 1.0 - tail), 1.0
        )
        bound = np.log(np.maximum(low - delta, 0.0)) - np.log(high)
    result: np.ndarray = np.maximum(bound, 0.0)
    return result


def open_uniforms(draw: np.random.Generator, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return random numbers that are uniform on multiples of 2^-53 in [0, 1), with 2^-54 for 0."""
    result: np.ndarray = np.maximum(draw.random(shape), 2.0**-54)
    return result


# ---- Audits of any function from data to its output ----------------------------------------------

#: Number of separate runs that estimate the direction of the default statistic, divided by the
#: number of audited runs.
_FIT_FRACTION = 0.25


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

    The mechanism is run ``trials`` times on each of two neighbouring datasets. The first half of
    the runs chooses an event that distinguishes them, and the second half counts it, once. So the
    lower bound on the true epsilon holds with the stated confidence for any mechanism.

    Parameters
    ----------
    mechanism : callable
        ``mechanism(data)``, or ``mechanism(data, rng)`` with a NumPy generator that it should
        use for its noise. It returns a number, or an array that always has the same shape.
        Runs must be independent.
    data, neighbour : object
        Two datasets that are neighbours under the claimed relation. They are passed to the
        mechanism unchanged. The bound is about this pair, so choose the worst one.
    epsilon, delta : float
        The claim: epsilon >= 0, delta in [0, 1).
    statistic : callable, optional
        Maps one output to a number. The best statistic is the log likelihood ratio of the two
        datasets. Default: the projection of the output on the difference of the mean outputs, with
        each entry divided by its variance. Means and variances are estimated from trials / 4
        separate runs. For Gaussian noise this is the log likelihood ratio. It does not detect
        differences that leave the means unchanged.
    trials : int
        Number of runs on each dataset, >= 2. The bound on epsilon is at most about ln(trials / 8).
    seed : int
        Seed of the generator that is passed to a mechanism with two arguments.
    confidence : float
        Confidence level of the lower bound, in (0, 1).
    name : str, optional
        Name of the result. Default: the name of the function.

    Returns
    -------
    AuditResult
        The verdict is "caught" if the lower bound is above the claim. "pass" proves no privacy.

    Raises
    ------
    InputError
        For values out of range, and for outputs or statistics that are not finite numbers or
        change their shape.

    Notes
    -----
    Source: Jagielski et al. 2020, Section 4; Clopper and Pearson 1934.

    Examples
    --------
    A sum of numbers in [0, 1] with Laplace noise of scale 1/2 is 2-private, but not 1-private:

    >>> import numpy as np
    >>> import fastfed
    >>> def noisy_sum(data, rng):
    ...     return np.sum(data) + rng.laplace(scale=0.5)
    >>> result = fastfed.audit(noisy_sum, [0.0, 0.3], [1.0, 0.3], epsilon=1.0, delta=0.0)
    >>> result.verdict, 1.0 < result.epsilon_lower_bound <= 2.0
    ('caught', True)
    """
    if not callable(mechanism):
        raise InputError(f"mechanism must be a function of the data, got {show(mechanism)}")
    if statistic is not None and not callable(statistic):
        raise InputError(f"statistic must be a function of one output, got {show(statistic)}")
    if _equal(data, neighbour):
        raise InputError(
            "neighbour must differ from data, got equal datasets: replace what is protected, such "
            "as one record, or an audit sees nothing"
        )
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    draw = np.random.default_rng(check_seed(seed))
    takes_draws = _takes_generator(mechanism)

    def run(dataset: Any) -> Any:
        """Run the mechanism once, with the generator if it accepts one."""
        return mechanism(dataset, draw) if takes_draws else mechanism(dataset)

    audit_name = name if name is not None else getattr(mechanism, "__name__", "mechanism")
    if statistic is None:
        first, second = _projected_statistics(run, data, neighbour, trials)
    else:
        first, second = (
            array("statistic", [_to_float(statistic(run(each_dataset))) for _ in range(trials)])
            for each_dataset in (data, neighbour)
        )
    return audit(
        audit_name, first, second, claimed_epsilon=epsilon, delta=delta, confidence=confidence
    )


def _equal(data: Any, neighbour: Any) -> bool:
    """Return True if two datasets are the same object, or equal numbers or arrays of numbers."""
    if data is neighbour:
        return True
    try:
        return bool(np.array_equal(np.asarray(data, float), np.asarray(neighbour, float)))
    except (TypeError, ValueError):
        return False


def _projected_statistics(
    run: Callable[[Any], Any], data: Any, neighbour: Any, trials: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the default statistics of `audit_function`: arrays (trials,) for both datasets.

    A statistic is the projection of a run's output on the difference of the mean outputs, with each
    entry divided by its variance. If entries without noise differ, only these entries are used.
    """
    fit_count = max(2, int(trials * _FIT_FRACTION))
    # The direction comes from separate runs, which are not audited.
    fit_outputs = [_outputs(run, data, fit_count, None)]
    size = fit_outputs[0].shape[1]
    fit_outputs.append(_outputs(run, neighbour, fit_count, size))
    mean_difference = fit_outputs[1].mean(axis=0) - fit_outputs[0].mean(axis=0)
    variance = (fit_outputs[0].var(axis=0) + fit_outputs[1].var(axis=0)) / 2.0
    noiseless = (variance == 0.0) & (mean_difference != 0.0)
    if noiseless.any():
        # Entries without noise that differ distinguish the datasets with certainty.
        direction = np.where(noiseless, np.sign(mean_difference), 0.0)
    else:
        direction = mean_difference / np.where(variance > 0.0, variance, 1.0)
    first, second = (
        _outputs(run, dataset, trials, size) @ direction for dataset in (data, neighbour)
    )
    return first, second


def _takes_generator(mechanism: Callable[..., Any]) -> bool:
    """Return True if a mechanism takes a generator: it has two required positional arguments."""
    try:
        parameters = inspect.signature(mechanism).parameters.values()
    except (TypeError, ValueError):  # some compiled functions have no signature
        return False
    required = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty
    ]
    return len(required) == 2


def _to_float(value: Any) -> float:
    """Return a statistic as a float. Raise InputError if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"statistic must return a number, got {show(value)}") from None


def _outputs(run: Callable[[Any], Any], dataset: Any, count: int, size: int | None) -> np.ndarray:
    """Run the mechanism ``count`` times, and return its outputs as flattened rows (count, e).

    Raises InputError if the number e of entries changes, or differs from ``size``.
    """
    outputs = []
    for _ in range(count):
        output = array("the mechanism's output", run(dataset)).ravel()
        if size is not None and len(output) != size:
            raise InputError(f"outputs must have one size, got {size} numbers and {len(output)}")
        size = len(output)
        outputs.append(output)
    return np.array(outputs)
