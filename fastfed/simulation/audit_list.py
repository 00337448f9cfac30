"""What every audit attacks, its unit and its relation: `fastfed audit list`."""

from __future__ import annotations

import msgspec

from fastfed._validate import InputError
from fastfed.simulation import audits


class ListedAudit(msgspec.Struct, frozen=True):
    """One audit. attacks: what is run and looked at. unit, relation: what the two datasets differ
    in. planted: whether it is a fault put there on purpose. must_be_caught: planted faults, and
    what was published and does not keep its claim. trials: runs on each dataset by default."""

    name: str
    attacks: str
    unit: str
    relation: str
    planted: bool
    must_be_caught: bool
    trials: int


_USER = ("user", "replace")
_LOSS = ("loss of one client in one round", "replace")
_NUMBER = ("number", "sensitivity 1")
_VALUE = ("value", "replace")
_VECTOR = ("vector", "replace")

#: Name -> (what it attacks, (unit, relation)).
ABOUT: dict[str, tuple[str, tuple[str, str]]] = {
    "gaussian-tree": ("nodes of the binary tree, exact calibration", _USER),
    "gaussian-tree-theorem": ("the same nodes with the noise of the paper's theorem", _USER),
    "gaussian-tree-published-code": ("the same nodes with the noise of the paper's code", _USER),
    "gaussian-tree-prefix": ("prefix sums of the tree, node noise reused", _USER),
    "honaker": ("prefix sums by Honaker's weighted tree", _USER),
    "toeplitz": ("prefix sums by the square-root Toeplitz factor", _USER),
    "laplace": ("one number with Laplace noise", _NUMBER),
    "exponential": ("a choice by the exponential mechanism, cdf inverted", _NUMBER),
    "exponential-gumbel": ("the same choice by Gumbel noise", _NUMBER),
    "sparse-vector": ("the first query above a noisy threshold", _NUMBER),
    "private-range": ("the interval where most values are", _VALUE),
    "winsorized-mean-1d": ("the winsorized mean of numbers", _VALUE),
    "winsorized-mean": ("the winsorized mean of vectors", _VECTOR),
    "fault-natural-log": ("tree noise for 1 + ln K nodes instead of 1 + log2 K", _USER),
    "fault-kappa-forgotten": ("tree noise for one node a record", _USER),
    "fault-bias-forgotten": ("tree noise for the covariance stream alone", _USER),
    "fault-noise-redrawn": ("prefix sums whose nodes get new noise each time", _USER),
    "fault-bare-threshold": ("sparse vector without noise on the threshold", _NUMBER),
    "fault-winsorized-half-noise": ("the winsorized mean with half of its noise", _VECTOR),
    "fault-float-noise": ("low bits of a statistic plus noise, added as doubles", _USER),
    "noisy-argmin": ("the least of scores with Laplace noise", _NUMBER),
    "sparse-switching": ("times and choices of switches between experts", _LOSS),
    "fault-noisy-argmin-printed": ("noisy argmin with the paper's noise", _NUMBER),
    "fault-sparse-switching-printed-threshold": ("switching by a bare threshold", _LOSS),
    "private-fedlinucb": ("messages of a deployed silo, silo-ldp", _USER),
    "vector-sum": ("sums that the server gets of shuffled bits", _USER),
    "fault-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "linucb-ldp": ("users' messages to an untrusted agent", _USER),
    "linucb-sdp-amp": ("users' messages after the shuffler", _USER),
    "linucb-sdp-vec": ("users' shuffled bits", _USER),
    "fault-users-quarter-of-the-bits": ("the same with a quarter of the noise bits", _USER),
    "feducb": ("messages of a deployed silo, fixed schedule", _USER),
    "feducb-decentralized": ("messages that peers hear of each other", _USER),
    "feducb-schedule": ("when the raw determinant asks for a synchronisation", _USER),
    "feducb-schedule-fixed": ("when a fixed schedule synchronises", _USER),
    "feducb-schedule-private": ("when the private determinant asks for one", _USER),
    "fed-svt": ("experts that deployed clients play, Fed-SVT", _LOSS),
    "fault-fed-svt-printed-threshold": ("the same with a bare threshold", _LOSS),
    "fed-dp-ope-stoch": ("experts that deployed clients play, central noise", _LOSS),
    "fault-fed-dp-ope-stoch-quarter-of-the-noise": ("the same with a quarter of the noise", _LOSS),
    "copies": ("copies and pickles of every object that draws noise", _USER),
    "stateful-score": ("the next user's action, by a score function that writes its state", _USER),
    "fault-restart": ("one node reported anew after each restart of a silo", _USER),
    "fault-stateful-score": ("the next user's action, by a score with memory of its own", _USER),
    "low-bits": ("low bits of what deployed objects release, five kinds", _USER),
}


def listed() -> list[ListedAudit]:
    """Every audit by name."""
    missing = [name for name in audits.AUDITS if name not in ABOUT]
    if missing:
        raise InputError(f"audits must say what they attack, got nothing of {missing}")
    return [
        ListedAudit(
            name,
            ABOUT[name][0],
            *ABOUT[name][1],
            planted=name.startswith("fault-"),
            must_be_caught=name in audits.FAULTY,
            trials=audits.TRIALS[name],
        )
        for name in audits.AUDITS
    ]
