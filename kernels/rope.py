"""Rotary position embedding of the query heads and the key heads of a decode step, in one launch.

Each pair (a, b) of the first R values of a head is turned by the angle of its position and its pair index i:

    a' = a cos - b sin,    b' = b cos + a sin,    angle = position * theta^(-2i/R)

Interleaved layout (GLM-5 MLA): the pairs are (2i, 2i + 1). Half-split layout (DeepSeek-V3.2 indexer, GLM-4.5, Qwen3):
the pairs are (i, i + R/2). The output keeps the element order of the input; values beyond R are copied.

    query      [M, H, Dq]     any strides, last dim contiguous      query_out  the same shape
    key        [M, Hk, Dk]    same dtype as query                   key_out    the same shape
    positions  [M]            int32
    cos_sin    [P, 2, R/2]    float32: cosines, then sines, of each position (`rope_table`)

Letters: M tokens in the step, H query heads, Hk key heads, D head dim, R rotated dims, P positions in the table.
Source: Su et al. 2021, RoFormer (arXiv 2104.09864), section 3.2.2; layouts as in transformers' modeling_glm_moe_dsa.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require


def rope_table(
    num_positions: int, rope_dim: int, theta: float, device: torch.device | str, *, inv_freq: torch.Tensor | None = None
) -> torch.Tensor:
    """Cosines and sines of every position, float32 [num_positions, 2, rope_dim / 2].

    `inv_freq` [rope_dim / 2] replaces theta^(-2i / rope_dim), for scaled variants such as yarn. The angles are formed
    in float64: in float32 the angle of position 200,000 would be off by 0.01 rad.
    """
    require(rope_dim % 2 == 0 and rope_dim > 0, f"argument rope_dim must be even and positive; got {rope_dim}")
    if inv_freq is None:
        inv_freq = theta ** (-torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim)
    require(
        tuple(inv_freq.shape) == (rope_dim // 2,),
        f"argument inv_freq must be [rope_dim / 2] = [{rope_dim // 2}]; got {list(inv_freq.shape)}",
    )
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = positions[:, None] * inv_freq.to(device="cpu", dtype=torch.float64)[None, :]
    return torch.stack((angles.cos(), angles.sin()), dim=1).to(dtype=torch.float32, device=device)


def rotate_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Rotate the first 2 * cos.shape[-1] values of the last dim of x; cos and sin broadcast against the pairs."""
    rope_dim = 2 * cos.shape[-1]
    rotated, rest = x[..., :rope_dim], x[..., rope_dim:]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., : rope_dim // 2], rotated[..., rope_dim // 2 :]
    new_first, new_second = first * cos - second * sin, second * cos + first * sin
    if interleaved:
        rotated = torch.stack((new_first, new_second), dim=-1).flatten(-2)
    else:
        rotated = torch.cat((new_first, new_second), dim=-1)
    return torch.cat((rotated, rest), dim=-1)


def rope_reference(
    query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, *, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated query and key in float32 (float64 for float64 input)."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    angles = cos_sin[positions.long()].to(dtype)
    cos, sin = angles[:, None, 0], angles[:, None, 1]
    return (
        rotate_reference(query.to(dtype), cos, sin, interleaved=interleaved),
        rotate_reference(key.to(dtype), cos, sin, interleaved=interleaved),
    )


@triton.jit
def load_rotation(p_cos_sin, position, o_d, ROPE_DIM: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return, for each element of a head, its partner's offset, its cosine, and its sine with the partner's sign.

    The rotated value is x * cosine + x[partner] * signed_sine. Elements beyond ROPE_DIM are their own partners, and
    their angles are 1 and 0.
    """
    HALF: tl.constexpr = ROPE_DIM // 2
    in_rope = o_d < ROPE_DIM
    if INTERLEAVED:
        o_pair = o_d // 2
        is_first = (o_d % 2) == 0
        o_partner = o_d ^ 1
    else:
        o_pair = o_d % HALF
        is_first = o_d < HALF
        o_partner = tl.where(is_first, o_d + HALF, o_d - HALF)
    o_partner = tl.where(in_rope, o_partner, o_d)
    p_row = p_cos_sin + position.to(tl.int64) * ROPE_DIM
    b_cos = tl.load(p_row + o_pair, mask=in_rope, other=1.0)
    b_sin = tl.load(p_row + HALF + o_pair, mask=in_rope, other=0.0)
    return o_partner, b_cos, tl.where(is_first, -b_sin, b_sin)


@triton.jit
def _rotate_row(p_in, p_out, p_cos_sin, position, dim, ROPE_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
                INTERLEAVED: tl.constexpr):  # fmt: skip
    o_d = tl.arange(0, BLOCK_D)
    in_row = o_d < dim
    o_partner, b_cos, b_sin = load_rotation(p_cos_sin, position, o_d, ROPE_DIM, INTERLEAVED)
    # the partner is read again from the cache line that holds the element, which is cheaper than a shuffle
    b_in = tl.load(p_in + o_d, mask=in_row, other=0.0)  # [D]
    b_partner = tl.load(p_in + o_partner, mask=in_row, other=0.0).to(tl.float32)  # [D]
    b_rotated = b_in.to(tl.float32) * b_cos + b_partner * b_sin
    tl.store(p_out + o_d, tl.where(o_d < ROPE_DIM, b_rotated.to(b_in.dtype), b_in), mask=in_row)


@triton.jit
def _rope_kernel(
    p_query,
    p_key,
    p_positions,
    p_cos_sin,
    p_query_out,
    p_key_out,
    stride_query_m,
    stride_query_h,
    stride_key_m,
    stride_key_h,
    stride_query_out_m,
    stride_query_out_h,
    stride_key_out_m,
    stride_key_out_h,
    num_query_heads,
    query_dim,
    key_dim,
    ROPE_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program rotates one head of one token; the heads of the key follow those of the query."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    position = tl.load(p_positions + i_m)
    if i_h < num_query_heads:
        p_in = p_query + i_m * stride_query_m + i_h * stride_query_h
        p_out = p_query_out + i_m * stride_query_out_m + i_h * stride_query_out_h
        _rotate_row(p_in, p_out, p_cos_sin, position, query_dim, ROPE_DIM, BLOCK_D, INTERLEAVED)
    else:
        i_hk = i_h - num_query_heads
        p_in = p_key + i_m * stride_key_m + i_hk * stride_key_h
        p_out = p_key_out + i_m * stride_key_out_m + i_hk * stride_key_out_h
        _rotate_row(p_in, p_out, p_cos_sin, position, key_dim, ROPE_DIM, BLOCK_D, INTERLEAVED)


def rope(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    query_out: torch.Tensor,
    key_out: torch.Tensor,
    interleaved: bool,
    pdl: bool = False,
) -> None:
    """Write the rotated query and key heads into `query_out` and `key_out`, which must not overlap the inputs.

    Shapes: query, query_out [M, H, Dq]; key, key_out [M, Hk, Dk]; one dtype; last dim contiguous. positions int32 [M];
    cos_sin float32 [P, 2, R/2] with R no larger than Dq and Dk.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(query.dim() == 3, f"argument query must be [M, H, Dq]; got {list(query.shape)}")
    num_tokens, num_query_heads, query_dim = query.shape
    require(
        key.dim() == 3 and key.shape[0] == num_tokens,
        f"argument key must be [M, Hk, Dk] with M = {num_tokens}; got {list(key.shape)}",
    )
    check_rotation_operands(positions=positions, cos_sin=cos_sin, num_tokens=num_tokens, dim=query_dim)
    rope_dim = 2 * cos_sin.shape[2]
    num_key_heads, key_dim = key.shape[1:]
    require(rope_dim <= key_dim, f"argument key must have a last dim of at least R = {rope_dim}; got {key_dim}")
    for name, tensor, like in (("query_out", query_out, query), ("key_out", key_out, key)):
        require(
            tensor.shape == like.shape,
            f"argument {name} must be {list(like.shape)} like its input; got {list(tensor.shape)}",
        )
    for name, tensor in (("query", query), ("key", key), ("query_out", query_out), ("key_out", key_out)):
        require(tensor.dtype == query.dtype, f"argument {name} must be {query.dtype} like query; got {tensor.dtype}")
        require(
            tensor.stride(2) == 1, f"argument {name} must be contiguous in its last dim; got stride {tensor.stride(2)}"
        )
    block_d = triton.next_power_of_2(max(query_dim, key_dim))
    _rope_kernel[(num_tokens, num_query_heads + num_key_heads)](
        query,
        key,
        positions,
        cos_sin,
        query_out,
        key_out,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        query_out.stride(0),
        query_out.stride(1),
        key_out.stride(0),
        key_out.stride(1),
        num_query_heads,
        query_dim,
        key_dim,
        ROPE_DIM=rope_dim,
        BLOCK_D=block_d,
        INTERLEAVED=interleaved,
        PDL=pdl,
        num_warps=1 if block_d <= 128 else 4,
        **launch_options(pdl=pdl),
    )


def check_rotation_operands(*, positions: torch.Tensor, cos_sin: torch.Tensor, num_tokens: int, dim: int) -> None:
    """Raise ValueError unless `positions` and `cos_sin` can rotate the first values of heads of `dim` values."""
    require(
        tuple(positions.shape) == (num_tokens,) and positions.dtype == torch.int32 and positions.is_contiguous(),
        f"argument positions must be contiguous int32 [M] = [{num_tokens}]; "
        f"got {positions.dtype} {list(positions.shape)} with strides {positions.stride()}",
    )
    require(
        cos_sin.dim() == 3 and cos_sin.shape[1] == 2 and cos_sin.dtype == torch.float32 and cos_sin.is_contiguous(),
        f"argument cos_sin must be contiguous float32 [P, 2, R/2] (see rope_table); "
        f"got {cos_sin.dtype} {list(cos_sin.shape)} with strides {cos_sin.stride()}",
    )
    require(
        2 * cos_sin.shape[2] <= dim,
        f"argument cos_sin must rotate at most the head's {dim} values; got R = {2 * cos_sin.shape[2]}",
    )
