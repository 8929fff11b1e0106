"""SwiGLU on the fused output of a gate and an up projection.

    out[r, i] = silu(gate_up[r, i]) * gate_up[r, I + i],    silu(z) = z / (1 + exp(-z)),    in float32

    gate_up  [R, 2 * I]  bfloat16, float16 or float32; rows of any stride, last dim contiguous; gate half first
    out      [R, I]      same dtype; rows of any stride, last dim contiguous

Letters: R rows (tokens, or tokens times chosen experts), I intermediate size on this rank.
Source: Shazeer 2020, GLU Variants Improve Transformer (arXiv 2002.05202).
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.weight_tile import ACTIVATION_DTYPES

BLOCK_I = 256
"""Columns of a program: GLM-5's expert on one rank of eight, so that one token's eight rows make eight programs."""


def swiglu_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """Float32 [R, I] (float64 for float64 input)."""
    gate, up = gate_up.to(torch.float64 if gate_up.dtype == torch.float64 else torch.float32).chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


@triton.jit
def _swiglu_kernel(p_gate_up, p_out, width, stride_gate_up_r, stride_out_r, BLOCK_I: tl.constexpr, PDL: tl.constexpr):
    """One program computes BLOCK_I columns of one row."""
    enter_grid(PDL)
    i_r = tl.program_id(0).to(tl.int64)
    o_i = tl.program_id(1) * BLOCK_I + tl.arange(0, BLOCK_I)
    in_i = o_i < width
    p_row = p_gate_up + i_r * stride_gate_up_r + o_i
    b_gate = tl.load(p_row, mask=in_i, other=0.0).to(tl.float32)
    b_up = tl.load(p_row + width, mask=in_i, other=0.0).to(tl.float32)
    # exp of a non-positive number only: it cannot overflow, whatever the gate
    b_exp = tl.exp(-tl.abs(b_gate))
    b_sigmoid = tl.where(b_gate >= 0, 1.0, b_exp) / (1.0 + b_exp)
    tl.store(p_out + i_r * stride_out_r + o_i, (b_gate * b_sigmoid * b_up).to(p_out.dtype.element_ty), mask=in_i)


def swiglu(*, gate_up: torch.Tensor, out: torch.Tensor, pdl: bool = False) -> None:
    """Write out = silu(gate) * up for every row.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0 and gate_up.stride(1) == 1,
        f"argument gate_up must be [R, 2 * I] with a contiguous last dim; got {list(gate_up.shape)} "
        f"strides {gate_up.stride()}",
    )
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    require(
        gate_up.dtype in ACTIVATION_DTYPES,
        f"argument gate_up must be one of {', '.join(map(str, ACTIVATION_DTYPES))}; got {gate_up.dtype}",
    )
    require(
        tuple(out.shape) == (num_rows, width) and out.stride(1) == 1 and out.dtype == gate_up.dtype,
        f"argument out must be {gate_up.dtype} [R, I] = {[num_rows, width]} with a contiguous last dim; "
        f"got {out.dtype} {list(out.shape)} strides {out.stride()}",
    )
    _swiglu_kernel[(num_rows, triton.cdiv(width, BLOCK_I))](
        gate_up,
        out,
        width,
        gate_up.stride(0),
        out.stride(0),
        BLOCK_I=BLOCK_I,
        PDL=pdl,
        num_warps=2,
        **launch_options(pdl=pdl),
    )
