"""Sentences about results, guarantees and specs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from fastfed.privacy.audit.bounds import AuditResult
from fastfed.privacy.certificate import rounded_down, rounded_up
from fastfed.privacy.mechanisms.catalogue import Calibrated

# A certificate, an audit and a calibration in sentences, for whoever reads them in a notebook.


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


# ---- A certificate in a few words, for a cell of a table or an entry of a legend -----------------


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


# ---- Every key of an experiment as text, in the order a person would write a spec ----------------


FIRST = {
    "": ("name", "horizon", "silos", "replicates", "seed", "checkpoints"),
    "environment": ("kind",),
    "line": ("label", "curve", "bound"),
    "curve": ("label", "algorithm", "protocol", "epsilon", "delta", "batch_size", "lazy"),
}

#: Of an identity: tables of their own, and what a spec does not say.
NOT_TOP = ("environment", "curves", "semantics", "accounts")

#: Of [figure]: tables of their own, and sizes other than those that were played.
NOT_OF_SPEC = ("statement", "line", "size", "long", "quick", "all", "full")


def spec_text(identity: dict[str, Any], replicates: int, figure: dict[str, Any]) -> str:
    """The tables of a spec, in TOML but for what the environment says of its data.

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
    """A value as TOML writes it."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(k)} = {as_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(as_toml(v) for v in value)}]"
    if value is None:
        return '""'
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    """A key of a table inside a line: the name of a column may need quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


# ---- Whether a curve is private, and as it claims, from its certificate as it is stored ----------


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
