"""Identities of experiments, all that decides results: whether one is another with more curves."""

from __future__ import annotations

from typing import Any

#: Keys of an identity that hold something for each curve: its table, or by its label.
OF_CURVES = ("curves", "packages", "accounts")


def moves_of(before: dict[str, Any], now: dict[str, Any]) -> list[int] | None:
    """Position in ``now`` of every curve of ``before``; None unless only curves were added."""
    rest = [{k: v for k, v in each.items() if k not in OF_CURVES} for each in (before, now)]
    if rest[0] != rest[1]:
        return None
    places = {curve["label"]: i for i, curve in enumerate(now["curves"])}
    moves = []
    for curve in before["curves"]:
        label = curve["label"]
        place = places.get(label)
        if place is None or now["curves"][place] != curve:
            return None
        if any(
            before.get(key, {}).get(label) != now.get(key, {}).get(label) for key in OF_CURVES[1:]
        ):
            return None
        moves.append(place)
    return moves


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the names of the first keys in which two identities differ, and which curves."""
    both = {**before, **now}
    keys = [k for k in both if before.get(k) != now.get(k)]
    if keys != ["curves"]:
        return ", ".join(keys) or "keys"
    new = {curve["label"]: curve for curve in now["curves"]}
    for curve in before["curves"]:
        other = new.get(curve["label"])
        if other is None:
            return f'curves: "{curve["label"]}" is not among these'
        differ = [k for k in {**curve, **other} if curve.get(k) != other.get(k)]
        if differ:
            return f'curves: "{curve["label"]}" in {", ".join(differ)}'
    return "curves"
