"""`fastfed bench`: the compiled driver against the papers' style of code, timed in one run."""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._validate import InputError, nearest
from fastfed.environments import Environment, FixedSet, RewardDistribution, Sphere
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks
from fastfed.protocols.plan import check_plan
from fastfed.simulation import compiled
from fastfed.simulation.experiment import Experiment, make_experiment

SILOS = 10
BATCH = 25
#: Queries of a synthetic pool.
QUERIES = 60
#: Constants of the published experiment codes.
PUBLISHED = {"calibration": "published-code", "radius": "published-code"}
#: zhou-chowdhury-2024 as published: eager play, epsilon = 1, delta = 0.1, B = 25.
FEDERATED = {
    "algorithm": "private-fedlinucb",
    "epsilon": 1.0,
    "delta": 0.1,
    "lazy": False,
    **PUBLISHED,
}
#: chowdhury-zhou-2022 as in its Figure 1b.
AGENT = {"epsilon": 1.0, "delta": 0.1, **PUBLISHED}
#: Above the noise of one agent: the reference plays no indefinite V, and no time hangs on it.
RIDGE = 300.0
#: The keys of each system that is timed.
CURVES: dict[str, dict[str, Any]] = {
    "silo-ldp": {**FEDERATED, "protocol": "silo-ldp"},
    "shuffle-vector": {**FEDERATED, "protocol": "shuffle-vector", "epsilon": 0.2},
    # As users run them, by every default.
    "default": {"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6},
    "default-eager": {
        "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6, "lazy": False,
    },
    "default-linucb": {"algorithm": "linucb"},
    "linucb": {"algorithm": "linucb", "radius": "published-code"},
    # The paper's tree, which its code does not play.
    "linucb-jdp": {
        **AGENT, "algorithm": "linucb-jdp", "calibration": "exact", "regularizer": RIDGE,
    },
    "linucb-ldp": {**AGENT, "algorithm": "linucb-ldp"},
    "linucb-sdp-amp": {**AGENT, "algorithm": "linucb-sdp-amp"},
    "linucb-sdp-vec": {
        **AGENT, "algorithm": "linucb-sdp-vec", "vector_scale": 10, "regularizer": RIDGE,
    },
}  # fmt: skip


class SyntheticPool(PoolEnvironment):
    """Queries of K random unit rows in d dimensions: the sizes of MSLR without its files."""

    kind = "synthetic-pool"

    def __init__(self, actions: int, dimension: int, queries: int = QUERIES) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("none"))
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


class LetorPool(PoolEnvironment):
    """Queries like those of MSLR-WEB10K: 116 documents on average, features that go together.

    Features are positive, with a long tail, a third of them 0, and scaled by column as those of
    `fastfed.environments.Letor` are. A few hundred queries are drawn; the others are copies of
    these, which lie elsewhere in memory.
    """

    kind = "letor-pool"
    drawn = 200

    def __init__(self, dimension: int, queries: int) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("bernoulli"))
        draw = np.random.default_rng(0)
        sizes = np.clip(np.rint(draw.lognormal(4.6, 0.55, self.drawn)), 5, 320).astype(int)
        loadings = draw.normal(size=(8, dimension)) / np.sqrt(8.0)
        blocks = []
        for size in sizes:
            common = draw.normal(size=8) + draw.normal(size=(size, 8))
            level = common @ loadings + 0.5 * draw.normal(size=(size, dimension))
            block = np.exp(level) * (draw.random((size, dimension)) > 1.0 / 3.0)
            block[:, 0] = 1.0
            blocks.append(block)
        rows = np.concatenate(blocks)
        rows /= rows.max(axis=0)
        rows[:, 0] = 0.01
        rows /= 1.000001 * np.linalg.norm(rows, axis=1).max()
        means = rows @ draw.uniform(size=dimension)
        means /= means.max()
        order = draw.integers(0, self.drawn, queries)
        first = np.concatenate([[0], np.cumsum(sizes)])
        which = np.concatenate([np.arange(first[q], first[q + 1]) for q in order])
        self.rows, self.means = rows.astype(np.float32)[which], means[which]
        self.starts = np.concatenate([[0], np.cumsum(sizes[order])])
        self.silo_starts = equal_blocks(queries, SILOS)

    def load(self, silos: int | None) -> Pool:
        return self.made

    @cached_property
    def made(self) -> Pool:
        """The pool, made once: its features in 16 bits are."""
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind}


def arithmetic(actions: int, dimension: int, normals: int = 0, fresh: float = 1.0) -> float:
    """Microseconds that the arithmetic of an agent-round takes on its own, as a limit.

    At the measured peak of one core of 2.4 GHz with two 512-bit units: W times the actions that
    are ``fresh`` (a fraction) and theta times all of them, in 16 bits (64 products a cycle), seven
    operations of 64 bits for each entry of V (16 a cycle), and 0.95 ns a normal. Nothing for
    memory, noise or rewards.
    """
    entries = dimension * (dimension + 1) / 2
    cycles = actions * (fresh * entries + dimension) / 64 + 7 * entries / 16
    return (cycles / 2.4 + 0.95 * normals) / 1000


def pool_arithmetic(actions: int, dimension: int) -> float:
    """The same over a synthetic pool: a query is fresh when a silo meets it first in a batch."""
    queries = QUERIES / SILOS
    met = queries * (1.0 - (1.0 - 1.0 / queries) ** BATCH)
    return arithmetic(actions, dimension, fresh=met / BATCH)


@dataclass(frozen=True)
class Case:
    """One bench: an environment, the reference over it, and how many rounds each plays."""

    name: str
    #: What the arithmetic alone costs; None where that is not what costs.
    limit_microseconds: float | None
    environment: Callable[[], Environment]
    rounds: int
    reference_rounds: int
    protocol: str = "silo-ldp"  # of CURVES: a federation's protocol, or the system of an agent
    silos: int = SILOS
    batch_size: int | None = BATCH  # None: the default
    #: Silos and batch size of the reference, where they are others.
    reference_sizes: tuple[int, int] | None = None


def agent_case(name: str, system: str, batch_size: int = 1) -> Case:
    """A case of a single agent.

    At d = 5 a round is a chain of dependent steps (a 5 x 5 factor, one reward), not flops: there is
    no honest limit from arithmetic.
    """
    environment = partial(FixedSet, basis_actions=True)
    return Case(name, None, environment, 20_000, 4000, system, 1, batch_size)


def letor_case(dimension: int, queries: int, protocol: str) -> Case:
    """A case of LETOR-shaped rows by every default, against a competent NumPy float32 loop."""
    name = f"letor-d{dimension}-q{queries}" + "-eager" * (protocol == "default-eager")
    environment = partial(LetorPool, dimension, queries)
    return Case(name, None, environment, 1000, 200, protocol, batch_size=None)


def wide_case(dimension: int) -> Case:
    """A case of one agent over a fixed set by every default, against NumPy's O(K d) updates."""
    environment = partial(FixedSet, dimension=dimension)
    return Case(f"set-k100-d{dimension}", None, environment, 2000, 1000, "default-linucb", 1, None)


CASES = (
    Case("sphere-k100-d10-ldp", arithmetic(100, 10, 900), Sphere, 1000, 50),
    # A data point is encoded for 4.76 nodes on average when T / B = 400. B = 1 gives the
    # reference the same tree in few rounds, and few silos: its cost is by data point.
    Case(
        "sphere-k100-d10-vector", arithmetic(100, 10, 900), Sphere, 10_000, 400, "shuffle-vector",
        reference_sizes=(2, 1),
    ),
    Case("pool-k120-d57", pool_arithmetic(120, 57), lambda: SyntheticPool(120, 57), 1000, 25),
    Case("pool-k120-d135", pool_arithmetic(120, 135), lambda: SyntheticPool(120, 135), 500, 25),
    Case("pool-k908-d135", pool_arithmetic(908, 135), lambda: SyntheticPool(908, 135), 250, 25),
    agent_case("fixed-k100-d5", "linucb"),
    agent_case("fixed-k100-d5-jdp", "linucb-jdp"),
    agent_case("fixed-k100-d5-ldp", "linucb-ldp"),
    agent_case("fixed-k100-d5-amp", "linucb-sdp-amp", 20),
    agent_case("fixed-k100-d5-vec", "linucb-sdp-vec", 20),
    letor_case(57, 2000, "default"),
    letor_case(57, 2000, "default-eager"),
    letor_case(57, 16_000, "default"),
    letor_case(135, 2000, "default"),
    letor_case(135, 2000, "default-eager"),
    *(wide_case(d) for d in (20, 100, 200)),
)  # fmt: skip


def cases_of(names: Sequence[str]) -> list[Case]:
    """The cases whose name starts with one of these, all without any; InputError for no match."""
    known = [case.name for case in CASES]
    for name in names:
        if not any(each.startswith(name) for each in known):
            raise InputError(f'no bench starts with "{name}"{nearest(name, known)}')
    return [case for case in CASES if not names or case.name.startswith(tuple(names))]


def bench_experiment(
    environment: Environment, rounds: int, protocol: str, silos: int, batch_size: int | None
) -> Experiment:
    curve = {"label": protocol, **CURVES[protocol]}
    if batch_size is not None:
        curve["batch_size"] = batch_size
    return make_experiment(
        name="bench", environment=environment, curves=[curve], horizon=rounds, silos=silos
    )


def experiments_of(case: Case) -> tuple[Experiment, Experiment]:
    """Experiments of our driver and of the reference."""
    environment, sizes = case.environment(), (case.silos, case.batch_size)
    other = case.reference_sizes or sizes
    return (
        bench_experiment(environment, case.rounds, case.protocol, *sizes),
        bench_experiment(environment, case.reference_rounds, case.protocol, *other),
    )


def ours_microseconds(experiment: Experiment) -> float:
    """Microseconds per agent-round of the compiled driver, one thread."""
    opened = experiment.environment.open(0, 0, experiment.silos)
    assert isinstance(opened, environments.Environment)
    plans = [check_plan(c.system.plan) for c in experiment.curves]
    start = time.perf_counter()
    compiled.run(opened, plans, experiment.checkpoints, rounds_per_call=experiment.horizon)
    return 1e6 * (time.perf_counter() - start) / experiment.agent_rounds([0])


#: Microseconds per agent-round of the reference, and its part spent on contexts.
Reference = Callable[[Experiment], tuple[float, float]]


def load_reference() -> Reference | None:
    """Load the papers' style of code, which is in the repository's benches/.

    None where fastfed is not installed in a checkout, or in an environment inside of one.
    """
    package = Path(str(files("fastfed")))
    folders = [folder / "benches" for folder in package.parents]
    beside = [folder for folder in folders if (folder / "reference_cases.py").is_file()]
    if not beside:
        return None
    if str(beside[0]) not in sys.path:
        sys.path.append(str(beside[0]))
    found: Reference = importlib.import_module("reference_cases").reference_microseconds
    return found


def measure(case: Case, reference: Reference | None, repeats: int = 5) -> dict[str, Any]:
    """One case: ours and the reference in turn, medians of the figures and of the ratios.

    Without a reference its figures and the ratios are None.
    """
    ours_experiment, reference_experiment = experiments_of(case)
    limit = case.limit_microseconds
    ours_microseconds(ours_experiment)
    ours, other, ratio, without = [], [], [], []
    for _ in range(repeats):
        mine = ours_microseconds(ours_experiment)
        ours.append(mine)
        if reference is not None:
            total, data = reference(reference_experiment)
            other.append(total)
            ratio.append(total / mine)
            without.append((total - data) / mine)
    return {
        "name": case.name,
        "microseconds_per_agent_round": statistics.median(ours),
        "reference_microseconds_per_agent_round": statistics.median(other) if other else None,
        "ratio": statistics.median(ratio) if ratio else None,
        "ratio_without_data": statistics.median(without) if without else None,
        "limit_microseconds": limit,
        "share_of_limit": limit and limit / statistics.median(ours),
        "threads": 1,
    }


def run_bench(*names: str) -> list[dict[str, Any]]:
    """The cases that `cases_of` finds, measured in one fresh process with BLAS on one thread."""
    chosen = [case.name for case in cases_of(names)]
    pinned = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
    child = subprocess.run(
        [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *chosen],
        env={**os.environ, **pinned},
        stdout=subprocess.PIPE,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(child.stdout)
    return results


def main() -> None:
    """Measure the cases named on the command line; a list of rows as JSON."""
    reference = load_reference()
    json.dump([measure(case, reference) for case in CASES if case.name in sys.argv[1:]], sys.stdout)
