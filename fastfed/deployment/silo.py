"""A silo of a deployment: it makes decisions, learns their rewards, and sends one report a release.

Invariants (docs/deployment.md):

- A report is made once for each release, and is durable before its first byte is sent.
- The noise of a report is a function of the sums that it hides.
- A record enters exactly one leaf (the sums of one period): the leaf of the period in which its
  reward became known.
- A release is charged to the ledger before its report is sealed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any
from unicodedata import normalize

import msgspec
import numpy as np

from fastfed._cells import plain_name
from fastfed._kernels import aggregation, environments
from fastfed._random import NoiseSource
from fastfed._validate import InputError, is_line
from fastfed.deployment import wire
from fastfed.deployment.charges import charge_of
from fastfed.deployment.guard import check_range, hub_sees_reports
from fastfed.deployment.ledger import Charge, Ledger, Write
from fastfed.deployment.model import Decided, Decision, Ended, Model, model_at_start, summary
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.schema import private_reward
from fastfed.deployment.seal import (
    KEY,
    SealedNoise,
    digest,
    encrypted_to,
    hidden_by,
    keyed_digest,
    uniform_below,
)
from fastfed.deployment.sums import (
    TO_HUB,
    Counter,
    PairMasks,
    Record,
    Sessions,
    hidden_of,
    in_shares,
    share_context,
)
from fastfed.deployment.wire import Broadcast, Envelope, Receipt, Refused, packed
from fastfed.protocols.randomizer import SumRandomizer
from fastfed.protocols.secure_sum import Sharer

_SUBJECT = b"fastfed subject"
#: The reason in `SiloParty.unreported` for a report that was given up.
LOST = "lost with the state it was made of"


class SiloParty(Speaker):
    """Run one silo as a state machine.

    Parameters
    ----------
    deployed : DeployedPlan
        The verified plan file.
    name : str
        The silo's name in the plan.
    secret : bytes
        32 bytes that only this silo has.
    ledger : Ledger
        The silo's privacy budget. The state machine only reads it.
    dataset : str
        The ledger's entry to which this silo's records belong.
    noise : NoiseSource, optional
        By default `SealedNoise` of the secret. Pass ``SeededNoise`` only to simulate.
    entropy : callable, optional
        Returns the requested number of random bytes: os.urandom, except in tests.
    """

    #: Makes the model that the silo acts on before the first release.
    starts: Callable[[DeployedPlan], Any] = staticmethod(model_at_start)

    def __init__(
        self,
        deployed: DeployedPlan,
        name: str,
        secret: bytes,
        ledger: Ledger,
        dataset: str = "records",
        *,
        noise: NoiseSource | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(deployed, name, secret)
        self.index, self._chain_summary = deployed.index(name), summary(deployed)
        self.ledger, self.dataset = ledger, dataset
        self._secret, self._entropy = secret, entropy
        self._sealing = SealedNoise(secret, deployed.digest, name)
        self._noise: NoiseSource = self._sealing.source if noise is None else noise
        self._range = self._limits()
        self._statistics = self._randomizer()
        # ---- State saved in the store: survives a restart.
        self.model: Model = self.starts(deployed)
        #: Decision id -> the stored decision.
        self.decisions: dict[str, Decided] = {}
        #: Decision id -> how the decision ended.
        self.ended: dict[str, Ended] = {}
        #: Release -> the bytes of this silo's report.
        self.sealed: dict[int, bytes] = {}
        #: Sessions of all silos, for pairwise masks.
        self.sessions = Sessions(deployed, self.index)
        #: Release that this silo will never report -> the reason.
        self.unreported: dict[int, str] = {}
        #: Release -> the bytes of the hub's broadcast.
        self.broadcasts: dict[int, bytes] = {}
        self.alarms: list[str] = []
        #: Why the silo has left; empty while it takes part.
        self.leave_reason = ""
        #: Exact sums of each leaf, (releases, s).
        self._leaf_sums = np.zeros((self.plan.releases, self.plan.statistic_size))
        #: Decisions whose reward may be learned from; features and rewards that were clipped.
        self._learning_count = self.clipped_features = self.clipped_rewards = 0
        #: Keyed digests of the persons who were counted.
        self._subjects: set[bytes] = set()
        # ---- State of this process: empty after a restart.
        #: The hub's receipt repeats this nonce, which shows that the receipt is new.
        self._nonce = entropy(16)
        #: True once the hub has sent a new receipt.
        self._hub_answered = False
        #: Releases for which the hub has this silo's report, and its count of releases.
        self._hub_has: set[int] = set()
        self._hub_released: int | None = None
        #: The hub's nonce, to be repeated in the next `Join`; the time of its last receipt.
        self._hub_nonce, self._hub_time = b"", 0.0
        #: Release -> digest of a report that was sent, but that is not in this silo's state.
        self.lost: dict[int, bytes] = {}
        #: Why the hub takes no more reports of this silo; empty while it does.
        self.hub_refusal = ""

    def _randomizer(self) -> Any:
        """Create the object that makes reports of leaf sums or records, before its first report.

        Its ``point(x, y)`` computes the statistic of a record.
        """
        if self.plan.protocol.bits:
            return Counter(self.plan, self.index, self._noise)
        if self.plan.secure is not None:
            return Sharer(self.plan.secure, self.index, self._noise)
        return SumRandomizer(self.plan, self.index, self._noise)

    # ---- calls of the application ----------------------------------------------------------------

    def decide(
        self,
        actions: object,
        now: float,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> tuple[Step, Decision]:
        """Choose an action for one person.

        Any number of decisions may wait for their rewards.

        Parameters
        ----------
        actions : array_like, shape (K, columns)
            The feature rows of the offered actions, in the units of the plan's columns.
        now : float
            Seconds since 1970.
        subject : str or int, optional
            Identifies the person; not empty. A number counts as the text of its digits. The plan
            learns from each person once: later decisions for the same person are made as usual,
            but nothing is learned from them. Only a keyed digest of the subject is stored.
        record : mapping, optional
            Values by column name, instead of ``actions``, if the plan has columns of records.
        among : sequence of str, optional
            With a record: the actions that may be chosen. By default the whole catalogue.

        Returns
        -------
        step : Step
            The write that makes the decision durable.
        decision : Decision
            The action, its propensity and the id by which the reward is reported.

        Raises
        ------
        InputError
            If the rows do not fit the schema.

        Notes
        -----
        A silo that must be recovered acts on its last model and learns nothing.
        """
        schema = self.deployed.document.schema
        features, offered = schema.offer(actions, record, among)
        explore = self.deployed.document.explore
        chosen_row, x_chosen = self.model.select(features)
        count = len(features)
        draw = int.from_bytes(self._entropy(8), "big") >> 11
        greedy = chosen_row
        if draw * 2.0**-53 < explore:
            chosen_row = uniform_below(count, self._entropy)
            x_chosen = features[chosen_row]
        propensity = explore / count + (1.0 - explore) * (chosen_row == greedy)
        subject_digest = b"" if subject is None else self.digest_of(subject)
        came_before = subject is not None and self._is_repeat_visit(subject)
        stored = Decided(
            offered[chosen_row],
            float(propensity),
            self.model.release,
            self._may_be_learned(now) and not came_before and not self.lost,
            self.own_time(now),
            packed(np.array(x_chosen, dtype=np.float64)),
            digest(packed(features))[:16],
            subject_digest,
        )
        name = self._entropy(8).hex()
        public_fields = stored.action, stored.propensity, stored.model, stored.learns
        decision = Decision(name, *public_fields, schema.action(stored.action))
        return Step((Write("decision", name, wire.encoded(stored)),)), decision

    def digest_of(self, subject: str | int) -> bytes:
        """Compute the keyed digest of a person (text, or a whole number read as text): 16 bytes.

        Nothing else about the person's identity is stored.
        """
        text = self._subject_text(subject)
        # The same person may be written with a blank more, or with other codes of accented letters.
        return self._keyed_subject(plain_name("subject", text))

    def _keyed_subject(self, text: str) -> bytes:
        """Compute the keyed digest of a text in NFC."""
        return keyed_digest(self._secret, _SUBJECT, text.encode())[:16]

    def _is_repeat_visit(self, subject: str | int) -> bool:
        """Return True for a person of an earlier decision."""
        # Earlier versions stored the digest of the text as it was written.
        as_written = self._keyed_subject(normalize("NFC", self._subject_text(subject)))
        return not self._subjects.isdisjoint((self.digest_of(subject), as_written))

    def _subject_text(self, subject: str | int) -> str:
        """Return a subject as text; raise InputError if it is none."""
        if isinstance(subject, (int, np.integer)) and not isinstance(subject, bool):
            subject = str(int(subject))
        if not isinstance(subject, str) or not subject.strip() or not is_line(subject):
            raise InputError(
                "subject must be text that tells persons apart, of printable characters on one "
                "line; leave it out for somebody who is not to be counted"
            )
        return subject

    def _may_be_learned(self, now: float) -> bool:
        """Return True if a decision made now may be learned from.

        Up to a limit, this depends on the calendar alone. If it depended on a count of earlier
        decisions, one person's arrival would change whether later persons are learned from, and
        the privacy account does not cover that. The limit is `ROOM` times the horizon: beyond it
        sums would no longer be exact.
        """
        start, end = (
            self.deployed.document.calendar.start,
            self.deployed.document.calendar.closes[-1],
        )
        # If clocks differ, either of them may be the one that is right.
        in_calendar = any(start <= time < end for time in (now, self.own_time(now)))
        room = self._learning_count < self.plan.most_records(self.plan.releases)
        return in_calendar and room and not self.leave_reason

    def reward(self, name: str, reward: float, now: float) -> Step:
        """Record the reward of a decision in the leaf of the current period.

        A reward after the deadline, or of a decision that is not learned from, is stored and enters
        no leaf. Reporting the same reward again changes nothing.

        Raises
        ------
        InputError
            If the silo must be recovered, if the decision is unknown, or if it ended differently.
        """
        self.check_recovered()
        y = private_reward("reward", reward)
        decided = self._decision(name)
        previous = self.ended.get(name)
        if previous is not None:
            if previous.reward == y and previous.why != "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already, otherwise")
        calendar = self.deployed.document.calendar
        leaf = self._open_leaf(now)
        is_late = now > decided.time + calendar.reward_deadline
        reason = (
            "late" if is_late else "" if decided.learns and leaf <= self.plan.releases else "unused"
        )
        ended = Ended(0 if reason else leaf, y, float(now), reason)
        return Step((Write("ended", name, wire.encoded(ended)),))

    def outcome(self, name: str, value: object, now: float) -> Step:
        """Record the outcome of a decision; the plan's schema turns it into a reward."""
        action = self._decision(name).action
        return self.reward(name, self.deployed.document.schema.reward(value, action), now)

    def losses(self, name: str, losses: object, now: float) -> Step:
        """Raise InputError: only plans with experts take the losses of all experts."""
        raise InputError("this plan has no experts: give the reward")

    def _open_leaf(self, now: float) -> int:
        """Return the leaf that a reward enters if it becomes known now: one that is still open.

        A leaf is closed once it is charged. The charge names the digest of its report, so a silo
        that is killed between charge and seal must be able to make the same report again.
        """
        last_closed = max(self.closed_leaves, self.sessions.last)
        while self._recorded_charge(last_closed + 1) is not None:
            last_closed += 1
        return max(self.deployed.document.calendar.period(now), last_closed + 1)

    def cancel(self, name: str, now: float) -> Step:
        """End a decision without a reward."""
        self._decision(name)
        previous = self.ended.get(name)
        if previous is not None:
            if previous.why == "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already, otherwise")
        return Step((Write("ended", name, wire.encoded(Ended(0, None, float(now), "cancelled"))),))

    def _decision(self, name: str) -> Decided:
        """Look up a decision; InputError if its id is unknown."""
        decision = self.decisions.get(name)
        if decision is None:
            raise InputError("there is no decision of that id")
        return decision

    def check_recovered(self) -> None:
        """Raise InputError while the silo must be recovered: until then it learns nothing."""
        if self.lost and not self.leave_reason:
            raise InputError(
                f"the hub has reports of releases {sorted(self.lost)} that this silo's state does "
                "not know: it was restored from a backup, or copied; recover it first"
            )

    def leave(self) -> Step:
        """Leave the federation. `tick` tells the hub, whose later sets exclude this silo."""
        return Step((Write("left", "", b"left"),))

    # ---- state -----------------------------------------------------------------------------------

    @property
    def closed_leaves(self) -> int:
        """Number of leading leaves that are closed here: sealed, never to be reported, or lost."""
        k = 0
        while k + 1 in self.sealed or k + 1 in self.unreported:
            k += 1
        return max(k, max(self.lost, default=0))

    @property
    def stopped(self) -> str:
        """Why the silo no longer sends anything; empty while it takes part."""
        return self.leave_reason or self.hub_refusal or (self.alarms[0] if self.alarms else "")

    def fold(self, write: Write) -> None:
        """Apply a durable write to the state."""
        kind, key, value = write
        if kind == "decision":
            self.decisions[key] = decision = msgspec.msgpack.decode(value, type=Decided)
            self._learning_count += decision.learns
            if decision.subject:
                self._subjects.add(decision.subject)
        elif kind == "ended":
            self.ended[key] = ended = msgspec.msgpack.decode(value, type=Ended)
            if ended.leaf:
                aggregation.add(self._leaf_sums[ended.leaf - 1], self._record_statistic(key, ended))
        elif kind == "sealed":
            self.sealed[int(key)] = value
            self.lost.pop(int(key), None)
        elif kind == "without":
            self.unreported[int(key)] = value.decode()
            self.lost.pop(int(key), None)
        elif kind == "broadcast":
            self.broadcasts[int(key)] = value
            body = self.wire.body(self.wire.read(value), Broadcast)
            self.model.adopt(self.wire.floats(body.values, "the broadcast"), int(key))
        elif kind in ("session", "sessions"):
            self.sessions.fold(write)
        elif kind == "alarm":
            self.alarms.append(value.decode())
        elif kind == "left":
            self.leave_reason = "the silo has left"

    def _record_statistic(self, name: str, ended: Ended) -> np.ndarray:
        """Compute the statistic of a record, (s,), after clipping."""
        x = np.frombuffer(self.decisions[name].x, dtype="<f8").astype(np.float64)
        clip = self.plan.clip
        assert clip is not None and ended.reward is not None
        y, features_clipped, reward_clipped = clip.apply(x, ended.reward)
        self.clipped_features += features_clipped
        self.clipped_rewards += reward_clipped
        return self._statistics.point(x, y)

    def _waits(self, now: float) -> dict[str, Any]:
        """Report what this silo waits for if the time is ``now``."""
        closes, release = self.deployed.document.calendar.closes, self.model.release + 1
        hub = self.deployed.document.hub.name

        def state(name: str, leaf: int, who: Sequence[str] = ()) -> dict[str, Any]:
            since = float(closes[leaf - 1]) if 1 <= leaf <= len(closes) else None
            return waiting("silo", name, leaf, since, who)

        if self.stopped:
            return state("stopped", 0)
        if release > self.plan.releases:
            return state("over", 0)
        if self.lost:
            return state("recover", min(self.lost))
        leaf, closed_periods = self.closed_leaves + 1, self.deployed.document.calendar.closed(now)
        if not self._hub_answered or self.unanswered(now):
            return state("hub", release if release <= closed_periods else 0, [hub])
        if leaf <= closed_periods:
            if leaf in self.sessions.foreign:
                # The hub has a session of records that this silo's state does not hold any more.
                return state("given-up", leaf, [self.name])
            if self.sessions.missing(leaf):
                return state("sessions", leaf, [hub])
            if leaf > self.model.release and not self._fits_ceiling(leaf):
                return state("ceiling", leaf)
        if release <= closed_periods:
            given_up = self.unreported.get(release, "") == LOST
            return state("given-up" if given_up else "release", release, [hub])
        return waiting("silo", "open", release, None)

    def _fits_ceiling(self, release: int) -> bool:
        """Return True if the release is charged already, or fits under the ledger's ceiling."""
        return all(map(self.ledger.allows, self._missing_charge(release)))

    def status(self, now: float | None = None) -> dict[str, object]:
        """Report the silo's state as plain data that holds no values of records.

        With ``now`` (seconds since 1970), ``waits`` says what the silo is waiting for.
        """
        return {
            "plan": self.deployed.digest.hex(),
            "silo": self.name,
            "model": self.model.release,
            "releases": self.plan.releases,
            "sealed": sorted(self.sealed),
            "without": {str(k): reason for k, reason in sorted(self.unreported.items())},
            "open_decisions": len(self.decisions) - len(self.ended),
            "lost": sorted(self.lost),
            "stopped": self.stopped,
            **({} if now is None else {"waits": self.waits(now)}),
            "theta": self.model.theta.tolist(),
            **self._chain_summary,
        }

    # ---- messages --------------------------------------------------------------------------------

    def _to_hub(self, release: int, body: wire.Body) -> Message:
        return Message(self.deployed.document.hub.name, self.signed(release, body))

    def _join_messages(self, now: float) -> tuple[Message, ...]:
        """Make the messages with this silo's nonce, and with the hub's if it sent one.

        The hub's answer to the first shows this silo that the hub is running now. The second shows
        the hub that this silo is.
        """
        clocks = self.own_time(now), self._hub_time
        nonces = (nonce for nonce in (self._nonce, self._hub_nonce) if nonce)
        bodies = [wire.Join(nonce, self.agreement, *clocks) for nonce in nonces]
        return tuple(self._to_hub(self.model.release, body) for body in bodies)

    def tick(self, now: float) -> Step:
        """Seal reports of leaves whose period is over, and send what the hub has not confirmed.

        A hub restored from a backup thus receives again the bytes that it lost. Nothing is sealed
        until the hub has answered, or while the silo must be recovered.
        """
        if self.leave_reason and not self.hub_refusal:
            return Step((), (self._to_hub(0, wire.Leave()),))
        if self.stopped:
            return Step()
        if not self._hub_answered or self.lost:
            without_sessions = sorted(k for k in self.lost if self.sessions.missing(k))
            steps = [self._send_session(k) for k in without_sessions]
            writes = tuple(write for step in steps for write in step.writes)
            messages = (message for step in steps for message in step.messages)
            return Step(writes, (*self._join_messages(now), *messages))
        last_closed, step = self.deployed.document.calendar.closed(now), Step()
        if self.closed_leaves < min(last_closed, self.plan.releases):
            step = self._close_next_leaf(self.closed_leaves + 1)
            if step.writes:
                return step
            if self.lost:
                return Step((), self._join_messages(now))
        # Also while a leaf waits for sessions or budget, send again what the hub has lost.
        return Step((), self._unconfirmed(now), step.problem)

    def _unconfirmed(self, now: float) -> tuple[Message, ...]:
        """Make the messages that the hub may not have, and ask it which reports it has."""
        hub = self.deployed.document.hub.name
        hub_released = self.model.release if self._hub_released is None else self._hub_released
        # A restored hub may have lost sessions that other silos are waiting for.
        unanswered = [k for k in self.sessions.sent if k > hub_released or self.sessions.missing(k)]
        messages = [
            message for k in sorted(unanswered) for message in self._send_session(k).messages
        ]
        unconfirmed = [item for item in sorted(self.sealed.items()) if item[0] not in self._hub_has]
        messages += [
            message for k, data in unconfirmed for message in self._report_messages(k, data)
        ]
        # A restored hub learns from its later broadcasts which sets it has opened.
        messages += [
            Message(hub, self.broadcasts[k])
            for k in range(hub_released + 1, self.model.release + 1)
        ]
        return (*messages, *self._join_messages(now))

    def _close_next_leaf(self, release: int) -> Step:
        """Close the next leaf, whose period is over; with masks, its sessions must come first."""
        if self.sessions.missing(release):
            return self._send_session(release)
        if self._session_changed(release):
            return self._alarm(f"records of release {release} changed after its session was sent")
        lost_digest = self._lost_report_digest(release)
        if lost_digest is not None:
            self.lost[release] = lost_digest
            return Step()
        return self._close_leaf(release)

    def _close_leaf(self, release: int) -> Step:
        """Charge a leaf and seal its report.

        If the hub has opened the release without this silo, charge the leaf and send no report.
        """
        already_opened = release <= self.model.release
        data = b"" if already_opened else self.report(release)
        charges = self._missing_charge(release, digest(data) if data else b"")
        if not all(map(self.ledger.allows, charges)):
            # Later releases wait too: their cost is computed as if this one had been charged.
            return Step(problem=f"release {release} is more than the ceiling of the budget allows")
        if already_opened:
            return Step((*charges, Write("without", str(release), b"opened without this silo")))
        return Step(
            (*charges, Write("sealed", str(release), data)), self._report_messages(release, data)
        )

    def _report_messages(self, release: int, report: bytes) -> tuple[Message, ...]:
        """Make two messages: the digest of a report, which all silos get, then the report."""
        last_release = min(self.model.release, release - 1)
        head = digest(self.broadcasts[last_release]) if last_release else b""
        seen = self._to_hub(release, wire.Seen(digest(report), last_release, head))
        return seen, Message(self.deployed.document.hub.name, report)

    def _missing_charge(self, release: int, report: bytes = b"") -> tuple[Charge, ...]:
        """Return the charge of a release as a tuple, empty if the ledger has it already."""
        charged = self._recorded_charge(release)
        charge = charge_of(
            self.deployed.executed, self.deployed.digest, self.dataset, release, report
        )
        return () if charged is not None else (charge,)

    def _recorded_charge(self, release: int) -> Charge | None:
        """Look up the charge of a release in the ledger."""
        return self.ledger.charged(self.dataset, self.deployed.digest, release)

    def _lost_report_digest(self, release: int) -> bytes | None:
        """Return the digest of a report that was charged but that this state does not give.

        A silo that is killed between charge and seal makes its report again. If the bytes then
        differ, the state was restored from a backup, and the charged report may have been sent.
        """
        charge = self._recorded_charge(release)
        if (
            charge is None
            or not charge.report
            or release in self.sealed
            or release in self.unreported
        ):
            return None
        return charge.report if digest(self.report(release)) != charge.report else None

    def _lost_report_digests(self) -> dict[int, bytes]:
        """Return digests of charged reports that this state does not give and the hub has not."""
        last_lost = max(self.lost, default=self.plan.releases)
        later_releases = (
            k for k in range(last_lost + 1, self.plan.releases + 1) if not self.sessions.missing(k)
        )
        charged = ((k, self._lost_report_digest(k)) for k in later_releases)
        return {k: report for k, report in charged if report is not None}

    def report(self, release: int) -> bytes:
        """Make the report of a release. The same records give the same bytes."""
        self._set_hidden_sums(release)
        leaf_sums, randomizer = self._leaf_sums[:release], self._randomizer()
        if isinstance(randomizer, Counter):
            return self._secure_report(release, randomizer.row(release, self._records()))
        if isinstance(randomizer, Sharer):
            return self._secure_report(release, randomizer.row(leaf_sums))
        for leaf in leaf_sums:
            randomizer.add(leaf)
            values = randomizer.report().values
        if hub_sees_reports(self.plan):
            # The hub refuses values beyond the range. Clipping after the noise costs no privacy.
            limit = self._range.report(release)
            values = np.clip(values, -limit, limit)
        return self.encrypt_report(release, values)

    def encrypt_report(self, release: int, values: np.ndarray, share: bytes = b"") -> bytes:
        """Encrypt values to the hub as a report. The same values give the same bytes."""
        plain = packed(values)
        context = share_context(self.deployed, self.index, release, TO_HUB)
        seed = self._sealing.report_seed(self.index, release, plain)
        encrypted_values = encrypted_to(self.deployed.document.hub.open, plain, context, seed)
        return self.signed(release, wire.Report(encrypted_values, share))

    def _set_hidden_sums(self, release: int) -> None:
        """Pass to the noise source the sums that a report and its session hide."""
        if self.plan.protocol.bits:
            self._sealing.set_hidden_sums(release, hidden_of(self.plan, release, self._records()))
            return
        for k in range(1, release + 1):
            for node, sums in hidden_by(self.plan, k, self._leaf_sums[:k]).items():
                self._sealing.set_hidden_sums(node, sums)

    def _records(self) -> list[Record]:
        """Return all records that entered a leaf."""
        ended = ((n, name, self.ended.get(name)) for n, name in enumerate(self.decisions, 1))
        return [
            Record(n, e.leaf, self._record_statistic(name, e))
            for n, name, e in ended
            if e and e.leaf
        ]

    def _secure_report(self, release: int, row: np.ndarray) -> bytes:
        """Make the report of a row that no party may see: in two shares, or under masks."""
        if not self.deployed.masked:
            return self.encrypt_report(
                release, *in_shares(self, self.index, release, row, self._sealing)
            )
        masks = PairMasks(self.deployed, self.index, self.identity)
        mask = masks.at(release, len(row), self.sessions.lists[release])
        return self.encrypt_report(release, row + mask)

    def _session_changed(self, release: int) -> bool:
        """Return True if records changed after the session of a release was sent.

        One mask would then cover two different reports.
        """
        if not self.deployed.masked:
            return False
        self._set_hidden_sums(release)
        session = self._sealing.session(self.index, release)
        return session != self.sessions.lists[release][self.index]

    def _session(self, release: int) -> bytes:
        """Return this silo's session of a release, 32 bytes."""
        session = self.sessions.sent.get(release)
        if session is None:
            self._set_hidden_sums(release)
            session = self._sealing.session(self.index, release)
        return session

    def _send_session(self, release: int) -> Step:
        """Close a leaf and send its session. Repeated until the hub sends all silos' sessions."""
        session, already_sent = self._session(release), release in self.sessions.sent
        writes = () if already_sent else (Write("session", str(release), session),)
        return Step(writes, (self._to_hub(release, wire.Sessions((session,))),))

    def _take_sessions(self, release: int, body: wire.Sessions) -> Step:
        """Store the hub's list of all silos' sessions."""
        if release not in self.sessions.sent and not (
            release in self.lost and self.sessions.missing(release)
        ):
            return Step()
        writes, problem = self.sessions.check_list(release, body, self._session(release))
        return self._alarm(problem) if problem else Step(writes)

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message of the hub: a receipt, a list of sessions, or news with a broadcast.

        Raises
        ------
        Refused
            For any other message.
        """
        envelope = self.wire.read(data, ("receipt", "news", "sessions"))
        if envelope.sender != self.deployed.document.hub.name:
            raise Refused(
                f"a silo accepts messages of the hub only, got a {envelope.kind} "
                f"of {envelope.sender}"
            )
        if envelope.kind == "receipt":
            return self._handle_receipt(envelope.release, self.wire.body(envelope, Receipt), now)
        self._check_closed(envelope.release, envelope.kind, now)
        if envelope.kind == "sessions":
            return self._take_sessions(envelope.release, self.wire.body(envelope, wire.Sessions))
        return self._handle_news(envelope.release, self.wire.body(envelope, wire.News))

    def _check_closed(self, release: int, what: str, now: float) -> None:
        """Refuse a message about a release whose period is still open.

        Records still enter that release, so no report, set or list of sessions can exist.
        """
        last_closed = max(self.deployed.document.calendar.closed(now), *self.sealed, 0)
        if release > last_closed:
            raise Refused(
                f"the {what} is about release {release}, whose period is still open here: the "
                "clocks of hub and silo differ, or the hub lies"
            )

    def _handle_news(self, release: int, body: wire.News) -> Step:
        """Check that all silos have the same broadcasts, then process the new one."""
        envelope = self.wire.read(body.broadcast, ("broadcast",))
        if (envelope.sender, envelope.release) != (self.deployed.document.hub.name, release):
            raise Refused(f"the news of release {release} must hold the hub's broadcast of it")
        if self.alarms:
            # After an alarm the silo acts on its last good model.
            return Step()
        reports: dict[int, bytes] = {}
        for data in body.seen:
            seen_envelope = self.wire.read(data, ("seen",))
            silo, seen = (
                self.deployed.index(seen_envelope.sender),
                self.wire.body(seen_envelope, wire.Seen),
            )
            own_broadcast = self.broadcasts.get(seen.last)
            if seen_envelope.release != release:
                raise Refused(
                    f"the news of release {release} is about release {seen_envelope.release}"
                )
            if own_broadcast is not None and digest(own_broadcast) != seen.head:
                return self._alarm(
                    f"the hub sent {seen_envelope.sender} another broadcast of release "
                    f"{seen.last} than this silo"
                )
            reports[silo] = seen.report
        return self._adopt_broadcast(envelope, body.broadcast, reports)

    def _handle_receipt(self, released: int, body: Receipt, now: float) -> Step:
        """Compare the reports that the hub has with the reports of this silo."""
        if body.silo != self.index:
            raise Refused(f"the receipt is for silo {body.silo}, not {self.index}")
        if any(not 1 <= k <= self.plan.releases or len(d) != KEY for k, d in body.reports):
            raise Refused(f"the receipt must be of releases 1..{self.plan.releases}, with digests")
        is_new = body.nonce == self._nonce
        if is_new:
            self._store_clock_reading(self.deployed.document.hub.name, body.time, body.after)
            self._hub_time = body.time
        self._check_closed(max((k for k, _ in body.reports), default=0), "receipt", now)
        if is_new:
            # A new receipt lists all that the hub has. Everything else is sent again.
            self._hub_answered, self._hub_has, self._hub_released = True, set(), released
            self._hub_nonce = b""
        elif len(body.nonce) == len(self._nonce):
            self._hub_nonce = body.nonce
        for release, hub_digest in body.reports:
            own_report = self.sealed.get(release)
            if own_report is not None and digest(own_report) != hub_digest:
                return self._alarm(
                    f"the hub has another report of release {release} than this silo"
                )
            if own_report is not None:
                self._hub_has.add(release)
            elif release not in self.unreported:
                self.lost[release] = hub_digest
        if body.ended:
            self.hub_refusal = body.ended
        return Step()

    def _adopt_broadcast(self, envelope: Envelope, data: bytes, reports: dict[int, bytes]) -> Step:
        """Verify a broadcast and adopt its model.

        ``reports`` maps each silo of the set to the digest of its report, which the silo signed.
        """
        release, last = envelope.release, self.model.release
        if release in self.broadcasts:
            if self.broadcasts[release] != data:
                return self._alarm(f"the hub sent two broadcasts of release {release}")
            return Step()
        if release != last + 1 or release > self.plan.releases:
            # The hub sends it again, in order, in its answer to the next `Join`.
            return Step()
        body = self.wire.body(envelope, Broadcast)
        expected_before = digest(self.broadcasts[last]) if last else b""
        if body.before != expected_before:
            return self._alarm(f"broadcast {release} does not follow the one before it")
        wire.check_entries(body.entries, self.plan.silos, f"broadcast {release}")
        if len(body.entries) < self.deployed.document.least:
            return self._alarm(f"broadcast {release} is of too few silos")
        if any(reports.get(entry.silo) != entry.digest for entry in body.entries):
            raise Refused(f"broadcast {release} holds reports that no silo signed")
        if self.deployed.shared and (twice := self._helper_opened_twice(release, body)):
            return self._alarm(twice)
        own_entries = [entry for entry in body.entries if entry.silo == self.index]
        own_report = self.sealed.get(release)
        if own_entries and own_report is not None and own_entries[0].digest != digest(own_report):
            return self._alarm(f"broadcast {release} holds another report than this silo sent")
        values = self.wire.floats(body.values, f"broadcast {release}")
        check_range(values, self._range.broadcast(release), f"broadcast {release}")
        trial = copy.copy(self.model)
        try:
            trial.adopt(values, release)
        except environments.SimulationError as error:
            raise Refused(f"broadcast {release} cannot be acted on ({error})") from None
        if own_entries and own_report is None and release not in self.unreported:
            self.lost[release] = own_entries[0].digest
        return Step((Write("broadcast", str(release), data),))

    def _helper_opened_twice(self, release: int, body: Broadcast) -> str:
        """Return an alarm text if the helper opened two sets of one release; else an empty text.

        Each answer of the helper names the one before it.

        Raises
        ------
        Refused
            If the helper did not open the set of the broadcast.
        """
        helper = self.deployed.document.helper
        set_envelope = self.wire.read(body.helper, ("set",))
        answer = self.wire.body(set_envelope, wire.Opened)
        signed = helper is not None and set_envelope.sender == helper.name
        if not signed or set_envelope.release != release or answer.entries != body.entries:
            raise Refused(f"broadcast {release} is not of the set that the helper opened")
        previous_broadcast = self.broadcasts.get(release - 1)
        previous = (
            b""
            if previous_broadcast is None
            else self.wire.body(self.wire.read(previous_broadcast), Broadcast).helper
        )
        if answer.before == (digest(previous) if previous else b""):
            return ""
        return (
            f"the helper's set of release {release} does not follow its last one: the helper was "
            "restored, and has opened two sets of one release"
        )

    def _alarm(self, text: str) -> Step:
        """Stop: from now on send nothing and act on the last good model."""
        return Step((Write("alarm", text, text.encode()),), problem=text)

    def recover(self) -> Step:
        """Recover from reports that were sent but are not in this silo's state.

        If the same records are still here, the report is made again with the same bytes. If not,
        the report is given up. A record may then be in two leaves, so the whole plan is charged a
        second time, as release -k, where k is the last lost release. If more reports are lost
        later, it is charged again. Reports that the hub has not received count as lost, too, if the
        ledger has their charge.

        Raises
        ------
        InputError
            If the hub has not sent the sessions of a lost release yet.
        """
        writes: list[Write | Charge] = []
        lost_releases = self.lost | self._lost_report_digests()
        second_charge = -max(lost_releases, default=0)
        for release in range(1, max(lost_releases, default=0) + 1):
            if release in self.sealed or release in self.unreported:
                continue
            lost_digest = lost_releases.get(release)
            no_sessions = self.sessions.missing(release)
            if lost_digest is not None and no_sessions and release not in self.sessions.foreign:
                raise InputError(f"the hub has not sent the sessions of release {release} yet")
            writes += self._missing_charge(release, lost_digest or b"")
            cannot_remake = lost_digest is None or no_sessions or self._session_changed(release)
            report = b"" if cannot_remake else self.report(release)
            if lost_digest is not None and digest(report) == lost_digest:
                writes.append(Write("sealed", str(release), report))
            else:
                writes += self._missing_charge(second_charge) if lost_digest is not None else []
                writes.append(Write("without", str(release), LOST.encode()))
        return Step(tuple(writes))
