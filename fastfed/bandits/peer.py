"""Silos of a federation without a server, step by step (dubey-pentland-2020, Algorithm 3).

A `Peer` is a silo of each of its cliques, and takes the part of their servers.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from fastfed._random import InterleavedNoise, NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, integer, once
from fastfed.bandits.silo import Silo
from fastfed.protocols.plan import of_kind
from fastfed.protocols.protocol import Report
from fastfed.protocols.server import Server
from fastfed.protocols.serverless import Part, PeerPlan, Request, Sums

Message = Request | Sums


class Estimator:
    """One estimator of one silo: a silo of its clique, and its own server."""

    def __init__(self, part: Part, gamma: int, index: int, noise: NoiseSource) -> None:
        self.part, self.index = part, index
        own = cast(NoiseSource, InterleavedNoise(noise, part.clique, part.estimator, gamma))
        self.silo = Silo(part.plan, part.clique.index(index), own)
        self._server = Server(part.plan, own)
        self._reports: dict[int, Report] = {}
        self.total = np.zeros(part.plan.statistic_size)

    @property
    def missing(self) -> list[int]:
        """Members of the clique whose report has not arrived."""
        return [i for i in self.part.clique if i not in self._reports]

    def add(self, sender: int, report: Report) -> None:
        """Add a member's report; with the last of them the sums are synchronised.

        Raises InputError, and nothing changes, unless it is the report that is waited for.
        """
        self._check(sender, report)
        self._reports[sender] = report
        if len(self._reports) == len(self.part.clique):
            broadcast = self._server.combine([self._reports[i] for i in self.part.clique])
            self._reports = {}
            self.total = broadcast.values
            self.silo.receive(broadcast)

    def _check(self, sender: int, report: Report) -> None:
        """Raise InputError unless the report is the one that is waited for."""
        who, plan, release = f"the report of silo {sender}", self.part.plan, self.silo.release + 1
        if type(report) is not Report:
            raise InputError(f"{who} must be a Report, got {type(report).__name__}")
        if sender in self._reports or report.release != release:
            again = "again" if sender in self._reports else f"of release {report.release}"
            raise InputError(f"{who} must be of release {release}, once, got it {again}")
        place = self.part.clique.index(sender)
        if report.silo != place:
            raise InputError(f"{who} must say silo {place} of its clique, got {report.silo}")
        if report.dimension != plan.dimension:
            raise InputError(f"{who} must have dimension {plan.dimension}, got {report.dimension}")
        if not np.isfinite(report.values).all():
            raise InputError(f"{who} must be finite, got NaN or infinity")


class Peer(Once):
    """One silo of a decentralised federation (dubey-pentland-2020, Algorithm 3).

    Each round: hand over what has arrived with ``receive``, ``select(actions)``, play the action,
    ``observe(reward)``, then send everything in ``outbox()`` to all neighbours, who hand it on.

    Parameters
    ----------
    plan : PeerPlan
        The curve's plan, such as ``system.plan``.
    index : int, default 0
        The silo's number, 0..M - 1.
    noise : NoiseSource, optional
        By default the operating system's generator; pass ``SeededNoise`` only to simulate.

    Notes
    -----
    Guarantee: a silo's reports are those of the privatizer, and everybody within gamma hops may
    read them; a user takes part in one estimator, so the gamma trees compose in parallel.
    """

    def __init__(self, plan: PeerPlan, index: int = 0, noise: NoiseSource | None = None) -> None:
        self.plan = plan = of_kind(plan, PeerPlan)
        self.index = integer("index", index, at_least=0, at_most=plan.silos - 1)
        self.round = 0
        source = noise if noise is not None else SystemNoise()
        self.estimators = [
            Estimator(part, plan.gamma, self.index, source) for part in plan.of_silo[self.index]
        ]
        self._outbox: list[Message] = []

    def _of(self, round: int) -> Estimator:
        """The estimator of a round."""
        return self.estimators[round % self.plan.gamma]

    @once
    def select(self, actions: object) -> int:
        """Index of the action to play for the next user; ``actions`` has shape (K, d)."""
        if self.round == self.plan.horizon:
            raise InputError(f"the plan ends after round {self.plan.horizon}")
        used = self._of(self.round + 1)
        if used.silo.due or used.silo.reported:
            raise InputError(
                f"silo {self.index} must hear the reports of silos {used.missing} "
                f"before round {self.round + 1}"
            )
        return used.silo.select(actions)

    @once
    def observe(self, reward: float) -> None:
        """Learn the reward of the selected action."""
        used = self._of(self.round + 1)
        waiting = used.silo.asked is not None
        used.silo.observe(reward)
        self.round += 1
        number = used.part.estimator
        if used.silo.asked is not None and not waiting:
            self._outbox.append(Request(self.index, number, self.round))

    @once
    def outbox(self) -> list[Message]:
        """Messages to all neighbours at the end of this round; they are then forgotten.

        If a noise source fails nothing is lost: call it again.
        """
        for used in self.estimators:
            if used.silo.due:
                report = used.silo.report()
                assert isinstance(report, Report)
                self._outbox.append(Sums(self.index, used.part.estimator, report))
                used.add(self.index, report)
        sent, self._outbox = self._outbox, []
        return sent

    @once
    def receive(self, message: Message) -> None:
        """Process a message of the own clique; the network passes others on."""
        if not isinstance(message, Request | Sums):
            raise InputError(f"message must be a Request or Sums, got {type(message).__name__}")
        integer("message.estimator", message.estimator, at_least=0, at_most=self.plan.gamma - 1)
        mine = self.estimators[message.estimator]
        if message.silo == self.index or message.silo not in mine.part.clique:
            return
        if isinstance(message, Request):
            self._ask(mine, message)
        else:
            mine.add(message.silo, message.report)

    def _ask(self, mine: Estimator, message: Request) -> None:
        """Accept the request of a member of the clique."""
        plan, number = self.plan, mine.part.estimator
        round = integer("message.round", message.round, at_least=1, at_most=plan.horizon)
        if round % plan.gamma != number:
            raise InputError(f"message.round must be one of estimator {number}, got {round}")
        if mine.silo.trigger is not None and mine.silo.asked is not None:
            return
        use, done = plan.uses(number, round), mine.silo.round
        # A silo that lags by one use may hear of one that it has not reached.
        if use not in (done, done + 1):
            raise InputError(
                f"silo {message.silo} asked in round {round}, which comes too "
                f"{'late' if use < done else 'early'} at silo {self.index}"
            )
        mine.silo.ask(use + 1)
