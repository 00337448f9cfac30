"""Regularizer and confidence radius computed from the distribution of the noise, and regret bounds.

A `Theory` holds the quantities of the proof of a regret bound: lambda, lambda_min, lambda_max, nu,
the confidence radius computed from them, and the conditions of the proof with whether they hold.
The direct radius is new in fastfed, and docs/radius.md has its proofs.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import CentredNorm, ProblemSpec
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, ClockedPlan, DelayedPlan, Plan, Radius
from fastfed.protocols.schedule import Schedule

if TYPE_CHECKING:
    from fastfed.bandits.system import Config

RADII = ("direct", "lemma-c2", "lemma-c4", "published-code")
REGULARIZERS = ("from-noise", "published-code")

#: The constant c of the direct radius (see `_direct_radius`), as a share of the bound on ||N||, the
#: norm of the noise in V. The proof holds for any positive value.
ANCHOR_SHARE = 0.1
#: The direct radius may lower the regularizer lambda once the smallest eigenvalue of V is at least
#: this number times (||N|| + c). The proof holds for any positive value.
FLOOR = 1.0


@dataclass(frozen=True)
class Theory:
    """The quantities of the proof of a curve's regret bound, for each release k = 0..K.

    N is the noise in the synchronised sum of x x', and h the noise in the sum of x y.

    Parameters
    ----------
    regularizer : ndarray, shape (K + 1,)
        lambda. The direct radius may lower lambda; this is then its largest value.
    lambda_min, lambda_max : ndarray, shape (K + 1,)
        Bounds on the eigenvalues of lambda I + N.
    nu : ndarray, shape (K + 1,)
        Bound on the norm of h that is weighted by the inverse of lambda I + N.
    radius : Radius
        Parameters from which drivers compute the confidence radius of each round.
    conditions : tuple of Condition
        Conditions of the regret bound, and whether they hold.
    most_regret : float, default 1
        Upper bound on the regret of one round, at least 1.
    """

    regularizer: np.ndarray
    lambda_min: np.ndarray
    lambda_max: np.ndarray
    nu: np.ndarray
    radius: Radius
    conditions: tuple[Condition, ...]
    most_regret: float = 1.0

    @property
    def proven(self) -> bool:
        """True if the confidence sets are proven to hold with probability 1 - alpha."""
        return all(c.holds for c in self.conditions)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveat that a certificate shows about the regret bound, as a tuple of one text.

        The tuple is empty if the bound is proven.
        """
        failing = [c.text for c in self.conditions if not c.holds]
        return (
            (f"the regret bound is unproven here; missing: {'; '.join(failing)}",)
            if failing
            else ()
        )


def published_regularizer(
    problem: ProblemSpec, distribution: NoiseDistribution, alpha: float
) -> float:
    """Return the regularizer lambda of the published experiment code of zhou-chowdhury-2024.

    ``alpha`` is the failure probability of the confidence sets.
    """
    if distribution.none:
        return math.sqrt(problem.silos)
    levels = distribution.releases.bit_length()
    std = (
        distribution.node.bias if distribution.published_std is None else distribution.published_std
    )
    norm_factor = math.sqrt(levels + math.log(1.0 / alpha)) + math.sqrt(problem.dimension)
    return math.sqrt(distribution.noises * levels) * std * norm_factor


def printed_regularizer(distribution: NoiseDistribution, dimension: int, alpha: float) -> float:
    """Return the regularizer lambda of chowdhury-zhou-2022, Lemma A.4, for the noisiest release.

    The lemma states lambda only up to a constant, which is taken as 1. ``alpha`` is the failure
    probability of the confidence sets.
    """
    if distribution.none:
        return 1.0
    std = distribution.node.bias * float(distribution.scales.max())
    return max(
        1.0, std * (math.sqrt(dimension) + math.sqrt(math.log(distribution.releases / alpha)))
    )


def make_theory(
    config: Config,
    problem: ProblemSpec,
    distribution: NoiseDistribution,
    *,
    failure_probability: float,
    clip: Clip | None,
    released_only: bool,
    union: int,
    ordered: bool = True,
) -> Theory:
    """Compute the regularizer and the confidence radius of one curve at each release k = 0..K.

    Parameters
    ----------
    config : Config
        Keys of the curve: the rule for lambda (or a number), the factor on the radius, bounds on
        theta*, and the rule ``radius`` for the confidence radius:

        - "direct": see `_direct_radius` and docs/radius.md.
        - "lemma-c2": zhou-chowdhury-2024, Lemma C.2, equation (4), with lambda_min = lambda -
          ||N||, lambda_max = lambda + ||N|| and nu = ||h|| / sqrt(lambda_min). Half of alpha is
          for the rewards, a quarter each for N and for h. The bound for the rewards is a union over
          the distinct values of lambda_min.
        - "lemma-c4": zhou-chowdhury-2024, Lemma C.4 as printed, without constants of its proof.
        - "published-code": the radius of the experiment code of zhou-chowdhury-2024.
        - "lemma-a2", "lemma-a4": the corresponding lemmas for one agent (chowdhury-zhou-2022,
          Appendix A).
    problem : ProblemSpec
        Sizes (silos M, rounds T, dimension d), and guarantees about the data.
    distribution : NoiseDistribution
        The distribution of the noise in the synchronised sums.
    failure_probability : float
        alpha, in (0, 1).
    clip : Clip or None
        Bounds that features and rewards are clipped to.
    released_only : bool
        True if actions are chosen from synchronised statistics only. One self-normalised bound then
        holds for all silos. If it is False, the V of each silo contains its local batch, and a
        union bound over ``union`` silos is used: ln(2 M / alpha) where the paper has ln(2 / alpha).
    union : int
        M, the number of silos in this union bound.
    ordered : bool, default True
        True if the rounds of synchronisation are known in advance, which the union bound over silos
        needs. Its proof sorts the rounds of all silos in a different order for each silo, and the
        end of a batch must not depend on rounds that come later in this order.
    """
    radius, regularizer = config.radius, config.regularizer_rule
    alpha = failure_probability
    if problem.arms:
        # V is diagonal, so each of the K arms has a confidence set in one dimension, which may fail
        # with probability alpha / K (docs/arms.md).
        problem, alpha = replace(problem, dimension=1), alpha / problem.dimension
    centred, d = config.centred_norm(problem), problem.dimension
    noise_alpha = 0.0 if distribution.none else alpha / 2.0
    n_bound = distribution.operator_norms(d, alpha / 4.0)
    union = 1 if released_only else union
    reward_alpha = alpha - noise_alpha
    if radius == "direct":
        lam, radius_numbers, definite = _direct_radius(
            distribution, problem, regularizer, n_bound, alpha, reward_alpha / union, centred
        )
        lambda_min = np.where(definite, lam - n_bound, lam)
        lambda_max, nu = lam + n_bound, np.zeros_like(lam)
    else:
        if not isinstance(regularizer, str):
            lam = np.full_like(n_bound, regularizer)
        elif regularizer == "from-noise":
            lam = np.maximum(1.0, 2.0 * n_bound)
        elif regularizer == "lemma-a4":
            lam = np.full_like(n_bound, printed_regularizer(distribution, d, alpha))
        else:
            lam = np.full_like(n_bound, published_regularizer(problem, distribution, alpha))
        definite = lam > n_bound
        # If lambda is below the bound on the noise, no positive lambda_min exists. The code then
        # uses lambda, and a condition below reports that the radius is unproven.
        lambda_min = np.where(definite, lam - n_bound, lam)
        lambda_max = lam + n_bound
        nu = distribution.vector_norms(d, alpha / 4.0) / np.sqrt(lambda_min)
        if radius in ("lemma-c2", "lemma-a2"):
            union *= len(np.unique(lambda_min))
            base = 2.0 * math.log(union / reward_alpha)
            offset, log_lambda = np.sqrt(lambda_max) + nu, lambda_min
        elif radius in ("lemma-c4", "lemma-a4"):
            base, offset, log_lambda = 2.0 * math.log(2.0 / alpha), np.sqrt(lam), lam
        else:
            base, offset, log_lambda = math.log(1.0 / alpha), np.sqrt(lam * d), lam
        radius_numbers = Radius(1.0, problem.reward_scale, base, offset, log_lambda)
    # The published code sets R = 1 if rewards have no noise.
    scale = 1.0 if radius == "published-code" and problem.noise_free else problem.reward_scale
    conditions = (
        *reward_conditions(problem, clip, any_norm=radius == "direct"),
        Condition(
            "the regularizer exceeds the noise's operator norm with high probability",
            bool(definite.all()),
        ),
        Condition(
            f'the radius is a proven one ("{radius}", multiplier {config.radius_multiplier:g})',
            radius in ("direct", "lemma-c2", "lemma-a2") and config.radius_multiplier >= 1.0,
        ),
    )
    if not (released_only or ordered or union == 1):
        conditions += (Condition("each silo's own order of events is one of the proof's", False),)
    reward_low, reward_high = problem.reward_range or (0.0, 1.0)
    return Theory(
        regularizer=lam,
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        nu=nu,
        radius=replace(radius_numbers, multiplier=config.radius_multiplier, scale=scale),
        conditions=conditions,
        most_regret=max(1.0, reward_high - reward_low),
    )


def reward_conditions(
    problem: ProblemSpec, clip: Clip | None, any_norm: bool = False
) -> tuple[Condition, ...]:
    """Return the conditions on the environment's rewards that every proof in this module needs.

    With an intercept of kappa > 1, ||theta*|| may exceed 1, and a condition fails. Pass
    ``any_norm`` = True for a proof that uses a larger bound on ||theta*|| in this case.
    """
    if problem.arms:
        mean = Condition("an arm has one mean reward, in [0, 1], at all silos", True)
        return (mean, _unclipped(problem, clip))
    norm_above_1 = problem.intercept not in (None, 1.0)
    # With one silo, the theta* of that silo is the theta* of the federation.
    linear = problem.linear or (problem.silos == 1 and problem.linear_by_silo)
    return (
        Condition(
            "the expected reward is <x, theta*> with ||x|| <= 1, ||theta*|| <= 1",
            linear and not norm_above_1,
        )
        if not (norm_above_1 and any_norm)
        else Condition(
            "the expected reward is <x, theta*> and lies in the range of rewards for every x of "
            "the allowed norm",
            linear,
        ),
        _unclipped(problem, clip),
    )


def _unclipped(problem: ProblemSpec, clip: Clip | None) -> Condition:
    """Return the condition that rewards are bounded and never outside of the clipping bounds."""
    rewards_fit = problem.reward_range is not None and (
        clip is None
        or (clip.low <= problem.reward_range[0] <= problem.reward_range[1] <= clip.high)
    )
    return Condition("rewards are bounded, and clipping does not move their mean", rewards_fit)


def _direct_radius(
    distribution: NoiseDistribution,
    problem: ProblemSpec,
    regularizer: str | float,
    n_bound: np.ndarray,
    alpha: float,
    reward_alpha: float,
    centred: CentredNorm | None = None,
) -> tuple[np.ndarray, Radius, np.ndarray]:
    """Compute the direct radius, which bounds |<x, theta* - theta_hat>| without using ||.||_V.

    Return a tuple of lambda (K + 1,), the parameters of the radius, and an array (K + 1,) that is
    true where lambda > n. ``n_bound`` (K + 1,) bounds n = ||N|| at each release, except with
    probability alpha / 4. ``reward_alpha`` is the failure probability of event (3) below.
    ``centred`` holds bounds on theta* - theta0 if rewards are centred, or if ||theta*|| may
    exceed 1.

    Let G and u be the raw sums, N and h their noise, V = lambda I + G + N, theta_hat = V^-1 (u + h)
    and S = sum x eta. Then
        theta* - theta_hat = V^-1 (lambda theta* + (N theta* - h) - S).

    Three events have probability 1 - alpha together:
        (1) N >= -n I at every release;
        (2) ||N theta* - h|| <= E at every release;
        (3) ||S||^2_{(G + c I)^-1} <= R^2 (2 ln(1 / alpha') + ln det(G + c I) - d ln c) in all
            rounds, for one fixed c (Abbasi-Yadkori et al. 2011, Theorem 1).
    In (3) all privacy noise counts as drawn before the first round. Without lazy updates, each silo
    uses its own order of rounds, with its local batch before the batches of other silos.

    On these events, for any lambda >= 0, which may depend on V,
        G + c I <= V + (n + c - lambda) I <= f V.
    Here f = 1 if lambda >= n + c. Otherwise f = 1 + (n + c - lambda) / floor, and every eigenvalue
    of V must be at least floor. Hence
        |<x, theta* - theta_hat>| <= R sqrt(f (2 ln(1 / alpha') + ln det V + d ln(f / c)))
                                     ||x||_{V^-1} + (lambda + E) ||V^-1 x||.

    V is already private, so its determinant and eigenvalues may be used to choose lambda. Once G
    exceeds the noise, lambda can be lowered to 0, which halves the second term. If the bound on
    ||theta*|| is tau instead of 1, lambda tau replaces lambda in the second term (docs/centred.md).
    """
    n_max = float(n_bound.max())
    tau, along = (centred.tau, centred.along) if centred else (1.0, None)
    if not distribution.public_constant:
        along = None
    error = distribution.errors(problem.dimension, alpha / 4.0, tau, along)
    if isinstance(regularizer, str) and regularizer == "published-code":
        regularizer = published_regularizer(problem, distribution, alpha)
    if isinstance(regularizer, str):
        anchor = max(1.0, ANCHOR_SHARE * n_max)
        lam = n_bound + anchor
        floor = FLOOR * lam if not distribution.none else np.zeros_like(lam)
        floor[0] = 0.0
    else:
        lam = np.full_like(n_bound, regularizer)
        anchor = regularizer - n_max if regularizer > n_max else regularizer
        floor = np.zeros_like(lam)
    radius = Radius(
        1.0,
        problem.reward_scale,
        2.0 * math.log(1.0 / reward_alpha),
        np.zeros_like(lam),
        np.full_like(lam, anchor),
        determinant=True,
        direct=True,
        anchor=anchor,
        tau=tau,
        error_bound=error,
        floor=floor,
    )
    return lam, radius, lam > n_bound


def direct_regret_bound(plan: Plan, theory: Theory) -> float | None:
    """Return a bound on the group regret with explicit constants, for the direct radius.

    The bounds in `bandits.bounds` are orders of growth. This bound is a number, and often vacuous.
    It holds with probability 1 - failure_probability.

    Parameters
    ----------
    plan : Plan
        The curve's plan.
    theory : Theory
        The theory that the plan was made with.

    Returns
    -------
    float or None
        The bound on the sum of the regret of all silos. With rewards in [0, 1] it is vacuous if it
        is at least M T, because the regret of a round is at most 1. None if no proof covers the
        plan: for any other radius, a multiplier below 1, rewards or features that violate the
        theory's conditions, a federation without lazy updates, a schedule that depends on data,
        rewards that arrive late, or local rounds that use a posterior.

    Notes
    -----
    Proof, with the notation of docs/radius.md, on its three events (probability 1 - alpha):

    1. The regret of a round is at most 2 w, times the radius multiplier (>= 1), with
       w = beta ||x||_{V^-1} + gamma ||V^-1 x||.
    2. Let A = G + c I. If lambda was not lowered, V >= A >= c I and f = 1. If lambda was lowered,
       A <= f V, f <= 2, and V >= (n + c) I. So w <= C ||x||_{A^-1} with
       C = max(beta_1 + gamma / sqrt(c), sqrt(2) (beta_2 + gamma / sqrt(n + c))) and
       gamma <= tau (n + c) + E.
    3. V <= G + (2 n + c) I. The trace of the right side is at most rows + d (2 n + c). This bounds
       ln det V, and so beta_f = R sqrt(f (2 ln(1 / alpha') + ln det V + d ln(f / c))).
    4. A batch adds the rows of M B rounds to A. Let L be the growth of ln det A in the batch. The
       sum of L over all batches is at most Lambda = d ln(1 + rows / (d c)).
       Good batches have L <= ln 2. The sum of ||x||^2_{A^-1} over a good batch, with A at its
       start, is at most twice the sum with A at its end. The latter sum is at most L, because
       1 - 1/r <= ln r for each eigenvalue r. By the Cauchy-Schwarz inequality the regret of a good
       batch is at most 2 C sqrt(2 M B L).
       Bad batches have L > ln 2. There are at most Lambda / ln 2 of them, and each costs at most
       M B, times ``most_regret`` if rewards may differ by more than 1. If batches differ in length,
       the proof counts the longest batches as bad.
    5. By the Cauchy-Schwarz inequality over batches, regret is at most
       M B Lambda / ln 2 + 2 sqrt(2 Lambda sum_k M B_k C_k^2).

    A silo that never synchronises adds one row at a time. The proof is the same with M = B = 1, and
    there is no bad batch if c >= 1, because a row then at most doubles det A. With a sieve, step 1
    becomes: the regret of a round is at most 2 C ||x||_{A^-1}, see `sieve_widths`. If silos have
    their own clocks, batches are those of single silos, see `_bound_with_clocks`.
    """
    if not (theory.proven and _direct_in_batches(plan)) or isinstance(plan, DelayedPlan):
        return None
    if isinstance(plan, ClockedPlan):
        return _bound_with_clocks(plan, theory)
    if plan.own is not None:
        if plan.own.bound is None:
            return None
        shared_bound = direct_regret_bound(replace(plan, own=None, horizon=plan.own.until), theory)
        return (
            None if shared_bound is None else shared_bound + plan.silos * local_round_regret(plan)
        )
    lengths, widths, growth = _widths_by_batch(plan, theory)
    unsynchronised = plan.batch_size == 0
    bad_regret = 0.0
    if not unsynchronised or plan.radius.anchor < 1.0:
        bad_regret = theory.most_regret * _bad_rounds(plan, lengths, growth)[-1]
    good_regret = 2.0 * math.sqrt(2.0 * growth[-1] * float((lengths * widths**2).sum()))
    # If the slack of a sieve is multiplied by `sieve_growth`, so is the bound on a round's regret.
    good_regret *= plan.radius.multiplier * max(1.0, plan.sieve_growth)
    return float((plan.silos if unsynchronised else 1) * (bad_regret + good_regret))


def _bound_with_clocks(plan: ClockedPlan, theory: Theory) -> float:
    """Return the bound of `direct_regret_bound` if silos report on separate clocks.

    Notes
    -----
    Proof. A view v is the sum of the latest reports of all silos after exchange v = 0..V. Steps 1
    to 3 of `direct_regret_bound` hold for a silo with view v: let G be the sum of x x' over the
    rows in this view, A_v = G + c I, and C_v its width C. A silo that chose x with view v reports x
    in an exchange w > v. If it never reports x, let w = V + 1, an exchange in which all remaining
    rows are added. The intervals (v, w] of one silo are disjoint.

    Good batches of a silo have ln det A_w - ln det A_v <= ln 2. So A_w <= 2 A_v, and
    ||x||^2_{A_v^-1} <= 2 ||x||^2_{A_w^-1}. The sum of ||x||^2_{A_w^-1} over all rows of exchange w
    is at most ln det A_w - ln det A_{w-1}, and over all rows at most Lambda. By the Cauchy-Schwarz
    inequality all good batches together cost at most 2 sqrt(2 Lambda sum C_v^2), summed over rows.
    Each silo has at most Lambda / ln 2 bad batches. Count its longest ones as bad.
    """
    clocks, d, c = plan.clocks, plan.dimension, plan.radius.anchor
    views = np.arange(len(clocks.rows))
    widths = _widths_of_releases(plan, theory, views, clocks.rows)
    served = clocks.serves.cumsum(axis=1)
    growth = d * math.log1p(float(served[:, -1].sum()) / (d * c))
    most_bad = math.floor(growth / math.log(2.0))
    squares = bad_regret = 0.0
    for silo in range(plan.silos):
        exchanges = np.flatnonzero(clocks.sends[:, silo])
        ends = np.append(served[silo, clocks.ticks[exchanges] - 1], served[silo, -1])
        lengths = np.diff(ends, prepend=0)
        squares += float((lengths * widths[np.append(0, exchanges + 1)] ** 2).sum())
        bad_regret += float(np.sort(lengths)[::-1][:most_bad].sum())
    good_regret = 2.0 * math.sqrt(2.0 * growth * squares)
    good_regret *= plan.radius.multiplier * max(1.0, plan.sieve_growth)
    return theory.most_regret * bad_regret + good_regret


def local_round_regret(plan: Plan) -> float:
    """Return a bound on one silo's regret in local rounds, for rule "min-of-bounds" or a sieve.

    The bound is 2 m (R sqrt(b + d ln(1 + T/d)) + S) sqrt(2 T d ln(1 + T/d)), where
    ``plan.own.bound`` is (m, R, b, S). docs/own-rounds.md calls it B(T). The regret of a round is
    at most twice the width of its confidence set. With a sieve it is at most twice the largest
    width, times the factor on the sieve's slack. The Cauchy-Schwarz inequality and the elliptical
    potential lemma then bound the sum over all rounds of the silo.
    """
    assert plan.own is not None and plan.own.bound is not None
    multiplier, scale, base, offset = plan.own.bound
    growth = plan.dimension * math.log1p(plan.horizon / plan.dimension)
    width = multiplier * (scale * math.sqrt(base + growth) + offset)
    width *= max(1.0, plan.sieve_growth)
    return 2.0 * width * math.sqrt(2.0 * plan.horizon * growth)


def _direct_in_batches(plan: Plan) -> bool:
    """Return True if the proof of `direct_regret_bound` covers this kind of plan.

    The conditions on rewards and contexts are in the plan's theory, and are not checked here.
    """
    # `uses_batch`: actions depend on raw data of the current batch, which the proof does not allow.
    # This is so if updates are not lazy, unless there is a release after every round.
    uses_batch = plan.batch_size > 0 and plan.releases < plan.horizon and not plan.lazy
    unsupported = plan.trigger is not None or plan.policy != "ucb"
    return plan.radius.direct and not uses_batch and not unsupported


def _widths_by_batch(plan: Plan, theory: Theory) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Return the quantities of each batch in the proof of `direct_regret_bound`, as a tuple.

    Its members are an array of the rounds of each batch, counted over all silos, an array of the
    width C in step 2 of the proof, and a list of Lambda = d ln(1 + rows / (d c)) at the end of each
    batch. If silos never synchronise, each round of one silo is a batch.
    """
    radius = plan.radius
    d, c = plan.dimension, radius.anchor
    unsynchronised = plan.batch_size == 0
    silos = 1 if unsynchronised else plan.silos
    ends = (
        np.arange(1, plan.horizon + 1)
        if unsynchronised
        else Schedule(plan.horizon, plan.batch_size, plan.release_rounds).ends
    )
    starts = np.unique(np.append(0, ends[ends < plan.horizon]))
    entry = np.minimum(np.arange(len(starts)), len(radius.error_bound) - 1)
    widths = _widths_of_releases(plan, theory, entry, silos * starts)
    lengths = np.diff(starts, append=plan.horizon) * silos
    growth = [d * math.log1p(float(rows) / (d * c)) for rows in lengths.cumsum()]
    return lengths, widths, growth


def _widths_of_releases(
    plan: Plan, theory: Theory, entry: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the width C in step 2 of the proof of `direct_regret_bound` for n releases, (n,).

    ``entry`` (n,) holds the index of each release in the arrays of the radius, and ``rows`` (n,)
    its number of data points in V.
    """
    radius = plan.radius
    d, c = plan.coordinates, radius.anchor
    n = np.maximum(theory.regularizer[entry] - c, 0.0)
    gamma = radius.tau * (n + c) + radius.error_bound[entry]
    rows_per_dimension = rows / d

    def beta(f: float) -> np.ndarray:
        """Return the bound on the radius beta_f in step 3 of the proof, (n,)."""
        log_det = d * np.log(f * (2.0 * n + c + rows_per_dimension) / c)
        width: np.ndarray = radius.scale * np.sqrt(f * (radius.base + log_det))
        return width

    widths = beta(1.0) + gamma / math.sqrt(c)
    lowered = math.sqrt(2.0) * (beta(2.0) + gamma / np.sqrt(n + c))
    bounded: np.ndarray = np.where(radius.floor[entry] > 0.0, np.maximum(widths, lowered), widths)
    return bounded


def _bad_rounds(plan: Plan, lengths: np.ndarray, growth: list[float]) -> list[float]:
    """Return a bound on the rounds in bad batches up to the end of each batch, over all silos.

    A batch is bad if it raises ln det A by more than ln 2 (step 4 of `direct_regret_bound`), so
    there are at most Lambda / ln 2 bad batches. ``lengths`` are the rounds of each batch, and
    ``growth`` is Lambda at its end, both from `_widths_by_batch`.
    """
    if not plan.release_rounds:
        longest = np.maximum.accumulate(lengths)
        return [float(n * g / math.log(2.0)) for n, g in zip(longest, growth, strict=True)]
    # Batches differ in length, and in the worst case the longest batches are bad. One heap holds
    # the longest batches so far, as many as can be bad. The other heap holds all shorter batches,
    # negated. The largest number of bad batches never decreases.
    bad_rounds, longest_batches, shorter_batches = [], list[int](), list[int]()
    for n, g in zip(lengths.tolist(), growth, strict=True):
        heapq.heappush(shorter_batches, -heapq.heappushpop(longest_batches, n))
        while shorter_batches and len(longest_batches) < math.floor(g / math.log(2.0)):
            heapq.heappush(longest_batches, -heapq.heappop(shorter_batches))
        bad_rounds.append(float(sum(longest_batches)))
    return bad_rounds


def sieve_widths(plan: Plan, theory: Theory) -> tuple[float, ...]:
    """Return the widths C of `direct_regret_bound`, from which the slack of a sieve follows.

    Parameters
    ----------
    plan : Plan
        The curve's plan.
    theory : Theory
        The theory that the plan was made with.

    Returns
    -------
    tuple of float
        C after each release k = 0..K, times the radius multiplier. It is empty if silos never
        synchronise, because C then changes in every round and `Acting` computes it.

    Raises
    ------
    InputError
        If the proof does not cover this kind of plan: a radius other than "direct", updates that
        are not lazy, or batches whose ends depend on data. The theory's conditions are not checked.

    Notes
    -----
    Let w(x) = beta ||x||_{V^-1} + gamma ||V^-1 x|| and U(x) = <x, theta_hat> + w(x). An action a
    passes the sieve if <a, theta_hat> + (2 s - 1) w(a) is at least min(max U, R), where R is the
    largest mean reward. If the confidence sets hold, the best action x* has
    <x*, theta*> <= min(max U, R), so the regret of a is at most 2 s w(a). Let q bound the largest
    eigenvalue of V^-1. Then w(a) <= g ||a||_{A^-1} with
    g = sqrt(f) (beta + gamma sqrt(q)). With the slack s = max(1, C / g), the regret is at most
    2 C ||a||_{A^-1}, which is what the bound counts (docs/radius.md).
    """
    if not _direct_in_batches(plan):
        raise InputError(
            "a sieve needs batches that end after rounds known in advance, for which a regret "
            "bound is proven: choose a batch_size or release_rounds"
        )
    if not plan.batch_size:
        return ()
    # Extreme keys give infinite widths, which `check_numbers` refuses in a plan.
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(plan, ClockedPlan):
            views = np.arange(len(theory.regularizer))
            widths = _widths_of_releases(plan, theory, views, plan.clocks.rows)
        else:
            _, widths, _ = _widths_by_batch(plan, theory)
    # The batch after the last release may be empty.
    entries = np.minimum(np.arange(len(theory.regularizer)), len(widths) - 1)
    return tuple(plan.radius.multiplier * width for width in widths[entries].tolist())
