"""Grouped products of a mixture-of-experts layer: each row times its expert's dequantised weight, in float32."""

import pytest
import torch

from kernels.combine import combine, combine_reference
from kernels.dispatch import dispatch
from kernels.expert_gemm import expert_gemm, expert_gemm_reference, expert_gemm_tiles
from kernels.expert_gemv import takes_few_rows
from kernels.nvfp4 import Nvfp4Tensor, random_nvfp4
from kernels.swiglu import swiglu, swiglu_reference
from kernels.tiling import dispatch_max_tiles, expert_tile_rows
from kernels.weight_tile import Weight
from tests.kernels.test_dispatch import routing
from tests.kernels.test_gemm import FORMATS, TOLERANCE, random_rows, random_weight, relative_error


def grouped(expert_ids: torch.Tensor, num_experts: int, tile_rows: int) -> dict[str, torch.Tensor]:
    max_tiles = dispatch_max_tiles(*expert_ids.shape, num_experts, tile_rows)
    rows = {
        "sorted_rows": torch.empty(max_tiles * tile_rows, dtype=torch.int32, device=expert_ids.device),
        "tile_experts": torch.empty(max_tiles, dtype=torch.int32, device=expert_ids.device),
    }
    dispatch(expert_ids=expert_ids, num_experts=num_experts, tile_rows=tile_rows, **rows)
    return rows


def expert_weight(weight_format: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Weight:
    """Random weights; the experts of NVFP4 get different tensor scales, so that a mix-up shows."""
    weight = random_weight(weight_format, shape, dtype, device)
    if isinstance(weight, Nvfp4Tensor):
        weight.tensor_scale.mul_(1 + torch.arange(shape[0], device=device) / 4)
    return weight


def check(x: torch.Tensor, weight: Weight, expert_ids: torch.Tensor, tile_rows: int, *, tokens: bool) -> None:
    """x holds one row for each token, or one for each (token, choice); out is poisoned and must be filled."""
    rows_per_token = expert_ids.shape[1] if tokens else 1
    expected = expert_gemm_reference(x=x, weight=weight, expert_ids=expert_ids, rows_per_token=rows_per_token)
    rows = grouped(expert_ids, weight.shape[0], tile_rows)
    results = []
    for _ in range(2):
        padded = torch.full((expected.shape[0], expected.shape[1] + 3), float("nan"), device=x.device)
        out = padded[:, : expected.shape[1]]
        expert_gemm(x=x, weight=weight, **rows, tile_rows=tile_rows, rows_per_token=rows_per_token, out=out)
        assert padded[:, expected.shape[1] :].isnan().all(), "expert_gemm wrote beyond out"
        results.append(out)
    assert relative_error(results[0], expected) < TOLERANCE[torch.float32]
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "rows"])
@pytest.mark.parametrize(
    ("num_tokens", "top_k", "experts", "n", "k", "tile_rows"),
    [(1, 4, 6, 48, 128, 16), (3, 2, 3, 33, 80, 16), (40, 2, 3, 32, 144, 32)],
    ids=str,
)
def test_rows_of_their_experts(
    weight_format, tokens, num_tokens, top_k, experts, n, k, tile_rows, device, compute_dtype
):
    expert_ids = routing(num_tokens, top_k, experts, device)
    x = random_rows(num_tokens * (1 if tokens else top_k), k, compute_dtype, device)
    check(x, expert_weight(weight_format, (experts, n, k), compute_dtype, device), expert_ids, tile_rows, tokens=tokens)


@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "rows"])
@pytest.mark.parametrize(("n", "k"), [(33, 80), (20, 256), (6, 1536)], ids=str)
def test_few_rows_of_many_experts(n, k, tokens, device, compute_dtype):
    """Without tensor cores: three experts have one row each, one has three, the others none."""
    expert_ids = torch.tensor([[7, 2], [2, 11], [0, 2]], dtype=torch.int32, device=device)
    assert takes_few_rows(expert_ids.numel(), 12)
    x = random_rows(3 if tokens else 6, k, compute_dtype, device)
    check(x, expert_weight("nvfp4", (12, n, k), compute_dtype, device), expert_ids, 16, tokens=tokens)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_float32_activations(weight_format, device):
    weight = expert_weight(weight_format, (3, 24, 48), torch.float32, device)
    check(random_rows(2, 48, torch.float32, device), weight, routing(2, 2, 3, device), 16, tokens=True)


def test_all_rows_to_the_last_expert(device, compute_dtype):
    weight = expert_weight("nvfp4", (3, 16, 32), compute_dtype, device)
    expert_ids = torch.full((20, 1), 2, dtype=torch.int32, device=device)
    check(random_rows(20, 32, compute_dtype, device), weight, expert_ids, 16, tokens=True)


def test_rows_of_no_tile_are_left_alone(device, compute_dtype):
    weight = expert_weight("nvfp4", (2, 16, 32), compute_dtype, device)
    rows = grouped(torch.tensor([[0], [-1], [1]], dtype=torch.int32, device=device), 2, 16)
    out = torch.full((3, 16), 7.0, device=device)
    x = random_rows(3, 32, compute_dtype, device)
    expert_gemm(x=x, weight=weight, **rows, tile_rows=16, rows_per_token=1, out=out)
    assert torch.all(out[1] == 7.0)
    assert not torch.any(out[0] == 7.0)


def test_the_layer_of_dispatch_gemms_and_combine(device, compute_dtype):
    tokens, top_k, experts, hidden, width = 5, 3, 6, 64, 32
    expert_ids = routing(tokens, top_k, experts, device)
    x = random_rows(tokens, hidden, compute_dtype, device)
    gate_up_weight = expert_weight("nvfp4", (experts, 2 * width, hidden), compute_dtype, device)
    down_weight = expert_weight("nvfp4", (experts, hidden, width), compute_dtype, device)
    weights = torch.rand(tokens, top_k, device=device)
    tiles = {**grouped(expert_ids, experts, 16), "tile_rows": 16}
    num_rows = tokens * top_k
    gate_up = torch.full((num_rows, 2 * width), float("nan"), dtype=compute_dtype, device=device)
    activated = torch.full((num_rows, width), float("nan"), dtype=compute_dtype, device=device)
    rows = torch.full((num_rows, hidden), float("nan"), dtype=compute_dtype, device=device)
    out = torch.full((tokens, hidden), float("nan"), device=device)
    expert_gemm(x=x, weight=gate_up_weight, **tiles, rows_per_token=top_k, out=gate_up)
    swiglu(gate_up=gate_up, out=activated)
    expert_gemm(x=activated, weight=down_weight, **tiles, rows_per_token=1, out=rows)
    combine(expert_out=rows, weights=weights, shared=x, out=out)
    ids = {"expert_ids": expert_ids}
    expected = swiglu_reference(expert_gemm_reference(x=x, weight=gate_up_weight, rows_per_token=top_k, **ids))
    expected = expert_gemm_reference(x=expected, weight=down_weight, rows_per_token=1, **ids)
    expected = combine_reference(expected, weights, x)
    # three roundings to 16 bits on the way
    assert relative_error(out, expected) < 3 * TOLERANCE[compute_dtype]


@pytest.mark.parametrize(("n", "k"), [(512, 6144), (6144, 256)], ids=["gate_up", "down"])
def test_one_token_of_glm5_keeps_every_sm_busy(n, k):
    tiles = expert_gemm_tiles(8, 16, n, k, "nvfp4")
    assert 8 * n // tiles.block_n >= 256


def arguments(**changes):
    return {
        "x": torch.zeros(2, 32, dtype=torch.float16),
        "weight": torch.zeros(3, 8, 32, dtype=torch.float16),
        "sorted_rows": torch.zeros(48, dtype=torch.int32),
        "tile_experts": torch.zeros(3, dtype=torch.int32),
        "tile_rows": 16,
        "rows_per_token": 2,
        "out": torch.zeros(4, 8),
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(32)}, r"argument x must be \[X, K\] with a contiguous last dim; got \[32\]"),
        ({"x": torch.zeros(2, 32).int()}, "argument x must be one of .*; got torch.int32"),
        ({"out": torch.zeros(4, 8).int()}, "argument out must be one of .*; got torch.int32"),
        ({"out": torch.zeros(3, 8)}, r"argument out must be \[X \* rows_per_token, N\] = \[4, 8\] .*; got \[3, 8\]"),
        ({"weight": torch.zeros(8, 32).half()}, r"argument weight must be \[E, N, K\]; got \[8, 32\]"),
        ({"weight": torch.zeros(3, 8, 48).half()}, r"argument weight must be \[E, N, K\] with K = 32 like x"),
        ({"weight": torch.zeros(3, 8, 32)}, "argument weight must be torch.float16 like x; got torch.float32"),
        (
            {"weight": random_nvfp4((8, 32), std=1.0, generator=None, device="cpu")},
            r"argument weight must be \[E, N, K\]; got \[8, 32\]",
        ),
        ({"tile_rows": 8}, "argument tile_rows must be 16, 32, 64 or 128; got 8"),
        ({"rows_per_token": 0}, "argument rows_per_token must be at least 1; got 0"),
        ({"sorted_rows": torch.zeros(47, dtype=torch.int32)}, r"argument sorted_rows must be contiguous int32 \[48\]"),
        ({"tile_experts": torch.zeros(3)}, r"argument tile_experts must be contiguous int32 \[3\] .*; got torch.float"),
    ],
    ids=[
        "x-dims",
        "x-dtype",
        "out-dtype",
        "out-shape",
        "dims",
        "inputs",
        "dtype",
        "nvfp4",
        "tile_rows",
        "rows_per_token",
        "sorted_rows",
        "tile_experts",
    ],
)
def test_errors_name_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        expert_gemm(**arguments(**changes))


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 16, 1024], ids=lambda v: f"T{v}")
@pytest.mark.parametrize(("n", "k", "tokens"), [(512, 6144, True), (6144, 256, False)], ids=["gate_up", "down"])
def test_shapes_of_glm5(n, k, tokens, num_tokens, device):
    # 32 of the 256 experts: the float32 reference of all of them would take 3 GB
    expert_ids = routing(num_tokens, 8, 32, device)
    x = random_rows(num_tokens * (1 if tokens else 8), k, torch.bfloat16, device)
    weight = expert_weight("nvfp4", (32, n, k), torch.bfloat16, device)
    check(x, weight, expert_ids, expert_tile_rows(num_tokens, 8, 32), tokens=tokens)
