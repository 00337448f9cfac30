"""Gaussian differential privacy and zero-concentrated DP, with exact composition where possible.

A Gaussian mechanism is described by one number, its GDP parameter mu = sensitivity / noise_std
(Dong, Roth & Su 2022). It satisfies (epsilon, delta) exactly when
delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle & Wang 2018, Theorem 8).
An adaptive composition of Gaussian mechanisms is a Gaussian mechanism with mu^2 = sum mu_i^2. The
last section covers Gaussian releases of randomly sampled records.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from fastfed._cache import cached_early
from fastfed._roots import brentq
from fastfed._validate import integer, number
from fastfed.privacy.certificate import Guarantee

# Equations are solved for a delta that is smaller by these relative amounts, which are far above
# rounding errors (1e-12 at delta = 1e-300). So epsilon_of(mu_of(e, d), d) never exceeds e.
_MU_MARGIN = 1e-10
_EPSILON_MARGIN = 1e-11


@cache
def _quadrature_nodes() -> list[tuple[float, float]]:
    """Return (node, weight) pairs of Gauss-Legendre quadrature on [-1, 1]."""
    from numpy.polynomial.legendre import leggauss

    positions, weights = leggauss(12)
    return list(zip(positions.tolist(), weights.tolist(), strict=True))


@cache
def _special_functions() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return SciPy's functions (erfcx, ndtr), imported once because they are called often."""
    from scipy.special import erfcx, ndtr

    return erfcx, ndtr


def _erfcx_slope(z: float) -> float:
    """Return -(d/dz) erfcx(z) = 2/sqrt(pi) - 2 z erfcx(z), without cancellation at large z."""
    erfcx, _ = _special_functions()
    if z > 50.0:
        # An asymptotic series, because the two terms of the formula nearly cancel.
        q = 1.0 / (z * z)
        return q / math.sqrt(math.pi) * (1.0 - q * (1.5 - q * (3.75 - q * 13.125)))
    return 2.0 / math.sqrt(math.pi) - 2.0 * z * float(erfcx(z))


def _log_delta(epsilon: float, mu: float) -> float:
    """Return the logarithm of ``delta_of(epsilon, mu)`` for mu > 0, even if delta underflows.

    Let a, b = (epsilon/mu -+ mu/2)/sqrt 2. Then epsilon = b^2 - a^2, and
    delta = exp(-a^2)/2 (erfcx(a) - erfcx(b)), where erfcx is the scaled complementary error
    function. So e^epsilon is never computed, and no large numbers are subtracted.
    """
    erfcx, ndtr = _special_functions()
    a = (epsilon / mu - mu / 2.0) / math.sqrt(2.0)
    b = (epsilon / mu + mu / 2.0) / math.sqrt(2.0)
    if not math.isfinite(a * a):
        return -math.inf if a > 0 else 0.0
    if mu < 1.0:
        # erfcx(a) and erfcx(b) are close. Instead of subtracting them, integrate the slope over
        # [a, b]: the interval is short and the integrand smooth, so quadrature is accurate. The
        # width is computed from mu, because b - a has a large rounding error if epsilon/mu is
        # large.
        half_width = mu / (2.0 * math.sqrt(2.0))
        middle = epsilon / mu / math.sqrt(2.0)
        difference = half_width * sum(
            w * _erfcx_slope(middle + half_width * u) for u, w in _quadrature_nodes()
        )
        return math.log(difference) - math.log(2.0) - a * a if difference > 0.0 else -math.inf
    if a < 0.0:
        # erfcx(a) would overflow. The first term is at least 1/2 and dominates.
        delta = float(ndtr(-a * math.sqrt(2.0))) - 0.5 * math.exp(-a * a) * float(erfcx(b))
        return math.log(min(delta, 1.0))
    difference = float(erfcx(a)) - float(erfcx(b))
    return math.log(difference) - math.log(2.0) - a * a if difference > 0.0 else -math.inf


def delta_of(epsilon: float, mu: float) -> float:
    """Compute the smallest delta for which a Gaussian mechanism is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        >= 0.
    mu : float
        GDP parameter sensitivity / noise_std, >= 0. At mu = 0 the output ignores the data.

    Returns
    -------
    float
        delta in [0, 1), with a relative accuracy of about 1e-12 down to the smallest normal double.

    Raises
    ------
    InputError
        For negative or infinite arguments.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8.
    """
    return gaussian_delta(number("epsilon", epsilon, at_least=0), number("mu", mu, at_least=0))


@lru_cache(4096)
def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the result of `delta_of`, without a check of the arguments."""
    return math.exp(_log_delta(epsilon, mu)) if mu > 0 else 0.0


def epsilon_of(mu: float, delta: float) -> float:
    """Compute the smallest epsilon for which a Gaussian mechanism is (epsilon, delta)-private.

    The order of the arguments is mu, delta.

    Parameters
    ----------
    mu : float
        GDP parameter sensitivity / noise_std, >= 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        epsilon >= 0, rounded up. Exactly 0 if the total variation distance 2 Phi(mu/2) - 1 is at
        most delta. Infinite if delta = 0 < mu.

    Raises
    ------
    InputError
        For values out of range.

    Warns
    -----
    UserWarning
        If 0 < mu < delta. Then epsilon is 0, and the arguments are probably in the wrong order.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8.
    """
    mu = number("mu", mu, at_least=0)
    delta = number("delta", delta, at_least=0, below=1)
    if 0 < mu < delta:
        # The total variation distance is below 0.4 mu < delta, so epsilon 0 is correct: only warn.
        warnings.warn(
            f"epsilon is 0, because delta = {delta:g} is above mu = {mu:g}: the order of the "
            "arguments is epsilon_of(mu, delta)",
            stacklevel=2,
        )
    return gaussian_epsilon(mu, delta)


@cached_early
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the result of `epsilon_of`, without a check of the arguments."""
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf
    target = math.log(delta) - _EPSILON_MARGIN
    if _log_delta(0.0, mu) <= target:
        return 0.0
    # At `high`, even the first term Phi(mu/2 - high/mu) <= exp(-(high/mu - mu/2)^2 / 2) is below
    # the target. The factor 1 + 1e-14 keeps this true in rounded arithmetic for huge mu.
    high = (mu * mu / 2.0 + mu * math.sqrt(-2.0 * target)) * (1.0 + 1e-14)
    if not math.isfinite(high):
        return math.inf
    root = brentq(
        lambda e: _log_delta(e, mu) - target, 0.0, high, xtol=1e-300, rtol=1e-15, maxiter=2000
    )
    return float(root)


def mu_of(epsilon: float, delta: float) -> float:
    """Compute the largest mu for which a Gaussian mechanism is (epsilon, delta)-private.

    mu is the GDP parameter sensitivity / noise_std, so the least noise that meets the budget is
    noise_std = sensitivity / mu_of(epsilon, delta).

    Parameters
    ----------
    epsilon : float
        >= 0.
    delta : float
        In [0, 1); delta = 0 allows only mu = 0.

    Returns
    -------
    float
        mu >= 0, rounded down.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8, solved for mu.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    return gaussian_mu(epsilon, number("delta", delta, at_least=0, below=1))


@cached_early
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the result of `mu_of`, without a check of the arguments."""
    if delta == 0:
        return 0.0
    from scipy.special import erfinv

    target = math.log(delta) - _MU_MARGIN
    mu_at_zero = 2.0 * math.sqrt(2.0) * float(erfinv(math.exp(target)))
    if epsilon == 0:
        return mu_at_zero
    # Start the search at the larger of two lower bounds of mu: its value at epsilon = 0, and the
    # solution of the zCDP bound epsilon = mu^2/2 + mu sqrt(2 ln(1/delta)), written so that no close
    # numbers are subtracted.
    root_log_delta = math.sqrt(-target)
    zcdp_mu = math.sqrt(2.0) * epsilon / (math.sqrt(epsilon - target) + root_log_delta)
    low = 0.99 * max(mu_at_zero, zcdp_mu)
    high = 2.0 * low
    while _log_delta(epsilon, high) < target:
        high *= 2.0
    root = brentq(
        lambda u: _log_delta(epsilon, math.exp(u)) - target,
        math.log(low),
        math.log(high),
        xtol=1e-15,
        rtol=1e-15,
        maxiter=2000,
    )
    return math.exp(float(root))


def compose(mus: Iterable[float]) -> float:
    """Compute the GDP parameter of several Gaussian mechanisms, composed adaptively.

    Parameters
    ----------
    mus : iterable of float
        GDP parameters of the mechanisms, each >= 0.

    Returns
    -------
    float
        sqrt(sum mu_i^2); 0 for an empty composition.

    Raises
    ------
    InputError
        For a negative or infinite mu.

    Notes
    -----
    Source: Dong, Roth & Su 2022, Corollary 3.3.
    """
    return math.hypot(*(number("mu", mu, at_least=0) for mu in mus))


# ---- adaptive composition: each mechanism may depend on the answers of earlier ones --------------
# The epsilons of mechanisms on disjoint data need not be composed: the replacement of one record
# then costs the largest epsilon among them (parallel composition). For Gaussian mechanisms,
# `compose` is exact.


# Epsilons are rounded up by this relative amount, far above the error of root finding.
_MARGIN = 1e-11


def advanced(guarantee: Guarantee, count: int, slack: float) -> Guarantee:
    """Return the guarantee of ``count`` mechanisms together, by advanced composition.

    Let ``guarantee``, that of each mechanism, be (e, d), k = ``count``, and ``slack`` in (0, 1) an
    additional delta. The result is (sqrt(2 k ln(1/slack)) e + k e (exp(e) - 1), k d + slack). It is
    better than basic composition, (k e, k d), only for many mechanisms of small e. Source: Dwork,
    Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20.
    """
    k = integer("count", count, at_least=0)
    slack = number("slack", slack, above=0, below=1)
    e = guarantee.epsilon
    total = math.sqrt(-2.0 * k * math.log(slack)) * e + k * e * math.expm1(e)
    return Guarantee(total, k * guarantee.delta + slack)


def gaussian(mus: Iterable[float], delta: float) -> Guarantee:
    """Return the exact (epsilon, delta) of a composition of Gaussian mechanisms with these mus.

    ``mus`` are the GDP parameters of the mechanisms.

    Source: Dong, Roth & Su 2022, Corollary 3.3; Balle & Wang 2018, Theorem 8.
    """
    return Guarantee(epsilon_of(compose(mus), delta), delta)


# ---- zero-concentrated differential privacy (zCDP), in which rho adds up -------------------------


def rho_of_bounded_range(eta: float) -> float:
    """Return the zCDP parameter rho = eta^2 / 8 of a mechanism of bounded range eta.

    For two neighbouring datasets, its privacy losses are in an interval of length eta. The
    exponential mechanism is an example. Source: Cesar & Rogers 2021.
    """
    return number("eta", eta, at_least=0) ** 2 / 8.0


def classic_epsilon_of_rho(rho: float, delta: float) -> float:
    """Return the epsilon, rho + 2 sqrt(rho ln(1/delta)), that rho-zCDP implies at delta > 0.

    Source: Bun & Steinke 2016, Proposition 1.3.
    """
    rho = number("rho", rho, at_least=0)
    delta = number("delta", delta, above=0, below=1)
    return rho + 2.0 * math.sqrt(-rho * math.log(delta))


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """Compute the largest rho with `classic_epsilon_of_rho` <= epsilon at delta.

    It is (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2. To split a budget among k mechanisms,
    give each of them rho / k.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    log_term = -math.log(number("delta", delta, above=0, below=1))
    # The difference of the roots, rewritten without cancellation at small epsilon.
    root = epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))
    return root * root


def _log_delta_of_rho(epsilon: float, rho: float) -> float:
    """Return the logarithm of the bound in `delta_of_rho`, for rho > 0. It may be above 0."""

    # Minimise the logarithm over u = ln(alpha - 1), for the Renyi order alpha. Its derivative in
    # alpha, slope(u), increases in u. The derivative is negative at ``low``, since
    # ln(1 + e^-u) > -u, and positive at ``high``.
    def slope(u: float) -> float:
        """Return the derivative of the logarithm in alpha, at alpha = 1 + e^u."""
        return (2.0 * math.exp(u) + 1.0) * rho - epsilon - _log1pexp(-u)

    low, high = -(3.0 * rho + 1.0), max(0.0, math.log(epsilon + 1.0) - math.log(2.0 * rho))
    u = float(brentq(slope, low, high, xtol=1e-14, rtol=1e-14))
    # Every alpha gives a valid bound, so the rounding error of the minimum is harmless.
    alpha_minus_1 = math.exp(u)
    alpha = 1.0 + alpha_minus_1
    return alpha_minus_1 * (alpha * rho - epsilon) - u - alpha * _log1pexp(-u)


def _log1pexp(x: float) -> float:
    """Return ln(1 + e^x), computed without overflow."""
    return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))


def delta_of_rho(epsilon: float, rho: float) -> float:
    """Return the delta that rho-zCDP implies at epsilon, for the best Renyi order alpha.

    delta = min over alpha > 1 of exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha /
    (alpha - 1). Source: Canonne, Kamath & Steinke 2020, Section 2.3.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    rho = number("rho", rho, at_least=0)
    return math.exp(min(0.0, _log_delta_of_rho(epsilon, rho))) if rho else 0.0


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Compute the least epsilon >= 0 with delta_of_rho(epsilon, rho) <= delta, rounded up.

    delta must be > 0. The result is at most `classic_epsilon_of_rho`. Source: Canonne, Kamath &
    Steinke 2020, Section 2.3.
    """
    rho = number("rho", rho, at_least=0)
    delta = number("delta", delta, above=0, below=1)
    if rho == 0.0:
        return 0.0
    target = math.log(delta) - _MARGIN
    if _log_delta_of_rho(0.0, rho) <= target:
        return 0.0
    high = classic_epsilon_of_rho(rho, delta)
    root = float(
        brentq(lambda e: _log_delta_of_rho(e, rho) - target, 0.0, high, xtol=1e-300, rtol=1e-14)
    )
    return min(high, root * (1.0 + _MARGIN))


#: Number of values that `group_epsilon` tries for the delta of one record; the largest is
#: delta / members.
_SHARES = 40


def group_epsilon(exact: Callable[[float], float], members: int, delta: float) -> float:
    """Compute the epsilon of a group of records that are all replaced (group privacy).

    Parameters
    ----------
    exact : callable
        Maps delta >= 0 to the proven epsilon of one record, which decreases in delta.
    members : int
        k >= 1, the number of records.
    delta : float
        In [0, 1), the delta of the group.

    Returns
    -------
    float
        An epsilon of the group at delta; math.inf if no tried delta of one record gives one.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    If one record is (e, d)-private, then k records are
    (k e, d (1 + exp(e) + ... + exp((k - 1) e)))-private, and (k e, 0)-private if d = 0: replace one
    record after the other. The d of one record is the value that gives the least epsilon, on a
    logarithmic grid below delta / k. Source: Dwork & Roth 2014, Theorem 2.2; Vadhan 2017, Lemma
    2.2.
    """
    k = integer("members", members, at_least=1)
    delta = number("delta", delta, at_least=0, below=1)
    if k == 1:
        return exact(delta)
    best_epsilon = k * exact(0.0)
    if delta == 0.0:
        return best_epsilon
    for step in range(_SHARES):
        log_record_delta = math.log(delta) - math.log(k) * (1.0 + 0.5 * step)
        if log_record_delta < -700.0:
            break
        epsilon = exact(math.exp(log_record_delta))
        # ln of the geometric sum in the docstring; k times its largest term is an upper bound.
        log_geometric_sum = math.log(k) + (k - 1) * epsilon
        if epsilon > 0.0 and (k - 1) * epsilon < 700.0:
            log_geometric_sum = min(
                log_geometric_sum, math.log(math.expm1(k * epsilon)) - math.log(math.expm1(epsilon))
            )
        if log_record_delta + log_geometric_sum + _MARGIN <= math.log(delta):
            best_epsilon = min(best_epsilon, k * epsilon)
    return best_epsilon * (1.0 + _MARGIN)


# ---- Random sampling: a secret coin for each user ------------------------------------------------
#
# A user's record enters a Gaussian release with probability p, decided by a coin that nobody
# outside the user's silo sees. So the release contains the record, the record that replaces it, or
# (most often, if p is small) neither. Proofs: docs/own-rounds.md.

# Bounds on delta are increased by this relative amount, far above rounding errors (1e-11).
_SAMPLING_MARGIN = 1e-10
_STEPS = 200


def _check_sampling(p: object, zeta: object) -> tuple[float, float]:
    """Return p and zeta of `sampled_delta` as floats, after a check of their ranges."""
    return number("p", p, above=0.0, at_most=1.0), number("zeta", zeta, at_least=0.5)


def _sampled_delta_bound(epsilon: float, p: float, zeta: float, mu: float) -> float:
    """Return the result of `sampled_delta`, without a check of the arguments.

    The docstring of `sampled_delta` defines e0 and b, called inner_epsilon and weight here.
    """
    unsampled = p * gaussian_delta(epsilon, mu)
    if p == 1.0 or epsilon == 0.0:
        return unsampled
    # e^inner_epsilon = 1 + (e^epsilon - 1) / p = e^epsilon ratio / p, with this ratio, and
    # weight = e^(epsilon - inner_epsilon) = p / ratio. So nothing overflows for large epsilon.
    ratio = 1.0 - (1.0 - p) * math.exp(-epsilon)
    inner_epsilon = (
        math.log1p(math.expm1(epsilon) / p) if epsilon < 1.0 else epsilon + math.log(ratio / p)
    )
    weight = min(1.0, p / ratio)
    absent_delta = gaussian_delta(inner_epsilon, zeta * mu)
    mixture = p * ((1.0 - weight) * absent_delta + weight * gaussian_delta(inner_epsilon, mu))
    return min(unsampled, mixture * (1.0 + _SAMPLING_MARGIN))


def sampled_delta(epsilon: float, p: float, zeta: float, mu: float) -> float:
    """Return an upper bound on the delta of a Gaussian release of randomly sampled records.

    A record is included in the release with probability p.

    Parameters
    ----------
    epsilon : float
        >= 0.
    p : float
        Probability that the record is included, in (0, 1], independent of everything else.
    zeta : float
        Sensitivity to the removal of a record, divided by the sensitivity to its replacement. It is
        at least 1/2, because a replacement is a removal and an addition.
    mu : float
        GDP parameter of the release under replacement if the record is always included, >= 0.

    Returns
    -------
    float
        delta in [0, 1) such that the release is (epsilon, delta)-private under replacement. It is a
        proven upper bound, and at most the delta without sampling.

    Raises
    ------
    InputError
        For arguments out of range.

    Notes
    -----
    Guarantee: for the replacement of one record that is included at most once, if the observer sees
    the release but not the coin. Everything else that depends on the coin and is released, such as
    a count of the included records, must have noise and be covered by zeta and mu.

    Let e^e0 = 1 + (e^epsilon - 1) / p and b = e^(epsilon - e0). Then

        delta = p min(delta_mu(epsilon), (1 - b) delta_(zeta mu)(e0) + b delta_mu(e0)),

    where delta_mu is `delta_of` at mu. Source: advanced joint convexity, Balle, Barthe & Gaboardi
    2018, Theorem 2; proof in docs/own-rounds.md.
    """
    p, zeta = _check_sampling(p, zeta)
    epsilon = number("epsilon", epsilon, at_least=0.0)
    return _sampled_delta_bound(epsilon, p, zeta, number("mu", mu, at_least=0.0))


def sampled_epsilon(delta: float, p: float, zeta: float, mu: float) -> float:
    """Return an epsilon of a Gaussian release of randomly sampled records, at delta.

    `sampled_delta` at this epsilon is at most delta. It is the smallest such epsilon if zeta <= 1.

    Parameters
    ----------
    delta : float
        In [0, 1).
    p, zeta, mu : float
        As in `sampled_delta`.

    Returns
    -------
    float
        epsilon >= 0, rounded up. At most the epsilon without sampling. Infinite if delta = 0 < mu.

    Raises
    ------
    InputError
        For arguments out of range.
    """
    p, zeta = _check_sampling(p, zeta)
    delta = number("delta", delta, at_least=0.0, below=1.0)
    mu = number("mu", mu, at_least=0.0)
    if delta >= p * gaussian_delta(0.0, mu):
        return 0.0
    # Here delta < p gaussian_delta(0, mu) <= p, so delta / p < 1. ``high`` is a valid upper end of
    # the bisection, because p gaussian_delta(high, mu) <= delta.
    high = gaussian_epsilon(mu, delta / p)
    if p == 1.0 or not math.isfinite(high):
        return high
    # Bisection. `sampled_delta` <= delta holds at ``high`` in every step, so the result is valid.
    # It is the smallest epsilon if zeta <= 1; otherwise the bound may increase near epsilon = 0.
    low = 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if _sampled_delta_bound(middle, p, zeta, mu) <= delta:
            high = middle
        else:
            low = middle
    return high


def sampled_mu(epsilon: float, delta: float, p: float, zeta: float) -> float:
    """Return the largest mu with which a release of sampled records is (epsilon, delta)-private.

    The least noise has noise_std = sensitivity / mu. The bound on delta is `sampled_delta`.

    Parameters
    ----------
    epsilon : float
        >= 0.
    delta : float
        In [0, 1); 0 allows only mu = 0.
    p, zeta : float
        As in `sampled_delta`.

    Returns
    -------
    float
        mu >= 0 under replacement, rounded down. At least the mu without sampling. Infinite if
        delta >= p.

    Raises
    ------
    InputError
        For arguments out of range.
    """
    p, zeta = _check_sampling(p, zeta)
    epsilon = number("epsilon", epsilon, at_least=0.0)
    delta = number("delta", delta, at_least=0.0, below=1.0)
    if delta == 0.0:
        return 0.0
    if delta >= p:
        return math.inf
    # Bisection: the bound increases in mu, and at ``low`` it is at most delta even without
    # sampling.
    low = gaussian_mu(epsilon, delta)
    high = 2.0 * low
    while _sampled_delta_bound(epsilon, p, zeta, high) <= delta:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if _sampled_delta_bound(epsilon, p, zeta, middle) <= delta:
            low = middle
        else:
            high = middle
    return low
