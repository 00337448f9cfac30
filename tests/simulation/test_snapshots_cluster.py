"""Tests of snapshots of workers that die, and of cluster workers that cannot access the output
folder."""

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
from test_snapshots import stop_after, stored_rows, two_curves

import fastfed
from fastfed.environments import Sphere
from fastfed.simulation import compiled, snapshots
from fastfed.simulation.dispatch import Interrupted, RunBatch
from fastfed.simulation.engines import processes
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.snapshots import Snapshots

distributed = pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")

from fastfed.simulation.engines import dask as engine  # noqa: E402
from fastfed.simulation.engines import dask_snapshots  # noqa: E402


def long_experiment(horizon: int = 400_000, replicates: int = 1) -> Experiment:
    """Return an experiment whose replicate takes some seconds."""
    keys = {"algorithm": "private-fedlinucb", "protocol": "central", "delta": 1e-3}
    return make_experiment(
        name="long", environment=Sphere(dimension=6, actions=20),
        curves=[{"label": "one", "epsilon": 1.0, "batch_size": 50, **keys}],
        horizon=horizon, silos=4, replicates=replicates, seed=8, checkpoints=20,
    )  # fmt: skip


def configure_worker(every: float = 0.1) -> None:
    """Configure a worker: frequent snapshots and an output folder on another machine."""
    from fastfed.simulation import snapshots
    from fastfed.simulation.engines import dask, dask_snapshots

    snapshots.SNAPSHOT_SECONDS, snapshots.TIMES_OF_WRITING = every, 0.0
    dask.PROGRESS_SECONDS = 0.05
    if every:
        dask_snapshots.Place.seen = lambda self: False  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def threads():
    """Start a cluster of threads of this process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:  # fmt: skip
        yield started


@pytest.fixture
def frequent_snapshots(monkeypatch):
    """Write snapshots and report progress as often as possible."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)
    monkeypatch.setattr(engine, "PROGRESS_SECONDS", 0.0)


@pytest.mark.parametrize("folder_is_shared", [True, False])
def test_dask_continues_an_interrupted_run(
    folder_is_shared, threads, frequent_snapshots, tmp_path, monkeypatch
):
    """Check that workers use the client's snapshots and that the folder is clean afterwards."""
    e, address = two_curves(), threads.scheduler_address
    monkeypatch.setattr(dask_snapshots.Place, "seen", lambda self: folder_is_shared)
    fastfed.run(e, tmp_path / "whole", threads=1)
    with pytest.raises(Interrupted):
        fastfed.run(e, tmp_path / "part", threads=1, progress=stop_after(300, []))
    loaded_rounds = []
    load = snapshots.Kept.into
    monkeypatch.setattr(
        snapshots.Kept,
        "into",
        lambda kept, states: loaded_rounds.append(kept.round) or load(kept, states),
    )
    fastfed.run(e, tmp_path / "part", engine="dask", scheduler=address)
    assert len(loaded_rounds) == 1 and loaded_rounds[0] >= 40
    assert stored_rows(tmp_path / "part") == stored_rows(tmp_path / "whole")
    assert not (tmp_path / "part" / snapshots.FOLDER).exists()
    assert not threads.scheduler.tasks
    assert not [name for name in threads.scheduler.task_metadata if str(name).startswith("fastfed")]
    assert not [name for name in threads.scheduler.worker_plugins if name.startswith("fastfed")]


def test_snapshots_sent_by_workers_suffice_to_continue(
    threads, frequent_snapshots, tmp_path, monkeypatch
):
    e, address = two_curves(400), threads.scheduler_address
    monkeypatch.setattr(dask_snapshots.Place, "seen", lambda self: False)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 0.002)
    fastfed.run(e, tmp_path / "whole", threads=1)
    written: list[Path] = []
    original_store = dask_snapshots.write_atomically

    def record_and_store(path: Path, write: Any) -> None:
        """Store a file as before, and keep a copy if it is a snapshot."""
        original_store(path, write)
        if path.suffix == ".npz":
            assert path.stat().st_mode & 0o777 == 0o600
            written.append(path)
            (tmp_path / "kept").mkdir(exist_ok=True)
            shutil.copy(path, tmp_path / "kept" / path.name)

    monkeypatch.setattr(dask_snapshots, "write_atomically", record_and_store)
    # A fast worker would end before the client requests its snapshots, so slow it down.
    simulate = compiled.run_rounds

    def slowly(run, first, last, rounds_per_call=None, progress=None):
        """Simulate as before, slowly enough for snapshots."""

        def reported(rounds):
            time.sleep(0.01)
            progress(rounds)

        simulate(run, first, last, 20, reported)

    monkeypatch.setattr(compiled, "run_rounds", slowly)
    fastfed.run(e, tmp_path / "sent", engine="dask", scheduler=address)
    assert stored_rows(tmp_path / "sent") == stored_rows(tmp_path / "whole")
    assert written
    monkeypatch.setattr(compiled, "run_rounds", simulate)
    (tmp_path / "part" / snapshots.FOLDER).mkdir(parents=True)
    for path in (tmp_path / "kept").iterdir():
        shutil.copy(path, tmp_path / "part" / snapshots.FOLDER)
    reported: list[int] = []
    fastfed.run(e, tmp_path / "part", threads=1, progress=reported.append)
    assert max(reported) >= 2 * 3 * 20
    assert stored_rows(tmp_path / "part") == stored_rows(tmp_path / "whole")


def test_snapshots_too_large_to_send_are_not_written(monkeypatch):
    events: list[Any] = []
    worker = SimpleNamespace(address="there", log_event=lambda *event: events.append(event))
    place = dask_snapshots.Place(Snapshots(Path("nowhere"), "d"), "mark", "topic")
    exchange = dask_snapshots.SnapshotExchange()
    snapshot = dask_snapshots.AtWorker(place, exchange, worker).of(0, [3])
    snapshot.keep(5, {"a": np.zeros(10)})
    assert (
        list(exchange.for_client) == [dask_snapshots.key_of(RunBatch(0, (3,)))] and len(events) == 1
    )
    monkeypatch.setattr(dask_snapshots, "MAX_SENT_BYTES", 100)
    snapshot.drop()
    snapshot.begun = -1e9
    assert snapshot.due()
    snapshot.keep(6, {"a": np.zeros(1000)})
    snapshot.begun = -1e9
    assert (
        not exchange.for_client
        and len(events) == 1
        and not snapshot.due()
        and not snapshot.worth_writing_at_stop()
    )


# ---- processes that are killed -------------------------------------------------------------------


def test_another_process_continues_from_the_snapshot_of_a_killed_process(tmp_path, monkeypatch):
    """Check the engine "processes": a new worker starts at the snapshot."""
    e, reported = long_experiment(400_000), []
    pids: list[int] = []
    worker = processes.Worker

    class RecordingWorker(worker):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments):
            super().__init__(*arguments)
            pids.append(self.process.pid)

    monkeypatch.setattr(processes, "Worker", RecordingWorker)
    monkeypatch.setattr(processes, "serve", serve_with_frequent_snapshots)
    # Workers find `serve_with_frequent_snapshots` by its module's name. The path is last so that
    # the installed package comes first.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[2])])
    folder = tmp_path / "killed" / snapshots.FOLDER

    def kill() -> None:
        """Kill the process once its snapshot has reached round 1000."""
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline and snapshot_round(folder) < 1000:
            time.sleep(0.005)
        os.kill(pids[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    fastfed.run(e, tmp_path / "killed", engine="processes", threads=1, progress=reported.append)
    killer.join()
    assert len(pids) == 2
    loss_index = reported.index(min(reported))
    assert reported[loss_index] < 0 and sum(reported) == 4 * 400_000
    # The second worker first reports the rounds of the snapshot.
    assert reported[loss_index + 1] >= 4 * 1000
    fastfed.run(e, tmp_path / "whole", threads=1)
    assert stored_rows(tmp_path / "killed") == stored_rows(tmp_path / "whole")


def snapshot_round(folder: Path) -> int:
    """Return the round of the snapshot in a folder, or 0 if there is none."""
    for path in folder.glob("*.npz"):
        with np.load(path) as arrays:
            return int(json.loads(arrays["about"].tobytes())["round"])
    return 0


def serve_with_frequent_snapshots(*arguments: Any) -> None:
    """Run a worker that writes snapshots often."""
    snapshots.SNAPSHOT_SECONDS, snapshots.TIMES_OF_WRITING = 0.1, 0.0
    compiled.CALL_SECONDS = 0.01
    processes.PROGRESS_SECONDS = 0.0
    processes.serve(*arguments)


@pytest.fixture(scope="module")
def cluster():
    """Start a cluster of two processes that cannot access the output folder."""
    # The workers do not need to import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as started,
        distributed.Client(started, set_as_default=False) as client,
    ):  # fmt: skip
        client.run(configure_worker)
        yield started, client


def wait_for_snapshot(folder: Path, round: int = 0, running: Any = lambda: True) -> None:
    """Wait for a snapshot of a round after ``round``.

    A snapshot of an earlier round would mean that the run started again.
    """
    deadline = time.monotonic() + 90.0
    while time.monotonic() < deadline and running():
        current_round = snapshot_round(folder)
        assert not 0 < current_round < round
        if current_round > round:
            return
        time.sleep(0.005)
    raise AssertionError("no snapshot came")


@pytest.mark.slow
def test_another_dask_worker_continues_after_one_is_killed(cluster, tmp_path):
    started, client = cluster
    e, reported = long_experiment(), []
    folder = tmp_path / "killed" / snapshots.FOLDER

    def kill() -> None:
        """Kill the busy worker once there is a snapshot."""
        wait_for_snapshot(folder)
        time.sleep(0.5)
        (busy,) = [address for address, tasks in client.processing().items() if tasks]
        client.run(os._exit, 9, workers=[busy], on_error="ignore")

    killer = threading.Thread(target=kill)
    killer.start()
    fastfed.run(
        e, tmp_path / "killed", engine="dask", scheduler=started.scheduler_address,
        progress=reported.append,
    )  # fmt: skip
    killer.join()
    fastfed.run(e, tmp_path / "whole", threads=1)
    assert stored_rows(tmp_path / "killed") == stored_rows(tmp_path / "whole")
    assert sum(reported) == 4 * 400_000
    # Progress falls, but not to the first round: at most by the distance of some snapshots.
    largest_loss = min(reported)
    assert largest_loss > -4 * 400_000 / 4
    client.wait_for_workers(2, timeout=60)
    client.run(configure_worker)


@pytest.mark.slow
def test_a_run_ends_although_its_client_is_killed_three_times(cluster, tmp_path):
    started, _ = cluster
    spec = tmp_path / "long.toml"
    spec.write_text(
        'name = "long"\nhorizon = 500000\nsilos = 4\nreplicates = 1\ncheckpoints = 20\n'
        '[environment]\nkind = "sphere"\ndimension = 6\nactions = 20\n'
        '[[curve]]\nlabel = "one"\nalgorithm = "private-fedlinucb"\nprotocol = "central"\n'
        "epsilon = 1.0\ndelta = 1e-6\nbatch_size = 50\n"
    )
    command = [sys.executable, "-m", "fastfed", "run", str(spec)]
    dask_options = ["--engine", "dask", "--scheduler", started.scheduler_address]
    folder = tmp_path / "killed" / snapshots.FOLDER
    rounds = [0]
    for _ in range(3):
        with subprocess.Popen(
            [*command, "-o", str(tmp_path / "killed"), *dask_options],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as child:  # fmt: skip
            wait_for_snapshot(folder, rounds[-1], lambda child=child: child.poll() is None)
            child.send_signal(signal.SIGKILL)
        rounds.append(snapshot_round(folder))
    for name, options in (("killed", dask_options), ("whole", ["--threads", "1"])):
        subprocess.run(
            [*command, "-o", str(tmp_path / name), *options], check=True, capture_output=True
        )
    assert stored_rows(tmp_path / "killed") == stored_rows(tmp_path / "whole")
    assert not folder.exists()
