"""The grammar of figures: which curves share axes, and what tells them apart there.

``facet``, ``colour`` and ``dash`` of a [figure] name keys of curves. Without them a figure of up to
``MOST`` curves is one panel, and one of more is divided by the key that gives the fewest panels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastfed._validate import InputError, nearest
from fastfed.reporting.figure import Source
from fastfed.reporting.text import is_private
from fastfed.results.results import CurveResult

#: Paul Tol's "bright" scheme, for any colour vision, the pale ones last.
COLOURS = ("#4477AA", "#EE6677", "#228833", "#AA3377", "#66CCEE", "#CCBB44", "#BBBBBB")
#: Dashes of the curves beyond the number of colours.
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
NOT_PRIVATE = "#000000"
NOT_PRIVATE_DASHES = (
    *((0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-"),
    *((0, (12, 2)), (0, (3, 1, 1, 1, 1, 1)), (0, (2, 3)), (0, (12, 2, 3, 2))),
)

#: Curves in one panel, and panels in a figure; of more curves the best are drawn.
MOST, MOST_PANELS = 8, 8
MOST_DRAWN = MOST * MOST_PANELS
BEST = 7

#: What a key is called in a picture.
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
#: Keys of every curve that a figure may name beside those of its table.
OF_ALL = ("label", "algorithm", "protocol", "silos", "dimension")
#: Which keys a sweep has added to a label.
SWEPT = " swept"
_PAIR = re.compile(r"(.+), ([A-Za-z_][A-Za-z_0-9]*) = ([^,=]+)")


@dataclass(frozen=True)
class Panel:
    """Curves in one axes, with style and short name of each."""

    title: str  # what its curves have in common; empty where it is the only panel
    curves: tuple[CurveResult, ...]
    styles: tuple[dict[str, Any], ...]
    names: tuple[str, ...]  # without what all of the panel have in common
    looks: tuple[str, ...]  # labels without what the panel is named after
    others: tuple[CurveResult, ...] = ()  # curves that only their range is drawn of


def split_label(label: str) -> tuple[str, dict[str, str]]:
    """The label of a table, and the values that a sweep has added to it, by key."""
    pairs: dict[str, str] = {}
    while found := _PAIR.fullmatch(label):
        label, key, value = found.groups()
        pairs = {key: value, **pairs}
    return label, pairs


def keys_of(source: Source) -> list[dict[str, str]]:
    """Every key of every curve with its value as text; "label" is that of its table."""
    tables = {c["label"]: c for c in source.identity.get("curves", ())}
    found = []
    for curve in source.results.curves:
        base, pairs = split_label(curve.label)
        stored = {k: str(v) for k, v in tables.get(curve.label, {}).items() if v is not None}
        whole = {key: str(getattr(curve, key)) for key in OF_ALL}
        found.append({**stored, **whole, **pairs, "label": base, SWEPT: ", ".join(pairs)})
    return found


def asked(source: Source, name: str) -> tuple[str, ...]:
    """Keys of curves that ``figure.colour``, ``figure.dash`` or ``figure.facet`` names."""
    value = source.results.figure.get(name, ())
    return (value,) if isinstance(value, str) else tuple(value)


def check_grammar(figure: dict[str, Any], curves: Iterable[dict[str, Any]]) -> None:
    """Raise InputError unless the grammar names keys that curves have.

    ``curves``: tables of keys, with "label".
    """
    known = {*OF_ALL}
    for table in curves:
        known |= {*table, *split_label(str(table.get("label", "")))[1]}
    for name in ("colour", "dash", "facet"):
        value = figure.get(name, ())
        for key in (value,) if isinstance(value, str) else value:
            if key not in known:
                raise InputError(
                    f'figure.{name} must be a key of curves, got "{key}"'
                    f"{nearest(key, sorted(known))}"
                )


# ---- Panels --------------------------------------------------------------------------------------


def panels(source: Source) -> list[Panel]:
    """The panels of a figure, each of at most ``MOST`` curves unless ``facet`` asks for more."""
    curves = source.results.curves
    keys = keys_of(source)
    facet = _facet(source, keys)
    if len(curves) > MOST_DRAWN and not asked(source, "facet"):
        return [_overview(source)]
    styles = _styles(source, keys, facet)
    if facet is None:
        chunks = [range(i, min(i + MOST, len(curves))) for i in range(0, len(curves), MOST)]
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


def curve_styles(source: Source) -> list[dict[str, Any]]:
    """Colour and dashes of every curve, as its panel draws it."""
    keys = keys_of(source)
    if len(keys) > MOST_DRAWN and not asked(source, "facet"):
        (panel,) = panels(source)
        known = dict(zip((c.label for c in panel.curves), panel.styles, strict=True))
        grey = {"color": OTHERS, "linestyle": "-"}
        return [known.get(c.label, grey) for c in source.results.curves]
    return _styles(source, keys, _facet(source, keys))


#: Colour of curves that only their range is drawn of.
OTHERS = "#999999"


def _overview(source: Source) -> Panel:
    """The curves of least final regret, before the range of all."""
    curves = source.results.curves
    chosen = least_regret(curves)
    styles = line_styles(chosen)
    names = _names([c.label for c in chosen], ())
    return Panel("", chosen, tuple(styles), tuple(names), tuple(names), curves)


def least_regret(curves: Sequence[CurveResult]) -> tuple[CurveResult, ...]:
    """The ``BEST`` curves of least final regret, in their order."""
    best = sorted(range(len(curves)), key=lambda i: (float(curves[i].mean[-1]), i))[:BEST]
    return tuple(curves[i] for i in sorted(best))


def _facet(source: Source, keys: Sequence[dict[str, str]]) -> tuple[str, ...] | None:
    """Keys that divide the curves into panels; None for one panel, or as many as it takes."""
    if chosen := asked(source, "facet"):
        return chosen
    if len(keys) <= MOST:
        return None
    candidates: dict[str, None] = {}
    for curve in source.results.curves:
        candidates.update(dict.fromkeys(split_label(curve.label)[1]))
    fitting = []
    for key in (*candidates, "label"):
        groups = _groups(keys, (key,))
        if 1 < len(groups) <= MOST_PANELS and max(len(m) for _, m in groups) <= MOST:
            fitting.append((len(groups), key))
    return (min(fitting, key=lambda each: each[0])[1],) if fitting else None


def _groups(
    keys: Sequence[dict[str, str]], facet: Sequence[str]
) -> list[tuple[str, Sequence[int]]]:
    """Title and curves of each panel. Curves without the keys are in every panel, if they fit."""
    found: dict[tuple[str, ...], list[int]] = {}
    without = []
    # A key that a sweep varies is one of the curves of that sweep.
    by_sweep = {k for k in facet if any(k in table[SWEPT].split(", ") for table in keys)}
    for i, table in enumerate(keys):
        swept = table[SWEPT].split(", ")
        has = all(k in table and (k not in by_sweep or k in swept) for k in facet)
        if has and (facet != ("label",) or table[SWEPT]):
            found.setdefault(tuple(table[k] for k in facet), []).append(i)
        else:
            without.append(i)
    largest = max((len(members) for members in found.values()), default=0)
    everywhere = without if found and largest + len(without) <= MOST else []
    groups: list[tuple[str, Sequence[int]]] = [
        (
            ", ".join(_said(k, v) for k, v in zip(facet, values, strict=True)),
            sorted([*members, *everywhere]),
        )
        for values, members in found.items()
    ]
    if without and not everywhere:
        groups.append(("others" if found else "", without))
    return groups


def _styles(
    source: Source, keys: Sequence[dict[str, str]], facet: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Colour and dashes of every curve: what differs by the facet alone looks alike."""
    curves = source.results.curves
    colour, dash = asked(source, "colour"), asked(source, "dash")
    if not colour and not dash and facet is None:
        return line_styles(curves)
    hidden = facet or ()
    looks: list[tuple[Any, ...]] = []
    for curve in curves:
        base, pairs = split_label(curve.label)
        own = [p for p in pairs.items() if p[0] not in hidden]
        named = "" if "label" in hidden and own else base
        looks.append((named, is_private(curve.certificate), *own))
    if not colour and not dash:
        first = {look: i for i, look in reversed(list(enumerate(looks)))}
        chosen = sorted(set(first.values()))
        of_first = dict(zip(chosen, line_styles(tuple(curves[i] for i in chosen)), strict=True))
        return [of_first[first[look]] for look in looks]
    by_colour = [tuple(t.get(k, "") for k in colour) for t in keys]
    by_dash = [tuple(t.get(k, "") for k in dash) for t in keys]
    if not colour:
        by_colour = [(look[0], *(str(p) for p in look[2:] if p[0] not in dash)) for look in looks]
    private = [is_private(c.certificate) for c in curves]
    coloured = list(
        dict.fromkeys(v for v, own in zip(by_colour, private, strict=True) if own or colour)
    )
    dashed = list(dict.fromkeys(by_dash))
    styles = []
    seen: dict[Any, list[Any]] = {}
    for i, look in enumerate(looks):
        black = not colour and not private[i]
        shade = NOT_PRIVATE if black else COLOURS[coloured.index(by_colour[i]) % len(COLOURS)]
        if dash and not (black and by_dash[i] == ("",) * len(dash)):
            at = dashed.index(by_dash[i])
        else:
            before = seen.setdefault(shade, [])
            if look not in before:
                before.append(look)
            at = before.index(look)
        dashes = NOT_PRIVATE_DASHES if black else DASHES
        styles.append({"color": shade, "linestyle": dashes[at % len(dashes)]})
    return styles


def line_styles(curves: tuple[CurveResult, ...]) -> list[dict[str, Any]]:
    """Colour and dashes of every curve; curves without privacy are black."""
    styles = []
    private = other = 0
    for curve in curves:
        if not is_private(curve.certificate):
            dashes: Any = NOT_PRIVATE_DASHES[other % len(NOT_PRIVATE_DASHES)]
            styles.append({"color": NOT_PRIVATE, "linestyle": dashes})
            other += 1
        else:
            dashes = DASHES[private // len(COLOURS) % len(DASHES)]
            styles.append({"color": COLOURS[private % len(COLOURS)], "linestyle": dashes})
            private += 1
    return styles


# ---- Names ---------------------------------------------------------------------------------------


def symbols(text: str) -> str:
    """A label with the papers' symbols: "LDP, epsilon = 1.0" becomes "LDP, ε = 1"."""
    base, pairs = split_label(text)
    said = [f"{SYMBOLS.get(k, k)} = {_value(v)}" for k, v in pairs.items()]
    base = re.sub(r"\bepsilon\b", "ε", re.sub(r"\bdelta\b", "δ", base))
    return ", ".join([base, *said])


def _said(key: str, value: str) -> str:
    """A key with its value in a panel: "M = 10", "direct"."""
    if key == "label" or (key not in SYMBOLS and not _is_number(value)):
        return symbols(value)
    return f"{SYMBOLS.get(key, key)} = {_value(value)}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _value(text: str) -> str:
    """A number as people write it: 1 for 1.0, 3 200 for 3200."""
    if not _is_number(text):
        return text
    number = float(text)
    if number == int(number) and 1e4 <= abs(number) < 1e9:
        return f"{int(number):,}".replace(",", " ")
    return f"{number:.12g}".replace("e-0", "e-")


def _look(label: str, facet: Sequence[str]) -> str:
    base, pairs = split_label(label)
    own = [_said(k, v) for k, v in pairs.items() if k not in facet]
    return ", ".join([*([] if "label" in facet and own else [symbols(base)]), *own])


def _names(labels: Sequence[str], facet: Sequence[str]) -> list[str]:
    """Short names of the curves of a panel, which say nothing that all have in common."""
    split = [split_label(label) for label in labels]
    common = len({base for base, _ in split}) == 1 and len(split) > 1
    names = []
    for base, pairs in split:
        own = [_said(k, v) for k, v in pairs.items() if k not in facet]
        keep = "label" not in facet and not (common and own)
        names.append(", ".join([symbols(base), *own] if keep or not own else own))
    return names if len(set(names)) == len(names) else [symbols(label) for label in labels]
