"""What a silo keeps: a restart from a snapshot, records that are erased, calls in one sync."""

import asyncio
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("httptools")

import federation
from exchanges import OTHERS, small_plan
from test_deployment_doors import serving

from fastfed import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment import process as process_module
from fastfed.deployment.application import Application, answers
from fastfed.deployment.client import AsyncClient, Client
from fastfed.deployment.experts import ExpertSilo, PlacedDecision
from fastfed.deployment.kinds import silo_of as party_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.model import Decided
from fastfed.deployment.process import SiloProcess
from fastfed.deployment.seal import KEY_BYTES, keyed_digest
from fastfed.deployment.silo_records import _SNAPSHOT
from fastfed.deployment.store import MemoryStore, SqliteStore, Write

ROWS = [[0.5, 0.1], [-0.3, 0.8]]
DAY = 86_400.0


class Slow(MemoryStore):
    """A store whose syncs take time; ``syncs`` has the number of writes of each append."""

    seconds = 0.05

    def __init__(self):
        super().__init__()
        self.syncs = []

    def append(self, writes):
        self.syncs.append(len(writes))
        return super().append(writes)

    def sync(self):
        time.sleep(self.seconds)


def silo_of(deployment, store, name="silo0"):
    """Return a process of a silo that keeps its state in a store."""
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", 20.0, 1e-5)
    party = party_of(deployment.plan, name, federation.secret(name), ledger)
    return SiloProcess(party, store, ledger, lambda: deployment.now)


def use(silo, rows, value, subject=None, ends=True):
    """Let a silo of any kind of plan decide and, if it ``ends``, learn a reward or losses."""
    is_expert = isinstance(silo.party, ExpertSilo)
    name = silo.decide(None if is_expert else rows, subject).id
    if ends:
        learn(silo, name, rows, value)
    return name


def learn(silo, name, rows, value):
    """End a decision of any kind of silo."""
    if isinstance(silo.party, ExpertSilo):
        silo.losses(name, [value, 0.5, rows[0][0]])
    else:
        silo.reward(name, value)


def state_of(process):
    """Return all state of a silo that it saves."""
    names = ("sealed", "unreported", "broadcasts", "alarms", "leave_reason")
    state = {name: getattr(process.party, name) for name in names}
    return state | federation.learned(process.party)


# ---- calls in one sync ---------------------------------------------------------------------------


def test_calls_of_many_threads_share_a_sync():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, store := Slow())
    store.syncs.clear()
    with ThreadPoolExecutor(16) as pool:
        decisions = list(pool.map(lambda k: silo.decide(ROWS, f"p{k}"), range(64)))
        list(pool.map(lambda d: silo.reward(d.id, 0.5), decisions))
    # 128 calls make 192 writes.
    assert len(store.syncs) < 80 and sum(store.syncs) == 192
    assert len(silo.party.decisions) == len(silo.party.ended) == 64
    assert all(decision.learns for decision in decisions)


def test_one_person_in_many_calls_at_once_is_learned_from_once():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, Slow())
    with ThreadPoolExecutor(8) as pool:
        decisions = list(pool.map(lambda _: silo.decide(ROWS, "ada"), range(8)))
    assert sum(decision.learns for decision in decisions) == 1


def test_two_rewards_of_a_decision_at_once_are_one_and_a_refusal():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, Slow())
    decision = silo.decide(ROWS)

    def error_of(reward):
        """Reward the decision; return the message of the error, or None."""
        try:
            silo.reward(decision.id, reward)
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        errors = list(pool.map(error_of, [0.25, 0.75, 0.25, 0.75]))
    assert sum(one is None for one in errors) == 2 and silo.party.ended.count == 1
    assert silo.party.ended[decision.id].reward in (0.25, 0.75)


def test_a_full_disk_changes_nothing_and_later_calls_go_on():
    class Failing(Slow):
        """A store whose disk is full."""

        fails = False

        def append(self, writes):
            if self.fails:
                time.sleep(self.seconds)
                raise OSError(28, "no space left on device")
            return super().append(writes)

    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, store := Failing())
    first = silo.decide(ROWS, "ada")
    before, store.fails = state_of(silo), True
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(silo.decide, ROWS, f"p{k}") for k in range(6)]
        tries += [pool.submit(silo.reward, first.id, 0.5)]
        assert all(isinstance(one.exception(), OSError) for one in tries)
    assert state_of(silo) == before and not silo._in_flight
    store.fails = False
    silo.reward(first.id, 0.5)
    assert silo.decide(ROWS, "p0").learns


def test_a_tick_waits_for_calls_in_flight_and_calls_wait_for_it():
    """A leaf has all records that were promised to it when it closes, and gets none later."""
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, Slow())
    decisions = [silo.decide(ROWS, f"p{k}") for k in range(12)]
    with ThreadPoolExecutor(16) as pool:
        rewards = [pool.submit(silo.reward, d.id, 0.5) for d in decisions]
        ticks = [pool.submit(silo.tick) for _ in range(4)]
        for one in (*rewards, *ticks):
            one.result()
    restarted = silo_of(deployment, MemoryStore(list(silo.store.writes())))
    assert state_of(restarted) == state_of(silo)


def test_experts_take_their_places_one_after_the_other():
    from test_deployment_experts import plan_of as deployed

    deployment = federation.Federation(deployed())
    silo = deployment.processes["silo0"]
    silo.store.sync = lambda: time.sleep(0.01)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: silo.decide(), range(40)))
    places = [one.place for one in silo.party.decisions.values() if one.learns]
    assert sorted(places) == list(range(silo.party._room(1))) and len(places) < 40


# ---- requests that are repeated, and many in one -------------------------------------------------


def test_a_decision_that_is_asked_for_again_is_the_same(tmp_path):
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, SqliteStore(str(tmp_path / "s")))
    request = {"actions": ROWS, "subject": "ada", "id": "00112233445566ff"}
    first = answers(silo, "/decide", request)
    assert first["learns"] and answers(silo, "/decide", request) == first
    silo.close()
    silo = silo_of(deployment, SqliteStore(str(tmp_path / "s")))
    assert answers(silo, "/decide", request) == first and silo.party.decisions.count == 1
    for other in ({"subject": "eve"}, {"actions": [[0.5, 0.1], [0.5, 0.1]]}, {"subject": None}):
        with pytest.raises(InputError, match="another person or offer"):
            answers(silo, "/decide", request | other)
    for wrong in ("", "0" * 15, "G" * 16, 17, "0" * 17, "A" * 16):
        with pytest.raises(InputError, match="16 random digits"):
            answers(silo, "/decide", request | {"id": wrong})
    silo.close()


def test_a_call_of_many_decisions_or_rewards_answers_each():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, store := Slow())
    store.syncs.clear()
    offers = [{"actions": ROWS, "subject": f"p{k}"} for k in range(50)]
    offers[7] = {"actions": [[0.5]]}
    offers[9] = {"actions": ROWS, "subjekt": "x"}
    offers[11] = "no object"
    decisions = answers(silo, "/decide_many", {"decisions": offers})["decisions"]
    assert [k for k, one in enumerate(decisions) if "error" in one] == [7, 9, 11]
    assert "subject" in decisions[9]["error"] and len(store.syncs) == 1
    rewards = [{"id": one["id"], "reward": 0.5} for one in decisions if "id" in one]
    rewards[0] = {"id": "none", "reward": 0.5}
    rewards[1]["reward"] = "high"
    errors = answers(silo, "/reward_many", {"rewards": rewards})["rewards"]
    assert [k for k, one in enumerate(errors) if one] == [0, 1] and len(store.syncs) == 2
    for wrong in ({}, {"decisions": {}}, {"decisions": [{}] * 10_001}, {"others": []}):
        with pytest.raises(InputError, match="decisions"):
            answers(silo, "/decide_many", wrong)
    assert answers(silo, "/decide_many", {"decisions": []}) == {"decisions": []}


def test_clients_use_a_silo_that_restarts(tmp_path):
    deployment = federation.Federation(federation.deployed())
    path = tmp_path / "s"
    rows = np.array(ROWS)
    with Client(path, wait=20.0) as client:
        with serving(Application(silo_of(deployment, store := MemoryStore()), path)):
            decision = client.decide(rows, "ada")
            assert decision.learns and len(decision.id) == 16
        done = []
        thread = threading.Thread(target=lambda: done.append(client.reward(decision.id, 0.5)))
        thread.start()
        time.sleep(0.3)
        silo = silo_of(deployment, MemoryStore(list(store.writes())))
        with serving(Application(silo, path)):
            thread.join(10)
            assert done == [None] and silo.party.ended[decision.id].reward == 0.5
            many = client.decide_many([{"actions": rows}, {"actions": [[1.0]]}])
            assert isinstance(many[1], InputError)
            assert client.reward_many({many[0].id: 0.25, "none": 1.0}).keys() == {"none"}

            async def use_clients():
                async with AsyncClient(path) as clients:
                    decisions = await asyncio.gather(*(clients.decide(rows, k) for k in range(30)))
                    await asyncio.gather(*(clients.reward(one.id, 0.5) for one in decisions))
                    await clients.cancel((await clients.decide(rows)).id)
                    return await clients.status()

            assert asyncio.run(use_clients())["open_decisions"] == 0
            assert silo.party.decisions.count == 1 + 1 + 31


def test_a_call_that_waited_for_a_refused_message_is_answered(tmp_path, monkeypatch):
    """The next sync is planned even if the message, for which the call waited, was refused."""
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, Slow())
    silo.store.seconds = 0.5

    def refused(data, now):
        time.sleep(0.5)
        raise InputError("refused")

    monkeypatch.setattr(silo.party, "handle", refused)
    path = tmp_path / "s"
    with serving(Application(silo, path)), ThreadPoolExecutor(3) as pool:
        # The message waits for the sync of the first call; the second call waits for the message.
        first = pool.submit(Client(path).decide, ROWS, "ada")
        time.sleep(0.15)
        handled = pool.submit(silo.handle, b"")
        time.sleep(0.15)
        second = pool.submit(Client(path).decide, ROWS, "eve")
        assert first.result(10).learns and isinstance(handled.exception(10), InputError)
        assert second.result(10).learns


def test_a_server_that_is_closed_before_it_serves_returns_at_once(tmp_path):
    """A signal may end a silo before the thread of its server has started."""
    deployment = federation.Federation(federation.deployed())
    with Application(silo_of(deployment, MemoryStore()), tmp_path / "s") as application:
        pass
    application.serve_forever()


def test_a_call_after_the_files_are_closed_is_answered_by_the_next_process(tmp_path):
    deployment = federation.Federation(federation.deployed())
    path, client = tmp_path / "s", Client(tmp_path / "s", wait=20.0)
    silo = silo_of(deployment, SqliteStore(str(tmp_path / "state")))
    with serving(Application(silo, path)):
        assert client.decide(ROWS, "ada").learns
        silo.close()
        with pytest.raises(OSError, match="is stopping"):
            silo.decide(ROWS)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.decide, ROWS, "eve")
            time.sleep(0.3)
            assert not waiting.done()
            Path(path).unlink()
            restarted = silo_of(deployment, SqliteStore(str(tmp_path / "state")))
            with serving(Application(restarted, path)):
                assert waiting.result(20).learns and restarted.party.decisions.count == 2
    restarted.close()


# ---- snapshots -----------------------------------------------------------------------------------


def plan_of(kind):
    """Return the plan of a kind."""
    from test_deployment_membership import plan_of

    return small_plan(kind) if kind in OTHERS else plan_of(kind)


@pytest.mark.parametrize("kind", ["silo-ldp", "central", "secure-sum", "shuffle-vector", *OTHERS])
def test_a_restart_from_a_snapshot_equals_a_restart_from_all_writes(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(process_module, "WRITES_PER_SNAPSHOT", 7)
    deployment = federation.Federation(plan_of(kind))
    silo = silo_of(deployment, store := SqliteStore(str(tmp_path / "s")))
    rng = random.Random(5)
    for k in range(60):
        deployment.now += 20.0
        rows = [[rng.random() / 2, 0.1], [0.2, rng.random() / 2]]
        use(silo, rows, rng.random(), f"p{k % 40}", rng.random() < 0.8)
    assert silo._covered.position.number > 60 and silo.party._leaf_sums.any()
    everything, full = state_of(silo), silo_of(deployment, MemoryStore(list(store.writes())))
    assert state_of(full) == everything
    store.close()
    restarted = silo_of(deployment, SqliteStore(str(tmp_path / "s")))
    assert restarted._covered.position.number > 60 and state_of(restarted) == everything
    assert [restarted.party.report(k) for k in (1, 2)] == [full.party.report(k) for k in (1, 2)]
    restarted.close()
    last = silo_of(deployment, SqliteStore(str(tmp_path / "s")))
    assert last._covered.position == last.store.position and state_of(last) == everything
    last.close()


@pytest.mark.parametrize("kind", ["silo-ldp", *OTHERS])
def test_a_snapshot_that_is_not_this_silos_is_not_used(kind, tmp_path):
    deployment = federation.Federation(plan_of(kind))
    silo = silo_of(deployment, store := SqliteStore(str(tmp_path / "s")))
    for k in range(5):
        use(silo, ROWS, 0.5, f"p{k}")
    silo.close()
    everything = state_of(silo_of(deployment, store := SqliteStore(str(tmp_path / "s"))))
    for name in ("state", "leaf 0"):
        value = bytearray(store.snapshot()[name])
        value[-1] ^= 1
        whole = dict(store.snapshot())
        store.save_snapshot({name: bytes(value)})
        restarted = silo_of(deployment, store)
        assert restarted._covered.position.number == 0 and state_of(restarted) == everything
        store.save_snapshot(whole)
    store._db.execute("DELETE FROM writes WHERE kind = 'plan'")
    with pytest.raises(InputError, match=r"differs from its snapshot"):
        silo_of(deployment, store)
    store.close()


def test_a_snapshot_of_an_earlier_version_is_used():
    """An earlier snapshot lacks the attributes of subclasses, which had no snapshots."""
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, store := MemoryStore())
    silo.reward(silo.decide(ROWS, "ada").id, 0.5)
    silo.close()
    state = msgspec.msgpack.decode(store.snapshot()["state"][KEY_BYTES:])
    assert state.pop() == {} and len(state) == 10
    state = msgspec.msgpack.encode(state)
    seal = keyed_digest(silo.party._secret, _SNAPSHOT, deployment.plan.digest, state)
    store.save_snapshot({"state": seal + state})
    restarted = silo_of(deployment, store)
    assert restarted._covered.position == store.position and state_of(restarted) == state_of(silo)


def test_a_log_of_an_earlier_version_knows_its_persons():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, MemoryStore())
    silo.reward(silo.decide(ROWS, "ada").id, 0.5)
    old = [w for w in silo.store.writes() if w.kind not in ("subject", "subjects")]
    restarted = silo_of(deployment, MemoryStore(old))
    assert not restarted.decide(ROWS, "ada").learns and restarted.decide(ROWS, "eve").learns
    assert Write("subjects", "", b"written") in list(restarted.store.writes())


@pytest.mark.parametrize("kind", ["fed-dp-ope-stoch", "fed-svt"])
def test_a_log_of_an_earlier_version_knows_the_places_of_its_decisions(kind):
    """Decisions were stored without their places, and a silo with experts had no snapshot."""
    deployment = federation.Federation(plan_of(kind))
    deployment.now = deployment.plan.document.calendar.closes[2] - 50.0
    silo = silo_of(deployment, MemoryStore())
    ids = [use(silo, [[0.1 * k, 0.0]], 0.125 * k, ends=k % 2) for k in range(8)]
    old = []
    for kind, key, value in silo.store.writes():
        if kind == "decision":
            fields = msgspec.structs.astuple(msgspec.msgpack.decode(value, type=PlacedDecision))
            value = msgspec.msgpack.encode(Decided(*fields[:-1]))
        old.append(Write(kind, key, value))
    restarted = silo_of(deployment, store := MemoryStore(old))
    assert restarted.party._leaf_sums.tobytes() == silo.party._leaf_sums.tobytes()
    restarted.close()
    # An open decision keeps its place in a snapshot, and a new one takes the next place.
    restarted = silo_of(deployment, store)
    assert restarted._covered.position.number == len(old) and len(restarted.party._old_places) > 0
    for process in (silo, restarted):
        use(process, ROWS, 0.75)
        for name in ids[::2]:
            process.losses(name, [0.25, 0.5, 0.0])
    assert restarted.party._leaf_sums.tobytes() == silo.party._leaf_sums.tobytes()
    assert restarted.party.report(3) == silo.party.report(3) and not restarted.party._old_places


# ---- erasing -------------------------------------------------------------------------------------


def files_with(folder, content):
    """Return the names of the files of a folder that contain some bytes."""
    return [file.name for file in folder.iterdir() if content in file.read_bytes()]


class OnDisk(federation.Federation):
    """A federation of which silo0 is on disk."""

    def __init__(self, plan, folder):
        super().__init__(plan)
        self.folder = folder
        self.reopen()

    def reopen(self):
        """Open silo 0 again from its files."""
        self.ledgers["silo0"] = ledger = Ledger(str(self.folder / "ledger"))
        ledger.set_ceiling("records", 20.0, 1e-5)
        party = party_of(self.plan, "silo0", federation.secret("silo0"), ledger)
        store = SqliteStore(str(self.folder / "state"))
        self.add(SiloProcess(party, store, ledger, lambda: self.now))


@pytest.mark.parametrize("kind", ["silo-ldp", *OTHERS])
def test_erased_records_are_gone_from_the_disk_and_the_federation_goes_on(kind, tmp_path):
    """Search the files for marks in the records, before and after records are erased."""
    undisturbed = federation.Federation(plan_of(kind))
    deployment = OnDisk(undisturbed.plan, tmp_path)
    rng = random.Random(11)
    marks = [rng.random() / 3 for _ in range(200)]
    for world in (undisturbed, deployment):
        world.settle()
    closes = deployment.plan.document.calendar.closes
    erased_counts = []
    for release in (1, 2, 3):
        for world in (undisturbed, deployment):
            world.now = closes[release - 1] - 10.0
            for name in world.plan.silos:
                process = world.processes[name]
                for k in range(60 if name == "silo0" else 1):
                    use(process, [[marks[60 * (release - 1) + k], 0.125]], 0.375)
            world.now += 10.0
            world.settle()
        silo = deployment.processes["silo0"]
        if release == 2:
            # Records of release 1 are old enough, those of release 2 are not.
            keep, erased_id = deployment.now - (closes[0] + 1.0), next(iter(silo.party.decisions))
            erased_counts.append(silo.erase(keep))
            for k, mark in enumerate(marks[:120]):
                stored = np.float64(mark).tobytes()
                assert bool(files_with(tmp_path, stored)) == (k >= 60), (k, mark)
            silo.close()
            deployment.reopen()
            deployment.settle()
    assert erased_counts == [60]
    for name in deployment.plan.silos:
        ours, theirs = deployment.processes[name].party, undisturbed.processes[name].party
        assert ours.model.release == 3 and (ours.model.theta == theirs.model.theta).all()
    silo = deployment.processes["silo0"]
    assert erased_counts == [60] and silo.store.erased > 100
    first = erased_id
    for call in (lambda: learn(silo, first, ROWS, 0.5), lambda: silo.cancel(first)):
        with pytest.raises(InputError, match="was erased"):
            call()
    silo.close()


def file_size_after_releases(folder, after_release, kind="silo-ldp"):
    """Return the size of the file of silo0 after 80 records in each release.

    `after_release`, if it is not None, is called after each release.
    """
    folder.mkdir()
    deployment = OnDisk(plan_of(kind), folder)
    deployment.settle()
    for close in deployment.plan.document.calendar.closes:
        deployment.now = close - 10.0
        for name in deployment.plan.silos:
            process = deployment.processes[name]
            for _ in range(80 if name == "silo0" else 1):
                use(process, ROWS, 0.375)
        deployment.now += 10.0
        deployment.settle()
        if after_release:
            after_release(deployment)
    deployment.processes["silo0"].close()
    return (folder / "state").stat().st_size


def test_the_file_uses_the_room_of_erased_records_again(tmp_path):
    erased = file_size_after_releases(
        tmp_path / "a", lambda deployment: deployment.processes["silo0"].erase(-1.0)
    )
    assert erased < 0.7 * file_size_after_releases(tmp_path / "b", None)


def test_calls_go_on_while_records_are_erased(tmp_path):
    deployment = OnDisk(federation.deployed(), tmp_path)
    deployment.settle()
    silo, stop, failed = deployment.processes["silo0"], threading.Event(), []

    def calls():
        """Decide and reward until the test stops this thread; note an error."""
        while not stop.is_set():
            try:
                silo.reward(silo.decide(ROWS).id, 0.375)
            except Exception as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    erased = 0
    for close in deployment.plan.document.calendar.closes:
        deployment.now = float(close)
        deployment.settle()
        for _ in range(10):
            erased += silo.erase(-1.0)
            time.sleep(0.02)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failed and erased > 100
    silo.close()


@pytest.mark.parametrize("kind", ["silo-ldp", *OTHERS])
def test_a_kill_while_records_are_erased_leaves_all_or_none(kind, tmp_path):
    """Kill the process at each SQL statement that erasing runs."""

    class Killed(BaseException):
        pass

    kills = [0]

    def erase_with_kills(deployment):
        """Erase records, killed before each statement of SQL in turn."""
        silo = deployment.processes["silo0"]
        before, names = state_of(silo), set(silo.party.decisions)
        for stop in range(20):
            statements_left = [stop]

            def traced(statement, statements_left=statements_left):
                """Count down the statements of SQL, and raise Killed at the last."""
                if statements_left[0] == 0:
                    raise Killed
                statements_left[0] -= 1

            db = silo.store._db

            class Counted:
                def __getattr__(self, name, db=db):
                    return getattr(db, name)

                def execute(self, sql, *rest, db=db):
                    traced(sql)
                    return db.execute(sql, *rest)

                def executemany(self, sql, rows, db=db):
                    traced(sql)
                    return db.executemany(sql, rows)

            silo.store._db = Counted()
            try:
                silo.erase(-1.0)
            except Killed:
                kills[0] += 1
                silo.store._db = db
                silo.store.close()
                deployment.ledgers["silo0"].close()
                deployment.reopen()
                silo = deployment.processes["silo0"]
                assert state_of(silo) == before
                # What is there is whole: each decision has its end, and no end lacks its decision.
                assert set(silo.party.ended) == set(silo.party.decisions)
            else:
                silo.store._db = db
                break
        assert len(list(silo.party.ended)) <= 1 and state_of(silo) == before
        # What a killed process had erased is in no file either.
        erased = names - set(silo.party.decisions)
        content = b"".join(file.read_bytes() for file in deployment.folder.iterdir())
        assert len(erased) >= 79 and not any(name.encode() in content for name in erased)
        deployment.settle()

    file_size_after_releases(tmp_path / "a", erase_with_kills, kind)
    assert kills[0] > 12


def test_an_overdue_decision_ends_when_its_record_is_erased():
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, MemoryStore())
    overdue, known = silo.decide(ROWS, "ada"), silo.decide(ROWS, "eve")
    silo.reward(known.id, 0.5)
    deadline = deployment.plan.document.calendar.reward_deadline
    deployment.now += deadline + 100.0
    fresh = silo.decide(ROWS, "bob")
    assert silo.erase(50.0) == 0 and silo.party.ended[overdue.id].why == "expired"
    # A late reward is dropped, as without erasing; the other reward waits for its release.
    silo.reward(overdue.id, 0.5)
    assert silo.party.ended[known.id].leaf and fresh.id not in silo.party.ended
    assert silo.erase(-1.0) == 0 and len(silo.party.ended) == 2


def test_records_that_a_later_release_rounds_again_are_not_erased():
    """Nor are earlier decisions, because noise depends on the number of a record's decision."""
    deployment = federation.Federation(plan_of("shuffle-vector"))
    silo = deployment.processes["silo0"]
    silo.cancel(silo.decide([[0.5, 0.1]]).id)
    silo.reward(silo.decide([[0.5, 0.1]]).id, 0.5)
    report = silo.party.report(1)
    assert silo.erase(-1.0) == 0 and silo.party.report(1) == report
    deployment.now = deployment.plan.document.calendar.closes[0] + 1.0
    deployment.settle()
    assert silo.party.model.release >= 1 and silo.erase(-1.0) == 0


def test_losses_of_an_overdue_decision_that_has_expired_are_dropped():
    deployment = federation.Federation(plan_of("fed-svt"))
    silo = silo_of(deployment, MemoryStore())
    name = silo.decide().id
    deployment.now += deployment.plan.document.calendar.reward_deadline + 100.0
    assert silo.erase(50.0) == 0 and silo.party.ended[name].why == "expired"
    silo.losses(name, [0.25, 0.5, 0.75])
    assert not silo.party._leaf_sums.any()


# ---- kill -9 under load --------------------------------------------------------------------------


@pytest.mark.slow
def test_kills_under_load_lose_and_double_nothing(tmp_path):
    """Kill a silo while 16 clients decide and reward; then read all that they were answered."""
    import serving as load

    rounds = int(os.environ.get("FASTFED_KILLS", "5"))
    folder, library = load.made_silo(tmp_path / "agent"), load.slow_sync(tmp_path)
    answered, rewarded, failed = {}, set(), []
    stop = threading.Event()

    def client(number):
        """Decide and reward until the test stops; note what was answered."""
        rng = np.random.default_rng(number)
        with Client(folder / "silo.sock", wait=60.0) as silo:
            k = 0
            while not stop.is_set():
                rows = rng.uniform(-0.3, 0.3, (10, load.D))
                try:
                    decision = silo.decide(rows, f"{number}-{k}")
                    answered[decision.id] = (f"{number}-{k}", decision)
                    silo.reward(decision.id, 0.5)
                    rewarded.add(decision.id)
                except Exception as error:
                    failed.append(error)
                    return
                k += 1

    threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
    for kill in range(rounds):
        # Every second process has a slow disk, whose syncs overlap.
        with load.running(folder, 3.0 * (kill % 2), library) as (process, _):
            if not kill:
                for thread in threads:
                    thread.start()
            time.sleep(random.Random(kill).uniform(0.2, 0.8))
            if kill == rounds - 1:
                stop.set()
                for thread in threads:
                    thread.join(60)
            else:
                process.kill()
                process.wait()
    assert not failed, failed[0]
    silo = folders.opened(folder)
    party = silo.party
    assert len(answered) > 50
    for name, (_, decision) in answered.items():
        stored = party.decisions[name]
        assert (stored.action, stored.learns) == (decision.action, decision.learns)
    assert all(party.ended[name].reward == 0.5 for name in rewarded)
    print(f"{rounds} kills: {len(answered)} decisions and {len(rewarded)} rewards were answered")
    # Each person has one decision and is learned from once: a repeated call counts once.
    assert party.decisions.count == len(answered)
    assert all(decision.learns for _, decision in answered.values())
    # A start from the snapshot and a start from all writes give the same bits.
    full = folders.silo_of(party.deployed, party.name, party._secret, silo.ledger)
    full.attach(silo.store)
    for write in silo.store.writes():
        full.fold(write)
    assert (full._leaf_sums == party._leaf_sums).all() and silo._covered.position.number
    silo.close()
