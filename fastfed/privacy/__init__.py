"""Budgets, sensitivities, mechanisms with their exact accounting, and privacy certificates.

Nothing in here knows a bandit algorithm: it speaks of records, sums and noise.
"""

from __future__ import annotations

from fastfed.privacy.budget import RELATIONS, UNITS, Budget
from fastfed.privacy.calibration import GaussianTree, calibrate_tree
from fastfed.privacy.certificate import (
    Certificate,
    ClaimCondition,
    Condition,
    Guarantee,
    SideCertificate,
    as_text,
    no_privacy,
)
from fastfed.privacy.continual import calibrate_release
from fastfed.privacy.gaussian import compose, delta_of, epsilon_of, mu_of
from fastfed.privacy.mechanisms import MECHANISMS, Calibrated, calibrate
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds, user_sensitivity
from fastfed.privacy.two_streams import CALIBRATIONS, GaussianRelease
from fastfed.privacy.winsorized import winsorized_mean

__all__ = [
    "CALIBRATIONS",
    "LAYOUTS",
    "MECHANISMS",
    "RELATIONS",
    "UNITS",
    "Budget",
    "Calibrated",
    "Certificate",
    "ClaimCondition",
    "Condition",
    "GaussianRelease",
    "GaussianTree",
    "Guarantee",
    "SideCertificate",
    "as_text",
    "calibrate",
    "calibrate_release",
    "calibrate_tree",
    "compose",
    "delta_of",
    "epsilon_of",
    "layout_stds",
    "mu_of",
    "no_privacy",
    "user_sensitivity",
    "winsorized_mean",
]
