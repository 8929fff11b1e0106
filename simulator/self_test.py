"""Proof, before any time is printed, that the NVFP4 path computes what it should on this very device."""

import torch

from kernels.gemm import gemm, gemm_reference
from kernels.nvfp4 import random_nvfp4

ROWS, OUTPUTS, INPUTS = 1, 512, 1024
MAX_ERROR = 1e-3
"""Relative: BF16 activations are exact inputs here, so what remains is the order of float32 sums."""


def check_nvfp4(device: torch.device, *, pdl: bool) -> str:
    """Multiply by one small NVFP4 matrix and compare; returns a note for the report.

    Raises:
        RuntimeError: the kernel's result is wrong on this device, so no time of it means anything.
    """
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(ROWS, INPUTS, generator=generator, device=device).to(torch.bfloat16)
    weight = random_nvfp4((OUTPUTS, INPUTS), std=INPUTS**-0.5, generator=generator, device=device)
    out = torch.full((ROWS, OUTPUTS), float("nan"), device=device)
    gemm(x=x, weight=weight, out=out, pdl=pdl)
    expected = gemm_reference(x=x, weight=weight)
    error = float((out - expected).norm() / expected.norm())
    if not error <= MAX_ERROR:
        raise RuntimeError(f"self-test: the NVFP4 GEMM is wrong on this device: relative error {error:.1e}")
    return f"NVFP4 weights are dequantised in registers (W4A16); self-test on this device: relative error {error:.0e}"
