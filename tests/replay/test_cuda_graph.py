"""On a GPU: capture, tagging and pruning against planted truths and against re-captured graphs."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from kernels.cost import Cost
from kernels.delay import spin
from simulator.attribution import attribute
from simulator.comm.modelled import ModelledCollectives
from simulator.config import AttributionConfig
from simulator.deployment import Deployment, Overlap
from simulator.grouping import make_groups
from simulator.hardware import Interconnect
from simulator.replay.base import no_progress
from simulator.shapley import design_subsets
from simulator.step.build import build_step
from simulator.step.calls import Operand, Spin
from simulator.step.launch import bind_triton
from simulator.step.memory import allocate
from simulator.step.program import Component, Op
from tests.configs import model, recipe

pytestmark = pytest.mark.gpu

cuda_graph = pytest.importorskip("simulator.replay.cuda_graph") if torch.cuda.is_available() else None

COMPONENTS = (Component.PROJECTIONS, Component.EXPERTS, Component.ROUTER, Component.NORMS)
REPEATS = 40
PATTERNS = 10


def spin_step(waits, *, streams=None, waits_for=None):
    """Operations that wait for a known time, in a repeating pattern of components."""
    streams, waits_for = streams or {}, waits_for or {}
    return tuple(
        Op(
            name=f"spin{index}",
            component=COMPONENTS[index % len(COMPONENTS)],
            call=Spin(wait_us=wait, ticks=Operand("ticks")),
            cost=Cost(delay_us=wait),
            stream=streams.get(index, 0),
            waits_for=waits_for.get(index, ()),
        )
        for index, wait in enumerate(waits)
    )


def replayer_of(ops, *, pdl=False):
    device = torch.device("cuda")
    ticks = torch.zeros(len(ops), 1, dtype=torch.int64, device=device)

    def launch_of(index, op):
        return lambda: spin(wait_ns=round(op.call.wait_us * 1e3), ticks=ticks[index], pdl=pdl)

    launches = [launch_of(index, op) for index, op in enumerate(ops)]
    for launch in launches:
        launch()
    captured = cuda_graph.capture(ops, launches, device)
    return cuda_graph.CudaGraphReplayer(captured=captured, num_ops=len(ops), device=device, resources=ticks)


def rounds(count):
    return lambda samples: len(samples) >= count


def subsets_of(groups, design):
    return [
        frozenset().union(*(group.ops for bit, group in enumerate(groups) if mask >> bit & 1)) for mask in design.masks
    ]


def by_component(ops):
    return [frozenset(index for index, op in enumerate(ops) if op.component is component) for component in COMPONENTS]


def measured_shapley(ops, replayer):
    members = by_component(ops)
    design = design_subsets(len(members), max_exact_groups=10, num_permutations=8, seed=0)
    subsets = [frozenset().union(*(m for bit, m in enumerate(members) if mask >> bit & 1)) for mask in design.masks]
    samples = replayer.measure(subsets, enough=rounds(20), advance=no_progress)
    return attribute(design, samples, seed=0)


def test_one_stream_of_planted_waits_is_recovered():
    waits = [30.0, 10.0, 20.0, 40.0] * REPEATS
    ops = spin_step(waits)
    replayer = replayer_of(ops)
    found = measured_shapley(ops, replayer)
    node_us = (found.full_us - found.empty_us - sum(waits)) / len(waits)
    assert 0 <= node_us < 3
    for group, wait in zip(found.groups, waits, strict=False):
        assert group.shapley_us == pytest.approx(REPEATS * (wait + node_us), rel=0.02)
        assert group.leave_one_out_us == pytest.approx(REPEATS * (wait + node_us), rel=0.02)
    replayer.close()


def test_two_streams_of_planted_waits_are_recovered():
    """A branch of 800 us beside one of 300 us, between a fork and a join of 200 us: closed form by hand.

    The waits are long against a graph node (about 1 us), so that nodes and the edges between streams stay below 1%.
    """
    pattern, streams, waits_for = [], {}, {}
    for base in range(0, 4 * PATTERNS, 4):
        pattern += [200.0, 800.0, 300.0, 200.0]  # fork, main, side, join
        streams[base + 2] = 1
        waits_for[base + 2] = (base,)
        waits_for[base + 3] = (base + 2,)
    ops = spin_step(pattern, streams=streams, waits_for=waits_for)
    replayer = replayer_of(ops)
    members = by_component(ops)
    everything = frozenset(range(len(ops)))
    subsets = [everything, *(everything - m for m in members), everything - members[1] - members[2]]
    samples = np.median(replayer.measure(subsets, enough=rounds(20), advance=no_progress), axis=0)
    full, *without = samples
    found = [full, *(full - value for value in without)]
    planted = [PATTERNS * us for us in (1200.0, 200.0, 500.0, 0.0, 200.0, 800.0)]
    assert found == pytest.approx(planted, abs=0.02 * planted[0])
    replayer.close()


@pytest.mark.parametrize("pdl", [False, True], ids=["full-edges", "programmatic"])
@pytest.mark.parametrize("overlap", list(Overlap), ids=lambda overlap: overlap.value)
def test_pruned_graph_agrees_with_recaptured_graph(pdl, overlap, capsys):
    """GLM-5's own layer shapes, few distinct weights: per component, time within 2% and kept outputs bit-identical."""
    device = torch.device("cuda")
    step = build_step(
        model("glm5", num_hidden_layers=12),
        recipe("nvidia_glm5"),
        Deployment(weight_layers=4, overlap=overlap, context=4096),
    )
    memory = allocate(step, device, seed=0)
    wire = Interconnect(latency_us=3.7, bandwidth_gbps=100.0)
    collectives = ModelledCollectives(wire=wire, launch_us=1.0, pdl=pdl)
    launches = bind_triton(step, memory, collectives, pdl=pdl)
    for launch in launches:
        launch()
    captured = cuda_graph.capture(step.ops, launches, device)
    replayer = cuda_graph.CudaGraphReplayer(captured=captured, num_ops=len(step.ops), device=device)
    everything = frozenset(range(len(step.ops)))
    rows = []
    for component in Component:
        kept = frozenset(index for index in everything if step.ops[index].component is not component)
        again = recaptured(step, launches, kept, device)
        replayer.replay(everything)
        replayer.replay(kept)
        pruned_outputs = snapshot(memory)
        replayer.replay(everything)
        again.replay(frozenset(range(len(kept))))
        assert same_bits(pruned_outputs, snapshot(memory)), component
        pruned_exec = replayer.executables[kept]
        again_exec = again.executables[frozenset(range(len(kept)))]
        stream = torch.cuda.Stream()
        samples = [cuda_graph.time_round([pruned_exec, again_exec], [0, 1], stream) for _ in range(30)]
        pruned_us, again_us = np.median(samples, axis=0)
        rows.append((component.value, pruned_us, again_us, pruned_us / again_us))
        again.close()
    replayer.close()
    with capsys.disabled():
        for name, pruned_us, again_us, ratio in rows:
            times = f"pruned {pruned_us:.1f} us, re-captured {again_us:.1f} us, ratio {ratio:.4f}"
            sys.stderr.write(f"overlap={overlap.value} pdl={pdl} without {name}: {times}\n")
    if overlap is Overlap.none:
        for name, _, _, ratio in rows:
            assert ratio == pytest.approx(1, abs=0.02), name


def recaptured(step, launches, kept, device):
    """A graph captured from the kept operations alone."""
    order = sorted(kept)
    place = {old: new for new, old in enumerate(order)}
    ops = [step.ops[index] for index in order]
    ops = [dataclasses.replace(op, waits_for=tuple(place[w] for w in op.waits_for if w in place)) for op in ops]
    first_side = next((i for i, op in enumerate(ops) if op.stream), None)
    if first_side is not None and not ops[first_side].waits_for:
        ops[first_side] = dataclasses.replace(ops[first_side], waits_for=(first_side - 1,))
    captured = cuda_graph.capture(ops, [launches[index] for index in order], device)
    return cuda_graph.CudaGraphReplayer(captured=captured, num_ops=len(ops), device=device)


def snapshot(memory):
    torch.cuda.synchronize()
    return {name: tensor.clone() for name, tensor in memory.buffers.items()}


def same_bits(a, b):
    return all(torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for name in a if a[name].numel())


def test_a_failed_capture_leaves_the_next_one_working():
    ops = spin_step([5.0, 5.0])

    def broken():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        cuda_graph.capture(ops, [broken, broken], torch.device("cuda"))
    replayer = replayer_of(ops)
    replayer.replay(frozenset({0, 1}))
    replayer.close()


def test_every_node_belongs_to_its_operation():
    ops = spin_step([1.0] * 8)
    replayer = replayer_of(ops)
    assert list(replayer.nodes_of_op) == [1] * 8
    replayer.close()


def test_closing_gives_the_memory_back():
    torch.cuda.empty_cache()
    free_before, _ = torch.cuda.mem_get_info()
    for _ in range(3):
        step = build_step(model("glm5_tiny"), recipe("nvidia_glm5"), Deployment(tp=8))
        memory = allocate(step, torch.device("cuda"), seed=0)
        collectives = ModelledCollectives(wire=Interconnect(latency_us=1.0), launch_us=1.0)
        launches = bind_triton(step, memory, collectives, pdl=False)
        for launch in launches:
            launch()
        replayer = cuda_graph.CudaGraphReplayer(
            captured=cuda_graph.capture(step.ops, launches, torch.device("cuda")),
            num_ops=len(step.ops),
            device=torch.device("cuda"),
            resources=memory,
        )
        groups = make_groups(step.ops, AttributionConfig())
        replayer.measure([frozenset().union(*(g.ops for g in groups))], enough=rounds(2), advance=no_progress)
        replayer.close()
        del memory, launches, collectives, replayer
    torch.cuda.empty_cache()
    free_after, _ = torch.cuda.mem_get_info()
    assert free_before - free_after < 64 * 2**20
