"""Single agents and their users: keys, the noise of a batch, the published code's ridge."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fastfed._validate import InputError, choice, number
from fastfed.bandits.assemble import WINDOW, Noise, assemble, plan_of
from fastfed.bandits.certify import certify
from fastfed.bandits.fedlinucb import DIRECT_RATIO, check_bits
from fastfed.bandits.noise_distributions import NoiseLaw, batch_law
from fastfed.bandits.radius import REGULARIZERS, Theory, about_rewards
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Keys, System, batches_of_user, check_returning
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.local_gaussian import calibrate_points
from fastfed.privacy.mechanisms.vector_batches import calibrate_vector_batches
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS, Budget
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan, Radius
from fastfed.protocols.protocol import Protocol

# ---- A single agent and its users: what the shuffle-private linear bandits have in common --------
# chowdhury-zhou-2022, Algorithm 1: the policy changes at the end of a batch only, and rests on what
# the protocol has released. Deviations from the paper, and why:
# - V and theta_hat change with lambda_k, a regularizer for each release; the paper has one for all.
# - The radius is a direct one of ours by default, proven and smaller; "lemma-a2" has the constants
#   of its proof, "lemma-a4" is the lemma as printed, which drops some.
# - Features and rewards are clipped in code to what the proofs bound.
# - Two streams are one Gaussian in exact accounting; the paper halves the budget between them.
# - A batch that T cuts short is played and never sent.


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


# ---- From keys to the noise of a batch whose users send for themselves ---------------------------


def gaussian_noise(
    keys: GaussianKeys, setting: Setting, batch_size: int, *, shuffled: bool
) -> Noise:
    """Every user's own Gaussian noise: as many independent ones add up as a batch has users."""
    releases = setting.horizon // batch_size
    mechanism = calibrate_points(
        keys.budget,
        batch_size,
        returning=keys.returns(releases),
        shuffled=shuffled,
        calibration=keys.calibration,
        layout=keys.layout,
        covariance_ratio=keys.ratio if keys.calibration == "exact" else keys.covariance_ratio or 1,
    )
    std = NoiseStd(*mechanism.stds).times(math.sqrt(batch_size))
    law = NoiseLaw(std, 1, np.arange(releases + 1.0))
    return Noise(mechanism, law, std)


def vector_noise(
    keys: PrivateAgentKeys,
    setting: Setting,
    batch_size: int,
    *,
    local: bool = False,
    vector_scale: float = 1.0,
    honest_fraction: float = 1.0,
    ratio: float = 1.0,
) -> Noise:
    """Every user's own noise bits."""
    releases = setting.horizon // batch_size
    mechanism = calibrate_vector_batches(
        keys.budget,
        batch_size,
        setting.dimension,
        returning=keys.returns(releases),
        local=local,
        calibration=keys.calibration,
        vector_scale=vector_scale,
        honest_fraction=honest_fraction,
        covariance_ratio=ratio,
    )
    law = batch_law(mechanism, releases, WINDOW * keys.failure_probability)
    g, b = mechanism.g, mechanism.b
    encoding = Encoding((g[0],), (b,), (g[1],))
    return Noise(mechanism, law, encoding=encoding)


# ---- Ridge and width of the experiment code of chowdhury-zhou-2022, in features of norm 1 --------
# The code's features are (u, 1), of norm sqrt 2. Half its Gram matrix, with half its ridge and half
# its covariance noise, and its bias sum over sqrt 2 are the same bandit in unit features: scores,
# widths and actions are equal. What follows is that bandit's; Gamma and the width are the code's
# own.


#: The code's bound on squared feature norms, and its sub-Gaussian scale of rewards.
SQUARED_NORM, REWARD_SCALE = 2.0, 0.5


@dataclass(frozen=True)
class PublishedCode:
    """Gamma, and the ridge lambda where it is not the code's 2 Gamma (Gamma in unit features)."""

    gamma: float
    ridge: float | None = None

    @property
    def regularizer(self) -> float:
        return self.gamma if self.ridge is None else self.ridge

    def width(self, horizon: int, dimension: int) -> float:
        """beta = sqrt(Gamma d) + R sqrt(d ln((1 + T L^2 / Gamma) T)), the same in every round."""
        grown = math.log1p(horizon * SQUARED_NORM / self.gamma) + math.log(horizon)
        return math.sqrt(self.gamma * dimension) + REWARD_SCALE * math.sqrt(dimension * grown)


#: Of "linucb": Gamma = 1 in the width, and a ridge of 1e-4.
NOT_PRIVATE = PublishedCode(1.0, 0.5e-4)


def of_users(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma where each user adds noise: s sqrt(T d), s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt B).

    ``users`` B is 1 for local privacy.
    """
    std = math.sqrt((math.log(2.5 * users) - math.log(delta)) / users) / epsilon
    return std * math.sqrt(horizon * dimension)


def of_agent(epsilon: float, delta: float, horizon: int, dimension: int) -> float:
    """Gamma of a trusted agent: s sqrt(d ln T), s = sqrt(ln T) ln(2.5/delta) / epsilon."""
    log = math.log(horizon)
    return math.sqrt(log) * math.log(2.5 / delta) / epsilon * math.sqrt(dimension * log)


def of_vector(epsilon: float, delta: float, users: int, horizon: int, dimension: int) -> float:
    """Gamma of the vector sum: ln(d/delta) / (4 epsilon sqrt B) sqrt(T d)."""
    log = math.log(dimension) - math.log(delta)
    return log / (4.0 * epsilon * math.sqrt(users)) * math.sqrt(horizon * dimension)


def published_theory(
    code: PublishedCode, keys: Keys, setting: Setting, noise: Noise | None, clip: Clip | None
) -> Theory:
    """Ridge and width of the code, with what is known of them: nothing is proven."""
    d, regularizer = setting.dimension, keys.regularizer
    ridge = code.regularizer if isinstance(regularizer, (str, type(None))) else regularizer
    largest = 0.0
    if noise is not None:
        largest = float(noise.law.operator_norms(d, keys.failure_probability / 4.0).max())
    lam = np.array([ridge])
    # Rows of V play no part: the logarithm's argument is 1.
    width = code.width(setting.horizon, d) - math.sqrt(code.gamma * d)
    base = (width / REWARD_SCALE) ** 2
    radius = Radius(
        keys.radius_multiplier,
        REWARD_SCALE,
        base,
        np.array([math.sqrt(code.gamma * d)]),
        np.array([math.inf]),
    )
    return Theory(
        regularizer=lam,
        lambda_min=lam,
        lambda_max=lam + largest,
        nu=np.zeros(1),
        radius=radius,
        conditions=(
            *about_rewards(setting, clip),
            Condition(
                "the regularizer exceeds the noise's operator norm with high probability",
                ridge > largest,
            ),
            Condition("the radius is a proven one (that of the experiment code is not)", False),
        ),
    )
