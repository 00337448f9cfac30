"""Every figure plays and promises at its quick size what figures_quick.json says; see digests.py.

A restructuring changes none of it. Where a change is meant, CONTRIBUTING says what to do.
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

#: Of different papers and drivers, seconds in all; the others are for scripts/test --all.
ORDINARY = ("cz22-fig1b", "g24-stoch", "zc24-fig2b")

PLAN = Radius(1.0, 0.5, 2.0, np.array([0.25, 0.75]), np.zeros(2))


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    return digests.load()


@pytest.fixture(scope="module")
def exact(stored: dict[str, Any]) -> bool:
    """Whether this machine's libraries give the bits that the stored digests were made with."""
    return digests.arithmetic() == stored["arithmetic"]


@pytest.mark.parametrize(
    "name",
    [n if n in ORDINARY else pytest.param(n, marks=pytest.mark.slow) for n in digests.names()],
)
def test_figure_is_the_stored_one(name: str, stored: dict[str, Any], exact: bool) -> None:
    found = digests.play(name)
    said = digests.differences(name, stored["figures"].get(name, {}), found, exact=exact)
    assert not said, "\n".join([*said, 'see "Restructuring" in CONTRIBUTING.md'])


def test_all_figures_without_data_are_stored(stored: dict[str, Any]) -> None:
    assert list(stored["figures"]) == digests.names()
    assert set(ORDINARY) <= set(stored["figures"])
    kinds = {tuple(each) for curves in stored["figures"].values() for each in curves.values()}
    assert kinds == {digests.KINDS}


def curve(**changes: Any) -> CurveResult:
    """A curve of two replicates, three checkpoints and one of everything."""
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


def moved(values: Any, at: tuple[int, ...], by: float) -> np.ndarray:
    """The values with one of them larger by this share, or by one unit in the last place (0)."""
    values = np.array(values, np.float64)
    values[at] = values[at] * (1.0 + by) if by else np.nextafter(values[at], np.inf)
    return values


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("play", {"group_regret": moved(curve().group_regret, (1, 0), 1e-6)}),
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
def test_each_change_is_named(kind: str, changes: dict[str, Any], exact: bool) -> None:
    before, after = ({"A": digests.digests(c, PLAN)} for c in (curve(), curve(**changes)))
    assert digests.differences("f", before, after, exact=exact) == [f"f: A: another {kind}"]


def test_last_bits_count_on_the_same_arithmetic_alone() -> None:
    last = moved(curve().group_regret, (1, 2), 0.0)
    before, after = ({"A": digests.digests(c, PLAN)} for c in (curve(), curve(group_regret=last)))
    assert digests.differences("f", before, after, exact=False) == []
    said = digests.differences("f", before, after, exact=True)
    assert said == ["f: A: another play (beyond 8 digits)"]


def test_a_plan_is_the_set_of_its_numbers() -> None:
    def said(plan: Any, exact: bool = True) -> list[str]:
        before, after = ({"A": digests.digests(curve(), each)} for each in (PLAN, plan))
        return digests.differences("f", before, after, exact=exact)

    # Moved, renamed, kept twice and with whole numbers beside them, they are the same.
    moved_plan = {"name": [(0.25, 0.75), {"a": 0.5}], "rest": np.array([2.0, 1.0, 0.0, 2.0])}
    assert said(moved_plan) == said({"whole": 7, "text": "seven", "inner": [PLAN, 0.5]}) == []
    for exact in (True, False):
        assert said(replace(PLAN, scale=0.51), exact) == ["f: A: another plan"]
        assert said([PLAN, 0.1], exact) == ["f: A: another plan"]
    last = replace(PLAN, offset=moved(PLAN.offset, (1,), 0.0))
    assert said(last) == ["f: A: another plan (beyond 8 digits)"] and said(last, exact=False) == []


def test_what_does_not_change_play_is_left_out() -> None:
    timed = curve(agent_rounds_per_second=5.0, made={"version": "0", "date": "2031-01-01"})
    assert digests.digests(timed, PLAN) == digests.digests(curve(), PLAN)


def test_curves_that_come_and_go_are_named() -> None:
    one = digests.digests(curve(), PLAN)
    said = digests.differences("f", {"A": one, "B": one}, {"A": one, "C": one}, exact=True)
    assert said == ["f: C: this curve is new", "f: B: this curve is gone"]


def test_writing_and_reading_keeps_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(digests, "STORED", tmp_path / "stored.json")
    figures = {
        "f": {'"A", b': digests.digests(curve(), PLAN)},
        "e": {"A": digests.digests(curve(), PLAN)},
    }
    digests.write(figures)
    kept = digests.load()
    assert kept["figures"] == figures and kept["arithmetic"] == digests.arithmetic()
    # A line for each curve.
    assert sum("certificate" in line for line in (tmp_path / "stored.json").open()) == 2
