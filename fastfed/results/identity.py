"""Compare the identities of experiments.

The identity of an experiment is the plain data that determine its results. A store can be extended
if the identity of the new experiment only adds curves.
"""

from __future__ import annotations

from typing import Any

#: Keys of an identity with an entry for each curve: a list of tables, or dicts keyed by label.
OF_CURVES = ("curves", "packages", "accounts")


def moves_of(before: dict[str, Any], now: dict[str, Any]) -> list[int] | None:
    """Return the position in ``now`` of every curve of ``before``.

    Return None if ``now`` differs from ``before`` in more than added curves.
    """
    rest = [{k: v for k, v in each.items() if k not in OF_CURVES} for each in (before, now)]
    if rest[0] != rest[1]:
        return None
    positions = {curve["label"]: i for i, curve in enumerate(now["curves"])}
    moves = []
    for curve in before["curves"]:
        label = curve["label"]
        position = positions.get(label)
        if position is None or now["curves"][position] != curve:
            return None
        if any(
            before.get(key, {}).get(label) != now.get(key, {}).get(label) for key in OF_CURVES[1:]
        ):
            return None
        moves.append(position)
    return moves


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return a text that names the keys, or the first curve, in which two identities differ."""
    union = {**before, **now}
    keys = [k for k in union if before.get(k) != now.get(k)]
    if keys != ["curves"]:
        return ", ".join(keys) or "keys"
    curves_now = {curve["label"]: curve for curve in now["curves"]}
    for curve in before["curves"]:
        curve_now = curves_now.get(curve["label"])
        if curve_now is None:
            return f'curves: "{curve["label"]}" is not among these'
        changed_keys = [k for k in {**curve, **curve_now} if curve.get(k) != curve_now.get(k)]
        if changed_keys:
            return f'curves: "{curve["label"]}" in {", ".join(changed_keys)}'
    return "curves"
