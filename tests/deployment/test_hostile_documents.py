"""Tests with hostile values in each field of each kind of plan file and message.

The fields are found in the encoded bytes, so fields of later versions are tested, too. Each case
must raise InputError, or give a plan whose account belongs to the executed numbers and equals the
account of the honest plan.
"""

import math

import federation_of_all
import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation

from fastfed import InputError
from fastfed.deployment import kinds, plans, wire
from fastfed.deployment.seal import Identity

HOSTILE = (
    math.nan, math.inf, -math.inf, -0.0, 1e308, -1e308, 5e-324, 1e-300, 0.1, 2**53 + 1, -1, 0, 1,
    2**63, 2**31, True, None, "", "x" * 10_000, "a\x1b[31m", "a\nstatus proven", b"\xed\xa0\x80",
    b"", bytes(7), bytes(8 * 1000), [], [[]], [1.0] * 5000, {}, {"a": 1},
)  # fmt: skip


def places_in(value, path=()):
    """Yield the path of each value in plain data, and of each list and table that holds values."""
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, each in items:
        yield from places_in(each, (*path, key))
    # A list or table is attacked as a whole, and so is each value in it.
    yield path


def changed(value, path, new):
    """Return plain data with another value in one place."""
    if not path:
        return new
    key, *rest = path
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = changed(copy[key], rest, new)
    return copy


def encoded(value):
    """Return the canonical encoding of a value."""
    return msgspec.msgpack.Encoder(order="deterministic").encode(value)


def attacks(kind):
    """Yield (path, number of the hostile value, changed bytes) for every field of a plan."""
    plan = federation_of_all.plan(kind)
    plain = msgspec.msgpack.decode(plans.spelled(plan.document))
    for path in places_in(plain):
        for number, new in enumerate(HOSTILE):
            yield path, number, changed(plain, path, new)


def check(plan, path, data):
    """Return True if a document is accepted."""
    try:
        compiled_plan = plans.load(encoded([encoded(data), {}]))
    except InputError:
        return False
    certified = kinds.deployed_certificate(
        compiled_plan.executed, compiled_plan.problem, compiled_plan.shared
    )
    assert certified.status == "proven" and certified.exact == plan.certificate.exact, path
    assert compiled_plan.certificate.model == certified.model == plan.certificate.model, path
    assert compiled_plan.certificate.conditions == certified.conditions, path
    # Without the helper, sums are under masks, and the conditions say so.
    assert (
        certified.conditions == plan.certificate.conditions or compiled_plan.shared != plan.shared
    ), path
    assert (
        compiled_plan.certificate.also == plan.certificate.also or compiled_plan.earlier is not None
    ), path
    return True


@pytest.mark.parametrize("kind", federation_of_all.KINDS)
def test_no_hostile_value_in_a_plan_file_is_executed(kind, request):
    plan = federation_of_all.plan(kind)
    all_values = request.config.getoption("-m") != "not slow"
    tried = accepted = 0
    for path, number, data in attacks(kind):
        # Ordinary tests take a quarter of the values for each place, not the same one everywhere.
        if all_values or (number + len(str(path))) % 4 == 0:
            tried += 1
            accepted += check(plan, path, data)
    assert tried > 500 and accepted < 0.1 * tried


def test_every_field_of_a_document_is_attacked():
    """Compare the attacked fields by name with the fields of a document."""
    plain = msgspec.msgpack.decode(plans.spelled(federation_of_all.plan("silo-ldp").document))
    paths = set(places_in(plain))
    assert {(i,) for i in range(len(plain))} <= paths
    document = plans.Document.__struct_fields__
    for name in federation_of_all.plan("silo-ldp").document.numbers:
        assert (document.index("numbers"), name) in paths
    for name in federation_of_all.plan("silo-ldp").document.keys:
        assert (document.index("keys"), name) in paths


# ---- messages ------------------------------------------------------------------------------------


def messages(deployment):
    """Return an honest message of each kind to each receiver, by (kind, receiver)."""
    plan, hub = deployment.plan, deployment.processes["hub"].party
    collected = {}
    for name, process in deployment.processes.items():
        honest = process.handle

        def handle(data, name=name, honest=honest):
            """Note a message by kind and receiver, and handle it."""
            collected.setdefault((plan.wire.read(data).kind, name), data)
            return honest(data)

        process.handle = handle
    for release in (1, 2):
        federation_of_all.period(deployment, release)
    assert hub.broadcasts
    return collected


@pytest.mark.parametrize("kind", federation_of_all.KINDS)
def test_no_hostile_value_in_a_message_changes_a_party(kind):
    """Put hostile values in every field of every message, signed again by its sender."""
    deployment = federation_of_all.federation_of(kind)
    honest_messages = messages(deployment)
    assert {"join", "report", "seen", "news", "receipt"} <= {each for each, _ in honest_messages}
    tried = accepted = 0
    for (message_kind, receiver), data in honest_messages.items():
        party = deployment.processes[receiver].party
        envelope = msgspec.msgpack.decode(data)
        body = msgspec.msgpack.decode(envelope[5])
        sender = Identity(federation.secret(envelope[3]))
        places = [("body", path) for path in places_in(body)]
        places += [("envelope", (i,)) for i in range(7)]
        for part, path in places:
            for new in HOSTILE:
                plain = list(envelope)
                if part == "body":
                    plain[5] = encoded(changed(body, path, new))
                else:
                    plain = changed(plain, path, new)
                is_signature = part == "envelope" and path == (6,)
                signed = encoded(plain) if is_signature else resigned(plain, sender)
                before = party.status() if hasattr(party, "status") else dict(party.answers)
                tried += 1
                try:
                    step = party.handle(signed, deployment.now)
                except InputError:
                    continue
                # The message is known, repeated or a poll: the party writes nothing but an alarm.
                written_kinds = {getattr(write, "kind", "charge") for write in step.writes}
                assert written_kinds <= {"alarm"}, (message_kind, receiver, part, path, new)
                accepted += 1
                after = party.status() if hasattr(party, "status") else dict(party.answers)
                assert finite(after) and before.keys() == after.keys()
    assert tried > 1000 and accepted < 0.5 * tried


def resigned(plain, identity):
    """Return an envelope of these fields, signed as its sender signs."""
    try:
        document = msgspec.convert(plain, wire.Envelope, strict=True)
        signature = identity.sign(document.signed_part())
        return msgspec.structs.replace(document, signature=signature).as_bytes()
    except (msgspec.ValidationError, OverflowError, UnicodeEncodeError):
        return encoded(plain)


def finite(value):
    """Return whether all numbers in nested dicts and lists are finite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    return not isinstance(value, float | np.floating) or math.isfinite(value)
