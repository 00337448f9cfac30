"""Pools of data in arrays: classified records, and the replay of recorded rounds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastfed._cells import code, is_missing, plain_name
from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, array, axes, constructed, number, rising, show, unmasked
from fastfed.environments.base import DECLARED_RANGES_TEXT, RewardDistribution
from fastfed.environments.pool import ARRAYS_CAVEAT, Pool, PoolEnvironment, equal_blocks

# ---- Classified records --------------------------------------------------------------------------

#: Codings of the features of an action.
CODINGS = ("projection", "blocks")
#: Default d of a projection.
DIMENSION = 20
MAX_CLASSES = 1000


@dataclass(frozen=True, eq=False)
class Records:
    """Classified records.

    Parameters
    ----------
    features : ndarray, shape (n, p)
        Features of each record.
    classes : ndarray of int64, shape (n,)
        Class of each record, 0 to K - 1.
    owner : ndarray of int64, shape (n,), optional
        Silo of each record.
    norm : float, optional
        Bound on the norm of a record with a constant 1, known without the data. If None, the
        largest norm is computed from the data.
    declared_classes : int, optional
        K, if it is known without the data. If None, K is the largest class in the data plus 1.
    """

    features: np.ndarray
    classes: np.ndarray
    owner: np.ndarray | None = None
    norm: float | None = None
    declared_classes: int | None = None

    @classmethod
    def of(
        cls, features: ArrayLike, classes: ArrayLike, silo: ArrayLike | None, norm: float | None
    ) -> Records:
        """Return the records of these arrays, after checking the arrays.

        ``classes`` may be texts, and ``silo`` any values. Silos are numbered in order of first
        appearance.
        """
        features = array("features", features, ndim=2)
        count = len(features)
        if count == 0:
            raise InputError("features must hold at least one record, got none")
        axes("classes", classes)
        classes_array = np.asarray(unmasked("classes", classes))
        if classes_array.dtype.kind in "UOT" and all(
            isinstance(value, str) for value in classes_array.flat
        ):
            texts = np.array([code(value) for value in classes_array.flat], dtype=object)
            missing = [text for text in texts if is_missing(text)]
            if missing:
                raise InputError(
                    f"classes must be given for every record, got {show(missing[0])}, which means "
                    "missing"
                )
            classes = np.unique(texts, return_inverse=True)[1].reshape(classes_array.shape)
        labels = array("classes", classes, shape=(count,))
        numbers = labels.astype(np.int64)
        valid = (numbers == labels).all() and numbers.min() >= 0 and numbers.max() < MAX_CLASSES
        if not valid:
            invalid = labels[(numbers != labels) | (numbers < 0) | (numbers >= MAX_CLASSES)][0]
            raise InputError(
                f"classes must be integers from 0 to {MAX_CLASSES - 1}, got {invalid:g}"
            )
        if numbers.max() < 1:
            raise InputError("classes must hold at least 2 classes, got only 0")
        if norm is not None:
            norm = number("norm", norm, above=0.0)
        return cls(features, numbers, None if silo is None else _silo_numbers(silo, count), norm)

    @property
    def actions(self) -> int:
        """Number of classes (K)."""
        return self.declared_classes or int(self.classes.max()) + 1

    @property
    def silos(self) -> int | None:
        """Number of silos that the records define; None if records have no silos."""
        return None if self.owner is None else int(self.owner.max()) + 1

    def digest(self) -> str:
        """Return the SHA-256 of all records."""
        owner = b"" if self.owner is None else self.owner.tobytes()
        shape = repr((self.features.shape, self.norm)).encode()
        return hashlib.sha256(
            shape + self.features.tobytes() + self.classes.tobytes() + owner
        ).hexdigest()


def records_pool(
    records: Records,
    silos: int | None,
    dimension: int,
    seed: int,
    coding: str,
    notes: tuple[str, ...] = (),
    declared: bool = True,
) -> Pool:
    """Return a pool with one query per record and one action per class.

    Let z (p + 1,) be the p features of a record and a constant 1, divided by the largest norm of
    all records. If ``records.norm`` is given, z is instead scaled down to norm at most
    ``records.norm`` and divided by ``records.norm``. For record c and action a, of K actions, the
    features phi(c, a) are

    - "projection": P_a z. The public matrices P_a (dimension, p + 1) have orthonormal columns (if
      dimension >= p + 1) or rows, from the QR factorisation of a Gaussian matrix drawn with
      ``seed``, so that ||phi|| <= ||z|| <= 1;
    - "blocks": z in the block of action a and 0 elsewhere, with d = K (p + 1). This is a separate
      linear model for each action.

    The mean reward is 1 if a is the class of the record, and 0 otherwise.

    Parameters
    ----------
    records : Records
        The records.
    silos : int or None
        M. If the records define no silos, M is required and silos are equal contiguous blocks.
    dimension, seed : int
        Number of rows of the projections, and their public seed.
    coding : {"projection", "blocks"}
        Coding of the features of an action.
    notes : tuple of str
        Caveats for the certificate.
    declared : bool
        True if the features of a record do not depend on other records.

    Returns
    -------
    Pool
        The pool.

    Raises
    ------
    InputError
        For more silos than records, and for too many features.
    """
    features, classes, owner = records.features, records.classes, records.owner
    count, actions = len(features), records.actions
    if owner is None:
        assert silos is not None
        if silos > count:
            raise InputError(f"silos must be at most the {count} records, got {silos}")
        silo_starts = equal_blocks(count, silos)
    else:
        order = np.argsort(owner, kind="stable")
        features, classes = features[order], classes[order]
        silo_starts = np.concatenate([[0], np.cumsum(np.bincount(owner))])
    width = dimension if coding == "projection" else actions * (features.shape[1] + 1)
    if width > MAX_DIMENSION:
        raise InputError(
            f'coding = "blocks" needs {actions} actions x {features.shape[1] + 1} features, at '
            f'most {MAX_DIMENSION} numbers; use coding = "projection"'
        )
    z = scaled(features, width, records.norm)
    rows = (
        _projected_features(z, actions, dimension, seed)
        if coding == "projection"
        else _block_features(z, actions)
    )
    unused = np.setdiff1d(np.arange(actions), classes)
    if len(unused):
        names = ", ".join(f"class {class_index}" for class_index in unused[:10])
        names += ", ..." if len(unused) > 10 else ""
        notes = (
            *notes,
            f"no record has {names}, so {len(unused)} of {actions} actions are never right",
        )
    norm_note = (
        "rows are divided by the largest norm in the data, which is taken as public"
        if records.norm is None
        else f"each record is scaled down to norm at most {records.norm:g}, a limit that is known "
        "without the data"
    )
    return Pool.from_rows(
        rows,
        (np.arange(actions) == classes[:, None]).astype(np.float64).ravel(),
        np.arange(count + 1) * actions,
        silo_starts,
        notes=(
            *notes,
            norm_note,
            "mean rewards are 1 for the record's class and 0 otherwise, not linear in the "
            "features: no radius is proven",
        ),
        conditions=((DECLARED_RANGES_TEXT, declared and records.norm is not None),),
    )


def _silo_numbers(silo: ArrayLike, count: int) -> np.ndarray:
    """Return the silo of each record, int64 (n,), numbered in order of first appearance."""
    try:
        names = np.asarray(unmasked("silo", silo)).tolist()
    except ValueError:  # lists of different lengths
        raise InputError(f"silo must be a flat list of names, got {show(silo)}") from None
    if not isinstance(names, list) or len(names) != count:
        raise InputError(f"silo must name one silo for each of {count} records, got {show(silo)}")
    if any(isinstance(name, (list, dict, set, tuple)) for name in names):
        raise InputError(f"silo must be a flat list of names, got {show(silo)}")
    missing_names = [name for name in names if is_missing(name)]
    if missing_names:
        raise InputError(
            f"silo must be given for every record, got {show(missing_names[0])} (None or NaN, or a "
            "text that means missing)"
        )
    names = [plain_name("silo", name) for name in names]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def scaled(features: np.ndarray, width: int, norm: float | None) -> np.ndarray:
    """Return the records with a constant 1 appended, shape (n, p + 1), scaled to norms below 1.

    Each record is divided by ``norm``, or by the record's norm if this is larger. If ``norm`` is
    None, all records are divided by the largest norm in the data. ``width`` is the number of
    features of an action, which bounds the rounding error of norms in float32.
    """
    z = np.hstack([features, np.ones((len(features), 1))])
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(z, axis=1)
    if not np.isfinite(norms).all():
        raise InputError(
            f"features must be smaller: the norm of record {int(np.argmin(np.isfinite(norms)))} "
            "overflows a float64"
        )
    # A norm a little below 1, such that a float32 sum of ``width`` squares is at most 1.
    below_one = 1.0 - (width + 4) * 2.0**-24
    if norm is None:
        z *= below_one / norms.max()
    else:
        z *= (below_one / np.maximum(norms, norm))[:, None]
    return z


def projections(count: int, dimension: int, width: int, seed: int) -> list[np.ndarray]:
    """Return ``count`` random public matrices (dimension, width) from a seed.

    They have orthonormal columns if ``dimension`` >= ``width``, and orthonormal rows otherwise.
    """
    rng = np.random.default_rng(seed)
    matrices = []
    for _ in range(count):
        normal = rng.standard_normal((dimension, width))
        tall = dimension >= width
        q, r = np.linalg.qr(normal if tall else normal.T)
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # a positive diagonal of R makes Q unique
        matrices.append(q if tall else q.T)
    return matrices


def _projected_features(z: np.ndarray, actions: int, dimension: int, seed: int) -> np.ndarray:
    """Return P_a z for each record z and action a, float32 (n * actions, dimension).

    The P_a are the public matrices of `projections` for ``seed``.
    """
    rows = np.empty((len(z), actions, dimension), dtype=np.float32)
    for action, matrix in enumerate(projections(actions, dimension, z.shape[1], seed)):
        rows[:, action] = z @ matrix.T
    return rows.reshape(-1, dimension)


def _block_features(z: np.ndarray, actions: int) -> np.ndarray:
    """Return the features of every action for each record z (n, p): one block for each action.

    The block of the action holds the record, and the other blocks are 0. The result is float32,
    (n * actions, actions * p).
    """
    count, p = z.shape
    rows = np.zeros((count, actions, actions, p), dtype=np.float32)
    for action in range(actions):
        rows[:, action, action] = z
    return rows.reshape(count * actions, actions * p)


# ---- Recorded rounds -----------------------------------------------------------------------------

#: Arrays of recorded rounds; the first two are required.
ARRAYS = ("contexts", "rewards", "rounds", "mask")


@constructed("Replay.from_arrays(contexts, rewards)")
@dataclass(kw_only=True)
class Replay(PoolEnvironment):
    """Recorded rounds, with the features and the reward of every action.

    Regret compares with the best of the recorded rewards. Silos may have different numbers of
    rounds, and rounds different numbers of actions: T and K are then the largest ones, and
    ``rounds`` and ``mask`` state which entries count. The other entries may have any value.

    Parameters
    ----------
    contexts : array_like, shape (M, T, K, d)
        Features, with norms of at most 1.
    rewards : array_like, shape (M, T, K)
        Reward of every action.
    rounds : array_like of int, shape (M,), optional
        Number of rounds of each silo, in 1..T. All silos have T rounds by default.
    mask : array_like of bool, shape (M, T, K), optional
        True for the actions that a round offers, at least one. All are offered by default. The
        index of an action counts the offered actions only.
    path : str, optional
        An .npz file with the arrays contexts and rewards, and rounds and mask if needed, instead
        of the arrays. Specs need it.
    reward_range : (float, float), optional
        Limits [low, high] that are known without the data and contain all rewards. Without them
        rewards have no bound, and theory covers only curves that clip rewards.
    sampling : str
        "without-replacement": a new random order of the rounds of a silo in every replicate.
        "in-order": the recorded order. See ``PoolEnvironment``.
    reward : RewardDistribution
        Noise of the rewards, none by default.

    Raises
    ------
    InputError
        For shapes that do not agree, values out of range and files that cannot be read.
    """

    contexts: ArrayLike | None = None
    rewards: ArrayLike | None = None
    rounds: ArrayLike | None = None
    mask: ArrayLike | None = None
    path: str | None = None
    reward_range: Sequence[float] | None = None
    sampling: str = "without-replacement"
    kind = "replay"
    records = "recorded rounds"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            if given_arrays := [name for name in ARRAYS if getattr(self, name) is not None]:
                raise InputError(
                    "give either path or arrays, not both: got path and "
                    f"{' and '.join(given_arrays)}"
                )
            for name, values in _read_arrays(self.path).items():
                setattr(self, name, values)
        if self.contexts is None or self.rewards is None:
            raise InputError("replay needs contexts and rewards, or path to an .npz file with them")
        if axes("contexts", self.contexts) != 4:
            raise InputError(
                f"contexts must have the axes (M, T, K, d), got shape {np.shape(self.contexts)}"
            )
        contexts = array("contexts", self.contexts, ndim=4, dtype=np.float32, finite=False)
        if 0 in contexts.shape:
            raise InputError(f"contexts must not be empty, got shape {contexts.shape}")
        shape = contexts.shape[:3]
        rewards = array("rewards", self.rewards, shape=shape, finite=False)
        self.rounds, self.mask, offered = _checked_masks(shape, self.rounds, self.mask)
        self._offered = None if offered.all() else offered
        if self._offered is not None:
            # Set entries that do not count to 0.
            contexts = np.where(offered[..., None], contexts, np.float32(0.0))
            rewards = np.where(offered, rewards, 0.0)
        array("contexts", contexts, dtype=np.float32)
        array("rewards", rewards)
        norm = float(np.sqrt((contexts.astype(np.float64) ** 2).sum(axis=-1)).max())
        if norm > 1.0 + 1e-6:
            raise InputError(f"contexts must have norms <= 1, got {norm:g}; scale them first")
        if self.reward_range is not None:
            low, high = self.reward_range = declared_range(self.reward_range)
            counted = rewards[offered]
            lowest, highest = float(counted.min()), float(counted.max())
            if lowest < low or highest > high:
                raise InputError(
                    f"rewards must lie in reward_range [{low:g}, {high:g}], "
                    f"got {lowest:g} to {highest:g}"
                )
        self.contexts, self.rewards = contexts, rewards

    @classmethod
    def from_arrays(
        cls,
        contexts: ArrayLike,
        rewards: ArrayLike,
        sampling: str = "without-replacement",
        reward_range: Sequence[float] | None = None,
        *,
        rounds: ArrayLike | None = None,
        mask: ArrayLike | None = None,
    ) -> Replay:
        """Return the environment with these arrays. Rewards are observed without noise.

        Parameters
        ----------
        contexts : array_like, shape (M, T, K, d)
            Features, with norms of at most 1; stored as float32.
        rewards : array_like, shape (M, T, K)
            Reward of every action.
        sampling, reward_range, rounds, mask
            As in `Replay`.

        Returns
        -------
        Replay
            The environment.

        Raises
        ------
        InputError
            For shapes that do not agree and values out of range.
        """
        return cls(
            contexts=contexts,
            rewards=rewards,
            rounds=rounds,
            mask=mask,
            sampling=sampling,
            reward=RewardDistribution("none"),
            reward_range=reward_range,
        )

    def declared_rewards(self) -> tuple[float, float] | None:
        """Return the declared range of rewards, or None."""
        if self.reward_range is None:
            return None
        low, high = self.reward_range
        return low, high

    def load(self, silos: int | None) -> Pool:
        """Return the pool of the recorded rounds; ``silos`` must be None or M."""
        contexts, rewards = np.asarray(self.contexts), np.asarray(self.rewards)
        m, t, k, d = contexts.shape
        if silos not in (None, m):
            raise InputError(f"silos must be {m}, the first axis of contexts, got {silos}")
        if self._offered is not None:
            offered = self._offered
            counts = offered.sum(axis=2)  # actions of each round, 0 in rounds that a silo lacks
            return Pool.from_rows(
                contexts[offered],
                rewards[offered],
                np.append(0, np.cumsum(counts[counts > 0])),
                np.append(0, np.cumsum((counts > 0).sum(axis=1))),
                notes=(ARRAYS_CAVEAT,),
            )
        return Pool.from_rows(
            contexts.reshape(-1, d),
            rewards.reshape(-1),
            np.arange(m * t + 1) * k,
            np.arange(m + 1) * t,
            notes=(ARRAYS_CAVEAT,),
        )

    def natural_silos(self) -> int | None:
        """Return M, the first axis of the contexts."""
        return len(np.asarray(self.contexts))

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        digest = hashlib.sha256(np.asarray(self.contexts).data)  # without a copy of gigabytes
        digest.update(np.asarray(self.rewards).data)
        if self._offered is not None:
            digest.update(self._offered.data)
        return {
            "kind": self.kind,
            "sha256": digest.hexdigest(),
            "sampling": self.sampling,
            # This key is present even if None, to distinguish results of older versions, which
            # computed the reward range, and so the radius, from the data.
            "reward_range": None if self.reward_range is None else list(self.reward_range),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
            **self.later_keys,
        }


def declared_range(reward_range: Any) -> tuple[float, float]:
    """Return the checked option ``reward_range``, limits (low, high) with low < high."""
    return rising("reward_range", reward_range)


def _checked_masks(
    shape: tuple[int, ...], rounds: Any, mask: Any
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray]:
    """Return the arguments ``rounds`` and ``mask`` of `Replay` as arrays, after checking them.

    The third result is the mask (M, T, K) of the entries that count: actions that are offered in
    rounds that a silo has. ``shape`` is (M, T, K).
    """
    silos, max_rounds, _ = shape
    offered = np.ones(shape, bool)
    if rounds is not None:
        lengths = array("rounds", rounds, shape=(silos,))
        wrong = np.flatnonzero(
            (lengths != np.rint(lengths)) | (lengths < 1) | (lengths > max_rounds)
        )
        if len(wrong):
            raise InputError(
                f"rounds must be integers from 1 to {max_rounds}, the second axis of contexts, got "
                f"{lengths[wrong[0]]:g} for silo {wrong[0]}"
            )
        rounds = lengths.astype(np.int64)
        offered &= (np.arange(max_rounds) < rounds[:, None])[..., None]
    if mask is not None:
        flags = array("mask", mask, shape=shape)
        if not np.isin(flags, (0.0, 1.0)).all():
            raise InputError(
                "mask must hold True for actions that are offered and False for others, got "
                f"{flags[~np.isin(flags, (0.0, 1.0))][0]:g}"
            )
        mask = flags.astype(bool)
        rounds_without_action = np.argwhere(offered.any(axis=2) & ~(offered & mask).any(axis=2))
        if len(rounds_without_action):
            silo, round = rounds_without_action[0].tolist()
            raise InputError(
                f"mask must offer an action in every round, got none in round {round + 1} of silo "
                f"{silo}"
            )
        offered &= mask
    return rounds, mask, offered


def _read_arrays(path: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file, by name."""
    if not isinstance(path, (str, Path)) or not os.path.isfile(path):
        raise InputError(f"path must be an existing .npz file, got {path!r}")
    try:
        with np.load(path, allow_pickle=False) as file:
            optional = [name for name in ARRAYS[2:] if name in file.files]
            return {name: file[name] for name in (*ARRAYS[:2], *optional)}
    except Exception:  # NumPy and zipfile raise many kinds of errors for a damaged file
        raise InputError(
            f"{path} must be an .npz file with the arrays contexts and rewards"
        ) from None
