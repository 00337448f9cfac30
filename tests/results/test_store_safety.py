"""Whatever ends a run, its store can be read, and the same command finishes the rest."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from outputs import content, final_files
from test_cli import fastfed as command
from test_run import spec

import fastfed
from fastfed.results import store
from fastfed.results.files import LockHeld, exclusive, replace_file
from fastfed.results.store import FILE, LOCK, Store
from fastfed.simulation.experiment import experiment_from_spec
from fastfed.simulation.run import curve_rows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and locks of POSIX")

# A hundred and twenty commits of some milliseconds each.
SPEC = """
name = "killed"
horizon = {horizon}
silos = 5
replicates = 30
checkpoints = 10

[environment]
kind = "sphere"
dimension = 4
actions = 10

[[curve]]
label = "open"
algorithm = "fedlinucb"
batch_size = 10

[[curve]]
label = "LDP"
algorithm = "private-fedlinucb"
epsilon = [0.5, 1.5]
delta = 1e-5
batch_size = 10

[[curve]]
label = "triggered"
algorithm = "feducb"
epsilon = 1.0
delta = 1e-5
"""


def start(*args: object, **keys: object) -> subprocess.Popen[str]:
    """Start the command line in a process group that a test can signal."""
    return subprocess.Popen(
        [sys.executable, "-m", "fastfed", *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **keys,
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write the spec, and return its path."""
    actual = tmp_path / "s.toml"
    actual.write_text(SPEC.format(horizon=400))
    return actual


# ---- kill -9 ------------------------------------------------------------------------------------


def killed_run(path: Path, out: Path, moment: float, *options: object) -> bool:
    """Start the command, kill its process group in time; whether it was still running."""
    child = start("run", path, "-o", out, *options)
    with suppress(subprocess.TimeoutExpired):
        child.wait(moment)
        child.communicate()
        return False
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    return True


def readable(out: Path) -> int:
    """Return how many cells a folder holds, read as a reader does; 0 before there is a store."""
    if not (out / FILE).exists():
        return 0
    return sum(len(c.replicates) for c in fastfed.load(out).curves)


def kill_and_resume(path: Path, folder: Path, kills: int, seed: int, *options: object) -> list[int]:
    """Kill `kills` runs at random moments and finish each; return the cells that each kept."""
    assert command("run", path, "-o", folder / "straight").exit_code == 0
    expected = final_files(folder / "straight")
    child, begun = start("run", path, "-o", folder / "timed", *options), time.perf_counter()
    _, errors = child.communicate()
    whole = time.perf_counter() - begun
    assert child.returncode == 0, errors
    assert final_files(folder / "timed") == expected
    draw, kept = random.Random(seed), []
    while len(kept) < kills:
        out = folder / f"killed-{len(kept)}"
        if not killed_run(path, out, draw.uniform(0.1, whole), *options):
            shutil.rmtree(out)
            continue
        kept.append(readable(out))
        child = start("run", path, "-o", out, *options)
        _, errors = child.communicate()
        assert child.returncode == 0, errors
        assert final_files(out) == expected, f"kill {len(kept)} of seed {seed}"
    return kept


def test_a_kill_and_a_resume_leave_the_same_files(path, tmp_path):
    kill_and_resume(path, tmp_path, 1, 1)


@pytest.mark.slow
def test_twenty_kills_and_resumes_leave_the_same_files(path, tmp_path):
    path.write_text(SPEC.format(horizon=4000))
    kept = kill_and_resume(path, tmp_path, 20, 2)
    assert any(0 < n < 120 for n in kept)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "dask"])
def test_kills_of_all_processes_of_an_engine(engine, path, tmp_path):
    if engine == "dask":
        pytest.importorskip("distributed")
    path.write_text(SPEC.format(horizon=4000))
    kill_and_resume(path, tmp_path, 4, 3, "--engine", engine)


def test_a_commit_that_died_halfway_is_taken_back(tmp_path):
    """Use the files of an unfinished commit, which no kill produces reliably."""
    out = tmp_path / "out"
    e = experiment_from_spec(spec())
    whole = fastfed.run(e, out)
    before = content(out / FILE)
    dead = tmp_path / "dead"
    dead.mkdir()
    with sqlite3.connect(out / FILE) as db:
        db.execute("PRAGMA cache_size = 1")  # pages go to the disk before the commit
        db.execute("UPDATE cells SET group_regret = zeroblob(50000), bits_up = zeroblob(50000)")
        for name in (FILE, f"{FILE}-journal"):
            shutil.copy(out / name, dead / name)
        db.rollback()
    assert (dead / FILE).stat().st_size > (out / FILE).stat().st_size
    loaded = fastfed.load(dead)
    assert [c.group_regret.tolist() for c in loaded.curves] == [
        c.group_regret.tolist() for c in whole.curves
    ]
    assert content(dead / FILE) == before
    assert [p.name for p in dead.iterdir()] == [FILE]


def test_what_a_killed_process_leaves_behind_is_used_up(path, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name in (LOCK, f".{FILE}.new", ".report.html.new", ".table.csv.new"):
        (out / name).write_text("half a fi")
    assert command("run", path, "-o", out, "--replicates", 1).exit_code == 0
    assert not [p.name for p in out.iterdir() if p.name.startswith(".")]


# ---- two processes ------------------------------------------------------------------------------


def open_store(e, folder):
    """Create or resume the store of an experiment."""
    meta = {"identity": e.identity(), "rounds": e.checkpoints.tolist(), "figure": {}}
    return Store.create_or_resume(folder, meta, curve_rows(e))


def test_a_second_process_is_refused_with_folder_and_process(path, tmp_path):
    out = tmp_path / "out"
    assert command("run", path, "-o", out, "--replicates", 1).exit_code == 0
    before = content(out / FILE)
    e = experiment_from_spec(fastfed_spec(path))
    with open_store(e, out):
        second = start("run", path, "-o", out)
        printed, errors = second.communicate()
        assert (second.returncode, printed) == (2, "")
        assert errors.startswith(f"error: {out} is being written by process {os.getpid()} on ")
        assert len(errors.splitlines()) == 1
        with pytest.raises(fastfed.InputError, match="is being written"):
            fastfed.run(e, out)  # another thread of one process is another writer too
        assert len(fastfed.load(out).curves) == 4  # reading is free
        assert command("results", out).exit_code == 0
        assert command("report", out).exit_code == 0
    assert content(out / FILE) == before
    assert not (out / LOCK).exists()


def fastfed_spec(path: Path):
    """Return the spec in a file."""
    from fastfed.simulation.experiment import read_toml

    return read_toml(path)


def test_the_lock_goes_with_its_process(path, tmp_path):
    path.write_text(SPEC.format(horizon=10**6))
    out = tmp_path / "out"
    first = start("run", path, "-o", out)
    while not (out / FILE).exists():
        assert first.poll() is None
        time.sleep(0.02)
    again = command("run", path, "-o", out)
    assert again.exit_code == 2 and f"process {first.pid} on" in again.stderr
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert (out / LOCK).exists()  # nobody was there to remove it
    with open_store(experiment_from_spec(fastfed_spec(path)), out):
        pass
    assert not (out / LOCK).exists()


def test_many_at_once_play_no_cell_twice(path, tmp_path):
    out = tmp_path / "out"
    children = [start("run", path, "-o", out) for _ in range(3)]
    ends = [(child.communicate()[1], child.returncode) for child in children]
    assert any(code == 0 for _, code in ends)
    for errors, code in ends:
        assert code in (0, 2) and "Traceback" not in errors
        assert code == 0 or "is being written" in errors
    command("run", path, "-o", tmp_path / "straight")
    assert final_files(out) == final_files(tmp_path / "straight")


def test_the_lock_is_held_by_one_at_a_time(tmp_path):
    lock, inside, most, errors = tmp_path / "lock", 0, 0, []

    def hold() -> None:
        """Take the lock fifty times, and note how many hold it."""
        nonlocal inside, most
        try:
            for _ in range(50):
                with exclusive(lock, wait=True):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(1e-4)
                    inside -= 1
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, errors) == (1, [])
    assert not lock.exists()
    with exclusive(lock), pytest.raises(LockHeld, match=f"{os.getpid()} on "), exclusive(lock):
        pass


# ---- disks --------------------------------------------------------------------------------------


def run_into_limit(
    limit: int, path: Path, out: Path, straight: Path, *options: str
) -> tuple[str, int]:
    """Run with files that may not grow beyond `limit` kB; return what it prints and has stored.

    Check that without the limit the same command then finishes the run.
    """
    import resource

    child = start(
        "run", path, "-o", out, *options,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit << 10, limit << 10)),
    )  # fmt: skip
    _, errors = child.communicate()
    assert child.returncode == 1, errors
    assert "Traceback" not in errors
    kept = readable(out)
    again = command("run", path, "-o", out, *options)
    assert again.exit_code == 0, again.output
    command("run", path, "-o", straight, *options)
    assert final_files(out) == final_files(straight)
    return errors.splitlines()[-1], kept


@pytest.mark.parametrize("limit", [2, 60])
def test_a_full_disk_is_a_sentence_and_keeps_what_was_played(limit, path, tmp_path):
    out = tmp_path / "out"
    last, kept = run_into_limit(limit, path, out, tmp_path / "straight")
    assert last.startswith(f"error: {out / FILE} cannot be written (")
    assert kept == 0 if limit == 2 else 0 < kept < 120


@pytest.mark.parametrize(
    ("name", "limit", "words", "options"),
    [("report.html", 130, 600, ()), ("figure.png", 50, 1, ("--format", "png"))],
)
def test_a_disk_that_is_full_when_the_report_is_written(
    path, tmp_path, name, limit, words, options
):
    """Limit the file size so that the report, the largest file, does not fit."""
    out = tmp_path / "out"
    spec = path.read_text().replace("replicates = 30", "replicates = 1")
    notes = ["word " * words] * 20
    path.write_text(f"{spec}\n[figure]\nnote = {notes}\n")
    last, kept = run_into_limit(limit, path, out, tmp_path / "straight", *options)
    assert last.startswith(f"error: {out / name} cannot be written (")
    assert kept == 4


def test_a_full_file_system(path, tmp_path):
    """Repeat the check on a file system that is really full, if one can be mounted."""
    disk, out = tmp_path / "disk", tmp_path / "disk" / "out"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        first = start("run", path, "-o", out)
        _, errors = first.communicate()
        assert first.returncode == 1, errors
        last = errors.splitlines()[-1]
        assert last.startswith(f"error: {out / FILE} cannot be written (") and "is full" in last
        assert "the same command continues" in last
        assert 0 < readable(out) < 120
        assert sorted(p.name for p in out.iterdir()) == [FILE]
        subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)
        again = start("run", path, "-o", out)
        _, errors = again.communicate()
        assert again.returncode == 0, errors
        command("run", path, "-o", tmp_path / "straight")
        assert final_files(out) == final_files(tmp_path / "straight")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "page.html"
    replace_file(file, b"old")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    monkeypatch.undo()
    threads = [
        threading.Thread(target=replace_file, args=(file, bytes([i]) * 200_000)) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    actual = file.read_bytes()
    assert len(actual) == 200_000 and len(set(actual)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def broken(descriptor: int) -> None:
    """Fail as a full disk does."""
    import errno

    raise OSError(errno.ENOSPC, "No space left on device")


READER = """
import sqlite3, sys
held = sqlite3.connect(sys.argv[1])
held.execute("BEGIN")
held.execute("SELECT * FROM meta").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_store_that_another_program_holds_is_a_sentence_with_its_name(tmp_path, monkeypatch):
    """Keep a reader inside a transaction, which blocks every commit."""
    monkeypatch.setattr(store, "LOCK_SECONDS", 0.5)
    small = tmp_path / "spec.toml"
    small.write_text(SPEC.format(horizon=50))
    out = tmp_path / "out"
    fastfed.run(small, out, replicates=1)
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(out / FILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        reader.stdout.readline()
        with pytest.raises(store.StoreLocked, match="close it there and run again") as error:
            fastfed.run(small, out, replicates=1, threads=1)
        assert str(out / FILE) in str(error.value)
        if sys.platform == "linux":
            assert f"process {reader.pid} (python" in str(error.value)
        reader.stdin.close()
    assert fastfed.run(small, out, replicates=1)
