"""Shuffled vector sums of separate batches of users: P_Vec without a tree.

The server adds up the noisy sums of the batches. `VectorBatches` computes its privacy from the
number of noise bits, whatever rule chose this number.
"""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal

import msgspec

from fastfed._cache import cached
from fastfed._validate import InputError, boolean, choice, integer, number
from fastfed.privacy.accounting.binomial import (
    TAIL_SHARES,
    Node,
    VectorSumAccount,
    hockey_stick_lower_bound,
)
from fastfed.privacy.accounting.gdp import gaussian_mu
from fastfed.privacy.certificate import Condition, Side, noise_claim
from fastfed.privacy.mechanisms.binomial_tree import (
    EXACT_LEVELS,
    VARIANCE,
    coordinates_of,
    counted_users,
    smallest_bits,
    unproven_text,
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

#: The logarithm in the number of noise bits of published code: that of chowdhury-zhou-2022, and
#: that of the later zhou-chowdhury-2024.
PUBLISHED_LOGS = ("ln(d/delta)", "ln(d^2/delta)")

_ALL_USERS_HONEST = (
    "all users of every batch add their noise bits, and none tells the server which bits are noise "
    "(taken on trust)"
)


class VectorBatches(msgspec.Struct, frozen=True, kw_only=True):
    """Vector sums of x y and x x^T over batches of users, which the server adds up.

    Parameters
    ----------
    batch_size : int
        B, the number of users in a batch.
    dimension : int
        d; a vector has s = d + d (d + 1)/2 coordinates (the matrix on and above its diagonal).
    g : tuple of int
        Encoding levels per unit of the bias stream and of the covariance stream.
    b : int
        Number of noise bits that each user adds to each coordinate. A coordinate of a batch thus
        has noise Bin(B b, 1/4).
    returning : int
        M0, the largest number of batches that one user takes part in, once in each batch.
    calibration : {"exact", "theorem", "published-code"}
        The rule that chose g and b.
    budget : Budget
        The requested budget.
    source : str
        Authors and year of the paper that states the noise rule.
    vector_scale : float
        The factor of the published code on the number of noise bits.
    honest_fraction : float
        h; the account counts the noise bits of floor(h B) users only.
    local : bool
        True if the claim is local privacy (chowdhury-zhou-2022, Corollary C.3): then the account
        counts only the user's own b noise bits.
    centred : Centred, optional
        Bounds of records whose last feature is a constant that the code writes.

    Raises
    ------
    InputError
        For values out of range.

    Notes
    -----
    Guarantee: consider one user with at most M0 records (x, y), ||x||_2 <= 1 and |y| <= 1. All
    batches together are (exact(), budget.delta)-private for every observer of shuffled messages or,
    if ``local``, of the user's messages. The proof is in `fastfed.privacy.accounting.binomial`. A
    message has 2 g + b bits per coordinate. Nobody may learn which of them are noise, so only the
    number of ones may be visible. A message that is not shuffled contains only this number.
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
        """Check every field. Raise InputError for a value out of range."""
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
        _check_local(self.local, self.honest_fraction)

    @property
    def relation(self) -> str:
        """Return the budget's relation, which is the default ``relation`` of all methods."""
        return self.budget.relation

    @property
    def coordinates(self) -> int:
        """Return s = d + d (d + 1)/2, the number of coordinates of a vector."""
        return coordinates_of(self.dimension)

    @property
    def trials(self) -> int:
        """Return B b, the number of noise bits of a batch in one coordinate."""
        return self.batch_size * self.b

    @property
    def counted(self) -> int:
        """Return the number of noise bits of a batch that the account counts in one coordinate.

        It is floor(h B) b, where h is ``honest_fraction`` and B is ``batch_size``. If ``local`` is
        true, it is b.
        """
        return self.b * (1 if self.local else counted_users(self.honest_fraction, self.batch_size))

    @property
    def noise_std(self) -> tuple[float, float]:
        """Return the noise std of one batch, in the units of the sums.

        The two numbers are for a bias and for a covariance coordinate.
        """
        std = math.sqrt(VARIANCE * self.trials)
        return std / self.g[0], std / self.g[1]

    @property
    def rounding_std(self) -> tuple[float, float]:
        """Return the largest std that randomised rounding adds to one batch, in units of the sums.

        The two numbers are for a bias and for a covariance coordinate.
        """
        # Rounding to one of two neighbouring levels has a std of at most half a level.
        std_in_levels = math.sqrt(self.batch_size) / 2.0
        return std_in_levels / self.g[0], std_in_levels / self.g[1]

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the noise std of one batch by the name of the sum, without the rounding error."""
        bias, covariance = self.noise_std
        return {"bias": bias, "covariance": covariance, "covariance_diagonal": covariance}

    def norm(self, relation: str | None = None) -> float:
        """Return S, the largest L2 change of one record's encoded vector, in encoding levels."""
        relation = named_relation(relation, self.budget)
        return _norm(relation, self.dimension, self.g, self.centred)

    def mu(self, relation: str | None = None) -> float:
        """Return the GDP parameter mu of Gaussian noise with the variance of the binomial noise.

        It is only an approximation. `exact` returns the proven epsilon. mu^2 = M0 16 S^2 / (3 N),
        where M0 is ``returning``, N is `counted` and S is `norm` under ``relation`` (default: the
        budget's relation).
        """
        if self.counted == 0:
            return math.inf
        return math.sqrt(self.returning / (VARIANCE * self.counted)) * self.norm(relation)

    def account(self, relation: str | None = None) -> VectorSumAccount:
        """Return the proven account of all batches of one user."""
        return self._account(self.counted, relation)

    def _account(self, trials: int, relation: str | None = None) -> VectorSumAccount:
        """Return the account of all batches of one user if ``trials`` noise bits count in each."""
        return _account(trials, self.norm(relation), self.returning, self.coordinates)

    def exact(self, delta: float | None = None, relation: str | None = None) -> float:
        """Return the proven epsilon of all releases at ``delta``; infinite if none is proven.

        ``relation`` is the neighbour relation. By default, ``delta`` and ``relation`` are those of
        the budget.
        """
        return self.account(relation).epsilon(self.budget.delta if delta is None else delta)

    def local_epsilon(self, delta: float | None = None) -> float:
        """Return the proven epsilon towards an observer of the user's bits, at ``delta``.

        Only the user's noise bits count. The default is the budget's delta. The result is infinite
        if no finite epsilon is proven.
        """
        return self._account(self.b).epsilon(self.budget.delta if delta is None else delta)

    def hockey_stick_lower_bound(self, epsilon: float) -> float:
        """Return a lower bound of the true delta of one batch at epsilon >= 0.

        It is the largest hockey-stick divergence of the released coordinates for a few pairs of
        neighbouring records, with the counted noise bits and rounding. A claim of a smaller delta
        is therefore wrong. For more than 2^28 counted bits nothing is computed, and the result
        is 0.
        """
        epsilon = number("epsilon", epsilon, at_least=0)
        return hockey_stick_lower_bound(
            self.counted, self.g, self.dimension, self.relation, epsilon
        )

    @property
    def remark(self) -> str:
        """Return a remark on the rule that chose the noise, for the certificate."""
        if self.calibration == "theorem":
            epsilon, delta = budget_per_batch(self.budget, self.returning)
            verdict = "met" if epsilon <= 15.0 and delta < 0.5 else "not met"
            per_batch = " for each batch" if self.returning > 1 else ""
            return (
                f"Theorem C.1 needs epsilon = {epsilon:.4g} <= 15 and delta = {delta:.4g} < 1/2"
                f"{per_batch}: {verdict}"
            )
        if self.calibration == "published-code":
            return "no theorem states these constants"
        return ""

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        budget = self.budget
        proven = self.exact()
        notes = ["computed"]
        if proven == math.inf:
            notes = ["computed: none is proven, the noise is too small"]
        if (
            proven > budget.epsilon
            and (lower_bound := self.hockey_stick_lower_bound(budget.epsilon)) > budget.delta
        ):
            notes.append(
                f"its delta at epsilon {budget.epsilon:g} is at least {_round_down(lower_bound)}"
            )
        if self.remark:
            notes.append(self.remark)
        note = "; ".join(notes)
        claim = noise_claim(budget, proven, "proven", note, unproven_text(budget))
        return [*self._trust(), claim]

    def _trust(self) -> list[Condition]:
        """Return the assumptions about the other users and about participation."""
        texts = []
        if not self.local and self.honest_fraction == 1.0:
            texts.append(f"{_ALL_USERS_HONEST}; honest_fraction < 1 assumes fewer such users")
        elif not self.local:
            texts.append(
                f"at least the fraction {self.honest_fraction:g} of the users of every batch add "
                "their noise bits, and do not tell the server which bits are noise (taken on trust)"
            )
        return [
            *(Condition(text, True) for text in texts),
            *participation_conditions(self.returning),
        ]

    def sides(self) -> list[Side]:
        """Return the guarantee of the same noise under another trust model, at the budget's delta.

        If ``local``, it is the guarantee with a trusted shuffler, otherwise that without one. The
        list is empty if no finite epsilon is proven.
        """
        returning = tuple(participation_conditions(self.returning))
        if self.local:
            epsilon = self._account(self.trials).epsilon(self.budget.delta)
            model = "shuffle: with a trusted shuffler of each batch in between"
            trust = (Condition(_ALL_USERS_HONEST, True), *returning)
            proven = Side(model, "chowdhury-zhou-2022, Corollary C.3", epsilon, trust)
        else:
            model, source = "local: nobody but the user is trusted", "Remark 3.7"
            epsilon = self.local_epsilon()
            proven = Side(model, f"chowdhury-zhou-2022, {source}", epsilon, returning)
        return [proven] if math.isfinite(proven.epsilon) else []


class UnequalBatches(msgspec.Struct, frozen=True):
    """Vector sums of batches of different sizes, each with independent noise.

    Parameters
    ----------
    batches : tuple of VectorBatches
        The batches, all with the same dimension, budget and trust model.

    Raises
    ------
    InputError
        If users take part in several batches: no account is proven for that.

    Notes
    -----
    Guarantee: for a user of one batch, the guarantee of the batch with the largest epsilon. Other
    batches depend on this user only through actions, which depend on releases and so are
    post-processing.
    """

    batches: tuple[VectorBatches, ...]

    def __post_init__(self) -> None:
        """Raise InputError if a user may take part in several batches."""
        if any(batch.returning != 1 for batch in self.batches):
            raise InputError(
                "returning must be 1 where batches of a vector sum differ in size: no account is "
                "proven for users of several such batches"
            )

    @property
    def worst(self) -> VectorBatches:
        """Return the `VectorBatches` of the batch size with the largest epsilon."""
        return max(self.batches, key=VectorBatches.exact)

    @property
    def budget(self) -> Budget:
        """Return the requested budget."""
        return self.batches[0].budget

    @property
    def source(self) -> str:
        """Return the source of the rule that chose the noise, with authors and year."""
        return self.batches[0].source

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return the noise standard deviations of the largest batch, by the name of the sum."""
        return max(self.batches, key=lambda batch: batch.batch_size).noise_stds

    def exact(self, delta: float | None = None) -> float:
        """Return the proven epsilon of all releases, which is that of the worst batch."""
        return max(batch.exact(delta) for batch in self.batches)

    def conditions(self) -> list[Condition]:
        """Return the assumptions and the claim's condition of the worst batch, see `worst`."""
        return self.worst.conditions()

    def sides(self) -> list[Side]:
        """Return the `sides` of the batch whose epsilon under the other trust model is the largest.

        The list is empty if some batch has no proven finite epsilon there.
        """
        sides_by_batch = [batch.sides() for batch in self.batches]
        if not all(sides_by_batch):
            return []
        return max(sides_by_batch, key=lambda sides: sides[0].epsilon)


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
        The requested budget, with delta > 0 and unit "user" or "item".
    batch_size, dimension : int
        The number B of users in a batch, and the length d of a feature vector.
    returning : int
        M0, the largest number of batches of one user.
    local : bool
        True if the budget is for local privacy, without a shuffler.
    calibration : {"exact", "theorem", "published-code"}
        The rule, with n = batch_size (1 if local) and G = max(ceil(2 sqrt n), d, 4):

        - "theorem": g = (G, G), b = ceil(24e4 G^2 ln(4 (d^2 + 1)/delta)^2 / (epsilon^2 n))
          (chowdhury-zhou-2022, Theorem C.1; Corollary C.3 if local). For returning = M0 > 1, at the
          budget of one batch: epsilon / (2 sqrt(2 M0 ln(2/delta))) and delta / (2 M0). This is
          Theorem E.5 there before its constant is rounded up.
        - "published-code": b = ceil(vector_scale G^2 ln(d/delta)^2 / (epsilon^2 B)), or with
          ln(d^2/delta), and g = (G, round(sqrt2 G)). In that code, G levels encode features of
          norm sqrt2, in the bias stream (x y) and in the covariance stream (x x^T). This noise
          often does not meet the budget; see ``conditions()``.
        - "exact": the smallest b for which the budget is proven, with
          g_1 = ceil(g_0 / covariance_ratio): a ratio below 1 means less noise in the covariance
          stream. g_0 and g_1 are at least G. If needed, g_0 is raised, so that the std of the
          counted noise is at least 150 levels and the skewness of coarse encodings is negligible. A
          larger g does not change the noise in units of the sums, only the message length 2 g + b,
          where b grows like g^2.
    vector_scale, published_log : float, str
        For "published-code" only, which needs local=False and returning=1.
    honest_fraction : float
        h in (0, 1]. The account counts the noise of floor(h B) users only, and "exact" adds noise
        to make up for the others.
    covariance_ratio : float
        Noise of the covariance stream over noise of the bias stream; other than 1 for "exact" only.

    Returns
    -------
    VectorBatches
        The calibrated mechanism.

    Raises
    ------
    InputError
        For delta = 0, for the unit "silo", for options that the calibration does not allow, for
        honest_fraction < 1 if local, and if honest_fraction leaves no user.
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
    _check_options(calibration, vector_scale, published_log, local, returning)
    check_exact_ratio(calibration, covariance_ratio)
    _check_local(local, honest_fraction)
    check_gaussian_budget(budget)
    if (honest := counted_users(honest_fraction, batch_size)) == 0:
        raise InputError(
            f"honest_fraction must leave at least 1 of {batch_size} users, got {honest_fraction:g}"
        )
    # Find g, the encoding levels of both streams, and b, the number of noise bits. "exact" searches
    # for them; the other rules are formulas of the paper or of its code.
    users = 1 if local else batch_size
    default_levels = usual_levels(users, d)
    levels = default_levels, default_levels
    if calibration == "exact":
        levels, bits = _least_noise(
            budget,
            1 if local else honest,
            default_levels,
            d,
            returning,
            covariance_ratio,
            centred,
        )
    elif calibration == "theorem":
        epsilon, batch_delta = budget_per_batch(budget, returning)
        factor = 24e4 * (math.log(4 * (d * d + 1)) - math.log(batch_delta)) ** 2 / epsilon**2
        bits = max(math.ceil(factor * default_levels * default_levels / users), 1)
    else:
        log_argument = d if published_log == "ln(d/delta)" else d * d
        factor = (
            vector_scale
            * (math.log(log_argument) - math.log(budget.delta)) ** 2
            / budget.epsilon**2
        )
        bits = max(math.ceil(factor * default_levels * default_levels / users), 1)
        levels = default_levels, round(math.sqrt(2.0) * default_levels)
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


def _check_options(calibration: str, scale: float, log: str, local: bool, returning: int) -> None:
    """Raise InputError for options that the calibration does not allow."""
    if calibration == "published-code":
        checks = [
            ("local", "false", "true", local),
            ("returning", "1", f"{returning}", returning != 1),
        ]
    else:
        default_log = PUBLISHED_LOGS[0]
        checks = [
            ("vector_scale", "1", f"{scale:g}", scale != 1.0),
            ("published_log", f'"{default_log}"', f'"{log}"', log != default_log),
        ]
    for name, allowed, got, is_wrong in checks:  # the texts for the message come first
        if is_wrong:
            raise InputError(
                f'{name} must be {allowed} when calibration is "{calibration}", got {got}'
            )


def _check_local(local: bool, honest_fraction: float) -> None:
    """Raise InputError if the claim is local and ``honest_fraction`` is below 1."""
    if local and honest_fraction != 1.0:
        raise InputError(
            "honest_fraction must be 1 when the claim is local, because the noise of other users "
            f"does not count then, got {honest_fraction:g}"
        )


def _source(calibration: str, local: bool, returning: int, log: str) -> str:
    """Return the paper and theorem of a calibration rule, for the certificate."""
    if calibration == "exact":
        return (
            "proven accounting of binomial noise (chowdhury-zhou-2022, Algorithms 5 to 7, with "
            "the least noise bits that give the budget)"
        )
    if calibration == "published-code":
        suffix = (
            "" if log == PUBLISHED_LOGS[0] else f", with {log} of the later zhou-chowdhury-2024"
        )
        return f"constants of the published experiment code of chowdhury-zhou-2022{suffix}"
    name = "Corollary C.3" if local else "Theorem C.1"
    at_batch_budget = " at the budget of one batch of Theorem E.5" if returning > 1 else ""
    return f"chowdhury-zhou-2022, {name}{at_batch_budget}"


def _norm(
    relation: str, dimension: int, g: tuple[int, int], centred: Centred | None = None
) -> float:
    """Return the largest L2 change of one record's encoded vector, in encoding levels.

    ``g`` holds the encoding levels per unit of x y and of x x^T.
    """
    if centred is not None:
        return centred.joint(relation, "iid", 1.0 / g[0], 1.0 / g[1])
    return joint_sensitivity(relation, "iid", dimension, bias_std=1.0 / g[0], cov_std=1.0 / g[1])


def _account(trials: int, norm: float, returning: int, coordinates: int) -> VectorSumAccount:
    """Return the account of one user, all of whose records change: one record in each batch.

    ``trials`` is the number of noise bits that count in one batch and coordinate, ``norm`` the
    largest L2 change of an encoded record, and ``returning`` the number M0 of the user's batches.
    """
    node = Node(trials, norm, squares=float(returning), count=returning)
    return VectorSumAccount([node], coordinates)


@cached
def _least_noise(
    budget: Budget,
    honest_users: int,
    default_levels: int,
    dimension: int,
    returning: int,
    ratio: float,
    centred: Centred | None,
) -> tuple[tuple[int, int], int]:
    """Return the encoding levels g, and the least number b of noise bits that meets the budget.

    The account counts the noise bits of ``honest_users`` users in each of ``returning`` batches.
    ``ratio`` is the noise std in the sum of x x^T divided by that in the sum of x y.
    """
    epsilon, delta = budget.epsilon, budget.delta
    coordinates = coordinates_of(dimension)
    if centred is None:
        record_sensitivity = joint_sensitivity(budget.relation, "iid", dimension, cov_std=ratio)
    else:
        record_sensitivity = centred.joint(budget.relation, "iid", 1.0, ratio)
    # Raise g until the noise std, which is g sensitivity / mu, is at least EXACT_LEVELS.
    mu_per_batch = gaussian_mu(epsilon, delta) / math.sqrt(returning)
    g_bias = math.ceil(
        max(default_levels * max(1.0, ratio), EXACT_LEVELS * mu_per_batch / record_sensitivity)
    )
    g = g_bias, math.ceil(g_bias / ratio)
    norm = _norm(budget.relation, dimension, g, centred)
    # A share of delta covers the tails of the noise. For each share: the probability of the tails,
    # and the largest mu with which the remaining delta meets the budget.
    tails_and_mu = [
        (delta * share, gaussian_mu(epsilon, delta * (1.0 - share) / (1.0 - delta * share)))
        for share in TAIL_SHARES
    ]

    def excess(bits: int) -> float:
        """Return the proven mu divided by the allowed mu; at most 1 if ``bits`` are enough."""
        account = _account(honest_users * bits, norm, returning, coordinates)
        return min(account.mu(tails) / mu for tails, mu in tails_and_mu)

    # First guess: with this number of bits, Gaussian noise of the same variance would have the GDP
    # parameter mu_per_batch in each batch.
    bits = smallest_bits((norm / mu_per_batch) ** 2 / VARIANCE / honest_users, 1.0, excess)
    # Every caller computes this epsilon next. Cache it now, while the probit scale is in memory.
    _account(honest_users * bits, norm, returning, coordinates).epsilon(delta)
    return g, bits


def _round_down(value: float) -> str:
    """Return the text of a number with three significant digits, rounded down."""
    rounded = Context(prec=3, rounding=ROUND_FLOOR).create_decimal(Decimal(repr(value)))
    return f"{float(rounded):g}"
