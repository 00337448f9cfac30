"""Divide the curves of a figure into panels, and choose their colours, dashes and names.

``facet``, ``colour`` and ``dash`` of a [figure] name keys of curves whose values determine panel,
colour and dashes. Without them, up to ``MAX_CURVES`` curves are one panel. More curves are divided
by the key that gives the fewest panels.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastfed._validate import InputError, nearest
from fastfed.reporting.figure import Source
from fastfed.reporting.text import is_private, spaced
from fastfed.results.results import CurveResult

#: Paul Tol's "bright" scheme, which suits any colour vision, with pale colours last.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44", "#BBBBBB")
#: Dashes of lines. The first len(COLOURS) curves have DASHES[0], the next DASHES[1], and so on.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
NOT_PRIVATE_COLOUR = "#000000"
NOT_PRIVATE_DASHES = (
    *((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-"),
    *((0, (12, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)), (0, (12, 2, 3, 2))),
)

#: Most curves in a panel, and most panels. If there are more curves, only the best are drawn.
MAX_CURVES, MAX_PANELS = 8, 8
MAX_DRAWN = MAX_CURVES * MAX_PANELS
N_BEST = 7

#: Symbols of keys in plots.
SYMBOLS = {
    "epsilon": "ε",
    "delta": "δ",
    "alpha": "α",
    "rho_min": "ρ_min",
    "silos": "M",
    "dimension": "d",
    "batch_size": "B",
    "experts": "N",
}
#: Keys that every curve has, in addition to the keys of its table in the spec.
COMMON_KEYS = ("label", "algorithm", "protocol", "silos", "dimension")
#: Key for the names of the keys that a sweep has added to a label, separated by commas.
SWEPT_KEYS = " swept"
_PAIR = re.compile(r"(.+), ([A-Za-z_][A-Za-z_0-9]*) = ([^,=]+)")


@dataclass(frozen=True)
class Panel:
    """The curves of one pair of axes, with the style and the short name of each."""

    title: str  # what its curves have in common; empty if it is the only panel
    curves: tuple[CurveResult, ...]
    styles: tuple[dict[str, Any], ...]
    names: tuple[str, ...]  # labels without the parts that all curves of the panel share
    looks: tuple[str, ...]  # labels without the keys of the facet
    others: tuple[CurveResult, ...] = ()  # further curves; only the range of their values is drawn


def split_label(label: str) -> tuple[str, dict[str, str]]:
    """Split a label such as "LDP, epsilon = 1.0" into ("LDP", {"epsilon": "1.0"}).

    The first part is the label in the spec; a sweep over keys has added the other parts.
    """
    pairs: dict[str, str] = {}
    while match := _PAIR.fullmatch(label):
        label, key, value = match.groups()
        pairs = {key: value, **pairs}
    return label, pairs


def keys_of(source: Source) -> list[dict[str, str]]:
    """Return a table of keys for every curve, with values as text.

    The table has the keys of the curve's table in the spec, `COMMON_KEYS`, and the swept keys of
    the curve's label. "label" is the label in the spec, without the values that a sweep has added.
    `SWEPT_KEYS` lists the swept keys, joined by commas; it is empty without a sweep.
    """
    spec_tables = {c["label"]: c for c in source.identity.get("curves", ())}
    keys = []
    for curve in source.results.curves:
        base, pairs = split_label(curve.label)
        stored = {k: str(v) for k, v in spec_tables.get(curve.label, {}).items() if v is not None}
        common_keys = {key: str(getattr(curve, key)) for key in COMMON_KEYS}
        keys.append({**stored, **common_keys, **pairs, "label": base, SWEPT_KEYS: ", ".join(pairs)})
    return keys


def figure_keys(source: Source, name: str) -> tuple[str, ...]:
    """Return the keys of curves that ``figure.colour``, ``figure.dash`` or ``figure.facet`` lists.

    ``name`` is "colour", "dash" or "facet".
    """
    value = source.results.figure.get(name, ())
    return (value,) if isinstance(value, str) else tuple(value)


def check_grammar(figure: dict[str, Any], curves: Iterable[dict[str, Any]]) -> None:
    """Raise InputError unless ``colour``, ``dash`` and ``facet`` name keys that curves have.

    ``curves`` are the tables of the curves in the spec.
    """
    known_keys = {*COMMON_KEYS}
    for table in curves:
        known_keys |= {*table, *split_label(str(table.get("label", "")))[1]}
    for name in ("colour", "dash", "facet"):
        value = figure.get(name, ())
        for key in (value,) if isinstance(value, str) else value:
            if key not in known_keys:
                raise InputError(
                    f'figure.{name} must be a key of curves, got "{key}"'
                    f"{nearest(key, sorted(known_keys))}"
                )


# ---- Panels --------------------------------------------------------------------------------------


def panels(source: Source) -> list[Panel]:
    """Return the panels of a figure.

    If the figure has no ``facet``, each panel has at most ``MAX_CURVES`` curves. More than
    ``MAX_DRAWN`` curves are then one panel: the curves of least regret and the range of all curves.
    """
    curves = source.results.curves
    keys = keys_of(source)
    facet = _facet(source, keys)
    if len(curves) > MAX_DRAWN and not figure_keys(source, "facet"):
        return [_overview(source)]
    styles = _styles(source, keys, facet)
    if facet is None:
        # Panels of about equal size: nine curves are four and five.
        count = max(1, -(-len(curves) // MAX_CURVES))
        edges = [len(curves) * k // count for k in range(count + 1)]
        chunks = [range(*pair) for pair in itertools.pairwise(edges)]
        titles = [f"curves {c[0] + 1} to {c[-1] + 1}" if len(chunks) > 1 else "" for c in chunks]
        groups: list[tuple[str, Sequence[int]]] = list(zip(titles, chunks, strict=True))
    else:
        groups = _groups(keys, facet)
    return [
        Panel(
            title,
            tuple(curves[i] for i in members),
            tuple(styles[i] for i in members),
            tuple(_names([curves[i].label for i in members], facet or ())),
            tuple(_look(curves[i].label, facet or ()) for i in members),
        )
        for title, members in groups
    ]


#: Colour of the range of curves that are not drawn as lines.
RANGE_COLOUR = "#999999"


def curve_styles(curves: Sequence[CurveResult], shown: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return colour and dashes of every curve, as they are in the curve's panel."""
    styles = {
        curve.label: style
        for panel in shown
        for curve, style in zip(panel.curves, panel.styles, strict=True)
    }
    not_drawn = {"color": RANGE_COLOUR, "linestyle": "-"}
    return [styles.get(curve.label, not_drawn) for curve in curves]


def _overview(source: Source) -> Panel:
    """Return a panel with the curves of least final regret, in front of the range of all curves."""
    curves = source.results.curves
    chosen = least_regret(curves)
    styles = line_styles(chosen)
    names = _names([c.label for c in chosen], ())
    return Panel("", chosen, tuple(styles), tuple(names), tuple(names), curves)


def least_regret(curves: Sequence[CurveResult]) -> tuple[CurveResult, ...]:
    """Return the ``N_BEST`` curves of least final regret, in the order of ``curves``."""
    best = sorted(range(len(curves)), key=lambda i: (float(curves[i].mean[-1]), i))[:N_BEST]
    return tuple(curves[i] for i in sorted(best))


def _facet(source: Source, keys: Sequence[dict[str, str]]) -> tuple[str, ...] | None:
    """Return the keys whose values divide the curves into panels.

    They are the keys of ``figure.facet``, or else the key that gives the fewest panels. None means
    one panel, or panels of at most ``MAX_CURVES`` consecutive curves if there are more curves.
    """
    if chosen := figure_keys(source, "facet"):
        return chosen
    if len(keys) <= MAX_CURVES:
        return None
    candidates: dict[str, None] = {}
    for curve in source.results.curves:
        candidates.update(dict.fromkeys(split_label(curve.label)[1]))
    fitting = []
    for key in (*candidates, "label"):
        groups = _groups(keys, (key,))
        if 1 < len(groups) <= MAX_PANELS and max(len(m) for _, m in groups) <= MAX_CURVES:
            fitting.append((len(groups), key))
    return (min(fitting, key=lambda each: each[0])[1],) if fitting else None


def _groups(
    keys: Sequence[dict[str, str]], facet: Sequence[str]
) -> list[tuple[str, Sequence[int]]]:
    """Return the title and the positions of the curves of each panel.

    Curves without the keys of the facet are in every panel if no panel then has more than
    ``MAX_CURVES`` curves. Otherwise they are in a separate panel.
    """
    by_values: dict[tuple[str, ...], list[int]] = {}
    without_keys = []
    # If a sweep varies a key of the facet, a curve counts as having this key only if the curve is
    # from such a sweep. The same key in the curve's table of the spec is not enough.
    by_sweep = {k for k in facet if any(k in table[SWEPT_KEYS].split(", ") for table in keys)}
    for i, table in enumerate(keys):
        swept = table[SWEPT_KEYS].split(", ")
        has_keys = all(k in table and (k not in by_sweep or k in swept) for k in facet)
        # With the facet "label" alone, a curve counts as having the key only if a sweep made it.
        if has_keys and (facet != ("label",) or table[SWEPT_KEYS]):
            by_values.setdefault(tuple(table[k] for k in facet), []).append(i)
        else:
            without_keys.append(i)
    largest = max((len(members) for members in by_values.values()), default=0)
    everywhere = without_keys if by_values and largest + len(without_keys) <= MAX_CURVES else []
    groups: list[tuple[str, Sequence[int]]] = [
        (
            ", ".join(_key_text(k, v) for k, v in zip(facet, values, strict=True)),
            sorted([*members, *everywhere]),
        )
        for values, members in by_values.items()
    ]
    if without_keys and not everywhere:
        groups.append(("others" if by_values else "", without_keys))
    return groups


def _styles(
    source: Source, keys: Sequence[dict[str, str]], facet: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Return colour and dashes of every curve; ``keys`` is the result of `keys_of`.

    Curves that differ only in the keys of the facet are in different panels, and look the same.
    """
    curves = source.results.curves
    colour, dash = figure_keys(source, "colour"), figure_keys(source, "dash")
    if not colour and not dash and facet is None:
        return line_styles(curves)
    hidden = facet or ()
    # The look of a curve is what tells it from other curves within a panel: (label without swept
    # values, is private, further pairs (key, value)). Curves with equal looks get the same style.
    looks: list[tuple[Any, ...]] = []
    for curve in curves:
        base, pairs = split_label(curve.label)
        visible = [p for p in pairs.items() if p[0] not in hidden]
        name = "" if "label" in hidden and visible else base
        looks.append((name, is_private(curve.certificate), *visible))
    if not colour and not dash:
        # Style the first curve of each look; all other curves of this look get the same style.
        first_by_look = {look: i for i, look in reversed(list(enumerate(looks)))}
        firsts = sorted(set(first_by_look.values()))
        first_styles = line_styles(tuple(curves[i] for i in firsts))
        style_by_first = dict(zip(firsts, first_styles, strict=True))
        return [style_by_first[first_by_look[look]] for look in looks]
    # The values that determine the colour of each curve, and those that determine its dashes.
    by_colour = [tuple(t.get(k, "") for k in colour) for t in keys]
    by_dash = [tuple(t.get(k, "") for k in dash) for t in keys]
    if not colour:
        by_colour = [(look[0], *(str(p) for p in look[2:] if p[0] not in dash)) for look in looks]
    private = [is_private(c.certificate) for c in curves]
    # The distinct values, in order: the position of a value determines the colour or the dashes.
    colour_values = list(dict.fromkeys(v for i, v in enumerate(by_colour) if private[i] or colour))
    dash_values = list(dict.fromkeys(by_dash))
    styles = []
    looks_by_shade: dict[Any, list[Any]] = {}
    for i, look in enumerate(looks):
        black = not colour and not private[i]
        shade = (
            NOT_PRIVATE_COLOUR
            if black
            else COLOURS[colour_values.index(by_colour[i]) % len(COLOURS)]
        )
        if dash and not (black and by_dash[i] == ("",) * len(dash)):
            position = dash_values.index(by_dash[i])
        else:
            # Curves of one colour that look different get different dashes.
            shade_looks = looks_by_shade.setdefault(shade, [])
            if look not in shade_looks:
                shade_looks.append(look)
            position = shade_looks.index(look)
        dashes = NOT_PRIVATE_DASHES if black else DASHES
        styles.append({"color": shade, "linestyle": dashes[position % len(dashes)]})
    return styles


def line_styles(curves: tuple[CurveResult, ...]) -> list[dict[str, Any]]:
    """Return colour and dashes of every curve; curves without privacy are black."""
    styles = []
    private = not_private = 0
    for curve in curves:
        if not is_private(curve.certificate):
            dashes: Any = NOT_PRIVATE_DASHES[not_private % len(NOT_PRIVATE_DASHES)]
            styles.append({"color": NOT_PRIVATE_COLOUR, "linestyle": dashes})
            not_private += 1
        else:
            dashes = DASHES[private // len(COLOURS) % len(DASHES)]
            styles.append({"color": COLOURS[private % len(COLOURS)], "linestyle": dashes})
            private += 1
    return styles


# ---- Names ---------------------------------------------------------------------------------------


def symbols(text: str) -> str:
    """Replace keys in a label by symbols: "LDP, epsilon = 1.0" becomes "LDP, ε = 1"."""
    base, pairs = split_label(text)
    texts = [f"{SYMBOLS.get(k, k)} = {number_text(v)}" for k, v in pairs.items()]
    base = re.sub(r"\bepsilon\b", "ε", re.sub(r"\bdelta\b", "δ", base))
    return ", ".join([base, *texts])


def _key_text(key: str, value: str) -> str:
    """Format a key and its value for a plot: "M = 10", or only "direct" for a text."""
    if key == "label" or (key not in SYMBOLS and not _is_number(value)):
        return symbols(value)
    return f"{SYMBOLS.get(key, key)} = {number_text(value)}"


def _is_number(text: str) -> bool:
    """Return True if a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def sort_key(text: str) -> tuple[bool, float, str]:
    """Return the key by which values of a swept key are sorted: numbers first, then texts."""
    return (False, float(text), "") if _is_number(text) else (True, 0.0, text)


def number_text(text: str) -> str:
    """Format a number for reading: 1 for 1.0, 32 000 for 32000; other text stays as it is."""
    if not _is_number(text):
        return text
    number = float(text)
    if number == int(number) and 1e4 <= abs(number) < 1e9:
        return spaced(number)
    return f"{number:.12g}".replace("e-0", "e-")


def _look(label: str, facet: Sequence[str]) -> str:
    """Return a label for the legend, without the keys of the facet, which are in panel titles."""
    base, pairs = split_label(label)
    visible = [_key_text(k, v) for k, v in pairs.items() if k not in facet]
    return ", ".join([*([] if "label" in facet and visible else [symbols(base)]), *visible])


def _names(labels: Sequence[str], facet: Sequence[str]) -> list[str]:
    """Return short names of the curves of a panel.

    A short name has the swept keys that are not in the facet. The label in the spec comes before
    them, unless all curves share it or the facet has "label". Without such keys, the short name is
    the label in the spec. Return the full labels if the short names would not be distinct.
    """
    split = [split_label(label) for label in labels]
    same_base = len({base for base, _ in split}) == 1 and len(split) > 1
    names = []
    for base, pairs in split:
        visible = [_key_text(k, v) for k, v in pairs.items() if k not in facet]
        with_base = "label" not in facet and not (same_base and visible)
        names.append(", ".join([symbols(base), *visible] if with_base or not visible else visible))
    return names if len(set(names)) == len(names) else [symbols(label) for label in labels]
