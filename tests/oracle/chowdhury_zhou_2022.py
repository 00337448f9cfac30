"""Chowdhury and Zhou (2022), "Shuffle Private Linear Contextual Bandits".

Algorithm 1 with P_Amp (Algorithms 2-4), P_Vec (Algorithms 5-7), and the batched local and central
algorithms of Appendix F, by *forced replay*. The recorded actions and rewards are repeated, and the
replay measures how far each action's score lies below the best one. Comments have the paper's line
numbers, "2.4" for line 4 of Algorithm 2. Nothing is incremental if a definition is available: a
batch is the sum of its users' messages, and a total is the sum of its batches or of its tree nodes.
V is built and inverted again in every round.

There is one agent. Rounds t and users count from 1 and are the same; batches m count from 1. In
round t of batch m the agent uses the policy after m - 1 finished batches, so that "every round" is
B = 1. The paper's symbols are T rounds, B users per batch, M = T / B batches, s (sigma_1 = sigma_2)
the noise std, and g, b, p of P_Vec. Further, alpha is the failure probability, L the bound Delta on
a coordinate, and R the sub-Gaussian scale of the rewards. Bounds on ||x||, |y| and ||theta*|| are 1
unless stated otherwise.

Not from the paper: exact Gaussian accounting, radii from the distribution of the noise, and the
constants of the authors' experiment code (section "Published code"). These constants differ from
the theorems' throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, erfc, exp, expm1, floor, isqrt, log, log1p, sqrt

import numpy as np

from .dubey_pentland_2020 import leaves_under, shortfall, symmetric_noise, tree_nodes
from .vector_sum import debias, fixed_point, lower_triangle, symmetric, vector_sum

Noise = tuple[np.ndarray, np.ndarray]  # of x y (d,), of x x' (d, d)
Permutation = Sequence[int] | np.ndarray
SYSTEMS = ("linucb", "linucb-jdp", "linucb-ldp", "linucb-sdp-amp", "linucb-sdp-vec")
LAYOUTS = ("iid", "goe1", "goe2")


# Exact accounting of Gaussian noise; not from the paper.


def largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the largest argument in [low, high] for which a decreasing condition still holds."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def normal_cdf(x: float) -> float:
    """Return the standard normal distribution function."""
    return erfc(-x / sqrt(2)) / 2


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return delta at epsilon of a Gaussian mechanism with mu = sensitivity / std, for mu up to 30.

    This is Theorem 8 of Balle and Wang (2018). The result is a difference: a delta below 1e-13 is
    rounding.
    """
    tail = normal_cdf(-mu / 2 - epsilon / mu)
    return normal_cdf(mu / 2 - epsilon / mu) - exp(epsilon) * tail


def gaussian_epsilon(delta: float, mu: float) -> float:
    """Return the smallest epsilon >= 0 at delta."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    return largest(lambda epsilon: gaussian_delta(epsilon, mu) > delta, 0.0, mu**2 / 2 + 9 * mu)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return mu*, the largest mu that is (epsilon, delta)-DP."""
    return largest(lambda mu: gaussian_delta(epsilon, mu) <= delta, 1e-12, 2 * sqrt(epsilon) + 30)


def joint_sensitivity(layout: str, relation: str = "replace") -> float:
    """Return the change of both streams by one user, in units of the noise parameter s.

    `layout` is that of the symmetric noise: "iid" mirrors independent entries (the paper's), "goe1"
    is (A + A')/2, "goe2" is (A + A')/sqrt 2.
    """
    squared = {
        "replace": {"iid": 4.5, "goe1": 4.5, "goe2": 4.0},
        "zero-out": {"iid": 2.0, "goe1": 2.0, "goe2": 1.5},
    }
    return sqrt(squared[relation][layout])


def tight_noise_std(
    epsilon: float, delta: float, releases: int = 1, layout: str = "goe2", users: float = 1.0
) -> float:
    """Return the smallest s for which one user is (epsilon, delta)-DP; mu^2 adds over `releases`.

    `users` is the root of a squared sensitivity in units of one release. It is the root of
    `tree_group_sensitivity2` for a user of many rounds.
    """
    mu = gaussian_mu(epsilon, delta)
    return joint_sensitivity(layout) * sqrt(releases) * users / mu


# P_Amp: constants of Theorems 3.2 and B.1, Lemma B.4.


def amp_local_budget(epsilon: float, delta: float, B: int) -> tuple[float, float]:
    """Return (eps0, delta0) of one user's message (proof of Theorem B.1, Remark 3.4)."""
    return epsilon * sqrt(B / log(2 / delta)), delta / B


def ldp_noise_std(epsilon0: float, delta0: float) -> float:
    """Return s of Proposition F.1 and Corollary B.3: each stream has (eps0/2, delta0/2) and change
    2."""
    return 4 * sqrt(2 * log(2.5 / delta0)) / epsilon0


def amp_noise_std(epsilon: float, delta: float, B: int) -> float:
    """Return s of Theorem B.1."""
    return 4 * sqrt(2 * log(2.5 * B / delta) * log(2 / delta)) / (epsilon * sqrt(B))


def shuffling_condition(epsilon0: float, n: int, inner: float) -> bool:
    """Return whether eps0 <= log(n / (16 log(2 / delta'))), as Lemma B.4 needs; `inner` is
    delta'."""
    return epsilon0 <= log(n / (16 * log(2 / inner)))


def shuffled_budget(epsilon0: float, delta0: float, n: int, inner: float) -> tuple[float, float]:
    """Return (tilde eps, tilde delta) of Lemma B.4, whether its condition holds or not."""
    mixing = 8 * sqrt(exp(epsilon0) * log(4 / inner)) / sqrt(n) + 8 * exp(epsilon0) / n
    epsilon = log1p(expm1(epsilon0) / (exp(epsilon0) + 1) * mixing)
    return epsilon, inner + (exp(epsilon) + 1) * (1 + exp(-epsilon0) / 2) * n * delta0


def amp_conditions(epsilon: float, delta: float, B: int) -> dict[str, bool]:
    """Return whether Theorem B.1's condition holds, and Lemma B.4's at delta' = delta / 2.

    The theorem does not state the lemma's condition.
    """
    epsilon0, _ = amp_local_budget(epsilon, delta, B)
    return {
        "theorem": epsilon <= sqrt(log(2 / delta) / B),
        "lemma": shuffling_condition(epsilon0, B, delta / 2),
    }


def amp_true_budget(epsilon: float, delta: float, B: int) -> tuple[float, float]:
    """Return the budget of Lemma B.4 at Theorem B.1's constants.

    The theorem claims (epsilon, delta), up to a constant.
    """
    epsilon0, delta0 = amp_local_budget(epsilon, delta, B)
    return shuffled_budget(epsilon0, delta0, B, delta / 2)


def amp_inverted_noise_std(
    epsilon: float, delta: float, B: int, layout: str = "goe2", grid: int = 48
) -> float | None:
    """Return the smallest s for which Lemma B.4 gives (epsilon, delta), or None; not from the
    paper.

    It uses exact local accounting and the best delta' of a grid. The result may exceed the noise of
    plain local privacy at (epsilon, delta), which shuffling cannot harm: use the smaller one.
    """
    collected = []
    for inner in delta * np.geomspace(1e-4, 0.98, grid):
        if log(2 / inner) * 16 >= B:
            continue
        cap = log(B / (16 * log(2 / inner)))

        def within(epsilon0: float, inner: float = inner) -> bool:
            """Return whether the shuffled epsilon of local epsilon0 is within the budget."""
            return shuffled_budget(epsilon0, 0.0, B, inner)[0] <= epsilon

        epsilon0 = largest(within, 0.0, cap)
        local_delta = (delta - inner) / (B * (exp(epsilon) + 1) * (1 + exp(-epsilon0) / 2))
        collected.append(joint_sensitivity(layout) / gaussian_mu(epsilon0, local_delta))
    return min(collected, default=None)


# P_Vec: constants of Theorems 3.5 and C.1, Corollary C.3.


def vec_g(B: int, d: int) -> int:
    """Return g = max(2 sqrt B, d, 4), rounded up."""
    return max(isqrt(4 * B - 1) + 1, d, 4)


def vec_b(epsilon: float, delta: float, B: int, d: int, g: float) -> float:
    """Return b of Theorem C.1 before rounding up; p = 1/4."""
    return 24e4 * g**2 * log(4 * (d**2 + 1) / delta) ** 2 / (epsilon**2 * B)


def vec_local(epsilon0: float, delta0: float, d: int) -> tuple[int, float]:
    """Return (g, b) of Corollary C.3, with B = 1: every user is (eps0, delta0)-LDP for any
    batch."""
    g = vec_g(1, d)
    return g, vec_b(epsilon0, delta0, 1, d, g)


def vec_local_budget(epsilon: float, delta: float, B: int) -> tuple[float, float]:
    """Return (eps0, delta0) of one user's bits (Corollary C.2); proven if eps0 <= 15."""
    return epsilon * sqrt(B), delta


def vec_noise_std(g: float, b: float, n: int, L: float = 1.0) -> float:
    """Return the std of one released coordinate without rounding, which adds at most n L^2 / (4
    g^2)."""
    return L / g * sqrt(3 / 16 * n * b)


def vec_mu(g: float, b: float, n: int, sensitivity: float, coordinates: int = 0) -> float:
    """Return the Gaussian limit of one batch's exact privacy for large n b.

    `sensitivity` is in units of L. A number of `coordinates` > 0 adds the rounding's
    sqrt(coordinates) steps to the change.
    """
    return (g * sensitivity + sqrt(coordinates)) * 4 / sqrt(3 * n * b)


def binomial_delta(N: int, shift: int, epsilon: float, p: float = 0.25) -> tuple[float, float]:
    """Return delta of Bin(N, p) + shift against Bin(N, p), and the reverse, term by term."""
    probabilities = np.ones(1)
    for _ in range(N):
        probabilities = np.convolve(probabilities, [1 - p, p])
    plain = np.concatenate([probabilities, np.zeros(shift)])
    shifted = np.concatenate([np.zeros(shift), probabilities])
    forward = np.maximum(shifted - exp(epsilon) * plain, 0).sum()
    backward = np.maximum(plain - exp(epsilon) * shifted, 0).sum()
    return float(forward), float(backward)


# Central: constants of Proposition F.3.


def jdp_noise_std(epsilon: float, delta: float, releases: int) -> float:
    """Return Proposition F.1's s with bit_length(K) nodes per user, since the paper prints no
    constant.

    `releases` is K = T / B.
    """
    return sqrt(releases.bit_length()) * ldp_noise_std(epsilon, delta)


def tree_group_sensitivity2(leaves: Sequence[int], releases: int) -> int:
    """Return the squared change of all released nodes by a user of these leaves.

    The unit is the squared change of one round. A leaf counts as often as it is listed. Proposition
    E.7's bound is M0^2 times the number of nodes over one leaf, for M0 leaves.
    """
    return sum(
        sum(leaf in leaves_under(node) for leaf in leaves) ** 2 for node in range(1, releases + 1)
    )


# Returning users: Theorems E.2, E.3, E.5.


def per_batch_budget(epsilon: float, delta: float, M: int) -> tuple[float, float]:
    """Return (eps_m, delta_m) of one of M batches that all have the same user (proof of Theorem
    E.3)."""
    return epsilon / (2 * sqrt(2 * M * log(2 / delta))), delta / (2 * M)


def composed_epsilon(epsilon_m: float, M: int, slack: float) -> float:
    """Return the complete advanced composition (Dwork-Roth Theorem 3.20); `slack` is delta'."""
    return sqrt(2 * M * log(1 / slack)) * epsilon_m + M * epsilon_m * expm1(epsilon_m)


def amp_returning_noise_std(epsilon: float, delta: float, B: int, M: int) -> float:
    """Return s of Theorem B.1 at the budget of one batch, as Theorem E.3 describes it."""
    return amp_noise_std(*per_batch_budget(epsilon, delta, M), B)


def amp_returning_noise_std_printed(epsilon: float, delta: float, B: int, T: int) -> float:
    """Return s as Theorem E.3 prints it, with log(2/delta) in place of log(2/delta_m)."""
    return 16 * log(2 / delta) * sqrt(T * log(5 * T / delta)) / (epsilon * B)


def amp_returning_conditions(epsilon: float, delta: float, B: int, M: int) -> dict[str, bool]:
    """Return conditions at the budget of one batch, and Theorem E.3's own, which is stricter."""
    printed = epsilon <= 2 * log(2 / delta) * sqrt(2 * M / B)
    return {"printed": printed, **amp_conditions(*per_batch_budget(epsilon, delta, M), B)}


def vec_returning_b(epsilon: float, delta: float, B: int, d: int, M: int, g: float) -> float:
    """Return b of Theorem C.1 at the budget of one batch; Theorem E.5 rounds 1.92e6 up to 1e7."""
    return vec_b(*per_batch_budget(epsilon, delta, M), B, d, g)


def vec_returning_b_printed(
    epsilon: float, delta: float, B: int, d: int, T: int, g: float
) -> float:
    """Return b as Theorem E.5 prints it."""
    grown = log(8 * T * (d**2 + 1) / (B * delta))
    return 1e7 * log(2 / delta) * g**2 * T * grown**2 / (epsilon**2 * B**2)


# Regularizer and radius.


def total_noise_std(system: str, noise_std: float, *, batches: int, B: int) -> float:
    """Return sigma of Assumption A.3 for the prefix of `batches` batches.

    `noise_std` is that of one user ("linucb-ldp", "linucb-sdp-amp"), of one tree node
    ("linucb-jdp": the worst prefix so far) or of one batch ("linucb-sdp-vec").
    """
    counts = {
        "linucb": 0,
        "linucb-jdp": (batches + 1).bit_length() - 1,
        "linucb-ldp": B * batches,
        "linucb-sdp-amp": B * batches,
        "linucb-sdp-vec": batches,
    }
    return noise_std * sqrt(counts[system])


def regularizer(
    sigma: float, *, T: int, B: int, d: int, alpha: float, constant: float = 1.0
) -> float:
    """Return lambda of Lemma A.4, with a constant for its Theta."""
    return constant * max(1.0, sigma * (sqrt(d) + sqrt(log(T / (B * alpha)))))


def beta(t_m: int, *, d: int, lam: float, alpha: float, R: float = 1.0) -> float:
    """Return beta_m of Section 3.1 and Lemma A.4.

    t_m is the end of the last finished batch, 0 at first.
    """
    return R * sqrt(2 * log(2 / alpha) + d * log(1 + t_m / (d * lam))) + sqrt(lam)


def beta_proven(
    t_m: int, *, d: int, lam_min: float, lam_max: float, nu: float, alpha: float, R: float = 1.0
) -> float:
    """Return beta_m of Lemma A.2's proof; Assumption A.1 must hold with probability 1 - alpha/2."""
    width = R * sqrt(2 * log(2 / alpha) + d * log(1 + t_m / (d * lam_min)))
    return width + sqrt(lam_max) + nu


def noise_bounds(
    sigma: float, *, layout: str, d: int, releases: int, alpha: float
) -> tuple[float, float]:
    """Return (Sigma_N, Sigma_n) of Gaussian noise over all releases, in place of the paper's c_1
    and c_2.

    Each is exceeded with probability at most alpha/4. The largest eigenvalue of goe2 noise has mean
    at most 2 sigma sqrt(d). As a function of standard normals it has Lipschitz constant
    sqrt(2) sigma. For iid noise, mean and constant are at most these values.
    """
    scale = sigma / sqrt(2) if layout == "goe1" else sigma
    spread = 2 * sqrt(log(8 * releases / alpha))
    tail = sqrt(2 * log(4 * releases / alpha))
    return scale * (2 * sqrt(d) + spread), sigma * (sqrt(d) + tail)


# Bounds and batch rules. Every O has a `constant`.


def lemma_a2(bound: float, *, T: int, B: int, d: int, lam_min: float) -> float:
    """Return Lemma A.2 with its proof's own constants.

    `bound` is beta_M >= 1, and the regret per round is at most 1.
    """
    growth = log(1 + T / (d * lam_min))
    return d * B / (2 * log(2)) * growth + 4 * bound * sqrt(2 * d * T * growth)


def lemma_a4(sigma: float, *, T: int, B: int, d: int, alpha: float, constant: float = 1.0) -> float:
    """Return Lemma A.4, from which all bounds follow."""
    without_noise = d * B * log(T) + d * sqrt(T) * log(T / alpha)
    return constant * (without_noise + sqrt(sigma * T) * d**0.75 * log(T) * log(T / alpha))


def privacy_factor(result: str, *, T: int, B: float, d: int, delta: float, M0: float = 1) -> float:
    """Return the second term of a bound without d^0.75, epsilon^-0.5 and its logarithms of T and
    T/alpha."""
    M = T / B
    factors = {
        "3.2": T**0.75 / B**0.25 * log(B / delta) ** 0.5,
        "B.1": T**0.75 / B**0.25 * (log(B / delta) * log(2 / delta)) ** 0.25,
        "C.1": T**0.75 / B**0.25 * log(d**2 / delta) ** 0.5,
        "E.3": T / B**0.5 * log(T / delta) ** 0.25 * log(2 / delta) ** 0.5,
        # Corrected: with log(M/delta) for one of the two log(2/delta).
        "E.3-corrected": T / B**0.5 * (log(T / delta) * log(M / delta) * log(2 / delta)) ** 0.25,
        "E.5": T / B**0.5 * log(d**2 * M / delta) ** 0.75,
        "E.7": T**0.5 * M0**0.5 * log(1 / delta) ** 0.25,
        "F.1": T**0.75 * log(1 / delta) ** 0.25,
        "F.3": T**0.5 * log(1 / delta) ** 0.25,
    }
    return factors[result]


def regret_bound(
    result: str,
    *,
    T: int,
    B: float,
    d: int,
    epsilon: float,
    delta: float,
    alpha: float,
    M0: float = 1,
    constant: float = 1.0,
) -> float:
    """Return Theorems 3.2, B.1, C.1, E.3, E.5, Propositions E.7, F.1, F.3 as printed.

    epsilon and delta are eps0 and delta0 in F.1. E.7 has no B and hides its logarithms.
    "E.3-corrected" has E.3's logarithms corrected.
    """
    privacy = privacy_factor(result, T=T, B=B, d=d, delta=delta, M0=M0) * d**0.75 / sqrt(epsilon)
    if result == "3.2":
        return constant * (d * B * log(T) + privacy * log(T / alpha) ** 2)
    if result == "E.7":
        return constant * privacy
    if result in ("F.1", "F.3"):
        return constant * (d * B + privacy * log(T / alpha))
    return constant * (d * B * log(T) + privacy * log(T) * log(T / alpha))


BATCH_RULES = ("3.3", "B.2", "B.3", "C.2", "C.3", "E.4", "E.6", "F.2", "F.4")


def ideal_batch(rule: str, *, T: int, d: int, epsilon: float, delta: float) -> float:
    """Return the B of a corollary or remark, with 1 for its O; eps0 and delta0 in B.3 and C.3."""
    local = d**-0.25 * T**0.75 * epsilon**-0.5
    unique = d**-0.2 * T**0.6 * epsilon**-0.4
    returning = d ** (-1 / 6) * T ** (2 / 3) * epsilon ** (-1 / 3)
    rules = {
        "3.3": T**0.6,
        "B.2": unique * (log(T / delta) * log(2 / delta)) ** 0.2,
        "B.3": local * log(1 / delta) ** 0.25,
        "C.2": unique * log(d**2 / delta) ** 0.4,
        "C.3": local * log(d**2 / delta) ** 0.5,
        "E.4": returning * log(T / delta) ** 0.5,
        "E.6": returning * log(T * d**2 / delta) ** 0.5,
        "F.2": T**0.75,
        "F.4": T**0.5,
    }
    return rules[rule]


def batch_size(
    rule: str, *, T: int, d: int, epsilon: float, delta: float, constant: float = 1.0
) -> int:
    """Return `ideal_batch` rounded up, within 1..T."""
    ideal = constant * ideal_batch(rule, T=T, d=d, epsilon=epsilon, delta=delta)
    return min(T, max(1, ceil(ideal)))


def corollary_bound(
    rule: str, *, T: int, d: int, epsilon: float, delta: float, constant: float = 1.0
) -> float:
    """Return the regret that a corollary prints for its batch rule; d B for all except 3.3."""
    if rule == "3.3":
        return constant * T**0.6 * log(T / delta) ** 0.5 / sqrt(epsilon)
    if rule in ("F.2", "F.4"):
        raise ValueError(f"{rule} is a remark without a bound of its own")
    return constant * d * ideal_batch(rule, T=T, d=d, epsilon=epsilon, delta=delta)


# Published code.


@dataclass(frozen=True)
class Encoding:
    """P_Vec of one run: g steps per L, b noise bits per user and coordinate, |entries| <= L.

    g is an integer, and b / 4 ones per user and coordinate are subtracted. With `mean` this number
    is subtracted instead (errors of the published code).
    """

    g: float
    b: int
    L: float = 1.0
    mean: float | None = None


@dataclass(frozen=True)
class Published:
    """Constants of the authors' experiment code for one system."""

    noise_std: float  # of one user or draw, 0 for "linucb" and "linucb-sdp-vec"
    gamma: float
    ridge: float  # lambda
    width: float  # beta, the same in every round
    batch_size: int
    draws: int = 0  # "linucb-jdp": number of noise draws in all
    encoding: Encoding | None = None


#: Actions of the published instances are (u, 1) with ||u|| = 1.
PUBLISHED_NORM = sqrt(2)


def published(
    system: str,
    *,
    T: int,
    d: int,
    epsilon: float,
    delta: float,
    B: int = 20,
    scale: float = 1.0,
    as_run: bool = False,
) -> Published:
    """Return the constants of a figure's curve.

    `B` is used by the two shuffled systems; the others have 1. `as_run` keeps the code's fractional
    g, truncates b and subtracts the mean of the fractional b. This is a bias of up to L p B / g per
    batch and coordinate. Otherwise g and b are rounded up.
    """
    encoding, draws, s = None, 0, 0.0
    B = B if system in ("linucb-sdp-amp", "linucb-sdp-vec") else 1
    if system == "linucb":
        gamma = 1.0
    elif system == "linucb-jdp":
        s = sqrt(log(T)) * log(2.5 / delta) / epsilon
        gamma = s * sqrt(d * log(T))
        draws = published_draws(T)
    elif system == "linucb-sdp-vec":
        gamma = log(d / delta) / (4 * epsilon * sqrt(B)) * sqrt(T * d)
        g = max(2 * sqrt(B), d, 4) if as_run else vec_g(B, d)
        b = scale * max(2 * sqrt(B), d, 4) ** 2 * log(d / delta) ** 2 / (epsilon**2 * B)
        if as_run:
            encoding = Encoding(g, floor(b), PUBLISHED_NORM, b / 4)
        else:
            b = scale * g**2 * log(d / delta) ** 2 / (epsilon**2 * B)
            encoding = Encoding(g, ceil(b), PUBLISHED_NORM)
    else:
        s = sqrt(log(2.5 * B / delta)) / (epsilon * sqrt(B))
        gamma = s * sqrt(T * d)
    growth = log((1 + T * PUBLISHED_NORM**2 / gamma) * T)
    width = sqrt(gamma) * sqrt(d) + 0.5 * sqrt(d * growth)
    ridge = 1e-4 if system == "linucb" else 2 * gamma
    return Published(s, gamma, ridge, width, B, draws, encoding)


def published_draws(t: int) -> int:
    """Return how many noise draws the code's JDP adds in round t: a nested sum, no tree."""
    return floor(log(t)) + 1


def published_sensitivity(layout: str) -> float:
    """Return the joint replacement sensitivity on the published instances (x = (u, 1), y in {0,
    1}).

    It is attained at u' = -u, y = y' = 1. Layout "goe1" is the code's Gaussian noise, and "iid" its
    bits (in units of 1, not of L = sqrt 2).
    """
    return sqrt({"iid": 8.0, "goe1": 12.0, "goe2": 8.0}[layout])


# Algorithm 1.


@dataclass
class Replay:
    """The result of repeating the recorded actions.

    `totals` are (sum of tilde V_m, u_m) after each batch, without lambda I.
    """

    worst_gap: float
    regret: np.ndarray  # (T,), cumulative pseudo-regret
    realised_regret: np.ndarray | None  # (T,), cumulative, with best_rewards only
    totals: list[tuple[np.ndarray, np.ndarray]]
    batches: list[int]  # rounds at whose end the policy changed


def clipped(
    x: np.ndarray, y: float, clip: tuple[float, float, float] | None
) -> tuple[np.ndarray, float]:
    """Return x and y of the statistics, clipped to clip = (max_norm, low, high)."""
    if clip is None:
        return x, y
    max_norm, low, high = clip
    length = float(np.linalg.norm(x))
    return (x * (max_norm / length) if length > max_norm else x), min(max(y, low), high)


def checked(noise: Noise, d: int) -> Noise:
    """Return noise of x y and of x x^T after a check of its shapes."""
    bias = np.asarray(noise[0], dtype=np.float64)
    if bias.shape != (d,):
        raise ValueError(f"noise of x y must have shape ({d},), got {bias.shape}")
    return bias, symmetric_noise(noise[1], d)


def added(parts: Sequence[Noise]) -> Noise:
    """Return the sum of pairs, each stream separately."""
    return np.sum([u for u, _ in parts], axis=0), np.sum([V for _, V in parts], axis=0)


def gaussian_messages(points: list[tuple[np.ndarray, float]], noises: list[Noise]) -> list[Noise]:
    """Return R_Amp of each user (Algorithm 2), or the plain statistics without noise."""
    # 2.4, 2.9; line 8 of Algorithm 1.
    plain = [(x * y, np.outer(x, x)) for x, y in points]
    if not noises:
        return plain
    return [added([message, noise]) for message, noise in zip(plain, noises, strict=True)]


def shuffled(messages: list[Noise], order: tuple[Permutation, Permutation]) -> Noise:
    """Return S_Amp and A_Amp: each stream in its own order (3.3, 3.8), then added (4.3, 4.6)."""
    for permutation in order:
        if sorted(permutation) != list(range(len(messages))):
            raise ValueError(f"not a permutation of {len(messages)} users")
    u = np.sum([messages[i][0] for i in order[0]], axis=0)
    return u, np.sum([messages[i][1] for i in order[1]], axis=0)


def vector_batch(
    points: list[tuple[np.ndarray, float]],
    encoding: Encoding,
    uniforms: np.ndarray,
    user_ones: np.ndarray | None,
    batch_ones: np.ndarray | None,
    permutations: Sequence[np.ndarray] | None,
    clamp: bool,
) -> Noise:
    """Return P_Vec of one batch (Algorithms 5-7): bits with `permutations`, else numbers of ones.

    Both streams have Delta = L, so that all coordinates are encoded as one vector.
    """
    n, d = len(points), len(points[0][0])
    # 5.14 and 5.24 shift, which fixed_point does; 5.23 and 7.17: only the triangle is sent.
    data = np.array([np.append(x * y, lower_triangle(np.outer(x, x))) for x, y in points])
    g, b, L = int(encoding.g), encoding.b, encoding.L
    if uniforms.shape != data.shape:
        raise ValueError(f"uniforms must have shape {data.shape}, got {uniforms.shape}")
    if permutations is not None:
        if encoding.mean is not None or user_ones is None:
            raise ValueError("bits need every user's ones, and a mean of b / 4")
        sums = vector_sum(data, g, b, L, uniforms, user_ones, permutations)
    else:
        ones = batch_ones if user_ones is None else np.sum(user_ones, axis=0)
        ones = np.asarray(ones)
        largest_count = n * b
        if ones.shape != data.shape[1:] or not np.issubdtype(ones.dtype, np.integer):
            raise ValueError(f"ones must be {data.shape[1]} integers per user or batch")
        if not ((ones >= 0) & (ones <= largest_count)).all():
            raise ValueError(f"ones must be in 0..{largest_count} over the batch")
        # 5.4-5.6, then 7.5, 7.11 and 7.19; with `mean` the published code's errors instead.
        if encoding.mean is None:
            counted = fixed_point(data, g, L, uniforms, clamp).sum(axis=0) + ones
            sums = debias(counted, n, g, b, L, 1 / 4)
        else:
            steps = (data + L) * encoding.g / L
            floor = np.floor(steps)
            counted = (floor + (uniforms < steps - floor)).sum(axis=0) + ones
            sums = L / encoding.g * (counted - n * encoding.mean) - n * L
    return sums[:d], symmetric(sums[d:])


def replay(
    *,
    system: str,
    contexts: Callable[[int], np.ndarray],
    means: Callable[[int], np.ndarray],
    actions: np.ndarray,
    rewards: np.ndarray,
    batch_size: int,
    regularizer: Callable[[int], float],
    radius: Callable[[int, int], float],
    user_noise: Callable[[int], Noise] | None = None,
    batch_noise: Callable[[int], Noise] | None = None,
    order: Callable[[int], tuple[Permutation, Permutation]] | None = None,
    node_noise: Callable[[int], Noise] | None = None,
    prefix_noise: Callable[[int], Noise] | None = None,
    encoding: Encoding | None = None,
    uniforms: Callable[[int], np.ndarray] | None = None,
    user_ones: Callable[[int], np.ndarray] | None = None,
    batch_ones: Callable[[int], np.ndarray] | None = None,
    permutations: Callable[[int], Sequence[np.ndarray]] | None = None,
    best_rewards: np.ndarray | None = None,
    clip: tuple[float, float, float] | None = None,
) -> Replay:
    """Repeat actions and rewards (T,) in Algorithm 1.

    `contexts(t)` gives phi(c_t, .) as (K, d), `means(t)` the K expected rewards, `regularizer(m)`
    lambda and `radius(t, m)` beta after m batches. Each random argument is used once. Noise is a
    pair (of x y, of x x'), the latter symmetric.

    "linucb-ldp" and "linucb-sdp-amp" need `user_noise(t)`, or `batch_noise(m)` for the sum over a
    batch. The latter system also accepts `order(m)`, its two permutations of the batch, which
    change only the last digits. "linucb-jdp" needs `node_noise(n)`, where n is the last batch under
    a tree node. Or it needs `prefix_noise(m)`, m = 0, 1, ..., for the whole noise of a release (the
    published code's, or another mechanism's).

    "linucb-sdp-vec" needs `encoding`, `uniforms(t)` in [0, 1) and noise ones: of each user
    `user_ones(t)`, or of each batch `batch_ones(m)`. All have length d + d(d + 1)/2: x y, then the
    packed lower triangle of x x'. With `permutations(m)` of the n(2g + b) bits of each coordinate
    the bits are really sent.

    `best_rewards` (T,) are the rewards of the best action, for the realised regret. `clip` is
    (max_norm, low, high) for x and y of the statistics, not of the scores. Without it, values
    beyond L are encoded as they are.
    """
    sources = {
        "user_noise": user_noise,
        "batch_noise": batch_noise,
        "order": order,
        "node_noise": node_noise,
        "prefix_noise": prefix_noise,
        "encoding": encoding,
        "uniforms": uniforms,
        "user_ones": user_ones,
        "batch_ones": batch_ones,
        "permutations": permutations,
    }
    check_sources(system, {name for name, value in sources.items() if value is not None})
    actions, rewards = np.asarray(actions), np.asarray(rewards, dtype=np.float64)
    if actions.ndim != 1 or actions.shape != rewards.shape:
        raise ValueError(f"actions and rewards have shapes {actions.shape} and {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError("a reward is not finite")
    if batch_size < 1:
        raise ValueError(f"batch_size must be >= 1, got {batch_size}")
    T, d = len(actions), np.shape(contexts(1))[1]

    # Line 2. The agent of "linucb-jdp" keeps batches apart, the others their noisy messages.
    points: list[tuple[np.ndarray, float]] = []
    batches: list[Noise] = []
    nodes: dict[int, Noise] = {}
    zero_statistics = (np.zeros(d), np.zeros((d, d)))
    total = zero_statistics if prefix_noise is None else checked(prefix_noise(0), d)

    result = Replay(0.0, np.zeros(T), None, [], [])
    realised = np.zeros(T)
    for t in range(1, T + 1):
        m = len(batches)
        # Lines 4-6, with the recorded action and reward.
        phi = np.asarray(contexts(t), dtype=np.float64)
        V = regularizer(m) * np.eye(d) + total[1]
        a = int(actions[t - 1])
        gap = shortfall(phi, V, total[0], float(radius(t, m)), a)
        result.worst_gap = max(result.worst_gap, gap)
        expected = np.asarray(means(t), dtype=np.float64)
        best = int(np.argmax(expected))
        result.regret[t - 1] = expected[best] - expected[a]
        if best_rewards is not None and a != best:
            realised[t - 1] = best_rewards[t - 1] - rewards[t - 1]
        points.append(clipped(phi[a], float(rewards[t - 1]), clip))
        # Lines 9-11; an unfinished last batch is never sent.
        if t % batch_size != 0:
            continue
        m += 1
        of_batch, users = points[-batch_size:], range(t - batch_size + 1, t + 1)
        # Lines 7-8 and 12-14.
        if encoding is not None:
            assert uniforms is not None
            batch = vector_batch(
                of_batch,
                encoding,
                np.array([uniforms(user) for user in users]),
                None if user_ones is None else np.array([user_ones(user) for user in users]),
                None if batch_ones is None else np.asarray(batch_ones(m)),
                None if permutations is None else permutations(m),
                clamp=clip is not None,
            )
        else:
            user_noises = (
                [] if user_noise is None else [checked(user_noise(user), d) for user in users]
            )
            messages = gaussian_messages(of_batch, user_noises)
            unchanged = range(batch_size)
            batch = shuffled(messages, (unchanged, unchanged) if order is None else order(m))
            if batch_noise is not None:
                batch = added([batch, checked(batch_noise(m), d)])
        batches.append(batch)
        # Line 15; Appendix F's central analyzer: a batch is one leaf, a release a sum of nodes.
        if node_noise is not None:
            nodes[m] = added(
                [*(batches[leaf - 1] for leaf in leaves_under(m)), checked(node_noise(m), d)]
            )
            total = added([nodes[node] for node in tree_nodes(m)])
        elif prefix_noise is not None:
            total = added([*batches, checked(prefix_noise(m), d)])
        else:
            total = added(batches)
        result.totals.append((total[1], total[0]))
        result.batches.append(t)
    result.regret = np.cumsum(result.regret)
    if best_rewards is not None:
        result.realised_regret = np.cumsum(realised)
    return result


def check_sources(system: str, given: set[str]) -> None:
    """Raise ValueError unless ``given`` are the sources of randomness that the system needs."""
    needed: dict[str, list[list[str]]] = {
        "linucb": [[]],
        "linucb-jdp": [["node_noise"], ["prefix_noise"]],
        "linucb-ldp": [["user_noise"], ["batch_noise"]],
        "linucb-sdp-amp": [["user_noise"], ["batch_noise"], ["user_noise", "order"]],
        "linucb-sdp-vec": [
            ["encoding", "uniforms", "user_ones"],
            ["encoding", "uniforms", "batch_ones"],
            ["encoding", "uniforms", "user_ones", "permutations"],
        ],
    }
    if system not in needed:
        raise ValueError(f"system must be one of {SYSTEMS}, got {system!r}")
    if given not in [set(names) for names in needed[system]]:
        alternatives = (
            " or ".join(" + ".join(names) for names in needed[system] if names) or "nothing"
        )
        raise ValueError(f"{system} takes {alternatives}, got {sorted(given)}")
