"""Small model and quantisation configurations in the formats that users bring."""

import json

GLM = {
    "model_type": "glm_moe_dsa", "hidden_act": "silu", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512,
    "moe_intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 8,
    "n_shared_experts": 1, "n_routed_experts": 16, "num_experts_per_tok": 4, "routed_scaling_factor": 2.5,
    "kv_lora_rank": 64, "q_lora_rank": 128, "qk_rope_head_dim": 16, "qk_nope_head_dim": 48, "v_head_dim": 64,
    "n_group": 1, "topk_group": 1, "max_position_embeddings": 8192, "first_k_dense_replace": 2, "index_topk": 64,
    "index_head_dim": 32, "index_n_heads": 4, "rms_norm_eps": 1e-5, "norm_topk_prob": True, "rope_interleave": True,
    "indexer_rope_interleave": True, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
}  # fmt: skip
DEEPSEEK = {
    **{name: value for name, value in GLM.items() if not name.startswith("index") and name != "rope_parameters"},
    "model_type": "deepseek_v3", "n_group": 4, "topk_group": 2, "rope_theta": 10000, "topk_method": "noaux_tc",
    "rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
GLM4 = {
    "model_type": "glm4_moe", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "moe_intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32,
    "use_qk_norm": True, "attention_bias": True, "partial_rotary_factor": 0.5, "n_routed_experts": 16,
    "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "max_position_embeddings": 8192,
    "rope_theta": 1000000,
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3_moe", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "moe_intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 16,
    "num_experts_per_tok": 4, "max_position_embeddings": 8192, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}  # fmt: skip


def write(directory, values, name="config.json"):
    path = directory / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path
