"""The figures of the papers: one TOML spec each in ``figures/``, and the functions that find them.

A new figure is one new file, named after its id. A figure that needs files of
the user has ``"DATA"`` in place of their path.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, nearest
from fastfed.simulation.experiment import (
    PATH_KEYS,
    Experiment,
    experiment_from_spec,
    read_toml,
)

__all__ = [
    "Figure",
    "figure",
    "figure_experiment",
    "figure_ids",
    "figure_spec",
    "figure_text",
    "figures",
    "with_panels",
]

FOLDER = Path(__file__).parent / "figures"

#: Stands in a figure's environment for the files given with --data.
DATA = "DATA"


@dataclass(frozen=True)
class Figure:
    """One figure of a paper, as its spec has it.

    Attributes
    ----------
    id : str
        Name of the figure, and of its file.
    paper : str
        Author-year.
    title : str
        One line for listings.
    spec : dict
        The tables of its TOML file.
    """

    id: str
    paper: str
    title: str
    spec: dict[str, Any]

    @property
    def panels(self) -> tuple[str, ...]:
        """Other figures that are drawn with this one."""
        return tuple(self.spec["figure"].get("panels", ()))

    @property
    def long(self) -> str:
        """The reason why `reproduce all` leaves it out; empty if it does not."""
        return str(self.spec["figure"].get("long", ""))

    @property
    def needs_data(self) -> bool:
        """True if it is simulated on files that the package does not have."""
        return any(self.spec["environment"].get(key) == DATA for key in PATH_KEYS)


def figure_ids() -> list[str]:
    """List the ids of all figures, sorted.

    Returns
    -------
    list of str
    """
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def figure(name: str) -> Figure:
    """Read a figure.

    Parameters
    ----------
    name : str
        Its id.

    Returns
    -------
    Figure

    Raises
    ------
    InputError
        For an unknown id, with the nearest one, and a spec without paper or title.
    """
    known = figure_ids()
    if name not in known:
        raise InputError(
            f'unknown figure "{name}"{nearest(name, known)} (`fastfed list figures` names all)'
        )
    spec = read_toml(FOLDER / f"{name}.toml")
    table = spec.get("figure", {})
    for key in ("paper", "title"):
        if not isinstance(table.get(key), str):
            raise InputError(f'figure "{name}": figure.{key} must be a string, in {name}.toml')
    if table.get("id", name) != name:
        raise InputError(f'figure "{name}": figure.id must be "{name}", as its file is called')
    return Figure(name, table["paper"], table["title"], spec)


def figure_text(name: str) -> str:
    """Return the TOML of a figure, comments included.

    Parameters
    ----------
    name : str
        Its id.

    Returns
    -------
    str

    Raises
    ------
    InputError
        As `figure` does.
    """
    return (FOLDER / f"{figure(name).id}.toml").read_text(encoding="utf-8")


def figures() -> list[Figure]:
    """Read all figures.

    Returns
    -------
    list of Figure
        Sorted by id.
    """
    return [figure(name) for name in figure_ids()]


def with_panels(names: Iterable[str]) -> list[Figure]:
    """Read figures, each followed by its panels, none of them twice.

    Parameters
    ----------
    names : iterable of str
        Ids.

    Returns
    -------
    list of Figure

    Raises
    ------
    InputError
        As `figure` does.
    """
    found: dict[str, Figure] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = figure(name)
            waiting = [*found[name].panels, *waiting]
    return list(found.values())


def figure_spec(
    chosen: Figure, data: str | Path | None = None, size: str | None = None
) -> dict[str, Any]:
    """Make the spec of a figure, with the user's data in place.

    Parameters
    ----------
    chosen : Figure
        The figure, which stays as it is.
    data : str or Path, optional
        Learning-to-rank files, a file or a folder, for a figure that needs them.
    size : {"full", "all", "quick"}, optional
        Takes the keys of the table of this name in ``figure``, where there is one. "full": the
        paper's size, where the figure's own is smaller; "all": that of `reproduce all`, for long
        figures; "quick": a first look. It is noted in ``figure`` for reports. Default: the figure's
        own size.

    Returns
    -------
    dict
        Tables of a spec, for `figure_experiment`.

    Raises
    ------
    InputError
        Where the figure needs data, and none are given or they do not exist.
    """
    spec = copy.deepcopy(chosen.spec)
    if chosen.needs_data:
        if data is None:
            raise InputError(
                f'figure "{chosen.id}" needs learning-to-rank files: name them with --data PATH'
            )
        if not os.path.exists(data):
            raise InputError(f"--data must be an existing file or folder, got {str(data)!r}")
        environment = spec["environment"]
        environment.update({k: str(data) for k in PATH_KEYS if environment.get(k) == DATA})
    if size is not None:
        spec.update(spec["figure"].get(size, {}))
        spec["figure"]["size"] = size
    return spec


def figure_experiment(chosen: Figure, spec: dict[str, Any]) -> Experiment:
    """Make the experiment of a figure's spec.

    Parameters
    ----------
    chosen : Figure
        The figure, which errors name.
    spec : dict
        Its tables, such as `figure_spec` makes.

    Returns
    -------
    Experiment

    Raises
    ------
    InputError
        Where the spec is wrong.
    """
    try:
        return experiment_from_spec(spec)
    except InputError as error:
        raise InputError(f'figure "{chosen.id}": {error}') from None
