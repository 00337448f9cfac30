"""Logs of decisions: one action, its reward and its probability (propensity) in each row.

The rewards of all other actions are unknown, so a log cannot be simulated round by round: regret
does not exist, and a policy that chooses other actions gets no reward. Systems are trained on the
logged actions of the earlier rows. The value of the policy that they learn is then estimated from
the later rows (`fastfed.simulation.logs`).
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from fastfed._cells import FALSE, TRUE, as_number, code, is_missing, unified
from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, choice, integer, number, show
from fastfed.environments.base import DECLARED_RANGES_TEXT, EnvironmentSpec, RewardDistribution
from fastfed.environments.coding import feature_columns, features_of, silo_numbers
from fastfed.environments.log_files import Decision, dense, read_vw
from fastfed.environments.pool import RECORDS_CAVEATS, equal_blocks
from fastfed.environments.replay import CODINGS, DIMENSION, declared_range, projections, scaled
from fastfed.environments.selection import check_missing, declared_columns, selected, with_missing
from fastfed.environments.tables import (
    FILE_PARTS,
    SILO,
    Table,
    digest_of,
    has_several_tables,
    is_table,
    read_table,
)

#: Formats of a log; for tables, the columns of action, reward and propensity.
FORMATS: dict[str, tuple[str, str, str] | None] = {
    "table": ("action", "reward", "propensity"),
    "open-bandit": ("item_id", "click", "propensity_score"),
    "vw": None,
}
#: Keys that are only for tables.
_TABLE_KEYS = (
    *("action", "reward", "propensity", "silo", "columns", "ranges", "where", "missing"),
    *FILE_PARTS,
)
#: How the names of those columns of the Open Bandit Dataset begin that are features of a visitor.
_VISITOR_PREFIX = "user_feature_"
#: Number of rounds whose actions are scored at once, which bounds memory.
_ROUNDS_AT_ONCE = 4096
#: The expected value of 1 / propensity is the number of actions. If the mean of 1 / propensity
#: differs from this number by more standard errors than this, a note says so.
_MAX_STANDARD_ERRORS = 6.0

#: Caveats of every log, for certificates.
_NOTES = (
    "the guarantee compares logs that differ in one row: what the logging policy learned from that "
    "row, and chose for later rows, is not covered",
    "the actions, propensities' least value and numbers of rows of each silo are taken as public",
    "values of policies are estimated from raw rows: they are not covered",
)


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rows of a log, sorted by silo and otherwise in the order of the log.

    A round has features z of the decision, including a constant, and its actions have features u.
    The features of an action in a round are the product u z', flattened, or a projection of this
    product to ``dimension`` numbers. Without features of actions, u is the unit vector of the
    action.

    Parameters
    ----------
    z : ndarray, shape (n, p + 1)
        Features of the decisions, of norm at most 1.
    u : ndarray, shape (rows, q), or None
        Features of the offered actions, of norm at most 1; None if actions have no features.
    starts : ndarray of int64, shape (n + 1,), or None
        First row of ``u`` of each round, and the number of rows.
    maps : list of ndarray
        Projections: one for each action, or one for u z'. Empty without projection.
    actions : list of str
        Names of the actions; empty if actions have features.
    available : ndarray of bool, shape (M, K)
        The actions that each silo's log ever takes; shape (M, 0) if actions have features.
    chosen : ndarray of int64, shape (n,)
        The logged action: its index in ``actions``. If actions have features, its position among
        the offered actions of the round.
    rewards, propensities : ndarray, shape (n,)
        Reward of the logged action, and the logging policy's probability of it.
    silo_starts : ndarray of int64, shape (M + 1,)
        First round of each silo, and n.
    notes : tuple of str
        Caveats for the certificate.
    doubts : tuple of str
        The notes that say why estimates from the log may be wrong.
    declared : bool
        True if the features of a round do not depend on other rounds.
    """

    z: np.ndarray
    u: np.ndarray | None
    starts: np.ndarray | None
    maps: list[np.ndarray]
    actions: list[str]
    available: np.ndarray
    chosen: np.ndarray
    rewards: np.ndarray
    propensities: np.ndarray
    silo_starts: np.ndarray
    notes: tuple[str, ...]
    declared: bool
    doubts: tuple[str, ...] = ()

    @property
    def silos(self) -> int:
        """Number of silos (M)."""
        return len(self.silo_starts) - 1

    @property
    def dimension(self) -> int:
        """Number of features of an action (d)."""
        if self.maps:
            return len(self.maps[0])
        return self.z.shape[1] * (len(self.actions) if self.u is None else self.u.shape[1])

    def features(self, round: int) -> np.ndarray:
        """Return the features of the logged action of a round, shape (d,).

        They are all products of a feature of the round and a feature of the action. If there are
        ``maps``, a public matrix projects these products to d numbers.
        """
        z, action = self.z[round], int(self.chosen[round])
        if self.u is not None and self.starts is not None:
            product = np.outer(self.u[self.starts[round] + action], z).ravel()
            return self.maps[0] @ product if self.maps else product
        if self.maps:
            return self.maps[action] @ z
        product = np.zeros((len(self.actions), len(z)))
        product[action] = z
        return product.ravel()

    def probabilities(self, rounds: range, silo: int, theta: np.ndarray, top: int) -> np.ndarray:
        """Return the probability that a policy chooses the logged action, for each of ``rounds``.

        The result has shape (len(rounds),). ``rounds`` are rounds of ``silo``. The policy chooses
        uniformly among the ``top`` offered actions with the largest scores <x, theta>, where x are
        the features of an action in the round (`features`). If actions have equal scores, the first
        of them comes first.
        """
        z, chosen = self.z[rounds.start : rounds.stop], self.chosen[rounds.start : rounds.stop]
        result = np.zeros(len(rounds))
        if self.u is None or self.starts is None:
            # Actions have no features. Action a has the score <weights[a], z>.
            weights = (
                np.stack([matrix.T @ theta for matrix in self.maps])
                if self.maps
                else theta.reshape(len(self.actions), -1)
            )
            count = min(top, int(self.available[silo].sum()))
            for first in range(0, len(rounds), _ROUNDS_AT_ONCE):
                block = slice(first, first + _ROUNDS_AT_ONCE)
                scores = z[block] @ weights.T
                scores[:, ~self.available[silo]] = -np.inf
                best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
                result[block] = (best == chosen[block, None]).any(axis=1) / count
            return result
        # Actions have features u. An action has the score u' weights z.
        flat = self.maps[0].T @ theta if self.maps else theta
        weights = flat.reshape(self.u.shape[1], -1)
        for i, round in enumerate(rounds):
            offered = self.u[self.starts[round] : self.starts[round + 1]]
            count = min(top, len(offered))
            best = np.argsort(-(offered @ (weights @ z[i])), kind="stable")[:count]
            result[i] = float((best == chosen[i]).any()) / count
        return result

    def counts(self, rounds: range, silo: int) -> np.ndarray:
        """Return the number of actions offered in each of these ``rounds`` of a silo, (n,)."""
        if self.starts is None:
            return np.full(len(rounds), int(self.available[silo].sum()))
        return np.diff(self.starts)[rounds.start : rounds.stop]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Rows:
    """The rows of a log in the order of the log; most fields are as in `Rounds`.

    ``where`` names file and line of each row. ``owner`` is the silo of each row, None if the log
    has no silos. ``sizes`` is the number of actions that are offered in each row. ``norm`` is a
    limit on the norm of features that is known without the log; None if there is none.
    """

    where: Sequence[str]
    owner: np.ndarray | None
    z: np.ndarray
    u: np.ndarray | None = None
    sizes: np.ndarray | None = None
    actions: list[str]
    chosen: np.ndarray
    rewards: np.ndarray
    propensities: np.ndarray
    notes: tuple[str, ...]
    declared: bool
    norm: float | None


@dataclass(kw_only=True)
class Log:
    """A log of decisions, on which systems are trained, and by which their policies are evaluated.

    Parameters
    ----------
    data : str, path, list of paths, frame or mapping
        A table, or one table for each silo, as for `Classification`; for ``format = "vw"``, a text
        file or a list of text files, one for each silo.
    format : {"table", "open-bandit", "vw"}
        A table; a table of the Open Bandit Dataset, whose names are the defaults of ``action``,
        ``reward``, ``propensity`` and ``columns``; or text of Vowpal Wabbit.
    action, reward, propensity : str, optional
        Columns of the logged action (any codes), its reward and its probability.
    silo : str, optional
        The column with the silo of each row; "silo" if there is one table for each silo.
    columns : list of str, optional
        The feature columns; by default all columns without another role. May be empty: [].
    ranges, norm, where, missing, sheet, table
        As in `Classification`. For "vw", only ``norm``: a bound on the norm of the features of a
        decision with a constant 1, and on that of the features of an action with a constant 1.
    coding : {"projection", "blocks"}
        Features of an action: a public random projection to ``dimension`` numbers, or products of
        the features of the decision with those of the action.
    dimension, projection_seed : int
        Length and public seed of the projection.
    reward_range : (float, float)
        Limits [low, high] of rewards, known without the data; others are refused.
    train : float
        Share of each silo's rows, from the first on, that systems may be trained on. The value of
        policies is estimated from all later rows.
    top : int
        The evaluated policy chooses uniformly among this number of best actions.

    Raises
    ------
    InputError
        For invalid options and missing files.
    """

    data: Any
    format: str = "table"
    action: str | None = None
    reward: str | None = None
    propensity: str | None = None
    silo: str | None = None
    columns: list[str] | None = None
    ranges: Any = None
    norm: float | None = None
    where: Any = None
    missing: Any = None
    sheet: str | None = None
    table: str | None = None
    coding: str = "projection"
    dimension: int = DIMENSION
    projection_seed: int = 0
    reward_range: Any = (0.0, 1.0)
    train: float = 0.5
    top: int = 1
    _rounds: dict[int | None, Rounds] = field(default_factory=dict, init=False, repr=False)
    kind = "log"

    def __post_init__(self) -> None:
        choice("format", self.format, list(FORMATS))
        choice("coding", self.coding, list(CODINGS))
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("projection_seed", self.projection_seed, at_least=0, at_most=2**63 - 1)
        if self.coding == "blocks" and self.dimension != DIMENSION:
            raise InputError(f'dimension needs coding = "projection", got {self.dimension}')
        self.reward_range = declared_range(self.reward_range)
        number("train", self.train, above=0.0, below=1.0)
        integer("top", self.top, at_least=1)
        if self.norm is not None:
            number("norm", self.norm, above=0.0)
        if self.missing is not None:
            check_missing(self.missing)
        names = FORMATS[self.format]
        if names is None:
            for key in _TABLE_KEYS:
                if getattr(self, key) is not None:
                    raise InputError(f'{key} is only for tables, not for format = "vw"')
            for path in self._files():
                if not isinstance(path, (str, Path)) or not os.path.isfile(path):
                    raise InputError(f"data must be a file or a list of files, got {show(path)}")
            return
        for key, name in zip(("action", "reward", "propensity"), names, strict=True):
            if getattr(self, key) is None:
                setattr(self, key, name)
        for key, what in FILE_PARTS.items():
            if not isinstance(getattr(self, key), str | None):
                raise InputError(f"{key} must name a {what}, got {show(getattr(self, key))}")
        if not is_table(self.data):
            raise InputError(f"data must be a table or a list of tables, got {show(self.data)}")
        if has_several_tables(self.data) and self.silo is None:
            self.silo = SILO

    def _files(self) -> list[Any]:
        """Return the files of a log in the format of Vowpal Wabbit."""
        return list(self.data) if isinstance(self.data, (list, tuple)) else [self.data]

    # ---- What every environment has --------------------------------------------------------------

    def natural_silos(self) -> int | None:
        """Return the number of silos that the data define; None if any number is allowed."""
        has_several_files = self.format == "vw" and len(self._files()) > 1
        return self.rounds(None).silos if has_several_files or self.silo is not None else None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of the training rows for M silos and T rounds."""
        rounds = self.rounds(silos)
        # Each silo needs a training row in every round, so the smallest silo limits the horizon.
        longest_horizon = min(len(training) for training, _ in self.parts(silos))
        if horizon > longest_horizon:
            raise InputError(
                f"horizon must be <= {longest_horizon}, train = {self.train:g} of the rows of the "
                f"smallest silo, got {horizon}"
            )
        return EnvironmentSpec(
            dimension=rounds.dimension,
            actions=1,  # a training round offers the logged action only
            reward=RewardDistribution("none"),
            reward_range=(self.reward_range[0] / self.scale, self.reward_range[1] / self.scale),
            linear=False,
            contexts_made=False,
            notes=(*rounds.notes, *RECORDS_CAVEATS, *_NOTES),
            conditions=((DECLARED_RANGES_TEXT, rounds.declared),),
            real_records=True,
        )

    def open(self, seed: int, replicate: int, silos: int) -> NoReturn:
        """Raise InputError: nobody knows the rewards of actions that were not taken."""
        raise InputError(
            "a log has no regret, as the rewards of other actions are unknown: `fastfed run` "
            "trains on it and estimates values, in Python fastfed.simulation.logs.evaluate"
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        if self.format == "vw":
            contents = [Path(path).read_bytes() for path in self._files()]
            digests = b"".join(hashlib.sha256(content).digest() for content in contents)
            digest = hashlib.sha256(digests).hexdigest()
        else:
            digest = digest_of(self.data, self.sheet, self.table)
        keys = {k: v for k, v in self.__dict__.items() if k not in ("data", "_rounds")}
        return {"kind": self.kind, "data": digest, **keys, "reward_range": list(self.reward_range)}

    @property
    def scale(self) -> float:
        """The number by which rewards are divided in training, so that they lie in [-1, 1]."""
        return max(1.0, *map(abs, self.reward_range))

    # ---- Rows ------------------------------------------------------------------------------------

    def rounds(self, silos: int | None) -> Rounds:
        """Return the rows of the log for M silos; None means that the data define the silos."""
        if silos not in self._rounds:
            read = self._read_vw_files if self.format == "vw" else self._read_tables
            self._rounds[silos] = read(silos)
        return self._rounds[silos]

    def parts(self, silos: int | None) -> list[tuple[range, range]]:
        """Return for each silo its rounds for training, and its rounds for evaluation."""
        starts = self.rounds(silos).silo_starts.tolist()
        parts = []
        for first, last in pairwise(starts):
            middle = first + math.floor(self.train * (last - first))
            parts.append((range(first, middle), range(middle, last)))
        if any(not training for training, _ in parts):
            raise InputError(f"train = {self.train:g} must leave each silo a row for training")
        return parts

    def _read_tables(self, silos: int | None) -> Rounds:
        """Read the table of a log, or one table for each silo, and return the rows sorted by silo.

        ``silos`` is M, the number of silos; None means that the data define it.
        """
        # If the tables of silos differ in their columns, only the columns of all tables are read.
        # This is allowed if ``columns`` or the format names the feature columns. Tables of Open
        # Bandit may differ in the columns of item affinities, which are no features.
        is_open_bandit = self.format == "open-bandit"
        shared_columns = self.columns is not None or is_open_bandit
        table = read_table(self.data, shared_columns, self.sheet, self.table)
        conditions = declared_columns(table, self.where, "where")
        ranges = declared_columns(table, self.ranges)
        table = selected(with_missing(table, self.missing, (ranges, conditions)), conditions)
        roles = {k: getattr(self, k) for k in ("action", "reward", "propensity", "silo")}
        for role, name in roles.items():
            if name is not None:
                table.check_name(role, name)
        role_names = [code(name) for name in roles.values() if name is not None]
        if len(set(role_names)) < len(role_names):
            raise InputError(
                f"{', '.join(roles)} must be different columns, got {', '.join(role_names)}"
            )
        columns = self.columns
        if columns is None and is_open_bandit:
            columns = [name for name in table.positions if name.startswith(_VISITOR_PREFIX)]
        feature_names = [name for name in table.positions if name not in role_names]
        count = len(table.cells)
        features, notes = np.zeros((count, 0)), table.notes
        names: list[str] = []
        without_features = isinstance(columns, (list, tuple)) and not columns
        if not without_features and (columns is not None or feature_names):
            names = feature_columns(table, roles, columns)
        if names or ranges:
            features, feature_notes = features_of(table, names, ranges)
            notes = (*notes, *feature_notes)
        cells = unified(table.complete("action", str(self.action)))
        actions = _sorted_actions(set(cells))
        position = {name: i for i, name in enumerate(actions)}
        declared = len(ranges) == len(names)
        norm = self.norm
        if norm is None and declared:
            norm = math.sqrt(len(names) + 1.0)
        raw = _Rows(
            where=table.where,
            owner=None if self.silo is None else silo_numbers(table, self.silo),
            z=scaled(features, MAX_DIMENSION, norm),
            actions=actions,
            chosen=np.array([position[cell] for cell in cells]),
            rewards=_numbers_of_column(table, "reward", str(self.reward)),
            propensities=_numbers_of_column(table, "propensity", str(self.propensity)),
            notes=notes,
            declared=declared,
            norm=norm,
        )
        return self._sort_by_silo(silos, raw)

    def _read_vw_files(self, silos: int | None) -> Rounds:
        """Read files in the format of Vowpal Wabbit, and return their rows sorted by silo.

        ``silos`` is M, the number of silos; None means one silo for each file.
        """
        files = [read_vw(Path(path)) for path in self._files()]
        decisions: list[Decision] = [decision for file in files for decision in file]
        with_features = [bool(decision.actions) for decision in decisions]
        if any(with_features) and not all(with_features):
            raise InputError("all files of a log must be of one form, got both lines and blocks")
        names, values = dense([decision.shared for decision in decisions], "decisions")
        notes: tuple[str, ...] = (
            "the names of all features in the log are taken as public"
            f"; a decision has {len(names)} of them",
        )
        u, sizes, actions = None, None, list[str]()
        chosen = np.array([decision.chosen for decision in decisions])
        if all(with_features):
            offered = [action for decision in decisions for action in decision.actions]
            u = scaled(dense(offered, "actions")[1], MAX_DIMENSION, self.norm)
            sizes = np.array([len(decision.actions) for decision in decisions])
        else:
            present = sorted(set(chosen.tolist()))
            actions = [str(action) for action in present]
            chosen = np.searchsorted(present, chosen)
        owner = None
        if len(files) > 1:
            owner = np.repeat(np.arange(len(files)), [len(file) for file in files])
        raw = _Rows(
            where=[decision.where for decision in decisions],
            owner=owner,
            z=scaled(values, MAX_DIMENSION, self.norm),
            u=u,
            sizes=sizes,
            actions=actions,
            chosen=chosen,
            rewards=np.array([decision.reward for decision in decisions]),
            propensities=np.array([decision.propensity for decision in decisions]),
            notes=notes,
            declared=True,
            norm=self.norm,
        )
        return self._sort_by_silo(silos, raw)

    def _sort_by_silo(self, silos: int | None, raw: _Rows) -> Rounds:
        """Check the rows of a log, and return them sorted by silo.

        If no column or file gives the silo of a row, the rows are divided among ``silos`` silos.
        """
        self._check_rows(raw)
        silo_starts, order = _silo_order(silos, raw)
        # ``starts`` is the first row of u of each round, see `Rounds`.
        u, starts, available = raw.u, None, np.zeros((len(silo_starts) - 1, 0), dtype=bool)
        sizes: Any = None if raw.sizes is None else raw.sizes[order]
        if u is not None and raw.sizes is not None:
            first_rows = np.concatenate([[0], np.cumsum(raw.sizes)])
            u = np.concatenate([u[first_rows[row] : first_rows[row + 1]] for row in order.tolist()])
            starts = np.concatenate([[0], np.cumsum(sizes)])
        else:
            available = np.zeros((len(silo_starts) - 1, len(raw.actions)), dtype=bool)
            for i in range(len(available)):
                available[i, raw.chosen[order[silo_starts[i] : silo_starts[i + 1]]]] = True
        width = raw.z.shape[1] * (len(raw.actions) if u is None else u.shape[1])
        maps: list[np.ndarray] = []
        if self.coding == "projection":
            count, columns = (len(raw.actions), raw.z.shape[1]) if u is None else (1, width)
            maps = projections(count, self.dimension, columns, self.projection_seed)
        elif width > MAX_DIMENSION:
            raise InputError(
                f'coding = "blocks" needs {width} features, at most {MAX_DIMENSION}; use '
                'coding = "projection"'
            )
        norm_note = (
            "rows are divided by the largest norm in the log, which is taken as public"
            if raw.norm is None
            else f"each row is scaled down to norm at most {raw.norm:g}, a limit that is known "
            "without the log"
        )
        doubts = _propensity_doubts(raw.propensities[order], silo_starts, available, sizes)
        return Rounds(
            z=raw.z[order],
            u=u,
            starts=starts,
            maps=maps,
            actions=raw.actions,
            available=available,
            chosen=raw.chosen[order],
            rewards=raw.rewards[order],
            propensities=raw.propensities[order],
            silo_starts=silo_starts,
            notes=(*raw.notes, norm_note, *doubts),
            doubts=doubts,
            declared=raw.declared and raw.norm is not None,
        )

    def _check_rows(self, raw: _Rows) -> None:
        """Raise InputError for rewards or propensities out of range, and for a single action."""
        low, high = self.reward_range
        hint = ": a reward is minus the cost" if self.format == "vw" else ""
        valid = (raw.rewards >= low) & (raw.rewards <= high)
        if not valid.all():
            row = int(np.argmin(valid))
            raise InputError(
                f"{raw.where[row]}: reward must lie in reward_range [{low:g}, {high:g}], "
                f"got {raw.rewards[row]:g}{hint}"
            )
        valid = (raw.propensities > 0.0) & (raw.propensities <= 1.0)
        if not valid.all():
            row = int(np.argmin(valid))
            raise InputError(
                f"{raw.where[row]}: propensity must be a probability, > 0 and <= 1, "
                f"got {raw.propensities[row]:g}"
            )
        if raw.u is None and len(raw.actions) < 2:
            raise InputError(f"a log must have at least 2 actions, got only {show(raw.actions[0])}")


def _silo_order(silos: int | None, raw: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of the silos (M + 1,), and the numbers of the rows sorted by silo (n,).

    The starts are the position of each silo's first row in the sorted order, and n at the end.
    Without a silo column, the rows are divided in order among ``silos`` silos of nearly equal size.
    """
    count = len(raw.z)
    if raw.owner is None:
        if silos is None:
            raise InputError("silos is required: the log has no silo column")
        if silos > count:
            raise InputError(f"silos must be at most the {count} rows, got {silos}")
        return equal_blocks(count, silos), np.arange(count)
    silos_of_log = int(raw.owner.max()) + 1
    if silos not in (None, silos_of_log):
        raise InputError(f"silos must be the {silos_of_log} silos of the log, got {silos}")
    starts = np.concatenate([[0], np.cumsum(np.bincount(raw.owner))])
    return starts, np.argsort(raw.owner, kind="stable")


def _propensity_doubts(
    propensities: np.ndarray, silo_starts: np.ndarray, available: np.ndarray, sizes: Any
) -> tuple[str, ...]:
    """Return a note if the propensities cannot be right, else an empty tuple.

    If every action has a positive probability, the mean of 1 / propensity is near the mean number
    of offered actions. The number of offered actions of each row is in ``sizes`` (n,). If ``sizes``
    is None, it is the number of actions that ``available`` (M, K) marks for the silo of the row.
    Then the rows must be sorted by silo, and those of silo i start at ``silo_starts[i]``.
    """
    inverse = 1.0 / propensities
    counts = np.repeat(available.sum(axis=1), np.diff(silo_starts)) if sizes is None else sizes
    difference = inverse - counts
    error = float(difference.std()) / math.sqrt(len(difference))
    tolerance = (
        _MAX_STANDARD_ERRORS * error + 1e-3 * float(counts.mean()) + _rounding_error(propensities)
    )
    if abs(float(difference.mean())) <= tolerance:
        return ()
    return (
        f"the mean of 1 / propensity is {inverse.mean():.4g}, but {counts.mean():.4g} actions are "
        "offered on average: the propensities do not fit, or some actions are never taken, and "
        "then estimates are biased",
    )


def _rounding_error(propensities: np.ndarray) -> float:
    """Return how far the mean of 1 / propensity may be off because propensities (n,) are rounded.

    For example, 0.333 instead of 1 / 3 gives 3.003 instead of 3. If all propensities have at most
    4 decimals, they are taken as rounded to 2, 3 or 4 decimals, the least number that fits.
    Otherwise they are taken as exact, and the result is 0.
    """
    for decimals in (2, 3, 4):
        if np.array_equal(np.round(propensities, decimals), propensities):
            half_unit = 0.5 * 10.0**-decimals
            return float((half_unit / propensities**2).mean())
    return 0.0


def _sorted_actions(names: set[str]) -> list[str]:
    """Return the sorted names of actions: by value if all are whole numbers, else as texts."""
    if all(name.isdecimal() and len(name) < 19 for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def _numbers_of_column(table: Table, role: str, column: str) -> np.ndarray:
    """Return the numbers in a column of a table, (n,); words such as true and false are 1 and 0.

    ``role`` is what the column is used for, such as "reward", for error messages.
    """
    by_cell: dict[str, float | None] = defaultdict(lambda: None)
    cells = table.complete(role, column)
    for cell in set(cells):
        word = cell.lower()
        is_word = word in TRUE or word in FALSE
        by_cell[cell] = float(word in TRUE) if is_word else as_number(cell)
    for cell, where in zip(cells, table.where, strict=True):
        if is_missing(cell) or by_cell[cell] is None:
            raise InputError(f"{where}: {role} must be a number, got {show(cell)}")
    return np.array([by_cell[cell] for cell in cells], dtype=np.float64)
