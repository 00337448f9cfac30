"""The shuffler S: passes the messages of all silos on in random order, without their senders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed._kernels import aggregation
from fastfed._once import Once, once
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError
from fastfed.protocols.messages import Bits, Counts, Report, Shuffled, ShuffledBits
from fastfed.protocols.peers import PeerPlan
from fastfed.protocols.plan import Plan, check_plan


class Shuffler(Once):
    """The trusted third party of the shuffle model (zhou-chowdhury-2024, Section 5.2).

    ``shuffle`` takes the reports of all silos for the next release and returns what the server may
    see. Statistics are permuted as whole messages; bits under each label of their own, so that a
    bit says which entry it belongs to and nothing else. Counts stand for bits: permuted bits tell
    their number of ones, so of counts only the sum over silos is passed on. It passes each release
    on once, and only when it has every silo's message: with fewer, there would be less noise than
    the certificate counts on. Every release has a fresh uniform permutation: from the operating
    system, or keyed when ``noise`` is a ``SeededNoise``.

    Guarantee: none by itself. It hides who sent what; what that is worth in (epsilon, delta)
    depends on the noise in the messages and stands in the system's certificate. It must not be
    run by the server, nor by anyone who shares with it what it sees.
    """

    def __init__(self, plan: Plan | PeerPlan, noise: NoiseSource | None = None) -> None:
        plan = check_plan(plan)
        self.plan = plan
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0

    @once
    def shuffle(self, reports: Sequence[Report | Bits]) -> list[Shuffled | ShuffledBits]:
        """Messages of one release, permuted over all silos; bits and counts come as one message.

        Raises InputError unless ``reports`` holds one message of each silo for the next release,
        all of the plan's kind; nothing is then passed on.
        """
        release, ordered = self.release + 1, self._checked(reports)
        passed = self._mixed(release, ordered)
        self.release = release
        return passed

    def _checked(self, reports: Sequence[Report | Bits]) -> list[Report | Bits]:
        plan = self.plan
        kind: type = Report
        if plan.protocol.bits:
            kind = Bits if plan.individual else Counts
        for report in reports:
            if type(report) is not kind:
                raise InputError(
                    f'the shuffler of "{plan.protocol.id}" takes {kind.__name__} messages, '
                    f"got {type(report).__name__}"
                )
            if report.dimension != plan.dimension:
                raise InputError(
                    f"message of {plan.sender} {report.silo} must have dimension {plan.dimension}, "
                    f"got {report.dimension}"
                )
            if report.release != self.release + 1:
                raise InputError(
                    f"message of {plan.sender} {report.silo} must be of release "
                    f"{self.release + 1}, got release {report.release}"
                )
        # The order of arrival is the network's; permuting an order fixed first hides it.
        ordered = sorted(reports, key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(plan.senders)):
            raise InputError(
                f"reports must hold one message of each of the {plan.senders} {plan.sender}s, "
                f"got {plan.sender}s {[r.silo for r in ordered]}"
            )
        return ordered

    def _mixed(self, release: int, ordered: list[Report | Bits]) -> list[Shuffled | ShuffledBits]:
        d = self.plan.dimension
        bits = [r.bits for r in ordered if isinstance(r, Bits)]
        if bits:
            mixed = np.concatenate(bits, axis=1)
            for label, row in enumerate(mixed):
                self.noise.shuffle_bits(release, label, row)
            return [ShuffledBits(release, d, mixed)]
        values = [r.values for r in ordered if isinstance(r, Report)]
        if self.plan.protocol.bits:
            total = np.array(values[0])
            for other in values[1:]:
                aggregation.add(total, other)
            return [Shuffled(release, d, total)]
        order = self.noise.permutation(release, len(values))
        if self.plan.protocol.senders != "users":
            return [Shuffled(release, d, values[i]) for i in order]
        # Two orders, one for each stream (chowdhury-zhou-2022, Algorithm 3).
        other = self.noise.permutation(release, len(values), 1)
        return [
            Shuffled(release, d, np.concatenate([values[i][:d], values[j][d:]]))
            for i, j in zip(order, other, strict=True)
        ]
