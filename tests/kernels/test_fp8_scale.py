"""Power-of-two scales and E4M3 rounding by bit arithmetic, checked against torch over whole number ranges."""

import pytest
import torch
import triton
import triton.language as tl

from kernels.fp8_scale import (
    exact_exp2,
    power_of_two_exponent,
    power_of_two_scale_reference,
    quantize_reference,
    round_to_e4m3,
)


@triton.jit
def _round_kernel(p_in, p_rounded, p_fp8, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_rounded = round_to_e4m3(tl.load(p_in + o))
    tl.store(p_rounded + o, b_rounded)
    tl.store(p_fp8 + o, b_rounded.to(tl.float8e4nv))


@triton.jit
def _scale_kernel(p_amax, p_scale, p_inverse, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b_exponent = power_of_two_exponent(tl.load(p_amax + o))
    tl.store(p_scale + o, exact_exp2(b_exponent))
    tl.store(p_inverse + o, exact_exp2(-b_exponent))


def all_e4m3() -> torch.Tensor:
    """Every finite E4M3 value, ascending, as float32."""
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return values[values.isfinite()].unique()


def interesting_values() -> torch.Tensor:
    """All E4M3 values, all midpoints between neighbours (the ties), their float32 neighbours, and random ones."""
    grid = all_e4m3()
    ties = (grid[1:] + grid[:-1]) / 2
    near = torch.cat((torch.nextafter(ties, torch.tensor(1e9)), torch.nextafter(ties, torch.tensor(-1e9))))
    spread = torch.randn(2048, generator=torch.Generator().manual_seed(0)) * torch.logspace(-4, 2, 2048)
    values = torch.cat((grid, ties, near, spread)).clamp(-448, 448)
    return torch.nn.functional.pad(values, (0, -values.numel() % 512))


def test_rounding_equals_torch(device):
    x = interesting_values().to(device)
    rounded = torch.full_like(x, float("nan"))
    fp8 = torch.full_like(x, float("nan")).to(torch.float8_e4m3fn)
    _round_kernel[(x.numel() // 512,)](x, rounded, fp8, BLOCK=512)
    expected = x.to(torch.float8_e4m3fn)
    assert torch.equal(rounded, expected.float())
    assert torch.equal(fp8.float(), expected.float())


def test_scale_equals_the_logarithm_at_and_around_every_power_of_two(device):
    steps = torch.exp2(torch.arange(-24.0, 30.0)) * 448
    amax = torch.cat(
        (steps, torch.nextafter(steps, torch.tensor(0.0)), torch.nextafter(steps, torch.tensor(1e30)),
         torch.tensor([0.0, 1e-30, 1e-4, 447.0, 449.0, 3e38]))
    )  # fmt: skip
    amax = torch.nn.functional.pad(amax, (0, -amax.numel() % 256)).to(device)
    scale, inverse = torch.full_like(amax, float("nan")), torch.full_like(amax, float("nan"))
    _scale_kernel[(amax.numel() // 256,)](amax, scale, inverse, BLOCK=256)
    assert torch.equal(scale, power_of_two_scale_reference(amax))
    assert (scale * inverse == 1).all()


@pytest.mark.parametrize("amax, scale", [(448.0, 1.0), (448.1, 2.0), (224.0, 0.5), (0.0, 2.0**-22)])
def test_reference_scale_by_hand(amax, scale):
    assert power_of_two_scale_reference(torch.tensor([amax])).item() == scale


def test_quantised_rows_use_the_upper_half_of_the_range():
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, 64)[:, None]
    values, scale = quantize_reference(x)
    largest = values.float().abs().amax(dim=-1)
    assert (largest > 216).all()
    assert (largest <= 448).all()
    assert ((values.float() * scale[:, None] - x).norm() / x.norm()) < 0.04
