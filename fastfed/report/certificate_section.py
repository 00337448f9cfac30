"""The certificates of all curves in a page: side by side, and each in full when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastfed.privacy.certificate import rounded_up
from fastfed.report.html import Html, definitions, details, element, join, table
from fastfed.report.privacy_words import privacy_words
from fastfed.results.results import CurveResult

HEADINGS = ("curve", "claimed", "exact", "status", "unit", "relation", "conditions")
MARKS = {True: "✓ holds", False: "✗ fails", None: "–"}


def mark(word: str) -> Html:
    """A status or verdict: the word says it, the colour repeats it."""
    return element("span", word, class_=f"mark {word.replace(' ', '-')}")


def certificate_section(curves: Sequence[CurveResult], names: Sequence[Html], level: int) -> Html:
    """Certificates of ``curves``; ``names`` are their labels as elements."""
    conditions = _conditions(curves)
    parts: list[Html] = [
        element(
            "p",
            "Privacy as (epsilon, delta). Claimed is what was asked for; exact is what the noise "
            "that was added gives; without a proof there is no number for the claim.",
            class_="quiet",
        ),
        table(
            HEADINGS,
            [_summary(curve.certificate, name) for curve, name in zip(curves, names, strict=True)],
            label="Certificates side by side",
        ),
    ]
    if conditions:
        asked = [i for i, c in enumerate(curves) if c.certificate["conditions"]]
        rows = [
            [text, *(_condition_cell(text, curves[i].certificate) for i in asked)]
            for text in conditions
        ]
        parts.append(
            details(
                "Conditions side by side",
                table(
                    ["condition", *(names[i] for i in asked)],
                    rows,
                    label="Conditions",
                    class_="wide conditions",
                ),
            )
        )
    for curve, name in zip(curves, names, strict=True):
        full = certificate_in_full(curve.certificate, level)
        parts.append(details(join(name, _hint(curve.certificate)), *full))
    return join(parts)


def _summary(certificate: dict[str, Any], name: Html) -> list[str]:
    words = privacy_words(certificate)
    return [
        name,
        words.claimed,
        words.exact,
        mark(words.status),
        certificate["unit"],
        certificate["relation"],
        _count(certificate["conditions"]),
    ]


def _count(conditions: Sequence[dict[str, Any]]) -> str:
    if not conditions:
        return "-"
    held = sum(c["holds"] for c in conditions)
    return "all hold" if held == len(conditions) else f"{held} of {len(conditions)} hold"


def _hint(certificate: dict[str, Any]) -> Html:
    return element("span", f" {privacy_words(certificate).short}", class_="quiet")


def _conditions(curves: Sequence[CurveResult]) -> list[str]:
    """Every condition that some curve has, in order, each once."""
    texts = (c["text"] for curve in curves for c in curve.certificate["conditions"])
    return list(dict.fromkeys(texts))


def _condition_cell(text: str, certificate: dict[str, Any]) -> Html:
    holds = {c["text"]: bool(c["holds"]) for c in certificate["conditions"]}.get(text)
    kind = {True: "mark holds", False: "mark fails", None: "quiet"}[holds]
    return element("span", MARKS[holds], class_=kind)


def certificate_in_full(certificate: dict[str, Any], level: int) -> list[Html]:
    """Everything a certificate says, what is beside it under headings of ``level``."""
    parts = [_one(certificate)]
    for side in certificate.get("also", ()):
        parts += [element(f"h{level}", f"Also, per {side['unit']}"), _one(side)]
    return parts


def _one(certificate: dict[str, Any]) -> Html:
    stds = [f"{name} {std:.6g}" for name, std in certificate["noise_std"].items()]
    conditions = [
        join(_condition_cell(c["text"], certificate), f" {c['text']}")
        for c in certificate["conditions"]
    ]
    return definitions(
        [
            ("status", mark(certificate["status"])),
            ("unit", certificate["unit"]),
            ("relation", certificate["relation"]),
            ("model", certificate["model"]),
            ("claimed", _pair(certificate["claimed"])),
            ("exact", _pair(certificate["exact"])),
            ("noise std", stds),
            ("conditions", conditions),
            ("caveats", certificate["caveats"]),
            ("source", certificate["source"]),
        ]
    )


def _pair(guarantee: dict[str, float] | None) -> str:
    if guarantee is None:
        return "none"
    return f"epsilon {rounded_up(guarantee['epsilon'])}, delta {rounded_up(guarantee['delta'])}"
