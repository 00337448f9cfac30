"""Deprecated name of `fastfed.counter_rng`, to be removed in 0.3."""

from __future__ import annotations

import warnings

from fastfed.counter_rng import key_of, normal, uniform

__all__ = ["key_of", "normal", "uniform"]

warnings.warn(
    "fastfed.keyed is deprecated: use fastfed.counter_rng", DeprecationWarning, stacklevel=2
)
