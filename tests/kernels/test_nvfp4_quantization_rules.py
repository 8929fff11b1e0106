"""What compressed-tensors and torchao write for given weights, beside what kernels/nvfp4.py does.

All three round to the nearest magnitude with ties to the even code and saturate at 6; they divide in different orders,
which matters within `DIVISION_ROUNDING` of a midpoint only. Block scales differ at the bottom:

                         smallest               block of zeros   sign of -0.0
    ours (modelopt's)    2^-9                   1                dropped
    torchao              2^-6                   2^-6             kept
    compressed-tensors   2^-9, 0 becomes 2^-3   2^-3             dropped

Sources: torchao 0.18.0 prototype/mx_formats/nvfp4_tensor.py; compressed-tensors 0.20.1 quantization/utils/helpers.py
and fp4_utils.py.
"""

import pytest
import torch

from kernels.nvfp4 import ROUNDING_BOUNDS, quantize_nvfp4, unpack_codes
from tests.kernels.nvfp4_libraries import POWER_OF_TWO, TENSOR_SCALES, CompressedTensors, in_blocks, load_torchao

DIVISION_ROUNDING = 2.0**-21
"""More than the four float32 roundings (2^-24 of a value each) by which two orders of dividing can differ."""


@pytest.fixture(scope="module")
def torchao():
    return load_torchao()


@pytest.fixture(scope="module")
def compressed_tensors():
    return CompressedTensors()


def spread_sample(tensor_scale):
    """Blocks whose scales run from far below E4M3's smallest number to above its largest, and one block of zeros."""
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(60, 5, 16, generator=generator) * torch.exp2(torch.linspace(-14, 12, 60))[:, None, None]
    values[7, 3] = 0.0
    return (values * tensor_scale).flatten(1)


def near_midpoints(tensor_scale):
    """For each normal E4M3 number s a row: 6, zero, and every midpoint and one beside it, times s * tensor_scale."""
    scales = torch.arange(8, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()[:, None]
    bounds = torch.tensor(ROUNDING_BOUNDS, dtype=torch.float64).expand(len(scales), -1)
    offsets = torch.randint(-6, 7, bounds.shape, generator=torch.Generator().manual_seed(2)) * 2.0**-23
    ends = torch.tensor([6.0, 0.0], dtype=torch.float64).expand(len(scales), -1)
    rows = torch.cat((ends, bounds, -bounds * (1 + offsets)), dim=1)
    return (rows * scales * tensor_scale).float()


def assert_block_scales_round_from(block_scales, values, tensor_scale, *, smallest):
    """E4M3 of amax / (6 * tensor_scale), at least `smallest`, where a block is not all zeros; either at a midpoint."""
    exact = in_blocks(values).abs().amax(-1).double() / (6 * tensor_scale)
    low, high = (
        (exact * factor).clamp(smallest, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)
        for factor in (1 - DIVISION_ROUNDING, 1 + DIVISION_ROUNDING)
    )
    found = block_scales.view(torch.uint8)
    used = exact > 0
    assert torch.all(((low <= found) & (found <= high))[used])
    assert (low != high)[used].float().mean() < 0.01


def assert_codes_agree_off_midpoints(first, second, values, step):
    """Equal codes, but for values within DIVISION_ROUNDING of a midpoint: there the neighbouring magnitude will do."""
    first, second = (in_blocks(unpack_codes(codes)).int() for codes in (first, second))
    scaled = (in_blocks(values).double() / step[..., None]).abs()
    bounds = torch.tensor(ROUNDING_BOUNDS, dtype=torch.float64)
    at_midpoint = (scaled[..., None] / bounds - 1).abs().amin(-1) <= DIVISION_ROUNDING
    assert torch.equal(first[~at_midpoint], second[~at_midpoint])
    assert torch.all((first - second).abs() <= 1)


@pytest.mark.parametrize("tensor_scale", TENSOR_SCALES)
def test_block_scales_follow_each_librarys_rule(torchao, compressed_tensors, tensor_scale):
    values, scale, zeros = spread_sample(tensor_scale), torch.tensor(tensor_scale), (7, 3)
    ours = quantize_nvfp4(values, scale).block_scales
    assert ours.float().unique()[0] == 2.0**-9
    assert ours.float().max() == 448.0
    assert_block_scales_round_from(ours, values, tensor_scale, smallest=2.0**-9)
    assert ours[zeros].float() == 1.0

    theirs = torchao.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=scale).scale
    assert_block_scales_round_from(theirs, values, tensor_scale, smallest=2.0**-6)
    assert theirs[zeros].float() == 2.0**-6

    theirs = compressed_tensors.write(values, 1 / scale.view(1))["weight_scale"]
    lost = in_blocks(values).abs().amax(-1) / (6 * tensor_scale) < 2.0**-10
    assert 1 < lost.sum() < lost.numel() / 2
    assert torch.all(theirs.float()[lost] == 2.0**-3)
    assert_block_scales_round_from(
        torch.where(lost, ours.view(torch.uint8), theirs.view(torch.uint8)), values, tensor_scale, smallest=2.0**-9
    )


@pytest.mark.parametrize("tensor_scale", TENSOR_SCALES)
@pytest.mark.parametrize("make_values", [near_midpoints, spread_sample])
def test_codes_follow_each_librarys_rule(torchao, compressed_tensors, make_values, tensor_scale):
    values, scale = make_values(tensor_scale), torch.tensor(tensor_scale)
    tensor = quantize_nvfp4(values, scale)
    by_torchao = torchao.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=scale)
    by_compressed_tensors = compressed_tensors.write(values, 1 / scale.view(1))
    for codes, block_scales in (
        (by_torchao.qdata, by_torchao.scale),
        (by_compressed_tensors["weight_packed"], by_compressed_tensors["weight_scale"]),
    ):
        same = block_scales.view(torch.uint8) == tensor.block_scales.view(torch.uint8)
        assert same.float().mean() > (0.999 if make_values is near_midpoints else 0.5)
        kept = in_blocks(values)[same], codes.unflatten(-1, (-1, 8))[same], tensor.codes.unflatten(-1, (-1, 8))[same]
        step = tensor.block_scales[same].double() * tensor_scale
        assert_codes_agree_off_midpoints(kept[1], kept[2], kept[0], step[:, None])
    if tensor_scale == POWER_OF_TWO and make_values is near_midpoints:
        # the same divisions in any order: nothing but ties to even is left to differ in
        assert torch.equal(by_compressed_tensors["weight_packed"], tensor.codes)


def test_only_torchao_keeps_the_sign_of_a_negative_zero(torchao, compressed_tensors):
    values, one = torch.zeros(1, 16), torch.tensor(1.0)
    values[0, :3] = torch.tensor([6.0, -0.0, -0.25])
    found = [
        quantize_nvfp4(values, one).codes,
        torchao.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=one).qdata,
        compressed_tensors.write(values, one.view(1))["weight_packed"],
    ]
    assert [unpack_codes(codes)[0, :4].tolist() for codes in found] == [[7, 0, 8, 0], [7, 8, 8, 0], [7, 0, 8, 0]]
