"""Append the indexer key of each token to the index cache: LayerNorm, RoPE, FP8 quantisation and write in one launch.

    y = (key - mean) / sqrt(variance + eps) * norm_weight + norm_bias        over D
    y[:R] = RoPE(y[:R], position)
    cache_scales[slot] = 2^ceil(log2(max(amax |y|, 1e-4) / 448)),    cache_values[slot] = e4m3(y / scale)

    key           [M, D]          rows of any stride (a slice of a fused projection), last dim contiguous
    norm_weight   [D]             float32, norm_bias the same
    positions     [M]             int32
    cos_sin       [P, 2, R/2]     float32 (kernels.rope.rope_table), R <= D
    slots         [M]             int32 or int64, all different
    cache_values  [num_slots, D]  float8_e4m3fn, or bfloat16, float16, float32 (then unquantised, with scale 1)
    cache_scales  [num_slots]     float32

Letters: M tokens in the step, D index head dim (GLM-5: 128), R rotated dims (64), P positions.
Source: transformers' modeling_glm_moe_dsa (indexer); scale rounding in kernels/fp8_scale.py. The Hadamard rotation of
the DeepSeek reference is left out, as in vLLM and SGLang for this model: the scores do not depend on it.
"""

import torch
import triton
import triton.language as tl

from kernels.fp8_scale import exact_exp2, power_of_two_exponent, quantize_reference, round_to_e4m3
from kernels.kv_cache import check_slots
from kernels.launch import enter_grid, launch_options, require
from kernels.rope import check_rotation_operands, load_rotation, rotate_reference

CACHE_DTYPES = (torch.float8_e4m3fn, torch.bfloat16, torch.float16, torch.float32)


def index_key_reference(
    key: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    *,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool,
    cache_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cache rows [M, D] of `cache_dtype` and their scales [M]."""
    x = torch.nn.functional.layer_norm(key.to(torch.float32), (key.shape[1],), norm_weight, norm_bias, eps)
    angles = cos_sin[positions.long()]
    x = rotate_reference(x, angles[:, 0], angles[:, 1], interleaved=interleaved)
    if cache_dtype == torch.float8_e4m3fn:
        return quantize_reference(x)
    return x.to(cache_dtype), torch.ones(key.shape[0], dtype=torch.float32, device=key.device)


@triton.jit
def _index_key_write_kernel(
    p_key,
    p_norm_weight,
    p_norm_bias,
    p_positions,
    p_cos_sin,
    p_slots,
    p_cache_values,
    p_cache_scales,
    stride_key_m,
    eps,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    QUANTIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program writes one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    in_row = o_d < D
    slot = tl.load(p_slots + i_m).to(tl.int64)
    position = tl.load(p_positions + i_m)
    o_partner, b_cos, b_sin = load_rotation(p_cos_sin, position, o_d, ROPE_DIM, INTERLEAVED)
    p_row = p_key + i_m * stride_key_m
    b_key = tl.load(p_row + o_d, mask=in_row, other=0.0).to(tl.float32)  # [D]
    b_weight = tl.load(p_norm_weight + o_d, mask=in_row, other=0.0)  # [D]
    b_bias = tl.load(p_norm_bias + o_d, mask=in_row, other=0.0)  # [D]
    # the rotation's partners are normalised a second time instead of being shuffled between threads
    b_partner = tl.load(p_row + o_partner, mask=in_row, other=0.0).to(tl.float32)  # [D]
    b_partner_weight = tl.load(p_norm_weight + o_partner, mask=in_row, other=0.0)  # [D]
    b_partner_bias = tl.load(p_norm_bias + o_partner, mask=in_row, other=0.0)  # [D]

    mean = tl.sum(b_key, axis=0) / D
    b_centred = tl.where(in_row, b_key - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(b_centred * b_centred, axis=0) / D + eps)
    b_normed = b_centred * rstd * b_weight + b_bias
    b_partner_normed = (b_partner - mean) * rstd * b_partner_weight + b_partner_bias
    b_rotated = b_normed * b_cos + b_partner_normed * b_sin
    # masked elements are their own partners only up to D, so they are cleared before the maximum
    b_rotated = tl.where(in_row, b_rotated, 0.0)

    p_out = p_cache_values + slot * D + o_d
    if QUANTIZE:
        exponent = power_of_two_exponent(tl.max(tl.abs(b_rotated), axis=0))
        b_values = round_to_e4m3(b_rotated * exact_exp2(-exponent))
        tl.store(p_out, b_values.to(p_cache_values.dtype.element_ty), mask=in_row)
        tl.store(p_cache_scales + slot, exact_exp2(exponent))
    else:
        tl.store(p_out, b_rotated.to(p_cache_values.dtype.element_ty), mask=in_row)
        tl.store(p_cache_scales + slot, 1.0)


def index_key_write(
    *,
    key: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    eps: float,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    interleaved: bool,
    slots: torch.Tensor,
    cache_values: torch.Tensor,
    cache_scales: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write one row of the index cache and its scale for each token; other rows keep their contents.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        key.dim() == 2 and key.stride(1) == 1,
        f"argument key must be [M, D] with a contiguous last dim; got {list(key.shape)} strides {key.stride()}",
    )
    num_tokens, dim = key.shape
    for name, tensor in (("norm_weight", norm_weight), ("norm_bias", norm_bias)):
        require(
            tuple(tensor.shape) == (dim,) and tensor.dtype == torch.float32 and tensor.is_contiguous(),
            f"argument {name} must be contiguous float32 [D] = [{dim}]; got {tensor.dtype} {list(tensor.shape)}",
        )
    check_rotation_operands(positions=positions, cos_sin=cos_sin, num_tokens=num_tokens, dim=dim)
    check_slots(slots, num_tokens)
    check_index_cache(cache_values=cache_values, cache_scales=cache_scales, dim=dim)
    _index_key_write_kernel[(num_tokens,)](
        key,
        norm_weight,
        norm_bias,
        positions,
        cos_sin,
        slots,
        cache_values,
        cache_scales,
        key.stride(0),
        eps,
        D=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        ROPE_DIM=2 * cos_sin.shape[2],
        INTERLEAVED=interleaved,
        QUANTIZE=cache_values.dtype == torch.float8_e4m3fn,
        PDL=pdl,
        num_warps=1 if dim <= 128 else 4,
        **launch_options(pdl=pdl),
    )


def check_index_cache(*, cache_values: torch.Tensor, cache_scales: torch.Tensor, dim: int) -> None:
    """Raise ValueError unless the pair is an index cache for keys of `dim` values."""
    require(
        cache_values.dim() == 2 and cache_values.shape[1] == dim and cache_values.is_contiguous(),
        f"argument cache_values must be contiguous [num_slots, D = {dim}]; "
        f"got {list(cache_values.shape)} with strides {cache_values.stride()}",
    )
    require(
        cache_values.dtype in CACHE_DTYPES,
        f"argument cache_values must be one of {', '.join(map(str, CACHE_DTYPES))}; got {cache_values.dtype}",
    )
    num_slots = cache_values.shape[0]
    require(
        tuple(cache_scales.shape) == (num_slots,)
        and cache_scales.dtype == torch.float32
        and cache_scales.is_contiguous(),
        f"argument cache_scales must be contiguous float32 [num_slots] = [{num_slots}]; "
        f"got {cache_scales.dtype} {list(cache_scales.shape)}",
    )
