"""Losses that were fixed in advance: an array, a file, or a function of silo and round."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fastfed._kernels import losses as loss_kernels
from fastfed._validate import InputError, array, boolean, integer
from fastfed.environments.losses import (
    COMMON,
    Adversary,
    LossFacts,
    check_countable,
    check_experts,
    check_multiplicity,
)
from fastfed.environments.python import fingerprint, user_function

UNIT = 2.0**-24


def losses_signature() -> Any:
    """The numba signature of compiled losses, for ``@numba.cfunc(...)``.

    ``function(state, seed, replicate, silo, round, loss) -> status``: write d losses in [0, 1] into
    loss (float64, d) and return 0; a negative number reports a failure. ``state`` points at the
    float64 array given as ``state``. All randomness must come from (seed, replicate, silo, round).
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    return types.int64(doubles, types.uint64, types.int64, types.int64, types.int64, doubles)


@dataclass(kw_only=True, eq=False)
class ObliviousLosses:
    """The oblivious adversary (gao-2024, Section 2.1): losses that do not look at what is played.

    Either ``losses``, an array (T, d) that all clients meet or (m, T, d), or the path of such a
    .npy file; or ``function`` with ``experts`` = d: a ``numba.cfunc`` of ``losses_signature()``, a
    plain callable ``(seed, replicate, silo, round) -> losses (d,)``, or in a spec the text
    "module:name". Losses are in [0, 1] and taken as whole multiples of 2^-24, so that their sums
    are exact. ``common``: a function's losses are those of silo 0 for all. ``optimal_loss``: L*, if
    the best expert is known to lose at most so much at every client; of an array a curve must say
    it, for privacy allows no look. ``multiplicity``: how many losses of one client one record can
    be behind (1); where all clients meet the same losses each of them counts. Regret is against
    the best expert in hindsight.
    """

    losses: Any = None
    function: Any = None
    experts: int | None = None
    state: Any = None
    common: bool = False
    optimal_loss: int | None = None
    multiplicity: int = 1
    kind = "oblivious-losses"
    _table: np.ndarray = field(init=False, repr=False, default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if (self.losses is None) == (self.function is None):
            raise InputError("give either losses, an array or a .npy file, or function")
        boolean("common", self.common)
        check_multiplicity(self.multiplicity)
        if self.losses is not None:
            for key in ("experts", "state", "optimal_loss"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} goes with function, not with losses")
            if self.common:
                raise InputError("common goes with function; losses (T, d) are common")
            self._table = quantised(self.losses)
            return
        if self.experts is None:
            raise InputError("experts is required with function")
        check_experts(self.experts)
        self.function, self.state = user_function(
            self.function, self.state, losses_signature, "losses_signature"
        )
        if self.optimal_loss is not None:
            integer("optimal_loss", self.optimal_loss, at_least=0)

    @property
    def compiled(self) -> bool:
        """Whether the function runs without Python."""
        return hasattr(self.function, "address")

    def natural_silos(self) -> int | None:
        return len(self._table) if self.losses is not None and len(self._table) > 1 else None

    def facts(self, silos: int, horizon: int) -> LossFacts:
        check_countable(silos, horizon, UNIT)
        if self.losses is None:
            assert self.experts is not None
            return LossFacts(
                dimension=self.experts,
                optimal_loss=None if self.optimal_loss is None else float(self.optimal_loss),
                multiplicity=self.multiplicity * (silos if self.common else 1),
                notes=(
                    "losses are made by a user's function: taken on trust",
                    *((COMMON,) if self.common and silos > 1 else ()),
                ),
            )
        if horizon > self._table.shape[1]:
            raise InputError(
                f"horizon must be at most {self._table.shape[1]}, the rounds of losses, "
                f"got {horizon}"
            )
        return LossFacts(
            dimension=self._table.shape[2],
            contexts_made=False,
            real_records=True,
            multiplicity=self.multiplicity * (silos if len(self._table) < silos else 1),
            notes=(COMMON,) if len(self._table) < silos else (),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        if self.losses is not None:
            return Adversary(loss_kernels.Table(seed, replicate, silos, self._table))
        assert self.experts is not None
        key = seed, replicate, silos, self.experts, self.function
        if self.compiled:
            return Adversary(loss_kernels.Compiled(*key, self.state, common=self.common))
        return Adversary(loss_kernels.Called(*key, self._check, common=self.common))

    def _check(self, result: Any) -> np.ndarray:
        """What the callable returned, checked each round: it is the user's code."""
        loss = array("losses", result, shape=(self.experts,))
        if not ((loss >= 0.0) & (loss <= 1.0)).all():
            raise InputError(f"losses must be in [0, 1], got {loss.min():g} to {loss.max():g}")
        return loss

    def describe(self) -> dict[str, Any]:
        if self.losses is not None:
            digest = hashlib.sha256(self._table.data).hexdigest()
            shape = list(self._table.shape)
            return {"kind": self.kind, "shape": shape, "losses": digest, **self._declared}
        return {
            "kind": self.kind,
            "function": fingerprint(self.function, self.state),
            "experts": self.experts,
            "common": self.common,
            "optimal_loss": self.optimal_loss,
            **self._declared,
        }

    @property
    def _declared(self) -> dict[str, int]:
        # The usual one is left out: stored results of earlier versions keep their identity.
        return {} if self.multiplicity == 1 else {"multiplicity": self.multiplicity}


def quantised(losses: Any) -> np.ndarray:
    """An array or .npy file of losses in [0, 1] as multiples of 2^-24, (1 or m, T, d) uint32."""
    if isinstance(losses, (str, Path)):
        try:
            loaded = np.load(losses, allow_pickle=False)
        except Exception as error:  # a damaged file makes NumPy raise a dozen kinds of errors
            raise InputError(f"losses {str(losses)!r} cannot be read: {error}") from None
        if not isinstance(loaded, np.ndarray):
            raise InputError(f"losses {str(losses)!r} must be a .npy file of one array")
        losses = loaded
    values = array("losses", losses)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or 0 in values.shape:
        raise InputError(f"losses must have shape (T, d) or (m, T, d), got {values.shape}")
    check_experts(values.shape[2])
    if not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError(f"losses must be in [0, 1], got {values.min():g} to {values.max():g}")
    table: np.ndarray = np.rint(values / UNIT).astype(np.uint32)
    return np.ascontiguousarray(table)
