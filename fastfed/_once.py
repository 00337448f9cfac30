"""Objects that act once: they hold secrets or noise, and two of them would give two views.

A copy, a pickle or a forked process that releases the same data again draws other noise for it, and
the average of many such releases is the data. So these objects cannot be copied, pickled or used
in a process that they were not made in, and one call at a time has them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from fastfed._validate import InputError

F = TypeVar("F", bound=Callable[..., Any])


class Once:
    """Of a class whose objects act once; methods that change or release anything are ``once``."""

    def __new__(cls, *args: Any, **keys: Any) -> Any:
        made: Any = super().__new__(cls)
        made._process = os.getpid()
        made._turn = threading.RLock()
        return made

    def _refuse(self, what: str) -> NoReturn:
        raise InputError(
            f"a {type(self).__name__} cannot be {what}: two of it would release the same data "
            "under two noises; keep one object in one process (save and load, which seal what was "
            "released, come with deployments)"
        )

    def __copy__(self) -> NoReturn:
        self._refuse("copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self._refuse("copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self._refuse("pickled")


def once(method: F) -> F:
    """A method that one caller at a time may run, in the process that made the object."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **keys: Any) -> Any:
        if os.getpid() != self._process:
            self._refuse("used in a forked process")
        with self._turn:
            return method(self, *args, **keys)

    return guarded  # type: ignore[return-value]
