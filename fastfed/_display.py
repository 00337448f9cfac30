"""Display of values in notebooks and terminals.

Lower layers define values and do not import reporting code. The mixin `Displayed` adds the display
hooks of IPython and rich to a value. Importing `fastfed` registers the renderer that these hooks
call; it is loaded when the first value is displayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Renderer(Protocol):
    """Interface of functions that convert values to HTML, rich output or text, and plot results."""

    def as_html(self, value: Any) -> str: ...

    def as_rich(self, value: Any) -> Any: ...

    def as_text(self, value: Any) -> str: ...

    def plot(self, results: Any, ax: Any = None, **options: Any) -> Axes: ...


_loader: Callable[[], Any] | None = None


def register_renderer(load: Callable[[], Any]) -> None:
    """Set the function that loads the renderer; it is called when a value is displayed."""
    global _loader
    _loader = load


def renderer() -> Renderer:
    """Return the registered renderer.

    Raises RuntimeError if there is none; importing `fastfed` registers it.
    """
    if _loader is None:
        raise RuntimeError("no renderer is registered: import fastfed first")
    loaded: Renderer = _loader()
    return loaded


class Displayed:
    """Mixin for values with HTML display in notebooks and styled text where rich prints.

    ``repr`` does not change.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return the value as HTML, for notebooks."""
        return str(renderer().as_html(self))

    def __rich__(self) -> Any:
        """Return the value as styled text, for rich."""
        return renderer().as_rich(self)


class Located:
    """Mixin whose error for a missing attribute or key names the expression that reads the value.

    A class with this mixin implements `where_is`.
    """

    __slots__ = ()

    def where_is(self, name: str) -> str:
        """Return an expression such as "system.certificate.status" that reads ``name``, or "".

        It is called if this object has no attribute ``name``. The result is shown in the error
        message. It is "" if no object inside this one has the attribute either.
        """
        raise NotImplementedError

    # Hidden from type checkers, to which any attribute would otherwise exist.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the expression to write instead if there is one."""
            where = "" if name.startswith("_") else self.where_is(name)
            message = f"{type(self).__name__} has no attribute {name!r}"
            raise AttributeError(f"{message}: write {where}" if where else message)

        def __getitem__(self, key: Any) -> Any:
            """Raise TypeError for a key, with the expression to write instead."""
            name = str(key)
            where = f".{name}" if hasattr(type(self), name) else self.where_is(name)
            hint = f": write {where}" if where else ""
            raise TypeError(f"{type(self).__name__} has attributes, no keys, got {key!r}{hint}")
