"""Per-rank sizes: the only place where anything is divided by the tensor-parallel size.

Sharding follows SGLang and vLLM: heads, MLP widths, and the vocabulary are split; the fused q_a/kv_a projection, the
indexer, the router and the latent cache are replicated on every rank.
"""

from dataclasses import dataclass

from simulator.model import Attention, ModelSpec
from simulator.recipe import Recipe, WeightFormat

NVFP4_BLOCK = 16
VOCAB_MULTIPLE = 64
"""Engines pad a vocabulary to a multiple of this (vLLM's DEFAULT_VOCAB_PADDING_SIZE)."""

EXPERT_TILE = 64
"""Grouped FP4 GEMMs of engines work on expert widths of whole tiles of this many rows."""

MAX_LISTED_TP = 64


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class RankShapes:
    """Sizes of one tensor-parallel rank; `_local` marks what differs from the whole model."""

    tp_size: int
    num_heads_local: int
    num_key_heads_local: int
    """Key heads of grouped-query attention; a head is replicated where there are more ranks than heads."""
    qkv_a_width: int
    qkv_width_local: int
    q_b_width_local: int
    o_proj_input_local: int
    dense_width_local: int
    expert_width_local: int
    expert_width_unpadded_local: int
    shared_width_local: int
    vocab_local: int
    vocab_padded: int


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One reason why a tensor-parallel size does not fit: the field to blame and a sentence."""

    field: str
    reason: str


def _quantised_inputs(model: ModelSpec, recipe: Recipe) -> list[tuple[str, int, WeightFormat, bool]]:
    """(field, K of the whole matrix, format, split over ranks?) of every matrix whose K must hold whole FP4 blocks."""
    inputs = [
        ("hidden_size", model.hidden_size, recipe.attention_in, False),
        ("hidden_size", model.hidden_size, recipe.lm_head, False),
    ]
    if model.attention is Attention.mla:
        attended = ("num_attention_heads * v_head_dim", model.num_attention_heads * model.v_head_dim)
        inputs.append(("q_lora_rank", model.q_lora_rank, recipe.attention_q_b, False))
    else:
        attended = ("num_attention_heads * head_dim", model.num_attention_heads * model.head_dim)
    inputs.append((*attended, recipe.attention_out, True))
    if model.has_indexer:
        inputs += [
            ("q_lora_rank", model.q_lora_rank, recipe.indexer, False),
            ("hidden_size", model.hidden_size, recipe.indexer, False),
        ]
    if model.num_dense_layers:
        inputs += [
            ("hidden_size", model.hidden_size, recipe.dense_gate_up, False),
            ("intermediate_size", model.intermediate_size, recipe.dense_down, True),
        ]
    if model.n_routed_experts:
        inputs += [
            ("hidden_size", model.hidden_size, recipe.router, False),
            ("hidden_size", model.hidden_size, recipe.routed_gate_up, False),
            ("moe_intermediate_size", model.moe_intermediate_size, recipe.routed_down, True),
        ]
    if model.n_shared_experts:
        inputs += [
            ("hidden_size", model.hidden_size, recipe.shared_gate_up, False),
            ("moe_intermediate_size", model.moe_intermediate_size * model.n_shared_experts, recipe.shared_down, True),
        ]
    return inputs


def refusals(model: ModelSpec, recipe: Recipe, tp_size: int) -> list[Refusal]:
    """Every reason why `tp_size` cannot hold this model with this recipe; empty when it can."""
    found = []
    divided = [("num_attention_heads", model.num_attention_heads)]
    if model.num_dense_layers:
        divided.append(("intermediate_size", model.intermediate_size))
    if model.n_routed_experts:
        divided.append(("moe_intermediate_size", model.moe_intermediate_size))
    key_heads = model.num_key_value_heads
    if model.attention is Attention.gqa and key_heads % tp_size and tp_size % key_heads:
        reason = f"num_key_value_heads={key_heads} and {tp_size} ranks: neither divides the other"
        found.append(Refusal(field="num_key_value_heads", reason=reason))
    for field, size in divided:
        if size % tp_size:
            found.append(Refusal(field=field, reason=f"{field}={size} / {tp_size} = {size / tp_size:g} is not whole"))
    for field, size, weight_format, is_split in _quantised_inputs(model, recipe):
        ranks = tp_size if is_split else 1
        if weight_format is WeightFormat.nvfp4 and size % ranks == 0 and (size // ranks) % NVFP4_BLOCK:
            share = f" / {ranks} = {size // ranks}" if ranks > 1 else ""
            reason = f"{field}={size}{share} must be a multiple of the NVFP4 block {NVFP4_BLOCK}"
            if all(refusal.reason != reason for refusal in found):
                found.append(Refusal(field=field, reason=reason))
    return found


def legal_tp_sizes(model: ModelSpec, recipe: Recipe) -> list[int]:
    """Tensor-parallel sizes up to 64 that can hold this model with this recipe."""
    return [size for size in range(1, MAX_LISTED_TP + 1) if not refusals(model, recipe, size)]


def rank_shapes(model: ModelSpec, recipe: Recipe, tp_size: int) -> RankShapes:
    """Sizes of one rank.

    Raises:
        ValueError: `tp_size` does not fit; the message says why and which sizes would.
    """
    problems = refusals(model, recipe, tp_size)
    if problems:
        reasons = "; ".join(problem.reason for problem in problems)
        raise ValueError(f"tp_size {tp_size}: {reasons}; legal sizes: {legal_tp_sizes(model, recipe)}")
    needs_padding = model.vocab_size % VOCAB_MULTIPLE or model.vocab_size % tp_size
    vocab = round_up(model.vocab_size, VOCAB_MULTIPLE * tp_size) if needs_padding else model.vocab_size
    expert_width = model.moe_intermediate_size // tp_size
    is_fp4 = WeightFormat.nvfp4 in (recipe.routed_gate_up, recipe.routed_down)
    num_heads = model.num_attention_heads // tp_size
    num_key_heads = -(-model.num_key_value_heads // tp_size)
    is_mla = model.attention is Attention.mla
    return RankShapes(
        tp_size=tp_size,
        num_heads_local=num_heads,
        num_key_heads_local=num_key_heads,
        qkv_a_width=model.q_lora_rank + model.latent_dim if is_mla else 0,
        qkv_width_local=0 if is_mla else (num_heads + 2 * num_key_heads) * model.head_dim,
        q_b_width_local=num_heads * model.qk_head_dim,
        o_proj_input_local=num_heads * (model.v_head_dim if is_mla else model.head_dim),
        dense_width_local=model.intermediate_size // tp_size,
        expert_width_local=round_up(expert_width, EXPERT_TILE) if is_fp4 else expert_width,
        expert_width_unpadded_local=expert_width,
        shared_width_local=model.n_shared_experts * model.moe_intermediate_size // tp_size,
        vocab_local=vocab // tp_size,
        vocab_padded=vocab,
    )
