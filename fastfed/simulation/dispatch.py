"""Dispatch of plans to drivers; division of experiments into batches of runs that fit memory."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastfed._kernels import environments
from fastfed._memory import available, format_size, parse_size
from fastfed._validate import InputError, integer
from fastfed.environments import Adversary, EnvironmentSpec, LossSpec
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.plan import Plan
from fastfed.protocols.serverless import PeerPlan, PhasePlan
from fastfed.simulation import experts, peers, phases, policies, server
from fastfed.simulation.compiled import scratch_term
from fastfed.simulation.driver import (
    NUMBER,
    OBJECT,
    Driver,
    Outcome,
    Progress,
    Term,
    bytes_of,
    memory_sentence,
    merged_terms,
    spaced,
)
from fastfed.simulation.experiment import Experiment, Problem
from fastfed.simulation.snapshots import Snapshot

# ---- Dispatch: each plan to the driver that it names ---------------------------------------------
# To add a kind of plan, write a file with a `driver.Driver`, and add a line to ``DRIVERS``.


AnyPlan = Plan | PeerPlan | PhasePlan | ExpertPlan | policies.PolicyPlan
OpenEnvironment = environments.Environment | Adversary

#: Drivers by the name in ``plan.driver``.
DRIVERS: dict[str, Driver] = {
    "server": server.DRIVER,
    "peers": peers.DRIVER,
    "phases": phases.DRIVER,
    "experts": experts.DRIVER,
    "policies": policies.DRIVER,
}


def driver_of(plan: Any) -> Driver:
    """Return the driver of a plan; raise InputError if the plan names none."""
    name = getattr(plan, "driver", None)
    if name not in DRIVERS:
        raise InputError(
            f"plan must name its driver, one of {', '.join(DRIVERS)}: got {type(plan).__name__}"
        )
    return DRIVERS[name]


def runs_together(plan: AnyPlan) -> bool:
    """Return True if a plan can be run together with others, which then share all contexts."""
    return driver_of(plan).together(plan)


def run(
    environment: OpenEnvironment,
    plans: Sequence[AnyPlan],
    checkpoints: np.ndarray,
    *,
    threads: int = 1,
    record: bool = False,
    last: int | None = None,
    progress: Progress | None = None,
    snapshot: Snapshot | None = None,
) -> list[Outcome]:
    """Run rounds 1..last (default: all) of every plan by its fast driver.

    ``progress`` is called with the number of rounds since its last call, summed over the plans. If
    the plans form one group that runs together, or there is one plan, the run resumes from
    ``snapshot`` and writes into it. Otherwise ``snapshot`` is ignored.
    """
    joint_positions = [i for i, plan in enumerate(plans) if runs_together(plan)]
    groups = [joint_positions] if joint_positions else []
    groups += [[i] for i in range(len(plans)) if i not in joint_positions]
    outcomes: dict[int, Outcome] = {}
    for group in groups:

        def on_progress(rounds: int, curves: int = len(group)) -> None:
            """Call ``progress`` with the rounds of this group, summed over its curves."""
            if progress is not None:
                progress(rounds * curves)

        group_outcomes = driver_of(plans[group[0]]).run(
            environment,
            [plans[i] for i in group],
            checkpoints,
            threads=threads,
            record=record,
            last=last,
            progress=on_progress,
            snapshot=snapshot if len(groups) == 1 else None,
        )
        outcomes.update(zip(group, group_outcomes, strict=True))
    return [outcomes[i] for i in range(len(plans))]


def run_steps(environment: OpenEnvironment, plan: AnyPlan, checkpoints: np.ndarray) -> Outcome:
    """Run a plan by the step driver, message by message."""
    return driver_of(plan).run_steps(environment, plan, checkpoints)


# ---- Resources of a run. No result depends on them -----------------------------------------------


@dataclass(frozen=True)
class Resources:
    """Threads, engine and memory that a run may use; `largest_layout` divides the work."""

    threads: int | None = None  # total number; None: all processors
    engine: str = "local"
    scheduler: str | None = None  # address of an existing dask cluster
    memory_limit: int | str | None = None  # bytes, or "40GB"; None: the available memory


# ---- Batches of runs: which are missing, and how long they will take -----------------------------


#: The compiled driver's limit on the number of curves in a batch of runs.
MAX_TOGETHER = 64


@dataclass(frozen=True)
class RunBatch:
    """Curves of one replicate that are run together, over the same contexts."""

    replicate: int
    positions: tuple[int, ...]  # indices into experiment.curves


class Interrupted(Exception):
    """Raised by a batch of runs that is stopped between two calls of the driver."""


def missing_batches(
    experiment: Experiment, done_pairs: set[tuple[int, int]], max_curves: int = MAX_TOGETHER
) -> list[RunBatch]:
    """Return the batches of runs that an experiment still needs, each of at most ``max_curves``.

    ``done_pairs`` holds a pair (curve position, replicate) for every finished run. Curves of one
    problem have the same contexts. Such curves are run together if the contexts must be computed.
    """
    problems: list[tuple[Problem, list[int]]] = []
    for position, curve in enumerate(experiment.curves):
        for problem, positions in problems:
            if problem == curve.problem:
                positions.append(position)
                break
        else:
            problems.append((curve.problem, [position]))
    batches: list[RunBatch] = []
    for replicate in experiment.replicate_numbers:
        for problem, positions in problems:
            missing_positions = [i for i in positions if (i, replicate) not in done_pairs]
            joint_positions = [
                i for i in missing_positions if runs_together(experiment.curves[i].system.plan)
            ]
            size = min(max_curves, MAX_TOGETHER) if problem.facts.contexts_made else 1
            batches.extend(
                RunBatch(replicate, tuple(joint_positions[i : i + size]))
                for i in range(0, len(joint_positions), size)
            )
            batches.extend(
                RunBatch(replicate, (i,)) for i in missing_positions if i not in joint_positions
            )
    return batches


def default_threads() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """Return a number of threads after checking it; None means all processors."""
    if threads is None:
        return default_threads()
    return integer("threads", threads, at_least=1, at_most=1024)


class Keeper(Protocol):
    """A store of snapshots, on disk or in memory."""

    def of(self, replicate: int, positions: Sequence[int]) -> Snapshot:
        """Return the snapshot of one batch of runs."""
        ...


class Timed(NamedTuple):
    """The outcomes and the time of a batch of runs."""

    outcomes: list[Outcome]
    seconds: float  # total time, including the time before an interruption


def run_together(
    experiment: Experiment,
    work: RunBatch,
    threads: int,
    progress: Callable[[int], None] | None = None,
    record: bool = False,
    snapshots: Keeper | None = None,
) -> Timed:
    """Run one batch of runs, and resume from its snapshot if there is one.

    ``progress`` is called with the number of agent-rounds (rounds times silos) since its last call.
    """
    start = time.perf_counter()
    snapshot = snapshots.of(work.replicate, work.positions) if snapshots else None
    problem = experiment.curves[work.positions[0]].problem

    def on_progress(rounds: int) -> None:
        """Call ``progress`` with a number of rounds converted to agent-rounds."""
        if progress is not None:
            progress(rounds * problem.silos)

    outcomes = run(
        problem.open(experiment.seed, work.replicate),
        [experiment.curves[i].system.plan for i in work.positions],
        experiment.checkpoints,
        threads=threads,
        record=record,
        progress=on_progress,
        snapshot=snapshot,
    )
    seconds = time.perf_counter() - start
    return Timed(outcomes, seconds + (snapshot.earlier if snapshot else 0.0))


#: To predict its time, each kind of batch is run for at least this many seconds, or to its end.
TIMED_SECONDS = 0.02


def predict_seconds(
    experiment: Experiment,
    batches: list[RunBatch],
    threads: int,
    timed: Mapping[tuple[int, ...], float] | None = None,
) -> float:
    """Return a prediction of how many seconds the batches of runs take on ``threads`` threads.

    Batches of the same curves are assumed to take equal time. ``timed`` maps the curve positions of
    a batch to its seconds. If ``timed`` lacks a batch, the prediction is infinite. Without
    ``timed``, this function runs a few rounds of each kind of batch to measure their time.
    """
    if not batches:
        return 0.0
    kinds = Counter(batch.positions for batch in batches)
    if timed is None:
        timed = {kind: seconds_of(experiment, kind) for kind in kinds}
    one_thread = sum(timed.get(kind, math.inf) * times for kind, times in kinds.items())
    # Threads divide either the batches or the silos of a batch. More threads than that do not help.
    silos = experiment.curves[batches[0].positions[0]].problem.silos
    return one_thread / min(threads, max(len(batches), silos))


def seconds_of(experiment: Experiment, positions: tuple[int, ...]) -> float:
    """Return a prediction of the seconds that one batch of these curves takes on one thread."""
    environment = experiment.curves[positions[0]].problem.open(experiment.seed, 0)
    plans = [experiment.curves[i].system.plan for i in positions]
    rounds, horizon = min(experiment.horizon, 25), experiment.horizon

    def timed(rounds: int) -> float:
        """Return the seconds that rounds 1..``rounds`` take."""
        best = math.inf
        # Take the faster of two short runs: a delay caused by another process would be multiplied
        # in the prediction.
        for _ in range(2):
            start = time.perf_counter()
            run(environment, plans, experiment.checkpoints, last=rounds)
            best = min(best, time.perf_counter() - start)
            if best > 5.0 * TIMED_SECONDS:
                break
        return best

    while timed(rounds) < TIMED_SECONDS and rounds < horizon:
        rounds = min(8 * rounds, horizon)
    # In the first rounds all actions tie, which takes longer. So measure later rounds too.
    rounds = min(3 * rounds, horizon)
    return timed(rounds) * horizon / rounds


# ---- Memory of an experiment, and a division of its work that fits -------------------------------
#
# Results do not depend on how many batches of runs are run at once, or how many curves are in each
# batch. Both numbers are reduced until the run fits into memory. A run is refused only if not even
# one curve at a time fits.

#: Bytes of a worker process before it has an experiment: Python, NumPy, SciPy and fastfed.
WORKER = 50 * 10**6

#: Advice on how to raise the limit, for the command line and for Python.
DESPITE = '--memory {0} (in Python memory_limit = "{0}") tries all the same'


# ---- Memory of one batch of runs, and of the results ---------------------------------------------


def memory_of_batch(
    environment: Any,
    facts: EnvironmentSpec | LossSpec,
    plans: list[AnyPlan],
    checkpoints: int,
    threads: int,
    *,
    steps: bool = False,
    record: bool = False,
) -> list[Term]:
    """Return the memory terms of running these plans together over one environment.

    ``checkpoints`` is the number of checkpoints. ``steps`` selects the step driver. ``record`` adds
    memory for actions and rewards. An environment that needs further memory states it by a method
    ``memory(silos, horizon, curves) -> bytes``.
    """
    first_plan = plans[0]
    terms: list[Term] = []
    for plan in plans:
        terms += driver_of(plan).memory(plan, checkpoints, steps=steps, record=record)
    if isinstance(facts, EnvironmentSpec):
        # The largest numbers over the plans: of tree levels whose sums are sent as bits, and of
        # candidate standard deviations in the posterior of local rounds.
        bit_levels = max(getattr(plan, "bit_levels", 0) for plan in plans)
        local_plans = [getattr(plan, "own", None) for plan in plans]
        candidates = max((len(own.spreads) for own in local_plans if own is not None), default=0)
        threads_in_batch = 1 if steps else min(threads, first_plan.silos)
        terms.append(scratch_term(facts, bit_levels, len(plans), threads_in_batch, candidates))
    environment_memory = getattr(environment, "memory", None)
    if environment_memory is not None:
        size = int(environment_memory(first_plan.silos, first_plan.horizon, len(plans)))
        terms.append(Term("data of a replicate", size, environment.kind))
    return terms


def results_term(curves: int, replicates: int, checkpoints: int) -> Term:
    """Return the memory term of an experiment's results.

    Results are four numbers for each checkpoint, curve and replicate. The arguments are the numbers
    of curves, replicates and checkpoints.
    """
    cells = curves * replicates
    # All results, a copy of the results of one curve while they are assembled, and the rounds.
    size = 32 * checkpoints * replicates * (curves + 1) + 2 * OBJECT * cells
    size += (24 + 2 * NUMBER) * checkpoints
    description = f"{spaced(cells)} curve replicates x {spaced(checkpoints)} checkpoints"
    return Term("results", size, description, "replicates or checkpoints")


def batch_list_term(batches: int) -> Term:
    """Return the memory term of the lists of missing and finished batches of runs."""
    return Term("the list of batches", 3 * OBJECT * batches, spaced(batches), "replicates")


# ---- Layouts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Division of an experiment into batches of runs, and the memory that it takes."""

    at_once: int  # batches of runs that are run at once
    together: int  # largest number of curves in a batch of runs
    terms: tuple[Term, ...]
    reduced: str = ""  # a sentence that states what was reduced so that the run fits

    @property
    def bytes(self) -> int:
        """Largest memory in use at any time, in addition to what the process uses before."""
        return bytes_of(self.terms)


def estimate(
    experiment: Experiment,
    resources: Resources,
    *,
    at_once: int | None = None,
    together: int = MAX_TOGETHER,
    driver: str = "compiled",
    done: int = 0,
    kept: bool = False,
) -> Layout:
    """Return the layout of an experiment: its division into batches, with estimated memory.

    Parameters
    ----------
    at_once : int, optional
        Number of batches of runs that are run at the same time. Default: one for each thread.
    together : int
        Largest number of curves in a batch of runs.
    driver : {"compiled", "step"}
        As in `simulate`. The step driver runs one batch at a time.
    done : int
        Number of finished curve replicates; if all are finished, no memory for runs is counted.
    kept : bool
        True if all outcomes stay in memory, as in `simulate`.

    Notes
    -----
    The memory of the workers of an existing dask cluster is not counted.
    """
    checkpoints, replicates = len(experiment.checkpoints), len(experiment.replicate_numbers)
    cells = len(experiment.curves) * replicates
    terms = [results_term(len(experiment.curves), replicates, checkpoints), batch_list_term(cells)]
    steps = driver == "step"
    if kept:
        terms += _outcome_terms(experiment, steps)
    if done >= cells or resources.scheduler is not None:
        return Layout(1, together, merged_terms(terms))
    threads = check_threads(resources.threads)
    # All replicates have the same batches, so list those of one replicate.
    kinds = Counter(
        b.positions for b in missing_batches(experiment.with_options(1), set(), together)
    )
    batches = replicates * sum(kinds.values())
    most_at_once = 1 if steps else max(1, min(threads, batches))
    at_once = most_at_once if at_once is None else min(at_once, most_at_once)
    threads_in_batch = max(1, threads // at_once)
    terms_of_batches = []
    for positions, count in kinds.items():
        problem = experiment.curves[positions[0]].problem
        plans = [experiment.curves[i].system.plan for i in positions]
        batch_terms = memory_of_batch(
            problem.environment, problem.facts, plans, checkpoints, threads_in_batch, steps=steps
        )
        terms_of_batches += [batch_terms] * count
    # In the worst case, the largest batches are run at the same time.
    terms_of_batches.sort(key=bytes_of, reverse=True)
    remaining = at_once
    for batch_terms in terms_of_batches:
        copies = min(remaining, replicates)
        terms += [term.times(copies, f", {copies} batches at once") for term in batch_terms]
        remaining -= copies
        if not remaining:
            break
    processes = 1 if resources.engine == "local" else at_once
    problems = {id(c.problem): c.problem for c in experiment.curves}.values()
    terms += [
        term
        for problem in problems
        for term in _problem_terms(problem, experiment.horizon, processes)
    ]
    if resources.engine != "local":
        workers = f"{processes} worker process{'es' if processes > 1 else ''}"
        terms.append(Term("worker processes", processes * WORKER, workers, "threads"))
    return Layout(at_once, together, merged_terms(terms))


def _problem_terms(problem: Problem, horizon: int, processes: int) -> list[Term]:
    """Return the memory terms of the data that all replicates of a problem share.

    Each of the ``processes`` processes has a copy of the data. Data that a single process holds
    already, before the run (`own_memory`), are counted only if there are several processes.
    """
    environment, silos = problem.environment, problem.silos
    kind = environment.kind
    terms = []
    if (shared_memory := getattr(environment, "shared_memory", None)) is not None:
        terms.append(Term("data in 16 bits", processes * int(shared_memory(silos, horizon)), kind))
    if processes > 1 and (copied_memory := getattr(environment, "own_memory", None)) is not None:
        terms.append(
            Term("data of every worker", processes * int(copied_memory(silos)), kind, "threads")
        )
    return terms


def _outcome_terms(experiment: Experiment, steps: bool) -> list[Term]:
    """Return the memory terms of all Outcomes of an experiment, for a run without a store.

    ``steps`` selects the step driver, which records actions and rewards of bandits.
    """
    checkpoints, replicates = len(experiment.checkpoints), len(experiment.replicate_numbers)
    size = recorded = 0
    for curve in experiment.curves:
        plan = curve.system.plan
        size += 32 * checkpoints + 8 * getattr(
            plan, "statistic_size", size_without_statistics(plan)
        )
        if steps and not hasattr(plan, "experts"):
            recorded += 12 * plan.silos * plan.horizon
    cells = spaced(len(experiment.curves) * replicates)
    return [
        Term("outcomes", size * replicates, f"{cells} curve replicates", "replicates"),
        Term(
            "actions and rewards", recorded * replicates, f"{cells} curve replicates", "replicates"
        ),
    ]


def size_without_statistics(plan: object) -> int:
    """Return the length of ``Outcome.total`` for a plan without ``statistic_size``."""
    return int(getattr(plan, "experts", 0) or getattr(plan, "dimension", 0))


def largest_layout(
    experiment: Experiment,
    resources: Resources,
    *,
    driver: str = "compiled",
    done: int = 0,
    kept: bool = False,
) -> Layout:
    """Return the largest layout of an experiment that fits into memory.

    ``driver``, ``done`` and ``kept`` are as in `estimate`. Raises InputError if not even one curve
    at a time fits; the message states the memory needed.
    """
    requested_limit = resources.memory_limit
    limit = available() if requested_limit is None else parse_size("memory_limit", requested_limit)

    def layout(at_once: int | None = None, together: int = MAX_TOGETHER) -> Layout:
        """Return the layout with ``at_once`` batches at once, of ``together`` curves each."""
        return estimate(
            experiment, resources,
            at_once=at_once, together=together, driver=driver, done=done, kept=kept,
        )  # fmt: skip

    unlimited = layout()
    if limit is None or unlimited.bytes <= limit:
        return unlimited
    for at_once, together in _smaller(unlimited):
        smaller = layout(at_once, together)
        if smaller.bytes <= limit:
            return replace(smaller, reduced=_reduced(unlimited, smaller, limit))
    # The loop has set `smaller` unless the unlimited layout already runs one curve at a time.
    raise InputError(memory_refusal(
        smaller if unlimited.at_once + unlimited.together > 2 else unlimited,
        limit, requested_limit is None,
    ))  # fmt: skip


def _smaller(layout: Layout) -> list[tuple[int, int]]:
    """Return layouts smaller than ``layout``, the largest first.

    Each is a pair (batches at once, largest number of curves in a batch). First the number of
    batches at once is halved repeatedly, down to 1, then the number of curves in a batch. The
    curves come last because each curve takes more time in a smaller batch.
    """
    layouts = []
    at_once, together = layout.at_once, layout.together
    while at_once > 1:
        at_once //= 2
        layouts.append((at_once, together))
    while together > 1:
        together //= 2
        layouts.append((1, together))
    return layouts


def _reduced(unlimited: Layout, smaller: Layout, limit: int) -> str:
    """Return a sentence that states how ``smaller`` differs from the layout ``unlimited``.

    ``limit`` is the available memory in bytes.
    """
    parts = []
    if smaller.at_once < unlimited.at_once:
        parts.append(f"{smaller.at_once} of {unlimited.at_once} batches at once")
    if smaller.together < unlimited.together:
        parts.append(f"at most {smaller.together} curves in a batch")
    return (
        f"memory: {' and '.join(parts)}, about {format_size(smaller.bytes)} instead of "
        f"{format_size(unlimited.bytes)}, because {format_size(limit)} are available; "
        "results are the same"
    )


class OutOfMemory(MemoryError):
    """Raised if memory runs out during an experiment; the message is one sentence."""


@contextmanager
def memory_ends(layout: Layout) -> Iterator[None]:
    """Convert a MemoryError in the block to OutOfMemory, whose message has the memory terms."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemory):
            raise
        raise OutOfMemory(
            f"out of memory: {memory_sentence(layout.terms)}; fewer threads or "
            f"{layout.terms[0].less or 'silos'} need less"
        ) from None


def memory_refusal(layout: Layout, limit: int, measured: bool) -> str:
    """Return a sentence that states why a layout does not fit into memory, and what helps.

    ``limit`` is the available memory in bytes; ``measured`` is False if a user has set it.
    """
    needed_bytes = layout.bytes
    needed_text = memory_sentence(layout.terms)
    available_text = (
        f"{format_size(limit)} are available"
        if measured
        else f"memory_limit is {format_size(limit)}"
    )
    reduce_text = f"fewer {layout.terms[0].less} need less" if layout.terms[0].less else ""
    larger_limit = format_size(1.2 * needed_bytes).replace(" ", "")
    raise_text = DESPITE.format(larger_limit) if needed_bytes < 2**50 else ""
    advice = ", and ".join(part for part in (reduce_text, raise_text) if part)
    return f"{needed_text}, and {available_text}{f': {advice}' if advice else ''}"
