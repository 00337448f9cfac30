"""A store stays readable however a run ends, and the same command finishes the run."""

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

# A run of this spec makes 120 commits, some milliseconds each.
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
    """Start the command, and kill its process group after `moment` seconds.

    Return whether the command was still running.
    """
    child = start("run", path, "-o", out, *options)
    with suppress(subprocess.TimeoutExpired):
        child.wait(moment)
        child.communicate()
        return False
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    return True


def count_cells(out: Path) -> int:
    """Return how many cells `fastfed.load` reads from a folder; 0 if it has no store yet."""
    if not (out / FILE).exists():
        return 0
    return sum(len(c.replicates) for c in fastfed.load(out).curves)


def kill_and_resume(path: Path, folder: Path, kills: int, seed: int, *options: object) -> list[int]:
    """Kill `kills` runs at random moments and resume each; return the number of cells each had."""
    assert command("run", path, "-o", folder / "straight").exit_code == 0
    expected = final_files(folder / "straight")
    child, begun = start("run", path, "-o", folder / "timed", *options), time.perf_counter()
    _, errors = child.communicate()
    seconds = time.perf_counter() - begun
    assert child.returncode == 0, errors
    assert final_files(folder / "timed") == expected
    draw, stored_cells = random.Random(seed), []
    while len(stored_cells) < kills:
        out = folder / f"killed-{len(stored_cells)}"
        if not killed_run(path, out, draw.uniform(0.1, seconds), *options):
            shutil.rmtree(out)
            continue
        stored_cells.append(count_cells(out))
        child = start("run", path, "-o", out, *options)
        _, errors = child.communicate()
        assert child.returncode == 0, errors
        assert final_files(out) == expected, f"kill {len(stored_cells)} of seed {seed}"
    return stored_cells


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


def test_an_unfinished_commit_is_rolled_back(tmp_path):
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


def test_files_left_by_a_killed_process_are_removed(path, tmp_path):
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
    e = experiment_from_spec(read_spec(path))
    with open_store(e, out):
        second = start("run", path, "-o", out)
        printed, errors = second.communicate()
        assert (second.returncode, printed) == (2, "")
        assert errors.startswith(f"error: {out} is being written by process {os.getpid()} on ")
        assert len(errors.splitlines()) == 1
        with pytest.raises(fastfed.InputError, match="is being written"):
            fastfed.run(e, out)  # another writer in the same process is refused as well
        assert len(fastfed.load(out).curves) == 4  # reading is free
        assert command("results", out).exit_code == 0
        assert command("report", out).exit_code == 0
    assert content(out / FILE) == before
    assert not (out / LOCK).exists()


def read_spec(path: Path):
    """Return the spec in a file."""
    from fastfed.simulation.experiment import read_toml

    return read_toml(path)


def test_a_lock_ends_with_its_process(path, tmp_path):
    path.write_text(SPEC.format(horizon=10**6))
    out = tmp_path / "out"
    first = start("run", path, "-o", out)
    while not (out / FILE).exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = command("run", path, "-o", out)
    assert second.exit_code == 2 and f"process {first.pid} on" in second.stderr
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert (out / LOCK).exists()  # a killed process cannot remove its lock
    with open_store(experiment_from_spec(read_spec(path)), out):
        pass
    assert not (out / LOCK).exists()


def test_three_runs_at_once_leave_the_files_of_one(path, tmp_path):
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
    """Run with files limited to `limit` kB; return its last error line and its number of cells.

    Check that the same command then finishes the run without the limit.
    """
    import resource

    child = start(
        "run", path, "-o", out, *options,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit << 10, limit << 10)),
    )  # fmt: skip
    _, errors = child.communicate()
    assert child.returncode == 1, errors
    assert "Traceback" not in errors
    stored_cells = count_cells(out)
    resumed = command("run", path, "-o", out, *options)
    assert resumed.exit_code == 0, resumed.output
    command("run", path, "-o", straight, *options)
    assert final_files(out) == final_files(straight)
    return errors.splitlines()[-1], stored_cells


@pytest.mark.parametrize("limit", [2, 60])
def test_a_full_disk_gets_a_sentence_and_keeps_finished_cells(limit, path, tmp_path):
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
        assert 0 < count_cells(out) < 120
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


def test_a_store_locked_by_another_program_is_refused_with_its_name(tmp_path, monkeypatch):
    """Use a reader that stays inside a transaction, which blocks every commit."""
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
