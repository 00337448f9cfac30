"""Parse the tables `columns`, `actions` and `reward` of a spec into a schema.

If the spec has the table `actions`, every column has a kind, and rows of features are computed from
records. Without `actions`, columns have no kind, and the application computes the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fastfed._validate import InputError, boolean, choice, number, show
from fastfed.deployment.schema import (
    KINDS,
    NO,
    YES,
    Catalogue,
    Column,
    Outcome,
    Records,
    Schema,
    Variable,
    check_columns,
    check_records,
)

#: Kind of a column of records -> the keys of its table, in addition to `_COLUMN_KEYS`.
_KEYS = {
    "number": ("low", "high", "unit", "to"),
    "category": ("codes",),
    "flag": ("yes", "no", "to"),
}
_COLUMN_KEYS = ("name", "kind", "outside", "fill", "missing_flag")


def check_keys(name: str, table: Mapping[str, Any], known_keys: Sequence[str]) -> None:
    """Raise InputError if a table has a key that is not among the known keys."""
    for key in table:
        if key not in known_keys:
            hint = ""
            if key in ("curve", "environment", "horizon", "silos"):
                hint = " (a spec of a simulation is for `fastfed run`)"
            raise InputError(
                f"unknown key {show(key)} in {name}{hint}; it may have {', '.join(known_keys)}"
            )


def schema_of(tables: Mapping[str, Any]) -> Schema:
    """Return the schema that the tables of a spec declare.

    Parameters
    ----------
    tables : mapping
        ``columns``; for records also ``actions`` and ``reward``; optionally ``norm``, which by
        default is the largest norm that a row can have.

    Raises
    ------
    InputError
        If a table is not valid.
    """
    column_tables = [_table(f"columns[{i}]", t) for i, t in enumerate(tables.get("columns", ()))]
    if not column_tables:
        raise InputError("columns is required: one table [[columns]] for each column")
    if "actions" not in tables:
        if "reward" in tables or any("kind" in table for table in column_tables):
            raise InputError("columns with a kind, and reward, need the table actions")
        columns = tuple(_column(f"columns[{i}]", table) for i, table in enumerate(column_tables))
        largest = math.sqrt(sum(max(abs(c.low), abs(c.high)) ** 2 for c in columns))
        return Schema(columns, number("norm", tables.get("norm", largest), above=0))
    if "reward" not in tables:
        raise InputError("a spec with actions needs the table reward")
    variables = tuple(_variable(f"columns[{i}]", table) for i, table in enumerate(column_tables))
    actions = _catalogue(_table("actions", tables["actions"]))
    records = Records(variables, actions, _outcome(_table("reward", tables["reward"])))
    check_records(records)
    norm = number("norm", tables.get("norm", records.norm), above=0)
    return Schema(records.columns, norm, records)


def tables_of_schema(schema: Schema) -> dict[str, Any]:
    """Return tables of a spec from which `schema_of` makes this schema."""
    if schema.records is None:
        columns = [msgspec.structs.asdict(column) for column in schema.columns]
        return {"columns": columns, "norm": schema.norm}
    outcome = schema.records.outcome
    reward: dict[str, Any] = {"column": outcome.column, "unit": outcome.unit}
    reward["better"] = outcome.better
    reward["outside"] = outcome.outside
    for name, pairs in (("codes", outcome.codes), ("correct", outcome.correct)):
        if pairs:
            reward[name] = dict(pairs)
    if not (outcome.codes or outcome.correct):
        reward |= {"low": outcome.low, "high": outcome.high}
    return {
        "columns": [_table_of(variable) for variable in schema.records.variables],
        "actions": msgspec.structs.asdict(schema.records.actions),
        "reward": reward,
        "norm": schema.norm,
    }


def _table_of(variable: Variable) -> dict[str, Any]:
    """Return a table of a spec from which `_variable` makes this column."""
    shared = ("name", "kind", "outside", "fill")
    fields = (*shared, *(key for key in _KEYS[variable.kind] if hasattr(variable, key)))
    entries = {key: getattr(variable, key) for key in fields if getattr(variable, key) is not None}
    if variable.kind == "flag":
        entries |= {"yes": variable.codes[: variable.yes], "no": variable.codes[variable.yes :]}
    return entries | {"missing_flag": variable.missing_flag}


def _table(where: str, value: Any) -> Mapping[str, Any]:
    """Return ``value`` if it is a table; raise InputError if not."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a table, got {show(value)}")
    return value


def _column(where: str, table: Mapping[str, Any]) -> Column:
    """Return the column that a table declares, in a spec without ``actions``."""
    check_keys(where, table, ("name", "low", "high", "unit"))
    low = number(f"{where}.low", table.get("low", 0.0))
    high = number(f"{where}.high", table.get("high", 1.0))
    index = where.removeprefix("columns[").removesuffix("]")
    column = Column(str(table.get("name", index)), low, high, str(table.get("unit", "")))
    check_columns((column,))
    return column


def _codes(where: str, value: Any) -> tuple[str, ...]:
    """Return a list of codes as texts; 4 and "4" in TOML are the same code."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{where} must be a list of codes, got {show(value)}")
    return tuple(_code(code) for code in value)


def _code(value: Any) -> str:
    """Return a code as text; true becomes "true"."""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _ends(where: str, value: Any) -> tuple[float, float]:
    """Return the two limits of a range; raise InputError unless there are two numbers."""
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"{where} must be two numbers low < high, got {show(value)}")
    return number(where, value[0]), number(where, value[1])


def _variable(where: str, table: Mapping[str, Any]) -> Variable:
    """Return the column that a table declares, in a spec with ``actions``."""
    if "kind" not in table:
        raise InputError(
            f"{where}.kind is required for column {show(table.get('name'))}, as the spec has "
            f"actions: one of {', '.join(KINDS)}"
        )
    kind = choice(f"{where}.kind", table["kind"], KINDS)
    check_keys(f"{where}, a {kind}", table, (*_COLUMN_KEYS, *_KEYS[kind]))
    name = str(table.get("name", ""))
    low = high = 0.0
    codes: tuple[str, ...] = ()
    yes: tuple[str, ...] = ()
    fill = table.get("fill")
    if kind == "number":
        for end in ("low", "high"):
            if end not in table:
                raise InputError(f'column "{name}" needs its public range: {where}.{end}')
        low, high = (number(f"{where}.{end}", table[end]) for end in ("low", "high"))
        fill = None if fill is None else number(f"{where}.fill", fill)
    else:
        fill = None if fill is None else _code(fill)
        if kind == "category":
            if "codes" not in table:
                raise InputError(
                    f"{where}.codes is required for the category {show(name)}: a list of its texts"
                )
            codes = _codes(f"{where}.codes", table["codes"])
        else:
            yes = _codes(f"{where}.yes", table.get("yes", YES))
            codes = (*yes, *_codes(f"{where}.no", table.get("no", NO)))
    return Variable(
        name,
        kind,
        low,
        high,
        str(table.get("unit", "")),
        codes,
        len(yes),
        _ends(f"{where}.to", table.get("to", (-1.0, 1.0))),
        str(table.get("outside", "clip" if kind == "number" else "refuse")),
        fill,
        boolean(f"{where}.missing_flag", table.get("missing_flag", False)),
    )


def _catalogue(table: Mapping[str, Any]) -> Catalogue:
    """Return the catalogue of actions that the table ``actions`` declares."""
    check_keys("actions", table, ("names", "features", "constant", "shared"))
    if "names" not in table:
        raise InputError("actions.names is required: a list of the actions to choose from")
    names = _codes("actions.names", table["names"])
    if len(names) < 2:
        raise InputError(f"actions.names must name at least two actions, got {show([*names])}")
    features = []
    for row in table.get("features", ()):
        if isinstance(row, str) or not isinstance(row, Sequence) or not row:
            raise InputError(f"actions.features must be rows of numbers, got {show(row)}")
        features.append(tuple(number("actions.features", v) for v in row))
    if features and (len(features) != len(names) or len({len(row) for row in features}) > 1):
        raise InputError(
            f"actions.features must be {len(names)} rows of one length, one for each action"
        )
    constants = (number(f"actions.{k}", table.get(k, 0.0)) for k in ("constant", "shared"))
    return Catalogue(names, tuple(features), *constants)


def _outcome(table: Mapping[str, Any]) -> Outcome:
    """Return the outcome that the table ``reward`` declares."""
    check_keys(
        "reward", table, ("column", "low", "high", "unit", "better", "outside", "codes", "correct")
    )
    if not isinstance(table.get("column"), str):
        raise InputError("reward.column must name the column of outcomes")
    given_keys = [key for key in ("codes", "correct") if key in table]
    if given_keys and ("low" in table or "high" in table):
        raise InputError(
            f"reward must have one of low and high, codes, and correct, got {given_keys[0]}"
        )
    if not given_keys and not {"low", "high"} <= set(table):
        raise InputError("reward needs low and high, codes, or correct")
    codes = _table("reward.codes", table.get("codes", {})).items()
    correct = _table("reward.correct", table.get("correct", {})).items()
    return Outcome(
        table["column"],
        number("reward.low", table.get("low", 0.0)),
        number("reward.high", table.get("high", 1.0)),
        str(table.get("unit", "")),
        str(table.get("better", "high")),
        str(table.get("outside", "clip")),
        tuple((_code(k), number(f'reward.codes["{k}"]', v)) for k, v in codes),
        tuple((_code(k), str(v)) for k, v in correct),
    )
