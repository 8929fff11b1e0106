"""Synthetic reports: GLM-5 on eight PCIe GPUs, with round numbers of our own."""

import dataclasses
from io import StringIO

from rich.console import Console

from simulator.replay.base import Kind
from simulator.report.record import (
    FloorCauses,
    Report,
    ReportAttribution,
    ReportBytes,
    ReportCeiling,
    ReportComponent,
    ReportInteraction,
    ReportStep,
)

TIMES_US = {
    "projections": 4_210.4,
    "indexer": 903.2,
    "attention": 2_107.7,
    "router": 411.1,
    "dispatch": 298.6,
    "experts": 6_650.3,
    "allreduce": 4_327.9,
    "norms": 402.6,
    "head": 290.3,
}
EMPTY_US = 9.7


def make_component(name, us, *, step_us, interval=True, ops=156):
    floor_us = us / 3
    return ReportComponent(
        name=name,
        ops=ops,
        nodes=ops,
        shapley_us=us,
        ci95_us=(us * 0.99, us * 1.01) if interval else None,
        leave_one_out_us=us * 0.97,
        alone_us=us * 1.02,
        floor_us=FloorCauses(memory=floor_us * 0.8, node=floor_us * 0.2),
        floor_total_us=floor_us,
        x_floor=3.0,
        share=us / step_us,
        absorbed=("swiglu", "down") if name == "experts" else (),
    )


def make_report(times_us=None, *, mode=Kind.MEASURED, scale=1.0, empty_us=EMPTY_US, **changes):
    """A report whose components sum to full minus empty exactly; every time is multiplied by `scale`."""
    times_us = {name: us * scale for name, us in (times_us or TIMES_US).items()}
    empty_us *= scale
    step_us = sum(times_us.values()) + empty_us
    interval = mode is not Kind.PREDICTED
    report = Report(
        mode=mode,
        group_by="component",
        model={"name": "glm5", "num_hidden_layers": 78},
        deployment={"tp": 8, "batch": 1, "context": 4096},
        hardware={"name": "rtx_pro_6000_x8", "bandwidth_gbps": 1597.0},
        environment={"python": "3.11.7"},
        step=ReportStep(
            median_us=step_us,
            ci95_us=(step_us * 0.995, step_us * 1.005) if interval else None,
            p95_us=step_us * 1.02,
            empty_us=empty_us,
            replays=40 if interval else 1,
            tok_s=1e6 / step_us,
        ),
        ceiling=ReportCeiling(
            step_us=step_us / 3, tok_s=3e6 / step_us, by_floor=FloorCauses(memory=step_us / 4, node=step_us / 12)
        ),
        components=[make_component(name, us, step_us=step_us, interval=interval) for name, us in times_us.items()],
        interactions=[
            ReportInteraction(a="experts", b="allreduce", us=-0.02 * step_us),
            ReportInteraction(a="norms", b="head", us=0.001 * step_us),
        ],
        attribution=ReportAttribution(
            method="exact",
            subsets=512,
            rounds=40,
            sum_us=sum(times_us.values()),
            full_minus_empty_us=sum(times_us.values()),
        ),
        byte_table=[
            ReportBytes(
                component="experts",
                module="experts.gate_up",
                weight_format="nvfp4",
                replicated=False,
                bytes=42_000_000_000,
                bytes_read_per_step=1_300_000_000,
            )
        ],
        notes=["all-reduces are modelled [4.8 us each]"],
        warnings=["the step has two states"],
        config={"replay": "auto", "attribution": {"group_by": "component", "components": None}},
    )
    return dataclasses.replace(report, **changes)


def text_console(width, *, terminal=True):
    """A console that writes plain text into memory."""
    file = StringIO()
    environment = {"TERM": "xterm"}
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, _environ=environment)
    return console, file
