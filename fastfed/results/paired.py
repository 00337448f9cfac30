"""Differences of final regret between curves, replicate by replicate, and the baseline of a curve.

All curves of an experiment have the same contexts and reward noise in a replicate. So a paired
difference varies much less between replicates than the regret of each curve does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fastfed.results.results import CurveResult, Results

#: The margin of a verdict in standard errors, for many replicates.
STANDARD_ERRORS = 2.0
#: The algorithm whose curve is the baseline by default: silos that share nothing.
LOCAL_SYSTEM = "local-linucb"


@cache
def beyond(replicates: int) -> float:
    """Return the half-width of a confidence interval of a mean, in standard errors.

    The half-width is 14 for two replicates, 4.5 for three, 2.9 for five and 2.1 for 25. It tends to
    two for many replicates, and is NaN for fewer than two. It is a quantile of Student's
    distribution, so that the confidence is the same for every number of replicates.
    """
    if replicates < 2:
        return math.nan
    from scipy.special import ndtr, stdtrit

    return float(stdtrit(replicates - 1, ndtr(STANDARD_ERRORS)))


@dataclass(frozen=True)
class Difference:
    """The difference ``first`` - ``second`` of two curves; NaN if it is unknown.

    It is a difference of final regrets, unless ``of`` names a different quantity.
    """

    first: str
    second: str
    mean: float
    stderr: float
    first_regret: float = math.nan  # means over the replicates that both curves have
    second_regret: float = math.nan
    replicates: int = 0
    of: str = "regret"

    @property
    def reach(self) -> float:
        """Return the half-width of the confidence interval of ``mean``; NaN for one replicate."""
        return beyond(self.replicates) * self.stderr

    @property
    def sign(self) -> int:
        """Return -1 or 1 if the confidence interval is below or above 0, else 0."""
        # Comparisons with NaN are false, so an unknown difference has the sign 0.
        return int(self.mean - self.reach > 0.0) - int(self.mean + self.reach < 0.0)

    def to_builtins(self) -> dict[str, Any]:
        """Return the difference as plain data, for JSON."""
        return {
            "first": self.first,
            "second": self.second,
            "mean": self.mean,
            "stderr": self.stderr,
            "first_regret": self.first_regret,
            "second_regret": self.second_regret,
            "replicates": self.replicates,
            "of": self.of,
        }


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error, which is NaN for a single value."""
    stderr = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), float(stderr)


def regrets(curve: CurveResult, replicates: Sequence[int], per_silo: bool = False) -> np.ndarray:
    """Return the group regret of a curve in these replicates at all checkpoints, (R, C).

    With ``per_silo`` it is divided by the number of silos.
    """
    rows: np.ndarray = curve.group_regret[[curve.replicates.index(r) for r in replicates]]
    return rows / (curve.silos if per_silo else 1)


def per_silo(results: Results) -> bool:
    """Return True if curves are compared by regret per silo, as the spec's figure table says."""
    return results.figure.get("y") == "per-silo"


def shared_replicates(curves: Sequence[CurveResult]) -> list[int]:
    """Return the replicates that all these curves have finished."""
    return sorted(set.intersection(*(set(curve.replicates) for curve in curves)))


def difference(first: CurveResult, second: CurveResult, per_silo: bool = False) -> Difference:
    """Return the final regret of ``first`` minus that of ``second``, averaged over replicates.

    Only the replicates that both curves have are used. With ``per_silo`` each regret is divided by
    its curve's number of silos.
    """
    shared = shared_replicates((first, second))
    if not shared:
        return Difference(first.label, second.label, math.nan, math.nan)
    a, b = (regrets(curve, shared, per_silo)[:, -1] for curve in (first, second))
    return Difference(
        first.label,
        second.label,
        *mean_and_error(a - b),
        float(a.mean()),
        float(b.mean()),
        len(shared),
    )


def is_baseline(results: Results, curve: CurveResult) -> bool:
    """Return True if a curve is a baseline, with which other curves are compared.

    It is one if ``figure.baseline`` names it. By default, curves of silos that share nothing are.
    """
    named = results.figure.get("baseline")
    return curve.algorithm == LOCAL_SYSTEM if named is None else curve.label == named


def baseline_of(results: Results, curve: CurveResult) -> CurveResult | None:
    """Return the curve that a curve is compared with; None if there is none.

    This is the curve that ``figure.baseline`` names, or by default a curve of silos that share
    nothing (``local-linucb``). Both curves must have the same number of silos and of features. Of
    several such curves, the one of least regret is returned. A baseline is compared with no curve.
    """
    if is_baseline(results, curve):
        return None
    candidates = [
        candidate
        for candidate in results.curves
        if is_baseline(results, candidate)
        and (candidate.silos, candidate.dimension) == (curve.silos, curve.dimension)
    ]
    return min(candidates, key=lambda candidate: float(candidate.mean[-1]), default=None)


def baseline_differences(results: Results) -> list[Difference | None]:
    """Return the difference of every curve to its baseline; None for curves without one.

    Regret is regret per silo if the figure draws regret per silo.
    """
    pairs = ((curve, baseline_of(results, curve)) for curve in results.curves)
    divided = per_silo(results)
    return [None if base is None else difference(curve, base, divided) for curve, base in pairs]
