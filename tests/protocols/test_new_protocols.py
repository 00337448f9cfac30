"""Check what is easily forgotten for a new protocol: calibrations without effect, and lists."""

import pytest

from fastfed import InputError
from fastfed.protocols.protocol import PROTOCOLS
from fastfed.simulation.systems import make_system

RADII = ("direct", "lemma-c2", "lemma-c4", "published-code")


def noise_of(protocol, calibration):
    """Return what a protocol adds under a calibration; None if it refuses the calibration."""
    keys = {"protocol": protocol, "calibration": calibration, "epsilon": 1.0, "batch_size": 20}
    keys |= {"protects": "reward"} if protocol == "user-bit" else {"delta": 1e-5}
    for radius in RADII:
        try:
            plan = make_system(
                "private-fedlinucb", silos=4, horizon=200, dimension=3, radius=radius, **keys
            ).plan
        except InputError:
            continue
        return plan.noise_std, plan.flips, plan.encoding and plan.encoding.noise_bits
    return None


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "none"])
def test_every_calibration_that_is_accepted_changes_the_noise(protocol):
    exact = noise_of(protocol, "exact")
    assert exact is not None
    for calibration in ("theorem", "published-code"):
        assert noise_of(protocol, calibration) != exact


def test_every_protocol_is_planned_and_deployed_or_has_a_reason():
    pytest.importorskip("cryptography")
    from fastfed.advice.systems import NEVER_CANDIDATES, TRUST
    from fastfed.deployment.kinds import REFUSAL_REASONS, SUPPORTED_PROTOCOLS

    protocols = {name for name in PROTOCOLS if name != "none"}
    planned = {protocol for _, pairs in TRUST.values() for protocol, _ in pairs}
    elsewhere = {name for names in NEVER_CANDIDATES for name in names.split(", ")}
    assert protocols <= planned | elsewhere and not planned & elsewhere
    assert protocols <= {*SUPPORTED_PROTOCOLS, *REFUSAL_REASONS} and not {*SUPPORTED_PROTOCOLS} & {
        *REFUSAL_REASONS
    }
