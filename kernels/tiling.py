"""Tile and split sizes that more than one kernel or its caller needs: pure functions, torch is not imported."""

MLA_MIN_KEYS = 32
"""Keys of the smallest split: one tile of the decode attention (kernels/mla_decode.py, kernels/gqa_decode.py)."""

MLA_TARGET_PROGRAMS = 160
"""Programs to aim for: between the SMs of H100 and H200 (132), B200 (148) and RTX PRO 6000 (188)."""


def mla_num_splits(tokens: int, num_keys: int) -> int:
    """Splits of each token's keys in decode attention: enough programs for every SM, none below one tile of keys.

    `num_keys` is what a token attends to at most: the selected positions, or the longest context. One token over 2048
    selected keys gets 64 splits of 32; 64 tokens get 3 splits each; from 160 tokens on keys are not split.
    """
    return max(1, min(-(-num_keys // MLA_MIN_KEYS), -(-MLA_TARGET_PROGRAMS // tokens)))


TOPK_CHUNK = 16_384
"""Positions of a chunk at least: with k = 2048 the chunks' work and the merge of their candidates are about equal."""

TOPK_MIN_CHUNKS = 3
"""Fewer chunks would not pay for a second launch."""

TOPK_MAX_SPLIT_TOKENS = 64
"""With more tokens, whole rows occupy enough SMs."""


def index_topk_chunk_size(tokens: int, num_positions: int, k: int) -> int:
    """Positions that one program of index_topk selects from: the whole row, or a chunk of a long row."""
    chunk = max(TOPK_CHUNK, 4 * k)
    if tokens > TOPK_MAX_SPLIT_TOKENS or -(-num_positions // chunk) < TOPK_MIN_CHUNKS:
        return num_positions
    return chunk


def index_topk_workspace_size(tokens: int, num_positions: int, k: int) -> int:
    """int32 elements that index_topk needs for `tokens` rows of `num_positions`: k candidates a chunk, or none."""
    chunks = -(-num_positions // index_topk_chunk_size(tokens, num_positions, k))
    return tokens * chunks * k if chunks > 1 else 0


def expert_tile_rows(tokens: int, top_k: int, num_experts: int) -> int:
    """Rows of one tile of the expert matrix products: 16 for decode, more where experts get many rows each.

    A tile reads its expert's whole weight, so a tile much smaller than an expert's rows reads it several times (from
    L2), and a tile much larger computes on padding.
    """
    rows_per_expert = tokens * top_k / num_experts
    return 16 if rows_per_expert <= 8 else 32 if rows_per_expert <= 24 else 64


def dispatch_max_tiles(tokens: int, top_k: int, num_experts: int, tile_rows: int) -> int:
    """The most tiles that `tokens * top_k` rows can need, whatever the routing: the static grid of a captured graph.

    With n rows over a experts that have any (c rows each, all c >= 1), tiles = sum ceil(c / R) = sum of
    1 + floor((c - 1) / R) <= a + floor((n - a) / R), and some routing reaches it. The bound grows with a (one expert
    more adds 1 and takes away at most 1), and a is at most min(n, num_experts).
    """
    rows = tokens * top_k
    active = min(rows, num_experts)
    return active + (rows - active) // tile_rows
