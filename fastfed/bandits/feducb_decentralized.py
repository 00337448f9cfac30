"""FedUCB without a server (dubey-pentland-2020, Algorithm 3): silos tell their neighbours.

Deviations from the paper beside those of feducb.py, and why:
- The proof is followed where the pseudocode differs from it: a silo whose trigger fires asks its
  clique, everybody reports gamma rounds later, and all is in before the estimator is used again.
  The pseudocode replies at once, to silos of which some have not heard.
- Each clique starts from |C| rho_min I and triggers with |C| (rho_max - rho_min) I, as in the
  proof; the pseudocode starts from 0, a singular matrix, and writes M.
- Sums are replaced, never added to: they are whole prefixes. Without privacy they are batches.
- Proposition 2 has |C| for M, too, and its failure probability is shared by all cliques and
  estimators.
- The number of rounds in the trigger is counted in rounds of the estimator.
- The paper gives no threshold; "log-T" is Algorithm 1's for the T / gamma rounds of an estimator,
  divided by 1 + L^2 = 2 (line 6). A number is what is compared, divided by nothing.
- The clique cover is a greedy one, a partition of the silos.
- Estimators are numbered t mod gamma. Each has a tree of its own at every silo; a user takes part
  in one of them, so they compose in parallel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec

from fastfed._system import account
from fastfed._validate import InputError, choice, integer
from fastfed.bandits.certify import declared
from fastfed.bandits.feducb import (
    FedUCBKeys,
    of_schedule,
    planned,
    privatizer,
    source_of,
)
from fastfed.bandits.feducb_lines import decentralised
from fastfed.bandits.feducb_theory import Federation, constants, threshold_of
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, System
from fastfed.bandits.theory import Theory
from fastfed.privacy.account import Claim, sealed
from fastfed.protocols.graph import GRAPHS, Graph
from fastfed.protocols.peers import Part, PeerPlan
from fastfed.protocols.plan import Plan

#: More silos than this make a graph that takes minutes to look at.
MOST_SILOS = 2000


class DecentralizedKeys(FedUCBKeys, frozen=True, kw_only=True):
    """Keys of a feducb-decentralized curve: those of feducb, and who can hear whom."""

    graph: str | tuple[tuple[int, int], ...] = "complete"
    graph_seed: int = 0
    #: Time to live of a message, and the number of estimators; None: the graph's diameter.
    gamma: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.graph, str):
            choice("graph", self.graph, GRAPHS)
        integer("graph_seed", self.graph_seed, at_least=0, at_most=2**63 - 1)
        if self.gamma is not None:
            integer("gamma", self.gamma, at_least=1)
        if self.schedule == "fixed" and self.batch_size is None and not self.every_round:
            raise InputError("batch_size is required: an integer >= 1, in uses of an estimator")
        if self.batch_size == "theorem":
            raise InputError('batch_size "theorem" belongs to feducb: Proposition 1 has a server')


def build(keys: DecentralizedKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    if setting.silos > MOST_SILOS:
        raise InputError(f"silos must be <= {MOST_SILOS} without a server, got {setting.silos}")
    graph = Graph.of(keys.graph, setting.silos, keys.graph_seed)
    gamma = max(1, graph.diameter) if keys.gamma is None else keys.gamma
    if gamma > setting.horizon:
        raise InputError(f"gamma must be <= horizon ({setting.horizon}), got {gamma}")
    keys = of_schedule(keys)
    rounds = -(-setting.horizon // gamma)
    batch_size = 1
    if keys.schedule == "fixed" and not keys.every_round:
        batch_size = integer("batch_size", keys.batch_size, at_least=1)
        if batch_size > rounds:
            raise InputError(
                f"batch_size must be <= {rounds}, the uses of an estimator in {setting.horizon} "
                f"rounds at gamma = {gamma}, got {batch_size}"
            )
    noise = privatizer(keys, rounds // batch_size)
    clip = keys.bounds(published=False)
    shape = PeerPlan(graph, gamma, setting.horizon, setting.dimension, ())
    parts, theories = [], []
    alike: dict[tuple[int, int], tuple[Plan, Theory]] = {}
    cliques = graph.cliques(gamma)
    if keys.radius == "direct":
        # Its bounds are made part by part: each has its share of the failure probability.
        share = keys.failure_probability / (len(cliques) * gamma)
        keys = msgspec.structs.replace(keys, failure_probability=share)
    for clique in cliques:
        for estimator in range(gamma):
            own = replace(
                setting, silos=len(clique), horizon=shape.uses(estimator, setting.horizon)
            )
            federation = Federation(own, setting, gamma, len(cliques))
            # Parts of one size are alike, and some constants take long to find.
            kind = own.silos, own.horizon
            if kind not in alike:
                alike[kind] = planned(keys, federation, noise, batch_size, clip)
            plan, theory = alike[kind]
            parts.append(Part(clique, estimator, plan))
            theories.append(theory)
    # One part whose bound is unproven leaves the whole unproven.
    theory = next((t for t in theories if not t.proven), theories[0])
    source = source_of(keys, noise, "Algorithm 3")
    claim = Claim(source=source, caveats=theory.caveats)
    if noise is not None:
        claim = declared(noise, source, theory)
    sealing = {id(p.plan): sealed(replace(p.plan, privacy=claim)) for p in parts}
    made = replace(shape, parts=tuple(replace(p, plan=sealing[id(p.plan)]) for p in parts))
    lines = None
    if keys.schedule == "determinant":
        federation = Federation(setting, setting, gamma)
        found = constants(keys, federation, noise)
        # Line 6's division by 1 + L^2 is no part of D.
        bar = 2.0 * threshold_of(keys, federation, found)
        sizes = [len(clique) for clique in cliques]
        lines = partial(decentralised, keys, setting, found, bar, sizes, gamma)
    return System("feducb-decentralized", made, account(made, setting), lines, theory=theory)


ALGORITHM = Algorithm(
    id="feducb-decentralized",
    paper="dubey-pentland-2020",
    summary="FedUCB without a server: messages travel along a graph",
    keys=DecentralizedKeys,
    build=build,
)
