"""Learning to rank as a bandit: LETOR files (MSLR-WEB10K, WEB30K, LETOR 3 and 4) and their pool.

A query is a context, and its documents are the actions. The mean reward of a document is linear in
the selected features. theta* is a lasso fit to the relevance labels (zhou-chowdhury-2024, Section
6, and its published code).

Deviation: the paper calls its feature sets "title" and "body". The columns that its code selects
are anchor + URL, and body + title + whole document. So here they are called anchor-url and text.
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
from fastfed._threads import one_blas_thread
from fastfed._validate import InputError, choice, integer, nearest, number, rising, show
from fastfed.environments.base import DECLARED_RANGES_TEXT, INDEPENDENT
from fastfed.environments.letor_files import MAX_FEATURES, LetorRows, missing_value, read_letor
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
_PENALTY_SHARE = 0.01  # a default penalty as a share of the least one that makes theta* = 0
_CHUNK_ROWS = 8192  # largest number of rows held in float64 at a time
_CHUNK_ENTRIES = 2**25  # largest number of entries of such rows
_DERIVED_VERSION = 1  # version of this computation; a new number invalidates all cached pools


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
    """theta* (d,) of a pool, its notes, and whether mean rewards are linear in the features."""

    theta: np.ndarray
    notes: tuple[str, ...]
    linear: bool


def letor_pool(
    path: str | os.PathLike[str],
    silos: int,
    features: str | Sequence[int] = "all",
    scaling: str = "column",
    theta_penalty: float | None = None,
    reward_range: tuple[float, float] | None = None,
    missing: str | None = None,
) -> Pool:
    """Return the pool of a LETOR file or folder, with equal contiguous blocks of queries as silos.

    Every row has norm at most 1, also if the norm is computed in float32. The first call needs
    scikit-learn. The result is cached next to the parsed file as memory-mapped arrays.

    Parameters
    ----------
    path : path-like
        A file (.txt, .gz) or a folder, see ``read_letor``.
    silos : int
        M. The first ``queries % M`` silos have one query more than the others.
    features : str or sequence of int
        "anchor-url" (57 columns), "text" (78), "both" (135, the intercept twice), "all" (the
        intercept and every feature of the file) or a list of column numbers. Column 0 is an
        intercept of value 0.01, column j is feature j of the file.
    scaling : {"column", "row"}
        "column" divides each column by its largest absolute value, then all rows by the largest
        row norm, and rescales theta* inversely, so that the model stays linear. An affine map then
        moves mean rewards to reward_range. The coordinate of theta* at a constant column (the
        intercept) absorbs the shift. "row" is the scaling of the published code: each row is
        divided by its norm, and mean rewards stay <raw row, theta*>. They are then not linear in
        the features that the learner sees.
    theta_penalty : float, optional
        Penalty of the lasso fit of relevance on the raw columns, without intercept and with at
        most 10 000 iterations. The default is 1. If that makes theta* = 0, as for features in
        [0, 1], it is a hundredth of the least penalty that does.
    reward_range : (float, float), optional
        Least and largest mean reward for "column", (0, 1) by default. Must be None for "row".
    missing : str, optional
        Value of a missing feature, see ``read_letor``.

    Returns
    -------
    Pool
        The pool.

    Raises
    ------
    InputError
        For invalid files and options, for columns that the file does not have, for fewer queries
        than silos, and if the lasso gives theta* = 0.
    """
    silos = integer("silos", silos, at_least=1)
    scaling = choice("scaling", scaling, ("column", "row"))
    penalty = 1.0 if theta_penalty is None else number("theta_penalty", theta_penalty, above=0)
    selected = _checked_columns(features)
    checked_range = _checked_reward_range(reward_range, scaling)
    letor = read_letor(path, missing=missing)
    width = letor.features.shape[1]
    queries = len(letor.starts) - 1
    if queries < silos:
        raise InputError(f"silos must be at most the {queries} queries of {path}, got {silos}")
    columns = tuple(range(width + 1)) if selected is None else selected
    if max(columns) > width:
        raise InputError(
            f"features {show(features)} must be columns 0 to {width}, the largest in {path}, "
            f"got column {max(columns)}"
        )
    options: dict[str, Any] = {
        "version": _DERIVED_VERSION,
        "columns": columns,
        "scaling": scaling,
        "theta_penalty": penalty,
        "reward_range": checked_range,
    }
    if theta_penalty is not None and penalty == 1.0:
        options["declared_penalty"] = True  # unlike the default, it is never made smaller
    derived = _cached_pool(letor, options, str(path), lambda: read_letor(path, missing=missing))
    pool = Pool(
        values=derived.values,
        dimension=len(columns),
        means=derived.means,
        starts=letor.starts,
        silo_starts=equal_blocks(queries, silos),
        notes=(*derived.notes, *_row_notes(letor, missing)),
        theta=derived.theta,
        linear=derived.linear,
        conditions=(
            (DECLARED_RANGES_TEXT, scaling == "row"),
            # Rewards depend on theta*, which is fitted to the relevance of all records.
            (INDEPENDENT, False),
        ),
    )
    pool.check()
    return pool


def _row_notes(letor: LetorRows, missing: str | None) -> tuple[str, ...]:
    """Return the notes for the certificate about left-out rows and missing values of a file."""
    notes = []
    if letor.unjudged:
        notes.append(
            f"{letor.unjudged} rows of negative relevance are left out: nobody judged them"
        )
    if missing is not None:
        notes.append(f"features of value {missing} are missing, and count as 0")
    return tuple(notes)


def _checked_columns(features: str | Sequence[int]) -> tuple[int, ...] | None:
    """Return the column numbers that the option ``features`` selects; None for "all"."""
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
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise InputError(f"features must name each column once, got column {repeated[0]} twice")
    return columns


def _checked_reward_range(
    reward_range: tuple[float, float] | None, scaling: str
) -> tuple[float, float] | None:
    """Return the range to which mean rewards are mapped: the checked option ``reward_range``.

    The default is (0, 1). Return None for scaling "row", which maps no rewards.
    """
    if scaling == "row":
        if reward_range is not None:
            raise InputError(
                f'reward_range must be left out with scaling "row", got {show(reward_range)}'
            )
        return None
    if reward_range is None:
        return (0.0, 1.0)
    return rising("reward_range", reward_range)


def _cached_pool(
    letor: LetorRows, options: dict[str, Any], path: str, read_again: Callable[[], LetorRows]
) -> _Derived:
    """Return the pool that ``options`` describe, from the cache if it is there.

    ``path`` names the source, for error messages. ``read_again()`` reads its rows again; it is
    called if the rows in the cache are damaged.
    """
    if letor.folder is None:
        return _compute_pool(letor, options, path, None)
    key = hashlib.sha256(json.dumps(options).encode()).hexdigest()[:32]
    folder = letor.folder / "pools" / key
    cached = _load_pool(letor, options, folder)
    if cached is not None:
        return cached
    if not keep_if_whole(letor.folder, "features"):
        if letor.folder.exists():
            raise InputError(f"{letor.folder} is damaged and cannot be removed: remove it")
        return _cached_pool(read_again(), options, path, read_again)
    return _compute_pool(letor, options, path, folder)


def _load_pool(letor: LetorRows, options: dict[str, Any], folder: Path) -> _Derived | None:
    """Return a cached pool, or None if the folder is incomplete or damaged."""
    meta = load_meta(folder)
    if meta is None or not keep_if_whole(folder, "values", "means", "theta"):
        return None
    rows, dimension = len(letor.relevance), len(options["columns"])
    values = load_array(folder, "values", (rows * dimension,))
    means = load_array(folder, "means", (rows,))
    theta = load_array(folder, "theta", (dimension,))
    if values is None or means is None or theta is None:
        shutil.rmtree(folder, ignore_errors=True)  # damaged; the caller computes the pool again
        return None
    return _Derived(values, means, theta, tuple(meta["notes"]), meta["linear"])


def _compute_pool(
    letor: LetorRows, options: dict[str, Any], path: str, folder: Path | None
) -> _Derived:
    """Compute the features, the mean rewards and theta* of a pool, and store them in ``folder``.

    They stay in memory if ``folder`` is None or cannot be written. ``path`` names the source, for
    error messages.
    """
    columns = np.array(options["columns"])
    adapt = options["theta_penalty"] == 1.0 and "declared_penalty" not in options
    theta, largest, notes = _fit_theta(letor, columns, options["theta_penalty"], adapt)
    if not theta.any():
        raise InputError(
            f"theta_penalty must be smaller for {path}: at {options['theta_penalty']:g} the lasso "
            "makes every coefficient 0, so all actions would have the same mean reward"
        )

    def compute_into(storage: PoolStorage) -> _Model:
        """Add features and mean rewards of all rows to the storage; return theta* and notes."""
        if options["scaling"] == "column":
            span = options["reward_range"]
            model = _store_scaled_by_column(letor, columns, theta, largest, span, path, storage)
        else:
            model = _store_scaled_by_row(letor, columns, theta, storage)
        return replace(model, notes=(*notes, *model.notes))

    too_large, warning = f"the pool of {path} is larger than memory", ""
    if folder is not None:
        try:
            with fresh_folder(folder) as temporary:
                with closing(FileStorage(temporary)) as storage:
                    model = compute_into(storage)
                    storage.finish()
                save_array(temporary / "theta.npy", model.theta)
                meta = {"format": FORMAT, **options, "notes": model.notes, "linear": model.linear}
                write_meta(temporary, meta)
        except OSError as error:
            reason = (
                f"the cache folder {cache_folder()} cannot be written ({error.strerror or error})"
            )
            too_large = f"{too_large}, and {reason}"
            warning = f"{reason}: the pool of {path} stays in memory"
        else:
            stored = _load_pool(letor, options, folder)
            if stored is not None:
                return stored
    rows, free_bytes = len(letor.relevance), available()
    if free_bytes is not None and rows * (4 * len(columns) + 8) > free_bytes:
        raise InputError(too_large)
    if warning:
        warnings.warn(warning, stacklevel=4)
    in_memory = ArrayStorage(rows, len(columns))
    model = compute_into(in_memory)
    return _Derived(in_memory.values, in_memory.means, model.theta, model.notes, model.linear)


def _chunks(letor: LetorRows, columns: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield chunks of whole queries, as (first query, last query + 1, raw rows in float64).

    The raw rows have the selected ``columns``, where column 0 is the intercept.
    """
    starts = np.asarray(letor.starts)
    position = np.flatnonzero(columns)
    queries = len(starts) - 1
    max_rows = max(1, min(_CHUNK_ROWS, _CHUNK_ENTRIES // len(columns)))
    first = 0
    with _reader(letor) as read_rows:
        while first < queries:
            end = int(np.searchsorted(starts, starts[first] + max_rows, side="right")) - 1
            end = max(end, first + 1)
            rows = read_rows(int(starts[first]), int(starts[end]))
            raw = np.full((len(rows), len(columns)), INTERCEPT)
            raw[:, position] = rows[:, columns[position] - 1]
            yield first, end, raw
            first = end


@contextmanager
def _reader(letor: LetorRows) -> Iterator[Callable[[int, int], np.ndarray]]:
    """Yield a function that returns rows first .. last - 1 as an array.

    Rows of a file are read into new memory, not memory-mapped.
    """
    if letor.folder is None:
        yield lambda first, last: letor.features[first:last]
        return
    stored = StoredArray(letor.folder / "features.npy")
    try:
        yield stored.part
    finally:
        stored.close()


def _fit_theta(
    letor: LetorRows, columns: np.ndarray, penalty: float, adapt: bool
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Fit theta* to relevance on the raw columns by a lasso with this penalty.

    Return theta* (d,), the largest absolute value of each column (d,), and notes. If theta* would
    be 0 and ``adapt`` is True, use a smaller penalty.

    The lasso depends on X and y only through inner products, which an orthogonal map preserves. So
    it is solved on the triangular factor R of [X | y] = Q R, which is computed chunk by chunk and
    has d + 1 rows instead of n. The iterates and the stopping rule are the same. (A Gram matrix
    would also work, but squares the condition number; raw columns span nine orders of magnitude.)
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
    with one_blas_thread():
        for first, last, raw in _chunks(letor, columns):
            np.maximum(largest, np.abs(raw).max(axis=0), out=largest)
            relevance = letor.relevance[letor.starts[first] : letor.starts[last], None]
            stacked = np.vstack([factor, np.hstack([raw, relevance])])
            factor = np.asarray(np.linalg.qr(stacked, mode="r"))
    # scikit-learn divides the squared loss by the number of rows it gets, which are the rows of R
    # and not of X. This factor of the penalty corrects for it.
    row_ratio = len(letor.relevance) / len(factor)
    lasso = Lasso(alpha=penalty * row_ratio, fit_intercept=False, max_iter=10_000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        lasso.fit(factor[:, :dimension], factor[:, dimension])
        products = np.abs(factor[:, :dimension].T @ factor[:, dimension])
        adapted = adapt and not lasso.coef_.any() and products.max() > 0
        if adapted:
            # Penalties of at least the largest product, divided by the rows of R, make theta* = 0.
            lasso.set_params(alpha=_PENALTY_SHARE * products.max() / len(factor))
            lasso.fit(factor[:, :dimension], factor[:, dimension])
    not_converged = any(issubclass(w.category, ConvergenceWarning) for w in caught)
    notes = (
        ("the lasso for theta* stopped at 10 000 iterations, not converged",)
        if not_converged
        else ()
    )
    if adapted:
        penalty_used = lasso.alpha / row_ratio
        notes = (
            *notes,
            f"the penalty of the lasso for theta* is {penalty_used:.3g}, because the default "
            "penalty 1 makes theta* = 0",
        )
    return np.asarray(lasso.coef_, dtype=np.float64), largest, notes


def _store_scaled_by_column(
    letor: LetorRows,
    columns: np.ndarray,
    theta: np.ndarray,
    largest: np.ndarray,
    span: tuple[float, float],
    path: str,
    storage: PoolStorage,
) -> _Model:
    """Scale each column of the rows, add them to ``storage``, and return the linear model.

    ``theta`` (d,) is the fit to the raw columns, ``largest`` (d,) the largest absolute value of
    each column, and ``span`` the range to which mean rewards are mapped. ``path`` names the source,
    for error messages.
    """
    scale = np.where(largest > 0, largest, 1.0)
    norm = max(float(_norms(raw / scale).max()) for _, _, raw in _chunks(letor, columns))
    scale *= norm / _norm_below_one(len(columns))
    scaled_theta = theta * scale
    # The least and largest value of each column.
    low = np.full(len(columns), np.inf, dtype=np.float32)
    high = -low
    for first, last, raw in _chunks(letor, columns):
        rows = (raw / scale).astype(np.float32)
        np.minimum(low, rows.min(axis=0), out=low)
        np.maximum(high, rows.max(axis=0), out=high)
        # Means are computed from the rounded rows, which are what the learner sees.
        means = rows.astype(np.float64) @ scaled_theta
        storage.add(_flat_blocks(rows, letor, first, last), means)
    min_mean, max_mean = storage.min_mean, storage.max_mean
    if not max_mean > min_mean:
        raise InputError(
            f"features must distinguish the actions of {path}, but all actions have the same mean "
            "reward: choose more columns or a smaller theta_penalty"
        )
    # Map mean rewards from [least, most] to the range `span`.
    slope = (span[1] - span[0]) / (max_mean - min_mean)
    shift = span[0] - slope * min_mean
    storage.change_means(lambda means: np.clip(slope * means + shift, span[0], span[1]))
    scaled_theta *= slope
    # The value of each constant column, and 0 for the other columns.
    constant = np.where(low == high, low, np.float32(0)).astype(np.float64)
    absorbed = bool(constant.any())
    if absorbed:
        # Among all theta that absorb the shift, this one has the least norm.
        scaled_theta += shift * constant / (constant @ constant)
    shift_note = (
        "absorbed by theta* at a constant column"
        if absorbed
        else "no column is constant, so the shift is outside the linear model"
    )
    norm_note = f"||theta*|| = {np.linalg.norm(scaled_theta):.4g} after scaling"
    if np.linalg.norm(scaled_theta) > 1:
        norm_note += ", the radius assumes at most 1"
    notes = (
        "feature scaling and theta* were computed from the data and are taken as public",
        f"mean rewards are {slope:.4g} <raw row, lasso coefficients> {shift:+.4g}, "
        f"in [{span[0]:g}, {span[1]:g}]; {shift_note}",
        norm_note,
    )
    return _Model(scaled_theta, notes, absorbed or shift == 0.0)


def _store_scaled_by_row(
    letor: LetorRows, columns: np.ndarray, theta: np.ndarray, storage: PoolStorage
) -> _Model:
    """Scale each row to norm 1, add the rows to ``storage``, and return the model.

    Mean rewards are <raw row, theta>, so they are not linear in the scaled rows.
    """
    for first, last, raw in _chunks(letor, columns):
        norms = _norms(raw)
        norms[norms == 0] = 1.0
        unit = raw * (_norm_below_one(len(columns)) / norms)[:, None]
        storage.add(_flat_blocks(unit.astype(np.float32), letor, first, last), raw @ theta)
    notes = (
        "theta* was computed from the data and is taken as public",
        "rows have norm 1 while mean rewards are <raw row, theta*>, so the mean is not linear in "
        "what the learner sees and no radius is proven",
        f"mean rewards lie in [{storage.min_mean:.4g}, {storage.max_mean:.4g}]",
    )
    return _Model(theta, notes, False)


def _flat_blocks(rows: np.ndarray, letor: LetorRows, first: int, last: int) -> np.ndarray:
    """Return the features (flat) of queries first .. last - 1 in the layout of a pool.

    ``rows`` holds the rows of these queries. The block of each query is feature-major, see `Pool`.
    """
    starts = np.asarray(letor.starts[first : last + 1])
    return np.concatenate(list(feature_major(rows, starts - starts[0])))


def _norms(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean norm of each row, (n,)."""
    return np.asarray(np.linalg.norm(rows, axis=1))


def _norm_below_one(dimension: int) -> float:
    """Return the norm to which rows of d features are scaled, slightly below 1.

    A sum of the d squares of such a row in float32 is at most 1 in spite of rounding.
    """
    return 1.0 - (dimension + 4) * 2.0**-24


# ---- The environment -----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Letor(PoolEnvironment):
    """LETOR files (MSLR-WEB10K, WEB30K, LETOR 4.0), with contiguous blocks of queries as silos.

    theta* is a lasso fit of relevance on the selected columns. Source: zhou-chowdhury-2024,
    Section 6.

    Parameters
    ----------
    path : path-like
        A file (.txt, .gz) or a folder of them.
    features : str or sequence of int
        "anchor-url" (57 columns), "text" (78), "both" (135), "all", or a list of column numbers.
    scaling : {"column", "row"}
        "column" keeps the model exactly linear. "row" is the scaling of the published code. See
        ``letor_pool``.
    theta_penalty : float, optional
        Penalty of the lasso fit, see ``letor_pool``.
    missing : str, optional
        Value of a missing feature as the file writes it; such a feature is 0.
    sampling, reward
        See ``PoolEnvironment``.

    Raises
    ------
    InputError
        For invalid options and missing files.
    """

    path: str
    features: Any = "all"
    scaling: str = "column"
    theta_penalty: float | None = None
    missing: str | None = None
    sampling: str = "with-replacement"
    kind = "letor"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("scaling", self.scaling, ["column", "row"])
        _checked_columns(self.features)
        if self.theta_penalty is not None:
            self.theta_penalty = number("theta_penalty", self.theta_penalty, above=0)
        missing_value(self.missing)
        if not isinstance(self.path, (str, Path)) or not os.path.exists(self.path):
            raise InputError(f"path must be an existing file or folder, got {self.path!r}")

    def load(self, silos: int | None) -> Pool:
        """Return the pool, with its queries divided among M silos."""
        if silos is None:
            raise InputError('silos is required for the environment "letor"')
        return letor_pool(
            self.path, silos, self.features, self.scaling, self.theta_penalty, missing=self.missing
        )

    def _rows(self) -> LetorRows:
        """Return the rows of the files."""
        return read_letor(self.path, missing=self.missing)

    def declared_rewards(self) -> tuple[float, float] | None:
        """Return (0, 1) for scaling "column". With "row", rewards have no bound: return None."""
        return (0.0, 1.0) if self.scaling == "column" else None

    def record_multiplicity(self) -> int:
        """Return the largest number of queries with the same identifier.

        Queries of one identifier in two files are separate queries, but may be one record.
        """
        _, counts = np.unique(self._rows().qids, return_counts=True)
        return int(counts.max())

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        rows = self._rows()
        # Leaving out keys at their defaults keeps the identity of results of earlier versions.
        further: dict[str, Any] = {"unjudged": "left out"} if rows.unjudged else {}
        for name in ("theta_penalty", "missing"):
            if getattr(self, name) is not None:
                further[name] = getattr(self, name)
        return {
            "kind": self.kind,
            # Checksums, not paths, so that moving a folder does not change the identity.
            "sources": list(rows.checksums),
            **further,
            "features": self.features,
            "scaling": self.scaling,
            "sampling": self.sampling,
            # Older versions computed the reward range, and so the radius, from the data. This key
            # distinguishes their results.
            **({"reward_range": None} if self.scaling == "row" else {}),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
            **self.later_keys,
        }
