"""Which protocol, release and batch size to take for a guarantee, and whether to share at all."""

from __future__ import annotations

from fastfed.advice.planner import advise
from fastfed.advice.systems import TRUST, Advice, Candidate, Regret, Verdict

__all__ = ["TRUST", "Advice", "Candidate", "Regret", "Verdict", "advise"]
