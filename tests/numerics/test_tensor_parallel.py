"""Eight ranks together compute what one rank computes: every buffer that an operation touches, after the operation."""

import dataclasses

import pytest
import torch

from tests.configs import recipe
from tests.numerics.decode import prepared, set_inputs
from tests.numerics.models import comparison
from tests.numerics.rounding import round_weights

transformers = pytest.importorskip("transformers", reason="the weights come from transformers (pip install '.[test]')")

TP = 8
LENGTH = 20
LAG = 6
"""The second sequence stands so many positions behind the first."""

PARTIAL = {"embedded", "attention_out", "routed_out", "shared_out", "mlp_out"}
"""A rank's partial sums, of row-parallel matrices and of the vocabulary shard: the unsharded value is their sum."""

REPLICATED = {
    "hidden", "residual.0", "residual.1", "attention_reduced", "mlp_reduced",
    "qkv_a", "q_a_norm", "kv_a_norm", "key_rope", "kv_cache",
    "index_k", "index_q", "index_query", "index_weights", "index_logits", "index_cache", "index_scales", "selected",
    "router_logits", "router_ids", "router_weights", "sorted_rows", "tile_experts", "sampled",
}  # fmt: skip
"""The same on every rank as without sharding."""

SHARES = {
    "q", "query", "attention_partial", "attention_lse", "attention_latent", "attention_heads", "attention_value",
    "dense_activation", "shared_activation", "routed_activation",
}  # fmt: skip
"""Column-parallel: shares stand side by side along dim 1 (heads, or outputs)."""

GATE_AND_UP = {"dense_gate_up", "shared_gate_up", "routed_gate_up"}
"""Each rank holds its share of the gate, then its share of the up projection."""

KEY_HEADS = {"key", "value", "key_cache", "value_cache"}
"""Side by side along dim 1; with more ranks than key heads, neighbours hold the same one."""

OF_ITS_OWN = {"best_value", "best_id", "gathered_values", "gathered_ids", "index_workspace"}
"""Differs from rank to rank by purpose; what is made of it (sampled, selected) is compared."""

INPUTS = {"tokens", "positions", "slots", "context_lengths", "cos_sin"}


class Ranks:
    """All ranks of one group in one process: an all-reduce is a real sum over their memories."""

    def __init__(self, spec, state, tp, **options):
        ranks = [prepared(spec, state, tp=tp, rank=rank, **options) for rank in range(tp)]
        self.steps, self.memories, self.launches = zip(*ranks, strict=True)

    def run(self, index):
        """One operation on every rank."""
        op = self.steps[0].ops[index]
        if op.name == "sample_allgather":
            self.gather(op.call)
        elif op.name.endswith("_allreduce"):
            total = sum(memory.tensor(op.call.x) for memory in self.memories)
            for memory in self.memories:
                memory.tensor(op.call.out).copy_(total)
        else:
            for launches in self.launches:
                launches[index]()

    def gather(self, call):
        for part, out in ((call.values, call.values_out), (call.ids, call.ids_out)):
            together = torch.stack([memory.tensor(part) for memory in self.memories])
            for memory in self.memories:
                memory.tensor(out).copy_(together)


def touched(op):
    """Buffers that a call names, whichever of them it writes."""
    operands = [getattr(op.call, field.name) for field in dataclasses.fields(op.call)]
    return {operand.buffer for operand in operands if hasattr(operand, "buffer")} - INPUTS


def lockstep(spec, state, *, tp, chosen="bf16"):
    """Compare tp ranks with one, operation by operation over LENGTH steps; returns the kinds of buffers compared."""
    tokens = torch.randint(0, spec.vocab_size, (2, LENGTH), generator=torch.Generator().manual_seed(1)).tolist()
    step, whole, launches = prepared(spec, state, batch=2, context=LENGTH, chosen=chosen)
    ranks = Ranks(spec, state, tp, batch=2, context=LENGTH, chosen=chosen)
    kinds = set()
    for time in range(LENGTH):
        positions = [time, max(time - LAG, 0)]
        inputs = [sequence[position] for sequence, position in zip(tokens, positions, strict=True)], positions
        for memory in (whole, *ranks.memories):
            set_inputs(memory, *inputs)
        for index, op in enumerate(step.ops):
            launches[index]()
            ranks.run(index)
            for buffer in touched(op):
                kinds.add(compare(buffer, ranks.memories, whole, spec, tp))
    return kinds


def compare(buffer, memories, whole, spec, tp):
    """Hold all ranks' shares of one buffer together with the unsharded one; returns the kind of buffer."""
    kind = buffer.split(".")[-1] if buffer.startswith("layers.") else buffer
    expected, shares = whole.buffers[buffer], [memory.buffers[buffer] for memory in memories]
    if kind.endswith(("cache", "scales")):
        # only what was just written: the rest of a fresh cache is noise
        slots = whole.buffers["slots"]
        expected, shares = expected[slots], [share[slots] for share in shares]
    if kind == "sampled":
        assert expected.max() < spec.vocab_size
    if kind in REPLICATED:
        for share in shares:
            assert_close(share, expected, buffer)
    elif kind not in OF_ITS_OWN:
        for together, same in pairs(kind, shares, expected, spec, tp):
            assert_close(together, same, buffer)
    return kind


def pairs(kind, shares, expected, spec, tp):
    """What the shares give together, and what it must be."""
    if kind in PARTIAL:
        yield sum(shares), expected
    elif kind == "logits":
        yield torch.cat(shares, dim=1)[:, : spec.vocab_size], expected[:, : spec.vocab_size]
    elif kind in SHARES:
        yield torch.cat(unpadded(kind, shares, spec, tp), dim=1), *unpadded(kind, [expected], spec, 1)
    elif kind in GATE_AND_UP:
        for half in (0, 1):
            *parts, same = [share.chunk(2, dim=-1)[half] for share in (*shares, expected)]
            yield torch.cat(unpadded(kind, parts, spec, tp), dim=1), *unpadded(kind, [same], spec, 1)
    elif kind in KEY_HEADS:
        copies = max(1, tp // spec.num_key_value_heads)
        for first in range(copies):
            yield torch.cat(shares[first::copies], dim=1), expected
    elif kind == "qkv":
        yield unfused_qkv(shares, spec, tp), expected
    else:
        raise AssertionError(f"nobody says how {kind} is sharded")


def unpadded(kind, shares, spec, tp):
    """Shares without the padding of expert rows, which must have stayed zero."""
    if not kind.startswith("routed"):
        return shares
    width = spec.moe_intermediate_size // tp
    assert not any(share[:, width:].any() for share in shares), kind
    return [share[:, :width] for share in shares]


def unfused_qkv(shares, spec, tp):
    """Queries of all ranks, then each key head and each value head once."""
    copies = max(1, tp // spec.num_key_value_heads)
    key_heads = max(1, spec.num_key_value_heads // tp)
    widths = [heads * spec.head_dim for heads in (spec.num_attention_heads // tp, key_heads, key_heads)]
    query, key, value = zip(*(share.split(widths, dim=1) for share in shares), strict=True)
    return torch.cat([*query, *key[::copies], *value[::copies]], dim=1)


def assert_close(found, expected, what):
    if not expected.dtype.is_floating_point:
        assert torch.equal(found, expected), what
        return
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(found), finite), what
    error = (found[finite] - expected[finite]).norm() / expected[finite].norm().clamp(min=1e-6)
    assert error < 1e-5, f"{what}: {error}"


@pytest.mark.parametrize("name", ["glm_moe_dsa", "glm_moe_dsa-shared", "deepseek_v3", "glm4_moe", "qwen3_moe"])
def test_eight_ranks_in_lockstep_equal_one(name, tmp_path):
    """Partial sums add up, shares stand side by side, what is replicated is the same, and so are logits and tokens."""
    model, spec = comparison(name, transformers, tmp_path)
    kinds = lockstep(spec, model.state_dict(), tp=TP)
    assert kinds >= {"embedded", "attention_out", "mlp_out", "logits", "sampled"}


def test_padding_changes_nothing(tmp_path):
    """300 words are padded to 384, NVFP4 experts of 48 rows a rank (3 scale groups) to whole tiles of 64.

    Ranks share the tensor scales of whole matrices. What stands in the vocabulary's padding would win every choice.
    """
    model, spec = comparison(
        "deepseek_v3",
        transformers,
        tmp_path,
        prepare=lambda state: round_weights(state, "nvfp4", "experts"),
        moe_intermediate_size=96,
        vocab_size=300,
    )
    chosen = recipe("nvidia_glm5", dense_gate_up="bf16", dense_down="bf16", index_cache="bf16")
    kinds = lockstep(spec, model.state_dict(), tp=2, chosen=chosen)
    assert kinds >= {"routed_gate_up", "logits", "sampled"}
