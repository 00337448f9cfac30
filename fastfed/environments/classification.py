"""Classification as a bandit: an action for each class, reward 1 for the right one.

Records of a table (one silo per hospital, bank or campaign, if a column or the files say so), or
the digits of scikit-learn, become queries that offer one feature vector for each class.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, choice, integer, nearest, number, show
from fastfed.environments.coding import column_ranges, feature_columns, from_table
from fastfed.environments.pool import MADE_BEFORE, Pool, PoolEnvironment
from fastfed.environments.replay import CODINGS, DIMENSION, Records, records_pool
from fastfed.environments.tables import (
    SILO,
    digest_of,
    is_table,
    read_table,
)

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
        check_left_out(data, label=label, silo=silo, columns=columns, ranges=ranges)
        features, classes, usual, *told = SHIPPED[str(data)]()
        norm = usual if norm is None else norm
        owner = None
        notes: tuple[str, ...] = tuple(told)
        declared = True  # by limits that are known without the records
    else:
        if not is_table(data):
            raise _no_data(data)
        table = read_table(data)
        known = column_ranges(table, ranges)
        features, classes, owner, notes = from_table(table, label, silo, columns, known)
        notes = (*table.notes, *notes)
        count = len(feature_columns(table, str(label), silo, columns))
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


# ---- The environment -----------------------------------------------------------------------------


def check_left_out(data: object, **given: object) -> None:
    """Raise InputError for options of tables, where the data are shipped ones."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f'{name} must be left out with data "{data}", got {show(value)}')


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
        named = {name: getattr(self, name) for name in ("label", "silo", "columns", "ranges")}
        if self._shipped:
            check_left_out(self.data, **named)
            return
        for name in ("label", "silo"):
            if not isinstance(named[name], str | None):
                raise InputError(f"{name} must name a column, got {show(named[name])}")
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

        Returns
        -------
        Classification

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
        """Return plain data that identify this environment."""
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
