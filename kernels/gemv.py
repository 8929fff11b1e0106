"""Dense matrix product for one to four tokens, without tensor cores: the narrow case of kernels/gemm.py.

    out[m, n] = sum_k x[m, k] * weight[n, k]        float32 multiply-adds

A matrix tile of 16 outputs leaves SMs idle at N = 2048; here a program takes four outputs. Weights go from memory to
registers and are used at once. Shapes, dtypes and checks are gemm's; `gemm` calls this, nothing else should.

Letters: M tokens (1 to 4), N outputs, K inputs.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options

MAX_GEMV_TOKENS = 4
"""Each token costs a multiply-add a weight; at five, tensor cores are the better use of the instruction slots."""

MIN_PROGRAMS = 512
"""Programs to aim for: four of 128 threads an SM keep enough loads in flight."""


def gemv_block_n(n: int) -> int:
    """Outputs of a program: four, or fewer where N is so small that SMs would stay idle (router, indexer)."""
    return 4 if n >= 4 * MIN_PROGRAMS else 2 if n >= 2 * MIN_PROGRAMS else 1


@triton.jit
def _gemv_kernel(
    p_x,
    p_weight,
    p_out,
    num_outputs,
    stride_x_m,
    stride_out_m,
    M: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of every token."""
    enter_grid(PDL)
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_n = o_n < num_outputs
    b_acc0 = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    b_acc1 = b_acc0
    b_acc2 = b_acc0
    b_acc3 = b_acc0
    for start in range(0, K, BLOCK_K):
        o_k = start + tl.arange(0, BLOCK_K)
        in_k = o_k < K
        p_tile = p_weight + o_n[:, None] * K + o_k[None, :]
        b_weight = tl.load(p_tile, mask=in_n[:, None] & in_k[None, :], other=0.0).to(tl.float32)  # [N, K]
        p_x_tile = p_x + o_k
        b_acc0 += b_weight * tl.load(p_x_tile, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if M > 1:
            b_acc1 += b_weight * tl.load(p_x_tile + stride_x_m, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if M > 2:
            b_acc2 += b_weight * tl.load(p_x_tile + 2 * stride_x_m, mask=in_k, other=0.0).to(tl.float32)[None, :]
        if M > 3:
            b_acc3 += b_weight * tl.load(p_x_tile + 3 * stride_x_m, mask=in_k, other=0.0).to(tl.float32)[None, :]
    p_out_row = p_out + o_n
    tl.store(p_out_row, tl.sum(b_acc0, axis=1).to(p_out.dtype.element_ty), mask=in_n)
    if M > 1:
        tl.store(p_out_row + stride_out_m, tl.sum(b_acc1, axis=1).to(p_out.dtype.element_ty), mask=in_n)
    if M > 2:
        tl.store(p_out_row + 2 * stride_out_m, tl.sum(b_acc2, axis=1).to(p_out.dtype.element_ty), mask=in_n)
    if M > 3:
        tl.store(p_out_row + 3 * stride_out_m, tl.sum(b_acc3, axis=1).to(p_out.dtype.element_ty), mask=in_n)


def launch_gemv(*, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, pdl: bool) -> None:
    """Write out = x @ weight.T for at most MAX_GEMV_TOKENS rows of x. `gemm` has checked the operands."""
    num_outputs, num_inputs = weight.shape
    block_n = gemv_block_n(num_outputs)
    # each thread loads 16 bytes of every row
    block_k = min(1024, triton.next_power_of_2(num_inputs))
    _gemv_kernel[(triton.cdiv(num_outputs, block_n),)](
        x,
        weight,
        out,
        num_outputs,
        x.stride(0),
        out.stride(0),
        M=x.shape[0],
        K=num_inputs,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl=pdl),
    )
