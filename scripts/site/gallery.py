"""Run the pages of the gallery while the site is built, and add their output to them.

A page is Markdown whose Python blocks run in order, as one script. After each block come its
printed text and the figures that it leaves open, for light and for dark pages.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
#: Colour of text and axes, by colour scheme of the page.
INK = {"light": "#1b1f24", "dark": "#e2e4e9"}
#: For each page, the Markdown to insert after each of its blocks.
_outputs: dict[str, list[str]] = {}
#: File name, title and first paragraph of each page.
_cards: list[tuple[str, str, str]] = []


def run(folder: Path, order: list[str]) -> dict[str, bytes]:
    """Run every page in this order, and return the figures as SVG, by file name."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["figure.figsize"] = 5.0, 3.2
    images: dict[str, bytes] = {}
    _outputs.clear()
    _cards.clear()
    for path in [folder / name for name in order]:
        text = path.read_text(encoding="utf-8")
        scope: dict[str, Any] = {"__name__": "page"}
        _outputs[path.name] = []
        for position, block in enumerate(BLOCK.findall(text)):
            stdout = io.StringIO()
            with contextlib.redirect_stdout(stdout):
                exec(compile(block, f"docs/gallery/{path.name}", "exec"), scope)
            text_output = stdout.getvalue()
            shown = f"```text\n{text_output.rstrip()}\n```\n" if text_output else ""
            _outputs[path.name].append(shown + _figures(path.stem, position, images))
        title, first_paragraph = re.findall(r"^# (.*)\n+((?:.+\n)+)", text)[0]
        _cards.append((path.name, title, " ".join(first_paragraph.split())))
    return images


def _figures(stem: str, position: int, images: dict[str, bytes]) -> str:
    """Save all open figures to ``images`` and close them; return the Markdown that shows them."""
    from matplotlib import pyplot

    markdown = ""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        name = f"{stem}-{position}-{number}"
        for scheme, ink in INK.items():
            recolour(figure, ink)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", bbox_inches="tight", transparent=True)
            images[f"{name}-{scheme}.svg"] = buffer.getvalue()
            markdown += f"\n![Figure drawn by the code above]({name}-{scheme}.svg#only-{scheme})\n"
        pyplot.close(figure)
    return markdown


def recolour(figure: Any, ink: str) -> None:
    """Draw text, axes and black curves in the colour ``ink``, on a transparent background."""
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    def neutral(colour: Any) -> bool:
        """Return True if a colour is nearly black, or one of `INK`."""
        return max(to_rgb(colour)) < 0.3 or colour in INK.values()

    figure.patch.set_alpha(0.0)
    for axes in figure.axes:
        axes.set_facecolor("none")
        axes.tick_params(colors=ink, which="both")
        for spine in axes.spines.values():
            spine.set_edgecolor(ink)
        for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
            line.set(color=ink, alpha=0.15)
    for legend in figure.findobj(lambda artist: hasattr(artist, "get_frame")):
        legend.get_frame().set_alpha(0.0)
    for artist in figure.findobj():
        if isinstance(artist, (Text, Line2D)) and neutral(artist.get_color()):
            artist.set_color(ink)


def filled(name: str, markdown: str) -> str:
    """Return a page with the output of its blocks; for the index, with a card for every page."""
    if name == "index.md":
        return markdown + "\n" + _grid()
    outputs = iter(_outputs[name])
    return BLOCK.sub(lambda match: match[0] + "\n" + next(outputs), markdown)


def _grid() -> str:
    """Return the Markdown of the cards; a card shows the first figure in both colour schemes."""
    cards = []
    for name, title, first_paragraph in _cards:
        images = re.findall(r"!\[.*?\]\((.*?)\)", "".join(_outputs[name]))[:2]
        shown = "".join(f"![]({image})" for image in images)
        cards.append(f"-   {shown}\n\n    **[{title}]({name})**\n\n    {first_paragraph}\n")
    return '<div class="grid cards gallery" markdown>\n\n' + "\n".join(cards) + "\n</div>\n"
