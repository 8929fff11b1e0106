"""Bias, per-head norm and rotation of a fused qkv projection against the same steps in float32."""

import pytest
import torch

from kernels.qkv_rope import qkv_rope, qkv_rope_reference
from kernels.rope import rope_table


def make_case(tokens, heads, key_heads, dim, rope_dim, device, dtype, *, bias=True, norm=True):
    generator = torch.Generator().manual_seed(tokens + heads)
    width = (heads + 2 * key_heads) * dim

    def draw(*shape, centre=0.0):
        return (torch.randn(*shape, generator=generator) + centre).to(device=device, dtype=dtype)

    poison = {
        name: torch.full((tokens, count, dim), float("nan"), device=device, dtype=dtype)
        for name, count in (("query_out", heads), ("key_out", key_heads), ("value_out", key_heads))
    }
    return {
        "qkv": draw(tokens, width + 8)[:, :width],
        "bias": draw(width) if bias else None,
        "query_norm": draw(dim, centre=1.0) if norm else None,
        "key_norm": draw(dim, centre=1.0) if norm else None,
        "eps": 1e-5,
        "positions": torch.randint(0, 64, (tokens,), generator=generator, dtype=torch.int32).to(device),
        "cos_sin": rope_table(64, rope_dim, 1e4, device),
        "interleaved": False,
        **poison,
    }


def expected(case):
    inputs = {name: value for name, value in case.items() if not name.endswith("_out")}
    return qkv_rope_reference(**inputs, num_heads=case["query_out"].shape[1], num_key_heads=case["key_out"].shape[1])


def check(case, tolerance):
    qkv_rope(**case)
    for name, reference in zip(("query_out", "key_out", "value_out"), expected(case), strict=True):
        error = (case[name].float() - reference).norm() / reference.norm()
        assert error < tolerance, f"{name}: {error}"


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "no-norm"])
@pytest.mark.parametrize(("dim", "rope_dim"), [(32, 16), (32, 32), (24, 8)], ids=str)
def test_matches_reference(bias, norm, dim, rope_dim, device, compute_dtype):
    check(make_case(3, 4, 2, dim, rope_dim, device, compute_dtype, bias=bias, norm=norm), 5e-3)


def test_float32(device):
    check(make_case(2, 4, 1, 32, 16, device, torch.float32), 1e-6)


def test_a_second_call_writes_the_same_bits(device, compute_dtype):
    case = make_case(2, 4, 1, 32, 16, device, compute_dtype)
    qkv_rope(**case)
    first = case["query_out"].clone()
    qkv_rope(**case)
    assert torch.equal(first, case["query_out"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv": torch.zeros(2, 64)}, r"argument qkv must be \[M, \(H \+ 2 Hkv\) \* D\] = \[2, 192\]"),
        ({"key_out": torch.zeros(2, 1, 32).double()}, "argument key_out must be contiguous torch.float32"),
        ({"bias": torch.zeros(3)}, r"argument bias must be None or contiguous \[192\]; got \[3\]"),
        ({"key_norm": None}, "arguments query_norm and key_norm must be given both or neither"),
    ],
)
def test_wrong_arguments_are_named(changes, message):
    case = make_case(2, 4, 1, 32, 16, torch.device("cpu"), torch.float32) | changes
    with pytest.raises(ValueError, match=message):
        qkv_rope(**case)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("tokens", [1, 64])
def test_shapes_of_qwen3(tokens, pdl, device):
    case = make_case(tokens, 8, 1, 128, 128, device, torch.bfloat16, bias=False)
    qkv_rope(**case, pdl=pdl)
    check(case, 5e-3)
