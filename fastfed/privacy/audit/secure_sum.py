"""Audits of secure sums: whole transcripts of integers, their low bits, and planted faults.

What is looked at is what the server and t silos see: of every release the sum of the honest silos'
integers modulo 2^64, made by the mechanism's own encoding, factor and shares. Two statistics of it
are taken: the log likelihood ratio of a worst pair of records, and the number of low bits in which
a release agrees with what either of two records of no special kind would give without noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from fastfed._kernels import linalg
from fastfed._random import SeededNoise, check_seed, entries
from fastfed._validate import integer
from fastfed.privacy.audit.bounds import AuditResult, audit
from fastfed.privacy.mechanisms.secure_sum import SecureSum, calibrate_secure_sum
from fastfed.privacy.releases.prefix_sums import toeplitz_factor
from fastfed.privacy.sensitivity import Budget

Audit = Callable[[int, int], AuditResult]
#: One or two records of the changed leaf: features, all with reward 1.
Pair = tuple[tuple[float, ...], tuple[float, ...]]

BUDGET = Budget(1.0, 0.01)
SILOS, COLLUDERS, RELEASES = 4, 2, 4

_D = 2  # a worst pair needs no more dimensions
#: Where the joint sensitivity is attained under the layout goe2, see `sensitivity._replacement`.
WORST: Pair = ((1.0, 0.0), (-1.0, 0.0))
#: Two records that differ in every entry.
PLAIN: Pair = ((0.61, -0.37), (-0.23, 0.71))
#: Low bits that are compared.
_LOW = 24


def calibrated(colluders: int = COLLUDERS) -> SecureSum:
    """The mechanism under audit: a square-root Toeplitz factor, calibrated for these colluders.

    The factor is scaled by 14747 / 2^14: an odd number, so that records differ in their last bits.
    """
    factor = toeplitz_factor(RELEASES) * (14747.0 / 2.0**14)
    return calibrate_secure_sum(BUDGET, factor, SILOS, colluders, _D, points=1000)


def _leaves(mechanism: SecureSum, x: tuple[float, ...]) -> np.ndarray:
    """Leaf sums (K, s), uint64, of one record in the first leaf and others that are known."""
    sums = np.zeros((mechanism.releases, mechanism.size))
    for leaf in sums:
        linalg.accumulate(leaf, np.full(_D, math.sqrt(0.5)), 1.0)
    linalg.accumulate(sums[0], np.array(x), 1.0)
    return mechanism.encode(sums)


def transcripts(
    mechanism: SecureSum,
    pair: Pair,
    world: int,
    runs: int,
    seed: int,
    *,
    honest: int | None = None,
    coarse: int = 0,
) -> np.ndarray:
    """Sums over the honest silos of every release and run, (runs, K, s) of uint64.

    honest: silos that add noise (default: those that are counted). coarse: the fault of noise whose
    last bits, so many, are 0.
    """
    leaves = _leaves(mechanism, pair[world])
    rows = np.array([mechanism.row(leaves[:k]) for k in range(1, mechanism.releases + 1)])
    out = np.repeat(rows[None], runs, axis=0)
    adding = mechanism.honest if honest is None else honest
    for run in range(runs):
        noise = SeededNoise(seed, run)
        for k in range(mechanism.releases):
            for silo in range(adding):
                # Worlds are told apart by the silo of their noise.
                coins = noise.coins(2 * silo + world, k + 1, _D, mechanism.trials)
                out[run, k] += coins >> np.uint64(coarse) << np.uint64(coarse)
    return out


def _signed(values: np.ndarray) -> np.ndarray:
    """Integers modulo 2^64 as float64, the nearest to 0."""
    result: np.ndarray = values.view(np.int64).astype(np.float64)
    return result


def likelihood(mechanism: SecureSum, pair: Pair, found: np.ndarray) -> np.ndarray:
    """Log likelihood ratio (runs,) of transcripts, up to a constant, as of Gaussian noise."""
    first, second = (_leaves(mechanism, x) for x in pair)
    change = [
        _signed(mechanism.row(second[:k]) - mechanism.row(first[:k]))
        for k in range(1, mechanism.releases + 1)
    ]
    precision = 1.0 / np.array(entries(_D, mechanism.trials), dtype=np.float64)
    start = mechanism.row(first[:1])  # keeps numbers small
    result: np.ndarray = np.einsum("rks,ks->r", _signed(found - start), change * precision)
    return result


def low_bits(mechanism: SecureSum, pair: Pair, found: np.ndarray) -> np.ndarray:
    """Low bits in which the first release agrees with the second record, less the first's, (runs,).

    Trailing zeros of the differences, up to 24 an entry, over all entries.
    """
    counts = []
    for x in pair:
        apart = found[:, 0] - mechanism.row(_leaves(mechanism, x)[:1])
        marked = apart | np.uint64(1 << _LOW)
        lowest = (marked & (~marked + np.uint64(1))).astype(np.float64)
        counts.append(np.log2(lowest).sum(axis=1))
    result: np.ndarray = counts[1] - counts[0]
    return result


def _audit(
    name: str,
    made: Callable[[], SecureSum],
    trials: int,
    seed: int,
    *,
    bits: bool = False,
    honest: int | None = None,
    coarse: int = 0,
) -> AuditResult:
    """Audit transcripts of a mechanism, by their likelihood ratio or by their low bits."""
    trials = integer("trials", trials, at_least=2, at_most=2**32 - 1)
    seed, mechanism = check_seed(seed), made()
    pair, statistic = (PLAIN, low_bits) if bits else (WORST, likelihood)
    first, second = (
        statistic(
            mechanism,
            pair,
            transcripts(mechanism, pair, world, trials, seed, honest=honest, coarse=coarse),
        )
        for world in (0, 1)
    )
    return audit(name, first, second, claimed_epsilon=BUDGET.epsilon, delta=BUDGET.delta)


def _half() -> SecureSum:
    """Half of the noise's standard deviation."""
    made = calibrated()
    bias, off, on = (n // 8 * 2 for n in made.trials)
    return msgspec.structs.replace(made, trials=(bias, off, on))


def _long_columns() -> SecureSum:
    """A factor whose columns are twice as long as the one that was paid for."""
    made = calibrated()
    doubled = tuple(tuple(2 * c for c in row) for row in made.factor)
    return msgspec.structs.replace(made, factor=doubled)


_CASES: dict[str, Audit] = {
    "secure-sum": partial(_audit, "secure-sum", calibrated),
    "secure-sum-low-bits": partial(_audit, "secure-sum-low-bits", calibrated, bits=True),
    "fault-secure-sum-half-noise": partial(_audit, "fault-secure-sum-half-noise", _half),
    "fault-secure-sum-colluders": partial(
        # Calibrated for nobody who colludes, and all but one do.
        _audit,
        "fault-secure-sum-colluders",
        partial(calibrated, 0),
        honest=1,
    ),
    "fault-secure-sum-columns": partial(_audit, "fault-secure-sum-columns", _long_columns),
    "fault-secure-sum-coarse-noise": partial(
        _audit, "fault-secure-sum-coarse-noise", calibrated, bits=True, coarse=16
    ),
}

#: Name -> audit(trials, seed), as in `fastfed.privacy.audit.mechanisms`; the claim is (1, 0.01).
AUDITS: dict[str, Audit] = dict(_CASES)
#: The audits that must end with "caught".
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each dataset that make every verdict all but certain, within seconds.
TRIALS: dict[str, int] = dict.fromkeys(AUDITS, 8000)
