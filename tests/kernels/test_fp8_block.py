"""FP8 weights with 128 x 128 block scales: rounding, partial blocks, random weights."""

import pytest
import torch

from kernels.fp8_block import Fp8BlockTensor, dequantize_fp8_block, quantize_fp8_block, random_fp8_block


def sample(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(128, 128), (1, 1), (130, 257), (2, 5, 300)], ids=lambda v: "x".join(map(str, v)))
def test_values_come_back_within_half_a_unit_in_the_last_place(shape):
    values = sample(*shape)
    weight = quantize_fp8_block(values)
    assert weight.shape == shape
    back = dequantize_fp8_block(weight)
    # three mantissa bits: half a unit is 1/16 of a value; below 2^-6 of the block's scale the step is 2^-9
    bound = values.abs() / 16 + weight.block_scales.max() * 2.0**-10
    assert torch.all((back - values).abs() <= bound)


def test_the_largest_value_of_each_block_becomes_448():
    values = sample(256, 130)
    values[:128, :128] *= 100
    weight = quantize_fp8_block(values)
    assert weight.block_scales.shape == (2, 2)
    assert weight.block_scales[0, 0] == values[:128, :128].abs().max() / 448
    assert weight.values[:128, 128:].float().abs().max() == 448


def test_a_block_of_zeros_has_scale_one():
    weight = quantize_fp8_block(torch.zeros(3, 5))
    assert weight.block_scales.tolist() == [[1.0]]
    assert torch.equal(dequantize_fp8_block(weight), torch.zeros(3, 5))


def test_quantising_what_was_dequantised_changes_nothing():
    weight = quantize_fp8_block(sample(130, 200))
    again = quantize_fp8_block(dequantize_fp8_block(weight))
    assert torch.equal(again.values.view(torch.uint8), weight.values.view(torch.uint8))
    assert torch.allclose(again.block_scales, weight.block_scales, rtol=1e-6, atol=0)


def test_dequantising_spreads_each_scale_over_its_block():
    values = torch.ones(130, 140).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    weight = dequantize_fp8_block(Fp8BlockTensor(values=values, block_scales=scales))
    assert [weight[0, 0], weight[127, 128], weight[128, 127], weight[129, 139]] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("shape", [(1024, 1024), (64, 128, 256)], ids=["matrix", "experts"])
def test_random_weights_have_the_wanted_standard_deviation(shape):
    weight = random_fp8_block(shape, std=0.02, generator=torch.Generator().manual_seed(0), device="cpu")
    values = dequantize_fp8_block(weight)
    assert values.isfinite().all()
    assert values.std().item() == pytest.approx(0.02, rel=0.05)
    assert weight.block_scales.max() > 2 * weight.block_scales.min()


def test_bytes_are_those_of_values_and_scales():
    weight = random_fp8_block((2, 130, 100), std=1.0, generator=None, device="cpu")
    assert weight.num_bytes == 2 * 130 * 100 + 2 * 2 * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_fp8_block(torch.zeros(4)), r"argument values must be \[..., N, K\]; got \[4\]"),
        (
            lambda: random_fp8_block((4,), std=1.0, generator=None, device="cpu"),
            r"argument shape must be \[..., N, K\]; got \[4\]",
        ),
        (
            lambda: Fp8BlockTensor(values=torch.zeros(4, 4), block_scales=torch.zeros(1, 1)),
            "argument values must be float8_e4m3fn .*; got torch.float32",
        ),
        (
            lambda: Fp8BlockTensor(values=torch.zeros(4, 4).to(torch.float8_e4m3fn), block_scales=torch.zeros(1, 2)),
            r"argument block_scales must be float32 \[1, 1\] for these values; got torch.float32 \[1, 2\]",
        ),
    ],
    ids=["values", "shape", "dtype", "scales"],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
