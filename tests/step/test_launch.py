"""The whole step through Triton's kernels agrees with the same step through their torch references."""

import pytest
import torch

from kernels.mla_combine import mla_combine_reference
from simulator.comm.local import LocalCollectives
from simulator.deployment import Deployment
from simulator.step.build import build_step
from simulator.step.launch import bind_triton
from simulator.step.memory import allocate
from simulator.step.program import Component
from simulator.step.reference import bind_reference
from tests.configs import model, recipe

ACTIVATIONS = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def written(op):
    """Buffers that one operation writes; a cache is one that attention reads, unless the call is a write."""
    names = [name for name in op.call.__dataclass_fields__ if name.endswith("_out") or name in WRITTEN]
    if not type(op.call).__name__.endswith("Write"):
        names = [name for name in names if "cache" not in name]
    return {getattr(op.call, name).buffer for name in names if getattr(op.call, name) is not None} - READ_ONLY


WRITTEN = (
    "out", "selected", "sorted_rows", "tile_experts", "ids", "weights", "values", "cache", "cache_values", "key_cache",
    "value_cache", "partial_lse",
)  # fmt: skip
READ_ONLY = {"tokens", "positions", "slots", "context_lengths", "cos_sin"}


@pytest.mark.parametrize("recipe_name", ["nvidia_glm5", "fp8"])
@pytest.mark.parametrize("context", [24, 100], ids=["all-positions", "selected-positions"])
def test_each_operation_writes_what_its_reference_writes(recipe_name, context, device, compute_dtype):
    """Operation by operation from the same buffers, so that an error cannot hide behind an earlier one."""
    tiny = model("glm5_tiny", num_hidden_layers=2, n_routed_experts=4, num_experts_per_tok=2, vocab_size=320)
    deployment = Deployment(tp=2, batch=2, context=context)
    step = build_step(tiny, recipe(recipe_name), deployment, activation=ACTIVATIONS[compute_dtype])
    check_every_operation(step, device, tp_size=2)


def check_every_operation(step, device, *, tp_size):
    """Each kernel of rank 0 against its reference, both from the buffers that the references before it left."""
    memory = allocate(step, device, seed=0)
    # a token of another rank's share of the vocabulary would be embedded as zeros, and nothing after it be tested
    memory.buffers["tokens"] %= len(memory.vector("embedding.table"))
    collectives = LocalCollectives(tp_size=tp_size)
    kernels = bind_triton(step, memory, collectives, pdl=False)
    references = bind_reference(step, memory, collectives)
    for op, kernel, reference in zip(step.ops, kernels, references, strict=True):
        if op.component is Component.ALLREDUCE:
            reference()
            continue
        before = {name: memory.buffers[name].clone() for name in written(op)}
        kernel()
        found = {name: memory.buffers[name].clone() for name in before}
        for name, tensor in before.items():
            memory.buffers[name].copy_(tensor)
        reference()
        if found.keys() >= PARTIALS:
            # kernels and references split the keys differently: what is alike is the sum of the splits
            joined = [
                mla_combine_reference(*(held[name] for name in sorted(PARTIALS, reverse=True)))
                for held in (found, memory.buffers)
            ]
            assert_close(*joined, f"{op.label} writes its splits")
            for name in PARTIALS:
                memory.buffers[name].copy_(found.pop(name))
        for name, tensor in found.items():
            expected = memory.buffers[name]
            # of a cache, only the rows that were written are compared
            is_new = expected != before[name] if name.endswith("cache") else slice(None)
            assert_close(tensor[is_new], expected[is_new], f"{op.label} writes {name}")


PARTIALS = {"attention_partial", "attention_lse"}


def assert_close(found, expected, what):
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected), what
        return
    finite = torch.isfinite(expected.float())
    assert torch.equal(finite, torch.isfinite(found.float())), what
    size = expected.float()[finite].norm()
    assert size > 0, f"{what}: nothing but zeros, which any kernel can write"
    error = (found.float() - expected.float())[finite].norm() / size
    assert error < 2e-2, f"{what}: relative error {error:.2e}"


def test_replaying_a_step_gives_the_same_bits(device):
    step = build_step(model("glm5_tiny"), recipe("bf16"), Deployment(tp=8, context=100), activation="fp32")
    memory = allocate(step, device, seed=0)
    launches = bind_reference(step, memory, LocalCollectives(tp_size=8))
    snapshots = []
    for _ in range(2):
        for launch in launches:
            launch()
        snapshots.append({name: tensor.clone() for name, tensor in memory.buffers.items()})
    for name, tensor in snapshots[0].items():
        assert torch.equal(tensor, snapshots[1][name]), name


def test_a_seed_gives_the_same_weights(device):
    step = build_step(model("glm5_tiny"), recipe("nvidia_glm5"), Deployment(tp=8, context=100))
    first, second, other = (allocate(step, device, seed=seed) for seed in (0, 0, 1))
    name = "layers.1.routed_gate_up"
    assert torch.equal(first.weights[name].codes, second.weights[name].codes)
    assert not torch.equal(first.weights[name].codes, other.weights[name].codes)
