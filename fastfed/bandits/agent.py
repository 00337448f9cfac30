"""A single agent and its users: what the shuffle-private linear bandits have in common.

chowdhury-zhou-2022, Algorithm 1: the policy changes at the end of a batch only, and rests on what
the protocol has released. Deviations from the paper, and why:
- V and theta_hat change with lambda_k, a regularizer for each release; the paper has one for all.
- The radius is a direct one of ours by default, proven and smaller; "lemma-a2" has the constants of
  its proof, "lemma-a4" is the lemma as printed, which drops some.
- Features and rewards are clipped in code to what the proofs bound.
- Two streams are one Gaussian in exact accounting; the paper halves the budget between them.
- A batch that T cuts short is played and never sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from fastfed._validate import InputError, choice, number
from fastfed.bandits.agent_published import PublishedCode, published_theory
from fastfed.bandits.assemble import assemble, plan_of
from fastfed.bandits.certify import certify
from fastfed.bandits.noise import Noise
from fastfed.bandits.private_fedlinucb import DIRECT_RATIO, check_bits
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Keys, System, batches_of_user, check_returning
from fastfed.bandits.theory import REGULARIZERS, Theory
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.sensitivity import LAYOUTS
from fastfed.privacy.two_streams import CALIBRATIONS
from fastfed.protocols.plan import Clip, Plan
from fastfed.protocols.protocol import Protocol

MESSAGES = ("aggregate", "individual")
#: The rules for lambda that go with each radius.
FITTING = {
    "direct": ("from-noise",),
    "lemma-a2": ("from-noise", "lemma-a4"),
    "lemma-a4": ("lemma-a4", "from-noise"),
    "published-code": ("published-code",),
}


class AgentKeys(Keys, frozen=True, kw_only=True):
    """Keys of any curve with a single agent."""

    batch_size: int | str | None = 1

    radii: ClassVar[tuple[str, ...]] = ("direct", "lemma-a2", "lemma-a4", "published-code")
    regularizers: ClassVar[tuple[str, ...]] = (*REGULARIZERS, "lemma-a4")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lazy:
            raise InputError(
                "lazy must be true for a single agent, whose policy does not change within a "
                "batch, got false"
            )
        if isinstance(self.regularizer, str) and self.regularizer not in FITTING[self.radius]:
            known = " or ".join(f'"{rule}"' for rule in FITTING[self.radius])
            raise InputError(
                f'regularizer must be {known} or a number with radius "{self.radius}", '
                f'got "{self.regularizer}"'
            )

    @property
    def regularizer_rule(self) -> str | float:
        if self.regularizer is None and self.radius == "lemma-a4":
            return "lemma-a4"
        return super().regularizer_rule

    def batch(self, setting: Setting, rule: Callable[[], int]) -> int:
        """B: as given, or what ``rule`` says for "theorem"."""
        return rule() if self.batch_size == "theorem" else self.rounds_per_batch(setting)


class PrivateAgentKeys(AgentKeys, frozen=True, kw_only=True):
    """Keys of a private curve with a single agent."""

    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    #: In how many batches one user may take part, once in each.
    returning: int | str = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("relation", self.relation, RELATIONS)
        check_returning(self.returning)

    @property
    def budget(self) -> Budget:
        assert self.epsilon is not None and self.delta is not None
        return Budget(self.epsilon, self.delta, self.relation)

    def returns(self, batches: int) -> int:
        """Batches that one user may take part in, out of so many."""
        return batches_of_user(self.returning, batches)


class GaussianKeys(PrivateAgentKeys, frozen=True, kw_only=True):
    """Keys of those whose noise may be Gaussian."""

    layout: str | None = None
    covariance_ratio: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)
        if self.covariance_ratio is not None:
            number("covariance_ratio", self.covariance_ratio, at_least=1e-3, at_most=1e3)

    @property
    def ratio(self) -> float:
        """Noise of the covariance stream over that of the bias stream."""
        if self.covariance_ratio is not None:
            return self.covariance_ratio
        free = self.calibration == "exact" and self.layout in (None, "goe2")
        return DIRECT_RATIO if self.radius == "direct" and free else 1.0


def free_ratio(keys: PrivateAgentKeys) -> float:
    """Noise of the covariance stream over that of the bias stream, where bits let us choose."""
    return DIRECT_RATIO if keys.radius == "direct" and keys.calibration == "exact" else 1.0


def check_agent(algorithm: str, setting: Setting) -> None:
    """InputError unless the world has one silo, which is the agent."""
    if setting.silos != 1:
        raise InputError(
            f"silos must be 1 for {algorithm}, where one agent serves all users, "
            f"got {setting.silos}"
        )


def planned(
    keys: AgentKeys,
    setting: Setting,
    protocol: Protocol,
    batch_size: int,
    published: PublishedCode,
    noise: Noise | None = None,
    *,
    individual: bool = False,
    release: str = "tree",
) -> tuple[Plan, Theory, Clip | None]:
    """Plan, theory and clipping of one curve; ``published`` is used where the radius asks for it.

    Every round (B = 1) without noise the agent's estimate changes by rank-one steps.
    """
    clip = keys.bounds(published=False)
    alone = noise is None and batch_size == 1
    rounds = 0 if alone else batch_size
    if keys.radius == "published-code":
        theory = published_theory(published, keys, setting, noise, clip)
        plan = plan_of(keys, setting, protocol, rounds, clip, theory, noise)
        return replace(plan, individual=individual, release=release), theory, clip
    made = assemble(keys, setting, protocol, rounds, clip, noise, individual, release)
    return (*made, clip)


def private(
    algorithm: str,
    keys: PrivateAgentKeys,
    setting: Setting,
    protocol: Protocol,
    batch_size: int,
    published: PublishedCode,
    noise: Noise,
    *,
    individual: bool = False,
    release: str = "tree",
) -> System:
    """A private system of one agent, from its noise."""
    plan, theory, _ = planned(
        keys, setting, protocol, batch_size, published, noise, individual=individual,
        release=release,
    )  # fmt: skip
    check_bits(plan)
    source = f"{protocol.source}; {noise.mechanism.source}"
    plan, certificate = certify(plan, setting, theory, noise, source)
    return System(algorithm, plan, certificate, theory=theory)
