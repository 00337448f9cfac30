"""An algorithm from another package: every batch is sent once, with noise of its own.

A new composition of what fastfed has: the randomizer that adds noise to a batch, the server that
adds up what comes, the Gaussian mechanism for a single release. A record is in one batch only, so
each batch is hidden as if it were the only release, with less noise than a node of a tree needs;
but k of these noises add up in k releases, where a tree sums log2(k) + 1 at most. For a few tens
of releases there is less noise this way, for hundreds the tree has less.
"""

from __future__ import annotations

import numpy as np

from fastfed.plugins import (
    ADD,
    SEND_NOISY_BATCH,
    Algorithm,
    Budget,
    Config,
    Noise,
    NoiseDistribution,
    NoiseStd,
    ProblemSpec,
    Protocol,
    System,
    assemble,
    calibrate_tree,
    certify,
)

PROTOCOL = Protocol(
    "noisy-batches",
    "each silo adds noise to the batch it sends",
    "silo-level local: server and other silos are not trusted",
    SEND_NOISY_BATCH,
    ADD,
    "silos",
    "one release of each batch, parallel composition",
)


class NoisyConfig(Config, frozen=True, kw_only=True):
    """Keys of a curve: those of every linear system, and the budget."""

    epsilon: float
    delta: float


def build(config: NoisyConfig, problem: ProblemSpec) -> System:
    """Plan and certificate of one curve."""
    schedule = config.batches(problem)  # equal batches, or any that are known beforehand
    mechanism = calibrate_tree(Budget(config.epsilon, config.delta), 1)  # a tree of one node
    std = NoiseStd(*mechanism.stds)
    # After k releases k noises have added up.
    distribution = NoiseDistribution(std, problem.silos, np.arange(schedule.releases + 1.0))
    clip = config.bounds(published=False)
    noise = Noise(mechanism, distribution, std)
    plan, theory = assemble(config, problem, PROTOCOL, schedule, clip, noise)
    source = f"{PROTOCOL.source}; {mechanism.source}"
    plan, certificate = certify(plan, problem, theory, noise, source)
    return System("noisy-batches", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="noisy-batches",
    paper="none",
    summary="federated LinUCB, every batch sent once with noise of its own",
    config=NoisyConfig,
    build=build,
)
