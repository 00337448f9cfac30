"""Adversaries: sources of losses for prediction with expert advice.

Losses are stochastic, given by their gradients, oblivious (supplied by users), realizable (one
expert never loses), or the worst cases of lower bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastfed._kernels import losses as loss_kernels
from fastfed._validate import InputError, array, boolean, choice, integer, number
from fastfed.environments.base import (
    COMMON_LOSSES_CAVEAT,
    Adversary,
    LossSpec,
    best_expert,
    chances,
    check_exact_sums,
    check_experts,
    check_means,
    check_multiplicity,
    described,
)
from fastfed.environments.python import fingerprint, user_function

if TYPE_CHECKING:
    from numba.core.typing.templates import Signature

# ---- Stochastic losses ---------------------------------------------------------------------------

#: For g in {0, 1}^d, the linear loss is <g, x> and the quadratic loss is <g, x>^2 / 2.
SHAPES = ("linear", "quadratic")


@dataclass(kw_only=True)
class StochasticLosses:
    """The stochastic adversary (gao-2024, Section 2.2): independent losses of one distribution.

    In every round every client draws g in {0, 1}^d with independent entries. An entry is 1 with
    probability ``mean``, and with probability ``mean - gap`` for the best expert, which is drawn
    again for each replicate. Regret is pseudo-regret: it compares with the point of the simplex
    that has the least expected loss.

    Parameters
    ----------
    experts : int
        d.
    mean, gap : float
        Probability that an entry of g is 1, and its reduction for the best expert;
        0 <= gap <= mean <= 1.
    loss : {"linear", "quadratic"}
        <g, x>, or <g, x>^2 / 2, which is convex, 1-Lipschitz and 1-smooth in the L1 norm.

    Raises
    ------
    InputError
        For values out of range.
    """

    experts: int
    mean: float = 0.5
    gap: float = 0.1
    loss: str = "linear"
    kind = "stochastic-losses"

    def __post_init__(self) -> None:
        check_experts(self.experts)
        check_means(self.mean, self.gap)
        choice("loss", self.loss, SHAPES)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> LossSpec:
        """Return the properties of this environment for M silos and T rounds."""
        check_exact_sums(silos, horizon, 1.0)
        linear = self.loss == "linear"
        return LossSpec(
            dimension=self.experts,
            smoothness=0.0 if linear else 1.0,
            loss_range=1.0 if linear else 0.5,
            linear=linear,
            iid=True,
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        """Return the adversary of one replicate."""
        means = np.full(self.experts, self.mean)
        means[best_expert(seed, replicate, self.experts)] -= self.gap
        coins = chances(means)
        means_exact = coins / loss_kernels.CHANCES
        quadratic = self.loss == "quadratic"
        best = square_minimum(means_exact) if quadratic else float(means_exact.min())
        suboptimality: Callable[[np.ndarray], float] = (
            partial(square_suboptimality, means_exact, best)
            if quadratic
            else LinearSuboptimality(means_exact, best)
        )
        losses = loss_kernels.Coins(seed, replicate, silos, coins, quadratic=quadratic)
        return Adversary(losses, suboptimality)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


def linear_suboptimality(means: np.ndarray, best: float, x: np.ndarray) -> float:
    """Return <mu, x> - ``best``: the expected loss of weights x minus that of the best expert.

    mu (d,) is ``means``, the expected loss of each expert, and ``best`` is its minimum. Negative
    rounding errors become 0.
    """
    return max(0.0, float(means @ x) - best)


@dataclass(frozen=True)
class LinearSuboptimality:
    """The function `linear_suboptimality` with fixed means, for one point or many points.

    Parameters
    ----------
    means : ndarray, shape (d,)
        mu, the expected loss of each expert.
    best : float
        The minimum of mu.
    """

    means: np.ndarray
    best: float

    def __call__(self, x: np.ndarray) -> float:
        """Return the suboptimality of the point x (d,)."""
        return linear_suboptimality(self.means, self.best, x)

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the suboptimality (n,) of each row of ``rows`` (n, d), as `__call__` computes it.

        The n stacked products of two vectors have the same bits as n calls. One product of a matrix
        and a vector would be rounded differently.
        """
        products = (rows[:, None, :] @ self.means[:, None])[:, 0, 0]
        suboptimality: np.ndarray = np.maximum(0.0, products - self.best)
        return suboptimality


def square_loss(means: np.ndarray, x: np.ndarray) -> float:
    """Return the expected quadratic loss E[<g, x>^2] / 2 of weights x (d,).

    g (d,) is a random loss vector. Its entries are independent; entry n is 1 with probability
    mu_n = ``means[n]``, else 0. So the result is (<mu, x>^2 + sum_n x_n^2 mu_n (1 - mu_n)) / 2.
    """
    return 0.5 * (float(means @ x) ** 2 + float(x * x @ (means * (1.0 - means))))


def square_suboptimality(means: np.ndarray, best: float, x: np.ndarray) -> float:
    """Return the `square_loss` of x minus ``best``, the minimum of this loss over the simplex."""
    return max(0.0, square_loss(means, x) - best)


def square_minimum(means: np.ndarray) -> float:
    """Return the least value of ``square_loss`` over the simplex, for mu = ``means``.

    At the minimum x, the KKT conditions hold with a multiplier lambda: the partial derivative
    <mu, x> mu_n + x_n mu_n (1 - mu_n) equals lambda where x_n > 0, and is at least lambda
    elsewhere. With s = <mu, x> this means that x_n = (lambda - s mu_n)_+ / (mu_n (1 - mu_n)). So
    the support consists of the k experts with the least means, for some k. For each k, s and lambda
    solve two linear equations.
    """
    if means.min() == 0.0:
        return 0.0
    order = np.sort(means)
    candidates = [square_loss(order, np.eye(1, len(order))[0])]
    variances = order * (1.0 - order)
    # An expert that always loses has no variance. It is never better than the others.
    usable = int((variances > 0.0).sum())
    inverse = 1.0 / variances[:usable]
    ones, firsts, squares = (np.cumsum(order[:usable] ** p * inverse) for p in (0, 1, 2))
    for k in range(1, usable + 1):
        # A, B, C are the sums of mu^p / (mu (1 - mu)) over the support, for p = 0, 1, 2. The
        # equations are sum x = lambda A - s B = 1 and <mu, x> = lambda B - s C = s.
        a, b, c = ones[k - 1], firsts[k - 1], squares[k - 1]
        lam = (1.0 + c) / (a * (1.0 + c) - b * b)
        s = lam * b / (1.0 + c)
        x = np.zeros(len(order))
        x[:k] = (lam - s * order[:k]) * inverse[:k]
        if x.min() >= 0.0:
            candidates.append(square_loss(order, x / x.sum()))
    return min(candidates)


# ---- Losses given by their gradients -------------------------------------------------------------


def gradient_signature() -> Signature:
    """Return the numba signature of a compiled loss, for ``@numba.cfunc(...)``.

    The function is ``function(state, seed, replicate, silo, round, x, gradient) -> loss``. It
    returns the loss of that round at x (float64, d) and writes the gradient into ``gradient``
    (float64, d). A loss of NaN reports a failure. The argument ``state`` points to the float64
    array that is the field ``state`` of the environment. All randomness must be a function of
    (seed, replicate, silo, round).

    Returns
    -------
    numba signature
        The signature.
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    return types.float64(
        doubles, types.uint64, types.int64, types.int64, types.int64, doubles, doubles
    )


@dataclass(kw_only=True, eq=False)
class GradientLosses:
    """Losses drawn from one distribution, each convex, alpha-Lipschitz and beta-smooth in L1 norm.

    Clients clip gradients to [alpha - spread, alpha], and differences of gradients to the largest
    change that beta allows. So the noise, which is scaled to these bounds, protects users even if a
    loss violates them.

    Parameters
    ----------
    function : numba.cfunc, callable or str
        A ``numba.cfunc`` of ``gradient_signature()``, a plain callable
        ``(seed, replicate, silo, round, x) -> (loss, gradient (d,))``, or the text "module:name",
        which is imported.
    experts : int
        d.
    optimum : array_like, shape (d,)
        The point of the simplex that regret compares with.
    lipschitz, smoothness : float
        alpha and beta.
    spread : float, optional
        Coordinates of gradients lie in [alpha - spread, alpha]; 2 alpha by default.
    state : array_like, optional
        Data for a ``numba.cfunc``, passed as float64.
    multiplicity : int
        Largest number of losses, over all clients and rounds, that one record can influence.

    Raises
    ------
    InputError
        For values out of range, and if ``function`` is no function or has a different signature.
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
            self.function, self.state, gradient_signature, "seed, replicate, silo, round, x"
        )

    @property
    def compiled(self) -> bool:
        """True if the function runs without Python."""
        return hasattr(self.function, "address")

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> LossSpec:
        """Return the properties of this environment for M silos and T rounds."""
        return LossSpec(
            dimension=self.experts,
            lipschitz=self.lipschitz,
            spread=2.0 * self.lipschitz if self.spread is None else self.spread,
            smoothness=self.smoothness,
            loss_range=2.0 * self.lipschitz,
            linear=False,
            iid=True,
            multiplicity=self.multiplicity,
            notes=(
                "a user wrote the losses: that they are convex and drawn from one distribution is "
                "taken on trust",
            ),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        """Return the adversary of one replicate."""
        arguments = seed, replicate, silos, self.experts, self.function
        losses: loss_kernels.Losses
        if self.compiled:
            losses = loss_kernels.Compiled(*arguments, self.state, gradient=True)
        else:
            losses = loss_kernels.Called(*arguments, self._check, gradient=True)
        return Adversary(losses, optimum=self.optimum)

    def _check(self, result: Any) -> tuple[float, np.ndarray]:
        """Check the result of the user's function in one call, and return (loss, gradient (d,))."""
        if not isinstance(result, tuple) or len(result) != 2:
            raise InputError("function must return (loss, gradient)")
        return number("loss", result[0]), array("gradient", result[1], shape=(self.experts,))

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
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


# ---- Oblivious losses ----------------------------------------------------------------------------

#: Losses are rounded to whole multiples of this number.
LOSS_UNIT = 2.0**-24


def losses_signature() -> Signature:
    """Return the numba signature of compiled losses, for ``@numba.cfunc(...)``.

    The function is ``function(state, seed, replicate, silo, round, loss) -> status``. It writes d
    losses in [0, 1] into ``loss`` (float64, d) and returns 0, or a negative number to report a
    failure. The argument ``state`` points to the float64 array that is the field ``state`` of the
    environment. All randomness must be a function of (seed, replicate, silo, round).

    Returns
    -------
    numba signature
        The signature.
    """
    from numba import types

    doubles = types.CPointer(types.float64)
    return types.int64(doubles, types.uint64, types.int64, types.int64, types.int64, doubles)


@dataclass(kw_only=True, eq=False)
class ObliviousLosses:
    """The oblivious adversary (gao-2024, Section 2.1): losses that do not depend on decisions.

    Give either ``losses``, or ``function`` with ``experts``. Losses are in [0, 1] and rounded to
    whole multiples of 2^-24, so that their sums are exact. Regret compares with the best expert in
    hindsight.

    Parameters
    ----------
    losses : array_like, shape (T, d) or (m, T, d), or path
        Losses by round and expert, (T, d), if all clients receive the same losses. Losses by
        client, round and expert, (m, T, d), if the m clients receive different losses. A path names
        a .npy file of such an array.
    function : numba.cfunc, callable or str
        A ``numba.cfunc`` of ``losses_signature()``, a plain callable
        ``(seed, replicate, silo, round) -> losses (d,)``, or the text "module:name", which is
        imported.
    experts : int
        d. Required with ``function``, not allowed with ``losses``.
    state : array_like, optional
        Data for a ``numba.cfunc``, passed as float64.
    common : bool
        True if all clients receive the losses of silo 0. Only with ``function``.
    optimal_loss : int, optional
        L*, an upper bound of the total loss of the best expert at every client. Only with
        ``function``. For an array, declare L* in the curve: reading it from the data is not
        private.
    multiplicity : int
        Largest number of losses of one client that one record can influence. If all clients
        receive the same losses, it is multiplied by the number of clients.

    Raises
    ------
    InputError
        For values out of range, for arguments that cannot be combined, and for files that cannot
        be read.
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
                    raise InputError(f"{key} is only for function, not for losses")
            if self.common:
                raise InputError(
                    "common is only for function: losses of shape (T, d) are common to all silos"
                )
            self._table = quantise_losses(self.losses)
            return
        if self.experts is None:
            raise InputError("experts is required with function")
        check_experts(self.experts)
        self.function, self.state = user_function(
            self.function, self.state, losses_signature, "seed, replicate, silo, round"
        )
        if self.optimal_loss is not None:
            integer("optimal_loss", self.optimal_loss, at_least=0)

    @property
    def compiled(self) -> bool:
        """True if the function runs without Python."""
        return hasattr(self.function, "address")

    def natural_silos(self) -> int | None:
        """Return m if losses have shape (m, T, d) with m > 1, else None."""
        return len(self._table) if self.losses is not None and len(self._table) > 1 else None

    def facts(self, silos: int, horizon: int) -> LossSpec:
        """Return the properties of this environment for M silos and T rounds.

        ``multiplicity`` of the result is the number of losses, over all silos, that one record can
        influence. If all silos receive the same losses, it counts them at every silo.
        """
        check_exact_sums(silos, horizon, LOSS_UNIT)
        if self.losses is None:
            assert self.experts is not None
            return LossSpec(
                dimension=self.experts,
                optimal_loss=None if self.optimal_loss is None else float(self.optimal_loss),
                multiplicity=self.multiplicity * (silos if self.common else 1),
                notes=(
                    "a user's function computes the losses: its properties are taken on trust",
                    *((COMMON_LOSSES_CAVEAT,) if self.common and silos > 1 else ()),
                ),
            )
        if horizon > self._table.shape[1]:
            raise InputError(
                f"horizon must be at most {self._table.shape[1]}, the rounds of losses, "
                f"got {horizon}"
            )
        return LossSpec(
            dimension=self._table.shape[2],
            contexts_made=False,
            real_records=True,
            multiplicity=self.multiplicity * (silos if len(self._table) < silos else 1),
            notes=(COMMON_LOSSES_CAVEAT,) if len(self._table) < silos else (),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        """Return the adversary of one replicate."""
        if self.losses is not None:
            return Adversary(loss_kernels.Table(seed, replicate, silos, self._table))
        assert self.experts is not None
        arguments = seed, replicate, silos, self.experts, self.function
        if self.compiled:
            return Adversary(loss_kernels.Compiled(*arguments, self.state, common=self.common))
        return Adversary(loss_kernels.Called(*arguments, self._check, common=self.common))

    def _check(self, result: Any) -> np.ndarray:
        """Check the result of the user's function in one round, and return the losses (d,)."""
        loss = array("losses", result, shape=(self.experts,))
        if not ((loss >= 0.0) & (loss <= 1.0)).all():
            raise InputError(f"losses must be in [0, 1], got {loss.min():g} to {loss.max():g}")
        return loss

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        if self.losses is not None:
            digest = hashlib.sha256(self._table.data).hexdigest()
            shape = list(self._table.shape)
            return {"kind": self.kind, "shape": shape, "losses": digest, **self._later_fields}
        return {
            "kind": self.kind,
            "function": fingerprint(self.function, self.state),
            "experts": self.experts,
            "common": self.common,
            "optimal_loss": self.optimal_loss,
            **self._later_fields,
        }

    @property
    def _later_fields(self) -> dict[str, int]:
        """Return the entries of `describe` for fields that the first versions did not have."""
        # Leaving out the default keeps the identity of results of earlier versions.
        return {} if self.multiplicity == 1 else {"multiplicity": self.multiplicity}


def quantise_losses(losses: Any) -> np.ndarray:
    """Return losses from an array or a .npy file as multiples of 2^-24, uint32 (1 or m, T, d)."""
    if isinstance(losses, (str, Path)):
        try:
            loaded = np.load(losses, allow_pickle=False)
        except Exception as error:  # NumPy raises many kinds of errors for a damaged file
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
    table: np.ndarray = np.rint(values / LOSS_UNIT).astype(np.uint32)
    return np.ascontiguousarray(table)


# ---- Realizable losses (gao-2024, Definition 2.5) ------------------------------------------------


@dataclass(kw_only=True)
class RealizableLosses:
    """One expert never loses; others lose 1 with probability ``mean`` in each round at each client.

    The adversary is oblivious: losses do not depend on decisions. The best expert is drawn again
    for each replicate. Regret is the total loss minus the total loss of the best expert.

    Parameters
    ----------
    experts : int
        d.
    mean : float
        Probability that an expert other than the best one loses, in [0, 1].

    Raises
    ------
    InputError
        For values out of range.
    """

    experts: int
    mean: float = 0.5
    kind: ClassVar[str] = "realizable-losses"
    #: L*. The best expert loses 1 at every client in rounds 2, 4, ..., 2 L*.
    lost: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_experts(self.experts)
        number("mean", self.mean, at_least=0.0, at_most=1.0)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> LossSpec:
        """Return the properties of this environment for M silos and T rounds."""
        check_exact_sums(silos, horizon, 1.0)
        return LossSpec(dimension=self.experts, optimal_loss=float(self.lost))

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        """Return the adversary of one replicate."""
        best = best_expert(seed, replicate, self.experts)
        coins = chances(np.full(self.experts, self.mean))
        losses = loss_kernels.Coins(seed, replicate, silos, coins, planned=best, lost=self.lost)
        return Adversary(losses)

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)


@dataclass(kw_only=True)
class NearRealizableLosses(RealizableLosses):
    """Realizable losses, except that the best expert loses 1 at every client in L* early rounds.

    It loses in rounds 2, 4, ..., 2 L*, when clients know little about the experts.

    Parameters
    ----------
    optimal_loss : int
        L*.
    experts, mean
        See ``RealizableLosses``.

    Raises
    ------
    InputError
        For values out of range.
    """

    optimal_loss: int
    kind: ClassVar[str] = "near-realizable-losses"

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("optimal_loss", self.optimal_loss, at_least=0, at_most=2**32)

    @property
    def lost(self) -> int:  # type: ignore[override]
        """Number of rounds in which the best expert loses (L*)."""
        return self.optimal_loss


# ---- Losses of the lower bounds ------------------------------------------------------------------

THEOREMS = ("2.4", "2.7")


@dataclass(kw_only=True)
class LowerBoundLosses:
    """Adversaries that prove the lower bounds of gao-2024, Theorems 2.4 and 2.7.

    "2.4": in each round the loss of every expert is 0 or 1 with probability 1/2, the same at all
    clients (Theorem C.1, after Cesa-Bianchi and Lugosi 2006, Theorem 3.7). Every policy loses T/2
    in expectation, and the best expert in hindsight loses less. So the regret per client does not
    decrease with the number of clients.

    "2.7": in the first ``burst`` rounds all experts except the best one, drawn at random, lose 1 at
    every client. After these rounds no expert loses. Without privacy one round would reveal the
    best expert; with privacy it takes more rounds.

    Parameters
    ----------
    experts : int
        d.
    theorem : {"2.4", "2.7"}
        The theorem.
    burst : int
        Number of rounds with losses. Required for "2.7", not allowed for "2.4".

    Raises
    ------
    InputError
        For values out of range.
    """

    experts: int
    theorem: str = "2.4"
    burst: int | None = None
    kind = "lower-bound-losses"

    def __post_init__(self) -> None:
        check_experts(self.experts)
        choice("theorem", self.theorem, THEOREMS)
        if (self.theorem == "2.7") != (self.burst is not None):
            raise InputError(
                'theorem = "2.7" needs burst, a number of rounds, and no other theorem takes it'
            )
        if self.burst is not None:
            integer("burst", self.burst, at_least=1, at_most=2**32)

    def natural_silos(self) -> int | None:
        """Return None: any number of silos is allowed."""
        return None

    def facts(self, silos: int, horizon: int) -> LossSpec:
        """Return the properties of this environment for M silos and T rounds."""
        check_exact_sums(silos, horizon, 1.0)
        return LossSpec(
            dimension=self.experts,
            optimal_loss=0.0 if self.theorem == "2.7" else None,
            multiplicity=silos,
            notes=(COMMON_LOSSES_CAVEAT,) if silos > 1 else (),
        )

    def open(self, seed: int, replicate: int, silos: int) -> Adversary:
        """Return the adversary of one replicate."""
        means = np.full(self.experts, 0.5 if self.theorem == "2.4" else 1.0)
        if self.theorem == "2.7":
            means[best_expert(seed, replicate, self.experts)] = 0.0
        return Adversary(
            loss_kernels.Coins(seed, replicate, silos, chances(means), common=True, last=self.burst)
        )

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify this environment."""
        return described(self)
