"""Turn the columns of a table into features, classes and silos of records.

Features are in [0, 1]: numbers are scaled by a range, texts become one 0/1 column for each
category, and a column that has missing cells gets a further 0/1 column that marks them.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from fastfed._cells import MISSING, NUMBER, matched, plain_name, unified
from fastfed._validate import InputError, show
from fastfed.environments.replay import MAX_CLASSES
from fastfed.environments.selection import binned
from fastfed.environments.tables import Table

MAX_CATEGORIES = 50  # distinct texts that a one-hot coded column may have


def from_table(
    table: Table,
    label: str | None,
    silo: str | None,
    columns: Sequence[str] | None,
    known: Mapping[str, Any] | None = None,
    bins: Sequence[float] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """Return the features, classes and silos of the records (rows) of a table, and notes.

    ``label``, ``silo`` and ``columns`` name columns. ``known`` are the declared ranges of columns,
    as `selection.declared_columns` returns them. If the label column holds numbers, ``bins`` are
    the edges of the intervals that become classes.

    Returns
    -------
    features : ndarray, shape (n, p - 1)
        The constant feature, which is added later, is the p-th.
    classes : ndarray of int64, shape (n,)
    silos : ndarray of int64, shape (n,), or None
        None if ``silo`` is None.
    notes : tuple of str
        Caveats for the certificate.
    """
    if label is None:
        raise InputError(
            f"label must name the column of the classes in {table.path}: one of "
            f"{', '.join(filter(None, table.names))}"
        )
    table.check_name("label", label)
    if silo is not None:
        table.check_name("silo", silo)
        if silo == label:
            raise InputError(f"silo and label must be different columns, got {show(silo)} for both")
    label_notes: tuple[str, ...] = ()
    if bins is not None:
        classes, classes_note = binned(table, label, bins)
    else:
        classes = _classes(table, label)
        label_notes = _label_notes(table, label, classes)
    silos = None if silo is None else silo_numbers(table, silo)
    feature_names = feature_columns(table, {"label": label, "silo": silo}, columns)
    features, notes = features_of(table, feature_names, known or {})
    for name in dict.fromkeys([label, *feature_names]):
        if (
            name not in (known or {})
            and not table.is_numeric(name)
            and not (bins and name == label)
        ):
            _warn_about_texts(table, name, quoted=name == label)
    for note in label_notes:
        # Certificates of curves that send nothing have no notes, so this is a warning too.
        warnings.warn(f"{table.path}: {note}", stacklevel=2)
    if bins is not None:
        label_notes = (classes_note,)
    return features, classes, silos, (*notes, *label_notes)


def silo_names(table: Table, silo_column: str) -> list[str]:
    """Return the name of the silo of each record, from the column ``silo_column``."""
    cells = table.complete("silo", silo_column)
    name_by_cell = {cell: plain_name(f"column {show(silo_column)}", cell) for cell in set(cells)}
    return [name_by_cell[cell] for cell in cells]


def silo_numbers(table: Table, silo: str) -> np.ndarray:
    """Return the silo of each record, int64 (n,), numbered in order of first appearance."""
    names = silo_names(table, silo)
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def feature_columns(
    table: Table, roles: Mapping[str, str | None], columns: Sequence[str] | None
) -> list[str]:
    """Return the names of the feature columns: ``columns``, or all that have no other role.

    ``roles`` maps roles, such as "label", to the columns that have them.
    """
    role_of = {name: role for role, name in roles.items() if name is not None}
    if columns is None:
        chosen = [name for name in table.names if name and name not in role_of]
        if not chosen:
            raise InputError(
                f"{table.path} must have columns besides {' and '.join(roles)}, found none"
            )
        return chosen
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InputError(f"columns must be a list of column names, got {show(columns)}")
    for name in columns:
        table.check_name("columns", name)
        if name in role_of:
            raise InputError(f"columns must not list the {role_of[name]} column, got {show(name)}")
    for name, count in Counter(columns).items():
        if count > 1:
            raise InputError(f"columns must name each column once, got {show(name)} twice")
    return list(columns)


def _category_positions(cells: list[str], categories: list[str]) -> list[int]:
    """Return the position of each cell in the list ``categories``.

    A cell that is no category gets len(categories). See `_cells.matched` for the comparison.
    """
    positions = {}
    for cell in set(cells):
        position = matched(cell, categories) if cell else None
        positions[cell] = len(categories) if position is None else position
    return [positions[cell] for cell in cells]


def _coded_by_range(
    table: Table, name: str, declared: tuple[float, float] | list[str]
) -> np.ndarray:
    """Return the features of a column whose range is declared.

    ``declared`` is the range: an interval of numbers gives features of shape (n, 2), and a list of
    k categories gives shape (n, k + 1). The last feature marks missing cells. The number of
    features does not depend on the data, and at most one feature of a row is not 0.
    """
    cells = table.column(name)
    if isinstance(declared, list):
        positions = _category_positions(cells, declared)
        present = [cell for cell in cells if cell not in MISSING]
        if present and min(positions) == len(declared):
            raise InputError(
                f"{table.path}: column {show(name)} must hold one of the texts of ranges.{name} in "
                f"some cell, got {show(present[0])} and none of {show(declared)}"
            )
        coded = np.zeros((len(cells), len(declared) + 1))
        coded[np.arange(len(cells)), positions] = 1.0
        return coded
    low, high = declared
    scaled = np.zeros((len(cells), 2))
    clipped = 0
    for row, cell in enumerate(cells):
        if cell in MISSING:
            scaled[row, 1] = 1.0
        elif NUMBER.fullmatch(cell):
            value = float(cell)
            clipped += not low <= value <= high
            scaled[row, 0] = (min(max(value, low), high) - low) / (high - low)
        else:
            raise InputError(
                f"{table.where[row]}: column {show(name)} must hold numbers, as its entry in "
                f"ranges is an interval, got {show(cell)}"
            )
    present_count = len(cells) - int(scaled[:, 1].sum())
    if 2 * clipped > present_count:
        # A certificate must not depend on cells, so this is a warning and no note.
        warnings.warn(
            f"{table.path}: column {show(name)} has {clipped} of {present_count} values outside "
            f"ranges.{name} = [{low:g}, {high:g}], and they are clipped: compare the units",
            stacklevel=2,
        )
    return scaled


def features_of(
    table: Table, names: list[str], declared: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the features (n, p - 1) of the named columns, and notes for the certificate.

    The constant feature, which is added later, is the p-th. ``declared`` maps columns to their
    declared ranges. All of these columns must be in ``names``.
    """
    for name in declared:
        if name not in names:
            raise InputError(f"ranges must be of feature columns, got {show(name)}")
    parts: list[np.ndarray] = []
    empty: list[str] = []
    too_broad: list[str] = []
    coded_as_text: list[str] = []
    identifiers: list[str] = []
    any_missing = False
    for name in names:
        if name in declared:
            parts.append(_coded_by_range(table, name, declared[name]))
            continue
        cells = table.column(name)
        absent = np.array([cell in MISSING for cell in cells])
        present = unified([cell for cell in cells if cell not in MISSING])
        if not present:
            empty.append(name)
            continue
        if _is_identifier(present):
            identifiers.append(name)
        if table.is_numeric(name):
            parts.append(_scaled_column(table, name, cells, absent))
        else:
            values = sorted(set(present))
            if len(values) > MAX_CATEGORIES:
                too_broad.append(name)
                continue
            coded_as_text.append(name)
            position = {value: i for i, value in enumerate(values)}
            coded = np.zeros((len(cells), len(values)))
            rows = np.flatnonzero(~absent)
            coded[rows, [position[cell] for cell in present]] = 1.0
            parts.append(coded)
        if absent.any():
            any_missing = True
            parts.append(absent[:, None].astype(np.float64))
    if too_broad:
        # In a column of mostly numbers, the first cell that is no number.
        first_texts = {name: table.mixed(name) for name in too_broad}
        value_counts = [
            f"{len(set(table.column(name)) - MISSING)} in {show(name)}"
            + (f" (no number: {first_texts[name]})" if first_texts[name] else "")
            for name in too_broad
        ]
        listed = ", ".join(value_counts[:10]) + (", ..." if too_broad[10:] else "")
        raise InputError(
            f"{table.path}: text columns must have at most {MAX_CATEGORIES} distinct values, got "
            f"{listed}: correct them, or leave them out by listing the others in columns"
        )
    if not parts:
        raise InputError(f"{table.path} must have a feature column with values, found none")
    for name in identifiers:
        # A certificate must not depend on cells, so this is a warning and no note.
        warnings.warn(
            f"{table.path}: column {show(name)} has a different value in each record: if it "
            "identifies records or people, leave it out by listing the other columns in columns",
            stacklevel=2,
        )
    if len(declared) == len(names):
        return np.hstack(parts), ("features are scaled and coded by declared ranges",)
    public_facts = "the least and largest value of each column"
    public_facts += " that is not declared" if declared else ""
    public_facts += ", the categories" if coded_as_text else ""
    public_facts += " and which columns have missing values" if any_missing else ""
    notes = [f"features are scaled and coded from the data: {public_facts} are taken as public"]
    # Notes name columns only: a certificate must not contain cells.
    mostly_numbers = [name for name in coded_as_text if table.mixed(name)]
    if mostly_numbers:
        notes.append(
            "columns with numbers in most cells and texts in others are coded as texts: "
            f"{', '.join(mostly_numbers)}"
        )
    if empty:
        notes.append(f"columns without any value are left out: {', '.join(empty)}")
    return np.hstack(parts), tuple(notes)


def _is_identifier(cells: list[str]) -> bool:
    """Return True if a column's cells seem to identify records: all of them differ.

    The cells must all be whole numbers, or none of them a number: measurements with decimals may
    all differ too. Return False for few cells, which may all differ by chance.
    """
    if len(set(cells)) < len(cells):
        return False
    numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells)
    all_whole = all(cell.lstrip("+-").isdecimal() for cell in cells)
    return len(cells) >= _MANY_NUMBERS if all_whole else not numbers and len(cells) >= _MANY_TEXTS


def _warn_about_texts(table: Table, name: str, quoted: bool) -> None:
    """Warn if a column of texts has dates, numbers with units, or texts that differ in case only.

    Each different text is a class or a category. This is a warning and not a note, because notes
    are copied to the certificate, which must not depend on cells. With ``quoted``, the warning
    quotes texts. Set ``quoted`` only for labels, since their classes are public actions.
    """
    texts = {cell for cell in table.column(name) if cell not in MISSING}
    by_case: dict[str, list[str]] = {}
    for text in sorted(texts):
        by_case.setdefault(text.casefold(), []).append(text)
    variants = [
        " and ".join(map(show, spellings)) for spellings in by_case.values() if len(spellings) > 1
    ]
    if variants:
        found_text = variants[0] if quoted else "texts that differ in upper and lower case only"
        warnings.warn(
            f"{table.path}: column {show(name)} has {found_text}, which count as different: write "
            "them in the same way if they mean the same",
            stacklevel=3,
        )
    elif texts and all(_DATE.match(text) for text in texts):
        warnings.warn(
            f"{table.path}: column {show(name)} has dates, and each date is a category: leave it "
            "out by listing the others in columns, or write a number, such as days",
            stacklevel=3,
        )
    elif texts and all(_NUMBER_WITH_UNIT.match(text) for text in texts):
        warnings.warn(
            f"{table.path}: column {show(name)} has numbers with units or separators of thousands, "
            "and each is a category: write plain numbers",
            stacklevel=3,
        )


#: A number that is not plain: with a unit, a percent sign, or separators of thousands.
_NUMBER_WITH_UNIT = re.compile(r"[-+]?\d[\d.,' ]*(\s[^\W\d]{1,6}|\s?%)?$")
#: How a date begins: year, month and day, or the reverse.
_DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})\b")


def _scaled_column(table: Table, name: str, cells: list[str], absent: np.ndarray) -> np.ndarray:
    """Return a numeric column scaled to [0, 1] by its least and largest value, shape (n, 1).

    ``absent`` (n,) marks missing cells. They become 0, and so does a constant column.
    """
    values = np.array(
        [
            0.0 if missing else float(cell)
            for cell, missing in zip(cells, absent.tolist(), strict=True)
        ]
    )
    infinite = np.flatnonzero(~np.isfinite(values))
    if len(infinite):
        table.refuse_infinite(name, int(infinite[0]))
    low, high = float(values[~absent].min()), float(values[~absent].max())
    width = high - low
    if not math.isfinite(width):
        raise InputError(f"{table.path}: column {show(name)} spans more than a float64 can hold")
    scaled = (values - low) / width if width > 0 else np.zeros_like(values)
    return np.where(absent, 0.0, scaled)[:, None]


def _classes(table: Table, label: str) -> np.ndarray:
    """Return the class of each record, int64 (n,), from the label column.

    Classes are numbered in the order of the labels: by value if all are numbers, else as texts.
    """
    cells = table.complete("label", label)
    numeric = all(NUMBER.fullmatch(cell) for cell in cells)
    # Decimal is exact. As floats, long identifiers could be rounded to the same class.
    keys: list[Any] = _decimals(table, label, cells) if numeric else unified(cells)
    values = sorted(set(keys))
    position = {value: i for i, value in enumerate(values)}
    classes = np.array([position[key] for key in keys], dtype=np.int64)
    if len(values) < 2:
        raise InputError(
            f"{table.path}: label {show(label)} must have at least 2 classes, got only "
            f"{show(cells[0])}"
        )
    if len(values) > MAX_CLASSES or (len(values) == len(cells) > 2):
        raise InputError(
            f"{table.path}: label {show(label)} must be a class (at most {MAX_CLASSES} classes, "
            f"some in two records), got {len(values)} distinct values in {len(cells)} records"
        )
    return classes


#: A label probably holds numbers, not classes, if it has more than _MANY_CLASSES different values
#: and on average fewer than _FEW_RECORDS records of each value.
_MANY_CLASSES, _FEW_RECORDS = 20, 10
#: A label with fractions such as 1.5 probably holds numbers if it has more values than this.
_MANY_FRACTION_CLASSES = 10
#: In a feature column with fewer cells that are whole numbers, or texts, all may differ by chance.
_MANY_NUMBERS, _MANY_TEXTS = 50, 20
#: A label with fractions and with more values than this is refused: a run would take too long.
_MAX_FRACTION_CLASSES = 100


def _label_notes(table: Table, label: str, classes: np.ndarray) -> tuple[str, ...]:
    """Return a note for the certificate if the label column seems to hold numbers, not classes.

    ``classes`` (n,) are the classes of the records. Raises InputError if there are more than 100
    different numbers, and not all of them are integers.
    """
    actions, count = int(classes.max()) + 1, len(classes)
    fractions = actions > _MANY_FRACTION_CLASSES and any(
        "." in cell and float(cell) % 1.0
        for cell in set(table.column(label))
        if NUMBER.fullmatch(cell)
    )
    if fractions and actions > _MAX_FRACTION_CLASSES:
        raise InputError(
            f"{table.path}: label {show(label)} must be a class, got {actions} numbers in {count} "
            "records: make a few classes of it by bins"
        )
    if not fractions and (actions <= _MANY_CLASSES or count >= _FEW_RECORDS * actions):
        return ()
    return (
        f"label {show(label)} has {actions} values in {count} records, and each is an action: if "
        "it is a number, make a few classes of it by bins",
    )


def _decimals(table: Table, label: str, cells: list[str]) -> list[Decimal]:
    """Return the numeric cells of the label column as exact decimals."""
    decimals = []
    for cell, line in zip(cells, table.where, strict=True):
        try:
            decimals.append(Decimal(cell))
        except InvalidOperation:
            raise InputError(
                f"{line}: label {show(label)} must have an exponent in range, got {show(cell)}"
            ) from None
    return decimals
