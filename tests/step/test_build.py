"""GLM-5's step: the operations, bytes and memory that public figures give."""

import dataclasses

import pytest

from simulator.deployment import Deployment, Overlap
from simulator.step.build import build_step
from simulator.step.calls import Operand
from simulator.step.program import Component
from tests.configs import model, recipe


@pytest.fixture(scope="module")
def glm5():
    return build_step(model("glm5"), recipe("nvidia_glm5"), Deployment())


def reads_and_writes(op):
    """Names of buffers an operation reads and writes, by the names of its call's fields."""
    reads, writes = set(), set()
    for field in dataclasses.fields(op.call):
        value = getattr(op.call, field.name)
        if isinstance(value, Operand):
            writes_it = field.name.endswith("_out") or field.name in ("out", "partial_out", "partial_lse")
            (writes if writes_it else reads).add(value.buffer)
    return reads, writes


def test_a_step_has_157_all_reduces_and_one_gather(glm5):
    names = [op.name for op in glm5.ops if op.component is Component.ALLREDUCE]
    assert sum(name.endswith("allreduce") for name in names) == 157
    assert names.count("sample_allgather") == 1
    assert {op.cost.wire_bytes for op in glm5.ops if op.name.endswith("allreduce")} == {12_288}


def test_every_moe_layer_has_one_launch_an_operation(glm5):
    assert sum(op.layer == 40 for op in glm5.ops) == 31


def test_memory_is_what_the_checkpoint_needs(glm5):
    assert glm5.weight_bytes / 2**30 == pytest.approx(54.8, abs=0.1)


def test_weight_bytes_read_match_the_published_figure(glm5):
    weights = sum(op.cost.bytes_read for op in glm5.ops if "weight" in {f.name for f in dataclasses.fields(op.call)})
    assert weights / 1e9 == pytest.approx(9.19, rel=0.01)


def test_per_layer_bytes_match_facts(glm5):
    read = {op.name: op.cost.bytes_read / 1e6 for op in glm5.ops if op.layer == 40}
    assert read["qkv_a"] == pytest.approx(32.24, abs=0.02)
    assert read["q_b"] == pytest.approx(8.39, abs=0.01)
    assert read["o_proj"] == pytest.approx(25.17, abs=0.01)
    assert read["index_q"] + read["index_k"] == pytest.approx(18.74, abs=0.03)
    assert read["router"] == pytest.approx(3.15, abs=0.02)
    assert read["routed_gate_up"] + read["routed_down"] == pytest.approx(21.23, abs=0.05)


def test_names_are_unique(glm5):
    labels = [op.label for op in glm5.ops]
    assert len(labels) == len(set(labels))


def test_no_operation_reads_what_it_writes(glm5):
    for op in glm5.ops:
        reads, writes = reads_and_writes(op)
        shared = reads & writes
        # rope and absorb_q write different columns of one buffer; neither reads it
        assert not shared, (op.label, shared)


def test_a_short_context_skips_the_choice_and_says_so():
    step = build_step(model("glm5"), recipe("nvidia_glm5"), Deployment(context=2048))
    names = {op.name for op in step.ops}
    assert "index_key" in names
    assert not names & {"index_topk", "index_logits", "index_q"}
    assert any("within index_topk=2048" in note for note in step.notes)


def test_shared_weight_layers_keep_the_step_and_shrink_the_memory(glm5):
    shared = build_step(model("glm5"), recipe("nvidia_glm5"), Deployment(weight_layers=4))
    assert [op.cost for op in shared.ops] == [op.cost for op in glm5.ops]
    assert shared.weight_bytes < glm5.weight_bytes / 10


def test_overlapped_shared_experts_fork_after_the_norm_and_join_at_combine():
    step = build_step(model("glm5_tiny"), recipe("nvidia_glm5"), Deployment(tp=1, overlap=Overlap.shared_experts))
    side = [op for op in step.ops if op.stream == 1]
    assert {op.name for op in side} == {"shared_gate_up", "shared_swiglu", "shared_down"}
    first = next(op for op in side if op.name == "shared_gate_up")
    assert step.ops[first.waits_for[0]].name == "post_attention_norm"
    combine = next(op for op in step.ops if op.name == "combine")
    assert step.ops[combine.waits_for[0]].name == "shared_down"


def test_padding_is_noted_with_its_cost():
    step = build_step(model("glm5", vocab_size=154_881), recipe("nvidia_glm5"), Deployment())
    assert any("vocab_size 154881 is padded to 155136" in note and "MB" in note for note in step.notes)


@pytest.mark.parametrize("batch", [1, 64, 1024])
@pytest.mark.parametrize("context", [1, 4096, 202_752])
def test_every_batch_and_context_builds(batch, context):
    deployment = Deployment(batch=batch, context=context, weight_layers=2, cache_layers=1)
    assert build_step(model("glm5"), recipe("nvidia_glm5"), deployment).tokens == batch
