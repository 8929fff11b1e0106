"""Eight ranks together compute what one rank computes, and hold what the sharding says they hold."""

import dataclasses

import pytest
import torch

from simulator.deployment import Deployment
from simulator.report.assemble import byte_table
from simulator.step.build import build_step
from simulator.step.program import Component
from tests.configs import model as shipped
from tests.configs import recipe
from tests.numerics.decode import prepared, set_inputs
from tests.numerics.models import random_model, spec_of

transformers = pytest.importorskip("transformers", reason="the weights come from transformers (pip install '.[test]')")

TP = 8
LENGTH = 20
ROW_PARALLEL = {"attention_out", "mlp_out", "embedded"}
"""Buffers that hold a rank's partial sum: over all ranks they add up to the unsharded value."""

REPLICATED = {
    "hidden", "qkv_a", "q_a_norm", "kv_a_norm", "key_rope", "index_k", "index_q", "index_query", "index_weights",
    "index_logits", "router_logits", "router_ids", "router_weights", "residual.0", "residual.1", "sampled",
}  # fmt: skip
HEADS = {"q": 1, "query": 1, "attention_latent": 1, "attention_value": 1, "logits": 1, "attention_heads": 1}
"""Buffers whose shares stand side by side along a dim."""


class Ranks:
    """All ranks of one group in one process: an all-reduce is a real sum over their memories."""

    def __init__(self, spec, state, **options):
        self.steps, self.memories, self.launches = [], [], []
        for rank in range(TP):
            step, memory, launches = prepared(spec, state, tp=TP, rank=rank, **options)
            self.steps.append(step)
            self.memories.append(memory)
            self.launches.append(launches)

    def decode_step(self, tokens, positions, watch=None):
        for memory in self.memories:
            set_inputs(memory, tokens, positions)
        for index, op in enumerate(self.steps[0].ops):
            if op.name == "sample_allgather":
                self.gather(op.call)
            elif op.component is Component.ALLREDUCE:
                self.reduce(op.call)
            else:
                for launches in self.launches:
                    launches[index]()
            if watch is not None:
                watch(index, op)

    def reduce(self, call):
        total = sum(memory.tensor(call.x) for memory in self.memories)
        for memory in self.memories:
            memory.tensor(call.out).copy_(total)

    def gather(self, call):
        for part, out in ((call.values, call.values_out), (call.ids, call.ids_out)):
            together = torch.stack([memory.tensor(part) for memory in self.memories])
            for memory in self.memories:
                memory.tensor(out).copy_(together)


def written(op):
    call = op.call
    names = [name for name in call.__dataclass_fields__ if name == "out" or name.endswith("_out")]
    return {getattr(call, name).buffer for name in names if getattr(call, name) is not None}


@pytest.mark.parametrize("name", ["glm_moe_dsa", "deepseek_v3", "glm4_moe", "qwen3_moe"])
def test_eight_ranks_in_lockstep_equal_one(name, tmp_path):
    """Operation by operation: partial sums add up, shares stand side by side, what is replicated is the same."""
    hf = random_model(name, transformers)
    spec = dataclasses.replace(spec_of(hf, tmp_path), latent_norm_eps=1e-6)
    state = hf.state_dict()
    _, whole, launches = prepared(spec, state, batch=2, context=LENGTH)
    ranks = Ranks(spec, state, batch=2, context=LENGTH)
    tokens = torch.randint(0, spec.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1)).tolist()
    checked = set()
    for position in range(LENGTH):
        inputs = ([sequence[position] for sequence in tokens], [position, position])
        set_inputs(whole, *inputs)

        def compare(index, op):
            launches[index]()
            for buffer in written(op):
                shares = [memory.buffers[buffer] for memory in ranks.memories]
                checked.add(buffer)
                compare_shares(buffer, shares, whole.buffers[buffer])

        ranks.decode_step(*inputs, watch=compare)
    assert checked >= ROW_PARALLEL | {"hidden", "logits", "sampled"}


def compare_shares(buffer, shares, whole):
    if buffer in ROW_PARALLEL:
        assert_close(sum(shares), whole, buffer)
    elif buffer in REPLICATED:
        for share in shares:
            assert_close(share, whole, buffer)
    elif buffer in HEADS:
        assert_close(torch.cat(shares, dim=HEADS[buffer])[..., : whole.shape[-1]], whole, buffer)


def assert_close(found, expected, what):
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected), what
        return
    finite = torch.isfinite(expected)
    error = (found[finite] - expected[finite]).norm() / expected[finite].norm().clamp(min=1e-6)
    assert error < 1e-5, f"{what}: {error}"


@pytest.mark.parametrize("name", ["glm5", "glm5_2", "deepseek_v32", "kimi_k2", "glm4_7", "qwen3_235b_a22b"])
@pytest.mark.parametrize("recipe_name", ["nvidia_glm5", "bf16", "fp8"])
def test_bytes_of_all_ranks_are_the_whole_model_plus_what_is_replicated(name, recipe_name):
    """Exactly, block scales included: every quantised dim of these models splits into whole blocks."""
    spec, chosen = shipped(name), recipe(recipe_name)
    tables = {
        tp: {row.module: row for row in byte_table(build_step(spec, chosen, Deployment(tp=tp)))} for tp in (1, TP)
    }
    assert tables[1].keys() == tables[TP].keys()
    for module, row in tables[TP].items():
        whole = tables[1][module].bytes
        if module == "qkv":
            copies = max(1, TP // spec.num_key_value_heads)
            key_share = 2 * spec.num_key_value_heads / (spec.num_attention_heads + 2 * spec.num_key_value_heads)
            assert row.bytes * TP == pytest.approx(whole * (1 + key_share * (copies - 1)))
        elif row.replicated:
            assert row.bytes == whole, module
        elif recipe_name == "fp8" and module.startswith(("routed", "shared")):
            # a width of 192 or 256 a rank does not always fill blocks of 128 rows: their scales are a few bytes more
            assert row.bytes * TP == pytest.approx(whole, rel=1e-3), module
        else:
            assert row.bytes * TP == whole, module


def test_the_byte_table_marks_what_every_rank_holds():
    table = byte_table(build_step(shipped("glm5"), recipe("nvidia_glm5"), Deployment()))
    assert {row.module for row in table if row.replicated} == {"qkv_a", "index_q", "index_k", "router"}
