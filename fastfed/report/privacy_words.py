"""A certificate in a few words, for a cell of a table or an entry of a legend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastfed.privacy.certificate import rounded_up

#: Exact and claimed epsilon closer than this are one number, up to how it was computed.
SAME = 1e-6
#: In short, of a curve that claims nothing since nothing leaves.
SENDS_NOTHING = "sends nothing: epsilon 0"


@dataclass(frozen=True)
class PrivacyWords:
    """``claimed`` and ``exact`` as pairs; ``exact`` of a weaker guarantee says of which."""

    claimed: str
    exact: str
    status: str

    @property
    def short(self) -> str:
        """The claim, and what holds where that is something else."""
        if self.claimed == "-":
            if self.status != "proven":
                return "not private"
            return SENDS_NOTHING if self.exact.startswith("(0, ") else f"exact {self.exact}"
        if self.exact == self.claimed:
            return self.claimed
        if self.status == "proven":
            return f"claimed {self.claimed}, exact {self.exact}"
        what = f", only {self.exact}" if self.exact != "-" else ""
        return f"claimed {self.claimed}, {self.status}{what}"


def privacy_words(certificate: dict[str, Any]) -> PrivacyWords:
    """The words of a certificate as it is stored.

    Where the user-level claim is unproven, ``exact`` is what the first side guarantee gives:
    another unit, or a conditional one, which this run does not meet.
    """
    claimed, exact = certificate["claimed"], certificate["exact"]
    words = _pair(exact, claimed, rounded_up)
    if exact is None and certificate["also"]:
        side = certificate["also"][0]
        same = side["unit"] == certificate["unit"]
        what = [] if same else [f"per {side['unit']}"]
        # Stores from before there was this status say "proven" of the same unit.
        if same or side.get("status") == "conditional":
            what.append("conditional")
        words = f"{', '.join(what)} {_pair(side['exact'], claimed, rounded_up)}"
    return PrivacyWords(_pair(claimed, None, "{:g}".format), words, certificate["status"])


def _pair(
    guarantee: dict[str, float] | None,
    claimed: dict[str, float] | None,
    shown: Callable[[float], str],
) -> str:
    if guarantee is None:
        return "-"
    epsilon = guarantee["epsilon"]
    if claimed is not None and abs(epsilon - claimed["epsilon"]) <= SAME * claimed["epsilon"]:
        return _pair(claimed, None, "{:g}".format)
    return f"({shown(epsilon)}, {guarantee['delta']:g})"
