"""NVFP4 tensors written by compressed-tensors and torchao read as those libraries read them, and ours by them.

Codes, packing, block scales and the swizzled layout mean the same everywhere, bit for bit. So do values where the
tensor scale is a power of two. For any other, float32 rounds in different places:

    ours                 (code * block_scale) * tensor_scale      once: the first product is exact
    torchao              code * (block_scale * tensor_scale)      twice
    compressed-tensors   code * (block_scale / global_scale)      twice; global_scale = 2688 / amax = 1 / tensor_scale

so each side is compared bit for bit with its own rule, applied to the codes and scales as kernels/nvfp4.py reads them.

Sources: torchao 0.18.0 prototype/mx_formats/nvfp4_tensor.py; compressed-tensors 0.20.1 compressors/nvfp4,
quantization/lifecycle.
"""

import pytest
import torch

from kernels.nvfp4 import (
    E2M1_MAGNITUDES,
    Nvfp4Tensor,
    dequantize_nvfp4,
    pack_codes,
    quantize_nvfp4,
    random_nvfp4,
    swizzle_block_scales,
    unpack_codes,
    unswizzle_block_scales,
)
from tests.kernels.nvfp4_libraries import (
    POWER_OF_TWO,
    TENSOR_SCALES,
    CompressedTensors,
    in_blocks,
    load_torchao,
    same_bits,
)

SHAPES = [(1, 16), (24, 48), (33, 80), (130, 112), (256, 128)]
SCALE_SHAPES = [(1, 1), (33, 7), (127, 3), (128, 4), (129, 5), (257, 9), (256, 24)]


@pytest.fixture(scope="module")
def torchao():
    return load_torchao()


@pytest.fixture(scope="module")
def compressed_tensors():
    return CompressedTensors()


def sample(shape, dtype=torch.float32):
    """Weights of trained size; dtype bfloat16 is what checkpoints are quantised from."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.05).to(dtype)


def code_values(tensor):
    magnitudes = torch.tensor(E2M1_MAGNITUDES)
    return in_blocks(torch.cat((magnitudes, -magnitudes))[unpack_codes(tensor.codes).long()])


def rounded_once(tensor):
    """The exact weight (30 significant bits at most, so float64 holds it), rounded to float32."""
    scales = tensor.block_scales.double() * tensor.tensor_scale.double()[..., None, None]
    return (code_values(tensor).double() * scales[..., None]).flatten(-2).float()


def read_torchao(theirs, tensor_scale):
    return Nvfp4Tensor(codes=theirs.qdata, block_scales=theirs.scale, tensor_scale=tensor_scale)


def read_compressed_tensors(written):
    return Nvfp4Tensor(
        codes=written["weight_packed"],
        block_scales=written["weight_scale"],
        tensor_scale=1 / written["weight_global_scale"][0],
    )


def as_compressed_tensors(tensor):
    return {
        "weight_packed": tensor.codes,
        "weight_scale": tensor.block_scales,
        "weight_global_scale": 1 / tensor.tensor_scale.view(1),
    }


def assert_read_as_torchao_reads(tensor, theirs):
    expected = theirs.dequantize(torch.float32)
    scales = tensor.tensor_scale[..., None, None] * tensor.block_scales.float()
    assert same_bits(expected, (code_values(tensor) * scales[..., None]).flatten(-2))
    assert same_bits(dequantize_nvfp4(tensor), rounded_once(tensor))
    if torch.all(tensor.tensor_scale == POWER_OF_TWO):
        assert same_bits(dequantize_nvfp4(tensor), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tensor_scale", TENSOR_SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_we_read_torchaos_tensors_as_it_does(torchao, shape, tensor_scale, dtype):
    scale = torch.tensor(tensor_scale)
    theirs = torchao.NVFP4Tensor.to_nvfp4(sample(shape, dtype), per_tensor_scale=scale)
    assert_read_as_torchao_reads(read_torchao(theirs, scale), theirs)


def test_we_read_torchaos_stacked_experts_as_it_does(torchao):
    """It keeps one scale for each expert as [E, 1, 1], we as [E]."""
    scales = torch.tensor([3.1e-4, POWER_OF_TWO, 7e-3])
    theirs = torchao.NVFP4Tensor.to_nvfp4(sample((3, 24, 48)), per_tensor_scale=scales.view(3, 1, 1))
    assert_read_as_torchao_reads(read_torchao(theirs, scales), theirs)


@pytest.mark.parametrize("swizzled", [False, True], ids=["row_major", "swizzled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torchao_reads_our_tensors_as_we_do(torchao, shape, swizzled):
    """All sixteen codes; `random_nvfp4` draws them uniformly."""
    drawn = random_nvfp4(shape, std=1.0, generator=torch.Generator().manual_seed(3), device="cpu")
    for tensor_scale in (torch.tensor(POWER_OF_TWO), drawn.tensor_scale):
        tensor = Nvfp4Tensor(codes=drawn.codes, block_scales=drawn.block_scales, tensor_scale=tensor_scale)
        scales = swizzle_block_scales(tensor.block_scales) if swizzled else tensor.block_scales
        theirs = torchao.NVFP4Tensor(
            tensor.codes, scales, 16, torch.float32, per_tensor_scale=tensor_scale, is_swizzled_scales=swizzled
        )
        assert_read_as_torchao_reads(tensor, theirs)


def assert_read_as_compressed_tensors_reads(tensor, written, library):
    expected = library.read_float32(written)
    scales = tensor.block_scales.float() / written["weight_global_scale"]
    assert same_bits(expected, (code_values(tensor) * scales[..., None]).flatten(-2))
    assert same_bits(library.read(written), expected.to(torch.bfloat16))
    assert same_bits(dequantize_nvfp4(tensor), rounded_once(tensor))
    if tensor.tensor_scale == POWER_OF_TWO:
        assert same_bits(dequantize_nvfp4(tensor), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tensor_scale", TENSOR_SCALES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_we_read_compressed_tensors_as_it_does(compressed_tensors, shape, tensor_scale, dtype):
    written = compressed_tensors.write(sample(shape, dtype), torch.tensor([1 / tensor_scale]))
    assert_read_as_compressed_tensors_reads(read_compressed_tensors(written), written, compressed_tensors)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compressed_tensors_reads_our_tensors_as_we_do(compressed_tensors, shape):
    drawn = random_nvfp4(shape, std=1.0, generator=torch.Generator().manual_seed(3), device="cpu")
    for tensor_scale in (torch.tensor(POWER_OF_TWO), drawn.tensor_scale):
        tensor = Nvfp4Tensor(codes=drawn.codes, block_scales=drawn.block_scales, tensor_scale=tensor_scale)
        assert_read_as_compressed_tensors_reads(tensor, as_compressed_tensors(tensor), compressed_tensors)


def test_all_bytes_hold_the_same_two_values_for_compressed_tensors(compressed_tensors):
    """Every pair of codes, the low nibble first, read by each and packed again by the other."""
    packed = torch.arange(256, dtype=torch.uint8).view(32, 8)
    theirs = compressed_tensors.nvfp4.unpack_fp4_from_uint8(packed, 32, 16, torch.float32)
    ones = torch.ones(32, 1).to(torch.float8_e4m3fn)
    ours = dequantize_nvfp4(Nvfp4Tensor(codes=packed, block_scales=ones, tensor_scale=torch.tensor(1.0)))
    assert same_bits(ours, theirs)
    assert torch.equal(compressed_tensors.nvfp4.pack_fp4_to_uint8(ours), packed)
    assert torch.equal(pack_codes(unpack_codes(packed)), packed)


def test_torchaos_tensor_scale_is_ours(torchao):
    for seed in range(50):
        values = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
        theirs = torchao.per_tensor_amax_to_scale(values.abs().amax())
        assert same_bits(theirs.view(1), quantize_nvfp4(values).tensor_scale.view(1))


def test_compressed_tensors_global_scale_is_the_reciprocal_of_our_tensor_scale(compressed_tensors):
    for seed in range(50):
        values = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
        global_scale = compressed_tensors.helpers.generate_gparam(values.min(), values.max())
        assert same_bits(global_scale, (448 * 6 / values.abs().amax()).view(1))
        product = global_scale.double() * quantize_nvfp4(values).tensor_scale.double()
        assert abs(product.item() - 1) <= 2.0**-23  # each is rounded once


@pytest.mark.parametrize(("rows", "groups"), SCALE_SHAPES)
def test_swizzled_scales_are_torchaos_blocked_scales(torchao, rows, groups):
    generator = torch.Generator().manual_seed(rows)
    scales = torch.randint(0, 127, (rows, groups), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    swizzled, blocked = swizzle_block_scales(scales), torchao.to_blocked(scales)
    assert same_bits(swizzled.flatten(), blocked)
    assert same_bits(torchao.from_blocked(swizzled, rows, groups), scales)
    assert same_bits(unswizzle_block_scales(blocked.view(swizzled.shape), rows, groups), scales)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_we_unswizzle_the_scales_of_torchaos_tensors(torchao, shape):
    """Ready-made for the tensor cores, its scales are stored [32 * row tiles, 16 * column tiles]."""
    scale = torch.tensor(3.1e-4)
    row_major, swizzled = (
        torchao.NVFP4Tensor.to_nvfp4(sample(shape), per_tensor_scale=scale, is_swizzled_scales=flag).scale
        for flag in (False, True)
    )
    ours = swizzle_block_scales(row_major)
    assert same_bits(ours.flatten(), swizzled.flatten())
    assert same_bits(unswizzle_block_scales(swizzled.reshape(ours.shape), *row_major.shape), row_major)
