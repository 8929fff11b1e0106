"""The MLA cache write copies bits and nothing else."""

import pytest
import torch

from kernels.kv_cache import kv_cache_write, kv_cache_write_reference


def make_case(
    M: int, L: int, R: int, num_slots: int, device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(M)
    return {
        "latent": torch.randn(M, L + 16, generator=generator).to(device=device, dtype=dtype)[:, 16:],
        "key_rope": torch.randn(M, R + 8, generator=generator).to(device=device, dtype=dtype)[:, :R],
        "slots": torch.randperm(num_slots, generator=generator)[:M].to(device=device, dtype=index_dtype),
        "cache": torch.full((num_slots, L + R), float("nan"), dtype=dtype, device=device),
    }


# correctness


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize(
    "M, L, R", [(1, 512, 64), (5, 512, 64), (3, 53, 7)], ids=["M1-L512-R64", "M5-L512-R64", "M3-L53-R7"]
)
def test_copies_bits_into_the_slots_only(M, L, R, index_dtype, device, compute_dtype):
    case = make_case(M, L, R, 11, device, compute_dtype, index_dtype)
    expected = kv_cache_write_reference(**case)
    kv_cache_write(**case)
    # untouched rows are NaN in both, so the comparison is of bits
    assert torch.equal(case["cache"].view(torch.int16), expected.view(torch.int16))


# corner


def test_first_and_last_slot(device, compute_dtype):
    case = make_case(2, 64, 16, 4, device, compute_dtype, torch.int64)
    case["slots"] = torch.tensor([3, 0], device=device)
    kv_cache_write(**case)
    assert torch.equal(case["cache"][3, :64], case["latent"][0])
    assert torch.equal(case["cache"][0, 64:], case["key_rope"][1])
    assert case["cache"][1:3].isnan().all()


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case(3, 64, 16, 3, device, compute_dtype, torch.int32)
    kv_cache_write(**case)
    first = case["cache"].clone()
    kv_cache_write(**case)
    assert torch.equal(first, case["cache"])


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("latent", lambda case: case["latent"][0]),
        ("key_rope", lambda case: case["key_rope"][:1]),
        ("key_rope", lambda case: case["key_rope"].double()),
        ("slots", lambda case: case["slots"].to(torch.int16)),
        ("slots", lambda case: case["slots"][:1]),
        ("cache", lambda case: case["cache"][:, :-1]),
        ("cache", lambda case: case["cache"].double()),
    ],
    ids=["latent-1d", "key-rows", "key-dtype", "slots-int16", "slots-rows", "cache-row", "cache-dtype"],
)
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 64, 16, 4, device, compute_dtype, torch.int64)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        kv_cache_write(**{**case, argument: make_bad(case)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
def test_offsets_pass_two_to_the_31(pdl, device, compute_dtype):
    num_slots = 4_000_000  # x 576 values = 2.3e9 elements
    case = make_case(2, 512, 64, 8, device, compute_dtype, torch.int64)
    case["cache"] = torch.zeros((num_slots, 576), dtype=compute_dtype, device=device)
    case["slots"] = torch.tensor([num_slots - 1, 0], device=device)
    kv_cache_write(**case, pdl=pdl)
    assert torch.equal(case["cache"][-1, :512], case["latent"][0])
    assert torch.equal(case["cache"][0, 512:], case["key_rope"][1])
