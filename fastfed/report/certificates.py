"""The certificates of all curves as text, one after the other under their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Any

from fastfed.privacy.certificate import WIDTH, as_text


def certificates_text(
    certificates: Iterable[tuple[str, dict[str, Any]]], about_records: Sequence[str] = ()
) -> str:
    """(label, certificate as stored) of every curve, readable; first what none of them covers."""
    blocks = [f"{label}\n{'=' * len(label)}\n{as_text(stored)}" for label, stored in certificates]
    if about_records:
        blocks.insert(0, "\n".join(fill(note, WIDTH) for note in about_records) + "\n")
    return "\n".join(blocks)
