"""Compile launches for a GPU that is not here.

`compile_for` runs code that launches Triton kernels, on tensors of torch's `meta` device, and compiles each kernel that
it would have launched for the GPU asked for: the tile sizes, the shared memory, the registers and the instructions of a
whole step are known before the first minute on that GPU. Nothing is launched and no GPU is needed.

It works by standing in for two things that Triton asks for at a launch: the driver of the current GPU, and
`JITFunction.run`, which compiles and launches. It needs kernels that were decorated without TRITON_INTERPRET, so a
program whose kernels run in the interpreter uses it in a process of its own.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import JITFunction
from triton.runtime.driver import driver

from kernels.launch import require

MAX_SHARED_BYTES = {90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory that one block may have, by compute capability times ten.

Source: CUDA C++ Programming Guide, table of technical specifications per compute capability: 227 KiB for 9.0 and 10.0,
99 KiB for 12.0.
"""


@dataclass(frozen=True, slots=True)
class OfflineKernel:
    """One compiled kernel; kernels of one name differ by dtypes, tile sizes or divisibility of their arguments."""

    name: str
    arch: int
    """Compute capability times ten."""
    num_warps: int
    shared_bytes: int
    """Shared memory of a block."""
    num_registers: int
    """Registers of a thread."""
    spill_bytes: int
    """Stack of a thread: Triton's kernels have no other use for it than registers that did not fit."""
    launch_pdl: bool
    """Whether the launch asks for programmatic dependent launch."""
    constants: dict[str, Any]
    """Values of the constexpr arguments, by name."""
    ptx: str
    cubin: bytes

    def fits(self) -> bool:
        """Whether a block's shared memory is within the limit of the GPU."""
        return self.shared_bytes <= MAX_SHARED_BYTES[self.arch]


class _AbsentGpu(DriverBase):
    """What Triton asks of the current GPU up to the end of a compilation, answered for a GPU that is not here."""

    def __init__(self, target: GPUTarget) -> None:
        self.target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        # Triton keeps compiled kernels by device: a negative index never meets those of a GPU that is here
        return -int(self.target.arch)

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        raise RuntimeError("an absent GPU cannot time kernels: triton.autotune needs the GPU that it tunes for")


def compile_for(target: GPUTarget, launch_all: Callable[[], None]) -> list[OfflineKernel]:
    """Return each distinct kernel that `launch_all` launches, compiled for `target`, in the order of first launch.

    `launch_all` calls launchers on tensors of the device "meta" (or "cpu": they are not read). A launch returns the
    kernel as Triton compiled it. The driver and the launches of this process are as before afterwards, also when
    `launch_all` raises; an error of the compiler carries a note that names the kernel, its arguments and its options.
    Raises: ValueError when nothing was launched, or for a target that is not a CUDA GPU of MAX_SHARED_BYTES;
    RuntimeError when the kernels of this process run in the interpreter.
    """
    require(
        target.backend == "cuda" and target.arch in MAX_SHARED_BYTES,
        f"argument target must be GPUTarget('cuda', {' | '.join(map(str, MAX_SHARED_BYTES))}, 32); got {target}",
    )
    if triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set, so kernels are interpreted; compile in a process without it")

    absent_gpu = _AbsentGpu(target)
    device = absent_gpu.get_current_device()
    compiled_by_hash: dict[str, tuple[JITFunction, Any]] = {}
    touched: list[JITFunction] = []
    run, active = JITFunction.run, driver._active

    def compile_only(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        touched.append(self)
        try:
            compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            arguments = describe_arguments(dict(zip(self.arg_names, args, strict=False)) | kwargs)
            error.add_note(
                f"while compiling {self.fn.__module__}.{self.fn.__name__} for sm_{target.arch} with {arguments}"
            )
            raise
        # a compile hook of the process may take a compilation over, and then there is nothing to collect
        if compiled is not None:
            compiled_by_hash.setdefault(compiled.hash, (self, compiled))
        return compiled

    driver.set_active(absent_gpu)
    JITFunction.run = compile_only
    try:
        launch_all()
    finally:
        JITFunction.run = run
        driver.set_active(active)
        for function in touched:
            function.device_caches.pop(device, None)

    require(bool(compiled_by_hash), "argument launch_all must launch at least one Triton kernel; it launched none")
    return [_describe(function, compiled) for function, compiled in compiled_by_hash.values()]


def _describe(function: JITFunction, compiled: Any) -> OfflineKernel:
    num_registers, stack_bytes = resource_usage(compiled.asm["cubin"])
    return OfflineKernel(
        name=compiled.metadata.name,
        arch=compiled.metadata.target.arch,
        num_warps=compiled.metadata.num_warps,
        shared_bytes=compiled.metadata.shared,
        num_registers=num_registers,
        spill_bytes=stack_bytes,
        launch_pdl=compiled.metadata.launch_pdl,
        # a constant's path is (argument index,), or longer inside a tuple argument
        constants={
            function.arg_names[path[0]]: value for path, value in compiled.src.constants.items() if len(path) == 1
        },
        ptx=compiled.asm["ptx"],
        cubin=compiled.asm["cubin"],
    )


def describe_arguments(arguments: dict[str, Any]) -> str:
    """Arguments and options of a launch in one line: tensors by dtype and shape, the rest by value."""
    return ", ".join(
        f"{name} = {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else f"{name} = {value!r}"
        for name, value in arguments.items()
    )


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes of a thread of the only kernel in `cubin`, as Triton's own cuobjdump reads them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        listing = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)], capture_output=True, text=True, check=True
        ).stdout
    # the line after the kernel's name reads REG:26 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 and so on
    usage = re.search(r"\bREG:(\d+) STACK:(\d+)", listing)
    if usage is None:
        raise RuntimeError(f"cuobjdump -res-usage printed no registers; it printed: {listing!r}")
    return int(usage[1]), int(usage[2])
