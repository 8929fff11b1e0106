"""What a step asks of its collectives: a launch for each all-reduce and each gather, made once, before capture."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Collectives(Protocol):
    """Makes launches of collectives over the tensor-parallel group."""

    @property
    def note(self) -> str:
        """What a reader must know about these collectives."""

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """A launch that sums `x` over all ranks into `out`."""

    def all_gather(self, parts: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> Callable[[], None]:
        """A launch that writes every rank's `parts[i]` to row `rank` of `outs[i]`."""
