"""How many parameters a model has, and how many of them one token uses. No torch."""

from dataclasses import dataclass

from simulator.model import Attention, ModelSpec, Scoring


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Counts of the whole model, without multi-token-prediction layers."""

    total: int
    active: int
    """Used by one token: the chosen experts only, and the vocabulary projection but not the embedding table."""


def count_parameters(model: ModelSpec) -> Parameters:
    """Parameters by the shapes of the model."""
    hidden = model.hidden_size
    vocabulary = model.vocab_size * hidden
    total, active = 2 * vocabulary + hidden, vocabulary + hidden
    for layer in range(model.num_hidden_layers):
        shared = 2 * hidden + _attention(model, layer)
        if model.is_dense(layer):
            shared += 3 * hidden * model.intermediate_size
            total, active = total + shared, active + shared
            continue
        expert = 3 * hidden * model.moe_intermediate_size
        bias = model.n_routed_experts if model.scoring_func is Scoring.sigmoid else 0
        shared += model.n_shared_experts * expert + model.n_routed_experts * hidden + bias
        total += shared + model.n_routed_experts * expert
        active += shared + model.num_experts_per_tok * expert
    return Parameters(total=total, active=active)


def _attention(model: ModelSpec, layer: int) -> int:
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.attention is Attention.gqa:
        width = (heads + 2 * model.num_key_value_heads) * model.head_dim
        extras = width * model.attention_bias + 2 * model.head_dim * model.use_qk_norm
        return hidden * width + extras + heads * model.head_dim * hidden
    rank, latent = model.q_lora_rank, model.kv_lora_rank
    count = hidden * (rank + model.latent_dim) + rank + latent
    count += rank * heads * model.qk_head_dim + latent * heads * (model.qk_nope_head_dim + model.v_head_dim)
    count += heads * model.v_head_dim * hidden
    if model.has_indexer and model.has_full_indexer(layer):
        width = model.index_n_heads * model.index_head_dim
        count += rank * width + hidden * (model.index_head_dim + model.index_n_heads) + 2 * model.index_head_dim
    return count
