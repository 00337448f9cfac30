"""Vector sums by shuffling, one batch of users after the other: P_Vec without a tree.

The released total is the sum of the batches' estimates. A mechanism and its accounting are one
object: whatever formula chose the noise bits, their privacy is computed from the bits themselves.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal

import msgspec

from fastfed._validate import InputError, boolean, choice, integer, number
from fastfed.privacy.accounting.binomial import (
    TAIL_SHARES,
    Node,
    VectorSumAccount,
    hockey_stick_lower_bound,
)
from fastfed.privacy.accounting.gdp import gaussian_mu
from fastfed.privacy.certificate import ClaimCondition, Condition, Side, rounded_up
from fastfed.privacy.mechanisms.binomial_tree import (
    EXACT_LEVELS,
    VARIANCE,
    counted_users,
    smallest_bits,
    usual_levels,
)
from fastfed.privacy.releases.gaussian_release import CALIBRATIONS, check_exact_ratio
from fastfed.privacy.releases.participation import budget_per_batch, participation_conditions
from fastfed.privacy.sensitivity import (
    Budget,
    Centred,
    check_gaussian_budget,
    joint_sensitivity,
    named_relation,
)

__all__ = ["PUBLISHED_LOGS", "VectorBatches", "calibrate_vector_batches"]

#: The logarithms in the noise bits of the published code: its own, and that of the later paper's.
PUBLISHED_LOGS = ("ln(d/delta)", "ln(d^2/delta)")

_EVERYBODY = (
    "all users of every batch add their noise bits, and none tells the server which (taken on "
    "trust)"
)


class VectorBatches(msgspec.Struct, frozen=True, kw_only=True):
    """The vector sums of batches of users, x y and x x^T together, simply added up.

    Parameters
    ----------
    batch_size : int
        B users in a batch.
    dimension : int
        d; a vector has s = d + d (d + 1)/2 coordinates (the matrix on and above its diagonal).
    g : tuple of int
        Encoding levels per unit of the bias stream and of the covariance stream.
    b : int
        The noise bits that each user adds to each coordinate, so that a coordinate of a batch
        carries Bin(B b, 1/4).
    returning : int
        M0, the most batches that one user takes part in, once in each.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose g and b.
    budget : Budget
        The budget that was asked for.
    source : str
        Author-year of the rule.
    vector_scale : float
        The factor of the published code.
    honest_fraction : float
        h; only floor(h B) users' noise is counted on.
    local : bool
        True if the claim is local privacy (chowdhury-zhou-2022, Corollary C.3), where only the
        user's own b bits count.
    centred : Centred, optional
        Bounds of records whose last feature is a constant of the code.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: for one user with at most M0 records (x, y), ||x||_2 <= 1 and |y| <= 1, all batches
    together are (exact(), budget.delta)-private towards everyone who sees shuffled messages, or,
    when local, the user's own messages; proven in `fastfed.privacy.accounting.binomial`. A message
    has 2 g + b bits a coordinate, and only the number of ones among them counts: nobody may learn
    which are noise, so a message that is not shuffled with others' says that number alone.
    Source: chowdhury-zhou-2022, Algorithms 5 to 7.
    """

    batch_size: int
    dimension: int
    g: tuple[int, int]
    b: int
    returning: int
    calibration: str
    budget: Budget
    source: str
    vector_scale: float = 1.0
    honest_fraction: float = 1.0
    local: bool = False
    centred: Centred | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        integer("batch_size", self.batch_size, at_least=1)
        integer("dimension", self.dimension, at_least=1)
        levels = tuple(integer("g", v, at_least=1) for v in self.g)
        if len(levels) != 2:
            raise InputError(f"g must have one value for each of the 2 streams, got {len(levels)}")
        msgspec.structs.force_setattr(self, "g", levels)
        integer("b", self.b, at_least=1)
        integer("returning", self.returning, at_least=1)
        choice("calibration", self.calibration, CALIBRATIONS)
        number("vector_scale", self.vector_scale, above=0)
        number("honest_fraction", self.honest_fraction, above=0, at_most=1)
        boolean("local", self.local)
        _own_bits_only(self.local, self.honest_fraction)

    @property
    def relation(self) -> str:
        """The relation of the budget, used wherever none is named."""
        return self.budget.relation

    @property
    def coordinates(self) -> int:
        """s = d + d (d + 1)/2, the length of a batch's vector."""
        return _coordinates(self.dimension)

    @property
    def trials(self) -> int:
        """B b: a coordinate of a batch carries Bin(B b, 1/4)."""
        return self.batch_size * self.b

    @property
    def counted(self) -> int:
        """The noise bits of a coordinate that the accounting relies on: floor(h B) b, or b."""
        return self.b * (1 if self.local else counted_users(self.honest_fraction, self.batch_size))

    @property
    def noise_std(self) -> tuple[float, float]:
        """Standard deviations of one batch's binomial noise in a coordinate of the bias and of the
        covariance stream, in units of the sums."""
        std = math.sqrt(VARIANCE * self.trials)
        return std / self.g[0], std / self.g[1]

    @property
    def rounding_std(self) -> tuple[float, float]:
        """Largest standard deviations of one batch's rounding, sqrt(B)/(2 g), by stream."""
        most = math.sqrt(self.batch_size) / 2.0
        return most / self.g[0], most / self.g[1]

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream of one batch, without rounding, as a certificate's."""
        bias, covariance = self.noise_std
        return {"bias": bias, "covariance": covariance, "covariance_diagonal": covariance}

    def norm(self, relation: str | None = None) -> float:
        """S, the largest L2 change of the encoded vector of one record, in levels."""
        relation = named_relation(relation, self.budget)
        return _norm(relation, self.dimension, self.g, self.centred)

    def mu(self, relation: str | None = None) -> float:
        """GDP parameter of Gaussian noise of the same variance.

        For orientation: exact() is the proof. mu^2 = M0 16 S^2 / (3 N), N the counted bits.
        """
        if self.counted == 0:
            return math.inf
        return math.sqrt(self.returning / (VARIANCE * self.counted)) * self.norm(relation)

    def account(self, relation: str | None = None) -> VectorSumAccount:
        """The proven account of all batches of one user."""
        return self._account(self.counted, relation)

    def _account(self, trials: int, relation: str | None = None) -> VectorSumAccount:
        """Account with so many counted bits."""
        return _account(trials, self.norm(relation), self.returning, self.coordinates)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """The epsilon proven for everything released, at delta (default: the budget's).

        Infinite where none is proven.
        """
        return self.account(relation).epsilon(self.budget.delta if delta is None else delta)

    def local_epsilon(self, delta: float | None = None) -> float:
        """The epsilon proven towards whoever sees the user's own bits, which hide among no others'.

        At delta (default: the budget's); infinite where none is proven.
        """
        return self._account(self.b).epsilon(self.budget.delta if delta is None else delta)

    def hockey_stick_lower_bound(self, epsilon: float) -> float:
        """A lower bound of the true delta of one batch at epsilon >= 0.

        The divergence between what two neighbouring records make of the counted noise, roundings
        included, for the worst of a few pairs: a refutation where it is above a claimed delta.
        0 beyond 2^28 counted bits, where it is not computed.
        """
        epsilon = number("epsilon", epsilon, at_least=0)
        return hockey_stick_lower_bound(
            self.counted, self.g, self.dimension, self.relation, epsilon
        )

    @property
    def remark(self) -> str:
        """A remark on the rule that chose the noise, beyond its account."""
        if self.calibration == "theorem":
            epsilon, delta = budget_per_batch(self.budget, self.returning)
            met = "met" if epsilon <= 15.0 and delta < 0.5 else "not met"
            each = " for each batch" if self.returning > 1 else ""
            return (
                f"Theorem C.1 needs epsilon = {epsilon:.4g} <= 15 and delta = {delta:.4g} < 1/2"
                f"{each}: {met}"
            )
        if self.calibration == "published-code":
            return "no theorem states these constants"
        return ""

    def conditions(self) -> list[Condition]:
        """The claim under its relation, by the proven account, and what is taken on trust."""
        budget = self.budget
        found = self.exact()
        if found == math.inf:
            what = (
                f"an epsilon at most {budget.epsilon:g} is proven for this noise at delta "
                f"{budget.delta:g} under {budget.relation}"
            )
            notes = ["computed: none is, it is too little"]
        else:
            what = (
                f"the proven epsilon of this noise, {rounded_up(found)} at delta {budget.delta:g} "
                f"under {budget.relation}, is at most {budget.epsilon:g}"
            )
            notes = ["computed"]
        if (
            found > budget.epsilon
            and (least := self.hockey_stick_lower_bound(budget.epsilon)) > budget.delta
        ):
            notes.append(f"its delta at epsilon {budget.epsilon:g} is at least {_down(least)}")
        if self.remark:
            notes.append(self.remark)
        claim = ClaimCondition(f"{what} ({'; '.join(notes)})", found <= budget.epsilon)
        return [*self._trust(), claim]

    def _trust(self) -> list[Condition]:
        """Conditions that are taken on trust."""
        trusted = []
        if not self.local and self.honest_fraction == 1.0:
            trusted.append(f"{_EVERYBODY}; honest_fraction < 1 counts on fewer")
        elif not self.local:
            trusted.append(
                f"at least the fraction {self.honest_fraction:g} of the users of every batch add "
                "their noise bits, and do not tell the server which (taken on trust)"
            )
        return [
            *(Condition(text, True) for text in trusted),
            *participation_conditions(self.returning),
        ]

    def sides(self) -> list[Side]:
        """List the guarantees of the same noise under other trust, at the budget's delta.

        Entries without a finite epsilon are left out.
        """
        returning = tuple(participation_conditions(self.returning))
        if self.local:
            epsilon = self._account(self.trials).epsilon(self.budget.delta)
            model = "shuffle: with a trusted shuffler of each batch in between"
            trust = (Condition(_EVERYBODY, True), *returning)
            found = Side(model, "chowdhury-zhou-2022, Corollary C.3", epsilon, trust)
        else:
            model, source = "local: nobody but the user is trusted", "Remark 3.7"
            epsilon = self.local_epsilon()
            found = Side(model, f"chowdhury-zhou-2022, {source}", epsilon, returning)
        return [found] if math.isfinite(found.epsilon) else []


class UnequalBatches(msgspec.Struct, frozen=True):
    """Vector sums of batches that differ in size, each with noise of its own.

    Parameters
    ----------
    batches : tuple of VectorBatches
        One for each batch, all of one dimension, budget and trust.

    Raises
    ------
    InputError
        For users of several batches where these differ: no account is proven for them.

    Notes
    -----
    Guarantee: that of the worst batch, for a user of one batch. The others hold nothing of that
    user but actions chosen in view of earlier releases: post-processing.
    """

    batches: tuple[VectorBatches, ...]

    def __post_init__(self) -> None:
        """Refuse users of several batches."""
        if any(batch.returning != 1 for batch in self.batches):
            raise InputError(
                "returning must be 1 where batches of a vector sum differ in size: their costs "
                "have no common account"
            )

    @property
    def worst(self) -> VectorBatches:
        """The batch that costs most."""
        return max(self.batches, key=VectorBatches.exact)

    @property
    def budget(self) -> Budget:
        """The budget that was asked for."""
        return self.batches[0].budget

    @property
    def calibration(self) -> str:
        """The rule that chose the noise."""
        return self.batches[0].calibration

    @property
    def source(self) -> str:
        """Author-year of the rule."""
        return self.batches[0].source

    @property
    def returning(self) -> int:
        """The most batches of one user: 1."""
        return 1

    @property
    def honest_fraction(self) -> float:
        """The share of users whose noise bits are counted on."""
        return self.batches[0].honest_fraction

    @property
    def vector_scale(self) -> float:
        """The factor of the published code."""
        return self.batches[0].vector_scale

    @property
    def noise_stds(self) -> dict[str, float]:
        """Standard deviations by stream, of the largest batch."""
        return max(self.batches, key=lambda batch: batch.batch_size).noise_stds

    def exact(self, delta: float | None = None) -> float:
        """The epsilon proven for everything released."""
        return max(batch.exact(delta) for batch in self.batches)

    def conditions(self) -> list[Condition]:
        """Conditions of the worst batch."""
        return self.worst.conditions()

    def sides(self) -> list[Side]:
        """Guarantees under other trust, of the batch that costs most there."""
        found = [batch.sides() for batch in self.batches]
        if not all(found):
            return []
        return max(found, key=lambda sides: sides[0].epsilon)


def calibrate_vector_batches(
    budget: Budget,
    batch_size: int,
    dimension: int,
    *,
    returning: int = 1,
    local: bool = False,
    calibration: str = "exact",
    vector_scale: float = 1.0,
    honest_fraction: float = 1.0,
    covariance_ratio: float = 1.0,
    published_log: str = "ln(d/delta)",
    centred: Centred | None = None,
) -> VectorBatches:
    """Calibrate batches of vector sums: encoding levels g and noise bits b.

    Parameters
    ----------
    budget : Budget
        delta > 0; unit "user" or "item".
    batch_size, dimension : int
        B and d.
    returning : int
        M0, the most batches of one user.
    local : bool
        True for local privacy.
    calibration : {"exact", "theorem", "published-code"}
        With n = batch_size, or 1 when local, and G = max(ceil(2 sqrt n), d, 4):
        "theorem": g = (G, G), b = ceil(24e4 G^2 ln(4 (d^2 + 1)/delta)^2 / (epsilon^2 n))
        (chowdhury-zhou-2022, Theorem C.1; Corollary C.3 when local). For returning = M0 > 1 at the
        budget of one batch, epsilon / (2 sqrt(2 M0 ln(2/delta))) and delta / (2 M0), which is their
        Theorem E.5 before its constant is rounded up.
        "published-code": b = ceil(vector_scale G^2 ln(d/delta)^2 / (epsilon^2 B)), or with
        ln(d^2/delta), and g = (G, round(sqrt2 G)): there G levels stand for the norm sqrt2 of the
        features, in both streams. It often does not give the budget, see conditions().
        "exact": the smallest b for which the budget is proven, with
        g_1 = ceil(g_0 / covariance_ratio), so that a ratio below 1 means less noise in the
        covariance stream. Both are at least G, and g_0 is raised where needed so that the counted
        noise has a standard deviation of at least 150 levels, which makes a coarse encoding's
        skewness negligible. A larger g changes no noise in units of the sums, only the length 2 g
        + b of a message, b growing like g^2.
    vector_scale, published_log : float, str
        Only for "published-code", which is neither local nor for several batches of a user.
    honest_fraction : float
        h in (0, 1]; only floor(h B) users' noise is counted on, and "exact" makes the others' share
        up.
    covariance_ratio : float
        Only for "exact".

    Returns
    -------
    VectorBatches

    Raises
    ------
    InputError
        For delta = 0, the unit "silo", options of another calibration, honest_fraction < 1 when
        local, and if nobody's noise can be counted on.
    """
    batch_size = integer("batch_size", batch_size, at_least=1)
    d = integer("dimension", dimension, at_least=1)
    returning = integer("returning", returning, at_least=1)
    local = boolean("local", local)
    choice("calibration", calibration, CALIBRATIONS)
    vector_scale = number("vector_scale", vector_scale, above=0)
    honest_fraction = number("honest_fraction", honest_fraction, above=0, at_most=1)
    covariance_ratio = number("covariance_ratio", covariance_ratio, above=0)
    choice("published_log", published_log, PUBLISHED_LOGS)
    _fitting(calibration, vector_scale, published_log, local, returning)
    check_exact_ratio(calibration, covariance_ratio)
    _own_bits_only(local, honest_fraction)
    check_gaussian_budget(budget)
    if (honest := counted_users(honest_fraction, batch_size)) == 0:
        raise InputError(
            f"honest_fraction must leave at least 1 of {batch_size} users, got {honest_fraction:g}"
        )
    users = 1 if local else batch_size
    usual = usual_levels(users, d)
    levels = usual, usual
    if calibration == "exact":
        adding = 1 if local else honest
        levels, bits = _exact(budget, adding, usual, d, returning, covariance_ratio, centred)
    elif calibration == "theorem":
        epsilon, small = budget_per_batch(budget, returning)
        factor = 24e4 * (math.log(4 * (d * d + 1)) - math.log(small)) ** 2 / epsilon**2
        bits = max(math.ceil(factor * usual * usual / users), 1)
    else:
        inner = d if published_log == "ln(d/delta)" else d * d
        factor = vector_scale * (math.log(inner) - math.log(budget.delta)) ** 2 / budget.epsilon**2
        bits = max(math.ceil(factor * usual * usual / users), 1)
        levels = usual, round(math.sqrt(2.0) * usual)
    return VectorBatches(
        batch_size=batch_size,
        dimension=d,
        g=levels,
        b=bits,
        returning=returning,
        calibration=calibration,
        budget=budget,
        source=_source(calibration, local, returning, published_log),
        vector_scale=vector_scale,
        honest_fraction=honest_fraction,
        local=local,
        centred=centred,
    )


def _fitting(calibration: str, scale: float, log: str, local: bool, returning: int) -> None:
    """Refuse options that this calibration does not know. Raises InputError."""
    if calibration == "published-code":
        wrong = [
            ("local", "false", "true", local),
            ("returning", "1", f"{returning}", returning != 1),
        ]
    else:
        usual = PUBLISHED_LOGS[0]
        wrong = [
            ("vector_scale", "1", f"{scale:g}", scale != 1.0),
            ("published_log", f'"{usual}"', f'"{log}"', log != usual),
        ]
    for name, only, got, failed in wrong:
        if failed:
            raise InputError(
                f'{name} must be {only} when calibration is "{calibration}", got {got}'
            )


def _own_bits_only(local: bool, honest_fraction: float) -> None:
    """Refuse an honest fraction below 1 where no other user is counted on."""
    if local and honest_fraction != 1.0:
        raise InputError(
            "honest_fraction must be 1 when the claim is local, where no other user is counted "
            f"on, got {honest_fraction:g}"
        )


def _source(calibration: str, local: bool, returning: int, log: str) -> str:
    """Source of a calibration."""
    if calibration == "exact":
        return (
            "proven accounting of binomial noise (chowdhury-zhou-2022, Algorithms 5 to 7, with "
            "the least noise bits that give the budget)"
        )
    if calibration == "published-code":
        other = "" if log == PUBLISHED_LOGS[0] else f", with {log} of the later zhou-chowdhury-2024"
        return f"constants of the published experiment code of chowdhury-zhou-2022{other}"
    name = "Corollary C.3" if local else "Theorem C.1"
    budget = " at the budget of one batch of Theorem E.5" if returning > 1 else ""
    return f"chowdhury-zhou-2022, {name}{budget}"


def _coordinates(dimension: int) -> int:
    """Length s of a vector."""
    return dimension + dimension * (dimension + 1) // 2


def _norm(
    relation: str, dimension: int, g: tuple[int, int], centred: Centred | None = None
) -> float:
    """Largest L2 change of the encoded vector of one record, in levels."""
    if centred is not None:
        return centred.joint(relation, "iid", 1.0 / g[0], 1.0 / g[1])
    return joint_sensitivity(relation, "iid", dimension, bias_std=1.0 / g[0], cov_std=1.0 / g[1])


def _account(trials: int, norm: float, returning: int, coordinates: int) -> VectorSumAccount:
    """Account of M0 batches, in each of which one record of the user changes."""
    node = Node(trials, norm, squares=float(returning), count=returning)
    return VectorSumAccount([node], coordinates)


def _exact(
    budget: Budget,
    adding: int,
    usual: int,
    dimension: int,
    returning: int,
    ratio: float,
    centred: Centred | None,
) -> tuple[tuple[int, int], int]:
    """Find g and the smallest b when `adding` users' bits are counted."""
    epsilon, delta = budget.epsilon, budget.delta
    coordinates = _coordinates(dimension)
    if centred is None:
        joint = joint_sensitivity(budget.relation, "iid", dimension, cov_std=ratio)
    else:
        joint = centred.joint(budget.relation, "iid", 1.0, ratio)
    whole = gaussian_mu(epsilon, delta) / math.sqrt(returning)
    first = math.ceil(max(usual * max(1.0, ratio), EXACT_LEVELS * whole / joint))
    g = first, math.ceil(first / ratio)
    norm = _norm(budget.relation, dimension, g, centred)
    # For each share of delta that the windows may lose: it, and the ratio left to the rest.
    parts = [
        (delta * share, gaussian_mu(epsilon, delta * (1.0 - share) / (1.0 - delta * share)))
        for share in TAIL_SHARES
    ]

    def excess(bits: int) -> float:
        """Least ratio of the account and the budget over the shares."""
        account = _account(adding * bits, norm, returning, coordinates)
        return min(account.mu(tails) / mu for tails, mu in parts)

    return g, smallest_bits((norm / whole) ** 2 / VARIANCE / adding, 1.0, excess)


def _down(value: float) -> str:
    """Format with three significant digits, never above the value."""
    down = Context(prec=3, rounding=ROUND_FLOOR).create_decimal(Decimal(repr(value)))
    return f"{float(down):g}"
