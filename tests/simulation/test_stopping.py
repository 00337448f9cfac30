"""Runs stop on Ctrl-C and SIGTERM, even if a user's function hangs or ends its process."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from test_cli import fastfed as command

import fastfed
from fastfed import _signals
from fastfed.simulation.engines import local, processes
from fastfed.simulation.experiment import experiment_from_spec, make_experiment

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals as on POSIX")

#: Environments that fail in round 7. `holds` never releases the GIL, `swallows` ignores every
#: exception, `ends` exits from its process, and `lacks` runs out of memory.
MINE = """
import itertools
import os
import time
import numpy as np

def holds(seed, replicate, silo, round):
    if (replicate, round) == (1, 7):
        sum(itertools.repeat(1))
    return np.eye(3), np.array([0.2, 0.5, 0.1])

def swallows(seed, replicate, silo, round):
    while (replicate, round) == (1, 7):
        try:
            time.sleep(100)
        except BaseException:
            pass
    return np.eye(3), np.array([0.2, 0.5, 0.1])

def ends(seed, replicate, silo, round):
    if (replicate, round) == (0, 7):
        os._exit(0)
    return np.eye(3), np.array([0.2, 0.5, 0.1])

def lacks(seed, replicate, silo, round):
    if (replicate, round) == (0, 7):
        raise MemoryError
    return np.eye(3), np.array([0.2, 0.5, 0.1])
"""

SPEC = """
name = "mine"
horizon = 400
silos = 1
replicates = 3
[environment]
kind = "python"
function = "stopping_mine:{}"
dimension = 3
actions = 3
[[curve]]
algorithm = "fedlinucb"
batch_size = 10
"""


@pytest.fixture
def spec_file_of(tmp_path, monkeypatch):
    """Return a function that writes the spec of an environment of MINE and returns its file."""
    (tmp_path / "stopping_mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)

    def spec(function):
        """Write the spec with this function, and return its path."""
        (tmp_path / "s.toml").write_text(SPEC.format(function))
        return tmp_path / "s.toml"

    return spec


# ---- signals ------------------------------------------------------------------------------------

CHILD = """
import itertools, sys, time
from fastfed import _signals
_signals.GRACE_MILLISECONDS = 300
try:
    with _signals.stoppable("; kept"):
        print("ready", flush=True)
        {}
except KeyboardInterrupt as error:
    print("by itself", flush=True)
    sys.exit(_signals.exit_code(error))
"""


@POSIX
@pytest.mark.parametrize(
    ("code", "number", "ends_without_signal"),
    [
        ("sum(itertools.repeat(1))", signal.SIGINT, False),
        ("sum(itertools.repeat(1))", signal.SIGTERM, False),
        ("time.sleep(60)", signal.SIGTERM, True),
    ],
)
def test_a_signal_ends_a_process_even_if_code_holds_the_gil(code, number, ends_without_signal):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(code)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    assert (output, errors) == (
        ("by itself\n", "") if ends_without_signal else ("", f"{_signals.INTERRUPTED_TEXT}; kept\n")
    )


@POSIX
def test_handlers_are_restored_and_ignored_signals_stay_ignored():
    handlers_before = {number: signal.getsignal(number) for number in _signals.ENDING_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with _signals.stoppable():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            with pytest.raises(_signals.Terminated) as error:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            _signals.announce_end()
            with _signals.stoppable():  # a nested one does nothing
                pass
        assert _signals.exit_code(error.value) == 143
    finally:
        signal.signal(signal.SIGHUP, handlers_before[signal.SIGHUP])
    assert {
        number: signal.getsignal(number) for number in _signals.ENDING_SIGNALS
    } == handlers_before
    assert _signals.exit_code(KeyboardInterrupt()) == 130


# ---- engines ------------------------------------------------------------------------------------


def test_a_run_ends_without_waiting_for_a_thread_that_hangs(tmp_path):
    hanging, released = threading.Event(), threading.Event()

    def function(seed, replicate, silo, round):
        if (replicate, round) == (1, 7):
            hanging.set()
            released.wait(60)
        return [[1.0]], [0.5]

    def stop(agent_rounds):
        """Interrupt the run while the other thread hangs."""
        if agent_rounds:
            hanging.wait(60)
            raise KeyboardInterrupt

    environment = fastfed.environments.Python(function=function, dimension=1, actions=1)
    experiment = make_experiment(
        name="x", environment=environment, horizon=30, silos=1, replicates=3,
        curves=[{"algorithm": "fedlinucb", "batch_size": 5}],
    )  # fmt: skip
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            fastfed.run(experiment, tmp_path, threads=2, progress=stop)
        assert time.monotonic() - start < 20.0 and local.left_behind()
    finally:
        released.set()
    for _ in range(200):
        if not local.left_behind():
            break
        time.sleep(0.05)
    assert not local.left_behind()
    assert fastfed.load(tmp_path).curves == ()


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "processes", "dask"])
@pytest.mark.parametrize(
    ("function", "number"),
    [("holds", signal.SIGINT), ("swallows", signal.SIGINT), ("swallows", signal.SIGTERM)],
)
def test_a_run_with_a_function_that_hangs_stops_on_a_signal(
    engine, function, number, spec_file_of, tmp_path
):
    if engine == "dask":
        pytest.importorskip("distributed")
    # A Dask worker that cannot get the GIL cannot send its finished batches either.
    stores_replicate = (engine, function) != ("dask", "holds")
    folder = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-m", "fastfed", "run", spec_file_of(function), "-o", folder,
         "--engine", engine, "--threads", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + (100 if stores_replicate else 20)
        while time.monotonic() < deadline and "replicates: 1" not in replicates_stored(folder):
            time.sleep(0.3)
        time.sleep(0.5)
        child.send_signal(number)
        start = time.monotonic()
        _, errors = child.communicate(timeout=60)
        seconds = time.monotonic() - start
        assert child.returncode == 128 + number, errors
        assert seconds < (30.0 if engine == "dask" else 8.0)  # on a busy machine
        assert "interrupted: " in errors and "Traceback" not in errors
        assert "same command continues" in errors
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    if stores_replicate:
        assert command("results", folder).exit_code == 0
        assert "replicates: 1" in replicates_stored(folder)


def replicates_stored(folder):
    """Return the number of stored replicates of the first curve as text."""
    try:
        curves = fastfed.load(folder).curves
    except fastfed.InputError:
        return ""
    return f"replicates: {len(curves[0].replicates)}" if curves else ""


def test_a_function_that_ends_its_worker_gets_no_time_estimate(spec_file_of):
    for function in ("ends", "lacks"):
        experiment = experiment_from_spec_file(spec_file_of(function))
        assert processes.time_kinds(experiment, [(0,)]) == {}


def experiment_from_spec_file(path):
    """Return the experiment of a spec file."""
    import tomllib

    return experiment_from_spec(tomllib.loads(path.read_text()))


@pytest.mark.slow
@pytest.mark.parametrize(("function", "end"), [("ends", "exit code 0"), ("lacks", "out of memory")])
def test_the_processes_engine_survives_a_function_that_ends_its_worker(
    function, end, spec_file_of, tmp_path
):
    folder = tmp_path / "out"
    child = subprocess.run(
        [sys.executable, "-m", "fastfed", "run", spec_file_of(function), "-o", folder,
         "--engine", "processes", "--threads", "2"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert child.returncode == 1, child.stderr
    assert "for an unknown time" in child.stderr and "Traceback" not in child.stderr
    assert f'curve "fedlinucb", replicate 0: every worker that ran it ended ({end})' in child.stderr
    assert fastfed.load(folder).curves[0].replicates == (1, 2)
