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
from fastfed._validate import InputError, array, boolean, constructed, integer, show
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
    the features row by row into x (float64, K x d) and the expected rewards into mean (float64, K).
    It returns the number of actions of this round, at least 1, or a negative number to report a
    failure. ``state`` points to the float64 array given as ``state``. All randomness must be a
    function of (seed, replicate, silo, round), so that results do not depend on threads or order.

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


@constructed("Python(function=draw, dimension=3, actions=5)")
@dataclass(kw_only=True)
class Python:
    """An environment that you write as a function.

    The certificate takes ``linear``, ``bounded``, ``multiplicity`` and ``independent`` on trust.

    The privacy guarantee compares runs in which one user is replaced. If the environment stores
    something about one user and uses it for the next user, then replacing the first user changes
    the contexts or rewards of the next user too. No guarantee covers this. So a function that could
    store something (in ``state``, a closure or attributes of an object) counts as independent only
    if you declare ``independent``. Any other function is trusted to depend on its arguments only.

    Parameters
    ----------
    function : numba.cfunc, callable or str
        A ``numba.cfunc`` of ``environment_signature()``, a plain callable
        ``(seed, replicate, silo, round) -> (features (K, d), expected rewards (K,))``, or the text
        "module:name", which is imported.
    dimension : int
        d.
    actions : int
        K, the largest number of actions in any round.
    state : array_like, optional
        Data for a ``numba.cfunc``, passed as float64.
    reward : RewardDistribution
        Distribution of rewards, Bernoulli by default.
    linear : bool
        True if expected rewards are <x, theta*> with ||theta*|| <= 1.
    bounded : bool
        True if ||x|| <= 1 always. Features are clipped in any case.
    multiplicity : int
        Largest number of rounds that one record can appear in.
    independent : bool, optional
        True if no user's contexts and rewards depend on other users' raw data.

    Raises
    ------
    InputError
        For values out of range, and if ``function`` is no function or has a different signature.
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
            self.function, self.state, environment_signature, "seed, replicate, silo, round"
        )

    @property
    def compiled(self) -> bool:
        """True if the function runs without Python."""
        return hasattr(self.function, "address")

    @property
    def stateful(self) -> bool:
        """True if the function could store something between calls."""
        return self.state is not None or may_keep_state(self.function)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> EnvironmentSpec:
        """Return the properties of this environment for M silos and T rounds."""
        return EnvironmentSpec(
            dimension=self.dimension,
            actions=self.actions,
            reward=self.reward,
            reward_range=(0.0, 1.0) if self.reward.kind == "bernoulli" else None,
            linear=self.linear,
            features_bounded=self.bounded,
            multiplicity=self.multiplicity,
            notes=("a user wrote the environment: its properties are taken on trust",),
            # Without a declaration, users count as independent unless the function can store data.
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
        """Return the features (K, d) and expected rewards (K,) of one round, after checking them.

        ``result`` is what the user's function returned.
        """
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
        """Return plain data that identify this environment."""
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
    function: Any, state: Any, signature: Callable[[], Signature], arguments: str
) -> tuple[Any, np.ndarray | None]:
    """Return a user's function, and its state as a float64 array or None.

    A text "module:name" is imported. A numba.cfunc must have the signature that ``signature()``
    returns, because it would otherwise access memory out of bounds. ``arguments`` are the names of
    the arguments of a plain callable. Raises InputError if ``function`` is not such a function.
    """
    if isinstance(function, str):
        function = import_function(function)
    compiled = hasattr(function, "address")
    if not callable(function) and not compiled:
        raise InputError(
            f'function must be a numba.cfunc, a callable or "module:name", got {show(function)}'
        )
    function_signature = getattr(function, "_sig", None)
    if function_signature is not None and function_signature != signature():
        raise InputError(
            f"function must be a numba.cfunc of {signature.__name__}(), got one of "
            f"{function_signature}"
        )
    if not compiled:
        _check_arguments(function, arguments, signature.__name__)
    if state is None:
        return function, None
    if not compiled:
        raise InputError(
            "state is only for a numba.cfunc: a Python function can close over its values"
        )
    return function, array("state", state)


def _check_arguments(function: Any, arguments: str, signature: str) -> None:
    """Raise InputError unless a plain callable can be called with these positional arguments.

    ``signature`` is the name of the function that returns the signature of a ``numba.cfunc``.
    """
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):  # some callables of extensions have no signature
        return
    try:
        parameters.bind(*arguments.split(", "))
    except TypeError:
        hint = ""
        if "state" in parameters.parameters:
            hint = f": to pass state, compile it by numba.cfunc({signature}())"
        raise InputError(
            f"function must be a plain function of ({arguments}), or a numba.cfunc, got a function "
            f"of {parameters}{hint}"
        ) from None


def may_keep_state(function: Any) -> bool:
    """Return True if a function could store data of one call for the next call.

    This holds for closures, and for all callables that are not plain functions.
    """
    plain = getattr(function, "__wrapped__", function)
    return not inspect.isfunction(plain) or bool(plain.__closure__)


def fingerprint(function: Any, state: np.ndarray | None) -> str:
    """Return a digest that identifies a user's function in stores of results.

    It depends on the function's source, closure, defaults, attributes and state.
    """
    return _fingerprint(function, state, frozenset())


def _fingerprint(function: Any, state: np.ndarray | None, outer_ids: frozenset[int]) -> str:
    """Return the digest that `fingerprint` describes.

    ``outer_ids`` holds the ids of the objects that contain the function, to stop at cycles.
    """
    if isinstance(function, partial):
        return hashlib.sha256(_content(function, outer_ids).encode()).hexdigest()
    plain = getattr(function, "__wrapped__", function)
    try:
        source = inspect.getsource(plain if inspect.isroutine(plain) else type(plain))
    except (OSError, TypeError):
        source = repr(getattr(plain, "__qualname__", plain))
    closed = [cell.cell_contents for cell in getattr(plain, "__closure__", None) or ()]
    parts = [closed, getattr(plain, "__defaults__", None), getattr(plain, "__dict__", None)]
    outer_ids |= {id(function), id(plain)}
    text = "\n".join([repr(source), *(_content(part, outer_ids) for part in parts)]).encode()
    return hashlib.sha256(text + (b"" if state is None else state.tobytes())).hexdigest()


def _content(value: Any, outer_ids: frozenset[int]) -> str:
    """Return text that differs between different values and is the same in every process.

    This is the repr of a value if the repr is complete. The repr of an array leaves out digits and
    rows, and the repr of an object may leave out its attributes. The repr of a function, and the
    default repr of an object, contain an address, which differs between processes.
    """
    if id(value) in outer_ids:
        return "itself"
    outer_ids |= {id(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return f"array {value.shape} {_content(value.tolist(), outer_ids)}"
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array {value.dtype.str} {value.shape} {digest}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, partial):  # which Python 3.14 calls a routine
        return f"{kind} {_content([value.func, value.args, value.keywords], outer_ids)}"
    if inspect.isroutine(value) or hasattr(value, "__wrapped__"):
        owner = getattr(value, "__self__", None)
        bound = "" if owner is None or inspect.ismodule(owner) else _content(owner, outer_ids)
        return f"function {_fingerprint(value, None, outer_ids)} {bound}"
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        groups = value.items() if isinstance(value, dict) else [(part,) for part in value]
        items = [part for group in groups for part in group]
        texts = [_content(part, outer_ids) for part in items]
        if isinstance(value, (set, frozenset)):
            texts.sort()  # the iteration order of sets of text differs between processes
        elif texts == [repr(part) for part in items]:
            return repr(value)
        return f"{kind} [{', '.join(texts)}]"
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return kind if " at 0x" in repr(value) else repr(value)
    return f"{kind} {_content(vars(value), outer_ids)}"


def import_function(text: str) -> Any:
    """Return the function that the text "module:name" names, after importing the module.

    Raises InputError if there is no such module or function.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise InputError(f'function must be "module:name", got "{text}"')
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise InputError(f'module "{module}" has no "{name}"') from None
    except Exception as error:  # importing a user's module may raise any exception
        raise InputError(f'function "{text}" cannot be imported: {error}') from None
