"""Runs that go on from a snapshot have the bits of runs that were never stopped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import problems
import pytest

from fastfed._kernels import driver
from fastfed.environments import FixedSet, Sphere
from fastfed.results.store import Store
from fastfed.simulation import compiled, run, snapshots
from fastfed.simulation.dispatch import Interrupted
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.snapshots import Snapshot

HORIZON = 61

CURVES = [
    *[problems.curve(p, batch_size=b, lazy=lazy)
      for p in ("none", "silo-ldp", "silo-ldp-prefix", "central", "shuffle-amplified",
                "shuffle-vector")
      for b, lazy in ((1, False), (7, True), (7, False))],
    *[problems.curve("silo-ldp", release=r, batch_size=5) for r in ("honaker", "toeplitz")],
    problems.curve("central", batch_size="growing", reward_centre=0.5, tie_bonus=0.5),
    problems.curve("central", batch_size="growing", sieve=0.1),
    problems.curve("silo-ldp", batch_size=5, bonus=0.3, ledger=0.5),
    problems.curve("local", sieve=0.0, radius_multiplier=1.5),
    problems.curve("central", batch_size=5, share={"until": 30}),
    problems.curve("central", batch_size=5, share={"until": 40, "fraction": 0.5}),
    problems.curve("local"),
    *[problems.curve(a, batch_size=6) for a in problems.AGENTS],
    {"label": "random", "algorithm": "random"},
    {"label": "feducb", "algorithm": "feducb", "epsilon": 1.0, "delta": 0.01},
    {"label": "feducb 2", "algorithm": "feducb", "epsilon": 9.0, "delta": 0.01,
     "schedule": "private-determinant"},
]  # fmt: skip


def one_curve(curve: dict, world=None, **sizes) -> Experiment:
    agent = curve["algorithm"].startswith("linucb")
    return make_experiment(
        name="part",
        environment=world or Sphere(dimension=3, actions=6),
        curves=[curve],
        **({"horizon": HORIZON, "silos": 1 if agent else 4, "replicates": 1, "seed": 3} | sizes),
    )


def opened(experiment: Experiment):
    """A fresh run of its first replicate, with the states of its curves."""
    plans = [c.system.plan for c in experiment.curves]
    states = [compiled.state(plan, len(experiment.checkpoints), False) for plan in plans]
    environment = experiment.curves[0].problem.open(experiment.seed, 0)
    made = driver.Run(
        environment, plans[0].silos, plans[0].horizon, experiment.checkpoints, states, 1
    )
    made.initialise()
    return made, states


@pytest.mark.parametrize("world", ["fresh", "fixed"])
@pytest.mark.parametrize("curve", CURVES, ids=lambda c: " ".join(map(str, c.values())))
def test_a_second_process_would_go_on_with_the_same_bits(
    curve: dict, world: str, tmp_path: Path
) -> None:
    """After any number of rounds: within a batch, at its end, before the first release."""
    made = FixedSet(dimension=3, actions=6) if world == "fixed" else None
    if "reward_centre" in curve:
        made = Sphere(dimension=3, actions=6, intercept=2.0)
    experiment = one_curve(curve, made)
    first, states = opened(experiment)
    first.simulate(1, HORIZON)
    whole = states[0]
    for at in (2, 7, 33):
        run_one, states = opened(experiment)
        run_one.simulate(1, at)
        snapshot = Snapshot(tmp_path / "one.npz", "this")
        snapshot.write(at, run_one.numbers(), states)
        run_two, states = opened(experiment)
        kept = snapshot.read(states, HORIZON)
        assert kept is not None and kept[0] == at
        run_two.resume(kept[1])
        run_two.simulate(at + 1, HORIZON)
        for name, value in whole.items():
            if isinstance(value, np.ndarray) and name not in snapshots.CACHES:
                np.testing.assert_array_equal(states[0][name], value, err_msg=name)
        np.testing.assert_array_equal(run_two.numbers(), first.numbers())


# ---- runs into an output folder ------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot after every call of the driver, and calls of a few rounds."""
    monkeypatch.setattr(snapshots, "EVERY", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)


def two_curves(horizon: int = 90) -> Experiment:
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="parts",
        environment=Sphere(dimension=3, actions=5),
        curves=[{"label": str(e), "epsilon": e, "batch_size": 4, **keys} for e in (1.0, 5.0)],
        horizon=horizon, silos=3, replicates=2, seed=8,
    )  # fmt: skip


def rows(folder: Path) -> list:
    with Store.open_existing(folder) as store:
        return store._db.execute("SELECT * FROM cells ORDER BY position, replicate").fetchall()


def stop_after(agent_rounds: int, heard: list[int]):
    def progress(more: int) -> None:
        heard.append(more)
        if sum(heard) > agent_rounds:
            raise Interrupted

    return progress


def took(path: Path, seconds: float) -> None:
    """Make a snapshot say that its part took so long."""
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(arrays.pop("about").tobytes())
    assert 0.0 < about["seconds"] < seconds
    about["seconds"] = seconds
    del about["digest"]
    about["digest"] = snapshots._digest(about, arrays)
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_run_goes_on_where_it_was_stopped(
    engine: str, tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "processes":
        monkeypatch.setattr("fastfed.simulation.engines.processes.EVERY", 0.0)
    experiment = two_curves()
    run.run(experiment, tmp_path / "whole", threads=1)
    with pytest.raises(Interrupted):
        run.run(experiment, tmp_path / "parts", threads=1, progress=stop_after(300, []))
    kept = list((tmp_path / "parts" / snapshots.FOLDER).iterdir())
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o777 == 0o600
    took(kept[0], 1000.0)
    heard: list[int] = []
    run.run(experiment, tmp_path / "parts", threads=1, engine=engine, progress=heard.append)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    # What it took before it was stopped counts too; the curves of a batch share it.
    with Store.open_existing(tmp_path / "parts") as store:
        (seconds,) = store._db.execute("SELECT max(seconds) FROM timings").fetchone()
    assert 1000.0 / 2 < seconds < 1000.0
    # All agent-rounds are heard, those of the snapshot at once.
    assert sum(heard) == 2 * 2 * 3 * 90 and max(heard) >= 300 - 2 * 3 * 90 // 4
    assert not (tmp_path / "parts" / snapshots.FOLDER).exists()


def damaged(path: Path, how: str) -> None:
    whole = bytearray(path.read_bytes())
    if how == "cut":
        del whole[len(whole) // 2 :]
    elif how == "flipped":
        whole[len(whole) // 3] ^= 4
    else:
        whole[:] = b""
    path.write_bytes(bytes(whole))


@pytest.mark.parametrize(
    "how", ["flipped", *[pytest.param(h, marks=pytest.mark.slow) for h in ("cut", "empty")]]
)
def test_a_damaged_snapshot_is_not_read(how: str, tmp_path: Path, often: None) -> None:
    experiment = two_curves()
    with pytest.raises(Interrupted):
        run.run(experiment, tmp_path, threads=1, progress=stop_after(300, []))
    (kept,) = (tmp_path / snapshots.FOLDER).iterdir()
    damaged(kept, how)
    heard: list[int] = []
    run.run(experiment, tmp_path, threads=1, progress=heard.append)
    assert heard[0] == 0 and sum(heard) == 2 * 2 * 3 * 90
    run.run(experiment, tmp_path / "whole", threads=1)
    assert rows(tmp_path) == rows(tmp_path / "whole")


def test_every_flipped_bit_of_a_snapshot_is_seen(tmp_path: Path) -> None:
    experiment = one_curve(CURVES[1])
    made, states = opened(experiment)
    made.simulate(1, 20)
    snapshot = Snapshot(tmp_path / "one.npz", "this")
    snapshot.write(20, made.numbers(), states)
    whole = snapshot.path.read_bytes()
    arrays = {name: a.copy() for name, a in snapshots.arrays_of(states).items()}
    _, fresh = opened(experiment)
    for at in range(0, len(whole), len(whole) // 150):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        snapshot.path.write_bytes(bytes(flipped))
        kept = snapshot.read(fresh, HORIZON)
        if kept is None:
            continue
        # Bits of the archive that mean nothing to whoever reads it: dates, attributes.
        assert kept[0] == 20
        np.testing.assert_array_equal(kept[1], made.numbers())
        for name, array in snapshots.arrays_of(fresh).items():
            np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_a_flipped_bit_of_a_header_is_seen(tmp_path: Path) -> None:
    """NumPy stops reading where the header says, before the archive has compared its sum."""
    snapshot = Snapshot(tmp_path / "s.npz", "this")
    arrays = {
        "numbers": np.arange(3.0)[None],
        "0.curve": np.arange(8.0),
        "1.history": np.ones(9999),
    }
    snapshot.keep(7, arrays)
    whole = snapshot.path.read_bytes()
    with zipfile.ZipFile(snapshot.path) as archive:
        members = archive.infolist()
    assert len(members) == 4
    missed = 0
    for member in members:
        name, extra = struct.unpack("<HH", whole[member.header_offset + 26 :][:4])
        first = member.header_offset + 30 + name + extra
        for at, bit in itertools.product(range(first, first + 12), range(8)):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            snapshot.path.write_bytes(bytes(flipped))
            with suppress(Exception), np.load(snapshot.path) as archive:
                missed += any(archive[n].tobytes() != arrays[n].tobytes() for n in arrays)
            kept = Snapshot(snapshot.path, "this").kept()
            assert kept is None or all(
                kept.arrays[n].tobytes() == arrays[n].tobytes() for n in arrays
            )
    assert missed  # by NumPy and the archive alone


def test_a_snapshot_of_another_batch_of_runs_is_not_read(tmp_path: Path) -> None:
    kept = snapshots.Snapshots.in_output(tmp_path, "digest")
    experiment = one_curve(CURVES[0])
    made, states = opened(experiment)
    kept.of(0, [0, 1]).write(1, made.numbers(), states)
    assert kept.of(0, [0, 1]).read(states, HORIZON) is not None
    assert kept.of(0, [0, 2]).read(states, HORIZON) is None
    assert kept.of(1, [0, 1]).read(states, HORIZON) is None
    assert kept.of(0, [0, 1]).read(states, 0) is None
    other = snapshots.Snapshots.in_output(tmp_path, "another")
    assert other.of(0, [0, 1]).read(states, HORIZON) is None
    bigger = one_curve(CURVES[0], Sphere(dimension=5, actions=6))
    assert kept.of(0, [0, 1]).read(opened(bigger)[1], HORIZON) is None


def test_what_was_read_is_not_written_again(tmp_path: Path, often: None) -> None:
    """A run that goes on keeps what it reaches, not what it began with."""
    experiment, kept = two_curves(), snapshots.Snapshots.in_output(tmp_path, "one")
    _, states = opened(experiment)
    kept.of(0, [0, 1]).write(30, np.zeros((2, 3)), states)
    one = kept.of(0, [0, 1])
    written = one.path.stat().st_ino
    assert one.read(states, HORIZON) is not None and one.due()
    one.write(30, np.zeros((2, 3)), states)
    assert one.path.stat().st_ino == written
    one.write(31, np.zeros((2, 3)), states)
    assert kept.of(0, [0, 1]).read(states, HORIZON)[0] == 31


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, often: None) -> None:
    """The folder of snapshots cannot be made."""
    (tmp_path / snapshots.FOLDER).write_text("in the way")
    found = run.run(two_curves(), tmp_path, threads=1)
    assert len(found.curves) == 2


@pytest.mark.slow
def test_killed_five_times(tmp_path: Path) -> None:
    """kill -9 in one long replicate: it ends all the same, with the bits of one that lived."""
    spec = tmp_path / "long.toml"
    spec.write_text(
        'name = "long"\nhorizon = 1600000\nsilos = 4\nreplicates = 1\ncheckpoints = 20\n'
        '[environment]\nkind = "sphere"\ndimension = 6\nactions = 20\n'
        '[[curve]]\nlabel = "one"\nalgorithm = "private-fedlinucb"\nprotocol = "central"\n'
        "epsilon = 1.0\ndelta = 1e-6\nbatch_size = 50\n"
    )
    code = (
        "import sys\nfrom fastfed.simulation import snapshots\nsnapshots.EVERY = 0.3\n"
        "snapshots.TIMES_OF_WRITING = 0.0\nfrom fastfed.cli import main\nmain()\n"
    )
    command = [sys.executable, "-c", code, "run", str(spec), "--threads", "1"]
    rounds = []
    for _ in range(5):
        with subprocess.Popen([*command, "-o", str(tmp_path / "killed")],
                              stdout=subprocess.DEVNULL) as child:  # fmt: skip
            until = time.monotonic() + 60.0
            folder = tmp_path / "killed" / snapshots.FOLDER
            seen = {p: p.stat().st_mtime_ns for p in folder.glob("*.npz")}
            while time.monotonic() < until and child.poll() is None:
                now = {p: p.stat().st_mtime_ns for p in folder.glob("*.npz")}
                if now and now != seen:
                    break
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
        rounds += [len(now)]
    assert rounds == [1] * 5
    for name in ("killed", "whole"):
        subprocess.run([*command, "-o", str(tmp_path / name)], check=True, capture_output=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert os.listdir(tmp_path / "killed") and not (tmp_path / "killed" / ".snapshots").exists()
