"""Gaussian noise that every user adds to their data point, with or without a shuffler of messages.

Chowdhury & Zhou 2022, P_Amp (Algorithms 2-4). A message is private as soon as it leaves the user's
device. A trusted shuffler of each batch can only improve this, so two accounts hold for shuffled
messages: local privacy, and amplification by shuffling. The reported epsilon is the smaller of the
two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from fastfed._roots import brentq
from fastfed._validate import InputError, boolean, choice, integer, number
from fastfed.privacy.accounting.gdp import advanced, gaussian_delta, gaussian_epsilon, gaussian_mu
from fastfed.privacy.certificate import Condition, Guarantee, Side, noise_claim, rounded_up
from fastfed.privacy.releases.gaussian_release import (
    CALIBRATIONS,
    LayoutNoise,
    check_exact_ratio,
    exact_std,
    layout_of,
)
from fastfed.privacy.releases.participation import budget_per_batch, participation_conditions
from fastfed.privacy.sensitivity import (
    LAYOUTS,
    Budget,
    check_gaussian_budget,
    joint_sensitivity,
    named_delta,
    named_relation,
)

_PAPER = "chowdhury-zhou-2022"
_LOCAL = "exact Gaussian accounting (Balle & Wang 2018, Theorem 8)"
_LEMMA = f"{_PAPER}, Lemma B.4 (Feldman, McMillan & Talwar 2021, Theorem 3.8)"
# Roots are moved to the safe side by this relative amount, far above rounding errors.
_MARGIN = 1e-11
_BELOW_ONE = 1.0 - 1e-12
# The inner delta is a free parameter of Lemma B.4. It is chosen by x = ln(inner / (delta - inner)):
# on a grid of points over this range, then on finer grids around the best point.
_LOGIT_RANGE, _GRID_POINTS, _REFINEMENTS = (-10.0, 30.0), 10, 10
# Fractions of delta that are tried as the slack of advanced composition.
_SLACKS = (0.25, 0.5, 0.75)
#: Logarithm of the smallest delta that is used. Smaller ones are too close to the smallest double.
_SMALLEST = -700.0

# ---- amplification by shuffling: Lemma B.4 -------------------------------------------------------


class Shuffled(NamedTuple):
    """The (epsilon, delta) of Lemma B.4, and whether the lemma's condition holds.

    If ``holds`` is false, nothing is proven.
    """

    epsilon: float
    delta: float
    holds: bool


def shuffled(epsilon0: float, delta0: float, users: int, inner_delta: float) -> Shuffled:
    """Return the guarantee of Lemma B.4 for shuffled messages of a local randomizer.

    The randomizer is (epsilon0, delta0)-private, and each of n = ``users`` users sends one message.
    Then
    epsilon = ln(1 + tanh(epsilon0/2) (8 sqrt(e^epsilon0 ln(4/inner)/n) + 8 e^epsilon0/n)) and
    delta = inner + (e^epsilon + 1) (1 + e^-epsilon0/2) n delta0, under the condition
    epsilon0 <= ln(n/(16 ln(2/inner))). Here inner is ``inner_delta``, a free parameter in (0, 1].
    The randomizer must be (epsilon0, delta0)-private between any two data points (replacement),
    because the messages of other users, with any data, hide a user's message. Where e^epsilon0 / n
    would overflow, epsilon and delta are infinite.

    Source: chowdhury-zhou-2022, Lemma B.4; Feldman, McMillan & Talwar 2021, Theorem 3.8.
    """
    epsilon0 = number("epsilon0", epsilon0, at_least=0)
    delta0 = number("delta0", delta0, at_least=0, below=1)
    users = integer("users", users, at_least=1)
    inner_delta = number("inner_delta", inner_delta, above=0, at_most=1)
    log_inner, log_users = math.log(inner_delta), math.log(users)
    condition_holds = epsilon0 <= _epsilon0_limit(log_users, log_inner)
    if epsilon0 - log_users > 700.0:
        return Shuffled(math.inf, math.inf, condition_holds)
    growth = _exp_epsilon_minus_1(epsilon0, log_users, log_inner)
    delta_of_randomizer = (growth + 2.0) * (1.0 + math.exp(-epsilon0) / 2.0) * float(users) * delta0
    return Shuffled(math.log1p(growth), inner_delta + delta_of_randomizer, condition_holds)


def _epsilon0_limit(log_users: float, log_inner: float) -> float:
    """Return the largest epsilon0 that Lemma B.4 allows. It is negative if none is allowed.

    The arguments are ln n and ln inner_delta, see `shuffled`.
    """
    return log_users - math.log(16.0 * (math.log(2.0) - log_inner))


def _exp_epsilon_minus_1(epsilon0: float, log_users: float, log_inner: float) -> float:
    """Return e^epsilon - 1, where epsilon is the result of Lemma B.4.

    The arguments are epsilon0, ln n and ln inner_delta, see `shuffled`.
    """
    ratio = math.exp(epsilon0 - log_users)  # e^epsilon0 / n
    root = math.sqrt(ratio * (math.log(4.0) - log_inner))
    return math.tanh(epsilon0 / 2.0) * 8.0 * (root + ratio)


def _log_delta0_factor(epsilon0: float, log_users: float, log_inner: float) -> float:
    """Return the logarithm of the factor by which Lemma B.4 multiplies delta0.

    The factor is (e^epsilon + 1) (1 + e^-epsilon0/2) n, see `shuffled`.
    """
    growth = _exp_epsilon_minus_1(epsilon0, log_users, log_inner)
    return log_users + math.log(growth + 2.0) + math.log1p(math.exp(-epsilon0) / 2.0)


def _split_delta(delta: float, logit: float) -> tuple[float, float]:
    """Return (ln inner, ln rest): a split of delta between the two terms of Lemma B.4.

    ``inner`` is the lemma's free parameter ``inner_delta``. ``rest`` is for the other term, a
    factor times the local delta0 of one message (see `shuffled`). inner + rest is slightly below
    delta, to be safe from rounding, and ``logit`` is ln(inner / rest) up to this margin.
    """
    log_total = math.log(delta * _BELOW_ONE)
    return log_total - math.log1p(math.exp(-logit)), log_total - math.log1p(
        math.exp(logit)
    ) - _MARGIN


def _minimise(value: Callable[[float], tuple[int, float]]) -> tuple[int, float]:
    """Return the least ``value(logit)``, where `_split_delta` splits delta by the logit.

    ``value`` returns (rank, number), compared in this order. Rank 0 means that Lemma B.4 applies,
    and the number is minimised. A higher rank means that it does not apply. The number then
    measures by how much its condition fails, which leads the search to a narrow range of logits at
    which the condition holds.
    """
    low, high = _LOGIT_RANGE
    best_value = (9, math.inf)
    for _ in range(_REFINEMENTS):
        grid = [low + (high - low) * i / (_GRID_POINTS - 1) for i in range(_GRID_POINTS)]
        values = [value(x) for x in grid]
        best_index = min(range(_GRID_POINTS), key=values.__getitem__)
        best_value = min(best_value, values[best_index])
        low, high = grid[max(best_index - 1, 0)], grid[min(best_index + 1, _GRID_POINTS - 1)]
    return best_value


def _root(function: Callable[[float], float], high: float) -> float:
    """Return the root of a function in [0, high], with a small relative error."""
    return float(brentq(function, 0.0, high, xtol=1e-300, rtol=1e-15, maxiter=2000))


def shuffled_epsilon(mu: float, delta: float, users: int) -> float:
    """Return the least epsilon at delta that Lemma B.4 proves for shuffled Gaussian messages.

    ``mu`` is the GDP parameter of one message for replacement: sensitivity / noise_std. Every pair
    (epsilon0, gaussian_delta(epsilon0, mu)) is a local guarantee. The pair and the inner delta with
    the least epsilon are used. The result is rounded up. It is math.inf if the lemma proves
    nothing.
    """
    mu = number("mu", mu, at_least=0)
    delta = number("delta", delta, at_least=0, below=1)
    log_users = math.log(integer("users", users, at_least=1))
    if mu == 0.0:
        return 0.0
    if delta == 0.0 or _epsilon0_limit(log_users, math.log(delta)) <= 0.0:
        return math.inf

    def ranked_epsilon(logit: float) -> tuple[int, float]:
        """Return (0, epsilon) for this split of delta, or a rank > 0, see `_minimise`."""
        log_inner, log_rest = _split_delta(delta, logit)
        high = _epsilon0_limit(log_users, log_inner) - 1e-13
        if high <= 0.0:
            return 2, -high
        if log_rest - log_users < _SMALLEST:
            return 3, 0.0

        # The needed delta is at least 2 n delta0. So wherever it is below 1, delta0 < 1/(2n). For
        # such delta0 and for epsilon0 up to `high`, delta0 decreases faster than e^epsilon grows.
        # So the excess decreases in epsilon0 wherever the needed delta is below 1.
        def excess(epsilon0: float) -> float:
            """Return ln(delta that the lemma needs / delta that is available)."""
            log_delta0 = math.log(max(gaussian_delta(epsilon0, mu), 5e-324))
            return log_delta0 + _log_delta0_factor(epsilon0, log_users, log_inner) - log_rest

        # gaussian_delta(e, mu) <= exp(-(e/mu - mu/2)^2 / 2), so the root is at most high_for_tail.
        log_largest_factor = (
            math.log1p(_exp_epsilon_minus_1(high, log_users, log_inner)) + log_users + math.log(3.0)
        )
        high_for_tail = mu * mu / 2.0 + mu * math.sqrt(2.0 * (log_largest_factor - log_rest))
        high = min(high, high_for_tail * (1.0 + 1e-14))
        excess_at_high = excess(high)
        if excess_at_high > 0.0:
            return 1, excess_at_high
        # The smallest epsilon0 whose delta0 is small enough for the available delta.
        epsilon0 = 0.0
        if excess(0.0) > 0.0:
            epsilon0 = _root(excess, high)
        return 0, math.log1p(_exp_epsilon_minus_1(epsilon0, log_users, log_inner)) * (1.0 + _MARGIN)

    rank, epsilon = _minimise(ranked_epsilon)
    return epsilon if rank == 0 else math.inf


def shuffled_mu(epsilon: float, delta: float, users: int) -> float:
    """Return the largest mu of one Gaussian message for which Lemma B.4 proves (epsilon, delta).

    mu is sensitivity / noise_std, so the largest mu has the least noise. For each inner delta, the
    lemma is solved for epsilon0 under its condition, then for delta0, and `gaussian_mu` gives mu.
    The inner delta with the largest mu is used. The result is 0 if there are too few users: the
    lemma needs users > 16 ln(2/inner delta).
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    log_users = math.log(integer("users", users, at_least=1))
    if _epsilon0_limit(log_users, math.log(delta)) <= 0.0:
        return 0.0
    largest_growth = math.expm1(min(epsilon, 700.0) * (1.0 - 3.0 * _MARGIN))

    def ranked_negative_mu(logit: float) -> tuple[int, float]:
        """Return (0, -mu) for this split of delta, or a rank > 0, see `_minimise`."""
        # The largest epsilon0 that Lemma B.4 allows and with which it gives at most epsilon.
        log_inner, log_rest = _split_delta(delta, logit)
        epsilon0 = _epsilon0_limit(log_users, log_inner) - 1e-13
        if epsilon0 <= 0.0:
            return 1, -epsilon0
        if _exp_epsilon_minus_1(epsilon0, log_users, log_inner) > largest_growth:
            epsilon0 = _root(
                lambda e: _exp_epsilon_minus_1(e, log_users, log_inner) - largest_growth, epsilon0
            )
        # The delta0 for which the lemma needs exactly the rest of delta.
        log_delta0 = log_rest - _log_delta0_factor(epsilon0, log_users, log_inner)
        if log_delta0 < _SMALLEST:
            return 2, 0.0
        return 0, -gaussian_mu(epsilon0, math.exp(log_delta0))

    rank, negative_mu = _minimise(ranked_negative_mu)
    return -negative_mu if rank == 0 else 0.0


# ---- several batches of one user -----------------------------------------------------------------


def _delta_splits(delta: float, count: int) -> list[tuple[float, float]]:
    """Return ways to split delta over ``count`` batches, as tuples (delta of one batch, slack).

    The slack is the additional delta of advanced composition. 0 means basic composition.
    """
    if count == 1:
        return [(delta, 0.0)]
    total = delta * _BELOW_ONE
    shares = [(total / count, 0.0)]
    return shares + [((1.0 - part) * total / count, part * total) for part in _SLACKS]


def _composed(epsilon: float, delta: float, slack: float, count: int) -> float:
    """Return the epsilon of ``count`` batches that are each (epsilon, delta)-private.

    A ``slack`` > 0 is the additional delta of advanced composition, which is then used. With slack
    0 composition is basic. The result is infinite for slack > 0 and epsilon >= ln 2, where basic
    composition is better.
    """
    if slack == 0.0:
        return count * epsilon
    if epsilon >= math.log(2.0):
        return math.inf
    return advanced(Guarantee(epsilon, delta), count, slack).epsilon


def _shuffled_batches_epsilon(mu: float, delta: float, users: int, count: int) -> float:
    """Return the least epsilon that is proven for a user's messages in ``count`` shuffled batches.

    ``mu`` is the GDP parameter of one message. Lemma B.4 gives the epsilon of one batch of
    ``users`` messages, and composition the epsilon of all batches.
    """
    per_batch = (
        (shuffled_epsilon(mu, d, users), d, slack) for d, slack in _delta_splits(delta, count)
    )
    return min(_composed(e, d, slack, count) for e, d, slack in per_batch)


def _shuffled_batches_mu(epsilon: float, delta: float, users: int, count: int) -> float:
    """Return the largest mu of one message with which ``count`` shuffled batches meet the budget.

    The budget is (epsilon, delta), and a batch has ``users`` messages. The result is 0 if nothing
    is proven.
    """
    return max(
        shuffled_mu(_epsilon_per_batch(epsilon, d, slack, count), d, users)
        for d, slack in _delta_splits(delta, count)
    )


def _epsilon_per_batch(epsilon: float, delta: float, slack: float, count: int) -> float:
    """Return the largest epsilon of one batch with which ``count`` batches have ``epsilon``.

    ``delta`` (of one batch) and ``slack`` are one entry of the result of `_delta_splits`. With
    advanced composition (slack > 0), only values below ln 2 are considered, as in `_composed`.
    """
    epsilon_per_batch = epsilon / count
    if slack > 0.0:
        epsilon_per_batch = math.nextafter(math.log(2.0), 0.0)
        if _composed(epsilon_per_batch, delta, slack, count) > epsilon:
            epsilon_per_batch = _root(
                lambda e: _composed(e, delta, slack, count) - epsilon, epsilon_per_batch
            )
    return epsilon_per_batch * _BELOW_ONE


#: The condition of Lemma B.4 about the other users, in addition to the trusted shuffler.
HIDING = Condition(
    "all users of every batch send the noisy message of the plan, and none tells the server which "
    "message is theirs (taken on trust)",
    True,
)


class LocalGaussian(LayoutNoise, msgspec.Struct, frozen=True, kw_only=True):
    """The mechanism in which each user adds Gaussian noise to x y and x x^T of their data point.

    Parameters
    ----------
    batch_size : int
        B, the number of users of a batch.
    layout : {"iid", "goe1", "goe2"}
        Layout of each symmetric noise matrix.
    noise_std : float
        Standard deviation of each bias entry of one user's message, in the units of one data point.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose the noise.
    budget : Budget
        The requested budget.
    source : str
        Authors and year of the paper that states the noise rule.
    returning : int
        M0, the largest number of batches that one user takes part in, once in each batch.
    covariance_ratio : float
        r > 0: the layout's parameter for the covariance stream is r noise_std.
    shuffled : bool
        True if a trusted shuffler permutes the messages of each batch before the server sees them.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user with ||x||_2 <= 1 and |y| <= 1 in each of at most M0 batches. Without a
    shuffler, all messages of a user are one Gaussian mechanism of GDP parameter mu(relation) for
    every observer, even if later points depend on earlier messages. With a shuffler, two guarantees
    hold for an observer of the shuffled batches: this guarantee, and that of Lemma B.4 composed
    over M0 batches. The smaller epsilon counts. Source: chowdhury-zhou-2022, Algorithms 2 to 4. The
    paper shuffles the two parts of a message separately, which is post-processing of a shuffled
    batch.
    """

    batch_size: int
    layout: str
    noise_std: float
    calibration: str
    budget: Budget
    source: str
    returning: int = 1
    covariance_ratio: float = 1.0
    shuffled: bool = False

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        integer("batch_size", self.batch_size, at_least=1)
        integer("returning", self.returning, at_least=1)
        choice("layout", self.layout, LAYOUTS)
        number("noise_std", self.noise_std, above=0)
        number("covariance_ratio", self.covariance_ratio, above=0)
        choice("calibration", self.calibration, CALIBRATIONS)
        boolean("shuffled", self.shuffled)

    def _message_mu(self, relation: str) -> float:
        """Return the GDP parameter mu of one user's message under a neighbouring relation."""
        return joint_sensitivity(
            relation,
            self.layout,
            bias_std=self.noise_std,
            cov_std=self.covariance_ratio * self.noise_std,
        )

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter of all messages of a user, without a shuffler.

        It is sqrt(M0) times one message's mu, with M0 = ``returning`` messages. ``relation`` is the
        neighbouring relation, by default the budget's.
        """
        relation = named_relation(relation, self.budget)
        return math.sqrt(self.returning) * self._message_mu(relation)

    def ldp(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the exact epsilon of all ``returning`` messages of a user, without a shuffler.

        The defaults of ``delta`` and ``relation`` are those of the budget.
        """
        return gaussian_epsilon(self.mu(relation), named_delta(delta, self.budget))

    def amplified(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the least epsilon at delta that Lemma B.4 proves for shuffled batches.

        It is math.inf if the lemma proves none. For ``returning`` > 1, the batches of a user are
        composed by basic or advanced composition, whichever gives the smaller epsilon. The result
        is the same for both relations: the lemma is about replacement, and "zero-out" is a
        replacement by 0.
        """
        named_relation(relation, self.budget)
        delta = named_delta(delta, self.budget)
        mu = self._message_mu("replace")
        return _shuffled_batches_epsilon(mu, delta, self.batch_size, self.returning)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon of all messages of a user, at ``delta`` under ``relation``.

        It is the epsilon of local privacy. For shuffled batches, it is the epsilon of amplification
        (`amplified`) if that is smaller. The defaults are the budget's delta and relation.
        """
        local = self.ldp(delta, relation)
        if not self.shuffled or local == 0.0:
            return local
        return min(local, self.amplified(delta, relation))

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        proven_epsilon = self.exact()
        claim = noise_claim(self.budget, proven_epsilon, note=self._remark(proven_epsilon))
        # Lemma B.4 assumes that the messages of other users hide a user's message. Local privacy
        # does not need this.
        hiding = [HIDING] if proven_epsilon < self.ldp() else []
        return [*hiding, *participation_conditions(self.returning), claim]

    def sides(self) -> list[Side]:
        """Return the guarantees in other trust models, at the budget's delta.

        With shuffled batches, the list holds the local guarantee, which needs no shuffler. Without
        a shuffler, it holds the guarantee that a shuffler would give, or is empty if Lemma B.4
        proves no epsilon below the local one (`ldp`), as for batches of one user.
        """
        local, trust = self.ldp(), tuple(participation_conditions(self.returning))
        if self.shuffled:
            model = "local: nobody but the user is trusted"
            return [Side(model, f"{_PAPER}, Remark 3.4; {_LOCAL}", local, trust)]
        if self.batch_size == 1 or local == 0.0:
            return []
        best_epsilon = min(local, self.amplified())
        if best_epsilon == local:
            return []
        model = "shuffle: with a trusted shuffler of each batch in between"
        source = f"{_PAPER}, Corollary B.3, by Lemma B.4"
        return [Side(model, source, best_epsilon, (HIDING, *trust))]

    def _remark(self, proven_epsilon: float) -> str:
        """Return a remark for the certificate on the proof of ``proven_epsilon``.

        For shuffled batches the remark names the account that proves this epsilon. If the rule
        ``calibration`` comes from a theorem, it also states whether the theorem's conditions hold.
        """
        remarks = []
        if self.shuffled:
            remarks.append(self._argument(proven_epsilon))
        elif self.calibration != "exact":
            remarks.append("computed")
        if self.calibration == "published-code":
            remarks.append("no theorem states these constants")
            if self.shuffled:
                delta = self.budget.delta
                message_mu = self._message_mu("replace")
                message_epsilon = gaussian_epsilon(message_mu, delta / self.batch_size)
                lemma = self._lemma_condition(message_epsilon, delta)
                remarks.append(f"Lemma B.4's condition at the local epsilon, {lemma}")
        elif self.calibration == "theorem":
            epsilon, delta = budget_per_batch(self.budget, self.returning)
            at_budget = ""
            if self.returning > 1:
                at_budget = f"at one batch's budget ({epsilon:.3g}, {delta:.3g}): "
            if self.shuffled:
                epsilon_limit = math.sqrt(math.log(2.0 / delta) / self.batch_size)
                remarks.append(
                    f"{at_budget}Theorem B.1's condition, epsilon <= sqrt(ln(2/delta)/B) = "
                    f"{epsilon_limit:.3g}, "
                    f"{_holds_or_fails(epsilon <= epsilon_limit)}"
                )
                lemma = self._lemma_condition(epsilon / epsilon_limit, delta)
                remarks.append(f"Lemma B.4's, which the theorem leaves out, {lemma}")
            else:
                condition_text = _holds_or_fails(epsilon <= 1.0)
                remarks.append(
                    f"{at_budget}Proposition F.1's condition, epsilon <= 1, {condition_text}"
                )
        return "; ".join(remarks)

    def _argument(self, proven_epsilon: float) -> str:
        """Return a text that says what proves this epsilon: Lemma B.4 or local privacy."""
        if proven_epsilon < self.ldp():
            return "by Lemma B.4"
        users, amplified_epsilon = self.batch_size, self.amplified()
        if amplified_epsilon < math.inf:
            lemma_result = f"gives {rounded_up(amplified_epsilon)}"
        elif users <= 16.0 * math.log(2.0 / _delta_splits(self.budget.delta, self.returning)[0][0]):
            lemma_result = f"proves nothing for batches of {users}"
        else:
            lemma_result = "proves nothing for this noise"
        return f"by local privacy alone; Lemma B.4 {lemma_result}"

    def _lemma_condition(self, epsilon0: float, delta: float) -> str:
        """Return the condition of Lemma B.4 at inner delta = delta / 2, and if it holds, as text.

        ``epsilon0`` is the local epsilon of one message.
        """
        limit = _epsilon0_limit(math.log(self.batch_size), math.log(delta / 2.0))
        return (
            f"epsilon0 = {epsilon0:.3g} <= ln(B/(16 ln(4/delta))) = {limit:.3g}, "
            f"{_holds_or_fails(epsilon0 <= limit)}"
        )


def _holds_or_fails(holds: bool) -> str:
    """Return "holds" or "fails"."""
    return "holds" if holds else "fails"


# ---- from a budget to the noise ------------------------------------------------------------------


def calibrate_local_gaussian(
    budget: Budget,
    batch_size: int,
    *,
    returning: int = 1,
    shuffled: bool = False,
    calibration: str = "exact",
    layout: str | None = None,
    covariance_ratio: float = 1.0,
    batches: int | None = None,
) -> LocalGaussian:
    """Calibrate the noise on every user's data point, with or without a shuffler of each batch.

    Parameters
    ----------
    budget : Budget
        The requested budget, with delta > 0 and unit "user" or "item".
    batch_size : int
        B, the number of users of a batch.
    returning : int
        M0, the largest number of batches that one user takes part in, once in each batch.
    shuffled : bool
        True if a trusted shuffler permutes the messages of each batch.
    calibration : {"exact", "theorem", "published-code"}
        The rule for the noise:

        - "exact": the least noise that is proven. Without a shuffler it is
          sqrt(M0) D / mu_of(epsilon, delta), where D is the joint sensitivity of one data point and
          `fastfed.privacy.mu_of` gives the GDP parameter of the budget. With a shuffler it is the
          smaller one of this noise and of the least noise for which Lemma B.4 proves the budget
          (composed over M0 batches).
        - "theorem": s = 4 sqrt(2 ln(2.5/delta)) / epsilon (chowdhury-zhou-2022, Proposition F.1);
          shuffled: s = 4 sqrt(2 ln(2.5 B/delta) ln(2/delta)) / (epsilon sqrt(B)) (Theorem B.1,
          which claims O(epsilon, delta) only). For M0 > 1, the same at the budget of
          `budget_per_batch`. Theorem E.3 intends this, but its printed formula is too small by
          sqrt(ln(4 M0/delta) / ln(2/delta)).
        - "published-code": with s = sqrt(ln(2.5/delta)) / epsilon, or shuffled
          s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt(B)), noise_std is s/sqrt(2) and
          covariance_ratio 1/sqrt(2). The published experiments use features of norm sqrt(2). In
          features of norm 1, the noise of x y is divided by sqrt(2), and the noise of x x^T by 2.
          This noise need not meet the budget, see ``conditions()``. For returning = 1 only.
    layout : {"iid", "goe1", "goe2"}, optional
        Any for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    covariance_ratio : float
        Any > 0 for "exact". For the other rules the argument must be 1, although the mechanism of
        "published-code" has 1/sqrt(2).
    batches : int, optional
        Total number of batches, if known. It limits ``returning``.

    Returns
    -------
    LocalGaussian
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo" (the account is for one user's points), and for a layout,
        ratio or number of batches that the calibration does not allow.
    """
    users = integer("batch_size", batch_size, at_least=1)
    count = integer("returning", returning, at_least=1)
    boolean("shuffled", shuffled)
    layout = layout_of(calibration, layout)
    check_exact_ratio(calibration, covariance_ratio)
    ratio = number("covariance_ratio", covariance_ratio, above=0)
    check_gaussian_budget(budget)
    if calibration == "published-code":
        if count != 1:
            raise InputError(
                f'returning must be 1 when calibration is "published-code", got {count}'
            )
        # The code uses features of norm sqrt(2), see the docstring.
        ratio = 1.0 / math.sqrt(2.0)
    if batches is not None:
        count = max(1, min(count, integer("batches", batches, at_least=0)))
    if calibration == "exact":
        std = _exact_std(budget, users, count, shuffled, layout, ratio)
    elif calibration == "theorem":
        std = _theorem_std(*budget_per_batch(budget, count), users if shuffled else None)
    else:
        shuffled_users = users if shuffled else 1
        std = (
            math.sqrt(math.log(2.5 * shuffled_users / budget.delta) / (2.0 * shuffled_users))
            / budget.epsilon
        )
    mechanism = LocalGaussian(
        batch_size=users,
        returning=count,
        layout=layout,
        noise_std=std,
        covariance_ratio=ratio,
        calibration=calibration,
        budget=budget,
        source=_source(calibration, shuffled, count),
        shuffled=shuffled,
    )
    return _within_budget(mechanism) if calibration == "exact" else mechanism


def _exact_std(
    budget: Budget, users: int, count: int, shuffled: bool, layout: str, ratio: float
) -> float:
    """Return the least noise std of a message with which the budget is proven.

    ``users`` is the size of a batch, and ``count`` the number of batches of one user. The std is
    that of an entry of x y; the noise of x x^T has ``ratio`` times this std in the given layout.
    """
    # A single release of a tree is one Gaussian vector, as a message is.
    local_std = math.sqrt(count) * exact_std(budget, "tree", 1, layout, ratio)
    if not shuffled:
        return local_std
    mu = _shuffled_batches_mu(budget.epsilon, budget.delta, users, count)
    message_sensitivity = joint_sensitivity("replace", layout, cov_std=ratio)
    return min(local_std, message_sensitivity / mu) if mu > 0.0 else local_std


def _theorem_std(epsilon: float, delta: float, users: int | None) -> float:
    """Return the noise std of a message by the paper's theorem.

    Theorem B.1 is for shuffled batches of ``users`` users. With ``users`` None, messages are not
    shuffled, and Proposition F.1 gives the noise std.
    """
    if users is None:
        return 4.0 * math.sqrt(2.0 * math.log(2.5 / delta)) / epsilon
    logs = math.log(2.5 * users / delta) * math.log(2.0 / delta)
    return 4.0 * math.sqrt(2.0 * logs / users) / epsilon


def _within_budget(mechanism: LocalGaussian) -> LocalGaussian:
    """Return the mechanism with its noise increased until its epsilon is within the budget.

    Before this, epsilon may be slightly above the budget, because of rounding and of the finite
    grids of the searches.
    """
    step = 1e-12
    while mechanism.exact() > mechanism.budget.epsilon:
        mechanism = msgspec.structs.replace(mechanism, noise_std=mechanism.noise_std * (1.0 + step))
        step *= 2.0
    return mechanism


def _source(calibration: str, shuffled: bool, count: int) -> str:
    """Return the paper and theorem of a calibration rule, for the certificate."""
    if calibration == "published-code":
        return f"constants of the published experiment code of {_PAPER}, for features of norm 1"
    if calibration == "exact":
        if shuffled:
            return f"the less noise of {_LOCAL} and {_LEMMA}, solved for the noise"
        return f"{_LOCAL} of one user's messages ({_PAPER}, Algorithm 2)"
    at_batch_budget = " at the budget of one batch (Theorem E.2)"
    if not shuffled:
        return f"{_PAPER}, Proposition F.1" + (at_batch_budget if count > 1 else "")
    if count > 1:
        return f"{_PAPER}, Theorem E.3, its logarithm corrected: Theorem B.1{at_batch_budget}"
    return f"{_PAPER}, Theorem B.1"
