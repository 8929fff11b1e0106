"""Model types and the fields of their `config.json`: required, with a default, fixed, or of no matter. No torch.

Sources: transformers 5.24, configuration_{glm_moe_dsa,deepseek_v3,deepseek_v32,glm4_moe,qwen3_moe}.py, and the
published config.json files of each type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.model import Attention, Scoring

ALIASES = {
    "num_local_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "moe_topk": "num_experts_per_tok",
    "num_mtp_layers": "num_nextn_predict_layers",
}
"""Other names of a field, and the name used here."""

WHOLE = {
    "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "num_attention_heads",
    "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "index_topk", "index_n_heads", "index_head_dim", "index_topk_freq", "index_skip_topk_offset",
    "intermediate_size", "first_k_dense_replace", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "moe_intermediate_size", "n_group", "topk_group",
}  # fmt: skip
REAL = {"rms_norm_eps", "rope_theta", "partial_rotary_factor", "routed_scaling_factor"}
"""Fields of numbers by type; the other fields of a family are true or false."""

ELSEWHERE = {
    "model_type", "quantization_config", "rope_scaling", "rope_parameters", "scoring_func", "num_nextn_predict_layers",
    "tie_word_embeddings", "index_topk_pattern", "indexer_types", "mlp_layer_types", "layer_types", "qk_head_dim",
    "moe_router_dtype",
}  # fmt: skip
"""Fields that are read, but not into a field of the same name."""

NO_MATTER = {
    "architectures", "torch_dtype", "dtype", "transformers_version", "initializer_range", "use_cache", "bos_token_id",
    "eos_token_id", "pad_token_id", "attention_dropout", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp",
    "auto_map", "_name_or_path", "router_aux_loss_coef", "output_router_logits", "sliding_window", "max_window_layers",
    "index_share_for_mtp_iteration",
    # what older versions of transformers write into every nested configuration
    "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "id2label", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "prefix", "problem_type", "pruned_heads", "remove_invalid_values",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p",
    "torchscript", "typical_p", "use_bfloat16",
}  # fmt: skip
"""Fields of training, generation and bookkeeping: they change nothing in a decode step."""

ONLY: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",), "moe_layer_freq": (1,), "use_sliding_window": (False, None), "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None), "topk_method": ("noaux_tc", None), "mlp_bias": (False, None),
    "shared_expert_intermediate_size": (0, None),
}  # fmt: skip
"""Values of fields that the step knows; any other would be another model."""

NO_BIAS: Mapping[str, tuple[Any, ...]] = {"attention_bias": (False, None), "qkv_bias": (False, None)}

COMMON = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size",
          "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts", "max_position_embeddings")  # fmt: skip
MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
INDEXER = ("index_topk", "index_n_heads", "index_head_dim")


@dataclass(frozen=True, kw_only=True)
class Family:
    """What one model type asks for."""

    attention: Attention
    required: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that may be absent, as the published implementation has them."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the family that no field of its config.json states."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """As ONLY, for this family."""
    no_matter: frozenset[str] = frozenset()
    """As NO_MATTER, for this family."""


MLA_NO_MATTER = frozenset({"num_key_value_heads", "head_dim"})
"""Latent attention has as many key heads as heads, and the widths of its heads stand in other fields."""

DEEPSEEK_ROUTER = {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}

DEEPSEEK_V3 = Family(
    attention=Attention.mla,
    required=(*COMMON, *MLA, "n_shared_experts", "first_k_dense_replace"),
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_interleave": True, **DEEPSEEK_ROUTER},
    fixed={"scoring_func": Scoring.sigmoid},
    only=NO_BIAS,
    no_matter=MLA_NO_MATTER,
)
DEEPSEEK_V32 = Family(
    attention=Attention.mla,
    required=(*DEEPSEEK_V3.required, *INDEXER),
    defaults=DEEPSEEK_V3.defaults,
    fixed={"scoring_func": Scoring.sigmoid, "indexer_rope_interleave": False},
    only=NO_BIAS,
    no_matter=MLA_NO_MATTER,
)
GLM_MOE_DSA = Family(
    attention=Attention.mla,
    required=(*COMMON, *MLA, *INDEXER, "n_shared_experts", "first_k_dense_replace"),
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 2.5, "indexer_rope_interleave": True, "rope_interleave": True,
        "index_topk_freq": 1, "index_skip_topk_offset": 2,
    },
    fixed={"scoring_func": Scoring.sigmoid},
    only=NO_BIAS,
    no_matter=MLA_NO_MATTER,
)  # fmt: skip
GLM4_MOE = Family(
    attention=Attention.gqa,
    required=(*COMMON, "num_key_value_heads", "head_dim", "n_shared_experts", "first_k_dense_replace"),
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_bias": False,
        "use_qk_norm": False, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    },
    fixed={"scoring_func": Scoring.sigmoid, "rope_interleave": False},
)  # fmt: skip
QWEN3_MOE = Family(
    attention=Attention.gqa,
    required=(*COMMON, "num_key_value_heads", "head_dim"),
    defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4, "norm_topk_prob": False},
    fixed={"scoring_func": Scoring.softmax, "use_qk_norm": True, "rope_interleave": False},
    # a bias of this family would be one of the output projection too, which the step has not
    only={**NO_BIAS, "use_qk_norm": (True, None)},
)

FAMILIES = {
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v32": DEEPSEEK_V32,
    "glm4_moe": GLM4_MOE,
    "glm_moe_dsa": GLM_MOE_DSA,
    "kimi_k2": DEEPSEEK_V3,
    "qwen3_moe": QWEN3_MOE,
}
