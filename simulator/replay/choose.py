"""From a configuration and a step to the replayer that times it: the GPU's graph, the CPU, or a prediction."""

from functools import partial

import torch

from kernels.delay import delay
from simulator.capacity import check_fits, free_host_bytes
from simulator.comm.local import LocalCollectives
from simulator.comm.modelled import ModelledCollectives
from simulator.config import Replay, SimulatorConfig
from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware, Interconnect
from simulator.machine import Gpu
from simulator.replay.base import Advance, Replayer
from simulator.replay.cpu import CpuReplayer
from simulator.replay.cuda_graph import CudaGraphReplayer, capture, chain_us
from simulator.replay.predicted import PredictedReplayer
from simulator.self_test import check_nvfp4
from simulator.step.launch import bind_triton
from simulator.step.memory import allocate
from simulator.step.program import DecodeStep
from simulator.step.reference import bind_reference

PROBE_WAIT_US = 5.0
"""Wait of the delay kernels whose launch time is measured: long against the timer's tick, short against a step."""


def choose_replay(asked: Replay, gpu: Gpu | None) -> Replay:
    """What `auto` means on this machine.

    Raises:
        BadInputError: a GPU is asked for and there is none.
    """
    if asked is Replay.auto:
        return Replay.predicted if gpu is None else Replay.cuda_graph
    if asked is Replay.cuda_graph and gpu is None:
        must = "needs a CUDA device, and torch sees none"
        raise BadInputError(
            Problem(key="replay", value=asked.value, must=must, suggestion="use replay=predicted or replay=cpu")
        )
    return asked


def make_replayer(
    replay: Replay, config: SimulatorConfig, step: DecodeStep, hardware: Hardware, gpu: Gpu | None, advance: Advance
) -> Replayer:
    """Everything that must happen before the first measurement: memory, launches, capture."""
    pdl, wire = (
        config.kernels.programmatic_launch,
        hardware.wire(config.comm.latency_us, num_ranks=config.deployment.tp),
    )
    if replay is Replay.predicted:
        return PredictedReplayer(ops=step.ops, hardware=hardware, pdl=pdl, wire=wire)
    if replay is Replay.cpu:
        check_fits(config, step, free_host_bytes())
        collectives = LocalCollectives(tp_size=config.deployment.tp)
        memory = allocate(step, torch.device("cpu"), seed=config.deployment.seed)
        launches = bind_reference(step, memory, collectives)
        return CpuReplayer(launches=launches, seed=config.deployment.seed, extra_notes=(collectives.note,))
    assert gpu is not None
    check_fits(config, step, gpu.free_bytes)
    return _graph_replayer(config, step, wire, advance)


def _graph_replayer(
    config: SimulatorConfig, step: DecodeStep, wire: Interconnect, advance: Advance
) -> CudaGraphReplayer:
    device, pdl = torch.device("cuda", torch.cuda.current_device()), config.kernels.programmatic_launch
    proof = check_nvfp4(device, pdl=pdl)
    advance("allocate weights", 0, 0)
    memory = allocate(step, device, seed=config.deployment.seed)
    collectives = ModelledCollectives(
        wire=wire, launch_us=delay_launch_us(device, step, pdl=pdl), num_ranks=config.deployment.tp, pdl=pdl
    )
    launches = bind_triton(step, memory, collectives, pdl=pdl)
    for done, (op, launch) in enumerate(zip(step.ops, launches, strict=True)):
        try:
            launch()
        except ValueError as error:
            raise BadInputError(f"model={config.model.name}: no kernel for its {op.name}: {error}") from None
        advance("compile and warm up", done + 1, len(launches))
    captured = capture(step.ops, launches, device)
    return CudaGraphReplayer(
        captured=captured,
        num_ops=len(step.ops),
        device=device,
        resources=memory,
        seed=config.deployment.seed,
        extra_notes=(collectives.note, proof),
    )


def delay_launch_us(device: torch.device, step: DecodeStep, *, pdl: bool) -> float:
    """What a delay kernel takes in a graph beyond its wait, measured on this device with the step's payload."""
    payload = max(op.cost.wire_bytes for op in step.ops)
    x, out = (torch.zeros(max(1, payload // 2), dtype=torch.bfloat16, device=device) for _ in range(2))
    wait = partial(delay, x=x, out=out, wait_ns=round(PROBE_WAIT_US * 1e3), pdl=pdl)
    return chain_us(wait, device) - PROBE_WAIT_US
