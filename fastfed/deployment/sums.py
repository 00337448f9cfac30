"""Secure sums: only the sum of all silos' reports becomes known, but no single silo's report.

A report is a *row* of words (integers modulo 2^64). It is hidden in one of two ways:

**Shares.** The silo splits its row into two shares, each uniformly random. One share goes to the
hub. The other is encrypted to the *helper*, a third party, which adds up the shares of all silos.

**Masks** need no third party. Every pair of silos derives a shared key from the public keys in the
plan file (X25519, HKDF). The mask of the pair is computed by ChaCha20 from this key, the release
and the *sessions* of both silos. One silo of the pair adds the mask and the other subtracts it, so
masks cancel only in the sum over all silos. A silo's session is 32 bytes derived from the sums of
its report; the hub passes the session on to all silos before they report. So if a silo loses its
state and its ledger, and makes a different report of the same release, it uses different masks.

**Bit counts.** The rows may be counts of random bits (zhou-chowdhury-2024, Algorithms 5-7). In the
paper, a shuffler permutes all users' bits, which reveals only how many bits are ones. A secure sum
of the silos' counts reveals the same, and replaces the shuffler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource
from fastfed.deployment import wire
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.seal import (
    KEY_BYTES,
    Identity,
    SealedNoise,
    digest,
    encrypted_to,
    keyed_digest,
    keystream,
)
from fastfed.deployment.store import Write
from fastfed.deployment.wire import Envelope, Opened, Refused, packed
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Shuffled
from fastfed.protocols.vector_sum import encoding_of, round_statistic

_MASK_CONTEXT = b"fastfed mask"
#: First bytes of the encryption context of data that are encrypted to the hub.
HUB_CONTEXT = b"hub"

# ---- shares --------------------------------------------------------------------------------------


def in_shares(
    speaker: Speaker, index: int, release: int, row: np.ndarray, sealing: SealedNoise
) -> tuple[np.ndarray, bytes]:
    """Return the two shares of a row of words, the helper's share encrypted.

    Parameters
    ----------
    speaker : Speaker
        The silo, which signs the helper's share.
    index, release : int
        The silo's index, and the release of the row.
    row : ndarray of uint64, shape (s,)
    sealing : SealedNoise
        Draws the helper's share. If the report is made again from the same sums, the helper's
        share is the same.

    Returns
    -------
    ndarray of uint64, shape (s,)
        The hub's share.
    bytes
        The helper's share, signed by the silo and encrypted to the helper.
    """
    deployed = speaker.deployed
    helper = deployed.document.helper
    assert helper is not None
    pad, seed = sealing.pad(index, release, len(row))
    helper_share = speaker.signed(release, wire.Report(packed(pad)))
    context = share_context(deployed, index, release)
    return row - pad, encrypted_to(helper.open, helper_share, context, seed)


def share_context(deployed: DeployedPlan, silo: int, release: int, to: bytes = b"") -> bytes:
    """Return the bytes that bind an encrypted share to its plan, silo and release.

    By default, the bytes are for a share for the helper. With ``to`` = `HUB_CONTEXT`, they are for
    a report for the hub.
    """
    return to + deployed.digest + silo.to_bytes(8, "big") + release.to_bytes(8, "big")


# ---- masks ---------------------------------------------------------------------------------------


class PairMasks:
    """The masks that one silo shares with each other silo.

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
    Guarantee: to everybody except the two silos of a pair, the masks of the pair look uniform, and
    independent for different releases and sessions, under the usual assumptions on X25519, HKDF,
    BLAKE2b and ChaCha20. If the hub passes on a false session, the two silos use different masks:
    then the sum is useless, but reveals nothing.
    """

    def __init__(self, deployed: DeployedPlan, silo: int, identity: Identity) -> None:
        self._silo = silo
        self._keys = {
            other_silo: identity.agreed_with(party.open, deployed.digest)
            for other_silo, party in enumerate(deployed.document.silos)
            if other_silo != silo
        }

    def at(self, release: int, size: int, sessions: Sequence[bytes]) -> np.ndarray:
        """Return the sum of this silo's masks of a release modulo 2^64, as uint64, (size,).

        ``sessions`` are the sessions of all silos, in order: 32 bytes each, on which the masks
        depend. The silo with the smaller index in a pair adds the pair's mask, and the other silo
        subtracts it.
        """
        total = np.zeros(size, dtype=np.uint64)
        for other_silo, key in self._keys.items():
            pair = (sessions[i] for i in sorted((other_silo, self._silo)))
            key_of_mask = keyed_digest(key, _MASK_CONTEXT, release.to_bytes(8, "big"), *pair)
            mask = np.frombuffer(keystream(key_of_mask, 8 * size), dtype="<u8")
            if other_silo > self._silo:
                total += mask
            else:
                total -= mask
        return total


class Sessions:
    """The sessions that one silo has sent, and the lists of sessions that it has received.

    A session is 32 bytes on which the masks of a release depend. A list contains the sessions of
    all silos for one release.

    Attributes
    ----------
    sent : dict of int to bytes
        Release -> this silo's session, which is stored before it is sent. From then on the leaf is
        closed: no further record enters the sums of this release.
    lists : dict of int to tuple of bytes
        Release -> the sessions of all silos, in order. Lists are stored.
    foreign : set of int
        Releases for which the hub has a session of this silo that differs from the session that
        this silo's state gives, because the state was restored from a backup. Not stored, so empty
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
        """The last leaf whose session was sent; 0 if there is none."""
        return max(self.sent, default=0)

    def missing(self, release: int) -> bool:
        """Return True if a release needs the list of sessions and the list has not arrived."""
        return self._masked and 1 <= release <= self._releases and release not in self.lists

    def check_list(
        self, release: int, body: wire.Sessions, own: bytes
    ) -> tuple[tuple[Write, ...], str]:
        """Check a list of all silos' sessions (32 bytes each) that the hub has sent.

        Parameters
        ----------
        release : int
        body : wire.Sessions
            The list.
        own : bytes
            This silo's session of the release.

        Returns
        -------
        tuple of Write
            The write that stores the list. The tuple is empty in two cases: a list of the release
            is stored already, or the list contains a session of this silo that differs from
            ``own``. In the second case the release is added to `foreign`.
        str
            An error if the stored list of the release is a different one; else empty.

        Raises
        ------
        Refused
            If the list does not have one session of each silo.
        """
        if not self._masked or len(body.values) != self._count:
            raise Refused(f"the sessions of release {release} must be of {self._count} silos")
        if any(len(session) != KEY_BYTES for session in body.values):
            raise Refused(f"the sessions of release {release} must have {KEY_BYTES} bytes each")
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
        """Apply a stored write: this silo's session, or the list of all silos' sessions."""
        release = int(write.key)
        if write.kind == "session":
            self.sent[release] = write.value
        else:
            self.lists[release] = wire.sessions_of(write.value)


# ---- the helper ----------------------------------------------------------------------------------


class Helper(Speaker):
    """The helper of a secure sum, as a state machine.

    For each release, the hub sends the helper one set of shares, and the helper answers with the
    sum of these shares. The helper answers only one set for each release: the difference of the
    sums of two sets could reveal a single silo's report.

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
        # The state below is saved in the store.
        #: Release -> the bytes of this helper's answer.
        self.answers: dict[int, bytes] = {}
        #: Release -> the entries of the set of reports that the helper answered: silo and digest of
        #: each report.
        self.sets: dict[int, tuple[wire.Entry, ...]] = {}
        self.alarms: list[str] = []
        #: The hub does not check the nonce of a helper.
        self._nonce = bytes(16)

    def _waits(self, now: float) -> dict[str, Any]:
        """Return what the helper waits for at time ``now``, as a row of `progress.WAITS`."""
        release, hub = len(self.answers) + 1, self.deployed.document.hub.name
        if self.alarms:
            return waiting("helper", "alarm", 0, None)
        if release > self.plan.releases:
            return waiting("helper", "over", 0, None)
        if self.unanswered(now):
            return waiting("helper", "hub", release, None, [hub])
        close_time = float(self.deployed.document.calendar.closes[release - 1])
        return waiting("helper", "set", release, close_time if now >= close_time else None, [hub])

    def tick(self, now: float) -> Step:
        """Return the step that sends a `Join`; the hub answers with the set to add up, if any."""
        body = wire.Join(self._nonce, self.agreement, self.own_time(now))
        data = self.signed(len(self.answers), body)
        return Step((), (Message(self.deployed.document.hub.name, data),))

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message: a set from the hub, or an answer of this helper that the hub returns.

        The answer to a set is the sum of its shares. The same set gives the same answer; a second
        set of one release raises an alarm.
        """
        envelope = self.wire.read(data, ("set",))
        if envelope.sender == self.name:
            return self._take_returned_answer(envelope, data)
        if envelope.sender != self.deployed.document.hub.name:
            raise Refused(f"a set must come from the hub, got one of {envelope.sender}")
        release, body = envelope.release, self.wire.body(envelope, Opened)
        if release in self.sets:
            # A hub that was restored sends an empty set to ask which set was answered.
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
        """SHA-256 of the last answer; empty before the first answer."""
        return digest(self.answers[len(self.answers)]) if self.answers else b""

    def _take_returned_answer(self, envelope: Envelope, data: bytes) -> Step:
        """Return the step that stores an answer given before a restore from a backup.

        If the answer contradicts this helper's answers, the step raises an alarm.
        """
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
        """Return the step that sends an answer to the hub."""
        return Step((), (Message(self.deployed.document.hub.name, answer),))

    def _total(self, envelope: Envelope, body: Opened) -> bytes:
        """Check a set of reports from the hub, and return the sum of the helper's shares of them.

        The helper decrypts the shares. The sum is modulo 2^64, as bytes.
        """
        release, label = envelope.release, f"the hub's request for release {envelope.release}"
        wire.check_entries(body.entries, self.plan.silos, label)
        least = self.deployed.document.least
        if len(body.entries) < least or len(body.sealed) != len(body.entries) or body.total:
            raise Refused(
                f"the set of {label} must be of {least} silos at least, with their shares"
            )
        total = np.zeros(self.plan.statistic_size, dtype=np.uint64)
        for entry, sealed in zip(body.entries, body.sealed, strict=True):
            # A share is an envelope signed by its silo, so the hub cannot replace the share.
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
        """Apply a stored write to the state."""
        if write.kind == "answer":
            release = int(write.key)
            self.answers[release] = write.value
            self.sets[release] = self.wire.body(self.wire.read(write.value), Opened).entries
        elif write.kind == "alarm":
            self.alarms.append(write.value.decode())


# ---- counts of bits ------------------------------------------------------------------------------

#: A noise bit is one with probability 1/4, so counts minus their mean are multiples of
#: 1 / COUNT_UNITS.
COUNT_UNITS = 4


class Record(NamedTuple):
    """A record of one silo: its number from 1, the leaf that it entered, and its statistic.

    The statistic, (s,), is what the record adds to the sums of the leaf.
    """

    number: int
    leaf: int
    point: np.ndarray


def hidden_of(plan: Plan, release: int, records: Sequence[Record]) -> bytes:
    """Return a digest of the records that the noise bits of a release hide.

    The digest is of the records, not of their sum: each record is rounded at random, so different
    records with the same sum give different counts. The digest does not depend on which leaf of the
    node contains a record.
    """
    # Adding 0.0 turns -0.0 into 0.0: equal records must have equal bytes.
    records_of_node = sorted(
        (r.number, (r.point + 0.0).tobytes()) for r in _records_below(plan, release, records)
    )
    return digest(
        b"".join(number.to_bytes(8, "big") + digest(point) for number, point in records_of_node)
    )


def leaves_of_node(plan: Plan, release: int) -> range:
    """Return the leaves below the node of the tree that a release completes."""
    return range(release - (1 << plan.level(release)) + 1, release + 1)


def _records_below(plan: Plan, release: int, records: Sequence[Record]) -> list[Record]:
    """Return the records below the node of the tree that a release completes."""
    leaves = leaves_of_node(plan, release)
    return [record for record in records if record.leaf in leaves]


class Counter:
    """One silo's counts of bits that are one, minus the expectation of the counts without data.

    The bits are the bits of randomly rounded records, and noise bits.

    Parameters
    ----------
    plan : Plan
        A plan whose records are encoded as bits.
    silo : int
        This silo's index.
    noise : NoiseSource
        Draws the random rounding and the noise bits.

    Notes
    -----
    Guarantee: as in the plan's certificate, for the sum of the counts of as many silos as the
    certificate assumes. The counts of a single silo have less noise, so they are sent only as
    shares or masked.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return what one record adds to the sums, (s,)."""
        statistic = np.zeros(self.plan.statistic_size)
        linalg.accumulate(statistic, x, y)
        return statistic

    def row(self, release: int, records: Sequence[Record]) -> np.ndarray:
        """Return the silo's bit counts of a release as words modulo 2^64, uint64, (s,).

        A count is the number of ones among noise bits and the bits of the records below the
        release's node of the tree. It is centred (minus its mean without data), and multiplied by
        `COUNT_UNITS`. Each record is rounded independently for each node. The number of noise bits
        depends on the largest number of records that the node may have, not on the actual number.
        """
        plan, encoding = self.plan, encoding_of(self.plan)
        encoding_index, size = plan.encoding_at(release), plan.statistic_size
        centred = np.zeros(size)
        for record in _records_below(plan, release, records):
            words = self._rounding(release, record)
            round_statistic(record.point, encoding.steps(encoding_index), True, words, centred)
        trials = plan.points_of(release) * encoding.noise_bits[encoding_index]
        aggregation.add(centred, self.noise.binomials(self.silo, release, size, trials))
        return np.rint(COUNT_UNITS * centred).astype(np.int64).view(np.uint64)

    def _rounding(self, release: int, record: Record) -> np.ndarray:
        """Return the random words that round a record for the node of a release, uint32, (s,)."""
        plan, size = self.plan, self.plan.statistic_size
        if isinstance(self.noise, SealedNoise):
            return self.noise.rounding(self.silo, release, record.number, size)
        # A simulation draws the words of a record for all nodes at once.
        levels = [0]
        if not plan.protocol.flat:
            levels = aggregation.touched_levels(record.leaf, plan.releases)
        words = self.noise.random_u32(self.silo, record.number, len(levels) * size)
        return words.reshape(-1, size)[levels.index(plan.level(release))]


def shuffled(plan: Plan, release: int, total: np.ndarray) -> Shuffled:
    """Return the output of a shuffler of all bits, from the sum of all silos' rows modulo 2^64."""
    return Shuffled(release, plan.dimension, total.view(np.int64) / float(COUNT_UNITS))
