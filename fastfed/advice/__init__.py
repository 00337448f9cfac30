"""Advice for a privacy guarantee: whether to share, and by which protocol, release and batches."""

from __future__ import annotations

from fastfed.advice.answer import Advice, Baseline, Candidate, Regret, Verdict
from fastfed.advice.planner import plan
from fastfed.advice.systems import TRUST

__all__ = ["TRUST", "Advice", "Baseline", "Candidate", "Regret", "Verdict", "plan"]
