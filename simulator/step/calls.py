"""The calls a step is made of: one dataclass a kernel, naming the tensors it works on. No torch.

`step.build` writes them down, `step.launch` turns each into a launch of a Triton kernel or of its torch reference.
Weights are named by strings, activations by operands, since a kernel often works on some columns of a buffer only.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer, optionally seen in another shape and narrowed to columns [start, stop) of its last dimension."""

    buffer: str
    shape: tuple[int, ...] | None = None
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Rows of the vocabulary shard; zeros for tokens of other ranks."""

    tokens: Operand
    table: str
    vocab_start: int
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class RmsNorm:
    """RMS normalisation, after adding the residual where there is one."""

    x: Operand
    weight: str
    eps: float
    out: Operand
    residual: Operand | None = None
    residual_out: Operand | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """Rows of x times a weight [N, K] transposed."""

    x: Operand
    weight: str
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGemm:
    """x [M, H, K] times one weight [N, K] a head."""

    x: Operand
    weight: str
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary embedding of query heads and key heads in one launch."""

    query: Operand
    key: Operand
    positions: Operand
    cos_sin: Operand
    query_out: Operand
    key_out: Operand
    interleaved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheWrite:
    """One latent row and its rotary key into the cache."""

    latent: Operand
    key_rope: Operand
    slots: Operand
    cache: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexKeyWrite:
    """LayerNorm, rotary embedding and quantisation of the index key, into its cache."""

    key: Operand
    norm_weight: str
    norm_bias: str
    eps: float
    positions: Operand
    cos_sin: Operand
    interleaved: bool
    slots: Operand
    cache_values: Operand
    cache_scales: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexQuery:
    """Rotary embedding and quantisation of the index queries, and their head weights."""

    query: Operand
    head_weights: Operand
    positions: Operand
    cos_sin: Operand
    interleaved: bool
    query_out: Operand
    weights_out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLogits:
    """Scores of every cached position."""

    query: Operand
    weights: Operand
    cache_values: Operand
    cache_scales: Operand
    context_lengths: Operand
    tokens_per_sequence: int
    slots_per_sequence: int
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexTopk:
    """The positions of the largest scores."""

    logits: Operand
    context_lengths: Operand
    selected: Operand
    workspace: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaDecode:
    """Attention over latents, split over the keys; `selected` is None where every position is read."""

    query: Operand
    cache: Operand
    selected: Operand | None
    context_lengths: Operand
    tokens_per_sequence: int
    slots_per_sequence: int
    scale: float
    partial_out: Operand
    partial_lse: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaCombine:
    """Joins the splits of the attention."""

    partial_out: Operand
    partial_lse: Operand
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class QkvRope:
    """Bias, per-head norms and rotation of a fused qkv projection."""

    qkv: Operand
    bias: str | None
    query_norm: str | None
    key_norm: str | None
    eps: float
    positions: Operand
    cos_sin: Operand
    interleaved: bool
    query_out: Operand
    key_out: Operand
    value_out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaCacheWrite:
    """Key and value heads into their caches."""

    key: Operand
    value: Operand
    slots: Operand
    key_cache: Operand
    value_cache: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaDecode:
    """Grouped-query attention over the cache, split over the keys."""

    query: Operand
    key_cache: Operand
    value_cache: Operand
    context_lengths: Operand
    tokens_per_sequence: int
    slots_per_sequence: int
    scale: float
    partial_out: Operand
    partial_lse: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTopk:
    """Scores, expert choice and weights of the chosen."""

    logits: Operand
    bias: str | None
    ids: Operand
    weights: Operand
    scoring: str
    num_groups: int
    topk_groups: int
    normalize: bool
    scaling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Groups (token, choice) rows by expert."""

    expert_ids: Operand
    num_experts: int
    tile_rows: int
    sorted_rows: Operand
    tile_experts: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertGemm:
    """A grouped GEMM over the rows of each expert."""

    x: Operand
    weight: str
    sorted_rows: Operand
    tile_experts: Operand
    tile_rows: int
    rows_per_token: int
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Swiglu:
    """SiLU of the first half times the second half."""

    gate_up: Operand
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """Weighted sum of the chosen experts, plus the shared expert."""

    expert_out: Operand
    weights: Operand
    shared: Operand | None
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """Sum over all ranks."""

    x: Operand
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalArgmax:
    """The best token of this rank's vocabulary shard, as a value and an id."""

    logits: Operand
    vocab_start: int
    num_valid: int
    values: Operand
    ids: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGather:
    """Every rank's (value, id) pairs, in rank order."""

    values: Operand
    ids: Operand
    values_out: Operand
    ids_out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """The id of the largest value over all ranks."""

    values: Operand
    ids: Operand
    out: Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Spin:
    """A wait of a known time: the planted truth of timing tests."""

    wait_us: float
    ticks: Operand


Call = (
    Embedding
    | RmsNorm
    | Gemm
    | HeadGemm
    | Rope
    | KvCacheWrite
    | IndexKeyWrite
    | IndexQuery
    | IndexLogits
    | IndexTopk
    | MlaDecode
    | MlaCombine
    | QkvRope
    | GqaCacheWrite
    | GqaDecode
    | RouterTopk
    | Dispatch
    | ExpertGemm
    | Swiglu
    | Combine
    | AllReduce
    | LocalArgmax
    | AllGather
    | Greedy
    | Spin
)
