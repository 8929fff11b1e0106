"""The read kernel reads every word once: each program's xor says so."""

import pytest
import torch

from kernels.read_only import BLOCK, read_only, read_only_programs, read_only_reference

SENTINEL = 77


def words(n: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(-(2**31), 2**31, (n,), generator=generator).to(dtype=torch.int32, device=device)


def poisoned(num_programs: int, device: torch.device) -> torch.Tensor:
    return torch.full((num_programs,), SENTINEL, dtype=torch.int32, device=device)


# correctness


@pytest.mark.parametrize("num_programs", [1, 4], ids=lambda P: f"P{P}")
@pytest.mark.parametrize(
    "n",
    [4, BLOCK, BLOCK + 4, 6 * BLOCK, 7 * BLOCK + 100],
    ids=["4-words", "one-tile", "tile-and-tail", "six-tiles", "seven-tiles-and-tail"],
)
def test_matches_reference(n, num_programs, device):
    x, out = words(n, device), poisoned(num_programs, device)
    read_only(x=x, out=out)
    assert torch.equal(out, read_only_reference(x, num_programs))


@pytest.mark.parametrize("flipped", [0, BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 15], ids=lambda i: f"word{i}")
def test_every_word_is_read(flipped, device):
    x, out, changed = words(2 * BLOCK + 16, device), poisoned(2, device), poisoned(2, device)
    read_only(x=x, out=out)
    x[flipped] ^= 1 << 20
    read_only(x=x, out=changed)
    assert sorted((out ^ changed).tolist()) == [0, 1 << 20]


# corner


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8, torch.int64], ids=["fp16", "uint8", "int64"])
def test_any_dtype_and_shape(dtype, device):
    x = words(2 * BLOCK, device).view(dtype).reshape(4, -1)
    out = poisoned(2, device)
    read_only(x=x, out=out)
    assert torch.equal(out, read_only_reference(x, 2))


def test_empty_tensor_writes_zeros(device):
    out = poisoned(3, device)
    read_only(x=torch.empty(0, device=device), out=out)
    assert out.tolist() == [0, 0, 0]


def test_programs_of_one_wave():
    assert read_only_programs(132) == 528


# contract


def test_second_call_is_bitwise_equal(device):
    x, out = words(3 * BLOCK, device), poisoned(2, device)
    read_only(x=x, out=out)
    first = out.clone()
    read_only(x=x, out=out)
    assert torch.equal(first, out)


@pytest.mark.parametrize(
    "argument, bad",
    [
        ("x", {"x": torch.zeros(64, 4).t()}),
        ("x", {"x": torch.zeros(3)}),
        ("x", {"x": torch.zeros(65)[1:]}),
        ("out", {"out": torch.zeros(4)}),
        ("out", {"out": torch.zeros(0, dtype=torch.int32)}),
        ("out", {"out": torch.zeros(2, 2, dtype=torch.int32)}),
    ],
    ids=["x-strided", "x-12-bytes", "x-misaligned", "out-dtype", "out-empty", "out-2d"],
)
def test_wrong_argument_is_named(argument, bad):
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        read_only(**{"x": torch.zeros(64), "out": torch.zeros(4, dtype=torch.int32), **bad})


# at size


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("n", [2**28 + 4, 2**31 + 2**20], ids=["1GiB", "more-than-2^31-words"])
def test_xor_of_a_large_tensor(n, pdl, device):
    """One word that is not zero, the last."""
    x = torch.zeros(n, dtype=torch.int32, device=device)
    x[-1] = 12_345
    out = poisoned(read_only_programs(132), device)
    read_only(x=x, out=out, pdl=pdl)
    assert out.sum().item() == 12_345
    assert out.max().item() == 12_345
