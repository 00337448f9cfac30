"""The certificate of experts that a trusted server chooses: what is played is protected."""

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
    SIMULATION,
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
    """The certificate for one record: a loss of one client in one round, or all it is behind.

    Parameters
    ----------
    plan : ExpertPlan
        A plan with a claim, of which one event is released.
    problem : ProblemSpec
        Sizes, and guarantees about the losses.
    one : PrivacyEvent
        The account of one replaced loss.
    drawn : str
        The caveat of what a simulation draws.

    Returns
    -------
    Certificate
    """
    claim = plan.privacy or Claim(source=plan.protocol.source)
    found = released(plan)
    assert found is not None
    budget, uses, exact = claim.asked, claim.max_participations, event_epsilon(found[0])
    claimed, once = (
        Guarantee(budget.epsilon, budget.delta),
        multiplicity_condition(uses, problem.multiplicity),
    )
    also: tuple[SideCertificate, ...] = ()
    if problem.multiplicity > 1:
        also = (
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
        status="proven" if once.holds else "conditional",
        noise_std=one.noise_stds,
        conditions=(*_ABOUT_LOSSES, once, *found[0].conditions()),
        caveats=(
            PROTECTS_CHOICES,
            RAW_MESSAGES,
            *claim.caveats,
            *((budget_exceeded(uses),) if exact > budget.epsilon else ()),
            SIMULATION,
            drawn,
            *problem.notes,
        ),
        source=claim.source,
        also=also,
    )
