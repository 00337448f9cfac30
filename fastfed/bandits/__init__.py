"""Linear-bandit systems: policies, theory, and one file for each algorithm.

A new algorithm is one new file with an ``ALGORITHM``, and one line in ``ALGORITHMS``.
"""

from __future__ import annotations

from fastfed._validate import InputError, integer, nearest
from fastfed.bandits import (
    agent_amp,
    agent_jdp,
    agent_ldp,
    agent_linucb,
    agent_vec,
    fedlinucb,
    feducb,
    feducb_decentralized,
    local_linucb,
    private_fedlinucb,
    random_policy,
    robin,
)
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import System

ALGORITHMS = {
    a.id: a
    for a in (
        fedlinucb.ALGORITHM,
        private_fedlinucb.ALGORITHM,
        feducb.ALGORITHM,
        feducb_decentralized.ALGORITHM,
        agent_linucb.ALGORITHM,
        agent_jdp.ALGORITHM,
        agent_ldp.ALGORITHM,
        agent_amp.ALGORITHM,
        agent_vec.ALGORITHM,
        robin.ALGORITHM,
        local_linucb.ALGORITHM,
        random_policy.ALGORITHM,
    )
}


def make_system(
    algorithm: str, *, silos: int = 1, horizon: int, dimension: int, **keys: object
) -> System:
    """The plan and certificate of one system, to deploy it step by step with Silo and Server.

    ``silos`` M (1 for the systems of a single agent), ``horizon`` T, ``dimension`` d; ``keys`` are
    the algorithm's own, as in a spec (epsilon, delta, batch_size, ...). Rewards are clipped to
    [0, 1] and features to norm 1 by default, so what is observed needs no promise for the privacy
    to hold. The certificate to hand out is ``deployed_certificate``: the noise of Silo and Server
    is the operating system's.

    >>> system = make_system("private-fedlinucb", silos=3, horizon=1000, dimension=4,
    ...                      batch_size=25, epsilon=1.0, delta=1e-6)
    >>> system.certificate.status
    'proven'
    """
    if algorithm not in ALGORITHMS:
        raise InputError(f'unknown algorithm "{algorithm}"{nearest(algorithm, ALGORITHMS)}')
    setting = Setting(
        silos=integer("silos", silos, at_least=1, at_most=2**31),
        horizon=integer("horizon", horizon, at_least=1, at_most=2**32 - 2),
        dimension=integer("dimension", dimension, at_least=1, at_most=2**15),
        # Nothing is known of what a deployment will feed in, but for what clipping enforces.
        reward_range=None,
        features_bounded=False,
        notes=("deployment: who is served how often, and at which silo, is taken on trust",),
    )
    entry = ALGORITHMS[algorithm]
    for key, value in entry.deployed:
        if keys.setdefault(key, value) != value:
            raise InputError(
                f'{key} must be "{value}" in a deployment of {algorithm}, got "{keys[key]}": '
                "the shortcut of the simulation sees what only users may"
            )
    return entry.make(keys, setting)
