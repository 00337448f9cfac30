"""Experts by hand: clients and a server that exchange messages, as a user would have them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastfed
from fastfed import InputError
from fastfed._random import CHOICE, QUERY, THRESHOLD, SeededNoise, SystemNoise
from fastfed._system import System
from fastfed.environments.base import Adversary
from fastfed.experts import ALGORITHMS, ProblemSpec
from fastfed.experts.plan import ExpertChoice, ExpertPlan, ExpertReport
from fastfed.privacy.certificate import SIMULATION
from fastfed.privacy.mechanisms.vertex_sets import vertex_sets
from fastfed.simulation.experts import loss_of, run_steps

#: Config with which everything happens within 100 rounds: switches, several phases, several trees.
KEYS: dict[str, tuple[str, dict[str, Any]]] = {
    "svt": ("fed-svt", {"epsilon": 50.0, "optimal_loss": 0.0}),
    "svt-phases": ("fed-svt", {"epsilon": 50.0, "optimal_loss": 0.0, "phase_length": 7}),
    "ope": ("fed-dp-ope-stoch", {"epsilon": 40.0, "batch": "largest"}),
    "ope-messages": (
        "fed-dp-ope-stoch",
        {"epsilon": 40.0, "batch": "largest", "protect": "messages"},
    ),
    "ope-central": ("fed-dp-ope-stoch", {"epsilon": 40.0, "batch": "largest", "noise": "central"}),
    "ope-plain": ("fed-dp-ope-stoch", {"noise": "none", "batch": "largest"}),
    "leader": ("follow-the-leader", {}),
    "leader-phases": ("follow-the-leader", {"phase_length": 7}),
    "hedge": ("hedge", {}),
    "hedge-phases": ("hedge", {"phase_length": 7}),
}
ALL = list(KEYS)
PRIVATE = [name for name in ALL if "epsilon" in KEYS[name][1]]

D, M, T = 5, 3, 100


def deployed(name: str, silos: int = M, horizon: int = T, dimension: int = D) -> System:
    algorithm, keys = KEYS[name]
    system: System = fastfed.make_system(
        algorithm, silos=silos, horizon=horizon, dimension=dimension, **keys
    )
    return system


class Federation:
    """Clients and a server of one plan, with one source of noise."""

    def __init__(self, plan: ExpertPlan, noise: Any = None) -> None:
        noise = SystemNoise() if noise is None else noise
        self.clients = [fastfed.parties.ExpertClient(plan, i, noise) for i in range(plan.silos)]
        self.server = fastfed.parties.ExpertServer(plan, noise)
        for client in self.clients:
            client.receive(self.server.start())

    def exchange(self) -> None:
        """What is due before the next round, reports in any order."""
        while self.clients[0].due:
            assert all(client.due for client in self.clients)
            choice = self.server.combine([c.report() for c in reversed(self.clients)])
            for client in self.clients:
                client.receive(choice)
        assert not any(client.due for client in self.clients)

    def observe(self, losses: Callable[[int, int], Any]) -> None:
        for client in reversed(self.clients):
            client.observe(losses(client.index, client.round + 1))

    def play(self, rounds: int, losses: Callable[[int, int], Any]) -> None:
        for _ in range(rounds):
            self.exchange()
            self.observe(losses)

    @property
    def x(self) -> np.ndarray:
        first, *others = (client.x for client in self.clients)
        for other in others:
            np.testing.assert_array_equal(first, other)
        return first


def easy(silo: int, round: int) -> np.ndarray:
    """The second expert is the best one."""
    loss = np.ones(D)
    loss[1] = 0.0
    return loss


def some(silo: int, round: int, d: int = D) -> np.ndarray:
    """Losses in [0, 1] of no law."""
    return np.random.default_rng((silo, round)).uniform(size=d)


# -- With noise of the operating system ------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_deployment_by_hand(name):
    plan = deployed(name).plan
    found = Federation(plan)
    for t in range(1, T + 1):
        found.exchange()
        assert found.server.releases == plan.exchanges_before(t)
        x = found.x
        assert x.shape == (D,) and (x >= 0).all() and x.sum() == pytest.approx(1.0)
        one = found.clients[0].expert
        assert one is None if x.max() < 1.0 else x[one] == 1.0
        found.observe(easy)
    assert {c.round for c in found.clients} == {T}
    assert found.server.releases == plan.exchanges > 1
    assert {c.clipped_losses for c in found.clients} == {0}
    # What is played last is what the losses say: noise that is this small hides it hardly ever.
    assert found.x[1] > 0.5
    assert ("switches" in found.server.events) == (name.split("-")[0] in ("svt", "leader"))


@pytest.mark.parametrize("name", ["svt", "ope-central"])
def test_a_server_with_system_noise_takes_fixed_point_alone(name):
    plan = deployed(name).plan
    found = Federation(plan)
    found.clients = [fastfed.parties.ExpertClient(plan, i, SeededNoise(1)) for i in range(M)]
    for client in found.clients:
        client.receive(found.server.start())
    with pytest.raises(fastfed.InputError, match="must be in fixed point, multiples of 2"):
        found.play(T, some)
    # Clients without a seed are taken, whatever their losses.
    Federation(plan).play(T, some)


def test_smooth_gradients_are_in_fixed_point_for_a_server_with_noise():
    """Along paths of trees, for any gradients."""
    plan = smooth(3, epsilon=1e4, batch="largest", noise="central")
    assert max(phase.trees for phase in plan.phases) > 1
    found = Federation(plan)
    found.play(T, lambda silo, round: lambda x: np.sin(x + np.arange(D) / 3) * 7.7)
    assert found.server.releases == plan.exchanges


def test_parties_that_never_meet():
    """Sources of their own, as on machines of their own."""
    for name in PRIVATE:
        plan = deployed(name).plan
        clients = [fastfed.parties.ExpertClient(plan, i) for i in range(M)]
        server = fastfed.parties.ExpertServer(plan)
        for _ in range(2):  # asked again it says the same
            start = server.start()
        for client in clients:
            client.receive(start)
        for t in range(1, T + 1):
            while any(c.due for c in clients):
                choice = server.combine([c.report() for c in clients])
                for c in clients:
                    c.receive(choice)
            for c in clients:
                c.observe(some(c.index, t))
        assert server.releases == plan.exchanges


def test_two_deployments_differ():
    """Noise is drawn, and not the same twice."""
    plan = fastfed.make_system(
        "fed-dp-ope-stoch", silos=1, horizon=T, dimension=2**12, epsilon=90.0, batch="largest"
    ).plan
    sent = []
    for _ in range(2):
        client = fastfed.parties.ExpertClient(plan)
        client.receive(fastfed.parties.ExpertServer(plan).start())
        while not client.due:
            client.observe(np.zeros(2**12))
        sent.append(client.report().values)
    # On a grid of 2^-14 standard deviations or less, a few are the same.
    assert (sent[0] != sent[1]).mean() > 0.99 and len(np.unique(sent[0])) > 0.95 * 2**12
    # Of a zero score: Laplace noise of the first tree. Wrong once in 10^6 runs.
    scale = plan.scale(1)
    for values in sent:
        assert abs(values.mean()) < 7 * scale / 2**6
        assert abs(np.abs(values).mean() / scale - 1.0) < 5 / 2**6


@pytest.mark.parametrize("name", ["ope", "ope-messages"])
def test_two_clients_of_one_name_are_refused(name):
    """They would add one noise to two scores."""
    plan, shared = deployed(name).plan, SystemNoise()
    one, twin = (fastfed.parties.ExpertClient(plan, 0, shared) for _ in range(2))
    start = fastfed.parties.ExpertServer(plan, shared).start()
    for client in (one, twin):
        client.receive(start)
        while not client.due:
            client.observe(some(0, client.round + 1))
    one.report()
    with pytest.raises(InputError, match="was drawn already; use one SystemNoise for each system"):
        twin.report()


@pytest.mark.parametrize("name", ["svt", "ope-central"])
def test_two_servers_of_one_source_are_refused(name):
    plan, shared = deployed(name).plan, SystemNoise()
    found = Federation(plan, shared)
    with pytest.raises(InputError, match="was drawn already; use one SystemNoise for each system"):
        twin = fastfed.parties.ExpertServer(plan, shared)
        twin.start()
        while not found.clients[0].due:
            found.observe(easy)
        reports = [client.report() for client in found.clients]
        found.server.combine(reports)
        twin.combine(reports)


def test_system_noise_never_gives_experts_the_same_draw_twice():
    noise = SystemNoise()
    for purpose in (THRESHOLD, QUERY, CHOICE):
        first, second = noise.uniforms(purpose, 1, 1), noise.uniforms(purpose, 2, 1)
        assert first != second and 0 < first < 1
        with pytest.raises(InputError, match="was drawn already"):
            noise.uniforms(purpose, 2, 1)
    drawn = [noise.laplace(silo, release, 3) for silo in (0, 1) for release in (1, 2)]
    assert len(np.unique(drawn)) == 12
    with pytest.raises(InputError, match="was drawn already"):
        noise.laplace(1, 2, 3)
    order = noise.sample(0, 4, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != noise.sample(0, 5, 50).tolist()


# -- With seeded noise -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_seeded_it_is_the_step_driver(name):
    """The same draws, whatever the order of clients and reports."""
    environment = fastfed.environments.RealizableLosses(experts=D)
    plan = deployed(name).plan
    opened = environment.open(3, 1, M)
    checkpoints = np.arange(1, T + 1)
    played = run_steps(environment.open(3, 1, M), plan, checkpoints)
    found = Federation(plan, SeededNoise(3, 1))
    lost = np.zeros(T)
    for t in range(1, T + 1):
        found.exchange()
        assert found.server.releases == played.synchronisations[t - 1]
        lost[t - 1] = sum(float(opened.losses.row(i, t) @ found.x) for i in range(M))
        found.observe(lambda i, round: loss_of(opened.losses, i, round))
    np.testing.assert_array_equal(found.x, played.total)
    assert found.server.events == played.events
    # The best expert never loses: regret is what was lost.
    np.testing.assert_allclose(np.cumsum(lost), played.group_regret, atol=1e-9)
    np.testing.assert_array_equal(played.bits_up, [64 * D * M * k for k in played.synchronisations])


@pytest.mark.parametrize("noise", ["local", "central", "none"])
def test_seeded_gradients_are_the_step_drivers(noise):
    environment = fastfed.environments.StochasticLosses(experts=D, gap=0.4, loss="quadratic")
    facts = environment.facts(M, T)
    setting = ProblemSpec(M, T, D, smoothness=facts.smoothness, linear=False, iid=True)
    keys = {"noise": noise, "batch": "largest", **({} if noise == "none" else {"epsilon": 90.0})}
    plan = ALGORITHMS["fed-dp-ope-stoch"].make(keys, setting).plan
    opened: Adversary = environment.open(5, 0, M)
    played = run_steps(environment.open(5, 0, M), plan, np.arange(1, T + 1))
    found = Federation(plan, SeededNoise(5))
    for _ in range(T):
        found.exchange()
        found.observe(lambda i, round: loss_of(opened.losses, i, round))
    np.testing.assert_array_equal(found.x, played.total)
    assert played.synchronisations[-1] == plan.exchanges > 3
    assert opened.suboptimality is not None and 0.0 < opened.suboptimality(found.x) < 0.5


def test_seeded_noise_is_a_function_of_its_seed():
    plan = deployed("ope").plan
    played = []
    for seed in (1, 1, 2):
        found = Federation(plan, SeededNoise(seed))
        found.play(T, some)
        played.append(found.x)
    np.testing.assert_array_equal(played[0], played[1])
    assert (played[0] != played[2]).any()


# -- Misuse ----------------------------------------------------------------------------------------


def everything(found: Federation) -> list[Any]:
    """What a mistake must not change, as far as it can be seen."""
    return [
        (c.round, c.release, c.due, c.clipped_losses, None if c._x is None else c.x.tolist())
        for c in found.clients
    ] + [found.server.releases, dict(found.server.events)]


def refused(message: str, call: Callable[[], Any], found: Federation) -> None:
    """One clear sentence, and nothing is changed."""
    before = everything(found)
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 200
    assert everything(found) == before


@pytest.mark.parametrize("name", ALL)
def test_a_wrong_order_is_one_clear_sentence(name):
    """And all that was refused leaves the play as it is without."""
    plan = deployed(name).plan
    found, clean = (Federation(plan, SeededNoise(7)) for _ in range(2))
    one, *_ = found.clients
    refused("client 0 has no report due before round 1", one.report, found)
    refused("client 0 waits for no choice, got choice 0", lambda: one.receive(
        found.server.start()), found)  # fmt: skip
    while not one.due:
        refused("has no report due before round", one.report, found)
        found.observe(some)
    now = one.round + 1
    wait = f"client 0 must exchange messages before round {now}"
    refused(wait, lambda: one.observe(some(0, now)), found)
    first = one.report()
    refused("client 0 has no report due", one.report, found)
    refused(wait, lambda: one.observe(some(0, now)), found)
    refused("client 0 waits for choice 1, got choice 0", lambda: one.receive(
        found.server.start()), found)  # fmt: skip
    refused("client 0 waits for choice 1, got choice 2", lambda: one.receive(
        ExpertChoice(2, 1)), found)  # fmt: skip
    others = [client.report() for client in found.clients[1:]]
    doubled = [first, first, *others[1:]]
    strange = ExpertReport(1, np.zeros(D), M)
    for bad, sentence in (
        ([], r"one of each of the 3 clients, got clients \[\]"),
        ([first], r"one of each of the 3 clients, got clients \[0\]"),
        (others, r"got clients \[1, 2\]"),
        (doubled, r"got clients \[0, 0, 2\]"),
        ([first, *others, first], r"got clients \[0, 0, 1, 2\]"),
        ([first, others[0], strange], r"got clients \[0, 1, 3\]"),
        (first, "reports must be a list of ExpertReport"),
        ([first, *others[:1], others[1].values], "reports must be a list of ExpertReport"),
        (
            [first, *others[:1], dataclasses.replace(others[1], release=2)],
            "report of client 2 must be number 1, got number 2",
        ),
        (
            [first, *others[:1], ExpertReport(1, np.zeros(D + 1), 2)],
            r"report of client 2 must have shape \(5,\), got \(6,\)",
        ),
    ):
        refused(sentence, lambda bad=bad: found.server.combine(bad), found)
    choice = found.server.combine([first, *others])
    again = "report of client 0 must be number 2, got number 1"
    if found.server.releases == plan.exchanges:
        again = "the plan has .* exchanges, got reports of one more"
    refused(again, lambda: found.server.combine([first, *others]), found)
    for client in found.clients:
        client.receive(choice)
    refused("client 0 waits for", lambda: one.receive(choice), found)
    found.play(T - one.round, some)
    clean.play(T, some)
    assert everything(found) == everything(clean)


@pytest.mark.parametrize("name", ALL)
def test_after_the_last_round_nothing_is_due(name):
    """A client that asks `while client.due` once more has nothing to send, and no server hears."""
    for horizon in (7, 8, 20, 21):
        plan = deployed(name, silos=1, horizon=horizon).plan
        found = Federation(plan, SeededNoise(0))
        found.play(horizon, some)
        assert found.server.releases == plan.exchanges
        assert not found.clients[0].due
        with pytest.raises(InputError, match=f"the plan has {horizon} rounds, got one more"):
            found.clients[0].observe(some(0, 1))


def test_before_the_start_nothing_is_played():
    plan = deployed("svt").plan
    client, server = fastfed.parties.ExpertClient(plan, 2), fastfed.parties.ExpertServer(plan)
    for call in (lambda: client.x, lambda: client.expert):
        with pytest.raises(InputError, match=r"x needs the server's start\(\)"):
            call()
    with pytest.raises(InputError, match="client 2 must exchange messages before round 1"):
        client.observe(some(2, 1))
    with pytest.raises(InputError, match="client 2 waits for choice 0, got choice 1"):
        client.receive(ExpertChoice(1, 0))
    with pytest.raises(InputError, match=r"combine needs start\(\) before it"):
        server.combine([])
    assert (client.round, client.release, server.releases) == (0, -1, 0)
    client.receive(server.start())
    assert client.expert is not None


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (None, "choice must be an ExpertChoice, got NoneType"),
        ([0, 1], "choice must be an ExpertChoice, got list"),
        (ExpertChoice(0, 5), "expert must be below 5, got 5"),
        (ExpertChoice(0, None, np.full(4, 0.25)), r"weights must have shape \(5,\), got \(4,\)"),
    ],
)
def test_a_choice_that_is_none_of_the_plans(choice, sentence):
    for name in ALL:
        client = fastfed.parties.ExpertClient(deployed(name).plan)
        with pytest.raises(InputError, match=sentence):
            client.receive(choice)
        assert client.release == -1 and client._x is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExpertChoice(0, 2.5),  # type: ignore[arg-type]
        lambda: ExpertChoice(0, -1),
        lambda: ExpertChoice(0, "first"),  # type: ignore[arg-type]
        lambda: ExpertChoice(0, None, np.array([0.2, 0.2, np.nan, 0.2, 0.2])),
        lambda: ExpertChoice(0, None, np.array([-1.0, 1.0, 1.0, 0.0, 0.0])),
        lambda: ExpertChoice(0, None, np.full(5, 7.0)),
        lambda: ExpertChoice("0", 1),  # type: ignore[arg-type]
    ],
    ids=["fraction", "minus one", "text", "nan", "negative", "no weights", "release"],
)
def test_a_choice_off_a_wire_is_checked(make):
    """What comes of a network may be anything; a report is checked when it is made."""
    with pytest.raises(InputError):
        fastfed.parties.ExpertClient(deployed("hedge").plan).receive(make())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"release": 0}, "release must be an integer >= 1, got 0"),
        ({"release": 1.0}, "release must be an integer, got 1.0"),
        ({"silo": -1}, "silo must be an integer >= 0, got -1"),
        ({"silo": "a"}, "silo must be an integer, got 'a'"),
        ({"values": np.zeros((2, 5))}, r"values must have 1 axis, got shape \(2, 5\)"),
        ({"values": [0.0, np.nan]}, "values must be finite, got nan"),
        ({"values": [0.0, np.inf]}, "values must be finite, got inf"),
        ({"values": ["a"]}, "values must be an array of numbers"),
    ],
)
def test_bad_reports(change, sentence):
    with pytest.raises(InputError, match=sentence):
        ExpertReport(**{"release": 1, "values": np.zeros(5), "silo": 0, **change})


def test_a_report_cannot_be_changed():
    values = np.arange(5.0)
    report = ExpertReport(1, values, 0)
    values[0] = 9.0
    assert report.values[0] == 0.0 and report.bits == 320
    with pytest.raises(ValueError, match="read-only"):
        report.values[0] = 1.0
    with pytest.raises(InputError, match="a choice has either an expert or weights"):
        ExpertChoice(1, None)
    with pytest.raises(InputError, match="a choice has either an expert or weights"):
        ExpertChoice(1, 0, np.ones(5))


@pytest.mark.parametrize("party", [fastfed.parties.ExpertClient, fastfed.parties.ExpertServer])
def test_a_plan_of_a_bandit_is_refused(party):
    plan = fastfed.make_system("fedlinucb", silos=2, horizon=9, dimension=2, batch_size=3).plan
    with pytest.raises(InputError, match=r"plan must be one of experts, such as .*, got Plan"):
        party(plan)
    with pytest.raises(InputError, match="plan must be one of experts"):
        party(deployed("svt"))
    for bad in (3, -1, 1.0):
        with pytest.raises(InputError, match="index must be an integer"):
            fastfed.parties.ExpertClient(deployed("svt").plan, bad)


# -- Losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_losses_out_of_range_are_clipped_and_counted(name):
    plan = deployed(name).plan
    wild, tame = (Federation(plan, SeededNoise(1)) for _ in range(2))
    outside = 0
    for _ in range(T):
        for found in (wild, tame):
            found.exchange()
        t = wild.clients[0].round + 1
        losses = 1.5 * np.random.default_rng(t).uniform(size=D) - 0.2
        if t % 3 == 0:
            losses = np.clip(losses, 0.0, 1.0)
        outside += bool(((losses < 0) | (losses > 1)).any())
        wild.observe(lambda silo, round, given=losses: given if silo else given.tolist())
        tame.observe(lambda silo, round, given=losses: np.clip(given, 0.0, 1.0))
        np.testing.assert_array_equal(wild.x, tame.x)
    assert [c.clipped_losses for c in wild.clients] == [outside] * M
    assert outside > 20 and [c.clipped_losses for c in tame.clients] == [0] * M


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ([0.0, 1.0, np.nan, 0.0, 0.0], r"loss must be finite, got nan at index \(2,\)"),
        ([0.0, 1.0, np.inf, 0.0, 0.0], "loss must be finite, got inf"),
        (np.zeros(4), r"loss must have shape \(5,\), got \(4,\)"),
        (np.zeros((1, 5)), r"loss must have shape \(5,\), got \(1, 5\)"),
        (0.5, r"loss must have shape \(5,\), got \(\)"),
        ("half", "loss must be an array of numbers"),
        (None, "loss must"),
        (np.zeros(5) + 1j, "loss must be an array of numbers"),
        (lambda x: x, "loss must be an array of numbers"),
    ],
)
def test_bad_losses_change_nothing(loss, sentence):
    for name in ("svt", "ope", "hedge"):
        found = Federation(deployed(name).plan, SeededNoise(0))
        refused(sentence, lambda found=found: found.clients[1].observe(loss), found)
        other = Federation(deployed(name).plan, SeededNoise(0))
        for each in (found, other):
            each.play(T, some)
        np.testing.assert_array_equal(found.x, other.x)


def test_a_loss_that_changes_later_does_not():
    """A client keeps losses for a phase: the caller's array is the caller's."""
    plan = deployed("ope-plain", silos=1).plan
    kept, reused = (Federation(plan, SeededNoise(0)) for _ in range(2))
    buffer = np.zeros(D)
    for t in range(1, T + 1):
        for found in (kept, reused):
            found.exchange()
        buffer[:] = some(0, t)
        reused.clients[0].observe(buffer)
        kept.clients[0].observe(some(0, t))
        buffer[:] = 0.0
    np.testing.assert_array_equal(kept.x, reused.x)


@pytest.mark.parametrize("name", ALL)
def test_what_is_played_is_not_the_caller_s(name):
    """Whoever scales the weights in place, as for a portfolio, changes nothing of the play."""
    plan = deployed(name, silos=1).plan
    clean, careless = (Federation(plan, SeededNoise(0)) for _ in range(2))
    for _ in range(T):
        for found in (clean, careless):
            found.exchange()
            found.observe(some)
        np.testing.assert_array_equal(clean.x, careless.x)
        try:
            careless.clients[0].x[:] *= 100.0
        except ValueError:  # read-only will do
            continue


def smooth(silos: int = 1, **keys: Any) -> ExpertPlan:
    setting = ProblemSpec(silos, T, D, lipschitz=50.0, spread=100.0, smoothness=1.0, linear=False)
    return ALGORITHMS["fed-dp-ope-stoch"].make(keys, setting).plan


def test_losses_that_are_no_vectors_need_a_gradient():
    found = Federation(smooth(epsilon=1e4, batch="largest"), SeededNoise(0))
    (client,) = found.clients
    for bad in (np.zeros(D), [0.0] * D, 0.5, None):
        refused("loss must be a gradient function, got", lambda bad=bad: client.observe(bad), found)
    asked: list[np.ndarray] = []

    def gradient(x: np.ndarray) -> np.ndarray:
        asked.append(x.copy())
        return x + 2 * np.arange(D)

    found.play(T, lambda silo, round: gradient)
    assert asked and all(x.sum() == pytest.approx(1.0) for x in asked)
    assert found.x[0] == pytest.approx(1.0)


GRADIENT = """
import numpy as np
from fastfed import InputError
from fastfed.parties import ExpertClient, ExpertServer
from fastfed.experts import ALGORITHMS, ProblemSpec

setting = ProblemSpec(1, 100, 5, smoothness=1.0, linear=False)
keys = {"noise": "none", "batch": "largest"}
plan = ALGORITHMS["fed-dp-ope-stoch"].make(keys, setting).plan
client = ExpertClient(plan)
client.receive(ExpertServer(plan).start())
while not client.due:
    client.observe(lambda x: %s)
try:
    client.report()
except InputError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    "returned",
    [
        "np.full(5, np.nan)",
        "np.zeros(4)",
        "np.zeros(6)",
        "0.5",
        "[0.0] * 5",
        "np.zeros(5, np.float32)",
        "'no'",
        "None",
    ],
)
def test_what_a_gradient_function_returns_is_checked(returned):
    """It is the user's code: numbers that are d finite ones are taken, all else is one sentence.

    In a process of its own: memory beyond an array that is too short may be anything.
    """
    code = [sys.executable, "-c", GRADIENT % returned]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    good = returned in ("[0.0] * 5", "np.zeros(5, np.float32)")
    assert done.stdout.startswith("refused: ") != good and done.stdout.count("\n") == (not good)


def test_a_gradient_that_fails_once_is_asked_again():
    """A report that was not made has not been: the next one is that of a play without failure."""
    plan = smooth(epsilon=4500.0, batch="largest")
    good, bad = (Federation(plan, SeededNoise(0)) for _ in range(2))
    failed = []

    def gradient(x: np.ndarray) -> np.ndarray:
        return x * np.arange(D)

    def once(x: np.ndarray) -> np.ndarray:
        # In the third of six leaves, which looks at losses of its own.
        if not failed and bad.clients[0].release == plan.exchanges_before(63) + 2:
            failed.append(True)
            raise RuntimeError("not now")
        return gradient(x)

    for _ in range(T):
        good.exchange()
        while bad.clients[0].due:
            try:
                bad.exchange()
            except RuntimeError:
                assert bad.clients[0].due
        np.testing.assert_array_equal(good.x, bad.x)
        for found, loss in ((good, gradient), (bad, once)):
            found.observe(lambda silo, round, loss=loss: loss)
    assert failed


class Failing(SeededNoise):
    """A source that fails once, in its ``at``-th draw, as an operating system may."""

    def __init__(self, seed: int, at: int) -> None:
        super().__init__(seed)
        self.left = at

    def _draw(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("no entropy")

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        self._draw()
        return super().uniforms(purpose, release, count)

    def uniform(self, purpose: int, release: int) -> float:
        self._draw()
        return super().uniform(purpose, release)

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        self._draw()
        return super().laplace(silo, release, count)

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        self._draw()
        return super().sample(silo, phase, count)


@pytest.mark.parametrize("at", [3, 4, 5, 9, 20])
@pytest.mark.parametrize("name", ["svt", "ope", "ope-central"])
def test_a_failing_noise_source_changes_nothing(name, at):
    """What failed is done again, and the play goes on as it would have."""
    plan = deployed(name, silos=1).plan
    good, bad = Federation(plan, SeededNoise(5)), Federation(plan, Failing(5, at))
    failures = 0
    for t in range(1, T + 1):
        good.exchange()
        client, server = bad.clients[0], bad.server
        report = None
        while client.due or report is not None:
            try:
                report = client.report() if report is None else report
                choice = server.combine([report])
            except OSError:
                failures += 1
                continue
            client.receive(choice)
            report = None
        np.testing.assert_array_equal(good.x, bad.x)
        for found in (good, bad):
            found.observe(lambda silo, round, t=t: some(0, t))
    assert failures == 1
    assert everything(good) == everything(bad)


# -- Certificates and arguments --------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_deployed_certificates(name):
    system = deployed(name)
    simulated, found = system.certificate, system.deployed_certificate
    assert not any("simulation" in c for c in found.caveats)
    assert (SIMULATION in simulated.caveats) == (name in PRIVATE)
    assert (found.status, found.exact, found.claimed) == (
        simulated.status, simulated.exact, simulated.claimed,
    )  # fmt: skip
    assert found.status == ("proven" if name in PRIVATE else "none")
    if name in PRIVATE:
        assert 0.99 * found.claimed.epsilon < found.exact.epsilon <= found.claimed.epsilon
        assert any(c.startswith("deployment: ") for c in found.caveats)
        assert "simulation" not in str(found)


def test_the_call_of_the_readme():
    system = fastfed.make_system(
        "fed-svt", silos=3, horizon=100, dimension=5, epsilon=1.0, optimal_loss=0.0
    )
    found = Federation(system.plan)
    found.play(100, easy)
    assert found.server.events["switches"] <= system.plan.noise.switches
    assert system.deployed_certificate.exact.epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": "fed-svtt"}, 'unknown algorithm "fed-svtt"; did you mean "fed-svt"'),
        ({"dimension": 1}, "dimension must be an integer >= 2 .*, got 1"),
        ({"dimension": 2.0}, "dimension must be an integer, got 2.0"),
        ({"silos": 0}, "silos must be an integer >= 1"),
        ({"horizon": 0}, "horizon must be an integer >= 1"),
        ({"epsilom": 1.0}, 'unknown key "epsilom" for fed-svt; did you mean "epsilon"'),
        ({"optimal_loss": None}, r"optimal_loss \(L\*\) is required"),
        ({"phase_length": 101}, r"phase_length must be <= horizon \(100\), got 101"),
    ],
)
def test_bad_arguments(changes, sentence):
    usual: dict[str, Any] = {
        "algorithm": "fed-svt", "silos": 3, "horizon": 100, "dimension": 5, "epsilon": 1.0,
        "optimal_loss": 0.0,
    }  # fmt: skip
    with pytest.raises(InputError, match=sentence) as error:
        fastfed.make_system(**{**usual, **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ALL)
def test_the_least_that_there_is(name):
    """One client, one round, two experts: a start, and no exchange."""
    algorithm, keys = KEYS[name]
    keys = {k: v for k, v in keys.items() if k != "phase_length"}
    plan = fastfed.make_system(algorithm, silos=1, horizon=1, dimension=2, **keys).plan
    found = Federation(plan)
    assert plan.exchanges == 0 and not found.clients[0].due
    found.play(1, lambda silo, round: [0.0, 1.0])
    with pytest.raises(InputError, match="the plan has 0 exchanges, got reports of one more"):
        found.server.combine([ExpertReport(1, np.zeros(2), 0)])


@pytest.mark.parametrize("smoothness", [0.01, 1.0])
def test_no_loss_moves_scores_by_more_than_the_noise_is_made_for(smoothness):
    """Whatever a user's gradients are, clipping keeps one loss's part in every leaf's scores."""
    setting = ProblemSpec(1, 511, 3, lipschitz=1.0, spread=2.0, smoothness=smoothness, linear=False)
    keys = {"epsilon": 50.0, "noise": "central", "batch": "largest", "smoothness": 1.0}
    plan = ALGORITHMS["fed-dp-ope-stoch"].make(keys, setting).plan
    phase = plan.phases[-1]
    sets = vertex_sets(phase.batch, phase.trees, 2.0, smoothness)
    most = {(s.tree, s.depth): s.change for s in sets}
    draw = np.random.default_rng(0)
    steep = draw.normal(size=(512, 3, 3)) * 1e9

    def losses(replaced: int | None) -> dict[int, Any]:
        sign = {t: -1.0 if t == replaced else 1.0 for t in phase.samples}
        return {t: lambda x, t=t: sign[t] * (steep[t] @ x) for t in phase.samples}

    def scores(replaced: int | None) -> np.ndarray:
        collector = plan.collector(0, SeededNoise(3))
        collector._next = phase
        for t, loss in losses(replaced).items():
            collector.observe(t, loss)
        x, found = np.full(3, 1.0 / 3.0), []
        for release in range(phase.offset + 1, phase.offset + len(phase.leaves) + 1):
            found.append(collector.values(release, x))
            # The same experts for both, as the guarantee is given what was played so far.
            x = plan.move(x, ExpertChoice(release, release % 3))
        return np.array(found)

    plain = scores(None)
    order = SeededNoise(3).sample(0, phase.number, len(phase.samples))
    for leaf in phase.leaves:
        changed = scores(phase.samples.start + int(order[leaf.start]))
        moved = np.abs(changed - plain).max()
        assert moved <= most[leaf.tree, leaf.depth] * (1 + 1e-9)
        # A root's loss goes from one end of the interval to the other.
        assert leaf.depth > 0 or moved == pytest.approx(most[leaf.tree, 0])
