"""Checks of the numbers in plans, mechanisms and claims, before privacy is accounted for.

Plans, mechanisms and claims are plain data, which anyone can change. Every comparison with NaN is
false, and an overflow gives infinity, so an invalid bound or standard deviation could pass a simple
range check. `check_numbers` finds the fields of plain data by reflection, so fields that are added
to a class later are checked too.
"""

from __future__ import annotations

import inspect
import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fastfed._validate import InputError, integer, number, show

#: The largest integer that a field may hold. Every integer up to it is exact in float64.
MOST = 2**53
#: The largest float that a field may hold. Its square and that of its inverse are in the range of
#: float64.
_LARGEST = 1e150

#: Names of fields that may be negative: ends of intervals, and terms of confidence radii.
_SIGNED = frozenset(
    ("low", "high", "centre", "reward_range", "reward_limit", "offset", "base", "widths")
)
#: Names of fields that may be infinite: the epsilon of sums without noise, an unknown smoothness,
#: and the regularizer of a radius that does not grow.
_UNBOUNDED = frozenset(("exact", "smoothness", "log_lambda"))
#: Names of fields with probabilities or epsilons, which may be smaller than 1 / `_LARGEST`.
_TINY = frozenset(("delta", "delta_by_silo", "exact"))
#: Names of fields with sizes, which must be at least 1.
_SIZES = frozenset(
    (
        *("silos", "horizon", "dimension", "experts", "gamma"),
        *("initial", "phase_length", "max_participations", "room", "silos_met"),
    )
)

#: For the fast test of `_is_usual`: type, smallest and largest value that any field of this kind
#: may have. Texts and booleans have no range.
_USUAL: dict[str, tuple[Any, float | None, float]] = {
    "float": (float, 1.0 / _LARGEST, _LARGEST),
    "int": (int, 1, MOST),
    "bool": (bool, None, 0.0),
    "str": (str, None, 0.0),
}

#: Types of values without parts that cannot change.
_IMMUTABLE = frozenset((bool, int, float, str, bytes, np.bool_, np.int64, np.float64))

_KINDS = re.compile(r"\b(ndarray|float|int|bool|str)\b")


class _Field(NamedTuple):
    """A field of a data class, and the type of its values.

    ``kind`` is the name of the values' type, or "" if the field holds other plain data. ``depth``
    is the number of nested tuples around a value. ``length`` is the declared length of the tuple,
    if any. ``optional`` is true if the value may be None. ``usual`` is the entry of `_USUAL` for
    the fast test, if this test applies to the field.
    """

    name: str
    kind: str
    depth: int
    length: int | None
    optional: bool
    usual: tuple[Any, float | None, float] | None


@lru_cache(maxsize=256)
def _fields_of(data_class: type) -> tuple[_Field, ...]:
    """Return a `_Field` for each field of a dataclass, msgspec.Struct or NamedTuple.

    Types are read from the class's annotations.
    """
    names: tuple[str, ...] = tuple(getattr(data_class, "__dataclass_fields__", ()))
    names = (
        names or getattr(data_class, "__struct_fields__", ()) or getattr(data_class, "_fields", ())
    )
    annotation_texts: dict[str, str] = {}
    for base in reversed(data_class.__mro__):
        for name, annotation in inspect.get_annotations(base).items():
            is_simple_class = isinstance(annotation, type) and not hasattr(annotation, "__args__")
            annotation_texts[name] = annotation.__name__ if is_simple_class else str(annotation)
    fields = []
    for name in names:
        annotation_text = annotation_texts.get(name, "")
        value_types = _KINDS.findall(annotation_text) if "Callable" not in annotation_text else []
        depth = annotation_text.count("tuple[")
        length = len(value_types) if depth == 1 and "..." not in annotation_text else None
        kind = value_types[0] if value_types else ""
        usual = _USUAL.get(kind) if length is None and depth <= 1 else None
        fields.append(_Field(name, kind, depth, length, "None" in annotation_text, usual))
    return tuple(fields)


def check_numbers(data: Any, where: str = "", *, checked: set[int] | None = None) -> None:
    """Raise InputError if a value in plain data does not fit its field.

    These values are valid: integers from 0 to 2^53, floats whose square is in the range of
    float64, float64 arrays of finite numbers, booleans, strings, and tuples of these. Nested
    plain data is checked too.

    Parameters
    ----------
    data : dataclass, msgspec.Struct or NamedTuple
        The data to check.
    where : str
        Path of ``data`` in the outer data, for error messages.
    checked : set of int, optional
        Identities of inner data that are already checked. Parts of a plan share objects, which are
        checked once.

    Raises
    ------
    InputError
        For a value of a wrong type, a value that is not finite, and a value out of range.
    """
    checked = set() if checked is None else checked
    for field in _fields_of(data.__class__):
        value = getattr(data, field.name)
        if (value is None and field.optional) or _is_usual(value, field):
            continue
        # The path of a field, such as "privacy.budget.epsilon", is for messages.
        path = f"{where}.{field.name}" if where else field.name
        if field.kind:
            if field.length is not None and not (
                isinstance(value, tuple) and len(value) == field.length
            ):
                raise InputError(f"{path} must be {field.length} values, got {show(value)}")
            _check_field(path, field.name, value, field.kind, field.depth)
        else:
            for inner in value if type(value) is tuple else (value,):
                if id(inner) not in checked:
                    check_numbers(inner, path, checked=checked)
                    checked.add(id(inner))


def is_immutable(data: Any) -> bool:
    """Return True if no value in plain data can ever change.

    Texts, numbers, tuples of immutable values, and arrays whose memory is `bytes` are immutable. A
    NamedTuple, a frozen dataclass or a frozen msgspec.Struct is immutable if its fields are. So
    is an object whose class has `IMMUTABLE = True`. Everything else counts as changeable.
    """
    if data is None or type(data) in _IMMUTABLE or getattr(type(data), "IMMUTABLE", False):
        return True
    if isinstance(data, np.ndarray):
        return isinstance(data.base, bytes)
    if isinstance(data, tuple):
        return all(map(is_immutable, data))
    parameters = getattr(data, "__dataclass_params__", None) or getattr(
        data, "__struct_config__", None
    )
    return (
        parameters is not None
        and not isinstance(data, type)
        and parameters.frozen
        and all(is_immutable(getattr(data, field.name)) for field in _fields_of(data.__class__))
    )


def _is_usual(value: Any, field: _Field) -> bool:
    """Return True if a fast test shows that a value fits its field.

    False does not mean that the value is invalid: `_check_field` then decides. Most values pass.
    """
    if field.usual is None or (field.depth and type(value) is not tuple):
        return False
    usual_type, least, most = field.usual
    allows_zero = field.name not in _SIZES
    for each in value if field.depth else (value,):
        if type(each) is not usual_type:
            return False
        if not (least is None or least <= each <= most or (allows_zero and each == 0)):
            return False
    return True


def _check_field(path: str, name: str, value: Any, kind: str, depth: int) -> None:
    """Raise InputError if the value of a field does not fit the field.

    If the value is a tuple, each value in it is checked, down to ``depth`` nested tuples.
    ``path`` is the field's place in the data, such as "privacy.budget.epsilon", and ``name`` its
    last part. `_Field` explains ``kind`` and ``depth``.
    """
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
        expected = "true or false" if kind == "bool" else "a text"
        raise InputError(f"{path} must be {expected}, got {show(value)}")


def _check_float(path: str, name: str, value: Any) -> None:
    """Raise InputError for a float that is not finite or out of the range of field ``name``.

    ``path`` is the field's place in the data, for the message.
    """
    if name in _UNBOUNDED and value == math.inf:
        return
    float_value = number(path, value, at_least=None if name in _SIGNED else 0.0)
    smallest = 0.0 if name in _TINY else 1.0 / _LARGEST
    if float_value != 0.0 and not smallest <= abs(float_value) <= _LARGEST:
        raise InputError(
            f"{path} must be 0 or of a size from {1.0 / _LARGEST:g} to {_LARGEST:g}, "
            f"got {show(value)}"
        )
