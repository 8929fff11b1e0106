"""The k best of a row that one program holds in registers: the case of short rows of kernels/index_topk.py.

The row is read once. Its keys (unsigned integers in the order of the logits) stay in registers while a search fixes the
k-th largest of them two bits at a time: a step counts the keys that reach each of three candidates, and the search ends
as soon as exactly k keys reach the threshold. Positions come from one running sum.

Letters: S positions, k selected positions.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import launch_dependents, launch_options, wait_for_previous

MAX_ROW = 8192
"""Positions of a row at most: 16 keys a thread at 16 warps, the best of 4 to 32 warps on H200."""


@triton.jit
def load_ordered(p_row, o_position, in_row):
    """Load logits as unsigned integers of the same order; NaN becomes 0, which no other value does."""
    b_logits = tl.load(p_row + o_position, mask=in_row, other=0.0)  # [S]
    # both zeros are one value
    b_logits = tl.where(b_logits == 0.0, 0.0, b_logits)
    b_bits = b_logits.to(tl.uint32, bitcast=True)
    b_ordered = tl.where((b_bits >> 31) != 0, b_bits ^ 0xFFFFFFFF, b_bits | 0x80000000)
    return tl.where((b_bits & 0x7FFFFFFF) > 0x7F800000, 0, b_ordered)


@triton.jit
def _index_topk_row_kernel(
    p_logits, p_context_lengths, p_selected, num_positions, k, BLOCK_S: tl.constexpr, PDL: tl.constexpr
):
    """One program selects from one token's row."""
    wait_for_previous(PDL)
    launch_dependents(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    p_out = p_selected + i_m * k
    num_visible = tl.minimum(tl.load(p_context_lengths + i_m), num_positions)
    o_position = tl.arange(0, BLOCK_S)
    if num_visible <= k:
        for start in range(0, k, BLOCK_S):
            o_k = start + o_position
            tl.store(p_out + o_k, tl.where(o_k < num_visible, o_k, -1), mask=o_k < k)
    else:
        in_row = o_position < num_visible
        # What lies beyond the row gets the lowest key. Only NaN shares it, and ties go to lower positions.
        b_keys = tl.where(in_row, load_ordered(p_logits + i_m * num_positions, o_position, in_row), 0)
        threshold = tl.zeros((), dtype=tl.uint32)
        shift = tl.full((), 30, dtype=tl.int32)
        num_reached = tl.zeros((), dtype=tl.int32)
        while (shift >= 0) & (num_reached != k):
            step = tl.full((), 1, dtype=tl.uint32) << shift.to(tl.uint32)
            # two counts in one sum: each is at most MAX_ROW
            b_reached = (b_keys >= threshold + step).to(tl.int32)
            b_reached += (b_keys >= threshold + 2 * step).to(tl.int32) << 16
            counts = tl.sum(b_reached, axis=0)
            third = tl.sum((b_keys >= threshold + 3 * step).to(tl.int32), axis=0)
            first, second = counts & 0xFFFF, counts >> 16
            digit = (first >= k).to(tl.int32) + (second >= k).to(tl.int32) + (third >= k).to(tl.int32)
            threshold += digit.to(tl.uint32) * step
            num_reached = tl.where(digit == 1, first, num_reached)
            num_reached = tl.where(digit == 2, second, num_reached)
            num_reached = tl.where(digit == 3, third, num_reached)
            shift -= 2
        is_exact = num_reached == k
        b_is_equal = (b_keys == threshold) & (num_reached != k)
        b_is_above = (b_keys > threshold) | ((b_keys == threshold) & is_exact)
        # one scan counts both kinds
        b_is_above = b_is_above.to(tl.int32)
        b_is_equal = b_is_equal.to(tl.int32)
        b_counted = tl.cumsum(b_is_above + (b_is_equal << 16), axis=0)
        wanted = k - tl.sum(b_is_above, axis=0)
        b_above_before = (b_counted & 0xFFFF) - b_is_above
        b_equal_before = (b_counted >> 16) - b_is_equal
        b_taken = (b_is_above + b_is_equal * (b_equal_before < wanted).to(tl.int32)) > 0
        o_k = b_above_before + tl.minimum(b_equal_before, wanted)
        tl.store(p_out + o_k, o_position, mask=b_taken)


def launch_index_topk_row(
    *, logits: torch.Tensor, context_lengths: torch.Tensor, selected: torch.Tensor, pdl: bool
) -> None:
    """Select from rows of at most MAX_ROW positions. `index_topk` has checked the operands."""
    num_tokens, num_positions = logits.shape
    block_s = max(128, triton.next_power_of_2(num_positions))
    _index_topk_row_kernel[(num_tokens,)](
        logits,
        context_lengths,
        selected,
        num_positions,
        selected.shape[1],
        BLOCK_S=block_s,
        PDL=pdl,
        num_warps=max(4, block_s // 512),
        **launch_options(pdl=pdl),
    )
