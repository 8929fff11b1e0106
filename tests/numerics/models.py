"""Scaled-down Hugging Face models with random weights, and the ModelSpec that our reader makes of their config.json."""

import dataclasses

import torch

from simulator.imports.model_config import read_model_config

TRANSFORMERS_LATENT_EPS = 1e-6
"""transformers builds the latents' norms with its default; engines give them rms_norm_eps (FACTS of the model)."""

# an eps so large that a norm with another one is seen at once
SMALL = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_experts_per_tok": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-3,
    "tie_word_embeddings": False, "attn_implementation": "eager",
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 8, "n_shared_experts": 1, "n_routed_experts": 8, "kv_lora_rank": 32, "q_lora_rank": 48,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "qk_nope_head_dim": 32, "first_k_dense_replace": 1, "n_group": 4,
    "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 4, "head_dim": 16}
# of the 8 frequencies, 0 to 2 stay and 4 to 7 are stretched: both bounds are rounded, and lie within
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 4,
    "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip


def configurations(transformers):
    """Name, configuration and model class of each comparison."""
    # 16 index heads: with few, positions often score exactly zero (every head cut off by ReLU), and ties have no order
    glm = {**SMALL, **LATENT, "index_topk": 12, "index_head_dim": 32, "index_n_heads": 16}
    shared = {**glm, "num_hidden_layers": 4, "index_topk_freq": 2, "index_skip_topk_offset": 1}
    glm4 = {
        **SMALL, **GROUPED, "n_shared_experts": 1, "n_routed_experts": 8, "first_k_dense_replace": 1,
        "attention_bias": True, "norm_topk_prob": True, "routed_scaling_factor": 1.5,
        "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
    }  # fmt: skip
    return {
        "glm_moe_dsa": (transformers.GlmMoeDsaConfig(**glm), transformers.GlmMoeDsaForCausalLM),
        "glm_moe_dsa-shared": (
            transformers.GlmMoeDsaConfig(**shared),
            transformers.GlmMoeDsaForCausalLM,
        ),
        "deepseek_v3": (transformers.DeepseekV3Config(**SMALL, **LATENT), transformers.DeepseekV3ForCausalLM),
        "deepseek_v3-yarn": (
            transformers.DeepseekV3Config(**SMALL, **LATENT, rope_parameters=YARN),
            transformers.DeepseekV3ForCausalLM,
        ),
        "deepseek_v32": (
            transformers.DeepseekV32Config(**{**glm, "rope_parameters": {**YARN, "mscale": 0.7}}),
            transformers.DeepseekV32ForCausalLM,
        ),
        "glm4_moe": (transformers.Glm4MoeConfig(**glm4, use_qk_norm=True), transformers.Glm4MoeForCausalLM),
        "glm4_moe-air": (
            transformers.Glm4MoeConfig(**{**glm4, "use_qk_norm": False, "norm_topk_prob": False}),
            transformers.Glm4MoeForCausalLM,
        ),
        "qwen3_moe": (
            transformers.Qwen3MoeConfig(
                **SMALL, **GROUPED, num_experts=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]
            ),
            transformers.Qwen3MoeForCausalLM,
        ),
    }  # fmt: skip


def random_model(name, transformers, **changes):
    """A model in float32 whose every parameter, norm and bias is random and of sensible size."""
    config, model_class = configurations(transformers)[name]
    config.update(changes)
    model = model_class(config).float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if key.endswith(("norm.weight", "layernorm.weight")):
                tensor.copy_(1 + 0.2 * noise)
            elif tensor.dim() == 1:
                tensor.copy_(0.1 * noise)
            elif "embed_tokens" in key:
                tensor.copy_(noise)
            else:
                tensor.copy_(noise * 1.5 * tensor.shape[-1] ** -0.5)
    return model


def spec_of(model, directory):
    """What our reader makes of the model's own config.json."""
    model.config.save_pretrained(directory)
    spec, _ = read_model_config(directory)
    return spec


def comparison(name, transformers, directory, *, prepare=lambda state: None, **changes):
    """Model and spec that must compute the same; `prepare` may change the weights in place first."""
    model = random_model(name, transformers, **changes)
    with torch.no_grad():
        prepare(model.state_dict())
    return model, dataclasses.replace(spec_of(model, directory), latent_norm_eps=TRANSFORMERS_LATENT_EPS)
