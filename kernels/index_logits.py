"""Score every cached index key of a sequence against the indexer queries of its tokens.

    out[m, s] = cache_scales[s] * sum_h weights[m, h] * max(query[m, h, :] . cache_values[s, :], 0)    s < context
    out[m, s] = -inf                                                                                  s >= context

where s is a position of the token's own sequence: token m belongs to sequence b = m // tokens_per_sequence, which owns
the slots from b * slots_per_sequence on, and sees the first context_lengths[m] positions (itself included).

    query            [M, Hi, D]      contiguous, same dtype as the cache (kernels/index_query.py)
    weights          [M, Hi]         float32, contiguous
    cache_values     [num_slots, D]  float8_e4m3fn, or bfloat16, float16, float32 (kernels/index_key.py)
    cache_scales     [num_slots]     float32
    context_lengths  [M]             int32; positions beyond S_max are ignored
    out              [M, S_max]      float32, contiguous, written fully; S_max <= slots_per_sequence

Letters: M tokens in the step, Hi index heads, D index head dim, S positions.
Source: transformers' modeling_glm_moe_dsa (indexer). On Hopper the FP8 tensor cores add up with about 14 bits, so
scores carry a relative error of about 1e-4 there.
"""

import torch
import triton
import triton.language as tl

from kernels.index_key import check_index_cache
from kernels.launch import enter_grid, launch_options, require

MIN_PROGRAMS = 128
"""Programs to aim for: H100 and H200 have 132 SMs, B200 148, RTX PRO 6000 188; tiles of 32 keys end the split."""

MAX_HEADS = 128
"""Above it the scores of one tile no longer fit the registers of its program."""


def index_logits_block_keys(num_tokens: int, num_positions: int) -> int:
    """Keys of a tile: as many as leave every SM a program."""
    block_keys = 128
    while block_keys > 32 and num_tokens * -(-num_positions // block_keys) < MIN_PROGRAMS:
        block_keys //= 2
    return block_keys


def index_logits_reference(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache_values: torch.Tensor,
    cache_scales: torch.Tensor,
    context_lengths: torch.Tensor,
    *,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    num_positions: int,
) -> torch.Tensor:
    """Scores [M, num_positions] in float32, -inf from each token's context length on."""
    out = torch.full((query.shape[0], num_positions), float("-inf"), dtype=torch.float32, device=query.device)
    for m, context in enumerate(context_lengths.tolist()):
        visible = min(context, num_positions)
        first = m // tokens_per_sequence * slots_per_sequence
        keys = cache_values[first : first + visible].to(torch.float32)
        scores = (query[m].to(torch.float32) @ keys.T).relu()
        out[m, :visible] = (weights[m] @ scores) * cache_scales[first : first + visible]
    return out


@triton.jit
def _index_logits_kernel(
    p_query,
    p_weights,
    p_cache_values,
    p_cache_scales,
    p_context_lengths,
    p_out,
    num_heads,
    num_positions,
    tokens_per_sequence,
    slots_per_sequence,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program scores BLOCK_S positions for one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK_S
    o_s = start + tl.arange(0, BLOCK_S)
    p_out_tile = p_out + i_m * num_positions + o_s
    context = tl.load(p_context_lengths + i_m)
    if start >= context:
        tl.store(p_out_tile, tl.full((BLOCK_S,), float("-inf"), tl.float32), mask=o_s < num_positions)
    else:
        o_h = tl.arange(0, BLOCK_H)
        o_d = tl.arange(0, BLOCK_D)
        in_h = o_h < num_heads
        in_d = o_d < D
        in_s = (o_s < context) & (o_s < num_positions)
        o_slot = (i_m // tokens_per_sequence) * slots_per_sequence + o_s
        p_keys = p_cache_values + o_slot[:, None] * D + o_d[None, :]
        p_queries = p_query + (i_m * num_heads + o_h[:, None]) * D + o_d[None, :]
        b_keys = tl.load(p_keys, mask=in_s[:, None] & in_d[None, :], other=0.0)  # [S, D]
        b_queries = tl.load(p_queries, mask=in_h[:, None] & in_d[None, :], other=0.0)  # [H, D]
        b_weights = tl.load(p_weights + i_m * num_heads + o_h, mask=in_h, other=0.0)  # [H]
        b_key_scales = tl.load(p_cache_scales + o_slot, mask=in_s, other=0.0)  # [S]
        b_scores = tl.dot(b_keys, tl.trans(b_queries))  # [S, H]
        b_logits = tl.sum(tl.maximum(b_scores, 0.0) * b_weights[None, :], axis=1) * b_key_scales
        tl.store(p_out_tile, tl.where(in_s, b_logits, float("-inf")), mask=o_s < num_positions)


def index_logits(
    *,
    query: torch.Tensor,
    weights: torch.Tensor,
    cache_values: torch.Tensor,
    cache_scales: torch.Tensor,
    context_lengths: torch.Tensor,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    out: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write the score of every position of each token's context, and -inf beyond it.

    Shapes and dtypes: in the module's docstring; at most 128 heads.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        query.dim() == 3 and query.is_contiguous(),
        f"argument query must be contiguous [M, Hi, D]; got {list(query.shape)} with strides {query.stride()}",
    )
    num_tokens, num_heads, dim = query.shape
    require(num_heads <= MAX_HEADS, f"argument query must have at most {MAX_HEADS} heads; got {num_heads}")
    check_index_cache(cache_values=cache_values, cache_scales=cache_scales, dim=dim)
    require(
        query.dtype == cache_values.dtype,
        f"argument query must be {cache_values.dtype} like cache_values; got {query.dtype}",
    )
    require(
        tuple(weights.shape) == (num_tokens, num_heads) and weights.dtype == torch.float32 and weights.is_contiguous(),
        f"argument weights must be contiguous float32 [M, Hi] = {[num_tokens, num_heads]}; "
        f"got {weights.dtype} {list(weights.shape)}",
    )
    check_sequences(
        context_lengths=context_lengths,
        tokens_per_sequence=tokens_per_sequence,
        slots_per_sequence=slots_per_sequence,
        num_tokens=num_tokens,
        num_slots=cache_values.shape[0],
    )
    require(
        out.dim() == 2 and out.shape[0] == num_tokens and out.dtype == torch.float32 and out.is_contiguous(),
        f"argument out must be contiguous float32 [M = {num_tokens}, S_max]; got {out.dtype} {list(out.shape)}",
    )
    num_positions = out.shape[1]
    require(
        num_positions <= slots_per_sequence,
        f"argument out must have at most slots_per_sequence = {slots_per_sequence} columns; got {num_positions}",
    )
    block_s = index_logits_block_keys(num_tokens, num_positions)
    _index_logits_kernel[(num_tokens, triton.cdiv(num_positions, block_s))](
        query,
        weights,
        cache_values,
        cache_scales,
        context_lengths,
        out,
        num_heads,
        num_positions,
        tokens_per_sequence,
        slots_per_sequence,
        D=dim,
        BLOCK_S=block_s,
        BLOCK_H=max(16, triton.next_power_of_2(num_heads)),
        BLOCK_D=max(32, triton.next_power_of_2(dim)),
        PDL=pdl,
        num_warps=8 if num_heads > 64 else 4,
        **launch_options(pdl=pdl),
    )


def check_sequences(
    *, context_lengths: torch.Tensor, tokens_per_sequence: int, slots_per_sequence: int, num_tokens: int, num_slots: int
) -> None:
    """Raise ValueError unless the tokens fall into whole sequences whose slots the cache holds."""
    require(
        tuple(context_lengths.shape) == (num_tokens,)
        and context_lengths.dtype == torch.int32
        and context_lengths.is_contiguous(),
        f"argument context_lengths must be contiguous int32 [M] = [{num_tokens}]; "
        f"got {context_lengths.dtype} {list(context_lengths.shape)}",
    )
    require(
        tokens_per_sequence >= 1 and num_tokens % tokens_per_sequence == 0,
        f"argument tokens_per_sequence must be a divisor of the {num_tokens} tokens; got {tokens_per_sequence}",
    )
    num_sequences = num_tokens // tokens_per_sequence
    require(
        slots_per_sequence >= 1 and num_sequences * slots_per_sequence <= num_slots,
        f"argument slots_per_sequence must be positive and fit {num_sequences} sequences into the cache's {num_slots} "
        f"slots; got {slots_per_sequence}",
    )
