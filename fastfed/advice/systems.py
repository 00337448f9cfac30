"""The systems that `plan` compares: protocols, releases, batches and variants for one guarantee."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits import ProblemSpec, System
from fastfed.bandits.assemble import MAX_KEPT, wasted_rounds
from fastfed.bandits.radius import direct_regret_bound
from fastfed.bandits.system import BATCH_FIRST, BATCH_RATIO, SIEVE
from fastfed.privacy.releases.buffered import buffered_prefix_variances
from fastfed.privacy.releases.prefix_sums import (
    honaker_prefix_variance,
    max_prefix_nodes,
    toeplitz_prefix_variances,
)
from fastfed.protocols.account import USER_BIT
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.simulation.systems import ALGORITHMS

# ---- Trust models --------------------------------------------------------------------------------
# All candidates have the same guarantee: unit "user", one relation, one (epsilon, delta), proven.
# All have exactly calibrated noise, lazy updates and the direct radius. Trust models are never
# mixed.

#: For each trust model: who is trusted, and the pairs (protocol, release) that need no more trust.
TRUST: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "user-bit": (
        "each user's device sends one random bit of the reward: nobody is trusted, and delta is 0",
        (("user-bit", "tree"),),
    ),
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

#: Trust models whose protocols do not support arms (docs/arms.md).
TRUST_WITHOUT_ARMS = ("shuffle", "secure-sum")
#: Trust models with a protocol that protects rewards only, where contexts are public.
TRUST_WITH_REWARDS_ONLY = ("user-bit", "silo-ldp", "central")

#: Systems that are never candidates, with the reasons; "" if the reason is computed.
NEVER_CANDIDATES = {
    "silo-ldp-prefix": 'equivalent to "silo-ldp" with release "tree": the same noise, sent as sums',
    "feducb": "",  # see `feducb_reason`
    "feducb-decentralized": "needs a communication graph; see docs/feducb.md",
    "robin": "it protects all data of a client, which is a different guarantee",
    "linucb-jdp, linucb-ldp, linucb-sdp-amp, linucb-sdp-vec": "for one agent: nothing to share",
    "fed-svt, fed-dp-ope-stoch, private-dartboard, limited-updates": (
        "predict from experts and use no contexts"
    ),
}

#: For each unit of privacy: trust models without candidates, with the reasons.
TRUST_WITHOUT_CANDIDATES = {
    "user": {"user-bit": 'protects rewards only: give protects "reward" if contexts are public'},
    "reward": {
        "shuffle, secure-sum": "protect contexts and rewards, and have no account for rewards only"
    },
}

#: Why rewards are not centred, and why no candidate has local rounds.
WHY_NOT_CENTRED = (
    "needs a declared constant feature: an environment with an intercept, or "
    "--intercept, would need less noise"
)
WHY_NO_LOCAL_ROUNDS = (
    "all silos of this environment have the same model, so local rounds only lose information"
)


def trusted_text(trust: str, silos: int, colluders: int | None) -> str:
    """Return a text about who is trusted under a trust model, with the number of colluders."""
    colluders_text = silos // 3 if colluders is None else colluders
    return TRUST[trust][0].format(colluders=colluders_text, silos=silos)


# ---- Batches -------------------------------------------------------------------------------------

#: The largest number of releases to try.
MAX_RELEASES = 4096
#: The largest number of releases with equal batches for secure sums, whose time grows with the cube
#: of this number. The same limit holds if silos may differ.
MAX_SECURE_RELEASES = 256


@dataclass(frozen=True)
class Growing:
    """Growing batches: the first has ``first`` rounds, each next one is ``ratio`` times longer."""

    first: int
    ratio: float

    def __str__(self) -> str:
        """Return "growing first x ratio"."""
        return f"growing {self.first} x {self.ratio:g}"


Batches = int | Growing

#: Growing batches to try first: GROWING_FACTORISED for factorised noise, GROWING_SHUFFLED for
#: shuffled batches. Each shuffled batch adds independent noise, so fewer batches are better. The
#: first growing batch has at most T / FIRST_BATCH_DIVISOR rounds. Batches of equal size have at
#: most T / EQUAL_BATCH_DIVISOR rounds.
GROWING_FACTORISED = (Growing(1, 1.1), Growing(3, 1.2), Growing(10, 1.2), Growing(30, 1.3))
GROWING_SHUFFLED = (Growing(2, 1.4), Growing(8, 1.4), Growing(30, 1.5))
FIRST_BATCH_DIVISOR, EQUAL_BATCH_DIVISOR = 8, 16
#: Batches of the shared rounds before local rounds. T divided by one of SHARED_DIVISORS is a number
#: of shared rounds to try.
GROWING_SHARED = Growing(3, 1.2)
SHARED_DIVISORS = (100, 32, 10)


def batch_sizes(horizon: int) -> list[int]:
    """Return a coarse grid of batch sizes B from T / 4096 to T / 4, a factor of 4 apart."""
    least = max(1, -(-horizon // MAX_RELEASES))
    sizes = [least]
    while 4 * sizes[-1] <= max(least, horizon // 4):
        sizes.append(4 * sizes[-1])
    return sizes


def batches_to_try(horizon: int, protocol: str, release: str) -> list[Batches]:
    """Return the batches to try first for a protocol and release.

    They grow if the release is factorised or flat, and have equal size otherwise. For bits of
    users, whose sums have no noise, both kinds are tried.
    """
    growing = GROWING_SHUFFLED if release == "flat" else GROWING_FACTORISED
    fitting = [b for b in growing if FIRST_BATCH_DIVISOR * b.first <= horizon]
    growing_batches: list[Batches] = list(fitting or [Growing(1, growing[0].ratio)])
    if release in ("factorised", "flat"):
        return growing_batches
    equal: list[Batches] = [
        b for b in batch_sizes(horizon) if b == 1 or EQUAL_BATCH_DIVISOR * b <= horizon
    ]
    return equal + growing_batches if protocol == USER_BIT else equal


def shared_rounds(horizon: int) -> list[int]:
    """Return the numbers of shared rounds to try before local rounds, if silos may differ."""
    least = 2 * GROWING_SHARED.first
    return sorted({max(least, horizon // part) for part in SHARED_DIVISORS if horizon > 2 * least})


# ---- Candidates ----------------------------------------------------------------------------------

#: The centre of rewards in [0, 1].
CENTRE = 0.5
#: Smaller factors m' of the sieve to try: more greedy choices, under the same regret bound.
SIEVES = (0.2, 0.1)
#: kappa of the ``intercept`` to try together with `SIEVES`. With a larger kappa, theta_hat has less
#: noise, but confidence intervals are wider. A small m' compensates for this (docs/centred.md).
KAPPA = 8.0


def most_variance(plan: Plan) -> float:
    """Return the largest noise variance of any prefix sum of a plan.

    The unit is the variance of one noise vector: that of one tree node, of one step of a matrix
    factorisation or, if the server adds up batches without a tree ("flat"), of one batch.
    """
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


def protocol_and_release(protocol: str, release: str) -> str:
    """Return the name of a protocol and release; the release is left out if there is no choice."""
    no_choice = release == "tree" and (protocol.startswith("shuffle") or protocol == USER_BIT)
    return protocol if no_choice else f"{protocol}, {release}"


@dataclass(frozen=True)
class Variant:
    """Settings of a candidate other than protocol, release and batches."""

    sieve: float = SIEVE
    centred: bool = False
    until: int | None = None  # last shared round; None: all rounds are shared
    intercept: float | None = None  # kappa of the constant feature; None: the environment's

    def __str__(self) -> str:
        """Return the settings that differ from the defaults, as text."""
        text = f", shared until {self.until}" if self.until is not None else ""
        text += ", centred" if self.centred else ""
        text += f", intercept {self.intercept:g}" if self.intercept is not None else ""
        return text + (f", sieve {self.sieve:g}" if self.sieve != SIEVE else "")


@dataclass(frozen=True)
class Choice:
    """A candidate: protocol, release, batches and variant, with the resulting system."""

    trust: str
    protocol: str
    release: str
    batches: Batches
    variant: Variant
    keys: dict[str, Any]  # keys of a curve, as in a spec
    system: System

    @property
    def label(self) -> str:
        """Name of the candidate, including batches and variant."""
        name = protocol_and_release(self.protocol, self.release)
        return f"{name}, {self.batches_text}{self.variant}"

    @property
    def batches_text(self) -> str:
        """The batches as text."""
        return f"B = {self.batches}" if isinstance(self.batches, int) else str(self.batches)

    @property
    def batch_size(self) -> int:
        """Number of rounds of a batch, or of the longest batch if batches differ."""
        return self.plan.batch_size

    @property
    def plan(self) -> Plan:
        """Plan of the system."""
        plan: Plan = self.system.plan
        return plan

    @property
    def noise_std(self) -> float:
        """Largest standard deviation of the noise in an entry of a synchronised statistic."""
        node = max(self.system.certificate.noise_std.values(), default=0.0)
        return float(node * math.sqrt(noise_count(self.plan) * most_variance(self.plan)))

    @property
    def node(self) -> NoiseStd:
        """Noise of one tree node, or of one step of a Toeplitz release."""
        std = self.system.certificate.noise_std
        return NoiseStd(std["bias"], std["covariance"], std["covariance_diagonal"])

    @property
    def has_noise(self) -> bool:
        """True if noise is added to sums; False for bits of users, which are random themselves."""
        return self.protocol != USER_BIT

    @property
    def expected_loss(self) -> float:
        """Number of rounds of a silo that are expected to be wasted.

        It counts all rounds before the first release, and estimates by the heuristic
        `wasted_rounds` how many later rounds noise wastes. Nothing is simulated.
        """
        plan = self.plan
        errors = plan.radius.error_bound[1:]
        return float(plan.ends[0]) + wasted_rounds(errors, plan.ends, plan.silos, plan.horizon)

    @property
    def bound(self) -> float | None:
        """Proven bound on the regret of one silo, None if no bound is proven."""
        bound = direct_regret_bound(self.plan, self.system.theory)
        return None if bound is None else bound / self.plan.silos

    @property
    def fallback(self) -> float | None:
        """Epsilon of a secure sum if all other silos collude; None for other protocols."""
        if not self.plan.protocol.masked:
            return None
        # The certificate of a secure sum states this guarantee with docs/secure-sum.md as source.
        guarantees = [
            c.exact for c in self.system.certificate.also if c.source.startswith("docs/sec")
        ]
        return max((e.epsilon for e in guarantees if e is not None), default=None)

    def with_sieve(self, factor: float) -> Choice:
        """Return the candidate with another factor m', but the same noise, guarantee and bound.

        Parameters
        ----------
        factor : float
            m' < 1, the factor on the bonus in the ranking of actions that pass the sieve.
        """
        system = replace(self.system, plan=replace(self.plan, ranking=factor))
        variant, keys = replace(self.variant, sieve=factor), {**self.keys, "sieve": factor}
        return replace(self, variant=variant, keys=keys, system=system)


def noise_count(plan: Plan) -> int:
    """Return the number of independent noise vectors that add up in a release.

    It is 1 for a secure sum, because the plan of a secure sum states the total noise.
    """
    by_silos = plan.protocol.noise_by == "silos" and not plan.protocol.masked
    return plan.silos if by_silos else 1


@dataclass(frozen=True)
class Question:
    """What `plan` is asked: a problem, the requested guarantee, and limits on the candidates.

    ``protects`` is the unit of the guarantee: "user" (contexts and rewards) or "reward".
    """

    problem: ProblemSpec
    epsilon: float
    delta: float
    relation: str
    radius_multiplier: float
    colluders: int | None = None  # in a secure sum; None: a third of the silos
    centred: bool = False  # whether rewards may be centred
    differ: bool = False  # whether silos may differ, so that local rounds may help
    protects: str = "user"

    def private(self, protocol: str) -> dict[str, Any]:
        """Return the keys of a curve that state the guarantee.

        If users send bits, delta is 0.
        """
        keys: dict[str, Any] = {"protocol": protocol, "epsilon": self.epsilon}
        if protocol != USER_BIT:
            keys["delta"] = self.delta
        if self.relation != "replace":
            keys["relation"] = self.relation
        return keys | ({} if self.protects == "user" else {"protects": self.protects})

    def common(self) -> dict[str, Any]:
        """Return the keys that all curves of the answer have, including the local baselines."""
        multiplier = self.radius_multiplier
        return {"radius_multiplier": multiplier} if multiplier != 1.0 else {}

    @property
    def sieves(self) -> bool:
        """True if a sieve is proven, so that different factors m' have the same regret bound."""
        return self.radius_multiplier >= 1.0

    def centre(self) -> dict[str, Any]:
        """Return the key that centres rewards, if rewards may be centred."""
        return {"reward_centre": CENTRE} if self.centred else {}

    def make(
        self,
        trust: str,
        protocol: str,
        release: str,
        batches: Batches,
        variant: Variant | None = None,
    ) -> Choice:
        """Build a candidate. Raise InputError if it does not give the requested guarantee."""
        variant = variant or Variant()
        keys: dict[str, Any] = {"algorithm": "private-fedlinucb", **self.private(protocol)}
        if isinstance(batches, int):
            keys["batch_size"] = batches
        else:
            keys |= {
                "batch_size": "growing",
                "batch_first": batches.first,
                "batch_ratio": batches.ratio,
            }
        keys |= self.common()
        if protocol != USER_BIT:
            keys["release"] = release
        if protocol == "secure-sum" and self.colluders is not None:
            keys["colluders"] = self.colluders
        if variant.centred:
            keys["reward_centre"] = CENTRE
        if variant.until is not None:
            keys["share"] = {"until": variant.until}
        if variant.sieve != SIEVE:
            keys["sieve"] = variant.sieve
        settings = {k: v for k, v in keys.items() if k != "algorithm"}
        problem = self.problem
        if variant.intercept is not None:
            problem = replace(problem, intercept=variant.intercept)
            keys["intercept"] = variant.intercept
        system = ALGORITHMS["private-fedlinucb"].make(settings, problem)
        self.check(system, problem)
        return Choice(trust, protocol, release, batches, variant, keys, system)

    def rebuild(self, other: Choice) -> Choice:
        """Return a candidate with the same settings for this question. May raise InputError."""
        return self.make(other.trust, other.protocol, other.release, other.batches, other.variant)

    def check(self, system: System, problem: ProblemSpec) -> None:
        """Raise InputError unless the system gives the requested guarantee for the problem."""
        certificate = system.certificate
        failed = [c for c in certificate.conditions if not c.holds]
        # A condition that the environment violates fails for all candidates, so one note reports it
        # and no candidate is refused for it alone.
        failed_by_system = [c for c in failed if c not in problem.conditions]
        if certificate.exact is None or (certificate.status != "proven" and failed_by_system):
            reasons = "; ".join(c.text for c in failed)
            raise InputError(f"its privacy is {certificate.status} here: {reasons}")
        within_epsilon = certificate.exact.epsilon <= self.epsilon * (1.0 + 1e-9)
        if not within_epsilon or certificate.exact.delta > self.delta:
            raise InputError(
                f"it gives ({certificate.exact.epsilon:g}, {certificate.exact.delta:g}), "
                "beyond the budget"
            )
        if (certificate.unit, certificate.relation) != (self.protects, self.relation):
            raise InputError(
                f"it protects {certificate.unit} ({certificate.relation}), not {self.protects} "
                f"({self.relation})"
            )


#: Protocol, release, batches and variant from which a candidate is built.
Recipe = tuple[str, str, Batches, Variant]
#: The two releases with the least noise, each mapped to the other.
OTHER_LOW_NOISE = {"factorised": "toeplitz", "toeplitz": "factorised"}


def default_recipe(question: Question, protocol: str, variant: Variant) -> Recipe:
    """Return the recipe with the batches and the release that a curve has by default."""
    keys = question.private(protocol) | ({} if protocol == USER_BIT else question.centre())
    entry = ALGORITHMS["private-fedlinucb"]
    settled = entry.settled(entry.check(keys), question.problem)
    first = settled.batch_first or min(BATCH_FIRST, question.problem.horizon)
    batches = Growing(first, settled.batch_ratio or BATCH_RATIO)
    return protocol, settled.release, batches, variant


def recipes(question: Question, trust: str) -> list[Recipe]:
    """Return the (protocol, release, batches, variant) to try first for a trust model."""
    horizon = question.problem.horizon
    first = Variant(centred=question.centred and trust != USER_BIT)
    to_try: list[Recipe] = [
        (protocol, buffered_if_long(release, horizon, batches), batches, first)
        for protocol, release in TRUST[trust][1]
        for batches in batches_to_try(horizon, protocol, release)
        # Secure sums with many releases take too long. If silos may differ, every silo must be
        # simulated, so there is no time for candidates that rarely win: those with many releases.
        if not ((protocol == "secure-sum" or question.differ) and isinstance(batches, int))
        or horizon // batches <= MAX_SECURE_RELEASES
    ]
    default = default_recipe(question, TRUST[trust][1][0][0], first)
    if default not in to_try:
        to_try.append(default)
    if question.differ and trust not in ("shuffle", USER_BIT):
        protocol, release = TRUST[trust][1][0]
        for until in shared_rounds(horizon):
            variant_with_sharing = replace(first, until=until)
            to_try.append((protocol, release, GROWING_SHARED, variant_with_sharing))
    return to_try


def buffered_if_long(release: str, horizon: int, batches: Batches) -> str:
    """Return the release, but "buffered" instead of "toeplitz" if there are many releases.

    The error of "buffered" is at most 0.5 % larger, and its time grows more slowly than the square
    of the number of releases.
    """
    needs_buffers = isinstance(batches, int) and horizon // batches > MAX_KEPT
    return "buffered" if release == "toeplitz" and needs_buffers else release


def neighbours(question: Question, best: Choice) -> list[Recipe]:
    """Return variations of the best candidate.

    Each one has other batches, another sieve and intercept, another number of shared rounds, or
    another release.
    """
    horizon, batches, variant = question.problem.horizon, best.batches, best.variant
    other_batches: list[Batches]
    if isinstance(batches, int):
        other_batches = [b for b in (batches // 2, 2 * batches) if 1 <= b <= horizon // 2]
        if best.protocol == "secure-sum":
            other_batches = [
                b
                for b in other_batches
                if isinstance(b, int) and horizon // b <= MAX_SECURE_RELEASES
            ]
    else:
        # Try a faster growth if batches grow slowly, and a slower growth if they grow fast. Flat
        # releases need few batches, so their ratio stays at least 1.25.
        step = batches.ratio - 1.0
        ratio = 1.0 + (2.0 * step if step < 0.15 else step / 2.0)
        ratio = round(max(ratio, 1.25) if best.release == "flat" else ratio, 3)
        other_batches = [
            Growing(first, batches.ratio)
            for first in (max(1, batches.first // 3), 3 * batches.first)
            if first != batches.first and 4 * first <= (variant.until or horizon)
        ]
        other_batches.append(Growing(batches.first, ratio))
    # "buffered" stands for "toeplitz" with many releases; decide again for each number of batches.
    release = {"buffered": "toeplitz"}.get(best.release, best.release)
    to_try: list[Recipe] = [
        (best.protocol, buffered_if_long(release, horizon, b), b, variant) for b in other_batches
    ]
    to_try += greedier_recipes(question, best)
    if variant.until is not None:
        for until in (variant.until // 2, 2 * variant.until):
            if 2 <= until <= horizon // 2:
                to_try.append((best.protocol, best.release, batches, replace(variant, until=until)))
    if (other_release := OTHER_LOW_NOISE.get(best.release)) is not None:
        to_try.append((best.protocol, other_release, batches, variant))
    return to_try


def greedier_recipes(
    question: Question, choice: Choice, sieves: tuple[float, ...] = SIEVES
) -> list[Recipe]:
    """Return variants of a candidate that explore less, with the intercept `KAPPA`.

    There is one for each value in ``sieves``, which replaces m', the factor on the bonus in the
    ranking of actions that pass the sieve. There are none if rewards are not centred, if no sieve
    is proven, if the problem has no intercept, or if its intercept is at least `KAPPA` already.
    """
    kappa = question.problem.intercept
    if not (choice.variant.centred and question.sieves and kappa is not None and kappa < KAPPA):
        return []
    variants = [replace(choice.variant, sieve=sieve, intercept=KAPPA) for sieve in sieves]
    return [(choice.protocol, choice.release, choice.batches, variant) for variant in variants]


def build_candidates(
    question: Question, trust: str, to_build: Iterable[Recipe]
) -> tuple[list[Choice], dict[str, str]]:
    """Build candidates from recipes; return them, and why others cannot be built, by label."""
    candidates, failed = [], {}
    for protocol, release, batches, variant in to_build:
        try:
            candidates.append(question.make(trust, protocol, release, batches, variant))
        except InputError as error:
            text = f"B = {batches}" if isinstance(batches, int) else str(batches)
            failed[f"{protocol_and_release(protocol, release)}, {text}{variant}"] = str(error)
    return candidates, failed


def noisier(a: Choice, b: Choice) -> bool:
    """Return True if ``a`` has more noise than ``b``.

    Only candidates with the same trust model, batches and variant are compared. They have the same
    radius and policy, and differ in the noise and in E_k, the noise bound in the confidence radius
    after release k. ``a`` is noisier if both the maximum and the mean square of E_k are larger.
    """
    if (a.trust, a.batches, a.variant) != (b.trust, b.batches, b.variant):
        return False
    bound_a, bound_b = a.plan.radius.error_bound, b.plan.radius.error_bound
    return bool(bound_a.max() > bound_b.max() and np.mean(bound_a**2) > np.mean(bound_b**2))


def feducb_reason(question: Question, least: Choice) -> str:
    """Return the reason why feducb is no candidate.

    ``least`` is the candidate with the fewest releases. feducb is built with an adaptive private
    schedule, and usually has more noise than this candidate.
    """
    prefix = "only schedules that read no raw data have a guarantee; "
    keys = {
        "epsilon": question.epsilon,
        "delta": question.delta,
        "relation": question.relation,
        "schedule": "private-determinant",
        "radius": "direct",
    }
    system = ALGORITHMS["feducb"].make(keys, question.problem)
    feducb_error = float(system.plan.radius.error_bound.max())
    noise_ratio = feducb_error / float(least.plan.radius.error_bound.max())
    if noise_ratio <= 1.0:
        return (
            prefix
            + "its schedule depends on the data, so few silos cannot represent all: simulate it"
        )
    return prefix + f'"private-determinant" has {noise_ratio:.2g} times the noise of {least.label}'


# ---- Baselines -----------------------------------------------------------------------------------


#: Names of the local baselines: with the default sieve, and with the smallest m' in `SIEVES`.
ALONE, LESS = "alone", "alone, explores less"


def baselines(question: Question) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (name, label, keys of a curve) of each baseline."""
    common_keys, centre_keys = question.common(), question.centre()
    growing = Growing(1, 1.1)
    no_privacy = {
        "algorithm": "fedlinucb",
        "batch_size": "growing",
        "batch_first": growing.first,
        "batch_ratio": growing.ratio,
        **common_keys,
        **centre_keys,
    }
    alone_keys = {"algorithm": "local-linucb", **common_keys, **centre_keys}
    systems: list[tuple[str, str, dict[str, Any]]] = [(ALONE, "alone: local-linucb", alone_keys)]
    if question.sieves:
        smallest_sieve = min(SIEVES)
        label = f"alone, sieve {smallest_sieve:g}: local-linucb"
        systems.append((LESS, label, {**alone_keys, "sieve": smallest_sieve}))
    systems += [
        ("no privacy", f"no privacy: fedlinucb, {growing}", no_privacy),
        ("random", "random", {"algorithm": "random"}),
    ]
    return systems


def baseline(question: Question, keys: dict[str, Any]) -> System:
    """Build a baseline's system from the keys of a curve."""
    settings = {k: v for k, v in keys.items() if k != "algorithm"}
    system: System = ALGORITHMS[keys["algorithm"]].make(settings, question.problem)
    return system
