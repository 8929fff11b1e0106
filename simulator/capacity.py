"""Whether a step fits a device's memory, and what would make it fit. No torch."""

import os
from collections.abc import Mapping
from pathlib import Path

from simulator.config import SimulatorConfig
from simulator.deployment import Deployment
from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware
from simulator.model import ModelSpec
from simulator.step.program import BufferSpec, DecodeStep, WeightSpec

RESERVE_BYTES = 3 * 2**30
"""Kept free: CUDA context, compiled kernels, and the executable graphs of all subsets."""

CACHES = ("_cache", "index_scales")
"""Ends of the names of buffers that grow with the context and can be shared by layers."""

CACHE_WARM_FACTOR = 2
"""A step that reads fewer than so many times the L2 cache in distinct bytes may find its weights there."""


def free_host_bytes() -> int:
    """Memory of this machine that a process can still take; without Linux's own figure, what is wholly unused."""
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            return int(fields["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_fits(config: SimulatorConfig, step: DecodeStep, free_bytes: int) -> None:
    """Refuse a step that would not fit `free_bytes`.

    Raises:
        BadInputError: it does not; the message says how much it needs and which settings would fit.
    """
    needed = step.weight_bytes + step.buffer_bytes + RESERVE_BYTES
    if needed <= free_bytes:
        return
    have = (
        f"needs {needed / 2**30:.1f} GiB ({step.weight_bytes / 2**30:.1f} weights, "
        f"{step.buffer_bytes / 2**30:.1f} caches and activations); {free_bytes / 2**30:.1f} GiB are free"
    )
    raise BadInputError(
        Problem(key="model", value=config.model.name, must=have, suggestion=_suggestion(config, step, free_bytes))
    )


def _suggestion(config: SimulatorConfig, step: DecodeStep, free_bytes: int) -> str:
    """The largest numbers of distinct layers that fit, if any do."""
    model = config.model
    weights = _bytes_by_layer(step.weights)
    caches = _bytes_by_layer({name: spec for name, spec in step.buffers.items() if name.endswith(CACHES)})
    fixed = step.buffer_bytes - sum(caches.values()) + weights.pop(None, 0) + RESERVE_BYTES

    def needed(weight_layers: int, cache_layers: int | None) -> int:
        held = sum(size for layer, size in weights.items() if _turn(model, layer) < weight_layers)
        cached = sum(size for layer, size in caches.items() if cache_layers is None or (layer or 0) < cache_layers)
        return fixed + held + cached

    for cache_layers in (config.deployment.cache_layers, 8, 1):
        fitting = [n for n in range(1, model.num_hidden_layers + 1) if needed(n, cache_layers) <= free_bytes]
        if fitting:
            shared = "" if cache_layers is None else f" deployment.cache_layers={cache_layers}"
            return f"use deployment.weight_layers={fitting[-1]}{shared}, so that layers share memory in turn"
    return "use a larger deployment.tp, a smaller deployment.batch or deployment.context"


def _bytes_by_layer(specs: Mapping[str, WeightSpec] | Mapping[str, BufferSpec]) -> dict[int | None, int]:
    """Sizes summed by the layer in a tensor's name; None for what stands outside the layers."""
    sizes: dict[int | None, int] = {}
    for name, spec in specs.items():
        parts = name.split(".")
        layer = int(parts[1]) if parts[0] == "layers" else None
        sizes[layer] = sizes.get(layer, 0) + spec.num_bytes
    return sizes


def _turn(model: ModelSpec, layer: int | None) -> int:
    """How many layers of the same kind come before."""
    index = layer or 0
    return index if model.is_dense(index) else index - model.num_dense_layers


def cache_warm_warning(step: DecodeStep, deployment: Deployment, hardware: Hardware) -> str | None:
    """A warning where so few distinct bytes are read that weights may stay in the L2 cache between two reads.

    Then the step is faster than any decode of the real model, whose weights come from memory every time.
    """
    if not hardware.l2_mb:
        return None
    # layers of one kind take turns, so a layer's weights come back after the bytes of so many layers
    layers = 1 + max((op.layer or 0 for op in step.ops), default=0)
    read = sum(op.cost.bytes_read for op in step.ops if op.layer is not None)
    distinct = read / layers * min(deployment.weight_layers or layers, layers)
    needed = CACHE_WARM_FACTOR * hardware.l2_mb * 1e6
    if distinct >= needed:
        return None
    enough = -(-needed * layers // read)
    return (
        f"only {distinct / 1e6:.0f} MB of layers are read before a weight comes round again, against "
        f"{hardware.l2_mb:.0f} MB of L2: reads may be cache-warm, and this is no estimate of a decode step; "
        f"at least {enough:.0f} distinct layers are needed (deployment.weight_layers, model.num_hidden_layers)"
    )
