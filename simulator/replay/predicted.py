"""Prediction: a discrete-event model of the step over a hardware profile. Needs no GPU, and no torch.

Each stream runs its operations in order; an operation starts when the one before it on its stream and those it waits
for have ended. It lasts as long as its node, plus the larger of bytes over achieved bandwidth and arithmetic over
achieved peak, plus the wire. Concurrent operations do not slow each other down in this model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.ceiling import op_floor
from simulator.hardware import Hardware, Interconnect
from simulator.replay.base import Advance, Enough, Kind, Samples, Subset
from simulator.step.program import Op


def predict_op_us(op: Op, hardware: Hardware, *, pdl: bool, wire: Interconnect | None = None) -> float:
    """Time of one operation at the efficiencies of the profile, in microseconds."""
    floor = op_floor(op.cost, hardware, pdl=pdl, wire=wire)
    if floor.wire_us:
        return floor.total_us
    work = max(floor.memory_us / hardware.read_efficiency, floor.compute_us / hardware.compute_efficiency)
    return floor.node_us + work + op.cost.delay_us


@dataclass(frozen=True, kw_only=True)
class PredictedReplayer:
    """Predicts the time of subsets of `ops` on `hardware`."""

    ops: tuple[Op, ...]
    hardware: Hardware
    pdl: bool = False
    wire: Interconnect | None = None
    kind: Kind = Kind.PREDICTED

    @property
    def nodes_of_op(self) -> Sequence[int]:
        """One node an operation."""
        return [1] * len(self.ops)

    @property
    def notes(self) -> Sequence[str]:
        """Where the numbers come from."""
        hardware = self.hardware
        return (
            f"predicted on {hardware.name}: {hardware.bandwidth_gbps:,.0f} GB/s x {hardware.read_efficiency:.0%} read, "
            f"{hardware.node_floor_us(pdl=self.pdl):.2f} us a graph node; nothing was run",
        )

    def measure(self, subsets: Sequence[Subset], *, enough: Enough, advance: Advance) -> Samples:
        """One round is enough: a prediction repeats itself exactly."""
        durations = [predict_op_us(op, self.hardware, pdl=self.pdl, wire=self.wire) for op in self.ops]
        return end_times(self.ops, durations, subsets)[None, :]

    def close(self) -> None:
        """Nothing is held."""


def end_times(ops: Sequence[Op], durations_us: Sequence[float], subsets: Sequence[Subset]) -> Samples:
    """When each subset ends, if its operations run as their streams and waits allow: microseconds [subsets].

    An operation that is left out takes no time and hands on the waits of those before it, as a bridged graph does. All
    subsets advance together, one operation at a time.
    """
    kept = np.zeros((len(ops), len(subsets)), dtype=bool)
    for column, subset in enumerate(subsets):
        kept[list(subset), column] = True
    num_streams = 1 + max((op.stream for op in ops), default=0)
    stream_end = np.zeros((num_streams, len(subsets)))
    ends = np.zeros((len(ops), len(subsets)))
    for index, op in enumerate(ops):
        start = stream_end[op.stream]
        for earlier in op.waits_for:
            start = np.maximum(start, ends[earlier])
        ends[index] = start + durations_us[index] * kept[index]
        stream_end[op.stream] = ends[index]
    return np.asarray(stream_end.max(axis=0))
