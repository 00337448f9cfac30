"""Private-FedLinUCB (zhou-chowdhury-2024, Algorithms 1 and 8) under its privacy protocols.

Deviations from the paper, and why:
- Features and rewards are clipped in code to what the proof bounds (``clip = false`` undoes it).
- ``lazy = true`` (Algorithm 8) is the default: Algorithm 1 lets raw data of one user choose the
  features of later users of the batch, which the proof of Theorem 5.1 does not cover.
- The covariance noise is one symmetric matrix of named layout; the paper leaves it open.
- kappa is 1 + floor(log2(T/B)); the paper writes log.
- The radius of Lemma C.2 is taken with its own constants, from the actual noise law, and for
  eager play with a union over silos; Lemma C.4 as printed is an option.
- T need not be a multiple of B: a short last batch is played and never sent.
"""

from __future__ import annotations

from fastfed._validate import InputError, choice, number
from fastfed.bandits.assemble import assemble, released_only
from fastfed.bandits.certify import certify
from fastfed.bandits.setting import Setting
from fastfed.bandits.system import Algorithm, Keys, System
from fastfed.privacy.budget import RELATIONS, Budget
from fastfed.privacy.calibration import CALIBRATIONS, calibrate_tree
from fastfed.privacy.sensitivity import LAYOUTS, layout_stds
from fastfed.protocols.plan import NoiseStd
from fastfed.protocols.protocol import PROTOCOLS

PRIVATE_PROTOCOLS = tuple(p for p in PROTOCOLS if p != "none")
RELEASES = ("tree",)


class PrivateKeys(Keys, frozen=True, kw_only=True):
    """Keys of a private-fedlinucb curve."""

    protocol: str = "silo-ldp"
    epsilon: float | None = None
    delta: float | None = None
    calibration: str = "exact"
    relation: str = "replace"
    release: str = "tree"
    layout: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("epsilon", "delta"):
            if getattr(self, key) is None:
                raise InputError(f"{key} is required")
        number("epsilon", self.epsilon, above=0.0)
        number("delta", self.delta, above=0.0, below=1.0)
        choice("protocol", self.protocol, PRIVATE_PROTOCOLS)
        choice("calibration", self.calibration, CALIBRATIONS)
        choice("relation", self.relation, RELATIONS)
        choice("release", self.release, RELEASES)
        if self.layout is not None:
            choice("layout", self.layout, LAYOUTS)


def build(keys: PrivateKeys, setting: Setting) -> System:
    """Plan and certificate of one curve."""
    assert keys.epsilon is not None and keys.delta is not None
    protocol = PROTOCOLS[keys.protocol]
    batch_size = keys.rounds_per_batch(setting)
    mechanism = calibrate_tree(
        Budget(keys.epsilon, keys.delta, keys.relation),
        setting.horizon // batch_size,
        keys.calibration,
        keys.layout,
    )
    noise = NoiseStd(mechanism.noise_std, *layout_stds(mechanism.layout, mechanism.noise_std))
    clip = keys.bounds(published=keys.calibration == "published-code")
    plan, theory = assemble(keys, setting, protocol, batch_size, clip, noise)
    certificate = certify(
        mechanism,
        protocol,
        setting,
        theory,
        clip,
        released_only(keys, batch_size),
        f"{protocol.source}; {mechanism.source}",
    )
    return System("private-fedlinucb", plan, theory, certificate)


ALGORITHM = Algorithm(
    id="private-fedlinucb",
    paper="zhou-chowdhury-2024",
    summary="federated LinUCB in fixed batches under a privacy protocol",
    keys=PrivateKeys,
    build=build,
)
