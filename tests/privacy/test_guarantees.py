"""What a guarantee says about other deltas, and certificates that are read back."""

from __future__ import annotations

import json
import math
from statistics import NormalDist

import msgspec
import pytest

import fastfed
from fastfed import InputError
from fastfed.privacy import Certificate, Guarantee
from fastfed.privacy.certificate import ClaimCondition, Condition

PHI = NormalDist().cdf
SYSTEMS = {
    "silo-ldp": ("private-fedlinucb", {"protocol": "silo-ldp", "batch_size": 10}),
    "central": ("private-fedlinucb", {"protocol": "central", "batch_size": 10}),
    "reward": (
        "private-fedlinucb",
        {"protocol": "silo-ldp", "batch_size": 10, "protects": "reward"},
    ),
    "feducb": ("feducb", {"schedule": "fixed", "batch_size": 10}),
    "jdp": ("linucb-jdp", {"silos": 1}),
}


def system(algorithm, **keys):
    """Return a system of an algorithm with these keys."""
    sizes = {"silos": 5, "horizon": 400, "dimension": 6, "epsilon": 1.0, "delta": 1e-6}
    return fastfed.make_system(algorithm, **(sizes | keys))


def formula(mu, epsilon):
    """Return the delta of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    return PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * PHI(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("name", ["silo-ldp", "central", "reward", "feducb"])
def test_a_gaussian_certificate_gives_every_pair(name):
    algorithm, keys = SYSTEMS[name]
    exact = system(algorithm, **keys).deployed_certificate.exact
    assert exact.epsilon_at(exact.delta) == pytest.approx(exact.epsilon, rel=1e-9)
    for delta in (1e-3, 1e-5, 1e-9):
        epsilon = exact.epsilon_at(delta)
        assert formula(exact.mu, epsilon) == pytest.approx(delta, rel=1e-5)
        assert exact.delta_at(epsilon) == pytest.approx(delta, rel=1e-6)
    assert exact.rho == exact.mu**2 / 2


def test_other_noise_has_no_mu():
    exact = system(
        "private-fedlinucb", protocol="shuffle-vector", batch_size=10
    ).deployed_certificate.exact
    assert exact.mu is None and exact.rho is None
    assert exact.epsilon_at(1e-3) == exact.epsilon and exact.delta_at(5.0) == exact.delta
    with pytest.raises(InputError, match="has no mu"):
        exact.epsilon_at(1e-9)
    with pytest.raises(InputError, match="has no mu"):
        exact.delta_at(0.1)
    with pytest.raises(InputError, match="not Gaussian"):
        exact.to_dp_event()


def test_a_certificate_without_a_guarantee_says_why_it_has_no_pairs():
    proven = system("private-fedlinucb", protocol="central").deployed_certificate
    assert proven.epsilon_at(1e-9) == proven.exact.epsilon_at(1e-9)
    assert proven.delta_at(2.0) == proven.exact.delta_at(2.0)
    (failed, *_) = (c.text for c in proven.conditions)
    unproven = msgspec.structs.replace(
        proven,
        exact=None,
        status="unproven",
        conditions=tuple(
            msgspec.structs.replace(c, holds=c.text != failed) for c in proven.conditions
        ),
    )
    for call in (lambda: unproven.epsilon_at(1e-9), lambda: unproven.delta_at(1.0)):
        with pytest.raises(InputError, match='status is "unproven" and exact is None') as error:
            call()
        assert failed in str(error.value)


def test_a_system_that_sends_nothing_has_epsilon_0_at_every_delta():
    pure = Guarantee(0.0, 0.0)
    assert pure.epsilon_at(1e-12) == 0.0 and pure.delta_at(0.0) == 0.0
    zero = Guarantee(0.0, 1e-6, mu=0.0)
    assert zero.epsilon_at(1e-12) == 0.0 and zero.delta_at(0.0) == 0.0
    for call in (lambda: zero.epsilon_at(0.0), lambda: zero.delta_at(-1.0)):
        with pytest.raises(InputError):
            call()


def test_google_s_accountant_agrees():
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    exact = system("private-fedlinucb", protocol="central", batch_size=10).certificate.exact
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.SelfComposedDpEvent(exact.to_dp_event(), 2))
    twice = fastfed.privacy.epsilon_of(math.sqrt(2.0) * exact.mu, 1e-6)
    assert accountant.get_epsilon(1e-6) == pytest.approx(twice, abs=2e-3)
    assert isinstance(Guarantee(0.0, 0.0, mu=0.0).to_dp_event(), dp_accounting.NoOpDpEvent)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("epsilon", [1.0, 1e-3, 30.0])
def test_a_certificate_comes_back_from_its_json(name, epsilon):
    algorithm, keys = SYSTEMS[name]
    private_system = system(algorithm, epsilon=epsilon, **keys)
    for certificate in (private_system.certificate, private_system.deployed_certificate):
        plain = certificate.to_builtins()
        assert Certificate.from_builtins(plain) == certificate
        assert Certificate.from_builtins(json.dumps(plain)) == certificate


def test_certificates_of_results_and_commands_are_read():
    curves = [
        {"algorithm": "private-fedlinucb", "protocol": "central", "epsilon": 1.0, "delta": 1e-6},
        {"algorithm": "local-linucb"},
    ]
    world = {"kind": "sphere", "dimension": 3, "actions": 4}
    results = fastfed.simulate(world, curves=curves, silos=3, horizon=40)
    for curve in results:
        read = Certificate.from_builtins(curve.dated_certificate)
        assert read.status == "proven" and read.to_builtins() == dict(curve.certificate)
    assert results.curves[0].certificate["exact"]["mu"] == pytest.approx(
        fastfed.privacy.mu_of(1.0, 1e-6)
    )


def test_a_failed_claim_is_kept_by_the_builtins_of_a_certificate():
    certificate = Certificate(
        unit="user", relation="replace", model="central", claimed=Guarantee(1.0, 1e-6),
        exact=Guarantee(2.0, 1e-6), status="proven", source="a paper",
        conditions=(
            Condition("norms are at most 1", True),
            ClaimCondition("the exact epsilon of the noise, 2 at delta 1e-06, is at most 1", False),
        ),
    )  # fmt: skip
    assert Certificate.from_builtins(certificate.to_builtins()) == certificate


@pytest.mark.parametrize(
    "data", ["", "[]", "{}", '{"unit": "user"}', b"\xff", {"unit": 1}, '{"also": 3}', None]
)
def test_data_that_are_no_certificate_are_refused(data):
    with pytest.raises(InputError, match="no certificate"):
        Certificate.from_builtins(data)


def test_a_changed_certificate_is_refused():
    plain = system("private-fedlinucb", protocol="central", batch_size=10).certificate.to_builtins()
    for key, value in (("exact", None), ("unit", "planet"), ("status", "none"), ("claimed", 3)):
        with pytest.raises(InputError):
            Certificate.from_builtins({**plain, key: value})
