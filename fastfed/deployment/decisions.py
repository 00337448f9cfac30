"""Decisions of a silo: what its application is told, and what is kept of each until it ends."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Decision:
    """An action for one person, durable before the application hears of it.

    Parameters
    ----------
    id : str
        To be named with the reward.
    action : int
        Index of the row to play.
    propensity : float
        The chance that this action had.
    model : int
        The release that chose it.
    learns : bool
        True if its reward will enter a report.
    name : str
        The action's, of a plan with columns of records; ``action`` is then its index there.
    """

    id: str
    action: int
    propensity: float
    model: int
    learns: bool
    name: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a decision. offer: digest of the rows offered; x: the features played."""

    action: int
    propensity: float
    model: int
    learns: bool
    time: float
    x: bytes
    offer: bytes
    subject: bytes


class Ended(msgspec.Struct, frozen=True, array_like=True):
    """How a decision ended: its reward and the leaf it entered, 0 for none."""

    leaf: int
    reward: float | None
    time: float
    why: str = ""
