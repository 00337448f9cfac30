"""NumPy twins of the compiled leaf functions: the same names, signatures and answers.

The twins are easy to read, and slow. Their random streams agree with the compiled ones bit for bit
(the same operations in the same order); sums of the linear algebra may differ in the last bits, so
`select` may differ where two scores agree to about 1e-13 of their size, and nowhere else.
"""

import sys

from twins.bits import (
    binomials,
    binomials_from_words,
    encode_bits,
    round_point,
    round_points,
    shuffle_bits,
    touched_levels,
)
from twins.linalg import (
    accumulate,
    clip_norm,
    factor,
    hadamard,
    least_squares,
    log_det,
    observe,
    rank_one,
    scores,
    select,
    sherman_morrison,
    solve,
)
from twins.protocol import (
    add,
    add_noise,
    choose_regularizer,
    determinant_radius,
    honaker,
    honaker_number,
    inverse_norm,
    node_level,
    node_normals,
    prefix,
    psum,
    radius_at,
    refresh,
    round_noisy,
    row_width,
    scale,
    slack,
    sum_normals,
    toeplitz,
    tree,
    weighted_sum,
)
from twins.random import (
    ideal_laplace,
    ideal_normals,
    log,
    normals_f32,
    normals_f64,
    normals_from_bits,
    permutation,
    philox,
    philox_block,
    random_u32,
    stream_key,
    uniform,
    uniform_int,
)

__all__ = [
    "accumulate",
    "add",
    "add_noise",
    "uniform_int",
    "binomials",
    "binomials_from_words",
    "choose_regularizer",
    "clip_norm",
    "determinant_radius",
    "encode_bits",
    "factor",
    "hadamard",
    "honaker",
    "honaker_number",
    "inverse_norm",
    "row_width",
    "slack",
    "ideal_laplace",
    "ideal_normals",
    "least_squares",
    "log",
    "log_det",
    "node_level",
    "node_normals",
    "normals_f32",
    "normals_f64",
    "normals_from_bits",
    "observe",
    "permutation",
    "philox",
    "philox_block",
    "prefix",
    "psum",
    "radius_at",
    "rank_one",
    "refresh",
    "round_noisy",
    "round_point",
    "round_points",
    "scale",
    "scores",
    "select",
    "sherman_morrison",
    "shuffle_bits",
    "solve",
    "stream_key",
    "sum_normals",
    "toeplitz",
    "weighted_sum",
    "touched_levels",
    "tree",
    "uniform",
    "random_u32",
]


class _NeverReady:
    """Replace the kernels that check their own arguments: all functions but `tree` return None."""

    tree = staticmethod(tree)

    def __getattr__(self, name):
        """Return a function that returns None for all arguments."""
        return lambda *arguments: None


def stand_in(monkeypatch) -> None:
    """Let ``fastfed.kernels`` call the twins instead of the compiled functions."""
    from fastfed.kernels import noise, regression, scores

    this = sys.modules[__name__]
    for module in (noise, regression, scores):
        monkeypatch.setattr(module, "checked", _NeverReady())
        for name in ("rng", "linalg", "aggregation"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, this)
