"""The budget of a dataset at one silo: what was spent on it, over all plans, under a ceiling.

A release is charged before it is sealed. Charges are squared GDP parameters, which add up over
releases and over plans; a plan whose noise is binomial is charged those of a Gaussian mechanism
that it is but for an event of some probability, and that probability. All are under *replace*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from fastfed._validate import InputError, number
from fastfed.deployment.counts import charge
from fastfed.deployment.expert_plans import Scores
from fastfed.deployment.expert_plans import totals as totals_of_scores
from fastfed.deployment.phases import totals as totals_of_means
from fastfed.deployment.store import opened
from fastfed.privacy.account import GaussianSums, WinsorizedMeans, released
from fastfed.privacy.accounting.binomial import TAIL_SHARES
from fastfed.privacy.accounting.gdp import gaussian_epsilon
from fastfed.privacy.mechanisms.binomial_tree import BinomialTree
from fastfed.privacy.mechanisms.secure_sum import SecureSum
from fastfed.privacy.mechanisms.vector_batches import UnequalBatches, VectorBatches
from fastfed.privacy.releases.prefix_sums import Factor

#: Charges are rounded up by this factor, which pays for their additions.
_UP = 1.0 + 1e-12

SCHEMA = """
CREATE TABLE IF NOT EXISTS ceilings (
    dataset TEXT PRIMARY KEY, epsilon REAL NOT NULL, delta REAL NOT NULL);
CREATE TABLE IF NOT EXISTS charges (
    dataset TEXT NOT NULL, plan BLOB NOT NULL, release INTEGER NOT NULL, mu2 REAL NOT NULL,
    told REAL NOT NULL, report BLOB NOT NULL, pure REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (dataset, plan, release));
"""
#: What a ledger that was made before there were pure charges is given.
_LATER = "ALTER TABLE charges ADD COLUMN pure REAL NOT NULL DEFAULT 0"


class Charge(NamedTuple):
    """What one release of one plan costs the users of one dataset.

    release: from 1; below, what a silo pays once more after records were lost. mu2: squared
    GDP parameter. told: probability of an event but for which that holds. pure: an epsilon that
    holds as well, with delta = 0; 0 for none.
    """

    dataset: str
    plan: bytes
    release: int
    mu2: float
    told: float = 0.0
    report: bytes = b""
    pure: float = 0.0


class OverBudget(InputError):
    """A charge that the ceiling does not allow; nothing was written."""


class Ledger:
    """Charges on the datasets of one silo, in an SQLite file of their own.

    Parameters
    ----------
    path : str
        The file, or ":memory:".
    """

    def __init__(self, path: str) -> None:
        self._db = opened(path, SCHEMA)
        if "pure" not in {row[1] for row in self._db.execute("PRAGMA table_info(charges)")}:
            self._db.execute(_LATER)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def set_ceiling(self, dataset: str, epsilon: float, delta: float) -> None:
        """Write down the most that may be spent on a dataset; it may be raised, never forgotten.

        Raises
        ------
        InputError
            For values out of range, and for a ceiling below what was spent.
        """
        epsilon = number("epsilon", epsilon, above=0)
        delta = number("delta", delta, above=0, below=1)
        spent = self.epsilon(dataset, delta)
        if spent > epsilon:
            raise InputError(f"epsilon must be at least {spent:.4g}, what was spent, got {epsilon}")
        with self._db:
            self._db.execute(
                "INSERT OR REPLACE INTO ceilings VALUES (?, ?, ?)", (dataset, epsilon, delta)
            )

    def ceiling(self, dataset: str) -> tuple[float, float] | None:
        """(epsilon, delta) of a dataset; None where none was set, and nothing may be spent."""
        row = self._db.execute(
            "SELECT epsilon, delta FROM ceilings WHERE dataset = ?", (dataset,)
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def charges(self, dataset: str) -> list[Charge]:
        """All charges on a dataset, in the order of plans and releases."""
        rows = self._db.execute(
            "SELECT * FROM charges WHERE dataset = ? ORDER BY plan, release", (dataset,)
        )
        return [Charge(*row) for row in rows]

    def charged(self, dataset: str, plan: bytes, release: int) -> Charge | None:
        """The charge of one release; None where there is none."""
        row = self._db.execute(
            "SELECT * FROM charges WHERE dataset = ? AND plan = ? AND release = ?",
            (dataset, plan, release),
        ).fetchone()
        return None if row is None else Charge(*row)

    def datasets(self) -> list[str]:
        """All datasets with a ceiling or a charge."""
        query = "SELECT dataset FROM ceilings UNION SELECT dataset FROM charges ORDER BY 1"
        return [row[0] for row in self._db.execute(query)]

    def epsilon(
        self, dataset: str, delta: float | None = None, more: Charge | None = None
    ) -> float:
        """Epsilon spent on a dataset, at delta (default: the ceiling's), with one charge more."""
        if delta is None:
            ceiling = self.ceiling(dataset)
            if ceiling is None:
                raise InputError(f'no ceiling is set for dataset "{dataset}"')
            delta = ceiling[1]
        found = {(c.plan, c.release): c for c in self.charges(dataset)}
        if more is not None:
            found.setdefault((more.plan, more.release), more)
        return together(found.values(), delta)

    def allows(self, charge: Charge) -> bool:
        """True if a charge is there already, or stays under the ceiling."""
        ceiling = self.ceiling(charge.dataset)
        if ceiling is None:
            return False
        return self.epsilon(charge.dataset, more=charge) <= ceiling[0] * (1.0 + 1e-9)

    def charge(self, charge: Charge) -> None:
        """Write a charge, durably; one that is there already changes nothing.

        Raises
        ------
        OverBudget
            If it does not stay under the ceiling.
        InputError
            If the same release was charged for another report.
        """
        # The write lock first: another plan's silo may charge the same dataset.
        self._db.execute("BEGIN IMMEDIATE")
        try:
            kept = self._db.execute(
                "SELECT mu2, told, report, pure FROM charges "
                "WHERE dataset = ? AND plan = ? AND release = ?",
                charge[:3],
            ).fetchone()
            if kept is not None and kept != charge[3:]:
                raise InputError(f"release {charge.release} was charged for another report")
            if kept is None and not self.allows(charge):
                raise OverBudget(
                    f"release {charge.release} would spend more than the ceiling of dataset "
                    f'"{charge.dataset}"; nothing was sent'
                )
            if kept is None:
                self._db.execute("INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?)", charge)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def together(charges: Iterable[Charge], delta: float) -> float:
    """Epsilon of charges at delta: squares added up, or those of pure ones as epsilons."""
    found = list(charges)
    rest = [c for c in found if not c.pure]
    whole = _gaussian(found, delta)
    if len(rest) == len(found):
        return whole
    pure = math.fsum(c.pure for c in found) * _UP
    return min(whole, pure + _gaussian(rest, delta))


def _gaussian(charges: list[Charge], delta: float) -> float:
    """Epsilon of squares at delta, infinite where it is spent on events."""
    if not any(c.mu2 for c in charges):
        return 0.0
    mu2 = math.fsum(c.mu2 for c in charges) * _UP
    rest = delta - math.fsum(c.told for c in charges) * _UP
    return _epsilon(math.sqrt(mu2), rest) if rest > 0.0 else math.inf


#: A silo at its ceiling asks for the same number at every tick.
_epsilon = lru_cache(maxsize=256)(gaussian_epsilon)


@lru_cache(maxsize=64)
def _totals(event: Any, releases: int) -> tuple[tuple[float, float], ...]:
    """(mu2, told) of releases 1..k together, for k = 0..K."""
    if isinstance(event, BinomialTree | VectorBatches | UnequalBatches):
        # Likewise; of batches without a tree each user is in one or, late, in two.
        return ((0.0, 0.0), *[charge(event)[1:]] * releases)
    if isinstance(event, WinsorizedMeans):
        return totals_of_means(event)
    if isinstance(event, SecureSum):
        # Its integers were proven together: the first release pays for all.
        return ((0.0, 0.0), *[_of_secure(event)] * event.releases)
    found = [(0.0, 0.0)]
    for k in range(1, event.releases + 1):
        factor = event.factor and Factor(event.factor.matrix[:k, :k])
        part = _first(event, k, factor)
        found.append((max(part.mu("replace") ** 2 * _UP, found[-1][0]), 0.0))
    return tuple(found)


def _first(event: Any, k: int, factor: Factor | None) -> Any:
    """The event of the first k releases."""
    if isinstance(event, GaussianSums):
        return msgspec.structs.replace(event, releases=k, factor=factor)
    raise InputError(f"a ledger cannot charge {type(event).__name__}")


def _of_secure(event: SecureSum) -> tuple[float, float]:
    """(mu2, told) of a secure sum, where they give the least epsilon at the plan's delta."""
    delta = event.budget.delta
    account, coins = event._account("replace"), event._coins(event.honest)
    pairs = [(account.proven_mu(coins, delta * share), delta * share) for share in TAIL_SHARES]
    known = [pair for pair in pairs if math.isfinite(pair[0])]
    mu, told = min(known, key=lambda pair: gaussian_epsilon(pair[0], delta - pair[1]))
    return mu * mu * _UP, told


def charge_of(
    plan: Any,
    digest: bytes,
    dataset: str,
    release: int,
    report: bytes = b"",
) -> Charge:
    """What a release adds to those before it, for the users who lose most.

    Of the weakest silo, where silos have noise of their own; of a plan in phases for all that a
    silo holds, which no user of it can exceed. Release -k is the whole plan once more, after
    records of release k were lost.
    """
    events = released(plan)
    assert events is not None
    event: Any = events[0]
    if isinstance(event, Scores):
        # A loss is in one phase, whichever: the first release pays for all.
        parts = (*totals_of_scores(event), report, event.exact(0.0) * _UP)
        return Charge(dataset, digest, release, *(parts if release <= 1 else (0.0, 0.0, report)))
    totals = _totals(event, plan.releases)
    if release < 1:
        return Charge(dataset, digest, release, *totals[-1], report)
    (after, told), (before, known) = totals[release], totals[release - 1]
    return Charge(dataset, digest, release, after - before, told - known, report)


def spent_lines(ledger: Ledger) -> list[dict[str, Any]]:
    """What is spent on each dataset, and what is left, as plain data."""
    rows = []
    for dataset in ledger.datasets():
        ceiling = ledger.ceiling(dataset)
        found: dict[str, Any] = {"dataset": dataset, "charges": len(ledger.charges(dataset))}
        if ceiling is not None:
            found |= {
                "ceiling_epsilon": ceiling[0],
                "delta": ceiling[1],
                "spent_epsilon": ledger.epsilon(dataset),
            }
        rows.append(found)
    return rows
