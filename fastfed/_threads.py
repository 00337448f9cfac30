"""One thread for linear algebra whose result must not depend on the number of threads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread.

    The matrices here are small: more threads wait for one another, and are much slower on a busy
    machine. They also divide sums differently, which changes the last bits of results.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits
