"""A regret bound with all its constants, for the direct radius: what a run truly promises.

The bounds of ``bounds.py`` are orders; this one is a number, and often vacuous. Proof, with the
notation of docs/radius.md, on its three events (probability 1 - alpha):

1. In a round the regret is at most 2 w, w = beta ||x||_{V^-1} + gamma ||V^-1 x||, times the
   radius' multiplier, which is at least 1.
2. Let A = G + c I. Where lambda is full, V >= A >= c I and f = 1. Where it was lowered, A <= f V,
   f <= 2, and V >= phi I with phi = n + c. So w <= C ||x||_{A^-1} with
   C = max(beta_1 + gamma / sqrt(c), sqrt(2) (beta_2 + gamma / sqrt(n + c))), gamma <= n + c + E.
3. V <= G + (2 n + c) I, whose trace is at most rows + d (2 n + c): this bounds ln det V and with it
   beta_f = R sqrt(f (2 ln(1 / alpha') + ln det V + d ln(f / c))).
4. A batch adds to A the rows of M B rounds. L is ln of the growth of det A over it; all L add up to
   at most Lambda = d ln(1 + rows / (d c)). Where L <= ln 2, sum ||x||^2_{A^-1} over the batch is at
   most 2 sum ||x||^2 by the A after it, which is at most 2 L (1 - 1/r <= ln r for each eigenvalue
   r); so its regret is at most 2 C sqrt(2 M B L), by Cauchy and Schwarz. Batches with L > ln 2
   number at most Lambda / ln 2, and cost at most M B each.
5. Cauchy and Schwarz over batches: M B Lambda / ln 2 + 2 sqrt(2 Lambda sum_k M B_k C_k^2).

A silo alone adds one row at a time, at most doubling det A: the same with M = B = 1 and no bad
batch.
"""

from __future__ import annotations

import math

import numpy as np

from fastfed.bandits.theory import Theory
from fastfed.protocols.plan import Plan


def direct_regret_bound(plan: Plan, theory: Theory) -> float | None:
    """Bound on the group regret, which holds with probability 1 - failure_probability.

    None where no proof covers the run: another radius, a multiplier below 1, rewards or features
    that break the theory's conditions, eager play of a federation, or a schedule of the data's.
    At least M T means vacuous: regret in a round is at most 1 where rewards lie in [0, 1].
    """
    radius = plan.radius
    eager = plan.batch_size > 1 and not plan.lazy
    if not theory.proven or not radius.direct or eager or plan.trigger or plan.policy != "ucb":
        return None
    d, c = plan.dimension, radius.anchor
    alone = plan.batch_size == 0
    batch = plan.batch_size or 1
    rows = (1 if alone else plan.silos) * batch
    starts = np.arange(0, plan.horizon, batch)
    entry = np.minimum(starts // batch, len(radius.error_bound) - 1)
    n = np.maximum(theory.regularizer[entry] - c, 0.0)
    gamma = n + c + radius.error_bound[entry]
    seen = rows * (starts // batch) / d

    def beta(f: float) -> np.ndarray:
        grown = d * np.log(f * (2.0 * n + c + seen) / c)
        width: np.ndarray = radius.scale * np.sqrt(f * (radius.base + grown))
        return width

    worst = beta(1.0) + gamma / math.sqrt(c)
    lowered = math.sqrt(2.0) * (beta(2.0) + gamma / np.sqrt(n + c))
    worst = np.where(radius.floor[entry] > 0.0, np.maximum(worst, lowered), worst)
    lengths = np.minimum(batch, plan.horizon - starts) * (rows // batch)
    growth = d * math.log1p(float(lengths.sum()) / (d * c))
    bad = 0.0 if alone else rows * growth / math.log(2.0)
    good = 2.0 * math.sqrt(2.0 * growth * float((lengths * worst**2).sum()))
    return float((plan.silos if alone else 1) * (bad + radius.multiplier * good))
