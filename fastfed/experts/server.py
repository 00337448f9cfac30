"""The server of a federation that predicts from experts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed._once import Once, once
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError
from fastfed.experts.messages import ExpertChoice, ExpertReport
from fastfed.experts.plan import ExpertPlan, check_expert_plan


class ExpertServer(Once):
    """Adds up what all clients send and chooses what they play (gao-2024, Algorithms 2 and 5).

    A bare ``ExpertServer(plan)`` draws from the operating system; pass ``fastfed.SeededNoise`` only
    to simulate.

    Guarantee: that of the system's certificate, for one loss of one client in one round.
    """

    def __init__(self, plan: ExpertPlan, noise: NoiseSource | None = None) -> None:
        self.plan = check_expert_plan(plan)
        self.releases = 0
        self._decider = plan.decider(noise if noise is not None else SystemNoise())
        self._started: ExpertChoice | None = None

    @once
    def start(self) -> ExpertChoice:
        """What all clients play first."""
        if self._started is None:
            self._started = self._decider.start()
        return self._started

    @once
    def combine(self, reports: Sequence[ExpertReport]) -> ExpertChoice:
        """The next choice; InputError unless every client has sent its report of this exchange, and
        then nothing has changed."""
        plan = self.plan
        if self._started is None:
            raise InputError("combine needs start() before it")
        if self.releases == plan.exchanges:
            raise InputError(f"the plan has {self.releases} exchanges, got reports of one more")
        if not isinstance(reports, Sequence) or not all(
            isinstance(r, ExpertReport) for r in reports
        ):
            raise InputError("reports must be a list of ExpertReport")
        ordered = sorted(reports, key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(plan.silos)):
            raise InputError(
                f"reports must hold one of each of the {plan.silos} clients, "
                f"got clients {[r.silo for r in ordered]}"
            )
        total = np.zeros(plan.experts)
        for report in ordered:
            if report.release != self.releases + 1:
                raise InputError(
                    f"report of client {report.silo} must be number {self.releases + 1}, "
                    f"got number {report.release}"
                )
            if report.values.shape != (plan.experts,):
                raise InputError(
                    f"report of client {report.silo} must have shape ({plan.experts},), "
                    f"got {report.values.shape}"
                )
            total += report.values
        choice = self._decider.decide(total)
        self.releases += 1
        return choice

    @property
    def events(self) -> dict[str, int]:
        """What has happened so far, such as switches of the expert."""
        return self._decider.events
