"""NumPy twins of the compiled leaf functions: the same names, signatures and answers.

Written to be read, and slow. Random streams agree with the compiled ones bit for bit (the same
operations in the same order); sums of the linear algebra may differ in the last bits, so `select`
may differ where two scores agree to about 1e-13 of their size, and nowhere else.
"""

from fastfed._kernels.twins.bits import (
    binomials,
    binomials_from_words,
    encode_bits,
    round_point,
    round_points,
    shuffle_bits,
    touched_levels,
)
from fastfed._kernels.twins.linalg import (
    accumulate,
    clip_norm,
    factor,
    log_det,
    observe,
    rank_one,
    scores,
    select,
    sherman_morrison,
    solve,
)
from fastfed._kernels.twins.protocol import (
    add,
    add_noise,
    node_level,
    node_normals,
    prefix,
    psum,
    radius_at,
    refresh,
    scale,
)
from fastfed._kernels.twins.random import (
    below,
    log,
    normals_f32,
    normals_f64,
    normals_from_bits,
    permutation,
    philox,
    philox_block,
    stream_key,
    uniform,
    words,
)

__all__ = [
    "accumulate",
    "add",
    "add_noise",
    "below",
    "binomials",
    "binomials_from_words",
    "clip_norm",
    "encode_bits",
    "factor",
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
    "round_point",
    "round_points",
    "scale",
    "scores",
    "select",
    "sherman_morrison",
    "shuffle_bits",
    "solve",
    "stream_key",
    "touched_levels",
    "uniform",
    "words",
]
