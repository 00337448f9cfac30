"""Compare fastfed's default systems with a competent NumPy loop on the rows of LETOR files.

    python benches/real_rows.py MSLR/Fold1 --features anchor-url both --queries 60 2000 16000

The pool holds copies of the files' queries, drawn with replacement. Each pair of times is measured
in a new process that is bound to one core, with BLAS on one thread, because the memory layout of a
process changes times of identical code by up to a third. A row gives two times of fastfed: `first`
for a pool that was just opened, in which most of many queries are new, and `met before` after five
runs over the pool. Each ratio is NumPy's time over fastfed's time in the same process. With --once,
each query comes once in a run, in the order in memory.
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

#: Runs over a pool before its queries count as `met before`.
MEETINGS = 5


def measure(
    path: str, features: str, queries: int, lazy: bool, rounds: int, once: bool
) -> dict[str, float]:
    """Return d (the number of features), and microseconds per agent-round of each kind of run."""
    import numpy as np
    import numpy_float32

    from fastfed.environments.letor import letor_pool
    from fastfed.environments.pool import equal_blocks
    from fastfed.protocols.plan import check_plan
    from fastfed.simulation import bench

    class RealPool(bench.LetorPool):
        """A pool of copies of the files' queries, drawn with replacement."""

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
    environment.pool(bench.SILOS)  # load it before timing
    # Run once before timing: the first run imports modules.
    small = bench.bench_experiment(bench.LetorPool(8, 20), 10, system, bench.SILOS, None)
    bench.ours_microseconds(small)
    first = bench.ours_microseconds(experiment)
    numpy_time = numpy_float32.pool_microseconds(
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
    met_before = statistics.median(bench.ours_microseconds(experiment) for _ in range(3))
    return {"d": plan.dimension, "first": first, "met": met_before, "numpy": numpy_time}


def in_new_process(
    path: str, features: str, queries: int, lazy: bool, rounds: int, once: bool
) -> Any:
    """Run `measure` in a new process and return its result."""
    words = [features, str(queries), "lazy" if lazy else "eager", str(rounds)]
    words += ["--once"] * once
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # These variables make NumPy's BLAS use code for a different processor, with a different speed.
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
    parser.add_argument("--processes", type=int, default=5, help="processes per row")
    parser.add_argument("--core", type=int, help="the core to run on (default: the last)")
    parser.add_argument("--once", action="store_true", help="use each query once in a run")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        features, queries, kind, rounds = options.one
        lazy, once = kind == "lazy", options.once
        result = measure(options.path, features, int(queries), lazy, int(rounds), once)
        print(json.dumps(result))
        return
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0)) if options.core is None else options.core
        os.sched_setaffinity(0, {core})
    print(time.strftime("%Y-%m-%d"), "microseconds per agent-round, medians (least to most)")
    print(f"{'d, queries':22}{'first':>20}{'met before':>20}{'NumPy':>8}   ratios")
    for features in options.features:
        for queries in options.queries:
            for lazy in (True, False):
                runs = [
                    in_new_process(
                        options.path, features, queries, lazy, options.rounds, options.once
                    )
                    for _ in range(options.processes)
                ]
                cells = f"{runs[0]['d']}, {queries}, {'lazy' if lazy else 'eager'}".ljust(22)
                for name in ("first", "met"):
                    each = sorted(run[name] for run in runs)
                    median = statistics.median(each)
                    cells += f"{median:.2f} ({each[0]:.2f}-{each[-1]:.2f})".rjust(20)
                cells += f"{statistics.median(run['numpy'] for run in runs):8.1f}"
                for name in ("first", "met"):
                    ratio = statistics.median(run["numpy"] / run[name] for run in runs)
                    cells += f"{ratio:7.2f}"
                print(cells, flush=True)


if __name__ == "__main__":
    main()
