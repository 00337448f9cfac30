"""Running an experiment: into a store that survives interruption, or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import InputError, array, choice, show
from fastfed._validate import folder as path_of
from fastfed.environments import ENVIRONMENTS, Environment, environment_from_spec
from fastfed.results.results import CurveResult, Results, total_events
from fastfed.results.store import CurveRow, ReplicateRow, Store
from fastfed.simulation import dispatch
from fastfed.simulation.dispatch import (
    Layout,
    Resources,
    RunBatch,
    check_threads,
    fit,
    memory_ends,
    missing_batches,
)
from fastfed.simulation.driver import Outcome
from fastfed.simulation.engines import open_engine
from fastfed.simulation.experiment import Experiment, Problem, make_experiment
from fastfed.simulation.snapshots import Snapshots

# ---- Running an experiment into a store ----------------------------------------------------------


#: Of a run on real records, however private what it runs is.
UNCOVERED = (
    "Made of real records: regret, curves, tables and counts here are computed from the raw "
    "records, without noise. No certificate covers them: do not publish them as protected.",
    "To choose a system, a budget or a key by what is shown here, or by `fastfed plan` on these "
    "records, reads them once more, and no certificate counts it.",
)


def about_records(problem: Problem) -> list[str]:
    """Caveats about real records; none where records are drawn."""
    facts = problem.facts
    if not facts.real_records:
        return []
    failed = [text for text, holds in getattr(facts, "conditions", ()) if not holds]
    return [*UNCOVERED, *(f"Condition that fails for all curves: {text}." for text in failed)]


def curve_rows(experiment: Experiment) -> list[CurveRow]:
    """Rows of all curves in the store."""
    rows = []
    rounds = experiment.checkpoints
    for curve in experiment.curves:
        facts: dict[str, Any] = {
            "silos": curve.problem.silos,
            "dimension": curve.problem.facts.dimension,
        }
        if about := about_records(curve.problem):
            facts["about_records"] = about
        if curve.packages:
            facts["packages"] = curve.packages
        if curve.system.bounds_at is not None:
            facts["bounds"] = {
                name: array(f"bound {name}", values, shape=(len(rounds),), finite=False).tolist()
                for name, values in curve.system.bounds_at(rounds).items()
            }
        rows.append(
            CurveRow(
                label=curve.label,
                algorithm=curve.algorithm,
                protocol=curve.system.plan.protocol.id,
                facts=facts,
                certificate=curve.system.certificate.to_builtins(),
            )
        )
    return rows


def run(
    experiment: Experiment,
    folder: str | Path,
    *,
    threads: int | None = None,
    engine: str = "local",
    scheduler: str | None = None,
    memory_limit: int | str | None = None,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Run what is missing of an experiment in an output folder, and read its results.

    Every replicate of every curve is committed once it is run, so the same call again repeats
    nothing. ``engine``: "local" (threads), "processes" or "dask" (``scheduler``: the address of a
    cluster; without one, a cluster of this machine). Only this process writes. ``on_start`` hears
    what is left and with how many threads (0: a cluster has no workers yet). ``memory_limit``:
    bytes, or a text such as "40GB", that the run may take; by default what is available. Where it
    is less than all threads would take, fewer batches of runs go at once, or fewer curves together.

    Raises InputError, and writes nothing, where the folder holds another experiment or another
    process runs into it, and where the run would not fit into memory; EngineError where workers
    could not run some curve replicates, after the others; OutOfMemory, a MemoryError, where memory
    ends all the same: what was run is kept.
    """
    resources = Resources(threads, engine, scheduler, memory_limit)
    layout = layout_for(experiment, folder, resources)
    return run_by(layout, experiment, folder, resources, on_start=on_start, progress=progress)


def layout_for(experiment: Experiment, folder: str | Path, resources: Resources) -> Layout:
    """Layout of what is missing in an output folder, and its memory.

    Nothing is written. InputError where the folder holds another experiment, and where it would
    not fit.
    """
    done = Store.done_in(Path(folder), experiment.identity())
    first = sum(replicate < experiment.replicates for _, replicate in done)
    return fit(experiment, resources, done=first)


def run_by(
    layout: Layout,
    experiment: Experiment,
    folder: str | Path,
    resources: Resources,
    *,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """`run`, divided as `layout_for` said."""
    meta: dict[str, Any] = {
        "identity": experiment.identity(),
        "rounds": experiment.checkpoints.tolist(),
        "figure": experiment.figure,
    }
    rows = curve_rows(experiment)
    threads = resources.threads
    with (
        memory_ends(layout),
        open_engine(resources.engine, threads, resources.scheduler, layout.at_once) as player,
        Store.create_or_resume(Path(folder), meta, rows, max(1, player.threads)) as store,
    ):
        passes = missing_batches(experiment, store.done(), layout.together)
        snapshots = Snapshots.in_output(folder, experiment.digest())
        snapshots.tidy()
        if on_start is not None:
            on_start(passes, player.threads)
        for played in player.play(experiment, passes, progress, snapshots):
            share = experiment.agent_rounds(played.work.positions) // len(played.outcomes)
            store.commit(
                cells(played.work, played.outcomes),
                played.seconds / len(played.outcomes),
                share,
                played.threads,
            )
            snapshots.of(played.work.replicate, played.work.positions).drop()
        snapshots.clear()
        return store.results(experiment.replicates)


def cells(work: RunBatch, outcomes: Iterable[Outcome]) -> list[ReplicateRow]:
    """The rows of one batch of runs."""
    return [
        ReplicateRow(
            position,
            work.replicate,
            outcome.group_regret,
            outcome.synchronisations,
            outcome.bits_up,
            outcome.bits_down,
            outcome.events,
        )
        for position, outcome in zip(work.positions, outcomes, strict=True)
    ]


def left_to_run(experiment: Experiment, folder: str | Path) -> list[RunBatch]:
    """Curve replicates that ``run`` would run into an output folder; nothing is written.

    InputError where the folder holds another experiment.
    """
    return missing_batches(experiment, Store.done_in(Path(folder), experiment.identity()))


def load(folder: str | Path) -> Results:
    """Load the results of an output folder.

    Parameters
    ----------
    folder : str or Path
        Output folder; one that is still being written gives its finished replicates.

    Returns
    -------
    Results

    Raises
    ------
    InputError
        Where the folder holds no results, or they are damaged.
    """
    path = path_of(folder)
    if not os.path.isdir(path):
        raise InputError(f"{path} is not a folder: load reads what fastfed.run wrote")
    with Store.open_existing(path) as store:
        return store.results()


# ---- `simulate`: one call from an environment and an algorithm to results, nothing on disk -------


def simulate(
    environment: Environment | dict[str, Any],
    algorithm: str | None = None,
    *,
    horizon: int,
    silos: int | None = None,
    replicates: int = 1,
    seed: int = 0,
    checkpoints: int = 200,
    checkpoint_spacing: str = "even",
    curves: Sequence[dict[str, Any]] | None = None,
    threads: int | None = None,
    driver: str = "compiled",
    memory_limit: int | str | None = None,
    name: str = "simulation",
    **keys: Any,
) -> Results:
    """Run one algorithm, or several curves, and return their regret and certificates.

    Nothing is written; see `fastfed.run` for runs into an output folder.

    Parameters
    ----------
    environment : Environment or dict
        One of `fastfed.environments`, or a spec's table such as {"kind": "sphere"}.
    algorithm : str, optional
        Makes one curve with ``keys``, or one for each value of a list-valued key.
    horizon : int
        T, rounds of each silo.
    silos : int, optional
        M; may be left to an environment that knows its own.
    replicates : int
        Independent runs of each curve.
    seed : int
        Of all randomness; results are a function of it, not of ``threads`` or ``driver``.
    checkpoints : int
        Rounds at which regret is kept, at most.
    checkpoint_spacing : {"even", "log"}
        "log": from round 1 on by a factor, for early learning.
    curves : sequence of dict, optional
        Tables with "label", "algorithm" and its keys, in place of ``algorithm`` and ``keys``.
    threads : int, optional
        Default: all processors.
    driver : {"compiled", "step"}
        "step" sends every message between the parties of a deployment: slow, and readable.
    memory_limit : int or str, optional
        Bytes, or a text such as "40GB", that the call may take; by default what is available.
    name : str
        Of the experiment, in the results.
    **keys
        Of the algorithm, as in a spec: epsilon, delta, batch_size, ...

    Returns
    -------
    Results
        A curve's regret, messages and certificate, by label.

    Raises
    ------
    InputError
        For a wrong key or value, and where the runs do not fit into memory; before anything runs.

    Examples
    --------
    >>> r = simulate({"kind": "sphere", "dimension": 3, "actions": 5}, "fedlinucb",
    ...              horizon=50, silos=4, batch_size=10)
    >>> r.curves[0].certificate["status"]
    'none'
    """
    if isinstance(environment, dict):
        environment = environment_from_spec(environment)
    if isinstance(environment, type):
        name = environment.__name__
        raise InputError(
            f"environment must be an environment, got the class {name}: write {name}(...), with "
            "its arguments"
        )
    if not hasattr(environment, "facts"):
        raise InputError(
            'environment must be an environment or a table such as {"kind": "sphere"}, '
            f"got {show(environment)}{_remedy(environment)}"
        )
    if (algorithm is None) == (curves is None):
        raise InputError("give either algorithm and its keys, or curves")
    if curves is not None and not isinstance(curves, (list, tuple)):
        raise InputError(f"curves must be a list of tables, got {show(curves)}")
    if curves is None:
        curves = [{"label": algorithm, "algorithm": algorithm, **keys}]
    elif keys:
        raise InputError(f'unknown argument "{next(iter(keys))}"; keys stand in curves')
    choice("driver", driver, ["compiled", "step"])
    experiment = make_experiment(
        name=name,
        environment=environment,
        curves=list(curves),
        horizon=horizon,
        silos=silos,
        replicates=replicates,
        seed=seed,
        checkpoints=checkpoints,
        checkpoint_spacing=checkpoint_spacing,
    )
    resources = Resources(threads, memory_limit=memory_limit)
    layout = fit(experiment, resources, driver=driver, kept=True)
    with memory_ends(layout):
        return _played(experiment, layout, check_threads(threads), driver)


def _remedy(environment: object) -> str:
    """What to write in place of what is no environment."""
    if isinstance(environment, (str, os.PathLike)):
        kind = str(environment)
        if kind in ENVIRONMENTS:
            return f': write {{"kind": "{kind}"}}'
        return ": a spec file is run by fastfed.run(file, folder)"
    if hasattr(environment, "columns") or isinstance(environment, np.ndarray):
        return ": records are fastfed.environments.Classification(data=..., label=...)"
    return ""


def _played(experiment: Experiment, layout: Layout, threads: int, driver: str) -> Results:
    """All of an experiment, by a layout."""
    outcomes: dict[tuple[int, int], Outcome] = {}
    if driver == "compiled":
        passes = missing_batches(experiment, set(), layout.together)
        with open_engine("local", threads, at_once=layout.at_once) as engine:
            for played in engine.play(experiment, passes):
                for position, outcome in zip(played.work.positions, played.outcomes, strict=True):
                    outcomes[position, played.work.replicate] = outcome
    else:
        for replicate in range(experiment.replicates):
            for position, curve in enumerate(experiment.curves):
                opened = curve.problem.open(experiment.seed, replicate)
                outcome = dispatch.run_steps(opened, curve.system.plan, experiment.checkpoints)
                outcomes[position, replicate] = outcome
    return collect(experiment, outcomes)


def collect(experiment: Experiment, outcomes: dict[tuple[int, int], Outcome]) -> Results:
    """Results of outcomes by (curve position, replicate)."""
    replicates = tuple(range(experiment.replicates))
    curves = []
    for position, row in enumerate(curve_rows(experiment)):
        played = [outcomes[position, r] for r in replicates]
        curves.append(
            CurveResult(
                label=row.label,
                algorithm=row.algorithm,
                protocol=row.protocol,
                horizon=experiment.horizon,
                rounds=experiment.checkpoints,
                group_regret=np.array([o.group_regret for o in played]),
                replicates=replicates,
                synchronisation_counts=np.array([o.synchronisations for o in played]),
                bits_up_counts=np.array([o.bits_up for o in played]),
                bits_down_counts=np.array([o.bits_down for o in played]),
                **row.facts,
                certificate=row.certificate,
                events=total_events([o.events for o in played]),
            )
        )
    return Results(
        experiment.name, experiment.horizon, experiment.silos, tuple(curves), experiment.figure
    )
