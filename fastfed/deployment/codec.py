"""Encode and decode the numbers of a plan, which a plan file stores by name.

A plan file contains choices, from which every party derives the plan. Two linear algebra libraries
may round differently, so the file also stores the plan's numbers (noise, regularizers, radii ...)
as the party that compiled the plan computed them. Each party compares the stored numbers with the
numbers that it derives, and then uses the stored numbers. Texts of the plan are not stored.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fastfed._validate import InputError, frozen, show
from fastfed.privacy.releases.prefix_sums import Factor

#: Largest allowed difference between a stored and a derived number, relative to the number or, in
#: an array, to the largest entry. The value is 2^32 units in the last place, because the optimal
#: factor is rounded to a grid of 2^-24, and two libraries may round to neighbouring grid points.
MAX_RELATIVE_DIFFERENCE = 2.0**-20
#: Fields that are copied from the choices, so that stored and derived numbers must be equal.
COPIED_FIELDS = frozenset({"clip", "budget", "clocks"})
#: Fields whose integers are rounded real numbers -> a difference that is always allowed.
ROUNDED_FIELDS = {"factor": 1, "trials": 2}
#: Numbers that only plan files of earlier versions have, and numbers that these files lack. These
#: numbers affect which action is chosen, but nothing that leaves a silo.
RETIRED_NUMBERS = frozenset({"bonus", "tie_bonus", "allowance"})
ADDED_NUMBERS = frozenset({"ranking", "sieve_growth", "widths", "own.sieve_width"})
#: Numbers that plan files of earlier versions lack -> the value that they had in these versions.
EARLIER_VALUES = {"flips": 0}
_LONG_INTEGER = re.compile(r"-?[1-9][0-9]{18,200}")

#: Maps the name and value of a number to the number that replaces it.
Change = Callable[[str, Any], Any]


def numbers_of(plan: Any) -> dict[str, Any]:
    """Return the numbers of a plan by name, as plain data.

    Parameters
    ----------
    plan : Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan

    Returns
    -------
    dict
        Names such as ``noise_std.bias``. Arrays are bytes (float64, little endian), tuples of
        numbers are lists, and integers of more than 64 bits are text.

    Raises
    ------
    InputError
        If the plan holds objects other than numbers, arrays of float64, texts, True, False, None,
        and structs or tuples of these.
    """
    numbers: dict[str, Any] = {}

    def collect(name: str, value: Any) -> Any:
        numbers[name] = _plain(value)
        return value

    _changed(plan, "", collect)
    return numbers


def executed(derived: Any, stored: Mapping[str, Any]) -> Any:
    """Return a derived plan with its numbers replaced by the stored numbers.

    Parameters
    ----------
    derived : Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan
        The plan derived on this machine from the choices of a plan file.
    stored : mapping
        Numbers by name, as `numbers_of` returned them when the plan was compiled.

    Returns
    -------
    Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan
        The plan with read-only arrays.

    Raises
    ------
    InputError
        If a stored number is missing or unknown, or differs from the derived number by more than
        `MAX_RELATIVE_DIFFERENCE` allows.
    """
    unused = dict(stored)
    # A plan file of linear bandits lacks this number only if an earlier version wrote it. Files of
    # other plans lack it too, but have no number of RETIRED_NUMBERS or ADDED_NUMBERS.
    from_earlier = "ranking" not in stored
    if from_earlier:
        unused = {name: number for name, number in unused.items() if name not in RETIRED_NUMBERS}

    def take(name: str, value: Any) -> Any:
        """Return the stored number of this name, in place of the derived ``value``."""
        if name in unused:
            return _read(name, unused.pop(name), value)
        # A plan file of an earlier version may lack the number.
        if (from_earlier and name in ADDED_NUMBERS) or (
            name in EARLIER_VALUES and value == EARLIER_VALUES[name]
        ):
            return value
        raise InputError(f"the plan file has no number {name}; compile the plan again")

    plan = _changed(derived, "", take)
    if unused:
        raise InputError(
            f"the plan file has a number {show(min(unused))}, which is not in its plan"
        )
    return plan


def _changed(value: Any, name: str, change: Change) -> Any:
    """Return a plan, or a part of it, with each number replaced by ``change(name, number)``.

    Names are paths such as ``noise_std.bias``. If no number changes, return the same object.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.ndarray | int | float | np.number) or _is_row(value):
        return change(name, value)
    if type(value) is tuple:
        items = [_changed(item, f"{name}[{i}]", change) for i, item in enumerate(value)]
        return value if all(map(operator.is_, items, value)) else tuple(items)
    names = _fields(value)
    old_values = [getattr(value, field) for field in names]
    prefix = f"{name}." if name else ""
    new_values = [
        _changed(old_value, prefix + field, change)
        for field, old_value in zip(names, old_values, strict=True)
    ]
    if all(map(operator.is_, new_values, old_values)):
        return value
    # Create the object by its type, which checks the new fields.
    return type(value)(**dict(zip(names, new_values, strict=True)))


def _is_row(value: Any) -> bool:
    """Return True for a tuple of numbers, which is stored as one list."""
    return type(value) is tuple and bool(value) and all(type(x) in (int, float) for x in value)


def _fields(value: Any) -> tuple[str, ...]:
    """Return the names of an object's fields, in order."""
    if isinstance(value, Factor):
        return ("matrix",)
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    for attribute in ("__struct_fields__", "_fields"):
        if (names := getattr(value, attribute, None)) is not None:
            return tuple(names)
    raise InputError(f"a plan of a deployment cannot hold a {type(value).__name__}")


def _plain(value: Any) -> Any:
    """Return the stored form of a number, a tuple of numbers or an array."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.float64:
            raise InputError(f"a plan of a deployment cannot hold an array of {value.dtype}")
        return value.astype("<f8").tobytes()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int | np.integer):
        as_int = int(value)
        return as_int if -(2**63) <= as_int < 2**63 else str(as_int)
    return float(value)


def _read(name: str, stored: Any, derived: Any) -> Any:
    """Return a stored number, tuple or array, decoded and compared with the derived value.

    Raises
    ------
    InputError
        If the stored and the derived value differ by more than rounding.
    """
    decoded: Any = None
    if isinstance(derived, np.ndarray):
        decoded = _array(stored, derived)
    elif isinstance(derived, tuple):
        if isinstance(stored, list) and len(stored) == len(derived):
            items = (_scalar(name, s, d, derived) for s, d in zip(stored, derived, strict=True))
            decoded = tuple(items)
            decoded = None if None in decoded else decoded
    else:
        decoded = _scalar(name, stored, derived, (derived,))
    if decoded is None:
        derived_values = np.asarray(derived).tolist()
        if isinstance(derived, np.ndarray) and isinstance(stored, bytes) and not len(stored) % 8:
            stored = np.frombuffer(stored, dtype="<f8").tolist()
        raise InputError(
            f"the plan file's {name} is {show(stored)}, but its choices give {show(derived_values)}"
        )
    # If nothing differs, return the derived object, so that `_changed` keeps the plan's objects.
    return derived if np.array_equal(decoded, derived) else decoded


def _scalar(name: str, stored: Any, derived: Any, row: tuple[Any, ...]) -> int | float | None:
    """Return a stored number in the type of the derived number; None if they differ too much.

    Numbers of `COPIED_FIELDS` must be equal, and so must integers, except those of
    `ROUNDED_FIELDS`. Other floats may differ by `MAX_RELATIVE_DIFFERENCE`, relative to the largest
    number in ``row``, which contains all numbers of the derived number's tuple.
    """
    if isinstance(derived, float | np.floating):
        if type(stored) is not float or math.isnan(stored):
            return None
        if stored == derived:
            return stored
        limit = MAX_RELATIVE_DIFFERENCE * max(abs(entry) for entry in row)
        is_near = abs(stored - derived) <= limit < math.inf and COPIED_FIELDS.isdisjoint(
            name.split(".")
        )
        return stored if is_near else None
    if isinstance(stored, str):
        stored = int(stored) if _LONG_INTEGER.fullmatch(stored) else None
    if type(stored) is not int:
        return None
    # Integers must be equal, except those that are rounded real numbers. The field's name is the
    # last part of a path such as "noise.trials[0]".
    least_slack = ROUNDED_FIELDS.get(name.rpartition(".")[2].partition("[")[0], 0)
    slack = max(least_slack, int(MAX_RELATIVE_DIFFERENCE * abs(int(derived)))) if least_slack else 0
    return stored if abs(stored - int(derived)) <= slack else None


def _array(stored: Any, derived: np.ndarray) -> np.ndarray | None:
    """Return a stored array in the shape of ``derived``; None if the two differ too much.

    The result is read-only.
    """
    if not isinstance(stored, bytes) or len(stored) != 8 * derived.size:
        return None
    values = np.frombuffer(stored, dtype="<f8").reshape(derived.shape) + 0.0
    limit = MAX_RELATIVE_DIFFERENCE * float(np.abs(derived).max(initial=0.0))
    if not np.isfinite(values).all() or (np.abs(values - derived) > limit).any():
        return None
    return frozen(values)
