"""Graphs, clique covers and the network of FedUCB without a server agree with the oracle.

The one statistical test has fixed seeds; it fails by chance with probability 1e-6.
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
    """A message of this number of bytes."""

    nbytes: int
    number: int = 0


def adjacency(graph: Graph) -> np.ndarray:
    """Return the adjacency matrix (M, M) of a graph."""
    matrix = np.zeros((graph.silos, graph.silos), dtype=int)
    for i, j in graph.edges:
        matrix[i, j] = matrix[j, i] = 1
    return matrix


def random_graphs(count: int, largest: int = 9):
    """Yield small random graphs of every density, some of them trees, and the named graphs."""
    draw = np.random.default_rng(20200603)
    for seed in range(count):
        silos = int(draw.integers(1, largest + 1))
        density = float(draw.choice([0.0, 0.1, 0.3, 0.7]))
        yield Graph.named("random", silos, seed, probability=density)
    for name in GRAPHS:
        for silos in (1, 2, 3, 7):
            yield Graph.named(name, silos)


# ---- graphs -------------------------------------------------------------------------------------


def test_named_graphs_have_their_edges_and_diameters():
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


def test_distances_agree_with_the_oracle():
    for graph in random_graphs(60):
        expected = oracle.distances(adjacency(graph))
        np.testing.assert_array_equal(graph.distances, expected)
        assert graph.diameter == expected.max() and expected.min() == 0
        assert [len(n) for n in graph.neighbours] == adjacency(graph).sum(axis=1).tolist()


def test_random_graphs_add_only_the_edges_that_connect_them():
    connected = set()
    for seed in range(60):
        silos, density = 3 + seed % 8, (0.05, 0.3, 0.6)[seed % 3]
        uniforms = np.zeros((silos, silos))
        for i in range(1, silos):
            uniforms[i, :i] = rng.random_u32(seed, INSTANCE, 0, i, 0, i) / 2.0**32
        chosen = np.tril(uniforms < density, -1)
        components = connected_components(chosen)[0]
        connected.add(components == 1)
        graph = Graph.named("random", silos, seed, probability=density)
        assert {(int(j), int(i)) for i, j in np.argwhere(chosen)} <= set(graph.edges)
        assert len(graph.edges) == chosen.sum() + components - 1
        denser = Graph.named("random", silos, seed, probability=density + 0.2)
        assert set(graph.edges) <= set(denser.edges)
    assert connected == {True, False}
    assert len(Graph.named("random", 40, 5, probability=0.0).edges) == 39
    assert Graph.named("random", 12, probability=1.0) == Graph.named("complete", 12)


def test_every_pair_of_silos_is_linked_with_equal_probability():
    """12 silos at 0.6 are connected except with probability 5e-4, so edges are Bernoulli(0.6)."""
    silos, density, count = 12, 0.6, 300
    link_counts = sum(
        adjacency(Graph.named("random", silos, seed, probability=density)) for seed in range(count)
    )[np.triu_indices(silos, 1)]
    z = (link_counts - count * density) / np.sqrt(count * density * (1 - density))
    assert np.sum(z**2) < stats.chi2.isf(FALSE_ALARM / 2, len(z))
    assert np.sum(z**2) > stats.chi2.ppf(FALSE_ALARM / 2, len(z))


def test_a_random_graph_is_a_function_of_the_seed():
    graphs = [Graph.named("random", 10, seed) for seed in range(20)]
    assert graphs == [Graph.named("random", 10, seed) for seed in range(20)]
    assert len(set(graphs)) == 20
    default_density = 2 * np.log(10) / 10
    assert graphs[3] == Graph.named("random", 10, 3, probability=default_density)


def test_a_spec_may_name_a_graph_or_list_its_edges():
    line = Graph.named("line", 3)
    assert Graph.of("line", 3) == Graph.of([[1, 2], [0, 1]], 3) == Graph.of(line, 3) == line
    assert Graph.of(np.array([[1, 2], [0, 1]]), 3) == line
    assert Graph.of("random", 10, 4) == Graph.named("random", 10, 4)
    # A multigraph like those of networkx has unordered nodes and edges with keys.
    multigraph = SimpleNamespace(nodes=[2, 0, np.int64(1)], edges=[(0, 1, 0), (1, 0, 1), (2, 1, 0)])
    assert Graph.of(multigraph, 3) == Graph.from_networkx(multigraph) == line


def test_graphs_of_networkx_are_converted():
    networkx = pytest.importorskip("networkx")
    graph = networkx.petersen_graph()
    converted = Graph.of(graph, 10)
    assert (len(converted.edges), converted.diameter) == (15, 2)
    for i, hops in networkx.all_pairs_shortest_path_length(graph):
        assert converted.distances[i].tolist() == [hops[j] for j in range(10)]
    assert Graph.from_networkx(networkx.MultiGraph(graph)) == converted
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
def test_bad_graphs_are_refused(value, silos, message):
    with pytest.raises(InputError, match=message):
        Graph.of(value, silos)


def test_only_random_graphs_have_a_probability():
    with pytest.raises(InputError, match='probability is for the graph "random" only, got 0'):
        Graph.named("ring", 4, probability=0.5)
    with pytest.raises(InputError, match=r"probability must be >= 0 and <= 1, got 1\.5"):
        Graph.named("random", 4, probability=1.5)
    with pytest.raises(InputError, match="seed must be an integer >= 0"):
        Graph.named("random", 4, -1)


# ---- cliques ------------------------------------------------------------------------------------


def test_cliques_are_a_partition_and_cliques_of_the_power_graph():
    for graph in random_graphs(60):
        matrix = adjacency(graph)
        for gamma in range(1, graph.diameter + 2):
            cliques = graph.cliques(gamma)
            assert cliques == graph.cliques(gamma) == tuple(sorted(cliques))
            members = oracle.clique_of(matrix, gamma, cliques)
            assert [tuple(clique) for clique in members] == [
                next(clique_of_silo for clique_of_silo in cliques if i in clique_of_silo)
                for i in range(graph.silos)
            ]
            if gamma >= graph.diameter:
                assert cliques == (tuple(range(graph.silos)),)
            # No two cliques can be merged.
            power = oracle.graph_power(matrix, gamma) + np.eye(graph.silos, dtype=int)
            assert not any(
                power[np.ix_(a, b)].all() for a in cliques for b in cliques if a is not b
            )


def greedy(hops: np.ndarray, gamma: int) -> list[list[int]]:
    """Return the cliques of the documented rule, with all counts computed again at each step."""
    partners = {i: {j for j in range(len(hops)) if hops[i, j] <= gamma} for i in range(len(hops))}
    uncovered, cliques = set(partners), []
    while uncovered:
        uncovered_partners = {i: len(partners[i] & uncovered) for i in uncovered}
        clique = [min(uncovered, key=lambda i: (uncovered_partners[i], i))]
        while True:
            candidates = set.intersection(uncovered, *(partners[i] for i in clique)) - set(clique)
            if not candidates:
                break
            clique.append(
                min(
                    candidates,
                    key=lambda i: (-len(partners[i] & candidates), uncovered_partners[i], i),
                )
            )
        uncovered -= set(clique)
        cliques.append(sorted(clique))
    return sorted(cliques)


def test_cliques_follow_the_documented_rule():
    for seed in range(40):
        graph = Graph.named("random", 22, seed, probability=(0.0, 0.15, 0.4)[seed % 3])
        for gamma in (1, 2, 3):
            expected = greedy(graph.distances, gamma)
            assert [list(clique) for clique in graph.cliques(gamma)] == expected


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("silos", [1, 2, 6, 7, 12, 23])
def test_cliques_are_the_fewest_on_simple_graphs(silos, gamma):
    """Cliques are gamma + 1 silos in a row on line and ring, and centre and leaf on a star."""
    pieces = -(-silos // (gamma + 1))
    assert len(Graph.named("line", silos).cliques(gamma)) == pieces
    if silos > 3 * gamma:  # in a smaller ring, three silos around it may be a clique
        assert len(Graph.named("ring", silos).cliques(gamma)) == pieces
    star = Graph.named("star", silos).cliques(gamma)
    assert len(star) == (max(1, silos - 1) if gamma == 1 else 1)
    assert Graph.named("complete", silos).cliques(gamma) == (tuple(range(silos)),)


def test_paths_may_leave_a_clique():
    """Two leaves of a star are two hops apart; their path leads through another clique."""
    star = Graph.named("star", 4)
    assert star.checked_cliques([[3, 1], [2, 0]], 2) == ((0, 2), (1, 3))


def test_given_clique_covers_are_checked_as_by_the_oracle():
    draw = np.random.default_rng(7)
    verdicts = set()
    for graph in random_graphs(60):
        gamma = int(draw.integers(1, 4))
        labels = draw.integers(0, 3, size=graph.silos)
        cliques = [np.flatnonzero(labels == label).tolist() for label in set(labels.tolist())]
        try:
            expected = oracle.clique_of(adjacency(graph), gamma, cliques)
        except ValueError:
            with pytest.raises(InputError, match=f"must be at most {gamma} hops apart, got"):
                graph.checked_cliques(cliques, gamma)
            verdicts.add("refused")
            continue
        assert {tuple(clique) for clique in expected} == set(graph.checked_cliques(cliques, gamma))
        verdicts.add("accepted")
    assert verdicts == {"refused", "accepted"}


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
def test_bad_clique_covers_are_refused(cover, message):
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


def test_the_network_delivers_messages_as_the_oracle_does():
    """Messages arrive in the same rounds and order; sent bytes are equal after every round."""
    draw = np.random.default_rng(11)
    arrival_count = 0
    for graph in random_graphs(50):
        gamma = int(draw.integers(1, 6))
        network: Network[oracle.Request] = Network(graph, gamma)
        oracle_network = oracle.Network(adjacency(graph), gamma)
        for t in range(1, 15):
            expected = oracle_network.deliver()
            arrivals = network.deliver()
            assert [(i, message.number) for i, message in arrivals] == [
                (i, message.round) for i, message in expected
            ]
            arrival_count += len(arrivals)
            for silo in draw.permutation(graph.silos)[: draw.integers(0, 3)]:
                number = 100 * t + int(silo)
                # A request of the oracle has 24 bytes.
                network.broadcast(int(silo), Message(24, number))
                oracle_network.broadcast(int(silo), oracle.Request(int(silo), 0, number))
            assert network.bytes_sent == oracle_network.bytes_sent
    assert arrival_count > 1000


def test_a_message_arrives_after_one_round_per_hop():
    for graph in random_graphs(30):
        for gamma in (1, 2, 4):
            network: Network[Message] = Network(graph, gamma)
            message = Message(1)
            network.broadcast(0, message)
            for hop in range(1, graph.silos + 2):
                expected_silos = np.flatnonzero(graph.distances[0] == hop) if hop <= gamma else []
                arrivals = network.deliver()
                assert sorted(i for i, _ in arrivals) == list(expected_silos)
                assert all(arrived is message for _, arrived in arrivals)


def test_sent_bytes_agree_with_edges_crossed():
    """The agreement holds after any number of rounds, as a horizon may end a run."""
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


def test_a_plan_has_the_edges_crossed_from_every_silo():
    """The plan computes all silos at once: one by one, many silos would take minutes."""
    for graph in random_graphs(20):
        for gamma in (1, 2, graph.diameter + 4):
            crossings = PeerPlan(graph, gamma, 9, 2, ()).crossings
            assert crossings.shape == (graph.silos, gamma + 1)
            for silo, crossings_of_silo in enumerate(crossings):
                assert [graph.edges_crossed(silo, hops, gamma) for hops in range(gamma + 1)] == [
                    *crossings_of_silo
                ]


def test_bytes_of_a_run_stop_at_the_horizon():
    graph, gamma, horizon = Graph.named("random", 8, 2, probability=0.1), 3, 9
    assert graph.diameter > gamma
    broadcasts = [(t, (3 * t) % 8, 10 + t) for t in range(1, horizon + 1)]
    network: Network[Message] = Network(graph, gamma)
    for _, silo, size in broadcasts:
        network.deliver()
        network.broadcast(silo, Message(size))
    assert network.bytes_sent == sum(
        size * graph.edges_crossed(silo, min(gamma, horizon - t + 1), gamma)
        for t, silo, size in broadcasts
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
    # A message is dropped when its time to live ends, or when every silo has received it.
    [("line", 6, 2, 2), ("line", 6, 99, 5), ("complete", 4, 9, 1), ("line", 1, 3, 0)],
)
def test_delivered_messages_are_dropped_from_memory(name, silos, gamma, rounds):
    network: Network[Message] = Network(Graph.named(name, silos), gamma)
    message = Message(1)
    message_reference = weakref.ref(message)
    network.broadcast(0, message)
    del message
    for _ in range(rounds):
        assert message_reference() is not None
        network.deliver()
    assert message_reference() is None


def test_memory_does_not_grow_with_rounds():
    network: Network[Message] = Network(Graph.named("ring", 6), 2)
    message_references = []
    for _ in range(50):
        network.deliver()
        message = Message(1)
        message_references.append(weakref.ref(message))
        network.broadcast(0, message)
        del message
        # At most one message for each of the two hops is in flight.
        assert sum(reference() is not None for reference in message_references) <= 2
    assert len(network._flights) == 2


def test_bad_arguments_of_a_network_are_refused():
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
