"""The per-head GEMM of absorbed MLA against an einsum in float32."""

import pytest
import torch

from kernels.head_gemm import MIN_PROGRAMS, head_gemm, head_gemm_reference, head_gemm_tiles

SENTINEL = 77.0


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(M: int, H: int, N: int, K: int, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """x and out are slices of wider heads, as the query and the latent query are."""
    generator = torch.Generator().manual_seed(M + N)
    return {
        "x": torch.randn(M, H, K + 16, generator=generator).to(device=device, dtype=dtype)[..., :K],
        "weight": (torch.randn(H, N, K, generator=generator) * K**-0.5).to(device=device, dtype=dtype),
        "out": torch.full((M, H, N + 8), SENTINEL, dtype=dtype, device=device)[..., 8:],
    }


# correctness


@pytest.mark.parametrize(
    "M, H, N, K", [(1, 2, 64, 192), (1, 2, 64, 512), (5, 2, 32, 128), (17, 1, 96, 192), (70, 2, 64, 64)], ids=str
)
def test_matches_reference(M, H, N, K, device, compute_dtype):
    case = make_case(M, H, N, K, device, compute_dtype)
    head_gemm(**case)
    # bfloat16 keeps 8 bits, so one rounding is 2^-9 at most; float32 accumulation adds nothing visible
    assert relative_error(case["out"], head_gemm_reference(case["x"], case["weight"])) < 4e-3


# corner


@pytest.mark.parametrize("M, H, N, K", [(3, 1, 53, 61), (1, 3, 16, 16), (2, 1, 7, 200)], ids=str)
def test_odd_sizes(M, H, N, K, device, compute_dtype):
    case = make_case(M, H, N, K, device, compute_dtype)
    head_gemm(**case)
    assert relative_error(case["out"], head_gemm_reference(case["x"], case["weight"])) < 4e-3


@pytest.mark.parametrize("M", [1, 16, 17, 64, 1024])
@pytest.mark.parametrize("H, N, K", [(8, 512, 192), (8, 256, 512), (64, 512, 192)])
def test_tiles_fill_the_gpu_and_fit_shared_memory(M, H, N, K):
    tiles = head_gemm_tiles(M, H, N, K)
    programs = H * -(-N // tiles.block_n) * -(-M // tiles.block_m)
    assert programs >= MIN_PROGRAMS or tiles.block_n == 16
    assert K % tiles.block_k == 0
    assert (tiles.block_m + tiles.block_n) * tiles.block_k * 2 * tiles.num_stages <= 101_376


# contract


def test_second_call_is_bitwise_equal_and_surroundings_are_untouched(device, compute_dtype):
    case = make_case(3, 2, 48, 192, device, compute_dtype)
    head_gemm(**case)
    first = case["out"].clone()
    head_gemm(**case)
    assert torch.equal(first, case["out"])
    whole = case["out"].as_strided((3, 2, 56), (112, 56, 1), 0)
    assert (whole[..., :8] == SENTINEL).all()
    assert not (case["out"] == SENTINEL).any()


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("x", lambda case: case["x"][0]),
        ("weight", lambda case: case["weight"][:1]),
        ("weight", lambda case: case["weight"].double()),
        ("weight", lambda case: case["weight"].transpose(1, 2).contiguous().transpose(1, 2)),
        ("out", lambda case: case["out"][..., 1:]),
        ("out", lambda case: case["out"].double()),
    ],
    ids=["x-2d", "weight-heads", "weight-dtype", "weight-strided", "out-shape", "out-dtype"],
)
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 2, 32, 64, device, compute_dtype)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        head_gemm(**{**case, argument: make_bad(case)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M", [1, 32, 64, 1024])
@pytest.mark.parametrize("N, K", [(512, 192), (256, 512)], ids=["absorb", "value-up"])
def test_glm5(N, K, M, pdl, device, compute_dtype):
    case = make_case(M, 8, N, K, device, compute_dtype)
    head_gemm(**case, pdl=pdl)
    assert relative_error(case["out"], head_gemm_reference(case["x"], case["weight"])) < 4e-3
