"""The embedding lookup copies the rows of its own shard."""

from typing import Any

import pytest
import torch

from kernels.embedding import embedding, embedding_reference


def make_case(
    M: int, V: int, D: int, vocab_start: int, device: torch.device, dtype: torch.dtype, index_dtype: torch.dtype
) -> dict[str, Any]:
    """Tokens of which about half lie in the shard."""
    generator = torch.Generator().manual_seed(M * 1000 + D)
    tokens = torch.randint(max(0, vocab_start - V // 2), vocab_start + V + V // 2, (M,), generator=generator)
    return {
        "tokens": tokens.to(device=device, dtype=index_dtype),
        "table": torch.randn(V, D, generator=generator).to(device=device, dtype=dtype),
        "vocab_start": vocab_start,
        "out": torch.full((M, D + 16), float("nan"), dtype=dtype, device=device)[:, :D],
    }


def reference(case: dict[str, Any]) -> torch.Tensor:
    return embedding_reference(case["tokens"], case["table"], case["vocab_start"])


# correctness


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize(
    "M, V, D, start",
    [(1, 40, 2048, 0), (9, 40, 2048, 40), (16, 33, 1100, 7), (4, 5, 3, 1)],
    ids=["M1-D2048-first", "M9-D2048-second", "M16-D1100", "M4-D3"],
)
def test_copies_rows_of_the_shard(M, V, D, start, index_dtype, device, compute_dtype):
    case = make_case(M, V, D, start, device, compute_dtype, index_dtype)
    embedding(**case)
    assert torch.equal(case["out"], reference(case))


def test_sum_over_shards_is_the_whole_table(device, compute_dtype):
    table = torch.randn(24, 64).to(device=device, dtype=compute_dtype)
    tokens = torch.tensor([0, 5, 6, 17, 18, 23], device=device)
    total = torch.zeros(6, 64, device=device)
    for rank in range(4):
        out = torch.full((6, 64), float("nan"), dtype=compute_dtype, device=device)
        embedding(tokens=tokens, table=table[6 * rank : 6 * rank + 6], vocab_start=6 * rank, out=out)
        total += out.float()
    assert torch.equal(total, table[tokens].float())


# corner


def test_tokens_of_other_ranks_are_zero(device, compute_dtype):
    case = make_case(4, 8, 64, 100, device, compute_dtype, torch.int64)
    # beyond the table on both sides, also where a 32-bit offset would wrap to a row of it
    case["tokens"] = torch.tensor([99, 108, -1, 2**32 + 101], device=device)
    embedding(**case)
    assert torch.count_nonzero(case["out"]) == 0


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case(5, 20, 96, 10, device, compute_dtype, torch.int32)
    embedding(**case)
    first = case["out"].clone()
    embedding(**case)
    assert torch.equal(first, case["out"])


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("tokens", lambda case: case["tokens"].float()),
        ("tokens", lambda case: case["tokens"][:, None]),
        ("table", lambda case: case["table"][:, 1:]),
        ("table", lambda case: case["table"].int()),
        ("vocab_start", lambda case: -1),
        ("out", lambda case: case["out"][1:]),
        ("out", lambda case: case["out"].double()),
    ],
    ids=["tokens-float", "tokens-2d", "table-strided", "table-int", "start-negative", "out-rows", "out-dtype"],
)
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(3, 8, 64, 0, device, compute_dtype, torch.int64)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        embedding(**{**case, argument: make_bad(case)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M", [1, 64, 1024], ids=lambda M: f"M{M}")
def test_glm5_shapes(M, pdl, device, compute_dtype):
    case = make_case(M, 19_360, 6144, 19_360, device, compute_dtype, torch.int32)
    embedding(**case, pdl=pdl)
    assert torch.equal(case["out"], reference(case))
