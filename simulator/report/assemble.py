"""From what a run found out to its report. No torch."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.attribution import Attribution, GroupTimes
from simulator.ceiling import Floor, step_floor
from simulator.config import SimulatorConfig
from simulator.deployment import Deployment
from simulator.hardware import Hardware, Interconnect
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
from simulator.step.program import DecodeStep, Group


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that a report is made of."""

    config: SimulatorConfig
    step: DecodeStep
    hardware: Hardware
    wire: Interconnect
    groups: Sequence[Group]
    attribution: Attribution
    kind: Kind
    nodes_of_op: Sequence[int]
    environment: Mapping[str, Any]
    notes: Sequence[str]
    warnings: Sequence[str]


def assemble(findings: Findings) -> Report:
    """The report of one run."""
    attribution, step = findings.attribution, findings.step
    floor = _floor(findings, range(len(step.ops)))
    tokens_per_us = step.tokens / attribution.full_us if attribution.full_us > 0 else 0.0
    return Report(
        mode=findings.kind,
        group_by=findings.config.attribution.group_by.value,
        model=dataclasses.asdict(findings.config.model),
        deployment=_deployment(findings.config.deployment),
        hardware=dataclasses.asdict(findings.hardware),
        environment=findings.environment,
        config=dataclasses.asdict(findings.config),
        step=ReportStep(
            median_us=attribution.full_us,
            ci95_us=attribution.full_ci95_us,
            p95_us=attribution.p95_us,
            empty_us=attribution.empty_us,
            replays=attribution.rounds,
            tok_s=tokens_per_us * 1e6,
        ),
        ceiling=ReportCeiling(
            step_us=floor.total_us, tok_s=step.tokens / floor.total_us * 1e6, by_floor=_causes(floor)
        ),
        components=[
            _component(findings, group, times) for group, times in zip(findings.groups, attribution.groups, strict=True)
        ],
        interactions=[
            ReportInteraction(a=findings.groups[a].name, b=findings.groups[b].name, us=us)
            for a, b, us in attribution.interactions
        ],
        attribution=ReportAttribution(
            method="exact" if attribution.exact else "permutation",
            subsets=attribution.num_subsets,
            rounds=attribution.rounds,
            sum_us=sum(group.shapley_us for group in attribution.groups),
            full_minus_empty_us=attribution.full_us - attribution.empty_us,
        ),
        byte_table=byte_table(step),
        notes=findings.notes,
        warnings=[*findings.warnings, *_mode_warning(attribution)],
    )


def _deployment(deployment: Deployment) -> dict[str, Any]:
    """The deployment as it was built: the batch as long as the list of contexts, the longest of them as context."""
    built = {"batch": deployment.num_sequences, "context": deployment.max_context}
    return dataclasses.asdict(deployment) | built


def _floor(findings: Findings, ops: Iterable[int]) -> Floor:
    chosen = [findings.step.ops[index] for index in ops]
    pdl = findings.config.kernels.programmatic_launch
    return step_floor(chosen, findings.hardware, pdl=pdl, wire=findings.wire)


def _causes(floor: Floor) -> FloorCauses:
    return FloorCauses(memory=floor.memory_us, compute=floor.compute_us, node=floor.node_us, wire=floor.wire_us)


def _component(findings: Findings, group: Group, times: GroupTimes) -> ReportComponent:
    floor = _floor(findings, group.ops)
    # times on a CPU are not to be held against the floors of a GPU
    comparable = floor.total_us > 0 and findings.kind is not Kind.EXECUTED
    absorbed = dict.fromkeys(name for index in sorted(group.ops) for name in findings.step.ops[index].absorbed)
    return ReportComponent(
        name=group.name,
        ops=len(group.ops),
        nodes=sum(findings.nodes_of_op[index] for index in group.ops),
        shapley_us=times.shapley_us,
        ci95_us=times.shapley_ci95_us,
        leave_one_out_us=times.leave_one_out_us,
        alone_us=times.alone_us,
        floor_us=_causes(floor),
        floor_total_us=floor.total_us,
        x_floor=times.shapley_us / floor.total_us if comparable else None,
        share=times.shapley_us / findings.attribution.full_us if findings.attribution.full_us > 0 else 0.0,
        absorbed=tuple(absorbed),
    )


def _mode_warning(attribution: Attribution) -> list[str]:
    modes = attribution.bimodal
    if modes is None:
        return []
    return [
        f"the step has two states: {modes.fast_us:,.0f} us in {modes.fast_share:.0%} of replays, "
        f"{modes.slow_us:,.0f} us in {modes.slow_share:.0%}; its median describes only one of them"
    ]


def byte_table(step: DecodeStep) -> list[ReportBytes]:
    """Weights by module, summed over layers: what is resident on the rank, and what one step reads."""
    rows: dict[str, ReportBytes] = {}
    read: dict[str, int] = {}
    resident: dict[str, int] = {}
    for op in step.ops:
        name = getattr(op.call, "weight", None) or getattr(op.call, "table", None)
        if not isinstance(name, str) or len(step.weights[name].shape) < 2:
            continue
        spec = step.weights[name]
        module = name.split(".")[-1]
        read[module] = read.get(module, 0) + op.cost.bytes_read
        rows[module] = ReportBytes(
            component=op.component.value,
            module=module,
            weight_format=spec.weight_format,
            replicated=spec.replicated,
            bytes=0,
            bytes_read_per_step=0,
        )
    for name, spec in step.weights.items():
        module = name.split(".")[-1]
        resident[module] = resident.get(module, 0) + spec.num_bytes
    return [
        dataclasses.replace(row, bytes=resident[module], bytes_read_per_step=read[module])
        for module, row in rows.items()
    ]
