"""Compiled hot paths, and beside them NumPy twins with the same signatures.

This module is the only door to either. Kernels import nothing of ours and trust their inputs;
``fastfed.kernels`` is the validated face.
"""

from fastfed._kernels import _native as native

__all__ = ["native"]
