"""Gaussian differential privacy and zero-concentrated composition, exact where that is possible.

A Gaussian mechanism is described by one number, its GDP parameter mu = sensitivity / noise_std
(Dong, Roth & Su 2022). It satisfies (epsilon, delta) exactly when
delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle & Wang 2018, Theorem 8).
Adaptive compositions of Gaussian mechanisms are Gaussian mechanisms again, with mu^2 added up. Last
come releases that a secret coin decides to enter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from fastfed._roots import brentq
from fastfed._validate import integer, number
from fastfed.privacy.certificate import Guarantee

# Roots are taken at a delta smaller by these relative amounts, far above rounding (about 1e-12 at
# delta = 1e-300), so that mu_of never overspends and epsilon_of(mu_of(e, d), d) never exceeds e.
_MU_MARGIN = 1e-10
_EPSILON_MARGIN = 1e-11


@cache
def _nodes() -> list[tuple[float, float]]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1], computed once."""
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(12)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


@cache
def _special() -> tuple[Callable[[float], float], Callable[[float], float]]:
    """erfcx and ndtr, imported once: a search asks for them a thousand times."""
    from scipy.special import erfcx, ndtr

    return erfcx, ndtr


def _erfcx_slope(z: float) -> float:
    """Compute -(d/dz) erfcx(z) = 2/sqrt(pi) - 2 z erfcx(z) without its cancellation at large z."""
    erfcx, _ = _special()
    if z > 50.0:
        q = 1.0 / (z * z)
        return q / math.sqrt(math.pi) * (1.0 - q * (1.5 - q * (3.75 - q * 13.125)))
    return 2.0 / math.sqrt(math.pi) - 2.0 * z * float(erfcx(z))


def _log_delta(epsilon: float, mu: float) -> float:
    """Compute ln delta_of(epsilon, mu) for mu > 0, also where delta itself underflows.

    With a, b = (epsilon/mu -+ mu/2)/sqrt2 both terms of the formula share the factor exp(-a^2)/2,
    since epsilon = b^2 - a^2; the rest is erfcx(a) - erfcx(b), with no exponentials left to cancel
    and e^epsilon never formed.
    """
    erfcx, ndtr = _special()
    a = (epsilon / mu - mu / 2.0) / math.sqrt(2.0)
    b = (epsilon / mu + mu / 2.0) / math.sqrt(2.0)
    if not math.isfinite(a * a):
        return -math.inf if a > 0 else 0.0
    if mu < 1.0:
        # The two values are close: integrate the slope over [a, b] (Gauss-Legendre, the integrand
        # is entire and the interval short) instead of subtracting them. The width is computed
        # from mu, since b - a is lost to rounding when epsilon/mu is large.
        half = mu / (2.0 * math.sqrt(2.0))
        middle = epsilon / mu / math.sqrt(2.0)
        difference = half * sum(w * _erfcx_slope(middle + half * u) for u, w in _nodes())
        return math.log(difference) - math.log(2.0) - a * a if difference > 0.0 else -math.inf
    if a < 0.0:
        # erfcx(a) would overflow; here the first term is at least 1/2 and dominates.
        delta = float(ndtr(-a * math.sqrt(2.0))) - 0.5 * math.exp(-a * a) * float(erfcx(b))
        return math.log(min(delta, 1.0))
    difference = float(erfcx(a)) - float(erfcx(b))
    return math.log(difference) - math.log(2.0) - a * a if difference > 0.0 else -math.inf


def delta_of(epsilon: float, mu: float) -> float:
    """Smallest delta for which a Gaussian mechanism is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon : float
        >= 0.
    mu : float
        GDP parameter sensitivity / noise_std, >= 0; at mu = 0 nothing depends on the data.

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
    """Compute `delta_of` for arguments that were checked before."""
    return math.exp(_log_delta(epsilon, mu)) if mu > 0 else 0.0


def epsilon_of(mu: float, delta: float) -> float:
    """Smallest epsilon for which a Gaussian mechanism is (epsilon, delta)-private.

    Parameters
    ----------
    mu : float
        GDP parameter sensitivity / noise_std, >= 0.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        epsilon >= 0, rounded towards the larger one. Exactly 0 when the total variation distance
        2 Phi(mu/2) - 1 is already at most delta, and infinite when delta = 0 < mu.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Source: Balle & Wang 2018, Theorem 8.
    """
    mu = number("mu", mu, at_least=0)
    return gaussian_epsilon(mu, number("delta", delta, at_least=0, below=1))


@lru_cache(4096)
def gaussian_epsilon(mu: float, delta: float) -> float:
    """Compute `epsilon_of` for arguments that were checked before."""
    if mu == 0:
        return 0.0
    if delta == 0:
        return math.inf
    target = math.log(delta) - _EPSILON_MARGIN
    if _log_delta(0.0, mu) <= target:
        return 0.0
    # Already the first term Phi(mu/2 - high/mu) <= exp(-(high/mu - mu/2)^2 / 2) is below target.
    # The last factor keeps that true in rounded arithmetic when mu is huge.
    high = (mu * mu / 2.0 + mu * math.sqrt(-2.0 * target)) * (1.0 + 1e-14)
    if not math.isfinite(high):
        return math.inf
    root = brentq(
        lambda e: _log_delta(e, mu) - target, 0.0, high, xtol=1e-300, rtol=1e-15, maxiter=2000
    )
    return float(root)


def mu_of(epsilon: float, delta: float) -> float:
    """Largest mu for which a Gaussian mechanism is (epsilon, delta)-private.

    The noise that just meets the budget is noise_std = sensitivity / mu_of(epsilon, delta).

    Parameters
    ----------
    epsilon : float
        >= 0.
    delta : float
        In [0, 1); delta = 0 allows only mu = 0.

    Returns
    -------
    float
        mu >= 0, rounded towards the smaller one.

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


@lru_cache(4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Compute `mu_of` for arguments that were checked before, such as a Budget's."""
    from scipy.special import erfinv

    if delta == 0:
        return 0.0
    target = math.log(delta) - _MU_MARGIN
    at_zero = 2.0 * math.sqrt(2.0) * float(erfinv(math.exp(target)))
    if epsilon == 0:
        return at_zero
    # Two lower bounds: the answer at epsilon = 0, and the zero-concentrated bound
    # epsilon = mu^2/2 + mu sqrt(2 ln(1/delta)), solved for mu without cancellation.
    slack = math.sqrt(-target)
    concentrated = math.sqrt(2.0) * epsilon / (math.sqrt(epsilon - target) + slack)
    low = 0.99 * max(at_zero, concentrated)
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
    """GDP parameter of several Gaussian mechanisms run one after another, inputs chosen adaptively.

    Parameters
    ----------
    mus : iterable of float
        Their parameters, each >= 0.

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


# ---- composition of mechanisms, each chosen in view of the answers of those before it ------------
# Mechanisms on disjoint data need none of this: replacing one record then costs the largest of them
# (parallel composition). Gaussian mechanisms should be composed as such, which is exact.


# Roots are rounded towards the larger epsilon by this relative amount, far above their error.
_MARGIN = 1e-11


def basic(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Basic composition: the sums of the epsilons and of the deltas.

    Source: Dwork & Roth 2014, Theorem 3.16. Raises InputError when the deltas add up to 1 or more:
    nothing is guaranteed then.
    """
    parts = list(guarantees)
    return Guarantee(math.fsum(g.epsilon for g in parts), math.fsum(g.delta for g in parts))


def advanced(each: Guarantee, count: int, slack: float) -> Guarantee:
    """Advanced composition of `count` mechanisms with the same guarantee, for `slack` more delta.

    (sqrt(2 k ln(1/slack)) e + k e (exp(e) - 1), k d + slack) for k = count and each = (e, d).
    Better than basic composition only for many mechanisms of small e. slack in (0, 1).
    Source: Dwork, Rothblum & Vadhan 2010; Dwork & Roth 2014, Theorem 3.20.
    """
    k = integer("count", count, at_least=0)
    slack = number("slack", slack, above=0, below=1)
    e = each.epsilon
    total = math.sqrt(-2.0 * k * math.log(slack)) * e + k * e * math.expm1(e)
    return Guarantee(total, k * each.delta + slack)


def gaussian(mus: Iterable[float], delta: float) -> Guarantee:
    """Exact composition of Gaussian mechanisms of parameters mu_i: one of mu^2 = sum mu_i^2.

    Source: Dong, Roth & Su 2022, Corollary 3.3; Balle & Wang 2018, Theorem 8.
    """
    return Guarantee(epsilon_of(compose(mus), delta), delta)


# ---- zero-concentrated differential privacy: rho adds up -----------------------------------------


def rho_of_mu(mu: float) -> float:
    """rho = mu^2 / 2 of a Gaussian mechanism. Source: Bun & Steinke 2016, Proposition 1.6."""
    return number("mu", mu, at_least=0) ** 2 / 2.0


def rho_of_pure(epsilon: float) -> float:
    """rho = epsilon^2 / 2 of any (epsilon, 0)-private mechanism.

    Source: Bun & Steinke 2016, Proposition 1.4.
    """
    return number("epsilon", epsilon, at_least=0) ** 2 / 2.0


def rho_of_bounded_range(eta: float) -> float:
    """rho = eta^2 / 8 of a mechanism of range bounded by eta, as the exponential mechanism is.

    Source: Cesar & Rogers 2021.
    """
    return number("eta", eta, at_least=0) ** 2 / 8.0


def compose_rho(rhos: Iterable[float]) -> float:
    """rho of several mechanisms: the sum. Source: Bun & Steinke 2016, Lemma 1.7."""
    return math.fsum(number("rho", rho, at_least=0) for rho in rhos)


def classic_epsilon_of_rho(rho: float, delta: float) -> float:
    """rho + 2 sqrt(rho ln(1/delta)), delta > 0. Source: Bun & Steinke 2016, Proposition 1.3."""
    rho = number("rho", rho, at_least=0)
    delta = number("delta", delta, above=0, below=1)
    return rho + 2.0 * math.sqrt(-rho * math.log(delta))


def rho_of_epsilon(epsilon: float, delta: float) -> float:
    """Largest rho for the classic formula: (sqrt(ln(1/delta) + epsilon) - sqrt(ln(1/delta)))^2.

    In closed form, and so safe for dividing a budget: rho/k for each of k mechanisms.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    tail = -math.log(number("delta", delta, above=0, below=1))
    # The difference of the roots, without its cancellation at small epsilon.
    root = epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail))
    return root * root


def _log_delta_of_rho(epsilon: float, rho: float) -> float:
    """Compute ln of delta_of_rho before it is cut at 1, for rho > 0."""

    # With u = ln(alpha - 1) the exponent's derivative in alpha is slope(u), which increases:
    # below 0 at the lower end since ln(1 + e^-u) > -u there, above 0 at the upper end.
    def slope(u: float) -> float:
        """Derivative of the exponent in alpha, increasing in u."""
        return (2.0 * math.exp(u) + 1.0) * rho - epsilon - _log1pexp(-u)

    low, high = -(3.0 * rho + 1.0), max(0.0, math.log(epsilon + 1.0) - math.log(2.0 * rho))
    u = float(brentq(slope, low, high, xtol=1e-14, rtol=1e-14))
    less = math.exp(u)  # alpha - 1; any alpha gives a true bound, so rounding here costs nothing
    alpha = 1.0 + less
    return less * (alpha * rho - epsilon) - u - alpha * _log1pexp(-u)


def _log1pexp(x: float) -> float:
    """Compute ln(1 + e^x) without overflow."""
    return x + math.log1p(math.exp(-x)) if x > 0.0 else math.log1p(math.exp(x))


def delta_of_rho(epsilon: float, rho: float) -> float:
    """Least delta that rho-zCDP gives at epsilon through one Renyi order, the best one:

    min over alpha > 1 of exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1).
    Source: Canonne, Kamath & Steinke 2020, Section 2.3.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    rho = number("rho", rho, at_least=0)
    return math.exp(min(0.0, _log_delta_of_rho(epsilon, rho))) if rho else 0.0


def epsilon_of_rho(rho: float, delta: float) -> float:
    """Least epsilon >= 0 with delta_of_rho(epsilon, rho) <= delta, rounded up; delta > 0.

    Never above the classic formula. Source: Canonne, Kamath & Steinke 2020, Section 2.3.
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


#: How many shares of delta for one record a group's account tries, the largest delta / members.
_SHARES = 40


def group_epsilon(exact: Callable[[float], float], members: int, delta: float) -> float:
    """Least epsilon found for a group of so many records that are replaced together.

    ``exact(delta)``: the epsilon proven for one record at delta >= 0, which falls as delta grows.
    One record after the other: if one is (e, d)-private, k are (k e, d (1 + exp(e) + ... +
    exp((k - 1) e)))-private; at delta = 0 that is k e. The d of one record is searched on a
    logarithmic grid below delta / k, so the answer holds, and is the best of the grid. math.inf
    where none of it gives delta. Source: Dwork & Roth 2014, Theorem 2.2; Vadhan 2017, Lemma 2.2.

    Raises InputError for members < 1 and delta outside [0, 1).
    """
    k = integer("members", members, at_least=1)
    delta = number("delta", delta, at_least=0, below=1)
    if k == 1:
        return exact(delta)
    found = k * exact(0.0)
    if delta == 0.0:
        return found
    for step in range(_SHARES):
        log_each = math.log(delta) - math.log(k) * (1.0 + 0.5 * step)
        if log_each < -700.0:
            break
        epsilon = exact(math.exp(log_each))
        # ln of the geometric sum, bounded from above by k times its last and largest term.
        most = math.log(k) + (k - 1) * epsilon
        if epsilon > 0.0 and (k - 1) * epsilon < 700.0:
            most = min(most, math.log(math.expm1(k * epsilon)) - math.log(math.expm1(epsilon)))
        if log_each + most + _MARGIN <= math.log(delta):
            found = min(found, k * epsilon)
    return found * (1.0 + _MARGIN)


# ---- A secret coin for each user -----------------------------------------------------------------
#
# A user's record enters a Gaussian release with probability p, by a coin that nobody outside the
# user's silo sees. "Absent" is then a third world between the two that a guarantee compares, and
# most of the time the user is in it. docs/own-rounds.md proves what is computed here.

# Bounds are raised, and roots lowered, by these relative amounts: far above rounding (1e-11).
_SAMPLING_MARGIN = 1e-10
_STEPS = 200


def _checked(p: object, zeta: object) -> tuple[float, float]:
    """Check the coin and the ratio of sensitivities."""
    return number("p", p, above=0.0, at_most=1.0), number("zeta", zeta, at_least=0.5)


def _bound(epsilon: float, p: float, zeta: float, mu: float) -> float:
    """Compute `sampled_delta` for arguments that were checked before."""
    plain = p * gaussian_delta(epsilon, mu)
    if p == 1.0 or epsilon == 0.0:
        return plain
    # e^inner = 1 + (e^epsilon - 1) / p and weight = e^(epsilon - inner), without overflow.
    rest = 1.0 - (1.0 - p) * math.exp(-epsilon)
    inner = math.log1p(math.expm1(epsilon) / p) if epsilon < 1.0 else epsilon + math.log(rest / p)
    weight = min(1.0, p / rest)
    absent = gaussian_delta(inner, zeta * mu)
    mixed = p * ((1.0 - weight) * absent + weight * gaussian_delta(inner, mu))
    return min(plain, mixed * (1.0 + _SAMPLING_MARGIN))


def sampled_delta(epsilon: float, p: float, zeta: float, mu: float) -> float:
    """Bound delta of a Gaussian release that one record enters with probability p.

    Parameters
    ----------
    epsilon : float
        >= 0.
    p : float
        Probability that the record enters, in (0, 1], independent of everything else.
    zeta : float
        Sensitivity to a record's absence over that to its replacement, >= 1/2 (a replacement is
        two steps through absence).
    mu : float
        GDP parameter of the release under replacement, if the record entered for certain; >= 0.

    Returns
    -------
    float
        delta in [0, 1): with it the release is (epsilon, delta)-private under replacement. A proven
        upper bound, at most that without the coin.

    Raises
    ------
    InputError
        For arguments out of range.

    Notes
    -----
    Guarantee: replacement of one record that enters at most once, before an observer who sees the
    release but not the coin. Whatever the coin decides beyond it, such as a count of those who
    entered, must carry noise as well and be part of zeta and mu.

    With e^e0 = 1 + (e^epsilon - 1) / p and b = e^(epsilon - e0),

        delta = p min(delta_mu(epsilon), (1 - b) delta_(zeta mu)(e0) + b delta_mu(e0)),

    delta_mu the Gaussian mechanism's. Source: advanced joint convexity, Balle, Barthe & Gaboardi
    2018, Theorem 2; proof in docs/own-rounds.md.
    """
    p, zeta = _checked(p, zeta)
    epsilon = number("epsilon", epsilon, at_least=0.0)
    return _bound(epsilon, p, zeta, number("mu", mu, at_least=0.0))


def sampled_epsilon(delta: float, p: float, zeta: float, mu: float) -> float:
    """Find an epsilon for which `sampled_delta` is at most delta: the least one if zeta <= 1.

    Parameters
    ----------
    delta : float
        In [0, 1).
    p, zeta, mu : float
        As in `sampled_delta`.

    Returns
    -------
    float
        epsilon >= 0, rounded towards the larger one; at most that without the coin, and infinite
        when delta = 0 < mu.

    Raises
    ------
    InputError
        For arguments out of range.
    """
    p, zeta = _checked(p, zeta)
    delta = number("delta", delta, at_least=0.0, below=1.0)
    mu = number("mu", mu, at_least=0.0)
    if delta >= p * gaussian_delta(0.0, mu):
        return 0.0
    # delta / p < 1 here, and p delta_mu(high) is at most delta.
    high = gaussian_epsilon(mu, delta / p)
    if p == 1.0 or not math.isfinite(high):
        return high
    # ``high`` always keeps delta, so that it may be returned; the bound falls in epsilon if
    # zeta <= 1, and may rise near 0 otherwise.
    low = 0.0
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if _bound(middle, p, zeta, mu) <= delta:
            high = middle
        else:
            low = middle
    return high


def sampled_mu(epsilon: float, delta: float, p: float, zeta: float) -> float:
    """Largest mu with `sampled_delta` at most delta: the noise is then sensitivity / mu.

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
        mu >= 0 under replacement, rounded towards the smaller one, at least that without the coin;
        infinite where delta >= p.

    Raises
    ------
    InputError
        For arguments out of range.
    """
    p, zeta = _checked(p, zeta)
    epsilon = number("epsilon", epsilon, at_least=0.0)
    delta = number("delta", delta, at_least=0.0, below=1.0)
    if delta == 0.0:
        return 0.0
    if delta >= p:
        return math.inf
    # The bound grows in mu. ``low`` keeps delta: without the coin it costs delta / p < 1.
    low = gaussian_mu(epsilon, delta)
    high = 2.0 * low
    while _bound(epsilon, p, zeta, high) <= delta:
        low, high = high, 2.0 * high
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if _bound(epsilon, p, zeta, middle) <= delta:
            low = middle
        else:
            high = middle
    return low
