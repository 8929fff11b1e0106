"""Which weights are stored in which format: the quantisation recipe of a checkpoint.

`kv_b` has no entry: engines absorb it into the query and the output, and keep those two factors in BF16 whatever the
checkpoint holds (SGLang and vLLM dequantise it at load time). Norms, biases and the embedding are never quantised.
"""

from dataclasses import dataclass
from enum import StrEnum


class WeightFormat(StrEnum):
    """How one matrix is stored."""

    nvfp4 = "nvfp4"
    fp8 = "fp8"
    bf16 = "bf16"


class CacheFormat(StrEnum):
    """How a cache row is stored."""

    fp8 = "fp8"
    bf16 = "bf16"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Weight format of each kind of matrix, and the format of the index-key cache."""

    name: str
    attention_in: WeightFormat = WeightFormat.bf16
    """Fused q_a and kv_a projection of MLA, or the fused qkv projection of grouped-query attention."""
    attention_q_b: WeightFormat = WeightFormat.bf16
    attention_out: WeightFormat = WeightFormat.bf16
    indexer: WeightFormat = WeightFormat.bf16
    router: WeightFormat = WeightFormat.bf16
    routed_gate_up: WeightFormat = WeightFormat.bf16
    routed_down: WeightFormat = WeightFormat.bf16
    shared_gate_up: WeightFormat = WeightFormat.bf16
    shared_down: WeightFormat = WeightFormat.bf16
    dense_gate_up: WeightFormat = WeightFormat.bf16
    dense_down: WeightFormat = WeightFormat.bf16
    lm_head: WeightFormat = WeightFormat.bf16
    index_cache: CacheFormat = CacheFormat.fp8
