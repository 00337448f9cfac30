"""Federated LinUCB in fixed batches, with and without privacy, and its two baselines."""

from __future__ import annotations

from dataclasses import replace

from fastfed._validate import InputError, choice, number
from fastfed.bandits.assemble import assemble, make_noise
from fastfed.bandits.certify import certify
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System, check_returning
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, RELEASES
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import PROTOCOLS, released_as
from fastfed.protocols.vector_sum import MOST_BITS

# FedLinUCB: federated LinUCB in fixed batches without privacy, the curve all others aim at.
# zhou-chowdhury-2024, Algorithm 1 with exact sums. Deviation: the same clipping, radius and
# last-batch rules as private-fedlinucb, so that two curves differ in nothing but privacy.


def build_fedlinucb(keys: Keys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    clip = keys.bounds(published=keys.radius == "published-code")
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], keys.rounds_per_batch(setting), clip)
    plan, certificate = certify(plan, setting, theory, None, "zhou-chowdhury-2024, Section 6")
    return System("fedlinucb", plan, certificate, theory=theory)


FEDLINUCB = Algorithm(
    id="fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches, not private",
    keys=Keys,
    build=build_fedlinucb,
)


# ---- Private-FedLinUCB (zhou-chowdhury-2024, Algorithms 1 and 8) under its privacy protocols -----
# Deviations from the paper, and why:
# - Features and rewards are clipped in code to what the proof bounds (``clip = false`` undoes it).
# - ``lazy = true`` (Algorithm 8) is the default: Algorithm 1 lets raw data of one user choose the
#   features of later users of the batch, which the proof of Theorem 5.1 does not cover.
# - The covariance noise is one symmetric matrix of named layout; the paper leaves it open.
# - kappa is 1 + floor(log2(T/B)); the paper writes log.
# - The radius is a direct one of ours, smaller than the paper's and proven; Lemma C.2 is an option,
#   with its own constants, from the actual noise law and for eager play with a union over silos,
#   and so is Lemma C.4 as printed.
# - lambda is chosen for each release from the noise it has; the paper has one for all.
# - release "honaker" or "toeplitz" replaces the tree by continual releases of less noise.
# - Messages of the vector sum have 2 g + b bits, and g, b are integers rounded to the private side;
#   the paper's g + b bits overflow. A matrix is sent once, i <= j, and mirrored.
# - A data point is rounded for all its tree nodes when it comes, not when a node is released: the
#   same law, and nothing is kept.
# - T need not be a multiple of B: a short last batch is played and never sent.


PRIVATE_PROTOCOLS = tuple(p for p in PROTOCOLS if p != "none")
MESSAGES = ("aggregate", "individual")
#: covariance_ratio where the radius is direct: of all with the same privacy it makes the bound on
#: ||N theta* - h|| nearly least in any dimension, and that on ||N|| a quarter smaller.
DIRECT_RATIO = 0.7


class PrivateKeys(Keys, frozen=True, kw_only=True):
    """Keys of a private-fedlinucb curve."""

    protocol: str = "silo-ldp"
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    release: str = "tree"
    layout: str | None = None
    covariance_ratio: float | None = None
    #: One epsilon for each silo, in place of epsilon; silos must add the noise.
    silo_epsilon: tuple[float, ...] | None = None
    #: In how many batches one user may take part, once in each over all silos.
    returning: int | str = 1
    #: shuffle-vector only: bits as counts, or really made; b times this; who is counted on.
    messages: str = "aggregate"
    vector_scale: float = 1.0
    honest_fraction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.silo_epsilon is not None:
            if not self.silo_epsilon:
                raise InputError("silo_epsilon must hold one number for each silo, got none")
            if self.epsilon is not None:
                raise InputError("give either epsilon or silo_epsilon, not both")
            for epsilon in self.silo_epsilon:
                number("silo_epsilon", epsilon, above=0.0)
            if self.protocol not in ("silo-ldp", "silo-ldp-prefix"):
                raise InputError(
                    'silo_epsilon needs protocol "silo-ldp" or "silo-ldp-prefix", where each silo '
                    f'adds its own noise, got "{self.protocol}"'
                )
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None and not (key == "epsilon" and self.silo_epsilon):
                raise InputError(f"{key} is required")
        if self.silo_epsilon is None:
            number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        choice("protocol", self.protocol, PRIVATE_PROTOCOLS)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("relation", self.relation, RELATIONS)
        choice("release", self.release, RELEASES)
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)
        check_returning(self.returning)
        choice("messages", self.messages, MESSAGES)
        number("vector_scale", self.vector_scale, above=0.0)
        number("honest_fraction", self.honest_fraction, above=0.0, at_most=1.0)
        self._check_protocol_keys()

    @property
    def ratio(self) -> float:
        """Noise of the covariance stream over that of the bias stream."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        free = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and free else 1.0

    def _check_protocol_keys(self) -> None:
        """Keys that would say nothing are refused: whoever sets them expects something."""
        if PROTOCOLS[self.protocol].shuffled and self.covariance_ratio not in (None, 1.0):
            raise InputError(
                "covariance_ratio belongs to protocols that are not shuffled, got "
                f'{self.covariance_ratio:g} for "{self.protocol}"'
            )
        if PROTOCOLS[self.protocol].bits:
            if self.layout not in (None, "iid"):
                raise InputError(
                    f'layout must be "iid" for {self.protocol}: each entry i <= j has bits of '
                    f'its own, got "{self.layout}"'
                )
            if self.vector_scale != 1.0 and self.calibration != "published-code":
                raise InputError(
                    'vector_scale belongs to calibration "published-code", got '
                    f'{self.vector_scale:g} with "{self.calibration}"'
                )
            return
        for key, usual in (("messages", "aggregate"), ("vector_scale", 1), ("honest_fraction", 1)):
            if getattr(self, key) != usual:
                raise InputError(
                    f'{key} belongs to protocol "shuffle-vector", '
                    f'got {getattr(self, key)!r} for "{self.protocol}"'
                )


def build_private(keys: PrivateKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    protocol = released_as(PROTOCOLS[keys.protocol], keys.release)
    batch_size = keys.rounds_per_batch(setting)
    noise = make_noise(keys, setting, batch_size)
    clip = keys.bounds(published=keys.calibration == "published-code")
    individual = keys.messages == "individual"
    plan, theory = assemble(
        keys, setting, protocol, batch_size, clip, noise, individual, keys.release
    )
    check_bits(plan)
    source = f"{protocol.source}; {noise.mechanism.source}"
    plan, certificate = certify(plan, setting, theory, noise, source)
    return System("private-fedlinucb", plan, certificate, theory=theory)


def check_bits(plan: Plan) -> None:
    """InputError for bits that cannot be made one by one, or not even be counted."""
    if plan.encoding is None or not plan.levels:
        return
    top = plan.levels - 1
    points = plan.silos * plan.points(top)
    if points * plan.encoding.message_bits(top) >= 2**62:
        raise InputError(
            f"epsilon or delta is too small for {plan.protocol.id}: a node would hold "
            f"{points * plan.encoding.message_bits(top):.3g} bits an entry, more than 2^62"
        )
    # Without a shuffler nobody needs more than their number.
    if not plan.individual or not plan.protocol.shuffled:
        return
    if plan.clip is None:
        raise InputError(
            'messages = "individual" needs clip = true: a message of 2 g + b bits cannot hold an '
            "entry outside [-1, 1]"
        )
    held = sum(
        plan.silos * plan.points(j) * plan.encoding.message_bits(j) * plan.statistic_size
        for j in range(plan.levels)
    )
    if held > MOST_BITS:
        remedy = '"aggregate" plays their counts, which have the same law'
        if plan.by_users:
            remedy = f"a batch_size below {plan.batch_size} sends fewer"
        raise InputError(
            f'messages = "individual" would hold {held:.3g} bits at once, at most {MOST_BITS:.3g} '
            f"can be; {remedy}"
        )


PRIVATE_FEDLINUCB = Algorithm(
    id="private-fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches under a privacy protocol",
    keys=PrivateKeys,
    build=build_private,
)


# ---- Local LinUCB: each silo alone, the "no federation" baseline (huang-2023, Algorithm 2) -------
# Deviation: clipping and radius rules as in the federated systems. ``batch_size`` and ``lazy`` have
# no meaning here and are refused.


class LocalKeys(Keys, frozen=True, kw_only=True):
    """Keys of a local-linucb curve."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise InputError("batch_size has no meaning for local-linucb: silos never synchronise")
        if self.lazy:
            raise InputError("lazy has no meaning for local-linucb: silos never synchronise")


def build_local(keys: LocalKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    clip = keys.bounds(published=keys.radius == "published-code")
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], 0, clip)
    source = "huang-2023, Algorithm 2; nothing leaves a silo"
    plan, certificate = certify(plan, setting, theory, None, source)
    return System("local-linucb", plan, certificate, theory=theory)


LOCAL_LINUCB = Algorithm(
    id="local-linucb",
    paper="huang-2023",
    summary="each silo alone: LinUCB without federation",
    keys=LocalKeys,
    build=build_local,
)


# The random policy: a uniformly random action each round, the line nobody should be above.
# Of no paper, but behind every figure: where privacy leaves nothing to learn from, regret is this
# policy's. Nothing is learned and nothing is sent, so no key has a meaning here.


class RandomKeys(Keys, frozen=True, kw_only=True):
    """Keys of a random curve: none that could be changed."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        unchanged = Keys(lazy=False)
        for key in Keys.__struct_fields__:
            if getattr(self, key) != getattr(unchanged, key):
                raise InputError(f"{key} has no meaning for random: it learns nothing")


def build_random(keys: RandomKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    plan, theory = assemble(keys, setting, PROTOCOLS["none"], 0, None)
    plan = replace(plan, policy="random", lazy=True)
    plan, certificate = certify(plan, setting, theory, None, "uniformly random actions")
    return System("random", plan, certificate, theory=theory)


RANDOM = Algorithm(
    id="random",
    paper="none",
    summary="a uniformly random action each round: what chance gives",
    keys=RandomKeys,
    build=build_random,
)
