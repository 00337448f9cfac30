"""The numbers of plain data, checked by reflection before anything is accounted for.

A comparison with NaN is false and an overflow is infinite, so that a bound or a standard deviation
that is no number may pass for a harmless one. Plans, mechanisms and claims are plain data that
anybody may change: `check_numbers` looks at every field of all of them, also of those that are
added later.
"""

from __future__ import annotations

import inspect
import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fastfed._validate import InputError, integer, number, show

#: The largest integer up to which every integer is a float64.
MOST = 2**53
#: Squares of numbers of this size, and of its inverse, stay within float64.
_LARGEST = 1e150

#: Fields whose numbers may be below 0: ends of intervals, and terms of radii.
_SIGNED = frozenset(
    ("low", "high", "centre", "reward_range", "reward_limit", "offset", "base", "allowance")
)
#: Fields that may be infinite: the account of raw sums, a smoothness that nobody knows, and the
#: regularizer in a radius that does not grow.
_UNBOUNDED = frozenset(("exact", "smoothness", "log_lambda"))
#: Probabilities, which may be below the inverse of `_LARGEST`.
_TINY = frozenset(("delta", "delta_by_silo", "exact"))
#: Sizes that are 1 at least.
_SIZES = frozenset(
    (
        *("silos", "horizon", "dimension", "experts", "gamma"),
        *("initial", "phase_length", "max_participations", "room", "silos_met"),
    )
)

_KINDS = re.compile(r"\b(ndarray|float|int|bool|str)\b")


class _Field(NamedTuple):
    """A declared field: of numbers, texts or truth values, or of other data where kind is "".

    depth: tuples inside each other that hold them. length: of that tuple, where it is declared.
    """

    name: str
    kind: str
    depth: int
    length: int | None
    optional: bool


@lru_cache(maxsize=256)
def _declared(kind: type) -> tuple[_Field, ...]:
    """List the fields of a class of plain data."""
    names: tuple[str, ...] = tuple(getattr(kind, "__dataclass_fields__", ()))
    names = names or getattr(kind, "__struct_fields__", ()) or getattr(kind, "_fields", ())
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            plain = isinstance(annotation, type) and not hasattr(annotation, "__args__")
            texts[name] = annotation.__name__ if plain else str(annotation)
    found = []
    for name in names:
        text = texts.get(name, "")
        leaves = _KINDS.findall(text) if "Callable" not in text else []
        depth = text.count("tuple[")
        length = len(leaves) if depth == 1 and "..." not in text else None
        found.append(_Field(name, leaves[0] if leaves else "", depth, length, "None" in text))
    return tuple(found)


def check_numbers(data: Any, where: str = "") -> None:
    """Refuse plain data with a field that holds no such value as the field is declared for.

    Parameters
    ----------
    data : dataclass, msgspec.Struct or NamedTuple
        Its fields, and theirs: integers from 0 to 2^53, finite floats of a size whose square is a
        float64, arrays of finite floats, truth values and texts, and tuples of these.
    where : str
        The field that the data are, for messages.

    Raises
    ------
    InputError
        For a value of another type, one that is not finite, or out of the field's range.
    """
    for field in _declared(data.__class__):
        path = f"{where}.{field.name}" if where else field.name
        value = getattr(data, field.name)
        if value is None and field.optional:
            continue
        if field.kind:
            if field.length is not None and not (
                isinstance(value, tuple) and len(value) == field.length
            ):
                raise InputError(f"{path} must be {field.length} values, got {show(value)}")
            _check_field(path, field.name, value, field.kind, field.depth)
        else:
            for inner in value if type(value) is tuple else (value,):
                check_numbers(inner, path)


def _check_field(path: str, name: str, value: Any, kind: str, depth: int) -> None:
    """Check one value, or all of a tuple, of a field that holds numbers, texts or truth values."""
    if depth:
        if not isinstance(value, tuple):
            raise InputError(f"{path} must be a tuple, got {show(value)}")
        for inner in value:
            _check_field(path, name, inner, kind, depth - 1)
    elif kind == "float":
        _check_float(path, name, value)
    elif kind == "int":
        integer(path, value, at_least=1 if name in _SIZES else 0, at_most=MOST)
    elif kind == "ndarray":
        if not (isinstance(value, np.ndarray) and value.dtype == np.float64):
            raise InputError(f"{path} must be an array of floats, got {show(value)}")
        if not (np.isfinite(value) | ((value == math.inf) & (name in _UNBOUNDED))).all():
            raise InputError(f"{path} must be finite, got {show(value)}")
    elif not isinstance(value, (bool, np.bool_) if kind == "bool" else str):
        wanted = "true or false" if kind == "bool" else "a text"
        raise InputError(f"{path} must be {wanted}, got {show(value)}")


def _check_float(path: str, name: str, value: Any) -> None:
    """Check one number of a field."""
    if name in _UNBOUNDED and value == math.inf:
        return
    size = number(path, value, at_least=None if name in _SIGNED else 0.0)
    least = 0.0 if name in _TINY else 1.0 / _LARGEST
    if size != 0.0 and not least <= abs(size) <= _LARGEST:
        raise InputError(
            f"{path} must be 0 or of a size from {1.0 / _LARGEST:g} to {_LARGEST:g}, "
            f"got {show(value)}"
        )
