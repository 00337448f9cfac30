"""Regularizer and confidence radius from the noise's distribution, and the regret bound they give.

A `Theory` holds what the proof of a regret bound rests on: lambda, lambda_min, lambda_max, nu, the
radius made of them, and every condition with whether it holds. docs/radius.md has the proofs of the
direct radius, which is our own.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np

from fastfed._validate import InputError
from fastfed.bandits.noise_distributions import NoiseDistribution
from fastfed.bandits.problem import CentredNorm, ProblemSpec
from fastfed.privacy.certificate import Condition
from fastfed.protocols.plan import Clip, Plan, Radius
from fastfed.protocols.schedule import Schedule

RADII = ("direct", "lemma-c2", "lemma-c4", "published-code")
REGULARIZERS = ("from-noise", "published-code")

#: The direct radius' c as a share of the largest ||N||; any positive number is proven.
ANCHOR = 0.1
#: The least eigenvalue of V at which lambda falls, in units of ||N|| + c; likewise.
FLOOR = 1.0


@dataclass(frozen=True)
class Theory:
    """Foundations of a run's regret bound, by release k = 0..K.

    Parameters
    ----------
    regularizer : ndarray, shape (K + 1,)
        lambda; its largest value for the direct radius.
    lambda_min, lambda_max : ndarray, shape (K + 1,)
        Bounds on the eigenvalues of lambda I + N.
    nu : ndarray, shape (K + 1,)
        Bound on ||h|| in the inverse regularizer's norm.
    radius : Radius
        Numbers of the confidence radius, as drivers use them.
    conditions : tuple of Condition
        Conditions of the bound, and whether they hold.
    most_regret : float, default 1
        Most regret of one round, at least 1.
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
        """Caveats of a certificate about the regret bound: none if it is proven."""
        failing = [c.text for c in self.conditions if not c.holds]
        return (
            (f"the regret bound is unproven here; missing: {'; '.join(failing)}",)
            if failing
            else ()
        )


def published_regularizer(
    problem: ProblemSpec, distribution: NoiseDistribution, alpha: float
) -> float:
    """lambda of the published experiment code of zhou-chowdhury-2024, from its noise std s."""
    if distribution.none:
        return math.sqrt(problem.silos)
    n = distribution.releases.bit_length()
    std = (
        distribution.node.bias if distribution.published_std is None else distribution.published_std
    )
    spread = math.sqrt(n + math.log(1.0 / alpha)) + math.sqrt(problem.dimension)
    return math.sqrt(distribution.noises * n) * std * spread


def printed_regularizer(distribution: NoiseDistribution, dimension: int, alpha: float) -> float:
    """lambda of chowdhury-zhou-2022, Lemma A.4, its Theta taken as 1, from the noisiest release."""
    if distribution.none:
        return 1.0
    std = distribution.node.bias * float(distribution.scales.max())
    return max(
        1.0, std * (math.sqrt(dimension) + math.sqrt(math.log(distribution.releases / alpha)))
    )


def make_theory(
    problem: ProblemSpec,
    distribution: NoiseDistribution,
    *,
    radius: str,
    radius_multiplier: float,
    regularizer: str | float,
    failure_probability: float,
    clip: Clip | None,
    released_only: bool,
    union: int,
    ordered: bool = True,
    centred: CentredNorm | None = None,
) -> Theory:
    """Regularizer and confidence radius of one curve, at each release k = 0..K.

    Parameters
    ----------
    problem : ProblemSpec
        Sizes, and guarantees about the data.
    distribution : NoiseDistribution
        The noise in the synchronised sums.
    radius : str
        "direct": see `_direct` and docs/radius.md. "lemma-c2": zhou-chowdhury-2024, Lemma C.2,
        equation (4), with lambda_min = lambda - ||N||, lambda_max = lambda + ||N||, nu = ||h|| /
        sqrt(lambda_min), alpha halved over noise and rewards (and the noise half over N and h), and
        the bound taken once for each value of lambda_min that occurs. "lemma-c4": Lemma C.4 as
        printed, which drops constants of its own proof. "published-code": the experiment code's.
        "lemma-a2" and "lemma-a4" are the same lemmas of one agent (chowdhury-zhou-2022,
        Appendix A).
    radius_multiplier : float
        Factor > 0 on the radius.
    regularizer : str or float
        The rule for lambda, or its value.
    failure_probability : float
        alpha, in (0, 1).
    clip : Clip or None
        Bounds that features and rewards are clipped to.
    released_only : bool
        True if actions are chosen from synchronised statistics alone, so that one self-normalised
        bound serves all silos. Otherwise each of ``union`` silos has its own V and the bound is
        taken once for each: ln(2 M / alpha) where the paper writes ln(2 / alpha).
    union : int
        M, silos whose own batches choose their actions.
    ordered : bool, default True
        True if the rounds of synchronisation are known in advance. A union over silos needs it: the
        end of a batch must not depend on rounds of others that come after it in the silo's own
        order.
    centred : CentredNorm, optional
        Bounds on theta* - theta0, of which the statistics are (docs/centred.md), or on theta*
        where it may be longer than 1.

    Returns
    -------
    Theory
    """
    d, alpha = problem.dimension, failure_probability
    noise_share = 0.0 if distribution.none else alpha / 2.0
    n_bound = distribution.operator_norms(d, alpha / 4.0)
    union = 1 if released_only else union
    rewards = alpha - noise_share
    if radius == "direct":
        lam, made, definite = _direct(
            distribution, problem, regularizer, n_bound, alpha, rewards / union, centred
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
        # Where lambda is below the noise there is no lambda_min: the radius is then unproven.
        lambda_min = np.where(definite, lam - n_bound, lam)
        lambda_max = lam + n_bound
        nu = distribution.vector_norms(d, alpha / 4.0) / np.sqrt(lambda_min)
        if radius in ("lemma-c2", "lemma-a2"):
            union *= len(np.unique(lambda_min))
            base = 2.0 * math.log(union / rewards)
            offset, log_lambda = np.sqrt(lambda_max) + nu, lambda_min
        elif radius in ("lemma-c4", "lemma-a4"):
            base, offset, log_lambda = 2.0 * math.log(2.0 / alpha), np.sqrt(lam), lam
        else:
            base, offset, log_lambda = math.log(1.0 / alpha), np.sqrt(lam * d), lam
        made = Radius(1.0, problem.reward_scale, base, offset, log_lambda)
    # The published code takes R = 1 where rewards carry no noise.
    scale = 1.0 if radius == "published-code" and problem.noise_free else problem.reward_scale
    conditions = (
        *reward_conditions(problem, clip, any_norm=radius == "direct"),
        Condition(
            "the regularizer exceeds the noise's operator norm with high probability",
            bool(definite.all()),
        ),
        Condition(
            f'the radius is a proven one ("{radius}", multiplier {radius_multiplier:g})',
            radius in ("direct", "lemma-c2", "lemma-a2") and radius_multiplier >= 1.0,
        ),
    )
    if not (released_only or ordered or union == 1):
        conditions += (Condition("each silo's own order of events is one of the proof's", False),)
    low, high = problem.reward_range or (0.0, 1.0)
    return Theory(
        regularizer=lam,
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        nu=nu,
        radius=replace(made, multiplier=radius_multiplier, scale=scale),
        conditions=conditions,
        most_regret=max(1.0, high - low),
    )


def reward_conditions(
    problem: ProblemSpec, clip: Clip | None, any_norm: bool = False
) -> tuple[Condition, ...]:
    """Conditions of every proof here about the environment's rewards.

    With an intercept of kappa > 1 theta* is longer than 1; ``any_norm``: the proof has a bound on
    its norm.
    """
    longer = problem.intercept not in (None, 1.0)
    inside = problem.reward_range is not None and (
        clip is None
        or (clip.low <= problem.reward_range[0] <= problem.reward_range[1] <= clip.high)
    )
    # A silo alone is a federation of one, whose theta* is its own.
    linear = problem.linear or (problem.silos == 1 and problem.linear_by_silo)
    return (
        Condition(
            "the expected reward is <x, theta*> with ||x|| <= 1, ||theta*|| <= 1",
            linear and not longer,
        )
        if not (longer and any_norm)
        else Condition(
            "the expected reward is <x, theta*> and lies in the range of rewards for every x of "
            "the allowed norm",
            linear,
        ),
        Condition("rewards are bounded, and clipping does not move their mean", inside),
    )


def _direct(
    distribution: NoiseDistribution,
    problem: ProblemSpec,
    regularizer: str | float,
    n_bound: np.ndarray,
    alpha: float,
    rewards: float,
    centred: CentredNorm | None = None,
) -> tuple[np.ndarray, Radius, np.ndarray]:
    """The direct radius: a width without the detour by ||.||_V, and the least lambda that V allows.

    With G and u the raw sums, V = lambda I + G + N, u + h and S = sum x eta,
        theta* - theta_hat = V^-1 (lambda theta* + (N theta* - h) - S).
    On the events N >= -n I, ||N theta* - h|| <= E (both at every release) and
    ||S||^2_{(G + c I)^-1} <= R^2 (2 ln(1 / alpha') + ln det(G + c I) - d ln c) (all rounds, one
    fixed c: Abbasi-Yadkori et al. 2011, Theorem 1; all privacy noise is drawn beforehand, and
    without lazy updates every silo has an order of its own, its batch before the others'), for any
    lambda >= 0, chosen in view of V if need be:
    G + c I <= V + (n + c - lambda) I <= f V, with f = 1 for lambda >= n + c and else
    f = 1 + (n + c - lambda) / floor where every eigenvalue of V is at least floor. Hence
        |<x, theta* - theta_hat>| <= R sqrt(f (2 ln(1 / alpha') + ln det V + d ln(f / c)))
                                     ||x||_{V^-1} + (lambda + E) ||V^-1 x||.
    V is private already, so its determinant and eigenvalues may be used. Once G outgrows the
    noise, lambda falls to 0 and with it half of the second term. Where ||theta*|| <= tau, lambda
    tau stands for lambda (docs/centred.md).
    """
    n_max = float(n_bound.max())
    tau, along = (centred.tau, centred.along) if centred else (1.0, None)
    if not distribution.public_constant:
        along = None
    error = distribution.errors(problem.dimension, alpha / 4.0, tau, along)
    if isinstance(regularizer, str) and regularizer == "published-code":
        regularizer = published_regularizer(problem, distribution, alpha)
    if isinstance(regularizer, str):
        anchor = max(1.0, ANCHOR * n_max)
        lam = n_bound + anchor
        floor = FLOOR * lam if not distribution.none else np.zeros_like(lam)
        floor[0] = 0.0
    else:
        lam = np.full_like(n_bound, regularizer)
        anchor = regularizer - n_max if regularizer > n_max else regularizer
        floor = np.zeros_like(lam)
    made = Radius(
        1.0,
        problem.reward_scale,
        2.0 * math.log(1.0 / rewards),
        np.zeros_like(lam),
        np.full_like(lam, anchor),
        determinant=True,
        direct=True,
        anchor=anchor,
        tau=tau,
        error_bound=error,
        floor=floor,
    )
    return lam, made, lam > n_bound


def direct_regret_bound(plan: Plan, theory: Theory) -> float | None:
    """Bound on the group regret with all its constants, for the direct radius.

    The bounds of `bandits.bounds` are orders; this one is a number, and often vacuous. It holds
    with probability 1 - failure_probability.

    Parameters
    ----------
    plan : Plan
        The curve's plan.
    theory : Theory
        The theory that the plan was made with.

    Returns
    -------
    float or None
        The bound; at least M T means vacuous, as regret in a round is at most 1 where rewards lie
        in [0, 1]. None where no proof covers the run: another radius, a multiplier below 1, rewards
        or features that break the theory's conditions, a federation without lazy updates, or a
        schedule chosen by the data, and own rounds by a posterior.

    Notes
    -----
    Proof, with the notation of docs/radius.md, on its three events (probability 1 - alpha):

    1. In a round the regret is at most 2 w, w = beta ||x||_{V^-1} + gamma ||V^-1 x||, times the
       radius' multiplier, which is at least 1.
    2. Let A = G + c I. Where lambda is full, V >= A >= c I and f = 1. Where it was lowered, A <=
       f V, f <= 2, and V >= phi I with phi = n + c. So w <= C ||x||_{A^-1} with C = max(beta_1 +
       gamma / sqrt(c), sqrt(2) (beta_2 + gamma / sqrt(n + c))), gamma <= tau (n + c) + E.
    3. V <= G + (2 n + c) I, whose trace is at most rows + d (2 n + c): this bounds ln det V and
       with it beta_f = R sqrt(f (2 ln(1 / alpha') + ln det V + d ln(f / c))).
    4. A batch adds to A the rows of M B rounds. L is ln of the growth of det A over it; all L add
       up to at most Lambda = d ln(1 + rows / (d c)). Where L <= ln 2, sum ||x||^2_{A^-1} over the
       batch is at most 2 sum ||x||^2 by the A after it, which is at most 2 L (1 - 1/r <= ln r for
       each eigenvalue r); so its regret is at most 2 C sqrt(2 M B L), by Cauchy and Schwarz.
       Batches with L > ln 2 number at most Lambda / ln 2, and cost at most M B each (times the
       most regret of a round, where rewards may differ by more than 1); where batches differ, at
       most as much as so many of the longest.
    5. Cauchy and Schwarz over batches: M B Lambda / ln 2 + 2 sqrt(2 Lambda sum_k M B_k C_k^2).

    A silo alone adds one row at a time: the same with M = B = 1, and no bad batch where c >= 1, for
    then a row at most doubles det A. Smaller bonuses add at most what the ledger may hold, see
    `allowance`.
    """
    if not (theory.proven and _direct_in_batches(plan)):
        return None
    if plan.own is not None:
        if plan.own.bound is None:
            return None
        shared = direct_regret_bound(replace(plan, own=None, horizon=plan.own.until), theory)
        return None if shared is None else shared + plan.silos * own_regret(plan)
    lengths, worst, growth = _widths(plan, theory)
    alone = plan.batch_size == 0
    bad = 0.0
    if not alone or plan.radius.anchor < 1.0:
        bad = theory.most_regret * _bad_rounds(plan, lengths, growth)[-1]
    good = 2.0 * math.sqrt(2.0 * growth[-1] * float((lengths * worst**2).sum()))
    whole = float((plan.silos if alone else 1) * (bad + plan.radius.multiplier * good))
    # What smaller bonuses may add is never more than the ledger may hold.
    return whole + (max(plan.allowance) if plan.bonus < 1.0 else 0.0)


def own_regret(plan: Plan) -> float:
    """B(T) of docs/own-rounds.md: bound on a silo's regret in own rounds of rule "min-of-bounds".

    2 m (R sqrt(b + d ln(1 + T/d)) + S) sqrt(2 T d ln(1 + T/d)), by Cauchy and Schwarz and the
    elliptical potential, which counts every round of the silo: regret is at most twice the width.
    """
    assert plan.own is not None and plan.own.bound is not None
    multiplier, scale, base, offset = plan.own.bound
    growth = plan.dimension * math.log1p(plan.horizon / plan.dimension)
    width = multiplier * (scale * math.sqrt(base + growth) + offset)
    return 2.0 * width * math.sqrt(2.0 * plan.horizon * growth)


def _direct_in_batches(plan: Plan) -> bool:
    """True if the proof of `direct_regret_bound` is about such plans."""
    # Not lazily, without a release after every round, actions use a batch before its release.
    within = plan.batch_size > 0 and plan.releases < plan.horizon and not plan.lazy
    other = plan.trigger is not None or plan.policy != "ucb"
    return plan.radius.direct and not within and not other


def _widths(plan: Plan, theory: Theory) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Rounds of all silos in each batch, C of step 2, and Lambda by the end of each batch."""
    radius = plan.radius
    d, c = plan.dimension, radius.anchor
    alone = plan.batch_size == 0
    silos = 1 if alone else plan.silos
    ends = (
        np.arange(1, plan.horizon + 1)
        if alone
        else Schedule(plan.horizon, plan.batch_size, plan.release_rounds).ends
    )
    starts = np.unique(np.append(0, ends[ends < plan.horizon]))
    entry = np.minimum(np.arange(len(starts)), len(radius.error_bound) - 1)
    n = np.maximum(theory.regularizer[entry] - c, 0.0)
    gamma = radius.tau * (n + c) + radius.error_bound[entry]
    seen = silos * starts / d

    def beta(f: float) -> np.ndarray:
        """beta_f of step 3 at the start of each batch."""
        grown = d * np.log(f * (2.0 * n + c + seen) / c)
        width: np.ndarray = radius.scale * np.sqrt(f * (radius.base + grown))
        return width

    worst = beta(1.0) + gamma / math.sqrt(c)
    lowered = math.sqrt(2.0) * (beta(2.0) + gamma / np.sqrt(n + c))
    worst = np.where(radius.floor[entry] > 0.0, np.maximum(worst, lowered), worst)
    lengths = np.diff(starts, append=plan.horizon) * silos
    growth = [d * math.log1p(float(rows) / (d * c)) for rows in lengths.cumsum()]
    return lengths, worst, growth


def _bad_rounds(plan: Plan, lengths: np.ndarray, growth: list[float]) -> list[float]:
    """Most rounds of all silos in batches with L > ln 2 (step 4), by the end of each batch."""
    if not plan.release_rounds:
        longest = np.maximum.accumulate(lengths)
        return [float(n * g / math.log(2.0)) for n, g in zip(longest, growth, strict=True)]
    # Of batches that differ, the bad ones may be the longest: their number only grows, so what
    # is among them once leaves for longer ones alone.
    found, chosen, others = [], list[int](), list[int]()
    for n, g in zip(lengths.tolist(), growth, strict=True):
        heapq.heappush(others, -heapq.heappushpop(chosen, n))
        while others and len(chosen) < math.floor(g / math.log(2.0)):
            heapq.heappush(chosen, -heapq.heappop(others))
        found.append(float(sum(chosen)))
    return found


def allowance(plan: Plan, theory: Theory, share: float) -> np.ndarray:
    """Most that the ledger of smaller bonuses may hold by the end of the batch after each release.

    Parameters
    ----------
    plan, theory
        As in `direct_regret_bound`.
    share : float
        kappa > 0.

    Returns
    -------
    ndarray, shape (K + 1,)
        kappa min(M t, B(t)) with t the end of the batch that follows release k, and B(t) the bound
        of `direct_regret_bound` for t rounds without a ledger, under its conditions. It does not
        decrease.

    Raises
    ------
    InputError
        For plans that its proof is not about: of another radius, that never synchronise, or where
        rewards may differ by more than 1.

    Notes
    -----
    With bonuses times m < 1 the action a of the largest m-fold bound has <x*, theta_hat> + m w(x*)
    <= <a, theta_hat> + m w(a), so its regret is at most (1 + m) w(a) + (1 - m) w(x*). The first
    terms add up to at most the bound B, which counts 2 w(a). The second, at most 1 since a round's
    regret is, is charged to the ledger, with x* replaced by the worst row: w(x*) <= beta sqrt(q) +
    gamma q for every eigenvalue of V^-1 at most q. All of this is a function of the released sums.
    A batch that would take the ledger above its allowance has m = 1. So regret is at most (1 +
    kappa) B, whatever m is (the idea without privacy: Luo and Bayati 2023).
    """
    if not _direct_in_batches(plan) or plan.batch_size == 0:
        raise InputError(
            "bonus below 1 needs batches that end after rounds known in advance, for a smaller "
            "bonus is charged batch by batch: choose a batch_size or release_rounds"
        )
    if theory.most_regret > 1.0:
        raise InputError(
            "bonus below 1 needs rewards in an interval of length 1, for its ledger counts at most "
            f"1 a round; here it is {theory.most_regret:g} long"
        )
    lengths, worst, growth = _widths(plan, theory)
    rows = lengths.cumsum()
    bad = np.array(_bad_rounds(plan, lengths, growth))
    good = 2.0 * np.sqrt(2.0 * np.array(growth) * (lengths * worst**2).cumsum())
    most = share * np.minimum(rows, bad + plan.radius.multiplier * good)
    # After the last release nothing may follow: its batch is then empty.
    return np.append(most, np.repeat(most[-1], plan.releases + 1 - len(most)))
