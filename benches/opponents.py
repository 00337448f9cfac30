"""`scripts/bench opponents`: users' settings against what somebody writes in an afternoon.

Rows run with all keys at their defaults (`plain`: the key sieve = 1, the largest bound). The other
programs are `numba_opponents.py`, `numpy_lazy.py` and `numpy_experts.py`. Times are processor time
of one thread in one process, sides in turn, medians; a ratio above 1 says that fastfed is faster.
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

from fastfed._kernels import environments
from fastfed.environments import FixedSet, RealizableLosses, Sphere
from fastfed.protocols.plan import check_plan
from fastfed.simulation import bench, dispatch
from fastfed.simulation.experiment import Experiment, make_experiment

numba_opponents: Any = None
if importlib.util.find_spec("numba"):
    import numba_opponents

PRIVATE = {"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6}
#: Any point of the sphere that an action may be: regret has the same distribution for each.
TRUTH = np.append(np.full(9, 1.0 / 3.0), 1.0) / np.sqrt(2.0)

#: (regret, microseconds per agent-round) of a replicate.
Run = Callable[[int], tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One setting."""

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
        """Regret and microseconds of the compiled driver, on one thread."""
        e = self.experiment
        opened = e.environment.open(0, replicate, e.silos)
        start = time.process_time()
        (outcome,) = dispatch.run(opened, [self.plan], e.checkpoints)
        taken = time.process_time() - start
        return float(outcome.group_regret[-1]), 1e6 * taken / (self.rounds * self.silos)

    def others(self) -> dict[str, Run]:
        """The other programs by name: what they return for a replicate."""
        environment, plan, compiled = self.experiment.environment, self.plan, numba_opponents
        if isinstance(environment, FixedSet):
            return self._fixed_set(environment, plan)
        if isinstance(environment, RealizableLosses):
            runs: dict[str, Run] = {
                "NumPy": lambda n: (np.nan, numpy_experts.microseconds(plan, 0.5, n))
            }
            if compiled:
                runs["numba"] = lambda n: compiled.experts(plan, environment.mean, seed=n)
            return runs
        if isinstance(environment, Sphere):
            given: tuple[Any, ...] = (check_plan(plan), TRUTH)
        else:
            pool = environment
            given = (check_plan(plan), pool.rows, pool.starts, pool.silo_starts, pool.means)
        name = "sphere" if isinstance(environment, Sphere) else "pool"
        return {
            label: partial(_seeded, getattr(module, name), given)
            for label, module in (("NumPy", numpy_lazy), ("numba", compiled))
            if module
        }

    def _fixed_set(self, environment: FixedSet, plan: Any) -> dict[str, Run]:
        def actions(replicate: int) -> tuple[np.ndarray, np.ndarray]:
            opened = environment.open(0, replicate, 1)
            assert isinstance(opened, environments.Environment)
            return opened.round(0, 0)

        def arrays(n: int) -> tuple[float, float]:
            taken = numpy_float32.fixed_set_microseconds(plan, *actions(n), rounds=self.rounds)
            return np.nan, taken

        runs: dict[str, Run] = {"NumPy": arrays}
        if numba_opponents:
            loop = numba_opponents.fixed_set
            runs["numba"] = lambda n: loop(plan, *actions(n), seed=n)
            runs["numba float32"] = lambda n: loop(plan, *actions(n), seed=n, dtype=np.float32)
        return runs


def _seeded(call: Callable[..., tuple[float, float]], given: tuple[Any, ...], seed: int) -> Any:
    return call(*given, seed=seed)


def rows() -> Iterator[Row]:
    """All settings."""
    for label, keys in (("", {}), (" plain", {"sieve": 1.0})):
        for d in (2, 10, 50, 100, 200, 500):
            fixed = partial(FixedSet, dimension=d)
            rounds = 5000 if d <= 100 else 2000
            yield Row(f"set d={d}{label}", fixed, {"algorithm": "linucb", **keys}, rounds)
        yield Row(f"sphere d=10{label}", Sphere, {**PRIVATE, **keys}, 1000, 50)
        for queries in (60, 2000):
            pool = partial(bench.LetorPool, 57, queries)
            yield Row(f"letor d=57 q={queries}{label}", pool, {**PRIVATE, **keys}, 1000, 10)
    for system in ("hedge", "follow-the-leader", "fed-svt"):
        budget = {"epsilon": 1.0} if system == "fed-svt" else {}
        for silos, rounds in ((1, 50_000), (10, 20_000)):
            curve = {"algorithm": system, **budget}
            losses = partial(RealizableLosses, experts=10)
            yield Row(f"{system} m={silos}", losses, curve, rounds, silos)


@dataclass(frozen=True)
class Compared:
    """Medians of one row: microseconds of both sides, and the ratios by program."""

    ours: float
    theirs: dict[str, float]
    ratios: dict[str, float]


def compare(row: Row, turns: int = 7) -> Compared:
    """All programs of a row in turn, after one run of each."""
    others = row.others()
    row.ours()
    for run in others.values():
        run(0)
    mine: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in others}
    for _ in range(turns):
        for name, run in others.items():
            times[name].append(run(0)[1])
        mine.append(row.ours()[1])
    ratios = {
        name: statistics.median(b / a for a, b in zip(mine, each, strict=True))
        for name, each in times.items()
    }
    theirs = {name: statistics.median(each) for name, each in times.items()}
    return Compared(statistics.median(mine), theirs, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench opponents", description=__doc__)
    parser.add_argument("names", nargs="*", help="the start of a row's name (all)")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    print(f"{'row':26}{'fastfed us':>11}   us of the others (ratio to fastfed)")
    for row in rows():
        if row.name.startswith(tuple(given.names) or ("",)):
            found = compare(row, given.turns)
            cells = [
                f"{name} {found.theirs[name]:.3g} ({r:.2f})" for name, r in found.ratios.items()
            ]
            print(f"{row.name:26}{found.ours:>11.3g}   {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
