"""The byte tables of all ranks together: the whole model, and as many copies of what is replicated."""

import pytest

from simulator.deployment import Deployment
from simulator.report.assemble import byte_table
from simulator.shapes import rank_shapes
from simulator.step.build import build_step
from tests.configs import model, recipe

TP = 8
REPLICATED = {"qkv_a", "index_q", "index_k", "router"}
NAMES = ["glm5", "glm5_2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_7", "glm4_5_air", "qwen3_235b_a22b"]


def table(spec, chosen, tp):
    return {row.module: row for row in byte_table(build_step(spec, chosen, Deployment(tp=tp)))}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("recipe_name", ["bf16", "experts_only"])
def test_bytes_of_all_ranks_are_the_whole_model_plus_what_is_replicated(name, recipe_name):
    """Exactly, block scales included. Copies of key heads and padded expert rows are counted as what they are."""
    spec, chosen = model(name), recipe(recipe_name)
    if recipe_name == "experts_only" and spec.n_shared_experts:
        # 1408 / 8 = 176 inputs a rank in GLM-4.5-Air: an odd number of scale groups, 11
        chosen = recipe(recipe_name, shared_gate_up="nvfp4", shared_down="nvfp4")
    whole, rank = table(spec, chosen, 1), table(spec, chosen, TP)
    assert whole.keys() == rank.keys()
    shapes = {tp: rank_shapes(spec, chosen, tp) for tp in (1, TP)}
    for module, row in rank.items():
        assert row.replicated == (module in REPLICATED), module
        if row.replicated:
            assert row.bytes == whole[module].bytes, module
        elif module == "qkv":
            assert row.bytes * TP * shapes[1].qkv_width_local == (whole[module].bytes * TP * shapes[TP].qkv_width_local)
        elif module.startswith("routed"):
            assert row.bytes * shapes[1].expert_width_local == whole[module].bytes * shapes[TP].expert_width_local
        else:
            assert row.bytes * TP == whole[module].bytes, module


@pytest.mark.parametrize("name", ["glm5", "deepseek_v32", "qwen3_235b_a22b"])
def test_blocks_of_fp8_are_counted_whole(name):
    """A width of 192 or 256 a rank does not always fill blocks of 128 rows: their scales are a few bytes more."""
    whole, rank = table(model(name), recipe("fp8"), 1), table(model(name), recipe("fp8"), TP)
    for module, row in rank.items():
        if not row.replicated and module != "qkv":
            assert whole[module].bytes <= row.bytes * TP <= whole[module].bytes * 1.001, module
