"""Check audits of restarts, copies and scores with memory: which are caught, and which pass."""

from __future__ import annotations

import copy
from typing import Any

import numba
import numpy as np
import pytest

import fastfed
from fastfed import parties, privacy
from fastfed._random import SystemNoise
from fastfed.protocols.score import score_signature
from fastfed.simulation.audit import ABOUT, AUDITS, FAULTY, TRIALS, listed, run_audit
from fastfed.simulation.audit import lifecycle as audits

CLASSES = {
    name: getattr(privacy if name == "TreeRelease" else parties, name)
    for name in (
        "Silo", "Server", "Shuffler", "User", "TreeRelease", "SystemNoise", "VectorSum",
        "ExpertClient", "ExpertServer", "Averager",
    )
}  # fmt: skip


# ---- Restarts ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_audit_detects_a_restarted_silo() -> None:
    result = run_audit("fault-restart", 500)
    assert result.verdict == "caught" and 1.5 < result.epsilon_lower_bound < 12.0


def test_audit_of_a_single_report_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "VIEWS", 1)
    assert audits.audit_restart("x", 1000, 1).verdict == "pass"


# ---- Copies --------------------------------------------------------------------------------------


def raise_type_error(*_: object) -> object:
    """Refuse a copy."""
    raise TypeError("cannot be copied")


@pytest.fixture
def classes_without_copies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Make all classes refuse copies.

    The modules copy and pickle use __reduce_ex__ if there is no other hook.
    """
    for audited_class in CLASSES.values():
        for hook in ("__reduce_ex__", "__reduce__", "__copy__", "__deepcopy__"):
            monkeypatch.setattr(audited_class, hook, raise_type_error, raising=False)
    return monkeypatch


def test_audited_objects_are_those_that_draw_noise() -> None:
    originals = audits.originals()
    assert set(originals) == set(CLASSES)
    for name, original in originals.items():
        for world in (0, 1):
            assert type(original.make(world)[0]) is CLASSES[name]
        if original.release is not None:
            released = original.release(original.make(0))
            assert released.ndim == 1 and np.isfinite(released).all()
    assert originals["Shuffler"].release is None
    assert type(originals["SystemNoise"].make(0)[0]) is SystemNoise


def test_audit_of_copies_passes_if_all_classes_refuse(
    classes_without_copies: pytest.MonkeyPatch,
) -> None:
    assert audits.copies() == []
    result = run_audit("copies", 20)
    assert (result.verdict, result.epsilon_lower_bound) == ("pass", 0.0)


def unchecked_copy(self: Any, memo: dict[int, Any]) -> Any:
    """Return another object with the same content, as if no class refused copies."""
    copied_object = type(self).__new__(type(self))
    for name, value in self.__dict__.items():
        if name not in ("_turn", "_process"):
            setattr(copied_object, name, copy.deepcopy(value, memo))
    return copied_object


@pytest.mark.parametrize(
    "name", [pytest.param("User", marks=pytest.mark.slow), "SystemNoise", "TreeRelease"]
)
def test_audit_detects_copies_of_a_single_class(
    name: str, classes_without_copies: pytest.MonkeyPatch
) -> None:
    """Check that one class which can be copied is sufficient."""
    for class_name in {name, "SystemNoise"} if name == "User" else {name}:
        classes_without_copies.setattr(
            CLASSES[class_name], "__deepcopy__", unchecked_copy, raising=False
        )
    assert (name, "copy.deepcopy") in audits.copies()
    # The noise comes from the operating system, so no seed makes it repeatable. Some lower bounds
    # of 300 runs are below 1; those of 1000 runs are between 2 and 3.5.
    result = run_audit("copies", 1000)
    assert result.verdict == "caught" and result.epsilon_lower_bound > 1.0


def test_audit_of_copies_tests_the_real_classes() -> None:
    """The audit passes exactly if no class can be copied."""
    result = run_audit("copies")
    assert (result.verdict == "pass") == (audits.copies() == [])


# ---- Scores --------------------------------------------------------------------------------------


@numba.cfunc(score_signature())
def score_without_memory(state, key, round, actions, dimension, x, w, theta, beta, gamma, scores):
    """Score an action by the released model and the round."""
    for a in range(actions):
        scores[a] = a * theta[0] + (key % 7) * a - 3.0 * a
    return actions


def test_audit_detects_a_score_with_its_own_memory() -> None:
    result = run_audit("fault-stateful-score")
    assert result.verdict == "caught" and 4.0 < result.epsilon_lower_bound < 10.0


def test_audit_of_a_score_without_memory_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "_score_with_memory_in_state", lambda: score_without_memory)
    assert audits.audit_score("x", False, 500, 1).verdict == "pass"


def test_audit_of_the_state_of_scores_tests_the_real_silo() -> None:
    """The audit detects exactly the silos whose score keeps state from one user to the next."""
    memory = np.zeros(1)
    plan = audits._plan("private-fedlinucb", protocol="silo-ldp", batch_size=2, sieve=1.0)
    score = fastfed.protocols.score.Score(audits._score_with_memory_in_state(), memory)
    silo = fastfed.parties.Silo(audits.replace(plan, score=score))
    silo.select(audits.RECORDS[0][None])
    silo.observe(1.0)
    is_kept = silo.select(np.eye(2)) == 1
    assert (run_audit("stateful-score", 300).verdict == "caught") == is_kept


# ---- The table of audits -------------------------------------------------------------------------


def test_every_audit_describes_its_attack() -> None:
    assert set(ABOUT) == set(AUDITS) == set(TRIALS)
    descriptions = listed()
    assert [audit.name for audit in descriptions] == list(AUDITS) and "list" not in AUDITS
    assert all(audit.attacks and audit.unit and audit.relation for audit in descriptions)
    assert {audit.name for audit in descriptions if audit.planted} <= FAULTY
    assert {audit.name for audit in descriptions if audit.must_be_caught} == FAULTY
    new = {"fault-float-noise", "fault-restart", "fault-stateful-score"}
    assert new <= FAULTY and not {"low-bits", "copies", "stateful-score"} & FAULTY
