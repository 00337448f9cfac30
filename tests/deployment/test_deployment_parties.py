"""Silo, hub and helper in the failures of docs/deployment.md, and a silo's own application."""

import re

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("cryptography")

import federation
from federation import ROWS, served

from fastfed import InputError
from fastfed.cli import cli
from fastfed.deployment import wire
from fastfed.deployment.application import answers
from fastfed.deployment.charges import charge_of
from fastfed.deployment.client import Client
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.party import Step
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.store import MemoryStore, SqliteStore, Write
from fastfed.deployment.wire import Broadcast, Entry, Opened, Refused

HUB = Identity(federation.secret("hub"))


def running(protocol="silo-ldp", **keys):
    """Return a federation that all parties have joined."""
    deployment = federation.Federation(federation.deployed(protocol, **keys))
    deployment.settle()
    return deployment


def leaves(process):
    """Return the leaf of each record whose reward has come."""
    return [ended.leaf for ended in process.party.ended.values()]


# ---- the application -----------------------------------------------------------------------------


def test_any_number_of_decisions_is_open_and_rewards_come_in_any_order():
    deployment = running()
    silo = deployment.processes["silo0"]
    deployment.now = 1010.0
    ids = [silo.decide(ROWS).id for _ in range(3)]
    assert len(set(ids)) == 3
    deployment.now = 1099.0
    silo.reward(ids[2], 1.0)
    deployment.now = 1100.0
    silo.reward(ids[0], 0.0)
    silo.reward(ids[0], 0.0)
    silo.cancel(ids[1])
    silo.cancel(ids[1])
    assert leaves(silo) == [1, 2, 0]
    with pytest.raises(InputError, match="has ended already"):
        silo.reward(ids[0], 0.5)
    with pytest.raises(InputError, match="has ended already"):
        silo.reward(ids[1], 0.5)
    with pytest.raises(InputError, match="no decision"):
        silo.reward("nothing", 0.5)
    with pytest.raises(InputError, match="reward must be"):
        silo.reward(ids[0], float("nan"))


def test_a_record_never_enters_a_leaf_that_is_closed_even_if_the_clock_goes_back():
    deployment = running()
    silo = deployment.processes["silo0"]
    deployment.now = 1050.0
    first, second = silo.decide(ROWS).id, silo.decide(ROWS).id
    silo.reward(first, 1.0)
    deployment.now = 1100.0
    deployment.settle()
    before = silo.party.sealed[1]
    deployment.now = 1050.0
    silo.reward(second, 1.0)
    assert leaves(silo) == [1, 2] and silo.party.report(1) == before


def test_a_charged_leaf_is_closed_though_its_report_is_not_sealed_yet():
    """A silo is killed between charge and seal, and its clock goes back before it restarts."""
    deployment = running()
    silo = deployment.processes["silo0"]
    deployment.now = 1050.0
    first, second = silo.decide(ROWS).id, silo.decide(ROWS).id
    silo.reward(first, 1.0)
    deployment.settle()
    charge, sealed = silo.party.tick(1100.0).writes
    silo.ledger.charge(charge)
    deployment.now = 1050.0
    silo.reward(second, 1.0)
    deployment.now = 1100.0
    deployment.settle()
    assert leaves(silo) == [1, 2] and silo.party.sealed[1] == sealed.value
    assert not silo.party.lost and not silo.party.unreported


def test_rewards_after_the_deadline_and_after_the_end_enter_no_leaf():
    deployment = running()
    silo = deployment.processes["silo0"]
    deployment.now = 1010.0
    late, last = silo.decide(ROWS).id, silo.decide(ROWS)
    deployment.now = 1010.0 + 251.0
    silo.reward(late, 1.0)
    assert leaves(silo) == [0]
    deployment.now = 1400.0
    decision = silo.decide(ROWS)
    assert not decision.learns and last.learns
    silo.reward(decision.id, 1.0)
    assert leaves(silo) == [0, 0]


def test_everybody_within_the_calendar_is_learned_from():
    """More people come than a batch has rounds; a limit would let one person displace another."""
    deployment = running()
    silo = deployment.processes["silo0"]
    for now, learns in ((990.0, False), (1010.0, True), (1110.0, True), (1400.0, False)):
        deployment.now = now
        assert [silo.decide(ROWS).learns for _ in range(7)] == [learns] * 7


def test_one_person_is_learned_from_once_and_only_a_keyed_digest_is_kept():
    deployment = running()
    silo = deployment.processes["silo0"]
    deployment.now = 1010.0
    assert silo.decide(ROWS, subject="ada").learns
    assert not silo.decide(ROWS, subject="ada").learns
    assert silo.decide(ROWS, subject="eve").learns
    assert silo.decide(ROWS).learns and silo.decide(ROWS).learns
    assert b"ada" not in b"".join(w.value for w in silo.store.writes())


def test_exploration_has_the_propensities_that_it_states():
    deployment = running(federation={"least": 2, "explore": 0.4}, batch=1000)
    deployment.now = 1010.0
    silo = deployment.processes["silo0"]
    rows = [[0.5, 0.1], [-0.3, 0.8], [0.0, 0.2], [0.1, 0.1]]
    actual = [silo.decide(rows) for _ in range(400)]
    likely = [d for d in actual if d.propensity > 0.5]
    assert {round(d.propensity, 12) for d in actual} == {0.1, 0.7}
    # 70 % of 400, five standard deviations.
    assert abs(len(likely) - 280) < 46 and len({d.action for d in likely}) == 1


def test_rows_must_fit_the_schema_and_are_clipped_to_its_ranges():
    deployment = running()
    silo = deployment.processes["silo0"]
    for rows, message in [([], "actions"), ([[1.0]], "shape"), ([[np.nan, 0.0]], "finite")]:
        with pytest.raises(InputError, match=message):
            silo.decide(rows)
    schema = deployment.plan.document.schema
    assert schema.features([[5.0, -0.25]]).tolist() == [[1.0, -0.25]]


def test_decisions_and_rewards_are_there_after_a_restart(tmp_path):
    plan = federation.deployed()
    path, now = str(tmp_path / "silo"), 1010.0
    ledger = Ledger(str(tmp_path / "ledger"))

    def started():
        """Return the process of the silo, started from its file."""
        party = SiloParty(plan, "silo0", federation.secret("silo0"), ledger)
        return SiloProcess(party, SqliteStore(path), ledger, lambda: now)

    silo = started()
    decision = silo.decide(ROWS, subject="ada")
    silo.store.close()
    silo = started()
    silo.reward(decision.id, 0.75)
    silo.store.close()
    silo = started()
    assert silo.party.ended[decision.id].reward == 0.75 and leaves(silo) == [1]
    assert not silo.decide(ROWS, subject="ada").learns
    silo.store.close()
    other = federation.deployed(batch=6)
    party = SiloParty(other, "silo0", federation.secret("silo0"), ledger)
    with pytest.raises(InputError, match="of another plan or party"):
        SiloProcess(party, SqliteStore(path), ledger)


# ---- budget --------------------------------------------------------------------------------------


def test_a_silo_seals_nothing_beyond_its_ceiling_and_goes_on_when_it_is_raised():
    deployment = running()
    for ledger in deployment.ledgers.values():
        ledger.set_ceiling("records", 1.0, 1e-6)
    tight = Ledger(":memory:")
    tight.set_ceiling("records", 0.6, 1e-6)
    silo = deployment.processes["silo0"]
    silo.ledger = silo.party.ledger = tight
    for release in (1, 2, 3):
        served(deployment, release)
        deployment.settle()
    # A node costs .55 of epsilon here: the second one is too much, and so is all that follows.
    assert list(silo.party.sealed) == [1]
    # The silo still polls the hub, to receive models and to resend lost reports.
    assert [deployment.plan.wire.read(m.data).kind for m in silo.tick()] == ["join"]
    assert "more than the ceiling" in silo.problem
    tight.set_ceiling("records", 1.0, 1e-6)
    deployment.settle()
    assert 1 in silo.party.sealed and silo.party.unreported.keys() | silo.party.sealed.keys() == {
        1,
        2,
        3,
    }


def test_a_disk_that_is_full_seals_nothing_and_loses_nothing():
    class Full(MemoryStore):
        full = False

        def write(self, write):
            if self.full and write.kind == "sealed":
                raise OSError(28, "No space left on device")
            return super().write(write)

    deployment = running()
    silo = deployment.processes["silo0"]
    store = Full(list(silo.store.writes()))
    silo.store = store
    served(deployment, 1)
    store.full = True
    for _ in range(2):
        with pytest.raises(OSError):
            silo.tick()
    silo.decide(ROWS)
    assert not silo.party.sealed
    store.full = False
    deployment.settle()
    assert silo.party.model.release == 1


# ---- stragglers, leavers -------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_straggler_is_left_out_after_the_grace_and_its_report_never_opened(restarted):
    deployment = running()
    absent_silo = deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0", "silo1"])
    deployment.settle()
    hub = deployment.processes["hub"].party
    assert not hub.broadcasts
    deployment.now += federation.GRACE
    deployment.settle()
    entries = [
        e.silo
        for e in deployment.plan.wire.body(
            deployment.plan.wire.read(hub.broadcasts[1]), Broadcast
        ).entries
    ]
    assert entries == [0, 1]
    opened = hub.broadcasts[1]
    if restarted:
        # The silo gets the broadcast before it seals, and has nothing to report.
        absent_silo = restore_silo(deployment, "silo2", list(absent_silo.store.writes()))
    deployment.processes["silo2"] = absent_silo
    deployment.settle()
    assert absent_silo.party.model.release == 1 and hub.broadcasts == {1: opened}
    assert absent_silo.party.unreported == ({1: "opened without this silo"} if restarted else {})
    assert ((1, 2) in hub.reports) == (1 in absent_silo.party.sealed) == (not restarted)
    assert [c.release for c in absent_silo.ledger.charges("records")] == [1]
    # The silo's records of that leaf are part of the next node, which holds both leaves.
    served(deployment, 2)
    deployment.settle()
    assert 2 in absent_silo.party.sealed and hub.broadcasts.keys() == {1, 2}


def test_later_sets_are_without_a_silo_that_left_and_the_plan_ends_below_the_least():
    deployment = running()
    served(deployment, 1)
    deployment.settle()
    deployment.processes["silo1"].leave()
    deployment.settle()
    hub = deployment.processes["hub"].party
    assert hub.left_silos == {1} and deployment.processes["silo1"].party.hub_refusal
    served(deployment, 2)
    deployment.settle()
    body = deployment.plan.wire.body(deployment.plan.wire.read(hub.broadcasts[2]), Broadcast)
    assert [e.silo for e in body.entries] == [0, 2]
    assert deployment.processes["silo1"].party.model.release == 1
    assert not deployment.processes["silo1"].decide(ROWS).learns
    deployment.processes["silo0"].leave()
    deployment.settle()
    assert "fewer than 2" in hub.ended
    served(deployment, 3, ["silo2"])
    deployment.settle()
    assert (
        hub.broadcasts.keys() == {1, 2}
        and "fewer than 2" in deployment.processes["silo2"].party.stopped
    )


# ---- backups and copies --------------------------------------------------------------------------


def restore_silo(deployment, name, writes, ledger=None):
    """Replace a silo by one with earlier writes (a backup), and return its process."""
    ledger = ledger or deployment.ledgers[name]
    party = SiloParty(deployment.plan, name, federation.secret(name), ledger)
    process = SiloProcess(party, MemoryStore(writes), ledger, lambda: deployment.now)
    deployment.add(process)
    return process


@pytest.mark.parametrize("ledger", ["kept", "restored"])
def test_a_restored_silo_with_the_same_records_sends_the_same_bytes(ledger):
    deployment = running()
    served(deployment, 1)
    backup = list(deployment.processes["silo0"].store.writes())
    deployment.settle()
    sent = deployment.processes["hub"].party.reports[1, 0]
    fresh = None
    if ledger == "restored":
        fresh = Ledger(":memory:")
        fresh.set_ceiling("records", 2.0, 1e-6)
    silo = restore_silo(deployment, "silo0", backup, fresh)
    deployment.settle()
    # Decisions by the last model go on; nothing is learned from them.
    assert not silo.decide(ROWS).learns
    silo.recover()
    deployment.settle()
    assert silo.party.sealed[1] == sent and silo.party.model.release == 1
    assert len(silo.ledger.charges("records")) == 1


@pytest.mark.parametrize("ledger", ["kept", "restored"])
def test_a_restored_silo_with_other_records_gives_the_report_up_and_pays_again(ledger):
    deployment = running()
    backup = list(deployment.processes["silo0"].store.writes())
    served(deployment, 1)
    deployment.settle()
    hub = deployment.processes["hub"].party
    fresh = None
    if ledger == "restored":
        fresh = Ledger(":memory:")
        fresh.set_ceiling("records", 3.0, 1e-6)
    else:
        deployment.ledgers["silo0"].set_ceiling("records", 3.0, 1e-6)
    silo = restore_silo(deployment, "silo0", backup, fresh)
    deployment.now -= 5.0
    deployment.settle()
    deployment.now += 5.0
    deployment.settle()
    decision = silo.decide(ROWS)
    assert not decision.learns
    with pytest.raises(InputError, match="recover it first"):
        silo.reward(decision.id, 0.5)
    silo.recover()
    deployment.settle()
    assert silo.party.sealed == {} and "lost" in silo.party.unreported[1]
    assert [c.release for c in silo.ledger.charges("records")] == [-1, 1]
    served(deployment, 2)
    deployment.settle()
    assert (2, 0) in hub.reports and hub.reports[2, 0] == silo.party.sealed[2]


def test_one_recovery_gives_up_the_reports_that_the_hub_has_and_those_that_the_ledger_alone_knows():
    deployment = running()
    deployment.ledgers["silo0"].set_ceiling("records", 9.0, 1e-6)
    backup = list(deployment.processes["silo0"].store.writes())
    served(deployment, 1)
    deployment.settle()
    hub = deployment.processes.pop("hub")
    # The report of release 2 is charged and sealed, and the hub is away.
    served(deployment, 2)
    deployment.settle()
    assert 2 in deployment.processes["silo0"].party.sealed and (2, 0) not in hub.party.reports
    deployment.add(hub)
    silo = restore_silo(deployment, "silo0", backup)
    deployment.settle()
    assert sorted(silo.party.lost) == [1]
    silo.recover()
    deployment.settle()
    assert sorted(silo.party.unreported) == [1, 2] and not silo.party.lost
    assert [c.release for c in silo.ledger.charges("records")] == [-2, 1, 2]
    silo.reward(silo.decide(ROWS).id, 0.5)
    served(deployment, 3)
    deployment.settle()
    assert (3, 0) in hub.party.reports


def test_a_silo_restored_twice_from_one_backup_pays_for_each_time_that_reports_have_left():
    """A reward is reported again after each restore, and enters another leaf each time."""
    deployment = running()
    deployment.ledgers["silo0"].set_ceiling("records", 9.0, 1e-6)
    deployment.now = deployment.plan.document.calendar.closes[0] - 10.0
    decision = deployment.processes["silo0"].decide(ROWS).id
    backup = list(deployment.processes["silo0"].store.writes())
    leaves_of_rewards = []
    for release, reward in ((1, 0.5), (2, 0.6), (3, 0.7)):
        silo = deployment.processes["silo0"]
        deployment.now = deployment.plan.document.calendar.closes[release - 1] - 1.0
        silo.reward(decision, reward)
        leaves_of_rewards.append(leaves(silo))
        deployment.now += 1.0
        deployment.settle()
        assert release in silo.party.sealed
        if release < 3:
            silo = restore_silo(deployment, "silo0", backup)
            deployment.settle()
            assert sorted(silo.party.lost) == list(range(1, release + 1))
            silo.recover()
            deployment.settle()
            # A second recovery without a report in between: nothing is charged again.
            silo = restore_silo(deployment, "silo0", backup)
            deployment.settle()
            silo.recover()
            deployment.settle()
    assert leaves_of_rewards == [[1], [2], [3]]
    charged = [c.release for c in silo.ledger.charges("records")]
    assert charged == [-2, -1, 1, 2, 3]
    whole = charge_of(deployment.plan.plan, deployment.plan.digest, "records", -1)
    assert sum(c.mu2 for c in silo.ledger.charges("records")) > 2.0 * whole.mu2


# ---- a hub that lies -----------------------------------------------------------------------------


def broadcast_by(deployment, release, values, entries, before):
    """Return a broadcast with these values that the hub signed."""
    body = Broadcast(wire.packed(np.array(values)), entries, before)
    return deployment.plan.wire.signed(HUB, "hub", release, body)


def test_silos_stop_when_the_hub_contradicts_itself_and_act_on_the_last_good_model():
    deployment = running()
    served(deployment, 1)
    deployment.settle()
    silo, hub = deployment.processes["silo0"], deployment.processes["hub"].party
    good = silo.party.model.theta
    honest = deployment.plan.wire.body(deployment.plan.wire.read(hub.broadcasts[1]), Broadcast)
    other = broadcast_by(deployment, 1, np.zeros(5), honest.entries, b"")
    step, _ = silo.handle(federation.news(deployment.plan, other))
    assert "two broadcasts" in step.problem and "two broadcasts" in silo.party.stopped
    served(deployment, 2)
    assert silo.tick() == ()
    assert np.array_equal(silo.party.model.theta, good)
    silo.decide(ROWS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"before": bytes(32)}, "does not follow"),
        ({"entries": (Entry(0, bytes(32)),)}, "too few"),
        ({"entries": (Entry(0, bytes(32)), Entry(1, bytes(32)))}, "another report"),
        ({"values": wire.packed(np.full(5, -1e300))}, "beyond"),
        ({"values": wire.packed(np.full(5, np.nan))}, "finite"),
        ({"entries": (Entry(1, bytes(32)), Entry(1, bytes(32)))}, "different silos"),
        ({"entries": (Entry(0, bytes(31)), Entry(7, bytes(32)))}, "different silos"),
    ],
)
def test_a_broadcast_that_cannot_be_true_is_not_acted_on(change, message):
    deployment = running()
    served(deployment, 1)
    deployment.processes["hub"].party.tick = lambda now: Step()
    deployment.settle()
    hub, silo = deployment.processes["hub"].party, deployment.processes["silo0"]
    assert silo.party.sealed and not silo.party.broadcasts
    entries = tuple(wire.entry_of(i, hub.reports[1, i]) for i in range(3))
    body = msgspec.structs.replace(Broadcast(wire.packed(np.zeros(5)), entries, b""), **change)
    data = deployment.plan.wire.signed(HUB, "hub", 1, body)
    theta = silo.party.model.theta
    try:
        step, _ = silo.handle(federation.news(deployment.plan, data))
        assert message in step.problem
    except Refused as refused:
        assert message in str(refused)
        assert not silo.party.stopped
    assert silo.party.model.release == 0 and np.array_equal(silo.party.model.theta, theta)


def test_a_log_with_changed_sums_is_refused():
    """When the log is read, every sum is computed again."""
    deployment = running("central")
    for release in (1, 2):
        served(deployment, release)
        deployment.settle()
    process = deployment.processes["hub"]
    writes = list(process.store.writes())
    Process(type(process.party)(deployment.plan, federation.secret("hub")), MemoryStore(writes))
    at = next(i for i, w in enumerate(writes) if w[:2] == ("broadcast", "2"))
    honest = deployment.plan.wire.body(deployment.plan.wire.read(writes[at].value), Broadcast)
    values = np.frombuffer(honest.values) + 1.0
    changed = msgspec.structs.replace(honest, values=wire.packed(values))
    writes[at] = Write("broadcast", "2", deployment.plan.wire.signed(HUB, "hub", 2, changed))
    with pytest.raises(Refused, match="not the sum"):
        Process(type(process.party)(deployment.plan, federation.secret("hub")), MemoryStore(writes))


# ---- secure sums ---------------------------------------------------------------------------------


def test_the_hub_and_the_helper_each_see_uniform_words_and_open_one_set():
    deployment = running("secure-sum")
    served(deployment, 1, reward=1.0)
    deployment.settle()
    plan, hub, helper = (
        deployment.plan,
        deployment.processes["hub"].party,
        deployment.processes["helper"],
    )
    assert hub.broadcasts.keys() == helper.party.answers.keys() == {1}
    words = plan.wire.words(federation.opened_report(plan, hub.reports[1, 0]), "it")
    # The row is small, but a share of the row is uniformly random.
    assert (words > 2**58).any() and (words < 2**64 - 2**58).any()
    entries = tuple(wire.entry_of(i, hub.reports[1, i]) for i in range(3))
    shares = tuple(
        plan.wire.body(plan.wire.read(hub.reports[1, i]), wire.Report).sealed for i in range(3)
    )
    second = (Entry(0, bytes(32)), *entries[1:])
    step, _ = helper.handle(plan.wire.signed(HUB, "hub", 1, Opened(second, shares)))
    assert "second set" in step.problem and not any(
        m.to == "hub" and b"set" in m.data for m in step.messages
    )
    for request, message in [
        (Opened(entries[:2], shares[:2]), "3 silos at least"),
        (Opened(entries, (*shares[:2], shares[0])), "cannot be opened"),
        (Opened(entries, shares), "cannot be opened"),
    ]:
        with pytest.raises(InputError, match=message):
            helper.handle(plan.wire.signed(HUB, "hub", 2, request))
    with pytest.raises(Refused, match="next set must be of release 2"):
        helper.handle(plan.wire.signed(HUB, "hub", 3, Opened(entries, shares)))


def test_the_signatures_that_a_hub_checks_grow_with_silos_and_not_with_their_square(monkeypatch):
    checks, read = [], wire.Wire.read
    monkeypatch.setattr(
        wire.Wire, "read", lambda self, data, *kinds: checks.append(1) or read(self, data, *kinds)
    )
    numbers = []
    for silos in (4, 16):
        deployment = running(silos=silos)
        served(deployment, 1)
        hub = deployment.processes["hub"]
        mail = [
            data
            for name in deployment.plan.silos
            for to, data in deployment.processes[name].tick()
            if to == "hub"
        ]
        checks.clear()
        for data in mail:
            hub.handle(data)
        assert hub.party.broadcasts
        numbers.append(len(checks))
    assert numbers[1] < 6 * numbers[0]


def test_a_release_of_a_secure_sum_waits_for_every_silo():
    deployment = running("secure-sum")
    deployment.processes.pop("silo2")
    served(deployment, 1, ["silo0", "silo1"])
    deployment.now += 10 * federation.GRACE
    deployment.settle()
    hub = deployment.processes["hub"].party
    assert not hub.broadcasts and not hub.sets and hub.status()["waiting_for"] == ["silo2"]


def test_a_restored_silo_at_its_ceiling_decides_says_what_it_needs_and_can_leave():
    """Recovery charges the plan again; an earlier version was stuck at its ceiling."""
    deployment = running()
    backup = list(deployment.processes["silo0"].store.writes())
    served(deployment, 1)
    deployment.settle()
    silo = restore_silo(deployment, "silo0", backup)
    deployment.now -= 5.0
    deployment.settle()
    deployment.now += 5.0
    deployment.settle()
    assert silo.party.lost and not silo.decide(ROWS).learns
    with pytest.raises(InputError, match=r"once more, .* join the same plan") as refused:
        silo.recover()
    needed = float(re.search(r"--epsilon ([0-9.]+)", str(refused.value))[1])
    assert 1.0 < needed < 3.0
    for epsilon, enough in ((needed * 0.99, False), (needed, True)):
        silo.ledger.set_ceiling("records", epsilon, 1e-6)
        if not enough:
            with pytest.raises(InputError, match="join the same plan"):
                silo.recover()
    silo.recover()
    deployment.settle()
    assert not silo.party.lost
    other = restore_silo(deployment, "silo0", backup, Ledger(":memory:"))
    deployment.settle()
    other.leave()
    assert other.party.stopped and not other.decide(ROWS).learns


def test_a_person_of_a_decision_before_the_start_can_be_learned_from_later():
    deployment = federation.Federation(federation.deployed())
    deployment.settle()
    silo = deployment.processes["silo0"]
    deployment.now = federation.START - 10.0
    assert not silo.decide(federation.ROWS, "ada").learns
    deployment.now = federation.START + 10.0
    assert silo.decide(federation.ROWS, "ada").learns
    assert not silo.decide(federation.ROWS, "ada").learns


def test_calls_of_a_wrong_type_say_what_to_give(tmp_path):
    with pytest.raises(InputError, match=r"is a folder: give its socket, .*silo\.sock"):
        Client(tmp_path)
    client = Client(tmp_path / "silo.sock", wait=0.0)
    for wrong in ({"actions": federation.ROWS}, "rows", 3):
        with pytest.raises(InputError, match="give a list of arguments of decide"):
            client.decide_many(wrong)
    with pytest.raises(InputError, match="each decision must be given as a dict"):
        client.decide_many([federation.ROWS])
    with pytest.raises(InputError, match="give the rewards as a dict"):
        client.reward_many([("a", 1.0)])
    silo = federation.Federation(federation.deployed()).processes["silo0"]
    with pytest.raises(InputError, match=r'there is no /decyde.*"/decide"'):
        answers(silo, "/decyde", {})


def test_a_demo_needs_an_empty_folder(tmp_path):
    (tmp_path / "plan").write_text("x")
    result = CliRunner().invoke(cli, ["deploy", "demo", "--folder", str(tmp_path)])
    assert result.exit_code == 2 and "is not empty: choose a new folder" in result.output
    assert (tmp_path / "plan").read_text() == "x"
