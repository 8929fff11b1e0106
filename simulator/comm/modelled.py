"""Collectives of a rank whose peers are absent: each takes the time of a real one, by the GPU's global timer.

The value is this rank's partial sum alone: the other ranks' shares do not exist. Time is what is modelled, not data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kernels.delay import delay
from simulator.hardware import Interconnect


@dataclass(frozen=True, kw_only=True)
class ModelledCollectives:
    """Delay kernels in place of collectives.

    `launch_us` is the time that the delay kernel takes in a graph beyond its wait, measured on this GPU; the wait is
    shortened by it, so that an all-reduce takes as long as the interconnect says.
    """

    wire: Interconnect
    launch_us: float
    num_ranks: int = 8
    rank: int = 0
    pdl: bool = False

    @property
    def note(self) -> str:
        """Says that nothing is sent."""
        if self.num_ranks == 1:
            return "tp 1: collectives are copies"
        like = self.wire.name or "the interconnect"
        latency_us = self.wire.all_reduce_us(0)
        return (
            f"collectives are modelled: each waits as {like} would, {latency_us:.2f} us plus its bytes, by the GPU's "
            "timer; no other rank takes part, and the sums are this rank's share alone"
        )

    def wait_ns(self, payload_bytes: int) -> int:
        """Nanoseconds that the kernel waits for a payload."""
        return max(0, round((self.wire.all_reduce_us(payload_bytes) - self.launch_us) * 1e3))

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """A copy that takes as long as an all-reduce."""
        return partial(delay, x=x, out=out, wait_ns=self.wait_ns(x.numel() * x.element_size()), pdl=self.pdl)

    def all_gather(self, parts: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Copies into this rank's rows, the first of which takes as long as a gather."""
        payload = sum(part.numel() * part.element_size() for part in parts)
        waits = [self.wait_ns(payload)] + [0] * (len(parts) - 1)
        copies = [
            partial(delay, x=part, out=out[self.rank], wait_ns=wait, pdl=self.pdl)
            for part, out, wait in zip(parts, outs, waits, strict=True)
        ]

        def launch() -> None:
            for copy in copies:
                copy()

        return launch
