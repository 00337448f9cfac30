"""A silo of a deployment: decisions and rewards from its own application, one report a release.

Invariants, see docs/deployment.md: a report is made once for each release, and is durable before
its first byte leaves; its noise is a function of what it hides; a record enters the one leaf whose
period it became known in; a release is charged before it is sealed.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any
from unicodedata import normalize

import msgspec
import numpy as np

from fastfed._kernels import aggregation, environments
from fastfed._random import NoiseSource
from fastfed._validate import InputError, is_line
from fastfed.deployment import wire
from fastfed.deployment.charges import charge_of
from fastfed.deployment.guard import check_range, visible
from fastfed.deployment.ledger import Charge, Ledger, Write
from fastfed.deployment.model import Decided, Decision, Ended, Model, model_at_start, summary
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.schema import private_number
from fastfed.deployment.seal import (
    KEY,
    SealedNoise,
    digest,
    hidden_by,
    keyed_digest,
    sealed_to,
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


class SiloParty(Speaker):
    """One silo as a state machine.

    Parameters
    ----------
    deployed : DeployedPlan
        The plan file, verified.
    name : str
        The silo's.
    secret : bytes
        32 bytes that only this silo has.
    ledger : Ledger
        Its budget; only read here.
    dataset : str
        The entry of the ledger that its records belong to.
    noise : NoiseSource, optional
        By default `SealedNoise` of the secret. Pass ``SeededNoise`` only to simulate.
    entropy : callable, optional
        Gives so many random bytes; os.urandom, except in tests.
    """

    #: What is acted on before the first release.
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
        self.index, self._extends = deployed.index(name), summary(deployed)
        self.ledger, self.dataset = ledger, dataset
        self._secret, self._entropy = secret, entropy
        self._sealing = SealedNoise(secret, deployed.digest, name)
        self._noise: NoiseSource = self._sealing.source if noise is None else noise
        self._range = self._limits()
        self._points = self._randomizer()
        #: What is durable.
        self.model: Model = self.starts(deployed)
        self.decisions: dict[str, Decided] = {}
        self.ended: dict[str, Ended] = {}
        self.sealed: dict[int, bytes] = {}
        self.sessions = Sessions(deployed, self.index)
        self.without: dict[int, str] = {}
        self.broadcasts: dict[int, bytes] = {}
        self.alarms: list[str] = []
        self.left = ""
        self._leaves = np.zeros((self.plan.releases, self.plan.statistic_size))
        self._learning = self.clipped_features = self.clipped_rewards = 0
        self._subjects: set[bytes] = set()
        #: What was heard since the start.
        self._nonce = entropy(16)
        self._answered = False
        self._held: set[int] = set()
        self._released: int | None = None
        self._asked, self._hub_time = b"", 0.0
        self.lost: dict[int, bytes] = {}
        self.over = ""

    def _randomizer(self) -> SumRandomizer | Sharer | Counter:
        """What makes reports of leaf sums, or of records: a new one, which has made none."""
        if self.plan.protocol.bits:
            return Counter(self.plan, self.index, self._noise)
        if self.plan.secure is not None:
            return Sharer(self.plan.secure, self.index, self._noise)
        return SumRandomizer(self.plan, self.index, self._noise)

    # ---- the application -------------------------------------------------------------------------

    def decide(
        self,
        actions: object,
        now: float,
        subject: str | int | None = None,
        *,
        record: object = None,
        among: object = None,
    ) -> tuple[Step, Decision]:
        """Choose for one person; any number of decisions may be open.

        Parameters
        ----------
        actions : array_like, shape (K, columns)
            The rows offered, in the units of the plan's columns.
        now : float
            Seconds since 1970.
        subject : str or int, optional
            Who it is, not empty; a number is the text of its digits. The plan counts each person
            once: a later decision for the same one is acted on, but nothing is learned from it.
            Only a keyed digest is kept.
        record : mapping, optional
            Values by column name, in place of ``actions``, of a plan with columns of records.
        among : sequence of str, optional
            With a record: the actions that may be chosen; all of the catalogue by default.

        Raises
        ------
        InputError
            For rows that do not fit the schema.

        Notes
        -----
        While the silo must be recovered it acts on its last model, and nothing is learned.
        """
        schema = self.deployed.document.schema
        features, offered = schema.offer(actions, record, among)
        explore = self.deployed.document.explore
        chosen, x = self.model.select(features)
        count = len(features)
        chance = int.from_bytes(self._entropy(8), "big") >> 11
        greedy = chosen
        if chance * 2.0**-53 < explore:
            chosen = uniform_below(count, self._entropy)
            x = features[chosen]
        propensity = explore / count + (1.0 - explore) * (chosen == greedy)
        who = b"" if subject is None else self.digest_of(subject)
        kept = Decided(
            offered[chosen],
            float(propensity),
            self.model.release,
            self._admits(now) and who not in self._subjects and not self.lost,
            float(now),
            packed(np.array(x, dtype=np.float64)),
            digest(packed(features))[:16],
            who,
        )
        name = self._entropy(8).hex()
        known = kept.action, kept.propensity, kept.model, kept.learns
        decision = Decision(name, *known, schema.action(kept.action))
        return Step((Write("decision", name, wire.encoded(kept)),)), decision

    def digest_of(self, subject: str | int) -> bytes:
        """All that is kept of who it is: text, or a whole number, whose digits count as text."""
        if isinstance(subject, (int, np.integer)) and not isinstance(subject, bool):
            subject = str(int(subject))
        if not isinstance(subject, str) or not subject or not is_line(subject):
            raise InputError(
                "subject must be text that tells persons apart, of printable characters on one "
                "line; leave it out for somebody who is not to be counted"
            )
        # One person, however a keyboard composes the letters of a name.
        return keyed_digest(self._secret, _SUBJECT, normalize("NFC", subject).encode())[:16]

    def _admits(self, now: float) -> bool:
        """True if what is decided now may be learned from.

        That depends on the calendar alone. A count of earlier decisions would let one person's
        coming decide whether strangers are learned from, which no account covers. The only limit
        on the count is `ROOM` times the horizon, where sums would stop being exact.
        """
        calendar = self.deployed.document.calendar
        period = calendar.period(now)
        within = now >= calendar.start and period <= self.plan.releases and not self.left
        return within and self._learning < self.plan.most_records(self.plan.releases)

    def reward(self, name: str, reward: float, now: float) -> Step:
        """The reward of a decision; it enters the leaf of the period in which it became known.

        After the deadline, or where nothing was to be learned, it is kept and enters none. The
        same reward again changes nothing.
        """
        self.check_recovered()
        y = private_number("reward", reward)
        decided = self._decided(name)
        known = self.ended.get(name)
        if known is not None:
            if known.reward == y and known.why != "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already, otherwise")
        calendar = self.deployed.document.calendar
        leaf = self._leaf(now)
        late = now > decided.time + calendar.reward_deadline
        why = "late" if late else "" if decided.learns and leaf <= self.plan.releases else "unused"
        ended = Ended(0 if why else leaf, y, float(now), why)
        return Step((Write("ended", name, wire.encoded(ended)),))

    def outcome(self, name: str, value: object, now: float) -> Step:
        """The outcome of a decision, of which the plan's schema makes the reward."""
        action = self._decided(name).action
        return self.reward(name, self.deployed.document.schema.reward(value, action), now)

    def losses(self, name: str, losses: object, now: float) -> Step:
        """Raise InputError: only a plan of experts learns what all of them have lost."""
        raise InputError("this plan has no experts: give the reward")

    def _leaf(self, now: float) -> int:
        """The leaf that what becomes known now enters: one that is not closed.

        A leaf is closed from its charge on, which names the report that is sealed next: a silo
        that was killed in between must make the same one again.
        """
        closed = max(self.done, self.sessions.last)
        while self._paid(closed + 1) is not None:
            closed += 1
        return max(self.deployed.document.calendar.period(now), closed + 1)

    def cancel(self, name: str, now: float) -> Step:
        """End a decision without a reward."""
        self._decided(name)
        known = self.ended.get(name)
        if known is not None:
            if known.why == "cancelled":
                return Step()
            raise InputError(f"decision {name} has ended already, otherwise")
        return Step((Write("ended", name, wire.encoded(Ended(0, None, float(now), "cancelled"))),))

    def _decided(self, name: str) -> Decided:
        found = self.decisions.get(name)
        if found is None:
            raise InputError("there is no decision of that id")
        return found

    def check_recovered(self) -> None:
        """Raise InputError while the silo must be recovered, and learns nothing."""
        if self.lost and not self.left:
            raise InputError(
                f"the hub has reports of releases {sorted(self.lost)} that this silo's state does "
                "not know: it was restored from a backup, or copied; recover it first"
            )

    def leave(self) -> Step:
        """Leave the federation: later sets are without this silo; `tick` tells the hub."""
        return Step((Write("left", "", b"left"),))

    # ---- state -----------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """Leaves that are closed for this silo: sealed, or left out."""
        k = 0
        while k + 1 in self.sealed or k + 1 in self.without:
            k += 1
        return max(k, max(self.lost, default=0))

    @property
    def stopped(self) -> str:
        """Why nothing is sent any more; empty while the silo takes part."""
        return self.left or self.over or (self.alarms[0] if self.alarms else "")

    def fold(self, write: Write) -> None:
        """Take in a write that is durable."""
        kind, key, value = write
        if kind == "decision":
            self.decisions[key] = kept = msgspec.msgpack.decode(value, type=Decided)
            self._learning += kept.learns
            if kept.subject:
                self._subjects.add(kept.subject)
        elif kind == "ended":
            self.ended[key] = ended = msgspec.msgpack.decode(value, type=Ended)
            if ended.leaf:
                aggregation.add(self._leaves[ended.leaf - 1], self._point(key, ended))
        elif kind == "sealed":
            self.sealed[int(key)] = value
            self.lost.pop(int(key), None)
        elif kind == "without":
            self.without[int(key)] = value.decode()
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
            self.left = "the silo has left"

    def _point(self, name: str, ended: Ended) -> np.ndarray:
        """The statistic of a record, (s,)."""
        x = np.frombuffer(self.decisions[name].x, dtype="<f8").astype(np.float64)
        clip = self.plan.clip
        assert clip is not None and ended.reward is not None
        y, outside, beyond = clip.apply(x, ended.reward)
        self.clipped_features += outside
        self.clipped_rewards += beyond
        return self._points.point(x, y)

    def _waits(self, now: float) -> dict[str, Any]:
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
        leaf, closed = self.done + 1, self.deployed.document.calendar.closed(now)
        if not self._answered or self.unanswered(now):
            return state("hub", release if release <= closed else 0, [hub])
        if leaf <= closed:
            if self.sessions.missing(leaf):
                return state("sessions", leaf, [hub])
            if leaf > self.model.release and not self._affords(leaf):
                return state("ceiling", leaf)
        if release <= closed:
            return state("release", release, [hub])
        return waiting("silo", "open", release, None)

    def _affords(self, release: int) -> bool:
        """True if the ledger has room for a release, or has it already."""
        return all(map(self.ledger.allows, self._charge(release)))

    def status(self, now: float | None = None) -> dict[str, object]:
        """What the silo does, as plain data without values of records; now: for ``waits``."""
        return {
            "plan": self.deployed.digest.hex(),
            "silo": self.name,
            "model": self.model.release,
            "releases": self.plan.releases,
            "sealed": sorted(self.sealed),
            "without": {str(k): why for k, why in sorted(self.without.items())},
            "open_decisions": len(self.decisions) - len(self.ended),
            "lost": sorted(self.lost),
            "stopped": self.stopped,
            **({} if now is None else {"waits": self.waits(now)}),
            "theta": self.model.theta.tolist(),
            **self._extends,
        }

    # ---- messages --------------------------------------------------------------------------------

    def _to_hub(self, release: int, body: wire.Body) -> Message:
        return Message(self.deployed.document.hub.name, self.made(release, body))

    def _joins(self, now: float) -> tuple[Message, ...]:
        """The question to the hub, and the answer to its own whether this silo is here now."""
        clocks = self.own_time(now), self._hub_time
        nonces = (nonce for nonce in (self._nonce, self._asked) if nonce)
        bodies = [wire.Join(nonce, self.agreement, *clocks) for nonce in nonces]
        return tuple(self._to_hub(self.model.release, body) for body in bodies)

    def tick(self, now: float) -> Step:
        """Seal the reports of leaves that have closed, and send what the hub has not confirmed.

        That is also what a hub has lost that was put back to an old state: the same bytes. Until
        the hub has answered, and while the silo must be recovered, nothing is sealed.
        """
        if self.left and not self.over:
            return Step((), (self._to_hub(0, wire.Leave()),))
        if self.stopped:
            return Step()
        if not self._answered or self.lost:
            unsure = sorted(k for k in self.lost if self.sessions.missing(k))
            steps = [self._telling(k) for k in unsure]
            writes = tuple(write for step in steps for write in step.writes)
            asked = (message for step in steps for message in step.messages)
            return Step(writes, (*self._joins(now), *asked))
        closed, step = self.deployed.document.calendar.closed(now), Step()
        if self.done < min(closed, self.plan.releases):
            step = self._next(self.done + 1)
            if step.writes:
                return step
            if self.lost:
                return Step((), self._joins(now))
        # While a leaf waits, for sessions or for the budget, what was lost is sent again.
        return Step((), self._unconfirmed(now), step.problem)

    def _unconfirmed(self, now: float) -> tuple[Message, ...]:
        """What the hub may not have, and the question what it has."""
        hub = self.deployed.document.hub.name
        known = self.model.release if self._released is None else self._released
        # Sessions, which a hub that was put back may have lost while other silos wait for them.
        told = [k for k in self.sessions.told if k > known or self.sessions.missing(k)]
        sends = [message for k in sorted(told) for message in self._telling(k).messages]
        unheld = [item for item in sorted(self.sealed.items()) if item[0] not in self._held]
        sends += [message for k, data in unheld for message in self._sends(k, data)]
        # A hub that was put back to before releases that are here: the sets that it opened.
        sends += [
            Message(hub, self.broadcasts[k]) for k in range(known + 1, self.model.release + 1)
        ]
        return (*sends, *self._joins(now))

    def _next(self, release: int) -> Step:
        """What the first leaf that is not closed leads to, once its period is over."""
        if self.sessions.missing(release):
            return self._telling(release)
        if self._changed(release):
            return self._alarm(f"records of release {release} changed after its session was sent")
        forgotten = self._forgotten(release)
        if forgotten is not None:
            self.lost[release] = forgotten
            return Step()
        return self._closing(release)

    def _closing(self, release: int) -> Step:
        """Close a leaf: charge it, then seal its report; where it was opened without, leave it."""
        opened = release <= self.model.release
        data = b"" if opened else self.report(release)
        paid = self._charge(release, digest(data) if data else b"")
        if not all(map(self.ledger.allows, paid)):
            # Later releases wait, too: what they cost counts on this one having been charged.
            return Step(problem=f"release {release} is more than the ceiling of the budget allows")
        if opened:
            return Step((*paid, Write("without", str(release), b"opened without this silo")))
        return Step((*paid, Write("sealed", str(release), data)), self._sends(release, data))

    def _sends(self, release: int, report: bytes) -> tuple[Message, ...]:
        """A report, and before it what this silo tells all others about it."""
        last = min(self.model.release, release - 1)
        head = digest(self.broadcasts[last]) if last else b""
        seen = self._to_hub(release, wire.Seen(digest(report), last, head))
        return seen, Message(self.deployed.document.hub.name, report)

    def _charge(self, release: int, report: bytes = b"") -> tuple[Charge, ...]:
        """The charge of a release; none where the ledger has it."""
        found = self._paid(release)
        made = charge_of(
            self.deployed.executed, self.deployed.digest, self.dataset, release, report
        )
        return () if found is not None else (made,)

    def _paid(self, release: int) -> Charge | None:
        return self.ledger.charged(self.dataset, self.deployed.digest, release)

    def _forgotten(self, release: int) -> bytes | None:
        """Digest of a report of this release that the ledger paid for and that was another one.

        Between its charge and its seal a report can be made again. If it comes out otherwise, the
        silo's state was put back after it had been made, and it may have been sent.
        """
        paid = self._paid(release)
        if paid is None or not paid.report or release in self.sealed or release in self.without:
            return None
        return paid.report if digest(self.report(release)) != paid.report else None

    def report(self, release: int) -> bytes:
        """The report of a release: the same bytes for the same records."""
        self._hide(release)
        leaves, made = self._leaves[:release], self._randomizer()
        if isinstance(made, Counter):
            return self._shares(release, made.row(release, self._records()))
        if isinstance(made, Sharer):
            return self._shares(release, made.row(leaves))
        for leaf in leaves:
            made.add(leaf)
            values = made.report().values
        if visible(self.plan):
            # After the noise, so it costs no privacy; the hub refuses what is beyond the range.
            limit = self._range.report(release)
            values = np.clip(values, -limit, limit)
        return self.reported(release, values)

    def reported(self, release: int, values: np.ndarray, share: bytes = b"") -> bytes:
        """The report of these values, encrypted to the hub: the same bytes for the same values."""
        plain = packed(values)
        context = share_context(self.deployed, self.index, release, TO_HUB)
        seed = self._sealing.report_seed(self.index, release, plain)
        sealed = sealed_to(self.deployed.document.hub.open, plain, context, seed)
        return self.made(release, wire.Report(sealed, share))

    def _hide(self, release: int) -> None:
        """Say what the noise of a report, and its session, hide."""
        if self.plan.protocol.bits:
            self._sealing.hides(release, hidden_of(self.plan, release, self._records()))
            return
        for k in range(1, release + 1):
            for node, sums in hidden_by(self.plan, k, self._leaves[:k]).items():
                self._sealing.hides(node, sums)

    def _records(self) -> list[Record]:
        """All records that entered a leaf."""
        ended = ((n, name, self.ended.get(name)) for n, name in enumerate(self.decisions, 1))
        return [Record(n, e.leaf, self._point(name, e)) for n, name, e in ended if e and e.leaf]

    def _shares(self, release: int, row: np.ndarray) -> bytes:
        """The report of a row that nobody may see: in shares, or under masks."""
        if not self.deployed.masked:
            return self.reported(release, *in_shares(self, self.index, release, row, self._sealing))
        masks = PairMasks(self.deployed, self.index, self.identity)
        mask = masks.at(release, len(row), self.sessions.lists[release])
        return self.reported(release, row + mask)

    def _changed(self, release: int) -> bool:
        """True if a release hides other sums than its session, whose mask would then serve two."""
        if not self.deployed.masked:
            return False
        self._hide(release)
        own = self._sealing.session(self.index, release)
        return own != self.sessions.lists[release][self.index]

    def _session(self, release: int) -> bytes:
        """The own session of a release."""
        told = self.sessions.told.get(release)
        if told is None:
            self._hide(release)
            told = self._sealing.session(self.index, release)
        return told

    def _telling(self, release: int) -> Step:
        """Close a leaf and tell its session, until the hub answers with all silos'."""
        own, known = self._session(release), release in self.sessions.told
        writes = () if known else (Write("session", str(release), own),)
        return Step(writes, (self._to_hub(release, wire.Sessions((own,))),))

    def _heard(self, release: int, body: wire.Sessions) -> Step:
        """What the list of all silos' sessions leads to."""
        if release not in self.sessions.told and not (
            release in self.lost and self.sessions.missing(release)
        ):
            return Step()
        writes, wrong = self.sessions.heard(release, body, self._session(release))
        return self._alarm(wrong) if wrong else Step(writes)

    def handle(self, data: bytes, now: float) -> Step:
        """What a receipt or a broadcast of the hub leads to; Refused for anything else."""
        found = self.wire.read(data, ("receipt", "news", "sessions"))
        if found.sender != self.deployed.document.hub.name:
            raise Refused(
                f"a silo accepts messages of the hub only, got a {found.kind} of {found.sender}"
            )
        if found.kind == "receipt":
            return self._receipt(found.release, self.wire.body(found, Receipt), now)
        self._check_closed(found.release, found.kind, now)
        if found.kind == "sessions":
            return self._heard(found.release, self.wire.body(found, wire.Sessions))
        return self._news(found.release, self.wire.body(found, wire.News))

    def _check_closed(self, release: int, what: str, now: float) -> None:
        """Refuse what the hub says about a release whose period is still open.

        Records still enter such a release, so no report, set or list of sessions of it exists yet.
        """
        closed = max(self.deployed.document.calendar.closed(now), *self.sealed, 0)
        if release > closed:
            raise Refused(
                f"the {what} is about release {release}, whose period is still open here: the "
                "clocks of hub and silo differ, or the hub lies"
            )

    def _news(self, release: int, body: wire.News) -> Step:
        """What a broadcast leads to, once it is known that all silos have the same ones."""
        found = self.wire.read(body.broadcast, ("broadcast",))
        if (found.sender, found.release) != (self.deployed.document.hub.name, release):
            raise Refused(f"the news of release {release} must hold the hub's broadcast of it")
        if self.alarms:
            # The last good model acts on.
            return Step()
        reports: dict[int, bytes] = {}
        for data in body.seen:
            said = self.wire.read(data, ("seen",))
            silo, seen = self.deployed.index(said.sender), self.wire.body(said, wire.Seen)
            own = self.broadcasts.get(seen.last)
            if said.release != release:
                raise Refused(f"the news of release {release} is about release {said.release}")
            if own is not None and digest(own) != seen.head:
                return self._alarm(
                    f"the hub sent {said.sender} another broadcast of release {seen.last} than "
                    "this silo"
                )
            reports[silo] = seen.report
        return self._broadcast(found, body.broadcast, reports)

    def _receipt(self, released: int, body: Receipt, now: float) -> Step:
        if body.silo != self.index:
            raise Refused(f"the receipt is for silo {body.silo}, not {self.index}")
        if any(not 1 <= k <= self.plan.releases or len(d) != KEY for k, d in body.reports):
            raise Refused(f"the receipt must be of releases 1..{self.plan.releases}, with digests")
        fresh = body.nonce == self._nonce
        if fresh:
            self._says(self.deployed.document.hub.name, body.time, body.after)
            self._hub_time = body.time
        self._check_closed(max((k for k, _ in body.reports), default=0), "receipt", now)
        if fresh:
            # All that the hub has: what is not in it is sent again.
            self._answered, self._held, self._released = True, set(), released
            self._asked = b""
        elif len(body.nonce) == len(self._nonce):
            self._asked = body.nonce
        for release, found in body.reports:
            own = self.sealed.get(release)
            if own is not None and digest(own) != found:
                return self._alarm(
                    f"the hub has another report of release {release} than this silo"
                )
            if own is not None:
                self._held.add(release)
            elif release not in self.without:
                self.lost[release] = found
        if body.ended:
            self.over = body.ended
        return Step()

    def _broadcast(self, found: Envelope, data: bytes, reports: dict[int, bytes]) -> Step:
        """Act on a broadcast; reports: the digests that the silos of its set signed."""
        release, last = found.release, self.model.release
        if release in self.broadcasts:
            if self.broadcasts[release] != data:
                return self._alarm(f"the hub sent two broadcasts of release {release}")
            return Step()
        if release != last + 1 or release > self.plan.releases:
            # It comes again, in order, with the answer to the next question.
            return Step()
        body = self.wire.body(found, Broadcast)
        before = digest(self.broadcasts[last]) if last else b""
        if body.before != before:
            return self._alarm(f"broadcast {release} does not follow the one before it")
        wire.check_entries(body.entries, self.plan.silos, f"broadcast {release}")
        if len(body.entries) < self.deployed.document.least:
            return self._alarm(f"broadcast {release} is of too few silos")
        if any(reports.get(entry.silo) != entry.digest for entry in body.entries):
            raise Refused(f"broadcast {release} holds reports that no silo signed")
        if self.deployed.shared and (twice := self._opened_twice(release, body)):
            return self._alarm(twice)
        mine = [entry for entry in body.entries if entry.silo == self.index]
        own = self.sealed.get(release)
        if mine and own is not None and mine[0].digest != digest(own):
            return self._alarm(f"broadcast {release} holds another report than this silo sent")
        values = self.wire.floats(body.values, f"broadcast {release}")
        check_range(values, self._range.broadcast(release), f"broadcast {release}")
        trial = copy.copy(self.model)
        try:
            trial.adopt(values, release)
        except environments.SimulationError as error:
            raise Refused(f"broadcast {release} cannot be acted on ({error})") from None
        if mine and own is None and release not in self.without:
            self.lost[release] = mine[0].digest
        return Step((Write("broadcast", str(release), data),))

    def _opened_twice(self, release: int, body: Broadcast) -> str:
        """What is wrong with the helper's answer, which names the answer before it; or empty.

        Raises
        ------
        Refused
            For a broadcast whose set the helper did not open.
        """
        helper = self.deployed.document.helper
        opened = self.wire.read(body.helper, ("set",))
        said = self.wire.body(opened, wire.Opened)
        signed = helper is not None and opened.sender == helper.name
        if not signed or opened.release != release or said.entries != body.entries:
            raise Refused(f"broadcast {release} is not of the set that the helper opened")
        last = self.broadcasts.get(release - 1)
        before = b"" if last is None else self.wire.body(self.wire.read(last), Broadcast).helper
        if said.before == (digest(before) if before else b""):
            return ""
        return (
            f"the helper's set of release {release} does not follow its last one: the helper was "
            "restored, and has opened two sets of one release"
        )

    def _alarm(self, text: str) -> Step:
        """Stop: act on the last good model and send nothing."""
        return Step((Write("alarm", text, text.encode()),), problem=text)

    def recover(self) -> Step:
        """Make up for reports that were sent but are not in this silo's state.

        The same records give the same bytes, and nothing is lost. Other records: the report is
        given up, and as a record may now be in two leaves the whole plan is charged once more. So
        it is each time that reports have left since: the last of them names the charge.
        """
        writes: list[Write | Charge] = []
        again = -max(self.lost, default=0)
        for release in range(1, max(self.lost, default=0) + 1):
            if release in self.sealed or release in self.without:
                continue
            wanted = self.lost.get(release)
            bare = self.sessions.missing(release)
            if wanted is not None and bare and release not in self.sessions.foreign:
                raise InputError(f"the hub has not sent the sessions of release {release} yet")
            writes += self._charge(release, wanted or b"")
            unmade = wanted is None or bare or self._changed(release)
            made = b"" if unmade else self.report(release)
            if wanted is not None and digest(made) == wanted:
                writes.append(Write("sealed", str(release), made))
            else:
                writes += self._charge(again) if wanted is not None else []
                writes.append(Write("without", str(release), b"lost with the state it was made of"))
        return Step(tuple(writes))
