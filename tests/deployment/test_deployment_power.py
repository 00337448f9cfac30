"""Tests of overlapping syncs: answered calls survive power cuts and failed syncs."""

import errno
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("httptools")

import federation
import serving as load
from python_syncs import PythonSyncThreads
from test_deployment_doors import serving
from test_deployment_history import ROWS, silo_of, state_of

from fastfed import InputError
from fastfed.deployment import application as application_module
from fastfed.deployment import process as process_module
from fastfed.deployment import store as store_module
from fastfed.deployment.application import Application
from fastfed.deployment.client import Client
from fastfed.deployment.shell import Dialer
from fastfed.deployment.store import MemoryStore, SqliteStore, SyncFailed
from fastfed.deployment.syncs import SyncThreads


class Held:
    """A replacement of the function that syncs a file: each sync waits until it is released."""

    def __init__(self, monkeypatch):
        self.begun, self.gates, self.errors = [], [], {}
        monkeypatch.setattr(store_module, "_sync_content", self)

    def __call__(self, descriptor):
        number, gate = len(self.begun), threading.Event()
        self.gates.append(gate)
        self.begun.append(descriptor)
        assert gate.wait(20)
        if number in self.errors:
            raise self.errors[number]

    def reached(self, count):
        """Wait until a number of syncs have begun; return True if no more begin soon."""
        end = time.monotonic() + 10
        while len(self.begun) < count and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(0.05)
        return len(self.begun) == count

    def release(self, number):
        """Let a sync continue."""
        self.gates[number].set()


@pytest.fixture
def silo(tmp_path):
    """Return a silo whose state is in a file."""
    deployment = federation.Federation(federation.deployed())
    silo = silo_of(deployment, SqliteStore(str(tmp_path / "state")))
    yield silo
    with suppress(OSError):
        silo.close()


@pytest.fixture
def slow(monkeypatch):
    """Make an application treat disks as slow, and sync by the function that `Held` replaces."""
    monkeypatch.setattr(Application, "fast", 0.0)
    monkeypatch.setattr(application_module, "SyncThreads", PythonSyncThreads)


def test_a_call_waits_for_a_sync_that_began_after_its_commit(silo, tmp_path, monkeypatch, slow):
    """Syncs may end in any order. A decision is not visible before it is durable."""
    path, ids = tmp_path / "s", [f"{k:016x}" for k in range(3)]
    with serving(Application(silo, path)), ThreadPoolExecutor(8) as pool:
        held = Held(monkeypatch)

        def decide(k):
            """Ask for decision k in a thread."""
            request = {"actions": ROWS, "subject": f"p{k}", "id": ids[k]}
            return pool.submit(Client(path).call, "decide", **request)

        first = decide(0)
        assert held.reached(1)
        # The syncs of the second and third call begin while the sync of the first runs.
        second = decide(1)
        assert held.reached(2)
        third = decide(2)
        assert held.reached(3)
        assert len(set(held.begun)) == 3, "each sync has a descriptor to itself"
        # Decision 1 is in the log, but not durable: no other call sees it; a repeated call waits.
        repeated = decide(1)
        assert silo.store.value("decision", ids[1]) is None and silo.party.decisions.count == 0
        assert not any(one.done() for one in (first, second, third, repeated))
        # The second sync covers the first call, and not the third one.
        held.release(1)
        assert second.result(10)["learns"] and first.result(10)["learns"]
        time.sleep(0.1)
        assert not third.done() and list(silo.party.decisions) == ids[:2]
        assert repeated.result(10) == second.result()
        held.release(0)
        time.sleep(0.1)
        assert not third.done()
        held.release(2)
        assert third.result(10)["learns"]
        monkeypatch.undo()
    assert list(silo.party.decisions) == ids


def test_calls_in_a_process_share_a_sync_only_if_it_begins_later(silo, monkeypatch):
    held = Held(monkeypatch)
    with ThreadPoolExecutor(process_module.MAX_SYNCS + 3) as pool:
        calls = []
        for k in range(process_module.MAX_SYNCS):
            calls.append(pool.submit(silo.decide, ROWS, f"p{k}"))
            assert held.reached(k + 1)
        # All syncs that may run do run: the next calls wait, and then share one.
        late = [pool.submit(silo.decide, ROWS, f"late{k}") for k in range(3)]
        assert held.reached(process_module.MAX_SYNCS)
        held.release(0)
        assert calls[0].result(10).learns and held.reached(process_module.MAX_SYNCS + 1)
        for k in range(1, process_module.MAX_SYNCS):
            held.release(k)
        assert all(call.result(10).learns for call in calls)
        assert not any(one.done() for one in late)
        held.release(process_module.MAX_SYNCS)
        assert all(one.result(10).learns for one in late)


def test_threads_sync_files_and_report_each_error(tmp_path):
    threads = SyncThreads(3)
    files = [os.open(tmp_path / str(k), os.O_RDWR | os.O_CREAT) for k in range(40)]
    read, write = os.pipe()
    try:
        for file in (*files, read):
            threads.begin(file)
        ended = []
        while len(ended) < 41:
            select.select([threads.fileno()], [], [], 20.0)
            ended += threads.ended()
        assert threads.ended() == []
    finally:
        threads.close()
    assert sorted(file for file, _, _ in ended) == sorted([*files, read])
    errors = {file: error for file, error, _ in ended}
    assert errors.pop(read) == errno.EINVAL and set(errors.values()) == {0}
    assert all(0.0 < seconds < 60.0 for _, _, seconds in ended)
    for file in (*files, read, write):
        os.close(file)


def test_a_failed_sync_in_a_thread_fails_calls_and_the_silo_still_closes(
    silo, tmp_path, monkeypatch
):
    """The threads' own sync fails, on a descriptor that cannot be synced."""
    monkeypatch.setattr(Application, "fast", 0.0)
    read, write = os.pipe()
    with serving(Application(silo, tmp_path / "s")):
        client = Client(tmp_path / "s", wait=0.0)
        assert client.call("decide", actions=ROWS, subject="a")["learns"]
        silo.store._descriptors = [read]
        for _ in range(2):
            with pytest.raises(OSError, match=r"a sync to disk failed \(Invalid argument\)"):
                client.call("decide", actions=ROWS, subject="b")
    assert silo.party.decisions.count == 1
    os.close(write)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_sync_fails_all_calls_in_the_log(failing, silo, tmp_path, monkeypatch, slow):
    """A later sync does not repair the failure; only a new process that reads the file does."""
    path, ids = tmp_path / "s", [f"{k:016x}" for k in range(3)]
    known = silo.decide(ROWS, "known", id="f" * 16)
    before = state_of(silo)
    with serving(Application(silo, path)), ThreadPoolExecutor(8) as pool:
        held = Held(monkeypatch)
        held.errors[failing] = OSError(errno.EIO, "Input/output error")

        def decide(k):
            """Ask for decision k in a thread."""
            request = {"actions": ROWS, "subject": f"p{k}", "id": ids[k]}
            return pool.submit(Client(path, wait=0.0).call, "decide", **request)

        calls = [decide(0)]
        assert held.reached(1)
        calls.append(decide(1))
        assert held.reached(2)
        held.release(failing)

        def check_failure(call):
            """Check that a call fails by the sync, and does not report that nothing was stored."""
            with pytest.raises(OSError, match=r"a sync to disk failed .*restart") as raised:
                call.result(10)
            assert "nothing was stored" not in str(raised.value)

        for call in calls:
            check_failure(call)
        held.release(1 - failing)
        for k in (0, 2):
            check_failure(decide(k))
        assert held.reached(2), "a store that has failed syncs no more"
        assert state_of(silo) == before and silo.party.decisions.count == 1
        for store in (lambda: silo.tick(), lambda: silo.leave(), lambda: silo.store.sync()):
            with pytest.raises(SyncFailed):
                store()
        with pytest.raises(SyncFailed):
            Dialer(silo, "http://127.0.0.1:9").run(threading.Event(), say=lambda text: None)
        # What is durable can still be read.
        assert silo.decide(ROWS, "known", id="f" * 16) == known
        monkeypatch.undo()
    silo.close()
    deployment = federation.Federation(silo.party.deployed)
    restarted = silo_of(deployment, SqliteStore(str(tmp_path / "state")))
    decisions = [restarted.decide(ROWS, f"p{k}", id=ids[k]) for k in range(3)]
    assert all(one.learns for one in decisions) and restarted.party.decisions.count == 4
    restarted.close()


def test_a_snapshot_covers_only_what_is_durable(silo, monkeypatch):
    monkeypatch.setattr(process_module, "WRITES_PER_SNAPSHOT", 1)
    held = Held(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        calls = []
        for k in range(3):
            calls.append(pool.submit(silo.decide, ROWS, f"p{k}"))
            assert held.reached(k + 1)
        held.release(0)
        calls[0].result(10)
        covered = silo._covered.position
        assert covered.number == silo.store._durable < silo.store.position.number
        # Restart from this snapshot and from the writes that one more sync would have saved.
        copy = MemoryStore(list(SqliteStore.read(silo.store.path).writes()))
        copy.save_snapshot(silo.store.snapshot())
        copy_state = state_of(silo_of(federation.Federation(silo.party.deployed), copy))
        for k in (1, 2):
            held.release(k)
            calls[k].result(10)
    assert state_of(silo) == copy_state


def test_the_log_is_copied_to_the_file_while_calls_go_on(silo, monkeypatch):
    monkeypatch.setattr(store_module, "WRITES_BEFORE_TIDY", 20)
    path = silo.store.path
    size = os.path.getsize(path)
    for k in range(60):
        silo.reward(silo.decide(ROWS, f"p{k}").id, 0.5)
    assert os.path.getsize(path) > size
    # The write-ahead log is restarted from its beginning several times.
    assert os.path.getsize(f"{path}-wal") < 100 * 4120
    assert len(list(silo.store.writes())) > 180


# ---- a power cut at any moment -------------------------------------------------------------------

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
/* Records writes, truncations, syncs and answers in their order: (kind, file, offset, length). */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int out = -1;
static __thread int inside;
#define REAL(type, name) type(*real)() = (type(*)())dlsym(RTLD_NEXT, name)
static int file_of(int fd) {
    char link[64], path[4096], *state = getenv("RECORDED");
    size_t size = state == NULL ? 0 : strlen(state);
    strcpy(link, "/proc/self/fd/");
    char *end = link + 14, digits[16];
    int n = 0;
    do { digits[n++] = '0' + fd % 10; fd /= 10; } while (fd);
    while (n) *end++ = digits[--n];
    *end = 0;
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (size == 0 || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, state, size)) return 0;
    return !strcmp(path + size, "") ? 1 : !strcmp(path + size, "-wal") ? 2 : 0;
}
static void record(int64_t kind, int64_t file, int64_t offset, const void *data, int64_t length) {
    REAL(ssize_t, "write");
    int64_t head[4] = {kind, file, offset, length};
    if (out < 0) out = open(getenv("RECORD"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (real(out, head, sizeof head) < 0) abort();
    if (length && real(out, data, (size_t)length) < 0) abort();
}
static ssize_t noted(const char *name, int fd, const void *data, size_t size, off_t offset) {
    REAL(ssize_t, name);
    int file = file_of(fd);
    if (!file) return real(fd, data, size, offset);
    pthread_mutex_lock(&turn);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) record(1, file, offset, data, done);
    pthread_mutex_unlock(&turn);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return noted("pwrite", fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t offset) {
    return noted("pwrite64", fd, data, size, offset);
}
static int noted_truncate(const char *name, int fd, off_t size) {
    REAL(int, name);
    int file = file_of(fd);
    pthread_mutex_lock(&turn);
    int failed = real(fd, size);
    if (file && !failed) record(2, file, size, NULL, 0);
    pthread_mutex_unlock(&turn);
    return failed;
}
int ftruncate(int fd, off_t size) { return noted_truncate("ftruncate", fd, size); }
int ftruncate64(int fd, off_t size) { return noted_truncate("ftruncate64", fd, size); }
static int noted_sync(const char *name, int fd) {
    static int64_t syncs;
    REAL(int, name);
    int file = file_of(fd);
    if (!file) return real(fd);
    pthread_mutex_lock(&turn);
    int64_t number = ++syncs;
    record(3, file, number, NULL, 0);
    pthread_mutex_unlock(&turn);
    usleep((useconds_t)(500 + number * 7919 % 5000));
    int failed = real(fd);
    pthread_mutex_lock(&turn);
    if (!failed) record(4, file, number, NULL, 0);
    pthread_mutex_unlock(&turn);
    return failed;
}
int fsync(int fd) { return noted_sync("fsync", fd); }
int fdatasync(int fd) { return noted_sync("fdatasync", fd); }
ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(ssize_t, "send");
    if (getenv("RECORDED") != NULL && size > 12 && !memcmp(data, "HTTP/1.1 200", 12)) {
        pthread_mutex_lock(&turn);
        record(5, 0, 0, data, (int64_t)size);
        pthread_mutex_unlock(&turn);
    }
    return real(fd, data, size, flags);
}
"""

#: Runs a silo whose log is short, so that the log restarts often; argument 2 names a fault.
RUN = """
import sys, fastfed.deployment.application as application, fastfed.deployment.store as store
store.WRITES_BEFORE_TIDY, store.WAL_PAGES = 60, 150
if sys.argv[2] in ("unsynced", "joined"):
    sys.path.append(sys.argv[3])
    from python_syncs import PythonSyncThreads
    application.SyncThreads = PythonSyncThreads
if sys.argv[2] == "unsynced":
    store._sync_content = lambda descriptor: None
if sys.argv[2] == "joined":
    # A call joins the sync that runs, although it began before the call's commit. With few calls
    # in a sync, many join.
    import os, threading
    application.Application.few = 1
    running, ended = [False], threading.Condition()
    def joined(descriptor):
        with ended:
            if running[0]:
                ended.wait()
                return
            running[0] = True
        os.fdatasync(descriptor)
        with ended:
            running[0] = False
            ended.notify_all()
    store._sync_content = joined
from fastfed.cli import main
sys.argv = ["fastfed", "silo", sys.argv[1], "--hub", "http://127.0.0.1:9"]
main()
"""


def recorded_load(tmp_path, fault, seconds):
    """Load a silo with 8 clients; return its folder and the events (kind, file, offset, data)."""
    folder = load.made_silo(tmp_path / "agent")
    source, library, log = tmp_path / "r.c", tmp_path / "r.so", tmp_path / "events"
    source.write_text(RECORDER)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-w", "-o", library, source, "-ldl",
                    "-lpthread"], check=True)  # fmt: skip
    before = {name: (folder / name).read_bytes() for name in ("state.sqlite",)}
    environment = os.environ | {"LD_PRELOAD": str(library), "RECORD": str(log),
                                "RECORDED": str(folder / "state.sqlite")}  # fmt: skip
    command = [sys.executable, "-c", RUN, folder, fault, os.path.dirname(__file__)]
    silo = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    path, end = folder / "silo.sock", time.monotonic() + 60
    while not path.exists() and silo.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    try:
        load.loaded(load.load_program(tmp_path), path, 8, seconds)
    finally:
        silo.kill()
        silo.communicate()
    events, data, place = [], log.read_bytes(), 0
    while place + 32 <= len(data):
        kind, file, offset, length = struct.unpack_from("=4q", data, place)
        events.append((kind, file, offset, data[place + 32 : place + 32 + length]))
        place += 32 + length
    return folder, before["state.sqlite"], events


def apply_change(content, kind, offset, data):
    """Apply a change of a file to its content: a write at an offset, or (kind 2) a truncation."""
    if kind == 2:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    else:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


class Disk:
    """A model of a disk: synced content of each file, and writes that a power cut may lose."""

    def __init__(self, database):
        self.durable = {1: bytearray(database), 2: bytearray()}
        self.unsynced, self.begun = {1: [], 2: []}, {}

    def event(self, kind, file, offset, data):
        """Record a write (kind 1), a truncation (2), or begin (3) or end (4) of sync `offset`."""
        if kind in (1, 2):
            self.unsynced[file].append((kind, offset, data))
        elif kind == 3:
            # A sync makes durable what was written before it began.
            self.begun[offset] = list(self.unsynced[file])
        elif kind == 4:
            for change in self.begun.pop(offset):
                if change in self.unsynced[file]:
                    self.unsynced[file].remove(change)
                    apply_change(self.durable[file], *change)

    def after_power_cut(self, file, rng, share):
        """Return a file's content after a random share of the unsynced sectors was written."""
        content = bytearray(self.durable[file])
        for kind, offset, data in self.unsynced[file]:
            if kind == 2:
                if rng.random() < share:
                    apply_change(content, kind, offset, data)
                continue
            for start in range(0, len(data), 512):
                if rng.random() < share:
                    apply_change(content, 1, offset + start, data[start : start + 512])
        return bytes(content)


def cut_power(tmp_path, before, events, moments):
    """Cut the power after random answers (events of kind 5), whose decisions must not be lost.

    Return the answered decisions that are lost (or errors), the number of answered decisions, and
    the number of power cuts.
    """
    rng, disk, answered = random.Random(3), Disk(before), {}
    answers = [k for k, event in enumerate(events) if event[0] == 5]
    cuts = set(rng.sample(answers, min(moments, len(answers))))
    lost, cut_count, folder = [], 0, tmp_path / "cut"
    folder.mkdir(exist_ok=True)
    for number, event in enumerate(events):
        if event[0] != 5:
            disk.event(*event)
            continue
        body = event[3].partition(b"\r\n\r\n")[2]
        name = load.json.loads(body).get("id")
        if name is not None:
            answered[name] = number
        if number not in cuts:
            continue
        for share in (0.0, 0.5, 1.0):
            for file, suffix in ((1, ""), (2, "-wal")):
                (folder / f"state.sqlite{suffix}").write_bytes(
                    disk.after_power_cut(file, rng, share)
                )
            (folder / "state.sqlite-shm").unlink(missing_ok=True)
            cut_count += 1
            try:
                store = SqliteStore(str(folder / "state.sqlite"))
                decisions = {w.key for w in store.writes() if w.kind == "decision"}
                store.close()
            except (InputError, OSError) as error:
                lost.append(str(error))
                continue
            lost += [one for one in answered if one not in decisions]
    return lost, len(answered), cut_count


@pytest.mark.skipif(
    sys.platform != "linux" or not shutil.which(os.environ.get("CC", "cc")),
    reason="records system calls by LD_PRELOAD",
)
@pytest.mark.parametrize("fault", ["", "unsynced", "joined"])
def test_a_power_cut_loses_nothing_that_was_answered(fault, tmp_path):
    """Unsynced writes are lost, kept or torn, also while the log restarts at its beginning."""
    _, before, events = recorded_load(tmp_path, fault, 1.0)
    # A call that joins a sync is lost only if the power is cut before the next sync.
    lost, answered, tries = cut_power(tmp_path, before, events, 150 if fault == "joined" else 25)
    kinds = [(kind, file) for kind, file, *_ in events]
    headers = sum(e[:3] == (1, 2, 0) for e in events)
    print(f"{answered} decisions answered, {len(lost)} lost in {tries} power cuts; "
          f"{kinds.count((4, 2))} syncs of the log, {headers} starts of it")  # fmt: skip
    assert answered > 20 and tries > 60
    if fault:
        assert lost
    else:
        assert not lost, lost[:3]
        # Syncs did overlap, and the log was started again.
        running, most = 0, 0
        for kind, file, *_ in events:
            running += (kind == 3) - (kind == 4) if file == 2 else 0
            most = max(most, running)
        assert most > 1 and headers > 2
