"""Plans as canonical msgpack: every number of a plan as bytes, and back, without pickle.

One plan has one encoding: fields in their order, floats as 64 bits, arrays as shape and bytes. Only
the classes listed here are made, and each field must be of its declared type.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import InputError, show
from fastfed.bandits.problem import ProblemSpec
from fastfed.experts import ProblemSpec as ExpertProblem
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import Bounds, FrankWolfePlan, Phase
from fastfed.privacy.account import Claim
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.sparse_vector import SparseSwitching
from fastfed.privacy.mechanisms.winsorized import WinsorizedMean
from fastfed.privacy.releases.prefix_sums import Factor
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan, Radius
from fastfed.protocols.protocol import Protocol
from fastfed.protocols.serverless import PhasePlan

#: Everything that a plan of a deployment is made of.
CLASSES: dict[str, type] = {
    found.__name__: found
    for found in (
        Bounds, Budget, Claim, Clip, Condition, Encoding, FrankWolfePlan, NoiseStd, Phase,
        PhasePlan, Plan, ProblemSpec, Protocol, Radius, SecureSum, SparseSwitching,
        SparseVectorPlan, WinsorizedMean,
    )
}  # fmt: skip
# Two rooms have a class of this name.
CLASSES["ExpertProblem"] = ExpertProblem
_NAMES = {found: name for name, found in CLASSES.items()}
_MOST = 2**63
#: Last fields that were added later, and stand in the bytes only where they say something: plans of
#: before keep their bytes.
_ADDED: dict[type, str] = {Claim: "delta_by_silo", Plan: "drawn_once"}


def encode(value: Any) -> bytes:
    """The canonical bytes of a plan, or of a part of one."""
    return msgspec.msgpack.encode(_plain(value))


def decode(data: bytes) -> Any:
    """What `encode` was given; InputError for anything that it does not give."""
    try:
        made = _made(msgspec.msgpack.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise InputError(f"the plan's numbers cannot be read ({error})") from None
    if encode(made) != data:
        raise InputError("the plan's numbers are not in canonical form")
    return made


def _plain(value: Any) -> Any:
    """A value as nested lists that begin with a tag, and as plain scalars."""
    if value is None or isinstance(value, bool | str | float):
        return float(value) if isinstance(value, float) else value
    if isinstance(value, int | np.integer):
        whole = int(value)
        return whole if -_MOST <= whole < _MOST else ["int", str(whole)]
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, tuple) and type(value) not in _NAMES:
        return ["tuple", *map(_plain, value)]
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return ["array", list(value.shape), value.astype("<f8").tobytes()]
    if isinstance(value, Factor):
        return ["Factor", _plain(value.matrix)]
    name = _NAMES.get(type(value))
    if name is not None:
        fields = list(_fields(type(value)))
        if type(value) in _ADDED and not getattr(value, _ADDED[type(value)]):
            fields.pop()
        return [name, *(_plain(getattr(value, field)) for field in fields)]
    raise InputError(f"a plan of a deployment cannot hold a {type(value).__name__}")


def _fields(kind: type) -> dict[str, str]:
    """Names and declared types of a class, in order."""
    if dataclasses.is_dataclass(kind):
        return {field.name: str(field.type) for field in dataclasses.fields(kind)}
    if issubclass(kind, tuple):
        # A NamedTuple keeps names of types as references.
        said = inspect.get_annotations(kind)
        return {name: getattr(each, "__forward_arg__", str(each)) for name, each in said.items()}
    names: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    types: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        types |= inspect.get_annotations(base)
    return {name: str(types[name]) for name in names}


def _made(plain: Any) -> Any:
    """The value of nested lists."""
    if not isinstance(plain, list):
        if isinstance(plain, dict | bytes):
            raise InputError(f"the plan's numbers hold {show(plain)}, which no plan does")
        return plain
    tag, *rest = plain or [""]
    if tag == "int":
        (text,) = rest if len(rest) == 1 else ("",)
        if not isinstance(text, str) or not re.fullmatch(r"-?[1-9][0-9]{18,200}", text):
            raise InputError(f"the plan's numbers hold no integer {show(text)}")
        return int(text)
    if tag == "tuple":
        return tuple(map(_made, rest))
    if tag == "array":
        return _array(*rest) if len(rest) == 2 else _array(None, None)
    if tag == "Factor" and len(rest) == 1:
        return Factor(_made(rest[0]))
    kind = CLASSES.get(tag) if isinstance(tag, str) else None
    if kind is None:
        raise InputError(f"the plan's numbers hold a {show(tag)}, which no plan does")
    declared = _fields(kind)
    if kind in _ADDED and len(rest) == len(declared) - 1:
        del declared[_ADDED[kind]]
    if len(rest) != len(declared):
        raise InputError(f"a {tag} has {len(declared)} fields, the plan's has {len(rest)}")
    values = {}
    for (name, wanted), each in zip(declared.items(), rest, strict=True):
        values[name] = value = _made(each)
        if not fits(value, wanted):
            raise InputError(f"{tag}.{name} must be {wanted}, got {show(value)}")
    return kind(**values)


def _array(shape: Any, data: Any) -> np.ndarray:
    """An array of float64."""
    whole = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or not isinstance(data, bytes) or len(data) != 8 * int(np.prod(shape)):
        raise InputError("the plan's numbers hold an array whose shape is not that of its bytes")
    made = np.frombuffer(data, dtype="<f8").astype(np.float64).reshape(shape)
    made.flags.writeable = False
    return made


_SIMPLE: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "int": int,
    "float": (float, int),
    "str": str,
    "None": type(None),
    "np.ndarray": np.ndarray,
    # The class in a plan; an alias of tuples in a secure sum, whose own checks follow.
    "Factor": (Factor, tuple),
    # Aliases of privacy.mechanisms.secure_sum.
    "Coins": tuple,
}


def fits(value: Any, declared: str) -> bool:
    """True if a value is of a type as it is written in a class: names, unions and tuples."""
    options = _split(declared, "|")
    if len(options) > 1:
        return any(fits(value, option) for option in options)
    (text,) = options
    inside = re.fullmatch(r"tuple\[(.*)\]", text)
    if inside:
        parts = _split(inside[1], ",")
        if not isinstance(value, tuple):
            return False
        if parts[-1] == "...":
            return all(fits(each, parts[0]) for each in value)
        return len(value) == len(parts) and all(map(fits, value, parts))
    if text == "float" or text == "int":
        return isinstance(value, _SIMPLE[text]) and not isinstance(value, bool)
    kind = CLASSES.get(text) or _SIMPLE.get(text)
    # Names that are not known, of scores and triggers, can only be None here.
    return value is None if kind is None else isinstance(value, kind)


def _split(text: str, mark: str) -> list[str]:
    """Parts of a type between marks that are in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == mark and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]
