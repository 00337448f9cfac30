"""Snapshots of workers that die, and of workers of a cluster that do not see the output folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_snapshots import rows, stop_after, two_curves

from fastfed.environments import Sphere
from fastfed.simulation import compiled, run, snapshots
from fastfed.simulation.dispatch import Interrupted, RunBatch
from fastfed.simulation.engines import processes
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.snapshots import Snapshots

distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")

from fastfed.simulation.engines import dask as engine  # noqa: E402
from fastfed.simulation.engines import dask_snapshots  # noqa: E402


def long(horizon: int = 400_000, replicates: int = 1) -> Experiment:
    """Some seconds of one replicate."""
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="long", environment=Sphere(dimension=6, actions=20),
        curves=[{"label": "one", "epsilon": 1.0, "batch_size": 50, **keys}],
        horizon=horizon, silos=4, replicates=replicates, seed=8, checkpoints=20,
    )  # fmt: skip


def apart(every: float = 0.1) -> None:
    """At a worker: snapshots often, and the output folder is on another machine."""
    from fastfed.simulation import snapshots
    from fastfed.simulation.engines import dask, dask_snapshots

    snapshots.EVERY, snapshots.TIMES_OF_WRITING = every, 0.0
    dask.EVERY = 0.05
    if every:
        dask_snapshots.Place.seen = lambda self: False  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def threads():
    """A cluster of threads of this process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(snapshots, "EVERY", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)
    monkeypatch.setattr(engine, "EVERY", 0.0)


@pytest.mark.parametrize("seen", [True, False])
def test_dask_goes_on_where_a_run_was_stopped(seen, threads, often, tmp_path, monkeypatch):
    """With the client's snapshots; the folder is left as after a run that was not stopped."""
    e, at = two_curves(), threads.scheduler_address
    monkeypatch.setattr(dask_snapshots.Place, "seen", lambda self: seen)
    run.run(e, tmp_path / "whole", threads=1)
    with pytest.raises(Interrupted):
        run.run(e, tmp_path / "part", threads=1, progress=stop_after(300, []))
    brought = []
    into = snapshots.Kept.into
    monkeypatch.setattr(
        snapshots.Kept,
        "into",
        lambda kept, states: brought.append(kept.round) or into(kept, states),
    )
    run.run(e, tmp_path / "part", engine="dask", scheduler=at)
    assert len(brought) == 1 and brought[0] >= 40
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")
    assert not (tmp_path / "part" / snapshots.FOLDER).exists()
    assert not threads.scheduler.tasks
    assert not [name for name in threads.scheduler.task_metadata if str(name).startswith("fastfed")]
    assert not [name for name in threads.scheduler.worker_plugins if name.startswith("fastfed")]


def test_what_workers_send_is_written_and_is_enough(threads, often, tmp_path, monkeypatch):
    e, at = two_curves(400), threads.scheduler_address
    monkeypatch.setattr(dask_snapshots.Place, "seen", lambda self: False)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 0.002)
    run.run(e, tmp_path / "whole", threads=1)
    left: list[Path] = []
    store = dask_snapshots.store

    def stored(path: Path, write: Any) -> None:
        store(path, write)
        if path.suffix == ".npz":
            assert path.stat().st_mode & 0o777 == 0o600
            left.append(path)
            (tmp_path / "kept").mkdir(exist_ok=True)
            shutil.copy(path, tmp_path / "kept" / path.name)

    monkeypatch.setattr(dask_snapshots, "store", stored)
    # Whoever is as quick as this is over before the client comes to take anything.
    simulate = compiled.run_rounds

    def slowly(run, first, last, rounds_per_call=None, progress=None):
        def heard(rounds):
            time.sleep(0.01)
            progress(rounds)

        simulate(run, first, last, 20, heard)

    monkeypatch.setattr(compiled, "run_rounds", slowly)
    run.run(e, tmp_path / "sent", engine="dask", scheduler=at)
    assert rows(tmp_path / "sent") == rows(tmp_path / "whole")
    assert left
    monkeypatch.setattr(compiled, "run_rounds", simulate)
    (tmp_path / "part" / snapshots.FOLDER).mkdir(parents=True)
    for path in (tmp_path / "kept").iterdir():
        shutil.copy(path, tmp_path / "part" / snapshots.FOLDER)
    heard: list[int] = []
    run.run(e, tmp_path / "part", threads=1, progress=heard.append)
    assert max(heard) >= 2 * 3 * 20
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")


def test_a_snapshot_too_large_to_send_is_not_made(monkeypatch):
    said: list[Any] = []
    worker = SimpleNamespace(address="there", log_event=lambda *event: said.append(event))
    place = dask_snapshots.Place(Snapshots(Path("nowhere"), "d"), "mark", "topic")
    desk = dask_snapshots.Desk()
    one = dask_snapshots.AtWorker(place, desk, worker).of(0, [3])
    one.keep(5, {"a": np.zeros(10)})
    assert list(desk.held) == [dask_snapshots.key_of(RunBatch(0, (3,)))] and len(said) == 1
    monkeypatch.setattr(dask_snapshots, "MOST_SENT", 100)
    one.drop()
    one.begun = -1e9
    assert one.due()
    one.keep(6, {"a": np.zeros(1000)})
    one.begun = -1e9
    assert not desk.held and len(said) == 1 and not one.due() and not one.worth()


# ---- processes that are killed -------------------------------------------------------------------


def test_a_killed_process_goes_on_from_its_snapshot(tmp_path, monkeypatch):
    """Engine "processes": another worker begins where the snapshot is."""
    e, heard = long(400_000), []
    pids: list[int] = []
    worker = processes.Worker

    class Watched(worker):  # type: ignore[misc, valid-type]
        def __init__(self, *given):
            super().__init__(*given)
            pids.append(self.process.pid)

    monkeypatch.setattr(processes, "Worker", Watched)
    monkeypatch.setattr(processes, "serve", often_serve)
    # Workers find `often_serve` by its module's name; last, so that the installed package is first.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    folder = tmp_path / "killed" / snapshots.FOLDER

    def kill() -> None:
        until = time.monotonic() + 60.0
        while time.monotonic() < until and round_of(folder) < 1000:
            time.sleep(0.005)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    run.run(e, tmp_path / "killed", engine="processes", threads=1, progress=heard.append)
    killer.join()
    assert len(pids) == 2
    lost = heard.index(min(heard))
    assert heard[lost] < 0 and sum(heard) == 4 * 400_000
    # What the second one says first is what the snapshot has.
    assert heard[lost + 1] >= 4 * 1000
    run.run(e, tmp_path / "whole", threads=1)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")


def round_of(folder: Path) -> int:
    """The round of the snapshot in a folder, 0 where there is none."""
    for path in folder.glob("*.npz"):
        with np.load(path) as kept:
            return int(json.loads(kept["about"].tobytes())["round"])
    return 0


def often_serve(*given: Any) -> None:
    """A worker that writes snapshots often."""
    snapshots.EVERY, snapshots.TIMES_OF_WRITING = 0.1, 0.0
    compiled.CALL_SECONDS = 0.01
    processes.EVERY = 0.0
    processes.serve(*given)


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two processes that see no output folder."""
    # They need not find this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):  # fmt: skip
        client.run(apart)
        yield started, client


def until_there(folder: Path, round: int = 0, running: Any = lambda: True) -> None:
    """Wait for a snapshot of a later round; an earlier one would be of a run begun again."""
    until = time.monotonic() + 90.0
    while time.monotonic() < until and running():
        found = round_of(folder)
        assert not 0 < found < round
        if found > round:
            return
        time.sleep(0.005)
    raise AssertionError("no snapshot came")


@pytest.mark.slow
def test_a_dask_worker_is_killed_and_another_goes_on(cluster, tmp_path):
    started, client = cluster
    e, heard = long(), []
    folder = tmp_path / "killed" / snapshots.FOLDER

    def kill() -> None:
        until_there(folder)
        time.sleep(0.5)
        (busy,) = [a for a, tasks in client.processing().items() if tasks]
        client.run(os._exit, 9, workers=[busy], on_error="ignore")

    killer = threading.Thread(target=kill)
    killer.start()
    run.run(
        e, tmp_path / "killed", engine="dask", scheduler=started.scheduler_address,
        progress=heard.append,
    )  # fmt: skip
    killer.join()
    run.run(e, tmp_path / "whole", threads=1)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert sum(heard) == 4 * 400_000
    # Said as less than before, but not from the first round on: at most some snapshots' distance.
    lost = min(heard)
    assert lost > -4 * 400_000 / 4
    client.wait_for_workers(2, timeout=60)
    client.run(apart)


@pytest.mark.slow
def test_the_client_of_a_cluster_is_killed_three_times(cluster, tmp_path):
    started, _ = cluster
    spec = tmp_path / "long.toml"
    spec.write_text(
        'name = "long"\nhorizon = 500000\nsilos = 4\nreplicates = 1\ncheckpoints = 20\n'
        '[environment]\nkind = "sphere"\ndimension = 6\nactions = 20\n'
        '[[curve]]\nlabel = "one"\nalgorithm = "private-fedlinucb"\nprotocol = "central"\n'
        "epsilon = 1.0\ndelta = 1e-6\nbatch_size = 50\n"
    )
    command = [sys.executable, "-m", "fastfed", "run", str(spec)]
    there = ["--engine", "dask", "--scheduler", started.scheduler_address]
    folder = tmp_path / "killed" / snapshots.FOLDER
    rounds = [0]
    for _ in range(3):
        with subprocess.Popen(
            [*command, "-o", str(tmp_path / "killed"), *there],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as child:  # fmt: skip
            until_there(folder, rounds[-1], lambda child=child: child.poll() is None)
            child.send_signal(signal.SIGKILL)
        rounds.append(round_of(folder))
    for name, more in (("killed", there), ("whole", ["--threads", "1"])):
        subprocess.run(
            [*command, "-o", str(tmp_path / name), *more], check=True, capture_output=True
        )
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert not folder.exists()
