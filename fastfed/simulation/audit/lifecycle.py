"""Audits of recreated and copied objects, and of score functions with memory.

A release is accounted for once. An object that is created again from its data, or copied, could
release one tree node twice with independent noise, which costs more privacy. A lazy policy hides
raw data from later users of a batch only if no score function stores these data. Noise comes from
the operating system, as in a deployment.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

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
RELEASES = 7  # so the tree has kappa = 3 levels
#: Number of noisy views of one node, from restarts of a process or copies of an object.
VIEWS = 48

#: Features of one record in the two worlds; its reward is 1, and all other data are equal.
RECORDS = tuple(np.array(x) for x in WORST_PAIR["goe2"])
#: Features of all other users.
OTHER = np.full(DIMENSION, np.sqrt(0.5))


def _plan(algorithm: str, **keys: Any) -> Plan:
    """Return the plan of an audited system."""
    plan: Plan = make_system(
        algorithm, horizon=RELEASES, dimension=DIMENSION, epsilon=EPSILON, delta=DELTA, **keys
    ).plan
    return plan


def _point(x: np.ndarray) -> np.ndarray:
    """Return the statistic (s,) of a record with features x (d,) and reward 1."""
    point = np.zeros(DIMENSION + DIMENSION * (DIMENSION + 1) // 2)
    linalg.accumulate(point, x, 1.0)
    return point


def _served_silo(plan: Plan, x: np.ndarray, noise: SystemNoise | None = None) -> Silo:
    """Return a silo after its first round, whose user has features x (d,) and reward 1."""
    silo = Silo(plan, 0, noise)
    silo.select(x[None])
    silo.observe(1.0)
    return silo


def _values(silo: Silo) -> np.ndarray:
    """Return the values (s,) of the silo's next report."""
    report = silo.report()
    assert isinstance(report, Report)
    return report.values


# ---- objects that are created again --------------------------------------------------------------


def audit_restart(name: str, trials: int, seed: int) -> AuditResult:
    """Audit a silo that is created VIEWS times from the same data, and each time reports one node.

    This is a planted fault: only a single report satisfies the claim. The mean of the reports is a
    sufficient statistic, with the noise of one report divided by sqrt(VIEWS). The audit uses its
    log likelihood ratio.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    plan = _plan("private-fedlinucb", protocol="silo-ldp", release="tree", batch_size=1)
    direction = (_point(RECORDS[1]) - _point(RECORDS[0])) / _variances(plan.noise_std)

    def runs(world: int) -> np.ndarray:
        """Return the log likelihood ratio of the mean report in each trial, up to a constant."""
        ratios = np.empty(trials)
        for trial in range(trials):
            views = [_values(_served_silo(plan, RECORDS[world])) for _ in range(VIEWS)]
            ratios[trial] = np.mean(views, axis=0) @ direction
        return ratios

    return audit(name, runs(0), runs(1), claimed_epsilon=EPSILON, delta=DELTA)


def _variances(std: NoiseStd) -> np.ndarray:
    """Return the noise variance of each entry of a statistic, (s,)."""
    rows, columns = np.tril_indices(DIMENSION)
    covariance_std = np.where(rows == columns, std.diagonal, std.off_diagonal)
    variances: np.ndarray = np.concatenate([np.full(DIMENSION, std.bias), covariance_std]) ** 2
    return variances


# ---- objects that are copied ---------------------------------------------------------------------


@dataclass(frozen=True)
class Original:
    """An object that draws noise, in its state before a release, whose copies are audited.

    ``make(world)`` returns a pair: the object, and an argument for its release; one of the two
    holds the record of that world. ``release(pair)`` returns the released vector. ``release`` is
    None if two releases reveal no more than one.
    """

    make: Callable[[int], Any]
    release: Callable[[Any], np.ndarray] | None = None


def _pickled(original: Any, count: int) -> list[Any]:
    """Return ``count`` copies of an object by pickle."""
    pickled = pickle.dumps(original)
    return [pickle.loads(pickled) for _ in range(count)]


#: Ways to copy an object ``count`` times. The first way shares the least with the original.
WAYS: dict[str, Callable[[Any, int], list[Any]]] = {
    "pickle": _pickled,
    "copy.deepcopy": lambda original, count: [copy.deepcopy(original) for _ in range(count)],
    "copy.copy": lambda original, count: [copy.copy(original) for _ in range(count)],
}


def _expert_client(noise: str, world: int) -> ExpertClient:
    """Return a client of a plan with ``noise``, which has all losses for its first report."""
    plan = _expert_plan(noise)
    client = ExpertClient(plan, 0)
    client.receive(ExpertServer(plan).start())
    for _ in range(1, plan.phases[0].first):
        client.observe(_loss(world))
    return client


@cache
def _expert_plan(noise: str) -> Any:
    """Return a plan of Fed-DP-OPE-Stoch with "local" or "central" noise."""
    keys: dict[str, Any] = {"epsilon": EPSILON, "noise": noise, "batch": "largest"}
    return make_system("fed-dp-ope-stoch", silos=1, horizon=64, dimension=2, **keys).plan


def _loss(world: int) -> np.ndarray:
    """Return the losses (2,) of the audited client in a world."""
    return np.array([float(world == 0), float(world == 1)])


def originals() -> dict[str, Original]:
    """Return the objects that must not be copied, by the name of their class."""
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

    # Calibrate once, not in every trial.
    bits = VectorSum(DIMENSION, 20, epsilon=EPSILON, delta=DELTA).noise_bits

    def of_server(world: int) -> tuple[Server, Report]:
        """Return a server, and a silo's report with the record of this world."""
        return Server(central), Report(1, DIMENSION, _point(RECORDS[world]), 0)

    def of_user(world: int) -> Any:
        """Return a user, and the features of the user's record in this world."""
        return User(users, 1), RECORDS[world]

    def of_tree(world: int) -> Any:
        """Return a release of running sums, and the record of this world."""
        sums = TreeRelease(DIMENSION, RELEASES, epsilon=EPSILON, delta=DELTA)
        return sums, RECORDS[world]

    def of_sum(world: int) -> Any:
        """Return a protocol for one sum, and vectors whose first is the record of this world."""
        protocol = VectorSum(DIMENSION, 20, noise_bits=bits)
        return protocol, np.array([RECORDS[world], *[OTHER] * 19])

    def of_averager(world: int) -> Any:
        """Return a server of ROBIN, and estimates whose first is the record of this world."""
        rows = [RECORDS[world], OTHER, OTHER, OTHER]
        phase = robin.releasing[0]
        return Averager(robin), [LocalEstimate(phase, x, i) for i, x in enumerate(rows)]

    def of_expert_server(world: int) -> Any:
        """Return a server of experts, and a client's report with the loss of this world."""
        server = ExpertServer(_expert_plan("central"))
        server.start()
        return server, _expert_client("central", world).report()

    return {
        "Silo": Original(lambda world: (_served_silo(silo_plan, RECORDS[world]), None), _of_silo),
        "Server": Original(of_server, lambda objects: objects[0].combine([objects[1]]).values),
        "Shuffler": Original(lambda world: (Shuffler(shuffled), None)),
        "User": Original(of_user, lambda objects: objects[0].message(objects[1], 1.0).values),
        "TreeRelease": Original(of_tree, lambda objects: objects[0].add(objects[1])),
        "SystemNoise": Original(
            lambda world: (SystemNoise(), _point(RECORDS[world])),
            lambda objects: noisy(
                objects[1], objects[0].node(0, 1, DIMENSION), DIMENSION, silo_plan.noise_std
            ),
        ),
        "VectorSum": Original(of_sum, lambda objects: objects[0].sum(objects[1])),
        "ExpertClient": Original(
            lambda world: (_expert_client("local", world), None),
            lambda objects: objects[0].report().values,
        ),
        "ExpertServer": Original(
            of_expert_server, lambda objects: np.eye(2)[objects[0].combine([objects[1]]).expert]
        ),
        "Averager": Original(of_averager, lambda objects: objects[0].combine(objects[1]).values),
    }


def _of_silo(pair: Any) -> np.ndarray:
    """Return the next report (s,) of the silo in a pair (silo, None), see `Original`."""
    return _values(pair[0])


def copies() -> list[tuple[str, str]]:
    """List each object that could be copied, as (its class, the way of copying it).

    The list should be empty: objects that draw noise must refuse all copies.
    """
    copied = []
    for class_name, original in originals().items():
        for way, copy_object in WAYS.items():
            try:
                # Copy the object of world 0 once.
                copy_object(original.make(0)[0], 1)
            except Exception:
                continue
            copied.append((class_name, way))
    return copied


def audit_copies(name: str, trials: int, seed: int) -> AuditResult:
    """Audit what all copies of an object reveal together, for every object that can be copied.

    An object is an instance of a class in `originals`, without those whose ``release`` is None.
    Objects are audited one by one until the lower bound on the epsilon of one object is above the
    claimed EPSILON. The probability of error (0.05) is divided among them. The bound is 0 if every
    object refuses to be copied.

    The statistic is the mean release of VIEWS copies, projected on a direction: the difference
    between the means of the two worlds, each entry divided by its variance. Means and variances are
    estimated from separate runs.
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    objects = originals()
    results: list[AuditResult] = []
    way_of_class: dict[str, str] = {}
    for class_name, way in copies():
        way_of_class.setdefault(class_name, way)
    audited = [c for c in way_of_class if objects[c].release is not None]
    for class_name in audited:
        releases_by_world = [
            _mean_releases(objects[class_name], WAYS[way_of_class[class_name]], trials, world)
            for world in (0, 1)
        ]
        fit_trials = max(1, trials // 4)
        fit_runs = [releases[:fit_trials] for releases in releases_by_world]
        variances = np.maximum(np.var(np.concatenate(fit_runs), axis=0), 1e-300)
        direction = (fit_runs[1].mean(axis=0) - fit_runs[0].mean(axis=0)) / variances
        statistics_0, statistics_1 = (
            releases[fit_trials:] @ direction for releases in releases_by_world
        )
        confidence = 1.0 - 0.05 / len(audited)
        result = audit(
            class_name,
            statistics_0,
            statistics_1,
            claimed_epsilon=EPSILON,
            delta=DELTA,
            confidence=confidence,
        )
        results.append(result)
        if result.verdict == "caught":
            break
    return judged(
        name,
        max((result.epsilon_lower_bound for result in results), default=0.0),
        trials,
        claimed_epsilon=EPSILON,
        delta=DELTA,
        largest_bound=max((cast(float, r.largest_bound) for r in results), default=None),
    )


def _mean_releases(
    original: Original, copy_object: Callable[[Any, int], list[Any]], trials: int, world: int
) -> np.ndarray:
    """Return the mean release of VIEWS copies of an object in each trial, (trials, size).

    A copy that shares its state with an earlier copy may refuse to release again. The mean is then
    over the releases of the earlier copies.
    """
    assert original.release is not None
    means = []
    for _ in range(trials):
        instance, record = original.make(world)
        releases = []
        for copied in copy_object(instance, VIEWS):
            try:
                releases.append(original.release((copied, record)))
            except InputError:
                break
        means.append(np.mean(releases, axis=0))
    return np.array(means)


# ---- score functions with memory -----------------------------------------------------------------


@cache
def _score_with_memory_in_state() -> Any:
    """Return a compiled score function that remembers the first user.

    It stores the first feature of round 1 in its state. The scores of later rounds depend on it.
    """
    import numba

    @numba.cfunc(score_signature())
    def remember(  # type: ignore[no-untyped-def]
        state, key, round, actions, dimension, x, w, theta, beta, gamma, scores
    ):
        """Score action a by a times the first feature of round 1, which the state holds."""
        if round == 1:
            state[0] = x[0]
        for a in range(actions):
            scores[a] = a * state[0]
        return actions

    return remember


@cache
def _score_with_memory_outside_state() -> Any:
    """Return a compiled score function that remembers the first user outside of its state.

    It is like `_score_with_memory_in_state`, but stores the feature in separate memory. The state
    holds only the address of this memory. The state is copied for every call, which protects later
    users from a score that writes into its state. It does not protect them from this score, which
    is always a fault: a copied address points to the same memory.
    """
    import numba
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing, address):  # type: ignore[no-untyped-def]
        """Return the typing and the code of a cast from an address to a pointer."""

        def generated(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            """Generate the instruction that casts the address."""
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(types.float64)(types.int64), generated

    @numba.cfunc(score_signature())
    def remember(  # type: ignore[no-untyped-def]
        state, key, round, actions, dimension, x, w, theta, beta, gamma, scores
    ):
        """Score action a by a times the first feature of round 1, which the memory holds."""
        memory = pointer(int(state[0]))
        if round == 1:
            memory[0] = x[0]
        for a in range(actions):
            scores[a] = a * memory[0]
        return actions

    return remember


def audit_score(name: str, memory_outside: bool, trials: int, seed: int) -> AuditResult:
    """Audit whether the second user's action depends on the first user through a score function.

    Both users are in one batch, so a lazy policy must not reveal the first user to the second. In
    the two worlds the first user's features are e_1 and -e_1. The statistic is the second user's
    action. With ``memory_outside``, the score stores data outside of its state (a planted fault).
    """
    trials = integer("trials", trials, at_least=2, at_most=2**31 - 1)
    check_seed(seed)
    # The value 1 means no sieve. With a sieve the score would not be called.
    keys = {"protocol": "silo-ldp", "release": "tree", "batch_size": 2, "lazy": True, "sieve": 1.0}
    plan = _plan("private-fedlinucb", **keys)
    actions = np.eye(DIMENSION)

    def runs(world: int) -> np.ndarray:
        """Return the action that the silo chooses for the second user in each trial, (trials,)."""
        chosen_actions = np.empty(trials)
        for trial in range(trials):
            memory = np.zeros(1)
            score = Score(_score_with_memory_in_state(), memory)
            if memory_outside:
                # An address is below 2^48, so float64 holds it exactly.
                score = Score(
                    _score_with_memory_outside_state(), np.array([float(memory.ctypes.data)])
                )
            silo = Silo(replace(plan, score=score))
            silo.select(RECORDS[world][None])
            silo.observe(1.0)
            chosen_actions[trial] = silo.select(actions)
        return chosen_actions

    return audit(name, runs(0), runs(1), claimed_epsilon=EPSILON, delta=DELTA)


#: Function audit(trials, seed) of each audit, by name.
AUDITS: dict[str, Audit] = {
    "copies": partial(audit_copies, "copies"),
    "stateful-score": partial(audit_score, "stateful-score", False),
    "fault-restart": partial(audit_restart, "fault-restart"),
    "fault-stateful-score": partial(audit_score, "fault-stateful-score", True),
}
FAULTY = frozenset(name for name in AUDITS if name.startswith("fault-"))
#: Runs on each data set, enough for a nearly certain verdict within seconds.
TRIALS: dict[str, int] = {
    "copies": 200,
    "stateful-score": 1000,
    "fault-restart": 800,
    "fault-stateful-score": 1000,
}
