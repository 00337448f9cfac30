"""Secure sums, which hide each silo's row: additive shares and their helper, masks, bit counts.

**Shares.** A row is split into two uniform shares, one for the hub and one that only the helper can
decrypt.

**Masks** (X25519, HKDF, ChaCha20) need no third party. Every two silos agree on a key from their
public keys in the plan file. Their mask is a function of that key, the release and the *sessions*
of both silos. A session is a function of the sums that a silo's report hides. The hub passes it on
to all silos before they report. Masks cancel only in the sum over all silos. A silo that has lost
its state and its ledger, and makes a different report of the same release, has different masks.

**Bit counts.** Permuted bits reveal only how many are ones. A secure sum of all silos' counts is
therefore all that the shuffler of a vector sum reveals (zhou-chowdhury-2024, Algorithms 5-7).
Counts are sent as words modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource
from fastfed.deployment import wire
from fastfed.deployment.ledger import Write
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.seal import (
    KEY,
    Identity,
    SealedNoise,
    digest,
    encrypted_to,
    keyed_digest,
    keystream,
)
from fastfed.deployment.wire import Envelope, Opened, Refused, packed
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Shuffled
from fastfed.protocols.vector_sum import encoding_of, round_statistic

_MASK = b"fastfed mask"
#: First bytes of the context of data that are encrypted to the hub.
TO_HUB = b"hub"

# ---- shares --------------------------------------------------------------------------------------


def in_shares(
    speaker: Speaker, index: int, release: int, row: np.ndarray, sealing: SealedNoise
) -> tuple[np.ndarray, bytes]:
    """Split a row of words into two shares.

    Parameters
    ----------
    speaker : Speaker
        The silo.
    index, release : int
        The silo's index, and the release of the row.
    row : ndarray of uint64, shape (s,)
    sealing : SealedNoise
        Draws the helper's share, as a function of the sums that the row hides.

    Returns
    -------
    ndarray of uint64, shape (s,)
        The hub's share.
    bytes
        The helper's share, encrypted to it.
    """
    deployed = speaker.deployed
    helper = deployed.document.helper
    assert helper is not None
    pad, seed = sealing.pad(index, release, len(row))
    helper_share = speaker.signed(release, wire.Report(packed(pad)))
    context = share_context(deployed, index, release)
    return row - pad, encrypted_to(helper.open, helper_share, context, seed)


def share_context(deployed: DeployedPlan, silo: int, release: int, to: bytes = b"") -> bytes:
    """Return the encryption context of a share for the helper or, with ``to``, of a report."""
    return to + deployed.digest + silo.to_bytes(8, "big") + release.to_bytes(8, "big")


# ---- masks ---------------------------------------------------------------------------------------


class PairMasks:
    """Compute one silo's masks, one for each other silo.

    Parameters
    ----------
    deployed : DeployedPlan
        The verified plan file. Its SHA-256 is part of every key.
    silo : int
        This silo's index.
    identity : Identity
        This silo's keys.

    Raises
    ------
    InputError
        If the public key of a silo is not valid.

    Notes
    -----
    Guarantee: without the secret of either silo, their masks are uniform and independent for
    different releases and sessions, under the usual assumptions on X25519, HKDF, BLAKE2b and
    ChaCha20. A false session from the hub makes the sum useless but reveals nothing: the two silos
    then use different masks, both unknown to the hub.
    """

    def __init__(self, deployed: DeployedPlan, silo: int, identity: Identity) -> None:
        self._silo = silo
        self._keys = {
            other: identity.agreed_with(party.open, deployed.digest)
            for other, party in enumerate(deployed.document.silos)
            if other != silo
        }

    def at(self, release: int, size: int, sessions: Sequence[bytes]) -> np.ndarray:
        """Add up this silo's masks of a release modulo 2^64; uint64, (size,).

        ``sessions`` are the sessions of all silos, in order. Of two silos, the silo with the
        smaller index adds their mask, and the other silo subtracts it.
        """
        total = np.zeros(size, dtype=np.uint64)
        for other, key in self._keys.items():
            pair = (sessions[i] for i in sorted((other, self._silo)))
            key_of_mask = keyed_digest(key, _MASK, release.to_bytes(8, "big"), *pair)
            mask = np.frombuffer(keystream(key_of_mask, 8 * size), dtype="<u8")
            if other > self._silo:
                total += mask
            else:
                total -= mask
        return total


class Sessions:
    """The sessions that one silo has sent, and the lists of all silos' sessions it has received.

    Attributes
    ----------
    sent : dict of int to bytes
        Release -> this silo's session. Durable before it is sent; from then on the leaf is closed.
    lists : dict of int to tuple of bytes
        Release -> the sessions of all silos, in order; durable.
    foreign : set of int
        Releases for which the hub has a session of this silo that this silo would not make. Empty
        after a restart.
    """

    def __init__(self, deployed: DeployedPlan, silo: int) -> None:
        self._silo, self._count = silo, deployed.plan.silos
        self._releases = deployed.plan.releases
        self._masked = deployed.masked
        self.sent: dict[int, bytes] = {}
        self.lists: dict[int, tuple[bytes, ...]] = {}
        self.foreign: set[int] = set()

    @property
    def last(self) -> int:
        """The last leaf whose session was sent: no record enters it any more."""
        return max(self.sent, default=0)

    def missing(self, release: int) -> bool:
        """Return True if a report of this release needs sessions that have not arrived."""
        return self._masked and 1 <= release <= self._releases and release not in self.lists

    def check_list(
        self, release: int, body: wire.Sessions, own: bytes
    ) -> tuple[tuple[Write, ...], str]:
        """Check a list of sessions from the hub.

        Parameters
        ----------
        release : int
        body : wire.Sessions
            The list.
        own : bytes
            This silo's session.

        Returns
        -------
        tuple of Write
            The write that stores the list; empty if there is nothing to store.
        str
            What is wrong with the list; empty if nothing is.

        Raises
        ------
        Refused
            If the list does not have one session of each silo.
        """
        if not self._masked or len(body.values) != self._count:
            raise Refused(f"the sessions of release {release} must be of {self._count} silos")
        if any(len(session) != KEY for session in body.values):
            raise Refused(f"the sessions of release {release} must have {KEY} bytes each")
        stored = self.lists.get(release)
        if stored is not None:
            is_same_list = stored == body.values
            return (
                (),
                "" if is_same_list else f"the hub sent two lists of sessions of release {release}",
            )
        if body.values[self._silo] != own:
            self.foreign.add(release)
            return (), ""
        return (Write("sessions", str(release), wire.encoded(body)),), ""

    def fold(self, write: Write) -> None:
        """Apply a durable write: this silo's session, or a list of all silos'."""
        release = int(write.key)
        if write.kind == "session":
            self.sent[release] = write.value
        else:
            self.lists[release] = wire.sessions_of(write.value)


# ---- the helper ----------------------------------------------------------------------------------


class Helper(Speaker):
    """Run the helper as a state machine.

    Parameters
    ----------
    deployed : DeployedPlan
        The verified plan file, which must have a helper.
    secret : bytes
        32 bytes that only the helper has.
    """

    def __init__(self, deployed: DeployedPlan, secret: bytes) -> None:
        helper = deployed.document.helper
        if helper is None:
            raise Refused("the plan has no helper")
        super().__init__(deployed, helper.name, secret)
        # All of this state is saved in the store.
        #: Release -> the bytes of the answer to its set.
        self.answers: dict[int, bytes] = {}
        #: Release -> the entries of its set.
        self.sets: dict[int, tuple[wire.Entry, ...]] = {}
        self.alarms: list[str] = []
        self._nonce = bytes(16)

    def _waits(self, now: float) -> dict[str, Any]:
        """Report what the helper waits for if the time is ``now``."""
        release, hub = len(self.answers) + 1, self.deployed.document.hub.name
        if self.alarms:
            return waiting("helper", "alarm", 0, None)
        if release > self.plan.releases:
            return waiting("helper", "over", 0, None)
        if self.unanswered(now):
            return waiting("helper", "hub", release, None, [hub])
        since = float(self.deployed.document.calendar.closes[release - 1])
        return waiting("helper", "set", release, since if now >= since else None, [hub])

    def tick(self, now: float) -> Step:
        """Ask the hub for a set that needs the helper's total."""
        body = wire.Join(self._nonce, self.agreement, self.own_time(now))
        data = self.signed(len(self.answers), body)
        return Step((), (Message(self.deployed.document.hub.name, data),))

    def handle(self, data: bytes, now: float) -> Step:
        """Add up the shares of a set that the hub names. The same set gives the same answer."""
        envelope = self.wire.read(data, ("set",))
        if envelope.sender == self.name:
            return self._take_returned_answer(envelope, data)
        if envelope.sender != self.deployed.document.hub.name:
            raise Refused(f"a set must be named by the hub, got one of {envelope.sender}")
        release, body = envelope.release, self.wire.body(envelope, Opened)
        if release in self.sets:
            # A hub that was restored from a backup names no set, but asks which one was opened.
            if body.entries and self.sets[release] != body.entries:
                text = f"the hub asked for a second set of release {release}"
                return Step((Write("alarm", text, text.encode()),), problem=text)
            return self._reply(self.answers[release])
        if release != len(self.answers) + 1 or release > self.plan.releases:
            raise Refused(f"the next set must be of release {len(self.answers) + 1}, got {release}")
        total = self._total(envelope, body)
        answer = self.signed(release, Opened(body.entries, (), total, self._head))
        step = self._reply(answer)
        return step._replace(writes=(Write("answer", str(release), answer),))

    @property
    def _head(self) -> bytes:
        """SHA-256 of the last answer; empty before the first."""
        return digest(self.answers[len(self.answers)]) if self.answers else b""

    def _take_returned_answer(self, envelope: Envelope, data: bytes) -> Step:
        """Store an answer that this helper gave before it was restored from a backup."""
        release = envelope.release
        if release in self.answers:
            if self.answers[release] == data:
                return Step()
            text = f"this helper opened two sets of release {release}: it was restored in between"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if release != len(self.answers) + 1:
            raise Refused(f"the next answer must be of release {len(self.answers) + 1}")
        if self.wire.body(envelope, Opened).before != self._head:
            text = f"an answer of this helper to release {release} does not follow its last one"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        return Step((Write("answer", str(release), data),))

    def _reply(self, answer: bytes) -> Step:
        """Send an answer to the hub."""
        return Step((), (Message(self.deployed.document.hub.name, answer),))

    def _total(self, envelope: Envelope, body: Opened) -> bytes:
        """Decrypt and add up the helper's shares of a set."""
        release, label = envelope.release, f"the hub for release {envelope.release}"
        wire.check_entries(body.entries, self.plan.silos, label)
        least = self.deployed.document.least
        if len(body.entries) < least or len(body.sealed) != len(body.entries) or body.total:
            raise Refused(
                f"the set of {label} must be of {least} silos at least, with their shares"
            )
        total = np.zeros(self.plan.statistic_size, dtype=np.uint64)
        for entry, sealed in zip(body.entries, body.sealed, strict=True):
            name = self.deployed.silos[entry.silo]
            decrypted = self.identity.decrypt(
                sealed, share_context(self.deployed, entry.silo, release)
            )
            share = self.wire.read(decrypted, ("report",))
            if (share.sender, share.release) != (name, release):
                raise Refused(f"a share of {label} is of {share.sender}, release {share.release}")
            report = self.wire.body(share, wire.Report)
            if report.sealed:
                raise Refused(f"the share of {name} is a report")
            total = total + self.wire.words(report.values, f"the share of {name}")
        return packed(total)

    def fold(self, write: Write) -> None:
        """Apply a durable write to the state."""
        if write.kind == "answer":
            release = int(write.key)
            self.answers[release] = write.value
            self.sets[release] = self.wire.body(self.wire.read(write.value), Opened).entries
        elif write.kind == "alarm":
            self.alarms.append(write.value.decode())


# ---- counts of bits ------------------------------------------------------------------------------

#: Counts less their mean are multiples of 1 / PARTS, because the mean of a noise bit is 1/4.
PARTS = 4


# ---- counts --------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A record of one silo: its number from 1, the leaf that it entered, and its statistic (s,)."""

    number: int
    leaf: int
    point: np.ndarray


def hidden_of(plan: Plan, release: int, records: Sequence[Record]) -> bytes:
    """Compute a digest of what the noise of a release hides: the records of its node.

    It covers the records and not their sum, because two sets of records with the same sum are
    rounded differently. It does not depend on the leaf that a record is in.
    """
    records_of_node = sorted(
        (r.number, (r.point + 0.0).tobytes()) for r in _of_node(plan, release, records)
    )
    return digest(b"".join(n.to_bytes(8, "big") + digest(data) for n, data in records_of_node))


def _of_node(plan: Plan, release: int, records: Sequence[Record]) -> list[Record]:
    """Return the records of the node that a release completes."""
    first = release - (1 << plan.level(release))
    return [record for record in records if first < record.leaf <= release]


class Counter:
    """Compute one silo's counts: the number of ones among its bits, less the mean without data.

    Parameters
    ----------
    plan : Plan
        A plan whose data points are encoded as bits.
    silo : int
        This silo's index.
    noise : NoiseSource
        Draws the roundings and the noise bits.

    Notes
    -----
    Guarantee: as in the plan's certificate, for the sum of rows over as many silos as the
    certificate assumes. A single row has the noise of one silo only, so it is sent as shares or
    under masks.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Compute the statistic of a data point, (s,)."""
        statistic = np.zeros(self.plan.statistic_size)
        linalg.accumulate(statistic, x, y)
        return statistic

    def row(self, release: int, records: Sequence[Record]) -> np.ndarray:
        """Compute the counts of a release as words, uint64, (s,).

        Each record is rounded independently for each node. The number of noise bits is that for the
        largest number of records in the node, whatever its actual number is.
        """
        plan, encoding = self.plan, encoding_of(self.plan)
        encoding_index, size = plan.encoding_at(release), plan.statistic_size
        counts = np.zeros(size)
        for record in _of_node(plan, release, records):
            words = self._rounding(release, record)
            round_statistic(record.point, encoding.steps(encoding_index), True, words, counts)
        trials = plan.points_of(release) * encoding.noise_bits[encoding_index]
        aggregation.add(counts, self.noise.binomials(self.silo, release, size, trials))
        return np.rint(PARTS * counts).astype(np.int64).view(np.uint64)

    def _rounding(self, release: int, record: Record) -> np.ndarray:
        """Draw the words that round a record for the node of a release, uint32, (s,)."""
        plan, size = self.plan, self.plan.statistic_size
        if isinstance(self.noise, SealedNoise):
            return self.noise.rounding(self.silo, release, record.number, size)
        levels = [0]
        if not plan.protocol.flat:
            levels = aggregation.touched_levels(record.leaf, plan.releases)
        words = self.noise.random_u32(self.silo, record.number, len(levels) * size)
        return words.reshape(-1, size)[levels.index(plan.level(release))]


def shuffled(plan: Plan, release: int, total: np.ndarray) -> Shuffled:
    """Convert the sum of all rows modulo 2^64 to the output of a shuffler of all bits."""
    return Shuffled(release, plan.dimension, total.view(np.int64) / float(PARTS))
