"""What releases cost a ledger: squared GDP parameters of everything that a plan's parties send.

`charge_of` is what one release adds. Gaussian noise has its parameter; of noise bits, and of all
that is late, `cases` lists what one record may change, for the account of
`fastfed.privacy.accounting.binomial`. Of private means and of experts' scores a Gaussian mechanism
that is no easier to test than they are together stands in:

Let e be half of epsilon', the share of a range and of a noise, and n the coordinates of all means
so far.

1. The Laplace noises are (e, 0)-private each, so no easier to test than n randomised responses
   (Kairouz, Oh & Viswanath 2015). Both trade-off functions are convex, that of the responses is
   linear between n + 2 vertices, so a Gaussian one that is below it there is below it everywhere.
   The event of probability ``told`` takes the vertices away that no Gaussian one is below of.
2. Each range is an exponential mechanism of range e: on two neighbours no easier to test than a
   coin of chances p and q with logit p - logit q = e. That is mu-GDP with
   mu = Phi^-1(p) - Phi^-1(q), largest where p = 1 - q: logit(Phi(z)) is convex for z >= 0, since
   its slope phi / (Phi (1 - Phi)) grows as the hazard h of a normal has h(z) - h(-z) >= z.
3. Squares add up, also where later means are chosen in view of earlier ones.
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
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.mechanisms.vertex_sets import _ways
from fastfed.privacy.releases.buffered import buffered_column
from fastfed.privacy.releases.prefix_sums import SLACK
from fastfed.privacy.sensitivity import Budget, joint_sensitivity
from fastfed.protocols.serverless import PhasePlan


@lru_cache(maxsize=64)
def _totals(event: Any, releases: int) -> tuple[tuple[float, float], ...]:
    """(mu2, told) of releases 1..k of this plan together, for k = 0..K."""
    if isinstance(event, BinomialTree | VectorBatches | UnequalBatches):
        # Proven for the whole plan: the first release pays for all.
        return ((0.0, 0.0), *[charge_of_bits(event)[1:]] * releases)
    if isinstance(event, WinsorizedMeans):
        return totals_of_means(event)
    if isinstance(event, SecureSum):
        # Its integers were proven together: the first release pays for all.
        return ((0.0, 0.0), *[_of_secure(event)] * event.releases)
    if not isinstance(event, GaussianSums):
        raise InputError(f"a ledger cannot charge {type(event).__name__}")
    # The account of all K releases, and the part of its square that the first k have.
    unit = event.mu("replace") ** 2 / event.squares * _UP
    return ((0.0, 0.0), *((unit * square, 0.0) for square in _squares(event)))


def _squares(event: GaussianSums) -> list[float]:
    """Squared sensitivity of the first k releases to a user of one leaf, k = 1..K, per record.

    The noise is that of all K releases. Of "flat", trees and "toeplitz" the first k releases have
    the noise of a plan of k releases; of "buffered" and "factorised" they have the first k rows of
    the encoder of all K.
    """
    squares: Any
    if event.release == "buffered":
        column = buffered_column(event.releases)
        squares = np.cumsum(column * column) * (1.0 + 2.0**-40)
    elif event.factor is not None:
        longest = np.cumsum(event.factor.encoder**2, axis=0).max(axis=1)
        # No column is off by more than a tenth of SLACK of the longest of all.
        squares = longest + 2.0 * SLACK * longest[-1]
    else:
        counts = range(1, event.releases + 1)
        squares = [msgspec.structs.replace(event, releases=k).squares for k in counts]
    rising: list[float] = np.maximum.accumulate(squares).tolist()
    return rising


def _of_secure(event: SecureSum) -> tuple[float, float]:
    """(mu2, told) of a secure sum, where they give the least epsilon at the plan's delta."""
    delta = event.budget.delta
    account, coins = event._account("replace"), event._coins(event.honest)
    pairs = [(account.proven_mu(coins, delta * share), delta * share) for share in TAIL_SHARES]
    known = [pair for pair in pairs if math.isfinite(pair[0])]
    mu, told = min(known, key=lambda pair: gaussian_epsilon(pair[0], delta - pair[1]))
    return mu * mu * _UP, told


def charge_of(
    plan: Any,
    digest: bytes,
    dataset: str,
    release: int,
    report: bytes = b"",
) -> Charge:
    """What a release adds to those before it, for the users who lose most.

    Of the weakest silo, where silos have noise of their own; of a plan in phases for all that a
    silo holds, which no user of it can exceed. Release -k is the whole plan once more, after
    records of release k were lost.
    """
    events = released(plan)
    assert events is not None
    event: Any = events[0]
    if isinstance(event, Scores):
        # A loss is in one phase, whichever: the first release pays for all.
        parts = (*totals_of_scores(event), report, event.exact(0.0) * _UP)
        return Charge(dataset, digest, release, *(parts if release <= 1 else (0.0, 0.0, report)))
    totals = _totals(event, plan.releases)
    if release < 1:
        return Charge(dataset, digest, release, *totals[-1], report)
    (after, told), (before, known) = totals[release], totals[release - 1]
    return Charge(dataset, digest, release, after - before, told - known, report)


# ---- means ---------------------------------------------------------------------------------------

#: Parameters are rounded up by this, and probabilities away from where they help.
_UP, _PART = 1.0 + 1e-12, 1e-9
_NORMAL = NormalDist()


# ---- costs ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def totals_of_means(event: WinsorizedMeans) -> tuple[tuple[float, float], ...]:
    """(mu^2, told) of the first k means together, k = 0..K.

    Of the shares of delta that an event may have, the one that gives all of them the least epsilon.

    Parameters
    ----------
    event : WinsorizedMeans

    Returns
    -------
    tuple of (float, float)

    Notes
    -----
    Guarantee: if all that one silo holds becomes anything else, the means 1..k are mu-GDP but for
    an event of probability ``told``. The proof stands at the top of this module.
    """
    count, delta = len(event.means), event.means[0].budget.delta
    # Of means that differ, what the dearest one would cost.
    half = max(mean.epsilon_coordinate for mean in event.means) / 2.0
    padded = max(mean.padded for mean in event.means)
    told = delta * min(
        TAIL_SHARES,
        key=lambda share: _epsilon_beside(
            squared_means(count * padded, half, delta * share), delta, share
        ),
    )
    made = [(0.0, 0.0)]
    for k in range(1, count + 1):
        made.append((max(squared_means(k * padded, half, told), made[-1][0]), told))
    return tuple(made)


def charged_means(plan: PhasePlan) -> tuple[float, float] | None:
    """(epsilon asked for, epsilon charged) of a plan."""
    event = next(iter(released(plan) or ()), None)
    if not isinstance(event, WinsorizedMeans):
        return None
    return plan.means[0].budget.epsilon, epsilon_of_means(event)


def epsilon_of_means(event: WinsorizedMeans) -> float:
    """Epsilon that a ledger makes of all means, at the budget's delta."""
    square, told = totals_of_means(event)[-1]
    delta = event.means[0].budget.delta
    return _epsilon_beside(square, delta, told / delta)


def _epsilon_beside(square: float, delta: float, share: float) -> float:
    if not math.isfinite(square):
        return math.inf
    return gaussian_epsilon(math.sqrt(square * _UP), delta * (1.0 - share * _UP))


def squared_means(coordinates: int, half: float, told: float) -> float:
    """mu^2 of so many ranges and Laplace noises of epsilon ``half`` each, but for ``told``."""
    ranges = coordinates * of_range(half) ** 2
    return (of_responses(coordinates, half, told) ** 2 + ranges) * _UP


def of_range(epsilon: float) -> float:
    """mu of one exponential mechanism of this range."""
    return -2.0 * _NORMAL.inv_cdf(1.0 / (1.0 + math.exp(epsilon / 2.0)))


def of_responses(count: int, epsilon: float, told: float) -> float:
    """mu of so many randomised responses together, but for an event of probability ``told``.

    By symmetry vertices (alpha, 1 - gamma) with alpha <= 1 - gamma are enough.
    """
    found = 0.0
    for alpha, gamma in _vertices(count, epsilon):
        if alpha + gamma > 1.0 + 4.0 * _PART:
            break
        low, high = alpha / (1.0 - told), (gamma - told) / (1.0 - told)
        if high > 0.0:
            if not (low > 0.0 and high < 1.0):
                return math.inf
            found = max(found, _NORMAL.inv_cdf(high) - _NORMAL.inv_cdf(low))
    return found


@lru_cache(maxsize=64)
def _vertices(count: int, epsilon: float) -> tuple[tuple[float, float], ...]:
    """(alpha, gamma) of tests by the number of true responses: both kinds' lower tails."""
    log_true, log_false = -math.log1p(math.exp(-epsilon)), -math.log1p(math.exp(epsilon))
    alpha, gamma, made = 0.0, 0.0, []
    for j in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(j + 1) - math.lgamma(count - j + 1)
        alpha += math.exp(ways + j * log_true + (count - j) * log_false)
        gamma += math.exp(ways + j * log_false + (count - j) * log_true)
        made.append((alpha * (1.0 - _PART), min(gamma * (1.0 + _PART), 1.0)))
    return tuple(made)


# ---- experts -------------------------------------------------------------------------------------

#: Events of such plans.
Scores = VertexScores | SparseSwitching


# ---- costs ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def totals_of_scores(event: Scores) -> tuple[float, float]:
    """(mu^2, told) of a whole plan, for a loss of whichever phase or exchange.

    Parameters
    ----------
    event : VertexScores or SparseSwitching

    Returns
    -------
    tuple of float

    Notes
    -----
    Guarantee: if one loss becomes any other, or none, the experts of all releases are mu-GDP but
    for an event of probability ``told``. One loss is in one set, and the argmins of the leaves
    below it are pure mechanisms, no easier to test than randomised responses
    (`of_responses`). Of sparse switching the comparisons that a loss moves are one pure
    mechanism together, and each switch is an exponential mechanism (`of_range`).
    """
    delta = budget_of(event).delta
    pairs = [(squared_scores(event, delta * share), delta * share) for share in TAIL_SHARES]
    return min(pairs, key=lambda pair: _epsilon_of(pair, delta))


def budget_of(event: Scores) -> Budget:
    """The budget of a plan of experts."""
    return event.budget if isinstance(event, SparseSwitching) else event.noises[0].budget


def charged_scores(plan: FrankWolfePlan | SparseVectorPlan) -> tuple[float, float] | None:
    """(epsilon asked for, epsilon charged) of a plan; None of one that is refused later."""
    event = next(iter(released(plan) or ()), None)
    # Of delta = 0 a ledger says no epsilon.
    if not isinstance(event, Scores) or not budget_of(event).delta:
        return None
    return budget_of(event).epsilon, epsilon_of_scores(event)


def epsilon_of_scores(event: Scores) -> float:
    """Epsilon that a ledger makes of a plan, at the budget's delta: squared, or added up."""
    return min(_epsilon_of(totals_of_scores(event), budget_of(event).delta), event.exact(0.0) * _UP)


def _epsilon_of(pair: tuple[float, float], delta: float) -> float:
    squared, told = pair
    if not math.isfinite(squared):
        return math.inf
    return gaussian_epsilon(math.sqrt(squared * _UP), delta - told * _UP)


def squared_scores(event: Scores, told: float) -> float:
    """mu^2 of the set of losses that costs most, or of all switches, but for ``told``."""
    if isinstance(event, SparseSwitching):
        compared = of_responses(1, event.comparisons.epsilon, told) ** 2
        return (compared + event.switches * of_range(event.eta) ** 2) * _UP
    largest = 0.0
    for noise in event.noises:
        for each in noise.sets:
            change = each.change / noise.scales[each.tree - 1]
            if change:
                ways = _ways(each.leaves, noise.experts, "experts")
                found = min(of_responses(count, f * change, told) for _, f, count in ways)
                largest = max(largest, found)
    return largest * largest * _UP


# ---- noise bits ----------------------------------------------------------------------------------

#: Events of vector sums.
Counted = BinomialTree | VectorBatches | UnequalBatches


# ---- costs ---------------------------------------------------------------------------------------


def cases(event: Counted, late: bool) -> list[VectorSumAccount]:
    """Accounts of everything that one record may change: replaced in its leaf, or late.

    A late record of a tree is in different nodes below some level, and in one node from there on.
    Of batches without a tree it leaves one for another, and costs no more than twice the dearer.
    """
    if isinstance(event, BinomialTree):
        replace, zero = (
            joint_sensitivity(relation, "iid", event.dimension)
            for relation in ("replace", "zero-out")
        )
        found = []
        for split in range(1, event.depth + 1) if late else [0]:
            nodes = [
                Node(event.counted(j), zero * g, 2.0, 2)
                if j < split
                else Node(event.counted(j), replace * g)
                for j, g in enumerate(event.g)
            ]
            found.append(VectorSumAccount(nodes, event.coordinates))
        return found
    batches = event.batches if isinstance(event, UnequalBatches) else (event,)
    return [
        VectorSumAccount(
            [Node(b.counted, b.norm("zero-out"), 2.0, 2) if late else Node(b.counted, b.norm())],
            b.coordinates,
        )
        for b in batches
    ]


def least_epsilon(accounts: list[VectorSumAccount], delta: float) -> tuple[float, float, float]:
    """(epsilon, mu, told) at delta, whichever of the accounts holds.

    Everything is mu-GDP but for an event of probability ``told``; of the shares of delta that the
    event may have, the one that gives the least epsilon.
    """
    found = (math.inf, math.inf, delta)
    for share in TAIL_SHARES:
        told = delta * share
        mu = max((account.mu(told) for account in accounts), default=0.0)
        if math.isfinite(mu):
            epsilon = gaussian_epsilon(mu * math.sqrt(_UP), delta - told * _UP)
            found = min(found, (epsilon, mu, told))
    return found


@lru_cache(maxsize=64)
def late_epsilon(event: Counted) -> float:
    """Epsilon of a record that comes late, at the budget's delta."""
    return least_epsilon(cases(event, True), event.budget.delta)[0]


@lru_cache(maxsize=64)
def charge_of_bits(event: Counted) -> tuple[float, float, float]:
    """(epsilon, mu^2, told) of a whole plan, for a record that may come late."""
    epsilon, mu, told = least_epsilon(cases(event, False) + cases(event, True), event.budget.delta)
    return epsilon, mu * mu * _UP, told
