"""Floors of operations and the ceiling of a step: what physics allows on a given machine. No torch.

An operation cannot be faster than its bytes over the memory bandwidth, than its arithmetic over the peak of the unit
that does it, or than an empty node of a CUDA graph; an all-reduce not faster than the wire. The floor of an operation
is the larger of its first two times, plus the node, plus the wire.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from kernels.cost import Cost
from simulator.hardware import Hardware, Interconnect
from simulator.step.program import Op


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Least times in microseconds, by cause."""

    memory_us: float = 0.0
    compute_us: float = 0.0
    node_us: float = 0.0
    wire_us: float = 0.0
    total_us: float = 0.0
    """Not the sum of the four: bytes and arithmetic overlap, so the larger counts, operation by operation."""


def op_floor(cost: Cost, hardware: Hardware, *, pdl: bool, wire: Interconnect | None = None) -> Floor:
    """The floor of one operation; `wire` defaults to the machine's own interconnect."""
    bandwidth = hardware.bandwidth_gbps or float("inf")
    memory_us = cost.total_bytes / bandwidth / 1e3
    compute_us = sum(
        count / hardware.peak_tflops(dtype) / 1e6 for dtype, count in cost.flops.items() if hardware.peak_tflops(dtype)
    )
    node_us = hardware.node_floor_us(pdl=pdl)
    wire_us = (wire or hardware.interconnect).all_reduce_us(cost.wire_bytes) if cost.wire_bytes else 0.0
    if wire_us:
        # a published all-reduce latency is measured in a graph too: it holds the node and the local bytes already
        return Floor(wire_us=wire_us, total_us=max(wire_us, node_us))
    total_us = max(memory_us, compute_us) + node_us + cost.delay_us
    return Floor(memory_us=memory_us, compute_us=compute_us, node_us=node_us, total_us=total_us)


def sum_floors(floors: Iterable[Floor]) -> Floor:
    """Floors of operations that run one after another."""
    memory = compute = node = wire = total = 0.0
    for floor in floors:
        memory += floor.memory_us
        compute += floor.compute_us
        node += floor.node_us
        wire += floor.wire_us
        total += floor.total_us
    return Floor(memory_us=memory, compute_us=compute, node_us=node, wire_us=wire, total_us=total)


def step_floor(ops: Iterable[Op], hardware: Hardware, *, pdl: bool, wire: Interconnect | None = None) -> Floor:
    """The floor of operations run in sequence."""
    return sum_floors(op_floor(op.cost, hardware, pdl=pdl, wire=wire) for op in ops)


def bandwidth_ceiling_us(ops: Iterable[Op], hardware: Hardware) -> float:
    """Time to move the step's bytes once at the datasheet's bandwidth: no nodes, no wire."""
    total = sum(op.cost.total_bytes for op in ops)
    return total / (hardware.bandwidth_gbps or float("inf")) / 1e3
