"""Compiled kernels as plain functions with checked arguments: arrays in, arrays out.

A positive definite V (d, d) is given by its inverse factor W = L^{-1}, where V = L L'. W is lower
triangular, V^{-1} = W'W and ||x||_{V^-1} = ||W x||: ``factor = inverse_factor(V)``.

Inputs may be read-only, with any strides and real dtype; they are converted to float64 if
necessary. Arguments that are updated in place must be writable C-contiguous float64 arrays. All
functions raise InputError for invalid input, and if sums, scores or solutions of finite numbers
overflow float64. For arguments that need no conversion (float64, C-contiguous; actions float32 or
float64 with any strides) the checks take less than a microsecond, plus the check of the values.

Checking that a matrix is symmetric, or is an inverse factor, can take longer than using it.
``trusted=True`` skips the check of the values (but not of type and shape) of arrays that describe
the model: gram and bias, inverse, factor and theta, V. Rows, actions and rewards are always
checked.

Rows x (n, d) with y (n,) are processed in order, with the same bits as n calls. Actions (n, K, d)
are n sets; V (m, d, d) and factor (m, d, d) are stacks of m models.

Inside ``@numba.njit`` the functions of rows and scores, and normals, may be called with the same
arguments (`fastfed.kernels.numba`). ``from fastfed cimport kernels`` has them for Cython.
"""

from __future__ import annotations

from fastfed._kernels import checked as _checked
from fastfed.kernels.noise import encode_bits, normals, shuffle_bits, tree_noise
from fastfed.kernels.regression import (
    factor_update,
    inverse_factor,
    rank_one_update,
    sherman_morrison,
    solve,
)
from fastfed.kernels.scores import ucb_argmax, ucb_scores

__all__ = [
    "encode_bits",
    "factor_update",
    "inverse_factor",
    "normals",
    "rank_one_update",
    "sherman_morrison",
    "shuffle_bits",
    "solve",
    "tree_noise",
    "ucb_argmax",
    "ucb_scores",
]

#: Cython finds the functions of ``__init__.pxd`` here.
__pyx_capi__ = _checked.__pyx_capi__
