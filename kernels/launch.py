"""What every Triton launcher here shares: programmatic dependent launch and the names of dtypes.

A step is a chain of short kernels, so the gap between two kernels matters as much as the kernels. With programmatic
dependent launch (Hopper and newer) the next kernel's blocks become resident while the current kernel still runs, and
wait at `griddepcontrol.wait` until it has finished and its writes are visible. Every kernel here starts with
`enter_grid`, or with `wait_for_previous` once its weights are on their way: the guarantee carries through the chain, a
kernel completes only after the one before it did.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

TRITON_DTYPES = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.float8_e4m3fn: tl.float8e4nv,
}


@triton.jit
def enter_grid(PDL: tl.constexpr):
    """Wait for the previous kernel's writes, then let the next kernel's blocks become resident. Call it first."""
    if PDL:
        tl_cuda.gdc_wait()
        tl_cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Wait for the previous kernel's writes; what a step never writes (weights) may be read before."""
    if PDL:
        tl_cuda.gdc_wait()


@triton.jit
def launch_dependents(PDL: tl.constexpr):
    """Let the next kernel's blocks become resident, once every block of this kernel has come here or has ended."""
    if PDL:
        tl_cuda.gdc_launch_dependents()


def launch_options(*, pdl: bool) -> dict[str, bool]:
    """Keyword arguments of a launch: the interpreter knows no `launch_pdl`, so it is absent unless asked for."""
    return {"launch_pdl": True} if pdl else {}


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` unless `condition` holds: the check of everything a caller can get wrong."""
    if not condition:
        raise ValueError(message)
