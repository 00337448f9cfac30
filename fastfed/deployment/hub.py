"""The hub of a deployment: it collects the silos' reports and broadcasts releases.

For each release the hub *opens* one set of reports: it fixes which silos' reports are added up.
These are the reports of all silos or, after the grace period, the reports that have arrived. The
hub then broadcasts the sum of the set.

The hub's state is computed from a log, a chain of hashed entries, by applying all entries in order.
The hub writes a set to the log before it computes the set's sum. So a hub that is killed in between
computes the same sum after a restart. A hub that reads its log recomputes every sum.
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
    hub_sees_reports,
    nodes_of,
    sum_of,
)
from fastfed.deployment.model import chain_summary
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.progress import waiting
from fastfed.deployment.seal import KEY_BYTES, SealedNoise, digest, hidden_by
from fastfed.deployment.store import Write
from fastfed.deployment.sums import HUB_CONTEXT, share_context, shuffled
from fastfed.deployment.wire import Broadcast, Envelope, Opened, Refused, check_entries, packed
from fastfed.protocols.protocol import SEND_BATCH, Report
from fastfed.protocols.secure_sum import Decoder
from fastfed.protocols.server import Server

#: A restarted hub waits at most this many seconds, or the grace period if it is longer, until every
#: silo has sent a `Join`.
JOIN_SECONDS = 60.0


class BrokenLog(Refused):
    """Raised if a set or a broadcast in the hub's log does not agree with the log's reports."""


class Hub(Speaker):
    """Run the hub as a state machine, which does no input or output.

    Each method returns a `Step`: log entries to store, and messages to send afterwards.

    Parameters
    ----------
    deployed : DeployedPlan
        The verified plan file.
    secret : bytes
        32 bytes that only the hub has.
    noise : NoiseSource, optional
        The noise that the hub adds under a central protocol. By default `SealedNoise` of the
        secret. Pass ``SeededNoise`` only to simulate.
    """

    def __init__(
        self, deployed: DeployedPlan, secret: bytes, *, noise: NoiseSource | None = None
    ) -> None:
        super().__init__(deployed, deployed.document.hub.name, secret)
        self._sealing = SealedNoise(secret, deployed.digest, self.name)
        # Some protocols send reports without noise: exact sums of records in fixed point. The hub
        # checks such reports. In a simulation, which passes a noise source, records are not in
        # fixed point, so the check is left out.
        without_noise = self.plan.protocol.noise_by == "server" or self.plan.flips > 0
        self._checks_records = noise is None and without_noise
        self._server = self._make_server(noise)
        self._range, self._chain_summary = self._limits(), chain_summary(deployed)
        influence = deployed.document.influence
        self._cap = None if influence is None else Cap(self.plan, influence)
        self._detector = Alarm(self.plan) if hub_sees_reports(self.plan) else None
        # ---- State saved in the store: survives a restart.
        #: Names of the parties that have joined, and indices of the silos that have left.
        self.joined: set[str] = set()
        self.left_silos: set[int] = set()
        #: (release, silo) -> the bytes of the silo's report.
        self.reports: dict[tuple[int, int], bytes] = {}
        #: (release, silo) -> the silo's `Seen` message: digests of its report and last broadcast.
        self.seen: dict[tuple[int, int], bytes] = {}
        #: (release, silo) -> the silo's session: 32 bytes on which pairwise masks depend.
        self.sessions: dict[tuple[int, int], bytes] = {}
        #: Release -> the set of reports that was opened.
        self.sets: dict[int, Opened] = {}
        #: Release -> the helper's answer, which holds the sum of the helper's shares.
        self.answers: dict[int, bytes] = {}
        #: Release -> the bytes of the broadcast.
        self.broadcasts: dict[int, bytes] = {}
        #: Contradictions between messages, and silos that do not fit the others.
        self.alarms: list[str] = []
        #: Why the plan has ended early; empty while it runs.
        self.ended = ""
        # ---- State recomputed from the log.
        #: Row k - 1 (s,) is the sum of the reports of release k; s is the size of a report.
        self._totals = np.zeros((self.plan.releases, self.plan.statistic_size))
        #: Release -> the bytes of its broadcast. It holds at most one entry, for the release
        #: computed last, which may not be in the log yet.
        self._broadcast_cache: dict[int, bytes] = {}
        #: Release -> how well each silo fits the others. It holds at most one entry.
        self._fits_cache: dict[int, list[Fit]] = {}
        #: Silo name -> releases in which its report was scaled down to the plan's cap.
        self.capped: dict[str, set[int]] = {}
        #: The last release of which a report is stored.
        self._last_reported = 0
        # ---- State of this process: empty after a restart.
        #: The hub sends this nonce to silos. A silo that repeats it is running now.
        self._nonce = os.urandom(16)
        #: Silo -> the last release that it has, for silos that have sent a `Join` since the
        #: restart.
        self._silo_release: dict[int, int] = {}
        #: Time of the first tick after a silo has sent a `Join`; None before.
        self._first_join: float | None = None
        #: Release -> a broadcast of this hub that its restored log lacks, as a silo returned it.
        self._lost_broadcasts: dict[int, bytes] = {}
        #: The last release that the helper has answered; None before its first message.
        self._helper_release: int | None = None
        #: Release -> entries of a set that the helper has added up and this restored log lacks.
        self._lost_sets: dict[int, tuple[wire.Entry, ...]] = {}
        #: Party -> when its last signed message arrived, which may be an old one that was repeated.
        self.contacts: dict[str, float] = {}

    def _make_server(self, noise: NoiseSource | None) -> Any:
        """Create the object that computes a release (noisy sums) from a set of silos' reports.

        ``noise`` is the source of the hub's noise under a central protocol; None for sealed noise.
        """
        if self.plan.secure is not None:
            return Decoder(self.plan.secure)
        return Server(self.plan, self._sealing.source if noise is None else noise)

    # ---- messages --------------------------------------------------------------------------------

    def handle(self, data: bytes, now: float) -> Step:
        """Process a message of a silo or of the helper, and return the step that it causes.

        ``now`` is the time in seconds since 1970. A silo may also return a broadcast that this hub
        made before its log was restored.

        Raises
        ------
        Refused
            If the message is not accepted.
        """
        kinds = ("join", "report", "seen", "set", "leave", "sessions", "broadcast")
        envelope = self.wire.read(data, kinds)
        step = self._handle_envelope(envelope, data, now)
        self.contacts[envelope.sender] = now
        return step

    def _handle_envelope(self, envelope: Envelope, data: bytes, now: float) -> Step:
        """Process a message whose signature is valid; see `handle`."""
        if envelope.kind == "join":
            return self._answer_join(envelope, data, now)
        if envelope.kind == "broadcast":
            return self._take_returned_broadcast(envelope, data)
        helper = self.deployed.document.helper
        if envelope.kind == "set":
            if helper is None or envelope.sender != helper.name:
                raise Refused(f"a set must come from the helper, got one of {envelope.sender}")
            return self._store_answer(envelope, data)
        silo = self._silo(envelope)
        if envelope.kind == "sessions":
            return self._store_session(silo, envelope, data)
        if envelope.kind == "report":
            return self._store_report(silo, envelope, data)
        if envelope.kind == "seen":
            return self._store_seen(silo, envelope, data)
        self.wire.body(envelope, wire.Leave)
        return self._store_leave(silo, data)

    def _silo(self, envelope: Envelope) -> int:
        """Return the index of the silo that sent a message; raise Refused for another party."""
        if envelope.sender not in self.deployed.silos:
            raise Refused(f"a {envelope.kind} must come from a silo, got one of {envelope.sender}")
        return self.deployed.index(envelope.sender)

    def _answer_join(self, envelope: Envelope, data: bytes, now: float) -> Step:
        """Answer a party's `Join` with the messages that the party has missed.

        A `Join` of the helper names the last release that the helper has answered. If the hub has
        answers of the helper to later releases (the helper was restored), the hub returns them,
        followed by the set that the helper must answer next. A silo gets the broadcasts that it
        does not have, and a receipt: the list of the silo's reports that the hub has.
        """
        body = self.wire.body(envelope, wire.Join)
        self.deployed.check_countersignature(envelope.sender, body.agreed)
        join_write = (
            () if envelope.sender in self.joined else (Write("join", envelope.sender, data),)
        )
        if envelope.sender not in self.deployed.silos:
            self._helper_release = max(envelope.release, self._helper_release or 0)
            # The helper must get these answers before it adds up a new set.
            later_answers = (
                answer for k, answer in sorted(self.answers.items()) if k > envelope.release
            )
            repeated_answers = (Message(envelope.sender, answer) for answer in later_answers)
            return Step(join_write, (*repeated_answers, *self._requests_to_helper()))
        silo = self.deployed.index(envelope.sender)
        if len(body.nonce) != 16:
            raise Refused(f"the nonce of {envelope.sender} must have 16 bytes")
        self._store_clock_reading(envelope.sender, body.time, body.after)
        repeats_hub_nonce = body.nonce == self._nonce
        if repeats_hub_nonce and (body.after or not body.time):
            # A silo that sends its clock time counts only once it has read this hub's clock time.
            self._silo_release[silo] = envelope.release
        # Send broadcasts before the receipt: the silo then knows which sets exclude its report.
        missed_broadcasts = (
            () if silo in self.left_silos else range(envelope.release + 1, len(self.broadcasts) + 1)
        )
        answers = [
            self._news_message(envelope.sender, k, self.broadcasts[k]) for k in missed_broadcasts
        ]
        clocks, nonce = (self.own_time(now), body.time), b"" if repeats_hub_nonce else body.nonce
        answers.append(self._receipt_message(silo, nonce, clocks=clocks, after=envelope.release))
        if silo not in self._silo_release:
            # Ask the silo to repeat the hub's nonce, which no old message of the silo can hold.
            answers.append(self._receipt_message(silo, self._nonce, after=envelope.release))
        return Step(join_write, tuple(answers))

    def _receipt_message(
        self,
        silo: int,
        nonce: bytes = b"",
        new_reports: tuple[tuple[int, bytes], ...] = (),
        left: bool = False,
        clocks: tuple[float, float] = (0.0, 0.0),
        after: int | None = None,
    ) -> Message:
        """Return a receipt for a silo: which of the silo's reports, with their `Seen`, the hub has.

        If the hub takes no more reports of the silo, the receipt also states why. The receipt does
        not list a report that is in a release which both hub and silo have, since nobody needs such
        a report again.

        Parameters
        ----------
        silo : int
            Index of the silo.
        nonce : bytes
            The nonce of the silo's `Join` that is answered, or the hub's nonce for the silo to
            repeat; empty in an answer to a report.
        new_reports : tuple of (release, digest)
            Reports that are stored by the same step.
        left : bool
            True if the same step records that the silo leaves.
        clocks : tuple of float
            The hub's clock time, and the silo's clock time in the message that is answered.
        after : int, optional
            The last release that the silo has. By default the hub's last release.
        """
        released = len(self.broadcasts)
        first = 1 + self._last_report_in(released if after is None else min(after, released), silo)
        stored_reports = {
            k: digest(self.reports[k, silo])
            for k in range(first, self._last_reported + 1)
            if (k, silo) in self.reports and (k, silo) in self.seen
        }
        ended = self.ended or ("the silo has left" if left or silo in self.left_silos else "")
        reports = tuple(sorted({**stored_reports, **dict(new_reports)}.items()))
        body = wire.Receipt(silo, reports, nonce, ended, *clocks)
        return Message(self.deployed.silos[silo], self.signed(len(self.broadcasts), body))

    def _store_report(self, silo: int, envelope: Envelope, data: bytes) -> Step:
        """Check and store a silo's report; raise an alarm if the silo has sent a different one."""
        release, label = envelope.release, f"report {envelope.release} of {envelope.sender}"
        if not 1 <= release <= self._report_count(silo):
            raise Refused(f"{label} must be of release 1..{self._report_count(silo)}")
        previous = self.reports.get((release, silo))
        if previous is not None:
            if previous == data:
                return Step((), (self._receipt_message(silo),))
            text = f"{envelope.sender} sent two reports of release {release}"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if silo in self.left_silos or self.ended:
            raise Refused(
                f"{label} comes after {'the plan has ended' if self.ended else 'it has left'}"
            )
        if envelope.sender not in self.joined:
            raise Refused(f"{envelope.sender} must join before it reports")
        # Refuse impossible values before they are stored.
        values = self._decrypt_report(envelope, label)
        if self._checks_records:
            check_records(self.plan, values, release, label)
        # A receipt lists only reports whose `Seen` the hub has too.
        new_reports = ((release, digest(data)),) if (release, silo) in self.seen else ()
        receipt = self._receipt_message(silo, new_reports=new_reports)
        return Step((Write("report", f"{release}/{silo}", data),), (receipt,))

    def _store_seen(self, silo: int, envelope: Envelope, data: bytes) -> Step:
        """Check and store a silo's `Seen`, which the hub passes on to the other silos.

        A `Seen` is signed by the silo, and holds the digests of the silo's report and of the last
        broadcast that the silo has.
        """
        release, label = (
            envelope.release,
            f"what {envelope.sender} has seen at release {envelope.release}",
        )
        body = self.wire.body(envelope, wire.Seen)
        if not 1 <= release <= self._report_count(silo) or not self._may_have_seen(body, release):
            raise Refused(
                f"{label} must be of a release of the plan, and name an earlier broadcast"
            )
        if len(body.report) != KEY_BYTES or len(body.head) != (KEY_BYTES if body.last else 0):
            raise Refused(f"{label} must have digests of {KEY_BYTES} bytes")
        if silo in self.left_silos or self.ended or envelope.sender not in self.joined:
            raise Refused(f"{label} comes from a silo that takes no part")
        if (release, silo) in self.seen:
            return Step((), (self._receipt_message(silo),))
        return Step((Write("seen", f"{release}/{silo}", data),))

    def _report_count(self, silo: int) -> int:
        """Return the number of reports that a silo makes in the whole plan."""
        return self.plan.releases

    def _may_have_seen(self, body: wire.Seen, release: int) -> bool:
        """Return True if the broadcast that a `Seen` names precedes the release of the `Seen`."""
        return 0 <= body.last < release

    def _last_report_in(self, release: int, silo: int) -> int:
        """Return the number of the last report of a silo that a release's broadcast may contain.

        In this class, report k of a silo belongs to release k. `ClockedHub` overrides this method.
        """
        return release

    def _report_number(self, release: int, entry: wire.Entry) -> int:
        """Return the number of the report that ``entry``, a member of a release's set, names.

        In this class, report k of a silo belongs to release k. `ClockedHub` overrides this method.
        """
        return release

    def _has_reported(self, release: int, silo: int) -> bool:
        """Return True if the hub has a silo's report of a release and a `Seen` with its digest."""
        report = self.reports.get((release, silo))
        return report is not None and self._is_complete(release, silo, digest(report))

    def _is_complete(self, release: int, silo: int, report_digest: bytes) -> bool:
        """Return True if the hub has a silo's report with this digest, and a `Seen` that names it.

        Only such a report can be in a broadcast, since silos check the digests.
        """
        seen_data = self.seen.get((release, silo))
        if seen_data is None or digest(self.reports.get((release, silo), b"")) != report_digest:
            return False
        return self.wire.body(self.wire.read(seen_data), wire.Seen).report == report_digest

    def _news_message(self, silo: str, release: int, broadcast: bytes) -> Message:
        """Return a message that holds a broadcast for one silo.

        The message also holds the `Seen` of every silo whose report is in the broadcast. By these
        the receiver can check that all silos got the same broadcasts.
        """
        seen_messages = tuple(
            self.seen.get((self._report_number(release, entry), entry.silo), b"")
            for entry in self.sets[release].entries
        )
        return Message(silo, self.signed(release, wire.News(broadcast, seen_messages)))

    def _decrypt_report(self, envelope: Envelope, label: str) -> np.ndarray:
        """Decrypt a report's values (s,); raise Refused for values that no records can have."""
        body = self.wire.body(envelope, wire.Report)
        if self.deployed.shared != bool(body.sealed):
            raise Refused(
                f"{label} must {'' if self.deployed.shared else 'not '}have a share for the helper"
            )
        silo = self.deployed.index(envelope.sender)
        context = share_context(self.deployed, silo, envelope.release, HUB_CONTEXT)
        try:
            plain = self.identity.decrypt(body.values, context)
        except InputError:
            raise Refused(f"{label} must be encrypted to the hub of the plan") from None
        if self.deployed.words:
            return self.wire.words(plain, label)
        values = self.wire.floats(plain, label)
        check_range(values, self._range.report(envelope.release), label)
        return values

    def _store_session(self, silo: int, envelope: Envelope, data: bytes) -> Step:
        """Store a silo's session of a release: 32 bytes on which the masks of reports depend.

        Only the first session that a silo sends for a release counts. If all silos have sent a
        session, answer with the list of all sessions. Otherwise, if this silo had sent a different
        session before, the step reports this as a problem.
        """
        release, label = envelope.release, f"session {envelope.release} of {envelope.sender}"
        body = self.wire.body(envelope, wire.Sessions)
        if not self.deployed.masked or not 1 <= release <= self.plan.releases:
            raise Refused(f"{label} is of no release whose sums are under masks")
        if len(body.values) != 1 or len(body.values[0]) != KEY_BYTES:
            raise Refused(f"{label} must be one value of {KEY_BYTES} bytes")
        if silo in self.left_silos or self.ended or envelope.sender not in self.joined:
            raise Refused(f"{label} comes from a silo that takes no part")
        previous = self.sessions.get((release, silo))
        sessions = {(release, silo): body.values[0], **self.sessions}
        values = tuple(sessions.get((release, i), b"") for i in range(self.plan.silos))
        writes = () if previous else (Write("session", f"{release}/{silo}", data),)
        if all(values):
            answer = self.signed(release, wire.Sessions(values))
            return Step(writes, (Message(envelope.sender, answer),))
        changed = previous is not None and previous != body.values[0]
        problem = f"{envelope.sender} sent another session of release {release} before"
        return Step(writes, problem=problem if changed else "")

    def _store_leave(self, silo: int, data: bytes) -> Step:
        """Record that a silo leaves, and answer with a receipt that says so."""
        receipt = self._receipt_message(silo, left=True)
        if silo in self.left_silos:
            return Step((), (receipt,))
        return Step((Write("leave", str(silo), data),), (receipt,))

    def _store_answer(self, envelope: Envelope, data: bytes) -> Step:
        """Check and store the helper's answer: the sum of its shares of the reports in a set.

        With a helper, each report is split into two shares, one for the hub and one for the helper.
        """
        release = envelope.release
        previous, opened_set = self.answers.get(release), self.sets.get(release)
        if previous is not None:
            if previous == data:
                return Step()
            text = f"the helper opened two sets of release {release}"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        body = self.wire.body(envelope, Opened)
        not_broadcast = len(self.broadcasts) < release <= self.plan.releases
        enough_silos = len(body.entries) >= self.deployed.document.least
        if opened_set is None and not_broadcast and enough_silos:
            # The helper answered this set before the hub's log was restored, and answers no other
            # set of the release. The hub opens it again in `_reopen_lost_set`.
            check_entries(body.entries, self.plan.silos, f"the helper's set {release}")
            self._lost_sets[release] = body.entries
            return Step()
        if opened_set is None or body.entries != opened_set.entries or body.sealed:
            raise Refused(
                f"the helper opened another set of release {release} than the hub has opened"
            )
        self.wire.words(body.total, f"the helper's total of release {release}")
        return Step((Write("answer", str(release), data),))

    def _take_returned_broadcast(self, envelope: Envelope, data: bytes) -> Step:
        """Process a broadcast that this hub made and a silo returns; store it if the log lacks it.

        The log can lack it because it was restored. `tick` then opens the broadcast's set again
        when all reports of this set have arrived again. If the log has a different broadcast or set
        of this release, raise an alarm.
        """
        release = envelope.release
        if envelope.sender != self.name or not 1 <= release <= self.deployed.exchanges:
            raise Refused(
                f"a returned broadcast must be signed by {self.name} and of release "
                f"1..{self.deployed.exchanges}, got release {release} of {envelope.sender}"
            )
        body = self.wire.body(envelope, Broadcast)
        check_entries(body.entries, self.plan.silos, f"broadcast {release}")
        opened_set = self.sets.get(release)
        if self.broadcasts.get(release, data) != data or (
            opened_set is not None and opened_set.entries != body.entries
        ):
            text = f"a second set of release {release} was opened after the log was restored"
            return Step((Write("alarm", text, text.encode()),), problem=text)
        if release not in self.broadcasts:
            self._lost_broadcasts[release] = data
        return Step()

    # ---- sets of reports -------------------------------------------------------------------------

    def tick(self, now: float) -> Step:
        """Open the next set of reports when it is due; once it is stored, broadcast its sum.

        After a restore from a backup, sets that the log has lost are opened again first.
        """
        if self._silo_release:
            # The minimum, since the clock may have been set back.
            self._first_join = now if self._first_join is None else min(self._first_join, now)
        if self.ended:
            return Step()
        release = len(self.broadcasts) + 1
        if release > self.deployed.exchanges:
            return Step()
        if release not in self.sets:
            if release in self._lost_broadcasts or release in self._lost_sets:
                return self._reopen_lost_set(release)
            if requests := self._requests_to_helper():
                return Step((), requests)
            # If a later broadcast was lost, a silo will return the broadcast of this release.
            return Step() if self._later_lost(release) else self._open_next_set(release, now)
        if self.deployed.shared and release not in self.answers:
            return Step((), self._requests_to_helper())
        why_impossible = self._why_sum_impossible(release)
        if why_impossible:
            return Step((Write("ended", "", why_impossible.encode()),), problem=why_impossible)
        data = self._broadcast(release)
        present = (n for i, n in enumerate(self.deployed.silos) if i not in self.left_silos)
        sends = tuple(self._news_message(name, release, data) for name in present)
        # The alarm is stored before the broadcast. A hub that is killed after the first of these
        # writes makes both again when it is restarted.
        return Step((*self._misfit_alarm(release), Write("broadcast", str(release), data)), sends)

    def _why_sum_impossible(self, release: int) -> str:
        """Return why a secure sum's total cannot come from honest silos; an empty text if it can.

        The sum of the release must be finite and in the range that the plan's clipping allows.
        """
        if not self.deployed.words:
            return ""
        body = self.wire.body(self.wire.read(self._broadcast(release)), Broadcast)
        try:
            values = self.wire.floats(body.values, f"the sum of release {release}")
            check_range(values, self._range.broadcast(release), f"the sum of release {release}")
        except Refused as refused:
            # After a restore of hub and silo, the silo's masks may use sessions that differ from
            # those of the other silos' masks, and then masks do not cancel.
            masks = ", or hub and silo were restored and masks differ"
            cause = f"a silo has sent what no records are{masks if self.deployed.masked else ''}"
            return f"{refused}; {cause}: no sum can tell which"
        return ""

    def _misfit_alarm(self, release: int) -> tuple[Write, ...]:
        """Return a log entry with an alarm about a silo whose reports do not fit the others'.

        Only the silo with the largest score is named, if this score is above the threshold of
        honest silos. Otherwise return an empty tuple.
        """
        if self._detector is None or (fit := self._detector.worst(self._fits(release))) is None:
            return ()
        text = (
            f"{self.deployed.silos[fit.silo]} does not fit the other silos at release {release}: "
            f"theta moves by {fit.moves:.3g} without it (score {fit.score:.4g}, honest silos "
            f"stay below {self._detector.threshold:.4g})"
        )
        return (Write("alarm", text, text.encode()),)

    def _fits(self, release: int) -> list[Fit]:
        """Return how well each silo's reports up to a release fit the other silos' reports; cached.

        The list is empty at release 0, and if the hub cannot see single reports.
        """
        if self._detector is None or not release:
            return []
        if release not in self._fits_cache:
            self._fits_cache = {release: self._computed_fits(self._detector, release)}
        return self._fits_cache[release]

    def _computed_fits(self, detector: Alarm, release: int) -> list[Fit]:
        """Return how well each silo's reports fit the other silos'; `_fits` caches the result."""
        return list(detector.fits(release, self._reports_by_release(release)))

    def _reports_by_release(self, release: int) -> dict[int, dict[int, np.ndarray]]:
        """Return the reports that add up to the sums of all batches up to a release, uncapped.

        The result maps release -> silo -> the report's values (s,). If each report contains the
        sums of one tree node only, several releases are needed; see `nodes_of`.
        """
        reports: dict[int, dict[int, np.ndarray]] = {}
        for part in nodes_of(self.plan, release):
            reports[part] = {}
            for entry in self.sets[part].entries:
                envelope = self.wire.read(self.reports[part, entry.silo])
                reports[part][entry.silo] = self._decrypt_report(envelope, "a report")
        return reports

    def _reopen_lost_set(self, release: int) -> Step:
        """Open again a set of reports that the restored log lacks, once all its reports are here.

        The set is known from a broadcast that a silo returned, or from the helper's answer. Until
        all reports of the set have arrived, return an empty step.
        """
        entries = self._lost_sets.get(release, ())
        if release in self._lost_broadcasts:
            entries = self.wire.body(
                self.wire.read(self._lost_broadcasts[release]), Broadcast
            ).entries
        if not all(
            self._is_complete(self._report_number(release, e), e.silo, e.digest) for e in entries
        ):
            return Step()
        return Step((Write("set", str(release), self.signed(release, Opened(entries))),))

    def _silos_could_join(self, now: float) -> bool:
        """Return True once every silo has sent a `Join` since the restart, or has had time for it.

        Only then does the hub open a set: a silo may have a broadcast that this hub's restored log
        lacks. The waiting time starts with the first `Join`, since before that the hub may have no
        network. A silo that claims to have such a broadcast but does not send it delays the hub
        only until the waiting time is over. With a helper, the result is False until the helper has
        sent a `Join`.
        """
        active = {i for i in range(self.plan.silos) if i not in self.left_silos}
        wait_seconds = max(JOIN_SECONDS, self.deployed.document.calendar.grace)
        no_lost_broadcasts = all(
            last <= len(self.broadcasts) for last in self._silo_release.values()
        )
        time_is_over = self._first_join is not None and now >= self._first_join + wait_seconds
        helper_joined = not self.deployed.shared or self._helper_release is not None
        # Waiting for the helper delays no release, because none is possible without the helper.
        return helper_joined and (
            time_is_over or (no_lost_broadcasts and active <= self._silo_release.keys())
        )

    def _open_next_set(self, release: int, now: float) -> Step:
        """Open the set of a release: fix which silos' reports are added up.

        This is done when all silos have reported, or when the grace period is over and enough silos
        have. Before that, return an empty step. End the plan if too many silos have left.
        """
        if not self._silos_could_join(now):
            return Step()
        active = [i for i in range(self.plan.silos) if i not in self.left_silos]
        if len(active) < self.deployed.document.least:
            reason = f"fewer than {self.deployed.document.least} silos take part"
            return Step((Write("ended", "", reason.encode()),))
        calendar = self.deployed.document.calendar
        grace_is_over = now >= calendar.closes[release - 1] + calendar.grace
        reporting = [
            i for i in active if (release, i) in self.reports and (release, i) in self.seen
        ]
        # `_has_reported` also checks signatures, which is too slow to do after each message. So
        # this quick comparison comes first.
        if reporting != active and not grace_is_over:
            return Step()
        members = [i for i in reporting if self._has_reported(release, i)]
        if len(members) < self.deployed.document.least or not (grace_is_over or members == active):
            return Step()
        entries = tuple(wire.entry_of(i, self.reports[release, i]) for i in members)
        return Step((Write("set", str(release), self.signed(release, Opened(entries))),))

    def _later_lost(self, release: int) -> bool:
        """Return True if the restored log lacks a set or broadcast of a release after this one."""
        return any(k > release for k in (*self._lost_broadcasts, *self._lost_sets))

    def _requests_to_helper(self) -> tuple[Message, ...]:
        """Return a tuple with the message that the helper must answer now, or an empty tuple.

        The message asks the helper to add up its shares of the open set, and holds these shares,
        which silos have encrypted to the helper. Exception: the helper has answered the release,
        but the restored log lacks the set, and nobody has returned it yet. The message then holds
        an empty set, and the helper repeats its answer, which names the set.
        """
        release, helper = len(self.broadcasts) + 1, self.deployed.document.helper
        if helper is None or release > self.plan.releases or release in self.answers:
            return ()
        opened_set = self.sets.get(release)
        if opened_set is None:
            is_set_known = release in self._lost_broadcasts or release in self._lost_sets
            has_answered = self._later_lost(release) or (self._helper_release or 0) >= release
            request = Message(helper.name, self.signed(release, Opened(())))
            return (request,) if has_answered and not is_set_known else ()
        shares = []
        for entry in opened_set.entries:
            envelope = self.wire.read(self.reports[release, entry.silo])
            shares.append(self.wire.body(envelope, wire.Report).sealed)
        body = Opened(opened_set.entries, tuple(shares))
        return (Message(helper.name, self.signed(release, body)),)

    def _broadcast(self, release: int) -> bytes:
        """Return the bytes of the signed broadcast of a release; cached.

        They are computed from entries of the log only, so a restarted hub computes the same bytes.
        """
        if release not in self._broadcast_cache:
            opened_set = self.sets[release]
            previous_digest = digest(self.broadcasts[release - 1]) if release > 1 else b""
            values = packed(self._compute_release(release, opened_set))
            answer = self.answers.get(release, b"")
            body = Broadcast(values, opened_set.entries, previous_digest, answer)
            self._broadcast_cache = {release: self.signed(release, self._body(release, body))}
        return self._broadcast_cache[release]

    def _body(self, release: int, body: Broadcast) -> Broadcast:
        """Return the body of a broadcast, unchanged; `ClockedHub` adds the fields of a view."""
        return body

    def _compute_release(self, release: int, opened_set: Opened) -> np.ndarray:
        """Return the released statistics (s,) from the reports of a set.

        With a secure sum or flipped bits, reports are encoded numbers, which are added up modulo
        2^64. Otherwise reports are sums in float64. If the plan has a cap, each of these is first
        scaled down to the cap. Under a central protocol, the hub adds noise to their total.
        """
        values = []
        for entry in opened_set.entries:
            envelope = self.wire.read(self.reports[release, entry.silo])
            values.append(self._decrypt_report(envelope, f"report {release} of {envelope.sender}"))
        if isinstance(self._server, Decoder):
            return self._server.add(self._total(release, values))
        if self.plan.protocol.bits:
            shuffler_output = shuffled(self.plan, release, self._total(release, values))
            return self._server.combine([shuffler_output]).values
        silos = [entry.silo for entry in opened_set.entries]
        capped = [self._cap_report(sums, release, i) for i, sums in zip(silos, values, strict=True)]
        reports = [
            Report(release, self.plan.dimension, sums, i)
            for i, sums in zip(silos, capped, strict=True)
        ]
        self._totals[release - 1] = sum_of(capped)
        if self.plan.protocol.noise_by == "server":
            for node, sums in self._hidden_sums(release).items():
                self._sealing.set_hidden_sums(node, sums)
        return self._server.combine(reports, silos).values

    def _total(self, release: int, encoded_reports: list[np.ndarray]) -> np.ndarray:
        """Return the sum (s,) of a release's encoded reports, and of the helper's total if any.

        Numbers are added modulo 2^64. In this sum, pairwise masks cancel, and so do the random
        parts of a report's two shares.
        """
        total = np.zeros(self.plan.statistic_size, dtype=np.uint64)
        if self.deployed.shared:
            helper_answer = self.wire.body(self.wire.read(self.answers[release]), Opened)
            total = self.wire.words(helper_answer.total, "the helper's total")
        for report in encoded_reports:
            total = total + report
        return total

    def _cap_report(self, values: np.ndarray, release: int, silo: int) -> np.ndarray:
        """Return a report's values (s,), scaled down to the plan's cap on one silo's influence.

        Without a cap, return the values unchanged. A release in which a report is scaled down is
        recorded in `capped`.
        """
        if self._cap is None:
            return values
        within_cap, scaled = self._cap.cap_report(values, release, silo)
        if scaled:
            self.capped.setdefault(self.deployed.silos[silo], set()).add(release)
        return within_cap

    def _hidden_sums(self, release: int) -> dict[int, bytes]:
        """Return the exact sums, encoded as bytes, that the hub's noise for a release hides.

        The result maps the number of a tree node to the sums that the noise of this node hides. It
        has the nodes whose noise the hub draws for this release.
        """
        if self.plan.protocol.randomizer == SEND_BATCH:
            return hidden_by(self.plan, release, self._totals[:release])
        # Here each silo's report is the sums of one node, so the node's noise hides the total of
        # the reports.
        return {release: packed(self._totals[release - 1])}

    # ---- state -----------------------------------------------------------------------------------

    def fold(self, write: Write) -> None:
        """Update this object by an entry that is now stored in the log.

        Raises
        ------
        BrokenLog
            If the entry is a set or a broadcast that does not follow from the earlier entries.
        """
        kind, key, value = write
        if kind == "join":
            self.joined.add(key)
        elif kind == "leave":
            self.left_silos.add(int(key))
        elif kind == "report":
            release, _, silo = key.partition("/")
            self.reports[int(release), int(silo)] = value
            self._last_reported = max(self._last_reported, int(release))
        elif kind == "seen":
            release, _, silo = key.partition("/")
            self.seen[int(release), int(silo)] = value
        elif kind == "session":
            release, _, silo = key.partition("/")
            sessions = self.wire.body(self.wire.read(value), wire.Sessions)
            (self.sessions[int(release), int(silo)],) = sessions.values
        elif kind == "set":
            self.sets[int(key)] = opened_set = self.wire.body(self.wire.read(value), Opened)
            for entry in opened_set.entries:
                report = self.reports.get((self._report_number(int(key), entry), entry.silo), b"")
                if digest(report) != entry.digest:
                    raise BrokenLog(
                        f"the set of release {key} holds a report that is not in the log"
                    )
        elif kind == "answer":
            self.answers[int(key)] = value
        elif kind == "broadcast":
            # `_broadcast` computes the sum from the reports, so a log with another sum is refused.
            if self._broadcast(int(key)) != value:
                raise BrokenLog(f"broadcast {key} is not the sum of the reports in its set")
            self.broadcasts[int(key)] = value
            self._lost_broadcasts.pop(int(key), None)
        elif kind == "alarm":
            self.alarms.append(value.decode())
        elif kind == "ended":
            self.ended = value.decode()

    def _missing(self, release: int) -> list[int]:
        """Return the indices of the silos for whose report of a release the hub waits.

        With masks, silos report only when all sessions are there. So if sessions are missing,
        return the silos whose session is missing instead. Silos that have left are not returned.
        """
        present = [i for i in range(self.plan.silos) if i not in self.left_silos]
        without_session = [i for i in present if (release, i) not in self.sessions]
        if self.deployed.masked and without_session:
            return without_session
        return [i for i in present if not self._has_reported(release, i)]

    def _others(self) -> list[str]:
        """Return the names of the parties with whose clocks the hub compares its own: the silos."""
        return list(self.deployed.silos)

    def _waits(self, now: float) -> dict[str, Any]:
        """Return what the hub waits for at time ``now``, as plain data made by `waiting`.

        The conditions below are in order of priority: the first one that holds names the row of
        ``progress.WAITS["hub"]``.
        """
        release, document = len(self.broadcasts) + 1, self.deployed.document
        names, helper = self.deployed.silos, document.helper
        if self.ended or release > self.deployed.exchanges:
            return waiting("hub", "ended" if self.ended else "over", 0, None)
        close_time = float(document.calendar.closes[release - 1])
        wait_start = close_time if self._first_join is None else max(close_time, self._first_join)

        def state(name: str, who: Iterable[str] = ()) -> dict[str, Any]:
            return waiting("hub", name, release, wait_start, who)

        missing, lost_releases = self._missing(release), (*self._lost_broadcasts, *self._lost_sets)
        if (
            now < close_time
            and release not in self.sets
            and not any(k >= release for k in lost_releases)
        ):
            return waiting("hub", "open", release, None)
        if helper is not None and (self._helper_release is None or release in self.sets):
            # The hub opens no set before the helper has joined, and it has no sum of an open set
            # before the helper has answered.
            return state("helper", [helper.name])
        if release in lost_releases:
            return state("reports-again", [names[i] for i in missing])
        if lost_releases:
            return state("broadcast-again", names)
        if not self._silos_could_join(now):
            active = [i for i in range(len(names)) if i not in self.left_silos]
            return state("unheard", [names[i] for i in active if i not in self._silo_release])
        has_session = [(release, i) in self.sessions for i in range(len(names))]
        if self.deployed.masked and not all(has_session):
            return state("sessions", [names[i] for i in missing])
        grace_is_over = now >= close_time + document.calendar.grace
        return state("too-few" if grace_is_over else "reports", [names[i] for i in missing])

    def status(self, now: float | None = None) -> dict[str, object]:
        """Return the hub's state as plain data without values of reports.

        If ``now`` (seconds since 1970) is given, the key ``waits`` says what the hub waits for.
        """
        release = len(self.broadcasts) + 1
        is_running = release <= self.deployed.exchanges and not self.ended
        names = self.deployed.silos
        return {
            "plan": self.deployed.digest.hex(),
            "joined": sorted(self.joined),
            "left": [names[i] for i in sorted(self.left_silos)],
            "released": len(self.broadcasts),
            "releases": self.deployed.exchanges,
            "next_close": self.deployed.document.calendar.closes[release - 1]
            if is_running
            else None,
            "waiting_for": [names[i] for i in self._missing(release)] if is_running else [],
            "alarms": list(self.alarms),
            "ended": self.ended,
            **({} if now is None else {"waits": self.waits(now)}),
            **self._guard_status(),
            **self._chain_summary,
        }

    def last_reports(self) -> dict[str, int]:
        """Return silo name -> last release of which the hub has the silo's report; 0 if none."""
        releases = range(self._last_reported, 0, -1)
        return {
            name: next((k for k in releases if (k, i) in self.reports), 0)
            for i, name in enumerate(self.deployed.silos)
        }

    def silent(self, now: float) -> dict[str, float]:
        """Return an empty dict: this hub waits for every silo that is overdue.

        `ClockedHub`, the hub of silos with different clocks, overrides this method. It returns the
        silos that are overdue though the hub does not wait for them.
        """
        return {}

    def assume_presence(self) -> None:
        """Set the state as if every party had sent a `Join` since the restart.

        This is for a copy of a hub that is read from its log and gets no messages: its `waits`
        would otherwise only say that it waits for these messages.
        """
        self._silo_release = dict.fromkeys(range(len(self.deployed.silos)), len(self.broadcasts))
        self._helper_release = len(self.answers)

    def _guard_status(self) -> dict[str, object]:
        """Return the entries of the status about silos whose reports may be false.

        Returns
        -------
        dict
            ``moves``: silo -> distance by which the estimate of theta moves if the silo is left
            out. ``alarm_sees``: silo -> the fields ``sees`` and ``sees_surely`` of `Fit`, sizes of
            false reports that the alarm detects. ``capped``: silo -> releases in which its report
            was scaled down. Entries are left out if the hub cannot compute them.
        """
        release, names = len(self.broadcasts), self.deployed.silos
        status: dict[str, object] = {}
        if self._detector is not None and release:
            fits = self._fits(release)
            status["moves"] = {names[fit.silo]: fit.moves for fit in fits}
            # JSON has no infinity.
            status["alarm_sees"] = {
                names[fit.silo]: [x if math.isfinite(x) else None for x in fit[-2:]] for fit in fits
            }
        if self._cap is not None:
            status["capped"] = {
                name: sorted(releases) for name, releases in sorted(self.capped.items())
            }
        return status
