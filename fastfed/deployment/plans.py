"""Plan files: a federation's choices, which every party verifies and signs.

`compile_plan` turns a spec (TOML), which includes the parties' public keys, into a `DeployedPlan`.
Its `Document` holds the choices: an algorithm with its keys, the parties, the calendar and the
columns. It has only one valid encoding, and so one SHA-256. `load` reads a plan file and derives
everything else from the choices: protocol, noise, conditions and certificate.

Linear algebra may round differently on two machines, so a document also holds the numbers of the
plan, such as the noise's standard deviation. All parties use these numbers, and `load` refuses
numbers that do not follow from the choices.
"""

from __future__ import annotations

import os
import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fastfed._validate import InputError, check_plain, choice, integer, line, number, parsed, show
from fastfed.bandits import ProblemSpec
from fastfed.bandits.system import BATCH_FIRST, BATCH_RATIO, GROWING
from fastfed.deployment import codec, guard, model
from fastfed.deployment.declared import check_keys, schema_of
from fastfed.deployment.kinds import (
    Executed,
    Kind,
    added_up,
    affordable_keys,
    check_least,
    check_sizes,
    check_sum,
    deployed_certificate,
    derived,
    kind_of,
    problem_of,
    system_keys,
)
from fastfed.deployment.schema import Schema, check_schema
from fastfed.deployment.seal import KEY_BYTES, Identity, digest, is_encryption_key, verified
from fastfed.deployment.wire import NAME, Wire
from fastfed.experts import ProblemSpec as ExpertProblem
from fastfed.privacy.account import TOLERANCE
from fastfed.privacy.certificate import Certificate
from fastfed.protocols.clocks import Clocks
from fastfed.protocols.plan import ClockedPlan, Plan

#: Version of the format of plan files.
FORMAT = 2
HUB, HELPER = "hub", "helper"
#: The end of the year 9999, in seconds since 1970.
LAST_SECOND = 253_402_300_799
#: Maximum size of a plan file in bytes, and maximum number of silos.
MAX_PLAN_BYTES, MAX_SILOS = 1 << 26, 1000
#: Default of ``grace`` in seconds if silos have their own clocks; at most the shortest period.
GRACE_WITH_CLOCKS = 60
_AGREEMENT_PREFIX = b"fastfed deployment plan 2\0"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


class Party(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A party's name and public keys: ``sign`` (Ed25519) and ``open`` (X25519, for encryption)."""

    name: str
    sign: bytes
    open: bytes


class Calendar(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The periods of a plan. Times are in seconds since 1970 (UTC).

    Parameters
    ----------
    start : int
        Start of the first period. Nothing is learned from earlier decisions.
    closes : tuple of int
        Ends of the periods 1..K, increasing. A reward that becomes known in period k enters leaf k,
        the sums that silos report for release k.
    grace : int
        Seconds after the end of a period during which the hub waits for missing reports.
    reward_deadline : int
        Seconds from a decision until the latest time of its reward. Nothing is learned from a
        later reward.
    """

    start: int
    closes: tuple[int, ...]
    grace: int
    reward_deadline: int

    def period(self, now: float) -> int:
        """Return the number of the period that ``now`` is in, from 1; K + 1 after the last period.

        A time before the start counts as in the first period.
        """
        return 1 + bisect_right(self.closes, now)

    def closed(self, now: float) -> int:
        """Return the number of periods that are over at time ``now``."""
        return self.period(now) - 1


class Document(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The choices that the parties agree on. Its msgpack encoding is hashed and signed.

    Everything else, such as the plan, its protocol and its certificate, is derived from the choices
    whenever a document is read.

    Parameters
    ----------
    format : int
        `FORMAT`.
    name : str
        A title for readers; free text.
    algorithm : str
        One of `SUPPORTED_SYSTEMS`.
    horizon : int
        Number of decisions of one silo.
    keys : dict
        Every key of the algorithm with its value, including defaults.
    numbers : dict
        The numbers of the plan by name, as computed by the party that compiled it (see `codec`).
    silos, hub, helper : Party
        Names and public keys. The helper may be None.
    calendar : Calendar
    schema : Schema
        Columns, actions and reward.
    least : int
        The minimum number of silos whose reports a release adds up.
    explore : float
        Probability with which a silo chooses a uniformly random action.
    extends : Extension, optional
        The plan that this one continues.
    influence : float, optional
        How much one silo's report can add to a sum, in (0, 1]; see `guard.Cap`.
    """

    format: int
    name: str
    algorithm: str
    horizon: int
    keys: dict[str, Any]
    numbers: dict[str, Any]
    silos: tuple[Party, ...]
    hub: Party
    helper: Party | None
    calendar: Calendar
    schema: Schema
    least: int
    explore: float
    # Optional fields. Trailing fields that are None are not encoded.
    extends: model.Extension | None = None
    influence: float | None = None


_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_SCHEMA = Document.__struct_fields__.index("schema")


def spelled(document: Document) -> bytes:
    """Return a document in its only valid encoding, without trailing fields that are None."""
    fields = list(msgspec.structs.astuple(document))
    fields[_SCHEMA] = document.schema.spelled
    while fields[-1] is None:
        fields.pop()
    return _ENCODER.encode(fields)


def read_document(data: bytes) -> Document:
    """Decode a document; raise InputError if the bytes are not its one valid encoding."""
    document: Document = _decoded(data, Document)
    try:
        is_canonical = spelled(document) == data
    except TypeError:
        # A value is a table whose keys are not text.
        is_canonical = False
    if not is_canonical:
        raise InputError("the plan file is not in canonical form")
    return document


def _decoded(data: bytes, expected_type: Any) -> Any:
    """Decode a part of a plan file; raise InputError if it is damaged or of format 1."""
    try:
        return msgspec.msgpack.decode(data, type=expected_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if data[1:2] == b"\x01":
            # The first field of a document is its format.
            raise InputError(
                "this plan file is of format 1, which an earlier version of fastfed wrote, and "
                "which stored the certificate in place of deriving it; compile it again from its "
                "spec with `fastfed deploy new`"
            ) from None
        raise InputError(
            "this is no plan file, which `fastfed deploy new SPEC.toml PLAN` makes of a spec, or a "
            f"damaged one ({error})"
        ) from None


@dataclass(frozen=True, eq=False)
class DeployedPlan:
    """A verified plan file with its countersignatures.

    Attributes
    ----------
    document : Document
        The choices that the parties agree on.
    plan : Plan
        The schedule of releases. For linear bandits this is ``executed``. For plans in phases or
        with experts, it is an outline of ``executed`` that has the same schedule.
    signatures : dict of str to bytes
        Name of a party -> its countersignature, that is, its signature of the document.
    """

    document: Document
    plan: Plan
    signatures: Mapping[str, bytes]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the document, which identifies the plan in every message."""
        return digest(spelled(self.document))

    @cached_property
    def wire(self) -> Wire:
        """The encoder and decoder of this plan's messages."""
        keys = {party.name: party.sign for party in self.parties}
        size = self.kind.message_size(self.executed)
        return Wire(self.digest, keys, size, views=self.clocks is not None)

    @cached_property
    def executed(self) -> Executed:
        """The plan that the parties execute; certificate and charges are computed from it."""
        return _executed(self.document)

    @cached_property
    def problem(self) -> ProblemSpec | ExpertProblem:
        """The sizes of the problem, and the bounds on the data that clipping ensures."""
        document = self.document
        sizes = len(document.silos), document.horizon, len(document.schema.columns)
        return problem_of(document.algorithm, *sizes)

    @property
    def kind(self) -> Kind:
        """The kind of the plan, which names its party classes and its conditions."""
        return kind_of(self.executed)

    @cached_property
    def parties(self) -> tuple[Party, ...]:
        """All parties: the silos in order, the hub, and the helper if there is one."""
        helper = (self.document.helper,) if self.document.helper else ()
        return (*self.document.silos, self.document.hub, *helper)

    @cached_property
    def silos(self) -> tuple[str, ...]:
        """Names of the silos, in order."""
        return tuple(party.name for party in self.document.silos)

    @cached_property
    def certificate(self) -> Certificate:
        """The privacy certificate, computed from this plan and the plans that it continues."""
        certificate = deployed_certificate(
            self.executed, self.problem, self.document.helper is not None
        )
        return (
            model.with_earlier(certificate, self.executed, self.earlier)
            if self.earlier
            else certificate
        )

    @cached_property
    def earlier(self) -> DeployedPlan | None:
        """The plan that this one continues, verified; None for a first plan."""
        extends = self.document.extends
        if extends is None:
            return None
        model.check_chain(self.document, read_document)
        return checked(read_document(extends.document), {})

    @property
    def clocks(self) -> Clocks | None:
        """The clocks of the silos; None if all silos follow one calendar."""
        return self.plan.clocks if isinstance(self.plan, ClockedPlan) else None

    @property
    def exchanges(self) -> int:
        """The number of broadcasts: of releases or, with clocks, of exchanges."""
        return len(self.document.calendar.closes)

    def calendar_of(self, silo: int) -> Calendar:
        """Return the calendar by which a silo closes its leaves, given its index."""
        calendar = self.document.calendar
        if self.clocks is None:
            return calendar
        sends = self.clocks.sends[:, silo].tolist()
        closes = tuple(time for time, due in zip(calendar.closes, sends, strict=True) if due)
        return msgspec.structs.replace(calendar, closes=closes)

    @property
    def shared(self) -> bool:
        """True if silos split their reports into shares, for the hub and the helper."""
        return self.document.helper is not None

    @property
    def words(self) -> bool:
        """True if reports are words modulo 2^64, of which only the sum is seen (secure sums)."""
        return added_up(self.plan)

    @property
    def masked(self) -> bool:
        """True if pairwise masks hide the reports of a secure sum, without a helper."""
        return self.words and self.document.helper is None

    def index(self, name: str) -> int:
        """Return the index of a silo; raise InputError if no silo has that name."""
        return self.silos.index(choice("silo", name, self.silos))

    def identity(self, name: str, seed: bytes) -> Identity:
        """Derive a party's keys from its secret ``seed``; check them against its public keys.

        Raises
        ------
        InputError
            If there is no such party, or the secret belongs to a different party.
        """
        party = {p.name: p for p in self.parties}.get(name)
        if party is None:
            raise InputError(f"the plan has no party {show(name)}")
        identity = Identity(seed)
        if identity.public != (party.sign, party.open):
            raise InputError(
                f"the secret is not that of {name}: its public keys are not those in the plan"
            )
        return identity

    def countersignature(self, identity: Identity) -> bytes:
        """Return a party's countersignature: its signature of this plan, 64 bytes."""
        return identity.sign(_AGREEMENT_PREFIX + self.digest)

    def countersigned(self, name: str, identity: Identity) -> DeployedPlan:
        """Return a copy of this plan to which a party's countersignature is added."""
        self.check_countersignature(name, signature := self.countersignature(identity))
        return DeployedPlan(self.document, self.plan, {**self.signatures, name: signature})

    def check_countersignature(self, name: str, signature: bytes) -> None:
        """Raise InputError if a countersignature is not the party's signature of this plan."""
        if signature and self._verified_signatures.get(name) == signature:
            return
        party = {p.name: p for p in self.parties}.get(name)
        if party is None or not verified(party.sign, signature, _AGREEMENT_PREFIX + self.digest):
            raise InputError(f"the countersignature of {show(name)} is not one of this plan")
        self._verified_signatures[name] = signature

    @cached_property
    def _verified_signatures(self) -> dict[str, bytes]:
        """Countersignatures that were verified, by party. Cached: every `Join` holds one."""
        return {}

    def as_bytes(self) -> bytes:
        """Return the content of the plan file: the document and the countersignatures."""
        return _ENCODER.encode([spelled(self.document), dict(sorted(self.signatures.items()))])

    def save(self, path: str | Path) -> None:
        """Write the plan file. A crash leaves the old file or the new one, never a part."""
        target = Path(path)
        draft = target.with_name(target.name + ".new")
        with open(draft, "wb") as file:
            file.write(self.as_bytes())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)


# ---- from a spec ---------------------------------------------------------------------------------


def compile_plan(spec: str | Mapping[str, Any]) -> DeployedPlan:
    """Compile a spec to a plan, whose file is then sent to all parties.

    Parameters
    ----------
    spec : str or mapping
        TOML text, or its tables: ``federation``, ``system``, ``calendar``, ``columns``, ``silos``,
        ``hub`` and, for secure sums, ``helper`` (docs/deployment.md).

    Raises
    ------
    InputError
        If the spec is not valid, or its system cannot be deployed.
    """
    return checked(document_of(tables_of(spec)), {})


def tables_of(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    """Parse a spec in TOML to its tables; copy a spec that is a mapping."""
    if not isinstance(spec, str):
        return dict(spec)
    try:
        return dict(parsed(tomllib.loads, spec))
    except InputError as error:
        raise InputError(f"the spec is no TOML ({error})") from None


def document_of(tables: Mapping[str, Any]) -> Document:
    """Build a document from the tables of a spec; `checked` then verifies it as a whole."""
    check_plain("spec", tables)
    check_keys(
        "spec",
        tables,
        (
            "federation", "system", "calendar", "columns", "actions", "reward",
            "silos", "hub", "helper", "norm",
        ),
    )  # fmt: skip
    silos = tuple(_party(f"silos[{i}]", table) for i, table in enumerate(tables.get("silos", ())))
    hub = _party("hub", {"name": HUB, **tables.get("hub", {})})
    helper = _party("helper", {"name": HELPER, **tables["helper"]}) if "helper" in tables else None
    schema = schema_of(tables)
    for name, value in (("silos", silos), ("calendar", tables.get("calendar"))):
        if not value:
            raise InputError(f"{name} is required: see docs/deployment.md")
    federation = dict(tables.get("federation", {}))
    check_keys("federation", federation, ("name", "least", "explore", "sum", "influence"))
    keys = dict(tables.get("system", {}))
    horizon = integer("system.horizon", keys.pop("horizon", None), at_least=1, at_most=2**31)
    algorithm, protocol, keys = system_keys(keys)
    check_sum(federation.get("sum"), protocol, helper is not None)
    sizes = len(silos), horizon, len(schema.columns)
    check_sizes(algorithm, keys, *sizes)
    keys = affordable_keys(algorithm, keys, problem_of(algorithm, *sizes))
    plan = derived(algorithm, keys, *sizes)
    return Document(
        FORMAT,
        str(federation.get("name", "federation")),
        algorithm,
        horizon,
        keys,
        codec.numbers_of(plan),
        silos,
        hub,
        helper,
        _calendar(kind_of(plan).rounds(plan), dict(tables.get("calendar", {}))),
        schema,
        federation.get("least", 1 if isinstance(plan, ClockedPlan) else len(silos)),
        float(number("federation.explore", federation.get("explore", 0.0), at_least=0, at_most=1)),
        influence=guard.checked_influence(federation.get("influence")),
    )


def _party(name: str, table: Mapping[str, Any]) -> Party:
    """Return the party that a table of a spec defines by name and public keys.

    ``name`` is the path of the table in the spec, for error messages.
    """
    check_keys(name, table, ("name", "sign", "open"))
    keys = []
    for field in ("sign", "open"):
        text = table.get(field)
        if not isinstance(text, str) or not re.fullmatch(r"[0-9a-f]{64}", text):
            owner = f" of {table['name']}" if table.get("name") != name and "name" in table else ""
            raise InputError(
                f"{name}.{field}{owner} must be a public key of 64 hexadecimal digits, as "
                f"`fastfed deploy keys` prints it, got {show(text)}"
            )
        keys.append(bytes.fromhex(text))
    return Party(str(table.get("name")), *keys)


def _calendar(plan: Plan, table: dict[str, Any]) -> Calendar:
    """Build the calendar of a plan from the table ``calendar`` of a spec.

    The ends of periods are given as dates (``closes``), or computed from the seconds of a period or
    of one round.
    """
    check_keys(
        "calendar", table, ("start", "closes", "period", "round", "grace", "reward_deadline")
    )
    start = _seconds("calendar.start", table.get("start"))
    given_keys = [key for key in ("closes", "period", "round") if key in table]
    if len(given_keys) != 1:
        raise InputError(
            f"calendar must have one of closes, period and round, got {show(given_keys)}"
        )
    # Release k is made after ends[k - 1] rounds or, with clocks, ticks.
    if isinstance(plan, ClockedPlan):
        ends = plan.clocks.ticks.tolist()
    else:
        ends = [plan.end(k) for k in range(1, plan.releases + 1)]
    if given_keys == ["closes"]:
        closes = [_seconds("calendar.closes", date) for date in table["closes"]]
    else:
        (key,) = given_keys
        if not isinstance(table[key], int):
            raise InputError(f"calendar.{key} must be whole seconds, got {show(table[key])}")
        seconds = integer(f"calendar.{key}", table[key], at_least=1)
        if key == "period" and isinstance(plan, ClockedPlan):
            raise InputError(
                "calendar.period must be calendar.round with clock, the seconds of one tick: "
                "periods of silos differ"
            )
        counts = ends if key == "round" else range(1, len(ends) + 1)
        closes = [start + seconds * count for count in counts]
    # Defaults: rewards are accepted until one longest period after a decision, and the grace time
    # is the shortest period.
    periods = np.maximum(np.diff([start, *closes]), 1)
    grace, longest = (int(periods.min()), int(periods.max())) if len(periods) else (0, 0)
    if isinstance(plan, ClockedPlan) and len(closes) == len(ends):
        # With clocks, the hub waits only a short time for the reports of an exchange. A silo's
        # period is the time between two closes at which this silo sends a report.
        grace = min(GRACE_WITH_CLOCKS, int(periods.min()))
        closes_by_silo = (np.array(closes)[sends > 0] for sends in plan.clocks.sends.T)
        longest = max(int(np.diff([start, *times]).max()) for times in closes_by_silo)
    deadline = table.get("reward_deadline", longest)
    return Calendar(
        start,
        tuple(closes),
        integer("calendar.grace", table.get("grace", grace), at_least=0),
        integer("calendar.reward_deadline", deadline, at_least=1),
    )


def _seconds(name: str, value: Any) -> int:
    """Return seconds since 1970 for a date with a time zone, or for a number of seconds.

    ``name`` is the key in the spec, for error messages.
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InputError(
                f"{name} must have a time zone, such as 2027-01-04T00:00:00Z (UTC), got {value}"
            )
        return round(value.timestamp())
    if not isinstance(value, int):
        raise InputError(
            f"{name} must be a date without quotes, such as 2027-01-04T00:00:00Z, got {show(value)}"
        )
    return integer(name, value, at_least=0)


# ---- verification --------------------------------------------------------------------------------


def load(source: str | Path | bytes) -> DeployedPlan:
    """Read a plan file and verify it.

    Parameters
    ----------
    source : str, Path or bytes
        The file, or its content.

    Raises
    ------
    InputError
        If it is not a plan file, if its numbers give a larger epsilon than it claims, or if a
        countersignature is not valid.
    """
    if not isinstance(source, bytes):
        try:
            return load(Path(source).read_bytes())
        except InputError as error:
            raise InputError(f"{source}: {error}") from None
    data = source
    if len(data) > MAX_PLAN_BYTES:
        raise InputError(f"a plan file has at most {MAX_PLAN_BYTES} bytes, got {len(data)}")
    document_bytes, signatures = _decoded(data, tuple[bytes, dict[str, bytes]])
    return checked(read_document(document_bytes), signatures)


def checked(document: Document, signatures: Mapping[str, bytes]) -> DeployedPlan:
    """Derive the plan of a document, and verify it.

    Raises
    ------
    InputError
        If the document's choices contradict each other, if its numbers give a larger epsilon than
        it claims, or if a countersignature is not valid.
    """
    if document.format != FORMAT:
        raise InputError(f"the plan file must be of format {FORMAT}, got {document.format}")
    # Free text must be one printable line, so that it cannot imitate other output.
    line("federation.name", document.name)
    check_plain("columns", msgspec.to_builtins(document.schema))
    _check_parties(document)
    plan = _executed(document)
    kind = kind_of(plan)
    if kind.experts and (document.schema.records is not None or document.explore):
        raise InputError("a plan of experts has no columns of records and no explore")
    schedule = kind.rounds(plan)
    _check_document(document, schedule)
    deployed = DeployedPlan(document, schedule, dict(signatures))
    if deployed.earlier is not None:
        model.check_extension(document, schedule, deployed.earlier)
    # The certificate is computed from the document's numbers, which may not give the claim.
    exact, claimed = deployed.certificate.exact, deployed.certificate.claimed
    if exact is None or claimed is None or exact.epsilon > claimed.epsilon * (1.0 + TOLERANCE):
        raise InputError(f"the plan's numbers give {show(exact)}, but it claims {show(claimed)}")
    for name, signature in signatures.items():
        deployed.check_countersignature(name, signature)
    return deployed


def _executed(document: Document) -> Executed:
    """Return the plan that parties execute, from a document's choices and stored numbers."""
    keys = _with_earlier_defaults(document.keys)
    algorithm, _, keys = system_keys({"algorithm": document.algorithm, **keys})
    sizes = len(document.silos), document.horizon, len(document.schema.columns)
    check_sizes(algorithm, keys, *sizes, closes=len(document.calendar.closes))
    executed: Executed = codec.executed(derived(algorithm, keys, *sizes), document.numbers)
    return executed


def _with_earlier_defaults(keys: dict[str, Any]) -> dict[str, Any]:
    """Return `Document.keys` plus the keys that a plan file of an earlier version lacks.

    Their values are those that the earlier version used. A plan file is of an earlier version if it
    has the key ``tie_bonus`` but not the key ``sieve``.
    """
    if "tie_bonus" not in keys or "sieve" in keys:
        return keys
    earlier: dict[str, Any] = {"sieve": 1.0}
    if "release" in keys:
        earlier["saturation"] = 0.0
    grows = keys["batch_size"] in (None, GROWING) and keys["release_rounds"] is None
    if grows and keys.get("protocol") == "shuffle-vector":
        earlier["batch_first"] = keys["batch_first"] or BATCH_FIRST
        earlier["batch_ratio"] = keys["batch_ratio"] or BATCH_RATIO
    return {**keys, **earlier}


def _check_parties(document: Document) -> None:
    """Raise InputError unless the parties' names and keys are valid and all different."""
    names = [p.name for p in (*document.silos, document.hub)]
    names += [document.helper.name] if document.helper else []
    for name in names:
        if len(name) > NAME or not _NAME.fullmatch(name):
            raise InputError(
                f"a party's name must be of small letters, digits and -, got {show(name)}"
            )
    keys = [
        k for p in (*document.silos, document.hub, document.helper) if p for k in (p.sign, p.open)
    ]
    if len(set(names)) < len(names) or len(set(keys)) < len(keys):
        repeated = sorted({name for name in names if names.count(name) > 1})
        problem = f"the name {show(repeated[0])} twice" if repeated else "one key for two parties"
        raise InputError(f"parties must have different names and different keys, got {problem}")
    helper = [document.helper.name] if document.helper else []
    if document.hub.name != HUB or helper not in ([], [HELPER]) or HELPER in names[:-1]:
        raise InputError(
            f'the hub is named "{HUB}", a helper "{HELPER}", and no silo has one of these names'
        )
    if any(len(key) != KEY_BYTES for key in keys):
        raise InputError(f"public keys must have {KEY_BYTES} bytes")
    for party in (*document.silos, document.hub, document.helper):
        if party is not None and not is_encryption_key(party.open):
            raise InputError(
                f"the key `open` of {party.name} is no X25519 key in its usual form: is it the "
                "key `sign`?"
            )
    integer("number of silos", len(document.silos), at_least=1, at_most=MAX_SILOS)


def _check_document(document: Document, plan: Plan) -> None:
    """Raise InputError if a document's choices do not fit its plan.

    These are the helper, the smallest number of reporting silos (``least``), the calendar, the
    schema, ``explore`` and ``influence``.
    """
    if document.helper is not None and not added_up(plan):
        raise InputError(f'protocol "{plan.protocol.id}" has no use for a helper')
    least = integer("least", document.least, at_least=1, at_most=plan.silos)
    if plan.secure is not None and least != plan.silos:
        raise InputError(
            f"least must be all {plan.silos} silos with secure sums: a silo's reports add up to "
            f"prefix sums only if none of them is missing, got {least}"
        )
    check_least(plan, least, masked=added_up(plan) and document.helper is None)
    calendar, schema = document.calendar, document.schema
    # If the plan has clocks, `check_sizes` has already checked the number of closes.
    if len(calendar.closes) != plan.releases and not isinstance(plan, ClockedPlan):
        raise InputError(
            f"calendar must close {plan.releases} leaves, one for each release of the plan, "
            f"got {len(calendar.closes)}"
        )
    if any(
        b <= a for a, b in zip((calendar.start, *calendar.closes), calendar.closes, strict=False)
    ):
        raise InputError("calendar must close leaves one after the other, after its start")
    for name, value, smallest in (
        ("start", calendar.start, 0),
        ("closes", calendar.closes[-1], 0),
        ("grace", calendar.grace, 0),
        ("reward_deadline", calendar.reward_deadline, 1),
    ):
        integer(f"calendar.{name}", value, at_least=smallest, at_most=LAST_SECOND)
    check_schema(schema)
    number("explore", document.explore, at_least=0, at_most=1)
    guard.check_influence(document.influence, plan)
