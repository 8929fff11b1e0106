"""Hugging Face model configurations: read right, or refused with the field that is wrong."""

import pytest

from simulator.errors import BadInputError
from simulator.imports.model_config import read_model_config
from simulator.model import Attention, Scoring
from tests.imports.configs import DEEPSEEK, GLM, GLM4, QWEN3, write


def read(tmp_path, values):
    return read_model_config(write(tmp_path, values))


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def test_glm_is_read_field_by_field(tmp_path):
    model, notes = read(tmp_path, GLM)
    assert (model.attention, model.scoring_func, model.rope_theta) == (Attention.mla, Scoring.sigmoid, 1e6)
    assert (model.hidden_size, model.q_lora_rank, model.index_topk, model.n_routed_experts) == (256, 128, 64, 16)
    assert model.indexer_rope_interleave
    absent = "index_topk_freq=1, index_skip_topk_offset=2"
    assert notes == [f"config.json does not say {absent}: the published implementation's values are used"]


def test_a_directory_stands_for_its_config_json(tmp_path):
    write(tmp_path, GLM)
    model, _ = read_model_config(tmp_path)
    assert model.name == tmp_path.name


def test_yarn_is_read_from_rope_scaling(tmp_path):
    model, _ = read(tmp_path, DEEPSEEK)
    assert (model.rope_scaling_factor, model.rope_original_max_position) == (40.0, 4096)
    assert (model.rope_mscale, model.rope_mscale_all_dim, model.rope_theta) == (1.0, 1.0, 1e4)
    assert not model.has_indexer
    assert (model.n_group, model.topk_group) == (4, 2)


def test_deepseek_v32_rotates_its_indexer_in_halves(tmp_path):
    indexer = {"index_topk": 64, "index_n_heads": 4, "index_head_dim": 32}
    model, _ = read(tmp_path, {**DEEPSEEK, **indexer, "model_type": "deepseek_v32"})
    assert model.has_indexer
    assert not model.indexer_rope_interleave


def test_grouped_query_models(tmp_path):
    glm4, _ = read(tmp_path, GLM4)
    assert (glm4.attention, glm4.rotary_dim, glm4.attention_bias) == (Attention.gqa, 16, True)
    qwen3, _ = read(tmp_path, QWEN3)
    assert (qwen3.scoring_func, qwen3.n_routed_experts, qwen3.n_shared_experts) == (Scoring.softmax, 16, 0)
    assert qwen3.use_qk_norm
    assert not any(qwen3.is_dense(layer) for layer in range(4))


def test_what_the_file_does_not_say_is_said(tmp_path):
    _, notes = read(tmp_path, without(GLM, "rms_norm_eps"))
    assert "does not say rms_norm_eps=1e-05" in notes[0]


def test_what_is_not_understood_is_named(tmp_path):
    _, notes = read(tmp_path, {**GLM, "gated_delta": 3, "num_nextn_predict_layers": 1})
    assert any("not understood" in note and "gated_delta" in note for note in notes)
    assert any("multi-token-prediction" in note for note in notes)


def test_a_nested_language_model_is_found(tmp_path):
    model, _ = read(tmp_path, {"model_type": "wrapper", "text_config": GLM})
    assert model.hidden_size == 256


def test_an_alias_stands_for_its_field(tmp_path):
    model, _ = read(tmp_path, {**without(GLM, "n_routed_experts"), "num_local_experts": 12})
    assert model.n_routed_experts == 12


def test_a_pattern_says_which_layers_have_an_indexer(tmp_path):
    model, _ = read(tmp_path, {**GLM, "index_topk_pattern": "FSSFSS"})
    assert [model.has_full_indexer(layer) for layer in range(6)] == [True, False, False, True, False, False]


def test_indexer_types_say_the_same_layer_by_layer(tmp_path):
    types = ["full", "shared", "full", "shared", "shared", "full"]
    model, notes = read(tmp_path, {**GLM, "indexer_types": types})
    assert [model.has_full_indexer(layer) for layer in range(6)] == [kind == "full" for kind in types]
    assert not any("not understood" in note for note in notes)


def test_indexer_types_that_follow_frequency_and_offset_leave_the_rule_in_place(tmp_path):
    types = ["full", "full", "shared", "shared", "full", "shared"]
    shared = {"index_topk_freq": 3, "index_skip_topk_offset": 2, "indexer_types": types}
    model, _ = read(tmp_path, {**GLM, **shared})
    assert model.index_topk_pattern == ""
    assert [model.has_full_indexer(layer) for layer in range(6)] == [True, True, False, False, True, False]


def test_indexer_types_win_over_frequency_and_that_is_said(tmp_path):
    model, notes = read(tmp_path, {**GLM, "index_topk_freq": 3, "indexer_types": ["full"] * 6})
    assert all(model.has_full_indexer(layer) for layer in range(6))
    assert any("indexer_types and index_topk_freq=3 name other layers" in note for note in notes)


def test_null_is_as_good_as_absent(tmp_path):
    model, notes = read(tmp_path, {**DEEPSEEK, "n_group": None, "topk_group": None})
    assert (model.n_group, model.topk_group) == (8, 4)
    assert "n_group=8" in notes[0]


def test_layers_said_once_more_are_read(tmp_path):
    again = {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4, "layer_types": ["indexed_attention"] * 6}
    _, notes = read(tmp_path, {**GLM, **again, "qk_head_dim": 64})
    assert not any("not understood" in note for note in notes)


def test_fields_of_other_families_are_named_not_read(tmp_path):
    model, notes = read(tmp_path, {**QWEN3, "index_topk": 64})
    assert not model.has_indexer
    assert any("left out: index_topk" in note for note in notes)


def test_rotary_fields_that_are_not_understood_are_named(tmp_path):
    _, notes = read(tmp_path, {**DEEPSEEK, "rope_scaling": {**DEEPSEEK["rope_scaling"], "attention_factor": 2.0}})
    assert any("of the rotary embedding, and left out: attention_factor" in note for note in notes)


WRONG = [
    ("{", "is not JSON"),
    ("[1, 2]", "must hold a JSON object, not a list"),
    ("[" * 10_000_000, "nested too deeply"),
    ({**GLM, "model_type": "llama"}, "model_type='llama' is not known; known are deepseek_v3"),
    (without(GLM, "hidden_size"), "hidden_size missing"),
    (without(GLM, "hidden_size", "v_head_dim"), "hidden_size, v_head_dim missing"),
    ({**GLM, "hidden_size": "256"}, "hidden_size='256' must be a whole number"),
    ({**GLM, "hidden_size": 256.5}, r"hidden_size=256\.5 must be a whole number"),
    ({**GLM, "hidden_size": True}, "hidden_size=True must be a whole number"),
    ({**GLM, "rope_parameters": {"rope_theta": float("nan")}}, "rope_theta=nan must be a finite number"),
    ({**GLM, "rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic' is not known"),
    ({**DEEPSEEK, "rope_scaling": {"type": "yarn"}}, "lacks factor, original_max_position_embeddings"),
    ({**DEEPSEEK, "rope_scaling": 3}, "rope_scaling=3 must be an object"),
    ({**GLM, "index_topk": 0}, "index_topk=0 must be at least 1"),
    ({**GLM, "index_topk_pattern": "FFFFF"}, "has 5 letters; it must have one for each of num_hidden_layers=6"),
    ({**GLM, "index_topk_pattern": "SFFFFF"}, "must begin with F"),
    ({**GLM, "index_topk_pattern": "FXFFFF"}, "must be the letters F .full. and S .shared."),
    ({**GLM, "num_local_experts": 8}, "num_local_experts=8 and n_routed_experts=16 contradict each other"),
    ({**GLM, "hidden_act": "gelu"}, "hidden_act='gelu' is not known"),
    ({**GLM, "rope_interleave": "yes"}, "rope_interleave='yes' must be true or false"),
    ({**GLM, "scoring_func": "tanh"}, "scoring_func='tanh' must be sigmoid or softmax"),
    ({**QWEN3, "mlp_only_layers": [1]}, r"mlp_only_layers=\[1\] is not known"),
    ({**QWEN3, "attention_bias": True}, "attention_bias=True is not known to the step; known: False"),
    ({**QWEN3, "use_qk_norm": False}, "use_qk_norm=False is not known to the step; known: True"),
    ({**QWEN3, "shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size=64 is not known"),
    ({**DEEPSEEK, "attention_bias": True}, "attention_bias=True is not known to the step; known: False"),
    ({**GLM, "model_type": ["glm_moe_dsa"]}, r"model_type=\['glm_moe_dsa'\] is not known"),
    ({**GLM, "n_routed_experts": 0}, "n_routed_experts=0 must be at least 1"),
    ({**GLM, "qk_head_dim": 65}, r"qk_head_dim=65 must be qk_nope_head_dim \+ qk_rope_head_dim = 64"),
    ({**GLM, "rope_theta": 1e4}, "rope_theta=10000.0 and rope_theta=1000000.0 within contradict each other"),
    ({**GLM, "rope_scaling": {"type": "yarn"}}, "rope_parameters and rope_scaling contradict each other"),
    ({**GLM, "mlp_layer_types": ["sparse"] * 6}, "mlp_layer_types must be dense in the first 2 layers and sparse in"),
    ({**GLM, "layer_types": ["full_attention"] * 6}, "layer_types must be deepseek_sparse_attention or indexed_att"),
    ({**GLM, "indexer_types": ["full", "half"]}, "indexer_types must be the letters"),
    (
        {**GLM, "indexer_types": ["full"] * 6, "index_topk_pattern": "FSFSFS"},
        "indexer_types and index_topk_pattern contradict",
    ),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_files_are_refused_by_field(values, message, tmp_path):
    with pytest.raises(BadInputError, match=message):
        read(tmp_path, values)


def test_no_file_and_no_text(tmp_path):
    with pytest.raises(BadInputError, match="does not exist"):
        read_model_config(tmp_path / "nothing.json")
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    with pytest.raises(BadInputError, match="is not a text file"):
        read_model_config(tmp_path / "binary.json")
