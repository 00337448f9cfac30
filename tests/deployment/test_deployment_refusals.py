"""Tests of every refusal of a message: it is raised and does not change the receiver's state.

The test lists all lines with `raise Refused` or `raise InputError` in functions that handle
messages. Some message here must reach each of these lines.
"""

import ast
import inspect
import traceback
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation

from fastfed import InputError
from fastfed.deployment import guard, hub, silo, sums, wire
from fastfed.deployment.seal import Identity
from fastfed.deployment.wire import Broadcast, Entry, Join, Opened, Receipt, Refused, Report

HUB, HELPER = (Identity(federation.secret(name)) for name in ("hub", "helper"))
SILOS = [Identity(federation.secret(f"silo{i}")) for i in range(3)]
NONCE, DIGEST = bytes(16), bytes(32)

#: Functions that a message goes through, by module.
HANDLERS = {
    hub: (
        "handle", "_silo", "_answer_join", "_store_report", "_decrypt_report", "_store_leave",
        "_store_answer", "_take_returned_broadcast",
    ),
    silo: ("handle", "_handle_receipt", "_adopt_broadcast", "_broadcast_problem",
           "_check_opened"),
    sums: ("handle", "_total"),
    wire: ("read", "body", "floats", "words", "_numbers", "check_entries"),
    guard: ("check_range", "check_records"),
}  # fmt: skip


def refusals():
    """Return (file name, first line, last line) of each raise in these functions."""
    collected = set()
    for module, names in HANDLERS.items():
        path = inspect.getsourcefile(module)
        for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                raises = [n for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc]
                collected |= {(Path(path).name, n.lineno, n.end_lineno) for n in raises}
    return collected


def frozen(value, seen=()):
    """Return all data of an object as text and lists; objects of fastfed by their attributes."""
    if id(value) in seen:
        return "..."
    seen = (*seen, id(value))
    if isinstance(value, np.ndarray):
        return value.tobytes().hex()
    if isinstance(value, dict):
        return sorted((repr(k), frozen(v, seen)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return [frozen(v, seen) for v in value]
    if isinstance(value, set):
        return sorted(map(repr, value))
    if type(value).__module__.startswith("fastfed") and hasattr(value, "__dict__"):
        if isinstance(value, wire.Wire | type(federation.deployed())):
            return "constant"
        return frozen(vars(value), seen)
    return repr(value) if isinstance(value, bytes | str | int | float) else type(value).__name__


def federation_after_release(protocol):
    """Return a federation after its first release; the reports of the second release are due."""
    deployment = federation.Federation(federation.deployed(protocol))
    deployment.settle()
    for release in (1, 2):
        deployment.now = deployment.plan.document.calendar.closes[release - 1] - 1.0
        for name in deployment.plan.silos:
            process = deployment.processes[name]
            process.reward(process.decide([[0.5, 0.1], [-0.3, 0.8]]).id, 0.5)
        deployment.now += 1.0
        if release == 1:
            deployment.settle()
    return deployment


DEPLOYMENTS = {
    protocol: federation_after_release(protocol)
    for protocol in ("silo-ldp", "central", "secure-sum")
}


def words(size=5):
    """Return encoded zeros, the entries of a sum of shares."""
    return wire.packed(np.zeros(size, dtype=np.uint64))


def floats(*values):
    """Return five encoded numbers: these values, then zeros."""
    return wire.packed(np.array([*values, *[0.0] * (5 - len(values))]))


def with_fields(data, **fields):
    """Return a message with other fields, signed by silo0 unless a signature is among them."""
    document = msgspec.structs.replace(msgspec.msgpack.decode(data, type=wire.Envelope), **fields)
    if "signature" not in fields:
        signature = SILOS[0].sign(document.signed_part())
        document = msgspec.structs.replace(document, signature=signature)
    return document.as_bytes()


def to_everybody(plan):
    """Yield (message that every receiver refuses, words of its refusal)."""
    good = plan.wire.signed(SILOS[0], "silo0", 2, Report(floats()))
    version = good[:1] + b"\xcc" + good[1:]
    yield bytes(1 << 22), "at most"
    yield b"\x93", "no envelope"
    yield with_fields(good, version=9), "version"
    yield with_fields(good, plan=DIGEST), "another plan"
    yield with_fields(good, kind="model"), "must be one of"
    yield with_fields(good, sender="nobody"), "no party|must be one of"
    yield with_fields(good, release=-3), "release -3|must be one of"
    yield with_fields(good, signature=bytes(64)), "not that of silo0|must be one of"
    yield version, "canonical|must be one of"
    yield with_fields(good, body=bytes(3000)), "must be at most|must be one of"


def to_hub(protocol):
    """Yield (message to the hub, words of its refusal)."""
    plan = DEPLOYMENTS[protocol].plan
    shared = plan.shared
    sealed = b"sealed" if shared else b""

    def report(release=2, values=None, more=sealed, index=0):
        """Return a report to the hub; `more` is the share for the helper."""
        values = (words() if shared else floats()) if values is None else values
        return federation.sealed_report(plan, index, release, values, more)

    joined = plan.countersignature(SILOS[0])
    yield from to_everybody(plan)
    yield plan.wire.signed(SILOS[0], "silo0", 0, Join(NONCE, bytes(64))), "countersignature"
    yield plan.wire.signed(SILOS[0], "silo0", 0, Join(bytes(3), joined)), "must have 16 bytes"
    join = plan.wire.signed(SILOS[0], "silo0", 0, Join(NONCE, joined))
    yield with_fields(join, body=b"\x91\x01"), "malformed"
    yield (
        with_fields(join, body=b"\x92\xc5\x00\x10" + NONCE + b"\xc4\x40" + joined),
        "canonical form",
    )
    yield plan.wire.signed(HUB, "hub", 2, Report(floats(), b"")), "must come from a silo"
    yield plan.wire.signed(SILOS[0], "silo0", 2, Opened(())), "must come from the helper"
    yield report(0), "must be of release 1..4"
    yield report(5), "must be of release 1..4"
    bare = Report(words() if shared else floats(), sealed)
    yield plan.wire.signed(SILOS[0], "silo0", 2, bare), "encrypted to the hub"
    for release, last, head, message in (
        (5, 0, b"", "of a release of the plan"),
        (2, 2, DIGEST, "name an earlier broadcast"),
        (2, 1, b"", "digests of 32 bytes"),
        (2, 0, DIGEST, "digests of 32 bytes"),
    ):
        yield federation.seen(plan, 0, report(), last, head, release), message
    yield report(more=b"" if shared else b"x"), "have a share for the helper"
    yield report(values=floats()[:-8]), "must have 40 bytes"
    past = Broadcast(floats(), (Entry(0, DIGEST), Entry(1, DIGEST)), b"")
    yield plan.wire.signed(SILOS[0], "silo0", 1, past), "must be signed by hub"
    yield plan.wire.signed(HUB, "hub", 9, past), "must be signed by hub"
    backwards = msgspec.structs.replace(past, entries=past.entries[::-1])
    yield plan.wire.signed(HUB, "hub", 2, backwards), "different silos in order"
    if shared:
        entries = (Entry(0, DIGEST),)
        total = plan.wire.signed(HELPER, "helper", 3, Opened(entries, (), words()))
        yield total, "another set of release 3"
        return
    yield report(values=floats(float("nan"))), "finite"
    yield report(values=floats(1e9)), "beyond what"
    if protocol == "central":
        yield report(values=floats(0.3, 0.1)), "not in fixed point"
        yield report(values=floats(0.0, 0.0, 640.0, 0.0, 9.5)), "more of x x.T"
        yield report(values=floats(200.0, 0.0, 4.0)), "more of x y"


def to_silo(protocol):
    """Yield (message to silo 0, words of its refusal)."""
    plan, entries = DEPLOYMENTS[protocol].plan, tuple(Entry(i, DIGEST) for i in range(3))
    last = DEPLOYMENTS[protocol].processes["silo0"].party.broadcasts[1]
    before = wire.digest(last)

    def broadcast(**changes):
        """Return news with the hub's second broadcast, some fields changed."""
        body = msgspec.structs.replace(Broadcast(floats(), entries, before), **changes)
        return federation.news(plan, plan.wire.signed(HUB, "hub", 2, body), last)

    def seen(release=2, sender="silo0", identity=SILOS[0]):
        """Return the statement of a silo which broadcast it has seen last."""
        return plan.wire.signed(identity, sender, release, wire.Seen(DIGEST, 1, before))

    def receipt(**changes):
        """Return a receipt of the hub, some fields changed."""
        body = msgspec.structs.replace(Receipt(0, ()), **changes)
        return plan.wire.signed(HUB, "hub", 1, body)

    yield from to_everybody(plan)
    honest = plan.wire.signed(HUB, "hub", 2, Broadcast(floats(), entries, before))
    foreign = plan.wire.signed(SILOS[1], "silo1", 2, Broadcast(floats(), entries, before))
    yield plan.wire.signed(SILOS[1], "silo1", 2, wire.News(honest, ())), "of the hub only"
    yield plan.wire.signed(HUB, "hub", 2, wire.News(foreign, ())), "must hold the hub's broadcast"
    yield plan.wire.signed(HUB, "hub", 2, wire.News(last, ())), "must hold the hub's broadcast"
    yield plan.wire.signed(HUB, "hub", 3, wire.News(honest, ())), "still open here"
    yield plan.wire.signed(HUB, "hub", 2, wire.News(honest, (seen(1),))), "is about release 1"
    yield plan.wire.signed(HUB, "hub", 2, wire.News(honest, (seen(),))), "no silo signed"
    yield receipt(reports=((3, DIGEST),)), "still open here"
    yield receipt(silo=1), "for silo 1, not 0"
    yield receipt(reports=((5, DIGEST),)), "releases 1..4"
    yield receipt(reports=((0, DIGEST),)), "releases 1..4"
    yield receipt(reports=((2, b"short"),)), "with digests"
    yield broadcast(entries=(*entries[:2], entries[0])), "different silos in order"
    yield broadcast(entries=(Entry(0, DIGEST), Entry(1, b""), entries[2])), "digests of 32 bytes"
    if plan.shared:
        opened = plan.wire.signed(HELPER, "helper", 2, Opened(entries[:2], (), words()))
        yield broadcast(helper=opened), "not of the set that the helper opened"
        return
    others = (Entry(1, DIGEST), Entry(2, DIGEST))
    yield broadcast(entries=others, values=floats(1e9)), "beyond what"
    yield broadcast(entries=others, values=floats(float("inf"))), "finite"
    yield broadcast(entries=others, values=floats()[:-1]), "must have 40 bytes"


def to_helper():
    """Yield (message to the helper, words of its refusal)."""
    deployment = DEPLOYMENTS["secure-sum"]
    plan, hub_party = deployment.plan, deployment.processes["hub"].party
    # Reports of the second release, which the helper has not been asked for.
    data = [deployment.processes[name].party.report(2) for name in plan.silos]
    reports = [plan.wire.body(plan.wire.read(each), Report) for each in data]
    entries = tuple(wire.entry_of(i, each) for i, each in enumerate(data))
    shares = tuple(each.sealed for each in reports)
    old = tuple(
        plan.wire.body(plan.wire.read(hub_party.reports[1, i]), Report).sealed for i in range(3)
    )

    def request(identity=HUB, name="hub", release=2, **changes):
        """Return a request to open a set of shares, some fields changed."""
        body = msgspec.structs.replace(Opened(entries, shares), **changes)
        return plan.wire.signed(identity, name, release, body)

    def sealed(body, sender="silo0", identity=SILOS[0], release=2):
        """Return the shares of a set; that of silo 0 is this message, encrypted."""
        from fastfed.deployment.seal import encrypted_to

        inner = plan.wire.signed(identity, sender, release, body)
        context = sums.share_context(plan, 0, 2)
        return (encrypted_to(plan.document.helper.open, inner, context, b"s" * 32), *shares[1:])

    yield from to_everybody(plan)
    yield request(SILOS[0], "silo0"), "come from the hub"
    yield request(release=3), "next set must be of release 2"
    yield request(entries=entries[:2], sealed=shares[:2]), "3 silos at least"
    yield request(sealed=shares[:2]), "with their shares"
    yield request(total=words()), "with their shares"
    yield request(sealed=old), "cannot be opened"
    yield request(entries=entries[::-1]), "different silos in order"
    yield request(sealed=sealed(Report(words()), "silo1", SILOS[1])), "is of silo1"
    yield request(sealed=sealed(Report(words()), release=1)), "release 1"
    yield request(sealed=sealed(Report(words(), b"x"))), "is a report"
    yield request(sealed=sealed(Report(words(4)))), "must have 40 bytes"


def cases():
    """Yield (receiver, protocol, message, words of the refusal)."""
    for protocol in DEPLOYMENTS:
        yield from (("hub", protocol, *case) for case in to_hub(protocol))
        yield from (("silo0", protocol, *case) for case in to_silo(protocol))
    yield from (("helper", "secure-sum", *case) for case in to_helper())


def messages_in_special_states():
    """Yield (receiver, message, words of its refusal) for receivers in special states."""
    plan = DEPLOYMENTS["silo-ldp"].plan
    report = federation.sealed_report(plan, 0, 2, floats())
    fresh, left, ended = (hub.Hub(plan, federation.secret("hub")) for _ in "abc")
    join = plan.wire.signed(SILOS[0], "silo0", 0, Join(NONCE, plan.countersignature(SILOS[0])))
    for each in (left, ended):
        for write in each.handle(join, 0.0).writes:
            each.fold(write)
    left.left_silos.add(0)
    ended.ended = "over"
    yield fresh, report, "must join before it reports"
    yield left, report, "it has left"
    yield ended, report, "the plan has ended"
    yield fresh, federation.seen(plan, 0, report), "takes no part"
    model = DEPLOYMENTS["silo-ldp"].processes["silo0"].party
    huge = silo.SiloParty(plan, "silo0", federation.secret("silo0"), model.ledger)
    entries = (Entry(1, DIGEST), Entry(2, DIGEST))
    most = huge._range.broadcast(1)
    spoiled = np.array([most[0], most[1], -most[2], most[3], -most[4]]) * 0.99

    class Unstable(silo.SiloParty):
        """A model that cannot use any broadcast."""

    unstable = Unstable(plan, "silo0", federation.secret("silo0"), model.ledger)

    def fails(values, release):
        from fastfed._kernels import environments

        raise environments.SimulationError("not finite")

    unstable.model.adopt = fails
    body = Broadcast(wire.packed(spoiled), entries, b"")
    yield (
        unstable,
        federation.news(plan, plan.wire.signed(HUB, "hub", 1, body)),
        "cannot be acted on",
    )


def refusing_lines(receiver, data, message):
    """Return the lines of the raise statements that refused a message."""
    before = frozen(receiver)
    with pytest.raises(InputError, match=message) as caught:
        receiver.handle(data, DEPLOYMENTS["silo-ldp"].now)
    assert frozen(receiver) == before
    frames = traceback.extract_tb(caught.value.__traceback__)
    return {(Path(frame.filename).name, frame.lineno) for frame in frames}


def test_every_refusal_is_reached_and_leaves_the_receiver_as_it_was():
    reached = set()
    for name, protocol, data, message in cases():
        reached |= refusing_lines(DEPLOYMENTS[protocol].processes[name].party, data, message)
    for receiver, data, message in messages_in_special_states():
        reached |= refusing_lines(receiver, data, message)
    missed = [
        (name, first)
        for name, first, last in refusals()
        if not any(file == name and first <= line <= last for file, line in reached)
    ]
    assert missed == []


def test_frozen_data_shows_each_change():
    receiver = hub.Hub(DEPLOYMENTS["silo-ldp"].plan, federation.secret("hub"))
    before = frozen(receiver)
    receiver._totals[0, 0] = 1.0
    assert frozen(receiver) != before
    before = frozen(receiver)
    receiver.reports[1, 1] = b"x"
    assert frozen(receiver) != before
    party_ = DEPLOYMENTS["silo-ldp"].processes["silo1"].party
    before = frozen(party_)
    party_._hub_has.add(99)
    assert frozen(party_) != before
    party_._hub_has.remove(99)
    assert frozen(party_) == before and issubclass(Refused, InputError)
