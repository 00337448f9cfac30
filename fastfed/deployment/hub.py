"""The hub of a deployment: mailbox and server, whose state is the fold of a hash-chained log.

It opens one set of reports for each release: all of them, or after the grace period those that have
come. The set is in the log before anything is made of it, so that a hub which stops in between
makes the same of it when it is started again. Reading the log redoes every sum.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from fastfed._random import NoiseSource
from fastfed._validate import InputError
from fastfed.deployment import wire
from fastfed.deployment.guard import (
    Alarm,
    Cap,
    Fit,
    check_range,
    check_records,
    nodes_of,
    sum_of,
    visible,
)
from fastfed.deployment.ledger import Write
from fastfed.deployment.model import summary
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.seal import KEY, SealedNoise, digest, hidden_by
from fastfed.deployment.sums import TO_HUB, share_context, shuffled
from fastfed.deployment.wire import Broadcast, Envelope, Opened, Refused, check_entries, packed
from fastfed.protocols.protocol import SEND_BATCH, Report
from fastfed.protocols.secure_sum import Decoder
from fastfed.protocols.server import Server

#: Seconds that a hub waits after its start for silos that it has not heard, at least.
PATIENCE = 60.0


class BrokenLog(Refused):
    """A log whose sums are not those of its reports."""


class Hub(Speaker):
    """The hub as a state machine.

    Parameters
    ----------
    deployed : DeployedPlan
        The plan file, verified.
    secret : bytes
        32 bytes that only the hub has.
    noise : NoiseSource, optional
        By default `SealedNoise` of the secret, which a central protocol draws from. Pass
        ``SeededNoise`` only to simulate.
    """

    def __init__(
        self, deployed: DeployedPlan, secret: bytes, *, noise: NoiseSource | None = None
    ) -> None:
        super().__init__(deployed, deployed.document.hub.name, secret)
        self._sealing = SealedNoise(secret, deployed.digest, self.name)
        # Records of a simulation are in no fixed point.
        self._exact = noise is None and self.plan.protocol.noise_by == "server"
        self._server = self._serving(noise)
        self._range, self._extends = self._limits(), summary(deployed)
        influence = deployed.document.influence
        self._cap = None if influence is None else Cap(self.plan, influence)
        self._alarm = Alarm(self.plan) if visible(self.plan) else None
        self._totals = np.zeros((self.plan.releases, self.plan.statistic_size))
        #: Broadcasts that were computed and may not be durable yet.
        self._made: dict[int, bytes] = {}
        self._fitted: dict[int, list[Fit]] = {}
        #: Releases in which a silo's report was held to the cap; the log leads to the same.
        self.capped: dict[str, set[int]] = {}
        #: What was heard since the start: each silo's last release, and broadcasts that were lost.
        self._heard: dict[int, int] = {}
        self._nonce = os.urandom(16)
        self._past: dict[int, bytes] = {}
        self._started: float | None = None
        #: Releases that the helper has opened, as it says since the start; and their sets, where
        #: this hub's log has lost them.
        self._opened: int | None = None
        self._opened_sets: dict[int, tuple[wire.Entry, ...]] = {}
        #: What is durable.
        self.joined: set[str] = set()
        self.left: set[int] = set()
        self.reports: dict[tuple[int, int], bytes] = {}
        self.seen: dict[tuple[int, int], bytes] = {}
        self.sessions: dict[tuple[int, int], bytes] = {}
        self.sets: dict[int, Opened] = {}
        self.answers: dict[int, bytes] = {}
        self.broadcasts: dict[int, bytes] = {}
        self.alarms: list[str] = []
        self.ended = ""

    def _serving(self, noise: NoiseSource | None) -> Server | Decoder:
        """What makes broadcasts of reports."""
        if self.plan.secure is not None:
            return Decoder(self.plan.secure)
        return Server(self.plan, self._sealing.source if noise is None else noise)

    # ---- messages --------------------------------------------------------------------------------

    def handle(self, data: bytes, now: float) -> Step:
        """What a message of a silo or of the helper leads to; a silo may pass on a broadcast."""
        kinds = ("join", "report", "seen", "set", "leave", "sessions", "broadcast")
        found = self.wire.read(data, kinds)
        if found.kind == "join":
            return self._join(found, data, now)
        if found.kind == "broadcast":
            return self._reminded(found, data)
        helper = self.deployed.document.helper
        if found.kind == "set":
            if helper is None or found.sender != helper.name:
                raise Refused(f"a set must come from the helper, got one of {found.sender}")
            return self._answered(found, data)
        silo = self._silo(found)
        if found.kind == "sessions":
            return self._session(silo, found, data)
        if found.kind == "report":
            return self._report(silo, found, data)
        if found.kind == "seen":
            return self._seen_by(silo, found, data)
        self.wire.body(found, wire.Leave)
        return self._leave(silo, data)

    def _silo(self, found: Envelope) -> int:
        if found.sender not in self.deployed.silos:
            raise Refused(f"a {found.kind} must come from a silo, got one of {found.sender}")
        return self.deployed.index(found.sender)

    def _join(self, found: Envelope, data: bytes, now: float) -> Step:
        body = self.wire.body(found, wire.Join)
        self.deployed.check_agreed(found.sender, body.agreed)
        first = () if found.sender in self.joined else (Write("join", found.sender, data),)
        if found.sender not in self.deployed.silos:
            self._opened = max(found.release, self._opened or 0)
            # A restored helper gets its own later answers again, before it opens another set.
            past = (data for k, data in sorted(self.answers.items()) if k > found.release)
            again = (Message(found.sender, each) for each in past)
            return Step(first, (*again, *self._questions()))
        silo = self.deployed.index(found.sender)
        if len(body.nonce) != 16:
            raise Refused(f"the nonce of {found.sender} must have 16 bytes")
        self._says(found.sender, body.time, body.after)
        here = body.nonce == self._nonce
        if here:
            self._heard[silo] = found.release
        # Broadcasts first: what they opened without the silo need not be reported any more.
        later = () if silo in self.left else range(found.release + 1, len(self.broadcasts) + 1)
        answers = [self._news(found.sender, k, self.broadcasts[k]) for k in later]
        clocks = self.own_time(now), body.time
        answers.append(self._receipt(silo, b"" if here else body.nonce, clocks=clocks))
        if silo not in self._heard:
            # Whoever repeats it is here now: an old message cannot.
            answers.append(self._receipt(silo, self._nonce))
        return Step(first, tuple(answers))

    def _receipt(
        self,
        silo: int,
        nonce: bytes = b"",
        more: tuple[tuple[int, bytes], ...] = (),
        left: bool = False,
        clocks: tuple[float, float] = (0.0, 0.0),
    ) -> Message:
        """What the hub has from a silo, and whether it counts on more."""
        known = {
            k: digest(data)
            for (k, i), data in self.reports.items()
            if i == silo and (k, i) in self.seen
        }
        ended = self.ended or ("the silo has left" if left or silo in self.left else "")
        reports = tuple(sorted({**known, **dict(more)}.items()))
        body = wire.Receipt(silo, reports, nonce, ended, *clocks)
        return Message(self.deployed.silos[silo], self.made(len(self.broadcasts), body))

    def _report(self, silo: int, found: Envelope, data: bytes) -> Step:
        release, who = found.release, f"report {found.release} of {found.sender}"
        if not 1 <= release <= self.plan.releases:
            raise Refused(f"{who} must be of release 1..{self.plan.releases}")
        known = self.reports.get((release, silo))
        if known is not None:
            if known == data:
                return Step((), (self._receipt(silo),))
            text = f"{found.sender} sent two reports of release {release}"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if silo in self.left or self.ended:
            raise Refused(
                f"{who} comes after {'the plan has ended' if self.ended else 'it has left'}"
            )
        if found.sender not in self.joined:
            raise Refused(f"{found.sender} must join before it reports")
        values = self._checked(found, who)
        if self._exact:
            check_records(self.plan, values, release, who)
        complete = ((release, digest(data)),) if (release, silo) in self.seen else ()
        receipt = self._receipt(silo, more=complete)
        return Step((Write("report", f"{release}/{silo}", data),), (receipt,))

    def _seen_by(self, silo: int, found: Envelope, data: bytes) -> Step:
        """Keep what a silo tells all others about a release, with its first report of it."""
        release, who = found.release, f"what {found.sender} has seen at release {found.release}"
        body = self.wire.body(found, wire.Seen)
        if not 1 <= release <= self.plan.releases or not 0 <= body.last < release:
            raise Refused(f"{who} must be of a release of the plan, after a broadcast before it")
        if len(body.report) != KEY or len(body.head) != (KEY if body.last else 0):
            raise Refused(f"{who} must have digests of {KEY} bytes")
        if silo in self.left or self.ended or found.sender not in self.joined:
            raise Refused(f"{who} comes from a silo that takes no part")
        if (release, silo) in self.seen:
            return Step((), (self._receipt(silo),))
        return Step((Write("seen", f"{release}/{silo}", data),))

    def _complete(self, release: int, silo: int, report: bytes) -> bool:
        """True if the hub has this report (its digest), and the silo's word about it."""
        seen = self.seen.get((release, silo))
        if seen is None or digest(self.reports.get((release, silo), b"")) != report:
            return False
        return self.wire.body(self.wire.read(seen), wire.Seen).report == report

    def _news(self, silo: str, release: int, broadcast: bytes) -> Message:
        """A broadcast for one silo, with what the silos in its set have seen."""
        entries = self.sets[release].entries
        seen = tuple(self.seen.get((release, entry.silo), b"") for entry in entries)
        return Message(silo, self.made(release, wire.News(broadcast, seen)))

    def _checked(self, found: Envelope, who: str) -> np.ndarray:
        """The values of a report; Refused where they cannot be true."""
        body = self.wire.body(found, wire.Report)
        if self.deployed.shared != bool(body.sealed):
            raise Refused(
                f"{who} must {'' if self.deployed.shared else 'not '}have a share for the helper"
            )
        silo = self.deployed.index(found.sender)
        context = share_context(self.deployed, silo, found.release, TO_HUB)
        try:
            plain = self.identity.opened(body.values, context)
        except InputError:
            raise Refused(f"{who} must be encrypted to the hub of the plan") from None
        if self.deployed.words:
            return self.wire.words(plain, who)
        values = self.wire.floats(plain, who)
        check_range(values, self._range.report(found.release), who)
        return values

    def _session(self, silo: int, found: Envelope, data: bytes) -> Step:
        """Keep a silo's session of a release; answered with all silos', once all have come."""
        release, who = found.release, f"session {found.release} of {found.sender}"
        body = self.wire.body(found, wire.Sessions)
        if not self.deployed.masked or not 1 <= release <= self.plan.releases:
            raise Refused(f"{who} is of no release whose sums are under masks")
        if len(body.values) != 1 or len(body.values[0]) != KEY:
            raise Refused(f"{who} must be one of {KEY} bytes")
        if silo in self.left or self.ended or found.sender not in self.joined:
            raise Refused(f"{who} comes from a silo that takes no part")
        known = self.sessions.get((release, silo))
        all_known = {(release, silo): body.values[0], **self.sessions}
        values = tuple(all_known.get((release, i), b"") for i in range(self.plan.silos))
        writes = () if known else (Write("session", f"{release}/{silo}", data),)
        if all(values):
            answer = self.made(release, wire.Sessions(values))
            return Step(writes, (Message(found.sender, answer),))
        other = known is not None and known != body.values[0]
        problem = f"{found.sender} told another session of release {release} before"
        return Step(writes, problem=problem if other else "")

    def _leave(self, silo: int, data: bytes) -> Step:
        receipt = self._receipt(silo, left=True)
        if silo in self.left:
            return Step((), (receipt,))
        return Step((Write("leave", str(silo), data),), (receipt,))

    def _answered(self, found: Envelope, data: bytes) -> Step:
        """The helper opened a set."""
        release = found.release
        known, asked = self.answers.get(release), self.sets.get(release)
        if known is not None:
            if known == data:
                return Step()
            text = f"the helper opened two sets of release {release}"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        body = self.wire.body(found, Opened)
        later = len(self.broadcasts) < release <= self.plan.releases
        if asked is None and later and len(body.entries) >= self.deployed.document.least:
            # Opened before the log was put back: no other set is.
            check_entries(body.entries, self.plan.silos, f"the helper's set {release}")
            self._opened_sets[release] = body.entries
            return Step()
        if asked is None or body.entries != asked.entries or body.sealed:
            raise Refused(
                f"the helper opened another set of release {release} than it was asked for"
            )
        self.wire.words(body.total, f"the helper's total of release {release}")
        return Step((Write("answer", str(release), data),))

    def _reminded(self, found: Envelope, data: bytes) -> Step:
        """A broadcast of this hub comes back: its log was put back to before it was made.

        Its set is opened again, and no other, once the reports in it have come again.
        """
        release = found.release
        if found.sender != self.name or not 1 <= release <= self.plan.releases:
            raise Refused(f"a broadcast must be one of {self.name} itself, got {found.sender}'s")
        body = self.wire.body(found, Broadcast)
        check_entries(body.entries, self.plan.silos, f"broadcast {release}")
        opened = self.sets.get(release)
        if self.broadcasts.get(release, data) != data or (
            opened is not None and opened.entries != body.entries
        ):
            text = f"a second set of release {release} was opened after the log was put back"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if release not in self.broadcasts:
            self._past[release] = data
        return Step()

    # ---- opening ---------------------------------------------------------------------------------

    def tick(self, now: float) -> Step:
        """Open the next set where its time has come, and send what was made of it."""
        if self._started is None and self._heard:
            self._started = now
        if self.ended:
            return Step()
        release = len(self.broadcasts) + 1
        if release > self.plan.releases:
            return Step()
        if release not in self.sets:
            if release in self._past or release in self._opened_sets:
                return self._reopening(release)
            later = any(k > release for k in (*self._past, *self._opened_sets))
            helper = self.deployed.document.helper
            if helper is not None and (later or (self._opened or 0) >= release):
                return Step((), (Message(helper.name, self.made(release, Opened(()))),))
            # Without a helper, the silos send the broadcasts in between.
            return Step() if later else self._opening(release, now)
        if self.deployed.shared and release not in self.answers:
            return Step((), self._questions())
        beyond = self._beyond(release)
        if beyond:
            return Step((Write("ended", "", beyond.encode()),), problem=beyond)
        data = self._broadcast(release)
        present = (n for i, n in enumerate(self.deployed.silos) if i not in self.left)
        sends = tuple(self._news(name, release, data) for name in present)
        # The alarm first: a hub that is killed between them says it again.
        return Step((*self._suspicion(release), Write("broadcast", str(release), data)), sends)

    def _beyond(self, release: int) -> str:
        """Of a sum modulo 2^64: why it cannot be one of honest silos; empty if it can."""
        if not self.deployed.words:
            return ""
        body = self.wire.body(self.wire.read(self._broadcast(release)), Broadcast)
        try:
            values = self.wire.floats(body.values, f"the sum of release {release}")
            check_range(values, self._range.broadcast(release), f"the sum of release {release}")
        except Refused as refused:
            return f"{refused}; a silo has sent what no records are, and no sum can tell which"
        return ""

    def _suspicion(self, release: int) -> tuple[Write, ...]:
        """An alarm about the silo that fits the others least, where it does not fit."""
        if self._alarm is None or (found := self._alarm.worst(self._fits(release))) is None:
            return ()
        text = (
            f"{self.deployed.silos[found.silo]} does not fit the other silos at release {release}: "
            f"theta moves by {found.moves:.3g} without it (score {found.score:.4g}, honest silos "
            f"stay below {self._alarm.threshold:.4g})"
        )
        return (Write("alarm", text, text.encode()),)

    def _fits(self, release: int) -> list[Fit]:
        """How the silos of a release fit each other; computed once."""
        if self._alarm is None or not release:
            return []
        if release not in self._fitted:
            self._fitted = {release: list(self._alarm.fits(release, self._seen(release)))}
        return self._fitted[release]

    def _seen(self, release: int) -> dict[int, dict[int, np.ndarray]]:
        """The reports in the sets up to a release, as they came, by release and silo."""
        found: dict[int, dict[int, np.ndarray]] = {}
        for k in nodes_of(self.plan, release):
            found[k] = {}
            for entry in self.sets[k].entries:
                read = self.wire.read(self.reports[k, entry.silo])
                found[k][entry.silo] = self._checked(read, "a report")
        return found

    def _reopening(self, release: int) -> Step:
        """The set of a release that was opened before the log was put back, once it can be."""
        entries = self._opened_sets.get(release, ())
        if release in self._past:
            entries = self.wire.body(self.wire.read(self._past[release]), Broadcast).entries
        has = (self._complete(release, e.silo, e.digest) for e in entries)
        if not entries or not all(has):
            return Step()
        return Step((Write("set", str(release), self.made(release, Opened(entries))),))

    def _settled(self, now: float) -> bool:
        """True once every silo has been heard since the start, or had the time to be.

        Time counts from the first silo that is heard: before, it may be the hub that is cut off.
        A silo may have a broadcast that this hub's log has lost, which comes after its `join`. Who
        says so, and never sends it, delays one start of the hub and no more.
        """
        active = {i for i in range(self.plan.silos) if i not in self.left}
        wait = max(PATIENCE, self.deployed.document.calendar.grace)
        known = all(last <= len(self.broadcasts) for last in self._heard.values())
        over = self._started is not None and now >= self._started + wait
        helper = not self.deployed.shared or self._opened is not None
        # Without the helper nothing is released anyway, so nobody waits for it in vain.
        return helper and (over or (known and active <= self._heard.keys()))

    def _opening(self, release: int, now: float) -> Step:
        """The set of a release: whoever has reported, once all have or the grace period is over."""
        if not self._settled(now):
            return Step()
        active = [i for i in range(self.plan.silos) if i not in self.left]
        if len(active) < self.deployed.document.least:
            text = f"fewer than {self.deployed.document.least} silos take part"
            return Step((Write("ended", "", text.encode()),))
        came = [
            i
            for i in range(self.plan.silos)
            if (release, i) in self.reports
            and self._complete(release, i, digest(self.reports[release, i]))
        ]
        counted = [i for i in came if i not in self.left]
        calendar = self.deployed.document.calendar
        over = now >= calendar.closes[release - 1] + calendar.grace
        if len(counted) < self.deployed.document.least or not (over or counted == active):
            return Step()
        entries = tuple(wire.entry_of(i, self.reports[release, i]) for i in counted)
        return Step((Write("set", str(release), self.made(release, Opened(entries))),))

    def _questions(self) -> tuple[Message, ...]:
        """To the helper: the set that waits for it, with the shares that are encrypted to it."""
        release, helper = len(self.broadcasts) + 1, self.deployed.document.helper
        opened = self.sets.get(release)
        if helper is None or opened is None or release in self.answers:
            return ()
        shares = []
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            shares.append(self.wire.body(found, wire.Report).sealed)
        body = Opened(opened.entries, tuple(shares))
        return (Message(helper.name, self.made(release, body)),)

    def _broadcast(self, release: int) -> bytes:
        """The broadcast of a set, from the log alone; computed once."""
        if release not in self._made:
            opened = self.sets[release]
            before = digest(self.broadcasts[release - 1]) if release > 1 else b""
            values = packed(self._combined(release, opened))
            body = Broadcast(values, opened.entries, before, self.answers.get(release, b""))
            self._made = {release: self.made(release, body)}
        return self._made[release]

    def _combined(self, release: int, opened: Opened) -> np.ndarray:
        """The synchronised statistics (s,) of a set."""
        rows = []
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            rows.append(self._checked(found, f"report {release} of {found.sender}"))
        if isinstance(self._server, Decoder):
            return self._server.add(self._total(release, rows))
        if self.plan.protocol.bits:
            passed = shuffled(self.plan, release, self._total(release, rows))
            return self._server.combine([passed]).values
        silos = [entry.silo for entry in opened.entries]
        rows = [self._held(row, release, i) for i, row in zip(silos, rows, strict=True)]
        reports = [
            Report(release, self.plan.dimension, row, i) for i, row in zip(silos, rows, strict=True)
        ]
        self._totals[release - 1] = sum_of(rows)
        if self.plan.protocol.noise_by == "server":
            for node, sums in self._hidden(release).items():
                self._sealing.hides(node, sums)
        return self._server.combine(reports, silos).values

    def _total(self, release: int, rows: list[np.ndarray]) -> np.ndarray:
        """The sum of a set's words modulo 2^64: with the helper's, or under masks that cancel."""
        total = np.zeros(self.plan.statistic_size, dtype=np.uint64)
        if self.deployed.shared:
            said = self.wire.body(self.wire.read(self.answers[release]), Opened)
            total = self.wire.words(said.total, "the helper's total")
        for row in rows:
            total = total + row
        return total

    def _held(self, values: np.ndarray, release: int, silo: int) -> np.ndarray:
        """A report within the plan's cap, if it has one; noted where it was beyond it."""
        if self._cap is None:
            return values
        held, scaled = self._cap.held(values, release, silo)
        if scaled:
            self.capped.setdefault(self.deployed.silos[silo], set()).add(release)
        return held

    def _hidden(self, release: int) -> dict[int, bytes]:
        """What the hub's own noise hides in a release, by node."""
        if self.plan.protocol.randomizer == SEND_BATCH:
            return hidden_by(self.plan, release, self._totals[:release])
        # Silos send p-sums: a node hides what they add up to.
        return {release: packed(self._totals[release - 1])}

    # ---- state -----------------------------------------------------------------------------------

    def fold(self, write: Write) -> None:
        """Take in an entry of the log; BrokenLog where it does not follow from those before."""
        kind, key, value = write
        if kind == "join":
            self.joined.add(key)
        elif kind == "leave":
            self.left.add(int(key))
        elif kind == "report":
            release, _, silo = key.partition("/")
            self.reports[int(release), int(silo)] = value
        elif kind == "seen":
            release, _, silo = key.partition("/")
            self.seen[int(release), int(silo)] = value
        elif kind == "session":
            release, _, silo = key.partition("/")
            told = self.wire.body(self.wire.read(value), wire.Sessions)
            (self.sessions[int(release), int(silo)],) = told.values
        elif kind == "set":
            self.sets[int(key)] = opened = self.wire.body(self.wire.read(value), Opened)
            for entry in opened.entries:
                if digest(self.reports.get((int(key), entry.silo), b"")) != entry.digest:
                    raise BrokenLog(f"the set of release {key} holds a report that the log has not")
        elif kind == "answer":
            self.answers[int(key)] = value
        elif kind == "broadcast":
            if self._broadcast(int(key)) != value:
                raise BrokenLog(f"broadcast {key} is not the sum of the reports in its set")
            self.broadcasts[int(key)] = value
            self._past.pop(int(key), None)
        elif kind == "alarm":
            self.alarms.append(value.decode())
        elif kind == "ended":
            self.ended = value.decode()

    def _missing(self, release: int) -> list[int]:
        """Silos that have not told their session, where one is missing, and else not reported."""
        present = [i for i in range(self.plan.silos) if i not in self.left]
        untold = [i for i in present if (release, i) not in self.sessions]
        if self.deployed.masked and untold:
            return untold
        return [i for i in present if (release, i) not in self.reports]

    def _others(self) -> list[str]:
        return list(self.deployed.silos)

    def _waits(self, now: float) -> dict[str, Any]:
        release, document = len(self.broadcasts) + 1, self.deployed.document
        names, helper = self.deployed.silos, document.helper
        if self.ended or release > self.plan.releases:
            return waiting("hub", "ended" if self.ended else "over", 0, None)
        close = float(document.calendar.closes[release - 1])
        since = close if self._started is None else max(close, self._started)

        def state(name: str, who: Iterable[str] = ()) -> dict[str, Any]:
            return waiting("hub", name, release, since, who)

        missing, known = self._missing(release), (*self._past, *self._opened_sets)
        if now < close and release not in self.sets and not any(k >= release for k in known):
            return waiting("hub", "open", release, None)
        if helper is not None and (self._opened is None or release in self.sets):
            # The hub opens no set before the helper has joined, and has no sum before it answers.
            return state("helper", [helper.name])
        if release in known:
            return state("reports-again", [names[i] for i in missing])
        if known:
            return state("broadcast-again", names)
        if not self._settled(now):
            active = [i for i in range(len(names)) if i not in self.left]
            return state("unheard", [names[i] for i in active if i not in self._heard])
        told = [(release, i) in self.sessions for i in range(len(names))]
        if self.deployed.masked and not all(told):
            return state("sessions", [names[i] for i in missing])
        over = now >= close + document.calendar.grace
        return state("too-few" if over else "reports", [names[i] for i in missing])

    def status(self, now: float | None = None) -> dict[str, object]:
        """What the hub has and waits for, as plain data without values; now: for ``waits``."""
        release = len(self.broadcasts) + 1
        waits = release <= self.plan.releases and not self.ended
        names = self.deployed.silos
        return {
            "plan": self.deployed.digest.hex(),
            "joined": sorted(self.joined),
            "left": [names[i] for i in sorted(self.left)],
            "released": len(self.broadcasts),
            "releases": self.plan.releases,
            "next_close": self.deployed.document.calendar.closes[release - 1] if waits else None,
            "waiting_for": [names[i] for i in self._missing(release)] if waits else [],
            "alarms": list(self.alarms),
            "ended": self.ended,
            **({} if now is None else {"waits": self.waits(now)}),
            **self._guarded(),
            **self._extends,
        }

    def _guarded(self) -> dict[str, object]:
        """How far theta moves without each silo, what the alarm can see, and who was capped."""
        release, names = len(self.broadcasts), self.deployed.silos
        made: dict[str, object] = {}
        if self._alarm is not None and release:
            fits = self._fits(release)
            made["moves"] = {names[fit.silo]: fit.moves for fit in fits}
            # JSON has no infinity.
            made["alarm_sees"] = {
                names[fit.silo]: [x if math.isfinite(x) else None for x in fit[-2:]] for fit in fits
            }
        if self._cap is not None:
            made["capped"] = {name: sorted(found) for name, found in sorted(self.capped.items())}
        return made
