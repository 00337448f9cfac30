"""What certificates of experts say, wherever they say the same."""

from __future__ import annotations

from fastfed.privacy.certificate import Condition

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


def used(uses: int, multiplicity: int) -> Condition:
    """That the account is of all losses that one record can be behind."""
    times = "two losses" if uses == 1 else f"more than {uses} losses"
    text = f"no record is behind {times} (by how losses are made, or declared)"
    return Condition(text, multiplicity <= uses)
