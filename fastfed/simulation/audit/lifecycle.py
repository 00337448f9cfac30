"""Audits of what happens around a release: objects made again or copied, and scores that remember.

A release is accounted once. Two noisy views of one node, from an object that was made again from
its data or copied, cost more; and lazy policies keep raw data from later users only as long as
nothing carries them over. Noise is the operating system's, as in a deployment.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from fastfed._kernels import linalg
from fastfed._random import SystemNoise, check_seed
from fastfed._validate import InputError, integer
from fastfed.bandits.silo import Silo
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.privacy.audit.bounds import AuditResult, audit, judged
from fastfed.privacy.audit.mechanisms import WORST_PAIR
from fastfed.privacy.releases.tree_release import TreeRelease
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.protocols.protocol import Report
from fastfed.protocols.randomizer import Shuffler, User
from fastfed.protocols.release import noisy
from fastfed.protocols.score import Score, score_signature
from fastfed.protocols.server import Averager, Server
from fastfed.protocols.serverless import LocalEstimate
from fastfed.protocols.vector_sum import VectorSum
from fastfed.simulation.systems import make_system

Audit = Callable[[int, int], AuditResult]

EPSILON, DELTA = 1.0, 0.01
DIMENSION = 2
RELEASES = 7  # kappa = 3
#: Views of one node: a process that is restarted so often, or copies of one object.
VIEWS = 48

#: The two datasets: everything is the same but this record's features, with reward 1.
RECORDS = tuple(np.array(x) for x in WORST_PAIR["goe2"])
#: What users in the same batch, or the other silo, have.
OTHER = np.full(DIMENSION, np.sqrt(0.5))


def _plan(algorithm: str, **keys: Any) -> Plan:
    plan: Plan = make_system(
        algorithm, horizon=RELEASES, dimension=DIMENSION, epsilon=EPSILON, delta=DELTA, **keys
    ).plan
    return plan


def _point(x: np.ndarray) -> np.ndarray:
    point = np.zeros(DIMENSION + DIMENSION * (DIMENSION + 1) // 2)
    linalg.accumulate(point, x, 1.0)
    return point


def _served(plan: Plan, x: np.ndarray, noise: SystemNoise | None = None) -> Silo:
    """A silo of batches of one, at the end of its first."""
    silo = Silo(plan, 0, noise)
    silo.select(x[None])
    silo.observe(1.0)
    return silo


def _values(silo: Silo) -> np.ndarray:
    report = silo.report()
    assert isinstance(report, Report)
    return report.values


# ---- made again ----------------------------------------------------------------------------------


def audit_restart(name: str, trials: int, seed: int) -> AuditResult:
    """A silo that is made again from its data before its first report is received, VIEWS times.

    Each report alone has the claim. Their mean has the noise of one divided by sqrt(VIEWS), and is
    sufficient: the statistic is its log likelihood ratio.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan("private-fedlinucb", protocol="silo-ldp", release="tree", batch_size=1)
    direction = (_point(RECORDS[1]) - _point(RECORDS[0])) / _variances(plan.noise_std)

    def runs(world: int) -> np.ndarray:
        found = np.empty(trials)
        for trial in range(trials):
            views = [_values(_served(plan, RECORDS[world])) for _ in range(VIEWS)]
            found[trial] = np.mean(views, axis=0) @ direction
        return found

    return audit(name, runs(0), runs(1), claimed_epsilon=EPSILON, delta=DELTA)


def _variances(std: NoiseStd) -> np.ndarray:
    rows, columns = np.tril_indices(DIMENSION)
    on = np.where(rows == columns, std.diagonal, std.off_diagonal)
    result: np.ndarray = np.concatenate([np.full(DIMENSION, std.bias), on]) ** 2
    return result


# ---- copied --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Original:
    """An object that draws noise, as it stands before a release.

    make: the object that holds the record of one world. release: what a copy of it gives away, a
    vector; None where two views tell no more than one.
    """

    make: Callable[[int], Any]
    release: Callable[[Any], np.ndarray] | None = None


def _pickled(original: Any, count: int) -> list[Any]:
    written = pickle.dumps(original)
    return [pickle.loads(written) for _ in range(count)]


#: Ways to make so many objects out of one, those that share least first.
WAYS: dict[str, Callable[[Any, int], list[Any]]] = {
    "pickle": _pickled,
    "copy.deepcopy": lambda original, count: [copy.deepcopy(original) for _ in range(count)],
    "copy.copy": lambda original, count: [copy.copy(original) for _ in range(count)],
}


def _expert_client(noise: str, world: int) -> ExpertClient:
    """A client whose first report is due."""
    plan = _expert_plan(noise)
    client = ExpertClient(plan, 0)
    client.receive(ExpertServer(plan).start())
    for _ in range(1, plan.phases[0].first):
        client.observe(_loss(world))
    return client


@cache
def _expert_plan(noise: str) -> Any:
    keys: dict[str, Any] = {"epsilon": EPSILON, "noise": noise, "batch": "largest"}
    return make_system("fed-dp-ope-stoch", silos=1, horizon=64, dimension=2, **keys).plan


def _loss(world: int) -> np.ndarray:
    return np.array([float(world == 0), float(world == 1)])


def originals() -> dict[str, Original]:
    """Objects that must not be copied, by the name of their class."""
    silo_plan = _plan("private-fedlinucb", protocol="silo-ldp", release="tree", batch_size=1)
    central = _plan("private-fedlinucb", protocol="central", release="tree", batch_size=1)
    shuffled = _plan("linucb-sdp-amp", batch_size=1)
    users = _plan("linucb-ldp", batch_size=1)
    robin = make_system(
        "robin",
        silos=4,
        horizon=14,
        dimension=DIMENSION,
        epsilon=EPSILON,
        delta=DELTA,
        initial_phases=2,
        diversity=0.5,
    ).plan

    # Calibrated once, and not in every trial.
    bits = VectorSum(DIMENSION, 20, epsilon=EPSILON, delta=DELTA).noise_bits

    def of_server(world: int) -> tuple[Server, Report]:
        return Server(central), Report(1, DIMENSION, _point(RECORDS[world]), 0)

    def of_user(world: int) -> Any:
        return User(users, 1), RECORDS[world]

    def of_tree(world: int) -> Any:
        total = TreeRelease(DIMENSION, RELEASES, epsilon=EPSILON, delta=DELTA)
        return total, RECORDS[world]

    def of_sum(world: int) -> Any:
        protocol = VectorSum(DIMENSION, 20, noise_bits=bits)
        return protocol, np.array([RECORDS[world], *[OTHER] * 19])

    def of_averager(world: int) -> Any:
        rows = [RECORDS[world], OTHER, OTHER, OTHER]
        phase = robin.releasing[0]
        return Averager(robin), [LocalEstimate(phase, x, i) for i, x in enumerate(rows)]

    def of_expert_server(world: int) -> Any:
        server = ExpertServer(_expert_plan("central"))
        server.start()
        return server, _expert_client("central", world).report()

    return {
        "Silo": Original(lambda world: (_served(silo_plan, RECORDS[world]), None), _of_silo),
        "Server": Original(of_server, lambda made: made[0].combine([made[1]]).values),
        "Shuffler": Original(lambda world: (Shuffler(shuffled), None)),
        "User": Original(of_user, lambda made: made[0].message(made[1], 1.0).values),
        "TreeRelease": Original(of_tree, lambda made: made[0].add(made[1])),
        "SystemNoise": Original(
            lambda world: (SystemNoise(), _point(RECORDS[world])),
            lambda made: noisy(
                made[1], made[0].node(0, 1, DIMENSION), DIMENSION, silo_plan.noise_std
            ),
        ),
        "VectorSum": Original(of_sum, lambda made: made[0].sum(made[1])),
        "ExpertClient": Original(
            lambda world: (_expert_client("local", world), None),
            lambda made: made[0].report().values,
        ),
        "ExpertServer": Original(
            of_expert_server, lambda made: np.eye(2)[made[0].combine([made[1]]).expert]
        ),
        "Averager": Original(of_averager, lambda made: made[0].combine(made[1]).values),
    }


def _of_silo(made: Any) -> np.ndarray:
    return _values(made[0])


def copies() -> list[tuple[str, str]]:
    """(class, way) of every object that could be copied; none, if all of them refuse."""
    found = []
    for name, original in originals().items():
        for way, take in WAYS.items():
            try:
                take(original.make(0)[0], 1)
            except Exception:
                continue
            found.append((name, way))
    return found


def audit_copies(name: str, trials: int, seed: int) -> AuditResult:
    """Copies of an object that lets itself be copied, all asked for the same release.

    One object after the other, until a bound is above the claim, each with its share of the chance
    to be wrong; the bound is 0 where every object refuses. The statistic is the mean of what VIEWS
    copies release, projected on the difference of the two worlds' means, which runs of their own
    estimate.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    all_of_them, bounds = originals(), [0.0]
    ways: dict[str, str] = {}
    for kind, way in copies():
        ways.setdefault(kind, way)
    measured = [kind for kind in ways if all_of_them[kind].release is not None]
    for kind in measured:
        runs = [_views(all_of_them[kind], WAYS[ways[kind]], trials, world) for world in (0, 1)]
        fit = max(1, trials // 4)
        fitted = [rows[:fit] for rows in runs]
        spread = np.maximum(np.var(np.concatenate(fitted), axis=0), 1e-300)
        direction = (fitted[1].mean(axis=0) - fitted[0].mean(axis=0)) / spread
        first, second = (rows[fit:] @ direction for rows in runs)
        confidence = 1.0 - 0.05 / len(measured)
        found = audit(
            kind, first, second, claimed_epsilon=EPSILON, delta=DELTA, confidence=confidence
        )
        bounds.append(found.epsilon_lower_bound)
        if found.verdict == "caught":
            break
    return judged(name, max(bounds), trials, claimed_epsilon=EPSILON, delta=DELTA)


def _views(
    original: Original, take: Callable[[Any, int], list[Any]], trials: int, world: int
) -> np.ndarray:
    """The mean release of VIEWS copies, (trials, e); fewer where a copy shares what was drawn."""
    assert original.release is not None
    found = []
    for _ in range(trials):
        made, record = original.make(world)
        seen = []
        for each in take(made, VIEWS):
            try:
                seen.append(original.release((each, record)))
            except InputError:
                break
        found.append(np.mean(seen, axis=0))
    return np.array(found)


# ---- scores that remember ------------------------------------------------------------------------


@cache
def _remembering() -> Any:
    """A score that keeps the first user's first feature in its state, and chooses by it later."""
    import numba

    @numba.cfunc(score_signature())
    def remember(  # type: ignore[no-untyped-def]
        state, key, round, actions, dimension, x, w, theta, beta, gamma, scores
    ):
        if round == 1:
            state[0] = x[0]
        for a in range(actions):
            scores[a] = a * state[0]
        return actions

    return remember


@cache
def _remembering_outside() -> Any:
    """The same, in memory of its own that its state has the address of: a copy of the state is no
    copy of that memory, so this stays a fault whatever is handed to a score."""
    import numba
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing, address):  # type: ignore[no-untyped-def]
        def generated(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(types.float64)(types.int64), generated

    @numba.cfunc(score_signature())
    def remember(  # type: ignore[no-untyped-def]
        state, key, round, actions, dimension, x, w, theta, beta, gamma, scores
    ):
        memory = pointer(int(state[0]))
        if round == 1:
            memory[0] = x[0]
        for a in range(actions):
            scores[a] = a * memory[0]
        return actions

    return remember


def audit_score(name: str, outside: bool, trials: int, seed: int) -> AuditResult:
    """The second user's action, between two reports, when a score function has seen the first.

    A lazy policy shows nothing of the first user to the second before the release. The two
    datasets are the first user's features e_1 and -e_1; the statistic is the action.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan("private-fedlinucb", protocol="silo-ldp", release="tree", batch_size=2, lazy=True)
    offered = np.eye(DIMENSION)

    def runs(world: int) -> np.ndarray:
        found = np.empty(trials)
        for trial in range(trials):
            memory = np.zeros(1)
            score = Score(_remembering(), memory)
            if outside:
                # An address is below 2^48 and so a double.
                score = Score(_remembering_outside(), np.array([float(memory.ctypes.data)]))
            silo = Silo(replace(plan, score=score))
            silo.select(RECORDS[world][None])
            silo.observe(1.0)
            found[trial] = silo.select(offered)
        return found

    return audit(name, runs(0), runs(1), claimed_epsilon=EPSILON, delta=DELTA)


#: Name -> audit(trials, seed).
AUDITS: dict[str, Audit] = {
    "copies": partial(audit_copies, "copies"),
    "stateful-score": partial(audit_score, "stateful-score", False),
    "fault-restart": partial(audit_restart, "fault-restart"),
    "fault-stateful-score": partial(audit_score, "fault-stateful-score", True),
}
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each dataset that make every verdict all but certain, within seconds.
TRIALS: dict[str, int] = {
    "copies": 200,
    "stateful-score": 1000,
    "fault-restart": 800,
    "fault-stateful-score": 1000,
}
