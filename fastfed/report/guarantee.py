"""Whether a curve is private, and as it claims, from its certificate as it is stored."""

from __future__ import annotations

from typing import Any

from fastfed.report.privacy_words import SAME, privacy_words


def is_private(certificate: dict[str, Any]) -> bool:
    """Whether it claims privacy, or has it unasked, as where nothing is sent."""
    return certificate["claimed"] is not None or certificate["status"] == "proven"


def gap(certificate: dict[str, Any]) -> str:
    """What is missing, as the rest of a sentence that begins with the curve; empty if nothing is.

    Nothing is missing where nothing is claimed (also where nothing is sent), or where the exact
    guarantee is proven and within the claim.
    """
    claimed, exact = certificate.get("claimed"), certificate.get("exact")
    if claimed is None:
        return ""
    words = privacy_words(certificate)
    if certificate["status"] == "proven" and exact is not None:
        within = exact["epsilon"] <= claimed["epsilon"] * (1.0 + SAME)
        if within and exact["delta"] <= claimed["delta"] * (1.0 + SAME):
            return ""
        return f"claims {words.claimed} and has {words.exact}"
    state = "and no epsilon holds" if certificate["status"] == "none" else "which is unproven"
    broken = [c["text"] for c in certificate["conditions"] if not c["holds"]]
    reasons = [f"condition that fails: {broken[0]}"] if broken else certificate["caveats"][:1]
    return "; ".join([f"claims {words.claimed}, {state}", *reasons])
