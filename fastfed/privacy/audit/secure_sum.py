"""Audits of secure sums: whole transcripts of integers, their low bits, and planted faults.

An audit looks at what the server and the colluding silos see: for every release, the honest silos'
sum modulo 2^64, computed by the mechanism's encoding, factor and noise shares. Two neighbouring
datasets, world 0 and world 1, differ in one record of the first leaf (batch). There are two
statistics. One is the log likelihood ratio of a worst pair of records. The other compares the low
bits of a release with the noiseless results of two ordinary records.
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
#: The features of the record that differs, in world 0 and in world 1. Its reward is 1.
Pair = tuple[tuple[float, ...], tuple[float, ...]]

BUDGET = Budget(1.0, 0.01)
SILOS, COLLUDERS, RELEASES = 4, 2, 4

_D = 2  # a worst pair needs no more dimensions
#: The pair that attains the joint sensitivity in layout goe2, see `sensitivity._replacement`.
WORST: Pair = ((1.0, 0.0), (-1.0, 0.0))
#: Two records that differ in every entry.
PLAIN: Pair = ((0.61, -0.37), (-0.23, 0.71))
#: Number of low bits that are compared.
_LOW_BITS = 24


def calibrated(colluders: int = COLLUDERS) -> SecureSum:
    """Return the audited secure sum, with a square-root Toeplitz factor.

    Its noise is calibrated for this number of colluders. The factor is multiplied by 14747 / 2^14.
    14747 is odd, so that sums of different records differ in their last bits.
    """
    factor = toeplitz_factor(RELEASES) * (14747.0 / 2.0**14)
    return calibrate_secure_sum(BUDGET, factor, SILOS, colluders, _D, points=1000)


def _leaves(mechanism: SecureSum, x: tuple[float, ...]) -> np.ndarray:
    """Return the encoded sums (K, s), uint64, of K leaves (batches) of one silo.

    Each leaf has one known record. The first leaf also has the record with features ``x`` and
    reward 1.
    """
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
    """Return the simulated sums over honest silos, (runs, K, s), uint64, of every run and release.

    ``pair[world]`` is the record of the first leaf. ``honest`` is the number of silos that add
    noise. Its default is the number for which the noise was calibrated. ``coarse`` plants a fault:
    the number of last bits of the noise that are 0.
    """
    leaves = _leaves(mechanism, pair[world])
    noiseless = np.array([mechanism.row(leaves[:k]) for k in range(1, mechanism.releases + 1)])
    sums = np.repeat(noiseless[None], runs, axis=0)
    noisy_silos = mechanism.honest if honest is None else honest
    for run in range(runs):
        noise = SeededNoise(seed, run)
        for k in range(mechanism.releases):
            for silo in range(noisy_silos):
                # The worlds use different silo numbers, so their noise is independent.
                coins = noise.coins(2 * silo + world, k + 1, _D, mechanism.trials)
                sums[run, k] += coins >> np.uint64(coarse) << np.uint64(coarse)
    return sums


def _signed(values: np.ndarray) -> np.ndarray:
    """Return integers modulo 2^64 as float64 numbers from -2^63 to 2^63."""
    result: np.ndarray = values.view(np.int64).astype(np.float64)
    return result


def likelihood(mechanism: SecureSum, pair: Pair, sums: np.ndarray) -> np.ndarray:
    """Return a statistic (runs,) of transcripts: the log likelihood ratio of Gaussian noise.

    The noise of a secure sum is binomial and close to Gaussian. ``sums`` is the result of
    `transcripts`, and ``pair`` has the records of the two worlds.
    """
    first, second = (_leaves(mechanism, x) for x in pair)
    change = [
        _signed(mechanism.row(second[:k]) - mechanism.row(first[:k]))
        for k in range(1, mechanism.releases + 1)
    ]
    precision = 1.0 / np.array(entries(_D, mechanism.trials), dtype=np.float64)
    noiseless_start = mechanism.row(first[:1])  # subtracted to keep numbers small
    result: np.ndarray = np.einsum("rks,ks->r", _signed(sums - noiseless_start), change * precision)
    return result


def low_bits(mechanism: SecureSum, pair: Pair, sums: np.ndarray) -> np.ndarray:
    """Return a statistic (runs,) that compares the low bits of the first release with two records.

    It is the number of consecutive last bits in which the release agrees with the noiseless result
    of the second record of ``pair``, minus this number for the first record. At most 24 bits of
    each entry are compared.
    """
    counts = []
    for x in pair:
        differences = sums[:, 0] - mechanism.row(_leaves(mechanism, x)[:1])
        # A 1 at bit 24 limits the count. x & -x is the lowest bit of x that is 1.
        marked = differences | np.uint64(1 << _LOW_BITS)
        lowest_one = (marked & (~marked + np.uint64(1))).astype(np.float64)
        counts.append(np.log2(lowest_one).sum(axis=1))
    result: np.ndarray = counts[1] - counts[0]
    return result


def _audit(
    name: str,
    make_mechanism: Callable[[], SecureSum],
    trials: int,
    seed: int,
    *,
    bits: bool = False,
    honest: int | None = None,
    coarse: int = 0,
) -> AuditResult:
    """Audit transcripts of a mechanism by their likelihood ratio, or with ``bits`` by low bits.

    ``honest`` and ``coarse`` plant faults, see `transcripts`.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**32 - 1)
    seed, mechanism = check_seed(seed), make_mechanism()
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


def _half_noise() -> SecureSum:
    """Plant a fault: return the secure sum with half of the noise's standard deviation."""
    mechanism = calibrated()
    bias, off_diagonal, diagonal = (n // 8 * 2 for n in mechanism.trials)
    return msgspec.structs.replace(mechanism, trials=(bias, off_diagonal, diagonal))


def _long_columns() -> SecureSum:
    """Plant a fault: return the secure sum with the factor doubled, but not the noise."""
    mechanism = calibrated()
    doubled = tuple(tuple(2 * c for c in row) for row in mechanism.factor)
    return msgspec.structs.replace(mechanism, factor=doubled)


_CASES: dict[str, Audit] = {
    "secure-sum": partial(_audit, "secure-sum", calibrated),
    "secure-sum-low-bits": partial(_audit, "secure-sum-low-bits", calibrated, bits=True),
    "fault-secure-sum-half-noise": partial(_audit, "fault-secure-sum-half-noise", _half_noise),
    "fault-secure-sum-colluders": partial(
        # Calibrated for no colluders, although all silos but one collude.
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
#: Number of runs on each dataset for which every verdict is nearly certain, within seconds.
TRIALS: dict[str, int] = dict.fromkeys(AUDITS, 8000)
