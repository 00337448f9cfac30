"""Continual release of a running sum of vectors: the binary tree mechanism on one machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fastfed._kernels import aggregation, linalg, rng
from fastfed._random import BIAS_NOISE, check_seed
from fastfed._sampling import Normals
from fastfed._validate import InputError, Once, array, choice, integer, number, once
from fastfed.privacy import exact as exact_release
from fastfed.privacy.accounting.gdp import epsilon_of
from fastfed.privacy.certificate import (
    FLOATS,
    SAMPLER,
    SIMULATION,
    Certificate,
    Condition,
    Guarantee,
    SideCertificate,
    rounded_up,
)
from fastfed.privacy.mechanisms.catalogue import calibrate
from fastfed.privacy.releases.prefix_sums import depth, max_touches, node_level
from fastfed.privacy.sensitivity import RELATIONS, Budget, sum_sensitivity

_SOURCE = (
    "p-sum tree (Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2) with exact Gaussian "
    "accounting (Balle & Wang 2018, Theorem 8)"
)


class TreeRelease(Once):
    """Noisy running sums of vectors x_1, x_2, ... of norm at most 1, one after each vector.

    Parameters
    ----------
    dimension : int
        d.
    releases : int
        The most vectors that may be added; noise grows with the square root of its number of binary
        digits.
    epsilon, delta : float, optional
        The budget; the noise is the least that gives it.
    noise_std : float, optional
        In place of epsilon: the standard deviation of each entry of each tree node, in the units
        of x; delta is then optional and only names the certificate's.
    relation : {"replace", "zero-out"}
        Neighbouring datasets.
    noise : callable, optional
        A function that is called once with each release's number k = 1, 2, ... and returns the d
        standard normals of its node.
    seed : int, optional
        For simulations: whoever knows the seed can remove the noise. By default noise comes from
        the operating system.

    Raises
    ------
    InputError
        For values out of range, and unless exactly one of (epsilon, delta) and noise_std sets the
        noise.

    Notes
    -----
    No node's noise is drawn twice, and a copy of this object must not be used beside it.

    Guarantee: if one vector changes, all releases together are (epsilon, delta)-indistinguishable
    under the relation, also when later vectors are chosen in view of earlier releases. Each vector
    enters at most kappa = floor(log2(releases)) + 1 nodes, so this is one Gaussian mechanism of
    GDP parameter mu = sqrt(kappa) Delta / noise_std, Delta = 2 (replace) or 1 (zero-out).
    Source: Chan et al. 2011; zhou-chowdhury-2024, Algorithm 2. Unlike there, the statistic is one
    vector a step and not a pair of streams.

    Examples
    --------
    >>> total = TreeRelease(dimension=3, releases=1000, epsilon=1.0, delta=1e-6)
    >>> total.add([0.6, 0.0, 0.8]).shape
    (3,)
    """

    def __init__(
        self,
        dimension: int,
        releases: int,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_std: float | None = None,
        relation: str = "replace",
        noise: Callable[[int], Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """Check the arguments and choose the noise."""
        self.dimension = integer("dimension", dimension, at_least=1)
        # A node's number is one 32-bit word of a seeded key.
        self.releases = integer("releases", releases, at_least=1, at_most=2**32 - 1)
        self.relation = choice("relation", relation, RELATIONS)
        self.delta = None if delta is None else number("delta", delta, above=0, below=1)
        self.epsilon: float | None = None
        if (epsilon is None) == (noise_std is None):
            raise InputError(
                "exactly one of epsilon (with delta) and noise_std must be given, got "
                f"epsilon {epsilon}, noise_std {noise_std}"
            )
        if noise_std is not None:
            self.noise_std = number("noise_std", noise_std, above=0)
        else:
            self.epsilon = number("epsilon", epsilon, above=0)
            if self.delta is None:
                raise InputError("delta must be given with epsilon, got None")
            budget = Budget(self.epsilon, self.delta, self.relation, "item")
            self.noise_std = calibrate("gaussian", budget, max_touches(self.releases)).noise_std
        if noise is not None and seed is not None:
            raise InputError("noise and seed must not both be given")
        if noise is not None and not callable(noise):
            raise InputError(f"noise must be a function of the node's number, got {noise!r}")
        self._noise = noise
        self._seed = None if seed is None else check_seed(seed)
        levels = depth(self.releases)
        self._sums = np.zeros((levels, self.dimension))  # raw p-sums
        self._nodes = np.zeros((levels, self.dimension))  # what was released of them
        self._released = 0
        self._clipped = 0

    @property
    def released(self) -> int:
        """Number of vectors added so far."""
        return self._released

    @property
    def clipped(self) -> int:
        """Number of vectors whose norm was above 1 by more than rounding, scaled to 1."""
        return self._clipped

    @property
    def mu(self) -> float:
        """GDP parameter of the Gaussian mechanism that all releases together amount to."""
        touched = max_touches(self.releases)
        return math.sqrt(touched) * sum_sensitivity(self.relation) / self.noise_std

    def exact(self, delta: float | None = None) -> float:
        """Least epsilon that holds for all releases together at delta (default: the own)."""
        delta = self.delta if delta is None else delta
        if delta is None:
            raise InputError("delta must be given: this TreeRelease was made from noise_std alone")
        return epsilon_of(self.mu, number("delta", delta, above=0, below=1))

    @once
    def add(self, x: object) -> np.ndarray:
        """Add a vector; return the noisy sum of all vectors so far.

        Parameters
        ----------
        x : array_like (d,)
            Scaled to norm <= 1.

        Returns
        -------
        ndarray (d,)

        Raises
        ------
        InputError
            For a vector of another shape or not finite, and once `releases` vectors were added;
            nothing is then added and no noise drawn.
        """
        k = self._released + 1
        if k > self.releases:
            raise InputError(f"at most {self.releases} vectors can be added, got one more")
        clipped = array("x", x, shape=(self.dimension,)).copy()
        above = linalg.clip_norm(clipped, 1.0)
        level = node_level(k)
        if self._exact:
            clipped = exact_release.quantise(clipped, self._unit)
        # Rows are written again if this vector has to be added again: lower ones stay as they are.
        aggregation.psum(self._sums, clipped, level)
        self._nodes[level] = self._noisy(self._sums[level], k)
        total: np.ndarray = aggregation.prefix(self._nodes, k)
        self._released = k
        self._clipped += above
        return total

    @property
    def _exact(self) -> bool:
        """True if the noise is the operating system's, and the release of real numbers."""
        return self._noise is None and self._seed is None

    @property
    def _unit(self) -> float:
        """Unit of fixed-point vectors."""
        return exact_release.quantum(self.releases)

    def _noisy(self, values: np.ndarray, node: int) -> np.ndarray:
        """Add a node's noise to its sum."""
        d, std = self.dimension, self.noise_std
        if self._exact:
            larger = std * exact_release.inflation(self._unit, d, d)
            return exact_release.add_normals(values, np.full(d, larger), Normals(d))
        if self._noise is not None:
            normals = array("noise", self._noise(node), shape=(d,))
        else:
            assert self._seed is not None
            normals = rng.normals_f64(self._seed, BIAS_NOISE, 0, 0, node, d)
        noisy: np.ndarray = values + std * normals
        return noisy

    @property
    def certificate(self) -> Certificate:
        """Certificate of all releases, computed from the noise; unproven for a noise function.

        Raises InputError when no delta was given.
        """
        if self.delta is None:
            raise InputError("delta must be given to TreeRelease for a certificate, got None")
        known = self._noise is None
        epsilon = self.exact()
        exact = Guarantee(epsilon, self.delta)
        claimed = None if self.epsilon is None else Guarantee(self.epsilon, self.delta)
        conditions = [
            Condition("every vector is scaled to norm at most 1", True),
            Condition(f"at most {self.releases} vectors are added", True),
            Condition("every node's noise is standard normal, and drawn once", known),
        ]
        if self.epsilon is not None:
            text = (
                f"the exact epsilon of this noise, {rounded_up(epsilon)} at delta {self.delta:g} "
                f"under {self.relation}, is at most {self.epsilon:g}"
            )
            conditions.append(Condition(text, epsilon <= self.epsilon))
        caveats = [SAMPLER if self._exact else FLOATS]
        if self._seed is not None:
            caveats.append(SIMULATION)
        if not known:
            caveats.append("the noise comes from a function that was passed in, and is not known")
        model = "central: who adds the vectors is trusted, who reads the sums is not"
        shared: dict[str, Any] = {
            "relation": self.relation,
            "claimed": claimed,
            "exact": exact if known else None,
            "status": "proven" if known else "unproven",
            "noise_std": {"node": self.noise_std},
            "conditions": tuple(conditions),
            "source": _SOURCE,
        }
        # What a passed-in source draws cannot be established: the value then hangs on it.
        once = Condition("every user adds one vector only (taken on trust)", True)
        beside = {**shared, "conditions": (*conditions, once), "exact": exact}
        if not known:
            beside["status"] = "conditional"
        user = SideCertificate(unit="user", model=model, caveats=tuple(caveats), **beside)
        return Certificate(
            unit="item",
            model=f"{model}; neighbours differ in one vector",
            caveats=tuple(caveats),
            also=(user,),
            **shared,
        )
