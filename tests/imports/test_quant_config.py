"""Quantisation configurations of three tools, as recipes."""

import dataclasses

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
    assert notes == []


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
    assert "128 x 128" in notes[0]


def test_block_fp8(tmp_path):
    described = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": []}
    recipe, _ = read(tmp_path, described, model=GLM4)
    assert formats(recipe) == formats(shipped("fp8")) | {
        "attention_q_b": WeightFormat.bf16,
        "indexer": WeightFormat.bf16,
    }


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
