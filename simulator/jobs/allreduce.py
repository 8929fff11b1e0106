"""job=allreduce: times of all-reduces from a log, their fit, and what they cost this model's step. No torch."""

from dataclasses import asdict, replace
from pathlib import Path

from omegaconf import OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table

from simulator.config import SimulatorConfig
from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware, Interconnect
from simulator.imports.nccl_tests import AllReduceLog, read_log
from simulator.latency_fit import Fit, fit_times
from simulator.profiles import resolve_hardware
from simulator.report.write import json_text, write_files
from simulator.step.build import build_step

PROFILE_NAME = "fitted"


def run_allreduce(config: SimulatorConfig, directory: Path) -> None:
    """Import and fit; writes allreduce.json, and hardware/fitted.yaml to be used with `--config-dir`."""
    source = Path(config.allreduce.import_log or "")
    log = read_log(source)
    if log.num_gpus != config.deployment.tp:
        must = f"has {log.num_gpus} ranks, and deployment.tp={config.deployment.tp}"
        hint = f"use deployment.tp={log.num_gpus} or another log"
        raise BadInputError(Problem(key="allreduce.import_log", value=source, must=must, suggestion=hint))
    try:
        fit = fit_times([row.size_bytes for row in log.rows], [row.time_us for row in log.rows])
    except ValueError as error:
        raise BadInputError(Problem(key="allreduce.import_log", value=source, must=str(error))) from None
    hardware, _ = resolve_hardware(config.hardware, None)
    fitted = fitted_hardware(hardware, fit, f"nccl-tests log {source.name}, {log.num_gpus} GPUs")
    payloads = _payloads(config)
    step_us = sum(calls * fitted.interconnect.all_reduce_us(payload) for payload, calls in payloads.items())
    content = {
        "schema": 1,
        "kinds": {"rows": "measured", "fit": "predicted", "step_us": "predicted"},
        "source": source.name,
        "num_gpus": log.num_gpus,
        "in_graph": log.in_graph,
        "rows": [asdict(row) for row in log.rows],
        "set_aside": list(log.set_aside),
        "fit": asdict(fit),
        "payloads": [{"bytes": payload, "calls": calls} for payload, calls in payloads.items()],
        "step_us": step_us,
    }
    profile = directory / "hardware"
    write_files(directory, {"allreduce.json": json_text(content)})
    write_files(profile, {f"{PROFILE_NAME}.yaml": OmegaConf.to_yaml(OmegaConf.create(asdict(fitted)))})
    _print(log, fit, fitted.interconnect, payloads, step_us)
    Console(soft_wrap=True, highlight=False).print(
        f"written to {directory / 'allreduce.json'}; use the fit with --config-dir {directory} hardware={PROFILE_NAME}"
    )


def fitted_hardware(hardware: Hardware, fit: Fit, origin: str) -> Hardware:
    """The profile with its interconnect replaced by the fit."""
    source = f"{hardware.source} Interconnect: fitted to {origin}; largest error of the fit {fit.largest_error:.0%}."
    wire = Interconnect(
        name=origin,
        latency_us=fit.segments[0].latency_us,
        bandwidth_gbps=fit.segments[-1].bandwidth_gbps,
        segments=list(fit.segments),
    )
    return replace(hardware, name=PROFILE_NAME, source=source, device=None, interconnect=wire)


def _payloads(config: SimulatorConfig) -> dict[int, int]:
    """Bytes of the step's all-reduces, and how many there are of each."""
    step = build_step(config.model, config.recipe, config.deployment, config.routing)
    counts: dict[int, int] = {}
    for op in step.ops:
        if op.name.endswith("allreduce"):
            counts[op.cost.wire_bytes] = counts.get(op.cost.wire_bytes, 0) + 1
    return counts


def _print(log: AllReduceLog, fit: Fit, wire: Interconnect, payloads: dict[int, int], step_us: float) -> None:
    console = Console(highlight=False)
    where = "inside a CUDA graph" if log.in_graph else "one call at a time, outside a graph"
    table = Table(
        title=f"All-reduce over {log.num_gpus} GPUs, {where} (measured; fit predicted)",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    for name in ("size B", "time us", "algbw GB/s", "busbw GB/s", "fit us", "fit error"):
        table.add_column(name, justify="right")
    factor = 2 * (log.num_gpus - 1) / log.num_gpus
    for row in log.rows:
        fitted_us, bandwidth = wire.all_reduce_us(row.size_bytes), row.size_bytes / row.time_us / 1e3
        cells = (f"{row.size_bytes:,}", f"{row.time_us:.2f}", f"{bandwidth:.2f}", f"{bandwidth * factor:.2f}")
        table.add_row(*cells, f"{fitted_us:.2f}", f"{fitted_us / row.time_us - 1:+.1%}")
    console.print(table)
    for segment in fit.segments:
        line = f"{segment.latency_us:.2f} us + bytes / {segment.bandwidth_gbps:.2f} GB/s"
        console.print(f"fit from {segment.from_bytes:,} B: {line}")
    console.print(f"error of the fit: median {fit.median_error:.1%}, largest {fit.largest_error:.1%}")
    for payload, calls in payloads.items():
        us = wire.all_reduce_us(payload)
        console.print(
            f"this step: {calls} all-reduces of {payload:,} B x {us:.2f} us = {calls * us / 1e3:.3f} ms (predicted)"
        )
    console.print(f"all-reduces of the step together: {step_us / 1e3:.3f} ms (predicted)")
    for reason in log.set_aside:
        console.print(f"set aside: {reason}")
