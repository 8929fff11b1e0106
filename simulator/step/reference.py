"""From the calls of a step to their torch references: what the CPU executes, and what kernels are compared with."""

from collections.abc import Callable

import torch

from kernels.combine import combine_reference
from kernels.dispatch import dispatch_reference
from kernels.embedding import embedding_reference
from kernels.expert_gemm import expert_gemm_reference
from kernels.gemm import gemm_reference
from kernels.gqa_decode import gqa_decode_reference
from kernels.head_gemm import head_gemm_reference
from kernels.index_key import index_key_reference
from kernels.index_logits import index_logits_reference
from kernels.index_query import index_query_reference
from kernels.index_topk import index_topk_reference
from kernels.mla_combine import mla_combine_reference
from kernels.mla_decode import mla_decode_reference
from kernels.qkv_rope import qkv_rope_reference
from kernels.rms_norm import rms_norm_reference
from kernels.rope import rope_reference
from kernels.router import router_topk_reference
from kernels.sampling import greedy_reference, local_argmax_reference
from kernels.swiglu import swiglu_reference
from simulator.comm.base import Collectives
from simulator.step import calls
from simulator.step.memory import StepMemory
from simulator.step.program import DecodeStep

Launch = Callable[[], None]


def bind_reference(step: DecodeStep, memory: StepMemory, collectives: Collectives) -> list[Launch]:
    """One torch computation for each operation of the step, writing the buffers that its kernel would write."""
    return [_launch(op.call, memory, collectives) for op in step.ops]


def _launch(call: calls.Call, memory: StepMemory, collectives: Collectives) -> Launch:
    match call:
        case calls.AllReduce():
            return collectives.all_reduce(memory.tensor(call.x), memory.tensor(call.out))
        case calls.AllGather():
            return collectives.all_gather(
                [memory.tensor(call.values), memory.tensor(call.ids)],
                [memory.tensor(call.values_out), memory.tensor(call.ids_out)],
            )
        case _:
            return lambda: _compute(call, memory)


def _compute(call: calls.Call, memory: StepMemory) -> None:
    """Run one call; the references return values, which are copied to where the kernel would have written them."""
    view = memory.tensor
    match call:
        case calls.Embedding():
            view(call.out).copy_(embedding_reference(view(call.tokens), memory.vector(call.table), call.vocab_start))
        case calls.RmsNorm():
            _rms_norm(call, memory)
        case calls.Gemm():
            view(call.out).copy_(gemm_reference(x=view(call.x), weight=memory.weights[call.weight]))
        case calls.HeadGemm():
            view(call.out).copy_(head_gemm_reference(view(call.x), memory.vector(call.weight)))
        case calls.Rope() | calls.KvCacheWrite() | calls.MlaDecode() | calls.MlaCombine():
            _attention(call, memory)
        case calls.QkvRope() | calls.GqaCacheWrite() | calls.GqaDecode():
            _gqa_attention(call, memory)
        case calls.IndexKeyWrite() | calls.IndexQuery() | calls.IndexLogits() | calls.IndexTopk():
            _indexer(call, memory)
        case calls.RouterTopk() | calls.Dispatch() | calls.ExpertGemm() | calls.Combine():
            _experts(call, memory)
        case calls.Swiglu():
            view(call.out).copy_(swiglu_reference(view(call.gate_up)))
        case calls.LocalArgmax():
            values, ids = local_argmax_reference(view(call.logits), call.vocab_start, call.num_valid)
            view(call.values).copy_(values)
            view(call.ids).copy_(ids)
        case calls.Greedy():
            view(call.out).copy_(greedy_reference(view(call.values), view(call.ids)))
        case _:
            raise TypeError(f"{type(call).__name__} has no reference: it computes nothing")


def _rms_norm(call: calls.RmsNorm, memory: StepMemory) -> None:
    residual = None if call.residual is None else memory.tensor(call.residual)
    out, residual_out = rms_norm_reference(memory.tensor(call.x), memory.vector(call.weight), call.eps, residual)
    memory.tensor(call.out).copy_(out)
    if call.residual_out is not None:
        memory.tensor(call.residual_out).copy_(residual_out)


def _attention(call: calls.Rope | calls.KvCacheWrite | calls.MlaDecode | calls.MlaCombine, memory: StepMemory) -> None:
    view = memory.tensor
    match call:
        case calls.Rope():
            query, key = rope_reference(
                view(call.query), view(call.key), view(call.positions), view(call.cos_sin), interleaved=call.interleaved
            )
            view(call.query_out).copy_(query)
            view(call.key_out).copy_(key)
        case calls.KvCacheWrite():
            row = torch.cat([view(call.latent), view(call.key_rope)], dim=-1)
            view(call.cache)[view(call.slots)] = row.to(view(call.cache).dtype)
        case calls.MlaDecode():
            partial_out = view(call.partial_out)
            result = mla_decode_reference(
                view(call.query),
                view(call.cache),
                None if call.selected is None else view(call.selected),
                view(call.context_lengths),
                tokens_per_sequence=call.tokens_per_sequence,
                slots_per_sequence=call.slots_per_sequence,
                latent_dim=partial_out.shape[-1],
                scale=call.scale,
            )
            _write_splits(result, partial_out, view(call.partial_lse))
        case calls.MlaCombine():
            view(call.out).copy_(mla_combine_reference(view(call.partial_out), view(call.partial_lse)))


def _write_splits(result: torch.Tensor, partial_out: torch.Tensor, partial_lse: torch.Tensor) -> None:
    """The whole result stands in the first split; the others are empty."""
    partial_out.zero_()
    partial_out[:, :, 0] = result
    partial_lse.fill_(-torch.inf)
    partial_lse[:, :, 0] = 0.0


def _gqa_attention(call: calls.QkvRope | calls.GqaCacheWrite | calls.GqaDecode, memory: StepMemory) -> None:
    view = memory.tensor
    match call:
        case calls.QkvRope():
            vectors = [
                None if name is None else memory.vector(name) for name in (call.bias, call.query_norm, call.key_norm)
            ]
            results = qkv_rope_reference(
                qkv=view(call.qkv),
                bias=vectors[0],
                query_norm=vectors[1],
                key_norm=vectors[2],
                eps=call.eps,
                positions=view(call.positions),
                cos_sin=view(call.cos_sin),
                interleaved=call.interleaved,
                num_heads=view(call.query_out).shape[1],
                num_key_heads=view(call.key_out).shape[1],
            )
            for operand, result in zip((call.query_out, call.key_out, call.value_out), results, strict=True):
                view(operand).copy_(result)
        case calls.GqaCacheWrite():
            for cache, rows in ((call.key_cache, call.key), (call.value_cache, call.value)):
                view(cache)[view(call.slots)] = view(rows).to(view(cache).dtype)
        case calls.GqaDecode():
            result = gqa_decode_reference(
                view(call.query),
                view(call.key_cache),
                view(call.value_cache),
                view(call.context_lengths),
                tokens_per_sequence=call.tokens_per_sequence,
                slots_per_sequence=call.slots_per_sequence,
                scale=call.scale,
            )
            _write_splits(result, view(call.partial_out), view(call.partial_lse))


def _indexer(
    call: calls.IndexKeyWrite | calls.IndexQuery | calls.IndexLogits | calls.IndexTopk, memory: StepMemory
) -> None:
    view = memory.tensor
    match call:
        case calls.IndexKeyWrite():
            values, scales = index_key_reference(
                view(call.key),
                memory.vector(call.norm_weight),
                memory.vector(call.norm_bias),
                eps=call.eps,
                positions=view(call.positions),
                cos_sin=view(call.cos_sin),
                interleaved=call.interleaved,
                cache_dtype=view(call.cache_values).dtype,
            )
            view(call.cache_values)[view(call.slots)] = values.to(view(call.cache_values).dtype)
            view(call.cache_scales)[view(call.slots)] = scales
        case calls.IndexQuery():
            query, weights = index_query_reference(
                view(call.query),
                view(call.head_weights),
                view(call.positions),
                view(call.cos_sin),
                interleaved=call.interleaved,
                out_dtype=view(call.query_out).dtype,
            )
            view(call.query_out).copy_(query)
            view(call.weights_out).copy_(weights)
        case calls.IndexLogits():
            out = view(call.out)
            out.copy_(
                index_logits_reference(
                    view(call.query),
                    view(call.weights),
                    view(call.cache_values),
                    view(call.cache_scales),
                    view(call.context_lengths),
                    tokens_per_sequence=call.tokens_per_sequence,
                    slots_per_sequence=call.slots_per_sequence,
                    num_positions=out.shape[-1],
                )
            )
        case calls.IndexTopk():
            selected = view(call.selected)
            selected.copy_(index_topk_reference(view(call.logits), view(call.context_lengths), selected.shape[-1]))


def _experts(call: calls.RouterTopk | calls.Dispatch | calls.ExpertGemm | calls.Combine, memory: StepMemory) -> None:
    view = memory.tensor
    match call:
        case calls.RouterTopk():
            ids, weights = router_topk_reference(
                view(call.logits),
                None if call.bias is None else memory.vector(call.bias),
                view(call.ids).shape[-1],
                scoring=call.scoring,
                num_groups=call.num_groups,
                topk_groups=call.topk_groups,
                normalize=call.normalize,
                scaling=call.scaling,
            )
            view(call.ids).copy_(ids)
            view(call.weights).copy_(weights)
        case calls.Dispatch():
            sorted_rows, tile_experts = dispatch_reference(
                view(call.expert_ids),
                num_experts=call.num_experts,
                tile_rows=call.tile_rows,
                max_tiles=view(call.tile_experts).numel(),
            )
            view(call.sorted_rows).copy_(sorted_rows)
            view(call.tile_experts).copy_(tile_experts)
        case calls.ExpertGemm():
            out = view(call.out)
            ids = _expert_of_row(view(call.sorted_rows), view(call.tile_experts), out.shape[0])
            out.copy_(
                expert_gemm_reference(
                    x=view(call.x),
                    weight=memory.weights[call.weight],
                    expert_ids=ids,
                    rows_per_token=call.rows_per_token,
                )
            )
        case calls.Combine():
            shared = None if call.shared is None else view(call.shared)
            view(call.out).copy_(combine_reference(view(call.expert_out), view(call.weights), shared))


def _expert_of_row(sorted_rows: torch.Tensor, tile_experts: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The expert of each (token, choice) row, from the grouping that dispatch wrote; 0 where it wrote none yet."""
    rows = sorted_rows.view(tile_experts.numel(), -1)
    experts = tile_experts[:, None].expand_as(rows)
    is_used = (rows >= 0) & (experts >= 0)
    ids = torch.zeros(num_rows, dtype=torch.long, device=sorted_rows.device)
    ids[rows[is_used].long()] = experts[is_used].long()
    return ids
