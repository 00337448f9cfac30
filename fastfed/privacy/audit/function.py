"""Audit a mechanism of one's own: any function from data to its output."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from fastfed._random import check_seed
from fastfed._validate import InputError, array, integer, show
from fastfed.privacy.audit.bounds import CONFIDENCE, AuditResult
from fastfed.privacy.audit.bounds import audit as audit_runs

#: Runs that the direction of the default statistic is estimated from, for each one audited.
_FIT = 0.25


def audit(
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
    return audit_runs(
        called, first, second, claimed_epsilon=epsilon, delta=delta, confidence=confidence
    )


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
