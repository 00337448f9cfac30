"""Tests with random schedules of lost, repeated, late and reordered messages, kills and backups.

The scheduler may kill a party between any two writes or messages. After each write and message it
checks the invariants of docs/deployment.md. It must detect planted faults.
"""

import os
import re
import sys
from collections import Counter

import pytest

pytest.importorskip("cryptography")

import schedules as schedules_of_all
from federation import Violation, World, deployed
from schedules import PLANTED, planted

PROTOCOLS = ("silo-ldp", "feducb", "central", "secure-sum")


def schedules(protocol, seeds, **keys):
    """Run schedules of faults, one for each seed, and return them."""
    worlds = []
    for seed in seeds:
        world = World(deployed(protocol), seed, **keys)
        world.run()
        worlds.append(world)
    return worlds


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_invariants_hold_whenever_a_party_is_killed(protocol):
    worlds = schedules(protocol, range(12))
    assert sum(world.kills for world in worlds) > 30
    sizes = {len(entries) for world in worlds for entries in world.sets.values()}
    assert sizes == ({3} if protocol == "secure-sum" else {2, 3})


@pytest.mark.parametrize("protocol", ["silo-ldp", "feducb", "central"])
def test_invariants_hold_when_silos_are_restored_to_old_states(protocol):
    worlds = schedules(protocol, range(100, 112), restore=0.5)
    assert sum(world.restores for world in worlds) > 5


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_invariants_hold_over_many_schedules(protocol):
    schedules(protocol, range(1000, 1300))
    if protocol != "secure-sum":
        schedules(protocol, range(2000, 2200), restore=0.5)


def run_schedules(seeds):
    """Run schedules as `scripts/schedules` draws them, and return the counts of their events."""
    total = Counter()
    for seed in seeds:
        counts, broken = schedules_of_all.run(seed)
        assert not broken, f"seed {seed}: {broken}"
        total += counts
    return total


def test_random_schedules_of_all_that_is_deployed():
    counts = run_schedules(range(80))
    assert counts["kills"] > 100 and counts["silos restored"] > 1 and counts["hubs restored"] > 10


def test_random_schedules_of_plans_in_phases_and_with_experts_and_of_erased_records():
    counts = run_schedules(range(schedules_of_all.ALL, schedules_of_all.ALL + 80))
    assert all(counts[f"plan {name}"] for name in schedules_of_all.WITHOUT_BATCHES)
    assert counts["snapshots"] > 100 and counts["erased records"] > 10


@pytest.mark.slow
def test_many_random_schedules_of_all_kinds_of_deployments():
    counts = run_schedules(range(10_000, 10_000 + int(os.environ.get("FASTFED_SCHEDULES", "1000"))))
    assert counts["kills"] > 1000 and counts["hubs restored to before a broadcast"] > 50


def test_a_disturbed_federation_ends_with_the_model_of_a_calm_one():
    """The same records give the same theta with and without kills."""
    plan = deployed("silo-ldp")
    thetas = []
    for kill in (0.0, 0.2):
        world = World(plan, 5, kill=0.0)
        for k, close in enumerate(plan.document.calendar.closes):
            for i, name in enumerate(plan.silos):
                world.now = close - 10.0
                # Offer one action: a choice would depend on which broadcast a killed silo has.
                step, decision = world.parties[name].decide([[0.1 * i, 0.5 - 0.1 * k]], world.now)
                world.perform(name, step)
                world.perform(name, world.parties[name].reward(decision.id, 0.1 * k, world.now))
            world.kill_chance, world.now = kill, float(close)
            for _ in range(60):
                for name in world.parties:
                    world.perform(name, world.parties[name].tick(world.now))
                mail, world.network = world.network, []
                for to, data in mail:
                    world.perform(to, world.parties[to].handle(data, world.now))
            world.kill_chance = 0.0
        thetas.append((world.heal().tolist(), sum(len(e) for e in world.sets.values())))
        assert (world.kills > 0) == (kill > 0)
    assert thetas[0] == thetas[1]


#: Seeds of faults that were fixed: a restored hub that no silo reached in its grace period, whose
#: helper alone knew the set, or whose helper was killed before it opened a set; silos that gave up
#: too many reports; a hub that received the second set of the helper before the first; a silo with
#: noise bits that erased decisions on whose numbers the noise depends; a hub that lost a log with a
#: set that nobody had seen, and opened this set again with more reports (allowed, with `clock`).
FOUND = (26615, 35896, 301648, 52317, 96124, 10000335, 730031075)


@pytest.mark.parametrize("seed", FOUND)
def test_schedules_that_have_found_something(seed):
    counts, broken = schedules_of_all.run(seed)
    assert not broken
    assert counts["kills"] or counts["silos restored"]


# ---- planted faults ------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [fault for fault in PLANTED if fault != "nothing"])
def test_planted_faults_are_caught(fault):
    """At least one of 100 schedules detects the fault."""
    seed, complaint = planted(fault, range(100))
    assert seed is not None, f"{fault} was not caught: {complaint}"


@pytest.mark.parametrize("seed", range(5))
def test_a_hub_that_names_two_sets_sees_one_opened(seed):
    """The helper opens only the first set and reports it, so the plan stops at worst."""
    world = World(
        deployed("shuffle-vector", **schedules_of_all.FEWER, batches=2, batch=3),
        seed,
        kinds={"hub": schedules_of_all.Renaming},
    )
    try:
        world.run()
    except Violation as violation:
        assert re.search(r"alarm|come to its end", str(violation))
    assert any(len(named) == 2 for named in world.named.values())
    assert any("a second set" in alarm for alarm in world.parties["helper"].alarms)
    # All answers of the helper are about one set, whatever sets the hub named.
    assert len(world.sets) <= len(world.named)
    assert all(len(entries) >= world.plan.document.least for entries in world.sets.values())


def test_planted_faults_are_caught_by_the_script(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["schedules", "9", "--plant", "leaf by count"])
    assert schedules_of_all.main() == 0
    assert "caught by seed" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["schedules", "3", "--plant", "nothing"])
    assert schedules_of_all.main() == 1
    assert "not caught" in capsys.readouterr().out


def test_correct_parties_pass_the_schedules_that_catch_faults():
    schedules("silo-ldp", range(12))
    schedules("silo-ldp", range(6), kill=0.1)
