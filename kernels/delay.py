"""Kernels that take a known time: a copy that lasts as long as asked, and a wait that says how long it lasted.

`delay` stands for an all-reduce on a rank whose peers are absent: out = x, and no block ends before wait_ns nanoseconds
have passed since it began. `spin` only waits, and writes the nanoseconds that it counted: the planted truth of timing
tests. Both read the GPU's global timer, which advances in steps (32 ns on H100; 1 us on some GPUs), so a wait is at
least wait_ns and up to one step longer. Time counts from after the previous kernel's end also under programmatic
dependent launch. In Triton's interpreter there is no timer: nothing waits, and `spin` writes 0.

    x, out  the same shape and dtype, contiguous
    ticks   [1]  int64
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda as tl_cuda

from kernels.launch import enter_grid, launch_options, require

BLOCK = 4096
"""Elements of one iteration: 16 of 8 warps' threads each."""

MAX_PROGRAMS = 64
"""Few enough that all run at once beside whatever else is resident: a second wave would wait a second time."""

MAX_WAIT_NS = 2**31 - 1
"""2.1 s. A graph replay cannot be cancelled, so no wait is longer; it also keeps the argument a 32-bit integer."""


def delay_reference(x: torch.Tensor) -> torch.Tensor:
    """Return a copy: a reference has no time to keep."""
    return x.clone()


@triton.jit
def _wait_since(start, wait_ns):
    """Wait until wait_ns have passed since `start`; return the nanoseconds that have."""
    elapsed = tl.zeros((), dtype=tl.int64)
    # the timer's read is marked volatile, so the loop stays; the branch is uniform but for threads a step apart
    while elapsed < wait_ns:
        elapsed = tl_cuda.globaltimer() - start
    return elapsed


@triton.jit(do_not_specialize=["wait_ns"])
def _delay_kernel(p_x, p_out, num_elements, wait_ns, BLOCK: tl.constexpr, TIMER: tl.constexpr, PDL: tl.constexpr):
    """Every program copies its share, then waits on its own."""
    enter_grid(PDL)
    if TIMER:
        start = tl_cuda.globaltimer()
    for block_start in range(tl.program_id(0) * BLOCK, num_elements, tl.num_programs(0) * BLOCK):
        o_x = block_start + tl.arange(0, BLOCK)
        in_x = o_x < num_elements
        tl.store(p_out + o_x, tl.load(p_x + o_x, mask=in_x, other=0.0), mask=in_x)
    if TIMER:
        _wait_since(start, wait_ns)


@triton.jit(do_not_specialize=["wait_ns"])
def _spin_kernel(p_ticks, wait_ns, TIMER: tl.constexpr, PDL: tl.constexpr):
    """The only program waits."""
    enter_grid(PDL)
    if TIMER:
        tl.store(p_ticks, _wait_since(tl_cuda.globaltimer(), wait_ns))
    else:
        tl.store(p_ticks, tl.zeros((), dtype=tl.int64))


def has_timer() -> bool:
    """Whether these kernels are compiled for a GPU; the interpreter has no global timer."""
    return isinstance(_delay_kernel, triton.runtime.JITFunction)


def require_wait(wait_ns: int) -> None:
    """Raise ValueError unless `wait_ns` is a wait that a kernel may make."""
    require(0 <= wait_ns <= MAX_WAIT_NS, f"argument wait_ns must be 0 to {MAX_WAIT_NS} nanoseconds; got {wait_ns}")


def delay(*, x: torch.Tensor, out: torch.Tensor, wait_ns: int, pdl: bool = False) -> None:
    """Copy x to `out` and end no earlier than wait_ns nanoseconds after the kernel began.

    Shapes: x and out of one shape and dtype, contiguous, fewer than 2^31 - 2^18 elements.
    Raises: ValueError for any other shape, dtype or layout, and for a wait below 0 or above 2.1 s.
    """
    require(x.is_contiguous(), f"argument x must be contiguous; got strides {x.stride()}")
    # block_start of the last iteration must stay below 2^31
    max_elements = 2**31 - MAX_PROGRAMS * BLOCK
    require(x.numel() < max_elements, f"argument x must have fewer than {max_elements} elements; got {x.numel()}")
    require(
        out.shape == x.shape and out.dtype == x.dtype and out.is_contiguous(),
        f"argument out must be contiguous {x.dtype} {list(x.shape)} like x; "
        f"got {out.dtype} {list(out.shape)} with strides {out.stride()}",
    )
    require_wait(wait_ns)
    _delay_kernel[(max(1, min(MAX_PROGRAMS, triton.cdiv(x.numel(), BLOCK))),)](
        x, out, x.numel(), wait_ns, BLOCK=BLOCK, TIMER=has_timer(), PDL=pdl, num_warps=8, **launch_options(pdl=pdl)
    )


def spin(*, wait_ns: int, ticks: torch.Tensor, pdl: bool = False) -> None:
    """Wait wait_ns nanoseconds on one SM and write the nanoseconds that passed into `ticks`.

    Shapes: ticks int64 [1].
    Raises: ValueError for any other shape or dtype, and for a wait below 0 or above 2.1 s.
    """
    require(
        tuple(ticks.shape) == (1,) and ticks.dtype == torch.int64,
        f"argument ticks must be int64 [1]; got {ticks.dtype} {list(ticks.shape)}",
    )
    require_wait(wait_ns)
    _spin_kernel[(1,)](ticks, wait_ns, TIMER=has_timer(), PDL=pdl, num_warps=1, **launch_options(pdl=pdl))
