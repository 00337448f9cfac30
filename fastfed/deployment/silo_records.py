"""The records of a silo: its decisions with their rewards, on disk and as sums.

A decision and its end are writes in the silo's log. In memory are the sums of each leaf, a few
counts, and the last decisions without a reward; everything else is read from the store when it is
needed. A snapshot holds what the records lead to, so a restart does not read them again. Records
whose leaf is released can be erased.
"""

from __future__ import annotations

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
from fastfed.deployment.party import NOTHING, Covered, Speaker
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.seal import KEY, digest, keyed_digest
from fastfed.deployment.store import RECORDS, MemoryStore, Position, Store, StoredValues, Write
from fastfed.deployment.sums import Record

_SUBJECT, _SNAPSHOT = b"fastfed subject", b"fastfed snapshot"
#: Why a decision has ended that had no reward when its record was to be erased.
EXPIRED = "expired"
#: Number of decisions without a reward that stay in memory, and of writes that are read at once.
CACHED, AT_ONCE = 10_000, 10_000


class Saved(msgspec.Struct, frozen=True, array_like=True):
    """The state of a snapshot, without the sums of leaves.

    Snapshots of earlier versions have no ``more``.
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
    #: Name -> value of the attributes `SiloRecords.kept`.
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
    #: Names of a subclass's attributes that decisions and rewards change: plain data.
    kept: ClassVar[tuple[str, ...]] = ()
    model: Model

    def __init__(self, deployed: DeployedPlan, name: str, secret: bytes) -> None:
        super().__init__(deployed, name, secret)
        self._secret = secret
        self._store: Store = MemoryStore()
        # ---- State saved in the store: survives a restart.
        #: Decision id -> the stored decision. Both mappings are read from the store when needed.
        self.decisions: StoredValues[Any] = StoredValues("decision", self._decode_decision)
        #: Decision id -> its reward, or why it has none.
        self.ended: StoredValues[Any] = StoredValues("ended", self._decode_end)
        #: Decision id -> decision, of the last `CACHED` decisions that have not ended.
        self._open: dict[str, Any] = {}
        #: Exact sums of each leaf, (releases, s), where s is the length of one record's statistic.
        self._leaf_sums = np.zeros((self.plan.releases, self._statistic_size))
        #: Numbers of decisions that may be learned from, of clipped features and clipped rewards.
        self._learning_count = self.clipped_features = self.clipped_rewards = 0
        #: True if each person's keyed digest is the key of a write. Logs of earlier versions lack
        #: these writes until `upgrade`; `_old_subjects` are the digests in such a log.
        self._has_subjects, self._old_subjects = False, set[bytes]()
        #: Numbers of the last writes whose records were looked at, by kind: decisions whose reward
        #: is overdue have ended up to here, and records are erased up to here.
        self.erased_up_to: dict[str, int] = dict.fromkeys(RECORDS, 0)
        #: Leaf -> digest of its sums, in the last snapshot and in the one that is being stored.
        self._saved_leaves = self._unsaved_leaves = dict[int, bytes]()

    #: Release -> digest of a report that was sent and that this restored state does not have.
    lost: dict[int, bytes]

    @property
    def closed_leaves(self) -> int:
        """Number of leaves 1, 2, ... that are closed: no reward enters them any more."""
        raise NotImplementedError

    @property
    def released_leaves(self) -> int:
        """Number of leaves 1, 2, ... of which no broadcast is expected any more."""
        return int(self.model.release)

    @property
    def _statistic_size(self) -> int:
        """Number s of entries in the sums of a leaf."""
        return int(self.plan.statistic_size)

    def _statistic(self, x: np.ndarray, y: float) -> np.ndarray:
        """Compute the statistic of one record, (s,)."""
        raise NotImplementedError

    # ---- persons ---------------------------------------------------------------------------------

    def digest_of(self, subject: str | int) -> bytes:
        """Compute the 16-byte keyed digest that identifies a person in this silo's state.

        The text is normalised first: spaces and the encoding of accented letters do not matter.
        """
        text = self._subject_text(subject)
        return self._keyed_subject(plain_name("subject", text))

    def _keyed_subject(self, text: str) -> bytes:
        """Compute the keyed digest of a text, which must be in Unicode's normal form NFC."""
        return keyed_digest(self._secret, _SUBJECT, text.encode())[:16]

    def _is_known(self, subject_digest: bytes, subject: str | int) -> bool:
        """Return True if an earlier decision was made for this person."""
        # Earlier versions of fastfed stored the digest of the text without normalising spaces.
        as_written = self._keyed_subject(normalize("NFC", self._subject_text(subject)))
        return any(
            self._store.value("subject", one.hex()) is not None
            for one in {subject_digest, as_written}
        )

    def _subject_text(self, subject: str | int) -> str:
        """Convert a subject to text; raise InputError if it is not text or a whole number."""
        if isinstance(subject, (int, np.integer)) and not isinstance(subject, bool):
            subject = str(int(subject))
        if not isinstance(subject, str) or not subject.strip() or not is_line(subject):
            raise InputError(
                "subject must be text that tells persons apart, of printable characters on one "
                "line; leave it out for somebody who is not to be counted"
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
        """Apply a durable write of one of the kinds `summarised` to the state."""
        kind, key, value = write
        if kind == "decision":
            decision = self._decode_decision(value)
            self.decisions.count += 1
            self._open[key] = decision
            if len(self._open) > CACHED:
                del self._open[next(iter(self._open))]
            self._learning_count += decision.learns
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
        x_and_y = self._clipped(name, ended)
        aggregation.add(self._leaf_sums[ended.leaf - 1], self._statistic(*x_and_y[:2]))
        self.clipped_features += x_and_y[2]
        self.clipped_rewards += x_and_y[3]

    def _clipped(self, name: str, ended: Ended) -> tuple[np.ndarray, float, bool, bool]:
        """Return the clipped features (d,) and reward of a decision, and which were clipped."""
        x = np.frombuffer(self._decision(name).x, dtype="<f8").astype(np.float64)
        clip = self.plan.clip
        assert clip is not None and ended.reward is not None
        if self.plan.flips:
            _, features_clipped, _ = clip.apply(x, clip.low)
            return x, self.plan.bit_values[int(ended.reward)], features_clipped, False
        y, features_clipped, reward_clipped = clip.apply(x, ended.reward)
        return x, y, features_clipped, reward_clipped

    def _records(self, leaves: range) -> list[Record]:
        """Return the records that entered some leaves, numbered by their decisions.

        Of the other records, only the leaf is looked at.
        """
        ends = ((write.key, self._decode_end(write.value)) for write in self._each("ended"))
        ended = {name: end for name, end in ends if end.leaf in leaves}
        return [
            Record(n, ended[name].leaf, self._statistic(*self._clipped(name, ended[name])[:2]))
            for n, (_, name, _) in enumerate(self._each("decision"), 1)
            if name in ended
        ]

    def _each(self, kind: str) -> Iterator[Write]:
        """Iterate over the writes of a kind in order."""
        number = 0
        while writes := self._store.records(kind, number, AT_ONCE):
            number = writes[-1][0]
            yield from (write for _, write in writes)

    # ---- the store, snapshots, erasing -----------------------------------------------------------

    def attach(self, store: Store) -> None:
        """Set the store from which decisions are read."""
        self._store = self.decisions.store = self.ended.store = store

    def upgrade(self) -> tuple[Write, ...]:
        """Return the writes that hold the persons' digests, in a log that lacks them."""
        if self._has_subjects:
            return ()
        known = (Write("subject", one.hex(), b"") for one in sorted(self._old_subjects))
        return (*known, Write("subjects", "", b"written"))

    def snapshot(self, covers: Covered) -> dict[str, bytes]:
        """Return the state that decisions and rewards lead to, sealed by the silo's secret."""
        leaves = {k: digest(sums.tobytes()) for k, sums in enumerate(self._leaf_sums) if sums.any()}
        changed = [k for k in leaves if self._saved_leaves.get(k) != leaves[k]]
        saved = Saved(
            *covers,
            leaves,
            self.erased_up_to,
            decisions=self.decisions.count,
            ended=self.ended.count,
            learning=self._learning_count,
            clipped_features=self.clipped_features,
            clipped_rewards=self.clipped_rewards,
            has_subjects=self._has_subjects,
            more={name: getattr(self, name) for name in self.kept},
        )
        state = msgspec.msgpack.encode(saved)
        seal = keyed_digest(self._secret, _SNAPSHOT, self.deployed.digest, state)
        self._unsaved_leaves = leaves
        return {"state": seal + state} | {
            f"leaf {k}": self._leaf_sums[k].tobytes() for k in changed
        }

    def snapshot_saved(self) -> None:
        """Note that the last snapshot is stored: the next one holds only what changes from now."""
        self._saved_leaves = self._unsaved_leaves

    def restore(self, parts: Mapping[str, bytes]) -> Covered:
        """Set the state to that of a snapshot; return what it covers, or `NOTHING` if invalid."""
        seal, state = parts["state"][:KEY], parts["state"][KEY:]
        if seal != keyed_digest(self._secret, _SNAPSHOT, self.deployed.digest, state):
            return NOTHING
        saved = msgspec.msgpack.decode(state, type=Saved)
        if any(digest(parts.get(f"leaf {k}", b"")) != one for k, one in saved.leaves.items()):
            return NOTHING
        for k in saved.leaves:
            self._leaf_sums[k] = np.frombuffer(parts[f"leaf {k}"])
        self._saved_leaves, self.erased_up_to = saved.leaves, saved.erased_up_to
        self.decisions.count, self.ended.count = saved.decisions, saved.ended
        self._learning_count, self._has_subjects = saved.learning, saved.has_subjects
        self.clipped_features, self.clipped_rewards = saved.clipped_features, saved.clipped_rewards
        for name in self.kept:
            setattr(self, name, saved.more[name])
        return Covered(saved.position, saved.others)

    def expire(self, before: float, count: int) -> tuple[Write, ...]:
        """Return the writes that end open decisions whose reward was due before a time.

        ``count`` decisions are looked at, from where the last call stopped.
        """
        deadline = self.deployed.document.calendar.reward_deadline
        writes = []
        for number, write in self._store.records("decision", self.erased_up_to["decision"], count):
            decided = self._decode_decision(write.value)
            if decided.time + deadline >= before:
                break
            self.erased_up_to["decision"] = number
            if self._end(write.key) is None:
                ended = Ended(0, None, float(before), EXPIRED)
                writes.append(Write("ended", write.key, wire.encoded(ended)))
        return tuple(writes)

    def erasable(self, before: float, count: int) -> list[str]:
        """Return the ids of decisions whose records are older than a time and not needed any more.

        They ended before the time, and the sums of their leaf are released, so no report is made
        from them again. ``count`` records are looked at, from where the last call stopped.
        """
        released = min(self.released_leaves, self.closed_leaves)
        if self.plan.protocol.bits and (self.lost or released < self.plan.releases):
            # A later release rounds the records of earlier leaves again. Its noise depends on the
            # numbers of their decisions, so decisions that were not learned from are needed too.
            return []
        ids = []
        for number, write in self._store.records("ended", self.erased_up_to["ended"], count):
            ended = self._decode_end(write.value)
            is_last = number >= self._store.position.number
            if is_last or ended.time >= before or ended.leaf > released:
                break
            self.erased_up_to["ended"] = number
            ids.append(write.key)
        return ids
