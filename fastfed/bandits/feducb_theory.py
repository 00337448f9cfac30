"""What is proven of a curve of FedUCB: its regularizer, its radius, its trigger, its regret.

All of it is about the silos that share one estimator (`Federation`): with a server all of them,
without one a clique. `feducb` makes plans of it, and its docstring names the deviations from
dubey-pentland-2020; the paper's constants and bounds, as functions of numbers, are in
`feducb_bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.feducb_bounds import (
    bias_bound,
    bias_bound_from_std,
    decentralised_threshold,
    noise_bound,
    noise_bound_from_std,
    proposition_1_appendix,
    theorem_1_two_terms,
    theorem_2_two_terms,
    threshold,
)
from fastfed.bandits.problem import ProblemSpec
from fastfed.bandits.radius import Theory, reward_conditions
from fastfed.privacy.certificate import Condition
from fastfed.privacy.releases.gaussian_release import Privatizer
from fastfed.protocols.plan import Clip, Radius
from fastfed.protocols.schedule import DETERMINANT, PRIVATE_DETERMINANT, Trigger

if TYPE_CHECKING:
    from fastfed.bandits.feducb import FedUCBConfig

# ---- Regularizer, radius and trigger of a curve --------------------------------------------------

#: lambda of a silo without privacy, where the spec does not say.
PLAIN_RHO = 1.0


@dataclass(frozen=True)
class Federation:
    """The silos that share one estimator, and the whole that they are a part of.

    With a server: all silos in all rounds, ``whole`` None. Without one: a clique in a gamma-th of
    the rounds; failures are added up over all silos, all estimators and all ``cliques``.

    Parameters
    ----------
    problem : ProblemSpec
        Silos and rounds of this estimator.
    whole : ProblemSpec, optional
        All silos and rounds.
    gamma : int, default 1
        Estimators.
    cliques : int, default 1
        Cliques of the whole.
    """

    problem: ProblemSpec
    whole: ProblemSpec | None = None
    gamma: int = 1
    cliques: int = 1

    @property
    def all(self) -> ProblemSpec:
        """The whole, which is this part where there is a server."""
        return self.whole or self.problem


@dataclass(frozen=True)
class Constants:
    """Bounds on one silo's regularizer H and bias noise h.

    Parameters
    ----------
    rho_min, rho_max : float
        rho_min I <= H <= rho_max I.
    kappa : float
        Bound on ||h|| in H^-1.
    bounded, biased : bool
        True if the first and the second are proven at the actual noise, for all releases of all
        silos together, with probability 1 - alpha / 4 each.
    """

    rho_min: float
    rho_max: float
    kappa: float
    bounded: bool = True
    biased: bool = True

    @property
    def shift(self) -> float:
        """Multiple of I that is added to a silo's prefix sum."""
        return (self.rho_min + self.rho_max) / 2.0


def constants(
    config: FedUCBConfig,
    federation: Federation,
    noise: Privatizer | None,
    own: tuple[Privatizer, ...] = (),
) -> Constants:
    """rho_min, rho_max and kappa: as printed for "theorem", from the noise for "exact".

    A given rho_min stands for Lambda, so rho_max is three times that. Where silos have noise of
    their ``own``, with constants rho_i and kappa_i, they are the mean of rho_i and the root of that
    of kappa_i^2. All that is proven takes the sums: M rho_min I <= sum H_i <= M rho_max I, and for
    h = sum h_i, of any H_i > 0, h' (sum H_i)^-1 h <= sum h_i' H_i^-1 h_i <= M kappa^2, because
    (h, H) -> h' H^-1 h is convex and homogeneous, so subadditive. Each silo's bounds are made for
    a union over all M silos, so that all of them fail as seldom as those of equal silos.
    """
    if own:
        each = {p: constants(config, federation, p) for p in set(own)}
        found = [each[p] for p in own]
        return Constants(
            sum(c.rho_min for c in found) / len(found),
            sum(c.rho_max for c in found) / len(found),
            math.sqrt(sum(c.kappa**2 for c in found) / len(found)),
            bounded=all(c.bounded for c in found),
            biased=all(c.biased for c in found),
        )
    if noise is None:
        rho = PLAIN_RHO if config.rho_min is None else config.rho_min
        return Constants(rho, rho, 0.0)
    d, alpha = federation.problem.dimension, config.failure_probability
    n, gamma, silos = max(1, noise.releases), federation.gamma, federation.all.silos
    proven = noise_bound_from_std(d, silos, noise.noise_std, n, alpha, gamma=gamma)
    budget = noise.budget
    if config.rho_min is not None:
        rho = config.rho_min
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
    config: FedUCBConfig,
    federation: Federation,
    found: Constants,
    clip: Clip | None,
    released_only: bool,
    own: bool = False,
) -> Theory:
    """Theory of Proposition 2, with its proof's constants.

    beta = R sqrt(2 ln(2/alpha) + ln det V - d ln(M rho_min)) + sqrt(M rho_max) + kappa sqrt(M).
    M counts the silos that share the estimator. ln det V stands without the factor d it is printed
    with, as its proof has it. The bound holds for one silo's order of events; where every silo has
    an order of its own (without lazy updates), "exact" takes it once for each: ln(2 M / alpha).
    Without a server every clique has an order of its own in every estimator.
    Silos with noise of their ``own`` have their own bounds, of which ``found`` is the mean.
    """
    problem, alpha = federation.problem, config.failure_probability
    m = problem.silos
    orders = federation.gamma * (federation.cliques if released_only else federation.all.silos)
    counted = config.calibration == "exact"
    base = 2.0 * math.log(2.0 * (orders if counted else 1) / alpha)
    low, high = m * found.rho_min, m * found.rho_max
    lam = np.array([low, m * found.shift])
    offset = math.sqrt(high) + found.kappa * math.sqrt(m)
    ordered = config.schedule == "fixed" or released_only or federation.all.silos == 1
    conditions = (
        *reward_conditions(problem, clip),
        Condition(
            "every silo's regularizer lies between its own rho_min and rho_max"
            if own
            else "every silo's regularizer lies between rho_min and rho_max",
            found.bounded,
        ),
        Condition("kappa exceeds the bias noise in every release", found.biased),
        Condition(
            "one order of events serves all silos, or the bound is taken for each",
            (orders == 1 or counted) and ordered,
        ),
        Condition(
            "the radius is that of Proposition 2 at least "
            f"(multiplier {config.radius_multiplier:g})",
            config.radius_multiplier >= 1.0,
        ),
    )
    return Theory(
        regularizer=lam,
        lambda_min=np.full(2, low),
        lambda_max=np.full(2, high),
        nu=np.full(2, found.kappa * math.sqrt(m)),
        radius=Radius(
            config.radius_multiplier,
            problem.reward_scale,
            base,
            np.full(2, offset),
            np.full(2, low),
            determinant=True,
            anchor=low,
        ),
        conditions=conditions,
    )


def threshold_of(config: FedUCBConfig, federation: Federation, found: Constants) -> float:
    """D: a number as given, or by the rule that ``communication`` names."""
    problem, low, high = federation.problem, found.rho_min, found.rho_max
    if not isinstance(config.communication, str):
        return float(config.communication)
    if federation.whole is None:
        sizes = problem.horizon, problem.silos, problem.dimension
        return threshold(config.communication, *sizes, low, high)
    if config.communication != "log-T":
        raise InputError(
            'communication must be "log-T", "MT" or a number without a server, got '
            f'"{config.communication}"'
        )
    sizes = federation.whole.horizon, problem.dimension, federation.gamma
    # Algorithm 3 divides by 1 + L^2 (line 6).
    return decentralised_threshold(*sizes, low, high) / 2.0


def trigger(
    config: FedUCBConfig, federation: Federation, found: Constants, noise: Privatizer | None
) -> Trigger | None:
    """The trigger of the schedule; None where the rounds of synchronisation are fixed."""
    if config.schedule == "fixed":
        return None
    bar = threshold_of(config, federation, found)
    # Without a server all silos have heard by the estimator's next round, and report after it.
    delay = 0 if federation.whole is None else 1
    if config.schedule == "determinant":
        extra = federation.problem.silos * (found.rho_max - found.rho_min)
        return Trigger(DETERMINANT, bar, extra, delay=delay)
    assert noise is not None
    std = noise.schedule_std, math.sqrt(2.0) * noise.schedule_std
    return Trigger(PRIVATE_DETERMINANT, bar, std=std, delay=delay)


# ---- Bound curves --------------------------------------------------------------------------------


def centralised_bound_curves(
    config: Any, problem: ProblemSpec, found: Constants, threshold: float, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Theorem 1 (its proof's two terms) and Proposition 1 (as the appendix has it), by round."""
    d, pair = problem.dimension, (found.rho_min, found.rho_max)
    others = found.kappa, problem.reward_scale, config.failure_probability
    at = [int(t) for t in rounds]
    # The trigger's own M (rho_max - rho_min) I fires, too, which no proof counts.
    proven = "" if pair[0] == pair[1] else ", proven without noise"
    regret = [theorem_1_two_terms(t, problem.silos, d, threshold, *pair, *others) for t in at]
    return {
        # Theorem 1 assumes that silos use their own batch at once: it does not cover lazy = true.
        **({} if config.lazy else {"theorem-1": regret}),
        f"synchronisations-proposition-1{proven}": [
            proposition_1_appendix(t, d, threshold, *pair) for t in at
        ],
    }


def decentralised_bound_curves(
    config: Any,
    problem: ProblemSpec,
    found: Constants,
    threshold: float,
    sizes: Sequence[int],
    gamma: int,
    rounds: np.ndarray,
) -> dict[str, list[float]]:
    """Theorem 2 (its proof's sum over cliques of ``sizes`` and estimators), by round."""
    if config.lazy:
        return {}
    pair = found.rho_min, found.rho_max
    others = found.kappa, problem.reward_scale, config.failure_probability
    return {
        "theorem-2": [
            theorem_2_two_terms(int(t), sizes, problem.dimension, threshold, *pair, *others, gamma)
            for t in rounds
        ]
    }
