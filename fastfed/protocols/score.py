"""Scores of actions: upper confidence bounds, or a score function of another package."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError, array, show
from fastfed.privacy.certificate import Condition

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

__all__ = ["SCORES", "UCB", "Score", "score_signature"]

#: Name of LinUCB's score, the upper confidence bound, which the kernels compute.
UCB = "ucb"
WANTED = "a numba.cfunc of fastfed.protocols.score.score_signature()"

#: Functions that a score may call, because they pass no data from one call to the next: arithmetic,
#: memory management within the call, and numba's functions for raising an error.
_HARMLESS = re.compile(
    r"llvm\.|NRT_|Py_(Inc|Dec)Ref$|PyErr_|Py(Unicode|Bytes)_FromString(AndSize)?$|numba_gil_|"
    r"numba_(unpickle|do_raise|runtime_build_excinfo_struct)$|mem(cpy|set|move|cmp)$|(f|l)?(sqrt|cbrt|exp|exp2|expm1|log|log2|log10|log1p|"
    r"sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|acosh|atanh|pow|fmod|hypot|floor|ceil|"
    r"trunc|round|rint|fabs|erf|erfc|gamma|lgamma|tgamma|copysign|ldexp|frexp)f?$"
)
_DECLARED = re.compile(r'^declare [^@]*@"?([^"(]+)"?\(', re.MULTILINE)
#: Code that could carry data from one call to the next: addresses made from integers, and writable
#: globals.
_FOREIGN = re.compile(
    r"\binttoptr\b|^@(?!\S*NumbaEnv)\S+ = (?!.*\bconstant\b)(?!external).*$", re.MULTILINE
)


def score_signature() -> Signature:
    """Return the numba signature of a score function, for ``@numba.cfunc(...)``.

    A score is ``function(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores)
    -> int``. It must write a finite score for each of K = ``actions`` actions into ``scores`` and
    return K; any other return value reports a failure. The action with the largest score is chosen,
    in a tie the one with the lowest index. The arguments are:

    - state: the float64 array given to `Score`;
    - key (uint64): the source of all randomness, different for each silo and round, see
      `fastfed.counter_rng`;
    - round (from 1), actions K, dimension d;
    - x (K, d): the features; theta (d,): the estimate;
    - w (d, d), lower triangular: the factor with V^{-1} = w'w, so that w'z has covariance V^{-1}
      for standard normal z;
    - beta, gamma: LinUCB's score is <x, theta> + beta ||x||_{V^-1} + gamma ||V^-1 x||;
    - scores (K,): zeros to overwrite.

    All arrays are copies made for one call, so nothing that the function writes outlasts the call.

    Returns
    -------
    numba signature
        The signature of a score function.
    """
    from numba import types

    double_array = types.CPointer(types.float64)
    integer = types.int64
    two_doubles = types.float64, types.float64
    return integer(
        double_array,
        types.uint64,
        integer,
        integer,
        integer,
        double_array,
        double_array,
        double_array,
        *two_doubles,
        double_array,
    )


@dataclass(frozen=True)
class CoreScore:
    """A score function of the compiled core, for plans of arms.

    Parameters
    ----------
    name : {"beta_draws", "normal_draws"}
        "beta_draws" is Thompson sampling. The score of "normal_draws" is normal, with the estimate
        as mean and the bonus as standard deviation.
    """

    name: str

    @property
    def address(self) -> int:
        """Return the function's address in memory."""
        from fastfed._kernels import linalg

        return linalg.CORE_SCORES[self.name]

    @property
    def __name__(self) -> str:
        """Return the name, which functions have as this attribute."""
        return self.name


@dataclass(frozen=True)
class Score:
    """A score function, compiled as a ``numba.cfunc``, and its optional state.

    The function sees the features of the current user, and the statistics from which a silo chooses
    actions; under a lazy plan these are released statistics only. ``state`` is copied for every
    call, so the state carries no data from one user to the next. Therefore a score that keeps no
    other state leaves the privacy guarantee unchanged, see ``condition``.

    Parameters
    ----------
    function : numba.cfunc or CoreScore
        A function compiled with ``score_signature()``, or a score of the compiled core.
    state : array_like, optional
        Parameters of the function, passed to every call as float64; stored as a read-only copy.
    diagonal : bool, default False
        For plans of arms: the function gets the d diagonal entries of w in place of w, and null
        pointers in place of the features and the state. A call then takes O(d) operations.

    Raises
    ------
    InputError
        If ``function`` is not compiled with that signature, or ``state`` is not finite.
    """

    function: Any
    state: np.ndarray | None = None
    diagonal: bool = False

    def __post_init__(self) -> None:
        """Check the function's signature, and store a read-only copy of the state."""
        if not compiled(self.function):
            raise InputError(f"function must be {WANTED}, got {show(self.function)}")
        if self.state is not None:
            # Copied, so that the caller cannot change the score later.
            state_copy = array("state", self.state).copy()
            state_copy.flags.writeable = False
            object.__setattr__(self, "state", state_copy)

    @property
    def summary(self) -> str:
        """Return the first line of the function's docstring."""
        return first_line(getattr(self.function, "__wrapped__", None))

    @cached_property
    def keeps_no_state(self) -> bool:
        """Return True if the compiled code shows that no call can pass data to a later call.

        The code must access no memory except its arguments (no address made from an integer, no
        writable global) and call nothing except arithmetic. The result is False if there is no code
        to read, for example for a function compiled outside numba.
        """
        if isinstance(self.function, CoreScore):
            return True
        try:
            code, name = self.function.inspect_llvm(), re.escape(self.function.native_name)
            if not re.search(rf'^define [^@]*@"?{name}"?\(', code, re.MULTILINE):
                return False
        except Exception:  # not compiled by numba, or a numba version that does not show the code
            return False
        called_names = _DECLARED.findall(code)
        return not _FOREIGN.search(code) and all(_HARMLESS.match(name) for name in called_names)

    @property
    def condition(self) -> Condition:
        """Return the certificate's condition that the score keeps no state."""
        return Condition("the score keeps no state between calls", self.keeps_no_state)


def compiled(function: Any) -> bool:
    """Return True if the function is compiled with the signature of a score.

    With a different signature, a call would read memory outside the function's arguments.
    """
    if isinstance(function, CoreScore):
        return True
    return hasattr(function, "address") and getattr(function, "_sig", None) == score_signature()


def check_score(name: str, score: Any) -> Score:
    """Return a registered object as a Score; raise InputError if it cannot be a score.

    The object, ``score``, is a Score, which is returned, or a compiled function, which is wrapped
    in a Score. ``name`` is its name in the registry `SCORES`, which passes it; it is not used here.
    """
    if isinstance(score, Score):
        return score
    if not compiled(score):
        raise must_be(f"{WANTED}, or a Score", score)
    return Score(score)


#: Scores by name, the value of a curve's key ``score``; None stands for the kernels' UCB.
SCORES: Registry[Score | None] = Registry("fastfed.scores", "score", {UCB: None}, check_score)


def score_named(name: str) -> Score | None:
    """Return the registered score of this name; None for upper confidence bounds."""
    return SCORES.choose(name)
