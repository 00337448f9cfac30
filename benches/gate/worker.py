"""One process of one side: makes workloads and times them, as it is told line by line.

A line of JSON asks, one answers: {"names": GROUPS} for what this side knows, {"name": N,
"loops": L, "runs": R} for R times L calls, in nanoseconds of processor and wall time. What fails
answers {"error": ...}.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gate import workloads


def room() -> list[np.ndarray]:
    """Arrays of any size, to be kept: those made next lie anywhere within a page and a line.

    Where they lie makes equal code differ by up to a fifth, and hangs on the length of a tree's
    name: it would be the same in all processes of a side. Small arrays come from blocks of their
    own size, so some of each are taken.
    """
    draw = random.SystemRandom()
    kept = [np.empty(draw.randrange(1 << 10, 1 << 14), np.uint8)]
    for size in range(16, 1 << 10, 16):
        kept += [np.empty(size, np.uint8) for _ in range(draw.randrange(8))]
    return kept


class Worker:
    """The workloads that this process has made."""

    def __init__(self) -> None:
        self.made: dict[str, Callable[[], object]] = {}
        self.between: list[object] = []

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "names" in asked:
            return {"names": workloads.names(asked["names"])}
        name, loops = asked["name"], asked["loops"]
        if name not in self.made:
            self.between.append(room())
            self.made[name] = workloads.make(name)
            self.made[name]()  # the first call fills caches that all others find
            gc.collect()
        call = self.made[name]
        call()  # the other process has had the caches
        times = []
        for _ in range(asked.get("runs", 1)):
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(loops):
                call()
            times.append((time.process_time_ns() - cpu, time.perf_counter_ns() - wall))
        return {"times": times}


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    import fastfed

    if not Path(fastfed.__file__).resolve().is_relative_to(tree):
        sys.exit(f"fastfed was found at {fastfed.__file__}, not in {tree}")
    # What is printed by a workload must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.disable()
    worker = Worker()
    for line in sys.stdin:
        try:
            found = worker.answer(json.loads(line))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
