"""Whether a step fits a device's memory, and what would make it fit. No torch."""

import os
from dataclasses import replace
from pathlib import Path

from simulator.config import SimulatorConfig
from simulator.deployment import Deployment
from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware
from simulator.step.build import build_step
from simulator.step.program import DecodeStep

RESERVE_BYTES = 3 * 2**30
"""Kept free: CUDA context, compiled kernels, and the executable graphs of all subsets."""

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
        Problem(key="model", value=config.model.name, must=have, suggestion=_suggestion(config, free_bytes))
    )


def _suggestion(config: SimulatorConfig, free_bytes: int) -> str:
    """The largest numbers of distinct layers that fit, if any do."""

    def fits(deployment: Deployment) -> bool:
        step = build_step(config.model, config.recipe, deployment, config.routing)
        return step.weight_bytes + step.buffer_bytes + RESERVE_BYTES <= free_bytes

    for cache_layers in (config.deployment.cache_layers, 8, 1):
        low, high = 0, config.model.num_hidden_layers
        while low < high:
            middle = (low + high + 1) // 2
            if fits(replace(config.deployment, weight_layers=middle, cache_layers=cache_layers)):
                low = middle
            else:
                high = middle - 1
        if low:
            caches = "" if cache_layers is None else f" deployment.cache_layers={cache_layers}"
            return f"use deployment.weight_layers={low}{caches}, so that layers share memory in turn"
    return "use a larger deployment.tp, a smaller deployment.batch or deployment.context"


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
