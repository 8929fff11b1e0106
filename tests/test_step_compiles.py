"""Every kernel of GLM-5's step compiles for the GPUs it is meant for, within their limits. Needs no GPU.

Compiling needs kernels that were decorated without the interpreter, so it runs in processes of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("recipe", ["nvidia_glm5", "fp8"])
@pytest.mark.parametrize("arch", ["90", "100", "120"])
def test_the_step_compiles(arch, recipe):
    batches = ["1", "64"] if recipe == "nvidia_glm5" else ["8"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "scripts/compile_kernels.py", arch, "--recipe", recipe, "--batch", *batches]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.count(f"{arch:>4} ") >= 30
