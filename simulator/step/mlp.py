"""The order of one MLP: dense, or router, dispatch, routed and shared experts. No torch."""

from kernels import cost as costs
from kernels.tiling import dispatch_max_tiles, expert_tile_rows
from simulator.deployment import Overlap
from simulator.model import Scoring
from simulator.recipe import WeightFormat
from simulator.routing import Distribution, distinct_experts
from simulator.step import calls
from simulator.step.calls import Operand
from simulator.step.draft import whole
from simulator.step.plan import Plan
from simulator.step.program import Component


def mlp(plan: Plan, layer: int) -> None:
    """From `hidden` to this rank's partial `mlp_out`."""
    if plan.model.is_dense(layer):
        _dense_mlp(plan, layer)
        return
    norm_index = len(plan.draft.ops) - 1
    ids, weights = _router(plan, layer)
    shared_index = _shared_experts(plan, layer, norm_index) if plan.model.n_shared_experts else None
    _routed_experts(plan, layer, ids, weights, shared_index)


def _dense_mlp(plan: Plan, layer: int) -> None:
    draft, model, recipe = plan.draft, plan.model, plan.recipe
    formats = (recipe.dense_gate_up, recipe.dense_down)
    gate_up, down = _gated_weights(
        plan, "dense", layer, plan.shapes.dense_width_local, model.intermediate_size, formats
    )
    out = draft.buffer("mlp_out", draft.tokens, model.hidden_size)
    _gated_mlp(plan, "dense", layer, gate_up=gate_up, down=down, out=out)


def _shared_experts(plan: Plan, layer: int, norm_index: int) -> int | None:
    """Append the shared experts; on a stream of their own, the index of their last operation is returned."""
    draft, model, recipe = plan.draft, plan.model, plan.recipe
    formats = (recipe.shared_gate_up, recipe.shared_down)
    whole_width = model.n_shared_experts * model.moe_intermediate_size
    gate_up, down = _gated_weights(plan, "shared", layer, plan.shapes.shared_width_local, whole_width, formats)
    out = draft.buffer("shared_out", draft.tokens, model.hidden_size)
    if plan.deployment.overlap is Overlap.shared_experts:
        waits_for = (norm_index,)
        return _gated_mlp(plan, "shared", layer, gate_up=gate_up, down=down, out=out, stream=1, waits_for=waits_for)
    _gated_mlp(plan, "shared", layer, gate_up=gate_up, down=down, out=out)
    return None


def _gated_weights(
    plan: Plan, kind: str, layer: int, width: int, whole_width: int, formats: tuple[WeightFormat, WeightFormat]
) -> tuple[str, str]:
    """Declare this rank's share of gate and up in one matrix, and of down; returns their names."""
    draft, hidden = plan.draft, plan.model.hidden_size
    prefix = f"layers.{plan.weight_layer(layer)}.{kind}"
    gate_up = draft.weight(f"{prefix}_gate_up", 2 * width, hidden, weight_format=formats[0], replicated=False)
    down = draft.weight(f"{prefix}_down", hidden, width, weight_format=formats[1], replicated=False, fan_in=whole_width)
    return gate_up, down


def _gated_mlp(
    plan: Plan,
    kind: str,
    layer: int,
    *,
    gate_up: str,
    down: str,
    out: Operand,
    stream: int = 0,
    waits_for: tuple[int, ...] = (),
) -> int:
    """Gate and up in one GEMM, SwiGLU, down; returns the index of the last operation."""
    draft = plan.draft
    width = draft.weights[down].shape[-1]
    both = draft.buffer(f"{kind}_gate_up", draft.tokens, 2 * width)
    activated = draft.buffer(f"{kind}_activation", draft.tokens, width)
    draft.gemm(
        f"{kind}_gate_up",
        Component.EXPERTS,
        x=whole("hidden"),
        weight=gate_up,
        out=both,
        layer=layer,
        stream=stream,
        waits_for=waits_for,
    )
    call = calls.Swiglu(gate_up=both, out=activated)
    cost = costs.elementwise_cost(draft.bytes_of(both), draft.bytes_of(activated), 5 * draft.tokens * width)
    draft.add(f"{kind}_swiglu", Component.EXPERTS, call, cost, layer=layer, stream=stream)
    return draft.gemm(f"{kind}_down", Component.EXPERTS, x=activated, weight=down, out=out, layer=layer, stream=stream)


def _router(plan: Plan, layer: int) -> tuple[Operand, Operand]:
    """Append router logits and expert choice; returns the ids that dispatch follows, and the weights of the chosen."""
    draft, model = plan.draft, plan.model
    name = f"layers.{plan.weight_layer(layer)}.router"
    weight = draft.weight(
        name, model.n_routed_experts, model.hidden_size, weight_format=plan.recipe.router, replicated=True
    )
    logits = draft.buffer("router_logits", draft.tokens, model.n_routed_experts, dtype="fp32")
    draft.gemm("router", Component.ROUTER, x=whole("hidden"), weight=weight, out=logits, layer=layer)
    top_k = model.num_experts_per_tok
    bias = None
    if model.scoring_func is Scoring.sigmoid:
        # the load-balancing bias of sigmoid routers; softmax routers have none
        bias = draft.vector(f"{name}_bias", model.n_routed_experts, centre=0.0, std=0.05, dtype="fp32")
    call = calls.RouterTopk(
        logits=logits,
        bias=bias,
        ids=draft.buffer("router_ids", draft.tokens, top_k, dtype="int32"),
        weights=draft.buffer("router_weights", draft.tokens, top_k, dtype="fp32"),
        scoring=model.scoring_func,
        num_groups=model.n_group,
        topk_groups=model.topk_group,
        normalize=model.norm_topk_prob,
        scaling=model.routed_scaling_factor,
    )
    cost = costs.elementwise_cost(
        draft.bytes_of(logits) + 4 * model.n_routed_experts, draft.bytes_of(call.ids, call.weights)
    )
    draft.add("router_topk", Component.ROUTER, call, cost, layer=layer)
    if plan.routing.distribution is Distribution.from_router:
        return call.ids, call.weights
    planned = plan.expert_ids[layer - model.num_dense_layers]
    return draft.constant(f"layers.{layer}.expert_ids", planned, "int32"), call.weights


def _routed_experts(plan: Plan, layer: int, ids: Operand, weights: Operand, shared_index: int | None) -> None:
    """Append dispatch, the two grouped GEMMs with SwiGLU between, and the weighted sum into `mlp_out`."""
    draft, model, width = plan.draft, plan.model, plan.shapes.expert_width_local
    hidden, top_k, rows = model.hidden_size, model.num_experts_per_tok, draft.tokens * model.num_experts_per_tok
    tile_rows = expert_tile_rows(draft.tokens, top_k, model.n_routed_experts)
    max_tiles = dispatch_max_tiles(draft.tokens, top_k, model.n_routed_experts, tile_rows)
    # a layer keeps its own grouping: experts then read the same weights when dispatch is left out of a replay
    sorted_rows = draft.buffer(f"layers.{layer}.sorted_rows", max_tiles * tile_rows, dtype="int32")
    tile_experts = draft.buffer(f"layers.{layer}.tile_experts", max_tiles, dtype="int32")
    dispatch = calls.Dispatch(
        expert_ids=ids,
        num_experts=model.n_routed_experts,
        tile_rows=tile_rows,
        sorted_rows=sorted_rows,
        tile_experts=tile_experts,
    )
    cost = costs.elementwise_cost(draft.bytes_of(ids), draft.bytes_of(sorted_rows, tile_experts))
    draft.add("dispatch", Component.DISPATCH, dispatch, cost, layer=layer)

    prefix = f"layers.{plan.weight_layer(layer)}"
    distinct = distinct_experts(plan.expert_ids[layer - model.num_dense_layers])
    gate_up_weight = draft.weight(
        f"{prefix}.routed_gate_up",
        model.n_routed_experts,
        2 * width,
        hidden,
        weight_format=plan.recipe.routed_gate_up,
        replicated=False,
    )
    down_weight = draft.weight(
        f"{prefix}.routed_down",
        model.n_routed_experts,
        hidden,
        width,
        weight_format=plan.recipe.routed_down,
        replicated=False,
        fan_in=model.moe_intermediate_size,
    )
    both = draft.buffer("routed_gate_up", rows, 2 * width)
    activated = draft.buffer("routed_activation", rows, width)
    expert_out = draft.buffer("routed_out", rows, hidden)
    gate_up = calls.ExpertGemm(
        x=whole("hidden"),
        weight=gate_up_weight,
        sorted_rows=sorted_rows,
        tile_experts=tile_experts,
        tile_rows=tile_rows,
        rows_per_token=top_k,
        out=both,
    )
    draft.expert_gemm("routed_gate_up", gate_up, distinct_experts=distinct, rows=rows, layer=layer)
    cost = costs.elementwise_cost(draft.bytes_of(both), draft.bytes_of(activated), 5 * rows * width)
    draft.add("routed_swiglu", Component.EXPERTS, calls.Swiglu(gate_up=both, out=activated), cost, layer=layer)
    down = calls.ExpertGemm(
        x=activated,
        weight=down_weight,
        sorted_rows=sorted_rows,
        tile_experts=tile_experts,
        tile_rows=tile_rows,
        rows_per_token=1,
        out=expert_out,
    )
    draft.expert_gemm("routed_down", down, distinct_experts=distinct, rows=rows, layer=layer)

    out = draft.buffer("mlp_out", draft.tokens, hidden)
    shared = whole("shared_out") if model.n_shared_experts else None
    combine = calls.Combine(expert_out=expert_out, weights=weights, shared=shared, out=out)
    operands = (expert_out, weights, shared) if shared else (expert_out, weights)
    cost = costs.elementwise_cost(draft.bytes_of(*operands), draft.bytes_of(out), 2 * rows * hidden)
    waits_for = () if shared_index is None else (shared_index,)
    draft.add("combine", Component.DISPATCH, combine, cost, layer=layer, waits_for=waits_for)
