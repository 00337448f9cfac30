"""A worker process: prepare and time workloads with the fastfed of one tree.

Each line of standard input is a request in JSON, and each line of output is its answer.
{"names": GROUPS} returns the names of the workloads in these groups. {"name": N, "loops": L,
"runs": R} calls workload N L times in each of R timings, and returns processor and wall time of
each timing, in nanoseconds. If a request fails, the answer is {"error": ...}.
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


def random_allocations() -> list[np.ndarray]:
    """Allocate and return arrays of random sizes, so that later arrays have random addresses.

    The position of arrays in pages and cache lines makes times of identical code differ by up to a
    fifth. Without this function it would depend on the length of the tree's path, and would be the
    same in all processes of a side. The caller keeps a reference to the arrays. Small arrays are
    allocated from pools by size, so some arrays of each size are allocated.
    """
    rng = random.SystemRandom()
    arrays = [np.empty(rng.randrange(1 << 10, 1 << 14), np.uint8)]
    for size in range(16, 1 << 10, 16):
        arrays += [np.empty(size, np.uint8) for _ in range(rng.randrange(8))]
    return arrays


class Worker:
    """Prepares workloads, caches them, and times them on request."""

    def __init__(self) -> None:
        self.calls: dict[str, Callable[[], object]] = {}
        self.allocations: list[object] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one request."""
        if "names" in request:
            return {"names": workloads.names(request["names"])}
        name, loops = request["name"], request["loops"]
        if name not in self.calls:
            self.allocations.append(random_allocations())
            self.calls[name] = workloads.make(name)
            self.calls[name]()  # the first call fills caches that later calls use
            gc.collect()
        call = self.calls[name]
        call()  # warm the processor's caches, which the other process has used
        times = []
        for _ in range(request.get("runs", 1)):
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            for _ in range(loops):
                call()
            times.append((time.process_time_ns() - cpu, time.perf_counter_ns() - wall))
        return {"times": times}


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    import fastfed

    if not Path(fastfed.__file__).resolve().is_relative_to(tree):
        sys.exit(f"fastfed was imported from {fastfed.__file__}, not from {tree}")
    # Redirect standard output: text that a workload prints must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    gc.disable()
    worker = Worker()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
