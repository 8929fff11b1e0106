"""How the model is deployed: parallelism, batch, context, and what of it is held in memory. No torch."""

from dataclasses import dataclass
from enum import StrEnum


class Overlap(StrEnum):
    """What runs on a second stream beside the main one."""

    none = "none"
    shared_experts = "shared_experts"


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One decode step's setting.

    `weight_layers` and `cache_layers` bound how many layers' weights and caches are distinct in memory; further layers
    reuse them in turn. None keeps every layer its own.
    """

    tp: int = 8
    batch: int = 1
    """Sequences that are decoded together."""
    context: int = 4096
    """Cached tokens of each sequence, the newest one included."""
    contexts: list[int] | None = None
    """The same for each sequence by itself; then `context` does not count, and the batch is as long as this list."""
    tokens_per_step: int = 1
    """Tokens of each sequence that one step computes: above 1, the verification of speculated tokens."""
    weight_layers: int | None = None
    cache_layers: int | None = None
    overlap: Overlap = Overlap.none
    seed: int = 0

    @property
    def sequence_contexts(self) -> tuple[int, ...]:
        """Context of each sequence."""
        return tuple(self.contexts) if self.contexts is not None else (self.context,) * self.batch

    @property
    def num_sequences(self) -> int:
        """Sequences in the batch."""
        return len(self.sequence_contexts)

    @property
    def max_context(self) -> int:
        """The longest context of the batch."""
        return max(self.sequence_contexts)

    @property
    def token_contexts(self) -> tuple[int, ...]:
        """What each token attends to: those of a sequence see one position more each, the last one all of it."""
        newest = range(1 - self.tokens_per_step, 1)
        return tuple(context + offset for context in self.sequence_contexts for offset in newest)
