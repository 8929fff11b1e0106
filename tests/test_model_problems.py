"""Models that cannot be: each is refused by the field that is wrong, and every shipped model passes."""

import pytest

from simulator.model_problems import model_problems
from simulator.profiles import conf_directory
from tests.configs import model

SHIPPED = sorted(path.stem for path in (conf_directory() / "model").glob("*.yaml") if path.stem != "from_hf")

WRONG = [
    ("glm5_tiny", {"hidden_size": 0}, "model.hidden_size=0 must be at least 1"),
    ("glm5_tiny", {"num_hidden_layers": 1001}, "model.num_hidden_layers=1001 must be at most 1000"),
    ("glm5_tiny", {"index_topk": -1}, "model.index_topk=-1 must be at least 0"),
    ("glm5_tiny", {"index_topk_freq": 0}, "model.index_topk_freq=0 must be at least 1"),
    ("glm5_tiny", {"index_topk_freq": 4}, "model.index_skip_topk_offset=0 leaves layer 0 without an indexer"),
    ("glm5_tiny", {"index_topk_pattern": "FS"}, "model.index_topk_pattern=FS must have the letter F or S for each of"),
    ("glm5_tiny", {"index_topk_pattern": "SFF"}, "model.index_topk_pattern=SFF leaves layer 0 without"),
    ("glm5_tiny", {"index_head_dim": 8}, "model.index_head_dim=8 must hold the rotating dims"),
    ("glm5_tiny", {"attention_bias": True}, "model.attention_bias=True belongs to attention=gqa alone"),
    ("glm5_tiny", {"qk_rope_head_dim": 15}, "model.qk_rope_head_dim=15 must give an even number of rotating dims"),
    ("glm5_tiny", {"moe_intermediate_size": 0}, "model.moe_intermediate_size=0 must be at least 1"),
    ("glm5_tiny", {"intermediate_size": 0}, "model.intermediate_size=0 must be at least 1"),
    ("glm5_tiny", {"first_k_dense_replace": 4}, "must be between 0 and num_hidden_layers=3"),
    ("glm5_tiny", {"num_experts_per_tok": 17}, "must be between 1 and n_routed_experts=16"),
    ("deepseek_v3_tiny", {"n_group": 0}, "model.n_group=0 must be at least 1"),
    ("deepseek_v3_tiny", {"n_group": 3}, "model.n_group=3 must divide n_routed_experts=16"),
    ("deepseek_v3_tiny", {"n_group": 16}, "model.n_group=16 must leave two experts a group"),
    ("deepseek_v3_tiny", {"topk_group": 5}, "model.topk_group=5 must be between 1 and n_group=4"),
    ("deepseek_v3_tiny", {"num_experts_per_tok": 9}, "model.topk_group=2 must leave num_experts_per_tok=9 experts"),
    ("deepseek_v3_tiny", {"rope_original_max_position": 0}, "model.rope_original_max_position=0 must be at least 1"),
    ("deepseek_v3_tiny", {"rope_theta": 1.0}, "model.rope_theta=1.0 must be above 1 where rope_scaling_factor"),
    ("deepseek_v3_tiny", {"rope_beta_fast": 0.0}, "model.rope_beta_fast=0.0 must be above 0"),
    ("qwen3_tiny", {"num_key_value_heads": 0}, "model.num_key_value_heads=0 must be at least 1"),
    ("qwen3_tiny", {"num_key_value_heads": 3}, "model.num_key_value_heads=3 must divide num_attention_heads=8"),
    ("qwen3_tiny", {"partial_rotary_factor": 2.0}, "model.partial_rotary_factor=64 must give an even number"),
    ("qwen3_tiny", {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 32}, "belongs to attention=mla alone"),
]


@pytest.mark.parametrize(("name", "changed", "sentence"), WRONG, ids=[sentence[:45] for _, _, sentence in WRONG])
def test_what_no_model_can_be_is_refused_by_field(name, changed, sentence):
    (problem,) = model_problems(model(name, **changed))
    assert sentence in str(problem)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_can_be(name):
    assert model_problems(model(name)) == []


def test_a_model_of_dense_layers_alone_can_be():
    assert model_problems(model("glm5_tiny", n_routed_experts=0, num_experts_per_tok=0, moe_intermediate_size=0)) == []
