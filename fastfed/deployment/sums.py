"""Rows of secure sums that nobody may see: in two shares, or under pairwise masks.

Of two additive shares, each uniform, one is the hub's, and the other only the helper can read.

Masks need no third party (X25519, HKDF, ChaCha20). Every two silos agree on a key from the keys
that the plan file has of them. A mask is a function of that key, the release, and the two silos'
*sessions* of it; a session is a function of what the report of a silo hides, and goes through the
hub to all others before they report. Masks cancel in the sum over all silos, and in nothing less;
and a silo that has lost its state and its ledger, and so makes another report of a release, has
other masks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed.deployment import wire
from fastfed.deployment._crypto import KEY, Identity, keyed_digest, keystream, sealed_to
from fastfed.deployment.party import Speaker
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import SealedNoise
from fastfed.deployment.store import Write
from fastfed.deployment.wire import Refused, packed

_MASK = b"fastfed mask"

# ---- shares --------------------------------------------------------------------------------------


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


# ---- masks ---------------------------------------------------------------------------------------


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
    Guarantee: to whoever knows no secret of two silos, the masks that they share are uniform and
    independent for different releases and sessions, as far as X25519, HKDF, BLAKE2b and ChaCha20
    keep what is assumed of them. A false session from the hub makes the sum useless, and tells
    nothing: the two silos then have different masks, both unknown.
    """

    def __init__(self, deployed: DeployedPlan, silo: int, identity: Identity) -> None:
        self._silo = silo
        self._keys = {
            other: identity.agreed_with(party.open, deployed.digest)
            for other, party in enumerate(deployed.document.silos)
            if other != silo
        }

    def at(self, release: int, size: int, sessions: Sequence[bytes]) -> np.ndarray:
        """The sum of the masks of a release, modulo 2^64, (size,) of uint64.

        sessions: of all silos, in order. Of two silos the one with the smaller index adds their
        mask, the other subtracts it.
        """
        total = np.zeros(size, dtype=np.uint64)
        for other, key in self._keys.items():
            pair = (sessions[i] for i in sorted((other, self._silo)))
            own = keyed_digest(key, _MASK, release.to_bytes(8, "big"), *pair)
            mask = np.frombuffer(keystream(own, 8 * size), dtype="<u8")
            if other > self._silo:
                total += mask
            else:
                total -= mask
        return total


class Sessions:
    """What one silo has told of its sessions, and heard of all.

    Attributes
    ----------
    told : dict of int to bytes
        The own session by release; durable before it leaves, and then the leaf is closed.
    lists : dict of int to tuple of bytes
        The sessions of all silos by release, the own one among them; durable.
    foreign : set of int
        Releases of which the hub has another session than this silo; heard since the start.
    """

    def __init__(self, deployed: DeployedPlan, silo: int) -> None:
        self._silo, self._count = silo, deployed.plan.silos
        self._releases = deployed.plan.releases
        self._needed = deployed.masked
        self.told: dict[int, bytes] = {}
        self.lists: dict[int, tuple[bytes, ...]] = {}
        self.foreign: set[int] = set()

    @property
    def last(self) -> int:
        """The last leaf whose session was told: nothing enters it any more."""
        return max(self.told, default=0)

    def missing(self, release: int) -> bool:
        """True if a report of this release needs sessions that have not come."""
        return self._needed and 1 <= release <= self._releases and release not in self.lists

    def heard(self, release: int, body: wire.Sessions, own: bytes) -> tuple[tuple[Write, ...], str]:
        """What a list of the hub leads to: writes, and what is wrong with it.

        Raises
        ------
        Refused
            For a list that is not one of every silo.
        """
        if not self._needed or len(body.values) != self._count:
            raise Refused(f"the sessions of release {release} must be of {self._count} silos")
        if any(len(session) != KEY for session in body.values):
            raise Refused(f"the sessions of release {release} must have {KEY} bytes each")
        known = self.lists.get(release)
        if known is not None:
            same = known == body.values
            return (), "" if same else f"the hub sent two lists of sessions of release {release}"
        if body.values[self._silo] != own:
            self.foreign.add(release)
            return (), ""
        return (Write("sessions", str(release), wire.encoded(body)),), ""

    def fold(self, write: Write) -> None:
        """Take in a session that was told, or a list, that is durable."""
        release = int(write.key)
        if write.kind == "session":
            self.told[release] = write.value
        else:
            self.lists[release] = wire.sessions_of(write.value)
