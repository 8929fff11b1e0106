"""Choose the k best-scored positions of each token: an exact, deterministic radix select.

    selected[m] = positions of the k largest logits[m, :context_lengths[m]], in ascending order; -1 fills the rest

Equal logits are taken in order of position; NaN counts as smaller than -inf. Ascending positions keep the reads of the
cache that follow close together.

    logits           [M, S_max]   float32, contiguous
    context_lengths  [M]          int32; positions beyond S_max do not exist
    selected         [M, k]       int32, contiguous, written fully
    workspace        [W or more]  int32, contiguous; W = kernels.tiling.index_topk_workspace_size(M, S_max, k)

Method: a float32 becomes an unsigned integer of the same order. Four passes over the row fix the k-th largest of these
eight bits at a time: a histogram of the next digit among the keys that share the digits found so far, then the digit
at which the counts from above reach what is still wanted. A last pass writes the positions: all keys above the k-th,
and as many equal to it as are still wanted.

One launch, with one program a token, is enough for many tokens or short rows. A few long rows would leave most of the
GPU idle, so there a first launch selects the k best of each chunk of the row, and a second one selects among those
candidates. This is still exact: whoever is among the k best of the row is among the k best of its chunk, and the
candidates keep the order of positions by which ties are broken.

Letters: M tokens in the step, S positions, k selected positions, C chunks of a row.
"""

import torch
import triton
import triton.language as tl

from kernels.index_topk_row import MAX_ROW, launch_index_topk_row, load_ordered
from kernels.launch import enter_grid, launch_options, require
from kernels.tiling import index_topk_chunk_size, index_topk_workspace_size

MAX_BLOCK = 4096
"""Positions of one iteration: four a thread at 32 warps; a row of 4096 is read in one go."""


def index_topk_reference(logits: torch.Tensor, context_lengths: torch.Tensor, k: int) -> torch.Tensor:
    """Selected positions, int32 [M, k], ascending, then -1."""
    selected = torch.full((logits.shape[0], k), -1, dtype=torch.int32, device=logits.device)
    # float64 has room for two values below every finite float32: one for -inf and one for NaN
    scores = logits.to(torch.float64)
    scores = torch.where(scores == float("-inf"), torch.finfo(torch.float64).min, scores)
    scores = torch.where(scores.isnan(), float("-inf"), scores)
    for m, context in enumerate(context_lengths.tolist()):
        best_first = torch.sort(scores[m, :context], descending=True, stable=True).indices[:k]
        selected[m, : best_first.numel()] = best_first.sort().values.to(torch.int32)
    return selected


@triton.jit
def _load_keys(p_row, p_candidates, start, first, num_items, BLOCK_S: tl.constexpr, HAS_CANDIDATES: tl.constexpr):
    """Load BLOCK_S positions of the row, or candidates: their ordered logits, positions, and which of them exist."""
    o_item = start + tl.arange(0, BLOCK_S)
    is_item = o_item < num_items
    if HAS_CANDIDATES:
        o_position = tl.load(p_candidates + o_item, mask=is_item, other=-1)  # [S]
        is_item = o_position >= 0
    else:
        o_position = first + o_item
    return load_ordered(p_row, o_position, is_item), o_position, is_item


@triton.jit
def _index_topk_kernel(
    p_logits,
    p_context_lengths,
    p_candidates,
    p_selected,
    num_positions,
    k,
    chunk_size,
    num_candidates,
    BLOCK_S: tl.constexpr,
    HAS_CANDIDATES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program selects from one chunk of a token's row, or from the candidates of all its chunks."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    i_chunk = tl.program_id(1)
    p_row = p_logits + i_m * num_positions
    p_out = p_selected + (i_m * tl.num_programs(1) + i_chunk) * k
    if HAS_CANDIDATES:
        p_candidates += i_m * num_candidates
    first = i_chunk * chunk_size
    num_visible = tl.minimum(tl.load(p_context_lengths + i_m), num_positions)
    num_visible = tl.minimum(num_visible - first, chunk_size)
    if num_visible <= k:
        for start in range(0, k, BLOCK_S):
            o_k = start + tl.arange(0, BLOCK_S)
            tl.store(p_out + o_k, tl.where(o_k < num_visible, first + o_k, -1), mask=o_k < k)
    else:
        num_items = num_candidates if HAS_CANDIDATES else num_visible
        o_digit = tl.arange(0, 256)
        threshold = tl.zeros((), dtype=tl.uint32)
        wanted = k
        for i_pass in tl.static_range(4):
            shift = 24 - 8 * i_pass
            b_counts = tl.zeros((256,), dtype=tl.int32)
            for start in range(0, num_items, BLOCK_S):
                b_ordered, o_position, is_item = _load_keys(
                    p_row, p_candidates, start, first, num_items, BLOCK_S, HAS_CANDIDATES
                )
                if i_pass > 0:
                    is_item = is_item & ((b_ordered >> (shift + 8)) == (threshold >> (shift + 8)))
                b_digit = ((b_ordered >> shift) & 0xFF).to(tl.int32)
                b_counts += tl.histogram(b_digit, 256, mask=is_item)
            b_from_above = tl.cumsum(b_counts, axis=0, reverse=True)
            digit = tl.max(tl.where(b_from_above >= wanted, o_digit, 0), axis=0)
            wanted -= tl.sum(tl.where(o_digit > digit, b_counts, 0), axis=0)
            threshold = threshold | (digit.to(tl.uint32) << shift)

        num_above = tl.zeros((), dtype=tl.int32)
        num_equal = tl.zeros((), dtype=tl.int32)
        for start in range(0, num_items, BLOCK_S):
            b_ordered, o_position, is_item = _load_keys(
                p_row, p_candidates, start, first, num_items, BLOCK_S, HAS_CANDIDATES
            )
            b_is_above = ((b_ordered > threshold) & is_item).to(tl.int32)
            b_is_equal = ((b_ordered == threshold) & is_item).to(tl.int32)
            # one scan counts both kinds: a block holds fewer than 2^15 positions
            b_counted = tl.cumsum(b_is_above + (b_is_equal << 16), axis=0)
            b_above_before = num_above + (b_counted & 0xFFFF) - b_is_above
            b_equal_before = num_equal + (b_counted >> 16) - b_is_equal
            b_taken = (b_is_above + b_is_equal * (b_equal_before < wanted).to(tl.int32)) > 0
            o_k = b_above_before + tl.minimum(b_equal_before, wanted)
            tl.store(p_out + o_k, o_position, mask=b_taken)
            num_above += tl.sum(b_is_above, axis=0)
            num_equal += tl.sum(b_is_equal, axis=0)


def index_topk(
    *,
    logits: torch.Tensor,
    context_lengths: torch.Tensor,
    selected: torch.Tensor,
    workspace: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write the k best positions of each row, ascending; where the context holds fewer, all of them and then -1.

    Launches one kernel, or two for a few long rows (kernels.tiling.index_topk_chunk_size).
    Shapes: logits float32 [M, S_max], context_lengths int32 [M], selected int32 [M, k], workspace int32, one dim and as
    many elements as kernels.tiling.index_topk_workspace_size says (possibly none); all contiguous.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        logits.dim() == 2 and logits.dtype == torch.float32 and logits.is_contiguous(),
        f"argument logits must be contiguous float32 [M, S_max]; got {logits.dtype} {list(logits.shape)}",
    )
    num_tokens, num_positions = logits.shape
    require(
        tuple(context_lengths.shape) == (num_tokens,)
        and context_lengths.dtype == torch.int32
        and context_lengths.is_contiguous(),
        f"argument context_lengths must be contiguous int32 [M] = [{num_tokens}]; "
        f"got {context_lengths.dtype} {list(context_lengths.shape)}",
    )
    require(
        selected.dim() == 2
        and selected.shape[0] == num_tokens
        and selected.shape[1] > 0
        and selected.dtype == torch.int32
        and selected.is_contiguous(),
        f"argument selected must be contiguous int32 [M = {num_tokens}, k > 0]; "
        f"got {selected.dtype} {list(selected.shape)}",
    )
    k = selected.shape[1]
    workspace_size = index_topk_workspace_size(num_tokens, num_positions, k)
    require(
        workspace.dim() == 1
        and workspace.shape[0] >= workspace_size
        and workspace.dtype == torch.int32
        and workspace.is_contiguous(),
        f"argument workspace must be contiguous int32 with at least {workspace_size} elements; "
        f"got {workspace.dtype} {list(workspace.shape)}",
    )
    if num_positions <= MAX_ROW:
        launch_index_topk_row(logits=logits, context_lengths=context_lengths, selected=selected, pdl=pdl)
        return
    chunk_size = index_topk_chunk_size(num_tokens, num_positions, k)
    num_chunks = triton.cdiv(num_positions, chunk_size)
    out = selected if num_chunks == 1 else workspace
    _select(logits, context_lengths, None, out, k=k, chunk_size=chunk_size, num_items=chunk_size, pdl=pdl)
    if num_chunks > 1:
        num_candidates = num_chunks * k
        _select(
            logits,
            context_lengths,
            workspace,
            selected,
            k=k,
            chunk_size=num_positions,
            num_items=num_candidates,
            pdl=pdl,
        )


def _select(
    logits: torch.Tensor,
    context_lengths: torch.Tensor,
    candidates: torch.Tensor | None,
    out: torch.Tensor,
    *,
    k: int,
    chunk_size: int,
    num_items: int,
    pdl: bool,
) -> None:
    """Launch once: the k best of each chunk of each row, from the row itself or from `num_items` candidates."""
    num_tokens, num_positions = logits.shape
    block_s = min(MAX_BLOCK, max(256, triton.next_power_of_2(num_items)))
    _index_topk_kernel[(num_tokens, triton.cdiv(num_positions, chunk_size))](
        logits,
        context_lengths,
        candidates,
        out,
        num_positions,
        k,
        chunk_size,
        num_items,
        BLOCK_S=block_s,
        HAS_CANDIDATES=candidates is not None,
        PDL=pdl,
        num_warps=max(4, block_s // 128),
        **launch_options(pdl=pdl),
    )
