"""Absorbed multi-head latent attention of a decode step over cached latents, split along the keys (flash decoding).

    score[m, h, s] = scale * (query[m, h, :L] . latent[s] + query[m, h, L:] . key_rope[s])
    out[m, h] = softmax over s of score[m, h, s], times latent[s]

Keys and values are the same cached row: its first L values are the latent, which is the value too; the last R are the
rotated key. Every head reads the same rows. Each program covers one share ("split") of a token's keys and writes its
own softmax-weighted sum and the logarithm of its sum of exponentials; kernels/mla_combine.py joins the splits.

    query            [M, H, L + R]       strides of M and H are free, last dim contiguous, dtype of the cache
    cache            [num_slots, L + R]  contiguous; sequence b = m // tokens_per_sequence owns the slots from
                                         b * slots_per_sequence on, in order of position
    selected         [M, k] or None      int32 positions, -1 = absent, anywhere in the row; None: the whole context
    context_lengths  [M]                 int32; positions from the context length on are never read
    partial_out      [M, H, splits, L]   float32, contiguous, written fully; zeros where a split has no keys
    partial_lse      [M, H, splits]      float32, contiguous, natural logarithm; -inf where a split has no keys

The number of splits is the caller's (kernels.tiling.mla_num_splits). Each split takes an equal share of the token's own
keys, so a context far shorter than the cache still keeps all programs busy.

Letters: M tokens in the step, H heads on this rank (GLM-5: 64, or 8 at TP = 8), L latent (512), R rotated (64), k
selected positions (2048), S cached positions of a sequence.
Sources: DeepSeek-V2 (arXiv 2405.04434), section 2.1; flash decoding (Dao et al. 2023, pytorch.org/blog/flash-decoding).
"""

import torch
import triton
import triton.language as tl

from kernels.index_logits import check_sequences
from kernels.launch import enter_grid, launch_options, require

BLOCK_S = 32
"""Keys of an iteration: with the queries a tile of bfloat16 takes 56 kB of shared memory; sm_120 has 101,376 B."""

BLOCK_H = 16
"""Heads of a program, the smallest that a tensor-core product takes; more heads are spread over more programs."""


def mla_decode_reference(
    query: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor | None,
    context_lengths: torch.Tensor,
    *,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    latent_dim: int,
    scale: float,
) -> torch.Tensor:
    """Attention output after combination, float32 [M, H, L] (float64 for float64 input); zeros without any key."""
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    out = torch.zeros((query.shape[0], query.shape[1], latent_dim), dtype=dtype, device=query.device)
    for m, context in enumerate(context_lengths.tolist()):
        if selected is None:
            positions = torch.arange(context, device=query.device)
        else:
            positions = selected[m][(selected[m] >= 0) & (selected[m] < context)].long()
        if positions.numel() == 0:
            continue
        rows = cache[m // tokens_per_sequence * slots_per_sequence + positions].to(dtype)
        weights = torch.softmax(scale * (query[m].to(dtype) @ rows.T), dim=-1)
        out[m] = weights @ rows[:, :latent_dim]
    return out


@triton.jit
def split_range(num_keys, i_split, num_splits, BLOCK_S: tl.constexpr):
    """Return the first key and the end of a split: equal shares in whole tiles, so late splits may be empty."""
    share = tl.cdiv(tl.cdiv(num_keys, num_splits), BLOCK_S) * BLOCK_S
    first = i_split * share
    return first, tl.minimum(first + share, num_keys)


@triton.jit
def softmax_step(b_scores, b_max, b_sum):
    """One step of the online softmax over [H, S] base-2 scores: weights, correction of the past, new maximum and sum.

    Rows without any key so far keep a maximum of -inf; they are shifted by 0 instead, which avoids -inf minus -inf.
    """
    b_new_max = tl.maximum(b_max, tl.max(b_scores, axis=1))
    b_shift = tl.where(b_new_max == float("-inf"), 0.0, b_new_max)
    b_weights = tl.exp2(b_scores - b_shift[:, None])
    b_correction = tl.exp2(b_max - b_shift)
    return b_weights, b_correction, b_new_max, b_sum * b_correction + tl.sum(b_weights, axis=1)


@triton.jit
def log_sum_exp(b_max, b_sum):
    """Natural logarithm of the sum of exponentials, from a base-2 maximum and the sum relative to it."""
    b_has_keys = b_sum > 0.0
    b_lse = (b_max + tl.log2(tl.where(b_has_keys, b_sum, 1.0))) * 0.6931471805599453
    return tl.where(b_has_keys, b_lse, float("-inf"))


@triton.jit
def _mla_decode_kernel(
    p_query,
    p_cache,
    p_selected,
    p_context_lengths,
    p_partial_out,
    p_partial_lse,
    stride_query_m,
    stride_query_h,
    num_heads,
    num_selected,
    tokens_per_sequence,
    slots_per_sequence,
    num_splits,
    scale_log2,
    IS_SPARSE: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program attends BLOCK_H heads of one token to one split of its keys."""
    enter_grid(PDL)
    i_split = tl.program_id(0)
    i_m = tl.program_id(2).to(tl.int64)
    o_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    o_l = tl.arange(0, BLOCK_L)
    o_r = tl.arange(0, BLOCK_R)
    in_h = o_h < num_heads
    in_l = o_l < LATENT_DIM
    in_r = o_r < ROPE_DIM
    p_query_rows = p_query + i_m * stride_query_m + o_h[:, None] * stride_query_h
    b_query = tl.load(p_query_rows + o_l[None, :], mask=in_h[:, None] & in_l[None, :], other=0.0)  # [H, L]
    b_query_rope = tl.load(
        p_query_rows + LATENT_DIM + o_r[None, :], mask=in_h[:, None] & in_r[None, :], other=0.0
    )  # [H, R]
    context = tl.load(p_context_lengths + i_m)
    p_sequence = p_cache + (i_m // tokens_per_sequence) * slots_per_sequence * (LATENT_DIM + ROPE_DIM)
    num_keys = num_selected if IS_SPARSE else tl.minimum(context, slots_per_sequence)
    first, end = split_range(num_keys, i_split, num_splits, BLOCK_S)

    b_max = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    b_sum = tl.zeros((BLOCK_H,), dtype=tl.float32)
    b_acc = tl.zeros((BLOCK_H, BLOCK_L), dtype=tl.float32)
    for start in range(first, end, BLOCK_S):
        o_s = start + tl.arange(0, BLOCK_S)
        in_s = o_s < end
        if IS_SPARSE:
            o_position = tl.load(p_selected + i_m * num_selected + o_s, mask=in_s, other=-1)  # [S]
            in_s = (o_position >= 0) & (o_position < context)
        else:
            o_position = o_s
        p_rows = p_sequence + o_position.to(tl.int64)[:, None] * (LATENT_DIM + ROPE_DIM)
        b_latent = tl.load(p_rows + o_l[None, :], mask=in_s[:, None] & in_l[None, :], other=0.0)  # [S, L]
        b_key_rope = tl.load(
            p_rows + LATENT_DIM + o_r[None, :], mask=in_s[:, None] & in_r[None, :], other=0.0
        )  # [S, R]
        b_scores = tl.dot(b_query, tl.trans(b_latent))  # [H, S]
        b_scores = tl.dot(b_query_rope, tl.trans(b_key_rope), b_scores)
        b_scores = tl.where(in_s[None, :], b_scores * scale_log2, float("-inf"))
        b_weights, b_correction, b_max, b_sum = softmax_step(b_scores, b_max, b_sum)
        b_acc = tl.dot(b_weights.to(b_latent.dtype), b_latent, b_acc * b_correction[:, None])

    o_partial = (i_m * num_heads + o_h) * num_splits + i_split
    b_out = b_acc / tl.where(b_sum > 0.0, b_sum, 1.0)[:, None]
    tl.store(p_partial_lse + o_partial, log_sum_exp(b_max, b_sum), mask=in_h)
    p_out = p_partial_out + o_partial[:, None] * LATENT_DIM + o_l[None, :]
    tl.store(p_out, b_out, mask=in_h[:, None] & in_l[None, :])


def mla_decode(
    *,
    query: torch.Tensor,
    cache: torch.Tensor,
    selected: torch.Tensor | None,
    context_lengths: torch.Tensor,
    tokens_per_sequence: int,
    slots_per_sequence: int,
    scale: float,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write each split's attention output and log-sum-exp; the last dim of `partial_out` says what L is.

    Shapes and dtypes: in the module's docstring; `scale` multiplies the scores (GLM-5: 256^-0.5).
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        query.dim() == 3 and query.stride(2) == 1,
        f"argument query must be [M, H, L + R] with a contiguous last dim; got {list(query.shape)} "
        f"strides {query.stride()}",
    )
    num_tokens, num_heads, row_dim = query.shape
    require(
        cache.dim() == 2 and cache.shape[1] == row_dim and cache.is_contiguous(),
        f"argument cache must be contiguous [num_slots, L + R = {row_dim}]; got {list(cache.shape)} "
        f"strides {cache.stride()}",
    )
    require(cache.dtype == query.dtype, f"argument cache must be {query.dtype} like query; got {cache.dtype}")
    if selected is not None:
        require(
            selected.dim() == 2
            and selected.shape[0] == num_tokens
            and selected.dtype == torch.int32
            and selected.is_contiguous(),
            f"argument selected must be contiguous int32 [M = {num_tokens}, k] or None; "
            f"got {selected.dtype} {list(selected.shape)}",
        )
    check_sequences(
        context_lengths=context_lengths,
        tokens_per_sequence=tokens_per_sequence,
        slots_per_sequence=slots_per_sequence,
        num_tokens=num_tokens,
        num_slots=cache.shape[0],
    )
    num_splits = check_partials(partial_out, partial_lse, num_tokens=num_tokens, num_heads=num_heads)
    latent_dim = partial_out.shape[3]
    require(
        latent_dim < row_dim,
        f"argument partial_out must have a last dim L below L + R = {row_dim} (the rest is the rotated key); "
        f"got {latent_dim}",
    )
    _mla_decode_kernel[(num_splits, triton.cdiv(num_heads, BLOCK_H), num_tokens)](
        query,
        cache,
        selected,
        context_lengths,
        partial_out,
        partial_lse,
        query.stride(0),
        query.stride(1),
        num_heads,
        0 if selected is None else selected.shape[1],
        tokens_per_sequence,
        slots_per_sequence,
        num_splits,
        scale * 1.4426950408889634,
        IS_SPARSE=selected is not None,
        LATENT_DIM=latent_dim,
        ROPE_DIM=row_dim - latent_dim,
        BLOCK_H=BLOCK_H,
        BLOCK_S=BLOCK_S,
        BLOCK_L=max(16, triton.next_power_of_2(latent_dim)),
        BLOCK_R=max(16, triton.next_power_of_2(row_dim - latent_dim)),
        PDL=pdl,
        num_warps=4,
        num_stages=2,
        **launch_options(pdl=pdl),
    )


def check_partials(partial_out: torch.Tensor, partial_lse: torch.Tensor, *, num_tokens: int, num_heads: int) -> int:
    """Return the number of splits; raise ValueError unless the pair can hold every split's result."""
    require(
        partial_out.dim() == 4
        and tuple(partial_out.shape[:2]) == (num_tokens, num_heads)
        and partial_out.dtype == torch.float32
        and partial_out.is_contiguous(),
        f"argument partial_out must be contiguous float32 [M = {num_tokens}, H = {num_heads}, splits, L]; "
        f"got {partial_out.dtype} {list(partial_out.shape)}",
    )
    require(
        partial_lse.shape == partial_out.shape[:3]
        and partial_lse.dtype == torch.float32
        and partial_lse.is_contiguous(),
        f"argument partial_lse must be contiguous float32 {list(partial_out.shape[:3])} like partial_out; "
        f"got {partial_lse.dtype} {list(partial_lse.shape)}",
    )
    return partial_out.shape[2]
