"""What the systems of experts have in common: their entries of the registry."""

from __future__ import annotations

from fastfed import _system
from fastfed._system import System

__all__ = ["Algorithm", "System"]


class Algorithm(_system.Algorithm):
    """A system of a paper that predicts from experts: it meets losses, no contexts."""
