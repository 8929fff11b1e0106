"""The radix select against a stable sort: the same set, in ascending order, bit for bit."""

import pytest
import torch

from kernels.index_topk import index_topk, index_topk_reference
from kernels.tiling import index_topk_chunk_size, index_topk_workspace_size

NAN, INF = float("nan"), float("inf")
SENTINEL = -7


def select(logits: torch.Tensor, contexts: list[int], k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kernel's selection and the reference's."""
    context_lengths = torch.tensor(contexts, dtype=torch.int32, device=logits.device)
    # one row more than the kernel is given: a tie too many would be written there
    guarded = torch.full((logits.shape[0] + 1, k), SENTINEL, dtype=torch.int32, device=logits.device)
    selected = guarded[:-1]
    workspace = make_workspace(logits, k)
    index_topk(logits=logits, context_lengths=context_lengths, selected=selected, workspace=workspace)
    assert (guarded[-1] == SENTINEL).all()
    return selected, index_topk_reference(logits, context_lengths, k)


def make_workspace(logits: torch.Tensor, k: int) -> torch.Tensor:
    size = index_topk_workspace_size(logits.shape[0], logits.shape[1], k)
    return torch.full((size,), SENTINEL, dtype=torch.int32, device=logits.device)


def random_logits(M: int, S: int, device: torch.device) -> torch.Tensor:
    return torch.randn(M, S, generator=torch.Generator().manual_seed(M + S)).to(device)


# correctness


@pytest.mark.parametrize(
    "M, S, k", [(1, 300, 64), (3, 1000, 200), (2, 5000, 2048), (1, 8192, 2048), (1, 9000, 17)], ids=str
)
def test_matches_reference(M, S, k, device):
    selected, expected = select(random_logits(M, S, device), [S] * M, k)
    assert torch.equal(selected, expected)


def test_ragged_contexts_ignore_what_lies_beyond(device):
    logits = random_logits(5, 600, device)
    contexts = [600, 599, 101, 100, 7]
    for row, context in enumerate(contexts):
        logits[row, context:] = INF
    selected, expected = select(logits, contexts, 100)
    assert torch.equal(selected, expected)
    assert selected[4].tolist() == list(range(7)) + [-1] * 93


def test_long_rows_are_selected_in_two_launches(device):
    """Ties lie across the chunks, one context ends inside a chunk, one is shorter than k, one fills the row."""
    S, k = 50_000, 300
    assert index_topk_chunk_size(4, S, k) < S
    logits = random_logits(4, S, device)
    logits[0] = logits[0].round()
    logits[1, ::5] = NAN
    selected, expected = select(logits, [S, 40_001, 200, 16_384], k)
    assert torch.equal(selected, expected)


@pytest.mark.parametrize(
    "tokens, num_positions, k, chunk, workspace",
    [(1, 4096, 2048, 4096, 0), (1, 202752, 2048, 16384, 13 * 2048), (8, 131072, 2048, 16384, 8 * 8 * 2048),
     (1024, 202752, 2048, 202752, 0), (1, 50_000, 8192, 50_000, 0)],
)  # fmt: skip
def test_chunks_and_workspace_by_hand(tokens, num_positions, k, chunk, workspace):
    assert index_topk_chunk_size(tokens, num_positions, k) == chunk
    assert index_topk_workspace_size(tokens, num_positions, k) == workspace


# corner


@pytest.mark.parametrize("S, k", [(530, 53), (61, 60), (69, 1), (257, 256)], ids=str)
def test_odd_sizes(S, k, device):
    selected, expected = select(random_logits(2, S, device), [S, S - 1], k)
    assert torch.equal(selected, expected)


def test_ties_take_the_lower_positions(device):
    logits = torch.zeros(3, 5000, device=device)
    logits[1, 4000:] = 1.0
    logits[2] = (torch.arange(5000, device=device) % 7).float()
    selected, expected = select(logits, [5000] * 3, 1500)
    assert torch.equal(selected, expected)
    assert selected[0].tolist() == list(range(1500))


def test_both_zeros_are_equal(device):
    logits = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]], device=device)
    selected, expected = select(logits, [5], 2)
    assert selected.tolist() == [[0, 1]]
    assert torch.equal(selected, expected)


def test_nan_is_below_minus_infinity(device):
    logits = torch.tensor([[NAN, -INF, 3.0, NAN, -INF, INF, -3e38, 1e-45, -1e-45, NAN]], device=device)
    logits[0, 3] = -logits[0, 3]
    for k in range(1, 10):
        selected, expected = select(logits, [10], k)
        assert torch.equal(selected, expected), k
    assert select(logits, [10], 7)[0].tolist() == [[1, 2, 4, 5, 6, 7, 8]]


def test_keys_that_differ_only_in_the_last_bits(device):
    bits = 0x3F800000 + torch.randperm(700, generator=torch.Generator().manual_seed(0))
    logits = bits.to(torch.int32).view(torch.float32)[None].to(device)
    selected, expected = select(logits, [700], 300)
    assert torch.equal(selected, expected)


def test_empty_context(device):
    selected, _ = select(random_logits(1, 64, device), [0], 8)
    assert (selected == -1).all()


def test_context_beyond_the_row_is_cut(device):
    selected, expected = select(random_logits(1, 64, device), [70], 8)
    assert torch.equal(selected, expected)


# contract


def test_second_call_is_bitwise_equal(device):
    logits = random_logits(2, 700, device)
    assert torch.equal(select(logits, [700, 650], 128)[0], select(logits, [700, 650], 128)[0])


@pytest.mark.parametrize(
    "argument, make_bad",
    [
        ("logits", lambda case: case["logits"].half()),
        ("logits", lambda case: case["logits"][:, ::2]),
        ("context_lengths", lambda case: case["context_lengths"].long()),
        ("selected", lambda case: case["selected"].long()),
        ("selected", lambda case: case["selected"][:1]),
        ("workspace", lambda case: case["workspace"].long()),
    ],
    ids=["logits-dtype", "logits-strided", "contexts-int64", "selected-int64", "selected-rows", "workspace-int64"],
)
def test_wrong_argument_is_named(argument, make_bad, device):
    case = {
        "logits": random_logits(2, 64, device),
        "context_lengths": torch.tensor([64, 64], dtype=torch.int32, device=device),
        "selected": torch.full((2, 8), SENTINEL, dtype=torch.int32, device=device),
        "workspace": torch.empty(0, dtype=torch.int32, device=device),
    }
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        index_topk(**{**case, argument: make_bad(case)})


def test_too_small_workspace_is_named(device):
    logits = random_logits(1, 50_000, device)
    selected = torch.empty((1, 300), dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="argument workspace must be contiguous int32 with at least 1200 elements"):
        index_topk(
            logits=logits,
            context_lengths=torch.tensor([9], dtype=torch.int32, device=device),
            selected=selected,
            workspace=make_workspace(logits, 300)[1:],
        )


# GLM-5 shapes


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("M, S", [(1, 4096), (64, 4096), (1, 202752), (1024, 4096)], ids=str)
def test_glm5(M, S, pdl, device):
    logits = random_logits(M, S, device)
    context_lengths = torch.randint(1, S + 1, (M,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    context_lengths = context_lengths.to(device)
    context_lengths[0] = S
    selected = torch.full((M, 2048), SENTINEL, dtype=torch.int32, device=device)
    workspace = make_workspace(logits, 2048)
    index_topk(logits=logits, context_lengths=context_lengths, selected=selected, workspace=workspace, pdl=pdl)
    assert torch.equal(selected, index_topk_reference(logits, context_lengths, 2048))
