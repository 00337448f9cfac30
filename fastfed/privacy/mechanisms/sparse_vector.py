"""Sparse vector technique, noisy argmin, and sparse switching, which combines them.

The sparse vector technique tells which query is the first to cross a threshold, the noisy argmin
which of many scores is the least, and nothing else. Sources: Dwork & Roth 2014, Algorithm 1
(AboveThreshold) and Section 3.3; Lyu, Su & Li 2017; gao-2024, Algorithm 5, corrected.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from fastfed._roots import brentq
from fastfed._validate import InputError, array, boolean, choice, integer, number
from fastfed.privacy.accounting.gdp import epsilon_of_rho, rho_of_bounded_range, rho_of_epsilon
from fastfed.privacy.accounting.privacy_loss import Part, composed_epsilon, largest_share
from fastfed.privacy.certificate import ClaimCondition, Condition, rounded_up
from fastfed.privacy.mechanisms.laplace import Exponential, laplace_quantile, log_cdf
from fastfed.privacy.sensitivity import Budget

# ---- the sparse vector technique -----------------------------------------------------------------


def minimal_scales(
    epsilon: float, sensitivity: float = 1.0, *, common_shift: bool = False
) -> tuple[float, float]:
    """Compute the least (threshold, query) scales for which AboveThreshold costs epsilon.

    In general 1/a + 2/b = epsilon/sensitivity leaves one choice, made for the least variance of
    threshold and query noise together: b = 2^{1/3} a. With common_shift a = b =
    sensitivity/epsilon, both least at once.
    """
    epsilon = number("epsilon", epsilon, above=0)
    size = number("sensitivity", sensitivity, above=0)
    if boolean("common_shift", common_shift):
        return size / epsilon, size / epsilon
    root = 2.0 ** (1.0 / 3.0)
    return (1.0 + root**2) * size / epsilon, (root + 2.0) * size / epsilon


class AboveThreshold(msgspec.Struct, frozen=True):
    """The sparse vector technique up to the first crossing.

    One threshold gets Lap(threshold_scale), and each query fresh Lap(query_scale), until the first
    query is strictly above.

    Parameters
    ----------
    threshold_scale, query_scale : float
        a and b > 0, in the units of the queries.
    sensitivity : float
        > 0, the most that neighbouring datasets change any query.
    common_shift : bool
        True if neighbouring datasets leave the queries up to some time alone and change all later
        ones by one and the same amount, as sums over time do when one summand is replaced.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (epsilon, 0) for the index of the first query above, or none; the threshold's noise
    must not be used again after it. epsilon = sensitivity (1/a + 2/b); with common_shift it is only
    sensitivity max(1/a, 1/b).
    Source: Dwork & Roth 2014, Algorithm 1; Lyu, Su & Li 2017 for its variants.
    """

    threshold_scale: float
    query_scale: float
    sensitivity: float = 1.0
    common_shift: bool = False

    # With common_shift, let D' have c in (0, sensitivity] more on every query from time t0 on, and
    # let k >= t0 be the first crossing (earlier ones have equal probability on both).
    #   P_D(k) <= e^{c/a} P_D'(k): raise the threshold's noise by c under D'. Comparisons from t0 on
    #     are then those of D, earlier ones are more easily below; the density changes by e^{c/a}.
    #   P_D'(k) <= e^{c/b} P_D(k): keep the threshold. Under D earlier queries are more easily
    #     below, and query k crosses if its own noise is raised by c.
    # The same two lines without a crossing query cover the outcome "none".

    def __post_init__(self) -> None:
        """Check every field."""
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("common_shift", self.common_shift)

    @property
    def epsilon(self) -> float:
        """Epsilon of the comparisons up to the first crossing."""
        a, b = self.threshold_scale, self.query_scale
        if self.common_shift:
            return self.sensitivity * max(1.0 / a, 1.0 / b)
        return self.sensitivity * (1.0 / a + 2.0 / b)

    def first_above(self, queries: object, threshold: float, uniforms: object) -> int | None:
        """Index from 0 of the first noisy query above the noisy threshold; None if there is none.

        Parameters
        ----------
        queries : array_like (n,)
        threshold : float
        uniforms : array_like (n + 1,)
            In (0, 1), the threshold's first, none used again.
        """
        q = array("queries", queries, ndim=1)
        level = number("threshold", threshold)
        noise = laplace_quantile(array("uniforms", uniforms, shape=(len(q) + 1,)))
        limit = level + self.threshold_scale * noise[0]
        above = np.flatnonzero(q + self.query_scale * noise[1:] > limit)
        return int(above[0]) if len(above) else None

    def log_crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """Compute ln of crossing_probabilities, also where they underflow."""
        q = array("queries", queries, ndim=1)
        level = number("threshold", threshold)
        if not len(q):
            return np.zeros(1)
        a, b = self.threshold_scale, self.query_scale
        spread = max(float(q.max()), level) - min(float(q.min()), level)
        if not math.isfinite(3.0 * spread + 90.0 * (a + b)):
            raise InputError(
                f"queries must be of finite spread about the threshold, got {q.min()} to {q.max()}"
            )
        gaps = level - q
        r, log_weights = _quadrature(np.unique(np.append(-gaps, 0.0)), a, b, len(gaps))
        logs = log_weights - np.abs(r) / a - math.log(2.0 * a)
        found = []
        for gap in gaps:
            z = (gap + r) / b
            found.append(_log_sum(logs + log_cdf(-z)))
            logs = logs + log_cdf(z)
        return np.array([*found, _log_sum(logs)])

    def crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """Compute P(first crossing is query k) for each of n queries, and last P(none), (n + 1,).

        The queries' noises are independent once the threshold's is given, so each probability is
        one integral over it, by Gauss-Legendre; relative accuracy about 1e-12. O(n^2).
        """
        result: np.ndarray = np.exp(self.log_crossing_probabilities(queries, threshold))
        return result


def _quadrature(kinks: np.ndarray, a: float, b: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights for integrands that are smooth but at the kinks.

    Between kinks the integrand is a product of exponentials of rate up to 1/a + count/b, steepest
    away from them, so panels start that small at each kink and double in width with the distance.
    """
    from numpy.polynomial.legendre import leggauss

    # Beyond the last kink densities fall like exp(-|r| / a), to below 1e-17 of what was there.
    reach = 45.0 * a + 45.0 * b
    low, high = float(kinks[0]) - reach, float(kinks[-1]) + reach
    start = 1.0 / (1.0 / a + count / b)
    steps = start * 2.0 ** np.arange(math.ceil(math.log2((high - low) / start)) + 1)
    edges = np.unique(
        np.concatenate([kinks, *(kinks + s for s in steps), *(kinks - s for s in steps)])
    )
    edges = np.concatenate([[low], edges[(edges > low) & (edges < high)], [high]])
    u, w = leggauss(20)
    half = np.diff(edges)[:, None] / 2.0
    nodes = edges[:-1, None] + half * (1.0 + u)
    return nodes.ravel(), (np.log(half) + np.log(w)).ravel()


def _log_sum(logs: np.ndarray) -> float:
    """Compute ln of a sum of exponentials."""
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum())) if math.isfinite(top) else -math.inf


# ---- the noisy argmin ----------------------------------------------------------------------------
# Let neighbouring datasets change every score by at most D, and all noise be of scale b.
# 1. P(i) <= e^(2 D/b) P'(i). Fix the noises of all candidates but i. Candidate i is chosen if its
# noise is below a limit, the least other noisy score minus its own score. On the other dataset that
# limit is lower by at most 2 D: the least other score by D, and its own score higher by D. A shift
# of one Laplace noise by 2 D costs e^(2 D/b).
# 2. If no score moves against another one (all changes are >= 0, or all are <= 0), the limit moves
# by D at most: D/b. This is the case of counts (Dwork & Roth 2014, Claim 3.9), and not of losses.
# 3. The factor 2 is needed. The difference of two noises exceeds g b, g >= 0, with probability (1 +
# g/2) e^-g / 2; two candidates that far apart, moving to g - 2 D/b, have the log ratio 2 D/b +
# ln((2 + g - 2 D/b) / (2 + g)) for the worse one, which tends to 2 D/b with g.
# 4. Noises that are sums, one part of scale b from each of m clients: with the parts of all clients
# but one given, the choice is the argmin of other scores plus that one's noise, so 1 to 2 hold for
# each value of the given parts, and for their mean. For delta = 0 nothing is gained by the sum: its
# tail is a polynomial times e^(-x/b), so the ratio of 3 still tends to e^(2 D/b).


class NoisyArgmin(msgspec.Struct, frozen=True):
    """Index of the least of d scores plus Laplace noise of one scale each ("report noisy min").

    Parameters
    ----------
    scale : float
        > 0, in the units of the scores.
    sensitivity : float
        > 0, the most that neighbouring datasets change any score.
    monotone : bool
        True if neighbouring datasets change all scores in one direction.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (epsilon, 0), epsilon = 2 sensitivity/scale, or sensitivity/scale if monotone, for
    the unit and relation that the sensitivity is of, and no less in the worst case of two or more
    candidates. The proof stands above this class, also for noises that are sums.
    Source: Dwork & Roth 2014, Section 3.3.
    """

    scale: float
    sensitivity: float = 1.0
    monotone: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        number("scale", self.scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("monotone", self.monotone)

    @property
    def epsilon(self) -> float:
        """Epsilon of one choice."""
        return (1.0 if self.monotone else 2.0) * self.sensitivity / self.scale

    def choose(self, scores: object, noise: object) -> int:
        """Choose the least of scores (d,) + scale noise; return its index, of equal ones the first.

        noise: (d,) standard Laplace (`laplace.laplace_quantile`), none used again.
        """
        values = _scores(scores)
        return int(np.argmin(values + self.scale * array("noise", noise, shape=values.shape)))

    def log_probabilities(self, scores: object) -> np.ndarray:
        """Compute ln P(i) (d,), also where P(i) itself underflows.

        One integral over the least noisy score for each candidate, by Gauss-Legendre; relative
        accuracy of P(i) about 1e-12. Takes O(d^2), about a second for d = 100.
        """
        values = _scores(scores) / self.scale
        values = values - values.min()
        if len(values) == 1:
            return np.zeros(1)
        r, log_weights = _quadrature(np.unique(values), 1.0, 1.0, len(values))
        gaps = r[:, None] - values
        above = log_cdf(-gaps)
        # Candidate i's own noise is at r, all others are above.
        logs = log_weights[:, None] - np.abs(gaps) - math.log(2.0)
        logs += above.sum(axis=1, keepdims=True) - above
        top = logs.max(axis=0)
        result: np.ndarray = top + np.log(np.exp(logs - top).sum(axis=0))
        return result

    def probabilities(self, scores: object) -> np.ndarray:
        """Compute P(i) (d,)."""
        result: np.ndarray = np.exp(self.log_probabilities(scores))
        return result

    def two_candidate_loss(self, gap: float) -> float:
        """Privacy loss ln(P'(i)/P(i)) of the worse of two candidates.

        Their scores are `gap` apart under P and move as far towards each other as neighbouring
        datasets allow under P'. Increases with the gap, to epsilon: the guarantee is not attained,
        but is the supremum.
        """
        here = number("gap", gap)
        moved = (1.0 if self.monotone else 2.0) * self.sensitivity
        return _log_tail((here - moved) / self.scale) - _log_tail(here / self.scale)


def _scores(scores: object) -> np.ndarray:
    """Check scores (d,), d >= 1."""
    values = array("scores", scores, ndim=1)
    if not len(values):
        raise InputError("scores must hold at least one candidate, got shape (0,)")
    return values


def _log_tail(g: float) -> float:
    """ln P(difference of two standard Laplace noises > g)."""
    tail = math.log1p(abs(g) / 2.0) - abs(g) - math.log(2.0)
    return tail if g >= 0.0 else math.log1p(-math.exp(tail))


# ---- sparse switching ----------------------------------------------------------------------------
# The mechanism (gao-2024, Algorithm 5, corrected). Losses are in [0, 1]. At fixed times the query,
# the sum of all clients' losses of the chosen experts since the last switch, plus Lap(b) is
# compared with L + Lap(a), whose noise was drawn at the last switch. If it is strictly above, the
# next expert is chosen by the exponential mechanism of range eta from the scores s(x) = max(sum of
# all clients' losses of x so far, m L*), and the threshold gets fresh noise. After kappa switches
# all stays as it is.
#
# Let one loss function, of one client in round t0, be replaced.
# 1. Until the first comparison after t0 all outputs have the same distribution. Let the switch
# before it be given. Up to the next switch, or the end, the comparisons are an AboveThreshold whose
# queries up to t0 are the same and whose later ones all move by one constant, l'(x) - l(x) in [-1,
# 1] for the expert x of round t0, which the outputs so far have fixed. It costs max(1/a, 1/b)
# (`AboveThreshold`, common_shift).
# 2. After that switch the threshold's noise is a new one, and queries start after t0: given the
# outputs so far, the later comparisons have one distribution. So comparisons cost max(1/a, 1/b)
# once, however many switches there are. (Were the old noise kept, the distribution of the later
# comparisons, given the outputs, would still depend on the loss: it depends on what they tell of
# the noise.) 3. Each later choice of an expert, at most kappa, sees the loss in its scores. A
# maximum with a constant is 1-Lipschitz, so each score moves by at most 1, up or down: eta each, of
# bounded range. One after the other these are adaptive, so they compose as in `privacy_loss`; fewer
# than kappa choices are kappa of which some tell nothing. For many choices the pair of
# distributions that stands for one of them there is worse than what they are together, kappa
# eta^2/8-zCDP (`composition`). So two accounts hold, and the lesser one is taken: all parts by
# their privacy losses, or epsilon of the comparisons plus epsilon of the choices by zCDP.


CALIBRATIONS = ("exact", "printed", "zcdp")

_SOURCE = {
    "exact": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and the "
    "largest eta whose proven composition (bounded-range privacy losses or zCDP) gives the budget",
    "printed": "gao-2024, Algorithm 5 (corrected) with the noise of Theorem D.1 as printed",
    "zcdp": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and eta by "
    "concentrated privacy of bounded-range mechanisms (Cesar & Rogers 2021)",
}


class SparseSwitching(msgspec.Struct, frozen=True, kw_only=True):
    """Sparse switching: one expert for all clients, changed seldom and only if it lost too much.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for.
    switches : int
        kappa >= 0, how often the expert may be changed.
    threshold_scale, query_scale : float
        a and b of the Laplace noises, in losses.
    eta : float
        Of the exponential mechanism.
    calibration : {"exact", "printed", "zcdp"}
        The rule that chose them.
    source : str
        Author-year of the rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    experts is (exact(), budget.delta)-private. Clients send sums of raw losses: the server is
    trusted. The proof stands above this class.
    Source: gao-2024, Algorithm 5, corrected.
    """

    budget: Budget
    switches: int
    threshold_scale: float
    query_scale: float
    eta: float
    calibration: str
    source: str

    def __post_init__(self) -> None:
        """Check every field."""
        integer("switches", self.switches, at_least=0)
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("eta", self.eta, above=0)
        choice("calibration", self.calibration, CALIBRATIONS)

    @property
    def comparisons(self) -> AboveThreshold:
        """The comparisons between one switch and the next."""
        return AboveThreshold(self.threshold_scale, self.query_scale, common_shift=True)

    @property
    def choices(self) -> Exponential:
        """The choice of an expert at a switch."""
        return Exponential(self.eta)

    def parts(self) -> list[Part]:
        """List the mechanisms that one loss pays for, for composed_epsilon."""
        if self.switches == 0:  # nothing is compared either
            return []
        return [
            ("randomized-response", self.comparisons.epsilon, 1),
            ("bounded-range", self.eta, self.switches),
        ]

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for the sequence of experts at delta (default: the budget's)."""
        at = self.budget.delta if delta is None else number("delta", delta, at_least=0, below=1)
        return epsilon_of_choices(self.parts(), at)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations of the Laplace noises, in losses."""
        root = math.sqrt(2.0)
        return {"threshold": root * self.threshold_scale, "query": root * self.query_scale}

    def conditions(self) -> list[Condition]:
        """The claim, computed, and the assumptions that are taken on trust."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition(f"the expert is changed at most {self.switches} times", True),
            Condition("the threshold's noise is used, and drawn again at every switch", True),
            Condition("times of comparison, threshold and L* do not depend on losses", True),
            claim_of_experts(self.budget, self.exact()),
        ]


def epsilon_of_choices(parts: list[Part], delta: float) -> float:
    """Compute the lesser of two accounts of a test and of choices after it.

    Parameters
    ----------
    parts : list of Part
        The test (a coin, or comparisons) and the choices of bounded range; none if nothing is
        released.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        Epsilon of all parts by their privacy losses, or of the test plus that of the choices by
        concentrated privacy.
    """
    found = composed_epsilon(parts, delta)
    if delta == 0.0 or not parts:
        return found
    (_, test, _), (_, eta, count) = parts
    return min(found, test + epsilon_of_rho(count * rho_of_bounded_range(eta), delta))


def claim_of_experts(budget: Budget, found: float) -> ClaimCondition:
    """Return the claim about a proven epsilon of the experts."""
    return ClaimCondition(
        f"the proven epsilon of the experts, {rounded_up(found)} at delta {budget.delta:g} under "
        f"replacement of one loss, is at most {budget.epsilon:g} (computed)",
        found <= budget.epsilon,
    )


def calibrate_switching(
    budget: Budget, *, switches: int, calibration: str = "exact"
) -> SparseSwitching:
    """Calibrate sparse switching to a budget and kappa = switches.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round, for replacement, which covers
        "zero-out".
    switches : int
        kappa >= 0.
    calibration : {"exact", "printed", "zcdp"}
        "exact": a = b = 2/epsilon, so that comparisons cost epsilon/2, and the largest eta for
        which they and kappa choices are proven (epsilon, delta); at delta = 0 that is epsilon/(2
        kappa). "printed" (gao-2024, Theorem D.1): a = 4/epsilon, b = 8/epsilon, and eta =
        epsilon/(2 kappa) at delta = 0, otherwise epsilon / sqrt(kappa ln(1/delta)), which may be
        above the budget: exact() says by how much. "zcdp": a = b = 2/epsilon and eta = sqrt(8
        rho/kappa), sqrt(rho) = sqrt(ln(1/delta) + epsilon/2) - sqrt(ln(1/delta)).

    Returns
    -------
    SparseSwitching

    Raises
    ------
    InputError
        For another unit, for switches < 0, and for "zcdp" with delta = 0.
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("unit", budget.unit, ("user",))
    kappa = integer("switches", switches, at_least=0)
    epsilon, delta = budget.epsilon, budget.delta
    each = max(kappa, 1)  # none costs nothing; the rules are then those of one
    a, b = minimal_scales(epsilon / 2.0, common_shift=True)
    if calibration == "exact":
        paid = AboveThreshold(a, b, common_shift=True).epsilon
        given: tuple[Part, ...] = (("randomized-response", paid, 1),)
        eta = largest_share(epsilon, delta, "bounded-range", each, given)
        if delta > 0.0:
            eta = max(eta, math.sqrt(8.0 * _largest_rho(epsilon - paid, delta) / each))
    elif calibration == "zcdp":
        number("delta", delta, above=0, below=1)
        eta = math.sqrt(8.0 * rho_of_epsilon(epsilon / 2.0, delta) / each)
    else:
        a, b = 4.0 / epsilon, 8.0 / epsilon
        log = -math.log(delta) if delta > 0.0 else math.inf
        eta = epsilon / (2.0 * each) if delta == 0.0 else epsilon / math.sqrt(each * log)
    return SparseSwitching(
        budget=budget,
        switches=kappa,
        threshold_scale=a,
        query_scale=b,
        eta=eta,
        calibration=calibration,
        source=_SOURCE[calibration],
    )


def _largest_rho(epsilon: float, delta: float) -> float:
    """Largest rho for which rho-zCDP is proven (epsilon, delta), to a relative 1e-9 or so."""
    low = rho_of_epsilon(epsilon, delta)  # by the classic formula, which is never better
    high = 2.0 * low
    while epsilon_of_rho(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    found = float(
        brentq(lambda rho: epsilon_of_rho(rho, delta) - epsilon, low, high, xtol=1e-300, rtol=1e-10)
    )
    return found * (1.0 - 1e-8)
