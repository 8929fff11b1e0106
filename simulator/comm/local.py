"""Collectives of a group of one, on the CPU: the sum over all ranks is this rank's own share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class LocalCollectives:
    """Copies in place of collectives; they take no wire time."""

    tp_size: int
    rank: int = 0

    @property
    def note(self) -> str:
        """Says that nothing is sent."""
        if self.tp_size == 1:
            return "tp 1: collectives are copies"
        return f"one of {self.tp_size} ranks is run: collectives are copies of its own share, and take no wire time"

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        """A copy."""

        def launch() -> None:
            out.copy_(x)

        return launch

    def all_gather(self, parts: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]) -> Callable[[], None]:
        """A copy into this rank's rows."""

        def launch() -> None:
            for part, out in zip(parts, outs, strict=True):
                out[self.rank].copy_(part)

        return launch
