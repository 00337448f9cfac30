"""Tests of secure sums by pairwise masks, without a third party."""

import re
from functools import partial

import numpy as np
import pytest

pytest.importorskip("cryptography")

import federation
from federation import MASKS, Violation, World, deployed

from fastfed import InputError
from fastfed._random import SystemNoise
from fastfed.deployment import plans, wire
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.party import Step
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore, Write
from fastfed.deployment.sums import PairMasks
from fastfed.deployment.wire import Opened

SILOS = ("silo0", "silo1", "silo2")
ROWS = [[0.5, 0.1], [-0.3, 0.8]]
OF_FOUR = tuple(bytes([i]) * 32 for i in range(4))


def masks_of(plan, i):
    """Return the pairwise masks of silo i."""
    return PairMasks(plan, i, Identity(federation.secret(f"silo{i}")))


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_cancel_in_the_sum_of_all_silos_and_in_no_smaller_one():
    plan = deployed(MASKS, silos=4)
    masks = np.array([masks_of(plan, i).at(3, 6, OF_FOUR) for i in range(4)])
    assert not masks.sum(axis=0).any()
    for subset in range(1, 15):
        part = masks[[i for i in range(4) if subset >> i & 1]].sum(axis=0)
        # Six uniform words are all small, or all large, each with probability 2^(-6 * 7).
        assert (part > 2**57).any() and (part < 2**64 - 2**57).any()


def test_masks_are_those_of_one_release_of_one_plan_and_of_the_sessions():
    plan, other = deployed(MASKS), deployed(MASKS, batch=6)
    first, second = OF_FOUR[:3], (OF_FOUR[3], *OF_FOUR[1:3])
    places = [(p, k, s) for p in (plan, other) for k in (1, 2) for s in (first, second)]
    draws = [masks_of(p, 0).at(k, 5, s).tobytes() for p, k, s in places]
    assert len(set(draws)) == 8
    assert masks_of(plan, 0).at(2, 5, second).tobytes() == draws[3]
    # The mask of a pair depends only on the pair's sessions; a shorter row has the first words.
    third = masks_of(plan, 1).at(1, 5, first) - masks_of(plan, 1).at(1, 5, second)
    assert third.tobytes() != bytes(40)
    assert masks_of(plan, 0).at(2, 9, second)[:5].tobytes() == draws[3]


def test_two_silos_agree_on_a_key_that_no_third_one_has():
    first, second, third = (Identity(federation.secret(name)) for name in SILOS)
    key = first.agreed_with(second.public[1], b"plan")
    assert key == second.agreed_with(first.public[1], b"plan")
    others = [first.agreed_with(third.public[1], b"plan"), first.agreed_with(second.public[1], b"")]
    assert key not in others and len(key) == 32
    with pytest.raises(InputError, match="not a valid X25519 key"):
        first.agreed_with(bytes(32), b"plan")


# ---- plan files ----------------------------------------------------------------------------------


def test_a_plan_file_says_by_its_parties_that_sums_are_under_masks():
    plan = plans.load(deployed(MASKS).as_bytes())
    assert plan.masked and not plan.shared and plan.document.helper is None
    texts = [c.text for c in plan.certificate.conditions]
    assert sum("X25519" in text for text in texts) == 1
    assert not any("hub and helper" in text or "SHAKE" in text for text in texts)
    shares = deployed("secure-sum")
    assert shares.shared and not shares.masked
    assert plan.certificate.exact == shares.certificate.exact


@pytest.mark.parametrize(
    ("protocol", "federation_table", "helper", "message"),
    [
        ("silo-ldp", {"sum": "masks"}, False, "federation.sum has no meaning"),
        ("secure-sum", {"least": 3, "sum": "both"}, True, "federation.sum must be one of"),
        ("secure-sum", {"least": 3, "sum": "masks"}, True, "no use for a helper"),
        ("secure-sum", {"least": 3, "sum": "shares"}, False, "needs a helper"),
        ("secure-sum", {"least": 3}, False, 'say sum = "masks"'),
        (MASKS, {"least": 2, "sum": "masks"}, False, "least must be all 3"),
    ],
)
def test_a_spec_whose_sums_do_not_fit_its_parties_is_refused(
    protocol, federation_table, helper, message
):
    spec = federation.spec(protocol, federation=federation_table)
    spec.pop("helper", None)
    if helper:
        spec["helper"] = {k: v for k, v in federation.party("helper").items() if k != "name"}
    with pytest.raises(InputError, match=message):
        plans.compile_plan(spec)


# ---- parties -------------------------------------------------------------------------------------


period = partial(federation.period, reward=1.0)


def test_the_hub_sees_uniform_words_and_waits_for_every_silo():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    absent_silo = deployment.processes.pop("silo2")
    period(deployment, 1, SILOS[:2])
    deployment.now += 10 * federation.GRACE
    deployment.settle()
    hub, plan = deployment.processes["hub"].party, deployment.plan
    assert not hub.broadcasts and hub.status()["waiting_for"] == ["silo2"]
    assert not hub.reports and len(hub.sessions) == 2
    deployment.processes["silo2"] = absent_silo
    deployment.settle()
    assert len(hub.broadcasts) == 4 and absent_silo.party.model.release == 4
    for i in range(3):
        words = plan.wire.words(federation.opened_report(plan, hub.reports[1, i]), "it")
        body = plan.wire.body(plan.wire.read(hub.reports[1, i]), wire.Report)
        assert not body.sealed and (words > 2**58).any() and (words < 2**64 - 2**58).any()


def test_the_plan_ends_when_a_silo_leaves():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    period(deployment, 1)
    deployment.processes["silo1"].leave()
    period(deployment, 2)
    hub = deployment.processes["hub"].party
    assert hub.broadcasts.keys() == {1} and "fewer than 3" in hub.ended
    assert hub.sets.keys() == {1}


def test_a_report_with_a_share_is_refused():
    plan = deployed(MASKS)
    hub, identity = Hub(plan, federation.secret("hub")), Identity(federation.secret("silo0"))
    join = plan.wire.signed(
        identity, "silo0", 0, wire.Join(bytes(16), plan.countersignature(identity))
    )
    for write in hub.handle(join, 0.0).writes:
        hub.fold(write)
    report = plan.wire.signed(identity, "silo0", 1, wire.Report(bytes(40), b"share"))
    with pytest.raises(wire.Refused, match="must not have a share"):
        hub.handle(report, 2000.0)


# ---- schedules, and planted faults ---------------------------------------------------------------


def schedules(seeds, **keys):
    """Run schedules of faults, one for each seed, and return them."""
    worlds = [World(deployed(MASKS), seed, **keys) for seed in seeds]
    for world in worlds:
        world.run()
    return worlds


def test_invariants_hold_whenever_a_party_is_killed():
    worlds = schedules(range(10))
    assert sum(world.kills for world in worlds) > 30
    assert {len(entries) for world in worlds for entries in world.sets.values()} == {3}


@pytest.mark.slow
def test_invariants_hold_over_many_schedules():
    schedules(range(1000, 1300))


def report_without_state(deployment):
    """Return a report of release 1 by a silo 0 that has lost its state and its ledger.

    The hub claims that it has received no report of silo 0.
    """
    plan, ledger = deployment.plan, Ledger(":memory:")
    ledger.set_ceiling("records", 5.0, 1e-5)
    party = SiloParty(plan, "silo0", federation.secret("silo0"), ledger)
    process = SiloProcess(party, MemoryStore(), ledger, lambda: deployment.now)
    nonce = plan.wire.body(plan.wire.read(process.tick()[0].data), wire.Join).nonce
    hub = Identity(federation.secret("hub"))

    def handle_from_hub(body):
        return process.handle(plan.wire.signed(hub, "hub", 1, body))[1]

    deployment.now = plan.document.calendar.closes[0] - 10.0
    process.reward(process.decide(ROWS).id, 0.0)
    deployment.now += 10.0
    handle_from_hub(wire.Receipt(0, (), nonce))
    request = process.tick()[0]
    (session,) = plan.wire.body(plan.wire.read(request.data), wire.Sessions).values
    sessions = deployment.processes["hub"].party.sessions
    old = tuple(sessions[1, i] for i in range(3))
    assert session != old[0]
    # The old list does not hold this silo's session. With a new list, the silo reports again.
    assert not handle_from_hub(wire.Sessions(old)) and not process.party.sealed
    handle_from_hub(wire.Sessions((session, *old[1:])))
    process.tick()
    return process.party.sealed[1]


class Reused(PairMasks):
    """A planted fault: masks that depend only on key and release."""

    def at(self, release, size, sessions):
        return super().at(release, size, (bytes(32),) * 3)


@pytest.mark.parametrize("masks", [PairMasks, Reused])
def test_a_silo_that_has_lost_everything_has_other_masks_for_a_second_report(masks, monkeypatch):
    monkeypatch.setattr("fastfed.deployment.silo.PairMasks", masks)
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    period(deployment, 1)
    plan, words = deployment.plan, []
    for data in (deployment.processes["hub"].party.reports[1, 0], report_without_state(deployment)):
        words.append(plan.wire.words(federation.opened_report(plan, data), "it"))
    # With equal masks, the difference is the difference of the records plus two shares of noise.
    gap = np.abs((words[0] - words[1]).view(np.int64).astype(np.float64))
    assert (gap.max() > 2**57) == (masks is PairMasks)


def test_a_hub_that_contradicts_its_list_of_sessions_stops_the_silo():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    period(deployment, 1)
    hub, silo = Identity(federation.secret("hub")), deployment.processes["silo0"]
    known = silo.party.sessions.lists[1]
    for values, message in [
        (known[:2], "must be of 3 silos"),
        ((*known[:2], b"short"), "32 bytes"),
    ]:
        with pytest.raises(wire.Refused, match=message):
            silo.handle(deployment.plan.wire.signed(hub, "hub", 1, wire.Sessions(values)))
    other = wire.Sessions((*known[:2], bytes(32)))
    step, _ = silo.handle(deployment.plan.wire.signed(hub, "hub", 1, other))
    assert "two lists of sessions" in step.problem and silo.party.stopped


def test_a_second_session_of_a_silo_raises_an_alarm_and_is_not_stored():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    hub, plan = deployment.processes["hub"], deployment.plan
    identity = Identity(federation.secret("silo0"))

    def sessions_message(session, release=1):
        return plan.wire.signed(identity, "silo0", release, wire.Sessions((session,)))

    assert not hub.handle(sessions_message(bytes(32)))[0].problem
    assert "another session of release 1" in hub.handle(sessions_message(b"x" * 32))[0].problem
    assert hub.party.sessions == {(1, 0): bytes(32)}
    for data, message in [
        (sessions_message(b"x"), "32 bytes"),
        (sessions_message(bytes(32), 5), "of no release"),
    ]:
        with pytest.raises(wire.Refused, match=message):
            hub.handle(data)
    shares = federation.Federation(deployed("secure-sum"))
    shares.settle()
    data = shares.plan.wire.signed(identity, "silo0", 1, wire.Sessions((bytes(32),)))
    with pytest.raises(wire.Refused, match="sums are under masks"):
        shares.processes["hub"].handle(data)


def test_nothing_enters_a_leaf_whose_session_was_sent():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    absent_silo = deployment.processes.pop("silo2")
    deployment.now = 1090.0
    silo = deployment.processes["silo0"]
    early, late = silo.decide(ROWS).id, silo.decide(ROWS).id
    silo.reward(early, 1.0)
    deployment.now = 1100.0
    deployment.settle()
    sent_session = silo.party.sessions.sent[1]
    # The silo's clock goes back, and nothing is sealed yet.
    deployment.now = 1090.0
    silo.reward(late, 1.0)
    assert [e.leaf for e in silo.party.ended.values()] == [1, 2] and not silo.party.sealed
    deployment.now, deployment.processes["silo2"] = 1100.0, absent_silo
    deployment.settle()
    assert silo.party.model.release == 1 and silo.party.sessions.lists[1][0] == sent_session


def test_a_restored_silo_recovers_the_same_report_under_the_same_masks():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    deployment.now = 1090.0
    for name in SILOS:
        deployment.processes[name].reward(deployment.processes[name].decide(ROWS).id, 1.0)
    backup = list(deployment.processes["silo0"].store.writes())
    deployment.now = 1100.0
    deployment.settle()
    sent = deployment.processes["hub"].party.reports[1, 0]
    party = SiloParty(
        deployment.plan, "silo0", federation.secret("silo0"), deployment.ledgers["silo0"]
    )
    silo = SiloProcess(
        party, MemoryStore(backup), deployment.ledgers["silo0"], lambda: deployment.now
    )
    deployment.add(silo)
    for message in silo.tick():
        for answer in deployment.processes["hub"].handle(message.data)[1]:
            silo.handle(answer.data)
    assert silo.party.lost and not silo.decide(ROWS).learns
    with pytest.raises(InputError, match="has not sent the sessions"):
        silo.recover()
    deployment.settle()
    silo.recover()
    deployment.settle()
    assert silo.party.sealed[1] == sent and silo.party.model.release == 1


def test_a_restored_silo_makes_no_second_row_under_a_mask():
    """The ledger is not restored. If records are lost, the plan may wait forever."""
    restores = 0
    for seed in range(200, 212):
        world = World(deployed(MASKS), seed, restore=0.5)
        try:
            world.run()
        except Violation as violation:
            assert "did not come to its end" in str(violation)
        restores += world.restores
    assert restores > 5


class Redrawn(SiloParty):
    """A planted fault: redrawn noise with the same masks."""

    def report(self, release):
        self._noise = SystemNoise()
        return super().report(release)


class Unmasked(SiloParty):
    """A planted fault: a report without masks, so that the sum does not decode."""

    def _secure_report(self, release, row):
        return self.encrypt_report(release, row)


class Opener(Hub):
    """A planted fault: a hub that opens a release without late silos."""

    def _open_next_set(self, release, now):
        reporting = [i for i in range(self.plan.silos) if (release, i) in self.reports]
        if not reporting:
            return Step()
        entries = tuple(wire.entry_of(i, self.reports[release, i]) for i in reporting[:2])
        return Step((Write("set", str(release), self.signed(release, Opened(entries))),))


FAULTS = {
    "redrawn noise": ({"kinds": {"silo": Redrawn}}, "invariant [12]"),
    # A lost session is sent a second time, before any report.
    "no fsync": ({"forget": True, "kill": 0.1}, "invariant [12]"),
    "charge after seal": ({"reverse": True}, "invariant 5"),
    "a set that is too small": ({"kinds": {"hub": Opener}}, "invariant 4"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault):
    keys, expected = FAULTS[fault]
    for seed in range(40):
        try:
            schedules([seed], **keys)
        except ValueError:
            continue
        except Violation as violation:
            if re.match(expected, str(violation)):
                return
    pytest.fail(f"{fault} was not caught")


def test_one_silo_without_its_masks_spoils_the_sum_and_nobody_acts_on_it():
    deployment = federation.Federation(deployed(MASKS))
    party = Unmasked(
        deployment.plan, "silo1", federation.secret("silo1"), deployment.ledgers["silo1"]
    )
    deployment.processes["silo1"].party = party
    deployment.settle()
    period(deployment, 1)
    assert len(deployment.processes["hub"].party.reports) == 3
    assert all(deployment.processes[name].party.model.release == 0 for name in SILOS)


def test_a_hub_and_a_silo_that_are_both_restored_end_the_plan_with_the_cause():
    deployment = federation.Federation(deployed(MASKS))
    deployment.settle()
    silo, hub = deployment.processes["silo2"], deployment.processes["hub"]
    backups = [list(process.store.writes()) for process in (silo, hub)]
    federation.served(deployment, 1)
    answers_to_silo2 = {}
    for name in (*SILOS, *SILOS):  # sessions first, then their list, which silo2 does not get
        for _, data in deployment.processes[name].tick():
            for to, answer in hub.handle(data)[1]:
                if to == "silo2":
                    answers_to_silo2[to] = answer
                else:
                    deployment.processes[to].handle(answer)
    assert answers_to_silo2 and {1} == {*deployment.processes["silo0"].party.sessions.lists}
    party = SiloParty(
        deployment.plan, "silo2", federation.secret("silo2"), deployment.ledgers["silo2"]
    )
    deployment.add(
        SiloProcess(
            party, MemoryStore(backups[0]), deployment.ledgers["silo2"], lambda: deployment.now
        )
    )
    restored = Hub(deployment.plan, federation.secret("hub"))
    deployment.add(Process(restored, MemoryStore(backups[1]), None, lambda: deployment.now))
    deployment.settle()
    hub = deployment.processes["hub"].party
    assert "hub and silo were restored and masks differ" in hub.ended and not hub.broadcasts
    assert all(deployment.processes[name].party.model.release == 0 for name in SILOS)
