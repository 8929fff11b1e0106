"""Which experts a step hits. The plan is data, fixed before the step is built, so that it can be stated and repeated.

Synthetic router weights route unlike a trained model (a few experts win almost every token), and removing a component
must not change which experts the others read. So the router computes its own choice, as a real one does, while
dispatch follows this plan.
"""

from enum import StrEnum

import numpy as np
import numpy.typing as npt


class Distribution(StrEnum):
    """How tokens choose their experts."""

    UNIFORM = "uniform"


ExpertIds = npt.NDArray[np.int32]


def plan_expert_ids(*, num_layers: int, tokens: int, num_experts: int, top_k: int, seed: int) -> ExpertIds:
    """Experts of each token in each MoE layer, drawn uniformly without replacement: int32 [layers, tokens, top_k]."""
    generator = np.random.default_rng(seed)
    keys = generator.random((num_layers, tokens, num_experts), dtype=np.float32)
    return np.argpartition(keys, top_k - 1, axis=-1)[..., :top_k].astype(np.int32)


def distinct_experts(ids: ExpertIds) -> int:
    """Number of experts that at least one token of one layer chose; `ids` is [tokens, top_k]."""
    return int(np.unique(ids).size)


def expected_distinct_experts(num_experts: int, top_k: int, tokens: int) -> float:
    """Closed form for uniform routing: E (1 - (1 - k/E)^tokens)."""
    return num_experts * (1 - (1 - top_k / num_experts) ** tokens)


def describe_load(ids: ExpertIds, num_experts: int) -> str:
    """One sentence on a plan [layers, tokens, top_k]: distinct experts and how uneven the load is."""
    _, tokens, top_k = ids.shape
    distinct = np.mean([distinct_experts(layer) for layer in ids])
    expected = expected_distinct_experts(num_experts, top_k, tokens)
    counts = np.stack([np.bincount(layer.ravel(), minlength=num_experts) for layer in ids])
    peak = counts.max(axis=1).mean() / max(tokens * top_k / num_experts, 1e-9)
    return (
        f"routing: uniform over {num_experts} experts, {tokens} tokens x {top_k} choices hit {distinct:.1f} distinct "
        f"experts a layer on average (closed form {expected:.1f}); the busiest gets {peak:.1f} times the mean load"
    )
