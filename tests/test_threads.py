"""Threads that share silos: every item once, no race, no result that depends on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest

import fastfed
from fastfed._kernels import driver
from fastfed.environments import Sphere

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "fastfed" / "_kernels" / "src"


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teams of threads alone, under the sanitizer of threads where there is one."""
    compiler = os.environ.get("CC", "cc").split()
    if not shutil.which(compiler[0]) or not SOURCES.exists():
        pytest.skip("needs a C compiler and the sources")
    made = tmp_path_factory.mktemp("threads") / "threads"
    build = [*compiler, "-O1", "-g", "-std=gnu11", "-DFF_THREADS", f"-I{SOURCES}"]
    files = [str(HERE / "threads.c"), str(SOURCES / "ff_threads.c"), "-pthread", "-o", str(made)]
    for sanitizer in (["-fsanitize=thread"], []):
        if subprocess.run([*build, *sanitizer, *files], capture_output=True).returncode == 0:
            return made
    pytest.skip("the compiler builds no program with threads")


@pytest.mark.parametrize("least", ["-1", "2e-5"], ids=["always", "from 20 us"])
def test_every_item_is_done_once(harness: Path, least: str) -> None:
    ran = subprocess.run(
        [str(harness), least, "20"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"},
    )
    assert (ran.returncode, ran.stdout) == (0, "every item once\n"), ran.stderr[:2000]


@pytest.mark.parametrize("batch", [1, 7])
def test_bits_do_not_depend_on_threads_or_on_what_is_shared(batch: int) -> None:
    """Silos that no number of threads divides, and one thread for each."""
    world = Sphere(dimension=4, actions=6)
    curve = {"algorithm": "private-fedlinucb", "protocol": "silo-ldp", "delta": 1e-5}
    found = []
    for threads, least in [(1, -1.0), (2, -1.0), (3, 0.0), (11, -1.0), (2, 60e-6)]:
        before = driver.share_from(least)
        try:
            results = fastfed.simulate(
                world,
                curves=[curve | {"label": "one", "epsilon": 1.0, "batch_size": batch}],
                silos=11,
                horizon=60,
                replicates=1,
                threads=threads,
            )
        finally:
            assert driver.share_from(before) == least
        found.append(results.curves[0].group_regret)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.skipif(sysconfig.get_platform().startswith("win"), reason="no fork")
def test_a_fork_after_threads_runs_on() -> None:
    """Threads end with their call, so a child that has none of them waits for none."""
    world = Sphere(dimension=3, actions=4)
    keys = dict(silos=4, horizon=30, replicates=1, threads=2)
    curves = [{"label": "one", "algorithm": "fedlinucb"}]
    here = fastfed.simulate(world, curves=curves, **keys).curves[0].final()["mean"]
    child = os.fork()
    if child == 0:
        there = fastfed.simulate(world, curves=curves, **keys).curves[0].final()["mean"]
        os._exit(0 if there == here else 1)
    assert os.waitpid(child, 0)[1] == 0
