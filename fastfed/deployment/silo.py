"""A silo of a deployment: it makes decisions, learns their rewards, and sends reports to the hub.

A plan's calendar has K periods. A *record* is a decision with its reward. The sums of all records
whose reward became known in period k are *leaf* k. When period k is over, the silo closes leaf k
and sends its *report* of release k. The hub answers with its *broadcast* of release k: the noisy
sums of all silos, which the silo's model then uses.

Invariants (docs/deployment.md):

- A report is *sealed* (stored for good) before its first byte is sent. There is one report for each
  release.
- The noise of a report is a function of the sums that it hides, so the same sums give the same
  report.
- A record enters exactly one leaf.
- The ledger (the silo's privacy budget) is charged for a release before its report is sealed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import environments
from fastfed._random import NoiseSource
from fastfed._validate import InputError, show
from fastfed.deployment import wire
from fastfed.deployment.charges import charge_of
from fastfed.deployment.guard import check_range, hub_sees_reports
from fastfed.deployment.ledger import Charge, Ledger
from fastfed.deployment.model import Decided, Decision, Ended, Model, chain_summary, model_at_start
from fastfed.deployment.party import Message, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.schema import private_reward
from fastfed.deployment.seal import (
    KEY_BYTES,
    SealedNoise,
    digest,
    encrypted_to,
    hidden_by,
    uniform_below,
)
from fastfed.deployment.silo_records import EXPIRED_REASON, SiloRecords, subject_key
from fastfed.deployment.store import Write
from fastfed.deployment.sums import (
    HUB_CONTEXT,
    Counter,
    PairMasks,
    Record,
    Sessions,
    hidden_of,
    in_shares,
    leaves_of_node,
    share_context,
)
from fastfed.deployment.wire import Broadcast, Envelope, Receipt, Refused, packed
from fastfed.protocols.randomizer import SumRandomizer
from fastfed.protocols.secure_sum import Sharer

#: Number of hexadecimal digits of a decision's id.
ID_DIGITS = 16
#: The reason in `SiloParty.unreported` for a report that could not be recovered.
LOST_REASON = "lost with the state it was made of"


class SiloParty(SiloRecords):
    """Run one silo as a state machine, which does no input or output.

    Each method returns a `Step`: entries to store, and messages to send afterwards.

    Parameters
    ----------
    deployed : DeployedPlan
        The verified plan file.
    name : str
        The silo's name in the plan.
    secret : bytes
        32 bytes that only this silo has.
    ledger : Ledger
        The silo's privacy budget, which this object only reads: a `Step` holds the charges.
    dataset : str
        The dataset in the ledger that is charged for this silo's records.
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
        # ---- Set once.
        #: The silo's place among the plan's silos, from 0.
        self.index = deployed.index(name)
        #: What `status` says about the plan that this plan continues.
        self._chain_summary = chain_summary(deployed)
        #: The periods of this silo's leaves.
        self.calendar = deployed.calendar_of(self.index)
        self.ledger, self.dataset, self._entropy = ledger, dataset, entropy
        #: Derives the seeds of noise, sessions and encryption from the secret and the hidden sums.
        self._sealing = SealedNoise(secret, deployed.digest, name)
        #: The noise of reports: from `_sealing`, except in a simulation.
        self._noise: NoiseSource = self._sealing.source if noise is None else noise
        #: The largest values that reports and broadcasts may have.
        self._range = self._limits()
        #: Makes no report: only its method ``point``, which computes what a record adds to the
        #: sums, is called.
        self._point_randomizer = self._randomizer()
        # ---- State saved in the store: survives a restart.
        #: The model of the last broadcast that this silo uses.
        self.model: Model = self.starts(deployed)
        #: Release -> the bytes of this silo's signed report.
        self.sealed: dict[int, bytes] = {}
        #: Release -> 32 bytes of each silo, on which the pairwise masks of reports depend.
        self.sessions = Sessions(deployed, self.index)
        #: Release -> why this silo will never report it.
        self.unreported: dict[int, str] = {}
        #: Release -> the bytes of the hub's signed broadcast.
        self.broadcasts: dict[int, bytes] = {}
        #: Texts of contradictions in the hub's messages. After the first, this silo sends nothing.
        self.alarms: list[str] = []
        #: Why the silo has left the federation; empty while it takes part.
        self.leave_reason = ""
        # ---- State of this process: empty after a restart.
        #: Random bytes that this process sends to the hub. A receipt that repeats them answers this
        #: process, and is no old message.
        self._nonce = entropy(16)
        #: True once the hub has answered with this process's nonce.
        self._hub_answered = False
        #: Releases of which the hub has confirmed this silo's report.
        self._hub_has: set[int] = set()
        #: Number of releases that the hub has broadcast; None before the hub's first answer.
        self._hub_released: int | None = None
        #: Where `closed_leaves` resumes its search.
        self._closed_before = 0
        #: The hub's nonce, which the next `Join` repeats; empty if there is none to repeat.
        self._hub_nonce = b""
        #: The hub's clock in its last receipt, in seconds since 1970; 0 before the first receipt.
        self._hub_time = 0.0
        #: Release -> digest of a report that this silo sent before its state was restored from a
        #: backup, and that the restored state does not have.
        self.lost: dict[int, bytes] = {}
        #: Why the hub takes no more reports of this silo; empty while it takes them.
        self.hub_refusal = ""
        #: The randomizer after its last report, and the digest of the leaf sums up to this report.
        self._last_randomizer: tuple[SumRandomizer, bytes] | None = None

    def _statistic(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the s = `Plan.statistic_size` numbers that one record adds to the sums, (s,)."""
        return self._point_randomizer.point(x, y)

    def _randomizer(self) -> Any:
        """Create a new object that computes reports to the hub.

        A report is computed from the leaf sums (sums of one period each) or, if users send bits,
        from records. The object's method ``point(x, y)`` computes the s numbers that one record
        adds to the sums.
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
        id: str | None = None,
    ) -> tuple[Step, Decision]:
        """Choose an action for one person with the model of the last release.

        Any number of decisions may be open, that is, without a reward.

        Parameters
        ----------
        actions : array_like, shape (K, columns)
            The feature rows of the offered actions, in the units of the plan's columns.
        now : float
            Seconds since 1970.
        subject : str or int, optional
            Identifies the person; not empty. The number 7 and the text "7" are the same person. The
            plan learns from each person once, or up to ``returning`` times if users send bits.
            Later decisions for the same person are made as usual, but nothing is learned from them.
            Only a keyed digest of the subject is stored.
        record : mapping, optional
            Values by column name, instead of ``actions``, if the plan has columns of records.
        among : sequence of str, optional
            With a record: the actions that may be chosen. By default the whole catalogue.
        id : str, optional
            The decision's id, `ID_DIGITS` random hexadecimal digits. If a decision has this id, it
            is returned again, so a call whose answer was lost can be repeated. By default, a new
            id is drawn.

        Returns
        -------
        step : Step
            The entries that store the decision.
        decision : Decision
            The action, its propensity, and the id that `reward` takes.

        Raises
        ------
        InputError
            If the actions or the record do not fit the plan's schema, or the decision with this
            id was made for a different person or offer.

        Notes
        -----
        After a restore from a backup, reports may be `lost`, that is, sent but missing in the
        restored state. Until they are recovered, the silo decides with its last model and learns
        nothing.
        """
        schema = self.deployed.document.schema
        features, offered = schema.offer(actions, record, among)
        # The digest of the offer is stored, so that a repeated call with a different offer is
        # refused.
        offer = digest(packed(features))[:16]
        subject_digest = b"" if subject is None else self.digest_of(subject)
        if id is not None and (earlier := self._repeated(id, offer, subject_digest)) is not None:
            return Step(), earlier
        explore = self.deployed.document.explore
        model_row, x_chosen = self.model.select(features)
        chosen_row, count = model_row, len(features)
        # Explore: with probability `explore` take a uniformly random row instead of the model's.
        # The first 53 of 64 random bits give a uniform number in [0, 1).
        uniform = (int.from_bytes(self._entropy(8), "big") >> 11) * 2.0**-53
        if uniform < explore:
            chosen_row = uniform_below(count, self._entropy)
            x_chosen = features[chosen_row]
        propensity = explore / count + (1.0 - explore) * (chosen_row == model_row)
        earlier_count = 0 if subject is None else self._earlier_decisions(subject_digest, subject)
        stored = Decided(
            offered[chosen_row],
            float(propensity),
            self.model.release,
            self._may_be_learned(now) and earlier_count < self.returning and not self.lost,
            self.own_time(now),
            packed(np.array(x_chosen, dtype=np.float64)),
            offer,
            subject_digest,
        )
        return self._decided(stored, id, earlier_count)

    def _decided(
        self,
        stored: Decided,
        id: str | None,
        earlier_count: int,
        touches: tuple[tuple[str, str], ...] = (),
    ) -> tuple[Step, Decision]:
        """Return the step that stores a decision, and the decision; see `decide`.

        ``earlier_count`` is the number of decisions already counted for the same person (the result
        of `_earlier_decisions`), 0 without a subject. For ``touches`` see `Step`.
        """
        name = self._entropy(ID_DIGITS // 2).hex() if id is None else id
        writes: tuple[Write, ...] = (Write("decision", name, wire.encoded(stored)),)
        has_full_count = earlier_count == self.returning
        if stored.subject and (stored.learns or has_full_count):
            # Count this decision for the person. A decision from which nothing is learned, such as
            # one before the calendar's start, is not counted: the silo can then learn from a later
            # decision. If the count is full, write the last number again, under today's digest: the
            # stored write may have the digest of an earlier version of fastfed.
            key = subject_key(stored.subject, min(earlier_count + 1, self.returning))
            writes = (Write("subject", key, b""), *writes)
        return Step(writes, touches=touches), self._public(name, stored)

    def _public(self, name: str, stored: Decided) -> Decision:
        """Return the part of a stored decision that the application receives."""
        action = self._action_name(stored.action)
        return Decision(name, stored.action, stored.propensity, stored.model, stored.learns, action)

    def _action_name(self, action: int) -> str:
        """Return the name of an action in the plan's catalogue; empty if there is none."""
        return self.deployed.document.schema.action(action)

    def _repeated(self, name: str, offer: bytes, subject: bytes) -> Decision | None:
        """Return the stored decision if a call of `decide` is repeated with its id; else None.

        The application chooses an id, and may call `decide` with it again if it got no answer.

        Parameters
        ----------
        name : str
            The id in this call.
        offer, subject : bytes
            The digests of the offered rows and of the person in this call.

        Raises
        ------
        InputError
            If the id is invalid, or if the stored decision was for another person or offer.
        """
        if (
            not isinstance(name, str)
            or len(name) != ID_DIGITS
            or set(name) - set("0123456789abcdef")
        ):
            raise InputError(
                f"id must be {ID_DIGITS} random digits of 0-9a-f, such as "
                f"secrets.token_hex({ID_DIGITS // 2}), got {show(name)}"
            )
        stored = self._open.get(name) or self.decisions.get(name)
        if stored is None:
            return None
        if (stored.offer, stored.subject) != (offer, subject):
            raise InputError(f"id {name} is of a decision for another person or offer")
        return self._public(name, stored)

    def _may_be_learned(self, now: float) -> bool:
        """Return True if the silo may learn from a decision made now.

        It may while the calendar runs, unless it has left the federation or has reached the limit
        on decisions to learn from, `kinds.PEOPLE_PER_ROUND` times the horizon. With more records,
        floating-point sums would no longer be exact. Below the limit, the answer does not depend on
        the number of earlier decisions. Otherwise one person's arrival would decide whether the
        silo learns from later persons, and the privacy account does not cover this.
        """
        start, end = self.calendar.start, self.calendar.closes[-1]
        # This machine's clock and the other parties' clocks may differ: accept the time of either.
        in_calendar = any(start <= time < end for time in (now, self.own_time(now)))
        count = self._learning_count + self.in_flight
        below_limit = count < self.plan.most_records(self.leaves)
        return in_calendar and below_limit and not self.leave_reason

    def reward(self, name: str, reward: float, now: float) -> Step:
        """Record the reward of a decision, and add it to the leaf of the current period.

        A leaf is the sums of one period. A reward after the decision's deadline, or of a decision
        that is not learned from, is stored but enters no leaf. Recording the same reward again
        changes nothing.

        Parameters
        ----------
        name : str
            The id of the decision.
        reward : float
            The reward, in the range that the plan declares.
        now : float
            Seconds since 1970.

        Raises
        ------
        InputError
            If there is no such decision, or if it was cancelled or has a different reward. Also
            while reports are `lost`, that is, sent but missing in the restored state.
        """
        if self.plan.flips:
            raise InputError(
                "this plan learns from bits that users' devices send, not from rewards: call bit"
            )
        return self._end_with(name, private_reward("reward", reward), now)

    def _end_with(self, name: str, y: float, now: float) -> Step:
        """Return the step that ends a decision with the reward or bit ``y``; see `reward`.

        Return an empty step if ``y`` is stored already, or if the decision has expired: its reward
        was overdue when its record was to be erased.
        """
        self.check_recovered()
        decided, previous = self._decision(name), self._end(name)
        if previous is not None:
            if (
                previous.reward == y and previous.why != "cancelled"
            ) or previous.why == EXPIRED_REASON:
                return Step()
            raise InputError(
                f"decision {name} has ended already, with another outcome or cancelled, and an "
                "outcome cannot be changed"
            )
        leaf = self._open_leaf(now)
        is_late = now > decided.time + self.calendar.reward_deadline
        is_used = decided.learns and leaf <= self.leaves
        why_no_leaf = "late" if is_late else "" if is_used else "unused"
        ended = Ended(0 if why_no_leaf else leaf, y, float(now), why_no_leaf)
        return Step((Write("ended", name, wire.encoded(ended)),))

    def outcome(self, name: str, value: object, now: float) -> Step:
        """Convert an outcome to a reward, as the plan's schema declares, and record it."""
        if self.plan.flips:
            # `reward` raises InputError, since this plan takes bits. The outcome is not read.
            return self.reward(name, 0.0, now)
        action = self._decision(name).action
        return self.reward(name, self.deployed.document.schema.reward(value, action), now)

    def bit(self, name: str, bit: object, now: float) -> Step:
        """Record the bit that a user's device has sent instead of a reward (`bit_to_send`).

        The unbiased estimate of the reward, ``plan.bit_values[bit]``, is added to the sums. Apart
        from this, the method does the same as `reward`.

        Parameters
        ----------
        name : str
            The id of the decision.
        bit : {0, 1}
            The bit that the device sent.
        now : float
            Seconds since 1970.

        Raises
        ------
        InputError
            In the cases of `reward`, and if the plan takes rewards instead of bits.
        """
        if not self.plan.flips:
            raise InputError('bit is for protocol "user-bit": call reward or outcome')
        if type(bit) is not int or bit not in (0, 1):
            raise InputError("bit must be 0 or 1, as the user's device has sent it")
        return self._end_with(name, float(bit), now)

    def losses(self, name: str, losses: object, now: float) -> Step:
        """Raise InputError, since this plan has no experts; `ExpertSilo` overrides this method."""
        raise InputError("this plan has no experts: give the reward")

    def _open_leaf(self, now: float) -> int:
        """Return the number of the leaf (sums of one period) that a reward recorded now enters.

        It is the leaf of the current period or, if this leaf is closed, the first open leaf. A leaf
        is closed as soon as the privacy ledger is charged for its report. The charge holds the
        digest of the report, so a silo that is killed after charging must make the same report
        again, from the same records.
        """
        last_closed = max(self.closed_leaves, self.sessions.last)
        while self._recorded_charge(last_closed + 1) is not None:
            last_closed += 1
        return max(self.calendar.period(now), last_closed + 1)

    def cancel(self, name: str, now: float) -> Step:
        """End a decision without a reward."""
        self._decision(name)
        previous = self._end(name)
        if previous is not None:
            if previous.why == "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already, so it cannot be cancelled")
        return Step((Write("ended", name, wire.encoded(Ended(0, None, float(now), "cancelled"))),))

    def check_recovered(self) -> None:
        """Raise InputError while reports are `lost`: the silo must be recovered first."""
        if self.lost and not self.leave_reason:
            raise InputError(
                f"the hub has reports of releases {sorted(self.lost)} that this silo's state does "
                "not know: it was restored from a backup, or copied; recover it first"
            )

    def leave(self) -> Step:
        """Leave the federation.

        The next `tick` sends a `Leave` to the hub, which then releases sums without this silo.
        """
        return Step((Write("left", "", b"left"),))

    # ---- state -----------------------------------------------------------------------------------

    @property
    def leaves(self) -> int:
        """Number of leaves, and so of reports, of this silo in the whole plan."""
        return len(self.calendar.closes)

    @property
    def released(self) -> int:
        """Number of broadcasts that this silo has."""
        return int(self.model.release)

    def _last_leaf_in(self, release: int) -> int:
        """Return the number k of this silo's last leaf that the broadcast of a release may contain.

        Here k is the release. `ClockedSilo` overrides this method: there silos report at different
        times, so k may differ from the release.
        """
        return release

    @property
    def closed_leaves(self) -> int:
        """Number of the last closed leaf: no reward enters leaves 1, 2, ... up to it any more.

        A leaf (sums of one period) is closed if its report is sealed (stored for good), will never
        be made, or is `lost`.
        """
        # A closed leaf stays closed, so the search resumes where it ended the last time.
        leaf = self._closed_before
        while leaf + 1 in self.sealed or leaf + 1 in self.unreported:
            leaf += 1
        self._closed_before = leaf
        return max(leaf, max(self.lost, default=0))

    @property
    def stopped(self) -> str:
        """Why the silo no longer sends anything; empty while it takes part."""
        return self.leave_reason or self.hub_refusal or (self.alarms[0] if self.alarms else "")

    def fold(self, write: Write) -> None:
        """Update this object by an entry that is now stored on disk.

        An entry of an unknown kind is ignored.
        """
        kind, key, value = write
        if kind in self.summarised:
            # The entry is about a decision, its end, or a person.
            self._fold_record_write(write)
        elif kind == "sealed":
            self.sealed[int(key)] = value
            self.lost.pop(int(key), None)
        elif kind == "without":
            self.unreported[int(key)] = value.decode()
            self.lost.pop(int(key), None)
        elif kind == "broadcast":
            self.broadcasts[int(key)] = value
            body = self.wire.body(self.wire.read(value), Broadcast)
            values = self.wire.floats(body.values, "the broadcast")
            self._use_broadcast(self.model, values, int(key), body)
        elif kind in ("session", "sessions"):
            self.sessions.fold(write)
        elif kind == "alarm":
            self.alarms.append(value.decode())
        elif kind == "left":
            self.leave_reason = "the silo has left"

    def _use_broadcast(self, model: Any, values: np.ndarray, release: int, body: Broadcast) -> None:
        """Let a model choose actions by the values (s,) of a broadcast from now on."""
        model.adopt(values, release)

    def _waits(self, now: float) -> dict[str, Any]:
        """Return what this silo waits for at time ``now``, as plain data.

        The kind of wait is a row of `progress.WAITS`. The first condition that holds decides.
        """
        closes, unreleased_leaf = self.calendar.closes, self.released_leaves + 1
        hub = self.deployed.document.hub.name

        def wait(state: str, leaf: int, who: Sequence[str] = ()) -> dict[str, Any]:
            """Return the row of a wait since the end of a leaf's period; leaf 0: nothing is due."""
            wait_start = float(closes[leaf - 1]) if 1 <= leaf <= len(closes) else None
            return waiting("silo", state, leaf, wait_start, who)

        if self.stopped:
            return wait("stopped", 0)
        if unreleased_leaf > self.leaves:
            return wait("over", 0)
        if self.lost:
            return wait("recover", min(self.lost))
        open_leaf, closed_periods = self.closed_leaves + 1, self.calendar.closed(now)
        if not self._hub_answered or self.unanswered(now):
            return wait("hub", unreleased_leaf if unreleased_leaf <= closed_periods else 0, [hub])
        if open_leaf <= closed_periods:
            if open_leaf in self.sessions.foreign:
                # The hub has a session derived from records that this silo's restored state lacks.
                return wait("given-up", open_leaf, [self.name])
            if self.sessions.missing(open_leaf):
                return wait("sessions", open_leaf, [hub])
            if open_leaf > self.released_leaves and not self._fits_ceiling(open_leaf):
                return wait("ceiling", open_leaf)
        if unreleased_leaf <= closed_periods:
            given_up = self.unreported.get(unreleased_leaf, "") == LOST_REASON
            return wait("given-up" if given_up else "release", unreleased_leaf, [hub])
        is_early = now < self.calendar.start
        return waiting("silo", "start" if is_early else "open", unreleased_leaf, None)

    def _fits_ceiling(self, release: int) -> bool:
        """Return True if a release is charged to the ledger already, or the ceiling allows it.

        The ceiling is the total budget (epsilon, delta) that the silo's owner allows for the
        dataset.
        """
        return all(map(self.ledger.allows, self._missing_charge(release)))

    def status(self, now: float | None = None) -> dict[str, object]:
        """Return the silo's state as plain data without values of records.

        If ``now`` (seconds since 1970) is given, the key ``waits`` says what the silo waits for.
        """
        return {
            "plan": self.deployed.digest.hex(),
            "silo": self.name,
            "model": self.model.release,
            "releases": self.deployed.exchanges,
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
        """Sign a message about a release, addressed to the hub."""
        return Message(self.deployed.document.hub.name, self.signed(release, body))

    def _join_messages(self, now: float) -> tuple[Message, ...]:
        """Return `Join` messages for the hub: one with this silo's nonce, one with the hub's nonce.

        A nonce is 16 random bytes. The hub's answer repeats this silo's nonce, and so proves that
        the hub is running now. The second message repeats the hub's nonce, and so proves that this
        silo is running now. It is left out if the hub has sent no nonce.
        """
        clocks = self.own_time(now), self._hub_time
        nonces = (nonce for nonce in (self._nonce, self._hub_nonce) if nonce)
        bodies = [wire.Join(nonce, self.agreement, *clocks) for nonce in nonces]
        return tuple(self._to_hub(self.released, body) for body in bodies)

    def tick(self, now: float) -> Step:
        """Seal (store for good) the reports of closed periods; send what the hub has not confirmed.

        The hub confirms only what it has now, so a hub that was restored from a backup receives its
        lost messages again. No report is sealed before the hub has answered this process, or while
        reports are `lost` from this silo's state.
        """
        if self.leave_reason and not self.hub_refusal:
            return Step((), (self._to_hub(0, wire.Leave()),))
        if self.stopped:
            return Step()
        if not self._hub_answered or self.lost:
            # `recover` needs the sessions of all silos (32 bytes each, which determine the masks).
            # The hub sends them after it has received this silo's session.
            without_sessions = sorted(k for k in self.lost if self.sessions.missing(k))
            steps = [self._send_session(k) for k in without_sessions]
            writes = tuple(write for step in steps for write in step.writes)
            messages = (message for step in steps for message in step.messages)
            return Step(writes, (*self._join_messages(now), *messages))
        last_closed, step = self.calendar.closed(now), Step()
        if self.closed_leaves < min(last_closed, self.leaves):
            step = self._close_next_leaf(self.closed_leaves + 1)
            if step.writes:
                return step
            if self.lost:
                # The leaf's charge has shown that this state was restored from a backup.
                return Step((), self._join_messages(now))
        # Even if this leaf cannot be closed yet, repeat what the hub does not have.
        return Step((), self._unconfirmed(now), step.problem)

    def _unconfirmed(self, now: float) -> tuple[Message, ...]:
        """Return the messages that the hub may not have, and a `Join`.

        They are sessions (32 bytes each, which determine the masks of a release), reports, and
        broadcasts that the hub made. The hub answers the `Join` with a list of the reports that it
        has.
        """
        hub = self.deployed.document.hub.name
        hub_released = self.released if self._hub_released is None else self._hub_released
        messages: list[Message] = []
        for k in sorted(self.sessions.sent):
            # A restored hub may have lost sessions that other silos are waiting for.
            if k > hub_released or self.sessions.missing(k):
                messages += self._send_session(k).messages
        # A report is not sent again if it is in a broadcast that both hub and silo have.
        last_in_both = self._last_leaf_in(min(hub_released, self.released))
        for k in range(last_in_both + 1, max(self.sealed, default=0) + 1):
            if k in self.sealed and k not in self._hub_has:
                messages += self._report_messages(k, self.sealed[k])
        # Send the hub the broadcasts that its restored log lacks: they show which sets of reports
        # the hub had added up.
        messages += [
            Message(hub, self.broadcasts[k]) for k in range(hub_released + 1, self.released + 1)
        ]
        return (*messages, *self._join_messages(now))

    def _close_next_leaf(self, release: int) -> Step:
        """Close the leaf (sums of one period) of a release, or take the next step towards it.

        If reports are masked, the masks depend on the sessions of all silos (32 bytes each). The
        silo then first sends its session, and closes the leaf when the hub has sent all sessions.
        If the ledger was charged for a report that cannot be made again, the report is added to
        `lost`.
        """
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
        """Charge a release to the ledger, and seal (store for good) its report.

        If the hub has already released the sums without this silo, charge but make no report. If
        the ceiling of the ledger does not allow the charge, return a step with a problem.
        """
        is_too_late = self._is_too_late(release)
        data = b"" if is_too_late else self.report(release)
        charges = self._missing_charge(release, digest(data) if data else b"")
        if not all(map(self.ledger.allows, charges)):
            # Later releases must wait too: they would be charged on top of this one.
            if self.ledger.ceiling(self.dataset) is None:
                return Step(
                    problem=f'no ceiling is set for dataset "{self.dataset}": stop this silo, and '
                    "set one by fastfed deploy join FOLDER PLAN --epsilon E --delta D"
                )
            return Step(problem=f"release {release} is more than the ceiling of the budget allows")
        if is_too_late:
            return Step((*charges, Write("without", str(release), b"opened without this silo")))
        return Step(
            (*charges, Write("sealed", str(release), data)), self._report_messages(release, data)
        )

    def _is_too_late(self, release: int) -> bool:
        """Return True if the hub has released this release's sums, so a report comes too late."""
        return release <= self.model.release

    def _report_messages(self, release: int, report: bytes) -> tuple[Message, ...]:
        """Return two messages for the hub: a `Seen`, to be passed on to all silos, and the report.

        The `Seen` holds the digests of the report and of the last broadcast that this silo has, so
        the other silos can check that they received the same broadcast.
        """
        last_release = self._last_before(release)
        last_digest = digest(self.broadcasts[last_release]) if last_release else b""
        seen_message = self._to_hub(release, wire.Seen(digest(report), last_release, last_digest))
        return seen_message, Message(self.deployed.document.hub.name, report)

    def _last_before(self, release: int) -> int:
        """Return the number of the last broadcast before a release that this silo has."""
        return min(self.released, release - 1)

    def _missing_charge(self, release: int, report: bytes = b"") -> tuple[Charge, ...]:
        """Return a tuple with the charge that a release adds to the privacy ledger.

        The tuple is empty if the ledger has the charge already. ``report`` is the digest of the
        report.
        """
        if self._recorded_charge(release) is not None:
            return ()
        plan, executed = self.deployed.digest, self.deployed.executed
        return (charge_of(executed, plan, self.dataset, release, report),)

    def _recorded_charge(self, release: int) -> Charge | None:
        """Return the charge of a release from the ledger; None if there is none."""
        return self.ledger.charged(self.dataset, self.deployed.digest, release)

    def _lost_report_digest(self, release: int) -> bytes | None:
        """Return the digest of a report that was charged but cannot be made again; else None.

        A silo that is killed after charging the ledger and before storing the report makes the same
        report again. If the report has different bytes now, the silo's state was restored from a
        backup, and the charged report may have been sent.
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
        """Return release -> digest of lost reports that the ledger shows and the hub does not.

        Only releases after the last one in `lost` are searched. If `lost` is empty, so is the
        result.
        """
        last_lost = max(self.lost, default=self.leaves)
        later_releases = (
            k for k in range(last_lost + 1, self.leaves + 1) if not self.sessions.missing(k)
        )
        digests = ((k, self._lost_report_digest(k)) for k in later_releases)
        return {k: report for k, report in digests if report is not None}

    def report(self, release: int) -> bytes:
        """Return the bytes of the signed report of a release.

        The noise is a function of the sums that it hides, so the same records give the same bytes.
        """
        leaf_sums, randomizer = self._leaf_sums[:release], self._randomizer()
        if isinstance(randomizer, SumRandomizer):
            values = self._randomized(release, randomizer)
            if hub_sees_reports(self.plan):
                # The hub refuses values beyond the range. Clipping noisy values costs no privacy.
                limit = self._range.report(release)
                values = np.clip(values, -limit, limit)
            return self.encrypt_report(release, values)
        records = self._set_hidden_sums(release)
        if isinstance(randomizer, Counter):
            # The report holds counts of the bits of rounded records and of noise bits. A secure sum
            # hides these counts from the hub.
            return self._secure_report(release, randomizer.row(release, records))
        # The report holds integer sums with a share of the noise; a secure sum hides them.
        return self._secure_report(release, randomizer.row(leaf_sums))

    def _randomized(self, release: int, randomizer: SumRandomizer) -> np.ndarray:
        """Return the s noisy values of this silo's report of a release.

        ``randomizer`` is new. A report depends on the randomizer's state after all earlier reports,
        so these are computed first. If the last call of this method computed the earlier reports
        from the same sums, a copy of that call's randomizer replaces ``randomizer``.
        """
        earlier_digest = digest(self._leaf_sums[: release - 1].tobytes())
        if self._last_randomizer is not None:
            last_randomizer, last_digest = self._last_randomizer
            if last_randomizer.release == release - 1 and last_digest == earlier_digest:
                randomizer = last_randomizer.copy()
        for k in range(randomizer.release + 1, release + 1):
            for node, sums in hidden_by(self.plan, k, self._leaf_sums[:k]).items():
                self._sealing.set_hidden_sums(node, sums)
            randomizer.add(self._leaf_sums[k - 1])
            values = randomizer.report().values
        self._last_randomizer = randomizer, digest(self._leaf_sums[:release].tobytes())
        return values

    def encrypt_report(self, release: int, values: np.ndarray, share: bytes = b"") -> bytes:
        """Encrypt the values of a report to the hub, and sign the report.

        ``share`` is the helper's share of a secure sum, encrypted to the helper. The same values
        give the same bytes.
        """
        plain = packed(values)
        context = share_context(self.deployed, self.index, release, HUB_CONTEXT)
        seed = self._sealing.report_seed(self.index, release, plain)
        encrypted_values = encrypted_to(self.deployed.document.hub.open, plain, context, seed)
        return self.signed(release, wire.Report(encrypted_values, share))

    def _set_hidden_sums(self, release: int) -> list[Record]:
        """Give `_sealing` the sums that the noise of a release hides; return records if needed.

        The noise is derived from these sums. If the plan's protocol encodes records as bits, the
        noise is derived from the records instead, and the report counts the bits of the returned
        records. Otherwise the returned list is empty.
        """
        if self.plan.protocol.bits:
            records = self._records(leaves_of_node(self.plan, release))
            self._sealing.set_hidden_sums(release, hidden_of(self.plan, release, records))
            return records
        for k in range(1, release + 1):
            for node, sums in hidden_by(self.plan, k, self._leaf_sums[:k]).items():
                self._sealing.set_hidden_sums(node, sums)
        return []

    def _secure_report(self, release: int, values: np.ndarray) -> bytes:
        """Return a report whose values (s,) no party may see: split into two shares, or masked."""
        if not self.deployed.masked:
            return self.encrypt_report(
                release, *in_shares(self, self.index, release, values, self._sealing)
            )
        masks = PairMasks(self.deployed, self.index, self.identity)
        mask = masks.at(release, len(values), self.sessions.lists[release])
        return self.encrypt_report(release, values + mask)

    def _session_changed(self, release: int) -> bool:
        """Return True if records changed after this silo's session of a release was sent.

        A session (32 bytes derived from the sums) determines the masks of the report. The same mask
        could then hide two different reports, and the difference of the two would be visible.
        """
        if not self.deployed.masked:
            return False
        self._set_hidden_sums(release)
        session = self._sealing.session(self.index, release)
        return session != self.sessions.lists[release][self.index]

    def _session(self, release: int) -> bytes:
        """Return this silo's session of a release: 32 bytes derived from the sums of its report.

        The pairwise masks of all silos' reports depend on their sessions. A session that was sent
        is never computed again.
        """
        session = self.sessions.sent.get(release)
        if session is None:
            self._set_hidden_sums(release)
            session = self._sealing.session(self.index, release)
        return session

    def _send_session(self, release: int) -> Step:
        """Store and send this silo's session of a release: 32 bytes that determine masks.

        After that, no reward enters the release's leaf. `tick` repeats the message until the hub
        has sent the sessions of all silos.
        """
        session, already_sent = self._session(release), release in self.sessions.sent
        writes = () if already_sent else (Write("session", str(release), session),)
        return Step(writes, (self._to_hub(release, wire.Sessions((session,))),))

    def _take_sessions(self, release: int, body: wire.Sessions) -> Step:
        """Check and store a list of all silos' sessions, sent by the hub.

        The list is ignored, unless this silo has sent its session or must recover a lost report.
        """
        if release not in self.sessions.sent and not (
            release in self.lost and self.sessions.missing(release)
        ):
            return Step()
        writes, problem = self.sessions.check_list(release, body, self._session(release))
        return self._alarm(problem) if problem else Step(writes)

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message of the hub: a receipt, a list of sessions, or news (a broadcast).

        Raises
        ------
        Refused
            For a message of a different kind or sender, and if the content is not accepted.
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

    def _check_closed(self, release: int, kind: str, now: float) -> None:
        """Refuse a message of this kind about a release whose period is still open.

        Records still enter the sums of that period, so no party can have this silo's report or
        session of the release.
        """
        if release > self._last_closed(kind, now):
            raise Refused(
                f"the {kind} is about release {release}, whose period is still open here: the "
                "clocks of hub and silo differ, or the hub lies"
            )

    def _last_closed(self, kind: str, now: float) -> int:
        """Return the last release about which the hub can know anything; see `_check_closed`."""
        return max(self.calendar.closed(now), *self.sealed, 0)

    def _handle_news(self, release: int, body: wire.News) -> Step:
        """Check that the hub sent all silos the same broadcasts, then process the new broadcast.

        The news holds a broadcast, and a `Seen` message of each silo with the digests of its report
        and of the last broadcast it has. Silos sign these messages, so the hub cannot change them.
        """
        envelope = self.wire.read(body.broadcast, ("broadcast",))
        if (envelope.sender, envelope.release) != (self.deployed.document.hub.name, release):
            raise Refused(f"the news of release {release} must hold the hub's broadcast of it")
        if self.alarms:
            # After an alarm the silo acts on its last good model.
            return Step()
        reports: dict[int, bytes] = {}
        broadcast = self.wire.body(envelope, Broadcast)
        for data in body.seen:
            seen_envelope = self.wire.read(data, ("seen",))
            seen = self.wire.body(seen_envelope, wire.Seen)
            silo = self.deployed.index(seen_envelope.sender)
            own_copy = self.broadcasts.get(seen.last)
            if seen_envelope.release != self._report_number_in(release, broadcast, silo):
                raise Refused(
                    f"the news of release {release} is about release {seen_envelope.release}"
                )
            if own_copy is not None and digest(own_copy) != seen.head:
                return self._alarm(
                    f"the hub sent {seen_envelope.sender} another broadcast of release "
                    f"{seen.last} than this silo"
                )
            reports[silo] = seen.report
        return self._adopt_broadcast(envelope, body.broadcast, reports)

    def _handle_receipt(self, released: int, body: Receipt, now: float) -> Step:
        """Compare the hub's list of this silo's reports with the reports in this silo's state.

        ``released`` is the number of releases that the hub has broadcast. A report that only the
        hub has is added to `lost`. If a report differs, the returned step raises an alarm.
        """
        if body.silo != self.index:
            raise Refused(f"the receipt is for silo {body.silo}, not {self.index}")
        if any(not 1 <= k <= self.leaves or len(d) != KEY_BYTES for k, d in body.reports):
            raise Refused(f"the receipt must be of releases 1..{self.leaves}, with digests")
        answers_this_process = body.nonce == self._nonce
        if answers_this_process:
            self._store_clock_reading(self.deployed.document.hub.name, body.time, body.after)
            self._hub_time = body.time
        self._check_closed(max((k for k, _ in body.reports), default=0), "receipt", now)
        if answers_this_process:
            # Start a new list: a hub that was restored from a backup has fewer reports. `tick`
            # sends again all reports that the receipt does not list.
            self._hub_answered, self._hub_has, self._hub_released = True, set(), released
            self._hub_nonce = b""
        elif len(body.nonce) == len(self._nonce):
            # The receipt asks this silo to repeat the hub's nonce.
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
        """Verify a broadcast, and store it so that its model is used.

        Parameters
        ----------
        envelope : Envelope
            The broadcast.
        data : bytes
            The encoded envelope.
        reports : dict of int to bytes
            Silo -> the digest of its report, as the silo stated it in a `Seen` (a signed message to
            the other silos).
        """
        release = envelope.release
        if release in self.broadcasts:
            if self.broadcasts[release] != data:
                return self._alarm(f"the hub sent two broadcasts of release {release}")
            return Step()
        if release != self.released + 1 or release > self.deployed.exchanges:
            # Not the next broadcast of the plan. If it came too early, the hub sends it again, in
            # order, in its answer to the next `Join`.
            return Step()
        body = self.wire.body(envelope, Broadcast)
        if problem := self._broadcast_problem(release, body, reports):
            return self._alarm(problem)
        # A broadcast lists the reports that it adds up, with at most one report of this silo.
        own_entries = [entry for entry in body.entries if entry.silo == self.index]
        own_number = self._report_number_in(release, body, self.index)
        own_report = self.sealed.get(own_number)
        if own_entries and own_report is not None and own_entries[0].digest != digest(own_report):
            return self._alarm(f"broadcast {release} holds another report than this silo sent")
        values = self.wire.floats(body.values, f"broadcast {release}")
        check_range(values, self._largest_values(release, body), f"broadcast {release}")
        # Try on a copy: values that the model cannot use must not change the state.
        trial_model = copy.copy(self.model)
        try:
            self._use_broadcast(trial_model, values, release, body)
        except environments.SimulationError as error:
            raise Refused(f"broadcast {release} cannot be acted on ({error})") from None
        # If the broadcast contains a report of this silo that the state lacks, the state was
        # restored from a backup.
        if own_entries and own_report is None and own_number not in self.unreported:
            self.lost[own_number] = own_entries[0].digest
        return Step((Write("broadcast", str(release), data),))

    def _broadcast_problem(self, release: int, body: Broadcast, reports: dict[int, bytes]) -> str:
        """Return an alarm text if a broadcast contradicts earlier messages; else an empty text.

        For ``reports`` see `_adopt_broadcast`.

        Raises
        ------
        Refused
            If the broadcast's list of reports is not valid, or names a report that no silo signed.
        """
        last = self.released
        expected_before = digest(self.broadcasts[last]) if last else b""
        if body.before != expected_before:
            return f"broadcast {release} does not follow the one before it"
        wire.check_entries(body.entries, self.plan.silos, f"broadcast {release}")
        if problem := self._report_problem(release, body):
            return problem
        if any(reports.get(entry.silo) != entry.digest for entry in body.entries):
            raise Refused(f"broadcast {release} holds reports that no silo signed")
        return self._helper_problem(release, body) if self.deployed.shared else ""

    def _report_number_in(self, release: int, body: Broadcast, silo: int) -> int:
        """Return the number of the silo's report that a broadcast of a release adds up.

        Here it is the release. `ClockedSilo` overrides this method: there silos report at different
        times, so the number may differ from the release.
        """
        return release

    def _report_problem(self, release: int, body: Broadcast) -> str:
        """Return an alarm text if a broadcast adds up the reports of too few silos; else empty."""
        is_small = len(body.entries) < self.deployed.document.least
        return f"broadcast {release} is of too few silos" if is_small else ""

    def _largest_values(self, release: int, body: Broadcast) -> np.ndarray:
        """Return the largest absolute values (s,) that a broadcast may have."""
        return self._range.broadcast(release)

    def _helper_problem(self, release: int, body: Broadcast) -> str:
        """Return an alarm text if the helper opened two sets of one release; else an empty text.

        Every report is split into two shares, one for the helper. The helper opens a set of
        reports: it answers with the sum of their shares. Each answer holds the digest of the
        helper's previous answer, so two answers to one release break this chain.

        Raises
        ------
        Refused
            If the broadcast's set of reports is not the set that the helper opened.
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
        """Return a step that raises an alarm: after it, the silo sends nothing.

        The silo still makes decisions, with its last model.
        """
        return Step((Write("alarm", text, text.encode()),), problem=text)

    def recover(self) -> Step:
        """Return the step that closes the leaves of lost reports, so that the silo can continue.

        A report is lost if it was sent, but is not in this silo's state, which was restored from a
        backup. A report that was charged to the ledger counts as lost even if the hub does not have
        it.

        If the state still has the records of a lost report, the same bytes of the report are made
        again. If not, the release stays without a report of this silo. The application may then
        send a reward again that was in the lost report, so one record may be in the sums of two
        periods. Therefore the whole plan is charged to the ledger a second time. This charge has
        the release number -k, where k is the last lost release. If reports are lost again later,
        the plan is charged again.

        Raises
        ------
        InputError
            If the hub has not sent the sessions of a lost release yet.
        """
        writes: list[Write | Charge] = []
        lost_releases = self.lost | self._lost_report_digests()
        last_lost = max(lost_releases, default=0)
        # Close all leaves up to the last lost release, each with the same report or without one.
        for release in range(1, last_lost + 1):
            if release in self.sealed or release in self.unreported:
                continue
            lost_digest = lost_releases.get(release)
            no_sessions = self.sessions.missing(release)
            # `foreign`: the hub's session of this silo is from records that this state lacks.
            if lost_digest is not None and no_sessions and release not in self.sessions.foreign:
                raise InputError(f"the hub has not sent the sessions of release {release} yet")
            writes += self._missing_charge(release, lost_digest or b"")
            cannot_remake = lost_digest is None or no_sessions or self._session_changed(release)
            report = b"" if cannot_remake else self.report(release)
            if lost_digest is not None and digest(report) == lost_digest:
                writes.append(Write("sealed", str(release), report))
            else:
                if lost_digest is not None:
                    # Charge the whole plan a second time, under the number -k.
                    writes += self._missing_charge(-last_lost)
                writes.append(Write("without", str(release), LOST_REASON.encode()))
        return Step(tuple(writes))
