"""RoPE, quantisation and head weights of the indexer query against the same steps in float32."""

import pytest
import torch

from kernels.index_query import index_query, index_query_reference
from kernels.rope import rope_table

FP8 = torch.float8_e4m3fn
TOLERANCE = {FP8: 4e-3, torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    M: int, Hi: int, D: int, R: int, device: torch.device, dtype: torch.dtype, out_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Head weights are a slice of a fused projection [M, D + Hi], as in GLM-5; outputs are poisoned with NaN."""
    generator = torch.Generator().manual_seed(M + Hi)
    query = torch.randn(M, Hi, D, generator=generator) * torch.logspace(-3, 2, Hi)[None, :, None]
    return {
        "query": query.to(device=device, dtype=dtype),
        "head_weights": torch.randn(M, D + Hi, generator=generator).to(device=device, dtype=dtype)[:, D:],
        "positions": torch.randint(0, 64, (M,), generator=generator, dtype=torch.int32).to(device),
        "cos_sin": rope_table(64, R, 1e6, device),
        "query_out": torch.full((M, Hi, D), float("nan"), device=device).to(out_dtype),
        "weights_out": torch.full((M, Hi), float("nan"), device=device),
    }


def reference(case: dict[str, torch.Tensor], interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return index_query_reference(
        case["query"], case["head_weights"], case["positions"], case["cos_sin"],
        interleaved=interleaved, out_dtype=case["query_out"].dtype,
    )  # fmt: skip


def check(case: dict[str, torch.Tensor], interleaved: bool) -> None:
    values, weights = reference(case, interleaved)
    # each head on its own, since their magnitudes span five decades
    for head in range(values.shape[1]):
        error = relative_error(case["query_out"][:, head], values[:, head])
        assert error < TOLERANCE[case["query_out"].dtype], f"head {head}: {error}"
    assert torch.allclose(case["weights_out"], weights, rtol=1e-6, atol=0)


# correctness


@pytest.mark.parametrize("out_dtype", [FP8, torch.float16, torch.float32], ids=["fp8", "fp16", "fp32"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half-split"])
@pytest.mark.parametrize("M, Hi, D, R", [(1, 32, 128, 64), (3, 8, 64, 64)], ids=["M1-H32-D128-R64", "M3-H8-D64-R64"])
def test_matches_reference(M, Hi, D, R, interleaved, out_dtype, device, compute_dtype):
    case = make_case(M, Hi, D, R, device, compute_dtype, out_dtype)
    index_query(**case, interleaved=interleaved)
    check(case, interleaved)


# corner


def test_odd_sizes(device, compute_dtype):
    case = make_case(2, 11, 53, 16, device, compute_dtype, FP8)
    index_query(**case, interleaved=False)
    check(case, False)


def test_zero_query_gets_the_smallest_scale(device, compute_dtype):
    case = make_case(1, 8, 128, 64, device, compute_dtype, FP8)
    case["query"].zero_()
    index_query(**case, interleaved=True)
    assert (case["query_out"].float() == 0).all()
    expected = case["head_weights"].float() * (8**-0.5 * 128**-0.5 * 2.0**-22)
    assert torch.allclose(case["weights_out"], expected, rtol=1e-6, atol=0)


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case(2, 16, 128, 64, device, compute_dtype, FP8)
    index_query(**case, interleaved=True)
    first = case["query_out"].view(torch.uint8).clone(), case["weights_out"].clone()
    index_query(**case, interleaved=True)
    assert torch.equal(first[0], case["query_out"].view(torch.uint8))
    assert torch.equal(first[1], case["weights_out"])
    assert not case["query_out"].float().isnan().any()


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("query", lambda case: case["query"][0]),
        ("head_weights", lambda case: case["head_weights"][:, 1:]),
        ("positions", lambda case: case["positions"].long()),
        ("cos_sin", lambda case: case["cos_sin"].half()),
        ("query_out", lambda case: case["query_out"][:, 1:]),
        ("query_out", lambda case: case["query_out"].double()),
        ("weights_out", lambda case: case["weights_out"].half()),
    ],
    ids=["query-2d", "weights-size", "positions-int64", "table-dtype", "out-size", "out-dtype", "weights-dtype"],
)
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 8, 128, 64, device, compute_dtype, FP8)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        index_query(**{**case, argument: make_bad(case)}, interleaved=True)


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("out_dtype", [FP8, torch.bfloat16], ids=["fp8", "bf16"])
@pytest.mark.parametrize("M", [1, 64, 1024])
def test_glm5(M, out_dtype, pdl, device, compute_dtype):
    case = make_case(M, 32, 128, 64, device, compute_dtype, out_dtype)
    index_query(**case, interleaved=True, pdl=pdl)
    check(case, True)
