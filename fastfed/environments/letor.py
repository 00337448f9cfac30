"""Learning to rank as a bandit: LETOR files (MSLR-WEB10K, WEB30K, LETOR 3 and 4) and their pool.

A query is a context and its documents are the actions. A document's mean reward is linear in its
chosen features, with a lasso fit theta* to the relevance labels (zhou-chowdhury-2024, Section 6,
and its published code).

Deviation: the paper names its feature sets "title" and "body". By the columns that its code takes
they are anchor + URL and body + title + whole document, so here they are anchor-url and text.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._memory import available
from fastfed._validate import InputError, choice, integer, nearest, number, show
from fastfed.environments.base import INDEPENDENT, SCALED
from fastfed.environments.letor_files import MAX_FEATURES, LetorRows, read_letor
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks, feature_major
from fastfed.environments.storage import (
    FORMAT,
    ArrayStorage,
    FileStorage,
    PoolStorage,
    StoredArray,
    cache_folder,
    fresh_folder,
    keep_if_whole,
    load_array,
    load_meta,
    save_array,
    write_meta,
)

# ---- The pool ------------------------------------------------------------------------------------

INTERCEPT = 0.01  # value of column 0, as in the published code
_ANCHOR_URL = (0, *(5 * i + j for i in range(25) for j in (2, 4)), *range(126, 132))
_TEXT = (0, *(5 * i + j for i in range(25) for j in (1, 3, 5)), 132, 133)
FEATURE_SETS = {"anchor-url": _ANCHOR_URL, "text": _TEXT, "both": _ANCHOR_URL + _TEXT}
_CHUNK = 8192  # rows held in float64 at a time,
_NUMBERS = 2**25  # and at most so many numbers, where rows are very long
_DERIVED = 1  # version of the pool's making; a new number invalidates all cached pools


@dataclass(frozen=True, eq=False)
class _Derived:
    """A pool before its queries are divided among silos."""

    values: np.ndarray
    means: np.ndarray
    theta: np.ndarray
    notes: tuple[str, ...]
    linear: bool


@dataclass(frozen=True, eq=False)
class _Model:
    """The parts of a pool beside its values and means."""

    theta: np.ndarray
    notes: tuple[str, ...]
    linear: bool


def letor_pool(
    path: str | os.PathLike[str],
    silos: int,
    features: str | Sequence[int] = "all",
    scaling: str = "column",
    theta_penalty: float = 1.0,
    reward_range: tuple[float, float] | None = None,
) -> Pool:
    """Make the pool of a LETOR file or folder, its queries in equal contiguous blocks by silo.

    Every row has norm at most 1, also when it is computed in float32. The first call needs
    scikit-learn; the result is cached beside the parsed file as memory-mapped arrays.

    Parameters
    ----------
    path : path-like
        A file (.txt, .gz) or a folder, see ``read_letor``.
    silos : int
        M; the first queries % M silos own one query more.
    features : str or sequence of int
        "anchor-url" (57 columns), "text" (78), "both" (135, the intercept twice), "all" (the
        intercept and every feature of the file) or a list of column numbers. Column 0 is an
        intercept of value 0.01, column j is feature j of the file.
    scaling : {"column", "row"}
        "column" divides each column by its largest absolute value and then all rows by the
        largest row norm, and rescales theta* inversely, so that the model stays linear; mean
        rewards are then moved to reward_range by an affine map, which the coordinate of theta* at
        a constant column (the intercept) absorbs. "row" is that of the published code: each row
        gets norm 1, mean rewards stay <raw row, theta*>, and no theta* is linear in what the
        learner sees.
    theta_penalty : float
        Penalty of the lasso of relevance on the raw columns, without intercept and with at most
        10 000 iterations.
    reward_range : (float, float), optional
        Least and largest mean reward under "column", (0, 1) by default; must be None under "row".

    Returns
    -------
    Pool
        The pool.

    Raises
    ------
    InputError
        For bad files and options, columns that the file does not have, fewer queries than silos,
        and if the lasso leaves nothing to learn (theta* = 0).
    """
    silos = integer("silos", silos, at_least=1)
    scaling = choice("scaling", scaling, ("column", "row"))
    penalty = number("theta_penalty", theta_penalty, above=0)
    wanted = _columns(features)
    span = _reward_range(reward_range, scaling)
    letor = read_letor(path)
    width = letor.features.shape[1]
    queries = len(letor.starts) - 1
    if queries < silos:
        raise InputError(f"silos must be at most the {queries} queries of {path}, got {silos}")
    columns = tuple(range(width + 1)) if wanted is None else wanted
    if max(columns) > width:
        raise InputError(
            f"features {show(features)} must be columns 0 to {width}, the largest in {path}, "
            f"got column {max(columns)}"
        )
    options: dict[str, Any] = {
        "version": _DERIVED,
        "columns": columns,
        "scaling": scaling,
        "theta_penalty": penalty,
        "reward_range": span,
    }
    derived = _cached(letor, options, str(path))
    pool = Pool(
        values=derived.values,
        dimension=len(columns),
        means=derived.means,
        starts=letor.starts,
        silo_starts=equal_blocks(queries, silos),
        notes=derived.notes,
        theta=derived.theta,
        linear=derived.linear,
        conditions=(
            (SCALED, scaling == "row"),
            # theta*, which makes the rewards, is a fit to the relevance of all records.
            (INDEPENDENT, False),
        ),
    )
    pool.check()
    return pool


def _columns(features: str | Sequence[int]) -> tuple[int, ...] | None:
    """Return the column numbers of a feature set; None for all."""
    if isinstance(features, str):
        if features == "all":
            return None
        if features not in FEATURE_SETS:
            names = [*FEATURE_SETS, "all"]
            raise InputError(
                f"features must be one of {', '.join(names)} or a list of column numbers, "
                f"got {show(features)}{nearest(features, names)}"
            )
        return FEATURE_SETS[features]
    if not isinstance(features, (Sequence, np.ndarray)) or len(features) == 0:
        raise InputError(f"features must name at least one column, got {show(features)}")
    columns = tuple(
        integer("features", column, at_least=0, at_most=MAX_FEATURES) for column in features
    )
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise InputError(f"features must name each column once, got column {twice[0]} twice")
    return columns


def _reward_range(
    reward_range: tuple[float, float] | None, scaling: str
) -> tuple[float, float] | None:
    """Return the checked range of mean rewards; None where they stay as they are."""
    if scaling == "row":
        if reward_range is not None:
            raise InputError(
                f'reward_range must be left out with scaling "row", got {show(reward_range)}'
            )
        return None
    if reward_range is None:
        return (0.0, 1.0)
    if not isinstance(reward_range, (tuple, list)) or len(reward_range) != 2:
        raise InputError(f"reward_range must be two numbers, got {show(reward_range)}")
    low = number("reward_range", reward_range[0])
    return (low, number("reward_range", reward_range[1], above=low))


def _cached(letor: LetorRows, options: dict[str, Any], path: str) -> _Derived:
    """Return the derived pool, from the cache beside the parsed rows if it is there."""
    if letor.folder is None:
        return _derive(letor, options, path, None)
    key = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:32]
    folder = letor.folder / "pools" / key
    found = _load(letor, options, folder)
    if found is not None:
        return found
    if not keep_if_whole(letor.folder, "features"):
        if letor.folder.exists():
            raise InputError(f"{letor.folder} is damaged and cannot be removed: remove it")
        return _cached(read_letor(path), options, path)
    return _derive(letor, options, path, folder)


def _load(letor: LetorRows, options: dict[str, Any], folder: Path) -> _Derived | None:
    """Return a cached pool, or None if the folder does not hold all of it."""
    meta = load_meta(folder)
    if meta is None or not keep_if_whole(folder, "values", "means", "theta"):
        return None
    rows, dimension = len(letor.relevance), len(options["columns"])
    values = load_array(folder, "values", (rows * dimension,))
    means = load_array(folder, "means", (rows,))
    theta = load_array(folder, "theta", (dimension,))
    if values is None or means is None or theta is None:
        shutil.rmtree(folder, ignore_errors=True)  # damaged: made anew by the caller
        return None
    return _Derived(values, means, theta, tuple(meta["notes"]), meta["linear"])


def _derive(letor: LetorRows, options: dict[str, Any], path: str, folder: Path | None) -> _Derived:
    """Make features, means and model, in the cache folder, or in memory where there is none."""
    columns = np.array(options["columns"])
    theta, largest, notes = _fit(letor, columns, options["theta_penalty"])
    if not theta.any():
        raise InputError(
            f"theta_penalty must be smaller for {path}: at {options['theta_penalty']:g} the lasso "
            "makes every coefficient 0, so all actions would have the same mean reward"
        )

    def make(storage: PoolStorage) -> _Model:
        if options["scaling"] == "column":
            span = options["reward_range"]
            made = _by_column(letor, columns, theta, largest, span, path, storage)
        else:
            made = _by_row(letor, columns, theta, storage)
        return replace(made, notes=(*notes, *made.notes))

    too_large, stays = f"the pool of {path} is larger than memory", ""
    if folder is not None:
        try:
            with fresh_folder(folder) as temporary:
                with closing(FileStorage(temporary)) as storage:
                    made = make(storage)
                    storage.finish()
                save_array(temporary / "theta.npy", made.theta)
                meta = {"format": FORMAT, **options, "notes": made.notes, "linear": made.linear}
                write_meta(temporary, meta)
        except OSError as error:
            why = f"the cache folder {cache_folder()} cannot be written ({error.strerror or error})"
            too_large = f"{too_large}, and {why}"
            stays = f"{why}: the pool of {path} stays in memory"
        else:
            stored = _load(letor, options, folder)
            if stored is not None:
                return stored
    rows, most = len(letor.relevance), available()
    if most is not None and rows * (4 * len(columns) + 8) > most:
        raise InputError(too_large)
    if stays:
        warnings.warn(stays, stacklevel=4)
    held = ArrayStorage(rows, len(columns))
    made = make(held)
    return _Derived(held.values, held.means, made.theta, made.notes, made.linear)


def _chunks(letor: LetorRows, columns: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield (first query, last query + 1, raw rows in float64) in chunks of whole queries."""
    starts = np.asarray(letor.starts)
    position = np.flatnonzero(columns)
    queries = len(starts) - 1
    most = max(1, min(_CHUNK, _NUMBERS // len(columns)))
    first = 0
    with _reader(letor) as part:
        while first < queries:
            last = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
            last = max(last, first + 1)
            rows = part(int(starts[first]), int(starts[last]))
            raw = np.full((len(rows), len(columns)), INTERCEPT)
            raw[:, position] = rows[:, columns[position] - 1]
            yield first, last, raw
            first = last


@contextmanager
def _reader(letor: LetorRows) -> Iterator[Callable[[int, int], np.ndarray]]:
    """Give a function that reads rows first .. last - 1, into new memory if they are in a file."""
    if letor.folder is None:
        yield lambda first, last: letor.features[first:last]
        return
    stored = StoredArray(letor.folder / "features.npy")
    try:
        yield stored.part
    finally:
        stored.close()


def _fit(
    letor: LetorRows, columns: np.ndarray, penalty: float
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Fit theta* on the raw columns; return it, each column's largest absolute value, and notes.

    The lasso sees X and y only through inner products, and an orthogonal map keeps those. So it is
    solved on the triangular factor R of [X | y] = Q R, found chunk by chunk: d + 1 rows in place of
    n, the same iterates and the same stopping rule. (A Gram matrix would do as well, but squares
    the condition number, and raw columns span nine decades.)
    """
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import Lasso
    except ImportError:
        raise InputError(
            "letor data need scikit-learn, which is not installed: pip install fastfed[data]"
        ) from None
    dimension = len(columns)
    factor = np.empty((0, dimension + 1))
    largest = np.zeros(dimension)
    for first, last, raw in _chunks(letor, columns):
        np.maximum(largest, np.abs(raw).max(axis=0), out=largest)
        relevance = letor.relevance[letor.starts[first] : letor.starts[last], None]
        stacked = np.vstack([factor, np.hstack([raw, relevance])])
        factor = np.asarray(np.linalg.qr(stacked, mode="r"))
    # scikit-learn divides the squared loss by the number of rows it sees.
    share = len(letor.relevance) / len(factor)
    lasso = Lasso(alpha=penalty * share, fit_intercept=False, max_iter=10_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        lasso.fit(factor[:, :dimension], factor[:, dimension])
    stopped = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    notes = ("the lasso for theta* stopped at 10 000 iterations, not converged",) if stopped else ()
    return np.asarray(lasso.coef_, dtype=np.float64), largest, notes


def _by_column(
    letor: LetorRows,
    columns: np.ndarray,
    theta: np.ndarray,
    largest: np.ndarray,
    span: tuple[float, float],
    path: str,
    storage: PoolStorage,
) -> _Model:
    """Scale columns by their largest value and rows by the largest norm: the model stays linear."""
    scale = np.where(largest > 0, largest, 1.0)
    norm = max(float(_norms(raw / scale).max()) for _, _, raw in _chunks(letor, columns))
    scale *= norm / _below_one(len(columns))
    model = theta * scale
    low = np.full(len(columns), np.inf, dtype=np.float32)
    high = -low
    for first, last, raw in _chunks(letor, columns):
        rows = (raw / scale).astype(np.float32)
        np.minimum(low, rows.min(axis=0), out=low)
        np.maximum(high, rows.max(axis=0), out=high)
        # From the rounded rows, so that the model is linear in what the learner sees.
        storage.add(_flat(rows, letor, first, last), rows.astype(np.float64) @ model)
    least, most = storage.min_mean, storage.max_mean
    if not most > least:
        raise InputError(
            f"features must tell the actions of {path} apart, but all of them have the same mean "
            "reward: choose more columns or a smaller theta_penalty"
        )
    slope = (span[1] - span[0]) / (most - least)
    shift = span[0] - slope * least
    storage.change_means(lambda means: np.clip(slope * means + shift, span[0], span[1]))
    model *= slope
    constant = np.where(low == high, low, np.float32(0)).astype(np.float64)
    absorbed = bool(constant.any())
    if absorbed:
        # Spread over the constant columns in proportion: the shortest theta that does it.
        model += shift * constant / (constant @ constant)
    where = (
        "absorbed by theta* at a constant column"
        if absorbed
        else "no column is constant, so the shift is outside the linear model"
    )
    norm_note = f"||theta*|| = {np.linalg.norm(model):.4g} after scaling"
    if np.linalg.norm(model) > 1:
        norm_note += ", the radius assumes at most 1"
    notes = (
        "feature scaling and theta* were computed from the data and are taken as public",
        f"mean rewards are {slope:.4g} <raw row, lasso coefficients> {shift:+.4g}, "
        f"in [{span[0]:g}, {span[1]:g}]; {where}",
        norm_note,
    )
    return _Model(model, notes, absorbed or shift == 0.0)


def _by_row(
    letor: LetorRows, columns: np.ndarray, theta: np.ndarray, storage: PoolStorage
) -> _Model:
    """Scale as the published code does: unit rows, rewards from the raw rows."""
    for first, last, raw in _chunks(letor, columns):
        norms = _norms(raw)
        norms[norms == 0] = 1.0
        unit = raw * (_below_one(len(columns)) / norms)[:, None]
        storage.add(_flat(unit.astype(np.float32), letor, first, last), raw @ theta)
    notes = (
        "theta* was computed from the data and is taken as public",
        "rows have norm 1 while mean rewards are <raw row, theta*>, so the mean is not linear in "
        "what the learner sees and no radius is proven",
        f"mean rewards lie in [{storage.min_mean:.4g}, {storage.max_mean:.4g}]",
    )
    return _Model(theta, notes, False)


def _flat(rows: np.ndarray, letor: LetorRows, first: int, last: int) -> np.ndarray:
    """Return the feature-major blocks of queries first .. last, one after the other."""
    starts = np.asarray(letor.starts[first : last + 1])
    return np.concatenate(list(feature_major(rows, starts - starts[0])))


def _norms(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.norm(rows, axis=1))


def _below_one(dimension: int) -> float:
    """Return a norm just below 1: rounded to float32, a sum of d squares then stays at most 1."""
    return 1.0 - (dimension + 4) * 2.0**-24


# ---- The environment -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Letor(PoolEnvironment):
    """LETOR files (MSLR-WEB10K, WEB30K, LETOR 4.0), queries in equal contiguous blocks by silo.

    theta* is the lasso of relevance on the chosen columns. Source: zhou-chowdhury-2024, Section 6.

    Parameters
    ----------
    path : path-like
        A file (.txt, .gz) or a folder of them.
    features : str or sequence of int
        "anchor-url" (57 columns), "text" (78), "both" (135), "all", or a list of column numbers.
    scaling : {"column", "row"}
        "column" keeps the model exactly linear; "row" is that of the published code.
    sampling, reward
        See ``PoolEnvironment``.

    Raises
    ------
    InputError
        For bad options and missing files.
    """

    path: str
    features: Any = "all"
    scaling: str = "column"
    sampling: str = "with-replacement"
    kind = "letor"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("scaling", self.scaling, ["column", "row"])
        _columns(self.features)
        if not isinstance(self.path, (str, Path)) or not os.path.exists(self.path):
            raise InputError(f"path must be an existing file or folder, got {self.path!r}")

    def load(self, silos: int | None) -> Pool:
        """Make the pool, its queries divided among M silos."""
        if silos is None:
            raise InputError('silos is required for the environment "letor"')
        return letor_pool(self.path, silos, self.features, self.scaling)

    def declared_rewards(self) -> tuple[float, float] | None:
        """Return [0, 1] for scaled columns; the rewards of raw rows have no bound."""
        return (0.0, 1.0) if self.scaling == "column" else None

    def record_multiplicity(self) -> int:
        """Return the most runs of rows that share a query identifier: they may be one query."""
        _, counts = np.unique(read_letor(self.path).qids, return_counts=True)
        return int(counts.max())

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return {
            "kind": self.kind,
            # Checksums, not paths: a moved folder is still the same data.
            "sources": list(read_letor(self.path).checksums),
            "features": self.features,
            "scaling": self.scaling,
            "sampling": self.sampling,
            # Older versions read the range of the rewards of rows from the data, and so the radius:
            # this key tells their results apart.
            **({"reward_range": None} if self.scaling == "row" else {}),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
            **self.later_keys,
        }
