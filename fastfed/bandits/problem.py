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
    linear_by_silo : bool, default False
        True if it is so at each silo with a theta* of its own, which is all that a silo alone
        needs; ``linear`` implies it.
    features_bounded : bool, default True
        True if ||x|| <= 1 before any clipping.
    intercept : float, optional
        kappa, where the last feature is the constant 1 / sqrt(2 kappa) in every action, and the
        others have a norm of at most 1 / sqrt 2.
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
    intercept: float | None = None
    multiplicity: int = 1
    notes: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    linear_by_silo: bool = False
