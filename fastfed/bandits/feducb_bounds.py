"""Bounds on FedUCB's synchronisations and group regret: dubey-pentland-2020.

Theorems 1 and 2 are printed as orders: they are evaluated with natural logarithms and multiplied by
`constant`. The other bounds carry their proofs' constants, with the proofs' free nu = e.

Parameters
----------
Names as in `feducb_constants`, and those below; bad values raise InputError.

threshold : float
    D > 0 of the trigger (Algorithm 3's before it is divided by 1 + L^2).
kappa : float
    Bound >= 0 on the bias noise, 0 without privacy; not private also means rho_max = rho_min.
reward_scale : float
    sigma > 0: rewards are sigma-sub-Gaussian.
parameter_bound : float
    S > 0 with ||theta*|| <= S.
constant : float
    Factor > 0 on a printed order.

Notes
-----
G is `log_growth`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from fastfed._validate import InputError, integer, number, show
from fastfed.bandits.feducb_constants import log_growth


def _sizes(horizon: int, silos: int, dimension: int) -> tuple[int, int, int]:
    """T, M and d, checked."""
    return (
        integer("horizon", horizon, at_least=1),
        integer("silos", silos, at_least=1),
        integer("dimension", dimension, at_least=1),
    )


def _threshold(threshold: float) -> float:
    """D, checked."""
    return number("threshold", threshold, above=0)


def _log_failure(failure_probability: float) -> float:
    """ln(2/alpha)."""
    alpha = number("failure_probability", failure_probability, above=0, at_most=1)
    return math.log(2.0) - math.log(alpha)


def _scale(reward_scale: float) -> float:
    """sigma, checked."""
    return number("reward_scale", reward_scale, above=0)


def _offset(silos: int, rho_max: float, kappa: float, parameter_bound: float) -> float:
    """S sqrt(M rho_max) + kappa sqrt(M): the radius' terms for regularizers and noise."""
    norm = number("parameter_bound", parameter_bound, above=0)
    bias = number("kappa", kappa, at_least=0)
    return math.sqrt(silos) * (norm * math.sqrt(rho_max) + bias)


def _periods(horizon: int, clique: int, threshold: float, growth: float, gamma: int) -> float:
    """Good and bad periods of one clique and estimator; growth = d G."""
    good = math.sqrt(2.0 * clique * horizon / gamma * growth)
    return good + clique * math.sqrt(_threshold(threshold)) * (growth + 1.0)


# ---- Synchronisations: Proposition 1 -------------------------------------------------------------


def proposition_1_main_text(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Proposition 1 as the main text prints it: 2 sqrt(d T/D) G + 4.

    A misprint of the appendix: for small G it is no bound.
    """
    t, _, d = _sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    return 2.0 * math.sqrt(d * t / _threshold(threshold)) * growth + 4.0


def proposition_1_appendix(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Proposition 1 as the appendix prints it (Proposition 5): 2 sqrt(d T G/D) + 4.

    Proven without privacy, though not by the proof given, which needs d G <= 2 D: a period of
    length t_k raises ln det S by at least D/t_k, and by Cauchy-Schwarz there are no more than
    sqrt(d T G/D) of them. With privacy unproven: the trigger's own M (rho_max - rho_min) I fires.
    """
    t, _, d = _sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    return 2.0 * math.sqrt(d * t * growth / _threshold(threshold)) + 4.0


def proposition_1_derived(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> float:
    """Equation (6) in the proof of Proposition 1: 2 sqrt(d T G/D) + d G/D + 2.

    Proven without privacy, as `proposition_1_appendix`.
    """
    t, _, d = _sizes(horizon, 1, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    ratio = d * growth / _threshold(threshold)
    return 2.0 * math.sqrt(t * ratio) + ratio + 2.0


def batch_size_proposition_1(
    horizon: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    *,
    feature_bound: float = 1.0,
) -> int:
    """B = ceil(T / ceil(n)) of a fixed schedule, n of Proposition 1 (appendix) at the threshold D.

    Ours: as rarely as the determinant schedule is said to synchronise, on dates that depend on no
    data. B is in [1, T]. With rho_min and rho_max of `noise_bound` at T releases, T // B is the
    number of releases for which the noise may be calibrated anew.
    """
    t, _, d = _sizes(horizon, 1, dimension)
    most = proposition_1_appendix(t, d, threshold, rho_min, rho_max, feature_bound=feature_bound)
    return -(-t // math.ceil(most))


# ---- Radius --------------------------------------------------------------------------------------


def beta_bar(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    gamma: int = 1,
) -> float:
    """The largest radius of any round (proof of Proposition 6, at t = T).

    sigma sqrt(2 ln(2/alpha) + d G) + S sqrt(M rho_max) + kappa sqrt(M). Proven at gamma = 1: while
    rho_min and rho_max hold, no beta of Proposition 2 is larger, with ln det V - d ln(M rho_min) as
    its proof has it (the statement prints d ln det V). beta itself is proven for one silo (pass
    failure_probability / M to cover all) and a fixed schedule; the determinant's needs a filtration
    that no proof has given (zhou-chowdhury-2024, footnote 5). gamma > 1 covers rounds after a
    clique's first synchronisation.
    """
    t, m, d = _sizes(horizon, silos, dimension)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=gamma)
    width = _scale(reward_scale) * math.sqrt(2.0 * _log_failure(failure_probability) + growth)
    return width + _offset(m, rho_max, kappa, parameter_bound)


# ---- Regret with a server: Theorem 1 -------------------------------------------------------------


def theorem_1(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Theorem 1, group regret at the threshold "log-T", as printed.

    sigma sqrt(M T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)). The order is not
    what the proof gives: from `theorem_1_explicit` it drops sqrt(d) beside G and sqrt(G) beside the
    other terms, and it multiplies the last two by sigma. Beside a curve draw `theorem_1_two_terms`.
    """
    t, m, d = _sizes(horizon, silos, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    inside = growth + math.sqrt(_log_failure(failure_probability))
    inside += _offset(m, rho_max, kappa, parameter_bound)
    scale = _scale(reward_scale) * math.sqrt(m * t * d)
    return number("constant", constant, above=0) * scale * inside


def theorem_1_two_terms(
    horizon: int,
    silos: int,
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """Theorem 1's proof for any threshold D, before it chooses one.

    2 e beta_bar (sqrt(2 M T d G) + M sqrt(D) (d G + 1)), for L^2 <= M rho_min. The order is proven
    as far as `beta_bar`; the constant leaves out the round that triggers.
    """
    t, m, d = _sizes(horizon, silos, dimension)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
    )
    return 2.0 * math.e * bar * _periods(t, m, threshold, growth, 1)


def theorem_1_explicit(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """The last line of Theorem 1's proof before its O: 4 e beta_bar sqrt(2 M T d (G + 1)).

    Unproven: at its own D = 2 T d / (G + 1) the second of the two terms is larger than the first
    by about sqrt(M) d, which is dropped here.
    """
    t, m, d = _sizes(horizon, silos, dimension)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
    )
    return 4.0 * math.e * bar * math.sqrt(2.0 * m * t * d * (growth + 1.0))


# ---- Regret without a server: Theorem 2 ----------------------------------------------------------


def theorem_2(
    horizon: int,
    silos: int,
    dimension: int,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    cliques: int,
    gamma: int,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
    constant: float = 1.0,
) -> float:
    """Theorem 2, group regret of Algorithm 3, as printed but for its root.

    sigma sqrt(M cliques gamma T d) (G + sqrt(ln(2/alpha)) + S sqrt(M rho_max) + kappa sqrt(M)),
    where `cliques` in [1, M] cover the graph's gamma-th power; T d is read inside the root, as the
    proof has it. The order is unproven, for what is missing in `theorem_1`.
    """
    t, m, d = _sizes(horizon, silos, dimension)
    hops = integer("gamma", gamma, at_least=1)
    cover = integer("cliques", cliques, at_least=1, at_most=m)
    growth = log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=hops)
    inside = growth + math.sqrt(_log_failure(failure_probability))
    inside += _offset(m, rho_max, kappa, parameter_bound)
    scale = _scale(reward_scale) * math.sqrt(m * cover * hops * t * d)
    return number("constant", constant, above=0) * scale * inside


def theorem_2_two_terms(
    horizon: int,
    clique_sizes: Iterable[int],
    dimension: int,
    threshold: float,
    rho_min: float,
    rho_max: float,
    kappa: float,
    reward_scale: float,
    failure_probability: float,
    gamma: int,
    *,
    parameter_bound: float = 1.0,
    feature_bound: float = 1.0,
) -> float:
    """Theorem 2's proof for any threshold D: the sum over cliques C and gamma estimators.

    2 e beta_bar gamma sum_C (sqrt(2 |C| (T/gamma) d G) + |C| sqrt(D) (d G + 1)), gamma in G and
    beta_bar, clique_sizes the |C| of a partition of the silos. The proof's last G lacks gamma: a
    misprint. Unproven: that 1 + L^2 pays for the round between request and broadcast is only
    sketched.
    """
    try:
        sizes = list(clique_sizes)
    except TypeError:
        raise InputError(
            f"clique_sizes must be a list of integers, got {show(clique_sizes)}"
        ) from None
    if not sizes:
        raise InputError(f"clique_sizes must hold at least one clique, got {show(sizes)}")
    sizes = [integer(f"clique_sizes[{i}]", size, at_least=1) for i, size in enumerate(sizes)]
    t, m, d = _sizes(horizon, sum(sizes), dimension)
    hops = integer("gamma", gamma, at_least=1)
    growth = d * log_growth(t, d, rho_min, rho_max, feature_bound=feature_bound, gamma=hops)
    bar = beta_bar(
        t,
        m,
        d,
        rho_min,
        rho_max,
        kappa,
        reward_scale,
        failure_probability,
        parameter_bound=parameter_bound,
        feature_bound=feature_bound,
        gamma=hops,
    )
    total = sum(_periods(t, size, threshold, growth, hops) for size in sizes)
    return 2.0 * math.e * bar * hops * total
