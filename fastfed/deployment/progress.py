"""What each party can wait for, and how a person can end the wait.

The status of a party contains a row of the table `WAITS`, which explains why a plan makes no
progress. docs/deployment.md shows the table, and a test reaches each row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple


class Wait(NamedTuple):
    """What a party waits for, and what a person can do to end the wait."""

    what: str
    do: str


CLOCK = Wait(
    "clocks that agree: its clock differs from the other parties' clocks, and the earlier time "
    "counts",
    "compare the time of these machines, and set the clock that is wrong",
)
#: Type of party -> state -> what a party in this state waits for.
WAITS: dict[str, dict[str, Wait]] = {
    "hub": {
        "over": Wait("nothing: all releases are out", "make a plan that continues this one"),
        "ended": Wait("nothing: the plan has ended", "make a new plan; `ended` says why"),
        "open": Wait("the end of the release's period", "nothing is due"),
        "clocks": Wait(
            "the next moment at which a silo reports: silos report on their own clocks",
            "nothing is due",
        ),
        "clock": CLOCK,
        "unheard": Wait(
            "the first message of each silo since the hub was started, so that the hub opens no "
            "second set",
            "start the silos, or wait until the grace period after the first message is over",
        ),
        "sessions": Wait(
            "the sessions of silos, without which masks do not cancel",
            "start these silos; if one is gone for good, make a new plan",
        ),
        "reports": Wait(
            "the reports of silos, until the grace period is over",
            "start these silos; after the grace period the release is opened without them",
        ),
        "too-few": Wait(
            "the reports of more silos: fewer than `least` have reported",
            "start these silos; if too many are gone for good, make a new plan",
        ),
        "reports-again": Wait(
            "the reports of a set that it had opened before its log was restored",
            "start these silos; if one has lost its report, make a new plan",
        ),
        "broadcast-again": Wait(
            "a broadcast that it had made before its log was restored",
            "start the silos that have it; if nobody has it, make a new plan",
        ),
        "helper": Wait(
            "the helper, which has not answered",
            "start the helper; if its secret is lost, make a new plan",
        ),
    },
    "silo": {
        "over": Wait("nothing: all releases are out", "join a plan that continues this one"),
        "stopped": Wait(
            "nothing: it sends nothing any more, and uses its last model",
            "`stopped` says why; talk to the other parties",
        ),
        "hub": Wait(
            "an answer of the hub: there was none since this silo was started, or to its last call",
            "start the hub, or check its address, its certificate and the network",
        ),
        "recover": Wait(
            "a person: the hub has reports of this silo that the silo's state does not have",
            "restore the newest state, or run `fastfed deploy recover`",
        ),
        "sessions": Wait(
            "the sessions of all silos, which the hub sends",
            "look at the hub's status: a silo is missing there",
        ),
        "ceiling": Wait(
            "a higher ceiling: the next release would exceed the ceiling of its ledger",
            "ask the privacy officer for a larger ceiling (`join --epsilon`), or leave",
        ),
        "release": Wait(
            "the next release, which the hub opens",
            "look at the hub's status: it names the parties it waits for",
        ),
        "given-up": Wait(
            "the next release, to which this silo cannot contribute: its report was lost with its "
            "state",
            "look at the hub's status; if the hub waits for this silo, make a new plan",
        ),
        "start": Wait(
            "the start of the plan's calendar",
            "nothing is due; decisions before the start are not learned from",
        ),
        "open": Wait("the end of the period", "nothing is due"),
        "clock": CLOCK,
    },
    "helper": {
        "over": Wait("nothing: all sets are open", "nothing"),
        "set": Wait(
            "the hub's next set of reports",
            "look at the hub's status: it names the parties it waits for",
        ),
        "hub": Wait(
            "an answer of the hub",
            "start the hub, or check its address, its certificate and the network",
        ),
        "alarm": Wait(
            "nothing: the hub requested two sets of one release",
            "stop, keep all folders, and talk to the other parties",
        ),
    },
}


def waiting(
    party: str, state: str, release: int, since: float | None, who: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a row of `WAITS`, with its details, as plain data for a status.

    Parameters
    ----------
    party, state : str
        Keys of `WAITS`.
    release : int
        The release that the party waits for; 0 for none.
    since : float or None
        When the wait began, in seconds since 1970; None if nothing is due.
    who : iterable of str
        Names of the parties for which the party waits.

    Returns
    -------
    dict
        ``state``, ``for`` and ``do`` (the texts of the row), ``release``, ``since``, ``who``.
    """
    row = WAITS[party][state]
    return {
        "state": state,
        "for": row.what,
        "release": release,
        "since": since,
        "who": list(who),
        "do": row.do,
    }


def clocks_differ(since: float | None, who: Iterable[str]) -> dict[str, Any]:
    """Return the entries that replace those of `waiting` while a party waits until clocks agree.

    A party waits for this if something is due by its own clock, but not by the other clocks. For
    ``since`` and ``who`` see `waiting`.
    """
    return {"state": "clock", "for": CLOCK.what, "since": since, "who": list(who), "do": CLOCK.do}
