"""FedUCB (dubey-pentland-2020, Algorithms 1 and 2): synchronising when a determinant has grown.

Deviations from the paper, and why:
- The algorithm is the mended one: the trigger's matrix stands inside the determinant, the counter
  and the batch begin anew at a synchronisation, a leaf of the tree is a whole batch, and the server
  replaces its sums by the sum of the silos' prefix sums, which contain all that came before.
- Proposition 2 is used as its proof has it: ln det V once, not d times.
- The matrices' last entry, the sum of squared rewards, is never used, so it is never sent.
- Features and rewards are clipped in code to what the proof bounds.
- ``schedule = "determinant"``, the paper's, reads raw data: no finite epsilon holds for it, and the
  certificate says "none". "fixed" synchronises at rounds known in advance; "private-determinant" is
  the rule of zhou-chowdhury-2024, Appendix D.2, which reads noisy sums, paid from the same budget.
- ``lazy = true`` is the default; the paper's silos use their own batch at once (``lazy = false``).
- ``calibration = "exact"`` takes the least noise that gives the budget, and rho_min and kappa from
  that noise; "theorem" is the paper's Lambda and its kappa, which lacks delta.
- D for O(M T) communication is 0 in the paper, which rounding would decide; it plays ``batch_size =
  1`` instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
import numpy as np

from fastfed._validate import InputError, choice, number
from fastfed.bandits.assemble import assemble, plan_of
from fastfed.bandits.certify import certify
from fastfed.bandits.feducb_bounds import batch_size_proposition_1
from fastfed.bandits.feducb_lines import centralised
from fastfed.bandits.feducb_theory import (
    Federation,
    constants,
    proposition_2,
    threshold_of,
    trigger,
)
from fastfed.bandits.noise import Noise
from fastfed.bandits.noise_law import NoiseLaw
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.bandits.theory import Theory
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.privatizer import CALIBRATIONS, Privatizer, calibrate_privatizer
from fastfed.privacy.tree import max_prefix_nodes
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS

SCHEDULES = ("determinant", "fixed", "private-determinant")
COMMUNICATION = ("log-T", "M1.5", "MT")

K = TypeVar("K", bound="FedUCBKeys")


class FedUCBKeys(Keys, frozen=True, kw_only=True):
    """Keys of a feducb curve."""

    schedule: str = "determinant"
    communication: str | float = "log-T"
    private: bool = True
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    rho_min: float | None = None
    radius: str = "proposition-2"

    radii: ClassVar[tuple[str, ...]] = ("proposition-2", "direct")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("schedule", self.schedule, SCHEDULES)
        if isinstance(self.communication, str):
            choice("communication", self.communication, COMMUNICATION)
        else:
            number("communication", self.communication, above=0.0)
        if self.rho_min is not None:
            number("rho_min", self.rho_min, above=0.0)
        if self.regularizer is not None:
            raise InputError("regularizer has no meaning for feducb: it follows from rho_min")
        if self.every_round and self.schedule == "private-determinant":
            raise InputError('communication "MT" is every round: it needs no private-determinant')
        if self.every_round and self.batch_size not in (None, 1, "theorem"):
            raise InputError(
                f'communication "MT" is every round: batch_size must be 1, got {self.batch_size}'
            )
        if self.schedule != "fixed" and self.batch_size is not None:
            raise InputError(f'batch_size belongs to schedule "fixed", got "{self.schedule}"')
        self._check_privacy()

    @property
    def every_round(self) -> bool:
        """Whether the paper's D is 0."""
        return self.communication == "MT"

    def _check_privacy(self) -> None:
        choice("relation", self.relation, RELATIONS)
        choice("calibration", self.calibration, CALIBRATIONS)
        if not self.private:
            for key in ("epsilon", "delta"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} has no meaning where private = false")
            if self.radius != "proposition-2" or self.schedule == "private-determinant":
                what = "radius" if self.radius != "proposition-2" else "schedule"
                raise InputError(f'{what} "{getattr(self, what)}" needs private = true')
            return
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required, or private = false")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        if self.calibration == "theorem":
            if self.schedule == "private-determinant":
                raise InputError('schedule "private-determinant" needs calibration "exact"')
            if self.radius == "direct":
                raise InputError('radius "direct" needs calibration "exact"')
        if self.radius == "direct":
            if self.schedule == "determinant" and not self.every_round:
                raise InputError('radius "direct" needs schedule "fixed" or "private-determinant"')
            if self.rho_min is not None:
                raise InputError('rho_min belongs to radius "proposition-2", got radius "direct"')


def privatizer(keys: FedUCBKeys, releases: int) -> Privatizer | None:
    """The noise of one silo's tree of so many releases, None without privacy."""
    if not keys.private:
        return None
    assert keys.epsilon is not None and keys.delta is not None
    rounds = releases if keys.schedule == "private-determinant" else 0
    budget = Budget(keys.epsilon, keys.delta, keys.relation)
    return calibrate_privatizer(budget, releases, keys.calibration, schedule_rounds=rounds)


def rounds_per_batch(keys: FedUCBKeys, setting: Setting) -> int:
    """B of a fixed schedule: as given, every round, or as often as Proposition 1 counts."""
    if keys.every_round:
        return 1
    if keys.batch_size != "theorem":
        return keys.rounds_per_batch(setting)
    federation = Federation(setting)
    found = constants(keys, federation, privatizer(keys, setting.horizon))
    bar = threshold_of(keys, federation, found)
    # D of "M1.5" is 0 for one silo and one round: there is nothing to wait for.
    if not bar:
        return 1
    return batch_size_proposition_1(
        setting.horizon, setting.dimension, bar, found.rho_min, found.rho_max
    )


def of_schedule(keys: K) -> K:
    """The same keys, every round as the fixed schedule that it is."""
    if keys.every_round and keys.schedule != "fixed":
        return msgspec.structs.replace(keys, schedule="fixed")
    return keys


def build(keys: FedUCBKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    keys = of_schedule(keys)
    fixed = keys.schedule == "fixed"
    batch_size = rounds_per_batch(keys, setting) if fixed else 1
    noise = privatizer(keys, setting.horizon // batch_size)
    clip = keys.bounds(published=False)
    federation = Federation(setting)
    plan, theory = planned(keys, federation, noise, batch_size, clip)
    source = source_of(keys, noise, "Algorithm 1")
    plan, certificate = certify(plan, setting, theory, _noise(keys, setting, noise), source)
    return System("feducb", plan, certificate, _lines(keys, federation, noise), theory=theory)


def _lines(
    keys: FedUCBKeys, federation: Federation, noise: Privatizer | None
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """The bounds of Theorem 1 and Proposition 1, where they are about this run."""
    if keys.schedule != "determinant" or keys.radius != "proposition-2":
        return None
    found = constants(keys, federation, noise)
    bar = threshold_of(keys, federation, found)
    if not bar:
        return None
    return partial(centralised, keys, federation.setting, found, bar)


def released_only(keys: FedUCBKeys, batch_size: int) -> bool:
    """Whether actions depend on synchronised statistics alone."""
    return keys.lazy or (keys.schedule == "fixed" and batch_size == 1)


def planned(
    keys: FedUCBKeys,
    federation: Federation,
    noise: Privatizer | None,
    batch_size: int,
    clip: Clip | None,
) -> tuple[Plan, Theory]:
    """Plan and theory of the silos that share one estimator."""
    setting = federation.setting
    made = _noise(keys, setting, noise)
    found = constants(keys, federation, noise)
    protocol = PROTOCOLS["silo-ldp-prefix" if noise else "none"]
    rule = trigger(keys, federation, found, noise)
    if keys.radius == "direct":
        plan, theory = assemble(
            keys,
            setting,
            protocol,
            batch_size,
            clip,
            made,
            only_released=released_only(keys, batch_size),
            ordered=keys.schedule == "fixed",
        )
        return replace(plan, trigger=rule), theory
    only = released_only(keys, batch_size)
    theory = proposition_2(keys, federation, found, clip, only)
    plan = plan_of(keys, setting, protocol, batch_size, clip, theory, made)
    return replace(plan, trigger=rule), theory


def _noise(keys: FedUCBKeys, setting: Setting, mechanism: Privatizer | None) -> Noise | None:
    if mechanism is None:
        return None
    std = NoiseStd(*mechanism.stds)
    if keys.schedule == "fixed":
        law = NoiseLaw(std, setting.silos, mechanism.variance_factors)
    else:
        # Which release has which noise is for the data to say: all as the one with the most.
        most = max_prefix_nodes(mechanism.releases)
        law = NoiseLaw(std, setting.silos, np.array([0.0, most]), counted=mechanism.releases)
    return Noise(mechanism, law, std)


def source_of(keys: FedUCBKeys, noise: Privatizer | None, algorithm: str) -> str:
    """Where the guarantee is from."""
    source = f"dubey-pentland-2020, {algorithm}"
    if noise is None:
        return source
    if keys.schedule == "private-determinant":
        source += ", with the schedule of zhou-chowdhury-2024, Appendix D.2"
    return f"{source}; {noise.source}"


ALGORITHM = Algorithm(
    id="feducb",
    paper="dubey-pentland-2020",
    summary="federated LinUCB that synchronises when a determinant has grown",
    keys=FedUCBKeys,
    build=build,
)
