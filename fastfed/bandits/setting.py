"""The problem a linear bandit is put to: sizes and what the environment guarantees."""

from __future__ import annotations

from dataclasses import dataclass

from fastfed.privacy.certificate import Condition


@dataclass(frozen=True)
class ProblemSpec:
    """What a system may know before the first round; no data, only guarantees about them."""

    silos: int  # M
    horizon: int  # T
    dimension: int  # d
    #: Sub-Gaussian scale R of the reward noise.
    reward_scale: float = 0.5
    #: Whether rewards are their own mean (no noise), as on pools read from files.
    noise_free: bool = False
    #: Interval every reward lies in, or None when there is none.
    reward_range: tuple[float, float] | None = (0.0, 1.0)
    #: Whether the expected reward is <x, theta*> with ||theta*|| <= 1 and ||x|| <= 1.
    linear: bool = True
    #: Whether ||x|| <= 1 is guaranteed before any clipping.
    features_bounded: bool = True
    #: How often one record can be served.
    multiplicity: int = 1
    #: What a reader of the certificate should know about the data.
    notes: tuple[str, ...] = ()
    #: What every guarantee rests on beside these bounds, and whether it holds.
    conditions: tuple[Condition, ...] = ()
