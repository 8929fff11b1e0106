"""From the calls of a step to launches: each becomes a closure over its tensors, ready to run or to be captured."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernels import (
    combine,
    delay,
    dispatch,
    embedding,
    expert_gemm,
    gemm,
    gqa_decode,
    head_gemm,
    index_key,
    index_logits,
    index_query,
    index_topk,
    kv_cache,
    mla_combine,
    mla_decode,
    qkv_rope,
    rms_norm,
    rope,
    router,
    sampling,
    swiglu,
)
from simulator.comm.base import Collectives
from simulator.step import calls
from simulator.step.calls import Operand
from simulator.step.memory import StepMemory
from simulator.step.program import DecodeStep

Launch = Callable[[], None]


def bind_triton(step: DecodeStep, memory: StepMemory, collectives: Collectives, *, pdl: bool) -> list[Launch]:
    """One launch of a Triton kernel for each operation of the step."""
    return [_triton_launch(op.call, memory, collectives, pdl=pdl) for op in step.ops]


def _operands(call: calls.Call, memory: StepMemory) -> dict[str, Any]:
    """The call's fields by name, with operands as tensors; weights stay names, since their kinds differ."""
    return {
        name: memory.tensor(value) if isinstance(value, Operand) else value
        for name in call.__dataclass_fields__
        for value in [getattr(call, name)]
    }


def _triton_launch(call: calls.Call, memory: StepMemory, collectives: Collectives, *, pdl: bool) -> Launch:
    """The launch of one call.

    A call's fields carry the names of its kernel's arguments, so most are handed over as they are.
    """
    arguments = _operands(call, memory) | {"pdl": pdl}
    match call:
        case calls.AllReduce():
            return collectives.all_reduce(memory.tensor(call.x), memory.tensor(call.out))
        case calls.AllGather():
            return collectives.all_gather(
                [memory.tensor(call.values), memory.tensor(call.ids)],
                [memory.tensor(call.values_out), memory.tensor(call.ids_out)],
            )
        case calls.Spin():
            return partial(delay.spin, wait_ns=round(call.wait_us * 1e3), ticks=memory.tensor(call.ticks), pdl=pdl)
        case _:
            return partial(_TRITON[type(call)], **arguments | _weights(call, memory))


def _weights(call: calls.Call, memory: StepMemory) -> dict[str, Any]:
    """The call's weights by argument name."""
    vectors: dict[str, str | None] = {}
    match call:
        case calls.Gemm() | calls.ExpertGemm():
            return {"weight": memory.weights[call.weight]}
        case calls.HeadGemm() | calls.RmsNorm():
            vectors = {"weight": call.weight}
        case calls.Embedding():
            vectors = {"table": call.table}
        case calls.QkvRope():
            vectors = {"bias": call.bias, "query_norm": call.query_norm, "key_norm": call.key_norm}
        case calls.IndexKeyWrite():
            vectors = {"norm_weight": call.norm_weight, "norm_bias": call.norm_bias}
        case calls.RouterTopk():
            vectors = {"bias": call.bias}
    return {name: None if weight is None else memory.vector(weight) for name, weight in vectors.items()}


_TRITON: dict[type, Callable[..., None]] = {
    calls.Embedding: embedding.embedding,
    calls.RmsNorm: rms_norm.rms_norm,
    calls.Gemm: gemm.gemm,
    calls.HeadGemm: head_gemm.head_gemm,
    calls.Rope: rope.rope,
    calls.KvCacheWrite: kv_cache.kv_cache_write,
    calls.IndexKeyWrite: index_key.index_key_write,
    calls.IndexQuery: index_query.index_query,
    calls.IndexLogits: index_logits.index_logits,
    calls.IndexTopk: index_topk.index_topk,
    calls.MlaDecode: mla_decode.mla_decode,
    calls.MlaCombine: mla_combine.mla_combine,
    calls.QkvRope: qkv_rope.qkv_rope,
    calls.GqaCacheWrite: gqa_decode.gqa_cache_write,
    calls.GqaDecode: gqa_decode.gqa_decode,
    calls.RouterTopk: router.router_topk,
    calls.Dispatch: dispatch.dispatch,
    calls.ExpertGemm: expert_gemm.expert_gemm,
    calls.Swiglu: swiglu.swiglu,
    calls.Combine: combine.combine,
    calls.LocalArgmax: sampling.local_argmax,
    calls.Greedy: sampling.greedy,
}


def warm_up(launches: list[Launch], device: torch.device) -> None:
    """Run every launch once, so that all kernels are compiled and loaded before a capture begins."""
    for launch in launches:
        launch()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
