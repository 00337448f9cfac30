"""FedUCB's regularizer, radius and trigger: Proposition 2 with its proof's constants.

One object holds rho_min, rho_max and kappa, for one silo; theory and trigger are made of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.feducb_constants import (
    bias_bound,
    bias_bound_from_std,
    decentralised_threshold,
    noise_bound,
    noise_bound_from_std,
    threshold,
)
from fastfed.bandits.setting import Setting
from fastfed.bandits.theory import Theory, about_rewards
from fastfed.privacy.certificate import Condition
from fastfed.privacy.privatizer import Privatizer
from fastfed.protocols.plan import Clip, Radius
from fastfed.protocols.trigger import DETERMINANT, PRIVATE_DETERMINANT, Trigger

#: lambda of a silo without privacy, where the spec does not say.
PLAIN_RHO = 1.0


@dataclass(frozen=True)
class Federation:
    """The silos that share one estimator, and the whole they are a part of.

    Centralised: all silos in all rounds, ``whole`` None. Decentralised: a clique in a gamma-th of
    the rounds; failures are added up over all silos, all estimators and all ``cliques``.
    """

    setting: Setting
    whole: Setting | None = None
    gamma: int = 1
    cliques: int = 1

    @property
    def all(self) -> Setting:
        return self.whole or self.setting


@dataclass(frozen=True)
class Constants:
    """Bounds on one silo's regularizer H and bias noise h: rho_min I <= H <= rho_max I, kappa.

    ``bounded`` and ``biased``: whether the first and the second are proven at the actual noise,
    for all releases of all silos together, with probability 1 - alpha / 4 each.
    """

    rho_min: float
    rho_max: float
    kappa: float
    bounded: bool = True
    biased: bool = True

    @property
    def shift(self) -> float:
        """What is added to the diagonal of a silo's prefix sum."""
        return (self.rho_min + self.rho_max) / 2.0


def constants(keys: Any, federation: Federation, noise: Privatizer | None) -> Constants:
    """rho_min, rho_max and kappa: as printed for "theorem", from the noise for "exact".

    A given rho_min stands for Lambda, so rho_max is three times that.
    """
    if noise is None:
        rho = PLAIN_RHO if keys.rho_min is None else keys.rho_min
        return Constants(rho, rho, 0.0)
    d, alpha = federation.setting.dimension, keys.failure_probability
    n, gamma, silos = max(1, noise.releases), federation.gamma, federation.all.silos
    proven = noise_bound_from_std(d, silos, noise.noise_std, n, alpha, gamma=gamma)
    budget = noise.budget
    if keys.rho_min is not None:
        rho = keys.rho_min
    elif noise.calibration == "theorem":
        rho = noise_bound(d, silos, budget.epsilon, budget.delta, n, alpha, gamma=gamma)
    else:
        rho = proven
    least = bias_bound_from_std(d, silos, noise.noise_std, rho, n, alpha, gamma=gamma)
    kappa = least
    if noise.calibration == "theorem":
        kappa = bias_bound(d, silos, budget.epsilon, n, alpha, gamma=gamma)
    return Constants(rho, 3.0 * rho, kappa, bounded=rho >= proven, biased=kappa >= least)


def proposition_2(
    keys: Any,
    federation: Federation,
    found: Constants,
    clip: Clip | None,
    released_only: bool,
) -> Theory:
    """lambda and beta of Proposition 2: R sqrt(2 ln(2/alpha) + ln det V - d ln(M rho_min))
    + sqrt(M rho_max) + kappa sqrt(M).

    M counts the silos that share the estimator. ln det V stands without the factor d it is printed
    with, as its proof has it. The bound holds for one silo's order of events; where every silo has
    an order of its own (eager play), "exact" takes it once for each: ln(2 M / alpha). Without a
    server every clique has an order of its own in every estimator.
    """
    setting, alpha = federation.setting, keys.failure_probability
    m = setting.silos
    orders = federation.gamma * (federation.cliques if released_only else federation.all.silos)
    counted = keys.calibration == "exact"
    base = 2.0 * math.log(2.0 * (orders if counted else 1) / alpha)
    low, high = m * found.rho_min, m * found.rho_max
    lam = np.array([low, m * found.shift])
    offset = math.sqrt(high) + found.kappa * math.sqrt(m)
    ordered = keys.schedule == "fixed" or released_only or federation.all.silos == 1
    conditions = (
        *about_rewards(setting, clip),
        Condition("every silo's regularizer lies between rho_min and rho_max", found.bounded),
        Condition("kappa exceeds the bias noise in every release", found.biased),
        Condition(
            "one order of events serves all silos, or the bound is taken for each",
            (orders == 1 or counted) and ordered,
        ),
        Condition(
            f"the radius is that of Proposition 2 at least (multiplier {keys.radius_multiplier:g})",
            keys.radius_multiplier >= 1.0,
        ),
    )
    return Theory(
        regularizer=lam,
        lambda_min=np.full(2, low),
        lambda_max=np.full(2, high),
        nu=np.full(2, found.kappa * math.sqrt(m)),
        radius=Radius(
            keys.radius_multiplier,
            setting.reward_scale,
            base,
            np.full(2, offset),
            np.full(2, low),
            determinant=True,
            anchor=low,
        ),
        conditions=conditions,
    )


def threshold_of(keys: Any, federation: Federation, found: Constants) -> float:
    """D: a number as given, or that of the level of communication."""
    setting, low, high = federation.setting, found.rho_min, found.rho_max
    if not isinstance(keys.communication, str):
        return float(keys.communication)
    if federation.whole is None:
        sizes = setting.horizon, setting.silos, setting.dimension
        return threshold(keys.communication, *sizes, low, high)
    if keys.communication != "log-T":
        raise InputError(
            'communication must be "log-T", "MT" or a number without a server, got '
            f'"{keys.communication}"'
        )
    sizes = federation.whole.horizon, setting.dimension, federation.gamma
    # Algorithm 3 divides by 1 + L^2 (line 6).
    return decentralised_threshold(*sizes, low, high) / 2.0


def trigger(
    keys: Any, federation: Federation, found: Constants, noise: Privatizer | None
) -> Trigger | None:
    """The rule of the keys' schedule; None where the rounds of synchronisation are fixed."""
    if keys.schedule == "fixed":
        return None
    bar = threshold_of(keys, federation, found)
    # Without a server everybody has heard by the estimator's next round, and reports after that.
    delay = 0 if federation.whole is None else 1
    if keys.schedule == "determinant":
        extra = federation.setting.silos * (found.rho_max - found.rho_min)
        return Trigger(DETERMINANT, bar, extra, delay=delay)
    assert noise is not None
    std = noise.schedule_std, math.sqrt(2.0) * noise.schedule_std
    return Trigger(PRIVATE_DETERMINANT, bar, std=std, delay=delay)
