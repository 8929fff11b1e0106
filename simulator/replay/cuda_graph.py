"""Replay on a GPU: the step is captured once, and subsets of it are pruned copies of the captured graph.

While capturing, every graph node is tagged with the operation that launched it. A subset is a clone of the graph from
which the other operations' nodes are bridged and destroyed. All subsets are instantiated first; then they are replayed
in turn, in a new random order each round, so that a drift of the clocks meets all of them alike. The stream that is
timed is the stream that replays.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import torch
from cuda.bindings import runtime as cudart

from simulator.replay.base import Advance, Enough, Kind, Samples, Subset
from simulator.replay.pruning import Edge, EdgeKind, bridge
from simulator.step.program import Op

HEAD_START_CYCLES = 4_000_000
"""About 2 ms: the GPU waits this long at the start of a round, so that launches are always queued ahead of it."""


class CudaError(RuntimeError):
    """A CUDA runtime call failed."""


def check(result: tuple[Any, ...]) -> Any:
    """What a CUDA runtime call returned, without its error code.

    Raises:
        CudaError: the call did not succeed; the message names the error.
    """
    error, *values = result
    if error != cudart.cudaError_t.cudaSuccess:
        _, name = cudart.cudaGetErrorName(error)
        _, text = cudart.cudaGetErrorString(error)
        raise CudaError(f"{name.decode()}: {text.decode()}")
    return values[0] if len(values) == 1 else values


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """A captured step: nodes by index, who owns each, and the edges between them."""

    holder: torch.cuda.CUDAGraph
    graph: Any
    nodes: Sequence[Any]
    owner_of_node: Sequence[int]
    edges: Sequence[Edge]

    def nodes_of(self, op: int) -> list[int]:
        """Indices of the nodes that one operation launched."""
        return [node for node, owner in enumerate(self.owner_of_node) if owner == op]


def capture(ops: Sequence[Op], launches: Sequence[Callable[[], None]], device: torch.device) -> CapturedGraph:
    """Capture all operations, forking to and joining from their streams as they say.

    The first error of a failed capture is the one raised; the capture is ended, so that the next one can begin.
    """
    holder = torch.cuda.CUDAGraph(keep_graph=True)
    streams = [torch.cuda.Stream(device) for _ in range(1 + max(op.stream for op in ops))]
    torch.cuda.synchronize(device)
    with torch.cuda.stream(streams[0]):
        # thread-local: other threads of the process (NCCL's watchdog) may call CUDA without breaking this capture
        holder.capture_begin(capture_error_mode="thread_local")
        try:
            tails = _launch_all(ops, launches, streams)
        except BaseException:
            _abandon(holder)
            raise
        holder.capture_end()
    graph = cudart.cudaGraph_t(init_value=holder.raw_cuda_graph())
    return _tagged(holder, graph, tails)


def _abandon(holder: torch.cuda.CUDAGraph) -> None:
    """End a capture that failed; what ending it reports is a consequence of the first error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
        try:
            holder.capture_end()
            holder.reset()
        except RuntimeError:
            cudart.cudaGetLastError()


def _launch_all(
    ops: Sequence[Op], launches: Sequence[Callable[[], None]], streams: Sequence[torch.cuda.Stream]
) -> list[set[int]]:
    """Launch everything under capture; returns the handles that each operation left at the tail of its stream."""
    awaited = {earlier for op in ops for earlier in op.waits_for}
    events: dict[int, torch.cuda.Event] = {}
    tails = []
    for index, (op, launch) in enumerate(zip(ops, launches, strict=True)):
        stream = streams[op.stream]
        for earlier in op.waits_for:
            stream.wait_event(events[earlier])
        with torch.cuda.stream(stream):
            launch()
        tails.append(_tail(stream))
        if index in awaited:
            events[index] = stream.record_event()
    for stream in streams[1:]:
        streams[0].wait_stream(stream)
    return tails


def _tail(stream: torch.cuda.Stream) -> set[int]:
    """Handles of the nodes that the next launch on a capturing stream would wait for."""
    _, _, _, dependencies, *_ = check(cudart.cudaStreamGetCaptureInfo(stream.cuda_stream))
    return {int(node) for node in dependencies}


def _tagged(holder: torch.cuda.CUDAGraph, graph: Any, tails: Sequence[set[int]]) -> CapturedGraph:
    """Give every node to the operation whose launch put it there: walk back from its tail to nodes already given."""
    _, num_nodes = check(cudart.cudaGraphGetNodes(graph))
    nodes, _ = check(cudart.cudaGraphGetNodes(graph, num_nodes))
    index_of = {int(node): index for index, node in enumerate(nodes)}
    edges = _edges(graph, index_of)
    sources: dict[int, list[int]] = {}
    for edge in edges:
        sources.setdefault(edge.target, []).append(edge.source)
    owner: dict[int, int] = {}
    for op, tail in enumerate(tails):
        pending = [index_of[handle] for handle in tail]
        while pending:
            node = pending.pop()
            if node not in owner:
                owner[node] = op
                pending += sources.get(node, [])
    missing = [index for index in range(num_nodes) if index not in owner]
    if missing:
        raise CudaError(f"{len(missing)} of {num_nodes} captured nodes belong to no operation")
    return CapturedGraph(
        holder=holder, graph=graph, nodes=nodes, owner_of_node=[owner[i] for i in range(num_nodes)], edges=edges
    )


def _edges(graph: Any, index_of: dict[int, int]) -> list[Edge]:
    """Edges of a graph by node index."""
    *_, num_edges = check(cudart.cudaGraphGetEdges(graph))
    if not num_edges:
        return []
    sources, targets, kinds, _ = check(cudart.cudaGraphGetEdges(graph, num_edges))
    programmatic = int(cudart.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic)
    return [
        Edge(
            index_of[int(source)],
            index_of[int(target)],
            EdgeKind.PROGRAMMATIC if int(kind.type) == programmatic else EdgeKind.FULL,
        )
        for source, target, kind in zip(sources, targets, kinds, strict=True)
    ]


def edge_data(kind: EdgeKind) -> Any:
    """CUDA's description of an edge: a programmatic one leaves its source at the port that the kernel triggers."""
    data = cudart.cudaGraphEdgeData()
    if kind is EdgeKind.PROGRAMMATIC:
        data.from_port = cudart.cudaGraphKernelNodePortProgrammatic
        data.type = cudart.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic
    return data


def instantiate_subset(captured: CapturedGraph, kept: Subset) -> Any:
    """An executable graph of the kept operations alone: clone, bridge, destroy, instantiate."""
    removed = [node for node, owner in enumerate(captured.owner_of_node) if owner not in kept]
    clone = check(cudart.cudaGraphClone(captured.graph))
    try:
        known = {(edge.source, edge.target) for edge in captured.edges}
        bridges = [edge for edge in bridge(captured.edges, removed) if (edge.source, edge.target) not in known]
        in_clone = {
            node: check(cudart.cudaGraphNodeFindInClone(captured.nodes[node], clone))
            for node in {*removed, *(edge.source for edge in bridges), *(edge.target for edge in bridges)}
        }
        if bridges:
            data = {kind: edge_data(kind) for kind in EdgeKind}
            check(
                cudart.cudaGraphAddDependencies(
                    clone,
                    [in_clone[edge.source] for edge in bridges],
                    [in_clone[edge.target] for edge in bridges],
                    [data[edge.kind] for edge in bridges],
                    len(bridges),
                )
            )
        for node in removed:
            check(cudart.cudaGraphDestroyNode(in_clone[node]))
        return check(cudart.cudaGraphInstantiate(clone, 0))
    finally:
        check(cudart.cudaGraphDestroy(clone))


@dataclass(kw_only=True)
class CudaGraphReplayer:
    """Measures subsets of a captured step by replaying pruned copies of its graph."""

    captured: CapturedGraph
    num_ops: int
    device: torch.device
    resources: object = None
    """Kept alive with the graph: the memory that its kernels work on."""
    extra_notes: Sequence[str] = ()
    seed: int = 0
    kind: Kind = Kind.MEASURED
    executables: dict[Subset, Any] = field(default_factory=dict)

    @property
    def nodes_of_op(self) -> Sequence[int]:
        """Graph nodes of each operation."""
        return [int(count) for count in np.bincount(self.captured.owner_of_node, minlength=self.num_ops)]

    @property
    def notes(self) -> Sequence[str]:
        """How the numbers were taken."""
        edges = self.captured.edges
        programmatic = sum(edge.kind is EdgeKind.PROGRAMMATIC for edge in edges)
        return (
            f"one capture of {len(self.captured.nodes)} graph nodes, {programmatic} of {len(edges)} edges "
            "programmatic; subsets are pruned copies, replayed in turn in random order",
            *self.extra_notes,
        )

    def measure(self, subsets: Sequence[Subset], *, enough: Enough, advance: Advance) -> Samples:
        """Instantiate every subset, replay each once unrecorded, then round after round until `enough`."""
        for done, subset in enumerate(subsets):
            if subset not in self.executables:
                self.executables[subset] = instantiate_subset(self.captured, subset)
            advance("prune and instantiate", done + 1, len(subsets))
        executables = [self.executables[subset] for subset in subsets]
        order = list(range(len(subsets)))
        shuffle = Random(self.seed).shuffle
        stream = torch.cuda.Stream(self.device)
        time_round(executables, order, stream)
        rounds: list[list[float]] = []
        while not rounds or not enough(np.array(rounds)):
            shuffle(order)
            rounds.append(time_round(executables, order, stream))
            advance("replay rounds", len(rounds), 0)
        return np.array(rounds)

    def replay(self, subset: Subset) -> None:
        """Replay one subset once and wait for it."""
        if subset not in self.executables:
            self.executables[subset] = instantiate_subset(self.captured, subset)
        stream = torch.cuda.Stream(self.device)
        check(cudart.cudaGraphLaunch(self.executables[subset], stream.cuda_stream))
        stream.synchronize()

    def close(self) -> None:
        """Destroy all executable graphs and the captured one."""
        torch.cuda.synchronize(self.device)
        for executable in self.executables.values():
            check(cudart.cudaGraphExecDestroy(executable))
        self.executables.clear()
        self.captured.holder.reset()
        self.resources = None
        torch.cuda.empty_cache()


def time_round(executables: Sequence[Any], order: Sequence[int], stream: torch.cuda.Stream) -> list[float]:
    """Replay each graph once in the given order; microseconds by position in `executables`."""
    starts = [torch.cuda.Event(enable_timing=True) for _ in executables]
    ends = [torch.cuda.Event(enable_timing=True) for _ in executables]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(HEAD_START_CYCLES)
    for index in order:
        starts[index].record(stream)
        check(cudart.cudaGraphLaunch(executables[index], stream.cuda_stream))
        ends[index].record(stream)
    stream.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in zip(starts, ends, strict=True)]


CHAIN_LENGTH = 100
CHAIN_REPLAYS = 15


def chain_us(launch: Callable[[], None], device: torch.device) -> float:
    """Median time of one of a chain of equal launches in a graph, in microseconds."""
    launch()
    torch.cuda.synchronize(device)
    holder = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(holder, capture_error_mode="thread_local"):
        for _ in range(CHAIN_LENGTH):
            launch()
    holder.instantiate()
    executable = cudart.cudaGraphExec_t(init_value=holder.raw_cuda_graph_exec())
    stream = torch.cuda.Stream(device)
    times = [time_round([executable], [0], stream)[0] for _ in range(CHAIN_REPLAYS)]
    holder.reset()
    return float(np.median(times)) / CHAIN_LENGTH
