"""Every key of an experiment as text, in the order a person would write a spec."""

from __future__ import annotations

import json
import re
from typing import Any

FIRST = {
    "": ("name", "horizon", "silos", "replicates", "seed", "checkpoints"),
    "environment": ("kind",),
    "line": ("label", "curve", "bound"),
    "curve": ("label", "algorithm", "protocol", "epsilon", "delta", "batch_size", "lazy"),
}

#: Of an identity: tables of their own, and what a spec does not say.
NOT_TOP = ("environment", "curves", "semantics", "accounts")

#: Of [figure]: tables of their own, and sizes other than those that were played.
NOT_OF_SPEC = ("statement", "line", "size", "long", "quick", "all", "full")


def spec_text(identity: dict[str, Any], replicates: int, figure: dict[str, Any]) -> str:
    """The tables of a spec, in TOML but for what the environment says of its data.

    ``identity`` has every key with its value; one whose value is left to the algorithm is a
    comment.
    """
    top = {k: v for k, v in identity.items() if k not in NOT_TOP}
    plain = {k: v for k, v in figure.items() if k not in NOT_OF_SPEC}
    blocks = [
        _table("", {**top, "replicates": replicates}),
        _table("figure", plain, "[figure]") if plain else "",
        *(_table("statement", s, "[[figure.statement]]") for s in figure.get("statement", ())),
        *(_table("line", line, "[[figure.line]]") for line in figure.get("line", ())),
        _table("environment", identity["environment"], "[environment]"),
        *(_table("curve", curve, "[[curve]]") for curve in identity["curves"]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(kind: str, keys: dict[str, Any], heading: str = "") -> str:
    first = FIRST.get(kind, ())
    ordered = [k for k in first if k in keys] + sorted(k for k in keys if k not in first)
    lines = [heading] if heading else []
    for key in ordered:
        value = keys[key]
        lines.append(f"# {key}: the default" if value is None else f"{key} = {as_toml(value)}")
    return "\n".join(lines)


def as_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(k)} = {as_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(as_toml(v) for v in value)}]"
    if value is None:
        return '""'
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    """A key of a table inside a line: the name of a column may need quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)
