"""One bit from each user: the reward, rounded to a bit at random and flipped at random.

Randomised response (Warner 1965) on a bounded reward. The user's device draws two uniform 53-bit
integers u and v. The bit is 1 if u < 2^53 (y - low) / (high - low), and it is flipped if v < flips.

Privacy. Let q = flips / 2^53 < 1/2. Whatever the reward is, each of the two messages has a
probability in [q, 1 - q]. So the ratio of its probabilities under two rewards is at most
(1 - q) / q: the message is (ln((1 - q) / q), 0)-private under replacement of the reward, towards
everybody who sees it. How y was rounded plays no part in this, and no float is released.

Several messages of one user. For the pair of rewards ``low`` and ``high``, the privacy loss of one
message is +e with probability 1 - q and -e otherwise, e = ln((1 - q) / q). The message of any other
reward is a mixture of the messages of ``low`` and ``high``, so this pair dominates all pairs of
rewards. Products of dominating pairs dominate adaptive compositions, so M0 messages have at most
the privacy loss e (2 Bin(M0, 1 - q) - M0).

Estimate. The value (bit - q) / (1 - 2 q), scaled to [low, high], is an unbiased estimate of the
reward. It takes two values, (high - low) / (1 - 2 q) apart. So by Hoeffding's lemma its noise is
sub-Gaussian of scale (high - low) / (2 (1 - 2 q)), which covers the reward's own noise.
"""

from __future__ import annotations

import math
import secrets
from decimal import Decimal, localcontext

import msgspec

from fastfed._validate import InputError, choice, integer, reward_number
from fastfed.privacy.accounting.privacy_loss import composed_epsilon, largest_share
from fastfed.privacy.certificate import Condition, noise_claim
from fastfed.privacy.mechanisms.reward_release import PUBLIC_CONTEXTS
from fastfed.privacy.sensitivity import Budget, named_delta

#: The flip probability is an integer divided by this number.
FLIP_UNITS = 2**53
#: If one bit may have an epsilon above this number, its flip probability is the least, 1 / 2^53.
_MOST = 40
_SOURCE = "randomised response on a reward rounded to a bit (Warner 1965), exact for the bits sent"
#: The assumption about the device, on which the guarantee rests.
DEVICES = Condition(
    "each user's own device rounds and flips the bit, and sends nothing else about the reward "
    "(taken on trust)",
    True,
)
#: Decimal digits of the accounts, and a relative bound on their rounding errors.
_DIGITS, _ROUNDING = 50, Decimal("1e-40")


def flips_of(epsilon: float, bits: int = 1) -> int:
    """Return 2^53 times the smallest flip probability at which ``bits`` bits are epsilon-private.

    Parameters
    ----------
    epsilon : float
        Epsilon > 0 of all bits of one user together.
    bits : int, default 1
        Number of bits that share epsilon equally.

    Returns
    -------
    int
        2^53 times the probability of a flip: 2^53 / (1 + e^(epsilon / bits)), rounded up, and at
        least 1.

    Raises
    ------
    InputError
        If epsilon is so small that every bit would be a fair coin.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        bit_epsilon = Decimal(epsilon) / bits
        flips = 1 if bit_epsilon > _MOST else max(1, int(FLIP_UNITS / (1 + bit_epsilon.exp())))
    # `int` rounds the quotient down, which may be one flip too few.
    while epsilon_of(flips, bits) > epsilon:
        flips += 1
    if flips >= FLIP_UNITS // 2:
        raise InputError(
            f"epsilon of one bit must be at least 1e-15, got {float(bit_epsilon):g}: the bit "
            "would be a fair coin"
        )
    return flips


def epsilon_of(flips: int, bits: int = 1) -> float:
    """Return the pure epsilon (delta = 0) of ``bits`` bits of one user, rounded up to float64.

    It is bits * ln((2^53 - flips) / flips), where flips / 2^53 is the probability of a flip.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        exact = bits * (Decimal(FLIP_UNITS - flips) / flips).ln() * (1 + _ROUNDING)
        rounded = float(exact)
        return rounded if Decimal(rounded) >= exact else math.nextafter(rounded, math.inf)


def bit_values(flips: int, low: float, high: float) -> tuple[float, float]:
    """Return the unbiased estimates of a reward in [low, high] from bit 0 and from bit 1.

    ``flips`` is 2^53 times the probability of a flip.
    """
    flip_probability = flips / FLIP_UNITS
    distance = (high - low) / (1.0 - 2.0 * flip_probability)
    return low - distance * flip_probability, low + distance * (1.0 - flip_probability)


def bit_scale(flips: int, low: float, high: float) -> float:
    """Return the sub-Gaussian scale of `bit_values`: half the distance of the two estimates."""
    return (high - low) / (2.0 * (1.0 - 2.0 * flips / FLIP_UNITS))


def bit_to_send(reward: float, flips: int) -> int:
    """Return the random bit that a user's device sends instead of a reward.

    Parameters
    ----------
    reward : float
        In [0, 1]. Values outside are clipped.
    flips : int
        The plan's flip probability, in units of 2^-53.

    Returns
    -------
    int
        0 or 1, drawn with the operating system's random bits.

    Raises
    ------
    InputError
        If a value is out of range. The message does not quote the reward.

    Notes
    -----
    Guarantee: pure epsilon for the reward, towards everybody who sees the bit. The epsilon is
    ln((2^53 - flips) / flips), for unit "reward" and relation "replace".
    """
    integer("flips", flips, at_least=1, at_most=FLIP_UNITS // 2 - 1)
    try:
        clipped = min(max(reward_number("reward", reward), 0.0), 1.0)
    except InputError:
        raise InputError("reward must be a finite number, got something else") from None
    bit = int(secrets.randbits(53) < clipped * FLIP_UNITS)
    return bit ^ int(secrets.randbits(53) < flips)


class UserBits(msgspec.Struct, frozen=True):
    """The mechanism in which users send a bit, flipped at random, for each reward.

    Parameters
    ----------
    flips : int
        2^53 times the probability of a flip, in 1..2^52 - 1.
    budget : Budget
        The requested budget, unit "reward", relation "replace".
    returning : int, default 1
        M0, the largest number of rewards of one user.

    Notes
    -----
    Guarantee: pure epsilon for the rewards of one user, towards everybody who sees the bits. The
    proof is at the top of this module.
    """

    flips: int
    budget: Budget
    returning: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for numbers for which no account is proven."""
        integer("flips", self.flips, at_least=1, at_most=FLIP_UNITS // 2 - 1)
        integer("returning", self.returning, at_least=1)
        choice("unit", self.budget.unit, ("reward",))
        choice("relation", self.budget.relation, ("replace",))

    @property
    def calibration(self) -> str:
        """Return the rule that chose the noise: "exact"."""
        return "exact"

    @property
    def source(self) -> str:
        """Return the source of the rule that chose the noise, with authors and year."""
        return _SOURCE

    @property
    def noise_stds(self) -> dict[str, float]:
        """Return an empty dict: no noise is added to sums."""
        return {}

    def exact(self, delta: float | None = None) -> float:
        """Return the epsilon of all bits of one user, at delta (default: the budget's)."""
        target_delta = named_delta(delta, self.budget)
        pure = epsilon_of(self.flips, self.returning)
        if target_delta == 0.0:
            return pure
        part = ("randomized-response", epsilon_of(self.flips), self.returning)
        return min(pure, composed_epsilon((part,), target_delta))

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        claim = noise_claim(self.budget, self.exact(), note="computed")
        text = f"a user has at most {self.returning} rewards at all silos together (taken on trust)"
        returning = [Condition(text, True)] if self.returning > 1 else []
        return [PUBLIC_CONTEXTS, DEVICES, *returning, claim]


def calibrate_bits(budget: Budget, returning: int = 1) -> UserBits:
    """Return the mechanism with the smallest flip probability that meets the budget.

    Parameters
    ----------
    budget : Budget
        Unit "reward", relation "replace". delta = 0 gives a pure guarantee. A delta above 0 reduces
        the flips mainly for users with several rewards.
    returning : int, default 1
        M0, the largest number of rewards of one user.

    Raises
    ------
    InputError
        For a different unit or relation, and if epsilon is so small that bits carry no information.
    """
    if budget.delta > 0.0:
        # The largest epsilon that each of the user's bits may have.
        bit_epsilon = largest_share(budget.epsilon, budget.delta, "randomized-response", returning)
        # `exact` may differ in its last digits from the account in `largest_share`. If it exceeds
        # the budget, reduce the epsilon of a bit by a small fraction.
        for margin in (0.0, 1e-7, 1e-3):
            mechanism = UserBits(flips_of((1.0 - margin) * bit_epsilon), budget, returning)
            if mechanism.exact() <= budget.epsilon:
                return mechanism
    return UserBits(flips_of(budget.epsilon, returning), budget, returning)
