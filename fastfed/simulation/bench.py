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
from fastfed.protocols.plan import Plan, check_plan
from fastfed.simulation import compiled
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.limits import Peaks, Work, best_of, bound

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
        **AGENT, "algorithm": "linucb-jdp", "calibration": "exact", "release": "tree",
        "regularizer": RIDGE,
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
    these, which lie elsewhere in memory. Those that are `close` have features as real documents
    do, which fewer directions tell nearly all of, and lengths that differ little.
    """

    kind = "letor-pool"
    drawn = 200

    def __init__(self, dimension: int, queries: int, close: bool = False) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("bernoulli"))
        draw = np.random.default_rng(0)
        sizes = np.clip(np.rint(draw.lognormal(4.6, 0.55, self.drawn)), 5, 320).astype(int)
        loadings = draw.normal(size=(8, dimension)) / np.sqrt(8.0)
        blocks, noise = [], 0.1 if close else 0.5
        for size in sizes:
            common = draw.normal(size=8) + draw.normal(size=(size, 8))
            level = common @ loadings + noise * draw.normal(size=(size, dimension))
            if close:
                block = 1.0 / (1.0 + np.exp(-level))
            else:
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


#: What a case's rounds ask for, by its experiment.
Count = Callable[[Experiment], Work]


def entries(dimension: int) -> float:
    """Numbers of a symmetric or triangular matrix."""
    return dimension * (dimension + 1) / 2


def upkeep(plan: Plan) -> float:
    """Operations in 64 bits that keep V and W for one data point.

    Two for each entry of V, five for each of its factor where that follows in every round; the new
    factor of a release is shared by all rounds and silos of its batch.
    """
    each = 2.0 if plan.lazy else 7.0
    factors = 2.0 / 3.0 * plan.dimension**3 * plan.releases / (plan.horizon * plan.silos)
    return each * entries(plan.dimension) + factors


def sphere_work(experiment: Experiment) -> Work:
    """Fresh contexts: their normals and norms, all scores in float32, one data point."""
    plan, k = check_plan(experiment.curves[0].system.plan), 100
    d = plan.dimension
    return Work(
        normals=k * (d - 1),
        # W x and its square, <x, theta>; the norm of x and its scaling.
        float32=k * (2 * entries(d) + 2 * d + 2 * d + 3 * d),
        float64=upkeep(plan),
        reads=((4.0 * k * d, 4.0 * k * d), (8.0 * entries(d), 8.0 * entries(d))),
    )


def pool_work(experiment: Experiment) -> Work:
    """Queries of a pool: theta times all actions, W times those met first since the last release.

    In 16 bits, where bounds of a query are kept until the next release.
    """
    plan, environment = check_plan(experiment.curves[0].system.plan), experiment.environment
    assert isinstance(environment, SyntheticPool | LetorPool)
    d, queries = plan.dimension, len(environment.starts) - 1
    k, own = len(environment.rows) / queries, queries / experiment.silos
    ends = [0, *plan.ends, plan.horizon]
    lengths = np.diff(ends)
    met = (own * (1.0 - (1.0 - 1.0 / own) ** lengths)).sum() / plan.horizon
    row = 2.0 * k * d
    return Work(
        int16=2 * k * (met * entries(d) + d),
        float64=upkeep(plan),
        reads=(
            # Those met before in this batch are as near as the silo's own queries allow.
            (row * met, row * queries),
            (row * (1.0 - met), row * own),
            (2.0 * met * entries(d), 2.0 * entries(d)),
            (8.0 * entries(d) * (not plan.lazy), 8.0 * entries(d)),
        ),
    )


def set_work(experiment: Experiment) -> Work:
    """A fixed set whose means and both bonuses follow by two products of the rows."""
    plan, k = check_plan(experiment.curves[0].system.plan), 100
    d = plan.dimension
    return Work(
        float64=upkeep(plan) + 2 * 2 * k * d + 2 * d * d,
        reads=((4.0 * k * d, 4.0 * k * d), (8.0 * entries(d), 8.0 * entries(d))),
    )


@dataclass(frozen=True)
class Case:
    """One bench: an environment, the reference over it, and how many rounds each plays."""

    name: str
    #: What an agent-round asks for at least; None where that is not what costs.
    work: Count | None
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


def letor_case(dimension: int, queries: int, protocol: str, close: bool = False) -> Case:
    """A case of LETOR-shaped rows by every default, against a competent NumPy float32 loop."""
    name = f"letor-d{dimension}-q{queries}" + "-close" * close
    name += "-eager" * (protocol == "default-eager")
    environment = partial(LetorPool, dimension, queries, close)
    return Case(name, pool_work, environment, 1000, 200, protocol, batch_size=None)


def wide_case(dimension: int) -> Case:
    """A case of one agent over a fixed set by every default, against NumPy's O(K d) updates."""
    environment = partial(FixedSet, dimension=dimension)
    return Case(
        f"set-k100-d{dimension}", set_work, environment, 2000, 1000, "default-linucb", 1, None
    )


CASES = (
    Case("sphere-k100-d10-ldp", sphere_work, Sphere, 1000, 50),
    # A data point is encoded for 4.76 nodes on average when T / B = 400. B = 1 gives the
    # reference the same tree in few rounds, and few silos: its cost is by data point.
    Case(
        "sphere-k100-d10-vector", sphere_work, Sphere, 10_000, 400, "shuffle-vector",
        reference_sizes=(2, 1),
    ),
    Case("pool-k120-d57", pool_work, lambda: SyntheticPool(120, 57), 1000, 25),
    Case("pool-k120-d135", pool_work, lambda: SyntheticPool(120, 135), 500, 25),
    Case("pool-k908-d135", pool_work, lambda: SyntheticPool(908, 135), 250, 25),
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
    letor_case(135, 2000, "default", close=True),
    letor_case(135, 2000, "default-eager", close=True),
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
    """Microseconds of processor time per agent-round of the compiled driver, one thread.

    Processor time, for a machine with other work on it takes longer without being slower.
    """
    opened = experiment.environment.open(0, 0, experiment.silos)
    assert isinstance(opened, environments.Environment)
    plans = [check_plan(c.system.plan) for c in experiment.curves]
    start = time.process_time()
    compiled.run(opened, plans, experiment.checkpoints, rounds_per_call=experiment.horizon)
    return 1e6 * (time.process_time() - start) / experiment.agent_rounds([0])


#: Microseconds per agent-round of the reference, and its part spent on contexts.
Reference = Callable[[Experiment], tuple[float, float]]


def load_bench(module: str) -> Any:
    """Load a module of the repository's benches/.

    None where fastfed is not installed in a checkout, or in an environment inside of one.
    """
    package = Path(str(files("fastfed")))
    folders = [folder / "benches" for folder in package.parents]
    beside = [folder for folder in folders if (folder / f"{module}.py").is_file()]
    if not beside:
        return None
    if str(beside[0]) not in sys.path:
        sys.path.append(str(beside[0]))
    return importlib.import_module(module)


def load_reference() -> Reference | None:
    """Load the papers' style of code; None outside of a checkout."""
    cases = load_bench("reference_cases")
    return None if cases is None else cases.reference_microseconds


def measure_peaks() -> Peaks | None:
    """What one core can do now; None outside of a checkout, and where there is no C compiler."""
    peaks = load_bench("peaks")
    found: Peaks | None = None if peaks is None else peaks.measure(runs=8)
    return found


def limit_of(
    case: Case, experiment: Experiment, microseconds: float, *measured: Peaks | None
) -> dict[str, Any]:
    """The columns of a row that say what bounds it, by the peaks before and after it."""
    work, found = case.work and case.work(experiment), [each for each in measured if each]
    least = bound(work, best_of(*found)) if work and found else None
    return {
        "operations": work and work.operations,
        "normals": work and work.normals,
        "bytes": work and work.bytes,
        "limit_microseconds": least and least.microseconds,
        "bound": least and least.by,
        "share_of_limit": least and least.microseconds / microseconds,
    }


def measure(
    case: Case,
    reference: Reference | None,
    repeats: int = 5,
    peaks: Callable[[], Peaks | None] = lambda: None,
) -> dict[str, Any]:
    """One case: ours and the reference in turn, medians of the figures and of the ratios.

    Without a reference its figures and the ratios are None, without peaks limit, bound and share.
    """
    ours_experiment, reference_experiment = experiments_of(case)
    ours_microseconds(ours_experiment)
    ours, other, ratio, without = [], [], [], []
    before = peaks()
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
        **limit_of(case, ours_experiment, statistics.median(ours), before, peaks()),
        "threads": 1,
    }


def measure_all(
    names: Sequence[str], reference: Reference | None, repeats: int = 5
) -> list[dict[str, Any]]:
    """The cases of these names, each with the peaks of the moment."""
    chosen = [case for case in CASES if case.name in names]
    return [measure(case, reference, repeats, measure_peaks) for case in chosen]


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
    json.dump(measure_all(sys.argv[1:], load_reference()), sys.stdout)
