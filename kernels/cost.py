"""What each operation must move and compute at least: the numbers that floors, ceilings and predictions are made of.

Bytes count each operand once: what any implementation of the operation has to read and write. Torch is not imported,
so that a ceiling can be computed on a machine where torch does not load.

Letters: M tokens in the step, N outputs, K inputs of a GEMM, D hidden size, H heads on this rank, S cached tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

BYTES_OF_DTYPE = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "int32": 4, "int64": 8}

NVFP4_BLOCK = 16
"""Weights that share one E4M3 scale, along K (NVFP4 format)."""

FP8_BLOCK = 128
"""Rows and columns that share one float32 scale in block-scaled FP8 checkpoints (DeepSeek-V3 layout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The least work of one operation: bytes, floating-point operations by dtype, bytes sent to other ranks."""

    bytes_read: int = 0
    bytes_written: int = 0
    flops: Mapping[str, int] = field(default_factory=dict)
    wire_bytes: int = 0
    """Payload of a collective on this rank; 0 for anything that stays on the GPU."""
    delay_us: float = 0.0
    """A fixed wait in microseconds: only planted steps with a known answer use it."""

    @property
    def total_bytes(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


def weight_bytes(shape: tuple[int, ...], weight_format: str) -> int:
    """Bytes of a weight [..., N, K] as stored: values, and the block scales of a quantised format.

    NVFP4 is 0.5625 bytes a weight: 4 bits, plus one E4M3 byte for each 16 along K. Tensor scales (4 bytes a matrix)
    are left out. FP8 adds one float32 for each 128 x 128 block.
    """
    *leading, rows, columns = (1, *shape) if len(shape) == 1 else shape
    matrices = 1
    for size in leading:
        matrices *= size
    if weight_format == "nvfp4":
        return matrices * rows * (columns // 2 + -(-columns // NVFP4_BLOCK))
    if weight_format == "fp8":
        blocks = -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)
        return matrices * (rows * columns + 4 * blocks)
    return matrices * rows * columns * BYTES_OF_DTYPE[weight_format]


def gemm_cost(m: int, n: int, k: int, *, weight_format: str, activation: str, out: str) -> Cost:
    """x [M, K] times weight [N, K] transposed. Quantised weights are multiplied in the activation's dtype."""
    return Cost(
        bytes_read=weight_bytes((n, k), weight_format) + m * k * BYTES_OF_DTYPE[activation],
        bytes_written=m * n * BYTES_OF_DTYPE[out],
        flops={activation: 2 * m * n * k},
    )


def head_gemm_cost(m: int, heads: int, n: int, k: int, *, activation: str) -> Cost:
    """One GEMM a head: x [M, H, K] times weight [H, N, K]."""
    size = BYTES_OF_DTYPE[activation]
    return Cost(
        bytes_read=heads * (n * k + m * k) * size,
        bytes_written=m * heads * n * size,
        flops={activation: 2 * m * heads * n * k},
    )


def expert_gemm_cost(
    rows: int, distinct_experts: int, n: int, k: int, *, input_rows: int, weight_format: str, activation: str
) -> Cost:
    """A grouped GEMM over `rows` (token, choice) pairs that reads only the experts that were hit."""
    size = BYTES_OF_DTYPE[activation]
    return Cost(
        bytes_read=distinct_experts * weight_bytes((n, k), weight_format) + input_rows * k * size + 2 * 4 * rows,
        bytes_written=rows * n * size,
        flops={activation: 2 * rows * n * k},
    )


def elementwise_cost(bytes_read: int, bytes_written: int, flops: int = 0) -> Cost:
    """A memory-bound pass; its arithmetic runs in float32 outside the tensor cores."""
    return Cost(bytes_read=bytes_read, bytes_written=bytes_written, flops={"fp32": flops} if flops else {})


def attention_cost(
    m: int, heads: int, keys: int, *, cached_rows: int, row_bytes: int, key_dim: int, value_dim: int, activation: str
) -> Cost:
    """`keys` (token, position) pairs scored and summed, over `cached_rows` rows of `row_bytes` bytes read once.

    Tokens of one sequence that attend densely share its rows; tokens that choose their positions read their own.
    """
    return Cost(
        bytes_read=cached_rows * row_bytes + m * heads * key_dim * BYTES_OF_DTYPE[activation],
        bytes_written=m * heads * value_dim * BYTES_OF_DTYPE[activation],
        flops={activation: 2 * heads * keys * (key_dim + value_dim)},
    )


def index_logits_cost(keys: int, m: int, *, heads: int, head_dim: int, cached_keys: int, cache: str) -> Cost:
    """Indexer scores of `keys` (token, position) pairs over `cached_keys` distinct cached keys of `head_dim` values."""
    row_bytes = head_dim * BYTES_OF_DTYPE[cache] + 4
    return Cost(
        bytes_read=cached_keys * row_bytes + m * heads * (head_dim * BYTES_OF_DTYPE[cache] + 4),
        bytes_written=keys * 4,
        flops={cache: 2 * heads * head_dim * keys},
    )


def collective_cost(payload_bytes: int) -> Cost:
    """A collective over `payload_bytes` of this rank: read, sent, reduced and written."""
    return Cost(bytes_read=payload_bytes, bytes_written=payload_bytes, wire_bytes=payload_bytes)
