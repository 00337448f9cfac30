"""The server: the analyzer A of a protocol, from the silos' reports to one broadcast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed._kernels import native
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError
from fastfed.protocols.messages import Broadcast, Report
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import ADD, NOISY_TREE, REPLACE
from fastfed.protocols.randomizer import noisy


class Server:
    """Combines the reports of all silos at each synchronisation.

    ``Server(plan)`` draws the noise of a central protocol from the operating system; protocols
    in which the silos add the noise need none here. Sums run over silos in index order, so the
    result does not depend on the order in which reports arrive.
    """

    def __init__(self, plan: Plan, noise: NoiseSource | None = None) -> None:
        self.plan = check_plan(plan)
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0
        self._nodes = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._total = np.zeros(plan.statistic_size)

    def combine(self, reports: Sequence[Report]) -> Broadcast:
        """The synchronised statistics after the next release.

        ``reports`` holds one report of every silo for this release; anything else is an
        InputError, and the server's state is then unchanged.
        """
        plan, release = self.plan, self.release + 1
        ordered = sorted(reports, key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(plan.silos)):
            raise InputError(
                f"reports must hold one report of each of the {plan.silos} silos, "
                f"got silos {[r.silo for r in ordered]}"
            )
        for report in ordered:
            if report.release != release:
                raise InputError(
                    f"report of silo {report.silo} must be of release {release}, "
                    f"got release {report.release}"
                )
            if not np.isfinite(report.values).all():
                raise InputError(
                    f"report of silo {report.silo} must be finite, got NaN or infinity"
                )
            if report.dimension != plan.dimension:
                raise InputError(
                    f"report of silo {report.silo} must have dimension {plan.dimension}, "
                    f"got {report.dimension}"
                )
        total = np.array(ordered[0].values)
        for report in ordered[1:]:
            native.add(total, report.values)
        self.release = release
        self._combine(total)
        return Broadcast(release, plan.dimension, self._total)

    def _combine(self, total: np.ndarray) -> None:
        makes, d = self.plan.protocol.analyzer, self.plan.dimension
        if makes == ADD:
            native.add(self._total, total)
            return
        if makes == REPLACE:
            self._total = total
            return
        if makes == NOISY_TREE:
            # The server's own noise: its stream stands one past the last silo's.
            normals = self.noise.node(self.plan.silos, self.release, d)
            total = noisy(total, normals, d, self.plan.noise_std)
        self._nodes[native.node_level(self.release)] = total
        self._total = native.prefix(self._nodes, self.release)
