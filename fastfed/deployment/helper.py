"""The helper of a secure sum: the second holder of shares, who opens one set for each release.

It sees uniform words, and adds up those of the silos in the set that the hub names. Only together
with the hub could it read a silo's row; so the two must be run by different people. Of noisy bits
the two are the shuffler: permuted bits tell their sum, and so does a sum of shares.
"""

from __future__ import annotations

import numpy as np

from fastfed.deployment import wire
from fastfed.deployment.party import Message, Speaker, Step
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.store import Write
from fastfed.deployment.sums import share_context
from fastfed.deployment.wire import Envelope, Opened, Refused, packed


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

    def tick(self, now: float) -> Step:
        """Ask the hub whether a set waits."""
        body = wire.Join(self._nonce, self.agreement)
        data = self.made(len(self.answers), body)
        return Step((), (Message(self.deployed.document.hub.name, data),))

    def handle(self, data: bytes, now: float) -> Step:
        """Open a set that the hub names; the same set again gives the same answer."""
        found = self.wire.read(data, ("set",))
        if found.sender != self.deployed.document.hub.name:
            raise Refused(f"a set must be named by the hub, got one of {found.sender}")
        release, body = found.release, self.wire.body(found, Opened)
        if release in self.sets:
            if self.sets[release] != body.entries:
                text = f"the hub asked for a second set of release {release}"
                return Step((Write("alarm", text, text.encode()),), problem=text)
            return self._reply(self.answers[release])
        if release != len(self.answers) + 1 or release > self.plan.releases:
            raise Refused(f"the next set must be of release {len(self.answers) + 1}, got {release}")
        answer = self.made(release, Opened(body.entries, (), self._total(found, body)))
        step = self._reply(answer)
        return step._replace(writes=(Write("answer", str(release), answer),))

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
