"""One thread for linear algebra whose result must not depend on the number of threads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread.

    The matrices in this context are small: several threads would wait for one another, and be much
    slower on a busy machine. How BLAS splits a sum also depends on its number of threads, so with
    more threads the last bits of results would change.
    """
    from threadpoolctl import threadpool_limits

    limits: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limits
