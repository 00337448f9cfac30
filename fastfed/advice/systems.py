"""The systems that can give one guarantee: their batches, releases, and variants of exploration."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits import ProblemSpec, System
from fastfed.bandits.radius import allowance, direct_regret_bound
from fastfed.bandits.system import BATCH_FIRST, BATCH_RATIO
from fastfed.privacy.releases.buffered import buffered_prefix_variances
from fastfed.privacy.releases.prefix_sums import (
    honaker_prefix_variance,
    max_prefix_nodes,
    toeplitz_prefix_variances,
)
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.simulation.systems import ALGORITHMS

# ---- Trust models --------------------------------------------------------------------------------
# The guarantee: unit "user", one relation, one (epsilon, delta), proven, noise calibrated exactly,
# lazy updates, the direct radius. Trust models are never mixed.

#: Trust model: (who is trusted, the (protocol, release) pairs that need no more trust).
TRUST: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "silo-ldp": (
        "each silo adds its own noise: neither server nor other silos are trusted",
        (
            ("silo-ldp", "factorised"),
            ("silo-ldp", "toeplitz"),
            ("silo-ldp", "honaker"),
            ("silo-ldp", "tree"),
        ),
    ),
    "shuffle": (
        "the shuffler is trusted, the server is not",
        (("shuffle-vector", "flat"), ("shuffle-vector", "tree"), ("shuffle-amplified", "tree")),
    ),
    "secure-sum": (
        "silos add shares of the noise under masks: neither the server nor {colluders} of the "
        "{silos} silos are trusted",
        (("secure-sum", "factorised"), ("secure-sum", "toeplitz")),
    ),
    "central": (
        "the server is trusted, other silos and users are not",
        (
            ("central", "factorised"),
            ("central", "toeplitz"),
            ("central", "honaker"),
            ("central", "tree"),
        ),
    ),
}

#: Systems that are never candidates, with the reason.
ELSEWHERE = {
    "silo-ldp-prefix": 'plays as "silo-ldp" with release "tree" does: the same noise, sent as sums',
    "feducb": "",  # computed: see `feducb_reason`
    "feducb-decentralized": "needs a graph of who hears whom; see docs/feducb.md",
    "robin": "its unit is all that one client holds, another guarantee than that of a user",
    "linucb-jdp, linucb-ldp, linucb-sdp-amp, linucb-sdp-vec": "of a single agent: nothing to share",
    "fed-svt, fed-dp-ope-stoch, private-dartboard, limited-updates": (
        "predict from experts, and see no contexts"
    ),
}

#: Why no rewards are centred, and why no silo keeps rounds to itself, where that is so.
NOT_CENTRED = (
    "needs a constant last feature that the code writes: an environment with an intercept, or "
    "--intercept, would need less noise"
)
NOT_SHARED = "the silos of this environment are alike: what one keeps to itself is lost to all"


def trusted_text(trust: str, silos: int, colluders: int | None) -> str:
    """Say who is trusted."""
    counted = silos // 3 if colluders is None else colluders
    return TRUST[trust][0].format(colluders=counted, silos=silos)


# ---- Batches -------------------------------------------------------------------------------------

#: The most releases that are tried: Toeplitz noise takes their square, and B barely matters.
MOST_RELEASES = 4096
#: The most releases of equal batches under masks, whose mechanism takes their cube, and where silos
#: may differ.
MOST_MASKED = 256


@dataclass(frozen=True)
class Growing:
    """Batches that grow: of ``first`` rounds, then each ``ratio`` times as long."""

    first: int
    ratio: float

    def __str__(self) -> str:
        """Show both numbers."""
        return f"growing {self.first} x {self.ratio:g}"


Batches = int | Growing

#: Growing batches that are tried first: of factorised noise, and of shuffled batches, each of which
#: has noise of its own, so that fewer do better. A first batch of more than T / 8 is not tried.
GROWING = (Growing(1, 1.1), Growing(3, 1.2), Growing(10, 1.2), Growing(30, 1.3))
GROWING_FLAT = (Growing(2, 1.4), Growing(8, 1.4), Growing(30, 1.5))
LONGEST_FIRST, LONGEST = 8, 16
#: Batches of shared rounds where later ones are own, and the shares of T that are tried.
GROWING_SHARED = Growing(3, 1.2)
SHARES = (100, 32, 10)


def batch_sizes(horizon: int) -> list[int]:
    """Coarse grid of B, a factor of 4 apart: from T / 4096 to T / 4."""
    least = max(1, -(-horizon // MOST_RELEASES))
    sizes = [least]
    while 4 * sizes[-1] <= max(least, horizon // 4):
        sizes.append(4 * sizes[-1])
    return sizes


def grid(horizon: int, release: str) -> list[Batches]:
    """Batches that are tried first: equal ones for most releases, else growing ones."""
    if release not in ("factorised", "flat"):
        return [b for b in batch_sizes(horizon) if b == 1 or LONGEST * b <= horizon]
    found = GROWING_FLAT if release == "flat" else GROWING
    kept = [b for b in found if LONGEST_FIRST * b.first <= horizon]
    return list(kept or [Growing(1, found[0].ratio)])


def shared_rounds(horizon: int) -> list[int]:
    """Last shared rounds that are tried where silos may differ."""
    least = 2 * GROWING_SHARED.first
    return sorted({max(least, horizon // part) for part in SHARES if horizon > 2 * least})


# ---- Candidates ----------------------------------------------------------------------------------

#: The smaller bonus that is tried, and the centre of rewards in [0, 1] where nothing is declared.
BONUS, CENTRE = 0.3, 0.5
#: Factor on bonuses between bounds beyond the range of rewards: it costs nothing of the bound.
TIE = 0.7


def most_variance(plan: Plan) -> float:
    """Largest variance of a prefix sum of a plan, in units of the variance of one noise."""
    releases = plan.releases
    if plan.factor is not None:
        return float(plan.factor.variances.max())
    if plan.protocol.flat:
        return float(releases)
    if plan.release == "toeplitz":
        return float(toeplitz_prefix_variances(releases)[-1])
    if plan.release == "buffered":
        return float(buffered_prefix_variances(releases)[-1])
    if plan.release == "honaker":
        return max(honaker_prefix_variance(k) for k in range(1, releases + 1))
    return float(max_prefix_nodes(releases))


def kind(protocol: str, release: str) -> str:
    """Name of a candidate without its batches; shuffled nodes are released by the tree only."""
    shuffled = protocol.startswith("shuffle") and release == "tree"
    return protocol if shuffled else f"{protocol}, {release}"


@dataclass(frozen=True)
class Variant:
    """Choices of a candidate beside protocol, release and batches."""

    bonus: float = 1.0
    centred: bool = False
    until: int | None = None  # last shared round; None: all are shared

    def __str__(self) -> str:
        """Show what differs from the usual."""
        text = f", shared until {self.until}" if self.until is not None else ""
        text += ", centred" if self.centred else ""
        return text + (f", bonus {self.bonus:g}" if self.bonus < 1.0 else "")


@dataclass(frozen=True)
class Choice:
    """A protocol, a release, batches and a variant, with the system that they make."""

    trust: str
    protocol: str
    release: str
    batches: Batches
    variant: Variant
    keys: dict[str, Any]  # of a curve
    system: System

    @property
    def label(self) -> str:
        """Name of the candidate, with its batches."""
        return f"{kind(self.protocol, self.release)}, {self.batches_text}{self.variant}"

    @property
    def batches_text(self) -> str:
        """Its batches in words."""
        return f"B = {self.batches}" if isinstance(self.batches, int) else str(self.batches)

    @property
    def batch_size(self) -> int:
        """Rounds of a batch, of the longest one where they differ."""
        return self.plan.batch_size

    @property
    def plan(self) -> Plan:
        """Plan of the system."""
        plan: Plan = self.system.plan
        return plan

    @property
    def noise_std(self) -> float:
        """Largest standard deviation of an entry of the noise in what is synchronised."""
        node = max(self.system.certificate.noise_std.values(), default=0.0)
        return float(node * math.sqrt(noises(self.plan) * most_variance(self.plan)))

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

    @property
    def fallback(self) -> float | None:
        """Epsilon of a secure sum if all other silos collude; None elsewhere."""
        if not self.plan.protocol.masked:
            return None
        found = [c.exact for c in self.system.certificate.also if c.source.startswith("docs/sec")]
        return max((e.epsilon for e in found if e is not None), default=None)

    def with_bonus(self, bonus: float) -> Choice:
        """The same candidate with another bonus: noise and guarantee stay, nothing is calibrated.

        Raises InputError where the ledger has no proof.
        """
        plan = replace(self.plan, bonus=1.0, allowance=())
        keys = {k: v for k, v in self.keys.items() if k != "bonus"}
        if bonus < 1.0:
            most = allowance(plan, self.system.theory, 1.0)
            plan = replace(plan, bonus=bonus, allowance=tuple(most.tolist()))
            keys["bonus"] = bonus
        system = replace(self.system, plan=plan)
        return replace(self, variant=replace(self.variant, bonus=bonus), keys=keys, system=system)


def noises(plan: Plan) -> int:
    """Independent noises that add up in a release; of a secure sum the plan has their sum."""
    by_silos = plan.protocol.noise_by == "silos" and not plan.protocol.masked
    return plan.silos if by_silos else 1


@dataclass(frozen=True)
class Question:
    """A problem and the guarantee that is asked for."""

    problem: ProblemSpec
    epsilon: float
    delta: float
    relation: str
    radius_multiplier: float
    colluders: int | None = None  # of a secure sum; None: a third
    centred: bool = False  # rewards may be centred
    differ: bool = False  # silos may differ, so that rounds may be own

    def common(self) -> dict[str, Any]:
        """Keys that every curve of the answer has, each silo alone included."""
        keys = {}
        if self.radius_multiplier != 1.0:
            keys["radius_multiplier"] = self.radius_multiplier
        if self.problem.reward_range is not None:
            keys["tie_bonus"] = TIE
        return keys

    @property
    def explores(self) -> float:
        """Bonus of what is tried first: the smaller one where its ledger has a proof."""
        low, high = self.problem.reward_range or (0.0, 1.0)
        return BONUS if self.radius_multiplier >= 1.0 and high - low <= 1.0 else 1.0

    def centre(self) -> dict[str, Any]:
        """Key of centred rewards, where they may be."""
        return {"reward_centre": CENTRE} if self.centred else {}

    def make(
        self,
        trust: str,
        protocol: str,
        release: str,
        batches: Batches,
        variant: Variant | None = None,
    ) -> Choice:
        """Make one candidate; InputError where it cannot be had."""
        variant = variant or Variant()
        keys: dict[str, Any] = {
            "algorithm": "private-fedlinucb",
            "protocol": protocol,
            "epsilon": self.epsilon,
            "delta": self.delta,
        }
        if isinstance(batches, int):
            keys["batch_size"] = batches
        else:
            keys |= {
                "batch_size": "growing",
                "batch_first": batches.first,
                "batch_ratio": batches.ratio,
            }
        keys |= self.common()
        if self.relation != "replace":
            keys["relation"] = self.relation
        keys["release"] = release
        if protocol == "secure-sum" and self.colluders is not None:
            keys["colluders"] = self.colluders
        if variant.centred:
            keys["reward_centre"] = CENTRE
        if variant.until is not None:
            keys["share"] = {"until": variant.until}
        if variant.bonus < 1.0:
            keys["bonus"] = variant.bonus
        own = {k: v for k, v in keys.items() if k != "algorithm"}
        system = ALGORITHMS["private-fedlinucb"].make(own, self.problem)
        self.check(system)
        return Choice(trust, protocol, release, batches, variant, keys, system)

    def again(self, one: Choice) -> Choice:
        """Make a candidate of another question for this one; InputError where it cannot be had."""
        return self.make(one.trust, one.protocol, one.release, one.batches, one.variant)

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


Recipe = tuple[str, str, Batches, Variant]
#: Of the two releases with the least noise, the other one.
OTHER_NOISE = {"factorised": "toeplitz", "toeplitz": "factorised"}


def usual(question: Question, protocol: str, variant: Variant) -> Recipe:
    """What a curve plays that names neither batches nor release."""
    batches = Growing(min(BATCH_FIRST, question.problem.horizon), BATCH_RATIO)
    keys = {"protocol": protocol, "epsilon": question.epsilon, "delta": question.delta}
    keys |= {"relation": question.relation, **question.centre()}
    entry = ALGORITHMS["private-fedlinucb"]
    settled = entry.settled(entry.check(keys), question.problem)
    return protocol, settled.release, batches, variant


def recipes(question: Question, trust: str) -> list[Recipe]:
    """(protocol, release, batches, variant) of a trust model that are tried first."""
    horizon = question.problem.horizon
    first = Variant(question.explores, question.centred)
    found: list[Recipe] = [
        (protocol, release, batches, first)
        for protocol, release in TRUST[trust][1]
        for batches in grid(horizon, release)
        # Silos that differ are all simulated, which leaves no time for what hardly ever wins.
        if not ((protocol == "secure-sum" or question.differ) and isinstance(batches, int))
        or horizon // batches <= MOST_MASKED
    ]
    default = usual(question, TRUST[trust][1][0][0], first)
    if default not in found:
        found.append(default)
    if question.differ and trust != "shuffle":
        protocol, release = TRUST[trust][1][0]
        for until in shared_rounds(horizon):
            kept = replace(first, until=until)
            found.append((protocol, release, GROWING_SHARED, kept))
    return found


def near(question: Question, best: Choice) -> list[Recipe]:
    """What differs from the best candidate in one thing: batches, release, own rounds."""
    horizon, batches, variant = question.problem.horizon, best.batches, best.variant
    others: list[Batches]
    if isinstance(batches, int):
        others = [b for b in (batches // 2, 2 * batches) if 1 <= b <= horizon // 2]
        if best.protocol == "secure-sum":
            others = [b for b in others if isinstance(b, int) and horizon // b <= MOST_MASKED]
    else:
        step = batches.ratio - 1.0
        ratio = 1.0 + (2.0 * step if step < 0.15 else step / 2.0)
        ratio = round(max(ratio, 1.25) if best.release == "flat" else ratio, 3)
        others = [
            Growing(first, batches.ratio)
            for first in (max(1, batches.first // 3), 3 * batches.first)
            if first != batches.first and 4 * first <= (variant.until or horizon)
        ]
        others.append(Growing(batches.first, ratio))
    found: list[Recipe] = [(best.protocol, best.release, b, variant) for b in others]
    if variant.until is not None:
        for until in (variant.until // 2, 2 * variant.until):
            if 2 <= until <= horizon // 2:
                found.append((best.protocol, best.release, batches, replace(variant, until=until)))
    if (other := OTHER_NOISE.get(best.release)) is not None:
        found.append((best.protocol, other, batches, variant))
    return found


def made_of(
    question: Question, trust: str, wanted: Iterable[Recipe]
) -> tuple[list[Choice], dict[str, str]]:
    """The candidates of these recipes, and the reasons why others failed, by label."""
    made, failed = [], {}
    for protocol, release, batches, variant in wanted:
        try:
            made.append(question.make(trust, protocol, release, batches, variant))
        except InputError as error:
            text = f"B = {batches}" if isinstance(batches, int) else str(batches)
            failed[f"{kind(protocol, release)}, {text}{variant}"] = str(error)
    return made, failed


def noisier(a: Choice, b: Choice) -> bool:
    """Return True if a adds more noise than b, at worst and in the mean over releases.

    Both release at the same rounds, and have the same radius and policy; they differ in E, the
    bound on the noise that widens their confidence sets, and in the noise behind it.
    """
    if (a.trust, a.batches, a.variant) != (b.trust, b.batches, b.variant):
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


# ---- Baselines -----------------------------------------------------------------------------------


#: Names of two baselines: each silo alone, with the candidates' radius and with a smaller one.
ALONE, LESS = "alone", "alone, explores less"


def baselines(question: Question) -> list[tuple[str, str, dict[str, Any]]]:
    """(name, label, keys of a curve) of systems to compare with."""
    common, centre = question.common(), question.centre()
    less = BONUS * question.radius_multiplier
    open_ = Growing(1, 1.1)
    bonus = {"bonus": question.explores} if question.explores < 1.0 else {}
    no_privacy = {
        "algorithm": "fedlinucb",
        "batch_size": "growing",
        "batch_first": open_.first,
        "batch_ratio": open_.ratio,
        **common,
        **centre,
        **bonus,
    }
    alone = {"algorithm": "local-linucb", **common, **centre}
    found: list[tuple[str, str, dict[str, Any]]] = [(ALONE, "alone: local-linucb", alone)]
    if bonus:
        explores = f"alone, radius x {less:g} (no bound is proven): local-linucb"
        found.append((LESS, explores, {**alone, "radius_multiplier": less}))
    found += [
        ("no privacy", f"no privacy: fedlinucb, {open_}", no_privacy),
        ("random", "random", {"algorithm": "random"}),
    ]
    return found


def baseline(question: Question, keys: dict[str, Any]) -> System:
    """A system without privacy, from the keys of a curve."""
    own = {k: v for k, v in keys.items() if k != "algorithm"}
    made: System = ALGORITHMS[keys["algorithm"]].make(own, question.problem)
    return made
