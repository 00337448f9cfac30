"""What picks an action: upper confidence bounds, or a score function that a package adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._registry import Registry, first_line, must_be
from fastfed._validate import InputError, array, show

#: The score of LinUCB, which the kernels have.
UCB = "ucb"
WANTED = "a numba.cfunc of fastfed.score_signature()"


def score_signature() -> Any:
    """The numba signature of a score function, for ``@numba.cfunc(...)``.

    ``function(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores) ->
    actions``: write a finite score for each of K = ``actions`` actions into scores (float64, K) and
    return K; anything else reports a failure. The largest score is played, ties to the lowest
    index. x (float64, K x d) are the features, theta (d) is the estimate, w (d x d, lower
    triangular) the factor with V^{-1} = w'w, so that w'z with z standard normal has covariance
    V^{-1}. LinUCB's own score is <x, theta> + beta ||x||_{V^-1} + gamma ||V^-1 x||. All are copies.
    ``round`` counts from 1, ``state`` points at the float64 array given to ``Score``. All
    randomness must come from ``key`` (uint64), which is another one for every silo and round: see
    `fastfed.keyed`.
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

    What it may see is what a silo chooses from: with lazy play that is released statistics alone,
    so no score changes what is private.
    """

    function: Any
    state: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not compiled(self.function):
            raise InputError(f"function must be {WANTED}, got {show(self.function)}")
        if self.state is not None:
            object.__setattr__(self, "state", array("state", self.state))

    @property
    def summary(self) -> str:
        """The first line of what its function says of itself."""
        return first_line(getattr(self.function, "__wrapped__", None))


def compiled(function: Any) -> bool:
    """Whether it may be called as a score: with another signature it would read foreign memory."""
    return hasattr(function, "address") and getattr(function, "_sig", None) == score_signature()


def check_score(name: str, found: Any) -> Score:
    """What an entry point names, as a Score."""
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
