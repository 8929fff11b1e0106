"""NVFP4 weights times one to eight tokens, without tensor cores: the narrow case of gemm.py and of expert_gemm.py.

    sum_k x[m, k] * weight[n, k]        float32 multiply-adds; every product is exact

At a handful of tokens a matrix product reads its weight once and is done, so what counts is that reading never waits:
a program takes a few outputs, its threads share K among them, each thread loads all its words before it uses the first,
and they are loaded before `griddepcontrol.wait`, since no kernel of a step writes weights.

A 64-bit word holds one scale group: 16 codes of a row, one E4M3 scale. Each of its 32-bit halves gives two codes at a
time: the three magnitude bits are shifted to where a float16 has its low exponent bits and its first mantissa bit, the
sign bit to the sign. Such a float16 is the code's value times 2^-14, subnormal codes included, and converts to float32
exactly. The bits of an E4M3 scale, shifted likewise, are a float16 of the scale's value times 2^-8. EPILOGUE_SCALE
brings both back at the end. About 4.5 instructions a weight, and no rounding before the float32 additions.

Letters: M tokens (1 to 8), N outputs, K inputs, G = K / 16 scale groups of a row, C chunks of BLOCK_G groups.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.launch import launch_dependents, launch_options, wait_for_previous
from kernels.nvfp4 import BLOCK
from kernels.weight_tile import WeightOperands

MAX_NVFP4_GEMV_TOKENS = 8
"""Each token costs a multiply-add a weight; tensor cores take over beyond."""

MIN_PROGRAMS = 512
"""Programs to aim for: four of 128 threads an SM keep enough loads in flight."""

MAX_LOADED_CHUNKS = 4
"""Chunks whose words are all loaded before the first is used; with more, they are loaded one after another."""

EPILOGUE_SCALE = tl.constexpr(2.0**22)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvTiles:
    """Outputs of a program, scale groups of a chunk, and warps."""

    block_n: int
    block_g: int
    num_warps: int


def nvfp4_gemv_tiles(rows: int, k: int, m: int) -> GemvTiles:
    """Tiles for `rows` outputs in all (of all experts that run) and m tokens."""
    num_groups = k // BLOCK
    # K = 256 leaves 16 groups: a warp then takes two rows at a time
    block_g = min(128, max(16, 1 << (num_groups - 1).bit_length()))
    if block_g > 32 and num_groups % block_g:
        block_g = max(32, num_groups & -num_groups)
        block_g = min(block_g, 128)
    num_warps = 4
    block_n = max(1, 4 * 128 // block_g // (2 if m > 2 else 1))
    while block_n > 1 and -(-rows // block_n) < MIN_PROGRAMS:
        block_n //= 2
    if block_g * block_n < 32 * num_warps:
        num_warps = max(1, block_g * block_n // 32)
    return GemvTiles(block_n=block_n, block_g=block_g, num_warps=num_warps)


def fits_gemv(operands: WeightOperands, k: int) -> bool:
    """Whether the weight's words of 64 bits are aligned."""
    return operands.weight_format == "nvfp4" and operands.values.storage_offset() % 2 == 0 and k % BLOCK == 0


@triton.jit
def group_order(BLOCK_G: tl.constexpr):
    """Groups of a chunk with neighbours swapped.

    Triton would give a thread four neighbouring scales, and with them four neighbouring groups; its activations would
    then have to come from other threads, through shared memory. Swapped, they look scattered, so a thread gets one
    group at a time, as it gets one group's activations; the warp still reads whole lines.
    """
    return tl.arange(0, BLOCK_G) ^ 1


@triton.jit
def load_group_words(p_words, p_scales, o_n, in_n, start, G: tl.constexpr, BLOCK_G: tl.constexpr):
    """Words (int64) and scales (int8 of the E4M3 bits) of groups start .. start + BLOCK_G of rows o_n: [N, G]."""
    o_g = start + group_order(BLOCK_G)
    in_tile = in_n[:, None] & (o_g < G)[None, :]
    o_tile = o_n[:, None] * G + o_g[None, :]
    return (
        tl.load(p_words + o_tile, mask=in_tile, other=0),
        tl.load(p_scales + o_tile, mask=in_tile, other=0),
    )


@triton.jit
def _split8(b_x, BLOCK_G: tl.constexpr):
    """The eight columns of b_x [G, 8]."""
    b_even, b_odd = tl.split(tl.reshape(b_x, (BLOCK_G, 2, 2, 2)))
    b_04, b_26 = tl.split(b_even)
    b_15, b_37 = tl.split(b_odd)
    b_0, b_4 = tl.split(b_04)
    b_1, b_5 = tl.split(b_15)
    b_2, b_6 = tl.split(b_26)
    b_3, b_7 = tl.split(b_37)
    return b_0, b_1, b_2, b_3, b_4, b_5, b_6, b_7


@triton.jit
def _code_pair(b_half, PLANE: tl.constexpr):
    """Codes PLANE and PLANE + 4 of each 32-bit word, times 2^-14, as float32."""
    b_magnitude = b_half << (9 - 4 * PLANE) if PLANE < 3 else b_half >> 3
    b_bits = (b_magnitude & 0x0E000E00) | ((b_half << (12 - 4 * PLANE)) & 0x80008000)
    b_low = (b_bits & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    b_high = (b_bits >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return b_low, b_high


@triton.jit
def _half_dot(b_half, b_x, BLOCK_G: tl.constexpr):
    """Eight codes (uint32 [N, G]) times the eight activations of their columns (float32 [G, 8]), summed."""
    b_x0, b_x1, b_x2, b_x3, b_x4, b_x5, b_x6, b_x7 = _split8(b_x, BLOCK_G)
    b_low, b_high = _code_pair(b_half, 0)
    b_sum = b_low * b_x0[None, :] + b_high * b_x4[None, :]
    b_low, b_high = _code_pair(b_half, 1)
    b_sum += b_low * b_x1[None, :]
    b_sum += b_high * b_x5[None, :]
    b_low, b_high = _code_pair(b_half, 2)
    b_sum += b_low * b_x2[None, :]
    b_sum += b_high * b_x6[None, :]
    b_low, b_high = _code_pair(b_half, 3)
    b_sum += b_low * b_x3[None, :]
    b_sum += b_high * b_x7[None, :]
    return b_sum


@triton.jit
def group_products(b_words, b_scales, p_x_row, start, G: tl.constexpr, BLOCK_G: tl.constexpr):
    """Sums [N, G] over each group of weight times activation of the token at p_x_row, divided by EPILOGUE_SCALE."""
    o_g = start + group_order(BLOCK_G)
    o_x = o_g[:, None] * 16 + tl.arange(0, 8)[None, :]
    in_x = (o_g < G)[:, None]
    b_x_low = tl.load(p_x_row + o_x, mask=in_x, other=0.0).to(tl.float32)  # [G, 8]
    b_x_high = tl.load(p_x_row + 8 + o_x, mask=in_x, other=0.0).to(tl.float32)  # [G, 8]
    b_sum = _half_dot(b_words.to(tl.uint32), b_x_low, BLOCK_G)
    b_sum += _half_dot((b_words >> 32).to(tl.uint32), b_x_high, BLOCK_G)
    # sign extension sets bit 14 along with the sign
    b_scale_bits = ((b_scales.to(tl.int32) << 7) & 0xBFFF).to(tl.uint16)
    return b_sum * b_scale_bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _nvfp4_gemv_kernel(
    p_x,
    p_words,
    p_scales,
    p_tensor_scale,
    p_out,
    num_outputs,
    stride_x_m,
    stride_out_m,
    M: tl.constexpr,
    G: tl.constexpr,
    NUM_LOADED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes BLOCK_N outputs of every token."""
    o_n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    in_n = o_n < num_outputs
    b_loaded = ()
    for i_chunk in tl.static_range(NUM_LOADED):
        b_loaded = b_loaded + load_group_words(p_words, p_scales, o_n, in_n, i_chunk * BLOCK_G, G, BLOCK_G)
    wait_for_previous(PDL)
    launch_dependents(PDL)
    scale = tl.load(p_tensor_scale) * EPILOGUE_SCALE
    b_sums = ()
    for i_m in tl.static_range(M):
        b_sums = b_sums + (tl.zeros((BLOCK_N, BLOCK_G), dtype=tl.float32),)
    for i_chunk in tl.static_range(NUM_LOADED):
        b_old = b_sums
        b_sums = ()
        for i_m in tl.static_range(M):
            b_sums = b_sums + (
                b_old[i_m]
                + group_products(
                    b_loaded[2 * i_chunk],
                    b_loaded[2 * i_chunk + 1],
                    p_x + i_m * stride_x_m,
                    i_chunk * BLOCK_G,
                    G,
                    BLOCK_G,
                ),
            )
    for start in range(NUM_LOADED * BLOCK_G, G, BLOCK_G):
        b_words, b_scales = load_group_words(p_words, p_scales, o_n, in_n, start, G, BLOCK_G)
        b_old = b_sums
        b_sums = ()
        for i_m in tl.static_range(M):
            b_sums = b_sums + (
                b_old[i_m] + group_products(b_words, b_scales, p_x + i_m * stride_x_m, start, G, BLOCK_G),
            )
    for i_m in tl.static_range(M):
        b_out = tl.sum(b_sums[i_m], axis=1) * scale
        tl.store(p_out + i_m * stride_out_m + o_n, b_out.to(p_out.dtype.element_ty), mask=in_n)


def launch_nvfp4_gemv(*, x: torch.Tensor, operands: WeightOperands, out: torch.Tensor, pdl: bool) -> None:
    """Write out = x @ weight.T for at most MAX_NVFP4_GEMV_TOKENS rows of x. `gemm` has checked the operands."""
    assert operands.scales is not None
    num_tokens, num_inputs = x.shape
    num_outputs = operands.shape[0]
    tiles = nvfp4_gemv_tiles(num_outputs, num_inputs, num_tokens)
    num_groups = num_inputs // BLOCK
    num_chunks = triton.cdiv(num_groups, tiles.block_g)
    _nvfp4_gemv_kernel[(triton.cdiv(num_outputs, tiles.block_n),)](
        x,
        operands.values.view(torch.int64),
        operands.scales.view(torch.int8),
        operands.tensor_scale,
        out,
        num_outputs,
        x.stride(0),
        out.stride(0),
        M=num_tokens,
        G=num_groups,
        NUM_LOADED=num_chunks if num_chunks <= MAX_LOADED_CHUNKS else 0,
        BLOCK_N=tiles.block_n,
        BLOCK_G=tiles.block_g,
        PDL=pdl,
        num_warps=tiles.num_warps,
        **launch_options(pdl=pdl),
    )
