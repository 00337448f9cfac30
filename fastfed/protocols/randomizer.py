"""Randomizers R, which turn data points into messages, and the shuffler S, which permutes them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fastfed._kernels import aggregation, linalg
from fastfed._random import NoiseSource, SystemNoise
from fastfed._validate import InputError, Once, array, integer, once, reward_number
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


# ---- Randomizers of silos: from the data points of a batch to one message ------------------------


class Randomizer(Protocol):
    """Interface of randomizers: they add up data points and make one message for each batch."""

    @property
    def release(self) -> int:
        """The number of messages made so far."""
        ...

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point, features x (d,) and reward y, to the batch."""
        ...

    def report(self) -> Message:
        """Return the message for the batch that has just ended."""
        ...


class SumRandomizer:
    """The randomizer of a silo that sends statistics (zhou-chowdhury-2024, Algorithms 2 and 4).

    A statistic holds the sums of x y and x x'. For release type "tree" the randomizer stores the
    raw p-sums of the binary tree. If it sends prefix sums, it also stores the noisy nodes, so that
    the noise of each node is drawn once, however often the node is used. For other release types it
    stores the raw prefix sum. If `report` raises an error, the state is unchanged, and the call may
    be repeated.
    """

    def __init__(self, plan: Plan, silo: int, noise: NoiseSource) -> None:
        """Start without data. Raise InputError if the plan claims privacy but has no noise.

        ``silo`` is the silo's index, and ``noise`` its source of noise.
        """
        self.plan, self.silo = plan, silo
        self.release = 0
        self._batch = np.zeros(plan.statistic_size)
        self._sums = np.zeros((max(1, plan.levels), plan.statistic_size))
        self._nodes = np.zeros_like(self._sums)
        self._total = np.zeros(plan.statistic_size)
        std = plan.noise_std.times(plan.noise_scale[silo])
        claims = plan.releases > 0 and plan.privacy is not None and plan.privacy.budget is not None
        if claims and plan.protocol.noise_by == "silos" and std.bias == 0.0:
            # Without this check, a protocol whose account is computed from the noise in a different
            # field of the plan would send raw sums.
            raise InputError(
                f"silo {silo} must add noise under {plan.protocol.id}, whose plan claims privacy, "
                "got standard deviation 0"
            )
        self._adder = make_adder(plan, noise, silo, std)
        self._by_prefix = plan.release != "tree"

    def observe(self, x: np.ndarray, y: float) -> None:
        """Add a data point, features x (d,) and reward y, to the batch."""
        aggregation.add(self._batch, self.point(x, y))

    def point(self, x: np.ndarray, y: float) -> np.ndarray:
        """Return the statistic (s,) that a clipped data point adds to the batch."""
        return self._adder.point(x, y)

    def add(self, sums: np.ndarray) -> None:
        """Add sums (s,) of data points to the batch."""
        aggregation.add(self._batch, sums)

    def report(self) -> Report:
        """Return the message for the data points since the last report, and clear the batch."""
        release = self.release + 1
        if release > self.plan.releases:
            raise InputError(f"the plan has {self.plan.releases} releases, got one more report")
        message, total = self._message(release)
        report = Report(release, self.plan.dimension, message, self.silo)
        batch = np.zeros(self.plan.statistic_size)
        # All results are computed; the assignments below cannot fail.
        self.release, self._batch, self._total = release, batch, total
        return report

    def copy(self) -> SumRandomizer:
        """Return a randomizer with the same state, which changes independently."""
        copied = copy.copy(self)
        copied._batch, copied._sums = self._batch.copy(), self._sums.copy()
        copied._nodes, copied._total = self._nodes.copy(), self._total.copy()
        return copied

    def _message(self, release: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the values (s,) to send, and the prefix sum without noise to store after sending.

        Sums of tree nodes are stored at once. If the call raises an error later, the next call
        overwrites them with the same values, which depend only on nodes of lower levels.
        """
        randomizer, total = self.plan.protocol.randomizer, self._total
        if randomizer == SEND_BATCH:
            return self._batch, total
        if randomizer == SEND_NOISY_BATCH:
            # Equal in distribution to the sum of the users' messages, each with independent noise.
            scales = self.plan.release_scale
            scale = float(scales[release - 1]) if len(scales) else 1.0
            return self._adder.node(self._batch, release, scale), total
        if self._by_prefix:
            total = total.copy()
            aggregation.add(total, self._batch)
            return self._adder.prefix(total, release), total
        level = aggregation.node_level(release)
        aggregation.psum(self._sums, self._batch, level)
        if randomizer == SEND_NODE:
            return self._sums[level], total
        node = self._adder.node(self._sums[level], release)
        if randomizer == SEND_NOISY_NODE:
            return node, total
        self._nodes[level] = node
        return aggregation.prefix(self._nodes, release), total


# ---- One bit from each user, with public contexts ------------------------------------------------


def user_bit(plan: Plan, reward: float, words: np.ndarray) -> int:
    """Return the bit that a user's device sends instead of the reward (protocol "user-bit").

    The reward is rounded to a bit at random, then the bit is flipped at random. Each step compares
    53 uniform bits with a threshold. The privacy guarantee depends only on the threshold of the
    flip, the integer ``plan.flips``.

    Parameters
    ----------
    plan : Plan
        A plan with ``flips``.
    reward : float
        The reward, clipped to the plan's range.
    words : ndarray of uint32, shape (4,)
        Uniform random bits.

    Returns
    -------
    int
        0 or 1. The estimate of the reward is ``plan.bit_values[bit]``.
    """
    assert plan.clip is not None
    # Two uniform 53-bit integers: one rounds the reward, and one decides whether to flip the bit.
    rounding_draw, flip_draw = (
        ((int(high) << 32) | int(low)) >> 11 for low, high in words.reshape(2, 2)
    )
    share = (reward - plan.clip.low) / (plan.clip.high - plan.clip.low)
    return int(rounding_draw < share * 2.0**53) ^ int(flip_draw < plan.flips)


# ---- The randomizer on a user's device, for protocols in which each user sends a message ---------


class User(Once):
    """The randomizer R of one user (chowdhury-zhou-2022, Algorithm 1 line 7; Algorithms 2, 5, 6).

    ``message(x, reward)`` makes the only message that may leave the user's device: noisy
    statistics, or their encoding as bits.

    Parameters
    ----------
    plan : Plan
        The curve's plan, whose senders are users (messages = "individual").
    number : int
        The user's round t, from 1 to the end of the last batch.
    noise : NoiseSource, optional
        Source of noise. Default: the operating system's generator; pass ``SeededNoise`` only to
        simulate.

    Attributes
    ----------
    plan, number, noise
        The parameters.
    clipped_feature, clipped_reward : bool
        True if the features, or the reward, in the message were clipped. False before the message.

    Raises
    ------
    InputError
        If the plan's senders are not users, the plan has no complete batch, its numbers do not give
        the epsilon that it claims, or ``number`` is out of range.

    Notes
    -----
    Guarantee: the guarantee of the system's certificate for this user's context and rewards, unit
    user. Protocols "user-ldp" and "user-ldp-vector" trust nobody. Protocols
    "user-shuffle-amplified" and "user-shuffle-vector" trust the shuffler, but not the agent; the
    latter also relies on the noise bits of the other users that the certificate counts.
    """

    def __init__(
        self, plan: Plan | PeerPlan, number: int, noise: NoiseSource | None = None
    ) -> None:
        """Check the plan and the user's number."""
        plan = check_plan(plan)
        if not plan.by_users:
            raise InputError(
                'User needs a plan whose senders are users, with messages = "individual", '
                f'got protocol "{plan.protocol.id}"'
            )
        last = plan.end(plan.releases)
        if not last:
            raise InputError("the plan has no complete batch, so its users send nothing")
        self.plan = plan
        self.number = integer("number", number, at_least=1, at_most=last)
        self.noise = noise if noise is not None else SystemNoise()
        self.clipped_feature = self.clipped_reward = False
        self._sent = False

    @property
    def release(self) -> int:
        """Return the number (from 1) of the release that contains this user's message."""
        return self.plan.due(self.number - 1) + 1

    @property
    def place(self) -> int:
        """Return the user's index within the batch, from 0."""
        return self.number - 1 - self.plan.end(self.release - 1)

    @once
    def message(self, x: object, reward: float) -> Report | Bits:
        """Return the user's message. Only one call is allowed: two messages would reveal more.

        Parameters
        ----------
        x : array_like, shape (d,)
            Features of the chosen action; clipped to the plan's bound.
        reward : float
            Reward of the chosen action; clipped to the plan's range.

        Returns
        -------
        Report, Counts or Bits
            A Report of noisy statistics. For protocols with bits: the Bits if there is a shuffler,
            else their Counts.

        Raises
        ------
        InputError
            If the message was already made, or a value is not finite or of a wrong shape.
        """
        if self._sent:
            raise InputError(f"user {self.number} has already made a message")
        features = array("x", x, shape=(self.plan.dimension,)).copy()
        y, clip = reward_number("reward", reward), self.plan.clip
        x_clipped = y_clipped = False
        if clip is not None:
            y, x_clipped, y_clipped = clip.apply(features, y)
        message = self._bits(features, y) if self.plan.protocol.bits else self._report(features, y)
        self.clipped_feature, self.clipped_reward, self._sent = x_clipped, y_clipped, True
        return message

    def _report(self, x: np.ndarray, y: float) -> Report:
        """Return the message with the statistic of data point (x, y) plus the user's noise."""
        adder = make_adder(self.plan, self.noise, 0, self.plan.user_std, points=1)
        values = adder.node(adder.point(x, y), self.number)
        return Report(self.release, self.plan.dimension, values, self.place)

    def _bits(self, x: np.ndarray, y: float) -> Bits | Counts:
        """Return the message that encodes data point (x, y) as bits, with noise bits.

        Without a shuffler, the message is a Counts: the number of ones of each entry, minus its
        mean for a data point of zero.
        """
        point = np.zeros(self.plan.statistic_size)
        linalg.accumulate(point, x, y)
        encoding, size, d = encoding_of(self.plan), len(point), self.plan.dimension
        index = self.plan.encoding_at(self.release)
        words = self.noise.random_u32(0, self.number, size)
        noise = self.noise.point_binomials(0, self.number, 0, size, encoding.noise_bits[index])
        ones = ones_of(point, encoding, index, words, noise)
        if self.plan.protocol.shuffled:
            bits = aggregation.encode_bits(ones, encoding.message_bits(index))
            return Bits(self.release, d, bits, self.place)
        centred = ones - encoding.each(index, d) - encoding.noise_bits[index] / 4.0
        return Counts(self.release, d, centred, self.place)


# ---- The shuffler S: forwards the messages of all silos in random order, without their senders ---


class Shuffler(Once):
    """The trusted third party of the shuffle model (zhou-chowdhury-2024, Section 5.2).

    ``shuffle`` takes the messages of all silos for the next release and returns the messages that
    the server may see. Statistics are permuted as whole messages. Bits are permuted within each
    label, so that a bit reveals its entry and nothing else. Permuted bits reveal only their number
    of ones. So if silos send counts, or sums of users' bits, instead of bits, the shuffler forwards
    only their total. Every release uses a new uniform permutation.

    Parameters
    ----------
    plan : Plan
        The curve's plan, such as ``system.plan``.
    noise : NoiseSource, optional
        Source of the permutations. Default: the operating system's generator; pass
        ``SeededNoise`` only to simulate.

    Attributes
    ----------
    plan, noise
        The parameters.
    release : int
        Number of releases shuffled so far.

    Raises
    ------
    InputError
        If ``plan`` is not a Plan, or its numbers do not give the epsilon that it claims.

    Notes
    -----
    Guarantee: shuffling alone has none. It hides who sent which message; the resulting (epsilon,
    delta) depends on the noise in the messages and is in the system's certificate. The shuffler is
    trusted: neither the server nor anyone who shares data with the server may run it.
    """

    def __init__(self, plan: Plan | PeerPlan, noise: NoiseSource | None = None) -> None:
        """Check the plan, and start before the first release."""
        plan = check_plan(plan)
        self.plan = plan
        self.noise = noise if noise is not None else SystemNoise()
        self.release = 0

    @once
    def shuffle(self, reports: Sequence[Message]) -> list[Shuffled | ShuffledBits]:
        """Permute the messages of the next release. Each release can be shuffled once.

        Parameters
        ----------
        reports : sequence of Report, Counts or Bits
            One message of each silo, or of each user of the batch if users are the senders, in any
            order. All are required: with fewer messages there would be less noise than the
            certificate assumes.

        Returns
        -------
        list of Shuffled or ShuffledBits
            Messages for ``Server.combine``: the reports in random order, or one message with all
            permuted bits, or one message with the sum of all counts.

        Raises
        ------
        InputError
            If a message is missing, duplicate, or of a wrong type, release or dimension. Nothing is
            released then.
        """
        release, ordered = self.release + 1, self._checked_reports(reports)
        shuffled = self._permuted(release, ordered)
        self.release = release
        return shuffled

    def _checked_reports(self, reports: Sequence[Message]) -> list[Report | Bits]:
        """Return the messages of the next release in the order of their senders.

        Raises InputError unless there is one valid message of each sender.
        """
        plan, ordered = self.plan, []
        message_type: type[Report | Bits] = Report
        if plan.protocol.bits:
            message_type = Bits if plan.individual else Counts
        for report in reports:
            if isinstance(report, Encoded) or type(report) is not message_type:
                raise InputError(
                    f'the shuffler of "{plan.protocol.id}" takes {message_type.__name__} messages, '
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
        # Sort before permuting, so that the result does not depend on the order of arrival.
        ordered.sort(key=lambda r: r.silo)
        if [r.silo for r in ordered] != list(range(senders)):
            raise InputError(
                f"reports must hold one message of each of the {senders} {plan.sender}s, "
                f"got {plan.sender}s {[r.silo for r in ordered]}"
            )
        return ordered

    def _permuted(
        self, release: int, ordered: list[Report | Bits]
    ) -> list[Shuffled | ShuffledBits]:
        """Return the messages for the server: permuted reports, permuted bits, or summed counts.

        ``ordered`` are the messages of all senders for this release.
        """
        d = self.plan.dimension
        bits = [r.bits for r in ordered if isinstance(r, Bits)]
        if bits:
            shuffled_bits = np.concatenate(bits, axis=1)
            for label, row in enumerate(shuffled_bits):
                self.noise.shuffle_bits(release, label, row)
            return [ShuffledBits(release, d, shuffled_bits)]
        values = [r.values for r in ordered if isinstance(r, Report)]
        if self.plan.forwards_total:
            total = np.array(values[0])
            for counts in values[1:]:
                aggregation.add(total, counts)
            return [Shuffled(release, d, total)]
        order = self.noise.permutation(release, len(values))
        if self.plan.protocol.senders != "users":
            return [Shuffled(release, d, values[i]) for i in order]
        # The bias and covariance streams get independent orders (chowdhury-zhou-2022, Algorithm 3).
        covariance_order = self.noise.permutation(release, len(values), 1)
        return [
            Shuffled(release, d, np.concatenate([values[i][:d], values[j][d:]]))
            for i, j in zip(order, covariance_order, strict=True)
        ]
