"""What `advise` answers: candidates, baselines, and a verdict for each trust model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: So begins a note on a condition that fails for all candidates.
BROKEN = "fails for all: "

#: Of environments that hold real records.
READ = (
    "these are simulations on the real records: choice, regrets and bounds were read from them "
    "without noise and are not covered by any guarantee below; what is then run on the same "
    "records composes with it"
)


@dataclass(frozen=True)
class Regret:
    """Regret of one silo over the whole horizon, simulated; how it was found stands beside it."""

    mean: float
    stderr: float  # over replicates; NaN for one
    replicates: int
    silos: int  # simulated, to stand for all
    rounds: int  # simulated; fewer than the horizon are extended at their last pace
    stage: str  # "screened", "refined" or "final"


@dataclass(frozen=True)
class Candidate:
    """One system that gives the guarantee."""

    label: str
    trust: str
    protocol: str
    release: str
    batch_size: int
    epsilon: float  # exact
    delta: float
    node_std: dict[str, float]  # of one noise vector, by stream, as the certificate lists it
    noise_std: float  # largest of an entry of what is synchronised
    bound: float | None  # proven, on the regret of one silo; None: nothing is proven
    vacuous: bool | None  # whether the bound is no less than the most that can be lost
    bytes_sent: int  # up and down, all silos, the whole horizon
    regret: Regret | None  # None where it was not played, for the reason in ``remark``
    remark: str
    keys: dict[str, Any]  # of a curve


@dataclass(frozen=True)
class Baseline:
    """A system to compare with: one that sends nothing, or one without privacy."""

    name: str
    label: str
    regret: Regret
    keys: dict[str, Any]
    #: "sends nothing: epsilon 0" or "not private".
    privacy: str = ""


@dataclass(frozen=True)
class Verdict:
    """What to do under one trust model."""

    trust: str
    trusted: str
    best: str
    #: Not distinguishable from the best: within two standard errors of the paired difference.
    level: tuple[str, ...]
    #: Best minus alone, regret of one silo, paired.
    against_alone: tuple[float, float]
    helps: bool
    #: Roughly, from where sharing would help, all else equal: None where it does, or unknown.
    pays_from_epsilon: float | None
    pays_from_silos: int | None
    sentence: str


@dataclass(frozen=True)
class Advice:
    """The answer. ``candidates`` are sorted by trust, then by regret."""

    silos: int
    horizon: int
    dimension: int
    epsilon: float
    delta: float
    relation: str
    unit: str
    radius_multiplier: float
    environment: dict[str, Any]
    seed: int
    scaling: str  # how the final stage was simulated, in a sentence
    candidates: tuple[Candidate, ...]
    baselines: tuple[Baseline, ...]
    verdicts: tuple[Verdict, ...]
    left_out: dict[str, str]
    #: What to know first: whether real records were read for it, and what no candidate can keep.
    notes: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """Of every candidate's guarantee: "proven", or "conditional" where the environment itself
        breaks a condition."""
        return "conditional" if any(n.startswith(BROKEN) for n in self.notes) else "proven"

    def __getitem__(self, label: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.label == label:
                return candidate
        raise KeyError(f"no candidate {label!r}; there are {[c.label for c in self.candidates]}")

    def baseline(self, name: str) -> Baseline:
        """ "alone", "no privacy" or "random"."""
        return next(b for b in self.baselines if b.name == name)

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of ``fastfed plan``; NaN becomes None."""
        found: dict[str, Any] = plain(asdict(self))
        return found

    def identity(self) -> dict[str, Any]:
        """The tables of a spec that plays what is recommended, and its baselines."""
        curves = [{"label": f"{v.trust}: {v.best}", **self[v.best].keys} for v in self.verdicts]
        curves += [{"label": b.label, **b.keys} for b in self.baselines]
        return {
            "name": "plan",
            "horizon": self.horizon,
            "silos": self.silos,
            "seed": self.seed,
            "environment": self.environment,
            "curves": curves,
        }

    def spec_text(self, replicates: int = 4) -> str:
        """The same as the text of a spec: `fastfed run` plays it."""
        from fastfed.report.spec_text import spec_text

        return spec_text(self.identity(), replicates, {"y": "per-silo"})


def plain(value: Any) -> Any:
    """Lists for tuples, None for NaN, all the way down."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def mean_and_stderr(values: np.ndarray | Iterable[float]) -> tuple[float, float]:
    """Mean over replicates (R,) and its standard error, NaN for one."""
    found = np.asarray(list(values), dtype=np.float64)
    spread = found.std(ddof=1) / math.sqrt(len(found)) if len(found) > 1 else math.nan
    return float(found.mean()), float(spread)
