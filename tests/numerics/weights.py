"""Weights of a Hugging Face model in the layout of our step, whole or as one rank's share.

Written against the names and shapes of transformers' checkpoints, independently of `simulator.step`: what goes where is
the definition of the sharding that the tests hold the step to.
"""

import dataclasses

import torch

from kernels.fp8_block import Fp8BlockTensor, quantize_fp8_block
from kernels.nvfp4 import Nvfp4Tensor, quantize_nvfp4
from simulator.model import Attention


def rows(weight, rank, tp):
    """One rank's share of a column-parallel weight: a slice of the outputs."""
    size = weight.shape[-2] // tp
    return weight[..., rank * size : (rank + 1) * size, :]


def columns(weight, rank, tp):
    """One rank's share of a row-parallel weight: a slice of the inputs."""
    size = weight.shape[-1] // tp
    return weight[..., rank * size : (rank + 1) * size]


def padded_vocabulary(weight, tp):
    """Engines pad a vocabulary that is no multiple of 64 and of tp; rows that would win every choice stand there."""
    size = weight.shape[0]
    if size % 64 == 0 and size % tp == 0:
        return weight
    padding = torch.full((-size % (64 * tp), weight.shape[1]), 1e3)
    padding[::2] *= -1
    return torch.cat([weight, padding])


def gate_up(gate, up, rank, tp):
    return torch.cat([rows(gate, rank, tp), rows(up, rank, tp)], dim=-2)


def rank_weights(model, state, rank=0, tp=1):
    """Tensors by the names of our step for `rank` of `tp`, from a Hugging Face state dict."""
    found = {
        "embedding.table": rows(padded_vocabulary(state["model.embed_tokens.weight"], tp), rank, tp),
        "head.lm_head": rows(padded_vocabulary(state["lm_head.weight"], tp), rank, tp),
        "final.final_norm": state["model.norm.weight"],
    }
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        layer_weights = {
            "input_norm": state[f"{prefix}.input_layernorm.weight"],
            "post_attention_norm": state[f"{prefix}.post_attention_layernorm.weight"],
        }
        attention = mla_weights if model.attention is Attention.mla else gqa_weights
        layer_weights |= attention(model, state, f"{prefix}.self_attn", rank, tp)
        layer_weights |= mlp_weights(model, state, f"{prefix}.mlp", rank, tp)
        found |= {f"layers.{layer}.{name}": tensor for name, tensor in layer_weights.items()}
    return found


def mla_weights(model, state, prefix, rank, tp):
    heads, nope, value = model.num_attention_heads // tp, model.qk_nope_head_dim, model.v_head_dim
    kv_b = rows(state[f"{prefix}.kv_b_proj.weight"], rank, tp).view(heads, nope + value, model.kv_lora_rank)
    found = {
        "qkv_a": torch.cat([state[f"{prefix}.q_a_proj.weight"], state[f"{prefix}.kv_a_proj_with_mqa.weight"]]),
        "q_a_norm": state[f"{prefix}.q_a_layernorm.weight"],
        "kv_a_norm": state[f"{prefix}.kv_a_layernorm.weight"],
        "q_b": rows(state[f"{prefix}.q_b_proj.weight"], rank, tp),
        "absorb_q": kv_b[:, :nope].transpose(1, 2),
        "value_up": kv_b[:, nope:],
        "o_proj": columns(state[f"{prefix}.o_proj.weight"], rank, tp),
    }
    indexer = f"{prefix}.indexer"
    if f"{indexer}.wk.weight" in state:
        found |= {
            "index_k": torch.cat([state[f"{indexer}.wk.weight"], state[f"{indexer}.weights_proj.weight"]]),
            "index_k_norm": state[f"{indexer}.k_norm.weight"],
            "index_k_bias": state[f"{indexer}.k_norm.bias"],
            "index_q": state[f"{indexer}.wq_b.weight"],
        }
    return found


def gqa_weights(model, state, prefix, rank, tp):
    """A key head is replicated on several ranks where there are more ranks than key heads."""
    key_tp = min(tp, model.num_key_value_heads)
    shares = [(rank, tp), (rank * key_tp // tp, key_tp), (rank * key_tp // tp, key_tp)]
    parts = [rows(state[f"{prefix}.{name}_proj.weight"], *share) for name, share in zip("qkv", shares, strict=True)]
    found = {"qkv": torch.cat(parts), "o_proj": columns(state[f"{prefix}.o_proj.weight"], rank, tp)}
    if model.attention_bias:
        biases = [
            rows(state[f"{prefix}.{name}_proj.bias"][:, None], *share)
            for name, share in zip("qkv", shares, strict=True)
        ]
        found["qkv_bias"] = torch.cat(biases)[:, 0]
    if model.use_qk_norm:
        found |= {"query_norm": state[f"{prefix}.q_norm.weight"], "key_norm": state[f"{prefix}.k_norm.weight"]}
    return found


def mlp_weights(model, state, prefix, rank, tp):
    def gated(kind, inner):
        up, gate = state[f"{inner}.up_proj.weight"], state[f"{inner}.gate_proj.weight"]
        down = columns(state[f"{inner}.down_proj.weight"], rank, tp)
        return {f"{kind}_gate_up": gate_up(gate, up, rank, tp), f"{kind}_down": down}

    if f"{prefix}.gate.weight" not in state:
        return gated("dense", prefix)
    gate, up = state[f"{prefix}.experts.gate_up_proj"].chunk(2, dim=1)
    found = {
        "router": state[f"{prefix}.gate.weight"],
        "routed_gate_up": gate_up(gate, up, rank, tp),
        "routed_down": columns(state[f"{prefix}.experts.down_proj"], rank, tp),
    }
    bias = f"{prefix}.gate.e_score_correction_bias"
    if bias in state:
        found["router_bias"] = state[bias]
    if f"{prefix}.shared_experts.up_proj.weight" in state:
        found |= gated("shared", f"{prefix}.shared_experts")
    return found


def load(memory, tensors, *, whole):
    """Copy `tensors` into a step's memory, quantising where it holds NVFP4 or FP8; every weight must be given.

    Ranks quantise with the tensor scales of the `whole` matrices. Where a rank's experts are padded, gate and up are
    each followed by zeros, and so are the inputs of down.
    """
    missing = set(memory.weights) - set(tensors)
    assert not missing, f"no values for {sorted(missing)}"
    for name, weight in memory.weights.items():
        values = tensors[name].detach()
        if "routed_" in name:
            values = padded_experts(values, weight.shape, gated=name.endswith("gate_up"))
        assert weight.shape == values.shape, f"{name}: {list(weight.shape)} against {list(values.shape)}"
        if isinstance(weight, Nvfp4Tensor):
            scale = quantize_nvfp4(whole[name].detach().float()).tensor_scale
            copy_fields(weight, quantize_nvfp4(values.float().contiguous(), scale))
        elif isinstance(weight, Fp8BlockTensor):
            copy_fields(weight, quantize_fp8_block(values))
        else:
            weight.copy_(values)


def copy_fields(weight, quantised):
    for field in dataclasses.fields(weight):
        getattr(weight, field.name).copy_(getattr(quantised, field.name))


def padded_experts(values, shape, *, gated):
    if not gated:
        return torch.nn.functional.pad(values, (0, shape[-1] - values.shape[-1]))
    extra = (shape[-2] - values.shape[-2]) // 2
    halves = [torch.nn.functional.pad(half, (0, 0, 0, extra)) for half in values.chunk(2, dim=-2)]
    return torch.cat(halves, dim=-2)
