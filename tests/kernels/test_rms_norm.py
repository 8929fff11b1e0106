"""RMSNorm with and without the residual addition, against float32."""

import pytest
import torch

from kernels.rms_norm import rms_norm, rms_norm_reference

EPS = 1e-5


def relative_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    return float((out.float() - ref.float()).norm() / ref.float().norm())


def make_case(
    M: int, D: int, device: torch.device, dtype: torch.dtype, *, residual: bool, scale: float = 1.0
) -> dict[str, torch.Tensor | None]:
    """Rows that are slices of a wider tensor, as behind the fused latent projection, and poisoned outputs."""
    generator = torch.Generator().manual_seed(M * 1000 + D)
    rows = torch.randn(M, D + 64, generator=generator) * scale
    nan = torch.full((M, D), float("nan"), dtype=dtype, device=device)
    return {
        "x": rows.to(device=device, dtype=dtype)[:, 16 : 16 + D],
        "weight": (1 + 0.2 * torch.randn(D, generator=generator)).to(device=device, dtype=dtype),
        "out": nan.clone(),
        "residual": (torch.randn(M, D, generator=generator) * scale).to(device=device, dtype=dtype)
        if residual
        else None,
        "residual_out": nan.clone() if residual else None,
    }


def reference(case: dict[str, torch.Tensor | None]) -> tuple[torch.Tensor, torch.Tensor]:
    return rms_norm_reference(case["x"], case["weight"], EPS, case["residual"])


# correctness


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
@pytest.mark.parametrize(
    "M, D", [(1, 6144), (3, 2048), (5, 512), (2, 192)], ids=["M1-D6144", "M3-D2048", "M5-D512", "M2-D192"]
)
def test_matches_reference(M, D, residual, device, compute_dtype):
    case = make_case(M, D, device, compute_dtype, residual=residual)
    rms_norm(**case, eps=EPS)
    expected, h = reference(case)
    assert relative_error(case["out"], expected) < 4e-3
    if residual:
        assert torch.equal(case["residual_out"].float(), h)


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_float32_is_exact_to_rounding(residual, device):
    case = make_case(2, 512, device, torch.float32, residual=residual)
    rms_norm(**case, eps=EPS)
    assert relative_error(case["out"], reference(case)[0]) < 1e-6


def test_normalises_the_rounded_sum(device):
    """In float16 2048 + 0.5 rounds to 2048: the output must not see the half."""
    x = torch.full((1, 2), 0.5, dtype=torch.float16, device=device)
    residual = torch.tensor([[2048.0, 0.0]], dtype=torch.float16, device=device)
    out = torch.full((1, 2), float("nan"), device=device)
    residual_out = torch.full_like(x, float("nan"))
    weight = torch.ones(2, device=device)
    rms_norm(x=x, weight=weight, eps=0.0, out=out, residual=residual, residual_out=residual_out)
    assert residual_out.tolist() == [[2048.0, 0.5]]
    root = ((2048.0**2 + 0.25) / 2) ** 0.5
    torch.testing.assert_close(out.cpu(), torch.tensor([[2048.0 / root, 0.5 / root]]), rtol=2e-7, atol=0.0)


# corner


@pytest.mark.parametrize("D", [1, 7, 129, 5000], ids=lambda D: f"D{D}")
def test_odd_sizes(D, device, compute_dtype):
    case = make_case(2, D, device, compute_dtype, residual=True)
    rms_norm(**case, eps=EPS)
    assert relative_error(case["out"], reference(case)[0]) < 4e-3


def test_zero_row_stays_zero(device, compute_dtype):
    case = make_case(2, 64, device, compute_dtype, residual=False, scale=0.0)
    rms_norm(**case, eps=EPS)
    assert torch.count_nonzero(case["out"]) == 0


def test_squares_do_not_overflow_sixteen_bits(device, compute_dtype):
    case = make_case(2, 512, device, compute_dtype, residual=False, scale=8000.0)
    rms_norm(**case, eps=EPS)
    assert relative_error(case["out"], reference(case)[0]) < 4e-3


def test_outputs_may_be_strided(device, compute_dtype):
    case = make_case(3, 64, device, compute_dtype, residual=True)
    wide = torch.full((3, 2, 64), 77.0, dtype=compute_dtype, device=device)
    case["out"] = wide[:, 1]
    rms_norm(**case, eps=EPS)
    assert relative_error(case["out"], reference(case)[0]) < 4e-3
    assert (wide[:, 0] == 77.0).all()


def test_mixed_dtypes(device):
    """Engines keep some norm weights in float32."""
    case = make_case(2, 128, device, torch.float16, residual=True)
    case["weight"] = case["weight"].float()
    case["residual"], case["residual_out"] = case["residual"].float(), case["residual_out"].float()
    rms_norm(**case, eps=EPS)
    expected, h = reference(case)
    assert relative_error(case["out"], expected) < 1e-3
    assert torch.equal(case["residual_out"], h)


# contract


@pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])
def test_second_call_is_bitwise_equal(residual, device, compute_dtype):
    case = make_case(3, 192, device, compute_dtype, residual=residual)
    rms_norm(**case, eps=EPS)
    outputs = [case["out"], *([case["residual_out"]] if residual else [])]
    first = [tensor.clone() for tensor in outputs]
    rms_norm(**case, eps=EPS)
    assert all(torch.equal(before, after) for before, after in zip(first, outputs, strict=True))


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("x", lambda case: case["x"][0]),
        ("x", lambda case: case["x"].to(torch.float64)),
        ("x", lambda case: case["x"].t().contiguous().t()),
        ("x", lambda case: case["x"].new_zeros((1, 70_000))),
        ("weight", lambda case: case["weight"][1:]),
        ("weight", lambda case: case["weight"].int()),
        ("out", lambda case: case["out"][:1]),
        ("residual", lambda case: case["residual"][:, 1:]),
        ("residual_out", lambda case: case["residual_out"].int()),
        ("residual_out", lambda case: None),
        ("residual_out", lambda case: case["residual"]),
    ],
    ids=["1d", "float64", "column-major", "too-long", "weight-size", "weight-dtype", "out-rows", "residual-dim",
         "residual-out-dtype", "residual-out-absent", "in-place"],
)  # fmt: skip
def test_wrong_argument_is_named(argument, make_bad, device, compute_dtype):
    case = make_case(2, 64, device, compute_dtype, residual=True)
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        rms_norm(**{**case, argument: make_bad(case)}, eps=EPS)


def test_negative_eps_is_refused(device, compute_dtype):
    case = make_case(2, 64, device, compute_dtype, residual=True)
    with pytest.raises(ValueError, match="argument eps must be at least 0; got -1"):
        rms_norm(**case, eps=-1.0)


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M, D", [(1, 6144), (64, 6144), (1024, 6144), (64, 2048)], ids=str)
def test_glm5_shapes(M, D, pdl, device, compute_dtype):
    case = make_case(M, D, device, compute_dtype, residual=True)
    rms_norm(**case, eps=EPS, pdl=pdl)
    assert relative_error(case["out"], reference(case)[0]) < 4e-3
