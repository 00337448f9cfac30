"""How values show themselves in notebooks and terminals.

Layers hold their values and know nothing of looks; `fastfed.report` does. Between them stands the
lazy door of the package, which lies above all layers: it loads the looks when something is shown.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: A lazy name of the package; by name, for its types should not depend on those of a report.
_DOOR = "_notebook"


def notebook() -> Any:
    """`fastfed.report.notebook`, whatever the layer of whoever asks."""
    return getattr(import_module("fastfed"), _DOOR)


class Displayed:
    """A value with looks of its own: as HTML in notebooks, and wherever rich prints it.

    ``repr`` stays what it is.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(notebook().as_html(self))

    def __rich__(self) -> Any:
        return notebook().as_rich(self)
