"""Arithmetic of a graph whose nodes are being removed: which edges keep the order of those that stay. No CUDA.

Removing a node connects each of its predecessors with each of its successors. A new edge takes the kind of the edge by
which the successor waited: whether a kernel may start before its predecessor has ended is a property of the kernel that
waits, as it is when a stream is captured.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class EdgeKind(IntEnum):
    """How strongly an edge orders two kernels; the lower value is the stronger."""

    FULL = 0
    """The target starts when the source has ended."""
    PROGRAMMATIC = 1
    """The target's blocks may become resident earlier, and wait inside the kernel."""


class Edge(NamedTuple):
    """Node `target` waits for node `source`; nodes are indices."""

    source: int
    target: int
    kind: EdgeKind


def bridge(edges: Iterable[Edge], removed: Iterable[int]) -> list[Edge]:
    """Edges among the nodes that stay, once `removed` are gone: each pair once, with the stronger kind."""
    incoming: dict[int, dict[int, EdgeKind]] = {}
    outgoing: dict[int, dict[int, EdgeKind]] = {}

    def connect(source: int, target: int, kind: EdgeKind) -> None:
        known = outgoing.setdefault(source, {}).get(target, kind)
        outgoing[source][target] = incoming.setdefault(target, {})[source] = min(known, kind)

    for edge in edges:
        connect(*edge)
    for node in removed:
        sources, targets = incoming.pop(node, {}), outgoing.pop(node, {})
        for source in sources:
            del outgoing[source][node]
        for target in targets:
            del incoming[target][node]
        for source in sources:
            for target, kind in targets.items():
                connect(source, target, kind)
    return [Edge(source, target, kind) for source, targets in outgoing.items() for target, kind in targets.items()]
