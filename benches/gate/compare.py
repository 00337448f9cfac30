"""Time the same workloads in pairs of processes, one process per side, until there is a verdict.

The two *sides* are base and head: the source trees that are compared.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from gate.statistic import LIMIT, OPEN, SLOWER, Block, Comparison, compare, waits
from gate.workloads import GROUPS

#: Least processor time of one timing, in nanoseconds. A timing repeats short calls to reach it.
LEAST = 2_000_000
#: BLOCKS: blocks of a workload in one pair of processes. PAIRS: pairs of processes for every
#: workload; SLOWER_PAIRS: for workloads that seem slower; MOST_PAIRS: while the verdict is open.
BLOCKS, PAIRS, SLOWER_PAIRS, MOST_PAIRS = 5, 3, 6, 12


def renew(tree: Path) -> None:
    """Replace the compiled core of a tree by a copy, which is loaded at other physical pages.

    All processes that load one file share its pages. Times of identical code differ by up to a
    fifth between different pages.
    """
    for file in (tree / "fastfed" / "_kernels").glob("_native.*"):
        if file.suffix in (".so", ".pyd"):
            copy = file.with_name(f"{file.name}.{os.getpid()}")
            shutil.copy2(file, copy)
            copy.replace(file)


class Side:
    """A worker process that imports fastfed from one tree.

    Parameters
    ----------
    tree : Path
    processor : int or None
        The processor that the process is bound to; None does not bind it.
    """

    def __init__(self, tree: Path, processor: int | None) -> None:
        self.tree = tree
        path = os.pathsep.join(str(p) for p in (tree, Path(__file__).parents[1]))
        pinned = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
        # Cache bytecode: compiling the tree to bytecode takes longer than timing its workloads.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gate.worker", str(tree)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**environment, **pinned, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            cwd=tree,
        )  # fmt: skip
        if processor is not None:
            os.sched_setaffinity(self.process.pid, {processor})

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the worker (see `gate.worker`) and return its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the process of {self.tree} ended during the request {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()


def processors() -> list[int | None]:
    """Return the processors for the pairs, in turn. Both processes of a pair use one processor."""
    if not hasattr(os, "sched_getaffinity"):
        return [None]
    return sorted(os.sched_getaffinity(0))


def loops_of(side: Side, name: str) -> int | str:
    """Return how many calls of a workload take `LEAST`; if the workload fails, the error."""
    loops = 1
    while True:
        answer = side.ask(name=name, loops=loops)
        if "error" in answer:
            return str(answer["error"])
        ((nanoseconds, _),) = answer["times"]
        if nanoseconds >= LEAST / 2 or loops >= 1 << 20:
            return max(1, round(loops * LEAST / max(nanoseconds, 1)))
        loops *= 2 if nanoseconds > LEAST / 50 else 10


def block(base: Side, head: Side, name: str, loops: int, headfirst: bool = False) -> Block:
    """Time base, head, head, base, or the reverse order with ``headfirst``.

    In this order a steady drift of the machine's speed adds the same time to base and to head.
    """
    times: dict[Side, list[tuple[float, float]]] = {base: [], head: []}
    outer, inner = (head, base) if headfirst else (base, head)
    for side, runs in ((outer, 1), (inner, 2), (outer, 1)):
        answer = side.ask(name=name, loops=loops, runs=runs)
        if "error" in answer:
            raise RuntimeError(f"{name} fails in {side.tree}, but ran before: {answer['error']}")
        times[side] += answer["times"]
    (a, b), (c, d) = times[base], times[head]
    return Block((a[0], b[0]), (c[0], d[0]), (a[1], b[1]), (c[1], d[1]))


@dataclass
class Row:
    """The timings of one workload so far."""

    name: str
    loops: int
    pairs: list[list[Block]] = field(default_factory=list)
    limit: float = LIMIT

    @property
    def comparison(self) -> Comparison:
        return compare(self.pairs, self.limit)

    @property
    def waits(self) -> bool:
        return waits(self.pairs, self.limit)

    def microseconds(self, side: str) -> float:
        """Return the least processor time of one call on a side, in microseconds."""
        blocks = [block for pair in self.pairs for block in pair]
        return min(min(getattr(block, side)) for block in blocks) / self.loops / 1000


@dataclass
class Results:
    """The timings of all workloads that run on both sides, and the workloads that do not."""

    rows: list[Row] = field(default_factory=list)
    #: Workload that base does not have or that fails there -> reason.
    new: dict[str, str] = field(default_factory=dict)
    #: Workload that only base has, or that fails only on head -> reason.
    lost: dict[str, str] = field(default_factory=dict)


def measure(
    base: Path,
    head: Path,
    is_selected: Callable[[str], bool] = lambda name: True,
    groups: Iterable[str] = GROUPS,
    limit: float = LIMIT,
    report_progress: Callable[[str], None] = lambda text: None,
) -> Results:
    """Time all selected workloads of two trees, and time workloads without a verdict longer.

    A verdict needs several pairs of processes. The addresses that the loader and the allocator
    choose do not change while a process runs, and make times of identical code differ by several
    per cent.
    """
    results = Results()
    rows: dict[str, Row] = {}
    bound_to = processors()
    names: list[str] = []
    for pair in range(MOST_PAIRS):
        renew(base)
        renew(head)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(Side(tree, bound_to[pair % len(bound_to)]))
                for tree in (base, head)
            ]
            old, new = sides
            if not pair:
                names = [name for name in known(results, sides, groups) if is_selected(name)]
                report_progress(f"{len(names)} workloads")
            for name in names:
                if not pair and (loops := loops_in_both(results, name, old, new)):
                    rows[name] = Row(name, loops, limit=limit)
            names = [name for name in names if name in rows]
            blocks: dict[str, list[Block]] = defaultdict(list)
            for name in names:  # prepare all workloads before timing
                for side in sides:
                    side.ask(name=name, loops=1)
            for round_of_pair in range(BLOCKS):
                for name in names:
                    # Alternate: the inner side runs twice in a row and finds warm caches.
                    reverse = (pair + round_of_pair) % 2 == 1
                    blocks[name].append(block(old, new, name, rows[name].loops, reverse))
        for name in names:
            rows[name].pairs.append(blocks[name])
        if pair + 1 >= PAIRS:
            undecided = {OPEN, SLOWER} if pair + 1 < SLOWER_PAIRS else {OPEN}
            names = [name for name in names if rows[name].comparison.verdict in undecided]
            if not names:
                break
            report_progress(f"{len(names)} open: {', '.join(names)}")
    results.rows = list(rows.values())
    return results


def known(results: Results, sides: Sequence[Side], groups: Iterable[str]) -> list[str]:
    """Return the names of head's workloads, and note as lost the names that only base has."""
    base_answer, head_answer = (side.ask(names=list(groups)) for side in sides)
    if "error" in head_answer:
        raise RuntimeError(f"head has no workloads: {head_answer['error']}")
    lost_names = set(base_answer.get("names", [])) - set(head_answer["names"])
    results.lost.update({name: "head does not have it" for name in sorted(lost_names)})
    return list(head_answer["names"])


def loops_in_both(results: Results, name: str, old: Side, new: Side) -> int | None:
    """Return the number of calls per timing, is_selected on base; None if a side fails.

    A failure is noted in ``results``.
    """
    loops = loops_of(old, name)
    if isinstance(loops, str):
        results.new[name] = loops
        return None
    failed = new.ask(name=name, loops=1).get("error")
    if failed:
        results.lost[name] = str(failed)
        return None
    return loops
