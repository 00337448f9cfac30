"""Results, certificates and bounds of every figure at its quick size equal figures_quick.json.

See digests.py. A restructuring changes no digest. CONTRIBUTING says what to do for an intended
change.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import digests
import numpy as np
import pytest

from fastfed.protocols.plan import Radius
from fastfed.results.results import CurveResult

#: Figures of different papers and drivers, which take seconds. scripts/test --all runs all figures.
ORDINARY = ("cz22-fig1b", "g24-stoch", "zc24-fig2b")

PLAN = Radius(1.0, 0.5, 2.0, np.array([0.25, 0.75]), np.zeros(2))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    """Return the stored digests."""
    return digests.load()


@pytest.fixture(scope="module")
def exact(stored: dict[str, Any]) -> bool:
    """Return whether this machine's arithmetic equals the arithmetic of the stored digests."""
    return digests.arithmetic() == stored["arithmetic"]


@pytest.mark.parametrize(
    "name",
    [n if n in ORDINARY else pytest.param(n, marks=pytest.mark.slow) for n in digests.names()],
)
def test_a_figure_has_its_stored_digests(name: str, stored: dict[str, Any], exact: bool) -> None:
    new_digests = digests.digests_of_figure(name)
    messages = digests.differences(name, stored["figures"].get(name, {}), new_digests, exact=exact)
    assert not messages, "\n".join([*messages, 'see "Restructuring" in CONTRIBUTING.md'])


def test_all_figures_without_data_are_stored(stored: dict[str, Any]) -> None:
    assert list(stored["figures"]) == digests.names()
    assert set(ORDINARY) <= set(stored["figures"])
    kinds = {
        tuple(digests_of_curve)
        for curves in stored["figures"].values()
        for digests_of_curve in curves.values()
    }
    assert kinds == {digests.KINDS}


def curve(**changes: Any) -> CurveResult:
    """Return a curve of two replicates and three checkpoints; keywords replace its fields."""
    zeros = np.zeros((2, 3))
    base = CurveResult(
        label="A",
        algorithm="linucb",
        protocol="none",
        silos=2,
        dimension=3,
        horizon=30,
        rounds=np.array([10, 20, 30]),
        group_regret=np.array([[0.1, 0.2, 0.3], [0.5, 2.0, 1e9]]),
        replicates=(0, 1),
        synchronisation_counts=np.array([[1, 2, 3], [1, 2, 3]]),
        bits_up_counts=zeros + 64.0,
        bits_down_counts=zeros,
        certificate={"status": "proven", "exact": {"epsilon": 1.0, "delta": 0.1}, "source": "A."},
        events={"indefinite": 0, "clipped_rewards": 4},
        bounds={"theorem-1": [1.5, 2.5, math.inf]},
    )
    return replace(base, **changes)


def with_one_changed(values: Any, at: tuple[int, ...], by: float) -> np.ndarray:
    """Return the values with one value larger by the share ``by``, or, if 0, by one last bit."""
    values = np.array(values, np.float64)
    values[at] = values[at] * (1.0 + by) if by else np.nextafter(values[at], np.inf)
    return values


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("play", {"group_regret": with_one_changed(curve().group_regret, (1, 0), 1e-6)}),
        ("play", {"group_regret": curve().group_regret[::-1]}),
        ("play", {"rounds": np.array([10, 21, 30])}),
        ("play", {"synchronisation_counts": np.array([[1, 2, 3], [1, 2, 4]])}),
        ("play", {"bits_up_counts": np.zeros((2, 3)) + 65.0}),
        ("play", {"bits_down_counts": np.zeros((2, 3)) + 1.0}),
        ("play", {"events": {"indefinite": 1, "clipped_rewards": 4}}),
        ("play", {"events": {"clipped_rewards": 4}}),
        ("certificate", {"certificate": {**curve().certificate, "source": "B."}}),
        ("certificate", {"certificate": {**curve().certificate, "status": "none"}}),
        ("bounds", {"bounds": {"theorem-1": [1.5, 2.6, math.inf]}}),
        ("bounds", {"bounds": {}}),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_each_kind_of_change_is_named(kind: str, changes: dict[str, Any], exact: bool) -> None:
    before, after = (
        {"A": digests.digests(each_curve, PLAN)} for each_curve in (curve(), curve(**changes))
    )
    assert digests.differences("f", before, after, exact=exact) == [f"f: A: another {kind}"]


def test_last_bits_are_compared_only_on_the_same_arithmetic() -> None:
    changed_regret = with_one_changed(curve().group_regret, (1, 2), 0.0)
    before, after = (
        {"A": digests.digests(each_curve, PLAN)}
        for each_curve in (curve(), curve(group_regret=changed_regret))
    )
    assert digests.differences("f", before, after, exact=False) == []
    messages = digests.differences("f", before, after, exact=True)
    assert messages == ["f: A: another play (beyond 8 digits)"]


def test_the_digest_of_a_plan_depends_only_on_its_set_of_numbers() -> None:
    def differences_from_plan(plan: Any, exact: bool = True) -> list[str]:
        before, after = ({"A": digests.digests(curve(), each_plan)} for each_plan in (PLAN, plan))
        return digests.differences("f", before, after, exact=exact)

    # Numbers may be moved, renamed or repeated, and integers added, without a change.
    moved_plan = {"name": [(0.25, 0.75), {"a": 0.5}], "rest": np.array([2.0, 1.0, 0.0, 2.0])}
    assert (
        differences_from_plan(moved_plan)
        == differences_from_plan({"whole": 7, "text": "seven", "inner": [PLAN, 0.5]})
        == []
    )
    for exact in (True, False):
        assert differences_from_plan(replace(PLAN, scale=0.51), exact) == ["f: A: another plan"]
        assert differences_from_plan([PLAN, 0.1], exact) == ["f: A: another plan"]
    plan_with_other_last_bit = replace(PLAN, offset=with_one_changed(PLAN.offset, (1,), 0.0))
    assert (
        differences_from_plan(plan_with_other_last_bit) == ["f: A: another plan (beyond 8 digits)"]
        and differences_from_plan(plan_with_other_last_bit, exact=False) == []
    )


def test_speed_and_date_are_not_part_of_the_digest() -> None:
    timed = curve(agent_rounds_per_second=5.0, provenance={"version": "0", "date": "2031-01-01"})
    assert digests.digests(timed, PLAN) == digests.digests(curve(), PLAN)


def test_new_and_missing_curves_are_named() -> None:
    digests_of_curve = digests.digests(curve(), PLAN)
    messages = digests.differences(
        "f",
        {"A": digests_of_curve, "B": digests_of_curve},
        {"A": digests_of_curve, "C": digests_of_curve},
        exact=True,
    )
    assert messages == ["f: C: this curve is new", "f: B: this curve is gone"]


def test_digests_are_read_as_they_were_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(digests, "STORED", tmp_path / "stored.json")
    figures = {
        "f": {'"A", b': digests.digests(curve(), PLAN)},
        "e": {"A": digests.digests(curve(), PLAN)},
    }
    digests.write(figures)
    loaded = digests.load()
    assert loaded["figures"] == figures and loaded["arithmetic"] == digests.arithmetic()
    # The file has one line per curve.
    assert sum("certificate" in line for line in (tmp_path / "stored.json").open()) == 2
