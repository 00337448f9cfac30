"""Tests of snapshots of robin, peers and experts: a run continued from any snapshot has the same
bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_experts_drivers as experts_module
import test_feducb_decentralized as peers_module
import test_robin as robin_module
from problems import ordinary_cases
from test_drivers import assert_same_bits
from test_snapshots import stop_after, stored_rows

import fastfed
from fastfed.environments import ObliviousLosses
from fastfed.experts.baselines import Leader
from fastfed.simulation import compiled, dispatch, expert_course, experts, snapshots
from fastfed.simulation.dispatch import Interrupted
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.snapshots import Snapshot, Snapshots


@pytest.fixture
def frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a snapshot wherever possible and simulate few rounds at a time."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)
    monkeypatch.setattr(expert_course, "REPORT_SECONDS", 0.0)
    monkeypatch.setattr(experts, "MAX_SUMS_TOGETHER", 40)
    monkeypatch.setattr(experts, "MAX_LOSSES", 60)
    monkeypatch.setattr(
        snapshots.os, "fsync", lambda handle: None
    )  # the tests kill processes, but do not cut the power


def check_each_snapshot(
    run_: Callable[..., Any], path: Path, monkeypatch: pytest.MonkeyPatch, max_checked: int = 12
) -> int:
    """Run once, then continue from each snapshot; return the number of snapshots.

    A killed process could leave any of these files. If there are more than ``max_checked``, a
    subset at equal distances is checked.
    """
    snapshot_files: list[Path] = []
    keep = Snapshot.keep

    def copy_snapshot(snapshot: Snapshot, round: int, *more: Any) -> None:
        """Keep a snapshot as before, and copy its file."""
        keep(snapshot, round, *more)
        if round:
            snapshot_files.append(snapshot.path.with_name(f"{len(snapshot_files)}.kept"))
            shutil.copy(snapshot.path, snapshot_files[-1])

    full_outcome = run_()
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "keep", copy_snapshot)
        assert_same_bits(run_(snapshot=Snapshot(path, "this")), full_outcome)
    monkeypatch.setattr(snapshots, "SNAPSHOT_SECONDS", 1e9)
    loaded: list[Any] = []
    for owner, name in ((snapshots.Kept, "into"), (expert_course, "into_fields")):
        load = getattr(owner, name)
        record_load = lambda *given, load=load: loaded.append(load(*given)) or loaded[-1]  # noqa: E731
        monkeypatch.setattr(owner, name, record_load)
    chosen = {
        round(i)
        for i in np.linspace(0, len(snapshot_files) - 1, min(max_checked, len(snapshot_files)))
    }
    for i in chosen:
        shutil.copy(snapshot_files[i], path)
        count_before = len(loaded)
        assert_same_bits(run_(snapshot=Snapshot(path, "this")), full_outcome)
        assert len(loaded) == count_before + 1 and loaded[-1] is not False
    return len(snapshot_files)


def calls_of_length(rounds: int) -> Any:
    """Return a replacement of ``run_rounds`` that simulates this number of rounds per call."""
    original = compiled.run_rounds

    def run_rounds(run, first, last, rounds_per_call=None, progress=None):  # type: ignore[no-untyped-def]
        original(run, first, last, rounds, progress)

    return run_rounds


ROBIN = [
    "ends inside a phase", "ends with a phase", "one round after a phase", "U = 1", "U = 3",
    "U beyond T", "many bins", "not private", "memory, sharing", "clipped", "one silo",
    "another radius", "one greedy round",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "environment"),
    ordinary_cases(
        [(name, environment) for name in ROBIN for environment in ("sphere", "fixed set")],
        lambda name, environment: (
            name in ROBIN[::2] and (environment == "sphere") != (name == "U = 3")
        ),
    ),
)
def test_robin_continues_from_each_snapshot(
    name, environment, frequent_snapshots, tmp_path, monkeypatch
):
    e = robin_module.experiment(
        robin_module.ENVIRONMENTS[environment], **robin_module.PROBLEMS[name]
    )
    monkeypatch.setattr(compiled, "run_rounds", calls_of_length(2))
    snapshot_count = check_each_snapshot(
        lambda **keys: robin_module.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert snapshot_count >= 0.4 * e.horizon


PEERS = [
    *[n for i, n in enumerate(peers_module.graph_cases()) if i % 7 == 0],
    "two cliques", "log-T", "further than needed", "less than two uses", "one use each",
    "every use, quiet", "one of everything, quiet", "one silo", "a batch of all uses",
]  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
def test_peers_continue_from_each_snapshot(name, frequent_snapshots, tmp_path, monkeypatch):
    e, _ = peers_module.run_case(name)
    monkeypatch.setattr(compiled, "run_rounds", calls_of_length(2))
    snapshot_count = check_each_snapshot(
        lambda **keys: peers_module.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert snapshot_count >= len(e.curves[0].system.plan.parts)


#: One problem for each server, driver path and kind of regret.
ORDINARY = [
    "linear", "quadratic", "gradients", "server's noise", "no tree", "hindsight", "svt, N = 9",
    "dartboard, N = 7, pseudo-regret", "limited updates", "leader", "hedge", "one round",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ordinary_cases(list(experts_module.PROBLEMS), lambda name: name in ORDINARY)
)
def test_experts_continue_from_each_snapshot(name, frequent_snapshots, tmp_path, monkeypatch):
    e = experts_module.experiment(name)
    snapshot_count = check_each_snapshot(
        lambda **keys: experts_module.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert snapshot_count >= min(e.horizon, 2)


def test_snapshots_can_be_inside_a_phase_of_trees(frequent_snapshots, tmp_path, monkeypatch):
    """Check that a run stopped between two leaves continues at the next leaf and samples no loss
    twice."""
    e = experts_module.experiment("quadratic")
    progress = []
    keep = Snapshot.keep

    def record_progress(snapshot, round, arrays, *more):
        """Keep a snapshot as before, and note how far the phase is."""
        keep(snapshot, round, arrays, *more)
        progress.append((round, int(arrays["course.made"]), int(arrays.get("walk.done", 0))))

    monkeypatch.setattr(Snapshot, "keep", record_progress)
    experts_module.run_compiled(e, snapshot=Snapshot(tmp_path / "one", "this"))
    rounds = [round for round, _, _ in progress]
    inside_phase = [made for round, made, done in progress if rounds.count(round) > 2 and done > 1]
    assert len(set(inside_phase)) > 10


class PatientLeader(Leader):
    """A server of another package, with more state than its base class."""

    patience = 0

    def decide(self, total):
        self.patience += 1
        return super().decide(total)


def test_servers_of_other_packages_start_anew_unless_they_declare_their_state(
    frequent_snapshots, tmp_path, monkeypatch
):
    """Check that a class can declare its state with ``KEPT``."""
    e = experts_module.experiment("leader")
    plan = e.curves[0].system.plan
    monkeypatch.setattr(type(plan), "decider", lambda self, noise: PatientLeader(self, noise))
    full_outcome, path = experts_module.run_compiled(e), tmp_path / "one"
    assert_same_bits(experts_module.run_compiled(e, snapshot=Snapshot(path, "this")), full_outcome)
    assert not path.exists()
    monkeypatch.setattr(PatientLeader, "KEPT", (*Leader.KEPT, "patience"), raising=False)
    assert (
        check_each_snapshot(
            lambda **keys: experts_module.run_compiled(e, **keys), path, monkeypatch, 5
        )
        > 5
    )


# ---- into an output folder -----------------------------------------------------------------------

ROBIN_CURVE = {"label": "robin", "algorithm": "robin", "private": False, "initial_phases": 2}
KINDS = {
    "robin": (
        robin_module.ENVIRONMENTS["sphere"],
        {**ROBIN_CURVE, "concentration_multiplier": 3e-4},
    ),
    "peers": (
        robin_module.ENVIRONMENTS["sphere"],
        {"label": "p", "algorithm": "feducb-decentralized", "private": False, "graph": "line"},
    ),
    "experts": (ObliviousLosses(losses=experts_module.TABLE), {"label": "h", "algorithm": "hedge"}),
}


def experiment_of_kind(kind: str, replicates: int = 2, **sizes: int) -> Experiment:
    """Return an experiment whose curve uses this driver."""
    environment, curve = KINDS[kind]
    return make_experiment(
        name="kinds", environment=environment, curves=[curve], seed=8, replicates=replicates,
        **{"horizon": 150, "silos": 3} | sizes,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_continues_from_its_snapshot(kind, frequent_snapshots, tmp_path):
    """Interrupt the run several times; the results equal those of an uninterrupted run."""
    e = experiment_of_kind(kind)
    fastfed.run(e, tmp_path / "whole", threads=1)
    all_rounds, part = 2 * 3 * 150, tmp_path / "part"
    reported: list[int] = []
    for interrupt_at in (60, 200, 400, 500, 700):
        reported = []
        with pytest.raises(Interrupted):
            fastfed.run(
                e,
                part,
                threads=1,
                progress=stop_after(interrupt_at - sum(committed_rounds(e, part)), reported),
            )
        (snapshot_file,) = (part / snapshots.FOLDER).iterdir()
        assert snapshot_file.stat().st_mode & 0o777 == 0o600
    reported = []
    fastfed.run(e, part, threads=1, progress=reported.append)
    assert reported[0] > 100 and sum(reported) == all_rounds // 2
    assert stored_rows(part) == stored_rows(tmp_path / "whole")
    assert not (part / snapshots.FOLDER).exists()


def committed_rounds(e: Experiment, folder: Path) -> list[int]:
    """Return the agent-rounds of each committed replicate."""
    return [] if not folder.exists() else [3 * 150] * len(stored_rows(folder))


DAMAGES = ["flipped", "cut", "of another experiment", "of another kind"]


@pytest.mark.parametrize(
    ("kind", "damage"),
    ordinary_cases(
        [(kind, damage) for kind in KINDS for damage in DAMAGES],
        lambda kind, damage: kind == "experts" or (kind, damage) == ("robin", DAMAGES[-1]),
    ),
)
def test_snapshots_that_do_not_fit_are_ignored(kind, damage, frequent_snapshots, tmp_path):
    e, part = experiment_of_kind(kind, replicates=1), tmp_path / "part"
    with pytest.raises(Interrupted):
        fastfed.run(e, part, threads=1, progress=stop_after(200, []))
    (snapshot_file,) = (part / snapshots.FOLDER).iterdir()
    content = bytearray(snapshot_file.read_bytes())
    if damage == "flipped":
        content[len(content) // 3] ^= 4
    elif damage == "cut":
        del content[len(content) // 2 :]
    else:
        other_experiment = experiment_of_kind(
            kind if damage.endswith("experiment") else "experts", 1, horizon=140
        )
        with pytest.raises(Interrupted):
            fastfed.run(
                other_experiment, tmp_path / "other", threads=1, progress=stop_after(200, [])
            )
        content[:] = (tmp_path / "other" / snapshots.FOLDER / snapshot_file.name).read_bytes()
    snapshot_file.write_bytes(content)
    reported: list[int] = []
    fastfed.run(e, part, threads=1, progress=reported.append)
    assert max(reported) < 150  # the run started again from the first round
    fastfed.run(e, tmp_path / "whole", threads=1)
    assert stored_rows(part) == stored_rows(tmp_path / "whole")


def test_snapshots_with_another_stage_or_shape_are_ignored(tmp_path, frequent_snapshots):
    """Check snapshots that a version under development could write with the same format number."""
    e = robin_module.experiment(robin_module.ENVIRONMENTS["sphere"], horizon=21)
    plan, full_outcome = robin_module.plan_of(e), robin_module.run_compiled(e)
    state = compiled.state(plan.local, e.horizon, True)
    numbers = np.zeros((1, 12))
    for stage, round in ((0, 5), (1, 5), (7, 5), (1, 22), (0, -1)):
        snapshot = Snapshot(tmp_path / "one", "this")
        snapshot.write(round, numbers, [{**state, "theta": np.zeros((1, 9))}], stage)
        assert_same_bits(robin_module.run_compiled(e, snapshot=snapshot), full_outcome)
    for arrays in (
        {},
        {"course.x": np.zeros(3)},
        {"phase": np.asarray(2), "walk.done": np.zeros(2)},
    ):
        snapshot = Snapshot(tmp_path / "two", "this")
        snapshot.keep(9, arrays)
        experts_experiment = experts_module.experiment("quadratic")
        assert_same_bits(
            experts_module.run_compiled(experts_experiment, snapshot=snapshot),
            experts_module.run_compiled(experts_experiment),
        )


def test_drafts_of_killed_processes_are_deleted(tmp_path, frequent_snapshots):
    folder = tmp_path / snapshots.FOLDER
    folder.mkdir()
    (folder / f"replicate-0-curves-0-1.npz.x7{snapshots.DRAFT}").write_bytes(b"half")
    (folder / f"{snapshots.MARK}x7").touch()
    Snapshots(folder, "this").tidy()
    assert not list(folder.iterdir())


def test_all_drivers_except_plain_policies_write_snapshots():
    drivers_with_snapshots = {name for name, driver in dispatch.DRIVERS.items() if driver.snapshots}
    assert drivers_with_snapshots == {"server", "peers", "phases", "experts"}
