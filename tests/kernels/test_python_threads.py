"""Python's threads: each with its own objects, and what is refused; also where there is no GIL."""

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
    """work(0), work(1), ..., begun at once."""
    ready = Barrier(THREADS)

    def begin(thread: int) -> Any:
        ready.wait(60)
        return work(thread)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def agent(seed: int) -> bytes:
    """What an agent of its own has learnt, and what it chose."""
    draw = np.random.default_rng(seed)
    made = fastfed.LinUCB(dimension=6)
    chosen = []
    for _ in range(40):
        chosen.append(made.select(draw.normal(size=(9, 6)) / 4))
        made.observe(float(draw.random()))
    return made.theta.tobytes() + bytes(chosen)


def arrays(seed: int) -> bytes:
    """Kernels on arrays of its own."""
    draw = np.random.default_rng(seed)
    gram, bias, factor, theta = np.eye(5), np.zeros(5), np.eye(5), np.zeros(5)
    for _ in range(40):
        x, y = draw.normal(size=(2, 5)) / 3, draw.random(2)
        kernels.rank_one_update(gram, bias, x, y)
        kernels.factor_update(factor, theta, x, y)
        kernels.ucb_scores(x, factor, theta, 0.5)
    drawn = kernels.normals(seed, 7, purpose=3)
    return b"".join(one.tobytes() for one in (gram, bias, factor, theta, drawn))


def simulation(seed: int) -> bytes:
    """A simulation of its own, whose silos share threads too."""
    curve = {"algorithm": "private-fedlinucb", "protocol": "silo-ldp", "epsilon": 1.0}
    results = fastfed.simulate(
        Sphere(dimension=4, actions=6),
        curves=[curve | {"label": "one", "delta": 1e-5, "batch_size": 5}],
        silos=3, horizon=20, replicates=2, threads=2, seed=seed,
    )  # fmt: skip
    return results.curves[0].group_regret.tobytes()


@pytest.mark.parametrize("work", [agent, arrays, simulation])
def test_threads_with_their_own_objects_have_the_bits_of_one(work: Callable[[int], bytes]) -> None:
    found = each_in_a_thread(work)
    assert found == [work(seed) for seed in range(THREADS)]
    assert len(set(found)) == THREADS


def test_replicates_in_threads_share_the_memory_of_a_pool() -> None:
    """All of them write where the first one does, and none frees it."""
    draw = np.random.default_rng(3)
    contexts = draw.normal(size=(2, 40, 20, 32)) / 12
    rewards = draw.random((2, 40, 20))

    def found(threads: int) -> bytes:
        results = fastfed.simulate(
            Replay.from_arrays(contexts, rewards),
            curves=[{"label": "one", "algorithm": "fedlinucb", "batch_size": 5}],
            horizon=40, replicates=THREADS, threads=threads,
        )  # fmt: skip
        return results.curves[0].group_regret.tobytes()

    alone = found(1)
    for _ in range(5):
        assert found(THREADS) == alone


def test_a_run_simulates_in_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[driver.Run] = []
    refused: list[BaseException] = []
    original = driver.Run

    def kept(*given: Any) -> driver.Run:
        runs.append(original(*given))
        return runs[-1]

    def meddle(seed: int, replicate: int, silo: int, round: int) -> Any:
        if runs:
            with ThreadPoolExecutor(1) as pool:
                refused.append(pool.submit(runs[-1].simulate, 1, 1).exception())
        return np.eye(2), np.array([0.2, 0.6])

    monkeypatch.setattr(driver, "Run", kept)
    results = fastfed.simulate(
        Python(function=meddle, dimension=2, actions=2, independent=True),
        curves=[{"label": "one", "algorithm": "fedlinucb"}],
        silos=1, horizon=4, replicates=1,
    )  # fmt: skip
    assert len(runs) == 1 and len(refused) == 4
    assert all("one thread at a time" in str(error) for error in refused)
    assert results.curves[0].final()["mean"] >= 0.0


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="a Python with the GIL")
def test_importing_fastfed_leaves_the_gil_off() -> None:
    code = "import sys, fastfed.parties, fastfed.kernels; print(sys._is_gil_enabled())"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, "False\n"), ran.stderr


@pytest.mark.slow  # Cython's import
def test_the_abi3_wheel_is_not_for_a_python_without_the_gil() -> None:
    """Which is what the module of sysconfig says; setup.py stops before it builds anything."""
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
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=setup.parent, capture_output=True, text=True,
        env={"FASTFED_BUILD": "abi3", "PATH": ""}, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "FASTFED_BUILD=abi3 needs a Python with the GIL" in ran.stderr
