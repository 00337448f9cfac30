"""How a record becomes features and a reward: the columns, actions and outcome of a plan.

There are two kinds of plans. In plans with raw rows, the application computes a row of features for
each action, and the plan has only the columns' ranges (`Schema`). In plans with records, the
application passes a person's values by column name. Such a plan also declares the columns of
records (`Variable`), the actions (`Catalogue`) and how an outcome becomes a reward (`Outcome`).

All of this is declared in the spec, and nothing is estimated from data. Errors about a record name
its column and range, but never a value, which is personal data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from fastfed._cells import as_number, is_missing, matched
from fastfed._validate import (
    InputError,
    array,
    boolean,
    choice,
    nearest,
    number,
    reward_number,
    show,
)

KINDS = ("number", "category", "flag")
#: Codes that mean yes and no by default.
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
#: Maximum number of codes of a column, and of actions.
MAX_NAMES = 1000
#: Maximum number of features of a row.
MAX_WIDTH = 100_000


class Column(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One feature of a row: its name, its declared range, and its unit (for readers)."""

    name: str
    low: float
    high: float
    unit: str = ""


# ---- values of records, which errors never quote -------------------------------------------------


def private_reward(name: str, value: object) -> float:
    """Return a reward as a finite number; an InputError does not quote the value."""
    try:
        return reward_number(name, value)
    except InputError:
        raise InputError(f"{name} must be a finite number, got something else") from None


def private_array(name: str, value: object, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a value as an array of finite numbers; an InputError does not quote the value."""
    try:
        return array(name, value, shape=shape)
    except (InputError, RecursionError) as error:
        if str(error).startswith(f"{name} must have shape"):
            raise
        raise InputError(
            f"{name} must be finite numbers, in rows of equal length, got something else"
        ) from None


# ---- columns of records --------------------------------------------------------------------------


class Variable(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A declared column of records, and how its values become features.

    Parameters
    ----------
    name : str
        Key of the column in a record.
    kind : {"number", "category", "flag"}
        A number is scaled from [low, high] to ``to``. A flag becomes one end of ``to``. A category
        is one-hot encoded: one feature for each code.
    low, high : float
        Public range of a number, in ``unit``.
    unit : str
        Shown to readers.
    codes : tuple of str
        Codes of a category. For a flag, first the codes that mean yes, then those that mean no.
    yes : int
        For a flag, the number of codes that mean yes.
    to : (float, float)
        Range of the feature of a number or flag.
    outside : {"clip", "refuse", "missing"}
        What to do with a value outside the range, or with an unknown code.
    fill : float, str or None
        Replaces a missing value: a number in ``unit``, or a code.
    missing_flag : bool
        True for an additional feature that is 1 if the value is missing, else 0. Then, if a value
        is missing and there is no ``fill``, the column's other features are 0. A column with
        neither ``missing_flag`` nor ``fill`` refuses missing values.
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
    missing_flag: bool

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row that contain the features of this column's values."""
        if self.kind == "category":
            columns = [Column(f"{self.name}={code}", 0.0, 1.0) for code in self.codes]
        else:
            zero_if_missing = [0.0] if self.missing_flag and self.fill is None else []
            columns = [
                Column(self.name, min(*self.to, *zero_if_missing), max(*self.to, *zero_if_missing))
            ]
        if self.missing_flag:
            columns.append(Column(f"{self.name} missing", 0.0, 1.0))
        return tuple(columns)

    @property
    def largest_squared_norm(self) -> float:
        """Largest squared norm of the vector of this column's features."""
        largest_known = 1.0 if self.kind == "category" else max(end * end for end in self.to)
        if not self.missing_flag:
            return largest_known
        largest_filled = (
            0.0 if self.fill is None else sum(v * v for v in self._encoded(self.fill) or ())
        )
        # For a missing value, the additional feature is 1.
        return max(largest_known, largest_filled + 1.0)

    @property
    def range(self) -> str:
        """The allowed values, as a text for messages."""
        if self.kind == "number":
            return f"{self.low:g} to {self.high:g}" + (f" {self.unit}" if self.unit else "")
        return "one of " + ", ".join(self.codes[:20]) + (", ..." if len(self.codes) > 20 else "")

    def features(self, value: object) -> list[float]:
        """Return the features of one value of this column.

        Raises
        ------
        InputError
            If the value cannot be read, or if it is missing or outside the range and the column
            refuses such values.
        """
        if not is_missing(value, self.codes):
            features = self._encoded(value)
            if features is None and self.kind == "number" and as_number(value) is None:
                raise InputError(
                    f'column "{self.name}" must be a number, {self.range}, got something else'
                )
            if features is None and self.outside == "refuse":
                raise InputError(f'column "{self.name}" must be {self.range}, got another value')
            if features is not None:
                return [*features, *([0.0] if self.missing_flag else [])]
        if self.fill is None and not self.missing_flag:
            raise InputError(
                f'column "{self.name}" is missing; it must be {self.range}, or the plan must '
                "declare fill or missing_flag"
            )
        filled = None if self.fill is None else self._encoded(self.fill)
        empty = [0.0] * (len(self.codes) if self.kind == "category" else 1)
        return [*(empty if filled is None else filled), *([1.0] if self.missing_flag else [])]

    def _encoded(self, value: object) -> list[float] | None:
        """Return the features of a value that is not missing, without the missing flag.

        Return None for a text in place of a number, for a number outside the range that is not
        clipped, and for an unknown code.
        """
        if self.kind == "number":
            as_float = as_number(value)
            if as_float is None or (
                self.outside != "clip" and not self.low <= as_float <= self.high
            ):
                return None
            clipped = min(max(as_float, self.low), self.high)
            fraction = (clipped - self.low) / (self.high - self.low)
            return [self.to[0] + (self.to[1] - self.to[0]) * fraction]
        index = matched(value, self.codes)
        if index is None:
            return None
        if self.kind == "flag":
            return [self.to[index < self.yes]]
        return [float(i == index) for i in range(len(self.codes))]

    def is_outside(self, value: object) -> bool:
        """Return True if a value is a number outside the range."""
        as_float = None if self.kind != "number" or is_missing(value) else as_number(value)
        return as_float is not None and not self.low <= as_float <= self.high


class Catalogue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The actions, and how an action and a record become a row of features.

    Parameters
    ----------
    names : tuple of str
        Names of the actions.
    features : tuple of tuple of float
        Features of each action. The row of an action is the outer product of the action's features
        and the record's features. If empty, each action has a separate block of the row, and
        therefore a separate linear model.
    constant : float
        A constant that is appended to the record's features: an intercept of each action. 0 for
        none.
    shared : float
        A constant that is appended to every row: one intercept for all actions. 0 for none.
    """

    names: tuple[str, ...]
    features: tuple[tuple[float, ...], ...]
    constant: float
    shared: float

    @property
    def matrix(self) -> np.ndarray:
        """The features of the K actions, (K, p); the identity if ``features`` is empty."""
        return np.array(self.features) if self.features else np.eye(len(self.names))

    def columns(self, context: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of a row, given the columns of a record's features."""
        context_columns = [*context]
        if self.constant:
            context_columns.append(
                Column("constant", min(self.constant, 0.0), max(self.constant, 0.0))
            )
        columns = []
        for j, column in enumerate(self.matrix.T):
            part = f"feature {j}" if self.features else self.names[j]
            lowest, highest = float(column.min()), float(column.max())
            for context_column in context_columns:
                ends = [
                    a * b
                    for a in (lowest, highest)
                    for b in (context_column.low, context_column.high)
                ]
                # Adding 0.0 turns -0.0 into 0.0, which has a different encoding in a plan file.
                columns.append(
                    Column(f"{part}: {context_column.name}", min(ends) + 0.0, max(ends) + 0.0)
                )
        if self.shared:
            columns.append(Column("shared constant", min(self.shared, 0.0), max(self.shared, 0.0)))
        return tuple(columns)

    def rows(self, context: Sequence[float], offered: Sequence[int]) -> np.ndarray:
        """Return the rows (K, d) of the offered actions, given the features of a record."""
        features = [*context, self.constant] if self.constant else [*context]
        rows = np.kron(self.matrix[list(offered)], np.array(features)[None, :])
        if self.shared:
            rows = np.hstack([rows, np.full((len(rows), 1), self.shared)])
        return np.ascontiguousarray(rows)


class Outcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The column of outcomes, and how its values become rewards in [0, 1].

    Parameters
    ----------
    column : str
        Name of the column.
    low, high : float
        Range of a number: the reward is 0 at ``low`` and 1 at ``high``.
    unit : str
        Unit of the number, for readers.
    better : {"high", "low"}
        With "low" the reward is 1 at ``low`` and 0 at ``high``.
    outside : {"clip", "refuse"}
        What to do with numbers outside the range.
    codes : tuple of (str, float)
        For coded outcomes, each code and its reward.
    correct : tuple of (str, str)
        Each code and the action that is correct for it. The reward is 1 for this action, else 0.
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
        """Return the reward of an action from its outcome.

        Raises
        ------
        InputError
            If the outcome is missing or unknown, or if it is outside the range and the plan refuses
            such outcomes.
        """
        table: Sequence[tuple[str, Any]] = self.codes or self.correct
        if is_missing(value, [code for code, _ in table]):
            raise InputError(f'outcome "{self.column}" is missing; cancel the decision instead')
        if table:
            index = matched(value, [code for code, _ in table])
            if index is None:
                known_codes = ", ".join(code for code, _ in table)
                raise InputError(
                    f'outcome "{self.column}" must be one of {known_codes}, got another value'
                )
            return float(table[index][1]) if self.codes else float(table[index][1] == action)
        # A click may be given as true or false.
        click = matched(value, ("false", "true"))
        number_value = as_number(value) if click is None else float(click)
        if number_value is None or (
            self.outside == "refuse" and not self.low <= number_value <= self.high
        ):
            unit = f" {self.unit}" if self.unit else ""
            raise InputError(
                f'outcome "{self.column}" must be {self.low:g} to {self.high:g}{unit}, '
                "got something else"
            )
        clipped = min(max(number_value, self.low), self.high)
        fraction = (clipped - self.low) / (self.high - self.low)
        return fraction if self.better == "high" else 1.0 - fraction


class Records(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The declarations of a plan with records: columns, actions, and rewards of outcomes."""

    variables: tuple[Variable, ...]
    actions: Catalogue
    outcome: Outcome

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of a row of features."""
        return self.actions.columns([c for variable in self.variables for c in variable.columns])

    @property
    def width(self) -> int:
        """Number of features of a row; computed without the list of columns, which may be huge."""
        context = sum(
            (len(v.codes) if v.kind == "category" else 1) + v.missing_flag for v in self.variables
        )
        # A row has one block with the context for each feature of an action; without such features,
        # one block for each action.
        blocks = len(self.actions.features[0]) if self.actions.features else len(self.actions.names)
        return blocks * (context + bool(self.actions.constant)) + bool(self.actions.shared)

    @property
    def norm(self) -> float:
        """Largest norm that a row can have."""
        context_square = sum(variable.largest_squared_norm for variable in self.variables)
        context_square += self.actions.constant**2
        action_square = float((self.actions.matrix**2).sum(axis=1).max())
        return math.sqrt(action_square * context_square + self.actions.shared**2)

    def context(self, record: Mapping[str, Any]) -> list[float]:
        """Return the features of a record; an InputError names the column that does not fit."""
        if not isinstance(record, Mapping):
            raise InputError("record must be values by column name, got something else")
        names = {variable.name for variable in self.variables}
        for place, key in enumerate(record, 1):
            if key not in names:
                hint = nearest(str(key), names)
                raise InputError(f"column {place} of the record is none of the plan{hint}")
        return [
            v for variable in self.variables for v in variable.features(record.get(variable.name))
        ]

    def offered(self, among: object) -> list[int]:
        """Return the indices of the actions named in ``among``; of all actions if it is None."""
        if among is None:
            return list(range(len(self.actions.names)))
        if isinstance(among, str) or not isinstance(among, Sequence) or not among:
            raise InputError('among must be a list of names of actions, such as ["A", "B"]')
        index_of_name = {name: i for i, name in enumerate(self.actions.names)}
        indices = [
            index_of_name[name] for name in among if isinstance(name, str) and name in index_of_name
        ]
        if len(set(indices)) < len(among):
            known_names = ", ".join(f'"{name}"' for name in self.actions.names[:20])
            raise InputError(f"among must name actions of the plan, each once: {known_names}")
        return indices


class Schema(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True):
    """How rows become features: values are clipped to the columns' ranges and divided by ``norm``.

    Ranges and norm are declared, not estimated from data. With ``records``, the rows are first
    computed from records.
    """

    columns: tuple[Column, ...]
    norm: float
    records: Records | None = None

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and highest values of the columns, (d,) each."""
        low = np.array([column.low for column in self.columns])
        return low, np.array([column.high for column in self.columns])

    @property
    def spelled(self) -> tuple[Any, ...]:
        """The fields as a plan file stores them. ``records`` is left out if it is None.

        So plan files of early versions, which have no ``records``, remain valid.
        """
        fields = (self.columns, self.norm, self.records)
        return fields if self.records is not None else fields[:-1]

    def features(self, actions: object) -> np.ndarray:
        """Return the features (K, d) of the offered rows, which are clipped and scaled.

        Raises
        ------
        InputError
            If the number of columns is wrong, there is no row, or a value is not finite.
        """
        rows = private_array("actions", actions, (None, len(self.columns)))
        if not len(rows):
            raise InputError("actions must hold at least one row, got none")
        low, high = self._ranges
        scaled: np.ndarray = np.minimum(np.maximum(rows, low), high) / self.norm
        return scaled

    def offer(self, actions: object, record: Any, among: object) -> tuple[np.ndarray, list[int]]:
        """Return the features of the offered actions of one decision.

        Parameters
        ----------
        actions : rows of numbers, shape (K, columns), or None
            The rows of the actions, for a plan without records.
        record : mapping or None
            The values by column name, for a plan with records.
        among : sequence of str, optional
            With a record: the names of the offered actions. By default all actions.

        Returns
        -------
        ndarray, shape (K, d)
            The features.
        list of int
            The index of each row's action.
        """
        if self.records is None:
            if record is not None or among is not None:
                raise InputError("this plan has no columns of records: decide takes actions, rows")
            if actions is None:
                raise InputError(
                    f"decide needs actions, a row of {len(self.columns)} numbers for each action"
                )
            rows = self.features(actions)
            return rows, list(range(len(rows)))
        if actions is not None or record is None:
            raise InputError("this plan has columns of records: decide takes record, not actions")
        offered = self.records.offered(among)
        rows = self.records.actions.rows(self.records.context(record), offered)
        return self.features(rows), offered

    def action(self, index: int) -> str:
        """Return the name of an action; empty if the plan has no catalogue."""
        return self.records.actions.names[index] if self.records is not None else ""

    def reward(self, outcome: object, action: int) -> float:
        """Return the reward of an action, given by its index, from its outcome."""
        if self.records is None:
            raise InputError("this plan declares no outcome: give the reward, in [0, 1]")
        return self.records.outcome.reward(outcome, self.action(action))


#: Largest absolute value of the ends of a range. Its inverse is the smallest allowed norm and the
#: smallest allowed width of a range. So products and squares of features are finite, and no record
#: gives NaN.
MAX_END = 1e50
_RANGE_LIMIT_TEXT = f"; its ends are at most {MAX_END:g} in size"


def is_range(low: float, high: float) -> bool:
    """Return True if low < high, and both are within limits that are safe for scaling."""
    return -MAX_END <= low < high <= MAX_END and high - low >= 1.0 / MAX_END


def check_columns(columns: Sequence[Column]) -> None:
    """Raise InputError for a column without a valid range."""
    for column in columns:
        if not is_range(column.low, column.high):
            raise InputError(
                f"column {show(column.name)} must have a range low < high, got {show(column.low)} "
                f"and {show(column.high)}{_RANGE_LIMIT_TEXT}"
            )


def check_schema(schema: Schema) -> None:
    """Raise InputError for an invalid schema, or columns that do not fit its records."""
    check_columns(schema.columns)
    number("norm", schema.norm, at_least=1.0 / MAX_END, at_most=MAX_END)
    if schema.records is not None:
        check_records(schema.records)
        width = schema.records.width
        if width != len(schema.columns) or schema.records.columns != schema.columns:
            raise InputError("the plan's columns must be those that its records become")


def check_records(records: Records) -> None:
    """Raise InputError for invalid or contradictory declarations of columns, actions or reward."""
    names = [variable.name for variable in records.variables]
    _check_names("columns", names)
    for variable in records.variables:
        _check_variable(f'column "{variable.name}"', variable)
    actions, outcome = records.actions, records.outcome
    _check_names("actions.names", actions.names)
    for name in ("constant", "shared"):
        number(f"actions.{name}", getattr(actions, name), at_least=-MAX_END, at_most=MAX_END)
    if actions.features:
        array("actions.features", actions.features, shape=(len(actions.names), None))
        if not actions.matrix.any(axis=0).all():
            raise InputError("actions.features has a feature that is 0 for every action")
    if records.width > MAX_WIDTH:
        raise InputError(
            f"columns and actions must make at most {MAX_WIDTH} features, got {records.width}"
        )
    if outcome.column in names:
        raise InputError(f'reward.column "{outcome.column}" must not be a feature as well')
    if outcome.codes and outcome.correct:
        raise InputError("reward must have one of codes and correct, got both")
    # Without codes and correct actions, the reward is computed from a number in a range.
    is_number = not outcome.codes and not outcome.correct
    if is_number and not is_range(outcome.low, outcome.high):
        raise InputError(f"reward needs low < high, got {outcome.low:g} and {outcome.high:g}")
    choice("reward.better", outcome.better, ("high", "low"))
    choice("reward.outside", outcome.outside, ("clip", "refuse"))
    for code, reward in outcome.codes:
        number(f'reward.codes["{code}"]', reward, at_least=0, at_most=1)
    for code, action in outcome.correct:
        choice(f'reward.correct["{code}"]', action, actions.names)


def _check_names(where: str, names: Sequence[str]) -> None:
    """Raise InputError for names that are empty, not distinct, or too many."""
    if not 1 <= len(names) <= MAX_NAMES or not all(names) or len(set(names)) < len(names):
        got = show(list(names))
        raise InputError(f"{where} must be 1 to {MAX_NAMES} different names, got {got}")


def _check_variable(where: str, variable: Variable) -> None:
    """Raise InputError for an invalid or contradictory declaration of a column of records."""
    choice(f"{where}: kind", variable.kind, KINDS)
    if not is_range(*variable.to):
        raise InputError(
            f"{where}: to must be two numbers low < high, got {show(list(variable.to))}"
            f"{_RANGE_LIMIT_TEXT}"
        )
    if variable.kind == "number":
        if not is_range(variable.low, variable.high):
            raise InputError(
                f"{where} needs a public range low < high, got {variable.low:g} and "
                f"{variable.high:g}{_RANGE_LIMIT_TEXT}"
            )
        choice(f"{where}: outside", variable.outside, ("clip", "refuse", "missing"))
    else:
        _check_names(f"{where}: codes", variable.codes)
        # An unknown code cannot be clipped.
        choice(f"{where}: outside", variable.outside, ("refuse", "missing"))
    if variable.outside == "missing" and variable.fill is None and not variable.missing_flag:
        raise InputError(f'{where}: outside = "missing" needs fill or missing_flag')
    if variable.kind == "flag" and not 0 < variable.yes < len(variable.codes):
        raise InputError(f"{where} needs codes for yes and codes for no")
    boolean(f"{where}: missing_flag", variable.missing_flag)
    fill_is_valid = (
        matched(variable.fill, variable.codes) is not None
        if variable.kind != "number"
        else (value := as_number(variable.fill)) is not None
        and variable.low <= value <= variable.high
    )
    if variable.fill is not None and not fill_is_valid:
        raise InputError(f"{where}: fill must be {variable.range}, got {show(variable.fill)}")
