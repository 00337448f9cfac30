"""What a deployed silo acts on: broadcasts of its plan, and of a plan that it continues.

A document that continues another holds the earlier document whole, so that every party can
recompute both certificates, and the earlier hub's last broadcast, where acting goes on from its
model. What is exported is made of broadcasts alone, and of nothing that the silo keeps to itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from fastfed._kernels import environments, linalg
from fastfed._validate import InputError, choice
from fastfed.bandits.linucb import Acting, Estimate
from fastfed.deployment.charges import charge_of
from fastfed.deployment.kinds import Executed, acted_on
from fastfed.deployment.ledger import together as added_up
from fastfed.deployment.schema import Schema
from fastfed.deployment.wire import Broadcast, check_entries
from fastfed.experts import ALGORITHMS as EXPERTS
from fastfed.privacy.certificate import Certificate, Guarantee, SideCertificate
from fastfed.protocols.plan import Plan

if TYPE_CHECKING:
    from fastfed.deployment.plans import DeployedPlan, Document
    from fastfed.deployment.silo import SiloParty


class Played(NamedTuple):
    """An estimate with its radii, and the regularised sums (s,) that it was made of."""

    sums: np.ndarray
    estimate: Estimate
    radius: float
    second: float


class Model(Acting):
    """Acts on the last broadcast; with a start also on the last one of an earlier plan.

    Parameters
    ----------
    plan : Plan
    start : Played, optional
        What the earlier plan was played by at its end.

    Notes
    -----
    V and u of both plans add up. Let u - V theta* = S + e in each, with ||S||_{V^-1} <= radius and
    ||e|| <= second (docs/radius.md). S' V^-1 S is jointly convex and homogeneous of degree 1, so
    for the sum of both the squares of the radii add up, and so do the second radii; the
    probabilities that a radius is too small add up, too. Before the first release the start alone
    is played.
    """

    def __init__(self, plan: Plan, start: Played | None = None) -> None:
        super().__init__(plan)
        self.start = start
        self._played = self._added(np.zeros(plan.statistic_size), 0)

    def adopt(self, values: np.ndarray, release: int) -> None:
        """Act on the sums of a release from now on."""
        self._played = self._added(values, release)
        self.release = release
        # Plans are lazy, so a radius depends on the release alone.
        self.round = self.plan.end(release)

    def _added(self, values: np.ndarray, release: int) -> Played:
        """What is played from the sums of a release on."""
        shift = self._refresh(values, release)
        own = Played(
            self._regularised(values, release, shift),
            self._estimate,
            self._radius_at(release),
            self._second_bonus,
        )
        if self.start is None or not release:
            return self.start or own
        sums = self.start.sums + own.sums
        estimate, _ = Estimate.of_sums(self.plan.dimension, sums, 0.0)
        if not np.isfinite(estimate.theta).all():
            raise environments.status_error(-2)
        radius = math.hypot(self.start.radius, own.radius)
        return Played(sums, estimate, radius, self.start.second + own.second)

    def _regularised(self, values: np.ndarray, release: int, shift: float) -> np.ndarray:
        """The sums with what `_refresh` adds to the diagonal."""
        plan, k = self.plan, self.plan.entry(release)
        added = float(plan.regularizer[k])
        if plan.radius.direct:
            floor = float(plan.radius.floor[k])
            added = linalg.choose_regularizer(values, added, floor, plan.dimension)
        sums, d = np.array(values), plan.dimension
        sums[d + diagonal(d)] += added + shift
        return sums

    def _radius_at(self, release: int) -> float:
        """beta after a release."""
        before = self.release, self.round
        self.release, self.round = release, self.plan.end(release)
        try:
            return self._radius()
        finally:
            self.release, self.round = before

    def select(self, features: np.ndarray) -> tuple[int, np.ndarray]:
        """Index and features of the action to play, of (K, d)."""
        plan, (_, estimate, radius, second) = self.plan, self._played
        if plan.tie_bonus < 1.0 and self._bonus == 1.0:
            return estimate.select_tied(features, radius, second, plan.reward_limit, plan.tie_bonus)
        return estimate.select(features, radius, second)

    @property
    def played(self) -> Played:
        """What is played now."""
        return self._played

    @property
    def theta(self) -> np.ndarray:
        """theta_hat, (d,)."""
        return self._played.estimate.theta.copy()

    @property
    def gram(self) -> np.ndarray:
        """V, (d, d), with its regularizer and shift, to rounding."""
        root = np.linalg.inv(self._played.estimate.w)
        made: np.ndarray = root @ root.T
        return made


def diagonal(dimension: int) -> np.ndarray:
    """Places of the diagonal in a packed lower triangle."""
    return np.cumsum(np.arange(1, dimension + 1)) - 1


# ---- decisions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """An action for one person, durable before the application hears of it.

    Parameters
    ----------
    id : str
        To be named with the reward.
    action : int
        Index of the row to play.
    propensity : float
        The chance that this action had.
    model : int
        The release that chose it.
    learns : bool
        True if its reward will enter a report.
    name : str
        The action's, of a plan with columns of records; ``action`` is then its index there.
    """

    id: str
    action: int
    propensity: float
    model: int
    learns: bool
    name: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a decision. offer: digest of the rows offered; x: the features played."""

    action: int
    propensity: float
    model: int
    learns: bool
    time: float
    x: bytes
    offer: bytes
    subject: bytes


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """How a decision ended: its reward and the leaf it entered, 0 for none."""

    leaf: int
    reward: float | None
    time: float
    why: str = ""


# ---- plans that go on after another --------------------------------------------------------------

#: The most plans of one chain.
MOST = 16


class Extension(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a document says of the plan that it continues.

    Parameters
    ----------
    document : bytes
        The earlier document.
    start : bytes
        The broadcast whose model is played at the start and added to later ones; empty for none.
    why : str
        Why there is no start, as a key of `REASONS`; empty where there is one.
    """

    document: bytes
    start: bytes = b""
    why: str = ""


# ---- verification --------------------------------------------------------------------------------


#: Why a plan that continues another has no start, by the word that its document stores.
REASONS = {
    "requested": "a start without the earlier model was requested",
    "no-release": "the earlier plan had no release yet",
    "schema": "the columns, their ranges or the norm differ, so theta is a different parameter",
    "clipping": "features or rewards are clipped differently, so theta is a different parameter",
}


def no_start(document: Document, plan: Plan, earlier: DeployedPlan) -> str:
    """Why the earlier model cannot be the start of a plan, as a key of `REASONS`; empty if it can.

    Its sums are released, so any use of them costs nothing. It must be of the same parameter: of
    the same features, coded and clipped alike.
    """
    _check_kinds(document, earlier)
    if document.schema != earlier.document.schema:
        return "schema"
    return "clipping" if plan.clip != earlier.plan.clip else ""


def _check_kinds(document: Document, earlier: DeployedPlan) -> None:
    """Refuse plans of two kinds: what they protect, or learn, is not the same."""
    others = ("robin", *EXPERTS)
    named = {a if a in others else "" for a in (document.algorithm, earlier.document.algorithm)}
    if len(named) > 1:
        raise InputError(
            "a plan continues one of its own kind alone: of robin, of fed-svt, of "
            "fed-dp-ope-stoch, or of linear bandits; what others protect or learn is something "
            "else, so make a plan of its own"
        )


def check_chain(document: Document, read: Callable[[bytes], Document]) -> None:
    """Refuse a chain of too many plans, before the first of them is derived."""
    plans, each = 1, document
    while each.extends is not None:
        plans += 1
        if plans > MOST:
            raise InputError(f"a chain has at most {MOST} plans; begin a new one")
        each = read(each.extends.document)


def check_extension(document: Document, plan: Plan, earlier: DeployedPlan) -> None:
    """Refuse an earlier plan of other parties, and a start that is not its hub's broadcast."""
    extends, old = document.extends, earlier.document
    assert extends is not None
    _check_kinds(document, earlier)
    helpers = {p for p in (document.helper, old.helper) if p is not None}
    if document.silos != old.silos or document.hub != old.hub or len(helpers) > 1:
        raise InputError(
            "a plan that continues another must have its parties, with the same names and keys"
        )
    begin, wrong = old.calendar.start, no_start(document, plan, earlier)
    if extends.start:
        if wrong or extends.why:
            raise InputError(f"the earlier model cannot be the start: {REASONS.get(wrong, '')}")
        begin = old.calendar.closes[start_of(extends, earlier)[0] - 1]
    elif not extends.why:
        raise InputError("a plan without the earlier model must say why")
    elif choice("extends.why", extends.why, tuple(REASONS)) not in (
        wrong,
        "requested",
        "no-release",
    ):
        raise InputError(f"the plan says that {REASONS[extends.why]}, which is not so")
    if document.calendar.start < begin:
        raise InputError(
            f"calendar.start must be at least {begin}, when the earlier plan's last release "
            f"closed, got {document.calendar.start}"
        )


def start_of(extends: Extension, earlier: DeployedPlan) -> tuple[int, Any]:
    """The release of a start, and what silos act on after it; Refused if it is no broadcast."""
    found = earlier.wire.read(extends.start, ("broadcast",))
    if found.sender != earlier.document.hub.name or not 1 <= found.release <= earlier.plan.releases:
        raise InputError("the start must be a broadcast of the earlier plan's hub")
    body, who = earlier.wire.body(found, Broadcast), "the start"
    check_entries(body.entries, earlier.plan.silos, who)
    if len(body.entries) < earlier.document.least:
        raise InputError(
            f"the start must be of {earlier.document.least} silos at least, the earlier plan's "
            f"least, got {len(body.entries)}"
        )
    model = acted_on(earlier)
    model.adopt(earlier.wire.floats(body.values, who), found.release)
    return found.release, model


def earlier_model(deployed: DeployedPlan) -> Any:
    """What the silos of the plan that this one continues acted on at its end; None if no start."""
    earlier, extends = deployed.earlier, deployed.document.extends
    if earlier is None or extends is None or not extends.start:
        return None
    return start_of(extends, earlier)[1]


def model_at_start(deployed: DeployedPlan) -> Model:
    """What a silo of a plan of linear bandits acts on before its first release."""
    before = earlier_model(deployed)
    return Model(deployed.plan, before.played if before is not None else None)


def plan_depth(deployed: DeployedPlan) -> int:
    """Plans in the chain that ends with this one."""
    return 1 + (plan_depth(deployed.earlier) if deployed.earlier is not None else 0)


def chain(deployed: DeployedPlan) -> list[DeployedPlan]:
    """The plans of the chain that ends with this one, the first one first."""
    before = chain(deployed.earlier) if deployed.earlier is not None else []
    return [*before, deployed]


# ---- certificates --------------------------------------------------------------------------------


def together(plan: Executed, earlier: DeployedPlan) -> float:
    """Epsilon of a plan and of all plans before it, for what is in each, at its delta.

    Notes
    -----
    Guarantee: squared GDP parameters add up over plans, whose noise is drawn apart, also where a
    later plan acts on what an earlier one released (adaptive composition); so do pure epsilons.
    """
    claim = plan.privacy
    assert claim is not None and claim.budget is not None
    plans = (plan, *(each.executed for each in chain(earlier)))
    return added_up([charge_of(each, b"", "", -1) for each in plans], claim.budget.delta)


def with_earlier(certificate: Certificate, plan: Executed, earlier: DeployedPlan) -> Certificate:
    """The certificate of a plan with an entry for it and all plans before it together."""
    epsilon = together(plan, earlier)
    if not math.isfinite(epsilon):
        raise InputError("the plans together have no finite epsilon at this delta; take a larger")
    before = chain(earlier)
    names = ", ".join(each.digest.hex()[:16] for each in before)
    claim = plan.privacy
    assert claim is not None and claim.budget is not None
    proven = all(each.certificate.status == "proven" for each in before)
    entry = SideCertificate(
        unit=certificate.unit,
        relation=certificate.relation,
        model=f"{certificate.model}; together with plan{'s' if len(before) > 1 else ''} {names}",
        claimed=None,
        exact=Guarantee(epsilon, claim.budget.delta) if proven else None,
        status="proven" if proven else "unproven",
        conditions=(earlier.kind.same,),
        source="Dong, Roth and Su 2022, Corollary 3.3",
    )
    return msgspec.structs.replace(certificate, also=(*certificate.also, entry))


def summary(deployed: DeployedPlan) -> dict[str, Any]:
    """What status and export say of the plans before this one; empty where there is none."""
    earlier, extends = deployed.earlier, deployed.document.extends
    if earlier is None or extends is None:
        return {}
    release = start_of(extends, earlier)[0] if extends.start else 0
    exact = [each.certificate.exact for each in chain(deployed)]
    return {
        "extends": {
            "plans": [each.digest.hex() for each in chain(earlier)],
            "start": release,
            "why_no_start": REASONS.get(extends.why, ""),
            "epsilon": [each.epsilon for each in exact if each is not None],
            "epsilon_together": together(deployed.executed, earlier),
        }
    }


# ---- export --------------------------------------------------------------------------------------


def model_of(party: SiloParty) -> dict[str, Any]:
    """The model that a silo acts on.

    Parameters
    ----------
    party : SiloParty

    Returns
    -------
    dict
        ``format``, ``federation``, ``plan`` (digest), ``release``, ``releases``, ``schema``
        (``norm`` and ``columns``; a row is held to the columns' ranges, then divided by the norm;
        of a plan of records also ``records``: how a row is made of one),
        ``theta`` (d,), ``V`` (d, d), regularised and shifted as it is played (None in phases, where
        only theta is, and of experts, where theta are their weights), and ``certificate``;
        of a plan that continues another also ``extends``, and the model is then that of both.

    Raises
    ------
    InputError
        Before the first release.

    Notes
    -----
    Guarantee: that of the certificate, since it is made of broadcasts alone.
    """
    if not party.model.release and party.model.start is None:
        raise InputError(f"silo {party.name} has no model yet: no release has reached it")
    document = party.deployed.document
    return {
        "format": 1,
        "federation": document.name,
        "plan": party.deployed.digest.hex(),
        "release": party.model.release,
        "releases": party.plan.releases,
        "schema": _schema(document.schema),
        "theta": party.model.theta.tolist(),
        "V": None if party.model.gram is None else party.model.gram.tolist(),
        "certificate": party.deployed.certificate.to_builtins(),
        **summary(party.deployed),
    }


def _schema(schema: Schema) -> dict[str, Any]:
    """A schema as plain data."""
    made: dict[str, Any] = {
        "norm": schema.norm,
        "columns": [msgspec.structs.asdict(column) for column in schema.columns],
    }
    if schema.records is not None:
        made["records"] = {
            "columns": [msgspec.structs.asdict(each) for each in schema.records.variables],
            "actions": msgspec.structs.asdict(schema.records.actions),
            "reward": msgspec.structs.asdict(schema.records.outcome),
        }
    plain: dict[str, Any] = msgspec.to_builtins(made)
    return plain
