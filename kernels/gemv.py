"""Dense matrix product for one to four tokens, without tensor cores: the narrow case of kernels/gemm.py.

    out[m, n] = sum_k x[m, k] * weight[n, k]        float32 multiply-adds

A matrix tile of 16 outputs leaves SMs idle at N = 2048; here a program takes one to four outputs and its threads share
K. All loads of the weight that fit the registers are under way before the first is used, and they start before
`griddepcontrol.wait`, since no kernel of a step writes weights. Shapes, dtypes and checks are gemm's; `gemm` calls
this, nothing else should.

Letters: M tokens (1 to 4), N outputs, K inputs.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import launch_dependents, launch_options, wait_for_previous

MAX_GEMV_TOKENS = 4
"""Each token costs a multiply-add a weight; at five, tensor cores are the better use of the instruction slots."""

MIN_PROGRAMS = 512
"""Programs to aim for: four of 128 threads an SM keep enough loads in flight."""

VECTOR = 8
"""Weights of one 16-byte load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseGemvTiles:
    """Outputs of a program, inputs of a chunk, chunks that are loaded ahead, warps."""

    block_n: int
    block_k: int
    num_loaded: int
    num_warps: int


def gemv_tiles(n: int, k: int) -> DenseGemvTiles:
    """Four outputs a program, or fewer where N is so small that SMs would stay idle (router, indexer)."""
    block_n = 4 if n >= 4 * MIN_PROGRAMS else 2 if n >= 2 * MIN_PROGRAMS else 1
    num_warps = 4
    block_k = min(32 * num_warps * VECTOR, triton.next_power_of_2(k))
    num_chunks = -(-k // block_k)
    if n >= MANY_OUTPUTS:
        # programs enough to keep loads under way: one chunk ahead leaves registers for more of them
        num_loaded = 1
    else:
        if num_chunks > 2:
            block_n = max(1, block_n // 2)
        num_loaded = min(num_chunks, MAX_LOADED_VECTORS // block_n)
    return DenseGemvTiles(block_n=block_n, block_k=block_k, num_loaded=num_loaded, num_warps=num_warps)


MANY_OUTPUTS = 8192
"""Outputs from which on loads need not be ahead (lm_head)."""

MAX_LOADED_VECTORS = 12
"""16-byte loads of a thread that are under way before the first is used: four registers each."""


@triton.jit
def _load_weight(p_weight, o_n, in_n, start, K: tl.constexpr, BLOCK_K: tl.constexpr):
    o_k = start + tl.arange(0, BLOCK_K)
    return tl.load(p_weight + o_n[:, None] * K + o_k[None, :], mask=in_n[:, None] & (o_k < K)[None, :], other=0.0)


@triton.jit
def _add_chunk(b_sums, b_weight, p_x, stride_x_m, start, M: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr):
    """b_sums plus one chunk of the weight [N, K] times that of each token."""
    o_k = start + tl.arange(0, BLOCK_K)
    b_weight = b_weight.to(tl.float32)
    b_added = ()
    for i_m in tl.static_range(M):
        b_x = tl.load(p_x + i_m * stride_x_m + o_k, mask=o_k < K, other=0.0).to(tl.float32)
        b_added = b_added + (b_sums[i_m] + b_weight * b_x[None, :],)
    return b_added


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
    NUM_LOADED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of every token."""
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_n = o_n < num_outputs
    b_loaded = ()
    for i_chunk in tl.static_range(NUM_LOADED):
        b_loaded = b_loaded + (_load_weight(p_weight, o_n, in_n, i_chunk * BLOCK_K, K, BLOCK_K),)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    b_sums = ()
    for _i_m in tl.static_range(M):
        b_sums = b_sums + (tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32),)
    for i_chunk in tl.static_range(NUM_LOADED):
        b_sums = _add_chunk(b_sums, b_loaded[i_chunk], p_x, stride_x_m, i_chunk * BLOCK_K, M, K, BLOCK_K)
    for start in range(NUM_LOADED * BLOCK_K, K, BLOCK_K):
        b_weight = _load_weight(p_weight, o_n, in_n, start, K, BLOCK_K)
        b_sums = _add_chunk(b_sums, b_weight, p_x, stride_x_m, start, M, K, BLOCK_K)
    for i_m in tl.static_range(M):
        b_out = tl.sum(b_sums[i_m], axis=1)
        tl.store(p_out + i_m * stride_out_m + o_n, b_out.to(p_out.dtype.element_ty), mask=in_n)


def launch_gemv(*, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, pdl: bool) -> None:
    """Write out = x @ weight.T for at most MAX_GEMV_TOKENS rows of x. `gemm` has checked the operands."""
    num_outputs, num_inputs = weight.shape
    tiles = gemv_tiles(num_outputs, num_inputs)
    _gemv_kernel[(triton.cdiv(num_outputs, tiles.block_n),)](
        x,
        weight,
        out,
        num_outputs,
        x.stride(0),
        out.stride(0),
        M=x.shape[0],
        K=num_inputs,
        NUM_LOADED=tiles.num_loaded,
        BLOCK_N=tiles.block_n,
        BLOCK_K=tiles.block_k,
        PDL=pdl,
        num_warps=tiles.num_warps,
        **launch_options(pdl=pdl),
    )
