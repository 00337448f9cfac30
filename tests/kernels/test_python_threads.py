"""Check Python's threads with their own objects, and refused uses of shared ones, with and without
a GIL."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import kernels
from fastfed._kernels import driver
from fastfed.environments import Python, Replay, Sphere

THREADS = 2


def each_in_a_thread(work: Callable[[int], Any]) -> list[Any]:
    """Return work(0), work(1), ..., started at the same time."""
    barrier = Barrier(THREADS)

    def start(thread: int) -> Any:
        """Wait for all threads, then work."""
        barrier.wait(60)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def agent_outcome(seed: int) -> bytes:
    """Return what an agent of this thread has learnt and chosen, as bytes."""
    rng = np.random.default_rng(seed)
    agent = fastfed.LinUCB(dimension=6)
    chosen = []
    for _ in range(40):
        chosen.append(agent.select(rng.normal(size=(9, 6)) / 4))
        agent.observe(float(rng.random()))
    return agent.theta.tobytes() + bytes(chosen)


def kernel_outcome(seed: int) -> bytes:
    """Return the results of kernels on arrays of this thread, as bytes."""
    rng = np.random.default_rng(seed)
    gram, bias, factor, theta = np.eye(5), np.zeros(5), np.eye(5), np.zeros(5)
    for _ in range(40):
        x, y = rng.normal(size=(2, 5)) / 3, rng.random(2)
        kernels.rank_one_update(gram, bias, x, y)
        kernels.factor_update(factor, theta, x, y)
        kernels.ucb_scores(x, factor, theta, 0.5)
    draws = kernels.normals(seed, 7, purpose=3)
    return b"".join(array.tobytes() for array in (gram, bias, factor, theta, draws))


def simulation_outcome(seed: int) -> bytes:
    """Return the regret of a simulation of this thread, whose silos also share threads."""
    curve = {"algorithm": "private-fedlinucb", "protocol": "silo-ldp", "epsilon": 1.0}
    results = fastfed.simulate(
        Sphere(dimension=4, actions=6),
        curves=[curve | {"label": "one", "delta": 1e-5, "batch_size": 5}],
        silos=3, horizon=20, replicates=2, threads=2, seed=seed,
    )  # fmt: skip
    return results.curves[0].group_regret.tobytes()


@pytest.mark.parametrize("work", [agent_outcome, kernel_outcome, simulation_outcome])
def test_threads_with_their_own_objects_agree_with_one_thread(work: Callable[[int], bytes]) -> None:
    outcomes = each_in_a_thread(work)
    assert outcomes == [work(seed) for seed in range(THREADS)]
    assert len(set(outcomes)) == THREADS


def test_replicates_in_threads_share_the_memory_of_a_pool() -> None:
    """Check that all replicates write to the same memory and none frees it."""
    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(2, 40, 20, 32)) / 12
    rewards = rng.random((2, 40, 20))

    def regret(threads: int) -> bytes:
        """Return the bytes of the regret of a run."""
        results = fastfed.simulate(
            Replay.from_arrays(contexts, rewards),
            curves=[{"label": "one", "algorithm": "fedlinucb", "batch_size": 5}],
            horizon=40, replicates=THREADS, threads=threads,
        )  # fmt: skip
        return results.curves[0].group_regret.tobytes()

    of_one_thread = regret(1)
    for _ in range(5):
        assert regret(THREADS) == of_one_thread


def test_runs_refuse_a_second_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[driver.Run] = []
    errors: list[BaseException] = []
    original = driver.Run

    def recording_run(*arguments: Any) -> driver.Run:
        """Return a new run, and record it."""
        runs.append(original(*arguments))
        return runs[-1]

    def simulate_in_second_thread(seed: int, replicate: int, silo: int, round: int) -> Any:
        """Return features and means, and call the running simulation from a second thread."""
        if runs:
            with ThreadPoolExecutor(1) as pool:
                errors.append(pool.submit(runs[-1].simulate, 1, 1).exception())
        return np.eye(2), np.array([0.2, 0.6])

    monkeypatch.setattr(driver, "Run", recording_run)
    results = fastfed.simulate(
        Python(function=simulate_in_second_thread, dimension=2, actions=2, independent=True),
        curves=[{"label": "one", "algorithm": "fedlinucb"}],
        silos=1, horizon=4, replicates=1,
    )  # fmt: skip
    assert len(runs) == 1 and len(errors) == 4
    assert all("one thread at a time" in str(error) for error in errors)
    assert results.curves[0].final()["mean"] >= 0.0


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a Python with the GIL")
def test_importing_fastfed_keeps_the_gil_disabled() -> None:
    code = "import sys, fastfed.parties, fastfed.kernels; print(sys._is_gil_enabled())"
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (process.returncode, process.stdout) == (0, "False\n"), process.stderr


@pytest.mark.slow  # Cython's import
def test_setup_refuses_abi3_wheels_without_the_gil() -> None:
    """Simulate such a Python in sysconfig; setup.py stops before it builds anything."""
    setup = Path(__file__).resolve().parents[2] / "setup.py"
    if not setup.exists():
        pytest.skip("needs the checkout")
    pytest.importorskip("Cython")
    code = (
        "import runpy, sysconfig, sys\n"
        "ask = sysconfig.get_config_var\n"
        "sysconfig.get_config_var = lambda name: 1 if name == 'Py_GIL_DISABLED' else ask(name)\n"
        "import Cython.Build\n"
        "Cython.Build.cythonize = lambda *given, **keys: []\n"
        "sys.argv = ['setup.py', '--version']\n"
        f"runpy.run_path({str(setup)!r}, run_name='__main__')\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=setup.parent, capture_output=True, text=True,
        env={"FASTFED_BUILD": "abi3", "PATH": ""}, timeout=120,
    )  # fmt: skip
    assert process.returncode == 1
    assert "FASTFED_BUILD=abi3 needs a Python with the GIL" in process.stderr
