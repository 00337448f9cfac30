"""Tests of a restored hub: silos send it what it has lost, and the plan continues."""

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from federation import ROWS, Violation, World, deployed, period

from fastfed.deployment import wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.wire import Broadcast, Refused

CALENDAR = federation.PATIENT
SHORT_GRACE = CALENDAR | {"grace": 10}


def schedules(protocol, seeds, calendar=CALENDAR, **keys):
    """Run schedules of faults, calm releases and restores of the hub, and return their worlds."""
    worlds = []
    for seed in seeds:
        world = World(deployed(protocol, calendar=calendar), seed, hub_restore=0.7, **keys)
        world.run_with_the_hub_put_back()
        worlds.append(world)
    return worlds


@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum"])
def test_invariants_hold_when_the_hub_is_restored(protocol):
    """Despite the restore, a release has one set, one broadcast and one report per silo."""
    worlds = schedules(protocol, range(3000, 3024))
    assert sum(world.hub_restores for world in worlds) > 100
    assert sum(world.behind for world in worlds) > 3


@pytest.mark.parametrize("protocol", [federation.MASKS, "shuffle-vector"])
def test_invariants_hold_when_sessions_of_masks_are_lost_too(protocol):
    worlds = schedules(protocol, range(6000, 6002))
    assert sum(world.hub_restores for world in worlds) > 5


def test_invariants_hold_when_all_are_killed_and_the_hub_is_restored():
    worlds = schedules("silo-ldp", range(3100, 3102), kill=0.08)
    assert sum(world.hub_restores for world in worlds) > 5
    assert sum(world.kills for world in worlds) > 10


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["silo-ldp", "central", "secure-sum", federation.MASKS])
def test_invariants_hold_over_many_schedules(protocol):
    schedules(protocol, range(4000, 4200))
    if protocol not in federation.WORDS:
        schedules(protocol, range(5000, 5100), kill=0.1)


class Forgetting(Hub):
    """A planted fault: a hub that opens sets at once and ignores the silos' broadcasts."""

    def _silos_could_join(self, now):
        return True

    def _take_returned_broadcast(self, found, data):
        raise Refused("broadcasts are ignored")


def test_a_hub_that_does_not_listen_is_caught():
    """Without waiting for the silos, a restored hub opens a second set of a release."""
    lines = []
    for seed in range(3000, 3060):
        try:
            schedules("silo-ldp", [seed], SHORT_GRACE, kinds={"hub": Forgetting}, kill=0.1)
        except (Violation, ValueError) as found:
            lines.append(str(found))
            if "two sets" in lines[-1]:
                return
    pytest.fail(f"no second set: {set(lines)}")


# ---- one by one ----------------------------------------------------------------------------------


def restore_hub(deployment, writes):
    """Replace the hub by one with earlier writes (a backup), and return its process."""
    hub = Hub(deployment.plan, federation.secret("hub"))
    process = Process(hub, MemoryStore(writes), None, lambda: deployment.now)
    deployment.add(process)
    return process


def started(protocol="silo-ldp"):
    """Return a federation that all parties have joined."""
    deployment = federation.Federation(federation.deployed(protocol))
    deployment.settle()
    return deployment


@pytest.mark.parametrize(
    "protocol", ["silo-ldp", "central", "secure-sum", federation.MASKS, federation.MASKED_BITS]
)
@pytest.mark.parametrize("empty", [True, False])
def test_a_hub_gets_all_releases_back_bit_for_bit_and_goes_on(protocol, empty):
    deployment = started(protocol)
    hub = deployment.processes["hub"]
    backup = list(hub.store.writes())[:1] if empty else list(hub.store.writes())
    for release in (1, 2):
        period(deployment, release)
    before, reports = hub.party.broadcasts, hub.party.reports
    restored = restore_hub(deployment, backup)
    assert not restored.party.broadcasts
    deployment.settle()
    assert restored.party.broadcasts == before and restored.party.reports == reports
    period(deployment, 3)
    assert restored.party.broadcasts.keys() == {1, 2, 3} and not restored.party.alarms
    for name in deployment.plan.silos:
        party = deployment.processes[name].party
        assert party.model.release == 3 and not party.stopped
        # Nothing was sent or charged twice.
        assert [c.release for c in deployment.ledgers[name].charges("records")] == [1, 2, 3]
    Process(
        Hub(deployment.plan, federation.secret("hub")), MemoryStore(list(restored.store.writes()))
    )


def without_silo2_in_first_set():
    """Return a federation without silo2 in its first set, the log before the set, the broadcast."""
    deployment = started()
    hub, away = deployment.processes["hub"], deployment.processes.pop("silo2")
    period(deployment, 1, ["silo0", "silo1"])
    away.reward(away.decide(ROWS).id, 0.5)
    backup = list(hub.store.writes())
    assert not hub.party.sets
    deployment.now += federation.GRACE
    deployment.settle()
    assert [e.silo for e in hub.party.sets[1].entries] == [0, 1]
    deployment.add(away)
    deployment.settle()
    assert (1, 2) in hub.party.reports or 1 in away.party.unreported
    return deployment, backup, hub.party.broadcasts[1]


def test_the_set_that_was_opened_is_opened_again_and_no_other():
    """All three silos have reports by now, but the broadcast that silos have is of two reports."""
    deployment, backup, sent = without_silo2_in_first_set()
    restored = restore_hub(deployment, backup)
    # The hub opens no set before silos have contacted it, however long it waits.
    assert restored.tick() == () and not restored.party.sets
    deployment.settle()
    assert restored.party.broadcasts == {1: sent}
    assert not any(deployment.processes[n].party.alarms for n in deployment.plan.silos)
    period(deployment, 2)
    assert restored.party.broadcasts.keys() == {1, 2}


def test_a_hub_that_gets_a_broadcast_too_late_says_so_and_silos_keep_their_model():
    """The hub opened a different set before silos with the broadcast contacted it."""
    deployment, backup, sent = without_silo2_in_first_set()
    absent_silos = {name: deployment.processes.pop(name) for name in ("silo0", "silo1", "silo2")}
    reports = [absent_silos[name].party.sealed[1] for name in ("silo0", "silo1")]
    restored = restore_hub(deployment, backup[: next(
        i for i, w in enumerate(backup) if w.kind == "report" and w.key == "1/0"
    )])  # fmt: skip
    silo2 = absent_silos["silo2"]
    late = silo2.party.report(1)
    restored.tick()
    # The grace period starts with the first silo's message: the hub itself may be cut off.
    deployment.now += 1000.0
    for index, data in ((0, reports[0]), (2, late)):
        restored.handle(federation.seen(deployment.plan, index, data))
        restored.handle(data)
    assert not restored.party.sets
    restored.party._silo_release[2] = 0  # silo2 has joined, and knows of no broadcast
    restored.tick()
    deployment.now += 1000.0
    restored.tick()
    assert [e.silo for e in restored.party.sets[1].entries] == [0, 2]
    step, _ = restored.handle(sent)
    assert "a second set of release 1 was opened" in step.problem and restored.party.alarms
    theta = absent_silos["silo0"].party.model.theta
    other = restored.party.broadcasts[1]
    step, _ = absent_silos["silo0"].handle(federation.news(deployment.plan, other))
    assert "two broadcasts" in step.problem
    assert np.array_equal(absent_silos["silo0"].party.model.theta, theta)


def test_a_restored_hub_accepts_only_its_own_broadcasts():
    deployment = started()
    period(deployment, 1)
    plan, hub = deployment.plan, deployment.processes["hub"]
    sent = hub.party.broadcasts[1]
    body = plan.wire.body(plan.wire.read(sent), Broadcast)
    silo = Identity(federation.secret("silo1"))
    fresh = Hub(plan, federation.secret("hub"))
    for sender, message in [("silo1", "got release 1 of silo1"), ("hub", "not that of hub")]:
        with pytest.raises(Refused, match=message):
            fresh.handle(plan.wire.signed(silo, sender, 1, body), deployment.now)
    identity = Identity(federation.secret("hub"))
    for release in (0, 5):
        with pytest.raises(Refused, match="must be signed by hub"):
            fresh.handle(plan.wire.signed(identity, "hub", release, body), deployment.now)
    bad = msgspec.structs.replace(body, entries=body.entries[::-1])
    with pytest.raises(Refused, match="different silos in order"):
        fresh.handle(plan.wire.signed(identity, "hub", 1, bad), deployment.now)
    assert not fresh._lost_broadcasts and not fresh.handle(sent, deployment.now).writes
    assert fresh._lost_broadcasts
    # Without the reports of the set, the hub waits and opens no other set.
    assert fresh.tick(deployment.now + 1e6) == empty_step()
    # A broadcast that the hub has already changes nothing.
    step, _ = hub.handle(sent)
    assert step == empty_step() and not hub.party._lost_broadcasts


def empty_step():
    """Return a step without writes and messages."""
    from fastfed.deployment.party import Step

    return Step()


def test_a_silo_sends_what_the_hub_lacks_and_nothing_else():
    deployment = started()
    for release in (1, 2):
        period(deployment, release)
    silo, hub = deployment.processes["silo0"], deployment.processes["hub"].party

    def kinds():
        return [deployment.plan.wire.read(m.data).kind for m in silo.tick()]

    assert kinds() == ["join"]
    identity = Identity(federation.secret("hub"))
    receipt = wire.Receipt(0, ((1, wire.digest(hub.reports[1, 0])),), silo.party._nonce)
    silo.handle(deployment.plan.wire.signed(identity, "hub", 1, receipt))
    sent = silo.tick()
    assert kinds() == ["seen", "report", "broadcast", "join"]
    assert [m.data for m in sent[1:3]] == [hub.reports[2, 0], hub.broadcasts[2]]
    # The statement names the broadcast that the silo had when it reported.
    body = deployment.plan.wire.body(deployment.plan.wire.read(sent[0].data), wire.Seen)
    assert body == wire.Seen(wire.digest(hub.reports[2, 0]), 1, wire.digest(hub.broadcasts[1]))


def test_sessions_that_a_hub_has_lost_are_sent_again():
    """One silo sends its session late, after the hub was restored and lost the other sessions."""
    deployment = started(federation.MASKS)
    hub, away = deployment.processes["hub"], deployment.processes.pop("silo2")
    backup = list(hub.store.writes())[:1]
    period(deployment, 1, ["silo0", "silo1"])
    assert hub.party.sessions.keys() == {(1, 0), (1, 1)}
    restore_hub(deployment, backup)
    deployment.add(away)
    away.reward(away.decide(ROWS).id, 0.5)
    deployment.settle()
    assert deployment.processes["hub"].party.broadcasts.keys() == {1}


def test_a_report_that_was_lost_is_sent_again_though_the_budget_is_spent():
    deployment = started()
    silo, hub = deployment.processes["silo0"], deployment.processes["hub"]
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", 0.6, 1e-6)
    silo.ledger = silo.party.ledger = ledger
    deployment.now = 1090.0
    for name in deployment.plan.silos:
        deployment.processes[name].reward(deployment.processes[name].decide(ROWS).id, 0.5)
    deployment.now = 1100.0
    silo.tick()  # sealed and sent, and lost on the way
    deployment.now = 1200.0
    deployment.settle()
    assert "more than the ceiling" in silo.problem and list(silo.party.sealed) == [1]
    assert hub.party.reports[1, 0] == silo.party.sealed[1]
    assert 0 in [e.silo for e in hub.party.sets[1].entries]
    assert silo.party.model.release == 1


def test_a_new_report_is_sent_once():
    """A new report is unconfirmed in the tick that sends it, but is not sent a second time."""
    deployment = started()
    deployment.now = 1100.0
    sent = [m.data for m in deployment.processes["silo0"].tick()]
    assert [deployment.plan.wire.read(data).kind for data in sent] == ["seen", "report", "join"]


def test_a_hub_asks_the_helper_which_set_it_has_opened():
    """No silo has the broadcast, but the helper opened the set before the hub was restored."""
    deployment = started("secure-sum")
    plan, hub, helper = deployment.plan, deployment.processes["hub"], deployment.processes["helper"]
    backup = list(hub.store.writes())
    period(deployment, 1)
    opened = helper.party.sets[1]
    fresh = Hub(plan, federation.secret("hub"))
    for write in backup:
        fresh.fold(write)
    (message,) = helper.party.tick(deployment.now).messages
    fresh.handle(message.data, deployment.now)
    step = fresh.tick(deployment.now)
    assert [m.to for m in step.messages] == ["helper"] and not step.writes
    answer = helper.party.handle(step.messages[0].data, deployment.now)
    assert not answer.problem and not answer.writes
    assert not fresh.handle(answer.messages[0].data, deployment.now).writes
    # The hub waits for the reports of that set, and opens no other set.
    assert not fresh.tick(deployment.now + 1e6).writes and not fresh.sets
    for name in plan.silos:
        report = deployment.processes[name].party.sealed[1]
        for data in (report, federation.seen(plan, plan.index(name), report)):
            for write in fresh.handle(data, deployment.now).writes:
                fresh.fold(write)
    (write,) = fresh.tick(deployment.now).writes
    assert write.kind == "set"
    fresh.fold(write)
    assert fresh.sets[1].entries == opened


def test_a_restored_hub_asks_the_helper_in_the_answer_to_its_join():
    """Over HTTP the helper receives only answers to its messages, so the hub asks in an answer."""
    deployment = started("secure-sum")
    hub = deployment.processes["hub"]
    backup = list(hub.store.writes())
    period(deployment, 1)
    restored = restore_hub(deployment, backup)
    # Nobody has the broadcast: the hub was lost before it could send it.
    for name in deployment.plan.silos:
        silo = deployment.processes[name]
        writes = [w for w in silo.store.writes() if w.kind != "broadcast"]
        deployment.add(SiloProcess(
            SiloParty(deployment.plan, name, federation.secret(name), silo.ledger),
            MemoryStore(writes), silo.ledger, lambda: deployment.now,
        ))  # fmt: skip
    for _ in range(8):
        for name in (*deployment.plan.silos, "helper"):
            process = deployment.processes[name]
            mail = list(process.tick())
            while mail:
                _, answers = restored.handle(mail.pop(0).data)
                for answer in answers:
                    if answer.to == name:
                        mail += process.handle(answer.data)[1]
    assert restored.party.broadcasts.keys() == {1} and not restored.party.alarms
    assert {deployment.processes[name].party.model.release for name in deployment.plan.silos} == {1}
