"""Dense, NVFP4 and FP8 matrix products against float32 on the dequantised weight."""

import pytest
import torch

from kernels.fp8_block import random_fp8_block
from kernels.gemm import gemm, gemm_reference, gemm_tiles
from kernels.gemv import gemv_tiles
from kernels.nvfp4 import E2M1_MAGNITUDES, Nvfp4Tensor, dequantize_nvfp4, pack_codes, random_nvfp4
from kernels.weight_tile import Weight

FORMATS = ("dense", "nvfp4", "fp8_block")

TOLERANCE = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 5e-3}
"""By out's dtype. Products are exact in float32, so only additions (which tensor cores truncate) and out's rounding
differ; the interpreter comes to 3e-7."""


def random_weight(weight_format: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Weight:
    generator = torch.Generator(device).manual_seed(1)
    std = shape[-1] ** -0.5
    if weight_format == "nvfp4":
        return random_nvfp4(shape, std=std, generator=generator, device=device)
    if weight_format == "fp8_block":
        return random_fp8_block(shape, std=std, generator=generator, device=device)
    return (torch.randn(shape, generator=generator, device=device) * std).to(dtype)


def random_rows(num_rows: int, num_columns: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Rows of a wider matrix, as a slice of a fused projection is."""
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn(num_rows, num_columns + 8, generator=generator, device=device).to(dtype)[:, :num_columns]


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return ((out.to(expected.dtype) - expected).norm() / expected.norm()).item()


def check(x: torch.Tensor, weight: Weight, out_dtype: torch.dtype) -> None:
    """Poison a row-strided out, compute twice, and compare: values, untouched padding, equal bits."""
    expected = gemm_reference(x=x, weight=weight)
    results = []
    for _ in range(2):
        padded = torch.full((x.shape[0], expected.shape[1] + 3), float("nan"), dtype=out_dtype, device=x.device)
        out = padded[:, : expected.shape[1]]
        gemm(x=x, weight=weight, out=out)
        assert padded[:, expected.shape[1] :].isnan().all(), "gemm wrote beyond out"
        results.append(out)
    assert relative_error(results[0], expected) < TOLERANCE[out_dtype]
    assert torch.equal(results[0], results[1]), "a second call gave other bits"


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 64, 256), (2, 24, 512), (4, 40, 128), (5, 32, 128), (16, 48, 256), (33, 80, 128), (70, 64, 256)],
    ids=str,
)
def test_products(weight_format, m, n, k, device, compute_dtype):
    weight = random_weight(weight_format, (n, k), compute_dtype, device)
    check(random_rows(m, k, compute_dtype, device), weight, torch.float32)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("m", [1, 3, 17], ids=lambda v: f"M{v}")
@pytest.mark.parametrize(("n", "k"), [(1, 16), (37, 48), (129, 80), (19, 400)], ids=str)
def test_odd_outputs_and_inputs_that_fill_no_tile(weight_format, m, n, k, device, compute_dtype):
    weight = random_weight(weight_format, (n, k), compute_dtype, device)
    check(random_rows(m, k, compute_dtype, device), weight, torch.float32)


@pytest.mark.parametrize("m", [1, 6], ids=lambda v: f"M{v}")
def test_dense_inputs_of_any_number(m, device, compute_dtype):
    weight = random_weight("dense", (21, 53), compute_dtype, device)
    check(random_rows(m, 53, compute_dtype, device), weight, torch.float32)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("m", [2, 20], ids=lambda v: f"M{v}")
def test_float32_activations(weight_format, m, device):
    weight = random_weight(weight_format, (40, 272), torch.float32, device)
    check(random_rows(m, 272, torch.float32, device), weight, torch.float32)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("m", [1, 9], ids=lambda v: f"M{v}")
def test_out_in_the_activations_dtype(weight_format, m, device, compute_dtype):
    weight = random_weight(weight_format, (40, 128), compute_dtype, device)
    check(random_rows(m, 128, compute_dtype, device), weight, compute_dtype)


def test_every_code_times_every_scale_is_exact(device, compute_dtype):
    # Row n has block scale n + 1, its inputs run through all bytes; one-hot activations read each weight out.
    codes = torch.arange(256, dtype=torch.uint8, device=device).expand(126, 256).contiguous()
    scales = torch.arange(1, 127, dtype=torch.uint8, device=device)[:, None].expand(126, 32).contiguous()
    weight = Nvfp4Tensor(
        codes=codes, block_scales=scales.view(torch.float8_e4m3fn), tensor_scale=torch.tensor(1.0, device=device)
    )
    out = torch.full((512, 126), float("nan"), device=device)
    gemm(x=torch.eye(512, dtype=compute_dtype, device=device), weight=weight, out=out)
    assert torch.equal(out, dequantize_nvfp4(weight).T)


def test_every_finite_fp8_value_is_exact(device, compute_dtype):
    weight = random_weight("fp8_block", (128, 256), compute_dtype, device)
    values = torch.arange(256, dtype=torch.uint8, device=device).expand(128, 256).contiguous()
    values[:, 0x7F] = values[:, 0xFF] = 0
    weight.values.view(torch.uint8).copy_(values)
    weight.block_scales.copy_(torch.tensor([[1.0, 3.0]]))
    out = torch.full((256, 128), float("nan"), device=device)
    gemm(x=torch.eye(256, dtype=compute_dtype, device=device), weight=weight, out=out)
    assert torch.equal(out, gemm_reference(x=torch.eye(256, device=device), weight=weight))


def test_codes_of_one_token_match_the_reference_value_by_value(device, compute_dtype):
    # A single one selects one input: a swapped nibble, word or block shows up as a wrong weight.
    codes = torch.arange(32, dtype=torch.uint8, device=device) % 16
    weight = Nvfp4Tensor(
        codes=pack_codes(codes)[None],
        block_scales=torch.tensor([[1.0, 2.0]], device=device).to(torch.float8_e4m3fn),
        tensor_scale=torch.tensor(0.5, device=device),
    )
    expected = [s * m * scale * 0.5 for scale in (1, 2) for s in (1, -1) for m in E2M1_MAGNITUDES]
    for k in range(32):
        x = torch.zeros(1, 32, dtype=compute_dtype, device=device)
        x[0, k] = 1.0
        out = torch.full((1, 1), float("nan"), device=device)
        gemm(x=x, weight=weight, out=out)
        assert out.item() == expected[k]


@pytest.mark.parametrize("m", [1, 4, 8], ids=lambda v: f"M{v}")
@pytest.mark.parametrize(
    ("n", "k"),
    [(9, 256), (33, 1536), (5, 6144), (3, 10240)],
    ids=["row-pairs", "K1536", "K6144", "more-than-registers"],
)
def test_nvfp4_of_few_tokens(n, k, m, device, compute_dtype):
    """Inputs of one chunk, of three, and of more than a thread loads ahead; N fills no program."""
    weight = random_weight("nvfp4", (n, k), compute_dtype, device)
    check(random_rows(m, k, compute_dtype, device), weight, torch.float32)


@pytest.mark.parametrize("size", [1e-19, 1.0, 1e9], ids=str)
def test_nvfp4_of_small_and_large_activations(size, device):
    """Codes are worked on as multiples of 2^-126: products must not fall among the subnormal numbers."""
    weight = random_weight("nvfp4", (16, 256), torch.float32, device)
    check(random_rows(1, 256, torch.float32, device) * size, weight, torch.float32)


def test_nvfp4_scales_may_be_negative(device, compute_dtype):
    weight = random_weight("nvfp4", (16, 256), compute_dtype, device)
    weight.block_scales.view(torch.uint8)[:, ::3] |= 0x80
    check(random_rows(2, 256, compute_dtype, device), weight, torch.float32)


@pytest.mark.parametrize("n", [160, 256, 2048, 2624, 4096, 6144, 19360])
@pytest.mark.parametrize("m", [1, 16, 64, 1024])
def test_tiles_cover_every_sm_where_the_shape_allows(m, n):
    tiles = gemm_tiles(m, n, 6144, "nvfp4")
    programs = -(-m // tiles.block_m) * -(-n // tiles.block_n)
    assert programs >= 256 or tiles.block_n == 16
    assert -(-n // gemv_tiles(n, 6144).block_n) >= min(n, 512)


def arguments(**changes):
    x = torch.zeros(3, 32, dtype=torch.float16)
    return {"x": x, "weight": torch.zeros(8, 32, dtype=torch.float16), "out": torch.zeros(3, 8), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(32)}, r"argument x must be \[M, K\] with a contiguous last dim; got \[32\]"),
        ({"x": torch.zeros(32, 3, dtype=torch.float16).T}, "argument x must be .* contiguous last dim; got .*strides"),
        ({"x": torch.zeros(3, 32, dtype=torch.int32)}, "argument x must be one of .*; got torch.int32"),
        ({"out": torch.zeros(3, 8, dtype=torch.int32)}, "argument out must be one of .*; got torch.int32"),
        ({"out": torch.zeros(3, 9)}, r"argument out must be \[M, N\] = \[3, 8\] .*; got \[3, 9\]"),
        ({"weight": torch.zeros(8, 32)}, "argument weight must be torch.float16 like x; got torch.float32"),
        ({"weight": torch.zeros(2, 8, 32)}, r"argument weight must be \[N, K\]; got \[2, 8, 32\]"),
        ({"weight": torch.zeros(8, 48).half()}, r"argument weight must be \[N, K\] with K = 32 like x; got \[8, 48\]"),
        ({"weight": torch.zeros(32, 8).half().T}, r"argument weight must be contiguous; got strides \(1, 8\)"),
        (
            {"weight": random_nvfp4((8, 48), std=1.0, generator=None, device="cpu")},
            r"argument weight must be \[N, K\] with K = 32 like x; got \[8, 48\]",
        ),
    ],
    ids=["x-dims", "x-layout", "x-dtype", "out-dtype", "out-shape", "dtype", "dims", "inputs", "layout", "nvfp4"],
)
def test_errors_name_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        gemm(**arguments(**changes))


def test_parts_of_a_quantised_weight_must_be_contiguous():
    weight = random_nvfp4((8, 32), std=1.0, generator=None, device="cpu")
    strided = Nvfp4Tensor(
        codes=weight.codes, block_scales=weight.block_scales.T.contiguous().T, tensor_scale=weight.tensor_scale
    )
    with pytest.raises(ValueError, match=r"argument weight.block_scales must be contiguous; got strides \(1, 8\)"):
        gemm(**arguments(weight=strided))


@pytest.mark.gpu
@pytest.mark.parametrize("m", [1, 4, 16, 64, 1024], ids=lambda v: f"M{v}")
@pytest.mark.parametrize(
    ("weight_format", "n", "k"),
    [
        ("dense", 2048, 2048),
        ("dense", 2624, 6144),
        ("dense", 160, 6144),
        ("dense", 256, 6144),
        ("dense", 19360, 6144),
        ("nvfp4", 3072, 6144),
        ("nvfp4", 6144, 1536),
        ("fp8_block", 2048, 2048),
        ("fp8_block", 2624, 6144),
    ],
    ids=str,
)
def test_shapes_of_glm5(weight_format, n, k, m, device):
    weight = random_weight(weight_format, (n, k), torch.bfloat16, device)
    x = random_rows(m, k, torch.bfloat16, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    check(x, weight, torch.float32)
    check(x, weight, torch.bfloat16)
