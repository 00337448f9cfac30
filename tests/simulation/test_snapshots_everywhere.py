"""Snapshots of robin, of peers and of experts: from each one that a run keeps, the same bits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_experts_drivers as of_experts
import test_feducb_decentralized as peers_module
import test_robin as of_robin
from problems import ordinary_cases
from test_drivers import same
from test_snapshots import rows, stop_after

from fastfed.environments import ObliviousLosses
from fastfed.experts.baselines import Leader
from fastfed.simulation import compiled, dispatch, expert_course, experts, run, snapshots
from fastfed.simulation.dispatch import Interrupted
from fastfed.simulation.experiment import Experiment, make_experiment
from fastfed.simulation.snapshots import Snapshot, Snapshots


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot wherever there may be one, and blocks of few rounds."""
    monkeypatch.setattr(snapshots, "EVERY", 0.0)
    monkeypatch.setattr(snapshots, "TIMES_OF_WRITING", 0.0)
    monkeypatch.setattr(compiled, "CALL_SECONDS", 1e-9)
    monkeypatch.setattr(expert_course, "SECONDS_HEARD", 0.0)
    monkeypatch.setattr(experts, "MOST_SUMS_TOGETHER", 40)
    monkeypatch.setattr(experts, "MOST_LOSSES", 60)
    monkeypatch.setattr(snapshots.os, "fsync", lambda handle: None)  # kills, not power cuts


def from_each(
    play: Callable[..., Any], path: Path, monkeypatch: pytest.MonkeyPatch, most: int = 12
) -> int:
    """Play once, and again from the files that a process killed at any time would leave; of more
    than so many, as many evenly among them. Returns how many there were."""
    left: list[Path] = []
    keep = Snapshot.keep

    def kept(snapshot: Snapshot, round: int, *more: Any) -> None:
        keep(snapshot, round, *more)
        if round:
            left.append(snapshot.path.with_name(f"{len(left)}.kept"))
            shutil.copy(snapshot.path, left[-1])

    whole = play()
    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "keep", kept)
        same(play(snapshot=Snapshot(path, "this")), whole)
    monkeypatch.setattr(snapshots, "EVERY", 1e9)
    brought: list[Any] = []
    for owner, name in ((snapshots.Kept, "into"), (expert_course, "into_fields")):
        bring = getattr(owner, name)
        heard = lambda *given, bring=bring: brought.append(bring(*given)) or brought[-1]  # noqa: E731
        monkeypatch.setattr(owner, name, heard)
    chosen = {round(i) for i in np.linspace(0, len(left) - 1, min(most, len(left)))}
    for i in chosen:
        shutil.copy(left[i], path)
        before = len(brought)
        same(play(snapshot=Snapshot(path, "this")), whole)
        assert len(brought) == before + 1 and brought[-1] is not False
    return len(left)


def steps_of(rounds: int) -> Any:
    """Calls of so many rounds of the compiled driver."""
    made = compiled.run_rounds

    def run_rounds(run, first, last, rounds_per_call=None, progress=None):  # type: ignore[no-untyped-def]
        made(run, first, last, rounds, progress)

    return run_rounds


ROBIN = [
    "ends inside a phase", "ends with a phase", "one round after a phase", "U = 1", "U = 3",
    "U beyond T", "many bins", "not private", "memory, sharing", "clipped", "one silo",
    "another radius", "one greedy round",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "world"),
    ordinary_cases(
        [(name, world) for name in ROBIN for world in ("sphere", "fixed set")],
        lambda name, world: name in ROBIN[::2] and (world == "sphere") != (name == "U = 3"),
    ),
)
def test_robin_goes_on_from_each_snapshot(name, world, often, tmp_path, monkeypatch):
    e = of_robin.experiment(of_robin.ENVIRONMENTS[world], **of_robin.PROBLEMS[name])
    monkeypatch.setattr(compiled, "run_rounds", steps_of(2))
    found = from_each(
        lambda **keys: of_robin.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert found >= 0.4 * e.horizon


PEERS = [
    *[n for i, n in enumerate(peers_module.graph_cases()) if i % 7 == 0],
    "two cliques", "log-T", "further than needed", "less than two uses", "one use each",
    "every use, quiet", "one of everything, quiet", "one silo", "a batch of all uses",
]  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
def test_peers_go_on_from_each_snapshot(name, often, tmp_path, monkeypatch):
    e, _ = peers_module.run_case(name)
    monkeypatch.setattr(compiled, "run_rounds", steps_of(2))
    found = from_each(
        lambda **keys: peers_module.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert found >= len(e.curves[0].system.plan.parts)


#: One of each server, way of playing and kind of regret.
ORDINARY = [
    "linear", "quadratic", "gradients", "server's noise", "no tree", "hindsight", "svt, N = 9",
    "dartboard, N = 7, pseudo-regret", "limited updates", "leader", "hedge", "one round",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ordinary_cases(list(of_experts.PROBLEMS), lambda name: name in ORDINARY)
)
def test_experts_go_on_from_each_snapshot(name, often, tmp_path, monkeypatch):
    e = of_experts.experiment(name)
    found = from_each(
        lambda **keys: of_experts.run_compiled(e, **keys), tmp_path / "one", monkeypatch
    )
    assert found >= min(e.horizon, 2)


def test_a_phase_of_trees_is_kept_inside(often, tmp_path, monkeypatch):
    """A stop between two leaves goes on at the next one, and samples no loss twice."""
    e = of_experts.experiment("quadratic")
    left = []
    keep = Snapshot.keep

    def kept(snapshot, round, arrays, *more):
        keep(snapshot, round, arrays, *more)
        left.append((round, int(arrays["course.made"]), int(arrays.get("walk.done", 0))))

    monkeypatch.setattr(Snapshot, "keep", kept)
    of_experts.run_compiled(e, snapshot=Snapshot(tmp_path / "one", "this"))
    rounds = [round for round, _, _ in left]
    inside = [made for round, made, done in left if rounds.count(round) > 2 and done > 1]
    assert len(set(inside)) > 10


class Stubborn(Leader):
    """A server of another package's, with more to keep than its base."""

    patience = 0

    def decide(self, total):
        self.patience += 1
        return super().decide(total)


def test_servers_of_other_packages_begin_again(often, tmp_path, monkeypatch):
    """Nobody knows what an object of theirs has to keep; a class may say so by ``KEPT``."""
    e = of_experts.experiment("leader")
    plan = e.curves[0].system.plan
    monkeypatch.setattr(type(plan), "decider", lambda self, noise: Stubborn(self, noise))
    whole, path = of_experts.run_compiled(e), tmp_path / "one"
    same(of_experts.run_compiled(e, snapshot=Snapshot(path, "this")), whole)
    assert not path.exists()
    monkeypatch.setattr(Stubborn, "KEPT", (*Leader.KEPT, "patience"), raising=False)
    assert from_each(lambda **keys: of_experts.run_compiled(e, **keys), path, monkeypatch, 5) > 5


# ---- into an output folder -----------------------------------------------------------------------

ROBIN_CURVE = {"label": "robin", "algorithm": "robin", "private": False, "initial_phases": 2}
KINDS = {
    "robin": (of_robin.ENVIRONMENTS["sphere"], {**ROBIN_CURVE, "concentration_multiplier": 3e-4}),
    "peers": (
        of_robin.ENVIRONMENTS["sphere"],
        {"label": "p", "algorithm": "feducb-decentralized", "private": False, "graph": "line"},
    ),
    "experts": (ObliviousLosses(losses=of_experts.TABLE), {"label": "h", "algorithm": "hedge"}),
}


def of_kind(kind: str, replicates: int = 2, **sizes: int) -> Experiment:
    environment, curve = KINDS[kind]
    return make_experiment(
        name="kinds", environment=environment, curves=[curve], seed=8, replicates=replicates,
        **{"horizon": 150, "silos": 3} | sizes,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_stopped_goes_on(kind, often, tmp_path):
    """At each of some points of its way; the store is that of a run that was not."""
    e = of_kind(kind)
    run.run(e, tmp_path / "whole", threads=1)
    everything, part = 2 * 3 * 150, tmp_path / "part"
    heard: list[int] = []
    for at in (60, 200, 400, 500, 700):
        heard = []
        with pytest.raises(Interrupted):
            run.run(e, part, threads=1, progress=stop_after(at - sum(done(e, part)), heard))
        (kept,) = (part / snapshots.FOLDER).iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600
    heard = []
    run.run(e, part, threads=1, progress=heard.append)
    assert heard[0] > 100 and sum(heard) == everything // 2
    assert rows(part) == rows(tmp_path / "whole")
    assert not (part / snapshots.FOLDER).exists()


def done(e: Experiment, folder: Path) -> list[int]:
    """Agent-rounds of the replicates that are committed."""
    return [] if not folder.exists() else [3 * 150] * len(rows(folder))


HOWS = ["flipped", "cut", "of another experiment", "of another kind"]


@pytest.mark.parametrize(
    ("kind", "how"),
    ordinary_cases(
        [(kind, how) for kind in KINDS for how in HOWS],
        lambda kind, how: kind == "experts" or (kind, how) == ("robin", HOWS[-1]),
    ),
)
def test_what_does_not_fit_is_not_read(kind, how, often, tmp_path):
    e, part = of_kind(kind, replicates=1), tmp_path / "part"
    with pytest.raises(Interrupted):
        run.run(e, part, threads=1, progress=stop_after(200, []))
    (kept,) = (part / snapshots.FOLDER).iterdir()
    whole = bytearray(kept.read_bytes())
    if how == "flipped":
        whole[len(whole) // 3] ^= 4
    elif how == "cut":
        del whole[len(whole) // 2 :]
    else:
        other = of_kind(kind if how.endswith("experiment") else "experts", 1, horizon=140)
        with pytest.raises(Interrupted):
            run.run(other, tmp_path / "other", threads=1, progress=stop_after(200, []))
        whole[:] = (tmp_path / "other" / snapshots.FOLDER / kept.name).read_bytes()
    kept.write_bytes(whole)
    heard: list[int] = []
    run.run(e, part, threads=1, progress=heard.append)
    assert max(heard) < 150  # from the first round on
    run.run(e, tmp_path / "whole", threads=1)
    assert rows(part) == rows(tmp_path / "whole")


def test_a_snapshot_of_another_stage_or_shape_is_not_read(tmp_path, often):
    """Such as one that was written by a version in work, under the same number."""
    e = of_robin.experiment(of_robin.ENVIRONMENTS["sphere"], horizon=21)
    plan, whole = of_robin.plan_of(e), of_robin.run_compiled(e)
    state = compiled.state(plan.local, e.horizon, True)
    numbers = np.zeros((1, 12))
    for stage, round in ((0, 5), (1, 5), (7, 5), (1, 22), (0, -1)):
        snapshot = Snapshot(tmp_path / "one", "this")
        snapshot.write(round, numbers, [{**state, "theta": np.zeros((1, 9))}], stage)
        same(of_robin.run_compiled(e, snapshot=snapshot), whole)
    for arrays in (
        {},
        {"course.x": np.zeros(3)},
        {"phase": np.asarray(2), "walk.done": np.zeros(2)},
    ):
        snapshot = Snapshot(tmp_path / "two", "this")
        snapshot.keep(9, arrays)
        one = of_experts.experiment("quadratic")
        same(of_experts.run_compiled(one, snapshot=snapshot), of_experts.run_compiled(one))


def test_drafts_of_killed_processes_are_deleted(tmp_path, often):
    folder = tmp_path / snapshots.FOLDER
    folder.mkdir()
    (folder / f"replicate-0-curves-0-1.npz.x7{snapshots.DRAFT}").write_bytes(b"half")
    (folder / f"{snapshots.MARK}x7").touch()
    Snapshots(folder, "this").tidy()
    assert not list(folder.iterdir())


def test_drivers_that_keep_snapshots_are_all_but_plain_policies():
    found = {name for name, driver in dispatch.DRIVERS.items() if driver.snapshots}
    assert found == {"server", "peers", "phases", "experts"}
