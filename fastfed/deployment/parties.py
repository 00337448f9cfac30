"""The silo and the hub of any plan."""

from __future__ import annotations

from typing import Any

from fastfed.deployment.expert_parties import ExpertHub, ExpertSilo
from fastfed.deployment.hub import Hub
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.phase_parties import PhaseHub, PhaseSilo
from fastfed.deployment.plans import DeployedPlan
from fastfed.deployment.silo import SiloParty
from fastfed.deployment.sparse_parties import SparseHub, SparseSilo
from fastfed.experts.fed_svt import SparseVectorPlan
from fastfed.experts.plan import ExpertPlan
from fastfed.protocols.serverless import PhasePlan


def silo_of(
    deployed: DeployedPlan,
    name: str,
    secret: bytes,
    ledger: Ledger,
    dataset: str = "records",
    **more: Any,
) -> SiloParty:
    """The silo of any plan, see `SiloParty`."""
    kind = SiloParty
    if isinstance(deployed.executed, PhasePlan):
        kind = PhaseSilo
    elif isinstance(deployed.executed, ExpertPlan):
        sums = isinstance(deployed.executed, SparseVectorPlan)
        kind = SparseSilo if sums else ExpertSilo
    return kind(deployed, name, secret, ledger, dataset, **more)


def hub_of(deployed: DeployedPlan, secret: bytes, **more: Any) -> Hub:
    """The hub of any plan, see `Hub`."""
    kind = Hub
    if isinstance(deployed.executed, PhasePlan):
        kind = PhaseHub
    elif isinstance(deployed.executed, ExpertPlan):
        sums = isinstance(deployed.executed, SparseVectorPlan)
        kind = SparseHub if sums else ExpertHub
    return kind(deployed, secret, **more)
