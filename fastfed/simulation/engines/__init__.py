"""Engines: who runs batches of runs, and where. They only run; whoever asks them keeps the results.

Here are their interface, signals, pickling, and batches whose workers died. A new engine is one new
file here with an ``open_engine``, and one line in ``ENGINES``. Nothing heavy is imported before an
engine is opened.
"""

from __future__ import annotations

import importlib
import io
import pickle
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import fastfed
from fastfed._validate import InputError, choice
from fastfed.simulation.dispatch import RunBatch
from fastfed.simulation.driver import Outcome
from fastfed.simulation.experiment import Experiment
from fastfed.simulation.snapshots import Snapshots

# ---- What every engine is, and how it is told that a batch of runs cannot be run -----------------


#: Hears agent-rounds as they are run; fewer than none where a batch of runs has to begin again.
Progress = Callable[[int], None]

#: The usual reason why workers of a script do not start: they run the script again.
GUARD = 'in a script, what runs belongs under `if __name__ == "__main__":`'


class EngineError(RuntimeError):
    """The workers, not the experiment, are why it cannot be finished: one sentence."""


@dataclass(frozen=True)
class Finished:
    """A batch of runs that was run to its end."""

    work: RunBatch
    outcomes: list[Outcome]  # one for each of its curves
    seconds: float
    threads: int


class Engine(Protocol):
    """Runs batches of runs. Neither the engine nor their order changes a bit of the outcomes."""

    @property
    def threads(self) -> int:
        """Threads in all; 0 while a cluster has no workers yet."""
        ...

    def play(
        self,
        experiment: Experiment,
        passes: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        """Every batch of runs as it ends. What an environment raises is raised here too.
        ``snapshots``: where workers keep parts of batches of runs; those that do not see the output
        folder send them.

        Where workers can die, a batch of runs that ends every worker which runs it is named by an
        EngineError after all others have been run.
        """
        ...


class Tally:
    """Progress of every batch of runs; one that begins again is not counted twice."""

    def __init__(self, experiment: Experiment, progress: Progress | None) -> None:
        self._experiment, self._progress = experiment, progress
        self._seen: dict[RunBatch, int] = {}
        self._ended: set[RunBatch] = set()
        # Workers of a cluster are heard in another thread than the one that runs.
        self._lock = threading.Lock()

    def heard(self, work: RunBatch, agent_rounds: int) -> None:
        """So much of a batch of runs has been run in all."""
        with self._lock:
            more = 0 if work in self._ended else agent_rounds - self._seen.get(work, 0)
            self._seen[work] = agent_rounds
        if more and self._progress is not None:
            self._progress(more)

    def ended(self, work: RunBatch) -> None:
        """All of it has been run."""
        self.heard(work, self._experiment.agent_rounds(work.positions))
        self._ended.add(work)


# Ctrl-C reaches every process of a terminal: workers leave it to the one that owns the results.


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Processes and threads started within never hear SIGINT; it waits for this one."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # Starting it, as the first process of a program does, would let SIGINT through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- An experiment on its way to a worker in another process, perhaps on another machine ---------
# What is sent are the plans themselves. A worker computes no noise and no radius again, so results
# do not depend on the numerical libraries that it has.


#: Experiments that a worker keeps, the newest ones.
KEPT = 2

_kept: dict[str, Experiment] = {}
_lock = threading.Lock()


def pack(experiment: Experiment) -> bytes:
    """An experiment as bytes; InputError where it holds a function that only this process has."""
    # Bounds are drawn, not played, and are closures.
    curves = tuple(replace(c, system=replace(c.system, bounds_at=None)) for c in experiment.curves)
    body = io.BytesIO()
    try:
        _Pickler(body).dump(replace(experiment, curves=curves))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the experiment cannot be sent to other processes ({error}): define its functions at "
            'the top of a module and name them as "module:name", or use engine "local"'
        ) from None
    return pickle.dumps((fastfed.__version__, experiment.digest(), body.getvalue()))


def unpack(packed: bytes) -> Experiment:
    """The experiment of such bytes, kept for the next call.

    InputError where this process has another fastfed, reads other data or lacks the user's module.
    """
    version, digest, body = pickle.loads(packed)
    check_version(version)
    with _lock:
        if digest not in _kept:
            _kept[digest] = _loaded(body, digest)
            for old in list(_kept)[:-KEPT]:
                del _kept[old]
        return _kept[digest]


def _loaded(body: bytes, digest: str) -> Experiment:
    try:
        experiment: Experiment = pickle.loads(body)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{_here()} cannot load the experiment: {error}") from None
    # Here, where one thread loads: files are then read once for all that run.
    for world in {id(c.problem): c.problem for c in experiment.curves}.values():
        world.environment.facts(world.silos, experiment.horizon)
    if experiment.digest() != digest:
        raise InputError(
            f"{_here()} reads other data, or has another version of the environment's function, "
            "than the process that asks it"
        )
    return experiment


def check_version(wanted: str) -> None:
    """InputError where this process has another fastfed: its bits could differ."""
    if wanted != fastfed.__version__:
        raise InputError(
            f"{_here()} has fastfed {fastfed.__version__}, the process that asks it {wanted}: "
            "both must be the same"
        )


def _here() -> str:
    return f"a worker on {socket.gethostname()}"


class _Pickler(pickle.Pickler):
    """Users' functions go by name; a numba.cfunc has no other form that another process knows."""

    def reducer_override(self, value: Any) -> Any:
        if not hasattr(value, "address"):
            return NotImplemented
        plain = getattr(value, "__wrapped__", value)
        module, name = getattr(plain, "__module__", None), getattr(plain, "__qualname__", "")
        try:
            known = getattr(importlib.import_module(str(module)), name) is value
        except (ImportError, AttributeError):
            known = False
        if not known:
            raise pickle.PicklingError(f"{name or value!r} is not found in {module}")
        return _named, (module, name)


def _named(module: str, name: str) -> Any:
    """A user's compiled function, by its name."""
    return getattr(importlib.import_module(module), name)


# ---- Batches of runs whose workers died: run again, then alone, then named ---


#: Workers that a batch of runs may lose while others run beside it: those may be why (memory).
MOST_TRIES = 3

#: When so many batches of runs have died and none was run, it is not the batches of runs.
HOPELESS = 8


@dataclass(frozen=True)
class PoisonBatch:
    """A batch of runs that has lost too many workers."""

    work: RunBatch
    end: str  # how the last of them ended


@dataclass
class Left:
    """Batches of runs that a round did not finish."""

    poisoned: list[PoisonBatch] = field(default_factory=list)
    untried: list[RunBatch] = field(default_factory=list)


#: (batches of runs, whether one at a time): yields what is run, returns what is not.
Round = Callable[[list[RunBatch], bool], Generator[Finished, None, Left]]


def run_all_rounds(
    experiment: Experiment, passes: list[RunBatch], run_round: Round
) -> Iterator[Finished]:
    """All batches of runs together; then those that lost their workers alone, curve by curve.

    EngineError names the ones that die even so, after everything else has been run.
    """
    left = yield from run_round(passes, False)
    waiting = deque([*_singles(s.work for s in left.poisoned), *left.untried])
    dead: list[PoisonBatch] = []
    lived = not left.untried
    while waiting and (lived or len(dead) < HOPELESS):
        died = (yield from run_round([waiting.popleft()], True)).poisoned
        dead += died
        lived = lived or not died
    if dead:
        raise EngineError(_sentence(experiment, dead, len(waiting)))


def _singles(passes: Iterable[RunBatch]) -> Iterator[RunBatch]:
    """Curve by curve: one of those that are run together may be what ends all of them."""
    for work in passes:
        for position in work.positions:
            yield RunBatch(work.replicate, (position,))


def _sentence(experiment: Experiment, dead: list[PoisonBatch], untried: int) -> str:
    cells = [
        f'curve "{experiment.curves[position].label}", replicate {poison.work.replicate}'
        for poison in dead
        for position in poison.work.positions
    ]
    shown = "; ".join(cells[:3]) + (f"; and {len(cells) - 3} more" if len(cells) > 3 else "")
    rest = f"{untried} more batches were not tried" if untried else "all others are done"
    return f"{shown}: every worker that ran it ended ({dead[-1].end}), alone too; {rest}"


# ---- Engines by name -----------------------------------------------------------------------------

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
