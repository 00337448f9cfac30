"""Classification as a bandit: a record is a user, the classes are the actions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, integer
from fastfed.environments.base import MAX_DIMENSION
from fastfed.environments.pool import Pool
from fastfed.environments.pool_environment import PoolEnvironment


@dataclass(kw_only=True)
class Classification(PoolEnvironment):
    """Reward 1 for the record's class and 0 for any other; one query per record.

    ``data`` is "digits" (scikit-learn's, ten classes) or a CSV file with a ``label`` column and,
    if silos are named in it, a ``silo`` column. Features of an action are a fixed public random
    projection to ``dimension`` numbers, see ``classification_data``. Records are met without
    replacement by default, so each round is a new user.
    """

    data: str
    dimension: int = 20
    label: str | None = None
    silo: str | None = None
    columns: list[str] | None = None
    projection_seed: int = 0
    sampling: str = "without-replacement"
    kind = "classification"
    records = "records"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("projection_seed", self.projection_seed, at_least=0)
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        named = isinstance(self.data, (str, Path))
        if not named or (self.data != "digits" and not Path(self.data).exists()):
            raise InputError(f'data must be "digits" or an existing CSV file, got {self.data!r}')

    def load(self, silos: int | None) -> Pool:
        from fastfed.environments.classification_data import classification_pool

        if silos is None and self.silo is None:
            raise InputError("silos is required: the data have no silo column")
        return classification_pool(
            self.data,
            silos,
            self.dimension,
            label=self.label,
            silo=self.silo,
            seed=self.projection_seed,
            columns=self.columns,
        )

    def natural_silos(self) -> int | None:
        return self.pool(None).silos if self.silo is not None else None

    def describe(self) -> dict[str, Any]:
        digest = None
        if self.data != "digits":
            digest = hashlib.sha256(Path(self.data).read_bytes()).hexdigest()
        return {
            "kind": self.kind,
            "data": [Path(self.data).name, digest],
            "dimension": self.dimension,
            "label": self.label,
            "silo": self.silo,
            "columns": self.columns,
            "projection_seed": self.projection_seed,
            "sampling": self.sampling,
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
        }
