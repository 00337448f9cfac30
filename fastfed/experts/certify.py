"""Certificates of systems whose trusted server chooses an expert; the choices are protected."""

from __future__ import annotations

from fastfed.experts.plan import (
    ONE_LOSS,
    PROTECTS_CHOICES,
    RAW_MESSAGES,
    ExpertPlan,
    ProblemSpec,
    budget_exceeded,
    multiplicity_condition,
)
from fastfed.privacy.account import Claim, OneLoss, event_epsilon, released
from fastfed.privacy.certificate import (
    SIMULATION_CAVEAT,
    Certificate,
    Condition,
    Guarantee,
    SideCertificate,
)

_ABOUT_LOSSES = (
    Condition("when messages are exchanged does not depend on losses", True),
    Condition("losses are fixed in advance: they do not look at what is played (on trust)", True),
)


def certificate_of_choices(
    plan: ExpertPlan, problem: ProblemSpec, one: OneLoss, drawn: str
) -> Certificate:
    """Return a plan's certificate: it protects one record, which may affect several losses.

    If it may affect more than one, a side certificate ("item") protects each single loss.

    Parameters
    ----------
    plan : ExpertPlan
        A plan with a claim, all of whose releases together are one event of `released`.
    problem : ProblemSpec
        Sizes, and guarantees about the losses.
    one : OneLoss
        The privacy event in which one loss is replaced.
    drawn : str
        Text of the caveat about the precision of a simulation's random draws.
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    events = released(plan)
    assert events is not None
    budget, uses, exact = claim.required_budget, claim.max_participations, event_epsilon(events[0])
    claimed, uses_condition = (
        Guarantee(budget.epsilon, budget.delta),
        multiplicity_condition(uses, problem.multiplicity),
    )
    side_certificates: tuple[SideCertificate, ...] = ()
    if problem.multiplicity > 1:
        side_certificates = (
            SideCertificate(
                unit="item",
                relation="replace",
                model=f"{plan.protocol.model}; {ONE_LOSS}",
                claimed=claimed,
                exact=Guarantee(event_epsilon(one), budget.delta),
                status="proven",
                noise_std=one.noise_stds,
                conditions=(*_ABOUT_LOSSES, *one.conditions()),
                source=claim.source,
            ),
        )
    return Certificate(
        unit="user",
        relation="replace",
        model=plan.protocol.model,
        claimed=claimed,
        exact=Guarantee(exact, budget.delta),
        status="proven" if uses_condition.holds else "conditional",
        noise_std=one.noise_stds,
        conditions=(*_ABOUT_LOSSES, uses_condition, *events[0].conditions()),
        caveats=(
            PROTECTS_CHOICES,
            RAW_MESSAGES,
            *claim.caveats,
            *((budget_exceeded(uses),) if exact > budget.epsilon else ()),
            SIMULATION_CAVEAT,
            drawn,
            *problem.notes,
        ),
        source=claim.source,
        also=side_certificates,
    )
