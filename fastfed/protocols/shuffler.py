"""The shuffler S: passes the messages of all silos on in random order, without their senders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastfed._kernels import native
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError
from fastfed.protocols.messages import Bits, Counts, Report, Shuffled, ShuffledBits


class Shuffler:
    """The trusted third party of the shuffle model (zhou-chowdhury-2024, Section 5.2).

    ``shuffle`` takes the reports of all silos for one release and returns what the server may
    see. Statistics are permuted as whole messages; bits under each label of their own, so that a
    bit says which entry it belongs to and nothing else. Counts stand for bits: permuted bits tell
    their number of ones, so of counts only the sum over silos is passed on. Every release has a
    fresh uniform permutation: from the operating system, or keyed when ``noise`` is a
    ``SeededNoise``.

    Guarantee: none by itself. It hides who sent what; what that is worth in (epsilon, delta)
    depends on the noise in the messages and stands in the system's certificate.
    """

    def __init__(self, noise: NoiseSource | None = None) -> None:
        self.noise = noise if noise is not None else SystemNoise()

    def shuffle(self, reports: Sequence[Report | Bits]) -> list[Shuffled | ShuffledBits]:
        """Messages of one release, permuted over all silos; bits and counts come as one message.

        Raises InputError for no reports, for two releases at once, and for reports and bits
        together.
        """
        if not reports:
            raise InputError("reports must hold at least one message, got none")
        release = reports[0].release
        if any(r.release != release for r in reports):
            found = sorted({r.release for r in reports})
            raise InputError(f"reports must be of one release, got releases {found}")
        # The order of arrival is the network's; permuting an order fixed first hides it.
        ordered = sorted(reports, key=lambda r: r.silo)
        counts = [r for r in ordered if isinstance(r, Counts)]
        if counts:
            if len(counts) < len(ordered):
                raise InputError("reports must be all counts or none, got both")
            total = np.array(counts[0].values)
            for report in counts[1:]:
                native.add(total, report.values)
            return [Shuffled(release, counts[0].dimension, total)]
        if all(isinstance(r, Report) for r in ordered):
            order = self.noise.permutation(release, len(ordered))
            return [
                Shuffled(release, r.dimension, r.values)
                for r in (ordered[i] for i in order)
                if isinstance(r, Report)
            ]
        bits = [r for r in ordered if isinstance(r, Bits)]
        if len(bits) < len(ordered):
            raise InputError("reports must be all statistics or all bits, got both")
        mixed = np.concatenate([r.bits for r in bits], axis=1)
        for label, row in enumerate(mixed):
            self.noise.shuffle_bits(release, label, row)
        return [ShuffledBits(release, bits[0].dimension, mixed)]
