"""Bridging keeps exactly the order that the removed nodes carried."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.replay.pruning import Edge, EdgeKind, bridge

FULL, PROGRAMMATIC = EdgeKind.FULL, EdgeKind.PROGRAMMATIC


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(num_nodes) for b in range(a + 1, num_nodes)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    edges = [Edge(a, b, draw(st.sampled_from(list(EdgeKind)))) for a, b in chosen]
    removed = draw(st.sets(st.integers(0, num_nodes - 1)))
    return num_nodes, edges, removed


def reachable(edges, num_nodes):
    after = [set() for _ in range(num_nodes)]
    for source, target, _ in sorted(edges, reverse=True):
        after[source] |= {target} | after[target]
    return after


@given(graphs())
def test_order_among_kept_nodes_is_unchanged(graph):
    num_nodes, edges, removed = graph
    before, after = reachable(edges, num_nodes), reachable(bridge(edges, removed), num_nodes)
    for node in set(range(num_nodes)) - removed:
        assert after[node] == before[node] - removed


@given(graphs(), st.randoms(use_true_random=False))
def test_result_does_not_depend_on_the_order_of_removal(graph, random):
    _, edges, removed = graph
    shuffled = list(removed)
    random.shuffle(shuffled)
    assert sorted(bridge(edges, sorted(removed))) == sorted(bridge(edges, shuffled))


@given(graphs())
def test_no_pair_is_connected_twice(graph):
    _, edges, removed = graph
    pairs = [(edge.source, edge.target) for edge in bridge(edges, removed)]
    assert len(pairs) == len(set(pairs))
    assert not removed & {node for pair in pairs for node in pair}


def test_a_bridge_is_of_the_kind_by_which_the_waiting_kernel_waited():
    chain = [Edge(0, 1, FULL), Edge(1, 2, PROGRAMMATIC)]
    assert bridge(chain, [1]) == [Edge(0, 2, PROGRAMMATIC)]
    chain = [Edge(0, 1, PROGRAMMATIC), Edge(1, 2, FULL)]
    assert bridge(chain, [1]) == [Edge(0, 2, FULL)]


def test_a_full_edge_wins_over_a_programmatic_bridge_on_the_same_pair():
    edges = [Edge(0, 1, PROGRAMMATIC), Edge(1, 2, PROGRAMMATIC), Edge(0, 2, FULL)]
    assert bridge(edges, [1]) == [Edge(0, 2, FULL)]


def test_removing_one_branch_of_a_fork_and_join_leaves_the_other():
    edges = [Edge(0, 1, FULL), Edge(0, 2, FULL), Edge(1, 3, FULL), Edge(2, 3, FULL)]
    assert sorted(bridge(edges, [1])) == [Edge(0, 2, FULL), Edge(0, 3, FULL), Edge(2, 3, FULL)]


def test_removing_everything_leaves_nothing():
    assert bridge([Edge(0, 1, FULL)], [0, 1]) == []
