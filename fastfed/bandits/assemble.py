"""From a curve's Config to its plan: noise, confidence radius, and the plan made of both.

The way of one epsilon: `make_noise` calibrates the protocol's mechanism for the budget
(``tree_for`` and its kin in `fastfed.privacy`) and describes what its noise adds up to;
`assemble` derives regularizer and radius from that (`radius.make_theory`) and puts all numbers
into a `Plan`. `certify.certify` then seals the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from typing import Protocol as TypingProtocol

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import NoiseDistribution, bit_distribution
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, make_theory
from fastfed.bandits.system import Config, batches_of_user
from fastfed.privacy.certificate import Condition
from fastfed.privacy.mechanisms.amplification import calibrate_shuffled_tree
from fastfed.privacy.mechanisms.binomial_tree import calibrate_vector_sum
from fastfed.privacy.releases.gaussian_release import (
    GaussianRelease,
    release_for,
    tree_for,
)
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import Clip, Encoding, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS, Protocol
from fastfed.protocols.score import score_named

#: Protocols whose noise may be shared between prefixes.
RELEASABLE = ("silo-ldp", "central")
#: Share of the failure probability that the coupling of bits to normals may take.
COUPLING_SHARE = 0.01

# ---- Noise ---------------------------------------------------------------------------------------


class Mechanism(TypingProtocol):
    """Declarations of a mechanism about a plan; the account is of the plan's own numbers."""

    @property
    def budget(self) -> Budget:
        """The (epsilon, delta) that was asked for, its relation and unit."""
        ...

    @property
    def source(self) -> str:
        """Author-year and equation of the rule that chose the noise."""
        ...

    def conditions(self) -> list[Condition]:
        """Conditions of the guarantee, and whether they hold."""
        ...


@dataclass(frozen=True)
class Noise:
    """The privacy noise of a curve: its mechanism, and the numbers for drivers and theory.

    Parameters
    ----------
    mechanism : Mechanism
        The calibrated mechanism, which declares budget and conditions.
    distribution : NoiseDistribution
        The noise in the synchronised sums, for confidence radii.
    std : NoiseStd, optional
        Standard deviations of the Gaussian noise that one node gets, in units of the sums.
    encoding : Encoding, optional
        Parameters of the noise bits, where data travel as bits.
    silo_noise : tuple of float, optional
        Where silos have budgets of their own: each one's noise, in units of ``std``.
    silo_epsilon : tuple of float, optional
        Each silo's own epsilon.
    """

    mechanism: Mechanism
    distribution: NoiseDistribution
    std: NoiseStd = field(default_factory=NoiseStd)
    encoding: Encoding | None = None
    silo_noise: tuple[float, ...] = ()
    silo_epsilon: tuple[float, ...] = ()


def make_noise(config: Any, problem: ProblemSpec, batch_size: int) -> Noise:
    """Calibrate the noise of a private-fedlinucb curve for its protocol.

    Parameters
    ----------
    config : PrivateConfig
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    batch_size : int
        B, rounds of each silo between two releases.

    Returns
    -------
    Noise

    Raises
    ------
    InputError
        If the protocol has no such release, or no such calibration.
    """
    if config.silo_epsilon is not None:
        return _noise_by_silo(config, problem, batch_size)
    budget = Budget(config.epsilon, config.delta, config.relation)
    releases = problem.horizon // batch_size
    participations = batches_of_user(config.returning, releases)
    mechanism: GaussianRelease
    if config.release != "tree":
        if config.protocol not in RELEASABLE:
            raise InputError(
                f'release "{config.release}" needs protocol '
                f"{' or '.join(RELEASABLE)}: elsewhere a node's noise belongs to the node, got "
                f'"{config.protocol}"'
            )
        mechanism = release_for(
            config.release,
            budget,
            releases,
            config.calibration,
            config.layout,
            config.ratio,
            returning=participations,
        )
    elif config.protocol == "shuffle-vector":
        bits = calibrate_vector_sum(
            budget,
            releases,
            problem.silos * batch_size,
            problem.dimension,
            config.calibration,
            config.vector_scale,
            config.honest_fraction,
            returning=participations,
        )
        distribution = bit_distribution(bits, COUPLING_SHARE * config.failure_probability)
        return Noise(bits, distribution, encoding=Encoding(bits.g, bits.b))
    elif config.protocol == "shuffle-amplified":
        mechanism = calibrate_shuffled_tree(
            budget,
            releases,
            problem.silos,
            batch_size,
            problem.horizon,
            config.calibration,
            config.layout,
            returning=participations,
        )
    else:
        mechanism = tree_for(
            budget,
            releases,
            config.calibration,
            config.layout,
            config.ratio,
            returning=participations,
        )
    std = NoiseStd(*mechanism.stds)
    noises = problem.silos if PROTOCOLS[config.protocol].noise_by == "silos" else 1
    return Noise(mechanism, NoiseDistribution(std, noises, mechanism.variance_factors), std)


def _noise_by_silo(config: Any, problem: ProblemSpec, batch_size: int) -> Noise:
    """Noise of each silo's own strength (zhou-chowdhury-2024, Definition 2.1)."""
    budgets = config.silo_epsilon
    if config.returning != 1:
        raise InputError(
            "returning must be 1 with silo_epsilon: a user of several silos has no budget of "
            f"their own, got {config.returning}"
        )
    if len(budgets) != problem.silos:
        raise InputError(
            f"silo_epsilon must hold one number for each of {problem.silos} silos, "
            f"got {len(budgets)}"
        )
    each = {
        epsilon: make_noise(
            msgspec.structs.replace(config, epsilon=epsilon, silo_epsilon=None),
            problem,
            batch_size,
        )
        for epsilon in dict.fromkeys(budgets)
    }
    weakest = each[max(budgets)]
    scales = tuple(each[e].std.bias / weakest.std.bias for e in budgets)
    return replace(
        weakest,
        distribution=replace(weakest.distribution, noises=sum(f * f for f in scales)),
        silo_noise=scales,
        silo_epsilon=tuple(float(epsilon) for epsilon in budgets),
    )


# ---- Plan ----------------------------------------------------------------------------------------


def assemble(
    config: Config,
    problem: ProblemSpec,
    protocol: Protocol,
    batch_size: int,
    clip: Clip | None,
    noise: Noise | None = None,
    individual: bool = False,
    release: str = "tree",
    *,
    only_released: bool | None = None,
    ordered: bool = True,
) -> tuple[Plan, Theory]:
    """Make the plan of one curve, and the theory behind its radius.

    Parameters
    ----------
    config : Config
        The curve's keys.
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    protocol : Protocol
        The randomizer, the server and whom they trust.
    batch_size : int
        B; 0 never synchronises.
    clip : Clip or None
        Bounds that features and rewards are clipped to.
    noise : Noise, optional
        None adds no noise.
    individual : bool, default False
        True to draw each user's message, False to draw the noise of their sum.
    release : str, default "tree"
        The continual release that noises prefix sums.
    only_released : bool, optional
        True if actions depend on synchronised statistics alone; by default `released_only`.
    ordered : bool, default True
        True if the rounds of synchronisation are known in advance.

    Returns
    -------
    plan : Plan
        Plain data that drivers and parties execute, without a claim yet: `certify.certify` adds it.
    theory : Theory
        Regularizer and radius, and what their proof rests on.
    """
    releases = problem.horizon // batch_size if batch_size else 0
    no_noise = NoiseDistribution(variances=np.zeros(releases + 1))
    if only_released is None:
        only_released = released_only(config, batch_size)
    theory = make_theory(
        # A silo that never synchronises is its own federation of one.
        problem if batch_size else replace(problem, silos=1),
        noise.distribution if noise else no_noise,
        radius=config.radius,
        radius_multiplier=config.radius_multiplier,
        regularizer=config.regularizer_rule,
        failure_probability=config.failure_probability,
        clip=clip,
        released_only=only_released,
        union=problem.silos,
        ordered=ordered,
    )
    plan = make_plan(config, problem, protocol, batch_size, clip, theory, noise)
    return replace(plan, individual=individual, release=release), theory


def released_only(config: Config, batch_size: int) -> bool:
    """True if actions depend on synchronised statistics alone.

    With B = 1 the local batch is empty whenever an action is chosen, lazy or not.
    """
    return batch_size == 1 or (config.lazy and batch_size > 0)


def make_plan(
    config: Config,
    problem: ProblemSpec,
    protocol: Protocol,
    batch_size: int,
    clip: Clip | None,
    theory: Theory,
    noise: Noise | None,
) -> Plan:
    """Put the numbers of a theory and its noise into a plan; parameters as in `assemble`."""
    return Plan(
        silos=problem.silos,
        horizon=problem.horizon,
        dimension=problem.dimension,
        batch_size=batch_size,
        # Alone there is nothing to wait for: a silo uses all its own data.
        lazy=config.lazy and batch_size > 0,
        protocol=protocol,
        noise_std=noise.std if noise else NoiseStd(),
        regularizer=theory.regularizer,
        radius=theory.radius,
        clip=clip,
        encoding=noise.encoding if noise else None,
        silo_noise=noise.silo_noise if noise else (),
        score=score_named(config.score),
    )
