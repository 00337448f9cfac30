"""Pairwise masks of a secure sum without a third party: X25519, HKDF and ChaCha20.

Every two silos agree on a key from the keys that the plan file has of them, so no message is needed
for it. Masks are a function of that key and the release: they cancel in the sum over all silos, and
in nothing less.
"""

from __future__ import annotations

import numpy as np

from fastfed.deployment._crypto import Identity, keyed_digest, keystream
from fastfed.deployment.plans import DeployedPlan

_MASK = b"fastfed mask"


class PairMasks:
    """One silo's masks, of every other silo one.

    Parameters
    ----------
    deployed : DeployedPlan
        The plan file, verified; its SHA-256 is part of every key.
    silo : int
        The own index.
    identity : Identity
        The own keys.

    Raises
    ------
    InputError
        For a public key with which no key can be agreed.

    Notes
    -----
    Guarantee: to whoever knows no secret of two silos, the mask that they share is uniform, as far
    as X25519, HKDF, BLAKE2b and ChaCha20 keep what is assumed of them. It is that of one release of
    one plan: two rows under one mask show their difference, so a silo makes one.
    """

    def __init__(self, deployed: DeployedPlan, silo: int, identity: Identity) -> None:
        self._silo = silo
        self._keys = {
            other: identity.agreed_with(party.open, deployed.digest)
            for other, party in enumerate(deployed.document.silos)
            if other != silo
        }

    def at(self, release: int, size: int) -> np.ndarray:
        """The sum of the masks of a release, modulo 2^64, (size,) of uint64.

        Of two silos the one with the smaller index adds their mask, the other subtracts it.
        """
        total = np.zeros(size, dtype=np.uint64)
        for other, key in self._keys.items():
            stream = keystream(keyed_digest(key, _MASK, release.to_bytes(8, "big")), 8 * size)
            mask = np.frombuffer(stream, dtype="<u8")
            if other > self._silo:
                total += mask
            else:
                total -= mask
        return total
