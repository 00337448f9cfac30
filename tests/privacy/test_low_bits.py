"""Tests of the low-bits attack: it never excludes the true record and finds nothing in correct
releases."""

from __future__ import annotations

import numpy as np
import pytest

from fastfed._validate import InputError
from fastfed.privacy import exact
from fastfed.privacy.audit.low_bits import (
    MEAN_LAPLACE,
    SERVER_LAPLACE,
    SYSTEM_LAPLACE,
    Channel,
    attack,
    reachable,
)
from fastfed.privacy.audit.mechanisms import AUDITS
from fastfed.simulation.audit import low_bits as system
from fastfed.simulation.audit import run_audit

SCALES = (1e-3, 0.37, 1.0, 1.9999, 6.295, 8.9925, 1024.0, 1e6)
SLOW = ("winsorized-mean", "averager")  # these take a tenth of a second per message


# ---- values that noise can reach -----------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [0.0, 1e-9, 0.7, 300.0])
def test_released_values_are_reachable(scale: float, size: float) -> None:
    rng = np.random.default_rng(1)
    c, z = size * rng.normal(size=20_000), rng.normal(size=20_000)
    assert reachable(c + scale * z, c, scale).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ratio", [1e-3, 0.3, 3.0])
def test_no_double_reaches_values_that_are_not_reachable(scale: float, ratio: float) -> None:
    """Compare with all doubles within 200 places of the quotient."""
    rng = np.random.default_rng(2)
    released = scale * rng.normal(size=1500)
    c = ratio * scale * rng.normal(size=1500)
    nearest = ((released - c) / scale).view(np.int64)[:, None] + np.arange(-200, 201)
    reached_by_search = (c[:, None] + scale * nearest.view(np.float64) == released[:, None]).any(
        axis=1
    )
    is_reachable = reachable(released, c, scale)
    assert not (reached_by_search & ~is_reachable).any()
    # Where doubles near m - c are finer than doubles near m, 200 places are too few.
    doubles_are_finer = np.spacing(np.abs(released - c)) * 8 < np.spacing(np.abs(released))
    assert (
        np.array_equal(is_reachable[~doubles_are_finer], reached_by_search[~doubles_are_finer])
        and is_reachable[doubles_are_finer].all()
    )


def test_some_doubles_are_unreachable_if_the_scale_is_no_power_of_two() -> None:
    rng = np.random.default_rng(3)
    m, c = 9.0 * rng.normal(size=20_000), 0.1 * rng.normal(size=20_000)
    assert 0.02 < 1.0 - reachable(m, c, 8.99).mean() < 0.5
    # z itself can be any double. Unreachable are sums that are rounded away from a grid.
    assert reachable(m, np.zeros_like(m), 8.0).all()


@pytest.mark.parametrize("draws", [SYSTEM_LAPLACE, MEAN_LAPLACE, SERVER_LAPLACE])
def test_laplace_draws_are_in_the_image_of_their_quantile(draws) -> None:
    generator = np.random.default_rng(4)
    k = generator.integers(2**draws.bits, size=20_000).astype(float)
    c, s = generator.normal(size=20_000), np.full(20_000, 0.37)
    m = c + s * draws.quantile(k)
    assert draws.image(m, c, s).all()
    assert draws.image(np.nextafter(m, np.inf), c, s).mean() < 0.9


def test_errors_name_the_bad_argument() -> None:
    with pytest.raises(InputError, match="scale must be > 0, got 0"):
        reachable(1.0, 0.5, 0.0)
    with pytest.raises(InputError, match="released must be finite"):
        reachable(np.nan, 0.5, 1.0)
    with pytest.raises(InputError, match='kind must be one of "linucb-ldp"'):
        system.channel("linucb")


# ---- correct and faulty releases -----------------------------------------------------------------


def make_channel(release, candidates: int = 50, entries: int = 40, seed: int = 5) -> Channel:
    """Return a channel of release(contribution (e,), standard normals (e,))."""
    rng = np.random.default_rng(seed)
    contributions = rng.uniform(-1.0, 1.0, size=(candidates, entries))
    return Channel(
        "x",
        contributions[:, None],
        np.full(entries, 8.99),
        lambda index: release(contributions[index], rng.normal(size=entries)),
    )


GRID = 2.0**-17


def test_floating_point_noise_reveals_the_record() -> None:
    result = attack(make_channel(lambda contribution, z: contribution + 8.99 * z), 100)
    assert (result.wrongly_excluded, result.tests, result.unsound) == (0, ("float-noise",), ())
    assert result.decoded > 50 and result.excluded > 0.9


def test_rounding_the_sum_to_a_grid_reveals_nothing() -> None:
    result = attack(
        make_channel(lambda contribution, z: np.rint((contribution + 8.99 * z) / GRID) * GRID), 100
    )
    assert (result.wrongly_excluded, result.decoded, result.excluded) == (0, 0, 0.0)
    assert result.tests == () and result.unsound == ("float-noise",)


def test_a_grid_that_is_no_power_of_two_reveals_nothing() -> None:
    grid = 8.99 * 2.0**-20
    result = attack(
        make_channel(lambda contribution, z: np.rint((contribution + 8.99 * z) / grid) * grid), 100
    )
    assert (result.wrongly_excluded, result.decoded, result.excluded) == (0, 0, 0.0)


@pytest.mark.parametrize("grid", [GRID, 8.99 * 2.0**-20])
def test_rounding_only_the_noise_reveals_the_record(grid: float) -> None:
    """Check a fix that does not work: every record has its own grid of released values."""
    result = attack(
        make_channel(lambda contribution, z: contribution + np.rint(8.99 * z / grid) * grid), 100
    )
    assert result.wrongly_excluded == 0 and "residue" in result.tests
    assert result.decoded == 100


def test_a_grid_that_depends_on_the_record_reveals_the_record() -> None:
    """Use a finer grid if the first entry is below 0."""

    def release(contribution: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Release a noisy contribution on a grid that depends on its sign."""
        grid = GRID if contribution[0] < 0.0 else 2.0 * GRID
        return np.rint((contribution + 8.99 * z) / grid) * grid

    target = make_channel(release, candidates=6)
    is_negative = target.contributions[:, 0, 0] < 0.0
    assert is_negative.any() and not is_negative.all()
    result = attack(target, 200)
    assert result.wrongly_excluded == 0 and result.tests == ("grid",)
    assert result.excluded > 0.1
    result_on_one_grid = attack(
        make_channel(
            lambda contribution, z: np.rint((contribution + 8.99 * z) / GRID) * GRID, candidates=6
        ),
        200,
    )
    assert (result_on_one_grid.tests, result_on_one_grid.excluded) == (("grid",), 0.0)


def test_integer_noise_reveals_nothing() -> None:
    rng = np.random.default_rng(6)
    contributions = rng.integers(-3, 4, size=(50, 40)).astype(float)

    def send(index: int) -> np.ndarray:
        """Return the contribution of the record plus uniform integers."""
        return contributions[index] + rng.integers(-50, 51, size=40)

    result = attack(Channel("x", contributions[:, None], np.full(40, 30.0), send), 100)
    assert (result.wrongly_excluded, result.decoded, result.excluded) == (0, 0, 0.0)


def test_half_of_the_messages_reveal_nothing_if_the_record_may_be_absent() -> None:
    """List zero as a possible contribution of every record."""
    channel_, rng = make_channel(lambda c, z: c), np.random.default_rng(7)
    records = channel_.contributions[:, 0]

    def send(index: int) -> np.ndarray:
        """Return the record or zeros, each half of the time, plus normal noise."""
        return rng.integers(2) * records[index] + 8.99 * rng.normal(size=40)

    possible_contributions = np.stack([records, np.zeros_like(records)], axis=1)
    result = attack(Channel("x", possible_contributions, channel_.scales, send), 200)
    assert result.wrongly_excluded == 0 and 50 < result.decoded < 150


# ---- deployed parties ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", system.KINDS)
def test_the_true_record_is_never_excluded(kind: str) -> None:
    target = system.channel(kind, 20)
    assert target.contributions.shape[0] == 20 and target.contributions.shape[2] >= 4
    result = attack(target, 4 if kind in SLOW else 40, trials=10)
    # Releases are exact, so every record remains possible.
    assert (result.wrongly_excluded, result.decoded, result.excluded) == (0, 0, 0.0)


@pytest.mark.parametrize(
    "kind", ["linucb-ldp", "linucb-sdp-amp", "silo-ldp-toeplitz", "central-honaker", "feducb"]
)
def test_attack_detects_float_noise_in_deployed_parties(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace exact releases by float noise on unrounded records and repeat the attack."""
    monkeypatch.setattr(exact, "quantise", lambda values, unit: values)
    monkeypatch.setattr(exact, "inflation", lambda *given: 1.0)
    monkeypatch.setattr(exact, "noisy", lambda values, std, noise, *more: values + std * noise)
    result = attack(system.channel(kind, 50), 50)
    assert result.wrongly_excluded == 0 and "float-noise" in result.tests
    assert result.decoded > 5


def test_releases_are_centred_at_the_contribution_of_their_record() -> None:
    """Use the stated noise scales."""
    for kind in ("linucb-ldp", "silo-ldp-toeplitz", "central-tree", "feducb", "tree-release"):
        target = system.channel(kind, 3)
        runs = np.array([target.send(1) for _ in range(300)])
        z_scores = (runs - target.contributions[1, 0]) / target.scales
        assert abs(z_scores.mean()) < 5.0 / np.sqrt(z_scores.size)
        assert z_scores.std() == pytest.approx(1.0, abs=5.0 / np.sqrt(2.0 * z_scores.size))


def test_attack_all_returns_rows_for_the_table() -> None:
    rows = system.attack_all(5, 10, kinds=["tree-release", "linucb-ldp"])
    assert [(row.kind, row.messages, row.candidates) for row in rows] == [
        ("tree-release", 5, 10),
        ("linucb-ldp", 5, 10),
    ]
    lines = system.table(rows).splitlines()
    assert len(lines) == 3 and lines[1].startswith("tree-release")


# ---- the audits ----------------------------------------------------------------------------------


def test_audit_of_the_planted_float_noise_is_caught() -> None:
    result = AUDITS["fault-float-noise"](1000, 1)
    assert result.verdict == "caught" and result.epsilon_lower_bound > 4.0


def test_audit_reports_the_result_of_the_attack() -> None:
    """Check that the audit fails exactly if low bits distinguish records of deployed parties."""
    decoded = any(row.decoded for row in system.attack_all(20, 2, kinds=system.AUDITED))
    result = run_audit("low-bits", 100)
    assert (result.claimed_epsilon, result.delta, result.trials) == (1.0, 1e-6, 100)
    assert (result.verdict == "caught") == decoded


def test_audit_passes_for_an_exact_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded_channel(kind: str, candidates: int, seed: int) -> Channel:
        """Return a channel whose noisy sums are rounded to a grid."""
        return make_channel(lambda c, z: np.rint((c + 8.99 * z) / GRID) * GRID, candidates)

    monkeypatch.setattr(system, "channel", rounded_channel)
    result = system.audit_low_bits("x", 100, 1)
    assert (result.verdict, result.epsilon_lower_bound) == ("pass", 0.0)
