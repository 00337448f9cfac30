"""Compiled hot paths, and beside them NumPy twins with the same signatures.

This module is the only door to either. Kernels import nothing of ours and trust their inputs;
``fastfed.kernels`` is the validated face.
"""

from __future__ import annotations

from types import ModuleType

from fastfed._kernels import _losses as losses
from fastfed._kernels import _native as native

__all__ = ["implementation", "losses", "native"]


def implementation(use_native: bool = True) -> ModuleType:
    """The compiled leaf functions, or their NumPy twins, which load when first asked for."""
    if use_native:
        return native
    from fastfed._kernels import twins

    return twins
