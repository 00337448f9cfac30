"""Engines: who runs batches of runs, and where. They only run; whoever asks them keeps the results.

A new engine is one new file here with an ``open_engine``, and one line in ``ENGINES``. Nothing
heavy is imported before an engine is opened.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastfed.simulation.engines.base import Engine

#: Name, which is also its module here: what it is.
ENGINES = {
    "local": "threads of this process",
    "processes": "processes of this machine",
    "dask": "a dask cluster",
}

#: Packages that an engine needs, and the extra that brings them.
NEEDS = {"dask": ("distributed", "cluster")}


@contextmanager
def open_engine(
    name: str = "local",
    threads: int | None = None,
    scheduler: str | None = None,
    at_once: int | None = None,
) -> Iterator[Engine]:
    """An engine by its name, ready to run; a cluster that it started ends with it.

    ``threads`` is what it may use in all (None: every processor), ``scheduler`` the address of a
    dask cluster that is there already, ``at_once`` the most batches of runs at the same time.
    InputError for what does not go together, for a package that is missing, and where no scheduler
    answers.
    """
    from fastfed._validate import InputError, choice

    choice("engine", name, list(ENGINES))
    if scheduler is not None and name != "dask":
        raise InputError(f'scheduler goes with engine "dask", got engine "{name}"')
    if scheduler is not None and threads is not None:
        raise InputError("threads and scheduler exclude each other: a cluster has its own threads")
    try:
        module = importlib.import_module(f"fastfed.simulation.engines.{name}")
    except ModuleNotFoundError as error:
        package, extra = NEEDS.get(name, ("", ""))
        if not package or error.name not in (package, "dask"):
            raise
        raise InputError(
            f'engine "{name}" needs the package {package}: pip install "fastfed[{extra}]"'
        ) from None
    with module.open_engine(threads, scheduler, at_once) as engine:
        yield engine


__all__ = ["ENGINES", "open_engine"]
