"""The figures of the papers: one TOML spec for each in ``figures/``, and functions to read them.

To add a figure, add a file named after its id. If a figure needs files from the user, its spec
contains ``"DATA"`` in place of their path.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastfed._validate import InputError, nearest
from fastfed.simulation.experiment import PATH_KEYS, Experiment, experiment_from_spec, read_toml

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

#: Placeholder in a figure's environment for the path given with --data.
DATA = "DATA"


@dataclass(frozen=True)
class Figure:
    """One figure of a paper, read from its spec.

    Attributes
    ----------
    id : str
        Name of the figure, and of its file.
    paper : str
        Id of the paper, author and year.
    title : str
        One line for listings.
    spec : dict
        The tables of the figure's TOML file.
    """

    id: str
    paper: str
    title: str
    spec: dict[str, Any]

    @property
    def panels(self) -> tuple[str, ...]:
        """Ids of other figures that are drawn together with this one."""
        return tuple(self.spec["figure"].get("panels", ()))

    @property
    def long(self) -> str:
        """The reason why `reproduce all` omits the figure; empty if it does not."""
        return str(self.spec["figure"].get("long", ""))

    @property
    def needs_data(self) -> bool:
        """True if the figure needs data files that are not part of the package."""
        return any(self.spec["environment"].get(key) == DATA for key in PATH_KEYS)


def figure_ids() -> list[str]:
    """Return the ids of all figures, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def figure(name: str) -> Figure:
    """Read a figure from its spec file, and return it.

    Parameters
    ----------
    name : str
        Id of the figure.

    Raises
    ------
    InputError
        If the id is unknown (the message suggests the nearest one), if the spec has no paper or
        title, or if the spec has a different id than its file name.
    """
    known_ids = figure_ids()
    if name not in known_ids:
        spec_hint = f"; for a spec, `fastfed run {name} -o DIR`" if name.endswith(".toml") else ""
        raise InputError(
            f'unknown figure "{name}"{nearest(name, known_ids)}{spec_hint} (`fastfed list figures` '
            "names all)"
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
    """Return the TOML text of a figure, including comments.

    Parameters
    ----------
    name : str
        Id of the figure.

    Raises
    ------
    InputError
        In the cases of `figure`.
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
    """Return a list of figures, each followed by its panels, without duplicates.

    Parameters
    ----------
    names : iterable of str
        Ids of figures.

    Raises
    ------
    InputError
        In the cases of `figure`.
    """
    figures_by_id: dict[str, Figure] = {}
    ids_to_read = list(names)
    while ids_to_read:
        name = ids_to_read.pop(0)
        if name not in figures_by_id:
            figures_by_id[name] = figure(name)
            ids_to_read = [*figures_by_id[name].panels, *ids_to_read]
    return list(figures_by_id.values())


def figure_spec(
    chosen: Figure, data: str | Path | None = None, size: str | None = None
) -> dict[str, Any]:
    """Return the spec of a figure, with the path of the user's data filled in.

    Parameters
    ----------
    chosen : Figure
        The figure. It is not modified.
    data : str or Path, optional
        Learning-to-rank file or folder, for a figure that needs data.
    size : {"full", "all", "quick"}, optional
        If the spec's table ``figure`` has a table of this name, the keys of that table replace keys
        of the spec. "full": the paper's size, if the figure's default size is smaller. "all": the
        size in `reproduce all`, for long figures. "quick": a short run. This argument is stored as
        ``figure.size`` of the result, for reports. Default: the figure's default size.

    Returns
    -------
    dict
        Tables of a spec, for `figure_experiment`.

    Raises
    ------
    InputError
        If the figure needs data and no path is given, or the path does not exist.
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
    """Return the experiment of a figure's spec.

    Parameters
    ----------
    chosen : Figure
        The figure, named in error messages.
    spec : dict
        Tables of the spec, such as `figure_spec` returns.

    Raises
    ------
    InputError
        If the spec is invalid.
    """
    try:
        return experiment_from_spec(spec)
    except InputError as error:
        raise InputError(f'figure "{chosen.id}": {error}') from None
