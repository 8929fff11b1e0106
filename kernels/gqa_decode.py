"""Grouped-query attention of a decode step over a cache, split along the keys (flash decoding); and its cache write.

    out[m, h] = softmax over s < context of (scale * query[m, h] . key_cache[s, h // G]), times value_cache[s, h // G]

Each program covers one split of a token's keys for the G query heads of one key head, and writes its own
softmax-weighted sum and log-sum-exp; kernels/mla_combine.py joins the splits.

    query            [M, H, Dh]            strides of M and H are free, last dim contiguous, dtype of the caches
    key_cache        [num_slots, Hkv, Dh]  contiguous; sequence b = m // tokens_per_sequence owns the slots from
    value_cache      [num_slots, Hkv, Dh]  b * slots_per_sequence on, in order of position
    context_lengths  [M]                   int32; positions from the context length on are never read
    partial_out      [M, H, splits, Dh]    float32, contiguous, written fully; zeros where a split has no keys
    partial_lse      [M, H, splits]        float32, contiguous, natural logarithm; -inf where a split has no keys

Letters: M tokens in the step, H query heads and Hkv key heads on this rank, G = H / Hkv, Dh head dim, S positions.
Sources: GQA (Ainslie et al. 2023, arXiv 2305.13245); flash decoding (Dao et al. 2023, pytorch.org/blog/flash-decoding).
"""

import torch
import triton
import triton.language as tl

from kernels.index_logits import check_sequences
from kernels.kv_cache import check_slots
from kernels.launch import enter_grid, launch_options, require
from kernels.mla_decode import check_partials, log_sum_exp, softmax_step, split_range

BLOCK_S = 32
"""Keys of an iteration."""

BLOCK_G = 16
"""Query heads of a program, the smallest that a tensor-core product takes; larger groups take more programs."""


def gqa_decode_reference(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    context_lengths: torch.Tensor,
    *,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    scale: float,
) -> torch.Tensor:
    """Attention output after combination, float32 [M, H, Dh] (float64 for float64 input); zeros without any key."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = torch.zeros(query.shape, dtype=dtype, device=query.device)
    group = query.shape[1] // key_cache.shape[1]
    for m, context in enumerate(context_lengths.tolist()):
        first = m // tokens_per_sequence * slots_per_sequence
        keys = key_cache[first : first + context].to(dtype).repeat_interleave(group, dim=1)
        values = value_cache[first : first + context].to(dtype).repeat_interleave(group, dim=1)
        weights = torch.softmax(scale * torch.einsum("hd,shd->hs", query[m].to(dtype), keys), dim=-1)
        out[m] = torch.einsum("hs,shd->hd", weights, values)
    return out


@triton.jit
def _gqa_decode_kernel(
    p_query,
    p_key_cache,
    p_value_cache,
    p_context_lengths,
    p_partial_out,
    p_partial_lse,
    stride_query_m,
    stride_query_h,
    num_key_heads,
    tokens_per_sequence,
    slots_per_sequence,
    num_splits,
    scale_log2,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program attends up to BLOCK_G query heads of one key head of one token to one split of its keys."""
    enter_grid(PDL)
    i_split = tl.program_id(0)
    i_m = tl.program_id(2).to(tl.int64)
    GROUP_TILES: tl.constexpr = (GROUP + BLOCK_G - 1) // BLOCK_G
    i_hk = tl.program_id(1) // GROUP_TILES
    o_g = (tl.program_id(1) % GROUP_TILES) * BLOCK_G + tl.arange(0, BLOCK_G)
    o_h = i_hk * GROUP + o_g
    o_d = tl.arange(0, BLOCK_D)
    in_g = o_g < GROUP
    in_d = o_d < DIM
    p_query_rows = p_query + i_m * stride_query_m + o_h[:, None] * stride_query_h
    b_query = tl.load(p_query_rows + o_d[None, :], mask=in_g[:, None] & in_d[None, :], other=0.0)  # [G, D]
    num_keys = tl.minimum(tl.load(p_context_lengths + i_m), slots_per_sequence)
    first, end = split_range(num_keys, i_split, num_splits, BLOCK_S)
    first_slot = (i_m // tokens_per_sequence) * slots_per_sequence
    stride_slot = num_key_heads * DIM
    o_sequence = first_slot * stride_slot + i_hk * DIM

    b_max = tl.full((BLOCK_G,), float("-inf"), dtype=tl.float32)
    b_sum = tl.zeros((BLOCK_G,), dtype=tl.float32)
    b_acc = tl.zeros((BLOCK_G, BLOCK_D), dtype=tl.float32)
    for start in range(first, end, BLOCK_S):
        o_s = start + tl.arange(0, BLOCK_S)
        in_s = o_s < end
        o_tile = o_sequence + o_s.to(tl.int64)[:, None] * stride_slot + o_d[None, :]
        in_tile = in_s[:, None] & in_d[None, :]
        b_key = tl.load(p_key_cache + o_tile, mask=in_tile, other=0.0)  # [S, D]
        b_value = tl.load(p_value_cache + o_tile, mask=in_tile, other=0.0)  # [S, D]
        b_scores = tl.dot(b_query, tl.trans(b_key)) * scale_log2  # [G, S]
        b_scores = tl.where(in_s[None, :], b_scores, float("-inf"))
        b_weights, b_correction, b_max, b_sum = softmax_step(b_scores, b_max, b_sum)
        b_acc = tl.dot(b_weights.to(b_value.dtype), b_value, b_acc * b_correction[:, None])

    o_partial = (i_m * num_key_heads * GROUP + o_h) * num_splits + i_split
    b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
    tl.store(p_partial_lse + o_partial, log_sum_exp(b_max, b_sum), mask=in_g)
    p_out = p_partial_out + o_partial[:, None] * DIM + o_d[None, :]
    tl.store(p_out, b_out, mask=in_g[:, None] & in_d[None, :])


def gqa_decode(
    *,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    context_lengths: torch.Tensor,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    scale: float,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write each split's attention output and log-sum-exp, for kernels.mla_combine.mla_combine to join.

    Shapes and dtypes: in the module's docstring; `scale` multiplies the scores.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        query.dim() == 3 and query.stride(2) == 1,
        f"argument query must be [M, H, Dh] with a contiguous last dim; got {list(query.shape)} "
        f"strides {query.stride()}",
    )
    num_tokens, num_heads, dim = query.shape
    check_caches(key_cache, value_cache, dim=dim, dtype=query.dtype)
    num_slots, num_key_heads = key_cache.shape[:2]
    require(
        num_heads % num_key_heads == 0,
        f"argument query must have a multiple of the cache's {num_key_heads} key heads; got {num_heads} heads",
    )
    check_sequences(
        context_lengths=context_lengths,
        tokens_per_sequence=tokens_per_sequence,
        slots_per_sequence=slots_per_sequence,
        num_tokens=num_tokens,
        num_slots=num_slots,
    )
    num_splits = check_partials(partial_out, partial_lse, num_tokens=num_tokens, num_heads=num_heads)
    require(
        partial_out.shape[3] == dim,
        f"argument partial_out must have a last dim of {dim} like query; got {partial_out.shape[3]}",
    )
    group = num_heads // num_key_heads
    _gqa_decode_kernel[(num_splits, num_key_heads * triton.cdiv(group, BLOCK_G), num_tokens)](
        query,
        key_cache,
        value_cache,
        context_lengths,
        partial_out,
        partial_lse,
        query.stride(0),
        query.stride(1),
        num_key_heads,
        tokens_per_sequence,
        slots_per_sequence,
        num_splits,
        scale * 1.4426950408889634,
        GROUP=group,
        DIM=dim,
        BLOCK_G=BLOCK_G,
        BLOCK_S=BLOCK_S,
        BLOCK_D=max(16, triton.next_power_of_2(dim)),
        PDL=pdl,
        num_warps=4,
        num_stages=2,
        **launch_options(pdl=pdl),
    )


def gqa_cache_write_reference(
    key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return copies of both caches with the tokens' rows replaced."""
    written_keys, written_values = key_cache.clone(), value_cache.clone()
    written_keys[slots.long()], written_values[slots.long()] = key, value
    return written_keys, written_values


@triton.jit
def _gqa_cache_write_kernel(
    p_key,
    p_value,
    p_slots,
    p_key_cache,
    p_value_cache,
    stride_key_m,
    stride_key_h,
    stride_value_m,
    stride_value_h,
    num_key_heads,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program copies one key head of one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    o_d = tl.arange(0, BLOCK_D)
    in_d = o_d < DIM
    slot = tl.load(p_slots + i_m).to(tl.int64)
    b_key = tl.load(p_key + i_m * stride_key_m + i_h * stride_key_h + o_d, mask=in_d, other=0.0)  # [D]
    b_value = tl.load(p_value + i_m * stride_value_m + i_h * stride_value_h + o_d, mask=in_d, other=0.0)  # [D]
    o_row = (slot * num_key_heads + i_h) * DIM + o_d
    tl.store(p_key_cache + o_row, b_key, mask=in_d)
    tl.store(p_value_cache + o_row, b_value, mask=in_d)


def gqa_cache_write(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Append the key and value heads of each token; rows that no slot names keep their contents.

    Shapes: key, value [M, Hkv, Dh] (last dim contiguous), slots int32 or int64 [M], all different and within the
    cache, key_cache, value_cache contiguous [num_slots, Hkv, Dh]; one dtype.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(key.dim() == 3, f"argument key must be [M, Hkv, Dh]; got {list(key.shape)}")
    num_tokens, num_key_heads, dim = key.shape
    check_caches(key_cache, value_cache, dim=dim, dtype=key.dtype)
    require(
        key_cache.shape[1] == num_key_heads,
        f"argument key must have {key_cache.shape[1]} heads like key_cache; got {num_key_heads}",
    )
    for name, tensor in (("key", key), ("value", value)):
        require(
            tensor.shape == key.shape and tensor.dtype == key.dtype and tensor.stride(2) == 1,
            f"argument {name} must be {key.dtype} {list(key.shape)} with a contiguous last dim; got {tensor.dtype} "
            f"{list(tensor.shape)} strides {tensor.stride()}",
        )
    check_slots(slots, num_tokens)
    _gqa_cache_write_kernel[(num_tokens, num_key_heads)](
        key,
        value,
        slots,
        key_cache,
        value_cache,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        num_key_heads,
        DIM=dim,
        BLOCK_D=triton.next_power_of_2(dim),
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl=pdl),
    )


def check_caches(key_cache: torch.Tensor, value_cache: torch.Tensor, *, dim: int, dtype: torch.dtype) -> None:
    """Raise ValueError unless the two caches have one shape, heads of `dim` values, and the activations' dtype."""
    require(
        key_cache.dim() == 3 and key_cache.shape[2] == dim and key_cache.is_contiguous() and key_cache.dtype == dtype,
        f"argument key_cache must be contiguous {dtype} [num_slots, Hkv, Dh = {dim}]; got {key_cache.dtype} "
        f"{list(key_cache.shape)} strides {key_cache.stride()}",
    )
    require(
        value_cache.shape == key_cache.shape and value_cache.is_contiguous() and value_cache.dtype == dtype,
        f"argument value_cache must be contiguous {dtype} {list(key_cache.shape)} like key_cache; "
        f"got {value_cache.dtype} {list(value_cache.shape)}",
    )
