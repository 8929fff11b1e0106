"""What this machine has: a GPU or none, its name, its free memory, the versions of what runs on it. Imports torch."""

import os
import platform
from dataclasses import dataclass

import torch
import triton

RECORDED_VARIABLES = ("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "TRITON_")
"""Environment variables with these prefixes can change a result, so every report holds those that are set."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU that this process uses."""

    name: str
    num_gpus: int
    num_sms: int
    capability: tuple[int, int]
    memory_bytes: int
    free_bytes: int
    l2_bytes: int


def find_gpu() -> Gpu | None:
    """The current CUDA device, or None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    return Gpu(
        name=properties.name,
        num_gpus=torch.cuda.device_count(),
        num_sms=properties.multi_processor_count,
        capability=(properties.major, properties.minor),
        memory_bytes=total_bytes,
        free_bytes=free_bytes,
        l2_bytes=properties.L2_cache_size,
    )


def environment(gpu: Gpu | None) -> dict[str, object]:
    """Versions, device and variables that a result depends on."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "platform": platform.platform(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(RECORDED_VARIABLES)},
    }
    if gpu is not None:
        found |= {
            "gpu": gpu.name,
            "num_gpus": gpu.num_gpus,
            "capability": ".".join(map(str, gpu.capability)),
            "num_sms": gpu.num_sms,
            "l2_mb": round(gpu.l2_bytes / 1e6, 1),
        }
    return found
