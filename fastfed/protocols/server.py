"""The servers: `Server` for federations in batches, `Averager` for federations in phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastfed._kernels import aggregation
from fastfed._random import LAPLACE, RANGE, ROTATION, NoiseSource, SystemNoise, is_exact
from fastfed._validate import InputError, Once, once
from fastfed.protocols.plan import ClockedPlan, Plan, check_plan
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
    """The server of a protocol (the analyzer A): combines the messages of each synchronisation.

    Reports are added in the order of the silos' indices, so the result does not depend on the order
    in which they arrive. Messages from a shuffler are added in the shuffler's order.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    noise : NoiseSource, optional
        Source of the server's noise. Default: the operating system's generator; pass
        ``SeededNoise`` only to simulate. If silos or users add the noise, the server uses the
        source only in a simulated "secure-sum".

    Attributes
    ----------
    plan : Plan
        The plan.
    noise : NoiseSource
        Source of the server's noise.
    release : int
        Number of releases combined so far.

    Raises
    ------
    InputError
        If ``plan`` is not a Plan, or its numbers do not give the epsilon that it claims.

    Notes
    -----
    Guarantee: the guarantee of the system's certificate. If the server adds the noise
    (``plan.protocol.noise_by == "server"``), the server receives raw sums and must be trusted; its
    broadcasts are private. Otherwise the server need not be trusted: the messages that it receives
    are private already, and its results are post-processing. Protocols "none" and "agent" have no
    privacy.
    """

    def __init__(self, plan: Plan | PeerPlan, noise: NoiseSource | None = None) -> None:
        """Check the plan, and start before the first release."""
        plan = check_plan(plan)
        self.plan = plan
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0
        self._nodes = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._total = np.zeros(plan.statistic_size)
        self._raw_prefix = np.zeros(plan.statistic_size)
        # Noise streams have the indices of silos, 0..M-1; the server's stream has index M.
        self._adder = make_adder(plan, self.noise, plan.silos, plan.noise_std)
        self._decoder = Decoder(secure_of(plan)) if masked(plan, self.noise) else None

    @once
    def combine(self, messages: Sequence[Message], silos: Sequence[int] | None = None) -> Broadcast:
        """Combine the messages of the next release into the synchronised statistics.

        Parameters
        ----------
        messages : sequence of Report, Encoded, or a shuffler's messages
            One message of every silo for this release, in any order, or the output of
            ``Shuffler.shuffle``. If users are the senders, one message of every user of the batch.
        silos : sequence of int, optional
            Indices of the silos that take part in this release. Default: all silos. Only for
            protocols whose server receives each silo's report.

        Returns
        -------
        Broadcast
            Sums over all releases so far, for every silo's ``receive``.

        Raises
        ------
        InputError
            If a message is missing, duplicate, not finite, or of a wrong type, release or
            dimension; if the sums overflow; if ``silos`` is given although messages are shuffled or
            masked; or if the server adds exact noise and a sum is not in fixed point. After an
            error the release is not counted, and the caller may try again.
        """
        if silos is not None and (self._decoder is not None or self.plan.protocol.shuffled):
            raise InputError("silos can be given only if the server sees each silo's report")
        if self._decoder is not None:
            return self._combine_masked(self._decoder, messages)
        ordered = self._checked_messages(messages, silos)
        statistics = self._summands(ordered)
        total = np.array(statistics[0])
        for values in statistics[1:]:
            aggregation.add(total, values)
        release = self.release + 1
        combined, raw = self._combined_prefix(total, release)
        if not np.isfinite(combined).all():
            raise InputError(
                f"the reports of release {release} must add up to finite numbers, got overflow"
            )
        broadcast = Broadcast(release, self.plan.dimension, combined)
        # All results are computed; the assignments below cannot fail.
        self.release, self._total, self._raw_prefix = release, combined, raw
        return broadcast

    def _combine_masked(self, decoder: Decoder, messages: Sequence[Any]) -> Broadcast:
        """Return the synchronised statistics from the masked messages of a secure sum."""
        prefix = decoder.prefix(decoder.total(messages))
        broadcast = Broadcast(self.release + 1, self.plan.dimension, prefix)
        # All results are computed; the assignments below cannot fail.
        self.release = decoder.release = broadcast.release
        return broadcast

    def _checked_messages(
        self, messages: Sequence[Message], silos: Sequence[int] | None
    ) -> list[Report | Shuffled | Bits]:
        """Return the messages of the next release in the order in which they are added up.

        Raises InputError unless there is one valid message of each sender; ``silos`` are the
        senders if not all silos take part.
        """
        plan, release = self.plan, self.release + 1
        # First check the senders: a shuffler's messages have no sender; of reports there must be
        # one from each sender.
        if plan.protocol.shuffled:
            ordered: list[Any] = list(messages)
            expected_type: type = (
                ShuffledBits if plan.protocol.bits and plan.individual else Shuffled
            )
            if not all(type(m) is expected_type for m in ordered):
                kind = next(type(m).__name__ for m in ordered if type(m) is not expected_type)
                raise InputError(
                    f'protocol "{plan.protocol.id}" needs messages from a Shuffler '
                    f"({expected_type.__name__}), got {kind}"
                )
            message_count = 1 if plan.forwards_total else plan.senders(release)
            if len(ordered) != message_count:
                raise InputError(
                    f"the shuffler must pass on {message_count} messages, got {len(ordered)}"
                )
        else:
            report_type = Counts if plan.protocol.bits else Report
            reports = [m for m in messages if isinstance(m, Report) and type(m) is report_type]
            reports.sort(key=lambda r: r.silo)
            senders = list(range(plan.senders(release))) if silos is None else sorted(silos)
            if not senders or len(reports) < len(messages) or [r.silo for r in reports] != senders:
                raise InputError(
                    f"reports must hold one report of each of the {len(senders)} {plan.sender}s, "
                    f"got {plan.sender}s {[getattr(m, 'silo', None) for m in messages]}"
                )
            ordered = list(reports)
        # Then check each message.
        for message in ordered:
            sender_text = "message"
            if isinstance(message, Report):
                sender_text = f"report of {plan.sender} {message.silo}"
            if message.release != (expected := self._release_of(message)):
                raise InputError(
                    f"{sender_text} must be of release {expected}, got release {message.release}"
                )
            if message.dimension != plan.dimension:
                raise InputError(
                    f"{sender_text} must have dimension {plan.dimension}, got {message.dimension}"
                )
            if isinstance(message, Bits):
                self._check_bits(message)
            elif not np.isfinite(message.values).all():
                raise InputError(f"{sender_text} must be finite, got NaN or infinity")
        return ordered

    def _summands(self, ordered: Sequence[Any]) -> list[np.ndarray]:
        """Return the statistics (s,) of the next release, in the order in which they are added."""
        return [self._values_of(message) for message in ordered]

    def _release_of(self, message: Any) -> int:
        """Return the release number that a message of the next synchronisation must have."""
        return self.release + 1

    def _check_bits(self, message: Bits) -> None:
        """Raise InputError unless a message has as many bits as its release's encoding requires."""
        index = self.plan.encoding_at(message.release)
        length = self._points(message.release) * encoding_of(self.plan).message_bits(index)
        if message.bits.shape[1] != length:
            raise InputError(
                f"release {message.release} must have {length} bits an entry, "
                f"got {message.bits.shape[1]}"
            )

    def _values_of(self, message: Report | Shuffled | Bits) -> np.ndarray:
        """Return the statistic (s,) of a message; for bits it is the centred number of ones.

        Source for bits: zhou-chowdhury-2024, Algorithm 7 line 10.
        """
        if not isinstance(message, Bits):
            return message.values
        release, encoding = message.release, encoding_of(self.plan)
        index = self.plan.encoding_at(release)
        g = encoding.each(index, message.dimension)
        return counted(message.bits, self._points(release), g, encoding.noise_bits[index])

    def _sums_of_counts(self, total: np.ndarray) -> np.ndarray:
        """Return the statistic (s,) with sums of reward estimates in place of numbers of ones.

        The first d entries of ``total`` (s,) count the ones among the bits of each arm's users. The
        sums of x x' hold the number of users of each arm. The estimates for a bit 0 and a bit 1 are
        ``plan.bit_values``.
        """
        (zero_value, one_value), d = self.plan.bit_values, self.plan.dimension
        arms = np.arange(d)
        users, sums = total[d + arms * (arms + 1) // 2 + arms], total.copy()
        sums[:d] = zero_value * users + (one_value - zero_value) * total[:d]
        return sums

    def _points(self, release: int) -> int:
        """Return the number of data points in the shuffler's one message of bits."""
        return self.plan.silos * self.plan.points_of(release)

    def _combined_prefix(self, total: np.ndarray, release: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the prefix sum to broadcast, and the raw prefix sum that the caller must store.

        ``total`` (s,) is the sum of the messages of this release. A tree node is stored by this
        method; if the release fails later, the next try overwrites the node.
        """
        analyzer, raw, adder = self.plan.protocol.analyzer, self._raw_prefix, self._adder
        level = self.plan.level(release)
        if self.plan.protocol.bits:
            total = total * self.plan.units[self.plan.encoding_at(release)]
        if self.plan.counts_ones:
            total = self._sums_of_counts(total)
        if analyzer == ADD:
            combined = self._total.copy()
            aggregation.add(combined, total)
            return combined, raw
        if analyzer == REPLACE:
            return total, raw
        if analyzer in (NOISY_ADD, NOISY_TREE) and isinstance(adder, ExactAdder):
            adder.check(total, "the sum of the reports")
        if analyzer == NOISY_ADD:
            raw = raw.copy()
            aggregation.add(raw, total)
            return adder.prefix(raw, release), raw
        self._nodes[level] = adder.node(total, release) if analyzer == NOISY_TREE else total
        return aggregation.prefix(self._nodes, release), raw


class ClockServer(Server):
    """The server of silos with their own clocks: adds up the latest reports of all silos.

    Each exchange (a set of silos reports) produces a view, the combined statistic. A broadcast's
    ``release`` is the number of its view (docs/clocks.md).

    Parameters
    ----------
    plan : ClockedPlan
        The curve's plan.
    noise : NoiseSource, optional
        As for `Server`. The server adds no noise.
    """

    def __init__(self, plan: ClockedPlan, noise: NoiseSource | None = None) -> None:
        """Check the plan, and start without reports."""
        super().__init__(plan, noise)
        self._clocks = plan.clocks
        # Values of the latest report of each silo that has reported, by silo.
        self._latest: dict[int, np.ndarray] = {}

    @once
    def combine(self, messages: Sequence[Message], silos: Sequence[int] | None = None) -> Broadcast:
        """Combine the reports of the next exchange with the latest reports of the other silos.

        Parameters
        ----------
        messages : sequence of Report
            One report of each silo that reports in the next exchange, in any order.
        silos : None
            The clocks of the plan say which silos report.

        Returns
        -------
        Broadcast
            The next view, for the silos that report in this exchange.

        Raises
        ------
        InputError
            As `Server.combine`, or if there is no further exchange, or ``silos`` is given.
        """
        if silos is not None:
            raise InputError("silos must be None: the clocks of the plan say which silos report")
        if self.release == len(self._clocks.ticks):
            raise InputError(f"the plan has {self.release} exchanges, got reports for one more")
        senders = np.flatnonzero(self._clocks.sends[self.release]).tolist()
        broadcast = super().combine(messages, senders)
        self._latest |= {m.silo: m.values for m in messages if isinstance(m, Report)}
        return broadcast

    def _release_of(self, message: Any) -> int:
        """Return the number that the silo's next report must have; ``message`` names the silo."""
        return int(self._clocks.reports[self.release, message.silo]) + 1

    def _summands(self, ordered: Sequence[Any]) -> list[np.ndarray]:
        """Return the statistics (s,) that are added up for the next view.

        The result holds the reported batches if the server adds batches, else the latest prefix sum
        of every silo that has reported.
        """
        if self.plan.protocol.analyzer == ADD:
            return super()._summands(ordered)
        latest = self._latest | {message.silo: message.values for message in ordered}
        return [latest[silo] for silo in sorted(latest)]


# ---- The server of a federation in phases: averages the silos' local estimates ------------------


class Averager(Once):
    """The server of a federation in phases: averages the silos' estimates after each phase.

    An estimate that is not finite counts as 0 and raises no error: an error that depends on the
    data would reveal something about the data.

    Parameters
    ----------
    plan : PhasePlan
        The curve's plan, such as ``system.plan`` of robin.
    noise : NoiseSource, optional
        Source of noise for private means. Default: the operating system's generator; pass
        ``SeededNoise`` only to simulate.

    Attributes
    ----------
    plan : PhasePlan
        The plan.
    noise : NoiseSource
        Source of noise for private means.
    releases : int
        Number of models released so far.

    Raises
    ------
    InputError
        If ``plan`` is not a PhasePlan, or its private means or claim do not fit its numbers.

    Notes
    -----
    Guarantee: the guarantee of the system's certificate for all models together; unit silo (all
    data of one silo), relation "replace". The server must be trusted, because it sees the estimates
    without noise. Silos see only the server's models. A plan with plain means has no privacy.

    Source: huang-2023, Algorithm 1 R_0; private means: Algorithms 2-4.
    """

    def __init__(self, plan: PhasePlan, noise: NoiseSource | None = None) -> None:
        """Check the plan, and start before the first release."""
        self.plan = check_phase_plan(plan)
        self.noise = noise if noise is not None else SystemNoise()
        self.releases = 0
        self._drawn: dict[int, Any] = {}

    @once
    def combine(self, estimates: Sequence[LocalEstimate]) -> Model:
        """Return the model that is the mean of the estimates of the next releasing phase.

        Parameters
        ----------
        estimates : sequence of LocalEstimate
            One estimate of every silo for that phase, each of shape (d,), in any order.

        Returns
        -------
        Model
            The model that silos use in the following phase, for every client's ``adopt``.

        Raises
        ------
        InputError
            If the plan has no further release, or an estimate is missing, duplicate, or of a wrong
            phase or shape. The object is unchanged then.
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
        """Return the mean (d,) of estimates (M, d), with noise if the plan is private."""
        finite_estimates = np.where(np.isfinite(estimates).all(axis=1)[:, None], estimates, 0.0)
        if self.plan.protocol.noise_by == "server":
            mean, release = self.plan.means[self.releases], self.releases + 1
            sources: dict[int, Callable[[int, int, int], Any]]
            sources = dict.fromkeys((ROTATION, RANGE, LAPLACE), self.noise.uniforms)
            private_mean: Callable[..., np.ndarray] = mean.apply
            if is_exact(self.noise):
                sources |= {RANGE: self.noise.ideal_uniforms, LAPLACE: self.noise.ideal_draws}
                private_mean = mean.release
            # Cache the draws: if one source fails, the next call must not repeat the other draws.
            for purpose, source in sources.items():
                if purpose not in self._drawn:
                    self._drawn[purpose] = source(purpose, release, mean.padded)
            signs = np.where(self._drawn[ROTATION] < 0.5, -1.0, 1.0)
            return private_mean(finite_estimates, signs, self._drawn[RANGE], self._drawn[LAPLACE])
        total = np.zeros(self.plan.dimension)
        for estimate in finite_estimates:
            aggregation.add(total, estimate)
        mean_of_all = total / len(finite_estimates)
        return np.where(np.isfinite(mean_of_all), mean_of_all, 0.0)
