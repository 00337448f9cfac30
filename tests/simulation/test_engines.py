"""Engines: wherever passes are played, and whoever dies on the way, the results are the same."""

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


def small(**changes):
    return experiment_from_spec(spec(curve=CURVES, **changes))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What one thread plays."""
    folder = tmp_path_factory.mktemp("straight")
    fastfed.run(small(), folder, threads=1)
    return content(folder / FILE)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A folder whose modules all workers find."""
    folder = tmp_path_factory.mktemp("modules")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def cluster(modules):
    """A cluster of two worker processes, as users have one running somewhere."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit=0, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as started:  # fmt: skip
        yield started


def needs(engine: str) -> None:
    if engine == "dask":
        pytest.importorskip("distributed")


# ---- the same everywhere ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "threads"),
    [
        ("local", 2),
        ("processes", 1),
        ("processes", 2),
        pytest.param("dask", 2, marks=pytest.mark.slow),
    ],
)
def test_engines_leave_the_same_store(engine, threads, tmp_path, straight):
    needs(engine)
    e, heard, started = small(), [], []
    fastfed.run(
        e, tmp_path, engine=engine, threads=threads,
        on_start=lambda passes, threads: started.append(threads), progress=heard.append,
    )  # fmt: skip
    assert content(tmp_path / FILE) == straight
    assert started == [threads]
    everything = 3 * e.agent_rounds(range(len(e.curves)))
    assert sum(heard) == everything or engine == "local"


def test_few_passes_share_the_threads(tmp_path):
    e = experiment_from_spec(spec(replicates=1))
    fastfed.run(e, tmp_path / "a", threads=1)
    fastfed.run(e, tmp_path / "b", threads=3, engine="processes")
    assert content(tmp_path / "a" / FILE) == content(tmp_path / "b" / FILE)


def test_a_cluster_that_is_there_plays_and_is_left_as_it_was(tmp_path, cluster, straight):
    address, e = cluster.scheduler_address, small()
    fastfed.run(small(replicates=1), tmp_path, engine="dask", scheduler=address)
    fastfed.run(e, tmp_path, engine="dask", scheduler=address)
    assert content(tmp_path / FILE) == straight
    assert not cluster.scheduler.tasks
    assert not [name for name in cluster.scheduler.worker_plugins if name.startswith("fastfed")]


def test_the_command_writes_the_same_files(tmp_path, cluster):
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
    for engine, chosen in options.items():
        result = command("run", path, "-o", tmp_path / engine, *chosen)
        assert result.exit_code == 0, result.output
        assert "on 2 threads" in result.stderr or engine == "local"
    files = {engine: final_files(tmp_path / engine) for engine in options}
    assert files["local"] == files["processes"] == files["dask"]
    assert {"report.html", "table.txt", "table.csv", FILE} <= set(files["dask"])


def user_spec(function: str, **changes):
    table = {"kind": "python", "function": function, "dimension": 3, "actions": 3}
    curve = [{"label": "one", "algorithm": "fedlinucb", "batch_size": 10}]
    return spec(**{"environment": table, "curve": curve, "horizon": 30, **changes})


USERS = """
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


def test_data_and_users_functions_reach_the_workers(tmp_path, modules):
    (modules / "mine_for_workers.py").write_text(USERS)
    rows = "".join(f"{i},{i * i % 7},{i % 2},{i % 3}\n" for i in range(40))
    (tmp_path / "d.csv").write_text("x,y,label,silo\n" + rows)
    table = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
    specs = {
        "plain": user_spec("mine_for_workers:plain"),
        "compiled": user_spec("mine_for_workers:compiled"),
        "data": spec(environment=table, curve=CURVES[:1], silos=2, horizon=12),
    }
    for name, one in specs.items():
        e = experiment_from_spec(one)
        fastfed.run(e, tmp_path / name / "a")
        fastfed.run(e, tmp_path / name / "b", engine="processes", threads=1)
        found = content(tmp_path / name / "b" / FILE)
        assert found == content(tmp_path / name / "a" / FILE) and len(found["cells"]) == 3


@pytest.mark.parametrize("engine", ["processes", "dask"])
def test_a_function_that_only_this_process_has_is_one_sentence(engine, tmp_path):
    needs(engine)
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


def test_what_is_sent_is_checked_where_it_arrives(tmp_path, monkeypatch):
    rows = "x,label,silo\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(40))
    (tmp_path / "d.csv").write_text(rows)
    table = {"kind": "classification", "data": str(tmp_path / "d.csv"), "label": "label"}
    e = experiment_from_spec(spec(environment=table, curve=CURVES[:1], silos=2, horizon=12))
    packed = pack(e)
    assert len(packed) < 20_000  # the way to the data, not the data
    (tmp_path / "d.csv").write_text(rows.replace("1,1", "1,0", 1))
    with pytest.raises(fastfed.InputError, match=r"a worker on .* reads different data"):
        unpack(packed)
    (tmp_path / "d.csv").write_text(rows)
    assert unpack(packed).identity() == e.identity()
    monkeypatch.setattr(fastfed, "__version__", "9.9")
    with pytest.raises(fastfed.InputError, match=r"has fastfed 9.9, the main process 0"):
        unpack(packed)


# ---- workers that die ---------------------------------------------------------------------------

#: Ends its process in round 7 of replicate 1, as often as a file says.
DEADLY = """
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


def deadly(folder, deaths, **changes):
    """Four replicates, one of which ends its worker so many times."""
    (folder / "deadly.py").write_text(DEADLY)
    (folder / "deaths").write_text(str(deaths))
    return experiment_from_spec(user_spec("deadly:draw", replicates=4, **changes))


def test_a_killed_process_costs_only_what_it_played(tmp_path, modules):
    e, heard = deadly(modules, 2), []
    fastfed.run(e, tmp_path / "killed", engine="processes", threads=2, progress=heard.append)
    assert (modules / "deaths").read_text() == "0"
    assert sum(heard) == 4 * e.agent_rounds([0])
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_a_killed_dask_worker_costs_only_what_it_played(tmp_path, modules, cluster):
    e = deadly(modules, 1)
    fastfed.run(e, tmp_path / "killed", engine="dask", scheduler=cluster.scheduler_address)
    assert (modules / "deaths").read_text() == "0"
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_two_dask_workers_killed_three_times(tmp_path, modules):
    pytest.importorskip("distributed")
    e = deadly(modules, 3)
    fastfed.run(e, tmp_path / "killed", engine="dask", threads=2)
    assert (modules / "deaths").read_text() == "0"
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "killed" / FILE) == content(tmp_path / "straight" / FILE)


def test_a_cell_that_always_dies_is_named_and_the_rest_is_played(tmp_path, modules):
    e = deadly(
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
    # Once the cause has gone the same call plays what is missing.
    (modules / "deaths").write_text("0")
    fastfed.run(e, tmp_path / "out", engine="processes", threads=2)
    fastfed.run(e, tmp_path / "straight")
    assert content(tmp_path / "out" / FILE) == content(tmp_path / "straight" / FILE)


@pytest.mark.slow
def test_dask_names_a_cell_that_always_dies(tmp_path, modules, cluster, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    e = deadly(modules, ALWAYS)
    with pytest.raises(EngineError, match=r'^curve "one", replicate 1: .* all others are done$'):
        fastfed.run(e, tmp_path, engine="dask", scheduler=cluster.scheduler_address)
    assert int((modules / "deaths").read_text()) == ALWAYS - 2
    assert content(tmp_path / FILE)["cells by key"] == [(0, r) for r in (0, 2, 3)]


def test_the_command_names_it_with_exit_code_1(tmp_path, modules):
    deadly(modules, ALWAYS)
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
def test_what_an_environment_raises_is_raised(engine, tmp_path, modules, cluster):
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
    where = ("--scheduler", cluster.scheduler_address) if engine == "dask" else ("--threads", 1)
    out = tmp_path / "out"
    result = command("run", tmp_path / "s.toml", "-o", out, "--engine", engine, *where)
    assert result.exit_code == 1, result.output
    where = "in the environment's function (replicate 0, silo 0, round 3)"
    assert f"{where}: KeyError: 'no such user'" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_a_scheduler_that_goes_is_one_sentence_and_what_was_played_is_kept(tmp_path):
    distributed = pytest.importorskip("distributed")
    e, ends = experiment_from_spec(spec(replicates=4, horizon=20_000)), []
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0",
        silence_logs=50,
    ) as short_lived:  # fmt: skip

        def end(agent_rounds):
            if not ends:
                ends.append(threading.Thread(target=short_lived.close))
                ends[0].start()

        with pytest.raises(EngineError, match=r"^the scheduler of the dask cluster has ended$"):
            fastfed.run(
                e, tmp_path, engine="dask", scheduler=short_lived.scheduler_address, progress=end
            )
        ends[0].join()
    assert 0 < len(content(tmp_path / FILE)["cells"]) < 12


# ---- who is suspected ---------------------------------------------------------------------------


def rounds_of(deadly, alone_only=frozenset()):
    """A round that plays nothing really: what dies in company, and what dies alone."""
    log = []

    def run_round(passes, alone):
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


NAMED = SimpleNamespace(curves=[SimpleNamespace(label="a"), SimpleNamespace(label="b")])


def test_what_died_in_company_may_live_alone():
    passes = [RunBatch(r, (0, 1)) for r in range(3)]
    log, run_round = rounds_of({(1, 2)})
    played = [p.work for p in run_all_rounds(NAMED, passes, run_round)]
    assert played == [*passes[:2], RunBatch(2, (0,)), RunBatch(2, (1,))]
    assert [alone for alone, _ in log] == [False, True, True]


def test_only_the_curve_that_dies_is_named():
    _, run_round = rounds_of({(1, 2)}, {(1, 2)})
    played = []
    with pytest.raises(EngineError, match=r'^curve "b", replicate 2: .* all others are done'):
        for p in run_all_rounds(NAMED, [RunBatch(r, (0, 1)) for r in range(3)], run_round):
            played.append(p.work)
    assert played[-1] == RunBatch(2, (0,))


def test_where_everything_dies_not_everything_is_tried():
    passes = [RunBatch(r, (0,)) for r in range(50)]
    everything = {(0, r) for r in range(50)}
    log, run_round = rounds_of(everything, everything)
    with pytest.raises(EngineError, match=r"and 5 more: .* 42 more batches were not tried"):
        list(run_all_rounds(NAMED, passes, run_round))
    assert len(log) == 1 + HOPELESS
    # If they live alone, company was the reason, and all are played.
    log, run_round = rounds_of(everything)
    assert len(list(run_all_rounds(NAMED, passes, run_round))) == 50


def test_a_pass_that_begins_again_is_not_counted_twice():
    e, heard = small(), []
    tally, work = Tally(e, heard.append), RunBatch(0, (0,))
    for agent_rounds in (50, 120, 0, 60):
        tally.heard(work, agent_rounds)
    assert heard == [50, 70, -120, 60]
    tally.ended(work)
    tally.heard(work, 70)  # what was still on its way
    assert sum(heard) == e.agent_rounds([0]) == 180


def test_blocks_hold_every_pass_once_in_order():
    pytest.importorskip("distributed")
    from fastfed.simulation.engines import dask as engine

    one = CURVES[:1]
    e = experiment_from_spec(spec(curve=one, replicates=40))
    passes = [RunBatch(r, (0,)) for r in range(40)]
    for most in (1, 7, 40, 100):
        found = list(engine.blocks(e, passes, most))
        assert [work for block in found for work in block] == passes
        assert max(map(len, found)) == min(most, 40)  # these take next to no time
    long = experiment_from_spec(spec(curve=one, horizon=10**8))
    assert [len(b) for b in engine.blocks(long, passes[:3], 40)] == [1, 1, 1]


# ---- what is refused ----------------------------------------------------------------------------


def test_options_that_do_not_go_together(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        'name = "s"\nhorizon = 9\nsilos = 2\n[environment]\nkind = "sphere"\n'
        '[[curve]]\nalgorithm = "fedlinucb"\nbatch_size = 3\n'
    )
    run = ("run", path, "-o", tmp_path / "out")
    complains(command(*run, "--engine", "dsk"), "--engine", "dask")
    complains(command(*run, "--scheduler", "tcp://x:1"), 'scheduler is for engine "dask" only')
    both = ("--engine", "dask", "--scheduler", "tcp://x:1", "--threads", 2)
    complains(command(*run, *both), "threads and scheduler exclude each other")
    with pytest.raises(fastfed.InputError, match=r'engine must be one of .*; did you mean "dask"'):
        fastfed.run(small(), tmp_path / "out", engine="dasks")
    assert list(tmp_path.iterdir()) == [path]


def test_a_scheduler_that_does_not_answer_is_one_sentence(tmp_path):
    pytest.importorskip("distributed")
    start = time.perf_counter()
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1:notaport"):
        with pytest.raises(fastfed.InputError, match="no dask scheduler answers at") as error:
            fastfed.run(small(), tmp_path / "out", engine="dask", scheduler=address)
        assert address in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    assert time.perf_counter() - start < 60  # nowhere near the minutes that clients wait


def test_clients_that_failed_are_closed():
    """Not by the garbage collector, which may run while another client starts, under its lock."""
    distributed = pytest.importorskip("distributed")
    from fastfed.simulation.engines import dask

    gc.collect()
    for address in ("nonsense://x", "127.0.0.1:notaport"):
        with pytest.raises(ValueError):
            dask._client(address)
    left = [each for each in gc.get_objects() if type(each) is distributed.Client]
    assert all(each.status in ("closed", "newly-created") for each in left)


def test_an_event_loop_that_is_late_is_started_again(tmp_path, cluster, monkeypatch):
    """``distributed`` asserts that its thread starts within ten seconds; a busy machine may not."""
    from distributed.utils import LoopRunner

    from fastfed.simulation.engines import dask

    late, start = [AssertionError(), AssertionError()], LoopRunner.start

    def starts(self):
        if late:
            raise late.pop()
        start(self)

    monkeypatch.setattr(LoopRunner, "start", starts)
    with dask._connected(cluster.scheduler_address) as made:
        assert made.scheduler_info()["workers"]
    late[:] = [AssertionError()] * 3
    with pytest.raises(EngineError, match="does not start within ten seconds"):
        fastfed.run(small(), tmp_path / "out", engine="dask", scheduler=cluster.scheduler_address)
    assert not (tmp_path / "out").exists()


def test_workers_with_another_fastfed_are_refused(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(fastfed, "__version__", "9.9")
    with pytest.raises(fastfed.InputError, match=r"worker tcp.* has fastfed .*, this process .*9"):
        fastfed.run(small(), tmp_path / "out", engine="dask", scheduler=cluster.scheduler_address)
    assert not (tmp_path / "out").exists()


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "fastfed.simulation.engines.dask", raising=False)
    with (
        pytest.raises(fastfed.InputError, match=r'pip install "fastfed\[cluster\]"'),
        open_engine("dask"),
    ):
        pass


def test_every_engine_is_in_the_help():
    text = " ".join(command("run", "--help").output.split())
    assert all(name in text for name in ENGINES)


# ---- Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child on Windows")
@pytest.mark.parametrize("engine", ["processes", pytest.param("dask", marks=pytest.mark.slow)])
def test_interrupt_ends_all_processes_in_a_sentence(engine, tmp_path):
    needs(engine)
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
        assert "%" in child.stderr.readline()  # workers play
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: all of them hear it
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 130
        assert errors.splitlines()[-1].startswith("interrupted:") and "Traceback" not in errors
        assert gone(child.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert command("results", out).exit_code == 0


def gone(group: int) -> bool:
    """Whether all processes of a group end within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False
