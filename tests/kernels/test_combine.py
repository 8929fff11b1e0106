"""Weighted sum of expert outputs, with and without a shared expert."""

import pytest
import torch

from kernels.combine import combine, combine_block_d, combine_reference

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}


def sample(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype=dtype, device=device)


def check(tokens: int, top_k: int, hidden: int, *, shared: bool, out_dtype: torch.dtype, x: torch.Tensor) -> None:
    weights = torch.rand(tokens, top_k, generator=torch.Generator().manual_seed(1)).to(x.device)
    # rows of a wider tensor
    shared_rows = sample(tokens, hidden + 4, dtype=x.dtype, device=x.device)[:, :hidden] if shared else None
    expected = combine_reference(x, weights, shared_rows)
    results = []
    for _ in range(2):
        padded = torch.full((tokens, hidden + 2), float("nan"), dtype=out_dtype, device=x.device)
        combine(expert_out=x, weights=weights, shared=shared_rows, out=padded[:, :hidden])
        assert padded[:, hidden:].isnan().all()
        results.append(padded[:, :hidden])
    error = ((results[0].float() - expected).norm() / expected.norm()).item()
    assert error < TOLERANCE[out_dtype]
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "routed"])
@pytest.mark.parametrize(("tokens", "top_k", "hidden"), [(1, 8, 512), (5, 3, 77), (3, 1, 1)], ids=str)
def test_sums(tokens, top_k, hidden, shared, device, compute_dtype):
    x = sample(tokens * top_k, hidden, dtype=compute_dtype, device=device)
    check(tokens, top_k, hidden, shared=shared, out_dtype=torch.float32, x=x)
    check(tokens, top_k, hidden, shared=shared, out_dtype=compute_dtype, x=x)


def test_rows_belong_to_token_times_k_plus_choice(device, compute_dtype):
    x = torch.tensor([[1.0], [10.0], [100.0], [1000.0]]).to(dtype=compute_dtype, device=device)
    weights = torch.tensor([[1.0, 2.0], [0.0, 0.5]], device=device)
    out = torch.full((2, 1), float("nan"), device=device)
    combine(expert_out=x, weights=weights, shared=None, out=out)
    assert out.tolist() == [[21.0], [500.0]]


def test_tiles_spread_a_single_token():
    assert combine_block_d(1, 6144) == 128
    assert combine_block_d(64, 6144) == 1024


def arguments(**changes):
    return {
        "expert_out": torch.zeros(6, 8),
        "weights": torch.zeros(2, 3),
        "shared": torch.zeros(2, 8),
        "out": torch.zeros(2, 8),
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": torch.zeros(2, 3).half()}, "argument weights must be contiguous float32 .*; got torch.float16"),
        ({"expert_out": torch.zeros(5, 8)}, r"argument expert_out must be .* T \* K = 6; got \[5, 8\]"),
        ({"shared": torch.zeros(2, 9)}, r"argument shared must be \[T, D\] = \[2, 8\] .*; got \(\[2, 9\]"),
        ({"shared": torch.zeros(2, 8).half()}, "argument shared must be torch.float32 like expert_out; got"),
        ({"out": torch.zeros(3, 8)}, r"argument out must be \[T, D\] = \[2, 8\]"),
        ({"out": torch.zeros(2, 8).double()}, "argument out must be one of .*; got torch.float64"),
    ],
    ids=["weights", "expert_out", "shared", "shared-dtype", "out", "out-dtype"],
)
def test_errors_name_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        combine(**arguments(**changes))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 64, 1024], ids=lambda v: f"T{v}")
def test_shapes_of_glm5(tokens, device):
    x = sample(tokens * 8, 6144, dtype=torch.bfloat16, device=device)
    check(tokens, 8, 6144, shared=True, out_dtype=torch.bfloat16, x=x)
