"""Silos of a federation without a server (dubey-pentland-2020, Algorithm 3).

Silos send messages to their neighbours in a graph. Each silo belongs to one clique, whose silos
learn together. A silo has gamma estimators, which are used in turn: round t belongs to estimator
t mod gamma. For each estimator, every silo adds up the reports of its clique, as a server would.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from fastfed._random import InterleavedNoise, NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, integer, once, silo_index
from fastfed.bandits.silo import Silo
from fastfed.protocols.plan import of_kind
from fastfed.protocols.protocol import Report
from fastfed.protocols.server import Server
from fastfed.protocols.serverless import Part, PeerPlan, Request, Sums

Message = Request | Sums


class Estimator:
    """One estimator of one silo: a `Silo` of the clique's plan, and a local copy of the server.

    Parameters
    ----------
    part : Part
        The clique, the number of the estimator, and the plan of both.
    gamma : int
        The number of estimators of each silo.
    index : int
        The silo's number in the whole federation.
    noise : NoiseSource
        The silo's source of noise.

    Attributes
    ----------
    total : ndarray, shape (s,)
        The latest synchronised sums of the clique.
    """

    def __init__(self, part: Part, gamma: int, index: int, noise: NoiseSource) -> None:
        self.part, self.index = part, index
        interleaved = InterleavedNoise(noise, part.clique, part.estimator, gamma)
        clique_noise = cast(NoiseSource, interleaved)
        self.silo = Silo(part.plan, part.clique.index(index), clique_noise)
        self._server = Server(part.plan, clique_noise)
        self._reports: dict[int, Report] = {}
        self.total = np.zeros(part.plan.statistic_size)

    @property
    def missing(self) -> list[int]:
        """The silos of the clique whose reports for the next release have not arrived."""
        return [i for i in self.part.clique if i not in self._reports]

    def add(self, sender: int, report: Report) -> None:
        """Store the report of silo ``sender``, and synchronise once all reports have arrived.

        ``sender`` is a silo of the clique. Raise InputError and change nothing if this report is
        not expected.
        """
        self._check_report(sender, report)
        self._reports[sender] = report
        if len(self._reports) == len(self.part.clique):
            broadcast = self._server.combine([self._reports[i] for i in self.part.clique])
            self._reports = {}
            self.total = broadcast.values
            self.silo.receive(broadcast)

    def _check_report(self, sender: int, report: Report) -> None:
        """Raise InputError unless this is the first report of ``sender`` for the next release."""
        label, plan, release = f"the report of silo {sender}", self.part.plan, self.silo.release + 1
        if type(report) is not Report:
            raise InputError(f"{label} must be a Report, got {type(report).__name__}")
        if sender in self._reports or report.release != release:
            reason = "again" if sender in self._reports else f"of release {report.release}"
            raise InputError(f"{label} must be of release {release}, once, got it {reason}")
        clique_index = self.part.clique.index(sender)
        if report.silo != clique_index:
            raise InputError(
                f"{label} must say silo {clique_index} of its clique, got {report.silo}"
            )
        if report.dimension != plan.dimension:
            raise InputError(
                f"{label} must have dimension {plan.dimension}, got {report.dimension}"
            )
        if not np.isfinite(report.values).all():
            raise InputError(f"{label} must be finite, got NaN or infinity")


class Peer(Once):
    """One silo of a federation without a server (dubey-pentland-2020, Algorithm 3).

    In each round pass all messages that have arrived to ``receive``, call ``select(actions)``, take
    the chosen action, and call ``observe(reward)``. Then send all messages of ``outbox()`` to all
    neighbours, who forward them.

    Parameters
    ----------
    plan : PeerPlan
        The curve's plan, such as ``system.plan``.
    index : int, optional
        The silo's number, 0..M - 1. It is required if M > 1.
    noise : NoiseSource, optional
        The default is the operating system's generator. Pass ``SeededNoise`` in simulations only.

    Notes
    -----
    Guarantee: the silo's reports are private for each of its users, towards all silos within gamma
    hops, which may read the reports. A user's data are in one estimator, so the guarantees of the
    gamma estimators compose in parallel.
    """

    def __init__(
        self, plan: PeerPlan, index: int | None = None, noise: NoiseSource | None = None
    ) -> None:
        self.plan = plan = of_kind(plan, PeerPlan)
        self.index = silo_index(index, plan.silos)
        self.round = 0
        source = noise if noise is not None else SystemNoise()
        self.estimators = [
            Estimator(part, plan.gamma, self.index, source) for part in plan.of_silo[self.index]
        ]
        self._outbox: list[Message] = []

    def _estimator_of(self, round: int) -> Estimator:
        """Return the estimator that is used in a round: the estimator ``round`` mod gamma."""
        return self.estimators[round % self.plan.gamma]

    @once
    def select(self, actions: object) -> int:
        """Return the index of the action for the next user. ``actions`` has shape (K, d)."""
        if self.round == self.plan.horizon:
            raise InputError(f"the plan ends after round {self.plan.horizon}")
        estimator = self._estimator_of(self.round + 1)
        if estimator.silo.due or estimator.silo.reported:
            raise InputError(
                f"silo {self.index} must receive the reports of silos {estimator.missing} "
                f"before round {self.round + 1}"
            )
        return estimator.silo.select(actions)

    @once
    def observe(self, reward: float) -> None:
        """Learn the reward of the selected action, and end the round.

        If the trigger fires, a request to the clique is put into the outbox, unless a report was
        already requested.
        """
        estimator = self._estimator_of(self.round + 1)
        # `asked` is the round after which a report is due, None if no report was requested.
        request_pending = estimator.silo.asked is not None
        estimator.silo.observe(reward)
        self.round += 1
        if estimator.silo.asked is not None and not request_pending:
            self._outbox.append(Request(self.index, estimator.part.estimator, self.round))

    @once
    def outbox(self) -> list[Message]:
        """Return the messages for all neighbours at the end of this round, and clear the outbox.

        If a noise source raises an error, no message is lost: call ``outbox`` again.
        """
        for estimator in self.estimators:
            if estimator.silo.due:
                report = estimator.silo.report()
                assert isinstance(report, Report)
                self._outbox.append(Sums(self.index, estimator.part.estimator, report))
                estimator.add(self.index, report)
        messages, self._outbox = self._outbox, []
        return messages

    @once
    def receive(self, message: Message) -> None:
        """Process a request or a report of another silo of the clique.

        Messages of other cliques also arrive, because silos forward messages. They are ignored.
        """
        if not isinstance(message, Request | Sums):
            raise InputError(f"message must be a Request or Sums, got {type(message).__name__}")
        integer("message.estimator", message.estimator, at_least=0, at_most=self.plan.gamma - 1)
        estimator = self.estimators[message.estimator]
        if message.silo == self.index or message.silo not in estimator.part.clique:
            return
        if isinstance(message, Request):
            self._accept_request(estimator, message)
        else:
            estimator.add(message.silo, message.report)

    def _accept_request(self, estimator: Estimator, message: Request) -> None:
        """Accept the request of another silo of the clique to synchronise an estimator.

        Raise InputError for a request that is too early or too late to be answered.
        """
        plan, estimator_number = self.plan, estimator.part.estimator
        round = integer("message.round", message.round, at_least=1, at_most=plan.horizon)
        if round % plan.gamma != estimator_number:
            raise InputError(
                f"message.round must be one of estimator {estimator_number}, got {round}"
            )
        if estimator.silo.trigger is not None and estimator.silo.asked is not None:
            return  # an earlier request has already made a report due
        # The estimator is used every gamma rounds, and its silo counts only these rounds. ``use``
        # is the number of the request's round in this count.
        use, completed_uses = plan.uses(estimator_number, round), estimator.silo.round
        # This silo may have completed one use less than the silo that sent the request.
        if use not in (completed_uses, completed_uses + 1):
            raise InputError(
                f"the request of silo {message.silo} in round {round} arrived too "
                f"{'late' if use < completed_uses else 'early'} at silo {self.index}"
            )
        estimator.silo.ask(use + 1)  # the report is due one use after the request
