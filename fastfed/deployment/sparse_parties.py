"""Silo and hub of `fed-svt`: a silo sends what each expert has lost, the hub keeps one or switches.

A loss enters the sum of its own decision's period, or none, so that a replaced one moves all
queries from its own exchange on alike, as the account of sparse switching counts on.
"""

from __future__ import annotations

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import NoiseSource, is_exact
from fastfed.deployment import wire
from fastfed.deployment._crypto import digest
from fastfed.deployment.expert_parties import ExpertHub, ExpertSilo, LossRange, Lost, of_experts
from fastfed.deployment.expert_plans import first_expert
from fastfed.deployment.hub import Hub
from fastfed.deployment.wire import Opened, Refused, packed
from fastfed.experts.fed_svt import SparseVector, SparseVectorPlan
from fastfed.privacy import exact
from fastfed.protocols.plan import Plan


class SumRange(LossRange):
    """What sums of losses, and weights, can be."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.dimension)
        self._plan = plan

    def report(self, release: int) -> np.ndarray:
        """Of a silo's sums: it has as many places as the exchange has rounds."""
        return float(self._plan.batch_of(release)) * super().broadcast(release)


class SparseSilo(ExpertSilo):
    """A silo of `fed-svt`: `SiloParty` whose reports are sums of losses, without noise.

    Notes
    -----
    Guarantee: that of the plan's certificate, for one loss, if the hub is trusted.
    """

    def _limits(self) -> SumRange:  # type: ignore[override]
        return SumRange(self.plan)

    def _room(self, period: int) -> int:
        return self.plan.batch_of(period)

    def report(self, release: int) -> bytes:
        """The sums of the losses of one exchange: the same bytes for the same losses."""
        plan = of_experts(self.deployed)
        unit = exact.quantum(plan.silos * plan.horizon) if is_exact(self._noise) else None
        total = np.zeros(plan.experts)
        for name, (period, _) in self._places.items():
            ended = self.ended.get(name)
            if period == release and isinstance(ended, Lost) and ended.leaf == release:
                loss = np.frombuffer(ended.losses, dtype="<f8").astype(np.float64)
                aggregation.add(total, loss if unit is None else exact.quantise(loss, unit))
        return self.made(release, wire.Report(packed(total)))


class SparseHub(ExpertHub):
    """The hub of `fed-svt`: `Hub` that keeps the expert of all, or switches it.

    Its noise is a function of all sums so far; that of the first threshold of none.

    Notes
    -----
    Guarantee: that of the plan's certificate for whoever reads which expert is played.
    """

    def _limits(self) -> SumRange:  # type: ignore[override]
        return SumRange(self.plan)

    def _serving(self, noise: NoiseSource | None) -> SparseVector:  # type: ignore[override]
        self._exact, self._units = False, noise is None
        plan = of_experts(self.deployed)
        assert isinstance(plan, SparseVectorPlan)
        self._history = digest(b"")
        self._sealing.hides(1, self._history)
        made = plan.decider(self._sealing.source if noise is None else noise)
        assert isinstance(made, SparseVector)
        made.begin(first_expert(self.deployed.digest, plan.experts))
        return made

    def _checked(self, found: wire.Envelope, who: str) -> np.ndarray:
        """The sums of a report; Refused where no losses have them."""
        values = Hub._checked(self, found, who)
        unit = exact.quantum(self.plan.silos * self.plan.horizon)
        off = self._units and not np.array_equal(values, exact.quantise(values, unit))
        if off or (values < 0.0).any():
            raise Refused(f"{who} must be sums of losses in [0, 1], in fixed point")
        return values

    def _combined(self, release: int, opened: Opened) -> np.ndarray:
        """The expert (d,) of all after an exchange; a silo that is not in the set has lost 0."""
        sums = np.zeros((self.plan.silos, self.plan.dimension))
        for entry in opened.entries:
            found = self.wire.read(self.reports[release, entry.silo])
            sums[entry.silo] = self._checked(found, f"report {release} of {found.sender}")
        total = np.zeros(self.plan.dimension)
        for row in sums:
            total += row
        server = self._server
        assert isinstance(server, SparseVector)
        self._history = digest(self._history + packed(total))
        # Of the query and the choice, and of the threshold after a switch.
        self._sealing.hides(release, self._history)
        self._sealing.hides(server.switches + 2, self._history)
        made = np.zeros(self.plan.dimension)
        made[server.decide(total).expert] = 1.0
        return made
