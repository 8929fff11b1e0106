"""The router chooses and weighs as DeepSeek-V3's noaux_tc does."""

from typing import Any

import pytest
import torch

from kernels.router import router_topk, router_topk_reference

GLM5 = {"scoring": "sigmoid", "num_groups": 1, "topk_groups": 1, "normalize": True, "scaling": 2.5}
DEEPSEEK_V3 = {**GLM5, "num_groups": 8, "topk_groups": 4}


def make_case(M: int, E: int, K: int, device: torch.device, *, bias: bool = True) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(M * 1000 + E)
    logits = torch.randn(M, E + 3, generator=generator).to(device)[:, 3:]
    return {
        "logits": logits,
        "bias": (0.3 * torch.randn(E, generator=generator)).to(device) if bias else None,
        "ids": torch.full((M, K), -7, dtype=torch.int32, device=device),
        "weights": torch.full((M, K), float("nan"), device=device),
    }


def check(case: dict[str, Any], options: dict[str, Any], pdl: bool = False) -> None:
    router_topk(**case, **options, pdl=pdl)
    ids, weights = router_topk_reference(case["logits"], case["bias"], case["ids"].shape[1], **options)
    assert torch.equal(case["ids"], ids)
    torch.testing.assert_close(case["weights"], weights, rtol=1e-5, atol=0.0)


# correctness


@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("scoring", ["sigmoid", "softmax"])
@pytest.mark.parametrize(
    "M, E, K, groups, topk_groups",
    [(3, 256, 8, 1, 1), (3, 256, 8, 8, 4), (2, 160, 6, 8, 3), (2, 384, 8, 1, 1), (1, 512, 10, 1, 1)],
    ids=["E256-K8", "E256-K8-G8-of4", "E160-K6-G8-of3", "E384-K8", "E512-K10"],
)
def test_matches_reference(M, E, K, groups, topk_groups, scoring, bias, normalize, device):
    options = {"scoring": scoring, "num_groups": groups, "topk_groups": topk_groups, "normalize": normalize}
    check(make_case(M, E, K, device, bias=bias), {**options, "scaling": 2.5})


def test_bias_chooses_but_does_not_weigh(device):
    case = make_case(1, 4, 2, device)
    case["logits"] = torch.zeros(1, 4, device=device)
    case["bias"] = torch.tensor([0.0, 9.0, 0.0, 5.0], device=device)
    router_topk(**case, **GLM5)
    assert case["ids"].tolist() == [[1, 3]]
    assert case["weights"].tolist() == [[1.25, 1.25]]


def test_group_counts_its_two_best(device):
    """Group 0 holds the single best expert, group 1 the best pair."""
    case = make_case(1, 6, 2, device, bias=False)
    case["logits"] = torch.tensor([[3.0, -3.0, -3.0, 1.0, 1.5, -3.0]], device=device)
    router_topk(**case, **{**GLM5, "num_groups": 2, "topk_groups": 1})
    assert case["ids"].tolist() == [[4, 3]]


# corner


@pytest.mark.parametrize("options", [GLM5, DEEPSEEK_V3], ids=["one-group", "groups"])
def test_ties_go_to_the_lower_id(options, device):
    case = make_case(2, 64, 8, device, bias=False)
    case["logits"] = torch.zeros(2, 64, device=device)
    case["logits"][1, 60:] = 1.0
    check(case, options)
    assert case["ids"][0].tolist() == list(range(8))
    assert case["ids"][1].tolist() == [60, 61, 62, 63, 0, 1, 2, 3]


def test_all_experts_chosen(device):
    check(make_case(2, 12, 12, device), {**GLM5, "num_groups": 3, "topk_groups": 3})


def test_nan_is_chosen_last(device):
    case = make_case(1, 6, 6, device, bias=False)
    case["logits"] = torch.tensor([[0.0, float("nan"), 1.0, float("-inf"), float("nan"), 2.0]], device=device)
    router_topk(**case, **{**GLM5, "normalize": False})
    assert case["ids"].tolist() == [[5, 2, 0, 3, 1, 4]]
    assert case["weights"][0].isnan().tolist() == [False, False, False, False, True, True]


def test_group_with_nan_is_kept_last(device):
    case = make_case(1, 8, 2, device, bias=False)
    case["logits"] = torch.tensor([[9.0, float("nan"), -5.0, -6.0, -4.0, -9.0, -5.0, -5.5]], device=device)
    router_topk(**case, **{**GLM5, "num_groups": 4, "topk_groups": 3})
    assert case["ids"].tolist() == [[4, 2]]


def test_scores_that_vanish_give_zero_weights(device):
    """Without the 1e-20 the weights would be 0 / 0."""
    case = make_case(1, 4, 2, device, bias=False)
    case["logits"] = torch.full((1, 4), -1000.0, device=device)
    router_topk(**case, **GLM5)
    assert case["weights"].tolist() == [[0.0, 0.0]]


# contract


def test_second_call_is_bitwise_equal(device):
    case = make_case(3, 160, 8, device)
    router_topk(**case, **DEEPSEEK_V3)
    first = case["ids"].clone(), case["weights"].clone()
    router_topk(**case, **DEEPSEEK_V3)
    assert torch.equal(first[0], case["ids"])
    assert torch.equal(first[1], case["weights"])


@pytest.mark.parametrize(
    "argument, bad",
    [
        ("logits", {"logits": torch.zeros(2, 64, dtype=torch.float16)}),
        ("logits", {"logits": torch.zeros(2, 640)}),
        ("bias", {"bias": torch.zeros(63)}),
        ("ids", {"ids": torch.zeros(2, 8, dtype=torch.int64)}),
        ("ids", {"ids": torch.zeros(3, 8, dtype=torch.int32)}),
        ("ids", {"num_groups": 32}),
        ("weights", {"weights": torch.zeros(2, 7)}),
        ("scoring", {"scoring": "tanh"}),
        ("num_groups", {"num_groups": 7}),
        ("num_groups", {"num_groups": 64}),
        ("topk_groups", {"topk_groups": 2}),
    ],
    ids=["dtype", "too-many", "bias", "ids-dtype", "ids-rows", "too-few-eligible", "weights", "scoring", "uneven",
         "groups-of-one", "topk-groups"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, bad, device):
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        router_topk(**{**make_case(2, 64, 8, device), **GLM5, **bad})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("options", [GLM5, DEEPSEEK_V3], ids=["glm5", "deepseek-v3"])
@pytest.mark.parametrize("M", [1, 64, 1024], ids=lambda M: f"M{M}")
def test_glm5_shapes(M, options, pdl, device):
    case = make_case(M, 256, 8, device)
    # scores a rounding apart may be ordered differently by the GPU's sigmoid; steps of 1/64 are not
    case["logits"] = (case["logits"] * 64).round() / 64
    case["bias"] = torch.zeros_like(case["bias"])
    check(case, options, pdl=pdl)
