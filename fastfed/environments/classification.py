"""Classification as a bandit: an action for each class, reward 1 for the right one.

Records of a CSV file (one silo per hospital, bank or campaign, if a column says so), or the digits
of scikit-learn, become queries that offer one feature vector for each class.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, integer, nearest, number, show
from fastfed.environments.base import MAX_DIMENSION
from fastfed.environments.pool import MADE_BEFORE, Pool, PoolEnvironment
from fastfed.environments.replay import CODINGS, DIMENSION, MAX_CLASSES, Records, records_pool

MAX_CATEGORIES = 50  # distinct texts that a one-hot coded column may have
_MISSING = frozenset({"", "?", "NA", "nan", "NaN", "NAN"})
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)


# ---- The pool ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """A CSV file: column names, cells as text, and the last line of each record."""

    path: str
    names: list[str]
    cells: list[list[str]]
    lines: list[int]

    @cached_property
    def positions(self) -> dict[str, int]:
        """Position of each column that has a name."""
        return {name: i for i, name in enumerate(self.names) if name}

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        at = self.positions[name]
        return [row[at] for row in self.cells]


def classification_pool(
    data: str | Path,
    silos: int | None,
    dimension: int,
    label: str | None = None,
    silo: str | None = None,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    coding: str = "projection",
    ranges: Mapping[str, Any] | None = None,
    norm: float | None = None,
) -> Pool:
    """Make a pool with one query per record and one action per class.

    A declared column is scaled or coded by its range, and gets one more column that marks missing
    cells. Of the others a numeric column is scaled to [0, 1] by its least and largest value, any
    other is one-hot coded; "?", "NA", "NaN" and empty cells become 0, and their column gets one
    more that marks them. ``records_pool`` says how features and rewards of an action follow.

    Parameters
    ----------
    data : str or Path
        "digits" (scikit-learn's 1 797 images of 64 pixels), "randhie" (4 902 people of the RAND
        health insurance experiment, from statsmodels) or the path of a CSV file with a header
        (.csv, .csv.gz; UTF-8).
    silos : int or None
        M. Without a silo column the records are split into M equal contiguous blocks; with one,
        silos may be None or must be the number of its values.
    dimension : int
        d of the features phi(c, a) that the learner sees.
    label : str, optional
        The column of the classes (CSV only, required there).
    silo : str, optional
        The column that names each record's silo; silos are its values in order of first
        appearance. Neither label nor silo enters the features.
    seed : int
        Seed of the projections. A public constant, not the seed of an experiment.
    columns : sequence of str, optional
        The feature columns; all but label and silo by default. Columns without a name (the
        leftovers of spreadsheets, row numbers) are never features.
    coding : {"projection", "blocks"}
        Coding of an action's features; with "blocks" dimension is not used.
    ranges : mapping, optional
        Knowledge of columns that does not come from the data: [low, high], to which values are
        clipped, or a list of categories; any other text counts as missing.
    norm : float, optional
        Bound on the norm of a record's features and a constant 1, see ``records_pool``. With
        ranges of all columns it is sqrt(columns + 1), since at most one number of each column is
        not 0.

    Returns
    -------
    Pool
        The pool.

    Raises
    ------
    InputError
        For unreadable files, unknown columns, records without label or silo, labels with one
        class, silos that do not fit, and text columns of more than 50 values.
    """
    dimension = integer("dimension", dimension, at_least=1)
    seed = integer("seed", seed, at_least=0)
    if silos is not None:
        silos = integer("silos", silos, at_least=1)
    if str(data) in SHIPPED:
        given = {"label": label, "silo": silo, "columns": columns, "ranges": ranges}
        for name, value in given.items():
            if value is not None:
                raise InputError(f'{name} must be left out with data "{data}", got {show(value)}')
        features, classes, usual, *told = SHIPPED[str(data)]()
        norm = usual if norm is None else norm
        owner = None
        notes: tuple[str, ...] = tuple(told)
        declared = True  # by limits that are known without the records
    else:
        table = _read(data)
        known = _ranges(table, ranges)
        features, classes, owner, notes = _from_table(table, label, silo, columns, known)
        count = len(_chosen(table, str(label), silo, columns))
        declared = len(known) == count
        if declared and norm is None:
            norm = math.sqrt(count + 1.0)
    if owner is None:
        if silos is not None and silos > len(features):
            raise InputError(
                f"silos must be at most the {len(features)} records of {data}, got {silos}"
            )
    else:
        found = int(owner.max()) + 1
        if silos not in (None, found):
            raise InputError(
                f"silos must be the {found} values of the silo column {show(silo)}, got {silos}"
            )
    records = Records(features, classes, owner, norm)
    return records_pool(records, silos, dimension, seed, coding, notes, declared)


def _digits() -> tuple[Any, ...]:
    """Return features (1797, 64) in [0, 1] and classes 0 .. 9 of scikit-learn's digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            'data "digits" needs scikit-learn, which is not installed: pip install fastfed[data]'
        ) from None
    loaded = load_digits()
    # Divided by the largest value that a pixel can have.
    return np.asarray(loaded.data) / 16.0, np.asarray(loaded.target, dtype=np.int64), None


#: Columns of the RAND experiment: (least, largest) by the code book, and their place in a row.
_RANDHIE = {
    "lncoins": (0.0, 4.62, -1.0, 1.0),
    "idp": (0.0, 1.0, 0.0, 1.0),
    "lpi": (0.0, 7.2, -1.0, 1.0),
    "fmde": (0.0, 8.3, -1.0, 1.0),
    "physlm": (0.0, 1.0, 0.0, 1.0),
    "disea": (0.0, 60.0, 0.0, 3.0),
    "hlthg": (0.0, 1.0, 0.0, 1.0),
    "hlthf": (0.0, 1.0, 0.0, 1.0),
    "hlthp": (0.0, 1.0, 0.0, 1.0),
}
#: What tells people apart: health as it was at the start, the same in all rows of a person.
_PERSON = ("disea", "physlm", "hlthg", "hlthf", "hlthp")


def _randhie() -> tuple[Any, ...]:
    """Return the RAND health insurance experiment: who sees a doctor twice a year or more.

    Features (people, 9) are terms of the insurance and health, by limits of the code book; the
    first year of each person, as far as the rows tell people apart. Classes: fewer than two visits,
    or more. People stand in a fixed random order, so that families, who stand together in the file,
    are dealt out to all silos. Deb and Trivedi 2002; the file comes with statsmodels.
    """
    try:
        from statsmodels.datasets import randhie  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            'data "randhie" needs statsmodels, which is not installed: pip install fastfed[data]'
        ) from None
    table = randhie.load_pandas().data
    health = table[list(_PERSON)].to_numpy()
    first = np.append(True, (health[1:] != health[:-1]).any(axis=1))
    columns = []
    for name, (low, high, to_low, to_high) in _RANDHIE.items():
        share = (np.clip(table[name].to_numpy(dtype=np.float64), low, high) - low) / (high - low)
        columns.append(to_low + (to_high - to_low) * share)
    classes = (table["mdvis"].to_numpy() >= 2).astype(np.int64)
    note = (
        "randhie has no column of people: rows in a row with the same health are taken as one "
        "person, of whom the first year is kept; people are dealt out at random, families too"
    )
    order = np.flatnonzero(first)
    np.random.Generator(np.random.PCG64(0)).shuffle(order)
    return np.column_stack(columns)[order], classes[order], 2.2, note


#: Data that ship inside a package: features, classes, the usual norm, and notes.
SHIPPED: dict[str, Callable[[], tuple[Any, ...]]] = {"digits": _digits, "randhie": _randhie}


def _quoted(name: str) -> str:
    return f'"{name}"'


# ---- Columns of a CSV file -----------------------------------------------------------------------


def _ranges(table: _Table, given: Any) -> dict[str, tuple[float, float] | list[str]]:
    """Return the declared interval or categories of each column."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"ranges must be a table of columns, such as {{ age = [20, 80] }}, got {show(given)}"
        )
    found: dict[str, tuple[float, float] | list[str]] = {}
    for name, value in given.items():
        _known("ranges", name, table)
        where = f"ranges.{name}"
        entries = list(value) if isinstance(value, (list, tuple)) else []
        if entries and all(isinstance(entry, str) for entry in entries):
            if len(set(entries)) < len(entries) or _MISSING & set(entries):
                raise InputError(f"{where} must name each category once, got {show(value)}")
            found[name] = entries
        elif len(entries) == 2:
            low = number(where, entries[0])
            high = number(where, entries[1], above=low)
            if not math.isfinite(high - low):
                raise InputError(f"{where} spans more than a float64 can hold")
            found[name] = low, high
        else:
            raise InputError(f"{where} must be [low, high] or a list of texts, got {show(value)}")
    return found


def _from_table(
    table: _Table,
    label: str | None,
    silo: str | None,
    columns: Sequence[str] | None,
    known: Mapping[str, Any] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, tuple[str, ...]]:
    """Return features (n, p - 1), classes (n,), silo of each record (n,) or None, and notes."""
    if label is None:
        raise InputError(
            f"label must name the column of the classes in {table.path}: one of "
            f"{', '.join(filter(None, table.names))}"
        )
    _known("label", label, table)
    if silo is not None:
        _known("silo", silo, table)
        if silo == label:
            raise InputError(f"silo must be another column than label, got {show(silo)} for both")
    classes = _classes(table, label)
    owner = None
    if silo is not None:
        names = _complete(table, "silo", silo)
        first = {name: i for i, name in enumerate(dict.fromkeys(names))}
        owner = np.array([first[name] for name in names])
    chosen = _chosen(table, label, silo, columns)
    for name in known or ():
        if name not in chosen:
            raise InputError(f"ranges must be of feature columns, got {show(name)}")
    features, notes = _features(table, chosen, known or {})
    return features, classes, owner, notes


def _chosen(
    table: _Table, label: str, silo: str | None, columns: Sequence[str] | None
) -> list[str]:
    """Return the names of the feature columns."""
    if columns is None:
        chosen = [name for name in table.names if name and name not in (label, silo)]
        if not chosen:
            raise InputError(f"{table.path} must have a column beside label and silo, found none")
        return chosen
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InputError(f"columns must be a list of column names, got {show(columns)}")
    for name in columns:
        _known("columns", name, table)
        if name in (label, silo):
            role = "label" if name == label else "silo"
            raise InputError(f"columns must not list the {role} column, got {show(name)}")
    for name, many in Counter(columns).items():
        if many > 1:
            raise InputError(f"columns must name each column once, got {show(name)} twice")
    return list(columns)


def _declared(table: _Table, name: str, known: tuple[float, float] | list[str]) -> np.ndarray:
    """Code a column by its declared range, with a mark of missing cells: (n, 2 or categories + 1).

    The width does not depend on the data, and at most one number of a row is not 0.
    """
    cells = table.column(name)
    if isinstance(known, list):
        at = {value: i for i, value in enumerate(known)}
        coded = np.zeros((len(cells), len(known) + 1))
        coded[np.arange(len(cells)), [at.get(cell, len(known)) for cell in cells]] = 1.0
        return coded
    low, high = known
    scaled = np.zeros((len(cells), 2))
    for row, cell in enumerate(cells):
        if cell in _MISSING:
            scaled[row, 1] = 1.0
        elif _DECIMAL.fullmatch(cell):
            scaled[row, 0] = (min(max(float(cell), low), high) - low) / (high - low)
        else:
            raise InputError(
                f"{table.path}:{table.lines[row]}: column {show(name)}, which ranges has as "
                f"numbers, must hold one, got {show(cell)}"
            )
    return scaled


def _features(
    table: _Table, names: list[str], known: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the scaled, one-hot and missing-marker columns (n, p - 1) of the named columns."""
    parts: list[np.ndarray] = []
    empty: list[str] = []
    broad: list[str] = []
    text = missing = False
    for name in names:
        if name in known:
            parts.append(_declared(table, name, known[name]))
            continue
        cells = table.column(name)
        absent = np.array([cell in _MISSING for cell in cells])
        present = [cell for cell in cells if cell not in _MISSING]
        if not present:
            empty.append(name)
            continue
        if all(_DECIMAL.fullmatch(cell) for cell in present):
            parts.append(_scaled(table, name, cells, absent))
        else:
            values = sorted(set(present))
            if len(values) > MAX_CATEGORIES:
                broad.append(name)
                continue
            text = True
            at = {value: i for i, value in enumerate(values)}
            coded = np.zeros((len(cells), len(values)))
            rows = np.flatnonzero(~absent)
            coded[rows, [at[cell] for cell in present]] = 1.0
            parts.append(coded)
        if absent.any():
            missing = True
            parts.append(absent[:, None].astype(np.float64))
    if broad:
        listed = ", ".join(show(name) for name in broad[:10]) + (", ..." if broad[10:] else "")
        raise InputError(
            f"{table.path}: text columns must have at most {MAX_CATEGORIES} distinct values, got "
            f"more in {listed}: leave them out by listing the others in columns"
        )
    if not parts:
        raise InputError(f"{table.path} must have a feature column with values, found none")
    if len(known) == len(names):
        return np.hstack(parts), ("features are scaled and coded by declared ranges",)
    what = "the least and largest value of each column"
    what += " that is not declared" if known else ""
    what += ", the categories" if text else ""
    what += " and which columns have missing values" if missing else ""
    notes = [f"features are scaled and coded from the data: {what} are taken as public"]
    if empty:
        notes.append(f"columns without any value are left out: {', '.join(empty)}")
    return np.hstack(parts), tuple(notes)


def _scaled(table: _Table, name: str, cells: list[str], absent: np.ndarray) -> np.ndarray:
    """Scale a numeric column to [0, 1], (n, 1); 0 where it is absent or constant."""
    values = np.array(
        [0.0 if gone else float(cell) for cell, gone in zip(cells, absent.tolist(), strict=True)]
    )
    infinite = np.flatnonzero(~np.isfinite(values))
    if len(infinite):
        row = int(infinite[0])
        raise InputError(
            f"{table.path}:{table.lines[row]}: column {show(name)} must be finite, "
            f"got {show(cells[row])}"
        )
    low, high = float(values[~absent].min()), float(values[~absent].max())
    width = high - low
    if not math.isfinite(width):
        raise InputError(f"{table.path}: column {show(name)} spans more than a float64 can hold")
    scaled = (values - low) / width if width > 0 else np.zeros_like(values)
    return np.where(absent, 0.0, scaled)[:, None]


def _classes(table: _Table, label: str) -> np.ndarray:
    """Return the class of each record, int64 (n,); numeric labels are sorted by size."""
    cells = _complete(table, "label", label)
    numeric = all(_DECIMAL.fullmatch(cell) for cell in cells)
    # Exact numbers: as floats, identifiers of many digits would become one class.
    keys: list[Any] = _exact(table, label, cells) if numeric else cells
    values = sorted(set(keys))
    at = {value: i for i, value in enumerate(values)}
    classes = np.array([at[key] for key in keys], dtype=np.int64)
    if len(values) < 2:
        raise InputError(
            f"{table.path}: label {show(label)} must have at least 2 classes, got only "
            f"{show(cells[0])}"
        )
    if len(values) > MAX_CLASSES or (len(values) == len(cells) > 2):
        raise InputError(
            f"{table.path}: label {show(label)} must be a class (at most {MAX_CLASSES} of them, "
            f"some met twice), got {len(values)} distinct values in {len(cells)} records"
        )
    return classes


def _exact(table: _Table, label: str, cells: list[str]) -> list[Decimal]:
    """Return numeric labels as exact decimals."""
    found = []
    for cell, line in zip(cells, table.lines, strict=True):
        try:
            found.append(Decimal(cell))
        except InvalidOperation:
            raise InputError(
                f"{table.path}:{line}: label {show(label)} must have an exponent within reach, "
                f"got {show(cell)}"
            ) from None
    return found


def _complete(table: _Table, role: str, name: str) -> list[str]:
    """Return the cells of a column; InputError if one is missing."""
    cells = table.column(name)
    for cell, line in zip(cells, table.lines, strict=True):
        if cell in _MISSING:
            raise InputError(
                f"{table.path}:{line}: {role} {show(name)} must be given for every record, "
                f"got {show(cell)}"
            )
    return cells


def _known(key: str, name: object, table: _Table) -> None:
    """Raise InputError unless name is a column of the table."""
    if not isinstance(name, str) or name not in table.positions:
        named = list(table.positions)
        hint = nearest(str(name), named) or "; it has " + ", ".join(named[:20])
        raise InputError(f"{key} must be a column of {table.path}, got {show(name)}{hint}")


def _read(data: str | Path) -> _Table:
    """Read header and records of a CSV file; cells are stripped, blank lines skipped."""
    path = Path(data)
    if not os.path.isfile(path):
        hint = nearest(str(data), list(SHIPPED))
        raise InputError(
            f"data must be {' or '.join(map(_quoted, SHIPPED))} or a CSV file (.csv, .csv.gz), "
            f"got {show(str(data))}{hint}"
        )
    names: list[str] = []
    cells: list[list[str]] = []
    lines: list[int] = []
    for line, row in _records(path):
        if not names:
            names = row
            twice = [name for name, many in Counter(names).items() if name and many > 1]
            if twice:
                raise InputError(
                    f"{path}:{line}: column names must differ, got {show(twice[0])} twice"
                )
            continue
        if len(row) != len(names):
            raise InputError(
                f"{path}:{line}: expected {len(names)} cells as in the header, got {len(row)}"
            )
        cells.append(row)
        lines.append(line)
    if not cells:
        raise InputError(f"{path} must hold a header and at least one record, found none")
    return _Table(str(path), names, cells, lines)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, stripped cells) of every record that is not blank."""
    try:
        with path.open("rb") as raw:
            packed = path.name.endswith(".gz")
            stream = io.BytesIO(gzip.decompress(raw.read())) if packed else raw
            with io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
                reader = csv.reader(text, strict=True)
                for row in reader:
                    if any("\0" in cell for cell in row):
                        raise InputError(f"{path}:{reader.line_num}: must be text, got a NUL byte")
                    if any(cell.strip() for cell in row):
                        yield reader.line_num, [cell.strip() for cell in row]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(f"{path} must be UTF-8 text, got byte {byte:#04x}") from None
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: must be CSV, got damage: {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} must be a whole gzip file, got damage: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


# ---- The environment -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Classification(PoolEnvironment):
    """Classification as a bandit: a record is a user, reward 1 for its class and 0 for others.

    Records are met without replacement by default, so each round is a new user. Scales that are
    not declared are read from the data, and then the certificate is "conditional": one record may
    move the features of all others.

    Parameters
    ----------
    data : str or Path
        "digits" (scikit-learn's, ten classes), "randhie" (the RAND health insurance experiment,
        from statsmodels: two classes, 4 902 people) or a CSV file. ``from_arrays`` takes arrays.
    dimension : int
        d of the projection.
    label : str, optional
        The column of the classes, required for a CSV file.
    silo : str, optional
        The column that names each record's silo.
    columns : list of str, optional
        The feature columns; all others by default.
    projection_seed : int
        Seed of the public projection.
    coding : {"projection", "blocks"}
        Features of an action: a fixed public random projection of the record to ``dimension``
        numbers, or the record in the action's own block, see ``records_pool``.
    ranges : dict, optional
        Knowledge of columns that does not come from the data: [low, high] or a list of categories.
    norm : float, optional
        Bound on the norm of a scaled record and its constant 1, to which records are shrunk.
    sampling, reward, intercept
        See ``PoolEnvironment``.

    Raises
    ------
    InputError
        For bad options and missing files.
    """

    data: Any
    dimension: int = DIMENSION
    label: str | None = None
    silo: str | None = None
    columns: list[str] | None = None
    projection_seed: int = 0
    coding: str = "projection"
    ranges: Any = None
    norm: float | None = None
    sampling: str = "without-replacement"
    kind = "classification"
    records = "records"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("projection_seed", self.projection_seed, at_least=0, at_most=2**63 - 1)
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        choice("coding", self.coding, list(CODINGS))
        if self.coding == "blocks" and self.dimension != DIMENSION:
            raise InputError(
                f'dimension goes with coding = "projection", got {self.dimension}: '
                "blocks have one number for each action and feature"
            )
        if self.norm is not None:
            self.norm = number("norm", self.norm, above=0.0)
        if isinstance(self.data, Records):
            for name in ("ranges", "norm"):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} goes with a CSV file; arrays come by from_arrays")
            return
        named = isinstance(self.data, (str, Path))
        if not named or (str(self.data) not in SHIPPED and not os.path.exists(self.data)):
            known = " or ".join(map(_quoted, SHIPPED))
            raise InputError(f"data must be {known} or an existing CSV file, got {self.data!r}")

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        classes: Any,
        silo: Any = None,
        *,
        norm: float | None = None,
        coding: str = "blocks",
        dimension: int = DIMENSION,
        projection_seed: int = 0,
        sampling: str = "without-replacement",
        intercept: float | None = None,
    ) -> Classification:
        """Make the environment of records in arrays.

        Parameters
        ----------
        features : array_like, shape (n, p)
            Records.
        classes : array_like of int, shape (n,)
            Classes, 0 to K - 1.
        silo : array_like, shape (n,), optional
            Silo of each record, by any values; silos are numbered in order of first appearance.
        norm : float, optional
            Bound on the norm of a record and its constant 1, known without the data: longer
            records are shrunk to it, each by itself. With None the largest norm in the data is
            taken as public.
        coding, dimension, projection_seed, sampling, intercept
            See the class.

        Raises
        ------
        InputError
            For values that are not finite and shapes that do not agree.
        """
        return cls(
            data=Records.of(features, classes, silo, norm),
            silo=None if silo is None else "silo",
            coding=coding,
            dimension=dimension,
            projection_seed=projection_seed,
            sampling=sampling,
            intercept=intercept,
        )

    def load(self, silos: int | None) -> Pool:
        """Make the pool, its queries divided among M silos."""
        if silos is None and self.silo is None:
            raise InputError("silos is required: the data have no silo column")
        if isinstance(self.data, Records):
            known = self.data.silos
            if silos is not None and known not in (None, silos):
                raise InputError(f"silos must be {known}, those that silo names, got {silos}")
            given = (silos, self.dimension, self.projection_seed, self.coding)
            return records_pool(self.data, *given, notes=(MADE_BEFORE,))
        return classification_pool(
            self.data,
            silos,
            self.dimension,
            label=self.label,
            silo=self.silo,
            seed=self.projection_seed,
            columns=self.columns,
            coding=self.coding,
            ranges=self.ranges,
            norm=self.norm,
        )

    def declared_rewards(self) -> tuple[float, float]:
        """Return [0, 1]: 1 for the record's class and 0 for any other."""
        return 0.0, 1.0

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data name, or None."""
        return self.pool(None).silos if self.silo is not None else None

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        name, digest = "arrays", None
        if isinstance(self.data, Records):
            digest = self.data.digest()
        else:
            name = Path(self.data).name
            if str(self.data) not in SHIPPED:
                digest = hashlib.sha256(Path(self.data).read_bytes()).hexdigest()
        # The default coding is left out, so that results of earlier versions keep their identity.
        coding: dict[str, Any] = {} if self.coding == "projection" else {"coding": self.coding}
        for name in ("ranges", "norm"):
            if getattr(self, name) is not None:
                coding[name] = getattr(self, name)
        return {
            "kind": self.kind,
            **coding,
            "data": [name, digest],
            "dimension": self.dimension,
            "label": self.label,
            "silo": self.silo,
            "columns": self.columns,
            "projection_seed": self.projection_seed,
            "sampling": self.sampling,
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
            **self.later_keys,
        }
