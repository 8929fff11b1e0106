"""Join the splits of a decode attention into its output.

    out[m, h] = sum_i w_i * partial_out[m, h, i],    w_i = exp(lse_i - logsumexp over i of lse_i)

    partial_out  [M, H, splits, L]  float32, contiguous: each split's own normalised output
    partial_lse  [M, H, splits]     float32, contiguous: natural logarithm of its sum of exponentials; -inf: no keys
    out          [M, H, L]          strides of M and H are free, last dim contiguous; zeros where no split has keys

Letters: M tokens in the step, H heads on this rank, L values of a head's output.
Source: flash decoding (Dao et al. 2023, pytorch.org/blog/flash-decoding).
"""

import torch
import triton
import triton.language as tl

from kernels.launch import TRITON_DTYPES, enter_grid, launch_options, require
from kernels.mla_decode import check_partials

BLOCK_SPLITS = 16
"""Splits added up at a time; fixed, so that the order of the additions does not depend on anything else."""

BLOCK_L = 64
"""Output values of a program: 256 B of each split, and 64 programs for 8 heads of 512 values."""


def mla_combine_reference(partial_out: torch.Tensor, partial_lse: torch.Tensor) -> torch.Tensor:
    """Combined output [M, H, L] in float32 (float64 for float64 input)."""
    lse = torch.logsumexp(partial_lse, dim=-1, keepdim=True)
    weights = torch.where(lse == float("-inf"), 0.0, torch.exp(partial_lse - lse))
    return (weights[..., None] * partial_out).sum(dim=2)


@triton.jit
def _mla_combine_kernel(
    p_partial_out,
    p_partial_lse,
    p_out,
    stride_out_m,
    stride_out_h,
    num_heads,
    num_splits,
    L: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_L: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program combines BLOCK_L output values of one head of one token."""
    enter_grid(PDL)
    o_l = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    i_h = tl.program_id(1).to(tl.int64)
    i_m = tl.program_id(2).to(tl.int64)
    o_split = tl.arange(0, BLOCK_SPLITS)
    first = (i_m * num_heads + i_h) * num_splits

    # the largest of all splits first: then the sums below need no rescaling
    b_max = tl.full((BLOCK_SPLITS,), float("-inf"), dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_SPLITS):
        in_split = start + o_split < num_splits
        b_lse = tl.load(p_partial_lse + first + start + o_split, mask=in_split, other=float("-inf"))  # [splits]
        b_max = tl.maximum(b_max, b_lse)
    max_lse = tl.max(b_max, axis=0)
    max_lse = tl.where(max_lse == float("-inf"), 0.0, max_lse)

    b_sum = tl.zeros((BLOCK_SPLITS,), dtype=tl.float32)
    b_acc = tl.zeros((BLOCK_L,), dtype=tl.float32)
    for start in range(0, num_splits, BLOCK_SPLITS):
        in_split = start + o_split < num_splits
        b_lse = tl.load(p_partial_lse + first + start + o_split, mask=in_split, other=float("-inf"))  # [splits]
        p_rows = p_partial_out + (first + start + o_split)[:, None] * L + o_l[None, :]
        b_partial = tl.load(p_rows, mask=in_split[:, None] & (o_l < L)[None, :], other=0.0)  # [splits, L]
        b_weight = tl.exp(b_lse - max_lse)
        b_sum += b_weight
        b_acc += tl.sum(b_weight[:, None] * b_partial, axis=0)
    total = tl.sum(b_sum, axis=0)
    b_out = b_acc / tl.where(total > 0.0, total, 1.0)
    tl.store(p_out + i_m * stride_out_m + i_h * stride_out_h + o_l, b_out.to(p_out.dtype.element_ty), mask=o_l < L)


def mla_combine(*, partial_out: torch.Tensor, partial_lse: torch.Tensor, out: torch.Tensor, pdl: bool = False) -> None:
    """Write the attention output of every token and head from its splits.

    Shapes: partial_out float32 [M, H, splits, L], partial_lse float32 [M, H, splits], out [M, H, L].
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        out.dim() == 3 and out.stride(2) == 1,
        f"argument out must be [M, H, L] with a contiguous last dim; got {list(out.shape)} strides {out.stride()}",
    )
    require(
        out.dtype in TRITON_DTYPES, f"argument out must be one of {', '.join(map(str, TRITON_DTYPES))}; got {out.dtype}"
    )
    num_tokens, num_heads, dim = out.shape
    num_splits = check_partials(partial_out, partial_lse, num_tokens=num_tokens, num_heads=num_heads)
    require(
        partial_out.shape[3] == dim,
        f"argument partial_out must have a last dim of {dim} like out; got {partial_out.shape[3]}",
    )
    _mla_combine_kernel[(triton.cdiv(dim, BLOCK_L), num_heads, num_tokens)](
        partial_out,
        partial_lse,
        out,
        out.stride(0),
        out.stride(1),
        num_heads,
        num_splits,
        L=dim,
        BLOCK_SPLITS=BLOCK_SPLITS,
        BLOCK_L=BLOCK_L,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl=pdl),
    )
