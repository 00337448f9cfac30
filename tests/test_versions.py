"""Files that an earlier version wrote, opened by this one."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

import fastfed
from fastfed import InputError
from fastfed.deployment import plans
from fastfed.deployment.ledger import Ledger

#: Written by the state of 2026-11-20, before plan files held choices and ledgers had a chain.
FILES = Path(__file__).parent / "versions" / "unreleased"


def test_a_plan_file_of_format_1_says_what_to_do():
    with pytest.raises(InputError, match=r"format 1, .* compile it again from its spec"):
        plans.load(FILES / "plan")


def test_a_ledger_keeps_what_was_spent(tmp_path):
    copy = tmp_path / "ledger.sqlite"
    shutil.copy(FILES / "ledger.sqlite", copy)
    ledger = Ledger(copy)
    assert ledger.epsilon("records") == pytest.approx(0.8039765724201364, rel=1e-12)
    assert [charge.release for charge in ledger.charges("records")] == [1, 2, 3]


def test_a_store_of_results_reports_as_before(tmp_path):
    shutil.copy(FILES / "results.sqlite", tmp_path / "results.sqlite")
    (curve,) = fastfed.load(tmp_path).curves
    assert curve.final()["mean"] == pytest.approx(69.9, abs=0.06)
    assert curve.certificate["status"] == "proven"
