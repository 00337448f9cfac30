"""Plans that continue an earlier one: what their documents say of it, and what both cost together.

A document holds the earlier document whole, so that every party can recompute both certificates,
and the earlier hub's last broadcast, where acting goes on from its model.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import msgspec

from fastfed._validate import InputError, show
from fastfed.deployment import codec
from fastfed.deployment.kinds import kind_of
from fastfed.deployment.ledger import charge_of
from fastfed.deployment.model import Model
from fastfed.deployment.wire import Broadcast, check_entries
from fastfed.privacy.account import SAME
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.certificate import Certificate, Condition, Guarantee, SideCertificate
from fastfed.protocols.plan import Plan

if TYPE_CHECKING:
    from fastfed.deployment.plans import DeployedPlan, Document

#: The most plans of one chain.
MOST = 16

#: What the account of two plans on the same people takes on trust.
SAME_PEOPLE = Condition(
    "a person is learned from at most once in each plan; who is in one of them alone has that "
    "plan's guarantee (taken on trust)",
    True,
)


class Extension(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a document says of the plan that it continues.

    Parameters
    ----------
    document : bytes
        The earlier document.
    start : bytes
        The broadcast whose model is played at the start and added to later ones; empty for none.
    why : str
        Why there is no start.
    """

    document: bytes
    start: bytes = b""
    why: str = ""


# ---- verification --------------------------------------------------------------------------------


def no_start(document: Document, plan: Plan, earlier: DeployedPlan) -> str:
    """Why the earlier model is no start of a plan; empty if it is one.

    Its sums are released, so any use of them costs nothing. It must be of the same parameter: of
    the same features, coded and clipped alike.
    """
    _check_units(document, earlier)
    old = earlier.document.schema
    if document.schema != old:
        return "the columns, their ranges or the norm are others, so that theta is another one"
    if plan.clip != earlier.plan.clip:
        return "features or rewards are clipped otherwise, so that theta is another one"
    return ""


def _check_units(document: Document, earlier: DeployedPlan) -> None:
    """Refuse plans in phases, whose certificates are of another unit."""
    if not (earlier.kind.linear and kind_of(codec.decode(document.plan)).linear):
        raise InputError(
            "a plan of robin or of experts continues no other, and no other continues it: what "
            "their certificates protect is not one person's record; make a plan of its own"
        )


def check_extension(document: Document, plan: Plan, earlier: DeployedPlan) -> None:
    """Refuse an earlier plan of other parties, and a start that is not its hub's broadcast."""
    extends, old = document.extends, earlier.document
    assert extends is not None
    _check_units(document, earlier)
    helpers = {p for p in (document.helper, old.helper) if p is not None}
    if document.silos != old.silos or document.hub != old.hub or len(helpers) > 1:
        raise InputError(
            "a plan that continues another must have its parties, with the same names and keys"
        )
    if plan_depth(earlier) >= MOST:
        raise InputError(f"a chain has at most {MOST} plans; begin a new one")
    begin = old.calendar.start
    if extends.start:
        wrong = no_start(document, plan, earlier)
        if wrong:
            raise InputError(f"the earlier model is no start: {wrong}")
        begin = old.calendar.closes[start_of(extends, earlier)[0] - 1]
    elif not extends.why:
        raise InputError("a plan without the earlier model must say why")
    if document.calendar.start < begin:
        raise InputError(
            f"calendar.start must be at least {begin}, when the earlier plan's last release "
            f"closed, got {document.calendar.start}"
        )


def start_of(extends: Extension, earlier: DeployedPlan) -> tuple[int, Model]:
    """The release of a start, and the model after it; Refused for one that is no broadcast."""
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
    model = model_at_start(earlier)
    model.adopt(earlier.wire.floats(body.values, who), found.release)
    return found.release, model


def model_at_start(deployed: DeployedPlan) -> Model:
    """What a silo of a plan acts on before its first release."""
    earlier, extends = deployed.earlier, deployed.document.extends
    if earlier is None or extends is None or not extends.start:
        return Model(deployed.plan)
    return Model(deployed.plan, start_of(extends, earlier)[1].played)


def plan_depth(deployed: DeployedPlan) -> int:
    """Plans in the chain that ends with this one."""
    return 1 + (plan_depth(deployed.earlier) if deployed.earlier is not None else 0)


def chain(deployed: DeployedPlan) -> list[DeployedPlan]:
    """The plans of the chain that ends with this one, the first one first."""
    before = chain(deployed.earlier) if deployed.earlier is not None else []
    return [*before, deployed]


# ---- certificates --------------------------------------------------------------------------------


def together(plan: Plan, earlier: DeployedPlan) -> float:
    """Epsilon of a plan and of all plans before it, for a person who is in each, at its delta.

    Notes
    -----
    Guarantee: squared GDP parameters add up over plans, whose noise is drawn apart, also where a
    later plan acts on what an earlier one released (adaptive composition).
    """
    claim = plan.privacy
    assert claim is not None and claim.budget is not None
    wholes = [charge_of(each, b"", "", -1) for each in (plan, *(p.plan for p in chain(earlier)))]
    rest = claim.budget.delta - math.fsum(whole.told for whole in wholes)
    mu2 = math.fsum(whole.mu2 for whole in wholes) * (1.0 + 1e-12)
    return gaussian_epsilon(math.sqrt(mu2), rest) if rest > 0.0 else math.inf


def with_earlier(certificate: Certificate, plan: Plan, earlier: DeployedPlan) -> Certificate:
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
        conditions=(SAME_PEOPLE,),
        source="Dong, Roth and Su 2022, Corollary 3.3",
    )
    return msgspec.structs.replace(certificate, also=(*certificate.also, entry))


def check_certificate(said: bytes, found: Certificate) -> None:
    """Refuse a certificate (JSON) that is not the one of the plan's numbers, but for rounding."""
    try:
        read = json.loads(said)
    except ValueError:
        raise InputError("the plan file's certificate is no JSON") from None
    if not alike(read, json.loads(as_json(found))):
        raise InputError(
            "the plan file's certificate is not the one of its numbers, which is "
            f'"{found.status}" with {show(found.exact)}'
        )


def as_json(certificate: Certificate) -> bytes:
    """A certificate as a document holds it."""
    return msgspec.json.encode(certificate.to_builtins(), order="sorted")


_DIGITS = re.compile(r"[0-9.]+(e-?[0-9]+)?")


def alike(first: Any, second: Any) -> bool:
    """True if plain data are the same but for last digits, which machines may round otherwise."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(alike(first[k], second[k]) for k in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(alike, first, second))
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=SAME)
    if isinstance(first, str) and isinstance(second, str):
        # Sentences repeat the numbers, rounded.
        return first == second or _DIGITS.sub("#", first) == _DIGITS.sub("#", second)
    return type(first) is type(second) and bool(first == second)


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
            "why_no_start": extends.why,
            "epsilon": [each.epsilon for each in exact if each is not None],
            "epsilon_together": together(deployed.plan, earlier),
        }
    }
