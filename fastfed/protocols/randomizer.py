"""Randomizers R and the shuffler S: what leaves silos and users in place of their data points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, array, integer, number, once
from fastfed.protocols.plan import Plan, check_plan
from fastfed.protocols.protocol import (
    SEND_BATCH,
    SEND_NODE,
    SEND_NOISY_BATCH,
    SEND_NOISY_NODE,
    Bits,
    Counts,
    Report,
    Shuffled,
    ShuffledBits,
)
from fastfed.protocols.release import make_adder
from fastfed.protocols.secure_sum import Encoded
from fastfed.protocols.serverless import PeerPlan
from fastfed.protocols.vector_sum import encoding_of, ones_of

#: What a silo sends at a synchronisation.
Message = Report | Bits | Encoded


# ---- Randomizers R: what leaves a silo, or a user's device, in place of its data points ----------


# ---- The randomizer R: what a silo makes of its data points before anything leaves it ------------


class Randomizer(Protocol):
    """Base of randomizers: they accumulate data points, and make one report of each batch."""

    @property
    def release(self) -> int:
        """Messages made so far."""
        ...

    def observe(self, x: np.ndarray, y: float) -> None:
        """The next data point: features (d,) and reward."""
        ...

    def report(self) -> Message:
        """The message after the batch that has just ended."""
        ...


class SumRandomizer:
    """Turns one batch statistic after another into reports (zhou-chowdhury-2024, Alg. 2, 4).

    Keeps the raw p-sums of the tree and, for prefix sums, the noisy nodes already released, so
    that each node's noise enters once however often the node is used; or, where a release makes
    the noise of prefixes otherwise, the raw prefix sum. A report that fails leaves all as it was.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        self.plan, self.silo = plan, silo
        self.release = 0
        self._batch = np.zeros(plan.statistic_size)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._nodes = np.zeros_like(self._sums)
        self._total = np.zeros(plan.statistic_size)
        self._adder = make_adder(plan, noise, silo, plan.noise_std.times(plan.noise_scale[silo]))
        self._by_prefix = plan.release != "tree"

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point to the batch."""
        aggregation.add(self._batch, self.point(x, y))

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """The statistic of a data point within the bounds, (s,), as it is added up."""
        return self._adder.point(x, y)

    def add(self, sums: np.ndarray) -> None:
        """Add sums (s,) of data points to the batch."""
        aggregation.add(self._batch, sums)

    def report(self) -> Report:
        """The batch since the last report, randomized; the batch is then forgotten."""
        release = self.release + 1
        if release > self.plan.releases:
            raise InputError(f"the plan has {self.plan.releases} releases, got one more report")
        message, total = self._message(release)
        report = Report(release, self.plan.dimension, message, self.silo)
        batch = np.zeros(self.plan.statistic_size)
        # Everything is computed: from here on nothing can fail.
        self.release, self._batch, self._total = release, batch, total
        return report

    def _message(self, release: int) -> tuple[np.ndarray, np.ndarray]:
        """Message, and the raw prefix sum once it is sent.

        Rows of the tree are written at once: a report that is made again writes them again, from
        rows of lower levels, which it leaves alone.
        """
        sends, total = self.plan.protocol.randomizer, self._total
        if sends == SEND_BATCH:
            return self._batch, total
        if sends == SEND_NOISY_BATCH:
            # The sum of what the users of the batch send, each with noise of their own.
            scales = self.plan.release_scale
            scale = float(scales[release - 1]) if len(scales) else 1.0
            return self._adder.node(self._batch, release, scale), total
        if self._by_prefix:
            total = total.copy()
            aggregation.add(total, self._batch)
            return self._adder.prefix(total, release), total
        level = aggregation.node_level(release)
        aggregation.psum(self._sums, self._batch, level)
        if sends == SEND_NODE:
            return self._sums[level], total
        node = self._adder.node(self._sums[level], release)
        if sends == SEND_NOISY_NODE:
            return node, total
        self._nodes[level] = node
        return aggregation.prefix(self._nodes, release), total


# ---- A user's own device, where users are the parties of a protocol: one message leaves it -------


class User(Once):
    """The randomizer R at one user (chowdhury-zhou-2022, Algorithm 1 line 7; Algorithms 2, 5, 6).

    ``message(x, reward)`` makes the one message that may leave the device: noisy statistics, or
    their bits.

    Parameters
    ----------
    plan : Plan
        The curve's plan, in which users send for themselves (messages = "individual").
    number : int
        The user's round t, from 1 to the end of the last batch.
    noise : NoiseSource, optional
        By default the operating system's generator; pass ``SeededNoise`` only to simulate.

    Attributes
    ----------
    plan, number, noise
        As above.
    clipped_feature, clipped_reward : bool
        True if the message is of clipped features, or of a clipped reward; False before it.

    Raises
    ------
    InputError
        For a plan in which nobody sends for themselves or no batch ends, one whose numbers do not
        give the epsilon that it was sealed with, and a number out of range.

    Notes
    -----
    Guarantee: that of the system's certificate, unit user, for this user's context and rewards.
    Nobody is trusted with protocols "user-ldp" and "user-ldp-vector". With "user-shuffle-amplified"
    and "user-shuffle-vector" the shuffler is trusted, and in the latter the other users' noise bits
    that are counted on; the agent is not.
    """

    def __init__(
        self, plan: Plan | PeerPlan, number: int, noise: NoiseSource | None = None
    ) -> None:
        plan = check_plan(plan)
        if not plan.by_users:
            raise InputError(
                'User needs a plan in which users send for themselves, with messages "individual", '
                f'got protocol "{plan.protocol.id}"'
            )
        last = plan.end(plan.releases)
        if not last:
            raise InputError("the plan has no batch that ends: its users send nothing")
        self.plan = plan
        self.number = integer("number", number, at_least=1, at_most=last)
        self.noise = noise if noise is not None else SystemNoise()
        self.clipped_feature = self.clipped_reward = False
        self._sent = False

    @property
    def release(self) -> int:
        """The release, from 1, that this user's message is part of."""
        return self.plan.due(self.number - 1) + 1

    @property
    def place(self) -> int:
        """The user's place in the batch, from 0."""
        return self.number - 1 - self.plan.end(self.release - 1)

    @once
    def message(self, x: object, reward: float) -> Report | Bits:
        """Make the message, once: two would say more.

        Parameters
        ----------
        x : array_like, shape (d,)
            Features of the action played; clipped to the plan's bound.
        reward : float
            Its reward; clipped to the plan's range.

        Returns
        -------
        Report, Counts or Bits
            Noisy statistics; with bits their counts, or the bits themselves for a shuffler.

        Raises
        ------
        InputError
            After the first message, and for values of another shape or not finite.
        """
        if self._sent:
            raise InputError(f"user {self.number} has made a message already")
        features = array("x", x, shape=(self.plan.dimension,)).copy()
        y, clip = number("reward", reward), self.plan.clip
        outside = beyond = False
        if clip is not None:
            y, outside, beyond = clip.apply(features, y)
        made = self._bits(features, y) if self.plan.protocol.bits else self._report(features, y)
        self.clipped_feature, self.clipped_reward, self._sent = outside, beyond, True
        return made

    def _report(self, x: np.ndarray, y: float) -> Report:
        adder = make_adder(self.plan, self.noise, 0, self.plan.user_std, points=1)
        values = adder.node(adder.point(x, y), self.number)
        return Report(self.release, self.plan.dimension, values, self.place)

    def _bits(self, x: np.ndarray, y: float) -> Bits | Counts:
        """Bits for a shuffler; without one, the number of ones, which is all that they may tell."""
        point = np.zeros(self.plan.statistic_size)
        linalg.accumulate(point, x, y)
        encoding, size, d = encoding_of(self.plan), len(point), self.plan.dimension
        e = self.plan.encoding_at(self.release)
        words = self.noise.random_u32(0, self.number, size)
        noise = self.noise.point_binomials(0, self.number, 0, size, encoding.noise_bits[e])
        count = ones_of(point, encoding, e, words, noise)
        if self.plan.protocol.shuffled:
            bits = aggregation.encode_bits(count, encoding.message_bits(e))
            return Bits(self.release, d, bits, self.place)
        centred = count - encoding.each(e, d) - encoding.noise_bits[e] / 4.0
        return Counts(self.release, d, centred, self.place)


# The shuffler S: passes the messages of all silos on in random order, without their senders.


class Shuffler(Once):
    """The trusted third party of the shuffle model (zhou-chowdhury-2024, Section 5.2).

    ``shuffle`` takes the reports of all silos for the next release and returns what the server may
    see. Statistics are permuted as whole messages; bits under each label of their own, so that a
    bit says which entry it belongs to and nothing else. Counts stand for bits: permuted bits tell
    their number of ones, so of counts only the sum over silos is passed on. Every release has a
    fresh uniform permutation.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    noise : NoiseSource, optional
        Where permutations come from. By default the operating system's generator; pass
        ``SeededNoise`` only to simulate.

    Attributes
    ----------
    plan, noise
        As above.
    release : int
        Releases passed on so far.

    Raises
    ------
    InputError
        For a plan of another kind, and one whose numbers do not give the epsilon that it was sealed
        with.

    Notes
    -----
    Guarantee: none by itself. It hides who sent what; what that is worth in (epsilon, delta)
    depends on the noise in the messages and stands in the system's certificate. It is trusted: it
    must not be run by the server, nor by anyone who shares with it what it sees.
    """

    def __init__(self, plan: Plan | PeerPlan, noise: NoiseSource | None = None) -> None:
        plan = check_plan(plan)
        self.plan = plan
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0

    @once
    def shuffle(self, reports: Sequence[Message]) -> list[Shuffled | ShuffledBits]:
        """Permute the messages of the next release over all silos; each release is passed on once.

        Parameters
        ----------
        reports : sequence of Report, Counts or Bits
            One message of each silo (or user, where users send for themselves), in any order: with
            fewer there would be less noise than the certificate counts on.

        Returns
        -------
        list of Shuffled or ShuffledBits
            For ``Server.combine``: a permuted message for each report; one of all bits, or one sum
            of all counts, where data points travel as bits.

        Raises
        ------
        InputError
            For a message that is missing, there twice, or of another kind, release or dimension.
            Nothing is passed on then.
        """
        release, ordered = self.release + 1, self._checked(reports)
        passed = self._mixed(release, ordered)
        self.release = release
        return passed

    def _checked(self, reports: Sequence[Message]) -> list[Report | Bits]:
        plan, ordered = self.plan, []
        kind: type[Report | Bits] = Report
        if plan.protocol.bits:
            kind = Bits if plan.individual else Counts
        for report in reports:
            if isinstance(report, Encoded) or type(report) is not kind:
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
            ordered.append(report)
        senders = plan.senders(self.release + 1)
        # The order of arrival is the network's; permuting an order fixed first hides it.
        ordered.sort(key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(senders)):
            raise InputError(
                f"reports must hold one message of each of the {senders} {plan.sender}s, "
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
