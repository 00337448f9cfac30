"""Regularizer, confidence radius, trigger and bound curves of a FedUCB curve.

All functions are about the silos that share one estimator (`Federation`). With a server these are
all silos, without a server the silos of one clique. `feducb` builds plans from these functions, and
its docstring lists the deviations from dubey-pentland-2020. The paper's constants and bounds, as
functions of numbers, are in `feducb_bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.feducb_bounds import (
    Sizes,
    Trees,
    beta_bar,
    bias_bound,
    bias_bound_from_std,
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

#: Without privacy a silo's regularizer is rho_min I, and this is the default of rho_min.
PLAIN_RHO = 1.0


@dataclass(frozen=True)
class Federation:
    """The silos that share one estimator, and the federation that they belong to.

    With a server all silos share the estimator in all rounds, and ``whole`` is None. Without a
    server the silos of a clique share it in 1 / gamma of the rounds. The failure probability is
    then split over all silos, estimators and cliques.

    Parameters
    ----------
    problem : ProblemSpec
        The silos and the rounds of this estimator.
    whole : ProblemSpec, optional
        All silos and all rounds of the federation.
    gamma : int, default 1
        Number of estimators.
    cliques : int, default 1
        Number of cliques of the federation.
    """

    problem: ProblemSpec
    whole: ProblemSpec | None = None
    gamma: int = 1
    cliques: int = 1

    @property
    def all(self) -> ProblemSpec:
        """The problem of the federation with all silos and all rounds."""
        return self.whole or self.problem


@dataclass(frozen=True)
class Constants:
    """Bounds on the regularizer H and the noise h in the bias vector of one silo.

    Parameters
    ----------
    rho_min, rho_max : float
        Bounds with rho_min I <= H <= rho_max I.
    kappa : float
        Bound on the norm of h that is weighted by H^-1.
    bounded : bool
        True if rho_min and rho_max are proven for the noise of the plan, for all releases of all
        silos together, with probability 1 - alpha / 4.
    biased : bool
        True if kappa is proven for the noise of the plan, for all releases of all silos together,
        with probability 1 - alpha / 4.
    """

    rho_min: float
    rho_max: float
    kappa: float
    bounded: bool = True
    biased: bool = True

    @property
    def shift(self) -> float:
        """(rho_min + rho_max) / 2, the multiple of I that is added to a silo's prefix sum."""
        return (self.rho_min + self.rho_max) / 2.0


def constants(
    config: FedUCBConfig,
    federation: Federation,
    noise: Privatizer | None,
    silo_privatizers: tuple[Privatizer, ...] = (),
) -> Constants:
    """Return rho_min, rho_max and kappa: bounds on one silo's regularizer and on its bias noise.

    rho_min is Lambda, a bound on the operator norm of the noise, and rho_max = 3 Lambda. With
    calibration "theorem", Lambda and kappa are computed as printed in the paper, with "exact" from
    the noise. If the key ``rho_min`` is set, it replaces Lambda.

    ``silo_privatizers`` is given if the noise differs between the M silos. Then silo i has the
    bounds rho_min_i, rho_max_i and kappa_i. The function returns the mean of the rho_min_i, the
    mean of the rho_max_i, and the root of the mean of the kappa_i^2. This is sufficient, because
    proofs use only sums over silos. Let H_i be the regularizer of silo i, and h_i the noise in its
    bias vector. Then M rho_min I <= sum H_i <= M rho_max I. For h = sum h_i and any H_i > 0,
    h^T (sum H_i)^-1 h <= sum h_i^T H_i^-1 h_i <= M kappa^2, because (h, H) -> h^T H^-1 h is convex
    and homogeneous, and so subadditive. The constants of each silo include the union bound over all
    M silos.
    """
    if silo_privatizers:
        constants_of = {p: constants(config, federation, p) for p in set(silo_privatizers)}
        by_silo = [constants_of[p] for p in silo_privatizers]
        return Constants(
            sum(c.rho_min for c in by_silo) / len(by_silo),
            sum(c.rho_max for c in by_silo) / len(by_silo),
            math.sqrt(sum(c.kappa**2 for c in by_silo) / len(by_silo)),
            bounded=all(c.bounded for c in by_silo),
            biased=all(c.biased for c in by_silo),
        )
    if noise is None:
        rho = PLAIN_RHO if config.rho_min is None else config.rho_min
        return Constants(rho, rho, 0.0)
    trees = Trees(
        dimension=federation.problem.dimension,
        silos=federation.all.silos,
        releases=max(1, noise.releases),
        failure_probability=config.failure_probability,
        gamma=federation.gamma,
    )
    proven_rho, budget = noise_bound_from_std(trees, noise.noise_std), noise.budget
    if config.rho_min is not None:
        rho = config.rho_min
    elif noise.calibration == "theorem":
        rho = noise_bound(trees, budget.epsilon, budget.delta)
    else:
        rho = proven_rho
    proven_kappa = bias_bound_from_std(trees, noise.noise_std, rho)
    kappa = proven_kappa
    if noise.calibration == "theorem":
        kappa = bias_bound(trees, budget.epsilon)
    return Constants(rho, 3.0 * rho, kappa, bounded=rho >= proven_rho, biased=kappa >= proven_kappa)


def proposition_2(
    config: FedUCBConfig,
    federation: Federation,
    numbers: Constants,
    clip: Clip | None,
    released_only: bool,
    noise_differs: bool = False,
) -> Theory:
    """Return the radius of Proposition 2, with the constants and the conditions of its proof.

    beta = R sqrt(2 ln(2/alpha) + ln det V - d ln(M rho_min)) + sqrt(M rho_max) + kappa sqrt(M),
    where M is the number of silos that share the estimator, V its regularized Gram matrix, d the
    dimension, R the reward scale and alpha the failure probability. ``numbers`` is the result of
    `constants` and holds rho_min, rho_max and kappa. ln det V has no factor d, as in the proof. The
    printed statement has the factor.

    The proof sorts all rounds of all silos into one order. With lazy updates and a server, one
    order is enough. With lazy updates and no server, each clique needs a different order in each
    estimator. Without lazy updates, each silo needs a different order in each estimator.
    Calibration "exact" uses a union bound over all n orders: ln(2 n / alpha) instead of
    ln(2 / alpha).

    ``clip`` holds the clipping bounds of records. ``released_only`` is true if actions depend on
    synchronised statistics only, for example with lazy updates. ``noise_differs`` is true if the
    silos' noise differs; ``numbers`` then holds averages over silos.
    """
    problem, alpha = federation.problem, config.failure_probability
    m = problem.silos
    orders = federation.gamma * (federation.cliques if released_only else federation.all.silos)
    union_bound = config.calibration == "exact"
    base = 2.0 * math.log(2.0 * (orders if union_bound else 1) / alpha)
    low, high = m * numbers.rho_min, m * numbers.rho_max
    lam = np.array([low, m * numbers.shift])
    offset = math.sqrt(high) + numbers.kappa * math.sqrt(m)
    ordered = config.schedule == "fixed" or released_only or federation.all.silos == 1
    conditions = (
        *reward_conditions(problem, clip),
        Condition(
            "every silo's regularizer lies between its own rho_min and rho_max"
            if noise_differs
            else "every silo's regularizer lies between rho_min and rho_max",
            numbers.bounded,
        ),
        Condition("kappa exceeds the bias noise in every release", numbers.biased),
        Condition(
            "one order of rounds holds for all silos, or a union bound is used",
            (orders == 1 or union_bound) and ordered,
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
        nu=np.full(2, numbers.kappa * math.sqrt(m)),
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


def sizes_of(
    problem: ProblemSpec, numbers: Constants, horizon: int | None = None, gamma: int = 1
) -> Sizes:
    """Return the `Sizes` of a problem, which the paper's bounds take as an argument.

    ``numbers`` has the bounds on the regularizers. ``horizon`` replaces the horizon of the problem,
    and ``gamma`` is the number of estimators.
    """
    return Sizes(
        horizon=problem.horizon if horizon is None else horizon,
        silos=problem.silos,
        dimension=problem.dimension,
        rho_min=numbers.rho_min,
        rho_max=numbers.rho_max,
        gamma=gamma,
    )


def threshold_of(config: FedUCBConfig, federation: Federation, numbers: Constants) -> float:
    """Return D, the threshold of the trigger (the rule that decides when silos synchronise).

    D is the key ``communication`` if this key is a number. Otherwise the key names a rule of
    dubey-pentland-2020 that computes D. Without a server, the D of such a rule is divided by
    1 + L^2 = 2, where L = 1 bounds feature norms.
    """
    if not isinstance(config.communication, str):
        return float(config.communication)
    if federation.whole is None:  # with a server
        return threshold(config.communication, sizes_of(federation.problem, numbers))
    if config.communication != "log-T":
        raise InputError(
            'communication must be "log-T", "MT" or a number without a server, got '
            f'"{config.communication}"'
        )
    sizes = sizes_of(federation.whole, numbers, gamma=federation.gamma)
    # Line 6 of the paper's Algorithm 3 divides D by 1 + L^2.
    return threshold("log-T", sizes) / 2.0


def trigger(
    config: FedUCBConfig, federation: Federation, numbers: Constants, noise: Privatizer | None
) -> Trigger | None:
    """Return the trigger, the rule that decides from data when silos synchronise.

    Return None if the rounds of synchronisation are fixed. ``noise`` is the noise of one silo, used
    only for the schedule "private-determinant".
    """
    if config.schedule == "fixed":
        return None
    threshold_d = threshold_of(config, federation, numbers)
    # `delay` counts only the rounds in which this estimator is used. With a server (`whole` is
    # None) silos report at once. Without a server they report one such round later, because the
    # request must first reach all silos of the clique.
    delay = 0 if federation.whole is None else 1
    if config.schedule == "determinant":
        # The paper adds M (rho_max - rho_min) I to the matrix whose determinant is compared.
        extra = federation.problem.silos * (numbers.rho_max - numbers.rho_min)
        return Trigger(DETERMINANT, threshold_d, extra, delay=delay)
    assert noise is not None
    # Standard deviations of the schedule's noise matrix, off and on the diagonal.
    std = noise.schedule_std, math.sqrt(2.0) * noise.schedule_std
    return Trigger(PRIVATE_DETERMINANT, threshold_d, std=std, delay=delay)


# ---- Bound curves --------------------------------------------------------------------------------


def centralised_bound_curves(
    config: Any, problem: ProblemSpec, numbers: Constants, threshold: float, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Return bounds on regret and on synchronisations: name of the bound -> values at ``rounds``.

    The bound on group regret is `theorem_1_two_terms`. The bound on the number of synchronisations
    is `proposition_1_appendix`. ``numbers`` are the result of `constants`, and ``threshold`` is D.
    """
    radius_arguments = numbers.kappa, problem.reward_scale, config.failure_probability
    sizes = [sizes_of(problem, numbers, int(t)) for t in rounds]
    # With noise, the trigger's determinant has the term M (rho_max - rho_min) I, which may fire the
    # trigger. The proof of Proposition 1 ignores this term.
    suffix = "" if numbers.rho_min == numbers.rho_max else ", proven without noise"
    regret = [theorem_1_two_terms(s, threshold, beta_bar(s, *radius_arguments)) for s in sizes]
    return {
        # Theorem 1 is for silos that use their current batch at once, and not for lazy = true.
        **({} if config.lazy else {"theorem-1": regret}),
        f"synchronisations-proposition-1{suffix}": [
            proposition_1_appendix(s, threshold) for s in sizes
        ],
    }


def decentralised_bound_curves(
    config: Any,
    problem: ProblemSpec,
    numbers: Constants,
    threshold: float,
    clique_sizes: Sequence[int],
    gamma: int,
    rounds: np.ndarray,
) -> dict[str, list[float]]:
    """Return the bound of Theorem 2 on group regret: {"theorem-2": its values at ``rounds``}.

    The bound is `theorem_2_two_terms` for cliques of these sizes. It is for silos that use their
    current batch at once, so with lazy updates the result is empty. ``numbers`` are the result of
    `constants`, ``threshold`` is D before its division by 1 + L^2, and ``gamma`` is the number of
    estimators.
    """
    if config.lazy:
        return {}
    radius_arguments = numbers.kappa, problem.reward_scale, config.failure_probability
    sizes = [sizes_of(problem, numbers, int(t), gamma) for t in rounds]
    return {
        "theorem-2": [
            theorem_2_two_terms(s, clique_sizes, threshold, beta_bar(s, *radius_arguments))
            for s in sizes
        ]
    }
