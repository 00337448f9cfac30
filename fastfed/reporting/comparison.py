"""Compare two output folders: regret, privacy and communication of their curves.

If two experiments simulated the same rounds (environment, seed, silos, horizon), differences are
computed replicate by replicate. Otherwise the two means are independent, and their variances add
(Welch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fastfed._validate import InputError, with_example
from fastfed.reporting.figure import Source, experiment_folders, read_source
from fastfed.results.identity import OF_CURVES
from fastfed.results.paired import STANDARD_ERRORS, mean_and_error, regrets
from fastfed.results.results import CurveResult

#: Keys of an identity that must be equal for two runs to have the same users and rewards.
SAME_ROUNDS = ("semantics", "environment", "seed", "silos", "horizon")

#: Keys of a certificate that must be equal for two guarantees to be the same.
PRIVACY = ("claimed", "exact", "status", "unit", "relation", "model")

LOWER, HIGHER, NONE, UNKNOWN = (
    "lower",
    "higher",
    "no difference beyond two standard errors",
    "fewer than two replicates",
)


@dataclass(frozen=True)
class CurvePair:
    """A curve of both experiments, and the mean and error of B - A in final group regret."""

    a: CurveResult
    b: CurveResult
    mean: float
    stderr: float

    @property
    def label(self) -> str:
        """Return the label of the curve."""
        return self.a.label

    @property
    def verdict(self) -> str:
        """Return LOWER or HIGHER if B has less or more regret, by more than two standard errors.

        Otherwise return NONE, or UNKNOWN without a standard error.
        """
        if math.isnan(self.stderr):
            return UNKNOWN
        if abs(self.mean) <= STANDARD_ERRORS * self.stderr:
            return NONE
        return LOWER if self.mean < 0.0 else HIGHER

    @property
    def same_privacy(self) -> bool:
        """Return True if both certificates state the same guarantee."""
        return _privacy(self.a) == _privacy(self.b)

    def to_builtins(self) -> dict[str, Any]:
        """Return the pair as plain data, for JSON."""
        return {
            "label": self.label,
            "a": _side(self.a),
            "b": _side(self.b),
            "difference": {"mean": self.mean, "stderr": self.stderr},
            "verdict": self.verdict,
            "same_privacy": self.same_privacy,
        }


@dataclass(frozen=True)
class SpecDifference:
    """A key of the specs of A and B with different values ``a`` and ``b``; None if missing."""

    key: str
    a: Any
    b: Any

    def to_builtins(self) -> dict[str, Any]:
        """Return the difference as plain data, for JSON."""
        return {"key": self.key, "a": self.a, "b": self.b}


@dataclass(frozen=True)
class Comparison:
    """Comparison of two experiments, curve by curve.

    ``unequal`` are the keys of SAME_ROUNDS that differ. If no key differs, differences are paired.
    """

    name: str
    a: Source
    b: Source
    unequal: tuple[str, ...]
    curves: tuple[CurvePair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    spec: tuple[SpecDifference, ...]

    @property
    def paired(self) -> bool:
        """Return True if differences are computed replicate by replicate."""
        return not self.unequal

    def to_builtins(self) -> dict[str, Any]:
        """Return the comparison as plain data, as in the JSON of ``fastfed compare``."""
        return {
            "name": self.name,
            "paired": self.paired,
            "unequal": list(self.unequal),
            "curves": [c.to_builtins() for c in self.curves],
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "spec": [d.to_builtins() for d in self.spec],
        }


@dataclass(frozen=True)
class FolderComparison:
    """All comparisons of two folders, and the names of experiments that only one folder holds."""

    comparisons: tuple[Comparison, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]

    def to_builtins(self) -> dict[str, Any]:
        """Return the comparisons as plain data, which is the JSON of ``fastfed compare``."""
        return {
            "experiments": [c.to_builtins() for c in self.comparisons],
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
        }


@with_example('fastfed.compare("before", "after")')
def compare(a: str | Path, b: str | Path) -> FolderComparison:
    """Compare the experiments of two output folders.

    Experiments with the same name are compared. If each folder holds a single experiment, these
    two are compared, whatever their names. Within them, curves with the same label are compared.
    Differences are paired, replicate by replicate, if both experiments simulated the same rounds
    (environment, seed, silos, horizon).

    Parameters
    ----------
    a, b : str or Path
        Output folders.

    Returns
    -------
    FolderComparison
        For each experiment and curve: B - A in final group regret with its standard error, and
        both guarantees. For each experiment also the keys of the spec that differ.

    Raises
    ------
    InputError
        If a folder holds no results, or there is nothing to compare.
    """
    left, right = _experiments(a), _experiments(b)
    if len(left) == len(right) == 1:
        (first,), (second,) = left.values(), right.values()
        return FolderComparison((compare_experiments(first, second),), (), ())
    shared = [name for name in left if name in right]
    if not shared:
        raise InputError(
            f"{a} and {b} hold no experiment of the same name: "
            f"{_quoted_names(left)} and {_quoted_names(right)}"
        )
    return FolderComparison(
        tuple(compare_experiments(left[name], right[name]) for name in shared),
        tuple(name for name in left if name not in right),
        tuple(name for name in right if name not in left),
    )


def _experiments(folder: str | Path) -> dict[str, Source]:
    """Return the sources of the experiments of a folder, by name."""
    experiments: dict[str, Source] = {}
    for path in experiment_folders(folder):
        source = read_source(path)
        name = source.results.experiment
        if name in experiments:
            raise InputError(f'{folder} holds "{name}" twice; name the folder of one of them')
        experiments[name] = source
    return experiments


def _quoted_names(experiments: dict[str, Source]) -> str:
    """Return the names of experiments for an error message."""
    return ", ".join(f'"{name}"' for name in experiments)


def compare_experiments(a: Source, b: Source) -> Comparison:
    """Compare two experiments, curve by curve."""
    unequal = tuple(k for k in SAME_ROUNDS if a.identity.get(k) != b.identity.get(k))
    left = {c.label: c for c in a.results.curves}
    right = {c.label: c for c in b.results.curves}
    shared = [label for label in left if label in right]
    return Comparison(
        name=a.results.experiment,
        a=a,
        b=b,
        unequal=unequal,
        curves=tuple(
            _pair(
                left[n],
                right[n],
                paired=not unequal and _sizes(a.identity, n) == _sizes(b.identity, n),
            )
            for n in shared
        ),
        only_in_a=tuple(n for n in left if n not in right),
        only_in_b=tuple(n for n in right if n not in left),
        spec=tuple(_spec_differences(a.identity, b.identity)),
    )


def _sizes(identity: dict[str, Any], label: str) -> dict[str, Any]:
    """Return the number of silos and the environment keys that a curve sets, with their values.

    ``identity`` holds all keys that determine the results of the curve's experiment. Two curves of
    different experiments have the same users only if the returned values are equal.
    """
    (curve,) = (c for c in identity["curves"] if c["label"] == label)
    return {k: curve[k] for k in ("silos", *identity["environment"]) if k in curve}


def _pair(a: CurveResult, b: CurveResult, *, paired: bool) -> CurvePair:
    """Return the pair of a curve in A and in B, with the difference of final regrets.

    Replicates are compared one by one if ``paired``. Otherwise the variances of the means add.
    """
    if not paired:
        first, second = a.final(), b.final()
        stderr = math.hypot(first["stderr"], second["stderr"])
        return CurvePair(a, b, second["mean"] - first["mean"], stderr)
    shared = sorted(set(a.replicates) & set(b.replicates))
    if not shared:
        return CurvePair(a, b, math.nan, math.nan)
    return CurvePair(a, b, *mean_and_error((regrets(b, shared) - regrets(a, shared))[:, -1]))


def _privacy(curve: CurveResult) -> dict[str, Any]:
    """Return the fields of a curve's certificate that describe the guarantee."""
    return {key: curve.certificate[key] for key in PRIVACY}


def _side(curve: CurveResult) -> dict[str, Any]:
    """Return final regret, communication and guarantee of a curve as plain data, for JSON."""
    return {
        "group_regret": curve.final(),
        "replicates": len(curve.replicates),
        "synchronisations": curve.synchronisations,
        "bytes_up": curve.bytes_up,
        "bytes_down": curve.bytes_down,
        **_privacy(curve),
    }


def _spec_differences(a: dict[str, Any], b: dict[str, Any]) -> list[SpecDifference]:
    """Return the keys whose values differ between two experiments, given by their identities.

    An identity holds all keys that determine an experiment's results. Curves that only one
    experiment has are left out.
    """
    values_a, values_b = _flat(a), _flat(b)
    shared = {c["label"] for c in a["curves"]} & {c["label"] for c in b["curves"]}
    differences = []
    for (label, key), first in values_a.items():
        if label is None or label in shared:
            second = values_b.get((label, key))
            if first != second:
                differences.append(SpecDifference(_name(label, key), first, second))
    for (label, key), second in values_b.items():
        if (label, key) not in values_a and (label is None or label in shared):
            differences.append(SpecDifference(_name(label, key), None, second))
    return differences


def _name(label: str | None, key: str) -> str:
    """Return the name of a key for a table, with the label of its curve if it belongs to one."""
    return key if label is None else f'curve "{label}".{key}'


def _flat(identity: dict[str, Any]) -> dict[tuple[str | None, str], Any]:
    """Return (label of the curve or None, dotted key) -> value, for all values of an identity."""
    flat: dict[tuple[str | None, str], Any] = {}

    def add(label: str | None, prefix: str, table: dict[str, Any]) -> None:
        """Add the values of a table, and of tables inside it, under dotted keys."""
        for key, value in table.items():
            if isinstance(value, dict):
                add(label, f"{prefix}{key}.", value)
            else:
                flat[label, f"{prefix}{key}"] = value

    add(None, "", {k: v for k, v in identity.items() if k not in OF_CURVES})
    for curve in identity["curves"]:
        of_curve = {k: identity.get(k, {}).get(curve["label"]) for k in OF_CURVES[1:]}
        add(curve["label"], "", {k: v for k, v in of_curve.items() if v is not None})
        add(curve["label"], "", {k: v for k, v in curve.items() if k != "label"})
    return flat


def shown(value: Any) -> str:
    """Format a value of a spec for a table."""
    return "-" if value is None else msgspec.json.encode(value).decode()
