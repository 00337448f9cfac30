"""`fastfed bench`: times the compiled driver and reference code in the style of the papers."""

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
from fastfed.environments import Arms, Environment, FixedSet, RewardDistribution, Sphere
from fastfed.environments.pool import Pool, PoolEnvironment, equal_blocks
from fastfed.protocols.plan import Plan, check_plan
from fastfed.simulation import compiled
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.limits import Peaks, Work, best_of, bound

SILOS = 10
BATCH = 25
#: Number of queries in a synthetic pool.
QUERIES = 60
#: Keys that select the constants of the papers' experiment code.
PUBLISHED = {"calibration": "published-code", "radius": "published-code"}
#: zhou-chowdhury-2024 as published: not lazy, epsilon = 1, delta = 0.1, B = 25.
FEDERATED = {
    "algorithm": "private-fedlinucb",
    "epsilon": 1.0,
    "delta": 0.1,
    "lazy": False,
    **PUBLISHED,
}
#: chowdhury-zhou-2022 as in its Figure 1b.
AGENT = {"epsilon": 1.0, "delta": 0.1, **PUBLISHED}
#: A regularizer larger than an agent's noise. With it V is always positive definite, so no time is
#: spent on shifting V until it is positive definite.
RIDGE = 300.0
#: The keys of each system that is timed.
CURVES: dict[str, dict[str, Any]] = {
    "silo-ldp": {**FEDERATED, "protocol": "silo-ldp"},
    "shuffle-vector": {**FEDERATED, "protocol": "shuffle-vector", "epsilon": 0.2},
    # All keys at their defaults, as users run them.
    "default": {"algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6},
    "default-eager": {
        "algorithm": "private-fedlinucb", "epsilon": 1.0, "delta": 1e-6, "lazy": False,
    },
    "default-linucb": {"algorithm": "linucb"},
    "default-local": {"algorithm": "local-linucb"},
    "linucb": {"algorithm": "linucb", "radius": "published-code"},
    # The tree of the paper, which the paper's code does not use.
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
    """Queries of K random unit rows in d dimensions, a stand-in for the data files of MSLR."""

    kind = "synthetic-pool"

    def __init__(self, actions: int, dimension: int, queries: int = QUERIES) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("none"))
        generator = np.random.default_rng(0)
        rows = generator.normal(size=(queries * actions, dimension))
        self.rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        theta = generator.normal(size=dimension)
        self.means = 0.5 + 0.5 * self.rows @ (theta / np.linalg.norm(theta))
        self.starts = np.arange(queries + 1) * actions
        self.silo_starts = equal_blocks(queries, SILOS)

    def load(self, silos: int | None) -> Pool:
        """Return the pool, whose silos are fixed."""
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return {"kind": self.kind}


class LetorPool(PoolEnvironment):
    """Queries like the queries of MSLR-WEB10K: 116 documents on average, with correlated features.

    Features are nonnegative with a long tail, a third of them are 0, and columns are scaled as in
    `fastfed.environments.Letor`. Only ``drawn`` queries are random; the others are copies of these
    at different places in memory. With ``similar_rows``, rows resemble real documents: a few
    directions explain nearly all of their variation, and their norms differ little.
    """

    kind = "letor-pool"
    drawn = 200

    def __init__(self, dimension: int, queries: int, similar_rows: bool = False) -> None:
        super().__init__(sampling="with-replacement", reward=RewardDistribution("bernoulli"))
        generator = np.random.default_rng(0)
        # Draw `drawn` queries: their sizes are log-normal, their features come from 8 factors plus
        # noise.
        sizes = np.clip(np.rint(generator.lognormal(4.6, 0.55, self.drawn)), 5, 320).astype(int)
        loadings = generator.normal(size=(8, dimension)) / np.sqrt(8.0)
        blocks, noise = [], 0.1 if similar_rows else 0.5
        for size in sizes:
            factors = generator.normal(size=8) + generator.normal(size=(size, 8))
            raw_features = factors @ loadings + noise * generator.normal(size=(size, dimension))
            if similar_rows:
                block = 1.0 / (1.0 + np.exp(-raw_features))
            else:
                block = np.exp(raw_features) * (generator.random((size, dimension)) > 1.0 / 3.0)
            block[:, 0] = 1.0
            blocks.append(block)
        # Scale as `Letor` does: divide each column by its largest value, write an intercept, and
        # divide all rows by their largest norm, so that no norm exceeds 1.
        rows = np.concatenate(blocks)
        rows /= rows.max(axis=0)
        rows[:, 0] = 0.01
        rows /= 1.000001 * np.linalg.norm(rows, axis=1).max()
        means = rows @ generator.uniform(size=dimension)
        means /= means.max()
        order = generator.integers(0, self.drawn, queries)
        block_starts = np.concatenate([[0], np.cumsum(sizes)])
        row_indices = np.concatenate(
            [np.arange(block_starts[q], block_starts[q + 1]) for q in order]
        )
        self.rows, self.means = rows.astype(np.float32)[row_indices], means[row_indices]
        self.starts = np.concatenate([[0], np.cumsum(sizes[order])])
        self.silo_starts = equal_blocks(queries, SILOS)

    def load(self, silos: int | None) -> Pool:
        """Return the pool, whose silos are fixed."""
        return self.loaded_pool

    @cached_property
    def loaded_pool(self) -> Pool:
        """The pool, cached because converting its features to 16 bits takes time."""
        return Pool.from_rows(self.rows, self.means, self.starts, self.silo_starts)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return {"kind": self.kind}


#: Computes the least work (arithmetic and memory reads) of an agent-round, one round of one silo.
Count = Callable[[Experiment], Work]


def triangle_entries(dimension: int) -> float:
    """Return the number of different entries of a symmetric or triangular d x d matrix."""
    return dimension * (dimension + 1) / 2


def update_operations(plan: Plan) -> float:
    """Return the float64 operations of an agent-round that update V and its Cholesky factor.

    V is the regularised Gram matrix, to which an agent-round adds one data point. Each entry of V
    takes two operations. If the plan is not lazy, the factor is updated in every round, with five
    operations for each entry. A release also computes a new factor in 2/3 d^3 operations. The
    operations of all releases are divided by the number of agent-rounds.
    """
    per_entry = 2.0 if plan.lazy else 7.0
    new_factors = 2.0 / 3.0 * plan.dimension**3 * plan.releases / (plan.horizon * plan.silos)
    return per_entry * triangle_entries(plan.dimension) + new_factors


def sphere_work(experiment: Experiment) -> Work:
    """Return the work of an agent-round with contexts that are drawn on the unit sphere.

    It consists of drawing and normalising all actions, their scores, and an update by one data
    point.
    """
    plan, environment = check_plan(experiment.curves[0].system.plan), experiment.environment
    assert isinstance(environment, Sphere)
    d, k = plan.dimension, environment.actions
    # W is the inverse Cholesky factor of V. The first bonus of an action x is ||W x||, the second
    # ||W' W x||, which only a direct radius has.
    bonuses = 2 if plan.radius.direct else 1
    return Work(
        normals=k * (d - 1),
        # For each action: its bonuses, <x, theta>, the norm of x, and the division of x by it.
        float32=k * (bonuses * (2 * triangle_entries(d) + 2 * d) + 2 * d + 3 * d),
        roots=k * (bonuses + 1),
        float64=update_operations(plan),
        reads=((4.0 * k * d, 4.0 * k * d), (8.0 * triangle_entries(d), 8.0 * triangle_entries(d))),
    )


def pool_work(experiment: Experiment) -> Work:
    """Return the work of an agent-round with the queries of a pool, with 16-bit scores.

    Each round multiplies all actions of its query by theta. It multiplies them by the Cholesky
    factor only at the first use of the query since the last release, because the bonuses of a query
    are then cached.
    """
    plan, environment = check_plan(experiment.curves[0].system.plan), experiment.environment
    assert isinstance(environment, SyntheticPool | LetorPool)
    d, queries = plan.dimension, len(environment.starts) - 1
    k, queries_per_silo = len(environment.rows) / queries, queries / experiment.silos
    release_rounds = [0, *plan.ends, plan.horizon]
    lengths = np.diff(release_rounds)
    # Expected share of rounds that use a query for the first time since the last release.
    first_uses = (
        queries_per_silo * (1.0 - (1.0 - 1.0 / queries_per_silo) ** lengths)
    ).sum() / plan.horizon
    query_bytes = 2.0 * k * d
    return Work(
        int16=2 * k * (first_uses * triangle_entries(d) + d),
        float64=update_operations(plan),
        reads=(
            # Pairs (bytes read, bytes read between two reads of the same byte), see `Work.reads`.
            # Between two first uses of a query, after different releases, all queries are read.
            # Between two uses before the next release, only queries of the same silo are read.
            (query_bytes * first_uses, query_bytes * queries),
            (query_bytes * (1.0 - first_uses), query_bytes * queries_per_silo),
            (2.0 * first_uses * triangle_entries(d), 2.0 * triangle_entries(d)),
            (8.0 * triangle_entries(d) * (not plan.lazy), 8.0 * triangle_entries(d)),
        ),
    )


def fixed_set_work(experiment: Experiment) -> Work:
    """Return the work of an agent-round with a fixed set of actions X, (K, d).

    In each round the means and both bonuses, ||W x|| and ||V^-1 x||, of all actions x are updated.
    V is the regularised Gram matrix, and W its inverse Cholesky factor. A model that stores V^-1
    needs two products of X with vectors, two products of V^-1 with vectors, and an update of V^-1.
    A model that stores the K x K matrices X V^-1 X' and X V^-2 X' updates one triangle of each. The
    compiled code stores these matrices up to K = 2 d (`pairs_up_to` in src/ff_fixed.c).
    """
    k, d = 100, check_plan(experiment.curves[0].system.plan).dimension
    rows, pairs = 4 * k * d + 6 * d * d, 3 * k * k
    if k > 2 * d:
        return Work(float64=rows, reads=((4.0 * k * d, 4.0 * k * d), (8.0 * d * d, 8.0 * d * d)))
    # The effects of 16 data points are subtracted from both matrices in one pass (src/ff_fixed.c),
    # so an agent-round reads 1/16 of the two triangles on average.
    return Work(float64=pairs, reads=((8.0 * k * k / 16, 8.0 * k * k),))


@dataclass(frozen=True)
class Case:
    """One bench: an environment, a system, and how long the driver and the reference run.

    The driver (compiled code) runs ``rounds`` rounds, the reference code ``reference_rounds``.
    """

    name: str
    #: The least work of an agent-round; None if arithmetic does not determine the time.
    work: Count | None
    environment: Callable[[], Environment]
    rounds: int
    reference_rounds: int
    protocol: str = "silo-ldp"  # a key of CURVES
    silos: int = SILOS
    batch_size: int | None = BATCH  # None: the default
    #: Silos and batch size of the reference, if they differ.
    reference_sizes: tuple[int, int] | None = None


def agent_case(name: str, system: str, batch_size: int = 1) -> Case:
    """Return a case with a single agent; ``system`` is a key of `CURVES`.

    At d = 5 the latency of dependent steps determines the time of a round, and not the number of
    operations. So the case has no lower bound from arithmetic.
    """
    environment = partial(FixedSet, basis_actions=True)
    return Case(
        name, None, environment, rounds=20_000, reference_rounds=4000, protocol=system, silos=1,
        batch_size=batch_size,
    )  # fmt: skip


def letor_case(dimension: int, queries: int, protocol: str, similar_rows: bool = False) -> Case:
    """Return a case with rows like those of LETOR data, see `LetorPool`.

    ``protocol`` is a key of `CURVES`. The reference is a fast NumPy loop in float32.
    """
    name = f"letor-d{dimension}-q{queries}" + "-close" * similar_rows
    name += "-eager" * (protocol == "default-eager")
    environment = partial(LetorPool, dimension, queries, similar_rows)
    return Case(
        name, pool_work, environment, rounds=1000, reference_rounds=200, protocol=protocol,
        batch_size=None,
    )  # fmt: skip


def wide_case(dimension: int) -> Case:
    """Return a case with one agent and a fixed set of 100 actions in ``dimension`` dimensions.

    The reference code (benches/numpy_float32.py) updates the scores of the K actions with NumPy in
    O(K d) operations per round.
    """
    environment = partial(FixedSet, dimension=dimension)
    return Case(
        f"set-k100-d{dimension}", fixed_set_work, environment, rounds=2000, reference_rounds=1000,
        protocol="default-linucb", silos=1, batch_size=None,
    )  # fmt: skip


def arms_case(actions: int) -> Case:
    """Return a case of silos that learn alone on ``actions`` arms.

    The reference code (benches/numpy_arms.py) computes all silos at once with NumPy.
    """
    environment = partial(Arms, actions=actions)
    name = f"arms-k{actions}"
    return Case(
        name, None, environment, rounds=20_000, reference_rounds=4000, protocol="default-local",
        batch_size=None,
    )  # fmt: skip


CASES = (
    Case("sphere-k100-d10-ldp", sphere_work, Sphere, 1000, 50),
    # With T / B = 400 a data point is encoded for 4.76 nodes on average. The reference gets the
    # same tree in fewer rounds with B = 1. It has few silos, as its cost is per data point.
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
    letor_case(135, 2000, "default", similar_rows=True),
    letor_case(135, 2000, "default-eager", similar_rows=True),
    *(wide_case(d) for d in (20, 100, 200)),
    *(arms_case(k) for k in (5, 10, 100)),
)  # fmt: skip


def cases_of(names: Sequence[str]) -> list[Case]:
    """Return the cases whose names start with one of ``names``; all cases if it is empty.

    Raises InputError if a name matches no case.
    """
    all_names = [case.name for case in CASES]
    for name in names:
        if not any(case_name.startswith(name) for case_name in all_names):
            kinds = sorted({case_name.split("-")[0] for case_name in all_names})
            hint = nearest(name, all_names) or f"; they start with {', '.join(kinds)}"
            raise InputError(f'no bench starts with "{name}"{hint}')
    return [case for case in CASES if not names or case.name.startswith(tuple(names))]


def bench_experiment(
    environment: Environment, rounds: int, protocol: str, silos: int, batch_size: int | None
) -> Experiment:
    """Return an experiment with a single curve; ``protocol`` is a key of `CURVES`."""
    curve = {"label": protocol, **CURVES[protocol]}
    if batch_size is not None:
        curve["batch_size"] = batch_size
    return make_experiment(
        name="bench", environment=environment, curves=[curve], horizon=rounds, silos=silos
    )


def experiments_of(case: Case) -> tuple[Experiment, Experiment]:
    """Return two experiments of a case: for the compiled driver, and for the reference code."""
    environment, sizes = case.environment(), (case.silos, case.batch_size)
    reference_sizes = case.reference_sizes or sizes
    return (
        bench_experiment(environment, case.rounds, case.protocol, *sizes),
        bench_experiment(environment, case.reference_rounds, case.protocol, *reference_sizes),
    )


def ours_microseconds(experiment: Experiment) -> float:
    """Measure the compiled driver on one thread, in microseconds of CPU time per agent-round.

    The experiment has a single curve. CPU time is used because other processes on the machine
    increase the wall time only.
    """
    environment = experiment.environment.open(0, 0, experiment.silos)
    assert isinstance(environment, environments.Environment)
    plans = [check_plan(c.system.plan) for c in experiment.curves]
    start = time.process_time()
    compiled.run(environment, plans, experiment.checkpoints, rounds_per_call=experiment.horizon)
    return 1e6 * (time.process_time() - start) / experiment.agent_rounds([0])


#: Measures the reference: microseconds per agent-round in all, and for contexts only.
Reference = Callable[[Experiment], tuple[float, float]]


def load_bench(module: str) -> Any:
    """Load a module of the repository's folder benches/.

    Returns None unless fastfed is in a checkout, or in an environment inside a checkout.
    """
    package = Path(str(files("fastfed")))
    folders = [folder / "benches" for folder in package.parents]
    bench_folders = [folder for folder in folders if (folder / f"{module}.py").is_file()]
    if not bench_folders:
        return None
    if str(bench_folders[0]) not in sys.path:
        sys.path.append(str(bench_folders[0]))
    return importlib.import_module(module)


def load_reference() -> Reference | None:
    """Load the function that measures the reference code; None outside a checkout."""
    cases = load_bench("reference_cases")
    return None if cases is None else cases.reference_microseconds


def measure_peaks() -> Peaks | None:
    """Measure the peak rates of one core; None outside a checkout or without a C compiler."""
    peaks = load_bench("peaks")
    measured: Peaks | None = None if peaks is None else peaks.measure(runs=8)
    return measured


def limit_of(
    case: Case, experiment: Experiment, microseconds: float, *measured: Peaks | None
) -> dict[str, Any]:
    """Return the columns of a result row about the lower bound on the time of an agent-round.

    The lower bound (column `limit_microseconds`) is the time that the case's work takes at the peak
    rates of one core; the column `bound` names the rate that takes most of it. ``microseconds`` is
    the measured time per agent-round, and ``measured`` are the peak rates that were measured before
    and after it.
    """
    work, peaks = case.work and case.work(experiment), [rates for rates in measured if rates]
    least = bound(work, best_of(*peaks)) if work and peaks else None
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
    """Measure one case, and return its result row.

    The driver and the reference code are run in turn ``repeats`` times, and the row has medians.
    "ratio" is the reference's time divided by the driver's time. For "ratio_without_data", the time
    that the reference spends on contexts is first subtracted from the reference's time. Without a
    reference, its time and the ratios are None. ``peaks()`` measures peak rates. If it returns
    None, the columns about the lower bound are None.
    """
    ours_experiment, reference_experiment = experiments_of(case)
    ours_microseconds(ours_experiment)  # warm up caches and the processor
    driver_times, reference_times, ratios, ratios_without_data = [], [], [], []
    peaks_before = peaks()
    for _ in range(repeats):
        driver_time = ours_microseconds(ours_experiment)
        driver_times.append(driver_time)
        if reference is not None:
            reference_time, context_time = reference(reference_experiment)
            reference_times.append(reference_time)
            ratios.append(reference_time / driver_time)
            ratios_without_data.append((reference_time - context_time) / driver_time)
    return {
        "name": case.name,
        "microseconds_per_agent_round": statistics.median(driver_times),
        "reference_microseconds_per_agent_round": statistics.median(reference_times)
        if reference_times
        else None,
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_without_data": statistics.median(ratios_without_data)
        if ratios_without_data
        else None,
        **limit_of(case, ours_experiment, statistics.median(driver_times), peaks_before, peaks()),
        "threads": 1,
    }


def measure_all(
    names: Sequence[str], reference: Reference | None, repeats: int = 5
) -> list[dict[str, Any]]:
    """Return the result rows of the cases with these names; measure peak rates for each case."""
    cases = [case for case in CASES if case.name in names]
    return [measure(case, reference, repeats, measure_peaks) for case in cases]


def run_bench(*names: str) -> list[dict[str, Any]]:
    """Measure the cases of `cases_of` in a new process, with BLAS on one thread.

    Parameters
    ----------
    *names : str
        Beginnings of the names of cases. Default: all cases.

    Returns
    -------
    list of dict
        One row of times and ratios for each case.
    """
    chosen = [case.name for case in cases_of(names)]
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OPENBLAS", "OMP", "MKL")}
    process = subprocess.run(
        [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *chosen],
        env={**os.environ, **one_thread},
        stdout=subprocess.PIPE,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(process.stdout)
    return results


def main() -> None:
    """Measure the cases named on the command line, and print a list of rows as JSON."""
    json.dump(measure_all(sys.argv[1:], load_reference()), sys.stdout)
