"""Objects that must not be duplicated, because they hold private data or its noise.

A copy, a pickle or a forked process that releases the same data again draws other noise for it, and
the average of many such releases is the data. So these objects cannot be copied or pickled, work
only in the process that made them, and run one call at a time.
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
    """Base of classes that must not be duplicated.

    Methods that change or release anything are decorated with ``once``.
    """

    def __new__(cls, *args: Any, **keys: Any) -> Any:
        made: Any = super().__new__(cls)
        made._process = os.getpid()
        made._turn = threading.RLock()
        return made

    def _refuse(self, what: str) -> NoReturn:
        """Raise InputError: this object cannot be copied, pickled or shared."""
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
    """Make a method run for one caller at a time, and only in the process that made the object."""

    @wraps(method)
    def guarded(self: Any, *args: Any, **keys: Any) -> Any:
        if os.getpid() != self._process:
            self._refuse("used in a forked process")
        with self._turn:
            return method(self, *args, **keys)

    return guarded  # type: ignore[return-value]
