"""The keys of a spec's [figure] table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fastfed._validate import InputError, choice, integer, nearest, show
from fastfed.report.lines import check_lines
from fastfed.report.statements import check_statements

#: Cumulative group regret, or the same divided by the round or by the curve's number of silos.
AXES = ("cumulative", "time-average", "per-silo")

#: Tables of sizes, and what ``size`` may say was played.
SIZES = ("quick", "all", "full")

KEYS = (
    "id", "paper", "title", "says", "y", "panels", "note", "long", *SIZES, "size",
    "statement", "line",
)  # fmt: skip
_LISTS = ("panels", "note")
#: What a table of sizes may change.
_SIZE_KEYS = ("horizon", "replicates")


def check_figure(
    figure: Any,
    labels: Sequence[str] | None = None,
    bounds: Mapping[str, Collection[str]] | None = None,
) -> None:
    """InputError unless ``figure`` is a table that a report can be drawn from.

    ``labels`` of the curves, where they are known, are those that statements and lines may
    name; ``bounds``, where they are known, are the names of each curve's.
    """
    if not isinstance(figure, dict):
        raise InputError(f"figure must be a table, got {show(figure)}")
    for key, value in figure.items():
        if key not in KEYS:
            raise InputError(f'unknown key "{key}" in figure{nearest(key, KEYS)}')
        if key in SIZES:
            _check_size(key, value)
            continue
        if key == "statement":
            check_statements(value, labels)
            continue
        if key == "line":
            check_lines(value, labels, bounds)
            continue
        listed = key in _LISTS and isinstance(value, list)
        if not all(isinstance(v, str) for v in (value if listed else [value])):
            wanted = "a text or a list of texts" if key in _LISTS else "a text"
            raise InputError(f"figure.{key} must be {wanted}, got {show(value)}")
    choice("figure.y", figure.get("y", AXES[0]), AXES)
    choice("figure.size", figure.get("size", SIZES[0]), SIZES)


def _check_size(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise InputError(f"figure.{key} must be a table, got {show(value)}")
    for name in value:
        if name not in _SIZE_KEYS:
            raise InputError(f'unknown key "{name}" in figure.{key}{nearest(name, _SIZE_KEYS)}')
        integer(f"figure.{key}.{name}", value[name], at_least=1)
