"""Rounds over the rows of your LETOR files by every default, against a competent NumPy loop.

    python benches/real_rows.py MSLR/Fold1 --features anchor-url both --queries 60 2000 16000

Queries are copies of the files' own, drawn with replacement, which lie elsewhere in memory. Each
pair of figures comes from a new process that is bound to one core, with BLAS on one thread: where
its memory lies makes equal code differ by up to a third for as long as it lives. A row says what
rounds take over a pool that was just opened, so that with many queries most are met for the first
time, and once it has been played five times; the ratio is NumPy's time to it, in the same process.
With --once a query comes once in a run, in the order in which they lie in memory.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

#: Runs over a pool before its queries count as met before.
MEETINGS = 5


def measure(
    path: str, features: str, queries: int, lazy: bool, rounds: int, once: bool
) -> dict[str, float]:
    """The number d of features, and microseconds per agent-round: `first`, `met` and `numpy`."""
    import numpy as np
    import numpy_float32

    from fastfed.environments.letor import letor_pool
    from fastfed.environments.pool import equal_blocks
    from fastfed.protocols.plan import check_plan
    from fastfed.simulation import bench

    class RealPool(bench.LetorPool):
        """Copies of the files' queries."""

        def __init__(self) -> None:
            super().__init__(2, bench.SILOS)
            pool = letor_pool(path, 1, features=features)
            starts, dimension = np.asarray(pool.starts), pool.dimension
            order = np.random.default_rng(0).integers(0, len(starts) - 1, queries)
            blocks = [
                np.asarray(pool.values[dimension * a : dimension * b]).reshape(dimension, b - a).T
                for a, b in itertools.pairwise(starts)
            ]
            self.rows = np.ascontiguousarray(np.concatenate([blocks[q] for q in order]))
            self.means = np.concatenate(
                [np.asarray(pool.means)[starts[q] : starts[q + 1]] for q in order]
            )
            self.starts = np.concatenate([[0], np.cumsum(np.diff(starts)[order])])
            self.silo_starts = equal_blocks(queries, bench.SILOS)

    environment = RealPool()
    if once:
        environment.sampling = "in-order"
        rounds = min(rounds, queries // bench.SILOS)
    system = "default" if lazy else "default-eager"
    experiment = bench.bench_experiment(environment, rounds, system, bench.SILOS, None)
    plan = check_plan(experiment.curves[0].system.plan)
    _ = environment.made
    # What a process imports at its first run is no part of a round.
    small = bench.bench_experiment(bench.LetorPool(8, 20), 10, system, bench.SILOS, None)
    bench.ours_microseconds(small)
    first = bench.ours_microseconds(experiment)
    other = numpy_float32.pool_microseconds(
        plan,
        environment.rows,
        environment.starts,
        environment.silo_starts,
        environment.means,
        rounds=rounds,
        once=once,
    )
    for _ in range(MEETINGS - 1):
        bench.ours_microseconds(experiment)
    met = statistics.median(bench.ours_microseconds(experiment) for _ in range(3))
    return {"d": plan.dimension, "first": first, "met": met, "numpy": other}


def in_new_process(
    path: str, features: str, queries: int, lazy: bool, rounds: int, once: bool
) -> Any:
    """`measure` in a new process."""
    words = [features, str(queries), "lazy" if lazy else "eager", str(rounds)]
    words += ["--once"] * once
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # Both name a processor for NumPy's BLAS, which then has not its own pace.
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        environment.pop(name, None)
    command = [sys.executable, __file__, path, "--one", *words]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    return json.loads(output)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", help="a LETOR file, or a folder of them (MSLR-WEB10K, WEB30K)")
    parser.add_argument("--features", nargs="+", default=["anchor-url", "both"])
    parser.add_argument("--queries", type=int, nargs="+", default=[60, 2000, 16000])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=5, help="of each row")
    parser.add_argument("--core", type=int, help="the core it is bound to (the last)")
    parser.add_argument("--once", action="store_true", help="a query comes once in a run")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        features, queries, kind, rounds = given.one
        lazy, once = kind == "lazy", given.once
        found = measure(given.path, features, int(queries), lazy, int(rounds), once)
        print(json.dumps(found))
        return
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0)) if given.core is None else given.core
        os.sched_setaffinity(0, {core})
    print(time.strftime("%Y-%m-%d"), "microseconds per agent-round, medians (least to most)")
    print(f"{'d, queries':22}{'first':>20}{'met before':>20}{'NumPy':>8}   ratios")
    for features in given.features:
        for queries in given.queries:
            for lazy in (True, False):
                runs = [
                    in_new_process(given.path, features, queries, lazy, given.rounds, given.once)
                    for _ in range(given.processes)
                ]
                cells = f"{runs[0]['d']}, {queries}, {'lazy' if lazy else 'eager'}".ljust(22)
                for name in ("first", "met"):
                    each = sorted(one[name] for one in runs)
                    middle = statistics.median(each)
                    cells += f"{middle:.2f} ({each[0]:.2f}-{each[-1]:.2f})".rjust(20)
                cells += f"{statistics.median(one['numpy'] for one in runs):8.1f}"
                for name in ("first", "met"):
                    ratio = statistics.median(one["numpy"] / one[name] for one in runs)
                    cells += f"{ratio:7.2f}"
                print(cells, flush=True)


if __name__ == "__main__":
    main()
