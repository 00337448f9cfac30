"""Dispatch: the driver that runs a plan, and batches of runs: which are run at once, and memory."""

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
    merged,
    sentence,
    spaced,
    total,
)
from fastfed.simulation.experiment import Experiment, Problem
from fastfed.simulation.snapshots import Snapshot

# ---- Dispatch: every plan to the driver that it names --------------------------------------------
# A new kind of plan is one file with a `driver.Driver`, and one line in ``DRIVERS``.


AnyPlan = Plan | PeerPlan | PhasePlan | ExpertPlan | policies.PolicyPlan
OpenEnvironment = environments.Environment | Adversary

#: By the name that a kind of plan has as ``driver``.
DRIVERS: dict[str, Driver] = {
    "server": server.DRIVER,
    "peers": peers.DRIVER,
    "phases": phases.DRIVER,
    "experts": experts.DRIVER,
    "policies": policies.DRIVER,
}


def driver_of(plan: Any) -> Driver:
    """Driver of a plan; InputError where fastfed has none."""
    name = getattr(plan, "driver", None)
    if name not in DRIVERS:
        raise InputError(
            f"plan must name its driver, one of {', '.join(DRIVERS)}: got {type(plan).__name__}"
        )
    return DRIVERS[name]


def together(plan: AnyPlan) -> bool:
    """Curves of such plans are run at once, over contexts made once."""
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
    """Run rounds 1..last (all by default) of every plan, each by its fast driver.

    ``progress`` hears of rounds, each once for every plan. ``snapshot``: where plans go on from,
    if all of them run together.
    """
    shared = [i for i, plan in enumerate(plans) if together(plan)]
    groups = [shared] if shared else []
    groups += [[i] for i in range(len(plans)) if i not in shared]
    outcomes: dict[int, Outcome] = {}
    for group in groups:

        def heard(rounds: int, curves: int = len(group)) -> None:
            if progress is not None:
                progress(rounds * curves)

        made = driver_of(plans[group[0]]).run(
            environment,
            [plans[i] for i in group],
            checkpoints,
            threads=threads,
            record=record,
            last=last,
            progress=heard,
            snapshot=snapshot if len(groups) == 1 else None,
        )
        outcomes.update(zip(group, made, strict=True))
    return [outcomes[i] for i in range(len(plans))]


def run_steps(environment: OpenEnvironment, plan: AnyPlan, checkpoints: np.ndarray) -> Outcome:
    """Run a plan by the step driver, message by message."""
    return driver_of(plan).run_steps(environment, plan, checkpoints)


# ---- What a run may use of a machine, and who runs it. No result depends on it ------------------


@dataclass(frozen=True)
class Resources:
    """Threads, engine and memory of a run; `memory.fit` divides the work so that they are
    enough."""

    threads: int | None = None  # in all; None: every processor
    engine: str = "local"
    scheduler: str | None = None  # address of a dask cluster that is there already
    memory_limit: int | str | None = None  # bytes, or "40GB"; None: what is available


# ---- Batches of runs: which are missing, and how long they will take -----------------------------


#: The compiled driver's own limit of curves in a batch of runs.
MOST_TOGETHER = 64


@dataclass(frozen=True)
class RunBatch:
    """Curves of one replicate that are run together, over the same contexts."""

    replicate: int
    positions: tuple[int, ...]


class Interrupted(Exception):
    """A batch of runs was told to stop between two calls."""


def missing_batches(
    experiment: Experiment, done: set[tuple[int, int]], most: int = MOST_TOGETHER
) -> list[RunBatch]:
    """Batches of runs that are left, of at most ``most`` curves each.

    Curves of one problem share contexts where making them is work.
    """
    problems: list[tuple[Problem, list[int]]] = []
    for position, curve in enumerate(experiment.curves):
        for problem, positions in problems:
            if problem == curve.problem:
                positions.append(position)
                break
        else:
            problems.append((curve.problem, [position]))
    passes: list[RunBatch] = []
    for replicate in range(experiment.replicates):
        for problem, positions in problems:
            left = [i for i in positions if (i, replicate) not in done]
            shared = [i for i in left if together(experiment.curves[i].system.plan)]
            size = min(most, MOST_TOGETHER) if problem.facts.contexts_made else 1
            passes.extend(
                RunBatch(replicate, tuple(shared[i : i + size]))
                for i in range(0, len(shared), size)
            )
            passes.extend(RunBatch(replicate, (i,)) for i in left if i not in shared)
    return passes


def default_threads() -> int:
    """Processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_threads(threads: int | None) -> int:
    """Threads to run with; None takes every processor."""
    if threads is None:
        return default_threads()
    return integer("threads", threads, at_least=1, at_most=1024)


class Keeper(Protocol):
    """Snapshots of batches of runs, wherever they are kept."""

    def of(self, replicate: int, positions: Sequence[int]) -> Snapshot:
        """The snapshot of one batch of runs."""
        ...


class Timed(NamedTuple):
    """What a batch of runs came to."""

    outcomes: list[Outcome]
    seconds: float  # all it took, before it was interrupted too


def run_together(
    experiment: Experiment,
    work: RunBatch,
    threads: int,
    progress: Callable[[int], None] | None = None,
    record: bool = False,
    snapshots: Keeper | None = None,
) -> Timed:
    """Run one batch of runs, on from its snapshot if there is one; ``progress`` hears
    agent-rounds."""
    start = time.perf_counter()
    snapshot = snapshots.of(work.replicate, work.positions) if snapshots else None
    problem = experiment.curves[work.positions[0]].problem

    def heard(rounds: int) -> None:
        if progress is not None:
            progress(rounds * problem.silos)

    outcomes = run(
        problem.open(experiment.seed, work.replicate),
        [experiment.curves[i].system.plan for i in work.positions],
        experiment.checkpoints,
        threads=threads,
        record=record,
        progress=heard,
        snapshot=snapshot,
    )
    seconds = time.perf_counter() - start
    return Timed(outcomes, seconds + (snapshot.earlier if snapshot else 0.0))


#: A prediction times every kind of pass for at least so long, unless it is over before.
TIMED_SECONDS = 0.02


def predict_seconds(
    experiment: Experiment,
    passes: list[RunBatch],
    threads: int,
    timed: Mapping[tuple[int, ...], float] | None = None,
) -> float:
    """Seconds the batches of runs will take, from running a few rounds of each kind.

    ``timed``: what was timed elsewhere; infinite where it lacks a kind.
    """
    if not passes:
        return 0.0
    kinds = Counter(work.positions for work in passes)
    if timed is None:
        timed = {kind: seconds_of(experiment, kind) for kind in kinds}
    alone = sum(timed.get(kind, math.inf) * times for kind, times in kinds.items())
    silos = experiment.curves[passes[0].positions[0]].problem.silos
    return alone / min(threads, max(len(passes), silos))


def seconds_of(experiment: Experiment, positions: tuple[int, ...]) -> float:
    """Seconds that one batch of runs over these curves takes on one thread."""
    environment = experiment.curves[positions[0]].problem.open(experiment.seed, 0)
    plans = [experiment.curves[i].system.plan for i in positions]
    rounds, horizon = min(experiment.horizon, 25), experiment.horizon

    def timed(rounds: int) -> float:
        best = math.inf
        # The better of two, where they are short: whatever else the machine does in the meantime
        # counts for hours when it is multiplied.
        for _ in range(2):
            start = time.perf_counter()
            run(environment, plans, experiment.checkpoints, last=rounds)
            best = min(best, time.perf_counter() - start)
            if best > 5.0 * TIMED_SECONDS:
                break
        return best

    while timed(rounds) < TIMED_SECONDS and rounds < horizon:
        rounds = min(8 * rounds, horizon)
    # The first batch is dearer than later ones, for all its actions tie: it must not be all.
    rounds = min(3 * rounds, horizon)
    return timed(rounds) * horizon / rounds


# ---- Memory of an experiment: what it takes, and how it is divided so that it fits ---------------
#
# How many batches of runs go at once, and how many curves in each, changes no result. So where all
# together would not fit they are fewer, and only what does not fit even one by one is refused.

#: Bytes of a worker process before it has an experiment: Python, NumPy, SciPy and fastfed.
WORKER = 50 * 10**6

#: How a limit may be raised, in both languages.
DESPITE = '--memory {0} (in Python memory_limit = "{0}") tries all the same'


# ---- One batch of runs, and what stays ----------------------------------------------------------


def of_pass(
    environment: Any,
    facts: EnvironmentSpec | LossSpec,
    plans: list[AnyPlan],
    checkpoints: int,
    threads: int,
    *,
    steps: bool = False,
    record: bool = False,
) -> list[Term]:
    """Memory of running these plans together over one environment.

    ``steps``: by the step driver, in Python objects; ``record``: with actions and rewards kept.
    An environment of one's own says what it takes beside that by a method ``memory(silos, horizon,
    curves) -> bytes``; without it nothing is counted.
    """
    first = plans[0]
    terms: list[Term] = []
    for plan in plans:
        terms += driver_of(plan).memory(plan, checkpoints, steps=steps, record=record)
    if isinstance(facts, EnvironmentSpec):
        most = max(getattr(plan, "bit_levels", 0) for plan in plans)
        owns = [getattr(plan, "own", None) for plan in plans]
        grid = max((len(own.spreads) for own in owns if own is not None), default=0)
        inner = 1 if steps else min(threads, first.silos)
        terms.append(scratch_term(facts, most, len(plans), inner, grid))
    own = getattr(environment, "memory", None)
    if own is not None:
        size = int(own(first.silos, first.horizon, len(plans)))
        terms.append(Term("data of a replicate", size, environment.kind))
    return terms


def of_results(curves: int, replicates: int, checkpoints: int) -> Term:
    """Results as they are read from the store, or collected: four numbers by checkpoint."""
    cells = curves * replicates
    # Those of all curves, and once more those of one while its rows are put together; the rounds.
    size = 32 * checkpoints * replicates * (curves + 1) + 2 * OBJECT * cells
    size += (24 + 2 * NUMBER) * checkpoints
    of = f"{spaced(cells)} curve replicates x {spaced(checkpoints)} checkpoints"
    return Term("results", size, of, "replicates or checkpoints")


def of_passes(passes: int) -> Term:
    """The list of what is left to run, and of what is done."""
    return Term("the list of passes", 3 * OBJECT * passes, spaced(passes), "replicates")


# ---- Layouts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Division of an experiment into batches of runs, and the memory that it takes."""

    at_once: int  # batches of runs
    together: int  # curves of a batch of runs
    terms: tuple[Term, ...]
    reduced: str = ""  # what was made smaller so that it fits, in a sentence

    @property
    def bytes(self) -> int:
        """The most that is in use at any time, beside what the process had before."""
        return total(self.terms)


def estimate(
    experiment: Experiment,
    resources: Resources,
    *,
    at_once: int | None = None,
    together: int = MOST_TOGETHER,
    driver: str = "compiled",
    done: int = 0,
    kept: bool = False,
) -> Layout:
    """Estimate the memory of an experiment.

    ``at_once`` batches of runs of at most ``together`` curves each (None: one for each thread);
    ``done``: curve replicates that are there already. ``kept``: all outcomes are kept in memory,
    as `simulate` does. Of a dask cluster that is there already only this process counts.
    """
    marks, replicates = len(experiment.checkpoints), experiment.replicates
    cells = len(experiment.curves) * replicates
    terms = [
        of_results(len(experiment.curves), replicates, marks),
        of_passes(cells),
    ]
    steps = driver == "step"
    if kept:
        terms += _kept(experiment, steps)
    if done >= cells or resources.scheduler is not None:
        return Layout(1, together, merged(terms))
    threads = check_threads(resources.threads)
    kinds = Counter(
        p.positions for p in missing_batches(experiment.with_options(1), set(), together)
    )
    many = replicates * sum(kinds.values())
    most = 1 if steps else max(1, min(threads, many))
    at_once = most if at_once is None else min(at_once, most)
    inner = max(1, threads // at_once)
    of_kinds = []
    for positions, count in kinds.items():
        problem = experiment.curves[positions[0]].problem
        plans = [experiment.curves[i].system.plan for i in positions]
        of_kind = of_pass(problem.environment, problem.facts, plans, marks, inner, steps=steps)
        of_kinds += [of_kind] * count
    # The largest ones at the same time, as may happen.
    of_kinds.sort(key=total, reverse=True)
    left = at_once
    for of_kind in of_kinds:
        now = min(left, replicates)
        terms += [term.times(now, f", {now} passes at once") for term in of_kind]
        left -= now
        if not left:
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
    return Layout(at_once, together, merged(terms))


def _problem_terms(problem: Problem, horizon: int, processes: int) -> list[Term]:
    """Memory that the replicates of a process share; workers have data of their own."""
    environment, silos = problem.environment, problem.silos
    of = environment.kind
    terms = []
    if (shared := getattr(environment, "shared_memory", None)) is not None:
        terms.append(Term("data in 16 bits", processes * int(shared(silos, horizon)), of))
    if processes > 1 and (own := getattr(environment, "own_memory", None)) is not None:
        terms.append(Term("data of every worker", processes * int(own(silos)), of, "threads"))
    return terms


def _kept(experiment: Experiment, steps: bool) -> list[Term]:
    """All outcomes, where there is no store to put them into."""
    marks, times = len(experiment.checkpoints), experiment.replicates
    size = recorded = 0
    for curve in experiment.curves:
        plan = curve.system.plan
        size += 32 * marks + 8 * getattr(plan, "statistic_size", plan_size(plan))
        if steps and not hasattr(plan, "experts"):
            recorded += 12 * plan.silos * plan.horizon
    cells = spaced(len(experiment.curves) * times)
    return [
        Term("outcomes", size * times, f"{cells} curve replicates", "replicates"),
        Term("actions and rewards", recorded * times, f"{cells} curve replicates", "replicates"),
    ]


def plan_size(plan: object) -> int:
    """Numbers in what a plan without statistics leaves behind."""
    return int(getattr(plan, "experts", 0) or getattr(plan, "dimension", 0))


def fit(
    experiment: Experiment,
    resources: Resources,
    *,
    driver: str = "compiled",
    done: int = 0,
    kept: bool = False,
) -> Layout:
    """The layout of an experiment that fits into memory: as it would be without limits if it can.

    InputError, with what would be needed and for what, where nothing fits.
    """
    allowed = resources.memory_limit
    limit = available() if allowed is None else parse_size("memory_limit", allowed)

    def layout(at_once: int | None = None, together: int = MOST_TOGETHER) -> Layout:
        return estimate(
            experiment, resources,
            at_once=at_once, together=together, driver=driver, done=done, kept=kept,
        )  # fmt: skip

    wanted = layout()
    if limit is None or wanted.bytes <= limit:
        return wanted
    for at_once, together in _smaller(wanted):
        found = layout(at_once, together)
        if found.bytes <= limit:
            return replace(found, reduced=_reduced(wanted, found, limit))
    raise InputError(refusal(found if wanted.at_once + wanted.together > 2 else wanted, limit,
                             allowed is None))  # fmt: skip


def _smaller(wanted: Layout) -> list[tuple[int, int]]:
    """Layouts from larger to smaller: fewer batches of runs first, which costs next to nothing."""
    found = []
    at_once, together = wanted.at_once, wanted.together
    while at_once > 1:
        at_once //= 2
        found.append((at_once, together))
    while together > 1:
        together //= 2
        found.append((1, together))
    return found


def _reduced(wanted: Layout, found: Layout, limit: int) -> str:
    """Sentence that says what was made smaller."""
    parts = []
    if found.at_once < wanted.at_once:
        parts.append(f"{found.at_once} of {wanted.at_once} passes at once")
    if found.together < wanted.together:
        parts.append(f"at most {found.together} curves in a pass")
    return (
        f"memory: {' and '.join(parts)}, about {format_size(found.bytes)} in place of "
        f"{format_size(wanted.bytes)}, where {format_size(limit)} are available; "
        "results are the same"
    )


class OutOfMemory(MemoryError):
    """Memory ended while an experiment was run: one sentence."""


@contextmanager
def memory_ends(layout: Layout) -> Iterator[None]:
    """Raise OutOfMemory, in a sentence, if memory ends although the layout seemed to fit."""
    try:
        yield
    except MemoryError as error:
        if isinstance(error, OutOfMemory):
            raise
        raise OutOfMemory(
            f"out of memory: {sentence(layout.terms)}; fewer threads or "
            f"{layout.terms[0].less or 'silos'} need less"
        ) from None


def refusal(layout: Layout, limit: int, measured: bool) -> str:
    """Sentence that says why an experiment does not fit, and what would help."""
    needed = layout.bytes
    asked = sentence(layout.terms)
    have = (
        f"{format_size(limit)} are available"
        if measured
        else f"memory_limit is {format_size(limit)}"
    )
    help_ = f"fewer {layout.terms[0].less} need less" if layout.terms[0].less else ""
    more = format_size(1.2 * needed).replace(" ", "")
    despite = DESPITE.format(more) if needed < 2**50 else ""
    advice = ", and ".join(part for part in (help_, despite) if part)
    return f"{asked}, and {have}{f': {advice}' if advice else ''}"
