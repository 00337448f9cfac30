"""Tests that a clock that jumps closes no leaf because of a single wrong reading."""

import pytest

pytest.importorskip("cryptography")

import federation
from federation import GRACE, ROWS, START, Federation, deployed, secret

from fastfed.deployment import wire
from fastfed.deployment.kinds import silo_of
from fastfed.deployment.ledger import Ledger
from fastfed.deployment.party import BELIEVED, DOUBTED, ClockReading, SteadyClock
from fastfed.deployment.process import Process, SiloProcess
from fastfed.deployment.seal import Identity
from fastfed.deployment.store import MemoryStore
from fastfed.deployment.wire import Refused

YEARS = 10 * 365 * 86400.0


class Hands:
    """A wall clock, which is ``off`` by some seconds, and a monotonic clock; a test moves both."""

    def __init__(self):
        self.wall, self.monotonic, self.off = 1000.0, 50.0, 0.0

    def clock(self):
        """Return a clock that reads these hands."""
        return SteadyClock(lambda: self.wall + self.off, lambda: self.monotonic)

    def wait(self, seconds):
        """Let this number of seconds pass."""
        self.wall += seconds
        self.monotonic += seconds


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
    # The clock continues from there.
    hands.wait(5.0)
    assert clock() == pytest.approx(hands.wall + 3600.0)


def test_a_clock_that_jumps_about_is_never_believed():
    hands = Hands()
    clock = hands.clock()
    for k in range(1, 100):
        hands.off = k * 10 * DOUBTED
        hands.wait(BELIEVED / 2)
        assert clock() == pytest.approx(hands.wall)


def test_small_steps_of_a_clock_are_believed_at_once():
    hands = Hands()
    clock = hands.clock()
    for _ in range(1000):
        hands.off += 0.9 * DOUBTED
        hands.wait(1.0)
        assert clock() == pytest.approx(hands.wall + hands.off)


def test_one_glitch_does_not_end_a_silos_learning():
    """Regression test: a clock ten years ahead for one tick once sealed all remaining releases."""
    plan, hands = deployed(), Hands()
    hands.wall = federation.START + 10.0
    ledger = Ledger(":memory:")
    ledger.set_ceiling("records", 1.0, 1e-6)
    party = silo_of(plan, "silo0", federation.secret("silo0"), ledger)
    silo = SiloProcess(party, MemoryStore(), ledger, hands.clock())
    party._hub_answered = True
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


# ---- the clocks of others ------------------------------------------------------------------------


def receive_time(clock, hands, off=0.0, name="hub", seconds_to_answer=0.0):
    """Let a party whose clock is off by ``off`` seconds answer, and add its reading to a clock."""
    asked_at = clock() + max(clock.ahead, 0.0)
    message = ClockReading(name, hands.wall + off, asked_at)
    hands.wait(seconds_to_answer)
    clock.add_reading(message)


def test_a_clock_that_is_set_right_is_believed_at_once_where_the_others_agree():
    hands = Hands()
    hands.off = YEARS
    clock = hands.clock()
    receive_time(clock, hands)
    assert clock() == pytest.approx(hands.wall) and clock.ahead == clock.off == YEARS
    hands.off = 0.0
    hands.wait(5.0)
    assert clock() == hands.wall and clock.ahead == clock.off == 0.0


@pytest.mark.parametrize("step", [3600.0, -3600.0, 86_400.0])
def test_clocks_that_are_all_set_at_once_are_believed_after_a_while(step):
    """A wrong time server is corrected: no party may wait forever."""
    hands = [Hands(), Hands()]
    clocks = [each.clock() for each in hands]
    for k in range(200):
        for each in hands:
            each.off = step * (k > 2)
            each.wait(5.0)
        times = [clock() + max(clock.ahead, 0.0) for clock in clocks]
        for i in (0, 1):
            clocks[i].add_reading(ClockReading(str(1 - i), times[1 - i], times[i]))
    for each, clock in zip(hands, clocks, strict=True):
        assert clock() == pytest.approx(each.wall + step) and clock.off == 0.0


def test_a_glitch_within_wide_bounds_is_not_believed():
    """The hub's answer took an hour, so its time is too uncertain to confirm a jump by 3 000 s."""
    hands = Hands()
    clock = hands.clock()
    receive_time(clock, hands, seconds_to_answer=3600.0)
    hands.off = 3000.0
    assert clock() == hands.wall and clock.off == 3000.0
    hands.off = 0.0
    assert clock() == hands.wall and clock.off == 0.0


def test_a_clock_that_stays_years_ahead_follows_the_others():
    hands = Hands()
    clock = hands.clock()
    hands.off = YEARS
    for _ in range(400):
        hands.wait(5.0)
        receive_time(clock, hands)
        assert clock() == pytest.approx(hands.wall, abs=5.0) and clock.off == pytest.approx(YEARS)


def test_a_clock_that_is_behind_counts_as_it_is():
    """Nobody can make a party close a leaf before its own clock says so."""
    hands = Hands()
    clock = hands.clock()
    receive_time(clock, hands, YEARS)
    assert clock() == hands.wall and clock.ahead == clock.off == -YEARS


def test_small_differences_between_clocks_do_not_count():
    hands = Hands()
    clock = hands.clock()
    for off in (-DOUBTED, DOUBTED):
        receive_time(clock, hands, off)
        assert clock() == hands.wall and clock.ahead == clock.off == 0.0
        receive_time(clock, hands, 1.01 * off)
        clock()
        assert clock.off == pytest.approx(-1.01 * off)


def test_the_duration_of_a_message_does_not_count():
    """A courier may deliver messages only once an hour."""
    hands = Hands()
    clock = hands.clock()
    for _ in range(3):
        receive_time(clock, hands, seconds_to_answer=3600.0)
        assert clock() == hands.wall and clock.off == 0.0
    hands.off = YEARS
    late = hands.clock()
    receive_time(late, hands, seconds_to_answer=3600.0)
    # By now the hub's clock shows at most an hour more than its reading.
    assert late() == pytest.approx(hands.wall, abs=3600.0) and late.off >= YEARS - 3600.0


def test_an_old_message_that_comes_again_changes_nothing():
    """The sender's clock may have been wrong when it sent the message."""
    hands = Hands()
    clock = hands.clock()
    old = ClockReading("hub", hands.wall - 900.0, clock())
    for _ in range(10):
        hands.wait(BELIEVED / 2)
        receive_time(clock, hands)
        clock.add_reading(old)
        assert clock() == hands.wall and clock.off == 0.0


@pytest.mark.parametrize("off", [-3000.0, 3000.0])
def test_another_clock_that_is_set_right_counts_with_its_next_answer(off):
    hands = Hands()
    clock = hands.clock()
    for seconds_to_answer in (0.0, 3600.0):
        receive_time(clock, hands, off, seconds_to_answer=seconds_to_answer)
        clock()
    receive_time(clock, hands, seconds_to_answer=5.0)
    assert clock() == hands.wall and clock.off == 0.0


def test_a_reading_for_a_question_before_a_clock_was_set_back_does_not_count():
    hands = Hands()
    hands.off = 3600.0
    clock = hands.clock()
    asked_at = clock()
    hands.off = 0.0
    hands.wait(5.0)
    clock()
    hands.wait(BELIEVED)
    assert clock() == hands.wall
    clock.add_reading(ClockReading("hub", hands.wall - 3600.0, asked_at))
    assert clock() == hands.wall and clock.off == 0.0


def test_one_reading_of_the_hub_before_any_answer_does_not_shift_the_clock():
    hands = Hands()
    clock = hands.clock()
    clock.add_reading(ClockReading("hub", hands.wall - 3600.0, 0.0))
    assert clock() == hands.wall and clock.off == 0.0


def test_half_of_the_others_must_agree():
    hands = Hands()
    clock = hands.clock()
    receive_time(clock, hands, -YEARS, "silo0")
    assert clock() == pytest.approx(hands.wall - YEARS)
    receive_time(clock, hands, 0.0, "silo1")
    assert clock() == hands.wall and clock.off == 0.0
    receive_time(clock, hands, -YEARS, "silo2")
    assert clock() == pytest.approx(hands.wall - YEARS)


def test_one_of_two_other_clocks_that_is_ahead_changes_nothing():
    hands = Hands()
    clock = hands.clock()
    receive_time(clock, hands, 0.0, "silo0")
    receive_time(clock, hands, 3600.0, "silo1")
    assert clock() == hands.wall and clock.off == 0.0


def clocked(**off):
    """Return a deployment in which each party's clock is off by the given seconds."""
    deployment = Federation(deployed())
    for name, process in deployment.processes.items():

        def wall(name=name):
            return deployment.now + off.get(name, 0.0)

        process.clock = SteadyClock(wall, lambda: deployment.now)
    deployment.off = off
    deployment.settle()
    return deployment


def test_a_silo_that_starts_with_a_clock_years_ahead_closes_nothing():
    deployment = clocked(silo0=YEARS)
    silo = deployment.processes["silo0"]
    deployment.now = START + 50.0
    deployment.settle()
    first = silo.decide(ROWS)
    silo.reward(first.id, 0.5)
    deployment.settle()
    assert first.learns and silo.party.ended[first.id].leaf == 1
    assert not silo.party.sealed and silo.status()["clock_off"] == pytest.approx(YEARS)
    waits = silo.status()["waits"]
    assert (waits["state"], waits["who"]) == ("clock", ["hub"])
    for _ in deployment.plan.document.calendar.closes:
        deployment.now += 100.0
        deployment.settle()
    assert (
        not silo.status()["stopped"] and silo.party.model.release == deployment.plan.plan.releases
    )
    assert list(silo.party.sealed) == [1, 2, 3, 4] and not silo.party.unreported


def test_a_hub_that_starts_with_a_clock_years_ahead_leaves_nobody_out():
    deployment = clocked(hub=YEARS)
    hub = deployment.processes["hub"]
    absent_silo = deployment.processes.pop("silo2")
    for name in ("silo0", "silo1"):
        deployment.processes[name].reward(deployment.processes[name].decide(ROWS).id, 0.5)
    for _ in range(28):
        # The silos poll every five seconds, until shortly before the end of the grace period.
        deployment.now += 5.0
        deployment.settle()
    assert deployment.now > START + 100.0 and not hub.party.sets
    assert hub.status()["clock_off"] == pytest.approx(YEARS)
    deployment.processes["silo2"] = absent_silo
    deployment.settle()
    assert [entry.silo for entry in hub.party.sets[1].entries] == [0, 1, 2]


def test_a_hub_whose_clock_is_behind_says_so():
    deployment = clocked(hub=-900.0)
    deployment.now = START + 100.0
    deployment.settle()
    # Silos also use the hub's clock, and their status names the clock that they wait for.
    for name, who in (("hub", list(deployment.plan.silos)), ("silo1", ["hub"])):
        waits = deployment.processes[name].status()["waits"]
        assert (waits["state"], waits["since"], waits["who"]) == ("clock", START + 100.0, who)


def test_one_silo_whose_clock_is_behind_holds_nobody_up():
    deployment = clocked(silo2=-900.0)
    for silo in ("silo0", "silo1"):
        deployment.processes[silo].reward(deployment.processes[silo].decide(ROWS).id, 0.5)
    deployment.now = START + 100.0
    deployment.settle()
    assert deployment.processes["silo2"].status()["waits"]["state"] == "clock"
    deployment.now += GRACE
    deployment.settle()
    hub = deployment.processes["hub"].party
    assert [entry.silo for entry in hub.sets[1].entries] == [0, 1]
    assert hub.waits(deployment.now)["state"] == "open"


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_time_that_no_clock_can_show_is_refused(time):
    deployment = clocked()
    plan, hub = deployment.plan, deployment.processes["hub"]
    silo, hub_identity = Identity(secret("silo0")), Identity(secret("hub"))
    join = wire.Join(hub.party._nonce, plan.countersignature(silo), time, 1.0)
    with pytest.raises(Refused, match="the time of silo0 must be in seconds since 1970"):
        hub.handle(plan.wire.signed(silo, "silo0", 0, join))
    receipt = wire.Receipt(0, (), deployment.processes["silo0"].party._nonce, "", time)
    with pytest.raises(Refused, match="the time of hub must be in seconds since 1970"):
        deployment.processes["silo0"].handle(plan.wire.signed(hub_identity, "hub", 0, receipt))


def test_a_message_that_is_refused_because_clocks_differ_says_so():
    """If the clock of a restored silo is behind, the refusal of its message gives the reason."""
    deployment = clocked()
    silo = deployment.processes["silo0"]
    silo.clock = SteadyClock(lambda: deployment.now - 900.0, lambda: deployment.now)
    now = deployment.now
    receipt = wire.Receipt(0, ((1, bytes(32)),), silo.party._nonce, "", now, silo.clock())
    with pytest.raises(Refused, match="clocks of hub and silo differ"):
        silo.handle(deployment.plan.wire.signed(Identity(secret("hub")), "hub", 1, receipt))
    assert silo.status()["clock_off"] == pytest.approx(-900.0)


def test_a_hub_whose_clock_is_behind_loses_no_record():
    """The hub's time may delay the close of a leaf; the silo's clock decides if a record counts."""
    deployment = clocked(hub=-900.0)
    silo = deployment.processes["silo0"]
    deployment.now = START + 50.0
    deployment.settle()
    first = silo.decide(ROWS)
    deployment.now += 20.0
    deployment.off["hub"] = 0.0
    deployment.processes["hub"].clock = SteadyClock(lambda: deployment.now, lambda: deployment.now)
    deployment.settle()
    silo.reward(first.id, 0.5)
    assert first.learns and silo.party.ended[first.id].leaf == 1


def test_a_hub_whose_clock_was_years_ahead_starts_its_wait_at_the_right_time():
    deployment = clocked(hub=YEARS)
    hub = deployment.processes["hub"].party
    hub._first_join = None
    for now in (YEARS, deployment.now, deployment.now + 5.0):
        hub.tick(now)
    assert hub._first_join == deployment.now


def test_the_release_of_a_silo_counts_once_the_hub_knows_the_silos_time():
    deployment = clocked()
    hub, plan = deployment.processes["hub"], deployment.plan
    hub.party._silo_release.clear()
    silo = Identity(secret("silo0"))
    for after, counts in ((0.0, False), (deployment.now, True)):
        join = wire.Join(hub.party._nonce, plan.countersignature(silo), deployment.now, after)
        hub.handle(plan.wire.signed(silo, "silo0", 0, join))
        assert (0 in hub.party._silo_release) == counts
