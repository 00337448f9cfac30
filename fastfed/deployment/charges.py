"""The privacy cost of a release, as a ledger records it: a squared GDP parameter.

The cost of a release is a pair (mu^2, failure): the release is mu-GDP except with probability
``failure``. `charge_of` returns what one release adds to the cost of the earlier releases.

- Gaussian noise costs its squared GDP parameter.
- For noise bits, `accounts_of_changes` lists all changes that one record can make, on time or late.
  `fastfed.privacy.accounting.binomial` computes the cost of these changes.
- Private means and experts' scores are bounded by a Gaussian mechanism whose neighbouring inputs
  are at least as easy to distinguish ("to test"). The proof for private means follows.

Let e be half of epsilon', the budget of one coordinate: one half is for the choice of its clipping
range, one half for its noise. Let n be the number of coordinates of all means so far.

1. Each Laplace noise is (e, 0)-DP, so all n together are no easier to test than n randomised
   responses (Kairouz, Oh & Viswanath 2015). The trade-off function of the responses is linear
   between n + 2 vertices. A Gaussian trade-off function is convex. So if it is below the responses'
   function at the vertices, it is below the responses' function everywhere. Some vertices are below
   every Gaussian trade-off function; an event of probability ``failure`` removes these vertices.
2. Each range is chosen by an exponential mechanism whose log-probabilities vary by at most e. For
   two neighbouring inputs this mechanism is no easier to test than a coin of probabilities p and q
   with logit p - logit q = e. The coin is mu-GDP with mu = Phi^-1(p) - Phi^-1(q). This mu is
   largest for p = 1 - q, because logit(Phi(z)) is convex for z >= 0: its slope
   phi / (Phi (1 - Phi)) grows, because the hazard rate h of a normal has h(z) - h(-z) >= z.
3. The squared parameters of all coins and noises add up (composition), even if later means are
   chosen adaptively.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import InputError
from fastfed.deployment.ledger import Charge
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.frank_wolfe import FrankWolfePlan
from fastfed.privacy.account import GaussianSums, VertexScores, WinsorizedMeans, released
from fastfed.privacy.accounting.binomial import TAIL_SHARES, Node, VectorSumAccount
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.sparse_vector import SparseSwitching
from fastfed.privacy.mechanisms.user_bit import UserBits, epsilon_of
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.mechanisms.vertex_sets import valid_accounts
from fastfed.privacy.releases.buffered import buffered_column
from fastfed.privacy.releases.prefix_sums import SLACK
from fastfed.privacy.sensitivity import Budget, joint_sensitivity
from fastfed.protocols.serverless import PhasePlan


@lru_cache(maxsize=64)
def _totals(event: Any, releases: int) -> tuple[tuple[float, float], ...]:
    """Return the cost (mu2, failure) of releases 1..k of a plan, for k = 0..K."""
    if isinstance(event, BinomialTree | VectorBatches | UnequalBatches):
        # The proof is only for the whole plan, so the first release is charged for all releases.
        return ((0.0, 0.0), *[charge_of_bits(event)[1:]] * releases)
    if isinstance(event, WinsorizedMeans):
        return totals_of_means(event)
    if isinstance(event, SecureSum):
        # The proof is only for the whole plan, so the first release is charged for all releases.
        return ((0.0, 0.0), *[_cost_of_secure_sum(event)] * event.releases)
    if not isinstance(event, GaussianSums):
        raise InputError(f"a ledger cannot charge {type(event).__name__}")
    # mu^2 is the squared sensitivity divided by the noise variance, so the mu^2 of the first k
    # releases is proportional to their squared sensitivity.
    inverse_variance = event.mu("replace") ** 2 / event.squares * _ROUND_UP
    return ((0.0, 0.0), *((inverse_variance * square, 0.0) for square in _squares(event)))


def _squares(event: GaussianSums) -> list[float]:
    """Return the squared sensitivity of releases 1..k to one record, for k = 1..K.

    For "flat", trees and "toeplitz", the first k releases are the releases of a plan with K = k.
    For "buffered" and "factorised", the first k releases are the first k rows of the encoder of all
    K releases.
    """
    squares: Any
    if event.release == "buffered":
        column = buffered_column(event.releases)
        # The last factor covers rounding errors.
        squares = np.cumsum(column * column) * (1.0 + 2.0**-40)
    elif event.factor is not None:
        # For each k: the largest squared norm of a column of the encoder's first k rows.
        largest_columns = np.cumsum(event.factor.encoder**2, axis=0).max(axis=1)
        # The norm of a column's rounding errors is below a tenth of SLACK times the largest column
        # norm, so 2 SLACK times the largest squared norm covers the error of a squared norm.
        squares = largest_columns + 2.0 * SLACK * largest_columns[-1]
    else:
        counts = range(1, event.releases + 1)
        squares = [msgspec.structs.replace(event, releases=k).squares for k in counts]
    non_decreasing: list[float] = np.maximum.accumulate(squares).tolist()
    return non_decreasing


def _cost_of_secure_sum(event: SecureSum) -> tuple[float, float]:
    """Return the cost (mu2, failure) of a plan with secure sums.

    The failure probability is delta times the entry of `TAIL_SHARES` that gives the least epsilon.
    """
    delta = event.budget.delta
    # Only the noise coins of the honest silos count.
    account, coins = event._account("replace"), event._coins(event.honest)
    pairs = [(account.proven_mu(coins, delta * share), delta * share) for share in TAIL_SHARES]
    finite_pairs = [pair for pair in pairs if math.isfinite(pair[0])]
    mu, failure = min(finite_pairs, key=lambda pair: gaussian_epsilon(pair[0], delta - pair[1]))
    return mu * mu * _ROUND_UP, failure


def charge_of(plan: Any, digest: bytes, dataset: str, release: int, report: bytes = b"") -> Charge:
    """Return the charge of one release: what the release adds to the cost of earlier releases.

    The charge is the cost for the user with the weakest protection. If silos have different noise,
    this is a user of the silo with the least noise. For a plan in phases, the charge is the cost
    for all data of a silo, which bounds the cost for each user.

    Parameters
    ----------
    plan : Plan, PhasePlan, FrankWolfePlan or SparseVectorPlan
        The executed plan.
    digest : bytes
        SHA-256 of the plan file.
    dataset : str
    release : int
        Number of the release, from 1. Number -k charges the whole plan a second time, after records
        of release k were lost.
    report : bytes
        SHA-256 of the silo's report.
    """
    events = released(plan)
    assert events is not None
    event: Any = events[0]
    if isinstance(event, Scores | UserBits):
        # A loss enters only one phase. The first release is charged for the phase with the highest
        # cost, or for all bits of one user. The other releases cost nothing.
        if release > 1:
            return Charge(dataset, digest, release, 0.0, 0.0, report)
        totals_of = totals_of_user_bits if isinstance(event, UserBits) else totals_of_scores
        cost = totals_of(event)
        return Charge(dataset, digest, release, *cost, report, event.exact(0.0) * _ROUND_UP)
    totals = _totals(event, plan.releases)
    if release < 1:
        return Charge(dataset, digest, release, *totals[-1], report)
    (total_mu2, failure), (earlier_mu2, earlier_failure) = totals[release], totals[release - 1]
    return Charge(
        dataset, digest, release, total_mu2 - earlier_mu2, failure - earlier_failure, report
    )


# ---- means ---------------------------------------------------------------------------------------

#: Against rounding errors, parameters are multiplied by _ROUND_UP, and probabilities are
#: changed by a relative _ROUNDING_SHARE in the direction that makes costs larger.
_ROUND_UP, _ROUNDING_SHARE = 1.0 + 1e-12, 1e-9
_NORMAL = NormalDist()


@lru_cache(maxsize=64)
def totals_of_means(event: WinsorizedMeans) -> tuple[tuple[float, float], ...]:
    """Return the cost (mu^2, failure) of the first k private means, for k = 0..K.

    The failure probability is delta times the entry of `TAIL_SHARES` that gives the least epsilon
    for all means.

    Parameters
    ----------
    event : WinsorizedMeans

    Returns
    -------
    tuple of (float, float)

    Notes
    -----
    Guarantee: if all data of one silo are replaced, the means 1..k are mu-GDP except with
    probability ``failure``. The docstring of this module has the proof.
    """
    count, delta = len(event.means), event.means[0].budget.delta
    # If the means have different parameters, each is charged as the most expensive one.
    half_epsilon = max(mean.epsilon_coordinate for mean in event.means) / 2.0
    padded = max(mean.padded for mean in event.means)
    failure = delta * min(
        TAIL_SHARES,
        key=lambda share: _epsilon_after_failure(
            mu2_of_means(count * padded, half_epsilon, delta * share), delta, share
        ),
    )
    totals = [(0.0, 0.0)]
    for k in range(1, count + 1):
        totals.append(
            (max(mu2_of_means(k * padded, half_epsilon, failure), totals[-1][0]), failure)
        )
    return tuple(totals)


def charged_means(plan: PhasePlan) -> tuple[float, float] | None:
    """Return (requested epsilon, charged epsilon) of a plan in phases; None without noise."""
    event = next(iter(released(plan) or ()), None)
    if not isinstance(event, WinsorizedMeans):
        return None
    return plan.means[0].budget.epsilon, epsilon_of_means(event)


def epsilon_of_means(event: WinsorizedMeans) -> float:
    """Return the epsilon that a ledger counts for all private means, at the budget's delta."""
    square, failure = totals_of_means(event)[-1]
    delta = event.means[0].budget.delta
    return _epsilon_after_failure(square, delta, failure / delta)


def _epsilon_after_failure(square: float, delta: float, share: float) -> float:
    """Return the epsilon of mu^2 = ``square`` at delta; ``share`` of delta covers the failure."""
    if not math.isfinite(square):
        return math.inf
    return gaussian_epsilon(math.sqrt(square * _ROUND_UP), delta * (1.0 - share * _ROUND_UP))


def mu2_of_means(coordinates: int, half_epsilon: float, failure: float) -> float:
    """Return the squared GDP parameter mu^2 of private means.

    The means have ``coordinates`` coordinates in total. Each coordinate has one choice of a range
    and one Laplace noise, each with ``half_epsilon``. The means are mu-GDP except with probability
    ``failure``.
    """
    mu2_of_ranges = coordinates * mu_of_exponential(half_epsilon) ** 2
    mu2_of_noise = mu_of_responses(coordinates, half_epsilon, failure) ** 2
    return (mu2_of_noise + mu2_of_ranges) * _ROUND_UP


def mu_of_exponential(epsilon: float) -> float:
    """Return mu of one exponential mechanism that is (epsilon, 0)-DP."""
    return -2.0 * _NORMAL.inv_cdf(1.0 / (1.0 + math.exp(epsilon / 2.0)))


def mu_of_responses(count: int, epsilon: float, failure: float) -> float:
    """Return mu of the composition of ``count`` randomised responses that are (epsilon, 0)-DP.

    The composition is mu-GDP except with probability ``failure``. Its trade-off function has
    vertices (alpha, 1 - gamma), see `_vertices`. The function is symmetric, so it is enough to
    check the vertices with alpha <= 1 - gamma. The result is infinite if no mu is large enough.
    """
    # Compute the least mu whose Gaussian trade-off function is below all vertices. First remove the
    # failure probability from each vertex: alpha becomes ``low``, and gamma becomes ``high``.
    mu = 0.0
    for alpha, gamma in _vertices(count, epsilon):
        if alpha + gamma > 1.0 + 4.0 * _ROUNDING_SHARE:
            break
        low, high = alpha / (1.0 - failure), (gamma - failure) / (1.0 - failure)
        if high > 0.0:
            if not (low > 0.0 and high < 1.0):
                return math.inf
            mu = max(mu, _NORMAL.inv_cdf(high) - _NORMAL.inv_cdf(low))
    return mu


@lru_cache(maxsize=64)
def _vertices(count: int, epsilon: float) -> tuple[tuple[float, float], ...]:
    """Return the vertices (alpha, gamma) of tests between two inputs of ``count`` responses.

    A randomised response is 1 with probability e^epsilon/(1 + e^epsilon) under the first input, and
    with probability 1/(1 + e^epsilon) under the second. Test j, for j = 0..count, rejects the first
    input if at most j responses are 1. Its probability of rejection is alpha under the first input,
    and gamma under the second: lower tails of binomial distributions. alpha is rounded down, and
    gamma up.
    """
    log_likely, log_unlikely = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    alpha, gamma, vertices = 0.0, 0.0, []
    for j in range(count + 1):
        log_ways = math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
        alpha += math.exp(log_ways + j * log_likely + (count - j) * log_unlikely)
        gamma += math.exp(log_ways + j * log_unlikely + (count - j) * log_likely)
        vertices.append(
            (alpha * (1.0 - _ROUNDING_SHARE), min(gamma * (1.0 + _ROUNDING_SHARE), 1.0))
        )
    return tuple(vertices)


# ---- experts -------------------------------------------------------------------------------------

#: Events (mechanisms as the account describes them) of plans with experts.
Scores = VertexScores | SparseSwitching


@lru_cache(maxsize=64)
def totals_of_scores(event: Scores) -> tuple[float, float]:
    """Return the cost (mu^2, failure) of a whole plan, which holds for every single loss.

    Parameters
    ----------
    event : VertexScores or SparseSwitching

    Notes
    -----
    Guarantee: if one loss is replaced or removed, the experts of all releases are mu-GDP except
    with probability ``failure``. For `VertexScores`, a loss is in one set only. The argmins of the
    leaves below that set are pure DP mechanisms. So their two output distributions are no easier to
    distinguish than those of randomised responses (`mu_of_responses`). For `SparseSwitching`, all
    comparisons that a loss affects form one pure DP mechanism, and each switch is an exponential
    mechanism (`mu_of_exponential`).
    """
    delta = budget_of(event).delta
    pairs = [(mu2_of_scores(event, delta * share), delta * share) for share in TAIL_SHARES]
    return min(pairs, key=lambda pair: _epsilon_of_cost(pair, delta))


def budget_of(event: Scores) -> Budget:
    """Return the budget (epsilon, delta) of a plan with experts."""
    return event.budget if isinstance(event, SparseSwitching) else event.noises[0].budget


def requested_and_charged(plan: FrankWolfePlan | SparseVectorPlan) -> tuple[float, float] | None:
    """Return (requested epsilon, charged epsilon) of a plan with experts.

    Return None for a plan without noise, and for a plan with delta = 0. `experts.check_experts`
    refuses both.
    """
    event = next(iter(released(plan) or ()), None)
    # A ledger cannot state an epsilon at delta = 0.
    if not isinstance(event, Scores) or not budget_of(event).delta:
        return None
    return budget_of(event).epsilon, epsilon_of_scores(event)


def epsilon_of_scores(event: Scores) -> float:
    """Return the epsilon that a ledger counts for a plan with experts, at the budget's delta.

    This is the smaller of two values: the epsilon of the GDP bound, and the epsilon of pure DP.
    """
    gdp_epsilon = _epsilon_of_cost(totals_of_scores(event), budget_of(event).delta)
    return min(gdp_epsilon, event.exact(0.0) * _ROUND_UP)


def _epsilon_of_cost(pair: tuple[float, float], delta: float) -> float:
    """Return the epsilon of a cost (mu^2, failure) at delta."""
    squared, failure = pair
    if not math.isfinite(squared):
        return math.inf
    return gaussian_epsilon(math.sqrt(squared * _ROUND_UP), delta - failure * _ROUND_UP)


def mu2_of_scores(event: Scores, failure: float) -> float:
    """Return mu^2 of a plan with experts.

    The plan is mu-GDP for every loss, also the one with the weakest protection, except with
    probability ``failure``.
    """
    if isinstance(event, SparseSwitching):
        comparisons = mu_of_responses(1, event.comparisons.epsilon, failure) ** 2
        return (comparisons + event.switches * mu_of_exponential(event.eta) ** 2) * _ROUND_UP
    mu = 0.0
    for noise in event.noises:
        for loss_set in noise.sets:
            change = loss_set.change / noise.scales[loss_set.tree - 1]
            if change:
                # A valid account is a composition of ``count`` equal mechanisms, each of which is
                # (factor * change)-DP. It bounds the releases of all leaves that the set affects.
                # Use the account with the least mu.
                accounts = valid_accounts(loss_set.leaves, noise.experts, "experts")
                mu_of_set = min(
                    mu_of_responses(count, factor * change, failure)
                    for _, factor, count in accounts
                )
                mu = max(mu, mu_of_set)
    return mu * mu * _ROUND_UP


# ---- bits of users -------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def totals_of_user_bits(event: UserBits) -> tuple[float, float]:
    """Return the cost (mu^2, failure) of all bits that a user's device sends.

    Notes
    -----
    Guarantee: a bit that is flipped with probability q is mu-GDP with mu = 2 Phi^-1(1 - q). Its
    trade-off function is linear between (0, 1), (q, q) and (1, 0). The Gaussian trade-off function
    is convex and equals the bit's function at these points, so it is nowhere above the bit's
    function. For several bits of one user there are two kinds of bounds on mu^2: the sum of the
    bits' mu^2, and the square of `mu_of_responses`, which is computed for several failure
    probabilities. The result is the bound with the least epsilon at the budget's delta.
    """
    # The bit's mu is 2 Phi^-1(1 - q). `mu_of_exponential(e)` is this mu for the q with
    # logit(1 - q) - logit(q) = e. The bit's epsilon is logit(1 - q), so e is twice this epsilon.
    epsilon_of_bit, bits, delta = epsilon_of(event.flips), event.returning, event.budget.delta
    mu2_of_bit = mu_of_exponential(2.0 * epsilon_of_bit) ** 2 * _ROUND_UP
    if bits == 1:
        return mu2_of_bit, 0.0
    failures = {0.0, *(delta * share for share in TAIL_SHARES)}
    costs = [
        (mu_of_responses(bits, epsilon_of_bit, f) ** 2 * _ROUND_UP, f) for f in sorted(failures)
    ]
    costs.append((bits * mu2_of_bit * _ROUND_UP, 0.0))
    # With delta = 0 there is no epsilon by which to compare costs, so compare mu^2.
    return min(costs, key=lambda cost: _epsilon_of_cost(cost, delta) if delta else cost[0])


def epsilon_of_user_bits(event: UserBits) -> float:
    """Return the epsilon that a ledger counts for all bits of one user, at the budget's delta.

    This is the smaller of two values: the epsilon of the GDP bound, and the epsilon of pure DP.
    """
    pure, delta = event.exact(0.0), event.budget.delta
    return min(pure, _epsilon_of_cost(totals_of_user_bits(event), delta)) if delta else pure


# ---- noise bits ----------------------------------------------------------------------------------

#: Events (mechanisms as the account describes them) of vector sums with noise bits.
Counted = BinomialTree | VectorBatches | UnequalBatches


def accounts_of_changes(event: Counted, with_late: bool) -> list[VectorSumAccount]:
    """Return the accounts of all changes that one record can make to the sums.

    The record is replaced in its leaf (a batch, if there is no tree). If ``with_late``, the record
    may also be moved to another leaf.

    In a tree, a moved record leaves one node and enters another node on each level j < ``split``.
    On the levels j >= ``split``, the record is replaced in its node. There is one account for each
    value of ``split``. Without a tree, a moved record leaves one batch and enters another batch.
    The two changes together cost at most twice the cost of the more expensive one, so there is one
    account for each batch, in which the batch is counted twice.

    A move thus changes two nodes of a level, or two batches: ``squares`` = ``count`` = 2 in `Node`.
    The record is removed from one and added to the other, so the sensitivity is that of the
    relation "zero-out".
    """
    if isinstance(event, BinomialTree):
        replace, zero = (
            joint_sensitivity(relation, "iid", event.dimension)
            for relation in ("replace", "zero-out")
        )
        accounts = []
        for split in range(1, event.depth + 1) if with_late else [0]:
            nodes = [
                Node(event.counted(j), zero * g, 2.0, 2)
                if j < split
                else Node(event.counted(j), replace * g)
                for j, g in enumerate(event.g)
            ]
            accounts.append(VectorSumAccount(nodes, event.coordinates))
        return accounts
    batches = event.batches if isinstance(event, UnequalBatches) else (event,)
    return [
        VectorSumAccount(
            [
                Node(b.counted, b.norm("zero-out"), 2.0, 2)
                if with_late
                else Node(b.counted, b.norm())
            ],
            b.coordinates,
        )
        for b in batches
    ]


def least_epsilon(accounts: list[VectorSumAccount], delta: float) -> tuple[float, float, float]:
    """Return (epsilon, mu, failure), which hold for every account.

    Each account is mu-GDP except with probability ``failure``, and so (epsilon, delta)-DP.
    ``failure`` is delta times the entry of `TAIL_SHARES` that gives the least epsilon.
    """
    least = (math.inf, math.inf, delta)
    for share in TAIL_SHARES:
        failure = delta * share
        mu = max((account.mu(failure) for account in accounts), default=0.0)
        if math.isfinite(mu):
            epsilon = gaussian_epsilon(mu * math.sqrt(_ROUND_UP), delta - failure * _ROUND_UP)
            least = min(least, (epsilon, mu, failure))
    return least


@lru_cache(maxsize=64)
def late_epsilon(event: Counted) -> float:
    """Return the epsilon for a record that may be late, at the budget's delta."""
    return least_epsilon(accounts_of_changes(event, True), event.budget.delta)[0]


@lru_cache(maxsize=64)
def charge_of_bits(event: Counted) -> tuple[float, float, float]:
    """Return (epsilon, mu^2, failure) of a whole plan, for a record that is on time or late."""
    epsilon, mu, failure = least_epsilon(
        accounts_of_changes(event, False) + accounts_of_changes(event, True), event.budget.delta
    )
    return epsilon, mu * mu * _ROUND_UP, failure
