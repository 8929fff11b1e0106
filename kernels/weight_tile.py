"""Rows of activations times a tile of a weight, whatever the weight's storage: shared by gemm.py and expert_gemm.py.

    product[m, n] = sum_k x[m, k] * weight[n, k]        float32 [BLOCK_M, BLOCK_N], without NVFP4's tensor scale

    dense      [N, K]        the activations' dtype
    nvfp4      int32 [N, K/8] words of eight codes, float8_e4m3fn [N, K/16] block scales (kernels/nvfp4.py)
    fp8_block  float8_e4m3fn [N, K], float32 [ceil(N/128), ceil(K/128)] scales (kernels/fp8_block.py)

Quantised weights are dequantised in registers and multiplied in the activations' dtype (W4A16, W8A16), which costs no
accuracy: code times block scale of NVFP4 is exact in 16 bits, and so is an FP8 value; FP8's float32 scales multiply the
accumulator, because a tile of K never crosses a block of 128.

NVFP4, in words of eight codes: one shift and one mask turn codes i and i + 4 of a word into two 16-bit floats, so the
tile falls apart into eight planes (plane i holds k = 8 j + i) and the activations are split alike. This takes 5.2
instructions a weight on Hopper; byte loads take 7.

Letters: M rows of activations, N outputs, K inputs, E experts.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl

from kernels.fp8_block import Fp8BlockTensor, dequantize_fp8_block
from kernels.launch import require
from kernels.nvfp4 import Nvfp4Tensor, dequantize_nvfp4

Weight = torch.Tensor | Nvfp4Tensor | Fp8BlockTensor
WeightFormat = Literal["dense", "nvfp4", "fp8_block"]

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTiles:
    """Tile sizes of one launch: BLOCK_M activations rows times BLOCK_N outputs, BLOCK_K inputs at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOperands:
    """A weight as a kernel takes it; `scales` and `tensor_scale` are None where the format has none."""

    weight_format: WeightFormat
    shape: torch.Size
    values: torch.Tensor
    scales: torch.Tensor | None
    tensor_scale: torch.Tensor | None


def weight_operands(weight: Weight, *, dtype: torch.dtype, num_dims: int) -> WeightOperands:
    """Check a weight ([N, K] or, with three dims, [E, N, K]) against the activations' dtype and take it apart.

    Raises: ValueError for another number of dims, a dense weight of another dtype, or tensors that are not contiguous.
    """
    letters = "[N, K]" if num_dims == 2 else "[E, N, K]"
    require(len(weight.shape) == num_dims, f"argument weight must be {letters}; got {list(weight.shape)}")
    scales: torch.Tensor | None = None
    tensor_scale: torch.Tensor | None = None
    weight_format: WeightFormat
    if isinstance(weight, Nvfp4Tensor):
        weight_format, values, scales, tensor_scale = "nvfp4", weight.codes, weight.block_scales, weight.tensor_scale
    elif isinstance(weight, Fp8BlockTensor):
        weight_format, values, scales = "fp8_block", weight.values, weight.block_scales
    else:
        weight_format, values = "dense", weight
        require(weight.dtype == dtype, f"argument weight must be {dtype} like x; got {weight.dtype}")
    for name, tensor in (("", values), (".block_scales", scales), (".tensor_scale", tensor_scale)):
        require(
            tensor is None or tensor.is_contiguous(),
            f"argument weight{name} must be contiguous; got strides {() if tensor is None else tensor.stride()}",
        )
    if weight_format == "nvfp4":
        require(
            values.storage_offset() % 4 == 0,
            f"argument weight.codes must start at a multiple of 4 bytes; got offset {values.storage_offset()}",
        )
        values = values.view(torch.int32)
    return WeightOperands(
        weight_format=weight_format, shape=weight.shape, values=values, scales=scales, tensor_scale=tensor_scale
    )


def weight_reference(weight: Weight) -> torch.Tensor:
    """The weight [..., N, K] dequantised to float32; a dense one keeps float64."""
    if isinstance(weight, Nvfp4Tensor):
        return dequantize_nvfp4(weight)
    if isinstance(weight, Fp8BlockTensor):
        return dequantize_fp8_block(weight)
    return weight if weight.dtype == torch.float64 else weight.to(torch.float32)


@triton.jit
def _split_planes(b_x, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns 8 j + i of b_x [M, K] as plane i of eight [M, K/8]."""
    b_even, b_odd = tl.split(tl.reshape(b_x, (BLOCK_M, BLOCK_K // 8, 2, 2, 2)))
    b_04, b_26 = tl.split(b_even)
    b_15, b_37 = tl.split(b_odd)
    b_0, b_4 = tl.split(b_04)
    b_1, b_5 = tl.split(b_15)
    b_2, b_6 = tl.split(b_26)
    b_3, b_7 = tl.split(b_37)
    return b_0, b_1, b_2, b_3, b_4, b_5, b_6, b_7


@triton.jit
def _e2m1_planes(b_words, b_scales, PLANE: tl.constexpr, DTYPE: tl.constexpr, HALF: tl.constexpr):
    """Codes PLANE and PLANE + 4 (PLANE < 4) of each word times their block scale, both of DTYPE.

    The three magnitude bits of a code are put where a 16-bit float (HALF) has the low exponent bits and the first
    mantissa bit: the float is the code's value times 2^-126 (bfloat16) or 2^-14 (float16), subnormal codes included.
    `b_scales` brings all of it back but 2^-7, which keeps the scale itself below the largest float.
    """
    MAGNITUDE_MASK: tl.constexpr = 0x01C001C0 if HALF.is_bf16() else 0x0E000E00
    # left shift that brings the code to its place; to the right where it is negative
    SHIFT: tl.constexpr = (6 if HALF.is_bf16() else 9) - 4 * PLANE
    b_magnitude = b_words << SHIFT if SHIFT >= 0 else b_words >> -SHIFT
    b_bits = (b_magnitude & MAGNITUDE_MASK) | ((b_words << (12 - 4 * PLANE)) & 0x80008000)
    b_low = (b_bits & 0xFFFF).to(tl.uint16).to(HALF, bitcast=True)
    b_high = (b_bits >> 16).to(tl.uint16).to(HALF, bitcast=True)
    return (b_low * b_scales).to(DTYPE), (b_high * b_scales).to(DTYPE)


@triton.jit
def _nvfp4_product(
    p_x_rows,
    in_m,
    p_words,
    p_scales,
    o_n,
    in_n,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    DTYPE: tl.constexpr = p_x_rows.dtype.element_ty
    HALF: tl.constexpr = tl.bfloat16 if DTYPE.is_bf16() else tl.float16
    SCALE: tl.constexpr = 2.0**119 if HALF.is_bf16() else 2.0**7
    b_acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        o_k = start + tl.arange(0, BLOCK_K)
        o_word = start // 8 + tl.arange(0, BLOCK_K // 8)
        o_group = start // 16 + tl.arange(0, BLOCK_K // 16)
        b_x = tl.load(p_x_rows[:, None] + o_k[None, :], mask=in_m[:, None] & (o_k < K)[None, :], other=0.0)  # [M, K]
        b_words = tl.load(
            p_words + o_n[:, None] * (K // 8) + o_word[None, :],
            mask=in_n[:, None] & (o_word < K // 8)[None, :],
            other=0,
        ).to(tl.uint32, bitcast=True)  # [N, K/8]
        b_group_scales = tl.load(
            p_scales + o_n[:, None] * (K // 16) + o_group[None, :],
            mask=in_n[:, None] & (o_group < K // 16)[None, :],
            other=0.0,
        )  # [N, K/16]
        b_group_scales = (b_group_scales.to(tl.float32) * SCALE).to(HALF)
        b_scales = tl.broadcast_to(b_group_scales[:, :, None], (BLOCK_N, BLOCK_K // 16, 2))
        b_scales = tl.reshape(b_scales, (BLOCK_N, BLOCK_K // 8))  # [N, K/8]
        b_x0, b_x1, b_x2, b_x3, b_x4, b_x5, b_x6, b_x7 = _split_planes(b_x, BLOCK_M, BLOCK_K)
        b_low, b_high = _e2m1_planes(b_words, b_scales, 0, DTYPE, HALF)
        b_acc = tl.dot(b_x0, tl.trans(b_low), b_acc, input_precision="ieee")
        b_acc = tl.dot(b_x4, tl.trans(b_high), b_acc, input_precision="ieee")
        b_low, b_high = _e2m1_planes(b_words, b_scales, 1, DTYPE, HALF)
        b_acc = tl.dot(b_x1, tl.trans(b_low), b_acc, input_precision="ieee")
        b_acc = tl.dot(b_x5, tl.trans(b_high), b_acc, input_precision="ieee")
        b_low, b_high = _e2m1_planes(b_words, b_scales, 2, DTYPE, HALF)
        b_acc = tl.dot(b_x2, tl.trans(b_low), b_acc, input_precision="ieee")
        b_acc = tl.dot(b_x6, tl.trans(b_high), b_acc, input_precision="ieee")
        b_low, b_high = _e2m1_planes(b_words, b_scales, 3, DTYPE, HALF)
        b_acc = tl.dot(b_x3, tl.trans(b_low), b_acc, input_precision="ieee")
        b_acc = tl.dot(b_x7, tl.trans(b_high), b_acc, input_precision="ieee")
    return b_acc * 128.0  # the 2^7 that the block scales leave out


@triton.jit
def _fp8_block_product(
    p_x_rows,
    in_m,
    p_weight,
    p_scales,
    o_n,
    in_n,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    DTYPE: tl.constexpr = p_x_rows.dtype.element_ty
    p_row_scales = p_scales + (o_n // 128) * ((K + 127) // 128)
    b_acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        o_k = start + tl.arange(0, BLOCK_K)
        in_k = o_k < K
        b_x = tl.load(p_x_rows[:, None] + o_k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)  # [M, K]
        p_tile = p_weight + o_n[:, None] * K + o_k[None, :]
        b_weight = tl.load(p_tile, mask=in_n[:, None] & in_k[None, :], other=0.0).to(DTYPE)  # [N, K]
        b_scales = tl.load(p_row_scales + start // 128, mask=in_n, other=0.0)  # [N]
        b_acc += tl.dot(b_x, tl.trans(b_weight), input_precision="ieee") * b_scales[None, :]
    return b_acc


@triton.jit
def _dense_product(
    p_x_rows,
    in_m,
    p_weight,
    o_n,
    in_n,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    b_acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        o_k = start + tl.arange(0, BLOCK_K)
        in_k = o_k < K
        b_x = tl.load(p_x_rows[:, None] + o_k[None, :], mask=in_m[:, None] & in_k[None, :], other=0.0)  # [M, K]
        p_tile = p_weight + o_n[:, None] * K + o_k[None, :]
        b_weight = tl.load(p_tile, mask=in_n[:, None] & in_k[None, :], other=0.0)  # [N, K]
        b_acc = tl.dot(b_x, tl.trans(b_weight), b_acc, input_precision="ieee")
    return b_acc


@triton.jit
def rows_times_weight(
    p_x_rows,
    in_m,
    p_weight,
    p_scales,
    o_n,
    in_n,
    K: tl.constexpr,
    FORMAT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Float32 [M, N] product of the rows at pointers p_x_rows [M] with rows o_n [N] (int64) of the weight."""
    if FORMAT == "nvfp4":
        b_acc = _nvfp4_product(p_x_rows, in_m, p_weight, p_scales, o_n, in_n, K, BLOCK_M, BLOCK_N, BLOCK_K)
    elif FORMAT == "fp8_block":
        b_acc = _fp8_block_product(p_x_rows, in_m, p_weight, p_scales, o_n, in_n, K, BLOCK_M, BLOCK_N, BLOCK_K)
    else:
        b_acc = _dense_product(p_x_rows, in_m, p_weight, o_n, in_n, K, BLOCK_M, BLOCK_N, BLOCK_K)
    return b_acc
