"""Messages about plausible mistakes are one sentence with key and value; no files remain."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from mistakes import Mistake, answer, available, contents, every, table

from fastfed.cli import cli


@pytest.mark.parametrize("mistake", every(), ids=lambda mistake: mistake.what)
def test_the_message(mistake: Mistake) -> None:
    if not available(mistake):
        pytest.skip(f"needs {', '.join(mistake.needs)}")
    given = answer(mistake)
    assert not given.faults, given.message


def test_mistakes_differ() -> None:
    descriptions = [mistake.what for mistake in every()]
    assert len(descriptions) >= 120 and sorted(descriptions) == sorted(set(descriptions))


def test_a_poor_message_is_found(tmp_path: Path) -> None:
    """Check that accepted mistakes, other failures and vague messages are detected."""

    def raise_key_error(folder: Path) -> None:
        raise KeyError("epsilon")

    def leave_a_folder(folder: Path) -> None:
        """Leave a folder behind, and give a message of two lines."""
        from fastfed import InputError

        (folder / "out").mkdir()
        raise InputError("epsilon must be > 0,\n got 0")

    accepted_answer = answer(Mistake("taken", lambda folder: None, ()))
    assert accepted_answer.faults == ("nothing is said",)
    assert answer(Mistake("raised", raise_key_error, ("epsilon",))).faults == ("traceback",)
    vague_answer = answer(Mistake("left", leave_a_folder, ("epsilon", "> 0", "delta")))
    assert vague_answer.faults == ("leaves out", "does not say delta")
    lines = list(table([(Mistake("taken", lambda folder: None, ()), accepted_answer)]))
    assert lines[0].startswith("1 mistakes, 0 good")


def test_a_ceiling_below_the_plan_is_noted(tmp_path: Path) -> None:
    """Check that a low ceiling is allowed, with a note on what it means."""
    pytest.importorskip("cryptography")
    from mistakes_deployed import spec

    (tmp_path / "s.toml").write_text(spec(tmp_path))
    run = CliRunner().invoke
    new = run(cli, ["deploy", "new", str(tmp_path / "s.toml"), str(tmp_path / "p")])
    assert new.exit_code == 0, new.stderr
    join = ["deploy", "join", str(tmp_path / "north"), str(tmp_path / "p"), "--delta", "1e-6"]
    low, enough = (run(cli, [*join, "--epsilon", e]) for e in ("0.5", "1"))
    assert low.exit_code == enough.exit_code == 0
    assert low.stderr.startswith("note: the ceiling epsilon = 0.5 is below the plan's 1:")
    assert enough.stderr == ""
    # The same epsilon at a smaller delta is less than the plan spends.
    small = run(cli, [*join[:-1], "1e-9", "--epsilon", "1"])
    assert small.exit_code == 0
    assert small.stderr.startswith("note: the ceiling epsilon = 1 at delta 1e-09 is below the plan")
    assert contents(tmp_path / "north")
