"""A root by Brent's method, without SciPy's optimizers, whose import takes longer than a small run.

Its compiled function is no way around: ``scipy.optimize._zeros`` loads all of ``scipy.optimize``.
The steps are those of ``scipy.optimize.brentq`` in their order, so roots have its bits where it
neither fuses multiplications and additions; `tests/privacy/test_roots.py` compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def brentq(
    function: Callable[[float], float],
    low: float,
    high: float,
    xtol: float = 2e-12,
    rtol: float = 8.881784197001252e-16,
    maxiter: int = 100,
) -> float:
    """Return a root of a function between two points at which its signs differ.

    Parameters
    ----------
    function : callable
        Continuous; may return infinity.
    low, high : float
        The two points.
    xtol, rtol : float
        The root is exact up to ``xtol + rtol |root|``.
    maxiter : int
        Most steps.

    Returns
    -------
    float
        The root.

    Raises
    ------
    ValueError
        If the signs at both ends agree, and where a value is not a number.
    RuntimeError
        After ``maxiter`` steps.

    Notes
    -----
    Source: Brent 1973, Chapter 4, as SciPy's ``brentq.c`` writes it.
    """
    before, here = float(low), float(high)
    at_before, at_here = _value(function, before), _value(function, here)
    if at_before == 0.0:
        return before
    if at_here == 0.0:
        return here
    if (at_before < 0.0) == (at_here < 0.0):
        raise ValueError("f(a) and f(b) must have different signs")
    # The root lies between here and across.
    across = at_across = last = step = 0.0
    for _ in range(maxiter):
        if at_before != 0.0 and at_here != 0.0 and (at_before < 0.0) != (at_here < 0.0):
            across, at_across = before, at_before
            last = step = here - before
        if abs(at_across) < abs(at_here):
            before, here, across = here, across, here
            at_before, at_here, at_across = at_here, at_across, at_here
        least = (xtol + rtol * abs(here)) / 2.0
        half = (across - here) / 2.0
        if at_here == 0.0 or abs(half) < least:
            return here
        tried = math.inf  # halve
        if abs(last) > least and abs(at_here) < abs(at_before):
            try:
                if before == across:  # secant
                    tried = -at_here * (here - before) / (at_here - at_before)
                else:  # inverse quadratic
                    one = (at_before - at_here) / (before - here)
                    other = (at_across - at_here) / (across - here)
                    tried = (
                        -at_here
                        * (at_across * other - at_before * one)
                        / (other * one * (at_across - at_before))
                    )
            except ZeroDivisionError:
                pass
        if 2.0 * abs(tried) < min(abs(last), 3.0 * abs(half) - least):
            last, step = step, tried
        else:
            last = step = half
        before, at_before = here, at_here
        if abs(step) > least:
            here += step
        else:
            here += least if half > 0.0 else -least
        at_here = _value(function, here)
    raise RuntimeError(f"failed to converge after {maxiter} iterations, value is {here}")


def _value(function: Callable[[float], float], x: float) -> float:
    value = float(function(x))
    if math.isnan(value):
        raise ValueError(f"the function value at x = {x} is NaN; solver cannot continue")
    return value
