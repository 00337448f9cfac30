"""What certificates of experts say, wherever they say the same."""

from __future__ import annotations

from collections.abc import Iterable

from fastfed.privacy.certificate import ClaimCondition, Condition, Guarantee, rounded_up

#: What a user is where there are losses, and what is protected.
USER = "a user is one loss function of one client in one round"
PLAYED = f"{USER}; what is protected is what is played"
SENT = f"{USER}; what is protected is what the client sends"
#: Whom a guarantee for one loss of many that one record is behind is about.
ONE_LOSS = "neighbours differ in one loss of one client in one round"
#: Of a trusted server.
RAW_MESSAGES = "clients send the server raw numbers: it is trusted, and nobody else may see them"
NOT_MET = "the claimed budget is not met; the exact value is what holds"


def not_met(uses: int) -> str:
    """Why an exact value is above the claim, where one record is behind so many losses."""
    if uses == 1:
        return NOT_MET
    return (
        f"one record can be behind {uses} losses, and the noise is for one: the exact value is of "
        "all of these replaced together"
    )


def of_record(
    conditions: Iterable[Condition], uses: int, claimed: Guarantee, exact: Guarantee
) -> tuple[Condition, ...]:
    """Conditions of a mechanism whose account is of one loss, of a record that is behind more."""
    times = "two losses" if uses == 1 else f"more than {uses} losses"
    once = Condition(f"no record is behind {times} (by how losses are made, or declared)", True)
    if uses == 1:
        return (once, *conditions)
    claim = ClaimCondition(
        f"the proven epsilon of {uses} losses replaced together, {rounded_up(exact.epsilon)} at "
        f"delta {exact.delta:g}, is at most {claimed.epsilon:g} (computed)",
        exact.epsilon <= claimed.epsilon,
    )
    return (once, *(c for c in conditions if not isinstance(c, ClaimCondition)), claim)


#: Of noise and choices on a real machine.
DRAWS = (
    "the exact value is for real-valued Laplace noise and exact chances; what is drawn has 53 "
    "bits, and what is released is float64"
)
