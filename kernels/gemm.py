"""Matrix product of a decode step: activations times a dense, NVFP4 or FP8 weight.

    out[m, n] = sum_k x[m, k] * weight[n, k]        accumulated in float32

    x       [M, K]   bfloat16, float16 or float32; rows of any stride, last dim contiguous
    weight  [N, K]   tensor of x's dtype, Nvfp4Tensor or Fp8BlockTensor; contiguous
    out     [M, N]   bfloat16, float16 or float32; rows of any stride, last dim contiguous

A decode step reads each weight once for a handful of tokens, so its time is that of reading the weight. One program
computes a tile of outputs over the whole of K: no second launch adds partial sums, and the order of additions is fixed.
Up to four tokens take a dense weight through registers (kernels/gemv.py); otherwise tokens are padded to 16.

GLM-5, one rank of eight: q_a/kv_a 2624 x 6144, q_b 2048 x 2048, o 6144 x 2048, indexer 4096 x 2048 and 160 x 6144,
router 256 x 6144 (float32 out), lm_head 19360 x 6144, all bfloat16; dense MLP 3072 x 6144 and 6144 x 1536 NVFP4.

Letters: M tokens, N outputs, K inputs. Arithmetic of quantised weights: kernels/weight_tile.py.
"""

import torch
import triton
import triton.language as tl

from kernels.gemv import MAX_GEMV_TOKENS, launch_gemv
from kernels.launch import enter_grid, launch_options, require
from kernels.nvfp4_gemv import MAX_NVFP4_GEMV_TOKENS, fits_gemv, launch_nvfp4_gemv
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


def gemm_tiles(m: int, n: int, k: int, weight_format: WeightFormat, *, element_size: int = 2) -> GemmTiles:
    """Tiles for m tokens: the widest output tile that still gives MIN_PROGRAMS programs, 16 outputs at least.

    `element_size` is that of the activations. Compiled with Triton 3.7 the largest case, 64 x 128 x 64 of three
    stages, takes 73,728 bytes of shared memory; sm_120 allows 101,376.
    """
    block_m = 16 if m <= 16 else 32 if m <= 32 else 64
    block_n = 128 if block_m == 64 else 64
    while block_n > 16 and -(-m // block_m) * -(-n // block_n) < MIN_PROGRAMS:
        block_n //= 2
    if weight_format == "fp8_block":
        block_k = 128 if block_m < 64 else 64
    elif block_m == 64:
        block_k = 64 if weight_format == "dense" else 128
    else:
        block_k = 256 if weight_format == "nvfp4" or block_n == 16 else 128
    num_stages = 3 if block_m == 64 or block_k == 256 else 4
    if element_size == 4:
        # float32 is for comparisons, not for speed: half the tile keeps the same bytes
        block_m, block_n, block_k, num_stages = min(block_m, 32), min(block_n, 32), min(block_k, 128), 2
    # a plane of NVFP4 holds an eighth of BLOCK_K, and a dot needs 16 of them
    smallest = 128 if weight_format == "nvfp4" else 32
    block_k = max(smallest, min(block_k, triton.next_power_of_2(k)))
    return GemmTiles(block_m=block_m, block_n=block_n, block_k=block_k, num_warps=4, num_stages=num_stages)


def gemm_reference(*, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Float32 [M, N] (float64 for float64 input) on the dequantised weight."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.to(dtype) @ weight_reference(weight).to(dtype).T


# Specialising on the number of tokens would compile a variant for 1 and one for multiples of 16.
@triton.jit(do_not_specialize=["num_tokens"])
def _gemm_kernel(
    p_x,
    p_weight,
    p_scales,
    p_tensor_scale,
    p_out,
    num_tokens,
    num_outputs,
    stride_x_m,
    stride_out_m,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_M tokens times BLOCK_N outputs."""
    enter_grid(PDL)
    o_m = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_m = o_m < num_tokens
    in_n = o_n < num_outputs
    b_acc = rows_times_weight(
        p_x + o_m * stride_x_m, in_m, p_weight, p_scales, o_n, in_n, K, FORMAT, BLOCK_M, BLOCK_N, BLOCK_K
    )
    if FORMAT == "nvfp4":
        b_acc *= tl.load(p_tensor_scale)
    p_out_tile = p_out + o_m[:, None] * stride_out_m + o_n[None, :]
    tl.store(p_out_tile, b_acc.to(p_out.dtype.element_ty), mask=in_m[:, None] & in_n[None, :])


def gemm(*, x: torch.Tensor, weight: Weight, out: torch.Tensor, pdl: bool = False) -> None:
    """Write out = x @ weight.T, accumulated in float32.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        x.dim() == 2 and x.stride(1) == 1,
        f"argument x must be [M, K] with a contiguous last dim; got {list(x.shape)} strides {x.stride()}",
    )
    num_tokens, num_inputs = x.shape
    for name, tensor in (("x", x), ("out", out)):
        require(
            tensor.dtype in ACTIVATION_DTYPES,
            f"argument {name} must be one of {', '.join(map(str, ACTIVATION_DTYPES))}; got {tensor.dtype}",
        )
    operands = weight_operands(weight, dtype=x.dtype, num_dims=2)
    num_outputs = operands.shape[0]
    require(
        operands.shape[1] == num_inputs,
        f"argument weight must be [N, K] with K = {num_inputs} like x; got {list(operands.shape)}",
    )
    require(
        tuple(out.shape) == (num_tokens, num_outputs) and out.stride(1) == 1,
        f"argument out must be [M, N] = {[num_tokens, num_outputs]} with a contiguous last dim; "
        f"got {list(out.shape)} strides {out.stride()}",
    )
    if operands.weight_format == "dense" and num_tokens <= MAX_GEMV_TOKENS:
        launch_gemv(x=x, weight=operands.values, out=out, pdl=pdl)
        return
    if num_tokens <= MAX_NVFP4_GEMV_TOKENS and fits_gemv(operands, num_inputs):
        launch_nvfp4_gemv(x=x, operands=operands, out=out, pdl=pdl)
        return
    tiles = gemm_tiles(num_tokens, num_outputs, num_inputs, operands.weight_format, element_size=x.element_size())
    _gemm_kernel[(triton.cdiv(num_outputs, tiles.block_n), triton.cdiv(num_tokens, tiles.block_m))](
        x,
        operands.values,
        operands.scales,
        operands.tensor_scale,
        out,
        num_tokens,
        num_outputs,
        x.stride(0),
        out.stride(0),
        K=num_inputs,
        FORMAT=operands.weight_format,
        BLOCK_M=tiles.block_m,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        PDL=pdl,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **launch_options(pdl=pdl),
    )
