"""What cannot be true of any model, whoever wrote its numbers: a user, a shipped file, or a checkpoint. No torch."""

from simulator.errors import Problem
from simulator.model import Attention, ModelSpec

MAX_SIZE = 1 << 24
LIMITS = {
    "num_hidden_layers": 1_000,
    "max_position_embeddings": (1 << 31) - 1,
    "n_routed_experts": 1 << 16,
    "num_experts_per_tok": 1 << 10,
    "num_attention_heads": 1 << 12,
    "index_n_heads": 1 << 12,
    "head_dim": 1 << 12,
    "qk_nope_head_dim": 1 << 12,
    "qk_rope_head_dim": 1 << 12,
    "v_head_dim": 1 << 12,
    "index_head_dim": 1 << 12,
}
"""Above these a number is a slip of the pen, and planning the step would take all memory or all day."""

ALWAYS = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "num_attention_heads")
OF_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
OF_GQA = ("num_key_value_heads", "head_dim")
OF_INDEXER = ("index_topk_freq", "index_n_heads", "index_head_dim")
OF_EXPERTS = ("num_experts_per_tok", "moe_intermediate_size", "n_group", "topk_group")


def model_problems(model: ModelSpec) -> list[Problem]:
    """Every contradiction and every impossible number; of the latter alone where there are any."""
    return _sizes(model) or [*_attention(model), *_rope(model), *_indexer(model), *_experts(model)]


def _problem(model: ModelSpec, name: str, must: str) -> Problem:
    return Problem(key=f"model.{name}", value=getattr(model, name), must=must)


def _sizes(model: ModelSpec) -> list[Problem]:
    positive = [*ALWAYS, *(OF_MLA if model.attention is Attention.mla else OF_GQA)]
    positive += OF_INDEXER if model.has_indexer else ()
    positive += OF_EXPERTS if model.n_routed_experts else ()
    if model.n_routed_experts == 0 or model.first_k_dense_replace > 0:
        positive.append("intermediate_size")
    problems = []
    for name, value in vars(model).items():
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        least, most = int(name in positive), LIMITS.get(name, MAX_SIZE)
        if value < least:
            problems.append(_problem(model, name, f"must be at least {least}"))
        elif value > most:
            problems.append(_problem(model, name, f"must be at most {most}"))
    for name in ("rope_theta", "rope_scaling_factor", "rope_beta_fast", "rope_beta_slow"):
        if not getattr(model, name) > 0:
            problems.append(_problem(model, name, "must be above 0"))
    if model.rms_norm_eps < 0:
        problems.append(_problem(model, "rms_norm_eps", "must be at least 0"))
    return problems


def _attention(model: ModelSpec) -> list[Problem]:
    if model.attention is Attention.mla:
        unused = [name for name in ("attention_bias", "use_qk_norm") if getattr(model, name)]
        return [_problem(model, name, "belongs to attention=gqa alone") for name in unused]
    problems = []
    if model.num_attention_heads % model.num_key_value_heads:
        must = f"must divide num_attention_heads={model.num_attention_heads}"
        problems.append(_problem(model, "num_key_value_heads", must))
    if model.has_indexer:
        problems.append(_problem(model, "index_topk", "belongs to attention=mla alone"))
    return problems


def _rope(model: ModelSpec) -> list[Problem]:
    problems = []
    is_mla = model.attention is Attention.mla
    width = model.qk_rope_head_dim if is_mla else model.head_dim
    if model.rotary_dim < 2 or model.rotary_dim % 2 or model.rotary_dim > width:
        key = "model.qk_rope_head_dim" if is_mla else "model.partial_rotary_factor"
        must = f"must give an even number of rotating dims, at most {width}"
        problems.append(Problem(key=key, value=model.rotary_dim, must=must))
    if model.rope_scaling_factor != 1.0:
        if model.rope_original_max_position < 1:
            must = "must be at least 1 where rope_scaling_factor is not 1"
            problems.append(_problem(model, "rope_original_max_position", must))
        if model.rope_theta <= 1:
            problems.append(_problem(model, "rope_theta", "must be above 1 where rope_scaling_factor is not 1"))
    return problems


def _indexer(model: ModelSpec) -> list[Problem]:
    if not model.has_indexer:
        return []
    pattern, problems = model.index_topk_pattern, []
    if set(pattern) - {"F", "S"} or 0 < len(pattern) < model.num_hidden_layers:
        must = f"must have the letter F or S for each of num_hidden_layers={model.num_hidden_layers}"
        return [_problem(model, "index_topk_pattern", must)]
    if not model.has_full_indexer(0):
        name = "index_topk_pattern" if pattern else "index_skip_topk_offset"
        must = "leaves layer 0 without an indexer, and no earlier layer whose choice it could use"
        problems.append(_problem(model, name, must))
    if model.index_head_dim < model.qk_rope_head_dim:
        must = f"must hold the rotating dims: at least qk_rope_head_dim={model.qk_rope_head_dim}"
        problems.append(_problem(model, "index_head_dim", must))
    return problems


def _experts(model: ModelSpec) -> list[Problem]:
    problems = []
    if model.first_k_dense_replace > model.num_hidden_layers:
        must = f"must be between 0 and num_hidden_layers={model.num_hidden_layers}"
        problems.append(_problem(model, "first_k_dense_replace", must))
    experts, groups = model.n_routed_experts, model.n_group
    if not experts:
        return problems
    if model.num_experts_per_tok > experts:
        problems.append(_problem(model, "num_experts_per_tok", f"must be between 1 and n_routed_experts={experts}"))
    elif experts % groups:
        problems.append(_problem(model, "n_group", f"must divide n_routed_experts={experts}"))
    elif model.topk_group > groups:
        problems.append(_problem(model, "topk_group", f"must be between 1 and n_group={groups}"))
    elif groups > 1 and experts // groups < 2:
        problems.append(_problem(model, "n_group", "must leave two experts a group: the two best score it"))
    elif model.topk_group * (experts // groups) < model.num_experts_per_tok:
        must = f"must leave num_experts_per_tok={model.num_experts_per_tok} experts to choose from"
        problems.append(_problem(model, "topk_group", must))
    return problems
