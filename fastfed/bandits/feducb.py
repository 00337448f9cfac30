"""FedUCB (dubey-pentland-2020, Algorithms 1 to 3): with a server and without one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np

from fastfed._system import account
from fastfed._validate import InputError, choice, integer, number
from fastfed.bandits.assemble import Noise, assemble, plan_of
from fastfed.bandits.certify import certify, declared
from fastfed.bandits.feducb_bounds import (
    batch_size_proposition_1,
    proposition_1_appendix,
    theorem_1_two_terms,
    theorem_2_two_terms,
)
from fastfed.bandits.feducb_constants import (
    Constants,
    Federation,
    constants,
    proposition_2,
    threshold_of,
    trigger,
)
from fastfed.bandits.noise_distributions import NoiseLaw
from fastfed.bandits.radius import Theory
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.privacy.account import Claim, sealed
from fastfed.privacy.releases.gaussian_release import (
    PRIVATIZER_CALIBRATIONS,
    Privatizer,
    calibrate_privatizer,
)
from fastfed.privacy.releases.tree import max_prefix_nodes
from fastfed.privacy.sensitivity import RELATIONS, Budget
from fastfed.protocols.network import GRAPHS, Graph
from fastfed.protocols.peers import Part, PeerPlan
from fastfed.protocols.plan import Clip, NoiseStd, Plan
from fastfed.protocols.protocol import PROTOCOLS

# FedUCB (dubey-pentland-2020, Algorithms 1 and 2): synchronising when a determinant has grown.
# Deviations from the paper, and why:
# - The algorithm is the mended one: the trigger's matrix stands inside the determinant, the counter
#   and the batch begin anew at a synchronisation, a leaf of the tree is a whole batch, and the
#   server replaces its sums by the sum of the silos' prefix sums, which contain all that came
#   before.
# - Proposition 2 is used as its proof has it: ln det V once, not d times.
# - The matrices' last entry, the sum of squared rewards, is never used, so it is never sent.
# - Features and rewards are clipped in code to what the proof bounds.
# - ``schedule = "determinant"``, the paper's, reads raw data: no finite epsilon holds for it, and
#   the certificate says "none". "fixed" synchronises at rounds known in advance; "private-
#   determinant" is the rule of zhou-chowdhury-2024, Appendix D.2, which reads noisy sums, paid from
#   the same budget.
# - ``lazy = true`` is the default; the paper's silos use their own batch at once (``lazy =
#   false``).
# - ``calibration = "exact"`` takes the least noise that gives the budget, and rho_min and kappa
#   from that noise; "theorem" is the paper's Lambda and its kappa, which lacks delta.
# - D for O(M T) communication is 0 in the paper, which rounding would decide; it plays ``batch_size
#   = 1`` instead.


SCHEDULES = ("determinant", "fixed", "private-determinant")
COMMUNICATION = ("log-T", "M1.5", "MT")

K = TypeVar("K", bound="FedUCBKeys")


class FedUCBKeys(Keys, frozen=True, kw_only=True):
    """Keys of a feducb curve."""

    schedule: str = "determinant"
    communication: str | float = "log-T"
    private: bool = True
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    rho_min: float | None = None
    radius: str = "proposition-2"

    radii: ClassVar[tuple[str, ...]] = ("proposition-2", "direct")

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("schedule", self.schedule, SCHEDULES)
        if isinstance(self.communication, str):
            choice("communication", self.communication, COMMUNICATION)
        else:
            number("communication", self.communication, above=0.0)
        if self.rho_min is not None:
            number("rho_min", self.rho_min, above=0.0)
        if self.regularizer is not None:
            raise InputError("regularizer has no meaning for feducb: it follows from rho_min")
        if self.every_round and self.schedule == "private-determinant":
            raise InputError('communication "MT" is every round: it needs no private-determinant')
        if self.every_round and self.batch_size not in (None, 1, "theorem"):
            raise InputError(
                f'communication "MT" is every round: batch_size must be 1, got {self.batch_size}'
            )
        if self.schedule != "fixed" and self.batch_size is not None:
            raise InputError(f'batch_size belongs to schedule "fixed", got "{self.schedule}"')
        self._check_privacy()

    @property
    def every_round(self) -> bool:
        """Whether the paper's D is 0."""
        return self.communication == "MT"

    def _check_privacy(self) -> None:
        choice("relation", self.relation, RELATIONS)
        choice("calibration", self.calibration, PRIVATIZER_CALIBRATIONS)
        if not self.private:
            for key in ("epsilon", "delta"):
                if getattr(self, key) is not None:
                    raise InputError(f"{key} has no meaning where private = false")
            if self.radius != "proposition-2" or self.schedule == "private-determinant":
                what = "radius" if self.radius != "proposition-2" else "schedule"
                raise InputError(f'{what} "{getattr(self, what)}" needs private = true')
            return
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required, or private = false")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        if self.calibration == "theorem":
            if self.schedule == "private-determinant":
                raise InputError('schedule "private-determinant" needs calibration "exact"')
            if self.radius == "direct":
                raise InputError('radius "direct" needs calibration "exact"')
        if self.radius == "direct":
            if self.schedule == "determinant" and not self.every_round:
                raise InputError('radius "direct" needs schedule "fixed" or "private-determinant"')
            if self.rho_min is not None:
                raise InputError('rho_min belongs to radius "proposition-2", got radius "direct"')


def privatizer(keys: FedUCBKeys, releases: int) -> Privatizer | None:
    """The noise of one silo's tree of so many releases, None without privacy."""
    if not keys.private:
        return None
    assert keys.epsilon is not None and keys.delta is not None
    rounds = releases if keys.schedule == "private-determinant" else 0
    budget = Budget(keys.epsilon, keys.delta, keys.relation)
    return calibrate_privatizer(budget, releases, keys.calibration, schedule_rounds=rounds)


def rounds_per_batch(keys: FedUCBKeys, setting: Setting) -> int:
    """B of a fixed schedule: as given, every round, or as often as Proposition 1 counts."""
    if keys.every_round:
        return 1
    if keys.batch_size != "theorem":
        return keys.rounds_per_batch(setting)
    federation = Federation(setting)
    found = constants(keys, federation, privatizer(keys, setting.horizon))
    bar = threshold_of(keys, federation, found)
    # D of "M1.5" is 0 for one silo and one round: there is nothing to wait for.
    if not bar:
        return 1
    return batch_size_proposition_1(
        setting.horizon, setting.dimension, bar, found.rho_min, found.rho_max
    )


def of_schedule(keys: K) -> K:
    """The same keys, every round as the fixed schedule that it is."""
    if keys.every_round and keys.schedule != "fixed":
        return msgspec.structs.replace(keys, schedule="fixed")
    return keys


def build(keys: FedUCBKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    keys = of_schedule(keys)
    fixed = keys.schedule == "fixed"
    batch_size = rounds_per_batch(keys, setting) if fixed else 1
    noise = privatizer(keys, setting.horizon // batch_size)
    clip = keys.bounds(published=False)
    federation = Federation(setting)
    plan, theory = planned(keys, federation, noise, batch_size, clip)
    source = source_of(keys, noise, "Algorithm 1")
    plan, certificate = certify(plan, setting, theory, _noise(keys, setting, noise), source)
    return System("feducb", plan, certificate, _lines(keys, federation, noise), theory=theory)


def _lines(
    keys: FedUCBKeys, federation: Federation, noise: Privatizer | None
) -> Callable[[np.ndarray], dict[str, list[float]]] | None:
    """The bounds of Theorem 1 and Proposition 1, where they are about this run."""
    if keys.schedule != "determinant" or keys.radius != "proposition-2":
        return None
    found = constants(keys, federation, noise)
    bar = threshold_of(keys, federation, found)
    if not bar:
        return None
    return partial(centralised, keys, federation.setting, found, bar)


def released_only(keys: FedUCBKeys, batch_size: int) -> bool:
    """Whether actions depend on synchronised statistics alone."""
    return keys.lazy or (keys.schedule == "fixed" and batch_size == 1)


def planned(
    keys: FedUCBKeys,
    federation: Federation,
    noise: Privatizer | None,
    batch_size: int,
    clip: Clip | None,
) -> tuple[Plan, Theory]:
    """Plan and theory of the silos that share one estimator."""
    setting = federation.setting
    made = _noise(keys, setting, noise)
    found = constants(keys, federation, noise)
    protocol = PROTOCOLS["silo-ldp-prefix" if noise else "none"]
    rule = trigger(keys, federation, found, noise)
    if keys.radius == "direct":
        plan, theory = assemble(
            keys,
            setting,
            protocol,
            batch_size,
            clip,
            made,
            only_released=released_only(keys, batch_size),
            ordered=keys.schedule == "fixed",
        )
        return replace(plan, trigger=rule), theory
    only = released_only(keys, batch_size)
    theory = proposition_2(keys, federation, found, clip, only)
    plan = plan_of(keys, setting, protocol, batch_size, clip, theory, made)
    return replace(plan, trigger=rule), theory


def _noise(keys: FedUCBKeys, setting: Setting, mechanism: Privatizer | None) -> Noise | None:
    if mechanism is None:
        return None
    std = NoiseStd(*mechanism.stds)
    if keys.schedule == "fixed":
        law = NoiseLaw(std, setting.silos, mechanism.variance_factors)
    else:
        # Which release has which noise is for the data to say: all as the one with the most.
        most = max_prefix_nodes(mechanism.releases)
        law = NoiseLaw(std, setting.silos, np.array([0.0, most]), counted=mechanism.releases)
    return Noise(mechanism, law, std)


def source_of(keys: FedUCBKeys, noise: Privatizer | None, algorithm: str) -> str:
    """Where the guarantee is from."""
    source = f"dubey-pentland-2020, {algorithm}"
    if noise is None:
        return source
    if keys.schedule == "private-determinant":
        source += ", with the schedule of zhou-chowdhury-2024, Appendix D.2"
    return f"{source}; {noise.source}"


FEDUCB = Algorithm(
    id="feducb",
    paper="dubey-pentland-2020",
    summary="federated LinUCB that synchronises when a determinant has grown",
    keys=FedUCBKeys,
    build=build,
)


# ---- FedUCB without a server (dubey-pentland-2020, Algorithm 3): silos tell their neighbours -----
# Deviations from the paper beside those of feducb.py, and why:
# - The proof is followed where the pseudocode differs from it: a silo whose trigger fires asks its
#   clique, everybody reports gamma rounds later, and all is in before the estimator is used again.
#   The pseudocode replies at once, to silos of which some have not heard.
# - Each clique starts from |C| rho_min I and triggers with |C| (rho_max - rho_min) I, as in the
#   proof; the pseudocode starts from 0, a singular matrix, and writes M.
# - Sums are replaced, never added to: they are whole prefixes. Without privacy they are batches.
# - Proposition 2 has |C| for M, too, and its failure probability is shared by all cliques and
#   estimators.
# - The number of rounds in the trigger is counted in rounds of the estimator.
# - The paper gives no threshold; "log-T" is Algorithm 1's for the T / gamma rounds of an estimator,
#   divided by 1 + L^2 = 2 (line 6). A number is what is compared, divided by nothing.
# - The clique cover is a greedy one, a partition of the silos.
# - Estimators are numbered t mod gamma. Each has a tree of its own at every silo; a user takes part
#   in one of them, so they compose in parallel.


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


def build_decentralized(keys: DecentralizedKeys, setting: Setting) -> System:
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


FEDUCB_DECENTRALIZED = Algorithm(
    id="feducb-decentralized",
    paper="dubey-pentland-2020",
    summary="FedUCB without a server: messages travel along a graph",
    keys=DecentralizedKeys,
    build=build_decentralized,
)


# ---- FedUCB's bounds along a run: what a figure may draw beside a curve, by round ----------------


def centralised(
    keys: Any, setting: Setting, found: Constants, threshold: float, rounds: np.ndarray
) -> dict[str, list[float]]:
    """Theorem 1 (its proof's two terms) and Proposition 1 (as the appendix has it), by round."""
    d, pair = setting.dimension, (found.rho_min, found.rho_max)
    law = found.kappa, setting.reward_scale, keys.failure_probability
    at = [int(t) for t in rounds]
    # The trigger's own M (rho_max - rho_min) I fires, too, and no proof counts that.
    proven = "" if pair[0] == pair[1] else ", proven without noise"
    regret = [theorem_1_two_terms(t, setting.silos, d, threshold, *pair, *law) for t in at]
    return {
        # Theorem 1 counts on each silo's own batch: it says nothing of lazy play.
        **({} if keys.lazy else {"theorem-1": regret}),
        f"synchronisations-proposition-1{proven}": [
            proposition_1_appendix(t, d, threshold, *pair) for t in at
        ],
    }


def decentralised(
    keys: Any,
    setting: Setting,
    found: Constants,
    threshold: float,
    sizes: Sequence[int],
    gamma: int,
    rounds: np.ndarray,
) -> dict[str, list[float]]:
    """Theorem 2 (its proof's sum over cliques of ``sizes`` and estimators), by round."""
    if keys.lazy:
        return {}
    pair = found.rho_min, found.rho_max
    law = found.kappa, setting.reward_scale, keys.failure_probability
    return {
        "theorem-2": [
            theorem_2_two_terms(int(t), sizes, setting.dimension, threshold, *pair, *law, gamma)
            for t in rounds
        ]
    }
