"""Sums of which nobody may see a single silo's row: shares and their helper, masks, counts of bits.

Of two additive shares, each uniform, one is the hub's, and the other only the helper can read.

Masks need no third party (X25519, HKDF, ChaCha20). Every two silos agree on a key from the keys
that the plan file has of them. A mask is a function of that key, the release, and the two silos'
*sessions* of it; a session is a function of what the report of a silo hides, and goes through the
hub to all others before they report. Masks cancel in the sum over all silos, and in nothing less;
and a silo that has lost its state and its ledger, and so makes another report of a release, has
other masks for it.

Permuted bits tell how many are ones, so a secure sum of every silo's counts is what the shuffler of
a vector sum passes on (zhou-chowdhury-2024, Algorithms 5-7). Counts travel as words modulo 2^64.
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
    keyed_digest,
    keystream,
    sealed_to,
)
from fastfed.deployment.wire import Envelope, Opened, Refused, packed
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import Shuffled
from fastfed.protocols.vector_sum import encoding_of, round_statistic

_MASK = b"fastfed mask"
#: Begins the context of what is encrypted to the hub.
TO_HUB = b"hub"

# ---- shares --------------------------------------------------------------------------------------


def in_shares(
    speaker: Speaker, index: int, release: int, row: np.ndarray, sealing: SealedNoise
) -> tuple[np.ndarray, bytes]:
    """The two shares of a row of words: the hub's (s,), and the helper's, encrypted to it.

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
    return row - pad, sealed_to(helper.open, inner, context, seed)


def share_context(deployed: DeployedPlan, silo: int, release: int, to: bytes = b"") -> bytes:
    """What a share for the helper is bound to, or with ``to`` a report for the hub."""
    return to + deployed.digest + silo.to_bytes(8, "big") + release.to_bytes(8, "big")


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


# ---- the helper ----------------------------------------------------------------------------------


class Helper(Speaker):
    """The helper as a state machine.

    Parameters
    ----------
    deployed : DeployedPlan
        The plan file, verified; it must have a helper.
    secret : bytes
        32 bytes that only the helper has.
    """

    def __init__(self, deployed: DeployedPlan, secret: bytes) -> None:
        helper = deployed.document.helper
        if helper is None:
            raise Refused("the plan has no helper")
        super().__init__(deployed, helper.name, secret)
        #: What is durable: the answer to the one set of each release, and the set.
        self.answers: dict[int, bytes] = {}
        self.sets: dict[int, tuple[wire.Entry, ...]] = {}
        self.alarms: list[str] = []
        self._nonce = bytes(16)

    def _waits(self, now: float) -> dict[str, Any]:
        release, hub = len(self.answers) + 1, self.deployed.document.hub.name
        if self.alarms:
            return waiting("helper", "alarm", 0, None)
        if release > self.plan.releases:
            return waiting("helper", "over", 0, None)
        since = float(self.deployed.document.calendar.closes[release - 1])
        return waiting("helper", "set", release, since if now >= since else None, [hub])

    def tick(self, now: float) -> Step:
        """Ask the hub whether a set waits."""
        body = wire.Join(self._nonce, self.agreement, self.own_time(now))
        data = self.made(len(self.answers), body)
        return Step((), (Message(self.deployed.document.hub.name, data),))

    def handle(self, data: bytes, now: float) -> Step:
        """Open a set that the hub names; the same set again gives the same answer."""
        found = self.wire.read(data, ("set",))
        if found.sender == self.name:
            return self._reminded(found, data)
        if found.sender != self.deployed.document.hub.name:
            raise Refused(f"a set must be named by the hub, got one of {found.sender}")
        release, body = found.release, self.wire.body(found, Opened)
        if release in self.sets:
            # A hub whose log was put back names no set: it asks which one was opened.
            if body.entries and self.sets[release] != body.entries:
                text = f"the hub asked for a second set of release {release}"
                return Step((Write("alarm", text, text.encode()),), problem=text)
            return self._reply(self.answers[release])
        if release != len(self.answers) + 1 or release > self.plan.releases:
            raise Refused(f"the next set must be of release {len(self.answers) + 1}, got {release}")
        total = self._total(found, body)
        answer = self.made(release, Opened(body.entries, (), total, self._head))
        step = self._reply(answer)
        return step._replace(writes=(Write("answer", str(release), answer),))

    @property
    def _head(self) -> bytes:
        """SHA-256 of the last answer; empty before the first."""
        return digest(self.answers[len(self.answers)]) if self.answers else b""

    def _reminded(self, found: Envelope, data: bytes) -> Step:
        """An answer of this helper comes back: it was restored to before it gave it."""
        release = found.release
        if release in self.answers:
            if self.answers[release] == data:
                return Step()
            text = f"this helper opened two sets of release {release}: it was restored in between"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if release != len(self.answers) + 1:
            raise Refused(f"the next answer must be of release {len(self.answers) + 1}")
        if self.wire.body(found, Opened).before != self._head:
            text = f"an answer of this helper to release {release} does not follow its last one"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        return Step((Write("answer", str(release), data),))

    def _reply(self, answer: bytes) -> Step:
        return Step((), (Message(self.deployed.document.hub.name, answer),))

    def _total(self, found: Envelope, body: Opened) -> bytes:
        """The sum of the shares of a set."""
        release, who = found.release, f"the hub for release {found.release}"
        wire.check_entries(body.entries, self.plan.silos, who)
        least = self.deployed.document.least
        if len(body.entries) < least or len(body.sealed) != len(body.entries) or body.total:
            raise Refused(f"the set of {who} must be of {least} silos at least, with their shares")
        total = np.zeros(self.plan.statistic_size, dtype=np.uint64)
        for entry, sealed in zip(body.entries, body.sealed, strict=True):
            name = self.deployed.silos[entry.silo]
            opened = self.identity.opened(sealed, share_context(self.deployed, entry.silo, release))
            share = self.wire.read(opened, ("report",))
            if (share.sender, share.release) != (name, release):
                raise Refused(f"a share of {who} is of {share.sender}, release {share.release}")
            values = self.wire.body(share, wire.Report)
            if values.sealed:
                raise Refused(f"the share of {name} is a report")
            total = total + self.wire.words(values.values, f"the share of {name}")
        return packed(total)

    def fold(self, write: Write) -> None:
        """Take in a write that is durable."""
        if write.kind == "answer":
            release = int(write.key)
            self.answers[release] = write.value
            self.sets[release] = self.wire.body(self.wire.read(write.value), Opened).entries
        elif write.kind == "alarm":
            self.alarms.append(write.value.decode())


# ---- counts of bits ------------------------------------------------------------------------------

#: Counts are multiples of 1 / PARTS: the mean of a noise bit is 1/4.
PARTS = 4


# ---- counts --------------------------------------------------------------------------------------


class Record(NamedTuple):
    """A record of one silo: its number from 1, the leaf that it entered, its statistic (s,)."""

    number: int
    leaf: int
    point: np.ndarray


def hidden_of(plan: Plan, release: int, records: Sequence[Record]) -> bytes:
    """What the noise of a release hides: all records of its node, whichever leaf they are in.

    Not their sum: two sets of records of one sum are rounded otherwise.
    """
    held = sorted((r.number, (r.point + 0.0).tobytes()) for r in _of_node(plan, release, records))
    return digest(b"".join(n.to_bytes(8, "big") + digest(data) for n, data in held))


def _of_node(plan: Plan, release: int, records: Sequence[Record]) -> list[Record]:
    """The records of the node that a release completes."""
    first = release - (1 << plan.level(release))
    return [record for record in records if first < record.leaf <= release]


class Counter:
    """One silo's counts: the ones among its bits, less their mean without data.

    Parameters
    ----------
    plan : Plan
        A plan whose data points travel as bits.
    silo : int
        The own index.
    noise : NoiseSource
        Where roundings and noise bits come from.

    Notes
    -----
    Guarantee: that of the plan's certificate, once the rows of as many silos are added up as it
    counts on. A row by itself has the noise of one silo, and is sent as shares or under masks.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo, self.noise = plan, silo, noise

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point, (s,)."""
        made = np.zeros(self.plan.statistic_size)
        linalg.accumulate(made, x, y)
        return made

    def row(self, release: int, records: Sequence[Record]) -> np.ndarray:
        """The counts of a release as words, (s,) of uint64.

        Each record is rounded anew for each node. The noise is that of as many records as the node
        may hold, however many it holds.
        """
        plan, encoding = self.plan, encoding_of(self.plan)
        which, size = plan.encoding_at(release), plan.statistic_size
        counts = np.zeros(size)
        for record in _of_node(plan, release, records):
            words = self._rounding(release, record)
            round_statistic(record.point, encoding.steps(which), True, words, counts)
        trials = plan.points_of(release) * encoding.noise_bits[which]
        aggregation.add(counts, self.noise.binomials(self.silo, release, size, trials))
        return np.rint(PARTS * counts).astype(np.int64).view(np.uint64)

    def _rounding(self, release: int, record: Record) -> np.ndarray:
        """The words that round a record for the node of a release, (s,) of uint32."""
        plan, size = self.plan, self.plan.statistic_size
        if isinstance(self.noise, SealedNoise):
            return self.noise.rounding(self.silo, release, record.number, size)
        levels = [0]
        if not plan.protocol.flat:
            levels = aggregation.touched_levels(record.leaf, plan.releases)
        drawn = self.noise.random_u32(self.silo, record.number, len(levels) * size)
        return drawn.reshape(-1, size)[levels.index(plan.level(release))]


def shuffled(plan: Plan, release: int, total: np.ndarray) -> Shuffled:
    """What a shuffler of all bits would pass on, from the sum of all rows modulo 2^64."""
    return Shuffled(release, plan.dimension, total.view(np.int64) / float(PARTS))
