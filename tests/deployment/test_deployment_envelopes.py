"""Tests that hostile envelopes are refused at once and change nothing (see envelopes.py)."""

import os
import re
from types import MethodType

import msgspec
import pytest

pytest.importorskip("cryptography")

import envelopes

from fastfed import InputError
from fastfed.deployment import wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.silo import SiloParty


@pytest.mark.parametrize("seed", range(len(envelopes.PROTOCOLS)))
def test_hostile_envelopes_change_nothing(seed):
    counts, broken = envelopes.attack((seed, 1500))
    assert not broken
    assert counts["refused"] > 1300 and counts["not answered"] < 50
    assert min(counts["mutated"], counts["invented"], counts["foreign"]) > 200
    assert counts["malformed, signed by a member"] > 50 and counts["to hub"] > 200


@pytest.mark.slow
def test_many_hostile_envelopes_change_nothing():
    for seed in range(1000, 1000 + int(os.environ.get("FASTFED_ENVELOPES", "50"))):
        assert not envelopes.attack((seed, 2000))[1]


@pytest.fixture
def fresh(monkeypatch):
    """Return a new target, which a planted fault may spoil."""
    actual = envelopes.Target("silo-ldp")
    monkeypatch.setattr(envelopes, "target", lambda protocol: actual)
    return actual


def harm_found():
    """Return the description of harm by 2000 hostile envelopes of seed 0."""
    return envelopes.attack((0, 2000))[1]


def test_a_hub_that_keeps_what_a_refused_message_said_is_found_out(fresh):
    def handle(self, data, now):
        self.alarms.append("?")
        return Hub.handle(self, data, now)

    hub = fresh.party("hub")
    hub.handle = MethodType(handle, hub)
    assert "the state of hub has changed" in harm_found()


def test_a_wire_that_checks_no_signature_is_found_out(fresh, monkeypatch):
    monkeypatch.setattr(wire, "verified", lambda *_: True)
    assert re.search("accepted it|has changed", harm_found())


def test_a_party_that_raises_another_exception_is_found_out(fresh, monkeypatch):
    monkeypatch.setattr(SiloParty, "handle", lambda *_: msgspec.msgpack.decode(b""))
    assert "failed with" in harm_found()


def test_a_leave_message_with_a_body_is_refused(fresh):
    """The signature of a member is valid, but the body is not empty."""
    plain = wire.Envelope(wire.VERSION, fresh.plan.digest, "leave", "silo2", 0, b"\xc3")
    signature = fresh.keys["silo2"].sign(plain.signed_part())
    data = msgspec.structs.replace(plain, signature=signature).as_bytes()
    with pytest.raises(InputError, match="the leave of silo2 is malformed"):
        fresh.party("hub").handle(data, fresh.deployment.now)
