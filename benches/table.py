"""`scripts/bench`: print time, operations, limit and share of the limit for each main case.

The rows are the cases of `fastfed bench`, without their references, and the public kernels. Times
are medians of processor time of short runs. The peaks of the processor are measured before and
after each row, so that row and peaks are measured at the same clock rate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import peaks

from fastfed import kernels
from fastfed.simulation import bench
from fastfed.simulation.limits import Peaks, Work, best_of, bound

#: LEAST: least seconds of one run of a kernel. RUNS: number of runs.
LEAST, RUNS = 0.004, 15


def kernel_rows() -> Iterator[tuple[str, Callable[[], object], Work]]:
    """Yield name, call and work of the public kernels, with trusted arguments."""
    rng = np.random.default_rng(0)
    for d, k in ((10, 100), (57, 120), (135, 120)):
        actions = (rng.normal(size=(k, d)) / np.sqrt(d)).astype(np.float32)
        v = actions.astype(float).T @ actions + 5.0 * np.eye(d)
        w, theta = kernels.inverse_factor(v), rng.normal(size=d) / d
        x, gram, bias, inverse = actions[0].astype(float) / 8, v.copy(), np.zeros(d), np.eye(d)
        e, square, rows = bench.triangle_entries(d), 8.0 * d * d, 4.0 * k * d
        factor_updated, estimate = w.copy(), theta.copy()

        def update(gram=gram, bias=bias, x=x) -> object:
            return kernels.rank_one_update(gram, bias, x, 0.1, trusted=True)

        def morrison(inverse=inverse, x=x) -> object:
            return kernels.sherman_morrison(inverse, x, trusted=True)

        def observe(factor_updated=factor_updated, estimate=estimate, x=x) -> object:
            return kernels.factor_update(factor_updated, estimate, x, 0.1, trusted=True)

        def factor(v=v) -> object:
            return kernels.inverse_factor(v, trusted=True)

        def scores(actions=actions, w=w, theta=theta) -> object:
            return kernels.ucb_scores(actions, w, theta, 2.0, trusted=True)

        def best(actions=actions, w=w, theta=theta) -> object:
            return kernels.ucb_argmax(actions, w, theta, 2.0, trusted=True)

        def normals(d=d) -> object:
            return kernels.normals(0, 100 * d, dtype="float32")

        operations = k * (2 * e + 4 * d)
        reads = ((square, square),)
        yield f"rank_one_update d={d}", update, Work(float64=2.0 * d * d, reads=reads)
        # The matrix is read twice: for its product with x, and for the update.
        yield (
            f"sherman_morrison d={d}", morrison,
            Work(float64=5.0 * d * d, reads=(*reads, *reads)),
        )  # fmt: skip
        yield (
            f"factor_update d={d}", observe,
            Work(float64=7.0 * e, reads=((16.0 * e, square),)),
        )  # fmt: skip
        yield f"inverse_factor d={d}", factor, Work(float64=2.0 * d**3 / 3.0, reads=reads)
        reads_of_scores = ((rows, rows), (8.0 * e, square))
        yield f"ucb_scores k={k} d={d}", scores, Work(float64=operations, reads=reads_of_scores)
        yield f"ucb_argmax k={k} d={d}", best, Work(float32=operations, reads=reads_of_scores)
        yield f"normals n={100 * d}", normals, Work(normals=100.0 * d)


def microseconds(call: Callable[[], object]) -> float:
    """Return the processor time of one call in microseconds, the median of `RUNS` runs."""
    loops = 1
    while True:
        start = time.process_time()
        for _ in range(loops):
            call()
        if time.process_time() - start >= LEAST:
            break
        loops *= 2
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        for _ in range(loops):
            call()
        times.append(time.process_time() - start)
    return 1e6 * statistics.median(times) / loops


#: Returns the microseconds and the work of a row.
Timed = Callable[[], tuple[float, Work | None]]


def rows() -> Iterator[tuple[str, Timed]]:
    """Yield the name of each row, and the function that times the row."""
    for case in bench.CASES:

        def time_case(case: bench.Case = case) -> tuple[float, Work | None]:
            experiment, _ = bench.experiments_of(case)
            bench.ours_microseconds(experiment)
            taken = statistics.median(bench.ours_microseconds(experiment) for _ in range(5))
            return taken, case.work and case.work(experiment)

        yield case.name, time_case
    for name, call, work in kernel_rows():
        yield name, lambda call=call, work=work: (microseconds(call), work)


def line(name: str, taken: float, work: Work | None, core_peaks: Peaks) -> str:
    """Return the line of the table for one row, which took ``taken`` microseconds."""
    cells = f"{name:26}{taken:>9.3g}"
    if work is None:
        return f"{cells}{'-':>10}{'-':>9}{'-':>9}{'-':>9}   a chain of dependent steps"
    limit = bound(work, core_peaks)
    counts = f"{work.operations:>10.3g}{work.normals:>9.3g}{work.bytes:>9.3g}"
    share = limit.microseconds / taken
    return f"{cells}{counts}{limit.microseconds:>9.3g}   bound by {limit.by}: {100 * share:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="only rows whose names start with this (default: all)"
    )
    name_starts = tuple(parser.parse_args().names) or ("",)
    first_peaks = peaks.measure()
    if first_peaks is None:
        raise SystemExit("peaks need a C compiler: CC (or cc) was not core_peaks, or it failed")
    print(
        "one core now:", ", ".join(f"{n} {r / 1e9:.3g} G/s" for n, r in first_peaks.rates.items())
    )
    print("(operations: a multiplication and an addition are two; levels of memory: bytes read)\n")
    print(f"{'row':26}{'us':>9}{'operations':>10}{'normals':>9}{'bytes':>9}{'limit us':>9}   bound")
    peaks_before = first_peaks
    for name, timed in rows():
        if name.startswith(name_starts):
            taken, work = timed()
            peaks_after = peaks.measure(runs=8) or first_peaks
            print(line(name, taken, work, best_of(peaks_before, peaks_after)), flush=True)
            peaks_before = peaks_after


if __name__ == "__main__":
    main()
