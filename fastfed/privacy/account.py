"""Privacy accounts of plans, computed from the numbers that are executed.

A plan is plain data: drivers and parties execute its numbers. `released` turns these numbers into
privacy events, descriptions that are sufficient for accounting: plain, hashable data with
``exact()``, ``conditions()`` and ``noise_stds`` (the idea of a ``DpEvent`` of Google's
dp_accounting). The rest was declared, such as the budget, the relation or how often a user takes
part: that is the plan's `Claim`, which also carries the epsilon that the plan was sealed with.
`verify` computes it again and refuses a plan whose account is another. Nothing here is taken from
the object that calibrated the noise.

Kinds of plans are registered: ``released.register(MyPlan)``. Of other plans nothing is known, and
whatever their certificate says is their package's own word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, singledispatch
from typing import Any, Protocol, TypeVar

import msgspec

from fastfed._validate import InputError, choice, number
from fastfed.privacy.accounting.gdp import gaussian_epsilon, group_epsilon, sampled_epsilon
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.certificate import ClaimCondition, Condition, noise_claim, rounded_up
from fastfed.privacy.mechanisms.seldom import Dartboard, FreshChoices
from fastfed.privacy.mechanisms.sparse_vector import SparseSwitching
from fastfed.privacy.mechanisms.vertex_sets import VertexNoise
from fastfed.privacy.mechanisms.winsorized import WinsorizedMean
from fastfed.privacy.numbers import check_numbers
from fastfed.privacy.releases.gaussian_release import RELEASES, check_factor, squared_of
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.releases.prefix_sums import Factor, tree_levels
from fastfed.privacy.sensitivity import Budget, Centred, joint_sensitivity, named_relation

#: Accounts that differ by less, relative to their size, are the same but for rounding.
SAME = 1e-9
#: Standard deviations that differ by less are of one layout.
_ROUNDING = 1e-12
_STREAMS = ("bias", "covariance", "covariance_diagonal")

#: Condition of records that enter by coins.
SECRET_COINS = Condition(
    "users' coins are independent, and nobody outside of the silo, but for a server that is "
    "trusted, learns which users were shared or how many (taken on trust)",
    True,
)

P = TypeVar("P")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The declared part of a plan: all that its certificate needs and its numbers do not say.

    Parameters
    ----------
    source : str
        The certificate's.
    budget : Budget, optional
        The budget that was asked for; None where nothing is claimed.
    calibration, remark : str
        The rule that chose the noise, and a remark on it; they choose words, never numbers.
    max_participations : int
        M0, the most batches of one user, once in each; of experts the most losses of one record.
    honest_fraction : float
        The share of users whose noise bits are counted on.
    vector_scale : float
        The factor of the published code.
    protect : {"experts", "messages"}
        Of noisy scores.
    by_silo : tuple of float
        The epsilon that each silo asked for, if it had a say.
    conditions : tuple of Condition
        Conditions that a mechanism of another package takes for granted.
    caveats : tuple of str
        Said beside the privacy, such as of the regret bound.
    exact : tuple of float
        The epsilon of each of the plan's events, as it was when the plan was `sealed`.
    terms : tuple of str
        The other terms that the certificate rests on, as they were then.
    delta_by_silo : tuple of float
        The delta beside each of ``by_silo``; empty where all silos have the budget's.
    silos_met : int
        The most silos that meet one user, once each, every silo with noise of its own.
    """

    source: str
    budget: Budget | None = None
    calibration: str = "exact"
    remark: str = ""
    max_participations: int = 1
    honest_fraction: float = 1.0
    vector_scale: float = 1.0
    protect: str = "experts"
    by_silo: tuple[float, ...] = ()
    conditions: tuple[Condition, ...] = ()
    caveats: tuple[str, ...] = ()
    exact: tuple[float, ...] = ()
    terms: tuple[str, ...] = ()
    delta_by_silo: tuple[float, ...] = ()
    silos_met: int = 1

    @property
    def silo_budgets(self) -> tuple[tuple[float, float], ...]:
        """(epsilon, delta) that each silo asked for, if it had a say."""
        deltas = self.delta_by_silo or (self.asked.delta,) * len(self.by_silo)
        return tuple(zip(self.by_silo, deltas, strict=True))

    @property
    def asked(self) -> Budget:
        """The budget of a plan that claims one."""
        if self.budget is None:
            raise InputError("privacy.budget must be a Budget where noise is added, got None")
        return self.budget


class PrivacyEvent(Protocol):
    """Interface of a description of a release that is sufficient for accounting."""

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream, as a certificate lists them."""
        ...

    def exact(self) -> float:
        """Epsilon of everything released, math.inf where none is proven."""
        ...

    def conditions(self) -> list[Condition]:
        """List the claim, computed, and the assumptions that are taken on trust."""
        ...

    def __hash__(self) -> int:
        """Hash of the content: accounts are cached by it."""
        ...


# ---- events --------------------------------------------------------------------------------------


class NoRelease(msgspec.Struct, frozen=True):
    """The event of a plan whose messages depend on nobody's data."""

    @property
    def noise_stds(self) -> dict[str, float]:
        """No stream has noise."""
        return {}

    def exact(self) -> float:
        """Epsilon 0."""
        return 0.0

    def conditions(self) -> list[Condition]:
        """No conditions."""
        return []


class RawData(msgspec.Struct, frozen=True):
    """Sums of data as they are, or with a stream without noise: no finite epsilon holds."""

    budget: Budget | None = None

    @property
    def noise_stds(self) -> dict[str, float]:
        """No stream has noise."""
        return {}

    def exact(self) -> float:
        """Epsilon is infinite."""
        return math.inf

    def conditions(self) -> list[Condition]:
        """The claim, which fails, where one is made."""
        if self.budget is None:
            return []
        return [noise_claim(self.budget, math.inf)]


class GaussianSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of x y and of x x^T in batches, with Gaussian noise of these standard deviations.

    Parameters
    ----------
    budget : Budget
        The budget that was asked for. Its delta and relation are the account's.
    release : {"tree", "honaker", "toeplitz", "factorised", "buffered", "flat"}
        The noise of prefix sums; "flat" sends every batch once, with noise of its own.
    releases : int
        K >= 1.
    stds : tuple of float
        Standard deviations of bias, off-diagonal and diagonal entries of one noise vector.
    feature_bound, reward_bound : float
        L and Y with ||x||_2 <= L and |y| <= Y.
    max_participations : int
        M0, the most batches of one user, once in each.
    schedule : tuple of float
        Standard deviations off and on the diagonal of the nodes of a private schedule: trees of x
        x^T over single rounds that begin anew at every synchronisation.
    schedule_rounds : int
        The most leaves of one of these trees; 0 for no such schedule.
    remark : str
        For the text of `conditions`.
    factor : Factor, optional
        Of release "factorised".
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code, and whose last diagonal
        entry of x x^T is released without noise, unless there is a coin.
    coin : float, default 1
        Probability that a user's record enters, by a coin of its own that nobody outside of its
        silo sees; 1 for every record.
    silos_met : int, default 1
        The most silos that meet one user, once each. Each has noise of its own, so their
        mechanisms compose: mu grows by its square root.

    Notes
    -----
    Guarantee: everything released of one user is one Gaussian mechanism of GDP parameter mu(), as
    in `GaussianRelease` and `Privatizer` of `fastfed.privacy.releases.gaussian_release`. With a
    coin it is one whose record enters with that probability
    (`fastfed.privacy.accounting.gdp`), for replacement of a user of one batch and sums that
    all have noise.
    """

    budget: Budget
    release: str
    releases: int
    stds: tuple[float, float, float]
    feature_bound: float = 1.0
    reward_bound: float = 1.0
    max_participations: int = 1
    schedule: tuple[float, float] = (0.0, 0.0)
    schedule_rounds: int = 0
    remark: str = ""
    factor: Factor | None = None
    centred: Centred | None = None
    coin: float = 1.0
    silos_met: int = 1

    def __post_init__(self) -> None:
        """Refuse numbers that no account is about."""
        check_factor(self.release, self.releases, self.factor)
        if self.coin != 1.0:
            self._check_coin()
        # Plans are plain data that anyone may change, so their numbers are looked at once more.
        if self.release not in (*RELEASES, "flat"):
            choice("release", self.release, (*RELEASES, "flat"))
        if not (self.releases >= 1 and self.max_participations >= 1):
            raise InputError(
                "releases and max_participations must be >= 1, got "
                f"{self.releases} and {self.max_participations}"
            )
        for name in ("feature_bound", "reward_bound"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be finite and > 0, got {getattr(self, name)}")
        for std in (*self.stds, *self.schedule):
            if not 0.0 <= std < math.inf:
                raise InputError(f"stds must be finite and >= 0, got {std}")

    def _check_coin(self) -> None:
        """Refuse a coin that the account of coins is not about."""
        number("coin", self.coin, above=0.0, at_most=1.0)
        wanted = {
            'relation "replace"': self.budget.relation == "replace",
            "one batch of each user": self.max_participations == self.silos_met == 1,
            "fixed rounds of synchronisation": not self.schedule_rounds,
        }
        wrong = [text for text, holds in wanted.items() if not holds]
        if wrong:
            raise InputError(f"a secret coin's account needs {' and '.join(wrong)}")

    @property
    def squares(self) -> float:
        """Squared sensitivity of the whole release to one user, per unit of one record's."""
        if self.release == "flat":
            return float(min(self.max_participations, self.releases))
        return squared_of(self.release, self.releases, self.max_participations, self.factor)

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of all releases of one user; math.inf where a stream has no noise."""
        relation = named_relation(relation, self.budget)
        area = self.feature_bound**2
        bias = self.stds[0] / (self.feature_bound * self.reward_bound)
        layout, covariance = recovered_layout(*self.stds[1:])
        if min(bias, covariance) == 0.0:
            return math.inf
        if self.centred is None:
            joint = joint_sensitivity(relation, layout, bias_std=bias, cov_std=covariance / area)
        else:
            joint = self.centred.joint(relation, layout, self.stds[0], covariance)
        own = math.sqrt(self.squares * self.silos_met) * joint
        if not self.schedule_rounds:
            return own
        layout, std = recovered_layout(*self.schedule)
        if std == 0.0:
            return math.inf
        moved = joint_sensitivity(relation, layout, bias_std=math.inf) * area
        nodes = tree_levels(self.schedule_rounds) * self.silos_met
        return math.hypot(own, math.sqrt(nodes) * moved / std)

    def exact(self) -> float:
        """True epsilon of everything released, at the budget's delta."""
        mu = self.mu()
        if mu == math.inf:
            return math.inf
        if self.coin == 1.0:
            return gaussian_epsilon(mu, self.budget.delta)
        zeta = max(0.5, self.absent_mu() / mu)
        return sampled_epsilon(self.budget.delta, self.coin, zeta, mu)

    def absent_mu(self) -> float:
        """GDP parameter of all releases between a record and its absence, where every entry has
        noise: a record that does not enter adds zero."""
        if self.centred is None:
            return self.mu("zero-out")
        layout, covariance = recovered_layout(*self.stds[1:])
        absent = self.centred.absent(layout, self.stds[0], covariance, self.stds[2])
        return math.sqrt(self.squares) * absent

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one noise vector, as a certificate lists them."""
        found = dict(zip(_STREAMS, self.stds, strict=True))
        if self.schedule_rounds:
            found["schedule"] = self.schedule[0]
        return found

    def conditions(self) -> list[Condition]:
        """The claim, computed, and what users of several batches take on trust."""
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, event_epsilon(self), note=note)
        coins = [SECRET_COINS] if self.coin != 1.0 else []
        trust = participation_conditions(self.max_participations, self.silos_met)
        return [*trust, *coins, claim]


def recovered_layout(off_diagonal: float, diagonal: float) -> tuple[str, float]:
    """Recover (layout, parameter) of symmetric noise from its two standard deviations.

    "goe1" of s is "goe2" of s / sqrt 2. Where neither fits: a weaker noise of "goe2". Proof: with D
    the change, sum_{i<j} D_ij^2/off^2 + sum_i D_ii^2/diag^2 <= ||D||_F^2 / (2 s^2) for
    s = min(off, diag/sqrt 2), and "goe2" of s has exactly that.
    """
    if off_diagonal == diagonal:
        return "iid", off_diagonal
    if math.isclose(diagonal, off_diagonal * math.sqrt(2.0), rel_tol=_ROUNDING):
        return "goe2", off_diagonal
    return "goe2", min(off_diagonal, diagonal / math.sqrt(2.0))


class WinsorizedMeans(msgspec.Struct, frozen=True, kw_only=True):
    """Private means of vectors, one after the other, each with numbers of its own."""

    means: tuple[WinsorizedMean, ...]

    @property
    def _first(self) -> WinsorizedMean:
        """The first mean, released as often as there are means."""
        return msgspec.structs.replace(self.means[0], releases=len(self.means))

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviation of the last mean."""
        return self.means[-1].noise_stds

    def exact(self) -> float:
        """Epsilon proven for all means together."""
        first = self._first
        if len({(m.epsilon_coordinate, m.padded) for m in self.means}) == 1:
            return first.exact()
        parts = [p for m in self.means for p in msgspec.structs.replace(m, releases=1).parts()]
        return composed_epsilon(parts, first.budget.delta)

    def conditions(self) -> list[Condition]:
        """Conditions of the means, as if all were like the first."""
        return self._first.conditions()


class VertexScores(msgspec.Struct, frozen=True, kw_only=True):
    """Noisy scores of the leaves of DP-FW trees, phase after phase, each on losses of its own.

    noises: one for each distinct phase. protect: "experts" for the experts that are chosen,
    "messages" for what one client sends.
    """

    noises: tuple[VertexNoise, ...]
    protect: str = "experts"

    def _cost(self, noise: VertexNoise, delta: float | None = None) -> float:
        """Epsilon proven for one phase."""
        messages = self.protect == "messages"
        return noise.exact_messages(delta=delta) if messages else noise.exact(delta)

    @property
    def noise_stds(self) -> dict[str, float]:
        """None are listed: they differ by tree."""
        return {}

    def exact(self, delta: float | None = None) -> float:
        """Epsilon of the worst phase: phases look at different losses."""
        return max((self._cost(noise, delta) for noise in self.noises), default=0.0)

    def conditions(self) -> list[Condition]:
        """Conditions of the phase that costs most."""
        return max(self.noises, key=self._cost).conditions() if self.noises else []


#: Accounts of one replaced loss.
OneLoss = SparseSwitching | VertexScores | Dartboard | FreshChoices


class GroupedLosses(msgspec.Struct, frozen=True, kw_only=True):
    """A mechanism of experts, accounted for a record that is behind several losses.

    one: the account of one loss. members: the number of losses, of any clients in any rounds, that
    are replaced together. budget: the one that was asked for, whose delta is the account's.
    """

    one: OneLoss
    members: int
    budget: Budget

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations of the mechanism."""
        return self.one.noise_stds

    def exact(self) -> float:
        """Epsilon by group privacy, one loss after the other (`gdp.group_epsilon`)."""
        return group_epsilon(self.one.exact, self.members, self.budget.delta)

    def conditions(self) -> list[Condition]:
        """The group's claim, computed, and the mechanism's other conditions."""
        found, budget = event_epsilon(self), self.budget
        claim = ClaimCondition(
            f"the proven epsilon of {self.members} losses replaced together, {rounded_up(found)} "
            f"at delta {budget.delta:g}, is at most {budget.epsilon:g} (computed)",
            found <= budget.epsilon,
        )
        return [*(c for c in self.one.conditions() if not isinstance(c, ClaimCondition)), claim]


def check_budget(mechanism: Any, claim: Claim | None) -> None:
    """Refuse a mechanism that was calibrated for another budget than its plan claims."""
    if claim is not None and mechanism.budget != claim.budget:
        raise InputError(
            f"the plan's noise is for {_spelled(mechanism.budget)}, its claim says "
            f"{_spelled(claim.budget)}: they must be one budget"
        )


def _spelled(budget: Budget | None) -> str:
    """Spell a budget out for a message."""
    if budget is None:
        return "no budget"
    return (
        f"epsilon {budget.epsilon:g} and delta {budget.delta:g} under {budget.relation} of "
        f"one {budget.unit}"
    )


def per_record(one: OneLoss, claim: Claim) -> PrivacyEvent:
    """Account for all losses of one record, given the account of one of them."""
    if claim.max_participations == 1:
        return one
    return GroupedLosses(one=one, members=claim.max_participations, budget=claim.asked)


# ---- accounts ------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def event_epsilon(event: PrivacyEvent) -> float:
    """Compute ``event.exact()``, once for every content: parties are many, their plan is one."""
    check_numbers(event)
    try:
        return event.exact()
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(
            f"the numbers of a {type(event).__name__} are beyond what an account can be computed "
            f"for ({error})"
        ) from None


@singledispatch
def released(plan: Any) -> tuple[PrivacyEvent, ...] | None:
    """Describe the release of a plan, from its numbers and its claim; None for an unknown kind.

    ``released.register`` adds a kind of plan.

    Parameters
    ----------
    plan : Plan, PeerPlan, PhasePlan, ExpertPlan or a registered kind
        Plain data that drivers and parties execute.

    Returns
    -------
    tuple of PrivacyEvent, or None
        The first event is the one that the certificate's claim is about; others are the same noise
        under other budgets (`Claim.by_silo`) or towards others.
    """
    return None


@singledispatch
def terms(plan: Any) -> tuple[str, ...]:
    """List the terms that a certificate rests on beside the noise, such as who is trusted."""
    protocol = plan.protocol
    return f'protocol "{protocol.id}"', protocol.model


def accounted(plan: Any) -> tuple[float, ...] | None:
    """Compute the exact epsilon of each event of a plan, math.inf where none is proven.

    Raises InputError for a number that no account is about, and for what no builder puts together.
    """
    check_numbers(plan)
    found = released(plan)
    if isinstance(found, HashedTuple):
        return _all_at(found)
    return None if found is None else tuple(event_epsilon(one) for one in found)


class HashedTuple(tuple[PrivacyEvent, ...]):
    """Many events whose hash is computed once: those of silos with budgets of their own."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        """Hash of the content, computed once."""
        return self._hash


@lru_cache(maxsize=64)
def _all_at(found: HashedTuple) -> tuple[float, ...]:
    """Epsilons of many events, computed once for all of them."""
    return tuple(event_epsilon(one) for one in found)


def sealed(plan: P) -> P:
    """Return the plan, its claim completed by the account of the plan's own numbers."""
    found = accounted(plan)
    if found is None:
        raise InputError(
            f"plan must be of a kind that fastfed accounts for, got {type(plan).__name__}: "
            "register it with fastfed.privacy.account.released"
        )
    claim = plan.privacy  # type: ignore[attr-defined]
    claim = msgspec.structs.replace(claim, exact=found, terms=terms(plan))
    return replace(plan, privacy=claim)  # type: ignore[type-var]


def verify(plan: Any) -> None:
    """Refuse a plan whose numbers give another epsilon than it was sealed with.

    A plan without a claim says nothing, and there is nothing to verify. Of a plan in parts each
    part is verified. Raises InputError.
    """
    # Parts of one size share one plan.
    for one in {id(part.plan): part.plan for part in getattr(plan, "parts", ())}.values():
        verify(one)
    claim = getattr(plan, "privacy", None)
    if claim is None:
        return
    if not isinstance(claim, Claim):
        raise InputError(f"plan.privacy must be a Claim, got {type(claim).__name__}")
    found = accounted(plan)
    if found is None:
        return
    if not same(found, claim.exact):
        raise InputError(
            f"the plan's noise gives epsilon {_shown(found)}, its certificate says "
            f"{_shown(claim.exact)}: the plan is not the one that was certified"
        )
    if isinstance(getattr(plan, "parts", None), tuple):
        return
    if (now := terms(plan)) != claim.terms:
        changed = [text for text in now if text not in claim.terms]
        raise InputError(
            f"the plan has {'; '.join(changed)}, its certificate says "
            f"{'; '.join(text for text in claim.terms if text not in now) or 'otherwise'}"
        )


def same(first: Sequence[float], second: Sequence[float]) -> bool:
    """Compare two accounts but for rounding."""
    return len(first) == len(second) and all(
        a == b or math.isclose(a, b, rel_tol=SAME) for a, b in zip(first, second, strict=True)
    )


def _shown(values: Sequence[float]) -> str:
    """Format the epsilons of an account."""
    texts = [rounded_up(v) if math.isfinite(v) else "infinity" for v in values]
    return ", ".join(texts) or "nothing"
