"""Weights of a Hugging Face model rounded to what a quantised format can hold, so that our step can store them exactly.

Matrices that our step holds as one share block or tensor scales there, so they are rounded together.
"""

import torch

from kernels.fp8_block import dequantize_fp8_block, quantize_fp8_block
from kernels.nvfp4 import dequantize_nvfp4, quantize_nvfp4

FUSED = [
    ("q_a_proj.weight", "kv_a_proj_with_mqa.weight"),
    ("indexer.wk.weight", "indexer.weights_proj.weight"),
    ("q_proj.weight", "k_proj.weight", "v_proj.weight"),
    ("gate_proj.weight", "up_proj.weight"),
]
KEPT = ("mlp.gate.weight", "kv_b_proj.weight", "embed_tokens.weight", "lm_head.weight")
"""Never quantised by any recipe here: router, absorbed factors, embedding, head."""


def round_weights(state, weight_format, part=None):
    """Round every linear layer (whose name holds `part`) in place; returns the largest relative change of one."""
    largest = 0.0
    for key, tensor in state.items():
        if tensor.dim() < 2 or key.endswith(KEPT) or (part and part not in key):
            continue
        fused = next((names for names in FUSED if key.endswith(names)), (key,))
        ending = next(name for name in fused if key.endswith(name))
        if ending != fused[0]:
            continue
        together = [state[key.removesuffix(ending) + name] for name in fused]
        before = torch.cat(together, dim=-2)
        rounded = fixed_point(before, weight_format)
        largest = max(largest, float((rounded - before).norm() / before.norm()))
        for part_of, values in zip(together, rounded.split([t.shape[-2] for t in together], dim=-2), strict=True):
            part_of.copy_(values)
    return largest


def fixed_point(values, weight_format):
    """Values that survive quantisation unchanged: quantised until they no longer move."""
    for _ in range(8):
        rounded = requantised(values, weight_format)
        if torch.equal(rounded, values):
            return rounded
        values = rounded
    raise AssertionError(f"{weight_format} does not settle")


def requantised(values, weight_format):
    if weight_format == "nvfp4":
        return dequantize_nvfp4(quantize_nvfp4(values.contiguous()))
    return dequantize_fp8_block(quantize_fp8_block(values))
