"""Privacy budgets, neighbouring relations, and the sensitivity of the released sums.

A relation says which datasets are neighbours. "replace" is bounded differential privacy: one unit's
data become any other data (substitution), as in the papers. "zero-out" is weaker: one unit's
contribution becomes zero. The last section covers sums of centred rewards.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import msgspec

from fastfed._validate import InputError, array, choice, integer, number, show

RELATIONS = ("replace", "zero-out")
#: Names of the three kinds of entries of a noise vector: entries of x y, and of x x^T off and on
#: the diagonal.
STREAMS = ("bias", "covariance", "covariance_diagonal")
UNITS = ("user", "item", "silo", "reward")

#: The largest epsilon of a budget. The smallest epsilon is its inverse. Beyond these limits squared
#: noise is out of the range of float64.
MAX_EPSILON = 1e50


class Budget(msgspec.Struct, frozen=True):
    """A privacy budget: (epsilon, delta), the neighbouring relation, and the protected unit.

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
        The protected unit: one context with all its possible rewards, one realised pair (x, y),
        all data of one silo, or the rewards of one user whose contexts are public.

    Raises
    ------
    InputError
        For values out of range, and for an unknown relation or unit.
    """

    epsilon: float
    delta: float
    relation: str = "replace"
    unit: str = "user"

    def __post_init__(self) -> None:
        """Check every field and convert epsilon and delta to float."""
        epsilon = number("epsilon", self.epsilon, above=0)
        if not 1.0 / MAX_EPSILON <= epsilon <= MAX_EPSILON:
            number("epsilon", epsilon, at_least=1.0 / MAX_EPSILON, at_most=MAX_EPSILON)
        delta = number("delta", self.delta, at_least=0, below=1)
        choice("relation", self.relation, RELATIONS)
        choice("unit", self.unit, UNITS)
        # Budget(1, 0) and Budget(1.0, 0.0) must be equal, and equal when serialised.
        msgspec.structs.force_setattr(self, "epsilon", epsilon)
        msgspec.structs.force_setattr(self, "delta", delta)


def named_relation(relation: str | None, budget: Budget) -> str:
    """Return ``relation``, after a check, or the budget's relation if ``relation`` is None."""
    return choice("relation", relation, RELATIONS) if relation else budget.relation


def named_delta(delta: float | None, budget: Budget) -> float:
    """Return ``delta``, after a check, or the budget's delta if ``delta`` is None."""
    return budget.delta if delta is None else number("delta", delta, at_least=0, below=1)


def check_gaussian_budget(budget: Budget) -> None:
    """Raise InputError for a budget that Gaussian noise on one user's records cannot meet.

    It cannot meet a budget with delta = 0, nor a budget whose unit is neither "user" nor "item".
    """
    number("delta", budget.delta, above=0, below=1)
    choice("unit", budget.unit, ("user", "item"))


# ---- sensitivity of the released sums of x y and x x^T, in units of the noise --------------------
# Every value is proven; the proof is next to its formula.

LAYOUTS = ("iid", "goe1", "goe2")
#: Layout for records whose features are unit vectors e_a: the sum of x x^T is then diagonal, and
#: only its d diagonal entries are released.
DIAGONAL = "diagonal"


def layout_stds(layout: str, noise_std: float) -> tuple[float, float]:
    """Compute the standard deviations of a symmetric noise matrix, off and on its diagonal.

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
    """Return the result of `layout_stds`, without checking the arguments."""
    s = noise_std
    return {
        "iid": (s, s),
        "goe1": (s / math.sqrt(2.0), s),
        "goe2": (s, s * math.sqrt(2.0)),
        DIAGONAL: (0.0, s),
    }[layout]


def released_std(name: str, value: float) -> float:
    """Return a noise std after checking that it is > 0; ``name`` is for the error message.

    Infinity is valid: it means that the entry is not released.
    """
    return math.inf if value == math.inf else number(name, value, above=0)


def user_sensitivity(
    relation: str,
    layout: str,
    dimension: int = 2,
    bias_std: float = 1.0,
    cov_std: float = 1.0,
) -> float:
    """Return the exact GDP parameter mu of one release of (sum x y, sum x x^T), in the worst case.

    Two neighbouring datasets differ in one record. Each of the d entries of the sum of x y, the
    bias stream, gets noise N(0, bias_std^2). The sum of x x^T, the covariance stream, gets
    independent symmetric noise of the given layout with parameter cov_std. Records have
    ||x||_2 <= 1 and |y| <= 1; rewards in [0, 1] give the same values.

    If both standard deviations are 1, the result is the joint L2 sensitivity: under replacement it
    is sqrt(4.5) for "iid" and "goe1", and 2 for "goe2".

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets: one record becomes any other, or its contribution becomes zero.
    layout : {"iid", "goe1", "goe2"}
        Layout of the noise of the covariance stream; see `layout_stds`.
    dimension : int
        d >= 1. The value is the same for all d >= 2, and not larger for d = 1. The default is
        therefore valid for every d.
    bias_std, cov_std : float
        Noise of the two streams, > 0. math.inf means that the stream is not released.

    Returns
    -------
    float
        mu >= 0; 0 if neither stream is released.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    The proof is in `joint_sensitivity` and in the functions that it calls.
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
    """Return the result of `user_sensitivity`, without checking the arguments.

    The layout may also be `DIAGONAL`, for records with a unit vector x = e_a.
    """
    # mu^2 is the maximum, over two neighbouring records, of the sum of the squared changes of all
    # distinct entries, each divided by the variance of its noise. With w_b = 1 / bias_std^2 and
    # s = cov_std, this sum is
    #   w_b ||x y - x' y'||^2 + Q(D),  D = x x^T - x' x'^T.
    #   goe1: Q = sum_{i<j} 2 D_ij^2/s^2 + sum_i D_ii^2/s^2   = ||D||_F^2 / s^2
    #   goe2: Q = sum_{i<j} D_ij^2/s^2 + sum_i D_ii^2/(2 s^2) = ||D||_F^2 / (2 s^2)
    #   iid:  Q = sum_{i<=j} D_ij^2/s^2 <= ||D||_F^2 / s^2, with equality iff D is diagonal.
    # So the sum is at most w_b ||x y - x' y'||^2 + w_c ||D||_F^2, where w_c is 1 / (2 s^2) for goe2
    # and else 1 / s^2. It can be less only for iid, but each maximum below is attained at a
    # diagonal D, where it is equal.
    min_std = min(bias_std, cov_std)
    if min_std == math.inf:
        return 0.0
    # Scale by the smaller noise, so that neither weight overflows or underflows.
    w_b = (min_std / bias_std) ** 2
    w_c = (min_std / cov_std) ** 2 / (2.0 if layout == "goe2" else 1.0)
    if relation == "zero-out":
        squared = w_b + w_c  # |x y| = 1 and ||x x^T||_F = 1 at x = e_1, y = 1, where D is diagonal
    elif layout == DIAGONAL:
        # Different unit vectors: y^2 w_b + y'^2 w_b + 2 w_c. Equal ones: (y - y')^2 w_b.
        squared = max(2.0 * w_b + 2.0 * w_c, 4.0 * w_b)
    elif dimension == 1:
        squared = _replacement_line(w_b, w_c)
    else:
        squared = _replacement(w_b, w_c)
    return math.sqrt(squared) / min_std


def _replacement(w_b: float, w_c: float) -> float:
    """Return the maximum of w_b ||x y - x' y'||^2 + w_c ||x x^T - x' x'^T||_F^2 for d >= 2.

    The maximum is over all records with ||x||, ||x'||, |y| and |y'| at most 1. w_b and w_c are the
    weights in `joint_sensitivity`.

    Proof. The objective is convex in (y, y'), so |y| = |y'| = 1 at a maximum. It is the same for
    (x, y) and (-x, -y), so we may take y = y' = 1. Let r >= q be the two norms of x and x', and
    <x, x'> = -t. Then t >= 0 is the better sign, t <= r q, and the objective is
        F = w_b (r^2 + q^2 + 2 t) + w_c (r^4 + q^4 - 2 t^2).
    For fixed t it increases in r and in q, so r = q = 1 and 0 <= t <= 1, and
        F = 2 w_b + 2 w_c + 2 w_b t - 2 w_c t^2.
    This is a concave parabola in t. Its maximum is at t = w_b / (2 w_c) if that is at most 1, and
    else at t = 1, where F = 4 w_b. Every t is attained by x = (cos u, -sin u),
    x' = (-sin u, cos u) with sin 2u = t. For these, x x^T - x' x'^T is diagonal, so the layout
    "iid" attains the value too.
    """
    if w_b <= 2.0 * w_c:
        return 2.0 * w_b + 2.0 * w_c + w_b * w_b / (2.0 * w_c)
    return 4.0 * w_b


def _replacement_line(w_b: float, w_c: float) -> float:
    """Return the maximum of w_b (x y - x' y')^2 + w_c (x^2 - x'^2)^2 for d = 1.

    The maximum is over all records with |x|, |x'|, |y| and |y'| at most 1.

    Proof. As in `_replacement`, y = y' = 1. Let r >= q be the norms |x| and |x'|. The objective is
    larger if x and x' have different signs, so x x' = -r q. Then
    F = w_b (r + q)^2 + w_c (r^2 - q^2)^2 increases in r, so r = 1 and
        F(q) = (1 + q)^2 (w_b + w_c (1 - q)^2),  F'(q) = 2 (1 + q) (w_b - 2 w_c q (1 - q)).
    Hence F rises to the smaller root of q (1 - q) = w_b / (2 w_c) if there is one, falls to the
    larger root, and rises again to F(1) = 4 w_b: the maximum is at the smaller root or at 1.
    """
    best = 4.0 * w_b
    if w_c >= 2.0 * w_b:
        q = (1.0 - math.sqrt(1.0 - 2.0 * w_b / w_c)) / 2.0
        best = max(best, (1.0 + q) ** 2 * (w_b + w_c * (1.0 - q) ** 2))
    return best


def sum_sensitivity(relation: str) -> float:
    """Return the L2 sensitivity of a sum of vectors, each of norm at most 1, if one changes.

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
        For an unknown relation.
    """
    choice("relation", relation, RELATIONS)
    return 2.0 if relation == "replace" else 1.0


# ---- Centred statistics with a public intercept, exactly and in closed form ----------------------
#
# A record (z, y) has the feature vector x = (z, c), where the code writes the constant c. The
# record enters the sums of x (y - r0) and of x x^T. No user can change c, so replacing a record
# changes the sums by less than `user_sensitivity` says for arbitrary x, and the entry (c, c) is a
# public count. docs/centred.md has the proofs and the radius that follows.

#: Largest norm of z, for x = (z, c) with z = u / sqrt 2 and ||u|| <= 1.
FEATURE_BOUND = math.sqrt(0.5)
#: Interval of y - r0 for rewards y in [0, 1] and the centre r0 = 1/2.
CENTRED_RANGE = (-0.5, 0.5)


def constant_of(kappa: float) -> float:
    """Return the constant feature c = 1 / sqrt(2 kappa). That kappa >= 1 is not checked."""
    return math.sqrt(0.5 / kappa)


class Centred(msgspec.Struct, frozen=True):
    """Bounds of centred records (z, c) with a constant c; see `centred_sensitivity`.

    Parameters
    ----------
    kappa : float
        Defines the constant c = 1 / sqrt(2 kappa).
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
        """Raise InputError for bounds for which no account is proven."""
        if not (self.kappa > 0.0 and self.feature_bound > 0.0 and self.low <= self.high):
            raise InputError(f"centred records need kappa and bounds > 0, got {self}")

    def joint(self, relation: str, layout: str, bias_std: float, covariance_std: float) -> float:
        """Return the GDP parameter mu of one release of the sums of x y and x x^T.

        Neighbouring datasets differ in one record, as ``relation`` says. `centred_sensitivity`
        explains the arguments.
        """
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
        """Return the GDP parameter mu of one release of the sums if one record is removed.

        The sums are those of x y and x x^T, with x = (z, c) and the constant c. Each record adds
        c^2 to the last diagonal entry of the sum of x x^T. Here this entry has noise of std
        ``count_std``. The other arguments are those of `joint`.
        """
        noisy_entries_mu = self.joint("zero-out", layout, bias_std, covariance_std)
        return math.hypot(noisy_entries_mu, constant_of(self.kappa) ** 2 / count_std)


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
    """Return the exact GDP parameter mu of one release of centred sums, in the worst case.

    The sums of x (y - r0) and of x x^T are released once, with x = (z, c), the public constant c =
    1 / sqrt(2 kappa), and a public centre r0 of the rewards y. Every entry has independent Gaussian
    noise, except (c, c), which has none. Two neighbouring datasets differ in one record.

    Parameters
    ----------
    relation : {"replace", "zero-out"}
        Neighbouring datasets. "replace": one record (z, y) becomes any other, c stays. "zero-out":
        the record's contribution to the noisy entries becomes zero, the entry (c, c) stays.
    layout : {"iid", "goe1", "goe2"}
        Layout of the noise on the block z z^T, see `fastfed.privacy.layout_stds`.
    kappa : float
        >= 1; c^2 = 1 / (2 kappa).
    reward_range : (float, float)
        (low, high), an interval that contains every y - r0.
    feature_bound : float
        Largest ||z||_2, in (0, 1].
    bias_std : float
        Noise of the entries of z (y - r0), > 0. math.inf: these entries are not released.
    constant_bias_std : float, optional
        Noise of the entry c (y - r0), > 0 or math.inf. Default: bias_std.
    covariance_std : float
        Parameter of the layout of z z^T, > 0 or math.inf.
    cross_std : float, optional
        Noise of the entries c z, > 0 or math.inf. Default: the layout's standard
        deviation off the diagonal.

    Returns
    -------
    float
        mu >= 0. Exact if z has at least two entries, an upper bound if z has one.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: let ||z|| <= feature_bound and y - r0 in reward_range for one user's record. Under
    the relation, all entries released together are one Gaussian mechanism of GDP parameter mu. The
    number n of records must be public, since the entry (c, c) is n c^2. Take n from the schedule,
    not from the number of users who contributed.

    The proof is in `centred_joint`, with more detail in docs/centred.md.

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
    """Return the result of `centred_sensitivity`, without checking the arguments."""
    # A record has features z and the centred reward r = y - r0. Write z = f u with ||u|| <= 1 and f
    # the feature bound. The square of the result mu is the maximum over two records of
    #   A ||u r - u' r'||^2 + B (r - r')^2 + C ||u - u'||^2 + G ||u u^T - u' u'^T||_F^2,
    # where each weight is a squared bound over a noise variance. G depends on the layout as in
    # `joint_sensitivity`. For "iid" the last term is at most G ||.||_F^2, with equality if
    # u u^T - u' u'^T is diagonal. A rotation of u and u' together makes it diagonal and leaves the
    # other terms unchanged, so "iid" has the same maximum.
    s_0 = bias_std if constant_bias_std is None else constant_bias_std
    s_x = stds_of_layout(layout, covariance_std)[0] if cross_std is None else cross_std
    min_std = min(bias_std, s_0, covariance_std, s_x)
    if min_std == math.inf:
        return 0.0
    # Scale by the smallest noise, so that no weight overflows or underflows.
    squared_bound, squared_constant = feature_bound**2, constant_of(kappa) ** 2
    a = squared_bound * (min_std / bias_std) ** 2
    b = squared_constant * (min_std / s_0) ** 2
    c = squared_constant * squared_bound * (min_std / s_x) ** 2
    g = squared_bound**2 * (min_std / covariance_std) ** 2 / (2.0 if layout == "goe2" else 1.0)
    if relation == "zero-out":
        # Every term increases in ||u|| and |r|; u = e_1 makes u u^T diagonal.
        squared = max(r * r for r in reward_range) * (a + b) + c + g
    else:
        squared = max(
            _replacement_centred(a, b, c, g, *rewards)
            for rewards in combinations_with_replacement(reward_range, 2)
        )
    return math.sqrt(squared) / min_std


def _replacement_centred(a: float, b: float, c: float, g: float, r: float, other_r: float) -> float:
    """Return the maximum over u and u' of the objective in `centred_joint`, for two given rewards.

    The norms of u and u' are at most 1. The rewards are r and r' = ``other_r``. a, b, c and g are
    the weights A, B, C and G. `centred_joint` passes only the ends of the interval of rewards: the
    objective is convex in (r, r'), so it is largest if r and r' are ends. It is symmetric, so (low,
    high) and (high, low) give the same value.

    Proof. Let t = <u, u'>, p = ||u||^2, q = ||u'||^2. The objective is
        A (p r^2 + q r'^2) + C (p + q) + B (r - r')^2 + G (p^2 + q^2) - 2 (A r r' + C) t - 2 G t^2.
    For fixed t it increases in p and q, and p = q = 1 allows every t in [-1, 1]. There it is a
    concave parabola in t. Its maximum is at t = -s / (2 G) with s = A r r' + C if that is in
    [-1, 1], and else at t = sign(-s).
    """
    abs_slope = abs(a * r * other_r + c)
    best_over_t = (
        abs_slope * abs_slope / (2.0 * g) if abs_slope < 2.0 * g else 2.0 * (abs_slope - g)
    )
    return a * (r * r + other_r * other_r) + b * (r - other_r) ** 2 + 2.0 * (c + g) + best_over_t
