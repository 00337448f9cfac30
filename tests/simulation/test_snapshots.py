"""Check that runs which continue from a snapshot have the same bits as uninterrupted runs."""

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

import fastfed
from fastfed._kernels import driver
from fastfed.environments import Arms, FixedSet, Sphere
from fastfed.results.store import Store
from fastfed.simulation import compiled, snapshots
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
    problems.curve("central", batch_size=5, delay={"kind": "geometric", "mean": 9}),
    problems.curve("none", batch_size=5, lazy=False,
                   delay={"kind": "uniform", "low": 0, "high": 20}),
    problems.curve("local", delay={"kind": "constant", "rounds": 8}),
    problems.curve("silo-ldp", release="factorised", batch_size=5,
                   clock={"rates": [0.3], "asleep": [[1, 20, 40]]}),
    problems.curve("none", batch_size=5, clock={"rates": [0.3, 0.7]}),
    *[problems.curve(a, batch_size=6) for a in problems.AGENTS],
    {"label": "random", "algorithm": "random"},
    {"label": "arms", "algorithm": "thompson", "batch_size": 7},
    {"label": "arms", "algorithm": "fedlinucb", "batch_size": 7},
    {"label": "arms", "algorithm": "fedlinucb", "batch_size": 7, "lazy": False},
    {"label": "arms", "algorithm": "private-fedlinucb", "epsilon": 4.0, "delta": 0.01},
    {"label": "feducb", "algorithm": "feducb", "epsilon": 1.0, "delta": 0.01},
    {"label": "feducb 2", "algorithm": "feducb", "epsilon": 9.0, "delta": 0.01,
     "schedule": "private-determinant"},
]  # fmt: skip


def one_curve(curve: dict, environment=None, **sizes) -> Experiment:
    """Return an experiment with one curve, on a sphere or on ``environment``."""
    is_single_agent = curve["algorithm"].startswith("linucb")
    return make_experiment(
        name="part",
        environment=environment or Sphere(dimension=3, actions=6),
        curves=[curve],
        **(
            {"horizon": HORIZON, "silos": 1 if is_single_agent else 4, "replicates": 1, "seed": 3}
            | sizes
        ),
    )


def new_run(experiment: Experiment):
    """Return a new run of the first replicate and the states of its curves."""
    plans = [curve.system.plan for curve in experiment.curves]
    states = [compiled.state(plan, len(experiment.checkpoints), False) for plan in plans]
    environment = experiment.curves[0].problem.open(experiment.seed, 0)
    opened_run = driver.Run(
        environment, plans[0].silos, plans[0].horizon, experiment.checkpoints, states, 1
    )
    opened_run.initialise()
    return opened_run, states


@pytest.mark.parametrize("environment_name", ["fresh", "fixed"])
@pytest.mark.parametrize("curve", CURVES, ids=lambda c: " ".join(map(str, c.values())))
def test_a_new_run_continues_from_a_snapshot_with_the_same_bits(
    curve: dict, environment_name: str, tmp_path: Path
) -> None:
    """Take snapshots within a batch, at its end, and before the first release."""
    environment = FixedSet(dimension=3, actions=6) if environment_name == "fixed" else None
    if "reward_centre" in curve:
        environment = Sphere(dimension=3, actions=6, intercept=2.0)
    if curve["label"] == "arms":
        environment = Arms(actions=6)
    experiment = one_curve(curve, environment)
    full_run, states = new_run(experiment)
    full_run.simulate(1, HORIZON)
    full_state = states[0]
    for snapshot_round in (2, 7, 33):
        interrupted_run, states = new_run(experiment)
        interrupted_run.simulate(1, snapshot_round)
        snapshot = Snapshot(tmp_path / "one.npz", "this")
        snapshot.write(snapshot_round, interrupted_run.numbers(), states)
        continued_run, states = new_run(experiment)
        loaded = snapshot.read(states, HORIZON)
        assert loaded is not None and loaded[0] == snapshot_round
        continued_run.resume(loaded[1])
        continued_run.simulate(snapshot_round + 1, HORIZON)
        for name, value in full_state.items():
            if isinstance(value, np.ndarray) and name not in snapshots.CACHES:
                np.testing.assert_array_equal(states[0][name], value, err_msg=name)
        np.testing.assert_array_equal(continued_run.numbers(), full_run.numbers())


# ---- runs into an output folder ------------------------------------------------------------------


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a snapshot after every call of the driver; each call simulates a few rounds."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)


def two_curves(horizon: int = 90) -> Experiment:
    """Return an experiment with two curves of different epsilon."""
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="parts",
        environment=Sphere(dimension=3, actions=5),
        curves=[{"label": str(e), "epsilon": e, "batch_size": 4, **keys} for e in (1.0, 5.0)],
        horizon=horizon, silos=3, replicates=2, seed=8,
    )  # fmt: skip


def stored_rows(folder: Path) -> list:
    """Return all rows of the table of results."""
    with Store.open_existing(folder) as store:
        return store._db.execute("SELECT * FROM cells ORDER BY position, replicate").fetchall()


def stop_after(agent_rounds: int, reported: list[int]):
    """Return a progress function that interrupts the run after this number of agent-rounds."""

    def progress(new_rounds: int) -> None:
        """Interrupt the run after this number of rounds."""
        reported.append(new_rounds)
        if sum(reported) > agent_rounds:
            raise Interrupted

    return progress


def set_seconds(path: Path, seconds: float) -> None:
    """Change a snapshot to say that its batch took this time."""
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(arrays.pop("about").tobytes())
    assert 0.0 < about["seconds"] < seconds
    about["seconds"] = seconds
    del about["digest"]
    about["digest"] = snapshots._digest(about, arrays)
    np.savez(path, about=np.frombuffer(json.dumps(about).encode(), np.uint8), **arrays)


@pytest.mark.parametrize("engine", ["local", "processes"])
def test_an_interrupted_run_continues_from_its_snapshot(
    engine: str, tmp_path: Path, frequent_snapshots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if engine == "processes":
        monkeypatch.setattr("fastfed.simulation.engines.processes.PROGRESS_SECONDS", 0.0)
    experiment = two_curves()
    fastfed.run(experiment, tmp_path / "whole", threads=1)
    with pytest.raises(Interrupted):
        fastfed.run(experiment, tmp_path / "parts", threads=1, progress=stop_after(300, []))
    snapshot_files = list((tmp_path / "parts" / snapshots.FOLDER).iterdir())
    assert len(snapshot_files) == 1 and snapshot_files[0].stat().st_mode & 0o777 == 0o600
    set_seconds(snapshot_files[0], 1000.0)
    reported: list[int] = []
    fastfed.run(experiment, tmp_path / "parts", threads=1, engine=engine, progress=reported.append)
    assert stored_rows(tmp_path / "parts") == stored_rows(tmp_path / "whole")
    # The time before the interruption counts, too; the curves of a batch share it.
    with Store.open_existing(tmp_path / "parts") as store:
        (seconds,) = store._db.execute("SELECT max(seconds) FROM timings").fetchone()
    assert 1000.0 / 2 < seconds < 1000.0
    # Progress reports all agent-rounds; those of the snapshot are reported at once.
    assert sum(reported) == 2 * 2 * 3 * 90 and max(reported) >= 300 - 2 * 3 * 90 // 4
    assert not (tmp_path / "parts" / snapshots.FOLDER).exists()


def damage(path: Path, kind: str) -> None:
    """Truncate, alter or empty the file."""
    content = bytearray(path.read_bytes())
    if kind == "cut":
        del content[len(content) // 2 :]
    elif kind == "flipped":
        content[len(content) // 3] ^= 4
    else:
        content[:] = b""
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    "kind", ["flipped", *[pytest.param(h, marks=pytest.mark.slow) for h in ("cut", "empty")]]
)
def test_a_damaged_snapshot_is_ignored(kind: str, tmp_path: Path, frequent_snapshots: None) -> None:
    experiment = two_curves()
    with pytest.raises(Interrupted):
        fastfed.run(experiment, tmp_path, threads=1, progress=stop_after(300, []))
    (snapshot_file,) = (tmp_path / snapshots.FOLDER).iterdir()
    damage(snapshot_file, kind)
    reported: list[int] = []
    fastfed.run(experiment, tmp_path, threads=1, progress=reported.append)
    assert reported[0] == 0 and sum(reported) == 2 * 2 * 3 * 90
    fastfed.run(experiment, tmp_path / "whole", threads=1)
    assert stored_rows(tmp_path) == stored_rows(tmp_path / "whole")


def test_every_flipped_bit_of_a_snapshot_is_detected(tmp_path: Path) -> None:
    experiment = one_curve(CURVES[1])
    opened_run, states = new_run(experiment)
    opened_run.simulate(1, 20)
    snapshot = Snapshot(tmp_path / "one.npz", "this")
    snapshot.write(20, opened_run.numbers(), states)
    content = snapshot.path.read_bytes()
    arrays = {name: a.copy() for name, a in snapshots.arrays_of(states).items()}
    _, new_states = new_run(experiment)
    for position in range(0, len(content), len(content) // 150):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        snapshot.path.write_bytes(bytes(flipped))
        loaded = snapshot.read(new_states, HORIZON)
        if loaded is None:
            continue
        # Other bits of the archive, such as dates and attributes, do not matter.
        assert loaded[0] == 20
        np.testing.assert_array_equal(loaded[1], opened_run.numbers())
        for name, array in snapshots.arrays_of(new_states).items():
            np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_a_flipped_bit_of_a_header_is_detected(tmp_path: Path) -> None:
    """NumPy reads only as far as the header says, before the checksum is compared."""
    snapshot = Snapshot(tmp_path / "s.npz", "this")
    arrays = {
        "numbers": np.arange(3.0)[None],
        "0.curve": np.arange(8.0),
        "1.history": np.ones(9999),
    }
    snapshot.keep(7, arrays)
    content = snapshot.path.read_bytes()
    with zipfile.ZipFile(snapshot.path) as archive:
        members = archive.infolist()
    assert len(members) == 4
    missed_by_numpy = 0
    for member in members:
        name, extra = struct.unpack("<HH", content[member.header_offset + 26 :][:4])
        first = member.header_offset + 30 + name + extra
        for position, bit in itertools.product(range(first, first + 12), range(8)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            snapshot.path.write_bytes(bytes(flipped))
            with suppress(Exception), np.load(snapshot.path) as archive:
                missed_by_numpy += any(
                    archive[key].tobytes() != arrays[key].tobytes() for key in arrays
                )
            loaded = Snapshot(snapshot.path, "this").kept()
            assert loaded is None or all(
                loaded.arrays[key].tobytes() == arrays[key].tobytes() for key in arrays
            )
    assert missed_by_numpy  # NumPy and the archive alone miss some flipped bits


def test_a_snapshot_of_another_batch_is_ignored(tmp_path: Path) -> None:
    saved_snapshots = snapshots.Snapshots.in_output(tmp_path, "digest")
    experiment = one_curve(CURVES[0])
    opened_run, states = new_run(experiment)
    saved_snapshots.of(0, [0, 1]).write(1, opened_run.numbers(), states)
    assert saved_snapshots.of(0, [0, 1]).read(states, HORIZON) is not None
    assert saved_snapshots.of(0, [0, 2]).read(states, HORIZON) is None
    assert saved_snapshots.of(1, [0, 1]).read(states, HORIZON) is None
    assert saved_snapshots.of(0, [0, 1]).read(states, 0) is None
    other_snapshots = snapshots.Snapshots.in_output(tmp_path, "another")
    assert other_snapshots.of(0, [0, 1]).read(states, HORIZON) is None
    bigger_experiment = one_curve(CURVES[0], Sphere(dimension=5, actions=6))
    assert saved_snapshots.of(0, [0, 1]).read(new_run(bigger_experiment)[1], HORIZON) is None


def test_a_snapshot_is_not_written_again_at_the_same_round(
    tmp_path: Path, frequent_snapshots: None
) -> None:
    """Check that a continued run writes only later snapshots."""
    experiment, saved_snapshots = two_curves(), snapshots.Snapshots.in_output(tmp_path, "one")
    _, states = new_run(experiment)
    saved_snapshots.of(0, [0, 1]).write(30, np.zeros((2, 3)), states)
    snapshot = saved_snapshots.of(0, [0, 1])
    inode = snapshot.path.stat().st_ino
    assert snapshot.read(states, HORIZON) is not None and snapshot.due()
    snapshot.write(30, np.zeros((2, 3)), states)
    assert snapshot.path.stat().st_ino == inode
    snapshot.write(31, np.zeros((2, 3)), states)
    assert saved_snapshots.of(0, [0, 1]).read(states, HORIZON)[0] == 31


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, frequent_snapshots: None) -> None:
    """The snapshot folder cannot be created."""
    (tmp_path / snapshots.FOLDER).write_text("in the way")
    results = fastfed.run(two_curves(), tmp_path, threads=1)
    assert len(results.curves) == 2


@pytest.mark.slow
def test_a_run_that_is_killed_five_times_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Kill a process with SIGKILL during one long replicate."""
    spec = tmp_path / "long.toml"
    spec.write_text(
        'name = "long"\nhorizon = 1600000\nsilos = 4\nreplicates = 1\ncheckpoints = 20\n'
        '[environment]\nkind = "sphere"\ndimension = 6\nactions = 20\n'
        '[[curve]]\nlabel = "one"\nalgorithm = "private-fedlinucb"\nprotocol = "central"\n'
        "epsilon = 1.0\ndelta = 1e-6\nbatch_size = 50\n"
    )
    code = (
        "import sys\nfrom fastfed.simulation import snapshots\nsnapshots.SNAPSHOT_SECONDS = 0.3\n"
        "snapshots.TIMES_OF_WRITING = 0.0\nfrom fastfed.cli import main\nmain()\n"
    )
    command = [sys.executable, "-c", code, "run", str(spec), "--threads", "1"]
    snapshot_counts = []
    for _ in range(5):
        with subprocess.Popen([*command, "-o", str(tmp_path / "killed")],
                              stdout=subprocess.DEVNULL) as child:  # fmt: skip
            deadline = time.monotonic() + 60.0
            folder = tmp_path / "killed" / snapshots.FOLDER
            times_before = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
            while time.monotonic() < deadline and child.poll() is None:
                times_now = {path: path.stat().st_mtime_ns for path in folder.glob("*.npz")}
                if times_now and times_now != times_before:
                    break
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
        snapshot_counts += [len(times_now)]
    assert snapshot_counts == [1] * 5
    for name in ("killed", "whole"):
        subprocess.run([*command, "-o", str(tmp_path / name)], check=True, capture_output=True)
    assert stored_rows(tmp_path / "killed") == stored_rows(tmp_path / "whole")
    assert os.listdir(tmp_path / "killed") and not (tmp_path / "killed" / ".snapshots").exists()
