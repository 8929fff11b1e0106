"""Grouped-query decode, splits and their combination together, against softmax attention in float32."""

import pytest
import torch

from kernels.gqa_decode import gqa_cache_write, gqa_cache_write_reference, gqa_decode, gqa_decode_reference
from kernels.mla_combine import mla_combine


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    contexts: list[int],
    H: int,
    Hkv: int,
    Dh: int,
    splits: int,
    device: torch.device,
    dtype: torch.dtype,
    slots: int,
    per_sequence: int = 1,
) -> dict[str, object]:
    """The query is a slice of a fused projection, as after QKV; partials are poisoned with NaN."""
    generator = torch.Generator().manual_seed(H + slots)
    M = len(contexts)
    num_slots = M // per_sequence * slots
    return {
        "query": torch.randn(M, H + 2, Dh, generator=generator).to(device=device, dtype=dtype)[:, :H],
        "key_cache": torch.randn(num_slots, Hkv, Dh, generator=generator).to(device=device, dtype=dtype),
        "value_cache": torch.randn(num_slots, Hkv, Dh, generator=generator).to(device=device, dtype=dtype),
        "context_lengths": torch.tensor(contexts, dtype=torch.int32, device=device),
        "tokens_per_sequence": per_sequence,
        "slots_per_sequence": slots,
        "scale": Dh**-0.5,
        "partial_out": torch.full((M, H, splits, Dh), float("nan"), device=device),
        "partial_lse": torch.full((M, H, splits), float("nan"), device=device),
    }


def run(case: dict[str, object], *, pdl: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    gqa_decode(**case, pdl=pdl)
    out = torch.full(case["query"].shape, float("nan"), dtype=case["query"].dtype, device=case["query"].device)
    mla_combine(partial_out=case["partial_out"], partial_lse=case["partial_lse"], out=out, pdl=pdl)
    arguments = {name: value for name, value in case.items() if not name.startswith("partial")}
    return out, gqa_decode_reference(**arguments)


# correctness


@pytest.mark.parametrize(
    "contexts, H, Hkv, Dh, splits",
    [([90], 8, 1, 128, 3), ([1, 33, 64], 6, 2, 64, 2), ([77], 36, 2, 64, 1), ([40, 50], 2, 2, 32, 2)],
    ids=["M1-H8-Hkv1-D128", "M3-H6-Hkv2-D64", "M1-H36-Hkv2-D64", "M2-H2-Hkv2-D32"],
)
def test_matches_reference(contexts, H, Hkv, Dh, splits, device, compute_dtype):
    out, expected = run(make_case(contexts, H, Hkv, Dh, splits, device, compute_dtype, slots=100))
    assert relative_error(out, expected) < 6e-3


def test_tokens_of_one_sequence_share_its_cache(device, compute_dtype):
    case = make_case([30, 31, 7, 8], 4, 2, 64, 2, device, compute_dtype, slots=40, per_sequence=2)
    out, expected = run(case)
    assert relative_error(out, expected) < 6e-3


# corner


def test_odd_sizes(device, compute_dtype):
    out, expected = run(make_case([53, 61], 15, 3, 40, 3, device, compute_dtype, slots=69))
    assert relative_error(out, expected) < 6e-3


def test_empty_context_and_empty_splits(device, compute_dtype):
    case = make_case([0, 5], 4, 2, 64, 4, device, compute_dtype, slots=64)
    case["key_cache"][64 + 5 :] = float("nan")
    case["value_cache"][64 + 5 :] = float("nan")
    out, expected = run(case)
    assert (out[0] == 0).all()
    assert relative_error(out, expected) < 6e-3
    assert (case["partial_lse"][1, :, 1:] == float("-inf")).all()


# the cache write


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("M, Hkv, Dh", [(1, 8, 128), (3, 2, 53)], ids=["M1-Hkv8-D128", "M3-Hkv2-D53"])
def test_cache_write_copies_bits_into_the_slots_only(M, Hkv, Dh, index_dtype, device, compute_dtype):
    generator = torch.Generator().manual_seed(M)
    fused = torch.randn(M, 2 * Hkv, Dh, generator=generator).to(device=device, dtype=compute_dtype)
    caches = [torch.full((7, Hkv, Dh), float("nan"), dtype=compute_dtype, device=device) for _ in range(2)]
    case = {
        "key": fused[:, :Hkv],
        "value": fused[:, Hkv:],
        "slots": torch.randperm(7, generator=generator)[:M].to(device=device, dtype=index_dtype),
        "key_cache": caches[0],
        "value_cache": caches[1],
    }
    expected = gqa_cache_write_reference(**case)
    for _ in range(2):
        gqa_cache_write(**case)
        for cache, reference in zip(caches, expected, strict=True):
            assert torch.equal(cache.view(torch.int16), reference.view(torch.int16))


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case([90, 64], 8, 2, 64, 3, device, compute_dtype, slots=96)
    assert torch.equal(run(case)[0], run(case)[0])
    assert not case["partial_out"].isnan().any()


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("query", lambda case: case["query"][0]),
        ("query", lambda case: case["query"][:, :3]),
        ("key_cache", lambda case: case["key_cache"].double()),
        ("value_cache", lambda case: case["value_cache"][1:]),
        ("context_lengths", lambda case: case["context_lengths"].long()),
        ("slots_per_sequence", lambda case: 65),
        ("partial_out", lambda case: case["partial_out"][..., :32].contiguous()),
        ("partial_lse", lambda case: case["partial_lse"].half()),
    ],
    ids=["query-2d", "heads", "key-dtype", "value-size", "contexts-int64", "too-many-slots", "partial-dim",
         "lse-dtype"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case([40, 41], 4, 2, 64, 2, device, compute_dtype, slots=64)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        gqa_decode(**{**case, argument: make_bad(case)})


@pytest.mark.parametrize("argument", ["key", "value", "slots", "key_cache", "value_cache"])
def test_wrong_argument_of_cache_write_is_named(argument, device, compute_dtype):
    case = {
        "key": torch.zeros(2, 2, 16, dtype=compute_dtype, device=device),
        "value": torch.zeros(2, 2, 16, dtype=compute_dtype, device=device),
        "slots": torch.tensor([0, 1], device=device),
        "key_cache": torch.zeros(4, 2, 16, dtype=compute_dtype, device=device),
        "value_cache": torch.zeros(4, 2, 16, dtype=compute_dtype, device=device),
    }
    bad = case[argument][:, 0] if argument == "key" else case[argument].double()
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        gqa_cache_write(**{**case, argument: bad})


# GLM-4.5 and Qwen3 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize(
    "contexts, H, Hkv, Dh, splits",
    [([4096], 12, 1, 128, 128), ([4096] * 32, 12, 1, 128, 5), ([1, 100, 4096], 64, 4, 128, 32)],
    ids=["M1-glm4.5-tp8", "M32-glm4.5-tp8", "M3-qwen3-tp1"],
)
def test_model_shapes(contexts, H, Hkv, Dh, splits, pdl, device, compute_dtype):
    case = make_case(contexts, H, Hkv, Dh, splits, device, compute_dtype, slots=4096)
    out, expected = run(case, pdl=pdl)
    assert relative_error(out, expected) < 6e-3
