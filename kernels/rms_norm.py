"""RMSNorm of each token's row, with the residual addition before it where asked for, in one launch.

    h = x + residual, rounded to the dtype of residual_out      (h = x without a residual)
    out = h / sqrt(mean(h^2) + eps) * weight

The normalised value is computed from the rounded sum, because that is what the next layer's residual will be made of
(as in SGLang's and vLLM's fused_add_rms_norm). All arithmetic is float32, rounded once on the way out.

    x             [M, D]  rows of any stride, contiguous in the last dim
    weight        [D]     contiguous
    out           [M, D]  as x
    residual      [M, D]  as x, or absent
    residual_out  [M, D]  as x, present with residual; another tensor, so that a replayed step gives the same bits

Letters: M tokens in the step, D values of a row (GLM-5: 6144 hidden, 2048 query latent, 512 key-value latent).
Source: Zhang and Sennrich 2019 (arXiv 1910.07467); GLM-5: eps 1e-5.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require

MAX_DIM = 32_768
"""A row stays in registers between the sum and the scaling; a longer one would spill at 1024 threads."""

FLOAT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised rows and their input h, both float32 (float64 for float64 input); h is rounded to residual's dtype."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    h = x.to(dtype)
    if residual is not None:
        h = (h + residual.to(dtype)).to(residual.dtype).to(dtype)
    return h * torch.rsqrt(h.square().mean(dim=-1, keepdim=True) + eps) * weight.to(dtype), h


@triton.jit
def _rms_norm_kernel(
    p_x,
    p_weight,
    p_out,
    p_residual,
    p_residual_out,
    stride_x,
    stride_out,
    stride_residual,
    stride_residual_out,
    eps,
    DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program normalises one row."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BLOCK_D)
    in_d = o_d < DIM
    b_weight = tl.load(p_weight + o_d, mask=in_d, other=0.0).to(tl.float32)  # [D]
    b_h = tl.load(p_x + i_m * stride_x + o_d, mask=in_d, other=0.0).to(tl.float32)  # [D]
    if HAS_RESIDUAL:
        b_residual = tl.load(p_residual + i_m * stride_residual + o_d, mask=in_d, other=0.0).to(tl.float32)  # [D]
        b_sum = (b_h + b_residual).to(p_residual_out.dtype.element_ty)
        tl.store(p_residual_out + i_m * stride_residual_out + o_d, b_sum, mask=in_d)
        b_h = b_sum.to(tl.float32)
    mean_square = tl.sum(b_h * b_h, axis=0) / DIM
    b_out = b_h * (1.0 / tl.sqrt(mean_square + eps)) * b_weight
    tl.store(p_out + i_m * stride_out + o_d, b_out.to(p_out.dtype.element_ty), mask=in_d)


def rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_out: torch.Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Write the normalised rows of x (+ residual) into `out`, and the rounded sum into `residual_out`.

    Shapes: x, out, residual, residual_out [M, D] with a contiguous last dim, weight contiguous [D]; each bfloat16,
    float16 or float32.
    Raises: ValueError for any other shape, dtype or layout; for residual without residual_out or the reverse; for
    residual_out that is residual.
    """
    require(x.dim() == 2, f"argument x must be [M, D]; got {list(x.shape)}")
    num_tokens, dim = x.shape
    require(0 < dim <= MAX_DIM, f"argument x must have rows of 1 to {MAX_DIM} values; got {dim}")
    require(
        tuple(weight.shape) == (dim,) and weight.is_contiguous(),
        f"argument weight must be contiguous [D] = [{dim}]; got {list(weight.shape)} with strides {weight.stride()}",
    )
    require(weight.dtype in FLOAT_DTYPES, f"argument weight must be one of {FLOAT_DTYPES}; got {weight.dtype}")
    require(eps >= 0.0, f"argument eps must be at least 0; got {eps}")
    require(
        (residual is None) == (residual_out is None),
        "argument residual_out must be given exactly when residual is; "
        f"got residual {'absent' if residual is None else 'present'}, "
        f"residual_out {'absent' if residual_out is None else 'present'}",
    )
    require(
        residual is None or residual_out is not residual,
        "argument residual_out must be another tensor than residual: a step replayed twice would add x twice",
    )
    for name, tensor in (("x", x), ("out", out), ("residual", residual), ("residual_out", residual_out)):
        if tensor is None:
            continue
        require(tensor.shape == x.shape, f"argument {name} must be {list(x.shape)} like x; got {list(tensor.shape)}")
        require(tensor.dtype in FLOAT_DTYPES, f"argument {name} must be one of {FLOAT_DTYPES}; got {tensor.dtype}")
        require(
            tensor.stride(1) == 1 or dim == 1,
            f"argument {name} must be contiguous in its last dim; got stride {tensor.stride(1)}",
        )
    block_d = triton.next_power_of_2(dim)
    _rms_norm_kernel[(num_tokens,)](
        x,
        weight,
        out,
        residual,
        residual_out,
        x.stride(0),
        out.stride(0),
        residual.stride(0) if residual is not None else 0,
        residual_out.stride(0) if residual_out is not None else 0,
        eps,
        DIM=dim,
        BLOCK_D=block_d,
        HAS_RESIDUAL=residual is not None,
        PDL=pdl,
        # eight values a thread are one 16-byte load of each operand; beyond 16 warps the block-wide sum costs more
        num_warps=min(32, max(1, block_d // 256)),
        **launch_options(pdl=pdl),
    )
