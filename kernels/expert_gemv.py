"""NVFP4 experts times a few rows each, without tensor cores: the narrow case of kernels/expert_gemm.py.

    out[r, n] = sum_k x[r // rows_per_token, k] * weight[expert of r, n, k]        float32 multiply-adds

A program takes a few outputs of one tile's expert, loads all their words once, and goes through the rows that the tile
holds: one for most experts at decode batches up to a dozen. Shapes, dtypes and checks are expert_gemm's, the arithmetic
is that of kernels/nvfp4_gemv.py; `expert_gemm` calls this, nothing else should.

Letters: N outputs, K inputs, E experts, R rows of a tile, G = K / 16 scale groups of a row.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import launch_dependents, launch_options, wait_for_previous
from kernels.nvfp4 import BLOCK
from kernels.nvfp4_gemv import EPILOGUE_SCALE, add_chunk, load_rows, load_x, loaded_chunks, nvfp4_gemv_tiles, store_rows
from kernels.weight_tile import WeightOperands

MAX_ROWS_PER_EXPERT = 0.5
"""Rows over experts up to which most experts that run have one row: 16 tokens of GLM-5, with 8 of 256 experts each."""


@triton.jit
def _expert_gemv_kernel(
    p_x,
    p_words,
    p_scales,
    p_tensor_scale,
    p_sorted_rows,
    p_tile_experts,
    p_out,
    num_outputs,
    stride_x_m,
    stride_out_m,
    ROWS_PER_TOKEN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    G: tl.constexpr,
    NUM_LOADED: tl.constexpr,
    BLOCK_G: tl.constexpr,
    ROWS_ABREAST: tl.constexpr,
    ROWS_EACH: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes ROWS_ABREAST * ROWS_EACH outputs of every row of one tile."""
    wait_for_previous(PDL)
    i_tile = tl.program_id(1)
    first_row = tl.program_id(0) * (ROWS_ABREAST * ROWS_EACH)
    expert = tl.load(p_tile_experts + i_tile).to(tl.int64)
    if expert < 0:
        return
    o_place = tl.arange(0, TILE_ROWS)
    p_tile_rows = p_sorted_rows + i_tile * TILE_ROWS
    b_rows = tl.load(p_tile_rows + o_place)
    p_words += expert * num_outputs * G
    p_scales += expert * num_outputs * G
    b_loaded = ()
    for i_chunk in tl.static_range(NUM_LOADED):
        b_loaded = b_loaded + load_rows(
            p_words, p_scales, first_row, num_outputs, i_chunk * BLOCK_G, G, BLOCK_G, ROWS_ABREAST, ROWS_EACH
        )
    launch_dependents(PDL)
    scale = tl.load(p_tensor_scale + expert) * EPILOGUE_SCALE
    num_places = tl.max(tl.where(b_rows >= 0, o_place + 1, 0), axis=0)
    for i_place in range(0, num_places):
        row = tl.load(p_tile_rows + i_place).to(tl.int64)
        # a place without a row writes nothing
        num_stored = tl.where(row >= 0, num_outputs, 0)
        row = tl.maximum(row, 0)
        p_x_row = p_x + row // ROWS_PER_TOKEN * stride_x_m
        b_sums = ()
        for _i_row in tl.static_range(ROWS_EACH):
            b_sums = b_sums + (tl.zeros((BLOCK_G * ROWS_ABREAST,), dtype=tl.float32),)
        for i_chunk in tl.static_range(NUM_LOADED):
            b_x = load_x(p_x_row, i_chunk * BLOCK_G, G, BLOCK_G, ROWS_ABREAST)
            b_sums = add_chunk(b_sums, b_loaded, 2 * ROWS_EACH * i_chunk, b_x, ROWS_EACH)
        for start in range(NUM_LOADED * BLOCK_G, G, BLOCK_G):
            b_more = load_rows(p_words, p_scales, first_row, num_outputs, start, G, BLOCK_G, ROWS_ABREAST, ROWS_EACH)
            b_x = load_x(p_x_row, start, G, BLOCK_G, ROWS_ABREAST)
            b_sums = add_chunk(b_sums, b_more, 0, b_x, ROWS_EACH)
        store_rows(p_out + row * stride_out_m, b_sums, scale, first_row, num_stored, BLOCK_G, ROWS_ABREAST, ROWS_EACH)
        # The next row, if there is one, finds the words in a cache. Kept, the compiler would unpack them all ahead of
        # the loop, into more registers than there are.
        if i_place + 1 < num_places:
            b_loaded = ()
            for i_chunk in tl.static_range(NUM_LOADED):
                b_loaded = b_loaded + load_rows(
                    p_words, p_scales, first_row, num_outputs, i_chunk * BLOCK_G, G, BLOCK_G, ROWS_ABREAST, ROWS_EACH
                )


def takes_few_rows(rows: int, num_experts: int) -> bool:
    """Whether this kernel is the better one for `rows` (token, choice) rows, on average over routings."""
    return rows <= MAX_ROWS_PER_EXPERT * num_experts


def launch_expert_gemv(
    *,
    x: torch.Tensor,
    operands: WeightOperands,
    sorted_rows: torch.Tensor,
    tile_experts: torch.Tensor,
    tile_rows: int,
    rows_per_token: int,
    out: torch.Tensor,
    pdl: bool,
) -> None:
    """Write the products of expert_gemm, which has checked the operands."""
    assert operands.scales is not None
    num_outputs, num_inputs = operands.shape[1:]
    num_tiles = tile_experts.numel()
    tiles = nvfp4_gemv_tiles(num_tiles * num_outputs, num_inputs, 1)
    num_groups = num_inputs // BLOCK
    _expert_gemv_kernel[(triton.cdiv(num_outputs, tiles.block_n), num_tiles)](
        x,
        operands.values.view(torch.int64),
        operands.scales.view(torch.int8),
        operands.tensor_scale,
        sorted_rows,
        tile_experts,
        out,
        num_outputs,
        x.stride(0),
        out.stride(0),
        ROWS_PER_TOKEN=rows_per_token,
        TILE_ROWS=tile_rows,
        G=num_groups,
        NUM_LOADED=loaded_chunks(num_groups, tiles),
        BLOCK_G=tiles.block_g,
        ROWS_ABREAST=tiles.rows_abreast,
        ROWS_EACH=tiles.rows_each,
        PDL=pdl,
        num_warps=tiles.num_warps,
        **launch_options(pdl=pdl),
    )
