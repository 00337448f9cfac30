"""Rows in two additive shares, each uniform: the hub's, and one that the helper alone can read."""

from __future__ import annotations

import numpy as np

from fastfed.deployment import wire
from fastfed.deployment._crypto import sealed_to
from fastfed.deployment.party import Speaker
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import SealedNoise
from fastfed.deployment.wire import packed


def in_shares(
    speaker: Speaker, index: int, release: int, row: np.ndarray, sealing: SealedNoise
) -> bytes:
    """The report of a row (s,) of words, in two shares.

    Parameters
    ----------
    speaker : Speaker
        The silo.
    index, release : int
        Whose row of what.
    row : ndarray, shape (s,)
    sealing : SealedNoise
        Makes the uniform share, a function of what the row hides.
    """
    deployed = speaker.deployed
    helper = deployed.document.helper
    assert helper is not None
    pad, seed = sealing.pad(index, release, len(row))
    inner = speaker.made(release, wire.Report(packed(pad)))
    context = share_context(deployed, index, release)
    sealed = sealed_to(helper.open, inner, context, seed)
    return speaker.made(release, wire.Report(packed(row - pad), sealed))


def share_context(deployed: DeployedPlan, silo: int, release: int) -> bytes:
    """What a share for the helper is bound to."""
    return deployed.digest + silo.to_bytes(8, "big") + release.to_bytes(8, "big")
