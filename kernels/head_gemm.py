"""One GEMM a head: the absorbed projections of MLA decode.

    out[m, h, n] = sum_k x[m, h, k] * weight[h, n, k]

    x       [M, H, K]  strides of M and H are free, last dim contiguous
    weight  [H, N, K]  contiguous, same dtype as x (16-bit; float32 in tests)
    out     [M, H, N]  strides of M and H are free, same dtype; accumulated in float32

GLM-5 uses it twice a layer: to absorb the no-position query into latent space (K = 192, N = 512) and to bring the
attended latents up to values (K = 512, N = 256), with 8 of 64 heads on each rank at TP = 8.

Letters: M tokens in the step, H heads on this rank, N outputs and K inputs of a head.
Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.2 (absorption of W_UK and W_UV).
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require

MIN_PROGRAMS = 128
"""Programs to aim for: H100 and H200 have 132 SMs, B200 148, RTX PRO 6000 188; tiles of 16 outputs end the split."""


@dataclass(frozen=True, slots=True)
class HeadGemmTiles:
    """Tile sizes of one launch."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


def head_gemm_tiles(num_tokens: int, num_heads: int, num_outputs: int, num_inputs: int) -> HeadGemmTiles:
    """Choose the widest output tile that still gives every SM a program; about 74 kB of shared memory at most."""
    block_m = 16 if num_tokens <= 16 else 32 if num_tokens <= 32 else 64
    token_tiles = -(-num_tokens // block_m)
    block_n = 128 if block_m == 64 else 64
    while block_n > 16 and num_heads * token_tiles * -(-num_outputs // block_n) < MIN_PROGRAMS:
        block_n //= 2
    # the longest tile that divides K (192 = 3 x 64): a masked tail would waste a whole step of the loop
    block_k = 128 if num_inputs % 128 == 0 and block_n <= 32 else 64
    return HeadGemmTiles(block_m, block_n, block_k, num_warps=4, num_stages=4 if block_m < 64 else 3)


def head_gemm_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Float32 [M, H, N] (float64 for float64 input)."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return torch.einsum("mhk,hnk->mhn", x.to(dtype), weight.to(dtype))


@triton.jit
def _head_gemm_kernel(
    p_x,
    p_weight,
    p_out,
    num_tokens,
    num_outputs,
    stride_x_m,
    stride_x_h,
    stride_out_m,
    stride_out_h,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_M tokens times BLOCK_N outputs of one head."""
    enter_grid(PDL)
    i_n = tl.program_id(0)
    i_h = tl.program_id(1).to(tl.int64)
    i_m = tl.program_id(2)
    o_m = (i_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    o_n = (i_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m = o_m < num_tokens
    in_n = o_n < num_outputs
    p_x_rows = p_x + i_h * stride_x_h + o_m[:, None] * stride_x_m
    p_weight_rows = p_weight + (i_h * num_outputs + o_n[:, None]) * K
    b_acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        o_k = start + tl.arange(0, BLOCK_K)
        in_k = o_k < K
        b_x = tl.load(p_x_rows + o_k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)  # [M, K]
        b_weight = tl.load(p_weight_rows + o_k[None, :], mask=in_n[:, None] & in_k[None, :], other=0.0)  # [N, K]
        b_acc = tl.dot(b_x, tl.trans(b_weight), b_acc)
    p_out_tile = p_out + i_h * stride_out_h + o_m[:, None] * stride_out_m + o_n[None, :]
    tl.store(p_out_tile, b_acc.to(p_out.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def head_gemm(*, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, pdl: bool = False) -> None:
    """Write out[m, h] = weight[h] @ x[m, h] for every token and head.

    Shapes: x [M, H, K] and out [M, H, N] with a contiguous last dim, weight contiguous [H, N, K]; one dtype.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(x.dim() == 3, f"argument x must be [M, H, K]; got {list(x.shape)}")
    num_tokens, num_heads, num_inputs = x.shape
    require(
        weight.dim() == 3 and weight.shape[0] == num_heads and weight.shape[2] == num_inputs,
        f"argument weight must be [H, N, K] with H = {num_heads}, K = {num_inputs}; got {list(weight.shape)}",
    )
    require(weight.is_contiguous(), f"argument weight must be contiguous; got strides {weight.stride()}")
    num_outputs = weight.shape[1]
    require(
        tuple(out.shape) == (num_tokens, num_heads, num_outputs),
        f"argument out must be [M, H, N] = {[num_tokens, num_heads, num_outputs]}; got {list(out.shape)}",
    )
    for name, tensor in (("x", x), ("weight", weight), ("out", out)):
        require(tensor.dtype == x.dtype, f"argument {name} must be {x.dtype} like x; got {tensor.dtype}")
        require(
            tensor.stride(2) == 1, f"argument {name} must be contiguous in its last dim; got stride {tensor.stride(2)}"
        )
    tiles = head_gemm_tiles(num_tokens, num_heads, num_outputs, num_inputs)
    grid = (triton.cdiv(num_outputs, tiles.block_n), num_heads, triton.cdiv(num_tokens, tiles.block_m))
    _head_gemm_kernel[grid](
        x,
        weight,
        out,
        num_tokens,
        num_outputs,
        x.stride(0),
        x.stride(1),
        out.stride(0),
        out.stride(1),
        K=num_inputs,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        PDL=pdl,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **launch_options(pdl=pdl),
    )
