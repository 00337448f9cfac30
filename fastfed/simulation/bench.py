"""`fastfed bench`: the compiled driver against the papers' style of code, timed in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed import _reference
from fastfed.environments import Environment, RewardLaw, Sphere
from fastfed.environments.pool import Pool, equal_blocks
from fastfed.environments.pool_environment import PoolEnvironment
from fastfed.protocols.plan import check_plan
from fastfed.simulation import compiled
from fastfed.simulation.experiment import Experiment, make_experiment

SILOS = 10
BATCH = 25
#: zhou-chowdhury-2024 as published: eager play, epsilon = 1, delta = 0.1, B = 25.
CURVE = {
    "label": "LDP",
    "algorithm": "private-fedlinucb",
    "protocol": "silo-ldp",
    "epsilon": 1.0,
    "delta": 0.1,
    "lazy": False,
    "calibration": "published-code",
    "radius": "published-code",
}


class SyntheticPool(PoolEnvironment):
    """Queries of K random unit rows in d dimensions: the sizes of MSLR without its files."""

    kind = "synthetic-pool"

    def __init__(self, actions: int, dimension: int, queries: int = 60) -> None:
        super().__init__(sampling="with-replacement", reward=RewardLaw("none"))
        draw = np.random.default_rng(0)
        rows = draw.normal(size=(queries * actions, dimension))
        self.rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        theta = draw.normal(size=dimension)
        self.means = 0.5 + 0.5 * self.rows @ (theta / np.linalg.norm(theta))
        self.starts = np.arange(queries + 1) * actions
        self.silo_starts = equal_blocks(queries, SILOS)

    def load(self, silos: int | None) -> Pool:
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


@dataclass(frozen=True)
class Case:
    """One bench: an environment, the reference over it, and how many rounds each plays."""

    name: str
    limit_microseconds: float  # what the arithmetic alone costs, see the speed page
    environment: Callable[[], Environment]
    rounds: int
    reference_rounds: int
    protocol: str = "silo-ldp"


CASES = (
    Case("sphere-k100-d10-ldp", 2.2, Sphere, 1000, 50),
    Case("sphere-k100-d10-vector", 2.7, Sphere, 10_000, 400, "shuffle-vector"),
    Case("pool-k120-d57", 6.3, lambda: SyntheticPool(120, 57), 300, 25),
    Case("pool-k120-d135", 35.0, lambda: SyntheticPool(120, 135), 75, 25),
    Case("pool-k908-d135", 227.0, lambda: SyntheticPool(908, 135), 25, 25),
)


def bench_experiment(
    environment: Environment, rounds: int, protocol: str, silos: int, batch_size: int
) -> Experiment:
    curve = {**CURVE, "protocol": protocol, "batch_size": batch_size}
    if protocol == "shuffle-vector":
        curve["epsilon"] = 0.2
    return make_experiment(
        name="bench", environment=environment, curves=[curve], horizon=rounds, silos=silos
    )


def experiments_of(case: Case) -> tuple[Experiment, Experiment]:
    """What ours plays, and what the reference plays."""
    environment = case.environment()
    ours = bench_experiment(environment, case.rounds, case.protocol, SILOS, BATCH)
    if case.protocol == "shuffle-vector":
        # A data point is encoded for 4.76 nodes on average when T / B = 400. B = 1 gives the
        # reference the same tree in few rounds, and few silos: its cost is by data point.
        return ours, bench_experiment(environment, case.reference_rounds, case.protocol, 2, 1)
    return ours, bench_experiment(environment, case.reference_rounds, case.protocol, SILOS, BATCH)


def ours_microseconds(experiment: Experiment) -> float:
    """Microseconds per agent-round of the compiled driver, one thread."""
    opened = experiment.environment.open(0, 0, experiment.silos)
    plans = [check_plan(c.system.plan) for c in experiment.curves]
    start = time.perf_counter()
    compiled.play(opened, plans, experiment.checkpoints, rounds_per_call=experiment.horizon)
    return 1e6 * (time.perf_counter() - start) / experiment.agent_rounds([0])


def reference_microseconds(experiment: Experiment) -> tuple[float, float]:
    """(microseconds per agent-round, the part spent on contexts) of the reference."""
    system = experiment.curves[0].system
    plan = check_plan(system.plan)
    keys: dict[str, Any] = {
        "horizon": experiment.horizon,
        "batch_size": plan.batch_size,
        "regularizer": float(system.theory.regularizer[-1]),
        "seed": 0,
    }
    environment = experiment.environment
    noise_std = plan.noise_std.bias
    if plan.protocol.bits:
        result = _reference.vector_fedlinucb_sphere(silos=experiment.silos, **keys)
    elif isinstance(environment, SyntheticPool):
        result = _reference.private_fedlinucb_pool(
            rows=environment.rows,
            starts=environment.starts,
            silo_starts=environment.silo_starts,
            means=environment.means,
            noise_std=noise_std,
            **keys,
        )
    else:
        result = _reference.private_fedlinucb_sphere(
            silos=experiment.silos, noise_std=noise_std, **keys
        )
    each = 1e6 / experiment.agent_rounds([0])
    return each * result["total_seconds"], each * result["data_seconds"]


def measure(case: Case, repeats: int = 5) -> dict[str, Any]:
    """One case: ours and the reference in turn, medians of the figures and of the ratios."""
    ours_experiment, reference_experiment = experiments_of(case)
    ours_microseconds(ours_experiment)
    ours, reference, ratio, without = [], [], [], []
    for _ in range(repeats):
        mine = ours_microseconds(ours_experiment)
        total, data = reference_microseconds(reference_experiment)
        ours.append(mine)
        reference.append(total)
        ratio.append(total / mine)
        without.append((total - data) / mine)
    return {
        "name": case.name,
        "microseconds_per_agent_round": statistics.median(ours),
        "reference_microseconds_per_agent_round": statistics.median(reference),
        "ratio": statistics.median(ratio),
        "ratio_without_data": statistics.median(without),
        "limit_microseconds": case.limit_microseconds,
        "threads": 1,
    }


def run_bench(names: list[str] | None = None) -> list[dict[str, Any]]:
    """All cases (or those named), each measured in one fresh process with BLAS on one thread."""
    pinned = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
    child = subprocess.run(
        [sys.executable, "-P", "-m", "fastfed.simulation.bench", *(names or [])],
        env={**os.environ, **pinned},
        stdout=subprocess.PIPE,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(child.stdout)
    return results


if __name__ == "__main__":
    chosen = [case for case in CASES if not sys.argv[1:] or case.name in sys.argv[1:]]
    json.dump([measure(case) for case in chosen], sys.stdout)
