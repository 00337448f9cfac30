"""What a store holds, decoded and checked: a file may be damaged, and SQLite does not see it all.

Whatever is not as a store has it raises one of ``BROKEN``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import show

#: What comes of decoding what is not what a store holds.
BROKEN = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)


class _Condition(msgspec.Struct):
    text: str
    holds: bool


class _Guarantee(msgspec.Struct):
    epsilon: float | None  # JSON has no infinity
    delta: float | None


class _Side(msgspec.Struct, kw_only=True):
    unit: str
    relation: str
    model: str
    claimed: _Guarantee | None
    exact: _Guarantee | None
    status: str
    source: str
    noise_std: dict[str, float | None]
    conditions: list[_Condition]
    caveats: list[str]


class _Certificate(_Side, kw_only=True):
    also: list[_Side] = []


def certificate(value: str) -> dict[str, Any]:
    """A certificate as plain data, with all that is read of one."""
    msgspec.json.decode(value, type=_Certificate)
    found: dict[str, Any] = msgspec.json.decode(value)
    return found


def facts(value: str, checkpoints: int) -> dict[str, Any]:
    """A curve's facts; JSON has no infinity, so an infinite bound is stored as null."""
    found: dict[str, Any] = msgspec.json.decode(value)
    for name in ("silos", "dimension"):
        if whole(found[name]) < 1:
            raise ValueError(f"{name} {show(found[name])}")
    for note in found.get("about_records", ()):
        text(note)
    for name, values in found.get("bounds", {}).items():
        values[:] = [math.inf if v is None else float(v) for v in values]
        if len(values) != checkpoints:
            raise ValueError(f"bound {name} has {len(values)} of {checkpoints} checkpoints")
    return found


def checked_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """Everything under ``meta``, if what is read of it everywhere has its type."""
    identity, rounds = meta["identity"], meta["rounds"]
    text(identity["name"])
    for number in (identity["horizon"], identity["silos"], *rounds):
        if whole(number) < 1:
            raise ValueError(f"horizon, silos and checkpoints are {show(number)}")
    for curve in identity["curves"]:
        text(curve["label"])
    if not (rounds and isinstance(meta["figure"], dict)):
        raise ValueError("checkpoints or figure are missing")
    return meta


def counted(blobs: list[Any], kind: str, checkpoints: int) -> np.ndarray:
    """(R, checkpoints): a column of cells, one of each replicate."""
    rows = [np.frombuffer(blob, kind) for blob in blobs]
    for row in rows:
        if len(row) != checkpoints or not np.isfinite(row).all():
            raise ValueError(f"a cell has no {checkpoints} finite numbers")
    return np.array(rows)


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is {show(value)}")
    return value


def whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError(f"a whole number is {show(value)}")
    return value


def finite(value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"a number is {show(value)}")
    return float(value)
