"""Privacy budgets, neighbouring relations, and the sensitivity of the released sums.

A relation says which datasets are neighbours. "replace" is bounded differential privacy: one unit's
data become any other data (substitution), as the papers define it. "zero-out" is its weaker cousin:
one unit's contribution becomes zero. The last section has sums of centred rewards.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import msgspec

from fastfed._validate import InputError, array, choice, integer, number, show

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
    """L2 sensitivity of a sum of vectors of norm at most 1 to one of them.

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one vector becomes any other one, or zero.

    Returns
    -------
    float
        2 for "replace", 1 for "zero-out".

    Raises
    ------
    InputError
        For another relation.
    """
    choice("relation", relation, RELATIONS)
    return 2.0 if relation == "replace" else 1.0


# ---- Centred statistics with a public intercept, exactly and in closed form ----------------------
#
# A record is (z, y); its row is x = (z, c) with a constant c that the code writes, and it enters
# the sums of x (y - r0) and of x x^T. Nobody's data can change c, so replacing a record moves less
# than `user_sensitivity` says of rows that are free, and the entry (c, c) is a public count.
# docs/centred.md has the proofs and what the radius becomes.

#: Largest norm of the features beside the constant: rows are (z, c) with z = u / sqrt 2, |u| <= 1.
FEATURE_BOUND = math.sqrt(0.5)
#: Centred rewards where they lie in [0, 1] and the centre is 1/2.
CENTRED_RANGE = (-0.5, 0.5)


def constant_of(kappa: float) -> float:
    """Compute the constant feature c = 1 / sqrt(2 kappa) of a kappa >= 1 that was checked."""
    return math.sqrt(0.5 / kappa)


class Centred(msgspec.Struct, frozen=True):
    """Bounds of centred records (z, c) with a constant c of the code: `centred_sensitivity`.

    Parameters
    ----------
    kappa : float
        c = 1 / sqrt(2 kappa).
    feature_bound : float
        Largest ||z||_2.
    low, high : float
        Interval of the centred reward.
    """

    kappa: float
    feature_bound: float
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse numbers that no account is about."""
        if not (self.kappa > 0.0 and self.feature_bound > 0.0 and self.low <= self.high):
            raise InputError(f"centred records need kappa and bounds > 0, got {self}")

    def joint(self, relation: str, layout: str, bias_std: float, covariance_std: float) -> float:
        """GDP mu of releasing both sums once, for one changed record."""
        return centred_joint(
            relation,
            layout,
            self.kappa,
            (self.low, self.high),
            self.feature_bound,
            bias_std,
            covariance_std=covariance_std,
        )

    def absent(
        self, layout: str, bias_std: float, covariance_std: float, count_std: float
    ) -> float:
        """GDP mu of releasing both sums once, (c, c) with noise of its own too, for one record that
        is absent: what it adds to the noisy entries, and c^2."""
        noisy = self.joint("zero-out", layout, bias_std, covariance_std)
        return math.hypot(noisy, constant_of(self.kappa) ** 2 / count_std)


def centred_sensitivity(
    relation: str,
    layout: str = "goe2",
    kappa: float = 1.0,
    reward_range: tuple[float, float] = CENTRED_RANGE,
    feature_bound: float = FEATURE_BOUND,
    bias_std: float = 1.0,
    constant_bias_std: float | None = None,
    covariance_std: float = 1.0,
    cross_std: float | None = None,
) -> float:
    """Exact worst-case GDP mu of releasing centred sums with a public intercept, for one record.

    Released are the sums of x (y - r0) and of x x^T, x = (z, c) and c = 1 / sqrt(2 kappa), with
    independent Gaussian noise on every entry but (c, c), which carries none.

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one record (z, y) becomes any other, the constant stays; or what the
        record adds to the noisy entries becomes zero, the entry (c, c) stays.
    layout : {"iid", "goe1", "goe2"}
        Layout of the noise on the block z z^T, see `fastfed.privacy.layout_stds`.
    kappa : float
        >= 1; c^2 = 1 / (2 kappa).
    reward_range : (float, float)
        low <= high: an interval that holds every y - r0.
    feature_bound : float
        Largest ||z||_2, in (0, 1].
    bias_std : float
        Noise of the entries of z (y - r0), > 0; math.inf leaves them out.
    constant_bias_std : float, optional
        Noise of the entry c (y - r0), likewise; by default bias_std.
    covariance_std : float
        Parameter of the layout of z z^T, likewise.
    cross_std : float, optional
        Noise of the entries c z of the constant's row, likewise; by default the layout's standard
        deviation off the diagonal.

    Returns
    -------
    float
        mu >= 0. Attained where z has two entries or more; an upper bound where it has one.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user's record with ||z|| <= feature_bound and y - r0 in reward_range, under
    the relation, all entries released once together are one Gaussian mechanism of GDP parameter mu.
    The number of records must be public: the entry (c, c) is c^2 times it, and must be counted from
    the schedule, not from who contributed.

    The proof stands in `centred_joint`, and at length in docs/centred.md.

    Examples
    --------
    >>> round(12 * centred_sensitivity("replace", kappa=3.0), 9)
    11.0
    """
    choice("relation", relation, RELATIONS)
    choice("layout", layout, LAYOUTS)
    kappa = number("kappa", kappa, at_least=1)
    low, high = array("reward_range", reward_range, shape=(2,)).tolist()
    if low > high:
        raise InputError(
            f"reward_range must be (low, high) with low <= high, got {show(reward_range)}"
        )
    feature_bound = number("feature_bound", feature_bound, above=0, at_most=1)
    bias_std = released_std("bias_std", bias_std)
    if constant_bias_std is not None:
        constant_bias_std = released_std("constant_bias_std", constant_bias_std)
    covariance_std = released_std("covariance_std", covariance_std)
    if cross_std is not None:
        cross_std = released_std("cross_std", cross_std)
    return centred_joint(
        relation,
        layout,
        kappa,
        (low, high),
        feature_bound,
        bias_std,
        constant_bias_std,
        covariance_std,
        cross_std,
    )


def centred_joint(
    relation: str,
    layout: str = "goe2",
    kappa: float = 1.0,
    reward_range: tuple[float, float] = CENTRED_RANGE,
    feature_bound: float = FEATURE_BOUND,
    bias_std: float = 1.0,
    constant_bias_std: float | None = None,
    covariance_std: float = 1.0,
    cross_std: float | None = None,
) -> float:
    """Compute `centred_sensitivity` for arguments that were checked before."""
    # With z = f u, ||u|| <= 1, f the feature bound, and r = y - r0, mu^2 is the maximum of
    #   A ||u r - u' r'||^2 + B (r - r')^2 + C ||u - u'||^2 + G ||u u^T - u' u'^T||_F^2,
    # weights being squared sizes over noise variances. For the layout of u u^T see
    # `sensitivity.joint_sensitivity`: "iid" has this value too, for the other terms do not change
    # when u and u' are turned, and some turn makes u u^T - u' u'^T diagonal.
    s_0 = bias_std if constant_bias_std is None else constant_bias_std
    s_x = stds_of_layout(layout, covariance_std)[0] if cross_std is None else cross_std
    unit = min(bias_std, s_0, covariance_std, s_x)
    if unit == math.inf:
        return 0.0
    # In units of the smallest noise, so that no weight over- or underflows.
    area, constant = feature_bound**2, constant_of(kappa) ** 2
    a = area * (unit / bias_std) ** 2
    b = constant * (unit / s_0) ** 2
    c = constant * area * (unit / s_x) ** 2
    g = area**2 * (unit / covariance_std) ** 2 / (2.0 if layout == "goe2" else 1.0)
    if relation == "zero-out":
        # Every term increases in ||u|| and |r|; u = e_1 makes u u^T diagonal.
        squared = max(r * r for r in reward_range) * (a + b) + c + g
    else:
        squared = max(
            _apart(a, b, c, g, *rewards)
            for rewards in combinations_with_replacement(reward_range, 2)
        )
    return math.sqrt(squared) / unit


def _apart(a: float, b: float, c: float, g: float, r: float, other: float) -> float:
    """Maximum over u and u' of the objective in `centred_joint`, for two rewards r and r'.

    Proof. The objective is convex in (r, r'), so only the corners of the square of rewards matter,
    and of the mixed ones one, by symmetry. With t = <u, u'> it is
        A (p r^2 + q r'^2) + C (p + q) + B (r - r')^2 + G (p^2 + q^2)  -  2 (A r r' + C) t - 2 G t^2
    in p = ||u||^2 and q = ||u'||^2. For fixed t it increases in both, and p = q = 1 leaves t the
    interval [-1, 1], larger than any other. There it is a concave parabola in t with its top at
    t = -s / (2 G), s = A r r' + C, if that is inside, and else the larger end is sign(-s).
    """
    slope = abs(a * r * other + c)
    along = slope * slope / (2.0 * g) if slope < 2.0 * g else 2.0 * (slope - g)
    return a * (r * r + other * other) + b * (r - other) ** 2 + 2.0 * (c + g) + along
