"""A federation of few silos that stands for one of many, and what playing it costs.

In lazy play all silos choose from the same released statistics, and what they add to the next
release is a sum of M B terms of one law. m silos whose rounds each count M / m = q times make the
same sum in expectation. Instead of weighing rounds everything else is divided: privacy noise,
lambda, c, E and phi by q, the radius of reward noise by sqrt(q), and so is the reward noise itself,
for of q rounds it averages out. Then V, u and both bonuses are those of M silos but for a factor
that cancels. What is not kept: the sampling error of the contexts in a batch, sqrt(q) times too
large, and that rewards are Bernoulli. With m = M nothing is scaled, and the law is exact: of M
Gaussian noises only the sum is seen, so the sum alone is drawn. Noise of bits is
drawn as the normal numbers it is close to, but where ``bits`` are asked for.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fastfed.environments import Environment, FixedSet, Gap, RewardLaw, Sphere
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS, released_as

#: Environments whose silos are alike and whose reward noise can be made smaller.
SCALABLE = (Sphere, Gap, FixedSet)
#: Standard deviation of a Bernoulli reward, at most.
BERNOULLI = 0.5


def scalable(environment: Environment) -> bool:
    """Whether few silos of this environment can stand for many."""
    return isinstance(environment, SCALABLE)


def scaled_environment(environment: Environment, times: float) -> Environment:
    """The environment where each round stands for so many: less reward noise."""
    if times == 1.0:
        return environment
    assert isinstance(environment, SCALABLE)
    law = environment.reward
    if law.kind == "none":
        return environment
    std = (law.std if law.kind == "gaussian" else BERNOULLI) / math.sqrt(times)
    return replace(environment, reward=RewardLaw("gaussian", std))


def scaled_plan(plan: Plan, node: NoiseStd | None, silos: int, *, bits: bool = False) -> Plan:
    """The plan for so many silos that stand for all of ``plan``; ``node``: its noise, if any.

    ``bits``: play shuffled bits as such where nothing is scaled, not normals of the same variance.
    """
    times = plan.silos / silos
    if node is not None and not (plan.encoding is not None and bits and times == 1.0):
        # One sum of noises in place of the sum of all: the same law (bits: nearly).
        noises = plan.silos if plan.protocol.noise_by == "silos" else 1
        std = node.times(math.sqrt(noises) / times)
        protocol = released_as(PROTOCOLS["central"], plan.release)
        # It stands for another plan's regret, and claims no privacy of its own.
        plan = replace(plan, protocol=protocol, noise_std=std, encoding=None, privacy=None)
    if times == 1.0:
        return plan
    r = plan.radius
    radius = replace(
        r,
        scale=r.scale / math.sqrt(times),
        anchor=r.anchor / times,
        error_bound=r.error_bound / times,
        floor=r.floor / times,
        offset=r.offset / math.sqrt(times),
        log_lambda=r.log_lambda / times,
    )
    # Smaller Gaussian reward noise is not clipped: that would move its mean.
    clip = None
    return replace(
        plan,
        silos=silos,
        regularizer=plan.regularizer / times,
        radius=radius,
        clip=clip,
        privacy=None,
    )


def round_cost(actions: int, dimension: int) -> float:
    """Nominal seconds of one agent-round: rather more than the machine of docs/speed.md takes."""
    return 1e-6 * (0.5 + 1.5e-3 * actions * dimension + 1e-3 * dimension**2)


def release_cost(plan: Plan) -> float:
    """Nominal seconds of the releases of one replicate, when noise is drawn once."""
    d, k = plan.dimension, plan.releases
    kept = 0.5e-9 * k * k * plan.statistic_size if plan.release == "toeplitz" else 0.0
    return 1e-6 * k * (3.0 + 4e-3 * d**3) + kept
