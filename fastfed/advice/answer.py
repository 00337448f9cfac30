"""The answer of `plan`: candidates, baselines, and a verdict for each trust model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

#: Prefix of a note on a condition that fails for all candidates.
BROKEN = "fails for all: "

#: Of environments that hold real records.
READ = (
    "these are simulations on the real records: choice, regrets and bounds were read from them "
    "without noise and are not covered by any guarantee below; what is then run on the same "
    "records composes with it"
)


@dataclass(frozen=True)
class Regret:
    """Simulated regret of one silo over the whole horizon, and the size of the simulation."""

    mean: float
    stderr: float  # over replicates; NaN for one
    replicates: int
    silos: int  # simulated, to stand for all
    rounds: int  # simulated; extended to the horizon at their last pace where fewer
    stage: str  # "screened", "refined" or "final"


@dataclass(frozen=True)
class Candidate:
    """One system that gives the guarantee."""

    label: str
    trust: str
    protocol: str
    release: str
    batch_size: int  # rounds of a batch, of the longest one where batches grow
    epsilon: float  # exact
    delta: float
    node_std: dict[str, float]  # of one noise vector, by stream, as the certificate lists it
    noise_std: float  # largest of an entry of what is synchronised
    bound: float | None  # proven, on the regret of one silo; None: nothing is proven
    vacuous: bool | None  # True if the bound is no less than the most that can be lost
    bytes_sent: int  # up and down, all silos, the whole horizon
    regret: Regret | None  # None where it was not simulated, see ``remark``
    remark: str
    keys: dict[str, Any]  # of a curve
    batches: str = ""  # "B = 20", or "growing 3 x 1.2": from 3 rounds, each 1.2 times as long
    releases: int = 0
    bonus: float = 1.0  # below 1: less exploration, and ``bound`` holds what the ledger allows
    centred: bool = False
    share_until: int | None = None  # last shared round; later ones are a silo's own
    fallback_epsilon: float | None = None  # of a secure sum, if all other silos collude


@dataclass(frozen=True)
class Baseline:
    """A system to compare with: it sends nothing, or has no privacy."""

    name: str
    label: str
    regret: Regret
    keys: dict[str, Any]
    #: "sends nothing: epsilon 0" or "not private".
    privacy: str = ""


@dataclass(frozen=True)
class Verdict:
    """Recommendation under one trust model."""

    trust: str
    trusted: str
    best: str
    #: Not distinguishable from the best: within two standard errors of the paired difference.
    level: tuple[str, ...]
    #: Best minus each silo alone, regret of one silo, paired.
    against_alone: tuple[float, float]
    helps: bool
    #: Roughly, from where sharing would help, all else equal: None where it does, or unknown.
    pays_from_epsilon: float | None
    pays_from_silos: int | None
    sentence: str
    #: Baseline that is alone: the one that explores less where it is better, and the best has no
    #: proven bound either.
    alone: str = "alone"


@dataclass(frozen=True)
class Advice:
    """Answer of `fastfed.plan`. ``candidates`` are sorted by trust, then by regret."""

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
    #: Notes: that real records were read, conditions that no candidate meets, unequal silos.
    notes: tuple[str, ...] = ()
    #: Silos of a secure sum whose noise is not counted; None where that trust was not asked for.
    colluders: int | None = None

    @property
    def status(self) -> str:
        """Status of every candidate's guarantee: "proven", or "conditional" where the environment
        itself breaks a condition."""
        return "conditional" if any(n.startswith(BROKEN) for n in self.notes) else "proven"

    def __getitem__(self, label: str) -> Candidate:
        """The candidate of a label; KeyError if there is none."""
        for candidate in self.candidates:
            if candidate.label == label:
                return candidate
        raise KeyError(f"no candidate {label!r}; there are {[c.label for c in self.candidates]}")

    def baseline(self, name: str) -> Baseline:
        """The baseline named "alone", "alone, explores less", "no privacy" or "random"."""
        return next(b for b in self.baselines if b.name == name)

    def to_builtins(self) -> dict[str, Any]:
        """The JSON of ``fastfed plan``; NaN becomes None."""
        found: dict[str, Any] = plain(asdict(self))
        return found

    def identity(self) -> dict[str, Any]:
        """The tables of a spec of what is recommended, and its baselines."""
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
        """Text of that spec, for `fastfed run`."""
        from fastfed.reporting.text import spec_text

        return spec_text(self.identity(), replicates, {"y": "per-silo"})


def plain(value: Any) -> Any:
    """Turn tuples into lists and NaN into None, at every depth."""
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
