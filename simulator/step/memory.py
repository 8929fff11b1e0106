"""All memory of a step: synthetic weights and buffers, allocated once, before anything is captured.

Weights are drawn on the device, in the format they are stored in: no float copy of an NVFP4 matrix ever exists.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from kernels.fp8_block import Fp8BlockTensor, random_fp8_block
from kernels.nvfp4 import Nvfp4Tensor, random_nvfp4
from simulator.step.calls import Operand
from simulator.step.program import BufferSpec, DecodeStep, Fill, WeightSpec

DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
    "int32": torch.int32,
    "int64": torch.int64,
}

Weight = torch.Tensor | Nvfp4Tensor | Fp8BlockTensor


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """The tensors of one step, by the names its operations use."""

    weights: Mapping[str, Weight]
    buffers: Mapping[str, torch.Tensor]

    def tensor(self, operand: Operand) -> torch.Tensor:
        """The view that an operand describes."""
        tensor = self.buffers[operand.buffer]
        if operand.shape is not None:
            tensor = tensor.view(operand.shape)
        if operand.columns is not None:
            tensor = tensor[..., operand.columns[0] : operand.columns[1]]
        return tensor

    def vector(self, name: str) -> torch.Tensor:
        """A weight that is stored as it is: a norm, a bias, or a 16-bit matrix."""
        weight = self.weights[name]
        if not isinstance(weight, torch.Tensor):
            raise TypeError(f"weight {name} is quantised; this operation takes an unquantised one")
        return weight


def allocate(step: DecodeStep, device: torch.device, *, seed: int) -> StepMemory:
    """Draw all weights and lay out all buffers of `step` on `device`; the same seed gives the same bits."""
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed)
    weights = {name: _random_weight(spec, device, generator) for name, spec in step.weights.items()}
    buffers = {name: _buffer(spec, device, generator) for name, spec in step.buffers.items()}
    return StepMemory(weights=weights, buffers=buffers)


def _random_weight(spec: WeightSpec, device: torch.device, generator: torch.Generator | None) -> Weight:
    if spec.weight_format == "nvfp4":
        return random_nvfp4(spec.shape, std=spec.std, generator=generator, device=device)
    if spec.weight_format == "fp8":
        return random_fp8_block(spec.shape, std=spec.std, generator=generator, device=device)
    values = torch.empty(spec.shape, dtype=DTYPES[spec.weight_format], device=device)
    return values.normal_(spec.centre, spec.std, generator=generator)


def _buffer(spec: BufferSpec, device: torch.device, generator: torch.Generator | None) -> torch.Tensor:
    if spec.values is not None:
        return torch.from_numpy(spec.values).to(device=device, dtype=DTYPES[spec.dtype])
    tensor = torch.empty(spec.shape, dtype=DTYPES[spec.dtype], device=device)
    if spec.fill is Fill.NORMAL and spec.dtype == "fp8":
        _fill_fp8(tensor, generator)
        return tensor
    if spec.fill is Fill.NORMAL:
        return tensor.normal_(generator=generator)
    return tensor.fill_(1 if spec.fill is Fill.ONES else 0)


def _fill_fp8(tensor: torch.Tensor, generator: torch.Generator | None) -> None:
    """Fill with random finite E4M3 values of magnitude 2^-3 to 4, without a float copy of the whole tensor."""
    bits = tensor.view(torch.uint8)
    bits.random_(0, 41, generator=generator)
    bits += 0x20
    signs = torch.empty_like(bits).random_(0, 2, generator=generator)
    bits.bitwise_or_(signs.mul_(0x80))
