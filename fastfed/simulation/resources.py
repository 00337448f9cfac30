"""What a run may use of a machine, and who plays it. No result depends on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What `run` and the commands are given; `fitting` divides the work so that it is enough."""

    threads: int | None = None  # in all; None: every processor
    engine: str = "local"
    scheduler: str | None = None  # address of a dask cluster that is there already
    memory_limit: int | str | None = None  # bytes, or "40GB"; None: what is available
