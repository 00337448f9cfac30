"""A score function from another package: linear Thompson sampling.

Each round a theta is drawn from the normal law around the estimate with covariance
beta^2 V^-1, and the action is the best one for it (Agrawal and Goyal 2013, whose v is beta here).
Under lazy play the estimate and V are what was released, so the privacy is that of the protocol.
"""

from __future__ import annotations

import numba

from fastfed.plugins import normal, score_signature


@numba.cfunc(score_signature())
def thompson(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores):
    """Linear Thompson sampling: the best action for a theta drawn around the estimate."""
    features, out = numba.carray(x, (actions, dimension)), numba.carray(scores, (actions,))
    factor = numba.carray(w, (dimension, dimension))
    for i in range(dimension):
        z = beta * normal(key, i)
        for j in range(i + 1):
            theta[j] += factor[i, j] * z  # w'z has covariance V^-1
    for a in range(actions):
        out[a] = 0.0
        for j in range(dimension):
            out[a] += features[a, j] * theta[j]
    return actions
