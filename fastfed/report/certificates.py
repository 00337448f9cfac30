"""The certificates of all curves as text, one after the other under their labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastfed.privacy.certificate import as_text


def certificates_text(certificates: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """(label, certificate as stored) of every curve, readable."""
    return "\n".join(
        f"{label}\n{'=' * len(label)}\n{as_text(stored)}" for label, stored in certificates
    )
