"""How a record becomes features and a reward: declared columns, actions and outcome of a plan.

A plan of raw rows has columns with ranges alone (`Schema`). A plan of records also says what the
columns of a hospital's table are (`Variable`), which actions there are (`Catalogue`), and what an
outcome is worth (`Outcome`). All of it is declared in the spec; nothing is learned from data.
Errors about a record name its column and range but no value, which is a patient's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import (
    InputError,
    array,
    boolean,
    choice,
    nearest,
    number,
    show,
)

#: Texts that mean a missing value, beside None and NaN.
MISSING = frozenset({"", "?", "NA", "N/A", "nan", "NaN", "null", "NULL"})
KINDS = ("number", "category", "flag")
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
#: The most codes of a column, and actions of a catalogue; the most features of a row.
MOST, WIDEST = 1000, 100_000
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


class Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One feature: its name, its declared range, and its unit for readers."""

    name: str
    low: float
    high: float
    unit: str = ""


# ---- values of records: errors never quote one ---------------------------------------------------


def private_number(name: str, value: object) -> float:
    """Return value as a finite number; the InputError does not quote it."""
    try:
        return number(name, value)
    except InputError:
        raise InputError(f"{name} must be a finite number, got something else") from None


def private_array(name: str, value: object, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return value as an array of finite numbers; the InputError does not quote it."""
    try:
        return array(name, value, shape=shape)
    except (InputError, RecursionError) as error:
        if str(error).startswith(f"{name} must have shape"):
            raise
        raise InputError(f"{name} must be finite numbers, got something else") from None


# ---- cells ---------------------------------------------------------------------------------------


def is_missing(value: object) -> bool:
    """True for what means that a value is not known."""
    if isinstance(value, str):
        return value.strip() in MISSING
    if isinstance(value, Decimal):
        return value.is_nan()
    # NaN alone is not equal to itself.
    return value is None or (isinstance(value, Real) and value != value)


def as_number(value: object) -> float | None:
    """A cell as a finite number, or None."""
    if isinstance(value, str):
        text = value.strip()
        found = float(text) if _DECIMAL.fullmatch(text) else math.nan
    elif isinstance(value, bool | np.bool_) or value is None:
        return None
    else:
        try:
            found = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return None
    return found if math.isfinite(found) else None


def matched(value: object, codes: Sequence[str]) -> int | None:
    """The position of a cell's code: the same text, or the same number ("4.0" is "4"), or None."""
    if isinstance(value, bool | np.bool_):
        value = "true" if value else "false"
    try:
        text = str(value).strip()
    except ValueError:  # an integer of thousands of digits
        return None
    if text in codes:
        return codes.index(text)
    wanted = as_number(value)
    if wanted is None:
        return None
    return next((i for i, code in enumerate(codes) if as_number(code) == wanted), None)


# ---- columns of records --------------------------------------------------------------------------


class Variable(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A declared column of records.

    Parameters
    ----------
    name : str
        Its key in a record.
    kind : {"number", "category", "flag"}
        A number is scaled from [low, high] to `to`, a flag is one end of `to`, a category has one
        feature for each code: 1 for its own, else 0.
    low, high : float
        Public range of a number, in `unit`.
    unit : str
        For readers.
    codes : tuple of str
        Of a category; of a flag the codes that mean yes, and then those that mean no.
    yes : int
        Of a flag: how many of the codes mean yes.
    to : (float, float)
        Range of the feature of a number or flag.
    outside : {"clip", "refuse", "missing"}
        What happens to a value that is not in the range, or not one of the codes.
    fill : float, str or None
        Declared value in the place of a missing one: a number in `unit`, or a code.
    marked : bool
        True if one more feature is 1 where the value is missing, else 0. Without `fill` the
        others are 0 then. Without either a missing value is refused.
    """

    name: str
    kind: str
    low: float
    high: float
    unit: str
    codes: tuple[str, ...]
    yes: int
    to: tuple[float, float]
    outside: str
    fill: float | str | None
    marked: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        """The features that it becomes."""
        if self.kind == "category":
            made = [Column(f"{self.name}={code}", 0.0, 1.0) for code in self.codes]
        else:
            empty = [0.0] if self.marked and self.fill is None else []
            made = [Column(self.name, min(*self.to, *empty), max(*self.to, *empty))]
        return (*made, *([Column(f"{self.name} missing", 0.0, 1.0)] if self.marked else []))

    @property
    def largest(self) -> float:
        """The largest squared norm of its features."""
        known = 1.0 if self.kind == "category" else max(end * end for end in self.to)
        if not self.marked:
            return known
        filled = 0.0 if self.fill is None else sum(v * v for v in self._known(self.fill) or ())
        return max(known, filled + 1.0)

    @property
    def range(self) -> str:
        """What its values may be, in words."""
        if self.kind == "number":
            return f"{self.low:g} to {self.high:g}" + (f" {self.unit}" if self.unit else "")
        return "one of " + ", ".join(self.codes[:20]) + (", ..." if len(self.codes) > 20 else "")

    def features(self, value: object) -> list[float]:
        """Its features for one cell.

        Raises
        ------
        InputError
            For a value that is missing or outside where that is declared to be refused, and for
            one that cannot be read.
        """
        if not is_missing(value):
            found = self._known(value)
            if found is None and self.kind == "number" and as_number(value) is None:
                raise InputError(
                    f'column "{self.name}" must be a number, {self.range}, got something else'
                )
            if found is None and self.outside == "refuse":
                raise InputError(f'column "{self.name}" must be {self.range}, got another value')
            if found is not None:
                return [*found, *([0.0] if self.marked else [])]
        if self.fill is None and not self.marked:
            raise InputError(
                f'column "{self.name}" is missing; it must be {self.range}, or the plan must '
                "declare fill or missing_flag"
            )
        filled = None if self.fill is None else self._known(self.fill)
        empty = [0.0] * (len(self.codes) if self.kind == "category" else 1)
        return [*(empty if filled is None else filled), *([1.0] if self.marked else [])]

    def _known(self, value: object) -> list[float] | None:
        """Features of a value, or None if it is outside and may not be clipped."""
        if self.kind == "number":
            found = as_number(value)
            if found is None or (self.outside != "clip" and not self.low <= found <= self.high):
                return None
            share = (min(max(found, self.low), self.high) - self.low) / (self.high - self.low)
            return [self.to[0] + (self.to[1] - self.to[0]) * share]
        at = matched(value, self.codes)
        if at is None:
            return None
        if self.kind == "flag":
            return [self.to[at < self.yes]]
        return [float(i == at) for i in range(len(self.codes))]

    def clipped(self, value: object) -> bool:
        """True if a cell is a number outside of the range."""
        found = None if self.kind != "number" or is_missing(value) else as_number(value)
        return found is not None and not self.low <= found <= self.high


class Catalogue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The actions, and how an action and a record become a row.

    Parameters
    ----------
    names : tuple of str
        The actions.
    features : tuple of tuple of float
        Features of each action: its row is their outer product with the record's features. None:
        one block for each action, a linear model of its own.
    constant : float
        Appended to the record's features, so an intercept of each action; 0: none.
    shared : float
        Appended to every row, so one intercept of all actions; 0: none.
    """

    names: tuple[str, ...]
    features: tuple[tuple[float, ...], ...]
    constant: float
    shared: float

    @property
    def matrix(self) -> np.ndarray:
        """Features of the actions, (K, p)."""
        return np.array(self.features) if self.features else np.eye(len(self.names))

    def columns(self, context: Sequence[Column]) -> tuple[Column, ...]:
        """The features of a row, of those of a record."""
        wide = [*context]
        if self.constant:
            wide.append(Column("constant", min(self.constant, 0.0), max(self.constant, 0.0)))
        made = []
        for j, column in enumerate(self.matrix.T):
            part = f"feature {j}" if self.features else self.names[j]
            least, most = float(column.min()), float(column.max())
            for each in wide:
                # + 0.0: no -0.0, which has another spelling in a plan file.
                ends = [a * b for a in (least, most) for b in (each.low, each.high)]
                made.append(Column(f"{part}: {each.name}", min(ends) + 0.0, max(ends) + 0.0))
        if self.shared:
            made.append(Column("shared constant", min(self.shared, 0.0), max(self.shared, 0.0)))
        return tuple(made)

    def rows(self, context: Sequence[float], offered: Sequence[int]) -> np.ndarray:
        """Rows (K, d) of the actions offered, for a record's features."""
        wide = [*context, self.constant] if self.constant else [*context]
        made = np.kron(self.matrix[list(offered)], np.array(wide)[None, :])
        if self.shared:
            made = np.hstack([made, np.full((len(made), 1), self.shared)])
        return np.ascontiguousarray(made)


class Outcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The column that a reward in [0, 1] is made of.

    Parameters
    ----------
    column : str
        Its name.
    low, high : float
        Of a number: low becomes 0 and high 1.
    unit : str
        For readers.
    better : {"high", "low"}
        With "low" it is the other way round.
    outside : {"clip", "refuse"}
        What happens to numbers outside.
    codes : tuple of (str, float)
        Of coded outcomes: the reward of each.
    correct : tuple of (str, str)
        The action that each code calls for: reward 1 for that one, 0 for all others.
    """

    column: str
    low: float
    high: float
    unit: str
    better: str
    outside: str
    codes: tuple[tuple[str, float], ...]
    correct: tuple[tuple[str, str], ...]

    def reward(self, value: object, action: str) -> float:
        """The reward of an action, of the outcome that it had.

        Raises
        ------
        InputError
            For an outcome that is missing, unknown, or outside of its range where that is refused.
        """
        if is_missing(value):
            raise InputError(f'outcome "{self.column}" is missing; cancel the decision instead')
        table: Sequence[tuple[str, Any]] = self.codes or self.correct
        if table:
            at = matched(value, [code for code, _ in table])
            if at is None:
                known = ", ".join(code for code, _ in table)
                raise InputError(
                    f'outcome "{self.column}" must be one of {known}, got another value'
                )
            return float(table[at][1]) if self.codes else float(table[at][1] == action)
        found = as_number(value)
        if found is None or (self.outside == "refuse" and not self.low <= found <= self.high):
            unit = f" {self.unit}" if self.unit else ""
            raise InputError(
                f'outcome "{self.column}" must be {self.low:g} to {self.high:g}{unit}, '
                "got something else"
            )
        share = (min(max(found, self.low), self.high) - self.low) / (self.high - self.low)
        return share if self.better == "high" else 1.0 - share


class Records(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The columns of records, the actions, and what outcomes are worth."""

    variables: tuple[Variable, ...]
    actions: Catalogue
    outcome: Outcome

    @property
    def columns(self) -> tuple[Column, ...]:
        """The features of a row."""
        return self.actions.columns([c for each in self.variables for c in each.columns])

    @property
    def width(self) -> int:
        """The number of features of a row, without making them."""
        context = sum(
            (len(v.codes) if v.kind == "category" else 1) + v.marked for v in self.variables
        )
        parts = len(self.actions.features[0]) if self.actions.features else len(self.actions.names)
        return parts * (context + bool(self.actions.constant)) + bool(self.actions.shared)

    @property
    def norm(self) -> float:
        """The largest norm that a row can have."""
        wide = sum(each.largest for each in self.variables) + self.actions.constant**2
        longest = float((self.actions.matrix**2).sum(axis=1).max())
        return math.sqrt(longest * wide + self.actions.shared**2)

    def context(self, record: Mapping[str, Any]) -> list[float]:
        """The features of a record; InputError names the column that does not fit."""
        if not isinstance(record, Mapping):
            raise InputError("record must be values by column name, got something else")
        names = {each.name for each in self.variables}
        for place, key in enumerate(record, 1):
            if key not in names:
                hint = nearest(str(key), names)
                raise InputError(f"column {place} of the record is none of the plan{hint}")
        return [v for each in self.variables for v in each.features(record.get(each.name))]

    def offered(self, among: object) -> list[int]:
        """Indices of the actions that may be chosen: all, or those named."""
        if among is None:
            return list(range(len(self.actions.names)))
        if isinstance(among, str) or not isinstance(among, Sequence) or not among:
            raise InputError("among must name at least one action, got something else")
        places = {name: i for i, name in enumerate(self.actions.names)}
        indices = [places[name] for name in among if isinstance(name, str) and name in places]
        if len(set(indices)) < len(among):
            known = ", ".join(f'"{name}"' for name in self.actions.names[:20])
            raise InputError(f"among must name actions of the plan, each once: {known}")
        return indices


class Schema(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How rows become features: values are held to their column's range, then divided by ``norm``.

    Ranges and norm are declared, never taken from data. With ``records`` rows are made of records.
    """

    columns: tuple[Column, ...]
    norm: float
    records: Records | None = None

    @property
    def spelled(self) -> tuple[Any, ...]:
        """Its fields as a plan file has them: without records it is as before there were any."""
        fields = (self.columns, self.norm, self.records)
        return fields if self.records is not None else fields[:-1]

    def features(self, actions: object) -> np.ndarray:
        """The features (K, d) of the rows offered.

        Raises
        ------
        InputError
            For another number of columns, no row, or values that are not finite.
        """
        rows = private_array("actions", actions, (None, len(self.columns)))
        if not len(rows):
            raise InputError("actions must hold at least one row, got none")
        low, high = (np.array([getattr(c, end) for c in self.columns]) for end in ("low", "high"))
        coded: np.ndarray = np.clip(rows, low, high) / self.norm
        return coded

    def offer(self, actions: object, record: Any, among: object) -> tuple[np.ndarray, list[int]]:
        """Features (K, d) of what is offered, as rows or for a record, and indices of actions."""
        if self.records is None:
            if record is not None or among is not None:
                raise InputError("this plan has no columns of records: decide takes actions, rows")
            rows = self.features(actions)
            return rows, list(range(len(rows)))
        if actions is not None or record is None:
            raise InputError("this plan has columns of records: decide takes record, not actions")
        offered = self.records.offered(among)
        return self.features(self.records.actions.rows(self.records.context(record), offered)), (
            offered
        )

    def action(self, index: int) -> str:
        """The name of an action; empty where the plan has no catalogue."""
        return self.records.actions.names[index] if self.records is not None else ""

    def reward(self, outcome: object, action: int) -> float:
        """The reward of an action of the catalogue, of its outcome."""
        if self.records is None:
            raise InputError("this plan declares no outcome: give the reward, in [0, 1]")
        return self.records.outcome.reward(outcome, self.action(action))


#: The ends of ranges are at most this in size, the norm at least its inverse: products and squares
#: of features are then finite, so that no record within the ranges becomes NaN.
FARTHEST = 1e50
_WITHIN = f"; its ends are at most {FARTHEST:g} in size"


def is_range(low: float, high: float) -> bool:
    """True for two numbers low < high that features can be scaled by."""
    return -FARTHEST <= low < high <= FARTHEST and high - low >= 1.0 / FARTHEST


def check_columns(columns: Sequence[Column]) -> None:
    """Refuse columns without a range."""
    for column in columns:
        if not is_range(column.low, column.high):
            raise InputError(f"column {show(column.name)} must have a range low < high{_WITHIN}")


def check_schema(schema: Schema) -> None:
    """Refuse a schema whose columns are not what its records become."""
    check_columns(schema.columns)
    number("norm", schema.norm, at_least=1.0 / FARTHEST, at_most=FARTHEST)
    if schema.records is not None:
        check_records(schema.records)
        wide = schema.records.width
        if wide != len(schema.columns) or schema.records.columns != schema.columns:
            raise InputError("the plan's columns must be those that its records become")


def check_records(records: Records) -> None:
    """Refuse declarations that contradict themselves."""
    names = [each.name for each in records.variables]
    _check_names("columns", names)
    for each in records.variables:
        _check_variable(f'column "{each.name}"', each)
    actions, outcome = records.actions, records.outcome
    _check_names("actions.names", actions.names)
    for name in ("constant", "shared"):
        number(f"actions.{name}", getattr(actions, name), at_least=-FARTHEST, at_most=FARTHEST)
    if actions.features:
        array("actions.features", actions.features, shape=(len(actions.names), None))
        if not actions.matrix.any(axis=0).all():
            raise InputError("actions.features has a feature that is 0 for every action")
    if records.width > WIDEST:
        raise InputError(
            f"columns and actions must make at most {WIDEST} features, got {records.width}"
        )
    if outcome.column in names:
        raise InputError(f'reward.column "{outcome.column}" must not be a feature as well')
    ways = [bool(outcome.codes), bool(outcome.correct)]
    if all(ways):
        raise InputError("reward must have one of codes and correct, got both")
    if not any(ways) and not is_range(outcome.low, outcome.high):
        raise InputError(f"reward needs low < high, got {outcome.low:g} and {outcome.high:g}")
    choice("reward.better", outcome.better, ("high", "low"))
    choice("reward.outside", outcome.outside, ("clip", "refuse"))
    for code, reward in outcome.codes:
        number(f'reward.codes["{code}"]', reward, at_least=0, at_most=1)
    for code, action in outcome.correct:
        choice(f'reward.correct["{code}"]', action, actions.names)


def _check_names(where: str, names: Sequence[str]) -> None:
    if not 1 <= len(names) <= MOST or not all(names) or len(set(names)) < len(names):
        raise InputError(f"{where} must be 1 to {MOST} different names, got {show(list(names))}")


def _check_variable(where: str, each: Variable) -> None:
    choice(f"{where}: kind", each.kind, KINDS)
    if not is_range(*each.to):
        raise InputError(
            f"{where}: to must be two numbers low < high, got {show(list(each.to))}{_WITHIN}"
        )
    if each.kind == "number":
        if not is_range(each.low, each.high):
            raise InputError(
                f"{where} needs a public range low < high, got {each.low:g} and {each.high:g}"
                f"{_WITHIN}"
            )
        choice(f"{where}: outside", each.outside, ("clip", "refuse", "missing"))
    else:
        _check_names(f"{where}: codes", each.codes)
        # A code that is not known has no nearest one.
        choice(f"{where}: outside", each.outside, ("refuse", "missing"))
    if each.outside == "missing" and each.fill is None and not each.marked:
        raise InputError(f'{where}: outside = "missing" needs fill or missing_flag')
    if each.kind == "flag" and not 0 < each.yes < len(each.codes):
        raise InputError(f"{where} needs codes for yes and codes for no")
    boolean(f"{where}: missing_flag", each.marked)
    known = (
        matched(each.fill, each.codes) is not None
        if each.kind != "number"
        else (value := as_number(each.fill)) is not None and each.low <= value <= each.high
    )
    if each.fill is not None and not known:
        raise InputError(f"{where}: fill must be {each.range}, got {show(each.fill)}")
