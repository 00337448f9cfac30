"""An experiment on its way to a worker in another process, perhaps on another machine.

What is sent are the plans themselves. A worker computes no noise and no radius again, so results
do not depend on the numerical libraries that it has.
"""

from __future__ import annotations

import importlib
import io
import pickle
import socket
import threading
from dataclasses import replace
from typing import Any

import fastfed
from fastfed._validate import InputError
from fastfed.simulation.experiment import Experiment

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
    # Here, where one thread loads: files are then read once for all that play.
    for world in {id(c.world): c.world for c in experiment.curves}.values():
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
