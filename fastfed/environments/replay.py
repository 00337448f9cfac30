"""Replay of recorded rounds: arrays of features and of the reward of every action."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, array
from fastfed.environments.base import RewardLaw
from fastfed.environments.pool import Pool
from fastfed.environments.pool_environment import PoolEnvironment


@dataclass(kw_only=True)
class Replay(PoolEnvironment):
    """Recorded rounds: ``contexts`` (M, T, K, d) and ``rewards`` (M, T, K), every action's.

    Norms of features must be at most 1. Regret is against the given rewards. By default the
    rounds of a silo are met in a fresh random order per replicate ("without-replacement");
    "in-order" keeps the recorded one. In a spec, ``path`` names an .npz file with both arrays.
    """

    contexts: Any = None
    rewards: Any = None
    path: str | None = None
    sampling: str = "without-replacement"
    kind = "replay"
    records = "recorded rounds"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.path is not None:
            if self.contexts is not None or self.rewards is not None:
                raise InputError("path and the arrays contexts, rewards exclude each other")
            self.contexts, self.rewards = _read(self.path)
        if self.contexts is None or self.rewards is None:
            raise InputError("replay needs contexts and rewards, or path to an .npz with both")
        contexts = array("contexts", self.contexts, ndim=4, dtype=np.float32)
        if 0 in contexts.shape:
            raise InputError(f"contexts must not be empty, got shape {contexts.shape}")
        rewards = array("rewards", self.rewards, shape=contexts.shape[:3])
        norm = float(np.sqrt((contexts.astype(np.float64) ** 2).sum(axis=-1)).max())
        if norm > 1.0 + 1e-6:
            raise InputError(f"contexts must have norms <= 1, got {norm:g}; scale them first")
        self.contexts, self.rewards = contexts, rewards

    @classmethod
    def from_arrays(
        cls, contexts: Any, rewards: Any, sampling: str = "without-replacement"
    ) -> Replay:
        """The environment of two arrays; rewards are what is observed, without noise."""
        return cls(contexts=contexts, rewards=rewards, sampling=sampling, reward=RewardLaw("none"))

    def load(self, silos: int | None) -> Pool:
        m, t, k, d = self.contexts.shape
        if silos not in (None, m):
            raise InputError(f"silos must be {m}, the first axis of contexts, got {silos}")
        return Pool.from_rows(
            self.contexts.reshape(-1, d),
            self.rewards.reshape(-1),
            np.arange(m * t + 1) * k,
            np.arange(m + 1) * t,
        )

    def natural_silos(self) -> int | None:
        return int(self.contexts.shape[0])

    def describe(self) -> dict[str, Any]:
        digest = hashlib.sha256(self.contexts)  # without a copy: these may be gigabytes
        digest.update(self.rewards)
        return {
            "kind": self.kind,
            "sha256": digest.hexdigest(),
            "sampling": self.sampling,
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
        }


def _read(path: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(path, (str, Path)) or not os.path.isfile(path):
        raise InputError(f"path must be an existing .npz file, got {path!r}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return file["contexts"], file["rewards"]
    except Exception:  # a damaged file makes NumPy and zipfile raise a dozen kinds of errors
        raise InputError(
            f"{path} must be an .npz file with the arrays contexts and rewards"
        ) from None
