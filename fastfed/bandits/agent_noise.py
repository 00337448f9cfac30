"""From keys to the noise of a batch whose users send for themselves."""

from __future__ import annotations

import math

import numpy as np

from fastfed.bandits.agent import GaussianKeys, PrivateAgentKeys
from fastfed.bandits.bit_law import batch_law
from fastfed.bandits.noise import WINDOW, Noise
from fastfed.bandits.noise_law import NoiseLaw
from fastfed.bandits.setting import Setting
from fastfed.privacy.noisy_points import calibrate_points
from fastfed.privacy.vector_batches import calibrate_vector_batches
from fastfed.protocols.plan import Encoding, NoiseStd


def gaussian_noise(
    keys: GaussianKeys, setting: Setting, batch_size: int, *, shuffled: bool
) -> Noise:
    """Every user's own Gaussian noise: as many independent ones add up as a batch has users."""
    releases = setting.horizon // batch_size
    mechanism = calibrate_points(
        keys.budget,
        batch_size,
        returning=keys.returns(releases),
        shuffled=shuffled,
        calibration=keys.calibration,
        layout=keys.layout,
        covariance_ratio=keys.ratio if keys.calibration == "exact" else keys.covariance_ratio or 1,
    )
    std = NoiseStd(*mechanism.stds).times(math.sqrt(batch_size))
    law = NoiseLaw(std, 1, np.arange(releases + 1.0))
    return Noise(mechanism, law, std)


def vector_noise(
    keys: PrivateAgentKeys,
    setting: Setting,
    batch_size: int,
    *,
    local: bool = False,
    vector_scale: float = 1.0,
    honest_fraction: float = 1.0,
    ratio: float = 1.0,
) -> Noise:
    """Every user's own noise bits."""
    releases = setting.horizon // batch_size
    mechanism = calibrate_vector_batches(
        keys.budget,
        batch_size,
        setting.dimension,
        returning=keys.returns(releases),
        local=local,
        calibration=keys.calibration,
        vector_scale=vector_scale,
        honest_fraction=honest_fraction,
        covariance_ratio=ratio,
    )
    law = batch_law(mechanism, releases, WINDOW * keys.failure_probability)
    g, b = mechanism.g, mechanism.b
    encoding = Encoding((g[0],), (b,), (g[1],))
    return Noise(mechanism, law, encoding=encoding)
