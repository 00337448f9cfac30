"""The number of ones among the flipped bits of a batch, counted by a shuffler.

All users of a batch get the same action. Each user sends a flipped bit of the reward, as in
`user_bit`, to a shuffler, which forwards only the number of ones of the batch.

Privacy. Let q = flips / 2^53, p = 1 - q, and let the batch have B users. Given the bits before the
flips, the number of ones is W + b: b is the user's flipped bit, and W is the sum of k bits that are
1 with probability p and B - 1 - k bits that are 1 with probability q, if k of the other users have
the bit 1. Let H(k) = sum_n (P_1(n) - e^epsilon P_0(n))_+, where P_1 and P_0 are the laws of W + b
if the user's bit before the flip is 1 and 0. Then the number of ones is (epsilon, delta)-private
under replacement of one reward, with delta = max_k H(k), and no smaller delta holds.

1. Rewards between low and high, scaled to [0, 1]. The law of a user's message is a mixture of the
   laws for the bits 0 and 1. The hockey-stick divergence is jointly convex, so it is largest if the
   other users' rewards are 0 or 1, that is, bits. For the user's rewards y > y' in [0, 1], P_y and
   P_y' have the part y' P_1 + (1 - y) P_0 in common, and the remaining parts are (y - y') P_1 and
   (y - y') P_0. So the divergence is at most that of P_1 and P_0.
2. The other direction, from P_1 to P_0, is H(B - 1 - k): exchange the names of the bits.
3. No single k gives the maximum for all q and epsilon. For q = 0.1 and B = 3, H(k) is largest for
   k = 1 at epsilon = 0, and for k = 2 at epsilon = 1. So the account takes the maximum over k.
4. Fewer users are not better. With one user more, the number of ones has an independent bit added,
   which is post-processing. So the H of B users and k ones is at most that of B - 1 users and k
   ones, and that of B - 1 users and k - 1 ones. The account uses this twice. A plan with batches of
   different sizes has the delta of its smallest batch. And for large B, s users are left out: the
   maximum over k' = 0, s + 1, 2 (s + 1), ... of B - s users bounds H(k) for all k of B users,
   because each k has a k' in [k - s, k].
5. A larger flip probability does not increase delta: flipping each bit once more, with probability
   r, maps N ones to Bin(N, 1 - r) + Bin(B - N, r), which is post-processing.

Each user is in one batch, and batches are independent given the actions, so the guarantee of one
batch holds for all batches together (parallel composition, also if later actions depend on earlier
counts). Even if the shuffler cannot be trusted, each bit has the pure epsilon of `user_bit`.
"""

from __future__ import annotations

import math

import numpy as np

from fastfed._cache import cached
from fastfed._validate import integer, number
from fastfed.privacy.certificate import Condition, Side, noise_claim
from fastfed.privacy.mechanisms.reward_release import PUBLIC_CONTEXTS
from fastfed.privacy.mechanisms.user_bit import DEVICES, FLIP_UNITS, UserBits, epsilon_of, flips_of
from fastfed.privacy.sensitivity import Budget, named_delta

#: The account treats a larger batch as one of `_MAX_USERS` users, and evaluates H(k) for about
#: `_GRID` values of k.
_MAX_USERS, _GRID = 2**15, 128
#: Bound on the relative rounding errors of probabilities, and the share of delta that covers
#: small probabilities which `_laws` drops.
_ROUNDING, _LEFT_OUT = 1e-10, 1e-9
#: For a delta below this number, the account is that of single bits, without the shuffler.
_MIN_DELTA = 1e-200
_SOURCE = "the number of ones of a batch of randomised responses (Warner 1965), exact for counts"


@cached
def epsilon_of_count(flips: int, users: int, delta: float) -> float:
    """Return the epsilon of the number of ones among a batch's flipped bits, at delta.

    Parameters
    ----------
    flips : int
        2^53 times the probability of a flip, in 1..2^52 - 1.
    users : int
        B >= 1, the number of users of the batch, including the user who is protected.
    delta : float
        In [0, 1).

    Returns
    -------
    float
        An upper bound that includes rounding errors. For B <= 128 it exceeds the exact epsilon by
        at most a relative 1e-6. For more users, it exceeds the exact epsilon of a batch with 1 %
        fewer users by at most a relative 1e-6. For more than 32 768 users, it is the result for
        32 768 users.
    """
    pure = epsilon_of(flips)
    if delta < _MIN_DELTA:
        return pure
    laws = _laws(flips / FLIP_UNITS, min(users, _MAX_USERS), delta)
    if _delta_bound(laws, 0.0, delta) <= delta:
        return 0.0
    low, high = 0.0, pure
    while high - low > 1e-12 * high:
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        meets = _delta_bound(laws, middle, delta) <= delta
        low, high = (low, middle) if meets else (middle, high)
    return high


class BitCounts(UserBits, frozen=True):
    """The numbers of ones among the flipped bits of all users of a batch.

    Parameters
    ----------
    flips, budget, returning
        See `UserBits`. ``returning`` must be 1.
    users : int
        B, the number of users of the smallest batch.

    Notes
    -----
    Guarantee: (epsilon, delta)-DP for the reward of one user, towards everybody who sees the
    numbers of ones of all batches. The shuffler is trusted. Unit "reward", relation "replace". The
    proof is at the top of this module.
    """

    users: int = 1

    def __post_init__(self) -> None:
        """Raise InputError for numbers for which no account is proven."""
        super().__post_init__()
        integer("users", self.users, at_least=1)
        integer("returning", self.returning, at_least=1, at_most=1)

    @property
    def source(self) -> str:
        """Return the rule that chose the flip probability, with authors and year."""
        return _SOURCE

    def exact(self, delta: float | None = None) -> float:
        """Return the epsilon of a batch's number of ones, at delta (default: the budget's)."""
        return epsilon_of_count(self.flips, self.users, named_delta(delta, self.budget))

    def conditions(self) -> list[Condition]:
        """Return the assumptions of the account, and the condition that the claim holds."""
        counted = Condition(
            f"at least {self.users} users of each batch, all with the same action, send bits that "
            "are flipped as the plan states, and reveal nothing about their flips (taken on trust)",
            True,
        )
        claim = noise_claim(self.budget, self.exact(), note="computed")
        return [PUBLIC_CONTEXTS, DEVICES, counted, claim]

    def sides(self) -> list[Side]:
        """Return the guarantee towards the shuffler, which does not depend on other users."""
        return [
            Side(
                "local: nobody is trusted, not even the shuffler",
                "randomised response (Warner 1965)",
                epsilon_of(self.flips),
                (PUBLIC_CONTEXTS, DEVICES),
            )
        ]


def calibrate_counts(budget: Budget, users: int) -> BitCounts:
    """Return the mechanism of smallest flip probability whose number of ones meets the budget.

    Parameters
    ----------
    budget : Budget
        Unit "reward", relation "replace", delta > 0.
    users : int
        B, the number of users of the smallest batch.

    Returns
    -------
    BitCounts
        Its ``flips`` (2^53 times the flip probability) is at most a relative 1e-6, or 1, above the
        least value with which the account meets the budget.

    Raises
    ------
    InputError
        For a different unit or relation, and if delta is 0 or epsilon too small.
    """
    number("delta", budget.delta, above=0.0, below=1.0)
    return BitCounts(_least_flips(budget.epsilon, budget.delta, users), budget, users=users)


@cached
def _least_flips(epsilon: float, delta: float, users: int) -> int:
    """Return a ``flips`` with which a batch of ``users`` users is (epsilon, delta)-private.

    ``flips`` is 2^53 times the probability of a flip. The result is at most a relative 1e-6, or 1,
    above the least such value.
    """
    # In every step, flips = `low` does not meet the budget and flips = `high` does.
    low, high = 0, flips_of(epsilon)
    while high - low > max(1, int(1e-6 * high)):
        # The geometric mean halves the distance of the logarithms: the result may be a small
        # fraction of `high`.
        middle = max(low + 1, math.isqrt(max(low, 1) * high))
        low, high = (low, middle) if _meets(epsilon, delta, middle, users) else (middle, high)
    return high


def users_for(budget: Budget, flips: int) -> int:
    """Return the least number of users of a batch with which the number of ones meets the budget.

    ``flips`` is 2^53 times the probability of a flip. The result is 1 if single bits meet the
    budget. It is 32 768 if no smaller batch meets the budget, whether or not this one does: the
    account treats larger batches as batches of 32 768 users.
    """
    return _least_users(budget.epsilon, budget.delta, flips)


@cached
def _least_users(epsilon: float, delta: float, flips: int) -> int:
    """Return the result of `users_for` for the budget (epsilon, delta), cached."""
    low, high = 0, _MAX_USERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _meets(epsilon, delta, flips, middle) else (middle, high)
    return high


def _meets(epsilon: float, delta: float, flips: int, users: int) -> bool:
    """Return True if the number of ones among a batch's flipped bits is (epsilon, delta)-private.

    ``flips`` is 2^53 times the probability of a flip, and ``users`` the batch's number of users.
    """
    if epsilon_of(flips) <= epsilon:
        return True
    if delta < _MIN_DELTA:
        return False
    laws = _laws(flips / FLIP_UNITS, min(users, _MAX_USERS), delta)
    # The result of `epsilon_of_count` may exceed the least epsilon that meets delta by a relative
    # 1e-12. Checking a slightly smaller epsilon ensures that this result is at most epsilon too.
    return _delta_bound(laws, epsilon * (1.0 - 1e-11), delta) <= delta


def _laws(q: float, users: int, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the laws P_1 and P_0 of the proof in the module docstring, with a row for each k.

    P_1 and P_0 are the distributions of the number of ones if the user's bit is 1 and 0, in two
    arrays. ``q`` is the probability of a flip. k is the number of the other users whose bit is 1.
    It takes about `_GRID` values only, because the laws are those of a batch with slightly fewer
    users, as in item 4 of the proof. In each row, probabilities that add up to at most `_LEFT_OUT`
    times ``delta`` are dropped.
    """
    fewer = (users - 1) // _GRID
    others = users - 1 - fewer
    smallest = delta * _LEFT_OUT / (2.0 * (others + 2))
    grid = sorted({*range(0, others + 1, fewer + 1), others})
    laws = []
    for ones in grid:
        law = np.convolve(_binomial(ones, 1.0 - q, smallest), _binomial(others - ones, q, smallest))
        laws.append(np.convolve(law, [q, 1.0 - q]))
        laws.append(np.convolve(law, [1.0 - q, q]))
    # Rows may start at different numbers of ones, which the divergence does not depend on.
    stacked = np.zeros((len(laws), max(map(len, laws))))
    for row, law in zip(stacked, laws, strict=True):
        row[: len(law)] = law
    return stacked[0::2], stacked[1::2]


def _binomial(count: int, chance: float, smallest: float) -> np.ndarray:
    """Return the probabilities of Bin(count, chance), where ``chance`` is that of a one.

    Probabilities below ``smallest`` at both ends are dropped.
    """
    mode = min(int((count + 1) * chance), count)
    # Ratios of neighbouring probabilities, upwards and downwards from the mode.
    above_mode = np.arange(mode, count)
    below_mode = np.arange(mode, 0, -1)
    odds = chance / (1.0 - chance)
    above = np.cumprod((count - above_mode) / (above_mode + 1.0) * odds)
    below = np.cumprod(below_mode / (count - below_mode + 1.0) / odds)
    law = np.concatenate([below[::-1], [1.0], above])
    law /= law.sum()
    large = np.flatnonzero(law >= smallest)
    return law[large[0] : large[-1] + 1]


def _delta_bound(laws: tuple[np.ndarray, np.ndarray], epsilon: float, delta: float) -> float:
    """Return an upper bound of max_k H(k), the least delta of the number of ones at epsilon.

    H(k) is the hockey-stick divergence of P_1 and P_0 if k of the other users have the bit 1, see
    the module docstring. ``laws`` is the result of `_laws`. ``delta`` must be the argument with
    which `_laws` was called: it bounds the sum of the probabilities that `_laws` dropped.
    """
    p_1, scaled_p_0 = laws[0], math.exp(epsilon) * laws[1]
    difference = p_1 - scaled_p_0
    is_larger = difference > 0.0
    divergence = np.sum(difference, axis=1, where=is_larger)
    size = np.sum(p_1 + scaled_p_0, axis=1, where=is_larger)
    return float(np.max(divergence + _ROUNDING * size)) + _LEFT_OUT * delta
