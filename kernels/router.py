"""Choose the experts of each token from the router's logits: DeepSeek-V3's noaux_tc, in one launch.

    score = sigmoid(logits), or softmax(logits) over the experts
    ids = the K best of score + bias, best first            (without a bias: of score)
    weights = score[ids], / (their sum + 1e-20) if normalize, * scaling

With num_groups > 1 only experts of the topk_groups best groups are eligible. A group is E / num_groups neighbouring
experts, and is worth the sum of its two best score + bias. Ties go to the lower id, of groups and of experts. NaN
counts as smaller than -inf.

    logits   [M, E]  float32, rows of any stride, contiguous in the last dim
    bias     [E]     float32, contiguous, or absent
    ids      [M, K]  int32, contiguous
    weights  [M, K]  float32, contiguous

Letters: M tokens in the step, E experts (GLM-5: 256), K chosen experts (8), G groups (1), S experts of a group.
Source: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2; transformers' modeling_deepseek_v3 for the groups and the 1e-20.
"""

import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require
from kernels.order import EXCLUDED_KEY, key_id, key_value, order_key

MAX_EXPERTS = 512
"""One warp holds all experts of a token: 16 a thread."""

SCORINGS = ("sigmoid", "softmax")


def router_topk_reference(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    k: int,
    *,
    scoring: str,
    num_groups: int,
    topk_groups: int,
    normalize: bool,
    scaling: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int32 [M, K] and weights float32 [M, K] (float64 for float64 logits)."""
    logits = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    scores = logits.sigmoid() if scoring == "sigmoid" else logits.softmax(dim=-1)
    choice = scores if bias is None else scores + bias
    choice = choice.masked_fill(choice.isnan(), float("-inf"))
    if num_groups > 1:
        grouped = choice.unflatten(1, (num_groups, -1))  # [M, G, S]
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)  # [M, G]
        best_groups = torch.sort(group_scores, dim=-1, descending=True, stable=True).indices[:, :topk_groups]
        kept = torch.zeros_like(group_scores, dtype=torch.bool).scatter(1, best_groups, value=True)
        choice = grouped.masked_fill(~kept[:, :, None], float("-inf")).flatten(1)
    ids = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return ids.to(torch.int32), weights * scaling


@triton.jit
def _router_topk_kernel(
    p_logits,
    p_bias,
    p_ids,
    p_weights,
    stride_logits,
    scaling,
    NUM_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    TOPK_GROUPS: tl.constexpr,
    K: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program of one warp chooses for one token."""
    enter_grid(PDL)
    i_m = tl.program_id(0).to(tl.int64)
    p_row = p_logits + i_m * stride_logits
    o_g = tl.arange(0, BLOCK_G)
    o_s = tl.arange(0, BLOCK_S)
    o_e = o_g[:, None] * GROUP_SIZE + o_s[None, :]
    in_e = (o_g[:, None] < NUM_GROUPS) & (o_s[None, :] < GROUP_SIZE)
    b_logits = tl.load(p_row + o_e, mask=in_e, other=float("-inf"))  # [G, S]
    if SIGMOID:
        highest = 0.0
        total = 1.0
        b_choice = tl.sigmoid(b_logits)
    else:
        highest = tl.max(b_logits, axis=None)
        total = tl.sum(tl.exp(b_logits - highest), axis=None)
        b_choice = tl.exp(b_logits - highest) / total
    if HAS_BIAS:
        b_choice += tl.load(p_bias + o_e, mask=in_e, other=0.0)  # [G, S]
    b_keys = tl.where(in_e, order_key(b_choice, o_e), EXCLUDED_KEY)

    if TOPK_GROUPS < NUM_GROUPS:
        b_best = tl.max(b_keys, axis=1)  # [G]
        b_second = tl.max(tl.where(b_keys == b_best[:, None], EXCLUDED_KEY, b_keys), axis=1)  # [G]
        b_groups = order_key(key_value(b_best) + key_value(b_second), o_g)
        b_groups = tl.where(o_g < NUM_GROUPS, b_groups, EXCLUDED_KEY)
        b_kept = o_g < 0
        for _ in tl.static_range(TOPK_GROUPS):
            b_is_best = b_groups == tl.max(b_groups, axis=0)
            b_kept = b_kept | b_is_best
            b_groups = tl.where(b_is_best, EXCLUDED_KEY, b_groups)
        b_keys = tl.where(b_kept[:, None], b_keys, EXCLUDED_KEY)

    o_k = tl.arange(0, BLOCK_K)
    in_k = o_k < K
    b_ids = tl.zeros((BLOCK_K,), dtype=tl.int32)
    for i_k in tl.static_range(K):
        best = tl.max(b_keys, axis=None)
        b_ids = tl.where(o_k == i_k, key_id(best), b_ids)
        b_keys = tl.where(b_keys == best, EXCLUDED_KEY, b_keys)

    # the chosen logits are read again from the cache: a sum over all experts for each choice would cost more
    b_chosen = tl.load(p_row + b_ids, mask=in_k, other=float("-inf"))  # [K]
    b_weights = tl.sigmoid(b_chosen) if SIGMOID else tl.exp(b_chosen - highest) / total
    if NORMALIZE:
        b_weights = b_weights / (tl.sum(tl.where(in_k, b_weights, 0.0), axis=0) + 1e-20)
    tl.store(p_ids + i_m * K + o_k, b_ids, mask=in_k)
    tl.store(p_weights + i_m * K + o_k, b_weights * scaling, mask=in_k)


def router_topk(
    *,
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    ids: torch.Tensor,
    weights: torch.Tensor,
    scoring: str,
    num_groups: int,
    topk_groups: int,
    normalize: bool,
    scaling: float,
    pdl: bool = False,
) -> None:
    """Write the ids and the weights of each token's K experts, best first.

    Shapes: logits float32 [M, E], bias float32 [E] or None, ids int32 [M, K], weights float32 [M, K].
    Raises: ValueError for any other shape, dtype or layout; for an unknown scoring; for groups that do not divide E,
    hold fewer than two experts, or leave fewer than K to choose from.
    """
    require(
        logits.dim() == 2 and logits.dtype == torch.float32 and logits.stride(1) == 1,
        "argument logits must be float32 [M, E], contiguous in its last dim; "
        f"got {logits.dtype} {list(logits.shape)} with strides {logits.stride()}",
    )
    num_tokens, num_experts = logits.shape
    require(
        2 <= num_experts <= MAX_EXPERTS, f"argument logits must score 2 to {MAX_EXPERTS} experts; got {num_experts}"
    )
    if bias is not None:
        require(
            tuple(bias.shape) == (num_experts,) and bias.dtype == torch.float32 and bias.is_contiguous(),
            f"argument bias must be contiguous float32 [E] = [{num_experts}]; got {bias.dtype} {list(bias.shape)}",
        )
    require(
        ids.dim() == 2 and ids.shape[0] == num_tokens and ids.dtype == torch.int32 and ids.is_contiguous(),
        f"argument ids must be contiguous int32 [M, K] with M = {num_tokens}; got {ids.dtype} {list(ids.shape)}",
    )
    k = ids.shape[1]
    require(
        weights.shape == ids.shape and weights.dtype == torch.float32 and weights.is_contiguous(),
        f"argument weights must be contiguous float32 {list(ids.shape)} like ids; "
        f"got {weights.dtype} {list(weights.shape)}",
    )
    require(scoring in SCORINGS, f"argument scoring must be one of {SCORINGS}; got {scoring!r}")
    require(
        num_groups >= 1 and num_experts % num_groups == 0 and num_experts // num_groups >= 2,
        f"argument num_groups must split {num_experts} experts into equal groups of at least two; got {num_groups}",
    )
    require(1 <= topk_groups <= num_groups, f"argument topk_groups must be 1 to {num_groups}; got {topk_groups}")
    group_size = num_experts // num_groups
    require(
        1 <= k <= topk_groups * group_size,
        f"argument ids must have 1 to {topk_groups * group_size} columns, the experts of {topk_groups} groups; got {k}",
    )
    _router_topk_kernel[(num_tokens,)](
        logits,
        bias,
        ids,
        weights,
        logits.stride(0),
        scaling,
        NUM_GROUPS=num_groups,
        GROUP_SIZE=group_size,
        TOPK_GROUPS=topk_groups,
        K=k,
        BLOCK_G=triton.next_power_of_2(num_groups),
        BLOCK_S=triton.next_power_of_2(group_size),
        BLOCK_K=triton.next_power_of_2(k),
        HAS_BIAS=bias is not None,
        SIGMOID=scoring == "sigmoid",
        NORMALIZE=normalize,
        PDL=pdl,
        num_warps=1,
        **launch_options(pdl=pdl),
    )
