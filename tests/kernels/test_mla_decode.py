"""Absorbed MLA decode, splits and their combination together, against softmax attention in float32."""

import pytest
import torch

from kernels.mla_combine import mla_combine, mla_combine_reference
from kernels.mla_decode import mla_decode, mla_decode_reference

NEG_INF = float("-inf")


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    contexts: list[int],
    H: int,
    L: int,
    R: int,
    k: int | None,
    splits: int,
    device: torch.device,
    dtype: torch.dtype,
    slots: int,
    per_sequence: int = 1,
) -> dict[str, object]:
    """`k` positions of each context at random, then -1; None is dense. Partials are poisoned with NaN."""
    generator = torch.Generator().manual_seed(H + slots)
    M = len(contexts)
    selected = None
    if k is not None:
        selected = torch.full((M, k), -1, dtype=torch.int32)
        for m, context in enumerate(contexts):
            chosen = torch.randperm(context, generator=generator)[:k].sort().values
            selected[m, : chosen.numel()] = chosen.to(torch.int32)
        selected = selected.to(device)
    return {
        "query": torch.randn(M, H, L + R + 16, generator=generator).to(device=device, dtype=dtype)[..., 16:],
        "cache": torch.randn(M // per_sequence * slots, L + R, generator=generator).to(device=device, dtype=dtype),
        "selected": selected,
        "context_lengths": torch.tensor(contexts, dtype=torch.int32, device=device),
        "tokens_per_sequence": per_sequence,
        "slots_per_sequence": slots,
        "scale": (L + R) ** -0.5,
        "partial_out": torch.full((M, H, splits, L), float("nan"), device=device),
        "partial_lse": torch.full((M, H, splits), float("nan"), device=device),
    }


def run(case: dict[str, object], *, pdl: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kernels' output, written into a slice of a wider tensor, and the reference's."""
    mla_decode(**case, pdl=pdl)
    M, H, _, L = case["partial_out"].shape
    wide = torch.full((M, H, L + 8), float("nan"), dtype=case["query"].dtype, device=case["query"].device)
    out = wide[..., :L]
    mla_combine(partial_out=case["partial_out"], partial_lse=case["partial_lse"], out=out, pdl=pdl)
    assert wide[..., L:].isnan().all()
    arguments = {name: value for name, value in case.items() if not name.startswith("partial")}
    return out, mla_decode_reference(**arguments, latent_dim=L)


# correctness: the weights of the softmax are rounded to the cache's dtype before the second product


@pytest.mark.parametrize("k", [None, 48], ids=["dense", "k48"])
@pytest.mark.parametrize(
    "contexts, H, L, R, splits",
    [([90], 8, 128, 64, 3), ([1, 33, 64], 2, 64, 16, 2), ([77], 20, 64, 32, 1)],
    ids=["M1-H8-L128-R64-splits3", "M3-H2-L64-R16-splits2", "M1-H20-L64-R32-splits1"],
)
def test_matches_reference(contexts, H, L, R, splits, k, device, compute_dtype):
    out, expected = run(make_case(contexts, H, L, R, k, splits, device, compute_dtype, slots=100))
    assert relative_error(out, expected) < 6e-3


def test_glm5_row_of_one_token(device, compute_dtype):
    out, expected = run(make_case([100], 8, 512, 64, 64, 2, device, compute_dtype, slots=128))
    assert relative_error(out, expected) < 6e-3


def test_tokens_of_one_sequence_share_its_cache(device, compute_dtype):
    case = make_case([30, 31, 32, 7, 8, 9], 4, 64, 16, None, 2, device, compute_dtype, slots=40, per_sequence=3)
    out, expected = run(case)
    assert relative_error(out, expected) < 6e-3


def test_selecting_everything_equals_dense(device, compute_dtype):
    case = make_case([64], 8, 64, 16, 64, 2, device, compute_dtype, slots=64)
    sparse, _ = run(case)
    dense, _ = run({**case, "selected": None})
    assert torch.equal(sparse, dense)


def test_log_sum_exp_of_each_split(device):
    case = make_case([64], 2, 64, 16, None, 2, device, torch.float16, slots=64)
    run(case)
    scores = case["scale"] * (case["query"][0].float() @ case["cache"].float().T)
    expected = torch.stack((scores[:, :32].logsumexp(-1), scores[:, 32:].logsumexp(-1)), dim=-1)
    assert torch.allclose(case["partial_lse"][0], expected, atol=2e-3)


# corner


def test_odd_sizes(device, compute_dtype):
    out, expected = run(make_case([53, 61], 3, 80, 24, 37, 3, device, compute_dtype, slots=69))
    assert relative_error(out, expected) < 6e-3


def test_more_splits_than_tiles_leaves_empty_splits(device, compute_dtype):
    case = make_case([5], 8, 64, 16, None, 7, device, compute_dtype, slots=256)
    out, expected = run(case)
    assert relative_error(out, expected) < 6e-3
    assert (case["partial_lse"][..., 1:] == NEG_INF).all()
    assert (case["partial_out"][..., 1:, :] == 0).all()


def test_absent_positions_may_stand_anywhere(device, compute_dtype):
    case = make_case([90], 4, 64, 16, 70, 2, device, compute_dtype, slots=96)
    case["selected"][0, ::3] = -1
    case["selected"][0, :32] = -1
    out, expected = run(case)
    assert relative_error(out, expected) < 6e-3


def test_no_key_at_all_gives_zeros(device, compute_dtype):
    case = make_case([9, 0], 4, 64, 16, 8, 2, device, compute_dtype, slots=16)
    case["selected"][0] = -1
    for selected in (case["selected"], None):
        out, expected = run({**case, "selected": selected})
        assert (out[1] == 0).all()
        assert (expected[1] == 0).all()
        assert not out.isnan().any()


def test_stale_selection_beyond_the_context_and_garbage_are_not_read(device, compute_dtype):
    case = make_case([40], 4, 64, 16, 32, 2, device, compute_dtype, slots=64)
    case["selected"][0, -5:] = torch.arange(50, 55, device=device, dtype=torch.int32)
    case["cache"][40:] = float("nan")
    out, _ = run(case)
    assert not out.isnan().any()
    dense, _ = run({**case, "selected": None})
    assert not dense.isnan().any()


def test_large_scores_do_not_overflow(device):
    case = make_case([64], 4, 64, 16, None, 2, device, torch.float16, slots=64)
    case["scale"] = 100.0
    out, expected = run(case)
    assert relative_error(out, expected) < 6e-3


@pytest.mark.parametrize("splits", [1, 7, 16, 33])
def test_combine_alone(splits, device):
    generator = torch.Generator().manual_seed(splits)
    partial_out = torch.randn(2, 3, splits, 80, generator=generator).to(device)
    partial_lse = (20 * torch.randn(2, 3, splits, generator=generator)).to(device)
    partial_lse[0, 0, ::2] = NEG_INF
    partial_lse[1, 1] = NEG_INF
    out = torch.full((2, 3, 80), float("nan"), device=device)
    mla_combine(partial_out=partial_out, partial_lse=partial_lse, out=out)
    assert relative_error(out, mla_combine_reference(partial_out, partial_lse)) < 1e-5
    assert (out[1, 1] == 0).all()


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    case = make_case([90, 64], 8, 64, 16, 48, 3, device, compute_dtype, slots=96)
    first, _ = run(case)
    partials = case["partial_out"].clone(), case["partial_lse"].clone()
    second, _ = run(case)
    assert torch.equal(first, second)
    assert torch.equal(partials[0], case["partial_out"])
    assert torch.equal(partials[1], case["partial_lse"])
    assert not partials[0].isnan().any()


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("query", lambda case: case["query"][0]),
        ("cache", lambda case: case["cache"][:, 1:]),
        ("cache", lambda case: case["cache"].double()),
        ("selected", lambda case: case["selected"].long()),
        ("context_lengths", lambda case: case["context_lengths"][:1]),
        ("tokens_per_sequence", lambda case: 0),
        ("slots_per_sequence", lambda case: 65),
        ("partial_out", lambda case: case["partial_out"].half()),
        ("partial_out", lambda case: torch.empty(2, 4, 2, 80, device=case["query"].device)),
        ("partial_lse", lambda case: case["partial_lse"][:, :, :1]),
    ],
    ids=["query-2d", "cache-row", "cache-dtype", "selected-int64", "contexts-size", "tokens-per-sequence",
         "too-many-slots", "partial-dtype", "no-rope-left", "lse-size"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case([40, 41], 4, 64, 16, 32, 2, device, compute_dtype, slots=64)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        mla_decode(**{**case, argument: make_bad(case)})


@pytest.mark.parametrize(
    "argument, shape",
    [("out", (2, 3, 16, 1)), ("partial_out", (2, 3, 4, 17)), ("partial_lse", (2, 3, 5))],
    ids=["out-4d", "last-dim", "splits"],
)
def test_wrong_argument_of_combine_is_named(argument, shape, device):
    case = {
        "partial_out": torch.zeros(2, 3, 4, 16, device=device),
        "partial_lse": torch.zeros(2, 3, 4, device=device),
        "out": torch.zeros(2, 3, 16, device=device),
    }
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        mla_combine(**{**case, argument: torch.zeros(shape, device=device)})


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("k", [None, 2048], ids=["dense", "k2048"])
@pytest.mark.parametrize(
    "contexts, H, splits",
    [([4096], 8, 64), ([4096] * 64, 8, 3), ([1, 100, 2048, 4096], 64, 16)],
    ids=["M1-H8", "M64-H8", "M4-H64-ragged"],
)
def test_glm5(contexts, H, splits, k, pdl, device, compute_dtype):
    case = make_case(contexts, H, 512, 64, k, splits, device, compute_dtype, slots=4096)
    out, expected = run(case, pdl=pdl)
    assert relative_error(out, expected) < 6e-3
