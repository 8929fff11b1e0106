"""What a model is, as far as a decode step needs to know: sizes, attention kind, router, indexer.

Field names are those of a Hugging Face `config.json`, so that a user can compare the two side by side. No torch.
"""

from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """How a layer attends: multi-head latent attention, or grouped-query attention."""

    mla = "mla"
    gqa = "gqa"


class Scoring(StrEnum):
    """How the router turns logits into scores."""

    sigmoid = "sigmoid"
    softmax = "softmax"


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One decoder-only mixture-of-experts model. Zero means "the model has none" for counts of optional parts."""

    name: str
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling_factor: float = 1.0
    """YaRN: how many times longer than trained on; 1 means plain rotary embedding."""
    rope_original_max_position: int = 0
    rope_beta_fast: float = 32.0
    rope_beta_slow: float = 1.0
    rope_mscale: float = 1.0
    rope_mscale_all_dim: float = 0.0

    attention: Attention = Attention.mla
    num_attention_heads: int
    num_key_value_heads: int = 0
    """Key heads of grouped-query attention."""
    head_dim: int = 0
    """Width of a head of grouped-query attention."""
    partial_rotary_factor: float = 1.0
    """Share of a grouped-query head that rotates."""
    attention_bias: bool = False
    """Whether the fused qkv projection of grouped-query attention has a bias."""
    use_qk_norm: bool = False
    """Whether grouped-query attention normalises each query and key head."""
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    latent_norm_eps: float | None = None
    """Of the latents' norms; None: rms_norm_eps, as SGLang and vLLM have it (transformers has 1e-6)."""
    rope_interleave: bool = True

    index_topk: int = 0
    index_n_heads: int = 0
    index_head_dim: int = 0
    indexer_rope_interleave: bool = True
    index_topk_freq: int = 1
    index_skip_topk_offset: int = 0
    """From this layer on only every `index_topk_freq`-th layer has an indexer; the others use the last one's choice."""
    index_topk_pattern: str = ""
    """The same said layer by layer, F(ull) or S(hared); it wins where it is not empty."""

    intermediate_size: int
    first_k_dense_replace: int = 0
    n_routed_experts: int = 0
    num_experts_per_tok: int = 0
    n_shared_experts: int = 0
    moe_intermediate_size: int = 0
    scoring_func: Scoring = Scoring.sigmoid
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0

    @property
    def qk_head_dim(self) -> int:
        """Query and key width of one MLA head before absorption."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of one cached MLA row: the compressed latent and the shared rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def has_indexer(self) -> bool:
        """Whether attention reads only the `index_topk` positions that an indexer selects."""
        return self.index_topk > 0

    @property
    def rotary_dim(self) -> int:
        """Rotating dims of a head."""
        if self.attention is Attention.mla:
            return self.qk_rope_head_dim
        return int(self.head_dim * self.partial_rotary_factor)

    def has_full_indexer(self, layer: int) -> bool:
        """Whether the layer chooses its positions itself; a pattern decides where there is one.

        GLM-5.2 (freq 4, offset 3) does so in layers 0, 1, 2, 6, 10, ... 74: 21 of 78 (arXiv 2603.12201).
        """
        if self.index_topk_pattern:
            return self.index_topk_pattern[layer] == "F"
        if layer < self.index_skip_topk_offset:
            return True
        return (layer - self.index_skip_topk_offset + 1) % self.index_topk_freq == 0

    def is_dense(self, layer: int) -> bool:
        """Whether the layer's MLP is dense rather than a mixture of experts."""
        return layer < self.first_k_dense_replace or self.n_routed_experts == 0

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense MLP."""
        return sum(self.is_dense(layer) for layer in range(self.num_hidden_layers))
