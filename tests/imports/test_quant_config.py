"""Quantisation configurations of three tools, as recipes."""

import dataclasses
import time

import pytest

from simulator.errors import BadInputError
from simulator.imports.model_config import read_model_config
from simulator.imports.quant_config import read_recipe
from simulator.recipe import WeightFormat
from tests.configs import recipe as shipped
from tests.imports.configs import GLM, GLM4, write

NVFP4_SCHEME = {"num_bits": 4, "type": "float", "group_size": 16}


def read(tmp_path, quantization, *, model=GLM, beside=None):
    values = model if quantization is None else {**model, "quantization_config": quantization}
    path = write(tmp_path, values)
    if beside is not None:
        write(tmp_path, beside, "hf_quant_config.json")
    spec, _ = read_model_config(path)
    return read_recipe(path, spec)


def formats(recipe):
    return {name: value for name, value in dataclasses.asdict(recipe).items() if isinstance(value, WeightFormat)}


def test_the_nvidia_recipe_is_read_from_hf_quant_config(tmp_path):
    excluded = ["lm_head", *(f"model.layers.{layer}.self_attn*" for layer in range(6))]
    described = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": excluded}}
    recipe, _ = read(tmp_path, None, beside=described)
    assert formats(recipe) == formats(shipped("nvidia_glm5"))


def test_experts_only_is_read_from_config_json(tmp_path):
    ignored = ["lm_head", "model.layers.0*", "model.layers.1*", "*self_attn*", "*shared_experts*"]
    recipe, _ = read(tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored})
    assert formats(recipe) == formats(shipped("experts_only"))


def test_compressed_tensors_with_regular_expressions(tmp_path):
    groups = {"group_0": {"targets": ["Linear"], "weights": NVFP4_SCHEME}}
    ignored = ["lm_head", r"re:.*self_attn\..*"]
    described = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored}
    recipe, notes = read(tmp_path, described)
    assert formats(recipe) == formats(shipped("nvidia_glm5"))
    assert [note for note in notes if "activations stay in BF16" not in note] == []


def test_compressed_tensors_with_two_formats(tmp_path):
    groups = {
        "experts": {"targets": ["re:.*mlp.*"], "weights": NVFP4_SCHEME},
        "attention": {"targets": [r"re:.*self_attn\.o_proj"], "weights": {"num_bits": 8, "type": "float"}},
    }
    recipe, _ = read(tmp_path, {"quant_method": "compressed-tensors", "config_groups": groups})
    assert (recipe.routed_down, recipe.attention_out) == (WeightFormat.nvfp4, WeightFormat.fp8)
    assert recipe.attention_q_b is WeightFormat.bf16


def test_absent_targets_are_noted(tmp_path):
    groups = {"group_0": {"weights": NVFP4_SCHEME}}
    _, notes = read(tmp_path, {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]})
    assert "names no targets" in notes[0]


def test_mixed_precision_by_layer_prefixes(tmp_path):
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16} for layer in range(2, 6)}
    layers |= {f"model.layers.{layer}.self_attn.o_proj": {"quant_algo": "FP8"} for layer in range(6)}
    beside = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    recipe, notes = read(tmp_path, None, beside=beside)
    assert (recipe.routed_gate_up, recipe.attention_out) == (WeightFormat.nvfp4, WeightFormat.fp8)
    assert any("128 x 128" in note for note in notes)


def test_block_fp8(tmp_path):
    described = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": []}
    recipe, _ = read(tmp_path, described, model=GLM4)
    assert formats(recipe) == formats(shipped("fp8")) | {
        "attention_q_b": WeightFormat.bf16,
        "indexer": WeightFormat.bf16,
    }


def test_targets_go_from_exact_names_over_expressions_to_classes(tmp_path):
    """The order of compressed-tensors' match_targets, whatever the order in the file."""
    fp8 = {"num_bits": 8, "type": "float"}
    groups = {
        "all": {"targets": ["Linear"], "weights": fp8},
        "experts": {"targets": [r"re:.*mlp\.experts.*"], "weights": NVFP4_SCHEME},
        "head": {"targets": ["lm_head"], "weights": NVFP4_SCHEME},
    }
    recipe, _ = read(tmp_path, {"quant_method": "compressed-tensors", "config_groups": groups})
    assert (recipe.routed_down, recipe.lm_head) == (WeightFormat.nvfp4, WeightFormat.nvfp4)
    assert (recipe.attention_out, recipe.shared_down) == (WeightFormat.fp8, WeightFormat.fp8)


def test_an_exact_name_of_compressed_tensors_is_no_prefix(tmp_path):
    groups = {"group_0": {"targets": ["Linear"], "weights": NVFP4_SCHEME}}
    ignored = ["lm_head", "model.layers.3.mlp"]
    recipe, notes = read(tmp_path, {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored})
    assert recipe.routed_down is WeightFormat.nvfp4
    assert any("lists what is no matrix of this model: model.layers.N.mlp" in note for note in notes)


def test_names_of_a_multimodal_checkpoint_are_found(tmp_path):
    """nvidia/Kimi-K2.5-NVFP4: the language model's names begin with language_model."""
    ignored = ["language_model.lm_head", "vision_tower*"]
    ignored += [f"language_model.model.layers.{layer}.self_attn*" for layer in range(6)]
    described = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored}
    path = write(tmp_path, {"model_type": "wrapper", "text_config": GLM, "quantization_config": described})
    spec, _ = read_model_config(path)
    recipe, notes = read_recipe(path, spec)
    assert formats(recipe) == formats(shipped("nvidia_glm5"))
    assert not any("no matrix" in note for note in notes)


def test_a_quantisation_within_the_language_model_is_found(tmp_path):
    """moonshotai/Kimi-K2.5 has it there, in 4-bit integers: not known, and not to be taken for unquantised."""
    integers = {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}}}
    inner = {**GLM, "quantization_config": {"quant_method": "compressed-tensors", **integers}}
    path = write(tmp_path, {"model_type": "wrapper", "text_config": inner})
    spec, _ = read_model_config(path)
    with pytest.raises(BadInputError, match=r"config_groups\.g\.weights has num_bits=4, type='int'"):
        read_recipe(path, spec)


def test_entries_that_name_nothing_are_told(tmp_path):
    ignored = ["lm_head", "model.layers.0.mixer", "model.layers.1.mixer", "model.layers.6*", "model.layers.2.mlp.gate"]
    _, notes = read(tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored})
    (note,) = [note for note in notes if "no matrix" in note]
    assert note.endswith("of this model: model.layers.N.mixer (2 times)")


def test_head_gates_kept_apart_are_told(tmp_path):
    """zai-org/GLM-5-FP8: the indexer's head gates are not converted."""
    kept = [f"model.layers.{layer}.self_attn.indexers_proj" for layer in range(6)]
    described = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": kept}
    recipe, notes = read(tmp_path, described)
    assert recipe.indexer is WeightFormat.fp8
    assert any("keeps the indexer's head gates (weights_proj) apart" in note for note in notes)
    assert not any("no matrix" in note for note in notes)


def test_a_quantised_cache_is_told(tmp_path):
    described = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    _, notes = read(tmp_path, None, beside=described)
    assert any("kv_cache_quant_algo" in note and "BF16" in note for note in notes)


def test_two_descriptions_that_differ_are_told(tmp_path):
    inside = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    beside = {"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}}
    recipe, notes = read(tmp_path, inside, beside=beside)
    assert recipe.lm_head is WeightFormat.bf16
    assert "hf_quant_config.json says otherwise of lm_head: config.json is believed" in notes


def test_the_unified_form_of_modelopt_has_groups(tmp_path):
    groups = {"group_0": {"targets": ["Linear"], "weights": NVFP4_SCHEME}}
    recipe, _ = read(tmp_path, {"quant_method": "modelopt", "config_groups": groups, "ignore": ["lm_head"]})
    assert (recipe.routed_down, recipe.lm_head) == (WeightFormat.nvfp4, WeightFormat.bf16)


def test_what_is_left_out_is_named(tmp_path):
    described = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"], "smoothing": 0.5}
    _, notes = read(tmp_path, described)
    assert any("left out: smoothing" in note for note in notes)


def test_a_list_of_every_expert_is_read_in_a_moment(tmp_path):
    """Lists of mixed precision name each expert's matrices: tens of thousands, not to be tried one by one."""
    model = {**GLM, "n_routed_experts": 4_000}
    experts = [f"model.layers.{layer}.mlp.experts.{expert}" for layer in range(2, 6) for expert in range(4_000)]
    layers = {f"{expert}.{name}_proj": {"quant_algo": "NVFP4"} for expert in experts for name in ("gate", "up", "down")}
    beside = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    started = time.perf_counter()
    recipe, notes = read(tmp_path, None, model=model, beside=beside)
    assert time.perf_counter() - started < 5
    assert recipe.routed_down is WeightFormat.nvfp4
    assert not any("no matrix" in note for note in notes)


def test_one_expert_that_differs_is_found(tmp_path):
    ignored = ["lm_head", "model.layers.3.mlp.experts.7.down_proj"]
    with pytest.raises(BadInputError, match=r"layers\.3\.mlp\.experts\.7\.down_proj is bf16; a recipe has one format"):
        read(tmp_path, {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignored})


def test_nothing_said_means_unquantised(tmp_path):
    recipe, notes = read(tmp_path, None)
    assert set(formats(recipe).values()) == {WeightFormat.bf16}
    assert "names no quantisation" in notes[0]


WRONG = [
    ({"quant_method": "awq"}, "quant_method='awq' is not known"),
    ("nvfp4", "the quantisation must be an object"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo='W4A8' is not known"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "group_size=32 must be 16"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": "lm_head"}, "ignore must be a list of names"),
    ({"quant_method": "compressed-tensors"}, "config_groups must be a non-empty object"),
    ({"quant_method": "modelopt"}, "config_groups must be a non-empty object"),
    (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {
                "a": {"targets": ["Linear"], "weights": NVFP4_SCHEME},
                "b": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}},
            },
        },
        "config_groups give Linear two formats",
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 3}}}},
        "config_groups.g.weights has num_bits=3",
    ),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": NVFP4_SCHEME}}, "ignore": ["re:(["]},
        r"'re:\(\[' is no regular expression",
    ),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, r"weight_block_size=\[64, 64\] must be \[128, 128\]"),
    (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.3.mlp.experts*"]},
        "model.layers.2.mlp.experts.0.gate_proj is nvfp4 and model.layers.3.mlp.experts.0.gate_proj is bf16",
    ),
]


@pytest.mark.parametrize(("quantization", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_what_is_not_understood_is_named(quantization, message, tmp_path):
    with pytest.raises(BadInputError, match=message):
        read(tmp_path, quantization)


def test_a_file_beside_without_the_quantisation_is_refused(tmp_path):
    with pytest.raises(BadInputError, match=r"hf_quant_config\.json lacks the object quantization"):
        read(tmp_path, None, beside={"producer": {"name": "modelopt"}})
