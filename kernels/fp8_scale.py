"""FP8 E4M3 with power-of-two scales ("ue8m0" rounding), as the sparse-attention indexer stores its keys and queries.

    scale = 2^ceil(log2(max(amax, 1e-4) / 448)),    stored value = round_to_e4m3(x / scale)

Both steps are done on the bits of a float32, so every arithmetic unit gives the same answer: a logarithm that is one
unit off at a power of two would double the scale. Dividing by a power of two is exact.

Source: DeepSeek-V3.2 reference indexer (scale rounding); OCP 8-bit floating point specification 1.0 (E4M3: 3 mantissa
bits, smallest normal 2^-6, subnormal step 2^-9, largest value 448 = 1.75 * 2^8).
"""

import torch
import triton
import triton.language as tl

E4M3_MAX = 448.0
MIN_AMAX = 1e-4
"""Smaller rows are scaled as if their largest magnitude were this: a row of zeros needs a scale too."""


def power_of_two_scale_reference(amax: torch.Tensor) -> torch.Tensor:
    """Scale of rows whose largest magnitude is `amax`, float32. The exponent is taken apart, not from a logarithm.

    A logarithm that is off by one unit in the last place at an exact power of two doubles the scale.
    """
    # clamp in float32 first, because that is the number the kernel compares with
    ratio = amax.to(torch.float32).clamp(min=MIN_AMAX).to(torch.float64) / E4M3_MAX
    mantissa, exponent = torch.frexp(ratio)
    return torch.ldexp(torch.ones_like(ratio), exponent - (mantissa == 0.5).to(exponent.dtype)).to(torch.float32)


def quantize_reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 values, and one power-of-two scale for each row of the last dim (float32, without that dim)."""
    scale = power_of_two_scale_reference(x.abs().amax(dim=-1))
    return (x.to(torch.float32) / scale[..., None]).to(torch.float8_e4m3fn), scale


@triton.jit
def power_of_two_exponent(b_amax):
    """Exponent e of the smallest 2^e with 448 * 2^e >= max(amax, 1e-4).

    With amax = m * 2^x and 1 <= m < 2, and 448 = 1.75 * 2^8, e is x - 8, or x - 7 where m > 1.75.
    """
    b_bits = tl.maximum(b_amax, 1e-4).to(tl.int32, bitcast=True)
    b_mantissa_over = (b_bits & 0x7FFFFF) > 0x600000
    return (b_bits >> 23) - 127 - 8 + b_mantissa_over.to(tl.int32)


@triton.jit
def exact_exp2(b_exponent):
    """2^exponent as float32, for exponents of normal numbers (-126 to 127)."""
    return ((b_exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def round_to_e4m3(b_x):
    """Round float32 values of magnitude <= 448 to the E4M3 grid, ties to even; the result is still float32.

    The conversion that follows is then exact everywhere. Triton's interpreter converts unrounded values wrongly where
    the mantissa carries into the exponent (7.8 becomes 4).
    """
    b_bits = b_x.to(tl.int32, bitcast=True)
    b_normal = (((b_bits + 0x7FFFF + ((b_bits >> 20) & 1)) >> 20) << 20).to(tl.float32, bitcast=True)
    # one unit in the last place of 1.5 * 2^14 is 2^-9, the step of the subnormals
    b_subnormal = (b_x + 24576.0) - 24576.0
    return tl.where(tl.abs(b_x) < 0.015625, b_subnormal, b_normal)
