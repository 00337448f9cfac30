"""The model by which a deployed silo chooses actions, and plans that continue an earlier plan.

A model is computed from the last broadcast of a plan (noisy sums of all silos' records). If the
plan continues an earlier plan and starts from the earlier model, the earlier plan's last broadcast
is added.

The document of a plan that continues an earlier plan contains the whole earlier document, so that
every party can recompute both certificates. If silos start from the earlier model, the document
also contains the broadcast of that model. Exported models are computed from broadcasts only, never
from data that stay at the silo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, choice
from fastfed.bandits.linucb import Acting, Estimate
from fastfed.deployment.charges import charge_of
from fastfed.deployment.kinds import SAME_PEOPLE, SAME_VISITORS, Executed, first_model
from fastfed.deployment.ledger import epsilon_of_charges
from fastfed.deployment.schema import Schema
from fastfed.deployment.wire import Broadcast, View, check_entries
from fastfed.experts import ALGORITHMS as EXPERTS
from fastfed.privacy.certificate import Certificate, Guarantee, SideCertificate
from fastfed.protocols.plan import ClockedPlan, Plan
from fastfed.protocols.release import prefix_noise

if TYPE_CHECKING:
    from fastfed.deployment.plans import DeployedPlan, Document
    from fastfed.deployment.silo import SiloParty


class ActingEstimate(NamedTuple):
    """The estimate by which actions are chosen, its radii, and the sums that it is computed from.

    Parameters
    ----------
    sums : ndarray, shape (s,)
        The sum of x y (d numbers), then the packed lower triangle of the sum of x x^T, with the
        regularizer added to its diagonal; s = d + d (d + 1) / 2.
    estimate : Estimate
        theta_hat and V^-1 of these sums.
    radius, second : float
        The factors of ||x||_{V^-1} (the confidence radius) and of ||V^-1 x|| in the bonus of an
        action x (docs/radius.md).
    """

    sums: np.ndarray
    estimate: Estimate
    radius: float
    second: float


class Model(Acting):
    """Chooses actions by the last broadcast and, if there is a start, by an earlier plan's model.

    Parameters
    ----------
    plan : Plan
        The plan of the deployment.
    start : ActingEstimate, optional
        The last model of the earlier plan. Until the first release of this plan, actions are chosen
        by ``start`` only. After that, the sums of ``start`` are added to the sums of the last
        release.

    Notes
    -----
    V and u (the sums of x x^T and x y) of the two plans are added. In each plan, the error of the
    sums is u - V theta* = S + e, with ||S||_{V^-1} <= radius and ||e|| <= second (docs/radius.md).
    The function S^T V^-1 S of S and V is jointly convex and homogeneous of degree 1. So for the
    added sums, its value is at most the sum of the two squared radii, which is used as the squared
    radius. The values of ``second`` are added as well, and so are the probabilities that a radius
    is too small.
    """

    def __init__(self, plan: Plan, start: ActingEstimate | None = None) -> None:
        super().__init__(plan)
        self.start = start
        self._acting = self._with_start(np.zeros(plan.statistic_size), 0)

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Choose actions by the sums (s,) of this release (its number) from now on."""
        self._acting = self._with_start(values, release)
        self.release, self.round = release, self._round_of(release)

    def _round_of(self, release: int) -> int:
        """Return the last round of a release's batch of rounds.

        The radius beta is computed at this round. Plans of deployments are lazy (the model changes
        only at releases), so any round that uses the release has the same radius.
        """
        return self.plan.end(release)

    def _with_start(self, values: np.ndarray, release: int) -> ActingEstimate:
        """Return the estimate by which actions are chosen after a release with sums (s,).

        The sums of the start (the earlier plan's model), if any, are added. At release 0, before
        the first broadcast, the start is used alone.
        """
        shift = self._refresh(values, release)
        from_release = ActingEstimate(
            self._regularised(values, release, shift),
            self._estimate,
            self._radius_at(release),
            self._second_bonus,
        )
        if self.start is None or not release:
            return self.start or from_release
        sums = self.start.sums + from_release.sums
        estimate, _ = Estimate.of_sums(self.plan.dimension, sums, 0.0)
        if not np.isfinite(estimate.theta).all():
            # In the compiled code, status -2 says that the sums are not finite.
            raise environments.status_error(-2)
        # The squared radii add up, see the notes of this class.
        radius = math.hypot(self.start.radius, from_release.radius)
        return ActingEstimate(sums, estimate, radius, self.start.second + from_release.second)

    def _regularised(self, values: np.ndarray, release: int, shift: float) -> np.ndarray:
        """Return the sums (s,) of a release, with regularizer and shift on the diagonal of V.

        The regularizer and the shift are the ones that `_refresh` adds to V.
        """
        plan, index = self.plan, self.plan.entry(release)
        regularizer = float(plan.regularizer[index])
        if plan.radius.direct:
            # With a direct radius, use a smaller regularizer that leaves all eigenvalues of V above
            # the floor, if there is one.
            floor = float(plan.radius.floor[index])
            regularizer = linalg.choose_regularizer(values, regularizer, floor, plan.dimension)
        sums, d = np.array(values), plan.dimension
        sums[d + diagonal(d)] += regularizer + shift
        return sums

    def _radius_at(self, release: int) -> float:
        """Return the confidence radius beta with which actions are chosen after a release."""
        # `_radius` uses the release and the round of this object, so set them for a moment.
        saved = self.release, self.round
        self.release, self.round = release, self._round_of(release)
        try:
            return self._radius()
        finally:
            self.release, self.round = saved

    def select(self, features: np.ndarray) -> tuple[int, np.ndarray]:
        """Choose one of K rows of features (K, d); return its index and its features (d,)."""
        # ``second`` is the factor of ||V^-1 x|| in the bonus of an action x.
        plan, (_, estimate, radius, second) = self.plan, self._acting
        if plan.ranking < 1.0:
            # The slack (a setting of the sieve) is proven only for this plan's sums. If the sums of
            # an earlier plan are added, use the slack 1, which is always valid.
            slack = self._slack if estimate is self._estimate else 1.0
            sieve = plan.reward_limit, slack, plan.ranking
            return estimate.select_sieved(features, radius, second, *sieve)
        return estimate.select(features, radius, second)

    @property
    def acting(self) -> ActingEstimate:
        """The estimate, radii and sums by which actions are chosen now."""
        return self._acting

    @property
    def theta(self) -> np.ndarray:
        """The estimate theta_hat, (d,)."""
        return self._acting.estimate.theta.copy()

    @property
    def gram(self) -> np.ndarray:
        """V, (d, d), including regularizer and shift, up to rounding."""
        # w is a matrix W with W^T W = V^-1.
        w_inverse = np.linalg.inv(self._acting.estimate.w)
        gram: np.ndarray = w_inverse @ w_inverse.T
        return gram


class ClockedModel(Model):
    """Chooses actions by the last view that contains a new report of this silo.

    A view is the sum of all silos' latest reports. The plan's arrays have one entry for each view,
    computed for views in which no report is late. If a report is late, the view has an older report
    of that silo, or none. Then the bounds on the view's noise are the planned bounds times the
    actual standard deviation of the noise divided by the planned one. The failure probability is
    the same, because there are at most as many views as planned, and because the time when a report
    arrives does not depend on the noise.
    """

    def __init__(self, plan: ClockedPlan, start: ActingEstimate | None = None) -> None:
        self._planned = plan
        super().__init__(plan, start)

    def adopt_view(self, values: np.ndarray, view: int, numbers: Sequence[int]) -> None:
        """Use the sums (s,) of a view, to which each silo i contributed report ``numbers[i]``.

        ``numbers[i]`` is 0 for a silo without a report.
        """
        self.plan = self._with_reports(view, numbers)
        self.adopt(values, view)

    def _round_of(self, release: int) -> int:
        # Any round would do: plans with clocks use the direct radius, which depends only on views.
        return 0

    def _with_reports(self, view: int, numbers: Sequence[int]) -> Plan:
        """Return the plan with one view's regularizer and radius changed to fit these reports.

        ``numbers[i]`` is the number of silo i's report in the view, 0 for none.
        """
        plan, radius = self._planned, self._planned.radius
        planned_numbers = plan.clocks.reports[view].tolist()
        if list(numbers) == planned_numbers:
            return plan
        ratio = math.sqrt(view_variance(plan, numbers) / view_variance(plan, planned_numbers))
        error_bound, floor = radius.error_bound.copy(), radius.floor.copy()
        regularizer = plan.regularizer.copy()
        error_bound[view] *= ratio
        if floor[view] > 0.0:
            # The regularizer, which is also the floor, is a bound on the noise's operator norm plus
            # `Radius.anchor`. Only this bound changes with the noise.
            bound = max(regularizer[view] - radius.anchor, 0.0)
            regularizer[view] = floor[view] = radius.anchor + ratio * bound
        return replace(
            plan,
            regularizer=regularizer,
            radius=replace(radius, error_bound=error_bound, floor=floor),
        )


def view_variance(plan: Plan, numbers: Sequence[int]) -> float:
    """Return the noise variance of a view: the sum of one report of each silo.

    ``numbers`` are the numbers of the reports, one for each silo; 0 for a silo without a report.
    The unit is the noise variance of one tree node of a silo whose ``noise_scale`` is 1.
    """
    variances = {k: report_variance(plan, k) for k in set(numbers) if k}
    reports = zip(numbers, plan.noise_scale, strict=True)
    return math.fsum(scale**2 * variances[k] for k, scale in reports if k)


def report_variance(plan: Plan, release: int) -> float:
    """Return the noise variance of a report of prefix sums, in units of one tree node's variance.

    ``release`` is the number of the report. With release type "tree", a report adds up
    one tree node for each binary digit 1 of this number, so its variance is the number of these
    digits.
    """
    prefix = prefix_noise(plan)
    return float(release.bit_count()) if prefix is None else prefix.variance(release)


def diagonal(dimension: int) -> np.ndarray:
    """Return the indices (d,) of the diagonal in a lower triangle that is packed row by row."""
    return np.cumsum(np.arange(1, dimension + 1)) - 1


# ---- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """An action for one person. It is stored before the application receives it.

    Parameters
    ----------
    id : str
        Identifies the decision when the application passes on its reward.
    action : int
        Index of the chosen row.
    propensity : float
        Probability of choosing this action.
    model : int
        Number of the release from which the model that chose the action was computed.
    learns : bool
        True if the decision's reward may enter a report to the hub.
    name : str
        If the plan has a catalogue of actions, the name of the action, else empty.
    """

    id: str
    action: int
    propensity: float
    model: int
    learns: bool
    name: str = ""


def id_of(decision: str | Decision) -> str:
    """Return the id of a decision, which may be given as a `Decision` or as its id."""
    if not isinstance(decision, str | Decision):
        raise InputError(
            "decision must be a Decision or its id, a text; it comes before the reward, got "
            f"{type(decision).__name__}"
        )
    return decision.id if isinstance(decision, Decision) else decision


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """A stored decision.

    Parameters
    ----------
    action, propensity, model, learns
        As in `Decision`.
    time : float
        Seconds since 1970.
    x : bytes
        Features of the chosen action, float64.
    offer : bytes
        First 16 bytes of the SHA-256 of the offered actions' feature rows.
    subject : bytes
        Keyed digest of the person; empty if none was given.
    """

    action: int
    propensity: float
    model: int
    learns: bool
    time: float
    x: bytes
    offer: bytes
    subject: bytes


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """The stored end of a decision: its reward, or that it has none.

    Parameters
    ----------
    leaf : int
        The leaf (sums of one period) that the reward entered; 0 for none.
    reward : float or None
        The reward; None if the decision was cancelled or has expired.
    time : float
        When the decision ended, in seconds since 1970.
    why : str
        Why the reward entered no leaf: "late", "unused", "cancelled" or "expired"; else empty.
    """

    leaf: int
    reward: float | None
    time: float
    why: str = ""


# ---- plans that continue an earlier plan ---------------------------------------------------------

#: Maximum number of plans in a chain: a plan, the plan that it continues, and so on.
MAX_CHAIN = 16


class Extension(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a plan's document that describes the earlier plan, which this plan continues.

    Parameters
    ----------
    document : bytes
        The earlier document, encoded.
    start : bytes
        The broadcast of the earlier plan from whose model silos start; empty for none.
    why : str
        Why silos do not start from the earlier model, a key of `NO_START_REASONS`; empty if silos
        start from that model.
    """

    document: bytes
    start: bytes = b""
    why: str = ""


# ---- verification --------------------------------------------------------------------------------


#: Value of `Extension.why` -> why silos do not start from the earlier plan's model.
NO_START_REASONS = {
    "requested": "a start without the earlier model was requested",
    "no-release": "the earlier plan had no release yet",
    "schema": "the columns, their ranges or the norm differ, so theta is a different parameter",
    "clipping": "features or rewards are clipped differently, so theta is a different parameter",
}


def no_start(document: Document, plan: Plan, earlier: DeployedPlan) -> str:
    """Return the reason why silos cannot start from the earlier model; "" if they can.

    The reason is a key of `NO_START_REASONS`. ``document`` and ``plan`` belong to the new plan. The
    use of released sums costs no privacy. But the two plans must have the same parameter theta:
    the same features, coded and clipped in the same way.
    """
    _check_kinds(document, earlier)
    if document.schema != earlier.document.schema:
        return "schema"
    return "clipping" if plan.clip != earlier.plan.clip else ""


def _check_kinds(document: Document, earlier: DeployedPlan) -> None:
    """Raise InputError if a new plan is of a different kind than the earlier plan.

    The kinds are robin, one kind for each algorithm with experts, and linear bandits. Plans of
    different kinds protect or learn different things.
    """
    special_kinds = ("robin", *EXPERTS)
    algorithms = (document.algorithm, earlier.document.algorithm)
    kinds = {a if a in special_kinds else "" for a in algorithms}
    if len(kinds) > 1:
        raise InputError(
            "a plan can continue only a plan of the same kind (robin, fed-svt, fed-dp-ope-stoch or "
            "linear bandits), since others protect or learn something else; make a new plan"
        )


def check_chain(document: Document, read: Callable[[bytes], Document]) -> None:
    """Raise InputError if a document is the last of a chain of more than `MAX_CHAIN` plans.

    This check comes before the plans are computed from their documents. ``read`` decodes an encoded
    document.
    """
    plans, current = 1, document
    while current.extends is not None:
        plans += 1
        if plans > MAX_CHAIN:
            raise InputError(f"a chain has at most {MAX_CHAIN} plans; begin a new one")
        current = read(current.extends.document)


def check_extension(document: Document, plan: Plan, earlier: DeployedPlan) -> None:
    """Raise InputError unless a new plan can continue an earlier plan.

    ``document`` and ``plan`` belong to the new plan. Its start, if any, is a broadcast of the
    earlier plan, from which silos start (`start_of`).

    Raises
    ------
    InputError
        If the plans have different parties or kinds, if the start does not fit both plans, or if
        the new calendar begins too early.
    """
    extends, previous = document.extends, earlier.document
    assert extends is not None
    _check_kinds(document, earlier)
    helpers = {p for p in (document.helper, previous.helper) if p is not None}
    if document.silos != previous.silos or document.hub != previous.hub or len(helpers) > 1:
        raise InputError(
            "a plan that continues another must have the parties of that plan, with the same names "
            "and keys"
        )
    # A plan with a start may begin only when the start's release in the earlier plan has closed.
    earliest, reason = previous.calendar.start, no_start(document, plan, earlier)
    if extends.start:
        if reason or extends.why:
            raise InputError(
                f"the earlier model cannot be the start: {NO_START_REASONS.get(reason, '')}"
            )
        earliest = previous.calendar.closes[start_of(extends, earlier)[0] - 1]
    elif not extends.why:
        raise InputError("a plan without the earlier model must say why")
    elif choice("extends.why", extends.why, tuple(NO_START_REASONS)) not in (
        reason,
        "requested",
        "no-release",
    ):
        raise InputError(f"the plan says that {NO_START_REASONS[extends.why]}, which is not so")
    if document.calendar.start < earliest:
        raise InputError(
            f"calendar.start must be at least {earliest}, when the earlier plan's last release "
            f"closed, got {document.calendar.start}"
        )


def start_of(extends: Extension, earlier: DeployedPlan) -> tuple[int, Any]:
    """Return the release from which a plan starts, and the earlier plan's model of that release.

    Raises
    ------
    InputError
        If `Extension.start` is no valid broadcast of the earlier plan.
    """
    envelope = earlier.wire.read(extends.start, ("broadcast",))
    if (
        envelope.sender != earlier.document.hub.name
        or not 1 <= envelope.release <= earlier.exchanges
    ):
        raise InputError("the start must be a broadcast of the earlier plan's hub")
    body, label = earlier.wire.body(envelope, Broadcast), "the start"
    check_entries(body.entries, earlier.plan.silos, label)
    if len(body.entries) < earlier.document.least:
        raise InputError(
            f"the start must be of {earlier.document.least} silos at least, the earlier plan's "
            f"least, got {len(body.entries)}"
        )
    model = first_model(earlier)
    adopt_broadcast(model, earlier.wire.floats(body.values, label), envelope.release, body)
    return envelope.release, model


def adopt_broadcast(model: Any, values: np.ndarray, release: int, body: Broadcast) -> None:
    """Let a model choose actions by the values (s,) of a broadcast from now on.

    A plan with clocks broadcasts views. The body of a view states the numbers of the reports that
    the view adds up, which the model needs.
    """
    if isinstance(model, ClockedModel):
        model.adopt_view(values, release, cast(View, body).numbers)
    else:
        model.adopt(values, release)


def earlier_model(deployed: DeployedPlan) -> Any:
    """Return the earlier plan's model from which this plan's silos start; None if there is none."""
    earlier, extends = deployed.earlier, deployed.document.extends
    if earlier is None or extends is None or not extends.start:
        return None
    return start_of(extends, earlier)[1]


def model_at_start(deployed: DeployedPlan) -> Model:
    """Create the model by which a linear bandit's silo chooses actions before the first release."""
    earlier = earlier_model(deployed)
    start = earlier.acting if earlier is not None else None
    if isinstance(deployed.plan, ClockedPlan):
        return ClockedModel(deployed.plan, start)
    return Model(deployed.plan, start)


def plan_depth(deployed: DeployedPlan) -> int:
    """Return the number of plans in a chain: this plan, and all plans that it continues."""
    return 1 + (plan_depth(deployed.earlier) if deployed.earlier is not None else 0)


def chain(deployed: DeployedPlan) -> list[DeployedPlan]:
    """Return a plan and all plans that it continues, oldest first."""
    earlier_plans = chain(deployed.earlier) if deployed.earlier is not None else []
    return [*earlier_plans, deployed]


# ---- certificates --------------------------------------------------------------------------------


def epsilon_of_chain(plan: Executed, earlier: DeployedPlan) -> float:
    """Return the epsilon of a plan together with all plans that it continues.

    It holds for one person, or for all data of one silo, whichever the plans protect. The delta is
    the delta of ``plan``.

    Notes
    -----
    Guarantee: squared GDP parameters add up over plans with independent noise, even if a later plan
    acts on releases of an earlier one (adaptive composition). Pure epsilons add up as well.
    """
    claim = plan.privacy
    assert claim is not None and claim.budget is not None
    plans = (plan, *(earlier_plan.executed for earlier_plan in chain(earlier)))
    # Release -1 charges the whole plan. Digest and data set only name a charge, and are not needed.
    return epsilon_of_charges(
        [charge_of(executed, b"", "", -1) for executed in plans], claim.budget.delta
    )


def with_earlier(certificate: Certificate, plan: Executed, earlier: DeployedPlan) -> Certificate:
    """Return a plan's certificate with an added entry: the joint guarantee of a chain of plans.

    The chain is ``plan``, ``earlier``, and all plans that ``earlier`` continues.
    """
    epsilon = epsilon_of_chain(plan, earlier)
    if not math.isfinite(epsilon):
        raise InputError(
            "the plans together have no finite epsilon at this delta; choose a larger delta"
        )
    previous = chain(earlier)
    names = ", ".join(earlier_plan.digest.hex()[:16] for earlier_plan in previous)
    claims = [plan.privacy, *(earlier_plan.executed.privacy for earlier_plan in previous)]
    claim = claims[0]
    assert claim is not None and claim.budget is not None
    # The condition states that all plans see the same people. If a plan learns from a person
    # several times, the condition must allow for that.
    same_condition = earlier.kind.same
    if same_condition == SAME_PEOPLE and any(
        c is not None and c.max_participations > 1 for c in claims
    ):
        same_condition = SAME_VISITORS
    proven = all(earlier_plan.certificate.status == "proven" for earlier_plan in previous)
    entry = SideCertificate(
        unit=certificate.unit,
        relation=certificate.relation,
        model=f"{certificate.model}; together with plan{'s' if len(previous) > 1 else ''} {names}",
        claimed=None,
        exact=Guarantee(epsilon, claim.budget.delta) if proven else None,
        status="proven" if proven else "unproven",
        conditions=(same_condition,),
        source="Dong, Roth and Su 2022, Corollary 3.3",
    )
    return msgspec.structs.replace(certificate, also=(*certificate.also, entry))


def chain_summary(deployed: DeployedPlan) -> dict[str, Any]:
    """Describe the plans that a plan continues, for status and export; empty if there are none."""
    earlier, extends = deployed.earlier, deployed.document.extends
    if earlier is None or extends is None:
        return {}
    release = start_of(extends, earlier)[0] if extends.start else 0
    guarantees = [member.certificate.exact for member in chain(deployed)]
    return {
        "extends": {
            "plans": [member.digest.hex() for member in chain(earlier)],
            "start": release,
            "why_no_start": NO_START_REASONS.get(extends.why, ""),
            "epsilon": [guarantee.epsilon for guarantee in guarantees if guarantee is not None],
            "epsilon_together": epsilon_of_chain(deployed.executed, earlier),
        }
    }


# ---- export --------------------------------------------------------------------------------------


def model_of(party: SiloParty) -> dict[str, Any]:
    """Export the model by which a silo chooses actions, as plain data.

    Parameters
    ----------
    party : SiloParty

    Returns
    -------
    dict
        ``format``, ``federation``, ``plan`` (its SHA-256), ``release``, ``releases``,
        ``certificate``, and:

        - ``schema``: ``norm`` and ``columns``. A row of features is clipped to the ranges of the
          columns and then divided by the norm. If the plan has columns of records, also
          ``records``: how a record becomes a row.
        - ``theta``, (d,). For plans with experts, the experts' weights.
        - ``V``, (d, d), with regularizer and shift. None for plans in phases or with experts.
        - ``extends``, if the plan continues an earlier one: the plans that the model uses.

    Raises
    ------
    InputError
        Before the first release.

    Notes
    -----
    Guarantee: as in the certificate, since the model depends on records only through broadcasts.
    """
    if not party.model.release and party.model.start is None:
        raise InputError(f"silo {party.name} has no model yet: no release has reached it")
    document = party.deployed.document
    return {
        "format": 1,
        "federation": document.name,
        "plan": party.deployed.digest.hex(),
        "release": party.model.release,
        "releases": party.deployed.exchanges,
        "schema": _schema(document.schema),
        "theta": party.model.theta.tolist(),
        "V": None if party.model.gram is None else party.model.gram.tolist(),
        "certificate": party.deployed.certificate.to_builtins(),
        **chain_summary(party.deployed),
    }


def _schema(schema: Schema) -> dict[str, Any]:
    """Return a plan's schema as plain data, as `model_of` exports it."""
    data: dict[str, Any] = {
        "norm": schema.norm,
        "columns": [msgspec.structs.asdict(column) for column in schema.columns],
    }
    if schema.records is not None:
        data["records"] = {
            "columns": [msgspec.structs.asdict(variable) for variable in schema.records.variables],
            "actions": msgspec.structs.asdict(schema.records.actions),
            "reward": msgspec.structs.asdict(schema.records.outcome),
        }
    plain: dict[str, Any] = msgspec.to_builtins(data)
    return plain
