"""Engines run batches of runs in threads, processes or on a cluster; the caller stores the results.

A batch of runs is a set of curves of one replicate that are simulated together. This file has the
interface of engines, the handling of signals, the pickling of experiments, and the rules for
batches whose workers died. To add an engine, write a file here with an ``open_engine``, and add a
line to ``ENGINES``. An engine's module is imported only when the engine is opened.
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

# ---- The interface of engines, and their errors --------------------------------------------------


#: Called with the agent-rounds run since the last call; negative if a batch of runs starts again.
Progress = Callable[[int], None]

#: Advice if no worker starts. The usual reason is that each worker runs the user's script again.
GUARD = 'in a script, put the call under `if __name__ == "__main__":`'


class EngineError(RuntimeError):
    """Raised if workers fail, so that an experiment cannot be finished."""


@dataclass(frozen=True)
class Finished:
    """A finished batch of runs, with the wall time that it took and the threads that ran it."""

    work: RunBatch
    outcomes: list[Outcome]  # one for each curve of the batch
    seconds: float
    threads: int


class Engine(Protocol):
    """Runs batches of runs. Outcomes depend neither on the engine nor on the order of batches."""

    @property
    def threads(self) -> int:
        """Number of threads in all; 0 while a cluster has no workers yet."""
        ...

    def play(
        self,
        experiment: Experiment,
        batches: list[RunBatch],
        progress: Progress | None = None,
        snapshots: Snapshots | None = None,
    ) -> Iterator[Finished]:
        """Run the batches, and yield each one as it finishes.

        Workers write ``snapshots`` into the output folder, or send them to this process if they do
        not see the folder. An exception in an environment is raised here. If a batch of runs kills
        every worker that runs it, the other batches are run first. Then an EngineError that names
        this batch is raised.
        """
        ...


class Tally:
    """Adds up the progress of all batches of runs; a batch that starts again counts once."""

    def __init__(self, experiment: Experiment, progress: Progress | None) -> None:
        self._experiment, self._progress = experiment, progress
        # Batch -> the number of its agent-rounds that were finished when last recorded.
        self._agent_rounds: dict[RunBatch, int] = {}
        self._ended: set[RunBatch] = set()  # the finished batches
        # Messages from the workers of a cluster arrive in a separate thread.
        self._lock = threading.Lock()

    def record(self, batch: RunBatch, agent_rounds: int) -> None:
        """Record that ``agent_rounds`` agent-rounds of a batch of runs are finished, in all.

        The change since the last record of the batch is reported as progress, unless the whole
        batch was recorded as finished already.
        """
        with self._lock:
            new_rounds = (
                0 if batch in self._ended else agent_rounds - self._agent_rounds.get(batch, 0)
            )
            self._agent_rounds[batch] = agent_rounds
        if new_rounds and self._progress is not None:
            self._progress(new_rounds)

    def ended(self, batch: RunBatch) -> None:
        """Record that a batch of runs is finished."""
        self.record(batch, self._experiment.agent_rounds(batch.positions))
        self._ended.add(batch)


# Ctrl-C reaches every process of a terminal. Workers ignore it; the main process handles it.


@contextmanager
def no_interrupts() -> Iterator[None]:
    """Block SIGINT in processes and threads that the `with` block starts.

    In this thread, a SIGINT is delayed until the end of the block.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # Start the tracker now. Otherwise the first process starts it, and the tracker unblocks SIGINT.
    resource_tracker.ensure_running()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


# ---- Sending an experiment to workers in other processes, perhaps on other machines --------------
# The plans themselves are sent. A worker does not compute noise or radii again, so results do not
# depend on its numerical libraries.


#: Number of experiments that a worker caches.
MAX_EXPERIMENTS = 2

_experiments: dict[str, Experiment] = {}  # cached experiments by digest, the oldest first
_lock = threading.Lock()


def pack(experiment: Experiment) -> bytes:
    """Return a pickle of an experiment, with the version of fastfed and the experiment's digest.

    Raises InputError if the experiment contains a function that workers cannot import.
    """
    # Theoretical bounds are closures, which cannot be pickled; workers do not need them.
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
    """Return the experiment that `pack` has pickled, and cache it.

    Raises InputError if this process has a different version of fastfed, reads different data, or
    lacks the user's module.
    """
    version, digest, body = pickle.loads(packed)
    check_version(version)
    with _lock:
        if digest not in _experiments:
            _experiments[digest] = _unpickle(body, digest)
            for oldest in list(_experiments)[:-MAX_EXPERIMENTS]:
                del _experiments[oldest]
        return _experiments[digest]


def _unpickle(body: bytes, digest: str) -> Experiment:
    """Return the experiment that is pickled in ``body``, after checking its digest.

    Raises InputError if the experiment cannot be loaded here, or if its digest in this process
    differs from ``digest``, the digest in the main process. The digest covers the data files that
    the experiment reads. The caller holds `_lock`.
    """
    try:
        experiment: Experiment = pickle.loads(body)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{_worker_name()} cannot load the experiment: {error}") from None
    # Read data files now, while the caller holds `_lock`, so that all threads share what was read.
    for problem in {id(c.problem): c.problem for c in experiment.curves}.values():
        problem.environment.facts(problem.silos, experiment.horizon)
    if experiment.digest() != digest:
        raise InputError(
            f"{_worker_name()} reads different data, or has a different version of the "
            "environment's function, than the main process"
        )
    return experiment


def check_version(expected_version: str) -> None:
    """Raise InputError if this process has a different fastfed, whose results could differ."""
    if expected_version != fastfed.__version__:
        raise InputError(
            f"{_worker_name()} has fastfed {fastfed.__version__}, the main process "
            f"{expected_version}: both must be the same"
        )


def _worker_name() -> str:
    """Return the name of this process in error messages."""
    return f"a worker on {socket.gethostname()}"


class _Pickler(pickle.Pickler):
    """Pickler that stores a user's numba.cfunc by name, because it has no other portable form."""

    def reducer_override(self, value: Any) -> Any:
        """Reduce an object with an ``address``, as a numba.cfunc has, to its module and name."""
        if not hasattr(value, "address"):
            return NotImplemented
        plain = getattr(value, "__wrapped__", value)
        module, name = getattr(plain, "__module__", None), getattr(plain, "__qualname__", "")
        try:
            importable = getattr(importlib.import_module(str(module)), name) is value
        except (ImportError, AttributeError):
            importable = False
        if not importable:
            raise pickle.PicklingError(f"{name or value!r} is not found in {module}")
        return _named, (module, name)


def _named(module: str, name: str) -> Any:
    """Return the object of this name in a module; unpickling calls this function."""
    return getattr(importlib.import_module(module), name)


# ---- Batches of runs whose workers died: tried again, then curve by curve, then reported ---------


#: Workers that a batch may lose while other batches run: the others may have used up the memory.
MAX_TRIES = 3

#: If this many batches of runs have died and none was finished, the batches are not the reason.
HOPELESS = 8


@dataclass(frozen=True)
class PoisonBatch:
    """A batch of runs that has lost too many workers."""

    work: RunBatch
    end: str  # how the last worker ended


@dataclass
class Left:
    """Batches of runs that a round of tries did not finish.

    The poisoned batches have lost too many workers; the untried batches were not started.
    """

    poisoned: list[PoisonBatch] = field(default_factory=list)
    untried: list[RunBatch] = field(default_factory=list)


#: Called with (batches, whether to run one at a time): yields finished batches, returns the others.
Round = Callable[[list[RunBatch], bool], Generator[Finished, None, Left]]


def run_all_rounds(
    experiment: Experiment, batches: list[RunBatch], run_round: Round
) -> Iterator[Finished]:
    """Run all batches by ``run_round``, and yield each batch as it finishes.

    A batch that killed too many workers is run again, split into batches of one curve, while
    nothing else runs. At the end, an EngineError names the curves that still kill their workers.
    """
    unfinished = yield from run_round(batches, False)
    poisoned_work = (poison.work for poison in unfinished.poisoned)
    waiting = deque([*_single_curves(poisoned_work), *unfinished.untried])
    poison_batches: list[PoisonBatch] = []
    # `run_round` leaves batches untried only if `HOPELESS` or more died and none was finished.
    any_finished = not unfinished.untried
    while waiting and (any_finished or len(poison_batches) < HOPELESS):
        died = (yield from run_round([waiting.popleft()], True)).poisoned
        poison_batches += died
        any_finished = any_finished or not died
    if poison_batches:
        raise EngineError(_dead_message(experiment, poison_batches, len(waiting)))


def _single_curves(batches: Iterable[RunBatch]) -> Iterator[RunBatch]:
    """Yield a batch with one curve for each curve of the given batches.

    A single curve may have killed the worker of the whole batch.
    """
    for batch in batches:
        for position in batch.positions:
            yield RunBatch(batch.replicate, (position,))


def _dead_message(experiment: Experiment, poison_batches: list[PoisonBatch], untried: int) -> str:
    """Return the message of the EngineError about batches that kill their workers.

    ``untried`` is the number of batches that were not run at all.
    """
    cells = [
        f'curve "{experiment.curves[position].label}", replicate {poison.work.replicate}'
        for poison in poison_batches
        for position in poison.work.positions
    ]
    named_cells = "; ".join(cells[:3]) + (f"; and {len(cells) - 3} more" if len(cells) > 3 else "")
    rest_text = f"{untried} more batches were not tried" if untried else "all others are done"
    return (
        f"{named_cells}: every worker that ran it ended ({poison_batches[-1].end}), alone too; "
        f"{rest_text}"
    )


# ---- Engines by name -----------------------------------------------------------------------------

#: Description of each engine by name; the name is also the name of its module in this package.
ENGINES = {
    "local": "threads of this process",
    "processes": "processes of this machine",
    "dask": "a dask cluster",
}

#: For each engine that needs a package: the package, and the extra that installs it.
NEEDS = {"dask": ("distributed", "cluster")}


@contextmanager
def open_engine(
    name: str = "local",
    threads: int | None = None,
    scheduler: str | None = None,
    at_once: int | None = None,
) -> Iterator[Engine]:
    """Open an engine by its name; a cluster that it starts is closed after the block.

    Parameters
    ----------
    name : {"local", "processes", "dask"}
        The engine.
    threads : int, optional
        Number of threads in all. Default: all processors.
    scheduler : str, optional
        Address of an existing dask cluster.
    at_once : int, optional
        Largest number of batches of runs at the same time.

    Yields
    ------
    Engine
        The engine.

    Raises
    ------
    InputError
        If arguments contradict each other, a package is missing, or no scheduler answers.
    """
    choice("engine", name, list(ENGINES))
    if scheduler is not None and name != "dask":
        raise InputError(f'scheduler is for engine "dask" only, got engine "{name}"')
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
