"""Pairs of processes, one of each side, that time the same work in turn until it is decided."""

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

#: A timing takes this long at least, in nanoseconds of processor time, unless one call does.
LEAST = 2_000_000
#: Blocks of a workload in one pair of processes; pairs for all, for what seems slower, and for what
#: is still open.
BLOCKS, PAIRS, SLOWER_PAIRS, MOST_PAIRS = 5, 3, 6, 12


def renew(tree: Path) -> None:
    """Replace the compiled core of a tree by a copy of it, which lies elsewhere in memory.

    Where its pages lie makes equal code differ by up to a fifth, and all processes have the same
    pages of a file.
    """
    for file in (tree / "fastfed" / "_kernels").glob("_native.*"):
        if file.suffix in (".so", ".pyd"):
            copy = file.with_name(f"{file.name}.{os.getpid()}")
            shutil.copy2(file, copy)
            copy.replace(file)


class Side:
    """A worker process with the package of one tree."""

    def __init__(self, tree: Path, processor: int | None) -> None:
        self.tree = tree
        path = os.pathsep.join(str(p) for p in (tree, Path(__file__).parents[1]))
        pinned = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
        # Bytecode is kept: compiling the tree takes longer than timing it.
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gate.worker", str(tree)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**kept, **pinned, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            cwd=tree,
        )  # fmt: skip
        if processor is not None:
            os.sched_setaffinity(self.process.pid, {processor})

    def ask(self, **asked: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            print(json.dumps(asked), file=self.process.stdin, flush=True)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"the process of {self.tree} ended while it was asked {asked}")
        found: dict[str, Any] = json.loads(answer)
        return found

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
    """Processors that pairs are bound to in turn: both sides of a pair to one."""
    if not hasattr(os, "sched_getaffinity"):
        return [None]
    return sorted(os.sched_getaffinity(0))


def loops_of(side: Side, name: str) -> int | str:
    """Calls of a workload that take LEAST; why not, where it fails."""
    loops = 1
    while True:
        found = side.ask(name=name, loops=loops)
        if "error" in found:
            return str(found["error"])
        ((taken, _),) = found["times"]
        if taken >= LEAST / 2 or loops >= 1 << 20:
            return max(1, round(loops * LEAST / max(taken, 1)))
        loops *= 2 if taken > LEAST / 50 else 10


def block(base: Side, head: Side, name: str, loops: int, headfirst: bool = False) -> Block:
    """Base, head, head, base, or the reverse: what drifts steadily adds to both alike."""
    times: dict[Side, list[tuple[float, float]]] = {base: [], head: []}
    outer, inner = (head, base) if headfirst else (base, head)
    for side, runs in ((outer, 1), (inner, 2), (outer, 1)):
        found = side.ask(name=name, loops=loops, runs=runs)
        if "error" in found:
            raise RuntimeError(f"{name} fails in {side.tree} after it did not: {found['error']}")
        times[side] += found["times"]
    (a, b), (c, d) = times[base], times[head]
    return Block((a[0], b[0]), (c[0], d[0]), (a[1], b[1]), (c[1], d[1]))


@dataclass
class Row:
    """What is known of one workload."""

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
        """The least processor time of one call."""
        blocks = [block for pair in self.pairs for block in pair]
        return min(min(getattr(block, side)) for block in blocks) / self.loops / 1000


@dataclass
class Found:
    """Rows of what both sides have; why others are not among them."""

    rows: list[Row] = field(default_factory=list)
    #: Workloads of head alone, and those that head has lost or fails at, with why.
    new: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)


def play(
    base: Path,
    head: Path,
    chosen: Callable[[str], bool] = lambda name: True,
    groups: Iterable[str] = GROUPS,
    limit: float = LIMIT,
    heard: Callable[[str], None] = lambda said: None,
) -> Found:
    """Time all chosen workloads of two trees, the open ones longer.

    A verdict needs more than one pair of processes, for where the loader and the allocator put
    things lasts as long as a process, and makes equal code differ by several per cent.
    """
    found = Found()
    rows: dict[str, Row] = {}
    which = processors()
    names: list[str] = []
    for turn in range(MOST_PAIRS):
        renew(base)
        renew(head)
        with ExitStack() as stack:
            own = [
                stack.enter_context(Side(tree, which[turn % len(which)])) for tree in (base, head)
            ]
            old, new = own
            if not turn:
                names = [name for name in known(found, own, groups) if chosen(name)]
                heard(f"{len(names)} workloads")
            for name in names:
                if not turn and (loops := loops_in_both(found, name, old, new)):
                    rows[name] = Row(name, loops, limit=limit)
            names = [name for name in names if name in rows]
            blocks: dict[str, list[Block]] = defaultdict(list)
            for name in names:  # made before anything is timed
                for side in own:
                    side.ask(name=name, loops=1)
            for turn_of_pair in range(BLOCKS):
                for name in names:
                    # By turns, or the inner side alone would find what it left in the caches.
                    reverse = (turn + turn_of_pair) % 2 == 1
                    blocks[name].append(block(old, new, name, rows[name].loops, reverse))
        for name in names:
            rows[name].pairs.append(blocks[name])
        if turn + 1 >= PAIRS:
            going = {OPEN, SLOWER} if turn + 1 < SLOWER_PAIRS else {OPEN}
            names = [name for name in names if rows[name].comparison.verdict in going]
            if not names:
                break
            heard(f"{len(names)} open: {', '.join(names)}")
    found.rows = list(rows.values())
    return found


def known(found: Found, sides: Sequence[Side], groups: Iterable[str]) -> list[str]:
    """Names that head has, and those that base alone has, which are lost."""
    theirs, mine = (side.ask(names=list(groups)) for side in sides)
    if "error" in mine:
        raise RuntimeError(f"head knows no workloads: {mine['error']}")
    gone = set(theirs.get("names", [])) - set(mine["names"])
    found.lost.update({name: "head does not know it" for name in sorted(gone)})
    return list(mine["names"])


def loops_in_both(found: Found, name: str, old: Side, new: Side) -> int | None:
    """Calls of each timing, as many as base needs; None where a side fails, which is noted."""
    loops = loops_of(old, name)
    if isinstance(loops, str):
        found.new[name] = loops
        return None
    failed = new.ask(name=name, loops=1).get("error")
    if failed:
        found.lost[name] = str(failed)
        return None
    return loops
