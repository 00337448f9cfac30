"""A continual release of a running sum of vectors: the binary tree mechanism on one machine."""

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
    EXACT_NOISE_CAVEAT,
    FLOATS_CAVEAT,
    SIMULATION_CAVEAT,
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
    """A running sum of vectors x_1, x_2, ... of norm at most 1, released after each vector.

    Parameters
    ----------
    dimension : int
        d, the length of a vector.
    releases : int
        K, the largest number of vectors that can be added. The noise std grows with the square
        root of the number of binary digits of K.
    epsilon, delta : float, optional
        The budget. The noise is the least noise that meets it.
    noise_std : float, optional
        Instead of epsilon: the standard deviation of each entry of each tree node, in the units
        of x. delta is then optional, and only the certificate uses it.
    relation : {"replace", "zero-out"}
        Neighbouring datasets.
    noise : callable, optional
        Returns the d standard normals of a node. It is called once for each release, with its
        number k = 1, 2, ....
    seed : int, optional
        Seed of the noise, for simulations: whoever knows it can remove the noise. By default noise
        comes from the operating system.

    Raises
    ------
    InputError
        For values out of range, and unless exactly one of epsilon and noise_std is given.

    Notes
    -----
    The noise of each node is drawn once. Do not use a copy of this object in addition to the
    original: two copies would release two noisy views of the same data.

    Guarantee: if one vector changes, all releases together are (epsilon, delta)-indistinguishable
    under the relation, even if later vectors depend on earlier releases. Each vector enters at most
    kappa = floor(log2(releases)) + 1 nodes, so this is one Gaussian mechanism of GDP parameter
    mu = sqrt(kappa) Delta / noise_std, with Delta = 2 (replace) or 1 (zero-out). Source: Chan et
    al. 2011; zhou-chowdhury-2024, Algorithm 2, but with one vector per step instead of two streams.

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
        """Check the arguments and calibrate the noise."""
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
        self._nodes = np.zeros((levels, self.dimension))  # noisy p-sums, as released
        self._released = 0
        self._clipped = 0

    @property
    def released(self) -> int:
        """Return the number of vectors added so far."""
        return self._released

    @property
    def clipped(self) -> int:
        """Return the number of vectors that were clipped because their norm was above 1."""
        return self._clipped

    @property
    def mu(self) -> float:
        """Return the GDP parameter of all releases together."""
        nodes_per_vector = max_touches(self.releases)
        return math.sqrt(nodes_per_vector) * sum_sensitivity(self.relation) / self.noise_std

    def exact(self, delta: float | None = None) -> float:
        """Return the least epsilon of all releases, at ``delta`` (default: the object's delta)."""
        delta = self.delta if delta is None else delta
        if delta is None:
            raise InputError("delta must be given: this TreeRelease was made from noise_std alone")
        return epsilon_of(self.mu, number("delta", delta, above=0, below=1))

    @once
    def add(self, x: object) -> np.ndarray:
        """Add a vector and return the noisy sum of all vectors so far.

        Parameters
        ----------
        x : array_like (d,)
            The vector; it is clipped to norm 1.

        Raises
        ------
        InputError
            For a vector of a wrong shape or with entries that are not finite, and if ``releases``
            vectors have been added. Nothing is added then, and no noise is drawn.
        """
        k = self._released + 1
        if k > self.releases:
            raise InputError(f"at most {self.releases} vectors can be added, got one more")
        clipped = array("x", x, shape=(self.dimension,)).copy()
        is_clipped = linalg.clip_norm(clipped, 1.0)
        level = node_level(k)
        if self._is_exact:
            clipped = exact_release.quantise(clipped, self._unit)
        # If the noise source raises an error, the same vector can be added again: the second call
        # overwrites this level, and leaves the other levels unchanged.
        aggregation.psum(self._sums, clipped, level)
        self._nodes[level] = self._add_noise(self._sums[level], k)
        total: np.ndarray = aggregation.prefix(self._nodes, k)
        self._released = k
        self._clipped += is_clipped
        return total

    @property
    def _is_exact(self) -> bool:
        """Return True if the noise comes from the operating system and releases are exact."""
        return self._noise is None and self._seed is None

    @property
    def _unit(self) -> float:
        """Return the grid to which exact releases round the entries of vectors."""
        return exact_release.quantum(self.releases)

    def _add_noise(self, values: np.ndarray, node: int) -> np.ndarray:
        """Return ``values`` (d,), the sum of a node, plus the noise of this node.

        ``node`` is the node's number.
        """
        d, std = self.dimension, self.noise_std
        if self._is_exact:
            inflated_std = std * exact_release.inflation(self._unit, d, d)
            return exact_release.add_normals(values, np.full(d, inflated_std), Normals(d))
        if self._noise is not None:
            normals = array("noise", self._noise(node), shape=(d,))
        else:
            assert self._seed is not None
            normals = rng.normals_f64(self._seed, BIAS_NOISE, 0, 0, node, d)
        noisy_sum: np.ndarray = values + std * normals
        return noisy_sum

    @property
    def certificate(self) -> Certificate:
        """Return the certificate of all releases, computed from the noise.

        Its status is "unproven" for a noise function. Raises InputError without delta.
        """
        if self.delta is None:
            raise InputError("delta must be given to TreeRelease for a certificate, got None")
        noise_is_known = self._noise is None
        epsilon = self.exact()
        exact = Guarantee(epsilon, self.delta)
        claimed = None if self.epsilon is None else Guarantee(self.epsilon, self.delta)
        conditions = [
            Condition("every vector is scaled to norm at most 1", True),
            Condition(f"at most {self.releases} vectors are added", True),
            Condition("every node's noise is standard normal, and drawn once", noise_is_known),
        ]
        if self.epsilon is not None:
            text = (
                f"the exact epsilon of this noise, {rounded_up(epsilon)} at delta {self.delta:g} "
                f"under {self.relation}, is at most {self.epsilon:g}"
            )
            conditions.append(Condition(text, epsilon <= self.epsilon))
        caveats = [EXACT_NOISE_CAVEAT if self._is_exact else FLOATS_CAVEAT]
        if self._seed is not None:
            caveats.append(SIMULATION_CAVEAT)
        if not noise_is_known:
            caveats.append("the noise comes from a given function, so its distribution is unknown")
        model = "central: whoever adds the vectors is trusted, readers of the sums are not"
        shared: dict[str, Any] = {
            "relation": self.relation,
            "claimed": claimed,
            "exact": exact if noise_is_known else None,
            "status": "proven" if noise_is_known else "unproven",
            "noise_std": {"node": self.noise_std},
            "conditions": tuple(conditions),
            "source": _SOURCE,
        }
        # It is unknown what a given noise function draws. So for users the exact value holds only
        # under the condition that the function draws standard normals.
        one_vector = Condition("every user adds one vector only (taken on trust)", True)
        user_fields = {**shared, "conditions": (*conditions, one_vector), "exact": exact}
        if not noise_is_known:
            user_fields["status"] = "conditional"
        user = SideCertificate(unit="user", model=model, caveats=tuple(caveats), **user_fields)
        return Certificate(
            unit="item",
            model=f"{model}; neighbours differ in one vector",
            caveats=tuple(caveats),
            also=(user,),
            **shared,
        )
