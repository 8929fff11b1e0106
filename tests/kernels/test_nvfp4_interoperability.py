"""NVFP4 tensors written by compressed-tensors and torchao read as those libraries read them, and ours by them.

Codes, block scales and the swizzled layout are compared bit for bit. Dequantised values are too, where the tensor scale
is a power of two; for any other the libraries multiply block and tensor scale first and round once more, so there the
values may differ in the last place of float32.
"""

import pytest
import torch

from kernels.nvfp4 import (
    Nvfp4Tensor,
    dequantize_nvfp4,
    quantize_nvfp4,
    swizzle_block_scales,
    unpack_codes,
    unswizzle_block_scales,
)

SHAPES = [(16, 32), (24, 48), (130, 80), (256, 128)]
POWER_OF_TWO = 2.0**-9


def weight(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.05


def ours(values, tensor_scale):
    return quantize_nvfp4(values, torch.tensor(tensor_scale))


def assert_last_place(found, expected):
    """Equal, or neighbours in float32 where the order of two multiplications differs."""
    torch.testing.assert_close(found, expected, rtol=2.4e-7, atol=0)


@pytest.fixture(scope="module")
def torchao():
    return pytest.importorskip(
        "torchao.prototype.mx_formats.nvfp4_tensor", reason="needs torchao (pip install '.[test]')"
    )


@pytest.fixture(scope="module")
def compressor():
    """compressed-tensors' NVFP4 compressor, and the scheme it compresses by."""
    package = pytest.importorskip("compressed_tensors", reason="needs compressed-tensors (pip install '.[test]')")
    nvfp4 = pytest.importorskip("compressed_tensors.compressors.nvfp4.base")
    scheme = package.quantization.preset_name_to_scheme("NVFP4A16", ["Linear"])
    name = next(name for name in dir(nvfp4) if name.startswith("NVFP4") and name.endswith("Compressor"))
    return getattr(nvfp4, name), scheme


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tensor_scale", [POWER_OF_TWO, 3.1e-4])
def test_torchao_tensors_read_as_torchao_reads_them(torchao, shape, tensor_scale):
    theirs = torchao.NVFP4Tensor.to_nvfp4(weight(shape), per_tensor_scale=torch.tensor(tensor_scale))
    read = Nvfp4Tensor(
        codes=theirs.qdata.view(torch.uint8),
        block_scales=theirs.scale.view(torch.float8_e4m3fn).view(shape[0], -1),
        tensor_scale=torch.tensor(tensor_scale),
    )
    expected = theirs.dequantize(torch.float32)
    if tensor_scale == POWER_OF_TWO:
        assert torch.equal(dequantize_nvfp4(read), expected)
    assert_last_place(dequantize_nvfp4(read), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torchao_reads_our_tensors_as_we_do(torchao, shape):
    tensor = ours(weight(shape), POWER_OF_TWO)
    theirs = torchao.NVFP4Tensor(
        tensor.codes, tensor.block_scales, 16, torch.float32, per_tensor_scale=tensor.tensor_scale
    )
    assert torch.equal(theirs.dequantize(torch.float32), dequantize_nvfp4(tensor))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torchao_chooses_the_same_codes_where_the_scales_agree(torchao, shape):
    """Block scales follow from the block's largest value; both libraries then round to nearest, ties to even."""
    values = weight(shape)
    theirs = torchao.NVFP4Tensor.to_nvfp4(values, per_tensor_scale=torch.tensor(POWER_OF_TWO))
    tensor = ours(values, POWER_OF_TWO)
    same_scale = theirs.scale.view(torch.uint8).view(shape[0], -1) == tensor.block_scales.view(torch.uint8)
    assert same_scale.float().mean() > 0.99
    codes = [unpack_codes(t).view(shape[0], -1, 16) for t in (theirs.qdata.view(torch.uint8), tensor.codes)]
    # a value that rounds to zero keeps its sign in one library and not in the other
    magnitude_equal = (codes[0] & 7) == (codes[1] & 7)
    assert magnitude_equal[same_scale].float().mean() > 0.9999


@pytest.mark.parametrize(("rows", "groups"), [(128, 4), (130, 5), (1, 1), (256, 24), (3072, 384)])
def test_swizzled_scales_are_torchaos_blocked_scales(torchao, rows, groups):
    generator = torch.Generator().manual_seed(rows)
    scales = torch.randint(0, 127, (rows, groups), generator=generator, dtype=torch.uint8).view(torch.float8_e4m3fn)
    blocked = torchao.to_blocked(scales).flatten()
    swizzled = swizzle_block_scales(scales)
    assert torch.equal(swizzled.view(torch.uint8).flatten(), blocked.view(torch.uint8))
    back = torchao.from_blocked(swizzled.flatten(), rows, groups)
    assert torch.equal(back.view(torch.uint8), scales.view(torch.uint8))
    unswizzled = unswizzle_block_scales(blocked.view_as(swizzled), rows, groups)
    assert torch.equal(unswizzled.view(torch.uint8), scales.view(torch.uint8))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("global_scale", [1 / POWER_OF_TWO, 3000.0])
def test_compressed_tensors_read_as_that_library_reads_them(compressor, shape, global_scale):
    """Its global scale is the reciprocal of ModelOpt's and ours."""
    compressor_class, scheme = compressor
    values = weight(shape)
    largest = values.view(shape[0], -1, 16).abs().amax(-1)
    block_scales = (largest * global_scale / 6).clamp(2.0**-9, 448).to(torch.float8_e4m3fn)
    written = compressor_class.compress(
        {"weight": values, "weight_scale": block_scales.float(), "weight_global_scale": torch.tensor([global_scale])},
        scheme,
    )
    read = Nvfp4Tensor(
        codes=written["weight_packed"],
        block_scales=written["weight_scale"].to(torch.float8_e4m3fn),
        tensor_scale=1 / written["weight_global_scale"][0],
    )
    # it computes in bfloat16 unless asked otherwise: float32 values are what the codes and scales stand for
    expected = decompressed(compressor_class, scheme, written)
    assert_last_place(dequantize_nvfp4(read).to(expected.dtype).float(), expected.float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compressed_tensors_reads_our_tensors_as_we_do(compressor, shape):
    compressor_class, scheme = compressor
    tensor = ours(weight(shape), POWER_OF_TWO)
    state = {
        "weight_packed": tensor.codes,
        "weight_scale": tensor.block_scales,
        "weight_global_scale": torch.tensor([1 / POWER_OF_TWO]),
    }
    expected = decompressed(compressor_class, scheme, state)
    assert torch.equal(dequantize_nvfp4(tensor).to(expected.dtype), expected)


def decompressed(compressor_class, scheme, state):
    return compressor_class.decompress(dict(state), scheme)["weight"]
