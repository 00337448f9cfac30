"""The low-bits attack on deployed objects, for every kind of released real value.

Noise comes from the operating system, as in a deployment. The attacker knows everything except
which candidate the attacked record is, and which noise was drawn. The attack excludes candidates
with which the released floats could not have their last bits. It does not depend on how the objects
draw noise. The tests that exclude candidates are in `fastfed.privacy.audit.low_bits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, cast

import numpy as np

from fastfed._random import NoiseSource, SeededNoise, check_seed
from fastfed._validate import choice
from fastfed.bandits.silo import Silo
from fastfed.experts.parties import ExpertClient, ExpertServer
from fastfed.privacy.audit.bounds import CONFIDENCE, AuditResult, audit, judged
from fastfed.privacy.audit.low_bits import (
    MEAN_LAPLACE,
    SERVER_LAPLACE,
    SYSTEM_LAPLACE,
    Channel,
    LaplaceDraws,
    LowBits,
    attack,
    rotated_mean_test,
    sound_tests,
)
from fastfed.privacy.mechanisms.winsorized import (
    WinsorizedMean,
    calibrate_winsorized,
    hadamard,
    winsorized_mean,
)
from fastfed.privacy.releases.tree_release import TreeRelease
from fastfed.privacy.sensitivity import Budget
from fastfed.protocols.plan import NoiseStd, Plan
from fastfed.protocols.protocol import Bits, Report, Shuffled, ShuffledBits
from fastfed.protocols.randomizer import Shuffler, User
from fastfed.protocols.secure_sum import Encoded
from fastfed.protocols.server import Averager, Server
from fastfed.protocols.serverless import LocalEstimate
from fastfed.simulation.systems import make_system

EPSILON, DELTA = 1.0, 1e-6
DIMENSION = 10
CANDIDATES = 200
#: Users in a batch (the last user is attacked), and batches of a plan.
BATCH, BATCHES = 4, 8
#: Vectors in a mean and their dimension, number of experts, and dimension of a running sum.
VECTORS, MEAN_DIMENSION, EXPERTS, SUM_DIMENSION = 20, 4, 20, 64


class Silent(SeededNoise):
    """A noise source that returns zeros, to compute what a release would be without noise."""

    def __init__(self) -> None:
        super().__init__(0)

    def node(self, silo: int, node: int, dimension: int) -> np.ndarray:
        """Return zeros instead of the noise (s,) of a tree node."""
        return np.zeros(dimension + dimension * (dimension + 1) // 2)


class Records:
    """Candidates for the attacked record, and the other records, which the attacker knows.

    All features are random unit vectors; rewards are uniform in [0, 1].
    """

    def __init__(self, count: int, dimension: int, seed: int) -> None:
        self.seed = check_seed(seed)
        generator = np.random.default_rng(seed)
        features = generator.normal(size=(count + BATCH, dimension))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        rewards = generator.uniform(size=count + BATCH)
        self.features, self.rewards = features[:count], rewards[:count]
        self.others = list(zip(features[count:], rewards[count:], strict=True))

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, index: int) -> list[tuple[np.ndarray, float]]:
        """Return a batch whose last record is candidate ``index``."""
        return [*self.others[: BATCH - 1], (self.features[index], float(self.rewards[index]))]


def _stds(std: NoiseStd, dimension: int) -> np.ndarray:
    """Return the noise standard deviation of each entry of a statistic, (s,).

    A statistic is the bias vector (d,), followed by the lower triangle of the covariance matrix.
    """
    rows, columns = np.tril_indices(dimension)
    covariance_std = np.where(rows == columns, std.diagonal, std.off_diagonal)
    return np.concatenate([np.full(dimension, std.bias), covariance_std])


def _statistic(message: Report | Bits | Encoded | Shuffled | ShuffledBits) -> np.ndarray:
    """Return the statistic (s,) of a message that contains no bits."""
    assert isinstance(message, Report | Shuffled)
    return message.values


def _channel(
    name: str,
    records: Records,
    released: Callable[[NoiseSource | None, int], np.ndarray],
    stds: np.ndarray,
) -> Channel:
    """Return the channel of a release, through which the attacker observes candidates.

    ``released(noise, index)`` returns the released vector if the attacked record is candidate
    ``index``. If ``noise`` is None, the noise comes from the operating system. With a `Silent`
    noise source, the vector is the contribution of the candidate. ``stds`` are the standard
    deviations of the noise.
    """
    contributions = [released(Silent(), i) for i in range(len(records))]
    return Channel(
        name,
        np.array(contributions)[:, None, :],  # one variant: nothing else is unknown
        stds,
        lambda index: released(None, index),
    )


# ---- linear bandits ------------------------------------------------------------------------------


def _plan_of(algorithm: str, **keys: Any) -> Plan:
    """Return the plan of an attacked algorithm with these keys."""
    plan: Plan = make_system(
        algorithm, dimension=DIMENSION, epsilon=EPSILON, delta=DELTA, **keys
    ).plan
    return plan


def _serve_users(silo: Silo, records: Sequence[tuple[np.ndarray, float]]) -> None:
    """Let a silo serve one user for each record: a single action, and its reward."""
    for x, reward in records:
        silo.select(x[None])
        silo.observe(reward)


def _silo_channel(algorithm: str, **keys: Any) -> Callable[[str, Records], Channel]:
    """Return a function that makes the channel of a silo's first report."""

    def make_channel(name: str, records: Records) -> Channel:
        """Return the channel of one silo's report with noise."""
        plan = _plan_of(algorithm, horizon=BATCH * BATCHES, **keys)

        def released(noise: NoiseSource | None, index: int) -> np.ndarray:
            """Return the first report of a silo whose batch contains candidate ``index``."""
            silo = Silo(plan, 0, noise)
            _serve_users(silo, records.batch(index))
            return _statistic(silo.report())

        return _channel(name, records, released, _stds(plan.noise_std, DIMENSION))

    return make_channel


def _server_channel(algorithm: str, **keys: Any) -> Callable[[str, Records], Channel]:
    """Return a function that makes the channel of the first broadcast, with the server's noise."""

    def make_channel(name: str, records: Records) -> Channel:
        """Return the channel of the server's sum with noise."""
        plan = _plan_of(algorithm, horizon=BATCH * BATCHES, **keys)

        def released(noise: NoiseSource | None, index: int) -> np.ndarray:
            """Return the broadcast if the batch of silo 0 contains candidate ``index``."""
            silos = [Silo(plan, i, noise) for i in range(plan.silos)]
            for i, silo in enumerate(silos):
                _serve_users(silo, records.batch(index) if i == 0 else records.others)
            return Server(plan, noise).combine([silo.report() for silo in silos]).values

        return _channel(name, records, released, _stds(plan.noise_std, DIMENSION))

    return make_channel


def _user_channel(name: str, records: Records) -> Channel:
    """Return the channel of one user's message under local DP (`linucb-ldp`)."""
    plan = _plan_of("linucb-ldp", horizon=BATCH * BATCHES)

    def released(noise: NoiseSource | None, index: int) -> np.ndarray:
        """Return the message of a user whose record is candidate ``index``."""
        user = User(plan, 1, noise)
        return _statistic(user.message(records.features[index], records.rewards[index]))

    return _channel(name, records, released, _stds(plan.user_std, DIMENSION))


def _shuffled_channel(name: str, records: Records) -> Channel:
    """Return the channel of the covariance part of the attacked user's message after the shuffler.

    The shuffler hides which user sent which message. The attacker tests each message against all
    candidates, to learn the action that was chosen for the attacked user.
    """
    plan = _plan_of("linucb-sdp-amp", horizon=BATCH * BATCHES, batch_size=BATCH)

    def released(noise: NoiseSource | None, index: int) -> np.ndarray:
        """Return the covariance part of the attacked user's message, after the shuffler.

        The attacked user is the last of the batch, and has the record of candidate ``index``.
        """
        messages = [
            User(plan, number, noise).message(*record)
            for number, record in enumerate(records.batch(index), start=1)
        ]
        shuffled = Shuffler(plan, noise).shuffle(messages)
        # The experiment, but not the attacker, knows which message is the attacked user's.
        user_part = _statistic(messages[-1])[DIMENSION:]
        parts = [_statistic(message)[DIMENSION:] for message in shuffled]
        return next(part for part in parts if np.array_equal(part, user_part))

    return _channel(name, records, released, _stds(plan.user_std, DIMENSION)[DIMENSION:])


# ---- sums, means, experts ------------------------------------------------------------------------


def _tree_channel(name: str, records: Records) -> Channel:
    """Return the channel of the first prefix sum of a TreeRelease."""
    vectors = Records(len(records), SUM_DIMENSION, records.seed).features

    def released(noise: NoiseSource | None, index: int) -> np.ndarray:
        """Return the first prefix sum: the vector of candidate ``index`` plus noise."""
        silent = None if noise is None else lambda node: np.zeros(SUM_DIMENSION)
        sums = TreeRelease(SUM_DIMENSION, BATCHES, epsilon=EPSILON, delta=DELTA, noise=silent)
        return sums.add(vectors[index])

    std = TreeRelease(SUM_DIMENSION, BATCHES, epsilon=EPSILON, delta=DELTA).noise_std
    return _channel(name, records, released, np.full(SUM_DIMENSION, std))


def _vectors_to_average(records: Records, index: int) -> np.ndarray:
    """Return the vectors (n, d) whose mean is released.

    The last vector belongs to candidate ``index``; the attacker knows the others.
    """
    vectors = np.resize([x[:MEAN_DIMENSION] for x, _ in records.others], (VECTORS, MEAN_DIMENSION))
    vectors[-1] = records.features[index, :MEAN_DIMENSION]
    return vectors


def _rotated_mean_channel(
    name: str,
    records: Records,
    mechanism: WinsorizedMean,
    draws: LaplaceDraws,
    send: Callable[[np.ndarray], np.ndarray],
) -> Channel:
    """Return the channel of a winsorized mean whose private range has a single bin, around 0.

    ``send(vectors)`` returns the released mean of vectors (n, d). ``draws`` states how the
    mechanism draws Laplace noise. The mechanism multiplies the coordinates by random signs before a
    Hadamard rotation. A release is tested against the rotations for all signs.
    """
    assert mechanism.bins == 1 and mechanism.padded == MEAN_DIMENSION
    signs = np.array(list(product((-1.0, 1.0), repeat=MEAN_DIMENSION)))
    root = np.sqrt(MEAN_DIMENSION)
    vectors = np.array([_vectors_to_average(records, i) for i in range(len(records))])
    rotated = hadamard(vectors[:, None] * signs[None, :, None]) / root  # (records, signs, n, d)
    # cumsum adds the vectors in order, as `seeded_mean` does: other orders may round differently.
    means = np.cumsum(rotated, axis=2)[:, :, -1] / VECTORS
    scale = mechanism.noise_stds["mean"] / np.sqrt(2.0)
    return Channel(
        name,
        vectors.mean(axis=1)[:, None],
        np.full(MEAN_DIMENSION, scale),
        lambda index: send(vectors[index]),
        explained=rotated_mean_test(means, signs, scale, draws),
    )


def _mean_channel(name: str, records: Records) -> Channel:
    """Return the channel of a winsorized mean of vectors, with noise, that is computed once."""
    mechanism = calibrate_winsorized(
        Budget(EPSILON, DELTA),
        silos=VECTORS,
        dimension=MEAN_DIMENSION,
        radius=1.0,
        bound=1.0 / np.sqrt(MEAN_DIMENSION),
        releases=1,
        concentration_failure=0.05,
    )

    def send(vectors: np.ndarray) -> np.ndarray:
        """Return the winsorized mean of the vectors, with noise."""
        return winsorized_mean(vectors, epsilon=EPSILON, delta=DELTA, radius=1.0)[0]

    return _rotated_mean_channel(name, records, mechanism, MEAN_LAPLACE, send)


def _averager_channel(name: str, records: Records) -> Channel:
    """Return the channel of the first model that ROBIN's server releases, a winsorized mean."""
    plan = make_system(
        "robin",
        silos=VECTORS,
        horizon=14,
        dimension=MEAN_DIMENSION,
        epsilon=EPSILON,
        delta=DELTA,
        initial_phases=2,
        diversity=0.5,
    ).plan
    phase = plan.releasing[0]

    def send(vectors: np.ndarray) -> np.ndarray:
        """Return the server's first model if the clients' estimates are these vectors."""
        estimates = [LocalEstimate(phase, x, i) for i, x in enumerate(vectors)]
        return Averager(plan).combine(estimates).values

    return _rotated_mean_channel(name, records, plan.means[0], SERVER_LAPLACE, send)


def _expert_client_channel(name: str, records: Records) -> Channel:
    """Return the channel of a client's first report, which holds scores with local noise.

    A score is a mean over the losses of a sample. All losses but the attacked one are 0. Only the
    client knows whether the attacked loss is in its sample. So the channel has two contributions
    for each candidate: its loss divided by the sample size, and 0.
    """
    generator = np.random.default_rng(records.seed)
    losses = generator.uniform(size=(len(records), EXPERTS))
    plan = make_system(
        "fed-dp-ope-stoch",
        silos=2,
        horizon=64,
        dimension=EXPERTS,
        epsilon=EPSILON,
        noise="local",
        batch="largest",
    ).plan
    first_phase = plan.phases[0]
    victim = first_phase.samples[0]

    def released(index: int) -> np.ndarray:
        """Return the client's first report if the attacked loss is candidate ``index``."""
        client = ExpertClient(plan, 0)
        client.receive(ExpertServer(plan).start())
        for round in range(1, first_phase.first):
            client.observe(losses[index] if round == victim else np.zeros(EXPERTS))
        values: np.ndarray = client.report().values
        return values

    # The scores (candidate, expert) if the sample of the first leaf contains the attacked loss.
    scores_if_sampled = losses / first_phase.leaves[0].stop
    return Channel(
        name,
        np.stack([scores_if_sampled, np.zeros_like(scores_if_sampled)], axis=1),
        np.full(EXPERTS, plan.scale(1)),
        released,
        SYSTEM_LAPLACE.image,
    )


#: Function channel(name, records) of each kind of release.
KINDS: dict[str, Callable[[str, Records], Channel]] = {
    "linucb-ldp": _user_channel,
    "linucb-sdp-amp": _shuffled_channel,
    "linucb-jdp": _server_channel("linucb-jdp", release="tree", batch_size=BATCH),
    "silo-ldp-tree": _silo_channel(
        "private-fedlinucb", protocol="silo-ldp", release="tree", batch_size=BATCH
    ),
    "silo-ldp-prefix": _silo_channel(
        "private-fedlinucb", protocol="silo-ldp-prefix", batch_size=BATCH
    ),
    "silo-ldp-toeplitz": _silo_channel(
        "private-fedlinucb", protocol="silo-ldp", release="toeplitz", batch_size=BATCH
    ),
    "silo-ldp-honaker": _silo_channel(
        "private-fedlinucb", protocol="silo-ldp", release="honaker", batch_size=BATCH
    ),
    "central-tree": _server_channel(
        "private-fedlinucb", protocol="central", release="tree", silos=2, batch_size=BATCH
    ),
    "central-toeplitz": _server_channel(
        "private-fedlinucb", protocol="central", release="toeplitz", silos=2, batch_size=BATCH
    ),
    "central-honaker": _server_channel(
        "private-fedlinucb", protocol="central", release="honaker", silos=2, batch_size=BATCH
    ),
    "feducb": _silo_channel("feducb", schedule="fixed", batch_size=BATCH),
    "tree-release": _tree_channel,
    "winsorized-mean": _mean_channel,
    "averager": _averager_channel,
    "fed-dp-ope-stoch": _expert_client_channel,
}


def channel(kind: str, candidates: int = CANDIDATES, seed: int = 1) -> Channel:
    """Return the channel of this kind of release (a key of KINDS).

    ``candidates`` is the number of candidate records.
    """
    make_channel = KINDS[choice("kind", kind, tuple(KINDS))]
    return make_channel(kind, Records(candidates, DIMENSION, seed))


def attack_all(
    messages: int = 1000,
    candidates: int = CANDIDATES,
    kinds: Sequence[str] | None = None,
    seed: int = 1,
) -> list[LowBits]:
    """Attack every kind of release.

    Parameters
    ----------
    messages : int
        Number of messages of each kind.
    candidates : int
        Number of candidate records that are tested for each message.
    kinds : sequence of str, optional
        Keys of KINDS. Default: all kinds.
    seed : int
        Seed of the records. Noise comes from the operating system.

    Returns
    -------
    list of LowBits
        The result of each kind.
    """
    return [
        attack(channel(kind, candidates, seed), messages, seed=seed)
        for kind in (kinds if kinds is not None else KINDS)
    ]


def table(rows: Sequence[LowBits]) -> str:
    """Format the results of an attack as a table, one row per kind."""
    lines = [f"{'release':<20}{'messages':>9}{'candidates':>11}{'wrong':>7}{'decoded':>9}"]
    lines[0] += f"{'excluded':>10}{'seconds':>9}  tests (unsound)"
    for row in rows:
        unsound_tests = f" ({', '.join(row.unsound)})" if row.unsound else ""
        lines.append(
            f"{row.kind:<20}{row.messages:>9}{row.candidates:>11}{row.wrongly_excluded:>7}"
            f"{row.decoded:>9}{row.excluded:>10.4f}{row.seconds:>9.1f}  "
            f"{', '.join(row.tests) or 'none'}{unsound_tests}"
        )
    return "\n".join(lines)


# ---- the audit -----------------------------------------------------------------------------------

#: The kinds that the audit attacks: one for each way of adding noise.
AUDITED = ("linucb-ldp", "silo-ldp-tree", "silo-ldp-toeplitz", "central-tree", "tree-release")


def scores(target: Channel, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Attack ``trials`` releases of record 0 and of record 1; return two arrays of statistics.

    The statistic of a release is 1 if the attacker's tests allow only record 1, -1 if they allow
    only record 0, and 0 otherwise. A test is used if it was sound on 100 other releases.
    """
    sound, _ = sound_tests(target, 100, np.random.default_rng(seed))
    statistic = np.zeros((2, trials))
    for world in (0, 1):
        for trial in range(trials):
            released = target.send(world)
            possible = np.ones(target.candidates, dtype=bool)
            for test in sound.values():
                possible &= test(released)
            statistic[world, trial] = float(possible[1]) - float(possible[0])
    return statistic[0], statistic[1]


def audit_low_bits(name: str, trials: int, seed: int) -> AuditResult:
    """Audit the low bits of all kinds of releases in AUDITED, and return one result for them.

    The audit of a kind attacks releases with two candidates for one record, and gives a lower bound
    on epsilon. The result reports the largest of these lower bounds. The probability of error is
    divided among the kinds, so the lower bounds of all kinds hold together. ``largest_bound`` of
    the result is the largest lower bound that this number of trials could have given.
    """
    seed = check_seed(seed)
    error_probability = (1.0 - CONFIDENCE) / len(AUDITED)
    results = []
    for kind in AUDITED:
        statistics_0, statistics_1 = scores(channel(kind, 2, seed), trials, seed)
        result = audit(
            kind,
            statistics_0,
            statistics_1,
            claimed_epsilon=EPSILON,
            delta=DELTA,
            confidence=1.0 - error_probability,
        )
        results.append(result)
    return judged(
        name,
        max(result.epsilon_lower_bound for result in results),
        trials,
        claimed_epsilon=EPSILON,
        delta=DELTA,
        largest_bound=max(cast(float, result.largest_bound) for result in results),
    )
