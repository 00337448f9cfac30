"""Tests of engines: the results are the same wherever batches run and whichever worker dies."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from outputs import content, final_files
from test_cli import complains
from test_cli import fastfed as command
from test_run import spec

import fastfed
from fastfed.results.store import FILE
from fastfed.simulation.dispatch import RunBatch
from fastfed.simulation.engines import (
    ENGINES,
    HOPELESS,
    EngineError,
    Finished,
    Left,
    PoisonBatch,
    Tally,
    open_engine,
    pack,
    run_all_rounds,
    unpack,
)
from fastfed.simulation.experiment import experiment_from_spec, make_experiment

CURVES = [
    *spec()["curve"],
    {"label": "triggered", "algorithm": "feducb", "epsilon": 5.0, "delta": 1e-3},
    {"label": "other sizes", "algorithm": "fedlinucb", "batch_size": 10, "silos": 5},
    {"label": "alone", "algorithm": "local-linucb"},
]


def small_experiment(**changes):
    """Return a small experiment with several algorithms."""
    return experiment_from_spec(spec(curve=CURVES, **changes))


@pytest.fixture(scope="module")
def stored_by_one_thread(tmp_path_factory):
    """Return the store of a run with one thread."""
    folder = tmp_path_factory.mktemp("straight")
    fastfed.run(small_experiment(), folder, threads=1)
    return content(folder / FILE)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Create a folder from which all workers can import modules."""
    folder = tmp_path_factory.mktemp("modules")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def cluster(modules):
    """Start a cluster of two worker processes, like one that a user has running."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:  # fmt: skip
        yield started


def skip_without_engine(engine: str) -> None:
    """Skip the test if the engine's package is not installed."""
    if engine == "dask":
        pytest.importorskip("distributed")


# ---- equal results ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "threads"),
    [
        ("local", 2),
        ("processes", 1),
        ("processes", 2),
        pytest.param("dask", 2, marks=pytest.mark.slow),
    ],
)
def test_engines_leave_the_same_store(engine, threads, tmp_path, stored_by_one_thread):
    skip_without_engine(engine)
    e, reported, started = small_experiment(), [], []
    fastfed.run(
        e, tmp_path, engine=engine, threads=threads,
        on_start=lambda passes, threads: started.append(threads), progress=reported.append,
    )  # fmt: skip
    assert content(tmp_path / FILE) == stored_by_one_thread
    assert started == [threads]
    all_rounds = 3 * e.agent_rounds(range(len(e.curves)))
    assert sum(reported) == all_rounds or engine == "local"


def test_a_single_batch_can_use_all_threads(tmp_path):
    e = experiment_from_spec(spec(replicates=1))
    fastfed.run(e, tmp_path / "a", threads=1)
    fastfed.run(e, tmp_path / "b", threads=3, engine="processes")
    assert content(tmp_path / "a" / FILE) == content(tmp_path / "b" / FILE)


def test_a_running_cluster_is_used_and_left_clean(tmp_path, cluster, stored_by_one_thread):
    address, e = cluster.scheduler_address, small_experiment()
    fastfed.run(small_experiment(replicates=1), tmp_path, engine="dask", scheduler=address)
    fastfed.run(e, tmp_path, engine="dask", scheduler=address)
    assert content(tmp_path / FILE) == stored_by_one_thread
    assert not cluster.scheduler.tasks
    assert not [name for name in cluster.scheduler.worker_plugins if name.startswith("fastfed")]


def test_command_writes_the_same_files_with_every_engine(tmp_path, cluster):
    path = tmp_path / "s.toml"
    path.write_text(
        'name = "s"\nhorizon = 50\nsilos = 3\nreplicates = 3\ncheckpoints = 5\n'
        '[environment]\nkind = "sphere"\ndimension = 3\nactions = 4\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 10\n'
    )
    options = {
        "local": (),
        "processes": ("--engine", "processes", "--threads", 2),
        "dask": ("--engine", "dask", "--scheduler", cluster.scheduler_address),
    }
    for engine, engine_options in options.items():
        result = command("run", path, "-o", tmp_path / engine, *engine_options)
        assert result.exit_code == 0, result.output
        assert "on 2 threads" in result.stderr or engine == "local"
    files = {engine: final_files(tmp_path / engine) for engine in options}
    assert files["local"] == files["processes"] == files["dask"]
    assert {"report.html", "table.txt", "table.csv", FILE} <= set(files["dask"])


def user_spec(function: str, **changes):
    """Return a spec whose environment is a user's function."""
    environment = {"kind": "python", "function": function, "dimension": 3, "actions": 3}
    curve = [{"label": "one", "algorithm": "fedlinucb", "batch_size": 10}]
    return spec(**{"environment": environment, "curve": curve, "horizon": 30, **changes})


USER_MODULE = """
import numba
import numpy as np
from fastfed.environments import environment_signature

def plain(seed, replicate, silo, round):
    return np.eye(3), np.array([0.2, 0.5, 0.1 * (round % 9)])

@numba.cfunc(environment_signature())
def compiled(state, seed, replicate, silo, round, x, mean):
    for i in range(9):
        x[i] = 1.0 if i % 4 == 0 else 0.0
    for i in range(3):
        mean[i] = 0.1 * ((round + i) % 9)
    return 3
"""


def test_engines_send_data_and_users_functions_to_workers(tmp_path, modules):
    (modules / "mine_for_workers.py").write_text(USER_MODULE)
    rows = "".join(f"{i},{i * i % 7},{i % 2},{i % 3}\n" for i in range(40))
    (tmp_path / "d.csv").write_text("x,y,label,silo\n" + rows)
    environment = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
    specs = {
        "plain": user_spec("mine_for_workers:plain"),
        "compiled": user_spec("mine_for_workers:compiled"),
        "data": spec(environment=environment, curve=CURVES[:1], silos=2, horizon=12),
    }
    for name, spec_path in specs.items():
        e = experiment_from_spec(spec_path)
        fastfed.run(e, tmp_path / name / "a")
        fastfed.run(e, tmp_path / name / "b", engine="processes", threads=1)
        stored = content(tmp_path / name / "b" / FILE)
        assert stored == content(tmp_path / name / "a" / FILE) and len(stored["cells"]) == 3


@pytest.mark.parametrize("engine", ["processes", "dask"])
def test_engines_refuse_functions_that_only_this_process_has(engine, tmp_path):
    skip_without_engine(engine)
    environment = fastfed.environments.Python(
        function=lambda *key: ([[1.0]], [0.5]), dimension=1, actions=1
    )
    e = make_experiment(
        name="x", environment=environment, horizon=5, silos=1,
        curves=[{"algorithm": "fedlinucb", "batch_size": 5}],
    )  # fmt: skip
    with pytest.raises(fastfed.InputError, match='name them as "module:name"') as error:
        fastfed.run(e, tmp_path, engine=engine)
    assert "\n" not in str(error.value)
    fastfed.run(e, tmp_path)


def test_workers_check_data_and_version_of_a_sent_experiment(tmp_path, monkeypatch):
    rows = "x,label,silo\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(40))
    (tmp_path / "d.csv").write_text(rows)
    environment = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
    e = experiment_from_spec(spec(environment=environment, curve=CURVES[:1], silos=2, horizon=12))
    packed = pack(e)
    assert len(packed) < 20_000  # the path of the data, not the data
    (tmp_path / "d.csv").write_text(rows.replace("1,1", "1,0", 1))
    with pytest.raises(fastfed.InputError, match=r"a worker on .* reads different data"):
        unpack(packed)
    (tmp_path / "d.csv").write_text(rows)
    assert unpack(packed).identity() == e.identity()
    monkeypatch.setattr(fastfed, "__version__", "9.9")
    with pytest.raises(fastfed.InputError, match=r"has fastfed 9.9, the main process 0"):
        unpack(packed)


# ---- workers that die ---------------------------------------------------------------------------

#: A module whose function kills its process in round 7 of replicate 1, as often as a file says.
DEADLY_MODULE = """
import os
import signal
from pathlib import Path
import numpy as np

def draw(seed, replicate, silo, round):
    if (replicate, silo, round) == (1, 0, 7):
        file = Path(__file__).with_name("deaths")
        left = int(file.read_text())
        if left:
            file.write_text(str(left - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    return np.eye(3), np.array([0.2, 0.5, 0.1 * (round % 9)])
"""
ALWAYS = 1000


def deadly_experiment(folder, deaths, **changes):
    """Return an experiment of four replicates, one of which kills its worker this number of
    times."""
    (folder / "deadly.py").write_text(DEADLY_MODULE)
    (folder / "deaths").write_text(str(deaths))
    return experiment_from_spec(user_spec("deadly:draw", replicates=4, **changes))


def test_a_run_continues_after_a_process_is_killed(tmp_path, modules):
    e, reported = deadly_experiment(modules, 2), []
    fastfed.run(e, tmp_path / "killed", engine="processes", threads=2, progress=reported.append)
    assert (modules / "deaths").read_text() == "0"
    assert sum(reported) == 4 * e.agent_rounds([0])
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_a_run_continues_after_a_dask_worker_is_killed(tmp_path, modules, cluster):
    e = deadly_experiment(modules, 1)
    fastfed.run(e, tmp_path / "killed", engine="dask", scheduler=cluster.scheduler_address)
    assert (modules / "deaths").read_text() == "0"
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_a_run_continues_after_dask_workers_are_killed_three_times(tmp_path, modules):
    pytest.importorskip("distributed")
    e = deadly_experiment(modules, 3)
    fastfed.run(e, tmp_path / "killed", engine="dask", threads=2)
    assert (modules / "deaths").read_text() == "0"
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


def test_a_cell_that_always_kills_its_worker_is_named_and_the_rest_runs(tmp_path, modules):
    e = deadly_experiment(
        modules, ALWAYS,
        curve=[
            {"label": "in company", "algorithm": "fedlinucb", "batch_size": 10},
            {"label": "beside it", "algorithm": "fedlinucb", "batch_size": 5},
        ],
    )  # fmt: skip
    with pytest.raises(EngineError) as error:
        fastfed.run(e, tmp_path / "out", engine="processes", threads=2)
    text = str(error.value)
    assert text.startswith('curve "in company", replicate 1; curve "beside it", replicate 1: ')
    assert "killed by SIGKILL" in text and "all others are done" in text and "\n" not in text
    assert int((modules / "deaths").read_text()) == ALWAYS - 3 - 2
    keys = content(tmp_path / "out" / FILE)["cells by key"]
    assert keys == [(c, r) for c in (0, 1) for r in (0, 2, 3)]
    # After the cause is removed, the same call runs what is missing.
    (modules / "deaths").write_text("0")
    fastfed.run(e, tmp_path / "out", engine="processes", threads=2)
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "out" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_dask_names_a_cell_that_always_kills_its_worker(tmp_path, modules, cluster, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    e = deadly_experiment(modules, ALWAYS)
    with pytest.raises(EngineError, match=r'^curve "one", replicate 1: .* all others are done$'):
        fastfed.run(e, tmp_path, engine="dask", scheduler=cluster.scheduler_address)
    assert int((modules / "deaths").read_text()) == ALWAYS - 2
    assert content(tmp_path / FILE)["cells by key"] == [(0, r) for r in (0, 2, 3)]


def test_command_names_a_cell_that_kills_its_worker_with_exit_code_1(tmp_path, modules):
    deadly_experiment(modules, ALWAYS)
    (tmp_path / "s.toml").write_text(
        'name = "s"\nhorizon = 9\nsilos = 2\nreplicates = 2\n[environment]\nkind = "python"\n'
        'function = "deadly:draw"\ndimension = 3\nactions = 3\n'
        '[[curve]]\nlabel = "it"\nalgorithm = "fedlinucb"\nbatch_size = 3\n'
    )
    out = tmp_path / "out"
    result = command("run", tmp_path / "s.toml", "-o", out, "--engine", "processes")
    assert result.exit_code == 1, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith('error: curve "it", replicate 1: every worker') and "SIGKILL" in last
    assert "the same command continues" in last and "Traceback" not in result.stderr


@pytest.mark.parametrize("engine", ["processes", "dask"])
def test_exceptions_of_an_environment_are_reported(engine, tmp_path, modules, cluster):
    (modules / "faulty_for_workers.py").write_text(
        "def draw(seed, replicate, silo, t):\n"
        "    if t == 3:\n"
        "        raise KeyError('no such user')\n"
        "    return [[1.0, 0.0]], [0.5]\n"
    )
    (tmp_path / "s.toml").write_text(
        'name = "f"\nhorizon = 9\nsilos = 2\n[environment]\nkind = "python"\n'
        'function = "faulty_for_workers:draw"\ndimension = 2\nactions = 1\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 3\n'
    )
    options = ("--scheduler", cluster.scheduler_address) if engine == "dask" else ("--threads", 1)
    out = tmp_path / "out"
    result = command("run", tmp_path / "s.toml", "-o", out, "--engine", engine, *options)
    assert result.exit_code == 1, result.output
    where = "in the environment's function (replicate 0, silo 0, round 3)"
    assert f"{where}: KeyError: 'no such user'" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_results_are_kept_if_the_scheduler_ends(tmp_path):
    distributed = pytest.importorskip("distributed")
    e, threads = experiment_from_spec(spec(replicates=4, horizon=20_000)), []
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as short_lived:  # fmt: skip

        def end_cluster(agent_rounds):
            """Close the cluster at the first progress."""
            if not threads:
                threads.append(threading.Thread(target=short_lived.close))
                threads[0].start()

        with pytest.raises(EngineError, match=r"^the scheduler of the dask cluster has ended$"):
            fastfed.run(
                e,
                tmp_path,
                engine="dask",
                scheduler=short_lived.scheduler_address,
                progress=end_cluster,
            )
        threads[0].join()
    assert 0 < len(content(tmp_path / FILE)["cells"]) < 12


# ---- retries of batches -------------------------------------------------------------------------


def simulated_rounds(deadly, alone_only=frozenset()):
    """Return a log and a round function that simulates deaths of batches.

    ``deadly`` cells kill a batch of several curves; ``alone_only`` cells kill a batch of one curve.
    """
    log = []

    def run_round(passes, alone):
        """Run passes of which some kill their worker; return the passes that did not finish."""
        log.append((alone, tuple(passes)))
        left = Left()
        for position, work in enumerate(passes):
            if any(
                (c, work.replicate) in (alone_only if alone else deadly) for c in work.positions
            ):
                left.poisoned.append(PoisonBatch(work, "killed"))
                if len(left.poisoned) == HOPELESS == position + 1:
                    left.untried = passes[position + 1 :]
                    break
            else:
                yield Finished(work, [], 0.0, 1)
        return left

    return log, run_round


TWO_CURVES = SimpleNamespace(curves=[SimpleNamespace(label="a"), SimpleNamespace(label="b")])


def test_curves_of_a_failed_batch_are_retried_alone():
    passes = [RunBatch(r, (0, 1)) for r in range(3)]
    log, run_round = simulated_rounds({(1, 2)})
    finished = [p.work for p in run_all_rounds(TWO_CURVES, passes, run_round)]
    assert finished == [*passes[:2], RunBatch(2, (0,)), RunBatch(2, (1,))]
    assert [alone for alone, _ in log] == [False, True, True]


def test_only_the_failing_curve_is_named():
    _, run_round = simulated_rounds({(1, 2)}, {(1, 2)})
    finished = []
    with pytest.raises(EngineError, match=r'^curve "b", replicate 2: .* all others are done'):
        for p in run_all_rounds(TWO_CURVES, [RunBatch(r, (0, 1)) for r in range(3)], run_round):
            finished.append(p.work)
    assert finished[-1] == RunBatch(2, (0,))


def test_retries_stop_if_every_batch_fails():
    passes = [RunBatch(r, (0,)) for r in range(50)]
    all_cells = {(0, r) for r in range(50)}
    log, run_round = simulated_rounds(all_cells, all_cells)
    with pytest.raises(EngineError, match=r"and 5 more: .* 42 more batches were not tried"):
        list(run_all_rounds(TWO_CURVES, passes, run_round))
    assert len(log) == 1 + HOPELESS
    # If single curves succeed, all of them run.
    log, run_round = simulated_rounds(all_cells)
    assert len(list(run_all_rounds(TWO_CURVES, passes, run_round))) == 50


def test_progress_of_a_restarted_batch_is_not_counted_twice():
    e, reported = small_experiment(), []
    tally, work = Tally(e, reported.append), RunBatch(0, (0,))
    for agent_rounds in (50, 120, 0, 60):
        tally.record(work, agent_rounds)
    assert reported == [50, 70, -120, 60]
    tally.ended(work)
    tally.record(work, 70)  # a late report
    assert sum(reported) == e.agent_rounds([0]) == 180


def test_blocks_contain_every_batch_once_in_order():
    pytest.importorskip("distributed")
    from fastfed.simulation.engines import dask as engine

    one_curve = CURVES[:1]
    e = experiment_from_spec(spec(curve=one_curve, replicates=40))
    passes = [RunBatch(r, (0,)) for r in range(40)]
    for max_size in (1, 7, 40, 100):
        all_blocks = list(engine.blocks(e, passes, max_size))
        assert [work for block in all_blocks for work in block] == passes
        assert max(map(len, all_blocks)) == min(max_size, 40)  # these batches take almost no time
    long_experiment = experiment_from_spec(spec(curve=one_curve, horizon=10**8))
    assert [len(each_block) for each_block in engine.blocks(long_experiment, passes[:3], 40)] == [
        1,
        1,
        1,
    ]


# ---- errors -------------------------------------------------------------------------------------


def test_errors_about_options_that_exclude_each_other(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        'name = "s"\nhorizon = 9\nsilos = 2\n[environment]\nkind = "sphere"\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 3\n'
    )
    run = ("run", path, "-o", tmp_path / "out")
    complains(command(*run, "--engine", "dsk"), "--engine", "dask")
    complains(command(*run, "--scheduler", "tcp://x:1"), 'scheduler is for engine "dask" only')
    both_options = ("--engine", "dask", "--scheduler", "tcp://x:1", "--threads", 2)
    complains(command(*run, *both_options), "threads and scheduler exclude each other")
    with pytest.raises(fastfed.InputError, match=r'engine must be one of .*; did you mean "dask"'):
        fastfed.run(small_experiment(), tmp_path / "out", engine="dasks")
    assert list(tmp_path.iterdir()) == [path]


def test_errors_about_a_scheduler_that_does_not_answer_are_one_sentence(tmp_path):
    pytest.importorskip("distributed")
    start = time.perf_counter()
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:notaport"):
        with pytest.raises(fastfed.InputError, match="no dask scheduler answers at") as error:
            fastfed.run(small_experiment(), tmp_path / "out", engine="dask", scheduler=address)
        assert address in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert time.perf_counter() - start < 60  # far below the minutes that clients wait by default


def test_clients_that_failed_are_closed():
    """Check that clients that failed are not left to the garbage collector.

    The collector may run while another client starts and holds a lock. Closing the failed client
    would then wait for the same lock: a deadlock.
    """
    distributed = pytest.importorskip("distributed")
    from fastfed.simulation.engines import dask

    gc.collect()
    for address in ("nonsense://x", "127.0.0.1:notaport"):
        with pytest.raises(ValueError):
            dask._client(address)
    clients = [client for client in gc.get_objects() if type(client) is distributed.Client]
    assert all(client.status in ("closed", "newly-created") for client in clients)


def test_a_late_event_loop_is_started_again(tmp_path, cluster, monkeypatch):
    """``distributed`` asserts that its thread starts within ten seconds."""
    from distributed.utils import LoopRunner

    from fastfed.simulation.engines import dask

    failures, start = [AssertionError(), AssertionError()], LoopRunner.start

    def start_or_fail(self):
        """Fail as often as the test wants, then start."""
        if failures:
            raise failures.pop()
        start(self)

    monkeypatch.setattr(LoopRunner, "start", start_or_fail)
    with dask._connected(cluster.scheduler_address) as client:
        assert client.scheduler_info()["workers"]
    failures[:] = [AssertionError()] * 3
    with pytest.raises(EngineError, match="does not start within ten seconds"):
        fastfed.run(
            small_experiment(), tmp_path / "out", engine="dask", scheduler=cluster.scheduler_address
        )
    assert not (tmp_path / "out").exists()


def test_workers_with_another_version_are_refused(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(fastfed, "__version__", "9.9")
    with pytest.raises(fastfed.InputError, match=r"worker tcp.* has fastfed .*, this process .*9"):
        fastfed.run(
            small_experiment(), tmp_path / "out", engine="dask", scheduler=cluster.scheduler_address
        )
    assert not (tmp_path / "out").exists()


def test_error_without_distributed_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "fastfed.simulation.engines.dask", raising=False)
    with (
        pytest.raises(fastfed.InputError, match=r'pip install "fastfed\[cluster\]"'),
        open_engine("dask"),
    ):
        pass


def test_help_names_every_engine():
    text = " ".join(command("run", "--help").output.split())
    assert all(name in text for name in ENGINES)


# ---- Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child on Windows")
@pytest.mark.parametrize("engine", ["processes", pytest.param("dask", marks=pytest.mark.slow)])
def test_an_interrupt_ends_all_processes_with_one_sentence(engine, tmp_path):
    skip_without_engine(engine)
    path, out = tmp_path / "s.toml", tmp_path / "out"
    path.write_text(
        'name = "s"\nhorizon = 2_000_000\nsilos = 20\nreplicates = 4\n'
        '[environment]\nkind = "sphere"\ndimension = 3\nactions = 5\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 10\n'
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "fastfed", "run", path, "-o", out, "--engine", engine],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert child.stderr is not None
    try:
        assert "agent-rounds" in child.stderr.readline()  # the estimate
        assert "%" in child.stderr.readline()  # workers run
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: all processes receive it
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 130
        assert errors.splitlines()[-1].startswith("interrupted:") and "Traceback" not in errors
        assert all_processes_end(child.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert command("results", out).exit_code == 0


def all_processes_end(group: int) -> bool:
    """Return whether all processes of a group end within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
