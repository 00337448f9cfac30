"""Sensitivity of centred statistics with a public intercept, exactly and in closed form.

A record is (z, y); its row is x = (z, c) with a constant c that the code writes, and it enters the
sums of x (y - r0) and of x x^T. Nobody's data can change c, so replacing a record moves less than
`fastfed.privacy.sensitivity.user_sensitivity` says of rows that are free, and the entry (c, c) is a
public count. docs/centred.md has the proofs and what the radius becomes.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import msgspec

from fastfed._validate import InputError, array, choice, number, show
from fastfed.privacy.sensitivity import LAYOUTS, RELATIONS, released_std, stds_of_layout

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
