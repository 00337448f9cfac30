"""Display of values in notebooks and terminals.

Lower layers define values and import no reporting code. `Displayed` gives such a value the hooks
that IPython and rich call; the renderer behind them is registered from above, when `fastfed` is
imported, and loaded when the first value is displayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Renderer(Protocol):
    """Functions that turn a value into HTML, rich output or text, and results into a plot."""

    def as_html(self, value: Any) -> str: ...

    def as_rich(self, value: Any) -> Any: ...

    def as_text(self, value: Any) -> str: ...

    def plot(self, results: Any, ax: Any = None, **options: Any) -> Axes: ...


_loader: Callable[[], Any] | None = None


def register_renderer(load: Callable[[], Any]) -> None:
    """Set the function that loads the renderer; it is called whenever a value is displayed."""
    global _loader
    _loader = load


def renderer() -> Renderer:
    """The registered renderer.

    Raises RuntimeError if none was registered, which importing `fastfed` does.
    """
    if _loader is None:
        raise RuntimeError("no renderer is registered: import fastfed first")
    loaded: Renderer = _loader()
    return loaded


class Displayed:
    """Mixin of values that display themselves: HTML in notebooks, styled text wherever rich prints.

    ``repr`` is left as it is.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(renderer().as_html(self))

    def __rich__(self) -> Any:
        return renderer().as_rich(self)
