"""Guarantees, audits, calibrations and specs as text, and tables for terminals."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from fastfed.privacy.audit.bounds import AuditResult
from fastfed.privacy.certificate import rounded_down, rounded_up
from fastfed.privacy.mechanisms.catalogue import Calibrated

# ---- Sentences about certificates, audits and calibrations, as notebooks show them ---------------

RELATIONS = {"replace": "replaced by any other", "zero-out": "whose contribution becomes zero"}
#: First word of a caveat that names an assumption of a side guarantee, in older stores.
ASSUMES = "assumes"
NOTHING = "Nothing is claimed, and no privacy holds."


def certificate_sentences(certificate: dict[str, Any]) -> list[str]:
    """Sentences of a stored certificate, the most important first.

    A number is given only where the certificate proves it.
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
    asked = f"Claimed: {_pair_text(claimed)}." if claimed else "Nothing is claimed."
    held = {
        "proven": f"Proven: {_pair_text(exact)}, for everything that is released.",
        "conditional": f"Conditional: {_pair_text(exact)} would hold, were it not for what fails.",
        "unproven": "Unproven: no proof covers this run, so the claim has no number.",
        "none": "None: no finite epsilon holds.",
    }[status]
    return [held, asked, who]


def _side(side: dict[str, Any]) -> str:
    assumes = any(text.startswith(ASSUMES) for text in side["caveats"])
    holds = "only under assumptions" if assumes else side["status"]
    value = f"{_pair_text(side['exact'])}, " if side["exact"] else ""
    failed: list[str] = []
    if side["status"] == "conditional":
        failed = [f"fails here: {c['text']}" for c in side["conditions"] if not c["holds"]]
    texts = "; ".join((side["model"], *failed, *side["caveats"]))
    return f"Also, {holds}: {value}for {_protected(side)} ({texts})."


def _protected(certificate: dict[str, Any]) -> str:
    return f"one {certificate['unit']}, {RELATIONS[certificate['relation']]}"


def _pair_text(guarantee: dict[str, float] | None) -> str:
    if guarantee is None:
        return "none"
    return f"epsilon {rounded_up(guarantee['epsilon'])}, delta {rounded_up(guarantee['delta'])}"


def audit_sentences(result: AuditResult) -> list[str]:
    """Sentences about the finding of an audit and what it means."""
    found = (
        f"{result.trials} runs on each of two neighbouring datasets: epsilon is at least "
        f"{rounded_down(result.epsilon_lower_bound)} at delta {result.delta:g}, with "
        f"{100 * result.confidence:g} % confidence; claimed is {result.claimed_epsilon:g}."
    )
    if result.verdict == "caught":
        return ["Caught: the claim is refuted.", found]
    return ["Pass: these runs did not refute the claim, which proves no privacy.", found]


def calibration_sentences(found: Calibrated) -> list[str]:
    """Sentences about the noise, its guarantee and the source."""
    many = "1 release" if found.releases == 1 else f"{found.releases} releases"
    return [
        f"Noise of standard deviation {found.noise_std:.6g} for epsilon {found.epsilon:g}, "
        f"delta {found.delta:g}, relation {found.relation}, {many}.",
        f"It is {found.mu:.6g}-GDP (mu of Gaussian differential privacy).",
        f"Source: {found.source}.",
    ]


# ---- A certificate in a cell of a table or an entry of a legend ----------------------------------

#: Exact and claimed epsilon that differ by less than this fraction are taken as equal.
SAME = 1e-6
#: The short text of a curve that claims nothing since it sends nothing.
SENDS_NOTHING = "sends nothing: epsilon 0"


@dataclass(frozen=True)
class PrivacyText:
    """Texts of ``claimed`` and ``exact`` as pairs; a weaker guarantee is named in ``exact``."""

    claimed: str
    exact: str
    status: str

    @property
    def short(self) -> str:
        """The claim, and the exact guarantee where it differs."""
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


def privacy_text(certificate: dict[str, Any]) -> PrivacyText:
    """Text of a stored certificate for a table.

    Where the user-level claim is unproven, ``exact`` is the first side guarantee: for another unit,
    or conditional on something that this run does not meet.
    """
    claimed, exact = certificate["claimed"], certificate["exact"]
    text = _pair(exact, claimed, rounded_up)
    if exact is None and certificate["also"]:
        side = certificate["also"][0]
        same = side["unit"] == certificate["unit"]
        what = [] if same else [f"per {side['unit']}"]
        # Stores from before there was this status say "proven" of the same unit.
        if same or side.get("status") == "conditional":
            what.append("conditional")
        text = f"{', '.join(what)} {_pair(side['exact'], claimed, rounded_up)}"
    return PrivacyText(_pair(claimed, None, "{:g}".format), text, certificate["status"])


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


# ---- A spec as text, its keys in the order in which people write them ----------------------------

FIRST = {
    "": ("name", "horizon", "silos", "replicates", "seed", "checkpoints", "checkpoint_spacing"),
    "environment": ("kind",),
    "line": ("label", "curve", "bound"),
    "curve": ("label", "algorithm", "protocol", "epsilon", "delta", "batch_size", "lazy"),
}

#: Keys of an identity that are tables of their own, or in no spec.
NOT_TOP = ("environment", "curves", "semantics", "accounts")

#: Keys of [figure] that are tables of their own, or sizes that were not simulated.
NOT_OF_SPEC = (
    *("statement", "line", "size", "long", "quick", "all", "full", "judged_from", "changed"),
)


def spec_text(identity: dict[str, Any], replicates: int, figure: dict[str, Any]) -> str:
    """Text of a spec: TOML, except for what the environment says of its data.

    ``identity`` has every key with its value; one whose value is left to the algorithm is a
    comment.
    """
    top = {k: v for k, v in identity.items() if k not in NOT_TOP}
    plain = {k: v for k, v in figure.items() if k not in NOT_OF_SPEC}
    blocks = [
        _table("", {**top, "replicates": replicates}),
        _table("figure", plain, "[figure]") if plain else "",
        *(_table("statement", s, "[[figure.statement]]") for s in figure.get("statement", ())),
        *(_table("line", line, "[[figure.line]]") for line in figure.get("line", ())),
        _table("environment", identity["environment"], "[environment]"),
        *(_table("curve", curve, "[[curve]]") for curve in identity["curves"]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(kind: str, keys: dict[str, Any], heading: str = "") -> str:
    first = FIRST.get(kind, ())
    ordered = [k for k in first if k in keys] + sorted(k for k in keys if k not in first)
    lines = [heading] if heading else []
    for key in ordered:
        value = keys[key]
        lines.append(f"# {key}: the default" if value is None else f"{key} = {as_toml(value)}")
    return "\n".join(lines)


def as_toml(value: Any) -> str:
    """Format a value as TOML."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(k)} = {as_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(as_toml(v) for v in value)}]"
    if value is None:
        return '""'
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    """Format a key of an inline table; the name of a column may need quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


# ---- Privacy of a curve against its claim, from the stored certificate ---------------------------


def is_private(certificate: dict[str, Any]) -> bool:
    """Return True if it claims privacy, or has it unclaimed, as where nothing is sent."""
    return certificate["claimed"] is not None or certificate["status"] == "proven"


def shortfall(certificate: dict[str, Any]) -> str:
    """Privacy that is claimed and lacking, as a clause that follows the curve's label; else empty.

    Nothing is lacking where nothing is claimed (also where nothing is sent), or where the exact
    guarantee is proven and within the claim.
    """
    claimed, exact = certificate.get("claimed"), certificate.get("exact")
    if claimed is None:
        return ""
    text = privacy_text(certificate)
    if certificate["status"] == "proven" and exact is not None:
        within = exact["epsilon"] <= claimed["epsilon"] * (1.0 + SAME)
        if within and exact["delta"] <= claimed["delta"] * (1.0 + SAME):
            return ""
        return f"claims {text.claimed} and has {text.exact}"
    state = "and no epsilon holds" if certificate["status"] == "none" else "which is unproven"
    broken = [c["text"] for c in certificate["conditions"] if not c["holds"]]
    reasons = [f"condition that fails: {broken[0]}"] if broken else certificate["caveats"][:1]
    return "; ".join([f"claims {text.claimed}, {state}", *reasons])


def wrapped(texts: Iterable[str], width: int) -> list[str]:
    """Wrap texts into lines of at most ``width`` characters."""
    return [line for text in texts for line in textwrap.wrap(text, width)]


# ---- Tables for terminals, by rich ---------------------------------------------------------------


def ruled(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    title: str | None = None,
    caption: str | None = None,
) -> Table:
    """A table with a rule under its headings; the columns ``right`` are set flush right."""
    # Text, not markup: a label may hold brackets.
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=title and Text(title),
        caption=caption and Text(caption),
        title_justify="left",
        caption_justify="left",
    )
    for i, heading in enumerate(headings):
        justify: Literal["right", "left"] = "right" if i in right else "left"
        table.add_column(heading, justify=justify, no_wrap=i in right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
