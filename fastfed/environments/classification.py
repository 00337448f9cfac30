"""Classification as a bandit: an action for each class, reward 1 for the right one.

Records of a table (one silo per hospital, bank or campaign, if a column or the files say so), or
the digits of scikit-learn, become queries that offer one feature vector for each class.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, integer, nearest, number, show
from fastfed.environments.base import MAX_DIMENSION
from fastfed.environments.pool import MADE_BEFORE, Pool, PoolEnvironment
from fastfed.environments.replay import CODINGS, DIMENSION, MAX_CLASSES, Records, records_pool
from fastfed.environments.tables import (
    MISSING,
    NUMBER,
    SILO,
    Table,
    digest_of,
    is_table,
    read_table,
)

MAX_CATEGORIES = 50  # distinct texts that a one-hot coded column may have


# ---- The pool ------------------------------------------------------------------------------------


def classification_pool(
    data: Any,
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
    data : str, path, list of paths, frame or mapping
        "digits" (scikit-learn's 1 797 images of 64 pixels), "randhie" (4 902 people of the RAND
        health insurance experiment, from statsmodels) or a table, see `tables.read_table`.
    silos : int or None
        M. Without a silo column the records are split into M equal contiguous blocks; with one,
        silos may be None or must be the number of its values.
    dimension : int
        d of the features phi(c, a) that the learner sees.
    label : str, optional
        The column of the classes (tables only, required there).
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
    if isinstance(data, str) and data in SHIPPED:
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
        if not is_table(data):
            raise _no_data(data)
        table = read_table(data)
        known = _ranges(table, ranges)
        features, classes, owner, notes = _from_table(table, label, silo, columns, known)
        notes = (*table.notes, *notes)
        count = len(_chosen(table, str(label), silo, columns))
        declared = len(known) == count
        if declared and norm is None:
            norm = math.sqrt(count + 1.0)
    if owner is None:
        if silos is not None and silos > len(features):
            raise InputError(f"silos must be at most the {len(features)} records, got {silos}")
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


def _no_data(data: object) -> InputError:
    known = " or ".join(f'"{name}"' for name in SHIPPED)
    hint = nearest(data, list(SHIPPED)) if isinstance(data, str) else ""
    if isinstance(data, np.ndarray):
        kind = f"an array of shape {data.shape}: records of arrays are Classification.from_arrays"
        return InputError(f"data must be tables, got {kind}")
    if isinstance(data, str) and not hint:
        hint = ": there is no such file"
    return InputError(
        f"data must be {known}, an existing CSV file, a folder or list of them, or a data frame, "
        f"got {show(data)}{hint}"
    )


# ---- Columns of a CSV file -----------------------------------------------------------------------


def _ranges(table: Table, given: Any) -> dict[str, tuple[float, float] | list[str]]:
    """Return the declared interval or categories of each column."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(
            f"ranges must be a table of columns, such as {{ age = [20, 80] }}, got {show(given)}"
        )
    found: dict[str, tuple[float, float] | list[str]] = {}
    for name, value in given.items():
        table.check_name("ranges", name)
        where = f"ranges.{name}"
        entries = list(value) if isinstance(value, (list, tuple)) else []
        if entries and all(isinstance(entry, str) for entry in entries):
            if len(set(entries)) < len(entries) or MISSING & set(entries):
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
    table: Table,
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
    table.check_name("label", label)
    if silo is not None:
        table.check_name("silo", silo)
        if silo == label:
            raise InputError(f"silo must be another column than label, got {show(silo)} for both")
    classes = _classes(table, label)
    owner = None
    if silo is not None:
        names = table.complete("silo", silo)
        first = {name: i for i, name in enumerate(dict.fromkeys(names))}
        owner = np.array([first[name] for name in names])
    chosen = _chosen(table, label, silo, columns)
    for name in known or ():
        if name not in chosen:
            raise InputError(f"ranges must be of feature columns, got {show(name)}")
    features, notes = _features(table, chosen, known or {})
    return features, classes, owner, notes


def _chosen(table: Table, label: str, silo: str | None, columns: Sequence[str] | None) -> list[str]:
    """Return the names of the feature columns."""
    if columns is None:
        chosen = [name for name in table.names if name and name not in (label, silo)]
        if not chosen:
            raise InputError(f"{table.path} must have a column beside label and silo, found none")
        return chosen
    if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
        raise InputError(f"columns must be a list of column names, got {show(columns)}")
    for name in columns:
        table.check_name("columns", name)
        if name in (label, silo):
            role = "label" if name == label else "silo"
            raise InputError(f"columns must not list the {role} column, got {show(name)}")
    for name, many in Counter(columns).items():
        if many > 1:
            raise InputError(f"columns must name each column once, got {show(name)} twice")
    return list(columns)


def _places(cells: list[str], known: list[str]) -> list[int]:
    """Position of each cell among the texts of a range, len(known) for others: 4.0 is "4"."""
    at = {value: i for i, value in enumerate(known)}
    numbers = {float(value): i for value, i in at.items() if NUMBER.fullmatch(value)}
    found = {}
    for cell in set(cells):
        number = numbers.get(float(cell)) if NUMBER.fullmatch(cell) else None
        found[cell] = at.get(cell, len(known) if number is None else number)
    return [found[cell] for cell in cells]


def _declared(table: Table, name: str, known: tuple[float, float] | list[str]) -> np.ndarray:
    """Code a column by its declared range, with a mark of missing cells: (n, 2 or categories + 1).

    The width does not depend on the data, and at most one number of a row is not 0.
    """
    cells = table.column(name)
    if isinstance(known, list):
        places = _places(cells, known)
        present = [cell for cell in cells if cell not in MISSING]
        if present and min(places) == len(known):
            raise InputError(
                f"{table.path}: column {show(name)} must hold one of the texts of ranges.{name} in "
                f"some cell, got {show(present[0])} and none of {show(known)}"
            )
        coded = np.zeros((len(cells), len(known) + 1))
        coded[np.arange(len(cells)), places] = 1.0
        return coded
    low, high = known
    scaled = np.zeros((len(cells), 2))
    for row, cell in enumerate(cells):
        if cell in MISSING:
            scaled[row, 1] = 1.0
        elif NUMBER.fullmatch(cell):
            scaled[row, 0] = (min(max(float(cell), low), high) - low) / (high - low)
        else:
            raise InputError(
                f"{table.where[row]}: column {show(name)}, which ranges has as "
                f"numbers, must hold one, got {show(cell)}"
            )
    return scaled


def _features(
    table: Table, names: list[str], known: Mapping[str, Any]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the scaled, one-hot and missing-marker columns (n, p - 1) of the named columns."""
    parts: list[np.ndarray] = []
    empty: list[str] = []
    broad: list[str] = []
    coded_as_text: list[str] = []
    missing = False
    for name in names:
        if name in known:
            parts.append(_declared(table, name, known[name]))
            continue
        cells = table.column(name)
        absent = np.array([cell in MISSING for cell in cells])
        present = [cell for cell in cells if cell not in MISSING]
        if not present:
            empty.append(name)
            continue
        if table.numbers(name):
            parts.append(_scaled(table, name, cells, absent))
        else:
            values = sorted(set(present))
            if len(values) > MAX_CATEGORIES:
                broad.append(name)
                continue
            coded_as_text.append(name)
            at = {value: i for i, value in enumerate(values)}
            coded = np.zeros((len(cells), len(values)))
            rows = np.flatnonzero(~absent)
            coded[rows, [at[cell] for cell in present]] = 1.0
            parts.append(coded)
        if absent.any():
            missing = True
            parts.append(absent[:, None].astype(np.float64))
    if broad:
        odd = {name: table.mixed(name) for name in broad}
        each = [
            f"{len(set(table.column(name)) - MISSING)} in {show(name)}"
            + (f" (no number: {odd[name]})" if odd[name] else "")
            for name in broad
        ]
        listed = ", ".join(each[:10]) + (", ..." if broad[10:] else "")
        raise InputError(
            f"{table.path}: text columns must have at most {MAX_CATEGORIES} distinct values, got "
            f"{listed}: correct them, or leave them out by listing the others in columns"
        )
    if not parts:
        raise InputError(f"{table.path} must have a feature column with values, found none")
    if len(known) == len(names):
        return np.hstack(parts), ("features are scaled and coded by declared ranges",)
    what = "the least and largest value of each column"
    what += " that is not declared" if known else ""
    what += ", the categories" if coded_as_text else ""
    what += " and which columns have missing values" if missing else ""
    notes = [f"features are scaled and coded from the data: {what} are taken as public"]
    # Names alone: a certificate holds no cell.
    slips = [name for name in coded_as_text if table.mixed(name)]
    if slips:
        notes.append(
            f"columns that are numbers but for some cells are coded as texts: {', '.join(slips)}"
        )
    if empty:
        notes.append(f"columns without any value are left out: {', '.join(empty)}")
    return np.hstack(parts), tuple(notes)


def _scaled(table: Table, name: str, cells: list[str], absent: np.ndarray) -> np.ndarray:
    """Scale a numeric column to [0, 1], (n, 1); 0 where it is absent or constant."""
    values = np.array(
        [0.0 if gone else float(cell) for cell, gone in zip(cells, absent.tolist(), strict=True)]
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
    """Return the class of each record, int64 (n,); numeric labels are sorted by size."""
    cells = table.complete("label", label)
    numeric = all(NUMBER.fullmatch(cell) for cell in cells)
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


def _exact(table: Table, label: str, cells: list[str]) -> list[Decimal]:
    """Return numeric labels as exact decimals."""
    found = []
    for cell, line in zip(cells, table.where, strict=True):
        try:
            found.append(Decimal(cell))
        except InvalidOperation:
            raise InputError(
                f"{line}: label {show(label)} must have an exponent within reach, got {show(cell)}"
            ) from None
    return found


# ---- The environment -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Classification(PoolEnvironment):
    """Classification as a bandit: a record is a user, reward 1 for its class and 0 for others.

    Records are met without replacement by default, so each round is a new user. Scales that are
    not declared are read from the data, and then the certificate is "conditional": one record may
    move the features of all others.

    Parameters
    ----------
    data : str, path, list of paths, frame or mapping
        "digits" (scikit-learn's, ten classes), "randhie" (the RAND health insurance experiment,
        from statsmodels: two classes, 4 902 people); a CSV file; a folder or list of CSV files, or
        a mapping of names to tables, one for each silo; or a data frame (pandas, polars, Arrow),
        see `tables.read_table`. ``from_arrays`` takes arrays.
    dimension : int
        d of the projection.
    label : str, optional
        The column of the classes, required for a table.
    silo : str, optional
        The column that names each record's silo; "silo" where each has a table of its own.
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
                    raise InputError(f"{name} goes with a table; arrays come by from_arrays")
            return
        if self._shipped:
            return
        if not is_table(self.data):
            raise _no_data(self.data)
        several = isinstance(self.data, (list, tuple, Mapping)) or (
            isinstance(self.data, (str, Path)) and os.path.isdir(self.data)
        )
        if several and self.silo is None:
            self.silo = SILO

    @property
    def _shipped(self) -> bool:
        return isinstance(self.data, str) and self.data in SHIPPED

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
        classes : array_like, shape (n,)
            Classes: integers 0 to K - 1, or texts, whose classes are in alphabetical order.
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
            name = Path(self.data).name if isinstance(self.data, (str, Path)) else "tables"
            if not self._shipped:
                digest = digest_of(self.data)
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
