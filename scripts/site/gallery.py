"""The gallery's pages are run while the site is built: what they print and draw is added to them.

A page is Markdown whose Python blocks run in order, as one script. What a block prints follows it,
and so do the pictures that it leaves open, for light and for dark pages.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
INK = {"light": "#1b1f24", "dark": "#e2e4e9"}
#: Page: what follows each of its blocks, and its title with its first picture.
_after: dict[str, list[str]] = {}
_cards: list[tuple[str, str, str]] = []


def run(folder: Path, order: list[str]) -> dict[str, bytes]:
    """Run every page, in this order; the pictures by their file's name."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["figure.figsize"] = 5.0, 3.2
    images: dict[str, bytes] = {}
    _after.clear()
    _cards.clear()
    for path in [folder / name for name in order]:
        text = path.read_text(encoding="utf-8")
        scope: dict[str, Any] = {"__name__": "page"}
        _after[path.name] = []
        for position, block in enumerate(BLOCK.findall(text)):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block, f"docs/gallery/{path.name}", "exec"), scope)
            shown = f"```text\n{printed.getvalue().rstrip()}\n```\n" if printed.getvalue() else ""
            _after[path.name].append(shown + _pictures(path.stem, position, images))
        title, first = re.findall(r"^# (.*)\n+((?:.+\n)+)", text)[0]
        _cards.append((path.name, title, " ".join(first.split())))
    return images


def _pictures(stem: str, position: int, images: dict[str, bytes]) -> str:
    from matplotlib import pyplot

    made = ""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        name = f"{stem}-{position}-{number}"
        for scheme, ink in INK.items():
            recolour(figure, ink)
            held = io.BytesIO()
            figure.savefig(held, format="svg", bbox_inches="tight", transparent=True)
            images[f"{name}-{scheme}.svg"] = held.getvalue()
            made += f"\n![The picture that this draws]({name}-{scheme}.svg#only-{scheme})\n"
        pyplot.close(figure)
    return made


def recolour(figure: Any, ink: str) -> None:
    """Words, frames and black curves in one colour, on no ground."""
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    def neutral(colour: Any) -> bool:
        """Nearly black, or an ink of ours."""
        return max(to_rgb(colour)) < 0.3 or colour in INK.values()

    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.tick_params(colors=ink, which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(ink)
        for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
            line.set(color=ink, alpha=0.15)
    for legend in figure.findobj(lambda found: hasattr(found, "get_frame")):
        legend.get_frame().set_alpha(0.0)
    for found in figure.findobj():
        if isinstance(found, (Text, Line2D)) and neutral(found.get_color()):
            found.set_color(ink)


def filled(name: str, markdown: str) -> str:
    """A page with what its blocks print and draw; the index with a card for every page."""
    if name == "index.md":
        return markdown + "\n" + _grid()
    after = iter(_after[name])
    return BLOCK.sub(lambda match: match[0] + "\n" + next(after), markdown)


def _grid() -> str:
    cards = []
    for name, title, first in _cards:
        pictures = re.findall(r"!\[.*?\]\((.*?)\)", "".join(_after[name]))[:2]
        shown = "".join(f"![]({picture})" for picture in pictures)
        cards.append(f"-   {shown}\n\n    **[{title}]({name})**\n\n    {first}\n")
    return '<div class="grid cards gallery" markdown>\n\n' + "\n".join(cards) + "\n</div>\n"
