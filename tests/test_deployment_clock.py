"""A clock that jumps closes nothing on one reading."""

import pytest

pytest.importorskip("cryptography")

import federation
from federation import ROWS, deployed

from fastfed.deployment.kinds import silo_of
from fastfed.deployment.ledger import Ledger, MemoryStore
from fastfed.deployment.party import BELIEVED, DOUBTED, Process, SiloProcess, SteadyClock

YEARS = 10 * 365 * 86400.0


class Hands:
    """A wall clock and a monotonic one that a test moves."""

    def __init__(self):
        self.wall, self.at, self.off = 1000.0, 50.0, 0.0

    def clock(self):
        return SteadyClock(lambda: self.wall + self.off, lambda: self.at)

    def wait(self, seconds):
        self.wall += seconds
        self.at += seconds


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 2 * DOUBTED, -2 * DOUBTED])
def test_a_jump_that_does_not_last_is_not_believed(jump):
    hands = Hands()
    clock = hands.clock()
    hands.wait(5.0)
    assert clock() == 1005.0
    hands.off = jump
    for _ in range(3):
        hands.wait(5.0)
        assert clock() == pytest.approx(hands.wall) and clock.off == pytest.approx(jump)
    hands.off = 0.0
    hands.wait(5.0)
    assert clock() == hands.wall and clock.off == 0.0


def test_a_clock_that_was_set_is_believed_after_a_while():
    hands = Hands()
    clock = hands.clock()
    hands.off = 3600.0
    assert clock() == 1000.0
    hands.wait(BELIEVED * (1 - 1e-6))
    assert clock() == pytest.approx(hands.wall)
    hands.wait(BELIEVED * 1e-5)
    assert clock() == pytest.approx(hands.wall + 3600.0) and clock.off == 0.0
    # It goes on from there.
    hands.wait(5.0)
    assert clock() == pytest.approx(hands.wall + 3600.0)


def test_a_clock_that_jumps_about_is_never_believed():
    hands = Hands()
    clock = hands.clock()
    for k in range(1, 100):
        hands.off = k * 10 * DOUBTED
        hands.wait(BELIEVED / 2)
        assert clock() == pytest.approx(hands.wall)


def test_small_steps_are_those_of_a_clock_that_is_kept_right():
    hands = Hands()
    clock = hands.clock()
    for _ in range(1000):
        hands.off += 0.9 * DOUBTED
        hands.wait(1.0)
        assert clock() == pytest.approx(hands.wall + hands.off)


def test_one_glitch_does_not_end_a_silos_learning():
    """Ten years ahead for one tick sealed all remaining releases."""
    plan, hands = deployed(), Hands()
    hands.wall = federation.START + 10.0
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", 1.0, 1e-6)
    party = silo_of(plan, "silo0", federation.secret("silo0"), ledger)
    silo = SiloProcess(party, MemoryStore(), ledger, hands.clock())
    party._answered = True
    first = silo.decide(ROWS)
    hands.off = YEARS
    silo.tick()
    assert silo.status()["clock_off"] == pytest.approx(YEARS)
    silo.reward(first.id, 0.5)
    assert not party.sealed and party.ended[first.id].leaf == 1
    hands.off = 0.0
    assert silo.decide(ROWS).learns and "clock_off" not in silo.status()
    hands.wait(100.0)
    silo.tick()
    assert list(party.sealed) == [1]


def test_a_process_has_a_steady_clock_by_default():
    plan = deployed()
    party = silo_of(plan, "silo0", federation.secret("silo0"), Ledger(":memory:"))
    assert isinstance(Process(party, MemoryStore()).clock, SteadyClock)
