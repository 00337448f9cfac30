"""`scripts/bench`: each main row, the work it asks for, what bounds it, and how near it comes.

The rows of `fastfed bench` without their references, and public kernels. Times are processor time,
medians of short runs; peaks are measured before and after each row, so both know the same clock.
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

#: Seconds of one run of a kernel, and how many runs.
LEAST, RUNS = 0.004, 15


def kernel_rows() -> Iterator[tuple[str, Callable[[], object], Work]]:
    """Public kernels with trusted arguments: name, call, work."""
    draw = np.random.default_rng(0)
    for d, k in ((10, 100), (57, 120), (135, 120)):
        actions = (draw.normal(size=(k, d)) / np.sqrt(d)).astype(np.float32)
        v = actions.astype(float).T @ actions + 5.0 * np.eye(d)
        w, theta = kernels.inverse_factor(v), draw.normal(size=d) / d
        x, gram, bias, inverse = actions[0].astype(float) / 8, v.copy(), np.zeros(d), np.eye(d)
        e, square, rows = bench.entries(d), 8.0 * d * d, 4.0 * k * d
        own, estimate = w.copy(), theta.copy()

        def update(gram=gram, bias=bias, x=x) -> object:
            return kernels.rank_one_update(gram, bias, x, 0.1, trusted=True)

        def morrison(inverse=inverse, x=x) -> object:
            return kernels.sherman_morrison(inverse, x, trusted=True)

        def observe(own=own, estimate=estimate, x=x) -> object:
            return kernels.factor_update(own, estimate, x, 0.1, trusted=True)

        def factor(v=v) -> object:
            return kernels.inverse_factor(v, trusted=True)

        def scores(actions=actions, w=w, theta=theta) -> object:
            return kernels.ucb_scores(actions, w, theta, 2.0, trusted=True)

        def best(actions=actions, w=w, theta=theta) -> object:
            return kernels.ucb_argmax(actions, w, theta, 2.0, trusted=True)

        def normals(d=d) -> object:
            return kernels.normals(0, 100 * d, dtype="float32")

        scored = k * (2 * e + 4 * d)
        reads = ((square, square),)
        yield f"rank_one_update d={d}", update, Work(float64=2.0 * d * d, reads=reads)
        # The matrix is read for its product with x, and again to be changed.
        yield (
            f"sherman_morrison d={d}", morrison,
            Work(float64=5.0 * d * d, reads=(*reads, *reads)),
        )  # fmt: skip
        yield (
            f"factor_update d={d}", observe,
            Work(float64=7.0 * e, reads=((16.0 * e, square),)),
        )  # fmt: skip
        yield f"inverse_factor d={d}", factor, Work(float64=2.0 * d**3 / 3.0, reads=reads)
        given = ((rows, rows), (8.0 * e, square))
        yield f"ucb_scores k={k} d={d}", scores, Work(float64=scored, reads=given)
        yield f"ucb_argmax k={k} d={d}", best, Work(float32=scored, reads=given)
        yield f"normals n={100 * d}", normals, Work(normals=100.0 * d)


def microseconds(call: Callable[[], object]) -> float:
    """Processor time of one call, the median of some runs."""
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


#: A row's microseconds, and its work.
Timed = Callable[[], tuple[float, Work | None]]


def rows() -> Iterator[tuple[str, Timed]]:
    """All rows, each with what times it."""
    for case in bench.CASES:

        def play(case: bench.Case = case) -> tuple[float, Work | None]:
            experiment, _ = bench.experiments_of(case)
            bench.ours_microseconds(experiment)
            taken = statistics.median(bench.ours_microseconds(experiment) for _ in range(5))
            return taken, case.work and case.work(experiment)

        yield case.name, play
    for name, call, work in kernel_rows():
        yield name, lambda call=call, work=work: (microseconds(call), work)


def line(name: str, taken: float, work: Work | None, found: Peaks) -> str:
    cells = f"{name:26}{taken:>9.3g}"
    if work is None:
        return f"{cells}{'-':>10}{'-':>9}{'-':>9}{'-':>9}   a chain of dependent steps"
    least = bound(work, found)
    counts = f"{work.operations:>10.3g}{work.normals:>9.3g}{work.bytes:>9.3g}"
    share = least.microseconds / taken
    return f"{cells}{counts}{least.microseconds:>9.3g}   bound by {least.by}: {100 * share:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("names", nargs="*", help="the start of a row's name (all)")
    wanted = tuple(parser.parse_args().names) or ("",)
    first = peaks.measure()
    if first is None:
        raise SystemExit("peaks need a C compiler: CC, or cc, was not found or failed")
    print("one core now:", ", ".join(f"{n} {r / 1e9:.3g} G/s" for n, r in first.rates.items()))
    print("(operations: a multiplication and an addition are two; levels of memory: bytes read)\n")
    print(f"{'row':26}{'us':>9}{'operations':>10}{'normals':>9}{'bytes':>9}{'limit us':>9}   bound")
    before = first
    for name, timed in rows():
        if name.startswith(wanted):
            taken, work = timed()
            after = peaks.measure(runs=8) or first
            print(line(name, taken, work, best_of(before, after)), flush=True)
            before = after


if __name__ == "__main__":
    main()
