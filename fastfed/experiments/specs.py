"""Experiments from spec files and figures, at the sizes that users ask for."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from fastfed._validate import InputError
from fastfed.experiments import Figure, figure_experiment, figure_ids, figure_spec
from fastfed.reporting.figure import check_figure
from fastfed.simulation.experiment import Experiment, find_beside, load_experiment, read_toml

#: A quick look: this many replicates, and the horizon divided by this number.
QUICK_REPLICATES = 2
QUICK_SHARE = 10


def import_beside(path: Path) -> None:
    """Let Python import the modules in the folder of a spec, which the spec may name."""
    # At the end: a file beside the spec must not hide a module of Python's.
    beside = os.path.realpath(path.parent)
    if beside not in sys.path:
        sys.path.append(beside)


def load_spec(
    path: str | Path,
    *,
    replicates: int | None = None,
    seed: int | None = None,
    quick: bool = False,
) -> Experiment:
    """The experiment of a spec file, checked up to the last key of its [figure] table.

    Modules beside the file can be named in it.

    Parameters
    ----------
    path : str or Path
        TOML file.
    replicates, seed : int, optional
        Replace the keys of the file.
    quick : bool
        Two replicates and a tenth of the horizon, for a first look.

    Raises
    ------
    InputError
        Naming the file and the key that is wrong.
    """
    path = Path(path)
    if str(path) in figure_ids() and not path.exists():
        raise InputError(f"{path}: no such file; for the figure, `fastfed reproduce {path}`")
    changed: dict[str, Any] = {"replicates": replicates, "seed": seed}
    if quick:
        changed = changed_keys(read_toml(path), replicates, seed, quick)
    import_beside(path)
    experiment = load_experiment(path, **changed)
    try:
        _check_figure(experiment)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


def environment_table(path: str | Path) -> dict[str, Any]:
    """The [environment] table of a spec file; modules beside the file can be named in it."""
    path = Path(path)
    import_beside(path)
    table = read_toml(path).get("environment")
    if not isinstance(table, dict):
        raise InputError(f"{path}: environment is required: an [environment] table")
    find_beside(table, path)
    return table


def sized_experiment(
    figure: Figure,
    data: str | Path | None = None,
    size: str | None = None,
    replicates: int | None = None,
    seed: int | None = None,
) -> Experiment:
    """The experiment of a figure at a size (see `figure_spec`).

    ``replicates`` and ``seed`` replace the spec's.
    """
    spec = figure_spec(figure, data, size)
    spec.update(changed_keys(spec, replicates, seed, size == "quick"))
    if size == "quick":
        spec.update(spec["figure"].get("quick", {}))
    if replicates is not None:
        spec["replicates"] = replicates
    experiment = figure_experiment(figure, spec)
    _check_figure(experiment)
    return experiment


def changed_keys(
    spec: dict[str, Any], replicates: int | None, seed: int | None, quick: bool
) -> dict[str, Any]:
    """The top-level keys of a spec that ``replicates``, ``seed`` and ``quick`` replace."""
    changed = {"replicates": replicates, "seed": seed}
    if quick:
        changed["replicates"] = replicates or QUICK_REPLICATES
        changed["horizon"] = quick_horizon(spec)
    return {key: value for key, value in changed.items() if value is not None}


def quick_horizon(spec: dict[str, Any]) -> int | None:
    """A tenth of the horizon, and at least one batch or phase of every curve.

    None where the spec's horizon is not an integer.
    """
    horizon, curves = spec.get("horizon"), spec.get("curve")
    if not isinstance(horizon, int):
        return None
    tables = [c for c in curves if isinstance(c, dict)] if isinstance(curves, list) else []
    batches = []
    for value in (c.get(key) for c in tables for key in ("batch_size", "phase_length")):
        values = value if isinstance(value, list) else [value]
        batches += [b for b in values if isinstance(b, int)]
    return min(horizon, max([1, horizon // QUICK_SHARE, *batches]))


def _check_figure(experiment: Experiment) -> None:
    check_figure(experiment.figure, list(experiment.bound_names), experiment.bound_names)
