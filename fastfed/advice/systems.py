"""The systems that can give one guarantee, sorted by whom they trust, and how much noise each has.

The guarantee: unit "user", one relation, one (epsilon, delta), proven, noise calibrated exactly,
lazy play, the direct radius. Who is trusted differs, and is never mixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits import Setting, System
from fastfed.bandits.direct_bound import direct_regret_bound
from fastfed.privacy import honaker, toeplitz
from fastfed.privacy.tree import max_prefix_nodes
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.simulation.systems import ALGORITHMS

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

#: Systems that are never candidates, and why.
ELSEWHERE = {
    "silo-ldp-prefix": 'plays as "silo-ldp" with release "tree" does: the same noise, sent as sums',
    "feducb": "",  # computed: see `about_feducb`
    "feducb-decentralized": "needs a graph of who hears whom; see docs/feducb.md",
    "robin": "its unit is all that one client holds, another guarantee than that of a user",
    "linucb-jdp, linucb-ldp, linucb-sdp-amp, linucb-sdp-vec": "of a single agent: nothing to share",
    "fed-svt, fed-dp-ope-stoch": "predict from experts, and see no contexts",
}

#: More releases than this are not tried: Toeplitz noise takes their square, and B barely matters.
MOST_RELEASES = 4096


def most_variance(release: str, releases: int) -> float:
    """Largest variance of a prefix in units of one noise's: of K releases."""
    if release == "toeplitz":
        return float(toeplitz.prefix_variances(releases)[-1])
    if release == "honaker":
        return max(honaker.prefix_variance(k) for k in range(1, releases + 1))
    return float(max_prefix_nodes(releases))


def kind(protocol: str, release: str) -> str:
    """A candidate but for its batch size; shuffled nodes have no other release than the tree."""
    return protocol if protocol.startswith("shuffle") else f"{protocol}, {release}"


@dataclass(frozen=True)
class Choice:
    """A protocol, a release and a batch size, ready to be played."""

    trust: str
    protocol: str
    release: str
    batch_size: int
    keys: dict[str, Any]  # of a curve
    system: System

    @property
    def label(self) -> str:
        return f"{kind(self.protocol, self.release)}, B = {self.batch_size}"

    @property
    def plan(self) -> Plan:
        plan = self.system.plan
        assert isinstance(plan, Plan)
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
        """Proven bound on the regret of one silo, None where nothing is."""
        bound = direct_regret_bound(self.plan, self.system.theory)
        return None if bound is None else bound / self.plan.silos


@dataclass(frozen=True)
class Question:
    """What is asked for: a problem and a guarantee."""

    setting: Setting
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
        """One candidate; InputError where it cannot be had."""
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
        system = ALGORITHMS["private-fedlinucb"].make(own, self.setting)
        self.check(system)
        return Choice(trust, protocol, release, batch_size, keys, system)

    def check(self, system: System) -> None:
        """InputError unless the system gives the very guarantee that is asked for."""
        stated = system.certificate
        # What the environment itself breaks all candidates break: the answer says it once.
        world = self.setting.conditions
        missing = [c.text for c in stated.conditions if not c.holds and c not in world]
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
    """What has this trust at these batch sizes, and what could not be had, with the reason."""
    made, failed = [], {}
    for protocol, release in TRUST[trust][1]:
        for size in sizes:
            try:
                made.append(question.make(trust, protocol, release, size))
            except InputError as error:
                failed[f"{kind(protocol, release)}, B = {size}"] = str(error)
    return made, failed


def noisier(a: Choice, b: Choice) -> bool:
    """Whether a adds more than b at the same rounds: at worst, and in the mean over releases.

    Both have the same schedule, radius and policy; what differs is E, the bound on the noise that
    sets the width of their confidence sets, and the noise behind it.
    """
    if (a.trust, a.batch_size) != (b.trust, b.batch_size):
        return False
    mine, other = a.plan.radius.error_bound, b.plan.radius.error_bound
    return bool(mine.max() > other.max() and np.mean(mine**2) > np.mean(other**2))


def about_feducb(question: Question, least: Choice) -> str:
    """Why feducb is no candidate: its proven adaptive schedule has more noise than every round."""
    only = "only schedules that read no raw data have a guarantee; "
    keys = {
        "epsilon": question.epsilon,
        "delta": question.delta,
        "relation": question.relation,
        "schedule": "private-determinant",
        "radius": "direct",
    }
    system = ALGORITHMS["feducb"].make(keys, question.setting)
    error = float(system.plan.radius.error_bound.max())
    times = error / float(least.plan.radius.error_bound.max())
    if times <= 1.0:
        return only + "its schedule follows the data, which no few silos can stand for: play it"
    return only + f'"private-determinant" has {times:.2g} times the noise of {least.label}'


def baseline(question: Question, keys: dict[str, Any]) -> System:
    """A system without privacy, from the keys of a curve."""
    own = {k: v for k, v in keys.items() if k != "algorithm"}
    made: System = ALGORITHMS[keys["algorithm"]].make(own, question.setting)
    return made
