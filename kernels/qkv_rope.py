"""What stands between the fused qkv projection and grouped-query attention, in one launch, as engines fuse it.

    row     = qkv[m] + bias                                                   (where there is a bias)
    query_h = rope(rms(row_h) * query_norm)  for the H query heads            (the norm where there is one)
    key_h   = rope(rms(row_h) * key_norm)    for the Hkv key heads
    value_h = row_h                          for the Hkv value heads

    qkv         [M, (H + 2 Hkv) * D]   rows may be strided; query heads, then key heads, then value heads
    bias        [(H + 2 Hkv) * D] or None
    query_norm  [D] or None, key_norm [D] or None: RMS norm over each head, weight times the normalised value
    positions   [M] int32; cos_sin [P, 2, R/2] float32: the first R of the D dims rotate, the others pass
    query_out   [M, H, D], key_out [M, Hkv, D], value_out [M, Hkv, D]: contiguous, dtype of qkv

Letters: M tokens in the step, H query and Hkv key heads on this rank, D head dim, R rotary dims.
Source: transformers, modeling_glm4_moe.py and modeling_qwen3_moe.py (order: bias, norm, rotation).
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.rope import check_rotation_operands, load_rotation, rotate_reference


def qkv_rope_reference(
    *,
    qkv: torch.Tensor,
    bias: torch.Tensor | None,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool,
    num_heads: int,
    num_key_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(query, key, value) in float32 (float64 for float64 input)."""
    dtype = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    rows = qkv.to(dtype) if bias is None else qkv.to(dtype) + bias.to(dtype)
    heads = rows.view(qkv.shape[0], num_heads + 2 * num_key_heads, -1)
    query, key, value = heads.split([num_heads, num_key_heads, num_key_heads], dim=1)
    angles = cos_sin[positions.long()].to(dtype)
    cos, sin = angles[:, None, 0], angles[:, None, 1]
    normed = [
        x if weight is None else x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(dtype)
        for x, weight in ((query, query_norm), (key, key_norm))
    ]
    query, key = (rotate_reference(x, cos, sin, interleaved=interleaved) for x in normed)
    return query, key, value


@triton.jit
def _qkv_rope_kernel(
    p_qkv,
    p_bias,
    p_query_norm,
    p_key_norm,
    p_positions,
    p_cos_sin,
    p_query_out,
    p_key_out,
    p_value_out,
    stride_qkv_m,
    num_heads,
    num_key_heads,
    eps,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program prepares one head of one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    in_d = o_d < DIM
    p_row = p_qkv + i_m * stride_qkv_m + i_h * DIM
    b_x = tl.load(p_row + o_d, mask=in_d, other=0.0).to(tl.float32)  # [D]
    if HAS_BIAS:
        b_x += tl.load(p_bias + i_h * DIM + o_d, mask=in_d, other=0.0).to(tl.float32)
    if i_h >= num_heads + num_key_heads:
        p_out = p_value_out + (i_m * num_key_heads + i_h - num_heads - num_key_heads) * DIM
        tl.store(p_out + o_d, b_x.to(p_value_out.dtype.element_ty), mask=in_d)
    else:
        is_query = i_h < num_heads
        position = tl.load(p_positions + i_m)
        o_partner, b_cos, b_sin = load_rotation(p_cos_sin, position, o_d, ROPE_DIM, INTERLEAVED)
        # the partner is read again from the cache line that holds the element, which is cheaper than a shuffle
        b_partner = tl.load(p_row + o_partner, mask=in_d, other=0.0).to(tl.float32)  # [D]
        if HAS_BIAS:
            b_partner += tl.load(p_bias + i_h * DIM + o_partner, mask=in_d, other=0.0).to(tl.float32)
        if HAS_NORM:
            b_scale = tl.rsqrt(tl.sum(b_x * b_x, axis=0) / DIM + eps)
            p_norm = tl.where(is_query, p_query_norm, p_key_norm)
            b_x *= b_scale * tl.load(p_norm + o_d, mask=in_d, other=0.0).to(tl.float32)
            b_partner *= b_scale * tl.load(p_norm + o_partner, mask=in_d, other=0.0).to(tl.float32)
        b_rotated = b_x * b_cos + b_partner * b_sin
        o_query = (i_m * num_heads + i_h) * DIM + o_d
        o_key = (i_m * num_key_heads + i_h - num_heads) * DIM + o_d
        tl.store(p_query_out + o_query, b_rotated.to(p_query_out.dtype.element_ty), mask=in_d & is_query)
        tl.store(p_key_out + o_key, b_rotated.to(p_key_out.dtype.element_ty), mask=in_d & (i_h >= num_heads))


def qkv_rope(
    *,
    qkv: torch.Tensor,
    bias: torch.Tensor | None,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool,
    query_out: torch.Tensor,
    key_out: torch.Tensor,
    value_out: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write query, key and value heads of each token; shapes and dtypes in the module's docstring.

    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        query_out.dim() == 3 and key_out.dim() == 3,
        f"arguments query_out and key_out must be [M, heads, D]; got {list(query_out.shape)}, {list(key_out.shape)}",
    )
    num_tokens, num_heads, dim = query_out.shape
    num_key_heads = key_out.shape[1]
    width = (num_heads + 2 * num_key_heads) * dim
    require(
        list(qkv.shape) == [num_tokens, width] and qkv.stride(1) == 1,
        f"argument qkv must be [M, (H + 2 Hkv) * D] = {[num_tokens, width]} with a contiguous last dim; "
        f"got {list(qkv.shape)} strides {qkv.stride()}",
    )
    expected = {
        "query_out": (num_heads, query_out),
        "key_out": (num_key_heads, key_out),
        "value_out": (num_key_heads, value_out),
    }
    for name, (heads, tensor) in expected.items():
        require(
            list(tensor.shape) == [num_tokens, heads, dim] and tensor.is_contiguous() and tensor.dtype == qkv.dtype,
            f"argument {name} must be contiguous {qkv.dtype} {[num_tokens, heads, dim]}; got {tensor.dtype} "
            f"{list(tensor.shape)}",
        )
    for name, vector, size in (("bias", bias, width), ("query_norm", query_norm, dim), ("key_norm", key_norm, dim)):
        require(
            vector is None or (list(vector.shape) == [size] and vector.is_contiguous()),
            f"argument {name} must be None or contiguous [{size}]; got {list(getattr(vector, 'shape', []))}",
        )
    require(
        (query_norm is None) == (key_norm is None), "arguments query_norm and key_norm must be given both or neither"
    )
    check_rotation_operands(positions=positions, cos_sin=cos_sin, num_tokens=num_tokens, dim=dim)
    _qkv_rope_kernel[(num_tokens, num_heads + 2 * num_key_heads)](
        qkv,
        qkv if bias is None else bias,
        qkv if query_norm is None else query_norm,
        qkv if key_norm is None else key_norm,
        positions,
        cos_sin,
        query_out,
        key_out,
        value_out,
        qkv.stride(0),
        num_heads,
        num_key_heads,
        eps,
        DIM=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        ROPE_DIM=2 * cos_sin.shape[2],
        INTERLEAVED=interleaved,
        HAS_BIAS=bias is not None,
        HAS_NORM=query_norm is not None,
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl=pdl),
    )
