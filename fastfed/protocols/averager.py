"""The server of a federation in phases: one model from all local estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import aggregation
from fastfed._once import Once, once
from fastfed._random import LAPLACE, RANGE, ROTATION, NoiseSource, SystemNoise, is_exact
from fastfed._validate import InputError
from fastfed.protocols.phases import LocalEstimate, Model, PhasePlan, check_phase_plan


class Averager(Once):
    """Combines the estimates of all silos at the end of each phase (huang-2023, Algorithm 1 R_0).

    A bare ``Averager(plan)`` draws from the operating system; pass ``fastfed.SeededNoise`` only to
    simulate. Estimates that are not finite count as 0 and raise nothing: an exception that depends
    on data would tell something about them.

    Guarantee: that of the system's certificate, for everything one silo holds.
    """

    def __init__(self, plan: PhasePlan, noise: NoiseSource | None = None) -> None:
        self.plan = check_phase_plan(plan)
        self.noise = noise if noise is not None else SystemNoise()
        self.releases = 0
        self._drawn: dict[int, Any] = {}

    @once
    def combine(self, estimates: Sequence[LocalEstimate]) -> Model:
        """The model after the next phase that releases one; InputError unless every silo has sent
        its estimate of that phase, and then nothing has changed."""
        plan = self.plan
        if self.releases == len(plan.releasing):
            raise InputError(f"the plan has {self.releases} releases, got estimates for one more")
        phase = plan.releasing[self.releases]
        if not isinstance(estimates, Sequence):
            raise InputError(
                f"estimates must be a list of LocalEstimate, got {type(estimates).__name__}"
            )
        for estimate in estimates:
            if not isinstance(estimate, LocalEstimate):
                raise InputError(
                    f"estimates must hold LocalEstimate values, got {type(estimate).__name__}"
                )
        ordered = sorted(estimates, key=lambda e: e.silo)
        if [e.silo for e in ordered] != list(range(plan.silos)):
            raise InputError(
                f"estimates must hold one of each of the {plan.silos} silos, "
                f"got silos {[e.silo for e in ordered]}"
            )
        for estimate in ordered:
            if estimate.phase != phase:
                raise InputError(
                    f"estimate of silo {estimate.silo} must be of phase {phase}, "
                    f"got phase {estimate.phase}"
                )
            if estimate.values.shape != (plan.dimension,):
                raise InputError(
                    f"estimate of silo {estimate.silo} must have shape ({plan.dimension},), "
                    f"got {estimate.values.shape}"
                )
        model = Model(phase + 1, self._mean(np.array([e.values for e in ordered])))
        self.releases += 1
        self._drawn = {}
        return model

    def _mean(self, estimates: np.ndarray) -> np.ndarray:
        """Of estimates (M, d)."""
        finite = np.where(np.isfinite(estimates).all(axis=1)[:, None], estimates, 0.0)
        if self.plan.protocol.noise_by == "server":
            mean, release = self.plan.means[self.releases], self.releases + 1
            sources: dict[int, Callable[[int, int, int], Any]]
            sources = dict.fromkeys((ROTATION, RANGE, LAPLACE), self.noise.uniforms)
            made_by: Callable[..., np.ndarray] = mean.apply
            if is_exact(self.noise):
                sources |= {RANGE: self.noise.ideal_uniforms, LAPLACE: self.noise.ideal_draws}
                made_by = mean.release
            # What was drawn before a source failed is kept: nothing is drawn twice.
            for purpose, source in sources.items():
                if purpose not in self._drawn:
                    self._drawn[purpose] = source(purpose, release, mean.padded)
            signs = np.where(self._drawn[ROTATION] < 0.5, -1.0, 1.0)
            return made_by(finite, signs, self._drawn[RANGE], self._drawn[LAPLACE])
        total = np.zeros(self.plan.dimension)
        for row in finite:
            aggregation.add(total, row)
        mean_of_all = total / len(finite)
        return np.where(np.isfinite(mean_of_all), mean_of_all, 0.0)
