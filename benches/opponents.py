"""`scripts/bench opponents`: compare fastfed with programs that a user writes in an afternoon.

Rows run with default keys; rows named `plain` have sieve = 1, so they choose the largest upper
confidence bound. The other programs are `numba_opponents.py`, `numba_releases.py`,
`numba_plain.py`, `numpy_lazy.py`, `numpy_float32.py`, `numpy_releases.py` and `numpy_experts.py`.
Times are medians of processor time on one thread; the programs run in turn in one process. A ratio
above 1 means that fastfed is faster. The limit is the least time of the row's work at the peak
rates of this core, measured before and after the row (`fastfed.simulation.limits`).
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy_experts
import numpy_float32
import numpy_lazy
import numpy_releases
import peaks

from fastfed._kernels import environments
from fastfed.environments import FixedSet, RealizableLosses, Sphere, StochasticLosses
from fastfed.protocols.plan import check_plan
from fastfed.simulation import bench, dispatch
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.limits import Work, best_of, bound

numba_opponents: Any = None
numba_releases: Any = None
numba_plain: Any = None
if importlib.util.find_spec("numba"):
    import numba_opponents
    import numba_plain
    import numba_releases

#: Programs with noisy releases, by label.
RELEASES = {"NumPy": numpy_releases, "numba": numba_releases, "numba short": numba_plain}

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
PRIVATE = {"algorithm": "private-fedlinucb", **BUDGET}
#: theta* of the sphere. The distribution of regret is the same for every theta* on the sphere.
TRUTH = np.append(np.full(9, 1.0 / 3.0), 1.0) / np.sqrt(2.0)

#: Runs one replicate; returns regret and microseconds per agent-round.
Run = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One setting: environment, curve and sizes."""

    name: str
    environment: Callable[[], Any]
    curve: dict[str, Any]
    rounds: int
    silos: int = 1

    @cached_property
    def experiment(self) -> Experiment:
        curves = [{"label": self.name, **self.curve}]
        return make_experiment(
            name="bench", environment=self.environment(), curves=curves, horizon=self.rounds,
            silos=self.silos,
        )  # fmt: skip

    @property
    def plan(self) -> Any:
        return self.experiment.curves[0].system.plan

    def ours(self, replicate: int = 0) -> tuple[float, float]:
        """Run fastfed on one thread; return regret and microseconds per agent-round."""
        e = self.experiment
        environment_run = e.environment.open(0, replicate, e.silos)
        start = time.process_time()
        (outcome,) = dispatch.run(environment_run, [self.plan], e.checkpoints)
        seconds = time.process_time() - start
        return float(outcome.group_regret[-1]), 1e6 * seconds / (self.rounds * self.silos)

    def work(self) -> Work | None:
        """Return the least work of an agent-round, or None for a row without such a count."""
        environment = self.experiment.environment
        if isinstance(environment, RealizableLosses | StochasticLosses):
            return None
        if isinstance(environment, FixedSet):
            return None if self.plan.releases else bench.fixed_set_work(self.experiment)
        count = bench.sphere_work if isinstance(environment, Sphere) else bench.pool_work
        return count(self.experiment)

    def others(self) -> dict[str, Run]:
        """Return program name -> `Run` for the other programs of this setting."""
        environment, plan, compiled = self.experiment.environment, self.plan, numba_opponents
        if isinstance(environment, FixedSet):
            return self._fixed_set(environment, plan)
        if isinstance(environment, Sphere) and plan.trigger:
            return {
                label: partial(_seeded, module.feducb, (check_plan(plan), TRUTH))
                for label, module in RELEASES.items()
                if module
            }
        if isinstance(environment, RealizableLosses | StochasticLosses):
            runs: dict[str, Run] = {
                "NumPy": lambda n: (np.nan, numpy_experts.microseconds(plan, 0.5, n))
            }
            if compiled and isinstance(environment, RealizableLosses):
                runs["numba"] = lambda n: compiled.experts(plan, environment.mean, seed=n)
            return runs
        if isinstance(environment, Sphere):
            arguments: tuple[Any, ...] = (check_plan(plan), TRUTH)
        else:
            pool = environment
            arguments = (check_plan(plan), pool.rows, pool.starts, pool.silo_starts, pool.means)
        name = "sphere" if isinstance(environment, Sphere) else "pool"
        return {
            label: partial(_seeded, getattr(module, name), arguments)
            for label, module in (("NumPy", numpy_lazy), ("numba", compiled))
            if module
        }

    def _fixed_set(self, environment: FixedSet, plan: Any) -> dict[str, Run]:
        def actions(replicate: int) -> tuple[np.ndarray, np.ndarray]:
            environment_run = environment.open(0, replicate, 1)
            assert isinstance(environment_run, environments.Environment)
            return environment_run.round(0, 0)

        def arrays(n: int) -> tuple[float, float]:
            microseconds = numpy_float32.fixed_set_microseconds(
                plan, *actions(n), rounds=self.rounds
            )
            return np.nan, microseconds

        if plan.batch_size:
            return {
                label: lambda n, module=module: module.agent(plan, *actions(n), seed=n)
                for label, module in RELEASES.items()
                if module
            }
        runs: dict[str, Run] = {"NumPy": arrays}
        if numba_opponents:
            loop = numba_opponents.fixed_set
            runs["numba"] = lambda n: loop(plan, *actions(n), seed=n)
            runs["numba float32"] = lambda n: loop(plan, *actions(n), seed=n, dtype=np.float32)
        return runs


def _seeded(call: Callable[..., tuple[float, float]], arguments: tuple[Any, ...], seed: int) -> Any:
    return call(*arguments, seed=seed)


def rows() -> Iterator[Row]:
    """Yield all settings."""
    for label, keys in (("", {}), (" plain", {"sieve": 1.0})):
        for d in (2, 10, 50, 100, 200, 500):
            fixed = partial(FixedSet, dimension=d)
            rounds = 5000 if d <= 100 else 2000
            yield Row(f"set d={d}{label}", fixed, {"algorithm": "linucb", **keys}, rounds)
        yield Row(f"sphere d=10{label}", Sphere, {**PRIVATE, **keys}, 1000, 50)
        for queries in (60, 2000):
            pool = partial(bench.LetorPool, 57, queries)
            yield Row(f"letor d=57 q={queries}{label}", pool, {**PRIVATE, **keys}, 1000, 10)
        for system in ("linucb-jdp", "linucb-ldp"):
            yield Row(f"{system}{label}", FixedSet, {"algorithm": system, **BUDGET, **keys}, 5000)
    yield Row("feducb", Sphere, {"algorithm": "feducb", **BUDGET}, 1000, 50)
    for system in ("hedge", "follow-the-leader", "fed-svt"):
        budget = {"epsilon": 1.0} if system == "fed-svt" else {}
        for silos, rounds in ((1, 50_000), (10, 20_000)):
            curve = {"algorithm": system, **budget}
            losses = partial(RealizableLosses, experts=10)
            yield Row(f"{system} m={silos}", losses, curve, rounds, silos)
    curve = {"algorithm": "fed-dp-ope-stoch", "epsilon": 10.0, "noise": "central"}
    curve["batch"] = "largest"
    for experts, silos, rounds in ((10, 1, 50_000), (10, 10, 20_000), (100, 1, 20_000)):
        losses = partial(StochasticLosses, experts=experts)
        yield Row(f"fed-dp-ope d={experts} m={silos}", losses, curve, rounds, silos)


@dataclass(frozen=True)
class Compared:
    """Medians of one row: microseconds of fastfed and of each program, and the ratios."""

    ours: float
    theirs: dict[str, float]
    ratios: dict[str, float]


def compare(row: Row, turns: int = 7) -> Compared:
    """Time all programs of a row in turn, after one warm-up run of each program."""
    others = row.others()
    row.ours()
    for run in others.values():
        run(0)
    fastfed_times: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(turns):
        for name, run in others.items():
            times[name].append(run(0)[1])
        fastfed_times.append(row.ours()[1])
    ratios = {
        name: statistics.median(b / a for a, b in zip(fastfed_times, program_times, strict=True))
        for name, program_times in times.items()
    }
    theirs = {name: statistics.median(program_times) for name, program_times in times.items()}
    return Compared(statistics.median(fastfed_times), theirs, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench opponents", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="only rows whose names start with this (default: all)"
    )
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(f"{'row':26}{'fastfed us':>11}{'limit':>7}   us of the others (ratio to fastfed)")
    for row in rows():
        if row.name.startswith(tuple(options.names) or ("",)):
            work, before = row.work(), peaks.measure(runs=8)
            medians = compare(row, options.turns)
            after = peaks.measure(runs=8)
            limit = "-"
            if work and before and after:
                limit = f"{bound(work, best_of(before, after)).microseconds:.3g}"
            cells = [
                f"{name} {medians.theirs[name]:.3g} ({ratio:.2f})"
                for name, ratio in medians.ratios.items()
            ]
            print(f"{row.name:26}{medians.ours:>11.3g}{limit:>7}   {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
