"""Machine-dependent set-up: Triton's interpreter where there is no GPU, and GPU tests skipped with the reason."""

import os

import pytest
import torch

HAS_GPU = torch.cuda.is_available()

# Triton reads this when kernels are decorated, so it must be set before the first import of `kernels`.
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests where there is none; under REQUIRE_GPU=1 they fail instead, so that a GPU box cannot skip."""
    if HAS_GPU or os.environ.get("REQUIRE_GPU") == "1":
        return
    reason = pytest.mark.skip(reason="needs a CUDA device; torch sees none")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(reason)


@pytest.fixture
def device() -> torch.device:
    """Where kernel tests run: the GPU, or the CPU through Triton's interpreter."""
    return torch.device("cuda" if HAS_GPU else "cpu")


@pytest.fixture
def compute_dtype() -> torch.dtype:
    """The activations' dtype in kernel tests: the interpreter computes garbage on bfloat16 operands of a dot."""
    return torch.bfloat16 if HAS_GPU else torch.float16
