"""Rows grouped by expert: against a loop in Python, at its bound of tiles, and for skewed routing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dispatch import dispatch, dispatch_reference
from kernels.tiling import dispatch_max_tiles, expert_tile_rows


def routing(num_tokens: int, top_k: int, num_experts: int, device: torch.device) -> torch.Tensor:
    """Distinct experts for each token."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randperm(num_experts, generator=generator)[:top_k] for _ in range(num_tokens)]
    return torch.stack(rows).to(torch.int32).to(device)


def check(expert_ids: torch.Tensor, num_experts: int, tile_rows: int, extra_tiles: int = 0) -> torch.Tensor:
    """Run twice into poisoned outputs, compare with the reference, and return tile_experts."""
    max_tiles = dispatch_max_tiles(*expert_ids.shape, num_experts, tile_rows) + extra_tiles
    expected = dispatch_reference(expert_ids, num_experts=num_experts, tile_rows=tile_rows, max_tiles=max_tiles)
    for _ in range(2):
        sorted_rows = torch.full((max_tiles * tile_rows,), -7, dtype=torch.int32, device=expert_ids.device)
        tile_experts = torch.full((max_tiles,), -7, dtype=torch.int32, device=expert_ids.device)
        dispatch(
            expert_ids=expert_ids,
            num_experts=num_experts,
            tile_rows=tile_rows,
            sorted_rows=sorted_rows,
            tile_experts=tile_experts,
        )
        assert torch.equal(sorted_rows, expected[0])
        assert torch.equal(tile_experts, expected[1])
    return tile_experts


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "tile_rows"),
    [(1, 8, 24, 16), (1, 1, 1, 16), (5, 3, 6, 16), (33, 4, 7, 32), (200, 8, 12, 64)],
    ids=str,
)
def test_rows_of_random_routing(tokens, top_k, experts, tile_rows, device):
    check(routing(tokens, top_k, experts, device), experts, tile_rows)


def test_more_rows_than_one_step_looks_at(device):
    check(routing(300, 8, 9, device), 9, 16)


def test_all_rows_to_one_expert(device):
    tile_experts = check(torch.full((40, 1), 5, dtype=torch.int32, device=device), 7, 16)
    assert tile_experts.tolist() == [5, 5, 5] + [-1] * 6


def test_one_expert_that_needs_more_tiles_than_a_step_writes(device):
    check(torch.zeros(40, 1, dtype=torch.int32, device=device), 2, 1)


def test_unused_tiles_are_marked_however_many(device):
    tile_experts = check(torch.tensor([[1, 3]], dtype=torch.int32, device=device), 4, 16, extra_tiles=70)
    assert tile_experts.tolist() == [1, 3] + [-1] * 70


def test_rows_of_no_expert_belong_to_no_tile(device):
    tile_experts = check(torch.tensor([[2, -1], [4, 0]], dtype=torch.int32, device=device), 4, 16)
    assert tile_experts.tolist() == [0, 2, -1, -1]


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=30).filter(sum), tile_rows=st.sampled_from([1, 2, 16, 64])
)
def test_no_routing_needs_more_tiles_than_the_bound(counts, tile_rows):
    tiles = sum(-(-count // tile_rows) for count in counts)
    assert tiles <= dispatch_max_tiles(sum(counts), 1, len(counts), tile_rows)


@settings(deadline=None)
@given(rows=st.integers(1, 500), experts=st.integers(1, 40), tile_rows=st.sampled_from([1, 2, 16, 64]))
def test_some_routing_needs_exactly_the_bound(rows, experts, tile_rows):
    active = min(rows, experts)
    counts = [1] * (active - 1) + [rows - active + 1]
    assert sum(-(-count // tile_rows) for count in counts) == dispatch_max_tiles(rows, 1, experts, tile_rows)


def test_tile_rows_grow_with_the_rows_of_an_expert():
    assert [expert_tile_rows(tokens, 8, 256) for tokens in (1, 64, 256, 512, 1024)] == [16, 16, 16, 32, 64]


def arguments(**changes):
    return {
        "expert_ids": torch.zeros(2, 3, dtype=torch.int32),
        "num_experts": 4,
        "tile_rows": 16,
        "sorted_rows": torch.zeros(64, dtype=torch.int32),
        "tile_experts": torch.zeros(4, dtype=torch.int32),
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"expert_ids": torch.zeros(2, 3)},
            r"argument expert_ids must be contiguous int32 \[T, K\]; got torch.float32",
        ),
        ({"num_experts": 0}, "argument num_experts must be at least 1; got 0"),
        ({"tile_rows": 12}, "argument tile_rows must be a power of two; got 12"),
        (
            {"tile_experts": torch.zeros(3, dtype=torch.int32)},
            "argument tile_experts must be .* max_tiles >= 4 for 6 rows over 4 experts in tiles of 16; got .3.",
        ),
        ({"sorted_rows": torch.zeros(63, dtype=torch.int32)}, r"argument sorted_rows must be .* = \[64\]; got \[63\]"),
        ({"sorted_rows": torch.zeros(64)}, "argument sorted_rows must be contiguous int32; got torch.float32"),
        ({"tile_experts": torch.zeros(4)}, "argument tile_experts must be contiguous int32; got torch.float32"),
    ],
    ids=["expert_ids", "num_experts", "tile_rows", "tiles", "rows", "rows-dtype", "tiles-dtype"],
)
def test_errors_name_the_argument(changes, message):
    with pytest.raises(ValueError, match=message):
        dispatch(**arguments(**changes))


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "experts"), [(1, 256), (64, 256), (1024, 256), (1024, 384)], ids=str)
def test_routing_of_glm5_and_kimi(tokens, experts, device):
    check(routing(tokens, 8, experts, device), experts, expert_tile_rows(tokens, 8, experts))
