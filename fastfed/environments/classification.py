"""Classification as a bandit: a record is a user, the classes are the actions."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, choice, integer, number
from fastfed.environments.base import MAX_DIMENSION
from fastfed.environments.pool import Pool
from fastfed.environments.pool_environment import MADE_BEFORE, PoolEnvironment
from fastfed.environments.records import CODINGS, DIMENSION, Records, records_pool


@dataclass(kw_only=True)
class Classification(PoolEnvironment):
    """Reward 1 for the record's class and 0 for any other; one query per record.

    ``data`` is "digits" (scikit-learn's, ten classes) or a CSV file with a ``label`` column and,
    if silos are named in it, a ``silo`` column; arrays come in by ``from_arrays``. Features of an
    action are a fixed public random projection to ``dimension`` numbers, or with ``coding`` =
    "blocks" the record in the action's own block, see ``records``. Records are met without
    replacement by default, so each round is a new user.

    ``ranges``: by column of a CSV what is known of it without the data, [low, high] or a list of
    categories; ``norm``: a bound on the norm of a scaled record and its constant 1, to which
    records are shrunk. What is not declared is read from the data, and then the certificate is
    "conditional": one record may move the features of all others.
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
                    raise InputError(f"{name} goes with a CSV file; arrays come by from_arrays")
            return
        named = isinstance(self.data, (str, Path))
        if not named or (self.data != "digits" and not os.path.exists(self.data)):
            raise InputError(f'data must be "digits" or an existing CSV file, got {self.data!r}')

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        classes: Any,
        silo: Any = None,
        *,
        norm: float | None = None,
        coding: str = "blocks",
        dimension: int = DIMENSION,
        projection_seed: int = 0,
        sampling: str = "without-replacement",
    ) -> Classification:
        """Records as arrays: features (n, p), classes (n,) in 0 .. K - 1, silo (n,) or None.

        ``silo`` says whose record it is, by any values; silos are these in order of first
        appearance. ``norm`` is a bound on the norm of a record and its constant 1, known without
        the data: records beyond it are shrunk to it, each by itself. With None the largest norm in
        the data is taken as public. InputError for what is not finite or does not fit.
        """
        return cls(
            data=Records.of(features, classes, silo, norm),
            silo=None if silo is None else "silo",
            coding=coding,
            dimension=dimension,
            projection_seed=projection_seed,
            sampling=sampling,
        )

    def load(self, silos: int | None) -> Pool:
        from fastfed.environments.classification_data import classification_pool

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
        return 0.0, 1.0  # 1 for the record's class and 0 for any other

    def natural_silos(self) -> int | None:
        return self.pool(None).silos if self.silo is not None else None

    def describe(self) -> dict[str, Any]:
        name, digest = "arrays", None
        if isinstance(self.data, Records):
            digest = self.data.digest()
        else:
            name = Path(self.data).name
            if self.data != "digits":
                digest = hashlib.sha256(Path(self.data).read_bytes()).hexdigest()
        # The usual coding is left out: stored results of earlier versions keep their identity.
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
        }
