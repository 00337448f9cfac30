"""Root finding by Brent's method without importing ``scipy.optimize``.

That import takes longer than a small run, and importing SciPy's compiled ``_zeros`` module also
loads all of ``scipy.optimize``. The steps and their order are those of ``scipy.optimize.brentq``,
so roots are equal bit for bit unless SciPy was compiled with fused multiply-add.
`tests/privacy/test_roots.py` compares the two functions.
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
        Two points at which the function has different signs.
    xtol, rtol : float
        The root is exact up to ``xtol + rtol |root|``.
    maxiter : int
        Largest number of steps.

    Returns
    -------
    float
        The root.

    Raises
    ------
    ValueError
        If the signs at both ends agree, or a function value is NaN.
    RuntimeError
        If there is no convergence after ``maxiter`` steps.

    Notes
    -----
    Source: Brent 1973, Chapter 4, as SciPy's ``brentq.c`` writes it.
    """
    previous, current = float(low), float(high)
    f_previous, f_current = _value(function, previous), _value(function, current)
    if f_previous == 0.0:
        return previous
    if f_current == 0.0:
        return current
    if (f_previous < 0.0) == (f_current < 0.0):
        raise ValueError("f(a) and f(b) must have different signs")
    # The root lies between `current` and `across`, where the function has different signs. The
    # function is closer to 0 at `current`. `previous` is the current point of the last step.
    across = f_across = previous_step = step = 0.0
    for _ in range(maxiter):
        if f_previous != 0.0 and f_current != 0.0 and (f_previous < 0.0) != (f_current < 0.0):
            across, f_across = previous, f_previous
            previous_step = step = current - previous
        if abs(f_across) < abs(f_current):
            previous, current, across = current, across, current
            f_previous, f_current, f_across = f_current, f_across, f_current
        tolerance = (xtol + rtol * abs(current)) / 2.0
        half_interval = (across - current) / 2.0
        if f_current == 0.0 or abs(half_interval) < tolerance:
            return current
        proposed_step = math.inf  # if it stays infinite, bisect
        if abs(previous_step) > tolerance and abs(f_current) < abs(f_previous):
            try:
                if previous == across:  # secant
                    proposed_step = -f_current * (current - previous) / (f_current - f_previous)
                else:  # inverse quadratic
                    slope_previous = (f_previous - f_current) / (previous - current)
                    slope_across = (f_across - f_current) / (across - current)
                    proposed_step = (
                        -f_current
                        * (f_across * slope_across - f_previous * slope_previous)
                        / (slope_across * slope_previous * (f_across - f_previous))
                    )
            except ZeroDivisionError:
                pass
        if 2.0 * abs(proposed_step) < min(abs(previous_step), 3.0 * abs(half_interval) - tolerance):
            previous_step, step = step, proposed_step
        else:
            previous_step = step = half_interval
        previous, f_previous = current, f_current
        if abs(step) > tolerance:
            current += step
        else:
            current += tolerance if half_interval > 0.0 else -tolerance
        f_current = _value(function, current)
    raise RuntimeError(f"failed to converge after {maxiter} iterations, value is {current}")


def _value(function: Callable[[float], float], x: float) -> float:
    """Return the function value at x; raise ValueError if it is NaN."""
    value = float(function(x))
    if math.isnan(value):
        raise ValueError(f"the function value at x = {x} is NaN; solver cannot continue")
    return value
