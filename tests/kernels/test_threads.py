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

HERE = Path(__file__).resolve().parents[1]
SOURCES = HERE.parent / "fastfed" / "_kernels" / "src"


def compiled(made: Path, *files: Path, sanitizer: str | None = None) -> Path:
    """A program of these files with threads; skips where there can be none."""
    compiler = os.environ.get("CC", "cc").split()
    if not shutil.which(compiler[0]) or not SOURCES.exists():
        pytest.skip("needs a C compiler and the sources")
    build = [*compiler, "-O1", "-g", "-std=gnu11", "-DFF_THREADS", f"-I{SOURCES}"]
    ends = [*map(str, files), "-pthread", "-o", str(made)]
    for more in ([sanitizer], []) if sanitizer else ([],):
        if subprocess.run([*build, *more, *ends], capture_output=True).returncode == 0:
            return made
    pytest.skip("the compiler builds no program with threads")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teams of threads alone, under the sanitizer of threads where there is one."""
    made = tmp_path_factory.mktemp("threads") / "threads"
    files = HERE / "threads.c", SOURCES / "ff_threads.c"
    return compiled(made, *files, sanitizer="-fsanitize=thread")


@pytest.fixture(scope="module")
def pace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rule by which pieces of work are shared, alone."""
    return compiled(tmp_path_factory.mktemp("threads") / "pace", HERE / "pace.c")


#: Seconds of a piece of work: alone, shared, and what all of it takes at the caller's pace then.
IDLE = [150e-6, 80e-6, 155e-6]
# Beside a busy core (M = 20, B = 1): the caller, who shares its core, takes as long as all.
CROWDED = [45e-6, 55e-6, 58e-6]
SHORT = [30e-6, 55e-6, 58e-6]
LIGHT = [5e-6, 9e-6, 10e-6]
# A run may have few pieces so long: one is done alone, not more.
LONG = [27e-3, 14e-3, 27.5e-3]


@pytest.mark.parametrize(
    ("before", "after", "shared", "slower"),
    [
        (IDLE, IDLE, (9900, 10_000), 0.55),
        (CROWDED, CROWDED, (0, 200), 1.01),
        (SHORT, SHORT, (0, 50), 1.01),
        (IDLE, CROWDED, (4900, 5500), 0.8),
        (CROWDED, IDLE, (1000, 5200), 0.95),
        (IDLE, LIGHT, (4900, 5300), 0.6),
        ([a / 2 for a in IDLE], IDLE, (9800, 10_000), 0.56),
        (LONG, LONG, (9999, 9999), 0.53),
    ],
    ids=[
        "idle",
        "crowded",
        "too short",
        "then crowded",
        "then idle",
        "then light",
        "then heavy",
        "long",
    ],
)
def test_threads_share_only_what_they_are_faster_at(
    pace: Path, before: list[float], after: list[float], shared: tuple[int, int], slower: float
) -> None:
    times = [*before, 5000, *after]
    ran = subprocess.run([str(pace), *map(str, times)], capture_output=True, text=True, check=True)
    pieces, ratio = ran.stdout.split()
    assert shared[0] <= int(pieces) <= shared[1]
    assert float(ratio) <= slower


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
