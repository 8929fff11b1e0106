"""Append the latent and the rotated key of each token to the MLA cache, in one launch.

    cache[slots[m], :L] = latent[m],    cache[slots[m], L:] = key_rope[m]

    latent    [M, L]             rows of any stride, contiguous in the last dim (GLM-5: L = 512, after its RMSNorm)
    key_rope  [M, R]             the same (GLM-5: R = 64, after RoPE), same dtype
    slots     [M]                int32 or int64, all different: two tokens in one slot would race
    cache     [num_slots, L + R] same dtype; other rows are left alone

Letters: M tokens in the step, L latent values, R rotated values.
Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1: the latent and the shared rotated key are all that MLA caches.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require


def kv_cache_write_reference(
    latent: torch.Tensor, key_rope: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor
) -> torch.Tensor:
    """Return a copy of the cache with the tokens' rows replaced."""
    written = cache.clone()
    written[slots.long()] = torch.cat((latent, key_rope), dim=-1)
    return written


@triton.jit
def _kv_cache_write_kernel(
    p_latent,
    p_key_rope,
    p_slots,
    p_cache,
    stride_latent_m,
    stride_key_rope_m,
    stride_cache,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program copies one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    slot = tl.load(p_slots + i_m).to(tl.int64)
    p_row = p_cache + slot * stride_cache
    o_l = tl.arange(0, BLOCK_L)
    o_r = tl.arange(0, BLOCK_R)
    b_latent = tl.load(p_latent + i_m * stride_latent_m + o_l, mask=o_l < LATENT_DIM, other=0.0)  # [L]
    b_key = tl.load(p_key_rope + i_m * stride_key_rope_m + o_r, mask=o_r < ROPE_DIM, other=0.0)  # [R]
    tl.store(p_row + o_l, b_latent, mask=o_l < LATENT_DIM)
    tl.store(p_row + LATENT_DIM + o_r, b_key, mask=o_r < ROPE_DIM)


def kv_cache_write(
    *, latent: torch.Tensor, key_rope: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, pdl: bool = False
) -> None:
    """Write one cache row for each token; rows that no slot names keep their contents.

    Shapes: latent [M, L], key_rope [M, R], slots int32 or int64 [M] within the cache, cache [num_slots, L + R].
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(latent.dim() == 2, f"argument latent must be [M, L]; got {list(latent.shape)}")
    num_tokens, latent_dim = latent.shape
    require(
        key_rope.dim() == 2 and key_rope.shape[0] == num_tokens,
        f"argument key_rope must be [M, R] with M = {num_tokens}; got {list(key_rope.shape)}",
    )
    rope_dim = key_rope.shape[1]
    require(
        cache.dim() == 2 and cache.shape[1] == latent_dim + rope_dim,
        f"argument cache must be [num_slots, L + R = {latent_dim + rope_dim}]; got {list(cache.shape)}",
    )
    for name, tensor in (("latent", latent), ("key_rope", key_rope), ("cache", cache)):
        require(tensor.dtype == latent.dtype, f"argument {name} must be {latent.dtype} like latent; got {tensor.dtype}")
        require(
            tensor.stride(1) == 1, f"argument {name} must be contiguous in its last dim; got stride {tensor.stride(1)}"
        )
    check_slots(slots, num_tokens)
    _kv_cache_write_kernel[(num_tokens,)](
        latent,
        key_rope,
        slots,
        cache,
        latent.stride(0),
        key_rope.stride(0),
        cache.stride(0),
        LATENT_DIM=latent_dim,
        ROPE_DIM=rope_dim,
        BLOCK_L=triton.next_power_of_2(latent_dim),
        BLOCK_R=triton.next_power_of_2(rope_dim),
        PDL=pdl,
        num_warps=2,
        **launch_options(pdl=pdl),
    )


def check_slots(slots: torch.Tensor, num_tokens: int) -> None:
    """Raise ValueError unless `slots` names one cache row for each token."""
    require(
        tuple(slots.shape) == (num_tokens,)
        and slots.dtype in (torch.int32, torch.int64)
        and (num_tokens <= 1 or slots.stride(0) == 1),
        f"argument slots must be contiguous int32 or int64 [M] = [{num_tokens}]; "
        f"got {slots.dtype} {list(slots.shape)} with strides {slots.stride()}",
    )
