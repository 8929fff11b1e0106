"""A step being written: adds operations together with their cost, buffers and weights. No torch.

`build.py` decides which operations a step has and in which order; this file knows what each costs and what memory it
needs, so that the order can be read without the bookkeeping.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from kernels import cost as costs
from kernels.cost import BYTES_OF_DTYPE, Cost
from simulator.recipe import WeightFormat
from simulator.step.calls import Call, ExpertGemm, Gemm, HeadGemm, Operand
from simulator.step.program import BufferSpec, Component, DecodeStep, Fill, Op, WeightSpec


def whole(buffer: str) -> Operand:
    """The buffer as it is."""
    return Operand(buffer)


def part(buffer: str, start: int, stop: int, shape: tuple[int, ...] | None = None) -> Operand:
    """Columns [start, stop) of the buffer's last dimension, after viewing it as `shape`."""
    return Operand(buffer, shape=shape, columns=(start, stop))


def reshaped(buffer: str, *shape: int) -> Operand:
    """The buffer seen in another shape."""
    return Operand(buffer, shape=shape)


@dataclass(kw_only=True)
class Draft:
    """Operations, buffers and weights collected so far."""

    activation: str
    tokens: int
    ops: list[Op] = field(default_factory=list)
    buffers: dict[str, BufferSpec] = field(default_factory=dict)
    weights: dict[str, WeightSpec] = field(default_factory=dict)

    def buffer(self, name: str, *shape: int, dtype: str | None = None, fill: Fill = Fill.ZEROS) -> Operand:
        """Declare a buffer (the activation's dtype unless said); declaring the same one again is fine."""
        spec = BufferSpec(shape=shape, dtype=dtype or self.activation, fill=fill)
        known = self.buffers.setdefault(name, spec)
        if (known.shape, known.dtype) != (spec.shape, spec.dtype):
            raise ValueError(f"buffer {name} is {known.shape} {known.dtype}; asked for {spec.shape} {spec.dtype}")
        return Operand(name)

    def constant(self, name: str, values: npt.NDArray[Any], dtype: str) -> Operand:
        """Declare a buffer that no operation writes, with its values."""
        self.buffers.setdefault(name, BufferSpec(shape=values.shape, dtype=dtype, values=values))
        return Operand(name)

    def weight(self, name: str, *shape: int, weight_format: str, replicated: bool, fan_in: int | None = None) -> str:
        """Declare a matrix [..., N, K] that keeps its inputs' variance; `fan_in` is K of the whole model."""
        std = (fan_in or shape[-1]) ** -0.5
        # what is not quantised is stored like the activations: BF16, or another dtype where numerics are compared
        stored = self.activation if weight_format == WeightFormat.bf16 else weight_format
        spec = WeightSpec(shape=shape, weight_format=stored, std=std, replicated=replicated)
        self.weights.setdefault(name, spec)
        return name

    def vector(self, name: str, size: int, *, centre: float, std: float = 0.0, dtype: str | None = None) -> str:
        """Declare a one-dimensional weight: a norm's scale or a bias."""
        spec = WeightSpec(
            shape=(size,), weight_format=dtype or self.activation, std=std, centre=centre, replicated=True
        )
        self.weights.setdefault(name, spec)
        return name

    def add(
        self,
        name: str,
        component: Component,
        call: Call,
        cost: Cost,
        *,
        layer: int | None = None,
        stream: int = 0,
        waits_for: Sequence[int] = (),
    ) -> int:
        """Append an operation; its index is what later operations on other streams wait for."""
        self.ops.append(
            Op(
                name=name,
                component=component,
                call=call,
                cost=cost,
                layer=layer,
                stream=stream,
                waits_for=tuple(waits_for),
            )
        )
        return len(self.ops) - 1

    def gemm(
        self,
        name: str,
        component: Component,
        *,
        x: Operand,
        weight: str,
        out: Operand,
        layer: int | None,
        **placing: Any,
    ) -> int:
        """Append x @ weight.T."""
        spec = self.weights[weight]
        n, k = spec.shape
        cost = costs.gemm_cost(
            self.tokens,
            n,
            k,
            weight_format=spec.weight_format,
            activation=self.activation,
            out=self.buffers[out.buffer].dtype,
        )
        return self.add(name, component, Gemm(x=x, weight=weight, out=out), cost, layer=layer, **placing)

    def head_gemm(self, name: str, *, x: Operand, weight: str, out: Operand, layer: int) -> int:
        """Append one GEMM a head."""
        heads, n, k = self.weights[weight].shape
        cost = costs.head_gemm_cost(self.tokens, heads, n, k, activation=self.activation)
        return self.add(name, Component.PROJECTIONS, HeadGemm(x=x, weight=weight, out=out), cost, layer=layer)

    def expert_gemm(self, name: str, call: ExpertGemm, *, distinct_experts: int, rows: int, layer: int) -> int:
        """Append a grouped GEMM over the experts that were hit."""
        spec = self.weights[call.weight]
        _, n, k = spec.shape
        cost = costs.expert_gemm_cost(
            rows,
            distinct_experts,
            n,
            k,
            input_rows=rows // call.rows_per_token,
            weight_format=spec.weight_format,
            activation=self.activation,
        )
        return self.add(name, Component.EXPERTS, call, cost, layer=layer)

    def bytes_of(self, *operands: Operand) -> int:
        """Bytes of whole buffers, or of the columns of a narrowed one."""
        total = 0
        for operand in operands:
            spec = self.buffers[operand.buffer]
            shape = operand.shape or spec.shape
            last = operand.columns[1] - operand.columns[0] if operand.columns else shape[-1]
            total += int(np.prod(shape[:-1], dtype=np.int64)) * last * BYTES_OF_DTYPE[spec.dtype]
        return total

    def finish(self, *, sequences: int, notes: Sequence[str]) -> DecodeStep:
        """The finished step."""
        return DecodeStep(
            ops=tuple(self.ops),
            buffers=self.buffers,
            weights=self.weights,
            notes=tuple(notes),
            tokens=self.tokens,
            sequences=sequences,
            activation=self.activation,
        )
