"""The numbers of a plan by name: what a plan file stores of a plan, and how they are read again.

A plan file holds choices, and every party derives the plan from them. Two linear algebra libraries
may round differently, so the numbers of the party that compiled the plan are stored too. They are
executed, once each of them has been compared with the derived one. Text is never stored.
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

#: The largest relative difference between a stored and a derived number: of a scalar relative to
#: itself, of an array relative to its largest entry. That is 2^32 units in the last place. The
#: optimal factor is rounded to a grid of 2^-24, and libraries may round to neighbouring points.
ROUNDING = 2.0**-20
#: Objects that hold choices as they are, so that their numbers must be equal.
CHOSEN = frozenset({"clip", "budget"})
#: Fields whose integers are rounded real numbers, and by how much they may differ at least.
ROUNDED = {"factor": 1, "trials": 2}
_DIGITS = re.compile(r"-?[1-9][0-9]{18,200}")

#: Returns a number to use in the place of a named one.
Change = Callable[[str, Any], Any]


def numbers_of(plan: Any) -> dict[str, Any]:
    """The numbers of a plan by name, as plain data.

    Parameters
    ----------
    plan : Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan

    Returns
    -------
    dict
        Names such as ``noise_std.bias``. Arrays are bytes (float64, little endian), tuples of
        numbers are lists, integers of more than 64 bits are text.

    Raises
    ------
    InputError
        For a plan that holds something else than numbers, text and such objects.
    """
    found: dict[str, Any] = {}

    def collect(name: str, value: Any) -> Any:
        found[name] = _plain(value)
        return value

    _changed(plan, "", collect)
    return found


def executed(derived: Any, stored: Mapping[str, Any]) -> Any:
    """The derived plan with the stored numbers.

    Parameters
    ----------
    derived : Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan
        The plan that the choices of a plan file give here.
    stored : mapping
        Numbers by name, as `numbers_of` returned them where the plan was compiled.

    Returns
    -------
    Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan
        Its arrays are read-only.

    Raises
    ------
    InputError
        For a number that is missing, unknown, or not the derived one within `ROUNDING`.
    """
    left = dict(stored)

    def take(name: str, value: Any) -> Any:
        if name not in left:
            raise InputError(f"the plan file has no number {name}; compile the plan again")
        return _read(name, left.pop(name), value)

    made = _changed(derived, "", take)
    if left:
        raise InputError(f"the plan file has a number {show(min(left))}, which its plan does not")
    return made


def _changed(value: Any, name: str, change: Change) -> Any:
    """The value with each of its numbers replaced by ``change(name, number)``."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.ndarray | int | float | np.number) or _is_row(value):
        return change(name, value)
    if type(value) is tuple:
        items = [_changed(each, f"{name}[{i}]", change) for i, each in enumerate(value)]
        return value if all(map(operator.is_, items, value)) else tuple(items)
    names = _fields(value)
    before = [getattr(value, field) for field in names]
    prefix = f"{name}." if name else ""
    after = [_changed(b, prefix + field, change) for field, b in zip(names, before, strict=True)]
    if all(map(operator.is_, after, before)):
        return value
    # The class checks its fields again.
    return type(value)(**dict(zip(names, after, strict=True)))


def _is_row(value: Any) -> bool:
    """True for a tuple of numbers, which is stored as one list."""
    return type(value) is tuple and bool(value) and all(type(v) in (int, float) for v in value)


def _fields(value: Any) -> tuple[str, ...]:
    """Names of the fields of an object of a plan, in order."""
    if isinstance(value, Factor):
        return ("matrix",)
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value) if field.init)
    for attribute in ("__struct_fields__", "_fields"):
        if (names := getattr(value, attribute, None)) is not None:
            return tuple(names)
    raise InputError(f"a plan of a deployment cannot hold a {type(value).__name__}")


def _plain(value: Any) -> Any:
    """A number, a tuple of numbers, or an array, as it is stored."""
    if isinstance(value, np.ndarray):
        if value.dtype != np.float64:
            raise InputError(f"a plan of a deployment cannot hold an array of {value.dtype}")
        return value.astype("<f8").tobytes()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, int | np.integer):
        whole = int(value)
        return whole if -(2**63) <= whole < 2**63 else str(whole)
    return float(value)


def _read(name: str, said: Any, derived: Any) -> Any:
    """A stored number, if it is the derived one but for rounding."""
    found: Any = None
    if isinstance(derived, np.ndarray):
        found = _array(said, derived)
    elif isinstance(derived, tuple):
        if isinstance(said, list) and len(said) == len(derived):
            items = (_scalar(name, s, d, derived) for s, d in zip(said, derived, strict=True))
            found = tuple(items)
            found = None if None in found else found
    else:
        found = _scalar(name, said, derived, (derived,))
    if found is None:
        given = np.asarray(derived).tolist()
        if isinstance(derived, np.ndarray) and isinstance(said, bytes) and not len(said) % 8:
            said = np.frombuffer(said, dtype="<f8").tolist()
        raise InputError(
            f"the plan file's {name} is {show(said)}, but its choices give {show(given)}"
        )
    return derived if np.array_equal(found, derived) else found


def _scalar(name: str, said: Any, derived: Any, row: tuple[Any, ...]) -> int | float | None:
    """A stored number as the type of the derived one; None if it is another number."""
    if isinstance(derived, float | np.floating):
        if type(said) is not float or math.isnan(said):
            return None
        if said == derived:
            return said
        limit = ROUNDING * max(abs(each) for each in row)
        near = abs(said - derived) <= limit < math.inf and CHOSEN.isdisjoint(name.split("."))
        return said if near else None
    if isinstance(said, str):
        said = int(said) if _DIGITS.fullmatch(said) else None
    if type(said) is not int:
        return None
    steps = ROUNDED.get(name.rpartition(".")[2].partition("[")[0], 0)
    slack = max(steps, int(ROUNDING * abs(int(derived)))) if steps else 0
    return said if abs(said - int(derived)) <= slack else None


def _array(said: Any, derived: np.ndarray) -> np.ndarray | None:
    """A stored array in the shape of the derived one, read-only; None if it is another array."""
    if not isinstance(said, bytes) or len(said) != 8 * derived.size:
        return None
    found = np.frombuffer(said, dtype="<f8").reshape(derived.shape) + 0.0
    limit = ROUNDING * float(np.abs(derived).max(initial=0.0))
    if not np.isfinite(found).all() or (np.abs(found - derived) > limit).any():
        return None
    return frozen(found)
