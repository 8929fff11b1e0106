"""`model=from_hf model.path=...`: what the file says, what the user says beside it, and what wins."""

import pytest

from simulator.config import validate
from simulator.errors import BadInputError
from simulator.recipe import WeightFormat
from tests.configs import composed
from tests.imports.configs import DEEPSEEK, GLM, QWEN3, write
from tests.test_cli import run

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", "*self_attn*"]}


def config_of(directory, values, *overrides):
    return composed("model=from_hf", f"model.path={write(directory, values)}", *overrides)[0]


def test_the_recipe_comes_from_the_checkpoint(tmp_path):
    config = config_of(tmp_path, {**GLM, "quantization_config": NVFP4})
    assert (config.recipe.name, config.recipe.routed_down) == ("from_checkpoint", WeightFormat.nvfp4)
    assert config.model.hidden_size == 256
    assert config.model.path is not None


def test_a_recipe_that_the_user_names_wins(tmp_path):
    config = config_of(tmp_path, {**GLM, "quantization_config": NVFP4}, "recipe=bf16")
    assert (config.recipe.name, config.recipe.routed_down) == ("bf16", WeightFormat.bf16)


def test_a_recipe_named_explicitly_spares_an_unknown_quantisation(tmp_path):
    values = {**GLM, "quantization_config": {"quant_method": "awq"}}
    with pytest.raises(BadInputError, match="quant_method='awq' is not known"):
        config_of(tmp_path, values)
    assert config_of(tmp_path, values, "recipe=bf16").recipe.name == "bf16"


@pytest.mark.parametrize("plus", ["", "++"])
def test_fields_beside_the_path_win(plus, tmp_path):
    values = {**GLM, "quantization_config": NVFP4}
    config = config_of(
        tmp_path, values, f"{plus}model.num_hidden_layers=4", "model.rope_interleave=true", "recipe.attention_out=fp8"
    )
    assert config.model.num_hidden_layers == 4
    assert config.recipe.attention_out is WeightFormat.fp8
    assert config.recipe.routed_down is WeightFormat.nvfp4


def test_an_override_that_equals_the_schemas_own_value_wins_too(tmp_path):
    config = config_of(tmp_path, DEEPSEEK, "model.n_group=1", "model.topk_group=1")
    assert (config.model.n_group, config.model.topk_group) == (1, 1)


def test_two_models_at_once_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="names a whole model; so does model="):
        composed("model=glm5_tiny", f"model.path={write(tmp_path, GLM)}")


@pytest.mark.parametrize("overrides", [["model=from_hf"], ["model=from_hf", "model.path="], ["model.path="]])
def test_a_missing_path_is_asked_for(overrides):
    with pytest.raises(BadInputError, match=r"model\.path= must name the config.json"):
        composed(*overrides)


IMPOSSIBLE = [
    (GLM, {"num_attention_heads": 36}, 8, "num_attention_heads=36 / 8 = 4.5 is not whole; use 1, 2, 4"),
    (GLM, {"first_k_dense_replace": 7}, 1, "model.first_k_dense_replace=7 must be between 0 and num_hidden_layers=6"),
    (GLM, {"moe_intermediate_size": 232, "quantization_config": NVFP4}, 1, "multiple of the NVFP4 block 16"),
    (GLM, {"num_hidden_layers": 10**9}, 1, "model.num_hidden_layers=1000000000 must be at most 1000"),
    (GLM, {"hidden_size": 10**18}, 1, "must be at most 16777216"),
    (GLM, {"n_shared_experts": -1}, 1, "model.n_shared_experts=-1 must be at least 0"),
    (DEEPSEEK, {"n_routed_experts": 17}, 1, "model.n_group=4 must divide n_routed_experts=17"),
    (QWEN3, {"num_key_value_heads": 3}, 1, "model.num_key_value_heads=3 must divide num_attention_heads=8"),
]


@pytest.mark.parametrize(("base", "changed", "tp", "message"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_what_no_deployment_can_hold_is_refused_by_field(base, changed, tp, message, tmp_path):
    with pytest.raises(BadInputError, match=message.replace("+", r"\+")):
        validate(config_of(tmp_path, {**base, **changed}, f"deployment.tp={tp}"))


POSSIBLE = [
    (GLM, {"n_routed_experts": 17}),
    (GLM, {"vocab_size": 2050}),
    (GLM, {"num_nextn_predict_layers": 1}),
    (QWEN3, {"num_hidden_layers": 1}),
]


@pytest.mark.parametrize(("base", "changed"), POSSIBLE, ids=lambda value: str(value)[:40])
def test_odd_but_possible_models_pass(base, changed, tmp_path):
    validate(config_of(tmp_path, {**base, **changed}, "deployment.tp=2"))


def test_a_relative_path_is_seen_from_the_callers_directory_in_a_sweep_too(tmp_path):
    (tmp_path / "ours").mkdir()
    write(tmp_path / "ours", {**GLM, "[/b]": 1})
    given = ["job=ceiling", "model=from_hf", "model.path=ours", "deployment.context=64", "hydra.sweep.dir=out"]
    done = run(tmp_path, "-m", *given, "deployment.tp=1,2")
    assert done.returncode == 0, done.stderr
    assert sorted(path.parent.name for path in tmp_path.rglob("ceiling.json")) == ["0", "1"]
    # what a stranger's file is called must not be taken for markup
    assert "left out: [/b]" in done.stdout


def test_bad_files_end_with_2_and_without_a_traceback(tmp_path):
    path = write(tmp_path, "[" * 10_000_000)
    done = run(tmp_path, "job=ceiling", "model=from_hf", f"model.path={path}")
    assert done.returncode == 2
    assert "nested too deeply" in done.stderr
    assert "Traceback" not in done.stderr
