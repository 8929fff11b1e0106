"""From a model and a deployment to one rank's decode step: inputs, embedding, layers, head, in order. No torch.

The order and the split over ranks follow what SGLang and vLLM launch for GLM-5 and DeepSeek-V3.2; `attention.py` and
`mlp.py` hold the order inside a layer. No operation reads a buffer that it writes, so replaying a step twice gives the
same bits, and any operation can be left out without changing what another one has to do.
"""

import numpy as np

from kernels import cost as costs
from simulator.deployment import Deployment
from simulator.model import Attention, ModelSpec
from simulator.recipe import Recipe
from simulator.routing import Routing, describe_load, plan_expert_ids
from simulator.shapes import rank_shapes, round_up
from simulator.step import calls
from simulator.step.attention import attention
from simulator.step.calls import Operand
from simulator.step.draft import Draft, whole
from simulator.step.gqa_attention import gqa_attention
from simulator.step.mlp import mlp
from simulator.step.plan import Plan
from simulator.step.program import Component, DecodeStep
from simulator.step.rope_table import rope_table

DEFAULT_ROUTING = Routing()

SLOT_MULTIPLE = 64
"""Cache slots of a sequence come in whole pages of this many tokens, as in SGLang and vLLM."""


def build_step(
    model: ModelSpec,
    recipe: Recipe,
    deployment: Deployment,
    routing: Routing = DEFAULT_ROUTING,
    *,
    activation: str = "bf16",
    tp_rank: int = 0,
) -> DecodeStep:
    """The decode step of rank `tp_rank`; `activation` is the dtype of everything that is neither weight nor index.

    Raises:
        ValueError: the tensor-parallel size does not fit the model.
    """
    shapes = rank_shapes(model, recipe, deployment.tp)
    tokens = len(deployment.token_contexts)
    draft = Draft(activation=activation, tokens=tokens)
    num_moe_layers = model.num_hidden_layers - model.num_dense_layers
    expert_ids = plan_expert_ids(
        routing,
        num_layers=num_moe_layers,
        tokens=tokens,
        num_experts=max(model.n_routed_experts, 1),
        top_k=max(model.num_experts_per_tok, 1),
        seed=deployment.seed,
    )
    plan = Plan(
        draft=draft,
        model=model,
        recipe=recipe,
        deployment=deployment,
        shapes=shapes,
        routing=routing,
        expert_ids=expert_ids,
        slots_per_sequence=round_up(deployment.max_context, SLOT_MULTIPLE),
    )
    _declare_inputs(plan)
    residual = _embedding(plan, tp_rank)
    incoming = None
    for layer in range(model.num_hidden_layers):
        residual = _norm(plan, "input_norm", layer, incoming, residual, turn=0)
        attend = attention if model.attention is Attention.mla else gqa_attention
        attend(plan, layer)
        incoming = _all_reduce(plan, "attention_allreduce", layer, whole("attention_out"), whole("attention_reduced"))
        residual = _norm(plan, "post_attention_norm", layer, incoming, residual, turn=1)
        mlp(plan, layer)
        incoming = _all_reduce(plan, "mlp_allreduce", layer, whole("mlp_out"), whole("mlp_reduced"))
    _norm(plan, "final_norm", None, incoming, residual, turn=0)
    _head(plan, tp_rank)
    return draft.finish(sequences=deployment.num_sequences, notes=_notes(plan))


def _declare_inputs(plan: Plan) -> None:
    """Positions, cache slots, context lengths and rotary tables: constant over the replays."""
    draft, model, deployment = plan.draft, plan.model, plan.deployment
    contexts = np.array(deployment.token_contexts, dtype=np.int32)
    positions = contexts - 1
    sequences = np.repeat(np.arange(deployment.num_sequences, dtype=np.int64), deployment.tokens_per_step)
    generator = np.random.default_rng(deployment.seed)
    tokens = generator.integers(0, model.vocab_size, len(contexts), dtype=np.int32)
    draft.constant("tokens", tokens, "int32")
    draft.constant("positions", positions, "int32")
    draft.constant("context_lengths", contexts, "int32")
    draft.constant("slots", sequences * plan.slots_per_sequence + positions, "int64")
    table = rope_table(model, deployment.max_context)
    draft.constant("cos_sin", table, "fp32")
    if plan.attends_to_all and model.has_indexer:
        every_position = np.arange(plan.keys_per_token, dtype=np.int32)
        draft.constant("selected", np.tile(every_position, (len(contexts), 1)), "int32")


def _embedding(plan: Plan, tp_rank: int) -> Operand:
    draft, hidden = plan.draft, plan.model.hidden_size
    table = "embedding.table"
    draft.weight(table, plan.shapes.vocab_local, hidden, weight_format=draft.activation, replicated=False, fan_in=1)
    out = draft.buffer("embedded", draft.tokens, hidden)
    call = calls.Embedding(tokens=whole("tokens"), table=table, vocab_start=tp_rank * plan.shapes.vocab_local, out=out)
    row_bytes = draft.bytes_of(out)
    draft.add("embedding", Component.HEAD, call, costs.elementwise_cost(row_bytes, row_bytes))
    residual = draft.buffer("residual.0", draft.tokens, hidden)
    return _all_reduce(plan, "embedding_allreduce", None, out, residual)


def _all_reduce(plan: Plan, name: str, layer: int | None, x: Operand, out: Operand) -> Operand:
    """Append an all-reduce of this rank's partial sums; its result is `out`."""
    draft = plan.draft
    draft.buffer(out.buffer, draft.tokens, plan.model.hidden_size)
    cost = costs.collective_cost(draft.bytes_of(x))
    draft.add(name, Component.ALLREDUCE, calls.AllReduce(x=x, out=out), cost, layer=layer)
    return out


def _norm(
    plan: Plan, name: str, layer: int | None, incoming: Operand | None, residual: Operand, *, turn: int
) -> Operand:
    """Append residual addition and RMSNorm into `hidden`; the new residual stream is returned.

    The stream alternates between two buffers, so that this operation reads neither of those it writes.
    """
    draft, hidden = plan.draft, plan.model.hidden_size
    prefix = "final" if layer is None else f"layers.{plan.weight_layer(layer)}"
    weight = draft.vector(f"{prefix}.{name}", hidden, centre=1.0, std=0.1)
    out = draft.buffer("hidden", draft.tokens, hidden)
    if incoming is None:
        call = calls.RmsNorm(x=residual, weight=weight, eps=plan.model.rms_norm_eps, out=out)
        cost = costs.elementwise_cost(draft.bytes_of(residual) + 2 * hidden, draft.bytes_of(out), 4 * hidden)
        draft.add(name, Component.NORMS, call, cost, layer=layer)
        return residual
    residual_out = draft.buffer(f"residual.{turn}", draft.tokens, hidden)
    call = calls.RmsNorm(
        x=incoming, weight=weight, eps=plan.model.rms_norm_eps, out=out, residual=residual, residual_out=residual_out
    )
    cost = costs.elementwise_cost(
        draft.bytes_of(incoming, residual) + 2 * hidden, draft.bytes_of(out, residual_out), 5 * draft.tokens * hidden
    )
    draft.add(name, Component.NORMS, call, cost, layer=layer)
    return residual_out


def _head(plan: Plan, tp_rank: int) -> None:
    """Append the vocabulary-parallel head and greedy sampling over all ranks."""
    draft, shapes, model, tokens = plan.draft, plan.shapes, plan.model, plan.draft.tokens
    weight = draft.weight(
        "head.lm_head", shapes.vocab_local, model.hidden_size, weight_format=plan.recipe.lm_head, replicated=False
    )
    logits = draft.buffer("logits", tokens, shapes.vocab_local, dtype="fp32")
    draft.gemm("lm_head", Component.HEAD, x=whole("hidden"), weight=weight, out=logits, layer=None)
    vocab_start = tp_rank * shapes.vocab_local
    best = calls.LocalArgmax(
        logits=logits,
        vocab_start=vocab_start,
        num_valid=max(0, min(shapes.vocab_local, model.vocab_size - vocab_start)),
        values=draft.buffer("best_value", tokens, dtype="fp32"),
        ids=draft.buffer("best_id", tokens, dtype="int32"),
    )
    pair_bytes = draft.bytes_of(best.values, best.ids)
    draft.add("local_argmax", Component.HEAD, best, costs.elementwise_cost(draft.bytes_of(logits), pair_bytes))
    gather = calls.AllGather(
        values=best.values,
        ids=best.ids,
        values_out=draft.buffer("gathered_values", shapes.tp_size, tokens, dtype="fp32"),
        ids_out=draft.buffer("gathered_ids", shapes.tp_size, tokens, dtype="int32"),
    )
    draft.add("sample_allgather", Component.ALLREDUCE, gather, costs.collective_cost(pair_bytes))
    greedy = calls.Greedy(
        values=gather.values_out, ids=gather.ids_out, out=draft.buffer("sampled", tokens, dtype="int32")
    )
    cost = costs.elementwise_cost(shapes.tp_size * pair_bytes, 4 * tokens)
    draft.add("sample", Component.HEAD, greedy, cost)


def _notes(plan: Plan) -> list[str]:
    """What a reader must know about this step that no number shows."""
    model, shapes, deployment = plan.model, plan.shapes, plan.deployment
    notes = []
    if len(plan.expert_ids):
        notes.append(describe_load(plan.routing, plan.expert_ids, model.n_routed_experts))
    if model.has_indexer and plan.attends_to_all:
        notes.append(
            f"context {deployment.max_context} is within index_topk={model.index_topk}: every position is attended to, "
            "and the indexer only writes its key, as in SGLang's short-context graph"
        )
    if deployment.tokens_per_step > 1:
        notes.append(
            f"the step computes {deployment.tokens_per_step} tokens a sequence (verification of speculated tokens); "
            "tok/s counts all of them: how many are accepted is not modelled"
        )
    if deployment.contexts is not None:
        low, high = min(deployment.contexts), max(deployment.contexts)
        notes.append(f"{deployment.num_sequences} sequences with contexts from {low:,} to {high:,}")
    extra_vocab = shapes.vocab_padded - model.vocab_size
    if extra_vocab:
        extra = extra_vocab * model.hidden_size * 2 // shapes.tp_size
        notes.append(
            f"vocab_size {model.vocab_size} is padded to {shapes.vocab_padded} (a multiple of 64 x tp), as engines do: "
            f"{extra / 1e6:.1f} MB more a rank, {extra_vocab / model.vocab_size:.1%}"
        )
    extra_width = shapes.expert_width_local - shapes.expert_width_unpadded_local
    if extra_width:
        notes.append(
            f"expert width a rank {shapes.expert_width_unpadded_local} is padded to {shapes.expert_width_local} (whole "
            f"tiles of 64 rows): {extra_width / shapes.expert_width_unpadded_local:.0%} more expert bytes are read"
        )
    return notes
