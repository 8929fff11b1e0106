"""The other kinds of attention through Triton's kernels: grouped-query heads, and latents without an indexer."""

import pytest

from simulator.deployment import Deployment
from simulator.step.build import build_step
from tests.configs import model, recipe
from tests.step.test_launch import ACTIVATIONS, check_every_operation

SMALL = {
    "num_hidden_layers": 1, "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_attention_heads": 4,
}  # fmt: skip
GROUPED = {"head_dim": 16, "num_key_value_heads": 2}
MODELS = {
    "softmax router, head norms, no dense layer": ("qwen3_tiny", {**GROUPED}),
    "bias, half a head rotates": (
        "qwen3_tiny",
        {**GROUPED, "attention_bias": True, "partial_rotary_factor": 0.5, "use_qk_norm": False},
    ),
    "bias, norms and shared expert": (
        "qwen3_tiny",
        {**GROUPED, "attention_bias": True, "n_shared_experts": 1, "scoring_func": "sigmoid"},
    ),
    "latents, groups of experts, YaRN": (
        "deepseek_v3_tiny",
        {"first_k_dense_replace": 0, "n_group": 2, "topk_group": 1, "q_lora_rank": 32, "kv_lora_rank": 32}
        | {"qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16},
    ),
}


CASES = [*((kind, 2) for kind in MODELS), ("bias, norms and shared expert", 4)]


@pytest.mark.parametrize(("kind", "tp"), CASES)
def test_each_operation_writes_what_its_reference_writes(kind, tp, device, compute_dtype):
    """With tp=4 a key head of grouped-query attention is on two ranks."""
    name, changed = MODELS[kind]
    spec = model(name, **SMALL, **changed)
    deployment = Deployment(tp=tp, contexts=[40, 7])
    step = build_step(spec, recipe("bf16"), deployment, activation=ACTIVATIONS[compute_dtype])
    check_every_operation(step, device, tp_size=tp)
