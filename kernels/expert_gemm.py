"""Matrix products of a mixture-of-experts layer: each tile of rows times the weight of its expert, in one launch.

    out[r, n] = sum_k x[r // rows_per_token, k] * weight[expert of r, n, k]        accumulated in float32

    x             [X, K]          bfloat16, float16 or float32; rows of any stride, last dim contiguous
    weight        [E, N, K]       tensor of x's dtype, Nvfp4Tensor (a tensor scale for each expert) or Fp8BlockTensor
    sorted_rows   [tiles * R]     int32: the row r in each place, -1 for none      (kernels/dispatch.py)
    tile_experts  [tiles]         int32: the expert of each tile, -1 for an unused tile
    out           [X * rows_per_token, N]   bfloat16, float16 or float32; rows of any stride, last dim contiguous

rows_per_token is the number of chosen experts where x holds tokens (gate and up projection), and 1 where x holds rows
(down projection). The grid covers every tile that some routing could need; programs of unused tiles end at once.

GLM-5, one rank of eight: gate_up [256, 512, 6144] and down [256, 6144, 256], NVFP4, eight experts for a token.

Letters: X rows of x, N outputs, K inputs, E experts, R rows of a tile. Dequantisation: kernels/weight_tile.py.
"""

import torch
import triton
import triton.language as tl

from kernels.expert_gemv import launch_expert_gemv, takes_few_rows
from kernels.launch import enter_grid, launch_options, require
from kernels.nvfp4_gemv import fits_gemv
from kernels.weight_tile import (
    ACTIVATION_DTYPES,
    GemmTiles,
    Weight,
    WeightFormat,
    rows_times_weight,
    weight_operands,
    weight_reference,
)

MIN_PROGRAMS = 256
"""Programs to aim for, about two an SM: H100 and H200 have 132 SMs, B200 148, RTX PRO 6000 188."""


def expert_gemm_tiles(
    num_tiles: int, tile_rows: int, n: int, k: int, weight_format: WeightFormat, *, element_size: int = 2
) -> GemmTiles:
    """The widest output tile that still gives MIN_PROGRAMS programs, 16 outputs at least; BLOCK_M is `tile_rows`.

    One token of GLM-5 has eight tiles: gate_up (N = 512) is split into 16 outputs a program, down (6144) into 64.
    `element_size` is that of the activations.
    """
    block_n = 128 if tile_rows >= 64 else 64
    while block_n > 16 and num_tiles * -(-n // block_n) < MIN_PROGRAMS:
        block_n //= 2
    block_k = (64 if tile_rows >= 64 else 128) * (2 if weight_format == "nvfp4" else 1)
    num_stages = 3
    if element_size == 4:
        # float32 is for comparisons, not for speed: a smaller tile keeps within the same bytes
        block_n, block_k, num_stages = min(block_n, 32), min(block_k, 128), 2
    smallest = 128 if weight_format == "nvfp4" else 32
    block_k = max(smallest, min(block_k, triton.next_power_of_2(k)))
    return GemmTiles(block_m=tile_rows, block_n=block_n, block_k=block_k, num_warps=4, num_stages=num_stages)


def expert_gemm_reference(
    *, x: torch.Tensor, weight: Weight, expert_ids: torch.Tensor, rows_per_token: int
) -> torch.Tensor:
    """Float32 [X * rows_per_token, N] on the dequantised weight; `expert_ids` holds the expert of every row."""
    weights = weight_reference(weight)
    chosen = expert_ids.flatten().tolist()
    rows = [weights[expert] @ x[row // rows_per_token].to(weights.dtype) for row, expert in enumerate(chosen)]
    return torch.stack(rows)


@triton.jit
def _expert_gemm_kernel(
    p_x,
    p_weight,
    p_scales,
    p_tensor_scale,
    p_sorted_rows,
    p_tile_experts,
    p_out,
    num_outputs,
    stride_x_m,
    stride_weight_e,
    stride_scales_e,
    stride_out_m,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    ROWS_PER_TOKEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes one tile of rows times BLOCK_N outputs of its expert."""
    enter_grid(PDL)
    i_tile = tl.program_id(1)
    expert = tl.load(p_tile_experts + i_tile).to(tl.int64)
    if expert < 0:
        return
    o_row = tl.load(p_sorted_rows + i_tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m = o_row >= 0
    in_n = o_n < num_outputs
    p_expert_scales = p_scales
    if FORMAT != "dense":
        p_expert_scales += expert * stride_scales_e
    b_acc = rows_times_weight(
        p_x + tl.where(in_m, o_row // ROWS_PER_TOKEN, 0) * stride_x_m,
        in_m,
        p_weight + expert * stride_weight_e,
        p_expert_scales,
        o_n,
        in_n,
        K,
        FORMAT,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )
    if FORMAT == "nvfp4":
        b_acc *= tl.load(p_tensor_scale + expert)
    p_out_tile = p_out + o_row[:, None] * stride_out_m + o_n[None, :]
    tl.store(p_out_tile, b_acc.to(p_out.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def expert_gemm(
    *,
    x: torch.Tensor,
    weight: Weight,
    sorted_rows: torch.Tensor,
    tile_experts: torch.Tensor,
    tile_rows: int,
    rows_per_token: int,
    out: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write out[r] = weight[expert of r] @ x[r // rows_per_token] for every row r that `sorted_rows` names.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        x.dim() == 2 and x.stride(1) == 1,
        f"argument x must be [X, K] with a contiguous last dim; got {list(x.shape)} strides {x.stride()}",
    )
    for name, tensor in (("x", x), ("out", out)):
        require(
            tensor.dtype in ACTIVATION_DTYPES,
            f"argument {name} must be one of {', '.join(map(str, ACTIVATION_DTYPES))}; got {tensor.dtype}",
        )
    operands = weight_operands(weight, dtype=x.dtype, num_dims=3)
    num_outputs, num_inputs = operands.shape[1:]
    require(
        num_inputs == x.shape[1],
        f"argument weight must be [E, N, K] with K = {x.shape[1]} like x; got {list(operands.shape)}",
    )
    require(
        16 <= tile_rows <= 128 and tile_rows & (tile_rows - 1) == 0,
        f"argument tile_rows must be 16, 32, 64 or 128; got {tile_rows}",
    )
    require(rows_per_token >= 1, f"argument rows_per_token must be at least 1; got {rows_per_token}")
    require(
        tuple(out.shape) == (x.shape[0] * rows_per_token, num_outputs) and out.stride(1) == 1,
        f"argument out must be [X * rows_per_token, N] = {[x.shape[0] * rows_per_token, num_outputs]} with a "
        f"contiguous last dim; got {list(out.shape)} strides {out.stride()}",
    )
    num_tiles = tile_experts.numel()
    for name, tensor, size in (
        ("tile_experts", tile_experts, num_tiles),
        ("sorted_rows", sorted_rows, num_tiles * tile_rows),
    ):
        require(
            tuple(tensor.shape) == (size,) and tensor.dtype == torch.int32 and tensor.is_contiguous(),
            f"argument {name} must be contiguous int32 [{size}] for {num_tiles} tiles of {tile_rows} rows; "
            f"got {tensor.dtype} {list(tensor.shape)}",
        )
    if fits_gemv(operands, num_inputs) and takes_few_rows(out.shape[0], operands.shape[0]):
        launch_expert_gemv(
            x=x,
            operands=operands,
            sorted_rows=sorted_rows,
            tile_experts=tile_experts,
            tile_rows=tile_rows,
            rows_per_token=rows_per_token,
            out=out,
            pdl=pdl,
        )
        return
    tiles = expert_gemm_tiles(
        num_tiles, tile_rows, num_outputs, num_inputs, operands.weight_format, element_size=x.element_size()
    )
    _expert_gemm_kernel[(triton.cdiv(num_outputs, tiles.block_n), num_tiles)](
        x,
        operands.values,
        operands.scales,
        operands.tensor_scale,
        sorted_rows,
        tile_experts,
        out,
        num_outputs,
        x.stride(0),
        operands.values.stride(0),
        0 if operands.scales is None else operands.scales.stride(0),
        out.stride(0),
        K=num_inputs,
        FORMAT=operands.weight_format,
        ROWS_PER_TOKEN=rows_per_token,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        PDL=pdl,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **launch_options(pdl=pdl),
    )
