"""Graphs, clique covers and the network of FedUCB without a server, against the oracle.

The one statistical test has a fixed seed and was allowed a false alarm of 1e-6.
"""

from __future__ import annotations

import pickle
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from oracle import dubey_pentland_2020 as oracle
from scipy import stats
from scipy.sparse.csgraph import connected_components

from fastfed._kernels import rng
from fastfed._random import INSTANCE
from fastfed._validate import InputError
from fastfed.protocols.serverless import GRAPHS, Graph, Network, PeerPlan

FALSE_ALARM = 1e-6


@dataclass(eq=False)
class Message:
    nbytes: int
    number: int = 0


def adjacency(graph: Graph) -> np.ndarray:
    full = np.zeros((graph.silos, graph.silos), dtype=int)
    for i, j in graph.edges:
        full[i, j] = full[j, i] = 1
    return full


def random_graphs(count: int, largest: int = 9):
    """Small graphs of every density, trees among them, and the named ones."""
    draw = np.random.default_rng(20200603)
    for seed in range(count):
        silos = int(draw.integers(1, largest + 1))
        share = float(draw.choice([0.0, 0.1, 0.3, 0.7]))
        yield Graph.named("random", silos, seed, probability=share)
    for name in GRAPHS:
        for silos in (1, 2, 3, 7):
            yield Graph.named(name, silos)


# ---- graphs -------------------------------------------------------------------------------------


def test_the_named_graphs():
    edges = {name: Graph.named(name, 4).edges for name in GRAPHS}
    assert edges["complete"] == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    assert edges["star"] == ((0, 1), (0, 2), (0, 3))
    assert edges["ring"] == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert edges["line"] == ((0, 1), (1, 2), (2, 3))
    for name in GRAPHS:
        assert Graph.named(name, 1).edges == ()
        assert Graph.named(name, 2).edges == ((0, 1),)
    diameters = {name: Graph.named(name, 9).diameter for name in ("complete", "star", "ring")}
    assert diameters == {"complete": 1, "star": 2, "ring": 4}
    assert Graph.named("line", 1).diameter == 0


def test_edges_in_any_order_make_the_same_graph():
    graph = Graph.from_edges([[2, 1], (0, 1), (1, 0), np.array([3, 2])], 4)
    assert graph == Graph.named("line", 4) == Graph(4, ((1, 2), (3, 2), (0, 1)))
    assert len({graph, Graph.named("line", 4), Graph.named("ring", 4)}) == 2
    assert all(type(i) is int for edge in graph.edges for i in edge)
    assert graph.neighbours == ((1,), (0, 2), (1, 3), (2,))
    assert not graph.distances.flags.writeable and graph.distances.dtype == np.int64
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_distances_are_the_oracles():
    for graph in random_graphs(60):
        expected = oracle.distances(adjacency(graph))
        np.testing.assert_array_equal(graph.distances, expected)
        assert graph.diameter == expected.max() and expected.min() == 0
        assert [len(n) for n in graph.neighbours] == adjacency(graph).sum(axis=1).tolist()


def test_random_graphs_have_the_fewest_edges_beyond_those_drawn():
    connected = set()
    for seed in range(60):
        silos, share = 3 + seed % 8, (0.05, 0.3, 0.6)[seed % 3]
        drawn = np.zeros((silos, silos))
        for i in range(1, silos):
            drawn[i, :i] = rng.random_u32(seed, INSTANCE, 0, i, 0, i) / 2.0**32
        chosen = np.tril(drawn < share, -1)
        parts = connected_components(chosen)[0]
        connected.add(parts == 1)
        graph = Graph.named("random", silos, seed, probability=share)
        assert {(int(j), int(i)) for i, j in np.argwhere(chosen)} <= set(graph.edges)
        assert len(graph.edges) == chosen.sum() + parts - 1
        denser = Graph.named("random", silos, seed, probability=share + 0.2)
        assert set(graph.edges) <= set(denser.edges)
    assert connected == {True, False}
    assert len(Graph.named("random", 40, 5, probability=0.0).edges) == 39
    assert Graph.named("random", 12, probability=1.0) == Graph.named("complete", 12)


def test_every_pair_is_linked_alike():
    """12 silos at 0.6 are connected but for 12 0.4^11 = 5e-4: edges are then Bernoulli(0.6)."""
    silos, share, count = 12, 0.6, 300
    linked = sum(
        adjacency(Graph.named("random", silos, seed, probability=share)) for seed in range(count)
    )[np.triu_indices(silos, 1)]
    z = (linked - count * share) / np.sqrt(count * share * (1 - share))
    assert np.sum(z**2) < stats.chi2.isf(FALSE_ALARM / 2, len(z))
    assert np.sum(z**2) > stats.chi2.ppf(FALSE_ALARM / 2, len(z))


def test_a_random_graph_is_a_function_of_the_seed():
    graphs = [Graph.named("random", 10, seed) for seed in range(20)]
    assert graphs == [Graph.named("random", 10, seed) for seed in range(20)]
    assert len(set(graphs)) == 20
    share = 2 * np.log(10) / 10
    assert graphs[3] == Graph.named("random", 10, 3, probability=share)


def test_what_a_spec_may_say():
    line = Graph.named("line", 3)
    assert Graph.of("line", 3) == Graph.of([[1, 2], [0, 1]], 3) == Graph.of(line, 3) == line
    assert Graph.of(np.array([[1, 2], [0, 1]]), 3) == line
    assert Graph.of("random", 10, 4) == Graph.named("random", 10, 4)
    # A multigraph as networkx would hand it over: nodes out of order, edges with keys.
    made = SimpleNamespace(nodes=[2, 0, np.int64(1)], edges=[(0, 1, 0), (1, 0, 1), (2, 1, 0)])
    assert Graph.of(made, 3) == Graph.from_networkx(made) == line


def test_graphs_of_networkx():
    networkx = pytest.importorskip("networkx")
    graph = networkx.petersen_graph()
    made = Graph.of(graph, 10)
    assert (len(made.edges), made.diameter) == (15, 2)
    for i, hops in networkx.all_pairs_shortest_path_length(graph):
        assert made.distances[i].tolist() == [hops[j] for j in range(10)]
    assert Graph.from_networkx(networkx.MultiGraph(graph)) == made
    with pytest.raises(InputError, match="graph must be undirected"):
        Graph.of(networkx.DiGraph(graph), 10)
    with pytest.raises(InputError, match=r"nodes of a graph must be the silos 0\.\.M-1"):
        Graph.of(networkx.grid_2d_graph(2, 2), 4)


@pytest.mark.parametrize(
    ("value", "silos", "message"),
    [
        ("rings", 4, "graph must be one of .* got 'rings'; did you mean \"ring\""),
        ("ring", 0, "silos must be an integer >= 1, got 0"),
        ("ring", 2.0, "silos must be an integer, got 2.0"),
        ([(0, 1), (2, 3)], 4, "graph must be connected, got no path between silos 0 and 2"),
        ([], 2, "graph must be connected"),
        ([(0, 1), (1, 1)], 2, r"edges must join two different silos, got \(1, 1\)"),
        ([(0, 2)], 2, "a silo of edges must be an integer >= 0 and <= 1, got 2"),
        ([(0, -1)], 2, "a silo of edges must be an integer >= 0 and <= 1, got -1"),
        ([(0, True)], 2, "a silo of edges must be an integer, got True"),
        ([(0, 1, 1)], 2, r"edges must be pairs of silos, got \(0, 1, 1\)"),
        ([0, 1], 2, "edges must be pairs of silos, got 0"),
        (7, 2, "edges must be a list of pairs of silos, got 7"),
        (Graph.named("ring", 5), 4, "graph must have 4 silos, got 5"),
        (SimpleNamespace(nodes=[0, 1], edges=[(0, 1)]), 3, "graph must have 3 silos, got 2"),
        (SimpleNamespace(nodes=[1, 2], edges=[(1, 2)]), 2, "nodes of a graph must be"),
        (SimpleNamespace(nodes=[0, True], edges=[(0, True)]), 2, "nodes of a graph must be"),
        (SimpleNamespace(nodes=[], edges=[]), 1, "nodes of a graph must be"),
    ],
)
def test_what_is_no_graph_is_refused(value, silos, message):
    with pytest.raises(InputError, match=message):
        Graph.of(value, silos)


def test_probabilities_belong_to_random_graphs():
    with pytest.raises(InputError, match='probability is for the graph "random" only, got 0'):
        Graph.named("ring", 4, probability=0.5)
    with pytest.raises(InputError, match=r"probability must be >= 0 and <= 1, got 1\.5"):
        Graph.named("random", 4, probability=1.5)
    with pytest.raises(InputError, match="seed must be an integer >= 0"):
        Graph.named("random", 4, -1)


# ---- cliques ------------------------------------------------------------------------------------


def test_cliques_partition_the_power():
    for graph in random_graphs(60):
        full = adjacency(graph)
        for gamma in range(1, graph.diameter + 2):
            cover = graph.cliques(gamma)
            assert cover == graph.cliques(gamma) == tuple(sorted(cover))
            members = oracle.clique_of(full, gamma, cover)
            assert [tuple(clique) for clique in members] == [
                next(c for c in cover if i in c) for i in range(graph.silos)
            ]
            if gamma >= graph.diameter:
                assert cover == (tuple(range(graph.silos)),)
            # No two cliques could be one.
            power = oracle.graph_power(full, gamma) + np.eye(graph.silos, dtype=int)
            assert not any(power[np.ix_(a, b)].all() for a in cover for b in cover if a is not b)


def greedy(hops: np.ndarray, gamma: int) -> list[list[int]]:
    """The documented rule, counted anew at every step."""
    partners = {i: {j for j in range(len(hops)) if hops[i, j] <= gamma} for i in range(len(hops))}
    free, found = set(partners), []
    while free:
        few = {i: len(partners[i] & free) for i in free}
        clique = [min(free, key=lambda i: (few[i], i))]
        while True:
            fit = set.intersection(free, *(partners[i] for i in clique)) - set(clique)
            if not fit:
                break
            clique.append(min(fit, key=lambda i: (-len(partners[i] & fit), few[i], i)))
        free -= set(clique)
        found.append(sorted(clique))
    return sorted(found)


def test_cliques_grow_as_documented():
    for seed in range(40):
        graph = Graph.named("random", 22, seed, probability=(0.0, 0.15, 0.4)[seed % 3])
        for gamma in (1, 2, 3):
            expected = greedy(graph.distances, gamma)
            assert [list(clique) for clique in graph.cliques(gamma)] == expected


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("silos", [1, 2, 6, 7, 12, 23])
def test_cliques_are_the_fewest_on_simple_graphs(silos, gamma):
    """gamma + 1 neighbours in a row are a clique of line and ring; a star's is centre and leaf."""
    pieces = -(-silos // (gamma + 1))
    assert len(Graph.named("line", silos).cliques(gamma)) == pieces
    if silos > 3 * gamma:  # otherwise three silos all around a ring may be a clique
        assert len(Graph.named("ring", silos).cliques(gamma)) == pieces
    star = Graph.named("star", silos).cliques(gamma)
    assert len(star) == (max(1, silos - 1) if gamma == 1 else 1)
    assert Graph.named("complete", silos).cliques(gamma) == (tuple(range(silos)),)


def test_paths_may_leave_a_clique():
    """Leaves of a star are two hops apart, through a centre that is in another clique."""
    star = Graph.named("star", 4)
    assert star.checked_cliques([[3, 1], [2, 0]], 2) == ((0, 2), (1, 3))


def test_own_covers_are_checked_like_the_oracles():
    draw = np.random.default_rng(7)
    verdicts = set()
    for graph in random_graphs(60):
        gamma = int(draw.integers(1, 4))
        labels = draw.integers(0, 3, size=graph.silos)
        cover = [np.flatnonzero(labels == label).tolist() for label in set(labels.tolist())]
        try:
            expected = oracle.clique_of(adjacency(graph), gamma, cover)
        except ValueError:
            with pytest.raises(InputError, match=f"must be at most {gamma} hops apart, got"):
                graph.checked_cliques(cover, gamma)
            verdicts.add("refused")
            continue
        assert {tuple(clique) for clique in expected} == set(graph.checked_cliques(cover, gamma))
        verdicts.add("taken")
    assert verdicts == {"refused", "taken"}


@pytest.mark.parametrize(
    ("cover", "message"),
    [
        ([[0, 1], [2]], "cliques must hold every silo exactly once, got silo 3 0 times"),
        ([[0, 1], [1, 2], [3]], "cliques must hold every silo exactly once, got silo 1 2 times"),
        ([[0, 1, 2], [3]], "silos of a clique must be at most 1 hops apart, "
                           "got 2 between silos 0 and 2"),
        ([[0, 1], [2, 4]], "a silo of cliques must be an integer >= 0 and <= 3, got 4"),
        ([[0, 1], [2, 3], []], "cliques must not be empty"),
        ([0, 1, 2, 3], "cliques must be lists of silos"),
        (4, "cliques must be lists of silos, got 4"),
    ],
)  # fmt: skip
def test_what_is_no_cover_is_refused(cover, message):
    with pytest.raises(InputError, match=message):
        Graph.named("line", 4).checked_cliques(cover, 1)


@pytest.mark.parametrize("gamma", [0, 1.0, "2"])
def test_gamma_is_a_positive_integer(gamma):
    graph = Graph.named("line", 4)
    with pytest.raises(InputError, match="gamma must be an integer"):
        graph.cliques(gamma)
    with pytest.raises(InputError, match="gamma must be an integer"):
        graph.checked_cliques([[0, 1], [2, 3]], gamma)


# ---- network ------------------------------------------------------------------------------------


def test_message_by_message_like_the_oracle():
    """The same arrivals in the same rounds and order, the same bytes after every round."""
    draw = np.random.default_rng(11)
    heard = 0
    for graph in random_graphs(50):
        gamma = int(draw.integers(1, 6))
        network: Network[oracle.Request] = Network(graph, gamma)
        other = oracle.Network(adjacency(graph), gamma)
        for t in range(1, 15):
            expected = other.deliver()
            arrivals = network.deliver()
            assert [(i, m.number) for i, m in arrivals] == [(i, m.round) for i, m in expected]
            heard += len(arrivals)
            for silo in draw.permutation(graph.silos)[: draw.integers(0, 3)]:
                number = 100 * t + int(silo)
                # The oracle's requests have 24 bytes.
                network.broadcast(int(silo), Message(24, number))
                other.broadcast(int(silo), oracle.Request(int(silo), 0, number))
            assert network.bytes_sent == other.bytes_sent
    assert heard > 1000


def test_messages_arrive_after_as_many_rounds_as_hops():
    for graph in random_graphs(30):
        for gamma in (1, 2, 4):
            network: Network[Message] = Network(graph, gamma)
            message = Message(1)
            network.broadcast(0, message)
            for hop in range(1, graph.silos + 2):
                wanted = np.flatnonzero(graph.distances[0] == hop) if hop <= gamma else []
                arrivals = network.deliver()
                assert sorted(i for i, _ in arrivals) == list(wanted)
                assert all(m is message for _, m in arrivals)


def test_bytes_in_closed_form():
    """Cut off after any number of rounds, as at a horizon; sizes as they come."""
    for graph in random_graphs(30):
        for silo in range(graph.silos):
            for gamma in (1, 2, 3, graph.diameter + 3):
                network: Network[Message] = Network(graph, gamma)
                assert graph.edges_crossed(silo, 0, gamma) == 0
                network.broadcast(silo, Message(5))
                for hops in range(1, gamma + 3):
                    assert network.bytes_sent == 5 * graph.edges_crossed(silo, hops, gamma)
                    network.deliver()
    # By hand: 1 + 2 + 2 on a line, 3 + (1 + 1 + 1) from the centre of a star.
    line, star = Graph.named("line", 5), Graph.named("star", 4)
    assert [line.edges_crossed(0, hops, 3) for hops in range(5)] == [0, 1, 3, 5, 5]
    assert [star.edges_crossed(0, hops, 9) for hops in range(5)] == [0, 3, 6, 6, 6]


def test_a_plan_has_the_crossings_of_all_silos():
    """All at once, for one by one takes minutes where silos are many; at any gamma."""
    for graph in random_graphs(20):
        for gamma in (1, 2, graph.diameter + 4):
            found = PeerPlan(graph, gamma, 9, 2, ()).crossings
            assert found.shape == (graph.silos, gamma + 1)
            for silo, row in enumerate(found):
                assert [graph.edges_crossed(silo, h, gamma) for h in range(gamma + 1)] == [*row]


def test_bytes_of_a_run_that_ends_at_a_horizon():
    graph, gamma, horizon = Graph.named("random", 8, 2, probability=0.1), 3, 9
    assert graph.diameter > gamma
    sent = [(t, (3 * t) % 8, 10 + t) for t in range(1, horizon + 1)]
    network: Network[Message] = Network(graph, gamma)
    for _, silo, size in sent:
        network.deliver()
        network.broadcast(silo, Message(size))
    assert network.bytes_sent == sum(
        size * graph.edges_crossed(silo, min(gamma, horizon - t + 1), gamma)
        for t, silo, size in sent
    )


def test_one_object_may_be_broadcast_again():
    network: Network[Message] = Network(Graph.named("line", 2), 1)
    message = Message(3)
    for _ in range(2):
        network.broadcast(0, message)
        network.broadcast(1, message)
        assert [i for i, _ in network.deliver()] == [1, 0]
    assert network.bytes_sent == 12


@pytest.mark.parametrize(
    ("name", "silos", "gamma", "rounds"),
    # Forgotten where the time to live ends, and where everybody has heard.
    [("line", 6, 2, 2), ("line", 6, 99, 5), ("complete", 4, 9, 1), ("line", 1, 3, 0)],
)
def test_messages_are_forgotten(name, silos, gamma, rounds):
    network: Network[Message] = Network(Graph.named(name, silos), gamma)
    message = Message(1)
    alive = weakref.ref(message)
    network.broadcast(0, message)
    del message
    for _ in range(rounds):
        assert alive() is not None
        network.deliver()
    assert alive() is None


def test_memory_does_not_grow_with_rounds():
    network: Network[Message] = Network(Graph.named("ring", 6), 2)
    sent = []
    for _ in range(50):
        network.deliver()
        message = Message(1)
        sent.append(weakref.ref(message))
        network.broadcast(0, message)
        del message
        # One for each hop that is left.
        assert sum(alive() is not None for alive in sent) <= 2
    assert len(network._flights) == 2


def test_what_is_no_network_is_refused():
    graph = Graph.named("line", 3)
    with pytest.raises(InputError, match="graph must be a Graph, got str"):
        Network("line", 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="time_to_live must be an integer >= 1, got 0"):
        Network(graph, 0)
    network: Network[Message] = Network(graph, 1)
    with pytest.raises(InputError, match="silo must be an integer >= 0 and <= 2, got 3"):
        network.broadcast(3, Message(1))
    with pytest.raises(InputError, match="message must have nbytes, got float"):
        network.broadcast(0, 1.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nbytes must be an integer >= 0, got -1"):
        network.broadcast(0, Message(-1))
    assert network.bytes_sent == 0 and network.deliver() == []
    for arguments in ((3, 1, 1), (-1, 1, 1), (0, -1, 1), (0, 1, 0)):
        with pytest.raises(InputError, match=r"(silo|hops|ttl) must be an integer >= "):
            graph.edges_crossed(*arguments)
