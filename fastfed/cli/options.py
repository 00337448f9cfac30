"""Options that several commands share, and what they change in a spec."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import rich_click as click

from fastfed.simulation.engines import ENGINES
from fastfed.simulation.resources import Resources

if TYPE_CHECKING:
    from fastfed.simulation.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Any])

QUICK_REPLICATES = 2
QUICK_SHARE = 10  # of the horizon

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on standard output.")


def playing_options(command: F) -> F:
    """-o and the options of everything that plays; those of no result come as ``resources``."""

    @wraps(command)
    def packed(
        threads: int | None, engine: str, scheduler: str | None, memory: str | None, **others: Any
    ) -> Any:
        if memory is not None:
            from fastfed._memory import size_of

            size_of("--memory", memory)
        return command(resources=Resources(threads, engine, scheduler, memory), **others)

    made = cast(F, packed)
    for option in reversed(
        [
            click.option(
                "-o", "--output", "folder", required=True, metavar="DIR",
                type=click.Path(path_type=Path), help="Output folder; the same again resumes it.",
            ),
            click.option(
                "--replicates", type=click.IntRange(min=1), metavar="N",
                help="Independent replicates, in place of the spec's.",
            ),
            click.option(
                "--threads", type=click.IntRange(min=1), metavar="N",
                help="Threads (default: all processors). Results do not depend on it.",
            ),
            click.option(
                "--engine", type=click.Choice(list(ENGINES)), default="local",
                help="Who plays: threads of this process, processes of this machine, or a dask "
                "cluster. Results do not depend on it.",
            ),
            click.option(
                "--scheduler", metavar="ADDR",
                help="With --engine dask: a cluster that is there already (default: one of this "
                "machine).",
            ),
            click.option(
                "--memory", metavar="SIZE",
                help="Memory it may take, such as 40GB (default: what is available). A run that "
                "needs more is refused before anything is written.",
            ),
            click.option(
                "--seed", type=int, metavar="N",
                help="Seed, in place of the spec's.",
            ),
            click.option(
                "--quick", is_flag=True,
                help="A first look: two replicates, a tenth of the horizon.",
            ),
        ]
    ):  # fmt: skip
        made = option(made)
    return made


def load_spec(path: Path, changed: dict[str, Any]) -> Experiment:
    """The experiment of a spec file; modules beside it can be named in it."""
    from fastfed._validate import InputError
    from fastfed.report.keys import check_figure
    from fastfed.simulation.experiment import load_experiment

    # At the end: a file beside the spec must not hide a module of Python's.
    beside = os.path.realpath(path.parent)
    if beside not in sys.path:
        sys.path.append(beside)
    experiment = load_experiment(path, **changed)
    try:
        check_figure(experiment.figure, list(experiment.bound_names), experiment.bound_names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return experiment


def overrides(
    spec: dict[str, Any], replicates: int | None, seed: int | None, quick: bool
) -> dict[str, Any]:
    """The top-level keys of a spec that the options replace."""
    changed = {"replicates": replicates, "seed": seed}
    if quick:
        changed["replicates"] = replicates or QUICK_REPLICATES
        changed["horizon"] = quick_horizon(spec)
    return {key: value for key, value in changed.items() if value is not None}


def quick_horizon(spec: dict[str, Any]) -> int | None:
    """A tenth of the horizon, but a batch or phase of every curve; None where it is no number."""
    horizon, curves = spec.get("horizon"), spec.get("curve")
    if not isinstance(horizon, int):
        return None
    tables = [c for c in curves if isinstance(c, dict)] if isinstance(curves, list) else []
    batches = []
    for value in (c.get(key) for c in tables for key in ("batch_size", "phase_length")):
        values = value if isinstance(value, list) else [value]
        batches += [b for b in values if isinstance(b, int)]
    return min(horizon, max([1, horizon // QUICK_SHARE, *batches]))
