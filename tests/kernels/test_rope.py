"""RoPE of query and key heads against the pairwise rotation in float32."""

import math

import pytest
import torch

from kernels.rope import rope, rope_reference, rope_table

SENTINEL = 77.0


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    M: int, H: int, Hk: int, Dq: int, Dk: int, R: int, device: torch.device, dtype: torch.dtype, positions: int = 96
) -> dict[str, torch.Tensor]:
    """Inputs whose rows are slices of wider tensors, as they are behind a projection, and poisoned outputs."""
    generator = torch.Generator().manual_seed(M * 1000 + H)
    query = torch.randn(M, H, Dq + 16, generator=generator).to(device=device, dtype=dtype)[..., 16:]
    key = torch.randn(M, Hk * Dk + 8, generator=generator).to(device=device, dtype=dtype)[:, 8:].view(M, Hk, Dk)
    return {
        "query": query,
        "key": key,
        "positions": torch.randint(0, positions, (M,), generator=generator, dtype=torch.int32).to(device),
        "cos_sin": rope_table(positions, R, 1e6, device),
        "query_out": torch.full((M, H, Dq + 32), SENTINEL, dtype=dtype, device=device)[..., 32:],
        "key_out": torch.full((M, Hk, Dk), SENTINEL, dtype=dtype, device=device),
    }


def reference(case: dict[str, torch.Tensor], interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return rope_reference(case["query"], case["key"], case["positions"], case["cos_sin"], interleaved=interleaved)


# correctness


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "half-split"])
@pytest.mark.parametrize(
    "M, H, Hk, Dq, Dk, R",
    [(1, 8, 1, 64, 64, 64), (3, 4, 2, 128, 128, 64), (2, 3, 1, 96, 48, 32), (2, 2, 2, 256, 256, 256)],
    ids=["M1-H8-D64-R64", "M3-H4-Hk2-D128-R64", "M2-H3-Dq96-Dk48-R32", "M2-H2-D256-R256"],
)
def test_matches_reference(M, H, Hk, Dq, Dk, R, interleaved, device, compute_dtype):
    case = make_case(M, H, Hk, Dq, Dk, R, device, compute_dtype)
    rope(**case, interleaved=interleaved)
    for out, ref in zip((case["query_out"], case["key_out"]), reference(case, interleaved), strict=True):
        assert relative_error(out, ref) < 5e-3


def test_float32_is_exact_to_rounding(device):
    case = make_case(4, 2, 1, 64, 64, 64, device, torch.float32)
    rope(**case, interleaved=True)
    query_ref, _ = reference(case, True)
    assert relative_error(case["query_out"], query_ref) < 1e-6


def test_known_rotation(device):
    """Position 1 with frequency 1 turns (1, 0) into (cos 1, sin 1), in both layouts."""
    table = rope_table(2, 2, 10.0, device)
    query = torch.tensor([[[1.0, 0.0, 5.0, 6.0]]], device=device)
    out, key_out = torch.full_like(query, SENTINEL), torch.full_like(query, SENTINEL)
    positions = torch.tensor([1], dtype=torch.int32, device=device)
    for interleaved in (True, False):
        rope(query=query, key=query, positions=positions, cos_sin=table, query_out=out, key_out=key_out,
             interleaved=interleaved)  # fmt: skip
        expected = torch.tensor([math.cos(1), math.sin(1), 5.0, 6.0])
        assert torch.allclose(out.cpu().flatten(), expected)


# corner


def test_position_zero_copies(device, compute_dtype):
    case = make_case(2, 2, 1, 64, 64, 64, device, compute_dtype)
    case["positions"].zero_()
    rope(**case, interleaved=True)
    assert torch.equal(case["query_out"], case["query"])
    assert torch.equal(case["key_out"], case["key"])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_values_beyond_the_rotation_are_copied_even_if_infinite(device, compute_dtype):
    case = make_case(2, 2, 1, 64, 64, 32, device, compute_dtype)
    case["query"][..., 40] = float("inf")
    rope(**case, interleaved=False)
    assert torch.equal(case["query_out"][..., 32:], case["query"][..., 32:])


def test_table_is_accurate_at_the_last_position():
    table = rope_table(202752, 64, 1e6, "cpu")
    for pair in (0, 7, 31):
        angle = 202751 * 1e6 ** (-2 * pair / 64)
        assert table[-1, 0, pair].item() == pytest.approx(math.cos(angle), abs=1e-6)
        assert table[-1, 1, pair].item() == pytest.approx(math.sin(angle), abs=1e-6)


def test_table_takes_given_frequencies():
    frequencies = torch.tensor([0.5, 0.25])
    table = rope_table(3, 4, 1e6, "cpu", inv_freq=frequencies)
    assert torch.allclose(table[2], torch.stack(((2 * frequencies).cos(), (2 * frequencies).sin())))


# contract


def test_second_call_is_bitwise_equal_and_surroundings_are_untouched(device, compute_dtype):
    case = make_case(3, 4, 1, 64, 64, 64, device, compute_dtype)
    rope(**case, interleaved=True)
    first = case["query_out"].clone(), case["key_out"].clone()
    rope(**case, interleaved=True)
    assert torch.equal(first[0], case["query_out"])
    assert torch.equal(first[1], case["key_out"])
    whole = case["query_out"].as_strided((3, 4, 96), (4 * 96, 96, 1), 0)
    assert (whole[..., :32] == SENTINEL).all()


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("query", lambda case: case["query"][0]),
        ("key", lambda case: case["key"][:1]),
        ("positions", lambda case: case["positions"].long()),
        ("cos_sin", lambda case: case["cos_sin"].double()),
        ("query_out", lambda case: case["query_out"][..., :32]),
        ("key_out", lambda case: case["key_out"].double()),
        ("query", lambda case: case["query"].transpose(1, 2)[:, :64].contiguous().transpose(1, 2)),
    ],
    ids=["query-2d", "key-rows", "positions-int64", "table-float64", "out-shape", "out-dtype", "last-dim-strided"],
)
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 4, 1, 64, 64, 64, device, compute_dtype)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        rope(**{**case, argument: make_bad(case)}, interleaved=True)


def test_too_long_rotation_is_named(device, compute_dtype):
    case = make_case(2, 4, 1, 64, 64, 64, device, compute_dtype)
    case["cos_sin"] = rope_table(8, 128, 1e6, device)
    with pytest.raises(ValueError, match="argument cos_sin must rotate at most the head's 64 values; got R = 128"):
        rope(**case, interleaved=True)


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M", [1, 64, 1024])
def test_glm5(M, pdl, device, compute_dtype):
    case = make_case(M, 8, 1, 64, 64, 64, device, compute_dtype, positions=202752)
    rope(**case, interleaved=True, pdl=pdl)
    for out, ref in zip((case["query_out"], case["key_out"]), reference(case, True), strict=True):
        assert relative_error(out, ref) < 5e-3
