"""Constants of FedUCB, and bounds on its synchronisations and group regret (dubey-pentland-2020).

Some statements of the paper contradict each other or their proofs. The docstring of each function
says which version it computes. The paper prints Theorems 1 and 2 as orders of growth. They are
evaluated with natural logarithms and multiplied by `constant`. All other bounds have the constants
of their proofs, with the free constant nu of the proofs set to e. Logarithms are natural unless
log2 is written.

`Trees` and `Sizes` hold the arguments that most functions share. Proposition 1 as printed in the
main text, 2 sqrt(d T/D) G + 4, is not computed here, because it is no bound for small G.

Parameters
----------
All functions share these parameters. Invalid values raise InputError.

epsilon, delta : float
    Privacy budget of one user, epsilon > 0 and delta in (0, 1).
noise_std : float
    s >= 0, the std of the noise in an off-diagonal entry of one tree node, in layout goe2.
threshold : float
    D > 0, the threshold of the trigger, which decides when silos synchronise. In Algorithm 3, D
    before it is divided by 1 + L^2.
kappa : float
    Bound >= 0 on the norm of the noise h in one silo's bias vector, weighted by the inverse of the
    silo's regularizer H. It is 0 without privacy.
reward_scale : float
    sigma > 0: rewards are sigma-sub-Gaussian.
failure_probability : float
    alpha in (0, 1].
parameter_bound : float
    S > 0 with ||theta*|| <= S.
radius : float
    The result of `beta_bar`.
constant : float
    Factor > 0 on an order of growth, which has no constant in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from fastfed._validate import InputError, choice, integer, number, show
from fastfed.privacy.releases.gaussian_release import privatizer_levels
from fastfed.privacy.releases.prefix_sums import max_prefix_nodes

THRESHOLDS = ("log-T", "M1.5")


def _check_fields(sizes: Trees | Sizes, *names: str) -> None:
    """Check that the named fields are integers >= 1, and store them as int.

    Also check that ``sizes.feature_bound`` is above 0. Raise InputError otherwise.
    """
    for name in names:
        count = integer(name, getattr(sizes, name), at_least=1)
        msgspec.structs.force_setattr(sizes, name, count)
    number("feature_bound", sizes.feature_bound, above=0)


# ---- Noise of a prefix (Section 4.3) -------------------------------------------------------------


class Trees(msgspec.Struct, frozen=True, kw_only=True):
    """The noise trees of all silos. A bound on noise holds for all these trees at the same time.

    Parameters
    ----------
    dimension : int
        d >= 1.
    silos : int
        M >= 1.
    releases : int
        n >= 1, the number of releases of one tree: the number of batches if the schedule is fixed,
        else T.
    failure_probability : float
        alpha in (0, 1].
    feature_bound : float, default 1
        L > 0 with ||x|| <= L. Rewards have |y| <= 1.
    gamma : int, default 1
        The number of trees of each silo: the estimators of Algorithm 3, else 1.
    """

    dimension: int
    silos: int
    releases: int
    failure_probability: float
    feature_bound: float = 1.0
    gamma: int = 1

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        _check_fields(self, "dimension", "silos", "releases", "gamma")
        number("failure_probability", self.failure_probability, above=0, at_most=1)

    def log_union(self, events: int) -> float:
        """Return ln(events n M gamma / alpha), the logarithm in a union bound.

        The union is over ``events`` events in each of the n releases of M gamma trees. alpha is
        ``failure_probability``.
        """
        count = events * self.silos * self.releases * self.gamma
        return math.log(count) - math.log(self.failure_probability)

    def prefix_std(self, noise_std: float) -> float:
        """Return the largest std of the noise in a prefix sum: s sqrt(p).

        s = ``noise_std`` is the std of the noise in one tree node, and p the largest number of
        nodes that are added up for a prefix sum.
        """
        std = number("noise_std", noise_std, at_least=0)
        return std * math.sqrt(max_prefix_nodes(self.releases))


def noise_bound(trees: Trees, epsilon: float, delta: float) -> float:
    """Return Lambda of Section 4.3 as printed, a bound on the noise's operator norm.

    Lambda = sqrt(32) m (L^2 + 1) ln(4/delta) (4 sqrt(d) + 2 ln(2 n M gamma/alpha)) / epsilon, where
    m is the number of levels of a tree. Each prefix sum (not each node) is shifted by 2 Lambda I.
    The eigenvalues of 2 Lambda I plus noise are then between rho_min = Lambda and rho_max =
    3 Lambda (Proposition 4). The bound is proven for the noise of
    `gaussian_release.node_noise_std`, because Lambda is never below `noise_bound_from_std` of this
    noise.

    n is ``trees.releases``, alpha is ``trees.failure_probability``, and M, d, gamma and L are in
    ``trees``.
    """
    epsilon = number("epsilon", epsilon, above=0)
    m = privatizer_levels(trees.releases)
    tail = 4.0 * math.sqrt(trees.dimension) + 2.0 * trees.log_union(2)
    log_delta = math.log(4.0) - math.log(number("delta", delta, above=0, below=1))
    squared_norm = trees.feature_bound * trees.feature_bound + 1.0
    return math.sqrt(32.0) * m * squared_norm * log_delta * tail / epsilon


def bias_bound(trees: Trees, epsilon: float) -> float:
    """Return kappa of Proposition 4 as printed, an unproven bound on the noise in the bias vector.

    kappa bounds sqrt(h^T H^-1 h), where h is the noise in the bias vector of a silo, and H is the
    silo's regularizer. kappa = sqrt(m (L^2 + 1) (sqrt(d) + 2 ln(2 n M gamma/alpha)) / (sqrt(2)
    epsilon)), with the outer root over the whole quotient. m is the number of levels of a tree.

    The bound is unproven: a smaller delta needs more noise, but the formula does not depend on
    delta. With the noise of `gaussian_release.node_noise_std` and a small delta, kappa is below the
    proven bound of `bias_bound_from_std`: with n = 1e5, M = 100, d = 10, epsilon = 1 and alpha =
    0.01 for delta < 6e-4, and with n = 7 and M = 10 for delta < 2e-2.

    n is ``trees.releases``, alpha is ``trees.failure_probability``, and M, d, gamma and L are in
    ``trees``.
    """
    epsilon = number("epsilon", epsilon, above=0)
    m = privatizer_levels(trees.releases)
    tail = math.sqrt(trees.dimension) + 2.0 * trees.log_union(2)
    squared_norm = trees.feature_bound * trees.feature_bound + 1.0
    return math.sqrt(m * squared_norm * tail / (math.sqrt(2.0) * epsilon))


def noise_bound_from_std(trees: Trees, noise_std: float) -> float:
    """Return Lambda, a bound on the noise's operator norm, for Gaussian noise of any std.

    Lambda = s sqrt(p) (2 sqrt(d) + 2 sqrt(ln(8 n M gamma/alpha))), where p is the largest number of
    nodes in a prefix (`max_prefix_nodes`). This bound is not in the paper. It is proven: with
    probability 1 - alpha/4 the operator norm of the noise matrix is at most Lambda in all releases.
    The proof: the largest eigenvalue has mean at most 2 s sqrt(p d), and is a Lipschitz function of
    the Gaussian entries with constant sqrt(2 p) s. The union bound counts the largest and the
    smallest eigenvalue.

    Here s is ``noise_std``. n is ``trees.releases``, alpha is ``trees.failure_probability``, and M,
    d and gamma are in ``trees``.
    """
    roots = math.sqrt(trees.dimension) + math.sqrt(trees.log_union(8))
    return 2.0 * trees.prefix_std(noise_std) * roots


def bias_bound_from_std(trees: Trees, noise_std: float, rho_min: float) -> float:
    """Return kappa, a bound on the noise in the bias vector, for Gaussian noise of any std.

    kappa = s sqrt(p) (sqrt(d) + sqrt(2 ln(4 n M gamma/alpha))) / sqrt(rho_min), where p is the
    largest number of nodes in a prefix. This bound is not in the paper. It is proven if the silo's
    regularizer H is at least rho_min I, rho_min > 0: with probability 1 - alpha/4, for the noise h
    in the bias vector, sqrt(h^T H^-1 h) is at most kappa in all releases. This bound and
    `noise_bound_from_std` together use alpha/2, and alpha/2 remains for the rewards.

    Here s is ``noise_std``. n is ``trees.releases``, alpha is ``trees.failure_probability``, and M,
    d and gamma are in ``trees``.
    """
    low = number("rho_min", rho_min, above=0)
    roots = math.sqrt(trees.dimension) + math.sqrt(2.0 * trees.log_union(4))
    return trees.prefix_std(noise_std) * roots / math.sqrt(low)


# ---- Thresholds of the trigger -------------------------------------------------------------------


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a federation, and bounds on its regularizers.

    Parameters
    ----------
    horizon : int
        T >= 1.
    silos : int
        M >= 1.
    dimension : int
        d >= 1.
    rho_min, rho_max : float
        Bounds 0 < rho_min <= rho_max on the eigenvalues of a silo's regularizer H. Without privacy
        rho_max = rho_min.
    feature_bound : float, default 1
        L > 0 with ||x|| <= L.
    gamma : int, default 1
        The time to live of messages in Algorithm 3, in hops, which is also the number of
        estimators. Each estimator has a tree of ceil(T / gamma) releases. It is 1 for Algorithm 1.
    """

    horizon: int
    silos: int
    dimension: int
    rho_min: float
    rho_max: float
    feature_bound: float = 1.0
    gamma: int = 1

    def __post_init__(self) -> None:
        """Check every field. Raise InputError for a value out of range."""
        _check_fields(self, "horizon", "silos", "dimension", "gamma")
        number("rho_max", self.rho_max, at_least=number("rho_min", self.rho_min, above=0))

    @property
    def log_growth(self) -> float:
        """Return G = ln(rho_max/rho_min + T L^2/(gamma d rho_min)), the logarithm in all bounds.

        For gamma = 1 it is proven that ln det V - d ln(M rho_min) <= d G, if the regularizer H of
        every silo is at most rho_max I.
        """
        bound, rho_min = self.feature_bound, self.rho_min
        trace_share = self.horizon * bound * bound / (self.gamma * self.dimension)
        return math.log1p(((self.rho_max - rho_min) + trace_share) / rho_min)


def threshold(communication: str, sizes: Sizes) -> float:
    """Return the threshold D of the determinant trigger (Algorithm 1, line 12).

    The trigger decides when silos synchronise. ``communication`` selects a rule of the paper for D:

    - "log-T", for O(M log T) communication: D = 2 (T/gamma) d / (G + 1). For gamma = 1 this is
      printed below Theorem 1. For Algorithm 3 the paper prints no threshold and writes
      "identical", so T is replaced here by the T/gamma rounds of one estimator. Line 6 of
      Algorithm 3 divides D by 1 + L^2. The result is D before this division.
    - "M1.5", for O(M^1.5 d^3) communication and gamma = 1: D = T ln(M T) / (d M). Remark 1 prints
      no threshold and refers to Wang et al. 2020, who use this D. It is 0 for M = T = 1.

    For O(M T) communication silos synchronise after every round, without a threshold.

    T, M, d and gamma are in ``sizes``, and G is ``sizes.log_growth``.
    """
    t, m, d = sizes.horizon, sizes.silos, sizes.dimension
    if choice("communication", communication, THRESHOLDS) == "M1.5":
        integer("gamma", sizes.gamma, at_least=1, at_most=1)
        return t * math.log(m * t) / (d * m)
    return 2.0 * t * d / (sizes.gamma * (sizes.log_growth + 1.0))


# ---- Synchronisations: Proposition 1 -------------------------------------------------------------


def proposition_1_appendix(sizes: Sizes, threshold: float) -> float:
    """Return Proposition 1's bound on the number of synchronisations: 2 sqrt(d T G/D) + 4.

    This is the version in the appendix, which calls it Proposition 5. The bound is proven without
    privacy, but not by the paper's proof, which needs d G <= 2 D. A proof: a period of t_k rounds
    between two synchronisations raises the logarithm of the trigger's determinant by at least
    D/t_k, so by the Cauchy-Schwarz inequality there are at most sqrt(d T G/D) such periods. With
    privacy the bound is unproven, because the term M (rho_max - rho_min) I alone may fire the
    trigger.

    Here D is ``threshold``. T, M and d are in ``sizes``, and G is ``sizes.log_growth``.
    """
    growth = sizes.dimension * sizes.horizon * sizes.log_growth
    return 2.0 * math.sqrt(growth / number("threshold", threshold, above=0)) + 4.0


def batch_size_proposition_1(sizes: Sizes, threshold: float) -> int:
    """Return the batch size B = ceil(T / ceil(n)) of a fixed schedule, in [1, T].

    Here n, `proposition_1_appendix`, bounds the number of synchronisations of the determinant
    schedule with threshold D. The fixed schedule has about n synchronisations too, but in rounds
    that do not depend on data. This rule is not in the paper.

    B needs rho_min and rho_max, and these need a number of releases. So the caller first takes
    those of `noise_bound` for T releases. The noise can then be calibrated for T // B releases.

    Here D is ``threshold``. T is in ``sizes``.
    """
    return -(-sizes.horizon // math.ceil(proposition_1_appendix(sizes, threshold)))


# ---- Radius --------------------------------------------------------------------------------------


def _log_failure(failure_probability: float) -> float:
    """Check the failure probability alpha, and return ln(2/alpha)."""
    alpha = number("failure_probability", failure_probability, above=0, at_most=1)
    return math.log(2.0) - math.log(alpha)


def _radius_offset(sizes: Sizes, kappa: float, parameter_bound: float) -> float:
    """Return S sqrt(M rho_max) + kappa sqrt(M), the radius's terms for the regularizer and noise.

    S is ``parameter_bound``, a bound on ||theta*||. M and rho_max are in ``sizes``.
    """
    norm = number("parameter_bound", parameter_bound, above=0)
    bias = number("kappa", kappa, at_least=0)
    return math.sqrt(sizes.silos) * (norm * math.sqrt(sizes.rho_max) + bias)


def beta_bar(
    sizes: Sizes,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
) -> float:
    """Return beta_bar, a bound on the confidence radii beta of all rounds.

    beta_bar = sigma sqrt(2 ln(2/alpha) + d G) + S sqrt(M rho_max) + kappa sqrt(M), from the proof
    of Proposition 6 at t = T. For gamma = 1 it is proven that every beta of Proposition 2 is at
    most beta_bar, if rho_min and rho_max bound the eigenvalues of silos' regularizers. Here beta
    contains ln det V - d ln(M rho_min), as in the proof of Proposition 2. The proposition as
    printed has d ln det V. For gamma > 1 the bound covers rounds after the first synchronisation of
    a clique.

    The radius beta itself is proven for one silo and a fixed schedule. Pass failure_probability / M
    to cover all silos. With the determinant schedule, the proof would need a filtration that nobody
    has given (zhou-chowdhury-2024, footnote 5).

    Here sigma is ``reward_scale``, alpha ``failure_probability`` and S ``parameter_bound``.
    ``kappa`` bounds the noise in a bias vector. T, M, d, gamma and rho_max are in ``sizes``, and G
    is ``sizes.log_growth``.
    """
    growth = sizes.dimension * sizes.log_growth
    scale = number("reward_scale", reward_scale, above=0)
    width = scale * math.sqrt(2.0 * _log_failure(failure_probability) + growth)
    return width + _radius_offset(sizes, kappa, parameter_bound)


# ---- Regret with a server: Theorem 1 -------------------------------------------------------------


def theorem_1(
    sizes: Sizes,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Return the order of the group regret in Theorem 1 as printed, for threshold "log-T".

    The order is sigma sqrt(M T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)),
    which is `theorem_2` with one clique. The proof does not give this order. It gives
    `theorem_1_explicit`, in which G has a further factor sqrt(d), the other terms have a further
    factor sqrt(G), and the last two terms are not multiplied by sigma. To compare with the regret
    of a simulation, use `theorem_1_two_terms`.

    Here sigma is ``reward_scale``, alpha ``failure_probability`` and S ``parameter_bound``.
    ``kappa`` bounds the noise in a bias vector. T, M, d and rho_max are in ``sizes``, and G is
    ``sizes.log_growth``. The order is multiplied by ``constant``.
    """
    arguments = kappa, reward_scale, failure_probability
    return theorem_2(sizes, 1, *arguments, parameter_bound=parameter_bound, constant=constant)


def theorem_1_two_terms(sizes: Sizes, threshold: float, radius: float) -> float:
    """Return the bound on group regret in the proof of Theorem 1, for any threshold D.

    The bound is 2 e beta_bar (sqrt(2 M T d G) + M sqrt(D) (d G + 1)), for L^2 <= M rho_min. Its
    order is proven under the conditions of `beta_bar`. Its constant is not proven, because the
    proof does not count the round in which the trigger fires.

    Here D is ``threshold`` and beta_bar ``radius``. T, M and d are in ``sizes``, and G is
    ``sizes.log_growth``.
    """
    return theorem_2_two_terms(sizes, [sizes.silos], threshold, radius)


def theorem_1_explicit(sizes: Sizes, radius: float) -> float:
    """Return the last line of Theorem 1's proof with constants: 4 e beta_bar sqrt(2 M T d (G + 1)).

    This bound on group regret is unproven. With the threshold D = 2 T d / (G + 1), the second term
    of `theorem_1_two_terms` is larger than the first by a factor of about sqrt(M) d. The last line
    of the proof drops this factor.

    Here beta_bar is ``radius``. T, M and d are in ``sizes``, and G is ``sizes.log_growth``.
    """
    volume = 2.0 * sizes.silos * sizes.horizon * sizes.dimension
    bar = number("radius", radius, above=0)
    return 4.0 * math.e * bar * math.sqrt(volume * (sizes.log_growth + 1.0))


# ---- Regret without a server: Theorem 2 ----------------------------------------------------------


def theorem_2(
    sizes: Sizes,
    cliques: int,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Return the order of the group regret of Algorithm 3 in Theorem 2.

    The order is sigma sqrt(M cliques gamma T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa
    sqrt(M)). ``cliques`` in [1, M] is the number of cliques that cover the gamma-th power of the
    graph. T d is inside the root as in the proof. In the printed theorem it is outside. The order
    is unproven, and lacks the same factors as `theorem_1`.

    Here sigma is ``reward_scale``, alpha ``failure_probability`` and S ``parameter_bound``.
    ``kappa`` bounds the noise in a bias vector. T, M, d, gamma and rho_max are in ``sizes``, and G
    is ``sizes.log_growth``. The order is multiplied by ``constant``.
    """
    cover = integer("cliques", cliques, at_least=1, at_most=sizes.silos)
    inside = sizes.log_growth + math.sqrt(_log_failure(failure_probability))
    inside += _radius_offset(sizes, kappa, parameter_bound)
    volume = sizes.silos * cover * sizes.gamma * sizes.horizon * sizes.dimension
    scale = number("reward_scale", reward_scale, above=0) * math.sqrt(volume)
    return number("constant", constant, above=0) * scale * inside


def theorem_2_two_terms(
    sizes: Sizes, clique_sizes: Iterable[int], threshold: float, radius: float
) -> float:
    """Return the bound on group regret in the proof of Theorem 2, for any threshold D.

    The bound is 2 e beta_bar gamma sum_C (sqrt(2 |C| (T/gamma) d G) + |C| sqrt(D) (d G + 1)), where
    G and beta_bar depend on gamma. ``clique_sizes`` are the sizes |C| of a partition of the silos.
    The last G of the proof lacks gamma, which is a misprint. The bound is unproven: the paper only
    sketches why the factor 1 + L^2 accounts for the round between request and broadcast.

    Here D is ``threshold`` and beta_bar ``radius``. T, d and gamma are in ``sizes``, and G is
    ``sizes.log_growth``.
    """
    try:
        silo_counts = list(clique_sizes)
    except TypeError:
        raise InputError(
            f"clique_sizes must be a list of integers, got {show(clique_sizes)}"
        ) from None
    silo_counts = [
        integer(f"clique_sizes[{i}]", count, at_least=1) for i, count in enumerate(silo_counts)
    ]
    if sum(silo_counts) != sizes.silos:
        raise InputError(
            f"clique_sizes must add up to {sizes.silos} silos, got {show(silo_counts)}"
        )
    growth = sizes.dimension * sizes.log_growth
    root = math.sqrt(number("threshold", threshold, above=0))
    # The regret of each clique with one estimator, divided by 2 e beta_bar. The first term is for
    # the proof's good periods, the second for its bad periods.
    total = sum(
        math.sqrt(2.0 * count * sizes.horizon / sizes.gamma * growth)
        + count * root * (growth + 1.0)
        for count in silo_counts
    )
    return 2.0 * math.e * number("radius", radius, above=0) * sizes.gamma * total
