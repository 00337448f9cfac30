"""Tests of a hub that lies about open periods or sends silos different broadcasts."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from federation import ROWS, deployed, period, served

from fastfed.deployment import wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.process import Process
from fastfed.deployment.seal import Identity
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.sums import Helper
from fastfed.deployment.wire import Broadcast, Opened, Refused

HUB = Identity(federation.secret("hub"))


def running(protocol="silo-ldp", **keys):
    """Return a federation that all parties have joined."""
    deployment = federation.Federation(deployed(protocol, **keys))
    deployment.settle()
    return deployment


def signed(deployment, release, body):
    """Return a body as a message that the hub signed."""
    return deployment.plan.wire.signed(HUB, "hub", release, body)


# ---- open periods --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", federation.MASKS])
def test_no_message_of_a_hub_about_an_open_period_is_accepted(protocol):
    """The message could make a silo send its session, and later seal a second row with its mask."""
    deployment = running(protocol)
    silo = deployment.processes["silo0"]
    deployment.now = federation.START + 10.0
    silo.reward(silo.decide(ROWS).id, 0.5)
    before = silo.party.status()
    entries = tuple(wire.Entry(i, bytes(32)) for i in range(3))
    broadcast = signed(deployment, 1, Broadcast(wire.packed(np.zeros(5)), entries, b""))
    for release, body in (
        (0, wire.Receipt(0, ((1, bytes(32)),), silo.party._nonce)),
        (1, wire.Sessions((bytes(32),) * 3)),
    ):
        with pytest.raises(Refused, match="still open here"):
            silo.handle(signed(deployment, release, body))
    with pytest.raises(Refused, match="still open here"):
        silo.handle(federation.news(deployment.plan, broadcast))
    assert silo.party.status() == before and not silo.party.lost and not silo.party.sessions.sent
    # After the period has closed, the silo accepts the same message.
    deployment.now = float(deployment.plan.document.calendar.closes[0])
    silo.handle(signed(deployment, 0, wire.Receipt(0, ((1, bytes(32)),), silo.party._nonce)))
    assert silo.party.lost == {1: bytes(32)}


def test_a_session_is_stored_before_it_is_sent_even_after_a_lost_report():
    deployment = running(federation.MASKS)
    silo = deployment.processes["silo0"]
    deployment.now = float(deployment.plan.document.calendar.closes[0])
    receipt = wire.Receipt(0, ((1, bytes(32)),), silo.party._nonce)
    silo.party.handle(signed(deployment, 0, receipt), deployment.now)
    step = silo.party.tick(deployment.now)
    kinds = [deployment.plan.wire.read(m.data).kind for m in step.messages]
    assert "sessions" in kinds and [w.kind for w in step.writes] == ["session"]


def test_a_row_is_sealed_only_with_the_session_that_it_belongs_to():
    """If the sums have changed since the list of sessions, the silo stops and seals nothing."""
    deployment = running(federation.MASKS)
    silo = deployment.processes["silo0"]
    served(deployment, 1)
    step = silo.party.tick(deployment.now)
    (own,) = [w.value for w in step.writes if w.kind == "session"]
    for write in step.writes:
        silo.store.write(write)
        silo.party.fold(write)
    sessions = wire.Sessions((own, *(bytes([i]) * 32 for i in (1, 2))))
    for write in silo.party.handle(signed(deployment, 1, sessions), deployment.now).writes:
        silo.party.fold(write)
    # The state has one record more than the session covers, for example from two backups.
    silo.party._leaf_sums[0] += 1.0
    step = silo.party.tick(deployment.now)
    assert "changed after its session was sent" in step.problem
    assert not silo.party.sealed and not deployment.ledgers["silo0"].charges("records")


# ---- silos that get different messages -----------------------------------------------------------


def test_a_set_that_silos_did_not_report_for_is_refused():
    deployment = running()
    served(deployment, 1)
    silo = deployment.processes["silo0"]
    for process in deployment.processes.values():
        process.tick()
    entries = (wire.Entry(1, b"1" * 32), wire.Entry(2, b"2" * 32))
    broadcast = signed(deployment, 1, Broadcast(wire.packed(np.zeros(5)), entries, b""))
    with pytest.raises(Refused, match="reports that no silo signed"):
        silo.handle(signed(deployment, 1, wire.News(broadcast, ())))
    # Signed statements about different reports, or of a different silo, are not accepted.
    silo1 = Identity(federation.secret("silo1"))
    statement = deployment.plan.wire.signed(silo1, "silo1", 1, wire.Seen(b"1" * 32, 0, b""))
    other_statement = deployment.plan.wire.signed(silo1, "silo1", 1, wire.Seen(b"2" * 32, 0, b""))
    for statements in ((statement,), (statement, other_statement)):
        with pytest.raises(Refused, match="reports that no silo signed"):
            silo.handle(signed(deployment, 1, wire.News(broadcast, statements)))
    forged = deployment.plan.wire.signed(silo1, "silo2", 1, wire.Seen(b"2" * 32, 0, b""))
    with pytest.raises(Refused, match="not that of silo2"):
        silo.handle(signed(deployment, 1, wire.News(broadcast, (statement, forged))))
    assert silo.party.model.release == 0


def test_silos_that_got_different_broadcasts_find_out_at_the_next_release():
    """Let the hub send silo 0 a second broadcast in each release."""
    deployment = running()
    served(deployment, 1)
    hub, liar = deployment.processes["hub"], {}

    def doubled(data):
        """Return a second, different broadcast of the same set for silo0, signed by the hub."""
        envelope = deployment.plan.wire.read(data)
        if envelope.kind != "news":
            return data
        news = deployment.plan.wire.body(envelope, wire.News)
        broadcast = deployment.plan.wire.body(deployment.plan.wire.read(news.broadcast), Broadcast)
        if envelope.release == 1:
            broadcast = msgspec.structs.replace(broadcast, values=wire.packed(np.ones(5)))
        else:
            # The broadcast has to follow the last broadcast of silo0.
            broadcast = msgspec.structs.replace(
                broadcast, before=wire.digest(liar[envelope.release - 1])
            )
        liar[envelope.release] = signed(deployment, envelope.release, broadcast)
        return signed(deployment, envelope.release, wire.News(liar[envelope.release], news.seen))

    silo0 = deployment.processes["silo0"]
    honest = silo0.handle
    silo0.handle = lambda data: honest(doubled(data))
    deployment.settle()
    assert silo0.party.model.release == 1 and not silo0.party.stopped
    thetas = [deployment.processes[n].party.model.theta.tolist() for n in ("silo0", "silo1")]
    assert thetas[0] != thetas[1]
    period(deployment, 2)
    for name in deployment.plan.silos:
        party = deployment.processes[name].party
        assert "another broadcast of release 1 than this silo" in party.stopped
        assert party.model.release == 1
    assert hub.party.broadcasts.keys() >= {1, 2}


# ---- a helper that is restored -------------------------------------------------------------------


def restore_helper(deployment, writes):
    """Replace the helper by one with earlier writes, and return its process."""
    helper = Process(
        Helper(deployment.plan, federation.secret("helper")),
        MemoryStore(writes),
        None,
        lambda: deployment.now,
    )
    deployment.add(helper)
    return helper


def test_a_restored_helper_gets_its_own_answers_again_and_goes_on():
    deployment = running("secure-sum")
    backup = list(deployment.processes["helper"].store.writes())
    period(deployment, 1)
    answers = deployment.processes["helper"].party.answers
    assert answers.keys() == {1}
    helper = restore_helper(deployment, backup)
    assert not helper.party.answers
    period(deployment, 2)
    assert helper.party.answers.keys() == {1, 2} and helper.party.answers[1] == answers[1]
    assert deployment.processes["silo0"].party.model.release == 2 and not helper.party.alarms


def test_a_second_set_of_a_restored_helper_is_seen():
    """The hub hides the helper's first answer, and the helper is restored."""
    deployment = running("secure-sum")
    backup = list(deployment.processes["helper"].store.writes())
    period(deployment, 1)
    hub, first = deployment.processes["hub"].party, deployment.processes["helper"].party.answers[1]
    helper = restore_helper(deployment, backup)
    # The lying hub requests a second set from the restored helper.
    entries = deployment.plan.wire.body(deployment.plan.wire.read(first), Opened).entries
    second = deployment.plan.wire.signed(
        Identity(federation.secret("helper")),
        "helper",
        1,
        Opened(entries, (), wire.packed(np.ones(5, np.uint64))),
    )
    for write in helper.party.handle(second, deployment.now).writes:
        helper.store.write(write)
        helper.party.fold(write)
    assert helper.party.answers[1] == second != first
    # The first answer is sent back: the helper notices that it has opened two sets.
    step = helper.party.handle(first, deployment.now)
    assert "opened two sets of release 1" in step.problem
    # The helper's next answer names its second answer, which no silo has.
    served(deployment, 2)
    hub.answers[1] = second
    deployment.settle()
    for name in deployment.plan.silos:
        assert "opened two sets of one release" in deployment.processes[name].party.stopped


def test_a_helper_accepts_its_own_answers_only_in_order():
    deployment = running("secure-sum")
    backup = list(deployment.processes["helper"].store.writes())
    for release in (1, 2):
        period(deployment, release)
    answers = deployment.processes["helper"].party.answers
    helper = restore_helper(deployment, backup).party
    with pytest.raises(Refused, match="next answer must be of release 1"):
        helper.handle(answers[2], deployment.now)
    identity = Identity(federation.secret("helper"))
    first = deployment.plan.wire.body(deployment.plan.wire.read(answers[1]), Opened)
    not_following = deployment.plan.wire.signed(
        identity, "helper", 1, msgspec.structs.replace(first, before=bytes(32))
    )
    step = helper.handle(not_following, deployment.now)
    assert "does not follow its last one" in step.problem and not helper.answers
    silo = Identity(federation.secret("silo0"))
    body = deployment.plan.wire.body(deployment.plan.wire.read(answers[1]), Opened)
    with pytest.raises(Refused, match="not that of helper"):
        helper.handle(deployment.plan.wire.signed(silo, "helper", 1, body), deployment.now)


# ---- bytes on the way ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", federation.MASKS])
def test_whoever_holds_the_hubs_port_reads_no_sums(protocol):
    """Only the hub can decrypt reports; a different local user on its port cannot."""
    deployment = running(protocol)
    served(deployment, 1)
    deployment.settle()
    for i in range(3):
        report = deployment.processes["hub"].party.reports[1, i]
        plain = federation.opened_report(deployment.plan, report)
        assert len(plain) == 40 and plain not in report
        with pytest.raises(Exception, match="cannot be opened"):
            body = deployment.plan.wire.body(deployment.plan.wire.read(report), wire.Report)
            context = deployment.plan.digest + bytes(16)
            Identity(federation.secret("silo1")).decrypt(body.values, context)


def test_a_report_made_for_one_release_is_not_read_as_one_of_another():
    deployment = running("central")
    served(deployment, 1)
    deployment.settle()
    plan, hub = deployment.plan, Hub(deployment.plan, federation.secret("hub"))
    for write in deployment.processes["hub"].store.writes():
        if write.kind == "join":
            hub.fold(write)
    body = plan.wire.body(
        plan.wire.read(deployment.processes["hub"].party.reports[1, 0]), wire.Report
    )
    silo = Identity(federation.secret("silo0"))
    with pytest.raises(Refused, match="must be encrypted to the hub"):
        hub.handle(plan.wire.signed(silo, "silo0", 2, body), deployment.now)
