"""The words of a step: component, operation, buffer, weight, and the step that holds them. No torch.

A step is an ordered list of operations. Each knows its layer, its component, the tensors it works on (by name) and
its least work (`Cost`). It does not know how it is launched or timed: `step.launch` turns operations into launches, and
the replayers time them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels.cost import BYTES_OF_DTYPE, Cost, weight_bytes
from simulator.step.calls import Call


class Component(StrEnum):
    """What a reader attributes time to. Every operation belongs to exactly one."""

    PROJECTIONS = "projections"
    INDEXER = "indexer"
    ATTENTION = "attention"
    ROUTER = "router"
    DISPATCH = "dispatch"
    EXPERTS = "experts"
    ALLREDUCE = "allreduce"
    NORMS = "norms"
    HEAD = "head"


class Fill(StrEnum):
    """What a buffer holds before the first replay, where it is not given value by value."""

    ZEROS = "zeros"
    NORMAL = "normal"
    ONES = "ones"


@dataclass(frozen=True, kw_only=True)
class BufferSpec:
    """Memory an operation reads or writes: shape, dtype, and what it holds at first (`values` wins over `fill`)."""

    shape: tuple[int, ...]
    dtype: str
    fill: Fill = Fill.ZEROS
    values: npt.NDArray[Any] | None = None

    @property
    def num_bytes(self) -> int:
        """Size in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * BYTES_OF_DTYPE[self.dtype]


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """A weight [..., N, K]: shape, storage format, and the standard deviation of its synthetic values.

    `centre` is the mean of a one-dimensional weight: norms are ones, biases zeros. One-dimensional weights have
    format "fp32" or the activation's dtype.
    """

    shape: tuple[int, ...]
    weight_format: str
    std: float
    replicated: bool
    """Whether every rank holds all of it, rather than its share."""
    centre: float = 0.0

    @property
    def num_bytes(self) -> int:
        """Size in bytes, block scales included."""
        return weight_bytes(self.shape, self.weight_format)


@dataclass(frozen=True, kw_only=True)
class Op:
    """One kernel launch of the step."""

    name: str
    component: Component
    call: Call
    cost: Cost
    layer: int | None = None
    """None for what stands outside the layers: embedding, final norm, head, sampling."""
    stream: int = 0
    waits_for: tuple[int, ...] = ()
    """Indices of earlier operations on other streams that must have finished; its own stream's order is implied."""
    absorbed: tuple[str, ...] = ()
    """Names of the operations that were fused into this one."""

    @property
    def label(self) -> str:
        """Name with its layer, unique within a step: `q_b.17`."""
        return self.name if self.layer is None else f"{self.name}.{self.layer}"


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """One decode step of one rank: operations in launch order, and all the memory they use."""

    ops: tuple[Op, ...]
    buffers: Mapping[str, BufferSpec]
    weights: Mapping[str, WeightSpec]
    notes: tuple[str, ...] = ()
    tokens: int = 1
    """Tokens the step decodes: sequences times tokens a sequence."""
    sequences: int = 1
    activation: str = "bf16"

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights that are resident, whether read in one step or not."""
        return sum(spec.num_bytes for spec in self.weights.values())

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all activations, caches and workspaces."""
        return sum(spec.num_bytes for spec in self.buffers.values())


@dataclass(frozen=True, kw_only=True)
class Group:
    """A named set of operations whose time is attributed together."""

    name: str
    ops: frozenset[int]


def group_ops(ops: Sequence[Op], names: Iterable[str | None]) -> list[Group]:
    """Partition operations by a name each; groups come in order of first appearance, `None` leaves an operation out."""
    members: dict[str, set[int]] = {}
    for index, (_, name) in enumerate(zip(ops, names, strict=True)):
        if name is not None:
            members.setdefault(name, set()).add(index)
    return [Group(name=name, ops=frozenset(indices)) for name, indices in members.items()]


@dataclass(frozen=True, kw_only=True)
class StepTotals:
    """Sums over operations: what a table of costs prints."""

    bytes_read: int = 0
    bytes_written: int = 0
    wire_bytes: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)


def total_cost(ops: Iterable[Op]) -> StepTotals:
    """Sum of the costs of `ops`."""
    read = written = wire = 0
    flops: dict[str, int] = {}
    for op in ops:
        read += op.cost.bytes_read
        written += op.cost.bytes_written
        wire += op.cost.wire_bytes
        for dtype, count in op.cost.flops.items():
            flops[dtype] = flops.get(dtype, 0) + count
    return StepTotals(bytes_read=read, bytes_written=written, wire_bytes=wire, flops=flops)
