"""Gaussian noise on every user's own data point, and a shuffler that permutes the noisy points.

Chowdhury & Zhou 2022, P_Amp (Algorithms 2-4): a message is private already when it leaves a device;
a trusted shuffler of each batch can only hide more, so the reported guarantee is the better of both
arguments.
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
    stds_of_layout,
)

_PAPER = "chowdhury-zhou-2022"
_LOCAL = "exact Gaussian accounting (Balle & Wang 2018, Theorem 8)"
_LEMMA = f"{_PAPER}, Lemma B.4 (Feldman, McMillan & Talwar 2021, Theorem 3.8)"
# Relative amounts by which roots are taken on the safe side, far above rounding.
_MARGIN = 1e-11
_TOTAL = 1.0 - 1e-12
# ln(inner / (delta - inner)) of the lemma's inner delta: searched on so many points, then around
# the best one, and again.
_LOGITS, _GRID, _ROUNDS = (-10.0, 30.0), 10, 10
# Parts of delta that advanced composition may have as its slack.
_SLACKS = (0.25, 0.5, 0.75)
#: Logarithm of deltas too near the end of the doubles to be worth anything.
_SMALLEST = -700.0

# ---- the lemma -----------------------------------------------------------------------------------


class Shuffled(NamedTuple):
    """Output of Lemma B.4, and if its condition holds: the numbers prove nothing without."""

    epsilon: float
    delta: float
    holds: bool


def shuffled(epsilon0: float, delta0: float, users: int, inner_delta: float) -> Shuffled:
    """Lemma B.4 for `users` shuffled messages of an (epsilon0, delta0) local randomizer.

    epsilon = ln(1 + tanh(epsilon0/2) (8 sqrt(e^epsilon0 ln(4/inner)/n) + 8 e^epsilon0/n)),
    delta = inner + (e^epsilon + 1) (1 + e^-epsilon0/2) n delta0 with n = users, under the condition
    epsilon0 <= ln(n/(16 ln(2/inner))). inner_delta: in (0, 1], free. The randomizer must be
    (epsilon0, delta0)-private between any two data points (replacement), since the others' messages
    hide one's own. A large exponent gives infinite values, not an error.

    Source: chowdhury-zhou-2022, Lemma B.4; Feldman, McMillan & Talwar 2021, Theorem 3.8.
    """
    epsilon0 = number("epsilon0", epsilon0, at_least=0)
    delta0 = number("delta0", delta0, at_least=0, below=1)
    users = integer("users", users, at_least=1)
    inner_delta = number("inner_delta", inner_delta, above=0, at_most=1)
    log_inner, log_users = math.log(inner_delta), math.log(users)
    holds = epsilon0 <= _limit(log_users, log_inner)
    if epsilon0 - log_users > 700.0:
        return Shuffled(math.inf, math.inf, holds)
    grown = _growth(epsilon0, log_users, log_inner)
    spent = (grown + 2.0) * (1.0 + math.exp(-epsilon0) / 2.0) * float(users) * delta0
    return Shuffled(math.log1p(grown), inner_delta + spent, holds)


def _limit(log_users: float, log_inner: float) -> float:
    """The lemma's bound on epsilon0; negative where the condition cannot be met."""
    return log_users - math.log(16.0 * (math.log(2.0) - log_inner))


def _growth(epsilon0: float, log_users: float, log_inner: float) -> float:
    """Compute e^epsilon - 1 for the lemma's epsilon."""
    clones = math.exp(epsilon0 - log_users)
    root = math.sqrt(clones * (math.log(4.0) - log_inner))
    return math.tanh(epsilon0 / 2.0) * 8.0 * (root + clones)


def _log_factor(epsilon0: float, log_users: float, log_inner: float) -> float:
    """Compute ln of the factor of delta0 in the lemma."""
    grown = _growth(epsilon0, log_users, log_inner)
    return log_users + math.log(grown + 2.0) + math.log1p(math.exp(-epsilon0) / 2.0)


def _parts(delta: float, logit: float) -> tuple[float, float]:
    """Logarithms of the inner delta and of the rest, which together are at most delta."""
    total = math.log(delta * _TOTAL)
    return total - math.log1p(math.exp(-logit)), total - math.log1p(math.exp(logit)) - _MARGIN


def _least(value: Callable[[float], tuple[int, float]]) -> tuple[int, float]:
    """Minimise over the inner delta; the first entry ranks values that prove nothing last.

    Infeasible points carry their distance from being feasible: the feasible ones may lie between
    two points of the first grid.
    """
    low, high = _LOGITS
    least = (9, math.inf)
    for _ in range(_ROUNDS):
        grid = [low + (high - low) * i / (_GRID - 1) for i in range(_GRID)]
        values = [value(x) for x in grid]
        best = min(range(_GRID), key=values.__getitem__)
        least = min(least, values[best])
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    return least


def _root(function: Callable[[float], float], high: float) -> float:
    """Find the change of sign of a function between 0 and high, to relative accuracy."""
    return float(brentq(function, 0.0, high, xtol=1e-300, rtol=1e-15, maxiter=2000))


def shuffled_epsilon(mu: float, delta: float, users: int) -> float:
    """Least epsilon at delta that Lemma B.4 proves for shuffled Gaussian messages, or math.inf.

    mu: GDP parameter of one message between any two data points, sensitivity / noise_std. Every
    (epsilon0, delta_of(epsilon0, mu)) is a local guarantee, and the best one is taken, with the
    best inner delta. Rounded towards the larger epsilon.
    """
    mu = number("mu", mu, at_least=0)
    delta = number("delta", delta, at_least=0, below=1)
    log_users = math.log(integer("users", users, at_least=1))
    if mu == 0.0:
        return 0.0
    if delta == 0.0 or _limit(log_users, math.log(delta)) <= 0.0:
        return math.inf

    def value(logit: float) -> tuple[int, float]:
        log_inner, log_rest = _parts(delta, logit)
        high = _limit(log_users, log_inner) - 1e-13
        if high <= 0.0:
            return 2, -high
        if log_rest - log_users < _SMALLEST:
            return 3, 0.0

        # What delta0 costs, too much where positive. This falls in epsilon0 wherever the cost is
        # below 1: there delta0 < 1/(2n), and below the limit it falls faster than e^epsilon grows.
        def excess(epsilon0: float) -> float:
            log_delta0 = math.log(max(gaussian_delta(epsilon0, mu), 5e-324))
            return log_delta0 + _log_factor(epsilon0, log_users, log_inner) - log_rest

        # delta_of(e, mu) <= exp(-(e/mu - mu/2)^2 / 2): the root is not above this.
        most = math.log1p(_growth(high, log_users, log_inner)) + log_users + math.log(3.0)
        tail = mu * mu / 2.0 + mu * math.sqrt(2.0 * (most - log_rest))
        high = min(high, tail * (1.0 + 1e-14))
        over = excess(high)
        if over > 0.0:
            return 1, over
        epsilon0 = 0.0
        if excess(0.0) > 0.0:
            epsilon0 = _root(excess, high)
        return 0, math.log1p(_growth(epsilon0, log_users, log_inner)) * (1.0 + _MARGIN)

    rank, epsilon = _least(value)
    return epsilon if rank == 0 else math.inf


def shuffled_mu(epsilon: float, delta: float, users: int) -> float:
    """Largest mu of one Gaussian message for which Lemma B.4 proves (epsilon, delta).

    The lemma solved for epsilon0 under its condition, then for delta0, then `mu_of`, at the best
    inner delta. 0 when the lemma proves nothing for so few users: its condition needs
    users > 16 ln(2/inner delta).
    """
    epsilon = number("epsilon", epsilon, above=0)
    delta = number("delta", delta, above=0, below=1)
    log_users = math.log(integer("users", users, at_least=1))
    if _limit(log_users, math.log(delta)) <= 0.0:
        return 0.0
    goal = math.expm1(min(epsilon, 700.0) * (1.0 - 3.0 * _MARGIN))

    def value(logit: float) -> tuple[int, float]:
        log_inner, log_rest = _parts(delta, logit)
        epsilon0 = _limit(log_users, log_inner) - 1e-13
        if epsilon0 <= 0.0:
            return 1, -epsilon0
        if _growth(epsilon0, log_users, log_inner) > goal:
            epsilon0 = _root(lambda e: _growth(e, log_users, log_inner) - goal, epsilon0)
        log_delta0 = log_rest - _log_factor(epsilon0, log_users, log_inner)
        if log_delta0 < _SMALLEST:
            return 2, 0.0
        return 0, -gaussian_mu(epsilon0, math.exp(log_delta0))

    rank, found = _least(value)
    return -found if rank == 0 else 0.0


# ---- several batches of one user -----------------------------------------------------------------


def _shares(delta: float, count: int) -> list[tuple[float, float]]:
    """(delta of one batch, slack of advanced composition), slack 0 for basic composition."""
    if count == 1:
        return [(delta, 0.0)]
    total = delta * _TOTAL
    shares = [(total / count, 0.0)]
    return shares + [((1.0 - part) * total / count, part * total) for part in _SLACKS]


def _composed(epsilon: float, delta: float, slack: float, count: int) -> float:
    """Epsilon of `count` batches, each (epsilon, delta), with this slack."""
    if slack == 0.0:
        return count * epsilon
    # From ln 2 on basic composition is better.
    if epsilon >= math.log(2.0):
        return math.inf
    return advanced(Guarantee(epsilon, delta), count, slack).epsilon


def _returning_epsilon(mu: float, delta: float, users: int, count: int) -> float:
    """Least epsilon over the shares: the lemma for each batch, then composition."""
    found = ((shuffled_epsilon(mu, d, users), d, slack) for d, slack in _shares(delta, count))
    return min(_composed(e, d, slack, count) for e, d, slack in found)


def _returning_mu(epsilon: float, delta: float, users: int, count: int) -> float:
    """Largest mu of one message over the shares, 0 if there is none."""
    return max(
        shuffled_mu(_share(epsilon, d, slack, count), d, users)
        for d, slack in _shares(delta, count)
    )


def _share(epsilon: float, delta: float, slack: float, count: int) -> float:
    """Largest epsilon of one batch that composes to at most `epsilon`."""
    each = epsilon / count
    if slack > 0.0:
        each = math.nextafter(math.log(2.0), 0.0)
        if _composed(each, delta, slack, count) > epsilon:
            each = _root(lambda e: _composed(e, delta, slack, count) - epsilon, each)
    return each * _TOTAL


#: What Lemma B.4 takes on trust, beside the shuffler.
HIDING = Condition(
    "all users of every batch send the noisy message of the plan, and none tells the server which "
    "is theirs (taken on trust)",
    True,
)


class LocalGaussian(msgspec.Struct, frozen=True, kw_only=True):
    """Both streams of every user's data point, x y and x x^T, with Gaussian noise of the user.

    Parameters
    ----------
    batch_size : int
        B, the users of a batch.
    layout : {"iid", "goe1", "goe2"}
        Layout of each symmetric noise matrix.
    noise_std : float
        Standard deviation of each bias entry of one user's message, in the units of one data point.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose the noise.
    budget : Budget
        The budget that was asked for.
    source : str
        Author-year of the rule.
    returning : int
        M0, the most batches that one user takes part in, once in each.
    covariance_ratio : float
        r > 0: the layout's parameter for the covariance stream is r noise_std.
    shuffled : bool
        True if a trusted shuffler of each batch stands between users and server.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user with ||x||_2 <= 1 and |y| <= 1 in each of at most M0 batches. Without a
    shuffler, towards everyone who sees messages: one Gaussian mechanism of GDP parameter
    mu(relation), also when later points are chosen in view of earlier messages. With it, towards
    everyone who sees shuffled batches: the better of that and Lemma B.4, composed over M0 batches.
    Permuting one stream of a shuffled batch once more is post-processing.
    Source: chowdhury-zhou-2022, Algorithms 2 to 4.
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
        """Check every field."""
        integer("batch_size", self.batch_size, at_least=1)
        integer("returning", self.returning, at_least=1)
        choice("layout", self.layout, LAYOUTS)
        number("noise_std", self.noise_std, above=0)
        number("covariance_ratio", self.covariance_ratio, above=0)
        choice("calibration", self.calibration, CALIBRATIONS)
        boolean("shuffled", self.shuffled)

    @property
    def relation(self) -> str:
        """The relation of the budget, used wherever none is named."""
        return self.budget.relation

    @property
    def stds(self) -> tuple[float, float, float]:
        """Standard deviations of bias, off-diagonal and diagonal entries of one user's noise."""
        return (
            self.noise_std,
            *stds_of_layout(self.layout, self.covariance_ratio * self.noise_std),
        )

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one user's noise, as a certificate lists them."""
        names = ("bias", "covariance", "covariance_diagonal")
        return dict(zip(names, self.stds, strict=True))

    def _message_mu(self, relation: str) -> float:
        """GDP parameter of one message."""
        return joint_sensitivity(
            relation,
            self.layout,
            bias_std=self.noise_std,
            cov_std=self.covariance_ratio * self.noise_std,
        )

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of everything one user sends: sqrt(M0) joint sensitivity / std."""
        relation = named_relation(relation, self.budget)
        return math.sqrt(self.returning) * self._message_mu(relation)

    def ldp(self, delta: float | None = None, relation: str | None = None) -> float:
        """True epsilon of all M0 messages of a user, without counting on a shuffler."""
        return gaussian_epsilon(self.mu(relation), named_delta(delta, self.budget))

    def amplified(self, delta: float | None = None, relation: str | None = None) -> float:
        """Least epsilon that Lemma B.4 proves at delta for shuffled batches; math.inf if none.

        The same under both relations: leaving out is replacing by the data point 0, and the lemma
        needs the others' messages close to one's own whatever they hold. For M0 > 1 the better of
        basic and advanced composition over the batches.
        """
        named_relation(relation, self.budget)
        delta = named_delta(delta, self.budget)
        mu = self._message_mu("replace")
        return _returning_epsilon(mu, delta, self.batch_size, self.returning)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Proven epsilon at delta: `ldp`, and where batches are shuffled at most `amplified`."""
        local = self.ldp(delta, relation)
        if not self.shuffled or local == 0.0:
            return local
        return min(local, self.amplified(delta, relation))

    def conditions(self) -> list[Condition]:
        """The claim under its relation, computed, never quoted, and what is taken on trust."""
        found = self.exact()
        claim = noise_claim(self.budget, found, note=self._remark(found))
        # Local privacy needs nobody else; the lemma hides a message among the others.
        others = [HIDING] if found < self.ldp() else []
        return [*others, *participation_conditions(self.returning), claim]

    def sides(self) -> list[Side]:
        """List the guarantees that hold beside the claim, at the budget's delta.

        Shuffled batches: the guarantee that is left without the shuffler. Otherwise the one that a
        shuffler would add, where the lemma proves any.
        """
        local, trust = self.ldp(), tuple(participation_conditions(self.returning))
        if self.shuffled:
            model = "local: nobody but the user is trusted"
            return [Side(model, f"{_PAPER}, Remark 3.4; {_LOCAL}", local, trust)]
        if self.batch_size == 1 or local == 0.0:
            return []
        best = min(local, self.amplified())
        if best == local:
            return []
        model = "shuffle: with a trusted shuffler of each batch in between"
        source = f"{_PAPER}, Corollary B.3, by Lemma B.4"
        return [Side(model, source, best, (HIDING, *trust))]

    def _remark(self, found: float) -> str:
        """Say which argument holds, and what is known of the rule that chose the noise."""
        said = []
        if self.shuffled:
            said.append(self._argument(found))
        elif self.calibration != "exact":
            said.append("computed")
        if self.calibration == "published-code":
            said.append("no theorem states these constants")
            if self.shuffled:
                delta = self.budget.delta
                local = gaussian_epsilon(self._message_mu("replace"), delta / self.batch_size)
                lemma = self._lemma_condition(local, delta)
                said.append(f"Lemma B.4's condition at the local epsilon, {lemma}")
        elif self.calibration == "theorem":
            epsilon, delta = budget_per_batch(self.budget, self.returning)
            at = ""
            if self.returning > 1:
                at = f"at one batch's budget ({epsilon:.3g}, {delta:.3g}): "
            if self.shuffled:
                most = math.sqrt(math.log(2.0 / delta) / self.batch_size)
                said.append(
                    f"{at}Theorem B.1's condition, epsilon <= sqrt(ln(2/delta)/B) = {most:.3g}, "
                    f"{_verb(epsilon <= most)}"
                )
                lemma = self._lemma_condition(epsilon / most, delta)
                said.append(f"Lemma B.4's, which the theorem leaves out, {lemma}")
            else:
                holds = _verb(epsilon <= 1.0)
                said.append(f"{at}Proposition F.1's condition, epsilon <= 1, {holds}")
        return "; ".join(said)

    def _argument(self, found: float) -> str:
        """Say by which argument a found epsilon holds."""
        if found < self.ldp():
            return "by Lemma B.4"
        users, least = self.batch_size, self.amplified()
        if least < math.inf:
            gives = f"gives {rounded_up(least)}"
        elif users <= 16.0 * math.log(2.0 / _shares(self.budget.delta, self.returning)[0][0]):
            gives = f"proves nothing for batches of {users}"
        else:
            gives = "proves nothing for this noise"
        return f"by local privacy alone; Lemma B.4 {gives}"

    def _lemma_condition(self, epsilon0: float, delta: float) -> str:
        """The lemma's condition at half of delta as the inner one, in numbers."""
        limit = _limit(math.log(self.batch_size), math.log(delta / 2.0))
        return (
            f"epsilon0 = {epsilon0:.3g} <= ln(B/(16 ln(4/delta))) = {limit:.3g}, "
            f"{_verb(epsilon0 <= limit)}"
        )


def _verb(holds: bool) -> str:
    """Say "holds" or "fails"."""
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
        delta > 0; unit "user" or "item".
    batch_size : int
        B.
    returning : int
        M0, the most batches that one user takes part in, once in each.
    shuffled : bool
        True with a shuffler.
    calibration : {"exact", "theorem", "published-code"}
        "exact": the least noise, sqrt(M0) D / mu_of(epsilon, delta), D the joint sensitivity of one
        data point; shuffled: that or, if less, the least noise for which Lemma B.4 proves the
        budget (M0 > 1: of each batch, composed).
        "theorem": s = 4 sqrt(2 ln(2.5/delta)) / epsilon (chowdhury-zhou-2022, Proposition F.1);
        shuffled: s = 4 sqrt(2 ln(2.5 B/delta) ln(2/delta)) / (epsilon sqrt(B)) (Theorem B.1, which
        claims O(epsilon, delta) only). M0 > 1: the same at the budget of `budget_per_batch`. That
        is what Theorem E.3 says it prints; as printed it is too small, by
        sqrt(ln(4 M0/delta) / ln(2/delta)).
        "published-code": with s = sqrt(ln(2.5/delta)) / epsilon, shuffled
        s = sqrt(ln(2.5 B/delta)) / (epsilon sqrt(B)), noise_std s/sqrt(2) and covariance_ratio
        1/sqrt(2): the published experiments' features have norm sqrt(2), so in features of norm 1
        the noise of x y is divided by sqrt(2) and that of x x^T by 2. It need not give the budget,
        see conditions(). For returning = 1 only.
    layout : {"iid", "goe1", "goe2"}, optional
        Free for "exact" (default "goe2"); "iid" for "theorem", "goe1" for "published-code".
    covariance_ratio : float
        Free for "exact", else 1.
    batches : int, optional
        Number of batches, where known; nobody takes part in more.

    Returns
    -------
    LocalGaussian

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo" (this accounts for one user's points), and for a layout,
        ratio or number of batches that does not belong to the calibration.
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
        ratio = 1.0 / math.sqrt(2.0)
    if batches is not None:
        count = max(1, min(count, integer("batches", batches, at_least=0)))
    if calibration == "exact":
        std = _exact_std(budget, users, count, shuffled, layout, ratio)
    elif calibration == "theorem":
        std = _theorem_std(*budget_per_batch(budget, count), users if shuffled else None)
    else:
        most = users if shuffled else 1
        std = math.sqrt(math.log(2.5 * most / budget.delta) / (2.0 * most)) / budget.epsilon
    points = LocalGaussian(
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
    return _within_budget(points) if calibration == "exact" else points


def _exact_std(
    budget: Budget, users: int, count: int, shuffled: bool, layout: str, ratio: float
) -> float:
    """Least noise that is proven to give the budget."""
    local = math.sqrt(count) * exact_std(budget, "tree", 1, layout, ratio)
    if not shuffled:
        return local
    mu = _returning_mu(budget.epsilon, budget.delta, users, count)
    one = joint_sensitivity("replace", layout, cov_std=ratio)
    return min(local, one / mu) if mu > 0.0 else local


def _theorem_std(epsilon: float, delta: float, users: int | None) -> float:
    """Proposition F.1, or Theorem B.1 for shuffled batches of so many users."""
    if users is None:
        return 4.0 * math.sqrt(2.0 * math.log(2.5 / delta)) / epsilon
    logs = math.log(2.5 * users / delta) * math.log(2.0 / delta)
    return 4.0 * math.sqrt(2.0 * logs / users) / epsilon


def _within_budget(points: LocalGaussian) -> LocalGaussian:
    """Add as much noise as rounding, and the two searches' grids, may ask for."""
    step = 1e-12
    while points.exact() > points.budget.epsilon:
        points = msgspec.structs.replace(points, noise_std=points.noise_std * (1.0 + step))
        step *= 2.0
    return points


def _source(calibration: str, shuffled: bool, count: int) -> str:
    """Source of a calibration."""
    if calibration == "published-code":
        return f"constants of the published experiment code of {_PAPER}, for features of norm 1"
    if calibration == "exact":
        if shuffled:
            return f"the less noise of {_LOCAL} and {_LEMMA}, solved for the noise"
        return f"{_LOCAL} of one user's messages ({_PAPER}, Algorithm 2)"
    each = " at the budget of one batch (Theorem E.2)"
    if not shuffled:
        return f"{_PAPER}, Proposition F.1" + (each if count > 1 else "")
    if count > 1:
        return f"{_PAPER}, Theorem E.3, its logarithm put right: Theorem B.1{each}"
    return f"{_PAPER}, Theorem B.1"
