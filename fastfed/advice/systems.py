"""The systems that can give one guarantee, and the answer of `plan` about them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits import ProblemSpec, System
from fastfed.bandits.radius import direct_regret_bound
from fastfed.privacy.releases import honaker, toeplitz
from fastfed.privacy.releases.tree import max_prefix_nodes
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.simulation.systems import ALGORITHMS

# ---- The answer: candidates, baselines, and a verdict for each trust model -----------------------

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
    batch_size: int
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
    #: Best minus alone, regret of one silo, paired.
    against_alone: tuple[float, float]
    helps: bool
    #: Roughly, from where sharing would help, all else equal: None where it does, or unknown.
    pays_from_epsilon: float | None
    pays_from_silos: int | None
    sentence: str


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
    #: Notes: that real records were read, and conditions that no candidate meets.
    notes: tuple[str, ...] = ()

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
        """The baseline named "alone", "no privacy" or "random"."""
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


# ---- Candidates: the systems of each trust model, and their noise --------------------------------
# The guarantee: unit "user", one relation, one (epsilon, delta), proven, noise calibrated exactly,
# lazy updates, the direct radius. Trust models are never mixed.

#: Trust model: (who is trusted, the (protocol, release) pairs that need no more trust).
TRUST: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "silo-ldp": (
        "each silo adds its own noise: neither server nor other silos are trusted",
        (("silo-ldp", "toeplitz"), ("silo-ldp", "honaker"), ("silo-ldp", "tree")),
    ),
    "shuffle": (
        "the shuffler is trusted, the server is not",
        (("shuffle-vector", "tree"), ("shuffle-amplified", "tree")),
    ),
    "central": (
        "the server is trusted, other silos and users are not",
        (("central", "toeplitz"), ("central", "honaker"), ("central", "tree")),
    ),
}

#: Systems that are never candidates, with the reason.
ELSEWHERE = {
    "silo-ldp-prefix": 'plays as "silo-ldp" with release "tree" does: the same noise, sent as sums',
    "secure-sum": "trusts that most silos add their share of the noise; see docs/secure-sum.md",
    "feducb": "",  # computed: see `feducb_reason`
    "feducb-decentralized": "needs a graph of who hears whom; see docs/feducb.md",
    "robin": "its unit is all that one client holds, another guarantee than that of a user",
    "linucb-jdp, linucb-ldp, linucb-sdp-amp, linucb-sdp-vec": "of a single agent: nothing to share",
    "fed-svt, fed-dp-ope-stoch": "predict from experts, and see no contexts",
}

#: The most releases that are tried: Toeplitz noise takes their square, and B barely matters.
MOST_RELEASES = 4096


def most_variance(release: str, releases: int) -> float:
    """Largest variance of a prefix of K releases, in units of the variance of one noise."""
    if release == "toeplitz":
        return float(toeplitz.prefix_variances(releases)[-1])
    if release == "honaker":
        return max(honaker.prefix_variance(k) for k in range(1, releases + 1))
    return float(max_prefix_nodes(releases))


def kind(protocol: str, release: str) -> str:
    """Name of a candidate without its batch size; shuffled nodes are released by the tree only."""
    return protocol if protocol.startswith("shuffle") else f"{protocol}, {release}"


@dataclass(frozen=True)
class Choice:
    """A protocol, a release and a batch size, with the system that they make."""

    trust: str
    protocol: str
    release: str
    batch_size: int
    keys: dict[str, Any]  # of a curve
    system: System

    @property
    def label(self) -> str:
        """Name of the candidate, with its batch size."""
        return f"{kind(self.protocol, self.release)}, B = {self.batch_size}"

    @property
    def plan(self) -> Plan:
        """Plan of the system."""
        plan: Plan = self.system.plan
        return plan

    @property
    def noise_std(self) -> float:
        """Largest standard deviation of an entry of the noise in what is synchronised."""
        node = max(self.system.certificate.noise_std.values(), default=0.0)
        noises = self.plan.silos if self.plan.protocol.noise_by == "silos" else 1
        return float(node * math.sqrt(noises * most_variance(self.release, self.plan.releases)))

    @property
    def node(self) -> NoiseStd:
        """Noise of one node, or of one step of a Toeplitz release."""
        std = self.system.certificate.noise_std
        return NoiseStd(std["bias"], std["covariance"], std["covariance_diagonal"])

    @property
    def bound(self) -> float | None:
        """Proven bound on the regret of one silo, None where nothing is proven."""
        bound = direct_regret_bound(self.plan, self.system.theory)
        return None if bound is None else bound / self.plan.silos


@dataclass(frozen=True)
class Question:
    """A problem and the guarantee that is asked for."""

    problem: ProblemSpec
    epsilon: float
    delta: float
    relation: str
    radius_multiplier: float

    def common(self) -> dict[str, Any]:
        """Keys that every curve of the answer has."""
        return (
            {} if self.radius_multiplier == 1.0 else {"radius_multiplier": self.radius_multiplier}
        )

    def make(self, trust: str, protocol: str, release: str, batch_size: int) -> Choice:
        """Make one candidate; InputError where it cannot be had."""
        keys: dict[str, Any] = {
            "algorithm": "private-fedlinucb",
            "protocol": protocol,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "batch_size": batch_size,
            **self.common(),
        }
        if self.relation != "replace":
            keys["relation"] = self.relation
        if release != "tree":
            keys["release"] = release
        own = {k: v for k, v in keys.items() if k != "algorithm"}
        system = ALGORITHMS["private-fedlinucb"].make(own, self.problem)
        self.check(system)
        return Choice(trust, protocol, release, batch_size, keys, system)

    def check(self, system: System) -> None:
        """Raise InputError unless the system gives the very guarantee that is asked for."""
        stated = system.certificate
        # A condition that the environment itself breaks fails for all: the answer says it once.
        shared = self.problem.conditions
        missing = [c.text for c in stated.conditions if not c.holds and c not in shared]
        if stated.exact is None or (stated.status != "proven" and missing):
            missing = [c.text for c in stated.conditions if not c.holds]
            raise InputError(f"its privacy is {stated.status} here: {'; '.join(missing)}")
        within = stated.exact.epsilon <= self.epsilon * (1.0 + 1e-9)
        if not within or stated.exact.delta > self.delta:
            raise InputError(
                f"it gives ({stated.exact.epsilon:g}, {stated.exact.delta:g}), beyond the budget"
            )
        if (stated.unit, stated.relation) != ("user", self.relation):
            raise InputError(f"it protects another unit or relation: {stated.unit}")


def batch_sizes(horizon: int) -> list[int]:
    """Coarse grid of B, a factor of 4 apart: from T / 4096 to T / 4."""
    least = max(1, -(-horizon // MOST_RELEASES))
    sizes = [least]
    while 4 * sizes[-1] <= max(least, horizon // 4):
        sizes.append(4 * sizes[-1])
    return sizes


def candidates(
    question: Question, trust: str, sizes: Iterable[int]
) -> tuple[list[Choice], dict[str, str]]:
    """The candidates of a trust model at these batch sizes, and the reasons why others failed."""
    made, failed = [], {}
    for protocol, release in TRUST[trust][1]:
        for size in sizes:
            try:
                made.append(question.make(trust, protocol, release, size))
            except InputError as error:
                failed[f"{kind(protocol, release)}, B = {size}"] = str(error)
    return made, failed


def noisier(a: Choice, b: Choice) -> bool:
    """Return True if a adds more noise than b, at worst and in the mean over releases.

    Both release at the same rounds, and have the same radius and policy; they differ in E, the
    bound on the noise that widens their confidence sets, and in the noise behind it.
    """
    if (a.trust, a.batch_size) != (b.trust, b.batch_size):
        return False
    mine, other = a.plan.radius.error_bound, b.plan.radius.error_bound
    return bool(mine.max() > other.max() and np.mean(mine**2) > np.mean(other**2))


def feducb_reason(question: Question, least: Choice) -> str:
    """The reason why feducb is no candidate: its proven adaptive schedule has too much noise."""
    only = "only schedules that read no raw data have a guarantee; "
    keys = {
        "epsilon": question.epsilon,
        "delta": question.delta,
        "relation": question.relation,
        "schedule": "private-determinant",
        "radius": "direct",
    }
    system = ALGORITHMS["feducb"].make(keys, question.problem)
    error = float(system.plan.radius.error_bound.max())
    times = error / float(least.plan.radius.error_bound.max())
    if times <= 1.0:
        return only + "its schedule follows the data, which no few silos can stand for: play it"
    return only + f'"private-determinant" has {times:.2g} times the noise of {least.label}'


def baseline(question: Question, keys: dict[str, Any]) -> System:
    """A system without privacy, from the keys of a curve."""
    own = {k: v for k, v in keys.items() if k != "algorithm"}
    made: System = ALGORITHMS[keys["algorithm"]].make(own, question.problem)
    return made
