"""Limits on the values in messages, on the harm that one silo can do, and how it is detected.

`Range` is checked first: values that records and noise cannot give are refused. `Cap` limits what a
report can add, if silos add noise to their reports. `check_records` refuses raw sums that no
records can have. `Alarm` tests whether a silo and the others can have the same theta. The last
three need a hub that sees single reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fastfed._kernels import aggregation
from fastfed._validate import InputError, number
from fastfed.bandits.linucb import Estimate
from fastfed.deployment.model import diagonal
from fastfed.deployment.wire import Refused
from fastfed.privacy.mechanisms.binomial_tree import VARIANCE
from fastfed.protocols.account import bounds
from fastfed.protocols.plan import Plan
from fastfed.protocols.protocol import SEND_NOISY_NODE
from fastfed.protocols.release import fixed_point, prefix_noise, spread
from fastfed.protocols.vector_sum import encoding_of

#: Probability that noise alone takes an honest report beyond the cap.
BEYOND = 1e-6
#: Probability of an alarm about any honest silo in a whole plan.
FALSE_ALARMS = 1e-3
#: Noise beyond this many standard deviations is refused; it occurs once in 10^15 numbers.
SIGMAS = 8.0


def hub_sees_reports(plan: Plan) -> bool:
    """Return True if each silo adds noise to its report, and the hub sees single reports."""
    return plan.secure is None and plan.protocol.noise_by == "silos"


def checked_influence(influence: object) -> float | None:
    """Check the influence of a spec, in (0, 1]; None if it has none."""
    if influence is None:
        return None
    return float(number("federation.influence", influence, above=0, at_most=1))


def check_influence(influence: float | None, plan: Plan) -> None:
    """Refuse an influence outside (0, 1], or with a protocol that has no use for it."""
    if influence is None:
        return
    number("influence", influence, above=0, at_most=1)
    if not hub_sees_reports(plan):
        raise InputError(
            "influence belongs to silo-ldp, whose hub sees noisy reports, "
            f'not to "{plan.protocol.id}"'
        )


def nodes_of(plan: Plan, release: int) -> list[int]:
    """List the releases whose reports add up to the prefix sum of a release."""
    if plan.protocol.randomizer != SEND_NOISY_NODE:
        return [release]
    releases = []
    while release:
        releases.append(release)
        release -= 1 << aggregation.node_level(release)
    return releases


def noise_squares(plan: Plan, release: int) -> float:
    """Return the variance of the noise in one report, divided by the variance in one node."""
    prefix = prefix_noise(plan)
    if prefix is not None:
        return float(sum(c * c for c in prefix.terms(release).values()))
    return float(release.bit_count()) if _by_prefix(plan) else 1.0


def _by_prefix(plan: Plan) -> bool:
    """Return True if a report is of the prefix sum, False if it is of one node of a tree."""
    return plan.protocol.randomizer != SEND_NOISY_NODE


def rounds_in_report(plan: Plan, release: int) -> int:
    """Return the number of rounds in the batches that one report covers."""
    if _by_prefix(plan):
        return plan.end(release)
    return plan.end(release) - plan.end(release - (1 << aggregation.node_level(release)))


# ---- the cap -------------------------------------------------------------------------------------


class Cap:
    """Scale down a silo's report to what its batches can add, with an allowance for noise.

    The sums of x y and of x x^T are each scaled down to a bound on their norm. The bound is
    ``influence`` times the norm that all rows of the batches have if they point in one direction,
    plus a quantile of the norm of the noise.

    Parameters
    ----------
    plan : Plan
    influence : float
        In (0, 1]. With 1 an honest report is scaled with probability at most `BEYOND`, unless more
        rewards than a batch has rounds became known in one period.

    Notes
    -----
    Guarantee: the guarantee of the reports, which contain their noise; scaling is post-processing.
    """

    def __init__(self, plan: Plan, influence: float) -> None:
        self._plan, self._influence = plan, influence
        d = plan.dimension
        self._weights = np.full(plan.statistic_size - d, 2.0)
        self._weights[diagonal(d)] = 1.0

    def bounds(self, release: int, silo: int) -> tuple[float, float]:
        """Return the bounds on the norms of x y and of x x^T (Frobenius) in a silo's report."""
        plan, d = self._plan, self._plan.dimension
        feature, reward = bounds(plan)
        counted_records = self._influence * rounds_in_report(plan, release)
        noise_factor = math.sqrt(noise_squares(plan, release)) * plan.noise_scale[silo]
        std = plan.noise_std
        # The norm of m standard normals exceeds sqrt(m) + sqrt(2 t) with probability <= e^-t.
        tail = math.sqrt(2.0 * math.log(2.0 / BEYOND))
        covariance = max(std.diagonal, math.sqrt(2.0) * std.off_diagonal)
        return (
            counted_records * feature * reward + noise_factor * std.bias * (math.sqrt(d) + tail),
            counted_records * feature**2
            + noise_factor * covariance * (math.sqrt(len(self._weights)) + tail),
        )

    def cap_report(self, values: np.ndarray, release: int, silo: int) -> tuple[np.ndarray, bool]:
        """Scale a report (s,) down to the bounds; return it, and True if it was scaled.

        The bits are the same on every machine.
        """
        capped, d, scaled = values.copy(), self._plan.dimension, False
        first, second = self.bounds(release, silo)
        for part, weights, most in (
            (slice(0, d), np.ones(d), first),
            (slice(d, None), self._weights, second),
        ):
            # fsum rounds alike on every machine: a log must be replayed bit for bit.
            squares = weights * capped[part] * capped[part]
            norm = math.sqrt(math.fsum(squares.tolist()))
            if norm > most:
                capped[part] *= most / norm
                scaled = True
        return capped, scaled


# ---- raw sums ------------------------------------------------------------------------------------


def check_records(plan: Plan, values: np.ndarray, release: int, who: str) -> None:
    """Refuse raw sums (s,) of a silo that no records up to a release can have.

    For n records with |x| <= L and |y| <= Y, let G be the sum of x x^T, and b the sum of x y. The
    trace of G is at most n L^2, and G - b b' / (n Y^2) has no negative eigenvalue (Cauchy-Schwarz).
    So b is small in directions in which G is small. An honest silo's sums are never refused.

    Raises
    ------
    Refused
        If no records can have these sums, or they are not in the fixed point of records.
    """
    d, (feature, reward) = plan.dimension, bounds(plan)
    most, (unit, _) = plan.most_records(release), fixed_point(plan)
    if not np.array_equal(values, np.round(values / unit) * unit):
        raise Refused(f"{who} is not in fixed point, multiples of 2^{round(math.log2(unit))}")
    # Each entry of each record is rounded.
    slack = 2.0 * most * unit * d + 1e-9 * most
    gram = _full(values[d:], d)
    if float(np.trace(gram)) > most * feature**2 + slack:
        raise Refused(f"{who} has more of x x^T than {most} records can have")
    schur = gram - np.outer(values[:d], values[:d]) / (most * reward**2)
    smallest_eigenvalue = float(np.linalg.eigvalsh(schur)[0])
    # Rounding b changes b b' / (n Y^2) by little more than b itself.
    if smallest_eigenvalue < -slack * (1.0 + 2.0 / reward):
        raise Refused(f"{who} has more of x y than its x x^T and {most} records allow")


def _full(packed: np.ndarray, d: int) -> np.ndarray:
    """Unpack a lower triangle to a symmetric matrix (d, d)."""
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = packed
    return matrix + np.tril(matrix, -1).T


# ---- the alarm -----------------------------------------------------------------------------------


class Fit(NamedTuple):
    """How well a silo fits the others at one release.

    Parameters
    ----------
    silo : int
    moves : float
        Distance that theta moves if the silo is left out.
    score : float
        Squared residual of both sides, in units of their variances, at the theta that fits both
        best.
    sees : float
        Norm of a false addition to the silo's sum of x y, in a random direction (root mean square),
        that takes a score of 0 to the threshold.
    sees_surely : float
        The same in the direction that theta explains best; infinite if theta explains all of it.
    """

    silo: int
    moves: float
    score: float
    sees: float
    sees_surely: float


class Alarm:
    """Test after each release whether a silo and all others together can have the same theta.

    The two sides are the silo, and all others together. Let u and G be a side's sums. Then
    u - G theta* = S + h - N theta*, where S is due to the noise of rewards, and h and N are the
    noise of the reports.

    1. In every direction, S has a variance proxy of at most n L^2 R^2, for n records, |x| <= L and
       rewards in an interval of length 2 R (Hoeffding).
    2. That of h - N theta* is the variance of its Gaussian entries, for |theta*| <= tau.
    3. Divided by the standard deviations, the errors of both sides at theta* are a sub-Gaussian
       vector of 2 d numbers. Its squared norm exceeds 2 d + 2 sqrt(2 d t) + 2 t with probability
       at most e^-t (Hsu, Kakade and Zhang 2012, Theorem 2.1). At the best theta it is no larger.
    4. With t = ln(silos releases / false_alarms), honest silos cause an alarm in the whole plan
       with probability at most ``false_alarms``.

    This assumes the same theta at all silos, rewards that are linear in x apart from noise, and
    delays that do not depend on the reward.

    Parameters
    ----------
    plan : Plan
    false_alarms : float
        Probability of an alarm in the whole plan if all silos are honest.

    Notes
    -----
    Guarantee: the guarantee of the reports, which contain their noise.
    """

    def __init__(self, plan: Plan, false_alarms: float = FALSE_ALARMS) -> None:
        self._plan, d = plan, plan.dimension
        t = math.log(plan.silos * max(1, plan.releases) / false_alarms)
        #: A silo with a score above this does not fit.
        self.threshold = 2 * d + 2.0 * math.sqrt(2 * d * t) + 2.0 * t

    def fits(self, release: int, sets: Mapping[int, Mapping[int, np.ndarray]]) -> Iterator[Fit]:
        """Yield how well each silo of a release fits the others.

        Parameters
        ----------
        release : int
        sets : mapping of int to mapping of int to ndarray
            Release -> silo -> report (s,), for the silos in the release's set.
        """
        nodes = nodes_of(self._plan, release)
        parts: dict[int, tuple[np.ndarray, float]] = {}
        for node in nodes:
            squares = noise_squares(self._plan, node)
            for silo, values in sets[node].items():
                sums, noise = parts.get(silo, (np.zeros_like(values), 0.0))
                scale = self._plan.noise_scale[silo]
                parts[silo] = sums + values, noise + squares * scale * scale
        rows = self._plan.end(release)
        all_sums = np.sum([sums for sums, _ in parts.values()], axis=0)
        noise = sum(report_noise for _, report_noise in parts.values())
        if len(parts) < 2:
            return
        theta = self._theta(all_sums, release)
        for silo, (own_sums, own_noise) in sorted(parts.items()):
            other_sums = all_sums - own_sums
            sides = [
                (own_sums, rows, own_noise),
                (other_sums, rows * (len(parts) - 1), noise - own_noise),
            ]
            moves = theta - self._theta(other_sums, release)
            yield Fit(silo, float(np.linalg.norm(moves)), *self._score(sides))

    def worst(self, fits: Iterable[Fit]) -> Fit | None:
        """Return the silo that fits least, if its score is above the threshold."""
        misfits = [fit for fit in fits if fit.score > self.threshold]
        return max(misfits, key=lambda fit: fit.score, default=None)

    def _score(
        self, sides: Sequence[tuple[np.ndarray, float, float]]
    ) -> tuple[float, float, float]:
        """Compute `Fit.score`, `Fit.sees` and `Fit.sees_surely` of the first of two sides.

        A side is its sums (s,), its number of rounds, and the variance of its noise in units of
        that of one node.
        """
        plan, d = self._plan, self._plan.dimension
        feature, _ = bounds(plan)
        low, high = (0.0, 1.0) if plan.clip is None else plan.clip.centred
        std = plan.noise_std
        # Variance of N theta in one direction, |theta| <= tau: at most the variance of a diagonal
        # entry or twice the variance of any other entry, whichever is larger.
        noise_of_theta = max(std.diagonal**2, 2.0 * std.off_diagonal**2) * plan.radius.tau**2
        blocks, targets, units = [], [], []
        for sums, rows, squares in sides:
            # The sum of |x|^2 is at most n L^2, unless more people came than planned.
            observed = float(np.trace(_full(sums[d:], d)))
            observed += SIGMAS * math.sqrt(d * squares) * std.diagonal
            mass = max(rows * feature**2, observed)
            proxy = mass * ((high - low) / 2.0) ** 2 + squares * (std.bias**2 + noise_of_theta)
            blocks.append(_full(sums[d:], d) / math.sqrt(proxy))
            targets.append(sums[:d] / math.sqrt(proxy))
            units.append(math.sqrt(proxy))
        system, target = np.vstack(blocks), np.concatenate(targets)
        best, *_ = np.linalg.lstsq(system, target, rcond=None)
        score = float(np.sum((target - system @ best) ** 2))
        # Let Q be the first side's rows of an orthonormal basis of the system's columns. If v is
        # added to the first side's target, theta can explain the part Q Q' v of it.
        unexplained = 1.0 - np.linalg.svd(np.linalg.qr(system)[0][:d], compute_uv=False) ** 2
        with np.errstate(divide="ignore"):
            shares = np.maximum([unexplained.mean(), unexplained.min()], 0.0)
            sees, surely = units[0] * np.sqrt(self.threshold / shares)
        return score, float(sees), float(surely)

    def _theta(self, sums: np.ndarray, release: int) -> np.ndarray:
        """Compute the ridge estimate (d,) of sums."""
        plan = self._plan
        regularizer = float(plan.regularizer[plan.entry(release)])
        theta: np.ndarray = Estimate.of_sums(plan.dimension, sums, regularizer)[0].theta
        return theta


# ---- ranges of values ----------------------------------------------------------------------------


class Limits(Protocol):
    """The largest absolute values in the messages of one kind of plan."""

    def report(self, release: int) -> np.ndarray:
        """Return the largest absolute values in a silo's report."""
        ...

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest absolute values in a broadcast."""
        ...


class Range:
    """The `Limits` of linear bandits, which honest messages exceed once in 10^15 numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        feature, reward = bounds(plan)
        d, s = plan.dimension, plan.statistic_size
        self._record = np.full(s, feature * feature)
        self._record[:d] = feature * reward
        self._std = spread(plan.noise_std.times(max(plan.noise_scale)), d)

    def report(self, release: int) -> np.ndarray:
        """Return the largest absolute values in a silo's report, (s,).

        A silo that adds noise to its report clips the noisy report to the range of ``end(release)``
        records. The range is small, so that a false report does little harm.
        """
        plan = self._plan
        records = plan.end(release) if hub_sees_reports(plan) else plan.most_records(release)
        return self._record * records + self._noise(release)

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest absolute values in a broadcast of all silos' reports, (s,)."""
        if self._plan.protocol.bits:
            # Rounding changes each entry of a record by at most one level.
            level = self._plan.units.max(axis=0, initial=0.0)
            most = self._plan.silos * self._plan.most_records(release)
            records = most * (self._record + level)
            return records + SIGMAS * count_std(self._plan, release)
        return self._plan.silos * self.report(release)

    def _noise(self, release: int) -> np.ndarray:
        """Bound the absolute noise of a prefix sum, (s,); the noise of one node is smaller."""
        prefix = prefix_noise(self._plan)
        if prefix is None:
            squares = float(max(1, self._plan.levels))
        else:
            squares = float(sum(c * c for c in prefix.terms(release).values()))
        return SIGMAS * math.sqrt(squares) * self._std


def check_range(values: np.ndarray, limit: np.ndarray, who: str) -> None:
    """Refuse values (s,) whose absolute value is above the limit (s,) in any entry."""
    beyond = np.abs(values) > limit
    if beyond.any():
        entry = int(np.argmax(beyond))
        raise Refused(
            f"{who} has entry {entry} beyond what {limit[entry]:.4g} allows: {values[entry]:.4g}"
        )


def sum_of(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Add up statistics in their order, with the same rounding as a server."""
    total = np.array(rows[0])
    for row in rows[1:]:
        aggregation.add(total, row)
    return total


def count_std(plan: Plan, release: int) -> np.ndarray:
    """Compute standard deviations of the noise bits in the prefix sums of a release, (s,)."""
    encoding, squares = encoding_of(plan), np.zeros(plan.statistic_size)
    nodes = list(range(1, release + 1))
    if not plan.protocol.flat:
        nodes, end = [], release
        while end:
            nodes.append(end)
            end &= end - 1
    for node in nodes:
        encoding_index = plan.encoding_at(node)
        trials = plan.silos * plan.points_of(node) * encoding.noise_bits[encoding_index]
        squares += VARIANCE * trials * plan.units[encoding_index] ** 2
    stds: np.ndarray = np.sqrt(squares)
    return stds
