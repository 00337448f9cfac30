"""Registries of names in a spec: built-in entries, and entry points of installed packages.

Packages are searched only for names that are not built in, or when all names are listed. Entries
are imported at their first use, so that a broken package affects only specs that use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastfed._validate import InputError, nearest, show

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name: built-in entries first, then entries of installed packages.

    A package cannot take a built-in name, and a name that two packages claim is refused.

    Parameters
    ----------
    group : str
        Entry point group, such as "fastfed.algorithms".
    what : str
        Name of one entry for messages, such as "algorithm".
    builtin : mapping
        Built-in entries.
    check : callable
        ``check(name, loaded)`` returns the entry for the object loaded from an entry point. It
        raises InputError, with the expected type, if the object is unsuitable.
    """

    def __init__(
        self, group: str, what: str, builtin: Mapping[str, T], check: Callable[[str, Any], T]
    ) -> None:
        """Store the arguments; no package is searched yet."""
        self.group, self.what, self.builtin = group, what, dict(builtin)
        self._check = check
        self._loaded: dict[str, T] = {}

    @cached_property
    def _found(self) -> dict[str, list[EntryPoint]]:
        """Return the entry points of packages by name, including those that cannot be loaded."""
        from importlib.metadata import entry_points

        points_by_name: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            points_by_name.setdefault(point.name, []).append(point)
        return dict(sorted(points_by_name.items()))

    @property
    def plugins(self) -> tuple[str, ...]:
        """Return the names that packages add, including those that cannot be loaded."""
        return tuple(name for name in self._found if name not in self.builtin)

    def __contains__(self, name: object) -> bool:
        """Return True for a built-in name or a name that a package adds."""
        return name in self.builtin or name in self._found

    def __iter__(self) -> Iterator[str]:
        """Iterate over all names, built-in names first."""
        yield from self.builtin
        yield from self.plugins

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.builtin) + len(self.plugins)

    def __getitem__(self, name: str) -> T:
        """Return the entry of a name; import it from its package at the first use.

        Raises InputError if the package's entry cannot be loaded or is unsuitable, or if several
        packages have this name. The error names the package and the entry point.
        """
        if name in self.builtin:
            return self.builtin[name]
        if name not in self._loaded:
            points = self._found[name]
            if len(points) > 1:
                raise InputError(
                    f'{self.what} "{name}" is claimed by {" and by ".join(map(_package, points))}; '
                    "uninstall all but one"
                )
            self._loaded[name] = self._load(points[0])
        return self._loaded[name]

    def _load(self, point: EntryPoint) -> T:
        """Import the object of an entry point; return the entry that ``check`` makes of it."""
        source = f'{self.what} "{point.name}" of {_describe(point)}'
        try:
            loaded = point.load()
        # Importing a third-party module may raise any exception.
        except (Exception, SystemExit) as error:
            raise InputError(f"{source} cannot be loaded: {_reason(error)}") from error
        try:
            return self._check(point.name, loaded)
        except InputError as error:
            raise InputError(f"{source} {error}") from None

    def choose(self, name: object) -> T:
        """Return the entry of a name in a spec; an InputError suggests the nearest known name."""
        if not isinstance(name, str) or name not in self:
            raise InputError(
                f'unknown {self.what} "{name}"{nearest(str(name), self)} (known: {", ".join(self)})'
            )
        return self[name]

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        """Run a block that calls the entry ``name``; convert exceptions of packages' entries.

        Such exceptions become InputErrors that name the package. Exceptions that are InputErrors
        already, and exceptions of built-in entries, do not change.
        """
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            if name in self.builtin or name not in self._found:
                raise
            packages = " and ".join(map(_describe, self._found[name]))
            raise InputError(
                f'{self.what} "{name}" of {packages} failed: {_reason(error)}'
            ) from error

    def origin(self, name: str) -> str | None:
        """Return the package and version that add a name; None for built-in names."""
        if name in self.builtin or name not in self._found:
            return None
        return " and ".join(map(_package, self._found[name]))

    def problems(self) -> dict[str, str]:
        """Load all plugins, and return {name: reason} for those that cannot be used."""
        reasons = {}
        for name, points in self._found.items():
            if name in self.builtin:
                packages = " and ".join(map(_describe, points))
                reasons[name] = (
                    f'{self.what} "{name}" of {packages} is refused: fastfed has one already'
                )
                continue
            try:
                self[name]
            except InputError as error:
                reasons[name] = str(error)
        return reasons


def _package(point: EntryPoint) -> str:
    """Return the name and version of the package that has an entry point."""
    if point.dist is None:
        return "an unknown package"
    return f"{point.dist.metadata['Name']} {point.dist.version}"


def _describe(point: EntryPoint) -> str:
    """Return a text with the package, its version and the definition of an entry point."""
    return f"{_package(point)} (entry point {point.group}: {point.name} = {point.value})"


def _reason(error: BaseException) -> str:
    """Return the type and text of an exception on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def must_be(expected: str, value: object) -> InputError:
    """Return the InputError that a registry's ``check`` raises for an unsuitable object."""
    return InputError(f"must be {expected}, got {show(value)}")


def first_line(documented: object) -> str:
    """Return the first line of a docstring, without its full stop."""
    text = inspect.getdoc(documented) if documented is not None else None
    return (text or "").partition("\n")[0].rstrip(".")
