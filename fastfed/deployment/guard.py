"""Checks of the values in messages, which limit and detect false reports.

- `Range` refuses values that neither records nor noise can give. It is always checked.
- `Cap` scales down what one report can add to a sum, if silos add noise to their reports.
- `check_records` refuses sums without noise that no records can have.
- `Alarm` tests whether a silo's data and the other silos' data can have the same theta.

All checks except `Range` need a hub that sees each silo's report. With secure sums the hub sees no
single report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from fastfed._kernels import aggregation
from fastfed._validate import InputError, number
from fastfed.bandits.linucb import Estimate
from fastfed.deployment.model import diagonal, report_variance
from fastfed.deployment.wire import Refused
from fastfed.privacy.mechanisms.binomial_tree import VARIANCE
from fastfed.protocols.account import bounds
from fastfed.protocols.plan import ClockedPlan, Plan
from fastfed.protocols.protocol import SEND_NOISY_NODE
from fastfed.protocols.release import fixed_point, prefix_noise, spread
from fastfed.protocols.vector_sum import encoding_of

#: Probability that the noise in an honest report makes it exceed the cap.
EXCEEDS_CAP_PROBABILITY = 1e-6
#: Probability that a whole plan has an alarm about an honest silo.
FALSE_ALARM_PROBABILITY = 1e-3
#: Values whose noise is more than this number of standard deviations are refused. Honest noise is
#: larger once in 10^15 numbers.
MAX_NOISE_STDS = 8.0


def record_bounds(plan: Plan) -> tuple[float, float]:
    """Return (L, Y), the bounds on a record's feature norm and on its absolute reward.

    Where users send bits, Y also bounds the estimate of a reward from a bit.
    """
    feature, reward = bounds(plan)
    return feature, max(reward, *map(abs, plan.bit_values))


def hub_sees_reports(plan: Plan) -> bool:
    """Return True if each silo adds noise to its report, and the hub sees single reports."""
    return plan.secure is None and plan.protocol.noise_by == "silos"


def checked_influence(influence: object) -> float | None:
    """Return ``federation.influence`` of a spec, checked to be in (0, 1]; None if not set."""
    if influence is None:
        return None
    return float(number("federation.influence", influence, above=0, at_most=1))


def check_influence(influence: float | None, plan: Plan) -> None:
    """Raise InputError for an influence outside (0, 1], or a protocol that cannot use it."""
    if influence is None:
        return
    number("influence", influence, above=0, at_most=1)
    if not hub_sees_reports(plan):
        raise InputError(
            "influence belongs to silo-ldp, whose hub sees noisy reports, "
            f'not to "{plan.protocol.id}"'
        )


def nodes_of(plan: Plan, release: int) -> list[int]:
    """Return the releases whose reports add up to the sums of all batches up to a release.

    With a tree, a report contains the sum of one node only, so a prefix sum needs several reports.
    """
    if plan.protocol.randomizer != SEND_NOISY_NODE:
        return [release]
    releases = []
    while release:
        releases.append(release)
        release -= 1 << aggregation.node_level(release)
    return releases


def noise_squares(plan: Plan, release: int) -> float:
    """Return the noise variance of one report, divided by the noise variance of one node."""
    if prefix_noise(plan) is None and not _reports_prefix_sums(plan):
        return 1.0
    return report_variance(plan, release)


def _reports_prefix_sums(plan: Plan) -> bool:
    """Return True if a report contains prefix sums, False if it contains the sum of a tree node."""
    return plan.protocol.randomizer != SEND_NOISY_NODE


def rounds_in_report(plan: Plan, release: int) -> int:
    """Return the number of rounds in the batches that one report covers."""
    if _reports_prefix_sums(plan):
        return plan.end(release)
    return plan.end(release) - plan.end(release - (1 << aggregation.node_level(release)))


# ---- the cap -------------------------------------------------------------------------------------


class Cap:
    """Scales down a silo's report to a bound on what the silo's records and noise can add.

    The sums of x y and of x x^T are each scaled down to a bound on their norm. The bound is
    ``influence`` times the largest possible norm, which the sums have if all rows x point in one
    direction, plus a quantile of the norm of the noise.

    Parameters
    ----------
    plan : Plan
    influence : float
        In (0, 1]. With 1, an honest report is scaled down with probability at most
        `EXCEEDS_CAP_PROBABILITY`, unless one period has more records than its batch has rounds.

    Notes
    -----
    Guarantee: the same as for the reports, which contain noise already; scaling is post-processing.
    """

    def __init__(self, plan: Plan, influence: float) -> None:
        self._plan, self._influence = plan, influence
        d = plan.dimension
        #: How often each entry of the packed lower triangle occurs in the symmetric matrix.
        self._weights = np.full(plan.statistic_size - d, 2.0)
        self._weights[diagonal(d)] = 1.0

    def bounds(self, release: int, silo: int) -> tuple[float, float]:
        """Return the bounds of the cap: on the norms of a silo's sums of x y and of x x^T.

        The norms are the Euclidean norm and the Frobenius norm. Each bound is ``influence`` times
        the largest norm without noise, plus a quantile of the norm of the noise.
        """
        plan, d = self._plan, self._plan.dimension
        feature, reward = record_bounds(plan)
        counted_records = self._influence * rounds_in_report(plan, release)
        noise_factor = math.sqrt(noise_squares(plan, release)) * plan.noise_scale[silo]
        std = plan.noise_std
        # The norm of m standard normals exceeds sqrt(m) + sqrt(2 t) with probability <= e^-t. Each
        # of the two norms gets half of `EXCEEDS_CAP_PROBABILITY`.
        tail = math.sqrt(2.0 * math.log(2.0 / EXCEEDS_CAP_PROBABILITY))
        # In the Frobenius norm, an off-diagonal entry counts twice.
        covariance = max(std.diagonal, math.sqrt(2.0) * std.off_diagonal)
        return (
            counted_records * feature * reward + noise_factor * std.bias * (math.sqrt(d) + tail),
            counted_records * feature**2
            + noise_factor * covariance * (math.sqrt(len(self._weights)) + tail),
        )

    def cap_report(self, values: np.ndarray, release: int, silo: int) -> tuple[np.ndarray, bool]:
        """Return a report (s,) scaled down to `bounds`, and True if a part of it was scaled.

        The two parts are the sum of x y and the sum of x x^T. Each is scaled down if its norm
        exceeds its bound. The result is the same on every machine, bit for bit.
        """
        capped, d, scaled = values.copy(), self._plan.dimension, False
        xy_bound, xx_bound = self.bounds(release, silo)
        for part, weights, bound in (
            (slice(0, d), np.ones(d), xy_bound),
            (slice(d, None), self._weights, xx_bound),
        ):
            # fsum rounds the same on every machine, so that a log can be replayed bit for bit.
            squares = weights * capped[part] * capped[part]
            norm = math.sqrt(math.fsum(squares.tolist()))
            if norm > bound:
                capped[part] *= bound / norm
                scaled = True
        return capped, scaled


# ---- raw sums ------------------------------------------------------------------------------------


def check_records(plan: Plan, values: np.ndarray, release: int, label: str) -> None:
    """Raise Refused unless records up to a release can have a silo's sums without noise, (s,).

    For n records with |x| <= L and |y| <= Y, let G be the sum of x x^T, and b the sum of x y. The
    trace of G is at most n L^2, and G - b b' / (n Y^2) has no negative eigenvalue (Cauchy-Schwarz).
    So b is small in directions in which G is small. An honest silo's sums are never refused.

    Raises
    ------
    Refused
        If no records can have these sums, or if the sums are not in the fixed point of records.
        Sums of rewards that are estimated from bits need not be in fixed point.
    """
    d, (feature, reward) = plan.dimension, record_bounds(plan)
    max_records, (unit, _) = plan.most_records(release), fixed_point(plan)
    if not plan.flips and not np.array_equal(values, np.round(values / unit) * unit):
        raise Refused(f"{label} is not in fixed point, multiples of 2^{round(math.log2(unit))}")
    # Each entry of each record is rounded to fixed point, which changes the sums by at most this.
    slack = 2.0 * max_records * unit * d + 1e-9 * max_records
    gram = _unpacked(values[d:], d)
    if float(np.trace(gram)) > max_records * feature**2 + slack:
        raise Refused(f"{label} has more of x x^T than {max_records} records can have")
    schur = gram - np.outer(values[:d], values[:d]) / (max_records * reward**2)
    smallest_eigenvalue = float(np.linalg.eigvalsh(schur)[0])
    # If rounding changes b by e, then b b' / (n Y^2) changes by about 2 |b| |e| / (n Y^2). For
    # L = 1 this is at most 2 |e| / Y.
    if smallest_eigenvalue < -slack * (1.0 + 2.0 / reward):
        raise Refused(f"{label} has more of x y than its x x^T and {max_records} records allow")


def _unpacked(packed: np.ndarray, d: int) -> np.ndarray:
    """Return the symmetric matrix (d, d) of a lower triangle that is packed row by row."""
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = packed
    return matrix + np.tril(matrix, -1).T


# ---- the alarm -----------------------------------------------------------------------------------


class Fit(NamedTuple):
    """How well one silo's sums fit the sums of all other silos at one release; see `Alarm`.

    Parameters
    ----------
    silo : int
    moves : float
        Distance by which the ridge estimate of theta moves if the silo is left out.
    score : float
        Sum of squared residuals of the silo and of the other silos, each divided by its variance,
        at the theta that fits both sides best.
    sees : float
        Size of a false report that the alarm typically detects: the norm of an addition to the
        silo's sum of x y that raises a score of 0 to the threshold (root mean square over
        directions).
    sees_surely : float
        The same size, for the direction in which a false report is hardest to detect, because a
        different theta explains most of it; infinite if theta can explain all of it.
    """

    silo: int
    moves: float
    score: float
    sees: float
    sees_surely: float


class Side(NamedTuple):
    """The data of one side of the test of `Alarm`.

    Parameters
    ----------
    sums : ndarray, shape (s,)
    rounds : int
        Number of rounds of all silos of this side.
    variance : float
        Noise variance of the sums, divided by the noise variance of one node.
    """

    sums: np.ndarray
    rounds: int
    variance: float


class Alarm:
    """A test, after each release, whether a silo and all other silos can have the same theta.

    The test compares two sides: the silo, and the sum of all other silos. Let u and G be the noisy
    sums of x y and x x^T on one side. Then u - G theta* = S + h - N theta*, where S is due to the
    noise of rewards, and h and N are the privacy noise in u and G.

    1. In every direction, S has a variance proxy of at most n L^2 R^2, for n records, |x| <= L and
       rewards in an interval of length 2 R (Hoeffding).
    2. The variance proxy of h - N theta* is its variance, because its entries are Gaussian. This
       variance is bounded for |theta*| <= tau.
    3. Divided by their standard deviations, the errors of both sides at theta* are a sub-Gaussian
       vector of 2 d numbers. Its squared norm exceeds 2 d + 2 sqrt(2 d t) + 2 t with probability
       at most e^-t (Hsu, Kakade and Zhang 2012, Theorem 2.1). At the theta that fits best, the
       squared norm, which is the score, is no larger than at theta*.
    4. With t = ln(silos * releases / false_alarms), honest silos cause an alarm in the whole plan
       with probability at most ``false_alarms``.

    The test assumes that all silos have the same theta, that rewards are linear in x apart from
    noise, and that a delay does not depend on the reward.

    Parameters
    ----------
    plan : Plan
    false_alarms : float
        Probability of an alarm in the whole plan if all silos are honest.

    Notes
    -----
    Guarantee: the same as for the reports, which contain noise already.
    """

    def __init__(self, plan: Plan, false_alarms: float = FALSE_ALARM_PROBABILITY) -> None:
        self._plan, d = plan, plan.dimension
        releases = len(plan.clocks.ticks) if isinstance(plan, ClockedPlan) else plan.releases
        t = math.log(plan.silos * max(1, releases) / false_alarms)
        #: An alarm is raised about a silo whose score is above this threshold.
        self.threshold = 2 * d + 2.0 * math.sqrt(2 * d * t) + 2.0 * t

    def fits(self, release: int, sets: Mapping[int, Mapping[int, np.ndarray]]) -> Iterator[Fit]:
        """Yield, for each silo of a release, how well its sums fit the other silos' sums.

        Parameters
        ----------
        release : int
        sets : mapping of int to mapping of int to ndarray
            k -> silo -> the silo's report (s,) for release k. The keys k are the releases of
            `nodes_of`. Each k has the silos whose reports for release k the hub added up.
        """
        by_silo: dict[int, Side] = {}
        for node in nodes_of(self._plan, release):
            for silo, values in sets[node].items():
                variance = self._variance(silo, node)
                if silo in by_silo:
                    sums, _, earlier_variance = by_silo[silo]
                    values, variance = sums + values, earlier_variance + variance
                by_silo[silo] = Side(values, self._plan.end(release), variance)
        yield from self._fits(release, by_silo)

    def fits_of_view(
        self, view: int, reports: Mapping[int, tuple[int, np.ndarray]]
    ) -> Iterator[Fit]:
        """Yield, for each silo of a view, how well its sums fit the other silos' sums.

        Parameters
        ----------
        view : int
        reports : mapping of int to (int, ndarray)
            Silo -> number and values (s,) of its report in the view.
        """
        by_silo = {
            silo: Side(values, self._plan.end(number), self._variance(silo, number))
            for silo, (number, values) in reports.items()
        }
        yield from self._fits(view, by_silo)

    def _variance(self, silo: int, release: int) -> float:
        """Return the noise variance of a silo's report, divided by the noise variance of one node.

        The variance of the report includes the silo's factor ``noise_scale``, squared. The variance
        of the node does not.
        """
        scale = self._plan.noise_scale[silo]
        return noise_squares(self._plan, release) * scale * scale

    def _fits(self, release: int, by_silo: Mapping[int, Side]) -> Iterator[Fit]:
        """Yield how well each silo's prefix sums fit the other silos' prefix sums."""
        if len(by_silo) < 2:
            return
        all_sums = np.sum([side.sums for side in by_silo.values()], axis=0)
        all_rounds = sum(side.rounds for side in by_silo.values())
        all_variance = sum(side.variance for side in by_silo.values())
        theta = self._theta(all_sums, release)
        for silo, side in sorted(by_silo.items()):
            other_sums = all_sums - side.sums
            sides = [side, Side(other_sums, all_rounds - side.rounds, all_variance - side.variance)]
            theta_shift = theta - self._theta(other_sums, release)
            yield Fit(silo, float(np.linalg.norm(theta_shift)), *self._score(sides))

    def worst(self, fits: Iterable[Fit]) -> Fit | None:
        """Return the fit with the highest score, if it is above the threshold; else None."""
        misfits = [fit for fit in fits if fit.score > self.threshold]
        return max(misfits, key=lambda fit: fit.score, default=None)

    def _score(self, sides: Sequence[Side]) -> tuple[float, float, float]:
        """Return `Fit.score`, `Fit.sees` and `Fit.sees_surely` of a silo.

        ``sides`` are the silo and all other silos. The comments use the symbols that `Alarm`
        defines.
        """
        plan, d = self._plan, self._plan.dimension
        feature, _ = bounds(plan)
        low, high = (0.0, 1.0) if plan.clip is None else plan.clip.centred
        std = plan.noise_std
        # Bound on the variance of N theta in one direction, for |theta| <= tau. It is tau^2 times
        # the larger of two numbers: the variance of a diagonal entry, and twice the variance of an
        # off-diagonal entry.
        noise_of_theta = max(std.diagonal**2, 2.0 * std.off_diagonal**2) * plan.radius.tau**2
        # For both sides, divide u and G by the standard deviation of the side's error. Then regress
        # u on G, with one theta for both sides.
        blocks, targets, stds = [], [], []
        for sums, rounds, variance in sides:
            # The sum of |x|^2 is at most n L^2, unless there are more records than planned.
            observed = float(np.trace(_unpacked(sums[d:], d)))
            observed += MAX_NOISE_STDS * math.sqrt(d * variance) * std.diagonal
            sum_squared_norms = max(rounds * feature**2, observed)
            reward_proxy = sum_squared_norms * ((high - low) / 2.0) ** 2
            proxy = reward_proxy + variance * (std.bias**2 + noise_of_theta)
            blocks.append(_unpacked(sums[d:], d) / math.sqrt(proxy))
            targets.append(sums[:d] / math.sqrt(proxy))
            stds.append(math.sqrt(proxy))
        system, target = np.vstack(blocks), np.concatenate(targets)
        theta_best, *_ = np.linalg.lstsq(system, target, rcond=None)
        score = float(np.sum((target - system @ theta_best) ** 2))
        # Let Q be the first side's rows of an orthonormal basis of the system's columns. If a false
        # report adds v to the first side's target, a different theta explains the part Q Q' v of v.
        # Only the rest of v raises the score.
        unexplained = 1.0 - np.linalg.svd(np.linalg.qr(system)[0][:d], compute_uv=False) ** 2
        with np.errstate(divide="ignore"):
            shares = np.maximum([unexplained.mean(), unexplained.min()], 0.0)
            detected_size, surely_detected_size = stds[0] * np.sqrt(self.threshold / shares)
        return score, float(detected_size), float(surely_detected_size)

    def _theta(self, sums: np.ndarray, release: int) -> np.ndarray:
        """Return the ridge estimate of theta, (d,), from sums (s,) with the plan's regularizer."""
        plan = self._plan
        regularizer = float(plan.regularizer[plan.entry(release)])
        theta: np.ndarray = Estimate.of_sums(plan.dimension, sums, regularizer)[0].theta
        return theta


# ---- ranges of values ----------------------------------------------------------------------------


class Limits(Protocol):
    """Interface of the largest absolute values that messages of one kind of plan may have."""

    def report(self, release: int) -> np.ndarray:
        """Return the largest absolute values that a silo's report may have."""
        ...

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest absolute values that a broadcast may have."""
        ...


class Range:
    """The `Limits` of linear bandits. Honest messages exceed these once in 10^15 numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        feature, reward = record_bounds(plan)
        d, s = plan.dimension, plan.statistic_size
        self._record = np.full(s, feature * feature)
        self._record[:d] = feature * reward
        self._std = spread(plan.noise_std.times(max(plan.noise_scale)), d)

    def report(self, release: int) -> np.ndarray:
        """Return the largest absolute values that a silo's report may have, (s,).

        They are the largest sums of a number of records, plus a bound on the noise. If the hub sees
        noisy reports of single silos (`hub_sees_reports`), the number is the planned number of
        records, ``end(release)``, and silos clip their noisy reports to these values. Otherwise it
        is the largest number of records that a silo may have.
        """
        plan = self._plan
        records = plan.end(release) if hub_sees_reports(plan) else plan.most_records(release)
        return self._record * records + self._noise(release)

    def broadcast(self, release: int) -> np.ndarray:
        """Return the largest absolute values that a broadcast of all silos' sums may have, (s,)."""
        if self._plan.protocol.bits:
            # Random rounding changes each entry of a record by at most one level of the encoding.
            level = self._plan.units.max(axis=0, initial=0.0)
            record_count = self._plan.silos * self._plan.most_records(release)
            records = record_count * (self._record + level)
            return records + MAX_NOISE_STDS * count_std(self._plan, release)
        return self._plan.silos * self.report(release)

    def _noise(self, release: int) -> np.ndarray:
        """Return a bound on the absolute noise of a silo's prefix sum, (s,).

        A report has at most this noise, even if it contains the sum of one tree node only.
        """
        # The noise variance of a prefix sum, divided by the noise variance of one node. If noise is
        # added to tree nodes, a prefix sum consists of at most ``levels`` nodes.
        prefix = prefix_noise(self._plan)
        variance = max(1, self._plan.levels) if prefix is None else prefix.variance(release)
        return MAX_NOISE_STDS * math.sqrt(variance) * self._std


def check_range(values: np.ndarray, limit: np.ndarray, label: str) -> None:
    """Raise Refused if any of the values (s,) exceeds its limit (s,) in absolute value."""
    is_beyond = np.abs(values) > limit
    if is_beyond.any():
        entry = int(np.argmax(is_beyond))
        raise Refused(
            f"{label} has entry {entry} beyond what {limit[entry]:.4g} allows: {values[entry]:.4g}"
        )


def sum_of(statistics: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum of statistics (s,), added in the given order and rounded as by `Server`."""
    total = np.array(statistics[0])
    for statistic in statistics[1:]:
        aggregation.add(total, statistic)
    return total


def count_std(plan: Plan, release: int) -> np.ndarray:
    """Return the standard deviations of the noise bits in the prefix sums of a release, (s,)."""
    encoding, variances = encoding_of(plan), np.zeros(plan.statistic_size)
    # Without a tree, each batch has noise. With a tree, the nodes that add up to the prefix have
    # noise: clearing the lowest set bit of a node's last leaf gives the last leaf before the node.
    nodes = list(range(1, release + 1))
    if not plan.protocol.flat:
        nodes, end = [], release
        while end:
            nodes.append(end)
            end &= end - 1
    for node in nodes:
        encoding_index = plan.encoding_at(node)
        trials = plan.silos * plan.points_of(node) * encoding.noise_bits[encoding_index]
        variances += VARIANCE * trials * plan.units[encoding_index] ** 2
    stds: np.ndarray = np.sqrt(variances)
    return stds
