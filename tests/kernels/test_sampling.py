"""Greedy sampling: the best of a rank's logits, and the best of the ranks."""

from typing import Any

import pytest
import torch

from kernels.sampling import BLOCK_V, greedy, greedy_reference, local_argmax, local_argmax_reference

INF, NAN = float("inf"), float("nan")


def local_case(
    M: int, V: int, device: torch.device, dtype: torch.dtype, num_valid: int | None = None
) -> dict[str, Any]:
    """Few distinct logits, so that ties are frequent, and columns beyond num_valid that would win."""
    generator = torch.Generator().manual_seed(M * 1000 + V)
    logits = torch.randint(-9, 10, (M, V + 8), generator=generator).to(device=device, dtype=dtype)[:, :V]
    num_valid = V if num_valid is None else num_valid
    logits[:, num_valid:] = 100.0
    return {
        "logits": logits,
        "vocab_start": 19_360,
        "num_valid": num_valid,
        "values": torch.full((M,), NAN, device=device),
        "ids": torch.full((M,), -7, dtype=torch.int32, device=device),
    }


def greedy_case(W: int, M: int, device: torch.device) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(W * 1000 + M)
    return {
        "values": torch.randint(-3, 4, (W, M), generator=generator).float().to(device),
        "ids": torch.randint(0, 154_880, (W, M), generator=generator, dtype=torch.int32).to(device),
        "out": torch.full((M,), -7, dtype=torch.int32, device=device),
    }


def check_local(case: dict[str, Any], pdl: bool = False) -> None:
    local_argmax(**case, pdl=pdl)
    values, ids = local_argmax_reference(case["logits"], case["vocab_start"], case["num_valid"])
    assert torch.equal(case["ids"], ids)
    torch.testing.assert_close(case["values"], values, rtol=0.0, atol=0.0, equal_nan=True)


# correctness


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["fp16", "fp32"])
@pytest.mark.parametrize(
    "M, V, num_valid",
    [(1, 19_360, 19_360), (3, 2048, 2000), (5, 333, 1), (2, 8193, 8193)],
    ids=["M1-V19360", "M3-V2048-valid2000", "M5-V333-valid1", "M2-V8193"],
)
def test_local_argmax_matches_reference(M, V, num_valid, dtype, device):
    check_local(local_case(M, V, device, dtype, num_valid))


@pytest.mark.parametrize("winner", [0, BLOCK_V - 1, BLOCK_V, 2 * BLOCK_V, 19_359], ids=lambda i: f"column{i}")
def test_every_iteration_can_hold_the_only_best_logit(winner, device, compute_dtype):
    """The other cases repeat their maximum in the first BLOCK_V columns, so they do not need the rest."""
    case = local_case(1, 19_360, device, compute_dtype)
    case["logits"][0, winner] = 50.0
    check_local(case)
    assert case["ids"].item() == 19_360 + winner


@pytest.mark.parametrize("W, M", [(1, 1), (8, 5), (6, 130)], ids=["W1-M1", "W8-M5", "W6-M130"])
def test_greedy_matches_reference(W, M, device):
    case = greedy_case(W, M, device)
    greedy(**case)
    assert torch.equal(case["out"], greedy_reference(case["values"], case["ids"]))


def test_ranks_together_are_one_argmax(device, compute_dtype):
    """Four shards of a vocabulary of 1000 padded to 1024: the result is torch.argmax over the whole row."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 1024, generator=generator).to(device=device, dtype=compute_dtype)
    logits[:, 1000:] = 50.0
    values, ids = torch.zeros(4, 6, device=device), torch.zeros(4, 6, dtype=torch.int32, device=device)
    for rank in range(4):
        local_argmax(
            logits=logits[:, 256 * rank : 256 * rank + 256], vocab_start=256 * rank,
            num_valid=min(256, 1000 - 256 * rank), values=values[rank], ids=ids[rank],
        )  # fmt: skip
    out = torch.full((6,), -7, dtype=torch.int32, device=device)
    greedy(values=values, ids=ids, out=out)
    assert torch.equal(out.long(), logits[:, :1000].float().argmax(dim=-1))


# corner


@pytest.mark.parametrize(
    "row, expected_id",
    [
        ([NAN, -1.0, NAN, -2.0], 1),
        ([NAN, -INF, NAN, -INF], 1),
        ([NAN, NAN, NAN, NAN], 0),
        ([INF, 1.0, INF, 1.0], 0),
        ([-0.0, 0.0, 0.0, -0.0], 0),
        ([-5.0, -4.0, -4.0, -6.0], 1),
        ([-INF, -INF, -INF, -INF], 0),
    ],
    ids=["nan", "nan-and-minus-inf", "all-nan", "inf-tie", "zeros-tie", "negative", "all-minus-inf"],
)
def test_local_argmax_of_special_values(row, expected_id, device, compute_dtype):
    case = local_case(1, 4, device, compute_dtype)
    case["logits"] = torch.tensor([row], dtype=compute_dtype, device=device)
    check_local(case)
    assert case["ids"].item() == 19_360 + expected_id


def test_rank_that_holds_only_padding_never_wins(device, compute_dtype):
    case = local_case(2, 64, device, compute_dtype, num_valid=0)
    check_local(case)
    assert case["values"].isnan().all()
    values = torch.stack((case["values"], torch.full_like(case["values"], -INF)))
    out = torch.zeros_like(case["ids"])
    greedy(values=values, ids=torch.stack((case["ids"], case["ids"] + 5)), out=out)
    assert torch.equal(out, case["ids"] + 5)


def test_greedy_ties_go_to_the_lower_id_not_the_lower_rank(device):
    values = torch.tensor([[2.0, NAN, NAN], [2.0, -INF, NAN]], device=device)
    ids = torch.tensor([[9, 1, 8], [4, 6, 7]], dtype=torch.int32, device=device)
    out = torch.full((3,), -7, dtype=torch.int32, device=device)
    greedy(values=values, ids=ids, out=out)
    assert out.tolist() == [4, 6, 7]
    assert torch.equal(out, greedy_reference(values, ids))


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    local, ranks = local_case(3, 500, device, compute_dtype), greedy_case(4, 3, device)
    local_argmax(**local)
    greedy(**ranks)
    first = local["values"].clone(), local["ids"].clone(), ranks["out"].clone()
    local_argmax(**local)
    greedy(**ranks)
    assert all(map(torch.equal, first, (local["values"], local["ids"], ranks["out"])))


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("logits", lambda case: case["logits"].int()),
        ("logits", lambda case: case["logits"][:, ::2]),
        ("vocab_start", lambda case: -1),
        ("vocab_start", lambda case: 2**31 - 64),
        ("num_valid", lambda case: 65),
        ("values", lambda case: case["values"].half()),
        ("ids", lambda case: case["ids"].long()),
        ("ids", lambda case: case["ids"][:1]),
    ],
    ids=["dtype", "strided", "start-negative", "start-too-large", "valid-beyond", "values", "ids-dtype", "ids-rows"],
)
def test_wrong_argument_of_local_argmax_is_named(argument, make_bad, device, compute_dtype):
    case = local_case(2, 64, device, compute_dtype)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        local_argmax(**{**case, argument: make_bad(case)})


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("values", lambda case: case["values"].double()),
        ("values", lambda case: case["values"][0]),
        ("ids", lambda case: case["ids"].long()),
        ("ids", lambda case: case["ids"][:1]),
        ("out", lambda case: case["out"].long()),
        ("out", lambda case: case["out"][1:]),
    ],
    ids=["values-dtype", "values-1d", "ids-dtype", "ids-ranks", "out-dtype", "out-rows"],
)
def test_wrong_argument_of_greedy_is_named(argument, make_bad, device):
    case = greedy_case(2, 3, device)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        greedy(**{**case, argument: make_bad(case)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M", [1, 64, 1024], ids=lambda M: f"M{M}")
def test_glm5_shapes(M, pdl, device, compute_dtype):
    check_local(local_case(M, 19_360, device, compute_dtype, 19_300), pdl=pdl)
    case = greedy_case(8, M, device)
    greedy(**case, pdl=pdl)
    assert torch.equal(case["out"], greedy_reference(case["values"], case["ids"]))
