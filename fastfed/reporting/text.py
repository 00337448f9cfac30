"""Format guarantees, audits, calibrations and specs as text, and tables for terminals."""

from __future__ import annotations

import json
import math
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


def number_with_noun(number: int | str, noun: str) -> str:
    """Return a number with a noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


# ---- Sentences about certificates, audits and calibrations, as notebooks show them ---------------

RELATIONS = {"replace": "replaced by any other", "zero-out": "whose contribution becomes zero"}
#: First word of a caveat that names an assumption of a side guarantee (earlier versions wrote it).
ASSUMES = "assumes"
NOTHING = "Nothing is claimed, and no privacy holds."


def certificate_sentences(certificate: dict[str, Any]) -> list[str]:
    """Return sentences about a stored certificate, the most important first.

    Sentences give a number only if the certificate proves it.
    """
    sentences = _guarantee(certificate)
    conditions = certificate["conditions"]
    failed = [c["text"] for c in conditions if not c["holds"]]
    if failed:
        sentences += [f"Fails: {text}." for text in failed]
    elif conditions:
        count = len(conditions)
        sentences.append(
            f"All {count} conditions hold." if count > 1 else f"Holds: {conditions[0]['text']}."
        )
    sentences += [f"Caveat: {text}." for text in certificate["caveats"]]
    return sentences + [_side(side) for side in certificate.get("also", ())]


def _guarantee(certificate: dict[str, Any]) -> list[str]:
    """Return sentences about a certificate's status, its claim, and who is protected."""
    claimed, exact, status = (certificate[key] for key in ("claimed", "exact", "status"))
    if claimed is None and status == "none":
        return [NOTHING]
    trust_text = f"Protected: {_protected(certificate)}. Trust: {certificate['model']}."
    claim = f"Claimed: {pair_text(claimed)}." if claimed else "Nothing is claimed."
    finding = {
        "proven": f"Proven: {pair_text(exact)}, for everything that is released.",
        "conditional": f"Conditional: {pair_text(exact)} would hold if all conditions held.",
        "unproven": "Unproven: no proof covers this run, so the claim has no number.",
        "none": "None: no finite epsilon holds.",
    }[status]
    return [finding, claim, trust_text]


def _side(side: dict[str, Any]) -> str:
    """Return a sentence about a side guarantee."""
    assumes = any(text.startswith(ASSUMES) for text in side["caveats"])
    status_text = "only under assumptions" if assumes else side["status"]
    value = f"{pair_text(side['exact'])}, " if side["exact"] else ""
    failed: list[str] = []
    if side["status"] == "conditional":
        failed = [f"fails here: {c['text']}" for c in side["conditions"] if not c["holds"]]
    texts = "; ".join((side["model"], *failed, *side["caveats"]))
    return f"Also, {status_text}: {value}for {_protected(side)} ({texts})."


def _protected(certificate: dict[str, Any]) -> str:
    """Return a text about who is protected: the unit, and how neighbouring data sets differ."""
    return f"one {certificate['unit']}, {RELATIONS[certificate['relation']]}"


def pair_text(guarantee: dict[str, float] | None) -> str:
    """Format epsilon and delta, rounded up."""
    if guarantee is None:
        return "none"
    return f"epsilon {rounded_up(guarantee['epsilon'])}, delta {rounded_up(guarantee['delta'])}"


def audit_sentences(result: AuditResult) -> list[str]:
    """Return sentences about the finding of an audit and what it means."""
    finding = (
        f"{result.trials} runs on each of two neighbouring datasets: epsilon is at least "
        f"{rounded_down(result.epsilon_lower_bound)} at delta {result.delta:g}, with "
        f"{100 * result.confidence:g} % confidence; claimed is {result.claimed_epsilon:g}."
    )
    if result.verdict == "caught":
        return ["Caught: the claim is refuted.", finding]
    if not result.can_refute:
        return [
            f"Too few runs: they cannot show an epsilon above {result.largest_bound:.3g}, whatever "
            "they return, so this pass says nothing about the claim. Give more trials.",
            finding,
        ]
    return ["Pass: these runs did not refute the claim. A pass does not prove privacy.", finding]


def calibration_sentences(calibrated: Calibrated) -> list[str]:
    """Return sentences about calibrated noise, its guarantee and the source."""
    releases = "1 release" if calibrated.releases == 1 else f"{calibrated.releases} releases"
    return [
        f"Noise of standard deviation {calibrated.noise_std:.6g} for "
        f"epsilon {calibrated.epsilon:g}, delta {calibrated.delta:g}, "
        f"relation {calibrated.relation}, {releases}.",
        f"It is {calibrated.mu:.6g}-GDP (mu of Gaussian differential privacy).",
        f"Source: {calibrated.source}.",
    ]


# ---- A certificate in a cell of a table or an entry of a legend ----------------------------------

#: Exact and claimed epsilon count as equal if they differ by less than this fraction.
TOLERANCE = 1e-6
#: The short text for a curve that claims nothing and sends nothing.
SENDS_NOTHING = "sends nothing: epsilon 0"


@dataclass(frozen=True)
class PrivacyText:
    """Texts of a certificate for a table: claimed and exact guarantee, and status.

    Guarantees are pairs (epsilon, delta), or "-". ``exact`` names the unit of a weaker guarantee.
    """

    claimed: str
    exact: str
    status: str

    @property
    def short(self) -> str:
        """Return the claim, and the exact guarantee if it differs, as one short text."""
        if self.claimed == "-":
            if self.status != "proven":
                return "not private"
            return SENDS_NOTHING if self.exact.startswith("(0, ") else f"exact {self.exact}"
        if self.exact == self.claimed:
            return self.claimed
        if self.status == "proven":
            return f"claimed {self.claimed}, exact {self.exact}"
        exact_text = f", only {self.exact}" if self.exact != "-" else ""
        return f"claimed {self.claimed}, {self.status}{exact_text}"


def privacy_text(certificate: dict[str, Any]) -> PrivacyText:
    """Return the texts of a stored certificate for a table.

    If the certificate has no exact guarantee, the text `PrivacyText.exact` states its first side
    guarantee (key "also"), which is weaker: it is for a different unit, or conditional on something
    that does not hold in this run.
    """
    claimed, exact = certificate["claimed"], certificate["exact"]
    text = _pair(exact, claimed, rounded_up)
    if exact is None and certificate["also"]:
        side = certificate["also"][0]
        same_unit = side["unit"] == certificate["unit"]
        qualifiers = [] if same_unit else [f"per {side['unit']}"]
        # Earlier versions had no status "conditional" and stored "proven" for the same unit.
        if same_unit or side.get("status") == "conditional":
            qualifiers.append("conditional")
        text = f"{', '.join(qualifiers)} {_pair(side['exact'], claimed, rounded_up)}"
    return PrivacyText(_pair(claimed, None, "{:g}".format), text, certificate["status"])


def _pair(
    guarantee: dict[str, float] | None,
    claimed: dict[str, float] | None,
    format_epsilon: Callable[[float], str],
) -> str:
    """Format a guarantee as (epsilon, delta); None as "-".

    If epsilon differs from the claimed one by rounding only, the claimed pair is written.
    """
    if guarantee is None:
        return "-"
    epsilon = guarantee["epsilon"]
    if claimed is not None and abs(epsilon - claimed["epsilon"]) <= TOLERANCE * claimed["epsilon"]:
        return _pair(claimed, None, "{:g}".format)
    return f"({format_epsilon(epsilon)}, {guarantee['delta']:g})"


# ---- A spec as text ------------------------------------------------------------------------------

#: Keys that come first in each table, in this order. Other keys follow alphabetically.
FIRST = {
    "": ("name", "horizon", "silos", "replicates", "seed", "checkpoints", "checkpoint_spacing"),
    "environment": ("kind",),
    "line": ("label", "curve", "bound"),
    "curve": ("label", "algorithm", "protocol", "epsilon", "delta", "batch_size", "lazy"),
}

#: Keys of an identity that are separate tables in a spec, or do not appear in a spec.
NOT_TOP = ("environment", "curves", "semantics", "accounts", "revisions")

#: Keys of [figure] that are separate tables, or sizes that were not simulated.
NOT_OF_SPEC = (
    *("statement", "line", "size", "long", "quick", "all", "full", "judged_from", "changed"),
)


def spec_text(identity: dict[str, Any], replicates: int, figure: dict[str, Any]) -> str:
    """Return the text of a spec with every key and its value.

    It is TOML, but may contain keys that no spec accepts, because they only describe the data. A
    key whose value is the default of the algorithm is a comment.

    Parameters
    ----------
    identity : dict
        All values that determine the results, from `Experiment.identity`.
    replicates : int
        Number of replicates.
    figure : dict
        The keys of the spec's table [figure].
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
    """Return one table of a spec as text, with its keys in the order of `FIRST`.

    ``kind`` is a key of `FIRST`, and ``heading`` the line above the table, such as "[[curve]]".
    """
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
    """Return a key of an inline TOML table as text, in quotes if it has special characters."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


# ---- Does a curve have the privacy that it claims? -----------------------------------------------


def is_private(certificate: dict[str, Any]) -> bool:
    """Return True if a certificate claims or proves privacy.

    A curve that sends nothing has proven privacy without a claim.
    """
    return certificate["claimed"] is not None or certificate["status"] == "proven"


def shortfall(certificate: dict[str, Any]) -> str:
    """Return a clause about a claim of privacy that does not hold, to follow the curve's label.

    Return "" if nothing is claimed, or if the exact guarantee is proven and within the claim.
    """
    claimed, exact = certificate.get("claimed"), certificate.get("exact")
    if claimed is None:
        return ""
    privacy = privacy_text(certificate)
    if certificate["status"] == "proven" and exact is not None:
        within_claim = exact["epsilon"] <= claimed["epsilon"] * (1.0 + TOLERANCE)
        if within_claim and exact["delta"] <= claimed["delta"] * (1.0 + TOLERANCE):
            return ""
        return f"claims {privacy.claimed} and has {privacy.exact}"
    status_clause = (
        "and no epsilon holds" if certificate["status"] == "none" else "which is unproven"
    )
    failed = [c["text"] for c in certificate["conditions"] if not c["holds"]]
    reasons = [f"condition that fails: {failed[0]}"] if failed else certificate["caveats"][:1]
    return "; ".join([f"claims {privacy.claimed}, {status_clause}", *reasons])


def wrapped(texts: Iterable[str], width: int) -> list[str]:
    """Wrap texts into lines of at most ``width`` characters."""
    return [line for text in texts for line in textwrap.wrap(text, width)]


def spaced(value: float) -> str:
    """Format a whole number with spaces between thousands: 10 000."""
    return f"{value:,.0f}".replace(",", " ")


def span(seconds: float) -> str:
    """Format a duration in seconds for reading: 0.42 s, 2 min 5 s, 3 h 12 min."""
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    total = math.floor(seconds + 0.5)
    hours, minutes, seconds_left = (total // 3600, total // 60 % 60, total % 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds_left} s"


# ---- Numbers -------------------------------------------------------------------------------------

#: Relative standard errors below this are rounding errors of equal replicates.
ROUNDING_ERROR = 1e-12


def plus_minus(mean: float, stderr: float | None) -> str:
    """Format a mean and its standard error, with two digits of the error.

    The mean has five digits if there is no error, or if the error is only due to rounding and so is
    written as 0.
    """
    if not stderr or not math.isfinite(stderr):
        return fixed(mean, 4 - magnitude(mean))
    if stderr < ROUNDING_ERROR * abs(mean):
        return f"{fixed(mean, 4 - magnitude(mean))} ± 0"
    decimals = 1 - magnitude(stderr)
    return f"{fixed(mean, decimals)} ± {fixed(stderr, decimals)}"


def magnitude(value: float) -> int:
    """Return the exponent of ten of a number's leading digit: 2 for 314, -1 for 0.5, 0 for 0."""
    return math.floor(math.log10(abs(value))) if value else 0


def fixed(value: float, decimals: int) -> str:
    """Format a number with 0 to 8 decimals."""
    return f"{value:.{min(max(decimals, 0), 8)}f}"


# ---- Tables for terminals, by rich ---------------------------------------------------------------


def ruled(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[int] = (),
    title: str | None = None,
    caption: str | None = None,
    wrapped: Collection[int] | None = None,
) -> Table:
    """Return a table with a rule below its headings; columns ``right`` are aligned to the right.

    Only the columns ``wrapped`` may be wrapped, by default all that are not aligned to the right.
    """
    # Cells are Text, not markup, since labels may contain brackets.
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
        is_whole = i in right if wrapped is None else i not in wrapped
        table.add_column(heading, justify=justify, no_wrap=is_whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
