"""Threads share silos without races, and results do not depend on the number of threads."""

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


def compiled(program: Path, *files: Path, sanitizer: str | None = None) -> Path:
    """Compile these files into a program with threads; skip the test where that is impossible."""
    compiler = os.environ.get("CC", "cc").split()
    if not shutil.which(compiler[0]) or not SOURCES.exists():
        pytest.skip("needs a C compiler and the sources")
    command = [*compiler, "-O1", "-g", "-std=gnu11", "-DFF_THREADS", f"-I{SOURCES}"]
    inputs = [*map(str, files), "-pthread", "-o", str(program)]
    for sanitizer_flags in ([sanitizer], []) if sanitizer else ([],):
        if (
            subprocess.run([*command, *sanitizer_flags, *inputs], capture_output=True).returncode
            == 0
        ):
            return program
    pytest.skip("the compiler builds no program with threads")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that runs only thread teams, with ThreadSanitizer where available."""
    program = tmp_path_factory.mktemp("threads") / "threads"
    files = HERE / "threads.c", SOURCES / "ff_threads.c"
    return compiled(program, *files, sanitizer="-fsanitize=thread")


@pytest.fixture(scope="module")
def pace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that runs only the rule that decides which pieces of work to share."""
    return compiled(tmp_path_factory.mktemp("threads") / "pace", HERE / "pace.c")


#: Seconds of a piece of work: by one thread, shared, and by one thread at its speed when shared.
IDLE = [150e-6, 80e-6, 155e-6]
# The core is busy (M = 20, B = 1): the caller shares it, and sharing work gains no time.
CROWDED = [45e-6, 55e-6, 58e-6]
SHORT = [30e-6, 55e-6, 58e-6]
LIGHT = [5e-6, 9e-6, 10e-6]
# A run may have only a few long pieces: at most one is done by a single thread.
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
def test_threads_share_work_only_where_it_saves_time(
    pace: Path, before: list[float], after: list[float], shared: tuple[int, int], slower: float
) -> None:
    times = [*before, 5000, *after]
    child = subprocess.run(
        [str(pace), *map(str, times)], capture_output=True, text=True, check=True
    )
    pieces, ratio = child.stdout.split()
    assert shared[0] <= int(pieces) <= shared[1]
    assert float(ratio) <= slower


@pytest.mark.parametrize("least", ["-1", "2e-5"], ids=["always", "from 20 us"])
def test_every_item_is_done_once(harness: Path, least: str) -> None:
    child = subprocess.run(
        [str(harness), least, "20"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66"},
    )
    assert (child.returncode, child.stdout) == (0, "every item once\n"), child.stderr[:2000]


@pytest.mark.parametrize("batch", [1, 7])
def test_results_do_not_depend_on_threads_or_on_the_shared_work(batch: int) -> None:
    """Run 11 silos, which 2 and 3 threads do not divide, and one thread per silo."""
    environment = Sphere(dimension=4, actions=6)
    curve = {"algorithm": "private-fedlinucb", "protocol": "silo-ldp", "delta": 1e-5}
    regrets = []
    for threads, least in [(1, -1.0), (2, -1.0), (3, 0.0), (11, -1.0), (2, 60e-6)]:
        old_threshold = driver.share_from(least)
        try:
            results = fastfed.simulate(
                environment,
                curves=[curve | {"label": "one", "epsilon": 1.0, "batch_size": batch}],
                silos=11,
                horizon=60,
                replicates=1,
                threads=threads,
            )
        finally:
            assert driver.share_from(old_threshold) == least
        regrets.append(results.curves[0].group_regret)
    for regret in regrets[1:]:
        np.testing.assert_array_equal(regrets[0], regret)


@pytest.mark.skipif(sysconfig.get_platform().startswith("win"), reason="no fork")
def test_a_process_forked_after_threads_can_simulate() -> None:
    """Threads end with their call, so a forked child does not wait for the parent's threads."""
    environment = Sphere(dimension=3, actions=4)
    keys = dict(silos=4, horizon=30, replicates=1, threads=2)
    curves = [{"label": "one", "algorithm": "fedlinucb"}]
    mean_of_parent = fastfed.simulate(environment, curves=curves, **keys).curves[0].final()["mean"]
    child = os.fork()
    if child == 0:
        mean_of_child = (
            fastfed.simulate(environment, curves=curves, **keys).curves[0].final()["mean"]
        )
        os._exit(0 if mean_of_child == mean_of_parent else 1)
    assert os.waitpid(child, 0)[1] == 0
