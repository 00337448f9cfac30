"""Learning to rank as a bandit: queries are contexts, their documents the actions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice
from fastfed.environments.pool import Pool
from fastfed.environments.pool_environment import PoolEnvironment


@dataclass(kw_only=True)
class Letor(PoolEnvironment):
    """LETOR files (MSLR-WEB10K, WEB30K, LETOR 4.0), their queries dealt to silos in equal blocks.

    ``path`` is a file (.txt, .gz) or a folder of them. ``features``: "anchor-url" (57 columns),
    "text" (78), "both" (135), "all", or a list of column numbers. ``scaling``: "column" keeps
    the model exactly linear; "row" is the published code's. theta* is the lasso of relevance on
    the chosen columns. Source: zhou-chowdhury-2024, Section 6.
    """

    path: str
    features: Any = "all"
    scaling: str = "column"
    sampling: str = "with-replacement"
    kind = "letor"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("scaling", self.scaling, ["column", "row"])
        if not isinstance(self.path, (str, Path)) or not os.path.exists(self.path):
            raise InputError(f"path must be an existing file or folder, got {self.path!r}")

    def load(self, silos: int | None) -> Pool:
        from fastfed.environments.letor_pool import letor_pool

        if silos is None:
            raise InputError('silos is required for the environment "letor"')
        return letor_pool(self.path, silos, self.features, self.scaling)

    def declared_rewards(self) -> tuple[float, float] | None:
        """With columns scaled, mean rewards are moved to [0, 1]; raw rows have no bound."""
        return (0.0, 1.0) if self.scaling == "column" else None

    def record_multiplicity(self) -> int:
        """The most runs of rows that share one query identifier: they may be one query."""
        from fastfed.environments.letor_files import read_letor

        _, counts = np.unique(read_letor(self.path).qids, return_counts=True)
        return int(counts.max())

    def describe(self) -> dict[str, Any]:
        from fastfed.environments.letor_files import read_letor

        return {
            "kind": self.kind,
            # What was read, not where it lay: a moved folder is still the same data.
            "sources": list(read_letor(self.path).checksums),
            "features": self.features,
            "scaling": self.scaling,
            "sampling": self.sampling,
            # Before, the range of the rewards of rows was read from them, and the radius with it.
            **({"reward_range": None} if self.scaling == "row" else {}),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
        }
