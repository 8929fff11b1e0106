"""Ragged batches and several tokens a sequence: each row is what its sequence gives by itself."""

import numpy as np
import pytest
import torch

from simulator.comm.local import LocalCollectives
from simulator.deployment import Deployment
from simulator.routing import Distribution, Routing, expected_distinct_experts
from simulator.step.build import build_step
from simulator.step.memory import allocate
from simulator.step.reference import bind_reference
from tests.configs import model, recipe

MODELS = ["glm5_tiny", "deepseek_v3_tiny", "qwen3_tiny"]
TINY = {"num_hidden_layers": 2}


def built(name, **deployment):
    return build_step(
        model(name, **TINY), recipe("bf16", index_cache="bf16"), Deployment(**deployment), activation="fp32"
    )


def executed(step, *, prepare=lambda memory: None):
    memory = allocate(step, torch.device("cpu"), seed=0)
    prepare(memory)
    for launch in bind_reference(step, memory, LocalCollectives(tp_size=1)):
        launch()
    return memory


@pytest.mark.parametrize("name", MODELS)
def test_a_ragged_batch_gives_what_each_sequence_gives_alone(name):
    contexts = [100, 7, 64]
    batch = executed(built(name, tp=1, contexts=contexts))
    slots = batch.buffers[next(n for n in batch.buffers if n.endswith("cache"))].shape[0] // 3
    for index, context in enumerate(contexts):

        def take_sequence(memory, index=index):
            # a short context has fewer weights, so the same seed draws others
            for weight, tensor in memory.weights.items():
                tensor.copy_(batch.weights[weight])
            for buffer, tensor in memory.buffers.items():
                whole = batch.buffers.get(buffer)
                if buffer.endswith(("cache", "index_scales")):
                    tensor.copy_(whole[index * slots : index * slots + len(tensor)])
                elif buffer == "tokens" or buffer.endswith("expert_ids"):
                    tensor.copy_(whole[index : index + 1])

        alone = executed(built(name, tp=1, context=context), prepare=take_sequence)
        torch.testing.assert_close(alone.buffers["logits"][0], batch.buffers["logits"][index], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_two_tokens_in_one_step_equal_two_steps(name):
    """The first token must not see the second; the second sees what the first wrote."""
    context = 80
    together = executed(built(name, tp=1, context=context, tokens_per_step=2))
    first_step = built(name, tp=1, context=context - 1)
    second_step = built(name, tp=1, context=context)

    def prepare(token):
        def copy(memory):
            for buffer, tensor in memory.buffers.items():
                whole = together.buffers.get(buffer)
                if buffer == "tokens" or buffer.endswith("expert_ids"):
                    tensor.copy_(whole[token : token + 1])
                elif buffer.endswith(("cache", "index_scales")):
                    tensor.copy_(whole[: len(tensor)])

        return copy

    first = executed(first_step, prepare=prepare(0))
    second = executed(second_step, prepare=prepare(1))
    for token, alone in enumerate((first, second)):
        torch.testing.assert_close(alone.buffers["logits"][0], together.buffers["logits"][token], rtol=1e-4, atol=1e-4)


def test_costs_follow_each_sequence():
    spec, chosen = model("glm5"), recipe("nvidia_glm5")
    ragged = build_step(spec, chosen, Deployment(contexts=[4096, 16_384, 100]))
    reads = {op.name: op.cost for op in ragged.ops if op.layer == 5}
    keys = 2048 + 2048 + 100
    assert reads["mla_decode"].flops["bf16"] == 2 * 8 * keys * (576 + 512)
    assert reads["index_logits"].flops["fp8"] == 2 * 32 * 128 * (4096 + 16_384 + 100)
    assert reads["index_logits"].bytes_read == pytest.approx(132 * (4096 + 16_384 + 100), rel=0.01)
    assert any("contexts from 100 to 16,384" in note for note in ragged.notes)


def test_distinct_experts_set_the_bytes(tmp_path):
    """64 tokens, uniform, skewed, and all by the same eight experts: expert weights are read once for each expert."""
    spec, chosen, deployment = model("glm5"), recipe("nvidia_glm5"), Deployment(batch=64)
    np.save(tmp_path / "same.npy", np.tile(np.arange(8), (64, 1)))
    routings = {
        "uniform": Routing(),
        "zipf": Routing(distribution=Distribution.zipf, exponent=1.0),
        "file": Routing(distribution=Distribution.file, path=str(tmp_path / "same.npy")),
    }
    read, notes = {}, {}
    for name, routing in routings.items():
        step = build_step(spec, chosen, deployment, routing)
        weight = step.weights["layers.3.routed_gate_up"].num_bytes / 256
        costs = [op.cost.bytes_read for op in step.ops if op.name == "routed_gate_up"]
        activations = 64 * spec.hidden_size * 2
        read[name] = np.mean([(cost - activations) / weight for cost in costs])
        notes[name] = next(note for note in step.notes if note.startswith("routing:"))
    assert read["file"] == pytest.approx(8, rel=0.01)
    assert read["uniform"] == pytest.approx(expected_distinct_experts(256, 8, 64), rel=0.02)
    assert 30 < read["zipf"] < 0.8 * read["uniform"]
    assert "zipf with exponent 1 over 256 experts" in notes["zipf"]
    assert "same.npy, over 256 experts, 64 tokens x 8 choices hit 8.0 distinct experts" in notes["file"]


def test_equal_contexts_are_the_plain_batch():
    spec, chosen = model("glm5"), recipe("nvidia_glm5")
    plain = build_step(spec, chosen, Deployment(batch=3, context=4096))
    listed = build_step(spec, chosen, Deployment(contexts=[4096] * 3))
    assert [op.cost for op in plain.ops] == [op.cost for op in listed.ops]


def test_dense_attention_reads_a_sequence_once_for_all_its_tokens():
    step = build_step(model("qwen3_235b_a22b"), recipe("bf16"), Deployment(context=8192, tokens_per_step=4))
    cost = next(op.cost for op in step.ops if op.name == "gqa_decode")
    assert cost.bytes_read == pytest.approx(8192 * 2 * 128 * 2, rel=0.01)
    assert cost.flops["bf16"] == 2 * 8 * sum(range(8189, 8193)) * 256


def test_the_indexer_reads_a_sequences_keys_once_for_all_its_tokens():
    step = build_step(model("glm5"), recipe("nvidia_glm5"), Deployment(batch=2, context=8192, tokens_per_step=4))
    cost = next(op.cost for op in step.ops if op.name == "index_logits")
    assert cost.bytes_read == pytest.approx(2 * 8192 * 132, rel=0.02)
    assert cost.flops["fp8"] == 2 * 2 * 32 * 128 * sum(range(8189, 8193))


def test_tokens_of_a_sequence_stand_one_after_another():
    step = built("glm5_tiny", tp=1, contexts=[100, 50], tokens_per_step=3)
    np.testing.assert_array_equal(step.buffers["positions"].values, [97, 98, 99, 47, 48, 49])
    np.testing.assert_array_equal(step.buffers["slots"].values, [97, 98, 99, 128 + 47, 128 + 48, 128 + 49])
