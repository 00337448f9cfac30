"""Servers (the analyzer A): of federations in batches, and of federations in phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import LAPLACE, RANGE, ROTATION, NoiseSource, SystemNoise, is_exact
from fastfed._validate import InputError, Once, once
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import (
    ADD,
    NOISY_ADD,
    NOISY_TREE,
    REPLACE,
    Bits,
    Broadcast,
    Counts,
    Report,
    Shuffled,
    ShuffledBits,
)
from fastfed.protocols.release import ExactAdder, make_adder
from fastfed.protocols.secure_sum import Decoder, Encoded, masked, secure_of
from fastfed.protocols.serverless import LocalEstimate, Model, PeerPlan, PhasePlan, check_phase_plan
from fastfed.protocols.vector_sum import counted, encoding_of

# ---- The server: the analyzer A of a protocol, from the silos' reports to one broadcast ----------


Message = Report | Shuffled | Bits | Encoded


class Server(Once):
    """The analyzer A: combines the messages of all silos at each synchronisation.

    Sums run over silos in index order, so the result does not depend on the order in which reports
    arrive; after a shuffler they run in its order.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    noise : NoiseSource, optional
        By default the operating system's generator; pass ``SeededNoise`` only to simulate. Unused
        where silos or users add the noise, but for a simulated "secure-sum".

    Attributes
    ----------
    plan : Plan
        The plan.
    noise : NoiseSource
        Where the server's own noise comes from.
    release : int
        Releases combined so far.

    Raises
    ------
    InputError
        For a plan of another kind, and one whose numbers do not give the epsilon that it was sealed
        with.

    Notes
    -----
    Guarantee: that of the system's certificate. If the plan's noise is the server's
    (``plan.protocol.noise_by == "server"``) the server sees raw sums and is trusted: what it
    broadcasts is private, what it is sent is not. Otherwise it is not trusted: what it is sent is
    private already, and what it computes is post-processing. Protocols "none" and "agent" have no
    privacy.
    """

    def __init__(self, plan: Plan | PeerPlan, noise: NoiseSource | None = None) -> None:
        plan = check_plan(plan)
        self.plan = plan
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0
        self._nodes = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._total = np.zeros(plan.statistic_size)
        self._raw = np.zeros(plan.statistic_size)
        # The server's own noise: its stream stands one past the last silo's.
        self._adder = make_adder(plan, self.noise, plan.silos, plan.noise_std)
        self._decoder = Decoder(secure_of(plan)) if masked(plan, self.noise) else None

    @once
    def combine(self, messages: Sequence[Message], silos: Sequence[int] | None = None) -> Broadcast:
        """Combine the messages of the next release into the synchronised statistics.

        Parameters
        ----------
        messages : sequence of Report, Encoded, or a shuffler's messages
            One report of every silo (or user, where users send for themselves) for this release,
            in any order, or what ``Shuffler.shuffle`` made of them.
        silos : sequence of int, optional
            The silos that count in this release, where they send reports as they are. Default: all.

        Returns
        -------
        Broadcast
            Sums over all releases so far, for every silo's ``receive``.

        Raises
        ------
        InputError
            For a message that is missing, there twice, of another kind, release or dimension, or
            not finite; for sums that overflow or, under a server's exact noise, are not of
            fixed-point records; and for ``silos`` where messages are shuffled or masked. The
            release is then not counted, and the call may be made again.
        """
        if silos is not None and (self._decoder is not None or self.plan.protocol.shuffled):
            raise InputError("silos belong to protocols whose server sees each silo's report")
        if self._decoder is not None:
            return self._decoded(self._decoder, messages)
        ordered = self._checked(messages, silos)
        rows = [self._values(message) for message in ordered]
        total = np.array(rows[0])
        for row in rows[1:]:
            aggregation.add(total, row)
        release = self.release + 1
        combined, raw = self._combined(total, release)
        if not np.isfinite(combined).all():
            raise InputError(
                f"the reports of release {release} must add up to finite numbers, got overflow"
            )
        broadcast = Broadcast(release, self.plan.dimension, combined)
        # Everything is computed: from here on nothing can fail.
        self.release, self._total, self._raw = release, combined, raw
        return broadcast

    def _decoded(self, decoder: Decoder, messages: Sequence[Any]) -> Broadcast:
        """The synchronised statistics, from masked messages."""
        prefix = decoder.prefix(decoder.total(messages))
        broadcast = Broadcast(self.release + 1, self.plan.dimension, prefix)
        # Everything is computed: from here on nothing can fail.
        self.release = decoder.release = broadcast.release
        return broadcast

    def _checked(
        self, messages: Sequence[Message], silos: Sequence[int] | None
    ) -> list[Report | Shuffled | Bits]:
        plan, release = self.plan, self.release + 1
        if plan.protocol.shuffled:
            ordered: list[Any] = list(messages)
            wanted: type = ShuffledBits if plan.protocol.bits and plan.individual else Shuffled
            if not all(type(m) is wanted for m in ordered):
                kind = next(type(m).__name__ for m in ordered if type(m) is not wanted)
                raise InputError(
                    f'protocol "{plan.protocol.id}" needs messages from a Shuffler '
                    f"({wanted.__name__}), got {kind}"
                )
            expected = 1 if plan.protocol.bits else plan.senders(release)
            if len(ordered) != expected:
                raise InputError(
                    f"the shuffler must pass on {expected} messages, got {len(ordered)}"
                )
        else:
            sent = Counts if plan.protocol.bits else Report
            reports = [m for m in messages if isinstance(m, Report) and type(m) is sent]
            reports.sort(key=lambda r: r.silo)
            senders = list(range(plan.senders(release))) if silos is None else sorted(silos)
            if not senders or len(reports) < len(messages) or [r.silo for r in reports] != senders:
                raise InputError(
                    f"reports must hold one report of each of the {len(senders)} {plan.sender}s, "
                    f"got {plan.sender}s {[getattr(m, 'silo', None) for m in messages]}"
                )
            ordered = list(reports)
        for message in ordered:
            who = "message"
            if isinstance(message, Report):
                who = f"report of {plan.sender} {message.silo}"
            if message.release != release:
                raise InputError(
                    f"{who} must be of release {release}, got release {message.release}"
                )
            if message.dimension != plan.dimension:
                raise InputError(
                    f"{who} must have dimension {plan.dimension}, got {message.dimension}"
                )
            if isinstance(message, Bits):
                self._check_bits(message)
            elif not np.isfinite(message.values).all():
                raise InputError(f"{who} must be finite, got NaN or infinity")
        return ordered

    def _check_bits(self, message: Bits) -> None:
        e = self.plan.encoding_at(message.release)
        length = self._points(message.release) * encoding_of(self.plan).message_bits(e)
        if message.bits.shape[1] != length:
            raise InputError(
                f"release {message.release} must have {length} bits an entry, "
                f"got {message.bits.shape[1]}"
            )

    def _values(self, message: Report | Shuffled | Bits) -> np.ndarray:
        """The message as a statistic of its units: bits are counted (Alg. 7 line 10)."""
        if not isinstance(message, Bits):
            return message.values
        release, encoding = message.release, encoding_of(self.plan)
        e = self.plan.encoding_at(release)
        g = encoding.each(e, message.dimension)
        return counted(message.bits, self._points(release), g, encoding.noise_bits[e])

    def _points(self, release: int) -> int:
        """Data points behind one message of bits: a shuffler makes one of all."""
        return self.plan.silos * self.plan.points_of(release)

    def _combined(self, total: np.ndarray, release: int) -> tuple[np.ndarray, np.ndarray]:
        """Values to broadcast, and the raw prefix sum once they are.

        A row of the tree is written at once: what is made again writes it again, from the reports.
        """
        makes, raw, adder = self.plan.protocol.analyzer, self._raw, self._adder
        level = self.plan.level(release)
        if self.plan.protocol.bits:
            total = total * self.plan.units[self.plan.encoding_at(release)]
        if makes == ADD:
            combined = self._total.copy()
            aggregation.add(combined, total)
            return combined, raw
        if makes == REPLACE:
            return total, raw
        if makes in (NOISY_ADD, NOISY_TREE) and isinstance(adder, ExactAdder):
            adder.check(total, "the sum of the reports")
        if makes == NOISY_ADD:
            raw = raw.copy()
            aggregation.add(raw, total)
            return adder.prefix(raw, release), raw
        self._nodes[level] = adder.node(total, release) if makes == NOISY_TREE else total
        return aggregation.prefix(self._nodes, release), raw


# ---- The server of a federation in phases: one model from all local estimates --------------------


class Averager(Once):
    """The server in phases: combines the estimates of all silos at the end of each phase.

    Estimates that are not finite count as 0 and raise nothing: an exception that depends on data
    would tell something about them.

    Parameters
    ----------
    plan : PhasePlan
        The curve's plan, such as ``system.plan`` of robin.
    noise : NoiseSource, optional
        By default the operating system's generator; pass ``SeededNoise`` only to simulate.

    Attributes
    ----------
    plan : PhasePlan
        The plan.
    noise : NoiseSource
        Where the noise of private means comes from.
    releases : int
        Models made so far.

    Raises
    ------
    InputError
        For a plan of another kind, and one whose private means or claim do not fit its numbers.

    Notes
    -----
    Guarantee: that of the system's certificate, unit silo (all that one silo holds), relation
    "replace", for all models together. The server is trusted: it sees the estimates as they are,
    and other silos see its models alone. A plan with plain means has no privacy.

    Source: huang-2023, Algorithm 1 R_0; private means: Algorithms 2-4.
    """

    def __init__(self, plan: PhasePlan, noise: NoiseSource | None = None) -> None:
        self.plan = check_phase_plan(plan)
        self.noise = noise if noise is not None else SystemNoise()
        self.releases = 0
        self._drawn: dict[int, Any] = {}

    @once
    def combine(self, estimates: Sequence[LocalEstimate]) -> Model:
        """Average the estimates of the next phase that releases a model.

        Parameters
        ----------
        estimates : sequence of LocalEstimate
            One of every silo for that phase, in any order.

        Returns
        -------
        Model
            The model of the phase after it, for every client's ``adopt``.

        Raises
        ------
        InputError
            After the plan's last release, and unless ``estimates`` holds one of every silo, of this
            phase and of shape (d,). Nothing has changed then.
        """
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
