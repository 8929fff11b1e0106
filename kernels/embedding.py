"""Look up each token's row in this rank's shard of the embedding table.

    out[m] = table[tokens[m] - vocab_start] if vocab_start <= tokens[m] < vocab_start + V, else 0

The sum of `out` over the ranks of a vocabulary-parallel table is the embedding.

    tokens  [M]     int32 or int64, contiguous
    table   [V, D]  contiguous
    out     [M, D]  rows of any stride, contiguous in the last dim, dtype of the table

Letters: M tokens in the step, V rows of the shard (GLM-5 at TP = 8: 19360 of 154880), D hidden size (6144).
Source: Shoeybi et al. 2019, Megatron-LM (arXiv 1909.08053), section 3.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require

BLOCK_D = 1024
"""Values a program copies: 16 bytes a thread at 4 warps, and six programs for a GLM-5 row."""


def embedding_reference(tokens: torch.Tensor, table: torch.Tensor, vocab_start: int) -> torch.Tensor:
    """Rows [M, D] in the dtype of the table: a copy has no arithmetic to do in float32."""
    local = tokens.long() - vocab_start
    is_here = (local >= 0) & (local < table.shape[0])
    return table[local.where(is_here, 0)].masked_fill(~is_here[:, None], 0.0)


@triton.jit(do_not_specialize=["vocab_start", "num_rows"])
def _embedding_kernel(
    p_tokens,
    p_table,
    p_out,
    vocab_start,
    num_rows,
    stride_out,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program copies BLOCK_D values of one token's row."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    o_d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    row = tl.load(p_tokens + i_m).to(tl.int64) - vocab_start
    is_here = (row >= 0) & (row < num_rows)
    in_d = o_d < DIM
    b_row = tl.load(p_table + row * DIM + o_d, mask=in_d & is_here, other=0.0)  # [D]
    tl.store(p_out + i_m * stride_out + o_d, b_row, mask=in_d)


def embedding(
    *, tokens: torch.Tensor, table: torch.Tensor, vocab_start: int, out: torch.Tensor, pdl: bool = False
) -> None:
    """Write the rows of the tokens that this shard holds, and zeros for the others.

    Shapes: tokens int32 or int64 [M], table [V, D] for the tokens vocab_start .. vocab_start + V - 1, out [M, D].
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        tokens.dim() == 1 and tokens.dtype in (torch.int32, torch.int64) and tokens.is_contiguous(),
        f"argument tokens must be contiguous int32 or int64 [M]; got {tokens.dtype} {list(tokens.shape)}",
    )
    require(
        table.dim() == 2 and table.is_contiguous() and table.is_floating_point(),
        f"argument table must be a contiguous floating-point [V, D]; "
        f"got {table.dtype} {list(table.shape)} with strides {table.stride()}",
    )
    require(vocab_start >= 0, f"argument vocab_start must be at least 0; got {vocab_start}")
    num_tokens, dim = tokens.shape[0], table.shape[1]
    require(
        tuple(out.shape) == (num_tokens, dim) and (out.stride(1) == 1 or dim == 1),
        f"argument out must be [M, D] = {[num_tokens, dim]}, contiguous in its last dim; "
        f"got {list(out.shape)} with strides {out.stride()}",
    )
    require(out.dtype == table.dtype, f"argument out must be {table.dtype} like table; got {out.dtype}")
    _embedding_kernel[(num_tokens, triton.cdiv(dim, BLOCK_D))](
        tokens,
        table,
        out,
        vocab_start,
        table.shape[0],
        out.stride(0),
        DIM=dim,
        BLOCK_D=BLOCK_D,
        PDL=pdl,
        num_warps=4,
        **launch_options(pdl=pdl),
    )
