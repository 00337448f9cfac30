"""Tests of PrivateLinUCB, a private agent for one service whose state is one folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fastfed import InputError
from fastfed.deployment import folder as folders
from fastfed.deployment.agent import PrivateLinUCB
from fastfed.deployment.process import Process, SiloProcess

SETTINGS: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "period": 100,
    "releases": 4,
    "batch_size": 50,
    "dimension": 3,
    "start": 1_900_000_000,
}
START = SETTINGS["start"]


class Clock:
    """A clock that a test sets."""

    def __init__(self, now: float = START) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def open_agent(folder: Path, clock: Clock, **settings: Any) -> PrivateLinUCB:
    """Open an agent whose silo and hub read the time from a clock of the test."""
    agent = PrivateLinUCB(folder, **settings)
    for process in (agent._silo, agent._hub):
        process.clock = clock
    return agent


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands still until the test moves it."""
    return Clock()


def rounds_of(count: int, seed: int = 0) -> list[tuple[np.ndarray, float]]:
    """Return rounds: four actions of three features, and a uniform number that draws the reward."""
    rng = np.random.default_rng(seed)
    return [(rng.uniform(-0.5, 0.5, (4, 3)), rng.random()) for _ in range(count)]


def serve(agent: PrivateLinUCB, rounds: list[tuple[np.ndarray, float]], first: int = 0) -> None:
    """Play rounds: reward 1 with probability 0.5 plus the first feature of the chosen action."""
    for i, (rows, noise) in enumerate(rounds, first):
        decision = agent.select(rows, subject=i)
        agent.observe(decision, float(noise < 0.5 + rows[decision.action][0]))


def test_an_agent_learns_by_releases_and_spends_its_budget(tmp_path: Path, clock: Clock) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    assert agent.releases == 0 and not agent.theta.any()
    assert agent.spent["spent_epsilon"] == 0.0
    spent = []
    for k in range(1, 5):
        serve(agent, rounds_of(50, seed=k), first=50 * k)
        assert agent.releases == k - 1  # the period is not over
        clock.now = START + 100 * k
        assert agent.advance() == k
        spent.append(agent.spent["spent_epsilon"])
    assert spent[0] > 0.0 and spent == sorted(spent) and spent[-1] <= 1.0 + 1e-9
    certificate = agent.certificate
    assert certificate.status == "proven" and certificate.exact.epsilon <= 1.0 + 1e-9
    assert certificate.unit == "user" and certificate.relation == "replace"
    late = agent.select(rounds_of(1)[0][0], subject="late")
    assert (
        not late.learns and late.model == 4
    )  # after the last release the agent chooses actions, but does not learn
    agent.close()


def test_the_agent_equals_its_two_parties_that_exchange_messages(
    tmp_path: Path, clock: Clock
) -> None:
    """Compare the agent with a silo and a hub that have a copy of the folder.

    The test passes messages between this silo and this hub.
    """
    open_agent(tmp_path / "a", clock, **SETTINGS).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    agent = open_agent(tmp_path / "a", clock)
    parties: dict[str, Process] = {
        name: folders.opened(tmp_path / "b" / name) for name in ("silo", "hub")
    }
    for party in parties.values():
        party.clock = clock
    silo = cast(SiloProcess, parties["silo"])
    for k in range(1, 5):
        rounds = rounds_of(20, seed=k)
        serve(agent, rounds, first=20 * k)
        for i, (rows, noise) in enumerate(rounds, 20 * k):
            decision = silo.decide(rows.tolist(), i)
            silo.reward(decision.id, float(noise < 0.5 + rows[decision.action][0]))
        clock.now = START + 100 * k
        agent.advance()
        for _ in range(4):  # silo, hub, silo, ...
            for party in parties.values():
                for message in party.tick():
                    _, answers = parties[message.to].handle(message.data)
                    for answer in answers:
                        parties[answer.to].handle(answer.data)
        np.testing.assert_array_equal(agent.theta, silo.party.model.theta)
        assert agent.theta.any() and agent.releases == silo.party.model.release == k
    agent.close()
    for party in parties.values():
        party.close()


def test_decisions_are_kept_across_restarts_and_rewarded_in_any_order(
    tmp_path: Path, clock: Clock
) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    rows = rounds_of(1)[0][0]
    first, second, third = (agent.select(rows, subject=name) for name in "abc")
    agent.observe(second.id, 1.0)
    agent.close()
    reopened = open_agent(tmp_path / "shop", clock)
    reopened.observe(first, 0.0)
    reopened.observe(second, 1.0)  # a repeated reward is the same
    reopened.cancel(third)
    assert reopened.status()["open_decisions"] == 0
    with pytest.raises(InputError, match="no decision"):
        reopened.observe("unknown", 1.0)
    with pytest.raises(InputError):
        reopened.observe(second, 0.0)
    assert not reopened.select(rows, subject="a").learns  # the same person
    reopened.close()


def test_a_call_makes_the_releases_of_periods_that_are_over(tmp_path: Path, clock: Clock) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    serve(agent, rounds_of(10))
    clock.now = START + 250  # two periods pass without a call
    agent.select(rounds_of(1)[0][0], subject="next")
    assert agent.releases == 2
    agent.close()
    clock.now = START + 10_000
    late = PrivateLinUCB(tmp_path / "shop")  # by the machine's clock, the plan has not begun
    assert late.releases == 2
    late.close()


def test_decisions_go_on_if_a_release_cannot_be_made(
    tmp_path: Path, clock: Clock, monkeypatch: Any, caplog: Any
) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    serve(agent, rounds_of(5))
    clock.now = START + 100

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(agent._hub, "handle", full)
    for i in range(3):
        agent.select(rounds_of(1)[0][0], subject=f"during {i}")
    assert agent.releases == 0 and "space" in agent.status()["problem"]
    assert len([r for r in caplog.records if "space" in r.getMessage()]) == 1
    with pytest.raises(OSError, match="space"):
        agent.advance()
    monkeypatch.undo()
    assert agent.advance() == 1 and "problem" not in agent.status()
    agent.close()


def test_records_and_a_catalogue_of_actions(tmp_path: Path, clock: Clock) -> None:
    settings = {key: value for key, value in SETTINGS.items() if key != "dimension"}
    settings |= {
        "columns": [{"name": "age", "kind": "number", "low": 20, "high": 80, "fill": 50}],
        "actions": {"names": ["A", "B"]},
        "reward": {"column": "result", "correct": {"0": "A", "1": "B"}},
        "system": {"sieve": 0.1},
    }
    agent = open_agent(tmp_path / "clinic", clock, **settings)
    decision = agent.select(record={"age": 40}, subject="p1")
    assert decision.name in ("A", "B")
    assert agent.select(record={"age": 40}, subject="p2", among=["B"]).name == "B"
    agent.outcome(decision, "1")
    assert agent._silo.party.plan.ranking == 0.1
    assert agent.status()["open_decisions"] == 1
    agent.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": None}, "a new one needs epsilon"),
        ({"epsilon": -1.0}, "epsilon must be > 0"),
        ({"delta": 0}, "delta must be > 0"),
        ({"period": 0}, "period must be an integer >= 1"),
        ({"releases": 2.5}, "releases must be an integer"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"dimension": None}, "needs either dimension .* got neither"),
        ({"columns": [{"name": "age"}]}, "needs either dimension .* got both"),
        ({"system": {"protocol": "central"}}, "system must not have protocol"),
        ({"system": {"epsilom": 1}}, "unknown key"),
        ({"system": np.eye(2)}, "system must be numbers, texts"),
        ({"start": "today"}, "start must be a date"),
    ],
)
def test_invalid_settings_leave_nothing_behind(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        PrivateLinUCB(tmp_path / "shop", **(SETTINGS | change))
    assert not list(tmp_path.iterdir())


def test_a_folder_belongs_to_one_agent(tmp_path: Path, clock: Clock) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    with pytest.raises(InputError, match="in use by another process"):
        PrivateLinUCB(tmp_path / "shop")
    agent.close()
    for key, value in (("epsilon", 2.0), ("dimension", 4), ("system", {"sieve": 0.1})):
        with pytest.raises(InputError, match=f"{key} must be .* was created"):
            PrivateLinUCB(tmp_path / "shop", **{key: value})
    open_agent(tmp_path / "shop", clock, **SETTINGS).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("not an agent")
    with pytest.raises(InputError, match="folder must be new, empty, or that of an agent"):
        PrivateLinUCB(tmp_path / "other", **SETTINGS)
    assert (tmp_path / "other" / "file").read_text() == "not an agent"
    (tmp_path / "empty").mkdir()
    open_agent(tmp_path / "empty", clock, **SETTINGS).close()


CHILD = """
import sys
import numpy as np
from fastfed.deployment.agent import PrivateLinUCB

agent = PrivateLinUCB(sys.argv[1])
print("ready", flush=True)
rng = np.random.default_rng(int(sys.argv[2]))
for i in range(10_000):
    decision = agent.select(rng.uniform(-0.5, 0.5, (3, 3)), subject=f"{sys.argv[2]} {i}")
    print("decided", decision.id, flush=True)
    if i % 2:
        agent.observe(decision, 1.0)
        print("rewarded", decision.id, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_no_answered_decision_or_reward_is_lost_by_kills(tmp_path: Path) -> None:
    settings = SETTINGS | {"start": int(time.time()), "period": 1, "releases": 400}
    PrivateLinUCB(tmp_path / "shop", **settings).close()
    decided: set[str] = set()
    rewarded: set[str] = set()
    for kill in range(4):
        command = [sys.executable, "-P", "-c", CHILD, str(tmp_path / "shop"), str(kill)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            time.sleep(0.4)
            child.send_signal(signal.SIGKILL)
            # The last line may be cut off.
            lines = child.stdout.read().splitlines()[:-1]
        for line in lines:
            event, name = line.split()
            (decided if event == "decided" else rewarded).add(name)
    agent = PrivateLinUCB(tmp_path / "shop")
    party = agent._silo.party
    assert decided <= set(party.decisions) and rewarded <= decided
    assert len(decided) > 20 and len(rewarded) > 5
    for name in rewarded:
        agent.observe(name, 1.0)  # the agent has this reward already
        with pytest.raises(InputError):
            agent.observe(name, 0.0)
    agent.close()
    settings_text = (tmp_path / "shop" / "agent.json").read_text()
    assert json.loads(settings_text) == settings


def test_an_agent_says_what_it_is_and_waits_for_its_own_period(
    tmp_path: Path, clock: Clock
) -> None:
    agent = open_agent(tmp_path / "shop", clock, **SETTINGS)
    assert repr(agent) == f"PrivateLinUCB({str(tmp_path / 'shop')!r})  # 0 of 4 releases"
    waits = cast(dict[str, Any], agent.status()["waits"])
    assert waits["state"] == "open" and waits["who"] == [] and "hub" not in waits["do"]
    with pytest.raises(InputError, match="in use by another process, or by an object of this one"):
        PrivateLinUCB(tmp_path / "shop")
    agent.close()
    assert repr(agent).endswith("# closed")
    for use in (lambda: agent.select(np.eye(3)), lambda: agent.cancel("00")):
        with pytest.raises(InputError, match="closed: open it again with PrivateLinUCB"):
            use()


def test_numbers_of_numpy_are_settings(tmp_path: Path) -> None:
    numbers = {"period": np.int64(100), "releases": np.int32(4), "epsilon": np.float64(1.0)}
    PrivateLinUCB(tmp_path / "shop", **{**SETTINGS, **numbers}).close()
    PrivateLinUCB(tmp_path / "shop", **SETTINGS).close()


def test_arguments_in_another_order_are_refused(tmp_path: Path, clock: Clock) -> None:
    with open_agent(tmp_path / "shop", clock, **SETTINGS) as agent:
        decision = agent.select(np.eye(SETTINGS["dimension"]))
        for wrong in (1.0, None):
            with pytest.raises(InputError, match="it comes before the reward, got"):
                agent.observe(wrong, decision.id)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="decision must be a Decision or its id"):
                agent.cancel(wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="subject must be a whole number, or a text"):
            agent.select(np.eye(SETTINGS["dimension"]), subject=17.0)  # type: ignore[arg-type]
        agent.observe(decision, 1.0)
