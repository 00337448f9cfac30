"""What messages can hold, what one bad member can do, and how it is noticed.

`Range` is the door: values that no records and noise lead to are refused. `Cap` bounds what one
silo's report can add where silos add noise of their own; `check_records` refuses raw sums that no
records have; `Alarm` tests whether a silo and the others can have one theta. The latter three are
of no use where the hub sees no silo's report.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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

#: The chance that noise alone takes an honest report beyond the cap.
BEYOND = 1e-6
#: The chance of an alarm about an honest silo, over all silos and releases of a plan.
FALSE_ALARMS = 1e-3
#: Standard deviations of noise beyond which a value is refused: once in 10^15 numbers.
SIGMAS = 8.0


def visible(plan: Plan) -> bool:
    """True if the hub sees each silo's report, with noise of its own: they are public to it."""
    return plan.secure is None and plan.protocol.noise_by == "silos"


def asked(influence: object) -> float | None:
    """The influence of a spec, in (0, 1]; None where it says none."""
    if influence is None:
        return None
    return float(number("federation.influence", influence, above=0, at_most=1))


def check_influence(influence: float | None, plan: Plan) -> None:
    """Refuse an influence out of (0, 1], or under a protocol that has no use for one."""
    if influence is None:
        return
    number("influence", influence, above=0, at_most=1)
    if not visible(plan):
        raise InputError(
            "influence belongs to silo-ldp, whose hub sees noisy reports, "
            f'not to "{plan.protocol.id}"'
        )


def nodes_of(plan: Plan, release: int) -> list[int]:
    """The releases whose reports make up the prefix of a release."""
    if plan.protocol.randomizer != SEND_NOISY_NODE:
        return [release]
    found = []
    while release:
        found.append(release)
        release -= 1 << aggregation.node_level(release)
    return found


def noise_squares(plan: Plan, release: int) -> float:
    """Variance of the noise of one report, in units of that of one node."""
    made = prefix_noise(plan)
    if made is not None:
        return float(sum(c * c for c in made.terms(release).values()))
    return float(release.bit_count()) if _by_prefix(plan) else 1.0


def _by_prefix(plan: Plan) -> bool:
    return plan.protocol.randomizer != SEND_NOISY_NODE


def records_of(plan: Plan, release: int) -> int:
    """Rounds of the batches that one report is about."""
    if _by_prefix(plan):
        return plan.end(release)
    return plan.end(release) - plan.end(release - (1 << aggregation.node_level(release)))


# ---- the cap -------------------------------------------------------------------------------------


class Cap:
    """Holds one silo's report to what its batches can add, with room for its noise.

    Both parts, x y and x x^T, are scaled down to the bound on their norm: ``influence`` times that
    of all its batches' rows pointing one way, and a quantile of the noise's norm.

    Parameters
    ----------
    plan : Plan
    influence : float
        In (0, 1]; 1 scales an honest report with probability `BEYOND` at most, unless more rewards
        than a batch has became known in one period.

    Notes
    -----
    Guarantee: none is lost: reports have their noise, and what is made of them is post-processing.
    """

    def __init__(self, plan: Plan, influence: float) -> None:
        self._plan, self._influence = plan, influence
        d = plan.dimension
        self._weights = np.full(plan.statistic_size - d, 2.0)
        self._weights[diagonal(d)] = 1.0

    def bounds(self, release: int, silo: int) -> tuple[float, float]:
        """The largest norms of x y, and of x x^T (Frobenius), in a silo's report of a release."""
        plan, d = self._plan, self._plan.dimension
        feature, reward = bounds(plan)
        most = self._influence * records_of(plan, release)
        root = math.sqrt(noise_squares(plan, release)) * plan.noise_scale[silo]
        std = plan.noise_std
        # |z| of m standard normals exceeds sqrt(m) + sqrt(2 t) with probability e^-t at most.
        tail = math.sqrt(2.0 * math.log(2.0 / BEYOND))
        covariance = max(std.diagonal, math.sqrt(2.0) * std.off_diagonal)
        return (
            most * feature * reward + root * std.bias * (math.sqrt(d) + tail),
            most * feature**2 + root * covariance * (math.sqrt(len(self._weights)) + tail),
        )

    def held(self, values: np.ndarray, release: int, silo: int) -> tuple[np.ndarray, bool]:
        """A report (s,) within the bounds, and whether it had to be scaled; bits are exact."""
        made, d, scaled = values.copy(), self._plan.dimension, False
        first, second = self.bounds(release, silo)
        for part, weights, most in (
            (slice(0, d), np.ones(d), first),
            (slice(d, None), self._weights, second),
        ):
            # fsum: the same on every machine, since a log is replayed bit for bit.
            squares = weights * made[part] * made[part]
            norm = math.sqrt(math.fsum(squares.tolist()))
            if norm > most:
                made[part] *= most / norm
                scaled = True
        return made, scaled


# ---- raw sums ------------------------------------------------------------------------------------


def check_records(plan: Plan, values: np.ndarray, release: int, who: str) -> None:
    """Refuse raw sums (s,) that no records of a silo by a release can have.

    Of n records with |x| <= L and |y| <= Y the trace of G = sum x x^T is at most n L^2, and
    G - b b' / (n Y^2) has no negative eigenvalue, b = sum x y (Cauchy and Schwarz). So b is small
    where G is. An honest silo's sums are never refused.

    Raises
    ------
    Refused
        Also for sums that are not in the fixed point of records.
    """
    d, (feature, reward) = plan.dimension, bounds(plan)
    most, (unit, _) = plan.most_records(release), fixed_point(plan)
    if not np.array_equal(values, np.round(values / unit) * unit):
        raise Refused(f"{who} is not in fixed point, multiples of 2^{round(math.log2(unit))}")
    # Each record is rounded, entry by entry.
    slack = 2.0 * most * unit * d + 1e-9 * most
    gram = _full(values[d:], d)
    if float(np.trace(gram)) > most * feature**2 + slack:
        raise Refused(f"{who} has more of x x^T than {most} records can have")
    rest = gram - np.outer(values[:d], values[:d]) / (most * reward**2)
    least = float(np.linalg.eigvalsh(rest)[0])
    # b is rounded, too: b b' / (n Y^2) moves by little more than the rounding of b.
    if least < -slack * (1.0 + 2.0 / reward):
        raise Refused(f"{who} has more of x y than its x x^T and {most} records allow")


def _full(packed: np.ndarray, d: int) -> np.ndarray:
    made = np.zeros((d, d))
    made[np.tril_indices(d)] = packed
    return made + np.tril(made, -1).T


# ---- the alarm -----------------------------------------------------------------------------------


class Fit(NamedTuple):
    """How a silo fits the others at one release.

    moves: how far theta moves without it. score: what is left of both sides' errors for the theta
    that suits them best, in units of their variances. sees, sees_surely: the norm that a false
    addition to the silo's sum of x y must have to take a score of 0 to the threshold, in a
    direction drawn at random (in the mean of squares) and in the one that theta explains best;
    infinite where theta can explain all of it.
    """

    silo: int
    moves: float
    score: float
    sees: float
    sees_surely: float


class Alarm:
    """Tests, after each release, whether a silo and all others together can have one theta.

    Let u, G be a side's sums, and u - G theta* = S + h - N theta* the sum of its rewards' noise and
    of what hides it. In every direction S has variance proxy n L^2 R^2 at most (n records,
    |x| <= L, rewards in an interval of length 2 R: Hoeffding), h - N theta* that of its Gaussian
    numbers where |theta*| <= tau. In units of these, both sides' errors at theta* are a
    sub-Gaussian vector of 2 d numbers, whose squared norm exceeds 2 d + 2 sqrt(2 d t) + 2 t with
    probability e^-t at most (Hsu, Kakade and Zhang 2012, Theorem 2.1), and the best theta leaves no
    more of it. With t = ln(silos releases / false_alarms), honest silos lead to an alarm in the
    whole plan with probability ``false_alarms`` at most.

    That counts on one theta at all silos, rewards that are linear in x but for their noise, and a
    delay that does not depend on the reward.

    Parameters
    ----------
    plan : Plan
    false_alarms : float

    Notes
    -----
    Guarantee: it reads reports that have their noise; nothing is lost.
    """

    def __init__(self, plan: Plan, false_alarms: float = FALSE_ALARMS) -> None:
        self._plan, d = plan, plan.dimension
        t = math.log(plan.silos * max(1, plan.releases) / false_alarms)
        #: The score beyond which a silo does not fit.
        self.threshold = 2 * d + 2.0 * math.sqrt(2 * d * t) + 2.0 * t

    def fits(self, release: int, sets: Mapping[int, Mapping[int, np.ndarray]]) -> Iterator[Fit]:
        """How each silo of a release fits the others.

        Parameters
        ----------
        release : int
        sets : mapping
            By release, the reports (s,) of the silos in its set.
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
        everything = np.sum([sums for sums, _ in parts.values()], axis=0)
        noise = sum(each for _, each in parts.values())
        if len(parts) < 2:
            return
        theta = self._theta(everything, release)
        for silo, (own, its) in sorted(parts.items()):
            other = everything - own
            sides = [(own, rows, its), (other, rows * (len(parts) - 1), noise - its)]
            moves = theta - self._theta(other, release)
            yield Fit(silo, float(np.linalg.norm(moves)), *self._score(sides))

    def worst(self, fits: Iterable[Fit]) -> Fit | None:
        """The silo that fits least, where it is beyond the threshold."""
        found = [fit for fit in fits if fit.score > self.threshold]
        return max(found, key=lambda fit: fit.score, default=None)

    def _score(
        self, sides: Sequence[tuple[np.ndarray, float, float]]
    ) -> tuple[float, float, float]:
        """`Fit.score`, `Fit.sees` and `Fit.sees_surely` of the first side."""
        plan, d = self._plan, self._plan.dimension
        feature, _ = bounds(plan)
        low, high = (0.0, 1.0) if plan.clip is None else plan.clip.centred
        std = plan.noise_std
        # Of N theta, |theta| <= tau: at most the larger of a diagonal entry and two others'.
        hidden = max(std.diagonal**2, 2.0 * std.off_diagonal**2) * plan.radius.tau**2
        blocks, targets, units = [], [], []
        for sums, rows, squares in sides:
            # The sum of |x|^2, which is n L^2 at most, unless more people came than planned.
            seen = float(np.trace(_full(sums[d:], d)))
            seen += SIGMAS * math.sqrt(d * squares) * std.diagonal
            mass = max(rows * feature**2, seen)
            proxy = mass * ((high - low) / 2.0) ** 2 + squares * (std.bias**2 + hidden)
            blocks.append(_full(sums[d:], d) / math.sqrt(proxy))
            targets.append(sums[:d] / math.sqrt(proxy))
            units.append(math.sqrt(proxy))
        system, target = np.vstack(blocks), np.concatenate(targets)
        best, *_ = np.linalg.lstsq(system, target, rcond=None)
        score = float(np.sum((target - system @ best) ** 2))
        # Of v added to the first side's target theta can explain Q Q' v, Q its rows of a basis.
        unexplained = 1.0 - np.linalg.svd(np.linalg.qr(system)[0][:d], compute_uv=False) ** 2
        with np.errstate(divide="ignore"):
            shares = np.maximum([unexplained.mean(), unexplained.min()], 0.0)
            sees, surely = units[0] * np.sqrt(self.threshold / shares)
        return score, float(sees), float(surely)

    def _theta(self, sums: np.ndarray, release: int) -> np.ndarray:
        plan = self._plan
        regularizer = float(plan.regularizer[plan.entry(release)])
        theta: np.ndarray = Estimate.of_sums(plan.dimension, sums, regularizer)[0].theta
        return theta


# ---- what may be true ----------------------------------------------------------------------------


class Range:
    """The largest values that a message of a plan can hold, but once in 10^15 numbers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        feature, reward = bounds(plan)
        d, s = plan.dimension, plan.statistic_size
        self._record = np.full(s, feature * feature)
        self._record[:d] = feature * reward
        self._std = spread(plan.noise_std.times(max(plan.noise_scale)), d)

    def report(self, release: int) -> np.ndarray:
        """Of a silo's report (s,).

        A silo that adds its own noise clips its report to the range of ``end(release)`` records,
        after the noise, so that a false report does as little harm as possible.
        """
        plan = self._plan
        most = plan.end(release) if visible(plan) else plan.most_records(release)
        return self._record * most + self._noise(release)

    def broadcast(self, release: int) -> np.ndarray:
        """Of a broadcast (s,): the sum of as many of these, or more noise, as there are silos."""
        if self._plan.protocol.bits:
            # Each record is off by one level at most in each entry.
            level = self._plan.units.max(axis=0, initial=0.0)
            most = self._plan.silos * self._plan.most_records(release)
            records = most * (self._record + level)
            return records + SIGMAS * count_std(self._plan, release)
        return self._plan.silos * self.report(release)

    def _noise(self, release: int) -> np.ndarray:
        """Of the noise of a prefix, or of the node of a tree, which has less."""
        made = prefix_noise(self._plan)
        if made is None:
            squares = float(max(1, self._plan.levels))
        else:
            squares = float(sum(c * c for c in made.terms(release).values()))
        return SIGMAS * math.sqrt(squares) * self._std


def check_range(values: np.ndarray, limit: np.ndarray, who: str) -> None:
    """Refuse values that no records and noise can have led to."""
    beyond = np.abs(values) > limit
    if beyond.any():
        at = int(np.argmax(beyond))
        raise Refused(f"{who} has entry {at} beyond what {limit[at]:.4g} allows: {values[at]:.4g}")


def sum_of(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Sum of statistics in their order, as servers add them up."""
    total = np.array(rows[0])
    for row in rows[1:]:
        aggregation.add(total, row)
    return total


def count_std(plan: Plan, release: int) -> np.ndarray:
    """Standard deviations of the noise bits in the prefix sums of a release, (s,)."""
    encoding, squares = encoding_of(plan), np.zeros(plan.statistic_size)
    nodes = list(range(1, release + 1))
    if not plan.protocol.flat:
        nodes, end = [], release
        while end:
            nodes.append(end)
            end &= end - 1
    for node in nodes:
        which = plan.encoding_at(node)
        trials = plan.silos * plan.points_of(node) * encoding.noise_bits[which]
        squares += VARIANCE * trials * plan.units[which] ** 2
    made: np.ndarray = np.sqrt(squares)
    return made
