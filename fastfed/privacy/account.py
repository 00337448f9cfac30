"""Privacy accounts of plans, computed from the numbers that are executed.

A plan is plain data: drivers and parties execute its numbers. `released` turns these numbers into
privacy events. An event describes a release and is sufficient for accounting: plain, hashable data
with ``exact()``, ``conditions()`` and ``noise_stds``, like a ``DpEvent`` of Google's dp_accounting.

What the numbers do not say is declared in the plan's `Claim`: the budget, the relation, how often a
user takes part. To seal a plan is to store its exact epsilon in its claim (`sealed`). `verify`
computes this epsilon again and refuses the plan if the two differ. The account never reads the
object that calibrated the noise.

``released.register(MyPlan)`` adds a kind of plan. Nothing is checked for plans of unregistered
kinds: their certificates are only as good as the package that wrote them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, singledispatch
from typing import Any, Protocol, TypeVar

import msgspec

from fastfed._validate import InputError, choice, number
from fastfed.privacy.accounting.gdp import gaussian_epsilon, group_epsilon, sampled_epsilon
from fastfed.privacy.accounting.privacy_loss import composed_epsilon
from fastfed.privacy.certificate import (
    ClaimCondition,
    Condition,
    Guarantee,
    epsilon_claim,
    noise_claim,
    rounded_up,
)
from fastfed.privacy.mechanisms.reward_release import RewardRelease
from fastfed.privacy.mechanisms.seldom import Dartboard, FreshChoices
from fastfed.privacy.mechanisms.sparse_vector import SparseSwitching
from fastfed.privacy.mechanisms.vertex_sets import VertexNoise
from fastfed.privacy.mechanisms.winsorized import WinsorizedMean
from fastfed.privacy.numbers import check_numbers, is_immutable
from fastfed.privacy.releases.gaussian_release import RELEASES, check_factor, squared_of
from fastfed.privacy.releases.participation import participation_conditions
from fastfed.privacy.releases.prefix_sums import Factor, tree_levels
from fastfed.privacy.sensitivity import (
    DIAGONAL,
    STREAMS,
    Budget,
    Centred,
    joint_sensitivity,
    named_relation,
)

#: Two epsilons within this relative difference are the same up to rounding.
TOLERANCE = 1e-9
#: Two standard deviations within this relative difference come from the same layout.
_STD_TOLERANCE = 1e-12

#: The condition on which the account of a secret coin (random sampling of records) rests.
SECRET_COINS = Condition(
    "users' coins are independent, and nobody outside the silo, except a trusted server, learns "
    "which users were shared or how many (taken on trust)",
    True,
)

P = TypeVar("P")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The declared part of a plan: what its certificate needs and its numbers do not say.

    Parameters
    ----------
    source : str
        The source that the certificate cites.
    budget : Budget, optional
        The requested budget. None if the plan claims no privacy.
    calibration, remark : str
        The rule that chose the noise, and a remark on it. They change the certificate's wording,
        never its numbers.
    max_participations : int
        M0, the largest number of batches that one user takes part in, once in each batch. For
        experts: the largest number of losses that depend on one record.
    honest_fraction : float
        The fraction of users whose noise bits the account counts.
    vector_scale : float
        The factor of the published code on the number of noise bits of a vector sum.
    protect : {"experts", "messages"}
        What the noisy scores of experts protect; see `VertexScores`.
    by_silo : tuple of float
        The epsilon that each silo requested. Empty if silos request none.
    conditions : tuple of Condition
        Conditions that a mechanism of another package assumes.
    caveats : tuple of str
        Further caveats of the certificate, for example about the regret bound.
    exact : tuple of float
        The epsilon of each event of the plan, computed when the plan was `sealed`.
    terms : tuple of str
        What the certificate assumes besides the noise, as the function `terms` returned it when the
        plan was `sealed`.
    delta_by_silo : tuple of float
        The delta that each silo requested, in the order of ``by_silo``. Empty if all silos use the
        budget's delta.
    silos_met : int
        The largest number of silos that one user visits, once each. Each silo adds independent
        noise.
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
        """The (epsilon, delta) that each silo requested, or () if silos request none."""
        deltas = self.delta_by_silo or (self.required_budget.delta,) * len(self.by_silo)
        return tuple(zip(self.by_silo, deltas, strict=True))

    @property
    def required_budget(self) -> Budget:
        """The budget. Raise InputError if the plan claims none."""
        if self.budget is None:
            raise InputError("privacy.budget must be a Budget where noise is added, got None")
        return self.budget


class PrivacyEvent(Protocol):
    """The interface of events: descriptions of a release that are sufficient for accounting."""

    @property
    def noise_stds(self) -> dict[str, float]:
        """The standard deviation of the noise in each released sum, as the certificate lists it."""
        ...

    def exact(self) -> float:
        """Return the epsilon of everything released; math.inf if no finite epsilon is proven."""
        ...

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and a condition on the claim.

        This condition holds if the exact epsilon is at most the claimed epsilon.
        """
        ...

    def __hash__(self) -> int:
        """Return a hash of the content, by which accounts are cached."""
        ...


# ---- events --------------------------------------------------------------------------------------


class NoRelease(msgspec.Struct, frozen=True):
    """The event of a plan that sends nothing, or nothing that depends on anybody's data."""

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: no stream has noise."""
        return {}

    def exact(self) -> float:
        """Return epsilon = 0."""
        return 0.0

    def conditions(self) -> list[Condition]:
        """Return an empty list: the account assumes nothing."""
        return []


class RawData(msgspec.Struct, frozen=True):
    """The event of sums of which at least one has no noise, so that no finite epsilon holds."""

    budget: Budget | None = None

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: noise in only some of the sums protects nobody."""
        return {}

    def exact(self) -> float:
        """Return epsilon = infinity."""
        return math.inf

    def conditions(self) -> list[Condition]:
        """Return the condition that the claim holds, which fails. Return [] without a claim."""
        if self.budget is None:
            return []
        return [noise_claim(self.budget, math.inf)]


class GaussianSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of x y and of x x^T over batches, released with Gaussian noise.

    Parameters
    ----------
    budget : Budget
        The requested budget. The account uses its delta and its relation.
    release : {"tree", "honaker", "toeplitz", "factorised", "buffered", "flat"}
        How prefix sums get their noise. "flat" releases every batch once, with independent noise.
    releases : int
        K >= 1, the number of releases.
    stds : tuple of float
        Standard deviations of one noise vector (of one tree node, or one batch): in entries of
        x y, in entries of x x^T off the diagonal, and in entries of x x^T on the diagonal.
    feature_bound, reward_bound : float
        L and Y with ||x||_2 <= L and |y| <= Y.
    max_participations : int
        M0, the largest number of batches that one user takes part in, once in each batch.
    schedule : tuple of float
        Standard deviations, off and on the diagonal, of the noise of one tree node in a private
        schedule. Such a schedule decides when to synchronise from noisy trees of x x^T, whose
        leaves are single rounds. Each synchronisation starts a new tree.
    schedule_rounds : int
        The largest number of leaves of one tree of the schedule; 0 if the schedule is not private.
    remark : str
        A remark for the text of `conditions`.
    factor : Factor, optional
        The matrix factor, for release "factorised" only.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes. The last diagonal
        entry of x x^T is then released without noise, unless ``coin`` is below 1.
    coin : float, default 1
        Probability with which a user's record is included. The coins are independent, and nobody
        outside the silo sees them. 1 includes every record.
    silos_met : int, default 1
        The largest number of silos that one user visits, once each. Each silo adds independent
        noise, so their mechanisms compose: mu grows by sqrt(silos_met).
    unit_vectors : bool, default False
        True if every x is a unit vector e_a. The sum of x x^T is then diagonal, and its entries off
        the diagonal, which are 0, need no noise.

    Notes
    -----
    Guarantee: everything released about one user is one Gaussian mechanism of GDP parameter mu(),
    as in `GaussianRelease` and `Privatizer` of `fastfed.privacy.releases.gaussian_release`. With a
    coin it is a Gaussian mechanism on randomly sampled records (`fastfed.privacy.accounting.gdp`).
    That account holds for replacement of a user of one batch, if every entry has noise.
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
    unit_vectors: bool = False

    def __post_init__(self) -> None:
        """Raise InputError for numbers for which no account is proven."""
        check_factor(self.release, self.releases, self.factor)
        if self.coin != 1.0:
            self._check_coin()
        # An event is computed from a plan, which is plain data that anyone can change. So check the
        # numbers here, even if they were checked when the plan was made.
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
        """Raise InputError if the account of secret coins is not proven for the other fields."""
        number("coin", self.coin, above=0.0, at_most=1.0)
        requirements = {
            'relation "replace"': self.budget.relation == "replace",
            "one batch of each user": self.max_participations == self.silos_met == 1,
            "fixed rounds of synchronisation": not self.schedule_rounds,
        }
        unmet = [text for text, holds in requirements.items() if not holds]
        if unmet:
            raise InputError(f"a secret coin's account needs {' and '.join(unmet)}")

    @property
    def squares(self) -> float:
        """The squared sensitivity of all releases to one user's data.

        The unit is the squared sensitivity of a single batch to one record.
        """
        if self.release == "flat":
            return float(min(self.max_participations, self.releases))
        return squared_of(self.release, self.releases, self.max_participations, self.factor)

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of all releases about one user; math.inf without noise.

        mu is the sensitivity divided by the standard deviation of the noise. The default of
        ``relation`` is the budget's relation.
        """
        relation = named_relation(relation, self.budget)
        squared_bound = self.feature_bound**2
        bias_std = self.stds[0] / (self.feature_bound * self.reward_bound)
        layout, covariance_std = (
            (DIAGONAL, self.stds[2]) if self.unit_vectors else recovered_layout(*self.stds[1:])
        )
        if min(bias_std, covariance_std) == 0.0:
            return math.inf
        if self.centred is None:
            record_mu = joint_sensitivity(
                relation, layout, bias_std=bias_std, cov_std=covariance_std / squared_bound
            )
        else:
            record_mu = self.centred.joint(relation, layout, self.stds[0], covariance_std)
        sums_mu = math.sqrt(self.squares * self.silos_met) * record_mu
        if not self.schedule_rounds:
            return sums_mu
        # With a private schedule, a record also enters one node of each level of a tree of the
        # schedule. The square of each such node's mu is added to the square of sums_mu.
        layout, std = recovered_layout(*self.schedule)
        if std == 0.0:
            return math.inf
        node_sensitivity = joint_sensitivity(relation, layout, bias_std=math.inf) * squared_bound
        nodes = tree_levels(self.schedule_rounds) * self.silos_met
        return math.hypot(sums_mu, math.sqrt(nodes) * node_sensitivity / std)

    def exact(self) -> float:
        """Return the exact epsilon of all releases, at the budget's delta."""
        mu = self.mu()
        if mu == math.inf:
            return math.inf
        if self.coin == 1.0:
            return gaussian_epsilon(mu, self.budget.delta)
        # The sensitivity to removing a record, divided by the sensitivity to replacing it. It is at
        # least 1/2, since a replacement is a removal and an addition.
        zeta = max(0.5, self.absent_mu() / mu)
        return sampled_epsilon(self.budget.delta, self.coin, zeta, mu)

    def absent_mu(self) -> float:
        """Return the GDP parameter mu of all releases if one record is removed, not replaced.

        `exact` needs this for sampled records: a record that is not sampled adds zero to every sum.
        Every entry must have noise. As in `mu`, the mu of a single batch is multiplied by the root
        of ``squares``, the squared sensitivity of all releases.
        """
        if self.centred is None:
            return self.mu("zero-out")
        layout, covariance_std = recovered_layout(*self.stds[1:])
        absent_record_mu = self.centred.absent(layout, self.stds[0], covariance_std, self.stds[2])
        return math.sqrt(self.squares) * absent_record_mu

    @property
    def noise_stds(self) -> dict[str, float]:
        """The standard deviations of one noise vector, as the certificate lists them."""
        stds_by_stream = dict(zip(STREAMS, self.stds, strict=True))
        if self.schedule_rounds:
            stds_by_stream["schedule"] = self.schedule[0]
        return stds_by_stream

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        note = f"computed; {self.remark}" if self.remark else ""
        claim = noise_claim(self.budget, event_epsilon(self), note=note)
        coins = [SECRET_COINS] if self.coin != 1.0 else []
        trust = participation_conditions(self.max_participations, self.silos_met)
        return [*trust, *coins, claim]


def recovered_layout(off_diagonal: float, diagonal: float) -> tuple[str, float]:
    """Return the tuple (layout, s) of a symmetric noise matrix with these standard deviations.

    s is the parameter of the layout (`fastfed.privacy.sensitivity.layout_stds`). Layout "goe1" with
    s is returned as "goe2" with s / sqrt 2, which is the same noise. If the standard deviations fit
    no layout, the result is "goe2" with less noise, so its epsilon is an upper bound. Proof: let D
    be the change of the sum. For s = min(off, diag/sqrt 2),
    sum_{i<j} D_ij^2/off^2 + sum_i D_ii^2/diag^2 <= ||D||_F^2 / (2 s^2). The left side is the
    squared mu of the actual noise, and the right side is that of "goe2" with parameter s.
    """
    if off_diagonal == diagonal:
        return "iid", off_diagonal
    if math.isclose(diagonal, off_diagonal * math.sqrt(2.0), rel_tol=_STD_TOLERANCE):
        return "goe2", off_diagonal
    return "goe2", min(off_diagonal, diagonal / math.sqrt(2.0))


class WinsorizedMeans(msgspec.Struct, frozen=True, kw_only=True):
    """The event of several private means of vectors (ROBIN), which may differ in noise."""

    means: tuple[WinsorizedMean, ...]

    @property
    def _first(self) -> WinsorizedMean:
        """The mechanism of the first mean, as if it were released as often as there are means."""
        return msgspec.structs.replace(self.means[0], releases=len(self.means))

    @property
    def noise_stds(self) -> dict[str, float]:
        """The standard deviation of the noise of the last mean."""
        return self.means[-1].noise_stds

    def exact(self) -> float:
        """Return the proven epsilon of all means together, at the budget's delta."""
        first = self._first
        if len({(m.epsilon_coordinate, m.padded) for m in self.means}) == 1:
            return first.exact()
        # The means differ: compose the mechanisms of each of them.
        single_means = [msgspec.structs.replace(mean, releases=1) for mean in self.means]
        parts = [part for mean in single_means for part in mean.parts()]
        return composed_epsilon(parts, first.budget.delta)

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds.

        They are those of the first mean, as if it were released as often as there are means.
        """
        return self._first.conditions()


class VertexScores(msgspec.Struct, frozen=True, kw_only=True):
    """The event of private Frank-Wolfe: noisy scores of experts at the leaves of trees.

    A phase has one set of trees, and phases use disjoint losses. ``noises`` holds one entry for
    each distinct phase. ``protect`` says what is accounted for: "experts" for the chosen experts,
    "messages" for the messages that one client sends.
    """

    noises: tuple[VertexNoise, ...]
    protect: str = "experts"

    def _phase_epsilon(self, noise: VertexNoise, delta: float | None = None) -> float:
        """Return the proven epsilon of the phase with this noise.

        The default of ``delta`` is the delta of the phase's budget.
        """
        messages = self.protect == "messages"
        return noise.exact_messages(delta=delta) if messages else noise.exact(delta)

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: the noise differs from tree to tree."""
        return {}

    def exact(self, delta: float | None = None) -> float:
        """Return the epsilon of the whole run: the largest of the epsilons of its phases.

        Each loss belongs to one phase only, so phases compose in parallel.
        """
        return max((self._phase_epsilon(noise, delta) for noise in self.noises), default=0.0)

    def conditions(self) -> list[Condition]:
        """Return the assumptions and the claim's condition of the phase with the most epsilon."""
        return max(self.noises, key=self._phase_epsilon).conditions() if self.noises else []


#: Events of experts. Their epsilon is for the replacement of a single loss.
OneLoss = SparseSwitching | VertexScores | Dartboard | FreshChoices


class GroupedLosses(msgspec.Struct, frozen=True, kw_only=True):
    """An event of experts for the replacement of one record on which several losses depend.

    ``one`` is the event for the replacement of a single loss. ``members`` is the number of losses,
    of any clients and rounds, that one record can change. ``budget`` is the requested budget; the
    account uses its delta.
    """

    one: OneLoss
    members: int
    budget: Budget

    @property
    def noise_stds(self) -> dict[str, float]:
        """The standard deviations of the mechanism's noise."""
        return self.one.noise_stds

    def exact(self) -> float:
        """Return the epsilon of one record by group privacy: one loss is replaced after another."""
        return group_epsilon(self.one.exact, self.members, self.budget.delta)

    def conditions(self) -> list[Condition]:
        """Return the mechanism's assumptions, and the condition that a record's claim holds."""
        losses = f"{self.members} losses replaced together"
        claim = epsilon_claim(self.budget, event_epsilon(self), losses, note="computed")
        return [*(c for c in self.one.conditions() if not isinstance(c, ClaimCondition)), claim]


def check_budget(mechanism: Any, claim: Claim | None) -> None:
    """Raise InputError if a mechanism's budget differs from the budget that its plan claims."""
    if claim is not None and mechanism.budget != claim.budget:
        raise InputError(
            f"the plan's noise is for {_format_budget(mechanism.budget)}, but its claim states "
            f"{_format_budget(claim.budget)}: both must be the same budget"
        )


def _format_budget(budget: Budget | None) -> str:
    """Return the text of a budget for an error message, with relation and unit."""
    if budget is None:
        return "no budget"
    return (
        f"epsilon {budget.epsilon:g} and delta {budget.delta:g} under {budget.relation} of "
        f"one {budget.unit}"
    )


def per_record(one_loss: OneLoss, claim: Claim) -> PrivacyEvent:
    """Return the event for the replacement of one record, from the event of a single loss.

    ``claim.max_participations`` is the number of losses that depend on one record.
    """
    if claim.max_participations == 1:
        return one_loss
    return GroupedLosses(
        one=one_loss, members=claim.max_participations, budget=claim.required_budget
    )


# ---- accounts ------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def event_epsilon(event: PrivacyEvent) -> float:
    """Return the exact epsilon ``event.exact()``, after a check of the event's numbers.

    The result is cached by content, because many parties share one plan.
    """
    check_numbers(event)
    try:
        return event.exact()
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no account can be computed for the numbers of this {type(event).__name__} ({error})"
        ) from None


def exact_guarantee(event: PrivacyEvent, delta: float) -> Guarantee | None:
    """Return the (epsilon, delta) guarantee of an event, with its mu if the release is Gaussian.

    Return None if no finite epsilon is proven. ``delta`` is that of the event's budget.
    """
    epsilon = event_epsilon(event)
    if not math.isfinite(epsilon):
        return None
    is_gaussian = isinstance(event, RewardRelease) or (
        isinstance(event, GaussianSums) and event.coin == 1.0
    )
    return Guarantee(epsilon, delta, event.mu() if is_gaussian else None)  # type: ignore[attr-defined]


@singledispatch
def released(plan: Any) -> tuple[PrivacyEvent, ...] | None:
    """Return the privacy events of a plan: what it releases, from its numbers and its claim.

    The function depends on the type of the plan (`functools.singledispatch`). The version here is
    for unregistered kinds of plans; ``released.register`` adds a kind.

    Parameters
    ----------
    plan : Plan, PeerPlan, PhasePlan, ExpertPlan or a registered kind
        Plain data that drivers and parties execute.

    Returns
    -------
    tuple of PrivacyEvent, or None
        None for an unregistered kind of plan. The certificate's claim is about the
        first event. Further events describe the same noise for other budgets
        (`Claim.by_silo`) or for other observers.
    """
    return None


@singledispatch
def terms(plan: Any) -> tuple[str, ...]:
    """Return what a certificate assumes besides the noise, as texts: protocol and trust model."""
    protocol = plan.protocol
    return f'protocol "{protocol.id}"', protocol.model


def accounted(plan: Any) -> tuple[float, ...] | None:
    """Return the exact epsilon of each privacy event of a plan, in the order of `released`.

    An epsilon is math.inf if no finite epsilon is proven. The result is None for an unregistered
    kind of plan. Raises InputError for numbers, or combinations of fields, for which no account is
    proven.
    """
    check_numbers(plan)
    events = released(plan)
    if isinstance(events, HashedTuple):
        return _epsilons_of(events)
    return None if events is None else tuple(event_epsilon(event) for event in events)


class HashedTuple(tuple[PrivacyEvent, ...]):
    """A tuple of many events, such as one for each silo's budget, whose hash is computed once.

    The hash is the key of a cache, and hashing many events takes long.
    """

    @cached_property
    def _hash(self) -> int:
        """The hash of the tuple's content."""
        return super().__hash__()

    def __hash__(self) -> int:
        """Return the hash of the content, computed once."""
        return self._hash


@lru_cache(maxsize=64)
def _epsilons_of(events: HashedTuple) -> tuple[float, ...]:
    """Return the epsilon of each event. The result is cached for the whole tuple."""
    return tuple(event_epsilon(event) for event in events)


def sealed(plan: P) -> P:
    """Return the plan with the exact epsilons of its noise, and its terms, filled in its claim.

    `verify` compares them with the plan's numbers. Raises InputError for an unregistered kind.
    """
    epsilons = accounted(plan)
    if epsilons is None:
        raise InputError(
            f"no account is registered for plans of type {type(plan).__name__}: "
            "register one with fastfed.privacy.account.released"
        )
    claim = plan.privacy  # type: ignore[attr-defined]
    claim = msgspec.structs.replace(claim, exact=epsilons, terms=terms(plan))
    return replace(plan, privacy=claim)  # type: ignore[type-var]


#: Plans that `verify` has accepted and that cannot change, by their identity.
_accepted: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def verify(plan: Any, epsilons: tuple[float, ...] | None = None) -> None:
    """Raise InputError if a plan's numbers do not give the epsilon that its claim states.

    The terms of plan and claim must agree, too. A plan without a claim passes, since it promises
    nothing. If a plan has parts, each part is verified. ``epsilons`` is the result of `accounted`
    for this plan, if it is known. A plan object that cannot change is verified only once: each
    replicate of an experiment runs the same object.
    """
    if _accepted.get(id(plan)) is plan:
        return
    if _is_verified(plan, epsilons) and is_immutable(plan):
        _accepted[id(plan)] = plan


def _is_verified(plan: Any, epsilons: tuple[float, ...] | None) -> bool:
    """Raise InputError if a plan's numbers contradict its claim, as `verify` describes.

    Return True if they were compared or the plan has no claim; False for a plan of an unregistered
    kind. ``epsilons`` is the result of `accounted` for the plan, or None if it is not known.
    """
    # Parts of equal size share one plan object, which is verified once.
    for part_plan in {id(part.plan): part.plan for part in getattr(plan, "parts", ())}.values():
        verify(part_plan)
    claim = getattr(plan, "privacy", None)
    if claim is None:
        return True
    if not isinstance(claim, Claim):
        raise InputError(f"plan.privacy must be a Claim, got {type(claim).__name__}")
    epsilons = accounted(plan) if epsilons is None else epsilons
    if epsilons is None:
        return False
    if not same(epsilons, claim.exact):
        raise InputError(
            f"the plan's noise gives epsilon {_format_epsilons(epsilons)}, its certificate says "
            f"{_format_epsilons(claim.exact)}: the plan is not the one that was certified"
        )
    if isinstance(getattr(plan, "parts", None), tuple):
        return True
    if (plan_terms := terms(plan)) != claim.terms:
        changed = [text for text in plan_terms if text not in claim.terms]
        raise InputError(
            f"the plan has {'; '.join(changed)}, its certificate says "
            f"{'; '.join(text for text in claim.terms if text not in plan_terms) or 'otherwise'}"
        )
    return True


def same(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return True if two lists of epsilons have equal lengths and equal values, up to rounding."""
    return len(first) == len(second) and all(
        a == b or math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(first, second, strict=True)
    )


def _format_epsilons(epsilons: Sequence[float]) -> str:
    """Return the text of a list of epsilons for an error message."""
    texts = [rounded_up(epsilon) if math.isfinite(epsilon) else "infinity" for epsilon in epsilons]
    return ", ".join(texts) or "nothing"
