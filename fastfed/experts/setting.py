"""The problem that experts' systems are put to: sizes, and what the adversary guarantees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """What a system may know before the first round; no losses, only guarantees about them."""

    silos: int  # m clients
    horizon: int  # T
    experts: int  # d
    #: alpha: no coordinate of a gradient is larger (Lipschitz in the L1 norm).
    lipschitz: float = 1.0
    #: Length of the interval that every coordinate of every gradient lies in, at most 2 alpha.
    spread: float = 1.0
    #: beta: gradients are beta-Lipschitz from the L1 to the maximum norm; 0 of linear losses.
    smoothness: float = 0.0
    #: What a loss exceeds its least value on the simplex by at most.
    loss_range: float = 1.0
    #: Whether a loss is <l, x> with l in [0, 1]^d.
    linear: bool = True
    #: Whether losses are drawn independently from one law.
    iid: bool = False
    #: L*: the best expert loses at most so much at any client, if that is guaranteed.
    optimal_loss: float | None = None
    #: How many losses, of any clients in any rounds, one record can be behind.
    multiplicity: int = 1
    #: What a reader of the certificate should know about the losses.
    notes: tuple[str, ...] = ()
