"""Prepare a table as a spec declares it: name missing values, leave records out, bin a number.

Each step decides from the cells of one record (row) and from what the spec declares, never from
other records.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fastfed._cells import MISSING, NEW_MARKERS, NUMBER, code, matched
from fastfed._validate import InputError, number, rising, show
from fastfed.environments.tables import Table

#: What is known about a column: a pair [low, high], or a list of texts.
Declared = dict[str, tuple[float, float] | list[str]]


def declared_columns(table: Table, declared: Any, key: str = "ranges") -> Declared:
    """Return a checked option that maps columns to intervals or lists of texts.

    Parameters
    ----------
    table : Table
        The table whose columns are declared.
    declared : mapping or None
        The value of the option; None is an empty mapping.
    key : {"ranges", "where"}
        Name of the option. In an interval [low, high] of ``where``, low may equal high; in one of
        ``ranges`` it may not.
    """
    if declared is None:
        return {}
    if not isinstance(declared, Mapping):
        raise InputError(
            f"{key} must be a table of columns, such as {{ age = [20, 80] }}, got {show(declared)}"
        )
    checked: Declared = {}
    for name, value in declared.items():
        table.check_name(key, name)
        option = f"{key}.{name}"
        entries = list(value) if isinstance(value, (list, tuple)) else []
        if entries and all(isinstance(entry, str) for entry in entries):
            if len(set(entries)) < len(entries) or (MISSING - NEW_MARKERS) & set(entries):
                raise InputError(f"{option} must name each category once, got {show(value)}")
            checked[name] = entries
        elif len(entries) == 2:
            low, high = rising(option, value, equal=key == "where")
            if key != "where" and not math.isfinite(high - low):
                raise InputError(f"{option} spans more than a float64 can hold")
            checked[name] = low, high
        else:
            raise InputError(f"{option} must be [low, high] or a list of texts, got {show(value)}")
    return checked


# ---- Missing values ------------------------------------------------------------------------------


def check_missing(missing: Any) -> None:
    """Raise InputError unless ``missing`` is a list of texts, or maps columns to such lists."""
    by_column = isinstance(missing, Mapping) and bool(missing)
    for name, texts in missing.items() if by_column else [("", missing)]:
        where = f"missing.{name}" if by_column else "missing"
        if isinstance(texts, (list, tuple)) and texts and all(isinstance(t, str) for t in texts):
            continue
        raise InputError(
            f'{where} must be a list of texts, such as ["-9", "999"], got {show(texts)}'
            + ("" if by_column else ', or a table of such lists, such as { age = ["-9"] }')
        )


def with_missing(table: Table, missing: Any, declared: Sequence[Declared] = ()) -> Table:
    """Return the table with empty cells instead of texts that mean a missing value.

    Parameters
    ----------
    table : Table
        The table as it was read.
    missing : list of str, or mapping of columns to such lists
        The texts, for all columns or by column. Numbers are compared by value: "-9.0" is "-9".
    declared : sequence of dict
        Texts that other options declare as values, which must not mean missing.
    """
    if missing is None:
        return table
    check_missing(missing)
    if isinstance(missing, Mapping):
        for name in missing:
            table.check_name("missing", name)
        by_position = {table.positions[code(name)]: list(texts) for name, texts in missing.items()}
    else:
        by_position = {position: list(missing) for position in range(len(table.names))}
    for columns in declared:
        for name, known in columns.items():
            texts = by_position.get(table.positions[code(name)], [])
            ambiguous = [t for t in known if isinstance(t, str) and matched(t, texts) is not None]
            if ambiguous:
                raise InputError(
                    f"missing must not have a text that ranges or where declares for column "
                    f"{show(name)}, got {show(ambiguous[0])}"
                )
    cells = [list(row) for row in table.cells]
    for position, texts in by_position.items():
        column = {row[position] for row in cells}
        absent = {cell for cell in column if cell and matched(cell, texts) is not None}
        for row in cells if absent else ():
            if row[position] in absent:
                row[position] = ""
    return replace(table, cells=cells)


# ---- Records that are left out -------------------------------------------------------------------


def selected(table: Table, where: Declared) -> Table:
    """Return a table of the records that fit all entries of ``where``.

    ``where`` is the option of this name: columns -> interval or list of texts. The field
    `Table.where` is something else, the file and line of each record. The returned table has a
    further note, which counts the records that were left out. Raises InputError if a cell that must
    be a number is not one, and if all records are left out.
    """
    if not where:
        return table
    kept = np.ones(len(table.cells), dtype=bool)
    reasons: list[str] = []
    for name, declared in where.items():
        cells = table.column(name)
        # A text that the spec lists, such as "NA", counts as a value here, not as missing.
        listed = isinstance(declared, list)
        fits = np.array([_fits(table, name, row, declared) for row in range(len(cells))])
        absent = np.array([c in MISSING and not (listed and fits[i]) for i, c in enumerate(cells)])
        missing, outside = (int((kept & absent).sum()), int((kept & ~absent & ~fits).sum()))
        if missing:
            reasons.append(f"{missing} without a value of {show(name)}")
        if outside:
            reason = "with another text in" if listed else "with a number outside of"
            reasons.append(f"{outside} {reason} where.{name} = {show(list(declared))}")
        kept &= fits
    counts = ", ".join(reasons) or "none"
    if not kept.any():
        raise InputError(
            f"{table.path}: where must keep at least one of {len(kept)} records, but leaves out "
            f"{counts}"
        )
    note = (
        f"of {len(kept)} records that were read, {int((~kept).sum())} are left out by where "
        f"({counts}): which records are left out is taken as public"
    )
    rows = np.flatnonzero(kept).tolist()
    return replace(
        table,
        cells=[table.cells[row] for row in rows],
        where=[table.where[row] for row in rows],
        notes=(*table.notes, note),
    )


def _fits(table: Table, name: str, row: int, declared: tuple[float, float] | list[str]) -> bool:
    """Return True if the cell in column ``name`` of a row fits ``declared``.

    ``declared`` is the entry of this column in the option ``where``: an interval of numbers, or a
    list of texts.
    """
    cell = table.cells[row][table.positions[code(name)]]
    if isinstance(declared, list):
        return bool(cell) and matched(cell, declared) is not None
    if cell in MISSING:
        return False
    if not NUMBER.fullmatch(cell):
        raise InputError(
            f"{table.where[row]}: column {show(name)} must hold numbers, as its entry in where is "
            f"an interval, got {show(cell)}"
        )
    return declared[0] <= float(cell) <= declared[1]


# ---- Classes of a number -------------------------------------------------------------------------


def check_bins(bins: Any) -> list[float]:
    """Return ``bins`` as a list of increasing floats; raise InputError for anything else."""
    if not isinstance(bins, (list, tuple)) or not bins:
        raise InputError(f"bins must be a list of numbers, such as [21, 49], got {show(bins)}")
    edges = [number("bins", edge) for edge in bins]
    if any(later <= earlier for earlier, later in pairwise(edges)):
        ordered = sorted(set(bins))
        raise InputError(f"bins must increase, got {show(list(bins))}: write {show(ordered)}")
    return edges


def bin_names(edges: Sequence[float]) -> list[str]:
    """Return the names of the classes between edges: "< 21", "21 to 49", ">= 49"."""
    texts = [code(edge) for edge in edges]
    inner_names = [f"{a} to {b}" for a, b in pairwise(texts)]
    return [f"< {texts[0]}", *inner_names, f">= {texts[-1]}"]


def binned(table: Table, label: str, edges: Sequence[float]) -> tuple[np.ndarray, str]:
    """Return the classes, int64 (n,), of records whose label is a number, and a note.

    The class of a record is the number of entries of ``edges`` that are not larger than the
    record's label. The note is for the certificate, and names the classes.
    """
    classes = []
    for cell, where in zip(table.complete("label", label), table.where, strict=True):
        if not NUMBER.fullmatch(cell):
            raise InputError(
                f"{where}: label {show(label)} must hold numbers, as bins makes classes of "
                f"numbers, got {show(cell)}"
            )
        classes.append(bisect_right(edges, float(cell)))
    names = bin_names(edges)
    if len(set(classes)) < 2:
        raise InputError(
            f"{table.path}: bins must make at least 2 classes that have a record, but all "
            f'{len(classes)} records are "{names[classes[0]]}"'
        )
    listed = ", ".join(f'{i} is "{name}"' for i, name in enumerate(names))
    note = (
        f"classes of {show(label)} are made by declared edges: {listed}; an edge belongs to the "
        "class above it"
    )
    return np.array(classes, dtype=np.int64), note
