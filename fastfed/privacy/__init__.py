"""Budgets, sensitivities, mechanisms with their exact accounting, and privacy certificates.

This package contains no bandit algorithm. It is about records, sums and noise.
"""

from __future__ import annotations

from fastfed.privacy.accounting.gdp import compose, delta_of, epsilon_of, mu_of
from fastfed.privacy.audit.bounds import AuditResult
from fastfed.privacy.certificate import (
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    SideCertificate,
    as_text,
    no_privacy,
)
from fastfed.privacy.mechanisms.catalogue import MECHANISMS, Calibrated, calibrate
from fastfed.privacy.mechanisms.winsorized import winsorized_mean
from fastfed.privacy.releases.gaussian_release import (
    CALIBRATIONS,
    GaussianRelease,
    GaussianTree,
    calibrate_release,
    calibrate_tree,
)
from fastfed.privacy.releases.tree_release import TreeRelease
from fastfed.privacy.sensitivity import (
    LAYOUTS,
    RELATIONS,
    UNITS,
    Budget,
    centred_sensitivity,
    layout_stds,
    user_sensitivity,
)

__all__ = [
    "CALIBRATIONS",
    "LAYOUTS",
    "MECHANISMS",
    "RELATIONS",
    "UNITS",
    "AuditResult",
    "Budget",
    "Calibrated",
    "Certificate",
    "ClaimCondition",
    "Condition",
    "GaussianRelease",
    "GaussianTree",
    "Guarantee",
    "SideCertificate",
    "TreeRelease",
    "as_text",
    "calibrate",
    "calibrate_release",
    "calibrate_tree",
    "centred_sensitivity",
    "compose",
    "delta_of",
    "epsilon_of",
    "layout_stds",
    "mu_of",
    "no_privacy",
    "user_sensitivity",
    "winsorized_mean",
]
