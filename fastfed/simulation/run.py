"""Running experiments: `run` into a store that survives interruption, `simulate` in memory."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._validate import (
    OTHER_WORDS,
    InputError,
    array,
    choice,
    nearest,
    show,
    unknown_argument,
    with_example,
)
from fastfed._validate import folder as path_of
from fastfed.environments import ENVIRONMENTS, Environment, environment_from_spec
from fastfed.results.results import CurveResult, Results, total_events
from fastfed.results.store import CurveRow, ReplicateRow, Store, parameters_of
from fastfed.simulation import dispatch
from fastfed.simulation.chance import cautions, random_regret
from fastfed.simulation.dispatch import (
    Layout,
    Resources,
    RunBatch,
    check_threads,
    largest_layout,
    memory_ends,
    missing_batches,
)
from fastfed.simulation.driver import Outcome
from fastfed.simulation.engines import Finished, open_engine
from fastfed.simulation.experiment import Experiment, Problem, make_experiment
from fastfed.simulation.snapshots import Snapshots
from fastfed.simulation.systems import ALGORITHMS

#: The logger of the package. Runs log at the level INFO, which Python does not show by default.
LOG = logging.getLogger("fastfed")

# ---- Running an experiment into a store ----------------------------------------------------------


#: Caveats of every run on real records, whatever guarantee its systems have.
UNCOVERED = (
    "Made of real records: regret, curves, tables and counts here are computed from the raw "
    "records, without noise. No certificate covers them: do not publish them as protected.",
    "To choose a system, a budget or a key by what is shown here, or by `fastfed plan` on these "
    "records, reads them once more, and no certificate counts it.",
)


def about_records(problem: Problem) -> list[str]:
    """Return the caveats about results from real records; an empty list for simulated records."""
    facts = problem.facts
    if not facts.real_records:
        return []
    failed = [text for text, holds in getattr(facts, "conditions", ()) if not holds]
    return [*UNCOVERED, *(f"Condition that fails for all curves: {text}." for text in failed)]


def curve_rows(experiment: Experiment) -> list[CurveRow]:
    """Return the store's row for each curve: its label, facts and certificate."""
    rows = []
    rounds = experiment.checkpoints
    random_regrets = {
        id(problem): random_regret(problem, experiment.horizon, experiment.seed)
        for problem in {id(c.problem): c.problem for c in experiment.curves}.values()
    }
    for curve in experiment.curves:
        facts: dict[str, Any] = {
            "silos": curve.problem.silos,
            "dimension": curve.problem.facts.dimension,
        }
        if caveats := about_records(curve.problem):
            facts["about_records"] = caveats
        if sentences := cautions(curve.problem, curve.system.plan):
            facts["cautions"] = sentences
        if (regret := random_regrets[id(curve.problem)]) is not None:
            facts["random_regret"] = list(regret)
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


def layout_for(experiment: Experiment, folder: str | Path, resources: Resources) -> Layout:
    """Return the layout of the replicates that a folder lacks: batches of runs that fit memory.

    The function writes nothing. Raises InputError if the folder holds a different experiment, or if
    not even one curve at a time fits into memory.
    """
    stored_replicates = Store.done_in(Path(folder), experiment.identity())
    finished = sum(number in experiment.replicate_numbers for _, number in stored_replicates)
    return largest_layout(experiment, resources, done=finished)


def run(
    experiment: Experiment,
    folder: str | Path,
    resources: Resources,
    *,
    layout: Layout | None = None,
    on_start: Callable[[list[RunBatch], int], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Results:
    """Run the missing replicates of an experiment into an output folder, and return its results.

    The arguments are documented in `fastfed.run`. ``layout`` is the result of `layout_for`, if the
    caller has it.
    """
    layout = layout or layout_for(experiment, folder, resources)
    meta: dict[str, Any] = {
        "identity": experiment.identity(),
        "rounds": experiment.checkpoints.tolist(),
        "figure": experiment.figure,
    }
    rows = curve_rows(experiment)
    threads = resources.threads
    # memory_ends adds the memory terms to the message of a MemoryError. It is outermost, so that it
    # also does this for errors of the engine and the store.
    with (
        memory_ends(layout),
        open_engine(resources.engine, threads, resources.scheduler, layout.at_once) as engine,
        Store.create_or_resume(Path(folder), meta, rows, max(1, engine.threads)) as store,
    ):
        batches = missing_batches(experiment, store.done(), layout.together)
        snapshots = Snapshots.in_output(folder, experiment.digest())
        snapshots.tidy()
        _log_start(experiment, batches, engine.threads)
        if on_start is not None:
            on_start(batches, engine.threads)
        for finished in engine.play(experiment, batches, progress, snapshots):
            # The curves of a batch run together. Each gets an equal share of the batch's time and
            # agent-rounds.
            agent_rounds = experiment.agent_rounds(finished.work.positions) // len(
                finished.outcomes
            )
            store.commit(
                replicate_rows(finished.work, finished.outcomes),
                finished.seconds / len(finished.outcomes),
                agent_rounds,
                finished.threads,
            )
            snapshots.of(finished.work.replicate, finished.work.positions).drop()
            _log_end(experiment, finished)
        snapshots.clear()
        return store.results(experiment.replicates)


def _log_start(experiment: Experiment, batches: Sequence[RunBatch], threads: int) -> None:
    """Log how much work a run will do: curve replicates, agent-rounds and threads."""
    LOG.info(
        "%s: %d curve replicates, %d agent-rounds, on %d threads",
        experiment.name,
        sum(len(batch.positions) for batch in batches),
        sum(experiment.agent_rounds(batch.positions) for batch in batches),
        threads,
    )


def _log_end(experiment: Experiment, finished: Finished) -> None:
    """Log the replicate, the curves and the seconds of a finished batch of runs."""
    LOG.info(
        "%s: replicate %d of %s, %.3g s",
        experiment.name,
        finished.work.replicate,
        ", ".join(experiment.curves[position].label for position in finished.work.positions),
        finished.seconds,
    )


def replicate_rows(batch: RunBatch, outcomes: Iterable[Outcome]) -> list[ReplicateRow]:
    """Return the store's rows for the outcomes of one batch of runs."""
    return [
        ReplicateRow(
            position,
            batch.replicate,
            outcome.group_regret,
            outcome.synchronisations,
            outcome.bits_up,
            outcome.bits_down,
            outcome.events,
        )
        for position, outcome in zip(batch.positions, outcomes, strict=True)
    ]


def left_to_run(experiment: Experiment, folder: str | Path) -> list[RunBatch]:
    """Return the batches of runs that an output folder lacks, which `run` would run.

    The function writes nothing. Raises InputError if the folder holds a different experiment.
    """
    return missing_batches(experiment, Store.done_in(Path(folder), experiment.identity()))


@with_example('fastfed.load("out")')
def load(folder: str | Path) -> Results:
    """Load the results of an output folder.

    Parameters
    ----------
    folder : str or Path
        Output folder. While a run is still writing into it, the finished replicates are returned.

    Returns
    -------
    Results
        Results of all finished replicates.

    Raises
    ------
    InputError
        If the folder holds no results, or damaged results.
    """
    path = path_of(folder)
    if not os.path.isdir(path):
        hint = f", {path.parent}" if path.name == "results.sqlite" else ""
        raise InputError(
            f"{path} is not a folder: load needs an output folder of fastfed.run{hint}"
        )
    with Store.open_existing(path) as store:
        return store.results()


# ---- `simulate`: from an environment and an algorithm to results, in memory ----------------------


@with_example('fastfed.simulate({"kind": "sphere"}, "local-linucb", silos=4, horizon=100)')
def simulate(
    environment: Environment | dict[str, Any],
    algorithm: str | None = None,
    *,
    horizon: int | None = None,
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
    progress: Callable[[int], None] | None = None,
    **keys: Any,
) -> Results:
    """Simulate one algorithm or several curves, and return their regret and certificates.

    Nothing is written to disk; `fastfed.run` runs into an output folder.

    Parameters
    ----------
    environment : Environment or dict
        One of `fastfed.environments`, or a spec's table such as {"kind": "sphere"}.
    algorithm : str, optional
        Name of the algorithm. The algorithm and ``keys`` define one curve, or one curve for each
        value of a key whose value is a list.
    horizon : int
        T, the number of rounds of each silo. It is required.
    silos : int, optional
        M, the number of silos. It may be omitted if the environment's data determine it.
    replicates : int
        Number of independent runs of each curve.
    seed : int
        Seed of all randomness. Results depend on the seed, but not on ``threads`` or ``driver``.
    checkpoints : int
        Largest number of rounds at which regret is recorded.
    checkpoint_spacing : {"even", "log"}
        "log" spaces checkpoints geometrically from round 1, to show early learning.
    curves : sequence of dict, optional
        Tables with "label", "algorithm" and its keys, instead of ``algorithm`` and ``keys``.
    threads : int, optional
        Number of threads. Default: all processors.
    driver : {"compiled", "step"}
        "step" runs the classes of a deployment, which send every message. It is slow, but its code
        is readable.
    memory_limit : int or str, optional
        Memory that the call may use, in bytes or as a text such as "40GB". Default: the available
        memory.
    name : str
        Name of the experiment in the results.
    progress : callable, optional
        Called with the number of agent-rounds simulated since the last call, from any thread.
    **keys
        Keys of the algorithm, as in a spec: epsilon, delta, batch_size, ...

    Returns
    -------
    Results
        Regret, messages and certificate of each curve, by label.

    Raises
    ------
    InputError
        If a key or value is wrong, or the runs do not fit into memory. The error is raised before
        anything runs.

    Examples
    --------
    >>> r = simulate({"kind": "sphere", "dimension": 3, "actions": 5}, "fedlinucb",
    ...              horizon=50, silos=4, batch_size=10)
    >>> r.curves[0].certificate["status"]
    'none'
    """
    # Check the most likely mistakes first; their messages say how to correct them.
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
    for key in keys:
        if OTHER_WORDS.get(key) in ("seed", "threads", "horizon", "silos", "replicates"):
            raise InputError(unknown_argument(key, [OTHER_WORDS[key]]))
    if algorithm is None or (isinstance(algorithm, str) and algorithm in ALGORITHMS):
        _check_keys(algorithm, environment, keys)
    if horizon is None:
        raise InputError("horizon is required: the number of rounds of each silo")
    if (algorithm is None) == (curves is None):
        raise InputError("give either algorithm and its keys, or curves")
    if curves is not None and not isinstance(curves, (list, tuple)):
        raise InputError(f"curves must be a list of tables, such as [{{...}}], got {show(curves)}")
    if curves is None:
        curves = [{"label": algorithm, "algorithm": algorithm, **keys}]
    elif keys:
        raise InputError(f'unknown argument "{next(iter(keys))}"; write keys into curves')
    choice("driver", driver, ["compiled", "step"])
    if progress is not None and not callable(progress):
        raise InputError(
            f"progress must be a function of a number of agent-rounds, got {show(progress)}"
        )
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
    layout = largest_layout(experiment, resources, driver=driver, kept=True)
    with memory_ends(layout):
        return _simulated(experiment, layout, check_threads(threads), driver, progress)


def _check_keys(algorithm: str | None, environment: object, keys: Iterable[str]) -> None:
    """Raise InputError for an unknown key that resembles an argument of `simulate`.

    Also for a key that names an output folder. Other unknown keys are left to the check of curves.
    """
    arguments = list(inspect.signature(simulate).parameters)[2:-1]
    config = ALGORITHMS[algorithm].config.__struct_fields__ if algorithm else ()
    # The keys of a curve may also change numbers of the environment.
    known_keys = ["label", *config, *getattr(environment, "__dataclass_fields__", ())]
    for key in keys:
        if key not in known_keys and key in ("folder", "output", "out", "output_folder"):
            raise InputError(
                f'unknown argument "{key}": simulate writes no files; fastfed.run(spec, folder) '
                "writes a folder"
            )
        # A hint is "" or names the word closest to the key. The two hints differ if that word is an
        # argument of `simulate`.
        hint = nearest(key, [*arguments, *known_keys])
        if key not in known_keys and hint and nearest(key, known_keys) != hint:
            raise InputError(f'unknown argument "{key}"{hint}')


def _remedy(environment: object) -> str:
    """Return advice about a wrong value that a user passed as environment, or an empty text."""
    if isinstance(environment, (str, os.PathLike)):
        kind = str(environment)
        if kind in ENVIRONMENTS:
            return f': write {{"kind": "{kind}"}}'
        return ": a spec file is run by fastfed.run(file, folder)"
    if hasattr(environment, "columns") or isinstance(environment, np.ndarray):
        return ": records are fastfed.environments.Classification(data=..., label=...)"
    return ""


def _simulated(
    experiment: Experiment,
    layout: Layout,
    threads: int,
    driver: str,
    progress: Callable[[int], None] | None,
) -> Results:
    """Run all replicates of an experiment in memory, and return their results."""
    outcomes: dict[tuple[int, int], Outcome] = {}
    _log_start(experiment, missing_batches(experiment, set(), layout.together), threads)
    if driver == "compiled":
        batches = missing_batches(experiment, set(), layout.together)
        with open_engine("local", threads, at_once=layout.at_once) as engine:
            for finished in engine.play(experiment, batches, progress):
                _log_end(experiment, finished)
                for position, outcome in zip(
                    finished.work.positions, finished.outcomes, strict=True
                ):
                    outcomes[position, finished.work.replicate] = outcome
    else:
        for replicate in experiment.replicate_numbers:
            for position, curve in enumerate(experiment.curves):
                environment = curve.problem.open(experiment.seed, replicate)
                outcome = dispatch.run_steps(environment, curve.system.plan, experiment.checkpoints)
                outcomes[position, replicate] = outcome
                if progress is not None:
                    progress(experiment.agent_rounds((position,)))
    return collect(experiment, outcomes)


def collect(experiment: Experiment, outcomes: dict[tuple[int, int], Outcome]) -> Results:
    """Return the Results of an experiment.

    ``outcomes`` holds the outcome of each run, by (position of the curve, number of the replicate).
    """
    replicates = tuple(experiment.replicate_numbers)
    curves, identity = [], experiment.identity()
    for position, row in enumerate(curve_rows(experiment)):
        curve_outcomes = [outcomes[position, r] for r in replicates]
        curves.append(
            CurveResult(
                label=row.label,
                algorithm=row.algorithm,
                protocol=row.protocol,
                horizon=experiment.horizon,
                rounds=experiment.checkpoints,
                group_regret=np.array([outcome.group_regret for outcome in curve_outcomes]),
                replicates=replicates,
                synchronisation_counts=np.array(
                    [outcome.synchronisations for outcome in curve_outcomes]
                ),
                bits_up_counts=np.array([outcome.bits_up for outcome in curve_outcomes]),
                bits_down_counts=np.array([outcome.bits_down for outcome in curve_outcomes]),
                **row.facts,
                certificate=row.certificate,
                events=total_events([outcome.events for outcome in curve_outcomes]),
                parameters=parameters_of(identity, position),
            )
        )
    return Results(
        experiment.name, experiment.horizon, experiment.silos, tuple(curves), experiment.figure
    )
