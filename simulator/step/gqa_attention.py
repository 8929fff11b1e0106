"""The order of one grouped-query attention layer, from `hidden` to this rank's partial `attention_out`. No torch."""

from kernels import cost as costs
from kernels.tiling import mla_num_splits
from simulator.step import calls
from simulator.step.draft import reshaped, whole
from simulator.step.plan import Plan
from simulator.step.program import Component, Fill
from simulator.step.rope_table import softmax_scale


def gqa_attention(plan: Plan, layer: int) -> None:
    """Fused qkv projection, bias, norms and rotation in one launch, cache write, attention, output projection."""
    draft, model, shapes, recipe = plan.draft, plan.model, plan.shapes, plan.recipe
    prefix = f"layers.{plan.weight_layer(layer)}"
    qkv = draft.weight(
        f"{prefix}.qkv", shapes.qkv_width_local, model.hidden_size, weight_format=recipe.attention_in, replicated=False
    )
    out = draft.buffer("qkv", draft.tokens, shapes.qkv_width_local)
    draft.gemm("qkv", Component.PROJECTIONS, x=whole("hidden"), weight=qkv, out=out, layer=layer)
    _prepare(plan, layer)
    _decode(plan, layer)
    o_proj = draft.weight(
        f"{prefix}.o_proj",
        model.hidden_size,
        shapes.o_proj_input_local,
        weight_format=recipe.attention_out,
        replicated=False,
        fan_in=model.num_attention_heads * model.head_dim,
    )
    out = draft.buffer("attention_out", draft.tokens, model.hidden_size)
    attended = reshaped("attention_heads", draft.tokens, shapes.o_proj_input_local)
    draft.gemm("o_proj", Component.PROJECTIONS, x=attended, weight=o_proj, out=out, layer=layer)


def _prepare(plan: Plan, layer: int) -> None:
    """Append what turns the fused projection into rotated heads."""
    draft, model, shapes = plan.draft, plan.model, plan.shapes
    prefix, head_dim = f"layers.{plan.weight_layer(layer)}", model.head_dim
    norms = [
        draft.vector(f"{prefix}.{name}", head_dim, centre=1.0, std=0.1) if model.use_qk_norm else None
        for name in ("query_norm", "key_norm")
    ]
    bias = None
    if model.attention_bias:
        bias = draft.vector(f"{prefix}.qkv_bias", shapes.qkv_width_local, centre=0.0, std=0.1)
    call = calls.QkvRope(
        qkv=whole("qkv"),
        bias=bias,
        query_norm=norms[0],
        key_norm=norms[1],
        eps=model.rms_norm_eps,
        positions=whole("positions"),
        cos_sin=whole("cos_sin"),
        interleaved=model.rope_interleave,
        query_out=draft.buffer("query", draft.tokens, shapes.num_heads_local, head_dim),
        key_out=draft.buffer("key", draft.tokens, shapes.num_key_heads_local, head_dim),
        value_out=draft.buffer("value", draft.tokens, shapes.num_key_heads_local, head_dim),
    )
    moved = draft.bytes_of(call.qkv)
    draft.add("qkv_rope", Component.ATTENTION, call, costs.elementwise_cost(moved, moved), layer=layer)


def _decode(plan: Plan, layer: int) -> None:
    """Append cache write, attention split over the keys, and the join of the splits."""
    draft, model, shapes = plan.draft, plan.model, plan.shapes
    tokens, heads, key_heads, head_dim = (
        draft.tokens,
        shapes.num_heads_local,
        shapes.num_key_heads_local,
        model.head_dim,
    )
    caches = [
        draft.buffer(f"layers.{plan.cache_layer(layer)}.{name}", plan.num_slots, key_heads, head_dim, fill=Fill.NORMAL)
        for name in ("key_cache", "value_cache")
    ]
    write = calls.GqaCacheWrite(
        key=whole("key"), value=whole("value"), slots=whole("slots"), key_cache=caches[0], value_cache=caches[1]
    )
    moved = draft.bytes_of(write.key, write.value)
    draft.add("kv_write", Component.ATTENTION, write, costs.elementwise_cost(moved, moved), layer=layer)
    splits = mla_num_splits(tokens, plan.keys_per_token)
    call = calls.GqaDecode(
        query=whole("query"),
        key_cache=caches[0],
        value_cache=caches[1],
        context_lengths=whole("context_lengths"),
        tokens_per_sequence=plan.deployment.tokens_per_step,
        slots_per_sequence=plan.slots_per_sequence,
        scale=softmax_scale(model),
        partial_out=draft.buffer("attention_partial", tokens, heads, splits, head_dim, dtype="fp32"),
        partial_lse=draft.buffer("attention_lse", tokens, heads, splits, dtype="fp32"),
    )
    cost = costs.attention_cost(
        tokens,
        heads,
        plan.num_keys,
        cached_rows=sum(plan.deployment.sequence_contexts),
        key_dim=head_dim,
        value_dim=head_dim,
        row_bytes=2 * key_heads * head_dim * costs.BYTES_OF_DTYPE[draft.activation],
        activation=draft.activation,
    )
    draft.add("gqa_decode", Component.ATTENTION, call, cost, layer=layer)
    out = draft.buffer("attention_heads", tokens, heads, head_dim)
    combine = calls.MlaCombine(partial_out=call.partial_out, partial_lse=call.partial_lse, out=out)
    cost = costs.elementwise_cost(draft.bytes_of(call.partial_out, call.partial_lse), draft.bytes_of(out))
    draft.add("attention_combine", Component.ATTENTION, combine, cost, layer=layer)
