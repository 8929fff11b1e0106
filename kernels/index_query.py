"""Prepare the indexer queries of a decode step: RoPE, FP8 quantisation and the head weights, in one launch.

    y = query with RoPE on its first R values                                          each token and head
    scale = 2^ceil(log2(max(amax |y|, 1e-4) / 448)),    query_out = e4m3(y / scale)     over D
    weights_out = head_weights * Hi^-0.5 * D^-0.5 * scale

    query         [M, Hi, D]   strides of M and Hi are free, last dim contiguous
    head_weights  [M, Hi]      rows of any stride (a slice of a fused projection), last dim contiguous
    positions     [M]          int32
    cos_sin       [P, 2, R/2]  float32 (kernels.rope.rope_table), R <= D
    query_out     [M, Hi, D]   contiguous, dtype of the index cache: float8_e4m3fn, or unquantised with scale 1
    weights_out   [M, Hi]      float32, contiguous

Letters: M tokens in the step, Hi index heads (GLM-5: 32), D index head dim (128), R rotated dims (64), P positions.
Source: transformers' modeling_glm_moe_dsa (indexer); scale rounding in kernels/fp8_scale.py.
"""

import torch
import triton
import triton.language as tl

from kernels.fp8_scale import exact_exp2, power_of_two_exponent, quantize_reference, round_to_e4m3
from kernels.index_key import CACHE_DTYPES
from kernels.launch import enter_grid, launch_options, require
from kernels.rope import check_rotation_operands, load_rotation, rotate_reference

BLOCK_H = 8
"""Heads of a program: 32 heads of one token make four programs, so that a single token still spreads out."""


def index_query_reference(
    query: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [M, Hi, D] of `out_dtype`, and float32 weights [M, Hi] that include the queries' scales."""
    angles = cos_sin[positions.long()][:, None]
    x = rotate_reference(query.to(torch.float32), angles[:, :, 0], angles[:, :, 1], interleaved=interleaved)
    weights = head_weights.to(torch.float32) * (query.shape[1] ** -0.5 * query.shape[2] ** -0.5)
    if out_dtype == torch.float8_e4m3fn:
        values, scale = quantize_reference(x)
        return values, weights * scale
    return x.to(out_dtype), weights


@triton.jit
def _index_query_kernel(
    p_query,
    p_head_weights,
    p_positions,
    p_cos_sin,
    p_query_out,
    p_weights_out,
    stride_query_m,
    stride_query_h,
    stride_head_weights_m,
    num_heads,
    weight_scale,
    D: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    QUANTIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program prepares BLOCK_H heads of one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    o_d = tl.arange(0, BLOCK_D)
    in_h = o_h < num_heads
    in_tile = in_h[:, None] & (o_d < D)[None, :]
    position = tl.load(p_positions + i_m)
    o_partner, b_cos, b_sin = load_rotation(p_cos_sin, position, o_d, ROPE_DIM, INTERLEAVED)
    p_rows = p_query + i_m * stride_query_m + o_h[:, None] * stride_query_h
    b_query = tl.load(p_rows + o_d[None, :], mask=in_tile, other=0.0).to(tl.float32)  # [H, D]
    b_partner = tl.load(p_rows + o_partner[None, :], mask=in_tile, other=0.0).to(tl.float32)  # [H, D]
    b_weight = tl.load(p_head_weights + i_m * stride_head_weights_m + o_h, mask=in_h, other=0.0)  # [H]
    b_weight = b_weight.to(tl.float32) * weight_scale
    b_rotated = b_query * b_cos[None, :] + b_partner * b_sin[None, :]

    p_out = p_query_out + (i_m * num_heads + o_h[:, None]) * D + o_d[None, :]
    if QUANTIZE:
        b_exponent = power_of_two_exponent(tl.max(tl.abs(b_rotated), axis=1))
        b_rotated = round_to_e4m3(b_rotated * exact_exp2(-b_exponent)[:, None])
        b_weight *= exact_exp2(b_exponent)
    tl.store(p_out, b_rotated.to(p_query_out.dtype.element_ty), mask=in_tile)
    tl.store(p_weights_out + i_m * num_heads + o_h, b_weight, mask=in_h)


def index_query(
    *,
    query: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool,
    query_out: torch.Tensor,
    weights_out: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write the rotated (and, for FP8, quantised) queries and the float32 head weights that carry their scales.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        query.dim() == 3 and query.stride(2) == 1,
        f"argument query must be [M, Hi, D] with a contiguous last dim; got {list(query.shape)} "
        f"strides {query.stride()}",
    )
    num_tokens, num_heads, dim = query.shape
    require(
        tuple(head_weights.shape) == (num_tokens, num_heads) and head_weights.stride(1) == 1,
        f"argument head_weights must be [M, Hi] = {[num_tokens, num_heads]} with a contiguous last dim; "
        f"got {list(head_weights.shape)} strides {head_weights.stride()}",
    )
    check_rotation_operands(positions=positions, cos_sin=cos_sin, num_tokens=num_tokens, dim=dim)
    require(
        query_out.shape == query.shape and query_out.is_contiguous(),
        f"argument query_out must be contiguous {list(query.shape)} like query; got {list(query_out.shape)} "
        f"strides {query_out.stride()}",
    )
    require(
        query_out.dtype in CACHE_DTYPES,
        f"argument query_out must be one of {', '.join(map(str, CACHE_DTYPES))}; got {query_out.dtype}",
    )
    require(
        tuple(weights_out.shape) == (num_tokens, num_heads)
        and weights_out.dtype == torch.float32
        and weights_out.is_contiguous(),
        f"argument weights_out must be contiguous float32 [M, Hi] = {[num_tokens, num_heads]}; "
        f"got {weights_out.dtype} {list(weights_out.shape)}",
    )
    _index_query_kernel[(num_tokens, triton.cdiv(num_heads, BLOCK_H))](
        query,
        head_weights,
        positions,
        cos_sin,
        query_out,
        weights_out,
        query.stride(0),
        query.stride(1),
        head_weights.stride(0),
        num_heads,
        num_heads**-0.5 * dim**-0.5,
        D=dim,
        BLOCK_H=BLOCK_H,
        BLOCK_D=triton.next_power_of_2(dim),
        ROPE_DIM=2 * cos_sin.shape[2],
        INTERLEAVED=interleaved,
        QUANTIZE=query_out.dtype == torch.float8_e4m3fn,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl=pdl),
    )
