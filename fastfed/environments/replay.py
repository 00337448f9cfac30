"""Replay of recorded rounds: arrays of features and of the reward of every action."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, array, number, show
from fastfed.environments.base import RewardLaw
from fastfed.environments.pool import Pool
from fastfed.environments.pool_environment import MADE_BEFORE, PoolEnvironment


@dataclass(kw_only=True)
class Replay(PoolEnvironment):
    """Recorded rounds: ``contexts`` (M, T, K, d) and ``rewards`` (M, T, K), every action's.

    Norms of features must be at most 1. Regret is against the given rewards. ``reward_range``:
    [low, high], limits that are known without the data and that all rewards must lie in; where
    they are not declared rewards have no bound, and without clipping nothing is proven. By default
    the rounds of a silo are met in a fresh random order per replicate ("without-replacement");
    "in-order" keeps the recorded one. In a spec, ``path`` names an .npz file with both arrays.
    """

    contexts: Any = None
    rewards: Any = None
    path: str | None = None
    reward_range: Any = None
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
        if self.reward_range is not None:
            low, high = self.reward_range = declared_range(self.reward_range)
            least, most = float(rewards.min()), float(rewards.max())
            if least < low or most > high:
                raise InputError(
                    f"rewards must lie in reward_range, {low:g} to {high:g}, "
                    f"got {least:g} to {most:g}"
                )
        self.contexts, self.rewards = contexts, rewards

    @classmethod
    def from_arrays(
        cls,
        contexts: Any,
        rewards: Any,
        sampling: str = "without-replacement",
        reward_range: Any = None,
    ) -> Replay:
        """The environment of two arrays; rewards are what is observed, without noise."""
        return cls(
            contexts=contexts,
            rewards=rewards,
            sampling=sampling,
            reward=RewardLaw("none"),
            reward_range=reward_range,
        )

    def declared_rewards(self) -> tuple[float, float] | None:
        return None if self.reward_range is None else tuple(self.reward_range)

    def load(self, silos: int | None) -> Pool:
        m, t, k, d = self.contexts.shape
        if silos not in (None, m):
            raise InputError(f"silos must be {m}, the first axis of contexts, got {silos}")
        return Pool.from_rows(
            self.contexts.reshape(-1, d),
            self.rewards.reshape(-1),
            np.arange(m * t + 1) * k,
            np.arange(m + 1) * t,
            notes=(MADE_BEFORE,),
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
            # Always, None too: before, the range was read from the data, and the radius with it.
            "reward_range": None if self.reward_range is None else list(self.reward_range),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
        }


def declared_range(given: Any) -> tuple[float, float]:
    """Limits [low, high], low < high."""
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise InputError(f"reward_range must be two numbers, [low, high], got {show(given)}")
    low = number("reward_range", given[0])
    return low, number("reward_range", given[1], above=low)


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
