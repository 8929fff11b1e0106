"""SwiGLU on a fused gate and up projection."""

import pytest
import torch

from kernels.swiglu import swiglu, swiglu_reference

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


def check(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
    values = 3 * torch.randn(rows, 2 * width + 6, generator=torch.Generator().manual_seed(0))
    gate_up = values.to(dtype=dtype, device=device)[:, : 2 * width]
    expected = swiglu_reference(gate_up)
    results = []
    for _ in range(2):
        padded = torch.full((rows, width + 2), float("nan"), dtype=dtype, device=device)
        swiglu(gate_up=gate_up, out=padded[:, :width])
        assert padded[:, width:].isnan().all()
        results.append(padded[:, :width])
    assert ((results[0].float() - expected).norm() / expected.norm()).item() < TOLERANCE[dtype]
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize(("rows", "width"), [(8, 256), (1, 1), (3, 300), (2, 513)], ids=str)
def test_rows(rows, width, device, compute_dtype):
    check(rows, width, compute_dtype, device)
    check(rows, width, torch.float32, device)


def test_extreme_gates_stay_finite(device):
    gate = torch.tensor([-1e30, -200.0, -0.0, 0.0, 200.0, 1e30], device=device)
    gate_up = torch.cat((gate, torch.ones(6, device=device)))[None]
    out = torch.full((1, 6), float("nan"), device=device)
    swiglu(gate_up=gate_up, out=out)
    assert out.isfinite().all()
    assert torch.equal(out[0, 4:], gate[4:])
    assert out[0, :4].abs().max() < 1e-30


def test_the_gate_is_the_first_half(device):
    out = torch.full((1, 1), float("nan"), device=device)
    swiglu(gate_up=torch.tensor([[0.0, 5.0]], device=device), out=out)
    assert out.item() == 0.0


@pytest.mark.parametrize(
    ("gate_up", "out", "message"),
    [
        (torch.zeros(2, 5), torch.zeros(2, 2), r"argument gate_up must be \[R, 2 \* I\] .*; got \[2, 5\]"),
        (torch.zeros(8, 2).T, torch.zeros(2, 4), "argument gate_up must be .* contiguous last dim"),
        (torch.zeros(2, 8).int(), torch.zeros(2, 4), "argument gate_up must be one of .*; got torch.int32"),
        (torch.zeros(2, 8), torch.zeros(2, 8), r"argument out must be torch.float32 \[R, I\] = \[2, 4\]"),
        (torch.zeros(2, 8), torch.zeros(2, 4).half(), "argument out must be torch.float32 .*; got torch.float16"),
    ],
    ids=["shape", "layout", "dtype", "out-shape", "out-dtype"],
)
def test_errors_name_the_argument(gate_up, out, message):
    with pytest.raises(ValueError, match=message):
        swiglu(gate_up=gate_up, out=out)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "width"), [(8, 256), (1, 1536), (8192, 256)], ids=str)
def test_shapes_of_glm5(rows, width, device):
    check(rows, width, torch.bfloat16, device)
