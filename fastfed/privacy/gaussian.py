"""Exact (epsilon, delta) of Gaussian noise, through the one number mu = sensitivity / noise_std.

A Gaussian mechanism with ratio mu satisfies (epsilon, delta) exactly when
delta >= Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)  (Balle & Wang 2018, Thm 8),
and adaptive compositions of Gaussian mechanisms are again one, with mu^2 added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

from fastfed._validate import number

# Roots are taken at a delta smaller by these relative amounts, far above rounding (about 1e-12 at
# delta = 1e-300), so that mu_of never overspends and epsilon_of(mu_of(e, d), d) never exceeds e.
_MU_MARGIN = 1e-10
_EPSILON_MARGIN = 1e-11


@cache
def _nodes() -> list[tuple[float, float]]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]; finding them takes longer than
    their use."""
    from numpy.polynomial.legendre import leggauss

    nodes, weights = leggauss(12)
    return list(zip(nodes.tolist(), weights.tolist(), strict=True))


def _erfcx_slope(z: float) -> float:
    """-(d/dz) erfcx(z) = 2/sqrt(pi) - 2 z erfcx(z), without its cancellation at large z."""
    from scipy.special import erfcx

    if z > 50.0:
        q = 1.0 / (z * z)
        return q / math.sqrt(math.pi) * (1.0 - q * (1.5 - q * (3.75 - q * 13.125)))
    return 2.0 / math.sqrt(math.pi) - 2.0 * z * float(erfcx(z))


def _log_delta(epsilon: float, mu: float) -> float:
    """ln delta_of(epsilon, mu) for mu > 0, also where delta itself underflows.

    With a, b = (epsilon/mu -+ mu/2)/sqrt2 both terms of the formula share the factor exp(-a^2)/2,
    since epsilon = b^2 - a^2; what remains is erfcx(a) - erfcx(b), with no exponentials left to
    cancel and e^epsilon never formed.
    """
    from scipy.special import erfcx, ndtr

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
        gap = half * sum(w * _erfcx_slope(middle + half * u) for u, w in _nodes())
        return math.log(gap) - math.log(2.0) - a * a if gap > 0.0 else -math.inf
    if a < 0.0:
        # erfcx(a) would overflow; here the first term is at least 1/2 and dominates.
        delta = float(ndtr(-a * math.sqrt(2.0))) - 0.5 * math.exp(-a * a) * float(erfcx(b))
        return math.log(min(delta, 1.0))
    gap = float(erfcx(a)) - float(erfcx(b))
    return math.log(gap) - math.log(2.0) - a * a if gap > 0.0 else -math.inf


def delta_of(epsilon: float, mu: float) -> float:
    """Smallest delta for which a Gaussian mechanism of ratio mu is (epsilon, delta)-private.

    epsilon >= 0, mu >= 0 (mu = 0: nothing depends on the data, delta = 0). Relative accuracy is
    about 1e-12 down to the smallest normal double. Source: Balle & Wang 2018, Theorem 8.
    """
    epsilon = number("epsilon", epsilon, at_least=0)
    mu = number("mu", mu, at_least=0)
    return math.exp(_log_delta(epsilon, mu)) if mu > 0 else 0.0


def epsilon_of(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 for which a Gaussian mechanism of ratio mu is (epsilon, delta)-private.

    Exactly 0 when the total variation distance 2 Phi(mu/2) - 1 is already at most delta, and
    infinite when delta = 0 < mu. Rounded towards the larger epsilon.
    """
    from scipy.optimize import brentq

    mu = number("mu", mu, at_least=0)
    delta = number("delta", delta, at_least=0, below=1)
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
    """Largest mu whose Gaussian mechanism is (epsilon, delta)-private: mu* in the accounting notes.

    epsilon >= 0, delta in [0, 1); delta = 0 allows only mu = 0. The noise that just meets the
    budget is noise_std = sensitivity / mu_of(epsilon, delta). Rounded towards the smaller mu.
    """
    from scipy.optimize import brentq
    from scipy.special import erfinv

    epsilon = number("epsilon", epsilon, at_least=0)
    delta = number("delta", delta, at_least=0, below=1)
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
    """Ratio of several Gaussian mechanisms run one after another, inputs chosen adaptively.

    mu = sqrt(sum mu_i^2); an empty composition has mu = 0.
    """
    return math.hypot(*(number("mu", mu, at_least=0) for mu in mus))
