"""Environments written by users: a numba.cfunc (fast) or a plain Python function (slow)."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import MAX_DIMENSION
from fastfed._validate import InputError, array, boolean, integer, show
from fastfed.environments.base import (
    INDEPENDENT,
    MAX_ACTIONS,
    EnvironmentSpec,
    RewardDistribution,
    check_reward,
)

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature


def environment_signature() -> Signature:
    """Return the numba signature of a compiled environment, for ``@numba.cfunc(...)``.

    The function is ``function(state, seed, replicate, silo, round, x, mean) -> actions``. It writes
    the features row by row into x (float64, K x d) and the expected rewards into mean (float64, K),
    and returns the number of actions of this round, at least 1; a negative number reports a
    failure. ``state`` points at the float64 array given as ``state``. All randomness must come from
    (seed, replicate, silo, round), so that results do not depend on threads or order.

    Returns
    -------
    numba signature
        The signature.
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    return types.int64(
        doubles, types.uint64, types.int64, types.int64, types.int64, doubles, doubles
    )


@dataclass(kw_only=True)
class Python:
    """An environment written by its user.

    The certificate rests on the user's word for ``linear``, ``bounded``, ``multiplicity`` and
    ``independent``. An environment is outside the mechanism and may keep state, but then a user
    who is replaced changes other users too, which no guarantee covers. So where it has something
    to keep state in (``state``, a closure, an object's attributes), independence must be declared;
    elsewhere it is taken on trust, as the function promises to depend on its arguments only.

    Parameters
    ----------
    function : numba.cfunc, callable or str
        A ``numba.cfunc`` of ``environment_signature()``, a plain callable
        ``(seed, replicate, silo, round) -> (features (K, d), expected rewards (K,))``, or in a
        spec the text "module:name" of either.
    dimension : int
        d.
    actions : int
        K, the most actions of any round.
    state : array_like, optional
        Data of a ``numba.cfunc``, passed as float64.
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    linear : bool
        Expected rewards are <x, theta*> with ||theta*|| <= 1.
    bounded : bool
        ||x|| <= 1 always; clipping enforces it in any case.
    multiplicity : int
        Rounds that one record can be served in.
    independent : bool, optional
        No user's contexts and rewards depend on other users' raw data.

    Raises
    ------
    InputError
        For values out of range, and for a function that is none or has another signature.
    """

    function: Any
    dimension: int
    actions: int
    state: Any = None
    reward: RewardDistribution = field(default_factory=RewardDistribution)
    linear: bool = False
    bounded: bool = False
    multiplicity: int = 1
    independent: bool | None = None
    kind = "python"

    def __post_init__(self) -> None:
        check_reward(self.reward)
        integer("dimension", self.dimension, at_least=1, at_most=MAX_DIMENSION)
        integer("actions", self.actions, at_least=1, at_most=MAX_ACTIONS)
        integer("multiplicity", self.multiplicity, at_least=1)
        boolean("linear", self.linear)
        boolean("bounded", self.bounded)
        if self.independent is not None:
            boolean("independent", self.independent)
        self.function, self.state = user_function(
            self.function, self.state, environment_signature, "environment_signature"
        )

    @property
    def compiled(self) -> bool:
        """True if the function runs without Python."""
        return hasattr(self.function, "address")

    @property
    def stateful(self) -> bool:
        """True if the function has something to keep state in."""
        return self.state is not None or may_keep_state(self.function)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos will do."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the promises for M silos and T rounds."""
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if self.reward.kind == "bernoulli" else None,
            linear=self.linear,
            features_bounded=self.bounded,
            multiplicity=self.multiplicity,
            notes=("the environment is its user's own: its properties are taken on trust",),
            conditions=(
                (
                    f"{INDEPENDENT} (taken on trust)",
                    not self.stateful if self.independent is None else self.independent,
                ),
            ),
        )

    def open(self, seed: int, replicate: int, silos: int) -> environments.Environment:
        """Return the compiled environment of one replicate."""
        if self.compiled:
            return environments.Compiled(
                seed,
                replicate,
                self.function,
                self.state,
                self.dimension,
                self.actions,
                self.reward.c,
            )
        return environments.Called(
            seed, replicate, self.function, self._check, self.dimension, self.actions, self.reward.c
        )

    def _check(self, result: Any) -> tuple[np.ndarray, np.ndarray]:
        """Check the result of the user's callable, in every round."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("function must return (features, expected rewards)")
        features = array("features", result[0], shape=(None, self.dimension))
        if not 1 <= len(features) <= self.actions:
            raise InputError(f"features must hold 1 to {self.actions} actions, got {len(features)}")
        means = array("expected rewards", result[1], shape=(len(features),))
        if self.reward.kind == "bernoulli" and not ((means >= 0) & (means <= 1)).all():
            raise InputError(
                'reward.kind = "bernoulli" needs expected rewards in [0, 1], '
                f"got {means[(means < 0) | (means > 1)][0]:g}"
            )
        return features, means

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the environment."""
        return {
            "kind": self.kind,
            "function": fingerprint(self.function, self.state),
            "dimension": self.dimension,
            "actions": self.actions,
            "linear": self.linear,
            "bounded": self.bounded,
            "multiplicity": self.multiplicity,
            **({} if self.independent is None else {"independent": self.independent}),
            "reward": {"kind": self.reward.kind, "std": self.reward.std},
        }


def user_function(
    function: Any, state: Any, signature: Callable[[], Signature], name: str
) -> tuple[Any, np.ndarray | None]:
    """Return a user's function, imported if it is "module:name", and its state.

    Raises InputError for anything else, and for a numba.cfunc of another signature: calling that
    would read foreign memory. ``name`` is the name of the signature's function, for messages.
    """
    if isinstance(function, str):
        function = import_function(function)
    compiled = hasattr(function, "address")
    if not callable(function) and not compiled:
        raise InputError(
            f'function must be a numba.cfunc, a callable or "module:name", got {show(function)}'
        )
    given = getattr(function, "_sig", None)
    if given is not None and given != signature():
        raise InputError(f"function must be a numba.cfunc of {name}(), got one of {given}")
    if state is None:
        return function, None
    if not compiled:
        raise InputError("state goes with a numba.cfunc; close over it instead")
    return function, array("state", state)


def may_keep_state(function: Any) -> bool:
    """Return True for a closure, and for anything but a plain function: it may keep state."""
    plain = getattr(function, "__wrapped__", function)
    return not inspect.isfunction(plain) or bool(plain.__closure__)


def fingerprint(function: Any, state: np.ndarray | None) -> str:
    """Return a digest of a function's visible parts: source, closure, defaults, state."""
    return _fingerprint(function, state, frozenset())


def _fingerprint(function: Any, state: np.ndarray | None, within: frozenset[int]) -> str:
    """Return the digest of `fingerprint`; ``within``: ids of what the function is part of."""
    if isinstance(function, partial):
        return hashlib.sha256(_content(function, within).encode()).hexdigest()
    plain = getattr(function, "__wrapped__", function)
    try:
        source = inspect.getsource(plain if inspect.isroutine(plain) else type(plain))
    except (OSError, TypeError):
        source = repr(getattr(plain, "__qualname__", plain))
    closed = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    parts = [closed, getattr(plain, "__defaults__", None), getattr(plain, "__dict__", None)]
    within |= {id(function), id(plain)}
    text = "\n".join([repr(source), *(_content(part, within) for part in parts)]).encode()
    return hashlib.sha256(text + (b"" if state is None else state.tobytes())).hexdigest()


def _content(value: Any, within: frozenset[int]) -> str:
    """Return text that tells values apart: the repr, unless that leaves out what they hold.

    An array's repr leaves out digits and rows, an object's may leave out all; that of a function,
    or of an object without a repr of its own, is its address, which no other process shares.
    """
    if id(value) in within:
        return "itself"
    within |= {id(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return f"array {value.shape} {_content(value.tolist(), within)}"
        made = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.dtype.str} {value.shape} {made}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, partial):  # which Python 3.14 calls a routine
        return f"{kind} {_content([value.func, value.args, value.keywords], within)}"
    if inspect.isroutine(value) or hasattr(value, "__wrapped__"):
        owner = getattr(value, "__self__", None)
        bound = "" if owner is None or inspect.ismodule(owner) else _content(owner, within)
        return f"function {_fingerprint(value, None, within)} {bound}"
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        parts = value.items() if isinstance(value, dict) else [(part,) for part in value]
        held = [part for several in parts for part in several]
        texts = [_content(part, within) for part in held]
        if isinstance(value, (set, frozenset)):
            texts.sort()  # the order of text is another one in every process
        elif texts == [repr(part) for part in held]:
            return repr(value)
        return f"{kind} [{', '.join(texts)}]"
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return kind if " at 0x" in repr(value) else repr(value)
    return f"{kind} {_content(vars(value), within)}"


def import_function(text: str) -> Any:
    """Import the function that "module:name" names; InputError if that fails."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise InputError(f'function must be "module:name", got "{text}"')
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise InputError(f'module "{module}" has no "{name}"') from None
    except Exception as error:  # the user's module may raise anything while it is imported
        raise InputError(f'function "{text}" cannot be imported: {error}') from None
