"""NVFP4: 4-bit weights with an FP8 scale for every 16 of them and a float32 scale for the matrix.

    weight[n, k] = e2m1(code[n, k]) * block_scale[n, k / 16] * tensor_scale

    codes         [..., N, K/2]   uint8: k even in the low nibble, k odd in the high one (checkpoint order of modelopt)
    block_scales  [..., N, K/16]  float8_e4m3fn, row-major as on disk (`swizzle_block_scales` makes the MMA layout)
    tensor_scale  [...]           float32: a scalar, or one value for each expert

A code is a sign (bit 3) and one of the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Code times block scale has at most six
significant bits between 2^-10 and 2688, so it is exact in float16 and in bfloat16: dequantising loses nothing.

Quantisation is modelopt's: tensor_scale = amax / (6 * 448); block scale = amax of the block / (6 * tensor_scale), 1
for a block of zeros, clamped to [2^-9, 448] and rounded to E4M3; values are divided by both and rounded to the nearest
magnitude, ties to the even code. Torch only: this file describes storage, kernels/gemm.py computes with it.

Letters: N outputs, K inputs, E experts, G = K / 16 scale groups of a row.
Sources: nvidia-modelopt 0.47 qtensor/nvfp4_tensor.py (rounding, layout); OCP Microscaling Formats 1.0 (E2M1); cuBLAS
documentation, "1D block scaling factors layout" (the 128x4 tile).
"""

from dataclasses import dataclass

import torch

from kernels.launch import require

BLOCK = 16
"""Weights along K that share one block scale."""

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ROUNDING_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoints between neighbouring magnitudes; the second, fourth and sixth have their even code above them."""

E2M1_MAX = 6.0
E4M3_MAX = 448.0
MIN_BLOCK_SCALE = 2.0**-9
"""Smallest positive E4M3 number: a smaller block scale would round to zero and erase its block."""

SWIZZLE_ROWS = 128
SWIZZLE_COLUMNS = 4

RANDOM_SCALE_BYTES = (104, 120)
"""E4M3 bytes of 64 and 256: where the block scales of trained weights lie when the largest is 448."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4Tensor:
    """A quantised weight [..., N, K]; shapes and dtypes of the fields in the module's docstring."""

    codes: torch.Tensor
    block_scales: torch.Tensor
    tensor_scale: torch.Tensor

    def __post_init__(self) -> None:
        require(
            self.codes.dtype == torch.uint8 and self.codes.dim() >= 2,
            f"argument codes must be uint8 [..., N, K/2]; got {self.codes.dtype} {list(self.codes.shape)}",
        )
        leading, (num_rows, num_bytes) = self.codes.shape[:-2], self.codes.shape[-2:]
        require(
            num_bytes % (BLOCK // 2) == 0,
            f"argument codes must hold whole blocks of {BLOCK} along K (a last dim divisible by {BLOCK // 2}); "
            f"got {num_bytes}",
        )
        scales_shape = [*leading, num_rows, num_bytes // (BLOCK // 2)]
        require(
            list(self.block_scales.shape) == scales_shape and self.block_scales.dtype == torch.float8_e4m3fn,
            f"argument block_scales must be float8_e4m3fn {scales_shape} for these codes; "
            f"got {self.block_scales.dtype} {list(self.block_scales.shape)}",
        )
        require(
            self.tensor_scale.shape == leading and self.tensor_scale.dtype == torch.float32,
            f"argument tensor_scale must be float32 {list(leading)} for these codes; "
            f"got {self.tensor_scale.dtype} {list(self.tensor_scale.shape)}",
        )

    @property
    def shape(self) -> torch.Size:
        """(..., N, K) of the weight that this stands for."""
        return torch.Size((*self.codes.shape[:-1], 2 * self.codes.shape[-1]))

    @property
    def num_bytes(self) -> int:
        """Bytes of codes and scales together: 0.5625 a weight, and 4 for each tensor scale."""
        return sum(t.numel() * t.element_size() for t in (self.codes, self.block_scales, self.tensor_scale))


def pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """Bytes [..., K/2] of 4-bit codes [..., K] (uint8 below 16): even k in the low nibble."""
    require(
        codes.dtype == torch.uint8 and codes.shape[-1] % 2 == 0,
        f"argument codes must be uint8 with an even last dim; got {codes.dtype} {list(codes.shape)}",
    )
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_codes(packed: torch.Tensor) -> torch.Tensor:
    """4-bit codes [..., K] (uint8 below 16) of bytes [..., K/2]."""
    require(packed.dtype == torch.uint8, f"argument packed must be uint8; got {packed.dtype}")
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def _nearest_codes(values: torch.Tensor) -> torch.Tensor:
    """Code of the nearest E2M1 number, ties to the even code, magnitudes above 6 to 6."""
    bounds = torch.tensor(ROUNDING_BOUNDS, dtype=torch.float32, device=values.device)
    magnitudes = values.abs().contiguous()
    code = torch.bucketize(magnitudes, bounds).to(torch.uint8)
    for tie in ROUNDING_BOUNDS[1::2]:
        code += magnitudes == tie
    return code | ((values < 0).to(torch.uint8) << 3)


def quantize_nvfp4(values: torch.Tensor, tensor_scale: torch.Tensor | None = None) -> Nvfp4Tensor:
    """Quantise `values` [..., N, K] with modelopt's rounding; each matrix of the leading dims has its tensor scale.

    `tensor_scale` (float32, shape of the leading dims) replaces amax / 2688: ranks that hold slices of one matrix must
    agree on it. A matrix of zeros gets tensor scale 1.
    Raises: ValueError where K is not a multiple of 16 or `tensor_scale` has another shape.
    """
    require(
        values.dim() >= 2 and values.shape[-1] % BLOCK == 0,
        f"argument values must be [..., N, K] with K a multiple of {BLOCK}; got {list(values.shape)}",
    )
    leading = values.shape[:-2]
    values = values.to(torch.float32)
    if tensor_scale is None:
        amax = values.abs().amax(dim=(-2, -1))
        tensor_scale = torch.where(amax > 0, amax / (E2M1_MAX * E4M3_MAX), 1.0)
    require(
        tensor_scale.shape == leading and tensor_scale.dtype == torch.float32,
        f"argument tensor_scale must be float32 {list(leading)}; got {tensor_scale.dtype} {list(tensor_scale.shape)}",
    )
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // BLOCK, BLOCK)
    matrix_scale = tensor_scale[..., None, None]
    scale = blocks.abs().amax(dim=-1) / (E2M1_MAX * matrix_scale)
    scale = torch.where(scale == 0, 1.0, scale).clamp(MIN_BLOCK_SCALE, E4M3_MAX).to(torch.float8_e4m3fn)
    codes = _nearest_codes(blocks / (scale.to(torch.float32) * matrix_scale)[..., None])
    return Nvfp4Tensor(codes=pack_codes(codes.flatten(-2)), block_scales=scale, tensor_scale=tensor_scale)


def dequantize_nvfp4(tensor: Nvfp4Tensor) -> torch.Tensor:
    """Float32 [..., N, K]. Code times block scale is exact, so the only rounding is that of the tensor scale."""
    magnitudes = torch.tensor(E2M1_MAGNITUDES, dtype=torch.float32, device=tensor.codes.device)
    values = torch.cat((magnitudes, -magnitudes))[unpack_codes(tensor.codes).long()]
    values = values.view(*tensor.block_scales.shape, BLOCK) * tensor.block_scales.to(torch.float32)[..., None]
    return values.flatten(-2) * tensor.tensor_scale[..., None, None]


def swizzle_block_scales(block_scales: torch.Tensor) -> torch.Tensor:
    """Block scales [..., N, G] in the tensor cores' 128x4 layout, [..., N up to 128, G up to 4], padded with zeros.

    Scale (r, c) of a matrix lies at (r/128) * 128 * Gp + (c/4) * 512 + (r%32) * 16 + ((r%128)/32) * 4 + c%4, where
    Gp is the padded G. The dtype (8 bits) is kept.
    """
    require(
        block_scales.dim() >= 2 and block_scales.element_size() == 1,
        f"argument block_scales must be [..., N, G] of 8 bits; got {block_scales.dtype} {list(block_scales.shape)}",
    )
    num_rows, num_columns = block_scales.shape[-2:]
    row_padding, column_padding = -num_rows % SWIZZLE_ROWS, -num_columns % SWIZZLE_COLUMNS
    padded = torch.nn.functional.pad(block_scales.view(torch.uint8), (0, column_padding, 0, row_padding))
    # [..., N/128, 4, 32, G/4, 4] -> [..., N/128, G/4, 32, 4, 4]
    tiles = padded.view(*padded.shape[:-2], -1, 4, 32, padded.shape[-1] // SWIZZLE_COLUMNS, SWIZZLE_COLUMNS)
    return tiles.transpose(-4, -2).reshape(padded.shape).view(block_scales.dtype)


def unswizzle_block_scales(swizzled: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    """Row-major block scales [..., num_rows, num_columns] of the layout that `swizzle_block_scales` makes."""
    padded_shape = (num_rows + -num_rows % SWIZZLE_ROWS, num_columns + -num_columns % SWIZZLE_COLUMNS)
    require(
        tuple(swizzled.shape[-2:]) == padded_shape and swizzled.element_size() == 1,
        f"argument swizzled must be [..., {padded_shape[0]}, {padded_shape[1]}] of 8 bits for {num_rows} rows of "
        f"{num_columns} scales; got {swizzled.dtype} {list(swizzled.shape)}",
    )
    # [..., N/128, G/4, 32, 4, 4] -> [..., N/128, 4, 32, G/4, 4]
    tiles = swizzled.contiguous().view(torch.uint8)
    tiles = tiles.view(*swizzled.shape[:-2], -1, padded_shape[1] // SWIZZLE_COLUMNS, 32, 4, SWIZZLE_COLUMNS)
    rows = tiles.transpose(-4, -2).reshape(swizzled.shape)
    return rows[..., :num_rows, :num_columns].contiguous().view(swizzled.dtype)


def random_nvfp4(
    shape: tuple[int, ...], *, std: float, generator: torch.Generator | None, device: torch.device | str
) -> Nvfp4Tensor:
    """A weight [..., N, K] whose dequantised values have mean 0 and standard deviation `std`, drawn in place.

    Codes and block scales are uniform over their bytes, so no float tensor of the weight's size exists: a model of
    40 GB takes seconds. Each factor is independent: std = tensor_scale * sqrt(E[code^2] * E[block_scale^2]).
    """
    require(
        len(shape) >= 2 and shape[-1] % BLOCK == 0,
        f"argument shape must be [..., N, K] with K a multiple of {BLOCK}; got {list(shape)}",
    )
    *leading, num_rows, num_inputs = shape
    codes = torch.empty((*leading, num_rows, num_inputs // 2), dtype=torch.uint8, device=device)
    codes.random_(0, 256, generator=generator)
    low, high = RANDOM_SCALE_BYTES
    scales = torch.empty((*leading, num_rows, num_inputs // BLOCK), dtype=torch.uint8, device=device)
    scales.random_(low, high + 1, generator=generator)
    drawn = torch.arange(low, high + 1, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
    mean_square = torch.tensor(E2M1_MAGNITUDES, dtype=torch.float64).square().mean() * drawn.square().mean()
    tensor_scale = torch.full(tuple(leading), std / float(mean_square) ** 0.5, dtype=torch.float32, device=device)
    return Nvfp4Tensor(codes=codes, block_scales=scales.view(torch.float8_e4m3fn), tensor_scale=tensor_scale)
