"""Any convex smooth loss of the weights, given as a function that returns loss and gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastfed._kernels import losses
from fastfed._validate import InputError, array, number
from fastfed.environments.losses import Adversary, LossFacts, check_experts, check_multiplicity
from fastfed.environments.python import fingerprint, user_function


def gradient_signature() -> Any:
    """The numba signature of a compiled loss, for ``@numba.cfunc(...)``.

    ``function(state, seed, replicate, silo, round, x, gradient) -> loss``: the loss of that round
    at x (float64, d), its gradient written into gradient (float64, d); NaN reports a failure.
    ``state`` points at the float64 array given as ``state``. All randomness must come from
    (seed, replicate, silo, round).
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    return types.float64(
        doubles, types.uint64, types.int64, types.int64, types.int64, doubles, doubles
    )


@dataclass(kw_only=True, eq=False)
class GradientLosses:
    """Losses of one law, convex in x, alpha-Lipschitz and beta-smooth in the L1 norm.

    ``function``: a ``numba.cfunc`` of ``gradient_signature()``, a plain callable
    ``(seed, replicate, silo, round, x) -> (loss, gradient (d,))``, or in a spec "module:name".
    Coordinates of gradients lie in [alpha - spread, alpha], ``lipschitz`` = alpha and ``spread`` (2
    alpha unless said); clients clip them to it, and differences of gradients to what ``smoothness``
    = beta allows, so that the noise that is scaled by these is enough. ``multiplicity``: how many
    losses, of any clients in any rounds, one record can be behind (1). ``optimum`` (d,): the point
    of the simplex that regret is measured against.
    """

    function: Any
    experts: int
    optimum: Any
    lipschitz: float = 1.0
    smoothness: float = 1.0
    spread: float | None = None
    state: Any = None
    multiplicity: int = 1
    kind = "gradient-losses"

    def __post_init__(self) -> None:
        d = check_experts(self.experts)
        number("lipschitz", self.lipschitz, above=0.0)
        number("smoothness", self.smoothness, at_least=0.0)
        check_multiplicity(self.multiplicity)
        if self.spread is not None:
            number("spread", self.spread, above=0.0, at_most=2.0 * self.lipschitz)
        self.optimum = array("optimum", self.optimum, shape=(d,))
        if self.optimum.min() < 0.0 or abs(self.optimum.sum() - 1.0) > 1e-9:
            raise InputError("optimum must hold weights >= 0 that add up to 1")
        self.function, self.state = user_function(
            self.function, self.state, gradient_signature, "gradient_signature"
        )

    @property
    def compiled(self) -> bool:
        """Whether the function runs without Python."""
        return hasattr(self.function, "address")

    def natural_silos(self) -> int | None:
        return None

    def facts(self, silos: int, horizon: int) -> LossFacts:
        return LossFacts(
            dimension=self.experts,
            lipschitz=self.lipschitz,
            spread=2.0 * self.lipschitz if self.spread is None else self.spread,
            smoothness=self.smoothness,
            loss_range=2.0 * self.lipschitz,
            linear=False,
            iid=True,
            multiplicity=self.multiplicity,
            notes=(
                "losses are their user's own: that they are convex and of one law is taken on "
                "trust",
            ),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        key = seed, replicate, silos, self.experts, self.function
        made: losses.Losses
        if self.compiled:
            made = losses.Compiled(*key, self.state, gradient=True)
        else:
            made = losses.Called(*key, self._check, gradient=True)
        return Adversary(made, optimum=self.optimum)

    def _check(self, result: Any) -> tuple[float, np.ndarray]:
        """What the callable returned, checked each time: it is the user's code."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("function must return (loss, gradient)")
        return number("loss", result[0]), array("gradient", result[1], shape=(self.experts,))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "function": fingerprint(self.function, self.state),
            "experts": self.experts,
            "optimum": self.optimum.tolist(),
            "lipschitz": self.lipschitz,
            "smoothness": self.smoothness,
            "spread": self.spread,
            **({} if self.multiplicity == 1 else {"multiplicity": self.multiplicity}),
        }
