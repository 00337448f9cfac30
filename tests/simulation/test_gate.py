"""The gate: its statistic on times of known law, its workloads, its trees, its plants."""

from __future__ import annotations

import math
import random
import subprocess
from pathlib import Path

import pytest
from gate import builds, trials, workloads
from gate.statistic import (
    EQUAL,
    FASTER,
    LIMIT,
    OPEN,
    SLOWER,
    Block,
    compare,
    interval,
    misses,
    waits,
)

from fastfed import kernels
from fastfed.simulation.systems import ALGORITHMS

# ---- statistic ----------------------------------------------------------------------------------


def block(base: float, head: float) -> Block:
    """A block without disturbance."""
    return Block((base, base), (head, head), (base, base), (head, head))


def noisy(rng: random.Random, ratio: float, pairs: int = 3, blocks: int = 5) -> list[list[Block]]:
    """Times of a busy machine: a level that wanders, a long tail, a bias of each process."""
    found = []
    for _ in range(pairs):
        bias = math.exp(rng.gauss(0.0, 0.02))
        found.append([])
        for _ in range(blocks):
            level = math.exp(rng.gauss(0.0, 0.3))

            def taken(scale: float, level: float = level) -> float:
                tail = rng.paretovariate(3.0) - 1.0 if rng.random() < 0.3 else 0.0
                return scale * level * (1.0 + 0.05 * rng.random() + tail)

            base, head = [(taken(1.0), taken(1.0)), (taken(ratio * bias), taken(ratio * bias))]
            found[-1].append(Block(base, head, base, head))
    return found


@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_an_interval_misses_the_median_as_rarely_as_it_says(alpha):
    """By counting: the k-th of n is beyond the median if fewer than k of n coins show heads."""
    for n in range(1, 60):
        k = misses(n, alpha)
        beyond = [sum(math.comb(n, i) for i in range(j)) / 2**n for j in range(n // 2 + 1)]
        assert 2 * beyond[k] <= alpha
        assert k == n // 2 or 2 * beyond[k + 1] > alpha


def test_intervals_are_order_statistics():
    values = [float(value) for value in range(1, 16)]
    assert misses(15, 0.001) == 2
    assert interval(values[::-1], 0.001) == (2.0, 14.0)
    assert interval([1.0] * 5) == (0.0, math.inf)  # five blocks prove nothing at 0.001


def test_a_block_goes_by_the_lesser_of_two_times():
    assert Block((2.0, 9.0), (3.0, 3.3), (1, 1), (1, 1)).ratio == 1.5


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.3, SLOWER), (1.0, EQUAL), (0.7, FASTER), (1.14, EQUAL), (1.16, SLOWER)],
)
def test_verdicts_without_noise(ratio, verdict):
    found = compare([[block(1.0, ratio)] * 5] * 3)
    assert found.verdict == found.last_verdict == verdict
    assert found.low == found.high == found.ratio == pytest.approx(ratio)


def test_one_pair_of_processes_alone_proves_no_slowness():
    """Its memory may lie badly: 1.3 in two pairs of three is open, and then the median decides."""
    pairs = [[block(1.0, 1.0)] * 5] + [[block(1.0, 1.3)] * 10] * 5
    found = compare(pairs)
    assert found.low > LIMIT and found.verdict == OPEN and found.last_verdict == SLOWER
    mostly_equal = compare([[block(1.0, 1.3)] * 5, *[[block(1.0, 1.0)] * 5] * 2])
    assert mostly_equal.verdict == OPEN and mostly_equal.last_verdict == EQUAL


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, EQUAL), (1.3, SLOWER)])
def test_the_verdict_is_right_in_noise(ratio, verdict):
    """Of 400 comparisons at most 4 are wrong as they end, after as many pairs as they ask for."""
    rng = random.Random(1)
    wrong = 0
    for _ in range(400):
        pairs = noisy(rng, ratio)
        while compare(pairs).verdict == OPEN and len(pairs) < 12:
            pairs += noisy(rng, ratio, pairs=1)
        wrong += compare(pairs).last_verdict != verdict
    assert wrong <= 4


def test_the_interval_holds_the_median():
    """Of a skewed law with median 1.2, 15 values; 10 and more of 2000 are missed once in 3e4."""
    rng = random.Random(2)

    def value() -> float:
        return 1.2 * (1.0 + rng.expovariate(1.0)) if rng.random() < 0.5 else rng.uniform(1.1, 1.2)

    found = [interval([value() for _ in range(15)]) for _ in range(2000)]
    assert sum(not low <= 1.2 <= high for low, high in found) < 10


def test_waiting_is_seen_where_it_is_in_every_run():
    asleep = Block((1.0, 1.0), (1.0, 1.0), (1.0, 1.1), (1.3, 1.4))
    assert waits([[asleep] * 5] * 3)
    once = Block((1.0, 1.0), (1.0, 1.0), (1.0, 1.1), (1.3, 1.1))
    assert not waits([[asleep] * 14 + [once]])
    # Where few runs have the processor at once it may be base's that do.
    busy = Block((1.0, 1.0), (1.0, 1.0), (3.0, 2.0), (2.0, 5.0))
    assert not waits([[busy] * 12 + [asleep] * 3])


# ---- workloads ----------------------------------------------------------------------------------


def test_every_system_and_every_public_kernel_is_timed():
    names = workloads.names()
    assert len(set(names)) == len(names)
    systems = {name.split()[1].partition("/")[0] for name in names if name.startswith("system")}
    assert systems == set(ALGORITHMS.builtin) - set(workloads.NOT_TIMED)
    timed = {name.split()[1] for name in names if name.startswith("kernel")}
    assert timed == set(kernels.__all__)


def test_workloads_can_be_made():
    """One of each group here; `benches/bench_workloads.py` makes them all."""
    for name in ("system hedge", "bench fixed-k100-d5", "kernel solve d=10", "size ring M=100"):
        workloads.make(name)()


# ---- trees --------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    kernels_ = root / "fastfed" / "_kernels" / "src"
    kernels_.mkdir(parents=True)
    (kernels_ / "a.c").write_text("int a;\n")
    for name in builds.SOURCES:
        (root / name).write_text("\n")
    (root / ".gitignore").write_text("*.so\n")
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], [*own, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def test_trees_are_the_commit_and_the_checkout(repository, tmp_path):
    (repository / "fastfed" / "_kernels" / "src" / "a.c").write_text("int b;\n")
    (repository / "new.py").write_text("")
    (repository / "old.so").write_text("")
    base = builds.base_tree("HEAD", root=repository, cache=tmp_path / "cache")
    head = builds.head_tree(tmp_path / "head", root=repository)
    source = Path("fastfed", "_kernels", "src", "a.c")
    assert (base / source).read_text() == "int a;\n" and (head / source).read_text() == "int b;\n"
    assert (head / "new.py").exists() and not (head / "old.so").exists()
    assert builds.digest(base) != builds.digest(head)
    (head / source).write_text("int a;\n")
    assert builds.digest(base) == builds.digest(head)  # Python does not count
    with pytest.raises(builds.BuildError, match="nothing"):
        builds.base_tree("nothing", root=repository, cache=tmp_path / "cache")


def test_the_base_is_where_head_left_main(repository):
    def commit(*words: str) -> str:
        own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        builds.git(*own, "commit", "-q", "--allow-empty", "-m", *words, root=repository)
        return builds.git("rev-parse", "HEAD", root=repository)

    first = builds.git("rev-parse", "HEAD", root=repository)
    second = commit("two")
    assert builds.default_base(repository) == first  # on main: the one before
    builds.git("checkout", "-q", "-b", "work", root=repository)
    commit("three")
    commit("four")
    assert builds.default_base(repository) == second


@pytest.mark.parametrize("name", trials.PLANTS)
def test_plants_fit_the_checkout(name):
    """So that `gate.trials` can still show that the gate fails where it should."""
    plant = trials.PLANTS[name]
    assert (builds.ROOT / plant.file).read_text().count(plant.before) == 1
    assert plant.workload in workloads.names()
