"""The order of one attention layer: absorbed multi-head latent attention with a sparse indexer. No torch."""

from kernels import cost as costs
from kernels.tiling import index_topk_workspace_size, mla_num_splits
from simulator.recipe import CacheFormat
from simulator.step import calls
from simulator.step.calls import Operand
from simulator.step.draft import part, reshaped, whole
from simulator.step.plan import Plan
from simulator.step.program import Component, Fill
from simulator.step.rope_table import softmax_scale

INDEX_NORM_EPS = 1e-6
"""Of the index key's LayerNorm; fixed in every published implementation of the indexer."""


def attention(plan: Plan, layer: int) -> None:
    """Absorbed multi-head latent attention, from `hidden` to this rank's partial `attention_out`."""
    draft, model, shapes, recipe = plan.draft, plan.model, plan.shapes, plan.recipe
    weights = f"layers.{plan.weight_layer(layer)}"
    tokens, heads, latent = draft.tokens, shapes.num_heads_local, model.kv_lora_rank
    rank, nope = model.q_lora_rank, model.qk_nope_head_dim

    qkv_a = draft.weight(
        f"{weights}.qkv_a", shapes.qkv_a_width, model.hidden_size, weight_format=recipe.attention_in, replicated=True
    )
    out = draft.buffer("qkv_a", tokens, shapes.qkv_a_width)
    draft.gemm("qkv_a", Component.PROJECTIONS, x=whole("hidden"), weight=qkv_a, out=out, layer=layer)
    _latent_norm(plan, "q_a_norm", layer, part("qkv_a", 0, rank), rank)
    _latent_norm(plan, "kv_a_norm", layer, part("qkv_a", rank, rank + latent), latent)

    q_b = draft.weight(
        f"{weights}.q_b", shapes.q_b_width_local, rank, weight_format=recipe.attention_q_b, replicated=False
    )
    draft.buffer("q", tokens, shapes.q_b_width_local)
    draft.gemm("q_b", Component.PROJECTIONS, x=whole("q_a_norm"), weight=q_b, out=whole("q"), layer=layer)
    per_head = (tokens, heads, model.qk_head_dim)
    draft.buffer("query", tokens, heads, model.latent_dim)
    _rope(plan, layer, part("q", nope, model.qk_head_dim, per_head))
    absorb = draft.weight(f"{weights}.absorb_q", heads, latent, nope, weight_format=draft.activation, replicated=False)
    draft.head_gemm(
        "absorb_q", x=part("q", 0, nope, per_head), weight=absorb, out=part("query", 0, latent), layer=layer
    )
    _kv_write(plan, layer)

    selected = _indexer(plan, layer) if model.has_indexer else None
    _mla_decode(plan, layer, selected)
    value = draft.weight(
        f"{weights}.value_up", heads, model.v_head_dim, latent, weight_format=draft.activation, replicated=False
    )
    draft.buffer("attention_value", tokens, shapes.o_proj_input_local)
    draft.head_gemm(
        "value_up",
        x=whole("attention_latent"),
        weight=value,
        out=reshaped("attention_value", tokens, heads, model.v_head_dim),
        layer=layer,
    )
    o_proj = draft.weight(
        f"{weights}.o_proj",
        model.hidden_size,
        shapes.o_proj_input_local,
        weight_format=recipe.attention_out,
        replicated=False,
        fan_in=model.num_attention_heads * model.v_head_dim,
    )
    out = draft.buffer("attention_out", tokens, model.hidden_size)
    draft.gemm("o_proj", Component.PROJECTIONS, x=whole("attention_value"), weight=o_proj, out=out, layer=layer)


def _latent_norm(plan: Plan, name: str, layer: int, x: Operand, size: int) -> None:
    draft = plan.draft
    weight = draft.vector(f"layers.{plan.weight_layer(layer)}.{name}", size, centre=1.0, std=0.1)
    out = draft.buffer(name, draft.tokens, size)
    cost = costs.elementwise_cost(draft.bytes_of(x) + 2 * size, draft.bytes_of(out), 4 * draft.tokens * size)
    eps = plan.model.latent_norm_eps or plan.model.rms_norm_eps
    call = calls.RmsNorm(x=x, weight=weight, eps=eps, out=out)
    draft.add(name, Component.NORMS, call, cost, layer=layer)


def _rope(plan: Plan, layer: int, query: Operand) -> None:
    draft, model = plan.draft, plan.model
    latent, rope = model.kv_lora_rank, model.qk_rope_head_dim
    key_start = model.q_lora_rank + latent
    draft.buffer("key_rope", draft.tokens, rope)
    call = calls.Rope(
        query=query,
        key=part("qkv_a", key_start, key_start + rope, (draft.tokens, 1, plan.shapes.qkv_a_width)),
        positions=whole("positions"),
        cos_sin=whole("cos_sin"),
        query_out=part("query", latent, latent + rope),
        key_out=reshaped("key_rope", draft.tokens, 1, rope),
        interleaved=model.rope_interleave,
    )
    moved = draft.bytes_of(call.query, call.key)
    draft.add("rope", Component.ATTENTION, call, costs.elementwise_cost(moved, moved), layer=layer)


def _kv_write(plan: Plan, layer: int) -> None:
    draft, model = plan.draft, plan.model
    cache = draft.buffer(
        f"layers.{plan.cache_layer(layer)}.kv_cache", plan.num_slots, model.latent_dim, fill=Fill.NORMAL
    )
    call = calls.KvCacheWrite(latent=whole("kv_a_norm"), key_rope=whole("key_rope"), slots=whole("slots"), cache=cache)
    moved = draft.bytes_of(call.latent, call.key_rope)
    draft.add("kv_write", Component.ATTENTION, call, costs.elementwise_cost(moved, moved), layer=layer)


def _indexer(plan: Plan, layer: int) -> Operand:
    """Append the sparse indexer; returns the positions that attention reads.

    Where the context is no longer than top-k there is nothing to choose: engines write the index key, for later steps,
    and skip the rest.
    """
    draft, model, recipe = plan.draft, plan.model, plan.recipe
    if not model.has_full_indexer(layer):
        return whole(_last_selection(plan, layer))
    weights = f"layers.{plan.weight_layer(layer)}"
    heads, head_dim, tokens = model.index_n_heads, model.index_head_dim, draft.tokens
    key_weight = draft.weight(
        f"{weights}.index_k", head_dim + heads, model.hidden_size, weight_format=recipe.indexer, replicated=True
    )
    draft.buffer("index_k", tokens, head_dim + heads)
    draft.gemm("index_k", Component.INDEXER, x=whole("hidden"), weight=key_weight, out=whole("index_k"), layer=layer)
    cache_values, cache_scales = _index_key_write(plan, layer)
    if plan.attends_to_all:
        return whole("selected")

    query_weight = draft.weight(
        f"{weights}.index_q", heads * head_dim, model.q_lora_rank, weight_format=recipe.indexer, replicated=True
    )
    draft.buffer("index_q", tokens, heads * head_dim)
    draft.gemm(
        "index_q", Component.INDEXER, x=whole("q_a_norm"), weight=query_weight, out=whole("index_q"), layer=layer
    )
    cache_dtype = draft.buffers[cache_values.buffer].dtype
    query = calls.IndexQuery(
        query=reshaped("index_q", tokens, heads, head_dim),
        head_weights=part("index_k", head_dim, head_dim + heads),
        positions=whole("positions"),
        cos_sin=whole("cos_sin"),
        interleaved=model.indexer_rope_interleave,
        query_out=draft.buffer("index_query", tokens, heads, head_dim, dtype=cache_dtype),
        weights_out=draft.buffer("index_weights", tokens, heads, dtype="fp32"),
    )
    cost = costs.elementwise_cost(
        draft.bytes_of(query.query, query.head_weights), draft.bytes_of(query.query_out, query.weights_out)
    )
    draft.add("index_query", Component.INDEXER, query, cost, layer=layer)
    return _index_select(plan, layer, cache_values, cache_scales)


def _last_selection(plan: Plan, layer: int) -> str:
    """The buffer of the positions that the last layer with an indexer of its own chose."""
    if plan.attends_to_all:
        return "selected"
    full = max(earlier for earlier in range(layer) if plan.model.has_full_indexer(earlier))
    return f"layers.{full}.selected"


def _index_key_write(plan: Plan, layer: int) -> tuple[Operand, Operand]:
    draft, model = plan.draft, plan.model
    weights, cache = f"layers.{plan.weight_layer(layer)}", f"layers.{plan.cache_layer(layer)}"
    num_slots = plan.num_slots
    dtype = "fp8" if plan.recipe.index_cache is CacheFormat.fp8 else draft.activation
    call = calls.IndexKeyWrite(
        key=part("index_k", 0, model.index_head_dim),
        norm_weight=draft.vector(f"{weights}.index_k_norm", model.index_head_dim, centre=1.0, dtype="fp32"),
        norm_bias=draft.vector(f"{weights}.index_k_bias", model.index_head_dim, centre=0.0, dtype="fp32"),
        eps=INDEX_NORM_EPS,
        positions=whole("positions"),
        cos_sin=whole("cos_sin"),
        interleaved=model.indexer_rope_interleave,
        slots=whole("slots"),
        cache_values=draft.buffer(
            f"{cache}.index_cache", num_slots, model.index_head_dim, dtype=dtype, fill=Fill.NORMAL
        ),
        cache_scales=draft.buffer(f"{cache}.index_scales", num_slots, dtype="fp32", fill=Fill.ONES),
    )
    moved = draft.bytes_of(call.key)
    cost = costs.elementwise_cost(
        moved + 8 * model.index_head_dim, draft.tokens * (model.index_head_dim + costs.BYTES_OF_DTYPE["fp32"])
    )
    draft.add("index_key", Component.INDEXER, call, cost, layer=layer)
    return call.cache_values, call.cache_scales


def _index_select(plan: Plan, layer: int, cache_values: Operand, cache_scales: Operand) -> Operand:
    """Scores of all cached positions, then the positions of the largest."""
    draft, model, tokens = plan.draft, plan.model, plan.draft.tokens
    num_scores = sum(plan.deployment.token_contexts)
    logits = draft.buffer("index_logits", tokens, plan.slots_per_sequence, dtype="fp32")
    scores = calls.IndexLogits(
        query=whole("index_query"),
        weights=whole("index_weights"),
        cache_values=cache_values,
        cache_scales=cache_scales,
        context_lengths=whole("context_lengths"),
        tokens_per_sequence=plan.deployment.tokens_per_step,
        slots_per_sequence=plan.slots_per_sequence,
        out=logits,
    )
    cost = costs.index_logits_cost(
        num_scores,
        tokens,
        heads=model.index_n_heads,
        head_dim=model.index_head_dim,
        cached_keys=sum(plan.deployment.sequence_contexts),
        cache=draft.buffers[cache_values.buffer].dtype,
    )
    draft.add("index_logits", Component.INDEXER, scores, cost, layer=layer)
    # each layer keeps its own choice: attention then reads the same rows when the indexer is left out of a replay
    selected = draft.buffer(f"layers.{layer}.selected", tokens, model.index_topk, dtype="int32")
    workspace_size = index_topk_workspace_size(tokens, plan.slots_per_sequence, model.index_topk)
    choice = calls.IndexTopk(
        logits=logits,
        context_lengths=whole("context_lengths"),
        selected=selected,
        workspace=draft.buffer("index_workspace", workspace_size, dtype="int32"),
    )
    cost = costs.elementwise_cost(4 * num_scores, draft.bytes_of(selected))
    draft.add("index_topk", Component.INDEXER, choice, cost, layer=layer)
    return selected


def _mla_decode(plan: Plan, layer: int, selected: Operand | None) -> None:
    draft, model, heads = plan.draft, plan.model, plan.shapes.num_heads_local
    tokens, latent = draft.tokens, model.kv_lora_rank
    splits = mla_num_splits(tokens, plan.keys_per_token)
    call = calls.MlaDecode(
        query=whole("query"),
        cache=whole(f"layers.{plan.cache_layer(layer)}.kv_cache"),
        selected=selected,
        context_lengths=whole("context_lengths"),
        tokens_per_sequence=plan.deployment.tokens_per_step,
        slots_per_sequence=plan.slots_per_sequence,
        scale=softmax_scale(model),
        partial_out=draft.buffer("attention_partial", tokens, heads, splits, latent, dtype="fp32"),
        partial_lse=draft.buffer("attention_lse", tokens, heads, splits, dtype="fp32"),
    )
    cost = costs.attention_cost(
        tokens,
        heads,
        plan.num_keys,
        cached_rows=plan.num_keys if model.has_indexer else sum(plan.deployment.sequence_contexts),
        key_dim=model.latent_dim,
        value_dim=latent,
        row_bytes=model.latent_dim * costs.BYTES_OF_DTYPE[draft.activation],
        activation=draft.activation,
    )
    draft.add("mla_decode", Component.ATTENTION, call, cost, layer=layer)
    out = draft.buffer("attention_latent", tokens, heads, latent)
    combine = calls.MlaCombine(partial_out=call.partial_out, partial_lse=call.partial_lse, out=out)
    cost = costs.elementwise_cost(draft.bytes_of(call.partial_out, call.partial_lse), draft.bytes_of(out))
    draft.add("mla_combine", Component.ATTENTION, combine, cost, layer=layer)
