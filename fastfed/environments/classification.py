"""Classification as a bandit: one action for each class, and reward 1 for the right class.

Every record becomes a query that offers one feature vector for each class. Records come from
tables, where a column or separate files may define the silos (hospitals, banks or campaigns), or
from data sets of scikit-learn and statsmodels.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, choice, constructed, integer, nearest, number, show
from fastfed.environments.coding import feature_columns, from_table, silo_names
from fastfed.environments.pool import ARRAYS_CAVEAT, Pool, PoolEnvironment
from fastfed.environments.replay import CODINGS, DIMENSION, Records, records_pool
from fastfed.environments.selection import (
    check_bins,
    check_missing,
    declared_columns,
    selected,
    with_missing,
)
from fastfed.environments.tables import (
    FILE_PARTS,
    SILO,
    Table,
    check_mapping,
    digest_of,
    has_several_tables,
    is_table,
    read_table,
)

# ---- Data sets of packages -----------------------------------------------------------------------


def _packaged(data: str, package: str, module: str, file: str) -> Path:
    """Return the path of a file that an installed package contains, without importing the package.

    The import would take longer than reading the file.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise InputError(
            f'data "{data}" needs {package}, which is not installed: pip install fastfed[data]'
        )
    path = Path(spec.origin).parent / "datasets" / file
    if not path.is_file():
        raise InputError(f'data "{data}" needs a version of {package} that contains {path}')
    return path


def _digits() -> tuple[Any, ...]:
    """Return the digits of scikit-learn as (features, classes, default norm).

    Features (1797, 64) are in [0, 1], classes are 0 to 9, and the norm is None: the largest norm in
    the data is used.
    """
    path = _packaged("digits", "scikit-learn", "sklearn", "data/digits.csv.gz")
    table = np.loadtxt(path, delimiter=",")
    # 16 is the largest value that a pixel can have, in any image.
    return table[:, :-1] / 16.0, table[:, -1].astype(np.int64), None


#: Column of the RAND experiment -> its least and largest value by the code book, and the ends of
#: the interval to which these values are mapped.
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
#: Columns of the RAND experiment that distinguish people: health at the start of the experiment,
#: which is the same in all rows of a person.
_PERSON_COLUMNS = ("disea", "physlm", "hlthg", "hlthf", "hlthp")


def _randhie() -> tuple[Any, ...]:
    """Return the RAND health insurance experiment: who sees a doctor twice a year or more.

    The result is (features, classes, default norm, note). Features (people, 9) are terms of the
    insurance and health, scaled by limits of the code book. There is one record for each person,
    for the person's first year; consecutive rows with the same health count as one person. Class 1
    means at least two visits, class 0 fewer. People are in a fixed random order, so that families,
    whose rows are adjacent in the file, are spread over all silos.
    Source: Deb and Trivedi 2002; the file comes with statsmodels.
    """
    path = _packaged("randhie", "statsmodels", "statsmodels", "randhie/randhie.csv")
    table = np.genfromtxt(path, delimiter=",", names=True)
    health = np.column_stack([table[name] for name in _PERSON_COLUMNS])
    is_new_person = np.append(True, (health[1:] != health[:-1]).any(axis=1))
    columns = []
    for name, (low, high, to_low, to_high) in _RANDHIE.items():
        fraction = (np.clip(table[name], low, high) - low) / (high - low)
        columns.append(to_low + (to_high - to_low) * fraction)
    classes = (table["mdvis"] >= 2).astype(np.int64)
    note = (
        "randhie has no column that identifies people: consecutive rows with the same health count "
        "as one person, of whom the first year is used; people of one family may be in different "
        "silos"
    )
    order = np.flatnonzero(is_new_person)
    np.random.Generator(np.random.PCG64(0)).shuffle(order)
    return np.column_stack(columns)[order], classes[order], 2.2, note


#: Data sets that packages contain: functions that return features, classes, default norm and notes.
PACKAGED_DATA: dict[str, Callable[[], tuple[Any, ...]]] = {"digits": _digits, "randhie": _randhie}


def _no_data(data: object) -> InputError:
    """Return the InputError for a value of the option ``data`` that is no data set."""
    known_names = " or ".join(f'"{name}"' for name in PACKAGED_DATA)
    hint = nearest(data, list(PACKAGED_DATA)) if isinstance(data, str) else ""
    if isinstance(data, np.ndarray):
        found = f"an array of shape {data.shape}: records of arrays are Classification.from_arrays"
        return InputError(f"data must be tables, got {found}")
    if isinstance(data, str) and not hint:
        hint = ": there is no such file"
    return InputError(
        f"data must be {known_names}, an existing CSV file, a folder or list of them, or a data "
        f"frame, got {show(data)}{hint}"
    )


# ---- The environment -----------------------------------------------------------------------------


def check_left_out(data: object, **options: object) -> None:
    """Raise InputError if options of tables are given with a data set of ``PACKAGED_DATA``."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f'{name} must be left out with data "{data}", got {show(value)}')


#: Keys that choose and prepare a table before its columns are coded.
_PREPARATIONS = ("where", "bins", "missing", "sheet", "table")


@constructed(
    'Classification(data=frame, label="state"), or for arrays '
    "Classification.from_arrays(features, classes, silo)"
)
@dataclass(kw_only=True)
class Classification(PoolEnvironment):
    """Classification as a bandit: a record is a user, reward 1 for its class and 0 for others.

    By default records are drawn without replacement, so each round is a new user. If a column has
    no range, its scale is computed from the data, and one record may change the features of all
    other records. The certificate is then "conditional".

    A column in ``ranges`` is scaled or one-hot coded by its range, and gets a further column that
    marks missing cells. Any other numeric column is scaled to [0, 1] by its least and largest
    value, and any other text column is one-hot coded. In these columns missing cells
    (`_cells.MISSING`) become 0, and a further column marks them.

    Parameters
    ----------
    data : str, path, list of paths, frame or mapping
        "digits" (from scikit-learn, ten classes), "randhie" (the RAND health insurance experiment,
        from statsmodels: two classes, 4 902 people); a CSV file or a data frame (pandas, polars,
        Arrow); or, with one table for each silo, a folder or list of CSV files or a mapping of
        names to tables. See `tables.read_table`. For arrays use ``from_arrays``.
    dimension : int
        d of the projection.
    label : str, optional
        The column of the classes, required for a table.
    silo : str, optional
        The column with the silo of each record; "silo" if there is one table for each silo.
    columns : list of str, optional
        The feature columns; by default all columns except label and silo. Columns without a name
        (spreadsheets write such columns, for example row numbers) are never features.
    projection_seed : int
        Seed of the public projection.
    coding : {"projection", "blocks"}
        Features of an action: a fixed public random projection of the record to ``dimension``
        numbers, or the record in a block for this action and 0 elsewhere, see ``records_pool``.
    ranges : dict, optional
        Ranges of columns that are known without the data: [low, high], to which values are clipped,
        or a list of categories; any other text counts as missing.
    norm : float, optional
        Bound on the norm of a scaled record with a constant 1 appended. Longer records are scaled
        down to this norm. If all columns have ranges, the default is sqrt(columns + 1).
    where : dict, optional
        The records to keep: by column, [low, high] or a list of texts. Records that miss a value in
        such a column are left out. Which records are left out counts as public.
    bins : list of float, optional
        Increasing edges that make classes of a label of numbers: [21, 49] makes the classes "< 21",
        "21 to 49" and ">= 49".
    missing : list of str or dict, optional
        Further texts that mean a missing value, such as ["-9"], or such lists by column.
    sheet, table : str, optional
        The sheet of Excel files, by default the first one; the table of SQLite files, which may be
        left out if there is only one.
    sampling, reward, intercept
        See ``PoolEnvironment``.

    Raises
    ------
    InputError
        For invalid options and missing files.

    Notes
    -----
    Data are read at the first use, which raises InputError for unreadable files, unknown columns,
    records without label or silo, a single class, a number of silos that does not agree with the
    data, text columns of more than 50 values, and ``where`` that keeps no record.
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
    where: Any = None
    bins: Any = None
    missing: Any = None
    sheet: str | None = None
    table: str | None = None
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
                f'dimension needs coding = "projection", got {self.dimension}: '
                "blocks have one number for each action and feature"
            )
        if self.norm is not None:
            self.norm = number("norm", self.norm, above=0.0)
        if isinstance(self.data, Records):
            for name in ("ranges", "norm", *_PREPARATIONS):
                if getattr(self, name) is not None:
                    raise InputError(f"{name} is only for a table: for arrays use from_arrays")
            return
        options = {name: getattr(self, name) for name in ("label", "silo", "columns", "ranges")}
        if self._shipped:
            preparations = {name: getattr(self, name) for name in _PREPARATIONS}
            check_left_out(self.data, **options, **preparations)
            return
        if self.bins is not None:
            self.bins = check_bins(self.bins)
        if self.missing is not None:
            check_missing(self.missing)
        for name, what in {"label": "column", "silo": "column", **FILE_PARTS}.items():
            if not isinstance(getattr(self, name), str | None):
                raise InputError(f"{name} must name a {what}, got {show(getattr(self, name))}")
        if not is_table(self.data):
            raise _no_data(self.data)
        if isinstance(self.data, Mapping):
            check_mapping(self.data)
        if has_several_tables(self.data) and self.silo is None:
            self.silo = SILO

    @property
    def _shipped(self) -> bool:
        """True if the data are a data set that a package contains."""
        return isinstance(self.data, str) and self.data in PACKAGED_DATA

    @classmethod
    def from_arrays(
        cls,
        features: ArrayLike,
        classes: ArrayLike,
        silo: ArrayLike | None = None,
        *,
        norm: float | None = None,
        coding: str = "blocks",
        dimension: int = DIMENSION,
        projection_seed: int = 0,
        sampling: str = "without-replacement",
        intercept: float | None = None,
    ) -> Classification:
        """Return an environment whose records are the rows of arrays.

        Parameters
        ----------
        features : array_like, shape (n, p)
            Records.
        classes : array_like, shape (n,)
            Classes: integers 0 to K - 1, or texts, which are numbered in alphabetical order.
        silo : array_like, shape (n,), optional
            Name of each record's silo: texts, numbers or other values. Silos are numbered in order
            of first appearance.
        norm : float, optional
            Bound on the norm of a record with a constant 1 appended, known without the data. Each
            record that is longer is scaled down to this norm. If None, the largest norm in the data
            is used and counts as public.
        coding, dimension, projection_seed, sampling, intercept
            As in `Classification`.

        Returns
        -------
        Classification
            The environment.

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
        """Return the pool, with one query for each record, divided among silos.

        Without a silo column, the records are divided into ``silos`` equal contiguous blocks. With
        a silo column, ``silos`` must be None or the number of different values in the column, and
        silos are numbered in order of first appearance.
        """
        if silos is not None:
            silos = integer("silos", silos, at_least=1)
        if silos is None and self.silo is None:
            raise InputError("silos is required: the data have no silo column")
        if isinstance(self.data, Records):
            records, notes, declared = self.data, [ARRAYS_CAVEAT], True
        else:
            records, notes, declared = self._records()
        if silos is not None and records.silos not in (None, silos):
            raise InputError(
                f"silos must be the {records.silos} values of the silo column {show(self.silo)}, "
                f"got {silos}"
            )
        options = (silos, self.dimension, self.projection_seed, self.coding)
        return records_pool(records, *options, tuple(notes), declared)

    def _records(self) -> tuple[Records, list[str], bool]:
        """Return (records, notes, declared) of a table or of a data set of ``PACKAGED_DATA``.

        ``notes`` are texts about the data. ``declared`` is True if the least and largest value, or
        all categories, of each column are known without the records.
        """
        if self._shipped:
            features, classes, default_norm, *notes = PACKAGED_DATA[self.data]()
            norm = default_norm if self.norm is None else self.norm
            owner, declared = None, True
        else:
            rows, ranges = self._rows()
            features, classes, owner, coding_notes = from_table(
                rows, self.label, self.silo, self.columns, ranges, self.bins
            )
            notes = [*rows.notes, *coding_notes]
            count = len(
                feature_columns(rows, {"label": self.label, "silo": self.silo}, self.columns)
            )
            declared = len(ranges) == count
            # Each column contributes at most one feature that is not 0, and this feature is at most
            # 1. With the constant 1, the squared norm of a record is at most count + 1.
            norm = math.sqrt(count + 1.0) if declared and self.norm is None else self.norm
        # The edges in `bins` declare the classes, also classes that no record has.
        n_classes = None if self.bins is None else len(self.bins) + 1
        return Records(features, classes, owner, norm, n_classes), notes, declared

    def _rows(self) -> tuple[Table, dict[str, Any]]:
        """Return the chosen rows of the table, and the declared ranges of its columns."""
        read = read_table(self.data, self.columns is not None, self.sheet, self.table)
        ranges = declared_columns(read, self.ranges)
        conditions = declared_columns(read, self.where, "where")
        return selected(with_missing(read, self.missing, (ranges, conditions)), conditions), ranges

    def silo_name(self, silo: int) -> str:
        """Return a comma and the name of a silo, for messages; "" if silos have no names."""
        if self.silo is None or self._shipped or isinstance(self.data, Records):
            return ""
        names = dict.fromkeys(silo_names(self._rows()[0], self.silo))
        return f", {show([*names][silo])}"

    def declared_rewards(self) -> tuple[float, float]:
        """Return (0, 1): the reward is 1 for the class of the record and 0 for any other class."""
        return 0.0, 1.0

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data define; None if any number is allowed."""
        return self.pool(None).silos if self.silo is not None else None

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        # The key "data" has a name and a digest. A packaged data set has a name and no digest. Data
        # of tables and arrays are identified by a digest; stored results have always had the text
        # "norm" as the name of such data.
        name, digest = "norm", None
        if self._shipped:
            name = str(self.data)
        else:
            is_records = isinstance(self.data, Records)
            digest = (
                self.data.digest() if is_records else digest_of(self.data, self.sheet, self.table)
            )
        # "projection", the default of `Classification`, is left out: earlier versions had no key
        # for the coding, and results that they stored must keep their identity.
        coding: dict[str, Any] = {} if self.coding == "projection" else {"coding": self.coding}
        for key in ("ranges", "norm", *_PREPARATIONS):
            if getattr(self, key) is not None:
                coding[key] = getattr(self, key)
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
