"""Sparse vector technique, noisy argmin, and sparse switching, which combines them.

The sparse vector technique releases only which query crosses a threshold first. The noisy argmin
releases only which of many scores is the smallest. Sources: Dwork & Roth 2014, Algorithm 1
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
from fastfed.privacy.certificate import ClaimCondition, Condition, epsilon_claim
from fastfed.privacy.mechanisms.laplace import Exponential, laplace_quantile, log_cdf
from fastfed.privacy.sensitivity import Budget, named_delta

# ---- the sparse vector technique -----------------------------------------------------------------


def minimal_scales(
    epsilon: float, sensitivity: float = 1.0, *, common_shift: bool = False
) -> tuple[float, float]:
    """Return the scales (a, b) of threshold noise and query noise with the least total variance.

    They are for an `AboveThreshold` of this epsilon. In general 1/a + 2/b = epsilon/sensitivity
    must hold. Of all such pairs, the pair with b = 2^{1/3} a has the least variance of threshold
    noise plus query noise. With ``common_shift`` both scales may be as small as
    sensitivity/epsilon.
    """
    epsilon = number("epsilon", epsilon, above=0)
    query_change = number("sensitivity", sensitivity, above=0)
    if boolean("common_shift", common_shift):
        return query_change / epsilon, query_change / epsilon
    cube_root = 2.0 ** (1.0 / 3.0)
    return (1.0 + cube_root**2) * query_change / epsilon, (cube_root + 2.0) * query_change / epsilon


class AboveThreshold(msgspec.Struct, frozen=True):
    """The sparse vector technique up to the first query above the threshold.

    Noise Lap(threshold_scale) is added to the threshold once, and independent noise
    Lap(query_scale) to each query. The mechanism stops at the first noisy query that is strictly
    above the noisy threshold.

    Parameters
    ----------
    threshold_scale, query_scale : float
        a and b > 0, in the units of the queries.
    sensitivity : float
        > 0, the largest change of any query between neighbouring datasets.
    common_shift : bool
        True if the queries of neighbouring datasets are equal up to some time, and all later
        queries differ by the same amount. Sums over time have this property if one summand is
        replaced.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: the index of the first query above the threshold (or that there is none) is
    (epsilon, 0)-private, if the threshold's noise is not used again afterwards. epsilon =
    sensitivity (1/a + 2/b); with common_shift it is only sensitivity max(1/a, 1/b). Source: Dwork &
    Roth 2014, Algorithm 1; Lyu, Su & Li 2017 for its variants.
    """

    threshold_scale: float
    query_scale: float
    sensitivity: float = 1.0
    common_shift: bool = False

    # Proof for common_shift. Of two neighbouring datasets D and D', let D' have the larger queries:
    # by c in (0, sensitivity] from time t0 on. Let k >= t0 be the first crossing; a first crossing
    # before t0 has equal probability under both.
    #   P_D(k) <= e^{c/a} P_D'(k): increase the threshold's noise by c under D'. Comparisons from t0
    #     on are then those of D, earlier queries stay below more easily, and the density changes by
    #     at most e^{c/a}.
    #   P_D'(k) <= e^{c/b} P_D(k): keep the threshold's noise. Under D earlier queries stay below
    #     more easily, and query k crosses if its noise is increased by c.
    # The same two arguments without a crossing query cover the outcome "none".

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("common_shift", self.common_shift)

    @property
    def epsilon(self) -> float:
        """Return the epsilon of all comparisons up to the first crossing."""
        a, b = self.threshold_scale, self.query_scale
        if self.common_shift:
            return self.sensitivity * max(1.0 / a, 1.0 / b)
        return self.sensitivity * (1.0 / a + 2.0 / b)

    def first_above(self, queries: object, threshold: float, uniforms: object) -> int | None:
        """Return the index of the first noisy query above the noisy threshold.

        Return None if no query is above it.

        Parameters
        ----------
        queries : array_like (n,)
            The exact queries.
        threshold : float
            The exact threshold.
        uniforms : array_like (n + 1,)
            Random numbers in (0, 1): one for the threshold, then one for each query. Do not use
            them again.
        """
        q = array("queries", queries, ndim=1)
        level = number("threshold", threshold)
        noise = laplace_quantile(array("uniforms", uniforms, shape=(len(q) + 1,)))
        noisy_threshold = level + self.threshold_scale * noise[0]
        crossings = np.flatnonzero(q + self.query_scale * noise[1:] > noisy_threshold)
        return int(crossings[0]) if len(crossings) else None

    def log_crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """Return the logarithms (n + 1,) of `crossing_probabilities`, even of tiny ones."""
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
        # Integrate over r, the noise of the threshold. log_densities is ln of the density of r,
        # times the probability that no query so far has crossed.
        r, log_weights = _quadrature(np.unique(np.append(-gaps, 0.0)), a, b, len(gaps))
        log_densities = log_weights - np.abs(r) / a - math.log(2.0 * a)
        log_probabilities = []
        for gap in gaps:
            z = (gap + r) / b
            log_probabilities.append(_log_sum(log_densities + log_cdf(-z)))
            log_densities = log_densities + log_cdf(z)
        return np.array([*log_probabilities, _log_sum(log_densities)])

    def crossing_probabilities(self, queries: object, threshold: float) -> np.ndarray:
        """Return the distribution (n + 1,) of the first crossing.

        Entry i < n is the probability that query i is the first above the threshold, and entry n
        the probability that none is. Given the noise of the threshold, the queries cross
        independently. So each probability is an integral over the noise of the threshold. It is
        computed by Gauss-Legendre quadrature with a relative error of about 1e-12, in time O(n^2).
        """
        result: np.ndarray = np.exp(self.log_crossing_probabilities(queries, threshold))
        return result


def _quadrature(kinks: np.ndarray, a: float, b: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and the logarithms of the weights of a quadrature rule.

    The rule is for functions of Laplace noise: ``a`` is the scale of the threshold's noise, ``b``
    the scale of each answer's noise, and ``count`` the number of answers. Between the sorted
    ``kinks`` such a function must be a product of exponentials, which changes at a relative rate of
    at most 1/a + count/b. At each kink, intervals are as short as the inverse of this rate; their
    length doubles with the distance from the kink.
    """
    from numpy.polynomial.legendre import leggauss

    # Beyond the outermost kinks the functions decay like exp(-r / a) or exp(-r / b) with the
    # distance r: 45 scales reduce them below 1e-17.
    tail_width = 45.0 * a + 45.0 * b
    low, high = float(kinks[0]) - tail_width, float(kinks[-1]) + tail_width
    first_width = 1.0 / (1.0 / a + count / b)
    widths = first_width * 2.0 ** np.arange(math.ceil(math.log2((high - low) / first_width)) + 1)
    edges = np.unique(
        np.concatenate([kinks, *(kinks + s for s in widths), *(kinks - s for s in widths)])
    )
    edges = np.concatenate([[low], edges[(edges > low) & (edges < high)], [high]])
    unit_nodes, unit_weights = leggauss(20)
    half_widths = np.diff(edges)[:, None] / 2.0
    nodes = edges[:-1, None] + half_widths * (1.0 + unit_nodes)
    return nodes.ravel(), (np.log(half_widths) + np.log(unit_weights)).ravel()


def _log_sum(logs: np.ndarray) -> float:
    """Return ln of the sum of exp(logs), computed without overflow."""
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum())) if math.isfinite(top) else -math.inf


# ---- the noisy argmin ----------------------------------------------------------------------------
# Let neighbouring datasets change every score by at most D, and let all noise have scale b.
# 1. P(i) <= e^(2 D/b) P'(i). Fix the noise of all candidates except i. Candidate i is chosen if its
# noise is below a limit: the smallest other noisy score minus the score of i. On the other dataset
# this limit is lower by at most 2 D, because the smallest other noisy score is lower by at most D,
# and the score of i is higher by at most D. Shifting one Laplace noise by 2 D costs e^(2 D/b).
# 2. If all changes are >= 0, or all are <= 0, the limit changes by at most D, which costs D/b. This
# is so for counts (Dwork & Roth 2014, Claim 3.9), but not for losses.
# 3. The factor 2 is needed. The difference of two noises exceeds g b, g >= 0, with probability
# (1 + g/2) e^-g / 2. Take two candidates whose scores differ by g b, and reduce this distance to
# (g - 2 D/b) b. The log ratio for the worse candidate is 2 D/b + ln((2 + g - 2 D/b) / (2 + g)). It
# tends to 2 D/b as g grows.
# 4. The noise may be a sum, with one part of scale b from each of m clients. Given the parts of all
# clients but one, the choice is the argmin of fixed scores plus that client's noise. So 1 and 2
# hold for each value of the given parts, and on average. For delta = 0 the sum does not improve the
# bound: its tail is a polynomial times e^(-x/b), so the ratio of 3 still tends to e^(2 D/b).


class NoisyArgmin(msgspec.Struct, frozen=True):
    """The mechanism that releases the index of the smallest of d scores with Laplace noise.

    It is also called "report noisy min".

    Parameters
    ----------
    scale : float
        > 0, in the units of the scores.
    sensitivity : float
        > 0, the largest change of any score between neighbouring datasets.
    monotone : bool
        True if neighbouring datasets change all scores in the same direction.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: (epsilon, 0) with epsilon = 2 sensitivity/scale, or sensitivity/scale if monotone,
    for the unit and relation of the sensitivity. This is tight for two or more candidates. The
    proof is above this class; it also covers noise to which several clients contribute. Source:
    Dwork & Roth 2014, Section 3.3.
    """

    scale: float
    sensitivity: float = 1.0
    monotone: bool = False

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        number("scale", self.scale, above=0)
        number("sensitivity", self.sensitivity, above=0)
        boolean("monotone", self.monotone)

    @property
    def epsilon(self) -> float:
        """Return the epsilon of one release of the index of the smallest noisy score."""
        return (1.0 if self.monotone else 2.0) * self.sensitivity / self.scale

    def choose(self, scores: object, noise: object) -> int:
        """Return the index of the smallest entry of scores + scale * noise, the first in a tie.

        ``scores`` has shape (d,). ``noise`` is standard Laplace noise (d,), such as the result of
        `laplace.laplace_quantile`. Do not use the noise again.
        """
        values = _check_scores(scores)
        return int(np.argmin(values + self.scale * array("noise", noise, shape=values.shape)))

    def log_probabilities(self, scores: object) -> np.ndarray:
        """Return ln P(i) (d,), where P(i) is the probability that candidate i is chosen.

        P(i) itself may underflow. It is an integral over the value of the smallest noisy score,
        computed by Gauss-Legendre quadrature with a relative error of about 1e-12. The time is
        O(d^2), about 1 s for d = 100.
        """
        values = _check_scores(scores) / self.scale
        values = values - values.min()
        if len(values) == 1:
            return np.zeros(1)
        r, log_weights = _quadrature(np.unique(values), 1.0, 1.0, len(values))
        gaps = r[:, None] - values
        log_above = log_cdf(-gaps)
        # The noisy score of candidate i is r, and all others are above r.
        logs = log_weights[:, None] - np.abs(gaps) - math.log(2.0)
        logs += log_above.sum(axis=1, keepdims=True) - log_above
        top = logs.max(axis=0)
        result: np.ndarray = top + np.log(np.exp(logs - top).sum(axis=0))
        return result

    def probabilities(self, scores: object) -> np.ndarray:
        """Return the probability (d,) of each candidate to be chosen."""
        result: np.ndarray = np.exp(self.log_probabilities(scores))
        return result

    def two_candidate_loss(self, gap: float) -> float:
        """Return the privacy loss ln(P'(i)/P(i)) if i, the worse of two candidates, is chosen.

        The two scores differ by ``gap`` on the dataset of P. On the neighbouring dataset of P' they
        are closer by the largest possible change. The loss increases with the gap and tends to
        `epsilon`.
        """
        gap_value = number("gap", gap)
        gap_change = (1.0 if self.monotone else 2.0) * self.sensitivity
        return _log_tail((gap_value - gap_change) / self.scale) - _log_tail(gap_value / self.scale)


def _check_scores(scores: object) -> np.ndarray:
    """Return the scores as an array (d,); raise InputError for a different shape or d = 0."""
    values = array("scores", scores, ndim=1)
    if not len(values):
        raise InputError("scores must hold at least one candidate, got shape (0,)")
    return values


def _log_tail(g: float) -> float:
    """Return ln P(X - Y > g) for independent standard Laplace noises X and Y."""
    # For g >= 0 the probability is (1 + g/2) e^-g / 2; X - Y is symmetric.
    tail = math.log1p(abs(g) / 2.0) - abs(g) - math.log(2.0)
    return tail if g >= 0.0 else math.log1p(-math.exp(tail))


# ---- sparse switching ----------------------------------------------------------------------------
# The mechanism (gao-2024, Algorithm 5, corrected). Losses are in [0, 1]. At fixed times the query
# is compared with the threshold. The query is the sum of all clients' losses of the current expert
# since the last switch, plus Lap(b). The threshold is L + Lap(a), with noise drawn at the last
# switch. If the query is strictly above, the next expert is chosen by the exponential mechanism of
# range eta from the scores s(x) = max(sum of all clients' losses of x so far, m L*), and the
# threshold gets fresh noise. After kappa switches the expert is never changed.
#
# Let one loss function, of one client in round t0, be replaced.
# 1. Until the first comparison after t0, all outputs have the same distribution with the old and
# the new loss. Condition on the last switch before this comparison. Up to the next switch, or the
# end, the comparisons are an AboveThreshold. Its queries up to t0 are equal, and all later ones
# change by the same l'(x) - l(x) in [-1, 1], for the expert x of round t0, which earlier outputs
# fix. So these comparisons cost max(1/a, 1/b) (`AboveThreshold`, common_shift).
# 2. After that next switch the threshold has fresh noise, and queries start after t0: given earlier
# outputs, later comparisons have the same distribution. So comparisons cost max(1/a, 1/b) once, for
# any number of switches. (With the old noise, later comparisons would depend on the loss even given
# the outputs, because the outputs give information about that noise.)
# 3. The later choices of an expert, at most kappa, depend on the loss through their scores. A
# maximum with a constant is 1-Lipschitz, so each score changes by at most 1, up or down: bounded
# range eta. The choices are adaptive and compose as in `privacy_loss`; fewer than kappa choices are
# kappa choices of which some release nothing. For many choices, the worst-case pair of
# distributions in `privacy_loss` gives a larger epsilon than kappa eta^2/8-zCDP of all choices
# together. So two accounts hold, and the smaller epsilon is used: all parts by their privacy
# losses, or epsilon of the comparisons plus epsilon of the choices by zCDP.


CALIBRATIONS = ("exact", "printed", "zcdp")

_SOURCE = {
    "exact": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and the "
    "largest eta whose proven composition (bounded-range privacy losses or zCDP) gives the budget",
    "printed": "gao-2024, Algorithm 5 (corrected) with the noise of Theorem D.1 as printed",
    "zcdp": "gao-2024, Algorithm 5 (corrected), half of epsilon for the comparisons and eta by "
    "concentrated privacy of bounded-range mechanisms (Cesar & Rogers 2021)",
}


class SparseSwitching(msgspec.Struct, frozen=True, kw_only=True):
    """Sparse switching: one expert for all clients, changed rarely and only after large losses.

    Parameters
    ----------
    budget : Budget
        The requested budget.
    switches : int
        kappa >= 0, the largest number of switches.
    threshold_scale, query_scale : float
        a and b, the scales of the Laplace noise, in units of loss.
    eta : float
        eta of the exponential mechanism that chooses an expert: its privacy losses have a range of
        at most eta.
    calibration : {"exact", "printed", "zcdp"}
        The rule that chose the noise and eta.
    source : str
        Authors and year of the paper that states the noise rule.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: if one loss function of one client in one round becomes any other, the sequence of
    experts is (exact(), budget.delta)-private. Clients send sums of raw losses, so the server must
    be trusted. The proof is above this class. Source: gao-2024, Algorithm 5, corrected.
    """

    budget: Budget
    switches: int
    threshold_scale: float
    query_scale: float
    eta: float
    calibration: str
    source: str

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        integer("switches", self.switches, at_least=0)
        number("threshold_scale", self.threshold_scale, above=0)
        number("query_scale", self.query_scale, above=0)
        number("eta", self.eta, above=0)
        choice("calibration", self.calibration, CALIBRATIONS)

    @property
    def comparisons(self) -> AboveThreshold:
        """Return the mechanism that decides, by comparisons with the threshold, when to switch."""
        return AboveThreshold(self.threshold_scale, self.query_scale, common_shift=True)

    @property
    def choices(self) -> Exponential:
        """Return the mechanism that chooses an expert at a switch."""
        return Exponential(self.eta)

    def parts(self) -> list[Part]:
        """Return the mechanisms that depend on one loss, as arguments of `composed_epsilon`.

        Each part is (kind, epsilon or eta, number of such mechanisms).
        """
        if self.switches == 0:  # then no queries are compared
            return []
        return [
            ("randomized-response", self.comparisons.epsilon, 1),
            ("bounded-range", self.eta, self.switches),
        ]

    def exact(self, delta: float | None = None) -> float:
        """Compute the proven epsilon of the sequence of experts, at delta (default: budget's)."""
        return epsilon_of_choices(self.parts(), named_delta(delta, self.budget))

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the standard deviations of the Laplace noise, in units of loss."""
        sqrt2 = math.sqrt(2.0)
        return {"threshold": sqrt2 * self.threshold_scale, "query": sqrt2 * self.query_scale}

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        return [
            Condition("losses are in [0, 1]", True),
            Condition(f"the expert is changed at most {self.switches} times", True),
            Condition("the threshold's noise is used, and drawn again at every switch", True),
            Condition("times of comparison, threshold and L* do not depend on losses", True),
            loss_claim(self.budget, self.exact()),
        ]


def epsilon_of_choices(parts: list[Part], delta: float) -> float:
    """Return the proven epsilon of a test that is followed by choices of an expert.

    Parameters
    ----------
    parts : list of Part
        Two parts: the test (a coin, or comparisons), and the choices by the exponential mechanism.
        Empty if nothing is released.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        The smaller of two bounds. The first composes all parts by their privacy losses. The second
        is the epsilon of the test plus the epsilon of the choices by zCDP.
    """
    composed = composed_epsilon(parts, delta)
    if delta == 0.0 or not parts:
        return composed
    (_, test_epsilon, _), (_, eta, count) = parts
    return min(composed, test_epsilon + epsilon_of_rho(count * rho_of_bounded_range(eta), delta))


def loss_claim(budget: Budget, epsilon: float, what: str = "the experts") -> ClaimCondition:
    """Return the condition that ``epsilon``, proven for one replaced loss, is within the budget.

    ``what`` names the outputs in the condition's text.
    """
    return epsilon_claim(budget, epsilon, what, "replacement of one loss", note="computed")


def calibrate_switching(
    budget: Budget, *, switches: int, calibration: str = "exact"
) -> SparseSwitching:
    """Return sparse switching that is calibrated to a budget and at most ``switches`` switches.

    Parameters
    ----------
    budget : Budget
        Unit "user": one loss function of one client in one round. The account is for replacement,
        which covers "zero-out".
    switches : int
        kappa >= 0.
    calibration : {"exact", "printed", "zcdp"}
        The rule for the noise and eta:

        - "exact": a = b = 2/epsilon, so that comparisons cost epsilon/2, and the largest eta for
          which comparisons and kappa choices are proven (epsilon, delta)-private. At delta = 0 it
          is epsilon/(2 kappa).
        - "printed" (gao-2024, Theorem D.1): a = 4/epsilon, b = 8/epsilon, and
          eta = epsilon/(2 kappa) at delta = 0, else epsilon / sqrt(kappa ln(1/delta)). This may
          exceed the budget; exact() returns the true epsilon.
        - "zcdp": a = b = 2/epsilon and eta = sqrt(8 rho/kappa) with
          sqrt(rho) = sqrt(ln(1/delta) + epsilon/2) - sqrt(ln(1/delta)).

    Returns
    -------
    SparseSwitching
        The calibrated mechanism.

    Raises
    ------
    InputError
        For a different unit, for switches < 0, and for "zcdp" with delta = 0.
    """
    choice("calibration", calibration, CALIBRATIONS)
    choice("unit", budget.unit, ("user",))
    kappa = integer("switches", switches, at_least=0)
    epsilon, delta = budget.epsilon, budget.delta
    choices = max(kappa, 1)  # kappa = 0 releases nothing, but eta must be defined
    a, b = minimal_scales(epsilon / 2.0, common_shift=True)
    if calibration == "exact":
        comparisons_epsilon = AboveThreshold(a, b, common_shift=True).epsilon
        other_parts: tuple[Part, ...] = (("randomized-response", comparisons_epsilon, 1),)
        eta = largest_share(epsilon, delta, "bounded-range", choices, other_parts)
        if delta > 0.0:
            # An exponential mechanism is eta^2/8-zCDP, and the choices share the largest rho.
            rho = _largest_rho(epsilon - comparisons_epsilon, delta)
            eta = max(eta, math.sqrt(8.0 * rho / choices))
    elif calibration == "zcdp":
        number("delta", delta, above=0, below=1)
        eta = math.sqrt(8.0 * rho_of_epsilon(epsilon / 2.0, delta) / choices)
    else:
        a, b = 4.0 / epsilon, 8.0 / epsilon
        log_term = -math.log(delta) if delta > 0.0 else math.inf
        eta = epsilon / (2.0 * choices) if delta == 0.0 else epsilon / math.sqrt(choices * log_term)
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
    """Return the largest rho for which rho-zCDP implies (epsilon, delta), up to a relative 1e-8."""
    low = rho_of_epsilon(epsilon, delta)  # the classic formula gives a lower bound
    high = 2.0 * low
    while epsilon_of_rho(high, delta) <= epsilon:
        low, high = high, 2.0 * high
    root = float(
        brentq(lambda rho: epsilon_of_rho(rho, delta) - epsilon, low, high, xtol=1e-300, rtol=1e-10)
    )
    return root * (1.0 - 1e-8)
