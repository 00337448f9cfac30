"""Tests of deployed experts: clients and a server that exchange messages."""

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
from fastfed.privacy.certificate import SIMULATION_CAVEAT
from fastfed.privacy.mechanisms.vertex_sets import vertex_sets
from fastfed.simulation.experts import loss_of, run_steps

#: Keys under which 100 rounds contain switches, several phases and several trees.
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
NAMES = list(KEYS)
PRIVATE = [name for name in NAMES if "epsilon" in KEYS[name][1]]

D, M, T = 5, 3, 100


def make_deployed_system(name: str, silos: int = M, horizon: int = T, dimension: int = D) -> System:
    """Make the system of this name."""
    algorithm, keys = KEYS[name]
    system: System = fastfed.make_system(
        algorithm, silos=silos, horizon=horizon, dimension=dimension, **keys
    )
    return system


class Federation:
    """Clients and a server of one plan that share one noise source."""

    def __init__(self, plan: ExpertPlan, noise: Any = None) -> None:
        noise = SystemNoise() if noise is None else noise
        self.clients = [fastfed.parties.ExpertClient(plan, i, noise) for i in range(plan.silos)]
        self.server = fastfed.parties.ExpertServer(plan, noise)
        for client in self.clients:
            client.receive(self.server.start())

    def exchange(self) -> None:
        """Exchange all messages that are due before the next round; reports arrive in reverse
        order."""
        while self.clients[0].due:
            assert all(client.due for client in self.clients)
            choice = self.server.combine([c.report() for c in reversed(self.clients)])
            for client in self.clients:
                client.receive(choice)
        assert not any(client.due for client in self.clients)

    def observe(self, losses: Callable[[int, int], Any]) -> None:
        """Give each client its loss of the current round."""
        for client in reversed(self.clients):
            client.observe(losses(client.index, client.round + 1))

    def play(self, rounds: int, losses: Callable[[int, int], Any]) -> None:
        """Play rounds: exchange messages, then observe losses."""
        for _ in range(rounds):
            self.exchange()
            self.observe(losses)

    @property
    def x(self) -> np.ndarray:
        """Return the weights of the experts, after checking that all clients have the same."""
        first, *other_weights = (client.x for client in self.clients)
        for x in other_weights:
            np.testing.assert_array_equal(first, x)
        return first


def second_expert_is_best(silo: int, round: int) -> np.ndarray:
    """Return losses of 0 for the second expert and 1 for all others."""
    loss = np.ones(D)
    loss[1] = 0.0
    return loss


def random_losses(silo: int, round: int, d: int = D) -> np.ndarray:
    """Return uniform losses in [0, 1] that depend only on silo and round."""
    return np.random.default_rng((silo, round)).uniform(size=d)


# -- Noise from the operating system ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_deployment_finds_the_best_expert(name):
    plan = make_deployed_system(name).plan
    federation = Federation(plan)
    for t in range(1, T + 1):
        federation.exchange()
        assert federation.server.releases == plan.exchanges_before(t)
        x = federation.x
        assert x.shape == (D,) and (x >= 0).all() and x.sum() == pytest.approx(1.0)
        chosen_expert = federation.clients[0].expert
        assert chosen_expert is None if x.max() < 1.0 else x[chosen_expert] == 1.0
        federation.observe(second_expert_is_best)
    assert {client.round for client in federation.clients} == {T}
    assert federation.server.releases == plan.exchanges > 1
    assert {client.clipped_losses for client in federation.clients} == {0}
    # The last choice follows the losses: noise this small hides the best expert only very rarely.
    assert federation.x[1] > 0.5
    assert ("switches" in federation.server.events) == (name.split("-")[0] in ("svt", "leader"))


@pytest.mark.parametrize("name", ["svt", "ope-central"])
def test_a_server_with_system_noise_needs_reports_in_fixed_point(name):
    plan = make_deployed_system(name).plan
    federation = Federation(plan)
    federation.clients = [fastfed.parties.ExpertClient(plan, i, SeededNoise(1)) for i in range(M)]
    for client in federation.clients:
        client.receive(federation.server.start())
    with pytest.raises(fastfed.InputError, match="must be in fixed point, multiples of 2"):
        federation.play(T, random_losses)
    # Clients with system noise send fixed-point reports for any losses.
    Federation(plan).play(T, random_losses)


def test_reports_of_gradients_are_in_fixed_point_for_a_server_with_noise():
    """Use arbitrary gradients, and trees of several levels."""
    plan = smooth_plan(3, epsilon=1e4, batch="largest", noise="central")
    assert max(phase.trees for phase in plan.phases) > 1
    federation = Federation(plan)
    federation.play(T, lambda silo, round: lambda x: np.sin(x + np.arange(D) / 3) * 7.7)
    assert federation.server.releases == plan.exchanges


def test_parties_can_have_separate_noise_sources():
    """Let each party have its own noise source, as on separate machines."""
    for name in PRIVATE:
        plan = make_deployed_system(name).plan
        clients = [fastfed.parties.ExpertClient(plan, i) for i in range(M)]
        server = fastfed.parties.ExpertServer(plan)
        for _ in range(2):  # a second call returns the same choice
            start = server.start()
        for client in clients:
            client.receive(start)
        for t in range(1, T + 1):
            while any(c.due for c in clients):
                choice = server.combine([c.report() for c in clients])
                for c in clients:
                    c.receive(choice)
            for c in clients:
                c.observe(random_losses(c.index, t))
        assert server.releases == plan.exchanges


def test_two_deployments_draw_different_noise():
    """Check that the noise differs between two runs and has the plan's scale."""
    plan = fastfed.make_system(
        "fed-dp-ope-stoch", silos=1, horizon=T, dimension=2**12, epsilon=90.0, batch="largest"
    ).plan
    reported_values = []
    for _ in range(2):
        client = fastfed.parties.ExpertClient(plan, 0)
        client.receive(fastfed.parties.ExpertServer(plan).start())
        while not client.due:
            client.observe(np.zeros(2**12))
        reported_values.append(client.report().values)
    # The grid has steps of at most 2^-14 standard deviations, so a few values coincide.
    assert (reported_values[0] != reported_values[1]).mean() > 0.99 and len(
        np.unique(reported_values[0])
    ) > 0.95 * 2**12
    # All scores are zero, so the values are Laplace noise of the first tree. A correct mechanism
    # fails once in 10^6 runs.
    scale = plan.scale(1)
    for values in reported_values:
        assert abs(values.mean()) < 7 * scale / 2**6
        assert abs(np.abs(values).mean() / scale - 1.0) < 5 / 2**6


@pytest.mark.parametrize("name", ["ope", "ope-messages"])
def test_two_clients_with_the_same_number_are_refused(name):
    """The reason: the two clients would add the same noise to two scores."""
    plan, shared = make_deployed_system(name).plan, SystemNoise()
    client_0, second_client_0 = (fastfed.parties.ExpertClient(plan, 0, shared) for _ in range(2))
    start = fastfed.parties.ExpertServer(plan, shared).start()
    for client in (client_0, second_client_0):
        client.receive(start)
        while not client.due:
            client.observe(random_losses(0, client.round + 1))
    client_0.report()
    with pytest.raises(InputError, match="was drawn already; use one SystemNoise for each system"):
        second_client_0.report()


@pytest.mark.parametrize("name", ["svt", "ope-central"])
def test_two_servers_with_the_same_noise_source_are_refused(name):
    plan, shared = make_deployed_system(name).plan, SystemNoise()
    federation = Federation(plan, shared)
    with pytest.raises(InputError, match="was drawn already; use one SystemNoise for each system"):
        second_server = fastfed.parties.ExpertServer(plan, shared)
        second_server.start()
        while not federation.clients[0].due:
            federation.observe(second_expert_is_best)
        reports = [client.report() for client in federation.clients]
        federation.server.combine(reports)
        second_server.combine(reports)


def test_system_noise_never_returns_a_draw_twice():
    noise = SystemNoise()
    for purpose in (THRESHOLD, QUERY, CHOICE):
        first, second = noise.uniforms(purpose, 1, 1), noise.uniforms(purpose, 2, 1)
        assert first != second and 0 < first < 1
        with pytest.raises(InputError, match="was drawn already"):
            noise.uniforms(purpose, 2, 1)
    draws = [noise.laplace(silo, release, 3) for silo in (0, 1) for release in (1, 2)]
    assert len(np.unique(draws)) == 12
    with pytest.raises(InputError, match="was drawn already"):
        noise.laplace(1, 2, 3)
    order = noise.sample(0, 4, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != noise.sample(0, 5, 50).tolist()


# -- Seeded noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_parties_with_seeded_noise_equal_the_step_driver(name):
    """Use any order of clients and reports."""
    environment = fastfed.environments.RealizableLosses(experts=D)
    plan = make_deployed_system(name).plan
    opened_environment = environment.open(3, 1, M)
    checkpoints = np.arange(1, T + 1)
    outcome = run_steps(environment.open(3, 1, M), plan, checkpoints)
    federation = Federation(plan, SeededNoise(3, 1))
    losses_by_round = np.zeros(T)
    for t in range(1, T + 1):
        federation.exchange()
        assert federation.server.releases == outcome.synchronisations[t - 1]
        losses_by_round[t - 1] = sum(
            float(opened_environment.losses.row(i, t) @ federation.x) for i in range(M)
        )
        federation.observe(lambda i, round: loss_of(opened_environment.losses, i, round))
    np.testing.assert_array_equal(federation.x, outcome.total)
    assert federation.server.events == outcome.events
    # The best expert never loses, so the regret equals the loss.
    np.testing.assert_allclose(np.cumsum(losses_by_round), outcome.group_regret, atol=1e-9)
    np.testing.assert_array_equal(
        outcome.bits_up, [64 * D * M * k for k in outcome.synchronisations]
    )


@pytest.mark.parametrize("noise", ["local", "central", "none"])
def test_parties_with_gradients_equal_the_step_driver(noise):
    environment = fastfed.environments.StochasticLosses(experts=D, gap=0.4, loss="quadratic")
    facts = environment.facts(M, T)
    problem = ProblemSpec(M, T, D, smoothness=facts.smoothness, linear=False, iid=True)
    keys = {"noise": noise, "batch": "largest", **({} if noise == "none" else {"epsilon": 90.0})}
    plan = ALGORITHMS["fed-dp-ope-stoch"].make(keys, problem).plan
    adversary: Adversary = environment.open(5, 0, M)
    outcome = run_steps(environment.open(5, 0, M), plan, np.arange(1, T + 1))
    federation = Federation(plan, SeededNoise(5))
    for _ in range(T):
        federation.exchange()
        federation.observe(lambda i, round: loss_of(adversary.losses, i, round))
    np.testing.assert_array_equal(federation.x, outcome.total)
    assert outcome.synchronisations[-1] == plan.exchanges > 3
    assert adversary.suboptimality is not None and 0.0 < adversary.suboptimality(federation.x) < 0.5


def test_seeded_noise_depends_only_on_its_seed():
    plan = make_deployed_system("ope").plan
    final_weights = []
    for seed in (1, 1, 2):
        federation = Federation(plan, SeededNoise(seed))
        federation.play(T, random_losses)
        final_weights.append(federation.x)
    np.testing.assert_array_equal(final_weights[0], final_weights[1])
    assert (final_weights[0] != final_weights[2]).any()


# -- Errors ----------------------------------------------------------------------------------------


def visible_state(federation: Federation) -> list[Any]:
    """Return the visible state of all parties, which an error must not change."""
    return [
        (
            client.round,
            client.release,
            client.due,
            client.clipped_losses,
            None if client._x is None else client.x.tolist(),
        )
        for client in federation.clients
    ] + [federation.server.releases, dict(federation.server.events)]


def check_refused(message: str, call: Callable[[], Any], federation: Federation) -> None:
    """Check that the call raises one short sentence and changes no state."""
    state = visible_state(federation)
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value) and len(str(error.value)) < 200
    assert visible_state(federation) == state


@pytest.mark.parametrize("name", NAMES)
def test_steps_out_of_order_raise_errors_and_change_nothing(name):
    """Check that a run with many refused calls ends as a run without them."""
    plan = make_deployed_system(name).plan
    federation, undisturbed = (Federation(plan, SeededNoise(7)) for _ in range(2))
    client_0, *_ = federation.clients
    check_refused("client 0 has no report due before round 1", client_0.report, federation)
    check_refused("client 0 waits for no choice, got choice 0", lambda: client_0.receive(
        federation.server.start()), federation)  # fmt: skip
    while not client_0.due:
        check_refused("has no report due before round", client_0.report, federation)
        federation.observe(random_losses)
    next_round = client_0.round + 1
    must_exchange = f"client 0 must exchange messages before round {next_round}"
    check_refused(must_exchange, lambda: client_0.observe(random_losses(0, next_round)), federation)
    report_0 = client_0.report()
    check_refused("client 0 has no report due", client_0.report, federation)
    check_refused(must_exchange, lambda: client_0.observe(random_losses(0, next_round)), federation)
    check_refused("client 0 waits for choice 1, got choice 0", lambda: client_0.receive(
        federation.server.start()), federation)  # fmt: skip
    check_refused("client 0 waits for choice 1, got choice 2", lambda: client_0.receive(
        ExpertChoice(2, 1)), federation)  # fmt: skip
    other_reports = [client.report() for client in federation.clients[1:]]
    report_0_twice = [report_0, report_0, *other_reports[1:]]
    unknown_client = ExpertReport(1, np.zeros(D), M)
    for reports, message in (
        ([], r"one of each of the 3 clients, got clients \[\]"),
        ([report_0], r"one of each of the 3 clients, got clients \[0\]"),
        (other_reports, r"got clients \[1, 2\]"),
        (report_0_twice, r"got clients \[0, 0, 2\]"),
        ([report_0, *other_reports, report_0], r"got clients \[0, 0, 1, 2\]"),
        ([report_0, other_reports[0], unknown_client], r"got clients \[0, 1, 3\]"),
        (report_0, "reports must be a list of ExpertReport"),
        (
            [report_0, *other_reports[:1], other_reports[1].values],
            "reports must be a list of ExpertReport",
        ),
        (
            [report_0, *other_reports[:1], dataclasses.replace(other_reports[1], release=2)],
            "report of client 2 must be number 1, got number 2",
        ),
        (
            [report_0, *other_reports[:1], ExpertReport(1, np.zeros(D + 1), 2)],
            r"report of client 2 must have shape \(5,\), got \(6,\)",
        ),
    ):
        check_refused(
            message, lambda reports=reports: federation.server.combine(reports), federation
        )
    choice = federation.server.combine([report_0, *other_reports])
    late_message = "report of client 0 must be number 2, got number 1"
    if federation.server.releases == plan.exchanges:
        late_message = "the plan has .* exchanges, got reports of one more"
    check_refused(
        late_message, lambda: federation.server.combine([report_0, *other_reports]), federation
    )
    for client in federation.clients:
        client.receive(choice)
    check_refused("client 0 waits for", lambda: client_0.receive(choice), federation)
    federation.play(T - client_0.round, random_losses)
    undisturbed.play(T, random_losses)
    assert visible_state(federation) == visible_state(undisturbed)


@pytest.mark.parametrize("name", NAMES)
def test_no_report_is_due_after_the_last_round(name):
    """Check that a client loop over ``client.due`` ends and that no further round is accepted."""
    for horizon in (7, 8, 20, 21):
        plan = make_deployed_system(name, silos=1, horizon=horizon).plan
        federation = Federation(plan, SeededNoise(0))
        federation.play(horizon, random_losses)
        assert federation.server.releases == plan.exchanges
        assert not federation.clients[0].due
        with pytest.raises(InputError, match=f"the plan has {horizon} rounds, got one more"):
            federation.clients[0].observe(random_losses(0, 1))


def test_clients_need_the_servers_start():
    plan = make_deployed_system("svt").plan
    client, server = fastfed.parties.ExpertClient(plan, 2), fastfed.parties.ExpertServer(plan)
    for call in (lambda: client.x, lambda: client.expert):
        with pytest.raises(InputError, match=r"x needs the server's start\(\)"):
            call()
    with pytest.raises(InputError, match="client 2 must exchange messages before round 1"):
        client.observe(random_losses(2, 1))
    with pytest.raises(InputError, match="client 2 waits for choice 0, got choice 1"):
        client.receive(ExpertChoice(1, 0))
    with pytest.raises(InputError, match=r"combine needs start\(\) before it"):
        server.combine([])
    assert (client.round, client.release, server.releases) == (0, -1, 0)
    client.receive(server.start())
    assert client.expert is not None


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, "choice must be an ExpertChoice, got NoneType"),
        ([0, 1], "choice must be an ExpertChoice, got list"),
        (ExpertChoice(0, 5), "expert must be below 5, got 5"),
        (ExpertChoice(0, None, np.full(4, 0.25)), r"weights must have shape \(5,\), got \(4,\)"),
    ],
)
def test_choices_that_do_not_fit_the_plan_are_refused(choice, message):
    for name in NAMES:
        client = fastfed.parties.ExpertClient(make_deployed_system(name).plan, 0)
        with pytest.raises(InputError, match=message):
            client.receive(choice)
        assert client.release == -1 and client._x is None


@pytest.mark.parametrize(
    "make_choice",
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
def test_choices_with_invalid_values_are_refused(make_choice):
    """Check values that could arrive over a network."""
    with pytest.raises(InputError):
        fastfed.parties.ExpertClient(make_deployed_system("hedge").plan, 0).receive(make_choice())


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_reports_with_invalid_values_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ExpertReport(**{"release": 1, "values": np.zeros(5), "silo": 0, **changes})


def test_reports_are_immutable():
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
def test_expert_parties_refuse_plans_of_bandits(party):
    plan = fastfed.make_system("fedlinucb", silos=2, horizon=9, dimension=2, batch_size=3).plan
    with pytest.raises(InputError, match=r"plan must be one of experts, such as .*, got Plan"):
        party(plan)
    with pytest.raises(InputError, match="plan must be one of experts"):
        party(make_deployed_system("svt"))
    for index in (3, -1, 1.0):
        with pytest.raises(InputError, match="index must be an integer"):
            fastfed.parties.ExpertClient(make_deployed_system("svt").plan, index)


# -- Losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_losses_out_of_range_are_clipped_and_counted(name):
    plan = make_deployed_system(name).plan
    unclipped, clipped = (Federation(plan, SeededNoise(1)) for _ in range(2))
    clipped_count = 0
    for _ in range(T):
        for federation in (unclipped, clipped):
            federation.exchange()
        t = unclipped.clients[0].round + 1
        losses = 1.5 * np.random.default_rng(t).uniform(size=D) - 0.2
        if t % 3 == 0:
            losses = np.clip(losses, 0.0, 1.0)
        clipped_count += bool(((losses < 0) | (losses > 1)).any())
        unclipped.observe(lambda silo, round, loss=losses: loss if silo else loss.tolist())
        clipped.observe(lambda silo, round, loss=losses: np.clip(loss, 0.0, 1.0))
        np.testing.assert_array_equal(unclipped.x, clipped.x)
    assert [c.clipped_losses for c in unclipped.clients] == [clipped_count] * M
    assert clipped_count > 20 and [c.clipped_losses for c in clipped.clients] == [0] * M


@pytest.mark.parametrize(
    ("loss", "message"),
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
def test_invalid_losses_raise_errors_and_change_nothing(loss, message):
    for name in ("svt", "ope", "hedge"):
        federation = Federation(make_deployed_system(name).plan, SeededNoise(0))
        check_refused(
            message, lambda federation=federation: federation.clients[1].observe(loss), federation
        )
        undisturbed = Federation(make_deployed_system(name).plan, SeededNoise(0))
        for run in (federation, undisturbed):
            run.play(T, random_losses)
        np.testing.assert_array_equal(federation.x, undisturbed.x)


def test_clients_copy_the_losses():
    """Check that a client keeps its own copy when the caller reuses its array."""
    plan = make_deployed_system("ope-plain", silos=1).plan
    fresh_arrays, reused_array = (Federation(plan, SeededNoise(0)) for _ in range(2))
    buffer = np.zeros(D)
    for t in range(1, T + 1):
        for federation in (fresh_arrays, reused_array):
            federation.exchange()
        buffer[:] = random_losses(0, t)
        reused_array.clients[0].observe(buffer)
        fresh_arrays.clients[0].observe(random_losses(0, t))
        buffer[:] = 0.0
    np.testing.assert_array_equal(fresh_arrays.x, reused_array.x)


@pytest.mark.parametrize("name", NAMES)
def test_callers_cannot_change_the_weights(name):
    """Scale the returned weights in place, as for a portfolio, and compare with an undisturbed
    run."""
    plan = make_deployed_system(name, silos=1).plan
    undisturbed, scaled = (Federation(plan, SeededNoise(0)) for _ in range(2))
    for _ in range(T):
        for federation in (undisturbed, scaled):
            federation.exchange()
            federation.observe(random_losses)
        np.testing.assert_array_equal(undisturbed.x, scaled.x)
        try:
            scaled.clients[0].x[:] *= 100.0
        except ValueError:  # read-only weights are safe as well
            continue


def smooth_plan(silos: int = 1, **keys: Any) -> ExpertPlan:
    """Return a plan for smooth losses, which clients observe as gradient functions."""
    problem = ProblemSpec(silos, T, D, lipschitz=50.0, spread=100.0, smoothness=1.0, linear=False)
    return ALGORITHMS["fed-dp-ope-stoch"].make(keys, problem).plan


def test_smooth_losses_must_be_gradient_functions():
    federation = Federation(smooth_plan(epsilon=1e4, batch="largest"), SeededNoise(0))
    (client,) = federation.clients
    for loss in (np.zeros(D), [0.0] * D, 0.5, None):
        check_refused(
            "loss must be a gradient function, got",
            lambda loss=loss: client.observe(loss),
            federation,
        )
    queried: list[np.ndarray] = []

    def gradient(x: np.ndarray) -> np.ndarray:
        """Return the gradient at x, and record x."""
        queried.append(x.copy())
        return x + 2 * np.arange(D)

    federation.play(T, lambda silo, round: gradient)
    assert queried and all(x.sum() == pytest.approx(1.0) for x in queried)
    assert federation.x[0] == pytest.approx(1.0)


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
def test_results_of_a_gradient_function_are_checked(returned):
    """Check that d finite numbers are accepted and everything else raises an error.

    The gradient is the user's code. If a short array were accepted, the kernel would read past
    its end and could crash, so the test uses a new process.
    """
    command = [sys.executable, "-c", GRADIENT % returned]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr[-300:]
    is_valid = returned in ("[0.0] * 5", "np.zeros(5, np.float32)")
    assert process.stdout.startswith("refused: ") != is_valid and process.stdout.count("\n") == (
        not is_valid
    )


def test_a_report_can_be_repeated_after_its_gradient_failed():
    """Check that the run equals one without the failure."""
    plan = smooth_plan(epsilon=4500.0, batch="largest")
    undisturbed, failing = (Federation(plan, SeededNoise(0)) for _ in range(2))
    failed = []

    def gradient(x: np.ndarray) -> np.ndarray:
        """Return a gradient at x."""
        return x * np.arange(D)

    def fails_once(x: np.ndarray) -> np.ndarray:
        """Return the gradient at x, but fail once, in the third of six leaves."""
        # Fail in the third of six leaves; that leaf has its own losses.
        if not failed and failing.clients[0].release == plan.exchanges_before(63) + 2:
            failed.append(True)
            raise RuntimeError("not now")
        return gradient(x)

    for _ in range(T):
        undisturbed.exchange()
        while failing.clients[0].due:
            try:
                failing.exchange()
            except RuntimeError:
                assert failing.clients[0].due
        np.testing.assert_array_equal(undisturbed.x, failing.x)
        for federation, loss in ((undisturbed, gradient), (failing, fails_once)):
            federation.observe(lambda silo, round, loss=loss: loss)
    assert failed


class FailsAtDraw(SeededNoise):
    """A noise source whose ``at``-th draw fails, as a draw from the operating system may."""

    def __init__(self, seed: int, at: int) -> None:
        super().__init__(seed)
        self.remaining = at

    def _draw(self) -> None:
        """Count down; the last draw fails."""
        self.remaining -= 1
        if self.remaining == 0:
            raise OSError("no entropy")

    def uniforms(self, purpose: int, release: int, count: int) -> np.ndarray:
        """Count the draw, which may fail, then draw."""
        self._draw()
        return super().uniforms(purpose, release, count)

    def uniform(self, purpose: int, release: int) -> float:
        """Count the draw, which may fail, then draw."""
        self._draw()
        return super().uniform(purpose, release)

    def laplace(self, silo: int, release: int, count: int) -> np.ndarray:
        """Count the draw, which may fail, then draw."""
        self._draw()
        return super().laplace(silo, release, count)

    def sample(self, silo: int, phase: int, count: int) -> np.ndarray:
        """Count the draw, which may fail, then draw."""
        self._draw()
        return super().sample(silo, phase, count)


@pytest.mark.parametrize("at", [3, 4, 5, 9, 20])
@pytest.mark.parametrize("name", ["svt", "ope", "ope-central"])
def test_a_step_can_be_repeated_after_its_noise_source_failed(name, at):
    """Repeat the failed step and check that the run equals one without the failure."""
    plan = make_deployed_system(name, silos=1).plan
    undisturbed, failing = Federation(plan, SeededNoise(5)), Federation(plan, FailsAtDraw(5, at))
    failures = 0
    for t in range(1, T + 1):
        undisturbed.exchange()
        client, server = failing.clients[0], failing.server
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
        np.testing.assert_array_equal(undisturbed.x, failing.x)
        for federation in (undisturbed, failing):
            federation.observe(lambda silo, round, t=t: random_losses(0, t))
    assert failures == 1
    assert visible_state(undisturbed) == visible_state(failing)


# -- Certificates and arguments --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_deployed_certificates_state_the_budget_without_caveats_about_simulation(name):
    system = make_deployed_system(name)
    simulated, deployed = system.certificate, system.deployed_certificate
    assert not any("simulation" in caveat for caveat in deployed.caveats)
    assert (SIMULATION_CAVEAT in simulated.caveats) == (name in PRIVATE)
    assert (deployed.status, deployed.exact, deployed.claimed) == (
        simulated.status, simulated.exact, simulated.claimed,
    )  # fmt: skip
    assert deployed.status == ("proven" if name in PRIVATE else "none")
    if name in PRIVATE:
        assert 0.99 * deployed.claimed.epsilon < deployed.exact.epsilon <= deployed.claimed.epsilon
        assert any(caveat.startswith("deployment: ") for caveat in deployed.caveats)
        assert "simulation" not in str(deployed)


def test_the_example_of_the_readme_keeps_its_budget():
    system = fastfed.make_system(
        "fed-svt", silos=3, horizon=100, dimension=5, epsilon=1.0, optimal_loss=0.0
    )
    federation = Federation(system.plan)
    federation.play(100, second_expert_is_best)
    assert federation.server.events["switches"] <= system.plan.noise.switches
    assert system.deployed_certificate.exact.epsilon == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
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
def test_invalid_arguments_of_make_system_raise_errors(changes, message):
    arguments: dict[str, Any] = {
        "algorithm": "fed-svt", "silos": 3, "horizon": 100, "dimension": 5, "epsilon": 1.0,
        "optimal_loss": 0.0,
    }  # fmt: skip
    with pytest.raises(InputError, match=message) as error:
        fastfed.make_system(**{**arguments, **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_of_one_round_has_no_exchange(name):
    """Use one client, one round and two experts: the server starts and then exchanges nothing."""
    algorithm, keys = KEYS[name]
    keys = {key: value for key, value in keys.items() if key != "phase_length"}
    plan = fastfed.make_system(algorithm, silos=1, horizon=1, dimension=2, **keys).plan
    federation = Federation(plan)
    assert plan.exchanges == 0 and not federation.clients[0].due
    federation.play(1, lambda silo, round: [0.0, 1.0])
    with pytest.raises(InputError, match="the plan has 0 exchanges, got reports of one more"):
        federation.server.combine([ExpertReport(1, np.zeros(2), 0)])


@pytest.mark.parametrize("smoothness", [0.01, 1.0])
def test_no_loss_moves_scores_beyond_the_sensitivity(smoothness):
    """Check that clipping bounds the change of every leaf's scores for arbitrary gradients."""
    problem = ProblemSpec(1, 511, 3, lipschitz=1.0, spread=2.0, smoothness=smoothness, linear=False)
    keys = {"epsilon": 50.0, "noise": "central", "batch": "largest", "smoothness": 1.0}
    plan = ALGORITHMS["fed-dp-ope-stoch"].make(keys, problem).plan
    phase = plan.phases[-1]
    sets = vertex_sets(phase.batch, phase.trees, 2.0, smoothness)
    sensitivity = {(vertices.tree, vertices.depth): vertices.change for vertices in sets}
    draw = np.random.default_rng(0)
    matrices = draw.normal(size=(512, 3, 3)) * 1e9

    def losses(replaced: int | None) -> dict[int, Any]:
        """Return the losses of a phase; one round may have its loss replaced."""
        sign = {t: -1.0 if t == replaced else 1.0 for t in phase.samples}
        return {t: lambda x, t=t: sign[t] * (matrices[t] @ x) for t in phase.samples}

    def scores(replaced: int | None) -> np.ndarray:
        """Return the scores of all leaves; one round may have its loss replaced."""
        collector = plan.collector(0, SeededNoise(3))
        collector._next_phase = phase
        for t, loss in losses(replaced).items():
            collector.observe(t, loss)
        x, leaf_scores = np.full(3, 1.0 / 3.0), []
        for release in range(phase.offset + 1, phase.offset + len(phase.leaves) + 1):
            leaf_scores.append(collector.values(release, x))
            # Both runs follow the same experts: the guarantee conditions on the earlier choices.
            x = plan.move(x, ExpertChoice(release, release % 3))
        return np.array(leaf_scores)

    unchanged = scores(None)
    order = SeededNoise(3).sample(0, phase.number, len(phase.samples))
    for leaf in phase.leaves:
        replaced_scores = scores(phase.samples.start + int(order[leaf.start]))
        change = np.abs(replaced_scores - unchanged).max()
        assert change <= sensitivity[leaf.tree, leaf.depth] * (1 + 1e-9)
        # In a root, the replaced loss moves from one end of the clipping interval to the other.
        assert leaf.depth > 0 or change == pytest.approx(sensitivity[leaf.tree, 0])


def test_a_client_of_several_needs_an_index():
    plan = make_deployed_system("svt").plan
    with pytest.raises(InputError, match=f"index is required: the plan has the silos 0 to {M - 1}"):
        fastfed.parties.ExpertClient(plan)
