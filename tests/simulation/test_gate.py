"""The speed gate: its statistic, its workloads, its source trees and its planted slowdowns."""

from __future__ import annotations

import math
import random
import shutil
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
    """Return a block that measures base and head twice, in turn, without noise."""
    return Block((base, base), (head, head), (base, base), (head, head))


def noisy(rng: random.Random, ratio: float, pairs: int = 3, blocks: int = 5) -> list[list[Block]]:
    """Return times of a busy machine: changing level, long tail, and a bias per process."""
    blocks_by_pair = []
    for _ in range(pairs):
        bias = math.exp(rng.gauss(0.0, 0.02))
        blocks_by_pair.append([])
        for _ in range(blocks):
            level = math.exp(rng.gauss(0.0, 0.3))

            def noisy_time(scale: float, level: float = level) -> float:
                """Return a time with noise that is now and then large."""
                tail = rng.paretovariate(3.0) - 1.0 if rng.random() < 0.3 else 0.0
                return scale * level * (1.0 + 0.05 * rng.random() + tail)

            base, head = [
                (noisy_time(1.0), noisy_time(1.0)),
                (noisy_time(ratio * bias), noisy_time(ratio * bias)),
            ]
            blocks_by_pair[-1].append(Block(base, head, base, head))
    return blocks_by_pair


@pytest.mark.parametrize("alpha", [0.001, 0.05])
def test_an_interval_misses_the_median_with_probability_alpha_at_most(alpha):
    """The k-th of n values is beyond the median if fewer than k of n coins show heads."""
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


def test_the_ratio_of_a_block_uses_the_lesser_of_two_times():
    assert Block((2.0, 9.0), (3.0, 3.3), (1, 1), (1, 1)).ratio == 1.5


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [(1.3, SLOWER), (1.0, EQUAL), (0.7, FASTER), (1.14, EQUAL), (1.16, SLOWER)],
)
def test_verdicts_without_noise(ratio, verdict):
    comparison = compare([[block(1.0, ratio)] * 5] * 3)
    assert comparison.verdict == comparison.last_verdict == verdict
    assert comparison.low == comparison.high == comparison.ratio == pytest.approx(ratio)


def test_a_single_pair_of_processes_proves_no_slowdown():
    """A process may have an unlucky memory layout, so few slow pairs leave the verdict open.

    The last verdict then follows the median.
    """
    pairs = [[block(1.0, 1.0)] * 5] + [[block(1.0, 1.3)] * 10] * 5
    comparison = compare(pairs)
    assert (
        comparison.low > LIMIT and comparison.verdict == OPEN and comparison.last_verdict == SLOWER
    )
    mostly_equal = compare([[block(1.0, 1.3)] * 5, *[[block(1.0, 1.0)] * 5] * 2])
    assert mostly_equal.verdict == OPEN and mostly_equal.last_verdict == EQUAL


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, EQUAL), (1.3, SLOWER)])
def test_the_verdict_is_right_in_noise(ratio, verdict):
    """At most 4 of 400 comparisons end with a wrong verdict, with up to 12 pairs each."""
    rng = random.Random(1)
    wrong_verdicts = 0
    for _ in range(400):
        pairs = noisy(rng, ratio)
        while compare(pairs).verdict == OPEN and len(pairs) < 12:
            pairs += noisy(rng, ratio, pairs=1)
        wrong_verdicts += compare(pairs).last_verdict != verdict
    assert wrong_verdicts <= 4


def test_the_interval_contains_the_median():
    """Intervals of 15 values of a skewed distribution contain its median, 1.2.

    10 or more of 2000 intervals miss it with probability 1 / 3e4.
    """
    rng = random.Random(2)

    def value() -> float:
        return 1.2 * (1.0 + rng.expovariate(1.0)) if rng.random() < 0.5 else rng.uniform(1.1, 1.2)

    intervals = [interval([value() for _ in range(15)]) for _ in range(2000)]
    assert sum(not low <= 1.2 <= high for low, high in intervals) < 10


def test_waiting_is_detected_if_every_run_of_head_waits():
    waiting = Block((1.0, 1.0), (1.0, 1.0), (1.0, 1.1), (1.3, 1.4))
    assert waits([[waiting] * 5] * 3)
    almost_waiting = Block((1.0, 1.0), (1.0, 1.0), (1.0, 1.1), (1.3, 1.1))
    assert not waits([[waiting] * 14 + [almost_waiting]])
    # If few runs do not wait, these may all be runs of base by chance.
    busy_machine = Block((1.0, 1.0), (1.0, 1.0), (3.0, 2.0), (2.0, 5.0))
    assert not waits([[busy_machine] * 12 + [waiting] * 3])


# ---- workloads ----------------------------------------------------------------------------------


def test_every_system_and_every_public_kernel_is_timed():
    names = workloads.names()
    assert len(set(names)) == len(names)
    systems = {name.split()[1].partition("/")[0] for name in names if name.startswith("system")}
    assert systems == set(ALGORITHMS.builtin) - set(workloads.NOT_TIMED)
    timed_kernels = {name.split()[1] for name in names if name.startswith("kernel")}
    assert timed_kernels == set(kernels.__all__)


def test_workloads_can_be_created_and_run():
    """Run one workload of each group; `benches/bench_workloads.py` runs all workloads."""
    names = "system hedge", "bench fixed-k100-d5", "kernel solve d=10", "size ring M=100"
    for name in (*names, "user set d=2", "user sphere.toml"):
        workloads.make(name)()


# ---- trees --------------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a git repository with one commit of empty sources."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    root = tmp_path / "repository"
    kernels_ = root / "fastfed" / "_kernels" / "src"
    kernels_.mkdir(parents=True)
    (kernels_ / "a.c").write_text("int a;\n")
    for name in builds.SOURCES:
        (root / name).write_text("\n")
    (root / ".gitignore").write_text("*.so\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        [*identity, "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    return root


def test_trees_hold_the_base_commit_and_the_checkout(repository, tmp_path):
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
    assert builds.digest(base) == builds.digest(head)  # Python files are not part of the digest
    with pytest.raises(builds.BuildError, match="nothing"):
        builds.base_tree("nothing", root=repository, cache=tmp_path / "cache")


def test_the_default_base_is_where_the_branch_left_main(repository):
    def commit(*words: str) -> str:
        """Make an empty commit, and return its hash."""
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        builds.git(*identity, "commit", "-q", "--allow-empty", "-m", *words, root=repository)
        return builds.git("rev-parse", "HEAD", root=repository)

    first = builds.git("rev-parse", "HEAD", root=repository)
    second = commit("two")
    assert builds.default_base(repository) == first  # on main: the commit before
    builds.git("checkout", "-q", "-b", "work", root=repository)
    commit("three")
    commit("four")
    assert builds.default_base(repository) == second


@pytest.mark.parametrize("name", trials.PLANTS)
def test_planted_slowdowns_apply_to_the_checkout(name):
    """Check that `gate.trials` can still plant this slowdown, which the gate must detect."""
    plant = trials.PLANTS[name]
    assert (builds.ROOT / plant.file).read_text().count(plant.before) == 1
    assert plant.workload in workloads.names()
