"""NVFP4 storage: every byte and scale, modelopt's rounding, the swizzled scale layout, and slices of ranks."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.nvfp4 import (
    E2M1_MAGNITUDES,
    Nvfp4Tensor,
    dequantize_nvfp4,
    pack_codes,
    quantize_nvfp4,
    random_nvfp4,
    swizzle_block_scales,
    unpack_codes,
    unswizzle_block_scales,
)

properties = settings(deadline=None, max_examples=60)


def finite_scales() -> torch.Tensor:
    """Every E4M3 number that a block scale can be: 2^-9 to 448."""
    return torch.arange(1, 127, dtype=torch.uint8).view(torch.float8_e4m3fn)


def blocks(first_values: list[float]) -> torch.Tensor:
    """One row for each value: a block that holds it beside a 6, so that its block scale is 1 at tensor scale 1."""
    rows = torch.zeros(len(first_values), 16)
    rows[:, 0] = torch.tensor(first_values)
    rows[:, 1] = 6.0
    return rows


def sample(num_rows: int, num_inputs: int, *, seed: int, spread: float) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    row_scale = torch.exp(spread * torch.randn(num_rows, num_inputs // 16, 1, generator=generator))
    return (torch.randn(num_rows, num_inputs // 16, 16, generator=generator) * row_scale).flatten(1)


def test_packing_is_the_identity_on_all_bytes():
    packed = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(pack_codes(unpack_codes(packed)), packed)


def test_even_inputs_are_in_the_low_nibble():
    assert pack_codes(torch.tensor([[1, 2, 3, 15]], dtype=torch.uint8)).tolist() == [[0x21, 0xF3]]


def test_all_codes_and_all_scales_dequantise_to_their_product():
    scales = finite_scales()
    codes = pack_codes(torch.arange(16, dtype=torch.uint8).expand(len(scales), 16))
    weight = dequantize_nvfp4(Nvfp4Tensor(codes=codes, block_scales=scales[:, None], tensor_scale=torch.tensor(1.0)))
    for row, scale in enumerate(scales.float().tolist()):
        assert weight[row].tolist() == [sign * m * scale for sign in (1, -1) for m in E2M1_MAGNITUDES]


def test_products_of_code_and_scale_are_exact_in_16_bits():
    products = torch.tensor(E2M1_MAGNITUDES)[:, None] * finite_scales().float()
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(products.to(dtype).float(), products)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)],
    ids=str,
)
@pytest.mark.parametrize("sign", [1, -1])
def test_ties_go_to_the_even_code(value, rounded, sign):
    tie = torch.tensor(sign * value)
    near = [torch.nextafter(tie, torch.tensor(0.0)), tie, torch.nextafter(tie, torch.tensor(sign * 9.0))]
    rows = blocks([v.item() for v in near])
    got = dequantize_nvfp4(quantize_nvfp4(rows, torch.tensor(1.0)))[:, 0].abs().tolist()
    lower = max(m for m in E2M1_MAGNITUDES if m < value)
    upper = min(m for m in E2M1_MAGNITUDES if m > value)
    assert got == [lower, rounded, upper]


def test_a_block_of_zeros_has_scale_one_and_a_matrix_of_zeros_tensor_scale_one():
    rows = blocks([0.0, 0.0])
    rows[1] = 0.0
    assert quantize_nvfp4(rows).block_scales[1].float().item() == 1.0
    zeros = quantize_nvfp4(torch.zeros(2, 32))
    assert zeros.tensor_scale.item() == 1.0
    assert torch.equal(dequantize_nvfp4(zeros), torch.zeros(2, 32))


def test_block_scales_are_clamped_to_what_e4m3_holds():
    rows = torch.zeros(2, 16)
    rows[0, 0], rows[1, 0] = 1e6, 1e-6
    assert quantize_nvfp4(rows, torch.tensor(1.0)).block_scales.flatten().float().tolist() == [448.0, 2.0**-9]
    assert dequantize_nvfp4(quantize_nvfp4(rows, torch.tensor(1.0)))[:, 0].tolist() == [6 * 448.0, 0.0]


def test_the_largest_value_gets_the_largest_scale_and_code():
    weight = quantize_nvfp4(sample(8, 64, seed=0, spread=0.5))
    assert weight.block_scales.float().max().item() == 448.0
    values = sample(8, 64, seed=0, spread=0.5)
    assert dequantize_nvfp4(weight).abs().max().item() == pytest.approx(values.abs().max().item(), rel=1e-6)


@properties
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 1.0, 3.0]), columns=st.sampled_from([1, 3, 5]))
def test_each_value_is_rounded_to_a_nearest_magnitude(seed, spread, columns):
    values = sample(3, 16 * columns, seed=seed, spread=spread)
    weight = quantize_nvfp4(values)
    step = weight.block_scales.float()[..., None] * weight.tensor_scale
    scaled = (values.view(3, columns, 16) / step).abs()
    got = (dequantize_nvfp4(weight).view(3, columns, 16) / step).abs()
    grid = torch.tensor(E2M1_MAGNITUDES)
    nearest = (scaled[..., None] - grid).abs().amin(dim=-1)
    # rounding of the two divisions moves a value by a few units in the last place
    assert torch.all((scaled - got).abs() <= nearest + 1e-5)


@properties
@given(seed=st.integers(0, 2**32 - 1), spread=st.sampled_from([0.0, 1.0, 3.0]), exponent=st.integers(-20, 10))
def test_quantising_what_was_dequantised_changes_nothing(seed, spread, exponent):
    first = quantize_nvfp4(sample(4, 48, seed=seed, spread=spread), torch.tensor(2.0**exponent))
    # Only a block scale of 2 * 2^-9 can hold a block whose largest code is 4 instead of 6 (amax / 6 between 1.5 and
    # 1.67 times 2^-9 is rounded up to it): its scale would be halved the second time.
    assume(not (first.block_scales.view(torch.uint8) == 2).any())
    values = dequantize_nvfp4(first)
    again = quantize_nvfp4(values, first.tensor_scale)
    assert torch.equal(dequantize_nvfp4(again), values)
    used = unpack_codes(first.codes).view(4, 3, 16).remainder(8).amax(dim=-1) > 0
    assert torch.equal(again.block_scales.view(torch.uint8)[used], first.block_scales.view(torch.uint8)[used])


@pytest.mark.parametrize(("num_inputs", "padded_groups"), [(16, 4), (32, 4), (48, 4), (80, 8), (6144, 384)], ids=str)
def test_swizzled_scales_are_padded_to_whole_tiles_of_zeros(num_inputs, padded_groups):
    scales = torch.full((130, num_inputs // 16), 2.0).to(torch.float8_e4m3fn)
    swizzled = swizzle_block_scales(scales)
    assert swizzled.shape == (256, padded_groups)
    assert swizzled.dtype == torch.float8_e4m3fn
    assert (swizzled.float() == 2).sum().item() == scales.numel()
    assert (swizzled.float() == 0).sum().item() == 256 * padded_groups - scales.numel()
    assert torch.equal(unswizzle_block_scales(swizzled, *scales.shape).float(), scales.float())


@properties
@given(num_rows=st.integers(1, 300), num_columns=st.integers(1, 13), experts=st.integers(1, 3), data=st.data())
def test_swizzling_puts_each_scale_at_its_documented_offset(num_rows, num_columns, experts, data):
    generator = torch.Generator().manual_seed(num_rows * 13 + num_columns)
    scales = torch.randint(0, 256, (experts, num_rows, num_columns), dtype=torch.uint8, generator=generator)
    swizzled = swizzle_block_scales(scales)
    assert torch.equal(unswizzle_block_scales(swizzled, num_rows, num_columns), scales)
    r = data.draw(st.integers(0, num_rows - 1), label="row")
    c = data.draw(st.integers(0, num_columns - 1), label="column")
    groups = swizzled.shape[-1]
    offset = (r // 128) * 128 * groups + (c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    assert swizzled[-1].flatten()[offset].item() == scales[-1, r, c].item()


@properties
@given(
    row_cuts=st.lists(st.integers(0, 24), max_size=3).map(sorted),
    group_cuts=st.lists(st.integers(0, 6), max_size=3).map(sorted),
    seed=st.integers(0, 1000),
)
def test_slices_of_ranks_quantised_alone_concatenate_to_the_whole(row_cuts, group_cuts, seed):
    values = sample(24, 96, seed=seed, spread=1.0)
    whole = quantize_nvfp4(values)
    row_sizes = [b - a for a, b in zip([0, *row_cuts], [*row_cuts, 24], strict=True)]
    input_sizes = [16 * (b - a) for a, b in zip([0, *group_cuts], [*group_cuts, 6], strict=True)]
    by_rows = [quantize_nvfp4(part, whole.tensor_scale) for part in values.split(row_sizes, dim=0)]
    by_inputs = [quantize_nvfp4(part, whole.tensor_scale) for part in values.split(input_sizes, dim=1) if part.numel()]
    for parts, dim in ((by_rows, 0), (by_inputs, 1)):
        assert torch.equal(torch.cat([p.codes for p in parts], dim=dim), whole.codes)
        scales = torch.cat([p.block_scales.view(torch.uint8) for p in parts], dim=dim)
        assert torch.equal(scales, whole.block_scales.view(torch.uint8))


@pytest.mark.parametrize("shape", [(512, 1024), (3, 256, 512)], ids=["matrix", "experts"])
def test_random_weights_have_the_wanted_standard_deviation(shape):
    weight = random_nvfp4(shape, std=0.02, generator=torch.Generator().manual_seed(0), device="cpu")
    assert weight.shape == shape
    assert weight.tensor_scale.shape == shape[:-2]
    values = dequantize_nvfp4(weight)
    for matrix in values.view(-1, *shape[-2:]):
        assert matrix.std().item() == pytest.approx(0.02, rel=0.02)
        assert abs(matrix.mean().item()) < 2e-4
    assert set(unpack_codes(weight.codes).unique().tolist()) == set(range(16))
    assert weight.block_scales.float().aminmax() == (64.0, 256.0)


def test_random_weights_follow_the_generator():
    first, again, other = (
        random_nvfp4((8, 32), std=1.0, generator=torch.Generator().manual_seed(seed), device="cpu")
        for seed in (1, 1, 2)
    )
    assert torch.equal(first.codes, again.codes)
    assert not torch.equal(first.codes, other.codes)


def test_each_expert_is_quantised_with_its_own_tensor_scale():
    values = torch.stack((sample(4, 32, seed=0, spread=0.0), 10 * sample(4, 32, seed=0, spread=0.0)))
    weight = quantize_nvfp4(values)
    assert weight.tensor_scale[1].item() == pytest.approx(10 * weight.tensor_scale[0].item())
    for expert in range(2):
        assert torch.equal(dequantize_nvfp4(weight)[expert], dequantize_nvfp4(quantize_nvfp4(values[expert])))


def test_bytes_and_shape_are_those_of_the_parts():
    weight = random_nvfp4((4, 32, 48), std=1.0, generator=None, device="cpu")
    assert weight.shape == (4, 32, 48)
    assert weight.num_bytes == 4 * 32 * 48 * 9 // 16 + 4 * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantize_nvfp4(torch.zeros(2, 24)), "argument values must be .* K a multiple of 16; got .2, 24."),
        (lambda: quantize_nvfp4(torch.zeros(2, 16), torch.zeros(2)), "argument tensor_scale must be float32 ..; got"),
        (lambda: pack_codes(torch.zeros(3, dtype=torch.uint8)), "argument codes must be uint8 with an even last dim"),
        (lambda: unpack_codes(torch.zeros(4)), "argument packed must be uint8; got torch.float32"),
        (lambda: swizzle_block_scales(torch.zeros(4, 4)), "argument block_scales must be .* of 8 bits; got"),
        (
            lambda: unswizzle_block_scales(torch.zeros(128, 4, dtype=torch.uint8), 129, 4),
            "argument swizzled must be .*256, 4. of 8 bits for 129 rows of 4 scales",
        ),
        (lambda: random_nvfp4((4, 20), std=1.0, generator=None, device="cpu"), "argument shape must be .*; got .4, 20"),
    ],
    ids=["values", "tensor_scale", "pack", "unpack", "swizzle", "unswizzle", "random"],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("codes", torch.zeros(4, 16), "argument codes must be uint8 .*; got torch.float32"),
        ("codes", torch.zeros(4, 4, dtype=torch.uint8), "argument codes must hold whole blocks of 16 .*; got 4"),
        ("block_scales", torch.zeros(4, 1).to(torch.float8_e4m3fn), "argument block_scales must be .*4, 2. for these"),
        ("tensor_scale", torch.zeros(1), "argument tensor_scale must be float32 .. for these codes; got .*1"),
    ],
    ids=["dtype", "blocks", "block_scales", "tensor_scale"],
)
def test_parts_that_do_not_fit_together_are_refused(field, value, message):
    weight = random_nvfp4((4, 32), std=1.0, generator=None, device="cpu")
    parts = {"codes": weight.codes, "block_scales": weight.block_scales, "tensor_scale": weight.tensor_scale}
    with pytest.raises(ValueError, match=message):
        Nvfp4Tensor(**{**parts, field: value})
