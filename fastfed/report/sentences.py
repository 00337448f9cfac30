"""A certificate, an audit and a calibration in sentences, for whoever reads them in a notebook."""

from __future__ import annotations

from typing import Any

from fastfed.privacy.audit import AuditResult
from fastfed.privacy.certificate import rounded_down, rounded_up
from fastfed.privacy.mechanisms import Calibrated

RELATIONS = {"replace": "replaced by any other", "zero-out": "whose contribution becomes zero"}
#: So begins a caveat that names what a side guarantee takes for granted, in older stores.
ASSUMES = "assumes"
NOTHING = "Nothing is claimed, and no privacy holds."


def certificate_sentences(certificate: dict[str, Any]) -> list[str]:
    """What a stored certificate says, the most important first.

    A number stands only where the certificate proves it.
    """
    sentences = _guarantee(certificate)
    conditions = certificate["conditions"]
    failed = [c["text"] for c in conditions if not c["holds"]]
    if failed:
        sentences += [f"Fails: {text}." for text in failed]
    elif conditions:
        many = len(conditions)
        sentences.append(
            f"All {many} conditions hold." if many > 1 else f"Holds: {conditions[0]['text']}."
        )
    sentences += [f"Caveat: {text}." for text in certificate["caveats"]]
    return sentences + [_side(side) for side in certificate.get("also", ())]


def _guarantee(certificate: dict[str, Any]) -> list[str]:
    claimed, exact, status = (certificate[key] for key in ("claimed", "exact", "status"))
    if claimed is None and status == "none":
        return [NOTHING]
    who = f"Protected: {_protected(certificate)}. Trust: {certificate['model']}."
    asked = f"Claimed: {_pair(claimed)}." if claimed else "Nothing is claimed."
    held = {
        "proven": f"Proven: {_pair(exact)}, for everything that is released.",
        "conditional": f"Conditional: {_pair(exact)} would hold, were it not for what fails.",
        "unproven": "Unproven: no proof covers this run, so the claim has no number.",
        "none": "None: no finite epsilon holds.",
    }[status]
    return [held, asked, who]


def _side(side: dict[str, Any]) -> str:
    assumes = any(text.startswith(ASSUMES) for text in side["caveats"])
    holds = "only under assumptions" if assumes else side["status"]
    value = f"{_pair(side['exact'])}, " if side["exact"] else ""
    failed: list[str] = []
    if side["status"] == "conditional":
        failed = [f"fails here: {c['text']}" for c in side["conditions"] if not c["holds"]]
    texts = "; ".join((side["model"], *failed, *side["caveats"]))
    return f"Also, {holds}: {value}for {_protected(side)} ({texts})."


def _protected(certificate: dict[str, Any]) -> str:
    return f"one {certificate['unit']}, {RELATIONS[certificate['relation']]}"


def _pair(guarantee: dict[str, float] | None) -> str:
    if guarantee is None:
        return "none"
    return f"epsilon {rounded_up(guarantee['epsilon'])}, delta {rounded_up(guarantee['delta'])}"


def audit_sentences(result: AuditResult) -> list[str]:
    """What an audit found, and what that says."""
    found = (
        f"{result.trials} runs on each of two neighbouring datasets: epsilon is at least "
        f"{rounded_down(result.epsilon_lower_bound)} at delta {result.delta:g}, with "
        f"{100 * result.confidence:g} % confidence; claimed is {result.claimed_epsilon:g}."
    )
    if result.verdict == "caught":
        return ["Caught: the claim is refuted.", found]
    return ["Pass: these runs did not refute the claim, which proves no privacy.", found]


def calibration_sentences(found: Calibrated) -> list[str]:
    """The noise, what it is for, and where that is from."""
    many = "1 release" if found.releases == 1 else f"{found.releases} releases"
    return [
        f"Noise of standard deviation {found.noise_std:.6g} for epsilon {found.epsilon:g}, "
        f"delta {found.delta:g}, relation {found.relation}, {many}.",
        f"It amounts to a Gaussian mechanism of ratio mu = {found.mu:.6g}.",
        f"Source: {found.source}.",
    ]
