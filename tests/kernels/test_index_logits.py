"""Indexer scores against the same sum in float32 on the same quantised operands."""

import pytest
import torch

from kernels.index_logits import MIN_PROGRAMS, index_logits, index_logits_block_keys, index_logits_reference

FP8 = torch.float8_e4m3fn
NEG_INF = float("-inf")


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    assert torch.equal(out == NEG_INF, ref == NEG_INF)
    finite = ref != NEG_INF
    return float((out[finite] - ref[finite]).norm() / ref[finite].norm())


def make_case(
    contexts: list[int], Hi: int, D: int, S: int, device: torch.device, dtype: torch.dtype, per_sequence: int = 1
) -> dict[str, object]:
    generator = torch.Generator().manual_seed(Hi + S)
    M = len(contexts)
    num_slots = M // per_sequence * (S + 5)
    return {
        "query": torch.randn(M, Hi, D, generator=generator).to(device=device).to(dtype),
        "weights": torch.randn(M, Hi, generator=generator).to(device),
        "cache_values": torch.randn(num_slots, D, generator=generator).to(device=device).to(dtype),
        "cache_scales": torch.exp2(torch.randint(-3, 3, (num_slots,), generator=generator).float()).to(device),
        "context_lengths": torch.tensor(contexts, dtype=torch.int32, device=device),
        "tokens_per_sequence": per_sequence,
        "slots_per_sequence": S + 5,
        "out": torch.full((M, S), float("nan"), device=device),
    }


def reference(case: dict[str, object]) -> torch.Tensor:
    arguments = {name: value for name, value in case.items() if name != "out"}
    return index_logits_reference(**arguments, num_positions=case["out"].shape[1])


# correctness


@pytest.mark.parametrize("dtype", [FP8, torch.float16], ids=["fp8", "fp16"])
@pytest.mark.parametrize(
    "contexts, Hi, D, S",
    [([70], 32, 128, 96), ([1, 33, 64], 8, 64, 64), ([40, 41], 64, 128, 64)],
    ids=["M1-H32-D128-S96", "M3-H8-D64-S64", "M2-H64-D128-S64"],
)
def test_matches_reference(contexts, Hi, D, S, dtype, device):
    case = make_case(contexts, Hi, D, S, device, dtype)
    index_logits(**case)
    assert relative_error(case["out"], reference(case)) < 1e-3


def test_tokens_of_one_sequence_share_its_cache(device):
    case = make_case([30, 31, 32, 7, 8, 9], 16, 64, 40, device, FP8, per_sequence=3)
    index_logits(**case)
    assert relative_error(case["out"], reference(case)) < 1e-3


# corner


def test_odd_sizes(device):
    case = make_case([53, 2], 11, 48, 61, device, FP8)
    index_logits(**case)
    assert relative_error(case["out"], reference(case)) < 1e-3


def test_empty_and_overlong_contexts(device):
    case = make_case([0, 64, 69], 8, 64, 64, device, FP8)
    index_logits(**case)
    assert (case["out"][0] == NEG_INF).all()
    assert torch.isfinite(case["out"][1:]).all()
    assert relative_error(case["out"], reference(case)) < 1e-3


def test_garbage_beyond_the_context_is_not_read(device):
    case = make_case([20], 8, 64, 64, device, FP8)
    case["cache_values"][20:] = float("nan")
    case["cache_scales"][20:] = float("nan")
    index_logits(**case)
    assert torch.isfinite(case["out"][0, :20]).all()
    assert (case["out"][0, 20:] == NEG_INF).all()


@pytest.mark.parametrize("M, S", [(1, 4096), (1, 202752), (64, 4096), (1024, 4096)])
def test_tiles_fill_the_gpu(M, S):
    block = index_logits_block_keys(M, S)
    assert block in (32, 64, 128)
    assert M * -(-S // block) >= MIN_PROGRAMS or block == 32


# contract


def test_second_call_is_bitwise_equal(device):
    case = make_case([70, 96], 32, 128, 96, device, FP8)
    index_logits(**case)
    first = case["out"].clone()
    index_logits(**case)
    assert torch.equal(first, case["out"])


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("query", lambda case: case["query"][0]),
        ("query", lambda case: case["query"].to(torch.float16)),
        ("query", lambda case: case["query"].repeat(1, 20, 1)),
        ("weights", lambda case: case["weights"].half()),
        ("cache_values", lambda case: case["cache_values"][:, 1:]),
        ("cache_scales", lambda case: case["cache_scales"][1:]),
        ("context_lengths", lambda case: case["context_lengths"].long()),
        ("tokens_per_sequence", lambda case: 3),
        ("slots_per_sequence", lambda case: 1000),
        ("out", lambda case: case["out"].half()),
        ("out", lambda case: torch.empty(2, 70, device=case["out"].device)),
    ],
    ids=["query-2d", "query-dtype", "too-many-heads", "weights-dtype", "cache-row", "scales-size", "contexts-int64",
         "tokens-per-sequence", "too-many-slots", "out-dtype", "out-longer-than-a-sequence"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, make_bad, device):
    case = make_case([10, 20], 8, 64, 64, device, FP8)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        index_logits(**{**case, argument: make_bad(case)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("dtype", [FP8, torch.bfloat16], ids=["fp8", "bf16"])
@pytest.mark.parametrize("contexts", [[4000], [4096] * 64, [1, 2048, 3000, 4096]], ids=["M1", "M64", "M4-ragged"])
def test_glm5(contexts, dtype, pdl, device):
    case = make_case(contexts, 32, 128, 4096, device, dtype)
    index_logits(**case, pdl=pdl)
    assert relative_error(case["out"], reference(case)) < 1e-3
