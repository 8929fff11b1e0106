"""The two libraries that write NVFP4 checkpoints on a CPU, as the tests of kernels/nvfp4.py call them."""

import pytest
import torch

POWER_OF_TWO = 2.0**-9
TENSOR_SCALES = [POWER_OF_TWO, 3.1e-4]
"""The first multiplies exactly; after the second, each order of multiplications rounds its own way."""


def load_torchao():
    """torchao's NVFP4 module; skips the test where the package is missing."""
    return pytest.importorskip(
        "torchao.prototype.mx_formats.nvfp4_tensor", reason="needs torchao (pip install '.[test]')"
    )


class CompressedTensors:
    """The calls by which llm-compressor writes an NVFP4 weight and by which transformers reads it."""

    def __init__(self):
        reason = "needs compressed-tensors (pip install '.[test]')"
        self.quantization = pytest.importorskip("compressed_tensors.quantization", reason=reason)
        self.helpers = pytest.importorskip("compressed_tensors.quantization.utils.helpers", reason=reason)
        self.nvfp4 = pytest.importorskip("compressed_tensors.compressors.nvfp4", reason=reason)
        self.scheme = self.quantization.preset_name_to_scheme("NVFP4A16", ["Linear"])

    def block_scales(self, values, global_scale):
        """E4M3 numbers in float32, as its observers leave them in the module."""
        blocks = in_blocks(values)
        return self.helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), self.scheme.weights, global_scale)[0]

    def write(self, values, global_scale):
        """The tensors of a checkpoint: weight_packed, weight_scale, weight_global_scale."""
        state = {"weight": values, "weight_scale": self.block_scales(values, global_scale)}
        return self.nvfp4.NVFP4PackedCompressor.compress({**state, "weight_global_scale": global_scale}, self.scheme)

    def read(self, written):
        """The weight in bfloat16, the only dtype that `decompress` makes."""
        return self.nvfp4.NVFP4PackedCompressor.decompress(dict(written), self.scheme)["weight"]

    def read_float32(self, written):
        """What `decompress` does, in float32."""
        num_rows, num_bytes = written["weight_packed"].shape
        codes = self.nvfp4.unpack_fp4_from_uint8(written["weight_packed"], num_rows, 2 * num_bytes, torch.float32)
        return self.quantization.lifecycle.forward.dequantize(
            codes,
            written["weight_scale"].float(),
            args=self.scheme.weights,
            dtype=torch.float32,
            global_scale=written["weight_global_scale"],
        )


def in_blocks(values):
    return values.unflatten(-1, (-1, 16))


def same_bits(found, expected):
    return found.dtype == expected.dtype and torch.equal(
        found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)
    )
