"""Privacy budgets, neighbouring relations, and the sensitivity of the released sums.

A relation says which datasets are neighbours. "replace" is bounded differential privacy: one unit's
data become any other data (substitution), as the papers define it. "zero-out" is its weaker cousin:
one unit's contribution becomes zero.
"""

from __future__ import annotations

import math

import msgspec

from fastfed._validate import choice, integer, number

RELATIONS = ("replace", "zero-out")
UNITS = ("user", "item", "silo", "reward")

#: Beyond this and below its inverse, squares of noise would leave the range of a float64.
MAX_EPSILON = 1e50


class Budget(msgspec.Struct, frozen=True):
    """A privacy budget: epsilon and delta, with the relation and the unit that they are about.

    Parameters
    ----------
    epsilon : float
        From 1e-50 to 1e50.
    delta : float
        In [0, 1); mechanisms with unbounded noise need delta > 0.
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one unit's data become any other data (bounded DP, the papers'
        definition), or its contribution becomes zero, which is weaker.
    unit : {"user", "item", "silo", "reward"}
        The unit that is protected: one context with all its possible rewards, one realised pair
        (x, y), everything that one silo holds, or one user's rewards, contexts being public.

    Raises
    ------
    InputError
        For values outside these sets.
    """

    epsilon: float
    delta: float
    relation: str = "replace"
    unit: str = "user"

    def __post_init__(self) -> None:
        """Check every field and keep numbers as floats."""
        epsilon = number("epsilon", self.epsilon, above=0)
        if not 1.0 / MAX_EPSILON <= epsilon <= MAX_EPSILON:
            number("epsilon", epsilon, at_least=1.0 / MAX_EPSILON, at_most=MAX_EPSILON)
        delta = number("delta", self.delta, at_least=0, below=1)
        choice("relation", self.relation, RELATIONS)
        choice("unit", self.unit, UNITS)
        # Budget(1, 0) and Budget(1.0, 0.0) must be the same value, also when written out.
        msgspec.structs.force_setattr(self, "epsilon", epsilon)
        msgspec.structs.force_setattr(self, "delta", delta)


def named_relation(relation: str | None, budget: Budget) -> str:
    """Return the relation, checked, or the budget's where none is named."""
    return choice("relation", relation, RELATIONS) if relation else budget.relation


def named_delta(delta: float | None, budget: Budget) -> float:
    """Return delta, checked, or the budget's where none is named."""
    return budget.delta if delta is None else number("delta", delta, at_least=0, below=1)


def check_gaussian_budget(budget: Budget) -> None:
    """Refuse a budget that accounts of unbounded noise on one user's records cannot be about.

    Raises InputError for delta = 0 and for the unit "silo".
    """
    number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))


# ---- sensitivity of the released sums of x y and x x^T, in units of the noise --------------------
# Only what is proven here is returned; the proof stands beside the formula.

LAYOUTS = ("iid", "goe1", "goe2")


def layout_stds(layout: str, noise_std: float) -> tuple[float, float]:
    """Standard deviations (off the diagonal, on the diagonal) of a symmetric noise matrix.

    With A a matrix of independent N(0, noise_std^2) entries, "iid" mirrors the upper triangle of A,
    "goe1" is (A + A^T)/2 and "goe2" is (A + A^T)/sqrt(2). In all three the entries on and above the
    diagonal are independent.

    Parameters
    ----------
    layout : {"iid", "goe1", "goe2"}
        Layout of the matrix.
    noise_std : float
        Standard deviation of an entry of A, >= 0, in the units of the statistic.

    Returns
    -------
    tuple of float
        Standard deviations of an entry off and on the diagonal, in the same units.

    Raises
    ------
    InputError
        For an unknown layout and a negative or infinite noise_std.
    """
    choice("layout", layout, LAYOUTS)
    return stds_of_layout(layout, number("noise_std", noise_std, at_least=0))


def stds_of_layout(layout: str, noise_std: float) -> tuple[float, float]:
    """Compute `layout_stds` for arguments that were checked before."""
    s = noise_std
    return {
        "iid": (s, s),
        "goe1": (s / math.sqrt(2.0), s),
        "goe2": (s, s * math.sqrt(2.0)),
    }[layout]


def released_std(name: str, value: float) -> float:
    """Check a noise standard deviation > 0; infinity stands for a stream that is not released."""
    return math.inf if value == math.inf else number(name, value, above=0)


def user_sensitivity(
    relation: str,
    layout: str,
    dimension: int = 2,
    bias_std: float = 1.0,
    cov_std: float = 1.0,
) -> float:
    """Exact worst-case GDP mu of releasing (sum x y, sum x x^T) once, for one changed record.

    The bias stream gets N(0, bias_std^2) on each of its d entries, the covariance stream symmetric
    noise of the given layout with parameter cov_std, independent of it; ||x||_2 <= 1 and |y| <= 1
    (y in [0, 1] gives the same values). With both standard deviations 1 this is the joint
    sensitivity: under replacement sqrt(4.5) for "iid" and "goe1", 2 for "goe2".

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets.
    layout : {"iid", "goe1", "goe2"}
        Layout of the covariance stream's noise, see `layout_stds`.
    dimension : int
        d >= 1. The value is the same for all d >= 2, and smaller or equal at d = 1, so the default
        is valid for every d.
    bias_std, cov_std : float
        Noise of the two streams, > 0; math.inf leaves a stream out.

    Returns
    -------
    float
        mu >= 0; 0 if both streams are left out.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The proof stands in `joint_sensitivity` and the functions that it calls.
    """
    choice("relation", relation, RELATIONS)
    choice("layout", layout, LAYOUTS)
    dimension = integer("dimension", dimension, at_least=1)
    bias_std, cov_std = released_std("bias_std", bias_std), released_std("cov_std", cov_std)
    return joint_sensitivity(relation, layout, dimension, bias_std, cov_std)


def joint_sensitivity(
    relation: str,
    layout: str,
    dimension: int = 2,
    bias_std: float = 1.0,
    cov_std: float = 1.0,
) -> float:
    """Compute `user_sensitivity` for arguments that were checked before."""
    # mu^2 is the squared change of all distinct entries, each weighted by its noise precision:
    #   w_b ||x y - x' y'||^2 + Q(D),  D = x x^T - x' x'^T.
    #   goe1: Q = sum_{i<j} 2 D_ij^2/s^2 + sum_i D_ii^2/s^2   = ||D||_F^2 / s^2
    #   goe2: Q = sum_{i<j} D_ij^2/s^2 + sum_i D_ii^2/(2 s^2) = ||D||_F^2 / (2 s^2)
    #   iid:  Q = sum_{i<=j} D_ij^2/s^2 <= ||D||_F^2 / s^2, with equality iff D is diagonal.
    # So all three are w_b ||.||^2 + w_c ||D||_F^2; for iid that is a bound, attained below.
    unit = min(bias_std, cov_std)
    if unit == math.inf:
        return 0.0
    # In units of the smaller noise, so that neither weight over- nor underflows.
    w_b = (unit / bias_std) ** 2
    w_c = (unit / cov_std) ** 2 / (2.0 if layout == "goe2" else 1.0)
    if relation == "zero-out":
        squared = w_b + w_c  # |x y| = 1 and ||x x^T||_F = 1 at x = e_1, y = 1, where D is diagonal
    elif dimension == 1:
        squared = _replacement_line(w_b, w_c)
    else:
        squared = _replacement(w_b, w_c)
    return math.sqrt(squared) / unit


def _replacement(w_b: float, w_c: float) -> float:
    """Maximum of w_b ||x y - x' y'||^2 + w_c ||x x^T - x' x'^T||_F^2 in dimension >= 2.

    Proof. Convex in (y, y'), so |y| = |y'| = 1, and by the sign of x' we may take y = y' = 1. With
    norms r >= q and <x, x'> = -t (t >= 0 is the better sign), t <= r q, the objective is
        F = w_b (r^2 + q^2 + 2 t) + w_c (r^4 + q^4 - 2 t^2).
    For fixed t it increases in r and in q, so r = q = 1 and 0 <= t <= 1, leaving
        F = 2 w_b + 2 w_c + 2 w_b t - 2 w_c t^2,
    a concave parabola with its top at t = w_b / (2 w_c), or at the end t = 1 where F = 4 w_b.
    Attained at every t by x = (cos u, -sin u), x' = (-sin u, cos u), t = sin 2u: there
    x x^T - x' x'^T is diagonal, so the value is attained for the layout "iid" too.
    """
    if w_b <= 2.0 * w_c:
        return 2.0 * w_b + 2.0 * w_c + w_b * w_b / (2.0 * w_c)
    return 4.0 * w_b


def _replacement_line(w_b: float, w_c: float) -> float:
    """Maximise the same objective in dimension 1, where <x, x'> = -r q has no freedom left.

    Proof. F = w_b (r + q)^2 + w_c (r^2 - q^2)^2 increases in the larger norm r, so r = 1 and
        F(q) = (1 + q)^2 (w_b + w_c (1 - q)^2),  F'(q) = 2 (1 + q) (w_b - 2 w_c q (1 - q)).
    Hence F rises to the smaller root of q (1 - q) = w_b / (2 w_c) if there is one, falls to the
    larger, and rises again to F(1) = 4 w_b: the maximum is at the smaller root or at 1.
    """
    best = 4.0 * w_b
    if w_c >= 2.0 * w_b:
        q = (1.0 - math.sqrt(1.0 - 2.0 * w_b / w_c)) / 2.0
        best = max(best, (1.0 + q) ** 2 * (w_b + w_c * (1.0 - q) ** 2))
    return best


def sum_sensitivity(relation: str) -> float:
    """L2 sensitivity of a sum of vectors of norm at most 1: 1 (zero-out) or 2 (replacement)."""
    choice("relation", relation, RELATIONS)
    return 2.0 if relation == "replace" else 1.0
