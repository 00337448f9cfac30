"""The certificates of all curves as text, one after the other under their labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fastfed.privacy.certificate import Certificate, SideCertificate, as_text


class _Side(SideCertificate, frozen=True, kw_only=True):
    """As stored: it was checked when it was made, by types that JSON does not keep."""

    def __post_init__(self) -> None:
        pass


class _Stored(Certificate, frozen=True, kw_only=True):
    """As stored, see above."""

    also: tuple[_Side, ...] = ()

    def __post_init__(self) -> None:
        pass


def certificates_text(certificates: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """(label, certificate as stored) of every curve, readable."""
    parts = []
    for label, stored in certificates:
        text = as_text(msgspec.convert(stored, _Stored))
        parts.append(f"{label}\n{'=' * len(label)}\n{text}")
    return "\n".join(parts)
