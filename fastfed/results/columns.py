"""Curves as tidy columns: one row per curve, per checkpoint, or per replicate and checkpoint.

Names are those of the JSON of ``fastfed results``; a pair such as {"mean", "stderr"} becomes two
columns, ``group_regret_mean`` and ``group_regret_stderr``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError, choice
from fastfed.results.counts import means

if TYPE_CHECKING:
    from fastfed.results.results import CurveResult

LEVELS = ("summary", "curves", "replicates")
#: What is counted beside regret and messages, by name; a curve that does not count it has none.
EVENTS = ("indefinite", "clipped_features", "clipped_rewards", "switches", "switches_spent")
REGRETS = ("group_regret", "per_silo_regret", "time_average_regret")
NO_PANDAS = (
    'to_frame needs pandas, which is not installed: pip install "fastfed[export]" '
    "(to_records needs nothing)"
)

#: By name: a list of plain values, or an array of numbers, NaN where nothing is known.
Columns = dict[str, list[Any] | np.ndarray]


def columns(curves: Iterable[CurveResult], level: str) -> Columns:
    """The columns of all curves one below the other."""
    choice("level", level, LEVELS)
    parts = [_BY_LEVEL[level](curve) for curve in curves]
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _below([_column(part, name) for part in parts]) for name in names}


def _column(part: Columns, name: str) -> list[Any] | np.ndarray:
    # Numbers alone are missing in some curves: bounds.
    return part[name] if name in part else np.full(len(part["label"]), math.nan)


def _below(parts: list[list[Any] | np.ndarray]) -> list[Any] | np.ndarray:
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [value for part in parts for value in part]


def records(columns: Columns) -> list[dict[str, Any]]:
    """The rows of columns as dicts of plain values, None where nothing is known."""
    plain = [
        [_known(v) for v in (values.tolist() if isinstance(values, np.ndarray) else values)]
        for values in columns.values()
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*plain, strict=True)]


def frame(columns: Columns) -> Any:
    """The columns as a pandas DataFrame, NaN where nothing is known; InputError without pandas."""
    try:
        import pandas
    except ImportError:
        raise InputError(NO_PANDAS) from None
    # Text is always known: a list with gaps is one of numbers.
    return pandas.DataFrame(
        {
            name: np.array(values, np.float64)
            if isinstance(values, list) and None in values
            else values
            for name, values in columns.items()
        }
    )


def summary(curve: CurveResult) -> dict[str, Any]:
    """The one row of a curve: final values, what was sent, and privacy."""
    values = curve.to_builtins()
    certificate = curve.certificate
    claimed, exact = certificate["claimed"] or {}, certificate["exact"] or {}
    names = ("label", "algorithm", "protocol", "silos", "dimension", "replicates")
    record = {name: values[name] for name in names}
    for name in REGRETS:
        record[f"{name}_mean"] = values[name]["mean"]
        record[f"{name}_stderr"] = values[name]["stderr"]
    return {
        **record,
        "claimed_epsilon": claimed.get("epsilon"),
        "claimed_delta": claimed.get("delta"),
        "exact_epsilon": exact.get("epsilon"),
        "exact_delta": exact.get("delta"),
        "privacy_status": certificate["status"],
        "privacy_unit": certificate["unit"],
        "privacy_relation": certificate["relation"],
        "synchronisations": curve.synchronisations,
        "bits_up": curve.bits_up,
        "bits_down": curve.bits_down,
        "bytes_up": curve.bytes_up,
        "bytes_down": curve.bytes_down,
        **{event: curve.events.get(event) for event in EVENTS},
        "agent_rounds_per_second": curve.agent_rounds_per_second,
    }


def _summary(curve: CurveResult) -> Columns:
    return {name: [value] for name, value in summary(curve).items()}


def _curves(curve: CurveResult) -> Columns:
    """Means and standard errors over replicates, at the checkpoints."""
    found = _who(curve, len(curve.rounds))
    found["round"] = curve.rounds
    for name, divisor in _divisors(curve).items():
        found[f"{name}_mean"] = curve.mean / divisor
        found[f"{name}_stderr"] = curve.stderr / divisor
    found |= {name: np.array(means(counts)) for name, counts in curve.counts.items()}
    return found | {f"bound_{name}": np.array(values) for name, values in curve.bounds.items()}


def _replicates(curve: CurveResult) -> Columns:
    """What every replicate had at every checkpoint."""
    many, each = curve.group_regret.shape
    found = _who(curve, many * each)
    found["replicate"] = np.repeat(curve.replicates, each)
    found["round"] = np.tile(curve.rounds, many)
    for name, divisor in _divisors(curve).items():
        found[name] = (curve.group_regret / divisor).ravel()
    return found | {name: counts.ravel() for name, counts in curve.counts.items()}


_BY_LEVEL = {"summary": _summary, "curves": _curves, "replicates": _replicates}


def _who(curve: CurveResult, rows: int) -> Columns:
    return {name: [getattr(curve, name)] * rows for name in ("label", "algorithm", "protocol")}


def _divisors(curve: CurveResult) -> dict[str, Any]:
    """What group regret is divided by; the time average is over the rounds so far."""
    return dict(zip(REGRETS, (1, curve.silos, curve.rounds), strict=True))


def _known(value: Any) -> Any:
    """Value, or None where it is NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
