"""NVFP4 weights times one to eight tokens, without tensor cores: the narrow case of gemm.py and of expert_gemm.py.

    sum_k x[m, k] * weight[n, k]        float32 multiply-adds; every product is exact

At a handful of tokens a matrix product reads its weight once and is done, so what counts is that reading never waits:
a program takes a few outputs, its threads share K among them, each thread loads all its words before it uses the first,
and they are loaded before `griddepcontrol.wait`, since no kernel of a step writes weights.

A 64-bit word holds one scale group: 16 codes of a row, one E4M3 scale. Two shifts and a mask put a code's sign where a
float32 has its sign, and its three magnitude bits where a float32 has its low exponent bits and its first mantissa bit:
that float32 is the code's value times 2^-126, subnormal codes included. Activations are multiplied by 2^95 so that
products stay clear of float32's subnormal numbers: exact down to activations of 2^-71 (4e-22), while activations of
2^33 (9e9) and above overflow. The bits of an E4M3
scale, shifted, are a float16 of the scale's value times 2^-8. EPILOGUE_SCALE brings all of it back at the end: about
4.5 instructions a weight, and no rounding before the float32 additions.

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

MIN_PROGRAMS = 256
"""Programs to aim for, about two an SM: rows that share activations pay as long as every SM has work."""

MAX_LOADED_WORDS = 16
"""Words that a thread loads before it uses the first: two registers each, and one for its scale."""

X_SCALE = tl.constexpr(2.0**95)
EPILOGUE_SCALE = tl.constexpr(2.0**39)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvTiles:
    """How one program's threads share its outputs and inputs."""

    block_g: int
    """Scale groups of a chunk: threads side by side along a row."""
    rows_abreast: int
    """Rows that are worked on at the same time, by different threads."""
    rows_each: int
    """Rows that each thread works on, with the same activations."""
    num_warps: int

    @property
    def block_n(self) -> int:
        """Outputs of a program."""
        return self.rows_abreast * self.rows_each


def nvfp4_gemv_tiles(rows: int, k: int, m: int) -> GemvTiles:
    """Tiles for `rows` outputs in all (of all experts that run) and m tokens."""
    num_groups = k // BLOCK
    # the widest power of two that leaves no thread idle, within 16 (K = 256) and 128 (K = 6144 is three chunks)
    block_g = min(128, max(16, num_groups & -num_groups))
    num_warps = 4
    rows_abreast = 32 * num_warps // block_g
    # two tokens of four rows would take 243 registers
    rows_each = 4 if m == 1 else 2
    while rows_each > 1 and -(-rows // (rows_abreast * rows_each)) < MIN_PROGRAMS:
        rows_each //= 2
    return GemvTiles(block_g=block_g, rows_abreast=rows_abreast, rows_each=rows_each, num_warps=num_warps)


def fits_gemv(operands: WeightOperands, k: int) -> bool:
    """Whether the weight's words of 64 bits are aligned."""
    return operands.weight_format == "nvfp4" and operands.values.storage_offset() % 2 == 0 and k % BLOCK == 0


@triton.jit
def thread_order(BLOCK: tl.constexpr):
    """0 .. BLOCK - 1 with neighbours swapped: the place in the tile that each thread works on.

    Triton would give a thread four neighbouring scales, and with them four neighbouring groups; its activations would
    then have to come from other threads, through shared memory. Swapped, they look scattered to it, so a thread gets
    one group at a time, as it gets one group's activations; the warp still reads whole lines.
    """
    return tl.arange(0, BLOCK) ^ 1


@triton.jit
def load_rows(
    p_words,
    p_scales,
    first_row,
    num_rows,
    start,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    ROWS_ABREAST: tl.constexpr,
    ROWS_EACH: tl.constexpr,
):
    """Words (int64) and scales (int8 of the E4M3 bits) of one chunk of each of a thread's rows, alternating."""
    o_tile = thread_order(BLOCK_G * ROWS_ABREAST)
    o_g = start + o_tile % BLOCK_G
    b_loaded = ()
    for i_row in tl.static_range(ROWS_EACH):
        o_n = first_row + i_row * ROWS_ABREAST + o_tile // BLOCK_G
        in_tile = (o_n < num_rows) & (o_g < G)
        o_word = o_n.to(tl.int64) * G + o_g
        b_words = tl.load(p_words + o_word, mask=in_tile, other=0)
        b_scales = tl.load(p_scales + o_word, mask=in_tile, other=0)
        b_loaded = b_loaded + (b_words, b_scales)
    return b_loaded


@triton.jit
def load_x(p_x_row, start, G: tl.constexpr, BLOCK_G: tl.constexpr, ROWS_ABREAST: tl.constexpr):
    """The sixteen activations of each thread's group, times X_SCALE."""
    BLOCK: tl.constexpr = BLOCK_G * ROWS_ABREAST
    o_g = start + thread_order(BLOCK) % BLOCK_G
    o_x = o_g[:, None] * 16 + tl.arange(0, 8)[None, :]
    in_x = (o_g < G)[:, None]
    b_low = tl.load(p_x_row + o_x, mask=in_x, other=0.0).to(tl.float32) * X_SCALE  # [BLOCK, 8]
    b_high = tl.load(p_x_row + 8 + o_x, mask=in_x, other=0.0).to(tl.float32) * X_SCALE  # [BLOCK, 8]
    return _split8(b_low, BLOCK) + _split8(b_high, BLOCK)


@triton.jit
def _split8(b_x, BLOCK: tl.constexpr):
    """The eight columns of b_x [BLOCK, 8]."""
    b_even, b_odd = tl.split(tl.reshape(b_x, (BLOCK, 2, 2, 2)))
    b_04, b_26 = tl.split(b_even)
    b_15, b_37 = tl.split(b_odd)
    b_0, b_4 = tl.split(b_04)
    b_1, b_5 = tl.split(b_15)
    b_2, b_6 = tl.split(b_26)
    b_3, b_7 = tl.split(b_37)
    return b_0, b_1, b_2, b_3, b_4, b_5, b_6, b_7


@triton.jit
def group_product(b_words, b_scales, b_x):
    """Sum over a thread's group of weight times activation, divided by EPILOGUE_SCALE."""
    b_sum = tl.zeros(b_words.shape, dtype=tl.float32)
    for i_half in tl.static_range(2):
        b_half = (b_words >> (32 * i_half)).to(tl.int32)
        for i_code in tl.static_range(8):
            # the arithmetic shift leaves the sign bit in place and fills with copies of it, which the mask takes away
            b_bits = ((b_half << (28 - 4 * i_code)) >> 6) & -0x7E400000
            b_sum += b_bits.to(tl.float32, bitcast=True) * b_x[8 * i_half + i_code]
    # sign extension sets bit 14 along with the sign
    b_scale_bits = ((b_scales.to(tl.int32) << 7) & 0xBFFF).to(tl.uint16)
    return b_sum * b_scale_bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def add_chunk(b_sums, b_loaded, FIRST: tl.constexpr, b_x, ROWS_EACH: tl.constexpr):
    """b_sums plus the products of one chunk, whose words and scales start at FIRST in b_loaded."""
    b_added = ()
    for i_row in tl.static_range(ROWS_EACH):
        b_product = group_product(b_loaded[FIRST + 2 * i_row], b_loaded[FIRST + 2 * i_row + 1], b_x)
        b_added = b_added + (b_sums[i_row] + b_product,)
    return b_added


@triton.jit
def _add2(b_a0, b_a1, b_b0, b_b1):
    return b_a0 + b_b0, b_a1 + b_b1


@triton.jit
def _add4(b_a0, b_a1, b_a2, b_a3, b_b0, b_b1, b_b2, b_b3):
    return b_a0 + b_b0, b_a1 + b_b1, b_a2 + b_b2, b_a3 + b_b3


@triton.jit
def store_rows(
    p_out,
    b_sums,
    scale,
    first_row,
    num_rows,
    BLOCK_G: tl.constexpr,
    ROWS_ABREAST: tl.constexpr,
    ROWS_EACH: tl.constexpr,
):
    """Add each row's sums over the threads that share it, all rows in one reduction, and store."""
    b_parts = ()
    for i_row in tl.static_range(ROWS_EACH):
        b_parts = b_parts + (tl.reshape(b_sums[i_row], (ROWS_ABREAST, BLOCK_G)),)
    if ROWS_EACH == 4:
        b_out = tl.reduce(b_parts, 1, _add4)
    elif ROWS_EACH == 2:
        b_out = tl.reduce(b_parts, 1, _add2)
    else:
        b_out = (tl.sum(b_parts[0], axis=1),)
    for i_row in tl.static_range(ROWS_EACH):
        o_n = first_row + i_row * ROWS_ABREAST + tl.arange(0, ROWS_ABREAST)
        tl.store(p_out + o_n, (b_out[i_row] * scale).to(p_out.dtype.element_ty), mask=o_n < num_rows)


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
    BLOCK_G: tl.constexpr,
    ROWS_ABREAST: tl.constexpr,
    ROWS_EACH: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program computes ROWS_ABREAST * ROWS_EACH outputs of every token."""
    first_row = tl.program_id(0) * (ROWS_ABREAST * ROWS_EACH)
    b_loaded = ()
    for i_chunk in tl.static_range(NUM_LOADED):
        b_loaded = b_loaded + load_rows(
            p_words, p_scales, first_row, num_outputs, i_chunk * BLOCK_G, G, BLOCK_G, ROWS_ABREAST, ROWS_EACH
        )
    wait_for_previous(PDL)
    launch_dependents(PDL)
    scale = tl.load(p_tensor_scale) * EPILOGUE_SCALE
    for i_m in tl.static_range(M):
        p_x_row = p_x + i_m * stride_x_m
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
        store_rows(p_out + i_m * stride_out_m, b_sums, scale, first_row, num_outputs, BLOCK_G, ROWS_ABREAST, ROWS_EACH)


def loaded_chunks(num_groups: int, tiles: GemvTiles) -> int:
    """Chunks whose words a thread loads before it uses any: as many as its registers hold."""
    num_chunks = -(-num_groups // tiles.block_g)
    return min(num_chunks, MAX_LOADED_WORDS // tiles.rows_each)


def launch_nvfp4_gemv(*, x: torch.Tensor, operands: WeightOperands, out: torch.Tensor, pdl: bool) -> None:
    """Write out = x @ weight.T for at most MAX_NVFP4_GEMV_TOKENS rows of x. `gemm` has checked the operands."""
    assert operands.scales is not None
    num_tokens, num_inputs = x.shape
    num_outputs = operands.shape[0]
    tiles = nvfp4_gemv_tiles(num_outputs, num_inputs, num_tokens)
    num_groups = num_inputs // BLOCK
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
        NUM_LOADED=loaded_chunks(num_groups, tiles),
        BLOCK_G=tiles.block_g,
        ROWS_ABREAST=tiles.rows_abreast,
        ROWS_EACH=tiles.rows_each,
        PDL=pdl,
        num_warps=tiles.num_warps,
        **launch_options(pdl=pdl),
    )
