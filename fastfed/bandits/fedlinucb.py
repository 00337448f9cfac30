"""Federated LinUCB in fixed batches, with and without privacy, and its two baselines.

Private-FedLinUCB is zhou-chowdhury-2024, Algorithms 1 and 8, under the paper's privacy protocols.
``fedlinucb`` is Algorithm 1 with exact sums, the curve that all others approach. Deviations from
the paper, which both share where they can, so that two curves differ in privacy alone:

- Features and rewards are clipped in code to what the proof bounds (``clip = false`` turns it off).
- ``lazy = true`` (Algorithm 8) is the default: in Algorithm 1 raw data of one user choose the
  features of later users of the batch, which the proof of Theorem 5.1 does not cover.
- The covariance noise is one symmetric matrix of a named layout; the paper leaves it open.
- kappa is 1 + floor(log2(T/B)); the paper writes log.
- The radius is our own direct one, smaller than the paper's and proven. Lemma C.2 is an option,
  with its own constants, from the actual noise distribution and, without lazy updates, with a union
  over silos; so is Lemma C.4 as printed.
- lambda is chosen for each release from the noise it has; the paper has one for all.
- Releases "honaker", "toeplitz" and "factorised" replace the tree by continual releases of less
  noise; with "flat" a shuffle needs no tree.
- Batches may differ in length (``batch_size = "growing"``): a synchronisation costs more the sooner
  the next one follows, and the first ones matter most.
- Messages of the vector sum have 2 g + b bits, and g, b are integers rounded to the private side;
  the paper's g + b bits overflow. A matrix is sent once, i <= j, and mirrored.
- A data point is rounded for all its tree nodes when it arrives, not when a node is released: the
  distribution is the same, and nothing is stored.
- T need not be a multiple of B: a short last batch is used locally and never sent.

Local LinUCB (huang-2023, Algorithm 2) runs each silo alone, with the same clipping and radius.
``random`` is of no paper: where privacy leaves nothing to learn from, regret is this policy's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Self

import msgspec

from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.assemble import assemble, make_noise, usual_release
from fastfed.bandits.certify import certify
from fastfed.bandits.own_rounds import (
    SharingConfig,
    share_of,
    shared_batches,
    trusting,
    with_own_rounds,
)
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.system import NOISE_DRAWS, Algorithm, Config, System, check_returning
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, RELEASES
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import FLAT, PROTOCOLS, released_as, under_masks
from fastfed.protocols.schedule import Schedule
from fastfed.protocols.vector_sum import MOST_BITS

# ---- FedLinUCB without privacy -------------------------------------------------------------------


def build_fedlinucb(config: Config, problem: ProblemSpec) -> System:
    """Plan and certificate of one fedlinucb curve."""
    clip = config.bounds(published=config.radius == "published-code")
    schedule = shared_batches(config, problem)
    plan, theory = assemble(config, problem, PROTOCOLS["none"], schedule, clip)
    plan, theory = with_own_rounds(plan, theory, config)
    plan, certificate = certify(plan, problem, theory, None, "zhou-chowdhury-2024, Section 6")
    return System("fedlinucb", plan, certificate, theory=theory)


FEDLINUCB = Algorithm(
    id="fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches, not private",
    config=SharingConfig,
    build=build_fedlinucb,
)


# ---- Private-FedLinUCB ---------------------------------------------------------------------------

PRIVATE_PROTOCOLS = tuple(p for p in PROTOCOLS if p != "none")
MESSAGES = ("aggregate", "individual")
PROTECTS = ("user", "reward")
#: Protocols whose silos add Gaussian noise of which a simulation uses the sum alone.
SUMMED = ("silo-ldp", "silo-ldp-prefix", "shuffle-amplified")
#: Default covariance_ratio with the direct radius: of all with the same privacy it makes the bound
#: on ||N theta* - h|| nearly least in any dimension, and that on ||N|| a quarter smaller.
DIRECT_RATIO = 0.7


class PrivateConfig(SharingConfig, frozen=True, kw_only=True):
    """Keys of a private-fedlinucb curve, beside those of `SharingConfig`.

    Parameters
    ----------
    protocol : str, default "silo-ldp"
        The privacy protocol, one of ``PRIVATE_PROTOCOLS``.
    epsilon : float
        Budget of one user, > 0; required unless ``silo_epsilon`` is given.
    delta : float
        Budget of one user, in (0, 1); required.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chooses the noise: the least that gives the budget, or a paper's.
    relation : {"replace", "zero-out"}
        Neighbouring data sets: one user's data replaced (bounded DP), or set to zero, its weaker
        cousin.
    release : {"tree", "honaker", "toeplitz", "buffered", "factorised", "flat"}, optional
        The continual release of prefix sums; "flat", for "shuffle-vector" alone: none, every batch
        is shuffled once and the server adds them up. By default the one that is expected to lose
        least at the problem's sizes (`fastfed.bandits.assemble.usual_release`).
    layout : str, optional
        Variances of the symmetric covariance noise; by default the calibration's own.
    covariance_ratio : float, optional
        Noise of the covariance stream over that of the bias stream; by default `ratio`.
    silo_epsilon : tuple of float, optional
        One epsilon for each silo, in place of ``epsilon``; the silos must add the noise.
    returning : int or "every-batch", default 1
        Participations: the most batches, over all silos, of one user, at most once in each.
    messages : {"aggregate", "individual"}
        For "shuffle-vector": counts of bits, or every bit drawn by itself; for "secure-sum": the
        noise of all shares at once, or every silo's masked message.
    vector_scale : float, default 1
        For "shuffle-vector" with published code alone: factor on b.
    honest_fraction : float, default 1
        For "shuffle-vector" alone: the share of users whose noise bits are counted on.
    protects : {"user", "reward"}
        One context with all its rewards, or rewards alone, where contexts are public.
    colluders : int, optional
        For "secure-sum" alone: t in 0..M - 1, the silos whose noise is not counted. By default a
        third of all, rounded down.
    noise_draws : {"silo", "sum"}
        What a simulation draws: the noise of each silo, or that of their sum at once, which has the
        same distribution and takes less time. Of ``SUMMED`` protocols without ``share``.
    """

    protocol: str = "silo-ldp"
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    release: str | None = None
    layout: str | None = None
    covariance_ratio: float | None = None
    silo_epsilon: tuple[float, ...] | None = None
    returning: int | str = 1
    messages: str = "aggregate"
    vector_scale: float = 1.0
    honest_fraction: float = 1.0
    protects: str = "user"
    colluders: int | None = None
    noise_draws: str = "silo"

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
        if self.release is not None:
            choice("release", self.release, (*RELEASES, FLAT))
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)
        check_returning(self.returning)
        choice("messages", self.messages, MESSAGES)
        if self.colluders is not None:
            integer("colluders", self.colluders, at_least=0)
        number("vector_scale", self.vector_scale, above=0.0)
        number("honest_fraction", self.honest_fraction, above=0.0, at_most=1.0)
        choice("protects", self.protects, PROTECTS)
        choice("noise_draws", self.noise_draws, NOISE_DRAWS)
        if self.noise_draws == "sum":
            self._check_draws()
        if self.protects == "reward":
            self._check_rewards()
        self._check_protocol()

    def _check_draws(self) -> None:
        """Raise InputError where the noise of all silos' sum is not all that a run reads."""
        if self.protocol not in SUMMED:
            raise InputError(
                f'noise_draws "sum" needs protocol {", ".join(SUMMED[:-1])} or {SUMMED[-1]}, '
                "where each silo adds Gaussian noise of its own and the server uses the sum "
                f'alone, got "{self.protocol}"'
            )
        if self.share is not None:
            raise InputError(
                'noise_draws "sum" needs a curve without share, got one: in own rounds a silo '
                "uses the noise of its own reports"
            )

    def settled(self, problem: ProblemSpec) -> Self:
        """Fill in the release, which depends on sizes and noise (`usual_release`)."""
        if self.release is not None:
            return self
        return msgspec.structs.replace(self, release=_release_of(self, problem))

    def _check_rewards(self) -> None:
        """Raise InputError for keys that rewards alone know nothing of."""
        if self.protocol not in ("silo-ldp", "silo-ldp-prefix", "central"):
            raise InputError(
                'protects "reward" needs protocol "silo-ldp", "silo-ldp-prefix" or "central", got '
                f'"{self.protocol}"'
            )
        if not self.lazy or self.clip is False:
            raise InputError(
                'protects "reward" needs lazy = true and clip = true: raw rewards must choose no '
                "action, and must be bounded"
            )
        for key, usual in (("calibration", "exact"), ("layout", None), ("covariance_ratio", None)):
            if getattr(self, key) != usual:
                raise InputError(
                    f'{key} has no meaning where protects is "reward", got {getattr(self, key)!r}'
                )

    @property
    def ratio(self) -> float:
        """Noise of the covariance stream over that of the bias stream."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        if self.reward_centre is not None:
            # Within 1 % of the best one for kappa from 2 to 4 (docs/centred.md).
            return 1.0
        free = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and free else 1.0

    def _check_protocol(self) -> None:
        """Raise InputError for a key without effect here: whoever sets it expects one."""
        bits = self.protocol == "shuffle-vector" and self.release in (FLAT, None)
        tree = PROTOCOLS[self.protocol].shuffled and not bits
        if tree and self.covariance_ratio not in (None, 1.0):
            raise InputError(
                f'covariance_ratio belongs to release "{FLAT}" where messages are shuffled, got '
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
        masked = PROTOCOLS[self.protocol].masked
        if masked and self.calibration != "exact":
            raise InputError(
                f'calibration must be "exact" for {self.protocol}: no paper states other '
                f'constants, got "{self.calibration}"'
            )
        of_bits, of_masks = ("shuffle-vector",), ("secure-sum",)
        for key, usual, owners in (
            ("messages", "aggregate", of_bits + of_masks),
            ("vector_scale", 1, of_bits),
            ("honest_fraction", 1, of_bits),
            ("colluders", None, of_masks),
        ):
            if getattr(self, key) != usual and self.protocol not in owners:
                named = " or ".join(f'"{owner}"' for owner in owners)
                raise InputError(
                    f"{key} belongs to protocol {named}, "
                    f'got {getattr(self, key)!r} for "{self.protocol}"'
                )


@lru_cache(maxsize=256)
def _release_of(config: PrivateConfig, problem: ProblemSpec) -> str:
    """The default release of a curve."""
    schedule = shared_batches(config, problem)
    noise_of = partial(make_noise, problem=problem, schedule=schedule)
    return usual_release(config, config.protocol, problem, schedule, noise_of)


def build_private(config: PrivateConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one private-fedlinucb curve.

    Parameters
    ----------
    config : PrivateConfig
        The curve's keys, checked.
    problem : ProblemSpec
        Sizes, and guarantees about the data.

    Returns
    -------
    System

    Raises
    ------
    InputError
        If the protocol, release or calibration do not fit each other or the problem.
    """
    config = config.settled(problem)
    release = config.release
    assert release is not None
    protocol = released_as(PROTOCOLS[config.protocol], release)
    schedule = shared_batches(config, problem)
    noise = make_noise(config, problem, schedule)
    if noise.secure is not None:
        # Prefixes are sums of releases, whichever they are: a factor of its own.
        protocol = under_masks(protocol, problem.silos, noise.secure.colluders)
        release = "factorised"
    protocol = trusting(protocol, share_of(config))
    plan, theory = assemble(
        config,
        problem,
        protocol,
        schedule,
        config.bounds(published=config.calibration == "published-code"),
        noise,
        individual=config.messages == "individual",
        # Without a tree there is no noise of prefixes to make.
        release="tree" if release == FLAT else release,
    )
    plan = replace(plan, drawn_once=config.noise_draws == "sum")
    check_bits(plan)
    spread = noise.distribution
    plan, theory = with_own_rounds(plan, theory, config, spread.variances, float(spread.noises))
    source = f"{protocol.source}; {noise.mechanism.source}"
    plan, certificate = certify(plan, problem, theory, noise, source)
    return System("private-fedlinucb", plan, certificate, theory=theory)


def check_bits(plan: Plan) -> None:
    """Raise InputError for bits too many to draw one by one, or even to count in 64 bits."""
    if plan.encoding is None or not plan.levels:
        return
    top = plan.levels - 1
    points = plan.silos * plan.points(top)
    if points * plan.encoding.message_bits(top) >= 2**62:
        raise InputError(
            f"epsilon or delta is too small for {plan.protocol.id}: a node would hold "
            f"{points * plan.encoding.message_bits(top):.3g} bits an entry, more than 2^62"
        )
    # Without a shuffler only the number of ones matters.
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
        remedy = '"aggregate" draws their counts, which have the same distribution'
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
    config=PrivateConfig,
    build=build_private,
)


# ---- Local LinUCB: no federation -----------------------------------------------------------------


class LocalConfig(Config, frozen=True, kw_only=True):
    """Keys of a local-linucb curve: those of `Config` but ``batch_size`` and ``lazy``."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("batch_size", "release_rounds"):
            if getattr(self, key) is not None:
                raise InputError(f"{key} has no meaning for local-linucb: silos never synchronise")
        if self.lazy:
            raise InputError("lazy has no meaning for local-linucb: silos never synchronise")


def build_local(config: LocalConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one local-linucb curve."""
    clip = config.bounds(published=config.radius == "published-code")
    plan, theory = assemble(config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), clip)
    source = "huang-2023, Algorithm 2; nothing leaves a silo"
    plan, certificate = certify(plan, problem, theory, None, source)
    return System("local-linucb", plan, certificate, theory=theory)


LOCAL_LINUCB = Algorithm(
    id="local-linucb",
    paper="huang-2023",
    summary="each silo alone: LinUCB without federation",
    config=LocalConfig,
    build=build_local,
)


# ---- Random actions ------------------------------------------------------------------------------


class RandomConfig(Config, frozen=True, kw_only=True):
    """Keys of a random curve: none that can be changed, for nothing is learned or sent."""

    lazy: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        unchanged = Config(lazy=False)
        for key in Config.__struct_fields__:
            if getattr(self, key) != getattr(unchanged, key):
                raise InputError(f"{key} has no meaning for random: it learns nothing")


def build_random(config: RandomConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one random curve."""
    plan, theory = assemble(config, problem, PROTOCOLS["none"], Schedule(problem.horizon, 0), None)
    plan = replace(plan, policy="random", lazy=True)
    plan, certificate = certify(plan, problem, theory, None, "uniformly random actions")
    return System("random", plan, certificate, theory=theory)


RANDOM = Algorithm(
    id="random",
    paper="none",
    summary="a uniformly random action each round: what chance gives",
    config=RandomConfig,
    build=build_random,
)
