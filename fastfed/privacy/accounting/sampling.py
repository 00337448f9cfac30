"""Gaussian releases that a secret coin decides to enter, one coin for each user.

A user's record enters a release with probability p, by a coin that nobody outside the user's silo
sees. "Absent" is then a third world between the two that a guarantee compares, and most of the time
the user is in it. docs/own-rounds.md proves what is computed here.
"""

from __future__ import annotations

import math

from fastfed._validate import number
from fastfed.privacy.accounting.gdp import gaussian_delta, gaussian_epsilon, gaussian_mu

# Bounds are raised, and roots lowered, by these relative amounts: far above rounding (1e-11).
_MARGIN = 1e-10
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
    return min(plain, mixed * (1.0 + _MARGIN))


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
