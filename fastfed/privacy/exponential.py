"""The exponential mechanism: one candidate out of many, cheap ones more often.

Source: McSherry & Talwar 2007; bounded range: Durfee & Rogers 2019.
"""

from __future__ import annotations

import msgspec
import numpy as np

from fastfed._sampling import Uniforms
from fastfed._validate import InputError, array, number
from fastfed.privacy import exact


class Exponential(msgspec.Struct, frozen=True):
    """Chooses candidate i with probability proportional to exp(-eta cost_i / (2 sensitivity)).

    eta: > 0. sensitivity: > 0, the most that neighbouring datasets change any cost.

    Guarantee: (eta, 0), for the unit and relation that the sensitivity is of; more precisely,
    range bounded by eta: ln(P(i)/Q(i)) - ln(P(j)/Q(j)) <= eta for all i, j. That is worth
    eta^2/8-zCDP, a quarter of what eta-DP alone is worth (Cesar & Rogers 2021; see
    composition.rho_of_bounded_range).
    """

    eta: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        number("eta", self.eta, above=0)
        number("sensitivity", self.sensitivity, above=0)

    def log_probabilities(self, costs: object) -> np.ndarray:
        """ln P(i) (n,) of n >= 1 finite costs, also where P(i) itself underflows."""
        cost = array("costs", costs, ndim=1)
        if not len(cost):
            raise InputError("costs must hold at least one candidate, got shape (0,)")
        # Differences first: a large common part of the costs must not cost digits.
        weights = (cost.min() - cost) * (self.eta / (2.0 * self.sensitivity))
        result: np.ndarray = weights - np.log(np.exp(weights).sum())
        return result

    def probabilities(self, costs: object) -> np.ndarray:
        """P(i) (n,)."""
        result: np.ndarray = np.exp(self.log_probabilities(costs))
        return result

    def choose(self, costs: object, uniform: float | None = None) -> int:
        """Index of a candidate, by inverting the cdf at one uniform in (0, 1).

        By default the uniform is the operating system's, of as many bits as it takes to choose as
        with real weights; a given one is for simulations.
        """
        if uniform is None:
            return self.choose_exactly(costs, Uniforms(1))
        u = number("uniform", uniform, above=0, below=1)
        cdf = np.cumsum(self.probabilities(costs))
        # Rescaled by its last entry, 1 but for rounding: no uniform falls off the end.
        return int(np.searchsorted(cdf, u * cdf[-1], side="left"))

    def choose_exactly(self, costs: object, draw: Uniforms) -> int:
        """The same from a uniform whose bits go on for ever."""
        cost = array("costs", costs, ndim=1)
        rate = self.eta / (2.0 * self.sensitivity)
        at, _ = exact.choose(cost, rate, np.ones(len(cost), dtype=np.int64), draw)
        return at

    def choose_gumbel(self, costs: object, uniforms: object) -> int:
        """The same law from n uniforms in (0, 1), as the largest of noisy scores (Gumbel-max).

        Never forms a probability, so candidates whose own underflows keep their order.
        """
        logs = self.log_probabilities(costs)
        u = array("uniforms", uniforms, shape=logs.shape)
        if not ((u > 0.0) & (u < 1.0)).all():
            raise InputError(f"uniforms must be > 0 and < 1, got {u.min()} to {u.max()}")
        return int(np.argmax(logs - np.log(-np.log(u))))
