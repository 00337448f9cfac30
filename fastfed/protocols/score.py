"""Scores of actions: upper confidence bounds, or a function that a package adds."""

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

#: The score of LinUCB, which the kernels have.
UCB = "ucb"
WANTED = "a numba.cfunc of fastfed.protocols.score.score_signature()"

#: What of compiled code cannot carry anything from one call to the next: arithmetic, memory of the
#: call's own, and how a compiled function raises.
_HARMLESS = re.compile(
    r"llvm\.|NRT_|Py_(Inc|Dec)Ref$|PyErr_|Py(Unicode|Bytes)_FromString(AndSize)?$|numba_gil_|"
    r"numba_(unpickle|do_raise|runtime_build_excinfo_struct)$|mem(cpy|set|move|cmp)$|(f|l)?(sqrt|cbrt|exp|exp2|expm1|log|log2|log10|log1p|"
    r"sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|asinh|acosh|atanh|pow|fmod|hypot|floor|ceil|"
    r"trunc|round|rint|fabs|erf|erfc|gamma|lgamma|tgamma|copysign|ldexp|frexp)f?$"
)
_DECLARED = re.compile(r'^declare [^@]*@"?([^"(]+)"?\(', re.MULTILINE)
#: Addresses made of numbers, and globals that may be written to.
_FOREIGN = re.compile(
    r"\binttoptr\b|^@(?!\S*NumbaEnv)\S+ = (?!.*\bconstant\b)(?!external).*$", re.MULTILINE
)


def score_signature() -> Signature:
    """Return the numba signature of a score function, for ``@numba.cfunc(...)``.

    ``function(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores) ->
    actions``: write a finite score for each of K = ``actions`` actions into scores (float64, K) and
    return K; anything else reports a failure. The largest score is played, ties to the lowest
    index. x (float64, K x d) are the features, theta (d) is the estimate, w (d x d, lower
    triangular) the factor with V^{-1} = w'w, so that w'z with z standard normal has covariance
    V^{-1}. LinUCB's own score is <x, theta> + beta ||x||_{V^-1} + gamma ||V^-1 x||. All are copies.
    ``round`` counts from 1, ``state`` points at a copy of the float64 array given to ``Score``, a
    fresh one for every call, and ``scores`` holds zeros: nothing written lasts. All
    randomness must come from ``key`` (uint64), which is another one for every silo and round: see
    `fastfed.counter_rng`.

    Returns
    -------
    numba signature
        The signature.
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    whole = types.int64
    numbers = types.float64, types.float64
    return whole(
        doubles, types.uint64, whole, whole, whole, doubles, doubles, doubles, *numbers, doubles
    )


@dataclass(frozen=True)
class Score:
    """A score function: a ``numba.cfunc`` of ``score_signature()`` and its state, if it has one.

    It sees this round's features, which are the present user's own, and what a silo chooses from:
    with lazy play that is released statistics alone. ``state`` is copied here and again for every
    call, so it carries nothing from one user to the next. Then a score changes nothing of what is
    private, see ``condition``.

    Parameters
    ----------
    function : numba.cfunc
        Of ``score_signature()``.
    state : array_like, optional
        Handed to every call as float64; kept as a read-only copy.

    Raises
    ------
    InputError
        For another function, and a state that is not finite numbers.
    """

    function: Any
    state: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not compiled(self.function):
            raise InputError(f"function must be {WANTED}, got {show(self.function)}")
        if self.state is not None:
            # A copy: what the caller does with the array later is no part of the score.
            kept = array("state", self.state).copy()
            kept.flags.writeable = False
            object.__setattr__(self, "state", kept)

    @property
    def summary(self) -> str:
        """The first line of what its function says of itself."""
        return first_line(getattr(self.function, "__wrapped__", None))

    @cached_property
    def keeps_no_state(self) -> bool:
        """True if nothing that the function writes can be seen by a later call.

        Read from the compiled code: it must name no memory but its arguments', by no address made
        of a number and no global, and call nothing but arithmetic. False where there is no code to
        read, as of a function that is compiled elsewhere.
        """
        try:
            code, name = self.function.inspect_llvm(), re.escape(self.function.native_name)
            if not re.search(rf'^define [^@]*@"?{name}"?\(', code, re.MULTILINE):
                return False
        except Exception:  # not one of numba's own, or a numba that has no code to show
            return False
        called = _DECLARED.findall(code)
        return not _FOREIGN.search(code) and all(_HARMLESS.match(name) for name in called)

    @property
    def condition(self) -> Condition:
        """Condition of a certificate about a score, on which guarantees rest."""
        return Condition("the score keeps no state between calls", self.keeps_no_state)


def compiled(function: Any) -> bool:
    """True if it has the signature of a score: with another it would read foreign memory."""
    return hasattr(function, "address") and getattr(function, "_sig", None) == score_signature()


def check_score(name: str, found: Any) -> Score:
    """Check what an entry point names, and wrap it in a Score."""
    if isinstance(found, Score):
        return found
    if not compiled(found):
        raise must_be(f"{WANTED}, or a Score", found)
    return Score(found)


#: By the key ``score`` of a curve; None is the kernels' own.
SCORES: Registry[Score | None] = Registry("fastfed.scores", "score", {UCB: None}, check_score)


def score_named(name: str) -> Score | None:
    """The score function of a curve; None for upper confidence bounds."""
    return SCORES.choose(name)
