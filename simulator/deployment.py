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
    context: int = 4096
    weight_layers: int | None = None
    cache_layers: int | None = None
    overlap: Overlap = Overlap.none
    seed: int = 0
