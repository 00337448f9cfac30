"""Compare the identities of experiments.

The identity of an experiment is the part of its spec that determines its results, as plain data. A
store of results can be extended by an experiment that only adds curves.
"""

from __future__ import annotations

from typing import Any

#: Keys of an identity whose values have an entry for each curve. The value of "curves" is a list,
#: the other values are dicts with the curves' labels as keys.
OF_CURVES = ("curves", "packages", "accounts", "revisions")
#: Keys of a curve that fastfed chooses from the other keys if the spec does not have them.
COMPUTED_KEYS = ("release", "saturation", "batch_first", "batch_ratio")


def positions_in(before: dict[str, Any], now: dict[str, Any]) -> list[int] | None:
    """Return the position in the identity ``now`` of every curve of the identity ``before``.

    ``before`` and ``now`` are identities of two experiments: the parts of their specs that
    determine the results. Return None if they differ in more than curves that ``now`` adds.
    """
    before_rest, now_rest = (
        {k: v for k, v in identity.items() if k not in OF_CURVES} for identity in (before, now)
    )
    if before_rest != now_rest:
        return None
    positions = {curve["label"]: i for i, curve in enumerate(now["curves"])}
    new_positions = []
    for curve in before["curves"]:
        label = curve["label"]
        position = positions.get(label)
        if position is None or now["curves"][position] != curve:
            return None
        # OF_CURVES[1:] are the keys whose values are dicts by label.
        if any(
            before.get(key, {}).get(label) != now.get(key, {}).get(label) for key in OF_CURVES[1:]
        ):
            return None
        new_positions.append(position)
    return new_positions


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return a text that names the keys, or the first curve, in which two identities differ."""
    all_keys = {**before, **now}
    keys = [k for k in all_keys if before.get(k) != now.get(k)]
    if "curves" in keys:
        # If curves differ, so do the other keys with an entry for each curve: name only curves.
        keys = [k for k in keys if k not in OF_CURVES[1:]]
    if keys != ["curves"]:
        return ", ".join(keys) or "keys"
    curves_now = {curve["label"]: curve for curve in now["curves"]}
    for curve in before["curves"]:
        curve_now = curves_now.get(curve["label"])
        if curve_now is None:
            return f'curves: "{curve["label"]}" is not among these'
        changed_keys = [k for k in {**curve, **curve_now} if curve.get(k) != curve_now.get(k)]
        if changed_keys:
            # If a value that the user wrote differs, leave out the values that fastfed computed.
            changed_keys = [k for k in changed_keys if k not in COMPUTED_KEYS] or changed_keys
            return f'curves: "{curve["label"]}" in {", ".join(changed_keys)}'
    return "curves"
