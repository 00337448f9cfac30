"""What learning without exploration asks of an environment: diverse contexts, and a margin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fastfed._random import check_seed
from fastfed._validate import InputError, integer, show
from fastfed.environments.base import Environment
from fastfed.environments.losses import Adversary

#: Batches of rounds that the standard error of lambda_0 comes from.
BATCHES = 20
#: Rounds that must lie at or below a gap before the ratio of the margin is taken there.
LEAST = 100
#: Gaps at which the margin is looked for, from that one to the largest.
LEVELS = 60


@dataclass(frozen=True)
class Diversity:
    """Estimates of lambda_0 and C_0 for one replicate's theta*, each with a standard error.

    ``lambda_0`` is the least eigenvalue of E[x x'], x the best action's features, in the silo
    where it is least; ``margin`` is C_0, the least C with P(gap <= e) <= C e for all e > 0, in
    the silo where it is largest. Both lean to the safe side: see ``diversity``.
    """

    lambda_0: float
    lambda_0_error: float
    margin: float
    margin_error: float


def diversity(
    environment: Environment,
    *,
    silos: int = 1,
    rounds: int = 10_000,
    seed: int = 0,
    replicate: int = 0,
) -> Diversity:
    """lambda_0 and C_0 of an environment, from its contexts of rounds 1, ..., ``rounds``.

    Source: huang-2023, Assumptions 3.1 and 3.2. The best action is the one of largest expected
    reward, the first if there are several; the gap is to the second best (the paper prints "for
    all" other actions and uses "for one"). One ``seed`` and ``replicate`` fix theta*, which
    both constants depend on. Rounds count as draws of one law: where a silo's context is fixed,
    all are the same. Raises InputError where the environment cannot serve so many rounds.

    lambda_0 is the least eigenvalue of the mean over all rounds. Its standard error is that of
    20 batches of rounds, each with an eigenvalue of its own. By concavity the estimate lies below
    on average: by 1/rounds where the eigenvalue is simple, by some standard errors where many
    are equal.

    C_0 = sup of P(gap <= e)/e is the largest such ratio at 60 of the observed gaps: those of
    ranks 100 to ``rounds``, in geometric steps. Choosing the largest overestimates by about its
    standard error, the binomial one of that ratio; a peak held by fewer than 100 rounds is not
    seen. Infinite as soon as two best actions are equal in one round, as then P(gap <= 0) > 0;
    0 with a single action.
    """
    if not hasattr(environment, "facts"):
        raise InputError(
            f"environment must be an environment such as Sphere(), got {show(environment)}"
        )
    silos = integer("silos", silos, at_least=1, at_most=2**31)
    rounds = integer("rounds", rounds, at_least=LEAST, at_most=2**31)
    replicate = integer("replicate", replicate, at_least=0, at_most=2**32 - 1)
    dimension = environment.facts(silos, rounds).dimension
    opened = environment.open(check_seed(seed), replicate, silos)
    if isinstance(opened, Adversary):
        raise InputError(f'environment "{environment.kind}" has losses, and no contexts')
    eigenvalues, margins = [], []
    for silo in range(silos):
        best, gaps = np.empty((rounds, dimension)), np.full(rounds, math.inf)
        for t in range(rounds):
            x, mean = opened.round(silo, t + 1)
            best[t] = x[mean.argmax()]
            if len(mean) > 1:
                second, first = np.partition(mean, -2)[-2:]
                gaps[t] = first - second
        eigenvalues.append(least_eigenvalue(best))
        margins.append(margin(gaps))
    return Diversity(*min(eigenvalues), *max(margins))


def least_eigenvalue(rows: np.ndarray) -> tuple[float, float]:
    """Of the mean of x x' over rows (n, d), and its standard error from batches."""

    def of(part: np.ndarray) -> float:
        # No rounding makes the mean of x x' indefinite.
        return max(float(np.linalg.eigvalsh(part.T @ part / len(part))[0]), 0.0)

    batches = [of(part) for part in np.array_split(rows, BATCHES)]
    return of(rows), float(np.std(batches, ddof=1)) / math.sqrt(BATCHES)


def margin(gaps: np.ndarray) -> tuple[float, float]:
    """sup of P(gap <= e)/e over gaps (n,), n >= 100, at the ranks looked at; its error."""
    ordered = np.sort(gaps)
    n = len(ordered)
    if ordered[0] <= 0.0:
        return math.inf, 0.0
    ranks = np.unique(np.geomspace(LEAST, n, LEVELS).astype(np.int64))
    at = ordered[ranks - 1]
    # Of equal gaps all count, not only those up to the rank.
    share = np.searchsorted(ordered, at, side="right") / n
    ratio = share / at
    k = int(ratio.argmax())
    return float(ratio[k]), float(ratio[k] * math.sqrt((1.0 - share[k]) / (share[k] * n)))
