"""FP8 weights with a float32 scale for every block of 128 x 128, the format of DeepSeek-V3 and GLM-5-FP8 checkpoints.

    weight[n, k] = values[n, k] * block_scales[n / 128, k / 128]

    values        [..., N, K]                            float8_e4m3fn
    block_scales  [..., ceil(N / 128), ceil(K / 128)]    float32

Letters: N outputs, K inputs. Torch only: this file describes storage, kernels/gemm.py computes with it.
Source: DeepSeek-V3 (arXiv 2412.19437), section 3.3 (128 x 128 weight blocks); `weight_scale_inv` of its checkpoints.
"""

from dataclasses import dataclass

import torch

from kernels.launch import require

BLOCK = 128
E4M3_MAX = 448.0

RANDOM_BYTE_MASK = 0xBF
"""Clears the top exponent bit of an E4M3 byte: magnitudes 0 to 1.875 remain, and no NaN (0x7F, 0xFF)."""


def num_blocks(size: int) -> int:
    """Blocks of 128 that cover `size`."""
    return -(-size // BLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fp8BlockTensor:
    """A quantised weight [..., N, K]; shapes and dtypes of the fields in the module's docstring."""

    values: torch.Tensor
    block_scales: torch.Tensor

    def __post_init__(self) -> None:
        require(
            self.values.dtype == torch.float8_e4m3fn and self.values.dim() >= 2,
            f"argument values must be float8_e4m3fn [..., N, K]; got {self.values.dtype} {list(self.values.shape)}",
        )
        *leading, num_rows, num_columns = self.values.shape
        scales_shape = [*leading, num_blocks(num_rows), num_blocks(num_columns)]
        require(
            list(self.block_scales.shape) == scales_shape and self.block_scales.dtype == torch.float32,
            f"argument block_scales must be float32 {scales_shape} for these values; "
            f"got {self.block_scales.dtype} {list(self.block_scales.shape)}",
        )

    @property
    def shape(self) -> torch.Size:
        """(..., N, K) of the weight that this stands for."""
        return self.values.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of values and scales together."""
        return self.values.numel() + 4 * self.block_scales.numel()


def _spread_scales(block_scales: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The block scale of every weight, [..., N, K]."""
    rows = block_scales.repeat_interleave(BLOCK, dim=-2)[..., : shape[-2], :]
    return rows.repeat_interleave(BLOCK, dim=-1)[..., : shape[-1]]


def quantize_fp8_block(values: torch.Tensor) -> Fp8BlockTensor:
    """Quantise `values` [..., N, K]: the largest magnitude of a block becomes 448; a block of zeros has scale 1."""
    require(values.dim() >= 2, f"argument values must be [..., N, K]; got {list(values.shape)}")
    values = values.to(torch.float32)
    num_rows, num_columns = values.shape[-2:]
    padded = torch.nn.functional.pad(values, (0, -num_columns % BLOCK, 0, -num_rows % BLOCK))
    amax = padded.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK)).abs().amax(dim=(-3, -1))
    scales = torch.where(amax > 0, amax / E4M3_MAX, 1.0)
    scaled = (values / _spread_scales(scales, values.shape)).clamp(-E4M3_MAX, E4M3_MAX)
    return Fp8BlockTensor(values=scaled.to(torch.float8_e4m3fn), block_scales=scales)


def dequantize_fp8_block(tensor: Fp8BlockTensor) -> torch.Tensor:
    """Float32 [..., N, K]."""
    return tensor.values.to(torch.float32) * _spread_scales(tensor.block_scales, tensor.shape)


def random_fp8_block(
    shape: tuple[int, ...], *, std: float, generator: torch.Generator | None, device: torch.device | str
) -> Fp8BlockTensor:
    """A weight [..., N, K] whose dequantised values have mean 0 and standard deviation `std`, drawn in place.

    Block scales are uniform within a factor of three, so that a kernel that ignores them is found out.
    """
    require(len(shape) >= 2, f"argument shape must be [..., N, K]; got {list(shape)}")
    *leading, num_rows, num_columns = shape
    values = torch.empty(shape, dtype=torch.uint8, device=device).random_(0, 256, generator=generator)
    values.bitwise_and_(RANDOM_BYTE_MASK)
    drawn = (torch.arange(256, dtype=torch.uint8) & RANDOM_BYTE_MASK).view(torch.float8_e4m3fn).to(torch.float64)
    scales_shape = (*leading, num_blocks(num_rows), num_blocks(num_columns))
    scales = torch.rand(scales_shape, generator=generator, device=device)
    # the mean square of a number between 0.5 and 1.5 is 1 + 1/12
    unit_std = float(drawn.square().mean() * (1 + 1 / 12)) ** 0.5
    return Fp8BlockTensor(values=values.view(torch.float8_e4m3fn), block_scales=(scales + 0.5) * (std / unit_std))
