"""`simulate`: one call from an environment and an algorithm to results, nothing on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastfed._validate import InputError, choice, show
from fastfed.environments import Environment, environment_from_spec
from fastfed.results.results import CurveResult, Results, total_events
from fastfed.simulation import drive
from fastfed.simulation.engines import open_engine
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.fitting import Layout, fit, memory_ends
from fastfed.simulation.outcome import Outcome
from fastfed.simulation.passes import check_threads, missing_passes
from fastfed.simulation.resources import Resources
from fastfed.simulation.run import curve_rows


def simulate(
    environment: Environment | dict[str, Any],
    algorithm: str | None = None,
    *,
    horizon: int,
    silos: int | None = None,
    replicates: int = 1,
    seed: int = 0,
    checkpoints: int = 200,
    curves: Sequence[dict[str, Any]] | None = None,
    threads: int | None = None,
    driver: str = "compiled",
    memory_limit: int | str | None = None,
    name: str = "simulation",
    **keys: Any,
) -> Results:
    """Play one algorithm, or several curves, and return their regret and certificates.

    ``environment``: an environment object, or a spec's table such as {"kind": "sphere"}.
    ``algorithm`` with its ``keys`` (epsilon, delta, batch_size, ...) makes one curve, or one
    per value of a list-valued key; ``curves`` is a list of such tables with labels instead.
    ``horizon`` T and ``silos`` M; ``replicates`` independent runs. Results are a function of
    ``seed`` alone: not of ``threads`` nor of ``driver`` ("compiled", or "step" for the readable
    one). ``memory_limit``: bytes, or a text such as "40GB", that it may take (by default what is
    available); InputError, before anything is played, where it needs more.

    >>> r = simulate({"kind": "sphere", "dimension": 3, "actions": 5}, "fedlinucb",
    ...              horizon=50, silos=4, batch_size=10)
    >>> r.curves[0].certificate["status"]
    'none'
    """
    if isinstance(environment, dict):
        environment = environment_from_spec(environment)
    if not hasattr(environment, "facts"):
        raise InputError(
            'environment must be an environment or a table such as {"kind": "sphere"}, '
            f"got {show(environment)}"
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
    )
    resources = Resources(threads, memory_limit=memory_limit)
    layout = fit(experiment, resources, driver=driver, kept=True)
    with memory_ends(layout):
        return _played(experiment, layout, check_threads(threads), driver)


def _played(experiment: Experiment, layout: Layout, threads: int, driver: str) -> Results:
    """All of an experiment, by a layout."""
    outcomes: dict[tuple[int, int], Outcome] = {}
    if driver == "compiled":
        passes = missing_passes(experiment, set(), layout.together)
        with open_engine("local", threads, at_once=layout.at_once) as engine:
            for played in engine.play(experiment, passes):
                for position, outcome in zip(played.work.positions, played.outcomes, strict=True):
                    outcomes[position, played.work.replicate] = outcome
    else:
        for replicate in range(experiment.replicates):
            for position, curve in enumerate(experiment.curves):
                opened = curve.world.open(experiment.seed, replicate)
                outcome = drive.play_steps(opened, curve.system.plan, experiment.checkpoints)
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
