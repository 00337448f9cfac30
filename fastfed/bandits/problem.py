"""The problem that a linear bandit system is built for."""

from __future__ import annotations

from dataclasses import dataclass

from fastfed.privacy.certificate import Condition


@dataclass(frozen=True)
class ProblemSpec:
    """Sizes and guarantees that a system may use before the first round: no data.

    Parameters
    ----------
    silos : int
        M, the number of silos.
    horizon : int
        T, rounds at each silo.
    dimension : int
        d, the length of a feature vector.
    reward_scale : float, default 0.5
        R, the sub-Gaussian scale of the reward noise.
    noise_free : bool, default False
        True if rewards are their own mean, as on pools read from files.
    reward_range : (float, float) or None, default (0, 1)
        An interval that holds every reward, or None.
    linear : bool, default True
        True if the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    features_bounded : bool, default True
        True if ||x|| <= 1 before any clipping.
    multiplicity : int, default 1
        The most times that one record can be served.
    notes : tuple of str
        Caveats about the data for readers of the certificate.
    conditions : tuple of Condition
        Further conditions of every guarantee, and whether they hold.
    """

    silos: int
    horizon: int
    dimension: int
    reward_scale: float = 0.5
    noise_free: bool = False
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    linear: bool = True
    features_bounded: bool = True
    multiplicity: int = 1
    notes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
