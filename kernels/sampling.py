"""Greedy sampling over a vocabulary-parallel head: the best of each rank's logits, then the best of the ranks.

    values[m], ids[m] = max and argmax of logits[m, :num_valid], the id counted from vocab_start     (`local_argmax`)
    out[m] = ids[w, m] of the rank w with the largest values[w, m]                                   (`greedy`)

Between the two the ranks exchange eight bytes a token instead of their logits. Ties go to the lower id. NaN is never
chosen, unless there is nothing else: then the rank reports (NaN, vocab_start), as it does with num_valid = 0, and any
other rank's value beats it.

    logits  [M, V]          bfloat16, float16 or float32; rows of any stride, contiguous in the last dim
    values  [M] or [W, M]   float32, contiguous
    ids     the same        int32, contiguous
    out     [M]             int32, contiguous

Letters: M tokens in the step, V logits of this rank (GLM-5 at TP = 8: 19360), W ranks.
"""

import math

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.order import EXCLUDED_KEY, NAN_KEY, key_id, key_value, order_key

BLOCK_V = 8192
"""Logits of one iteration: 16 bytes of 16-bit logits a thread at 32 warps, three iterations for 19360."""

BLOCK_TOKENS = 64
"""Tokens a program of `greedy` decides."""

LOGIT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def local_argmax_reference(logits: torch.Tensor, vocab_start: int, num_valid: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values float32 [M] (float64 for float64 logits) and ids int32 [M]."""
    logits = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)[:, :num_valid]
    values = logits.new_full((logits.shape[0],), float("nan"))
    ids = torch.full((logits.shape[0],), vocab_start, dtype=torch.int32, device=logits.device)
    for m, row in enumerate(logits):
        candidates = (~row.isnan()).nonzero().flatten()
        if candidates.numel():
            values[m] = row[candidates].max()
            ids[m] = vocab_start + candidates[row[candidates] == values[m]][0]
    return values, ids


def greedy_reference(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Ids int32 [M]."""
    chosen = []
    for token_values, token_ids in zip(values.T.tolist(), ids.T.tolist(), strict=True):
        numbers = [value for value in token_values if not math.isnan(value)]
        best_ids = [i for value, i in zip(token_values, token_ids, strict=True) if not numbers or value == max(numbers)]
        chosen.append(min(best_ids))
    return torch.tensor(chosen, dtype=torch.int32, device=values.device)


@triton.jit(do_not_specialize=["vocab_start"])
def _local_argmax_kernel(
    p_logits, p_values, p_ids, vocab_start, num_valid, stride_logits, BLOCK_V: tl.constexpr, PDL: tl.constexpr
):
    """One program scans one row."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_m * stride_logits
    # padding counts as NaN at id 0, which is what an empty row reports
    b_best = tl.full((BLOCK_V,), NAN_KEY, dtype=tl.int64)
    for start in range(0, num_valid, BLOCK_V):
        o_v = start + tl.arange(0, BLOCK_V)
        in_v = o_v < num_valid
        b_logits = tl.load(p_row + o_v, mask=in_v, other=0.0).to(tl.float32)  # [V]
        b_best = tl.maximum(b_best, tl.where(in_v, order_key(b_logits, o_v), NAN_KEY))
    best = tl.max(b_best, axis=0)
    tl.store(p_values + i_m, key_value(best))
    tl.store(p_ids + i_m, vocab_start + key_id(best))


@triton.jit
def _greedy_kernel(
    p_values, p_ids, p_out, num_tokens, W: tl.constexpr, BLOCK_W: tl.constexpr, BLOCK_M: tl.constexpr, PDL: tl.constexpr
):
    """One program decides BLOCK_M tokens."""
    enter_grid(PDL)
    o_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    o_w = tl.arange(0, BLOCK_W)
    in_m = o_m < num_tokens
    in_tile = (o_w[:, None] < W) & in_m[None, :]
    o_tile = o_w[:, None] * num_tokens + o_m[None, :]
    b_values = tl.load(p_values + o_tile, mask=in_tile, other=0.0)  # [W, M]
    b_ids = tl.load(p_ids + o_tile, mask=in_tile, other=0)  # [W, M]
    b_keys = tl.where(in_tile, order_key(b_values, b_ids), EXCLUDED_KEY)
    tl.store(p_out + o_m, key_id(tl.max(b_keys, axis=0)), mask=in_m)


def local_argmax(
    *,
    logits: torch.Tensor,
    vocab_start: int,
    num_valid: int,
    values: torch.Tensor,
    ids: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write the largest of the first num_valid logits of each row, and its id counted from vocab_start.

    Shapes: logits bfloat16, float16 or float32 [M, V]; values float32 [M]; ids int32 [M].
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        logits.dim() == 2 and logits.dtype in LOGIT_DTYPES and logits.stride(1) == 1,
        f"argument logits must be [M, V] of {LOGIT_DTYPES}, contiguous in its last dim; "
        f"got {logits.dtype} {list(logits.shape)} with strides {logits.stride()}",
    )
    num_tokens, num_columns = logits.shape
    require(0 <= num_valid <= num_columns, f"argument num_valid must be 0 to V = {num_columns}; got {num_valid}")
    require(
        0 <= vocab_start < 2**31 - num_columns,
        f"argument vocab_start must be at least 0 and leave room for int32 ids; got {vocab_start}",
    )
    for name, tensor, dtype in (("values", values, torch.float32), ("ids", ids, torch.int32)):
        require(
            tuple(tensor.shape) == (num_tokens,) and tensor.dtype == dtype and tensor.is_contiguous(),
            f"argument {name} must be contiguous {dtype} [M] = [{num_tokens}]; got {tensor.dtype} {list(tensor.shape)}",
        )
    block_v = min(BLOCK_V, max(256, triton.next_power_of_2(num_columns)))
    _local_argmax_kernel[(num_tokens,)](
        logits,
        values,
        ids,
        vocab_start,
        num_valid,
        logits.stride(0),
        BLOCK_V=block_v,
        PDL=pdl,
        num_warps=max(1, block_v // 256),
        **launch_options(pdl=pdl),
    )


def greedy(*, values: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, pdl: bool = False) -> None:
    """Write, for each token, the id of the largest value over the ranks.

    Shapes: values float32 [W, M], ids int32 [W, M] from 0 to 2^31 - 2, out int32 [M].
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        values.dim() == 2 and values.shape[0] > 0 and values.dtype == torch.float32 and values.is_contiguous(),
        f"argument values must be contiguous float32 [W, M]; got {values.dtype} {list(values.shape)}",
    )
    num_ranks, num_tokens = values.shape
    require(
        ids.shape == values.shape and ids.dtype == torch.int32 and ids.is_contiguous(),
        f"argument ids must be contiguous int32 {list(values.shape)} like values; got {ids.dtype} {list(ids.shape)}",
    )
    require(
        tuple(out.shape) == (num_tokens,) and out.dtype == torch.int32 and out.is_contiguous(),
        f"argument out must be contiguous int32 [M] = [{num_tokens}]; got {out.dtype} {list(out.shape)}",
    )
    _greedy_kernel[(triton.cdiv(num_tokens, BLOCK_TOKENS),)](
        values,
        ids,
        out,
        num_tokens,
        W=num_ranks,
        BLOCK_W=triton.next_power_of_2(num_ranks),
        BLOCK_M=BLOCK_TOKENS,
        PDL=pdl,
        num_warps=2,
        **launch_options(pdl=pdl),
    )
