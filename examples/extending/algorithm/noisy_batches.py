"""An algorithm from another package: every batch is sent once, with noise of its own.

A new composition of what fastfed has: the randomizer that adds noise to a batch, the server that
adds up what comes, the Gaussian mechanism for a single release. A record is in one batch only, so
each batch is hidden as if it were the only release, with less noise than a node of a tree needs;
but k of these noises add up in k releases, where a tree sums log2(k) + 1 at most. For a few tens
of releases there is less noise this way, for hundreds the tree has less.
"""

from __future__ import annotations

import numpy as np

from fastfed.bandits import Algorithm, Setting, System
from fastfed.bandits.assemble import Noise, assemble
from fastfed.bandits.certify import certify
from fastfed.bandits.noise_distributions import NoiseLaw
from fastfed.bandits.system import Keys
from fastfed.privacy import Budget
from fastfed.privacy.releases.gaussian_release import calibrate_tree
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import ADD, SEND_NOISY_BATCH, Protocol

PROTOCOL = Protocol(
    "noisy-batches",
    "each silo adds noise to the batch it sends",
    "silo-level local: server and other silos are not trusted",
    SEND_NOISY_BATCH,
    ADD,
    "silos",
    "one release of each batch, parallel composition",
)


class NoisyKeys(Keys, frozen=True, kw_only=True):
    """Keys of a curve: those of every linear system, and the budget."""

    epsilon: float
    delta: float


def build(keys: NoisyKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    batch_size = keys.rounds_per_batch(setting)
    releases = setting.horizon // batch_size
    mechanism = calibrate_tree(Budget(keys.epsilon, keys.delta), 1)  # a tree of one node
    std = NoiseStd(*mechanism.stds)
    law = NoiseLaw(std, setting.silos, np.arange(releases + 1.0))  # k noises after k releases
    clip = keys.bounds(published=False)
    noise = Noise(mechanism, law, std)
    plan, theory = assemble(keys, setting, PROTOCOL, batch_size, clip, noise)
    source = f"{PROTOCOL.source}; {mechanism.source}"
    plan, certificate = certify(plan, setting, theory, noise, source)
    return System("noisy-batches", plan, certificate, theory=theory)


ALGORITHM = Algorithm(
    id="noisy-batches",
    paper="none",
    summary="federated LinUCB, every batch sent once with noise of its own",
    keys=NoisyKeys,
    build=build,
)
