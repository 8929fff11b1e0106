"""Group the rows of a mixture-of-experts layer by expert, in tiles of rows, in one launch.

Row r = token * K + choice goes to expert expert_ids[token, choice]. Every expert's rows, in ascending order and padded
with -1 to whole tiles of R, follow those of the expert before it:

    expert_ids    [T, K]            int32, contiguous; a row whose expert is outside 0 .. E-1 belongs to no tile
    sorted_rows   [max_tiles * R]   int32: the row in each place, -1 for none
    tile_experts  [max_tiles]       int32: the expert of each tile, -1 for an unused tile

max_tiles is at least `dispatch_max_tiles` (kernels/tiling.py), which depends on the sizes only: a captured graph has a
fixed grid, and its unused tiles end at once. There is no counter in memory: each expert's program counts all rows by
itself, so nothing has to be zeroed and the order is fixed.

Letters: T tokens, K chosen experts of a token, E experts, R rows of a tile.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.tiling import dispatch_max_tiles

MAX_BLOCK = 1024
"""Rows that a program looks at in one step."""


def dispatch_reference(
    expert_ids: torch.Tensor, *, num_experts: int, tile_rows: int, max_tiles: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(sorted_rows, tile_experts), int32, on expert_ids' device."""
    flat = expert_ids.flatten().tolist()
    sorted_rows: list[int] = []
    tile_experts: list[int] = []
    for expert in range(num_experts):
        rows = [row for row, chosen in enumerate(flat) if chosen == expert]
        rows += [-1] * (-len(rows) % tile_rows)
        sorted_rows += rows
        tile_experts += [expert] * (len(rows) // tile_rows)
    sorted_rows += [-1] * (max_tiles * tile_rows - len(sorted_rows))
    tile_experts += [-1] * (max_tiles - len(tile_experts))
    device = expert_ids.device
    return (
        torch.tensor(sorted_rows, dtype=torch.int32, device=device),
        torch.tensor(tile_experts, dtype=torch.int32, device=device),
    )


@triton.jit(do_not_specialize=["num_rows", "max_tiles"])
def _dispatch_kernel(
    p_expert_ids,
    p_sorted_rows,
    p_tile_experts,
    num_rows,
    max_tiles,
    E: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program places the rows of one expert; all share the filling of unused tiles."""
    enter_grid(PDL)
    i_e = tl.program_id(0)
    o_e = tl.arange(0, BLOCK_E)
    o_row = tl.arange(0, BLOCK)
    b_counts = tl.zeros((BLOCK_E,), dtype=tl.int32)
    for start in range(0, num_rows, BLOCK):
        b_ids = tl.load(p_expert_ids + start + o_row, mask=start + o_row < num_rows, other=E)
        # rows of no expert are counted in bin E, which BLOCK_E > E leaves room for
        b_counts += tl.histogram(tl.where((b_ids >= 0) & (b_ids < E), b_ids, E), BLOCK_E)
    b_tiles = tl.where(o_e < E, (b_counts + (TILE_ROWS - 1)) // TILE_ROWS, 0)
    first_tile = tl.sum(tl.where(o_e < i_e, b_tiles, 0), axis=0)
    num_tiles = tl.sum(tl.where(o_e == i_e, b_tiles, 0), axis=0)
    used_tiles = tl.sum(b_tiles, axis=0)

    placed = first_tile * TILE_ROWS
    for start in range(0, num_rows, BLOCK):
        b_ids = tl.load(p_expert_ids + start + o_row, mask=start + o_row < num_rows, other=E)
        b_mine = (b_ids == i_e).to(tl.int32)
        o_place = placed + tl.cumsum(b_mine, axis=0) - 1
        tl.store(p_sorted_rows + o_place, start + o_row, mask=b_mine == 1)
        placed += tl.sum(b_mine, axis=0)
    o_pad = placed + tl.arange(0, TILE_ROWS)
    tl.store(
        p_sorted_rows + o_pad, tl.full((TILE_ROWS,), -1, tl.int32), mask=o_pad < (first_tile + num_tiles) * TILE_ROWS
    )

    for start in range(0, num_tiles, BLOCK):
        o_tile = start + o_row
        tl.store(p_tile_experts + first_tile + o_tile, tl.full((BLOCK,), 0, tl.int32) + i_e, mask=o_tile < num_tiles)
    b_none = tl.full((BLOCK,), -1, tl.int32)
    for start in range(used_tiles + i_e * BLOCK, max_tiles, E * BLOCK):
        tl.store(p_tile_experts + start + o_row, b_none, mask=start + o_row < max_tiles)
    for start in range(used_tiles * TILE_ROWS + i_e * BLOCK, max_tiles * TILE_ROWS, E * BLOCK):
        tl.store(p_sorted_rows + start + o_row, b_none, mask=start + o_row < max_tiles * TILE_ROWS)


def dispatch(
    *,
    expert_ids: torch.Tensor,
    num_experts: int,
    tile_rows: int,
    sorted_rows: torch.Tensor,
    tile_experts: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write the rows grouped by expert and the expert of every tile.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout, or where the tiles might not hold every routing.
    """
    require(
        expert_ids.dim() == 2 and expert_ids.dtype == torch.int32 and expert_ids.is_contiguous(),
        f"argument expert_ids must be contiguous int32 [T, K]; got {expert_ids.dtype} {list(expert_ids.shape)} "
        f"strides {expert_ids.stride()}",
    )
    require(num_experts >= 1, f"argument num_experts must be at least 1; got {num_experts}")
    require(
        tile_rows >= 1 and tile_rows & (tile_rows - 1) == 0,
        f"argument tile_rows must be a power of two; got {tile_rows}",
    )
    least = dispatch_max_tiles(expert_ids.shape[0], expert_ids.shape[1], num_experts, tile_rows)
    require(
        tile_experts.dim() == 1 and tile_experts.shape[0] >= least,
        f"argument tile_experts must be [max_tiles] with max_tiles >= {least} for {expert_ids.numel()} rows over "
        f"{num_experts} experts in tiles of {tile_rows}; got {list(tile_experts.shape)}",
    )
    max_tiles = tile_experts.shape[0]
    require(
        tuple(sorted_rows.shape) == (max_tiles * tile_rows,),
        f"argument sorted_rows must be [max_tiles * tile_rows] = [{max_tiles * tile_rows}]; "
        f"got {list(sorted_rows.shape)}",
    )
    for name, tensor in (("sorted_rows", sorted_rows), ("tile_experts", tile_experts)):
        require(
            tensor.dtype == torch.int32 and tensor.is_contiguous(),
            f"argument {name} must be contiguous int32; got {tensor.dtype} strides {tensor.stride()}",
        )
    _dispatch_kernel[(num_experts,)](
        expert_ids,
        sorted_rows,
        tile_experts,
        expert_ids.numel(),
        max_tiles,
        E=num_experts,
        TILE_ROWS=tile_rows,
        BLOCK=min(MAX_BLOCK, max(32, triton.next_power_of_2(expert_ids.numel()))),
        BLOCK_E=triton.next_power_of_2(num_experts + 1),
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl=pdl),
    )
