"""Kernels compile for GPUs that are not here, within their limits and with the instructions that they must have.

Run as a program, this module compiles the small kernels and prints what came out as JSON: Triton compiles only in a
process without TRITON_INTERPRET, which the tests of this repository set where there is no GPU.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction
from triton.runtime.driver import driver

from kernels.delay import delay, spin
from kernels.embedding import embedding
from kernels.kv_cache import kv_cache_write
from kernels.offline import compile_for
from kernels.read_only import read_only
from kernels.rms_norm import rms_norm
from kernels.rope import rope
from kernels.router import router_topk
from kernels.sampling import greedy, local_argmax

ARCHS = (90, 100, 120)
WAITS_NS = (0, 1, 16, 1000)
KERNELS = {
    "_rms_norm_kernel",
    "_router_topk_kernel",
    "_embedding_kernel",
    "_local_argmax_kernel",
    "_greedy_kernel",
    "_delay_kernel",
    "_spin_kernel",
    "_read_only_kernel",
    "_kv_cache_write_kernel",
    "_rope_kernel",
}


@triton.jit
def _refused_kernel(p_x, SIZE: tl.constexpr):
    tl.static_assert(p_x.dtype.element_ty == tl.int8, "this kernel is refused")


@triton.jit
def _spilling_kernel(p_x, p_out):
    """128 values of each thread stay alive across the sum: more than the 32 registers that the launch allows."""
    o_x = tl.arange(0, 4096)
    b_x = tl.load(p_x + o_x)
    tl.store(p_out + o_x, b_x * tl.sum(b_x, axis=0))


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def launch_small_kernels(*, pdl: bool) -> None:
    """The small kernels at the shapes of GLM-5 at TP = 8, two tokens."""
    x, out, residual = meta(2, 6144), meta(2, 6144), meta(2, 6144)
    rms_norm(x=x, weight=meta(6144), eps=1e-5, out=out, residual=residual, residual_out=meta(2, 6144), pdl=pdl)
    router_topk(
        logits=meta(2, 256, dtype=torch.float32), bias=meta(256, dtype=torch.float32),
        ids=meta(2, 8, dtype=torch.int32), weights=meta(2, 8, dtype=torch.float32), scoring="sigmoid", num_groups=1,
        topk_groups=1, normalize=True, scaling=2.5, pdl=pdl,
    )  # fmt: skip
    for rank in range(8):
        start = 19_360 * rank
        tokens = meta(2, dtype=torch.int64)
        embedding(tokens=tokens, table=meta(19_360, 6144), vocab_start=start, out=out, pdl=pdl)
        logits = meta(2, 19_360)
        best, best_id = meta(2, dtype=torch.float32), meta(2, dtype=torch.int32)
        local_argmax(logits=logits, vocab_start=start, num_valid=19_360, values=best, ids=best_id, pdl=pdl)
    values, ids = meta(8, 2, dtype=torch.float32), meta(8, 2, dtype=torch.int32)
    greedy(values=values, ids=ids, out=meta(2, dtype=torch.int32), pdl=pdl)
    for wait_ns in WAITS_NS:
        delay(x=x, out=out, wait_ns=wait_ns, pdl=pdl)
        spin(wait_ns=wait_ns, ticks=meta(1, dtype=torch.int64), pdl=pdl)
    read_only(x=meta(2**20), out=meta(528, dtype=torch.int32), pdl=pdl)
    slots = meta(2, dtype=torch.int64)
    kv_cache_write(latent=meta(2, 512), key_rope=meta(2, 64), slots=slots, cache=meta(4096, 576), pdl=pdl)
    rope(
        query=meta(2, 8, 64), key=meta(2, 1, 64), positions=meta(2, dtype=torch.int32),
        cos_sin=meta(4096, 2, 32, dtype=torch.float32), query_out=meta(2, 8, 64), key_out=meta(2, 1, 64),
        interleaved=True, pdl=pdl,
    )  # fmt: skip


def compile_small_kernels(arch: int, *, pdl: bool) -> list[dict[str, Any]]:
    compiled = compile_for(GPUTarget("cuda", arch, 32), lambda: launch_small_kernels(pdl=pdl))
    return [
        {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel) if field.name != "cubin"}
        | {"fits": kernel.fits(), "cubin_magic": list(kernel.cubin[:4])}
        for kernel in compiled
    ]


def is_untouched(run: Any) -> bool:
    return JITFunction.run is run and driver._active is None


def behaviour() -> dict[str, Any]:
    """What compile_for does when nothing, a refused kernel or something that raises is launched."""
    target, run = GPUTarget("cuda", 90, 32), JITFunction.run
    found: dict[str, Any] = {}

    def launch_returns() -> None:
        kernel = _refused_kernel[(1,)](meta(4, dtype=torch.int8), SIZE=8)
        found["returned"] = kernel.metadata.name

    def refused() -> None:
        _refused_kernel[(1,)](meta(4), SIZE=8, num_warps=2)

    for name, launch_all in (("returns", launch_returns), ("nothing", lambda: None), ("refused", refused)):
        try:
            found[name] = [kernel.name for kernel in compile_for(target, launch_all)]
        except Exception as error:
            found[name] = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        found[f"{name}_untouched"] = is_untouched(run) and not _refused_kernel.device_caches

    def spill() -> None:
        x = meta(4096, dtype=torch.float32)
        _spilling_kernel[(1,)](x, x, num_warps=1, maxnreg=32)

    found["spill_bytes"] = {arch: compile_for(GPUTarget("cuda", arch, 32), spill)[0].spill_bytes for arch in ARCHS}
    return found


def main() -> None:
    report = {
        "kernels": {arch: compile_small_kernels(arch, pdl=True) for arch in ARCHS},
        "without_pdl": {arch: compile_small_kernels(arch, pdl=False) for arch in ARCHS},
        "behaviour": behaviour(),
    }
    json.dump(report, sys.stdout, default=str)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """The report of `main` in a process where kernels are compiled, and where no GPU is seen even if there is one."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.test_offline_compile"],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def timer_loops(ptx: str) -> list[str]:
    """Loop bodies of PTX, from a label to the branch back to it, that read the global timer."""
    bodies = re.findall(r"^(\$L__BB\w+):(.*?)bra(?:\.uni)?\s+\1;", ptx, flags=re.DOTALL | re.MULTILINE)
    return [body for _, body in bodies if "%globaltimer" in body]


each_arch = pytest.mark.parametrize("arch", ARCHS, ids=lambda arch: f"sm{arch}")


with_and_without_pdl = pytest.mark.parametrize("variant", ["kernels", "without_pdl"], ids=["pdl", "plain"])


@each_arch
@with_and_without_pdl
def test_every_kernel_is_compiled_once(variant, arch, report):
    names = [kernel["name"] for kernel in report[variant][str(arch)]]
    assert sorted(names) == sorted(KERNELS)


@each_arch
@with_and_without_pdl
def test_kernels_fit_the_gpu(variant, arch, report):
    for kernel in report[variant][str(arch)]:
        assert kernel["arch"] == arch
        assert kernel["shared_bytes"] <= {90: 232_448, 100: 232_448, 120: 101_376}[arch]
        assert kernel["fits"]
        assert kernel["spill_bytes"] == 0
        assert 0 < kernel["num_registers"] * 32 * kernel["num_warps"] <= 65_536
        assert bytes(kernel["cubin_magic"]) == b"\x7fELF"


@each_arch
def test_kernels_wait_before_they_read(arch, report):
    for kernel in report["kernels"][str(arch)]:
        ptx = kernel["ptx"]
        assert kernel["launch_pdl"]
        assert f".target sm_{arch}" in ptx
        wait, trigger = ptx.index("griddepcontrol.wait"), ptx.index("griddepcontrol.launch_dependents")
        assert wait < trigger
        touches_memory = [match.start() for match in re.finditer(r"\b(ld|st)\.global", ptx)]
        assert touches_memory
        assert trigger < min(touches_memory)


@each_arch
def test_a_spill_is_seen(arch, report):
    assert report["behaviour"]["spill_bytes"][str(arch)] >= 4 * (128 - 32)


@each_arch
def test_kernels_without_pdl_have_none_of_it(arch, report):
    for kernel in report["without_pdl"][str(arch)]:
        assert not kernel["launch_pdl"]
        assert "griddepcontrol" not in kernel["ptx"]


@each_arch
@with_and_without_pdl
def test_waits_are_loops_that_read_the_timer(variant, arch, report):
    for kernel in report[variant][str(arch)]:
        is_wait = kernel["name"] in {"_delay_kernel", "_spin_kernel"}
        assert len(timer_loops(kernel["ptx"])) == (1 if is_wait else 0)


@each_arch
def test_loads_are_sixteen_bytes_wide(arch, report):
    for kernel in report["kernels"][str(arch)]:
        if kernel["name"] not in {"_greedy_kernel", "_spin_kernel", "_rope_kernel"}:  # these have less to load
            assert re.search(r"ld\.global(\.\w+)*\.v4\.b32", kernel["ptx"]), kernel["name"]


@each_arch
def test_four_programs_of_the_read_kernel_fit_an_sm(arch, report):
    (kernel,) = (kernel for kernel in report["kernels"][str(arch)] if kernel["name"] == "_read_only_kernel")
    assert 4 * 32 * kernel["num_warps"] * kernel["num_registers"] <= 65_536


def test_constants_are_named(report):
    (kernel,) = (kernel for kernel in report["without_pdl"]["90"] if kernel["name"] == "_rms_norm_kernel")
    assert kernel["constants"] == {"DIM": 6144, "BLOCK_D": 8192, "HAS_RESIDUAL": True, "PDL": False}


def test_launch_returns_the_compiled_kernel(report):
    assert report["behaviour"]["returned"] == "_refused_kernel"
    assert report["behaviour"]["returns"] == ["_refused_kernel"]


def test_process_is_as_before(report):
    assert report["behaviour"]["returns_untouched"]
    assert report["behaviour"]["nothing_untouched"]
    assert report["behaviour"]["refused_untouched"]


def test_launching_nothing_is_an_error(report):
    assert report["behaviour"]["nothing"] == [
        "ValueError",
        "argument launch_all must launch at least one Triton kernel; it launched none",
    ]


def test_compiler_error_names_the_kernel(report):
    kind, message, note = report["behaviour"]["refused"]
    assert kind.startswith("Compil")
    assert "this kernel is refused" in message
    assert note.endswith("._refused_kernel for sm_90 with p_x = bfloat16 [4], SIZE = 8, num_warps = 2")


@pytest.mark.parametrize("target", [GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64)], ids=["sm80", "hip"])
def test_other_targets_are_refused(target):
    with pytest.raises(ValueError, match=r"argument target must be GPUTarget\('cuda', 90 \| 100 \| 120, 32\); got"):
        compile_for(target, lambda: None)


def test_interpreter_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(RuntimeError, match="compile in a process without it"):
        compile_for(GPUTarget("cuda", 90, 32), lambda: None)


if __name__ == "__main__":
    main()
