"""Weighted sum of each token's expert outputs, plus the shared expert's.

    out[t, d] = sum_k weights[t, k] * expert_out[t * K + k, d] + shared[t, d]        in float32, k ascending

    expert_out  [T * K, D]  contiguous, bfloat16, float16 or float32
    weights     [T, K]      float32, contiguous
    shared      [T, D]      or None; same dtype as expert_out, rows of any stride, last dim contiguous
    out         [T, D]      bfloat16, float16 or float32; rows of any stride, last dim contiguous

Letters: T tokens, K chosen experts of a token, D hidden size.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.weight_tile import ACTIVATION_DTYPES

MIN_PROGRAMS = 132
"""Programs to aim for: an SM each on H100 and H200."""


def combine_block_d(num_tokens: int, hidden_size: int) -> int:
    """Columns of a program: 1024, or fewer (at least 128) where that would leave SMs idle."""
    block_d = 1024
    while block_d > 128 and num_tokens * -(-hidden_size // block_d) < MIN_PROGRAMS:
        block_d //= 2
    return block_d


def combine_reference(
    expert_out: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor | None = None
) -> torch.Tensor:
    """Float32 [T, D] (float64 for float64 input)."""
    dtype = torch.float64 if expert_out.dtype == torch.float64 else torch.float32
    chosen = expert_out.to(dtype).view(*weights.shape, -1)  # [T, K, D]
    routed = (chosen * weights.to(dtype)[:, :, None]).sum(dim=1)
    return routed if shared is None else routed + shared.to(dtype)


@triton.jit
def _combine_kernel(
    p_expert_out,
    p_weights,
    p_shared,
    p_out,
    hidden_size,
    stride_shared_t,
    stride_out_t,
    K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program sums BLOCK_D columns of one token."""
    enter_grid(PDL)
    i_t = tl.program_id(1).to(tl.int64)
    o_d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    in_d = o_d < hidden_size
    b_sum = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for k in tl.static_range(K):
        b_row = tl.load(p_expert_out + (i_t * K + k) * hidden_size + o_d, mask=in_d, other=0.0).to(tl.float32)
        b_sum += tl.load(p_weights + i_t * K + k) * b_row
    if p_shared is not None:
        b_sum += tl.load(p_shared + i_t * stride_shared_t + o_d, mask=in_d, other=0.0).to(tl.float32)
    tl.store(p_out + i_t * stride_out_t + o_d, b_sum.to(p_out.dtype.element_ty), mask=in_d)


def combine(
    *,
    expert_out: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor | None,
    out: torch.Tensor,
    pdl: bool = False,
) -> None:
    """Write each token's weighted sum of its experts' rows, plus its shared row if there is one.

    Shapes and dtypes: in the module's docstring.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(
        weights.dim() == 2 and weights.dtype == torch.float32 and weights.is_contiguous(),
        f"argument weights must be contiguous float32 [T, K]; got {weights.dtype} {list(weights.shape)} "
        f"strides {weights.stride()}",
    )
    num_tokens, top_k = weights.shape
    require(
        expert_out.dim() == 2 and expert_out.shape[0] == num_tokens * top_k and expert_out.is_contiguous(),
        f"argument expert_out must be contiguous [T * K, D] with T * K = {num_tokens * top_k}; "
        f"got {list(expert_out.shape)} strides {expert_out.stride()}",
    )
    hidden_size = expert_out.shape[1]
    for name, tensor in (("shared", shared), ("out", out)):
        require(
            tensor is None or (tuple(tensor.shape) == (num_tokens, hidden_size) and tensor.stride(1) == 1),
            f"argument {name} must be [T, D] = {[num_tokens, hidden_size]} with a contiguous last dim; "
            f"got {None if tensor is None else (list(tensor.shape), tensor.stride())}",
        )
    require(
        shared is None or shared.dtype == expert_out.dtype,
        f"argument shared must be {expert_out.dtype} like expert_out; got {None if shared is None else shared.dtype}",
    )
    for name, tensor in (("expert_out", expert_out), ("out", out)):
        require(
            tensor.dtype in ACTIVATION_DTYPES,
            f"argument {name} must be one of {', '.join(map(str, ACTIVATION_DTYPES))}; got {tensor.dtype}",
        )
    block_d = combine_block_d(num_tokens, hidden_size)
    _combine_kernel[(triton.cdiv(hidden_size, block_d), num_tokens)](
        expert_out,
        weights,
        shared,
        out,
        hidden_size,
        0 if shared is None else shared.stride(0),
        out.stride(0),
        K=top_k,
        BLOCK_D=block_d,
        PDL=pdl,
        num_warps=block_d // 256 if block_d > 256 else 1,
        **launch_options(pdl=pdl),
    )
