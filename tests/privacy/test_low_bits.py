"""The low-bits attack: sound on every double, silent on right releases, and run on objects."""

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
SLOW = ("winsorized-mean", "averager")  # a tenth of a second a message


# ---- what noise reaches --------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [0.0, 1e-9, 0.7, 300.0])
def test_what_was_released_is_reachable(scale: float, size: float) -> None:
    draw = np.random.default_rng(1)
    c, z = size * draw.normal(size=20_000), draw.normal(size=20_000)
    assert reachable(c + scale * z, c, scale).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("ratio", [1e-3, 0.3, 3.0])
def test_what_is_not_reachable_no_double_reaches(scale: float, ratio: float) -> None:
    """Against all doubles within 200 places of the quotient."""
    draw = np.random.default_rng(2)
    released = scale * draw.normal(size=1500)
    c = ratio * scale * draw.normal(size=1500)
    nearest = ((released - c) / scale).view(np.int64)[:, None] + np.arange(-200, 201)
    by_hand = (c[:, None] + scale * nearest.view(np.float64) == released[:, None]).any(axis=1)
    found = reachable(released, c, scale)
    assert not (by_hand & ~found).any()
    # Where the doubles about m - c are finer than that about m, these are 200 too few.
    fine = np.spacing(np.abs(released - c)) * 8 < np.spacing(np.abs(released))
    assert np.array_equal(found[~fine], by_hand[~fine]) and found[fine].all()


def test_doubles_are_left_out_where_the_scale_is_no_power_of_two() -> None:
    draw = np.random.default_rng(3)
    m, c = 9.0 * draw.normal(size=20_000), 0.1 * draw.normal(size=20_000)
    assert 0.02 < 1.0 - reachable(m, c, 8.99).mean() < 0.5
    # fl(z) itself is any double: what is left out then are sums that round away from a grid.
    assert reachable(m, np.zeros_like(m), 8.0).all()


@pytest.mark.parametrize("draws", [SYSTEM_LAPLACE, MEAN_LAPLACE, SERVER_LAPLACE])
def test_laplace_draws_are_their_own_image(draws) -> None:
    generator = np.random.default_rng(4)
    k = generator.integers(2**draws.bits, size=20_000).astype(float)
    c, s = generator.normal(size=20_000), np.full(20_000, 0.37)
    m = c + s * draws.quantile(k)
    assert draws.image(m, c, s).all()
    assert draws.image(np.nextafter(m, np.inf), c, s).mean() < 0.9


def test_bad_input() -> None:
    with pytest.raises(InputError, match="scale must be > 0, got 0"):
        reachable(1.0, 0.5, 0.0)
    with pytest.raises(InputError, match="released must be finite"):
        reachable(np.nan, 0.5, 1.0)
    with pytest.raises(InputError, match='kind must be one of "linucb-ldp"'):
        system.channel("linucb")


# ---- releases that are right, and wrong, by construction -----------------------------------------


def made(release, candidates: int = 50, entries: int = 40, seed: int = 5) -> Channel:
    """A channel of release(contribution (e,), standard normals (e,))."""
    draw = np.random.default_rng(seed)
    contributions = draw.uniform(-1.0, 1.0, size=(candidates, entries))
    return Channel(
        "x",
        contributions[:, None],
        np.full(entries, 8.99),
        lambda index: release(contributions[index], draw.normal(size=entries)),
    )


GRID = 2.0**-17


def test_floating_point_noise_tells_the_record() -> None:
    found = attack(made(lambda c, z: c + 8.99 * z), 100)
    assert (found.wrongly_excluded, found.tests, found.unsound) == (0, ("float-noise",), ())
    assert found.decoded > 50 and found.excluded > 0.9


def test_rounding_the_sum_to_a_grid_tells_nothing() -> None:
    found = attack(made(lambda c, z: np.rint((c + 8.99 * z) / GRID) * GRID), 100)
    assert (found.wrongly_excluded, found.decoded, found.excluded) == (0, 0, 0.0)
    assert found.tests == () and found.unsound == ("float-noise",)


def test_a_grid_that_is_no_power_of_two_tells_nothing() -> None:
    grid = 8.99 * 2.0**-20
    found = attack(made(lambda c, z: np.rint((c + 8.99 * z) / grid) * grid), 100)
    assert (found.wrongly_excluded, found.decoded, found.excluded) == (0, 0, 0.0)


@pytest.mark.parametrize("grid", [GRID, 8.99 * 2.0**-20])
def test_rounding_the_noise_alone_tells_the_record(grid: float) -> None:
    """A mend that does not mend: every record has a grid of its own."""
    found = attack(made(lambda c, z: c + np.rint(8.99 * z / grid) * grid), 100)
    assert found.wrongly_excluded == 0 and "residue" in found.tests
    assert found.decoded == 100


def test_a_grid_that_the_record_decides_tells_the_record() -> None:
    """A finer grid where the first entry is below 0."""

    def release(c: np.ndarray, z: np.ndarray) -> np.ndarray:
        grid = GRID if c[0] < 0.0 else 2.0 * GRID
        return np.rint((c + 8.99 * z) / grid) * grid

    target = made(release, candidates=6)
    sides = target.contributions[:, 0, 0] < 0.0
    assert sides.any() and not sides.all()
    found = attack(target, 200)
    assert found.wrongly_excluded == 0 and found.tests == ("grid",)
    assert found.excluded > 0.1
    same = attack(made(lambda c, z: np.rint((c + 8.99 * z) / GRID) * GRID, candidates=6), 200)
    assert (same.tests, same.excluded) == (("grid",), 0.0)


def test_whole_numbers_tell_nothing() -> None:
    draw = np.random.default_rng(6)
    contributions = draw.integers(-3, 4, size=(50, 40)).astype(float)

    def send(index: int) -> np.ndarray:
        return contributions[index] + draw.integers(-50, 51, size=40)

    found = attack(Channel("x", contributions[:, None], np.full(40, 30.0), send), 100)
    assert (found.wrongly_excluded, found.decoded, found.excluded) == (0, 0, 0.0)


def test_a_record_that_may_not_be_there_excludes_nobody() -> None:
    """With the way of contributing nothing among the ways, half of the messages say nothing."""
    plain, draw = made(lambda c, z: c), np.random.default_rng(7)
    records = plain.contributions[:, 0]

    def send(index: int) -> np.ndarray:
        return draw.integers(2) * records[index] + 8.99 * draw.normal(size=40)

    ways = np.stack([records, np.zeros_like(records)], axis=1)
    found = attack(Channel("x", ways, plain.scales, send), 200)
    assert found.wrongly_excluded == 0 and 50 < found.decoded < 150


# ---- deployed objects ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", system.KINDS)
def test_the_true_record_is_never_excluded(kind: str) -> None:
    target = system.channel(kind, 20)
    assert target.contributions.shape[0] == 20 and target.contributions.shape[2] >= 4
    found = attack(target, 4 if kind in SLOW else 40, trials=10)
    # Releases are exact: everybody stays possible.
    assert (found.wrongly_excluded, found.decoded, found.excluded) == (0, 0, 0.0)


@pytest.mark.parametrize(
    "kind", ["linucb-ldp", "linucb-sdp-amp", "silo-ldp-toeplitz", "central-honaker", "feducb"]
)
def test_float_noise_in_the_same_objects_is_caught(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same objects and the same attack; records as they are, noise added as floats are."""
    monkeypatch.setattr(exact, "quantise", lambda values, unit: values)
    monkeypatch.setattr(exact, "inflation", lambda *given: 1.0)
    monkeypatch.setattr(exact, "noisy", lambda values, std, noise, *more: values + std * noise)
    found = attack(system.channel(kind, 50), 50)
    assert found.wrongly_excluded == 0 and "float-noise" in found.tests
    assert found.decoded > 5


def test_contributions_are_those_of_the_true_records() -> None:
    """Releases of one record lie about its contribution, with the scales that are stated."""
    for kind in ("linucb-ldp", "silo-ldp-toeplitz", "central-tree", "feducb", "tree-release"):
        target = system.channel(kind, 3)
        runs = np.array([target.send(1) for _ in range(300)])
        off = (runs - target.contributions[1, 0]) / target.scales
        assert abs(off.mean()) < 5.0 / np.sqrt(off.size)
        assert off.std() == pytest.approx(1.0, abs=5.0 / np.sqrt(2.0 * off.size))


def test_rows_and_their_table() -> None:
    rows = system.attack_all(5, 10, kinds=["tree-release", "linucb-ldp"])
    assert [(row.kind, row.messages, row.candidates) for row in rows] == [
        ("tree-release", 5, 10),
        ("linucb-ldp", 5, 10),
    ]
    lines = system.table(rows).splitlines()
    assert len(lines) == 3 and lines[1].startswith("tree-release")


# ---- the audits ----------------------------------------------------------------------------------


def test_float_noise_is_caught_whatever_the_product_draws() -> None:
    found = AUDITS["fault-float-noise"](1000, 1)
    assert found.verdict == "caught" and found.epsilon_lower_bound > 4.0


def test_the_audit_says_what_the_attack_finds() -> None:
    """Caught exactly where records of deployed objects can be told apart by low bits."""
    decoded = any(row.decoded for row in system.attack_all(20, 2, kinds=system.AUDITED))
    found = run_audit("low-bits", 100)
    assert (found.claimed_epsilon, found.delta, found.trials) == (1.0, 1e-6, 100)
    assert (found.verdict == "caught") == decoded


def test_the_audit_passes_an_exact_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounded(kind: str, candidates: int, seed: int) -> Channel:
        return made(lambda c, z: np.rint((c + 8.99 * z) / GRID) * GRID, candidates)

    monkeypatch.setattr(system, "channel", rounded)
    found = system.audit_low_bits("x", 100, 1)
    assert (found.verdict, found.epsilon_lower_bound) == ("pass", 0.0)
