"""LayerNorm, RoPE, quantisation and write of the indexer key against the same steps in float32."""

import pytest
import torch

from kernels.index_key import index_key_reference, index_key_write
from kernels.rope import rope_table

FP8 = torch.float8_e4m3fn
CACHE_DTYPES = [FP8, torch.float16, torch.float32]
# one E4M3 step is up to 2^-3 of the value; a rounding that flips in one element of a thousand stays below this
TOLERANCE = {FP8: 4e-3, torch.float16: 1e-3, torch.bfloat16: 4e-3, torch.float32: 1e-5}


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    M: int, D: int, R: int, device: torch.device, dtype: torch.dtype, cache_dtype: torch.dtype, num_slots: int = 9
) -> dict[str, torch.Tensor]:
    """The key is a slice of a fused projection [M, D + 32], as in GLM-5; the cache is poisoned with NaN."""
    generator = torch.Generator().manual_seed(M + D)
    projection = torch.randn(M, D + 32, generator=generator) * torch.logspace(-2, 2, M)[:, None] + 0.5
    return {
        "key": projection.to(device=device, dtype=dtype)[:, :D],
        "norm_weight": (1 + 0.2 * torch.randn(D, generator=generator)).to(device),
        "norm_bias": (0.2 * torch.randn(D, generator=generator)).to(device),
        "positions": torch.randint(0, 64, (M,), generator=generator, dtype=torch.int32).to(device),
        "cos_sin": rope_table(64, R, 1e6, device),
        "slots": torch.randperm(num_slots, generator=generator)[:M].to(device),
        "cache_values": torch.full((num_slots, D), float("nan"), device=device).to(cache_dtype),
        "cache_scales": torch.full((num_slots,), float("nan"), device=device),
    }


def reference(case: dict[str, torch.Tensor], eps: float, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return index_key_reference(
        case["key"],
        case["norm_weight"],
        case["norm_bias"],
        eps=eps,
        positions=case["positions"],
        cos_sin=case["cos_sin"],
        interleaved=interleaved,
        cache_dtype=case["cache_values"].dtype,
    )


# correctness


@pytest.mark.parametrize("cache_dtype", CACHE_DTYPES, ids=["fp8", "fp16", "fp32"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half-split"])
@pytest.mark.parametrize(
    "M, D, R", [(1, 128, 64), (6, 128, 64), (3, 64, 64)], ids=["M1-D128-R64", "M6-D128-R64", "M3-D64-R64"]
)
def test_matches_reference(M, D, R, interleaved, cache_dtype, device, compute_dtype):
    case = make_case(M, D, R, device, compute_dtype, cache_dtype)
    index_key_write(**case, eps=1e-6, interleaved=interleaved)
    values, scales = reference(case, 1e-6, interleaved)
    slots = case["slots"]
    assert torch.equal(case["cache_scales"][slots], scales)
    dequantised = case["cache_values"][slots].float() * scales[:, None]
    assert relative_error(dequantised, values.float() * scales[:, None]) < TOLERANCE[cache_dtype]


# corner


def test_odd_dim(device, compute_dtype):
    case = make_case(3, 53, 16, device, compute_dtype, FP8)
    index_key_write(**case, eps=1e-5, interleaved=True)
    values, scales = reference(case, 1e-5, True)
    assert torch.equal(case["cache_scales"][case["slots"]], scales)
    assert relative_error(case["cache_values"][case["slots"]], values) < TOLERANCE[FP8]


def test_constant_key_becomes_the_rotated_bias(device, compute_dtype):
    """A row without variance normalises to zero: only the bias is left, and the smallest scale if that is zero too."""
    case = make_case(2, 128, 64, device, compute_dtype, FP8)
    case["key"].fill_(3.0)
    case["norm_bias"].zero_()
    index_key_write(**case, eps=1e-6, interleaved=True)
    assert (case["cache_values"][case["slots"]].float() == 0).all()
    assert (case["cache_scales"][case["slots"]] == 2.0**-22).all()


def test_other_slots_are_untouched(device, compute_dtype):
    case = make_case(4, 128, 64, device, compute_dtype, FP8)
    index_key_write(**case, eps=1e-6, interleaved=True)
    untouched = torch.ones(9, dtype=torch.bool, device=device)
    untouched[case["slots"]] = False
    assert case["cache_scales"][untouched].isnan().all()
    assert case["cache_values"].float()[untouched].isnan().all()
    assert not case["cache_values"].float()[~untouched].isnan().any()


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case(9, 128, 64, device, compute_dtype, FP8)
    index_key_write(**case, eps=1e-6, interleaved=True)
    first = case["cache_values"].view(torch.uint8).clone(), case["cache_scales"].clone()
    index_key_write(**case, eps=1e-6, interleaved=True)
    assert torch.equal(first[0], case["cache_values"].view(torch.uint8))
    assert torch.equal(first[1], case["cache_scales"])


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("key", lambda case: case["key"][0]),
        ("norm_weight", lambda case: case["norm_weight"].half()),
        ("norm_bias", lambda case: case["norm_bias"][1:]),
        ("positions", lambda case: case["positions"].long()),
        ("cos_sin", lambda case: case["cos_sin"][:, :1]),
        ("slots", lambda case: case["slots"].float()),
        ("cache_values", lambda case: case["cache_values"][:, 1:]),
        ("cache_values", lambda case: case["cache_values"].to(torch.float64)),
        ("cache_scales", lambda case: case["cache_scales"].half()),
    ],
    ids=["key-1d", "weight-dtype", "bias-size", "positions-int64", "table", "slots-float", "cache-row", "cache-dtype",
         "scales-dtype"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 128, 64, device, compute_dtype, FP8)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        index_key_write(**{**case, argument: make_bad(case)}, eps=1e-6, interleaved=True)


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("cache_dtype", [FP8, torch.bfloat16], ids=["fp8", "bf16"])
@pytest.mark.parametrize("M", [1, 64, 1024])
def test_glm5(M, cache_dtype, pdl, device, compute_dtype):
    case = make_case(M, 128, 64, device, compute_dtype, cache_dtype, num_slots=4096)
    index_key_write(**case, eps=1e-6, interleaved=True, pdl=pdl)
    values, scales = reference(case, 1e-6, True)
    slots = case["slots"]
    dequantised = case["cache_values"][slots].float() * case["cache_scales"][slots][:, None]
    assert relative_error(dequantised, values.float() * scales[:, None]) < 2 * TOLERANCE[cache_dtype]
