"""Regularizer and confidence radius from the law of the privacy noise, and whether they are proven.

One object holds what the proof of a regret bound rests on: reward law, clip interval, noise law,
lambda, lambda_min, lambda_max, nu, and the radius made of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastfed.bandits.setting import Setting
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, NoiseStd, Radius

RADII = ("lemma-c2", "lemma-c4", "published-code")
REGULARIZERS = ("from-noise", "published-code")


@dataclass(frozen=True)
class NoiseLaw:
    """The noise in the synchronised statistics after each release.

    ``node`` is one node's noise; ``noises`` how many independent ones add up in it (M when every
    silo adds its own); ``prefix_nodes`` the most nodes any prefix is made of; ``releases`` K.
    Where the noise is not Gaussian, ``node`` holds sub-Gaussian scales instead: E exp(t z) <=
    exp(t^2 scale^2 / 2) for every entry z.
    """

    node: NoiseStd
    noises: int
    prefix_nodes: int
    releases: int
    gaussian: bool = True
    #: s in the published code's regularizer, where that is not the noise's own.
    published_std: float | None = None

    @property
    def none(self) -> bool:
        return self.releases == 0 or self.node.parts == (0.0, 0.0, 0.0)

    @property
    def scale(self) -> float:
        """Largest factor from one node's std to the std of what is synchronised."""
        return math.sqrt(self.noises * self.prefix_nodes)

    def operator_norm(self, dimension: int, probability: float) -> float:
        """A bound on ||N|| that all releases keep with the given failure probability.

        With g the off-diagonal std and diagonal variance at most 2 g^2, N is at most a GOE in
        the convex order, so E lambda_max <= 2 g sqrt d (Gordon's comparison); lambda_max is
        sqrt 2 g-Lipschitz in the independent normals, so P(lambda_max > 2 g sqrt d + t) <=
        exp(-t^2 / (4 g^2)). Both signs and a union over the K releases give the rest.

        Sub-Gaussian entries have no such comparison. There N = sum z_ij A_ij with A_ij^2 summing
        to d I, E exp(t z A) <= exp(t^2 g^2 A^2 / 2) as matrices for every eigenvalue of A obeys
        it, and Tropp 2012 (Theorem 3.6 and Lemma 3.4) gives P(||N|| > t) <= 2 d exp(-t^2 / (2 d
        g^2)). Or, through a 1/4-net of at most 9^d points, on which u'Nu has scale at most
        sqrt 2 g and half of ||N|| is reached: ||N|| <= 4 g sqrt(d ln 9 + ln(2 / p)).
        """
        if self.none:
            return 0.0
        if not self.gaussian:
            g = self.scale * max(self.node.off_diagonal, self.node.diagonal)
            tail = math.log(2.0 * self.releases / probability)
            tropp = math.sqrt(2.0 * dimension * (math.log(dimension) + tail))
            net = 4.0 * math.sqrt(dimension * math.log(9.0) + tail)
            return g * min(tropp, net)
        g = self.scale * max(self.node.off_diagonal, self.node.diagonal / math.sqrt(2.0))
        tail = math.log(2.0 * self.releases / probability)
        return g * 2.0 * (math.sqrt(dimension) + math.sqrt(tail))

    def vector_norm(self, dimension: int, probability: float) -> float:
        """A bound on ||h|| that all releases keep: sqrt d plus the Gaussian tail of a norm.

        Sub-Gaussian noise keeps it too (Hsu, Kakade, Zhang 2012, Theorem 2.1).
        """
        if self.none:
            return 0.0
        tail = math.log(self.releases / probability)
        return self.scale * self.node.bias * (math.sqrt(dimension) + math.sqrt(2.0 * tail))


@dataclass(frozen=True)
class Theory:
    """What the regret bound of a run rests on, and whether each part of it holds."""

    regularizer: float  # lambda
    lambda_min: float
    lambda_max: float
    nu: float
    radius: Radius
    conditions: tuple[Condition, ...]

    @property
    def proven(self) -> bool:
        """Whether the confidence sets are proven to hold with probability 1 - alpha."""
        return all(c.holds for c in self.conditions)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a certificate says of the regret bound: nothing when it is proven."""
        failing = [c.text for c in self.conditions if not c.holds]
        return (
            (f"the regret bound is unproven here; missing: {'; '.join(failing)}",)
            if failing
            else ()
        )


def published_regularizer(setting: Setting, law: NoiseLaw, alpha: float) -> float:
    """Lambda of the published experiment code of zhou-chowdhury-2024, from its noise std s."""
    if law.none:
        return math.sqrt(setting.silos)
    n = law.releases.bit_length()
    std = law.node.bias if law.published_std is None else law.published_std
    spread = math.sqrt(n + math.log(1.0 / alpha)) + math.sqrt(setting.dimension)
    return math.sqrt(law.noises * n) * std * spread


def make_theory(
    setting: Setting,
    law: NoiseLaw,
    *,
    radius: str,
    radius_multiplier: float,
    regularizer: str | float,
    failure_probability: float,
    clip: Clip | None,
    released_only: bool,
    union: int,
) -> Theory:
    """lambda and beta for one curve.

    ``released_only``: actions are chosen from synchronised statistics alone (lazy play), so one
    self-normalised bound serves all silos. Otherwise each of ``union`` silos has its own V and
    the bound is taken once for each: ln(2 M / alpha) where the paper writes ln(2 / alpha).

    radius "lemma-c2": zhou-chowdhury-2024, Lemma C.2, equation (4), with lambda_min = lambda -
    ||N||, lambda_max = lambda + ||N||, nu = ||h|| / sqrt(lambda_min), alpha halved over noise and
    rewards (and the noise half over N and h). "lemma-c4": Lemma C.4 as printed, which drops
    constants of its own proof. "published-code": the experiment code's.
    """
    d, alpha = setting.dimension, failure_probability
    noise_share = 0.0 if law.none else alpha / 2.0
    n_bound = law.operator_norm(d, alpha / 4.0)
    h_bound = law.vector_norm(d, alpha / 4.0)

    if isinstance(regularizer, str):
        lam = (
            max(1.0, 2.0 * n_bound)
            if regularizer == "from-noise"
            else published_regularizer(setting, law, alpha)
        )
    else:
        lam = regularizer
    definite = lam > n_bound
    # Where lambda cannot carry the noise there is no lambda_min: the radius is then unproven.
    lambda_min = lam - n_bound if definite else lam
    lambda_max = lam + n_bound
    nu = h_bound / math.sqrt(lambda_min)

    union = 1 if released_only else union
    if radius == "lemma-c2":
        base = 2.0 * math.log(union / (alpha - noise_share))
        offset, log_lambda = math.sqrt(lambda_max) + nu, lambda_min
    elif radius == "lemma-c4":
        base, offset, log_lambda = 2.0 * math.log(2.0 / alpha), math.sqrt(lam), lam
    else:
        base, offset, log_lambda = math.log(1.0 / alpha), math.sqrt(lam * d), lam
    # The published code takes R = 1 where rewards carry no noise.
    scale = 1.0 if radius == "published-code" and setting.noise_free else setting.reward_scale

    inside = setting.reward_range is not None and (
        clip is None
        or (clip.low <= setting.reward_range[0] <= setting.reward_range[1] <= clip.high)
    )
    conditions = (
        Condition(
            "the expected reward is <x, theta*> with ||x|| <= 1, ||theta*|| <= 1", setting.linear
        ),
        Condition("rewards are bounded, and clipping does not move their mean", inside),
        Condition(
            "the regularizer exceeds the noise's operator norm with high probability", definite
        ),
        Condition(
            f'the radius is a proven one ("{radius}", multiplier {radius_multiplier:g})',
            radius == "lemma-c2" and radius_multiplier >= 1.0,
        ),
    )
    entries = law.releases + 1
    return Theory(
        regularizer=lam,
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        nu=nu,
        radius=Radius(
            multiplier=radius_multiplier,
            scale=scale,
            base=base,
            offset=np.full(entries, offset),
            log_lambda=np.full(entries, log_lambda),
        ),
        conditions=conditions,
    )
