"""The records of a silo: its decisions with their rewards, on disk and as sums.

A decision and its end are writes in the silo's log. The sums of each leaf, a few counts, and the
last decisions without a reward are in memory; everything else is read from the store when it is
needed. A snapshot holds these sums and counts, so a restart does not read the records again.
Records whose leaf is released can be erased.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from unicodedata import normalize

import msgspec
import numpy as np

from fastfed._cells import plain_name
from fastfed._kernels import aggregation
from fastfed._validate import InputError, is_line
from fastfed.deployment import wire
from fastfed.deployment.model import Decided, Ended, Model
from fastfed.deployment.party import UNCOVERED, Covered, Speaker
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import KEY_BYTES, digest, keyed_digest
from fastfed.deployment.store import RECORDS, MemoryStore, Position, Store, StoredValues, Write
from fastfed.deployment.sums import Record

_SUBJECT, _SNAPSHOT = b"fastfed subject", b"fastfed snapshot"
#: `Ended.why` of a decision whose reward was overdue when its record was to be erased.
EXPIRED_REASON = "expired"
#: Maximum number of decisions without a reward that stay in memory.
MAX_OPEN_IN_MEMORY = 10_000
#: Number of writes that one query reads from the store.
WRITES_PER_QUERY = 10_000


def subject_key(subject_digest: bytes, number: int) -> str:
    """Return the key of the write for a person's decision number ``number``, from 1."""
    return subject_digest.hex() + (f" {number}" if number > 1 else "")


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot without the sums of leaves, whose digests are in ``leaves``.

    For the other fields see the attributes of `SiloRecords`. Snapshots of earlier versions have no
    ``more``.
    """

    position: Position
    others: bytes
    leaves: dict[int, bytes]
    erased_up_to: dict[str, int]
    decisions: int
    ended: int
    learning: int
    clipped_features: int
    clipped_rewards: int
    has_subjects: bool
    #: Name -> value of `SiloRecords.snapshot_attributes`.
    more: dict[str, Any] = {}


class SiloRecords(Speaker):
    """The part of a silo that stores its records and adds them up.

    Parameters
    ----------
    deployed : DeployedPlan
    name : str
    secret : bytes
    """

    summarised: ClassVar[tuple[str, ...]] = (*RECORDS, "subject", "subjects")
    #: Names of a subclass's attributes that a snapshot must hold: plain data that decisions and
    #: rewards change.
    snapshot_attributes: ClassVar[tuple[str, ...]] = ()
    model: Model

    def __init__(self, deployed: DeployedPlan, name: str, secret: bytes) -> None:
        super().__init__(deployed, name, secret)
        self._secret = secret
        claim = self.plan.privacy
        #: The largest number of decisions for one person that are learned from.
        self.returning = 1 if claim is None else claim.max_participations
        self._store: Store = MemoryStore()
        # ---- State saved in the store: survives a restart.
        #: Decision id -> the stored decision, read from the store at each access.
        self.decisions: StoredValues[Any] = StoredValues("decision", self._decode_decision)
        #: Decision id -> the decision's reward, or why it has none; also read at each access.
        self.ended: StoredValues[Any] = StoredValues("ended", self._decode_end)
        #: Decision id -> the decision, for the last `MAX_OPEN_IN_MEMORY` decisions that have not
        #: ended.
        self._open: dict[str, Any] = {}
        #: Exact sums of each leaf, (releases, s), where s is the length of one record's statistic.
        self._leaf_sums = np.zeros((self.plan.releases, self._statistic_size))
        #: Number of decisions that are learned from once they have a reward.
        self._learning_count = 0
        #: Numbers of records whose features, or whose reward, were clipped.
        self.clipped_features = self.clipped_rewards = 0
        #: True if the log has writes of kind "subject", which count a person's decisions; their
        #: keys are those of `subject_key`. Logs of earlier versions lack them until `upgrade`.
        self._has_subjects = False
        #: The keyed digests of all persons, if the log lacks these writes.
        self._old_subjects = set[bytes]()
        #: Kind of write -> number of the last write that was processed for erasing: by `expire` for
        #: "decision", by `erasable` for "ended". This write itself may still be stored.
        self.erased_up_to: dict[str, int] = dict.fromkeys(RECORDS, 0)
        #: Leaf -> digest of the leaf's sums in the last stored snapshot.
        self._saved_digests = dict[int, bytes]()
        #: Leaf -> digest of the leaf's sums in the snapshot that is being stored.
        self._unsaved_digests = dict[int, bytes]()

    #: Release -> digest of a report that was sent and that this restored state does not have.
    lost: dict[int, bytes]

    @property
    def closed_leaves(self) -> int:
        """Number of leaves 1, 2, ... that are closed: no reward enters them any more."""
        raise NotImplementedError

    @property
    def released_leaves(self) -> int:
        """Number of the last leaf up to which no leaf will be in a later broadcast."""
        return int(self.model.release)

    @property
    def _statistic_size(self) -> int:
        """Number s of entries in the sums of a leaf."""
        return int(self.plan.statistic_size)

    def _statistic(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return what a record with features x (d,) and reward y adds to its leaf's sums, (s,)."""
        raise NotImplementedError

    # ---- persons ---------------------------------------------------------------------------------

    def digest_of(self, subject: str | int) -> bytes:
        """Return the 16-byte keyed digest that identifies a person in this silo's state.

        The text is normalised first: spaces and the encoding of accented letters do not matter.
        """
        text = self._subject_text(subject)
        return self._keyed_subject(plain_name("subject", text))

    def _keyed_subject(self, text: str) -> bytes:
        """Return the keyed digest of a person's text, which must be in the normal form NFC."""
        return keyed_digest(self._secret, _SUBJECT, text.encode())[:16]

    def _earlier_decisions(self, subject_digest: bytes, subject: str | int) -> int:
        """Return the number of stored decisions that count for a person, at most `returning`.

        Decisions from which nothing is learned do not count.
        """
        if self.returning == 1:
            # Earlier versions of fastfed stored the digest of the text without normalising spaces.
            old_digest = self._keyed_subject(normalize("NFC", self._subject_text(subject)))
            return int(any(self._has_subject(each, 1) for each in {subject_digest, old_digest}))
        # A person's writes are numbered 1, 2, ... without a gap, so a binary search finds how many
        # there are.
        return bisect_left(
            range(1, self.returning + 1),
            True,
            key=lambda number: not self._has_subject(subject_digest, number),
        )

    def _has_subject(self, subject_digest: bytes, number: int) -> bool:
        """Return True if the store has a person's write of this number."""
        return self._store.value("subject", subject_key(subject_digest, number)) is not None

    def _subject_text(self, subject: str | int) -> str:
        """Return who a person is as text; raise InputError unless it is text or a whole number."""
        if isinstance(subject, (int, np.integer)) and not isinstance(subject, bool):
            subject = str(int(subject))
        if not isinstance(subject, str) or not subject.strip() or not is_line(subject):
            raise InputError(
                "subject must be a whole number, or a text of printable characters on one line, "
                "that identifies a person; leave it out for somebody who is not to be counted"
            )
        return subject

    # ---- decisions -------------------------------------------------------------------------------

    def _decision(self, name: str) -> Any:
        """Return the stored decision with this id; raise InputError if there is none."""
        decision = self._open.get(name) or self.decisions.get(name)
        if decision is None:
            raise InputError("there is no decision of that id, or its record was erased")
        return decision

    def _end(self, name: str) -> Any:
        """Return how a decision has ended; None if it has not."""
        return None if name in self._open else self.ended.get(name)

    @staticmethod
    def _decode_decision(value: bytes) -> Any:
        """Decode a stored decision."""
        return msgspec.msgpack.decode(value, type=Decided)

    @staticmethod
    def _decode_end(value: bytes) -> Any:
        """Decode the stored end of a decision."""
        return msgspec.msgpack.decode(value, type=Ended)

    def _fold_record_write(self, write: Write) -> None:
        """Update this object by a stored entry about a decision, its end, or a person."""
        kind, key, value = write
        if kind == "decision":
            decision = self._decode_decision(value)
            self.decisions.count += 1
            self._open[key] = decision
            if len(self._open) > MAX_OPEN_IN_MEMORY:
                # Drop the oldest, which is read from the store if it is needed.
                del self._open[next(iter(self._open))]
            self._learning_count += decision.learns
            # A log of an earlier version lacks the writes of persons, which `upgrade` adds.
            if decision.subject and not self._has_subjects:
                self._old_subjects.add(decision.subject)
        elif kind == "ended":
            self.ended.count += 1
            ended = self._decode_end(value)
            if ended.leaf:
                self._fold_record(key, ended)
            self._open.pop(key, None)
        elif kind == "subjects":
            self._has_subjects, self._old_subjects = True, set()

    def _fold_record(self, name: str, ended: Any) -> None:
        """Add the record of a decision that has ended to its leaf."""
        x, y, features_clipped, reward_clipped = self._clipped(name, ended)
        aggregation.add(self._leaf_sums[ended.leaf - 1], self._statistic(x, y))
        self.clipped_features += features_clipped
        self.clipped_rewards += reward_clipped

    def _clipped(self, name: str, ended: Ended) -> tuple[np.ndarray, float, bool, bool]:
        """Return a record's clipped features (d,) and reward, and whether each was clipped.

        ``name`` is the id of the decision, and ``ended`` its stored end. If users send random bits
        of their rewards, ``ended.reward`` is the bit. Then the second result is the unbiased
        estimate of the reward from this bit, which is not clipped, and the last result is False.
        """
        x = np.frombuffer(self._decision(name).x, dtype="<f8").astype(np.float64)
        clip = self.plan.clip
        assert clip is not None and ended.reward is not None
        # `apply` clips x in place.
        if self.plan.flips:
            _, features_clipped, _ = clip.apply(x, clip.low)
            return x, self.plan.bit_values[int(ended.reward)], features_clipped, False
        y, features_clipped, reward_clipped = clip.apply(x, ended.reward)
        return x, y, features_clipped, reward_clipped

    def _records(self, leaves: range) -> list[Record]:
        """Return the records that entered the given leaves.

        A record's number is the place of its decision among all decisions. Records of other leaves
        are numbered too, but their statistics are not computed.
        """
        ends = ((write.key, self._decode_end(write.value)) for write in self._writes_of("ended"))
        ended = {name: end for name, end in ends if end.leaf in leaves}
        return [
            Record(n, ended[name].leaf, self._statistic(*self._clipped(name, ended[name])[:2]))
            for n, (_, name, _) in enumerate(self._writes_of("decision"), 1)
            if name in ended
        ]

    def _writes_of(self, kind: str) -> Iterator[Write]:
        """Iterate over the writes of a kind in order."""
        last_number = 0
        while writes := self._store.records(kind, last_number, WRITES_PER_QUERY):
            last_number = writes[-1][0]
            yield from (write for _, write in writes)

    # ---- the store, snapshots, erasing -----------------------------------------------------------

    def attach(self, store: Store) -> None:
        """Set the store from which decisions are read."""
        self._store = self.decisions.store = self.ended.store = store

    def upgrade(self) -> tuple[Write, ...]:
        """Return the writes of all persons' digests, if the log lacks them; else no writes."""
        if self._has_subjects:
            return ()
        subjects = (Write("subject", key.hex(), b"") for key in sorted(self._old_subjects))
        return (*subjects, Write("subjects", "", b"written"))

    def snapshot(self, covers: Covered) -> dict[str, bytes]:
        """Return the parts of a snapshot by name.

        One part is the state with its keyed digest. The others are the sums of each leaf whose sums
        have changed since the last stored snapshot. ``covers`` states which writes the snapshot
        replaces.
        """
        digests = {
            k: digest(sums.tobytes()) for k, sums in enumerate(self._leaf_sums) if sums.any()
        }
        changed = [k for k in digests if self._saved_digests.get(k) != digests[k]]
        saved = Saved(
            *covers,
            digests,
            self.erased_up_to,
            decisions=self.decisions.count,
            ended=self.ended.count,
            learning=self._learning_count,
            clipped_features=self.clipped_features,
            clipped_rewards=self.clipped_rewards,
            has_subjects=self._has_subjects,
            more={name: getattr(self, name) for name in self.snapshot_attributes},
        )
        state = msgspec.msgpack.encode(saved)
        seal = keyed_digest(self._secret, _SNAPSHOT, self.deployed.digest, state)
        self._unsaved_digests = digests
        return {"state": seal + state} | {
            f"leaf {k}": self._leaf_sums[k].tobytes() for k in changed
        }

    def snapshot_saved(self) -> None:
        """Note that the last snapshot is stored; the next one holds only the later changes."""
        self._saved_digests = self._unsaved_digests

    def restore(self, parts: Mapping[str, bytes]) -> Covered:
        """Set the state from a snapshot; return what it covers, or `UNCOVERED` if it is invalid."""
        seal, state = parts["state"][:KEY_BYTES], parts["state"][KEY_BYTES:]
        if seal != keyed_digest(self._secret, _SNAPSHOT, self.deployed.digest, state):
            return UNCOVERED
        saved = msgspec.msgpack.decode(state, type=Saved)
        leaves = saved.leaves.items()
        if any(digest(parts.get(f"leaf {k}", b"")) != leaf_digest for k, leaf_digest in leaves):
            return UNCOVERED
        for k in saved.leaves:
            self._leaf_sums[k] = np.frombuffer(parts[f"leaf {k}"])
        self._saved_digests, self.erased_up_to = saved.leaves, saved.erased_up_to
        self.decisions.count, self.ended.count = saved.decisions, saved.ended
        self._learning_count, self._has_subjects = saved.learning, saved.has_subjects
        self.clipped_features, self.clipped_rewards = saved.clipped_features, saved.clipped_rewards
        for name in self.snapshot_attributes:
            setattr(self, name, saved.more[name])
        return Covered(saved.position, saved.others)

    def expire(self, before: float, count: int) -> tuple[Write, ...]:
        """Return the writes that end open decisions whose reward was due before a time.

        The time ``before`` is in seconds since 1970. A call processes up to ``count`` decisions,
        and begins where the last call stopped.
        """
        deadline = self.deployed.document.calendar.reward_deadline
        writes = []
        for number, write in self._store.records("decision", self.erased_up_to["decision"], count):
            decided = self._decode_decision(write.value)
            if decided.time + deadline >= before:
                break
            self.erased_up_to["decision"] = number
            if self._end(write.key) is None:
                ended = Ended(0, None, float(before), EXPIRED_REASON)
                writes.append(Write("ended", write.key, wire.encoded(ended)))
        return tuple(writes)

    def erasable(self, before: float, count: int) -> list[str]:
        """Return the ids of decisions whose records are older than a time and not needed any more.

        These decisions ended before the time ``before``, in seconds since 1970. Each entered a leaf
        whose sums are released, or no leaf, so no further report needs the record. A call processes
        up to ``count`` records, and begins where the last call stopped.
        """
        released = min(self.released_leaves, self.closed_leaves)
        if self.plan.protocol.bits and (self.lost or released < self.plan.releases):
            # A later release rounds the records of earlier leaves again. How a record is rounded
            # depends on its number, counted over all stored decisions. So all decisions must stay.
            return []
        ids = []
        for number, write in self._store.records("ended", self.erased_up_to["ended"], count):
            ended = self._decode_end(write.value)
            # The log's last write must stay: the hash of the next write depends on it.
            is_last = number >= self._store.position.number
            if is_last or ended.time >= before or ended.leaf > released:
                break
            self.erased_up_to["ended"] = number
            ids.append(write.key)
        return ids
